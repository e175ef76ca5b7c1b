"""What a run prints: progress, notices, strips of images."""

from __future__ import annotations

import math
import signal
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, TextIO

from PIL import Image

from vlrl.distributed.world import get_world
from vlrl.types import Episode, UserError, Video

# What a user should hear of a run while it runs, and not when it has ended: it does not learn, its disk is slow.

STEPS = 10  # in a row, before anything is said
MOST = 0.5  # share of completions from which on something is said of them
UNREAD = "parse_fail/"
HOPELESS = 0.9  # share of unread, or of like, greedy answers from which on a start teaches nothing
FEWEST = 16  # answers, before they are called alike
SAVED_S = 5.0  # seconds of saving, before anything is said of them


class Notices:
    """Sees every step's row; each notice is given once.

    Args:
        by_advantage: whether advantages are what moves the weights.
    """

    def __init__(self, by_advantage: bool = True) -> None:
        self._by_advantage = by_advantage
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=STEPS)
        self._given: set[str] = set()
        self._steps_s, self._saves_s = 0.0, 0.0  # in all

    def see(self, row: Mapping[str, Any]) -> list[str]:
        """What there is to say after this step, in lines."""
        self._rows.append(row)
        self._steps_s += row.get("seconds", 0.0)
        if len(self._rows) < STEPS:
            return []
        notices = [(kind, text) for kind, text in self._find_notices() if kind not in self._given]
        self._given |= {kind for kind, _ in notices}
        return [text for _, text in notices]

    def saved(self, seconds: float) -> list[str]:
        """What there is to say after a checkpoint that took so long: whether saving takes longer than the steps do."""
        self._saves_s += seconds
        if "saves" in self._given or self._saves_s < max(SAVED_S, self._steps_s):
            return []
        self._given.add("saves")
        share = self._saves_s / (self._saves_s + self._steps_s)
        return [
            f"{share:.0%} of the time goes into saving, {seconds:.1f} s for the last checkpoint: raise "
            "log.checkpoint_every, or set out to a faster disk"
        ]

    def _find_notices(self) -> Iterator[tuple[str, str]]:
        cut, reason, unread = self._mean("cut"), *self._unread()
        if self._by_advantage and all(row.get("zero_advantage") == 1.0 for row in self._rows):
            yield "silent", f"{STEPS} steps in which no reward taught anything: {self._why(reason, unread)}"
        elif unread > MOST:
            yield "unread", f"{unread:.0%} of the answers of {STEPS} steps were not read ({reason}): {_READ}"
        if cut > MOST:
            yield "cut", f"{cut:.0%} of the completions of {STEPS} steps end at policy.max_tokens: raise it"

    def _why(self, reason: str, unread: float) -> str:
        """Why all completions of each prompt earn the same."""
        right = self._mean("accuracy")
        if unread > MOST:
            return f"{unread:.0%} of the answers were not read ({reason}); {_READ}"
        if right == 0.0:
            return "no answer is right; take easier samples, a better start, or a reward with steps on the way"
        if right == 1.0:
            return "every answer is right; take harder samples: `vlrl select` finds those that the model is unsure of"
        return (
            "all completions of a prompt earn the same; raise policy.temperature or train.group_size, or lower train.lr"
        )

    def _unread(self) -> tuple[str, float]:
        """The most frequent reason why answers were not read, and the share of answers with any."""
        names = {name for row in self._rows for name in row if name.startswith(UNREAD)}
        shares = {name.removeprefix(UNREAD): self._mean(name) for name in sorted(names)}
        return max(shares, key=lambda name: shares[name], default=""), sum(shares.values())

    def _mean(self, name: str) -> float:
        return fmean(row.get(name, 0.0) for row in self._rows)


def find_start_risks(row: Mapping[str, Any], episodes: Sequence[Episode], imitation: str) -> Iterator[str]:
    """What a first evaluation says of a start from which reinforcement learning is likely to get nowhere.

    Args:
        row: of the evaluation, with `eval/parse_fail/REASON` as shares of the answers.
        episodes: the greedy ones. Whether answers are alike is asked of texts in one turn: the last of several turns
            often is, as where an agent says that it is done.
        imitation: how to imitate right answers first, as part of a sentence.
    """
    actions = [each.turns[0].decision.action for each in episodes if len(each.turns) == 1]
    prefix = f"eval/{UNREAD}"
    reasons = {name.removeprefix(prefix): share for name, share in row.items() if name.startswith(prefix)}
    unread = sum(reasons.values())
    texts = Counter(text.strip() for text in actions if isinstance(text, str))
    (text, count) = texts.most_common(1)[0] if texts else ("", 0)
    if unread > HOPELESS:
        reason = max(reasons, key=lambda name: reasons[name])
        yield (
            f"before training, {unread:.0%} of the answers are not read ({reason}), so there is little to reinforce: "
            f"raise policy.max_tokens; {_READ}; or {imitation}"
        )
    elif texts.total() >= FEWEST and count > HOPELESS * texts.total():
        yield (
            f"before training, {count / texts.total():.0%} of the answers are {text[:60]!r}: the accuracy is that of a "
            "constant answer; look whether the model sees the images (policy.max_pixels), or imitate some answers first"
        )


_READ = "look at the rollouts in report.html, and at what the prompt asks for (task.template, task.thinking)"


# What is kept of a video that a rollout showed: some of its frames as one picture, and when each was shown.

GRID = (4, 2)  # columns and rows at most
SIDE = 128  # pixels of a frame's longer side


def strip(video: Video) -> tuple[Image.Image, dict[str, Any]]:
    """Up to eight frames from the first to the last, in rows, and `{grid, times, axis}` of them.

    `grid`: columns and rows; `times`: of the frames, seconds; `axis`: from when to when frames were taken, seconds.
    """
    count = min(GRID[0] * GRID[1], len(video.frames))
    picks = [round(i * (len(video.frames) - 1) / max(1, count - 1)) for i in range(count)]
    small = [Image.fromarray(video.frames[pick]) for pick in picks]
    for frame in small:
        frame.thumbnail((SIDE, SIDE))
    columns, rows = min(GRID[0], count), -(-count // GRID[0])
    width, height = small[0].size
    whole = Image.new("RGB", (columns * width, rows * height))
    for i, frame in enumerate(small):
        whole.paste(frame, (i % columns * width, i // columns * height))
    times = [_rounded(video.times[pick]) for pick in picks]
    return whole, {"grid": [columns, rows], "times": times, "axis": _axis(video)}


def _axis(video: Video) -> list[float]:
    """The whole video; of a clip of it, from the first frame to the last: an hour would hide twenty seconds."""
    first, last = video.times[0], video.times[-1]
    gap = max((b - a for a, b in zip(video.times, video.times[1:], strict=False)), default=video.duration)
    start = 0.0 if first <= gap else first
    return [_rounded(start), _rounded(video.duration if video.duration - last <= 2 * gap else last)]


def _rounded(seconds: float) -> float:
    return round(float(seconds), 3)


# Where a run is, and a stop that waits for the end of a step.

RECENT = 50  # steps that the time left is estimated from


class StoppedError(UserError):
    """The run ended before its last step; its newest checkpoint is good."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


LEVELS = "▁▂▃▄▅▆▇█"
WIDTH, SPARKLINE = 20, 16  # characters of the bar and of the sparkline
REFRESH_S = 0.1


def format_sparkline(values: Sequence[float], width: int = SPARKLINE) -> str:
    """A character for each of up to `width` stretches of the values, by their means; the lowest is the lowest bar."""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)] if width else []
    means = [fmean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    return "".join(LEVELS[round((mean - low) / ((high - low) or 1.0) * (len(LEVELS) - 1))] for mean in means)


class ProgressBar:
    """A bar and a text at a terminal's last line. What anybody prints to stderr meanwhile stays above it.

    Args:
        total: steps; None where there is no end.
    """

    def __init__(self, stream: TextIO, total: int | None):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Display
        from rich.table import Column

        column = Column(no_wrap=True, overflow="ellipsis")
        columns = (
            BarColumn(WIDTH, complete_style="cyan", pulse_style="cyan"),
            TextColumn("{task.description}", markup=False, table_column=column),
        )
        console = Console(file=stream, highlight=False)
        # no thread of its own: processes are forked while it shows
        self._display = Display(*columns, console=console, auto_refresh=False, redirect_stdout=False)
        self._task = self._display.add_task("", total=total)
        self._is_unicode = console.encoding.lower().startswith("utf")
        self._refreshed = -math.inf
        self._display.start()

    def show(self, text: str, step: int | None = None, values: Sequence[float] = (), always: bool = True) -> None:
        """Puts a text behind the bar, which stands at `step`, with a sparkline of `values`."""
        line = f"{format_sparkline(values)}  {text}" if len(values) > 1 and self._is_unicode else text
        self._display.update(self._task, description=line, completed=step)
        if always or time.perf_counter() - self._refreshed >= REFRESH_S:
            self._display.refresh()
            self._refreshed = time.perf_counter()

    def say(self, text: str) -> None:
        self._display.console.print(text, markup=False)

    def close(self) -> None:
        self._display.stop()


class Progress:
    """Step, some metrics, seconds a step, rollouts a second, time left: a bar on a terminal, lines in a file.

    Args:
        names: of the metrics, where a step has them; on a terminal the first has a sparkline.
    """

    def __init__(
        self, steps: float, stream=None, notices: Notices | None = None, eval_every: int | None = None,
        names: Sequence[str] = ("reward", "accuracy"),
    ):  # fmt: skip
        self.steps, self.stream, self.eval_every, self.names = steps, stream or sys.stderr, eval_every, names
        self._bar: ProgressBar | None = None
        self._values: list[float] = []  # of the first metric
        self.notices = notices or Notices()
        self._step_s: deque[float] = deque(maxlen=RECENT)
        self._evaluation_s: list[float] = []

    def __enter__(self) -> Progress:
        self.last = time.perf_counter()
        if self.stream.isatty() and get_world().is_rank_zero:
            self._bar = ProgressBar(self.stream, self.steps if isinstance(self.steps, int) else None)
        return self

    def __exit__(self, *error) -> None:
        if self._bar:
            self._bar.close()

    def show(self, step: int, row: dict[str, Any]) -> None:
        self._step_s.append(row["seconds"])
        numbers = "".join(f"{name} {format_metric(row[name])}  " for name in self.names if name in row)
        digits = 2 if row["seconds"] >= 0.1 else 4
        of, left = self._left(step)
        self._values += [row[name] for name in self.names[:1] if name in row]
        rate = f"  {row['played'] / row['seconds']:.3g} rollouts/s" if row.get("played") else ""
        is_end = step == 1 or step >= self.steps
        self._write(f"step {step}{of}  {numbers}{row['seconds']:.{digits}f} s/step{rate}{left}", is_end, step)
        for notice in self.notices.see(row):
            self.say(notice)

    def _left(self, step: int) -> tuple[str, str]:
        """How many steps and how much time there are; nothing of a run without an end."""
        if not isinstance(self.steps, int):
            return "", ""
        ahead = count_evaluations(step, self.steps, self.eval_every)
        left = estimate_left(self._step_s, max(0, self.steps - step), self._evaluation_s, ahead)
        return f"/{self.steps}", f"  {format_duration(left)} left"

    def saving(self, save: Callable[[], None]) -> None:
        """Calls what saves; says so where saving takes most of the time."""
        start = time.perf_counter()
        save()
        for notice in self.notices.saved(time.perf_counter() - start):
            self.say(notice)

    def evaluated(self, seconds: float) -> None:
        """Takes note of how long an evaluation took."""
        self._evaluation_s.append(seconds)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar:
            self._bar.say(f"vlrl: {text}")
        elif get_world().is_rank_zero:
            self.stream.write(f"\nvlrl: {text}\n")
            self.stream.flush()

    def note(self, text: str) -> None:
        """Something that takes long and is no step."""
        self._write(text, False)

    def _write(self, text: str, always: bool, step: int | None = None) -> None:
        if self._bar:
            return self._bar.show(text, step, self._values if step else (), always)
        now = time.perf_counter()
        if get_world().is_rank_zero and (always or now - self.last > 10):
            self.last = now
            self.stream.write(text + "\n")
            self.stream.flush()


def format_metric(value: float) -> str:
    """Three decimals; a count as it is."""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def estimate_left(
    step_s: Collection[float], steps: int, evaluation_s: Collection[float], evaluations: int
) -> float:  # fmt: skip
    """Seconds that so many more steps and evaluations take, by the median of those that were timed."""
    a_step = statistics.median(step_s) if step_s else 0.0
    an_evaluation = statistics.median(evaluation_s) if evaluation_s else 0.0
    return steps * a_step + evaluations * an_evaluation


def count_evaluations(step: int, steps: int, every: int | None) -> int:
    """Evaluations that are due at `step` or later: every so many steps, and behind the last step."""
    if not every:
        return 1
    return steps // every - (step - 1) // every + bool(steps % every)


def format_duration(seconds: float) -> str:
    """Hours, minutes, seconds: 01:02:03; 120:00:00 of five days."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


class Stopper:
    """`stop` turns true on the first Ctrl-C or SIGTERM; the second one ends the process at once."""

    def __init__(self):
        self.stop = False

    def __enter__(self) -> Stopper:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True
        print("\nfinishing this step, then saving (again to stop at once)", file=sys.stderr)
