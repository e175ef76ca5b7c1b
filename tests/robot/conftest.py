"""What robot tests share: the small robots, also for worker processes, and the bits of an observation."""

import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = str(Path(__file__).parent)
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)  # workers get this process' path
UNTIMED = (
    "test_governor*.py",
    "test_kinematics.py",
    "test_config.py",
    "test_chunks.py",
    "test_plausible.py",
    "test_arrays.py",
    "test_messages.py",
    "test_packets.py",
    "test_recording_lease.py",
)  # plain arithmetic and files
TIMED = tuple(f"{FOLDER}/{name}" for name in ("deploy/", "emulator/", "faults/", "control/", "serving/", "test_bridge"))


def pytest_collection_modifyitems(items):
    """What runs at a robot's rate would miss its deadlines beside other tests."""
    for item in items:
        if str(item.path).startswith(TIMED) and not any(item.path.match(name) for name in UNTIMED):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def bits():
    """All of an observation as bytes: two that are equal bit for bit have the same."""
    return lambda shown: (shown.text, shown.state.tobytes(), *(image.tobytes() for image in shown.images))


@pytest.fixture(scope="session")
def controls():
    """`controls(robot, seed, n)`: float32 [n, A], within the limits."""

    def draw(robot, seed, n):
        low, high = robot.controls.low, robot.controls.high
        return np.random.default_rng(seed).uniform(low, high, (n, len(low))).astype(np.float32)

    return draw
