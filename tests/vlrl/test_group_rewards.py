"""Rewards of whole groups: by tournament, by likeness, by votes of a judge; and rewards in stages."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl.algorithms.reward_shaping import Prs, RewardStage, auto_think, exploration, robust
from vlrl.batch import columns
from vlrl.cli import main
from vlrl.contrib.judges.tournament import ballots, counted
from vlrl.contrib.process_rewards.judged import Arena, Grm, Polar, filled
from vlrl.recipe_checks import load_config
from vlrl.types import Decision, Episode, Observation, Rollouts, Sample, Score, Step, Turn, UserError

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "configs" / "recipes"
_spec = importlib.util.spec_from_file_location(
    "judge_server", Path(__file__).with_name("contrib") / "judges" / "conftest.py"
)
serving = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(serving)
server = serving.server


class Gold:
    """A task with gold answers."""

    def gold(self, sample, frames):
        return sample.answer


def episode(text, *, group: int = 0, reward: float = 0.25, gold: str = "abcd", likely: float = -1.0) -> Episode:
    shown = Observation((f"question {group}",))
    texts = text if isinstance(text, list) else [text]
    turns = [
        Turn(replace(shown, role="ab"[i % 2] if len(texts) > 1 else ""),
             Decision(each, torch.full((4,), likely), torch.zeros(4), False), Step(shown, terminated=each is texts[-1]))
        for i, each in enumerate(texts)
    ]  # fmt: skip
    sample = Sample(f"s/{group}", shown, gold)
    return Episode(sample, group, turns, Score({"hit": reward}, reward), reward)


def rewards(episodes: list[Episode]) -> list[float]:
    return [each.reward for each in episodes]


WORDS = {"name": "scripted", "words": ["a", "b", "c", "d"]}


# -- several judges, thoughts, tries ----------------------------------------------------------------------------------


def written(texts: list[str], right: list[int], lengths: list[int], **parts: list[float]) -> Rollouts:
    """One group of completions of these lengths."""
    mask, rows = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], torch.arange(len(texts))
    values = {name: torch.tensor(value, dtype=torch.float64) for name, value in parts.items()}
    correct = torch.tensor(right, dtype=torch.float64)
    return Rollouts(
        tuple(map(str, rows.tolist())), correct, torch.zeros_like(rows), rows, mask, 0.0 * mask, 0.0 * mask,
        parts=values, correct=correct, texts=tuple(texts),
    )  # fmt: skip


def test_robust_equals_the_worked_example(golden, near):
    """The judge that is fooled would be heard as much as the one that is not."""
    inputs, outputs = golden("robust_reward")
    judges = dict(zip("ab", inputs["judges"], strict=True))
    rollouts = written(["x"] * 4, [0] * 4, [1] * 4, **judges)
    mean = sum(rollouts.parts.values()) / 2
    paid = replace(rollouts, reward=torch.tensor(inputs["form"], dtype=torch.float64) + inputs["amount"] * mean)
    for share, wanted in zip(inputs["shares"], outputs["rewards"], strict=True):
        near(robust(paid, judges=("a", "b"), share=share, amount=inputs["amount"]), wanted)


def test_auto_think_equals_the_worked_example(golden, near):
    """Thoughts would be paid, or one of both ways die out."""
    inputs, outputs = golden("auto_think_reward")
    texts = [f"<think>{'well' if thinks else '...'}</think><answer>1</answer>" for thinks in inputs["think"]]
    rollouts = written(texts, inputs["right"], inputs["lengths"])
    near(auto_think(rollouts), outputs["stage1"])
    near(auto_think(rollouts, balance=1.0), outputs["stage2"])
    near(auto_think(rollouts, balance=1.0, right_length=0.05, wrong_length=0.05), outputs["stage3"])


def test_exploration_pays_for_tokens_up_to_a_bound():
    """Filling would be paid without end."""
    paid = exploration(written(["x"] * 3, [1, 0, 0], [2, 4, 8]), most=4, share=0.2)
    assert paid.tolist() == pytest.approx([0.8 + 0.1, 0.2, 0.2])


# -- ArenaRL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["single_elimination", "round_robin", "swiss"])
def test_ranks_are_paid_within_each_group(topology):
    """Answers would play against those to other questions, or the worst be paid most."""
    texts = ["xx", "ax", "abc", "abcd", "x", "ab"]
    played = [episode(text, group=g) for text, g in zip([*texts[:4], *texts[4:]], [0, 0, 0, 0, 1, 1], strict=True)]
    arena = Arena(None, Gold(), 3, judge=WORDS, topology=topology)
    paid = arena(played, 0)
    assert rewards(paid) == pytest.approx([0, 1 / 3, 2 / 3, 1, 0, 1])
    assert [each.score.parts for each in paid][3] == {"hit": 0.25, "judged": 1.0}
    assert rewards(played) == [0.25] * 6  # what came in is as it was
    assert arena.metrics["arena/told_apart"] == 1 and arena.metrics["judge/failed"] == 0
    count = {"single_elimination": 2 * (6 + 2), "round_robin": 2 * (6 + 1), "swiss": 2 * (4 + 1)}[topology]
    assert arena.metrics["judge/asked"] == count


def test_the_tasks_reward_may_remain():
    """A reward for the form, or a verifier's, could not be kept beside the judge's."""
    paid = Arena(None, Gold(), 3, judge=WORDS, keep=2.0, amount=0.5)([episode("a"), episode("abcd")], 0)
    assert rewards(paid) == pytest.approx([0.5, 1.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("abx", max_size=3), min_size=2, max_size=7), st.randoms(use_true_random=False),
       st.sampled_from(["single_elimination", "round_robin", "swiss"]))  # fmt: skip
def test_equal_answers_earn_the_same_wherever_they_stand(texts, drawn, topology):
    """Two equal answers would have advantages of their own, and their places in the batch be learned from."""
    likely = {text: -float(i) - 1 for i, text in enumerate(sorted(set(texts)))}
    order = drawn.sample(range(len(texts)), len(texts))
    here, there = (
        rewards(Arena(None, Gold(), 3, judge=WORDS, topology=topology)([episode(t, likely=likely[t]) for t in each], 0))
        for each in (texts, [texts[i] for i in order])
    )
    assert there == pytest.approx([here[i] for i in order])
    assert sum(here) == pytest.approx(len(texts) / 2) and min(here) >= 0 and max(here) <= 1
    assert len({(text, round(value, 9)) for text, value in zip(texts, here, strict=True)}) == len(set(texts))


def test_a_judge_that_prefers_what_stands_first_tells_nothing(server):
    """The answer that happens to be shown first would win every tournament."""
    server.answer = lambda request, number: serving.said([9, 2])
    arena = Arena(None, Gold(), 0, judge={"name": "endpoint", "url": server.url, "model": "m"})
    assert rewards(arena([episode(text) for text in "pqrst"], 0)) == [0.5] * 5
    assert arena.metrics["arena/told_apart"] == 0
    assert 0 < len(server.requests) <= arena.metrics["judge/asked"]  # what is met again is known


@pytest.mark.parametrize("topology", ["single_elimination", "round_robin", "swiss"])
def test_a_judge_that_is_away_is_neutral_or_stops_the_run(topology):
    """A broken judge would be a reward; or a run that needs one would go on without."""
    away, four = {**WORDS, "failing": 1.0}, [episode(text) for text in ("a", "ab", "x", "abc")]
    arena = Arena(None, Gold(), 0, judge=away, topology=topology)
    assert rewards(arena(four, 0)) == [0.5] * 4 and arena.metrics["judge/failed"] == 1
    with pytest.raises(UserError, match=r"process_rewards: arena: judge: .* found no answer"):
        Arena(None, Gold(), 0, judge=away, topology=topology, on_failure="stop")(four, 0)


def test_the_judge_sees_all_turns_of_an_episode(server):
    """A process that led nowhere would be judged by its last word."""
    server.answer = lambda request, number: serving.said([5, 5])
    arena = Arena(None, Gold(), 0, judge={"name": "endpoint", "url": server.url, "model": "m"})
    arena([episode(["look", "click"]), episode(["click", "click"])], 0)
    shown = serving.blocks(server.requests[0])
    assert "(turn 1, a) look\n(turn 2, b) click" in shown.values() and shown["task"] == "question 0"


def test_robots_are_refused():
    """A judge of texts would be shown arrays of numbers."""
    turn = Turn(Observation(()), Decision(np.zeros(2), torch.zeros(1), torch.zeros(1), False), Step(Observation(())))
    with pytest.raises(UserError, match="a judge reads texts"):
        Arena(None, Gold(), 0, judge=WORDS)([Episode(Sample("s", Observation(())), 0, [turn])] * 2, 0)


# -- POLAR -----------------------------------------------------------------------------------------------------------


def test_likeness_is_paid():
    """An answer would be compared with another question's reference."""
    polar = Polar(None, Gold(), 0, judge="scripted")
    paid = polar([episode("abcd"), episode("xyz"), episode("abxx"), episode("no", group=1, gold="no")], 0)
    assert rewards(paid) == pytest.approx([1.0, 0.0, 0.5, 1.0])  # 2 * 2 characters in common of 8
    assert polar.metrics["polar/likeness"] == pytest.approx(2.5 / 4)


@pytest.mark.parametrize(("on_failure", "fill"), [("neutral", None), ("zero", 0.0)])
def test_what_was_not_judged_is_neutral_or_nothing(on_failure, fill):
    """An answer that the judge was away for would be praised or blamed for it against the user's choice."""
    many = [episode(f"abc{i}", group=i // 4) for i in range(40)]
    polar = Polar(None, Gold(), 5, judge={"name": "scripted", "failing": 0.5}, on_failure=on_failure)
    whole = rewards(Polar(None, Gold(), 5, judge="scripted")(many, 0))
    paid = rewards(polar(many, 0))
    assert 0.2 < polar.metrics["judge/failed"] < 0.8
    for start in range(0, 40, 4):
        some, true = paid[start : start + 4], whole[start : start + 4]
        if fill is None:
            assert all(value >= min(true) - 1e-9 or value == 0.5 for value in some)
        else:
            assert all(value in (fill, pytest.approx(exact)) for value, exact in zip(some, true, strict=True))


def test_a_gap_is_filled_with_its_groups_mean():
    """A failure would be an advantage."""
    assert filled([1.0, None, 0.5, None, None], [[0, 1, 2], [3, 4]], zero=False) == [1.0, 0.75, 0.5, 0.5, 0.5]
    assert filled([1.0, None, 0.5], [[0, 1, 2]], zero=True) == [1.0, 0.0, 0.5]


# -- DeepSeek-GRM ----------------------------------------------------------------------------------------------------


def test_votes_equal_the_worked_example():
    """Votes would be counted by another rule than the one told."""
    # Three votes on two answers: a .2 .4 .9 and b .7 .5 0. Medians .4 and .5; distances of the votes (.2 + .2) / 2,
    # (0 + 0) / 2, (.5 + .5) / 2: the last is the outlier.
    cast = {"a": {0: 0.2, 1: 0.4, 2: 0.9}, "b": {0: 0.7, 1: 0.5, 2: 0.0}}
    assert counted(cast, "mean", None) == {"a": pytest.approx(0.5), "b": pytest.approx(0.4)}
    assert counted(cast, "mean", 2) == {"a": pytest.approx(0.3), "b": pytest.approx(0.6)}
    assert counted(cast, "mean", 1) == {"a": 0.4, "b": 0.5}
    often = {"a": {0: 0.2, 1: 0.2, 2: 0.9}, "b": {0: 0.8, 1: 0.4}, "c": {1: 0.1}}
    assert counted(often, "majority", None) == {"a": 0.2, "b": pytest.approx(0.6), "c": 0.1}


def test_each_vote_shows_another_order():
    """What stands first would gain in every vote."""
    shown = list(ballots(["a", "b", "c", "d"], 12, True, 0))
    assert [vote for vote, _ in shown] == list(range(12)) and len({order for _, order in shown}) > 4
    assert all(sorted(order) == ["a", "b", "c", "d"] for _, order in shown)
    assert list(ballots(["a", "b"], 2, False, 0)) == [(0, ("a",)), (0, ("b",)), (1, ("a",)), (1, ("b",))]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("vote", ["mean", "majority"])
def test_scores_find_their_answers_through_all_orders(together, vote):
    """An answer's score would be another's, since each vote shows them in another order."""
    grm = Grm(None, Gold(), 1, judge=WORDS, votes=5, kept=3, vote=vote, together=together)
    groups = [("ab", 0), ("x", 0), ("ab", 0), ("abcd", 0), ("ab", 1), ("abcd", 1)]
    paid = grm([episode(text, group=g) for text, g in groups], 0)
    assert rewards(paid) == pytest.approx([0.5, 0, 0.5, 1, 0.5, 1])
    assert grm.metrics["judge/asked"] == 5 * (2 if together else 3 + 2)


def test_more_votes_err_less():
    """The votes would be one, or their filter keep the worst."""
    texts = ["a", "ab", "abc", "abcd"]
    noisy = {**WORDS, "noise": 0.4}

    def error(**options) -> float:
        runs = [Grm(None, Gold(), seed, judge=noisy, **options)([episode(t) for t in texts], 0) for seed in range(40)]
        truth = [0.25, 0.5, 0.75, 1.0]
        return sum(abs(e.reward - t) for run in runs for e, t in zip(run, truth, strict=True)) / 160

    one, sixteen = error(votes=1), error(votes=16)
    assert sixteen < 0.5 * one and error(votes=16, kept=8) < 0.7 * one


def test_votes_that_fail_are_left_out():
    """Half of the votes would be missing from every score."""
    grm = Grm(None, Gold(), 1, judge={**WORDS, "failing": 0.5}, votes=16)
    assert rewards(grm([episode("ab"), episode("abcd")], 0)) == pytest.approx([0.5, 1])
    assert 0.1 < grm.metrics["judge/failed"] < 0.9
    with pytest.raises(UserError, match="kept 3 of 2 votes"):
        Grm(None, Gold(), 1, judge=WORDS, votes=2, kept=3)


# -- PRS -------------------------------------------------------------------------------------------------------------

STAGES = [
    RewardStage(part="format", weight=0.5), RewardStage(part="calls", met=0.5),
        RewardStage(part="right", weight=2.0, begin=4)
]  # fmt: skip


def staged(step: int, *rows: tuple[float, float, float]) -> Rollouts:
    values = torch.tensor(rows, dtype=torch.float64)
    parts = dict(zip(("format", "calls", "right"), values.T, strict=True))
    rollouts = columns([episode("a", group=i) for i in range(len(rows))], step=step)
    return replace(rollouts, reward=torch.full((len(rows),), 9.0, dtype=torch.float64), parts=parts)


def test_stages_equal_the_worked_example():
    """A right answer in the wrong form would be paid, or a stage before its time."""
    rows = [(1.0, 1.0, 1.0), (1.0, 0.5, 1.0), (1.0, 0.4, 1.0), (0.9, 1.0, 1.0), (0.0, 0.0, 1.0)]
    prs = Prs(stages=STAGES)
    # 0.5 + 1 + 2; 0.5 + 0.5 + 2; 0.5 + 0.4 and no further; 0.5 * 0.9 and no further; 0
    assert prs(staged(4, *rows)).tolist() == pytest.approx([3.5, 3.0, 0.9, 0.45, 0.0])
    assert prs.metrics == {"prs/format": pytest.approx(0.6), "prs/calls": pytest.approx(0.4),
                           "prs/right": pytest.approx(0.4)}  # fmt: skip
    assert prs(staged(3, *rows)).tolist() == pytest.approx([1.5, 1.0, 0.9, 0.45, 0.0])
    assert "prs/right" not in prs.metrics


@given(*[st.tuples(*[st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0])] * 3)] * 2)
def test_nothing_is_won_by_less(one, other):
    """The policy would learn to break the form, or to skip a stage, for a later reward."""
    low, high = tuple(map(min, one, other)), tuple(map(max, one, other))
    reward = Prs(stages=STAGES)(staged(9, low, high)).tolist()
    assert reward[0] <= reward[1] + 1e-9
    unmet = next((k for k, (value, stage) in enumerate(zip(low, STAGES, strict=True)) if value < stage.met), 2)
    assert reward[0] <= sum(stage.weight for stage in STAGES[: unmet + 1]) + 1e-9


def test_a_stage_that_is_no_part_is_told():
    """A misspelt stage would never be met, and all behind it never count."""
    with pytest.raises(
        UserError, match=r"reward_shaping: prs: the reward has no part 'rihgt' \(one of: calls, format, right\)"
    ):
        Prs(stages=[RewardStage(part="rihgt")])(staged(0, (1.0, 1.0, 1.0)))
    with pytest.raises(UserError, match=r"stages.*unknown key"):
        load_config(RECIPES / "prs.yaml", ["reward_shaping=[{name: prs, stages: [{part: hit, wieght: 1}]}]"])


def test_a_judges_score_may_be_a_stage():
    """Quality by a judge, behind form by a rule, as the paper has it, could not be said."""
    paid = Polar(None, Gold(), 0, judge="scripted", keep=1.0, amount=0.0)([episode("abcd"), episode("abxx")], 0)
    rollouts = columns(paid)
    assert rollouts.reward.tolist() == [0.25, 0.25]
    shaped = Prs(stages=[RewardStage(part="hit", met=0.25), RewardStage(part="judged", weight=2.0)])(rollouts)
    assert shaped.tolist() == pytest.approx([2.25, 1.25])


# -- whole runs ------------------------------------------------------------------------------------------------------

SMALL = ["train.steps=2", "train.prompts_per_step=2", "train.group_size=3", "policy.max_tokens=8", "eval.num_samples=2",
         "log.trackers=[]", "task.pool=4", "task.held_out=2", "train.lr=1.0e-3", "log.checkpoint_every=1"]  # fmt: skip


def trained(out: Path, process: str, *changes: str) -> list[dict]:
    assert (
        main(["train", str(RECIPES / "arena_rl.yaml"), *SMALL, f"out={out}", f"process_rewards={process}", *changes])
        == 0
    )
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward" in row]


def test_a_run_is_judged_over_the_wire_and_goes_the_same_way_again(tmp_path, server):
    """The judge would not be asked in a run, or asked again, with another outcome, when the run is played again."""
    counter = itertools.count()
    server.answer = lambda request, number: serving.said([next(counter) * 7 % 11, next(counter) * 3 % 10])  # its whims
    verdicts = tmp_path / "verdicts.jsonl"
    judge = f"[{{name: arena, judge: {{name: endpoint, url: '{server.url}', model: m, cache: '{verdicts}'}}}}]"
    rows = trained(tmp_path / "run", judge)
    asked = len(server.requests)
    assert asked > 0 and all(row["judge/failed"] == 0 and row["judge/asked"] > 0 for row in rows)
    assert rows[0]["reward/judged"] == pytest.approx(rows[0]["reward"])
    again = trained(tmp_path / "again", judge)
    told = [{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows]
    assert [{k: row[k] for k in each} for row, each in zip(again, told, strict=True)] == told
    assert len(server.requests) == asked


def test_a_run_goes_on_without_its_judge(tmp_path, server, capsys):
    """A judge that is away would cost the run; or nobody would see that it is."""
    server.answer = lambda request, number: (503, {}, b"")
    judge = f"{{name: endpoint, url: '{server.url}', model: m, retries: 0}}"
    rows = trained(tmp_path / "run", f"[{{name: grm, votes: 1, judge: {judge}}}]")
    assert [row["judge/failed"] for row in rows] == [1.0, 1.0]
    assert capsys.readouterr().err.count("process_rewards: grm: judge: a question found no answer: HTTP 503") == 1
    stop = f"process_rewards=[{{name: grm, votes: 1, on_failure: stop, judge: {judge}}}]"
    assert main(["train", str(RECIPES / "arena_rl.yaml"), *SMALL, f"out={tmp_path / 'b'}", stop]) == 2
    assert "questions found no answer: HTTP 503" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("recipe", "changes", "told"),
    [
        ("arena_rl", ["process_rewards.judge=x"], "process_rewards"), ("arena_rl", ["train.group_size=1"],
        "needs several completions"),
        ("polar", ["process_rewards=[{name: polar, judge: {name: endpoint, url: http://x}}]"], "model: is required"),
        ("polar", ["process_rewards=[{name: polar, judge: nobody}]"], "unknown judge 'nobody'"),
        ("grm", ["process_rewards=[{name: grm, judge: scripted, vote: most}]"], "vote"),
        ("arena_rl", ["rollout_strategy={name: replay}", "advantages=[batch_norm]", "losses=[likelihood]"], "arena"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_when_the_configuration_is_read(recipe, changes, told):
    """The run would stop after its first rollouts, or compare answers with nobody."""
    with pytest.raises(UserError, match=re.escape(told)):
        load_config(RECIPES / f"{recipe}.yaml", changes)
