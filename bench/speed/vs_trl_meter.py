"""What both workers of `bench/speed.py vs_trl` measure of themselves, step by step, alike. Needs nothing of vlrl."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode


class Meter:
    """Reports each step on standard output and waits on standard input: the worker's turns are the parent's to give.

    Waiting costs no CPU time. All else that is printed goes to standard error.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.counter: FlopCounterMode | None = None

    def ready(self) -> None:
        """Just before the first step: memory is measured from here."""
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of loading
        self.before = resident("VmRSS")
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        self._tell(versions | {"transformers": transformers.__version__})

    def done(self, tokens: int) -> None:
        """After a step in which `tokens` tokens of prompts and completions took part."""
        told = {"cpu": time.process_time() - self.start, "mib": resident("VmHWM") - self.before, "tokens": tokens}
        if self.counter is not None:
            self.counter.__exit__(None, None, None)
            told["flops"] = {str(op): n for op, n in self.counter.get_flop_counts()["Global"].items()}
            self.counter = None
        self._tell(told)

    def _tell(self, told: dict) -> None:
        """Says it and waits for the next turn: `step`, or `count`, whose operations are counted. None: the end."""
        print(json.dumps(told), file=self.out)
        turn = sys.stdin.readline().strip()
        if not turn:
            raise SystemExit
        if turn == "count":
            self.counter = FlopCounterMode(display=False)
            self.counter.__enter__()
        self.start = time.process_time()


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process, MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
