"""Two commands that want one folder: the second is refused in one line, the first loses nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from tests.vlrl.processes import rows
from vlrl import api
from vlrl.cli import parser
from vlrl.config import dump
from vlrl.io import HeldError, hold_folder, read_folder

ROOT = Path(__file__).parents[3]
SLOW = """
import os, pathlib, time
from tasks.gui_grounding import GuiGrounding


class Slow(GuiGrounding):
    '''Waits before the third step's rewards until the file `go` is there.'''

    def score(self, episode):
        while len(pathlib.Path("run/metrics.jsonl").read_text().splitlines()) > 2 and not os.path.exists("go"):
            time.sleep(0.02)
        return super().score(episode)
"""
PASSIVE = {"task": "manipulation", "out": "target", "offline": [{"name": "lerobot", "path": "given"}]}
LEARN = {"out": "target", "start": "embedded_push", "episodes": ["given"]}

# command -> its arguments; the folder that it holds, relative to where it runs
WRITERS: dict[str, tuple[str, str]] = {
    "train": ("gui_grounding out=target", "target"),
    "demo": ("out=target", "target"),
    "offpolicy": ("offpolicy_push out=target", "target"),
    "clone": ("models/embedded_push out=target", "target"),
    "learn": ("learn.yaml", "target"),
    "stages": ("stages/lmm_r1 out=target", "target"),
    "compare": ("compare/single_vs_group out=target", "target"),
    "preferences": ("preferences_push out=target", "target"),
    "pretrain": ("pretrain.yaml", "target"),
    "reward-model": ("reward_so101 out=target", "target"),
    "warmstart": ("models/embedded out=target", "target"),
    "residual": ("embedded_push --out target", "target"),
    "simulate": ("manipulation --out target --episodes 1", "target"),
    "select": ("gui_grounding --out target.jsonl --samples 2", ".target.jsonl.lock"),
    "record": ("gui_grounding --out target --episodes 1", ".target.part"),
    "best-of": ("gui_grounding --out target --samples 1", ".target.part"),
    "demos": ("manipulation --out target --episodes 1", ".target.part"),
    "capture": ("--out target --train 1 --test 1", ".target.part"),
    "export": ("run --out target", "run"),
    "average": ("run run --out target", "run"),
    "card": ("run", "run"),
    "push": ("run --to owner/name", "run"),
}
# write no folder of a run or a model (`accept` and `reproduce` train as `train` does); `deploy` and `trial` are robots'
# and have tests of their own
OTHERS = {"eval", "show", "doctor", "list", "init", "import-config", "view", "plan", "check-task", "score",
          "serve-model", "serve-task", "serve", "emulate", "deploy", "replay", "trial", "accept", "reproduce",
          "advise", "explain"}  # fmt: skip


def test_every_command_that_writes_is_in_the_table():
    """A new command would write into a folder that another one writes."""
    (commands,) = [action.choices for action in parser()._actions if action.dest == "command"]
    assert set(commands) == WRITERS.keys() | OTHERS


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_is_held_is_refused(name, command, place):
    """Whatever the second command is, it would mix its files with those of the first."""
    folder = place("work")
    (folder / "run" / "checkpoints" / "step_000001").mkdir(parents=True)
    for file, about in (("learn.yaml", LEARN), ("pretrain.yaml", PASSIVE)):
        (folder / file).write_text(yaml.safe_dump(about))
    given, held = WRITERS[name]
    with hold_folder(folder / held):
        before = listing(folder)
        code, said = command(folder, name, *given.split()).wait()
        assert code == 2 and f"{held} is in use by" in said and f"process {os.getpid()} on " in said, said
        assert len(said.strip().splitlines()) == 1
        assert listing(folder) == before


def test_python_takes_the_same_lease(tmp_path):
    """A notebook would write into the folder of a command that runs."""
    out = tmp_path / "run"
    config = api.load_config("gui_grounding", {"out": str(out)})
    with hold_folder(out):
        (out / "config.yaml").write_text(dump(config))
        before = listing(tmp_path)
        for start in (lambda: api.train(config), lambda: api.resume(out)):
            with pytest.raises(HeldError, match=f"run is in use by process {os.getpid()} on "):
                start()
        assert listing(tmp_path) == before


def listing(folder: Path) -> list[str]:
    """What lies in a folder, but for what the command says."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name not in ("out", "err"))


def underway(command, folder: Path, *arguments: str, name: str = "first"):
    """A training that waits in its third step."""
    run = command(folder, "train", *arguments, name=name)
    while not (folder / "run" / "checkpoints" / "step_000002").exists():
        assert run.process.is_alive(), run.wait()[1]
        time.sleep(0.02)
    return run


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in rows(folder)]


def test_training_twice_at_once(command, place):
    """The second renamed the first's folder, and the first went on writing into the second's metrics."""
    folder = place("twice", SLOW, task={"name": "mine:Slow", "pool": 12, "held_out": 2})
    first = underway(command, folder, "config.yaml")
    code, said = command(folder, "train", "config.yaml", name="second").wait()
    assert code == 2 and "run is in use by" in said and f"process {first.process.pid} on " in said
    code, said = command(folder, "train", "--resume", "run", name="third").wait()
    assert code == 2 and "run is in use by" in said
    code, said = command(folder, "export", "run", "--out", "model", name="fourth").wait()
    assert code == 2 and "run is in use by" in said
    (folder / "go").touch()
    assert first.wait()[0] == 0
    assert steps(folder) == [0, 1, 2, 3, 4, 4] and not (folder / "run.1").exists()
    assert not (folder / "run" / ".lease").exists()


def test_resuming_twice_at_once(command, place):
    """Two processes wrote 111 rows of 61 steps into one file, and both ended with exit code 0."""
    folder = place("resumed", SLOW, task={"name": "mine:Slow", "pool": 12, "held_out": 2})
    killed = underway(command, folder, "config.yaml", name="killed")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.wait()
    assert (folder / "run" / ".lease").exists()  # and no person has to remove it
    first = command(folder, "train", "--resume", "run", name="first")
    while f'"pid": {first.process.pid}' not in (folder / "run" / ".lease").read_text():
        time.sleep(0.02)
    code, said = command(folder, "train", "--resume", "run", name="second").wait()
    assert code == 2 and f"process {first.process.pid} on " in said
    (folder / "go").touch()
    assert first.wait()[0] == 0, first.wait()[1]
    assert steps(folder) == [0, 1, 2, 3, 4, 4]


def test_an_export_keeps_a_run_from_going_on(command, place):
    """The run would prune the checkpoint that is being copied."""
    folder = place("exported")
    assert command(folder, "train", "config.yaml", "train.steps=1", "eval.num_samples=1").wait()[0] == 0
    with read_folder(folder / "run"):
        assert command(folder, "export", "run", "--out", "model").wait()[0] == 0
        code, said = command(folder, "train", "--resume", "run").wait()
        assert code == 2 and "run is in use by" in said
