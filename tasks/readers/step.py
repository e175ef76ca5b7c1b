"""Screens with what is right to do on them: the rows of GUI grounding and GUI actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.gui.gui_steps import Truth


@dataclass(frozen=True, slots=True)
class Row:
    """One question: what is right to do on `image`, a file or encoded bytes."""

    id: str
    image: Path | bytes
    instruction: str
    truth: Truth
    history: str = "None"  # what was done before
    level: str = ""  # high or low, where the source says how much the instruction covers
    weight: float = 1.0  # how much it counts
    tags: Mapping[str, str] = field(default_factory=dict)  # platform, type, group, ...: what results are broken down by
