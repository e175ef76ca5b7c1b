"""What learns off-policy, as the loop sees it: an agent from states to chunks, and what it is told of its robot.

An agent is a plug-in of the kind `agent`: a class in vlrl/offpolicy/*.py marked `@method(source=...)` under a
name in lower case, or the user's own `my_module:MyAgent`. Its keyword-only parameters are its options. Modules of
plug-ins import torch late, in functions, since a mistake in a configuration is answered at once; `AgentSpec` at their
top, since an option's type is read together with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.methods import Agent

if TYPE_CHECKING:
    from vlrl.offpolicy.replay_buffer import Transitions


@dataclass(frozen=True, eq=False)
class AgentSpec:
    """The robot, the data and the job, as far as an agent needs them."""

    state: int  # S numbers of the state
    chunk: int  # K ticks of an action
    controls: tuple[str, ...]  # names of the A numbers of a control
    low: np.ndarray  # float32 [A], physical units
    high: np.ndarray  # float32 [A]
    mean: np.ndarray  # float32 [S], of the first states seen: the demonstrations', or a random policy's
    spread: np.ndarray  # float32 [S], their standard deviation, never 0
    gamma: float = 0.99  # discount of one tick: see `Transitions.discount`
    start: str | None = None  # folder of a policy to start from, or to build on; None: from nothing
    names: tuple[str, ...] = ()  # of the S numbers of the state; (): not known
    units: tuple[str, ...] = ()  # of the A numbers of a control
    hz: float = 0.0  # controls a second; 0: not known


class CoreAgent(Agent):
    """An agent whose options make another one, its `core`, which does the work."""

    core: Any

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.core.act(state, explore)

    def warm(self, state: np.ndarray) -> np.ndarray | None:
        return self.core.warm(state)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        return self.core.update(online, offline)

    def state_dict(self) -> dict[str, Any]:
        return self.core.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.core.load_state_dict(state)

    def save(self, folder: Path) -> None:
        self.core.save(folder)


class ActorAgent(CoreAgent):
    """An agent whose core is an actor, perhaps beside critics, and learns from all alike; the actor also warms up."""

    @property
    def actor(self) -> Any:
        return self.core.actor

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.actor.chunks(state, explore)

    def warm(self, state: np.ndarray) -> np.ndarray:
        return self.act(state, explore=True)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        from vlrl.offpolicy.replay_buffer import concat

        return self.core.update(concat([part for part in (online, offline) if part is not None]))

    def save(self, folder: Path) -> None:
        self.actor.policy.save(folder)
