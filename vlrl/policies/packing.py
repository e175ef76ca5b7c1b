"""Rows of one prompt and all completions that share it, so that the prompt is forwarded once per group.

A row is `prompt | completion 1 | completion 2 | ...`. Every completion sees the prompt and itself, never its
neighbours, and its positions go on from the prompt's end as if it stood there alone: log-probabilities and gradients
equal those of separate rows. A row with one completion is the ordinary causal sequence and needs no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlrl.policies.codecs import Prompt
from vlrl.types import Evaluation


@dataclass(frozen=True, eq=False)
class Packed:
    """R rows of L tokens, right-padded, and where the n completion tokens are predicted."""

    ids: Tensor  # int64 [R, L]
    types: Tensor  # int32 [R, L]
    positions: Tensor  # int64 [3, R, L]
    mask: Tensor | None  # bool [R, 1, S, L], where each of the last S tokens may look; all else is plainly causal
    pixels: Tensor | None
    grid: Tensor | None
    source: Tensor  # int64 [n], flat index r * L + l of the hidden state that predicts each completion token
    target: Tensor  # int64 [n]
    behind: Tensor | None = None  # int64 [R], the prompt's row where prompts are forwarded apart

    def to(self, device: torch.device) -> Packed:
        return Packed(*(v.to(device) if v is not None else None for v in vars(self).values()))


def pack(rows: Sequence[tuple[Prompt, Sequence[Sequence[int]]]], pad_id: int) -> Packed:
    """Rows of (prompt, its completions' tokens) -> tensors. The n targets go row by row, completion by completion."""
    # The last token of a completion predicts nothing, so it is not forwarded.
    lengths = [len(prompt.ids) + sum(len(c) - 1 for c in completions) for prompt, completions in rows]
    longest = max(lengths)
    ids = torch.full((len(rows), longest), pad_id)
    types = torch.zeros((len(rows), longest), dtype=torch.int32)
    positions = torch.zeros((3, len(rows), longest), dtype=torch.int64)
    alone = all(len(completions) <= 1 for _, completions in rows)
    causal = min(len(prompt.ids) for prompt, _ in rows)  # the shortest prompt: up to here every row needs no mask
    mask = None if alone else torch.ones(longest, longest, dtype=torch.bool).tril()[causal:].repeat(len(rows), 1, 1)
    source, target = [], []
    for r, (prompt, completions) in enumerate(rows):
        end = len(prompt.ids)
        ids[r, :end], types[r, :end], positions[:, r, :end] = prompt.ids, prompt.types, prompt.positions
        first_position = int(prompt.positions.max()) + 1
        start = end
        for completion in completions:
            stop = start + len(completion) - 1
            ids[r, start:stop] = torch.as_tensor(completion[:-1])
            positions[:, r, start:stop] = first_position + torch.arange(stop - start)
            if mask is not None:
                mask[r, start - causal : stop - causal, end:start] = False  # not its neighbours
            source += [r * longest + end - 1, *range(r * longest + start, r * longest + stop)]
            target += completion
            start = stop
    pixels, grid = media([prompt for prompt, _ in rows])
    return Packed(
        ids, types, positions, None if mask is None else mask[:, None], pixels, grid,
        torch.tensor(source), torch.tensor(target),
    )  # fmt: skip


def pack_replies(
    rows: Sequence[tuple[Prompt, Sequence[Sequence[int]]]], behind: Sequence[int], pad_id: int, shape: tuple[int, int]
) -> Packed:
    """The completions alone, for prompts that are forwarded apart from them.

    `mask` is [R, 1, S, P + S] over the prompt's cached keys and the S reply tokens; where all rows see alike it is one
    row, expanded. `source` counts the hidden states of all prompts first, then those of the replies.

    Args:
        rows: several of them may stand behind one prompt, which saves their tokens the sight of each other.
        behind: the prompt's row of each.
        shape: of the prompts, right-padded: their number and P.
    """
    width, longest = shape[1], max(1, *(sum(len(c) - 1 for c in completions) for _, completions in rows))
    ids = torch.full((len(rows), longest), pad_id)
    positions = torch.zeros((3, len(rows), longest), dtype=torch.int64)
    alike = len({len(prompt.ids) for prompt, _ in rows}) == 1 and all(len(completions) == 1 for _, completions in rows)
    mask = torch.zeros((1 if alike else len(rows), longest, width + longest), dtype=torch.bool)
    mask[:, :, 0] = True  # padding has to look somewhere
    source, target = [], []
    for r, (prompt, completions) in enumerate(rows):
        first_position, start = int(prompt.positions.max()) + 1, 0
        offset, seen = shape[0] * width + r * longest, mask[0 if alike else r]
        seen[:, : len(prompt.ids)] = True
        for completion in completions:
            stop = longest if alike else start + len(completion) - 1
            seen[start:stop, width + start : width + stop] = torch.ones(stop - start, stop - start).tril().bool()
            stop = start + len(completion) - 1
            ids[r, start:stop] = torch.as_tensor(completion[:-1])
            positions[:, r, start:stop] = first_position + torch.arange(stop - start)
            source += [behind[r] * width + len(prompt.ids) - 1, *range(offset + start, offset + stop)]
            target += completion
            start = stop
    nothing, mask = torch.zeros_like(ids, dtype=torch.int32), mask[:, None].expand(len(rows), -1, -1, -1)
    source, target, of = (torch.tensor(values) for values in (source, target, behind))
    return Packed(ids, nothing, positions, mask, None, None, source, target, of)


def long(rows: Sequence[tuple[Prompt, Sequence[Sequence[int]]]]) -> bool:
    """Whether completions of a row are so long that looking past each other costs more than copies of the prompt."""
    replies = sum(len(completion) for _, completions in rows for completion in completions)
    return replies > sum(len(prompt.ids) for prompt, _ in rows) and any(len(completions) > 1 for _, completions in rows)


def alone(rows: Sequence[tuple[Prompt, Sequence[Sequence[int]]]]) -> tuple[list, list[int]]:
    """Each completion as a row of its own, and its prompt's number."""
    behind = [r for r, (_, completions) in enumerate(rows) for _ in completions]
    return [(prompt, [completion]) for prompt, completions in rows for completion in completions], behind


def grouped(
    replies: Sequence[tuple[Prompt, tuple[int, ...]]], shared: bool
) -> tuple[list[tuple[Prompt, list[tuple[int, ...]]]], list[int]]:
    """Replies (prompt, tokens) -> rows as `pack` takes them, one for each prompt if shared; whose the texts are."""
    rows: dict[int, tuple[Prompt, list[int]]] = {}
    for b, (prompt, _) in enumerate(replies):
        rows.setdefault(id(prompt) if shared else b, (prompt, []))[1].append(b)
    texts = [(prompt, [replies[b][1] for b in members]) for prompt, members in rows.values()]
    return texts, [b for _, members in rows.values() for b in members]


def spread(logprobs: Tensor, entropy: Tensor, order: Sequence[int], lengths: Sequence[int]) -> Evaluation:
    """Flat values [n] of replies in an order -> [B, T] with a mask."""
    device, length = logprobs.device, torch.tensor(lengths)
    mask = (torch.arange(max(lengths)) < length[:, None]).to(device)
    of = torch.tensor(order)
    row = of.repeat_interleave(length[of])
    column = torch.cat([torch.arange(lengths[b]) for b in order])
    place, empty = (row.to(device), column.to(device)), logprobs.new_zeros(mask.shape)
    return Evaluation(empty.index_put(place, logprobs), empty.index_put(place, entropy), mask)


def media(prompts: Sequence[Prompt]) -> tuple[Tensor | None, Tensor | None]:
    """All prompts' pixels and grids in order, as the models take them."""
    shown = [p for p in prompts if p.pixels is not None]
    if not shown:
        return None, None
    return torch.cat([p.pixels for p in shown]), torch.cat([p.grid for p in shown])
