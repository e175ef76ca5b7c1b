"""Token by token sampling from one prefill per prompt, with the log-probabilities and entropies that it yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlrl.policies.codecs import Prompt
from vlrl.policies.packing import pack


@dataclass(frozen=True, eq=False)
class Prefill:
    """Prompts forwarded once, with their graph, for the update that follows: hidden states and the cache's layers."""

    prompts: tuple[Prompt, ...]
    hidden: Tensor  # [R, P, hidden size], right-padded
    layers: tuple[tuple[Tensor, Tensor], ...]  # keys and values [R, key heads, P, D]


@dataclass(frozen=True)
class Sampled:
    """Completions in the order asked for. Each with its tokens (stop token included), and [T] tensors on the CPU."""

    tokens: list[list[int]]
    logprobs: list[Tensor]
    entropy: list[Tensor]
    cut: list[bool]
    prefill: Prefill | None


def law(logits: Tensor, temperature: float, banned: Tensor) -> Tensor:
    """Log-probabilities [..., V] in float32 of the law that samples: banned tokens out, then temperature."""
    logits = logits.float().index_fill(-1, banned, float("-inf"))
    return (logits if temperature in (0.0, 1.0) else logits / temperature).log_softmax(-1)


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy [...] in nats of log-probabilities [..., V] that may hold -inf."""
    return -(logprobs.exp() * logprobs.clamp(min=-1e9)).sum(-1)


@torch.no_grad()
def sample(
    model,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    *,
    max_tokens: int,
    temperature: float,
    banned_ids: Sequence[int],
    stop_ids: Sequence[int],
    pad_id: int,
    generator: torch.Generator | None,
    keep: bool = False,
) -> Sampled:
    """`counts[i]` completions of prompt i, prompt by prompt. Temperature 0 is greedy.

    Each prompt is encoded and prefilled once, and its keys and values are kept once, whatever its count: a row of the
    cache is `prompt | first token of each of its completions | second token of each | ...`. With `keep` the prompts are
    forwarded with gradient and returned, so that an update under the same weights does not forward them again.
    """
    device = model.device
    packed = pack([(prompt, []) for prompt in prompts], pad_id).to(device)
    with torch.set_grad_enabled(keep):
        out = model.model(
            input_ids=packed.ids, position_ids=packed.positions, mm_token_type_ids=packed.types,
            pixel_values=packed.pixels, image_grid_thw=packed.grid, use_cache=True,
        )  # fmt: skip
    cache, width = out.past_key_values, max(counts)
    layers = tuple((layer.keys, layer.values) for layer in cache.layers)
    prefill = Prefill(tuple(prompts), out.last_hidden_state, layers) if keep else None
    row = torch.arange(len(prompts)).repeat_interleave(torch.tensor(counts)).to(device)  # of each completion
    column = torch.cat([torch.arange(n) for n in counts]).to(device)
    lengths = torch.tensor([len(p.ids) for p in prompts], device=device)
    last = out.last_hidden_state[row, lengths[row] - 1]
    position = torch.tensor([int(p.positions.max()) + 1 for p in prompts], device=device)[:, None]
    seen = _visible(lengths, packed.ids.shape[1], width)
    own = torch.eye(width, dtype=torch.bool, device=device).expand(len(prompts), 1, -1, -1)
    banned, stops = torch.tensor(banned_ids, device=device), torch.tensor(stop_ids, device=device)

    running = torch.ones(len(last), dtype=torch.bool, device=device)
    columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # token, log-probability, entropy, still running
    for step in range(max_tokens):
        logprobs = law(model.lm_head(last), temperature, banned)
        greedy = temperature == 0.0
        token = logprobs.argmax(-1) if greedy else torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        chosen = logprobs.gather(-1, token[:, None])[:, 0]
        columns.append((token, chosen, entropy_of(logprobs), running))
        running = running & ~torch.isin(token, stops)
        if step + 1 == max_tokens or not bool(running.any()):
            break
        ids = torch.full((len(prompts), width), pad_id, device=device).index_put((row, column), token)
        seen = None if seen is None else torch.cat([seen, own], -1)
        out = model.model.language_model(
            inputs_embeds=model.get_input_embeddings()(ids), position_ids=(position + step).expand(3, -1, width),
            attention_mask=seen, past_key_values=cache, use_cache=True,
        )  # fmt: skip
        last = out.last_hidden_state[row, column]
    return _rows(columns, running, prefill)


def _visible(lengths: Tensor, longest: int, width: int) -> Tensor | None:
    """Which cached columns the next tokens may look at, [R, 1, width, longest]; None: all of them.

    A row's right padding stays unseen; where a row has several completions, each will see its own tokens only.
    """
    seen = torch.arange(longest, device=lengths.device) < lengths[:, None]
    return None if width == 1 and bool(seen.all()) else seen[:, None, None].expand(-1, 1, width, -1)


def _rows(columns: list[tuple[Tensor, Tensor, Tensor, Tensor]], running: Tensor, prefill: Prefill | None) -> Sampled:
    """Columns of one token per completion -> completions cut after their stop token."""
    tokens, logprobs, entropy, alive = (torch.stack(column, 1).cpu() for column in zip(*columns, strict=True))
    lengths = alive.sum(1).tolist()
    return Sampled(
        [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)],
        [row[:n].clone() for row, n in zip(logprobs, lengths, strict=True)],
        [row[:n].clone() for row, n in zip(entropy, lengths, strict=True)],
        running.cpu().tolist(),
        prefill,
    )
