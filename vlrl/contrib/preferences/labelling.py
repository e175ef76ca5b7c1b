"""Labelling of preferences over episodes by people, scripts and models."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL.Image import Image
from pydantic import Field

from vlrl.config import Count, DataSection, FitConfig, Plugin, Rate, Section, load_as
from vlrl.methods import method
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.config import passive_check
from vlrl.rollout import with_environment
from vlrl.types import BaseTask, Environment, Episode, Frame, Observation, Sample, Step, UserError, suggest, wilson

# Pictures beside states: off-policy transitions hold numbers alone, a judge looks.


class StateAlbum:
    """The pictures that were shown with each state.

    Where one state was shown with different pictures, as a state that leaves out the cube may be, none is known to
    belong to it.
    """

    def __init__(self):
        self._pictures: dict[bytes, tuple[Image, ...] | None] = {}

    def note(self, shown: Observation) -> None:
        if shown.state is None or not shown.images:
            return
        key, before = _key(shown.state), self._pictures.get(_key(shown.state), shown.images)
        same = before is not None and [_pixels(each) for each in before] == [_pixels(each) for each in shown.images]
        self._pictures[key] = shown.images if same else None

    def of(self, state: np.ndarray) -> tuple[Image, ...] | None:
        """The pictures of a state [S]; () of one that was never shown with any; None where it is not clear."""
        return self._pictures.get(_key(state), ())


def with_album(task: BaseTask, album: StateAlbum) -> BaseTask:
    """The task with episodes that put all that they show into an album."""
    return with_environment(task, lambda sample: _Watching(task.environment(sample), album))


class _Watching(Environment):
    """An environment, watched."""

    def __init__(self, played: Environment, album: StateAlbum):
        self._played, self._album = played, album

    @property
    def has_script(self) -> bool:
        return self._played.has_script

    def gold(self, frames: Sequence[Frame]) -> Any:
        return self._played.gold(frames)

    def close(self) -> None:
        self._played.close()

    def reset(self) -> Observation:
        observation = self._played.reset()
        self._album.note(observation)
        return observation

    def step(self, action: Any, frames: Sequence[Frame] = ()) -> Step:
        step = self._played.step(action, frames)
        self._album.note(step.observation)
        return step


def _key(state: np.ndarray) -> bytes:
    return (np.asarray(state, np.float32) + np.float32(0)).tobytes()  # -0 and 0 are one


def _pixels(image: Image) -> tuple[Any, ...]:
    return image.mode, image.size, image.tobytes()


# The YAML of `vlrl preferences`. Imports no torch: a mistake is answered at once.


class RewardModelSection(Section):
    state: list[str] | None = None  # numbers of the state that it sees, by name; default: all
    encoder: Plugin | None = None  # of pictures: a vector of each moment beside the state (vlrl.contrib.encoders)
    members: Count = 3
    hidden: Count = 128
    layers: Count = 2
    steps: Count = 1000
    batch: Annotated[int, Field(ge=2)] = 64
    lr: Rate = 3e-3


class PreferencesConfig(FitConfig):
    task: Plugin
    out: str  # of the answers and the model: the same command goes on with what is there
    goal: Annotated[str, Field(min_length=1)]  # in words
    judge: Plugin
    offline: Annotated[list[Plugin], Field(min_length=1)]  # sources, as in `vlrl offpolicy`
    data: DataSection = DataSection()
    pairs: Annotated[int, Field(ge=2)] = 1000  # held-out ones among them
    held_out: Annotated[float, Field(gt=0, lt=0.8)] = 0.2  # of episodes and of pairs
    asked: Count = 8  # pairs at a time; their answers are then written down
    model: RewardModelSection = RewardModelSection()


def config_load(path: str | Path, changes: Sequence[str] = ()) -> PreferencesConfig:
    """A YAML file and changes to it -> the checked configuration.

    Raises:
        UserError: as `load_as`; also for components and options that no plug-in has.
    """
    config = load_as(PreferencesConfig, path, changes)
    try:
        passive_check([("task", config.task, "task"), ("judge", config.judge, "judge")], config.offline)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config


# What a judge is: it is shown pairs of moments and says in which of them a goal is nearer.
#
# A judge is a plug-in of the kind `judge`: a class in vlrl/contrib/preferences/judges/*.py marked
# `@method(source=...)` under a
# name in lower case, or the user's own `my_module:MyJudge`. Its keyword-only parameters are its options.

Answer = Literal[0, 1] | None  # the goal is nearer in the first, in the second; None: the judge cannot say


@dataclass(frozen=True, eq=False)
class Pair:
    """Two moments. `key` names what they show, the same in every run, so that no pair is judged twice."""

    key: str
    first: Observation
    second: Observation


class PreferenceJudge(ABC):
    """Made as `PreferenceJudge(task, seed, *, options)`."""

    said: list[str] | None = None  # after `prefer`, its words on each pair, kept beside the answers; None: it has none

    @abstractmethod
    def prefer(self, pairs: Sequence[Pair], goal: str) -> list[Answer]:
        """An answer for each pair. It hangs on the pair alone, not on which others are asked with it."""

    def progress(self, state: np.ndarray) -> np.ndarray | None:
        """How near the goal states [N, S] are, float64 [N], of a judge that knows it, which is no real one: what is
        learned is then also measured against that. None: it does not.
        """
        return None


def pair_of(first: Observation, second: Observation) -> Pair:
    """The pair under the name of what it shows."""
    digest = hashlib.sha256()
    for observation in (first, second):
        digest.update(
            b"" if observation.state is None else np.ascontiguousarray(observation.state, np.float32).tobytes()
        )
        for image in observation.images:
            digest.update(f"{image.mode}{image.size}".encode() + image.tobytes())
        digest.update(b"|")
    return Pair(digest.hexdigest()[:32], first, second)


# How good a learned preference is on episodes that it has not seen.
#
# Pairs of a few episodes are much alike: intervals by pairs are narrower than what another robot's day would show.


def agreement(values: np.ndarray, pairs: np.ndarray, answers: np.ndarray) -> list[float]:
    """How often the larger value is the preferred moment's: [k, n, low, high] with Wilson's 95 %. A tie is no.

    Args:
        values: float [N], of the moments; pairs: int64 [P, 2]; answers: [P], 0 or 1.
    """
    right = (values[pairs[:, 1]] - values[pairs[:, 0]]) * (2 * answers - 1) > 0
    return counted(right)


def against(values: np.ndarray, progress: np.ndarray, pairs: np.ndarray) -> dict[str, Any]:
    """The same against what is true, where that is known, and Kendall's rank correlation over the pairs' moments."""
    from scipy.stats import kendalltau

    apart = progress[pairs[:, 1]] != progress[pairs[:, 0]]
    truth = (progress[pairs[:, 1]] > progress[pairs[:, 0]]).astype(int)
    moments = np.unique(pairs)
    return {
        "agreement": agreement(values, pairs[apart], truth[apart]),
        "kendall": float(kendalltau(values[moments], progress[moments]).statistic),
    }


def counted(said: np.ndarray) -> list[float]:
    """[k, n, low, high] of bools [n]."""
    k, n = int(said.sum()), len(said)
    return [k, n, *wilson(k, n)]


def report_text(report: dict[str, Any]) -> str:
    """The measurement in one line."""

    def share(numbers: list[float]) -> str:
        k, n, low, high = numbers
        return f"{k}/{n} [{low:.2f}, {high:.2f}]"

    known = report.get("truth")
    truth = f"; with the truth on {share(known['agreement'])}, Kendall's tau {known['kendall']:.2f}" if known else ""
    return (
        f"{report['answered']} of {report['pairs']} pairs answered by {report['judge']}; held out: agrees on "
        f"{share(report['agreement'])}{truth}"
    )


# The moments of a data set, each once, and pairs of them.


@dataclass(frozen=True, eq=False)
class EpisodeMoments:
    """N moments of some episodes."""

    state: np.ndarray  # float32 [N, S]
    episode: np.ndarray  # int64 [N], which of them
    pictures: tuple[tuple[Image, ...], ...]  # [N], what was shown beside the state; () where nothing was

    def __len__(self) -> int:
        return len(self.state)

    def observation(self, place: int) -> Observation:
        return Observation(self.pictures[place], self.state[place])


def moments(given: Transitions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every state of M transitions once, float32 [N, S]; and where each transition begins and leads to, int64 [M]."""
    both = np.concatenate([given.state, given.next_state]) + np.float32(0)
    states, places = np.unique(both, axis=0, return_inverse=True)
    return states, *np.split(places.reshape(-1), 2)


def frames_of(given: Transitions, album: StateAlbum) -> EpisodeMoments:
    """The moments whose pictures are clear.

    Which belong to one episode is seen from what leads to what; episodes that share a state count as one.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    states, before, after = moments(given)
    steps = coo_array((np.ones(len(before)), (before, after)), shape=(len(states), len(states)))
    episode = connected_components(steps, directed=False)[1].astype(np.int64)
    pictures = [album.of(state) for state in states]
    clear = np.array([each is not None for each in pictures])
    return EpisodeMoments(states[clear], episode[clear], tuple(each for each in pictures if each is not None))


def split(frames: EpisodeMoments, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the moments to learn from and of those held out: whole episodes, about `share` of the moments.

    Raises:
        UserError: either would hold less than two moments, so no pair.
    """
    order = np.random.default_rng([seed, 0]).permutation(np.unique(frames.episode))
    sizes = np.array([(frames.episode == number).sum() for number in order])
    count = int(np.searchsorted(np.cumsum(sizes), share * len(frames)) + 1)
    held = np.isin(frames.episode, order[: min(count, len(order) - 1)])
    learned, test_rows = np.flatnonzero(~held), np.flatnonzero(held)
    if min(len(learned), len(test_rows)) < 2:
        raise UserError(
            f"offline: {len(frames)} moments of {len(order)} episodes that share no state: too few to hold some out; "
            "give more episodes"
        )
    return learned, test_rows


def sample_pairs(places: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Pairs of two different moments, int64 [count, 2]; a larger count begins with the same pairs."""
    offsets = rng.integers([len(places), len(places) - 1], size=(count, 2))
    return places[np.stack([offsets[:, 0], (offsets[:, 0] + 1 + offsets[:, 1]) % len(places)], 1)]


# A judge that knows: for tests, and to see what a real judge's mistakes would cost.

Share = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[list[str], Field(min_length=1)]


@method(source="stands in for the vision-language model of RL-VLM-F (arXiv 2402.03681); mistakes as B-Pref, 2111.03026")
class ScriptedJudge(PreferenceJudge):
    """No vision-language model: compares distances in the states themselves, and errs by chance.

    The goal told in words is not read. What is learned from it says what such a share of mistakes costs, and nothing of
    how many a real judge makes, which are no chance.

    Args:
        what, where: numbers of the state by name, as many of each: the goal is nearer where the distance between the
            two is smaller, as [cube x, cube y] and [goal x, goal y].
        noise: share of the answers that are the other one.
        unsure: share of the pairs that it does not answer, beside those that are equally near.
        margin: difference of the distances, in units of the state, up to which it does not answer.

    Raises:
        UserError: the state has no such numbers.
    """

    def __init__(
        self, task: Any, seed: int, *, what: Names, where: Names, noise: Share = 0.0, unsure: Share = 0.0,
        margin: Annotated[float, Field(ge=0)] = 0.0,
    ):  # fmt: skip
        names = list(task.pool.info.names)
        if unknown := [name for name in (*what, *where) if name not in names]:
            raise UserError(f"judge: scripted: the state has no {unknown[0]!r}{suggest(unknown[0], names)}")
        if len(what) != len(where):
            raise UserError(f"judge: scripted: {len(what)} numbers in what, {len(where)} in where: as many of each")
        self._what, self._where = ([names.index(name) for name in each] for each in (what, where))
        self._seed, self._noise, self._unsure, self._margin = seed, noise, unsure, margin

    def prefer(self, pairs: Sequence[Pair], goal: str) -> list[Answer]:
        return [self._answer(pair) for pair in pairs]

    def progress(self, state: np.ndarray) -> np.ndarray:
        """float64 [N], minus the distance, of states [N, S]."""
        exact = np.asarray(state, np.float64)
        return -np.linalg.norm(exact[:, self._what] - exact[:, self._where], axis=1)

    def _answer(self, pair: Pair) -> Answer:
        first, second = self.progress(np.stack([pair.first.state, pair.second.state]))
        silent, wrong = np.random.default_rng([self._seed, int(pair.key, 16)]).random(2)
        if abs(second - first) <= self._margin or silent < self._unsure:
            return None
        return int((second > first) != (wrong < self._noise))


scripted = ScriptedJudge


# A CLIP as a judge: the goal is nearer in the picture that is more like its words.


@method(source="compared with RL-VLM-F in arXiv 2402.03681; its measure of likeness is VLM-RM's, arXiv 2310.12921")
class ClipJudge(PreferenceJudge):
    """Prefers the moment to which `vlm_rm` gives more (vlrl/contrib/process_rewards/visual.py); the goal is its prompt.

    It looks at one picture after the other and answers at once. A small one for a simulator: `vlrl pretrain` with
    `contrast`.

    Args:
        model: a CLIP or SigLIP: a folder, or a name on the hub.
        baseline, alpha: as of `vlm_rm`.
        image: which of the pictures of a moment.
        margin: difference of the rewards up to which it does not answer.

    Raises:
        UserError: there is no such model, or a moment shows no such picture.
    """

    def __init__(
        self, task: Any, seed: int, *, model: str, baseline: Names, alpha: Share = 0.5,
        image: Annotated[int, Field(ge=0)] = 0, margin: Annotated[float, Field(ge=0)] = 0.0,
    ):  # fmt: skip
        self._options: dict[str, Any] = {"model": model, "baseline": baseline, "alpha": alpha, "image": image}
        self._margin = margin
        self._rater: Any = None  # loaded with the first question

    def prefer(self, pairs: Sequence[Pair], goal: str) -> list[Answer]:
        from vlrl.contrib.process_rewards.visual import VLMRM

        nobody: Any = None  # no policy is needed
        self._rater = self._rater or VLMRM(nobody, None, 0, goal=[goal], **self._options)
        first, second = np.split(self._rater.values([p.first for p in pairs] + [p.second for p in pairs]), 2)
        return [None if abs(b - a) <= self._margin else int(b > a) for a, b in zip(first, second, strict=True)]


clip = ClipJudge


# A vision-language model as a judge: it describes two pictures, then says in which of them the goal is nearer.

LOOK = """\
Say what picture 0 shows, as far as it matters for the goal. Then say the same of picture 1. Then compare them: in \
which of the two is the goal nearer to being reached, and what is it that you see this by?"""
ANSWER = """\
Somebody compared two pictures of a robot at work, picture 0 and picture 1, and wrote:

{said}

The robot's goal: {goal}
According to this text, in which picture is the goal nearer to being reached? Answer with one line that holds nothing \
but a number: 0 for picture 0, 1 for picture 1, or -1 if they are equally near or the text does not tell."""
NUMBER = re.compile(r"(?:answer\s*[:=]?\s*)?[\"'`(\[*]*(-1|0|1)[\"'`)\]*.]*", re.IGNORECASE)
SPECIAL = re.compile(r"<\|[^<>|]*\|>")  # chat templates' own words, which a model may write and none may be shown


@method(source="RL-VLM-F: arXiv 2402.03681, two stages; other wording")
class VLMJudge(PreferenceJudge):
    """Asks twice: to describe and compare two pictures, then to answer 0, 1 or -1 by what was written.

    The second question shows no pictures. It answers greedily. -1, and whatever is no such answer, counts as none.

    Args:
        model: as `policy.model`: a folder, or a name on the hub.
        image: which of the pictures of a moment.
        max_tokens: of the description.
        dtype, max_pixels: as in `policy`.

    Raises:
        UserError: there is no such model, it is no vision-language model, or a moment shows no such picture.
    """

    def __init__(
        self, task: Any, seed: int, *, model: str, image: Annotated[int, Field(ge=0)] = 0, max_tokens: Count = 256,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto", max_pixels: Count | None = None,
    ):  # fmt: skip
        from vlrl.config import PolicySection
        from vlrl.engines import load_policy

        section = PolicySection(model=model, max_tokens=max_tokens, dtype=dtype, max_pixels=max_pixels)
        self._policy: Any = load_policy(section, seed=seed)
        self._image = image
        if not self._policy.writes_text:
            raise UserError(f"judge.model: {model} is no vision-language model")

    def prefer(self, pairs: Sequence[Pair], goal: str) -> list[Answer]:
        looked = self._ask([(f"{pair.key}/look", self._looking(pair, goal)) for pair in pairs])
        asked = [Observation((ANSWER.format(said=harmless(said), goal=goal),)) for said in looked]
        answers = self._ask([(f"{pair.key}/answer", shown) for pair, shown in zip(pairs, asked, strict=True)])
        self.said = [f"{said}\n=> {answer}" for said, answer in zip(looked, answers, strict=True)]
        return [answer_in(answer) for answer in answers]

    def _looking(self, pair: Pair, goal: str) -> Observation:
        try:
            first, second = (shown.images[self._image].convert("RGB") for shown in (pair.first, pair.second))
        except IndexError:
            raise UserError(
                f"judge: vlm: the data shows no picture {self._image} (its option `image`): give the robot a camera"
            ) from None
        opening = f"Two pictures of a robot at work, taken at different times. Its goal: {goal}"
        return Observation((f"{opening}\nPicture 0:", first, "Picture 1:", second, LOOK))

    def _ask(self, asked: Sequence[tuple[str, Observation]]) -> list[str]:
        episodes = [Episode(Sample(key, shown), number) for number, (key, shown) in enumerate(asked)]
        decisions = self._policy.act(episodes, [shown for _, shown in asked], greedy=True)
        return [str(decision.action) for decision in decisions]


vlm = VLMJudge


def harmless(text: str) -> str:
    """A model's text as it can be shown to a model: nothing in it stands for a picture or ends the question."""
    while (clean := SPECIAL.sub(" ", text)) != text:
        text = clean
    return "".join(c for c in text if (c.isprintable() or c == "\n") and c != "\ufffd").strip()


def answer_in(text: str) -> Answer:
    """The answer on the last line that is not empty, which may hold nothing else; None of -1 and of anything else."""
    lines = [line.strip() for line in text.replace("\u2212", "-").splitlines() if line.strip()]
    match = NUMBER.fullmatch(lines[-1]) if lines else None
    number = int(match[1]) if match else -1
    return number if number >= 0 else None
