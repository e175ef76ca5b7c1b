"""What learns off-policy, as the loop sees it: an agent from states to chunks, and what it is told of its robot.

An agent is a plug-in of the kind `agent`: a class in vlrl/offpolicy/*.py marked `@method(source=...)` under a
name in lower case, or the user's own `my_module:MyAgent`. Its keyword-only parameters are its options. Modules of
plug-ins import torch late, in functions, since a mistake in a configuration is answered at once; `AgentSpec` at their
top, since an option's type is read together with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

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


class Agent(Protocol):
    """Made as `Agent(about, seed, *, options)`.

    Two optional members: `warm(state [B, S]) -> float32 [B, K, A]`, what to play in the warm-up instead of controls
    drawn evenly within the limits; and `requires`, of the class, which of "offline" and "start" a configuration must
    give.

    Nothing but the seed and what went through the methods decides what it does: its generators are its own and part
    of its state, so that a killed run resumes exactly.
    """

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] in physical units, within the limits, for states float32 [B, S].

        Args:
            explore: as it plays to learn; else its best, without chance.
        """
        ...

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        """One gradient step on a batch.

        The loop has drawn the batch: one half `online`, what the agent did (a person's steps among them), and one half
        `offline`, what was given and a person's steps (symmetric sampling, RLPD: arXiv 2302.02948); where one of them
        does not exist it is None and the other the whole batch. Never both None.

        Returns:
            Numbers for the log, such as losses; the same names at every call or a subset. A number that is not finite
            stops the run.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes: weights, targets, optimizers, generators, counters (`vlrl.checkpoint.flatten`)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def save(self, folder: Path) -> None:
        """A policy that `vlrl.policies.loading` reads: config.json and model.safetensors. The folder exists."""
        ...
