"""The loop: collect, score, estimate, update, evaluate, save. One page for every method and every kind of task."""

from __future__ import annotations

import functools
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

from vlrl import checkpoint, datafiles, log, registry
from vlrl.batch import columns, decisions_of, estimate, last_features, lessons_of, padded, shaped
from vlrl.clock import Clock
from vlrl.collector import Collector
from vlrl.config import Config
from vlrl.earlier import check_changes, find_changes
from vlrl.evaluate import Result, evaluate
from vlrl.notices import Notices
from vlrl.parallel import by_main, here
from vlrl.parallel.episodes import columns_of, mine, to_show
from vlrl.parallel.start import launched
from vlrl.players import Player, Pool
from vlrl.policies.load import bundled, described, newest_checkpoint
from vlrl.policies.load import load as load_policy
from vlrl.progress import Progress, StoppedError, Stopper
from vlrl.report import write_report
from vlrl.rollout import collect
from vlrl.run_rows import RunRows
from vlrl.teacher import Teacher
from vlrl.told import describe, mean_advantage, spread
from vlrl.types import Decision, Episode, Rollouts, UserError
from vlrl.update import Totals
from vlrl.updating import rate, updater
from vlrl.work import mfu


class Trainer:
    """One run. Made from a configuration alone; `resume` continues from the run folder's newest checkpoint."""

    def __init__(self, config: Config, resume: bool = False, allow_changes: bool = False):
        self.config, self.out = config, Path(config.out)
        train = config.train
        self.accelerator = launched(self.out, config.log.trackers)
        registry.check_places(config)
        registry.check_policy(config, described(newest_checkpoint(bundled(config.policy.model))))
        torch.manual_seed(config.seed)
        if resume:
            datafiles.check(self.out, config)
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
            self.rollouts.pool = Pool(self.samples, self.sampler.positions)
        self.collector = Collector(config, self.sampler, Player(self.policy, self.task, self.rollouts, self.samples))
        saved = checkpoint.newest_whole(self.out / "checkpoints") if resume else None
        state = checkpoint.load_state(saved) if saved else {}
        self.changes = find_changes(state.get("config", {}), config) if "config" in state else {}
        check_changes(self.changes, allow_changes)
        self.updater = updater(config, self.policy, saved)
        self.optimizer = self.updater.optimizer
        self.hooks = [
            registry.make("hooks", c, f"hooks.{i}", self.policy, self.task, self.updater, config.seed)
            for i, c in enumerate(config.hooks)
        ]
        # What a checkpoint holds beside weights, optimizer and generators.
        self.step = 0
        self.counts = {"rollouts": 0, "updates": 0, "skipped": 0, "bad_in_a_row": 0}
        self.clock = Clock(self.collector)
        self.results: dict[str, dict[str, float]] = {}  # before, best, after
        self.resumed = saved is not None
        self.rows = RunRows(self.out)
        if saved:
            self._restore(saved, state)
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
        notices = Notices(by_advantage=all(each.name != "silent" for each in self.config.advantages))
        shown = Progress(train.steps, notices=notices, eval_every=every)
        with Stopper() as stopper, shown as progress, self.clock, self.collector:
            if not self.resumed:
                self._evaluate("before", progress)
                for estimator in self.estimators:
                    self._start(estimator, progress, stopper)
            while self.step < train.steps:
                row = self._step()
                progress.show(self.step, row)
                last, stop = self.step == train.steps, here().any(stopper.stop)
                if last or (every and self.step % every == 0):
                    self._evaluate("after" if last else "during", progress)
                if last or stop or self.step % self.config.log.checkpoint_every == 0:
                    progress.saving(self._save)
                    by_main(write_report)(self.out)
                if stop and not last:
                    raise StoppedError(
                        f"stopped at step {self.step}; go on with: vlrl train --resume {self.out}", exit_code=130
                    )
        return self._finish()

    def _step(self) -> dict[str, Any]:
        """Collect, score, estimate, update: one step of every method."""
        clock = time.perf_counter
        start, cpu = clock(), self.clock.cpu_s()
        self._work(decisions=[], seconds=0)  # an evaluation's is not the step's
        player, episodes = self.collector.collect(self.step, keep=self._keeps_prefill())
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
        played = getattr(player.rollouts, "played", len(episodes))  # a strategy may leave out some
        self._count(totals, played)
        row = {"step": self.step, "played": played, "lr": rate(self.config.train, self.step - 1)}
        row |= describe(episodes, rollouts, advantage, totals)
        for hook in self.hooks:
            if hasattr(hook, "after"):
                hook.after(self.step, row)
        collected_by = (player.policy, self.sampler, player.rollouts, self.collector)
        for part in (*collected_by, *self.process, *self._learning(), *self.hooks):
            row |= getattr(part, "metrics", {})
        timing = {"step": self.step, "seconds": clock() - start, "rollout": collected - start,
                  "estimate": estimated - collected, "update": clock() - estimated,
                  "cpu": self.clock.cpu_s() - cpu, **self._work(mine(decisions), clock() - start)}  # fmt: skip
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
            setting["lr"] = rate(self.config.train, self.step)
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

    def _keeps_prefill(self) -> bool:
        """Whether one update sees all of a step's rollouts under the weights that made them."""
        train = self.config.train
        whole = train.minibatches == train.epochs == 1 and not train.microbatch and not self.replay
        first = not self._revisiting()  # such an estimator would evaluate before the update
        here_written = getattr(self.policy, "engine", None) is None and getattr(self.task, "at_once", None) is None
        in_parts = self.updater.shared.in_parts  # kept passes would be made there in parts
        return train.shared_prefix and whole and first and here_written and not train.staleness and not in_parts

    def _revisiting(self) -> list[Any]:
        return [estimator for estimator in self.estimators if hasattr(estimator, "revisit")]

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

    def _start(self, estimator: Any, progress: Progress, stopper: Stopper) -> None:
        """The first responses that a stateful estimator wants per prompt, sampled from the initial policy.

        Raises:
            StoppedError: on a signal, between two batches.
        """
        wanted = getattr(estimator, "start", 0)
        if not wanted:
            return
        of_key = self._first_prompts(estimator.start_limit, wanted)
        order, cpu = list(of_key), self.clock.cpu_s()
        for begin in range(0, len(order), self.config.train.prompts):
            if here().any(stopper.stop):
                raise StoppedError(
                    f"stopped before step 1, after first responses to {begin} of {len(order)} prompts; start with: "
                    f"vlrl train --resume {self.out}", exit_code=130,
                )  # fmt: skip
            keys = order[begin : begin + self.config.train.prompts]
            # a bucket's responses are to several of its samples
            chosen = [self.samples[of_key[key][i % len(of_key[key])]] for key in keys for i in range(wanted)]
            episodes = collect(self.policy, self.task, chosen, 1)
            outcomes = [estimator.compute_outcome(e.reward, e.score.correct) for e in episodes]
            for i, key in enumerate(keys):
                estimator.begin(key, outcomes[i * wanted : (i + 1) * wanted])
            self.counts["rollouts"] += len(episodes)
            progress.note(f"first responses {begin + len(keys)}/{len(order)}")
        log.append_row(self.out / "timings.jsonl", {"step": 0, "cpu": self.clock.cpu_s() - cpu})

    def _first_prompts(self, limit: int, responses: int) -> dict[str, list[int]]:
        """Positions of the first samples that may be drawn, by what baselines are kept for: `limit` keys at most."""
        of_key: dict[str, list[int]] = {}
        for i in itertools.islice(self.sampler.positions, limit * responses):
            of_key.setdefault(self.samples[i].key, []).append(i)
            if len(of_key) == limit:
                break
        return of_key

    def _evaluate(self, when: str, progress: Progress) -> Result:
        settings, start = self.config.eval, time.perf_counter()
        self.collector.first.tell(self.step)
        result = evaluate(
            self.policy, self.task, samples=settings.samples, batch=settings.batch,
            progress=lambda done, n: progress.note(f"evaluation {done}/{n}"),
        )  # fmt: skip
        progress.evaluated(time.perf_counter() - start)
        self._log({"step": self.step, **result.row()}, None)
        shown = to_show(self.policy, result.episodes[: self.config.log.rollouts])
        log.save_rollouts(self.out, self.step, shown, None, split="eval")
        measured = vars(result.accuracy) | {"step": self.step}
        self.results[when] = measured
        if when != "before" and measured["value"] > self.results.get("best", {"value": -1.0})["value"]:
            self.results["best"] = measured
            if when == "during":
                progress.saving(self._save)
        return result

    def _finish(self) -> dict[str, Any]:
        summary = {
            "metric": "accuracy",
            **{when: _interval(self.results[when]) for when in ("before", "after") if when in self.results},
            "best": self.results.get("best"), "task": self.config.task.name, "model": self.config.policy.model,
            "seed": self.config.seed, "steps": self.step, **self.counts, **self.clock.now(),
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
        log.open_folder(self.out, None if self.resumed and not self.changes else f"{head}\n{dump(self.config)}")
        log.note_changes(self.out, self.step, self.changes)
        datafiles.note(self.out, self.config)
        if self.config.log.trackers:
            self.accelerator.init_trackers("vlrl")

    def _log(self, row: dict[str, Any], timing: dict[str, float] | None) -> None:
        log.append_row(self.out / "metrics.jsonl", row)
        if timing:
            log.append_row(self.out / "timings.jsonl", timing)
        if self.config.log.trackers:
            self.accelerator.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def _save(self) -> None:
        parts, shared = {"policy": self.policy, "sampler": self.sampler}, self.updater.shared
        state = {
            "step": self.step, "counts": self.counts, "results": self.results, "clock": self.clock.now(),
            "config": self.config.model_dump(mode="json"), "rows": self.rows.snapshot() if here().main else {},
            "optimizer": shared.state(self.optimizer), "random": checkpoint.random_state(),
            **{name: part.state_dict() for name, part in parts.items()},
            "estimators": [e.state_dict() for e in self._stateful()], "collector": self.collector.state_dict(),
        }  # fmt: skip
        folder = self.out / "checkpoints"
        weights = {"weights": shared.weights()} if shared.in_parts else {}
        checkpoint.save(folder / f"step_{self.step:06d}", state, functools.partial(self.policy.save, **weights))
        self._prune()

    def _prune(self) -> None:
        best = self.results.get("best")
        kept = f"step_{best['step']:06d}" if best else None
        checkpoint.prune(self.out / "checkpoints", self.config.log.keep, kept)

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Everything from a checkpoint."""
        if len(state["estimators"]) != len(self._stateful()):
            raise UserError(f"{folder} keeps the state of other methods than the config names: put them back")
        self.updater.shared.load(self.policy, folder)
        self.updater.shared.restore(self.optimizer, state["optimizer"])
        self.policy.load_state_dict(state["policy"])
        self.sampler.load_state_dict(state["sampler"])
        for estimator, saved in zip(self._stateful(), state["estimators"], strict=True):
            estimator.load_state_dict(saved)
        self.step, self.counts, self.results = state["step"], state["counts"], state["results"]
        self.clock.spent = state["clock"]
        self.collector.load_state_dict(state.get("collector", {"pending": []}))  # older ones have none
        checkpoint.restore_random_state(state["random"])
        self.rows = log.forget_after(self.out, self.step, state.get("rows"))
        self._prune()  # a run may have been killed between a save and this

    def _stateful(self) -> list[Any]:
        parts = (self.rollouts, *self.process, *self._learning(), *self.hooks)
        return [part for part in parts if hasattr(part, "state_dict")]

    def _learning(self) -> list[Any]:
        return [*self.shaping, *self.estimators, *self.replay]


def _interval(measured: dict[str, float]) -> dict[str, float]:
    return {k: measured[k] for k in ("value", "low", "high", "n")}
