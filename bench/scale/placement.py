"""One run with its workers on this machine and on Ray nodes, undisturbed and with workers and a node killed.

Arms: `local`, `ray:N` for N nodes on this machine (`ray.cluster_utils.Cluster`), each with a core for every worker, and
with `:chaos` every `--every` seconds a share of the live workers is killed (SIGKILL; of a browser's worker by turns the
worker, its driver and its browser), and at half of the steps a node. Each arm is `vlrl train` on one configuration and
seed; its metrics are compared row by row with the first arm's, up to rounding, but for the counts of faults themselves.

    python bench/scale.py placement reach --arms local ray:1 ray:2                    # throughput
    python bench/scale.py placement reach --episodes 10000 --arms local ray:2 ray:2:chaos --every 10
    python bench/scale.py placement judged --episodes 2000 --arms local ray:2:chaos
    python bench/scale.py placement gui_agent --episodes 200 --arms local ray:2:chaos --every 40
    python bench/scale.py placement engines --episodes 10000 --arms local ray:2:chaos --every 30
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vlrl.system import children

ROOT = Path(__file__).resolve().parents[2]
WATCHER = children.__file__  # it ends what a killed worker leaves
TOKEN = "VLRL_BENCH"  # in the environment of all that an arm starts
FAULTS = ("repeated", "fault/", "engine/")  # metrics that count faults and requests
GROUP = 8
PATIENT = {  # Ray on a busy machine
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
}
PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
HEAD = (
    "| arm | episodes | s | episodes/s | workers killed | nodes killed | played anew | rows that differ |\n|"
    + "---|" * 8
)
ARM = ["configs/manipulation.yaml", "task.scenes=200", "task.held_out=4", "train.prompts_per_step=32",
       "train.num_minibatches=1", "train.update_epochs=1"]  # fmt: skip
TASKS = {
    "push": [*ARM, "task.robot={name: tabletop, job: push}", "task.horizon=96"],
    "reach": [*ARM, "task.robot={name: tabletop, job: reach}", "task.horizon=24"],
    "judged": ["configs/open_answer.yaml", "policy.model=embedded", "train.prompts_per_step=8",
               "process_rewards=[{name: judged_answer, judge: {name: scripted, noise: 0.1, workers: 4}, amount: 0.5}]"],
    "gui_agent": ["configs/gui_agent.yaml", "policy.model=embedded", "task.held_out=4", "task.browsers=4",
                  "train.prompts_per_step=2"],
    "engines": ["configs/gui_grounding.yaml", "train.prompts_per_step=16", "policy.engine={name: server, workers: 2}"],
}  # fmt: skip
START = {"reach": ["episodes=48", "steps=600"]}  # of which half of the episodes succeed; push has the bundled one


@dataclass
class Arm:
    """What an arm did."""

    name: str
    seconds: float = 0.0
    episodes: int = 0
    killed: int = 0
    nodes_killed: int = 0
    repeated: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)  # step and metric


def vlrl(*arguments: str) -> subprocess.Popen[bytes]:
    threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "vlrl.cli", *arguments]
    return subprocess.Popen(command, env=os.environ | threads, cwd=ROOT, stdout=subprocess.DEVNULL)


def make_start(task: str, folder: Path) -> list[str]:
    """Changes of the configuration that name what the run starts from."""
    if task not in START:
        return []
    sizes = [*START[task], "policy={hidden: 32, layers: 1, bins: 9}", "task.held_out=4", f"out={folder / 'start'}"]
    cloned = vlrl("clone", "configs/models/embedded_push.yaml", *TASKS[task][-2:], *sizes)
    if cloned.wait():
        sys.exit("vlrl clone failed")
    return [f"policy.model={folder / 'start'}"]


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    """A Ray cluster of so many nodes on this machine, each with cores for all workers."""
    os.environ |= PATIENT | {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args=node())
    try:
        for _ in range(nodes - 1):
            started.add_node(**node())
        yield started
    finally:
        started.shutdown()


def node() -> dict[str, Any]:
    """Size, and ports of its agents."""
    size = {"num_cpus": 4, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in PORTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return size | {name: each.getsockname()[1] for name, each in zip(PORTS, sockets, strict=True)}


def find_workers() -> list[psutil.Process]:
    """The live processes around services that this benchmark's runs have started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "vlrl.placement.workers" in process.cmdline() and process.environ().get(TOKEN) == os.environ[TOKEN]:
                found.append(process)
    return found


def kill_some(share: float, rng: random.Random) -> int:
    """SIGKILL to a share of the workers, or to a process below one, as to a browser's driver and its browser."""
    workers = find_workers()
    chosen = rng.sample(workers, round(share * len(workers) + rng.random() - 0.5) if workers else 0)
    for worker in chosen:
        with contextlib.suppress(psutil.Error):
            owned = [each for each in worker.children(recursive=True) if WATCHER not in each.cmdline()]
            rng.choice([worker, *owned[:2]]).kill()
    return len(chosen)


def disturb(arm: Arm, options: argparse.Namespace, nodes: Any, steps: int, out: Path, over: threading.Event) -> None:
    """Kills workers until the run is over, and at half of its steps the youngest node."""
    rng, due = random.Random(options.seed), time.monotonic() + options.every
    while not over.wait(1.0):
        if time.monotonic() > due:
            arm.killed += kill_some(options.kill, rng)
            due = time.monotonic() + options.every
        if nodes and not arm.nodes_killed and len(read_rows(out)) >= steps // 2:
            nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
            arm.nodes_killed = 1


def read_rows(out: Path) -> list[dict[str, Any]]:
    file = out / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run_arm(name: str, options: argparse.Namespace, start: list[str], folder: Path) -> Arm:
    place, *rest = name.split(":")
    arm, out = Arm(name), folder / name.replace(":", "_")
    shared = [*TASKS[options.task], *start, f"out={out}", f"train.group_size={GROUP}", "eval.num_samples=4",
              "log.trackers=[]", *options.changes]  # fmt: skip
    prompts = next(int(each.split("=")[1]) for each in shared if each.startswith("train.prompts_per_step="))
    steps = max(2, round(options.episodes / prompts / GROUP))
    shared += [f"train.steps={steps}", f"eval.every_steps={steps}"]
    if options.task in ("push", "reach"):
        shared.append("task.workers=4")
    with cluster(int(rest[0])) if place == "ray" else contextlib.nullcontext() as nodes:
        if nodes:
            shared.append(f"placement={{name: ray, address: '{nodes.address}'}}")
        begin, over = time.perf_counter(), threading.Event()
        run = vlrl("train", *shared)
        chaos = threading.Thread(target=disturb, args=(arm, options, nodes, steps, out, over))
        if "chaos" in rest:
            chaos.start()
        code = run.wait()
        over.set()
        arm.seconds = time.perf_counter() - begin
        if "chaos" in rest:
            chaos.join()
    if code:
        sys.exit(f"{name}: vlrl train ended with exit code {code}")
    arm.rows, arm.episodes = read_rows(out), steps * prompts * GROUP
    arm.repeated = sum(row.get("repeated", 0.0) + row.get("eval/repeated", 0.0) for row in arm.rows)
    return arm


def compare(first: Arm, other: Arm) -> list[str]:
    """Where the metrics of two arms differ, but for those of FAULTS."""
    places = [] if len(first.rows) == len(other.rows) else [f"{len(other.rows)} rows, not {len(first.rows)}"]
    for one, two in zip(first.rows, other.rows, strict=False):
        names = [name for name in one | two if not name.removeprefix("eval/").startswith(FAULTS)]
        places += [f"step {one.get('step')}: {name}" for name in names if not is_equal(one.get(name), two.get(name))]
    return places


def is_equal(one: Any, other: Any) -> bool:
    """But for rounding: an episode that is played again is answered beside others than before."""
    numbers = isinstance(one, float | int) and isinstance(other, float | int)
    return one == other or (numbers and math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("changes", nargs="*", help="of the configuration")
    parser.add_argument("--arms", nargs="+", default=["local", "ray:1", "ray:2"])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--kill", type=float, default=0.3, help="share of the live workers that is killed at a time")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ[TOKEN] = str(os.getpid())
    arms: list[Arm] = []
    with tempfile.TemporaryDirectory() as folder:
        start = make_start(options.task, Path(folder))
        print(HEAD, flush=True)
        for name in options.arms:
            arm = run_arm(name, options, start, Path(folder))
            arm.differing = compare(arms[0], arm) if arms else []
            arms.append(arm)
            counts = f"{arm.killed} | {arm.nodes_killed} | {arm.repeated:.0f} | {len(arm.differing)}"
            rate = arm.episodes / arm.seconds
            print(f"| {name} | {arm.episodes} | {arm.seconds:.0f} | {rate:.1f} | {counts} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(arm) for arm in arms]))


if __name__ == "__main__":
    main()
