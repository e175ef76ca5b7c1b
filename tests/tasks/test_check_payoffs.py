"""`vlrl check-task --table`: no task pays for form, nor an answer that does not look for more than its accuracy."""

from importlib import import_module

import pytest

from tasks.check import ANSWERS, compute_payoffs
from vlrl import cli, registry

PUBLISHED = ("vlm_r1",)  # pays what its paper pays
TASKS = [
    pytest.param(name, marks=pytest.mark.slow) if name == "gui_agent" else name  # it plays in browsers
    for name in registry.task_names()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_answers_that_do_not_look_earn_no_more_than_they_are_right(name):
    """A policy that always says the same, or nothing, would look trained: it had half of the reward."""
    task = registry.find("task", name)()
    try:
        paid = compute_payoffs(task)
    finally:
        getattr(task, "close", lambda: None)()
    assert paid["gold"].reward == pytest.approx(1.0) and paid["gold"].correct == 1.0
    assert paid["empty"].reward <= 0.0 and paid["empty"].correct == 0.0
    if name in PUBLISHED:
        return
    for answer in ("another's gold", "constant", "whole", "random"):
        if answer in paid:
            assert paid[answer].reward <= paid[answer].correct + 1e-9, (name, answer, paid[answer])


@pytest.mark.parametrize("name", registry.task_names())
def test_form_pays_at_most_a_quarter(name):
    """What form pays, no answer needs to be right for."""
    if name in PUBLISHED:
        return
    weights = import_module(f"tasks.{name}").WEIGHTS
    most = sum(weight for weight in weights.values() if weight > 0)
    assert abs(weights.get("format", 0.0)) + abs(weights.get("malformed", 0.0)) <= most / 4


def test_the_command_prints_the_table(capsys):
    """The table of docs/rewards.md is made by it."""
    assert cli.main(["check-task", "counting", "--table"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert head == f"| task | {' | '.join(ANSWERS)} |"
    assert row.startswith("| `counting` | 1.00 (1.00) | ") and row.count("|") == head.count("|")


@pytest.mark.parametrize("asked", [["check-task"], ["check-task", "counting", "--all"]])
def test_one_task_or_all_are_checked(asked, capsys):
    """Which one was meant cannot be guessed."""
    assert cli.main(asked) == 2
    assert "name one TASK, or --all" in capsys.readouterr().err
