"""The cameras' process: it takes pictures of the simulated arm and publishes them until its pipe is closed."""

from __future__ import annotations

import base64
import json
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from PIL import Image

from robot import so101_model as model
from robot.simulation import Camera, load_mujoco
from vlrl.types import UserError

QUALITY = 95  # of JPEG


def serve(shared: Any, pipe: Connection, sizes: dict[str, tuple[int, int]], hz: float, ports: dict[str, int]) -> None:
    """The process: pictures at a rate until the pipe is closed at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    try:
        eyes = {name: _Eye(name, size, ports.get(name, 0)) for name, size in sizes.items()}
    except Exception as error:  # whatever a renderer or a socket raises is told in one line
        pipe.send(str(error))
        return
    pipe.send({name: eye.port for name, eye in eyes.items()})
    due, troubles, asked = time.monotonic(), {}, time.monotonic()
    while True:
        try:
            while pipe.poll(max(due - time.monotonic(), 0)):
                said = pipe.recv()
                if said is None:
                    now = time.monotonic()
                    pipe.send({name: eye.count() / max(now - asked, 1e-9) for name, eye in eyes.items()})
                    asked = now
                else:
                    troubles = said
        except (EOFError, OSError):
            return
        for name, eye in eyes.items():
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
            seen = Image.new("RGB", self._size) if "black" in troubles else self._camera.take(self._data)
            self._last = jpeg(self._grain.on(seen))
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
