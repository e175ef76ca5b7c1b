"""GUI agents over several turns, seen as screenshots only: MiniWoB++ pages in a browser (1802.08802), a desktop, or
drawn forms.

Each turn the policy is shown a screen and answers with one action (tasks/agent_actions.py) in the coordinates of its
frame. What it is shown of earlier turns is an option. The page, or what applications leave behind, says whether the
episode succeeded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from tasks.agent_actions import (
    ACTION_FORMS,
    ActionForm,
    ActionReading,
    AgentScreen,
    DrawnForms,
    ScreenAction,
    ScreenWorker,
    Status,
    screen_pool,
    write_agent_action,
)
from tasks.base import FORM, Rendered, Task, check, check_weights
from tasks.context import ContextEnvironment, Full, LastImages, SummaryContext, with_context
from tasks.web.desktop import Desktop
from tasks.web.miniwob import MiniWob
from vlrl.placement.workers import WorkerError, WorkerPool
from vlrl.types import (
    Annotation,
    Environment,
    Episode,
    Frame,
    Message,
    Observation,
    Sample,
    Score,
    Split,
    Step,
    Turn,
    UserError,
    wilson,
)

if TYPE_CHECKING:
    import numpy as np

WEIGHTS = {"success": 1.0, **FORM}
TRIES = 3  # browsers that may die over one action
SCREENS: Mapping[str, type[AgentScreen]] = {"browser": MiniWob, "desktop": Desktop, "drawn": DrawnForms}


@dataclass(frozen=True)
class Goal:
    """One episode: a page and the seed of its random numbers."""

    page: str
    seed: str
    split: Split


@dataclass(frozen=True, kw_only=True)
class OneScreen:
    """Each turn a prompt of its own: the newest screen, the instruction and the last `actions` actions as text."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["one_screen"] = "one_screen"
    actions: int = 5

    def __post_init__(self):
        check(self.actions >= 0, "context.actions", self.actions, "at least 0")


AgentContext = Annotated[OneScreen | Full | LastImages | SummaryContext, Field(discriminator="name")]


class GuiAgent(Task):
    """Samples: episodes of `pages` in turn, `pool` for training and `held_out` of other seeds for testing.

    Reward parts: `success` (0 or 1, the page's verdict) and `format` (the share of turns whose answer held an action).

    Args:
        environment: `browser`; `desktop`, applications under a screen of their own (tasks/web/desktop.py); or `drawn`,
            forms that need neither (tasks/rendering/screens.py)
        pages: of MiniWoB++, or tasks of the desktop; none: all with scripted solutions
        turns: of an episode at most
        browsers: or desktops that run at a time
        context: what of the earlier turns is shown: one_screen, or a conversation of all screens and answers, by the
            strategies full, last_images and summary (tasks/context.py)
        actions: how actions are written: `text` in answer tags, or `tools`, calls of typed tools whose schemas are
            shown
        template: `guided` explains the actions, `short` (for tiny models) does not

    Raises UserError for options out of range, an unknown page, no browser.
    """

    def __init__(
        self,
        *,
        environment: Literal["browser", "desktop", "drawn"] = "browser",
        pages: tuple[str, ...] | None = None,
        pool: int = 100_000,
        held_out: int = 500,
        turns: int = 10,
        browsers: int = 2,
        context: AgentContext = OneScreen(),
        actions: Literal["text", "tools"] = "text",
        thinking: bool = False,
        template: Literal["short", "guided"] = "guided",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(environment in SCREENS, "environment", environment, f"one of {', '.join(SCREENS)}")
        self._screen = screen = SCREENS[environment]
        pages = screen.SOLVED if pages is None else pages
        check(len(pages) > 0, "pages", pages, "at least one page")
        known = screen.list_pages()
        for page in pages:
            check(page in known, "pages", page, f"{screen.PAGE}, such as {', '.join(screen.SOLVED[:4])}")
        check(min(pool, held_out, turns, browsers) > 0, "pool, held_out, turns, browsers",
              (pool, held_out, turns, browsers), "at least 1")  # fmt: skip
        check(actions in ACTION_FORMS, "actions", actions, f"one of {', '.join(ACTION_FORMS)}")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.pages, self.turns, self.thinking, self.seed = tuple(pages), turns, thinking, seed
        self.context, self.form = context, ACTION_FORMS[actions]
        asks = [self.form.prompt] if template == "guided" else []
        self._asks = " ".join([*asks, *([self.form.thoughts] if thinking else [])])
        self.max_parallel_envs = browsers
        self._browsers = screen_pool(screen, browsers)
        self._sizes: dict[Split, int] = {"train": pool, "test": held_out}

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._sizes[split], functools.partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        page = self.pages[index % len(self.pages)]
        goal = Goal(page, f"{self.seed}/{split}/{index}", split)
        prompt = Observation((self._screen.describe(page, goal.seed, split),))
        return Sample(f"gui_agent/{page}/{split}/{index:06d}", prompt, goal, tags={"page": page})

    def environment(self, sample: Sample) -> BrowserEpisode | ContextEnvironment:
        history = self.context.actions if isinstance(self.context, OneScreen) else None
        inner = BrowserEpisode(
            sample.answer, self._browsers, self.turns, self.form, asks=self._asks, thinking=self.thinking,
            history=history,
        )  # fmt: skip
        return inner if isinstance(self.context, OneScreen) else with_context(inner, self.context)

    def close(self) -> None:
        """Ends the browsers; without it they end with the program."""
        self._browsers.close()

    def score(self, episode: Episode) -> Score:
        """Parts `success` and `format`; `reason` is that of the last turn whose answer did nothing."""
        of_turns = [self._read(turn) for turn in episode.turns]
        readings = [reading for reading in of_turns if reading]
        reasons = [reading.reason for reading in readings if reading.reason]
        success = episode.turns[-1].step.reward
        return Score(
            {"success": success, "format": 1 - len(reasons) / len(readings)},
            correct=success,
            answer=[reading.action.kind if reading.action else None for reading in readings],
            reason=reasons[-1] if reasons else None,
            marks=_marks(episode.turns, of_turns),
        )

    def _read(self, turn: Turn) -> ActionReading | None:
        """What a turn's answer does; None: it is a summary."""
        if turn.step.info.get("summary"):
            return None
        return self.form.read(str(turn.decision.action), self.thinking, turn.decision.frames[-1])

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Each page's success with its 95 % interval (Wilson), and their mean; turns of successes; shares cut off."""
        of_page = {page: [e for e in episodes if e.sample.answer.page == page] for page in dict.fromkeys(self.pages)}
        values: dict[str, float] = {}
        for page, played in of_page.items():
            if played:
                won = sum(e.score.correct for e in played)
                low, high = wilson(won, len(played))
                values |= {f"success/{page}": won / len(played), f"low/{page}": low, f"high/{page}": high}
        won = [len(e.turns) for e in episodes if e.score.correct]
        rates = [value for name, value in values.items() if name.startswith("success/")]
        return values | {
            "success_macro": sum(rates) / len(rates),
            "turns_of_successes": sum(won) / max(1, len(won)),
            "cut": sum(e.turns[-1].step.truncated for e in episodes) / len(episodes),
        }


class BrowserFaultError(UserError):
    """Browsers died, one after the other, over one action."""


class BrowserEpisode(Environment):
    """One episode in one of the pool's browsers, as a conversation: a screen for each action, an error for none.

    With `history` each turn is a prompt of its own, which repeats so many of the last actions. A browser that dies is
    replaced, and the episode repeated up to there from its seed; where that fails as well, the episode is void
    (`Step.fault`).
    """

    def __init__(
        self, goal: Goal, browsers: WorkerPool, turns: int, form: ActionForm, *, asks: str = "",
        thinking: bool = False, history: int | None = None,
    ):  # fmt: skip
        self._goal, self._browsers, self._turns = goal, browsers, turns
        self._form, self._asks, self._thinking, self._history = form, asks, thinking, history
        self._screen: ScreenWorker | None = None
        self._acted: list[ScreenAction] = []  # what reached the page
        self._written: list[str] = []  # every turn
        self._shown: Observation | None = None
        self._instruction = ""  # the page's, as shown last

    def reset(self) -> Observation:
        if self._shown is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._shown = self._alive(lambda: self._look(self._screen.status().goal))
        return self._shown

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        """What cannot be read, or points beside the screen, does nothing but takes a turn."""
        reading = self._form.read(str(action), self._thinking, frames[-1])
        self._written.append(write_agent_action(reading.action, frames[-1]) if reading.action else "nothing")
        try:
            if reading.action:
                self._alive(functools.partial(self._act, reading.action))
                self._acted.append(reading.action)
            status, self._shown = self._alive(functools.partial(self._reply, reading))
        except BrowserFaultError as error:
            return Step(self._shown, truncated=True, fault=str(error))
        over = status.done or (reading.action is not None and reading.action.kind == "done")
        won = float(status.done and status.reward > 0)
        return Step(self._shown, won, terminated=over, truncated=not over and len(self._written) >= self._turns)

    def gold(self, frames: Sequence[Frame]) -> str | None:
        """The next right answer in the frame's coordinates; None on a page that we know no solution of."""
        action = self._alive(lambda: self._screen.gold())
        return None if action is None else self._form.write(action, frames[-1], self._thinking)

    def close(self) -> None:
        if self._screen is not None:
            self._browsers.give(self._screen.worker)
            self._screen = None

    def _act(self, action: ScreenAction) -> None:
        self._screen.act(action)

    def _reply(self, reading: ActionReading) -> tuple[Status, Observation]:
        """The state, and what a policy sees of it: after the episode's end the screen before."""
        status = self._screen.status()
        if status.done:
            return status, self._shown
        if self._history is None and reading.error:  # the screen is as it was
            role = self._form.role if reading.reason != "no_call" else "user"
            return status, Observation.from_messages([Message(role, (reading.error,))])
        return status, self._look(status.goal)

    def _look(self, goal: str) -> Observation:
        """The screen; with the instruction where it is new, or where each turn is a prompt of its own."""
        screen = self._screen.look()
        if self._history is not None:
            done = self._written[-self._history :] if self._history else []
            history = f"Done so far: {', '.join(done)}." if done else ""
            text = " ".join(filter(None, (goal, history, self._asks)))
            return Observation((screen, text), tools=self._form.toolbox.schemas)
        if not self._instruction:
            text = " ".join(filter(None, (goal, self._asks)))
            observation = Observation.from_messages([Message("user", (screen, text))], self._form.toolbox.schemas)
        else:
            again = (screen,) if goal == self._instruction else (screen, goal)
            observation = Observation.from_messages([Message(self._form.role, again)])
        self._instruction = goal
        return observation

    def _alive[T](self, do: Callable[[], T]) -> T:
        """What `do` returns; when the browser has died, in a new one after the same actions."""
        for attempt in range(1, TRIES + 1):
            try:
                if self._screen is None:
                    self._screen = ScreenWorker(self._browsers.take(self._goal.page))
                    self._screen.begin(self._goal.page, self._goal.seed, self._goal.split)
                    for action in self._acted:
                        self._screen.act(action)
                return do()
            except WorkerError as error:
                if self._screen is not None:
                    self._browsers.bury(self._screen.worker, str(error))
                    self._screen = None
                if attempt == TRIES:
                    why = f"{TRIES} {self._browsers.name} died ({error}); see `vlrl doctor`"
                    raise BrowserFaultError(f"page {self._goal.page}, seed {self._goal.seed}: {why}") from error


def _marks(turns: Sequence[Turn], readings: Sequence[ActionReading | None]) -> tuple[Annotation, ...]:
    """Where each turn's action went, on the screen that was shown last."""
    marks: list[Annotation] = []
    last = -1  # number of the newest image
    for turn, reading in zip(turns, readings, strict=True):
        last += len(turn.observation.images)
        action = reading.action if reading else None
        if action is None:
            continue
        label = action.word or action.kind
        marks += [Annotation("prediction", "point", xy, label, last) for xy in action.points] or [
            Annotation("prediction", "text", label=label, image=last)
        ]
    return tuple(marks)
