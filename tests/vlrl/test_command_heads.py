"""The commands in the heads of configs and recipes that are not `vlrl train`, at small sizes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vlrl.cli import main

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
    "configs/gui_agent": "there is no folder 'runs/gui_agent_start'",
    "dialogue_start": "cannot read runs/dialogue_demos",
    "forms_start": "record episodes with `vlrl record`",
    "checked_start": "record episodes with `vlrl record`",
    "policy.model=runs/embedded_counting": "there is no folder 'runs/embedded_counting'",
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
ELSEWHERE = ("gui_agent_demos", "embedded_touch", "embedded_three", "FILE with", "$C")


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
