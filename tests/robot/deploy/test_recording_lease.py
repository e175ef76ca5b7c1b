"""One recorder or one finisher at a time, and signals up to the end of a run: no episode is lost or made twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from small_deploy import Run, killable, written

from robot.deploy.recorder import spools_of

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """`recorded(folder)`: a run that records one short episode to folder/data and then makes the data set of it."""
    with killable() as (url, _):

        def start(folder, **record):
            return Run(written(folder, url, seconds=1, record={"out": str(folder / "data"), **record}))

        yield start


def finisher(folder):
    command = [sys.executable, "-m", "robot.deploy.recorder", str(folder / "data")]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)


def outcome(process):
    """The exit code of a finisher, and what it said."""
    said, _ = process.communicate(timeout=120)
    return process.returncode, json.loads(said)


def child_finisher(run):
    """The process that makes the data set, once the run has started it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        listed = subprocess.run(
            ["ps", "--ppid", str(run.process.pid), "-o", "pid=,args="], capture_output=True, text=True
        )
        for line in listed.stdout.splitlines():
            if "robot.deploy.recorder" in line:
                return int(line.split()[0])
        assert run.process.poll() is None, run.process.stdout.read()
        time.sleep(0.02)
    raise AssertionError("no finisher was started")


def ended(pid):
    """Waits for the end of a process that is not ours."""
    end = time.monotonic() + 120
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.05)


def frames(folder):
    info = json.loads((folder / "data" / "meta" / "info.json").read_text())
    return info["total_episodes"], info["total_frames"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_data_set_is_made(recorded, tmp_path, number, code) -> None:
    """A finisher that lives on after its run would meet the next run's, and the take would be two episodes."""
    run = recorded(tmp_path)
    pid = child_finisher(run)
    run.process.send_signal(number)
    assert run.end() == code
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert any("ended by a signal" in line and "keeps the recordings" in line for line in run.lines), run.lines
    assert len(list(spools_of(tmp_path / "data").glob("*.spool"))) == 1
    assert outcome(finisher(tmp_path))[1]["episodes"] == 1


def test_a_finisher_that_outlives_its_run_keeps_the_data_set_to_itself(recorded, tmp_path) -> None:
    """The out-of-memory killer takes the run alone: what comes after must not mix with the finisher or repeat it."""
    run = recorded(tmp_path)
    pid = child_finisher(run)
    lease = tmp_path / ".data.lease"
    while f'"pid": {pid},' not in lease.read_text():  # until then it is the run's, which the error names
        assert run.process.poll() is None, "the finisher never signed the lease"
        time.sleep(0.02)
    run.process.kill()
    run.process.wait()
    run.process.stdout.close()
    code, said = outcome(finisher(tmp_path))
    assert code == 2 and f"data is in use by process {pid} " in said["problem"], said
    other = recorded(tmp_path)
    assert other.end() == 2 and any("is in use by process" in line for line in other.lines), other.lines
    ended(pid)
    episodes, count = frames(tmp_path)
    assert (episodes, count > 10) == (1, True)
    assert outcome(finisher(tmp_path)) == (0, {"episodes": 0, "frames": 0, "lost": 0, "corrections": 0})
    assert frames(tmp_path) == (1, count)


def test_a_take_that_comes_back_is_one_episode(recorded, tmp_path) -> None:
    """A recording that was restored from a backup, or not yet removed at a power cut, must not count twice."""
    run = recorded(tmp_path, finish=False)
    assert run.end() == 0
    (take_writer,) = spools_of(tmp_path / "data").glob("*.spool")
    kept = take_writer.read_bytes()
    both = [finisher(tmp_path), finisher(tmp_path)]  # at once: one of them works, the other is refused
    codes = sorted(outcome(process)[0] for process in both)
    assert codes == [0, 2] or codes == [0, 0]  # or one after the other
    once = frames(tmp_path)
    take_writer.write_bytes(kept)
    take_writer.with_name("copy.spool").write_bytes(kept)
    assert outcome(finisher(tmp_path))[1]["episodes"] == 0
    assert frames(tmp_path) == once and once[0] == 1 and not list(take_writer.parent.glob("*.spool"))


def test_two_recorders_of_one_data_set(recorded, tmp_path) -> None:
    """The second's finisher would take the first's unfinished recording and remove it."""
    with killable() as (url, _):
        long = written(tmp_path, url, seconds=60, robot__askew=180.0, record={"out": str(tmp_path / "data")})
        first = Run(long)
        first.until("episode 1")
        (tmp_path / "second").mkdir()
        second = Run(written(tmp_path / "second", url, record={"out": str(tmp_path / "data")}))
        assert second.end() == 2
        assert any(f"is in use by process {first.process.pid} " in line for line in second.lines), second.lines
        first.process.send_signal(signal.SIGTERM)
        first.process.send_signal(signal.SIGTERM)  # ends it at once; one that comes too early is the first
        assert first.end() == 143
    assert len(list(spools_of(tmp_path / "data").glob("*.spool"))) == 1
