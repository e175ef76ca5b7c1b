"""Steps that are played ahead in two processes, beside the same runs in one; processes that stop, fail and are lost."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process
from pathlib import Path
from typing import Any

import pytest

from vlrl.distributed.world import World, get_world

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).with_name("processes.py"))
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, rows = processes.launch, processes.ended, processes.rows

MODULE = """
import os, signal, time
from pathlib import Path
from vlrl.methods import Callback, method
from vlrl.types import Step, UserError

SECOND = os.environ.get("RANK") == "1"


class Slow(TwoTurns):
    '''The second process plays longer, so that the first waits for its episodes.'''

    def step(self, action, frames=()):
        time.sleep(0.05 * SECOND)
        return super().step(action)


class Lagging(Mixed):
    def environment(self, sample):
        return Slow(sample)


class Broken(TwoTurns):
    def step(self, action, frames=()):
        step = super().step(action)
        return Step(step.observation, fault="it fell over") if SECOND and Path("run/metrics.jsonl").exists() else step


class Breaking(Mixed):
    def environment(self, sample):
        return Broken(sample)


class Endless(TwoTurns):
    def step(self, action, frames=()):
        time.sleep(0.2)
        return Step(self.shown(96), terminated=False)


class Stuck(Mixed):
    '''From the second step on the second process never ends an episode of its own.'''

    def at_step(self, step):
        self.stage = step

    def environment(self, sample):
        return Endless(sample) if SECOND and self.stage else TwoTurns(sample)


@method
class Killed(Callback):
    '''Kills every process after a step.'''

    def __init__(self, policy, task, updater, seed):
        pass

    def on_step_end(self, step, row):
        if step == 3 and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)


class Failing(Killed):
    '''Of the first process.'''

    def on_step_end(self, step, row):
        if not SECOND:
            raise UserError("the hook has failed")
"""
TRAIN = processes.CONFIG["train"] | {"steps": 5, "max_staleness": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "turns": {"callbacks": [{"name": "mine:Killed"}]},
    "refill": {"rollout_strategy": {"name": "filter_refill", "rounds": 2}},
}
LOST = "another process of this run does not answer, see its own message"


def workplace(folder: Path, **changes: Any) -> Path:
    folder = processes.workplace(folder, **{"train": TRAIN} | changes)
    (folder / "mine.py").write_text(processes.MODULE + MODULE)
    return folder


@pytest.fixture(scope="module")
def finished(launch, tmp_path_factory) -> Callable[[str, int], Path]:
    """`finished("turns", 2)`: the folder of a run of a variant in so many processes."""

    def make(variant: str, size: int) -> Path:
        return workplace(tmp_path_factory.mktemp(variant) / str(size), **VARIANTS[variant])

    return processes.finishing(launch, make)


def under_way(launch, folder: Path, count: int) -> list[Process]:
    """Two processes that have made so many rows of metrics."""
    started = launch(2, folder, "train", "config.yaml")
    deadline = time.monotonic() + processes.PATIENCE
    while not (file := folder / "run" / "metrics.jsonl").exists() or len(file.read_text().splitlines()) < count:
        assert all(p.is_alive() for p in started) and time.monotonic() < deadline, (folder / "0.err").read_text()
        time.sleep(0.02)
    return started


def told(folder: Path, rank: int) -> list[str]:
    """What a process said of its end."""
    return [line for line in (folder / f"{rank}.err").read_text().splitlines() if line.startswith("vlrl: ")]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_two_processes_play_ahead_as_one_does(variant, finished):
    """Else a result depends on how many GPUs there were, or threads take each other's episodes for their own."""
    one, two = finished(variant, 1), finished(variant, 2)
    processes.assert_same_run(two, one)
    assert [row["staleness"] for row in rows(two) if "loss" in row] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["2 to 1", "1 to 2"])
def test_a_killed_run_goes_on_in_any_number_of_processes(sizes, finished, launch, tmp_path):
    """Else what was under way is lost, or a run is tied to the machine that it began on."""
    before, after = sizes
    folder = workplace(tmp_path / "killed", **VARIANTS["turns"])
    (folder / "kill").touch()
    assert ended(launch(before, folder, "train", "config.yaml"), folder) == [-signal.SIGKILL] * before
    (folder / "kill").unlink()
    assert ended(launch(after, folder, "train", "--resume", "run"), folder) == [0] * after
    processes.assert_same_run(folder, finished("turns", 1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_stops_all_after_the_step(rank, launch, tmp_path):
    """Else a job that is asked to end hangs in threads that wait for episodes which nobody plays any more."""
    folder = workplace(tmp_path / "stopped", task={"name": "mine:Lagging"}, train=TRAIN | {"steps": 500})
    started = under_way(launch, folder, 3)
    os.kill(started[rank].pid, signal.SIGTERM)
    assert ended(started, folder) == [130, 130]
    step = rows(folder)[-1]["step"]
    assert (folder / "run" / "checkpoints" / f"step_{step:06d}" / "trainer.json").exists()
    assert [len(told(folder, rank)) for rank in (0, 1)] == [1, 0] and "go on with" in told(folder, 0)[0]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_other_with_a_line(fault, launch, tmp_path):
    """Else the thread that waits for its episodes waits for ever, and with it paid machines."""
    folder = workplace(tmp_path / "lost", task={"name": "mine:Lagging"}, train=TRAIN | {"steps": 500})
    (folder / "mine.py").write_text(processes.MODULE + MODULE + "os.environ['VLRL_WAIT_S'] = '20'\n")
    started = under_way(launch, folder, 3)
    os.kill(started[1].pid, fault)
    assert ended(started[:1], folder) == [2]
    started[1].kill()
    assert len(told(folder, 0)) == 1 and LOST in told(folder, 0)[0]


def test_episodes_that_fail_in_one_process_end_all(launch, tmp_path):
    """Else the thread in which they fail leaves the other process's waiting."""
    folder = workplace(tmp_path / "broken", task={"name": "mine:Breaking"}, train=TRAIN | {"steps": 500})
    assert ended(launch(2, folder, "train", "config.yaml"), folder) == [2, 2]
    assert [len(told(folder, rank)) for rank in (0, 1)] == [1, 1]
    assert LOST in told(folder, 0)[0] and "failed 3 times: it fell over" in told(folder, 1)[0]


def test_a_process_that_fails_does_not_wait_for_anothers_episodes(launch, tmp_path):
    """Else an error is told of when a robot's episode in another process has ended, or never."""
    changes = {"task": {"name": "mine:Stuck"}, "callbacks": [{"name": "mine:Failing"}]}
    folder = workplace(tmp_path / "failing", **changes)
    assert ended(launch(2, folder, "train", "config.yaml"), folder) == [2, 2]
    assert told(folder, 0) == ["vlrl: the hook has failed [VL106]"] and LOST in told(folder, 1)[0]


def test_a_thread_talks_over_its_own_link():
    """Else threads would take each other's episodes for their own."""
    own = World(1, 2, link="its own")
    with ThreadPoolExecutor(2) as threads:
        begun = [
            threads.submit(World(1, 2, link=i).call, lambda: (time.sleep(0.01), get_world().link)[1]) for i in (5, 6)
        ]
        assert [each.result() for each in begun] == [5, 6] and own.call(get_world) is own
    assert get_world() == World() and World().on_own_link() == World()
