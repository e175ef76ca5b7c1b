"""What the robot bridge costs, beside lerobot's asynchronous inference with the same policy on the same machine.

Two measurements, each in rounds taken in turn, so that whatever else runs on the machine hits all alike. Every server
and every robot's computer is a process of its own; all are on this machine.

Round trips: one observation (two pictures, 6 joints) after the other, from an observation in memory to 50 x 6 actions
in memory. `added` is the round trip without what the policy takes for its work between arrays; `beyond the network` is
the round trip without the neural network's forward pass alone, so preprocessing and postprocessing count.

Loops: our motion process with client and server, and lerobot's control loop, with a robot that does nothing and a
policy whose network is replaced by a wait. `deviation` is how far the time between the beginnings of two ticks is from
the period; a deadline is missed where it is more than half a period too long; `age` is the time from the beginning of
an observation to the beginning of an action that answers it; a tick without an action is `starved`. The first second
does not count.

    python bench/bridge.py costs --json FILE   # Markdown tables, some ten minutes
    python bench/bridge.py costs --quick       # a minute: to see that it runs
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # for the processes that are started here
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

from bridge_rounds import Arm, Setup, loops, round_trips  # noqa: E402
from bridge_table import markdown  # noqa: E402
from bridge_worker import Worker, preload  # noqa: E402


@contextlib.contextmanager
def workers(folder: Path) -> Iterator[dict[str, Worker]]:
    """All processes."""
    preload("bridge_lerobot", "vlrl.serving.policies")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))  # lerobot writes its log where it is

        def start(target: str, heavy: bool) -> Worker:
            return stack.enter_context(contextlib.closing(Worker(target, folder, heavy)))

        yield {
            "our server": start("bridge_ours:Server", True), "our robot": start("bridge_ours:Robot", False),
            "our robot, JPEG": start("bridge_ours:Robot", False), "its server": start("bridge_lerobot:Server", True),
            "its robot": start("bridge_lerobot:Robot", True),
        }  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of both measurements."""
    folders = {size: str(folder / "x".join(map(str, size))) for size in options.sizes}
    with workers(folder) as found:
        for (height, width), place in folders.items():
            found["our server"]("save", folder=place, height=height, width=width)
        ours, its = (found["our server"], found["our robot"]), (found["its server"], found["its robot"])
        asking = [
            Arm("vlrl", *ours, {}),
            Arm("vlrl, JPEG", ours[0], found["our robot, JPEG"], {"quality": 90}),
            Arm("lerobot", *its, {}),
        ]
        moving = [
            Arm("vlrl", *ours, {}), Arm("vlrl, no priority", *ours, {"real": False}), Arm("lerobot", *its, {}),
        ]  # fmt: skip
        trips = []
        for kind, requests in options.requests.items():
            for (height, width), place in folders.items():
                trips += round_trips(asking, Setup(kind, height, width, place), options.rounds, requests)
        (height, width), place = next(iter(folders.items()))
        waiting = Setup("wait", height, width, place, options.wait)
        loop = []
        for hz, threshold, busy in options.loops:
            loop += loops(moving, waiting, options.loop_rounds, hz, options.seconds, threshold, busy)
    return {"trips": trips, "loops": loop}


def machine() -> dict[str, Any]:
    """The kind of machine and what ran; nothing that names it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    named = ("lerobot", "torch", "grpcio", "websockets", "msgspec", "numpy")
    return {
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()], "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in named}, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--quick", action="store_true", help="small counts: to see that it runs")
    parser.add_argument("--size", type=int, nargs=2, action="append", metavar=("HEIGHT", "WIDTH"), help="of pictures")
    parser.add_argument("--wait", type=float, default=0.1, help="seconds that the policy of the loops takes")
    options = parser.parse_args(arguments)
    busy, quick = os.cpu_count() or 1, options.quick
    options.sizes = [tuple(size) for size in options.size or ([480, 640], [224, 224])]
    options.rounds, options.loop_rounds = (2, 1) if quick else (10, 2)
    options.requests = {"act": 2, "none": 5} if quick else {"act": 5, "none": 50}  # a round
    options.seconds = 1.0 if quick else 6.0
    full = [(30, 0.5, 0), (100, 0.5, 0), (30, 0.5, busy), (100, 0.5, busy), (30, 1.0, 0), (100, 1.0, 0)]
    options.loops = full[:1] if quick else full
    return options


def main() -> None:
    options = options_of()
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder))
    rows["machine"] = before | {"load_after": machine()["load"]}
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
