"""`vlrl pretrain`: values of states from transitions without actions or rewards, for agents' networks to begin with.

Intent-conditioned value functions (ICVF, arXiv 2304.04782), as V-PTR (arXiv 2309.13041) pre-trains robots' networks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vlrl import registry
from vlrl.offpolicy import networks
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.config import PretrainConfig, passive_read
from vlrl.offpolicy.learner import check_task, statistics
from vlrl.policies.robot_common import FAR
from vlrl.runner import SupervisedLearner
from vlrl.types import UserError

# What states lead to when somebody means to get somewhere, learned without actions or rewards.

HERE, AHEAD = 0.2, 0.5  # of goals: the present moment, a later one of its sequence; else any moment
SAME = 0.5  # of outcomes: the one that is meant


@dataclass(frozen=True, eq=False)
class Drawn:
    """Places of B moments each: where it is, what comes next, what may be reached, what is meant. int64 [B]."""

    now: np.ndarray
    following: np.ndarray
    outcome: np.ndarray
    intent: np.ndarray


class Moments:
    """Sequences as rows of moments.

    Raises:
        ValueError: none of them has two moments.
    """

    def __init__(self, sequences: Sequence[np.ndarray]):
        lengths = np.array([len(each) for each in sequences])
        self.rows = torch.from_numpy(np.concatenate(sequences).astype(np.float32))  # [N, D]
        self.last = np.repeat(np.cumsum(lengths) - 1, lengths)  # [N], of the sequence that a moment is in
        self._begun = np.flatnonzero(np.arange(len(self.rows)) < self.last)
        if not len(self._begun):
            raise ValueError("no sequence of two moments")

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """Moments that something follows, outcomes and intents."""
        now = rng.choice(self._begun, count)
        intent, other = self._goals(now, rng), self._goals(now, rng)
        return Drawn(now, now + 1, np.where(rng.random(count) < SAME, intent, other), intent)

    def _goals(self, now: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        anywhere, chance = rng.integers(len(self.rows), size=len(now)), rng.random(len(now))
        later = rng.integers(now + 1, self.last[now] + 1)
        return np.where(chance < HERE, now, np.where(chance < HERE + AHEAD, later, anywhere))


class ICVF(nn.Module):
    """V(s, s+, z) = phi(s)' T(z) psi(s+), float32 [B], of moments [B, D]: multilinear, as released.

    It is the discounted chance of reaching s+ from s for somebody who means to get to z: gamma to the number of steps
    where the way is sure, 1 at s+ itself.
    """

    def __init__(self, size: int, *, hidden: int = 256, layers: int = 2):
        super().__init__()
        self.phi, self.psi, self.turn = (networks.trunk(wide, hidden, layers) for wide in (size, size, hidden))
        self.first, self.second = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, state: Tensor, outcome: Tensor, intent: Tensor) -> Tensor:
        turned = self.turn(self.psi(intent))
        both = self.first(turned * self.phi(state)) * self.second(turned * self.psi(outcome))
        return both.sum(-1) / both.shape[-1] ** 0.5


def target(reached: Tensor, following: Tensor, gamma: float) -> Tensor:
    """What a moment's value should be: 1 where the goal is reached, else gamma times that of what follows.

    The released code counts -1 a step until there: V = 1 + (1 - gamma) * V_released, so the same up to scale.
    """
    return torch.where(reached, 1.0, gamma * following)


def loss_of(
    network: nn.Module, slow: nn.Module, moments: Moments, drawn: Drawn, *, gamma: float, expectile: float
) -> Tensor:
    """TD towards s+, counted more where the step was a good one for somebody who means z.

    |expectile - 1(A < 0)| * (target(s+) - V(s, s+, z))^2, with A = target(z) - V(s, z, z), targets and A by `slow`.
    """
    now, following, outcome, intent = (
        moments.rows[each] for each in (drawn.now, drawn.following, drawn.outcome, drawn.intent)
    )
    with torch.no_grad():
        arrived, meant = (torch.from_numpy(drawn.now == goal) for goal in (drawn.outcome, drawn.intent))
        targets = target(arrived, slow(following, outcome, intent), gamma)
        gain = target(meant, slow(following, intent, intent), gamma) - slow(now, intent, intent)
        weight = torch.where(gain >= 0, expectile, 1 - expectile)
    return (weight * (targets - network(now, outcome, intent)).square()).mean()


def sequences(given: Transitions) -> list[np.ndarray]:
    """What transitions lead from and to, one after another: float32 [T, S] each, T at least 2. No action is read.

    Overlapping chunks of K ticks make K sequences of an episode, each a decision apart.
    """
    leads = {state.tobytes(): row for row, state in reversed(list(enumerate(given.state)))}
    arrived = {state.tobytes() for state in given.next_state}
    starts = sorted(row for state, row in leads.items() if state not in arrived)
    episodes, visited = [], np.zeros(len(given), bool)
    for start in (*starts, *range(len(given))):  # the latter: what goes in a circle has no beginning
        row, rows = start, []
        while row is not None and not visited[row]:
            visited[row] = True
            rows.append(row)
            row = leads.get(given.next_state[row].tobytes())
        if rows:
            episodes.append(np.concatenate([given.state[rows], given.next_state[rows[-1:]]]))
    return episodes


# The run: a network from nothing, and what is measured of it on held-out sequences.

HELD_OUT = 0.1  # of the sequences
WAYS = 500  # of held-out moments to a later one, to measure by
MEASURED = 1  # what a random generator is for, beside the seed


class ValuePretrainingLearner(SupervisedLearner):
    """An ICVF network; its trunk is what the run leaves for agents to begin with."""

    command = "pretrain"
    recent = 50
    config: PretrainConfig

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: the sources give too little, or nothing that fits the task.
        """
        super().setup(saved)
        self.task = registry.make_task(self.config)
        check_task(self.task, self.config.task.name)
        recorded = passive_read(self.task, self.config.offline, self.config.seed)
        self.mean, self.spread = statistics(recorded)
        scaled = [((each - self.mean) / self.spread).clip(-FAR, FAR) for each in sequences(recorded)]
        self.sizes = {"sequences": len(scaled), "moments": sum(map(len, scaled))}
        learned, self.held = split_sequences(scaled, self.config.seed)
        self.start(learned)

    def start(self, moments: Moments) -> None:
        """A network from nothing, for moments of mean 0 and spread 1."""
        config, self.moments, size = self.config, moments, moments.rows.shape[1]
        torch.manual_seed(config.seed)
        self.network = ICVF(size, hidden=config.hidden, layers=config.layers)
        self.slow = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)

    @property
    def steps(self) -> float:
        return self.config.updates

    def rate(self) -> Callable[[int], float]:
        return lambda step: self.config.lr

    def draw(self) -> Drawn:
        return self.moments.draw(self.config.batch_size, self.rngs[0])

    def batches(self, steps: range) -> Iterator[Drawn]:
        for _ in steps:
            yield self.draw()
            networks.follow(self.slow, self.network, self.config.tau)  # a step was made meanwhile

    def loss(self, batch: Drawn) -> Tensor:
        config = self.config
        return loss_of(self.network, self.slow, self.moments, batch, gamma=config.gamma, expectile=config.expectile)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> None:
        """Nothing: how values order held-out moments is no accuracy (`report`)."""

    def report(self) -> dict[str, Any]:
        return {**self.sizes, **self.summary({}), "kendall": compute_order(self.network, self.held, self.config.seed)}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "network": self.network.state_dict(), "slow": self.slow.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.network.load_state_dict(state["network"])
        self.slow.load_state_dict(state["slow"])

    def saver(self) -> Callable[[Path], None]:
        return self.export

    def load(self, folder: Path) -> None:
        """Nothing: `state_dict` has the whole network, of which the folder holds the trunk."""

    def export(self, folder: Path) -> None:
        names, hidden, layers = tuple(self.task.pool.info.names), self.config.hidden, self.config.layers
        shape = networks.TrunkShape(len(self.mean), names, hidden, layers)
        networks.save(folder, shape, self.network.phi, self.mean, self.spread)


def summary_text(report: Mapping[str, Any]) -> str:
    """A report in a line."""
    return (
        f"{report['sequences']} sequences of {report['moments']} moments; held out, Kendall's tau of values and steps "
        f"left is {report['kendall']:.2f}"
    )


def split_sequences(found: list[np.ndarray], seed: int) -> tuple[Moments, Moments]:
    """Moments to learn from, and those of sequences held out. UserError of fewer than two."""
    if len(found) < 2:
        raise UserError("offline: gave one sequence of states: pre-training holds some out; give more episodes")
    places = np.random.default_rng(seed).permutation(len(found))
    count = max(1, round(HELD_OUT * len(found)))
    held, learned = ([found[place] for place in part] for part in (places[:count], places[count:]))
    return Moments(learned), Moments(held)


@torch.no_grad()
def compute_order(network: ICVF, held: Moments, seed: int) -> float:
    """Kendall's tau of V(s, z, z) and minus the steps from s to z, a later moment of the same sequence."""
    from scipy.stats import kendalltau

    rng = np.random.default_rng([seed, MEASURED])
    now = held.draw(WAYS, rng).now
    later = rng.integers(now + 1, held.last[now] + 1)
    value = network(held.rows[now], held.rows[later], held.rows[later]).numpy()
    return float(kendalltau(value, now - later).statistic)
