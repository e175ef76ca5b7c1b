"""Cameras through lerobot's own classes in a process of their own."""

import base64
import json
import os
import signal
import threading
import time

import cv2
import numpy as np
import pytest

from robot.deploy.cameras import CameraPicture, CameraProcess, Lookout, make_cameras
from robot.types import Channel
from vlrl.types import UserError

ARM = (Channel("shoulder_pan.pos", "deg"), Channel("gripper.pos", "%"))


class Publisher:
    """A camera server as lerobot's ZMQ camera reads it."""

    def __init__(self):
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.mode, self._count = "live", 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def config(self):
        return {"type": "zmq", "server_address": "127.0.0.1", "port": self.port, "camera_name": "front",
                "width": 32, "height": 24, "fps": 30, "timeout_ms": 300, "warmup_s": 1}  # fmt: skip

    def _run(self):
        while not self._closed.wait(1 / 50):
            if self.mode == "silent":
                continue
            self._count += self.mode == "live"
            picture = np.full((24, 32, 3), self._count % 256, np.uint8)
            encoded = base64.b64encode(cv2.imencode(".png", picture)[1].tobytes()).decode()
            self._socket.send_string(json.dumps({"timestamps": {"front": 0.0}, "images": {"front": encoded}}))

    def close(self):
        self._closed.set()
        self._thread.join()
        self._socket.close(0)


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never came"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_camera_freezes_goes_silent_and_comes_back() -> None:
    """A policy that is shown old pictures as if they were new drives blind."""
    publisher = Publisher()
    camera_process = CameraProcess({"wrist": publisher.config(), "front": publisher.config()})
    try:
        camera_process.wait(30)
        assert list(camera_process.latest()) == [
            "wrist",
            "front",
        ]  # as named, whichever was first: policies count on the order
        first = camera_process.latest()["front"]
        until(lambda: camera_process.latest()["front"].seq > first.seq + 2)
        assert camera_process.latest()["front"].picture.shape == (24, 32, 3) and camera_process.trouble() == {}

        publisher.mode = "frozen"
        until(lambda: (seen := camera_process.latest()["front"]).t - seen.changed > 0.3)

        publisher.mode = "silent"
        until(lambda: "front" in camera_process.trouble())
        last = camera_process.latest()["front"].seq
        publisher.mode = "live"
        until(lambda: camera_process.latest()["front"].seq > last and not camera_process.trouble())

        last = camera_process.latest()["front"].seq
        os.kill(camera_process.pid, signal.SIGKILL)
        until(lambda: camera_process.trouble())
        until(lambda: camera_process.latest()["front"].seq > last and not camera_process.trouble())
    finally:
        camera_process.close()
        publisher.close()


@pytest.mark.parametrize(("options", "said"), [({"type": "opencvv"}, "opencvv"), ({"type": "zmq", "prt": 1}, "prt")])
def test_a_camera_that_cannot_be(options, said) -> None:
    """A misspelt camera must be told in one line, before the robot moves."""
    with pytest.raises(UserError, match=rf"cameras\.front: .*{said}") as raised:
        make_cameras({"front": options})
    assert "\n" not in str(raised.value)


def lookout():
    return Lookout(["front"], ARM, stale_s=0.5, stop_s=2.0)


def seen(t, changed, contrast=200):
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[16:] = contrast
    return {"front": CameraPicture(picture, 1, t, changed)}


def test_a_silent_camera_holds_then_stops() -> None:
    """Without it the arm goes on on what was true seconds ago."""
    judge, still = lookout(), np.zeros(2, np.float32)
    assert judge.judge(seen(10.0, 10.0), still, 10.1).hold == ""
    assert "no new picture for 0.6 s" in (told := judge.judge(seen(10.0, 10.0), still, 10.6)).hold and not told.stop
    assert "camera front" in judge.judge(seen(10.0, 10.0), still, 12.1).stop
    assert judge.judge(seen(12.2, 12.2), still, 12.3).hold == ""


def test_a_frozen_camera_is_one_under_which_the_robot_moved() -> None:
    """A simulated scene at rest gives equal pictures: that must not stop anybody; a frozen stream must."""
    judge, there = lookout(), np.zeros(2, np.float32)
    for step in range(30):
        now = 10 + step / 10
        assert judge.judge(seen(now, 10.0), there, now).hold == ""
    moved = np.array([5, 0], np.float32)
    assert "same picture while the robot moves" in judge.judge(seen(13.0, 10.0), moved, 13.0).stop
    assert "same picture" in judge.judge(seen(13.0, 10.0), there, 13.0).hold  # also when it has come back
    assert judge.judge(seen(13.1, 13.1), moved, 13.1).hold == ""


def test_a_camera_that_shows_one_colour_is_blind() -> None:
    """A cap on the lens, a sensor that has failed: pictures come, and say nothing."""
    judge, still = lookout(), np.zeros(2, np.float32)
    told = [judge.judge(seen(10 + i / 10, 10 + i / 10, contrast=3), still, 10 + i / 10).hold for i in range(10)]
    assert told[3] == "" and "one colour only for 0.9 s" in told[-1]
    assert judge.judge(seen(11.0, 11.0), still, 11.0).hold == ""


def test_a_camera_that_never_showed_anything() -> None:
    """It must count from the beginning, not never."""
    judge = lookout()
    assert judge.judge({}, np.zeros(2), 5.0).hold == ""
    assert "no picture for 0.6 s" in judge.judge({}, np.zeros(2), 5.6).hold
