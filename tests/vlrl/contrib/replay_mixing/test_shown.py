"""Demonstrations: what is shown, when, and what it is worth."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tasks.gui_grounding import GuiGrounding
from vlrl.algorithms.checked import Checked
from vlrl.algorithms.mixture import Mixture
from vlrl.batch import columns, decisions_of, lessons_of
from vlrl.config import MixturePart
from vlrl.contrib.replay_mixing import Demonstrate, Echo, Relift, Sasr, find_samples, gradient_norm, make_demonstrations
from vlrl.rollout import collect
from vlrl.types import Observation, Policy, Sample, Score, UserError


def scored(lessons, *correct: float):
    """The lessons with these scores, in order."""
    return [
        replace(lesson, episode=replace(lesson.episode, score=Score({"hit": value}, value), reward=value))
        for lesson, value in zip(lessons, correct, strict=True)
    ]


def test_what_is_shown_is_right_and_is_the_policys_own_kind_of_text(policy, task):
    """Imitation would teach wrong answers, or tokens that the policy never writes."""
    samples = task.samples("train")[:3]
    lessons = make_demonstrations(policy, task, samples, group=4)
    episodes = [lesson.episode for lesson in lessons]
    assert [e.group for e in episodes] == [4, 5, 6] and all(
        e.is_demonstration and e.score.correct == 1.0 for e in episodes
    )
    assert [e.sample for e in episodes] == list(samples)
    assert not any(row.any() for lesson in lessons for row in lesson.advantages)
    now = policy.evaluate(decisions_of(episodes))
    rollouts = columns(episodes)
    torch.testing.assert_close(now.logprobs.detach()[now.mask], rollouts.logprobs[rollouts.mask], atol=1e-5, rtol=0)
    assert rollouts.is_demonstration.tolist() == [True] * 3


def test_a_sample_without_a_gold_answer_is_named(policy, task):
    """A run on data without answers would imitate nothing, or end in a traceback."""
    blind = copy.copy(task)
    blind.gold = lambda sample, frames: None
    sample = task.samples("train")[0]
    with pytest.raises(UserError, match=f"sample {sample.id}: no gold action is known"):
        make_demonstrations(policy, blind, [sample], 0)


@pytest.mark.parametrize("kind", [Relift, Demonstrate, Sasr, Echo])
def test_policies_that_write_nothing_are_refused_at_once(kind, task):
    """A robot's run would end at its first step."""
    with pytest.raises(UserError, match=f"replay_mixing: {kind.__name__.lower()} shows a language model"):
        kind(Policy(), task, 0)


def test_relift_shows_what_nobody_solved_once_enough_wait(policy, task, played):
    """What the policy can do would be imitated too, or what it cannot do never be shown."""
    replay = Relift(policy, task, 0, wait=2)
    first = scored(played(0), 0, 0, 0, 0, 1, 0)  # the first prompt is hard, the second is not
    assert replay(first, 0) == first and replay.metrics["relift/unsolved"] == 0.5
    assert replay(first, 1) == first and len(replay.waiting) == 1  # a prompt waits once
    second = scored(played(1), 1, 0, 0, 0, 0, 0)
    mixed = replay(second, 2)
    assert mixed[:6] == second and len(mixed) == 8 and not replay.waiting
    hard = [first[0].episode.sample.id, second[3].episode.sample.id]
    assert [lesson.episode.sample.id for lesson in mixed[6:]] == hard
    assert all(lesson.episode.is_demonstration for lesson in mixed[6:]) and replay.metrics["relift/shown"] == 2


def test_echo_predicts_what_the_environment_answered(policy, task, played):
    """The policy would imitate its own words, or learn to write the prompt again."""
    counting = Checked(task={"name": "counting", "pool": 4, "held_out": 2})
    episodes = collect(policy, counting, counting.samples("train")[:2], 2)
    lessons = lessons_of(episodes, columns(episodes).mask.float())
    replay = Echo(policy, counting, 0, most=3)
    mixed = replay(lessons, 0)
    assert mixed[:4] == lessons and len(mixed) == 7 and [x.episode.group for x in mixed[4:]] == [2, 3, 4]
    replies = {e.turns[1].observation.content[-1] for e in episodes}
    for lesson in mixed[4:]:
        (turn,) = lesson.episode.turns
        assert turn.decision.action in replies and lesson.episode.is_demonstration and not lesson.advantages[0].any()
        own = next(e for e in episodes if f"Then: {e.turns[0].decision.action}\n" in turn.observation.text)
        assert turn.observation.images == own.turns[0].observation.images
    assert replay.metrics["echo/predicted"] == 3 and replay.metrics["echo/logprob"] < 0
    single = played(0)  # nothing follows a single answer
    assert Echo(policy, task, 0)(single, 0) == single


def test_relift_waits_on_after_a_kill(policy, task, played):
    """A resumed run would forget what was hard."""
    straight, resumed = (Relift(policy, task, 0, wait=3) for _ in range(2))
    straight(scored(played(0), *[0.0] * 6), 0)
    resumed.load_state_dict(straight.state_dict())
    lessons = scored(played(1), *[0.0] * 6)
    one, other = straight(lessons, 1), resumed(lessons, 1)
    assert [x.episode.sample.id for x in one] == [x.episode.sample.id for x in other] and len(one) == 9
    assert list(straight.waiting) == list(resumed.waiting) and len(straight.waiting) == 1


class Counted(Sequence):
    """Samples, and how many of them were made."""

    def __init__(self, samples):
        self.samples, self.made = samples, 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index):
        self.made += 1
        return self.samples[index]


def test_samples_are_found_without_making_the_others():
    """A resumed run rendered a hundred thousand screens to find a few."""
    screens = Counted(GuiGrounding().samples("train"))
    ids = [f"gui_grounding/train/{place:06d}" for place in (99_999, 5, 70_000)]
    gone = "gui_grounding/train/100000"
    found = find_samples(screens, [*ids, gone])
    assert [found[name].id for name in ids] == ids and gone not in found
    assert screens.made == 4  # and the last one, whose id shows that there are no others
    parts = {"screens": {"task": "gui_grounding", "share": 2}, "puzzles": {"task": "jigsaw"}}
    mixed = Mixture(parts={name: MixturePart.model_validate(part) for name, part in parts.items()}).samples("train")
    own = mixed[90_001].id
    assert find_samples(mixed, [own]).keys() == {own}


def test_samples_of_a_file_are_looked_for():
    """Their ids are the user's own: a prompt that waits would be forgotten."""
    rows = Counted([Sample(name, Observation(("?",))) for name in ("one", "row/0", "3", "four")])
    assert find_samples(rows, ["row/0", "3", "nowhere"]).keys() == {"row/0", "3"}
    rows.made = 0
    assert find_samples(rows, ["one"]).keys() == {"one"} and rows.made <= 2


def test_a_demonstration_is_worth_what_it_beats_its_group_by(policy, task, played):
    """The policy would be pulled to answers that it gives already, or pushed from right ones."""
    lessons = scored(played(0), 0, 0, 0, 1.0, 1.0, 0.0)
    mixed = Demonstrate(policy, task, 0)(lessons, 0)
    assert mixed[:6] == lessons and [lesson.episode.group for lesson in mixed[6:]] == [2, 3]
    best = mixed[6].episode.reward
    assert best == mixed[7].episode.reward == pytest.approx(1.0)
    (one,), (two,) = (lesson.advantages for lesson in mixed[6:])
    assert one.tolist() == pytest.approx([1.0] * len(one)) and two.tolist() == pytest.approx([1 / 3] * len(two))


def test_sasr_imitates_first_and_then_by_the_gradients(policy, task, played):
    """It would never come to reinforce, or never have imitated: p = G / (G + gamma W)."""
    replay = Sasr(policy, task, 0, warmup=2, gamma=3.0)
    lessons = played(0)
    imitated = replay(lessons, 0)
    assert [lesson.episode.sample.id for lesson in imitated] == [
        lessons[0].episode.sample.id,
        lessons[3].episode.sample.id,
    ]
    assert all(lesson.episode.is_demonstration for lesson in imitated) and replay.metrics["sasr/imitates"] == 1
    norm = gradient_norm(policy, decisions_of([lesson.episode for lesson in imitated]))
    assert replay.start == replay.latest == pytest.approx(norm, rel=1e-4)
    assert replay.probability() == pytest.approx(1 / 4)  # G = W: 1 / (1 + 3)
    replay.latest = replay.start / 2
    assert replay.probability() == pytest.approx(0.5 / 3.5)
    many = [replay(lessons, step) is not None and replay.metrics["sasr/imitates"] for step in range(2, 42)]
    assert 0 < sum(many) < 30
    played_on = next(step for step, kind in enumerate(many, start=2) if not kind)
    assert replay(lessons, played_on) == lessons


def test_sasr_goes_on_with_its_gradients_after_a_kill(policy, task, played):
    """A resumed run would imitate at other steps."""
    straight, resumed = (Sasr(policy, task, 1, warmup=1) for _ in range(2))
    straight(played(0), 0)
    resumed.load_state_dict(straight.state_dict())
    lessons = played(1)
    for step in range(1, 5):
        straight(lessons, step), resumed(lessons, step)
        assert straight.metrics == resumed.metrics


def test_a_gradient_norm_is_that_of_the_whole_however_it_is_split(policy, task, monkeypatch):
    """How often a run imitates would hang on how many demonstrations fit into a pass."""
    decisions = decisions_of(
        [lesson.episode for lesson in make_demonstrations(policy, task, task.samples("train")[:4], 0)]
    )
    whole = gradient_norm(policy, decisions)
    now = policy.evaluate(decisions)
    (-now.logprobs[now.mask].mean()).backward()
    grads = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert whole == pytest.approx(float(torch.stack([g.norm() for g in grads]).norm()), rel=1e-4)
    policy.model.zero_grad(set_to_none=True)
    monkeypatch.setattr("vlrl.contrib.replay_mixing.BATCH", 1)
    assert gradient_norm(policy, decisions) == pytest.approx(whole, rel=1e-3)
