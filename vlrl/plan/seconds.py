"""Seconds of a step by part: compute at a share of a device's peak, decoding no faster than its memory is read."""

from __future__ import annotations

from vlrl import cost
from vlrl.plan.activations import FULL, Run
from vlrl.plan.devices import GPUS, Device


def flops(run: Run) -> dict[str, float]:
    """Of one device's part of a step."""
    parts = vars(cost.step(run.geometry, run.group, run.update))
    return {name: part.total * run.prompts for name, part in parts.items()}


def seconds(run: Run, device: Device, mfu: float) -> dict[str, float] | None:
    """Part -> seconds; None where the device's peak is not known: that of a listed GPU is bfloat16's.

    Left out: rewards, environments, images' preprocessing, communication between devices.

    Args:
        mfu: share of the peak that forward and backward passes reach.
    """
    if device.tflops is None or (device in GPUS and run.width == FULL):
        return None
    times = {name: part / (mfu * device.tflops * 1e12) for name, part in flops(run).items()}
    if device.bandwidth:
        times["decode"] = max(times["decode"], read(run) / (device.bandwidth * 1e12))
    return times


def read(run: Run) -> float:
    """Bytes that decoding reads: for every token the matrices once, and all keys and values so far."""
    group, language = run.group, run.geometry.language
    # autocast keeps bfloat16 copies of matrices that are trained; frozen ones are bfloat16
    matrices = run.width * (language.layers * language.block_matrices + language.vocabulary * language.hidden)
    copies = group.members if run.update.mode == "naive" else 1
    before = copies * group.prompt + group.members * group.completion / 2
    return group.completion * (matrices + run.prompts * before * language.cached * run.width)
