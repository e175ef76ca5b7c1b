"""The loop: collect, score, estimate, update, evaluate, save. One page for every method and every kind of task."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vlrl import checkpoint, log, optimizers, registry
from vlrl.batch import columns, decisions_of, estimate, last_features, lessons_of, padded, shaped
from vlrl.config import Config
from vlrl.evaluate import Result, evaluate
from vlrl.parallel import by_main, here
from vlrl.parallel.episodes import columns_of, mine, to_show
from vlrl.parallel.gradients import Replicated
from vlrl.parallel.start import launched
from vlrl.policies.load import bundled, described, newest_checkpoint
from vlrl.policies.load import load as load_policy
from vlrl.progress import Progress, StoppedError, Stopper
from vlrl.report import write_report
from vlrl.rollout import collect
from vlrl.teacher import Teacher
from vlrl.told import describe, mean_advantage, spread
from vlrl.types import Decision, Episode, Rollouts
from vlrl.update import Totals, Updater
from vlrl.work import mfu


class Trainer:
    """One run. Made from a configuration alone; `resume` continues from the run folder's newest checkpoint."""

    def __init__(self, config: Config, resume: bool = False):
        self.config, self.out = config, Path(config.out)
        train = config.train
        self.accelerator = launched(self.out, config.log.trackers)
        registry.check_policy(config, described(newest_checkpoint(bundled(config.policy.model))))
        torch.manual_seed(config.seed)
        self.task = registry.make_task(config)
        self.samples = self.task.samples("train")
        self.policy = load_policy(config.policy, shared_prefix=train.shared_prefix, seed=config.seed)
        registry.check_fit(self.task, self.policy)
        self.policy.check(self.samples[0])  # limits that no prompt meets show before anything is written
        self.shaping = [registry.make("shaping", c, f"shaping.{i}") for i, c in enumerate(config.shaping)]
        self.estimators = [registry.make("advantages", c, f"advantages.{i}") for i, c in enumerate(config.advantages)]
        self.features = registry.needs_features(self.policy, self.estimators)
        self.anchors = any("anchors" in registry.needs_of(estimator) for estimator in self.estimators)
        self.reference = registry.needs_reference(config, self.estimators)
        if self.reference:
            self.policy.freeze_reference()
        self.sampler = registry.make("sampler", config.sampler, "sampler", len(self.samples), config.seed)
        if hasattr(self.sampler, "check"):
            self.sampler.check(self.samples)  # a list made for other data shows before anything is written
        if hasattr(self.sampler, "follow"):
            self.sampler.follow(self.samples, self.estimators)  # draws by what an estimator knows of each prompt
        given = (self.policy, self.task, config.seed)
        self.rollouts = registry.make("rollouts", config.rollouts, "rollouts", *given)
        self.process = [registry.make("process", c, f"process.{i}", *given) for i, c in enumerate(config.process)]
        self.replay = [registry.make("replay", c, f"replay.{i}", *given) for i, c in enumerate(config.replay)]
        self.teacher = Teacher(config.policy) if registry.needs_teacher(config) else None
        if hasattr(self.rollouts, "pool"):
            self.rollouts.pool = [self.samples[i] for i in self.sampler.positions]
        learned = [p for p in self.policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizers.build(
            self.policy.model, train.optimizer, lr=train.lr, betas=tuple(train.betas), weight_decay=train.weight_decay
        )
        shared = Replicated(here(), learned)
        terms = [registry.make("losses", c, f"losses.{i}") for i, c in enumerate(config.losses)]
        clip_range = next(((t.keywords["low"], t.keywords["high"]) for t in terms if "high" in t.keywords), (0.2, 0.2))
        self.updater = Updater(
            self.policy, self.optimizer, terms, registry.make("weighing", config.weighing, "weighing"),
            backward=torch.Tensor.backward, clip=functools.partial(shared.clip, train.max_grad_norm),
            parts=train.minibatches, epochs=train.epochs, micro=train.microbatch, clip_range=clip_range,
            skip=train.skip_zero, target_kl=train.target_kl, shared=shared,
        )  # fmt: skip
        self.hooks = [
            registry.make("hooks", c, f"hooks.{i}", self.policy, self.task, self.updater, config.seed)
            for i, c in enumerate(config.hooks)
        ]
        # What a checkpoint holds beside weights, optimizer and generators.
        self.step = 0
        self.counts = {"rollouts": 0, "updates": 0, "skipped": 0, "bad_in_a_row": 0}
        self.clock = {"wall_s": 0.0, "cpu_s": 0.0}  # cpu_s: of this process and of the task's
        self.results: dict[str, dict[str, float]] = {}  # before, best, after
        self.resumed = resume and self._restore()
        here().wait()  # all have read what is set aside now
        if resume and not self.resumed:  # killed before its first checkpoint
            log.forget_after(self.out, -1)
        elif not resume:
            log.set_aside(self.out)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the summary. Ctrl-C or SIGTERM finishes the step, saves and stops."""
        train, every = self.config.train, self.config.eval.every
        self._open_folder()
        with Stopper() as stopper, Progress(train.steps, self.step) as progress, self._clock():
            if not self.resumed:
                self._evaluate("before", progress)
                for estimator in self.estimators:
                    self._start(estimator, progress)
            while self.step < train.steps:
                row = self._step()
                progress.show(self.step, row)
                last, stop = self.step == train.steps, here().any(stopper.stop)
                if last or (every and self.step % every == 0):
                    self._evaluate("after" if last else "during", progress)
                if last or stop or self.step % self.config.log.checkpoint_every == 0:
                    self._save()
                    by_main(write_report)(self.out)
                if stop and not last:
                    raise StoppedError(
                        f"stopped at step {self.step}; go on with: vlrl train --resume {self.out}", exit_code=130
                    )
        return self._finish()

    def _step(self) -> dict[str, Any]:
        """Collect, score, estimate, update: one step of every method."""
        train, clock = self.config.train, time.perf_counter
        start, cpu = clock(), self._cpu_s()
        self._work(decisions=[], seconds=0)  # an evaluation's is not the step's
        self._tell_step()
        chosen = [self.samples[i] for i in self.sampler.draw(train.prompts)]
        episodes = self.rollouts(
            self.policy, self.task, chosen, train.group_size, self.step, keep=self._keeps_prefill()
        )
        if hasattr(self.sampler, "observe"):
            self.sampler.observe(episodes)
        for part in self.process:
            episodes = part(episodes, self.step)
        collected = clock()
        for estimator in self._revisiting():
            estimator.revisit(self.policy, episodes)  # scores what was answered earlier
        rollouts = self._columns(episodes)
        advantage = estimate(shaped(rollouts, self.shaping), self.estimators)
        decisions, learned, credit = self._mixed(episodes, rollouts, advantage)
        self._prepare()
        estimated = clock()
        totals = self.updater.step(decisions, learned, credit, (self.config.seed, self.step))
        self.step += 1
        played = getattr(self.rollouts, "played", len(episodes))  # a strategy may leave out some
        self._count(totals, played)
        row = {"step": self.step, "played": played, "lr": self._lr(-1)}
        row |= describe(episodes, rollouts, advantage, totals)
        for hook in self.hooks:
            if hasattr(hook, "after"):
                hook.after(self.step, row)
        for part in (self.policy, self.sampler, self.rollouts, *self.process, *self._learning(), *self.hooks):
            row |= getattr(part, "metrics", {})
        timing = {"step": self.step, "seconds": clock() - start, "rollout": collected - start,
                  "estimate": estimated - collected, "update": clock() - estimated,
                  "cpu": self._cpu_s() - cpu, **self._work(mine(decisions), clock() - start)}  # fmt: skip
        self._log(row, timing)
        if self.step == 1 or self.step % self.config.log.rollouts_every == 0:
            kept = spread(len(episodes), self.config.log.rollouts)
            shown = to_show(self.policy, [episodes[i] for i in kept])
            log.save_rollouts(self.out, self.step, shown, mean_advantage(rollouts, advantage)[kept])
        return row | {"seconds": timing["seconds"]}

    def _columns(self, episodes: list[Episode]) -> Rollouts:
        """The episodes' columns, with all that estimators and losses read of this run."""
        found = columns_of(self._evaluated, episodes, once=("final",))
        return columns(episodes, step=self.step, anchors=self.anchors, **found)

    def _evaluated(self, episodes: list[Episode]) -> dict[str, torch.Tensor | None]:
        """The columns that models are asked for."""
        decisions = decisions_of(episodes)
        return {
            "reference": self.policy.reference(decisions).cpu() if self.reference else None,
            "features": self.policy.features(decisions).cpu() if self.features else None,
            "final": last_features(self.policy, episodes) if self.features else None,
            "teacher": self.teacher.logprobs(self.policy, episodes) if self.teacher else None,
        }

    def _mixed(
        self, episodes: list[Episode], rollouts: Rollouts, advantage: torch.Tensor
    ) -> tuple[list[Decision], Rollouts, torch.Tensor]:
        """What the step learns from: what was played, or what `replay` makes of it."""
        if not self.replay:
            return decisions_of(episodes), rollouts, advantage
        lessons = lessons_of(episodes, advantage)
        for part in self.replay:
            lessons = part(lessons, self.step)
        mixed = [lesson.episode for lesson in lessons]
        return decisions_of(mixed), self._columns(mixed), padded([row for lesson in lessons for row in lesson.credit])

    def _prepare(self) -> None:
        """What the present step's number decides of the update."""
        for setting in self.optimizer.param_groups:
            setting["lr"] = self._lr()
        for hook in self.hooks:
            if hasattr(hook, "before"):
                hook.before(self.step)

    def _work(self, decisions: list[Decision], seconds: float) -> dict[str, float]:
        """What the policy forwarded since the last call, and the seconds of its parts, where it counts them."""
        if not hasattr(self.policy, "work"):
            return {}
        row = self.policy.work.taken()
        if decisions:
            kept, epochs = self._keeps_prefill(), self.config.train.epochs
            row["flops"] = self.policy.effort(decisions, passes=int(self.reference), epochs=epochs, kept=kept)
            row["mfu"] = mfu(row["flops"], seconds, self.policy.work.device)
        return {name if name.endswith("_s") else f"work/{name}": v for name, v in row.items() if v is not None}

    def _tell_step(self) -> None:
        """Rewards that grow stricter hang on the step alone, so that a resumed run goes on with them."""
        if hasattr(self.task, "at_step"):  # tasks of users' own may lack it
            self.task.at_step(self.step)

    def _keeps_prefill(self) -> bool:
        """Whether one update sees all of a step's rollouts under the weights that made them."""
        train = self.config.train
        whole = train.minibatches == train.epochs == 1 and not train.microbatch and not self.replay
        first = not self._revisiting()  # such an estimator would evaluate before the update
        here_written = getattr(self.policy, "engine", None) is None
        return train.shared_prefix and whole and first and here_written and getattr(self.task, "at_once", None) is None

    def _revisiting(self) -> list[Any]:
        return [estimator for estimator in self.estimators if hasattr(estimator, "revisit")]

    def _lr(self, offset: int = 0) -> float:
        """The learning rate of the present step: warm-up, then constant or linear to `lr_end`."""
        train, step = self.config.train, self.step + offset
        if step < train.warmup:
            return train.lr * (step + 1) / train.warmup
        if train.lr_end is None:
            return train.lr
        share = (step - train.warmup) / max(1, train.steps - train.warmup)
        return train.lr + (train.lr_end - train.lr) * share

    def _count(self, totals: Totals, rollouts: int) -> None:
        """Counters, and the stop after too many non-finite updates in a row."""
        self.counts["rollouts"] += rollouts
        self.counts["updates"] += totals.updates
        self.counts["skipped"] += totals.skipped
        in_a_row = self.counts["bad_in_a_row"] + totals.skipped if not totals.updates else 0
        self.counts["bad_in_a_row"] = in_a_row
        if totals.skipped:
            ids = ", ".join(totals.skipped_ids[:8])
            log.append_row(self.out / "skipped.jsonl", {"step": self.step, "samples": totals.skipped_ids})
            log.say(f"step {self.step}: skipped a non-finite update; samples {ids}")
        if in_a_row >= self.config.train.max_bad_updates:
            good = checkpoint.latest(self.out / "checkpoints")
            raise StoppedError(
                f"{in_a_row} non-finite updates in a row at step {self.step}; last good checkpoint: {good or 'none'}. "
                "Lower train.lr or train.max_grad_norm",
                exit_code=1,
            )

    # -- before, during, after -----------------------------------------------------------------------------------

    def _start(self, estimator: Any, progress: Progress) -> None:
        """The first responses that a stateful estimator wants per prompt, sampled from the initial policy."""
        wanted = getattr(estimator, "start", 0)
        if not wanted:
            return
        of_key: dict[str, list[int]] = {}
        for i in self.sampler.positions:
            of_key.setdefault(self.samples[i].key, []).append(i)
        order, cpu = list(of_key), self._cpu_s()
        for begin in range(0, len(order), self.config.train.prompts):
            keys = order[begin : begin + self.config.train.prompts]
            # a bucket's responses are to several of its samples
            chosen = [self.samples[of_key[key][i % len(of_key[key])]] for key in keys for i in range(wanted)]
            rewards = [e.reward for e in collect(self.policy, self.task, chosen, 1)]
            for i, key in enumerate(keys):
                estimator.begin(key, rewards[i * wanted : (i + 1) * wanted])
            self.counts["rollouts"] += len(rewards)
            progress.note(f"first responses {begin + len(keys)}/{len(order)}")
        log.append_row(self.out / "timings.jsonl", {"step": 0, "cpu": self._cpu_s() - cpu})

    def _evaluate(self, when: str, progress: Progress) -> Result:
        settings = self.config.eval
        self._tell_step()
        result = evaluate(
            self.policy, self.task, samples=settings.samples, batch=settings.batch,
            progress=lambda done, n: progress.note(f"evaluation {done}/{n}"),
        )  # fmt: skip
        self._log({"step": self.step, **result.row()}, None)
        shown = to_show(self.policy, result.episodes[: self.config.log.rollouts])
        log.save_rollouts(self.out, self.step, shown, None, split="eval")
        measured = vars(result.accuracy) | {"step": self.step}
        self.results[when] = measured
        if when != "before" and measured["value"] > self.results.get("best", {"value": -1.0})["value"]:
            self.results["best"] = measured
            if when == "during":
                self._save()
        return result

    def _finish(self) -> dict[str, Any]:
        summary = {
            "metric": "accuracy",
            **{when: _interval(self.results[when]) for when in ("before", "after") if when in self.results},
            "best": self.results.get("best"), "task": self.config.task.name, "model": self.config.policy.model,
            "seed": self.config.seed, "steps": self.step, **self.counts, **self.clock,
            "bad_rows": len(self.task.bad_rows),
        }  # fmt: skip
        log.write_text(self.out / "summary.json", json.dumps(summary, indent=2) + "\n")
        self.accelerator.end_training()
        by_main(write_report)(self.out)
        return summary

    # -- the run folder ------------------------------------------------------------------------------------------

    def _open_folder(self) -> None:
        from vlrl.config import dump

        head = "\n".join(log.provenance(self.config.seed))
        log.open_folder(self.out, None if self.resumed else f"{head}\n{dump(self.config)}")
        if self.config.log.trackers:
            self.accelerator.init_trackers("vlrl")

    def _log(self, row: dict[str, Any], timing: dict[str, float] | None) -> None:
        log.append_row(self.out / "metrics.jsonl", row)
        if timing:
            log.append_row(self.out / "timings.jsonl", timing)
        if self.config.log.trackers:
            self.accelerator.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def _save(self) -> None:
        parts = {"policy": self.policy, "sampler": self.sampler}
        state = {
            "step": self.step, "counts": self.counts, "results": self.results, "clock": self._elapsed(),
            "optimizer": self.optimizer.state_dict(), "random": checkpoint.random_state(),
            **{name: part.state_dict() for name, part in parts.items()},
            "estimators": [e.state_dict() for e in self._stateful()],
        }  # fmt: skip
        folder = self.out / "checkpoints"
        checkpoint.save(folder / f"step_{self.step:06d}", state, self.policy.save)
        best = self.results.get("best")
        checkpoint.prune(folder, self.config.log.keep, f"step_{best['step']:06d}" if best else None)

    def _restore(self) -> bool:
        """Everything from the newest checkpoint; False when there is none yet and the run starts anew."""
        folder = checkpoint.latest(self.out / "checkpoints")
        if folder is None:
            return False
        state = checkpoint.load_state(folder)
        self.policy.load_weights(folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.policy.load_state_dict(state["policy"])
        self.sampler.load_state_dict(state["sampler"])
        for estimator, saved in zip(self._stateful(), state["estimators"], strict=True):
            estimator.load_state_dict(saved)
        self.step, self.counts, self.results = state["step"], state["counts"], state["results"]
        self.clock = state["clock"]
        checkpoint.restore_random_state(state["random"])
        log.forget_after(self.out, self.step)
        return True

    def _stateful(self) -> list[Any]:
        parts = (self.rollouts, *self.process, *self._learning(), *self.hooks)
        return [part for part in parts if hasattr(part, "state_dict")]

    def _learning(self) -> list[Any]:
        return [*self.shaping, *self.estimators, *self.replay]

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        """Adds what passes inside to the run's clock, however it ends."""
        self._since = (time.perf_counter(), self._cpu_s())
        try:
            yield
        finally:
            self.clock = self._elapsed()

    def _elapsed(self) -> dict[str, float]:
        wall, cpu = self._since
        return {
            "wall_s": self.clock["wall_s"] + time.perf_counter() - wall,
            "cpu_s": self.clock["cpu_s"] + self._cpu_s() - cpu,
        }

    def _cpu_s(self) -> float:
        """Processor seconds so far, those of the task's simulators included."""
        return time.process_time() + (self.task.cpu_s() if hasattr(self.task, "cpu_s") else 0.0)


def _interval(measured: dict[str, float]) -> dict[str, float]:
    return {k: measured[k] for k in ("value", "low", "high", "n")}
