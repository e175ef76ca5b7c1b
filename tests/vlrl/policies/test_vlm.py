"""A vision-language model as a policy: what it evaluates is what it sampled, however the work is shared."""

from __future__ import annotations

import gc

import pytest
import torch
from PIL import Image
from torch.profiler import ProfilerActivity, profile

from vlrl.config import PolicySection
from vlrl.policies import prefix_sharing, vlm
from vlrl.policies.generation import CHUNK, bare
from vlrl.policies.loading import load
from vlrl.policies.vlm import VLM
from vlrl.types import Observation, Sample, UserError

# peft uses the former name of activation checkpointing
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")


def weighted(policy, decisions):
    """An evaluation, and gradients of a sum in which every token of every completion has its own weight."""
    now = policy.evaluate(decisions)
    weights = torch.linspace(-1, 1, now.logprobs.numel()).view_as(now.logprobs)
    policy.model.zero_grad()
    (weights * (now.logprobs + 0.3 * now.entropy))[now.mask].sum().backward()
    gradients = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    return now, gradients


def assert_same(one, other, tolerance: float = 1e-5):
    """Log-probabilities and entropies absolutely, every parameter's gradient relative to its norm."""
    (now, gradients), (then, expected) = one, other
    torch.testing.assert_close(now.logprobs, then.logprobs, rtol=0, atol=tolerance)
    torch.testing.assert_close(now.entropy, then.entropy, rtol=0, atol=tolerance)
    assert torch.equal(now.mask, then.mask)
    assert gradients.keys() == expected.keys()
    largest = max(float(g.norm()) for g in expected.values())
    for name, gradient in expected.items():
        # a gradient that is zero in exact arithmetic (a key's bias under softmax) is only rounding
        floor = max(float(gradient.norm()), 1e-4 * largest)
        assert float((gradients[name] - gradient).norm()) <= tolerance * floor, name


def replies_of(policy, questions, texts):
    """Given texts as decisions of one policy; those of one question share its prompt."""
    return [policy.decide(questions[i], text, key=str(i)) for i, text in texts]


TEXTS = [(0, "[1, 2]"), (1, "Click"), (0, "<answer>[3, 4]</answer>"), (1, "the red square button"), (2, "What"),
         (0, "?"), (2, "[12, 7] is")]  # fmt: skip


@pytest.fixture
def plain_reference(questions):
    """`plain_reference(policy, i, tokens)`: log-probabilities by transformers alone, from one ordinary sequence."""

    def compute(policy: VLM, i: int, tokens) -> torch.Tensor:
        observation = questions[i]
        content = [
            {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
            for p in observation.content
        ]
        inputs = policy.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt", processor_kwargs={"return_mm_token_type_ids": True},
        )  # fmt: skip
        reply = torch.tensor([tokens])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], reply], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(reply)], 1)
        with torch.no_grad():
            logits = policy.model(**inputs).logits[0, -len(tokens) - 1 : -1]
        logits[:, list(policy.codec.banned_ids)] = float("-inf")
        return (logits / policy.scorer.temperature).log_softmax(-1).gather(-1, reply.T)[:, 0]

    return compute


def test_sharing_the_prefix_changes_neither_values_nor_gradients(make, questions):
    """Otherwise the default, fast mode trains something else than the method that was asked for."""
    results = []
    for shared in (True, False):
        policy = make(shared_prefix=shared, temperature=0.8)
        results.append(weighted(policy, replies_of(policy, questions, TEXTS)))
    assert_same(*results)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("counts", [[3, 1, 4], [5, 5, 5]])
def test_long_completions_change_neither_values_nor_gradients(make, act, counts, kept, monkeypatch):
    """What forwards long completions apart from their prompt would train something else than what was asked for."""
    results = []
    for far in (True, False):
        monkeypatch.setattr(vlm, "long", lambda rows, far=far: far)
        policy = make(seed=5, temperature=0.8, max_tokens=9, shared_prefix=far or kept)
        results.append(weighted(policy, act(policy, counts, keep=kept)))
    assert_same(*results)


def test_a_part_of_a_kept_prefill_serves_the_part_of_the_groups_that_teach(make, act):
    """Groups that are left out of an update would cost their backward pass, or the others lose what was kept."""
    results = []
    for keep in (True, False):
        policy = make(seed=5)
        decisions = act(policy, [3, 2, 2], keep=keep)
        policy._verified, forwarded = {"scoring", "sampling"}, policy.work.taken()["tokens"]
        results.append(weighted(policy, decisions[:5]))
        forwarded = policy.work.taken()["tokens"]
        assert (forwarded == sum(len(d.inputs.tokens) for d in decisions[:5])) == keep
    assert_same(*results)
    policy = make(seed=5)
    decisions = act(policy, [2, 2, 2], keep=True)
    policy._verified = {"scoring", "sampling"}
    results = [weighted(policy, decisions[:2]), weighted(make(seed=5, shared_prefix=False), decisions[:2])]
    assert_same(*results)  # one prompt of three is cheaper forwarded anew


@pytest.mark.parametrize("counts", [[3, 1, 4], [1, 1, 1]])
def test_a_kept_prefill_changes_neither_values_nor_gradients(make, act, counts):
    """Otherwise reusing the rollout's forward pass trains something else than the method that was asked for."""
    results = []
    for kept in (True, False):
        policy = make(seed=5, temperature=0.8)
        decisions = act(policy, counts, keep=kept)
        results.append(weighted(policy, decisions))
        assert policy._kept is None  # a graph serves one backward pass
    assert_same(*results)


def test_a_kept_prefill_of_other_prompts_is_not_used(make, act):
    """A minibatch, or rollouts of an earlier step, must not be scored on prompts that they were not given."""
    policy = make(seed=5)
    earlier = act(policy, [2, 2, 2])
    act(policy, [2, 2, 2], keep=True)
    now = policy.evaluate(earlier[:2])
    for row, decision in zip(now.logprobs, earlier, strict=False):
        torch.testing.assert_close(row[: len(decision.logprobs)], decision.logprobs, rtol=0, atol=1e-5)


def test_evaluation_equals_transformers_on_the_plain_sequence(make, questions, plain_reference):
    """Otherwise positions, masks or image features differ from the model's own and pretrained skill is lost."""
    policy = make(temperature=0.7)
    decisions = replies_of(policy, questions, TEXTS)
    now = policy.evaluate(decisions)
    for row, decision, (i, _) in zip(now.logprobs, decisions, TEXTS, strict=True):
        tokens = decision.inputs.tokens
        torch.testing.assert_close(row[: len(tokens)], plain_reference(policy, i, tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2**14])
def test_features_equal_the_hidden_states_of_the_plain_prompt(make, questions, chunk, monkeypatch):
    """A critic would read another prompt's screen, the padding, or the answer that it is to judge."""
    monkeypatch.setattr(vlm, "TOKENS", chunk)
    policy = make()
    decisions = replies_of(policy, questions, TEXTS)
    features = policy.features(decisions)
    assert features.shape == (len(TEXTS), policy.model.config.text_config.hidden_size)
    assert features.dtype == torch.float32 and not features.requires_grad
    for row, (i, _) in zip(features, TEXTS, strict=True):
        content = [
            {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
            for p in questions[i].content
        ]
        inputs = policy.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt", processor_kwargs={"return_mm_token_type_ids": True},
        )  # fmt: skip
        with torch.no_grad():
            plain = policy.model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(row, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_was_sampled_is_what_is_evaluated(make, act, shared, temperature):
    """Otherwise the importance ratio starts off 1 and every update is biased."""
    policy = make(shared_prefix=shared, temperature=temperature)
    decisions = act(policy, [3, 1, 4])
    now = policy.evaluate(decisions)
    for b, decision in enumerate(decisions):
        n = len(decision.logprobs)
        assert now.mask[b].tolist() == [t < n for t in range(now.mask.shape[1])]
        torch.testing.assert_close(now.logprobs[b, :n], decision.logprobs, rtol=0, atol=1e-5)
        torch.testing.assert_close(now.entropy[b, :n], decision.entropy, rtol=0, atol=1e-5)


def test_decisions_come_back_in_the_order_of_the_episodes(make, episodes):
    """Otherwise rewards are given to other completions than those that earned them."""
    policy, made = make(), episodes([2, 2, 2])
    mixed = [made[i] for i in (4, 0, 2, 5, 1, 3)]
    decisions = policy.act(mixed, [e.sample.prompt for e in mixed])
    images = [len(d.frames) for d in decisions]
    assert images == [len(e.sample.prompt.images) for e in mixed]


def test_banned_tokens_have_no_probability_in_evaluation(make, questions):
    """Otherwise the normaliser differs from that of sampling."""
    policy = make()
    logits = torch.randn(2, policy.scorer.model.lm_head.in_features)
    banned = torch.tensor(policy.codec.banned_ids[:2])
    logprobs, _ = policy.scorer.score(logits, banned)
    assert torch.isneginf(logprobs).all()


def held(function, *given, **options):
    """What a function returns, and the bytes that are held when it has returned beyond those held before."""
    gc.collect()  # what an earlier profile saw allocated would be taken off when it is freed here
    gc.collect()  # what an earlier profile saw allocated would count as freed here
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        made = function(*given, **options)
    return made, sum(event.self_cpu_memory_usage for event in seen.key_averages())


def test_gradient_checkpointing_saves_memory_and_keeps_the_gradients(folder, act, questions):
    """Otherwise the option does nothing, or saving memory changes the training."""
    results, kept = [], []
    for saving in (False, True):
        policy = load(PolicySection(model=str(folder), max_tokens=6, gradient_checkpointing=saving), device="cpu")
        act(policy)  # as in a step: acting leaves the model in evaluation mode
        decisions = replies_of(policy, questions, TEXTS)
        results.append(weighted(policy, decisions))
        now, size = held(policy.evaluate, decisions)
        assert now.logprobs.requires_grad
        kept.append(size)
    assert_same(*results)
    assert kept[1] < 0.6 * kept[0]


def test_inputs_of_layers_wait_on_the_host_and_nothing_else_does(folder, act, questions, monkeypatch):
    """Long conversations would not fit where a plan says so, or weights would be copied with every layer."""
    sent: list[tuple[int, ...]] = []

    class Counted(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory):
            assert not pin_memory  # on a CPU
            super().__init__(lambda value: sent.append(tuple(value.shape)) or value, lambda value: value)

    results = []
    for saving in (True, "offload"):
        policy = load(PolicySection(model=str(folder), max_tokens=6, gradient_checkpointing=saving), device="cpu")
        act(policy)
        decisions = replies_of(policy, questions, TEXTS)
        with monkeypatch.context() as patches:
            patches.setattr(torch.autograd.graph, "save_on_cpu", Counted)
            results.append(weighted(policy, decisions))
        assert bool(sent) == (saving == "offload")
    assert_same(*results)
    config, inputs = policy.model.config, [shape for shape in sent if shape != (0,)]  # torch saves an empty one as well
    layers = {config.text_config.hidden_size: config.text_config.num_hidden_layers}
    layers[config.vision_config.hidden_size] = (
        layers.get(config.vision_config.hidden_size, 0) + config.vision_config.depth
    )
    for hidden, count in layers.items():
        assert len([shape for shape in inputs if shape[-1] == hidden]) % count == 0
    assert {shape[-1] for shape in inputs} == set(layers)


def test_scoring_in_chunks_keeps_values_and_gradients(make, questions):
    """Otherwise large vocabularies train differently from small ones."""
    results = []
    for chunk in (CHUNK, 1024):
        policy = make()
        policy.scorer.chunk = chunk
        results.append(weighted(policy, replies_of(policy, questions, TEXTS)))
    assert_same(*results)


def test_checkpointing_keeps_the_prefill_too(folder, act):
    """With long prompts, which need checkpoints most, a step would forward them once more."""
    results, kept = [], []
    for saving in (False, True):
        policy = load(PolicySection(model=str(folder), max_tokens=6, gradient_checkpointing=saving), device="cpu")
        act(policy)  # what is made once and stays
        decisions, size = held(act, policy, keep=True)
        policy._verified = {"scoring", "sampling"}
        policy.work.taken()
        results.append(weighted(policy, decisions))
        assert policy.work.taken()["tokens"] == sum(len(d.inputs.tokens) for d in decisions)
        kept.append(size)
    assert_same(*results)
    assert kept[1] < 0.6 * kept[0]


FROZEN = {"lora": {"rank": 4, "alpha": 8, "targets": r".*language_model.*_proj"}}


def test_a_frozen_tower_sees_each_prompt_once(folder, act, monkeypatch):
    """Half of a step's work would be encoding the same pictures again for update, reference and the next epoch."""
    policies = []
    for shared in (True, False):
        torch.manual_seed(0)  # of the adapters
        section = PolicySection(model=str(folder), max_tokens=6, **FROZEN)
        policies.append(load(section, device="cpu", shared_prefix=shared))
    policy, plain = policies
    seen: list[int] = []
    bare(policy.model).model.visual.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    policy._verified = {"scoring", "sampling"}
    decisions = act(policy)
    first, reference = weighted(policy, decisions), policy.reference(decisions)
    assert len(seen) == 1 and policy.work.taken()["patches"] == seen[0]
    assert_same(first, weighted(plain, decisions))
    torch.testing.assert_close(reference, plain.reference(decisions), rtol=0, atol=1e-5)
    act(policy)  # the next epoch
    assert len(seen) == 1
    policy._seen.forget()
    monkeypatch.setattr(prefix_sharing, "FEATURES", 1)  # no room: seen anew each time, and right all the same
    assert_same(weighted(policy, decisions), first, tolerance=1e-6)
    assert len(seen) == 2


def test_a_tower_that_trains_is_never_remembered(make, act):
    """The update would be one of features that the weights no longer make."""
    policy = make()
    decisions = act(policy)
    before = policy.evaluate(decisions).logprobs.detach()
    with torch.no_grad():
        for parameter in policy.model.model.visual.parameters():
            parameter.mul_(1.1)
    assert (policy.evaluate(decisions).logprobs - before).abs().max() > 1e-3


def test_weights_in_bfloat16_are_held_to_its_rounding(make, act, capsys):
    """The fast passes of a model in bfloat16 would be switched off for what is only rounding, or not be checked."""
    policy = make()
    policy.model.to(torch.bfloat16)
    with torch.no_grad():
        bare(policy.model).lm_head.weight.mul_(3.0)  # logits of the size that large models have
    policy.evaluate(act(policy, keep=True))
    policy.evaluate(act(policy))
    assert policy.shared_prefix and not capsys.readouterr().err
    assert [vlm.compute_tolerance(kind) for kind in (torch.float32, torch.bfloat16)] == [1e-3, 0.5]


def test_a_shared_pass_that_is_wrong_is_switched_off(make, act, monkeypatch, capsys):
    """A model whose layers work otherwise would be trained on nonsense, without a word."""
    policy = make()
    decisions = act(policy)
    policy._scorer.hidden = lambda *given: 1.1 * prefix_sharing.hidden_states(*given)
    monkeypatch.setattr(vlm, "hidden_states", policy._scorer.hidden)
    now = policy.evaluate(decisions).logprobs
    assert "train.shared_prefix is false from here on" in capsys.readouterr().err and not policy.shared_prefix
    torch.testing.assert_close(now, make(shared_prefix=False).evaluate(decisions).logprobs, rtol=0, atol=1e-6)
    act(policy, keep=True)
    policy.evaluate(decisions)
    assert not capsys.readouterr().err  # once


def test_weights_that_do_not_train_are_narrow_in_mixed_precision(folder, act):
    """Every use of a frozen float32 weight would be a conversion: decoding reads four times the bytes."""
    policy = load(PolicySection(model=str(folder), max_tokens=6, dtype="bfloat16", **FROZEN), device="cpu")
    kinds = {p.requires_grad: p.dtype for p in policy.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    decisions = act(policy, keep=True)
    now, gradients = weighted(policy, decisions)
    exact = load(PolicySection(model=str(folder), max_tokens=6, **FROZEN), device="cpu")
    assert (now.logprobs - exact.evaluate(decisions).logprobs)[now.mask].abs().mean() < 0.1
    assert policy.shared_prefix and gradients and all(torch.isfinite(g).all() for g in gradients.values())


def test_the_work_is_counted(make, act, questions):
    """Nobody would see what a step does twice."""
    policy = make(max_tokens=4)
    policy._verified, policy.codec.stop_ids = {"scoring", "sampling"}, (10**6,)
    encoded = [policy.prompt(question) for question in questions]
    ids, patches = sum(len(p.ids) for p in encoded), sum(len(p.pixels) for p in encoded if p.pixels is not None)
    policy.work.taken()
    decisions = act(policy, [4, 4, 4], keep=True)
    row = policy.work.taken()
    assert row["tokens"] == ids + 3 * 12 and row["tokens_distinct"] == ids + 4 * 12
    assert row["patches"] == row["patches_distinct"] == patches
    assert row["tower_calls"] == 1 and row["processor_calls"] == 3
    assert {"media_s", "prefill_s", "decode_s"} <= row.keys()
    policy.evaluate(decisions)
    row = policy.work.taken()
    assert row["tokens"] == 4 * 12 and "patches" not in row  # the kept prefill
    policy.evaluate(decisions)
    assert policy.work.taken()["patches"] == patches


def moved(policy, decisions) -> torch.Tensor:
    """Log-probabilities after a large step of whatever is trained."""
    weighted(policy, decisions)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.01 * parameter.grad.sign())
    return policy.evaluate(decisions).logprobs.detach()


@pytest.mark.parametrize("lora", [True, False])
def test_reference_stays_where_training_began(folder, make, questions, lora):
    """Otherwise the KL term pulls towards a moving target, or to an untrained adapter's noise."""
    section = PolicySection(model=str(folder), lora={"rank": 4, "alpha": 8, "targets": "all-linear"} if lora else None)
    policy, base = load(section, device="cpu"), make()
    policy.freeze_reference()
    decisions = replies_of(policy, questions, TEXTS)
    untouched = base.evaluate(replies_of(base, questions, TEXTS)).logprobs.detach()
    torch.testing.assert_close(policy.reference(decisions), untouched, rtol=0, atol=1e-5)
    for _ in range(2):  # an adapter's second half is zero at first: the first step moves only one half
        after = moved(policy, decisions)
    torch.testing.assert_close(policy.reference(decisions), untouched, rtol=0, atol=1e-5)
    assert (after - untouched).abs().max() > 1e-2


def test_reference_without_a_frozen_start_is_refused(make, questions):
    """Otherwise the KL to the present weights, which is zero, is silently used."""
    policy = make()
    with pytest.raises(RuntimeError, match="freeze_reference"):
        policy.reference(replies_of(policy, questions, TEXTS[:1]))


def test_saved_weights_load_back_bit_for_bit(make, tmp_path):
    """Otherwise a resumed run is another run."""
    policy, other = make(), make()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    policy.save(tmp_path)
    other.load_weights(tmp_path)
    for (name, one), two in zip(policy.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_transformers_loads_what_was_saved(make, act, tmp_path):
    """Otherwise the trained model cannot be used elsewhere (TRL 1.16 loses Qwen2.5-VL's keys this way)."""
    from transformers import AutoModelForImageTextToText

    policy = make()
    policy.save(tmp_path)
    loaded, info = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    decisions = act(policy)
    again = VLM(loaded, policy.processor).evaluate(decisions).logprobs
    torch.testing.assert_close(again, policy.evaluate(decisions).logprobs, rtol=0, atol=0)


def test_an_adapter_is_saved_and_loaded_alone(folder, questions, tmp_path):
    """Otherwise a LoRA run cannot be resumed, or its checkpoints are as large as the model."""
    section = PolicySection(model=str(folder), lora={"rank": 4, "alpha": 8, "targets": "all-linear"})
    policy, other = load(section, device="cpu"), load(section, device="cpu", seed=1)
    decisions = replies_of(policy, questions, TEXTS)
    for _ in range(2):
        after = moved(policy, decisions)
    policy.save(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    other.load_weights(tmp_path / "adapter")
    torch.testing.assert_close(other.evaluate(decisions).logprobs, after, rtol=0, atol=0)
    merged = load(PolicySection(model=str(tmp_path / "adapter")), device="cpu")
    torch.testing.assert_close(merged.evaluate(decisions).logprobs, after, rtol=0, atol=1e-4)


def test_weights_of_another_architecture_are_refused(make, tokenizer, family, tmp_path):
    """Otherwise a resume goes on from half-loaded weights."""
    from vlrl.policies import tiny

    policy = make()
    VLM(*tiny.build(tokenizer, family=family, hidden=64, layers=3, vision_hidden=32)).save(tmp_path / "deeper")
    with pytest.raises(UserError, match="another architecture"):
        policy.load_weights(tmp_path / "deeper")


def test_the_generator_travels_with_the_state(make, act):
    """Otherwise a resumed run samples other completions."""
    policy = make(seed=5)
    state = policy.state_dict()
    first = [d.inputs.tokens for d in act(policy)]
    policy.load_state_dict(state)
    assert [d.inputs.tokens for d in act(policy)] == first
    assert [d.inputs.tokens for d in act(policy)] != first


def test_prompts_are_preprocessed_once_per_sample(make, questions):
    """Otherwise every completion of a group pays for resizing the same image."""
    policy = make(cached_prompts=2)
    first = policy.prompt(questions[0], "a")
    assert policy.prompt(questions[0], "a") is first
    del first
    for _ in range(2):  # what comes again is kept
        number = id(policy.prompt(questions[0], "a"))
    assert id(policy.prompt(questions[0], "a")) == number and policy.work.taken()["processor_calls"] == 2
    for _ in range(2):
        for question in questions[1:3]:
            policy.prompt(question, "b")
    policy.work.taken()
    policy.prompt(questions[0], "a")
    assert policy.work.taken()["processor_calls"] == 1  # the least recently used one made room


def test_prompts_prepared_ahead_are_those_that_would_be_made(make, questions):
    """Other threads would change what a run sees, or swallow what is wrong with a sample."""
    policy, plain = make(), make()
    samples = [Sample(f"s/{i}", question) for i, question in enumerate(questions)]
    policy._prompts.prepare(samples, range(len(samples)))
    for sample in samples[1:]:  # in another order than asked for, and one is never asked for
        one, other = (each.prompt(sample.prompt, sample.id) for each in (policy, plain))
        assert one.ids.equal(other.ids) and one.positions.equal(other.positions)
        assert one.pixels is other.pixels is None or one.pixels.equal(other.pixels)
    assert policy.work.taken()["processor_calls"] == len(samples) - 1
    policy._prompts.prepare(samples, [])
    assert not policy._prompts._ahead
    thin = Sample("thin", Observation((Image.new("RGB", (4000, 2)), "?")))
    policy._prompts.prepare([thin], [0])
    with pytest.raises(UserError, match="sample thin: an image of 4000x2"):
        policy.prompt(thin.prompt, thin.id)


def test_bare_finds_the_model_inside_an_adapter(folder):
    """Otherwise acting would go past the adapter or fail."""
    section = PolicySection(model=str(folder), lora={"rank": 2, "alpha": 4, "targets": "all-linear"})
    policy = load(section, device="cpu")
    assert bare(policy.model).config.model_type == bare(bare(policy.model)).config.model_type
    assert any("lora" in name for name, _ in bare(policy.model).named_parameters())


def test_questions_under_one_id_are_not_mistaken_for_each_other(make, questions):
    """Two lessons of one task number their samples alike: the second would be measured on the first's pictures."""
    policy = make()
    one, other, again = (policy.prompt(questions[i], key="same") for i in (0, 1, 0))
    assert one is again
    assert one.ids.tolist() != other.ids.tolist() or not torch.equal(one.pixels, other.pixels)
    assert torch.equal(other.pixels, make().prompt(questions[1]).pixels)
