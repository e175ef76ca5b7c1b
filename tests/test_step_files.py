"""How many files of ours a reader visits who follows a training step, a gradient or a tick of a robot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = {"grpo": 25, "mssr": 27, "deploy": 12, "motion": 10}  # may only fall
SIMULATOR = {"robot/drivers/simulated.py", "robot/sim/tabletop.py"}  # in the motion process here, in none of a real arm
GRADIENT = [  # from the command to the gradient, in the order of the calls
    "vlrl/cli/train.py",
    "vlrl/api.py",
    "vlrl/runner.py",
    "vlrl/trainer.py",
    "vlrl/update.py",
]
SMALL = ("train.prompts_per_step=4", "out=unused")

# Executed in a child: `mark()` begins a new interval; `intervals` are the files of each, of the thread that marked.
VISITS = f"""
import sys, threading
from pathlib import Path
ROOT, OURS = {str(ROOT)!r}, ("vlrl/", "tasks/", "rewards/", "robot/")
intervals, marker = [], [0]

def mark():
    marker[0] = threading.get_ident()
    intervals.append(set())

def visit(code, offset):
    name = code.co_filename.removeprefix(ROOT + "/")
    if name == code.co_filename or not name.startswith(OURS):
        return sys.monitoring.DISABLE
    if code.co_qualname in BEGINS:
        mark()
    if intervals and threading.get_ident() == marker[0]:
        intervals[-1].add(name)
    ended(code)

monitoring = sys.monitoring
monitoring.use_tool_id(3, "visits")
monitoring.register_callback(3, monitoring.events.PY_START, visit)
monitoring.set_events(3, monitoring.events.PY_START)
"""

STEP = """
import json, sys
BEGINS, ended = (), lambda code: None
from vlrl import api
from vlrl.trainer import RLTrainer
learner = RLTrainer(api.load_config(*sys.argv[1:]))
learner.setup()
learner.step(0)
{visits}
mark()
learner.step(1)
monitoring.set_events(3, 0)
learner.close()
print(json.dumps(sorted(intervals[0])))
"""

# The ticks of both processes of a deployment: this is `sitecustomize.py` of each of them.
TICKS = """
import json, os
BEGINS = {{"EpisodePlayer._obey": "deploy", "Loop.do": "motion"}}

def ended(code):
    if code.co_qualname in BEGINS and len(intervals) == 41:  # ticks 20 to 40
        monitoring.set_events(3, 0)
        with open(os.path.join(os.environ["VISITS"], BEGINS[code.co_qualname]), "w") as file:
            json.dump(sorted(max(intervals[20:40], key=len)), file)
{visits}
"""

STACK = """
import json, sys, traceback
import torch
backward, files = torch.Tensor.backward, []

def traced(self, *rest, **options):
    if not files:
        names = [frame.filename.removeprefix(sys.argv[1]) for frame in traceback.extract_stack()]
        files.extend(dict.fromkeys(name for name in names if name.startswith("vlrl/") and "__" not in name))
    return backward(self, *rest, **options)

torch.Tensor.backward = traced
from vlrl.cli import main
assert main(["train", *sys.argv[2:]]) == 0
print(json.dumps(files))
"""


def child(code: str, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("recipe", ["grpo", pytest.param("mssr", marks=pytest.mark.slow)])
def test_a_training_step_visits_few_files(recipe: str) -> None:
    """Who debugs a step reads each of them."""
    laid = [] if recipe == "grpo" else ["configs/recipes/mssr.yaml"]
    files = child(STEP.format(visits=VISITS), "configs/gui_grounding.yaml", *laid, *SMALL)
    assert "vlrl/update.py" in files and len(files) <= MOST[recipe], files


@pytest.mark.slow
def test_the_gradient_is_five_files_from_the_command(tmp_path: Path) -> None:
    """Frameworks between a command and its loss are what people fork a project for."""
    small = (*SMALL, "train.steps=1", "eval.num_samples=4", f"out={tmp_path / 'run'}")
    assert child(STACK, f"{ROOT}/", "configs/gui_grounding.yaml", *small) == GRADIENT


def test_a_tick_of_a_deployment_visits_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves a robot must be read whole by who answers for it."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "robot" / "deploy"))
    monkeypatch.syspath_prepend(str(tmp_path))  # handed to the processes, which then begin with sitecustomize
    import small_deploy

    (tmp_path / "sitecustomize.py").write_text(TICKS.format(visits=VISITS), encoding="utf-8")
    with small_deploy.killable() as (url, _):
        monkeypatch.setitem(os.environ, "VISITS", str(tmp_path))
        run = small_deploy.Run(small_deploy.written(tmp_path, url))
        assert run.end() == 0, run.lines
    for name in ("deploy", "motion"):
        files = set(json.loads((tmp_path / name).read_text(encoding="utf-8"))) - SIMULATOR
        assert "robot/control/messages.py" in files and len(files) <= MOST[name], (name, files)
