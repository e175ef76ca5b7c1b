"""A prompt forwarded once for all its completions, by a model's own forward pass and cache.

The cache of the prompt, whatever its layers keep (keys and values, a sliding window of them, states of linear attention
or of short convolutions), is forked: one copy of its rows for each completion. Prompts that are forwarded together have
the same length and equally many completions, so that nothing is padded before a completion and no mask is needed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from vlrl.policies.generation import LOOK, LOOK_ELSEWHERE, Writer, bare
from vlrl.policies.processor import Prompt, is_per_token


def parameters(model: nn.Module) -> set[str]:
    """What the model's forward takes by name."""
    return set(inspect.signature(model.forward).parameters)


def without_last(prompt: Prompt) -> Prompt:
    """The prompt but for its last token, which is forwarded with each completion."""
    length = len(prompt.ids)
    inputs = {n: v[:, :-1] if is_per_token(n, v, length) else v for n, v in prompt.inputs.items()}
    return replace(
        prompt, ids=prompt.ids[:-1], types=prompt.types[:-1], positions=prompt.positions[:, :-1], inputs=inputs
    )


def prefill(model: nn.Module, inputs: Mapping[str, Tensor], before: Cache | None = None) -> Cache:
    """The cache of R prompts of one length; with a graph where one is kept.

    Args:
        before: a cache of what comes before them, which grows.

    Raises:
        TypeError: the model's cache is none of transformers'.
    """
    options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in parameters(bare(model)) else {}
    options |= {} if before is None else {"past_key_values": before}
    cache = model(**inputs, use_cache=True, **options).past_key_values
    if not isinstance(cache, Cache):
        raise TypeError(f"its cache is a {type(cache).__name__}")
    return cache


@dataclass(frozen=True, eq=False)
class KeptCache:
    """What is kept of a conversation up to a prompt, without its last token: a cache of one row."""

    cache: Cache
    hidden: None = None  # no update goes through it

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for layer in self.cache.layers for value in _tensors(layer))


def _tensors(layer: Any) -> Iterator[Tensor]:
    for value in vars(layer).values():
        yield from (v for v in (value.values() if isinstance(value, dict) else (value,)) if isinstance(v, Tensor))


def copy_rows(cache: Cache, rows: Sequence[int]) -> Cache:
    """Some rows of a cache, which can grow apart from it."""
    made = join_rows([cache])
    device = next(v.device for layer in cache.layers for v in _tensors(layer))
    index: Any = torch.tensor(rows, device=device)  # transformers' annotation knows no plain tensor
    made.reorder_cache(index)
    return made


def join_rows(caches: Sequence[Cache]) -> Cache:
    """Rows of caches of one length below each other."""

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: join([value[key] for value in values]) for key in values[0]}
        has_rows = isinstance(values[0], Tensor) and values[0].ndim > 1
        return torch.cat(list(values)) if has_rows else values[0]

    made = copy.copy(caches[0])
    made.layers = [copy.copy(layer) for layer in made.layers]
    for layer, *same in zip(made.layers, *(cache.layers for cache in caches), strict=True):
        vars(layer).update({name: join([vars(each)[name] for each in same]) for name in vars(layer)})
    return made


def to_device(prompt: Prompt, device: torch.device) -> dict[str, Tensor]:
    """What the model's forward takes of a prompt alone."""
    inputs = {"input_ids": prompt.ids[None], **prompt.inputs}
    return {name: value.to(device) for name, value in inputs.items() if name != "attention_mask"}


def inputs_behind(prompt: Prompt, before: Prompt, axes: Mapping[str, int]) -> dict[str, Tensor]:
    """What the forward takes of a conversation behind an earlier prompt of it, from that one's last token on.

    Args:
        axes: along which each input grows with the number of images.
    """
    start, length = len(before.ids) - 1, len(prompt.ids)
    added = {"input_ids": prompt.ids[None, start:-1]}
    for name, value in prompt.inputs.items():
        if is_per_token(name, value, length):
            added[name] = value[:, start:-1]
            continue
        axis = axes.get(name, 0)
        known = before.inputs[name].shape[axis] if name in before.inputs else 0
        if value.shape[axis] > known:
            added[name] = value.narrow(axis, known, value.shape[axis] - known)
    added.pop("attention_mask", None)  # nothing is padded
    return added


def fork_cache(model: nn.Module, inputs: dict[str, Tensor], copies: int) -> Cache:
    """The cache of R prompts of one length, `copies` rows of each, prompt by prompt; with a graph where one is kept."""
    cache = prefill(model, inputs)
    index: Any = torch.arange(len(inputs["input_ids"]), device=inputs["input_ids"].device).repeat_interleave(copies)
    cache.reorder_cache(index)
    return cache


def follow(model: nn.Module, ids: Tensor, cache: Cache) -> Tensor:
    """Logits [n, T, V] of tokens [n, T], right-padded, behind a cache of n rows, which serves this once.

    A state of linear attention is written over in place, where a backward pass still needs it: here it is left.
    """
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            _leave(layer)
    return model(input_ids=ids, past_key_values=cache, use_cache=True).logits


def _leave(layer: Any) -> None:
    """Lets a layer's states be read and not written."""

    def conv(new: Tensor, state_idx: int = 0, **options) -> Tensor:
        return torch.cat([layer.conv_states[state_idx], new], -1)

    layer.update_conv_state = conv
    layer.update_recurrent_state = lambda new, state_idx=0, **options: new
    layer.record_past = True  # one token, too, goes the way of many, which calls the above


@torch.no_grad()
def forked_write(model: nn.Module, last: Tensor, cache: Cache, who: Tensor, writer: Writer) -> None:
    """Completions `who` [n] behind a cache of n rows, token by token.

    What has ended is looked at every few tokens, as a look waits for the device; ended ones stay as they are.

    Args:
        last: int64 [n], the last tokens of the prompts.
    """
    token, left, every = last, writer.sampling.max_tokens, LOOK.get(last.device.type, LOOK_ELSEWHERE)
    while bool(writer.look()[who].any()) and left:
        for _ in range(min(every, left)):
            logits = model(input_ids=token[:, None], past_key_values=cache, use_cache=True).logits
            token = writer.write(who, logits[:, -1])
        left -= min(every, left)


def as_rows(texts: Sequence[tuple[Prompt, Sequence[int]]], pad_id: int, device: torch.device) -> tuple[Tensor, ...]:
    """What follows the prompts without their last tokens: ids [n, T], and row, place and id of each target [m]."""
    longest = max(len(tokens) for _, tokens in texts)
    ids = torch.full((len(texts), longest), pad_id)
    row, place, target = [], [], []
    for r, (prompt, tokens) in enumerate(texts):
        ids[r, : len(tokens)] = torch.as_tensor([int(prompt.ids[-1]), *tokens[:-1]])
        row += [r] * len(tokens)
        place += range(len(tokens))
        target += tokens
    return tuple(part.to(device) for part in (ids, *map(torch.tensor, (row, place, target))))
