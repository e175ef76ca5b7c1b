"""Steps of training on tiny models, for tests that count what they cost."""

from __future__ import annotations

import functools

import torch
from PIL import Image

from vlrl.config import PolicySection
from vlrl.performance.memory import MemoryInputs, adapters
from vlrl.performance.profiling import Group, Update, factors, from_config, parameters
from vlrl.policies import generation
from vlrl.policies.loading import _narrow, _trainable
from vlrl.policies.processor import Prompt
from vlrl.policies.tiny import build, tokenizer_from
from vlrl.policies.vlm import VLM
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn

TEXT = "Click the red square. Give the point to click as <answer>[x, y]</answer>."
PATCH = {"qwen2_5_vl": 14, "qwen3_vl": 16}


@functools.cache
def tokenizer():
    return tokenizer_from([TEXT])


class Tiny:
    """A policy on noise images whose completions never stop early, and what a plan knows of it."""

    def __init__(
        self, family: str, mode: str, *, hidden: int = 160, layers: int = 3, prompts: int = 2, members: int = 4,
        tokens: int = 12, side: int = 8, autocast: torch.dtype | None = None, **policy,
    ):  # fmt: skip
        section = PolicySection(**policy)
        model, processor = build(
            tokenizer(), family=family, hidden=hidden, layers=layers, vision_hidden=96, vision_layers=3,
            patch=PATCH[family],
        )  # fmt: skip
        self.geometry, self.mode, self.prompts, self.members, self.tokens = (
            from_config(model.config.to_dict()), mode, prompts, members, tokens,
        )  # fmt: skip
        model = _trainable(model, section)
        if autocast is not None:
            _narrow(model)
        if section.gradient_checkpointing:
            generation.bare(model).activation_checkpointing_enable({"use_reentrant": False})
        self.policy = VLM(model, processor, max_tokens=tokens, shared_prefix=mode != "naive", autocast=autocast)
        self.policy.codec.stop_ids = ()
        added = adapters(self.geometry, section.lora.rank, section.lora.targets) if section.lora else None
        whole = added or vars(parameters(self.geometry))
        self.learning = {part: count for part, count in whole.items() if part not in section.freeze}
        self.update = Update(
            mode, **factors({**dict.fromkeys(whole, 0), **self.learning}, bool(added)),
            checkpointed=section.gradient_checkpointing,
        )  # fmt: skip
        self.added, self.width, self.side = added, 4 if autocast is None else 2, side * 2 * PATCH[family]
        learned = [p for p in self.policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=1e-6, fused=True)
        self.drawn = torch.Generator().manual_seed(0)

    def act(self) -> list[Decision]:
        """A rollout on new images."""
        episodes = []
        for p in range(self.prompts):
            noise = torch.randint(0, 256, (self.side, self.side, 3), dtype=torch.uint8, generator=self.drawn)
            sample = Sample(f"{p}", Observation((Image.fromarray(noise.numpy()), TEXT)))
            episodes += [Episode(sample, p) for _ in range(self.members)]
        shown = [episode.sample.prompt for episode in episodes]
        decisions = self.policy.act(episodes, shown, keep=self.mode == "kept")
        for episode, decision in zip(episodes, decisions, strict=True):
            episode.turns.append(Turn(episode.sample.prompt, decision, Step(episode.sample.prompt, terminated=True)))
        return decisions

    def step(self) -> Prompt:
        """A rollout and its update; returns a prompt of it."""
        decisions = self.act()
        now = self.policy.evaluate(decisions)
        advantage = torch.linspace(-1, 1, len(decisions))[:, None]
        (-(advantage * (now.logprobs - now.logprobs.detach()).exp())[now.mask].mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return decisions[0].inputs.prompt

    def run(self, prompt: Prompt) -> MemoryInputs:
        """What the memory model takes."""
        return MemoryInputs(
            self.geometry, group_of(self, prompt), self.update, self.prompts, self.prompts,
            trained=sum(self.learning.values()), adapters=sum(self.learning.values()) if self.added else 0,
            width=self.width,
        )  # fmt: skip


def group_of(tiny: Tiny, prompt: Prompt) -> Group:
    return Group(len(prompt.ids), int(prompt.types.sum()), tiny.tokens, tiny.members)
