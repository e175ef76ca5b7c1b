"""A plan as a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator

from vlrl.performance.flops import parameters
from vlrl.performance.memory import FULL
from vlrl.tools.memory_planner import ROOM, Plan, Turn, flops, singles, together

MODES = {
    "naive": "a prompt forwarded once per completion",
    "shared": "a prompt forwarded once per group",
    "kept": "a prompt forwarded once per group, its prefill kept for the update",
}


def text(plan: Plan) -> str:
    """The whole table; what to turn where the run does not fit."""
    lines = [*_head(plan), "", *_memory(plan), "", *_seconds(plan)]
    if plan.fits is False:
        lines += ["", *_helps(plan)]
    return "\n".join(lines)


def _head(plan: Plan) -> Iterator[str]:
    train, run, asked = plan.config.train, plan.run, plan.asked
    total = parameters(plan.model.geometry).all
    yield f"model   {plan.config.policy.model}: {total / 1e6:,.1f} M parameters ({plan.model.source})"
    adapter, width = ", LoRA" if plan.config.policy.lora else "", "float32" if run.width == FULL else "bfloat16"
    yield f"        {run.trained / 1e6:,.1f} M trained{adapter}, products in {width}"
    prompt = plan.prompt
    yield f"prompt  {prompt.tokens:.0f} tokens, {prompt.visual:.0f} of them visual ({prompt.source})"
    if not prompt.visual:
        yield "        the samples show no image; where an environment does, give --visual"
    length = f"{run.group.completion:.0f} tokens ({'as told' if asked.tokens else 'policy.max_tokens, the most'})"
    yield f"step    {train.prompts_per_step} prompts x {train.group_size} completions of {length}"
    yield f"        {MODES[run.update.mode]}{', checkpointed' if run.update.checkpointed else ''}"
    device = asked.device
    if device:
        peak = f", {device.tflops:g} TFLOPs a second" if device.tflops else ""
        spread = f"{asked.gpus} x " if asked.gpus > 1 else ""
        yield f"device  {spread}{device.name}: {device.memory:g} GB{peak}"
    if asked.gpus > 1:
        yield "        prompts shared out; weights, gradients, optimizer in parts (FSDP2); traffic not counted"


def _memory(plan: Plan) -> Iterator[str]:
    unit, size = _unit(sum(plan.memory.values()), {"TB": 1e12, "GB": 1e9, "MB": 1e6})
    yield f"MEMORY, {unit}, at the peak: {plan.phase}"
    yield from _rows({name: part / size for name, part in plan.memory.items()})
    if plan.fits is not None and plan.asked.device:
        yield f"  it {'fits' if plan.fits else 'does not fit'} into {ROOM:.0%} of {plan.asked.device.memory:g} GB"


def _seconds(plan: Plan) -> Iterator[str]:
    if plan.times is not None:
        yield f"SECONDS a step at an MFU of {plan.asked.mfu:g} (assumed), decoding bound by memory too"
        yield from _rows(plan.times)
        yield "  rewards, environments and preprocessing come on top"
        return
    parts = flops(plan.run)
    unit, size = _unit(sum(parts.values()), {"PFLOPs": 1e15, "TFLOPs": 1e12, "GFLOPs": 1e9})
    yield f"{unit} a step" + ("" if plan.asked.device is None else " (seconds need the peak: --tflops)")
    yield from _rows({name: part / size for name, part in parts.items()})


def _helps(plan: Plan) -> Iterator[str]:
    """Each knob alone; where none is enough, several."""
    alone = singles(plan)
    yield "WHAT WOULD HELP, each alone"
    yield from _turns(alone)
    if not any(turn.plan.fits for turn in alone):
        enough = together(plan)
        yield "ENOUGH TOGETHER"
        yield from _turns([enough]) if enough else ["  nothing here is: a smaller model, or more GPUs"]


def _turns(found: list[Turn]) -> Iterator[str]:
    width = max(len(turn.told) for turn in found)
    for turn in found:
        step = "" if turn.plan.step is None else f"  {_digits(turn.plan.step):>6} s a step"
        yield f"  {turn.told:{width}}  {_digits(turn.plan.gigabytes):>6} GB{step}{'  fits' if turn.plan.fits else ''}"


def _unit(number: float, units: dict[str, float]) -> tuple[str, float]:
    """The largest unit of which there is at least one; else the smallest."""
    return next((item for item in units.items() if number >= item[1]), list(units.items())[-1])


def _rows(parts: dict[str, float]) -> Iterator[str]:
    """Parts that are there, and their sum."""
    there = {name: part for name, part in parts.items() if part} | {"together": sum(parts.values())}
    width = max(map(len, there))
    return (f"  {name:{width}}  {_digits(part):>6}" for name, part in there.items())


def _digits(number: float) -> str:
    """Three digits that count."""
    places = 0 if number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 3
    return f"{number:,.{places}f}"


def described(plan: Plan) -> dict:
    """The plan as plain data: bytes, seconds (null where not known), FLOPs, tokens."""
    return {
        "model": plan.config.policy.model, "parameters": parameters(plan.model.geometry).all,
        "trained": plan.run.trained, "prompt": {"visual": plan.prompt.visual, "text": plan.prompt.text},
        "mode": plan.run.update.mode, "peak": plan.phase, "memory": plan.memory, "fits": plan.fits,
        "seconds": plan.times, "flops": flops(plan.run),
    }  # fmt: skip
