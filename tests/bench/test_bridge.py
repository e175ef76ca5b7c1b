"""The bridge's benchmark: that its figures are what they are called, and that it runs with lerobot beside it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("lerobot")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "bridge"))  # scripts, not a package

import bridge_table  # noqa: E402
from bridge_body import STEP, frames, turned  # noqa: E402
from bridge_worker import Counter  # noqa: E402


def test_it_measures_both_bridges_in_one_run(tmp_path):
    """A release of lerobot or of ours that moves a method would leave the published table without a way to check it."""
    out = tmp_path / "figures.json"
    command = [sys.executable, ROOT / "bench" / "bridge.py", "costs", "--quick", "--size", "32", "32", "--wait", "0.02"]
    done = subprocess.run([*command, "--json", out], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    trips = {(row["kind"], row["arm"]): row for row in rows["trips"]}
    assert set(trips) == {(kind, arm) for kind in ("act", "none") for arm in ("vlrl", "vlrl, JPEG", "lerobot")}
    raw = 2 * 32 * 32 * 3
    for (kind, arm), row in trips.items():
        assert row["trips"] == (4 if kind == "act" else 10)
        assert 0 < row["added"]["p50"] <= row["beyond"]["p50"] <= row["whole"]["p50"]
        assert (row["sent"] < raw) if "JPEG" in arm else (raw < row["sent"] < 1.2 * raw + 2000)
        assert row["received"] > 50 * 6 * 4 and row["server_cpu"] > 0 and row["robot_cpu"] > 0
    assert {row["arm"] for row in rows["loops"]} == {"vlrl", "vlrl, no priority", "lerobot"}
    assert all(row["ticks"] > 5 and row["age"]["p50"] > 20 and row["starved"] < 100 for row in rows["loops"])
    assert "| lerobot |" in done.stdout and rows["machine"]["versions"]["lerobot"] in done.stdout


def test_a_loops_figures_are_those_of_its_ticks():
    """A deadline counted wrongly would praise or blame the wrong loop."""
    starts = [0.0, 1.0, 1.1, 1.2, 1.36, 1.4, 1.5]  # the first second does not count
    ages: list[float | None] = [None, None, 0.2, 0.2, 0.2, 0.2, 0.4]
    told = {"starts": starts, "ages": ages, "cpu": 0.3, "inferences": 3, "priority": "normal"}
    found = bridge_table.loops([told, told], 10.0, 0.5)
    assert found["ticks"] == 12 and found["starved"] == pytest.approx(100 / 6)
    assert found["missed"] == pytest.approx(20)  # one of five is 160 ms
    assert found["deviation"]["max"] == pytest.approx(60) and found["deviation"]["p50"] == pytest.approx(0, abs=1e-6)
    assert found["age"]["p50"] == pytest.approx(200) and found["age"]["max"] == pytest.approx(400)
    assert found["rate"] == pytest.approx(10) and found["cpu"] == pytest.approx(20)
    assert found["inferences"] == pytest.approx(2)


def test_what_the_policy_takes_is_not_the_bridges():
    """Otherwise a slower policy would look like a slower bridge."""
    told = {"trips": [0.5, 0.7], "policy": [0.4, 0.5], "network": [0.3, 0.3], "server_cpu": 0.2, "robot_cpu": 0.1}
    found = bridge_table.trips([told], 2)
    assert found["added"]["p50"] == pytest.approx(150) and found["beyond"]["max"] == pytest.approx(400)
    assert found["server_cpu"] == pytest.approx(100)
    with pytest.raises(RuntimeError, match="2 observations were asked, 1 inferred"):  # lerobot drops some
        bridge_table.trips([told | {"policy": [0.4]}], 2)


def test_observations_are_too_far_apart_for_lerobots_filter():
    """It drops an observation whose state is less than 1 from the last one: its loop would starve, and look worse."""
    states = [turned(np.zeros(6, np.float32), count) for count in range(200)]
    for apart in range(1, 45):
        assert np.linalg.norm(states[100 + apart] - states[100]) >= STEP


def test_pictures_are_neither_flat_nor_noise():
    """JPEG's share of the table would be that of no camera."""
    from PIL import Image

    from vlrl.serving.protocol import press

    shown = frames(480, 640, 2)
    assert not np.array_equal(shown[0]["front"], shown[1]["front"])
    size = len(press(shown[0]["front"], 90).data)
    assert 20_000 < size < 200_000 and Image.fromarray(shown[0]["wrist"]).size == (640, 480)


def test_the_counting_port_passes_all_on_and_counts_it():
    """Bytes on the wire are its word alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            near, _ = server.accept()
            with near:
                while data := near.recv(1 << 16):
                    near.sendall(data[::2])

        threading.Thread(target=echo, daemon=True).start()
        with closing(Counter("127.0.0.1", server.getsockname()[1])) as counter:
            with socket.create_connection(("127.0.0.1", counter.port)) as end:
                end.sendall(bytes(1000))
                left = 500
                while left:
                    left -= len(end.recv(left))
            assert (counter.sent, counter.received) == (1000, 500)
