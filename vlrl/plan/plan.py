"""A run's memory and seconds before anything is loaded, and what to turn where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlrl.config import Config
from vlrl.footprint import peak
from vlrl.plan.activations import Run
from vlrl.plan.devices import Device
from vlrl.plan.knobs import Knob, knobs
from vlrl.plan.model import Model, model_of
from vlrl.plan.prompts import Prompt, prompt_of
from vlrl.plan.seconds import seconds
from vlrl.plan.sizing import run_of

ROOM = 0.9  # of a device's memory; the rest goes to its driver, to single kernels and to gaps between tensors


@dataclass(frozen=True)
class Asked:
    """What a command line says beside the configuration. tokens: of a completion."""

    device: Device | None = None
    gpus: int = 1
    mfu: float = 0.4
    visual: int | None = None
    text: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Plan:
    """memory: part -> bytes at the peak, which `phase` names; times: part -> seconds, None where not known."""

    config: Config
    model: Model
    prompt: Prompt
    asked: Asked
    run: Run
    phase: str
    memory: dict[str, float]
    times: dict[str, float] | None

    @property
    def gigabytes(self) -> float:
        return sum(self.memory.values()) / 1e9

    @property
    def fits(self) -> bool | None:
        """None: no device was named."""
        device = self.asked.device
        return None if device is None else self.gigabytes <= ROOM * device.memory

    @property
    def step(self) -> float | None:
        """Seconds of a step."""
        return None if self.times is None else sum(self.times.values())


@dataclass(frozen=True)
class Turn:
    """A knob, or several, and the plan that they make."""

    told: str
    plan: Plan


def plan(config: Config, asked: Asked) -> Plan:
    """Plans a configuration.

    Raises:
        UserError: the model's sizes or the prompts' are not known; nothing would be trained.
    """
    model = model_of(config.policy.model)
    return _planned(config, model, prompt_of(config, model, asked.visual, asked.text), asked)


def singles(whole: Plan) -> list[Turn]:
    """What each knob alone gives."""
    return [_turned(whole, knob) for knob in _knobs(whole)]


def together(whole: Plan) -> Turn | None:
    """The mildest knobs that are enough together, none of them for nothing; None where all are not enough."""
    keys = [knob.key for knob in _knobs(whole)]
    count = next((n for n in range(1, len(keys) + 1) if _all_turned(whole, keys[:n]).plan.fits), None)
    if count is None:
        return None
    needed = keys[:count]
    for key in keys[:count]:
        fewer = [other for other in needed if other != key]
        if fewer and _all_turned(whole, fewer).plan.fits:
            needed = fewer
    return _all_turned(whole, needed)


def _all_turned(whole: Plan, keys: list[str]) -> Turn:
    """Several knobs, one after another."""
    told = []
    for key in keys:
        knob = next((knob for knob in _knobs(whole) if knob.key == key), None)
        if knob is not None:
            whole, told = _turned(whole, knob).plan, [*told, knob.told]
    return Turn(" ".join(told), whole)


def _knobs(whole: Plan) -> list[Knob]:
    return list(knobs(whole.config, whole.asked.gpus, whole.model, whole.prompt.visual / max(whole.prompt.frames, 1)))


def _turned(whole: Plan, knob: Knob) -> Turn:
    prompt = replace(whole.prompt, visual=whole.prompt.visual * knob.shrunk)
    return Turn(knob.told, _planned(knob.config, whole.model, prompt, replace(whole.asked, gpus=knob.gpus)))


def _planned(config: Config, model: Model, prompt: Prompt, asked: Asked) -> Plan:
    on_gpu = asked.device is None or asked.device.name != "cpu"
    tokens = asked.tokens or config.policy.max_tokens
    run = run_of(config, model.geometry, prompt, tokens=tokens, gpus=asked.gpus, on_gpu=on_gpu)
    phase, memory = peak(run)
    times = seconds(run, asked.device, asked.mfu) if asked.device else None
    return Plan(config, model, prompt, asked, run, phase, memory, times)
