"""The held-out answers of every model that the stages made, asked for once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from vlrl.config import dump
from vlrl.decoders import load_json
from vlrl.log import write_text
from vlrl.stages.plan import Plan
from vlrl.stages.step import Step

ENDING = "held_out.json"


class Calls(Protocol):
    """Runs Python with arguments, what it says going behind a log; UserError where it fails."""

    def run(self, arguments: Sequence[str], log: Path) -> None: ...


def answered(plan: Plan, at_work: Calls, finished: Callable[[Step], bool]) -> dict[str, dict[str, Any]]:
    """What each model that is there answers of the held-out samples: folder's name, or `start` -> its numbers."""
    wanted = {step.name: str(step.folder) for step in plan.steps if step.makes == "model" and finished(step)}
    if plan.begin is not None:
        wanted = {"start": plan.begin} | wanted
    settings = plan.measured.model_dump(mode="json")
    files = {name: plan.out / f"{name}.{ENDING}" for name in wanted}
    left = [name for name, file in files.items() if read(file).get("settings") != settings]
    if left:
        write_text(plan.out / "held_out.yaml", dump(plan.measured))
        pairs = [part for name in left for part in (wanted[name], str(files[name]))]
        at_work.run(["-m", "vlrl.stages.measured", str(plan.out / "held_out.yaml"), *pairs], plan.out / "held_out.log")
    return {name: read(file) for name, file in files.items()}


def read(file: Path) -> dict[str, Any]:
    return load_json(file, finite=False) if file.is_file() else {}
