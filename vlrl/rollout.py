"""Collecting episodes: draw samples, let the policy act until every environment is done, score; or while it learns."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING, Any

from vlrl import registry
from vlrl.config import Component, Config, Count
from vlrl.distributed.world import World, assign_policy, gather_episodes, get_world
from vlrl.engines import load_policy
from vlrl.io import OverdueError, deadline
from vlrl.methods import RolloutStrategy, Sampler, method
from vlrl.performance.memory import ROLLOUT_REMEDIES, is_out_of_memory, make_room
from vlrl.performance.profiling import timed
from vlrl.plugins import SHAPES, refuse_instance
from vlrl.policies.engine import Shared
from vlrl.types import (
    OVERLONG,
    TRIES,
    BaseTask,
    Decision,
    Environment,
    Episode,
    Observation,
    OverlongError,
    Policy,
    Sample,
    Score,
    Step,
    Turn,
    UserError,
    is_hopeless,
    one_line,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

# What episodes have earned. A reward that fails costs its own episode its credit, and no other anything.

RAISED, LATE, ODD = "reward_raised", "reward_late", "reward_not_finite"  # reasons in the log: `parse_fail/reward_late`
IN_A_ROW = 16  # rewards that may fail one after the other: then it is no matter of a sample


def scored(task: BaseTask, episodes: Sequence[Episode]) -> None:
    """Gives every episode its score and reward, in place.

    A reward that raises, takes longer than the task's `reward_timeout_s` seconds (None: no limit) or is not finite says
    nothing of its episode: that gets no credit, and what the others of its group got on average, so that it moves
    nothing; one without others counts as wrong. The score's `reason` says why; the first is told on stderr.

    Raises:
        UserError: from the task; IN_A_ROW rewards failed one after the other.
    """
    failed: dict[int, str] = {}
    for number, episode in enumerate(episodes):
        problem = _tried(task, episode)
        task.failed_rewards = task.failed_rewards + 1 if problem else 0
        if problem:
            failed[number] = problem
        if task.failed_rewards >= IN_A_ROW:
            raise UserError(f"the reward failed {IN_A_ROW} times in a row, last for {problem}: mend it")
    if not failed:
        return
    groups: dict[int, list[Episode]] = {}
    for number, episode in enumerate(episodes):
        if number not in failed:
            groups.setdefault(episode.group, []).append(episode)
    for number in failed:
        _stand_in(task, episodes[number], groups.get(episodes[number].group, []))
    notice = f"{len(failed)} of {len(episodes)} rewards failed and give no credit; the first: {failed[min(failed)]}"
    print(f"\nvlrl: {notice}", file=sys.stderr)


def _tried(task: BaseTask, episode: Episode) -> str | None:
    """Scores one episode; what went wrong, which the score's reason then names."""
    limit, where = task.reward_timeout_s, f"sample {episode.sample.id}"
    try:
        with deadline(limit):
            episode.score = task.score(episode)
            episode.reward = task.reward(episode.score)
            numbers = {"reward": episode.reward, "correct": episode.score.correct, **episode.score.parts}
            odd = next((name for name, value in numbers.items() if not math.isfinite(value)), None)
    except UserError:
        raise
    except OverdueError:
        episode.score = Score({}, 0.0, reason=LATE)
        return f"{where}: not done in train.reward_timeout_s = {limit:g} s"
    except Exception as error:
        episode.score = Score({}, 0.0, reason=RAISED)
        return f"{where}: {one_line(error)}"
    if odd is None:
        return None
    episode.score = Score({}, 0.0, reason=ODD)
    return f"{where}: {odd} is {numbers[odd]}"


def _stand_in(task: BaseTask, episode: Episode, others: Sequence[Episode]) -> None:
    """Makes an episode one that says nothing: the mean of the others of its group, and no credit for any unit."""
    parts = dict.fromkeys(task.weights, 0.0)
    correct = episode.reward = 0.0
    if others:
        shared = [name for name in others[0].score.parts if all(name in other.score.parts for other in others)]
        parts = {name: fmean([other.score.parts[name] for other in others]) for name in shared}
        correct = fmean([other.score.correct for other in others])
        episode.reward = fmean([other.reward for other in others])
    episode.score = replace(episode.score, parts=parts, correct=correct)
    for i, turn in enumerate(episode.turns):
        episode.turns[i] = replace(turn, decision=turn.decision.without_credit())


class HaltedError(Exception):
    """Whoever plays in another thread has been told to end."""


def collect(
    policy: Policy, task: BaseTask, samples: Sequence[Sample], group_size: int,
    begun: Sequence[Sequence[int]] | None = None, lanes: int = 1, **act: Any,
) -> list[Episode]:  # fmt: skip
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    An episode that its environment's fault made void is played anew; `faults` keeps the reasons.

    A task's `max_parallel_envs` says how many of its environments may be open: they are then reset and stepped in as
    many threads, and the next episode starts when one has ended. None: all at once, in this thread.

    The open episodes take their turns together, so that each waits for the slowest one's environment. Several lanes,
    each of its own episodes and environments, do not wait for one another.

    Of several processes each plays its part of the groups and gets the others' episodes from those that played them.
    What is sampled hangs on the episode's place alone, so that all of this is the same in one process.

    Args:
        begun: per episode, the tokens that its first completion begins with (`vlrl.policies.vlm.VLM.act`).
        lanes: into so many the episodes are divided, in order. The policy is asked for one lane at a time.
        act: passed on to `policy.act`, for example `greedy=True`.

    Raises:
        UserError: an episode was void TRIES times, or LOST_MOST workers died over it; there are fewer environments
            than lanes.
        HaltedError: the policy's attribute `halted` was set meanwhile.
    """
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    if not act.get("greedy"):
        key = policy.draw_key()
        for place, episode in enumerate(episodes):
            episode.stream = (key, place)
    groups, max_parallel_envs = get_world().part(len(samples)), task.max_parallel_envs
    own = range(groups.start * group_size, groups.stop * group_size)
    with _Stepper(max_parallel_envs) as stepper:

        def lane(asked: Policy, part: range, size: int) -> None:
            mine = None if begun is None else [begun[i] for i in part]
            _play(asked, task, [episodes[i] for i in part], size, stepper, mine, act)

        if lanes == 1:
            lane(policy, own, max_parallel_envs or len(own))
        else:
            act["keep"] = False  # a prefill is of all episodes
            _each(lane, _Shared(policy), _split_range(own, lanes), max_parallel_envs)
    with timed(policy, "reward"):
        scored(task, episodes[own.start : own.stop])
    return gather_episodes(policy, episodes, own)


def _play(
    policy: Policy, task: BaseTask, episodes: list[Episode], max_parallel_envs: int, stepper: _Stepper,
    begun: Sequence[Sequence[int]] | None, act: dict[str, Any],
) -> None:  # fmt: skip
    """Takes every episode to its end; at most `max_parallel_envs` environments are open."""
    waiting = deque(range(len(episodes)))
    opened: dict[int, Environment] = {}
    observations: dict[int, Observation] = {}
    lost: Counter[int] = Counter()  # workers, by the episode that they carried
    try:
        while True:
            if policy.halted:
                raise HaltedError
            started = [waiting.popleft() for _ in range(min(len(waiting), max_parallel_envs - len(opened)))]
            with timed(policy, "environment"):
                opened.update((i, open_environment(task, episodes[i].sample)) for i in started)
                observations.update(zip(started, stepper.map(lambda i: opened[i].reset(), started), strict=True))
            if not opened:
                return
            active = list(opened)
            if begun is not None:
                act = act | {"begun": [() if episodes[i].turns else begun[i] for i in active]}
            try:
                decisions = act_within_memory(
                    policy, [episodes[i] for i in active], [observations[i] for i in active], **act
                )
            except OverlongError as error:
                if not error.episodes:
                    raise
                for i in active:
                    if any(episodes[i] is each for each in error.episodes):
                        _end_overlong(episodes[i])
                        opened.pop(i).close()
                continue
            with timed(policy, "environment"):
                steps = stepper.map(lambda i, d: opened[i].step(d.action, d.frames), active, decisions)
            for i, decision, step in zip(active, decisions, steps, strict=True):
                episodes[i].turns.append(Turn(observations[i], decision, step))
                observations[i] = step.observation
                if step.terminated or step.truncated:
                    opened.pop(i).close()
                if step.fault:
                    lost[i] += step.worker_lost
                    _forget(episodes[i], step, lost[i])
                    waiting.appendleft(i)
    finally:
        for environment in opened.values():
            environment.close()


def act_within_memory(
    policy: Policy, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any
) -> list[Decision]:
    """`policy.act`, from the first time on that memory does not suffice for half as many episodes at a time.

    What is sampled hangs on an episode's place alone, so it is the same.

    Raises:
        UserError: it does not suffice for those either.
    """
    while True:
        most = policy.acts_at_most
        try:
            return _in_parts(policy, episodes, observations, most or len(episodes), options)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        if most is not None or len(episodes) == 1:
            raise UserError(
                f"out of memory in the rollout with {min(most or 1, len(episodes))} episodes at a time: set "
                f"policy.max_num_seqs lower, or {ROLLOUT_REMEDIES}; `vlrl plan` says what each takes"
            )
        policy.acts_at_most = (len(episodes) + 1) // 2
        make_room(policy)
        print(
            f"\nvlrl: out of memory in the rollout with {len(episodes)} episodes at a time: on with "
            f"{policy.acts_at_most}; policy.max_num_seqs={policy.acts_at_most} takes less from the start",
            file=sys.stderr,
        )


def _in_parts(
    policy: Policy, episodes: Sequence[Episode], observations: Sequence[Observation], size: int, options: dict[str, Any]
) -> list[Decision]:
    if len(episodes) <= size:
        return policy.act(episodes, observations, **options)
    decisions: list[Decision] = []
    for start in range(0, len(episodes), size):
        part = slice(start, start + size)
        own = {name: value[part] if name == "begun" and value else value for name, value in options.items()}
        own |= {"keep": False} if "keep" in own else {}  # a prefill is of all episodes
        decisions += policy.act(episodes[part], observations[part], **own)
    return decisions


def _end_overlong(episode: Episode) -> None:
    """Ends an episode whose conversation is longer than the policy takes: a limit, neither won nor lost."""
    turn = episode.turns[-1]
    step = replace(turn.step, truncated=True, info={**turn.step.info, OVERLONG: 1.0})
    episode.turns[-1] = replace(turn, step=step)


def _each(lane: Callable, policy: Policy, parts: Sequence[range], max_parallel_envs: int | None) -> None:
    """Plays every part in a thread of its own, by its share of the environments.

    Raises:
        UserError: there are too few.
    """
    if max_parallel_envs is not None and max_parallel_envs < len(parts):
        raise UserError(
            f"rollout_strategy.lanes: {len(parts)}, but the task opens {max_parallel_envs} environments at a time: "
            f"lower it"
        )
    sizes = [
        len(part)
        for part in (parts if max_parallel_envs is None else _split_range(range(max_parallel_envs), len(parts)))
    ]
    with ThreadPoolExecutor(len(parts)) as threads:
        for played in [threads.submit(lane, policy, *each) for each in zip(parts, sizes, strict=True)]:
            played.result()


def _split_range(whole: range, count: int) -> list[range]:
    """A range in so many parts, or as it has numbers, whose lengths differ by 1 at most."""
    count = min(count, len(whole))
    return [whole[len(whole) * i // count : len(whole) * (i + 1) // count] for i in range(count)]


class PolicyWrapper(Policy):
    """Stands in for another policy in `collect`; a subclass changes how it acts."""

    def __init__(self, policy: Policy):
        self.policy, self.work, self.generator = policy, policy.work, policy.generator

    @property
    def halted(self) -> bool:
        return self.policy.halted

    @halted.setter
    def halted(self, value: bool) -> None:
        self.policy.halted = value

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any) -> list[Decision]:
        return self.policy.act(episodes, observations, **options)

    def decide(self, observation: Observation, action: Any, *args: Any, **options: Any) -> Decision:
        return self.policy.decide(observation, action, *args, **options)

    def ids(self, decision: Decision) -> list[int] | None:
        return self.policy.ids(decision)

    def forget(self) -> None:
        self.policy.forget()

    def join(self) -> None:
        self.policy.join()


def open_environment(task: BaseTask, sample: Sample) -> Environment:
    """An environment for one episode of a sample. UserError where a task's own is none."""
    environment = task.environment(sample)
    if not isinstance(environment, Environment):
        refuse_instance(environment, Environment, "task: its environment", SHAPES["task"].guide)
    return environment


def with_environment(task: BaseTask, environment: Callable[[Sample], Environment]) -> BaseTask:
    """A copy of a task that opens other environments."""
    other: Any = copy.copy(task)
    other.environment = environment
    return other


class _Shared(PolicyWrapper):
    """A policy that threads ask one after the other."""

    def __init__(self, policy: Policy):
        super().__init__(policy)
        self.work, self._turn = None, Lock()  # which counts for one thread

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any) -> list[Decision]:
        with self._turn:
            return self.policy.act(episodes, observations, **options)


def _forget(episode: Episode, step: Step, lost: int) -> None:
    """Makes a void episode one that has not begun. `lost`: so many of its faults are workers that died.

    Of a dead worker it draws the same again, so that the run is the one in which none died; others draw anew, and so
    does what has lost several, as what the policy did may have killed them.
    """
    episode.faults.append(step.fault)
    episode.turns.clear()
    episode.redraws += not step.worker_lost or lost % TRIES == 0
    if is_hopeless(len(episode.faults), lost):
        raise UserError(f"sample {episode.sample.id}: failed {len(episode.faults)} times: {step.fault}")


class _Stepper:
    """Calls a function on each item: in this thread, or in `threads` at a time. The first error is raised."""

    def __init__(self, threads: int | None):
        self._pool = ThreadPoolExecutor(threads) if threads else None

    def map(self, function: Callable, *items: Iterable) -> list[Any]:
        return list((self._pool.map if self._pool else map)(function, *items))

    def __enter__(self) -> _Stepper:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown()


# Rollout strategies: where a step's episodes come from.
#
# Functions `(policy, task, samples, group_size, step, **act) -> episodes`, or classes made with `(policy, task, seed)`
# whose objects are called so. `samples` are what the sampler drew, `step` counts from 0, `act` goes on to the policy.
# Episodes of one group number are compared with each other. An object may have `metrics` (for the log), `played`
# (episodes of the latest step, with those that it left out), `pool` (it is given the sampler's prompts) and a state.


@method(source="every episode is played anew by the present policy")
def plain(
    policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, *, lanes: Count = 1, **act: Any
) -> list[Episode]:
    """`group_size` episodes of each sample, played by the policy.

    Args:
        lanes: so many parts of a step's episodes go on apart, so that an environment that takes long keeps those of its
            own lane waiting alone. The policy sees fewer at a time, which costs time where it is large.
    """
    return collect(policy, task, samples, group_size, lanes=lanes, **act)


# Who plays a step's episodes: a policy, a task and a rollout strategy that nobody else uses meanwhile.


class SamplePool(Sequence[Sample]):
    """The samples at some positions of a split, made when they are asked for."""

    def __init__(self, samples: Sequence[Sample], positions: Sequence[int]):
        self._samples, self.positions = samples, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return SamplePool(self._samples, self.positions[index])
        return self._samples[self.positions[index]]


@dataclass(frozen=True, eq=False)
class RolloutWorker:
    """One that plays. `samples`: the training split, as its own task makes it; `world`: who plays with it."""

    policy: Policy
    task: BaseTask
    rollouts: RolloutStrategy
    samples: Sequence[Sample]
    world: World = field(default_factory=get_world)

    def tell(self, step: int) -> None:
        """Rewards that grow stricter hang on the step alone, so that a resumed run goes on with them."""
        self.task.at_step(step)

    def play(self, positions: Sequence[int], group_size: int, step: int, keep: bool = False) -> list[Episode]:
        """The strategy's episodes of the samples at these positions. keep: as `vlrl.policies.vlm.VLM.act`."""
        chosen = [self.samples[i] for i in positions]
        return self.world.call(self.rollouts, self.policy, self.task, chosen, group_size, step, keep=keep)

    def end(self) -> None:
        """Breaks off what it plays in another thread, between two turns, and waits for no other process."""
        self.policy.halted = True
        self.world.cut()

    def put(self, weights: Mapping[str, Tensor], seed: int) -> None:
        """Weights to play by, and what random numbers are drawn from."""
        from vlrl.policies.weights import put  # torch: checks of the command line read this module without it

        put(self.policy.model, weights)
        if self.policy.generator is not None:
            self.policy.generator.manual_seed(seed)


def weights_of(policy: Policy) -> dict[str, Tensor]:
    """The parameters that train, by name: views, not copies."""
    return {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}


def twin(config: Config, first: RolloutWorker) -> RolloutWorker:
    """Another player of the same run, for a thread of its own.

    What does not train is shared, as long as it is made for reading: weights that are frozen, data. Simulators, and
    what else may be open a few at a time, are its own, and so is its link to other processes, which make twins in the
    same order.
    """
    alone = config.policy.model_copy(update={"engine": Component(name="local")})
    policy = load_policy(alone, shared_prefix=config.train.shared_prefix, seed=config.seed)
    _share(first.policy.model, policy.model)
    if first.policy.engine is not None:
        policy.engine = Shared.share_engine(first.policy, policy)
    many = first.task.max_parallel_envs is None
    task = copy.copy(first.task) if many else registry.make_task(config)
    rollouts = registry.make("rollout_strategy", config.rollout_strategy, "rollout_strategy", policy, task, config.seed)
    samples = task.samples("train")
    if isinstance(first.rollouts.pool, SamplePool):
        rollouts.pool = SamplePool(samples, first.rollouts.pool.positions)
    return RolloutWorker(policy, task, rollouts, samples, get_world().on_own_link())


def _share(model: nn.Module, other: nn.Module) -> None:
    """One memory for what does not train."""
    named = dict(model.named_parameters())
    for name, parameter in other.named_parameters():
        if not parameter.requires_grad:
            parameter.data = named[name].data


# Episodes for one step after the other, played while earlier steps learn (docs/asynchronous.md).


@dataclass(frozen=True, eq=False)
class Job:
    """A step's episodes, being played or to be played."""

    step: int
    version: int  # training steps that had made the weights
    positions: list[int]  # of the samples
    seed: int
    player: RolloutWorker
    episodes: Callable[[], list[Episode]]


class RolloutScheduler:
    """Plays for each step t by the weights that t - staleness steps made, or none had: a schedule and no race.

    What a run gives therefore hangs on its configuration and seed alone, not on which thread was faster. With staleness
    0 a step is played when it is asked for, by the first player itself. Else each of up to staleness + 1 steps is
    played in a thread of its own, by a twin of the first player with a copy of the weights. Of several processes each
    has the same twins, and those of one place in the round talk to each other alone.

    Args:
        sampler: draws a step's samples when it is begun, so that it has seen outcomes up to step t - staleness - 1.
        first: the run's own policy, task and strategy.
    """

    def __init__(self, config: Config, sampler: Sampler, first: RolloutWorker):
        self.config, self.sampler, self.first = config, sampler, first
        self.staleness = config.train.max_staleness
        self.metrics: dict[str, float] = {}
        self._pending: deque[Job] = deque()
        self._twins: list[RolloutWorker] = []
        self._threads: ThreadPoolExecutor | None = None

    def collect(self, step: int, keep: bool) -> tuple[RolloutWorker, list[Episode]]:
        """The episodes of a step and who played them, once all that may be is under way by the present weights.

        Args:
            keep: as `vlrl.policies.vlm.VLM.act`; for staleness 0.
        """
        last = max(step, min(step + self.staleness, self.config.train.steps - 1))
        for ahead in range(step + len(self._pending), last + 1):
            self._begin(ahead, step, keep)
        job = self._pending.popleft()
        age = step - job.version
        assert job.step == step and 0 <= age <= self.staleness, (job.step, job.version, step)
        episodes = job.episodes()
        if not self.staleness and step + 1 < self.config.train.steps:
            self._prepare()
        if self.staleness:
            self.metrics = {"staleness": float(age)}
            assign_policy(self.first.policy, episodes)
            if self.first.policy.work is not None:
                self.first.policy.work.absorb(job.player.policy.work)
        return job.player, episodes

    def _prepare(self) -> None:
        """Has the policy look at its part of the next step's samples while this one learns."""
        if self.first.task.max_parallel_envs is None and not self.first.task.takes_turns():
            following = self.sampler.peek(self.config.train.prompts_per_step)
            part = self.first.world.part(len(following))
            self.first.policy.prepare(self.first.samples, following[part.start : part.stop])

    def cpu_s(self) -> float:
        """Processor seconds of all tasks' simulators."""
        own = [player.task for player in self._twins if player.task.max_parallel_envs is not None]
        return sum(task.cpu_s() for task in (self.first.task, *own))

    def close(self) -> None:
        """Ends what is under way, where it is: between two turns."""
        for player in self._twins:
            player.end()
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """What is under way, to be played again: drawn samples, seeds, and the weights of each version once.

        With what the sampler said of its latest draw, after which there may be no other.
        """
        rows, before = [], None
        for job in self._pending:
            fresh = None if job.version == before else weights_of(job.player.policy)
            rows.append({"step": job.step, "version": job.version, "positions": job.positions, "seed": job.seed,
                         "weights": fresh})  # fmt: skip
            before = job.version
        return {"pending": rows, "sampler": dict(self.sampler.metrics) if rows else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights: dict[str, Any] = {}
        for saved in state["pending"]:
            weights = saved["weights"] or weights
            self._submit(saved["step"], saved["version"], saved["positions"], saved["seed"], weights)
        if state["pending"]:
            self.sampler.metrics = state["sampler"]

    def _begin(self, step: int, version: int, keep: bool) -> None:
        """Draws a step's samples and has them played by the present weights."""
        self.first.tell(step)  # a sampler may look at samples
        positions = self.sampler.draw(self.config.train.prompts_per_step)
        if self.staleness:
            seed = self.first.policy.draw_key()
            self._submit(step, version, positions, seed, weights_of(self.first.policy))
        else:
            play = functools.partial(self.first.play, positions, self.config.train.group_size, step, keep)
            self._pending.append(Job(step, version, positions, 0, self.first, play))

    def _submit(self, step: int, version: int, positions: list[int], seed: int, weights: dict[str, Any]) -> None:
        player = self._twin(step)
        player.put(weights, seed)
        player.tell(step)
        future = self._pool().submit(player.play, positions, self.config.train.group_size, step)
        self._pending.append(Job(step, version, positions, seed, player, future.result))

    def _twin(self, step: int) -> RolloutWorker:
        """The twin of a step's place in the round: what it played last has been collected."""
        place = step % (self.staleness + 1)
        while len(self._twins) <= place:
            self._twins.append(twin(self.config, self.first))
        return self._twins[place]

    def _pool(self) -> ThreadPoolExecutor:
        """Threads for all that may be under way; one where an engine writes, which has one copy of the weights."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1 if self.first.policy.engine else self.staleness + 1, "rollouts")
        return self._threads
