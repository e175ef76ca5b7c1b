"""A policy discriminator (POLAR): who wrote what, which answer is better, and the judge that it becomes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl.cli import main
from vlrl.contrib.judges.base import JudgeQuestion, judges_make
from vlrl.contrib.preferences.reward_model import DiscriminatorModel, RankedAnswer, draw_triples, list_triples
from vlrl.types import UserError

CONFIG = """
task: {name: counting, source: plain, thinking: true, thoughts: listed, pool: 20, held_out: 2}
out: made
discriminate:
  policies: [{model: embedded, max_tokens: 6}]
  prompts: 20
  answers: 2
  ranked: 60
updates: 120
hidden: 16
batch_size: 32
lr: 3.0e-3
"""


def test_triples_of_ranked_answers_by_hand():
    """The worse answer would be learned as the better one, equal ones be ranked, or another reference be shown."""
    answers = [RankedAnswer(0, 7, 0.2), RankedAnswer(0, 8, 1.0), RankedAnswer(1, 9, 0.2), RankedAnswer(1, 6, -0.5)]
    assert sorted(list_triples(answers)) == [(8, 7, 6), (8, 8, 6), (8, 8, 7), (8, 8, 9), (8, 9, 6)]


@given(st.integers(0, 9999))
def test_triples_of_policies_are_two_of_one_and_one_of_another(seed):
    """Answers to other prompts, or of the same policy, would be told apart."""
    prompts = [
        [RankedAnswer(policy, 100 * prompt + 10 * policy + i, 0.0) for policy in (-1, 0, 1) for i in range(3)]
        for prompt in range(4)
    ]
    of = {each.text: (prompt, each.policy) for prompt, own in enumerate(prompts) for each in own}
    triples = draw_triples(prompts, 40, np.random.default_rng(seed))
    assert triples.shape == (40, 3)
    for one, same, other in triples.tolist():
        assert one != same and of[one] == of[same] and of[other][0] == of[one][0] and of[other][1] != of[one][1]


def test_scores_by_hand():
    """The answer would be compared with itself, or likeness not be seen where vectors agree."""
    model = DiscriminatorModel({"name": "hashed", "size": 2, "n": 9}, 1)
    with torch.no_grad():
        for parameter, value in zip(model.network.parameters(), ([[1.0, 2.0, 3.0, 4.0]], [0.5], [[2.0]], [-1.0]),
                                    strict=True):  # fmt: skip
            parameter.copy_(torch.tensor(value))
    found = model.compare(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]])).item()
    inner = 1 * 0.4 + 2 * 0.8 + 3 * 0.6 + 4 * 0.0 + 0.5
    assert found == pytest.approx(2 * inner / (1 + math.exp(-inner)) - 1, abs=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder in which the command has been run."""
    folder = tmp_path_factory.mktemp("polar")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("polar.yaml").write_text(CONFIG)
        assert main(["pretrain", "polar.yaml"]) == 0
    return folder


def test_the_command_tells_right_answers_from_babble(made):
    """Held-out prompts, by a policy that has learned nothing and the task's gold answers."""
    report = json.loads((made / "made" / "report.json").read_text())
    k, n, low, _ = report["same_policy"]
    assert n > 100 and low > 0.5 and k <= n
    assert report["kendall"] > 0.5


def test_it_is_a_judge_that_needs_a_reference(made):
    """Another folder's scores, or none at all, would be paid."""
    judge = judges_make({"name": "discriminator", "model": str(made / "made")}, 0, "p")
    gold = "<think>blue circle red square</think>\n<answer>1</answer>"
    alike, other, none = judge.ask([
        JudgeQuestion((), (gold,), "", gold), JudgeQuestion((), ("xq zz",), "", gold), JudgeQuestion((), (gold,), "")
    ])  # fmt: skip
    assert 0 <= other.scores[0] < 0.5 < alike.scores[0] <= 1 and "no reference" in none.fault
    with pytest.raises(UserError, match="no discriminator of policies"):
        judges_make({"name": "discriminator", "model": str(made)}, 0, "p")


def test_polar_is_paid_by_it(made, train, tmp_path):
    """The recipe would go on comparing characters."""
    recipe = Path(__file__).parents[4] / "configs" / "recipes" / "polar.yaml"
    judge = f"process_rewards=[{{name: polar, judge: {{name: discriminator, model: {made / 'made'}}}}}]"
    small = ["train.steps=2", "train.prompts_per_step=2", "train.group_size=2", "policy.max_tokens=6",
             "eval.num_samples=2", "log.trackers=[]", "task={name: counting, pool: 4, held_out: 2}"]  # fmt: skip
    assert train(tmp_path, str(recipe), judge, f"out={tmp_path / 'run'}", *small) == 0, (tmp_path / "err").read_text()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    paid = [row for row in rows if "polar/likeness" in row]
    assert len(paid) == 2 and all(row["judge/failed"] == 0 and 0 <= row["polar/likeness"] <= 1 for row in paid)


@pytest.mark.parametrize(
    ("change", "problem"),
    [("discriminate.gold=false", "one policy cannot be told from others"),
     ("discriminate.ranked=121", "at most updates = 120"), ("discriminate=null", "offline: is required"),
     ("task={name: manipulation}", "this task take turns")],
)  # fmt: skip
def test_mistakes_are_one_line(made, change, problem, monkeypatch, capsys):
    """A traceback, or a model of nothing after all the answers."""
    monkeypatch.chdir(made)
    assert main(["pretrain", "polar.yaml", "out=other", change]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert problem in last and "Value error" not in last and "(got" not in last
