"""Any Gymnasium environment as conversations: it shows text and images, and the policy writes its actions.

Observations may be text, images, numbers and dictionaries of these; actions text, the names or numbers of a few, or
real numbers within limits. Needs `gymnasium` (`pip install 'vlrl[sims]'`) and what the environment needs. BrowserGym's
pages are shown as their accessibility tree and a screenshot.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rewards import parse
from rewards.parse import Parsed
from robot.sim.gym import (
    Generators,
    ObservationPart,
    choose_parts,
    list_observation_parts,
    make_gym_env,
    numbers_of,
    picture,
)
from tasks.base import FORM, THINK, Rendered, Task, check, check_weights, find_version
from tasks.context import FULL, ContextStrategy, with_context
from tasks.web import miniwob
from tasks.web.browser import find_browser
from vlrl.decoders import load_json
from vlrl.io import write_atomic
from vlrl.types import (
    Environment,
    Episode,
    Frame,
    Message,
    Observation,
    Sample,
    Score,
    Split,
    Step,
    UserError,
    first_line,
)

if TYPE_CHECKING:
    from PIL.Image import Image

WEIGHTS = {"return": 1.0, "success": 0.0, **FORM}
TEST_SEEDS = 2**30  # from here on
MAX_TEXT = 20_000  # characters of a part of an observation that is no text
ASKS = "Answer each turn with one action inside <answer> </answer>: {}."


class SeededTask(Task):
    """Samples: seeds of an environment that answers in turns, `pool` for training and `held_out` others for testing.

    Reward parts: `return`, the sum of the environment's rewards; `success`, 0 or 1; and `format`, the share of turns
    whose answer held an action. A subclass has `form`, `make_env` and `show`.
    """

    form: Any  # reads and writes actions, and says how they are written
    kind = "gym"  # what a sample's id begins with

    def __init__(
        self, *, id: str, instruction: str, success: str | float, turns: int, context: ContextStrategy,
        template: Literal["short", "guided"], pool: int, held_out: int, thinking: bool, weights: Mapping[str, float],
        seed: int,
    ):  # fmt: skip
        check(min(pool, held_out, turns) > 0, "pool, held_out, turns", (pool, held_out, turns), "at least 1")
        check(max(pool, held_out) + seed <= TEST_SEEDS and seed >= 0, "seed", seed, "at least 0, and below 2**30")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.id, self.turns, self.success, self.context, self.thinking = id, turns, success, context, thinking
        self._first_seeds: dict[Split, int] = {"train": seed, "test": TEST_SEEDS + seed}
        self._sizes: dict[Split, int] = {"train": pool, "test": held_out}
        self._instruction, self._is_guided = instruction, template == "guided"

    @property
    def opening(self) -> str:
        """What the policy is told behind the first observation."""
        asks = ASKS.format(self.form.description) if self._is_guided else ""
        return " ".join(filter(None, (self._instruction, asks, THINK if self.thinking else "")))

    def make_env(self, seed: int) -> Any:
        """A new environment, with `reset(seed=)`, `step` and `close` as Gymnasium has them."""
        raise NotImplementedError

    def show(self, env: Any, observation: Any) -> Observation:
        """Messages of the user's, or of others."""
        raise NotImplementedError

    def run(self, function: Callable, *arguments: Any) -> Any:
        """What a function of an environment returns, called in the thread that the environment lives in."""
        return function(*arguments)

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._sizes[split], partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        name = f"{self.kind}/{self.id}/{split}/{index:06d}"
        return Sample(name, Observation((f"The environment {self.id}.",)), self._first_seeds[split] + index)

    def environment(self, sample: Sample) -> Environment:
        return with_context(GymEpisode(self, sample.answer), self.context)

    def read(self, completion: str) -> Parsed:
        """The action that a completion writes."""
        return parse.answer(completion, self.thinking, self.form.read)

    def score(self, episode: Episode) -> Score:
        """Parts `return`, `success` and `format`; `reason` is that of the last turn that held no action."""
        turns = [turn for turn in episode.turns if not turn.step.info.get("summary")]
        readings = [self.read(str(turn.decision.action)) for turn in turns]
        reasons = [reading.reason for reading in readings if reading.reason]
        total = sum(turn.step.reward for turn in turns)
        if isinstance(self.success, str):
            won = float(any(turn.step.info.get(self.success, 0.0) > 0 for turn in turns))
        else:
            won = float(total >= self.success)
        parts = {"return": total, "success": won, "format": 1 - len(reasons) / max(1, len(turns))}
        answer = [None if reading.reason else self.form.write(reading.value) for reading in readings]
        return Score(parts, won, answer=answer, reason=reasons[-1] if reasons else None)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Mean return and turns, and the share of episodes that were cut off."""
        count = max(1, len(episodes))
        return {
            "return": sum(episode.score.parts["return"] for episode in episodes) / count,
            "turns": sum(len(episode.turns) for episode in episodes) / count,
            "truncated": sum(episode.turns[-1].step.truncated for episode in episodes) / count,
        }


class Gym(SeededTask):
    """Samples: seeds of an environment, `pool` for training and `held_out` others for testing.

    Each turn the policy is shown what the environment shows, and writes one action. One that cannot be read does
    nothing and is answered with `Error: ...`. Reward parts: `return`, the sum of the environment's rewards; `success`,
    0 or 1; and `format`, the share of turns whose answer held an action. An environment that raises makes the episode
    void; it is played anew.

    Args:
        id: what `gymnasium.make` is given, such as `FrozenLake-v1`, or `my_module:MyEnv-v0`, which is imported first
        options: named arguments for it
        shows: parts of its observation, such as `goal` or `pixels.top`; none: all, of BrowserGym's BROWSER_SHOWS
        render: whether the picture that it draws itself is shown as well
        instruction: what the policy is told first
        actions: names of its actions, where these are a few; none: their numbers
        success: the number of its `info` that says so, or the least return of a success
        turns: of an episode at most
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)
        template: `guided` says how to answer, `short` (for tiny models) does not

    Raises UserError for options out of range, and where the environment cannot be made or has other actions or parts.
    """

    def __init__(
        self,
        *,
        id: str,
        options: Mapping[str, Any] | None = None,
        shows: Sequence[str] | None = None,
        render: bool = False,
        instruction: str = "",
        actions: Sequence[str] = (),
        success: str | float = 1.0,
        turns: int = 20,
        context: ContextStrategy = FULL,
        template: Literal["short", "guided"] = "guided",
        pool: int = 100_000,
        held_out: int = 500,
        thinking: bool = False,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        super().__init__(
            id=id, instruction=instruction, success=success, turns=turns, context=context, template=template,
            pool=pool, held_out=held_out, thinking=thinking, weights=weights, seed=seed,
        )  # fmt: skip
        drawn = {"render_mode": "rgb_array"} if render else {}
        self._options = {**drawn, **(options or {})}
        self._draws, self._in_browser = render, id.startswith(BROWSERGYM)
        if self._in_browser:
            prepare_browsergym(id)
            self.max_parallel_envs, shows = BROWSERS, BROWSER_SHOWS if shows is None else shows
        try:
            env = self.run(self.make_env, seed)
            calls = list_calls(env) if self._in_browser else ""
            self.form = ActionWriting(env.action_space, tuple(actions), calls)
            self._parts = choose_parts("task.shows", shows, list(list_observation_parts(env.observation_space)))
            self._module = type(env.unwrapped).__module__
            self.run(env.close)
        except UserError:
            self.close()
            raise

    def make_env(self, seed: int) -> Any:
        return make_gym_env(self.id, self._options, "task")

    def show(self, env: Any, observation: Any) -> Observation:
        """A user's message: the images, then the parts that are none, a line each."""
        images: list[Image] = [picture(part.of(observation)) for part in self._parts if part.is_image]
        if self._draws:
            drawn = env.render()
            images += map(picture, drawn if isinstance(drawn, list | tuple) else (drawn,))
        lines = [format_part(part, part.of(observation)) for part in self._parts if not part.is_image]
        text = "\n".join(filter(None, lines))
        return Observation.from_messages([Message("user", (*images, *([text] if text else [])))])

    def run(self, function: Callable, *arguments: Any) -> Any:
        return _browsers_thread().submit(function, *arguments).result() if self._in_browser else function(*arguments)

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """The environment, and the versions that it came from."""
        about = {"environment": self.id, "gymnasium": metadata.version("gymnasium")}
        if self._in_browser:
            family = self.id.removeprefix(BROWSERGYM).partition(".")[0]
            owners = metadata.packages_distributions()["browsergym"]
            return about | {name: metadata.version(name) for name in owners if name.endswith(("-core", f"-{family}"))}
        return about | {"environment": f"{self.id} {find_version(self._module)}".strip()}

    def close(self) -> None:
        """Ends what BrowserGym shares; a later episode starts it again."""
        if self._in_browser:
            self.run(stop_playwright)
            _browsers_thread().shutdown()
            _browsers_thread.cache_clear()


class GymEpisode(Environment):
    """One episode of an environment of its own, from one seed, whatever generators it draws from."""

    def __init__(self, task: SeededTask, seed: int):
        self._task, self._seed, self._generators = task, seed, Generators()
        self._env: Any = None
        self._count, self._died = 0, False  # turns; whether it raised

    def reset(self) -> Observation:
        if self._env is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._generators.seed(self._seed)
        first = self._task.run(self._begin)
        *earlier, last = first.messages
        asks = (self._task.opening,) if self._task.opening else ()
        opening = Message(last.role, (*last.content, *asks))
        self._shown = Observation.from_messages([*earlier, opening], first.tools)
        return self._shown

    def _begin(self) -> Observation:
        with self._generators.lent():
            self._env = self._task.make_env(self._seed)
            try:
                self._seen, _ = self._env.reset(seed=self._seed)
                return self._task.show(self._env, self._seen)
            except Exception as error:  # environments raise what they like
                raise UserError(f"task.id: {self._task.id}, seed {self._seed}: {first_line(error)}") from error

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._env is None:
            raise RuntimeError("a step comes after a reset")
        self._count += 1
        cut = self._count >= self._task.turns
        reading = self._task.read(str(action))
        if reading.reason:
            error = f"Error: no action can be read ({reading.reason})"
            return Step(Observation.from_messages([Message("user", (error,))]), truncated=cut)
        try:
            reward, terminated, truncated, info = self._task.run(self._advance, reading.value)
        except Exception as error:
            self._died = True
            return Step(self._shown, truncated=True, fault=f"{self._task.id}: {first_line(error)}")
        cut = not terminated and (cut or truncated)
        return Step(self._shown, float(reward), bool(terminated), bool(cut), numbers_of(info, None))

    def _advance(self, action: Any) -> tuple[float, bool, bool, Any]:
        with self._generators.lent():
            self._seen, *ends = self._env.step(action)
            self._shown = self._task.show(self._env, self._seen)
        return tuple(ends)

    def close(self) -> None:
        if self._env is None:
            return
        try:
            self._task.run(self._env.close)
        except Exception:
            if not self._died:  # its fault was reported by step
                raise


@dataclass(frozen=True)
class ActionWriting:
    """How actions of a space are written: text as it is, one of a few by its name or number, numbers as JSON.

    Args:
        space: Text, Discrete, MultiDiscrete, MultiBinary or a Box with limits.
        names: of the actions of a Discrete space, in order.
        calls: what a text may say, where that is known.
    """

    space: Any
    names: tuple[str, ...] = ()
    calls: str = ""

    def __post_init__(self):
        from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Text

        known = bool(self.calls) or isinstance(self.space, Text | Discrete | MultiDiscrete | MultiBinary)
        bounded = isinstance(self.space, Box) and self.space.is_bounded() and self.space.dtype.kind in "fiu"
        if not (known or bounded):
            raise UserError(f"task.id: its actions are {self.space}: must be text, a few, or a Box with limits")
        count = int(self.space.n) if isinstance(self.space, Discrete) else 0
        if self.names and len(set(self.names)) != count:
            raise UserError(f"task.actions: {len(self.names)} names for {count} actions that have numbers")

    @property
    def description(self) -> str:
        from gymnasium.spaces import Box, Discrete, Text

        if self.calls or isinstance(self.space, Text):
            return self.calls or "its text"
        if isinstance(self.space, Discrete):
            first = int(self.space.start)
            return ", ".join(self.names) or f"a number from {first} to {first + int(self.space.n) - 1}"
        count = int(np.prod(self.space.shape))
        if not isinstance(self.space, Box):
            return f"a list of {count} whole numbers"
        low, high = (limits.flatten().tolist() for limits in (self.space.low, self.space.high))
        return f"a list of {count} numbers from {low} to {high}"

    def read(self, text: str) -> Parsed:
        """The action. Reasons: unknown_action, out_of_range, and those of `rewards.parse.literal`."""
        from gymnasium.spaces import Discrete, Text

        text = text.strip()
        if self.calls or isinstance(self.space, Text):
            return Parsed(text) if self.space.contains(text) else Parsed(reason="out_of_range")
        if self.names:
            return Parsed(self.names.index(text) + int(self.space.start)) if text in self.names else _UNKNOWN
        parsed = parse.literal(text)
        if parsed.reason:
            return parsed
        if isinstance(self.space, Discrete):
            is_action = type(parsed.value) is int and self.space.contains(parsed.value)
            return parsed if is_action else _UNKNOWN
        return self._read_numbers(parsed.value)

    def _read_numbers(self, value: Any) -> Parsed:
        kinds = (int, float) if self.space.dtype.kind == "f" else (int,)
        count = int(np.prod(self.space.shape))
        if not isinstance(value, list | tuple) or len(value) != count or any(type(each) not in kinds for each in value):
            return _UNKNOWN
        try:
            action = np.asarray(value, dtype=self.space.dtype).reshape(self.space.shape)
        except OverflowError:
            return Parsed(reason="out_of_range")
        return Parsed(action) if self.space.contains(action) else Parsed(reason="out_of_range")

    def write(self, action: Any) -> str:
        """An action as `read` reads it."""
        if isinstance(action, str):
            return action
        if self.names:
            return self.names[int(action) - int(self.space.start)]
        return json.dumps(np.asarray(action).flatten().tolist() if np.ndim(action) else int(action))


_UNKNOWN = Parsed(reason="unknown_action")


def format_part(part: ObservationPart, value: Any) -> str:
    """A part of an observation as a line; text as it is, numbers rounded to three places. '' of empty text."""
    if isinstance(value, str):
        text = value
    elif part.name in ("axtree_object", "dom_object"):
        text = flatten_page(part.name, value)
    elif isinstance(value, np.ndarray | np.generic | int | float):
        text = json.dumps(np.asarray(value).round(3).tolist())
    else:
        text = json.dumps(value, default=str)
    text = text[:MAX_TEXT]
    return f"{part.name}: {text}" if text and part.keys else text


# BrowserGym: pages in the system's Chromium, all in one thread, as Playwright's objects belong to that which made them.

BROWSERGYM = "browsergym/"
BROWSERS = 4  # open at a time
BROWSER_SHOWS = ("goal", "axtree_object", "screenshot", "last_action_error")


@cache
def _browsers_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "browsergym")


def prepare_browsergym(id: str) -> None:
    """Registers an id's family, and shows Playwright the system's Chromium where it has none of its own.

    Raises:
        UserError: the family is not installed, or there is no Chromium.
    """
    family = id.removeprefix(BROWSERGYM).partition(".")[0]
    if find_spec("browsergym") is None or find_spec(f"browsergym.{family}") is None:
        raise UserError(f"task.id: {id}: needs pip install browsergym-{family}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if "PLAYWRIGHT_BROWSERS_PATH" not in os.environ and not (cache / "ms-playwright" / _revision()).exists():
        chromium = find_browser()
        if chromium is None:
            raise UserError(f"task.id: {id}: needs Chromium: run `make system`, or `playwright install chromium`")
        os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(link_chromium(chromium, cache / "vlrl" / "browsers"))
    if family == "miniwob" and "MINIWOB_URL" not in os.environ:
        os.environ["MINIWOB_URL"] = f"{miniwob.folder().as_uri()}/"
    import_module(f"browsergym.{family}")


def _revision() -> str:
    """The folder of the Chromium that the installed Playwright looks for."""
    browsers = Path(str(import_module("playwright").__file__)).parent / "driver" / "package" / "browsers.json"
    revisions = {each["name"]: each["revision"] for each in load_json(browsers)["browsers"]}
    return f"chromium-{revisions['chromium']}"


def link_chromium(chromium: str, folder: Path) -> Path:
    """A folder in which the installed Playwright finds a browser, as if it had downloaded it."""
    place = folder / _revision()
    program = place / "chrome-linux" / "chrome"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(program, f'#!/bin/sh\nexec {shlex.quote(chromium)} --no-sandbox "$@"\n')
        program.chmod(0o755)
        for name in ("INSTALLATION_COMPLETE", "DEPENDENCIES_VALIDATED"):
            (place / name).touch()
    return folder


def stop_playwright() -> None:
    core: Any = import_module("browsergym.core")
    if core._PLAYWRIGHT is not None:  # what it starts it never ends
        core._PLAYWRIGHT.stop()
        core._set_global_playwright(None)


def list_calls(env: Any) -> str:
    """The functions that may be called, of the action set that an environment reads texts with."""
    described = env.unwrapped.action_mapping.__self__.describe(with_long_description=False, with_examples=False)
    calls = [line for line in described.partition("Multiple actions")[0].splitlines() if line.endswith(")")]
    return "a call of one of " + "; ".join(calls)


def flatten_page(name: str, value: Any) -> str:
    """A page's accessibility tree, or its document, as BrowserGym writes it."""
    from browsergym.utils.obs import flatten_axtree_to_str, flatten_dom_to_str

    return flatten_axtree_to_str(value) if name == "axtree_object" else flatten_dom_to_str(value)
