"""The whole emulator in one process: follower, leader, cameras, faults, and what can be asked of them."""

from __future__ import annotations

import base64
import json
import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot.emulator.faults import KINDS, Fault, Faults, parse
from robot.emulator.servo import Bus, Chain, PacketLog, Servo, calibration
from robot.sim import so101 as model
from robot.sim.so101 import CAMERAS, HOME, JOBS, JOINTS, STEP, WITHIN, scene
from robot.sim.tabletop import Camera, advance, load_mujoco
from vlrl.types import UserError

# The follower: MuJoCo's arm moved by six servos, and the scene that it stands in.

JAMMED = 50.0  # N m of friction


class SimulatedArm:
    """A simulated arm. Its methods are to be called by one thread at a time or with the chain's lock held."""

    def __init__(self, chain: Chain, job: str, seed: int):
        self.chain, self.job = chain, job
        self.model: Any = load_mujoco().MjModel.from_xml_string(model.xml())
        self.data: Any = load_mujoco().MjData(self.model)
        self.scene = scene(job, seed)
        self.set_scene(seed)

    def set_scene(self, seed: int) -> None:
        """Lays the disc and puts the arm where this scene begins, as if by hand: at rest, with that as its goal."""
        self.scene = scene(self.job, seed)
        load_mujoco().mj_resetData(self.model, self.data)
        self.data.qpos[:] = model.to_radians(np.array(self.scene.start))
        self.data.mocap_pos[0] = (*self.scene.goal[:2], 0.0)
        for servo, degrees in zip(self.chain.servos, np.degrees(self.data.qpos), strict=True):
            servo.goal(float(degrees))
        self._sense(0.0)

    def advance(self, steps: int) -> None:
        """As many steps of physics, under what the servos do now."""
        self.chain.suffer()
        for i, servo in enumerate(self.chain.servos):
            law = servo.law(steps * model.STEP)
            blind = law.believed is not None
            self.model.actuator_gainprm[i, 0] = law.stiffness
            self.model.actuator_biasprm[i, 1] = 0.0 if blind else -law.stiffness
            self.model.dof_frictionloss[i] = JAMMED if servo.trouble.jammed else model.FRICTION
            self.model.actuator_forcerange[i] = (-law.limit, law.limit)
            self.data.ctrl[i] = law.target - (law.believed if blind else 0.0)
        advance(self.model, self.data, steps)
        self._sense(steps * model.STEP)
        self.chain.record.sample(time.monotonic(), tuple(self.pose().tolist()))

    def _sense(self, seconds: float) -> None:
        degrees, speeds, torques = np.degrees(self.data.qpos), np.degrees(self.data.qvel), self.data.actuator_force
        for servo, *now in zip(self.chain.servos, degrees.tolist(), speeds.tolist(), torques.tolist(), strict=True):
            for did in servo.sense(*now, seconds):
                self.chain.record.event(did, arm=self.chain.arm, servo=servo.name)

    def pose(self) -> np.ndarray:
        """Where the joints truly are, float64 [6], degrees and percent."""
        return model.to_user(self.data.qpos.copy())

    def tip(self) -> np.ndarray:
        """float64 [3], metres."""
        load_mujoco().mj_kinematics(self.model, self.data)
        return self.data.site("grip").xpos.copy()


# The cameras' process: it takes pictures of the simulated arm and publishes them until its pipe is closed.

QUALITY = 95  # of JPEG


def serve(shared: Any, pipe: Connection, sizes: dict[str, tuple[int, int]], hz: float, ports: dict[str, int]) -> None:
    """The process: pictures at a rate until the pipe is closed at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    try:
        camera_process = {name: _Eye(name, size, ports.get(name, 0)) for name, size in sizes.items()}
    except Exception as error:  # whatever a renderer or a socket raises is told in one line
        pipe.send(str(error))
        return
    pipe.send({name: eye.port for name, eye in camera_process.items()})
    due, troubles, last_request = time.monotonic(), {}, time.monotonic()
    while True:
        try:
            while pipe.poll(max(due - time.monotonic(), 0)):
                message = pipe.recv()
                if message is None:
                    now = time.monotonic()
                    pipe.send(
                        {name: eye.count() / max(now - last_request, 1e-9) for name, eye in camera_process.items()}
                    )
                    last_request = now
                else:
                    troubles = message
        except (EOFError, OSError):
            return
        for name, eye in camera_process.items():
            eye.look(np.array(shared[:]), {kind for kind, names in troubles.items() if name in names})
        due = max(due + 1 / hz, time.monotonic())


class _Eye:
    """One camera: its own simulated data, its renderer, its socket."""

    def __init__(self, name: str, size: tuple[int, int], port: int):
        import zmq

        self._name, self._size, self._sent, self._last, self._grain = name, size, 0, "", _Grain(size)
        self._model = load_mujoco().MjModel.from_xml_string(model.xml(size))
        self._data = load_mujoco().MjData(self._model)
        self._camera = Camera(self._model, name, size)
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 2)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        except zmq.ZMQError as error:
            raise UserError(f"camera {name}: port {port}: {error}") from None
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def look(self, state: np.ndarray, troubles: set[str]) -> None:
        """Takes a picture and sends it, as far as nothing is wrong."""
        if "stop" in troubles:
            return
        if "freeze" not in troubles or not self._last:
            self._data.qpos[:], self._data.mocap_pos[0] = state[:6], state[6:]
            picture = Image.new("RGB", self._size) if "black" in troubles else self._camera.take(self._data)
            self._last = jpeg(self._grain.on(picture))
        message = {"timestamps": {self._name: time.time()}, "images": {self._name: self._last}}
        self._socket.send_string(json.dumps(message))
        self._sent += 1

    def count(self) -> int:
        """Pictures sent since it was last asked."""
        sent, self._sent = self._sent, 0
        return sent


class _Grain:
    """Noise of a sensor, at most two levels: the pictures of an arm at rest differ, as long as they are new."""

    def __init__(self, size: tuple[int, int]):
        self._rng, (width, height) = np.random.default_rng(0), size
        self._tile = self._rng.integers(0, 3, (height + 32, width + 32, 3), np.uint8)

    def on(self, picture: Image.Image) -> np.ndarray:
        """uint8 [height, width, 3]."""
        import cv2

        (width, height), (x, y) = picture.size, self._rng.integers(0, 32, 2).tolist()
        return cv2.add(np.asarray(picture), np.ascontiguousarray(self._tile[y : y + height, x : x + width]))


def jpeg(picture: np.ndarray) -> str:
    """An RGB picture as a message holds it. It is packed as if it were BGR, and unpacked so by lerobot's reader."""
    import cv2

    how = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return base64.b64encode(cv2.imencode(".jpg", picture, how)[1]).decode()


# The leader: an arm that a hand leads along a path, or that follows its servos while they have torque. No physics.

FASTEST = 300.0  # degrees a second of a servo without load


class Leader:
    """A pose, degrees and percent [6]. Its methods are to be called with the chain's lock held, or by one thread."""

    def __init__(self, chain: Chain):
        self.chain, self._pose, self._path = chain, np.array(HOME), []
        for servo, degrees in zip(chain.servos, np.degrees(model.to_radians(self._pose)), strict=True):
            servo.goal(float(degrees))
        self.advance(0)

    def lead(self, path: Sequence[tuple[float, Sequence[float]]]) -> None:
        """The hand goes through poses, each reached so many seconds after the one before."""
        self._path = [(float(seconds), np.array(pose).clip(*model.USER_LIMITS.T)) for seconds, pose in path]

    def pose(self) -> dict[str, float]:
        """Degrees and percent by joint."""
        return dict(zip(model.JOINTS, self._pose.tolist(), strict=True))

    def advance(self, steps: int) -> None:
        seconds, before = steps * model.STEP, self._pose
        self._pose = self._led(seconds)
        speeds = (self._pose - before) / seconds if seconds else np.zeros(6)
        degrees = np.degrees(model.to_radians(self._pose))
        self.chain.suffer()
        for servo, angle, speed in zip(self.chain.servos, degrees.tolist(), speeds.tolist(), strict=True):
            servo.sense(angle, speed, 0.0, seconds)

    def _led(self, seconds: float) -> np.ndarray:
        """The pose after so many seconds: servos with torque are stronger than the hand."""
        pose = self._by_hand(seconds)
        now = np.degrees(model.to_radians(self._pose))
        for i, servo in enumerate(self.chain.servos):
            law = servo.law(seconds)
            if law.stiffness:
                step = np.clip(np.degrees(law.target) - now[i], -FASTEST * seconds, FASTEST * seconds)
                now[i] += step
                pose[i] = model.to_user(np.radians(now))[i]
        return pose

    def _by_hand(self, seconds: float) -> np.ndarray:
        pose = self._pose.copy()
        while self._path and seconds >= self._path[0][0]:
            left, pose = self._path.pop(0)
            pose, seconds = pose.copy(), seconds - left
        if self._path:
            left, aim = self._path[0]
            self._path[0] = (left - seconds, aim)
            pose += (aim - pose) * seconds / left
        return pose


# Cameras that publish pictures of the simulated arm over ZeroMQ, as lerobot's `ZMQCamera` reads them.
#
# A message is JSON {"timestamps": {name: seconds}, "images": {name: JPEG in base64}}. Every camera has a port of its
# own:
# lerobot takes the first picture of a message where its own is missing.
#
# They run in a process of their own: rendering must not keep the servos waiting. What it needs comes through memory
# that
# is shared (where the joints and the disc are) and a pipe (faults).

PATIENCE = 30.0  # seconds until the first picture


class Cameras:
    """The handle of the cameras' process. To be closed.

    Args:
        sizes: name (`front`, `top`) -> width, height in pixels.
        hz: pictures a second of each camera, at most.
        ports: name -> TCP port on 127.0.0.1; one that is missing is chosen.

    Raises:
        UserError: no such camera or size, a port that is taken, no way to render.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, int]], hz: float, ports: Mapping[str, int]):
        for name, size in sizes.items():
            if name not in CAMERAS:
                raise UserError(f"camera {name!r}: must be one of {', '.join(CAMERAS)}")
            if not all(16 <= side <= 1920 for side in size):
                raise UserError(f"camera {name}: {size[0]}x{size[1]}: must be 16 to 1920 pixels each way")
        context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()  # of the pipe
        self._shared = context.RawArray("d", 6 + 3)
        self._pipe, theirs = context.Pipe()
        options = ({name: tuple(size) for name, size in sizes.items()}, hz, dict(ports))
        self._process = context.Process(target=serve, args=(self._shared, theirs, *options), daemon=True)
        self._process.start()
        theirs.close()
        self.ports: dict[str, int] = self._first()

    def _first(self) -> dict[str, int]:
        try:
            reply = self._pipe.recv() if self._pipe.poll(PATIENCE) else "no picture in time"
        except EOFError:
            reply = "their process died"
        if isinstance(reply, str):
            self.close()
            raise UserError(f"cameras: {reply}")
        return reply

    def show(self, qpos: np.ndarray, disc: np.ndarray) -> None:
        """What is to be seen from now on: joint angles [6] in radians, the disc's place [3] in metres."""
        self._shared[:] = [*qpos, *disc]

    def trouble(self, faults: Mapping[str, list[str]]) -> None:
        """For each of `freeze`, `black` and `stop` the cameras that suffer it; the rest are well."""
        with self._lock:
            self._pipe.send(dict(faults))

    def rates(self) -> dict[str, float]:
        """Pictures a second of each camera since it was last asked."""
        with self._lock:
            self._pipe.send(None)
            return self._pipe.recv() if self._pipe.poll(5.0) else {}

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


# The thread that moves arms by as much time as has gone by.

EVERY = 0.005  # seconds between moves
SWITCH = 0.0002  # seconds that a thread may keep the others from running: answers are to be quick
BEHIND = 0.1  # seconds: what a busy computer may owe; more is lost, and counted


class ArmClock:
    """Moves arms in wall-clock time. To be started and closed; `fault` says why it stopped by itself."""

    def __init__(self, arms: Sequence[SimulatedArm | Leader]):
        self._arms, self._closing = arms, threading.Event()
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self.lost, self.fault, self._began = 0.0, "", 0.0  # lost: seconds that were not simulated
        self.busy = 0.0  # seconds of the processor

    def start(self) -> None:
        sys.setswitchinterval(SWITCH)
        self._began = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def share(self) -> float:
        """The part of one core that moving the arms takes."""
        return self.busy / max(time.monotonic() - self._began, 1e-9)

    def _run(self) -> None:
        at = time.monotonic()
        while not self._closing.wait(EVERY):
            late = time.monotonic() - at - BEHIND
            if late > 0:
                self.lost, at = self.lost + late, at + late
            steps = int((time.monotonic() - at) / STEP)
            at += steps * STEP
            try:
                self._move(steps)
            except Exception as error:  # unstable physics: what is asked for next is told so
                self.fault = f"the simulation stopped: {error}"
                return
            self.busy = time.thread_time()

    def _move(self, steps: int) -> None:
        for arm in self._arms if steps else ():
            with arm.chain.lock:
                arm.advance(steps)


MOUNTS = {"follower": (112, -337, 256, -90, 41, 300), "leader": (-55, 210, -181, 333, 7, -120)}  # steps


@dataclass(frozen=True)
class Setup:
    """What is to be emulated."""

    folder: Path  # where the links to the ports and the control socket are made
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> width, height
    ports: Mapping[str, int] = field(default_factory=dict)  # of cameras; those that are missing are chosen
    fps: float = 30.0
    job: str = "touch"
    seed: int = 0
    calibrated: bool = True  # False: servos as they left the factory


class Machine:
    """Made running. To be closed.

    Raises:
        UserError: the setup cannot be.
    """

    def __init__(self, setup: Setup):
        if setup.job not in JOBS:
            raise UserError(f"job {setup.job!r}: must be one of {', '.join(JOBS)}")
        self.setup, self.faults, self.record = setup, Faults(setup.seed), PacketLog()
        self.chains = {arm: self._chain(arm) for arm in MOUNTS}
        self.arm, self.leader = (
            SimulatedArm(self.chains["follower"], setup.job, setup.seed),
            Leader(self.chains["leader"]),
        )
        self.cameras = Cameras(setup.cameras, setup.fps, setup.ports) if setup.cameras else None
        self.links = {"follower": setup.folder / "so101", "leader": setup.folder / "so101_leader"}
        self._buses = [Bus(self.chains[arm], link) for arm, link in self.links.items()]
        self._clock = ArmClock([self.arm, self.leader, *([_StaticArm(self)] if self.cameras else [])])
        for part in (*self._buses, self._clock):
            part.start()

    def _chain(self, arm: str) -> Chain:
        servos = [Servo(i, mount, self.setup.calibrated) for i, mount in enumerate(MOUNTS[arm])]
        return Chain(arm, servos, self.faults, self.record)

    def describe(self) -> dict[str, Any]:
        """Where to find what."""
        cameras = {name: [*size, self.cameras.ports[name]] for name, size in self.setup.cameras.items()}
        return {"port": str(self.links["follower"]), "leader_port": str(self.links["leader"]), "cameras": cameras}

    def fault(self, **options: Any) -> dict[str, Any]:
        """Begins a fault (`robot.emulator.faults`)."""
        fault = parse(options)
        if fault.camera not in (None, *self.setup.cameras):
            raise UserError(f"fault {fault.kind}: no camera {fault.camera!r} (there are: {list(self.setup.cameras)})")
        if fault.kind == "reset":
            self._reset(fault)
        else:
            fault = self.faults.add(fault)
        self.chains[fault.arm].suffer()
        fields = {key: value for key, value in asdict(fault).items() if value not in (None, math.inf)}
        self.record.event("fault", **fields)
        return fields

    def _reset(self, fault: Fault) -> None:
        chain = self.chains[fault.arm]
        with chain.lock:
            for servo in chain.servos:
                if fault.servo in (None, servo.name):
                    servo.restart()

    def clear(self, kind: str | None = None) -> list[str]:
        """Ends every fault, or those of a kind -> the kinds that ended."""
        if kind is not None and kind not in KINDS:
            raise UserError(f"clear: unknown fault {kind!r}: must be one of {', '.join(KINDS)}")
        ended = [fault.kind for fault in self.faults.clear(kind)]
        for chain in self.chains.values():
            chain.suffer()
        self.record.event("clear", kinds=ended)
        return ended

    def scene(self, seed: int) -> dict[str, Any]:
        """Lays the disc and the arm as this scene begins, as if by hand."""
        with self.arm.chain.lock:
            self.arm.set_scene(seed)
        self.record.event("scene", seed=seed)
        return {"seed": seed, "goal": list(self.arm.scene.goal), "instruction": self.arm.scene.instruction}

    def truth(self) -> dict[str, Any]:
        """How things really stand, whatever the servos say; angles in degrees, the gripper in percent."""
        if self._clock.fault:
            raise UserError(self._clock.fault)
        with self.arm.chain.lock:
            servos, tip, pose = self.arm.chain.servos, self.arm.tip(), self.arm.pose()
            distance = float(np.linalg.norm(tip - self.arm.scene.goal))
            get = lambda name: {each.name: each.registers.get(name) for each in servos}  # noqa: E731
            return {
                "success": distance < WITHIN,
                "distance": distance,
                "tip": tip.tolist(),
                "goal": list(self.arm.scene.goal),
                "seed": self.arm.scene.seed,
                "qpos_deg": dict(zip(JOINTS, pose.tolist(), strict=True)),
                "goal_deg": {each.name: each.user("Goal_Position") for each in servos},
                "torque": {each.name: each.holds for each in servos},
                "temperature": get("Present_Temperature"),
                "faults": [fault.kind for fault in self.faults.all()],
            }

    def lead(self, path: list[tuple[float, list[float]]]) -> None:
        """Moves the leader's hand through poses (`robot.emulator.machine.Leader.lead`)."""
        with self.leader.chain.lock:
            self.leader.lead(path)

    def stats(self) -> dict[str, Any]:
        """What it costs: share of a core for the physics, seconds not simulated, pictures a second."""
        rates = self.cameras.rates() if self.cameras else {}
        return {"physics": self._clock.share(), "lost": self._clock.lost, "fps": rates}

    def calibration(self, arm: str) -> dict[str, Any]:
        """What lerobot's calibration file of an arm says."""
        if arm not in self.chains:
            raise UserError(f"calibration: arm {arm!r}: must be one of {', '.join(self.chains)}")
        return calibration(self.chains[arm].servos)

    def close(self) -> None:
        self._clock.close()
        for bus in self._buses:
            bus.close()
        if self.cameras:
            self.cameras.close()


class _StaticArm:
    """Shows the cameras how the arm stands, and what is wrong with them, after each move."""

    def __init__(self, machine: Machine):
        self._machine, self.chain, self._last_trouble = machine, machine.arm.chain, None

    def advance(self, steps: int) -> None:
        data, cameras = self._machine.arm.data, self._machine.cameras
        cameras.show(data.qpos, data.mocap_pos[0])
        wrong = {
            kind: [f.camera or name for name in cameras.ports for f in self._machine.faults.all() if f.kind == kind]
            for kind in ("freeze", "black", "stop")
        }
        if wrong != self._last_trouble:
            cameras.trouble(wrong)
            self._last_trouble = wrong
