"""One arm of `gpu`: a step, its seconds by part, its memory, and what share of the GPU's peak it makes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_model import Row, episodes_of
from vs_trl_meter import resident

from vlrl.performance import profiling as vlrl_flops
from vlrl.performance.profiling import from_config, mfu
from vlrl.policies.generation import bare
from vlrl.policies.vlm import VLM
from vlrl.types import Decision, Episode

SHOWN = ("media", "prefill", "decode", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Counted:
    """How often an arm steps, and until when: seconds of `time.monotonic`."""

    warm_up: int
    steps: int
    until: float


class SkippedError(Exception):
    """An arm that is not measured, and why."""


def step(policy: VLM, optimizer: torch.optim.Optimizer, episodes: Sequence[Episode], at_once: int) -> list[Decision]:
    """A rollout and the update on it, as the trainer makes them on-policy.

    Args:
        at_once: completions that go forward and back together. All, where the rollout's prefill is kept.
    """
    decisions = policy.act(episodes, [e.sample.prompt for e in episodes], keep=policy.shared_prefix)
    optimizer.zero_grad(set_to_none=True)
    advantage = torch.linspace(-1, 1, at_once, device=policy.device)[:, None]
    for start in range(0, len(decisions), at_once):
        now = policy.evaluate(decisions[start : start + at_once])
        gained = (advantage * (now.logprobs - now.logprobs.detach()).exp())[now.mask].mean()
        with policy.work.timed("backward"):
            (-gained * at_once / len(decisions)).backward()
    with policy.work.timed("optimizer"):
        optimizer.step()
    return decisions


def measure(policy: VLM, optimizer: torch.optim.Optimizer, row: Row, counted: Counted) -> dict:
    """Medians of the counted steps.

    Raises:
        SkippedError: they do not fit into the time.
    """
    shared, told = policy.shared_prefix, []
    at_once = row.group * (row.prompts if shared else 1)  # the naive arm's activations fit for one group alone
    for key in range(counted.warm_up + counted.steps):
        episodes = episodes_of(row, policy.processor, key)
        if key == counted.warm_up:
            forget_peak(policy.device)
        took, decisions = clocked(policy.device, lambda given=episodes: step(policy, optimizer, given, at_once))
        told.append({"step": took} | policy.work.taken())
        missing = counted.warm_up + counted.steps - key - 1
        if time.monotonic() + missing * (took if key else took / 2) > counted.until:  # the first one takes longer
            raise SkippedError(f"{missing} more steps of {took:.1f} s do not fit into the time")
    if policy.shared_prefix != shared:
        raise SkippedError("log-probabilities of the shared pass are off: it was switched off")
    if policy.graphs and (policy.graphs.off or not policy.graphs.recorded):
        raise SkippedError(f"no graphs: {policy.graphs.off or 'nothing was recorded'}")
    return summary(policy, row, decisions, told[counted.warm_up :])


def summary(policy: VLM, row: Row, decisions: Sequence[Decision], told: Sequence[dict]) -> dict:
    """What a row keeps of its counted steps. Decisions are the last step's; all steps are of one size."""
    middle = {name: statistics.median(one.get(name, 0.0) for one in told) for name in told[0]}
    parts = {part: middle.get(f"{part}_s", 0.0) for part in SHOWN}
    prompt = decisions[0].inputs.prompt
    flops = policy.effort(decisions, passes=0, epochs=1, kept=True)  # of both arms: the least that a step takes
    group = vlrl_flops.Group(len(prompt.ids), row.visual, row.tokens, row.group)
    written = (
        row.prompts
        * vlrl_flops.step(from_config(bare(policy.model).config.to_dict()), group, vlrl_flops.Update()).decode.total
    )
    rest = middle["step"] - parts["decode"]
    return {
        "prompt": len(prompt.ids), "tokens": len(decisions) * (len(prompt.ids) + row.tokens),
        "step": middle["step"], "parts": parts, "all": [one["step"] for one in told],
        "rate": sum(len(d.logprobs) for d in decisions) / parts["decode"], "peak_gb": peak(policy.device),
        "flops": flops, "decode_flops": written, "mfu": mfu(flops, middle["step"], policy.device),
        "mfu_rest": mfu(flops - written, rest, policy.device),
        "forwarded": {name: middle.get(name, 0) for name in ("tokens", "tokens_distinct", "patches")},
    }  # fmt: skip


def clocked(device: torch.device, call: Callable) -> tuple[float, object]:
    """Seconds until the device has done it, and what it returned."""
    settle(device)
    start = time.perf_counter()
    made = call()
    settle(device)
    return time.perf_counter() - start, made


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")  # Linux


def peak(device: torch.device) -> float:
    """GB since `forget_peak`: the GPU's allocated memory, or this process' on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else resident("VmHWM") * 2**20 / 1e9


def empty(device: torch.device) -> None:
    """Gives back what nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
