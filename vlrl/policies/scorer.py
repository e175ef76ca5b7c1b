"""Log-probabilities of completions: the one forward pass that is trained, and may be wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vlrl.policies.forward import After, Prefill, Seen, hidden_states, recorded
from vlrl.policies.packing import Packed
from vlrl.policies.sampling import entropy_of, law

CHUNK = 2**25  # logits held at once while scoring: tokens times vocabulary


class Scorer(nn.Module):
    """Log-probabilities and entropies of packed completions. `hidden`: what makes hidden states of them."""

    def __init__(
        self, model: nn.Module, temperature: float, banned_ids: Sequence[int], hidden: Callable = hidden_states,
        chunk: int = CHUNK,
    ):  # fmt: skip
        super().__init__()
        self.model, self.temperature, self.hidden, self.chunk = model, temperature, hidden, chunk
        self.register_buffer("banned", torch.tensor(banned_ids, dtype=torch.int64), persistent=False)

    def forward(
        self, packed: Packed, seen: Seen | None = None, before: Packed | Prefill | None = None
    ) -> tuple[Tensor, Tensor]:
        """-> log-probabilities [n] of the targets and entropies [n], float32.

        Args:
            packed: prompts and completions; the completions alone where the prompts come before.
            seen: what a tower that does not train has made of the prompts' media.
            before: the prompts, to be forwarded first, or forwarded already.
        """
        base = bare(self.model)
        if before is None:
            return self.of(self.hidden(base, packed, seen).flatten(0, 1), packed)
        prompts, layers = recorded(base, before, seen) if isinstance(before, Packed) else (before.hidden, before.layers)
        replies = hidden_states(base, packed, None, After(layers, packed.behind))
        return self.of(torch.cat([prompts.flatten(0, 1), replies.flatten(0, 1)]), packed)

    def of(self, hidden: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
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


def bare(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside a peft wrapper (whose layers carry the adapter), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
