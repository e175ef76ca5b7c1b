"""Sampling token by token."""

from __future__ import annotations

import math

import pytest
import torch

from vlrl.policies.decoding import entropy_of, law


def test_law_leaves_out_banned_tokens_before_it_normalises():
    """Otherwise probabilities of the tokens that can be sampled do not sum to 1."""
    logprobs = law(torch.tensor([[1.0, 9.0, 2.0]]), 0.5, torch.tensor([1]))
    expected = torch.tensor([2.0, 4.0]).log_softmax(-1)
    torch.testing.assert_close(logprobs[0, [0, 2]], expected)
    assert torch.isneginf(logprobs[0, 1])


def test_entropy_counts_banned_tokens_as_nothing():
    """Otherwise 0 times minus infinity makes every entropy NaN."""
    logprobs = law(torch.zeros(1, 5), 1.0, torch.tensor([0]))
    assert entropy_of(logprobs).item() == pytest.approx(math.log(4))


def test_greedy_equals_transformers_generate(make, episodes, questions, noise):
    """Otherwise evaluation measures another model than the one that users run."""
    policy = make(max_tokens=8)
    made = episodes([1, 1, 1])
    decisions = policy.act(made, questions, greedy=True)
    for observation, decision in zip(questions, decisions, strict=True):
        content = [
            {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
            for p in observation.content
        ]
        inputs = policy.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt", processor_kwargs={"return_mm_token_type_ids": True},
        )  # fmt: skip
        generated = policy.model.generate(
            **inputs, do_sample=False, max_new_tokens=8, suppress_tokens=list(policy.codec.banned_ids)
        )
        assert generated[0, inputs["input_ids"].shape[1] :].tolist() == list(decision.inputs.tokens)


def test_a_group_samples_what_separate_prompts_sample(make, act):
    """Otherwise turning the shared prefix off to look for a mistake changes the run."""
    shared, naive = (act(make(shared_prefix=s, seed=4), [3, 1, 2]) for s in (True, False))
    assert [d.inputs.tokens for d in shared] == [d.inputs.tokens for d in naive]
    for one, other in zip(shared, naive, strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=0, atol=1e-5)


def test_completions_of_a_group_differ_and_a_seed_repeats_them(make, act):
    """Otherwise groups carry no signal, or runs cannot be repeated."""
    first, again, other = (act(make(seed=seed), [4, 1, 1]) for seed in (1, 1, 2))
    tokens = [[d.inputs.tokens for d in decisions] for decisions in (first, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert len(set(tokens[0][:4])) > 1


def forced(policy, ids, by: float = 100.0):
    """Raises the logits of some tokens above all others, as training gone wrong might."""

    def raise_logits(module, inputs, logits):
        return logits.index_add(-1, torch.tensor(ids), torch.full((*logits.shape[:-1], len(ids)), by))

    return policy.model.lm_head.register_forward_hook(raise_logits)


@pytest.mark.parametrize("greedy", [True, False])
def test_placeholders_are_never_sampled(make, act, greedy):
    """Otherwise a reply claims an image that does not exist and evaluating it fails."""
    policy = make()
    with forced(policy, policy.codec.banned_ids):
        decisions = act(policy, greedy=greedy)
        policy.evaluate(decisions)
    sampled = {token for d in decisions for token in d.inputs.tokens}
    assert sampled.isdisjoint(policy.codec.banned_ids)
    assert len(policy.codec.banned_ids) >= 5


def test_a_stop_token_ends_the_completion_and_belongs_to_it(make, act):
    """Otherwise the model is not trained to stop, or goes on after it has."""
    policy = make()
    stop = policy.codec.stop_ids[0]
    with forced(policy, [stop]):
        decisions = act(policy)
    for decision in decisions:
        assert decision.inputs.tokens == (stop,)
        assert decision.action == "" and not decision.cut


def test_one_completion_may_stop_while_its_neighbours_go_on(make, act):
    """Otherwise the first to finish cuts its group short, or its leftovers are trained."""
    policy = make(max_tokens=10, seed=6)
    policy.codec.stop_ids = tuple(range(20, 120))  # about one token in five
    decisions = act(policy, [6, 2, 2])
    lengths = [len(d.inputs.tokens) for d in decisions]
    assert len(set(lengths)) > 2
    for decision in decisions:
        *before, last = decision.inputs.tokens
        assert not set(before) & set(policy.codec.stop_ids)
        assert decision.cut == (last not in policy.codec.stop_ids)
        assert len(decision.logprobs) == len(decision.entropy) == len(decision.inputs.tokens)


def test_the_length_limit_marks_a_completion_as_cut(make, act):
    """Otherwise an unfinished answer counts as the policy's own end."""
    policy = make(max_tokens=2)
    policy.codec.stop_ids = (policy.codec.tokenizer.vocab_size + 1,)
    assert all(d.cut and len(d.logprobs) == 2 for d in act(policy))


def test_samples_follow_the_law(make, act, episodes):
    """Otherwise log-probabilities and frequencies disagree and the policy gradient is biased."""
    policy = make(max_tokens=1, temperature=0.5)
    made = episodes([1500, 0, 0])
    decisions = policy.act(made, [e.sample.prompt for e in made])
    probability = {d.inputs.tokens[0]: math.exp(d.logprobs[0]) for d in decisions}
    token, p = max(probability.items(), key=lambda pair: pair[1])
    share = sum(d.inputs.tokens[0] == token for d in decisions) / len(decisions)
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(decisions))
