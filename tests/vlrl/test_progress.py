"""The progress line and the stop that waits for a step's end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import pytest

from vlrl.logging import Progress, Stopper, count_evaluations, estimate_left, format_sparkline

ROW = {"reward": 0.5, "accuracy": 0.25, "seconds": 1.0}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_rewritten_in_place(monkeypatch):
    """Hundreds of steps would scroll the screen away; what others print would be overwritten."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(3, stream=stream) as progress:
        progress.note("evaluation 5/9")
        for step in (1, 2, 3):
            progress.show(step, ROW | {"reward": step / 2, "played": 6})
            print(f"vlrl: said at {step}", file=sys.stderr)
    shown = screen_of(stream.getvalue())
    assert shown[:3] == ["vlrl: said at 1", "vlrl: said at 2", "vlrl: said at 3"]
    assert len(shown) == 4 and "▁▅█  step 3/3  reward 1.500  accuracy 0.250" in shown[3]
    assert "1.00 s/step  6 rollouts/s  " in shown[3]
    assert "━" in shown[3] and sys.stderr is stream


def screen_of(text: str) -> list[str]:
    """The lines that a terminal shows in the end: of what moves its cursor, lines up and clearing a line are known."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if part == "\n":
            row += 1
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\x1b\r":
            lines[row] += part
        lines += [""] * (row + 1 - len(lines))
    return [line for line in lines if line.strip()]


def read_terminal(command: list[str], environment: dict[str, str], columns: int) -> str:
    """All that a program writes to a terminal of its own, which is as wide as is said."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    program = subprocess.Popen(command, env=os.environ | environment, stdin=side, stdout=side, stderr=side)
    os.close(side)
    parts = []
    with contextlib.suppress(OSError):  # EIO: the program, and so the other side, has ended
        while part := os.read(terminal, 65536):
            parts.append(part)
    os.close(terminal)
    assert program.wait() == 0, b"".join(parts).decode()
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_run_on_a_terminal_shows_rates_a_sparkline_and_the_time_left(is_plain, tmp_path):
    """Lines would wrap, a terminal with NO_COLOR would show colours, a reader would wait without a clue."""
    settings = "train.steps=4 train.prompts_per_step=2 train.group_size=2 eval.num_samples=4 eval.every_steps=null"
    command = [sys.executable, "-m", "vlrl.cli", "train", "gui_grounding", *settings.split(), f"out={tmp_path}/run"]
    environment = {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if is_plain else {})
    environment |= {"COLUMNS": "", "PYTHONPATH": os.getcwd(), "PYTHONIOENCODING": "utf-8"}
    written = read_terminal(command, environment, 110)
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).strip() for frame in written.split("\r")]
    last = next(frame for frame in frames if "step 4/4" in frame)  # the last evaluation's bar takes its place
    assert re.search(r"━ +[▁▂▃▄▅▆▇█]{4}  step 4/4  reward \d\.\d{3}  accuracy ", last) and len(last) <= 110
    assert re.search(r"\d s/step  \d[\d.]* rollouts/s  00:00:\d\d left", last), last
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", written)) is not is_plain


def test_a_run_without_steps_that_are_counted_has_a_bar_too(monkeypatch):
    """A rollout without an end has no total, and a terminal without Unicode no sparkline."""
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    stream.encoding = "ascii"
    with Progress(float("inf"), stream=stream) as progress:
        for step in (1, 2):
            progress.show(step, ROW)
    assert "step 2  reward 0.500" in stream.getvalue() and "▁" not in stream.getvalue()


@pytest.mark.parametrize(("values", "line"), [([], ""), ([1.0], "▁"), ([0.0, 7.0, 3.5], "▁█▅"), ([2.0] * 40, "▁" * 16)])
def test_a_sparkline_shows_means_of_stretches(values, line):
    assert format_sparkline(values) == line


def test_a_file_gets_the_first_and_the_last_step():
    """A log file would hold a line per step, with control characters."""
    stream = io.StringIO()
    with Progress(50, stream=stream) as progress:
        for step in range(1, 51):
            progress.show(step, ROW)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/50", "50/50"]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number, capsys):
    """Ctrl-C would lose the step, or a hanging step could not be ended."""
    before = signal.getsignal(number)
    with Stopper() as stopper:
        assert not stopper.stop
        os.kill(os.getpid(), number)
        assert stopper.stop
        assert "finishing this step" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_the_time_left_counts_steps_and_evaluations_by_their_own_times():
    """The first step of a run said 32 minutes for 3.7: it counted the evaluation before it, and loading, as a step."""
    steps, evaluations = [3.0, 0.9, 1.0, 1.1], [20.0]  # recorded: the first step compiles
    assert estimate_left(steps, 196, evaluations, 5) == pytest.approx(196 * 1.05 + 5 * 20)
    assert estimate_left([1.0], 199, [20.0], 1) == 219
    assert estimate_left([1.0], 10, [], 2) == 10  # a resumed run has not evaluated yet
    stream = io.StringIO()
    with Progress(200, stream=stream) as progress:
        progress.evaluated(1900.0)
        progress.show(1, ROW)
    assert stream.getvalue().endswith("00:34:59 left\n")


@pytest.mark.parametrize(("step", "every", "ahead"), [(1, None, 1), (1, 5, 3), (5, 5, 3), (6, 5, 2), (12, 5, 1)])
def test_evaluations_that_are_still_due(step, every, ahead):
    """Of 12 steps: each fifth and the last. The time left would jump at each of them."""
    assert count_evaluations(step, 12, every) == ahead
