"""Worked examples of the published methods."""

from __future__ import annotations

import json
import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "golden" / "algorithms.json"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """`golden("grpo_advantage")` -> (inputs, outputs), 6 decimals, computed apart from this code in float64."""
    examples = json.loads(GOLDEN.read_text())
    return lambda name: (examples[name]["inputs"], examples[name]["outputs"])


@pytest.fixture(scope="session")
def train() -> Callable[..., int | None]:
    """Runs `vlrl train` in a forked process, which spares the seconds of importing -> its exit code."""
    helper = str(Path(__file__).with_name("run_cli.py"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vlrl.trainer", "vlrl.policies.tiny", "qwen_vl_utils"])

    def run(folder: Path, *arguments: str) -> int | None:
        output = tuple(str(folder / name) for name in ("out", "err"))
        request = {"arguments": ["train", *arguments], "folder": str(folder), "output": output, "largest_file": None}
        process = context.Process(target=runpy.run_path, args=(helper, {"REQUEST": request}, "__main__"))
        process.start()
        process.join(300)
        return process.exitcode

    return run


@pytest.fixture(scope="session")
def near() -> Callable[[Any, Any], None]:
    """Asserts that a value or tensor equals golden numbers up to their rounding."""

    def compare(actual: Any, expected: Any) -> None:
        wanted = torch.as_tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), wanted, rtol=0, atol=2e-6)

    return compare
