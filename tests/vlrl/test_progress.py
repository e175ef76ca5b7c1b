"""The progress line and the stop that waits for a step's end."""

from __future__ import annotations

import io
import os
import signal

import pytest

from vlrl.progress import Progress, Stopper

ROW = {"reward": 0.5, "accuracy": 0.25, "seconds": 1.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_rewritten_in_place():
    """Hundreds of steps would scroll the screen away."""
    stream = Terminal()
    with Progress(3, stream=stream) as progress:
        progress.note("evaluation 5/9")
        for step in (1, 2, 3):
            progress.show(step, ROW)
    text = stream.getvalue()
    assert text.count("\r") == 4 and text.count("\n") == 1 and text.endswith("\n")
    assert "step 3/3  reward 0.500  accuracy 0.250" in text.split("\r")[-1]


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
