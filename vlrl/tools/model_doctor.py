"""`vlrl doctor --model`: what a model is, how it is forwarded, whether it writes the coordinates it is read in.

`--models` tries a tiny model of every type.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import nn

from vlrl import registry
from vlrl.config import Config, PolicySection, make_as
from vlrl.engines import load_policy
from vlrl.performance.profiling import Device
from vlrl.policies import tiny
from vlrl.policies.generation import bare
from vlrl.policies.loading import load
from vlrl.policies.plain import missing
from vlrl.policies.processor import ChatProcessor, convention, own_space
from vlrl.policies.vlm import VLM
from vlrl.recipe_checks import load_config
from vlrl.runner import evaluate
from vlrl.tools.doctor import Finding, memory_size, table
from vlrl.tools.memory_planner import PlanOptions, plan_plan
from vlrl.types import Episode, Observation, Sample, UserError, Video, first_line

ANSWERS = 3  # that are shown
ANSWERED = 64  # that the frame is judged by
SPACES = ("rel1000", "rel1000_yx", "rel1", "resized_px", "original_px")
SURE = 2.0  # standard errors by which another frame must be better


@dataclass(frozen=True)
class Suggestion:
    """How often answers are right (`Score.correct`), read in each space; space: a surely better one, or None."""

    correct: dict[str, float]
    space: str | None


def suggest_frame(task: Any, episodes: Sequence[Episode], documented: Sequence[str] = ()) -> Suggestion:
    """Reads finished episodes' answers in every space: a model that writes in another one is right there, not here.

    Only tasks that score the last answer by its coordinates tell spaces apart; with others all are alike.

    Args:
        documented: further spaces to read in, as of the model's configuration.
    """
    frames = [frame for episode in episodes for frame in episode.frames]
    if not frames:
        return Suggestion({}, None)
    own = frames[0].space
    errors = {
        space: np.array([_correct(task, e, space) for e in episodes])
        for space in dict.fromkeys((own, *documented, *SPACES))
    }
    best = max(errors, key=lambda space: float(errors[space].mean()))
    gain = errors[best] - errors[own]
    error = float(gain.std()) / len(gain) ** 0.5
    better = float(gain.mean()) > SURE * error and float(gain.mean()) > 0
    return Suggestion({space: float(each.mean()) for space, each in errors.items()}, best if better else None)


def _correct(task: Any, episode: Episode, space: str) -> float:
    """How right the episode's last answer is where it is read in a space."""
    last = episode.turns[-1]
    frames = tuple(replace(frame, space=space) for frame in last.decision.frames)
    turns = [*episode.turns[:-1], replace(last, decision=replace(last.decision, frames=frames))]
    return float(task.score(replace(episode, turns=turns, score=None)).correct)


def examine(model: str, task_name: str, changes: Sequence[str]) -> Iterator[Finding]:
    """Everything that is looked at, in the order of the table.

    Args:
        task_name: whose samples it answers, or the file of a configuration, whose sizes the memory is then of.
        changes: to the configuration, `policy.frame=rel1`.

    Raises:
        UserError: the model cannot be loaded or lacks something, or there is no such task.
    """
    config = _configure(model, task_name, changes)
    task = registry.make_task(config)
    policy: Any = load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    if not isinstance(policy, VLM):
        raise UserError(f"policy.model: {model} moves a robot; `vlrl doctor --model` is for what reads and writes text")
    base: Any = bare(policy.model)
    count = sum(p.numel() for p in base.parameters())
    yield Finding("family", "ok", f"{base.config.model_type} ({type(base).__name__}), {count / 1e6:.1f} M parameters")
    yield _frame(policy, config.policy.frame)
    yield from _template(policy)
    yield _limits(policy)
    episodes = evaluate(policy, task, samples=ANSWERED, batch=16).episodes
    yield _prompt(policy, episodes[0])
    yield _path(policy)
    yield _memory(config, policy)
    for episode in episodes[:ANSWERS]:
        yield _answer(episode)
    documented = own_space(base.config) or convention(base.config.model_type).space
    yield _judged(suggest_frame(task, episodes, [documented]), len(episodes))


def _configure(model: str, task: str, changes: Sequence[str]) -> Config:
    changes = [f"policy.model={model}", *changes]
    if Path(task).suffix in (".yaml", ".yml"):
        return load_config(task, changes)
    return make_as(Config, {"out": "runs/doctor", "task": {"name": task}}, changes, "vlrl doctor")


def _path(policy: VLM) -> Finding:
    if type(policy) is VLM:
        return Finding("path", "ok", "packed: prompts are shared in rollout and update, in kernels of its family")
    if policy.shared_prefix:
        return Finding("path", "ok", "forked: prompts are forwarded once per group, their cache is forked")
    return Finding("path", "warn", "plain: each completion is forwarded with its prompt", "docs/models.md")


def _frame(policy: VLM, asked: str | None) -> Finding:
    config: Any = bare(policy.model).config
    source = "policy.frame" if asked else convention(config.model_type).source
    source = source if asked or not own_space(config) else "coordinate_space in config.json"
    return Finding("frame", "ok", f"{policy.codec.space} ({source})")


def _template(policy: VLM) -> Iterator[Finding]:
    """What the chat template does in conversations, by the probes that the policy goes by."""
    reason, anew = policy.codec.appends, "each turn is a training sequence of its own"
    if reason:
        yield Finding("conversations", "warn", reason, anew)
    else:
        yield Finding("conversations", "ok", "its chat template only appends: one training sequence an episode")
    if policy.codec.keeps_thoughts:
        yield Finding("thoughts", "ok", "stay in the conversation")
    else:
        yield Finding("thoughts", "warn", "of earlier turns are dropped", f"where a reply has any, {anew}")
    if policy.codec.shows_tools:
        yield Finding("tools", "ok", "their schemas are written into the prompt")
    else:
        yield Finding("tools", "warn", "its chat template shows none", "say in the prompt what can be called")


def _limits(policy: VLM) -> Finding:
    images = policy.processor.image_processor
    size = ", ".join(f"{name} {value}" for name, value in dict(images.size or {}).items())
    return Finding("images", "ok", f"{type(images).__name__}: {size}; prompts up to {policy.codec.max_prompt} tokens")


def _prompt(policy: VLM, episode: Episode) -> Finding:
    prompt, media = episode.turns[0].decision.inputs.prompt, episode.sample.prompt.media
    sizes = ", ".join("x".join(map(str, medium.size)) for medium in media) or "no image"
    return Finding("a prompt", "ok", f"{len(prompt.ids)} tokens, {int(prompt.types.sum())} of them visual ({sizes})")


def _memory(config: Config, policy: VLM) -> Finding:
    """A step's by `vlrl plan`, on this machine."""
    on_gpu = policy.device.type == "cuda"
    size = torch.cuda.get_device_properties(policy.device).total_memory if on_gpu else memory_size()
    train = config.train.model_copy(update={"shared_prefix": policy.shared_prefix})
    config, device = config.model_copy(update={"train": train}), Device(policy.device.type, None, size / 1e9, None)
    try:
        plan = plan_plan(config, PlanOptions(device))
    except UserError as error:
        return Finding("memory", "warn", str(error))
    parts = ", ".join(f"{name} {part / 1e9:.2g}" for name, part in plan.memory.items() if part > plan.gigabytes * 1e7)
    sizes = f"{train.prompts_per_step} prompts x {train.group_size} completions of {config.policy.max_tokens} tokens"
    value = f"{plan.gigabytes:.3g} of {device.memory:.0f} GB for a step of {sizes}: {parts}"
    return Finding(
        "memory", "ok" if plan.fits else "warn", value, "" if plan.fits else "vlrl plan says what would help"
    )


def _answer(episode: Episode) -> Finding:
    read = episode.score.answer if episode.score.reason is None else f"not read: {episode.score.reason}"
    return Finding("answer", "ok", f"{episode.completion[:60]!r} -> {read}")


def _judged(found: Suggestion, count: int) -> Finding:
    shares = ", ".join(f"{space} {share:.0%}" for space, share in found.correct.items()) or "no coordinates"
    if not any(found.correct.values()):
        return Finding(
            "frame check", "warn", f"none of {count} answers is right in any frame", "teach it the task first"
        )
    if found.space is None:
        return Finding("frame check", "ok", f"{count} answers right if read in {shares}")
    return Finding("frame check", "warn", f"{count} answers right if read in {shares}", f"policy.frame={found.space}")


def main(model: str, task: str, changes: Sequence[str] = (), json: bool = False) -> int:
    """Print the findings as a table or as JSON; 0."""
    findings = list(examine(model, task, changes))
    print(dumps([asdict(f) for f in findings], indent=2) if json else table(findings))
    return 0


# `vlrl doctor --models`: what becomes of a tiny random model of each type that transformers maps (docs/models.md).

PATHS = ("packed", "forked", "plain", "")  # the faster first
EXACT = 1e-4  # nats, between what sampled and what is trained
COPIES = 3  # completions of a prompt
VISUAL, GROUP, WRITTEN, ROUNDS = 256, 8, 16, 5  # of the speed: visual tokens, completions, their tokens, repetitions
COLUMNS = (
    "family", "path", "images", "videos", "tools", "frame", "sampled = trained", "saved = loaded", "speed", "note"
)  # fmt: skip


@dataclass(frozen=True)
class ModelTrial:
    """What one type's model did. `gap` and `kept`: largest differences of log-probabilities in nats; None: not reached.

    gap: of sampling and of the forward pass that is trained; kept: of the model and of what it saved, loaded again;
    tools: whether a conversation whose tools return images is one training sequence; speed: how many times as fast a
    group is sampled and trained as where each completion is forwarded with its prompt: least, median, most.
    """

    family: str
    path: str = ""  # packed, forked or plain (docs/models.md)
    images: bool = False
    videos: bool = False
    gap: float | None = None
    kept: float | None = None
    tools: bool = False
    speed: tuple[float, float, float] | None = None
    reason: str = ""

    @property
    def works(self) -> bool:
        return not self.reason


def try_type(family: str, speed: bool = False) -> ModelTrial:
    """Builds, loads, acts, evaluates, updates, saves and loads a tiny model; `speed`: measures that too."""
    path = ""
    try:
        with _quiet(), tempfile.TemporaryDirectory() as folder:
            model, processor = _built(family)
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
            policy: Any = load(PolicySection(model=folder, max_tokens=6), shared_prefix="auto", device="cpu")
            path = "packed" if type(policy) is VLM else "plain"
            trial = _tried(family, path, policy, Path(folder) / "saved")
            fast = speed and trial.path != "plain"
            return replace(trial, speed=_measure_speed(Path(folder) / "saved")) if fast else trial
    except Exception as error:  # what a type cannot do is the table's content, whatever it fails with
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return ModelTrial(family, path, reason=kind + first_line(error).rpartition("cannot be trained: ")[2])


def _built(family: str) -> tuple[Any, Any]:
    """A tiny model that takes what its processor makes.

    Raises:
        UserError: none could be made, or its parts do not fit: it says nothing of the type's real models.
    """
    try:
        model, processor = tiny.build_family(family)
        _enlarge(model)
        if missing(model, processor) is None:
            prompt = ChatProcessor(processor, model).encode(_samples()[0].prompt)
            model(input_ids=prompt.ids[None], **prompt.inputs)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"no tiny model: {reason}") from None
    return model, processor


def _tried(family: str, path: str, policy: VLM, saved: Path) -> ModelTrial:
    episodes = [Episode(s, g) for g, s in enumerate(_samples()) for _ in range(COPIES)]
    decisions = policy.act(episodes, [e.sample.prompt for e in episodes])
    path = "forked" if path == "plain" and policy.shared_prefix else path
    now = policy.evaluate(decisions)
    sampled = torch.cat([d.logprobs for d in decisions])
    gap = float((now.logprobs[now.mask].detach() - sampled).abs().max())
    _update(policy, now)
    after = policy.evaluate(decisions).logprobs.detach()
    policy.save(saved)
    again: Any = load(PolicySection(model=str(saved), max_tokens=6), shared_prefix=policy.shared_prefix, device="cpu")
    kept = float((again.evaluate(decisions).logprobs.detach() - after).abs().max())
    wrong = [] if gap <= EXACT else [f"sampling is off by {gap:.2g} nats"]
    wrong += [] if kept <= EXACT else [f"what was saved is off by {kept:.2g} nats"]
    tools = policy.codec.shows_tools and not policy.codec.appends
    return ModelTrial(family, path, True, _reads_videos(policy), gap, kept, tools, reason="; ".join(wrong))


def _measure_speed(folder: Path) -> tuple[float, float, float]:
    """A group's seconds of this process on the plain path by those on the fast one, sampled, evaluated and backward.

    The paths take turns, so that what else the machine does meets both alike.

    Returns:
        of `ROUNDS` pairs the least, the median and the most.
    """
    section = PolicySection(model=str(folder), max_tokens=WRITTEN)
    policies: list[Any] = [load(section, shared_prefix=shared, device="cpu") for shared in (False, True)]
    images = -(-VISUAL // max(1, int(policies[0].prompt(Observation((_noise(64, 64), "?"))).types.sum())))
    content = [part for _ in range(images) for part in (_noise(64, 64), "and")]  # text between, as templates have it
    sample = Sample("speed", Observation((*content, "what is at [1, 2]?")))
    rounds = [[_time_group(policy, sample) for policy in policies] for _ in range(1 + ROUNDS)][1:]
    ratios = [plain / fast for plain, fast in rounds]
    return min(ratios), statistics.median(ratios), max(ratios)


def _time_group(policy: VLM, sample: Sample) -> float:
    episodes = [Episode(sample, 0, stream=(0, i)) for i in range(GROUP)]
    start = time.process_time()
    now = policy.evaluate(policy.act(episodes, [sample.prompt] * GROUP, keep=True))
    now.logprobs[now.mask].sum().backward()
    policy.model.zero_grad()
    return time.process_time() - start


def _update(policy: VLM, now: Any) -> None:
    """One step of gradient ascent.

    Raises:
        UserError: no parameter has a finite gradient.
    """
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    (-now.logprobs[now.mask].mean()).backward()
    gradients = [p.grad for p in trained if p.grad is not None]
    if not any(bool(g.any()) for g in gradients) or not all(bool(g.isfinite().all()) for g in gradients):
        raise UserError("its gradients are zero or not finite")
    torch.optim.SGD(trained, 1e-2).step()
    policy.forget()


def _samples() -> list[Sample]:
    """Two images of different sizes with questions of different lengths."""
    texts = ("Click the red square.", "What is at [1, 2]?")
    contents = [(_noise(48, 32), texts[0]), (texts[1], _noise(32, 64), texts[0])]
    return [Sample(f"q/{i}", Observation(content)) for i, content in enumerate(contents)]


def _noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _reads_videos(policy: VLM) -> bool:
    frames = np.stack([np.asarray(_noise(32, 32))] * 4)
    try:
        prompt = policy.codec.encode(Observation((Video(frames, (0.0, 0.5, 1.0, 1.5), 2.0, 2.0), "What happens?")))
        policy.evaluate([policy.decision(prompt, [policy.codec.stop_ids[0]])])
    except Exception:  # a processor without videos may fail in any way
        return False
    return True


@torch.no_grad()
def _enlarge(model: nn.Module) -> None:
    """Weights three times as large: as they are made, a tiny model's answers hardly depend on what it is shown."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(3.0)


@contextmanager
def _quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings(action="ignore"):
        yield
    transformers.logging.set_verbosity(level)


def format_trials(trials: Sequence[ModelTrial]) -> str:
    """Markdown: what works first."""
    rows = [_row(trial) for trial in sorted(trials, key=lambda t: (not t.works, PATHS.index(t.path), t.family))]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _row(trial: ModelTrial) -> list[str]:
    yes = {True: "yes", False: "no"}
    if trial.gap is None or trial.kept is None:
        return [trial.family, trial.path or "-", *["-"] * (len(COLUMNS) - 3), trial.reason.replace("|", "/")]
    frame, speed = convention(trial.family).space, "-"
    if trial.speed is not None:
        least, median, most = trial.speed
        speed = f"{median:.1f}x ({least:.1f} to {most:.1f})"
    return [trial.family, trial.path, yes[trial.images], yes[trial.videos], yes[trial.tools], frame,
            f"{trial.gap:.0e}", f"{trial.kept:.0e}", speed, trial.reason]  # fmt: skip


def print_trials(families: Sequence[str] = (), speed: bool = False) -> int:
    """Print the table for some types, or for all; 0."""
    trials = []
    for family in families or tiny.types():
        trials.append(try_type(family, speed))
        print(f"{family}: {trials[-1].reason or 'works'}", file=sys.stderr)
    print(format_trials(trials))
    return 0
