"""What `result.json` holds of arms that have played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from vlrl import __version__
from vlrl.config import Config
from vlrl.log import commit
from vlrl.simulation.measure import compare, measure, notes
from vlrl.simulation.play import Played

PACKAGES = ("torch", "transformers", "numpy", "mujoco", "robosuite", "metaworld", "gymnasium", "lerobot")
OTHER_SCENES = "the arms did not meet the same scenes, so there are no pairs: does the robot hang on its seed alone?"


def result_of(config: Config, task: Any, played: Sequence[Played]) -> dict[str, Any]:
    """Everything but the videos, as JSON can hold it: the first arm is compared with each of the others."""
    first, *others = played
    facts = [dict(task.facts(each.episodes)) for each in played]
    same = all(each == facts[0] for each in facts)
    pairs = [compare(first.rows, other.rows) for other in others] if same else []
    hz = first.arm.task.hz
    return {
        "task": task.name, "part": config.task.options.get("part", "test"), "n": len(first.rows),
        "seeds": [row["seed"] for row in first.rows], "facts": facts[0], "hz": hz, "workers": task.at_once,
        "arms": [measure(each, hz) | {"facts": fact} for each, fact in zip(played, facts, strict=True)],
        "pairs": pairs, "notes": [*([] if same else [OTHER_SCENES]), *notes(pairs)],
        "versions": versions(), "config": config.model_dump(mode="json"),
        "episodes": [row for each in played for row in each.rows],
    }  # fmt: skip


def versions() -> Mapping[str, str]:
    """Of vlrl, with its commit, and of what the result hangs on, as far as it is installed."""
    found = {"vlrl": __version__, "commit": commit()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
