"""The governor case by case: which stage objects, what it does about it, and what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from robot.safety.checks import DEFAULTS, STAGES
from robot.safety.governor import Governor, GovernorVerdict
from robot.safety.limits import Safety
from robot.sim.so101 import JOINTS
from robot.types import Channel, RobotState
from vlrl.config import explain
from vlrl.types import UserError

CHANNELS = (Channel("pan", "deg"), Channel("grip", "%"))
HZ = 10.0
LIMITS = {
    "pan": {"low": -90, "high": 90, "margin": 2, "speed": 50, "acceleration": 500, "lead": 20, "jump": 10,
            "disagree": 30},
    "grip": {"low": 0, "high": 100, "speed": 1000, "acceleration": 10000},
}  # fmt: skip


def safety(**sections) -> Safety:
    return Safety.model_validate({"channels": LIMITS, **sections})


def sensed(tick: int, pan: float = 0.0, grip: float = 50.0, **more) -> RobotState:
    where = np.array([pan, grip], np.float32)
    return RobotState(**{"t": tick / HZ, "state": where, "measured": where, **more})


class DeploySession:
    """A governor and an arm that is always where it was sent."""

    def __init__(self, config: Safety, channels: tuple[Channel, ...] = CHANNELS):
        self.governor, self.tick = Governor(channels, config, HZ), 0
        self.last = np.array([0, 50], np.float32)
        self.governor.begin(self.last)

    def ask(self, asked: object, *, age: float = 0.0, seen: dict | None = None) -> GovernorVerdict:
        self.tick += 1
        now = sensed(self.tick, *self.last.tolist(), **(seen or {}))
        verdict = self.governor.govern(asked, age, now, self.last, now=self.tick / HZ)
        self.last = verdict.target
        return verdict

    def many(self, asked: object, ticks: int, **more) -> GovernorVerdict:
        for _ in range(ticks):
            verdict = self.ask(asked, **more)
        return verdict


def act(pan: float, grip: float = 50.0) -> np.ndarray:
    return np.array([pan, grip], np.float32)


NAN = float("nan")
# what is asked, with what else -> stage, reaction, target of pan, what the cause must say
CASES = [
    ("within all limits", act(4), {}, None, "pass", 4.0, ()),
    ("NaN", act(NAN), {}, "finite", "hold", 0.0, ("pan nan",)),
    ("infinite", act(0, float("inf")), {}, "finite", "hold", 0.0, ("grip inf",)),
    ("shape", np.zeros(3, np.float32), {}, "finite", "hold", 0.0, ("(3,)", "(2,)")),
    ("text", "left", {}, "finite", "hold", 0.0, ("str",)),
    ("nothing", None, {}, "stale", "hold", 0.0, ("no action",)),
    ("too old", act(4), {"age": 1.2}, "stale", "hold", 0.0, ("1.200 s", "limit 1 s")),
    ("an age that is none", act(4), {"age": NAN}, "stale", "hold", 0.0, ("nan",)),
    ("far first target", act(11), {}, "jump", "clip", 5.0, ("pan", "11", "limit 10")),
    ("beyond the margin", act(89), {}, "position", "clip", 5.0, ("pan", "89", "limit 88")),
    ("too fast", act(6), {}, "speed", "clip", 5.0, ("60 deg/s", "limit 50")),
    ("reading NaN", act(4), {"seen": {"state": np.array([NAN], np.float32)}}, "reading", "hold", 0.0, ("state",)),
    ("reading of another shape", act(4), {"seen": {"measured": np.zeros(1)}}, "reading", "hold", 0.0, ("(1,)",)),
    ("an old reading", act(4), {"seen": {"t": -0.15}}, "age", "hold", 0.0, ("0.250 s", "0.1")),
    ("hot", act(4), {"seen": {"health": {"pan.temperature": 66.0}}}, "health", "stop", 0.0, ("66", "65")),
    ("limp", act(4), {"seen": {"health": {"grip.torque": 0.0}}}, "health", "stop", 0.0, ("grip.torque 0",)),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "more", "stage", "reaction", "target", "says"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_one_tick(asked, more, stage, reaction, target, says) -> None:
    """The log is all that a user has to learn why the arm did not do what the policy said."""
    session = DeploySession(safety())
    verdict = session.ask(asked, **more)
    assert (verdict.reaction, verdict.target.tolist()) == (reaction, [target, 50.0])
    found = [event for event in verdict.events if event.stage == stage]
    assert len(found) == (stage is not None)
    assert all(event.reaction == reaction and all(part in event.cause for part in says) for event in found)
    assert session.governor.counts == {(event.stage, event.reaction): 1 for event in verdict.events}


def test_step_and_acceleration() -> None:
    """Both bound what a servo is sent from tick to tick, whatever the speed limit says."""
    limits = {"pan": {"step": 2.0, "speed": 500, "acceleration": 5000}}
    verdict = DeploySession(safety(channels=limits)).ask(act(3))
    assert (verdict.target[0], [event.stage for event in verdict.events]) == (2.0, ["step"])
    limits = {"pan": {"speed": 500, "acceleration": 100}}
    session = DeploySession(safety(channels=limits))
    verdict = session.ask(act(3))
    assert (verdict.target[0], verdict.events[0].stage) == (1.0, "acceleration")  # 100 deg/s^2 in 0.1 s: 10 deg/s
    assert "limit 100" in verdict.events[0].cause
    assert session.ask(act(3)).target[0] == pytest.approx(2.5, abs=0.01)  # slower, so that it can stop at 3
    assert session.many(act(3), 4).target[0] == 3.0


def test_the_lead_holds_a_target_near_a_blocked_arm() -> None:
    """An arm against the table: the target must not run on, or the servo pushes with all it has."""
    governor = Governor(CHANNELS, safety(channels=LIMITS | {"pan": LIMITS["pan"] | {"stuck": False}}), HZ)
    last = act(0)
    governor.begin(last)
    for tick in range(1, 30):
        verdict = governor.govern(act(5.0 * tick), 0, sensed(tick, grip=50 + tick % 2), last, now=tick / HZ)
        last = verdict.target
    assert last[0] == pytest.approx(20, abs=1e-3)
    assert verdict.reaction == "clip"
    assert any(event.stage == "lead" and "limit 20" in event.cause for event in verdict.events)


AT_ONCE = [stage for stage in STAGES if stage.name not in ("lead", "workspace", "frozen", "stuck", "disagree")]


@pytest.mark.parametrize(("stage", "reaction"), [(s.name, r) for s in AT_ONCE for r in s.reactions if r != "clip"])
def test_reactions_are_as_chosen(stage: str, reaction: str) -> None:
    """A user who writes `stop` and gets `clip` finds out on the robot."""
    asked = {"finite": act(NAN), "stale": None, "jump": act(11), "position": act(89), "step": act(3), "speed": act(6),
             "acceleration": act(6)}.get(stage, act(4))  # fmt: skip
    seen = {"reading": {"state": np.array([NAN])}, "age": {"t": -9.0}, "health": {"health": {"a.temperature": 99.0}}}
    limits = {"pan": LIMITS["pan"] | {"step": 2.0}} if stage == "step" else {}
    limits |= {"pan": LIMITS["pan"] | {"acceleration": 100}} if stage == "acceleration" else {}
    verdict = DeploySession(safety(react={stage: reaction}, channels=LIMITS | limits)).ask(asked, seen=seen.get(stage))
    assert verdict.reaction == ("clip" if stage == "jump" and reaction == "warn" else
                                "pass" if reaction == "warn" else reaction)  # fmt: skip
    assert (stage, reaction) in [(event.stage, event.reaction) for event in verdict.events]


@pytest.mark.parametrize(("frozen", "stage"), [((0, 1), "frozen"), ((0,), "stuck")])
def test_readings_that_never_change(frozen: tuple[int, ...], stage: str) -> None:
    """A bus that repeats an old reply, or a torn encoder wire: the policy would steer by what was."""
    governor = Governor(CHANNELS, safety(react={"stuck": "hold"}), HZ)
    last, place = act(0), act(0)
    governor.begin(last)
    seen = []
    for tick in range(1, 20):
        told = np.where([i in frozen for i in (0, 1)], act(0), place + tick * np.float32(0.01)).astype(np.float32)
        verdict = governor.govern(act(1.0 * tick), 0, RobotState(tick / HZ, told, told), last, now=tick / HZ)
        last = place = verdict.target
        seen.append([event for event in verdict.events if event.reaction == "hold"])
    assert not any(seen[:9])
    assert seen[10][0].stage == stage
    assert "pan" in seen[10][0].cause


@pytest.mark.parametrize(
    ("channel", "own", "stops"),
    [("pan", {}, True), ("pan", {"stuck": False}, False), ("grip", {}, False), ("grip", {"stuck": True}, True)],
)
def test_an_encoder_that_does_not_move_stops_all_but_grippers(channel: str, own: dict, stops: bool) -> None:
    """A shoulder whose encoder is torn off goes on to its stop; a gripper that holds something stands still as well."""
    governor = Governor(CHANNELS, safety(channels=LIMITS | {channel: LIMITS[channel] | own}), HZ)
    last, i = act(0), [each.name for each in CHANNELS].index(channel)
    governor.begin(last)
    for tick in range(1, 40):
        told = last + np.float32(0.01) * (tick % 2)
        told[i] = (0.0, 50.0)[i]
        last = governor.govern(
            act(min(tick, 15), 50 + tick), 0, RobotState(tick / HZ, told, told), last, now=tick / HZ
        ).target
    assert governor.stopped.startswith(f"stuck: {channel} reads the same") == stops


def test_a_robot_that_stands_still_is_not_frozen() -> None:
    """Every simulator, and most encoders, read the same to the bit while nothing moves."""
    session = DeploySession(safety())
    assert {session.ask(act(0)).reaction for _ in range(50)} == {"pass"}


def test_an_arm_that_goes_where_it_was_not_sent_stops() -> None:
    """It falls because a servo lost its power, or somebody pushes it, or it is misread."""
    governor, last = Governor(CHANNELS, safety(), HZ), act(0)
    governor.begin(last)
    reactions = []
    for tick in range(1, 6):
        verdict = governor.govern(act(0), 0, sensed(tick, pan=-31.0 if tick > 1 else 0.0), last, now=tick / HZ)
        reactions.append(verdict.reaction)
        last = verdict.target
    assert reactions[-2:] == ["stop", "stop"]
    assert governor.stopped.startswith("disagree: pan is")


def test_a_hold_becomes_a_stop() -> None:
    """A policy server that is gone does not come back by itself: somebody is to look."""
    session = DeploySession(safety(stale={"stop_s": 2.0}))
    assert session.many(None, 20).reaction == "hold"
    verdict = session.ask(None)
    assert verdict.reaction == "stop"
    assert [(event.stage, event.reaction) for event in verdict.events] == [("stale", "hold"), ("stale", "stop")]
    assert session.ask(act(1)).reaction == "stop"
    assert session.ask(act(1)).events == ()  # said once


def test_a_short_hold_does_not_add_up() -> None:
    """Two late chunks in a minute are no reason to end an episode."""
    session = DeploySession(safety(stale={"stop_s": 1.0}))
    for _ in range(5):
        assert session.many(None, 9).reaction == "hold"
        assert session.ask(act(0)).reaction == "pass"


def test_between_episodes_nothing_is_stale() -> None:
    """While a person lays out the next scene, the arm waits: an alarm would need a re-arm at each episode."""
    session = DeploySession(safety(stale={"stop_s": 1.0}))
    session.governor.idle()
    verdict = session.many(None, 100)
    assert (verdict.reaction, verdict.events, session.governor.stopped) == ("hold", (), "")
    session.governor.begin(session.last)
    assert session.ask(None).events[0].stage == "stale"


def test_a_stop_is_undone_by_a_person_alone() -> None:
    """The next episode must not quietly start an arm that somebody stopped."""
    session = DeploySession(safety())
    event = session.governor.stop("the red button")
    assert (event.stage, event.reaction) == ("estop", "stop")
    session.governor.begin(session.last)
    assert session.ask(act(4)).reaction == "stop"
    session.governor.rearm(session.last)
    assert session.ask(act(4)).reaction == "pass"


def test_the_jump_guard_is_armed_again_after_a_hold() -> None:
    """What a policy asks for after a gap may be as far off as its first action was."""
    session = DeploySession(safety(react={"jump": "stop"}))
    assert session.many(act(4), 3).reaction == "pass"
    assert session.ask(act(15)).reaction == "clip"  # no beginning: only fast
    session.many(None, 3)
    verdict = session.ask(act(60))
    assert (verdict.reaction, verdict.events[-1].stage) == ("stop", "jump")


def test_it_starts_where_the_robot_is() -> None:
    """After the arm was moved by hand, the last episode's target is a leap away."""
    session = DeploySession(safety())
    session.many(act(40), 20)
    moved = act(-30)
    session.governor.begin(moved)
    verdict = session.governor.govern(None, 0, sensed(30, -30), session.last, now=3.0)
    assert verdict.target[0] == -30


def test_a_sagging_arm_is_not_let_down_further() -> None:
    """Gravity pulls an arm a little below its target: to start from there each time would walk it to the table."""
    session = DeploySession(safety())
    session.many(act(40), 20)
    session.governor.begin(act(38.5))
    assert session.governor.govern(None, 0, sensed(30, 38.5), session.last, now=3.0).target[0] == 40


def test_a_robot_that_starts_outside_may_only_come_in() -> None:
    """Arms rest beyond their limits: to leap to the limit would be a jump, to refuse would leave it there for ever."""
    governor, last = Governor(CHANNELS, safety(), HZ), act(100)
    governor.begin(last)
    path = []
    for tick, asked in enumerate([110, 110, 110, 96, 93, 90, 110, 80, 70, 110, 110], 1):
        last = governor.govern(act(asked), 0, sensed(tick, last[0]), last, now=tick / HZ).target
        path.append(float(last[0]))
    assert path[:3] == [100, 100, 100]
    assert max(np.diff(path[:7])) <= 0
    assert max(path[8:]) <= 88


def test_the_robot_may_have_been_sent_something_else() -> None:
    """Drivers clip too: speed is measured from what was really sent, not from what was meant."""
    governor = Governor(CHANNELS, safety(), HZ)
    governor.begin(act(0))
    governor.govern(act(5), 0, sensed(1), act(0), now=0.1)
    verdict = governor.govern(act(10), 0, sensed(2), act(2), now=0.2)
    assert verdict.target[0] == pytest.approx(7)


def test_nobody_knows_where_the_robot_is() -> None:
    """Without one reading there is no target that is known to be safe: then none is sent."""
    governor, nowhere = Governor(CHANNELS, safety(), HZ), np.full(2, NAN, np.float32)
    governor.begin(nowhere)
    verdict = governor.govern(act(0), 0, sensed(1, measured=nowhere), None, now=0.1)
    assert (verdict.target, verdict.reaction) == (None, "hold")
    assert governor.govern(act(0), 0, sensed(2), None, now=0.2).reaction == "pass"


def test_speeds_are_held_by_zero() -> None:
    """A base that repeats its last target drives on: into the wall, when the network is gone."""
    channels = (Channel("x", "m/s", "speed"), Channel("turn", "deg/s", "speed"))
    governor, last = Governor(channels, Safety(), HZ), np.zeros(2, np.float32)
    governor.begin(last)
    values = []
    for tick in range(1, 16):
        asked = np.array([9.0, 0.0], np.float32) if tick < 8 else None
        last = governor.govern(asked, 0, sensed(tick, 0, 0), last, now=tick / HZ).target
        values.append(round(float(last[0]), 3))
    assert values[:8] == [0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2]
    assert values[-1] == 0


@pytest.mark.parametrize("broken", [None, "x", 3, object()])
def test_a_reading_that_is_none_holds_for_good(broken: object) -> None:
    """Whatever a body hands over: an exception here would leave the arm to itself."""
    session = DeploySession(safety())
    session.ask(act(4))
    verdict = session.governor.govern(act(4), 0, broken, session.last, now=1.0)
    assert (verdict.reaction, verdict.target.tolist()) == ("stop", [4.0, 50.0])
    assert session.governor.stopped.startswith("governor")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"channels": {"pam": {}}}, "safety.channels.pam: the robot has no such channel; did you mean 'pan'"),
        ({"channels": {"pan": {"low": 5, "high": 4}}}, "safety.channels.pan: low 5 and high 4"),
        ({"channels": {"pan": {"lead": 30, "disagree": 20}}}, "disagree 20 must be more than lead 30"),
    ],
)
def test_limits_that_do_not_fit_are_refused(config: dict, says: str) -> None:
    """A misspelt joint would have no limit of its own, and nobody would know."""
    with pytest.raises(UserError, match=says):
        Governor(CHANNELS, Safety.model_validate(config), HZ)


def test_a_unit_without_defaults_needs_limits() -> None:
    """What is cautious in degrees means nothing in a unit that nobody knows."""
    with pytest.raises(UserError, match=r"lift: low, high, speed, acceleration must be given: the unit 'ticks'"):
        Governor((Channel("lift", "ticks"),), Safety(), HZ)
    given = {"low": 0, "high": 4095, "speed": 500, "acceleration": 5000}
    Governor((Channel("lift", "ticks"),), Safety.model_validate({"default": given}), HZ)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"default": {"hihg": 3}}, "default.hihg: unknown key; did you mean 'high'"),
        ({"channels": {"pan": {"low": None}}}, "channels.pan.low"),
        ({"channels": {"pan": {"speed": 0}}}, "channels.pan.speed"),
        ({"default": {"high": float("nan")}}, "default.high"),
        ({"react": {"finite": "warn"}}, "finite: 'warn' is not for this stage; one of hold, stop"),
        ({"react": {"postion": "stop"}}, "unknown stage 'postion'; did you mean 'position'"),
        ({"react": {"lead": "off"}}, "react.lead"),
        ({"dead_man": {}}, "needs one of key, button, socket"),
        ({"at_exit": "fall"}, "at_exit"),
        ({"workspace": {"model": "so101", "low": [0, 0]}}, "workspace.low"),
        ({"workspace": {"model": "so101", "low": [0, 0, 0], "high": [0, 1, 1]}}, "no room along x"),
    ],
)
def test_a_config_that_is_wrong_names_its_key(config: dict, says: str) -> None:
    """A limit that is silently not read is worse than none."""
    with pytest.raises(ValidationError) as caught:
        Safety.model_validate(config)
    assert says in explain(caught.value, Safety)


def test_a_config_survives_the_way_to_the_motion_process() -> None:
    """It goes there as text; a limit lost on the way, or `null` that turns into a default, guards nothing."""
    config = safety(channels={"pan": {"lead": None, "high": 50}}, react={"lead": "hold"})
    again = Safety.model_validate(json.loads(config.model_dump_json(exclude_unset=True)))
    assert again == config
    assert Governor(CHANNELS, again, HZ).bounds.lead[0] == np.inf


def test_the_manual_tells_every_stage() -> None:
    """A user who looks up what the governor does must not find what it once did."""
    text = (Path(__file__).parents[3] / "docs/safety.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \| ([\w, ]*) \|$", text, re.M)
    assert rows == [(s.name, s.reactions[0], ", ".join(s.reactions[1:])) for s in STAGES]


def test_the_manual_s_example_is_valid() -> None:
    """It is what people copy onto their robot."""
    text = (Path(__file__).parents[3] / "docs/safety.md").read_text(encoding="utf-8")
    config = Safety.model_validate(yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.S)[1])["safety"])
    arm = tuple(Channel(f"{joint}.pos", "%" if joint == "gripper" else "deg") for joint in JOINTS)
    Governor(arm, config, 30.0)


def test_every_default_fits() -> None:
    """A unit's own defaults must make a governor, and braking from full speed must take less than half a second."""
    for unit, row in DEFAULTS.items():
        Governor((Channel("it", unit, "speed" if unit.endswith("/s") else "position"),), Safety(), 30.0)
        assert row[3] / row[4] < 0.5
