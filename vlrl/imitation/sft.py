"""A supervised start: a tiny model, built from scratch or ready, learns the gold answers of a mixture of tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl import registry
from vlrl.config import Config, PolicySection
from vlrl.engines import load_policy
from vlrl.episode_store import recorded_read
from vlrl.imitation.configs import Lesson, WarmstartConfig
from vlrl.policies import tiny
from vlrl.policies.conversation import continues
from vlrl.policies.loading import bundled, newest_checkpoint
from vlrl.policies.plain import PlainVLM, missing
from vlrl.policies.processor import CODECS, Prompt
from vlrl.policies.vlm import VLM, Reply
from vlrl.runner import EvalResult, Runner, SupervisedLearner, evaluate_export, summarise
from vlrl.types import Decision, Frame, Sample, Turn, UserError
from vlrl.update import optimizers_build


@dataclass(frozen=True)
class GoldDecision:
    """A gold answer as a decision; its first `given` tokens belong to the question and are not learned."""

    decision: Decision
    given: int


class Demonstrations(Sequence[Sample]):
    """Recorded episodes that succeeded, as samples: each turn, or all turns of a conversation, whose texts are learned.

    A sample's answer is the turns, oldest first; the later ones continue the first one's conversation.
    """

    def __init__(self, folder: str):
        self._episodes = recorded_read(folder)
        self._runs = [
            (number, *run) for number, e in enumerate(self._episodes) if e.score.is_correct for run in runs_of(e.turns)
        ]
        if not self._runs:
            raise UserError(f"{folder}: no episode succeeded: record some with --by gold")

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Sample:
        number, first, end = self._runs[index]
        turns = self._episodes[number].turns[first:end]
        return Sample(f"{number}/{first}", turns[0].observation, turns)

    def samples(self, split: str) -> Demonstrations:
        return self

    def close(self) -> None:
        """Nothing to release."""

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        return str(sample.answer[0].decision.action)


def runs_of(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Where an episode's conversations begin and end; a turn that continues none is one by itself."""
    starts = [i for i, turn in enumerate(turns) if not continues(turns[:i], turn.observation)]
    return list(zip(starts, [*starts[1:], len(turns)], strict=True))


class LessonSampler:
    """A mixture of tasks: one by its share, and a block of its consecutive training samples."""

    def __init__(self, tasks: Sequence[Any], lessons: Sequence[Lesson]):
        self.tasks, self.blocks = tasks, [lesson.block for lesson in lessons]
        self.pools = [task.samples("train") for task in tasks]
        shares = np.asarray([lesson.share for lesson in lessons])
        self.shares = shares / shares.sum()

    def draw(self, rng: np.random.Generator) -> tuple[Any, list[Sample]]:
        """A task and its samples."""
        i = int(rng.choice(len(self.tasks), p=self.shares))
        pool, block = self.pools[i], self.blocks[i]
        first = int(rng.integers(len(pool) // block)) * block
        return self.tasks[i], [pool[first + k] for k in range(block)]


def questions(policy: VLM, task: Any, samples: Sequence[Sample]) -> list[GoldDecision]:
    """The samples' gold answers. Samples that begin with one image share it: it is encoded and forwarded once."""
    if isinstance(task, Demonstrations) and any(len(sample.answer) > 1 for sample in samples):
        return [question for sample in samples for question in conversation(policy, sample.answer)]
    prompts = [policy.prompt(sample.prompt) for sample in samples]
    head = _until_image_ends(prompts[0])
    made = []
    for sample, prompt in zip(samples, prompts, strict=True):
        if (text := task.gold(sample, prompt.frames)) is None:
            raise UserError(f"{sample.id}: no right answer is known that could be imitated")
        answer, given = policy.codec.tokens(text), prompt.ids[len(head.ids) :].tolist()
        if not _begins_with(prompt, head):
            raise UserError("lessons: a block of samples must show one image: leave `block` out")
        nothing = torch.zeros(len(given) + len(answer))
        reply = Reply(head, (*given, *answer))
        made.append(GoldDecision(Decision(text, nothing, nothing, False, prompt.frames, reply), len(given)))
    return made


def conversation(policy: VLM, turns: Sequence[Turn]) -> list[GoldDecision]:
    """A conversation's replies. They are forwarded as one sequence, of which what was shown is not learned."""
    made: list[Turn] = []
    for turn in turns:
        decision = policy.decide(turn.observation, str(turn.decision.action), before=made)
        made.append(replace(turn, decision=decision))
    return [GoldDecision(turn.decision, 0) for turn in made]


def _until_image_ends(prompt: Prompt) -> Prompt:
    """The prompt up to its last image's end token; positions of what follows go on from there, as in the whole.

    Of a prompt without images: all of it.
    """
    if prompt.pixels is None:
        return prompt
    end = int(prompt.types.nonzero().max()) + 2
    return replace(prompt, ids=prompt.ids[:end], types=prompt.types[:end], positions=prompt.positions[:, :end])


def _begins_with(prompt: Prompt, head: Prompt) -> bool:
    if (prompt.pixels is None) != (head.pixels is None):
        return False
    same = prompt.pixels is None or torch.equal(prompt.pixels, head.pixels)
    return same and torch.equal(prompt.ids[: len(head.ids)], head.ids)


class SFTLearner(SupervisedLearner):
    """A tiny model learns the gold answers of a mixture of tasks (`vlrl warmstart`).

    It minimises their token-mean negative log-likelihood; in the end it lies in the run folder, in float16.
    """

    command = "warmstart"
    config: WarmstartConfig
    policy: VLM
    accuracies: list[dict[str, Any]]  # each task's, when they were last measured

    def setup(self, saved: Path | None = None) -> None:
        super().setup(saved)
        config, self.accuracies = self.config, []
        self.tasks = [_lesson(lesson, f"lessons.{i}.task") for i, lesson in enumerate(config.lessons)]
        self.sampler = LessonSampler(self.tasks, config.lessons)
        self.policy = _start(config, self.tasks)
        self.optimizer = optimizers_build(self.policy.model, "muon", lr=config.lr, betas=(0.9, 0.95), weight_decay=0.01)

    @property
    def name(self) -> str:
        return ", ".join(lesson.task.name if lesson.task else str(lesson.episodes) for lesson in self.config.lessons)

    def draw(self) -> list[GoldDecision]:
        return [q for _ in range(self.config.images) for q in questions(self.policy, *self.sampler.draw(self.rngs[0]))]

    def loss(self, batch: Sequence[GoldDecision]) -> Tensor:
        now = self.policy.evaluate([question.decision for question in batch])
        given = torch.tensor([question.given for question in batch])
        learned = now.mask & (torch.arange(now.mask.shape[1]) >= given[:, None]).to(now.mask.device)
        return -now.logprobs[learned].mean()

    def rate(self) -> Callable[[int], float]:
        config, last = self.config, max(1, self.config.steps - 1)
        end = config.lr if config.lr_end is None else config.lr_end

        def rate(step: int) -> float:
            return (config.lr + (end - config.lr) * step / last) * min(1.0, (step + 1) / config.warmup_steps)

        return rate

    def clip(self) -> object:
        return torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)

    def export(self, folder: Path) -> None:
        copy.deepcopy(self.policy.model).half().save_pretrained(folder)
        self.policy.processor.save_pretrained(folder)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult | None:
        """All tasks' held-out samples together, and each task's own accuracy."""
        measured = [task for lesson, task in zip(self.config.lessons, self.tasks, strict=True) if lesson.task]
        if not measured:
            return None
        results = evaluate_export(self, measured, progress)
        names = [lesson.task.name for lesson in self.config.lessons if lesson.task]
        self.accuracies = [{"task": name, **vars(each.accuracy)} for name, each in zip(names, results, strict=True)]
        whole = summarise([episode for result in results for episode in result.episodes])
        return replace(whole, metrics={f"lesson_{i}/accuracy": e["value"] for i, e in enumerate(self.accuracies)})

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"accuracies": self.accuracies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.accuracies = state["accuracies"]

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        return super().summary(results) | {"lessons": self.accuracies}

    def close(self) -> None:
        for task in self.tasks:
            task.close()


def summary_text(summary: Mapping[str, Any]) -> str:
    """Each task's held-out accuracy, in a line."""
    return "\n".join(
        f"{each['task']}: held-out accuracy {each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}] on {each['n']}"
        for each in summary["lessons"]
    )


def enlarge(config: Config) -> tuple[Config, dict[str, Any] | None]:
    """A run of own screens that would train the embedded model, which knows 64 pixels, as it should look at them.

    Returns:
        (the run with a limit of 224 x 224 pixels or as many, what the model's patches and coordinates become for it);
        another run as it is, and None
    """
    if config.policy.model != "embedded" or config.task.name != "gui_grounding" or not config.data.train:
        return config, None
    policy = config.policy.model_copy(update={"max_pixels": config.policy.max_pixels or 224 * 224})
    return config.model_copy(update={"policy": policy}), {"patch": 28, "space": "grid100"}


def imitate_gold(config: Config, steps: int, resize: dict[str, Any] | None = None) -> tuple[Config, dict[str, Any]]:
    """The start of `vlrl train --imitate`: a run's model learns the gold answers of its task's training samples.

    Returns:
        (the run that goes on from that model, held-out accuracy with its interval and `cpu_s`)
    """
    lesson = {"task": config.task.model_dump(), "data": config.data.model_dump(exclude_defaults=True)}
    start = WarmstartConfig.model_validate({
        **{"out": f"{config.out}_start", "start": config.policy.model, "seed": config.seed, "lessons": [lesson]},
        **{"steps": steps, "images": 32, "lr": 2e-3, "lr_end": 0.0, "max_pixels": config.policy.max_pixels},
        **{"resize": resize, "eval": config.eval.model_dump(include={"num_samples", "batch_size"})},
    })  # fmt: skip
    summary = Runner(start, SFTLearner(start)).run()
    policy = config.policy.model_copy(update={"model": start.out})
    return config.model_copy(update={"policy": policy}), summary["after"] | {"cpu_s": summary["cpu_s"]}


def _lesson(lesson: Lesson, path: str) -> Any:
    return Demonstrations(lesson.episodes) if lesson.episodes else registry.make_task(lesson, path)


def _start(config: WarmstartConfig, tasks: Sequence[Any]) -> VLM:
    if config.start and config.resize:
        source = newest_checkpoint(bundled(config.start))
        model, processor = tiny.load_resized(source, **config.resize.model_dump(), max_pixels=config.max_pixels)
        return VLM(model, processor, max_tokens=16, seed=config.seed)
    if config.start:
        section = PolicySection(model=config.start, max_tokens=16, max_pixels=config.max_pixels)
        return load_policy(section, seed=config.seed, device="cpu")
    family, options = config.model.family, {"max_tokens": 16, "seed": config.seed}
    if family not in CODECS:
        model, processor = tiny.build_family(family, config.seed, list(_corpus(tasks)))
        model.config.coordinate_space = config.model.space
        if lacks := missing(model, processor):
            raise UserError(f"model.family: {family} cannot be trained: {lacks}")
        return PlainVLM(model, processor, shared_prefix=False, **options)  # each prompt has one answer
    tokenizer = tiny.tokenizer_from(_corpus(tasks), levels=config.model.levels)
    pixels = (32 * 32, config.max_pixels or 1024 * 1024)
    size = config.model.model_dump(exclude={"levels"})
    model, processor = tiny.build(tokenizer, **size, seed=config.seed, pixels=pixels)
    return VLM(model, processor, max_tokens=16, seed=config.seed)


def _corpus(tasks: Sequence[Any], each: int = 100) -> Iterator[str]:
    """Texts to learn a vocabulary from: the tasks' prompts inside the chat frame."""
    for task in tasks:
        pool = task.samples("train")
        for i in range(min(each, len(pool))):
            turns = pool[i].answer if isinstance(task, Demonstrations) else ()
            for observation in [turn.observation for turn in turns] or [pool[i].prompt]:
                yield f"user\n{observation.text}\nassistant\n"
