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


def pack_replies(rows: Sequence[tuple[Prompt, Sequence[Sequence[int]]]], pad_id: int, width: int) -> Packed:
    """The completions alone, for rows whose prompts have been forwarded already, right-padded to `width` tokens.

    `mask` is [R, 1, S, width + S] over the prompts' cached keys and the S reply tokens; `source` counts columns of the
    prompt's hidden states first: r * (width + S) + column.
    """
    lengths = [sum(len(c) - 1 for c in completions) for _, completions in rows]
    longest = max(1, *lengths)
    ids = torch.full((len(rows), longest), pad_id)
    positions = torch.zeros((3, len(rows), longest), dtype=torch.int64)
    mask = torch.zeros((len(rows), longest, width + longest), dtype=torch.bool)
    mask[:, :, 0] = True  # padding has to look somewhere
    source, target = [], []
    for r, (prompt, completions) in enumerate(rows):
        first_position, start, offset = int(prompt.positions.max()) + 1, 0, r * (width + longest)
        mask[r, :, : len(prompt.ids)] = True
        for completion in completions:
            stop = start + len(completion) - 1
            ids[r, start:stop] = torch.as_tensor(completion[:-1])
            positions[:, r, start:stop] = first_position + torch.arange(stop - start)
            mask[r, start:stop, width + start : width + stop] = torch.ones(stop - start, stop - start).tril().bool()
            source += [offset + len(prompt.ids) - 1, *range(offset + width + start, offset + width + stop)]
            target += completion
            start = stop
    nothing = torch.zeros_like(ids, dtype=torch.int32)
    return Packed(ids, nothing, positions, mask[:, None], None, None, torch.tensor(source), torch.tensor(target))


def media(prompts: Sequence[Prompt]) -> tuple[Tensor | None, Tensor | None]:
    """All prompts' pixels and grids in order, as the models take them."""
    shown = [p for p in prompts if p.pixels is not None]
    if not shown:
        return None, None
    return torch.cat([p.pixels for p in shown]), torch.cat([p.grid for p in shown])
