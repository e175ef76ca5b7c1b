"""Off-policy agents, as `agent:` names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.config import Count, Rate
from vlrl.methods import Agent, method
from vlrl.offpolicy.base import ActorAgent, AgentSpec, CoreAgent, Transitions, concat
from vlrl.types import Observation, UserError

if TYPE_CHECKING:
    import numpy as np


# ARSQ: soft Q-learning of a chunk's numbers, one after the other, coarse to fine.

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(source="ARSQ (arXiv 2502.00288); levels and bins as CQN (arXiv 2407.07787); parts reconstructed")
class AutoRegressiveSoftQ(CoreAgent):
    """A distribution over chunks whose log-probabilities are soft advantages; no actor beside the values.

    Args:
        levels: of ever finer choices for each number.
        bins: of each choice; a number has bins ** levels values.
        values: networks of the state's soft value, of which the smallest is in the targets.
        temperature: of the soft values, in units of reward: a nat of a decision's entropy is worth that much.
        imitation: weight of keeping other bins `margin` below those of what was given; 0: rewards alone.
        margin: in units of reward; of the temperature, 3 are a ratio of 20 between probabilities.
        tau: how fast the target values follow.
    """

    def __init__(
        self, about: AgentSpec, seed: int, *, levels: Count = 2, bins: Annotated[int, Field(ge=2)] = 5,
        hidden: Count = 256, layers: Count = 2, values: Count = 2, lr: Rate = 3e-4,
        tau: Annotated[float, Field(gt=0, le=1)] = 0.005, temperature: Rate = 1e-3, imitation: Weight = 1.0,
        margin: Weight = 3e-3,
    ):  # fmt: skip
        from vlrl.offpolicy.iql import Arsq, ArsqSettings

        settings = ArsqSettings(
            levels=levels, bins=bins, hidden=hidden, layers=layers, values=values, lr=lr, tau=tau,
            temperature=temperature, imitation=imitation, margin=margin,
        )  # fmt: skip
        self.core = Arsq(about, seed, settings)


arsq = AutoRegressiveSoftQ


# AWAC: an actor-critic that begins with what is given and goes on by playing.


@method(source="AWAC (arXiv 2006.09359); clip of the weights and defaults as CORL (arXiv 2210.07105) on D4RL")
class Awac(ActorAgent):
    """Critics of the actor's own actions; the actor imitates what was done by how much better than its own that is.

    The warm-up of a run that goes on by playing is played by the actor.

    Args:
        temperature: the paper's lambda: an action's weight is exp(advantage / temperature). It hangs on the rewards'
            scale, see `iql`.
        most: the largest weight.
        tau: how fast the target critics follow.
        decay: updates in which the actor's rate falls to 0 along a cosine; 0: it stays.
    """

    requires = ("offline",)

    def __init__(
        self, about: AgentSpec, seed: int, *, temperature: Rate = 1.0, most: Rate = 100.0, hidden: Count = 256,
        layers: Count = 3, lr: Rate = 3e-4, tau: Annotated[float, Field(gt=0, le=1)] = 0.005,
        decay: Annotated[int, Field(ge=0)] = 0,
    ):  # fmt: skip
        from vlrl.offpolicy.iql import WeightedActorCritic

        self.core = WeightedActorCritic(
            about, seed, temperature=temperature, most=most, hidden=hidden, layers=layers, lr=lr, tau=tau, decay=decay
        )


awac = Awac


# Behaviour cloning: what every offline method is compared with.


@method(source="behaviour cloning by likelihood, with the actor and the distribution of IQL (arXiv 2110.06169)")
class Bc(ActorAgent):
    """Imitates what is given, good and bad alike, and a person's steps; rewards mean nothing to it.

    With a source's `keep: success` it is the filtered cloning that offline methods have to beat.

    Args:
        decay: updates in which the rate falls to 0 along a cosine; 0: it stays.
    """

    requires = ("offline",)

    def __init__(
        self, about: AgentSpec, seed: int, *, hidden: Count = 256, layers: Count = 2, lr: Rate = 3e-4,
        decay: Annotated[int, Field(ge=0)] = 0,
    ):  # fmt: skip
        from vlrl.offpolicy.iql import Imitator

        self.core = Imitator(about, seed, hidden=hidden, layers=layers, lr=lr, decay=decay)

    @property
    def actor(self) -> Any:
        return self.core

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        return {"actor_loss": self.core.step(online if offline is None else offline)}


bc = Bc


# DSRL: a frozen flow policy is steered by the noise that it begins with. `start` names the flow policy's folder.

Critics = Annotated[int, Field(ge=2)]
Share = Annotated[float, Field(gt=0, le=1)]


@method(source="DSRL-SAC (arXiv 2506.15799; ajwagen/dsrl), which has 3 layers of 2048 and backs entropy up")
class DsrlSac(CoreAgent):
    """Soft actor-critic whose actions are the noise of a frozen flow. What is given has no noise: it cannot be used.

    The flow is one of `vlrl clone`, or any of lerobot's SmolVLA, pi0, pi0.5 and diffusion (with DDIM), whose features
    then stand behind the state.

    Args:
        bound: of each number of the noise.
        remembered: latest chunks whose noise is kept; as many as `capacity`, for others are not learned from.
        cta_ratio: critic steps to one of the actor.
        temperature: of the entropy's reward, at the start; then so that the entropy is `target_entropy` per number.
        entropy_backup: whether the targets hold the next decision's entropy.
        tau: how fast the target critics follow.
        held: one noise for all ticks of a chunk, as the authors steer pi0: of lerobot's policies.
    """

    requires = ("start",)

    def __init__(
        self, about: AgentSpec, seed: int, *, bound: Rate = 1.5, remembered: Count = 100_000, hidden: Count = 256,
        layers: Count = 2, critics: Critics = 2, cta_ratio: Count = 1, lr: Rate = 3e-4, tau: Share = 0.005,
        temperature: Rate = 0.01, target_entropy: float = 0.0, entropy_backup: bool = False, held: bool = False,
    ):  # fmt: skip
        from vlrl.offpolicy.dsrl import NoiseSac
        from vlrl.offpolicy.sac import RlpdSettings

        settings = RlpdSettings(
            hidden=hidden, layers=layers, critics=critics, subset=critics, cta_ratio=cta_ratio, lr=lr, tau=tau,
            temperature=temperature, target_entropy=target_entropy, entropy_backup=entropy_backup, climbs="min",
        )  # fmt: skip
        self.core = NoiseSac(about, seed, settings, bound, remembered, held)
        self.looks = self.core.looks


@method(source="DSRL-NA (arXiv 2506.15799; ajwagen/dsrl), which has 3 layers of 2048 and backs entropy up")
class DsrlNa(CoreAgent):
    """Critics of chunks learn from anything, given or played; those of noise are fitted to them, for the actor.

    Args:
        bound: of each number of the noise that the actor chooses.
        noise_steps: of the noise critics to one of the critics, each with noise drawn anew from the flow's own.
        temperature: of the entropy's reward, at the start; then so that the entropy is `target_entropy` per number.
        entropy_backup: whether the targets hold the next decision's entropy.
        tau: how fast the target critics follow.
    """

    requires = ("start",)

    def __init__(
        self, about: AgentSpec, seed: int, *, bound: Rate = 1.5, noise_steps: Count = 10, hidden: Count = 256,
        layers: Count = 2, critics: Critics = 2, lr: Rate = 3e-4, tau: Share = 0.005, temperature: Rate = 0.01,
        target_entropy: float = 0.0, entropy_backup: bool = False,
    ):  # fmt: skip
        from vlrl.offpolicy.dsrl import DsrlSettings, NoiseAliased

        settings = DsrlSettings(
            bound=bound, noise_steps=noise_steps, hidden=hidden, layers=layers, critics=critics, lr=lr, tau=tau,
            temperature=temperature, target_entropy=target_entropy, entropy_backup=entropy_backup,
        )  # fmt: skip
        self.core = NoiseAliased(about, seed, settings)


dsrl_sac, dsrl_na = DsrlSac, DsrlNa


# IQL: learning from what is given alone, and going on from there.


@method(source="IQL (arXiv 2110.06169), defaults of its D4RL locomotion; networks with LayerNorm (arXiv 2302.02948)")
class Iql(ActorAgent):
    """Implicit Q-learning: values what the better of the given actions lead to, and imitates those.

    No action is valued that was not carried out, so that what was never seen cannot look good. The warm-up of a run
    that goes on by playing is played by the actor.

    Args:
        expectile: of the actions' values that a state's value is; 0.5 their mean, towards 1 the best of them (the
            authors: 0.7 for locomotion, 0.9 where parts of episodes are to be put together).
        beta: how much more an action is imitated that is better than its state: exp(beta * advantage). It hangs on the
            rewards' scale: an advantage of a job worth 1 is some hundredths, and 3, for returns of D4RL's scale, is
            then nearly behaviour cloning.
        most: the largest weight.
        tau: how fast the target critics follow.
        decay: updates in which the actor's rate falls to 0 along a cosine (the authors: all of them); 0: it stays.
        init: folder of a trunk that `vlrl pretrain` made (V-PTR), of as many layers and as wide as these: all networks
            begin with it. None: from chance.
    """

    requires = ("offline",)

    def __init__(
        self, about: AgentSpec, seed: int, *, expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7,
        beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0, most: Rate = 100.0,
        hidden: Count = 256, layers: Count = 2, lr: Rate = 3e-4, tau: Annotated[float, Field(gt=0, le=1)] = 0.005,
        decay: Annotated[int, Field(ge=0)] = 0, init: str | None = None,
    ):  # fmt: skip
        from vlrl.offpolicy.iql import ImplicitQ

        self.core = ImplicitQ(
            about, seed, expectile=expectile, beta=beta, most=most, hidden=hidden, layers=layers, lr=lr, tau=tau,
            decay=decay, init=init,
        )  # fmt: skip


iql = Iql


# MOORL: soft actor-critic whose actor and critics are meta-learned over what is given and what is played.


@method(source="MOORL (arXiv 2506.09574), algorithm 1, on SAC (arXiv 1801.01290); Reptile (arXiv 1803.02999)")
class Moorl(CoreAgent):
    """What is given and what is played by turns, not mixed: neither kind alone may lead the actor and critics away.

    One kind is drawn, each as often; a soft actor-critic makes `inner` updates on it, beginning as the actor and
    critics are; then these move by `rate` of the way to where it came. The actor so learned plays and is saved. Where
    only one kind is there (before the first tick) it is taken. A batch is the kind's half of `batch`.

    Published: the turns, K inner updates, a meta-update of actor and critics. Not found: K, its rate and how the kind
    is drawn; the published pseudocode writes the meta-update as a gradient, here it is Reptile's, which the paper
    names. Ours: Adam's moments, the target critics and the temperature go on from turn to turn.

    Args:
        inner: updates of one turn (the paper's K).
        critics: networks that value a decision.
        subset: of them, drawn anew for each target, whose smallest value counts.
        cta_ratio: critic updates to one of the actor and the temperature.
        temperature: of the entropy's reward, at the start; then so that the entropy is `target_entropy` per number.
        entropy_backup: whether the targets hold the next decision's entropy, as SAC's do.
        tau: how fast the target critics follow.
        climbs: the value that the actor climbs: the critics' mean, or the smallest, as SAC's.
    """

    requires = ("offline",)

    def __init__(
        self, about: AgentSpec, seed: int, *, inner: Count = 10, rate: Share = 0.5,
        hidden: Count = 256, layers: Count = 2,
        critics: Annotated[int, Field(ge=2)] = 2, subset: Count = 2, cta_ratio: Count = 1, lr: Rate = 3e-4,
        tau: Share = 0.005, temperature: Rate = 0.01, target_entropy: float = -0.5, entropy_backup: bool = True,
        climbs: Literal["mean", "min"] = "min",
    ):  # fmt: skip
        from vlrl.offpolicy.iql import ReptileSac
        from vlrl.offpolicy.sac import RlpdSettings

        if subset > critics:
            raise UserError(f"agent.subset: {subset} of {critics} critics: at most as many")
        settings = RlpdSettings(
            hidden=hidden, layers=layers, critics=critics, subset=subset, cta_ratio=cta_ratio, lr=lr, tau=tau,
            temperature=temperature, target_entropy=target_entropy, entropy_backup=entropy_backup, climbs=climbs,
        )  # fmt: skip
        self.core = ReptileSac(about, seed, settings, inner, rate)


moorl = Moorl


# RECAP: a flow policy learns what is better than usual by being told which chunks were.


@method(source="RECAP (pi*0.6, arXiv 2511.14759) by its description; guidance: arXiv 2207.12598; HL-Gauss: 2403.03950")
class Recap(CoreAgent):
    """Advantage-conditioned imitation: all chunks are imitated, each with an indicator of whether it was better than
    its state's value; then the policy acts as if told that it is.

    Published: a distribution over the rewards to the episode's end as the value; the advantage r + V(s') - V(s) over
    the ticks of a chunk; a threshold so that a share is positive; a person's always positive; the indicator left out
    at random; guidance. Ours: the value is of gamma to the ticks until success, 0 of a failure, in place of -1 a tick
    and a large cost of failure (`reward: {success: C, step: -1}`, gamma: 1, where C must be far above the ticks of an
    episode, or the last states of a time-out look near the end); the threshold is that of a batch; the value and the
    policy learn side by side and from all that was played, where the paper trains both anew in each of few iterations;
    targets are smoothed (HL-Gauss); the indicator is a number beside the state, not a line of text.

    Args:
        positive: share of a batch's chunks that are told to be better than usual; with a person's, more.
        dropout: share of chunks whose indicator is left out.
        guidance: 1: acts as if told "better"; above 1 goes beyond (the paper: 1, or 1.5 to 2.5).
        bins, low, high: of the value's distribution over returns, which lie between `low` and `high`.
        hidden, layers: of the value; the flow has its own.
    """

    requires, learns_returns = ("start",), True

    def __init__(
        self, about: AgentSpec, seed: int, *, positive: Annotated[float, Field(gt=0, lt=1)] = 0.3,
        dropout: Annotated[float, Field(gt=0, lt=1)] = 0.3,
        guidance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0, bins: Annotated[int, Field(ge=2)] = 201,
        low: float = 0.0, high: float = 1.0, hidden: Count = 256, layers: Count = 2, lr: Rate = 3e-4,
    ):  # fmt: skip
        from vlrl.offpolicy.iql import AdvantageConditioned

        if not low < high:
            raise UserError(f"agent.low: {low} is not below agent.high = {high}")
        self.core = AdvantageConditioned(
            about, seed, positive=positive, dropout=dropout, guidance=guidance, bins=bins, low=low, high=high,
            hidden=hidden, layers=layers, lr=lr,
        )  # fmt: skip


recap = Recap


# Residual learning off-policy: bounded corrections of a frozen policy. `start` names that policy.


@method(source="Policy Decorator (arXiv 2412.13630; tongzhoumu/policy_decorator) on RLPD (arXiv 2302.02948)")
class Residual(CoreAgent):
    """Soft actor-critic over corrections of a frozen policy's chunks; what is given teaches it as it does `rlpd`.

    Any policy of `vlrl clone` or lerobot's can be the base; one that sees images adds its features to the state. The
    critics see the state and the chunk that is carried out, base and correction together; the actor sees the state and
    the base's chunk. Given chunks out of the corrections' reach are valued as they are, and imitated as far as the
    corrections reach.

    Args:
        scale: of a correction of 1, in halves of the limits' width (the paper's alpha; 0.03 to 0.3 there).
        hold: ticks of a correction; task.chunk is a multiple. What is tried shows, and there is less to choose.
        ramp: ticks until all decisions are corrected while it explores; their share grows evenly from 0 (its H).
        cta_ratio: critic steps to one of the actor and the temperature.
        temperature: of the entropy's reward, at the start; then so that the entropy is `target_entropy` per number.
        entropy_backup: whether the targets hold the next decision's entropy.
        tau: how fast the target critics follow.
        imitation: weight of the squared distance to given actions, in halves of the limits' width, wherever the critics
            value them above the actor's own (the Q filter of arXiv 1709.10089).
        climbs: the value that the actor climbs: the critics' mean, or the smallest.
    """

    requires = ("start",)

    def __init__(
        self, about: AgentSpec, seed: int, *, scale: Annotated[float, Field(gt=0, le=2)] = 0.2, hold: Count = 1,
        ramp: Annotated[int, Field(ge=0)] = 20_000, hidden: Count = 256, layers: Count = 2,
        critics: Annotated[int, Field(ge=2)] = 2, cta_ratio: Count = 2, lr: Rate = 3e-4, tau: Share = 0.005,
        temperature: Rate = 0.01, target_entropy: float = -0.5, entropy_backup: bool = False,
        imitation: Annotated[float, Field(ge=0)] = 0.0, climbs: Literal["mean", "min"] = "min",
    ):  # fmt: skip
        from vlrl.offpolicy.sac import ResidualSac, RlpdSettings

        settings = RlpdSettings(
            hidden=hidden, layers=layers, critics=critics, subset=2, cta_ratio=cta_ratio, lr=lr, tau=tau,
            temperature=temperature, target_entropy=target_entropy, entropy_backup=entropy_backup,
            imitation=imitation, climbs=climbs,
        )  # fmt: skip
        self.core = ResidualSac(about, seed, settings, scale, hold, ramp)


residual = Residual


# RLPD: soft actor-critic from what is given and what is played, half and half.


@method(source="RLPD (arXiv 2302.02948) on SAC (arXiv 1801.01290, 1812.05905); cta_ratio as SERL (arXiv 2401.16013)")
class Rlpd(Agent):
    """Soft actor-critic with critics that are many, small and normalised; without anything given it is plain SAC.

    From images, where the run has an `encoder` of its own (SERL, HIL-SERL: arXiv 2410.21845).

    Args:
        critics: networks that value a decision; 10 in the paper.
        subset: of them, drawn anew for each target, whose smallest value counts (REDQ, arXiv 2101.05982).
        cta_ratio: critic steps to one of the actor and the temperature.
        entropy_backup: whether the targets hold the next decision's entropy.
        temperature: of the entropy's reward, at the start; then so that the entropy is `target_entropy` per number.
        tau: how fast the target critics follow.
        imitation: weight of the squared distance to given actions, in halves of the limits' width, wherever the critics
            value them above the actor's own (the Q filter of arXiv 1709.10089); 0: RLPD as published.
        climbs: the value that the actor climbs: the critics' mean (RLPD) or the smallest (SAC), which errs up less.
        init: folder of a trunk that `vlrl pretrain` made (V-PTR), of as many layers and as wide as these: actor and
            critics begin with it. None: from chance.
    """

    learns_images = True

    def __init__(
        self, about: AgentSpec, seed: int, *, hidden: Count = 256, layers: Count = 2,
        critics: Annotated[int, Field(ge=2)] = 2, subset: Count = 2, cta_ratio: Count = 2, lr: Rate = 3e-4,
        tau: Annotated[float, Field(gt=0, le=1)] = 0.005,
        temperature: Rate = 0.01, target_entropy: float = -0.5, entropy_backup: bool = False,
        imitation: Annotated[float, Field(ge=0)] = 0.0, climbs: Literal["mean", "min"] = "mean",
        init: str | None = None,
    ):  # fmt: skip
        from vlrl.offpolicy.sac import RlpdSettings, Sac

        if subset > critics:
            raise UserError(f"agent.subset: {subset} of {critics} critics: at most as many")
        settings = RlpdSettings(
            hidden, layers, critics, subset, cta_ratio, lr, tau, temperature, target_entropy, entropy_backup, imitation,
            climbs, init,
        )  # fmt: skip
        self._sac, self.looks = Sac(about, seed, settings), about.encoder is not None

    def act(self, state: np.ndarray, explore: bool, *observations: Sequence[Observation]) -> np.ndarray:
        from vlrl.policies.robot_common import pixels

        images = [pixels(each, self._sac.encoder.cameras, "encoder") for each in observations]
        return self._sac.policy.chunks(state, not explore, *images)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        batch = concat([part for part in (online, offline) if part is not None])
        return self._sac.update(batch, given=0 if offline is None else len(offline))

    def state_dict(self) -> dict[str, Any]:
        return self._sac.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sac.load_state_dict(state)

    def save(self, folder: Path) -> None:
        self._sac.policy.save(folder)


rlpd = Rlpd
