"""A small learned correction of a frozen policy for robots, at every tick (ResiP, arXiv 2407.16677).

The base's chunk is played open loop; each tick has a correction of its own,

    a = a_base + scale * a_res,    a_res ~ N(mean(state, a_base), std^2),

a control's limits being -1 and 1. So a decision is one tick, and what is trained is the distribution of a_res. Ours: a
correction may be held for several ticks (`Size.ticks`), which are then one decision. That costs less, and what is tried
lasts long enough to show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributions import Normal

from vlrl.decoders import load_json
from vlrl.policies import robot_common as common
from vlrl.policies.discrete import ControlPolicy, Level, load_control, weights_into
from vlrl.policies.generation import normals
from vlrl.policies.robot_common import Actor, ActorShape, ScoredPolicy, physical
from vlrl.types import Decision, Episode, Evaluation, Observation, Policy, Sample, Turn, UserError

# The frozen policy under a residual one: its chunks are played open loop, some ticks at a time.

NOBODY = Episode(Sample("", Observation(())), 0)  # the base needs no episode


@dataclass(frozen=True, eq=False)
class BaseChunk:
    """Some ticks of the base's chunk."""

    chunk: Tensor  # float32 [K, A], a control's limits being -1 and 1
    ticks: int
    place: int = 0  # in the chunk

    @property
    def controls(self) -> Tensor:
        """float32 [ticks, A]."""
        return self.chunk[self.place : self.place + self.ticks]

    @property
    def following(self) -> BaseChunk | None:
        """The next ticks; None where the chunk is used up."""
        place = self.place + self.ticks
        return BaseChunk(self.chunk, self.ticks, place) if place < len(self.chunk) else None


class OpenLoop:
    """What the base, frozen and greedy, would do in the next `ticks`, of which its chunk is a multiple."""

    def __init__(self, policy: ControlPolicy, ticks: int):
        if policy.shape.chunk % ticks:
            raise UserError(f"residual: chunks of {policy.shape.chunk} ticks are no multiple of {ticks}")
        policy.model.requires_grad_(False).eval()
        self.policy, self.ticks = policy, ticks
        low, high = (torch.tensor(limit, dtype=torch.float64) for limit in (policy.shape.low, policy.shape.high))
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def plans(self, last: Sequence[BaseChunk | None], observations: Sequence[Observation]) -> list[BaseChunk]:
        """What follows the last turn's, or a new chunk where that is used up or there is none; float32 on the CPU."""
        plans = [plan and plan.following for plan in last]
        bare = [i for i, plan in enumerate(plans) if plan is None]
        if bare:
            decisions = self.policy.act([NOBODY] * len(bare), [observations[i] for i in bare], greedy=True)
            for i, decision in zip(bare, decisions, strict=True):
                plans[i] = BaseChunk(self.normal(decision.action).float(), self.ticks)
        return plans

    def inputs(self, observations: Sequence[Observation], plans: Sequence[BaseChunk]) -> Tensor:
        """float32 [B, S + ticks A]: the state in the base's scale, and its controls."""
        states = torch.as_tensor(np.stack([observation.state for observation in observations])).to(self.policy.device)
        controls = torch.stack([plan.controls.flatten() for plan in plans]).to(self.policy.device)
        return torch.cat([(states - self.policy.model.mean) / self.policy.model.spread, controls], 1)

    def normal(self, controls: np.ndarray) -> Tensor:
        """Controls [..., A] in physical units -> float64, limits -1 and 1."""
        return (torch.as_tensor(np.asarray(controls, np.float64)) - self._middle) / self._half

    def physical(self, controls: Tensor) -> np.ndarray:
        """Controls [ticks, A], limits -1 and 1, as an action, float32, within the limits."""
        return (self._middle + self._half * controls.clamp(-1, 1)).float().numpy()


# The network of `vlrl.policies.residual`: a robot's state and what a frozen policy would do in, a correction out.


@dataclass(frozen=True)
class Size:
    """What a residual may do, and its size."""

    scale: float = 0.1  # of a correction of 1, in halves of the limits' width
    log_std: float = -1.0  # of corrections, before `scale`; not learned
    ticks: int = 1  # that one correction is held
    hidden: int = 256
    layers: int = 2

    def __post_init__(self):
        sizes = min(self.ticks, self.hidden, self.layers)
        if not (0 < self.scale < math.inf and math.isfinite(self.log_std) and sizes > 0):
            raise ValueError(f"{self}: scale above 0, a finite log_std, ticks, hidden and layers at least 1")


class CorrectionActor(nn.Module):
    """The mean correction float32 [B, A] for inputs float32 [B, I]; nearly 0 before it has learned anything.

    Layers and beginnings as in ankile/robust-rearrangement (ResiP, arXiv 2407.16677).
    """

    def __init__(self, inputs: int, controls: int, size: Size):
        super().__init__()
        widths = [inputs, *[size.hidden] * size.layers]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.SiLU()]
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
            nn.init.zeros_(layers[-2].bias)
        last = nn.Linear(size.hidden, controls, bias=False)
        nn.init.orthogonal_(last.weight, 0.01)
        self.body = nn.Sequential(*layers, last)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


class CorrectionScorer(nn.Module):
    """Log-probability densities and entropies [B, A] of corrections: the forward that is trained and may be wrapped."""

    def __init__(self, model: CorrectionActor, std: float):
        super().__init__()
        self.model, self.std = model, std

    def forward(self, inputs: Tensor, corrections: Tensor) -> tuple[Tensor, Tensor]:
        law = Normal(self.model(inputs), self.std)
        return law.log_prob(corrections), law.entropy()


FAMILY = "vlrl_residual"
BASE = "base"  # folder of the frozen policy, in the residual's own


@dataclass(frozen=True, eq=False)
class ResidualInputs:
    """What the policy keeps of its own decision, and all that it remembers from one tick to the next."""

    inputs: Tensor  # float32 [I], what the actor reads
    correction: Tensor  # float32 [A], a_res
    plan: BaseChunk


class ResidualPolicy(ScoredPolicy):
    """The policy (`vlrl.types.Policy`).

    Where an episode's last turn stood in the base's chunk, the next one goes on: nothing is remembered but the turns.

    Args:
        base: is frozen, and acts greedily.
        level: of log-probabilities: each number of a correction (`token`, if it is of one tick), or all of it.
        temperature: the distribution is that of std to the power of 1 / temperature.
    """

    def __init__(
        self, base: ControlPolicy, size: Size, *, temperature: float = 1.0, level: Level = "token", seed: int = 0
    ):
        self.base, self.size, self.device = OpenLoop(base, size.ticks), size, base.device
        self.shape = replace(base.shape, chunk=size.ticks)
        self._each = level == "token" and size.ticks == 1  # of several ticks, not all may be carried out
        controls = len(base.shape.low)
        self.model = CorrectionActor(base.shape.state + size.ticks * controls, controls, size).to(self.device)
        self.std = math.exp(size.log_std) * math.sqrt(temperature)
        self.scorer = CorrectionScorer(self.model, self.std)
        self.generator = torch.Generator().manual_seed(seed)

    def check(self, sample: Sample) -> None:
        """Nothing is known of what a robot shows before it is looked at."""

    @torch.no_grad()
    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """float32 [ticks, A] within the limits, for each observation; `greedy` takes the mean correction."""
        plans = self.base.plans([_last(episode) for episode in episodes], observations)
        inputs = self.base.inputs(observations, plans)
        self.model.eval()
        corrections = self.model(inputs)
        if not greedy:
            noise = torch.from_numpy(normals(episodes, corrections.shape[1:], self.generator))
            corrections = corrections + self.std * noise.to(self.device)
        logprobs, entropy = (self._levelled(each).cpu() for each in self.scorer(inputs, corrections))
        inputs_of = map(ResidualInputs, inputs.cpu(), corrections.cpu(), plans)
        return [self._decision(*parts) for parts in zip(inputs_of, logprobs, entropy, strict=True)]

    def decide(
        self, observation: Observation, action: np.ndarray, key: str | None = None, before: Sequence[Turn] = ()
    ) -> Decision:
        """Given controls [ticks, A] as a decision of this policy, the first of a new chunk of the base.

        Of several ticks by the mean of their corrections.
        """
        shape = [self.size.ticks, len(self.shape.low)]
        if list(np.shape(action)) != shape:
            raise UserError(
                f"{key or 'a decision'}: an action of shape {list(np.shape(action))}; the policy gives {shape}"
            )
        plans = self.base.plans([None], [observation])
        correction = (self.base.normal(action) - plans[0].controls).mean(0) / self.size.scale
        inputs = ResidualInputs(self.base.inputs([observation], plans)[0].cpu(), correction.float(), plans[0])
        nothing = self._levelled(torch.zeros(1, shape[1]))[0]
        return self._decision(inputs, nothing, nothing)

    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """What the actor reads, float32 [B, S + ticks A]: the scaled state and the base's controls. Learning does not
        change them, so a critic is never behind."""
        return torch.stack([d.inputs.inputs for d in decisions]).to(self.device)

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """config.json, model.safetensors with the parameters in `dtype`, and the base's folder as it is."""
        self.base.policy.save(folder / BASE)
        about = {"model_type": FAMILY, **asdict(self.size)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        weights = {name: value.detach().cpu().to(dtype).contiguous() for name, value in self.model.state_dict().items()}
        save_file(weights, folder / "model.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote into the present model.

        Raises:
            UserError: the folder holds none, or another network's.
        """
        weights_into(self.model, folder)

    def _decision(self, seen: ResidualInputs, logprobs: Tensor, entropy: Tensor) -> Decision:
        action = self.base.physical(seen.plan.controls + self.size.scale * seen.correction)
        return Decision(action, logprobs, entropy, False, inputs=seen)

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision]) -> Evaluation:
        corrections = torch.stack([d.inputs.correction for d in decisions]).to(self.device)
        logprobs, entropy = map(self._levelled, scorer(self.features(decisions), corrections))
        return Evaluation(logprobs, entropy, torch.ones_like(logprobs, dtype=torch.bool))

    def _levelled(self, values: Tensor) -> Tensor:
        """[B, A] -> [B, T], summed to the policy's level."""
        return values if self._each else values.sum(1, keepdim=True)


def _last(episode: Episode) -> BaseChunk | None:
    """Where the episode's last turn stood; None where there is none of this policy's."""
    inputs = episode.turns[-1].decision.inputs if episode.turns else None
    return inputs.plan if isinstance(inputs, ResidualInputs) else None


def load_residual(folder: Path, *, temperature: float, level: Level, seed: int, device: str) -> ResidualPolicy:
    """The policy that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    base = load_control(folder / BASE, temperature=1.0, level=level, seed=seed, device=device)
    try:
        about = load_json(folder / "config.json", finite=False)
        about.pop("model_type")
        size = Size(**about)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} describes no residual policy: {error}") from None
    policy = ResidualPolicy(base, size, temperature=temperature, level=level, seed=seed)
    policy.load_weights(folder)
    return policy


# A frozen policy whose chunks a small network corrects: what the agent `residual` learns (arXiv 2412.13630).
#
# The base is asked at every decision, and the first K ticks of its chunk are carried out with corrections,
#
# a = clip(a_base + scale * c),    c in [-1, 1],
#
# a control's limits being -1 and 1. So what is done is a function of the state alone, never further from the base
# than `scale`. A correction may be held for some ticks. A `ResidualPolicy` differs: it looks again for each correction
# while a chunk of the base runs, and has no bound.
#
# A folder of one holds the network, and the base's own folder as `base`.


# The frozen policy under a `CorrectedPolicy`: any that goes from a robot's state alone to chunks of controls.


@dataclass(frozen=True)
class PlannedState:
    """In a base's place: its chunk, limits -1 and 1, stands at the end of the state (`vlrl.policies.encoded`)."""

    shape: ActorShape

    def save(self, folder: Path) -> None:
        """Nothing: the policy that plans is kept where the state is made."""


@torch.no_grad()
def planned(base: Any, state: np.ndarray) -> Tensor:
    """The base's greedy chunks float32 [B, K, A] for states float32 [B, S], a control's limits being -1 and 1."""
    if isinstance(base, PlannedState):
        size = (base.shape.chunk, len(base.shape.low))
        return torch.from_numpy(state[:, -math.prod(size) :]).unflatten(1, size)
    if isinstance(base, ControlPolicy):  # in one go: this is asked for at each update
        codes = base.model(torch.as_tensor(state, device=base.device), []).argmax(-1)
        return codes * (2 / (base.shape.bins - 1)) - 1
    observations = [Observation((), row) for row in state]
    chunks = np.stack([each.action for each in base.act([NOBODY] * len(observations), observations, greedy=True)])
    low, high = (np.array(limit, np.float32) for limit in (base.shape.low, base.shape.high))
    return torch.from_numpy((chunks - low) / (high - low) * 2 - 1)


CORRECTED_FAMILY = "vlrl_corrected"


class CorrectedPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts.

    Args:
        shape: of the robot, with K ticks of a chunk, and of the network that corrects them.
        base: is frozen, and acts greedily from the state; its chunks have K ticks or more.
        scale: of a correction of 1, in halves of the limits' width.
        hold: ticks of a correction, of which K is a multiple.
        seed: of what it plays. First weights are drawn from the global generator.
    """

    def __init__(self, shape: ActorShape, base: Any, scale: float, hold: int, *, seed: int = 0):
        self.shape, self.base, self.scale, self.hold = shape, base, scale, hold
        self.model = Actor(correction_shape(shape, hold))
        self.generator = torch.Generator().manual_seed(seed)
        self._low, self._high = (np.array(limit, np.float32) for limit in (shape.low, shape.high))

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            f"policy.model: a {CORRECTED_FAMILY} is not trained with `vlrl train`: `vlrl residual` makes one that is"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the middle of the corrections.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    @torch.no_grad()
    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        if not greedy:
            return self.physical(self.draw(state, self.generator)[0])
        planned = self.planned(state)
        return self.physical(self._corrected(planned, self.model(self._network_inputs(state, planned))[0].tanh()))

    def draw(self, state: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Chunks in [-1, 1] [B, K*A] and the log-densities [B] of their corrections, both with gradient."""
        planned = self.planned(state)
        correction, logp = self.model.draw(self._network_inputs(state, planned), generator)
        return self._corrected(planned, correction), logp

    def planned(self, state: np.ndarray) -> Tensor:
        """The base's own chunks in [-1, 1], float32 [B, K*A]."""
        return planned(self.base, state)[:, : self.shape.chunk].flatten(1).to(self.model.mean.device)

    def physical(self, unit: Tensor) -> np.ndarray:
        """Chunks [B, K*A] in [-1, 1] -> float32 [B, K, A] within the limits."""
        return physical(unit.cpu().numpy(), self._low, self._high)

    def save(self, folder: Path) -> None:
        """config.json, model.safetensors and the base's folder."""
        common.save(
            folder, common.make_config(CORRECTED_FAMILY, self.shape, scale=self.scale, hold=self.hold), self.model
        )
        self.base.save(folder / BASE)

    def _network_inputs(self, state: np.ndarray, planned: Tensor) -> Tensor:
        return torch.cat([torch.as_tensor(state, device=planned.device), planned], 1)

    def _corrected(self, planned: Tensor, correction: Tensor) -> Tensor:
        held = correction.unflatten(1, (-1, len(self._low))).repeat_interleave(self.hold, 1).flatten(1)
        return (planned + self.scale * held).clamp(-1, 1)


def correction_shape(shape: ActorShape, hold: int) -> ActorShape:
    """Of the network that sees a state and the base's chunk, and gives a correction for each `hold` ticks."""
    one = (1.0,) * len(shape.low)
    return replace(
        shape, state=shape.state + shape.chunk * len(one), low=tuple(-x for x in one), high=one,
        chunk=shape.chunk // hold, names=(), units=(),
    )  # fmt: skip


def load_corrected(folder: Path, base: Any, *, seed: int, device: str = "cpu") -> CorrectedPolicy:
    """The policy that `save` wrote, around the base that lies in the folder's `BASE`; None: `PlannedState`.

    Raises:
        UserError: the folder holds something else.
    """
    shape, more = common.chunks_read(folder, CORRECTED_FAMILY, ("scale", "hold"), "policy.model")
    base = base or PlannedState(shape)
    try:
        scale, hold = float(more["scale"]), int(more["hold"])
        if not (0 < scale <= 2 and hold > 0 and 0 < shape.chunk <= base.shape.chunk) or shape.chunk % hold:
            raise ValueError(f"scale {scale}, hold {hold}, chunk {shape.chunk} of the base's {base.shape.chunk}")
        policy = CorrectedPolicy(shape, base, scale, hold, seed=seed)
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"policy.model: {folder / 'config.json'} describes no {CORRECTED_FAMILY}: {reason}") from None
    weights_into(policy.model, folder)
    policy.model.to(device)
    return policy
