"""`vlrl train` as users run it: what a run leaves behind, killed and resumed runs, and mistakes."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from PIL import Image

import vlrl

ROOT = Path(vlrl.__file__).parents[1]
HELPER = Path(__file__).with_name("run_cli.py")
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}
PRELOADED = ["vlrl.trainer", "vlrl.policies.tiny", "tasks.gui_grounding", "qwen_vl_utils", "torch.utils.tensorboard",
             "transformers.loss.loss_utils", "transformers.models.auto.processing_auto", "torchvision"]  # fmt: skip
PATIENCE = 300  # seconds until a run counts as stuck, on a busy machine

MODULE = '''
import torch
from tasks.gui_grounding import GuiGrounding
from vlrl.methods import method
from vlrl.types import Score


class Lengthy(GuiGrounding):
    """Pays for every other completion, so that even a model that has learned nothing gets a signal; less each step."""

    stage = -100  # never seen: a run that is resumed without its step would show in every reward

    def at_step(self, step):
        self.stage = step

    def score(self, episode):
        hit = float(sum(map(ord, episode.completion)) % 2)
        return Score({"hit": hit * (1 - self.stage / 100), "format": len(episode.completion) / 10}, hit)


@method
def nan_loss(now, batch):
    return now.logprobs * float("nan")


steps = 0


@method
def nan_once(now, batch):
    global steps
    steps += 1
    return now.logprobs * (float("nan") if steps == 2 else -1.0)
'''

CONFIG = {
    "task": {"name": "mine:Lengthy", "pool": 12, "held_out": 24},
    "policy": {"model": "embedded", "max_tokens": 5},
    "train": {"steps": 9, "prompts_per_step": 2, "group_size": 3, "lr": 1e-3, "num_minibatches": 2},
    "eval": {"every_steps": 4, "batch_size": 4},
    "log": {"checkpoint_every": 2, "rollouts_every": 2, "rollouts": 2},
    "losses": [{"name": "ppo_clip"}, {"name": "kl", "coef": 0.05}],
}
MSSR = {
    "train": CONFIG["train"] | {"group_size": 1, "prompts_per_step": 4},
    "advantages": [{"name": "beta_tracker", "start": 1}, {"name": "batch_norm"}, {"name": "entropy_shaping"}],
}
# every fast path at once: a kept prefill under checkpoints, a frozen tower, an adapter switched off for the reference,
# rows that leave and enter, part of the law, groups left out
FAST = {
    "train": CONFIG["train"] | {"num_minibatches": 1},
    "policy": CONFIG["policy"] | {
        "lora": {"rank": 2, "alpha": 4, "targets": r".*language_model.*_proj"}, "gradient_checkpointing": True,
        "max_num_seqs": 3, "top_p": 0.9, "top_k": 40, "stop": [">"],
    },
}  # fmt: skip
VARIANTS = {"grpo": (), "mssr": (MSSR,), "fast": (FAST,)}


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Running:
    """A command in a process of its own."""

    process: multiprocessing.Process
    output: tuple[Path, Path]

    def wait(self) -> Done:
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "stuck"
        return Done(self.process.exitcode, *(file.read_text() for file in self.output))

    def signal_when(self, ready: Callable[[], bool], number: int) -> Done:
        """Sends a signal as soon as a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert self.process.is_alive(), self.output[1].read_text()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(self.process.pid, number)
        return self.wait()


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator[Start]:
    """`start("train", ..., folder=...)`: a command in a forked process, which spares it the seconds of importing."""
    outputs = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)

        def run(*arguments: str, folder: Path, largest_file: int | None = None) -> Running:
            files = tuple(outputs / f"{len(list(outputs.iterdir()))}.{kind}" for kind in ("out", "err"))
            request = {
                "arguments": list(map(str, arguments)), "folder": str(folder), "output": tuple(map(str, files)),
                "largest_file": largest_file,
            }  # fmt: skip
            files[0].touch()
            files[1].touch()
            process = context.Process(target=runpy.run_path, args=(str(HELPER), {"REQUEST": request}, "__main__"))
            process.start()
            return Running(process, files)

        yield run


def workplace(folder: Path, *changes: dict) -> Path:
    """A folder with the user's own module and a config, as changed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(MODULE)
    config = {"out": "run"} | CONFIG
    for change in changes:
        config = config | change
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / name).read_text().splitlines()]


def trained(folder: Path, step: int) -> Callable[[], bool]:
    """Whether a training row of this step is the last whole line of the metrics."""

    def ready() -> bool:
        file = folder / "run" / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return any(row["step"] >= step and "loss" in row for row in whole)

    return ready


@pytest.fixture(scope="module")
def train_whole(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run of a method, by the real command line."""

    @functools.cache
    def train(method: str) -> Path:
        folder = workplace(tmp_path_factory.mktemp(method), *VARIANTS[method])
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "vlrl.cli", "train", "config.yaml"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1 and "report: run/report.html" in done.stdout
        return folder

    return train


@pytest.fixture(scope="module")
def finished(train_whole) -> Path:
    """The folder of an uninterrupted run of GRPO."""
    return train_whole("grpo")


METHODS = [pytest.param(each, marks=[] if each == "grpo" else pytest.mark.slow) for each in VARIANTS]


def test_a_run_leaves_everything_behind(finished):
    """Otherwise a result cannot be looked at, repeated or compared."""
    run = finished / "run"
    config = (run / "config.yaml").read_text()
    assert "# seed 0" in config and "torch 2." in config and "commit" in config
    assert yaml.safe_load(config)["train"]["steps"] == 9
    train = [row for row in rows(run.parent) if "loss" in row]
    assert [row["step"] for row in train] == list(range(1, 10))
    assert {"reward", "reward/hit", "accuracy", "entropy", "kl", "grad_norm", "logprob_gap"} <= train[0].keys()
    assert [row["step"] for row in rows(run.parent) if "eval/accuracy" in row] == [0, 4, 8, 9]
    assert list(run.rglob("events.out.tfevents.*"))
    rollout = json.loads((run / "rollouts" / "step_000002.jsonl").read_text().splitlines()[0])
    assert (run / rollout["images"][0]).exists() and "advantage" in rollout
    assert "<html" in (run / "report.html").read_text()
    assert sorted(p.name for p in (run / "checkpoints").iterdir())[-1] == "step_000009"


def test_the_summary_states_the_result_and_its_price(finished):
    """Otherwise scripts and readers must dig the result out of logs."""
    summary = json.loads((finished / "run" / "summary.json").read_text())
    for when in ("before", "after"):
        measured = summary[when]
        assert measured["low"] <= measured["value"] <= measured["high"] and measured["n"] == 24
    assert summary["metric"] == "accuracy" and summary["seed"] == 0 and summary["bad_rows"] == 0
    assert summary["rollouts"] == 9 * 2 * 3 and summary["updates"] == 9 * 2 and summary["skipped"] == 0
    assert summary["wall_s"] > 0 and summary["cpu_s"] > 0


@pytest.mark.parametrize("method", METHODS)
def test_sampling_and_training_agree_on_log_probabilities(method, train_whole):
    """Otherwise the ratio that the update clips is wrong from the first step on."""
    assert max(row["logprob_gap"] for row in rows(train_whole(method)) if "loss" in row) < 1e-5


def without_clocks(folder: Path) -> dict:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in ("wall_s", "cpu_s")}


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "run" / "metrics.jsonl").read_bytes() == (other / "run" / "metrics.jsonl").read_bytes()
    assert without_clocks(one) == without_clocks(other)
    names = [sorted(p.name for p in (f / "run" / "rollouts").glob("*.jsonl")) for f in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (one / "run" / "rollouts" / name).read_bytes() == (other / "run" / "rollouts" / name).read_bytes()
    saved = [sorted((f / "run" / "checkpoints" / "step_000009").glob("*model*.safetensors")) for f in (one, other)]
    assert saved[0] and [file.read_bytes() for file in saved[0]] == [file.read_bytes() for file in saved[1]]


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(method, train_whole, start, tmp_path):
    """Otherwise a reboot spoils a long run, or a resumed result differs from a straight one."""
    folder = workplace(tmp_path / method, *VARIANTS[method])
    # before the first checkpoint; after the second step; in the evaluation after step 4; in the middle of an interval
    for i, step in enumerate((1, 2, 4, 7)):
        arguments = ("--resume", "run") if i else ("config.yaml",)
        killed = start("train", *arguments, folder=folder).signal_when(trained(folder, step), signal.SIGKILL)
        assert killed.code == -signal.SIGKILL
        with (folder / "run" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 99, "re')  # a line that was being written
    done = start("train", "--resume", "run", folder=folder).wait()
    assert done.code == 0, done.stderr
    assert_same_run(folder, train_whole(method))


def test_first_responses_end_at_a_signal(start, tmp_path):
    """A tracker over a drawn task answered 100,000 prompts before step 1, deaf to SIGTERM, and had to be killed."""
    changes = (
        "sampler={name: shuffled, limit: null}",
        "train.prompts_per_step=4",
        "eval.num_samples=2",
        "log.trackers=[]",
        "out=run",
    )
    recipe, metrics = (
        Path(__file__).parents[2] / "configs" / "recipes" / "mssr.yaml",
        tmp_path / "run" / "metrics.jsonl",
    )
    running = start("train", recipe, *changes, "out=run", folder=tmp_path)
    stopped = running.signal_when(lambda: metrics.exists() and metrics.stat().st_size > 0, signal.SIGTERM)
    assert stopped.code == 130
    assert re.search(r"stopped before step 1, after first responses to \d+ of 4096 prompts", stopped.stderr)


def test_interrupting_saves_and_says_how_to_go_on(finished, start, tmp_path):
    """Otherwise Ctrl-C loses work, or its user does not know how to continue."""
    folder = workplace(tmp_path)
    stopped = start("train", "config.yaml", folder=folder).signal_when(trained(folder, 3), signal.SIGINT)
    assert stopped.code == 130
    assert "vlrl train --resume run" in stopped.stderr.splitlines()[-1]
    assert "Traceback" not in stopped.stderr
    assert not (folder / "run" / "summary.json").exists()
    done = start("train", "--resume", "run", folder=folder).wait()
    assert done.code == 0, done.stderr
    assert_same_run(folder, finished)


def test_resuming_a_finished_run_repeats_its_summary(finished, start, tmp_path):
    """Otherwise a job script that always resumes trains on past the end."""
    shutil.copytree(finished, tmp_path / "copy")
    before = (tmp_path / "copy" / "run" / "summary.json").read_bytes()
    kept = sorted((tmp_path / "copy" / "run" / "checkpoints").iterdir())
    shutil.copytree(kept[-1], kept[-1].with_name("step_000001"))  # killed between its last save and its pruning
    done = start("train", "--resume", "run", folder=tmp_path / "copy").wait()
    assert done.code == 0 and "report: run/report.html" in done.stdout, done.stderr
    assert without_clocks(tmp_path / "copy") == without_clocks(finished)
    assert json.loads(before)["updates"] == 18
    assert sorted((tmp_path / "copy" / "run" / "checkpoints").iterdir()) == kept
    assert rows(tmp_path / "copy") == rows(finished)


def test_sharing_the_prefix_does_not_change_a_run(finished, start, tmp_path):
    """Otherwise the fast default reports other results than the plain method."""
    naive = {
        "train": CONFIG["train"] | {"shared_prefix": False, "steps": 3},
        "eval": {"every_steps": 4, "batch_size": 4},
    }
    folder = workplace(tmp_path, naive)
    assert start("train", "config.yaml", folder=folder).wait().code == 0
    for row, expected in zip([r for r in rows(folder) if "loss" in r], rows(finished)[1:4], strict=True):
        # Adam divides by gradients' size, so rounding of tiny gradients can show in what follows
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_one_bad_update_is_skipped_and_counted(start, tmp_path):
    """Otherwise one NaN destroys the weights of a run of days, or passes unseen."""
    folder = workplace(tmp_path, {"losses": [{"name": "mine:nan_once"}]})
    done = start("train", "config.yaml", "train.steps=3", "train.num_minibatches=1", folder=folder).wait()
    assert done.code == 0, done.stderr
    assert without_clocks(folder)["skipped"] == 1 and without_clocks(folder)["updates"] == 2
    assert [row["skipped"] for row in rows(folder) if "loss" in row] == [0, 1, 0]
    assert "step 2: skipped a non-finite update; samples gui_grounding/train/" in done.stderr


def test_a_run_of_bad_updates_stops(start, tmp_path):
    """Otherwise a broken run burns its whole budget."""
    folder = workplace(tmp_path, {"losses": [{"name": "mine:nan_loss"}]})
    done = start(
        "train", "config.yaml", "train.max_nonfinite_updates=3", "train.num_minibatches=1", folder=folder
    ).wait()
    assert done.code == 1
    last = done.stderr.splitlines()[-1]
    assert "3 non-finite updates in a row at step 3" in last and "step_000002" in last
    assert "Traceback" not in done.stderr


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """Files that a user may have by mistake."""
    folder = tmp_path_factory.mktemp("broken")
    Image.new("RGB", (64, 48), "red").save(folder / "good.png")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:60])

    def jsonl(name: str, *made: dict) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in made))

    good = {"image": "good.png", "instruction": "Click it", "box": [1, 1, 9, 9]}
    jsonl("cut.jsonl", good, good | {"image": "cut.png"})
    jsonl("outside.jsonl", good, good, good | {"box": [10, 10, 90, 20]})
    jsonl("mixed.jsonl", good, good | {"box": "?"}, good | {"image": "cut.png"})
    jsonl("empty.jsonl")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text('{"model_type": "llama"}')
    return folder


GROUNDING = "task.name=gui_grounding"
MISTAKES = {  # changes to the config -> what the one line names
    "unknown key": (["train.setps=3"], ["train.setps", "steps"]),
    "ill-typed key": (["train.steps=many"], ["train.steps", "many"]),
    "unknown recipe": (["no_such.yaml"], ["no_such.yaml"]),
    "unknown method": (["losses=[ppo_clop]"], ["losses.0", "ppo_clip"]),
    "group of one": (["train.group_size=1"], ["advantages.0", "group_size"]),
    "missing model": (["policy.model={broken}/nothing"], ["policy.model", "nothing"]),
    "no model": (["policy.model={broken}"], ["policy.model", "config.json"]),
    "unsupported model": (["policy.model={broken}/llama"], ["policy.model", "llama", "no vision-language"]),
    "truncated image": ([GROUNDING, "data.train={broken}/cut.jsonl"], ["cut.jsonl", "row 2", "cut.png"]),
    "box outside": ([GROUNDING, "data.train={broken}/outside.jsonl"], ["outside.jsonl", "row 3", "box"]),
    "no rows": ([GROUNDING, "data.test={broken}/empty.jsonl"], ["empty.jsonl", "data."]),
    "no such file": ([GROUNDING, "data.train={broken}/nothing.jsonl"], ["nothing.jsonl"]),
    "small limits": (["policy.max_pixels=10"], ["policy.max_pixels"]),
    "prompt too long": (["policy.max_prompt_tokens=10"], ["10", "policy.max_pixels"]),
}


def only_line(done: Done) -> str:
    assert done.code == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("vlrl: ")
    return line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line_before_anything_is_written(mistake, broken, start, tmp_path):
    """Otherwise a user reads tracebacks, or finds half a run that hides the mistake."""
    changes, named = MISTAKES[mistake]
    folder = workplace(tmp_path, {"advantages": [{"name": "grpo"}]})
    done = start("train", "config.yaml", *(c.format(broken=broken) for c in changes), folder=folder).wait()
    line = only_line(done)
    assert all(word in line for word in named), line
    assert not (folder / "run").exists()


def test_bad_rows_that_are_skipped_are_counted(broken, start, tmp_path):
    """Otherwise a dataset shrinks without notice."""
    folder = workplace(tmp_path, {"task": {"name": "gui_grounding", "held_out": 4}})
    changes = (f"data.train={broken}/mixed.jsonl", "data.on_bad_row=skip", "train.steps=1")
    done = start("train", "config.yaml", *changes, folder=folder).wait()
    assert done.code == 0, done.stderr
    assert without_clocks(folder)["bad_rows"] == 2


def test_a_full_disk_while_saving_is_said_in_one_line(start, tmp_path):
    """Otherwise a checkpoint is cut short and found out at the next resume."""
    folder = workplace(tmp_path)
    done = start("train", "config.yaml", folder=folder, largest_file=2**20).wait()
    assert done.code == 2 and "Traceback" not in done.stderr
    assert "cannot save the checkpoint" in done.stderr.splitlines()[-1]
    assert not list((folder / "run" / "checkpoints").glob("step_*"))


def other_model(model: Path) -> None:
    """Puts a deeper model in a checkpoint's place."""
    from vlrl.policies import tiny

    tokenizer = tiny.tokenizer_from(["Click the red square."])
    deeper, _ = tiny.build(tokenizer, hidden=64, layers=4, vision_hidden=32)
    deeper.save_pretrained(model)


def test_a_checkpoint_that_does_not_fit_is_refused(finished, start, tmp_path):
    """Otherwise a run goes on from weights that are not its own."""
    shutil.copytree(finished, tmp_path / "copy")
    newest = tmp_path / "copy" / "run" / "checkpoints" / "step_000009"
    other_model(newest)
    (newest / "files.json").unlink()  # with it, these would be seen to be other files than were saved
    line = only_line(start("train", "--resume", "run", folder=tmp_path / "copy").wait())
    assert "another architecture" in line and "step_000009" in line


def test_a_damaged_checkpoint_costs_its_own_steps_alone(finished, start, tmp_path):
    """Otherwise a disk's fault ends a run, or changes its result unseen."""
    shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "copy" / "run" / "checkpoints" / "step_000009" / "trainer.safetensors").write_bytes(b"cut")
    done = start("train", "--resume", "run", folder=tmp_path / "copy").wait()
    assert done.code == 0, done.stderr
    assert "step_000009 is damaged (trainer.safetensors is not what was saved): going on from step_00000" in done.stderr
    assert_same_run(tmp_path / "copy", finished)


def test_resuming_what_is_no_run_is_refused(start, tmp_path):
    """Otherwise a wrong folder is trained in."""
    assert "config.yaml" in only_line(start("train", "--resume", "elsewhere", folder=tmp_path).wait())


def test_evaluating_a_run_repeats_its_last_accuracy(finished, start):
    """Otherwise the reported number is not the one of the model that was saved."""
    done = start("eval", "config.yaml", "--model", "run", "--json", folder=finished).wait()
    assert done.code == 0, done.stderr
    measured, summary = json.loads(done.stdout), without_clocks(finished)
    assert {k: measured[k] for k in ("value", "low", "high", "n")} == summary["after"]
    assert measured["metric"] == "accuracy" and measured["bad_rows"] == 0
