"""Who drives when a person takes over, tick by tick: rest, wait for the hand, follow, hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot.deploy.session import RAMP_S, Takeover
from robot.deploy.teleop import check, make_teleoperator
from robot.types import Channel, RobotState, TickRecord
from vlrl.types import UserError

ARM = (Channel("pan.pos", "deg"), Channel("gripper.pos", "%"), Channel("wheel.vel", "deg/s", "speed"))
NEAR, HZ = np.array([15.0, 100.0, np.inf]), 10.0


class Hand:
    """A teleoperator that says what the test wants."""

    trouble = "unplugged"

    def __init__(self, *pose):
        self.pose = np.float32(pose) if pose else None

    def target(self):
        return self.pose


def played(takeover, start, ticks, speed=0.0):
    """A robot that does at once as it is told, from rest -> what it was sent, float32 [ticks, A], and the labels."""
    here, sent, labels = np.float32(start), [], []
    for number in range(ticks):
        asked = takeover.target(TickRecord(number, RobotState(0.0, here, here), None, here, "hold", 0.0, -1))
        here = here * np.float32([1, 1, 0]) if asked is None else asked
        told = TickRecord(
            number + 1, RobotState(0.0, here, here), asked, here, "hold" if asked is None else "person", 0.0, -1
        )
        labels.append(takeover.mark_waiting(told).source)
        sent.append(here)
    return np.array(sent), labels


@settings(deadline=None)
@given(off=st.floats(-15, 15), grip=st.floats(-50, 50))
def test_a_hand_that_is_near_takes_over_without_a_jump(off, grip) -> None:
    """Whatever the hand and the robot differ by, the first target is where the robot is."""
    hand = Hand(30 + off, 50 + grip, 20)
    takeover = Takeover(hand, ARM, NEAR, HZ)
    takeover.turn(True)
    sent, labels = played(takeover, [30, 50, 0], 20)
    steps = np.abs(np.diff(np.vstack([[30, 50, 0], sent]), axis=0))
    assert (steps <= np.abs([off, grip, 20]) / (RAMP_S * HZ) + 1e-3).all()
    assert takeover.follows and sent[-1] == pytest.approx(hand.pose) and "person" in labels


def test_a_hand_that_is_far_moves_nothing() -> None:
    """The arm must not swing to wherever the leader happens to lie; the person is told where to bring it."""
    hand = Hand(70, 50, 0)
    takeover = Takeover(hand, ARM, NEAR, HZ)
    takeover.turn(True)
    sent, labels = played(takeover, [30, 50, 0], 100)
    assert (sent == [30, 50, 0]).all() and set(labels) == {"hold"}
    assert "pan.pos is +40 deg off" in takeover.message
    target = takeover.target(TickRecord(100, RobotState(0.0, sent[-1], sent[-1]), None, sent[-1], "hold", 0.0, -1))
    assert target.tolist() == [30, 50, 0]  # it is held on purpose, which is no fault of the policy's
    hand.pose = np.float32([35, 50, 0])
    sent, _ = played(takeover, [30, 50, 0], 20)
    assert takeover.follows and sent[-1].tolist() == [35, 50, 0]


def test_a_robot_that_moves_comes_to_rest_first() -> None:
    """Waiting for the hand must not send it back to where it was when the key was pressed."""
    takeover = Takeover(Hand(90, 50, 0), ARM, NEAR, HZ)
    takeover.turn(True)
    for number, place in enumerate((10, 14, 16, 17, 17)):
        sent = np.float32([place, 50, 5])
        target = takeover.target(TickRecord(number, RobotState(0.0, sent, sent), None, sent, "hold", 0.0, -1))
        assert (target is None) == (number < 4)
    assert target.tolist() == [17, 50, 0]  # wheels stand


def test_a_hand_that_is_lost_is_waited_for_anew() -> None:
    """A leader that was unplugged lies somewhere else when it is back; the policy must not step in by itself."""
    hand = Hand(30, 50, 0)
    takeover = Takeover(hand, ARM, NEAR, HZ)
    takeover.turn(True)
    played(takeover, [30, 50, 0], 10)
    assert takeover.follows
    hand.pose = None
    _, labels = played(takeover, [30, 50, 0], 10)
    assert takeover.taken and takeover.lost == "unplugged" and set(labels) == {"hold"} and not takeover.follows
    hand.pose = np.float32([90, 50, 0])
    sent, _ = played(takeover, [30, 50, 0], 10)
    assert takeover.taken and not takeover.lost and not takeover.follows and (sent == [30, 50, 0]).all()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [("so101_leaderr", {}, "so101_leaderr"), ("so101_leader", {}, "port"), ("keyboard", {}, "pan.pos")],
)
def test_a_device_that_cannot_drive_this_robot(kind, options, said) -> None:
    """Told before anything moves, not by a key that does nothing when it is needed."""
    with pytest.raises(UserError, match=said) as raised:
        check(make_teleoperator(kind, options), kind, [channel.name for channel in ARM])
    assert "\n" not in str(raised.value)
