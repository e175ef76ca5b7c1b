"""Completions token by token, from one prefill per prompt, with the log-probabilities and entropies that they yield.

A row is a prompt with its completions. Its keys and values are kept once, those of each completion beside them, in
buffers that grow by doubling. Rows whose completions have all ended leave the batch, and waiting ones enter it. Between
two looks at what has ended nothing waits for the device, and with graphs a token's operations are replayed.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from vlrl.policies.forward import Prefill
from vlrl.policies.rows import Rows, begun
from vlrl.policies.token import Layers
from vlrl.policies.writer import Sampled, Sampling, Writer

LOOK = {"cpu": 1}  # tokens between two looks at what has ended; elsewhere 16, as a look waits for the device
SHRINK = 0.75  # a batch is made anew when it would have at most this share of its places
BLOCK = 32  # tokens that a completion's buffer starts with; it doubles when it is full
# A record serves until the batch is made anew or its buffers are: so both come less often, and it costs some tokens.
RECORDED_SHRINK, RECORDED_BLOCK, WORTH = 0.5, 256, 16


def write(
    base: nn.Module, prefill: Prefill, counts: Sequence[int], sampling: Sampling, drawn: Tensor | None
) -> Sampled:
    """`counts[i]` completions of the prefill's prompt i, prompt by prompt.

    Args:
        drawn: a number in [0, 1) for each token that may be written, float32 [completions, max_tokens]: what is sampled
            hangs on these alone. None where nothing is sampled.
    """
    writer = Writer(sum(counts), sampling, drawn, base.device)
    # half of a small operation's cost is autograd's, even where it is off
    with torch.inference_mode(), sampling.graphs.rollout() if sampling.graphs else nullcontext():
        forwarded = _Batch(base, prefill, counts, writer).run()
    return writer.sampled(forwarded)


class _Batch:
    """The rows under way, and the prompts that wait for a place."""

    def __init__(self, base: nn.Module, prefill: Prefill, counts: Sequence[int], writer: Writer):
        self.base, self.prefill, self.writer, self.sampling = base, prefill, writer, writer.sampling
        self.graphs = self.sampling.graphs if self.sampling.graphs and not self.sampling.graphs.off else None
        self.every = LOOK.get(base.device.type, 16)
        self.numbers = torch.arange(sum(counts)).split(list(counts))
        self.waiting = deque(i for i, count in enumerate(counts) if count)
        last = max(int(prompt.positions.max()) for prompt in prefill.prompts) + self.sampling.max_tokens
        self.layers = Layers(base, last + 1, prefill.hidden)
        self.rows: Rows | None = None

    def run(self) -> int:
        """Fills the writer; how many tokens went through the layers one at a time."""
        forwarded = 0
        while self.rows is not None or self.waiting:
            if self.rows is not None:
                self.rows = self.without_ended(self.rows)
            if self.waiting:
                self.enter()
            if self.rows is not None:
                forwarded += self.advance(self.rows)
        return forwarded

    def choose(self, who: Tensor, hidden: Tensor) -> Tensor:
        return self.writer.write(who, self.base.lm_head(hidden))

    def advance(self, rows: Rows) -> int:
        """The tokens up to the next look at what has ended; how many were forwarded."""
        rows.grow()
        most = min(self.sampling.max_tokens - 1, rows.room) - rows.age
        step, steps = functools.partial(rows.step, self.layers, self.choose), min(self.every, most)
        if self.graphs and rows.age == 0:
            steps = 1  # under autocast it converts the weights, to lie where memory is not a record's
        elif self.graphs and rows.replay is None and most >= WORTH:
            rows.fixed = True  # as it is to be recorded
            state = (rows.token, rows.written, *self.writer.state)
            rows.replay = self.graphs.record(step, state, self.layers.obstacle)
            rows.fixed = rows.replay is not None
        for _ in range(steps):
            (rows.replay or step)()
            rows.age += 1
        return steps * rows.who.numel()

    def enter(self) -> None:
        """As many of the waiting prompts as there are slots for, and one at least."""
        busy = 0 if self.rows is None else int((self.rows.who >= 0).sum())
        chosen: list[int] = []
        while self.waiting:
            more = len(self.numbers[self.waiting[0]])
            if busy and self.sampling.slots and busy + more > self.sampling.slots:
                break
            chosen.append(self.waiting.popleft())
            busy += more
        if not chosen:
            return
        room = min(RECORDED_BLOCK if self.graphs else BLOCK, self.sampling.max_tokens)
        new = self.without_ended(begun(self.prefill, self.numbers, chosen, room, self.choose))
        if new is not None:  # a first token may end them all
            self.rows = new if self.rows is None else self.rows.joined(new)

    def without_ended(self, rows: Rows) -> Rows | None:
        """The rows without completions that have ended, where that is worth a copy. Waits for the device."""
        alive = self.writer.look()[rows.who] & (rows.who >= 0)
        left, places = alive.any(1).nonzero()[:, 0], int(alive.sum(1).max())
        if places == 0:
            return None
        share = RECORDED_SHRINK if self.graphs and not self.waiting else SHRINK
        full = rows.age + 1 == self.sampling.max_tokens  # there is no position for what the oldest would write
        if not full and len(left) * places > share * alive.numel():
            return rows
        kept = alive[left].int().argsort(dim=1, descending=True, stable=True)[:, :places]
        return rows.take(left, kept)
