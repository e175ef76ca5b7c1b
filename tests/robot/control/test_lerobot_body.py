"""lerobot's own drivers as bodies: on the emulator's bus, and made without one."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from robot.control.process import Motion
from robot.drivers.lerobot import make_driver
from robot.emulator.control import Emulator
from robot.safety.limits import Safety, Stale
from vlrl.types import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of lerobot's dependencies, when first imported
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


@pytest.fixture(scope="module")
def emulator():
    with Emulator() as running:
        yield running


@pytest.fixture
def options(emulator, tmp_path):
    emulator.clear()
    emulator.scene(0)
    emulator.calibration(tmp_path, "arm")
    return {"type": "so101_follower", "port": emulator.port, "id": "arm", "calibration_dir": str(tmp_path)}


@pytest.fixture
def arm(options):
    """Connected."""
    body = make_driver("lerobot", options)
    body.connect()
    yield body
    body.rest("off")
    body.close()


def true_degrees(emulator):
    return np.array([emulator.truth()["qpos_deg"][joint] for joint in JOINTS])


def read(arm):
    """A reading, from a machine that may be too busy to bring an answer in time."""
    for _ in range(20):
        with contextlib.suppress(ConnectionError):
            return arm.sense()
    return arm.sense()


def settle(arm, target, ticks=40):
    """Sends a target for a while; the last reading."""
    for _ in range(ticks):
        arm.send(np.asarray(target, np.float32))
        sensed = read(arm)
        time.sleep(1 / 60)
    return sensed


def test_says_what_lerobot_says_with_units(arm):
    """A policy is matched to the robot by these names and units."""
    assert arm.names == tuple(each.name for each in arm.channels) == tuple(f"{joint}.pos" for joint in JOINTS)
    assert [each.unit for each in arm.channels] == ["deg"] * 5 + ["%"]
    assert set(arm.ranges) == set(arm.names) and arm.ranges["gripper.pos"] == pytest.approx((0, 100), abs=0.1)
    low, high = arm.ranges["shoulder_pan.pos"]
    assert -180 < low < -60 and 60 < high < 180


def test_torque_comes_on_where_the_arm_is(emulator, arm):
    """A servo goes to its goal: an old one, of before a hand moved the arm, would make it leap."""
    assert arm.rest("off") == []
    bus = arm._buses[""]
    here = bus.read("Present_Position", "shoulder_pan", normalize=False, num_retry=9)
    bus.write("Goal_Position", "shoulder_pan", here + 600, normalize=False, num_retry=9)  # 53 degrees away
    before = true_degrees(emulator)[0]
    bus.enable_torque(num_retry=9)
    time.sleep(0.5)
    assert abs(true_degrees(emulator)[0] - before) < 3
    assert emulator.truth()["torque"]["shoulder_pan"]


def test_goes_where_it_is_sent(emulator, arm):
    """Through lerobot's send_action and the servos' own registers."""
    target = read(arm).measured + np.array([8, 0, -5, 0, 5, 20], np.float32)
    assert arm.send(target).tolist() == pytest.approx(target.tolist())
    measured = settle(arm, target).measured
    assert np.abs(measured - true_degrees(emulator)).max() < 1
    assert np.abs(measured - target).max() < 4


def test_a_late_reply_does_not_make_the_arm_lag_behind_for_ever(emulator, arm):
    """With lerobot alone, each late reply makes all later readings one cycle older, without an error."""
    start = read(arm).measured
    for _ in range(3):
        emulator.fault("late", ms=80, count=1)
        with pytest.raises(ConnectionError):
            arm.sense()
        time.sleep(0.15)
    for step in range(40):
        arm.send(start + np.array([step, 0, 0, 0, 0, 0], np.float32))
        time.sleep(1 / 60)
        sensed = read(arm)
    assert abs(sensed.measured[0] - true_degrees(emulator)[0]) < 4


def test_an_exception_in_the_middle_of_a_packet_does_not_block_the_bus(arm):
    """The SDK then takes the port to be in use: no servo could be read, moved or switched off any more."""
    arm._buses[""].port_handler.is_using = True
    read(arm)
    assert arm.rest("off") == []


def test_time_outs_do_not_hang_on_the_wall_clock(arm, monkeypatch):
    """A clock that is set while the arm moves would end, or never end, the wait for a reply."""
    monkeypatch.setattr("scservo_sdk.port_handler.time.time", lambda: 0.0)
    port = arm._buses[""].port_handler
    port.setPacketTimeoutMillis(1.0)
    time.sleep(0.01)
    assert port.isPacketTimeout()


def test_health_is_asked_for_one_reading_at_a_time(arm):
    """A poll of all servos at once would cost ticks."""
    for _ in range(31):
        arm._last_request = 0.0
        arm.spare(1.0)
    health = read(arm).health
    assert {name.rpartition(".")[2] for name in health} >= {
        "torque",
        "temperature",
        "voltage",
        "load",
        "current",
        "error",
    }
    assert health["shoulder_pan.torque"] == 1 and 10 < health["gripper.temperature"] < 60
    arm.spare(0.0)  # no time, no question


@pytest.mark.parametrize("joint", [JOINTS[0], JOINTS[2]])
def test_torque_off_goes_on_after_a_servo_that_does_not_answer(emulator, arm, joint):
    """lerobot's own disconnect leaves the servos behind the first bad one under torque."""
    emulator.fault("dead", servo=joint)
    problems = arm.rest("off")
    assert [problem.split(":")[0] for problem in problems] == [joint]
    torque = emulator.truth()["torque"]
    assert {name for name in JOINTS if torque[name]} <= {joint}


def test_torque_off_of_an_overloaded_servo_is_no_problem(emulator, arm):
    """It answers with an error bit and has let go all the same."""
    emulator.fault("overload", servo="elbow_flex")
    assert arm.rest("off") == []
    assert not any(emulator.truth()["torque"].values())


def test_hold_keeps_it_where_it_is(emulator, arm):
    """In the middle of a move, the goal is elsewhere."""
    start = read(arm).measured
    arm.send(start + np.array([60, 0, 0, 0, 0, 0], np.float32))
    time.sleep(0.1)
    assert arm.rest("hold") == []
    stopped = true_degrees(emulator)[0]
    time.sleep(0.5)
    assert abs(true_degrees(emulator)[0] - stopped) < 8 < start[0] + 60 - stopped
    assert all(emulator.truth()["torque"].values())


def test_closing_does_not_change_whether_it_holds(emulator, options):
    """An arm that shall hold its load must not drop it as the program ends."""
    body = make_driver("lerobot", options)
    body.connect()
    assert body.rest("hold") == []
    body.close()
    body.close()
    assert all(emulator.truth()["torque"].values())
    assert make_driver("lerobot", options).rest("off") == []  # not connected: it opens the port itself
    assert not any(emulator.truth()["torque"].values())


def test_an_arm_without_calibration_is_refused_with_the_command(options, tmp_path):
    """lerobot would ask at the keyboard, in a process that has none."""
    with pytest.raises(UserError, match=r"lerobot-calibrate --robot\.type=so101_follower --robot\.port=") as raised:
        make_driver("lerobot", options | {"id": "another"}).connect()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"type": "so101_folower"}, "did you mean 'so101_follower'"),
        ({"prot": "x"}, "did you mean 'port'"),
        ({"cameras": 3}, "cameras"),
        ({"drive": "sped"}, "position or speed"),
        ({"hz": 0}, "ticks a second"),
    ],
)
def test_a_mistake_is_one_line(wrong, problem):
    """A traceback of a configuration library says nothing to who owns the robot."""
    with pytest.raises(UserError, match=problem) as raised:
        make_driver("lerobot", {"type": "so101_follower", "port": "/dev/null"} | wrong)
    assert "\n" not in str(raised.value)


def test_a_port_that_is_not_there_is_one_line():
    """The cable."""
    body = make_driver("lerobot", {"type": "so101_follower", "port": "/dev/not-there"})
    with pytest.raises(UserError, match="cannot connect to so101_follower"):
        body.connect()
    assert len(body.rest("off")) == 1
    body.close()


@pytest.mark.parametrize(
    ("options", "prefixes", "last"),
    [
        ({"type": "bi_so_follower", "left_arm_config": {"port": "a"}, "right_arm_config": {"port": "b"}},
         ["left_", "right_"], ("right_gripper.pos", "%", "position")),
        ({"type": "koch_follower", "port": "a"}, [""], ("gripper.pos", "%", "position")),
        ({"type": "lekiwi", "port": "a"}, [""], ("theta.vel", "deg/s", "speed")),
    ],
)  # fmt: skip
def test_other_robots_of_lerobot_are_guarded_too(options, prefixes, last):
    """Both arms of a bimanual robot, Dynamixel servos, and a base whose wheels are held by speed 0."""
    body = make_driver("lerobot", options | {"id": "x"})
    assert list(body._buses) == prefixes and not body._pictures
    assert all("guard" in bus.port_handler.clearPort.__qualname__ for bus in body._buses.values())
    assert (body.channels[-1].name, body.channels[-1].unit, body.channels[-1].kind) == last


def test_a_killed_motion_process_leaves_the_arm_without_torque(emulator, options):
    """SIGKILL, a crash or a lack of memory: lerobot alone leaves the arm at its last goal for ever."""
    motion = Motion({"name": "lerobot", **options}, Safety(silence_s=60.0, stale=Stale(stop_s=60.0)), patience=120)
    motion.begin(0)
    assert all(emulator.truth()["torque"].values())
    killed = time.monotonic()
    os.kill(motion.pid, signal.SIGKILL)
    until = killed + 20
    while any(emulator.truth()["torque"].values()):
        assert time.monotonic() < until
    off = min(each["t"] for each in emulator.log(killed) if each["what"] == "torque")
    print(f"torque off {1e3 * (off - killed):.0f} ms after the kill")
    assert off - killed < 30 / motion.info.hz  # 3 ticks on a machine that has nothing else to do
    assert motion.close().code == -9
