"""Faults on command: what is asked for wrongly is said, what stands strikes as often as it was asked to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot.emulator.faults import KINDS, Faults, garble, parse
from robot.emulator.servo import Packet, encode, split
from vlrl.types import UserError

ANSWER = encode(Packet(3, 0, b"\x12\x08"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_can_be_asked_for_with_its_name_alone(kind):
    """The table in the manual would promise one that needs more."""
    fault = parse({"kind": kind})
    assert fault.kind == kind and fault.servo is None and fault.count is None
    assert KINDS[kind].summary and (KINDS[kind].amount is None) == (not KINDS[kind].unit)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "unknown kind None"),
        ({"kind": "lat"}, "unknown kind 'lat'"),
        ({"kind": "late", "bits": 3}, "must be of count, probability, seconds, servo, arm, ms"),
        ({"kind": "late", "ms": -1}, "ms -1"),
        ({"kind": "late", "ms": float("nan")}, "ms nan"),
        ({"kind": "drop", "count": 1.5}, "count 1.5"),
        ({"kind": "drop", "count": True}, "count True"),
        ({"kind": "drop", "probability": 2}, "probability 2"),
        ({"kind": "dead", "servo": "elbow"}, "servo 'elbow'"),
        ({"kind": "dead", "count": 1}, "unknown option 'count'"),
        ({"kind": "freeze", "servo": "gripper"}, "unknown option 'servo'"),
        ({"kind": "silent", "arm": "third"}, "arm 'third'"),
    ],
)
def test_a_wrong_fault_is_named(options, said):
    """A test would pass because its fault never happened."""
    with pytest.raises(UserError, match=said) as error:
        parse(options)
    assert "\n" not in str(error.value)


@given(st.integers(1, 5), st.integers(0, 9))
def test_a_count_is_kept(count, tries):
    """One late packet and two are different tests."""
    faults = Faults()
    faults.add(parse({"kind": "drop", "count": count, "servo": "gripper"}))
    assert faults.strike("drop", "elbow_flex", "follower") is None
    assert faults.strike("drop", "gripper", "leader") is None
    struck = [faults.strike("drop", "gripper", "follower") is not None for _ in range(tries)]
    assert sum(struck) == min(count, tries)
    assert faults.any == (tries < count)


def test_chance_strikes_as_often_as_it_should():
    """A lossy bus would be a dead one."""
    faults = Faults(seed=1)
    faults.add(parse({"kind": "drop", "probability": 0.3}))
    assert 250 < sum(faults.strike("drop", "gripper", "follower") is not None for _ in range(1000)) < 350


def test_a_fault_ends_with_its_time_or_when_cleared():
    """The next test would meet the last one's fault."""
    faults = Faults()
    faults.add(parse({"kind": "silent", "seconds": 0}))
    assert faults.standing("silent") is None and faults.all() == []
    faults.add(parse({"kind": "silent"}))
    faults.add(parse({"kind": "drop"}))
    assert [each.kind for each in faults.clear("drop")] == ["drop"] and faults.standing("silent")
    faults.clear()
    assert not faults.any


@given(st.integers(1, 16))
def test_flipped_bits_are_no_answer(bits):
    """A garbled answer that passes its check would be another fault than the one asked for."""
    faults = Faults(seed=bits)
    faults.add(parse({"kind": "corrupt", "bits": bits}))
    piece = garble(faults, "follower", "gripper", ANSWER)
    assert piece.data != ANSWER and len(piece.data) == len(ANSWER)
    assert bits > 1 or split(piece.data)[0] == []


def test_each_fault_of_packets_shows_in_the_bytes():
    """A fault that changes nothing tests nothing."""

    def garbled(kind, **options):
        faults = Faults()
        faults.add(parse({"kind": kind, **options}))
        return garble(faults, "follower", "gripper", ANSWER)

    assert garbled("drop") is None
    assert garbled("late", ms=80).delay == 0.08 and garbled("late").data == ANSWER
    assert garbled("duplicate").data == ANSWER * 2
    assert garbled("short", bytes=3).data == ANSWER[:-3]
    assert garbled("noise", bytes=5).data[5:] == ANSWER
    assert garbled("stuck").data == ANSWER
