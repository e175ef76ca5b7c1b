"""What is remembered comes back as it was, also after a kill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vlrl import checkpoint
from vlrl.batch import decisions_of
from vlrl.contrib.replay_mixing import EpisodeMemory, next_group, size
from vlrl.types import Observation, Policy, UserError, Video


def assert_same(one, other):
    """Two lists of lessons are the same to the update."""
    assert len(one) == len(other)
    for here, there in zip(one, other, strict=True):
        assert here.episode.sample.id == there.episode.sample.id
        assert here.episode.score.correct == there.episode.score.correct
        assert here.episode.is_demonstration == there.episode.is_demonstration
        for turn, past, credit, worth in zip(
            here.episode.turns, there.episode.turns, here.advantages, there.advantages, strict=True
        ):
            now, then = turn.decision, past.decision
            assert (
                now.inputs.tokens == then.inputs.tokens
                and now.action == then.action
                and now.truncated == then.truncated
            )
            assert now.frames == then.frames and torch.equal(credit, worth)
            assert torch.equal(now.logprobs, then.logprobs) and torch.equal(now.entropy, then.entropy)
            assert (now.forced_mask is None) == (then.forced_mask is None)
            assert now.forced_mask is None or torch.equal(now.forced_mask, then.forced_mask)


def test_a_lesson_comes_back_with_its_tokens_its_law_and_its_worth(policy, played):
    """A replayed ratio would be to other tokens, or to another law, than were sampled: updates go anywhere."""
    lessons = played(0)
    memory = EpisodeMemory(policy, 10, "ssr")
    memory.add(lessons, 3)
    back = memory.lessons([5, 0], group=7)
    assert_same(back, [lessons[5], lessons[0]])
    assert [lesson.episode.group for lesson in back] == [7, 8] and memory.steps == [3] * 6
    now = policy.evaluate(decisions_of([lesson.episode for lesson in back]))
    sampled = [turn.decision.logprobs for lesson in back for turn in lesson.episode.turns]
    for row, mask, then in zip(now.logprobs.detach(), now.mask, sampled, strict=True):
        torch.testing.assert_close(row[mask], then, atol=1e-4, rtol=0)


def test_what_was_shown_stays_shown(policy, played):
    """A loss that imitates would leave out on their second visit what it imitated on the first."""
    lessons = [
        replace(lesson, episode=replace(lesson.episode, is_demonstration=i == 1)) for i, lesson in enumerate(played(0))
    ]
    memory = EpisodeMemory(policy, 10, "ssr")
    memory.add(lessons, 0)
    assert_same(memory.lessons(range(6), 0), lessons)


def test_given_tokens_stay_given(policy, played):
    """Words that were put into the policy's mouth would earn credit on their second visit."""
    (lesson, *_) = played(0)
    (turn,) = lesson.episode.turns
    forced = torch.arange(len(turn.decision.logprobs)) < 2
    given = replace(lesson, episode=replace(
        lesson.episode, turns=[replace(turn, decision=replace(turn.decision, forced_mask=forced))]
    ))  # fmt: skip
    memory = EpisodeMemory(policy, 10, "ssr")
    memory.add([given], 0)
    assert_same(memory.lessons([0], group=0), [given])


def test_a_checkpoint_holds_all_of_it_with_each_image_once(policy, played, tmp_path):
    """A resumed run would replay other lessons; one that keeps every picture anew would fill the disk."""
    memory, other = EpisodeMemory(policy, 8, "ssr"), EpisodeMemory(policy, 8, "ssr")
    memory.add(played(0), 0)
    memory.add(played(1), 1)
    assert len(memory) == 8 and memory.steps == [0, 0, 1, 1, 1, 1, 1, 1]
    checkpoint.save(tmp_path / "step_1", {"replay": memory.state_dict()}, lambda folder: None)
    state = checkpoint.load_state(tmp_path / "step_1")["replay"]
    assert len(state["memory"]["images"]) == 3  # of three prompts
    other.load_state_dict(state)
    assert other.steps == memory.steps and other.sizes() == memory.sizes()
    assert_same(other.lessons(range(8), 0), memory.lessons(range(8), 0))


def test_the_oldest_go_first_with_their_images(policy, played):
    """Stale lessons would be taught, or memory grow without bound."""
    memory = EpisodeMemory(policy, 100, "ssr")
    for step in range(3):
        memory.add(played(step, prompts=1), step)
    memory.drop_before(1)
    assert memory.steps == [1, 1, 1, 2, 2, 2] and len(memory.state_dict()["memory"]["images"]) == 2
    memory.drop(4)
    assert memory.steps == [2, 2] and len(memory.lessons([0, 1], 0)) == 2
    memory.drop(5)
    assert len(memory) == 0 and memory.sizes() == [] and not memory.state_dict()["memory"]["images"]


def test_videos_are_kept(policy, played):
    """Replay would stop at the first step of a task of videos."""
    (lesson, *_) = played(0)
    (turn,) = lesson.episode.turns
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 40, 3), dtype=np.uint8)
    shown = Observation((Video(frames, (0.0, 0.5, 1.0), 2.0, 1.5), "What happens?"))
    seen = replace(lesson, episode=replace(lesson.episode, turns=[replace(turn, observation=shown)]))
    memory = EpisodeMemory(policy, 2, "ssr")
    memory.add([seen], 0)
    assert memory.memory.episodes()[0].turns[0].observation == shown


def test_sizes_count_every_unit_once(policy, played):
    """Which lesson is drawn would hang on how long it is."""
    one, two = played(0, prompts=1, size=2, advantages=[-3.0, 0.0])
    assert size(one.advantages) == pytest.approx(3.0) and size(two.advantages) == 0.0
    assert size([torch.tensor([1.0, -1.0]), torch.tensor([4.0])]) == pytest.approx(2.0)
    assert next_group([one, two]) == 1 and next_group([]) == 0


def test_a_robot_is_told_at_once():
    """A run would end at its first step, after minutes of playing."""
    with pytest.raises(UserError, match="replay_mixing: ssr keeps what language models write"):
        EpisodeMemory(Policy(), 4, "ssr")
