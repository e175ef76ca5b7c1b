"""Sources of off-policy transitions: HDF5, LeRobot, Minari, demonstrations."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from vlrl.config import Count
from vlrl.decoders import load_json
from vlrl.methods import method
from vlrl.offpolicy.base import AgentView, Transitions, concat, windows
from vlrl.types import (
    BadRow,
    Decision,
    Environment,
    Episode,
    Frame,
    Observation,
    Policy,
    RobotTask,
    Sample,
    Step,
    UserError,
)

if TYPE_CHECKING:
    from vlrl.imitation.datasets import DatasetEpisode

# HDF5 files, as Minari, D4RL and Robomimic keep episodes.


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An h5py.File to read.

    Raises:
        UserError: h5py is missing, there is no such file, or it is damaged (also found while reading inside).
    """
    try:
        import h5py
    except ImportError:
        raise UserError("offline: HDF5 files need h5py: pip install 'vlrl[hdf5]'") from None
    if not path.is_file():
        raise UserError(f"offline: no file {path}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: no HDF5 file, or damaged: {str(error).splitlines()[0]}") from None


def column(group: Any, name: str) -> np.ndarray:
    """A data set [T] of numbers, or [T, 1]. ValueError where there is none."""
    values = matrix(group, name)
    if values.shape[1] != 1:
        raise ValueError(f"{name} has {values.shape[1]} numbers a tick instead of one")
    return values[:, 0]


def matrix(group: Any, name: str) -> np.ndarray:
    """A data set of numbers as float32 [T, D]. ValueError where there is none, or it is of something else."""
    dataset = group.get(name)
    if dataset is None or isinstance(dataset, Mapping):  # a group
        kinds = ", ".join(sorted(group))
        raise ValueError(f"has no numbers {name} (it has {kinds})")
    if dataset.dtype.kind not in "fiub" or not dataset.shape:
        raise ValueError(f"{name} is of {dataset.dtype}, shape {dataset.shape}, not of numbers a tick")
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return dataset[()].astype(np.float32).reshape(len(dataset), -1)


def joined(group: Any, names: Sequence[str]) -> np.ndarray:
    """Several data sets side by side, float32 [T, S]. ValueError as `matrix`, and where their lengths differ."""
    parts = [matrix(group, name) for name in names]
    if len({len(part) for part in parts}) != 1:
        lengths = ", ".join(f"{name} {len(part)}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"columns of different lengths: {lengths}")
    return np.concatenate(parts, 1)


def numbered(names: Sequence[str], prefix: str) -> list[tuple[int, str]]:
    """Of `demo_3` and kin: (3, demo_3), in the order of the numbers."""
    return sorted(
        (int(name.removeprefix(prefix)), name)
        for name in names
        if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
    )


# Recorded episodes of any format, checked, and the transitions that they are.

OnBad = Literal["stop", "skip"]
Keep = Literal["all", "success"]
Units = Literal["limits", "physical"]


@dataclass(frozen=True, eq=False)
class Recording:
    """One episode of T ticks."""

    states: np.ndarray  # float32 [T + 1, S], the last one after the last control
    controls: np.ndarray  # float32 [T, A], physical units
    won: bool  # the job was done, by the last control
    ended: bool  # the job was done or lost; False of a time-out, and where a recording just stops
    paid: np.ndarray | None = None  # float32 [T]
    person: np.ndarray | None = None  # bool [T]
    images: np.ndarray | None = None  # uint8 [T + 1, P], where the run's agent learns to see


def of_recordings(recordings: Sequence[Recording], chunk: int, keep: Keep, where: str) -> Transitions:
    """Chunks of `chunk` ticks, one from each tick. UserError where nothing is left."""
    kept = [each for each in recordings if each.won or keep == "all"]
    if not kept:
        raise UserError(f"{where}: none of {len(recordings)} episodes was won: keep all, or say what success is")
    return concat(
        [
            windows(each.states, each.controls, chunk, won=each.won, ended=each.ended, person=each.person,
                    paid=each.paid, images=each.images)
            for each in kept
        ]
    )  # fmt: skip


def gather(
    task: Any, file: Path, episodes: Iterable[tuple[int, Callable[[], Recording]]], on_bad: OnBad, keep: Keep
) -> Transitions:
    """Reads episode after episode; what is bad stops the run, or is set aside with a reason in `task.bad_rows`.

    Args:
        episodes: numbers, and what reads that one or raises ValueError with what is wrong with it.

    Raises:
        UserError: a bad episode, or nothing is left.
    """
    good: list[Recording] = []
    bad: list[BadRow] = []
    for number, read in episodes:
        try:
            recorded = read()
            _check(recorded, task, good[0] if good else None)
            good.append(recorded)
        except ValueError as problem:
            if on_bad == "stop":
                raise UserError(f"{file}: episode {number}: {problem}: mend it, or set on_bad: skip") from None
            bad.append(BadRow(str(file), number, str(problem)))
    task.bad_rows = (*task.bad_rows, *bad)
    if not good:
        why = f"the first: {bad[0].problem}" if bad else "it holds none"
        raise UserError(f"{file}: no episode can be learned from ({why})")
    return of_recordings(good, task.chunk, keep, str(file))


def _check(found: Recording, task: Any, first: Recording | None) -> None:
    """ValueError with what is wrong."""
    count, size = len(found.controls), found.states.shape[1]
    names, controls = tuple(task.pool.info.names), tuple(task.controls.names)
    width = first.states.shape[1] if first else 0 if task.view else len(names)
    if not count or len(found.states) != count + 1:
        raise ValueError(f"{len(found.states)} states with {count} controls")
    if width and size != width:
        raise ValueError(f"a state of {size} numbers instead of {width}" + f" ({', '.join(names)})" * bool(names))
    if found.controls.shape[1] != len(controls):
        raise ValueError(f"controls of {found.controls.shape[1]} numbers; the robot's are {', '.join(controls)}")
    columns = {"paid": found.paid, "person": found.person}
    for name, column in columns.items():
        if column is not None and column.shape != (count,):
            raise ValueError(f"{name} of shape {column.shape} with {count} controls")
    for name, column in {"states": found.states, "controls": found.controls, "rewards": found.paid}.items():
        if column is not None and not np.isfinite(column).all():
            raise ValueError(f"{name} are not finite")


def until(success: np.ndarray) -> int | None:
    """Ticks up to the first success of bool [T], what follows is no longer the job; None without one."""
    places = np.flatnonzero(success)
    return int(places[0]) + 1 if len(places) else None


def closed(states: np.ndarray, controls: np.ndarray, ended: bool) -> tuple[np.ndarray, np.ndarray]:
    """T states and T controls as T + 1 and T, where nothing was recorded after the last control.

    Where the job was over nothing looks at what followed, and the last state stands for it. Else the last control is
    left out, since what came of it is not known.
    """
    if len(states) != len(controls):
        raise ValueError(f"{len(states)} states with {len(controls)} controls")
    return (np.concatenate([states, states[-1:]]), controls) if ended else (states, controls[:-1])


def physical(controls: np.ndarray, units: Units, task: Any) -> np.ndarray:
    """Controls [T, A] in physical units. Of `limits`, -1 and 1 are the limits."""
    low, high = task.controls.low, task.controls.high
    if units == "physical" or controls.shape[-1] != len(low):  # what does not fit is told by `gather`
        return controls
    return low + (controls + 1) / 2 * (high - low)


# Episodes that a behaviour plays tick by tick, the task's script or what is made of it, with what it did.

# the episode and how many ticks it has had -> a control float [1, A], which is then held to the limits
Control = Callable[[Any, int], np.ndarray]
Behaviour = Callable[[Sample, np.random.Generator], Control]  # who plays a scene, with random numbers of its own


def behaved(
    task: RobotTask,
    seed: int,
    name: str,
    chosen: Sequence[Sample],
    behaviour: Callable[[Sample, np.random.Generator], Control],
) -> list[Recording]:
    """An episode of each scene.

    Args:
        name: of the source, for errors.

    Raises:
        UserError: the task has no script.
    """
    from vlrl.rollout import collect, with_environment

    done: dict[str, list[np.ndarray]] = {}

    def open_environment(sample: Sample) -> _Behaving:
        played = task.environment(sample)
        if not played.has_script or not task.pool.info.script:
            raise UserError(f"offline: {name}: this task has no script that could show the job")
        done[sample.id] = []  # an episode that was void begins anew
        rng = np.random.default_rng([seed, *sample.id.encode()])
        return _Behaving(played, task.controls, behaviour(sample, rng), done[sample.id])

    episodes = collect(_Nobody(), with_environment(task, open_environment), chosen, 1)
    return [_behaviour_recording(each, done[each.sample.id], task.view or AgentView()) for each in episodes]


def scenes(task: Any, episodes: int, problem: str) -> list[Sample]:
    """The first training scenes. UserError, beginning with `problem`, where there are fewer."""
    samples = task.samples("train")
    if episodes > len(samples):
        raise UserError(f"offline: {problem}, but {len(samples)} training scenes: set task.scenes")
    return [samples[i] for i in range(episodes)]


def _behaviour_recording(episode: Episode, controls: list[np.ndarray], view: AgentView) -> Recording:
    last = episode.turns[-1].step
    states, images = view([turn.observation for turn in episode.turns] + [last.observation])
    return Recording(
        states, np.concatenate(controls), won=episode.score.is_correct, ended=last.terminated and not last.truncated,
        paid=np.array([turn.step.reward for turn in episode.turns], np.float32), images=images,
    )  # fmt: skip


def planned(played: Any, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the script does next, which looks again at every tick, with normal noise of `spread`: [1, A]."""
    plan = played.gold(())[:1]
    return plan + spread * rng.standard_normal(plan.shape)


class _Behaving(Environment):
    """An episode that a behaviour plays, a tick a turn."""

    def __init__(self, played: Any, limits: Any, control: Control, done: list[np.ndarray]):
        self._played, self._low, self._high, self._control, self._done = played, limits.low, limits.high, control, done
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        self._shown = self._played.reset()
        return self._shown

    def step(self, action: Any, frames: Sequence[Frame] = ()) -> Step:
        try:
            control = self._control(self._played, len(self._done))
        except UserError:
            raise
        except Exception as error:  # the border to simulators, which raise what they like
            return Step(self._shown, truncated=True, fault=f"the script: {error}")
        self._done.append(control.clip(self._low, self._high).astype(np.float32))
        step = self._played.step(self._done[-1], frames)
        self._shown = step.observation
        return step

    def close(self) -> None:
        self._played.close()


class _Nobody(Policy):
    """A policy that decides nothing."""

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision("", None, None, False) for _ in episodes]


# Episodes that the task's own script plays.


@method(source="RLPD (arXiv 2302.02948): given data beside what is played; noise as DART (arXiv 1703.09327)")
def demonstrations(
    task: Any, seed: int, *, episodes: Count = 20, noise: Annotated[float, Field(ge=0, le=1)] = 0.0
) -> Transitions:
    """The task's script on its first training scenes, won or not; a transition begins at each tick.

    Args:
        noise: standard deviation, in halves of the limits' width, of what is added to the script's controls, carried
            out and remembered: a script that never errs never shows what comes of it.
    """
    spread = noise * (task.controls.high - task.controls.low) / 2

    def behaviour(sample: Sample, rng: np.random.Generator) -> Callable[[Any, int], np.ndarray]:
        return lambda played, ticks: planned(played, spread, rng)

    chosen = scenes(task, episodes, f"{episodes} demonstrations")
    recordings = behaved(task, seed, "demonstrations", chosen, behaviour)
    return of_recordings(recordings, task.chunk, "all", "offline: demonstrations")


# LeRobotDatasets v3: our own recordings and others'.

SENT = "sent_action"  # what was carried out, where `action` is what is to be imitated
SUCCESS, REWARD = "next.success", "next.reward"
PERSON = 2  # in the column `source`
Columns = dict[str, np.ndarray]


@method(source="LeRobotDataset v3 (lerobot 0.6)")
def lerobot(
    task: Any, seed: int, *, path: str, success: Literal["said", "all"] | float = "said",
    state: str = "observation.state", action: str | None = None, lost: str | None = None, on_bad: OnBad = "stop",
    keep: Keep = "all",
) -> Transitions:  # fmt: skip
    """Episodes of a folder, chunks cut from their frames. An episode ends with its first success.

    One without is a time-out, whatever next.done says, unless `lost` tells otherwise. Images are read where the run
    has an encoder; a person's frames (`source`, `intervention`) stay known as such.

    Args:
        path: the data set's folder.
        success: `said` by the column next.success; a number: the next.reward from which the job counts as done; `all`:
            each episode ends with the job done, as demonstrations of people do.
        state: the column that is the state, as the task shows it.
        action: the column of what was carried out, in physical units; default: sent_action, where there is one.
        lost: a column that is true at a frame with which the job was lost.
        on_bad: a bad episode: stop, or set it aside and go on.
        keep: `success` leaves out what was not won.

    Raises:
        UserError: no such data set, of another rate, or nothing in it that can be used.
    """
    from vlrl.imitation.datasets import episodes as read_images
    from vlrl.imitation.datasets import read_info

    folder = Path(path)
    data, features = read_info(folder), _features(folder)
    hz = float(task.pool.info.hz)
    if hz and data.fps != hz:
        raise UserError(f"{path}: {data.fps:g} frames a second, but the robot takes {hz:g} controls a second")
    action = action or (SENT if SENT in features else "action")
    judged = {"said": SUCCESS, "all": None}.get(success, REWARD)
    for name in (state, action, judged, lost):
        if name and name not in features:
            raise UserError(f"{path}: has no column {name}; set success, state, action or lost to what it has")
    optional = [name for name in (REWARD, "source", "intervention") if name in features]
    names = [*dict.fromkeys(filter(None, [state, action, judged, lost, *optional]))]
    view = task.view if task.view and task.view.needs_images else None
    pictured = {each.number: each for each in read_images(data)} if view else {}

    def read(number: int, frames: Columns) -> Recording:
        recording = _lerobot_recording(frames, state, action, success, lost)
        return _with_images(recording, pictured[number], view) if view else recording

    episodes = (
        (number, lambda number=number, frames=frames: read(number, frames))
        for number, frames in _episodes(folder, names, data.episodes)
    )
    return gather(task, folder, episodes, on_bad, keep)


def _with_images(recording: Recording, episode: DatasetEpisode, view: AgentView) -> Recording:
    """The same with what a run sees of its frames; where the job was over the last frame stands for what followed."""
    count = len(recording.states)
    frames = [min(t, len(episode) - 1) for t in range(count)]
    if recording.ended:
        frames[-1] = frames[max(0, count - 2)]
    rows = zip(frames, recording.states, strict=True)
    states, images = view([replace(episode.observation_at(t), state=row) for t, row in rows])
    return replace(recording, states=states, images=images)


def _lerobot_recording(frames: Columns, state: str, action: str, success: str | float, lost: str | None) -> Recording:
    states, controls, count = frames[state], frames[action], len(frames[state])
    if (frames["frame_index"][:, 0] != np.arange(count)).any():
        raise ValueError("frames are missing or out of order")
    won = count if success == "all" else until(_judged(frames, success))
    failed = until(frames[lost][:, 0] > 0) if lost else None
    end = min((each for each in (won, failed) if each is not None), default=None)
    states, controls = closed(states[:end], controls[:end], end is not None)
    paid = frames[REWARD][: len(controls), 0] if REWARD in frames else None
    return Recording(
        states, controls, won=won is not None and won == end, ended=end is not None, paid=paid,
        person=_person(frames, len(controls)),
    )  # fmt: skip


def _judged(frames: Columns, success: str | float) -> np.ndarray:
    """bool [T]: whether the job was done with this frame."""
    return frames[SUCCESS][:, 0] > 0 if success == "said" else frames[REWARD][:, 0] >= success


def _person(frames: Columns, count: int) -> np.ndarray | None:
    if "source" in frames:
        return frames["source"][:count, 0] == PERSON
    return frames["intervention"][:count, 0] > 0 if "intervention" in frames else None


def _features(folder: Path) -> dict[str, Any]:
    return load_json(folder / "meta" / "info.json")["features"]


def _episodes(folder: Path, names: list[str], count: int) -> Iterator[tuple[int, Columns]]:
    """Number and columns float32 [T, D] of each episode. UserError where a file is damaged or episodes are missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, found = [*names, "episode_index", "frame_index"], 0
    for file in sorted((folder / "data").glob("*/*.parquet")):
        try:
            table = pq.read_table(file, columns=names, partitioning=None)
            columns = {name: _matrix(table[name]) for name in names}
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{file}: damaged, or being written now: {str(error).splitlines()[0]}") from None
        numbers = columns["episode_index"][:, 0]
        for rows in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1):
            found += 1
            yield int(numbers[rows[0]]), {name: column[rows] for name, column in columns.items()}
    if found != count:
        raise UserError(f"{folder}: {found} episodes in its files instead of {count}: damaged, or being written now")


def _matrix(column: Any) -> np.ndarray:
    import pyarrow as pa

    whole, rows = column.combine_chunks(), len(column)
    while pa.types.is_nested(whole.type):
        whole = whole.flatten()
    values = whole.to_numpy(zero_copy_only=False)
    return values.astype(np.float32 if values.dtype.kind == "f" else np.float64).reshape(rows, -1)


# Minari's files (episode_0 and on) and D4RL's (one long row of steps).

Success = float | Literal["terminated"] | None
MAIN = "main_data.hdf5"


@method(source="Minari's dataset standard; D4RL (arXiv 2004.07219), its files of version 1 and on; D5RL (2408.08441)")
def minari(
    task: Any, seed: int, *, path: str, obs: Sequence[str] = (), success: Success = None, units: Units = "limits",
    on_bad: OnBad = "stop", keep: Keep = "all",
) -> Transitions:  # fmt: skip
    """Episodes of a Minari data set, of a D4RL file or of one of D5RL's HDF5 files (its legged robots; its kitchens and
    arms lie in pickles, which are not read). A time-out (truncations, timeouts, trajectory_ends) is not terminal.

    Args:
        path: the .hdf5 file, or Minari's folder of it.
        obs: of observations with names those whose numbers, side by side, are the state; (): they have none.
        success: reward of a tick from which the job counts as done, which then ends the episode; `terminated`: an
            episode that terminates has done it; none: nothing is won, only the data's own rewards count, by
            `reward.shaped` of the run.
        units: `limits`: -1 and 1 are the robot's limits; `physical`.
        on_bad: a bad episode: stop, or set it aside and go on.
        keep: `success` leaves out what was not won.

    Raises:
        UserError: h5py is missing; no such file, or nothing in it that can be used.
    """
    file = _file(Path(path))
    with opened(file) as whole:
        names = numbered(list(whole), "episode_")
        if names:
            cut = [(i, lambda name=name: _episode(whole[name], obs)) for i, name in names]
        elif "observations" in whole:
            cut = list(_flat(whole, obs, file))
        else:
            raise UserError(f"{file}: neither Minari's episode_0 nor D4RL's observations: it has {', '.join(whole)}")
        episodes = [(i, lambda read=read: _minari_recording(read(), success, units, task)) for i, read in cut]
        return gather(task, file, episodes, on_bad, keep)


class _Steps:
    """An episode as it lies there: states [T + 1, S], or [T, S] where what came last was not kept."""

    def __init__(self, states: np.ndarray, actions: np.ndarray, rewards: np.ndarray, terminated: bool):
        self.states, self.actions, self.rewards, self.terminated = states, actions, rewards, terminated


def _minari_recording(steps: _Steps, success: Success, units: Units, task: Any) -> Recording:
    states, actions, rewards, ended = steps.states, steps.actions, steps.rewards, steps.terminated
    if len(rewards) != len(actions):
        raise ValueError(f"{len(actions)} actions with {len(rewards)} rewards")
    won = ended and success == "terminated"
    end = until(rewards >= success) if isinstance(success, float) else None
    if end is not None:
        states, actions, rewards, won, ended = states[: end + 1], actions[:end], rewards[:end], True, True
    if len(states) == len(actions):
        states, actions = closed(states, actions, ended)
    return Recording(states, physical(actions, units, task), won=won, ended=ended, paid=rewards[: len(actions)])


def _episode(group: Any, obs: Sequence[str]) -> _Steps:
    states = joined(group, [f"observations/{name}" for name in obs] or ["observations"])
    terminated = column(group, "terminations").any()
    return _Steps(states, matrix(group, "actions"), column(group, "rewards"), bool(terminated))


def _flat(whole: Any, obs: Sequence[str], file: Path) -> Iterator[tuple[int, Callable[[], _Steps]]]:
    """D4RL's arrays, cut where an episode ended; D5RL marks the last tick of each, however it ended."""
    try:
        states = joined(whole, [f"observations/{name}" for name in obs] or ["observations"])
        actions, rewards = matrix(whole, "actions"), column(whole, "rewards")
        last = "trajectory_ends" if "trajectory_ends" in whole else "timeouts"
        ends, cuts = (column(whole, name).astype(bool) for name in ("terminals", last))
        after = matrix(whole, "next_observations") if "next_observations" in whole else None
    except ValueError as problem:
        raise UserError(f"{file}: {problem}: D4RL's files of version 1 and on are read") from None
    if len({len(each) for each in (states, actions, rewards, ends, cuts)}) != 1:
        raise UserError(f"{file}: columns of different lengths")
    places = np.flatnonzero(ends | cuts) + 1
    for number, rows in enumerate(np.split(np.arange(len(states)), places)):
        if len(rows):
            yield number, lambda rows=rows: _of_rows(rows, states, actions, rewards, ends, after)


def _of_rows(
    rows: np.ndarray, states: np.ndarray, actions: np.ndarray, rewards: np.ndarray, ends: np.ndarray,
    after: np.ndarray | None,
) -> _Steps:  # fmt: skip
    observed = states[rows] if after is None else np.concatenate([states[rows], after[rows[-1:]]])
    return _Steps(observed, actions[rows], rewards[rows], bool(ends[rows[-1]]))


def _file(path: Path) -> Path:
    """A Minari folder's file, or the file itself."""
    inside = [path / "data" / MAIN, path / MAIN]
    return next((each for each in inside if each.is_file()), path)


# NeoRL-2's files: NAME-train.npz and NAME-val.npz, each one long row of steps, `index` where trajectories begin.

NEORL2 = ("obs", "next_obs", "action", "reward", "done", "index")


@method(source="NeoRL-2 (arXiv 2503.19267), as released: github.com/polixir/NeoRL2, neorl2/envs/base.py")
def neorl2(
    task: Any, seed: int, *, path: str, part: Literal["train", "val"] = "train", episodes: Count | None = None,
    success: Success = None, units: Units = "limits", on_bad: OnBad = "stop", keep: Keep = "all",
) -> Transitions:  # fmt: skip
    """Trajectories of a NeoRL-2 file. `done` ends the job; a trajectory without is a time-out.

    Args:
        path: the folder that holds *-train.npz and *-val.npz, or one of the two files.
        part: of the folder. `val` is for choosing between runs: never learn from both.
        episodes: the first so many; of `val` a quarter of them, as the released loader takes.
        success: as of `minari`.
        units: `limits`: -1 and 1 are the robot's limits; `physical`.
        on_bad: a bad trajectory: stop, or set it aside and go on.
        keep: `success` leaves out what was not won.

    Raises:
        UserError: no such file, or nothing in it that can be used.
    """
    file = _part(Path(path), part)
    columns = _npz(file)
    states, after, actions = (columns[name].astype(np.float32) for name in NEORL2[:3])
    rewards, ends = columns["reward"].astype(np.float32), columns["done"].astype(bool)
    starts = columns["index"].astype(np.int64)
    if not len(starts) or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= len(states):
        raise UserError(f"{file}: index: should count up from 0, below the {len(states)} ticks")
    rows = np.split(np.arange(len(states)), starts[1:])
    count = episodes if episodes is None or part == "train" else max(1, episodes // 4)

    def read(number: int) -> Recording:
        steps = _of_rows(rows[number], states, actions, rewards, ends, after)
        if (states[rows[number][1:]] != after[rows[number][:-1]]).any():
            raise ValueError("obs is not what next_obs of the tick before was")
        return _minari_recording(steps, success, units, task)

    return gather(task, file, ((i, lambda i=i: read(i)) for i in range(len(rows[:count]))), on_bad, keep)


def _part(path: Path, part: str) -> Path:
    """The file of a part. UserError where there is none, or several."""
    if path.is_file():
        return path
    files = sorted(path.glob(f"*-{part}.npz"))
    if len(files) != 1:
        raise UserError(f"offline: neorl2: {len(files)} files *-{part}.npz in {path}: name one")
    return files[0]


def _npz(file: Path) -> dict[str, np.ndarray]:
    """NeoRL-2's columns, with [N, 1] as [N]. UserError where one is missing, of no numbers or of another length."""
    try:
        with np.load(file, allow_pickle=False) as whole:
            lacking = [name for name in NEORL2 if name not in whole]
            if lacking:
                raise UserError(f"{file}: has no {lacking[0]} (it has {', '.join(whole)})")
            columns = {name: whole[name] for name in NEORL2}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file}: no NeoRL-2 file, or damaged: {str(error).splitlines()[0]}") from None
    for name, values in columns.items():
        wide = name in NEORL2[:3]
        if values.ndim == 2 and values.shape[1] == 1 and not wide:
            columns[name] = values = values[:, 0]
        if values.dtype.kind not in "fiub" or values.ndim != 1 + wide:
            raise UserError(f"{file}: {name} is of {values.dtype}, shape {values.shape}")
    lengths = {name: len(columns[name]) for name in NEORL2[:-1]}
    if len(set(lengths.values())) != 1 or columns["obs"].shape != columns["next_obs"].shape:
        raise UserError(f"{file}: columns of different lengths: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
    return columns


# Robomimic's files: data/demo_0 and on, each with obs/*, actions, rewards, dones.


@method(source="robomimic (arXiv 2108.03298), its HDF5 files")
def robomimic(
    task: Any, seed: int, *, path: str, obs: Annotated[list[str], Field(min_length=1)], mask: str | None = None,
    success: float | Literal["all"] = 1.0, units: Units = "limits", on_bad: OnBad = "stop", keep: Keep = "all",
) -> Transitions:  # fmt: skip
    """Demonstrations of a Robomimic file, in the order of their numbers. `dones` mark ends, not what they were.

    An episode ends with its first success. One without is a time-out.

    Args:
        path: the .hdf5 file.
        obs: names under obs/ whose numbers, side by side, are the state, as the task shows it.
        mask: only the demonstrations that mask/<this> names, for example train.
        success: reward of a tick from which the job counts as done; `all`: each demonstration ends with the job done.
        units: `limits`: -1 and 1 are the robot's limits, as robosuite's controllers take it; `physical`.
        on_bad: a bad demonstration: stop, or set it aside and go on.
        keep: `success` leaves out what was not won.

    Raises:
        UserError: h5py is missing; no such file, or nothing in it that can be used.
    """
    file = Path(path)
    with opened(file) as whole:
        demos = whole.get("data")
        if demos is None:
            raise UserError(f"{file}: no Robomimic file: it has no group data")
        named = None if mask is None else _named(whole, mask, file)
        chosen = [(i, name) for i, name in numbered(list(demos), "demo_") if named is None or name in named]
        episodes = [(i, lambda name=name: _read(demos[name], obs, success, units, task)) for i, name in chosen]
        return gather(task, file, episodes, on_bad, keep)


def _named(whole: Any, mask: str, file: Path) -> set[str]:
    names = whole.get(f"mask/{mask}")
    if names is None:
        kinds = ", ".join(sorted(whole.get("mask", ()))) or "none"
        raise UserError(f"{file}: has no mask {mask!r}; its masks: {kinds}")
    return {name.decode() if isinstance(name, bytes) else str(name) for name in names[()]}


def _read(demo: Any, obs: list[str], success: float | str, units: Units, task: Any) -> Recording:
    states, controls = joined(demo, [f"obs/{name}" for name in obs]), physical(matrix(demo, "actions"), units, task)
    paid, count = column(demo, "rewards") if "rewards" in demo else None, len(controls)
    if paid is None and success != "all":
        raise ValueError("has no rewards: set success: all where each ends with the job done")
    lengths = {"states": len(states), "actions": count, "rewards": count if paid is None else len(paid)}
    if len(set(lengths.values())) != 1:
        raise ValueError("columns of different lengths: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
    end = count if success == "all" else until(paid >= success)
    states, controls = states[:end], controls[:end]
    if end is None and "next_obs" in demo:
        last = joined(demo, [f"next_obs/{name}" for name in obs])[-1:]
        return Recording(np.concatenate([states, last]), controls, won=False, ended=False, paid=paid)
    states, controls = closed(states, controls, end is not None)
    paid = None if paid is None else paid[: len(controls)]
    return Recording(states, controls, won=end is not None, ended=end is not None, paid=paid)


# A behaviour policy of mixed quality: the task's script, the script with lapses, chance (D4RL's medium-expert kinds).
#
# Data of this kind tell offline learning from behaviour cloning, and nothing has to be downloaded.

Share = Annotated[float, Field(ge=0, le=1)]


@method(source="mixtures as D4RL's (arXiv 2004.07219); lapses held for some ticks as in Robomimic's worse operators")
def scripted(
    task: Any, seed: int, *, episodes: Count = 100, expert: Share = 0.3, poor: Share = 0.5, noise: Share = 0.1,
    lapses: Share = 0.5, hold: Count = 8, keep: Literal["all", "success"] = "all",
) -> Transitions:  # fmt: skip
    """Shares of episodes that the script plays well, that it plays with noise and lapses, and, the rest, chance.

    Args:
        noise: of the poor: standard deviation of what is added to controls, in halves of the limits' width.
        lapses: of the poor: the share of the time in which a control drawn evenly is held instead.
        hold: ticks of a lapse, and of a control of chance.
        keep: `success` leaves out episodes that were not won.

    Raises:
        UserError: no script, too few training scenes, shares above 1, or nothing is left.
    """
    if expert + poor > 1:
        raise UserError(f"offline: scripted: expert {expert:g} and poor {poor:g}: together at most 1")
    chosen = scenes(task, episodes, f"scripted: {episodes} episodes")
    shared = dict(zip((e.id for e in chosen), _shared(episodes, expert, poor, noise, lapses, seed), strict=True))

    def behaviour(sample: Sample, rng: np.random.Generator) -> _Lapsing:
        return _Lapsing(task.controls, *shared[sample.id], hold, rng)

    return of_recordings(behaved(task, seed, "scripted", chosen, behaviour), task.chunk, keep, "offline: scripted")


def _shared(
    count: int, expert: float, poor: float, noise: float, lapses: float, seed: int
) -> list[tuple[float, float]]:
    """Noise and lapses of each episode: exact shares in a random order."""
    first, last = round(count * expert), round(count * (expert + poor))
    kinds = [(0.0, 0.0)] * first + [(noise, lapses)] * (last - first) + [(0.0, 1.0)] * (count - last)
    return [kinds[i] for i in np.random.default_rng(seed).permutation(count)]


class _Lapsing:
    """The script with noise, but for lapses, in which a control drawn evenly is held."""

    def __init__(self, limits: Any, noise: float, lapses: float, hold: int, rng: np.random.Generator):
        self._low, self._high, self._spread = limits.low, limits.high, noise * (limits.high - limits.low) / 2
        self._lapses, self._hold, self._rng = lapses, hold, rng
        self._held: np.ndarray | None = None  # float32 [1, A]; None: the script plays

    def __call__(self, played: Any, ticks: int) -> np.ndarray:
        if ticks % self._hold == 0:
            lapse, action = self._rng.random() < self._lapses, self._rng.uniform(self._low, self._high)
            self._held = action[None] if lapse else None
        return planned(played, self._spread, self._rng) if self._held is None else self._held
