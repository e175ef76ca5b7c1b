"""What `bench/speed.py gpu` measures, one job after the other: training, arm, row."""

from __future__ import annotations

import argparse
import time
import traceback
from dataclasses import replace
from datetime import UTC, datetime

import gpu_trl
import torch
import transformers
from gpu_arms import Counted, SkippedError, empty, measure
from gpu_model import GEOMETRIES, Row, model_of, parameters_of, policy_of, processor_of

from vlrl.performance.profiling import parameters
from vlrl.policies.generation import WORTH
from vlrl.update import optimizers_build

ROWS = (Row(256, 60, 8, 64, 4), Row(1024, 60, 8, 64, 4), Row(1500, 60, 8, 50, 4), Row(300, 600, 8, 512, 2))
TINY = (Row(9, 36, 2, 4, 2), Row(4, 36, 3, 20, 2))
BYTES = {"lora": 2.5, "full": 22}  # a parameter: weights and what belongs to them, at least


def jobs_of(rows: tuple[Row, ...], trl: bool) -> list[str]:
    """training/arm/row, what tells most first: the short rows, then the long one, which decoding fills."""
    *short, long = [row.name for row in rows]
    recorded = [row.name for row in (rows[-1], rows[0]) if row.tokens > WORTH + 2]
    names = [f"lora/{arm}/{row}" for arm in ("shared", "naive") for row in short] + [f"lora/shared/{long}"]
    names += [f"lora/graphs/{row}" for row in recorded]
    names += [f"full/shared/{row}" for row in reversed(short)] + [f"full/naive/{short[0]}"]
    names += [f"lora/naive/{long}", f"full/shared/{long}", f"full/graphs/{long}"]
    return names + ([f"lora/trl/{row}" for row in (*short, long)] if trl else [])


def rows_of(options: argparse.Namespace) -> tuple[Row, ...]:
    rows = TINY if options.tiny else ROWS
    return tuple(replace(row, prompts=options.prompts or row.prompts) for row in rows)


class Bench:
    """The jobs, one at a time; a model stays for as long as jobs want it."""

    def __init__(self, options: argparse.Namespace, began: float):
        self.options, self.device = options, torch.device(options.device)
        self.until = began + 60 * options.minutes
        self.processor, self.geometry = processor_of(), GEOMETRIES[options.model]
        self.kind, self.model, self.parameters = "", None, {}

    def job(self, name: str) -> dict:
        """A row of the table, or why there is none."""
        kind, arm, *numbers = name.split("/")
        empty(self.device)  # also of what a job before it left when it ran out of memory
        if time.monotonic() > self.until:
            return {"skipped": f"no time left of {self.options.minutes:g} minutes"}
        row = Row(*map(int, numbers))
        try:
            return self.theirs(kind, row) if arm == "trl" else self.ours(kind, arm, row)
        except SkippedError as reason:
            return {"skipped": str(reason)}
        except ImportError as missing:
            return {"skipped": str(missing)}
        except torch.OutOfMemoryError:
            return {"skipped": "out of memory"}
        except Exception as error:  # the other rows of a borrowed machine are not to be lost with this one
            traceback.print_exc()
            return {"skipped": f"died: {type(error).__name__}", "died": True}

    def ours(self, kind: str, arm: str, row: Row) -> dict:
        """`shared`; `graphs`: besides, a token's operations are replayed; `naive`."""
        self.take(kind)
        policy = policy_of(self.model, self.processor, row.tokens, arm != "naive", arm == "graphs")
        options = self.options
        counted = Counted(options.warm_up, options.steps, self.until)
        try:
            return measure(policy, optimizers_build(self.model, "adamw", lr=1e-6), row, counted)
        finally:
            self.model.zero_grad(set_to_none=True)  # also of a step that died

    def theirs(self, kind: str, row: Row) -> dict:
        self.drop()
        work = {**vars(row), "model": self.options.model, "kind": kind, "device": str(self.device)}
        work |= {name: getattr(self.options, name) for name in ("warm_up", "steps")}
        with gpu_trl.importable(self.options.trl) as folder:
            return gpu_trl.measure(work, folder, self.until)

    def take(self, kind: str) -> None:
        """The model for this kind of training.

        Raises:
            SkippedError: it cannot fit.
        """
        if kind == self.kind:
            return
        self.drop()
        need, there = BYTES[kind] * parameters(self.geometry).all, memory(self.device)
        if there and need > there:
            raise SkippedError(f"weights, gradients and optimizer alone take {need / 1e9:.0f} of {there / 1e9:.0f} GB")
        self.model, self.kind = model_of(self.geometry, kind, self.processor, self.device), kind
        self.parameters[kind] = parameters_of(self.model)

    def drop(self) -> None:
        self.kind, self.model = "", None
        empty(self.device)

    def about(self) -> dict:
        """The machine and the settings; nothing that names it."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU, no GPU"
        options = {key: getattr(self.options, key) for key in ("model", "steps", "warm_up")}
        return {
            "device": name, "torch": torch.__version__, "transformers": transformers.__version__,
            "date": datetime.now(UTC).date().isoformat(), **options,
        }  # fmt: skip


def memory(device: torch.device) -> int | None:
    """Bytes of a GPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def same_work(name: str, row: dict, rows: dict[str, dict]) -> None:
    """Nothing is left of a row of TRL whose steps had other numbers of tokens than ours."""
    own = rows.get(name.replace("/trl/", "/shared/"), row)
    if "tokens" in row and "tokens" in own and row["tokens"] != own["tokens"]:
        reason = f"steps of {row['tokens']} tokens, where ours have {own['tokens']}"
        row.clear()
        row["skipped"] = reason
