"""A Hugging Face vision-language model as a policy: acting, evaluating, reference, saving, operations of a step."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import get_rank

from vlrl.performance.profiling import Group, StepProfiler, Update, factors, from_config, step
from vlrl.policies import fused_modules, generation
from vlrl.policies.conversation import (
    ConversationBranch,
    Histories,
    Kept,
    continues,
    find_branches,
    join_prompt,
    joined_layers,
    make_levels,
    order_of,
    pack_ends,
    pack_levels,
    prefill_behind,
    serves,
    split_prefill,
    unknown,
)
from vlrl.policies.decode_step import Graphs
from vlrl.policies.engine import Engine
from vlrl.policies.generation import (
    EVERY,
    Nucleus,
    Sampled,
    Sampling,
    TokenScorer,
    bare,
    decoding_write,
    has_adapter,
    law,
    uniforms,
)
from vlrl.policies.prefix_sharing import (
    MediaFeatures,
    Packed,
    Passes,
    Prefill,
    Prompts,
    TowerFeatures,
    alone,
    grouped,
    hidden_states,
    long,
    pack,
    pack_replies,
    plain_states,
    prefilled,
    spread,
    with_candidates,
)
from vlrl.policies.processor import Prompt, codec_for, going_on
from vlrl.policies.weights import acts, learned, save_parts, swapped
from vlrl.types import Decision, Episode, Evaluation, Observation, OverlongError, Policy, Sample, Turn, UserError

# What a language model would rather have written at each place of what it wrote.

LIKELIEST_ROWS = 32  # decisions in one forward pass


@torch.no_grad()
def likeliest(policy: VLM, decisions: Sequence[Decision], k: int) -> list[tuple[Tensor, Tensor]]:
    """The k likeliest tokens at each place of each decision, under the sampling distribution: one forward pass.

    Returns:
        per decision of T tokens their ids, int64 [T, k], the likeliest first, and log-probabilities, float32 [T, k],
        on the CPU.
    """
    base = bare(policy.model)
    banned = torch.tensor(policy.codec.banned_ids, dtype=torch.int64, device=policy.device)
    ranked = []
    for start in range(0, len(decisions), LIKELIEST_ROWS):
        for states in policy.token_states(decisions[start : start + LIKELIEST_ROWS]):
            with policy.precision():
                logits = base.lm_head(states)
            best = law(logits, policy.temperature, banned).topk(min(k, logits.shape[-1]), -1)
            ranked.append((best.indices.cpu(), best.values.cpu()))
    return ranked


TOKENS = 2**14  # of prompts that are forwarded at once for their features
TOLERANCE = 1e-3  # nats a token, between two ways to compute the same in float32
LOGIT = 32.0  # as large as logits get: rounded twice, each time by up to one spacing, they are 2 * LOGIT * eps apart
ROWS = 64  # decisions that are scored at once where no gradient is needed
WORTH = 2 / 3  # of a kept prefill's tokens, from which on its backward pass costs less than making a part anew


@dataclass(frozen=True)
class Reply:
    """What a VLM keeps of its own decision: the prompt it saw and the tokens it wrote."""

    prompt: Prompt
    tokens: tuple[int, ...]
    candidates: Tensor | None = None  # int64 [T, K], tokens whose log-probabilities an evaluation gives beside theirs


def _gap(one: Tensor, other: Tensor) -> float:
    """The largest difference; none where both are -inf, as of tokens that may not be written."""
    return float((one - other).abs().where(one != other, 0.0).max())


def compute_tolerance(dtype: torch.dtype) -> float:
    """How far two ways to compute the same log-probability may be apart, in nats: 0.001 in float32, 0.5 in bfloat16."""
    return max(TOLERANCE, 2 * LOGIT * torch.finfo(dtype).eps)


def part_of(kept: Prefill, prompts: Sequence[Prompt]) -> Prefill | None:
    """Of a kept prefill what belongs to these prompts; None where they were not in it, or are so few that making them
    anew is cheaper.

    The backward pass goes through all that was forwarded together, whatever part of it is asked for.
    """
    number = {id(prompt): row for row, prompt in enumerate(kept.prompts)}
    rows = [number.get(id(prompt)) for prompt in prompts]
    requested_tokens, held = (sum(len(prompt.ids) for prompt in some) for some in (prompts, kept.prompts))
    if None in rows or requested_tokens < WORTH * held:
        return None
    return kept if rows == list(range(len(kept.prompts))) else kept.of(rows)


class VLM(Policy):
    """The policy. `shared_prefix`: encode and prefill a prompt once per group, in rollout and in the update."""

    writes_text = True

    def __init__(
        self,
        model: nn.Module,
        processor,
        *,
        max_tokens: int = 64,
        temperature: float = 1.0,
        nucleus: Nucleus = EVERY,
        stop: Sequence[str] = (),
        slots: int | None = None,
        cuda_graphs: bool = False,
        shared_prefix: bool = True,
        max_prompt: int | None = None,
        frame: str | None = None,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        cached_prompts: int = 4096,
    ):
        self.model, self.processor = model, processor
        self.codec = codec_for(processor, bare(model), max_prompt, frame)
        self.max_tokens, self.temperature, self.shared_prefix = max_tokens, temperature, shared_prefix
        self.nucleus, self.stop, self.slots = nucleus, tuple(stop), slots
        self.scorer: Any = self._make_scorer()
        self._scorer: Any = self.scorer
        self.generator = torch.Generator().manual_seed(seed)
        self.autocast = autocast
        self.work = StepProfiler(self.device)
        self.graphs = Graphs(self.device) if cuda_graphs else None
        self._prompts = Prompts(self.codec, self.work, cached_prompts)
        self._seen = TowerFeatures(bare(model), self.work)
        self._histories = Histories(bare(model))
        self._frozen: nn.Module | None = None
        self._adapter: dict[str, Tensor] | None = None  # the reference's, where it acts
        self._frozen_seen: TowerFeatures | None = None
        self._kept: Prefill | None = None
        self.one_pass = False  # through each layer in an evaluation: its weights are in parts (`vlrl.policies.weights`)
        self.passes = Passes()  # those without gradient
        self.version: str | None = None  # of the weights, where processes that have parts of them have agreed on one
        self._verified: set[str] = set()
        self.engine: Engine | None = None  # who writes completions; None: the policy itself

    def _make_scorer(self) -> nn.Module:
        """What computes log-probabilities; the model is made ready for it."""
        fused_modules.use_shared_prefix(bare(self.model))
        if self.shared_prefix:
            fused_modules.use(bare(self.model))
        hidden = hidden_states if self.shared_prefix else plain_states
        return TokenScorer(self.model, self.temperature, self.codec.banned_ids, hidden)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the latest completions that another engine wrote."""
        return {} if self.engine is None else self.engine.metrics

    @property
    def device(self) -> torch.device:
        return bare(self.model).device

    def precision(self):
        """The context in which the model runs: bf16 autocast on a GPU when asked for, else nothing."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def prompt(self, observation: Observation, key: str | None = None, before: Sequence[Turn] = ()) -> Prompt:
        """The observation preprocessed; with a key, which errors name, once while it is among the recently used.

        Args:
            before: the episode's earlier turns, by this policy: where the observation goes on with their conversation,
                its tokens are appended to theirs.
        """
        if observation.tools and not self.codec.shows_tools:
            self._tell_once("tools", "the model's chat template shows no tools: say in the prompt what can be called")
        if not continues(before, observation):
            return self._prompts.of(observation, key)
        reply = before[-1].decision
        reason = self.codec.appends
        if not reason and (self.codec.keeps_thoughts or "</think>" not in str(reply.action)):
            return self._prompts.after(reply.inputs.prompt, reply.inputs.tokens, observation)
        reason = reason or "its chat template drops the thoughts of earlier turns"
        self._tell_once("segments", f"{reason}: each turn is a training sequence of its own")
        return self._prompts.of(join_prompt(before, observation), key)

    def join(self) -> None:
        self.passes.join()

    def prepare(self, samples: Sequence[Sample], positions: Sequence[int]) -> None:
        if self.device.type != "cpu":  # which the update needs for itself: each would slow down the other
            self._prompts.prepare(samples, positions)

    def _tell_once(self, subject: str, message: str) -> None:
        if subject not in self._verified:
            self._verified.add(subject)
            print(f"\nvlrl: {message}", file=sys.stderr)

    def check(self, sample: Sample) -> None:
        """UserError where the sample's prompt is longer than the model takes, or the engine cannot write for it."""
        prompt = self.prompt(sample.prompt, sample.id)
        if self.engine is not None:
            generation.check(self, sample.prompt, prompt)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False,
        keep: bool = False, begun: Sequence[Sequence[int]] | None = None, room: int | None = None,
    ) -> list[Decision]:  # fmt: skip
        """One completion for each episode. Episodes of one group that have taken no turn share their prompt.

        With `keep`, the prompts' forward pass is kept with its graph for the next `evaluate`, which must come before
        any change of the weights and cover all these decisions at once: else it is dropped.

        Args:
            begun: the tokens that each completion begins with; the policy goes on from there. They are `forced`, and
                their log-probabilities 0.
            room: new tokens at most, where fewer than `max_tokens`.
        """
        keep = keep and begun is None and len({bool(joined.messages) for joined in observations}) == 1
        self._kept = None  # before another graph grows beside it
        with self.work.timed("media"):
            prompts, members = self._starts(episodes, observations, begun)
        before = [begun[first] if begun else () for first, *_ in members]
        counts, sampling = [len(m) for m in members], self._sampling(greedy, room)
        draws = self._draw_uniform(episodes, sampling, [i for m in members for i in m])
        if self.engine is None:
            texts = self.write([going_on(*each) for each in zip(prompts, before, strict=True)], counts, sampling, draws,
                               keep)  # fmt: skip
        else:
            joined = [join_prompt(episodes[first].turns, observations[first]) for first, *_ in members]
            with self.work.timed("decode"):
                request = generation.GenerationBatch(joined, prompts, before, counts)
                texts = generation.ask(self.engine, request, sampling, self.stop, draws)
        order = [(i, *each) for *each, m in zip(prompts, before, members, strict=True) for i in m]
        decisions = {
            i: self._make_decision(prompt, first, *text)
            for (i, prompt, first), *text in zip(
                order, texts.tokens, texts.logprobs, texts.entropy, texts.cut, strict=True
            )
        }
        in_order = [decisions[i] for i in range(len(episodes))]
        if self.engine is not None:
            return generation.scored(self, in_order, greedy)
        if self.shared_prefix and not greedy and begun is None and "sampling" not in self._verified:
            self._verified.add("sampling")
            self._verify(in_order, sampled=True)
        return in_order

    def _starts(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], begun: Sequence[Sequence[int]] | None
    ) -> tuple[list[Prompt], list[list[int]]]:
        """The prompts, and the episodes that start from each.

        Raises:
            OverlongError: conversations have become longer than the model takes.
        """
        members: OrderedDict[object, list[int]] = OrderedDict()
        for i, episode in enumerate(episodes):
            start = self._start(episode, observations, members, i, tuple(begun[i]) if begun else ())
            members.setdefault(start, []).append(i)
        starts: OrderedDict[object, tuple[Prompt, list[int]]] = OrderedDict()
        overlong = []
        for start, numbers in members.items():
            first = numbers[0]
            sample, turns = episodes[first].sample, episodes[first].turns
            key = sample.id if observations[first] is sample.prompt else None  # an environment may show another
            try:
                prompt = self.prompt(observations[first], key, turns)
            except OverlongError as error:
                if not turns:
                    raise
                self._tell_once("overlong", f"{error}. Such an episode ends as truncated (metric `overlong`)")
                overlong.append(episodes[first])
                continue
            # conversations that are the same so far go on together
            name = start if prompt.parent is None or begun or not self.shared_prefix else prompt
            starts.setdefault(name, (prompt, []))[1].extend(numbers)
        if overlong:
            raise OverlongError(f"{len(overlong)} conversations are longer than the model takes", overlong)
        return [prompt for prompt, _ in starts.values()], [numbers for _, numbers in starts.values()]

    def write(
        self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling, drawn: Tensor | None,
        keep: bool = False,
    ) -> Sampled:  # fmt: skip
        """`counts[i]` completions of prompt i, by the policy itself; arguments as
        `vlrl.policies.generation.decoding_write`."""
        later = self.slots and not keep and not any(prompt.is_conversation for prompt in prompts)
        whole = None if later else self._prefill(prompts, keep)

        def prefill(rows: Sequence[int]) -> Prefill:
            if whole is not None:
                return whole if len(rows) == len(prompts) else whole.of(rows)
            with torch.inference_mode(False):  # a frozen tower's features are kept for the update
                return self._prefill([prompts[i] for i in rows], False)

        with self.work.timed("decode"), self.precision():
            texts = decoding_write(bare(self.model), prompts, prefill, counts, sampling, drawn)
        self.work.add(tokens=texts.forwarded, tokens_distinct=sum(map(len, texts.tokens)))
        self._kept = whole if keep and not any(prompt.is_conversation for prompt in prompts) else None
        return texts

    def _make_decision(
        self, prompt: Prompt, first: Sequence[int], tokens: Sequence[int], logprobs: Tensor, entropy: Tensor, cut: bool
    ) -> Decision:
        """A completion as a decision: the tokens that were `first`, then those that were sampled."""
        forced, text = None, (*first, *tokens)
        if first:
            forced = torch.arange(len(text)) < len(first)
            logprobs, entropy = (torch.cat([torch.zeros(len(first)), part]) for part in (logprobs, entropy))
        reply = Reply(prompt, text)
        return Decision(self.codec.decode(text), logprobs, entropy, cut, prompt.frames, reply, forced)

    def _sampling(self, greedy: bool, room: int | None = None) -> Sampling:
        room = min(self.max_tokens, room or self.max_tokens)
        return self.sampling(room, 0.0 if greedy else self.temperature, self.stop)

    def sampling(self, max_tokens: int, temperature: float, stop: Sequence[str] = ()) -> Sampling:
        """How this policy samples, but for what is given; temperature 0 is greedy."""
        last = max(map(len, stop), default=0) + 4  # tokens; a character may be several

        def ended(tokens: list[int]) -> bool:
            return any(each in self.codec.decode(tokens[-last:]) for each in stop)

        return Sampling(
            max_tokens, temperature, self.codec.banned_ids, self.codec.stop_ids, self.nucleus,
            ended if stop else None, self.slots, self.graphs,
        )  # fmt: skip

    def _draw_uniform(self, episodes: Sequence[Episode], sampling: Sampling, order: Sequence[int]) -> Tensor | None:
        """A number in [0, 1) for each token of the episodes in this order, [B, max_tokens]; None: none is sampled."""
        if not sampling.temperature:
            return None
        return torch.from_numpy(uniforms(episodes, sampling.max_tokens, self.generator)[list(order)])

    def _prefill(self, prompts: Sequence[Prompt], keep: bool) -> Prefill:
        """All prompts forwarded once; with `keep` with their graph. Of conversations what is not kept of them alone."""
        if not self.shared_prefix or not any(prompt.is_conversation for prompt in prompts):
            return self._prefill_whole(prompts, keep)
        distinct = list(dict.fromkeys(prompts))
        parents = [prompt.parent for prompt in distinct if prompt.parent is not None]
        if keep and not parents:
            self._histories.forget()  # another rollout begins
        graph = keep and all(self._histories.of(parents, True))
        known = dict(zip(distinct, self._histories.of(distinct, graph), strict=True))
        self.work.add(
            conversation_tokens=sum(len(prompt.ids) for prompt in distinct),
            cached_tokens=sum(len(p.lineage[len(known[p]) - 1].ids) for p in distinct if known[p]),
        )
        whole = [prompt for prompt in distinct if not known[prompt]]
        added = [prompt for prompt in distinct if 0 < len(known[prompt]) < len(prompt.lineage)]
        prefills = [self._prefill_whole(whole, graph)] if whole else []
        prefills += [self._prefill_added(added, [known[prompt] for prompt in added], graph)] if added else []
        for prefill in prefills:
            for row, prompt in enumerate(prefill.prompts):
                fresh = split_prefill(prefill, row, len(known[prompt]), graph)
                for node, part in fresh.items():
                    self._histories.keep(node, part)
                known[prompt] = [*known[prompt], *fresh.values()]
        if whole == list(prompts):
            return prefills[0]
        last = torch.stack([known[prompt][-1].last for prompt in prompts])
        with torch.no_grad():
            return Prefill(tuple(prompts), last[:, None], joined_layers([known[prompt] for prompt in prompts]))

    def _prefill_added(self, prompts: Sequence[Prompt], before: Sequence[Sequence[Kept]], graph: bool) -> Prefill:
        """What follows the parts of prompts whose keys and values are known; with `graph` for the update as well."""
        self.model.train(graph)
        nodes = unknown(prompts, before)
        features = self._seen.of_added(nodes)
        with self.work.timed("prefill"), self.precision(), torch.set_grad_enabled(graph):
            prefill = prefill_behind(bare(self.model), prompts, before, self.codec.pad_id, features)
        self.model.eval()
        tokens = sum(len(node.ids) - len(node.parent.ids) for node in nodes)
        patches = sum(len(node.pixels) for node in nodes if node.pixels is not None)
        self.work.add(tokens=tokens, tokens_distinct=tokens, patches_distinct=patches)
        self._count_tower(patches, features)
        return prefill

    def _prefill_whole(self, prompts: Sequence[Prompt], keep: bool) -> Prefill:
        self.model.train(keep)  # gradient checkpointing works in this mode only; the families use no dropout
        with self.work.timed("prefill"), self.precision(), torch.set_grad_enabled(keep):
            packed = pack([(prompt, []) for prompt in prompts], self.codec.pad_id).to(self.device)
            prefill = prefilled(bare(self.model), prompts, packed, self._see(self._seen, prompts))
        self.model.eval()
        distinct = list(dict.fromkeys(prompts))
        self.work.add(
            tokens_distinct=sum(len(prompt.ids) for prompt in distinct),
            patches_distinct=sum(prompt.num_patches for prompt in distinct),
        )
        return prefill

    def _start(
        self, episode: Episode, observations: Sequence[Observation], members: Mapping[object, list[int]], i: int,
        first: tuple[int, ...],
    ) -> object:  # fmt: skip
        """What names the prompt of episode i: its group where it starts as the group's first does, else itself."""
        if not self.shared_prefix or episode.turns:
            return (i,)
        name = (episode.group, first)
        other = members.get(name, [i])[0]
        return name if observations[i].content == observations[other].content else (i,)

    def decide(
        self, observation: Observation, text: str, key: str | None = None, ids: Sequence[int] | None = None,
        before: Sequence[Turn] = (),
    ) -> Decision:  # fmt: skip
        """A given text as a decision of this policy: for supervised training and offline scoring.

        Args:
            ids: the tokens that wrote it, where they are known (`ids`).
            before: as of `prompt`.
        """
        return self.decision(
            self.prompt(observation, key, before), self.codec.tokens(text) if ids is None else ids, text
        )

    def decision(self, prompt: Prompt, tokens: Sequence[int], text: str = "") -> Decision:
        """Given tokens as a decision, whose log-probabilities nobody knows: zeros."""
        nothing = torch.zeros(len(tokens))
        return Decision(text, nothing, nothing, False, prompt.frames, Reply(prompt, tuple(tokens)))

    def ids(self, decision: Decision) -> list[int]:
        """The tokens that the policy wrote: its text, read anew, may fall into others, or gain a stop token."""
        return list(decision.inputs.tokens)

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """Log-probabilities and entropies [B, T] under the present weights, with gradient."""
        kept, self._kept = self._kept, None  # a graph serves one backward pass
        talks = self._histories.with_graph()
        self._histories.forget()  # the rollout is over; training needs the memory
        if self.shared_prefix and not self.one_pass and "scoring" not in self._verified:
            self._verified.add("scoring")
            self._verify(decisions, sampled=False)
        self.model.train()  # gradient checkpointing works in this mode only; the families use no dropout
        with self.work.timed("forward"):
            if self.shared_prefix and serves(talks, [decision.inputs.prompt for decision in decisions], WORTH):
                return self._evaluate_kept(decisions, talks)
            return self._evaluate(self.scorer, decisions, self._seen, kept if self.shared_prefix else None)

    @torch.no_grad()
    def score(self, decisions: Sequence[Decision]) -> list[tuple[Tensor, Tensor]]:
        """Log-probabilities and entropies [T] of each decision under the present weights, on the CPU."""
        values = []
        for now in self._evaluations(decisions):
            rows = zip(now.logprobs.cpu(), now.entropy.cpu(), now.mask.cpu(), strict=True)
            values += [(logprobs[mask], entropy[mask]) for logprobs, entropy, mask in rows]
        return values

    def _evaluations(self, decisions: Sequence[Decision]) -> Iterator[Evaluation]:
        """Without gradient, some decisions at a time."""
        self.model.eval()
        with self.work.timed("logprob"):
            for start in range(0, len(decisions), ROWS):
                some = decisions[start : start + ROWS]
                yield self.passes.run("policy", lambda rows=some: self._evaluate(self._scorer, rows, self._seen))

    @torch.no_grad()
    def candidates(self, decisions: Sequence[Decision], of_reference: bool = False) -> list[Tensor]:
        """Log-probabilities [T, 1 + K] of each token and of the candidates that its decision names, on the CPU.

        Args:
            of_reference: under the reference instead of the present weights.
        """
        parts = [self._reference(decisions)] if of_reference else self._evaluations(decisions)
        rows: list[Tensor] = []
        for now in parts:
            both = torch.cat([now.logprobs[..., None], now.candidates], -1)
            rows += [row[mask].cpu() for row, mask in zip(both, now.mask, strict=True)]
        return rows

    @torch.no_grad()
    def _verify(self, decisions: Sequence[Decision], sampled: bool) -> None:
        """At first use: a few log-probabilities, of scoring or of sampling just now, beside the model's own."""
        few = [decisions[0], *decisions[1:2], decisions[-1]]
        self.model.eval()
        logprobs = None if sampled else self._evaluate(self._scorer, few, self._seen).logprobs
        fast, self._scorer.hidden = self._scorer.hidden, plain_states
        self.shared_prefix = False
        with fused_modules.plain(bare(self.model)):
            plain = self._evaluate(self._scorer, few, self._seen)
        if sampled:
            logprobs = torch.zeros_like(plain.logprobs)
            logprobs[plain.mask] = torch.cat([decision.logprobs for decision in few]).to(logprobs.device)
        gap = _gap(logprobs, plain.logprobs)
        if gap <= compute_tolerance(self.autocast or bare(self.model).lm_head.weight.dtype):
            self.shared_prefix, self._scorer.hidden = True, fast
            return
        if fast is not hidden_states:
            raise UserError(f"the passes that processes share are off by up to {gap:.2g} nats: do not share sequences")
        self._kept = None
        fused_modules.drop(bare(self.model))
        print(
            f"\nvlrl: log-probabilities of the fast passes are off by up to {gap:.2g} from those of the model's "
            "own, so train.shared_prefix is false from here on; please report the model and the versions",
            file=sys.stderr,
        )

    def effort(self, decisions: Sequence[Decision], *, passes: int, epochs: int, kept: bool) -> float:
        """FLOPs that a step with these decisions cannot do without."""
        replies = [(d.inputs.prompt, d.inputs.tokens) for d in decisions]
        return count_flops(self.model, replies, passes=passes, epochs=epochs, kept=kept)

    @torch.no_grad()
    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """The last hidden state at the end of each decision's prompt, float32 [B, H]: what a critic can read."""
        self.passes.check_whole("a critic")
        prompts = list({id(d.inputs.prompt): d.inputs.prompt for d in decisions}.values())
        size = max(1, TOKENS // max(len(prompt.ids) for prompt in prompts))
        with self.precision():
            parts = [self._ends(prompts[start : start + size]) for start in range(0, len(prompts), size)]
        row = {id(prompt): i for i, prompt in enumerate(prompts)}
        return torch.cat(parts)[[row[id(d.inputs.prompt)] for d in decisions]]

    def _ends(self, prompts: Sequence[Prompt]) -> Tensor:
        """The hidden state [prompts, H] behind each prompt's last token."""
        return self._prefill(prompts, keep=False).last().float()

    @torch.no_grad()
    def token_states(self, decisions: Sequence[Decision]) -> list[Tensor]:
        """What each token of a decision was predicted from: last hidden states [T, H], in the model's own type."""
        self.passes.check_whole("what looks at hidden states")
        texts, order = grouped([(d.inputs.prompt, d.inputs.tokens) for d in decisions], self.shared_prefix)
        rows = alone(texts)[0] if long(texts) else texts
        self.model.eval()
        with self.work.timed("logprob"), self.precision():
            packed = pack(rows, self.codec.pad_id).to(self.device)
            features_of = self._see(self._seen, [prompt for prompt, _ in rows])
            hidden = self._scorer.hidden(bare(self.model), packed, features_of).flatten(0, 1)[packed.source]
        self.work.add(tokens=len(packed.target))
        parts = hidden.split([len(decisions[b].inputs.tokens) for b in order])
        return [parts[order.index(b)] for b in range(len(decisions))]

    def likeliest(self, decisions: Sequence[Decision], k: int) -> list[tuple[Tensor, Tensor]]:
        """The k likeliest tokens at each token's place (`vlrl.policies.vlm`)."""
        return likeliest(self, decisions, k)

    @torch.no_grad()
    def reference(self, decisions: Sequence[Decision]) -> Tensor:
        """Log-probabilities [B, T] under the reference: the adapter off or as it was, or a copy of the weights."""
        return self._reference(decisions).logprobs

    def _reference(self, decisions: Sequence[Decision]) -> Evaluation:
        with self.work.timed("logprob"):
            if has_adapter(self.model):
                off = self._adapter is None
                with self.model.disable_adapter() if off else swapped(self.model, self._adapter):
                    return self._evaluate(self.scorer, decisions, self._seen)
            if self._frozen is None:
                raise RuntimeError("call freeze_reference() before the first update")
            return self.passes.run("reference", lambda: self._evaluate(self._frozen, decisions, self._frozen_seen))

    def freeze_reference(self) -> None:
        """Remembers the present weights as the reference, whenever it is called.

        Of an adapter alone that is the adapter, which is switched off instead while it does nothing.
        """
        if has_adapter(self.model):
            self._adapter = learned(self.model) if acts(self.model) else None
            return
        self._frozen = self.passes.freeze(self._scorer)
        self._frozen_seen = TowerFeatures(bare(self._frozen.model), self.work)

    def _evaluate(
        self, scorer: nn.Module, decisions: Sequence[Decision], features: TowerFeatures, kept: Prefill | None = None
    ) -> Evaluation:
        sequences = [(d.inputs.prompt, d.inputs.tokens) for d in decisions]
        if self.shared_prefix and any(prompt.parent for prompt, _ in sequences):
            return self._evaluate_tree(scorer, decisions, find_branches(sequences), features)
        texts, order = grouped(sequences, self.shared_prefix)
        texts = alone(texts)[0] if self.one_pass and long(texts) else texts
        prompts, pad = [prompt for prompt, _ in texts], self.codec.pad_id
        before: Prefill | Packed | None = kept and part_of(kept, prompts)
        media = None if before else self._see(features, prompts)
        rows, behind = alone(texts) if long(texts) else (texts, range(len(texts)))
        if before is None and rows is not texts:
            before = pack([(prompt, []) for prompt in prompts], pad).to(self.device)
        if before is None:
            packed = pack(texts, pad)
        else:
            shape = (before.ids if isinstance(before, Packed) else before.hidden).shape[:2]
            packed = pack_replies(rows, behind, pad, shape)
        self.work.add(tokens=len(packed.target))
        packed = with_candidates(packed, order, decisions)
        with self.precision():
            flat = scorer(packed.to(self.device), media, before)
        return spread(*flat, order, [len(d.inputs.tokens) for d in decisions])

    def _evaluate_tree(
        self, scorer: nn.Module, decisions: Sequence[Decision], branches: Sequence[ConversationBranch],
        features: TowerFeatures,
    ) -> Evaluation:  # fmt: skip
        """Of conversations: what several have in common once, and behind it each one's own turns."""
        levels = make_levels(branches, shared=not self.one_pass)
        media = [[n for segment in level for n in segment.added if n.pixels is not None] for level in levels]
        features_by_level = [features.of_added(nodes) for nodes in media]
        for nodes, features_of in zip(media, features_by_level, strict=True):
            self._count_tower(sum(len(node.pixels) for node in nodes), features_of)
        self.work.add(tokens=sum(segment.size for level in levels for segment in level))
        order = order_of(levels)
        packed = with_candidates(pack_levels(levels, self.codec.pad_id), order, decisions)
        with self.precision():
            flat = scorer(packed.to(self.device), features_by_level)
        return spread(*flat, order, [len(decision.inputs.tokens) for decision in decisions])

    def _evaluate_kept(self, decisions: Sequence[Decision], known: Mapping[Prompt, Kept]) -> Evaluation:
        """Of conversations that the rollout forwarded with their graph: their last completions are all that is left."""
        branches = find_branches([(d.inputs.prompt, d.inputs.tokens) for d in decisions])
        packed, before = pack_ends(branches, known, self.codec.pad_id)
        self.work.add(tokens=packed.ids.numel())
        order = [reply.number for branch in branches for reply in branch.replies]
        packed = with_candidates(packed, order, decisions)
        with self.precision():
            flat = self.scorer(packed.to(self.device), None, before)
        return spread(*flat, order, [len(decision.inputs.tokens) for decision in decisions])

    def _see(self, features: TowerFeatures, prompts: Sequence[Prompt]) -> MediaFeatures | None:
        """What a frozen tower has made of prompts that are to be forwarded, which are counted."""
        media = features.of(prompts) if self.shared_prefix else None
        self.work.add(tokens=sum(len(prompt.ids) for prompt in prompts))
        self._count_tower(sum(prompt.num_patches for prompt in prompts), media)
        return media

    def _count_tower(self, patches: int, seen: MediaFeatures | None) -> None:
        """The tower's call for media of so many patches, where it has not seen them before."""
        if patches and seen is None:
            self.work.add(tower_calls=1, patches=patches)

    def save(self, folder: Path, in_parts: bool = False) -> None:
        """Weights (safetensors) and processor in Hugging Face layout; under LoRA the adapter alone.

        in_parts: the model's weights are, at this time, and all processes call this.
        """
        if in_parts:
            save_parts(self.model, folder)
        else:
            self.model.save_pretrained(folder, safe_serialization=True)
        if not in_parts or get_rank() == 0:
            self.processor.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote, bit for bit, into the present model.

        Raises:
            UserError: the folder's weights are not this model's.
        """
        if has_adapter(self.model):
            from peft import load_peft_weights, set_peft_model_state_dict

            set_peft_model_state_dict(self.model, load_peft_weights(str(folder), device=str(self.device)))
            return
        family = cast(Any, type(bare(self.model)))
        saved = family.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).state_dict()
        own = self.model.state_dict()
        different = [name for name in own if name not in saved or saved[name].shape != own[name].shape]
        if different or len(saved) != len(own):
            raise UserError(f"{folder} holds the weights of another architecture: {different[:1] or 'other keys'}")
        self.model.load_state_dict(saved)
        self.forget()

    def forget(self) -> None:
        """Drops what was made of prompts before: other weights see otherwise, and other batches round otherwise."""
        self._kept = None
        for features in (self._seen, self._frozen_seen):
            if features is not None:
                features.forget()
        self._histories.forget()


# The floating point operations that a step cannot do without: what its MFU counts.


def count_flops(
    model: nn.Module, replies: Sequence[tuple[Prompt, Sequence[int]]], *, passes: int, epochs: int, kept: bool
) -> float:
    """FLOPs of sampling replies and updating on them, each prompt forwarded as seldom as the method allows.

    Of a conversation's prompts only what each adds to the one before is forwarded.

    Args:
        passes: without gradient, for a reference.
        epochs: passes over the step's rollouts.
        kept: whether the rollout's pass over the prompts may serve the update.
    """
    geometry, size = from_config(bare(model).config.to_dict()), bare(model).model.visual.spatial_merge_size ** 2
    back = factors(_learning(model), lora=has_adapter(model))
    update = Update("kept" if kept else "shared", passes=passes, epochs=epochs, **back)
    groups: dict[Prompt, list[int]] = {}
    for prompt, tokens in replies:
        for node in prompt.lineage:
            groups.setdefault(node, [])
        groups[prompt].append(len(tokens))
    total = 0.0
    for prompt, lengths in groups.items():
        before, own = 0, len(prompt.ids)
        if prompt.parent is not None:  # what was written before it is forwarded as a completion
            before = len(prompt.parent.ids) + max(groups[prompt.parent], default=0)
            own -= before
        visual = 0 if prompt.pixels is None else len(prompt.pixels) // size
        frames = 1 if prompt.grid is None else int(prompt.grid[:, 0].sum())
        mean = sum(lengths) / max(len(lengths), 1)
        total += step(geometry, Group(max(own, 0), visual, mean, len(lengths), frames, before), update).all.total
    return total


def _learning(model: nn.Module) -> dict[str, int]:
    """Part -> how many of its parameters train."""
    learning = {"vision": 0, "projector": 0, "language": 0}
    for name, parameter in model.named_parameters():
        part = "projector" if "merger" in name else "vision" if "visual" in name else "language"
        learning[part] += parameter.numel() * parameter.requires_grad
    return learning
