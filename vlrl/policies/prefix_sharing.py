"""Forward passes that share prompts: packing, prefixes."""

from __future__ import annotations

import copy
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from transformers.vision_utils import get_vision_window_index

from vlrl.performance.profiling import StepProfiler
from vlrl.policies.processor import ChatProcessor, Prompt
from vlrl.types import Decision, Evaluation, Observation, Sample, UserError, Video

# Rows of one prompt and all completions that share it, so that the prompt is forwarded once per group.
#
# A row is `prompt | completion 1 | completion 2 | ...`. Every completion sees the prompt and itself, never its
# neighbours, and its positions go on from the prompt's end as if it stood there alone: log-probabilities and gradients
# equal those of separate rows. A row with one completion is the ordinary causal sequence and needs no mask.


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
        return Packed(*(copied(v, device) if v is not None else None for v in vars(self).values()))


@dataclass(frozen=True, eq=False)
class RowLevels:
    """A tree of rows: those of each level follow rows of the level before (`behind`), and see what comes before these.

    `source` counts the hidden states of all levels, the first one's first; each row sees no mask but its own.
    """

    rows: tuple[Packed, ...]  # without sources and targets
    source: Tensor  # int64 [n]
    target: Tensor  # int64 [n]

    def to(self, device: torch.device) -> RowLevels:
        source, target = copied(self.source, device), copied(self.target, device)
        return RowLevels(tuple(level.to(device) for level in self.rows), source, target)


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, whose copy a GPU makes while the host goes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


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
        offset, visible = shape[0] * width + r * longest, mask[0 if alike else r]
        visible[:, : len(prompt.ids)] = True
        for completion in completions:
            stop = longest if alike else start + len(completion) - 1
            visible[start:stop, width + start : width + stop] = torch.ones(stop - start, stop - start).tril().bool()
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


def with_candidates(rows: Any, order: Sequence[int], decisions: Sequence[Decision]) -> Any:
    """Rows of replies in an order, whose targets [n] become [n, 1 + K] where the decisions name candidates."""
    beside = [decisions[b].inputs.candidates for b in order]
    if beside[0] is None:
        return rows
    target = torch.cat([rows.target[:, None], torch.cat(beside).to(rows.target.device)], 1)
    return replace(rows, target=target)


def spread(logprobs: Tensor, entropy: Tensor, order: Sequence[int], lengths: Sequence[int]) -> Evaluation:
    """Flat values [n] of replies in an order -> [B, T] with a mask; of tokens and candidates [n, 1 + K] both."""
    device, length = logprobs.device, torch.tensor(lengths)
    mask = (torch.arange(max(lengths)) < length[:, None]).to(device)
    of = torch.tensor(order)
    row = of.repeat_interleave(length[of])
    column = torch.cat([torch.arange(lengths[b]) for b in order])
    place, empty = (row.to(device), column.to(device)), logprobs.new_zeros(mask.shape)
    if logprobs.ndim == 1:
        return Evaluation(empty.index_put(place, logprobs), empty.index_put(place, entropy), mask)
    both = logprobs.new_zeros(*mask.shape, logprobs.shape[1]).index_put(place, logprobs)
    return Evaluation(both[..., 0], empty.index_put(place, entropy), mask, both[..., 1:])


def with_media(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those of the prompts, and of the ones that they go on from, that add media."""
    return [node for prompt in prompts for node in prompt.lineage if node.pixels is not None]


def media(prompts: Sequence[Prompt]) -> tuple[Tensor | None, Tensor | None]:
    """All prompts' pixels and grids in order, as the models take them."""
    return added_media(with_media(prompts))


def added_media(prompts: Sequence[Prompt]) -> tuple[Tensor | None, Tensor | None]:
    """As `media`, of the media alone that the prompts add to those before."""
    pictured = [p for p in prompts if p.pixels is not None]
    if not pictured:
        return None, None
    return torch.cat([p.pixels for p in pictured]), torch.cat([p.grid for p in pictured])


# The forward pass of a Hugging Face vision-language model in parts: the tower, the embeddings, the layers.
#
# Both Qwen families are driven through their own modules; only the glue between them is ours. So what the tower has
# made
# can be used again, keys and values keep their graph, and a token costs no mask building.

Layers = Sequence[tuple[Tensor, Tensor]]  # keys and values [R, key heads, L, D] of each layer


@dataclass(frozen=True, eq=False)
class MediaFeatures:
    """What the tower makes of media with n tokens altogether."""

    embeds: Tensor  # [n, H]
    deep: tuple[Tensor, ...]  # Qwen3-VL: [n, H] each, added behind the first layers

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.embeds, *self.deep))

    def to(self, device: torch.device) -> MediaFeatures:
        return MediaFeatures(self.embeds.to(device), tuple(part.to(device) for part in self.deep))

    def copy(self) -> MediaFeatures:
        return MediaFeatures(self.embeds.clone(), tuple(part.clone() for part in self.deep))

    def split(self, sizes: Sequence[int]) -> list[MediaFeatures]:
        parts = [part.split(sizes) for part in (self.embeds, *self.deep)]
        return [MediaFeatures(embeds, tuple(deep)) for embeds, *deep in zip(*parts, strict=True)]


def joined(parts: Sequence[MediaFeatures]) -> MediaFeatures | None:
    """Several media as one; None for none."""
    if not parts:
        return None
    return MediaFeatures(
        torch.cat([p.embeds for p in parts]), tuple(map(torch.cat, zip(*(p.deep for p in parts), strict=True)))
    )


def see(base: nn.Module, pixels: Tensor, grid: Tensor) -> MediaFeatures:
    """The tower. pixels: [patches, values]; grid: [media, 3]."""
    features = base.model.get_image_features(pixels, grid, **sorted_windows(base.model.visual, grid))
    return MediaFeatures(
        torch.cat(features.pooler_output), tuple(map(torch.cat, features.get("deepstack_features", ())))
    )


def sorted_windows(visual: nn.Module, grid: Tensor) -> dict[str, Tensor]:
    """Of a tower that sees in windows their order and borders: those of one frame that are as large stand together.

    Each run of equal windows is one product, so an image has four at most: whole windows, two edges, a corner. In
    reading order each of its rows of windows has two.
    """
    if "window_size" not in vars(visual):
        return {}
    merge, host = visual.spatial_merge_size, grid.cpu()
    index, borders = get_vision_window_index(
        host, spatial_merge_size=merge, window_size=visual.window_size, patch_size=visual.patch_size
    )
    lengths, windows = borders.diff(), (borders // merge**2).long()
    frames = (host[:, 1] * host[:, 2] // merge**2).repeat_interleave(host[:, 0]).cumsum(0)
    frame = torch.searchsorted(frames, windows[:-1], right=True)
    order = (frame * (int(lengths.max()) + 1) - lengths).argsort(stable=True)
    parts = index.split(windows.diff().tolist())
    index = torch.cat([parts[i] for i in order.tolist()])
    borders = torch.cat([borders[:1], lengths[order].cumsum(0)])
    return {"window_index": index.to(grid.device), "cu_window_seqlens": borders.to(torch.int32)}


class RecordingCache:
    """A cache that only remembers what goes through it. A checkpointed layer's second pass changes nothing."""

    def __init__(self):
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._layers.setdefault(layer, (keys, values))
        return keys, values

    @property
    def layers(self) -> Layers:
        return [self._layers[i] for i in range(len(self._layers))]


class After:
    """A cache of prompts, which stays as it is. behind: int64 [R], the prompt that each row follows and sees."""

    def __init__(self, layers: Layers, behind: Tensor):
        self._layers = layers
        self._behind = slice(None) if behind.tolist() == list(range(len(layers[0][0]))) else behind

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        before = (part[self._behind] for part in self._layers[layer])
        return tuple(torch.cat(parts, 2) for parts in zip(before, (keys, values), strict=True))


class Path(After):
    """As `After`, and remembers all that its rows see, for those that follow them."""

    def __init__(self, layers: Layers, behind: Tensor):
        super().__init__(layers, behind)
        self._whole = RecordingCache()

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._whole.update(*super().update(keys, values, layer), layer)

    @property
    def layers(self) -> Layers:
        return self._whole.layers


def embedded(base: nn.Module, packed: Packed, seen: MediaFeatures | None) -> tuple[Tensor, Tensor]:
    """Token embeddings [R, L, H], media in their places, and where these are [R, L]."""
    embeds, where = base.get_input_embeddings()(packed.ids), packed.types.bool()
    if seen is not None:
        embeds = embeds.masked_scatter(where[..., None], seen.embeds.to(embeds.dtype))
    return embeds, where


def hidden_states(base: nn.Module, packed: Packed, seen: MediaFeatures | None, cache: Any = None) -> Tensor:
    """The last hidden states [R, L, H] of packed rows, whose media the tower has seen or sees now."""
    if seen is None and packed.pixels is not None:
        seen = see(base, packed.pixels, packed.grid)
    embeds, where = embedded(base, packed, seen)
    return through(base, embeds, packed.positions, packed.mask, cache, where, seen.deep if seen else ())


def level_states(base: nn.Module, levels: RowLevels, seen: Sequence[MediaFeatures | None]) -> Tensor:
    """The last hidden states [n, H] of all levels, row by row; `seen` as of `hidden_states`, for each level."""
    cache, hidden = RecordingCache(), []
    for rows, media in zip(levels.rows, seen, strict=True):
        cache = Path(cache.layers, rows.behind) if hidden else cache
        hidden.append(hidden_states(base, rows, media, cache).flatten(0, 1))
    return torch.cat(hidden)


def plain_states(base: nn.Module, packed: Packed, seen: None = None) -> Tensor:
    """As `hidden_states`, by the model's own forward pass: for rows of one completion, nothing of which is reused."""
    return base.model(
        input_ids=packed.ids, position_ids=packed.positions, mm_token_type_ids=packed.types,
        pixel_values=packed.pixels, image_grid_thw=packed.grid, use_cache=False,
    ).last_hidden_state  # fmt: skip


def through(
    base: nn.Module, embeds: Tensor, positions: Tensor, mask: Any, cache: Any,
    where: Tensor | None = None, deep: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """The language model's layers. mask: as `vlrl.policies.fused_modules` takes it; cache: has `update`, or None."""
    language = base.model.language_model
    rotary, hidden = language.rotary_emb(embeds, positions), embeds
    for i, layer in enumerate(language.layers):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache, use_cache=False)
        if i < len(deep):
            hidden = hidden + torch.zeros_like(hidden).masked_scatter(where[..., None], deep[i].to(hidden.dtype))
    return language.norm(hidden)


PassKind = Literal["policy", "reference"]


class Passes:
    """Passes without gradient through a policy's weights: each process makes its own, while it has them whole."""

    in_parts = False  # also outside of updates

    def make[T](self, own: Callable[[], T], empty: Callable[[], None]) -> T:
        """A pass of this process's own, where others do not have to take part in it by an empty one."""
        return own()

    def run[T](self, kind: PassKind, forward: Callable[[], T]) -> T:
        """What a pass gives. kind: of which weights."""
        return forward()

    def join(self) -> None:
        """Called by all processes, where each has made the passes of its own episodes."""

    def check_whole(self, what: str) -> None:
        """UserError where something that needs whole weights cannot have them."""

    def freeze(self, scorer: nn.Module) -> nn.Module:
        """A copy of a scorer that stays as it is."""
        return copy.deepcopy(scorer).requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class Prefill:
    """Prompts forwarded once, with their graph where it is kept for the update that follows."""

    prompts: tuple[Prompt, ...]
    hidden: Tensor  # [R, P, hidden size], right-padded
    layers: Layers  # [R, key heads, P, D]

    def last(self) -> Tensor:
        """The hidden states [R, H] of each prompt's last token."""
        if self.hidden.shape[1] == 1:  # of a conversation that went on, all that is there
            return self.hidden[:, 0]
        ends = torch.tensor([len(prompt.ids) - 1 for prompt in self.prompts], device=self.hidden.device)
        return self.hidden[torch.arange(len(ends), device=ends.device), ends]

    def of(self, rows: Sequence[int]) -> Prefill:
        """Some of the prompts."""
        chosen = torch.tensor(rows, device=self.hidden.device)
        layers = [(keys[chosen], values[chosen]) for keys, values in self.layers]
        return Prefill(tuple(self.prompts[i] for i in rows), self.hidden[chosen], layers)


def prefilled(base: nn.Module, prompts: Sequence[Prompt], packed: Packed, seen: MediaFeatures | None) -> Prefill:
    """Forwards prompts, packed as rows without completions; under `torch.no_grad` or with a graph."""
    return Prefill(tuple(prompts), *recorded(base, packed, seen))


def recorded(base: nn.Module, packed: Packed, seen: MediaFeatures | None) -> tuple[Tensor, Layers]:
    """Hidden states [R, P, H], and every layer's keys and values."""
    cache = RecordingCache()
    return hidden_states(base, packed, seen, cache), cache.layers


# Prompts, and what a frozen tower makes of them, kept for when they come again.

CACHED = 2**32  # bytes of prompts that are kept
MET = 2**16  # prompts of which is remembered that they came
FEATURES = 2**30  # bytes of features that are kept, on the model's device
THREADS = 8  # that preprocess prompts, at most


class Prompts:
    """Observations preprocessed, each once while somebody holds it, or while it is among the recently used.

    Kept beyond its use is what comes for the second time: most runs see a prompt once, and its pixels are large.
    """

    def __init__(self, codec: ChatProcessor, work: StepProfiler, most: int):
        self.codec, self.work, self.most = codec, work, most
        self.held = 0  # bytes
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()
        self._used: WeakValueDictionary[bytes, Prompt] = WeakValueDictionary()
        self._met: OrderedDict[bytes, None] = OrderedDict()  # what came once
        self._ahead: dict[bytes, Prompt] = {}  # made in other threads, not yet asked for
        self._jobs: list[Future[None]] = []
        self._after: WeakValueDictionary[tuple[int, tuple[int, ...], bytes], Prompt] = WeakValueDictionary()

    def of(self, observation: Observation, key: str | None) -> Prompt:
        """The prompt; errors name the key, and what has none is never kept."""
        if key is None:
            self.work.add(processor_calls=1)
            return self.codec.encode(observation)
        self._end_jobs()
        content = digest(observation)  # not the key: two tasks may number their samples alike
        if content in self._kept:
            self._kept.move_to_end(content)
            return self._kept[content]
        if content in self._used:
            return self._used[content]
        try:
            prompt = self._used[content] = self._ahead.pop(content, None) or self.codec.encode(observation)
        except UserError as error:
            raise UserError(f"sample {key}: {error}") from None
        finally:
            self.work.add(processor_calls=1)
        if content in self._met:
            self._keep(content, prompt)
        self._met[content] = None
        while len(self._met) > MET:
            self._met.popitem(last=False)
        return prompt

    def prepare(self, samples: Sequence[Sample], positions: Sequence[int]) -> None:
        """Preprocesses in other threads what `of` is likely to be asked for next; nothing of it shows but its speed.

        What was prepared before and has not been asked for is dropped. Samples may be read or drawn when they are asked
        for, which is done there, too.
        """
        self._end_jobs()
        self._ahead.clear()
        self._jobs += [self._threads.submit(self._prepare_one, samples, i) for i in positions]

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "prompts")

    def _prepare_one(self, samples: Sequence[Sample], position: int) -> None:
        """An error is left to `of`, which names the sample."""
        observation = samples[position].prompt
        content = digest(observation)
        if not any(content in known for known in (self._kept, self._used, self._ahead)):
            self._ahead[content] = self.codec.encode(observation)

    def _end_jobs(self) -> None:
        if self._jobs:
            wait(self._jobs)
            self._jobs.clear()

    def after(self, before: Prompt, written: Sequence[int], observation: Observation) -> Prompt:
        """A conversation's next prompt, one for all that wrote and were shown the same while one of them lives."""
        name = (id(before), tuple(written), digest(observation))  # the next prompt holds the one before
        prompt = self._after.get(name)
        if prompt is None:
            self.work.add(processor_calls=1)
            prompt = self._after[name] = self.codec.append(before, written, observation)
        return prompt

    def _keep(self, content: bytes, made: Prompt) -> None:
        self._kept[content] = made
        self.held += made.nbytes
        while len(self._kept) > 1 and (len(self._kept) > self.most or self.held > CACHED):
            self.held -= self._kept.popitem(last=False)[1].nbytes

    def forget(self) -> None:
        self._end_jobs()
        for known in (self._kept, self._used, self._met, self._ahead, self._after):
            known.clear()
        self.held = 0


class TowerFeatures:
    """What a tower that does not train makes of prompts: it sees each once while the prompt lives and there is room."""

    def __init__(self, base: nn.Module, work: StepProfiler):
        self.base, self.work = base, work
        self._kept: WeakKeyDictionary[Prompt, MediaFeatures] = WeakKeyDictionary()

    def of(self, prompts: Sequence[Prompt]) -> MediaFeatures | None:
        """Features of all the prompts' media in order; None where there are no media, or the tower trains."""
        return self.of_added(with_media(prompts))

    def of_added(self, prompts: Sequence[Prompt]) -> MediaFeatures | None:
        """As `of`, of the media alone that the prompts add to those before."""
        pictured = [prompt for prompt in prompts if prompt.pixels is not None]
        if not pictured or any(p.requires_grad for p in self.base.model.visual.parameters()):
            return None
        new = [prompt for prompt in dict.fromkeys(pictured) if prompt not in self._kept]
        encoded = dict(zip(new, self._encode_media(new), strict=True)) if new else {}
        features = joined([encoded[prompt] if prompt in encoded else self._kept[prompt] for prompt in pictured])
        for prompt, value in encoded.items():
            self._keep(prompt, value)
        return features

    def forget(self) -> None:
        """Other weights see otherwise."""
        self._kept.clear()

    def _encode_media(self, prompts: Sequence[Prompt]) -> list[MediaFeatures]:
        pixels, grid = (copied(part, self.base.device) for part in added_media(prompts))
        self.work.add(tower_calls=1, patches=len(pixels))
        size = self.base.model.visual.spatial_merge_size**2
        return see(self.base, pixels, grid).split([len(prompt.pixels) // size for prompt in prompts])

    def _keep(self, prompt: Prompt, seen: MediaFeatures) -> None:
        held = sum(kept.nbytes for kept in self._kept.values())  # prompts may have gone, and theirs with them
        for oldest in list(self._kept):
            if held + seen.nbytes <= FEATURES:
                break
            held -= self._kept.pop(oldest).nbytes
        if held + seen.nbytes <= FEATURES:
            self._kept[prompt] = seen.copy()  # not a view that holds all that was seen with it


def digest(observation: Observation) -> bytes:
    """The same for observations that a model sees alike."""
    hashed = hashlib.blake2b(digest_size=16)
    hashed.update(repr([(m.role, len(m.content), m.tool_calls) for m in observation.messages]).encode())
    hashed.update(repr(observation.tools).encode())
    for part in observation.content:
        if isinstance(part, str):
            kind, held = part, b""
        elif isinstance(part, Video):
            kind, held = f"{part.times} {part.size}", part.frames.tobytes()
        else:
            kind, held = f"{part.mode} {part.size}", part.tobytes()
        hashed.update(f"{len(kind)} {kind}".encode())
        hashed.update(held)
    return hashed.digest()
