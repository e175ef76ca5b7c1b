"""A judge's scores as rewards: how like a reference an answer is, and several votes on how good it is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from vlrl.config import Count
from vlrl.contrib.judges import tournament
from vlrl.contrib.judges.base import (
    CLAIMS,
    Chosen,
    JudgeClient,
    JudgeQuestion,
    OnFailure,
    Verdict,
    answer_of,
    check_judge,
    groups_of,
    judged,
    likelihood,
)
from vlrl.contrib.judges.tournament import Vote, ballots, counted
from vlrl.contrib.process_rewards.progress import paid_by_form
from vlrl.methods import ProcessReward, Recipe, RecipePart, method
from vlrl.types import Episode, Policy, UserError

ALIKE = """\
How alike are the answer and the reference: could the same expert have written both? What counts is what they say and \
conclude, and then how they get there; other words for the same cost nothing, another conclusion costs nearly all."""
GOOD = """\
First say by which principles answers to this very task are to be judged, and how much each of them weighs. Then weigh \
every answer by them, point by point. Only then give the scores; use their whole range."""
Weight = Annotated[float, Field(ge=0)]


@method(
    reads=("all_episodes",),
    check_options=check_judge,
    source="POLAR, pre-trained policy discriminators: arXiv 2507.05197; github.com/InternLM/POLAR",
)
class Polar(ProcessReward):
    """An answer earns a judge's score in [0, 1] of how like a reference it is: the task's gold answer.

    Published: the reward is what tells a target policy, shown by its reference answer, from others; by a model that was
    trained to discriminate between policies, whose outputs are unbounded. The judge `discriminator` is one that
    `vlrl pretrain` trains so. Ours: any other judge in its place, asked for the likeness in words (which POLAR's own
    models are not: their servers give no chat completions); criteria's words. Used with a group's baseline the scale
    does not matter.

    Args:
        judge: who compares: `vlrl.contrib.judges.base`.
        criteria: what makes answers alike, in words.
        keep: how much of the task's own reward remains beside it.
        amount: what an answer like the reference earns.
        on_failure: an answer without a score has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run.

    Raises:
        UserError: the task has no gold answers.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, criteria: str = ALIKE, keep: Weight = 0.0, amount: Weight = 1.0,
        on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        self._asked = JudgeClient(judge, seed, "process_rewards: polar: judge", stop=on_failure == "stop")
        self._task, self._criteria, self._zero = task, criteria, on_failure == "zero"
        self.keep, self.amount = keep, amount

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        questions = [self._question(episode) for episode in episodes]
        verdicts = self._asked.ask(questions)
        values = filled([v.scores[0] if v.scores else None for v in verdicts], groups_of(episodes), self._zero)
        self.metrics = {**self._asked.metrics, "polar/likeness": sum(values) / len(values)}
        return [judged(e, value, self.keep, self.amount) for e, value in zip(episodes, values, strict=True)]

    def _question(self, episode: Episode) -> JudgeQuestion:
        gold = self._task.gold(episode.sample, episode.turns[0].decision.frames)
        return JudgeQuestion(episode.turns[0].observation.content, (answer_of(episode),), self._criteria, gold)


polar = Polar


@method(
    reads=("all_episodes",),
    check_options=check_judge,
    source="DeepSeek-GRM (SPCT), arXiv 2504.02495: votes; Think-RM, 2505.16265: a judge that thinks first",
)
class Grm(ProcessReward):
    """An answer earns the vote of k critiques, each with a score in [0, 1] for every answer of its group.

    Published: the answers of a prompt are scored together, by principles that the judge first finds for it; k critiques
    are sampled, each with the answers in another order; scores are added (here their mean), over all critiques or the
    best by a meta reward model. Ours: in place of that model, `kept` critiques whose scores lie nearest to the votes'
    median; `majority`, the score that most votes gave; no reference is shown. The judge is not trained, as SPCT does.
    A judge that thinks, as Think-RM, is read behind its `</think>`. Give the judge a temperature above 0, or all votes
    but for their order are one.

    Args:
        judge: who votes: `vlrl.contrib.judges.base`.
        votes: k.
        vote: `mean`, or `majority` (of scores in tenths; of several as frequent ones their mean).
        kept: votes that count, the nearest to their median; default: all.
        together: false: every answer is scored by itself.
        criteria: how to judge, in words.
        keep: how much of the task's own reward remains beside it.
        amount: what an answer with a vote of 1 earns.
        on_failure: an answer without a vote has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run;
            with `stop` a single vote that fails does.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, votes: Count = 8, vote: Vote = "mean", kept: Count | None = None, together: bool = True,
        criteria: str = GOOD, keep: Weight = 0.0, amount: Weight = 1.0, on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        if kept is not None and kept > votes:
            raise UserError(f"process_rewards: grm: kept {kept} of {votes} votes: at most as many")
        self._asked = JudgeClient(judge, seed, "process_rewards: grm: judge", stop=on_failure == "stop")
        self._votes, self._vote, self._kept, self._together = votes, vote, kept, together
        self._criteria, self._zero, self._seed = criteria, on_failure == "zero", seed
        self.keep, self.amount = keep, amount

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        texts, groups = [answer_of(episode) for episode in episodes], groups_of(episodes)
        asked = []  # (group, question)
        for number, members in enumerate(groups):
            distinct = sorted({texts[i] for i in members})
            content = episodes[members[0]].turns[0].observation.content
            for vote, answers in ballots(distinct, self._votes, self._together, self._seed):
                asked.append((number, JudgeQuestion(content, answers, self._criteria, vote=vote)))
        verdicts = self._asked.ask([question for _, question in asked])
        cast: list[dict[str, dict[int, float]]] = [{} for _ in groups]  # answer -> vote -> score
        for (number, question), verdict in zip(asked, verdicts, strict=True):
            for answer, score in zip(question.answers, verdict.scores, strict=False):  # a failure has no scores
                cast[number].setdefault(answer, {})[question.vote] = score
        values: list[float | None] = [None] * len(episodes)
        for members, votes in zip(groups, cast, strict=True):
            of_text = counted(votes, self._vote, self._kept)
            for i in members:
                values[i] = of_text.get(texts[i])
        whole = filled(values, groups, self._zero)
        self.metrics = {**self._asked.metrics, "grm/score": sum(whole) / len(whole)}
        return [judged(e, value, self.keep, self.amount) for e, value in zip(episodes, whole, strict=True)]


grm = Grm


def filled(values: Sequence[float | None], groups: Sequence[Sequence[int]], zero: bool) -> list[float]:
    """Each value; where there is none 0, or the mean of its group's, 1/2 where the group has none."""
    whole = list(values)
    for members in groups:
        known = [values[i] for i in members if values[i] is not None]
        fill = 0.0 if zero else sum(known) / len(known) if known else 0.5
        for i in members:
            whole[i] = fill if values[i] is None else values[i]
    return whole


# ArenaRL: the answers of a group play a tournament, and earn by their rank (arXiv 2601.06487).

CRITERIA = "The better answer does what the task asks for, is right in what it says, and leaves nothing of it out."
Topology = Literal["single_elimination", "round_robin", "swiss"]
TOPOLOGIES: Mapping[Topology, Callable[[Sequence[float], int], tournament.Tournament]] = {
    "single_elimination": tournament.single_elimination, "round_robin": tournament.round_robin,
    "swiss": tournament.swiss,
}  # fmt: skip


def check_opponents(recipe: Recipe, part: RecipePart) -> str | None:
    """Episodes that are groups of their own have nobody to play against."""
    strategy = recipe.one("rollout_strategy")
    if "group" in strategy.method.lacks:
        return f"{part.label} needs groups, which rollout_strategy: {strategy.name} does not give: use polar"
    return None


@method(
    reads=("all_episodes",),
    check_recipe=check_opponents,
    check_options=check_judge,
    needs=("group",),
    source="ArenaRL, arXiv 2601.06487; github.com/Alibaba-NLP/qqr, reward_models/arena",
)
class Arena(ProcessReward):
    """An answer earns `1 - rank / (G - 1)` in a tournament of its group's G answers, judged two at a time.

    `single_elimination` is seeded by a comparison of each answer with an anchor, and takes 2 G - 2 comparisons;
    `round_robin` takes G (G - 1) / 2, `swiss` about G log2(G) / 2 (`vlrl.contrib.judges.tournament`). A comparison
    is two
    questions, in both orders, whose scores are added, so that a liking for the first is no advantage. One without an
    answer is a draw. Answers that were not told apart share the mean of their ranks, and equal texts are not compared:
    a group that the judge tells nothing about earns 1/2 each, which is no advantage. The advantage is the recipe's:
    rewards standardised over the group.

    Published: topologies, seeding, both orders, rank to reward; the judge sees all turns. Ours: the anchor is the
    likeliest of the group's answers (there one that was decoded greedily; in the released code the first); where G is
    no power of 2 the best seeds have no opponent in the first round (released: others); draws are decided by what was
    scored before, then by a coin, not by the place in the batch; the criteria's words.

    Args:
        judge: who compares: `vlrl.contrib.judges.base`.
        criteria: what makes an answer good, in words.
        keep: how much of the task's own reward remains beside it.
        amount: what the first earns.
        on_failure: `neutral`, as above, or `stop` the run.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, topology: Topology = "single_elimination", criteria: str = CRITERIA, keep: Weight = 0.0,
        amount: Weight = 1.0, on_failure: Literal["neutral", "stop"] = "neutral",
    ):  # fmt: skip
        self._asked = JudgeClient(judge, seed, "process_rewards: arena: judge", stop=on_failure == "stop")
        self._tournament, self._criteria, self._seed = TOPOLOGIES[topology], criteria, seed
        self.keep, self.amount = keep, amount

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        texts, groups = [answer_of(episode) for episode in episodes], groups_of(episodes)
        players = [list(dict.fromkeys(texts[i] for i in members)) for members in groups]
        playing = [number for number, answers in enumerate(players) if len(answers) > 1]
        begun = [self._start_tournament(players[n], [episodes[i] for i in groups[n]], [texts[i] for i in groups[n]])
                 for n in playing]  # fmt: skip
        content = [episodes[groups[n][0]].turns[0].observation.content for n in playing]

        def compared(pairs: list[tuple[int, tournament.Pair]]) -> list[tournament.Scores]:
            """The sums of both orders' scores."""
            asked = [
                JudgeQuestion(content[n], (players[playing[n]][a], players[playing[n]][b]), self._criteria)
                for n, (one, other) in pairs for a, b in ((one, other), (other, one))
            ]  # fmt: skip
            found = [_scores(verdict) for verdict in self._asked.ask(asked)]
            both = zip(found[::2], found[1::2], strict=True)
            return [(there[0] + back[1], there[1] + back[0]) for there, back in both]

        places = dict(zip(playing, tournament.play(begun, compared), strict=True))
        values, answered = [0.5] * len(episodes), 0
        for number, found in places.items():
            of_text = dict(zip(players[number], found, strict=True))
            answered += len(set(found)) > 1
            earned = tournament.rank_scores([of_text[texts[i]] for i in groups[number]])
            for i, value in zip(groups[number], earned, strict=True):
                values[i] = value
        self.metrics = {**self._asked.metrics, "arena/told_apart": answered / len(groups)}
        return [judged(e, value, self.keep, self.amount) for e, value in zip(episodes, values, strict=True)]

    def _start_tournament(self, answers: list[str], episodes: list[Episode], texts: list[str]) -> tournament.Tournament:
        coins = [random.Random(f"{self._seed}/{answer}").random() for answer in answers]
        likely = dict(zip(texts, map(likelihood, episodes), strict=True))
        anchor = max(range(len(answers)), key=lambda i: (likely[answers[i]], coins[i]))
        return self._tournament(coins, anchor)


arena = Arena


def _scores(verdict: Verdict) -> tuple[float, float]:
    return (0.5, 0.5) if verdict.fault else verdict.scores


# Reward functions that were written for TRL's trainers, as they are.

Names = Annotated[list[str], Field(min_length=1)]


@method(
    reads=("all_episodes",),
    source="TRL 1.16, GRPOTrainer: reward_funcs, reward_weights; huggingface.co/docs/trl/grpo_trainer",
)
class Trl(ProcessReward):
    """An episode earns what reward functions written for TRL, verl or EasyR1 say: the weighted sum of what applies.

    Called as in TRL: `function(prompts=, completions=, completion_ids=, **columns)`, all of a step at once, which gives
    one number for each completion, or None (NaN) where it does not apply. Columns: `answer` (the sample's truth),
    `gold` (the best completion), `id`, `images`, the sample's tags; `trainer_state.global_step`, and `log_metric(name,
    value)`, whose values go to the log. Functions may be `async`. Each is among the score's parts, as `trl_function`.
    verl's `compute_score` and EasyR1's functions are called as there, with the columns as `extra_info` or further keys;
    rubric functions of verifiers with a `task` that has the columns as attributes, and a `trace` of the last turn.

    Ours: an episode to which no function applies keeps `keep` times the task's reward, where TRL leaves it out of the
    baseline; columns are those above, where TRL has its data set's. With `seconds` the functions run in a process of
    their own. A call that takes longer, or in which the process dies, is lost: its function applies to no episode of
    the step, the log counts it as `trl_lost`, and the next call has a new process. A function that raises stops the
    run, as it does without.

    Args:
        rewards: functions, as my_module:function from anywhere on the Python path.
        api: whose trainer calls them so; verl's and EasyR1's `ground_truth` is the column `answer`, unless
            `columns` says another.
        weights: of each; default: 1.
        columns: names that the functions expect -> names above, as `{solution: answer}`.
        conversational: completions are lists of messages; false: texts, and prompts as well.
        keep: how much of the task's own reward remains beside it.
        seconds: that a call may take, in a process of its own; default: no limit, in this process.

    Raises:
        UserError: no such function, or one that takes no `**columns`; when called, one that does not return a number
            or None for each completion.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        rewards: Names, api: Literal["trl", "verl", "easyr1", "verifiers"] = "trl", weights: list[float] | None = None,
        columns: dict[str, str] | None = None, conversational: bool = True, keep: float = 0.0,
        seconds: Annotated[float, Field(gt=0)] | None = None,
    ):  # fmt: skip
        from vlrl.tools.trl_verl import LocalRewards, WorkerRewards

        if weights is not None and len(weights) != len(rewards):
            raise UserError(f"process_rewards: trl: {len(weights)} weights for {len(rewards)} rewards: one for each")
        self._names = [name.rpartition(":")[2] for name in rewards]
        if len(set(self._names)) < len(rewards):
            raise UserError(f"process_rewards: trl: rewards: {', '.join(rewards)}: each needs a name of its own")
        self._rewards = WorkerRewards(rewards, api, seconds) if seconds else LocalRewards(rewards, api)
        if api != "trl":
            columns, conversational = {"ground_truth": "answer", **(columns or {})}, False
        self._weights = weights or [1.0] * len(rewards)
        self._policy, self._task, self._columns = policy, task, columns or {}
        self._conversational, self.keep = conversational, keep
        self.metrics: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        values, logged = self._rewards.compute(self._make_columns(episodes), step)
        self.metrics = {f"trl_{name}": value for name, value in logged.items()}
        for name, column in zip(self._names, values, strict=True):
            known = [value for value in column if value is not None]
            self.metrics |= {f"trl_{name}": sum(known) / len(known)} if known else {}
        return [
            self._add_rewards(episode, row) for episode, row in zip(episodes, zip(*values, strict=True), strict=True)
        ]

    def _add_rewards(self, episode: Episode, row: Sequence[float | None]) -> Episode:
        pairs = zip(self._weights, row, strict=True)
        total = sum(weight * value for weight, value in pairs if value is not None)
        parts = {f"trl_{name}": value for name, value in zip(self._names, row, strict=True) if value is not None}
        score = episode.score and replace(episode.score, parts={**episode.score.parts, **parts})
        return replace(episode, reward=self.keep * episode.reward + total, score=score)

    def _make_columns(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        """The arguments of every function, but for those of the trainer."""
        from vlrl.tools.trl_verl import columns_of, completion_of, prompt_of

        prompts = [prompt_of(episode.turns[0].observation) for episode in episodes]
        completions: list[Any] = [completion_of(episode.turns) for episode in episodes]
        if not self._conversational:
            prompts = [episode.turns[0].observation.text for episode in episodes]
            completions = [episode.completion for episode in episodes]
        return columns_of(episodes, self._gold, self._columns) | {
            "prompts": prompts, "completions": completions,
            "completion_ids": [self._policy.ids(episode.turns[-1].decision) or [] for episode in episodes],
        }  # fmt: skip

    def _gold(self, episode: Episode) -> str:
        return self._task.gold(episode.sample, episode.turns[0].decision.frames)


trl = Trl


# What rewards read of a text's parts: the answer, the thoughts, the sentences; and how a value becomes a reward.

Form = Literal["outcome", "reward"]
_SENTENCE = re.compile(r"[.!?;\n]+(?:\s|$)")  # a match starts at a fixed character: linear


def answered(episode: Episode) -> str | None:
    """The text inside the last action's answer tags; None where the task could not read it, or nothing is inside."""
    if episode.score and episode.score.reason:
        return None
    return _inside(episode.completion, "answer") or None


def truths(task: Any, episode: Episode) -> tuple[str, ...]:
    """The texts that are right: the task's `truths`, else what its gold completion answers."""
    if known := task.truths(episode.sample):
        return tuple(known)
    gold = task.gold(episode.sample, episode.turns[0].decision.frames)
    return (_inside(gold, "answer") or gold,)


def thought(episode: Episode) -> str:
    """What stands in the think tags of its completion (of several turns: of all of them); '' for none."""
    return "\n".join(filter(None, (_inside(str(turn.decision.action), "think") for turn in episode.turns)))


def sentences(text: str, most: int) -> list[str]:
    """Its sentences, at most so many: the rest of a longer text is the last one."""
    pieces = [part.strip() for part in _SENTENCE.split(text, maxsplit=most - 1)]
    return [part for part in pieces if part]


def _inside(text: str, tag: str) -> str:
    """What stands between the only tags of a name; '' where they are not there once each."""
    if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
        return ""
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


def scored(asked: JudgeClient, questions: Sequence[JudgeQuestion | float]) -> list[float | None]:
    """The score of each question's first answer, None where there was none; a number stays: it need not be asked."""
    verdicts = iter(asked.ask([each for each in questions if isinstance(each, JudgeQuestion)]))
    scores = [next(verdicts).scores[:1] if isinstance(each, JudgeQuestion) else (each,) for each in questions]
    return [each[0] if each else None for each in scores]


def paid(
    episodes: Sequence[Episode], part: str, values: Sequence[float], *, keep: float, amount: float, form: Form
) -> list[Episode]:
    """The episodes with `part`: value among their scores' parts, and paid for it.

    `outcome`: the reward is `keep` reward + `amount` value. `reward`: the last step earned `amount` value, for
    estimators that sum what steps earned.
    """
    return [_paid(e, part, v, keep, amount, form) for e, v in zip(episodes, values, strict=True)]


def _paid(episode: Episode, part: str, value: float, keep: float, amount: float, form: Form) -> Episode:
    answer_of(episode)  # UserError where actions are numbers
    score = episode.score and replace(episode.score, parts={**episode.score.parts, part: value})
    kept, gain = keep * episode.reward, amount * value
    if form == "outcome":
        return replace(episode, reward=kept + gain, score=score)
    last = replace(episode.turns[-1], process_reward=episode.turns[-1].process_reward + gain)
    return replace(episode, turns=[*episode.turns[:-1], last], reward=kept, score=score)


# Fine-grained feedback on what an answer makes up, sentence by sentence (FGAIF).

ASKS = """\
The answer is one sentence about the picture. Judge one kind of claim alone: whether what it speaks of {kind}. \
Give 10 where all such claims are true or it makes none, 0 where one is plainly false, between them where you \
cannot tell."""


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    check_options=check_judge,
    source="FGAIF, arXiv 2404.05046 (abstract and method's outline); the form is a reconstruction",
)
class FineGrained(ProcessReward):
    """An answer earns the mean, over its sentences, of a judge's three scores: existence, attributes and relations.

    Each sentence is asked about three times, once for each kind of made-up claim; parts `existence`, `attribute` and
    `relation`. What the task cannot read earns 0. A sentence without claims makes nothing up and earns all: keep a
    reward for what has to be said (`keep` and the task's own), or an answer that says nothing is the best one.

    Published: segments of a response are labelled by language and vision models, three reward models are trained
    on the labels, and PPO is paid at each segment's end, the three weighted. The judge `claims` is a model that was
    trained so, told the kind, on drawn scenes whose labels are known. Ours: any other judge, asked directly; the mean
    over the sentences, so that their number is not paid, as the outcome of a whole answer; sentences in place of
    segments; the criteria's words.

    Args:
        judge: who judges: `vlrl.contrib.judges.base`.
        existence, attribute, relation: what each kind counts in the mean; 0: it is not asked.
        most: sentences of an answer; what follows belongs to the last one.
        keep: how much of the task's own reward remains beside it.
        amount: what an answer earns in which nothing is made up.
        form: `outcome` or `reward`, see `vlrl.contrib.process_rewards.judged.paid`.
        on_failure: an answer without any score of a kind has its group's mean of it (`neutral`), 0 (`zero`), or
            `stop`s the run.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, existence: Weight = 1.0, attribute: Weight = 1.0, relation: Weight = 1.0, most: Count = 16,
        keep: Weight = 1.0, amount: Weight = 1.0, form: Form = "outcome", on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        self._asked = JudgeClient(judge, seed, "process_rewards: fine_grained: judge", stop=on_failure == "stop")
        given = {"existence": existence, "attribute": attribute, "relation": relation}
        self._weights = {kind: weight for kind, weight in given.items() if weight}
        self._most, self._zero = most, on_failure == "zero"
        self.keep, self.amount, self.form = keep, amount, form

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        groups, total = groups_of(episodes), [0.0] * len(episodes)
        self.metrics = {}
        for kind, values in self._scores(episodes).items():
            whole = filled(values, groups, self._zero)
            self.metrics[f"fine_grained/{kind}"] = fmean(whole)
            episodes = paid(episodes, kind, whole, keep=1.0, amount=0.0, form="outcome")
            share = self._weights[kind] / sum(self._weights.values())
            total = [sum_ + share * value for sum_, value in zip(total, whole, strict=True)]
        self.metrics |= self._asked.metrics
        return paid(episodes, "fine_grained", total, keep=self.keep, amount=self.amount, form=self.form)

    def _scores(self, episodes: Sequence[Episode]) -> dict[str, list[float | None]]:
        """Of each kind, the mean over each answer's sentences that have a score; 0 for what could not be read."""
        said = [sentences(answered(episode) or "", self._most) for episode in episodes]
        places = [(kind, i, text) for kind in self._weights for i, texts in enumerate(said) for text in texts]
        questions = [
            JudgeQuestion(episodes[i].turns[0].observation.content, (text,), ASKS.format(kind=CLAIMS[kind]))
            for kind, i, text in places
        ]
        found: dict[tuple[str, int], list[float]] = {}
        for (kind, i, _), score in zip(places, scored(self._asked, questions), strict=True):
            found.setdefault((kind, i), []).extend([] if score is None else [score])
        return {
            kind: [0.0 if not texts else _mean(found[kind, i]) for i, texts in enumerate(said)]
            for kind in self._weights
        }


fine_grained = FineGrained


def _mean(scores: Sequence[float]) -> float | None:
    return fmean(scores) if scores else None


# A judge sees the answer alone, beside the truth (MediX-R1).

SAME = """\
Does the answer say what the reference says? Other words, spelling and order for the same content cost nothing. \
Give 10 where the content is the same, and 0 where it is not, where something is missing or wrong, or where you \
cannot tell."""


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    check_options=check_judge,
    source="MediX-R1, arXiv 2602.23363; github.com/mbzuai-oryx/MediX-R1, examples/reward_function/medical.py",
)
class JudgedAnswer(ProcessReward):
    """An answer earns 1 where a judge scores it, beside the right text, at `least` or above, else 0.

    The judge sees the answer alone, neither the thoughts nor the rest. What the task cannot read earns 0 and what
    equals a right text 1, without asking. The part `judged` of the score.

    Published: YES or NO by a small language model that sees prediction and truth, without the picture; any reply with
    YES in it counts there, also one that the answer put there. Ours: scores by a strict schema, the answer between
    marks that it cannot know (`vlrl.contrib.judges.base`), the picture and the question beside it; the criteria's
    words.

    Args:
        judge: who judges: `vlrl.contrib.judges.base`.
        least: score from which on an answer is right; null: the score itself is earned.
        criteria: what is right, in words.
        keep: how much of the task's own reward remains beside it.
        amount: what a right answer earns.
        form: `outcome` or `reward`, see `vlrl.contrib.process_rewards.judged.paid`.
        on_failure: an answer without a score has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, least: Annotated[float, Field(gt=0, le=1)] | None = 0.5, criteria: str = SAME,
        keep: Weight = 1.0, amount: Weight = 1.0, form: Form = "outcome", on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        self._asked = JudgeClient(judge, seed, "process_rewards: judged_answer: judge", stop=on_failure == "stop")
        self._task, self._criteria, self._zero, self.least = task, criteria, on_failure == "zero", least
        self.keep, self.amount, self.form = keep, amount, form

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        scores = scored(self._asked, [self._question(episode) for episode in episodes])
        values = [s if s is None or self.least is None else float(s >= self.least) for s in scores]
        whole = filled(values, groups_of(episodes), self._zero)
        self.metrics = {**self._asked.metrics, "judged_answer/right": sum(whole) / len(whole)}
        return paid(episodes, "judged", whole, keep=self.keep, amount=self.amount, form=self.form)

    def _question(self, episode: Episode) -> JudgeQuestion | float:
        """What is asked, or the value of what need not be."""
        answer, rights = answered(episode), truths(self._task, episode)
        if answer is None:
            return 0.0
        if answer.casefold() in (right.casefold() for right in rights):
            return 1.0
        content = episode.turns[0].observation.content
        return JudgeQuestion(content, (answer,), self._criteria, "\nor: ".join(rights))


judged_answer = JudgedAnswer


# A reward model for what no rule can grade, rules for the rest (VLAA-Thinker).


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    check_options=check_judge,
    source="mixed reward of VLAA-Thinker, arXiv 2504.11468; its formulas and code were not released",
)
class OpenEnded(ProcessReward):
    """Samples of some kinds earn a judge's score of their answer; all others keep what their rules pay.

    Published: answers are rewarded by the question's type; digits, choices, formulas and boxes by rules, open-ended
    ones by a reward model; and all for their form. Ours: any judge as the reward model, asked by a strict schema
    whether the answer says what the truth says; its score in [0, 1] as it is, or with `least` as right or wrong. The
    part `judged` of these samples' score; `open_ended/share` in the log is their share of the episodes.

    Args:
        judge: who scores: `vlrl.contrib.judges.base`.
        tag: of samples, by which they are chosen: `kind` of visual_reasoning, `task` of a mixture.
        values: the tag's values whose samples are judged.
        instead: the part of the task's reward in whose place the score stands, with that part's weight taken away.
        least: score from which on an answer is right; null: the score itself is earned.
        criteria: what is right, in words.
        amount: what a score of 1 earns.
        form: `outcome` or `reward`, see `vlrl.contrib.process_rewards.judged.paid`.
        on_failure: an answer without a score has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run.

    Raises:
        UserError: the task's reward has no part `instead`.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, tag: str = "kind", values: Annotated[tuple[str, ...], Field(min_length=1)] = ("text",),
        instead: str | None = None, least: Annotated[float, Field(gt=0, le=1)] | None = None, criteria: str = SAME,
        amount: Weight = 1.0, form: Form = "outcome", on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        if instead is not None and instead not in task.weights:
            raise UserError(
                f"process_rewards: open_ended: instead: the task's reward has no part {instead!r} "
                f"(one of: {', '.join(task.weights) or 'none: set the weights of its parts'})"
            )
        self.tag, self.values = tag, values
        self.part, self.weight = instead, task.weights[instead] if instead else 0.0
        self._judged = JudgedAnswer(
            policy, task, seed, judge=judge, least=least, criteria=criteria, amount=amount, form=form,
            on_failure=on_failure,
        )  # fmt: skip

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        chosen = [i for i, episode in enumerate(episodes) if episode.sample.tags.get(self.tag) in self.values]
        whole = list(episodes)
        self.metrics = {"open_ended/share": len(chosen) / len(episodes)}
        if chosen:
            judged = self._judged([self._without_rule(episodes[i]) for i in chosen], step)
            for i, episode in zip(chosen, judged, strict=True):
                whole[i] = episode
            self.metrics |= self._judged.metrics
        return whole

    def _without_rule(self, episode: Episode) -> Episode:
        paid = self.weight * episode.score.part(self.part) if self.part else 0.0
        return replace(episode, reward=episode.reward - paid)


open_ended = OpenEnded


# A judge sees the thoughts alone, whatever they led to (SophiaVL-R1).

SOUND = """\
How well is this thought, whatever it leads to? Weigh whether each step follows from the task, the picture and the \
steps before it; whether what it says it sees is there; whether mistakes are noticed and mended; whether it keeps \
to one language and one line; and whether it does without repetition and filling. A result that is right by luck \
is no merit."""


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    check_options=check_judge,
    source="SophiaVL-R1, arXiv 2505.17018; github.com/kxfan2002/SophiaVL-R1: the thinking reward model",
)
class Thoughts(ProcessReward):
    """Thoughts earn a judge's score in [0, 1] of how sound they are; none earn 0. The part `thinking` of the score.

    With `amount: 0` nothing is paid here, and the shaping `trust` pays for the part as far as it agrees with the
    answers, and less with every step: SophiaVL-R1.

    Published: a 3B model, trained for it on graded thoughts, in [0, 1]; its code reads `0.75` as 0.0 and `1/10` as 1.0.
    Ours: any judge, asked in words and read by a strict schema; the criteria's words.

    Args:
        judge: who judges: `vlrl.contrib.judges.base`.
        criteria: what makes thoughts good, in words.
        keep: how much of the task's own reward remains beside it.
        amount: what the best thoughts earn.
        form: `outcome` or `reward`, see `vlrl.contrib.process_rewards.judged.paid`.
        on_failure: thoughts without a score have the mean of their group's (`neutral`), 0 (`zero`), or `stop` the run.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, criteria: str = SOUND, keep: Weight = 1.0, amount: Weight = 0.0, form: Form = "outcome",
        on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        self._asked = JudgeClient(judge, seed, "process_rewards: thoughts: judge", stop=on_failure == "stop")
        self._criteria, self._zero = criteria, on_failure == "zero"
        self.keep, self.amount, self.form = keep, amount, form

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._asked.begin()
        values = scored(self._asked, [self._question(episode) for episode in episodes])
        whole = filled(values, groups_of(episodes), self._zero)
        self.metrics = {**self._asked.metrics, "thoughts/sound": sum(whole) / len(whole)}
        return paid(episodes, "thinking", whole, keep=self.keep, amount=self.amount, form=self.form)

    def _question(self, episode: Episode) -> JudgeQuestion | float:
        answer_of(episode)  # UserError where actions are numbers
        reasoning = thought(episode)
        return JudgeQuestion(episode.turns[0].observation.content, (reasoning,), self._criteria) if reasoning else 0.0


thoughts = Thoughts
