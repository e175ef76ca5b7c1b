"""Robots in processes of their own: the same episodes as without, and none that hangs or is lost unseen."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from threading import Thread

import numpy as np
import psutil
import pytest

from robot.env import RobotEnv
from robot.sim.tabletop import Tabletop
from robot.types import Snapshot
from robot.workers import RobotPool, worker_find
from vlrl.placement.workers import Worker, WorkerError
from vlrl.types import UserError

RIGHT = np.array([1.0, 0.0], np.float32)
SLIDE = "small_robots:Slide"


@pytest.fixture
def pool():
    """`pool(robot, size=1, **options)`, closed at the end."""
    made = []

    def make(robot=SLIDE, *, size=1, patience=30.0, **options):
        made.append(RobotPool(robot, options, size=size, patience=patience))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def tables():
    """Two workers with a table and a camera."""
    made = RobotPool("robot.sim.tabletop:Tabletop", {"job": "pick", "camera": (32, 24)}, size=2)
    yield made
    made.close()


def said(step, bits):
    return bits(step.observation), step.reward, step.terminated, step.truncated, dict(step.info)


def test_an_episode_is_what_it_is_without_a_pool(tables, bits, controls):
    """The number of processes would decide what a policy learns."""
    robot = Tabletop(job="pick", camera=(32, 24))
    pooled, play = tables.environment(6, ticks=30), RobotEnv(robot, 6, ticks=30)
    assert bits(pooled.reset()) == bits(play.reset())
    for chunk in controls(robot, 0, 30).reshape(6, 5, 4):
        assert said(pooled.step(chunk), bits) == said(play.step(chunk), bits)
    play.close()


@pytest.mark.parametrize("seed", [0, 11, 20_003])
def test_a_group_is_equal_across_workers(tables, bits, controls, seed):
    """Workers would stand for luck in a group's comparison."""
    group = [tables.environment(seed, ticks=50) for _ in range(2)]
    assert bits(group[0].reset()) == bits(group[1].reset())
    for chunk in controls(Tabletop(job="pick"), seed, 24).reshape(3, 8, 4):
        assert said(group[0].step(chunk), bits) == said(group[1].step(chunk), bits)
    snapshot = group[0].snapshot()
    for each in group:
        each.close()
    again = [tables.environment(snapshot, ticks=50) for _ in range(2)]
    first = [bits(each.reset()) for each in again]
    after = [said(each.step(controls(Tabletop(job="pick"), 1, 8)), bits) for each in again]
    assert first[0] == first[1] and after[0] == after[1]
    for each in again:
        each.close()
    assert tables.counts["started"] <= 2 and not tables.counts["errors"]


def test_a_killed_worker_costs_one_episode(pool):
    """A crash in a simulator's C code would end hours of training, or leave it waiting for ever."""
    many = pool(size=2)
    first, second = many.environment(0, ticks=9), many.environment(1, ticks=9)
    first.reset()
    second.reset()
    os.kill(first._worker.pid, signal.SIGKILL)
    step = first.step(RIGHT)
    assert step.truncated and not step.terminated and step.info["error"] == 1
    assert step.info["error: the worker died (signal 9)"] == 1
    assert second.step(RIGHT).info["ticks"] == 1
    third = many.environment(2, ticks=9)
    third.reset()
    assert third.step(RIGHT).info["ticks"] == 1
    assert (many.counts["started"], many.counts["errors"]) == (3, 1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("die", "the worker ended (exit status 7)"), ("raise", "ArithmeticError: the matrix is singular")],
)
def test_a_fault_replaces_the_worker(pool, fault, reason):
    """A simulator in an unknown state would play on."""
    faulty = pool(fault=fault, at=2)
    play = faulty.environment(0, ticks=9)
    play.reset()
    worker = play._worker
    assert not play.step(RIGHT).truncated
    step = play.step(RIGHT)
    assert step.truncated and step.info["error"] == step.info[f"error: {reason}"] == 1
    assert worker._process.poll() is not None and faulty.counts[f"error: {reason}"] == faulty.counts["errors"] == 1


def test_a_worker_that_hangs_is_given_up(pool):
    """Training would stand still without a word."""
    play = pool(fault="hang", at=1).environment(0, ticks=9)
    play.reset()
    worker = play._worker
    worker.patience = 0.3  # once it has been started, however slow that was
    assert play.step(RIGHT).info["error: no answer in 0.3 s"] == 1
    assert worker._process.poll() is not None


def test_a_worker_that_dies_before_the_first_episode_is_replaced(pool, monkeypatch):
    """A run would end before it began, with a robot that is whole."""
    workers, ask = pool(), Worker.ask

    def killed_once(worker, request, *rest):
        if request == "describe" and not workers.counts["errors"]:
            os.kill(worker.pid, signal.SIGKILL)
        return ask(worker, request, *rest)

    monkeypatch.setattr(Worker, "ask", killed_once)
    assert workers.info.hz > 0
    assert workers.counts["started"] == 2 and workers.counts["error: the worker died (signal 9)"] == 1


def test_a_robot_that_never_starts_is_said_in_one_line(pool):
    """Workers would be started for ever."""
    broken = pool(fault="home")
    with pytest.raises(UserError, match="could not begin on 3 workers: joint 3 does not answer"):
        broken.environment(0, ticks=9).reset()
    assert broken.counts["errors"] == broken.counts["started"] == 3
    with pytest.raises(WorkerError, match="no such port"):
        pool(fault="make").take()


def test_a_robot_that_does_not_exist_is_said_in_one_line(pool):
    """A typing error would come as another process' traceback."""
    with pytest.raises(UserError, match="cannot find"):
        pool("small_robots:Nothing").environment(0, ticks=9).reset()
    for name in ("nowhere:Robot", "small_robots", ":Robot", ""):
        with pytest.raises(UserError, match="cannot find"):
            worker_find(name)


def test_more_episodes_than_workers_do_not_wait_for_ever(pool):
    """One thread that opens too many would wait for itself."""
    small = pool()
    first, second = small.environment(0, ticks=9), small.environment(1, ticks=9)
    first.reset()
    small.patience = 0.2
    with pytest.raises(UserError, match=r"busy for 0.2 s"):
        second.reset()
    small.patience = 30.0
    Thread(target=lambda: (time.sleep(0.2), first.close())).start()
    second.reset()
    assert small.counts["started"] == 1


def test_bad_actions_leave_the_worker_fit(pool):
    """Each bad action would cost the start of a simulator."""
    small = pool()
    for action in ("go", None, np.array([None]), np.full(2, np.nan), np.zeros((2, 3), np.float16), np.zeros((0, 2))):
        play = small.environment(0, ticks=9)
        play.reset()
        assert play.step(action).info["bad_action"] == 1
    assert (small.counts["started"], small.counts["errors"]) == (1, 0)


def test_an_interrupted_request_is_not_answered_to_the_next_episode(pool, monkeypatch):
    """After Ctrl-C in a step, the next episode would get the last one's observation."""
    small = pool()
    play = small.environment(0, ticks=9)
    play.reset()

    def interrupt(message):
        raise KeyboardInterrupt

    monkeypatch.setattr("vlrl.placement.workers.wire_unpack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play.step(RIGHT)
    monkeypatch.undo()
    play.close()
    again = small.environment(3, ticks=9)
    assert again.reset().state.tolist() == np.random.default_rng(3).uniform(-0.5, 0.5, 2).astype(np.float32).tolist()
    assert small.counts["error: interrupted"] == 1


PARENT = """
from robot.workers import RobotPool
worker = RobotPool("small_robots:Slide", {"fault": "hang", "at": 1}, size=1, patience=600.0).take()
worker.ask("reset", {"seed": 0, "ticks": 9})
print(worker.pid, flush=True)
worker.ask("step", {}, {"action": __import__("numpy").zeros(2)})
"""


def test_a_worker_ends_with_its_parent():
    """Simulators, also those that hang, would pile up behind runs that were killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True)
    with parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.3)  # until it hangs
        parent.kill()
    try:
        until = time.monotonic() + 30
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def test_snapshots_of_a_robot_without_any(pool):
    """It would be found out after the episode had been played from elsewhere."""
    real = pool("small_robots:Real")
    play = real.environment(Snapshot(0, {"state": np.zeros(2)}), ticks=9)
    with pytest.raises(UserError, match="start from a seed"):
        play.reset()
    play.close()
    play = real.environment(0, ticks=9)
    play.reset()
    with pytest.raises(UserError, match="no snapshots"):
        play.snapshot()
    assert play.step(RIGHT).info["ticks"] == 1
    assert (real.counts["started"], real.counts["errors"]) == (1, 0)


def test_a_closed_pool_has_no_workers(pool):
    """Processes would outlive the run."""
    small = pool(size=2)
    play, open_ = small.environment(0, ticks=1), small.environment(1, ticks=9)
    play.reset(), open_.reset()
    workers = [play._worker, open_._worker]
    play.step(RIGHT)
    small.close()
    open_.close()
    assert all(worker._process.poll() is not None for worker in workers)
    with pytest.raises(UserError, match="closed"):
        small.environment(0, ticks=1).reset()
    with pytest.raises(WorkerError):
        workers[0].ask("step", {})


@pytest.mark.parametrize("job", ["push", "pick"])
def test_a_scene_that_is_played_again_on_one_worker_is_the_same(job, bits, controls):
    """A worker puts the robot back instead of making the scene anew: a group's later members would start elsewhere."""
    pool = RobotPool("robot.sim.tabletop:Tabletop", {"job": job}, size=1)
    chunks = np.stack([controls(Tabletop(job=job), seed, 8) for seed in range(3)])

    def seen(seed):
        play = pool.environment(seed, ticks=100)
        try:
            return [bits(play.reset()), *(bits(play.step(chunk).observation) for chunk in chunks)]
        finally:
            play.close()

    first = seen(7)
    assert seen(7) == first  # from where it was at home
    assert seen(8) != first
    assert seen(7) == first  # made anew
    pool.close()


def test_a_plan_leaves_everything_as_it_was(bits):
    """Asking the script would change the episode that it is asked in."""
    pool = RobotPool("robot.sim.tabletop:Tabletop", {"job": "push"}, size=2)
    asked, plain = (pool.environment(3, ticks=100) for _ in range(2))
    assert bits(asked.reset()) == bits(plain.reset())
    for _ in range(2):
        plan = asked.plan(8)
        assert plan.shape == (8, 3) and (asked.plan(8) == plan).all()
        assert bits(asked.step(plan).observation) == bits(plain.step(plan).observation)
    asked.close(), plain.close()
    pool.close()


def test_the_pool_says_what_its_robots_are():
    """A policy could not know what to give."""
    pool = RobotPool("robot.sim.tabletop:Tabletop", {"job": "pick"}, size=1)
    assert pool.info.controls.names == ("x", "y", "z", "grip") and pool.info.script
    assert len(pool.info.names) == 12 and pool.info.hz == 20
    assert pool.cpu_s() > 0
    pool.close()


def test_a_forgotten_pool_ends_its_workers():
    """A task that nobody closes would keep its simulators until the interpreter ends."""
    forgotten = RobotPool(SLIDE, {}, size=1)
    forgotten.give(worker := forgotten.take())
    pid = worker.pid
    del worker, forgotten
    assert not psutil.pid_exists(pid)
