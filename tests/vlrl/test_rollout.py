"""Collecting episodes of several turns whose environments are not equally fast."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from vlrl.rollout import collect
from vlrl.types import BaseTask, Decision, Environment, Observation, Policy, Sample, Score, Step, UserError

PATIENCE = 60


class Counting(Policy):
    """A policy that says how often its episode was asked."""

    def act(self, episodes, observations, **options):
        made = torch.zeros(1)
        return [Decision(str(len(episode.turns)), made, made, False) for episode in episodes]


@dataclass
class Rooms(BaseTask):
    """Environments of three turns; the first episode's last step waits until all others have ended, or `PATIENCE`."""

    max_parallel_envs: int | None
    episodes: int = 0
    waited: bool = True  # whether they did

    def __post_init__(self):
        self.ended, self.changed = Counter(), threading.Condition()

    def samples(self, split):
        return []

    def environment(self, sample):
        return Room(self, sample)

    def score(self, episode):
        return Score({}, 1.0)

    def reward(self, score):
        return score.correct


class Room(Environment):
    def __init__(self, rooms, sample):
        self.rooms, self.sample = rooms, sample

    def reset(self):
        return self.sample.prompt

    def step(self, action, frames=()):
        done = action == "2"
        with self.rooms.changed:
            if done and self.sample.id == "slow":
                others = self.rooms.episodes - 1
                self.rooms.waited &= self.rooms.changed.wait_for(lambda: self.rooms.ended["fast"] == others, PATIENCE)
            self.rooms.ended[self.sample.id] += done
            self.rooms.changed.notify_all()
        return Step(self.sample.prompt, terminated=done)

    def close(self):
        """Nothing to release."""


def samples(count: int) -> list[Sample]:
    return [Sample("fast" if i else "slow", Observation((f"Room {i}.",))) for i in range(count)]


@pytest.mark.parametrize("max_parallel_envs", [None, 4])
def test_a_slow_environment_keeps_its_own_lane_waiting(max_parallel_envs):
    """One page that loads for a minute would stop eight browsers."""
    rooms = Rooms(max_parallel_envs, episodes=6)
    lanes = 6 if max_parallel_envs is None else 4
    if lanes == 4:
        rooms.episodes = 4  # the slow one's own lane is played behind it
    found = collect(Counting(), rooms, samples(rooms.episodes), 1, lanes=lanes)
    assert rooms.waited, "the others did not go on"
    assert [[turn.decision.action for turn in e.turns] for e in found] == [["0", "1", "2"]] * rooms.episodes
    assert [e.sample.prompt.text for e in found] == [f"Room {i}." for i in range(rooms.episodes)]


def test_lanes_take_what_there_is():
    """Episodes would be lost, played twice, or more environments opened than there are."""
    few = Rooms(3, episodes=1)
    assert [e.sample.prompt.text for e in collect(Counting(), few, samples(1), 1, lanes=5)] == ["Room 0."]
    fast = [Sample("fast", Observation((f"Room {i}.",))) for i in range(7)]
    found = collect(Counting(), Rooms(5, episodes=0), fast, 2, lanes=3)
    assert [e.sample.prompt.text for e in found] == [f"Room {i // 2}." for i in range(14)]


def test_more_lanes_than_environments_are_refused():
    """A lane without an environment would wait for ever."""
    with pytest.raises(UserError, match=r"rollout_strategy\.lanes: 3, but the task opens 2 environments"):
        collect(Counting(), Rooms(2, episodes=0), samples(4), 1, lanes=3)
