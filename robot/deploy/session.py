"""A session on an arm: its parts, keys, ledger, takeover by a person, and the policy's chunks as plans."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import select
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from robot.control.messages import ActionPlan
from robot.control.process import Motion
from robot.deploy.cameras import CameraPicture, CameraProcess, Lookout
from robot.deploy.config import Deploy, PolicySource
from robot.deploy.dashboard import DashboardServer
from robot.deploy.scene import DeployScene
from robot.deploy.teleop import TeleopDevice
from robot.safety.checks import bounds
from robot.serving.client import ChunkAnswer, Client
from robot.types import Channel, RobotStatus, TickRecord
from vlrl.serving.protocol import Feature, Picture, PolicySpec, Wants, declared
from vlrl.system.clock import boottime
from vlrl.types import UserError, wilson

# What the live page says of a run.

RANGES = MappingProxyType({"deg": (-180.0, 180.0), "rad": (-math.pi, math.pi), "%": (0.0, 100.0)})


def describe_session(session: DeploySession, ticked: TickRecord, now: float) -> dict[str, Any]:
    """The keys of `robot.deploy.dashboard.EMPTY`."""
    config, ledger = session.config, session.ledger
    won = sum(bool(episode["success"]) for episode in ledger.episodes)
    facts = [
        ("Episode", f"{len(ledger.episodes) + 1} of {config.episodes}"),
        ("Success so far", f"{won} of {len(ledger.episodes)}"),
        ("Drives", ticked.source),
        ("Age of the action", f"{1000 * ticked.age:.0f} ms"),
        ("Latency, 95 %", f"{1000 * session.chunks.latency():.0f} ms"),
        ("Policy server", session.client.lost or "connected"),
    ]
    pictures = session.latest_pictures()
    cameras = [(name, each.seq, round(now - each.t, 3)) for name, each in pictures.items()]
    cameras += [(name, ticked.tick, round(now - ticked.sensed.t, 3)) for name in ticked.sensed.images]
    return {
        "title": config.task or session.motion.task or "vlrl deploy",
        "said": ticked.stopped or session.message,
        "bad": bool(ticked.stopped) or session.bad,
        "facts": facts,
        "cameras": cameras,
        "joints": _joints(session, ticked),
        "events": [_event(what, *rest) for what, rest in session.events.items()],
    }


def _event(what: str, count: int, cause: str) -> str:
    times = f" ({count} times)" if count > 1 else ""
    return f"{what}{times}: {cause}" if cause else f"{what}{times}"


def _joints(session: DeploySession, ticked: TickRecord) -> list[tuple[str, float, str, float]]:
    """Name, value, unit, and where in what such a number spans; without those that the robot does not say."""
    rows = []
    for channel, value in zip(session.motion.info.channels, ticked.sensed.measured.tolist(), strict=True):
        if math.isfinite(value):
            low, high = RANGES.get(channel.unit, (-1.0, 1.0))
            rows.append((channel.name, value, channel.unit, min(1.0, max(0.0, (value - low) / (high - low)))))
    return rows


# How an episode ended, and what result.json says of it.

STOPPED, LOST, SERVER, EMERGENCY, DIED = 3, 4, 5, 6, 7  # exit codes


class Ender:
    """What signals' handlers set.

    Attributes:
        code: of the first signal that ends the run, 128 and its number; 0: none came.
        signals: how many of those came. A second one raises KeyboardInterrupt, but not while `finishing`.
        stopped: whether an emergency stop came.
    """

    code = signals = 0
    finishing = stopped = False


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode ended. `code`: of the run, if it cannot go on; else 0. `success` None: nobody knows."""

    outcome: str  # success, failure, time_out, stopped, error
    reason: str = ""
    success: bool | None = None
    code: int = 0


def judged(signals: RobotStatus, problem: str, over: bool, knows: bool) -> EpisodeOutcome | None:
    """Whether an episode ends with this tick.

    Args:
        problem: why else it should, or ''.
        over: its time is.
        knows: there would have been signals, had the job been done.
    """
    if signals.success:
        return EpisodeOutcome("success", success=True)
    if signals.failure is not None:
        return EpisodeOutcome("failure", signals.failure, success=False)
    if signals.cut is not None:
        return EpisodeOutcome("stopped", signals.cut)
    if problem:
        return EpisodeOutcome("failure", problem, success=False)
    return EpisodeOutcome("time_out", success=False if knows else None) if over else None


def halted(ticked: TickRecord, no_hand: str, no_server: str) -> EpisodeOutcome:
    """The motion process holds for good. Who is gone is the cause of a stop for want of actions.

    Args:
        no_hand: why a person who drives has no hand on the robot, or ''.
        no_server: why the policy cannot be asked, or ''.
    """
    cause = ticked.stopped
    if cause.startswith("estop") or any(event.stage == "estop" for event in ticked.events):
        return EpisodeOutcome("stopped", cause, code=EMERGENCY)
    if no_hand:
        return EpisodeOutcome("stopped", f"{cause}; the teleoperator was lost: {no_hand}", code=STOPPED)
    if no_server:
        return EpisodeOutcome("stopped", f"{cause}; the policy server: {no_server}", code=SERVER)
    return EpisodeOutcome("stopped", cause, code=STOPPED)


def ending_row(number: int, seed: int, ending: EpisodeOutcome, ticks: int, seconds: float) -> dict[str, Any]:
    """An episode as result.json has it. `void`: the fault that makes it say nothing of the policy, or ''."""
    void = (
        ending.reason or ending.outcome if ending.outcome == "error" or ending.code in (SERVER, 129, 130, 143) else ""
    )
    return {
        "number": number, "seed": seed, "outcome": ending.outcome, "reason": ending.reason,
        "success": None if void else ending.success, "ticks": ticks, "seconds": round(seconds, 3), "void": void,
    }  # fmt: skip


# The operator's keys, in the terminal that the command runs in.

KEYS = MappingProxyType({"s": "success", "f": "failure", "t": "take", "n": "next", "\r": "next", "\n": "next"})
NAMED = MappingProxyType({"space": " ", "esc": "\x1b", "enter": "\n", "tab": "\t"})
HELP = "keys: {stops} emergency stop, s success, f failure, t take over or give back, n next, Ctrl-C end"


class Keyboard:
    """Reads single keys while it is open; without a terminal there are none.

    Args:
        stops: keys that are an emergency stop, by character or as space, esc.
    """

    def __init__(self, stops: Sequence[str] = ("space",)):
        self._known = {**KEYS, **{NAMED.get(key, key): "stop" for key in stops}}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._before: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Keyboard:
        if not sys.stdin or not sys.stdin.isatty():
            return self
        import termios
        import tty

        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)
        self._thread.start()
        stops = ", ".join(repr(key) for key, order in self._known.items() if order == "stop")
        print(HELP.format(stops=stops), file=sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._thread is None:
            return
        import termios

        self._thread.join(1.0)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    @property
    def open(self) -> bool:
        """Whether there is a keyboard."""
        return self._thread is not None

    def orders(self) -> list[str]:
        """What was asked for since the last call, of `robot.deploy.dashboard.ORDERS`."""
        lines = []
        while not self._orders.empty():
            lines.append(self._orders.get())
        return lines

    def _read(self) -> None:
        while not self._closed.is_set():
            if select.select([sys.stdin], [], [], 0.1)[0]:
                pressed = os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
                for key in pressed:
                    if key.lower() in self._known:
                        self._orders.put(self._known[key.lower()])
                if not pressed:
                    return


# What a run was like: latencies, punctuality, what the governor did, what a person did, how episodes ended.

PERCENTILES = (50, 95, 99)
BINS = 40  # of the histograms


@dataclass
class TickStatistics:
    """Counts from the first tick on. Series are float32 [n], in seconds.

    Args:
        hz: ticks a second that the motion process should keep.
    """

    hz: float
    episodes: list[dict[str, Any]] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    causes: dict[tuple[str, str], str] = field(default_factory=dict)  # the first of each
    takeovers: int = 0
    recoveries: int = 0
    reconnects: int = 0
    lost_records: int = 0
    series: dict[str, array] = field(
        default_factory=lambda: {name: array("f") for name in ("round_trip", "queue", "inference", "age", "jitter")}
    )

    def __post_init__(self):
        self._last: TickRecord | None = None

    def tick(self, ticked: TickRecord) -> None:
        self.sources[ticked.source] += 1
        for event in ticked.events:
            self.count(event.stage, event.reaction, event.cause)
        last, self._last = self._last, ticked
        if ticked.source == "policy":
            self.series["age"].append(ticked.age)
        if last is not None and ticked.tick == last.tick + 1:
            self.series["jitter"].append(ticked.sensed.t - last.sensed.t - 1 / self.hz)
        if ticked.source == "person" and (last is None or last.source != "person"):
            self.takeovers += 1

    def count(self, stage: str, reaction: str, cause: str) -> None:
        self.events[stage, reaction] += 1
        self.causes.setdefault((stage, reaction), cause)

    def answer(self, answer: ChunkAnswer) -> None:
        self.series["round_trip"].append(answer.received_at - answer.sent_at)
        self.series["queue"].append(answer.queue_s)
        self.series["inference"].append(answer.infer_s)

    def pause(self) -> None:
        """What follows does not follow on the last tick: between episodes the rate does not count."""
        self._last = None

    def result(self) -> dict[str, Any]:
        """What JSON can hold."""
        judged = [episode for episode in self.episodes if episode["success"] is not None]
        won, ticks = sum(episode["success"] for episode in judged), self.sources.total()
        low, high = wilson(won, len(judged))
        share = self.sources["policy"] / ticks if ticks else 0.0
        return {
            "success": {"value": won / len(judged) if judged else None, "low": low, "high": high, "n": len(judged)},
            "episodes": self.episodes,
            "latency_ms": {name: summary(self.series[name]) for name in ("round_trip", "queue", "inference", "age")},
            "jitter_ms": summary(np.abs(self.series["jitter"])),
            "ticks": {"n": ticks, "hz": self.hz, "not_fresh": 1 - share if ticks else 0.0, **self.sources},
            "events": [
                {"stage": stage, "reaction": reaction, "count": count, "first_cause": self.causes[stage, reaction]}
                for (stage, reaction), count in self.events.most_common()
            ],
            "interventions": {"takeovers": self.takeovers, "ticks": self.sources["person"]},
            "recoveries": self.recoveries, "reconnects": self.reconnects, "lost_records": self.lost_records,
        }  # fmt: skip


def summary(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Percentiles in milliseconds; only n = 0 where there is nothing."""
    if not len(seconds):
        return {"n": 0}
    values = np.asarray(seconds, np.float64) * 1000
    percentiles = {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}
    return {"n": len(values), **percentiles, "max": float(values.max())}


# A person takes the robot over from the policy and gives it back: never with a jump, never unnoticed.

RAMP_S = 0.5  # seconds in which what the hand and the robot differ by when it takes over is faded out


class Takeover:
    """Who drives. While `taken` the policy does not, whatever becomes of the hand.

    First the robot comes to rest, then it waits until no channel of the hand is further than `near` from it, then it
    follows the hand. A hand that says nothing moves nothing: the robot holds.

    Args:
        near: float [A], in the channels' units.
        hz: ticks a second.
    """

    def __init__(self, teleop_device: TeleopDevice, channels: Sequence[Channel], near: np.ndarray, hz: float):
        self._teleop_device, self._channels, self._near, self._ramp = teleop_device, tuple(channels), near, RAMP_S * hz
        self._speeds = np.array([channel.kind == "speed" for channel in channels])
        self._waited: np.ndarray | None = None  # the last `_still` that there was
        self.turn(False)

    def turn(self, taken: bool) -> None:
        """The person takes over, or gives back."""
        self.taken, self.lost = taken, ""
        self.message = "a person takes over" if taken else "a person gives back: the policy drives"
        self._rest()

    def _rest(self) -> None:
        self._last: np.ndarray | None = None  # where the robot was sent a tick ago
        self._still: np.ndarray | None = None  # where it waits for the hand
        self._start: tuple[int, np.ndarray] | None = None  # the tick, and by how much the robot was off the hand

    @property
    def follows(self) -> bool:
        return self._start is not None

    def target(self, ticked: TickRecord) -> np.ndarray | None:
        """What the robot is to be sent after this tick, float32 [A]; None: nothing, so that it holds.

        `said` is then what the person should know, in one line, and `lost` why there is no hand, or ''.
        """
        requested = self._teleop_device.target()
        if requested is None:
            self._rest()
            self.lost = self._teleop_device.trouble or "it says nothing"
            self.message = f"the teleoperator is lost ({self.lost}): the robot holds; mend it, or give back"
            return None
        self.lost = ""
        if self._start is None and not self._takes(ticked, requested):
            return self._still
        tick, off = self._start
        share = min(1.0, (ticked.tick - tick) / self._ramp)
        return (requested + (1 - share) * off).astype(np.float32)

    def _takes(self, ticked: TickRecord, requested: np.ndarray) -> bool:
        """Whether the robot follows from now on."""
        sent, last = ticked.sent, self._last
        self._last = sent
        if self._still is None:
            if sent is None or last is None or (sent != last).any():
                self.message = "a person takes over: the robot comes to rest"
                return False
            self._still = self._waited = np.where(self._speeds, np.float32(0), sent)
        off = self._still - requested
        worst = int(np.argmax(np.abs(off) / self._near))
        if abs(off[worst]) > self._near[worst]:
            channel = self._channels[worst]
            self.message = f"bring the hand to the robot: {channel.name} is {-off[worst]:+.0f} {channel.unit} off"
            return False
        self._start, self.message = (ticked.tick, off), "a person drives"
        return True

    def mark_waiting(self, ticked: TickRecord) -> TickRecord:
        """The tick as it is to be told: a robot that waits for the hand is held, not driven."""
        held = ticked.source == "person" and not self.follows and self._waited is not None
        waits = held and np.array_equal(ticked.requested, self._waited)
        return replace(ticked, source="hold") if waits else ticked


# When the next chunk is asked for, and how an answer becomes a plan. All timing is by the motion process' ticks.

LATENCY_WINDOW = 100  # answers over which the latency is judged: a slow start is forgotten
OVERDUE = 2.0  # seconds, or four times the latency: then an answer is no longer waited for
GRACE = 0.5  # seconds after its length for which a plan that begins when it arrives may still run
UNBEGUN = 10  # ticks after which a plan that was not begun never will be


@dataclass(frozen=True)
class ChunkRequest:
    """An observation that is to be answered."""

    tick: int
    observed: float  # boottime()
    episode: int


class Chunks:
    """One question at a time; `plan` numbers its plans itself, so that policies can take turns.

    Args:
        tick_hz: ticks a second; a policy that does not know its rate acts at it.
    """

    def __init__(self, policy: PolicySource, spec: PolicySpec, tick_hz: float):
        self.hz = spec.hz or tick_hz
        self._policy, self._tick_hz = policy, tick_hz
        self._declared = declared(spec)
        self._open: dict[int, ChunkRequest] = {}
        self._running: ActionPlan | None = None  # `first` once it is known
        self._sent_at = 0  # the tick at which it was handed over
        self._numbers = itertools.count()
        self._latency: deque[float] = deque(maxlen=LATENCY_WINDOW)
        self._own: set[int] = set()  # numbers of plans that are not the policy's

    def begin(self) -> None:
        """An episode begins: nothing is running and nothing awaited."""
        self._open.clear()
        self._running = None

    def saw(self, ticked: TickRecord) -> None:
        """Learns when a plan that was to begin at once has begun."""
        running = self._running
        if running is not None and running.first is None and ticked.seq == running.seq:
            self._running = replace(running, first=ticked.tick)

    def wants(self, tick: int, now: float) -> bool:
        """Whether the observation of this tick, the newest, should be asked about."""
        if any(now - question.observed < max(OVERDUE, 4 * self.latency()) for question in self._open.values()):
            return False
        if self._policy.mode == "sync":
            return self._over(tick - 1)  # the robot has been seen after its last action
        execute = self._policy.execute
        return execute is None or self._running is None or self._done(tick + 1) >= execute or self._over(tick)

    def prefix(self, tick: int) -> tuple[np.ndarray | None, int]:
        """For a policy that in-paints: the running actions float32 [P, A] from the next tick on, and how many of them
        will have been executed when the answer comes: the 95th percentile of the last latencies."""
        running = self._running
        if self._policy.mode != "rtc" or running is None or self._over(tick):
            return None, 0
        rest = running.actions[max(0, self._done(tick + 1)) :]
        delay = max(self._policy.lead, math.ceil(self.latency() * self.hz))
        return (rest, min(delay, len(rest))) if len(rest) else (None, 0)

    def expect(self, seq: int, question: ChunkRequest) -> None:
        self._open = {seq: question}

    def forget(self) -> None:
        """What was asked will not be answered: the connection was lost, or its answer is not wanted any more."""
        self._open.clear()

    def plan(self, answer: ChunkAnswer, tick: int) -> ActionPlan | None:
        """The plan of an answer; None for one that is no longer waited for. `tick`: the newest that is known."""
        question = self._open.pop(answer.seq, None)
        if question is None:
            return None
        self._latency.append(boottime() - question.observed)
        sync, execute = self._policy.mode == "sync", self._policy.execute
        actions = answer.actions[:execute] if sync else answer.actions
        if sync:
            first, expires = None, boottime() + len(actions) / self.hz + GRACE
        else:
            first, expires = question.tick + 1, question.observed + len(actions) / self.hz + GRACE
        if self._policy.expiry_s is not None:
            expires = question.observed + self._policy.expiry_s
        blend = self._policy.mode == "blend"
        observed, number = question.observed, next(self._numbers)
        self._running = ActionPlan(number, first, actions, self.hz, expires, observed, blend, self._declared)
        self._sent_at = tick
        return self._running

    def own(self, actions: np.ndarray, seconds: float) -> ActionPlan:
        """A plan that does not come from the policy: begins at once and ends after so many seconds at most."""
        now = boottime()
        self.begin()
        plan = ActionPlan(next(self._numbers), None, actions, self._tick_hz, now + seconds, now)
        self._own.add(plan.seq)
        return plan

    def nothing(self, actions: int) -> ActionPlan:
        """A plan that takes the place of whatever is running and asks for nothing, so that the robot holds.

        Args:
            actions: numbers of an action.
        """
        return replace(self.own(np.zeros((1, actions), np.float32), 1.0), expires=0.0)

    def scripted(self, seq: int) -> bool:
        """Whether a plan was one of `own`."""
        return seq in self._own

    def latency(self) -> float:
        """Seconds from an observation to its plan: the 95th percentile of the last answers; 0 before the first."""
        return float(np.quantile(self._latency, 0.95)) if self._latency else 0.0

    def _done(self, tick: int) -> int:
        """Actions of the running plan that will have been begun before a tick."""
        if self._running is None or self._running.first is None:
            return 0
        return math.floor((tick - self._running.first) * self.hz / self._tick_hz + 1e-9)

    def _over(self, tick: int) -> bool:
        """Whether the running plan has no action left for the tick after."""
        running = self._running
        if running is None:
            return True
        if running.first is None:
            return tick - self._sent_at > UNBEGUN
        return self._done(tick + 1) >= len(running.actions)


# All that a run has open: the motion process, the policy's server, cameras, hands, the operator, the recording.

PAUSE_S = 0.003  # between two looks at everything; an answer ends it at once
SHOW_S = 0.1  # between two pictures of the run on the page

NOTHING: Mapping[str, CameraPicture] = MappingProxyType({})


@dataclass(eq=False)
class DeploySession:
    """Shared by the episodes of a run; used by one thread."""

    config: Deploy
    motion: Motion
    client: Client
    chunks: Chunks
    scene: DeployScene
    ledger: TickStatistics
    ender: Ender
    keys: Keyboard
    camera_process: CameraProcess | None = None
    teleop_device: TeleopDevice | None = None
    view: DashboardServer | None = None
    message: str = ""  # what the run is at, in one line
    bad: bool = False
    events: dict[str, tuple[int, str]] = field(default_factory=dict)  # what -> how often, the last cause; newest first
    _last_show_s: float = 0.0

    @property
    def by_person(self) -> bool:
        """Whether there is somebody who can press something."""
        return self.view is not None or self.keys.open

    def lookout(self) -> Lookout:
        config = self.config
        return Lookout(tuple(config.cameras), self.motion.info.channels, config.cameras_stale_s, config.cameras_stop_s)

    def takeover(self) -> Takeover | None:
        """None without a teleoperator. A hand may be as far from the robot as the governor's first target may."""
        if self.teleop_device is None:
            return None
        channels, hz = self.motion.info.channels, self.motion.info.hz
        return Takeover(self.teleop_device, channels, bounds(channels, self.config.safety, hz).jump, hz)

    def latest_pictures(self) -> Mapping[str, CameraPicture]:
        return self.camera_process.latest() if self.camera_process else NOTHING

    def images(self, ticked: TickRecord) -> dict[str, np.ndarray]:
        """The cameras' newest pictures, then the body's own of this tick."""
        return {name: latest.picture for name, latest in self.latest_pictures().items()} | dict(ticked.sensed.images)

    def orders(self) -> list[str]:
        stop = ["stop"] if self.ender.stopped else []
        return [*stop, *self.keys.orders(), *(self.view.orders() if self.view else [])]

    def say(self, text: str, bad: bool = False) -> None:
        self.message, self.bad = text, bad
        print(text, file=sys.stderr, flush=True)

    def event(self, what: str, cause: str = "") -> None:
        """For the page: the last cause of each, and how often it was."""
        count = self.events.pop(what, (0, ""))[0] + 1
        self.events = dict([(what, (count, cause)), *list(self.events.items())[:11]])

    def show(self, ticked: TickRecord | None) -> None:
        """To the page, now and then."""
        now = boottime()
        if self.view is not None and ticked is not None and now - self._last_show_s > SHOW_S:
            self._last_show_s = now
            self.view.show(describe_session(self, ticked, now), self.images(ticked))

    def idle(self, until: Callable[[], bool]) -> None:
        """Waits for something between episodes: the robot holds, and is told that we are here."""
        while not until() and not self.ender.code and self.motion.alive:
            self.motion.pet()
            self.motion.ticks()
            self.show(self.motion.latest())
            time.sleep(10 * PAUSE_S)


def select_pictures[P](pictures: Mapping[str, P], names: Sequence[str] | None) -> dict[str, P]:
    """Those of the pictures that the policy is to see, in its order.

    Raises:
        UserError: there is no such camera.
    """
    for name in names or ():
        if name not in pictures:
            raise UserError(f"policy.pictures: no camera {name!r}; there are {', '.join(pictures) or 'none'}")
    return {name: pictures[name] for name in (pictures if names is None else names)}


def find_state_indices(names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Places of the numbers of the state that the policy is told, in its order.

    Raises:
        UserError: there is no such number.
    """
    for name in wanted or ():
        if name not in names:
            raise UserError(f"policy.state: no number {name!r}; there are {', '.join(names)}")
    return [list(names).index(name) for name in (names if wanted is None else wanted)]


def wants(motion: Motion, state: Sequence[str], images: Mapping[str, Sequence[int]]) -> Wants:
    """What the robot sends and takes, for the server to compare. A state has the unit of the channel of its name."""
    about = motion.info
    units = {channel.name: channel.unit for channel in about.channels}
    return Wants(
        tuple(Feature(name, units.get(name, "")) for name in state),
        tuple(Picture(name, int(size[0]), int(size[1])) for name, size in images.items()),
        tuple(Feature(channel.name, channel.unit) for channel in about.controls),
    )
