"""Selective sample replay: what it draws, and that a kill changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from vlrl.contrib.replay_mixing import EpisodeMemory, Ssr, size


def drawn(replay: Ssr, lessons, step: int) -> list[tuple[str, int, tuple[int, ...]]]:
    """What a step learns from, as plain values."""
    return [
        (lesson.episode.sample.id, lesson.episode.group, lesson.episode.turns[0].decision.inputs.tokens)
        for lesson in replay(lessons, step)
    ]


@pytest.mark.parametrize("case", range(3))
def test_draws_follow_the_worked_example(policy, task, played, golden, near, case):
    """Lessons that teach little would crowd out those that teach much: |A|^alpha / sum |A|^alpha."""
    inputs, outputs = golden("ssr_draw")
    advantages, alpha, wanted = inputs["advantages"], inputs["alpha"][case], outputs["probabilities"][case]
    replay = Ssr(policy, task, 0, alpha=alpha)
    replay(played(0, prompts=1, size=len(advantages), advantages=advantages), 0)
    sizes = np.asarray(replay.memory.sizes()) ** alpha
    near(sizes / sizes.sum(), wanted)  # those with A = 0 are not remembered
    counts = np.zeros(len(wanted))
    for step in range(3000):
        replay.seed = step
        counts[replay._draw_positions(np.random.default_rng(step), 2, 2)] += 1
    assert counts / 3000 == pytest.approx(wanted, abs=0.03)


def test_half_of_a_step_is_remembered_and_none_of_it_silent(policy, task, played):
    """The step would shrink to what still differs, or learn from its own lessons twice."""
    replay = Ssr(policy, task, 0, share=0.5)
    first = played(0, advantages=[1.0, -1.0, 0.0, 2.0, -2.0, 0.0])
    assert [lesson.episode.group for lesson in replay(first, 0)] == [0, 0, 1, 1]  # nothing is remembered yet
    assert replay.metrics["ssr/effective"] == pytest.approx(4 / 6) and replay.metrics["ssr/replayed"] == 0
    second = played(1, advantages=[1.0, -1.0, 0.5, 2.0, -2.0, 0.5])
    mixed = replay(second, 1)
    new, past = mixed[:3], mixed[3:]
    assert len(mixed) == 6 and {id(lesson) for lesson in new} <= {id(lesson) for lesson in second}
    assert [lesson.episode.group for lesson in past] == [2, 3, 4]
    assert {lesson.episode.sample.id for lesson in past} <= {lesson.episode.sample.id for lesson in first}
    assert all(size(lesson.advantages) for lesson in mixed)
    assert replay.metrics | {"ssr/memory": 4.0} == replay.metrics and replay.metrics["ssr/age"] == 1.0


def test_the_memory_fills_what_silent_groups_leave_open(policy, task, played):
    """Once groups agree, an update would be made from two lessons; with none at all the step would break."""
    replay = Ssr(policy, task, 0)
    silent = played(1, advantages=[0.0] * 6)
    assert replay(silent, 0) == silent
    replay(played(0), 1)
    mixed = replay(silent, 2)
    assert len(mixed) == 6 and replay.metrics["ssr/replayed"] == 1.0
    assert len(set(drawn(replay, silent, 2))) == 6  # none twice


def test_old_lessons_are_forgotten(policy, task, played):
    """Ratios to a policy of long ago are clipped: the step would learn nothing."""
    replay = Ssr(policy, task, 0, age=2)
    replay(played(0), 0)
    silent = played(1, advantages=[0.0] * 6)
    assert replay(silent, 2) != silent
    assert replay(silent, 3) == silent and len(replay.memory) == 0


def test_a_restored_memory_draws_the_same(policy, task, played):
    """A resumed run would learn from other lessons than a straight one."""
    straight, resumed = Ssr(policy, task, 5), Ssr(policy, task, 5)
    steps = [played(step) for step in range(4)]
    for step in range(2):
        straight(steps[step], step)
    resumed.load_state_dict(straight.state_dict())
    for step in range(2, 4):
        assert drawn(straight, steps[step], step) == drawn(resumed, steps[step], step)
        assert straight.metrics == resumed.metrics


def test_other_seeds_draw_otherwise(policy, task, played):
    """Runs that are compared by seed would share their luck."""
    kept = EpisodeMemory(policy, 100, "ssr")
    kept.add([lesson for step in range(4) for lesson in played(step)], 0)
    found = []
    for seed in range(4):
        replay = Ssr(policy, task, seed)
        replay.memory.load_state_dict(kept.state_dict())
        found.append(tuple(drawn(replay, played(0, advantages=[0.0] * 6), 1)))
    assert len(set(found)) > 1
