"""What every robot promises. A new one is a line in MAKERS, or in INSTALLED where it needs a package."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_robots import Slide

from robot.env import look
from robot.sim.gym import Aloha, GymRobot, Hil, PushT
from robot.sim.metaworld import MetaWorldRobot
from robot.sim.remote import Remote
from robot.sim.robosuite import RobosuiteRobot
from robot.sim.so101 import So101
from robot.sim.tabletop import Tabletop
from robot.types import BadControlError

MAKERS = {
    "slide": Slide,
    "slide camera": lambda: Slide(camera=True),
    "tabletop reach": lambda: Tabletop(job="reach"),
    "tabletop push": lambda: Tabletop(job="push"),
    "tabletop push camera": lambda: Tabletop(job="push", camera=(48, 32)),
    "tabletop pick": lambda: Tabletop(job="pick"),
    "so101 camera": lambda: So101(camera=(48, 32), views=("front", "top")),
    "so101 position": lambda: So101(drive="position"),
}
TOY = {"python": sys.executable, "make": f"{Path(__file__).with_name('toy_simulators.py')}:make", "images": ["render"]}
INSTALLED = {  # the package that it needs, which is not imported here: it would settle how MuJoCo renders
    "gym pendulum": ("gymnasium", lambda: GymRobot(id="Pendulum-v1", instruction="Swing it up.", success=None)),
    "remote": ("gymnasium", lambda: Remote(**TOY)),
    "remote with snapshots": ("gymnasium", lambda: Remote(**TOY, options={"kind": "saved"})),
    "pusht pose": ("gym_pusht", PushT),
    "pusht keypoints camera": ("gym_pusht", lambda: PushT(state="keypoints", camera=(48, 48))),
    "aloha transfer_cube": ("gym_aloha", Aloha),
    "aloha insertion": ("gym_aloha", lambda: Aloha(task="insertion")),
    "hil pick_cube": ("gym_hil", Hil),
    "hil arrange_boxes": ("gym_hil", lambda: Hil(task="arrange_boxes")),
    "metaworld reach": ("metaworld", MetaWorldRobot),
    "metaworld pick-place shaped": ("metaworld", lambda: MetaWorldRobot(task="pick-place-v3", shaped=True)),
    "metaworld door-open": ("metaworld", lambda: MetaWorldRobot(task="door-open-v3")),
    "robosuite Lift": ("robosuite", RobosuiteRobot),
}
SLOW = ("robosuite Lift", "hil pick_cube", "hil arrange_boxes")  # a tenth of a second for a scene, or for a few ticks
SEEDS = (0, 7, 20_000)


def robots():
    """Every robot, those whose package is missing marked to be skipped."""
    for name, maker in MAKERS.items():
        yield pytest.param((name, maker), id=name)
    for name, (module, maker) in INSTALLED.items():
        missing = pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")
        yield pytest.param((name, maker), id=name, marks=missing)


@pytest.fixture(params=robots())
def make(request):
    """Makes robots that are closed at the end."""
    made = []

    name, maker = request.param

    def robot():
        made.append(maker())
        return made[-1]

    robot.slow = name in SLOW
    yield robot
    for each in made:
        each.close()


def run(robot, controls, bits):
    """What is seen, sent and said, tick by tick."""
    seen = [bits(robot.get_observation())]
    for control in controls:
        sent = robot.send_action(control)
        seen += [sent.tobytes(), robot.status(), bits(robot.get_observation())]
    return seen


def test_controls_are_named_and_limited(make):
    """A policy could not know how many numbers to give, in which unit and how large."""
    robot = make()
    assert robot.hz > 0
    assert len({len(robot.controls.names), len(robot.controls.units), len(robot.controls)}) == 1
    assert robot.controls.low.dtype == robot.controls.high.dtype == np.float32


def test_observations_keep_their_form(make):
    """A policy's first layer has one size: a state that grows, or a camera that comes and goes, would break it."""
    robot, forms = make(), set()
    for seed in SEEDS:
        robot.reset(seed)
        shown, repeats = look(robot)
        forms.add((shown.state.shape, shown.state.dtype, tuple(image.size for image in shown.images)))
        assert shown.text and repeats == 0
    assert len(forms) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_home_is_the_same_whatever_came_before(make, controls, bits, seed):
    """Two policies compared on one seed would not have met the same scene."""
    first, second = make(), make()
    first.reset(seed)
    second.reset(seed + 1)
    run(second, controls(second, 1, 12), bits)
    second.reset(seed)
    assert bits(first.get_observation()) == bits(second.get_observation())
    following = controls(first, 2, 12)
    assert run(first, following, bits) == run(second, following, bits)


def test_a_group_starts_and_stays_equal(make, controls, bits):
    """The advantage of an action would be that of its start: the group would compare different scenes."""
    fresh, moved, homed = make(), make(), make()
    moved.reset(2)
    run(moved, controls(moved, 0, 9), bits)
    for seed in (20_001, 5, 20_001):
        homed.reset(seed)
    following = controls(fresh, 3, 20)
    futures = []
    for each in (fresh, moved, homed):
        each.reset(20_001)
        futures.append(run(each, following, bits))
    assert futures[0] == futures[1] == futures[2]


def test_scenes_differ(make, bits):
    """A policy that learned one scene by heart would score on all."""
    robot = make()
    assert len({(robot.reset(seed), bits(robot.get_observation()))[1] for seed in range(10)}) == 10


@pytest.mark.parametrize("before", [0, 15])
def test_a_snapshot_is_exact(make, controls, bits, before):
    """A group that starts from a snapshot would compare actions on different futures."""
    robot, other = make(), make()
    assert robot.has_snapshots == (isinstance(robot, Remote) or not isinstance(robot, GymRobot))
    if not robot.has_snapshots:
        pytest.skip("has no snapshots")
    robot.reset(3)
    run(robot, controls(robot, 4, before), bits)
    snapshot = robot.snapshot()
    following = controls(robot, 5, 25)
    expected = run(robot, following, bits)
    other.reset(9)
    run(other, controls(other, 6, 10), bits)
    for each in (robot, other, make()):
        each.restore(snapshot)
        assert run(each, following, bits) == expected


def test_limits_are_kept(make):
    """A real arm would be driven into its stops or the table."""
    robot = make()
    robot.reset(1)
    for direction in (1e6, -1e6) * 2:
        for _ in range(30):
            sent = robot.send_action(np.full(len(robot.controls), direction, np.float32))
            assert sent.dtype == np.float32 and sent.shape == robot.controls.low.shape
            assert (robot.controls.low <= sent).all() and (sent <= robot.controls.high).all()


@pytest.mark.parametrize("bad", ["nan", "inf", "short", "long", "text"])
def test_what_cannot_be_carried_out_moves_nothing(make, bits, bad):
    """One NaN in a motor's register cannot be taken back."""
    robot = make()
    n = len(robot.controls)
    wrong = {"short": np.zeros(n - 1), "long": np.zeros((2, n)), "text": np.array(["left"] * n)}
    robot.reset(1)
    before = bits(robot.get_observation())
    with pytest.raises(BadControlError):
        robot.send_action(wrong.get(bad, np.full(n, float(bad) if bad in ("nan", "inf") else 0.0)))
    assert bits(robot.get_observation()) == before


def test_nothing_is_won_at_the_start(make):
    """A success that no action brought about would be counted for the policy."""
    robot = make()
    for seed in range(10 if make.slow else 100):
        robot.reset(seed)
        signals = robot.status()
        assert not signals.success and signals.failure is signals.cut is None


def test_closing_is_always_possible(make):
    """Whatever ends a run closes the robot on its way out: an error there would hide the first one."""
    make().close()
    robot = make()
    robot.reset(0)
    robot.get_observation()
    robot.close()
    robot.close()
