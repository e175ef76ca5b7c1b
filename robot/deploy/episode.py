"""One episode: observe, ask, plan, watch every tick, until something ends it. Never waits for the network."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from robot.control.messages import ActionPlan
from robot.deploy.cameras import MOVED
from robot.deploy.config import Practice, Stuck
from robot.deploy.recorder import EpisodeRecorder, EpisodeRecording, TakeWriter
from robot.deploy.session import (
    DIED,
    EMERGENCY,
    LOST,
    PAUSE_S,
    STOPPED,
    ChunkRequest,
    Chunks,
    DeploySession,
    EpisodeOutcome,
    ending_row,
    find_state_indices,
    halted,
    judged,
    select_pictures,
)
from robot.deploy.teleop import FOR_S
from robot.serving.client import Client
from robot.types import Channel, RobotError, RobotStatus, TickRecord
from vlrl.serving.protocol import PolicyRequest
from vlrl.system.clock import boottime
from vlrl.types import UserError

# What an episode says to the policy's server and hears from it. Never waits for the network.


class PolicyExchange:
    """Questions and plans of one episode.

    Args:
        number: of the episode, from 1; what the server is told.
    """

    def __init__(self, session: DeploySession, number: int, client: Client, chunks: Chunks):
        self._session, self._number, self._client, self._chunks = session, number, client, chunks
        self._state_indices = find_state_indices(session.motion.info.names, session.config.policy.state)
        self._task = ""
        self._last_request = -1  # the tick of the last observation that was sent
        self._failures, self._last_failure = client.stats.failures, ""
        self.lost = ""  # why there is no server, or ''

    def begin(self) -> None:
        self._chunks.begin()
        self._client.reset(self._number)
        self._task = self._session.config.task or self._session.motion.task

    def look(self) -> str:
        """News of the connection in one line, or ''. What was asked on a connection that is lost is forgotten."""
        before, self.lost = self.lost, self._client.lost
        if bool(before) == bool(self.lost):
            return self._refused()
        self._chunks.forget()
        if self.lost:
            self._session.ledger.count("server", "warn", self.lost)
            return f"policy server lost: {self.lost}"
        self._session.ledger.reconnects += 1
        self._client.reset(self._number)
        return "policy server back"

    @property
    def failure(self) -> str:
        """Why the server, which is there, gave nothing for the last observation; '' where it did."""
        return self._client.failure

    def _refused(self) -> str:
        """News of an observation that the server could not answer: it is not waited for, the next one is asked."""
        before, self._failures = self._failures, self._client.stats.failures
        if before == self._failures:
            return ""
        self._chunks.forget()
        self._session.ledger.count("server", "warn", self.failure)
        known, self._last_failure = self._last_failure, self.failure
        return "" if known == self._last_failure else f"policy server: {self._last_failure}"

    def plans(self, tick: int, timeout: float) -> list[ActionPlan]:
        """Those of the answers that have come. Args: tick: the newest; timeout: seconds to wait for one."""
        arrived = []
        for answer in self._client.answers(timeout):
            plan = self._chunks.plan(answer, tick)
            if plan is not None:
                self._session.ledger.answer(answer)
                arrived.append(plan)
        return arrived

    def ask(self, ticked: TickRecord) -> None:
        """Sends the newest observation if it is time, and the server is there."""
        if self.lost or ticked.tick <= self._last_request or not np.isfinite(ticked.sensed.state).all():
            return
        if not self._chunks.wants(ticked.tick, boottime()):
            return
        prefix, delay = self._chunks.prefix(ticked.tick)
        images = select_pictures(self._session.images(ticked), self._session.config.policy.pictures)
        state = ticked.sensed.state[self._state_indices]
        requested = PolicyRequest("", self._number, self._task, state, images, prefix, delay)
        self._chunks.expect(self._client.ask(requested), ChunkRequest(ticked.tick, ticked.sensed.t, self._number))
        self._last_request = ticked.tick

    def hold(self) -> None:
        """The robot holds until the next plan; what was asked is no longer waited for."""
        motion = self._session.motion
        motion.plan(self._chunks.nothing(len(motion.info.controls)))


# Motions of our own between episodes and out of a jam. They go through the governor like a policy's.

AHEAD_S = 0.3  # seconds of a motion that are handed over at a time
SETTLE_S = 1.0  # to arrive
ARRIVED = 4  # times what counts as moved: an arm hangs some degrees below its target


def pose_of(pose: Mapping[str, float], channels: tuple[Channel, ...], key: str) -> np.ndarray:
    """float32 [A], NaN for channels that stay where they are. `key`: of the config, for the error.

    Raises:
        UserError: no such channel, or one that is a speed.
    """
    known = {channel.name: channel for channel in channels}
    for name in pose:
        if name not in known or known[name].kind == "speed":
            places = ", ".join(channel.name for channel in channels if channel.kind == "position") or "none here"
            raise UserError(f"{key}.{name}: must be a channel that is a position: {places}")
    return np.array([pose.get(channel.name, np.nan) for channel in channels], np.float32)


def ramp(session: DeploySession, goal: np.ndarray, seconds: float) -> bool:
    """Moves to a pose, float32 [A], at even speed -> whether the robot arrived. Needs an episode that has begun.

    What the operator presses meanwhile is lost, but for a stop.
    """
    motion, about = session.motion, session.motion.info
    first = motion.latest()
    start = first.sensed.measured if first.sent is None else first.sent
    goal = np.where(np.isfinite(goal), goal, start)
    last, speeds = first.tick, np.array([channel.kind == "speed" for channel in about.controls])
    end, ahead = first.tick + seconds * about.hz, math.ceil(AHEAD_S * about.hz)
    far = ARRIVED * np.array([MOVED.get(channel.unit, np.inf) for channel in about.channels])

    def arrived(ticked: TickRecord) -> bool:
        return bool((~(np.abs(ticked.sensed.measured - goal) > far)).all())

    while motion.alive and not session.ender.code:
        now = motion.latest()
        if now.stopped or now.tick > end + SETTLE_S * about.hz or (now.tick > end and arrived(now)):
            break
        if now.tick > last or now is first:
            last = now.tick
            ticks = np.arange(1, ahead + 1) + now.tick
            shares = np.clip((ticks - first.tick) / (end - first.tick), 0, 1)[:, None]
            places = start + shares * (goal - start)
            at = start if now.sent is None else now.sent
            paces = np.diff(np.vstack([at, places]), axis=0) * about.hz  # where plans are speeds
            actions = np.where(speeds, paces, places).astype(np.float32)
            motion.plan(session.chunks.own(actions, AHEAD_S))
        if "stop" in session.orders():
            motion.stop("the operator's emergency stop")
        session.show(now)
        time.sleep(PAUSE_S)
    return arrived(motion.latest())


class StuckDetector:
    """Sees a robot that is sent somewhere and does not move. Only channels that are positions and measured count, and
    no gripper (of unit %): that closes on things.

    Args:
        hz: ticks a second.
    """

    def __init__(self, stuck: Stuck, channels: tuple[Channel, ...], hz: float):
        self._share, self._back = stuck.share, round(stuck.back_s * hz)
        size = round(stuck.seconds * hz)
        self._window: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=max(2, size))
        self._path: deque[np.ndarray] = deque(maxlen=max(2, size) + self._back)
        counts = [channel.kind != "speed" and channel.unit != "%" for channel in channels]
        self._far = np.where(counts, [MOVED.get(channel.unit, np.inf) for channel in channels], np.inf)

    def see(self, ticked: TickRecord) -> bool:
        """Whether it is stuck as of this tick."""
        self._path.append(ticked.sensed.measured)
        if ticked.source != "policy" or ticked.requested is None:
            self._window.clear()
            return False
        self._window.append((ticked.requested, ticked.sensed.measured))
        if len(self._window) < self._window.maxlen:
            return False
        requested, measured = (np.array(each) for each in zip(*self._window, strict=True))
        distances = np.abs(
            (requested - measured).mean(axis=0)
        )  # a policy may begin each chunk anew from where the robot is
        came = np.ptp(measured, axis=0)
        return bool(((distances > self._far) & (came < self._share * distances)).any())

    def free(self) -> np.ndarray:
        """Where the robot was before it got stuck, float32 [A]; forgets the jam."""
        place = self._path[0]
        self._window.clear()
        return place


Judge = Callable[[TickRecord, Mapping[str, np.ndarray]], RobotStatus]


class EpisodePlayer:
    """Plays once, by `play`.

    Args:
        number: of the episode, from 1; what the server is told.
        take_writer: where it is recorded; None: nowhere.
        client, chunks: of the policy that plays.
        judge: how the job stands at a tick, of which it is shown the pictures.
        after: called after each tick: why the episode should end, or ''.
    """

    def __init__(
        self,
        session: DeploySession,
        number: int,
        *,
        seconds: float,
        take_writer: TakeWriter | None = None,
        client: Client | None = None,
        chunks: Chunks | None = None,
        judge: Judge | None = None,
        after: Callable[[TickRecord], str] = lambda ticked: "",
    ):
        self._session, self._recording = session, EpisodeRecording(take_writer, session.latest_pictures)
        self._chunks = chunks or session.chunks
        self._policy = PolicyExchange(session, number, client or session.client, self._chunks)
        self._takeover = session.takeover()
        self._judge, self._after = judge or session.scene.verdict, after
        self._ticks = round(seconds * session.motion.info.hz)
        self._lookout, self._blind = session.lookout(), ""
        self._newest: TickRecord | None = None
        self.ending: EpisodeOutcome | None = None

    def play(self, first: TickRecord) -> EpisodeOutcome:
        """Args: first: what `Motion.begin` gave."""
        motion, self._first = self._session.motion, first.tick
        self._policy.begin()
        while self.ending is None:
            self._obey()
            for ticked in motion.ticks():
                if ticked.tick >= first.tick and self.ending is None:
                    self._tick(ticked)
            self._look()
            self._converse()
            motion.pet()
            self._session.show(self._newest)
        self._policy.hold()
        motion.idle()
        return self.ending

    def _obey(self) -> None:
        for order in self._session.orders():
            if order == "stop":
                self._session.motion.stop("the operator's emergency stop", emergency=True)
                self._end(EpisodeOutcome("stopped", "the operator's emergency stop", code=EMERGENCY))
            elif order == "take" and self._takeover is not None:
                self._take(not self._taken)
            elif order in ("success", "failure"):
                self._session.scene.order(order)
        if self._takeover is not None and self._session.config.teleop.take == "device":
            takes = self._session.teleop_device.takes
            if takes is not None and takes != self._taken:  # a device that is lost gives nothing back
                self._take(takes)

    @property
    def _taken(self) -> bool:
        return self._takeover is not None and self._takeover.taken

    def _take(self, taken: bool) -> None:
        self._takeover.turn(taken)
        self._note(self._takeover.message)
        self._policy.hold()

    def _tick(self, ticked: TickRecord) -> None:
        session, ticked = self._session, self._labelled(ticked)
        self._newest = ticked
        session.ledger.tick(ticked)
        self._chunks.saw(ticked)
        self._keep(ticked)
        for event in ticked.events:
            session.event(f"{event.stage} {event.reaction}", event.cause)
        if self._taken:
            self._follow(ticked)
        self._end(self._standing(ticked))

    def _standing(self, ticked: TickRecord) -> EpisodeOutcome | None:
        """How the episode ends with this tick, if it does."""
        if ticked.stopped:
            gone = self._policy.lost or self._policy.failure
            return halted(ticked, self._takeover.lost if self._taken else "", gone)
        try:
            signals = self._judge(ticked, self._session.images(ticked))
        except RobotError as error:
            return EpisodeOutcome("error", str(error), code=LOST)
        over = ticked.tick - self._first >= self._ticks
        done = signals.success or signals.failure is not None or signals.cut is not None
        problem = "" if done or self.ending else self._after(ticked)
        return judged(signals, problem, over, self._session.scene.knows)

    def _labelled(self, ticked: TickRecord) -> TickRecord:
        """With whoever really drove."""
        if ticked.source == "policy" and self._chunks.scripted(ticked.seq):
            return replace(ticked, source="script")
        return ticked if self._takeover is None else self._takeover.mark_waiting(ticked)

    def _follow(self, ticked: TickRecord) -> None:
        takeover, followed, lost = self._takeover, self._takeover.follows, self._takeover.lost
        target = takeover.target(ticked)
        if target is not None:
            self._session.motion.hand(target, FOR_S)
        if takeover.follows != followed or bool(takeover.lost) != bool(lost):
            self._note(takeover.message)
        self._session.message = takeover.message

    def _keep(self, ticked: TickRecord) -> None:
        problem = self._recording.tick(ticked)
        if problem and self._session.config.record.on_full == "stop":
            self._end(EpisodeOutcome("error", f"nothing more can be recorded: {problem}", code=2))
        elif problem:
            self._session.say(f"recording stopped: {problem}; the episode goes on", bad=True)

    def _look(self) -> None:
        """After the robot's and the cameras' health."""
        session = self._session
        if not session.motion.alive:
            ended = session.motion.close()
            died = ended.code < 0 or ended.code in (0, 1)
            cause = session.motion.fault or ended.cause
            return self._end(EpisodeOutcome("error", cause, code=DIED if died else ended.code))
        if session.ender.code:
            return self._end(EpisodeOutcome("stopped", "interrupted", code=session.ender.code))
        if self._newest is None:
            return None
        camera_verdict = self._lookout.judge(session.latest_pictures(), self._newest.sensed.measured, boottime())
        if camera_verdict.stop and self.ending is None:
            session.motion.stop(camera_verdict.stop)
        if camera_verdict.hold and not self._blind:
            self._policy.hold()
            session.ledger.count("camera", "hold", camera_verdict.hold)
        if bool(camera_verdict.hold) != bool(self._blind):
            self._note(camera_verdict.hold or "the cameras see again")
        self._blind = camera_verdict.hold
        return None

    def _converse(self) -> None:
        """Waits a moment for an answer, or for the next look at everything; asks if it is time."""
        news = self._policy.look()
        if news:
            self._note(news)
        for plan in self._policy.plans(self._newest.tick if self._newest else 0, PAUSE_S):
            if self.ending is not None or self._taken or self._blind:
                continue
            try:
                self._session.motion.plan(plan)
            except ValueError as error:
                self._end(EpisodeOutcome("error", f"the policy: {error}", code=2))
        if self._newest is not None and not (self.ending or self._blind or self._taken):
            self._policy.ask(self._newest)

    def _note(self, text: str) -> None:
        self._session.say(text, bad=bool(self._policy.lost or self._blind or (self._taken and self._takeover.lost)))
        self._session.event(text)
        self._recording.note(text)

    def _end(self, ending: EpisodeOutcome | None) -> None:
        """The first one counts."""
        self.ending = self.ending or ending


# Practice without a person: the scene comes back by itself, a robot that is stuck frees itself, all is counted.
#
# The loop of FastRLAP (arXiv 2304.09831): try, notice being stuck, recover, go on. A stop still needs a person.

MISSES = 3  # resets in a row that did not arrive: then a person is needed


@dataclass(eq=False)
class PracticeWatcher:
    """Watches the ticks of an episode, and resets after it.

    Args:
        resetter: of the policy that resets, where the config names one.

    Raises:
        UserError: a pose of channels that the robot has not.
    """

    session: DeploySession
    config: Practice
    resetter: Client | None = None
    resets: int = 0
    missed: int = 0  # resets to a pose that did not arrive
    stuck: int = 0  # in this episode
    _in_a_row: int = field(default=0, init=False)  # of `missed`
    _stuck_detector: StuckDetector | None = field(default=None, init=False)

    def __post_init__(self):
        about = self.session.motion.info
        pose = self.config.reset.pose
        self._pose = None if pose is None else pose_of(pose, about.channels, "practice.reset.pose")
        self._renew()

    def watch(self, ticked: TickRecord) -> str:
        """After each tick: why the episode should end, or ''. Frees a robot that is stuck."""
        if self._stuck_detector is None or not self._stuck_detector.see(ticked):
            return ""
        self.stuck += 1
        if self.stuck > self.config.stuck.tries:
            return f"stuck {self.stuck} times"
        self.session.ledger.recoveries += 1
        self.session.say("stuck: back to where it was free")
        ramp(self.session, self._stuck_detector.free(), self.config.stuck.back_s)
        self.session.motion.plan(self.session.chunks.nothing(len(self.session.motion.info.controls)))
        return ""

    def reset(self, number: int, seed: int) -> bool:
        """Brings the scene back -> whether the next episode can begin."""
        session, reset = self.session, self.config.reset
        self._renew()
        self.resets += 1
        if reset.person:
            session.say("reset the scene, then press n")
            session.idle(lambda: "next" in session.orders())
            return not session.ender.code
        if self._pose is not None:
            session.motion.begin(seed)
            self._count(ramp(session, self._pose, reset.seconds))
            session.motion.idle()
        if self.resetter is not None:
            self._by_policy(number, seed)
        free = self._in_a_row < MISSES and not session.motion.latest().stopped
        return free and session.motion.alive and not session.ender.code

    def _count(self, arrived: bool) -> None:
        self._in_a_row = 0 if arrived else self._in_a_row + 1
        if not arrived:
            self.missed += 1
            self.session.say("the reset pose was not reached", bad=True)

    def _by_policy(self, number: int, seed: int) -> None:
        session = self.session
        chunks = Chunks(session.config.policy, self.resetter.spec, session.motion.info.hz)
        first = session.motion.begin(seed)
        session.say("the reset policy plays")
        EpisodePlayer(
            session, number, seconds=self.config.reset.seconds, client=self.resetter, chunks=chunks,
            judge=lambda ticked, images: RobotStatus(),
        ).play(first)  # fmt: skip

    def _renew(self) -> None:
        about, self.stuck = self.session.motion.info, 0
        self._stuck_detector = StuckDetector(self.config.stuck, about.channels, about.hz) if self.config.stuck else None


def check_practice(config: Practice, by_person: bool) -> None:
    """Raises UserError where nobody is there who could reset."""
    if config.reset.person and not by_person:
        raise UserError("practice.reset.person: nobody can say that the scene is ready: needs a terminal or view")


# The episodes of a run, one after the other.


def run(session: DeploySession, recorder: EpisodeRecorder | None, practice: PracticeWatcher | None) -> tuple[int, str]:
    """All episodes -> exit code and why it is not 0."""
    config, number, began = session.config, 0, time.monotonic()
    hours = config.practice.hours if config.practice else None
    while number < config.episodes if hours is None else time.monotonic() - began < 3600 * hours:
        number += 1
        seed = config.seed + number - 1
        try:
            ending = _one(session, recorder, practice, number, seed)
        except RobotError as error:
            died = not session.motion.alive
            return (session.motion.close().code or LOST) if died else LOST, str(error)
        if ending.code:
            return ending.code, ending.reason
        if session.ender.code:
            return session.ender.code, "interrupted"
        if practice is not None and not practice.reset(number, seed):
            return session.ender.code or STOPPED, "the scene could not be reset: a person is needed"
    return 0, ""


def _one(
    session: DeploySession, recorder: EpisodeRecorder | None, practice: PracticeWatcher | None, number: int, seed: int
) -> EpisodeOutcome:
    if session.scene.ready and practice is None:
        _wait_for_person(session, number)
    if session.ender.code:
        return EpisodeOutcome("stopped", "interrupted", code=session.ender.code)
    _go_home(session, seed)
    session.scene.begin(seed)
    session.ledger.pause()
    first = session.motion.begin(seed)
    take_writer = _open_take_writer(session, recorder, number, seed)
    task = session.config.task or session.motion.task
    session.say(f"episode {number}{f': {task}' if task else ''}")
    after = practice.watch if practice else lambda ticked: ""
    ending = EpisodePlayer(session, number, seconds=session.config.seconds, take_writer=take_writer, after=after).play(
        first
    )
    if practice is None:
        ending = _judged(session, ending)
    row = ending_row(number, seed, ending, *_lasted(session, first))
    if take_writer is not None:
        take_writer.close(**row)
        session.ledger.lost_records += take_writer.lost
    session.ledger.episodes.append(row)
    session.say(
        f"episode {number}: {ending.outcome}{f' ({ending.reason})' if ending.reason else ''}", bad=bool(ending.code)
    )
    return ending


def _go_home(session: DeploySession, seed: int) -> None:
    home = session.config.home
    if home is None:
        return
    session.say("to the home pose")
    session.motion.begin(seed)
    pose = pose_of(home.pose, session.motion.info.channels, "home.pose")
    if not ramp(session, pose, home.seconds) and not session.motion.latest().stopped:
        session.say("the home pose was not reached", bad=True)
    session.motion.idle()


def _lasted(session: DeploySession, first: TickRecord) -> tuple[int, float]:
    """Ticks, and seconds at the robot's rate."""
    ticks = (session.motion.latest() or first).tick - first.tick
    return ticks, ticks / session.motion.info.hz


def _open_take_writer(
    session: DeploySession, recorder: EpisodeRecorder | None, number: int, seed: int
) -> TakeWriter | None:
    if recorder is None:
        return None
    try:
        return recorder.begin(number, seed, session.config.task or session.motion.task)
    except OSError as error:
        session.say(f"nothing is recorded of episode {number}: {error.strerror}", bad=True)
        session.ledger.count("record", "warn", str(error.strerror))
        return None


def _wait_for_person(session: DeploySession, number: int) -> None:
    if not session.by_person:
        return
    session.say(f"episode {number}: arrange the scene, then press n")
    session.idle(lambda: "next" in session.orders())


def _judged(session: DeploySession, ending: EpisodeOutcome) -> EpisodeOutcome:
    """A person says how an episode went that ended for want of time."""
    if ending.outcome != "time_out" or ending.success is not None or not session.by_person:
        return ending
    session.say("time is up: s success, f failure, n nobody knows")
    message: list[str] = []

    def answered() -> bool:
        message.extend(order for order in session.orders() if order in ("success", "failure", "next"))
        return bool(message)

    session.idle(answered)
    if not message or message[0] == "next":
        return ending
    return EpisodeOutcome(message[0], "the operator says so", message[0] == "success")
