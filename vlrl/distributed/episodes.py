"""Sharing out what is played and looked at, and putting it together again: the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.distributed.world import get_world
from vlrl.types import Decision, Episode, Observation, Sample, Turn, Video

if TYPE_CHECKING:
    from torch import Tensor


# Episodes that another process has played: all that was said and scored, without pictures and a policy's own inputs.
#
# A prompt that is its sample's own lies in every process, so such a decision can be evaluated in any; one of a picture
# that an environment drew can be evaluated where it was made alone.

SMALL = 256  # pixels of the longer side of a picture that is sent to be shown


@dataclass(frozen=True, eq=False)
class RemoteImage:
    """A picture that lies in another process: its size and a key of what it shows, perhaps a small copy."""

    size: tuple[int, int]
    fingerprint: str
    small: np.ndarray | None = None  # uint8 [height, width, 3]

    def copy(self) -> Any:
        """The small copy, as a picture."""
        from PIL import Image

        if self.small is None:
            raise RuntimeError("this picture lies in another process")
        return Image.fromarray(self.small)


def fingerprint(image: Any) -> str:
    """A key of a picture: equal for equal ones, wherever they lie."""
    return image.fingerprint if isinstance(image, RemoteImage) else hashlib.sha256(image.tobytes()).hexdigest()


class RemoteInputs:
    """What a policy keeps of its own decision, made anew from what was shown when it is first asked for."""

    def __init__(
        self, policy: Any, shown: Observation, made: Decision, key: str | None, tokens: Sequence[int] | None,
        before: Sequence[Turn] = (),
    ):  # fmt: skip
        self.policy = policy
        known = {} if tokens is None else {"ids": tokens}
        self._again = lambda: self.policy.decide(shown, made.action, key, before=before, **known)
        self._inputs: Any = None
        if tokens is not None:
            self.tokens = tuple(tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._inputs is None:
            self._inputs = self._again().inputs
        return getattr(self._inputs, name)


def pack_episode(episode: Episode, policy: Any, small: bool = False) -> dict[str, Any]:
    """What the other processes get of an episode. small: with small copies of its pictures, to be shown."""
    prompt = episode.sample.prompt
    turns = []
    for turn in episode.turns:
        ids = policy.ids(turn.decision)
        step = replace(turn.step, observation=_light(turn.step.observation, prompt, small))
        shown = _light(turn.observation, prompt, small)
        turns.append([shown, replace(turn.decision, inputs=None), ids, step, turn.process_reward])
    return {
        "turns": turns, "score": episode.score, "reward": episode.reward, "faults": episode.faults,
        "stream": episode.stream,
    }  # fmt: skip


def unpack_episode(row: dict[str, Any], sample: Sample, group: int, policy: Any, home: int) -> Episode:
    """An episode of another process, of what that has told."""
    turns: list[Turn] = []
    for shown, decision, ids, step, earned in row["turns"]:
        own, key = (sample.prompt, sample.id) if shown is None else (shown, None)
        inputs = RemoteInputs(policy, own, decision, key, ids, [*turns])
        after = replace(step, observation=sample.prompt if step.observation is None else step.observation)
        turns.append(Turn(own, replace(decision, inputs=inputs, owner_rank=home), after, earned))
    return Episode(
        sample, group, turns, row["score"], row["reward"], row["faults"], stream=row["stream"]
    )  # fmt: skip


def assign_policy(policy: Any, episodes: Sequence[Episode]) -> None:
    """From here on this policy makes what is missing of others' decisions: who played may play again meanwhile."""
    for episode in episodes:
        for turn in episode.turns:
            if isinstance(turn.decision.inputs, RemoteInputs):
                turn.decision.inputs.policy = policy


def _light(shown: Observation, prompt: Observation, small: bool) -> Observation | None:
    """None for the sample's own prompt; else with pictures that say where they lie. Videos are sent whole."""
    if shown is prompt:
        return None
    return shown.with_content(
        [part if isinstance(part, str | Video) else _elsewhere(part, small) for part in shown.content]
    )


def _elsewhere(image: Any, small: bool) -> RemoteImage:
    if isinstance(image, RemoteImage):
        return image
    copy = None
    if small:
        shrunk = image.convert("RGB")
        shrunk.thumbnail((SMALL, SMALL))
        copy = np.asarray(shrunk)
    return RemoteImage(tuple(image.size), fingerprint(image), copy)


Columns = Mapping[str, "Tensor | None"]


def gathered(policy: Any, episodes: Sequence[Episode], own: range) -> list[Episode]:
    """All episodes of a collection, of which this process has played those of the range; its own stay as they are."""
    world = get_world()
    if world.size == 1:
        return list(episodes)
    rows = world.gather([pack_episode(episodes[i], policy) for i in own])
    made, place = [], 0
    for rank, of_rank in enumerate(rows):
        for row in of_rank:
            asked = episodes[place]
            if rank == world.rank:
                for i, turn in enumerate(asked.turns):
                    asked.turns[i] = replace(turn, decision=replace(turn.decision, owner_rank=rank))
                made.append(asked)
            else:
                made.append(unpack_episode(row, asked.sample, asked.group, policy, rank))
            place += 1
    return made


def to_show(policy: Any, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with small copies of the pictures that lie in other processes."""
    world, made = get_world(), list(episodes)
    if world.size == 1:
        return made
    own = {
        i: pack_episode(e, policy, small=True)
        for i, e in enumerate(made)
        if e.turns[0].decision.owner_rank == world.rank
    }
    for rank, rows in enumerate(world.gather(own)):
        if rank != world.rank:
            for i, row in rows.items():
                made[i] = unpack_episode(row, made[i].sample, made[i].group, policy, rank)
    return made


def mine(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions that are this process's to evaluate."""
    world = get_world()
    return [decision for number, decision in enumerate(decisions) if world.keeps(decision, number)]


def columns_of(
    find: Callable[[Sequence[Episode]], Columns], episodes: Sequence[Episode], once: Sequence[str] = ()
) -> Columns:
    """What `find` says of episodes, each asked where it was played.

    Args:
        find: episodes -> columns by name, [B, width] with a row for each decision; None: nothing to say.
        once: columns with a row for each episode.
    """
    world = get_world()
    if world.size == 1:
        return find(episodes)
    own = [i for i, episode in enumerate(episodes) if world.keeps(episode.turns[0].decision, i)]
    found = find([episodes[i] for i in own]) if own else {}
    rows: dict[str, dict[int, Tensor]] = {}
    for places, part in world.gather([own, {name: value for name, value in found.items() if value is not None}]):
        for name, value in part.items():
            counts = [1 if name in once else len(episodes[i].turns) for i in places]
            rows.setdefault(name, {}).update(zip(places, value.split(counts), strict=True))
    counts = {name: [1 if name in once else len(e.turns) for e in episodes] for name in rows}
    return {name: _stacked(of, counts[name]) for name, of in rows.items()}


def _stacked(rows: Mapping[int, Tensor], counts: Sequence[int]) -> Tensor:
    """Rows in the order of the episodes; zeros for episodes of which nothing was said, and behind shorter rows."""
    like, width = next(iter(rows.values())), max(value.shape[1] for value in rows.values())
    made = like.new_zeros(sum(counts), width)
    for i, part in enumerate(made.split(list(counts))):
        if i in rows:
            part[:, : rows[i].shape[1]] = rows[i]
    return made
