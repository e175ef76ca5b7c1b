"""A Hugging Face vision-language model as a policy: acting, evaluating, reference, saving."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from vlrl.policies import attention
from vlrl.policies.codecs import Prompt, codec_for
from vlrl.policies.decoding import Prefill, entropy_of, law
from vlrl.policies.decoding import sample as decode
from vlrl.policies.packing import Packed, pack, pack_replies
from vlrl.types import Decision, Episode, Evaluation, Observation, Sample, UserError, Video

CHUNK = 2**25  # logits held at once while scoring: tokens times vocabulary
TOKENS = 2**14  # of prompts that are forwarded at once for their features
CACHED = 2**32  # bytes of prompts that are kept for when they come again


@dataclass(frozen=True)
class Reply:
    """What a VLM keeps of its own decision: the prompt it saw and the tokens it wrote."""

    prompt: Prompt
    tokens: tuple[int, ...]


class Scorer(nn.Module):
    """Log-probabilities and entropies of packed completions. The one forward that is trained and may be wrapped."""

    def __init__(self, model: nn.Module, temperature: float, banned_ids: Sequence[int], chunk: int = CHUNK):
        super().__init__()
        self.model, self.temperature, self.chunk = model, temperature, chunk
        self.register_buffer("banned", torch.tensor(banned_ids, dtype=torch.int64), persistent=False)

    def forward(self, packed: Packed, prefill: Prefill | None = None) -> tuple[Tensor, Tensor]:
        """-> log-probabilities [n] of the targets and entropies [n], float32. With a prefill, `packed` are replies."""
        base = bare(self.model)
        if prefill is None:
            hidden = base.model(
                input_ids=packed.ids, position_ids=packed.positions, attention_mask=packed.mask,
                mm_token_type_ids=packed.types, pixel_values=packed.pixels, image_grid_thw=packed.grid, use_cache=False,
            ).last_hidden_state  # fmt: skip
        else:
            replies = base.model.language_model(
                inputs_embeds=base.get_input_embeddings()(packed.ids), position_ids=packed.positions,
                attention_mask=packed.mask, past_key_values=DynamicCache(ddp_cache_data=prefill.layers), use_cache=True,
            ).last_hidden_state  # fmt: skip
            hidden = torch.cat([prefill.hidden, replies], 1)
        chosen = hidden.flatten(0, 1)[packed.source]
        size = max(1, self.chunk // base.lm_head.out_features)
        if len(chosen) <= size:
            return self.score(chosen, packed.target)
        parts = [  # the logits of a chunk are recomputed in the backward pass instead of kept
            checkpoint(self.score, h, t, use_reentrant=False)
            for h, t in zip(chosen.split(size), packed.target.split(size), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def score(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = law(bare(self.model).lm_head(hidden), self.temperature, self.banned)
        return logprobs.gather(-1, target[:, None])[:, 0], entropy_of(logprobs)


def bare(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside a peft wrapper (whose layers carry the adapter), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def digest(observation: Observation) -> bytes:
    """The same for observations that a model sees alike."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in observation.content:
        if isinstance(part, str):
            told, held = part, b""
        elif isinstance(part, Video):
            told, held = f"{part.times} {part.size}", part.frames.tobytes()
        else:
            told, held = f"{part.mode} {part.size}", part.tobytes()
        hashed.update(f"{len(told)} {told}".encode())
        hashed.update(held)
    return hashed.digest()


class VLM:
    """The policy. `shared_prefix`: encode and prefill a prompt once per group, in rollout and in the update."""

    def __init__(
        self,
        model: nn.Module,
        processor,
        *,
        max_tokens: int = 64,
        temperature: float = 1.0,
        shared_prefix: bool = True,
        max_prompt: int | None = None,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        cached_prompts: int = 4096,
    ):
        self.model, self.processor = model, processor
        attention.use(bare(model))
        self.codec = codec_for(processor, bare(model), max_prompt)
        self.max_tokens, self.temperature, self.shared_prefix = max_tokens, temperature, shared_prefix
        self.scorer = Scorer(model, temperature, self.codec.banned_ids).to(bare(model).device)
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.autocast = autocast
        self._frozen: nn.Module | None = None
        self._kept: Prefill | None = None
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._held = 0  # bytes of them
        self._cached_prompts = cached_prompts

    @property
    def device(self) -> torch.device:
        return bare(self.model).device

    def precision(self):
        """The context in which the model runs: bf16 autocast on a GPU when asked for, else nothing."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def prompt(self, observation: Observation, key: str | None = None) -> Prompt:
        """The observation preprocessed; with a key, which errors name, once while it is among the recently used."""
        if key is None:
            return self.codec.encode(observation)
        content = digest(observation)  # not the key: two tasks may number their samples alike
        if content in self._prompts:
            self._prompts.move_to_end(content)
            return self._prompts[content]
        try:
            made = self._prompts[content] = self.codec.encode(observation)
        except UserError as error:
            raise UserError(f"sample {key}: {error}") from None
        self._held += made.nbytes
        while len(self._prompts) > 1 and (len(self._prompts) > self._cached_prompts or self._held > CACHED):
            self._held -= self._prompts.popitem(last=False)[1].nbytes
        return made

    def check(self, sample: Sample) -> None:
        """UserError where the sample's prompt is longer than the model takes."""
        self.prompt(sample.prompt, sample.id)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One completion for each episode. Episodes of one group that have taken no turn share their prompt.

        With `keep`, the prompts' forward pass is kept with its graph for the next `evaluate`, which must come before
        any change of the weights and cover all these decisions at once: else it is dropped.
        """
        members: OrderedDict[object, list[int]] = OrderedDict()  # prompt -> the episodes that start from it
        for i, episode in enumerate(episodes):
            members.setdefault(self._start(episode, observations, members, i), []).append(i)
        prompts = []
        for first, *_ in members.values():
            sample = episodes[first].sample
            key = sample.id if observations[first] is sample.prompt else None  # an environment may show another start
            prompts.append(self.prompt(observations[first], key))
        self.model.eval()
        with self.precision():
            made = decode(
                bare(self.model), prompts, [len(m) for m in members.values()], max_tokens=self.max_tokens,
                temperature=0.0 if greedy else self.temperature, banned_ids=self.codec.banned_ids,
                stop_ids=self.codec.stop_ids, pad_id=self.codec.pad_id, generator=self.generator, keep=keep,
            )  # fmt: skip
        self._kept = made.prefill
        order = [(i, prompt) for prompt, m in zip(prompts, members.values(), strict=True) for i in m]
        decisions = {
            i: Decision(self.codec.decode(tokens), logprobs, entropy, cut, prompt.frames, Reply(prompt, tuple(tokens)))
            for (i, prompt), tokens, logprobs, entropy, cut in zip(
                order, made.tokens, made.logprobs, made.entropy, made.cut, strict=True
            )
        }
        return [decisions[i] for i in range(len(episodes))]

    def _start(
        self, episode: Episode, observations: Sequence[Observation], members: Mapping[object, list[int]], i: int
    ) -> object:
        """What names the prompt of episode i: its group where it starts as the group's first does, else itself."""
        if not self.shared_prefix or episode.turns:
            return (i,)
        first = members.get(episode.group, [i])[0]
        return episode.group if observations[i].content == observations[first].content else (i,)

    def decide(
        self, observation: Observation, text: str, key: str | None = None, ids: Sequence[int] | None = None
    ) -> Decision:
        """A given text as a decision of this policy: for supervised training and offline scoring.

        Args:
            ids: the tokens that wrote it, where they are known (`ids`).
        """
        prompt, tokens = self.prompt(observation, key), tuple(self.codec.tokens(text) if ids is None else ids)
        nothing = torch.zeros(len(tokens))
        return Decision(text, nothing, nothing, False, prompt.frames, Reply(prompt, tokens))

    def ids(self, decision: Decision) -> list[int]:
        """The tokens that the policy wrote: its text, read anew, may fall into others, or gain a stop token."""
        return list(decision.inputs.tokens)

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """Log-probabilities and entropies [B, T] under the present weights, with gradient."""
        self.model.train()  # gradient checkpointing works in this mode only; the families use no dropout
        kept, self._kept = self._kept, None  # a graph serves one backward pass
        return self._evaluate(self.scorer, decisions, kept)

    @torch.no_grad()
    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """The last hidden state at the end of each decision's prompt, float32 [B, H]: what a critic can read."""
        prompts = list({id(d.inputs.prompt): d.inputs.prompt for d in decisions}.values())
        size = max(1, TOKENS // max(len(prompt.ids) for prompt in prompts))
        self.model.eval()
        with self.precision():
            parts = [self._ends(prompts[start : start + size]) for start in range(0, len(prompts), size)]
        row = {id(prompt): i for i, prompt in enumerate(prompts)}
        return torch.cat(parts)[[row[id(d.inputs.prompt)] for d in decisions]]

    def _ends(self, prompts: Sequence[Prompt]) -> Tensor:
        """The hidden state [prompts, H] behind each prompt's last token."""
        packed = pack([(prompt, []) for prompt in prompts], self.codec.pad_id).to(self.device)
        hidden = bare(self.model).model(
            input_ids=packed.ids, position_ids=packed.positions, mm_token_type_ids=packed.types,
            pixel_values=packed.pixels, image_grid_thw=packed.grid, use_cache=False,
        ).last_hidden_state  # fmt: skip
        last = torch.tensor([len(prompt.ids) - 1 for prompt in prompts], device=self.device)
        return hidden[torch.arange(len(prompts), device=self.device), last].float()

    @torch.no_grad()
    def reference(self, decisions: Sequence[Decision]) -> Tensor:
        """Log-probabilities [B, T] under the frozen start: the adapter switched off, or a copy of the weights."""
        if hasattr(self.model, "disable_adapter"):
            with self.model.disable_adapter():
                return self._evaluate(self.scorer, decisions).logprobs
        if self._frozen is None:
            raise RuntimeError("call freeze_reference() before the first update")
        return self._evaluate(self._frozen, decisions).logprobs

    def freeze_reference(self) -> None:
        """Remembers the present weights as the reference (LoRA needs no copy)."""
        if not hasattr(self.model, "disable_adapter"):
            self._frozen = copy.deepcopy(self.scorer).requires_grad_(False).eval()

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision], kept: Prefill | None = None) -> Evaluation:
        replies = [d.inputs for d in decisions]
        rows: OrderedDict[int, tuple[Prompt, list[int]]] = OrderedDict()
        for b, reply in enumerate(replies):
            key = id(reply.prompt) if self.shared_prefix else b
            rows.setdefault(key, (reply.prompt, []))[1].append(b)
        texts = [(prompt, [replies[b].tokens for b in members]) for prompt, members in rows.values()]
        if kept and [id(prompt) for prompt, _ in texts] == [id(prompt) for prompt in kept.prompts]:
            packed = pack_replies(texts, self.codec.pad_id, kept.hidden.shape[1])
        else:
            packed, kept = pack(texts, self.codec.pad_id), None
        with self.precision():
            flat_logprobs, flat_entropy = scorer(packed.to(self.device), kept)
        order = [b for _, members in rows.values() for b in members]
        lengths = torch.tensor([len(reply.tokens) for reply in replies])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(self.device)
        row = torch.cat([torch.full((len(replies[b].tokens),), b) for b in order])
        column = torch.cat([torch.arange(len(replies[b].tokens)) for b in order])
        place = (row.to(self.device), column.to(self.device))
        empty = flat_logprobs.new_zeros(mask.shape)
        return Evaluation(empty.index_put(place, flat_logprobs), empty.index_put(place, flat_entropy), mask)

    def save(self, folder: Path) -> None:
        """Weights (safetensors) and processor in Hugging Face layout; under LoRA the adapter alone."""
        self.model.save_pretrained(folder, safe_serialization=True)
        self.processor.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote, bit for bit, into the present model.

        Raises:
            UserError: the folder's weights are not this model's.
        """
        if hasattr(self.model, "disable_adapter"):
            from peft import load_peft_weights, set_peft_model_state_dict

            set_peft_model_state_dict(self.model, load_peft_weights(str(folder), device=str(self.device)))
            return
        saved = type(bare(self.model)).from_pretrained(folder, dtype=torch.float32).state_dict()
        own = self.model.state_dict()
        different = [name for name in own if name not in saved or saved[name].shape != own[name].shape]
        if different or len(saved) != len(own):
            raise UserError(f"{folder} holds the weights of another architecture: {different[:1] or 'other keys'}")
        self.model.load_state_dict(saved)

    def state_dict(self) -> dict:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.generator.set_state(state["generator"])
