"""Held-out evaluation: the interval, and what is counted."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl import registry
from vlrl.config import Config
from vlrl.runner import evaluate
from vlrl.types import BaseTask, Decision, Frame, Policy, wilson

Z = 1.959964


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.277533),
        (5, 10, 0.236593, 0.763407),
        (10, 10, 0.722467, 1.0),
        (1, 10, 0.017876, 0.404150),
        (81, 263, 0.2553, 0.3662),  # this and below: Newcombe, Statistics in Medicine 17 (1998), method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_values(successes, n, low, high):
    """Two runs would seem to differ, or seem equal, by a wrong interval."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 2000), st.floats(0, 1))
def test_wilson_solves_its_equation(n, p):
    """Its ends are where the observed share is exactly z standard errors away."""
    low, high = wilson(p * n, n)
    assert 0 <= low <= p + 1e-12 and p - 1e-12 <= high <= 1
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(p - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / n), abs=1e-9)


def test_wilson_of_nothing_says_nothing():
    """No samples must not end in a division by zero."""
    assert wilson(0, 0) == (0.0, 1.0)


class Scribe(Policy):
    """Writes the gold answer, or the given text for every third sample; greedy as evaluation must ask."""

    def __init__(self, task, wrong: str):
        self.task, self.wrong, self.asked = task, wrong, 0

    def act(self, episodes, observations, *, greedy: bool) -> list[Decision]:
        assert greedy
        return [self._decide(episode, seen) for episode, seen in zip(episodes, observations, strict=True)]

    def _decide(self, episode, observation) -> Decision:
        frames = tuple(Frame("original_px", image.size, image.size) for image in observation.images)
        self.asked += 1
        text = self.wrong if self.asked % 3 == 0 else self.task.gold(episode.sample, frames)
        return Decision(text, torch.zeros(self.asked % 2 + 1), torch.zeros(self.asked % 2 + 1), False, frames)


@pytest.mark.parametrize(("wrong", "reason"), [("no idea", "no_answer"), ("<answer>1 1 1</answer>", "wrong_count")])
@pytest.mark.parametrize("batch", [4, 5, 100])
def test_evaluation_counts_what_was_right_and_why_not(wrong, reason, batch):
    """The headline number would be another, or hang on the batch size."""
    task = registry.make_task(Config.model_validate({"task": {"name": "jigsaw", "held_out": 9}, "out": "x"}))
    seen: list[tuple[int, int]] = []
    result = evaluate(Scribe(task, wrong), task, batch=batch, progress=lambda *done: seen.append(done))
    assert result.accuracy.value == pytest.approx(6 / 9)
    assert (result.accuracy.low, result.accuracy.high) == wilson(6, 9)
    assert result.parse_fail == {reason: pytest.approx(3 / 9)}
    assert result.parts == {"accuracy": pytest.approx(6 / 9), "format": pytest.approx(6 / 9)}
    assert result.reward == pytest.approx(6 / 9 - 3 / 9 * 0.25 - 0.25)
    assert result.length == pytest.approx((5 * 2 + 4 * 1) / 9)
    assert [e.sample.id for e in result.episodes] == [s.id for s in task.samples("test")]
    assert seen[-1] == (9, 9)
    row = result.row()
    assert row["eval/accuracy"] == result.accuracy.value and row[f"eval/parse_fail/{reason}"] == pytest.approx(3 / 9)


@pytest.mark.parametrize(("asked", "n"), [(1, 1), (4, 4), (99, 9), (None, 9)])
def test_only_the_asked_samples_are_evaluated(asked, n):
    """A quick check would take as long as a full one, or ask for samples that are not there."""
    task = registry.make_task(Config.model_validate({"task": {"name": "jigsaw", "held_out": 9}, "out": "x"}))
    assert evaluate(Scribe(task, ""), task, samples=asked, batch=4).accuracy.n == n


def test_what_a_task_reports_beside_reaches_the_log():
    """A benchmark's categories would be lost; its names must not take the place of the accuracy."""
    task = registry.make_task(Config.model_validate({"task": {"name": "jigsaw", "held_out": 9}, "out": "x"}))
    task.metrics = lambda episodes: {"web/icon": len(episodes) / 18, "accuracy": -1.0}
    result = evaluate(Scribe(task, ""), task, batch=4)
    assert result.metrics == {"web/icon": 0.5, "accuracy": -1.0}
    assert result.row()["eval/web/icon"] == 0.5
    assert result.row()["eval/accuracy"] == result.accuracy.value


def test_a_task_need_not_report_anything_beside():
    """Tasks of users that say nothing of metrics must go on working."""
    task = registry.make_task(Config.model_validate({"task": {"name": "jigsaw", "held_out": 9}, "out": "x"}))

    task.metrics = functools.partial(BaseTask.metrics, task)
    assert evaluate(Scribe(task, ""), task, samples=4).metrics == {}
