"""A teacher's log-probabilities are of the very tokens that the policy wrote."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from vlrl import api, registry
from vlrl.batch import columns, decisions_of, name_candidates
from vlrl.metrics import describe
from vlrl.policies.generation import law
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.trainer import Teacher
from vlrl.types import Policy, UserError
from vlrl.update import UpdateStats


@pytest.fixture(scope="module")
def section():
    return load_config("configs/gui_grounding.yaml", ["policy.max_tokens=12", "policy.teacher=embedded"]).policy


@pytest.fixture(scope="module")
def policy(section):
    return load(section, shared_prefix=True, seed=1)


@pytest.fixture(scope="module")
def episodes(policy):
    task = registry.make_task(load_config("configs/gui_grounding.yaml", ["task.pool=4", "task.held_out=2"]))
    return collect(policy, task, task.samples("train")[:3], 2)


def test_a_teacher_that_is_the_policy_agrees_with_it(section, policy, episodes, monkeypatch):
    """Read anew, a text falls into other tokens, or is asked at another temperature: the KL would be of two laws."""
    monkeypatch.setattr("vlrl.policies.vlm.ROWS", 4)  # of six
    found, rollouts = Teacher(section).logprobs(policy, episodes), columns(episodes)
    assert found.shape == rollouts.logprobs.shape and not found.requires_grad
    torch.testing.assert_close(found[rollouts.mask], rollouts.logprobs[rollouts.mask], atol=1e-4, rtol=0)


def test_a_teacher_stays_as_it_was_while_the_policy_learns(section, policy, episodes):
    """One that shared weights with its pupil would teach it what it does already."""
    teacher = Teacher(section)
    before = teacher.logprobs(policy, episodes)
    weights = {name: value.clone() for name, value in policy.model.state_dict().items()}
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    now = policy.evaluate(decisions_of(episodes)).logprobs.detach()
    assert torch.equal(teacher.logprobs(policy, episodes), before) and not torch.allclose(now, before, atol=1e-2)
    policy.model.load_state_dict(weights)


@pytest.mark.parametrize("source", ["policy", "reference"])
def test_the_policy_teaches_itself(section, policy, episodes, source):
    """The frozen copy would be taken for the policy, or a second model be loaded for nothing."""
    teacher = Teacher(section.model_copy(update={"teacher": source}))
    assert teacher.policy is None
    policy.freeze_reference()
    weights = {name: value.clone() for name, value in policy.model.state_dict().items()}
    before = teacher.logprobs(policy, episodes)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    after = teacher.logprobs(policy, episodes)
    policy.model.load_state_dict(weights)
    rollouts = columns(episodes)
    torch.testing.assert_close(before[rollouts.mask], rollouts.logprobs[rollouts.mask], atol=1e-4, rtol=0)
    assert torch.equal(after, before) == (source == "reference")


@pytest.mark.parametrize("hint", ["gold", "success"])
def test_a_hint_is_read_by_the_teacher_alone(section, policy, episodes, hint):
    """A teacher without the hint teaches nothing; one that reads the answer itself confirms whatever was written."""
    task = registry.make_task(load_config("configs/gui_grounding.yaml", ["task.pool=4", "task.held_out=2"]))
    right = replace(episodes[0].score, correct=1.0)
    known = [replace(e, score=right if i == 0 else replace(e.score, correct=0.0)) for i, e in enumerate(episodes)]
    teacher = Teacher(section.model_copy(update={"teacher": "policy", "teacher_hint": hint}), task)
    found, rollouts = teacher.logprobs(policy, known), columns(known)
    for i, episode in enumerate(known):
        turn = episode.turns[0]
        answer = task.gold(episode.sample, turn.decision.frames) if hint == "gold" else known[0].completion
        content = (*turn.observation.content, f"\nA right answer: {answer}")
        shown = replace(turn.observation, content=content)
        asked = policy.decide(shown, turn.decision.action, ids=policy.ids(turn.decision))
        hinted = hint == "gold" or i == 1  # the other one of the right one's group
        wanted = policy.score([asked])[0][0] if hinted else turn.decision.logprobs
        torch.testing.assert_close(found[i, : len(wanted)], wanted, atol=1e-4, rtol=0)
    assert (found[1] - rollouts.logprobs[1]).abs().max() > 1e-3
    with pytest.raises(UserError, match=r"policy\.teacher_hint: .* take turns"):
        teacher.logprobs(policy, [replace(episodes[0], turns=episodes[0].turns * 2)])


def test_feedback_tells_why_the_answer_could_not_be_read_where_none_is_right(section, policy, episodes):
    """SDPO would learn nothing where its group has nobody to show the way."""
    task = registry.make_task(load_config("configs/gui_grounding.yaml", ["task.pool=4", "task.held_out=2"]))
    scores = [replace(e.score, correct=float(i == 0), reason="no_answer") for i, e in enumerate(episodes)]
    known = [replace(e, score=score) for e, score in zip(episodes, scores, strict=True)]
    teacher = Teacher(section.model_copy(update={"teacher": "policy", "teacher_hint": "feedback"}), task)
    told = {i: "\nYour last answer could not be read: no answer" for i in (0, 2, 3, 4, 5)}
    told[1] = f"\nA right answer: {known[0].completion}"  # of its group
    found = teacher.logprobs(policy, known)
    for i, episode in enumerate(known):
        turn = episode.turns[0]
        shown = replace(turn.observation, content=(*turn.observation.content, told[i]))
        asked = policy.decide(shown, turn.decision.action, ids=policy.ids(turn.decision))
        wanted = policy.score([asked])[0][0]
        torch.testing.assert_close(found[i, : len(wanted)], wanted, atol=1e-4, rtol=0)
    readable = [replace(e, score=replace(e.score, correct=0.0, reason=None)) for e in known]
    torch.testing.assert_close(teacher.logprobs(policy, readable), columns(known).logprobs)


def law_of(policy, decision):
    """Log-probabilities [T, V] of all tokens, by the states that each was predicted from."""
    banned = torch.tensor(policy.codec.banned_ids, dtype=torch.int64)
    (states,) = policy.token_states([decision])
    return law(policy.model.lm_head(states), policy.temperature, banned)


@pytest.mark.parametrize("source", ["policy", "reference", "embedded"])
def test_a_teacher_says_how_likely_the_policys_likeliest_tokens_are(section, policy, episodes, source):
    """A divergence of other places, tokens or weights would teach something else in silence."""
    teacher = Teacher(section.model_copy(update={"teacher": source}))
    policy.freeze_reference()
    written, ids, taught = teacher.candidates(policy, episodes, 5)
    torch.testing.assert_close(written, teacher.logprobs(policy, episodes), atol=1e-5, rtol=0)
    chosen = name_candidates(decisions_of(episodes), ids)
    now = policy.evaluate(chosen)
    assert now.candidates.requires_grad and not taught.requires_grad
    for i, decision in enumerate(decisions_of(episodes)):
        whole, length = law_of(policy, decision), len(decision.logprobs)
        best = whole.topk(5, -1)
        torch.testing.assert_close(ids[i, :length], best.indices)
        for found in (taught, now.candidates.detach()):
            torch.testing.assert_close(found[i, :length], best.values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(now.logprobs, policy.evaluate(decisions_of(episodes)).logprobs)


def test_a_hint_moves_the_laws_of_those_that_have_one(section, policy, episodes):
    task = registry.make_task(load_config("configs/gui_grounding.yaml", ["task.pool=4", "task.held_out=2"]))
    known = [replace(e, score=replace(e.score, correct=float(i == 0), reason=None)) for i, e in enumerate(episodes)]
    plain, hinted = (
        Teacher(section.model_copy(update={"teacher": "policy", "teacher_hint": hint}), task).candidates(
            policy, known, 400
        )[2]
        for hint in (None, "success")
    )
    assert plain.shape[-1] == policy.model.lm_head.out_features  # all there are
    moved = [not torch.allclose(*rows, atol=1e-3) for rows in zip(plain, hinted, strict=True)]
    assert moved == [i == 1 for i in range(len(known))]  # the other one of the right one's group


def test_a_teacher_of_other_tokens_is_refused(section, episodes):
    """Its probabilities would be of other words, without any sign of it."""
    words = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"a": 0}))
    with pytest.raises(UserError, match=r"policy\.teacher: it has other tokens"):
        Teacher(section).logprobs(SimpleNamespace(processor=words, writes_text=True), episodes)
    with pytest.raises(UserError, match=r"policy\.teacher: only language models"):
        Teacher(section).logprobs(Policy(), episodes)


def test_distillation_without_a_teacher_is_refused_when_the_config_is_read():
    """The run would end at its first update."""
    with pytest.raises(UserError, match=r"losses\.1 \(distill\) needs log-probabilities of a teacher: name a model"):
        load_config("configs/recipes/kdrl.yaml", ["policy.teacher=null"])


def test_the_log_says_how_far_the_teacher_is(episodes):
    """Else nobody sees whether the policy comes nearer.

    k3 = x - log x - 1 with x = p_teacher / p: for x = 2 in every token 1 - log 2. The reference is told apart.
    """
    plain = columns(episodes)
    taught = columns(episodes, reference=plain.logprobs, teacher=plain.logprobs + math.log(2))
    told, untold = (describe(episodes, each, each.mask.float(), UpdateStats()) for each in (taught, plain))
    assert told["kl_teacher"] == pytest.approx(1 - math.log(2), abs=1e-6) and told["kl"] == 0
    assert told.keys() - untold.keys() == {"kl", "kl_teacher"}


def test_a_run_logs_it(tmp_path):
    """Else the docs name a number that is not there. The recipe's teacher is the start: 0 apart at the first step."""
    small = (
        "train.steps=2",
        "train.prompts_per_step=2",
        "train.group_size=2",
        "train.num_minibatches=1",
        "train.lr=0.001",
    )
    few = ("task.pool=4", "task.held_out=2", "eval.num_samples=2", "policy.max_tokens=10", "log.trackers=[]")
    api.train(
        load_config("configs/recipes/kdrl.yaml", [f"out={tmp_path / 'run'}", "train.warmup_steps=0", *small, *few])
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = [row["kl_teacher"] for row in rows if "kl_teacher" in row]
    assert first == pytest.approx(0, abs=1e-6) and second > 1e-6
