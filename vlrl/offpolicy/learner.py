"""An off-policy run: transitions of episodes, its start, rounds of playing and updating, how offline data is judged."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl import registry
from vlrl.config import Component, PolicySection
from vlrl.decoders import load_json
from vlrl.metrics import write_text
from vlrl.offpolicy.base import AgentSpec, AgentView, EncoderSettings, ReplayBuffer, Transitions, concat, state_of
from vlrl.offpolicy.config import EncoderSection, OffPolicyConfig, RewardSection
from vlrl.policies.encoded import EncodedPolicy, FrozenPolicy, VisionModel
from vlrl.policies.loading import load as load_policy
from vlrl.policies.loading import newest_checkpoint, sees_images
from vlrl.policies.robot_common import ActorShape, image_bytes
from vlrl.rollout import collect
from vlrl.runner import EvalResult, Learner, Runner, StepMetrics, evaluate, stop_not_finite
from vlrl.types import Decision, Episode, Observation, Policy, RobotTask, Sample, Turn, UserError, wilson

# Episodes of a robot's task, and the transitions that they are for an off-policy agent.

# states float32 [B, S], whether to explore, and observations where it looks at them -> float32 [B, K, A]
Chunks = Callable[..., np.ndarray]


@dataclass(frozen=True, eq=False)
class SeenInputs:
    """What an agent saw of a decision."""

    state: np.ndarray  # float32 [S]
    images: np.ndarray  # uint8 [P]


class Acting(Policy):
    """Whatever gives chunks for states, as a policy that only acts.

    Args:
        looks: whether it also takes the observations.
    """

    def __init__(self, chunks: Chunks, view: AgentView | None = None, looks: bool = False):
        self._chunks, self._view, self._looks = chunks, view or AgentView(), looks

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, **how: Any
    ) -> list[Decision]:
        """A decision for each observation; log-probabilities and entropies are unknown, so NaN [K]."""
        states, images = self._view(observations)
        chunks = self._chunks(states, not greedy, *([observations] if self._looks else []))
        unknown = torch.full((chunks.shape[1],), torch.nan)
        inputs = map(SeenInputs, states, images)
        return [Decision(c, unknown, unknown, False, inputs=each) for c, each in zip(chunks, inputs, strict=True)]


def by_chance(low: np.ndarray, high: np.ndarray, chunk: int, rng: np.random.Generator) -> Chunks:
    """Controls drawn evenly within their limits [A], each tick's anew."""

    def chunks(state: np.ndarray, explore: bool, *observations: Any) -> np.ndarray:
        return rng.uniform(low, high, (len(state), chunk, len(low))).astype(np.float32)

    return chunks


def play(policy: Policy, task: Any, first: int, count: int, seed: int) -> list[Episode]:
    """The episodes number `first` to `first + count` of a run, explored: which scenes they are hangs on the seed."""
    return collect(policy, task, [_choose_sample(task, first + i, seed) for i in range(count)], 1)


def _choose_sample(task: Any, number: int, seed: int) -> Sample:
    """Every training sample once in a random order, then all in another."""
    samples = task.samples("train")
    passes, place = divmod(number, len(samples))
    return samples[int(np.random.default_rng([seed, passes]).permutation(len(samples))[place])]


def transitions_of(episodes: Sequence[Episode], view: AgentView | None = None) -> Transitions:
    """Every turn of scored episodes as a transition; `reward` is the task's verdict, at the turn that ended the job.

    A time-out, or what cuts an episode otherwise, is not terminal: the value of what was shown last counts.

    Raises:
        UserError: the robot shows no state, or an action is none of numbers.
    """
    view = view or AgentView()
    final = view([episode.turns[-1].step.observation for episode in episodes])
    return concat([_transitions(*each, view) for each in zip(episodes, *final, strict=True)])


def _transitions(episode: Episode, state: np.ndarray, images: np.ndarray, view: AgentView) -> Transitions:
    """Args: state, images: [S] and [P], what the episode ended with."""
    turns, ended = episode.turns, [turn.step.terminated and not turn.step.truncated for turn in episode.turns]
    n, inputs = len(turns), [turn.decision.inputs for turn in turns]
    if all(isinstance(each, SeenInputs) for each in inputs):
        views = (np.stack([each.state for each in inputs]), np.stack([each.images for each in inputs]))
    else:
        views = view([turn.observation for turn in turns])
    states, pictures = (np.concatenate([a, b[None]]) for a, b in zip(views, (state, images), strict=True))
    return Transitions(
        state=states[:-1],
        action=np.stack([_action(turn) for turn in turns]),
        reward=np.array(ended, np.float32) * episode.score.correct,
        terminal=np.array(ended),
        next_state=states[1:],
        used=np.array([turn.step.executed for turn in turns], np.float32),
        person=np.zeros(n, bool),
        paid=np.array([turn.step.reward for turn in turns], np.float32),
        images=pictures[:-1],
        next_images=pictures[1:],
    )


def weighed(given: Transitions, section: RewardSection, gamma: float | None = None) -> Transitions:
    """The same with the reward that the agent is to learn from; with `gamma` also with returns, discounted a tick."""
    reward = section.success * given.reward + section.step * given.ticks() + section.shaped * given.paid
    returns = {} if gamma is None else {"returns": returns_of(given, reward, gamma)}
    return Transitions(**given.columns() | {"reward": reward} | returns)


def weigh(transitions: Transitions, config: OffPolicyConfig) -> Transitions:
    """As the run weighs rewards, with returns where its agent learns from them."""
    learns = registry.find("agent", config.agent.name).learns_returns
    return weighed(transitions, config.reward, config.gamma if learns else None)


def _action(turn: Turn) -> np.ndarray:
    action = turn.decision.action
    if not isinstance(action, np.ndarray):
        raise UserError("task: off-policy agents give numbers, and this task takes words: remove task.speech")
    return action


# What an off-policy run has before it learns: the robot, and the transitions that are given.

LEAST = 1e-3  # spread of a number of the state that never moved in the data


def load_sources(task: Any, config: OffPolicyConfig) -> Transitions | None:
    """What the sources give, weighed as the run weighs its rewards; None without sources.

    Raises:
        UserError: a source has nothing, or its transitions fit neither the others nor the task.
    """
    parts = [_from(task, config.seed, component, f"offline.{i}") for i, component in enumerate(config.offline)]
    sizes = {part.state.shape[1] for part in parts}
    if len(sizes) > 1:
        raise UserError(f"offline: sources of different robots: states of {sorted(sizes)} numbers")
    return weigh(concat(parts), config) if parts else None


def _from(task: Any, seed: int, component: Component, key: str) -> Transitions:
    part = registry.make("source", component, key)(task, seed)
    expected, actual = (task.chunk, len(task.controls)), part.action.shape[1:]
    if not len(part) or actual != expected:
        raise UserError(f"{key}: {component.name} gave {len(part)} actions of {actual}; the task's are {expected}")
    if part.images.shape[1] != (size := image_bytes(task.view.cameras if task.view else ())):
        raise UserError(f"{key}: {component.name} gave images of {part.images.shape[1]} bytes; the robot's have {size}")
    numbers = (part.state, part.action, part.reward, part.next_state, part.used, part.paid)
    if not all(np.isfinite(column).all() for column in numbers):
        raise UserError(f"{key}: {component.name} gave numbers that are not finite")
    return part


def statistics(seen: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread float32 [S] of the states, for networks."""
    mean, spread = seen.state.mean(0, dtype=np.float64), seen.state.std(0, dtype=np.float64)
    return mean.astype(np.float32), np.maximum(spread, LEAST).astype(np.float32)


def make_agent_spec(task: Any, config: OffPolicyConfig, mean: np.ndarray, spread: np.ndarray) -> AgentSpec:
    """What the agent is told."""
    controls, robot, cameras = task.controls, task.pool.info, task.view.cameras if task.view else ()
    start = config.start and newest_checkpoint(config.start)
    names = tuple(robot.names) if len(robot.names) == len(mean) else ()  # features have none
    section = config.encoder
    encoder = EncoderSettings(cameras, section.features, section.shift) if section and cameras else None
    return AgentSpec(
        len(mean), task.chunk, tuple(controls.names), controls.low, controls.high, mean, spread, gamma=config.gamma,
        start=start, names=names, units=tuple(controls.units), hz=robot.hz, encoder=encoder,
        base=task.view.encoder if task.view and isinstance(task.view.encoder, FrozenPolicy) else None,
    )  # fmt: skip


def _load_start(config: OffPolicyConfig) -> Policy:
    """The policy that `start` names. UserError: there is none."""
    try:
        return load_policy(PolicySection(model=str(config.start)), seed=config.seed)
    except UserError as error:
        raise UserError(f"start: {str(error).removeprefix('policy.model: ')}") from None


def robot_shape(task: Any, cameras: Sequence[tuple[int, int]], state: int) -> ActorShape:
    """What a policy for a task's robot sees and gives."""
    controls, robot = task.controls, task.pool.info
    return ActorShape(
        state, tuple(controls.names), tuple(controls.low.tolist()), tuple(controls.high.tolist()), task.chunk,
        names=tuple(robot.names), units=tuple(controls.units), hz=robot.hz, cameras=tuple(cameras),
    )  # fmt: skip


def make_view(task: Any, config: OffPolicyConfig) -> AgentView | None:
    """What the agent is to see of what the robot shows; None: its state.

    Raises:
        UserError: the robot shows no image; there is no such vision model; images take more memory than they may.
    """
    kind = registry.find("agent", config.agent.name)
    builds = "start" in kind.requires and sees_images(config.start)
    if config.encoder is None and not builds:
        return None
    if config.encoder and builds:
        raise UserError(f"encoder: {config.start} sees the images, and its features are learned from: leave it out")
    environment = task.environment(task.samples("train")[0])
    try:
        observation = environment.reset()
    finally:
        environment.close()
    cameras = tuple(image.size for image in observation.images)
    if builds:
        shape = robot_shape(task, cameras, len(state_of(observation)))
        return AgentView(encoder=FrozenPolicy(_load_start(config), shape))
    if not cameras:
        raise UserError("encoder: this robot shows no image: give it a camera, or leave encoder out")
    section = config.encoder or EncoderSection()
    if section.frozen:
        return AgentView(encoder=VisionModel(section.name, cameras))
    size, most = 2 * image_bytes(cameras), section.memory_gb * 1e9
    if config.capacity * size > most:
        raise UserError(
            f"encoder.memory_gb: {config.capacity} transitions with images of {size // 2} bytes are "
            f"{config.capacity * size / 1e9:.1f} GB: set capacity to {int(most / size)}, or allow it"
        )
    return AgentView(cameras)


def check_task(task: Any, name: str) -> None:
    """UserError where a task has no robot that is moved by numbers."""
    if not isinstance(task, RobotTask):
        raise UserError(f"task: {name} has no robot: off-policy agents learn tasks such as manipulation")
    if task.speech is not None:
        raise UserError("task.speech: off-policy agents give numbers: remove task.speech")


PROBE = 8  # episodes played by chance to learn the states' scale, where nothing is given
PLAYED, DRAWN = 1, 2  # what a random generator is for, beside the run's seed


def outcome(episodes: Sequence[Episode]) -> dict[str, float]:
    """Rewards and successes of the episodes of a round; {} of none."""
    if not episodes:
        return {}
    n, parts = len(episodes), episodes[0].score.parts
    return {
        "reward": sum(e.reward for e in episodes) / n,
        **{f"reward/{name}": sum(e.score.parts[name] for e in episodes) / n for name in parts},
        "accuracy": sum(e.score.correct for e in episodes) / n,
        "length": sum(len(e.turns) for e in episodes) / n,
        "repeated": sum(len(e.faults) for e in episodes),
    }


class OffPolicyLearner(Learner):
    """An agent, its replays, and counts (`vlrl offpolicy`). A step is an update before the first tick, and then a tick;
    one call of `step` makes a round of them.
    """

    command, step_digits = "offpolicy", 9
    progress_metrics = ("updates", "accuracy")
    config: OffPolicyConfig

    def setup(self, saved: Path | None = None) -> None:
        config = self.config
        torch.set_num_threads(config.threads)
        self.task: Any = registry.make_task(config)
        check_task(self.task, config.task.name)
        self.task.view = self.view = make_view(self.task, config)
        self.online, self.offline = ReplayBuffer(config.capacity), ReplayBuffer(config.capacity)
        self.replays = {"online": self.online, "offline": self.offline}
        # rehearsed: updates before the first tick
        self.counts = {"ticks": 0, "episodes": 0, "updates": 0, "rehearsed": 0}
        self.owed = 0.0  # updates that the decisions played so far are still to bring
        self.scale: tuple[np.ndarray, np.ndarray] | None = None  # mean and spread of the states
        self.returns: float | None = None  # mean of the last evaluation
        self.agent: Any = None

    @property
    def steps(self) -> int:
        return self.config.updates + self.config.ticks

    @property
    def steps_made(self) -> int:
        return self.counts["rehearsed"] + self.counts["ticks"]

    def prepare(self, run: Runner) -> int:
        run.progress.note("reading what is given")
        self.make_agent()
        keep(run.out, self.offline, self.config, self.task)
        return self.steps_made

    def make_agent(self) -> None:
        """What is given, or else what chance plays, tells the scale of the states; then there can be an agent."""
        sources = load_sources(self.task, self.config)
        if sources is None:
            _, sources = self._play(Acting(self._chance(), self.view), PROBE)
        else:
            self.offline.add(sources)
        self._make(*statistics(sources))

    def step(self, i: int) -> StepMetrics:
        """Updates from what is given alone, before the first tick; then some episodes and the updates they bring.

        Raises:
            StoppedError: updates were not finite.
        """
        start = time.monotonic()
        episodes: list[Episode] = []
        if self.counts["rehearsed"] < self.config.updates:
            count = min(self.config.log.rows_every, self.config.updates - self.counts["rehearsed"])
            self.counts["rehearsed"] += count
        else:
            warm = self.counts["ticks"] < self.config.warmup_steps
            policy = Acting(self._warm(), self.view, self.agent.looks) if warm else self.policy
            episodes, played = self._play(policy, self.config.episodes)
            self.owed += 0.0 if warm else self.config.utd * len(played)
            count = int(self.owed)
            self.owed -= count
        rolled = time.monotonic()
        stats = self.learn(count)
        if not np.isfinite(list(stats.values())).all():
            problem = f"updates were not finite at step {self.steps_made}"
            raise stop_not_finite(Path(self.config.out), problem, "Lower agent.lr")
        sizes = {**self.counts, "remembered": len(self.online), "given": len(self.offline)}
        timing = {"rollout": rolled - start} if episodes else {}
        timing |= {"update": time.monotonic() - rolled}
        return StepMetrics({"step": self.steps_made, **outcome(episodes), **stats, **sizes}, timing, episodes)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult | None:
        result = super().evaluate(i, progress)
        if result is not None:
            self.returns = mean_return(result.episodes)
        return result

    def remember(self, played: Transitions, won: np.ndarray) -> None:
        """Into the replay; a person's also to what is given, for a person shows the job (HIL-SERL, 2410.21845).

        Args:
            won: bool [M], of an episode that did the job, which may show it as well (self-imitation).
        """
        self.online.add(played)
        demonstrations = played.person | (won & self.config.give_won)
        if demonstrations.any():
            self.offline.add(played.take(demonstrations))

    def learn(self, count: int) -> dict[str, float]:
        """So many updates, and the means of what the agent says of them."""
        sums, counts = Counter(), Counter()
        for _ in range(count):
            for name, value in self.agent.update(*self.batch()).items():
                sums[name] += value
                counts[name] += 1
            self.counts["updates"] += 1
        return {name: sums[name] / counts[name] for name in sums}

    def batch(self) -> tuple[Transitions | None, Transitions | None]:
        """Half played and half given where there are both, drawn evenly from each; else all from the one."""
        rng, size = np.random.default_rng([self.config.seed, DRAWN, self.counts["updates"]]), self.config.batch_size
        half = size // 2 if len(self.online) and len(self.offline) else size
        online = self.online.sample(half, rng) if len(self.online) else None
        return online, self.offline.sample(half, rng) if len(self.offline) else None

    def state_dict(self) -> dict[str, Any]:
        scale = [torch.from_numpy(each) for each in self.scale]
        state = {"counts": self.counts, "owed": self.owed, "scale": scale, "agent": self.agent.state_dict()}
        return {"learner": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = state["learner"]
        self._make(*(each.numpy() for each in own["scale"]))
        self.agent.load_state_dict(own["agent"])
        self.counts, self.owed = own["counts"], own["owed"]

    def saver(self) -> Callable[[Path], None]:
        return self._save

    def _save(self, folder: Path) -> None:
        if self.view and self.view.encoder:
            encoder, spec = self.view.encoder, self.agent_spec
            shape = robot_shape(self.task, encoder.cameras, spec.state - encoder.size)
            EncodedPolicy.save(folder, encoder, self.agent.save, shape)
        else:
            self.agent.save(folder)
        for name, replay in self.replays.items():
            replay.save(folder / f"{name}.npz")

    def load(self, folder: Path) -> None:
        for name, replay in self.replays.items():
            replay.load(folder / f"{name}.npz")

    def cpu_s(self) -> float:
        return self.task.cpu_s()

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        head = {"model": self.config.agent.name, "bad_rows": len(self.task.bad_rows)}
        return {
            **head,
            **summarise_protocol(Path(self.config.out), results, self.returns),
            "rollouts": self.counts["episodes"],
            **self.counts,
        }

    def _make(self, mean: np.ndarray, spread: np.ndarray) -> None:
        self.scale = (mean, spread)
        self.agent_spec = make_agent_spec(self.task, self.config, mean, spread)
        self.agent = registry.make("agent", self.config.agent, "agent", self.agent_spec, self.config.seed)
        self.policy = Acting(self.agent.act, self.view, self.agent.looks)

    def _play(self, policy: Policy, count: int) -> tuple[list[Episode], Transitions]:
        episodes = play(policy, self.task, self.counts["episodes"], count, self.config.seed)
        played = weigh(transitions_of(episodes, self.view), self.config)
        won = np.repeat([e.score.is_correct for e in episodes], [len(e.turns) for e in episodes])
        self.remember(played, won)
        self.counts["episodes"] += count
        self.counts["ticks"] += int(played.ticks().sum())
        return episodes, played

    def _chance(self) -> Chunks:
        rng = np.random.default_rng([self.config.seed, PLAYED, self.counts["episodes"]])
        return by_chance(self.task.controls.low, self.task.controls.high, self.task.chunk, rng)

    def _warm(self) -> Chunks:
        by_chance = self._chance()

        def play(state: np.ndarray, explore: bool, *observations: Any) -> np.ndarray:
            chosen = self.agent.warm(state, *observations)
            return by_chance(state, explore) if chosen is None else chosen

        return play


# What given transitions are: episodes, success and return of whoever made them, how much they cover.

BINS = 20


@dataclass(frozen=True)
class Properties:
    """What given data are. Shares are within [0, 1]."""

    episodes: int
    ticks: int
    success: float | None  # share of episodes that were won; None: the run gives success no weight, so that none shows
    returns: float  # mean sum of what the simulator paid in an episode
    coverage: float  # of states, see `spread_out`
    entropy: float  # of controls, between their limits
    at_limits: float  # share of the controls' numbers at a limit or beyond
    person: float  # share of the transitions that are a person's


def properties(given: Transitions, section: RewardSection, low: np.ndarray, high: np.ndarray) -> Properties:
    """Of what a run was given, with the rewards that it weighed by `section`; low, high: the limits [A]."""
    rows = episodes(given)
    verdict = given.reward - section.step * given.ticks() - section.shaped * given.paid
    won = [verdict[each[-1]] / section.success > 0.5 for each in rows] if section.success else None
    first = given.action[:, 0]  # of each row the control with which it begins
    return Properties(
        len(rows), int(sum(_ticks(given, each) for each in rows)), None if won is None else float(np.mean(won)),
        float(np.mean([_return(given, each) for each in rows])),
        spread_out(given.state, given.state.min(0), given.state.max(0)), spread_out(first, low, high),
        float(((first <= low) | (first >= high)).mean()), float(given.person.mean()),
    )  # fmt: skip


def episodes(given: Transitions) -> list[np.ndarray]:
    """The rows of each episode, in order, as sources give them: a chunk from each tick, or one after the other.

    A row is followed by another of its episode where that begins with the state in which this one ended; or where it is
    the same chunk a tick later, and more than one tick of this one was carried out.
    """
    chained = (given.next_state[:-1] == given.state[1:]).all(1) & ~given.terminal[:-1]
    later = (given.action[:-1, 1:] == given.action[1:, :-1]).all((1, 2)) & (given.ticks()[:-1] > 1)
    return np.split(np.arange(len(given)), np.flatnonzero(~(chained | later)) + 1)


def spread_out(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """How evenly numbers [M, D] fill their ranges: entropy over BINS bins, as a share of the largest, mean over D.

    1: everywhere as often; 0: always the same. A number that never moves is left out; 0 where none does.
    """
    wide = high > low
    if not wide.any():
        return 0.0
    bins = ((values - low)[:, wide] / (high - low)[wide] * BINS).clip(0, BINS - 1).astype(int)
    shares = [np.bincount(column, minlength=BINS) / len(values) for column in bins.T]
    return float(np.mean([-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(BINS) for p in shares]))


def _overlap(given: Transitions, rows: np.ndarray) -> bool:
    """Whether the rows of an episode begin at each tick, rather than where the last one ended."""
    return given.action.shape[1] > 1 and not (given.next_state[rows[:-1]] == given.state[rows[1:]]).all()


def _ticks(given: Transitions, rows: np.ndarray) -> int:
    return len(rows) if _overlap(given, rows) else int(given.ticks()[rows].sum())


def returns_of(given: Transitions, reward: np.ndarray, gamma: float) -> np.ndarray:
    """[M]: the discounted rewards [M] from each decision to the end of its episode. Nothing follows a time-out."""
    ticks, returns = given.ticks(), reward.astype(np.float64)
    for rows in episodes(given):
        following = np.arange(len(rows)) + (ticks[rows] if _overlap(given, rows) else 1)
        for row, place in reversed(list(zip(rows, following, strict=True))):
            if place < len(rows):
                returns[row] += gamma ** ticks[row] * returns[rows[place]]
    return returns


def _return(given: Transitions, rows: np.ndarray) -> float:
    every = given.action.shape[1] if _overlap(given, rows) else 1
    return float(given.paid[rows[::every]].sum(dtype=np.float64))


# How offline learning is judged: beside who made the data (NeoRL-2) and between chance and the script (D4RL, D5RL).
#
# `given.json` of the run folder holds what the data are; the numbers of it that matter go into summary.json.

FILE = "given.json"


def normalised(score: float, random: float, expert: float) -> float:
    """100 * (J - J_random) / (J_expert - J_random): 0 is chance, 100 the expert (D4RL, arXiv 2004.07219).

    Raises:
        ValueError: the expert is no better than chance.
    """
    if not expert > random:
        raise ValueError(f"an expert of {expert:g} is no better than chance of {random:g}")
    return 100 * (score - random) / (expert - random)


def keep(out: Path, given: ReplayBuffer, config: OffPolicyConfig, task: Any) -> None:
    """Says what is given, if anything is, and writes it into the run folder with what chance and the script reach.

    Raises:
        UserError: more is given than is remembered.
    """
    if not given.added:
        return
    if given.added > len(given):
        raise UserError(f"capacity: {config.capacity}, but {given.added} transitions are given: set capacity to that")
    rows = given.all()
    facts = properties(rows, config.reward, task.controls.low, task.controls.high)
    aside = [asdict(each) for each in task.bad_rows]
    print(_line(facts, len(rows), len(aside), rewarded=bool(rows.reward.any())), file=sys.stderr)
    kept = {"properties": asdict(facts), "references": references(task, config), "set_aside": aside}
    write_text(out / FILE, json.dumps(kept, indent=2) + "\n")


def references(task: Any, config: OffPolicyConfig) -> dict[str, float]:
    """Success and return of `random` and `expert` on the scenes of the evaluation, where the task can play them."""
    if not (config.updates and task.pool.info.script and task.arm()):
        return {}
    reached: dict[str, float] = {}
    for name in ("random", "expert"):
        arm = task.arm(name)
        result = evaluate(arm.policy, arm, samples=config.eval.num_samples)
        reached |= {name: result.accuracy.value, f"{name}_return": mean_return(result.episodes)}
    return reached


def mean_return(episodes: Sequence[Episode]) -> float:
    """The mean sum of what the simulator paid in an episode."""
    return float(np.mean([sum(turn.step.reward for turn in episode.turns) for episode in episodes]))


def summarise_protocol(
    out: Path, results: Mapping[str, Mapping[str, float]], returns: float | None = None
) -> dict[str, float]:
    """For the summary: the behaviour policy's success and return, what the data are, the scores; {} without data.

    Scores are of successes, and of returns as D4RL, D5RL and NeoRL-2 have them.

    Args:
        returns: mean return of the policy in the last evaluation, where it was measured.
    """
    path = out / FILE
    if not path.is_file():
        return {}
    kept = load_json(path, finite=False)
    facts, reached = kept["properties"], results["after"]["value"]
    summary = {"given_episodes": facts["episodes"], "behaviour_return": facts["returns"],
            "state_coverage": facts["coverage"], "action_entropy": facts["entropy"]}  # fmt: skip
    if facts["success"] is not None:
        low, high = wilson(round(facts["success"] * facts["episodes"]), facts["episodes"])
        summary |= {"behaviour_success": facts["success"], "behaviour_low": low, "behaviour_high": high,
                 "over_behaviour": reached - facts["success"]}  # fmt: skip
    random, expert = (kept["references"].get(name) for name in ("random", "expert"))
    if random is not None and expert is not None:
        summary |= {"random_success": random, "expert_success": expert}
        if expert > random:
            summary["normalised_score"] = normalised(reached, random, expert)
    low, high = (kept["references"].get(f"{name}_return") for name in ("random", "expert"))
    if returns is not None:
        summary |= {"return": returns, "return_over_behaviour": returns - facts["returns"]}
        if low is not None and high is not None and high > low:
            summary["normalised_return"] = normalised(returns, low, high)
    return summary


def _line(found: Properties, rows: int, aside: int, rewarded: bool) -> str:
    won = "" if found.success is None else f", {100 * found.success:.0f} % won"
    return (
        f"given: {found.episodes} episodes{won}, {rows} transitions, return {found.returns:.3g}, state coverage "
        f"{found.coverage:.2f}, action entropy {found.entropy:.2f}, {100 * found.at_limits:.0f} % at limits"
        + f", {aside} episodes set aside" * bool(aside)
        + ("" if rewarded else "; NOTHING of it is rewarded: see reward.shaped, or the source's success")
    )
