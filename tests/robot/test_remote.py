"""A simulator of another interpreter is the robot that it would be here, and its faults cost one episode each."""

import ast
import platform
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from robot.env import RobotEnv, look
from robot.sim.gym import GymRobot
from robot.sim.remote import HOST, EnvHub, Remote
from robot.sim.tabletop import Tabletop
from robot.types import RobotError
from robot.workers import RobotPool
from vlrl.system import hub
from vlrl.types import UserError

FOLDER = Path(__file__).parents[2] / "examples" / "environments" / "hub"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOY = str(Path(__file__).with_name("toy_simulators.py"))
WALK = {"python": sys.executable, "make": f"{TOY}:make"}
RIGHT = np.array([[1.0, 0.0]], np.float32)


@pytest.fixture
def remote():
    """`remote(**options)`, closed at the end; `kind`, `fault` and `at` go to the toy."""
    robots = []

    def make(*, kind="gymnasium", fault="", at=3, **options):
        robots.append(Remote(**(WALK | {"options": {"kind": kind, "fault": fault, "at": at}} | options)))
        return robots[-1]

    yield make
    for each in robots:
        each.close()


def play(robot, controls, bits):
    """What is shown, sent and said, tick by tick."""
    seen = [bits(robot.get_observation())]
    for control in controls:
        seen += [robot.send_action(control).tobytes(), robot.status(), bits(robot.get_observation())]
    return seen


def test_it_is_what_it_is_in_this_process(bits, controls):
    """Moving a simulator behind the boundary would change what a policy learns."""
    here = GymRobot(id="Pendulum-v1", success=None)
    there = Remote(python=sys.executable, make="gymnasium:make", options={"id": "Pendulum-v1"}, success=None)
    assert (there.names, there.hz) == (here.names, here.hz)
    following = controls(here, 0, 20)
    for seed in (7, 20_000):
        here.reset(seed), there.reset(seed)
        assert play(there, following, bits) == play(here, following, bits)
    there.close()


def test_it_describes_itself(remote):
    """A policy could not know what it is shown, nor what it may ask for."""
    robot = remote(images=["top", "render"])
    assert robot.controls.names == ("vx", "vy") and robot.controls.units == ("m/s", "m/s") and robot.hz == 10
    assert robot.versions["python"] == platform.python_version() and robot.versions["numpy"] == np.__version__
    assert robot.controls.high.tolist() == [1, 0.5] and robot.names == ("agent.pos.0", "agent.pos.1", "agent.ticks")
    robot.reset(5)
    shown, _ = look(robot)
    assert [image.size for image in shown.images] == [(12, 8), (40, 30)] and shown.text.startswith("Go to the right")
    top, render = (np.asarray(image) for image in shown.images)
    assert (top[:, :, 0] == 20 * np.arange(8)[:, None]).all() and (render[0] > render[-1]).any()
    chosen = remote(state=["agent.pos"], hz=5, instruction="Go.", names=["a", "b"], success=0.9)
    chosen.reset(5)
    assert chosen.get_observation().text == "Go." and chosen.hz == 5 and chosen.controls.names == ("a", "b")
    assert (chosen.get_observation().state == shown.state[:2]).all()


@pytest.mark.parametrize("kind", ["gymnasium", "gym", "robosuite", "saved"])
def test_a_seed_is_one_episode_and_a_snapshot_goes_on_from_it(remote, kind, bits, controls):
    """Two policies would not meet the same scenes, and a group would compare actions on different futures."""
    one, other = remote(kind=kind, images=["top"]), remote(kind=kind, images=["top"])
    following, seen = controls(one, 0, 8), {}
    for robot in (one, other):
        for seed in (20_001, 4, 20_001):
            robot.reset(seed)
            seen.setdefault(seed, []).append(play(robot, following, bits))
    assert all(each == episodes[0] for episodes in seen.values() for each in episodes) and seen[4] != seen[20_001]
    snapshot = one.snapshot()
    expected = play(one, following, bits)
    other.reset(9)
    for robot in (one, other):
        robot.restore(snapshot)
        assert play(robot, following, bits) == expected


@pytest.mark.parametrize(
    ("kind", "chunk", "end"),
    [("gymnasium", [1, 0], "success"), ("gymnasium", [-1, 0], "failure: the environment ended the episode"),
     ("gym", [0, 0], "stopped: the environment's own limit"), ("robosuite", [0, 0], "time_out")],
)  # fmt: skip
def test_how_an_episode_ends(remote, kind, chunk, end):
    """A limit of the simulator's own would count as the policy's failure."""
    episode = RobotEnv(remote(kind=kind), 3, ticks=30)
    episode.reset()
    step = episode.step(np.tile(np.float32(chunk), (40, 1)))
    assert step.info[end] == 1 and step.terminated == (end.split(":")[0] in ("success", "failure"))
    assert "x" in step.info and "who" not in step.info


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("die", "the simulator died (signal 9)"),
        ("exit", "the simulator ended (exit status 3)"),
        ("raise", "ArithmeticError: the matrix is singular"),
        pytest.param("hang", "no answer in 1.5 s", marks=pytest.mark.slow),
    ],
)
def test_a_fault_costs_one_episode(fault, reason):
    """A crash in somebody's simulator would end hours of training, or count against the policy."""
    options = WALK | {"options": {"fault": fault, "at": 5}, "patience": 1.5}
    pool = RobotPool("robot.sim.remote:Remote", options, size=1)
    try:
        for _ in range(2):  # the second on a new worker
            episode = pool.environment(3, ticks=20)
            episode.reset()
            assert not episode.step(RIGHT).truncated
            step = episode.step(np.tile(RIGHT, (8, 1)))
            assert step.truncated and step.fault == f"robot.make: {TOY}:make: {reason}"
            episode.close()
        assert pool.counts["errors"] == 2
    finally:
        pool.close()


def test_a_state_that_is_not_finite_is_a_fault_too(remote):
    """A policy would go on with NaN for good."""
    episode = RobotEnv(remote(fault="nan", at=5), 3, ticks=20)
    episode.reset()
    assert episode.step(np.tile(RIGHT, (8, 1))).fault in ("reward is not finite", "the state is not finite")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"python": "/no/such/python"}, "robot.python: '/no/such/python': is no program"),
        ({"python": "ls"}, "robot.python: 'ls': is no Python of at least 3.8 with numpy: the simulator ended"),
        ({"make": "toy_simulators"}, "robot.make: 'toy_simulators': must be module:function"),
        ({"make": "no_such_module:make"}, "robot.make: no_such_module cannot be imported by .*No module named"),
        ({"make": "/no/such/file.py:make"}, "robot.make: /no/such/file.py cannot be imported by .*No module named"),
        ({"make": f"{TOY}:mak"}, "robot.make: .* has no function 'mak'"),
        ({"make": f"{TOY}:nothing"}, "robot.make: .* gave int without reset and step"),
        ({"options": {"speed": 3}}, "robot.options: .*unexpected keyword argument 'speed'"),
        ({"options": {"fault": "make"}}, "robot.make: .* raised RuntimeError: no such asset"),
        ({"options": {"kind": "switch"}}, "robot.make: its actions are .*: must be real numbers with finite limits"),
        ({"options": {"fault": "unseeded"}}, "robot.make: .* seed 0 made two different episodes"),
        ({"options": {"kind": "saved", "fault": "forgets"}}, "robot.make: .* restore.. does not go on from snapshot"),
        ({"state": ["agent.mood"]}, "robot.state: agent.mood: must be of agent.pos, agent.ticks"),
        ({"images": ["front"]}, "robot.images: front: must be of top"),
        ({"success": "won"}, "robot.success: .* tells no 'won', but is_success, x"),
        ({"patience": 0}, "robot.patience: 0"),
    ],
)
def test_wrong_settings_are_said_in_one_line(options, said):
    """Another process' traceback says neither which setting is wrong nor how to mend it."""
    with pytest.raises(UserError, match=said) as error:
        Remote(**(WALK | options))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_fault_while_it_is_tried_names_the_setting():
    """A simulator that hangs at its first tick would be taken for a robot that cannot be found."""
    with pytest.raises(RobotError, match=r"robot.make: .*: no answer in 2 s"):
        Remote(**WALK | {"options": {"fault": "hang", "at": 1}, "patience": 2.0})


def test_what_a_folder_of_envhub_gives_is_unpacked():
    """Each folder of lerobot's hub would need a function written for it."""
    robot = Remote(**WALK | {"make": f"{TOY}:hub"})
    assert robot.names == ("agent.pos.0", "agent.pos.1", "agent.ticks")
    robot.close()


@pytest.fixture
def offline(tmp_path, monkeypatch) -> Path:
    """The hub's cache, empty, on a machine without a network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.reach_hub.cache_clear()
    return tmp_path / "cache"


def keep_in(cache: Path, repository: str) -> None:
    """Puts the example's folder into the hub's cache, as a download does."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(FOLDER, folder / "snapshots" / COMMIT, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)


def test_a_folder_of_envhub_is_the_simulator_that_it_wraps(bits, controls):
    """A policy that was trained on the one would meet another world in the other."""
    here, there = Tabletop(job="push"), EnvHub(id=str(FOLDER))
    following = controls(here, 0, 20)
    assert (there.controls.names, there.controls.units, there.hz) == (here.controls.names, here.controls.units, here.hz)
    for seed in (7, 20_000):
        here.reset(seed), there.reset(seed)
        assert bits(here.get_observation()) == bits(there.get_observation())
        for control in following:
            here.send_action(control), there.send_action(control)
            assert bits(here.get_observation()) == bits(there.get_observation())
            assert here.status().success == there.status().success
    there.close()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lerobot") is None, reason="the extra robot")
def test_a_repository_of_envhub_is_loaded_by_lerobot_itself(offline):
    """A loader of our own would take other names than lerobot's, and ask for trust in another way."""
    keep_in(offline, "owner/push")
    for id in ("owner/push", f"owner/push@{COMMIT}", "owner/push@main:env.py"):
        robot = EnvHub(id=id, trust=True)
        robot.reset(3)
        assert (
            robot.hz == 20 and robot.controls.names == ("x", "y", "z") and "cube onto" in robot.get_observation().text
        )
        robot.close()
    with pytest.raises(UserError, match=r"robot.id: owner/push@v9: .*make_env raised LocalEntryNotFoundError") as error:
        EnvHub(id="owner/push@v9", trust=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"id": "owner/push"}, "robot.trust: code of owner/push would run here: .* name the revision that you read"),
        ({"id": "owner/push@v1"}, "robot.trust: code of owner/push would run here: set robot.trust to true"),
        ({"id": "owner/push", "trust": True}, "robot.id: owner/push: HF_HUB_OFFLINE is set, and there is no copy"),
        ({"id": "push", "trust": True}, "robot.id: 'push': there is no such folder, and it is no owner/name"),
        ({"id": "./no/folder"}, "robot.id: './no/folder': there is no such folder"),
        ({"id": str(FOLDER.parent)}, "robot.id: .*: .*env.py cannot be imported by .*"),
    ],
)
def test_what_envhub_does_not_load_is_said_in_one_line(options, problem, offline):
    """Another library's traceback says neither what is wrong nor that code was about to run."""
    with pytest.raises(UserError, match=problem) as error:
        EnvHub(**options)
    assert "\n" not in str(error.value)


def test_envhub_needs_lerobot_in_the_interpreter_that_runs_it(offline, tmp_path):
    """A package that is missing in another environment would be looked for in this one."""
    keep_in(offline, "owner/push")
    (tmp_path / "lerobot.py").write_text("raise ModuleNotFoundError(\"No module named 'lerobot'\")")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    with pytest.raises(
        UserError, match=r"robot.id: owner/push: .* No module named 'lerobot'; pip install lerobot there"
    ):
        EnvHub(id="owner/push", trust=True, python=str(program))


def test_envhub_without_a_network_fails_before_lerobot_is_loaded(offline, monkeypatch):
    """lerobot asks twice and the hub's library five times each."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"robot.id: owner/push: http://127.0.0.1:9 cannot be reached, and there is no"):
        EnvHub(id="owner/push", trust=True, python="/no/such/python")


@pytest.mark.slow
def test_the_recipe_for_environments_of_lerobot_runs(tmp_path):
    """A newcomer would copy it from the page and find out that it never worked."""
    text = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text(encoding="utf-8")
    (recipes,) = re.findall(r"```python\n(def .*?)```", text, re.DOTALL)
    (file := tmp_path / "recipes.py").write_text(recipes)
    robot = Remote(
        python=sys.executable, make=f"{file}:lerobot", options={"type": "pusht"}, images=["pixels"], patience=100
    )
    robot.reset(3)
    shown, _ = look(robot)
    assert robot.hz == 10 and robot.names == ("agent_pos.0", "agent_pos.1") and len(shown.images) == 1
    robot.close()


@pytest.mark.slow
def test_the_simulator_ends_with_its_worker():
    """Simulators of a run that was killed would keep the machine's memory."""
    pool = RobotPool("robot.sim.remote:Remote", WALK, size=1)
    worker = pool.take()
    (simulator,) = [each for each in psutil.Process(worker.pid).children() if str(HOST) in each.cmdline()]
    assert not {"PYTHONPATH", "PYTHONHOME"} & set(simulator.environ())
    psutil.Process(worker.pid).kill()
    simulator.wait(20)
    pool.bury(worker, "killed")
    pool.close()


def test_the_host_needs_nothing_of_ours():
    """The other interpreter has neither vlrl nor its versions."""
    tree = ast.parse(HOST.read_text(encoding="utf-8"), feature_version=(3, 8))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} <= sys.stdlib_module_names | {"numpy"}
