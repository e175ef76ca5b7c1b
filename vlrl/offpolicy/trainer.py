"""An off-policy run: rounds of a learner, evaluations, the run folder. The folder is as that of `vlrl.trainer`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl import checkpoint, datafiles, log, registry
from vlrl.clock import Clock
from vlrl.earlier import check_changes, find_changes
from vlrl.evaluate import evaluate
from vlrl.offpolicy import protocol
from vlrl.offpolicy.config import OffPolicyConfig, dump
from vlrl.offpolicy.given import check_task
from vlrl.offpolicy.learner import Learner, Round
from vlrl.offpolicy.play import Acting
from vlrl.offpolicy.told import outcome, summary
from vlrl.progress import Progress, StoppedError, Stopper
from vlrl.report import write_report
from vlrl.run_rows import RunRows


class OffPolicyTrainer:
    """One run. Made from a configuration alone; `resume` continues from the run folder's newest checkpoint."""

    def __init__(self, config: OffPolicyConfig, resume: bool = False, allow_changes: bool = False):
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.out = config, Path(config.out)
        if resume:
            datafiles.check(self.out, config)
        self.task = registry.make_task(config)
        check_task(self.task, config.task.name)
        self.learner = Learner(config, self.task)
        self.clock = Clock(self.task)
        self.results: dict[str, dict[str, float]] = {}  # before, best, after
        self.rows, self.changes = RunRows(self.out), {}
        self.resumed = resume and self._restore(allow_changes)
        if resume and not self.resumed:  # killed before its first checkpoint
            log.forget_after(self.out, -1)
        elif not resume:
            log.set_aside(self.out)

    def run(self) -> dict[str, Any]:
        """Learns to the end and returns the summary. Ctrl-C or SIGTERM finishes the round, saves and stops."""
        total = self.config.updates + self.config.ticks
        self._open_folder()
        with Stopper() as stopper, Progress(total) as progress, self.clock:
            if not self.resumed:
                progress.note("reading what is given")
                self.learner.begin()
                protocol.keep(self.out, self.learner.offline, self.config, self.task)
                self._evaluate("before", progress)
            while not self.learner.over:
                before = self.learner.step
                self._round(progress)
                self._after(before, stopper.stop, progress)
                if stopper.stop and not self.learner.over:
                    raise StoppedError(
                        f"stopped at step {self.learner.step}; go on with: vlrl offpolicy --resume {self.out}", 130
                    )
            if "after" not in self.results:  # the first states that were looked at took all ticks
                self._evaluate("after", progress)
                self._save()
        return self._finish()

    def _round(self, progress: Progress) -> None:
        """One round of the learner and its row."""
        start, cpu, before = time.monotonic(), self.clock.cpu_s(), self.learner.step
        done = self.learner.round()
        step = self.learner.step
        self._check(done)
        row = {"step": step, **outcome(done.episodes), **done.told, **self._sizes()}
        timing = {"step": step, "seconds": time.monotonic() - start, **done.timing, "cpu": self.clock.cpu_s() - cpu}
        log.append_row(self.out / "metrics.jsonl", row)
        log.append_row(self.out / "timings.jsonl", timing)
        if done.episodes and self._crossed(before, self.config.log.rollouts_every):
            log.save_rollouts(self.out, step, done.episodes[: self.config.log.rollouts], None)
        won = f"  success {row['accuracy']:.2f}" if done.episodes else ""
        progress.note(f"step {step}/{progress.steps}  updates {row['updates']}{won}")

    def _after(self, before: int, stopping: bool, progress: Progress) -> None:
        """Evaluations and checkpoints that are due, after the round that began at step `before`."""
        last = self.learner.over
        if last or (self.config.eval.every and self._crossed(before, self.config.eval.every)):
            self._evaluate("after" if last else "during", progress)
        if last or stopping or self._crossed(before, self.config.log.checkpoint_every):
            self._save()
            write_report(self.out)

    def _crossed(self, before: int, every: int) -> bool:
        """Whether a multiple of `every` was reached since step `before`."""
        return before // every != self.learner.step // every

    def _check(self, done: Round) -> None:
        if not np.isfinite(list(done.told.values())).all():
            good = checkpoint.latest(self.out / "checkpoints")
            raise StoppedError(
                f"updates were not finite at step {self.learner.step}; last good checkpoint: {good or 'none'}. "
                "Lower agent.lr",
                exit_code=1,
            )

    def _sizes(self) -> dict[str, int]:
        learner = self.learner
        return {**learner.counts, "remembered": len(learner.online), "given": len(learner.offline)}

    def _evaluate(self, when: str, progress: Progress) -> None:
        settings, step = self.config.eval, self.learner.step
        result = evaluate(
            Acting(self.learner.agent.act), self.task, samples=settings.samples, batch=settings.batch,
            progress=lambda done, n: progress.note(f"evaluation {done}/{n}"),
        )  # fmt: skip
        log.append_row(self.out / "metrics.jsonl", {"step": step, **result.row()})
        log.save_rollouts(self.out, step, result.episodes[: self.config.log.rollouts], None, split="eval")
        measured = vars(result.accuracy) | {"step": step}
        self.results[when] = measured
        if when != "before" and measured["value"] > self.results.get("best", {"value": -1.0})["value"]:
            self.results["best"] = measured
            if when == "during":
                self._save()

    # -- the run folder ------------------------------------------------------------------------------------------

    def _open_folder(self) -> None:
        (self.out / "rollouts" / "images").mkdir(parents=True, exist_ok=True)
        if self.changes or not self.resumed:
            head = "\n".join(log.provenance(self.config.seed))
            log.write_text(self.out / "config.yaml", f"{head}\n{dump(self.config)}")
        log.note_changes(self.out, self.learner.step, self.changes)
        datafiles.note(self.out, self.config)

    def _save(self) -> None:
        state = {
            "learner": self.learner.state_dict(), "results": self.results, "clock": self.clock.now(),
            "random": checkpoint.random_state(), "config": self.config.model_dump(mode="json"),
            "rows": self.rows.snapshot(),
        }  # fmt: skip
        folder, best = self.out / "checkpoints", self.results.get("best")
        checkpoint.save(folder / _name(self.learner.step), state, self.learner.save)
        checkpoint.prune(folder, self.config.log.keep, _name(best["step"]) if best else None)

    def _restore(self, allow_changes: bool) -> bool:
        """Everything from the newest checkpoint; False when there is none yet and the run starts anew."""
        folder = checkpoint.newest_whole(self.out / "checkpoints")
        if folder is None:
            return False
        state = checkpoint.load_state(folder)
        self.changes = find_changes(state["config"], self.config) if "config" in state else {}
        check_changes(self.changes, allow_changes)
        self.learner.load(folder, state["learner"])
        self.results, self.clock.spent = state["results"], state["clock"]
        checkpoint.restore_random_state(state["random"])
        self.rows = log.forget_after(self.out, self.learner.step, state.get("rows"))
        return True

    def _finish(self) -> dict[str, Any]:
        told = summary(
            self.results, self.learner.counts, self.clock.spent, task=self.config.task.name,
            model=self.config.agent.name, seed=self.config.seed, steps=self.learner.step,
            bad_rows=len(self.task.bad_rows), **protocol.told(self.out, self.results),
        )  # fmt: skip
        log.write_text(self.out / "summary.json", json.dumps(told, indent=2) + "\n")
        write_report(self.out)
        return told


def _name(step: int) -> str:
    """Of a checkpoint: names sort as steps do, up to a milliard."""
    return f"step_{step:09d}"
