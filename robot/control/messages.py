"""What the motion process and whoever started it tell each other, as bytes (`vlrl.decoders`)."""

from __future__ import annotations

import math
import mmap
import os
import socket
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot.types import Channel, RobotState, RobotStatus, SafetyEvent, TickRecord
from vlrl.decoders import wire_pack, wire_unpack

# Whole messages over a socket between two processes, by calls that never wait: a stopped reader delays no tick.

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
PENDING = 1 << 22  # bytes that may wait to be sent; beyond, new messages are lost and counted


class PipeEnd:
    """One end. Used by one thread for sending and one for receiving.

    Messages go with their length before them: 4 bytes, little endian.
    """

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._socket, self._out, self._in = end, deque[memoryview](), bytearray()
        self._waiting = 0
        self.lost = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something still waits to be sent by `flush`."""
        return bool(self._out)

    def send(self, message: bytes) -> None:
        """Sends what the socket takes now; the rest with the next calls.

        Raises:
            EOFError: the other side is gone.
        """
        if self._waiting + len(message) > PENDING:
            self.lost += 1
        else:
            self._out.append(memoryview(len(message).to_bytes(4, "little") + message))
            self._waiting += len(message) + 4
        self.flush()

    def flush(self) -> None:
        """Raises EOFError: the other side is gone."""
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except BlockingIOError:
                return
            except OSError:
                raise EOFError from None
            self._waiting -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def receive(self) -> list[bytes]:
        """What has come in whole.

        Raises:
            EOFError: the other side is gone, and all that it had sent has been read.
        """
        gone = False
        while not gone:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            gone = not data
        messages = []
        while len(self._in) >= 4 and len(self._in) >= (end := 4 + int.from_bytes(self._in[:4], "little")):
            messages.append(bytes(self._in[4:end]))
            del self._in[:end]
        if gone and not messages:
            raise EOFError
        return messages

    def close(self) -> None:
        self._socket.close()


# Pictures from one process to another through memory that both see: the newest few, whoever is slow misses some.

SLOTS = 8  # ticks whose pictures are kept
EMPTY = (-1).to_bytes(8, "little", signed=True)
Placed = list[tuple[str, list[int], int]]  # name, shape, and where in the file


def memory() -> Any:
    """A file in memory, without a name: it is gone with the last process that has it open."""
    return tempfile.TemporaryFile(dir=MEMORY if MEMORY.is_dir() else None)


class MappedPictures:
    """One side, writer or reader, of the file with this descriptor.

    A slot begins with the number of its tick, -1 while it is written.
    """

    def __init__(self, descriptor: int):
        self._file, self._map, self._size, self._next = descriptor, None, 0, 0

    def write(self, tick: int, images: Mapping[str, np.ndarray]) -> Placed:
        """Where `read` finds them. The file grows to what the largest lot needs (OSError: there is no such memory)."""
        if not images:
            return []
        needed = 8 + sum(image.nbytes for image in images.values())
        if needed > self._size:
            self._size = needed
            os.pwrite(self._file, bytes(SLOTS * needed), 0)
        view = self._view(SLOTS * self._size)
        begin, self._next = self._next * self._size, (self._next + 1) % SLOTS
        view[begin : begin + 8] = EMPTY
        placed, at = [], begin + 8
        for name, image in images.items():
            np.frombuffer(view, np.uint8, image.size, at)[:] = image.reshape(-1)
            placed.append((name, list(image.shape), at))
            at += image.nbytes
        view[begin : begin + 8] = tick.to_bytes(8, "little", signed=True)
        return placed

    def read(self, tick: int, placed: Sequence[Any]) -> dict[str, np.ndarray]:
        """Copies, uint8 [height, width, 3]; {} where they have been written over since."""
        if not placed:
            return {}
        begin = placed[0][2] - 8
        ends = [at + int(np.prod(shape)) for _, shape, at in placed]
        view, stamp = self._view(max(ends)), tick.to_bytes(8, "little", signed=True)
        if view[begin : begin + 8] != stamp:
            return {}
        read = {
            name: np.frombuffer(view, np.uint8, end - at, at).reshape(shape).copy()
            for (name, shape, at), end in zip(placed, ends, strict=True)
        }
        return read if view[begin : begin + 8] == stamp else {}

    def _view(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file, max(size, os.fstat(self._file).st_size))
        return self._map


# Which action is due at which tick: plans of a policy laid on the ticks of the motion process.

LAYERS = 8  # plans that may be blended with one another; the oldest goes first


@dataclass(frozen=True, eq=False)
class ActionPlan:
    """A chunk of actions and when each of them is due.

    Raises ValueError where it cannot be read; numbers that are not finite are the governor's business.
    """

    seq: int  # of the observation's request; a plan older than the newest one is not taken
    first: int | None  # the tick of actions[0]; None: the next one
    actions: np.ndarray  # float32 [K, A], K at least 1
    hz: float  # of the actions, not of the ticks
    expires: float  # boottime() after which nothing of it may be begun
    observed: float  # boottime() of the observation that it answers
    blend: bool = False  # fade over from the plan before it, as long as that one lasts
    declared: np.ndarray | None = None  # float32 [2, A]: low and high of the policy's actions, NaN where it says none

    def __post_init__(self):
        actions = np.asarray(self.actions, np.float32)
        if actions.ndim != 2 or not len(actions) or not (self.hz > 0 and math.isfinite(self.hz)):
            raise ValueError(
                f"a plan of {actions.shape} actions at {self.hz:g} Hz: must be [K, A] with K and hz above 0"
            )
        object.__setattr__(self, "actions", actions)


@dataclass(frozen=True, eq=False)
class Due:
    action: np.ndarray  # float32 [A]
    age_s: float  # since the observation of the newest plan in it
    seq: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """A plan on the ticks `begin` <= tick < `end`. `fade` ticks of them are shared with the layers below."""

    plan: ActionPlan
    first: int  # the tick of actions[0]; before `begin` where the plan came late
    begin: int
    end: int
    fade: int = 0

    def share(self, tick: int) -> float:
        """How much of the action is this plan's, above 0 to 1."""
        return min(1.0, (tick - self.begin + 1) / (self.fade + 1))


class Timeline:
    """Plans on ticks. The newest that has begun counts; with `blend` it takes over step by step.

    Where rates differ, positions are interpolated between two actions and the last one is kept; speeds are held.

    Args:
        channels: the numbers of an action; their kinds count.
        hz: ticks a second.
    """

    def __init__(self, channels: Sequence[Channel], hz: float):
        self._moves = np.array([channel.kind == "position" for channel in channels])
        self._hz = hz
        self._layers: list[_Layer] = []  # oldest first

    def add(self, plan: ActionPlan, tick: int) -> None:
        """Lays a plan on the ticks from `tick` on, the next one to be begun. A plan that is over by then is dropped.

        Raises:
            ValueError: its actions have another number of channels.
        """
        if plan.actions.shape[1] != len(self._moves):
            raise ValueError(f"actions of {plan.actions.shape[1]} numbers for {len(self._moves)} channels")
        first = tick if plan.first is None else plan.first
        begin, end = max(first, tick), first + math.ceil(len(plan.actions) * self._hz / plan.hz)
        if end <= begin or any(layer.plan.seq > plan.seq for layer in self._layers):
            return
        below = [layer for layer in self._layers if layer.begin < begin]  # the others would begin later: replaced
        shared = max((layer.end for layer in below), default=begin) - begin if plan.blend else 0
        fade = min(max(shared, 0), end - begin)
        self._layers = [*below, _Layer(plan, first, begin, end, fade)][-LAYERS:]

    def at(self, tick: int, now: float) -> Due | None:
        """What is due at a tick, which must not be before the last one asked for; None where nothing is.

        Args:
            now: boottime(), for what has expired.
        """
        layers = [layer for layer in self._layers if layer.begin <= tick]
        if layers and layers[-1].share(tick) == 1:
            self._layers = self._layers[len(layers) - 1 :]  # what it replaced never comes back
            layers = layers[-1:]
        live = [layer for layer in layers if tick < layer.end and now <= layer.plan.expires]
        if not live:
            return None
        action = self._value(live[0], tick)
        for layer in live[1:]:
            share = np.float32(layer.share(tick))
            action = (1 - share) * action + share * self._value(layer, tick)
        newest = live[-1].plan
        return Due(action, now - newest.observed, newest.seq)

    def left(self, tick: int) -> int:
        """Ticks from this one on until the last plan is over."""
        return max([layer.end - tick for layer in self._layers] + [0])

    def clear(self) -> None:
        self._layers = []

    def _value(self, layer: _Layer, tick: int) -> np.ndarray:
        plan, last = layer.plan, len(layer.plan.actions) - 1
        place = (tick - layer.first) * plan.hz / self._hz
        index = min(int(place), last)
        action, following = plan.actions[index], plan.actions[min(index + 1, last)]
        between = np.float32(place - index)
        if not between or index == last:
            return action.copy()
        return np.where(self._moves, (1 - between) * action + between * following, action)


@dataclass(frozen=True)
class MotionInfo:
    """What a motion process drives."""

    hz: float  # ticks a second
    channels: tuple[Channel, ...]  # of targets: what the governor guards and the robot is sent
    controls: tuple[Channel, ...]  # of plans: the same, or speeds that are added to the last target
    names: tuple[str, ...]  # of the state
    images: Mapping[str, tuple[int, int]]  # height and width of each picture; {} where the robot shows none
    priority: str  # how the process is scheduled: nice (before others) or normal


def pack_info(about: MotionInfo) -> bytes:
    return wire_pack({"kind": "about", "about": asdict(about)})


def read_info(said: Mapping[str, Any]) -> MotionInfo:
    images = {name: tuple(size) for name, size in said["images"].items()}
    channels, controls = (tuple(Channel(**each) for each in said[key]) for key in ("channels", "controls"))
    return MotionInfo(said["hz"], channels, controls, tuple(said["names"]), images, said["priority"])


def pack_plan(plan: ActionPlan) -> bytes:
    fields = {
        "kind": "plan", "seq": plan.seq, "first": plan.first, "hz": plan.hz, "expires": plan.expires,
        "observed": plan.observed, "blend": plan.blend,
    }  # fmt: skip
    arrays = {"actions": plan.actions} | ({} if plan.declared is None else {"declared": plan.declared})
    return wire_pack(fields, arrays)


def read_plan(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ActionPlan:
    names = ("seq", "first", "hz", "expires", "observed", "blend")
    return ActionPlan(
        actions=arrays["actions"], declared=arrays.get("declared"), **{name: fields[name] for name in names}
    )


@dataclass(frozen=True)
class MotionTiming:
    """How punctual the motion process is."""

    late: float  # seconds that this tick began after it should have
    overruns: int  # ticks so far that took longer than a tick


def pack_ticked(ticked: TickRecord, timing: MotionTiming, began: int, task: str, pictures: MappedPictures) -> bytes:
    """`began`: how many episodes have begun; `task`: the instruction, where the robot gives one."""
    sensed = ticked.sensed
    fields = {
        "kind": "tick", "tick": ticked.tick, "t": sensed.t, "health": dict(sensed.health),
        "signals": {**vars(sensed.signals), "numbers": dict(sensed.signals.numbers)},
        "pictures": pictures.write(ticked.tick, sensed.images), "source": ticked.source, "age": ticked.age,
        "seq": ticked.seq, "events": [vars(event) for event in ticked.events], "stopped": ticked.stopped,
        "began": began, "task": task, "timing": vars(timing),
    }  # fmt: skip
    arrays = {"state": sensed.state, "measured": sensed.measured, "asked": ticked.requested, "sent": ticked.sent}
    return wire_pack(fields, {name: array for name, array in arrays.items() if array is not None})


def read_ticked(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], pictures: MappedPictures) -> TickRecord:
    images = pictures.read(fields["tick"], fields["pictures"])
    signals = RobotStatus(**fields["signals"])
    sensed = RobotState(fields["t"], arrays["state"], arrays["measured"], images, fields["health"], signals)
    events = tuple(SafetyEvent(**each) for each in fields["events"])
    requested, sent = arrays.get("asked"), arrays.get("sent")
    return TickRecord(fields["tick"], sensed, requested, sent, fields["source"], fields["age"], fields["seq"], events,
                  fields["stopped"])  # fmt: skip


def read(message: bytes) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """The kind of a message, its fields and its arrays."""
    fields, arrays = wire_unpack(message)
    return fields.pop("kind"), fields, arrays
