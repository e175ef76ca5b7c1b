"""Recording episodes and learning from them, first offline and then online, as users run it: `vlrl record`, `train`."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from vlrl.episode_store import FILE, recorded_read
from vlrl.recipe_checks import load_config

RECIPE = Path(__file__).parents[2] / "configs" / "recipes" / "digirl.yaml"
HELPER = Path(__file__).with_name("run_cli.py")
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}
PRELOADED = ["vlrl.trainer", "vlrl.evaluation.record", "vlrl.policies.tiny", "tasks.gui_grounding", "qwen_vl_utils",
             "transformers.loss.loss_utils", "transformers.models.auto.processing_auto", "torchvision"]  # fmt: skip
PATIENCE = 300  # seconds until a command counts as stuck
STEPS, OFFLINE = 4, 2

MODULE = '''
"""Two clicks on one screen: each turn asks for another of its widgets."""
from tasks.base import Rendered, Task
from tasks.gui_grounding import GuiGrounding
from vlrl.types import Environment, Episode, Observation, Sample, Score, Step, Turn


class TwoClicks(Task):
    weights = {"hits": 1.0}

    def __init__(self, *, held_out: int = 2):
        self.inner = GuiGrounding(pool=48, held_out=2 * held_out, per_screen=2, text_share=0.0)

    def samples(self, split):
        pool = self.inner.samples(split)
        pairs = [(pool[i], pool[i + 1]) for i in range(0, len(pool), 2)]
        return [Sample(f"two/{split}/{i}", first.prompt, (first, then)) for i, (first, then) in enumerate(pairs)]

    def environment(self, sample):
        return Screen(self.inner, sample.answer)

    def score(self, episode):
        asked = zip(episode.sample.answer, episode.turns, strict=True)
        hits = [self.inner.score(Episode(sample, 0, [turn])).parts["hit"] for sample, turn in asked]
        return Score({"hits": float(min(hits))}, float(min(hits)))


class Screen(Environment):
    def __init__(self, inner, asked):
        self.inner, self.asked, self.turn = inner, asked, 0

    def reset(self):
        return self.asked[0].prompt

    def step(self, action, frames=()):
        self.turn += 1
        return Step(self.asked[-1].prompt, terminated=self.turn == 2)

    def gold(self, frames):
        return self.inner.gold(self.asked[self.turn], frames)

    def close(self):
        pass


class Unsolved(TwoClicks):
    def environment(self, sample):
        screen = super().environment(sample)
        screen.gold = lambda frames: None
        return screen
'''
CONFIG = {
    "task": {"name": "mine:TwoClicks"},
    "out": "run",
    "policy": {"model": "embedded", "max_tokens": 12},
    "train": {
        "steps": STEPS,
        "prompts_per_step": 6,
        "group_size": 1,
        "lr": 1e-3,
        "update_epochs": 2,
        "num_minibatches": 2,
    },
    "log": {"checkpoint_every": 1, "rollouts_every": 1, "rollouts": 2, "trackers": []},
    "rollout_strategy": {"name": "offline_first", "episodes": "kept", "steps": OFFLINE},
    "advantages": [{"name": "digirl", "top": 0.4}],
    "losses": ["likelihood"],
}

Vlrl = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def vlrl(tmp_path_factory) -> Iterator[Vlrl]:
    """`vlrl("train", ..., folder=..., until=...)` -> exit code, stdout, stderr of the real command in a forked process.

    until: the command is killed as soon as this holds.
    """
    outputs = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)

        def run(*arguments: object, folder: Path, until: Callable[[], bool] | None = None) -> tuple[int, str, str]:
            files = [outputs / f"{len(list(outputs.iterdir()))}.{kind}" for kind in ("out", "err")]
            request = {
                "arguments": list(map(str, arguments)), "folder": str(folder), "output": tuple(map(str, files)),
                "largest_file": None,
            }  # fmt: skip
            process = context.Process(target=runpy.run_path, args=(str(HELPER), {"REQUEST": request}, "__main__"))
            process.start()
            deadline = time.monotonic() + PATIENCE
            while until and not until():
                assert process.is_alive() and time.monotonic() < deadline, files[1].read_text()
                time.sleep(0.002)
            if until:
                os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE)
            assert process.exitcode is not None, "stuck"
            return process.exitcode, *(file.read_text() if file.exists() else "" for file in files)

        yield run


def workplace(folder: Path, *, kept: Path | None = None, **changes: object) -> Path:
    """A folder with the user's own module and a config, and recorded episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(MODULE)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | changes))
    if kept:
        (folder / "kept").symlink_to(kept)
    return folder


def rows(folder: Path) -> list[dict]:
    file = folder / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def trained(folder: Path, step: int) -> Callable[[], bool]:
    return lambda: any("loss" in row and row["step"] >= step for row in rows(folder))


def success(episodes) -> float:
    return sum(episode.score.correct for episode in episodes) / len(episodes)


@pytest.fixture(scope="module")
def kept(vlrl, tmp_path_factory) -> Path:
    """Episodes of two clicks, a third of which the policy made."""
    folder = workplace(tmp_path_factory.mktemp("recorder"), rollout_strategy="plain")
    command = ("record", "config.yaml", "--episodes", 16, "--out", "kept", "--by", "gold", "--noise", 0.33)
    code, output, errors = vlrl(*command, folder=folder)
    assert code == 0, errors
    assert output.startswith("16 episodes by gold: success 0.") and output.endswith("turns 2.0; kept\n")
    return folder / "kept"


def test_gold_and_policy_episodes_of_one_turn(vlrl, tmp_path):
    """A recording would hold other answers than it says."""
    workplace(tmp_path, task="gui_grounding", rollout_strategy="plain")
    shares = {}
    for by in ("gold", "policy"):
        code, output, errors = vlrl("record", "config.yaml", "--episodes", 24, "--by", by, "--out", by, folder=tmp_path)
        assert code == 0, errors
        episodes = recorded_read(tmp_path / by)
        shares[by] = success(episodes)
        assert f"24 episodes by {by}: success {shares[by]:.3f}" in output
        assert len({episode.sample.id for episode in episodes}) == 24
        assert all(episode.turns[0].decision.frames[0].space == "grid10" for episode in episodes)
    assert shares["gold"] == 1.0 > shares["policy"]
    code, _, errors = vlrl("record", "config.yaml", "--episodes", 2, "--out", "gold", folder=tmp_path)
    assert code == 2 and "gold exists already" in errors and len(recorded_read(tmp_path / "gold")) == 24


def test_noise_mixes_failures_into_gold_episodes(kept):
    """A critic that has only seen successes can tell nothing apart."""
    episodes = recorded_read(kept)
    assert 0.2 < success(episodes) < 1.0
    for episode in episodes:
        assert [turn.step.terminated for turn in episode.turns] == [False, True]
        first, second = (turn.observation for turn in episode.turns)
        assert first.images[0].tobytes() == second.images[0].tobytes() and first.text != second.text


@pytest.fixture(scope="module")
def finished(vlrl, kept, tmp_path_factory) -> Path:
    folder = workplace(tmp_path_factory.mktemp("straight"), kept=kept)
    code, _, errors = vlrl("train", "config.yaml", folder=folder)
    assert code == 0, errors
    return folder


def test_a_run_goes_from_recorded_to_played_episodes(finished, kept):
    """Offline steps would play, or online steps would repeat old episodes."""
    train = [row for row in rows(finished) if "loss" in row]
    assert [row["offline"] for row in train] == [1.0] * OFFLINE + [0.0] * (STEPS - OFFLINE)
    known = {tuple(turn.decision.action for turn in episode.turns) for episode in recorded_read(kept)}
    for step in range(1, STEPS + 1):
        lines = (finished / "run" / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()
        shown = [row for row in map(json.loads, lines) if row["split"] == "train"]
        assert len(shown) == 2 and all(row["advantage"] in (0.0, 0.5, 1.0) for row in shown)
        if step <= OFFLINE:
            assert all(tuple(row["completion"].split("\n")) in known for row in shown)
    # failures are never imitated
    assert all(0 < r["digirl/imitated"] <= r["accuracy"] and r["digirl/turn_loss"] > 0 for r in train[:OFFLINE])
    assert any(row["digirl/imitated"] < 1 for row in train)
    assert max(row["logprob_gap"] for row in train) < 1e-5
    summary = json.loads((finished / "run" / "summary.json").read_text())
    assert summary["updates"] == STEPS * 4 and summary["skipped"] == 0


def test_a_killed_run_goes_on_as_if_nothing_had_happened(vlrl, kept, finished, tmp_path):
    """A resumed run would draw other episodes, or ask critics that have forgotten everything."""
    folder = workplace(tmp_path, kept=kept)
    for i, step in enumerate((1, 3)):  # while offline, while online
        arguments = ("--resume", "run") if i else ("config.yaml",)
        code, *_ = vlrl("train", *arguments, folder=folder, until=trained(folder, step))
        assert code == -signal.SIGKILL
    code, _, errors = vlrl("train", "--resume", "run", folder=folder)
    assert code == 0, errors
    assert rows(folder) == rows(finished)
    last = Path("run") / "checkpoints" / f"step_{STEPS:06d}"
    for name in ("model.safetensors", "trainer.safetensors"):
        assert (folder / last / name).read_bytes() == (finished / last / name).read_bytes()


@pytest.mark.slow
def test_a_killed_run_remembers_its_earlier_episodes(vlrl, tmp_path):
    """A resumed run would have nothing to replay, or other episodes."""
    small = {
        "train": CONFIG["train"] | {"steps": 3},
        "rollout_strategy": {"name": "replay", "earlier": 2, "capacity": 9},
    }
    straight, killed = (workplace(tmp_path / name, **small) for name in ("straight", "killed"))
    assert vlrl("train", "config.yaml", folder=straight)[0] == 0
    assert vlrl("train", "config.yaml", folder=killed, until=trained(killed, 2))[0] == -signal.SIGKILL
    code, _, errors = vlrl("train", "--resume", "run", folder=killed)
    assert code == 0, errors
    assert rows(killed) == rows(straight)
    assert [row["replay/earlier"] for row in rows(straight) if "loss" in row] == [0, 6, 9]
    last = Path("run") / "checkpoints" / "step_000003"
    for name in ("model.safetensors", "trainer.safetensors"):
        assert (killed / last / name).read_bytes() == (straight / last / name).read_bytes()


MISTAKES = {  # arguments behind `record config.yaml` -> what the one line names
    "no episodes": (["--episodes", 0], "--episodes 0"),
    "noise of more than everything": (["--episodes", 1, "--by", "gold", "--noise", 1.5], "--noise 1.5"),
    "noise without gold": (["--episodes", 1, "--noise", 0.5], "--by gold"),
    "no gold": (["task=mine:Unsolved", "--episodes", 1, "--by", "gold"], "two/train/"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line(mistake, vlrl, tmp_path):
    """A user would read a traceback, or find a folder of nothing."""
    arguments, named = MISTAKES[mistake]
    workplace(tmp_path, rollout_strategy="plain")
    code, _, errors = vlrl("record", "config.yaml", *arguments, "--out", "kept", folder=tmp_path)
    (line,) = errors.splitlines()
    assert code == 2 and line.startswith("vlrl: ") and named in line
    assert not (tmp_path / "kept").exists()


def test_a_run_without_its_episodes_writes_nothing(vlrl, tmp_path):
    """A missing folder would be found out after the first evaluation."""
    workplace(tmp_path)
    code, _, errors = vlrl("train", "config.yaml", folder=tmp_path)
    assert code == 2 and f"cannot read kept/{FILE}" in errors and not (tmp_path / "run").exists()


def test_the_recipe_lies_over_another_task(vlrl, tmp_path):
    """A recipe that is refused, or breaks at its first step, is no recipe."""
    workplace(tmp_path)
    small = ("train.steps=2", "train.prompts_per_step=6", "out=run")
    code, _, errors = vlrl("train", "config.yaml", RECIPE, *small, folder=tmp_path)
    assert code == 0, errors
    train = [row for row in rows(tmp_path) if "loss" in row]
    assert [row["replay/earlier"] for row in train] == [0, 6]
    assert all(0 <= row["digirl/imitated"] < 1 and row["digirl/turn_loss"] > 0 for row in train)
    assert load_config(RECIPE).out == "runs/digirl"
