"""Conversations as sequences: what is forwarded of several turns, once for decoding and once for training.

A conversation's prompts form a tree: each begins with the tokens of the one before and of what was written then, and
the episodes of a group share its root, or more. Training forwards what is common once, level by level of the tree;
decoding keeps the keys and values of a prompt and forwards only what a turn adds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vlrl.policies.prefix_sharing import (
    Layers,
    MediaFeatures,
    Packed,
    Path,
    Prefill,
    RowLevels,
    added_media,
    hidden_states,
)
from vlrl.policies.processor import Prompt, going_on
from vlrl.types import Message, Observation, Turn

KEPT = 2**32  # bytes of keys and values that are kept from one turn to the next, on the model's device


def continues(before: Sequence[Turn], observation: Observation) -> bool:
    """Whether an observation goes on with a conversation."""
    return bool(before and observation.messages and not observation.restart)


def join_prompt(before: Sequence[Turn], observation: Observation) -> Observation:
    """What a policy that kept nothing is to be shown: the conversation so far, with its own replies, as one prompt."""
    if not continues(before, observation):
        return observation
    start = max(i for i, turn in enumerate(before) if i == 0 or turn.observation.restart)
    messages: list[Message] = []
    for turn in before[start:]:
        messages += turn.observation.messages or (Message("user", turn.observation.content),)
        messages.append(Message("assistant", (str(turn.decision.action),)))
    return Observation.from_messages([*messages, *observation.messages], before[start].observation.tools)


# One training sequence for each episode.


@dataclass(frozen=True)
class BranchReply:
    """A completion inside a branch."""

    number: int  # of the decision
    start: int  # of its first token in the whole sequence
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ConversationBranch:
    """One conversation as far as it went: its last prompt and completion, and all completions inside."""

    leaf: Prompt
    tokens: tuple[int, ...]  # the last completion
    replies: tuple[BranchReply, ...]


def find_branches(texts: Sequence[tuple[Prompt, tuple[int, ...]]]) -> list[ConversationBranch]:
    """Decisions (prompt, completion) -> as few sequences as hold them all, each decision in one of them."""
    children: dict[int, dict[int, Prompt]] = {}  # of a prompt -> the prompts that follow it
    for prompt, _ in texts:
        for node in prompt.lineage[1:]:
            children.setdefault(id(node.parent), {})[id(node)] = node
    inside: dict[int, list[BranchReply]] = {}  # a prompt -> the completions that it goes on from
    ends: list[tuple[Prompt, BranchReply]] = []
    for number, (prompt, tokens) in enumerate(texts):
        reply = BranchReply(number, len(prompt.ids), tuple(tokens))
        follower = next((c for c in children.get(id(prompt), {}).values() if _follows(c, reply)), None)
        if follower is None:
            ends.append((prompt, reply))
        else:
            inside.setdefault(id(follower), []).append(reply)
    branches = []
    for prompt, last in ends:
        replies = [reply for node in prompt.lineage for reply in inside.pop(id(node), ())]
        branches.append(ConversationBranch(prompt, last.tokens, (*replies, last)))
    return branches


def _follows(prompt: Prompt, reply: BranchReply) -> bool:
    return tuple(prompt.ids[reply.start : reply.start + len(reply.tokens)].tolist()) == reply.tokens


@dataclass(frozen=True, eq=False)
class Segment:
    """What several conversations have in common from one branching point to the next, or the rest of one."""

    whole: Prompt  # a conversation up to the segment's end
    start: int  # of its first token in the whole
    parent: Segment | None  # that it follows, of the level before
    row: int  # of its level
    added: tuple[Prompt, ...]  # the prompts that end in it, and whose media it holds
    replies: list[BranchReply]  # whose tokens it holds

    @property
    def size(self) -> int:
        return len(self.whole.ids) - self.start


def make_levels(branches: Sequence[ConversationBranch], shared: bool = True) -> list[list[Segment]]:
    """Conversations as a tree: each level's segments follow one of the level before, and what is common is there once.

    Args:
        shared: False: each conversation is one segment, of a single level.
    """
    following: dict[Prompt, set[Prompt | int]] = {}
    for number, branch in enumerate(branches):
        line = branch.leaf.lineage
        for node, after in zip(line, (*line[1:], number), strict=True):
            following.setdefault(node, set()).add(after)
    levels: list[dict[Prompt | int, Segment]] = []
    for number, branch in enumerate(branches):
        line, replies, parent = branch.leaf.lineage, list(branch.replies), None
        ends: list[Prompt | int] = [node for node in line if shared and len(following[node]) > 1]
        for depth, end in enumerate([*ends, number]):
            # the last token of a completion predicts nothing, so it is not forwarded
            whole = end if isinstance(end, Prompt) else going_on(branch.leaf, branch.tokens[:-1])
            start, size = len(parent.whole.ids) if parent else 0, len(whole.ids)
            if depth == len(levels):
                levels.append({})
            if end not in levels[depth]:
                added = tuple(node for node in line if start < len(node.ids) <= size)
                levels[depth][end] = Segment(whole, start, parent, len(levels[depth]), added, [])
            parent = levels[depth][end]
            parent.replies.extend(r for r in replies if start <= r.start and (r.start < size or end == number))
    return [list(level.values()) for level in levels]


def order_of(levels: Sequence[Sequence[Segment]]) -> list[int]:
    """The decisions in the order in which the segments hold them."""
    return [reply.number for level in levels for segment in level for reply in segment.replies]


def pack_levels(levels: Sequence[Sequence[Segment]], pad_id: int) -> RowLevels:
    """Segments as rows of each level. The n targets go segment by segment."""
    rows, sizes, offsets, known, offset = [], [], [], None, 0
    for level in levels:
        starts = [segment.start for segment in level]
        ids, types, positions = pad_suffixes([segment.whole for segment in level], starts, pad_id)
        behind = torch.tensor([segment.parent.row if segment.parent else 0 for segment in level])
        own = torch.arange(ids.shape[1]) < torch.tensor([segment.size for segment in level])[:, None]
        before = own[:, :0] if known is None else known[behind]
        mask = None if known is None else causal_behind(before, ids.shape[1])
        known = torch.cat([before, own], 1)
        pixels, grid = added_media([node for segment in level for node in segment.added])
        nothing = torch.zeros(0, dtype=torch.int64)
        rows.append(Packed(ids, types, positions, mask, pixels, grid, nothing, nothing, behind))
        offsets.append(offset)
        sizes.append(ids.shape[1])
        offset += ids.numel()

    def index(segment: Segment, depth: int, place: int) -> int:
        """Where the hidden state of a conversation's token lies among all."""
        if place < segment.start:
            return index(segment.parent, depth - 1, place)
        return offsets[depth] + segment.row * sizes[depth] + place - segment.start

    source, target = [], []
    for depth, level in enumerate(levels):
        for segment in level:
            for reply in segment.replies:
                source += [index(segment, depth, reply.start - 1 + i) for i in range(len(reply.tokens))]
                target += reply.tokens
    return RowLevels(tuple(rows), torch.tensor(source), torch.tensor(target))


def causal_behind(known: Tensor, length: int) -> Tensor:
    """bool [R, 1, length, W + length]: rows that see `known` [R, W] of what comes before, and are causal."""
    causal, rows = torch.ones(length, length, dtype=torch.bool).tril(), len(known)
    if bool((known == known[:1]).all()):
        known = known[:1]  # one mask for all rows
    mask = torch.cat([known[:, None].expand(-1, length, -1), causal.expand(len(known), -1, -1)], -1)
    return mask[:, None].expand(rows, -1, -1, -1)


def pad_suffixes(prompts: Sequence[Prompt], heads: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """What follows the first `heads[r]` tokens of each prompt, right-padded: ids, types [R, S], positions [3, R, S]."""
    longest = max(1, *(len(prompt.ids) - head for prompt, head in zip(prompts, heads, strict=True)))
    ids = torch.full((len(prompts), longest), pad_id)
    types = torch.zeros((len(prompts), longest), dtype=torch.int32)
    positions = torch.zeros((3, len(prompts), longest), dtype=torch.int64)
    for r, (prompt, head) in enumerate(zip(prompts, heads, strict=True)):
        end = len(prompt.ids) - head
        ids[r, :end], types[r, :end], positions[:, r, :end] = (
            prompt.ids[head:], prompt.types[head:], prompt.positions[:, head:]
        )  # fmt: skip
    return ids, types, positions


# Decoding goes on from what is kept.


@dataclass(frozen=True, eq=False)
class Kept:
    """What a prompt adds to the one that it goes on from: n tokens."""

    layers: Layers  # keys and values [key heads, n, D] of each layer
    last: Tensor  # [H], the last token's hidden state
    hidden: Tensor | None = None  # [n, H] with its graph, as the layers', where the update is to go through it

    @property
    def nbytes(self) -> int:
        return _nbytes(self.layers)


class Histories:
    """Keys and values of prompts that conversations may go on from, while the weights stay as they are.

    Each prompt's are kept once, however many go on from it.
    """

    def __init__(self, base: nn.Module):
        self.base, self.held = base, 0
        self._kept: OrderedDict[Prompt, Kept] = OrderedDict()
        self._weights: int | None = None

    def of(self, prompts: Sequence[Prompt], graph: bool = False) -> list[list[Kept]]:
        """Of each prompt's lineage, from its root on, as much as is kept; nothing if the weights have changed since.

        Args:
            graph: what is kept without its graph does not count.
        """
        if self._kept and self._weights != self._fingerprint():
            self.forget()
        return [self._of(prompt, graph) for prompt in prompts]

    def _of(self, prompt: Prompt, graph: bool) -> list[Kept]:
        branches = []
        for node in prompt.lineage:
            if node not in self._kept or (graph and self._kept[node].hidden is None):
                break
            self._kept.move_to_end(node)
            branches.append(self._kept[node])
        return branches

    def with_graph(self) -> dict[Prompt, Kept]:
        """What an update may go through."""
        return {prompt: part for prompt, part in self._kept.items() if part.hidden is not None}

    def keep(self, prompt: Prompt, part: Kept) -> None:
        """Keeps a prompt that may be gone on from; the least recently used make room."""
        self._weights = self._fingerprint() if self._weights is None else self._weights
        before = self._kept.get(prompt)
        if prompt.is_conversation and (before is None or (before.hidden is None and part.hidden is not None)):
            self._kept[prompt] = part
            self.held += part.nbytes - (before.nbytes if before else 0)
        while self.held > KEPT and self._kept:
            self.held -= self._kept.popitem(last=False)[1].nbytes

    def forget(self) -> None:
        self._kept.clear()
        self.held, self._weights = 0, None

    def _fingerprint(self) -> int:
        """Another one once a weight is written to or replaced."""
        return hash(tuple((p.data_ptr(), p._version) for p in self.base.parameters()))


def _nbytes(layers: Layers) -> int:
    return sum(part.nbytes for pair in layers for part in pair)


def prefill_behind(
    base: nn.Module,
    prompts: Sequence[Prompt],
    before: Sequence[Sequence[Kept]],
    pad_id: int,
    seen: MediaFeatures | None,
) -> Prefill:
    """Forwards what follows the parts of prompts that are kept. `layers` and `hidden` are of that alone.

    Args:
        seen: what the tower has made of the media that they add; None: there are none, or it sees them now.
    """
    heads = [len(prompt.lineage[len(parts) - 1].ids) for prompt, parts in zip(prompts, before, strict=True)]
    ids, types, positions = pad_suffixes(prompts, heads, pad_id)
    known, nothing = joined_layers(before), torch.zeros(0, dtype=torch.int64)
    mask = causal_behind(torch.arange(max(heads)) < torch.tensor(heads)[:, None], ids.shape[1])
    packed = Packed(ids, types, positions, mask, *added_media(unknown(prompts, before)), nothing, nothing)
    cache = Path(known, torch.arange(len(prompts)))
    hidden = hidden_states(base, packed.to(base.device), seen, cache)
    added = [tuple(part[:, :, max(heads) :] for part in pair) for pair in cache.layers]
    return Prefill(tuple(prompts), hidden, added)


def unknown(prompts: Sequence[Prompt], before: Sequence[Sequence[Kept]]) -> list[Prompt]:
    """The prompts, and of those that they go on from what is not kept."""
    return [node for prompt, parts in zip(prompts, before, strict=True) for node in prompt.lineage[len(parts) :]]


def split_prefill(made: Prefill, row: int, known: int, graph: bool = False) -> dict[Prompt, Kept]:
    """A row of a prefill, whose first `known` prompts are not in it, by what each prompt adds."""
    line, rows_of = made.prompts[row].lineage, {}
    first = start = len(line[known - 1].ids) if known else 0
    for node in line[known:]:
        end = len(node.ids)
        layers = [tuple(part[row, :, start - first : end - first] for part in pair) for pair in made.layers]
        hidden = made.hidden[row, start - first : end - first]
        if not graph:  # not views that hold all that was forwarded with them
            layers = [tuple(part.clone() for part in pair) for pair in layers]
        rows_of[node], start = Kept(layers, hidden[-1].detach().clone(), hidden if graph else None), end
    return rows_of


def joined_layers(rows: Sequence[Sequence[Kept]]) -> Layers:
    """Keys and values [R, key heads, P, D] of prompts in their parts, right-padded."""
    total = max(sum(part.layers[0][0].shape[1] for part in parts) for parts in rows)

    def gather(layer: int, which: int) -> Tensor:
        whole = [torch.cat([part.layers[layer][which] for part in parts], 1) for parts in rows]
        return torch.stack([pad(row, (0, 0, 0, total - row.shape[1])) for row in whole])

    return [(gather(layer, 0), gather(layer, 1)) for layer in range(len(rows[0][0].layers))]


# Training goes on from what decoding kept, where that was forwarded with its graph.


def serves(known: Mapping[Prompt, Kept], prompts: Sequence[Prompt], worth: float) -> bool:
    """Whether prompts were all forwarded with their graph, and are enough of what was.

    Args:
        worth: the least share of the kept tokens: the backward pass goes through all of them.
    """
    nodes = {node for prompt in prompts for node in prompt.lineage}
    if not nodes or not nodes <= known.keys():
        return False
    return sum(len(known[node].hidden) for node in nodes) >= worth * sum(len(part.hidden) for part in known.values())


def pack_ends(
    branches: Sequence[ConversationBranch], known: Mapping[Prompt, Kept], pad_id: int
) -> tuple[Packed, Prefill]:
    """The last completion of each conversation, and the prompts before it, which were forwarded with their graph.

    `source` counts the hidden states of all prompts' own tokens first, then those of the completions, row by row.
    """
    nodes = list(dict.fromkeys(node for branch in branches for node in branch.leaf.lineage))
    hidden = torch.cat([known[node].hidden for node in nodes])
    offsets = dict(zip(nodes, accumulate((len(known[node].hidden) for node in nodes), initial=0), strict=False))
    leaves = {leaf: row for row, leaf in enumerate(dict.fromkeys(branch.leaf for branch in branches))}
    layers = joined_layers([[known[node] for node in leaf.lineage] for leaf in leaves])
    heads = [len(branch.leaf.ids) for branch in branches]
    wholes = [going_on(branch.leaf, branch.tokens[:-1]) for branch in branches]
    ids, types, positions = pad_suffixes(wholes, heads, pad_id)
    mask = causal_behind(torch.arange(layers[0][0].shape[2]) < torch.tensor(heads)[:, None], ids.shape[1])
    source, target = [], []
    for row, branch in enumerate(branches):
        places: list[int] = []  # of the conversation's tokens among all hidden states
        for node in branch.leaf.lineage:
            places += range(offsets[node], offsets[node] + len(known[node].hidden))
        places += range(len(hidden) + row * ids.shape[1], len(hidden) + (row + 1) * ids.shape[1])
        for reply in branch.replies:
            source += places[reply.start - 1 : reply.start - 1 + len(reply.tokens)]
            target += reply.tokens
    behind = torch.tensor([leaves[branch.leaf] for branch in branches])
    packed = Packed(ids, types, positions, mask, None, None, torch.tensor(source), torch.tensor(target), behind)
    return packed, Prefill(tuple(leaves), hidden[None], layers)
