"""Supervised learning under the one outer loop: a model is fitted to examples, some steps a row of metrics."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.config import EvalSection, FitConfig, PolicySection
from vlrl.engines import load_policy
from vlrl.metrics import write_text
from vlrl.runner import Learner, Result, StepMetrics, evaluate, stop_not_finite
from vlrl.update import fit_supervised, linear_schedule


class SupervisedLearner(Learner):
    """Fits `policy` to what `draw` gives by `loss`. `setup` of a subclass makes `policy` and `optimizer`.

    Nothing but the seed decides what is drawn (`rngs`), so that a killed run resumes exactly.
    """

    progress_metrics = ("loss",)
    evaluates_before = False
    recent = 20  # steps whose mean loss is reported
    parts = 1  # that the loss is the sum of; their mean is reported
    config: Any
    optimizer: torch.optim.Optimizer

    def __init__(self, config: FitConfig):
        super().__init__(config)
        self.rngs = [np.random.default_rng(config.seed)]  # what is drawn by
        self.losses: deque[float] = deque(maxlen=self.recent)
        self.reported: dict[str, Any] = {}

    def setup(self, saved: Path | None = None) -> None:
        torch.set_num_threads(self.config.threads)

    def draw(self) -> Any:
        """The next batch."""
        raise NotImplementedError

    def loss(self, batch: Any) -> Tensor:
        """Of a batch, a scalar."""
        raise NotImplementedError

    def batches(self, count: int) -> Iterator[Any]:
        """So many, each drawn when the step before it has been made."""
        return (self.draw() for _ in range(count))

    def rate(self) -> Callable[[int], float]:
        """Step from 0 -> learning rate."""
        return linear_schedule(self.config.lr, int(self.steps))

    def clip(self) -> object:
        """Bounds the gradients, before each step."""

    def export(self, folder: Path) -> None:
        """Writes the model as the run leaves it in its folder."""
        self.policy.save(folder)

    @property
    def steps(self) -> float:
        return self.config.steps

    def step(self, i: int) -> StepMetrics:
        """The steps that the next row of metrics tells of.

        Raises:
            StoppedError: the loss is not finite.
        """
        count = min(self.config.log.rows_every - i % self.config.log.rows_every, int(self.steps) - i)
        sums = fit_supervised(
            self.optimizer, self.batches(count), self.loss, lr=self.rate(), first=i, clip=self.clip
        )  # fmt: skip
        losses = [loss / self.parts for loss in sums]
        if not np.isfinite(losses).all():
            raise stop_not_finite(Path(self.config.out), f"the loss is not finite at step {i + count}", "Lower lr")
        self.losses.extend(losses)
        return StepMetrics({"step": i + count, "loss": sum(losses) / count, "lr": self.optimizer.param_groups[0]["lr"]})

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(), "rngs": [rng.bit_generator.state for rng in self.rngs],
            "losses": list(self.losses),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for rng, saved in zip(self.rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved
        self.losses.extend(state["losses"])

    def load(self, folder: Path) -> None:
        self.policy.load_weights(folder)

    def report(self) -> dict[str, Any]:
        """What was measured, for report.json; {}: there is none."""
        return {}

    def finish(self, out: Path) -> None:
        self.reported = self.report()
        self.export(out)
        if self.reported:
            write_text(out / "report.json", json.dumps(self.reported, indent=1) + "\n")

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        return {"loss": float(np.mean(self.losses))}


ANSWER = 64  # tokens of an answer when a language model is measured


def evaluate_export(
    learner: SupervisedLearner, tasks: Sequence[Any], progress: Callable[[int, int], None]
) -> list[Result]:
    """Greedy accuracy on each task's held-out samples of the policy as `export` writes it, rounded weights and all."""
    settings: EvalSection = learner.config.eval
    with tempfile.TemporaryDirectory() as folder:
        learner.export(Path(folder))
        policy = load_policy(PolicySection(model=folder, max_tokens=ANSWER))
    n, batch = settings.num_samples, settings.batch_size
    return [evaluate(policy, task, samples=n, batch=batch, progress=progress) for task in tasks]
