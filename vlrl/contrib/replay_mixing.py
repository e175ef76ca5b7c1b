"""Replay mixing: episodes of earlier steps and demonstrations in a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.algorithms.mixture import Mixed, find_position
from vlrl.config import Count, Rate
from vlrl.episode_store import EpisodeBuffer
from vlrl.methods import Recipe, RecipePart, ReplayMixing, method
from vlrl.rollout import open_environment
from vlrl.types import Decision, Episode, Observation, Policy, Sample, TrainingEpisode, Turn, UserError

if TYPE_CHECKING:
    from torch import Tensor


# Lessons of earlier steps, as they were: the tokens, the behaviour policy, and what they were worth.


class EpisodeMemory:
    """At most `capacity` lessons in the order in which they came; the oldest make room.

    What comes back after a kill is what would have come back without one. A lesson's log-probabilities are those under
    the behaviour policy, so that a loss's ratio to it stays right however much later it is taught.

    Args:
        policy: reads and writes tokens (`decide`, `ids`).
        name: of the method that remembers, for messages.

    Raises:
        UserError: the policy is no language model.
    """

    def __init__(self, policy: Any, capacity: int, name: str):
        if not policy.writes_text:
            raise UserError(f"replay_mixing: {name} keeps what language models write; leave it out for other policies")
        self.policy, self.memory = policy, EpisodeBuffer(capacity)
        self._kept: list[dict[str, Any]] = []  # step, shown, turns (`_copy_tensors`) of each

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def steps(self) -> list[int]:
        """When each was played."""
        return [kept["step"] for kept in self._kept]

    def add(self, lessons: Sequence[TrainingEpisode], step: int) -> None:
        self.memory.add([lesson.episode for lesson in lessons])
        self._kept += [
            {"step": step, "shown": lesson.episode.is_demonstration, "turns": self._copy_tensors(lesson)}
            for lesson in lessons
        ]
        self._kept = self._kept[len(self._kept) - len(self.memory) :]

    def drop(self, count: int) -> None:
        """Forgets the oldest ones."""
        self.memory.drop(count)
        self._kept = self._kept[count:]

    def drop_before(self, step: int) -> None:
        """Forgets what was played before a step."""
        self.drop(sum(then < step for then in self.steps))

    def sizes(self) -> list[float]:
        """How large each lesson's credit is (`size`)."""
        return [size([turn["credit"] for turn in kept["turns"]]) for kept in self._kept]

    def lessons(self, positions: Sequence[int], group: int) -> list[TrainingEpisode]:
        """Those at the positions, each a group of its own, numbered from `group`."""
        episodes = self.memory.episodes()
        return [self._lesson(episodes[i], self._kept[i], number) for number, i in enumerate(positions, start=group)]

    def _copy_tensors(self, lesson: TrainingEpisode) -> list[dict[str, Tensor]]:
        import torch

        turns = []
        for turn, credit in zip(lesson.episode.turns, lesson.advantages, strict=True):
            decision = turn.decision
            forced = {} if decision.forced_mask is None else {"forced": decision.forced_mask}
            # clones: a view would keep, and save, the step's whole table
            parts = {"logprobs": decision.logprobs, "entropy": decision.entropy, "credit": credit, **forced}
            tokens = torch.tensor(self.policy.ids(decision))
            turns.append({"tokens": tokens, **{name: part.detach().cpu().clone() for name, part in parts.items()}})
        return turns

    def _lesson(self, episode: Episode, kept: dict[str, Any], group: int) -> TrainingEpisode:
        turns: list[Turn] = []
        for turn, parts in zip(episode.turns, kept["turns"], strict=True):
            turns.append(self._turn(turn, parts, turns))
        whole = replace(episode, turns=turns, group=group, is_demonstration=kept["shown"])
        return TrainingEpisode(whole, tuple(parts["credit"] for parts in kept["turns"]))

    def _turn(self, turn: Turn, parts: dict[str, Tensor], before: Sequence[Turn]) -> Turn:
        now: Decision = self.policy.decide(
            turn.observation, turn.decision.action, key="of this run's memory", ids=parts["tokens"].tolist(),
            before=before,
        )  # fmt: skip
        kept = {"logprobs": parts["logprobs"], "entropy": parts["entropy"], "forced_mask": parts.get("forced")}
        return replace(turn, decision=replace(now, truncated=turn.decision.truncated, **kept))

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict(), "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])
        self._kept = list(state["kept"])


def size(credit: Sequence[Tensor]) -> float:
    """The mean size of an episode's advantages, over all its units; 0: it teaches nothing."""
    units = sum(len(row) for row in credit)
    return float(sum(row.abs().sum() for row in credit)) / units if units else 0.0


def next_group(lessons: Sequence[TrainingEpisode]) -> int:
    """The first group number that is free."""
    return max((lesson.episode.group for lesson in lessons), default=-1) + 1


# A task's gold episodes as lessons that are shown to the policy.


def check_shows(policy: Any, name: str) -> None:
    """UserError where nothing can be shown: gold answers are text."""
    if not policy.writes_text:
        raise UserError(f"replay_mixing: {name} shows a language model what to write; leave it out for other policies")


def make_demonstrations(policy: Any, task: Any, samples: Sequence[Sample], group: int) -> list[TrainingEpisode]:
    """Each sample's gold episode, scored, with credit 0: a group of its own, numbered from `group`.

    Log-probabilities are those under the present policy, which did not sample them.

    Raises:
        UserError: no gold action to a sample is known.
    """
    import torch

    from vlrl.algorithms.rollout_common import evaluated

    episodes = [_played(policy, task, sample, number) for number, sample in enumerate(samples, start=group)]
    return [
        TrainingEpisode(episode, tuple(torch.zeros_like(turn.decision.logprobs) for turn in episode.turns))
        for episode in (evaluated(policy, episodes) if episodes else [])
    ]


def _played(policy: Any, task: Any, sample: Sample, group: int) -> Episode:
    from vlrl.algorithms.rollout_common import decide_gold

    episode, environment = Episode(sample, group, is_demonstration=True), open_environment(task, sample)
    try:
        observation, over = environment.reset(), False
        while not over:
            decision = decide_gold(policy, task, environment, episode, observation, sample.id)
            if decision is None:
                raise UserError(
                    f"sample {sample.id}: no gold action is known to be shown; choose a task that knows one"
                )
            step = environment.step(decision.action, decision.frames)
            episode.turns.append(Turn(observation, decision, step))
            observation, over = step.observation, step.terminated or step.truncated
    finally:
        environment.close()
    score = task.score(episode)
    return replace(episode, score=score, reward=task.reward(score))


# Groups that teach nothing make room for those that teach most.

VspoShare = Annotated[float, Field(ge=0, le=1)]


@method(
    reads=("all_turns",),
    needs=("group",),
    source="VSPO, arXiv 2512.07478: V from a summary of it, the decay of copies a reconstruction",
)
class Vspo(ReplayMixing):
    """Each played group without advantages gives way to a copy of another, drawn by its value `V = (best - mean) std`.

    Mean and std (ddof 0) are of the group's rewards: hard tasks count, and those whose outcome is open. The paper calls
    what keeps a group that is copied often from ruling the update value smoothing clipping; its formula is not at hand.
    Here the k-th copy of a group has its advantages times `decay^k`: with 0.5 a group never counts more than twice.

    Args:
        best: the largest reward that can be had; none: the largest of the step.
        decay: of each further copy.
    """

    def __init__(self, policy: Any, task: Any, seed: int, *, best: float | None = None, decay: VspoShare = 0.5):
        self.seed, self.best, self.decay = seed, best, decay

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        groups: dict[int, list[TrainingEpisode]] = {}
        for lesson in lessons:
            groups.setdefault(lesson.episode.group, []).append(lesson)
        silent = [number for number, own in groups.items() if not _taught(own)]
        chosen = self._draw_groups(groups, len(silent), step)
        copies: dict[int, int] = {}
        for number, other in zip(silent, chosen, strict=False):
            copies[other] = copies.get(other, 0) + 1
            groups[number] = [_copy(lesson, number, self.decay ** copies[other]) for lesson in groups[other]]
        share = len(chosen) / len(groups)
        self.metrics = {"vspo/replaced": share, "vspo/copies": float(max(copies.values(), default=0))}
        return [lesson for own in groups.values() for lesson in own]

    def _draw_groups(self, groups: dict[int, list[TrainingEpisode]], count: int, step: int) -> list[int]:
        """`count` groups that teach, by their value; [] where none does."""
        values = {number: self._value(own, groups) for number, own in groups.items() if _taught(own)}
        total = sum(values.values())
        if not total:
            return []
        rng = np.random.default_rng([self.seed, step])
        return rng.choice(list(values), count, p=[value / total for value in values.values()]).tolist()

    def _value(self, own: list[TrainingEpisode], groups: dict[int, list[TrainingEpisode]]) -> float:
        rewards = np.array([lesson.episode.reward for lesson in own])
        best = self.best
        if best is None:
            best = max(lesson.episode.reward for each in groups.values() for lesson in each)
        return float(max(0.0, best - rewards.mean()) * rewards.std())


def _taught(own: Sequence[TrainingEpisode]) -> bool:
    """Whether a group is learned from: demonstrations are, without advantages."""
    return any(lesson.episode.is_demonstration for lesson in own) or any(
        bool((row.abs() > 1e-8).any()) for lesson in own for row in lesson.advantages
    )


def _copy(lesson: TrainingEpisode, group: int, factor: float) -> TrainingEpisode:
    return TrainingEpisode(replace(lesson.episode, group=group), tuple(factor * row for row in lesson.advantages))


vspo = Vspo


# A gold episode beside each group, worth as much as it beats the group: RL-PLUS.


def learned_by(loss: str) -> Callable[[Recipe, RecipePart], str | None]:
    """A check that some loss learns from the episodes that are shown."""

    def check(recipe: Recipe, part: RecipePart) -> str | None:
        if loss in [term.name for term in recipe.of("losses")]:
            return None
        return f"{part.label} shows episodes that no loss learns from: add {loss} to losses"

    return check


@method(
    reads=("all_turns",),
    gives=("demonstrations",),
    check_recipe=learned_by("rl_plus"),
    source="RL-PLUS, arXiv 2508.00222; github.com/YihongDong/RL-PLUS",
)
class Demonstrate(ReplayMixing):
    """Beside each group's own episodes its sample's gold one, for the loss `rl_plus`.

    Its advantage is `A = R - mean R of the group's own episodes`, not divided by their deviation, as in the released
    code; R is the task's reward, before any shaping. The own episodes' advantages do not know of it. One demonstration
    to a group, a group of its own. Its log-probabilities are those under the present policy.

    Raises:
        UserError: the policy is no language model; no gold action to a sample is known.
    """

    def __init__(self, policy: Policy, task: Any, seed: int):
        check_shows(policy, "demonstrate")
        self.policy, self.task = policy, task

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        groups: dict[int, list[TrainingEpisode]] = {}
        for lesson in lessons:
            groups.setdefault(lesson.episode.group, []).append(lesson)
        own = [sum(lesson.episode.reward for lesson in group) / len(group) for group in groups.values()]
        samples = [group[0].episode.sample for group in groups.values()]
        added = make_demonstrations(self.policy, self.task, samples, next_group(lessons))
        worth = [lesson.episode.reward - mean for lesson, mean in zip(added, own, strict=True)]
        self.metrics = {
            "demonstrate/advantage": sum(worth) / len(worth),
            "demonstrate/logprob": sum(_logprob(lesson) for lesson in added) / len(added),
        }
        priced = [
            replace(lesson, advantages=tuple(row + value for row in lesson.advantages))
            for lesson, value in zip(added, worth, strict=True)
        ]
        return [*lessons, *priced]


demonstrate = Demonstrate


def _logprob(lesson: TrainingEpisode) -> float:
    """Mean over the demonstration's tokens: how unlike the policy it is."""
    rows = [turn.decision.logprobs for turn in lesson.episode.turns]
    return float(sum(row.sum() for row in rows)) / sum(map(len, rows))


# ReLIFT: what nobody solved is shown, as soon as enough of it has come together.


@method(
    reads=("all_turns",),
    gives=("demonstrations",),
    check_recipe=learned_by("sft"),
    source="ReLIFT, arXiv 2506.07527; github.com/TheRoadQaQ/ReLIFT",
)
class Relift(ReplayMixing):
    """Reinforcement learning moves within what a policy can do; what it never gets right it is shown.

    A prompt whose episodes are all wrong waits; when `wait` prompts do, their gold episodes are added to the step's
    lessons, with credit 0, for the loss `sft` to imitate. Those that nobody solves wait again. A prompt waits once,
    however often it fails.

    Published, the demonstrations make an update of their own, with an optimizer of its own (learning rate 1e-6, entropy
    0.001); here they share the step's, where `sft`'s coef and the weighing say how much they count beside the others.

    Args:
        wait: prompts; the released code waits for 128.

    Raises:
        UserError: the policy is no language model; no gold action to a sample is known.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, wait: Count = 128):
        check_shows(policy, "relift")
        self.policy, self.task, self.wait = policy, task, wait
        self.waiting: dict[str, Sample] = {}  # by their ids

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        solved: dict[int, bool] = {}
        sample_of: dict[int, Sample] = {}
        for episode in (lesson.episode for lesson in lessons):
            solved[episode.group] = solved.get(episode.group, False) or episode.score.is_correct
            sample_of[episode.group] = episode.sample
        failed = {sample_of[g].id: sample_of[g] for g, right in solved.items() if not right}
        self.waiting |= {name: sample for name, sample in failed.items() if name not in self.waiting}
        added: list[TrainingEpisode] = []
        if len(self.waiting) >= self.wait:
            chosen = list(self.waiting)[: self.wait]
            added = make_demonstrations(
                self.policy, self.task, [self.waiting.pop(name) for name in chosen], next_group(lessons)
            )
        self.metrics = {
            "relift/unsolved": len(failed) / len(solved), "relift/waiting": float(len(self.waiting)),
            "relift/shown": float(len(added)),
        }  # fmt: skip
        return [*lessons, *added]

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Looks the samples up; what the task no longer has is left out."""
        samples = find_samples(self.task.samples("train"), state["waiting"])
        self.waiting = {name: samples[name] for name in state["waiting"] if name in samples}


relift = Relift


# ECHO: what the environment answered is learned as well, whatever it was worth.

FOLLOWS = "\nThen: {}\nWhat follows?"


@method(
    reads=("all_turns",),
    gives=("demonstrations",),
    check_recipe=learned_by("sft"),
    source="ECHO, arXiv 2605.24517; the prompt is ours",
)
class Echo(ReplayMixing):
    """Beside a step's episodes what their environments answered, for the loss `sft` to predict.

    A policy that knows what its actions lead to has learned from failures too, where rewards say little. Of each turn
    but the last: the prompt is what was shown, with what the policy did and a question behind it; the text is what the
    next turn shows and this one did not. Pictures are not predicted. At most `most` turns a step, drawn evenly; each a
    group of its own with credit 0.

    Published: the observation's tokens where they stand in the conversation, in the forward pass of the episode itself.
    Here they are answers to a prompt of their own, which costs a forward pass and needs no other loss; the conversation
    before the turn is left out.

    Args:
        most: turns that are predicted in a step.

    Raises:
        UserError: the policy is no language model.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, most: Count = 32):
        check_shows(policy, "echo")
        self.policy, self.seed, self.most = policy, seed, most

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        import torch

        from vlrl.algorithms.rollout_common import evaluated

        answers = [each for lesson in lessons for each in self._answers(lesson.episode)]
        order = np.random.default_rng([self.seed, step]).permutation(len(answers))[: self.most]
        first = next_group(lessons)
        chosen = [replace(answers[i], group=first + number) for number, i in enumerate(sorted(order))]
        added = [
            TrainingEpisode(episode, (torch.zeros_like(episode.turns[0].decision.logprobs),))
            for episode in (evaluated(self.policy, chosen) if chosen else [])
        ]
        likely = [_logprob(lesson) for lesson in added]
        self.metrics = {"echo/predicted": float(len(added)), "echo/logprob": sum(likely) / max(1, len(likely))}
        return [*lessons, *added]

    def _answers(self, episode: Episode) -> Iterator[Episode]:
        """Each turn whose successor shows new text, as an episode in which that text is written."""
        for turn, after in itertools.pairwise(episode.turns):
            known = turn.observation.content
            text = "\n".join(p for p in after.observation.content if isinstance(p, str) and p not in known).strip()
            if text:
                observation = Observation((*known, FOLLOWS.format(turn.decision.action)))
                step = replace(turn.step, executed=1.0, terminated=True)
                question_turn = Turn(observation, self.policy.decide(observation, text, key=episode.sample.id), step)
                yield replace(episode, turns=[question_turn], is_demonstration=True)


echo = Echo


def find_samples(samples: Sequence[Sample], ids: Sequence[str]) -> dict[str, Sample]:
    """The samples of these ids that there are.

    Ids of generated samples end in their position: only those asked for are made. Other samples are looked through
    until all are found.
    """
    samples_by_id: dict[str, Sample] = {}
    for name in ids:
        place = samples.find(name) if isinstance(samples, Mixed) else find_position(name)
        if place is not None and place < len(samples) and (sample := samples[place]).id == name:
            samples_by_id[name] = sample
    sought = set(ids) - samples_by_id.keys()
    if not sought or find_position(samples[len(samples) - 1].id) == len(samples) - 1:
        return samples_by_id
    for sample in samples:
        if sample.id in sought:
            samples_by_id[sample.id] = sample
            sought.remove(sample.id)
            if not sought:
                break
    return samples_by_id


# Rollout response recomposition: short right and long wrong answers first, the others later.

RorecompShare = Annotated[float, Field(gt=0, le=1)]


@method(
    reads=("all_turns",),
    lacks=("group",),
    source="RoRecomp, arXiv 2509.25958; sizes and probability are a reconstruction",
)
class Rorecomp(ReplayMixing):
    """Brevity without a reward for it: which lessons are taught tells right from wrong and short from long at once.

    Of a step's right episodes the shortest `keep` and of its wrong ones the longest `keep`, rounded up, are taught (the
    priority batch); the others are remembered. Once `capacity` are, a step comes with probability `compensate` in which
    the oldest, as many as the step played, are taught as well (the compensation batch), so that long right answers are
    not unlearned. Length counts the units of all turns. What teaches nothing (A = 0) is not remembered.

    The numbers are ours; the paper's share and probability could not be found. There the compensation batch is an
    update of its own; here it joins the step's batch, which `train.num_minibatches` splits. Remembered lessons keep
    their advantage and the log-probabilities of the behaviour policy, each is a group of its own.

    Args:
        keep: share of the right, and of the wrong, episodes that is taught at once.
        compensate: probability, per step with a full memory.
        capacity: lessons to remember; they are in every checkpoint, images and all.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        keep: RorecompShare = 0.5, compensate: RorecompShare = 0.5, capacity: Count = 512,
    ):  # fmt: skip
        self.seed, self.keep, self.compensate = seed, keep, compensate
        self.memory = EpisodeMemory(policy, capacity, "rorecomp")

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        first = set(self._first(lessons))
        others = [lesson for i, lesson in enumerate(lessons) if i not in first and size(lesson.advantages)]
        past = self._compensation(len(lessons), next_group(lessons), step)
        self.memory.add(others, step)
        chosen = [lessons[i] for i in sorted(first)]
        self.metrics = {
            "rorecomp/priority": len(chosen) / len(lessons), "rorecomp/compensation": float(len(past)),
            "rorecomp/memory": float(len(self.memory)),
            "rorecomp/length": sum(map(length, chosen)) / len(chosen),
        }  # fmt: skip
        return [*chosen, *past]

    def _first(self, lessons: Sequence[TrainingEpisode]) -> list[int]:
        """Places of the shortest right and the longest wrong episodes."""
        lengths = [length(lesson) for lesson in lessons]
        right = [lesson.episode.score.is_correct for lesson in lessons]
        good = sorted((i for i, solved in enumerate(right) if solved), key=lambda i: lengths[i])
        bad = sorted((i for i, solved in enumerate(right) if not solved), key=lambda i: -lengths[i])
        return [i for side in (good, bad) for i in side[: math.ceil(self.keep * len(side))]]

    def _compensation(self, count: int, group: int, step: int) -> list[TrainingEpisode]:
        """The oldest lessons, which are then forgotten, where it is their turn."""
        full = len(self.memory) == self.memory.memory.capacity
        if not full or np.random.default_rng([self.seed, step]).random() >= self.compensate:
            return []
        count = min(count, len(self.memory))
        oldest = self.memory.lessons(range(count), group)
        self.memory.drop(count)
        return oldest

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


rorecomp = Rorecomp


def length(lesson: TrainingEpisode) -> int:
    """Units that the policy wrote in all turns."""
    return sum(len(turn.decision.logprobs) for turn in lesson.episode.turns)


# SASR: a step imitates or reinforces, by how much imitation still moves the policy.

BATCH = 16  # demonstrations in one backward pass


@method(
    reads=("all_episodes",),
    gives=("demonstrations",),
    check_recipe=learned_by("sft"),
    source="SASR, arXiv 2505.13026; the formula is our reconstruction from summaries of the paper",
)
class Sasr(ReplayMixing):
    """The first `warmup` steps imitate; later ones do with probability `p = G / (G + gamma W)`, else they reinforce.

    G is the norm of the gradient of the demonstrations' mean negative log-likelihood at the latest step that imitated,
    W that at the last of the warm-up. While demonstrations move the policy as much as they did, p is 1 / (1 + gamma);
    as it comes to follow them, G falls and reinforcement takes over. By the paper that norm also tells how far the
    policy has left its start.

    A step that imitates learns from the gold episodes of its prompts (loss `sft`) in place of what was played; that was
    played all the same, and shows in the log. Norms cost one more backward pass in these steps.

    The paper monitors gradient norms and the divergence from the start; the rule's exact form, and gamma, could not be
    found.

    Args:
        warmup: steps.
        gamma: how readily it reinforces.

    Raises:
        UserError: the policy is no language model; no gold action to a sample is known.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, warmup: Count = 10, gamma: Rate = 1.0):
        check_shows(policy, "sasr")
        self.policy, self.task, self.seed, self.warmup, self.gamma = policy, task, seed, warmup, gamma
        self.start = self.latest = 0.0  # W and G

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        p = 1.0 if step < self.warmup else self.probability()
        imitates = bool(np.random.default_rng([self.seed, step]).random() < p)
        if imitates:
            samples = {lesson.episode.group: lesson.episode.sample for lesson in lessons}
            lessons = make_demonstrations(self.policy, self.task, list(samples.values()), 0)
            decisions = [turn.decision for lesson in lessons for turn in lesson.episode.turns]
            self.latest = gradient_norm(self.policy, decisions)
            self.start = self.latest if step < self.warmup else self.start
        self.metrics = {"sasr/probability": p, "sasr/imitates": float(imitates), "sasr/gradient": self.latest}
        return list(lessons)

    def probability(self) -> float:
        """Of imitating, after the warm-up."""
        whole = self.latest + self.gamma * self.start
        return self.latest / whole if whole else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "latest": self.latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.latest = state["start"], state["latest"]


sasr = Sasr


def gradient_norm(policy: Any, decisions: Sequence[Decision]) -> float:
    """Of the mean negative log-likelihood per token, over all that is trained."""
    import torch

    learned = [p for p in policy.model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in learned]
    tokens = sum(len(decision.logprobs) for decision in decisions)
    for start in range(0, len(decisions), BATCH):
        now = policy.evaluate(decisions[start : start + BATCH])
        loss: Tensor = -now.logprobs[now.mask].sum() / tokens
        for whole, part in zip(total, torch.autograd.grad(loss, learned, allow_unused=True), strict=True):
            if part is not None:
                whole += part
    return float(torch.stack([part.norm() for part in total]).norm())


# Selective sample replay: half of what a step learns from is remembered.

SsrShare = Annotated[float, Field(gt=0, lt=1)]
Power = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(
    reads=("all_turns",),
    lacks=("group",),
    source="SSR: VL-Rethinker, arXiv 2504.08837; github.com/TIGER-AI-Lab/VL-Rethinker",
)
class Ssr(ReplayMixing):
    """As training goes on, more and more groups agree and teach nothing; remembered lessons take their places.

    Of a step's N lessons those with A = 0 are left out. `share` N of the step come from the memory, drawn without
    repetition with probabilities `|A|^alpha / sum |A|^alpha`, |A| being the mean over the lesson's units; the others
    are drawn from the present ones, all alike. Where either side has too few, the other fills up as far as it reaches.
    The present lessons are remembered afterwards. Each remembered lesson is a group of its own and keeps its advantage
    and the log-probabilities of the behaviour policy, so that the loss's ratio stays right; the log's
    `logprob_gap` then says how far the policy has moved since.

    The paper gives the draw and alpha; half and half and a memory of half a batch (there 512 prompts x 8) are the
    released code's, whose latest version never reaches them; `age` is ours, as a ratio over many updates is clipped
    anyway. Its few all-right lessons, which teach nothing here, are left out.

    Args:
        share: of the step that the memory gives.
        alpha: 0 draws all alike.
        capacity: lessons to remember; they are in every checkpoint, images and all.
        age: steps after which a lesson is forgotten.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        share: SsrShare = 0.5, alpha: Power = 1.0, capacity: Count = 2048, age: Count = 8,
    ):  # fmt: skip
        self.seed, self.share, self.alpha, self.age = seed, share, alpha, age
        self.memory = EpisodeMemory(policy, capacity, "ssr")

    def __call__(self, lessons: Sequence[TrainingEpisode], step: int) -> list[TrainingEpisode]:
        self.memory.drop_before(step - self.age)
        rng = np.random.default_rng([self.seed, step])
        taught = [lesson for lesson in lessons if size(lesson.advantages)]
        positions = self._draw_positions(rng, len(lessons), len(taught))
        past = self.memory.lessons(positions, next_group(lessons))
        places = sorted(rng.permutation(len(taught))[: len(lessons) - len(past)].tolist())
        self.metrics = {
            "ssr/effective": len(taught) / len(lessons), "ssr/replayed": len(past) / max(1, len(past) + len(places)),
            "ssr/age": float(np.mean([step - self.memory.steps[i] for i in positions])) if positions else 0.0,
            "ssr/memory": float(len(self.memory)),
        }  # fmt: skip
        self.memory.add(taught, step)
        return [*(taught[i] for i in places), *past] or list(lessons)

    def _draw_positions(self, rng: np.random.Generator, whole: int, taught: int) -> list[int]:
        """Positions in the memory: its share, or what the present ones leave open."""
        count = min(len(self.memory), max(round(self.share * whole), whole - taught))
        if not count:
            return []
        weights = np.asarray(self.memory.sizes()) ** self.alpha
        return sorted(rng.choice(len(weights), count, replace=False, p=weights / weights.sum()).tolist())

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


ssr = Ssr
