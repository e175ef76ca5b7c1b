"""A training step: collect, score, estimate, update. One page for every method and every kind of task."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlrl import metrics, registry
from vlrl.batch import columns, decisions_of, estimate, last_features, lessons_of, name_candidates, padded, shaped
from vlrl.config import OWN_TEACHERS, Config, PolicySection
from vlrl.distributed.world import columns_of, mine
from vlrl.engines import load_policy
from vlrl.engines.client import PREFIX_CACHE
from vlrl.logging import StoppedError
from vlrl.methods import Estimator
from vlrl.metrics import describe, turn_advantages
from vlrl.performance.profiling import mfu
from vlrl.policies.loading import bundled, described, newest_checkpoint
from vlrl.rollout import RolloutScheduler, RolloutWorker, SamplePool, collect
from vlrl.runner import Learner, Result, Runner, StepMetrics, stop_not_finite
from vlrl.types import Decision, Episode, Rollouts, Turn, UserError
from vlrl.update import UpdateStats, passes_in_parts, rate, updater

# Whose log-probabilities methods of distillation read: a second model, or the policy itself, with or without a hint.

HINT = "\nA right answer: {}"
FEEDBACK = "\nYour last answer could not be read: {}"


class Teacher:
    """Log-probabilities under `policy.teacher`, which reads `policy.teacher_hint` behind the prompt.

    A model of the policy's tokens; `policy`, as it is when the step is estimated; or `reference`, the frozen copy,
    which `soft_sync` makes a moving average. A hint is the task's gold answer, or the first answer of the group that is
    right, the completion's own left out; where none is, `feedback` tells why the own answer could not be read. Where
    there is no hint, the teacher's are the policy's own: nothing to learn.

    Args:
        task: whose gold answers are the hints.

    Raises:
        UserError: it has other tokens, or is no language model; it cannot be loaded; a hint where episodes take turns.
    """

    def __init__(self, section: PolicySection, task: Any = None):
        made = {"model": section.teacher, "teacher": None, "teacher_hint": None, "lora": None, "freeze": []}
        self.source, self.hint, self.task = section.teacher, section.teacher_hint, task
        own = self.source in OWN_TEACHERS
        self.policy = None if own else load_policy(section.model_copy(update=made), shared_prefix=True, seed=0)
        self._checked = False

    def logprobs(self, policy: Any, episodes: Sequence[Episode]) -> Tensor:
        """Of the tokens that the policy wrote, float32 [B, T]."""
        decisions, has_say = self._read_all(policy, episodes)
        own = [decision.logprobs for decision in decisions_of(episodes)]
        return padded(_select_rows(has_say, self._score(policy, decisions), own))

    def candidates(self, policy: Any, episodes: Sequence[Episode], count: int) -> tuple[Tensor, Tensor, Tensor]:
        """`logprobs`; the policy's likeliest tokens at each place, int64 [B, T, K]; and theirs, float32 [B, T, K]."""
        decisions, has_say = self._read_all(policy, episodes)
        ids, likeliest = zip(*policy.likeliest(decisions_of(episodes), count), strict=True)
        pairs = zip(decisions_of(episodes), likeliest, strict=True)
        own = [torch.cat([decision.logprobs[:, None], row], 1) for decision, row in pairs]
        laws = (self.policy or policy).candidates(name_candidates(decisions, ids), self.source == "reference")
        both = padded(_select_rows(has_say, laws, own))
        return both[..., 0], padded(ids), both[..., 1:]

    def _read_all(self, policy: Any, episodes: Sequence[Episode]) -> tuple[list[Decision], list[bool]]:
        """What the policy wrote as answers to what the teacher reads, and which of it the teacher has its say on."""
        self._check(policy, episodes)
        hints = [self._find_hint(episode, episodes) for episode in episodes]
        decisions = [d for pair in zip(episodes, hints, strict=True) for d in self._read(policy, *pair)]
        # with hints, episodes have one turn: a row each
        return decisions, [hint is not None for hint in hints] if self.hint else [True] * len(decisions)

    def _score(self, policy: Any, decisions: list[Decision]) -> list[Tensor]:
        """Log-probabilities [T] of each decision, on the CPU."""
        if self.source == "reference":
            with torch.no_grad():
                rows = policy.reference(decisions).cpu()
            return [row[: len(decision.logprobs)] for row, decision in zip(rows, decisions, strict=True)]
        return [logprobs for logprobs, _ in (self.policy or policy).score(decisions)]

    def _read(self, policy: Any, episode: Episode, hint: str | None) -> list[Decision]:
        """The tokens that the policy wrote, as answers to what the teacher reads."""
        known: list[Turn] = []
        for turn in episode.turns:
            observation = turn.observation
            if hint is not None:
                observation = replace(observation, content=(*observation.content, hint))
            ids = policy.ids(turn.decision)
            own = (self.policy or policy).decide(observation, turn.decision.action, ids=ids, before=known)
            known.append(replace(turn, decision=own))
        return [turn.decision for turn in known]

    def _find_hint(self, episode: Episode, episodes: Sequence[Episode]) -> str | None:
        if self.hint is None:
            return None
        if self.hint == "gold":
            gold = self.task.gold(episode.sample, episode.turns[0].decision.frames)
            return None if gold is None else HINT.format(gold)
        others = (e for e in episodes if e.group == episode.group and e is not episode)
        if right := next((e.completion for e in others if e.score and e.score.is_correct), None):
            return HINT.format(right)
        reason = episode.score and episode.score.reason
        return FEEDBACK.format(reason.replace("_", " ")) if reason and self.hint == "feedback" else None

    def _check(self, policy: Any, episodes: Sequence[Episode]) -> None:
        if self.hint and any(len(episode.turns) > 1 for episode in episodes):
            raise UserError("policy.teacher_hint: stands behind one prompt, but episodes take turns: leave it out")
        if self._checked:
            return
        if not ((self.policy or policy).writes_text and policy.writes_text):
            raise UserError("policy.teacher: only language models can teach, and only their like: leave it out")
        own, its = (each.processor.tokenizer.get_vocab() for each in (self.policy or policy, policy))
        if own != its:
            raise UserError("policy.teacher: it has other tokens than policy.model: choose one of the same family")
        self._checked = True


def _select_rows(has_say: Sequence[bool], teacher: Sequence[Tensor], own: Sequence[Tensor]) -> list[Tensor]:
    """The teacher's rows, and the policy's own where it has nothing to say."""
    return [row if known else mine for known, row, mine in zip(has_say, teacher, own, strict=True)]


LARGE, LARGE_LR = 50_000_000, 1e-4  # weights from which on a rate above this ruins what was pre-trained
GOLDS = 8  # right answers whose length is looked at before a run


class RLTrainer(Learner):
    """Reinforcement learning: every on-policy method, and every kind of task (`vlrl train`)."""

    config: Config

    # -- made once -----------------------------------------------------------------------------------------------

    def setup(self, saved: Path | None = None) -> None:
        config, train = self.config, self.config.train
        registry.check_places(config)
        registry.check_policy(config, described(newest_checkpoint(bundled(config.policy.model))))
        self.task = registry.make_task(config)
        self.samples = self.task.samples("train")
        self.policy = load_policy(
            config.policy, shared_prefix=train.shared_prefix, seed=config.seed, passes_of=passes_in_parts(config.policy)
        )
        self.task.fits(self.policy)
        self.policy.check(self.samples[0])  # limits that no prompt meets show before anything is written
        self._make_methods()
        worker = RolloutWorker(self.policy, self.task, self.rollout_strategy, self.samples)
        self.collector = RolloutScheduler(config, self.sampler, worker)
        self.updater = updater(config, self.policy, saved)
        self.callbacks = registry.make_all("callbacks", config, self.policy, self.task, self.updater, config.seed)
        self.counts = {"rollouts": 0, "updates": 0, "skipped": 0, "bad_in_a_row": 0}

    def _make_methods(self) -> None:
        """Everything that the configuration names, but for the losses, which are the updater's."""
        config = self.config
        self.reward_shaping = registry.make_all("reward_shaping", config)
        self.advantages = registry.make_all("advantages", config)
        self.features = registry.needs_features(self.policy, self.advantages)
        self.anchors = any("anchors" in estimator.needs for estimator in self.advantages)
        self.reference = registry.needs_reference(config, self.advantages)
        if self.reference:
            self.policy.freeze_reference()
        self.sampler = registry.make("sampler", config.sampler, "sampler", len(self.samples), config.seed)
        self.sampler.check(self.samples)  # a list made for other data shows before anything is written
        self.sampler.follow(self.samples, self.advantages)  # draws by what an estimator knows of each prompt
        inputs = (self.policy, self.task, config.seed)
        self.rollout_strategy = registry.make("rollout_strategy", config.rollout_strategy, "rollout_strategy", *inputs)
        self.process_rewards = registry.make_all("process_rewards", config, *inputs)
        self.replay_mixing = registry.make_all("replay_mixing", config, *inputs)
        self.teacher = Teacher(config.policy, self.task) if registry.needs_teacher(config) else None
        self.candidates = registry.count_candidates(config)
        self.rollout_strategy.pool = SamplePool(self.samples, self.sampler.positions)

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def format_imitation(self) -> str:
        out = self.config.out
        if not self.config.data.train or not self.policy.writes_text:
            return super().format_imitation()
        return f"imitate right answers first: vlrl train {out}/config.yaml --imitate 200 out={out}_2"

    def find_risks(self) -> Iterator[str]:
        config, train = self.config, self.config.train
        if config.data.train and not config.data.test:
            yield "data.test is not given: accuracy is of the task's own samples, not of your data; hold some rows out"
        if not self.policy.writes_text:
            return
        trained = sum(p.numel() for p in self.policy.model.parameters() if p.requires_grad)
        if trained > LARGE and train.lr > LARGE_LR:
            yield (
                f"train.lr: {train.lr:g} for {trained / 1e6:,.0f} million weights is likely to ruin the model: take "
                "1e-6 to 1e-5, or policy.lora with 1e-5 to 1e-4"
            )
        if (needed := self._gold_tokens()) > config.policy.max_tokens:
            yield (
                f"policy.max_tokens: {config.policy.max_tokens}, but right answers take up to {needed} tokens without "
                f"thoughts: raise it above {needed}"
            )

    def _gold_tokens(self) -> int:
        """Tokens of the longest of some right answers; 0 where none is known."""
        if self.task.takes_turns():  # its environments know them, turn by turn
            return 0
        some = self.samples[:: max(1, len(self.samples) // GOLDS)][:GOLDS]
        try:
            golds = [self.task.gold(sample, self.policy.prompt(sample.prompt, sample.id).frames) for sample in some]
        except Exception:  # a task's own code, which may be for other prompts: advice must not end a run
            return 0
        return max((len(self.policy.codec.tokens(gold)) for gold in golds if gold is not None), default=0)

    @property
    def by_advantage(self) -> bool:
        return all(each.name != "silent" for each in self.config.advantages)

    # -- one step ------------------------------------------------------------------------------------------------

    def step(self, i: int) -> StepMetrics:
        """Collect, score, estimate, update: one step of every method."""
        laps = Laps()
        self._work(decisions=[], seconds=0)  # an evaluation's is not the step's
        worker, episodes = self.collector.collect(i, keep=self._keeps_prefill())
        self.sampler.observe(episodes)
        for process_reward in self.process_rewards:
            episodes = process_reward(episodes, i)
        laps.end("rollout")
        for estimator in self.advantages:
            estimator.revisit(self.policy, episodes)  # scores what was answered earlier
        rollouts = self._columns(episodes, i)
        advantages = estimate(shaped(rollouts, self.reward_shaping), self.advantages)
        decisions, learned, credit = self._mixed(episodes, rollouts, advantages, i)
        self._prepare(i)
        laps.end("estimate")
        stats = self.updater.step(decisions, learned, credit, (self.config.seed, i))
        played = len(episodes) if worker.rollouts.played is None else worker.rollouts.played
        self._count(stats, played, i + 1)
        row = {
            "step": i + 1,
            "played": played,
            "lr": rate(self.config.train, i),
            **describe(episodes, rollouts, advantages, stats),
        }
        for callback in self.callbacks:
            callback.on_step_end(i + 1, row)
        row |= self._metrics(worker)
        laps.end("update")
        timing = laps.seconds | self._work(mine(decisions), laps.total())
        return StepMetrics(row, timing, episodes, turn_advantages(rollouts, advantages))

    def _columns(self, episodes: list[Episode], i: int) -> Rollouts:
        """The episodes' columns, with all that estimators and losses read of this run."""
        columns_by_name = columns_of(self._evaluated, episodes, once=("final",), join=self.policy.join)
        return columns(episodes, step=i, anchors=self.anchors, **columns_by_name)

    def _evaluated(self, episodes: list[Episode]) -> dict[str, torch.Tensor | None]:
        """The columns that models are asked for."""
        decisions = decisions_of(episodes)
        teacher = candidates = teacher_law = None
        if self.candidates:
            teacher, candidates, teacher_law = self.teacher.candidates(self.policy, episodes, self.candidates)
        elif self.teacher:
            teacher = self.teacher.logprobs(self.policy, episodes)
        return {
            "candidates": candidates,
            "teacher_candidates": teacher_law,
            "reference": self.policy.reference(decisions).cpu() if self.reference else None,
            "features": self.policy.features(decisions).cpu() if self.features else None,
            "final": last_features(self.policy, episodes) if self.features else None,
            "teacher": teacher,
        }

    def _mixed(
        self, episodes: list[Episode], rollouts: Rollouts, advantage: Tensor, i: int
    ) -> tuple[list[Decision], Rollouts, Tensor]:
        """What the step learns from: what was played, or what `replay` makes of it."""
        if not self.replay_mixing:
            return decisions_of(episodes), rollouts, advantage
        lessons = lessons_of(episodes, advantage)
        for part in self.replay_mixing:
            lessons = part(lessons, i)
        mixed = [lesson.episode for lesson in lessons]
        return (
            decisions_of(mixed),
            self._columns(mixed, i),
            padded([row for lesson in lessons for row in lesson.advantages]),
        )

    def _prepare(self, i: int) -> None:
        """What the present step's number decides of the update."""
        for setting in self.updater.optimizer.param_groups:
            setting["lr"] = rate(self.config.train, i)
        for callback in self.callbacks:
            callback.on_step_begin(i)

    def _metrics(self, worker: RolloutWorker) -> dict[str, float]:
        """What the parts of this step say of themselves."""
        row: dict[str, float] = {}
        collected_by = (worker.policy, self.sampler, worker.rollouts, self.collector)
        for part in (*collected_by, *self.process_rewards, *self._learning(), *self.callbacks):
            row |= part.metrics
        return row

    def _work(self, decisions: list[Decision], seconds: float) -> dict[str, float]:
        """What the policy forwarded since the last call, and the seconds of its parts, where it counts them."""
        if self.policy.work is None:
            return {}
        row = self.policy.work.taken()
        if decisions:
            kept, epochs = self._keeps_prefill(), self.config.train.update_epochs
            row["flops"] = self.policy.effort(decisions, passes=int(self.reference), epochs=epochs, kept=kept)
            row["mfu"] = mfu(row["flops"], seconds, self.policy.work.device)
        context, cached = row.pop("conversation_tokens", 0), row.pop("cached_tokens", 0)
        kept = {PREFIX_CACHE: cached / context} if context else {}
        return kept | {name if name.endswith("_s") else f"work/{name}": v for name, v in row.items() if v is not None}

    def _keeps_prefill(self) -> bool:
        """Whether one update sees all of a step's rollouts under the weights that made them."""
        train = self.config.train
        whole = (
            train.num_minibatches == train.update_epochs == 1 and not train.micro_batch_size and not self.replay_mixing
        )
        first = not any(each.revisits() for each in self.advantages)  # it would evaluate before the update
        writes_itself = self.policy.engine is None and self.task.max_parallel_envs is None
        joint = self.updater.shared.joint  # kept passes are one process's own
        return bool(train.shared_prefix) and whole and first and writes_itself and not train.max_staleness and not joint

    def _count(self, stats: UpdateStats, rollouts: int, step: int) -> None:
        """Counters, and the stop after too many non-finite updates in a row."""
        self.counts["rollouts"] += rollouts
        self.counts["updates"] += stats.updates
        self.counts["skipped"] += stats.skipped
        in_a_row = self.counts["bad_in_a_row"] + stats.skipped if not stats.updates else 0
        self.counts["bad_in_a_row"] = in_a_row
        out = Path(self.config.out)
        if stats.skipped:
            ids = ", ".join(stats.skipped_ids[:8])
            metrics.append_row(out / "skipped.jsonl", {"step": step, "samples": stats.skipped_ids})
            metrics.say(f"step {step}: skipped a non-finite update; samples {ids}")
        if in_a_row >= self.config.train.max_nonfinite_updates:
            problem = f"{in_a_row} non-finite updates in a row at step {step}"
            raise stop_not_finite(out, problem, "Lower train.lr or train.max_grad_norm")

    # -- before the first step -----------------------------------------------------------------------------------

    def begin(self, run: Runner) -> None:
        for estimator in self.advantages:
            self._start(estimator, run)

    def _start(self, estimator: Estimator, run: Runner) -> None:
        """The first responses that a stateful estimator wants per prompt, sampled from the initial policy.

        Raises:
            StoppedError: on a signal, between two batches.
        """
        count = estimator.start
        if not count:
            return
        of_key = self._first_prompts(estimator.start_limit, count)
        order, cpu = list(of_key), run.clock.cpu_s()
        for begin in range(0, len(order), self.config.train.prompts_per_step):
            if run.is_stopping():
                raise StoppedError(
                    f"stopped before step 1, after first responses to {begin} of {len(order)} prompts; start with: "
                    f"vlrl train --resume {run.out}", exit_code=130,
                )  # fmt: skip
            keys = order[begin : begin + self.config.train.prompts_per_step]
            # a bucket's responses are to several of its samples
            chosen = [self.samples[of_key[key][i % len(of_key[key])]] for key in keys for i in range(count)]
            episodes = collect(self.policy, self.task, chosen, 1)
            outcomes = [estimator.compute_outcome(e.reward, e.score.correct) for e in episodes]
            for i, key in enumerate(keys):
                estimator.begin(key, outcomes[i * count : (i + 1) * count])
            self.counts["rollouts"] += len(episodes)
            run.progress.note(f"first responses {begin + len(keys)}/{len(order)}")
        metrics.append_row(run.out / "timings.jsonl", {"step": 0, "cpu": run.clock.cpu_s() - cpu})

    def _first_prompts(self, limit: int, responses: int) -> dict[str, list[int]]:
        """Positions of the first samples that may be drawn, by what baselines are kept for: `limit` keys at most."""
        of_key: dict[str, list[int]] = {}
        for i in itertools.islice(self.sampler.positions, limit * responses):
            of_key.setdefault(self.samples[i].key, []).append(i)
            if len(of_key) == limit:
                break
        return of_key

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> Result:
        self.collector.first.tell(i)
        return super().evaluate(i, progress)

    # -- what a checkpoint holds ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        parts = {"policy": self.policy, "sampler": self.sampler}
        return {
            "counts": self.counts, "optimizer": self.updater.shared.state(self.updater.optimizer),
            **{name: part.state_dict() for name, part in parts.items()},
            "estimators": [e.state_dict() for e in self._stateful()], "collector": self.collector.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["estimators"]) != len(self._stateful()):
            raise UserError("the checkpoint keeps the state of other methods than the config names: put them back")
        self.updater.shared.restore(self.updater.optimizer, state["optimizer"])
        self.policy.load_state_dict(state["policy"])
        self.sampler.load_state_dict(state["sampler"])
        for part, saved in zip(self._stateful(), state["estimators"], strict=True):
            part.load_state_dict(saved)
        self.counts = state["counts"]
        self.collector.load_state_dict(state.get("collector", {"pending": []}))  # older ones have none

    @property
    def in_parts(self) -> bool:
        return self.updater.shared.in_parts

    def saver(self) -> Callable[[Path], None]:
        return functools.partial(self.policy.save, in_parts=True) if self.in_parts else self.policy.save

    def saving(self) -> AbstractContextManager[None]:
        self.policy.forget()  # as who resumes, the run goes on without what was computed before, in other batches
        return self.updater.shared.saving()

    def load(self, folder: Path) -> None:
        self.updater.shared.load(self.policy, folder)

    def _stateful(self) -> list[Any]:
        parts = (self.rollout_strategy, *self.process_rewards, *self._learning(), *self.callbacks)
        return [part for part in parts if part.is_stateful()]

    def _learning(self) -> list[Any]:
        return [*self.reward_shaping, *self.advantages, *self.replay_mixing]

    # -- the run -------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        return self.collector.cpu_s()

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        return {"model": self.config.policy.model, **self.counts, "bad_rows": len(self.task.bad_rows)}

    def close(self) -> None:
        self.collector.close()
        self.policy.close()
        super().close()


class Laps:
    """Seconds of a step's parts, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    def end(self, part: str) -> None:
        """What is now over has taken the time since the part before it."""
        self.seconds[part] = time.perf_counter() - self._start - self.total()

    def total(self) -> float:
        return sum(self.seconds.values())
