"""The motion process: what is asked is what is done, and whoever dies, the robot is left safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from robot.control import process
from robot.control.messages import ActionPlan
from robot.control.process import Motion
from robot.safety.limits import ChannelLimits, DeadMan, Safety, Stale
from robot.types import RobotError
from vlrl.system.clock import boottime
from vlrl.types import UserError

TABLETOP = {"name": "simulated", "robot": "tabletop", "job": "reach", "camera": [32, 24]}
FAST = Safety(default=ChannelLimits(low=-0.4, high=0.4, speed=0.4, acceleration=1000.0), silence_s=60.0)
PATIENT = Safety(silence_s=60.0, stale=Stale(hold_s=60.0, stop_s=60.0))
LATER = 1e9


def plan(actions, first=None, seq=0, hz=20.0, expires=LATER):
    return ActionPlan(seq, first, np.asarray(actions, np.float32), hz, expires, boottime())


def noted_body(noted, **options):
    return {"name": "odd_bodies:Noted", "log": noted.file, **options}


@pytest.fixture(scope="module")
def tabletop():
    """One process for the tests that leave it in order."""
    motion = Motion(TABLETOP, FAST)
    yield motion
    assert motion.close().code in (0, 3)


@pytest.fixture
def start():
    """`start(body, safety)`: a motion process that is ended after the test."""
    made = []

    def begin(body, safety=PATIENT):
        made.append(Motion(body, safety))
        return made[-1]

    yield begin
    for motion in made:
        motion.close()


def test_says_what_it_drives(tabletop):
    """The loop checks a policy's features against it before anything moves."""
    about = tabletop.info
    assert (about.hz, about.images, len(about.names)) == (20.0, {"camera1": (24, 32)}, 12)
    assert about.controls == about.channels and about.channels[0].kind == "speed"


def test_pictures_that_nobody_reads_do_not_fill_the_memory(tabletop, monkeypatch):
    """Two cameras would take gigabytes while the loop is busy elsewhere."""
    monkeypatch.setattr(process, "SEEN", 5)
    now = tabletop.begin(3).tick
    tabletop.ticks()
    tabletop.wait(now + 20, 10)
    ticks = tabletop.ticks()
    assert [bool(each.sensed.images) for each in ticks[-5:]] == [True] * 5
    assert not any(each.sensed.images for each in ticks[:-5]) and tabletop.dark >= len(ticks) - 5


def test_a_plan_is_carried_out_tick_by_tick(tabletop):
    """One action left out, doubled or moved by a tick, and the policy's motion is another one."""
    now = tabletop.begin(3).tick
    tabletop.ticks()
    actions = np.random.default_rng(0).uniform(-0.39, 0.39, (12, 3)).astype(np.float32)
    tabletop.plan(plan(actions, first=now + 6))
    tabletop.wait(now + 25, 10)
    ticks = tabletop.ticks()
    assert [each.tick for each in ticks] == list(range(ticks[0].tick, ticks[0].tick + len(ticks)))
    done = [each for each in ticks if each.source == "policy"]
    assert [each.tick for each in done] == list(range(now + 6, now + 18))
    np.testing.assert_array_equal([each.requested for each in done], actions)
    np.testing.assert_array_equal([each.sent for each in done], actions)
    after = [each for each in ticks if each.tick >= now + 20]
    assert {each.source for each in after} == {"hold"} and not np.any([each.sent for each in after])


def test_begin_makes_the_scene_of_its_seed_and_forgets_the_plan(tabletop):
    """Paired trials compare scenes; and an action left from the last episode must not open the next."""
    first = tabletop.begin(7)
    tabletop.plan(plan(np.full((40, 3), 0.2)))
    tabletop.wait(first.tick + 5, 10)
    other, again = tabletop.begin(8), tabletop.begin(7)
    assert not np.array_equal(other.sensed.state, first.sensed.state)
    np.testing.assert_array_equal(again.sensed.state, first.sensed.state)
    np.testing.assert_array_equal(again.sensed.images["camera1"], first.sensed.images["camera1"])
    assert again.source == "hold" and tabletop.task.startswith("Move the hand")


def test_a_plan_of_nan_is_held(tabletop):
    """A policy that diverged must not reach the servos."""
    now = tabletop.begin(1).tick
    tabletop.ticks()
    tabletop.plan(plan(np.full((5, 3), np.nan), first=now + 3))
    tabletop.wait(now + 10, 10)
    due = [each for each in tabletop.ticks() if now + 3 <= each.tick < now + 8]
    assert all("finite" in {event.stage for event in each.events} for each in due) and len(due) == 5
    assert not np.any([each.sent for each in due])


def test_a_person_comes_before_the_plan_and_gives_back(tabletop):
    """Who takes the leader arm must not fight the policy."""
    now = tabletop.begin(2).tick
    tabletop.ticks()
    tabletop.plan(plan(np.full((200, 3), 0.1), first=now + 1))
    tabletop.hand(np.full(3, -0.2), 0.2)
    tabletop.wait(now + 14, 10)
    sources = [each.source for each in tabletop.ticks() if each.tick > now + 1]
    assert "person" in sources and sources[-1] == "policy" and sources.index("policy") > sources.index("person")


def test_what_does_not_fit_the_robot_is_refused_at_once(tabletop):
    """In the motion process it would be a fault of the robot."""
    with pytest.raises(ValueError, match="2 numbers for 3 controls"):
        tabletop.plan(plan(np.zeros((4, 2))))
    with pytest.raises(ValueError, match="for 3 channels"):
        tabletop.hand(np.zeros(4), 1.0)


def test_a_stop_holds_until_it_is_taken_back(tabletop):
    """The next chunk of the policy would lift an operator's stop."""
    now = tabletop.begin(4).tick
    tabletop.stop("the operator said so")
    tabletop.plan(plan(np.full((200, 3), 0.1)))
    ticked = tabletop.wait(now + 6, 10)
    assert "the operator said so" in ticked.stopped and not ticked.sent.any()
    assert tabletop.begin(4).stopped
    tabletop.rearm()
    tabletop.plan(plan(np.full((200, 3), 0.1), seq=1))
    ticked = tabletop.wait(tabletop.latest().tick + 6, 10)
    assert not ticked.stopped and ticked.source == "policy"


def test_a_hold_that_lasts_becomes_a_stop_but_not_between_episodes(start):
    """A dead server must end the episode; a person who sets up the next scene must not be stopped by it."""
    motion = start(TABLETOP, Safety(silence_s=60.0, stale=Stale(hold_s=0.2, stop_s=0.4)))
    now = motion.begin(0).tick
    motion.idle()
    assert not motion.wait(now + 20, 10).stopped
    now = motion.begin(0).tick
    assert "no action is due" in motion.wait(now + 20, 10).stopped
    assert motion.close().code == 3


def test_silence_of_the_loop_holds_and_then_stops(start, noted):
    """A loop that hangs still has its process and its pipe; its last plan must not go on for ever."""
    motion = start(noted_body(noted), Safety(silence_s=0.2, stale=Stale(stop_s=0.2)))
    now = motion.begin(0).tick
    motion.plan(plan(np.zeros((1000, 2)), hz=50.0))
    motion.wait(now + 50, 10)
    seen = [(each.source, bool(each.stopped)) for each in motion.ticks() if each.tick > now + 1]
    assert seen[0] == ("policy", False) and ("hold", False) in seen and seen[-1] == ("hold", True)
    assert "nothing was heard" in motion.latest().stopped


def test_an_emergency_stop_has_its_own_exit_code(start, noted, tmp_path):
    """The report of a trial must tell a person's stop from the governor's."""
    file = tmp_path / "stop"
    motion = start(noted_body(noted), Safety(silence_s=60.0, estop={"file": str(file)}))
    now = motion.begin(0).tick
    file.touch()
    assert "stop" in motion.wait(now + 10, 10).stopped
    motion.rearm()  # the file is still there
    assert motion.wait(motion.latest().tick + 5, 10).stopped
    assert motion.close().code == 6
    assert noted()[-2]["how"] == "off"


def test_moves_only_while_the_dead_man_is_there(start, noted):
    """Who lets go must be able to rely on it, whatever the policy sends."""
    motion = start(noted_body(noted), PATIENT.model_copy(update={"dead_man": DeadMan(key="space", within_s=0.3)}))
    now = motion.begin(0).tick
    motion.plan(plan(np.zeros((500, 2)), hz=50.0))
    assert motion.wait(now + 5, 10).source == "hold"
    motion.held()
    motion.wait(now + 60, 10)
    seen = [each.source for each in motion.ticks()]
    assert "policy" in seen and seen[-1] == "hold" and not motion.latest().stopped


def test_leaves_as_the_robot_says_when_asked_to_end(start, noted):
    """An arm that carries something must not be dropped at the end of an ordinary run."""
    motion = start(noted_body(noted))
    motion.begin(5)
    assert motion.close() == motion.close()
    assert (motion.close().code, motion.alive, motion.fault) == (0, False, "")
    assert [each["did"] for each in noted()] == ["make", "connect", "begin", "rest", "close"]
    assert noted()[-2]["how"] == "hold"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_safely(start, noted, eventually, number, code):
    """A computer that shuts down asks by SIGTERM first."""
    motion = start(noted_body(noted))
    motion.begin(0)
    os.kill(motion.pid, number)
    eventually(lambda: not motion.alive)
    assert motion.fault == f"{number.name} came"
    assert motion.close().code == code
    assert [each["did"] for each in noted()][-2:] == ["rest", "close"]


def test_a_killed_process_is_told_and_its_guardian_makes_the_robot_safe(start, noted, eventually):
    """The arm would be under torque with nobody to supervise it."""
    motion = start(noted_body(noted))
    motion.begin(0)
    os.kill(motion.pid, signal.SIGKILL)
    eventually(lambda: not motion.alive)
    assert "signal 9" in motion.fault and motion.close().code == -9
    done = [each for each in noted() if each["did"] == "rest"]
    assert [each["how"] for each in done] == ["off"] and done[0]["pid"] != motion.pid
    with pytest.raises(RobotError, match="signal 9"):
        motion.wait(10**6, 5)
    motion.pet()  # to a process that is gone nothing can be said, and nothing is raised


def test_a_motion_is_closed_when_its_guardian_is_through(start, noted, eventually):
    """Who takes the port next would be told that it is in use, or write beside the guardian."""
    motion = start(noted_body(noted, fault="late"))
    motion.begin(0)
    os.kill(motion.pid, signal.SIGKILL)
    motion.close()
    assert [each["did"] for each in noted()][-2:] == ["rest", "close"]
    assert motion.close().code == -9  # once more is no harm


@pytest.mark.parametrize("killed", ["parent", "motion"])
def test_whoever_is_killed_the_robot_is_made_safe(noted, eventually, is_running, killed):
    """A crash of the deployment loop, or of everything that it started, must not leave the arm moving."""
    script = (
        "import sys, time, odd_bodies\n"
        "from robot.control.process import Motion\n"
        "from robot.safety.limits import Safety\n"
        f"motion = Motion({noted_body(noted)!r}, Safety(silence_s=60.0))\n"
        "motion.begin(0)\nprint(motion.pid, flush=True)\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment) as parent:  # fmt: skip
        pid = int(parent.stdout.readline())
        if killed == "motion":
            os.killpg(pid, signal.SIGKILL)  # its whole group: the guardian is in none of them
        else:
            parent.kill()
        rested = eventually(lambda: [each for each in noted() if each["did"] == "rest"])
        eventually(lambda: not is_running(pid))
        parent.kill()
    assert [each["how"] for each in rested] == ["off"]


def test_a_robot_that_stops_answering_is_held_and_given_up(start, noted, eventually):
    """Each tick without a reading is a tick in which nobody knows where the arm is."""
    motion = start(noted_body(noted, fault="raise", at=20))
    motion.begin(0)
    motion.plan(plan(np.zeros((500, 2)), hz=50.0))
    eventually(lambda: not motion.alive)
    ticks = motion.ticks()
    faulty = [each for each in ticks if any(event.stage == "bus" for event in each.events)]
    assert faulty and {each.source for each in faulty} == {"hold"} and "Input/output" in faulty[0].events[0].cause
    assert motion.close().code == 4 and "does not answer" in motion.fault
    assert noted()[-2]["how"] == "off"


def test_single_readings_that_fail_end_nothing(start, noted):
    """A bad packet now and then is a bench's every-day life."""
    motion = start(noted_body(noted, fault="flicker"))
    now = motion.begin(0).tick
    assert not motion.wait(now + 60, 10).stopped
    assert sum(event.stage == "bus" for each in motion.ticks() for event in each.events) >= 15


def test_a_reading_slower_than_a_tick_is_a_fault(start, noted, eventually):
    """A bus that blocks makes the loop slower than it says, and every speed with it."""
    motion = start(noted_body(noted, fault="slow"))
    motion.begin(0)
    eventually(lambda: not motion.alive)
    assert "a tick is 20 ms" in motion.fault and motion.close().code == 4
    assert motion.timings()[-1].overruns > 5


def test_a_hang_is_ended_by_the_guardian(start, noted, eventually):
    """A driver that never comes back keeps the process alive, so nothing but its guardian can tell."""
    motion = start(noted_body(noted, fault="hang", at=20))
    motion.begin(0)
    eventually(lambda: not motion.alive)
    assert motion.close().code == -9
    rested = eventually(lambda: [each for each in noted() if each["did"] == "rest"])
    assert rested[0]["pid"] != motion.pid


def test_readings_of_nan_hold(start, noted):
    """Nobody knows where such a robot is."""
    motion = start(noted_body(noted, fault="nan", at=30))
    now = motion.begin(0).tick
    motion.plan(plan(np.full((500, 2), 5.0), hz=50.0))
    seen = [each for each in (motion.wait(now + 60, 10), *motion.ticks()) if np.isnan(each.sensed.state).any()]
    assert seen and all(any(event.reaction in ("hold", "stop") for event in each.events) for each in seen)


def test_the_robots_own_limits_are_kept(start, noted):
    """A goal beyond a joint's end stop overloads the servo."""
    motion = start(noted_body(noted))
    now = motion.begin(0).tick
    motion.plan(plan(np.tile(np.arange(0, 90, 0.5, np.float32)[:, None], 2), hz=50.0))
    motion.wait(now + 130, 10)
    sent = np.array([each.sent for each in motion.ticks() if each.sent is not None])
    assert sent[:, 0].max() == 30.0 and sent[:, 1].max() > 40


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"name": "simulatde"}, "did you mean 'simulated'"),
        ({"name": "simulated", "robot": "tabeltop"}, "did you mean 'tabletop'"),
        ({"name": "simulated", "robot": "tabletop", "job": "dance"}, "robot.job"),
        ({"name": "odd_bodies:Noted"}, "robot.log: is required"),
        ({"name": "odd_bodies:Nothing"}, "cannot find"),
    ],
)
def test_what_a_user_can_mend_is_said_in_one_line(body, problem):
    """With a traceback of another process, nobody finds the line of the configuration."""
    with pytest.raises(UserError, match=problem) as raised:
        Motion(body, Safety())
    assert "\n" not in str(raised.value)


def test_limits_for_a_channel_that_is_not_there_are_refused(noted):
    """A limit with a misspelt name would protect nothing. The port is given back all the same."""
    with pytest.raises(UserError, match=r"safety.channels.c.pos"):
        Motion(noted_body(noted), Safety(channels={"c.pos": ChannelLimits(low=0.0)}))
    assert [each["did"] for each in noted()][-2:] == ["rest", "close"]


def test_a_robot_that_cannot_be_connected_is_left_safe(noted):
    """Half connected, some servos may be under torque already."""
    with pytest.raises(RobotError, match="connect went wrong"):
        Motion(noted_body(noted, fault="connect"), Safety())
    assert [each["did"] for each in noted()][-2:] == ["rest", "close"]


def test_an_episode_that_cannot_begin_is_told(start, noted):
    """The loop can try another scene; the process goes on."""
    motion = start(noted_body(noted, fault="begin"))
    with pytest.raises(RobotError, match="begin went wrong"):
        motion.begin(0)
    assert motion.wait(3, 10).source == "none" and motion.alive


def test_what_could_not_be_made_safe_is_said(start, noted):
    """Somebody has to pull the plug."""
    motion = start(noted_body(noted, fault="rest"))
    motion.begin(0)
    assert "joint b does not answer" in motion.close().cause
