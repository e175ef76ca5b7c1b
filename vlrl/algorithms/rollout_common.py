"""What rollout strategies share: groups, hints, perturbed images."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from PIL import Image
from pydantic import Field

from vlrl.episode_store import RecordedEpisodes
from vlrl.methods import Recipe, RecipePart
from vlrl.rollout import PolicyWrapper, collect
from vlrl.types import (
    BASELINE,
    MALFORMED,
    Decision,
    Environment,
    Episode,
    Frame,
    Observation,
    Policy,
    Sample,
    Turn,
    UserError,
    Video,
)

if TYPE_CHECKING:
    from torch import Tensor


# What a rollout strategy changes in a prompt: noise on what is seen, frames in another order, a hint at its end.


def generator(seed: int, step: int, sample_id: str) -> np.random.Generator:
    """The random numbers of one sample in one step: a resumed run draws the same."""
    return np.random.default_rng([seed, step, zlib.crc32(sample_id.encode())])


def noisy(observation: Observation, deviation: float, rng: np.random.Generator) -> Observation:
    """Gaussian noise on every image and every frame; its standard deviation in shares of full brightness. RGB."""

    def grained(pixels: np.ndarray) -> np.ndarray:
        grain = 255 * deviation * rng.standard_normal(pixels.shape, dtype=np.float32)
        return np.clip(np.rint(pixels + grain), 0, 255).astype(np.uint8)

    def add_noise(part: str | Image.Image | Video) -> str | Image.Image | Video:
        if isinstance(part, str):
            return part
        if isinstance(part, Video):
            return replace(part, frames=np.stack([grained(frame) for frame in part.frames]))
        return Image.fromarray(grained(np.asarray(part.convert("RGB"))))

    return replace(observation, content=tuple(map(add_noise, observation.content)))


def moves(observation: Observation) -> bool:
    """Whether there is an order of frames to change."""
    return any(len(video.frames) > 1 for video in observation.videos)


def shuffled(observation: Observation, rng: np.random.Generator) -> Observation:
    """Every video's frames in another order, under the times that stood there before."""

    def mixed(video: Video) -> Video:
        order = np.arange(len(video.frames))
        while len(order) > 1 and (order[1:] > order[:-1]).all():  # the order in which they came shows nothing new
            order = rng.permutation(len(order))
        return replace(video, frames=video.frames[order])

    content = tuple(mixed(part) if isinstance(part, Video) else part for part in observation.content)
    return replace(observation, content=content)


def perturb_hinted(observation: Observation, text: str) -> Observation:
    """The prompt with a further line of text at its end."""
    return replace(observation, content=(*observation.content, f"\n{text}"))


def check_single_prompts(episodes: Sequence[Episode], strategy: str) -> None:
    """UserError where an environment shows something else than its sample's prompt, so that no change would arrive."""
    for episode in episodes:
        if episode.turns[0].observation.content != episode.sample.prompt.content:
            raise UserError(
                f"rollout_strategy: {strategy} changes prompts, but the environment of {episode.sample.id} shows "
                f"another one "
                "than its sample's: use another strategy for this task"
            )


# Earlier episodes as if the present policy had just played them.

BATCH = 32  # recorded decisions that are evaluated at a time


def replayed(policy: Any, task: Any, recorded: RecordedEpisodes, index: int) -> Episode:
    """A recorded episode with the policy's own decisions in place of the recorded ones, rewarded as the task does now.

    Raises:
        UserError: it was recorded for another task or in other coordinates; it is too long for the model.
    """
    episode, place = recorded[index], f"{recorded.place}: row {index + 1}"
    missing = sorted(set(task.weights) - {MALFORMED, BASELINE, *episode.score.parts})
    if missing:
        raise UserError(f"{place}: the task rewards {missing[0]!r}, of which the episode says nothing: record it anew")
    turns: list[Turn] = []
    for number, turn in enumerate(episode.turns, start=1):
        key = f"{place}, turn {number}"
        decision = policy.decide(turn.observation, turn.decision.action, key=key, before=turns)
        _check_frames(place, decision, turn.decision)
        turns.append(replace(turn, decision=replace(decision, truncated=turn.decision.truncated)))
    return replace(episode, turns=turns, reward=task.reward(episode.score))


def decide_gold(
    policy: Any, task: Any, environment: Environment, episode: Episode, shown: Observation, key: str | None = None
) -> Decision | None:
    """The task's gold answer, or the next gold action of an environment that knows one; None: none is known."""
    prompt = policy.prompt(shown, key, episode.turns)
    text = environment.gold(prompt.frames) if environment.has_script else task.gold(episode.sample, prompt.frames)
    return None if text is None else policy.decision(prompt, policy.codec.tokens(text), text)


def _check_frames(place: str, decision: Decision, recorded: Decision) -> None:
    """The recorded text means the same place when this policy writes it."""
    for own, then in zip(decision.frames, recorded.frames, strict=True):
        if _meaning(own) != _meaning(then):
            raise UserError(
                f"{place}: written in {_describe_frame(then)}, but the policy writes in {_describe_frame(own)}: "
                "record anew"
            )


def _meaning(frame: Frame) -> tuple:
    return frame.space, frame.original, frame.shown if frame.space.startswith("resized_px") else None


def _describe_frame(frame: Frame) -> str:
    return f"{frame.space} of an image shown as {frame.shown[0]}x{frame.shown[1]}"


def evaluated(policy: Policy, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with the log-probabilities and entropies that their decisions have under the present weights."""
    import torch

    decisions = [turn.decision for episode in episodes for turn in episode.turns]
    evaluations: list[Decision] = []
    for start in range(0, len(decisions), BATCH):
        part = decisions[start : start + BATCH]
        with torch.no_grad():
            now = policy.evaluate(part)
        for decision, logprobs, entropy, mask in zip(part, now.logprobs, now.entropy, now.mask, strict=True):
            evaluations.append(replace(decision, logprobs=logprobs[mask].cpu(), entropy=entropy[mask].cpu()))
    rows = iter(evaluations)
    return [replace(e, turns=[replace(t, decision=next(rows)) for t in e.turns]) for e in episodes]


# Groups of a step's episodes: taken apart, looked at, put in the place of others.


def groups_of(episodes: Sequence[Episode], size: int) -> list[list[Episode]]:
    return [list(episodes[start : start + size]) for start in range(0, len(episodes), size)]


def groups_accuracy(episodes: Sequence[Episode]) -> float:
    return sum(e.score.correct for e in episodes) / len(episodes)


def redone(
    policy: Policy, task: Any, groups: Sequence[list[Episode]], asked: Mapping[int, Sample], act: Mapping[str, Any]
) -> list[list[Episode]]:
    """The groups with those at the places that `asked` names played again, on its samples."""
    result, size = list(groups), len(groups[0])
    again = groups_of(collect(policy, task, list(asked.values()), size, **act), size) if asked else []
    for place, group in zip(asked, again, strict=True):
        result[place] = [replace(episode, group=place) for episode in group]
    return result


# Parts of a right answer, told in the prompt.

HINT = "A right answer begins with: {}"

Share = Annotated[float, Field(ge=0, le=1)]


def beginning(answer: str, share: float) -> str:
    """The first share of an answer's characters, without a word that would be cut in two unless it is the only one."""
    start = answer[: int(share * len(answer))]
    return start if start == answer or " " not in start else start.rpartition(" ")[0].rstrip()


def hints_hinted(policy: Any, sample: Sample, answer: str, share: float) -> Sample | None:
    """The sample with the beginning of an answer behind its prompt; None: there is none, or it is too long."""
    prefix = beginning(answer, share)
    return append_text(policy, sample, HINT.format(prefix)) if prefix else None


def append_text(policy: Any, sample: Sample, text: str) -> Sample | None:
    """The sample with a line of text behind its prompt; None: the model does not take so long a prompt."""
    extended = replace(sample, prompt=perturb_hinted(sample.prompt, text))
    try:
        policy.prompt(extended.prompt, extended.id)
    except UserError:
        return None
    return extended


def golds(policy: Any, task: Any, samples: Sequence[Sample], strategy: str) -> list[str]:
    """The right answer to each sample, in the policy's coordinates.

    Raises:
        UserError: one is not known.
    """
    answers = [task.gold(sample, policy.prompt(sample.prompt, sample.id).frames) for sample in samples]
    for sample, answer in zip(samples, answers, strict=True):
        if answer is None:
            raise UserError(
                f"rollout_strategy: {strategy}: no right answer to {sample.id} is known, of which to tell a part"
            )
    return answers


def check_words(policy: Any, strategy: str) -> None:
    """UserError where the policy does not write text."""
    if not policy.writes_text:
        raise UserError(f"rollout_strategy: {strategy} is for policies that write text: use plain for this one")


# Completions that a strategy has written piece by piece: what is known of their first tokens, and playing them.


def remembered(decision: Decision, logprobs: Tensor, entropy: Tensor, engine: Tensor | None = None) -> Decision:
    """A decision that went on from given tokens, with the values [n] that its first n tokens had when written.

    Args:
        engine: their log-probabilities under the engine; None: they earn no credit, or none wrote them.
    """
    import torch

    n, of_engine = len(logprobs), decision.engine_logprobs
    if of_engine is not None and engine is not None:
        of_engine = torch.cat([engine, of_engine[n:]])
    return replace(
        decision, logprobs=torch.cat([logprobs, decision.logprobs[n:]]),
        entropy=torch.cat([entropy, decision.entropy[n:]]), engine_logprobs=of_engine,
    )  # fmt: skip


def limited(policy: Any, decision: Decision, most: int) -> Decision:
    """A decision with `most` tokens at most: what the length limit would have left of it."""
    tokens = decision.inputs.tokens[:most]
    if len(tokens) == len(decision.inputs.tokens):
        return decision
    return replace(
        decision, action=policy.codec.decode(tokens), logprobs=decision.logprobs[:most], truncated=True,
        entropy=decision.entropy[:most], inputs=replace(decision.inputs, tokens=tokens),
    )  # fmt: skip


def complete_samples(
    policy: Any, samples: Sequence[Sample], act: dict[str, Any], begun: Sequence[Sequence[int]] | None = None,
    room: int | None = None,
) -> list[Decision]:  # fmt: skip
    """A completion to each sample's prompt, from the tokens that it begins with (`vlrl.policies.vlm.VLM.act`)."""
    if not samples:
        return []
    number: dict[str, int] = {}  # samples may stand here several times, and share their prompt then
    episodes = [Episode(sample, number.setdefault(sample.id, len(number))) for sample in samples]
    return policy.act(episodes, [sample.prompt for sample in samples], **act, begun=begun, room=room)


def played(
    policy: Any, task: Any, samples: Sequence[Sample], decisions: Sequence[Decision], strategy: str
) -> list[Episode]:
    """Scored episodes of one turn, in which these decisions are taken; each a group of its own.

    Raises:
        UserError: the task shows other prompts than its samples', for which the decisions were made.
    """
    episodes = collect(_Player(policy, decisions), task, samples, 1) if samples else []
    check_single_prompts(episodes, strategy)
    return episodes


class _Player(PolicyWrapper):
    """Takes the decision of each episode's number, and again where that is played anew."""

    def __init__(self, policy: Policy, decisions: Sequence[Decision]):
        super().__init__(policy)
        self.decisions = decisions

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any) -> list[Decision]:
        return [self.decisions[episode.group] for episode in episodes]


# What a strategy and its task have to do with one another, as `check_recipe` of `@method`.


def check_one_answer(recipe: Recipe, part: RecipePart) -> str | None:
    """A tree or a window is of one answer to one prompt."""
    if recipe.takes_turns:
        return (
            f"rollout_strategy: {part.name} writes one answer to a prompt, but episodes of this task take turns: "
            "use plain"
        )
    return None


def begins_turns(how: str, other: str) -> Callable[[Recipe, RecipePart], str | None]:
    """A check that episodes have several turns; in the message, `how` the strategy begins one, and what to use."""

    def check(recipe: Recipe, part: RecipePart) -> str | None:
        return None if recipe.takes_turns else f"{part.label} {how}, but this task has one: use {other}"

    return check
