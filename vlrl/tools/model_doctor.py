"""`vlrl doctor --model`: what a model is, how it is forwarded, and whether it writes the coordinates it is read in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from typing import Any

import numpy as np
from pydantic import ValidationError

from vlrl import registry
from vlrl.config import Config, explain
from vlrl.engines import load_policy
from vlrl.policies.logprobs import bare
from vlrl.policies.processor import convention
from vlrl.policies.vlm import VLM
from vlrl.runner import evaluate
from vlrl.tools.doctor import GIB, Finding, table
from vlrl.types import Episode, UserError

ANSWERS = 3  # that are shown
ANSWERED = 64  # that the frame is judged by
SPACES = ("rel1000", "rel1000_yx", "rel1", "resized_px", "original_px")
SURE = 2.0  # standard errors by which another frame must be better


@dataclass(frozen=True)
class Suggestion:
    """How often answers are right (`Score.correct`), read in each space; space: a surely better one, or None."""

    correct: dict[str, float]
    space: str | None


def suggest_frame(task: Any, episodes: Sequence[Episode]) -> Suggestion:
    """Reads finished episodes' answers in every space: a model that writes in another one is right there, not here.

    Only tasks that score the last answer by its coordinates tell spaces apart; with others all are alike.
    """
    frames = [frame for episode in episodes for frame in episode.frames]
    if not frames:
        return Suggestion({}, None)
    own = frames[0].space
    found = {space: np.array([_correct(task, e, space) for e in episodes]) for space in dict.fromkeys((own, *SPACES))}
    best = max(found, key=lambda space: float(found[space].mean()))
    gain = found[best] - found[own]
    error = float(gain.std()) / len(gain) ** 0.5
    better = float(gain.mean()) > SURE * error and float(gain.mean()) > 0
    return Suggestion({space: float(each.mean()) for space, each in found.items()}, best if better else None)


def _correct(task: Any, episode: Episode, space: str) -> float:
    """How right the episode's last answer is where it is read in a space."""
    last = episode.turns[-1]
    frames = tuple(replace(frame, space=space) for frame in last.decision.frames)
    turns = [*episode.turns[:-1], replace(last, decision=replace(last.decision, frames=frames))]
    return float(task.score(replace(episode, turns=turns, score=None)).correct)


def examine(model: str, task_name: str, frame: str | None) -> Iterator[Finding]:
    """Everything that is looked at, in the order of the table.

    Raises:
        UserError: the model cannot be loaded or lacks something, or there is no such task.
    """
    settings = {"out": "runs/doctor", "task": {"name": task_name}, "policy": {"model": model, "frame": frame}}
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        raise UserError(explain(error, Config)) from None
    task = registry.make_task(config)
    policy: Any = load_policy(config.policy, shared_prefix="auto", seed=config.seed)
    if not isinstance(policy, VLM):
        raise UserError(f"policy.model: {model} moves a robot; `vlrl doctor --model` is for what reads and writes text")
    base: Any = bare(policy.model)
    yield Finding("family", "ok", f"{base.config.model_type} ({type(base).__name__})")
    yield _frame(policy, frame)
    yield from _template(policy)
    yield _limits(policy)
    yield _memory(base)
    episodes = evaluate(policy, task, samples=ANSWERED, batch=16).episodes
    yield _path(policy)
    for episode in episodes[:ANSWERS]:
        yield _answer(episode)
    yield _judged(suggest_frame(task, episodes), len(episodes))


def _path(policy: VLM) -> Finding:
    if type(policy) is VLM:
        return Finding("path", "ok", "packed: prompts are shared in rollout and update, in kernels of its family")
    if policy.shared_prefix:
        return Finding("path", "ok", "forked: prompts are forwarded once per group, their cache is forked")
    return Finding("path", "warn", "plain: each completion is forwarded with its prompt", "docs/models.md")


def _frame(policy: VLM, asked: str | None) -> Finding:
    config: Any = bare(policy.model).config
    source = "policy.frame" if asked else convention(config.model_type).source
    source = source if asked or not getattr(config, "coordinate_space", None) else "coordinate_space in config.json"
    return Finding("frame", "ok", f"{policy.codec.space} ({source})")


def _template(policy: VLM) -> Iterator[Finding]:
    """What the chat template can do."""
    processor = policy.processor
    text = str(processor.chat_template or processor.tokenizer.chat_template)
    asked = [{"role": "user", "content": [{"type": "text", "text": "One?"}]}]
    said = [*asked, {"role": "assistant", "content": [{"type": "text", "text": "Two."}]}, *asked]
    begun = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    whole = processor.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    kept = whole.startswith(begun)
    yield Finding(
        "chat template", "ok" if kept else "warn", "keeps what was said" if kept else "rewrites earlier turns",
        "" if kept else "conversations are forwarded anew at every turn",
    )  # fmt: skip
    yield Finding("thinking", "ok", "yes" if "think" in text else "no")
    yield Finding("tools", "ok", "yes" if "tools" in text else "no")


def _limits(policy: VLM) -> Finding:
    images = policy.processor.image_processor
    size = ", ".join(f"{name} {value}" for name, value in dict(images.size or {}).items())
    return Finding("images", "ok", f"{type(images).__name__}: {size}; prompts up to {policy.codec.max_prompt} tokens")


def _memory(base: Any) -> Finding:
    """Weights, gradients and two moments of each in float32; activations come on top (`vlrl plan`)."""
    count = sum(p.numel() for p in base.parameters())
    trained = f"{16 * count / GIB:.1f} GiB to train all in float32"
    return Finding("memory", "ok", f"{count / 1e6:.1f} M parameters, {trained}, activations on top")


def _answer(episode: Episode) -> Finding:
    read = episode.score.answer if episode.score.reason is None else f"not read: {episode.score.reason}"
    return Finding("answer", "ok", f"{episode.completion[:60]!r} -> {read}")


def _judged(found: Suggestion, count: int) -> Finding:
    told = ", ".join(f"{space} {share:.0%}" for space, share in found.correct.items()) or "no coordinates"
    if found.space is None:
        return Finding("frame check", "ok", f"{count} answers right if read in {told}")
    return Finding("frame check", "warn", f"{count} answers right if read in {told}", f"policy.frame={found.space}")


def main(model: str, task: str, frame: str | None, json: bool = False) -> int:
    """Print the findings as a table or as JSON; 0."""
    findings = list(examine(model, task, frame))
    print(dumps([asdict(f) for f in findings], indent=2) if json else table(findings))
    return 0
