"""One stage at its place: its resolved settings, its folder and its command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlrl.stages.config import Average, BestOf, Select, Single
from vlrl.strict import Section

MAKES = {"warmstart": "model", "train": "model", "average": "model", "select": "list", "best_of": "demonstrations"}
LIST, MEASURED = "list.jsonl", "measured.jsonl"


class Averaged(Section):
    """What an average is made of. models: folders."""

    models: list[str]
    shares: list[float] | None
    out: str


@dataclass(frozen=True)
class Step:
    """One stage at its place. start: the model that it starts from, or none: it builds one."""

    stage: Single
    name: str  # its folder's
    folder: Path
    start: str | None
    config: Any  # a `Config`, a `WarmstartConfig` or `Averaged`
    needs: tuple[str, ...]  # names of steps whose results it reads

    @property
    def makes(self) -> str:
        return MAKES[self.stage.run]

    @property
    def task(self) -> str:
        """What it is about, for people."""
        if isinstance(self.stage, Average):
            return f"mean of {' and '.join(self.stage.models)}"
        if self.stage.run != "warmstart":
            return self.config.task.name
        tasks = dict.fromkeys(each.task.name for each in self.config.lessons if each.task)
        return ", ".join(tasks) or "own answers"

    def settings(self) -> dict[str, Any]:
        """All that decides its result."""
        own = self.stage.model_dump(exclude={"name", "config", "files", "changes", "start"})
        return {**own, "config": self.config.model_dump(mode="json", exclude={"out"})}

    def text(self) -> str:
        """The YAML of its command."""
        return yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False, width=120)

    def beside(self, ending: str) -> Path:
        """A file of it beside its folder."""
        return self.folder.with_name(f"{self.name}.{ending}")


def command(step: Step) -> list[str]:
    """The `vlrl` command of a step that has not begun."""
    stage, config = step.stage, str(step.beside("yaml"))
    if isinstance(stage, Average):
        shares = [] if stage.shares is None else ["--shares", *map(str, stage.shares)]
        return ["average", *step.config.models, "--out", str(step.folder), *shares]
    if isinstance(stage, Select):
        out = step.folder / (MEASURED if stage.pass_rate else LIST)
        some = [] if stage.samples is None else ["--samples", str(stage.samples)]
        keep = 1.0 if stage.pass_rate else stage.keep
        return ["select", config, "--out", str(out), "--repeats", str(stage.repeats), "--keep", str(keep), *some]
    if isinstance(stage, BestOf):
        some = [] if stage.samples is None else ["--samples", str(stage.samples)]
        return ["best-of", config, "--out", str(step.folder), "--tries", str(stage.tries), "--keep", stage.keep, *some]
    return [stage.run, config]
