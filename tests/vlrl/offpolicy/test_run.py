"""`vlrl offpolicy` as users run it: it learns, is killed, goes on exactly, and says in one line what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vlrl.cli import main
from vlrl.offpolicy import config as configs
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.learner import Acting, OffPolicyLearner
from vlrl.runner import Runner
from vlrl.types import UserError

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
agent: {name: rlpd, hidden: 16, lr: 3.0e-3, cta_ratio: 1}
offline: [{name: demonstrations, episodes: 4}]
updates: 20
ticks: 300
warmup_steps: 40
batch_size: 16
gamma: 0.9
eval: {every_steps: 100, num_samples: 6}
log: {rows_every: 10, rollouts_every: 100, checkpoint_every: 60}
"""


def vlrl(*arguments: str) -> int:
    return main(["offpolicy", *map(str, arguments)])


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("step_*"))[-1]
    return {
        str(file.name) + key: value for file in newest.glob("*.safetensors") for key, value in load_file(file).items()
    }


def same(one: Path, other: Path) -> None:
    """Rows, weights, optimizers, generators, replays: everything but clocks."""
    assert rows(one) == rows(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    kept = [sorted((folder / "checkpoints").glob("step_*"))[-1] for folder in (one, other)]
    for name in ("online.npz", "offline.npz"):
        with np.load(kept[0] / name) as a, np.load(kept[1] / name) as b:
            assert a.files == b.files and all(np.array_equal(a[key], b[key]) for key in a.files)


@pytest.mark.slow
def test_it_learns_and_tells(place, capsys):
    """The point starts by chance and ends at its goal; the run folder is one that every other command reads."""
    assert vlrl("line.yaml", "ticks=900", "utd=3.0") == 0
    said = capsys.readouterr().out
    told = json.loads((place / "run" / "summary.json").read_text())
    assert told["before"]["value"] < 0.7 < told["after"]["value"] and told["after"]["n"] == 6
    assert told["ticks"] >= 900 and told["rehearsed"] == 20 and told["steps"] == told["ticks"] + 20
    assert f"-> {told['after']['value']:.3f} [" in said and "rlpd" in (place / "run" / "report.html").read_text()
    found = rows(place / "run")
    warm, after = (
        [r["updates"] for r in found if r.get("ticks", 0) in span] for span in (range(1, 41), range(60, 999))
    )
    assert set(warm) == {20} and after == sorted(after) and after[-1] == told["updates"]
    decisions = found[-2]["remembered"] - next(r for r in found if r.get("ticks", 0) >= 40)["remembered"]
    assert after[-1] - 20 == pytest.approx(3.0 * decisions, abs=1)
    assert [r["step"] for r in found] == sorted(r["step"] for r in found)


@pytest.mark.slow
def test_a_killed_process_goes_on_exactly(place):
    """A power cut in the middle of an episode: all that a run remembers must come back, or it is another run."""
    assert vlrl("line.yaml", "out=whole") == 0
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "LINE_STOPS": "SIGKILL:40", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlrl.cli", "offpolicy", "line.yaml", "out=part"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = rows(place / "part")
    assert before == rows(place / "whole")[: len(before)] and len(before) < len(rows(place / "whole"))
    assert vlrl("--resume", "part") == 0
    same(place / "whole", place / "part")


@pytest.mark.parametrize("where", [3, 8, 40], ids=["demonstrations", "first evaluation", "playing"])
def test_a_stopped_run_saves_and_goes_on_exactly(place, monkeypatch, capsys, where):
    """A cluster sends SIGTERM: what was played since the last checkpoint must not be lost."""
    assert vlrl("line.yaml", "out=whole") == 0
    monkeypatch.setenv("LINE_STOPS", f"SIGTERM:{where}")
    assert vlrl("line.yaml", "out=part") == 130
    step = rows(place / "part")[-1]["step"]
    assert f"stopped at step {step}; go on with: vlrl offpolicy --resume part" in capsys.readouterr().err
    assert (place / "part" / "checkpoints" / f"step_{step:09d}").is_dir()
    monkeypatch.delenv("LINE_STOPS")
    assert vlrl("--resume", "part") == 0
    same(place / "whole", place / "part")


def test_a_run_without_a_checkpoint_begins_anew(place):
    """Killed in its first seconds, `--resume` must not mix two beginnings."""
    assert vlrl("line.yaml", "out=whole") == 0
    (place / "part").mkdir()
    (place / "part" / "config.yaml").write_text((place / "whole" / "config.yaml").read_text().replace("whole", "part"))
    (place / "part" / "metrics.jsonl").write_text('{"step": 0, "eval/accuracy": 1.0}\n{"st')
    assert vlrl("--resume", "part") == 0
    same(place / "whole", place / "part")


def test_one_seed_is_one_run(place):
    """Nothing but the seed may decide; another seed is another run."""
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert vlrl("line.yaml", f"out={out}", f"seed={seed}", "ticks=60") == 0
    same(place / "a", place / "b")
    assert rows(place / "a") != rows(place / "c")


def learner(*changes: str) -> OffPolicyLearner:
    config = configs.load("line.yaml", changes)
    made = OffPolicyLearner(config)
    made.setup()
    return made


def test_half_of_a_batch_is_what_was_given(place):
    """Few demonstrations would drown in what is played. Without either, all is the other."""
    both, alone = learner(), learner("offline=[]", "updates=0")
    both.make_agent()
    online, offline = both.batch()
    assert online is None and len(offline) == 16
    both.counts["rehearsed"] = 20
    both.step(20)
    online, offline = both.batch()
    assert (len(online), len(offline)) == (8, 8) and offline.reward.any()
    alone.make_agent()  # plain SAC: chance tells the scale of the states
    online, offline = alone.batch()
    assert (len(online), offline) == (16, None) and alone.counts["episodes"] == 8
    np.testing.assert_allclose(alone.scale[0], alone.online.all().state.mean(0), atol=1e-6)


def test_a_persons_steps_are_kept_with_what_was_given(place):
    """HIL-SERL: where a person took over, that is what is to be learned; the rest of the episode is not."""
    made = learner()
    made.make_agent()
    given = len(made.offline)
    states, none = np.zeros((3, 2)), np.zeros(3, bool)
    made.remember(
        Transitions(states, np.zeros((3, 3, 1)), np.zeros(3), none, states, np.ones(3), np.array([False, True, False])),
        none,
    )
    assert len(made.online) == 3 and len(made.offline) == given + 1 and made.offline.all().person.sum() == 1


@pytest.mark.parametrize("give", [False, True])
def test_won_episodes_are_given_where_asked(place, give):
    """Self-imitation: all turns of what was won and none of what was lost, or demonstrations would be diluted.

    Always to the right: some goals lie there.
    """
    made = learner(f"give_won={str(give).lower()}")
    made.make_agent()
    given = len(made.offline)
    right = Acting(lambda state, explore: np.full((len(state), 3, 1), 0.8, np.float32))
    episodes, _ = made._play(right, 10)
    won = sum(len(e.turns) for e in episodes if e.score.correct)
    assert 0 < won < len(made.online) and len(made.offline) - given == give * won


def test_learning_from_what_is_given_alone(place):
    """ticks: 0 is offline learning: not one episode may be played to learn."""
    assert vlrl("line.yaml", "ticks=0", "updates=25", "eval.every_steps=10") == 0
    told, found = json.loads((place / "run" / "summary.json").read_text()), rows(place / "run")
    assert (told["ticks"], told["updates"], told["rollouts"]) == (0, 25, 0)
    assert [r["step"] for r in found if "updates" in r] == [10, 20, 25]
    assert [r["step"] for r in found if "eval/accuracy" in r] == [0, 10, 20, 25]


def test_numbers_that_are_not_finite_stop_the_run(place, monkeypatch):
    """A night of computing NaN, all checkpoints overwritten."""
    monkeypatch.setattr("vlrl.offpolicy.agents.Rlpd.update", lambda *_: {"critic_loss": float("nan")})
    config = configs.load("line.yaml")
    with pytest.raises(UserError, match=r"not finite at step 10; last good checkpoint: none") as stopped:
        Runner(config, OffPolicyLearner(config)).run()
    assert stopped.value.exit_code == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [(["agent.critcs=3"], "agent.critcs: unknown key; did you mean 'critics'"),
     (["offline=[{name: demonstrations, episods: 3}]"], "offline.0.episods: unknown key; did you mean 'episodes'"),
     (["wamup=3"], "wamup: unknown key; did you mean 'warmup_steps'"),
     (["eval.evry=3"], "eval.evry: unknown key; did you mean 'every_steps'"),
     (["agent=rldp"], "agent.name: unknown name 'rldp'; did you mean 'rlpd'"),
     (["agent.tau=0"], "agent.tau"), (["utd=0"], "utd"), (["capacity=8"], "capacity: below batch_size = 16"),
     (["offline=[]"], "updates: before the first tick there is nothing to learn from"),
     (["ticks=0", "updates=0"], "nothing to do"),
     (["start=nowhere"], "start: nowhere"),
     (["offline=[{name: demonstrations, episodes: 30}]"], "30 demonstrations, but 20 training scenes"),
     (["task=jigsaw"], "task: jigsaw has no robot"),
     (["task.chnk=3"], "task.chnk: unknown key; did you mean 'chunk'"),
     (["agent.subset=4"], "agent.subset: 4 of 2 critics")],
)  # fmt: skip
def test_mistakes_are_one_line(place, capsys, changes, problem):
    """A traceback, or a run that ignores what it was told."""
    assert vlrl("line.yaml", *changes) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("vlrl: ") and problem in said[-1]


def test_resuming_takes_a_run_folder(place, capsys):
    """`--resume` of a mistyped folder, or with a second config."""
    assert vlrl("--resume", "nowhere") == vlrl("line.yaml", "--resume", "run") == vlrl() == 2
    said = capsys.readouterr().err
    assert "holds no config.yaml" in said and "name no other" in said and "name a config" in said


def test_a_robot_from_the_command_line(tmp_path, capsys):
    """Demonstrations of a real simulator's script, a run, and its policy evaluated and served as any other."""
    from vlrl.serving.policies import servable

    reach = ["task.robot={name: tabletop, job: reach}", "task.horizon=16", "task.held_out=4", "task.workers=1"]
    out = tmp_path / "run"
    sizes = ["offline=[{name: demonstrations, episodes: 3}]", "ticks=64", "utd=1", "agent.hidden=16", "batch_size=16"]
    assert vlrl(ROOT / "configs" / "offpolicy_push.yaml", *reach, *sizes, "eval={num_samples: 4}", f"out={out}") == 0
    told = json.loads((out / "summary.json").read_text())
    capsys.readouterr()
    config = str(ROOT / "configs" / "manipulation.yaml")
    assert main(["eval", config, *reach, "eval.num_samples=4", "--model", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["value"], found["n"]) == (told["after"]["value"], 4)
    policy = servable(str(out))
    assert [each.name for each in policy.spec.action] == ["x", "y", "z"] and policy.spec.hz == 20
    assert main(["train", config, *reach, f"policy.model={out}", f"out={tmp_path / 'other'}"]) == 2
    assert "vlrl offpolicy" in capsys.readouterr().err
