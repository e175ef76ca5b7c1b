"""Log-probabilities of completions, and sampling from logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vlrl.policies.prefix_sharing import (
    After,
    MediaFeatures,
    Packed,
    Prefill,
    RowLevels,
    hidden_states,
    level_states,
    recorded,
)

# The law that completions are sampled from, and drawing from it.


@dataclass(frozen=True)
class Nucleus:
    """Which tokens may be drawn: the `top_k` likeliest, of them the fewest whose probabilities reach `top_p`.

    Log-probabilities and entropies stay those of all tokens, as an update computes them: a run that samples a part
    of it is slightly off-policy, in every trainer.
    """

    top_p: float = 1.0
    top_k: int | None = None

    def of(self, probs: Tensor) -> Tensor:
        """Probabilities [n, V] with the others' set to zero; what is left does not sum to 1."""
        if self.top_k is not None and self.top_k < probs.shape[-1]:
            least = probs.topk(self.top_k, -1).values[:, -1:]
            probs = probs.where(probs >= least, 0)
        if self.top_p < 1.0:
            ranked, order = probs.sort(-1, descending=True)
            before = ranked.cumsum(-1) - ranked
            kept = before < self.top_p * ranked.sum(-1, keepdim=True)
            probs = probs.where(torch.empty_like(kept).scatter_(-1, order, kept), 0)
        return probs


EVERY = Nucleus()  # token


def law(logits: Tensor, temperature: float, banned: Tensor) -> Tensor:
    """Log-probabilities [..., V] in float32 of the sampling distribution: banned tokens out, then temperature."""
    logits = logits.float().index_fill(-1, banned, float("-inf"))
    return (logits if temperature in (0.0, 1.0) else logits / temperature).log_softmax(-1)


def entropy_of(logprobs: Tensor, probs: Tensor | None = None) -> Tensor:
    """Entropy [...] in nats of log-probabilities [..., V] that may hold -inf; `probs` where they are at hand."""
    return -((logprobs.exp() if probs is None else probs) * logprobs.clamp(min=-1e9)).sum(-1)


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """One token [n] of each row, by the inverse of its distribution function.

    One uniform number a token makes a completion's draws its own: they do not hang on who else is in the batch.

    Args:
        probs: [n, V], at least 0, of any positive sum.
        uniform: [n] in [0, 1).
    """
    up_to = probs.cumsum(-1)
    total = up_to[:, -1:]
    # below the total even after rounding, so that the first sum above it has a token of positive probability
    at = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(up_to, at, right=True)
    if probs.device.type == "cpu":  # there sums are made one after the other, so they are ordered
        return token[:, 0]
    # those that are made in parallel may round so that they are not
    possible = probs.gather(-1, token) > 0
    return torch.where(possible, token, probs.argmax(-1, keepdim=True))[:, 0]


# Log-probabilities of completions: the one forward pass that is trained, and may be wrapped.

CHUNK = 2**25  # logits held at once while scoring: tokens times vocabulary


class TokenScorer(nn.Module):
    """Log-probabilities and entropies of packed completions. `hidden`: what makes hidden states of them."""

    def __init__(
        self, model: nn.Module, temperature: float, banned_ids: Sequence[int], hidden: Callable = hidden_states,
        chunk: int = CHUNK,
    ):  # fmt: skip
        super().__init__()
        self.model, self.temperature, self.hidden, self.chunk = model, temperature, hidden, chunk
        banned = torch.tensor(banned_ids, dtype=torch.int64, device=next(model.parameters()).device)
        self.register_buffer("banned", banned, persistent=False)

    def forward(
        self, packed: Packed | RowLevels, seen: MediaFeatures | Sequence[MediaFeatures | None] | None = None,
        before: Packed | Prefill | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """-> log-probabilities [n] of the targets and entropies [n], float32.

        Args:
            packed: prompts and completions; the completions alone where the prompts come before; or conversations.
            seen: what a tower that does not train has made of the prompts' media; of conversations, of each level's.
            before: the prompts, to be forwarded first, or forwarded already.
        """
        base = bare(self.model)
        if isinstance(packed, RowLevels):
            return self.of(level_states(base, packed, seen), packed)
        if before is None:
            return self.of(self.hidden(base, packed, seen).flatten(0, 1), packed)
        prompts, layers = recorded(base, before, seen) if isinstance(before, Packed) else (before.hidden, before.layers)
        replies = hidden_states(base, packed, None, After(layers, packed.behind))
        return self.of(torch.cat([prompts.flatten(0, 1), replies.flatten(0, 1)]), packed)

    def of(self, hidden: Tensor, packed: Packed | RowLevels) -> tuple[Tensor, Tensor]:
        """Scores the targets from hidden states [n, H], a chunk of logits at a time."""
        chosen = hidden[packed.source]
        size = max(1, self.chunk // bare(self.model).lm_head.out_features)
        if len(chosen) <= size:
            return self.score(chosen, packed.target)
        parts = [  # the logits of a chunk are recomputed in the backward pass instead of kept
            checkpoint(self.score, h, t, use_reentrant=False)
            for h, t in zip(chosen.split(size), packed.target.split(size), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def score(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = law(bare(self.model).lm_head(hidden), self.temperature, self.banned)
        return logprobs.gather(-1, target[:, None])[:, 0], entropy_of(logprobs)


def has_adapter(model: nn.Module) -> bool:
    """Whether a model's trained weights are an adapter of peft's that can be left out of a forward pass."""
    return hasattr(model, "disable_adapter")


def bare(model: Any) -> nn.Module:
    """The Hugging Face model inside a peft wrapper (whose layers carry the adapter), or the model itself."""
    return model.get_base_model() if has_adapter(model) else model
