"""What a run needs, before it is started."""

from __future__ import annotations

import argparse
import json
import math

from vlrl.commands.base import Commands, quiet, takes_changes


def add(commands: Commands) -> None:
    plan = commands.add_parser("plan", help="a run's memory and seconds a step before anything is loaded")
    plan.add_argument("config", help="for example configs/gui_grounding.yaml")
    takes_changes(plan)
    plan.add_argument("--gpu", metavar="NAME", help="h100, a100-80, 4090, ...; a memory, 24GB; cpu")
    plan.add_argument("--gpus", type=_count, default=1, metavar="N", help="how many, sharded (FSDP)")
    plan.add_argument("--mfu", type=_positive, default=0.4, help="share of the peak that is reached (default: 0.4)")
    plan.add_argument("--tflops", type=_positive, metavar="N", help="the device's peak, 1e12 FLOPs a second")
    plan.add_argument("--memory", type=_positive, metavar="GB", help="the device's memory")
    plan.add_argument("--visual", type=_natural, metavar="N", help="visual tokens of a prompt; default: the task's")
    plan.add_argument("--text", type=_natural, metavar="N", help="text tokens of a prompt; default: the task's")
    plan.add_argument("--tokens", type=_count, metavar="N", help="of a completion; default: policy.max_tokens")
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> int:
    quiet()
    from vlrl import config as configs
    from vlrl.plan import devices
    from vlrl.plan.plan import Asked, plan
    from vlrl.plan.text import described, text

    asked = Asked(
        devices.asked(options.gpu, options.tflops, options.memory) if options.gpu else None, options.gpus, options.mfu,
        options.visual, options.text, options.tokens,
    )  # fmt: skip
    made = plan(configs.load(options.config, options.changes), asked)
    print(json.dumps(described(made)) if options.json else text(made))
    return 0


def _positive(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _count(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number
