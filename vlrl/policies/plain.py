"""The plain path: a model's own `generate` and forward pass, for every architecture that transformers or the user has.

What is asked of a model is what `missing` looks for. Rows that are forwarded together have inputs of equal shapes;
texts are padded on the right, where no earlier token sees it. Where a model's cache can be forked exactly
(`vlrl.policies.cache_forking`), which is tried on the first prompt, prompts are forwarded once for all their
completions; else each completion is forwarded with its prompt.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    ProcessorMixin,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from vlrl.policies.cache_forking import (
    KeptCache,
    as_rows,
    copy_rows,
    follow,
    fork_cache,
    forked_write,
    inputs_behind,
    join_rows,
    parameters,
    prefill,
    to_device,
    without_last,
)
from vlrl.policies.conversation import ConversationBranch, find_branches
from vlrl.policies.generation import Sampled, Sampling, Writer, bare, entropy_of, gather_logprobs, law
from vlrl.policies.prefix_sharing import Prefill, TowerFeatures, spread, with_candidates
from vlrl.policies.processor import ChatProcessor, Prompt, going_on, is_per_token
from vlrl.policies.vlm import VLM, compute_tolerance
from vlrl.types import Decision, Episode, Evaluation, Message, Observation, UserError, first_line

Text = tuple[Prompt, Sequence[int]]  # a prompt and tokens behind it


@dataclass(frozen=True, eq=False)
class ForwardRows:
    """Prompts and what follows them as the model's forward takes them, and where the n tokens that follow stand."""

    inputs: dict[str, Tensor]  # `input_ids` int64 [R, L] among them
    row: Tensor  # int64 [n]
    source: Tensor  # int64 [n], the place in [0, L) whose logits predict the token
    target: Tensor  # int64 [n]


@dataclass(frozen=True, eq=False)
class ForkedRows:
    """Prompts of one length, and what follows them: `copies` rows of each, prompt by prompt."""

    prompts: dict[str, Tensor]  # what the forward takes of R prompts without their last tokens
    copies: int
    ids: Tensor  # int64 [R * copies, T], the last token of the prompt and what follows it, but for its last
    row: Tensor  # int64 [n]
    source: Tensor  # int64 [n], in [0, T)
    target: Tensor  # int64 [n]


def alike(texts: Sequence[Text], lengths: bool = False, stacks: bool = True) -> list[list[int]]:
    """Numbers of the texts that can be forwarded together.

    Args:
        lengths: only those whose prompts have the same length.
        stacks: whether inputs of several rows lie below each other; else each text is forwarded by itself.
    """
    groups: dict[Any, list[int]] = {}
    for i, (prompt, _) in enumerate(texts):
        inputs = ((name, v) for name, v in sorted(prompt.inputs.items()) if not is_per_token(name, v, len(prompt.ids)))
        other = tuple((name, v.dtype, v.shape[1:]) for name, v in inputs)
        groups.setdefault((other, len(prompt.ids) if lengths else 0, 0 if stacks else i), []).append(i)
    return list(groups.values())


def stack_rows(texts: Sequence[Text], pad_id: int, device: torch.device) -> ForwardRows:
    """Texts that are `alike`, right-padded: what follows a prompt is text, which is attended to."""
    longest = max(len(prompt.ids) + len(tokens) for prompt, tokens in texts)
    parts: dict[str, list[Tensor]] = {}
    row, source, target = [], [], []
    for r, (prompt, tokens) in enumerate(texts):
        whole, start = going_on(prompt, tokens), len(prompt.ids)
        own = {"attention_mask": torch.ones(1, len(whole.ids), dtype=torch.int64), **whole.inputs}
        for name, value in {"input_ids": whole.ids[None], **own}.items():
            if is_per_token(name, value, len(whole.ids)):
                last = (0, 0) * (value.ndim - 2)
                value = pad(value, (*last, 0, longest - len(whole.ids)), value=pad_id if name == "input_ids" else 0)
            parts.setdefault(name, []).append(value)
        row += [r] * len(tokens)
        source += range(start - 1, len(whole.ids) - 1)
        target += tokens
    inputs = {name: torch.cat(values).to(device) for name, values in parts.items()}
    return ForwardRows(inputs, *(torch.tensor(v, dtype=torch.int64, device=device) for v in (row, source, target)))


class PlainScorer(nn.Module):
    """Log-probabilities and entropies by the model's own forward pass."""

    def __init__(self, model: nn.Module, temperature: float, banned_ids: Sequence[int]):
        super().__init__()
        self.model, self.temperature = model, temperature
        banned = torch.tensor(banned_ids, dtype=torch.int64, device=next(model.parameters()).device)
        self.register_buffer("banned", banned, persistent=False)

    def forward(self, rows: ForwardRows | ForkedRows) -> tuple[Tensor, Tensor]:
        """-> log-probabilities of the targets, [n] or [n, 1 + K] like these, and entropies [n], float32."""
        logprobs = law(self.logits(rows), self.temperature, self.banned)
        return gather_logprobs(logprobs, rows.target), entropy_of(logprobs)

    def logits(self, rows: ForwardRows | ForkedRows) -> Tensor:
        """Of the targets' places, [n, V]."""
        if isinstance(rows, ForkedRows):
            cache = fork_cache(self.model, rows.prompts, rows.copies)
            return follow(self.model, rows.ids, cache)[rows.row, rows.source]
        length = rows.inputs["input_ids"].shape[1]
        kept = length - int(rows.source.min())
        options = {"use_cache": False, "logits_to_keep": kept}
        known = parameters(bare(self.model))
        logits = self.model(**rows.inputs, **{k: v for k, v in options.items() if k in known}).logits
        return logits[rows.row, rows.source - (length - logits.shape[1])]


def has_cache(model: nn.Module) -> bool:
    """Whether the model's forward takes back what it kept of earlier tokens."""
    return bool({"past_key_values", "cache_params"} & parameters(model))


class _Draw(LogitsProcessor):
    """Draws each row's token as our own decoding does, and leaves `generate` no other choice."""

    def __init__(self, writer: Writer, who: Tensor):
        self.writer, self.who = writer, who

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.writer.write(self.who, scores)
        return torch.full_like(scores, float("-inf")).scatter_(1, token[:, None], 0.0)


class _Ended(StoppingCriteria):
    def __init__(self, writer: Writer, who: Tensor):
        self.writer, self.who = writer, who

    def __call__(self, input_ids: Tensor, scores: Any, **options) -> Tensor:
        return ~self.writer.look()[self.who]


@contextmanager
def _own_settings(model: Any) -> Iterator[None]:
    """`generate` without a checkpoint's settings: penalties and filters would change the sampling distribution."""
    settings, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = settings


@torch.no_grad()
def plain_write(model: nn.Module, inputs: dict[str, Tensor], who: Tensor, writer: Writer, use_cache: bool) -> None:
    """The completions `who` [R] of prompts of one length, by the model's own `generate` and cache."""
    room = writer.sampling.max_tokens
    options = GenerationConfig(max_new_tokens=room, do_sample=False, pad_token_id=0, use_cache=use_cache)
    with _own_settings(model):
        model.generate(
            **inputs, generation_config=options, logits_processor=LogitsProcessorList([_Draw(writer, who)]),
            stopping_criteria=StoppingCriteriaList([_Ended(writer, who)]),
        )  # fmt: skip


class PlainVLM(VLM):
    """A policy of any vision-language model. `shared_prefix` turns False where the first prompt shows that it must."""

    def __init__(self, model: nn.Module, processor, *, checkpointing: bool = False, **options):
        super().__init__(model, processor, **options)
        self.checkpointing, self.use_cache = checkpointing, has_cache(bare(model))
        self.keeps_turns = False  # whether a conversation's next turn goes on behind a kept cache
        self.stacks = True  # whether what the processor makes of several prompts can be forwarded together
        if self.shared_prefix and checkpointing:
            self._forward_alone("layers that are recomputed have no cache: policy.gradient_checkpointing")
        elif self.shared_prefix and not self.use_cache:
            self._forward_alone("it has no cache")

    def _make_scorer(self) -> nn.Module:
        return PlainScorer(self.model, self.temperature, self.codec.banned_ids)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False,
        keep: bool = False, begun: Sequence[Sequence[int]] | None = None, room: int | None = None,
    ) -> list[Decision]:  # fmt: skip
        """As `VLM.act`. What the first completions were sampled with is compared with the forward pass that trains."""
        if "prompt" not in self._verified:
            self._try(self.prompt(observations[0], before=episodes[0].turns))
        made = super().act(episodes, observations, greedy, False, begun, room)
        if not greedy and begun is None and self.engine is None and "sampling" not in self._verified:
            self._verified.add("sampling")
            self._verify(made, sampled=True)
        return made

    def _try(self, prompt: Prompt) -> None:
        """At the first prompt: how it can be forwarded with others, and for several completions at once."""
        if "prompt" in self._verified:
            return
        self._verified.add("prompt")
        self.model.eval()
        self._check_causal(prompt)
        self._try_stacking(prompt)
        if self.shared_prefix:
            self._try_sharing(prompt)

    @torch.no_grad()
    def _check_causal(self, prompt: Prompt) -> None:
        """A token's probability must not depend on what follows it.

        Raises:
            UserError: it does, as where a prefix is attended both ways and completions count as part of it.
        """
        end = self.codec.stop_ids[0]
        with self.precision():
            one, two = (
                self._scorer(stack_rows([(prompt, (end, int(last)))], self.codec.pad_id, self.device))[0][0]
                for last in (end, prompt.ids[0])
            )
        if abs(float(one - two)) > self._tolerance:
            raise UserError(
                f"policy.model: in the forward pass of {type(bare(self.model)).__name__} a completion's tokens see "
                "those behind them, so that what it writes has no probability: use a model with causal attention"
            )

    @torch.no_grad()
    def _try_stacking(self, prompt: Prompt) -> None:
        """Whether two rows of different images have the log-probabilities together that each has alone.

        What an image changes may be little: a gap must be as small as of two equal rows, or beside that change.
        """
        negative = {n: -v if v.is_floating_point() else v for n, v in prompt.inputs.items()}
        one, other = (((p, (self.codec.stop_ids[0],) * 3),) for p in (prompt, replace(prompt, inputs=negative)))
        try:
            with self.precision():
                a, b, equal, mixed = (
                    self._scorer(stack_rows(texts, self.codec.pad_id, self.device))[0]
                    for texts in (one, other, one + one, one + other)
                )
            noise = float((equal - torch.cat([a, a])).abs().max())
            gap = float((mixed - torch.cat([a, b])).abs().max())
            change = float((a - b).abs().max())
            self.stacks = max(noise, gap) <= self._tolerance and gap <= 2 * noise + change / 10 + 1e-5
        except Exception:  # a model may fail in any way
            self.stacks = False

    @property
    def _tolerance(self) -> float:
        return compute_tolerance(self.autocast or next(self.model.parameters()).dtype)

    def _try_sharing(self, prompt: Prompt) -> None:
        """Whether a forked cache gives the log-probabilities of whole rows, and takes gradients back."""
        end, trained = self.codec.stop_ids[0], [p for p in self.model.parameters() if p.requires_grad]
        texts: list[Text] = [(prompt, (int(prompt.ids[-1]), int(prompt.ids[0]), end)), (prompt, (end,) * 3)]
        try:
            with torch.enable_grad(), self.precision():
                shared = self._scorer(self._forked(texts))[0]
                if trained:
                    torch.autograd.grad(shared.sum(), trained, allow_unused=True)
            with torch.no_grad(), self.precision():
                alone = torch.cat([self._scorer(stack_rows([t], self.codec.pad_id, self.device))[0] for t in texts])
            finite = alone.isfinite()  # of tokens that may be written
            gap = float((shared - alone)[finite].detach().abs().max())
            if not gap <= self._tolerance:  # nor NaN
                raise TypeError(f"its cache changes log-probabilities by {gap:.2g} nats")
        except Exception as error:  # a model may fail in any way; there is another way to forward it
            self._forward_alone(first_line(error))

    def _forward_alone(self, reason: str) -> None:
        self.shared_prefix = False
        print(
            f"vlrl: train.shared_prefix: not for this {type(bare(self.model)).__name__}: {reason}; each completion is "
            "forwarded with its prompt",
            file=sys.stderr,
        )

    def _forked(self, texts: Sequence[Text]) -> ForkedRows:
        """Texts prompt by prompt, as many of each, whose prompts have one length."""
        prompts = list(dict.fromkeys(prompt for prompt, _ in texts))
        whole = [(without_last(prompt), ()) for prompt in prompts]
        inputs = stack_rows(whole, self.codec.pad_id, self.device).inputs
        inputs.pop("attention_mask")  # nothing is padded
        rows = as_rows(texts, self.codec.pad_id, self.device)
        return ForkedRows(inputs, len(texts) // len(prompts), *rows)

    @torch.no_grad()
    def _verify(self, decisions: Sequence[Decision], sampled: bool) -> None:
        few = [decisions[0], decisions[-1]]
        pairs = zip(few, self.score(few), strict=True)
        gap = max(float((logprobs - decision.logprobs).abs().max()) for decision, (logprobs, _) in pairs)
        if gap <= self._tolerance:
            return
        self.use_cache = False
        print(
            f"\nvlrl: log-probabilities that the model writes with its cache are off by up to {gap:.2g} from those of "
            "its forward pass, so completions are written without the cache, slowly, from here on",
            file=sys.stderr,
        )

    def write(
        self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling, drawn: Tensor | None,
        keep: bool = False,
    ) -> Sampled:  # fmt: skip
        """As `VLM.write`; at most `sampling.slots` completions at once, of prompts of one length each time."""
        texts: list[Text] = [(prompt, ()) for prompt, count in zip(prompts, counts, strict=True) for _ in range(count)]
        writer = Writer(len(texts), sampling, drawn, self.device)
        self.model.eval()
        forwarded = 0
        with self.work.timed("decode"), self.precision():
            plain = alike(texts, lengths=True, stacks=self.stacks)
            for numbers in self._together(texts) if self.shared_prefix else plain:
                for who in self._split(numbers, texts, sampling.slots):
                    forwarded += self._write([texts[i] for i in who.tolist()], who.to(self.device), writer)
        made = writer.sampled(forwarded + int(writer.lengths.sum()))
        self.work.add(tokens=made.forwarded, tokens_distinct=sum(map(len, made.tokens)))
        return made

    @torch.no_grad()
    def _write(self, texts: Sequence[Text], who: Tensor, writer: Writer) -> int:
        """Completions of prompts of one length; how many of the prompts' tokens were forwarded."""
        model, prompts = bare(self.model), list(dict.fromkeys(prompt for prompt, _ in texts))
        if not self.shared_prefix or (len(prompts) == len(texts) and not self._continues(prompts)):
            inputs = stack_rows(texts, self.codec.pad_id, self.device).inputs
            plain_write(model, inputs, who, writer, self.use_cache)
            return sum(len(prompt.ids) for prompt, _ in texts)
        cache, forwarded = self._make_cache(prompts)
        copies: Any = torch.arange(len(prompts), device=self.device).repeat_interleave(len(texts) // len(prompts))
        cache.reorder_cache(copies)
        last = torch.tensor([int(prompt.ids[-1]) for prompt, _ in texts], device=self.device)
        forked_write(model, last, cache, who, writer)
        return forwarded

    def _make_cache(self, prompts: Sequence[Prompt]) -> tuple[Cache, int]:
        """A cache of prompts of one length without their last tokens, a row each, and how many tokens were forwarded.

        Of conversations only what is not kept of an earlier turn is forwarded, and what they are is kept.
        """
        known = self._histories.of(prompts) if self._continues(prompts) else [[] for _ in prompts]
        if not any(known):
            inputs = stack_rows(
                [(without_last(prompt), ()) for prompt in prompts], self.codec.pad_id, self.device
            ).inputs
            inputs.pop("attention_mask")  # nothing is padded
            cache = prefill(bare(self.model), inputs)
            rows = [copy_rows(cache, [row]) for row in range(len(prompts))] if self._continues(prompts) else []
            forwarded = inputs["input_ids"].numel()
        else:
            rows = [self._continue(prompt, kept) for prompt, kept in zip(prompts, known, strict=True)]
            cache = join_rows(rows)
            cached = sum(len(p.lineage[len(kept) - 1].ids) for p, kept in zip(prompts, known, strict=True) if kept)
            forwarded = sum(len(prompt.ids) for prompt in prompts) - cached
            self.work.add(cached_tokens=cached)
        if rows:
            self.work.add(conversation_tokens=sum(len(prompt.ids) for prompt in prompts))
        for prompt, row in zip(prompts, rows, strict=False):
            self._histories.keep(prompt, KeptCache(row))
        return cache, forwarded

    def _continue(self, prompt: Prompt, kept: Sequence[KeptCache]) -> Cache:
        """A prompt's cache of one row, made of what is kept of its earlier turns."""
        if len(kept) == len(prompt.lineage):
            return kept[-1].cache
        if not kept:
            return prefill(bare(self.model), to_device(without_last(prompt), self.device))
        before = prompt.lineage[len(kept) - 1]
        added = inputs_behind(prompt, before, self.codec.media_axes)
        inputs = {name: value.to(self.device) for name, value in added.items()}
        return prefill(bare(self.model), inputs, copy_rows(kept[-1].cache, [0]))

    def _continues(self, prompts: Sequence[Prompt]) -> bool:
        """Whether the prompts are conversations whose next turns go on behind a kept cache."""
        if not all(prompt.is_conversation for prompt in prompts):
            return False
        if "continuing" not in self._verified:
            self._verified.add("continuing")
            self.keeps_turns = not self.codec.appends and self._try_continuing()
        return self.keeps_turns

    def _try_continuing(self) -> bool:
        """Whether a turn behind a kept cache has the log-probabilities of its whole row, images in it included.

        Two conversations of different lengths take turns, as a model may remember of the last one more than its cache.
        """
        image = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
        shown = [Observation.from_messages([Message("user", (*[image] * n, "?"))]) for n in (1, 2)]
        follows = Observation.from_messages([Message("user", (image.rotate(90), image, "And?"))])
        try:
            roots = [self.codec.encode(each) for each in shown]
            caches = [KeptCache(self._continue(root, [])) for root in roots]
            gaps = []
            for root, kept in zip(roots, caches, strict=True):
                prompt, end = self.codec.append(root, self.codec.tokens("Yes."), follows), self.codec.stop_ids[0]
                last = prompt.ids[None, -1:].to(self.device)
                behind = follow(bare(self.model), last, self._continue(prompt, [kept]))[0, -1].float()
                rows = stack_rows([(prompt, (end,))], self.codec.pad_id, self.device)
                whole = self._scorer.logits(rows)[0].float()
                gaps.append(float((behind.log_softmax(-1) - whole.log_softmax(-1)).abs().max()))
            return max(gaps) <= self._tolerance / 10
        except Exception:  # a model may fail in any way; conversations are forwarded whole then
            return False

    def _split(self, numbers: list[int], texts: Sequence[Text], slots: int | None) -> Sequence[Tensor]:
        """As many at once as there are slots, but never a part of a prompt's completions where they share it."""
        copies = sum(texts[i][0] is texts[numbers[0]][0] for i in numbers) if self.shared_prefix else 1
        return torch.tensor(numbers).split(max(1, (slots or len(numbers)) // copies) * copies)

    def _together(self, texts: Sequence[Text]) -> list[list[int]]:
        """Numbers of texts that a forked cache serves together, prompt by prompt, as many of each."""
        of: dict[int, list[int]] = {}
        for i, (prompt, _) in enumerate(texts):
            of.setdefault(id(prompt), []).append(i)
        if not self.stacks:
            return list(of.values())
        groups: dict[int, list[int]] = {}
        for numbers in of.values():
            groups.setdefault(len(numbers), []).extend(numbers)
        return [
            [numbers[i] for i in part]
            for numbers in groups.values()
            for part in alike([texts[i] for i in numbers], lengths=True)
        ]

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """As `VLM.evaluate`. Dropout stays off in training: what is trained is what samples."""
        self._histories.forget()  # the rollout is over; training needs the memory
        self.model.eval()
        if self.checkpointing:  # layers recompute themselves in this mode only; what is in them stays in the other
            for module in self.model.modules():
                module.training = isinstance(module, GradientCheckpointingLayer)
        with self.work.timed("forward"):
            return self._evaluate(self.scorer, decisions, self._seen)

    def _evaluate(
        self, scorer: nn.Module, decisions: Sequence[Decision], features: TowerFeatures, kept: Prefill | None = None
    ) -> Evaluation:
        texts = [(d.inputs.prompt, d.inputs.tokens) for d in decisions]
        self._try(texts[0][0])
        parts, order = [], []
        for numbers, rows in self._all_rows(texts):
            parts.append(scorer(with_candidates(rows, numbers, decisions)))
            order += numbers
        logprobs, entropy = (torch.cat(values) for values in zip(*parts, strict=True))
        return spread(logprobs, entropy, order, [len(tokens) for _, tokens in texts])

    def _all_rows(self, texts: Sequence[Text]) -> Iterator[tuple[list[int], ForwardRows | ForkedRows]]:
        """Texts as they are forwarded to train on them."""
        if any(prompt.parent for prompt, _ in texts):
            return self._branch_rows(find_branches(texts))
        return self._shared_rows(texts) if self.shared_prefix else self._rows(texts)

    def _branch_rows(self, branches: Sequence[ConversationBranch]) -> Iterator[tuple[list[int], ForwardRows]]:
        """Conversations as far as they went, a row each."""
        whole = [(branch.leaf, branch.tokens) for branch in branches]
        for numbers in alike(whole, stacks=self.stacks):
            some = [branches[i] for i in numbers]
            inputs = stack_rows([whole[i] for i in numbers], self.codec.pad_id, self.device).inputs
            replies = [(row, reply) for row, branch in enumerate(some) for reply in branch.replies]
            places = (
                [row for row, reply in replies for _ in reply.tokens],
                [reply.start - 1 + place for _, reply in replies for place in range(len(reply.tokens))],
                [token for _, reply in replies for token in reply.tokens],
            )
            self.work.add(tokens=inputs["input_ids"].numel())
            with self.precision():
                yield (
                    [reply.number for _, reply in replies],
                    ForwardRows(inputs, *(torch.tensor(v, device=self.device) for v in places)),
                )

    def _rows(self, texts: Sequence[Text]) -> Iterator[tuple[list[int], ForwardRows]]:
        """Texts as they are forwarded together, and which they are."""
        for numbers in alike(texts, stacks=self.stacks):
            rows = stack_rows([texts[i] for i in numbers], self.codec.pad_id, self.device)
            self.work.add(tokens=rows.inputs["input_ids"].numel())
            with self.precision():
                yield numbers, rows

    def _shared_rows(self, texts: Sequence[Text]) -> Iterator[tuple[list[int], ForwardRows | ForkedRows]]:
        """As `_rows`, each prompt once for all its completions."""
        for numbers in self._together(texts):
            rows = self._forked([texts[i] for i in numbers])
            self.work.add(tokens=rows.prompts["input_ids"].numel() + rows.ids.numel())
            with self.precision():
                yield numbers, rows

    @torch.no_grad()
    def token_states(self, decisions: Sequence[Decision]) -> list[Tensor]:
        """As `VLM.token_states`."""
        return self._of_tokens(decisions, lambda rows: hidden_of(self.model, rows)[rows.row, rows.source])

    @torch.no_grad()
    def likeliest(self, decisions: Sequence[Decision], k: int) -> list[tuple[Tensor, Tensor]]:
        """As `vlrl.policies.vlm.likeliest`."""
        scorer = self._scorer
        made = self._of_tokens(decisions, lambda rows: law(scorer.logits(rows), scorer.temperature, scorer.banned))
        best = [logprobs.topk(min(k, logprobs.shape[-1]), -1) for logprobs in made]
        return [(each.indices.cpu(), each.values.cpu()) for each in best]

    def _of_tokens(self, decisions: Sequence[Decision], compute: Callable[[ForwardRows], Tensor]) -> list[Tensor]:
        """What is computed for each token of each decision, [T, ...]."""
        texts = [(d.inputs.prompt, d.inputs.tokens) for d in decisions]
        self.model.eval()
        found: dict[int, Tensor] = {}
        for numbers, rows in self._rows(texts):
            parts = compute(rows).split([len(texts[i][1]) for i in numbers])
            found.update(zip(numbers, parts, strict=True))
        return [found[i] for i in range(len(decisions))]

    def _ends(self, prompts: Sequence[Prompt]) -> Tensor:
        self.model.eval()
        last = [(prompt, (self.codec.pad_id,)) for prompt in prompts]  # predicted from the prompt's last token
        found: dict[int, Tensor] = {}
        for numbers, rows in self._rows(last):
            found.update(zip(numbers, hidden_of(self.model, rows)[rows.row, rows.source], strict=True))
        return torch.stack([found[i] for i in range(len(prompts))]).float()

    def effort(self, decisions: Sequence[Decision], *, passes: int, epochs: int, kept: bool) -> float:
        """FLOPs of the matrices alone: 2 a parameter and token forward, 4 backward. Nothing is shared."""
        tokens = sum(len(d.inputs.prompt.ids) + len(d.inputs.tokens) for d in decisions)
        parameters = sum(p.numel() for p in self.model.parameters())
        return 2.0 * parameters * tokens * (1 + passes + 3 * epochs)


def hidden_of(model: nn.Module, rows: ForwardRows) -> Tensor:
    """The last hidden states [R, L, H].

    Raises:
        UserError: the model gives none.
    """
    states = model(**rows.inputs, output_hidden_states=True).hidden_states
    if not states:
        raise UserError("the model gives no hidden states, which critics read: choose advantages without a critic")
    return states[-1]


# What a model and its processor must have.


def missing(model: nn.Module, processor: Any) -> str | None:
    """What a model lacks that the plain path needs, in words; None: nothing."""
    if not isinstance(processor, ProcessorMixin):
        return "it has no processor (processor_config.json), only a tokenizer: nothing that reads images"
    if any(getattr(processor, part, None) is None for part in ("tokenizer", "image_processor")):
        return f"{type(processor).__name__} has no tokenizer or no image processor"
    if not processor.tokenizer.is_fast:
        return f"{type(processor.tokenizer).__name__} is no fast tokenizer (tokenizer.json)"
    if not (processor.chat_template or processor.tokenizer.chat_template):
        return "it has no chat template (chat_template.jinja): add the one that its model card shows"
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder; completions must go on where the prompt ends"
    if not isinstance(model, GenerationMixin):
        return f"{type(model).__name__} has no `generate`: let it inherit GenerationMixin"
    return _missing_inputs(model, processor)


def _missing_inputs(model: nn.Module, processor: Any) -> str | None:
    """What becomes of one image and a question: whether it reaches the model, and the model answers with logits."""
    image, question = Image.new("RGB", (96, 64), (200, 30, 30)), "What is this?"
    try:
        if not shows_images(processor):
            return "its chat template shows no image: no placeholder for one is in the rendered prompt"
        prompt = ChatProcessor(processor, model).encode(Observation((image, question)))
    except Exception as error:  # a processor may fail in any way; what it says is the reason
        return f"{type(processor).__name__} cannot read an image and a question: {first_line(error)}"
    if all(is_per_token(name, value, len(prompt.ids)) for name, value in prompt.inputs.items()):
        return f"{type(processor).__name__} makes nothing of an image"
    signature = inspect.signature(model.forward).parameters
    takes = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.values())
    unknown = [name for name in prompt.inputs if name not in signature]
    if unknown and not takes:
        return f"its forward does not take what its processor makes: {', '.join(unknown)}"
    return None


def shows_images(processor: Any) -> bool:
    """Whether the chat template writes anything for an image."""
    image, said = {"type": "image"}, {"type": "text", "text": "What is this?"}
    turns = [[{"role": "user", "content": content}] for content in ([image, said], [said])]
    one, other = (processor.apply_chat_template(t, add_generation_prompt=True, tokenize=False) for t in turns)
    return one != other
