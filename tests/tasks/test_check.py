"""`vlrl check-task`: what it proves of every built-in task, and that it finds what is broken."""

import dataclasses
import json

import pytest
from PIL import Image

from tasks.base import answer_markup
from tasks.check import CLAIMS, prove
from tasks.gui_grounding import GuiGrounding
from tasks.jigsaw import Jigsaw
from vlrl import cli, registry
from vlrl.types import Data, Observation, Score

NAMES = registry.task_names()
TASKS = [pytest.param(name, marks=pytest.mark.slow) if name == "gui_agent" else name for name in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_every_task_holds_what_is_claimed(name, thinking):
    """A task whose best answer is not the one that earns most cannot be learned."""
    task = registry.find("task", name)
    chosen = {"thinking": thinking} if "thinking" in registry.options_of(task) else {}  # gui_actions: by its system
    findings = prove(task(**chosen))
    assert [finding for finding in findings if finding.problem] == []
    assert {finding.claim for finding in findings} > set(CLAIMS)


def changed(task, **methods):
    for name, method in methods.items():
        setattr(task, name, method)
    return task


def all_right(episode):
    return Score({"hit": 1.0, "format": 1.0}, 1.0)


def samples_with(**changes):
    task = GuiGrounding()
    listed = {split: task.samples(split)[:4] for split in ("train", "test")}
    return {split: [dataclasses.replace(sample, **changes) for sample in some] for split, some in listed.items()}.get


SCREEN = Image.new("RGB", (64, 64))


def test_a_folder_per_class_passes(tmp_path):
    """Its first samples all have one answer: a good data set would be refused, or not be checked at all."""
    for name, many in (("cat", 40), ("dog", 20), ("emu", 20)):
        (tmp_path / name).mkdir()
        for number in range(many):
            SCREEN.save(tmp_path / name / f"{number}.png")
    findings = prove(registry.find("task", "classification")(data=Data(train=str(tmp_path), test=str(tmp_path))))
    assert next(f for f in findings if f.claim == "other samples' answers are not right").problem is None


BROKEN = {
    "gold": (dict(gold=lambda sample, frames: answer_markup("[0, 0]", False)), "gold scores the maximum"),
    "generous": (dict(score=all_right), "empty and junk completions"),
    "blind": (dict(score=all_right), "other samples' answers"),
    "no text": (dict(samples=samples_with(prompt=Observation((SCREEN, " ")))), "prompts render"),
    "placeholder": (dict(samples=samples_with(prompt=Observation((SCREEN, "Click {name}.")))), "prompts render"),
    "grey image": (dict(samples=samples_with(prompt=Observation((SCREEN.convert("L"), "Click.")))), "images load"),
    "same id": (dict(samples=samples_with(id="one")), "no sample is in both splits"),
}


@pytest.mark.parametrize(("methods", "claim"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_found(methods, claim):
    """A proof that passes everything would let a useless run start."""
    found = {finding.claim: finding.problem for finding in prove(changed(GuiGrounding(), **methods), samples=8)}
    assert any(problem for name, problem in found.items() if name.startswith(claim)), found


def test_the_command_prints_a_line_for_each_claim(capsys):
    """This is what a user runs before training on a task of their own."""
    assert cli.main(["check-task", "gui_grounding"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CLAIMS) + 1 and all(line.startswith("ok ") for line in lines)


def test_the_command_checks_a_file_of_the_users(tmp_path, capsys):
    """Boxes in another order or space than declared are the most common reason for rewards of zero."""
    SCREEN.resize((200, 100)).save(tmp_path / "screen.png")
    rows = [{"image": "screen.png", "instruction": f"Click {x}", "box": [x, 10, x + 20, 30]} for x in (10, 60, 150)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["check-task", "gui_grounding", "--data", str(tmp_path / "rows.jsonl")]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert cli.main(["check-task", "gui_grounding", "--data", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err


def test_a_failure_names_the_sample(monkeypatch, capsys):
    """The user has to know where to look."""
    monkeypatch.setattr(Jigsaw, "gold", lambda self, sample, frames: "<answer>1 1 1 1</answer>")
    assert cli.main(["check-task", "jigsaw"]) == 2
    assert "FAILED  gold scores the maximum in all coordinates: jigsaw/train/" in capsys.readouterr().out


def test_a_task_of_one_row_can_be_checked(tmp_path):
    """There is no other sample to compare with, and nothing to divide by."""
    SCREEN.save(tmp_path / "screen.png")
    row = {"image": "screen.png", "instruction": "Click", "box": [10, 10, 30, 30]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    file = str(tmp_path / "rows.jsonl")
    assert not [f for f in prove(GuiGrounding(data=Data(train=file, test=file))) if f.problem and "both" not in f.claim]
