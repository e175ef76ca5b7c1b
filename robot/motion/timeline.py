"""Which action is due at which tick: plans of a policy laid on the ticks of the motion process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot.motion.body import Channel

LAYERS = 8  # plans that may be blended with one another; the oldest goes first


@dataclass(frozen=True, eq=False)
class Plan:
    """A chunk of actions and when each of them is due.

    Raises ValueError where it cannot be read; numbers that are not finite are the governor's business.
    """

    seq: int  # of the observation's request; a plan older than the newest one is not taken
    first: int | None  # the tick of actions[0]; None: the next one
    actions: np.ndarray  # float32 [K, A], K at least 1
    hz: float  # of the actions, not of the ticks
    expires: float  # boottime() after which nothing of it may be begun
    observed: float  # boottime() of the observation that it answers
    blend: bool = False  # fade over from the plan before it, as long as that one lasts
    declared: np.ndarray | None = None  # float32 [2, A]: low and high of the policy's actions, NaN where it says none

    def __post_init__(self):
        actions = np.asarray(self.actions, np.float32)
        if actions.ndim != 2 or not len(actions) or not (self.hz > 0 and math.isfinite(self.hz)):
            raise ValueError(
                f"a plan of {actions.shape} actions at {self.hz:g} Hz: must be [K, A] with K and hz above 0"
            )
        object.__setattr__(self, "actions", actions)


@dataclass(frozen=True, eq=False)
class Due:
    action: np.ndarray  # float32 [A]
    age_s: float  # since the observation of the newest plan in it
    seq: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """A plan on the ticks `begin` <= tick < `end`. `fade` ticks of them are shared with the layers below."""

    plan: Plan
    first: int  # the tick of actions[0]; before `begin` where the plan came late
    begin: int
    end: int
    fade: int = 0

    def share(self, tick: int) -> float:
        """How much of the action is this plan's, above 0 to 1."""
        return min(1.0, (tick - self.begin + 1) / (self.fade + 1))


class Timeline:
    """Plans on ticks. The newest that has begun counts; with `blend` it takes over step by step.

    Where rates differ, positions are interpolated between two actions and the last one is kept; speeds are held.

    Args:
        channels: the numbers of an action; their kinds count.
        hz: ticks a second.
    """

    def __init__(self, channels: Sequence[Channel], hz: float):
        self._moves = np.array([channel.kind == "position" for channel in channels])
        self._hz = hz
        self._layers: list[_Layer] = []  # oldest first

    def add(self, plan: Plan, tick: int) -> None:
        """Lays a plan on the ticks from `tick` on, the next one to be begun. A plan that is over by then is dropped.

        Raises:
            ValueError: its actions have another number of channels.
        """
        if plan.actions.shape[1] != len(self._moves):
            raise ValueError(f"actions of {plan.actions.shape[1]} numbers for {len(self._moves)} channels")
        first = tick if plan.first is None else plan.first
        begin, end = max(first, tick), first + math.ceil(len(plan.actions) * self._hz / plan.hz)
        if end <= begin or any(layer.plan.seq > plan.seq for layer in self._layers):
            return
        below = [layer for layer in self._layers if layer.begin < begin]  # the others would begin later: replaced
        shared = max((layer.end for layer in below), default=begin) - begin if plan.blend else 0
        fade = min(max(shared, 0), end - begin)
        self._layers = [*below, _Layer(plan, first, begin, end, fade)][-LAYERS:]

    def at(self, tick: int, now: float) -> Due | None:
        """What is due at a tick, which must not be before the last one asked for; None where nothing is.

        Args:
            now: boottime(), for what has expired.
        """
        begun = [layer for layer in self._layers if layer.begin <= tick]
        if begun and begun[-1].share(tick) == 1:
            self._layers = self._layers[len(begun) - 1 :]  # what it replaced never comes back
            begun = begun[-1:]
        live = [layer for layer in begun if tick < layer.end and now <= layer.plan.expires]
        if not live:
            return None
        action = self._value(live[0], tick)
        for layer in live[1:]:
            share = np.float32(layer.share(tick))
            action = (1 - share) * action + share * self._value(layer, tick)
        newest = live[-1].plan
        return Due(action, now - newest.observed, newest.seq)

    def left(self, tick: int) -> int:
        """Ticks from this one on until the last plan is over."""
        return max([layer.end - tick for layer in self._layers] + [0])

    def clear(self) -> None:
        self._layers = []

    def _value(self, layer: _Layer, tick: int) -> np.ndarray:
        plan, last = layer.plan, len(layer.plan.actions) - 1
        place = (tick - layer.first) * plan.hz / self._hz
        index = min(int(place), last)
        action, following = plan.actions[index], plan.actions[min(index + 1, last)]
        between = np.float32(place - index)
        if not between or index == last:
            return action.copy()
        return np.where(self._moves, (1 - between) * action + between * following, action)
