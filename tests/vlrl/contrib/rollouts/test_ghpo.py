"""Hints for groups that are all wrong, longer and longer."""

from __future__ import annotations

import pytest

from vlrl.algorithms.rollout_common import beginning
from vlrl.contrib.rollouts.hints import Ghpo
from vlrl.rollout import plain
from vlrl.types import Policy, UserError

LEAD = "\nA right answer begins with: "


def stepped(policy, task, step: int = 0, **options):
    policy.generator.manual_seed(5)
    strategy = Ghpo(policy, task, 0, **options)
    return strategy, strategy(policy, task, task.samples("train")[:3], 2, step, keep=True)


def told(episode) -> str | None:
    last = episode.turns[0].observation.content[-1]
    return last.removeprefix(LEAD) if last.startswith(LEAD) else None


def test_the_hint_grows_until_somebody_is_right(writer, judged):
    """A question beyond the policy would teach nothing, or be given away whole where a little would do."""
    task = judged(lambda e: len(told(e) or "") >= 5)
    strategy, episodes = stepped(writer, task)
    samples = task.samples("train")[:3]
    frames = [writer.prompt(s.prompt).frames for s in samples]
    golds = [task.gold(s, f) for s, f in zip(samples, frames, strict=True)]
    enough = [next(x for x in (0.25, 0.5, 0.75) if len(beginning(g, x)) >= 5) for g in golds]
    assert [told(e) for e in episodes] == [beginning(golds[e.group], enough[e.group]) for e in episodes]
    assert [(e.group, e.sample.id) for e in episodes] == [(i, samples[i].id) for i in range(3) for _ in range(2)]
    assert all(e.score.correct == 1 and e.turns[0].observation is e.sample.prompt for e in episodes)
    assert strategy.metrics["ghpo/first_lost"] == 1 and strategy.metrics["ghpo/lost"] == 0
    assert strategy.metrics["ghpo/hint"] == pytest.approx(sum(enough) / 3)
    tries = sum(1 + (0.25, 0.5, 0.75).index(x) + 1 for x in enough)
    assert strategy.played == 2 * tries


def test_a_group_with_one_right_answer_is_left_alone(writer, judged):
    """What the policy can do would be made easier, and its own answers be thrown away."""
    seen: dict[str, int] = {}

    def first_of_two(episode):
        seen[episode.sample.id] = seen.get(episode.sample.id, 0) + 1
        return seen[episode.sample.id] <= 2  # `score` asks twice for each: the first episode's calls

    task = judged(first_of_two)
    strategy, episodes = stepped(writer, task)
    writer.generator.manual_seed(5)
    before = plain(writer, judged(lambda e: True), task.samples("train")[:3], 2, 0)
    assert [e.completion for e in episodes] == [e.completion for e in before]
    assert strategy.metrics["ghpo/hinted"] == 0 and strategy.played == 6


def test_nothing_is_told_before_the_start(writer, judged):
    """A cold start would be no cold start."""
    task = judged(lambda e: False)
    strategy, episodes = stepped(writer, task, step=2, start=3)
    assert all(told(e) is None for e in episodes) and strategy.played == 6
    strategy, episodes = stepped(writer, task, step=3, start=3)
    assert all(told(e) for e in episodes) and strategy.metrics["ghpo/lost"] == 1 and strategy.played == 24


def test_a_task_without_answers_is_refused(writer, judged, monkeypatch):
    """The run would stop with a traceback, or hint at the word None."""
    task = judged(lambda e: False)
    monkeypatch.setattr(type(task), "gold", lambda *_: None)
    with pytest.raises(UserError, match=r"ghpo: no right answer to gui_grounding/train/000000 is known"):
        stepped(writer, task)
    with pytest.raises(UserError, match="ghpo is for policies that write text"):
        Ghpo(Policy(), task, 0)
