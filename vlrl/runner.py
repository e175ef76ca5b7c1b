"""The one outer loop: evaluate before, every and after; save, stop, resume, log, report. What learns is a `Learner`.

Where a model is fitted to examples, it is a `SupervisedLearner`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl import checkpoint, metrics
from vlrl.config import (
    EvalSection,
    FitConfig,
    LogSection,
    MeasureSection,
    PolicySection,
    RunLogSection,
    check_changes,
    dump,
    find_changes,
)
from vlrl.distributed.world import by_main, count_restarts, get_world, hold_run, launched, to_show
from vlrl.engines import load_policy
from vlrl.logging import Notices, Progress, StoppedError, Stopper, find_start_risks
from vlrl.metrics import part_means
from vlrl.performance.memory import report_oom
from vlrl.report.html import write_report
from vlrl.rollout import collect
from vlrl.types import Episode, Estimate, Policy, UserError, wilson
from vlrl.update import fit_supervised, linear_schedule


@dataclass(frozen=True)
class StepMetrics:
    """What one step of a learner did.

    Args:
        metrics: its row of metrics.jsonl, which a resumed run reproduces exactly; `step`: steps made so far.
        timing: seconds of its parts, and what else hangs on the machine, for timings.jsonl.
        episodes: that were played, a few of which are kept for the report.
        advantages: the mean advantage of each episode's turns.
    """

    metrics: dict[str, Any]
    timing: dict[str, float] = field(default_factory=dict)
    episodes: Sequence[Episode] = ()
    advantages: Sequence[Sequence[float]] | None = None


class Learner:
    """What a run trains. Hooks that a learner has no use for do nothing.

    Args:
        config: with `out`, `seed`, `eval` (`vlrl.config.MeasureSection`) and `log` (`vlrl.config.RunLogSection`).
    """

    command = "train"  # `vlrl COMMAND --resume RUN` continues such a run
    step_digits = 6  # in the names of checkpoints, which sort as steps do
    by_advantage = False  # whether advantages are what moves the weights
    progress_metrics: tuple[str, ...] = ("reward", "accuracy")  # on the progress line
    evaluates_before = True  # also the model that the run begins with
    task: Any = None  # vlrl.types.BaseTask; None: it has none
    policy: Any  # that is trained: `save(folder)`

    def __init__(self, config: Any):
        self.config = config

    @property
    def steps(self) -> float:
        """The step at which the run ends; infinity: when it is stopped."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What is learned, for summary.json."""
        return self.config.task.name

    def setup(self, saved: Path | None = None) -> None:
        """Makes task and policy, before anything is written. saved: the checkpoint that `load` is called with next."""

    def prepare(self, run: Runner) -> int:
        """In a new run, before its first evaluation -> steps that this took."""
        return 0

    def find_risks(self) -> Iterable[str]:
        """Settings that are likely to waste the run, each in a line with what to change. Asked once, after `setup`."""
        return ()

    def format_imitation(self) -> str:
        """What to do where the first evaluation's answers are not read, as part of a sentence."""
        return "imitate some answers first (`vlrl warmstart`)"

    def begin(self, run: Runner) -> None:
        """In a new run, between its first evaluation and its first step."""

    def is_ready(self, stopping: Callable[[], bool]) -> bool:
        """Waits until a step can be made. False: a stop was asked for first."""
        return True

    def step(self, i: int) -> StepMetrics:
        """One step, or a few that belong together. i: steps made so far."""
        raise NotImplementedError

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult | None:
        """Greedy accuracy after i steps; None: there is nothing to measure by. progress: told of the samples so far
        and of all.
        """
        settings: EvalSection = self.config.eval
        return evaluate(
            self.policy, self.task, samples=settings.num_samples, batch=settings.batch_size, progress=progress
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint holds beside what `saver` writes. Called in every process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` returned, and what the runner keeps."""

    in_parts = False  # whether each process has a part of the weights and writes it by itself

    def saver(self) -> Callable[[Path], None]:
        """What writes the model into a folder. Called in the first process, or in all of them (`in_parts`)."""
        return self.policy.save

    def saving(self) -> AbstractContextManager[None]:
        """Held in every process while a checkpoint is written."""
        return nullcontext()

    def load(self, folder: Path) -> None:
        """Reads what `saver` wrote, before `load_state_dict`."""

    def cpu_s(self) -> float:
        """Processor seconds of processes that the learner started, as simulators."""
        return 0.0

    def finish(self, out: Path) -> None:
        """Writes what the run makes beside its checkpoints into its folder. Called in the first process, at the end."""

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        """For summary.json. results: `before`, `after`, `best` -> value, low, high, n and step."""
        return {}

    def close(self) -> None:
        """Ends processes and threads. Called once, however the run ends."""
        if self.task is not None:
            self.task.close()


class Clock:
    """Seconds of a run: `spent` before, and what has passed since it was entered. cpu_s: simulators' too.

    Args:
        children: processor seconds of simulators so far.
    """

    def __init__(self, children: Callable[[], float]):
        self.spent = {"wall_s": 0.0, "cpu_s": 0.0}
        self._children = children
        self._since: tuple[float, float] | None = None

    def __enter__(self) -> Clock:
        self._since = (time.monotonic(), self.cpu_s())
        return self

    def __exit__(self, *error: object) -> None:
        self.spent, self._since = self.now(), None

    def now(self) -> dict[str, float]:
        """All seconds so far."""
        wall, cpu = self._since or (time.monotonic(), self.cpu_s())
        passed = {"wall_s": time.monotonic() - wall, "cpu_s": self.cpu_s() - cpu}
        return {name: self.spent[name] + passed[name] for name in passed}

    def cpu_s(self) -> float:
        """Processor seconds of this process, and of simulators."""
        return time.process_time() + self._children()


OPENED = ".opened"  # in the folder of a run that has begun: torchrun, starting its processes anew, resumes it


class Runner:
    """One run of a learner in the folder `config.out`, in all of its processes.

    Args:
        resume: continue from the folder's newest checkpoint.
        allow_changes: a resumed run may have another seed, task, data or group size.
    """

    def __init__(self, config: Any, learner: Learner, resume: bool = False, allow_changes: bool = False):
        self.config, self.learner, self.out = config, learner, Path(config.out)
        self.evaluation: MeasureSection = config.eval
        self.log: RunLogSection = config.log
        self.resume, self.allow_changes = resume, allow_changes
        self.clock, self.rows = Clock(learner.cpu_s), metrics.RunRows(self.out)
        self.step = 0
        self.has_ended = False
        self.results: dict[str, dict[str, float]] = {}  # before, best, after

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the summary. Ctrl-C or SIGTERM finishes the step, saves and stops.

        Raises:
            UserError: something the user can mend; StoppedError, which is one, where the run ended before its end.
        """
        with report_oom(), hold_run(self.out):
            resumed = self._setup()
            try:
                self._open_folder(resumed)
                self._train(resumed)
                return self._finish()
            finally:
                self.learner.close()

    # -- the loop ------------------------------------------------------------------------------------------------

    def _train(self, resumed: bool) -> None:
        learner = self.learner
        notices = Notices(by_advantage=learner.by_advantage)
        line = Progress(learner.steps, None, notices, self.evaluation.every_steps, learner.progress_metrics)
        with Stopper() as self.stopper, line as self.progress, self.clock:
            if not resumed:
                for risk in learner.find_risks():
                    self.progress.say(risk)
                self.step = learner.prepare(self)
                if learner.evaluates_before:
                    self._evaluate("before")
                learner.begin(self)
            while self.step < learner.steps:
                self._advance()
            if not self.has_ended and "after" not in self.results:  # `prepare` took all steps
                self._evaluate("after")
                self.save()

    def _advance(self) -> None:
        """One step of the learner, and what is due after it."""
        if not self.learner.is_ready(self.is_stopping):
            raise self._stop()
        before, start, cpu = self.step, time.perf_counter(), self.clock.cpu_s()
        done = self.learner.step(before)
        self.step, seconds = done.metrics["step"], time.perf_counter() - start
        self._log(done.metrics)
        timing = {"step": self.step, "seconds": seconds, "cpu": self.clock.cpu_s() - cpu, **done.timing}
        metrics.append_row(self.out / "timings.jsonl", timing)
        rollouts_every = self.log.rollouts_every if isinstance(self.log, LogSection) else None
        if done.episodes and (self.step == 1 or self._is_due(rollouts_every, before)):
            self._keep_rollouts(done)
        self.progress.show(self.step, done.metrics | {"seconds": seconds / (self.step - before)})
        self.has_ended = last = self.step >= self.learner.steps
        stopping = self.is_stopping()
        if last or self._is_due(self.evaluation.every_steps, before):
            self._evaluate("after" if last else "during")
        if last or stopping or self._is_due(self.log.checkpoint_every, before):
            self.progress.saving(self.save)
            by_main(write_report)(self.out)
        if stopping and not last:
            raise self._stop()

    def _stop(self) -> StoppedError:
        again = f"vlrl {self.learner.command} --resume {self.out}"
        return StoppedError(f"stopped at step {self.step}; go on with: {again}", exit_code=130)

    def is_stopping(self) -> bool:
        """Whether any process was asked to stop. Called by all."""
        return get_world().any(self.stopper.stop)

    def _is_due(self, every: int | None, before: int) -> bool:
        """Whether a multiple of `every` was reached since step `before`."""
        return bool(every) and before // every != self.step // every

    def _evaluate(self, when: str) -> None:
        start, progress = time.perf_counter(), self.progress
        result = self.learner.evaluate(self.step, lambda done, n: progress.note(f"evaluation {done}/{n}"))
        if result is None:
            return
        progress.evaluated(time.perf_counter() - start)
        self._log({"step": self.step, **result.row()})
        if result.episodes:
            examples = to_show(self.learner.policy, result.episodes[: self.log.rollouts])
            metrics.save_rollouts(self.out, self.step, examples, None, split="eval")
        measured = vars(result.accuracy) | {"step": self.step}
        self.results[when] = measured
        if when == "before":
            for risk in find_start_risks(result.row(), result.episodes, self.learner.format_imitation()):
                self.progress.say(risk)
        if when != "before" and measured["value"] > self.results.get("best", {"value": -1.0})["value"]:
            self.results["best"] = measured
            if when == "during":
                progress.saving(self.save)

    # -- the run folder ------------------------------------------------------------------------------------------

    def _setup(self) -> bool:
        """Makes the learner, as it was at the newest checkpoint -> whether there is one."""
        self.accelerator = launched(self.out, self.log.trackers)
        torch.manual_seed(self.config.seed)
        if restarts := count_restarts():
            self.resume = self.resume or get_world().gather((self.out / OPENED).exists())[0]
        elif restarts == 0 and get_world().is_rank_zero:
            (self.out / OPENED).unlink(missing_ok=True)  # an older run's, until this one opens the folder
        if self.resume:
            checkpoint.datafiles_check(self.out, self.config)
        saved = checkpoint.newest_whole(self.out / "checkpoints") if self.resume else None
        state = checkpoint.load_state(saved) if saved else {}
        self.changes = find_changes(state["config"], self.config) if "config" in state else {}
        check_changes(self.changes, self.allow_changes)
        self.learner.setup(saved)
        if saved:
            self._restore(saved, state)
        get_world().wait()  # all have read what is set aside now
        if self.resume and not saved:  # killed before its first checkpoint
            metrics.forget_after(self.out, -1)
        elif not self.resume:
            metrics.set_aside(self.out)
        return saved is not None

    def _restore(self, saved: Path, state: dict[str, Any]) -> None:
        if "results" not in state:
            raise UserError(f"{self.out}: an older version made it: begin a new run in another folder, from {saved}")
        self.step = int(saved.name.removeprefix("step_"))
        self.results, self.clock.spent = state["results"], state["clock"]
        self.learner.load(saved)
        self.learner.load_state_dict(state)
        checkpoint.restore_random_state(state["random"])
        self.rows = metrics.forget_after(self.out, self.step, state.get("rows"))
        self._prune()  # a run may have been killed between a save and this

    def _open_folder(self, resumed: bool) -> None:
        head = "\n".join(metrics.provenance(self.config.seed))
        metrics.open_folder(self.out, None if resumed and not self.changes else f"{head}\n{dump(self.config)}")
        if count_restarts() is not None:
            by_main((self.out / OPENED).touch)()
        metrics.note_changes(self.out, self.step, self.changes)
        checkpoint.note(self.out, self.config)
        if self.log.trackers:
            self.accelerator.init_trackers("vlrl")

    def _log(self, row: dict[str, Any]) -> None:
        metrics.append_row(self.out / "metrics.jsonl", row)
        if self.log.trackers:
            self.accelerator.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def _keep_rollouts(self, done: StepMetrics) -> None:
        kept = metrics.spread(len(done.episodes), self.log.rollouts)
        examples = to_show(self.learner.policy, [done.episodes[i] for i in kept])
        advantages = None if done.advantages is None else [done.advantages[i] for i in kept]
        metrics.save_rollouts(self.out, self.step, examples, advantages)

    def save(self) -> None:
        """A checkpoint of the present step."""
        with self.learner.saving():
            state = {
                "results": self.results, "clock": self.clock.now(), "config": self.config.model_dump(mode="json"),
                "rows": self.rows.snapshot() if get_world().is_rank_zero else {}, "random": checkpoint.random_state(),
                **self.learner.state_dict(),
            }  # fmt: skip
            folder = self.out / "checkpoints" / self._name(self.step)
            checkpoint.save(folder, state, self.learner.saver(), in_parts=self.learner.in_parts)
        self._prune()

    def _prune(self) -> None:
        best = self.results.get("best")
        checkpoint.prune(
            self.out / "checkpoints", self.log.keep_checkpoints, self._name(int(best["step"])) if best else None
        )

    def _name(self, step: int) -> str:
        return f"step_{step:0{self.learner.step_digits}d}"

    def _finish(self) -> dict[str, Any]:
        ends = {when: self.results[when] for when in ("before", "after") if when in self.results}
        summary = {
            "metric": "accuracy",
            **{when: {key: each[key] for key in ("value", "low", "high", "n")} for when, each in ends.items()},
            "best": self.results.get("best"), "task": self.learner.name, "seed": self.config.seed,
            "steps": self.step, **self.learner.summary(self.results), **self.clock.now(),
        }  # fmt: skip
        by_main(self.learner.finish)(self.out)
        metrics.write_text(self.out / "summary.json", json.dumps(summary, indent=2) + "\n")
        self.accelerator.end_training()
        by_main(write_report)(self.out)
        return summary


def stop_not_finite(out: Path, problem: str, remedy: str) -> StoppedError:
    """For updates that were not finite. The folder's newest checkpoint is from before them."""
    good = checkpoint.latest(out / "checkpoints")
    return StoppedError(f"{problem}; last good checkpoint: {good or 'none'}. {remedy}", exit_code=1)


# Held-out evaluation: greedy answers, a 95 % interval, and what was wrong.


@dataclass(frozen=True)
class EvalResult:
    """What was measured of a model on held-out data."""

    accuracy: Estimate
    metrics: dict[str, float] = field(default_factory=dict, kw_only=True)  # beside the accuracy, as the task reports
    facts: dict[str, str] = field(default_factory=dict, kw_only=True)  # what it was measured on: a checksum of scenes
    episodes: Sequence[Episode] = field(default=(), kw_only=True)

    def row(self) -> dict[str, Any]:
        """The result as a row of metrics."""
        measured = self.accuracy
        return {
            **{f"eval/{k}": v for k, v in {**self.metrics, **self.facts}.items()},
            "eval/accuracy": measured.value, "eval/low": measured.low, "eval/high": measured.high, "eval/n": measured.n,
        }  # fmt: skip


@dataclass(frozen=True)
class Result(EvalResult):
    """What was measured on a task's held-out samples."""

    reward: float
    parts: dict[str, float]
    parse_fail: dict[str, float]
    length: float

    def row(self) -> dict[str, Any]:
        return {
            **super().row(), "eval/reward": self.reward, "eval/length": self.length,
            **{f"eval/reward/{k}": v for k, v in self.parts.items()},
            **{f"eval/parse_fail/{k}": v for k, v in self.parse_fail.items()},
        }  # fmt: skip


def evaluate(
    policy: Policy, task: Any, *, samples: int | None = None, batch: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> Result:  # fmt: skip
    """Greedy accuracy on the first `samples` of the test split (default: all of it)."""
    held_out = task.samples("test")
    n = min(samples or len(held_out), len(held_out))
    episodes: list[Episode] = []
    for start in range(0, n, batch):
        chosen = [held_out[i] for i in range(start, min(start + batch, n))]
        episodes += collect(policy, task, chosen, group_size=1, greedy=True)
        if progress:
            progress(len(episodes), n)
    return summarise(episodes, dict(task.metrics(episodes)), dict(task.facts(episodes)))


def summarise(
    episodes: list[Episode], metrics: dict[str, float] | None = None, facts: dict[str, str] | None = None
) -> Result:
    """Accuracy, reward and reasons of scored episodes, with the task's own metrics of them and facts."""
    n = len(episodes)
    correct = sum(e.score.correct for e in episodes)
    reasons = Counter(e.score.reason for e in episodes if e.score.reason)
    return Result(
        Estimate(correct / n, *wilson(correct, n), n),
        sum(e.reward for e in episodes) / n,
        part_means(episodes),
        {reason: count / n for reason, count in sorted(reasons.items())},
        sum(len(e.turns[-1].decision.logprobs) for e in episodes) / n,
        metrics=metrics or {},
        facts=facts or {},
        episodes=episodes,
    )


# Supervised learning under the one outer loop: a model is fitted to examples, some steps a row of metrics.


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

    def batches(self, steps: range) -> Iterator[Any]:
        """One for each of these steps, drawn when the step before it has been made."""
        return (self.draw() for _ in steps)

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
            self.optimizer, self.batches(range(i, i + count)), self.loss, lr=self.rate(), first=i, clip=self.clip
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
            metrics.write_text(out / "report.json", json.dumps(self.reported, indent=1) + "\n")

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
