"""Sampling token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from vlrl.performance.memory import count_launches
from vlrl.policies.generation import Nucleus, draw, entropy_of, law
from vlrl.types import Episode, Observation, Sample


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
        assert decision.action == "" and not decision.truncated


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
        assert decision.truncated == (last not in policy.codec.stop_ids)
        assert len(decision.logprobs) == len(decision.entropy) == len(decision.inputs.tokens)


def test_the_length_limit_marks_a_completion_as_cut(make, act):
    """Otherwise an unfinished answer counts as the policy's own end."""
    policy = make(max_tokens=2)
    policy.codec.stop_ids = (policy.codec.tokenizer.vocab_size + 1,)
    assert all(d.truncated and len(d.logprobs) == 2 for d in act(policy))


@pytest.mark.parametrize("slots", [1, 3, 5, 100])
def test_how_many_are_written_at_once_changes_nothing(make, act, slots):
    """A smaller GPU would train on other completions."""
    results = []
    for limit in (None, slots):
        policy = make(max_tokens=40, seed=6, slots=limit)
        policy.codec.stop_ids = tuple(range(20, 36))  # about one token in twenty
        results.append(act(policy, [5, 2, 4]))
    assert len({len(d.inputs.tokens) for d in results[0]}) > 4
    for one, other in zip(*results, strict=True):
        assert one.inputs.tokens == other.inputs.tokens and one.truncated == other.truncated
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=0, atol=1e-5)
        torch.testing.assert_close(one.entropy, other.entropy, rtol=0, atol=1e-5)


def test_a_prompt_is_forwarded_when_there_is_a_place_for_it(make, act):
    """Memory would be that of all prompts of a step or of an evaluation, however few completions are under way."""
    policy = make(max_tokens=8, slots=2)
    forward, sizes = policy._prefill, []
    policy._prefill = lambda prompts, keep: (sizes.append(len(prompts)), forward(prompts, keep))[1]
    act(policy, [2, 2, 2])
    assert sizes == [1, 1, 1]


def test_rows_that_have_ended_make_no_place_for_more(make):
    """Beside rows that came later they would go on past the last position that there is, which ends the run."""
    samples = [Sample(f"q/{i}", Observation(("Click the red square.",))) for i in range(30)]
    made = [Episode(sample, i) for i, sample in enumerate(samples)]
    for seed in range(4):
        policy = make(max_tokens=8, seed=seed, slots=5)
        policy.codec.stop_ids = tuple(range(20, 50))
        decisions = policy.act(made, [sample.prompt for sample in samples])
        assert len({len(d.inputs.tokens) for d in decisions}) > 3


def test_what_has_ended_leaves_the_batch(make, act):
    """A batch would go on at full size until its longest completion ends."""
    policy = make(max_tokens=64, seed=6)
    policy.codec.stop_ids = tuple(range(20, 60))
    policy.work.taken()
    decisions = act(policy, [16, 16, 16])
    written, longest = sum(len(d.inputs.tokens) for d in decisions), max(len(d.inputs.tokens) for d in decisions)
    prompts = sum(len(p.ids) for p in {id(d.inputs.prompt): d.inputs.prompt for d in decisions}.values())
    forwarded = policy.work.taken()["tokens"] - prompts
    assert written - 48 <= forwarded < 0.6 * 48 * longest


def test_a_long_completion_is_evaluated_as_it_was_sampled(make, act):
    """Buffers that grow while writing would lose what came before."""
    policy = make(max_tokens=3 * 32 + 5)
    policy.codec.stop_ids = (10**6,)
    decisions = act(policy, [2, 1, 2])
    now = policy.evaluate(decisions)
    for row, decision in zip(now.logprobs, decisions, strict=True):
        torch.testing.assert_close(row, decision.logprobs, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("nucleus", "allowed"), [(Nucleus(top_k=2), 2), (Nucleus(top_p=0.6), 2), (Nucleus(), 4)])
def test_only_the_likely_tokens_are_drawn(nucleus, allowed):
    """An option that does nothing, or cuts the likeliest."""
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3]).expand(4000, 4)
    tokens = draw(nucleus.of(probs), torch.rand(4000, generator=torch.Generator().manual_seed(0)))
    share = tokens.bincount(minlength=4) / 4000
    kept = probs[0].topk(allowed).indices
    expected = torch.zeros(4).scatter(0, kept, probs[0, kept] / probs[0, kept].sum())
    assert (share - expected).abs().max() < 0.04 and int((share > 0).sum()) == allowed


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.3, 1.0]), min_size=1, max_size=8).filter(any),
    uniform=st.sampled_from([0.0, 1e-7, 0.5, 1 - 2**-24]),
)
def test_a_token_without_probability_is_never_drawn(weights, uniform):
    """Rounding at either end would draw a placeholder, and its update would be NaN."""
    probs = torch.tensor([weights])
    assert probs[0, draw(probs, torch.tensor([uniform]))].item() > 0


def test_log_probabilities_are_those_of_the_whole_law(make, act):
    """An update computes them over all tokens: the ratio would start off 1."""
    policy = make(nucleus=Nucleus(0.5, 3), seed=2)
    decisions = act(policy)
    now = policy.evaluate(decisions)
    for row, decision in zip(now.logprobs, decisions, strict=True):
        torch.testing.assert_close(row[: len(decision.logprobs)], decision.logprobs, rtol=0, atol=1e-5)


def test_a_stop_string_ends_the_completion_and_belongs_to_it(make, act):
    """A model that does not know its stop token would write to the limit."""
    free = act(make(max_tokens=30, seed=8), [4, 4, 4])
    texts = [d.action for d in free]
    stop = next(c for c in "aeious " if sum(c in t for t in texts) > 2)
    for whole, ended in zip(free, act(make(max_tokens=30, seed=8, stop=[stop]), [4, 4, 4]), strict=True):
        assert whole.inputs.tokens[: len(ended.inputs.tokens)] == ended.inputs.tokens
        if stop in whole.action:
            assert stop in ended.action and not ended.truncated
            *before, _ = ended.inputs.tokens
            assert stop not in make().codec.decode(before)
        else:
            assert ended.inputs.tokens == whole.inputs.tokens and ended.truncated == whole.truncated


def test_samples_follow_the_law(make, act, episodes):
    """Otherwise log-probabilities and frequencies disagree and the policy gradient is biased."""
    policy = make(max_tokens=1, temperature=0.5)
    made = episodes([1500, 0, 0])
    decisions = policy.act(made, [e.sample.prompt for e in made])
    probability = {d.inputs.tokens[0]: math.exp(d.logprobs[0]) for d in decisions}
    token, p = max(probability.items(), key=lambda pair: pair[1])
    share = sum(d.inputs.tokens[0] == token for d in decisions) / len(decisions)
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(decisions))


def write(make, tokens: int, watch):
    """What a watch saw of writing so many tokens, in bfloat16 beside float32 weights."""
    policy = make(max_tokens=tokens)
    policy.autocast, policy.codec.stop_ids, policy._verified = torch.bfloat16, (), {"sampling"}
    sample = Sample("s", Observation(("Go",)))
    with watch as seen:
        policy.act([Episode(sample, 0, stream=(1, i)) for i in range(4)], [sample.prompt] * 4)
    return policy, seen


@pytest.mark.slow
def test_weights_are_narrowed_once_a_rollout_and_not_a_token(make):
    """In inference mode autocast would read and write every weight again for each token."""
    counts = []
    for tokens in (4, 12):
        watch = profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True)
        policy, seen = write(make, tokens, watch)
        weights = [list(p.shape) for p in policy.model.parameters() if p.ndim == 2]
        events = seen.key_averages(group_by_input_shape=True)
        counts.append(sum(e.count for e in events if e.key == "aten::_to_copy" and e.input_shapes[0] in weights))
    assert counts[0] == counts[1] > 0


class Operations(TorchDispatchMode):
    """Counts operations that are no views."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_a_token_starts_as_many_operations_as_plans_count(make):
    """A plan would promise tokens that no host can start in time."""
    few, many = (write(make, tokens, Operations()) for tokens in (4, 12))
    layers = many[0].model.config.text_config.num_hidden_layers
    counted = (count_launches(layers, 4, n, None) for n in (4, 12))
    started = many[1].count - few[1].count
    assert 0.6 < started / -(next(counted) - next(counted)) < 1.5, started
