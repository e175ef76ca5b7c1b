"""MOORL: soft actor-critic whose actor and critics are meta-learned over what is given and what is played."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vlrl.methods import method
from vlrl.offpolicy.agent import About
from vlrl.strict import Count, Rate
from vlrl.types import UserError

Share = Annotated[float, Field(gt=0, le=1)]


@method(source="MOORL (arXiv 2506.09574), algorithm 1, on SAC (arXiv 1801.01290); Reptile (arXiv 1803.02999)")
class Moorl:
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
        self, about: About, seed: int, *, inner: Count = 10, rate: Share = 0.5, hidden: Count = 256, layers: Count = 2,
        critics: Annotated[int, Field(ge=2)] = 2, subset: Count = 2, cta_ratio: Count = 1, lr: Rate = 3e-4,
        tau: Share = 0.005, temperature: Rate = 0.01, target_entropy: float = -0.5, entropy_backup: bool = True,
        climbs: Literal["mean", "min"] = "min",
    ):  # fmt: skip
        from vlrl.offpolicy.reptile import ReptileSac
        from vlrl.offpolicy.sac import Settings

        if subset > critics:
            raise UserError(f"agent.subset: {subset} of {critics} critics: at most as many")
        settings = Settings(
            hidden=hidden, layers=layers, critics=critics, subset=subset, cta_ratio=cta_ratio, lr=lr, tau=tau,
            temperature=temperature, target_entropy=target_entropy, entropy_backup=entropy_backup, climbs=climbs,
        )  # fmt: skip
        core = ReptileSac(about, seed, settings, inner, rate)
        self.act, self.update, self.save = core.act, core.update, core.save
        self.state_dict, self.load_state_dict = core.state_dict, core.load_state_dict


moorl = Moorl
