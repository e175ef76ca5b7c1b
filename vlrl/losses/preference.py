"""Group preference: the right completions of a prompt, together, against its wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vlrl.losses.groups import check_one_turn, same_group
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(
    needs=("group", "reference", "sequence_mean", "one_turn"),
    source="GEPO: OORL, arXiv 2505.12723; the formula is our reconstruction from its abstract",
)
def gepo(now: Evaluation, batch: Batch, *, beta: Rate = 0.1, equal: Cost = 0.1, coef: float = 1.0) -> Tensor:
    """`-log sigmoid(mean_right h - mean_wrong h) + equal var_right h` per prompt, h = beta log(p_now / p_reference).

    GEPO lets a model tell the members of a group that are equivalent to a given one from those that are not, and use
    that the former are equivalent to each other. Here right completions of a prompt are the equivalent ones. Ours are
    the means over each side (DPO's loss, where each side is one), the population variance for the equivalence, both
    numbers, and that completions are the policy's own instead of prepared ones. h is of the whole completion. Prompts
    without a right or without a wrong completion give 0.

    Args:
        equal: weight of the spread among right completions; 0: they need not be equally likely.

    Returns:
        [b, T], the prompt's loss at each token of its completions, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "gepo")
    gap = (now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0)
    implied = beta * gap.sum(1)
    right = batch.is_correct.to(implied.dtype)
    member = same_group(batch, implied)
    n_right, n_wrong = member @ right, member @ (1 - right)
    above = member @ (right * implied) / n_right.clamp(min=1)
    below = member @ ((1 - right) * implied) / n_wrong.clamp(min=1)
    spread = member @ (right * (implied - above) ** 2) / n_right.clamp(min=1)
    loss = (below - above).logaddexp(above.new_zeros(())) + equal * spread
    return coef * loss.where((n_right > 0) & (n_wrong > 0), 0.0)[:, None] * batch.mask
