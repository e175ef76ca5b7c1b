"""Commands at small sizes: in heads of configs and recipes all but `vlrl train`, in each help its example."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from vlrl.cli import main
from vlrl.cli.help import GROUPS

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"
DEMONSTRATIONS = "offline=[{name: demonstrations, episodes: 2}]"
PLAYS = ("task.horizon=8", "ticks=64", "warmup_steps=8", "batch_size=4", "eval.num_samples=2")
SIZES: dict[str, tuple[str, ...]] = {  # what is put behind a command: two steps, or all that comes before the first
    "warmstart": ("steps=2", "images=4", "eval.num_samples=4"),
    "clone": ("episodes=2", "steps=2", "task.horizon=20", "eval.num_samples=2"),
    "offpolicy": (*PLAYS, "updates=2", DEMONSTRATIONS),
    "preferences": ("pairs=24", "asked=8", "model.steps=2", DEMONSTRATIONS.replace("2", "4")),
    "record": ("--episodes", "4"),
    "simulate": ("--episodes", "1"),
    "compare": ("--plan",),  # its runs are those of `vlrl train`, which test_heads.py covers
    "stages": ("--dry-run",), "reproduce": ("--dry-run",), "plan": (),
    "deploy": ("--dry-run",),
    "residual": (), "learn": (), "serve": (), "reward-model": (), "select": (), "pretrain": (),
}  # fmt: skip
# what cannot run without files that an earlier command makes: in the command -> what its one line says
REFUSED = {
    "gui_history_start": "record episodes with `vlrl record`",
    "gui_agent_start": "record episodes with `vlrl record`",
    "visual_search_calls": "record episodes with `vlrl record`",
    "visual_search_start": "record episodes with `vlrl record`",
    "embedded_pages": "check data.train",
    "learn_so101": "start: there is no folder 'runs/so101'",
    "so101_learned": "there is no folder 'runs/so101_learned'",
    "reward_so101": "no LeRobotDataset",
    "FOLDER": "there is no folder 'FOLDER'",
    "runs/manipulation ": "there is no folder 'runs/manipulation'",
    "runs/offpolicy_push": "there is no folder 'runs/offpolicy_push",
    "offpolicy_push_dsrl": "there is no folder 'runs/flow'",
    "offpolicy_push_recap": "there is no folder 'runs/flow'",
    "configs/gui_agent": "there is no folder 'runs/gui_agent_start'",
    "dialogue_start": "cannot read runs/dialogue_demos",
    "forms_start": "record episodes with `vlrl record`",
    "checked_start": "record episodes with `vlrl record`",
    "policy.model=runs/embedded_digits": "there is no folder 'runs/embedded_digits'",
    "embedded_claims": "there is no folder 'runs/embedded_open'",
    "search_start": "record episodes with `vlrl record`",
    "discriminator_open": "there is no folder 'runs/embedded_open'",
    "runs/limr": "there is no config runs/limr",
    "MODEL": "there is no folder 'MODEL'",
    "deploy/replay": "runs/so101_data/meta/info.json cannot be read",
    "deploy/so101": "cannot connect to so101_follower",
    "deploy/koch": "cannot connect to koch_follower",
    "deploy/lekiwi": "cannot connect to lekiwi",
}
# browsers, which have tests of their own; thousands of episodes played before the first step; words after a command
ELSEWHERE = ("gui_agent_demos", "embedded_touch", "FILE with", "$C")


def find_commands() -> dict[str, list[str]]:
    """Each command once, with its arguments."""
    found: dict[str, list[str]] = {f"deploy configs/deploy/{file.name}": [] for file in CONFIGS.glob("deploy/*.yaml")}
    for file in sorted(CONFIGS.rglob("*.yaml")):
        head = "\n".join(re.findall(r"^# ?(.*)$", file.read_text(), re.MULTILINE)).replace("\\\n", "")
        for command in re.findall(rf"vlrl ((?:{'|'.join(SIZES)}) (?:[^(`\n&#.]|\.\w)*)", head):
            found[command.strip()] = []
    return {command: shlex.split(command) for command in found if not any(name in command for name in ELSEWHERE)}


COMMANDS = find_commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_head_command_reaches_its_second_step(command, tmp_path, monkeypatch, capsys):
    """The first thing that a user copies out of a config would end in a traceback, or never begin."""
    monkeypatch.chdir(tmp_path)  # `runs/...` of this checkout must not be found
    arguments = [re.sub("^configs/", f"{CONFIGS}/", word) for word in COMMANDS[command]]
    code = main([*arguments, *SIZES[arguments[0]]])
    lines = capsys.readouterr().err.strip().splitlines() or [""]
    missing = next((said for part, said in REFUSED.items() if part in command), None)
    assert code == (2 if missing else 0), lines[-1]
    assert missing is None or missing in lines[-1]


def test_every_refusal_belongs_to_a_command():
    """A config that was renamed would no longer be held to what it says."""
    assert [part for part in REFUSED if not any(part in command for command in COMMANDS)] == []


# What `vlrl COMMAND --help` ends with: command -> what is put behind its example to make it small.
SMALL = ("train.steps=2", "train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=4",
         "eval.every_steps=null", "log.trackers=[]")  # fmt: skip
EXAMPLES = {name: shlex.split(example)[1:] for names in GROUPS.values() for name, example in names.items()}
RUN: dict[str, tuple[str, ...]] = {
    "demo": SMALL, "train": SMALL, "eval": ("eval.num_samples=4",), "warmstart": SIZES["warmstart"],
    "select": ("--samples", "4", "--repeats", "2"), "best-of": ("--samples", "4", "--tries", "2"),
    "record": ("--episodes", "4"), "simulate": ("--episodes", "1"), "clone": SIZES["clone"],
    "demos": ("--episodes", "1"), "offpolicy": SIZES["offpolicy"], "preferences": SIZES["preferences"],
    **dict.fromkeys(("doctor", "import-config", "list", "explain", "show", "advise", "plan", "reproduce", "compare",
                     "stages", "check-task", "score", "export", "average", "card", "residual"), ()),
}  # fmt: skip
NOT_RUN = {  # and why
    "init": "asks the hub for the model", "accept": "fetches a model", "push": "uploads",
    "capture": "a browser, for minutes (tests/tasks/web/test_capture.py)",
    "pretrain": "a user's own file (tests/vlrl/offpolicy/test_pretrain.py)",
    "trial": "a user's own file, and a robot (tests/robot/trial/test_run.py)",
    "view": "serves (tests/vlrl/report/test_view.py)", "serve-model": "serves (tests/vlrl/report/test_playground.py)",
    "serve-task": "serves (tests/vlrl/tools/test_serve_task.py)", "emulate": "serves (tests/test_journeys.py)",
    "serve": "serves (tests/test_journeys.py)", "deploy": "an arm", "replay": "an arm, emulated or real",
    "learn": "waits for an arm's episodes", "reward-model": "an arm's recorded episodes",
}  # fmt: skip


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Path:
    """A folder in which a newcomer has a run, four more of its kind, screens and others' files."""
    folder = tmp_path_factory.mktemp("before")
    root = CONFIGS.parent
    spec = importlib.util.spec_from_file_location("journeys", root / "scripts" / "journeys.py")
    journeys = sys.modules.setdefault("journeys", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(journeys)
    (folder / "clicks.jsonl").write_text(journeys.write_screens(folder))
    (folder / "trl.yaml").write_text(journeys.TRL)
    row = {"completion": "<answer>[5, 5]</answer>", "answer": [0, 0, 9, 9], "image_size": [56, 56]}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["train", "gui_grounding", *SMALL, f"out={folder}/runs/demo"]) == 0
    for name in ("one", "two"):
        shutil.copytree(folder / "runs" / "demo", folder / "runs" / name)
    return folder


@pytest.mark.parametrize("name", RUN)
def test_the_example_of_a_command_s_help_runs(name, before, tmp_path, monkeypatch, capsys):
    """What a newcomer copies first would be refused, or end in a traceback."""
    folder = shutil.copytree(before, tmp_path / "work")
    monkeypatch.chdir(folder)
    assert main([*EXAMPLES[name], *RUN[name]]) == 0, capsys.readouterr().err[-500:]
    out = [EXAMPLES[name][i + 1] for i, word in enumerate(EXAMPLES[name]) if word in ("--out", "--report")]
    assert all((folder / file).exists() for file in out)


def test_every_example_is_run_or_says_why_not():
    """A new command's example would be run by nobody."""
    assert RUN.keys() | NOT_RUN.keys() == EXAMPLES.keys() and not RUN.keys() & NOT_RUN.keys()
