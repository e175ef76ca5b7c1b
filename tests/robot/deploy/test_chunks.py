"""When a chunk is asked for, and on which ticks its actions fall."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot.control.messages import Timeline
from robot.deploy.config import PolicySource
from robot.deploy.session import ChunkRequest, Chunks
from robot.serving.client import ChunkAnswer
from robot.types import Channel, RobotState, TickRecord
from vlrl.serving.protocol import PolicySpec
from vlrl.system.clock import boottime

CHANNEL = (Channel("x", "m/s", "speed"),)


def chunks(mode, hz=30.0, tick_hz=30.0, **options):
    return Chunks(PolicySource(url="ws://a", mode=mode, **options), PolicySpec((), (), (), hz, 10), tick_hz)


def answer(seq, first, count=10):
    now = boottime()
    actions = np.arange(first, first + count, dtype=np.float32)[:, None]
    return ChunkAnswer(seq, actions, 30.0, now, now, 0.0, 0.0, "1", 10.0)


def ask(made, seq, tick):
    made.expect(seq, ChunkRequest(tick, boottime(), 1))


def ticked(tick, seq):
    return TickRecord(tick, RobotState(0.0, np.zeros(1), np.zeros(1)), None, None, "policy", 0.0, seq)


def play(made, timeline, delay, until):
    """Runs ticks with answers that come `delay` ticks late -> what was due at each; action values are their ticks."""
    due, open_at, seq = [], {}, 0
    for tick in range(until):
        found = timeline.at(tick, boottime())
        due.append(None if found is None else float(found.action[0]))
        made.saw(ticked(tick, -1 if found is None else found.seq))
        if seq in open_at and tick >= open_at[seq] + delay:
            plan = made.plan(answer(seq, open_at.pop(seq) + 1), tick)
            timeline.add(plan, tick + 1)
            seq += 1
        elif seq not in open_at and made.wants(tick, boottime()):
            ask(made, seq, tick)
            open_at[seq] = tick
    return due


@settings(deadline=None)
@given(delay=st.integers(0, 8), execute=st.one_of(st.none(), st.integers(1, 5)))
def test_asynchronous_actions_fall_on_their_own_ticks(delay, execute) -> None:
    """An action that comes later than it was meant for is the wrong one: late ones are dropped, none is shifted."""
    due = play(chunks("async", execute=execute), Timeline(CHANNEL, 30.0), delay, 60)
    begun = next(i for i, value in enumerate(due) if value is not None)
    assert begun <= delay + 2
    assert all(value == tick for tick, value in enumerate(due) if value is not None)
    if max(delay + 1, execute or 0) + max(delay, 1) <= 10:  # the next chunk begins before this one is over
        assert None not in due[begun:]


@settings(deadline=None)
@given(delay=st.integers(0, 8), execute=st.integers(1, 10))
def test_synchronous_chunks_are_executed_whole_and_in_order(delay, execute) -> None:
    """Policies that were trained on chunks count on all of a chunk being executed."""
    due = play(chunks("sync", execute=execute), Timeline(CHANNEL, 30.0), delay, 80)
    values = [value for value in due if value is not None]
    runs = [values[i : i + execute] for i in range(0, len(values), execute)]
    assert len(runs) >= 3
    for run in runs[:-1]:
        assert run == [run[0] + i for i in range(execute)]
    changes = sum((a is None) != (b is None) for a, b in pairwise(due))
    assert changes >= 2 * len(runs) - 2  # it holds while the policy thinks


def test_latency_is_of_late() -> None:
    """One slow start must not delay a whole session, which a maximum over all time would."""
    made = chunks("rtc")
    for seq, seconds in enumerate([5.0] + [0.1] * 150):
        made.expect(seq, ChunkRequest(seq, boottime() - seconds, 1))
        assert made.plan(answer(seq, 0), seq) is not None
        if seq == 0:
            assert made.latency() == pytest.approx(5.0, rel=0.1)
    assert made.latency() == pytest.approx(0.1, rel=0.1)


def test_prefix_is_what_is_still_to_come() -> None:
    """In-painting joins the new chunk to the old one at the observation's next tick."""
    made = chunks("rtc", lead=2)
    assert made.prefix(0) == (None, 0)
    ask(made, 0, 4)
    made.plan(answer(0, 5), 6)
    prefix, delay = made.prefix(7)
    assert prefix[:, 0].tolist() == [8, 9, 10, 11, 12, 13, 14] and delay == 2
    assert made.prefix(14) == (None, 0)


def test_two_rates() -> None:
    """A motion process at 100 Hz and a policy at 25 Hz: four ticks to an action."""
    made = chunks("sync", hz=25.0, tick_hz=100.0, execute=5)
    ask(made, 0, 10)
    plan = made.plan(answer(0, 0), 10)
    made.saw(ticked(12, plan.seq))
    wanted = [tick for tick in range(12, 60) if made.wants(tick, boottime())]
    assert len(plan.actions) == 5 and wanted[0] == 32


def test_answers_that_nobody_waits_for() -> None:
    """After a hold, a lost server or a new episode, an old chunk must not move the robot."""
    made = chunks("async")
    ask(made, 7, 3)
    hold = made.nothing(1)
    assert hold.expires < boottime() and made.plan(answer(7, 4), 5) is None
    assert made.wants(6, boottime())


def test_an_answer_that_never_comes() -> None:
    """A dropped answer must not end the asking."""
    made = chunks("async")
    made.expect(0, ChunkRequest(3, boottime(), 1))
    assert not made.wants(4, boottime())
    assert made.wants(90, boottime() + 2.5)
