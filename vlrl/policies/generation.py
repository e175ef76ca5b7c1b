"""Generation of completions: random numbers, sampling, rows of keys and values, decoding; and their log-probabilities,
also of what an engine wrote."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from vlrl.policies.decode_step import Graphs, Layers
from vlrl.policies.engine import Engine, GenerationRequest, Options
from vlrl.policies.fused_modules import PrefixCache
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
from vlrl.policies.prefix_sharing import Layers as PrefixSharingLayers
from vlrl.policies.processor import Prompt
from vlrl.types import Decision, Episode, Observation, UserError, draw_seed

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


def gather_logprobs(logprobs: Tensor, target: Tensor) -> Tensor:
    """Those [n, V] of each place's token [n], or of its token and candidates [n, 1 + K]: as many."""
    return logprobs.gather(-1, target.reshape(len(target), -1)).view(target.shape)


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
        """-> log-probabilities of the targets, [n] or [n, 1 + K] like these, and entropies [n], float32.

        Args:
            packed: prompts and completions; the completions alone where the prompts come before; or conversations.
            seen: what a tower that does not train has made of the prompts' media; of conversations, of each level's.
            before: the prompts, to be forwarded first, or forwarded already.
        """
        base = bare(self.model)
        if isinstance(packed, RowLevels) and len(packed.rows) > 1:
            return self.of(level_states(base, packed, seen), packed)
        if isinstance(packed, RowLevels):
            return self.of(self.hidden(base, packed.rows[0], seen[0]).flatten(0, 1), packed)
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
        return gather_logprobs(logprobs, target), entropy_of(logprobs)


def has_adapter(model: nn.Module) -> bool:
    """Whether a model's trained weights are an adapter of peft's that can be left out of a forward pass."""
    return hasattr(model, "disable_adapter")


def bare(model: Any) -> nn.Module:
    """The Hugging Face model inside a peft wrapper (whose layers carry the adapter), or the model itself."""
    return model.get_base_model() if has_adapter(model) else model


# Random numbers that belong to an episode: equal wherever, and beside whatever, it is played.
#
# A counter-based generator (Philox, Salmon et al., SC 2011) keyed by the episode's stream and turn gives each decision
# its own sequence: a number hangs on the key and its place in the sequence alone. So one process draws what many do.

TRIES = 2**16  # turns of one try of an episode, at most


def uniforms(episodes: Sequence[Episode], count: int, generator: torch.Generator) -> np.ndarray:
    """Numbers in [0, 1) for each episode's next decision, float32 [B, count].

    Args:
        generator: gives the key of episodes that have no stream; it is left alone where all have one.
    """
    numbers = np.empty((len(episodes), count), np.float32)
    for row, own in zip(numbers, _turn_generators(episodes, generator), strict=True):
        own.random(dtype=np.float32, out=row)
    return numbers


def normals(episodes: Sequence[Episode], shape: Sequence[int], generator: torch.Generator) -> np.ndarray:
    """As `uniforms`, from N(0, 1): float32 [B, *shape]."""
    numbers = np.empty((len(episodes), *shape), np.float32)
    for row, own in zip(numbers, _turn_generators(episodes, generator), strict=True):
        own.standard_normal(dtype=np.float32, out=row)
    return numbers


def _turn_generators(episodes: Sequence[Episode], generator: torch.Generator) -> Iterator[np.random.Generator]:
    """The generator of each episode's next decision: one object, set anew, as making one costs more than its use."""
    bits = np.random.Philox(key=0)
    own, state = np.random.Generator(bits), bits.state
    spare = None
    for place, episode in enumerate(episodes):
        if episode.stream is None and spare is None:
            spare = draw_seed(generator)
        name, number = episode.stream or (spare, place)
        turn = episode.redraws * TRIES + len(episode.turns)
        state["state"]["key"] = np.array([name, number << 32 | turn], np.uint64)
        bits.state = state  # the counter is at its beginning
        yield own


# A batch of prompts whose completions are being written: their keys and values, and how the batch changes.

Choose = Callable[[Tensor, Tensor], Tensor]  # completions [n], hidden states [n, H] -> their next tokens [n]


@dataclass(eq=False)
class CompletionRows:
    """R prompts, a row each, with w places for completions. It is a cache as the layers know one (`update`).

    A step changes `token`, `written` and the buffers where they are, and reads no number of the host where the rows are
    `fixed`: so it can be recorded, and the record replayed for the tokens that follow (`vlrl.policies.decode_step`).
    """

    who: Tensor  # int64 [R, w], the completion in each place; -1: none
    token: Tensor  # int64 [R, w], what is forwarded next
    written: Tensor  # int64 [R], tokens of its completions that have been forwarded
    position: Tensor  # int64 [R], rotary position of a completion's first token
    length: Tensor  # int64 [R], of the prompt
    prompt: PrefixSharingLayers  # [R, key heads, P, D]
    own: PrefixSharingLayers  # [R, key heads, w, room, D]
    age: int  # the largest of `written`
    ragged: bool  # whether prompts are padded, or rows were begun at different times
    fixed: bool = False  # whether all of the room is looked at, what is not yet written hidden
    replay: Callable[[], None] | None = None  # a recorded step

    @functools.cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Row and place of every completion; asked once, as the answer waits for the device."""
        return (self.who >= 0).nonzero(as_tuple=True)

    @property
    def room(self) -> int:
        """Tokens that a completion's buffer holds."""
        return self.own[0][0].shape[3]

    def grow(self) -> None:
        """Makes room for one more token at least."""
        if self.age == self.room:
            self.own = [tuple(pad(part, (0, 0, 0, self.age)) for part in pair) for pair in self.own]
            self.fixed, self.replay = False, None  # that knows the old buffers

    def step(self, layers: Layers, choose: Choose) -> None:
        """Forwards the next token of every completion and chooses the one after it. `age` is left to the caller."""
        self._hidden = self._unseen() if self.ragged or self.fixed else None
        hidden = layers.forward(self.token, self.position + self.written, self)
        self._hidden = None
        self.written += 1
        self.choose(hidden, choose)

    def choose(self, hidden: Tensor, choose: Choose) -> None:
        """The next tokens, of hidden states [R, w, H]."""
        self.token[self.places] = choose(self.who[self.places], hidden[self.places])

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[PrefixCache, PrefixCache]:
        """The new keys and values [R, key heads, w, D] take their places; all that the new tokens may look at."""
        own, length = self.own[layer], self.room if self.fixed else self.age + 1
        rows = torch.arange(len(self.who), device=keys.device)
        for buffer, new in zip(own, (keys, values), strict=True):
            if self.ragged or self.fixed:
                buffer[rows, :, :, self.written] = new.to(buffer.dtype)
            else:
                buffer[:, :, :, self.age] = new
        return tuple(
            PrefixCache(prompt, mine[:, :, :, :length], self._hidden)
            for prompt, mine in zip(self.prompt[layer], own, strict=True)
        )

    def _unseen(self) -> Tensor:
        """Where rows hold padding, or nothing yet, bool [R, 1, 1, 1, P + T]."""
        of_prompt = torch.arange(self.prompt[0][0].shape[2], device=self.who.device) >= self.length[:, None]
        length = self.room if self.fixed else self.age + 1
        of_own = torch.arange(length, device=self.who.device) > self.written[:, None]
        return torch.cat([of_prompt, of_own], 1)[:, None, None, None]

    def take(self, rows: Tensor, places: Tensor) -> CompletionRows:
        """Some rows [R'], and of each some places [R', w']."""
        r, written = rows[:, None], self.written[rows]
        return CompletionRows(
            self.who[r, places], self.token[r, places], written, self.position[rows], self.length[rows],
            [tuple(part[rows] for part in pair) for pair in self.prompt],
            [tuple(part[r, :, places].transpose(1, 2) for part in pair) for pair in self.own],
            int(written.max()), self.ragged,
        )  # fmt: skip

    def joined(self, other: CompletionRows) -> CompletionRows:
        """With other rows below, all as wide and as long as the widest and the longest."""
        sizes = [max(mine, its) for mine, its in zip(self._sizes, other._sizes, strict=True)]
        a, b = self._padded(*sizes), other._padded(*sizes)
        columns = ((each.who, each.token, each.written, each.position, each.length) for each in (a, b))
        plain = (torch.cat(pair) for pair in zip(*columns, strict=True))
        both = (
            [tuple(map(torch.cat, zip(x, y, strict=True))) for x, y in zip(one, two, strict=True)]
            for one, two in ((a.prompt, b.prompt), (a.own, b.own))
        )
        return CompletionRows(*plain, *both, max(a.age, b.age), True)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Places, tokens of the longest prompt, room."""
        return self.who.shape[1], self.prompt[0][0].shape[2], self.room

    def _padded(self, places: int, longest: int, room: int) -> CompletionRows:
        w, P, T = (size - mine for size, mine in zip((places, longest, room), self._sizes, strict=True))
        return CompletionRows(
            pad(self.who, (0, w), value=-1), pad(self.token, (0, w)), self.written, self.position, self.length,
            [tuple(pad(part, (0, 0, 0, P)) for part in pair) for pair in self.prompt],
            [tuple(pad(part, (0, 0, 0, T, 0, w)) for part in pair) for pair in self.own], self.age, True,
        )  # fmt: skip


def start_completions(prefill: Prefill, numbers: Sequence[Tensor], room: int, choose: Choose) -> CompletionRows:
    """A prefill's prompts, and the first token of each of their completions.

    Args:
        numbers: int64 [n] each, the completions of every prompt.
        room: tokens that a completion's buffer starts with.
    """
    device = prefill.hidden.device
    who = nn.utils.rnn.pad_sequence(list(numbers), batch_first=True, padding_value=-1).to(device)
    lengths = [len(prompt.ids) for prompt in prefill.prompts]
    length = torch.tensor(lengths, device=device)
    kind = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    prompt = [  # in the type that the products are made in: else every token would convert them
        tuple(part.detach()[:, :, : max(lengths)].to(kind or part.dtype) for part in pair) for pair in prefill.layers
    ]
    own = [
        tuple(part.new_zeros(*part.shape[:2], who.shape[1], room, part.shape[3]) for part in pair) for pair in prompt
    ]
    position = torch.tensor([int(prompt.positions.max()) + 1 for prompt in prefill.prompts], device=device)
    none, ragged = torch.zeros_like(who), len(set(lengths)) > 1
    rows = CompletionRows(who, none, torch.zeros_like(length), position, length, prompt, own, 0, ragged)
    rows.choose(prefill.last().detach()[:, None].expand(-1, who.shape[1], -1), choose)
    return rows


# What is drawn for completions, token by token, with its log-probabilities and entropies.


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
        token = logprobs.argmax(-1) if self.uniform is None else self._sample(probs, place)
        self.tokens[place] = token
        self.logprobs[place] = logprobs.gather(-1, token[:, None])[:, 0]
        self.entropy[place] = entropy_of(logprobs, probs)
        self.lengths[who] += going
        stopped = (token[:, None] == self.stops).any(-1)  # `isin` of many sorts them, and waits for the device
        self.running[who] = going & ~stopped & (place[1] < end - 1)
        return token

    def _sample(self, probs: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:
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
            lengths_at_end = (n for n in range(self._read[i] + 1, lengths[i] + 1) if ended(row[:n]))
            self._read[i] = next(lengths_at_end, lengths[i])
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


# Completions token by token, from one prefill per prompt, with the log-probabilities and entropies that they yield.
#
# A row is a prompt with its completions. Its keys and values are kept once, those of each completion beside them, in
# buffers that grow by doubling. Rows whose completions have all ended leave the batch, and waiting ones enter it.
# Between
# two looks at what has ended nothing waits for the device, and with graphs a token's operations are replayed.

# tokens between two looks at what has ended, as a look waits for the device
LOOK, LOOK_ELSEWHERE = {"cpu": 1}, 16
SHRINK = 0.75  # a batch is made anew when it would have at most this share of its places
BLOCK = 32  # tokens that a completion's buffer starts with; it doubles when it is full
# A record serves until the batch is made anew or its buffers are: so both come less often, and it costs some tokens.
RECORDED_SHRINK, RECORDED_BLOCK, WORTH = 0.5, 256, 16


def decoding_write(
    base: nn.Module, prompts: Sequence[Prompt], prefill: Callable[[Sequence[int]], Prefill], counts: Sequence[int],
    sampling: Sampling, drawn: Tensor | None,
) -> Sampled:  # fmt: skip
    """`counts[i]` completions of prompt i, prompt by prompt.

    Args:
        prefill: of some of the prompts, by number. Called when there are places for their completions.
        drawn: a number in [0, 1) for each token that may be written, float32 [completions, max_tokens]: what is sampled
            hangs on these alone. None where nothing is sampled.
    """
    writer = Writer(sum(counts), sampling, drawn, base.device)
    # half of a small operation's cost is autograd's, even where it is off; but in inference mode autocast keeps no copy
    # of a weight that it has narrowed, so that every token would narrow them all
    mode = torch.no_grad() if torch.is_autocast_enabled(base.device.type) else torch.inference_mode()
    with mode, sampling.graphs.rollout() if sampling.graphs else nullcontext():
        forwarded = _Batch(base, prompts, prefill, counts, writer).run()
    return writer.sampled(forwarded)


class _Batch:
    """The rows under way, and the prompts that wait for a place."""

    def __init__(
        self, base: nn.Module, prompts: Sequence[Prompt], prefill: Callable[[Sequence[int]], Prefill],
        counts: Sequence[int], writer: Writer,
    ):  # fmt: skip
        self.base, self.prefill, self.writer, self.sampling = base, prefill, writer, writer.sampling
        self.graphs = self.sampling.graphs if self.sampling.graphs and not self.sampling.graphs.off else None
        self.every = LOOK.get(base.device.type, LOOK_ELSEWHERE)
        self.numbers = torch.arange(sum(counts)).split(list(counts))
        self.waiting = deque(i for i, count in enumerate(counts) if count)
        self.positions = max(int(prompt.positions.max()) for prompt in prompts) + self.sampling.max_tokens + 1
        self.layers: Any = None  # `Layers`, made for the first prompts
        self.rows: CompletionRows | None = None

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

    def advance(self, rows: CompletionRows) -> int:
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
        prefill = self.prefill(chosen)
        self.layers = self.layers or Layers(self.base, self.positions, prefill.hidden)
        new = self.without_ended(start_completions(prefill, [self.numbers[i] for i in chosen], room, self.choose))
        if new is not None:  # a first token may end them all
            self.rows = new if self.rows is None else self.rows.joined(new)

    def without_ended(self, rows: CompletionRows) -> CompletionRows | None:
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


# What a policy does around an engine that writes for it: asks, and scores what was written by its own weights.


TRIED = 16  # tokens that an engine writes before a run begins
FAR = 0.5  # nats a token between engine and trainer, from which on something is wrong; bfloat16 makes about 0.01


@dataclass(frozen=True)
class GenerationBatch:
    """One entry per prompt."""

    shown: Sequence[Observation]
    prompts: Sequence[Prompt]
    begun: Sequence[Sequence[int]]
    counts: Sequence[int]


def ask(
    engine: Engine, wanted: GenerationBatch, sampling: Sampling, stop: Sequence[str], drawn: Tensor | None
) -> Sampled:
    """Completions, prompt by prompt, by the policy's present weights.

    Entropies are the tokens' surprisals, -log p: right on average. `scored` puts the exact ones in their place.

    Args:
        drawn: as `vlrl.policies.generation.decoding_write`.

    Raises:
        EngineError: no engine answers any more.
        UserError: the engine cannot write this.
    """
    parts = [None] * len(wanted.counts) if drawn is None else [p.numpy() for p in drawn.split(list(wanted.counts))]
    each = zip(wanted.shown, wanted.prompts, wanted.counts, wanted.begun, parts, strict=True)
    requests = [
        GenerationRequest(observation, prompt, count, tuple(prefix), part)
        for observation, prompt, count, prefix, part in each
    ]
    engine.publish()
    groups = engine.generate(requests, Options(sampling.max_tokens, sampling.temperature, tuple(stop)))
    completions = [completion for group in groups for completion in group]
    logprobs = [torch.tensor(completion.logprobs) for completion in completions]
    return Sampled(
        [list(completion.tokens) for completion in completions], logprobs, [-row for row in logprobs],
        [completion.cut for completion in completions], 0,
    )  # fmt: skip


def scored(policy: Any, decisions: Sequence[Decision], greedy: bool) -> list[Decision]:
    """Sampled decisions with the engine's log-probabilities kept beside, and the policy's own where it rescores."""
    engine: Engine = policy.engine
    if greedy:
        return list(decisions)
    kept = [replace(d, engine_logprobs=d.logprobs) for d in decisions]
    if not engine.rescore:
        return kept
    results, gaps = [], []
    for decision, (logprobs, entropy) in zip(kept, policy.score(kept), strict=True):
        own = torch.ones_like(logprobs, dtype=torch.bool) if decision.forced_mask is None else ~decision.forced_mask
        gaps.append((logprobs - decision.logprobs)[own])
        results.append(replace(decision, logprobs=logprobs.where(own, 0.0), entropy=entropy.where(own, 0.0)))
    engine.record_gaps(gaps)
    return results


def check(policy: Any, shown: Observation, prompt: Prompt) -> None:
    """Asks the engine for a few tokens and scores them by the policy's own weights.

    Raises:
        UserError: the engine cannot write for this policy, or is far from it: it has another model, or its
            log-probabilities are not those of the sampling distribution.
    """
    room = min(TRIED, policy.max_tokens)
    request = GenerationRequest(shown, prompt, 1, (), np.full((1, room), 0.5, np.float32))
    answer = policy.engine.check(request, Options(room, policy.temperature))
    rows = [policy.decision(prompt, each.tokens) for each in answer]
    pairs = zip(answer, policy.score(rows), strict=True)
    gap = max(float((logprobs - torch.tensor(each.logprobs)).abs().mean()) for each, (logprobs, _) in pairs)
    if gap > FAR:
        raise UserError(
            f"policy.engine: its log-probabilities lie {gap:.2g} nats a token from the trainer's: serve the same "
            "model, and give those of the sampling distribution (vLLM: --logprobs-mode processed_logprobs)"
        )
