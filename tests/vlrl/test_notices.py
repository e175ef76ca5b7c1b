"""What a run says of itself while it does not learn."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vlrl
from vlrl.logging import STEPS, Notices, find_start_risks
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn

TEACHES = {"zero_advantage": 0.5, "accuracy": 0.4, "cut": 0.0}
SILENT = TEACHES | {"zero_advantage": 1.0}


def given(row: dict[str, float], steps: int = STEPS, **options: bool) -> list[str]:
    notices = Notices(**options)
    return [text for _ in range(steps) for text in notices.see(row)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (SILENT | {"accuracy": 0.0}, "no answer is right; take easier samples"),
        (SILENT | {"accuracy": 1.0}, "every answer is right; take harder samples: `vlrl select`"),
        (SILENT, "raise policy.temperature or train.group_size, or lower train.lr"),
        (SILENT | {"parse_fail/no_answer": 0.6, "parse_fail/many_answers": 0.3}, "90% of the answers were not read"),
        (TEACHES | {"parse_fail/no_answer": 0.7}, "70% of the answers of 10 steps were not read (no_answer): look at"),
        (TEACHES | {"cut": 0.8}, "80% of the completions of 10 steps end at policy.max_tokens: raise it"),
    ],
)  # fmt: skip
def test_says_why_and_what_to_turn(row, says) -> None:
    """A flat curve is found after hours, and its reason in none of the curves alone."""
    (text,) = given(row)
    assert says in text


def test_says_it_once_and_not_too_early() -> None:
    """A step without a signal is every run's; a line a step would be read by nobody."""
    assert given(SILENT, STEPS - 1) == given(TEACHES, 50) == []
    assert len(given(SILENT | {"cut": 0.9}, 50)) == 2
    notices = Notices()
    assert not any(notices.see(row) for _ in range(20) for row in (SILENT, TEACHES))


def test_methods_that_learn_without_advantages_are_left_alone() -> None:
    """A run that evolves its weights would be told for ever that it learns nothing."""
    assert given(SILENT, by_advantage=False) == []


def test_says_once_that_saving_takes_longer_than_the_steps() -> None:
    """Else a run on a slow disk is thought to be a slow run; a last checkpoint after one step is none."""
    notices = Notices()
    notices.see(TEACHES | {"seconds": 6.0})
    assert notices.saved(4.0) == []
    (text,) = notices.saved(5.0)
    assert text.startswith("60% of the time goes into saving, 5.0 s for the last checkpoint: raise log.checkpoint_ever")
    assert notices.saved(50.0) == []
    assert Notices().saved(4.9) == []  # too little to wait for


def test_a_run_that_cannot_learn_says_so(tmp_path, capsys) -> None:
    """The notice would be right and never be seen."""
    tiny = {
        "policy.max_tokens": 2,
        "train.steps": STEPS,
        "train.prompts_per_step": 1,
        "train.group_size": 2,
        "eval.num_samples": 2,
    }
    vlrl.train(vlrl.load_config("gui_grounding", tiny, {"out": tmp_path / "run", "log.trackers": []}))
    told = capsys.readouterr().err
    assert "10 steps in which no reward taught anything: 100% of the answers were not read (no_answer)" in told
    assert "100% of the completions of 10 steps end at policy.max_tokens: raise it" in told


@pytest.mark.parametrize(
    ("row", "episodes", "says"),
    [
        (
            {"eval/parse_fail/no_answer": 0.9, "eval/parse_fail/empty": 0.05},
            [],
            "95% of the answers are not read (no_a",
        ),
        ({"eval/parse_fail/no_answer": 0.8}, [], None),
        ({}, [["<answer>3</answer>"]] * 30 + [["4"]], "97% of the answers are '<answer>3</answer>'"),
        ({}, [["3"]] * 15, None),  # too few to tell
        ({}, [["click 1", "done"]] * 100, None),  # the last words of an agent
        ({}, [["click 1", "done"]] * 100 + [["3"]] * 20, "100% of the answers are '3'"),
        ({}, [[]] * 100, None),  # void
        ({}, [[np.zeros((1, 2))]] * 100, None),  # a robot that rests
    ],
)
def test_a_start_that_teaches_nothing_is_named(row, episodes, says) -> None:
    """Its curve is flat for hours before anybody looks at a rollout."""
    found = list(find_start_risks(row, [played(actions) for actions in episodes], "imitate"))
    assert len(found) == (says is not None) and all(says in text for text in found)


def played(actions: list[str | np.ndarray]) -> Episode:
    seen = Observation(())
    taken = [Decision(action, torch.zeros(1), torch.zeros(1), truncated=False) for action in actions]
    return Episode(Sample("0", seen), 0, [Turn(seen, decision, Step(seen)) for decision in taken])


def test_settings_that_waste_a_run_are_named_before_it(tmp_path, capsys, monkeypatch) -> None:
    """A large model with a demo's learning rate, answers that are cut, an accuracy of other samples than the user's."""
    monkeypatch.setattr("vlrl.trainer.LARGE", 500_000)  # the embedded model counts as large
    Image.new("RGB", (64, 64), "red").save(tmp_path / "page.png")
    row = {"image": "page.png", "instruction": "Click it.", "box": [10, 10, 30, 30]}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(8)))
    changes = {
        "data.train": str(tmp_path / "rows.jsonl"), "policy.model": "embedded", "policy.max_tokens": 3,
        "train.steps": 1, "train.prompts_per_step": 2, "train.group_size": 2, "train.lr": 3e-4, "eval.num_samples": 4,
    }  # fmt: skip
    vlrl.train(vlrl.load_config("gui_grounding", changes, {"out": tmp_path / "run", "log.trackers": []}))
    said = capsys.readouterr().err
    assert "data.test is not given" in said and "is likely to ruin the model" in said
    assert "policy.max_tokens: 3, but right answers take up to" in said
    other = {"policy.lora": {"rank": 2}, "policy.max_tokens": 40, "data.test": changes["data.train"]}
    vlrl.train(vlrl.load_config("gui_grounding", changes | other, {"out": tmp_path / "lora", "log.trackers": []}))
    said = capsys.readouterr().err
    assert not any(words in said for words in ("is not given", "likely to ruin", "right answers take"))
