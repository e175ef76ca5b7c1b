"""What is drawn for completions, token by token, with its log-probabilities and entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vlrl.policies.graphs import Graphs
from vlrl.policies.sampling import EVERY, Nucleus, draw, entropy_of, law


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `ended`: whether a completion's tokens end in a stop string; None: there are none."""

    max_tokens: int
    temperature: float  # 0 is greedy
    banned_ids: Sequence[int]
    stop_ids: Sequence[int]
    nucleus: Nucleus = EVERY
    ended: Callable[[list[int]], bool] | None = None
    slots: int | None = None  # completions under way at once; default: all
    graphs: Graphs | None = None  # a token's operations are recorded, and replayed for those that follow


@dataclass(frozen=True)
class Sampled:
    """Completions in the order asked for. Each with its tokens (stop token included), and [T] tensors on the CPU."""

    tokens: list[list[int]]
    logprobs: list[Tensor]
    entropy: list[Tensor]
    cut: list[bool]
    forwarded: int  # tokens that went through the layers one at a time, those of ended completions included


class Writer:
    """Completions as they grow: what has been drawn for each, and which go on."""

    def __init__(self, count: int, sampling: Sampling, drawn: Tensor | None, device: torch.device):
        self.sampling = sampling
        # drawn beforehand, so that no completion's draws hang on how the others are batched, or on a record of them
        self.uniform = None if drawn is None else pad(drawn.to(device), (0, 1))
        beside = (count, sampling.max_tokens + 1)  # the last column takes what ended ones would write
        self.tokens = torch.zeros(beside, dtype=torch.int64, device=device)
        self.logprobs, self.entropy = (torch.zeros(beside, device=device) for _ in range(2))
        self.lengths = torch.zeros(count, dtype=torch.int64, device=device)
        self.running = torch.ones(count, dtype=torch.bool, device=device)
        self.banned = torch.tensor(sampling.banned_ids, dtype=torch.int64, device=device)
        self.stops = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=device)
        self._read = [0] * count  # tokens that have been searched for stop strings

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What `write` changes."""
        return self.tokens, self.logprobs, self.entropy, self.lengths, self.running

    def write(self, who: Tensor, logits: Tensor) -> Tensor:
        """Draws the next token [n] of completions `who` [n] from their logits [n, V]; ended ones stay as they are.

        Nothing here waits for the device: stop strings are found at the next `look`.
        """
        going, end = self.running[who], self.sampling.max_tokens
        place = (who, torch.where(going, self.lengths[who], end))
        logprobs = law(logits, self.sampling.temperature, self.banned)
        probs = logprobs.exp()
        token = logprobs.argmax(-1) if self.uniform is None else self._drawn(probs, place)
        self.tokens[place] = token
        self.logprobs[place] = logprobs.gather(-1, token[:, None])[:, 0]
        self.entropy[place] = entropy_of(logprobs, probs)
        self.lengths[who] += going
        stopped = (token[:, None] == self.stops).any(-1)  # `isin` of many sorts them, and waits for the device
        self.running[who] = going & ~stopped & (place[1] < end - 1)
        return token

    def _drawn(self, probs: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:
        return draw(self.sampling.nucleus.of(probs), self.uniform[place])

    def look(self) -> Tensor:
        """Which completions go on, bool [count]; those with a stop string end with its first token."""
        if self.sampling.ended:
            self._end_strings(self.sampling.ended)
        return self.running

    def _end_strings(self, ended: Callable[[list[int]], bool]) -> None:
        lengths = self.lengths.tolist()
        fresh = [i for i, (n, read) in enumerate(zip(lengths, self._read, strict=True)) if n > read]
        for i, row in zip(fresh, self.tokens[fresh].tolist(), strict=True):
            found = (n for n in range(self._read[i] + 1, lengths[i] + 1) if ended(row[:n]))
            self._read[i] = next(found, lengths[i])
            if ended(row[: self._read[i]]):
                self.lengths[i], self.running[i] = self._read[i], False

    def sampled(self, forwarded: int) -> Sampled:
        lengths, tokens, stops = self.lengths.tolist(), self.tokens.tolist(), set(self.sampling.stop_ids)
        tokens = [row[:n] for row, n in zip(tokens, lengths, strict=True)]
        ended = self.sampling.ended or (lambda ids: False)
        split = (
            [row[:n].clone() for row, n in zip(v.cpu(), lengths, strict=True)] for v in (self.logprobs, self.entropy)
        )
        return Sampled(tokens, *split, [ids[-1] not in stops and not ended(ids) for ids in tokens], forwarded)
