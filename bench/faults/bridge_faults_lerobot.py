"""lerobot's own loop (`lerobot-rollout`) on the same faults: its side of `bench/faults.py bridge_faults`.

Its driver, loop, cameras and policy class are as they are; the network of its ACT is replaced by a sweep of the
shoulder at 30 deg/s, so that the arm moves. Each fault has a new emulator and a new process, which is watched for 4 s.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot.emulator.control import Emulator
from robot.sim.so101 import JOINTS

HZ, WATCHED = 30.0, 4.0  # of the loop; seconds after a fault
PAN = {"servo": "shoulder_pan"}
WORDS = ("steady", "raise", "nan", "leap", "race")
JUMP = 3600.0  # seconds of the wall clock


@dataclass(frozen=True)
class Fault:
    """`begin` strikes an emulator, or the process by a signal's number, or makes the policy do what a word says."""

    kind: str
    name: str
    begin: Callable[[Emulator], Any] | int | str


def of(kind: str, **options: Any) -> Callable[[Emulator], Any]:
    return lambda emulator: emulator.fault(kind, **options)


FAULTS = (
    Fault("policy", "policy raises", "raise"),
    Fault("policy", "policy gives NaN", "nan"),
    Fault("policy", "policy leaps", "leap"),
    Fault("policy", "policy beyond all limits", "race"),
    Fault("bus", "answer lost", of("drop", count=1)),
    Fault("bus", "late answer", of("late", ms=80, count=1)),
    Fault("bus", "flipped bits", of("corrupt", count=2)),
    Fault("bus", "silent bus", of("silent")),
    Fault("bus", "unplugged in a move", of("unplug")),
    Fault("servo", "servo dead", of("dead", **PAN)),
    Fault("servo", "power lost", of("power")),
    Fault("servo", "power lost for 0.2 s", of("power", seconds=0.2)),
    Fault("servo", "overheats", of("overheat", rate=20, **PAN)),
    Fault("servo", "torque lost", of("torque", **PAN)),
    Fault("servo", "restarts", of("reset", **PAN)),
    Fault("servo", "overload", of("overload", **PAN)),
    Fault("servo", "low voltage", of("voltage", volts=5)),
    Fault("servo", "encoder stuck", of("stuck", **PAN)),
    Fault("servo", "joint blocked", of("jam", **PAN)),
    Fault("camera", "picture freezes", of("freeze")),
    Fault("camera", "picture black", of("black")),
    Fault("camera", "no pictures", of("stop")),
    Fault("operator", "Ctrl-C", signal.SIGINT),
    Fault("operator", "asked to end", signal.SIGTERM),
    Fault("operator", "terminal closed", signal.SIGHUP),
    Fault("process", "loop killed", signal.SIGKILL),
    Fault("process", "loop stands still", signal.SIGSTOP),
)


def save(folder: Path) -> None:
    """A tiny ACT with its processors, as `lerobot-train` saves it. Its numbers are degrees."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    seen = {"observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 64, 64))}
    config = ACTConfig(
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (6,)), **seen},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        chunk_size=10, n_action_steps=10, dim_model=32, n_heads=2, dim_feedforward=64, n_encoder_layers=1,
        use_vae=False, pretrained_backbone_weights=None, device="cpu", push_to_hub=False,
    )  # fmt: skip
    ACTPolicy(config).save_pretrained(folder)
    flat = {"mean": torch.zeros(6), "std": torch.ones(6)}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"observation.state": flat, "action": flat, "observation.images.top": picture}
    for pipeline in make_pre_post_processors(config, dataset_stats=stats):
        pipeline.save_pretrained(folder)


class Sweep:
    """What stands in the place of the network: `ACTPolicy.select_action`."""

    def __init__(self, word: Any):
        self._word, self._target, self._way, self._count = word, None, 1.0, 0

    def __call__(self, policy: Any, batch: dict[str, Any], **_: Any) -> Any:
        import torch

        state = batch["observation.state"][0].double().numpy()
        self._target = state.copy() if self._target is None else self._target
        self._way = -1.0 if self._target[0] > 40 else 1.0 if self._target[0] < -40 else self._way
        self._target[0] += self._way * 30 / HZ
        self._count += 1
        action, word = self._target.copy(), WORDS[self._word.value]
        if word == "raise":
            raise RuntimeError("CUDA out of memory")
        if word == "nan":
            action[:] = np.nan
        elif word == "leap":
            action[0] += 180
        elif word == "race":
            action[:] = 500 if self._count % 2 else -500
        return torch.tensor(action, dtype=torch.float32)[None]


def loop(arguments: Sequence[str], word: Any, log: str) -> None:
    """The child's whole life: `lerobot-rollout`."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.scripts.lerobot_rollout import main

    sweep = Sweep(word)
    ACTPolicy.select_action = lambda policy, batch, **more: sweep(policy, batch, **more)
    sys.argv = ["lerobot-rollout", *arguments]
    main()


def one(fault: Fault, folder: Path) -> dict[str, Any]:
    """What became of the arm."""
    word = multiprocessing.get_context("fork").Value("i", 0)
    with Emulator(cameras={"top": (64, 64)}) as emulator:
        emulator.calibration(folder, "arm")
        camera = {"type": "zmq", "server_address": "127.0.0.1", "port": emulator.camera_port, "camera_name": "top",
                  "width": 64, "height": 64, "fps": 30}  # fmt: skip
        arguments = [
            "--strategy.type=base", f"--policy.path={folder / 'policy'}", "--robot.type=so101_follower",
            f"--robot.port={emulator.port}", "--robot.id=arm", f"--robot.calibration_dir={folder}",
            f"--robot.cameras={json.dumps({'top': camera})}", "--fps=30", "--duration=60",
            "--device=cpu", "--task=sweep", "--return_to_initial_position=false",
        ]  # fmt: skip
        process = multiprocessing.get_context("fork").Process(target=loop, args=(arguments, word, str(folder / "log")))
        process.start()
        try:
            _until_moving(emulator, process, folder)
            began = time.monotonic()
            if isinstance(fault.begin, str):
                word.value = WORDS.index(fault.begin)
            elif callable(fault.begin):
                fault.begin(emulator)
            else:
                os.kill(process.pid, fault.begin)
            process.join(WATCHED)
            time.sleep(max(0.0, began + WATCHED - time.monotonic()))
            return _seen(emulator, process, began)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.join()


def _tried(fault: Fault, folder: Path, tries: int = 5) -> dict[str, Any]:
    """lerobot connects once: on a busy machine, where an answer comes late, it gives up."""
    for _ in range(tries - 1):
        with contextlib.suppress(RuntimeError):
            return one(fault, folder)
    return one(fault, folder)


def _until_moving(emulator: Emulator, process: Any, folder: Path) -> None:
    since, until = time.monotonic(), time.monotonic() + 60
    while sum(each["what"] == "goal" for each in emulator.log(since)) < 40:
        if time.monotonic() > until or not process.is_alive():
            raise RuntimeError(f"lerobot-rollout does not move the arm: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.05)


def _seen(emulator: Emulator, process: Any, began: float) -> dict[str, Any]:
    log = [each for each in emulator.log(began) if each["what"] in ("goal", "torque")]
    goals = [each for each in log if each["what"] == "goal"]
    moves = [b["t"] for a, b in itertools.pairwise(goals) if a["goal"] != b["goal"]]
    on = [name for name in JOINTS if emulator.truth()["torque"][name]]
    pans = [pose[0] for _, pose in emulator.samples(began)]
    return {
        "code": None if process.exitcode is None else process.exitcode, "goals": len(goals),
        "last": (max(moves) - began if moves else 0.0), "on": on, "swept": max(pans) - min(pans) if pans else 0.0,
    }  # fmt: skip


def row(fault: Fault, seen: dict[str, Any]) -> str:
    alive, last = seen["code"] is None, seen["last"]
    goes_on = alive and last > WATCHED - 0.5
    torque = "no torque" if not seen["on"] else f"{len(seen['on'])} of 6 servos under torque"
    did = "goes on sending" if goes_on else "stands still, runs on" if alive else "ends"
    until = f"not in {WATCHED:g} s" if goes_on else f"{seen['goals']} ticks, {1e3 * last:.0f} ms"
    code = "runs on" if alive else seen["code"]
    return f"| {fault.kind} | {fault.name} | {did}, {torque} | {until} | {seen['swept']:.0f} deg | {code} |"


def measured(words: str = "") -> str:
    """The table."""
    import lerobot.robots.so_follower
    import lerobot.scripts.lerobot_rollout  # noqa: F401 - loaded once, for every child

    lines = [
        "| kind | fault | what lerobot's loop did | last new goal | the shoulder went | exit code |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder / "policy")
        for fault in FAULTS:
            if words in fault.name:
                lines.append(row(fault, _tried(fault, folder)))
                print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)
