"""Steps that are recorded and replayed, on a CPU: by a recorder with the rules of CUDA graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vlrl.config import Lora, PolicySection
from vlrl.policies import decode_step, generation
from vlrl.policies.generation import bare
from vlrl.policies.loading import load

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "speed"))  # scripts, not a package

from gpu_graphs import graphs_against_loop
from gpu_recorder import Taped

CPU = torch.device("cpu")
STOPS = tuple(range(20, 36))  # about one token in twenty
ONE = pytest.mark.parametrize("family", ["qwen2_5_vl"], indirect=True)


@pytest.fixture(autouse=True)
def taped(monkeypatch):
    """Looks are as seldom as on a GPU, so that steps follow each other unseen."""
    monkeypatch.setitem(decode_step.RECORDERS, "cpu", Taped)
    monkeypatch.setitem(generation.LOOK, "cpu", 16)


@pytest.fixture
def pair(make):
    """`pair(...)` -> a policy that steps, one that replays; of the same weights and seed."""

    def build(**options):
        policies = [make(cuda_graphs=way, **({"max_tokens": 60, "seed": 6} | options)) for way in (False, True)]
        for policy in policies:
            policy.codec.stop_ids = STOPS
        return policies

    return build


def same(one, other) -> None:
    """The same decisions."""
    for left, right in zip(one, other, strict=True):
        assert left.inputs.tokens == right.inputs.tokens and left.truncated == right.truncated
        torch.testing.assert_close(left.logprobs, right.logprobs, rtol=0, atol=2e-5)
        torch.testing.assert_close(left.entropy, right.entropy, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"slots": 5}, {"temperature": 0.6, "nucleus": generation.Nucleus(0.8, 20)}],
    ids=["whole law", "few slots", "likely tokens"],
)
def test_replayed_steps_write_what_the_loop_writes(pair, act, options):
    """A run would train on other completions, or with other log-probabilities, than without graphs."""
    loop, replayed = pair(**options)
    for counts in ([6, 2, 3], [1, 0, 4]):
        same(act(loop, counts), act(replayed, counts))
        assert torch.equal(loop.generator.get_state(), replayed.generator.get_state())  # a resumed run goes on exactly
    assert replayed.graphs.recorded > 1 and replayed.graphs.off is None and replayed.shared_prefix


def test_greedy_tokens_are_the_loops(pair, act):
    """Evaluation would measure another model."""
    loop, replayed = pair()
    same(act(loop, greedy=True), act(replayed, greedy=True))
    assert replayed.graphs.recorded


@ONE
def test_buffers_that_double_are_recorded_anew(pair, act, monkeypatch):
    """A record would go on writing where the old buffers lay."""
    monkeypatch.setattr(generation, "RECORDED_BLOCK", 32)
    loop, replayed = pair(max_tokens=120)
    for policy in (loop, replayed):
        policy.codec.stop_ids = ()
    same(act(loop), act(replayed))
    assert replayed.graphs.recorded == 3  # 32, 64, 128


@ONE
def test_the_step_is_replayed_and_not_run(pair, act, monkeypatch):
    """An option that changes nothing."""
    _, policy = pair()
    policy.codec.stop_ids, ran, true = (), [], decode_step.Layers.forward
    monkeypatch.setattr(decode_step.Layers, "forward", lambda self, *given: ran.append(1) or true(self, *given))
    act(policy)
    # the first token, one run to warm up, one that is recorded, two beside which the first record is checked
    assert len(ran) == 1 + 1 + 1 + 2
    policy._verified = {"sampling"}
    ran.clear()
    act(policy)
    assert len(ran) == 1 + 1 + 1


@ONE
def test_changed_weights_are_seen(pair, act, tmp_path):
    """Rollouts would stay those of the first weights, and every update after it off-policy."""
    loop, replayed = pair()
    start = act(replayed)
    act(loop)
    for policy in (loop, replayed):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(0.9)  # in place, as optimizers do
    changed = act(replayed)
    same(act(loop), changed)
    assert [d.inputs.tokens for d in start] != [d.inputs.tokens for d in changed]
    for policy in (loop, replayed):
        for parameter in policy.model.parameters():
            parameter.data = parameter.data * 0.9  # elsewhere in memory
    same(act(loop), act(replayed))
    assert replayed.graphs.recorded >= 3 and replayed.graphs.off is None


@ONE
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # peft's
def test_adapters_are_recorded_with_the_layers(folder, act):
    """LoRA is how most runs train; the configuration's key must reach the policy."""
    made = []
    for way in (False, True):
        torch.manual_seed(0)
        section = PolicySection(model=str(folder), lora=Lora(rank=4), max_tokens=40, cuda_graphs=way)
        policy = load(section, seed=1, device="cpu")
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
        made.append(policy)
    same(*map(act, made))
    assert made[0].graphs is None and made[1].graphs.recorded


@ONE
def test_stop_strings_end_where_they_stand_however_seldom_one_looks(pair, act, monkeypatch):
    """Between two looks a completion goes on behind its end, which would be trained."""
    texts = [d.action for d in act(pair()[0], [4, 4, 4])]
    stop = next(c for c in "aeious " if sum(c in t for t in texts) > 2)
    found = [act(policy, [4, 4, 4]) for policy in pair(stop=[stop])]
    monkeypatch.setitem(generation.LOOK, "cpu", 1)
    every = act(pair(stop=[stop])[0], [4, 4, 4])
    same(every, found[0])
    same(every, found[1])
    assert len({len(d.inputs.tokens) for d in every}) > 2


@ONE
def test_what_cannot_be_recorded_is_written_by_the_loop(pair, act, monkeypatch, capsys):
    """A run would die of an operation that its GPU cannot record, though it had another way."""
    loop, replayed = pair()
    expected, true = [act(loop), act(loop)], generation.entropy_of

    def asks(*given):
        made = true(*given)
        assert made.max().item() > -1  # waits for the device
        return made

    monkeypatch.setattr(generation, "entropy_of", asks)
    same(expected[0], act(replayed))
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("vlrl: policy.cuda_graphs: RuntimeError: operation not permitted")
    same(expected[1], act(replayed))
    assert not capsys.readouterr().err and replayed.graphs.recorded == 0  # said once


@ONE
def test_a_cpu_has_none(pair, act, monkeypatch, capsys):
    """One configuration serves machines with a GPU and without."""
    monkeypatch.delitem(decode_step.RECORDERS, "cpu")
    loop, replayed = pair()
    same(act(loop), act(replayed))
    assert capsys.readouterr().err.count("policy.cuda_graphs: there are none on the device cpu") == 1


@ONE
@pytest.mark.parametrize("part", ["lm_head", "q_proj", "layer"])
def test_hooks_go_on_hearing_every_token(pair, act, part, capsys):
    """What somebody hangs on a module, as sharded weights do, would run once and never again."""
    _, policy = pair(max_tokens=30)
    policy.codec.stop_ids, model = (), bare(policy.model)
    layer = model.model.language_model.layers[0]
    heard = []
    module = {"lm_head": model.lm_head, "q_proj": layer.self_attn.q_proj, "layer": layer}[part]
    module.register_forward_hook(lambda *given: heard.append(1))
    act(policy, greedy=True)
    assert len(heard) >= 29 and policy.graphs.recorded == 0
    assert "the model's layers" in capsys.readouterr().err


@ONE
def test_a_record_that_goes_wrong_later_is_found_out(pair, act, monkeypatch, capsys):
    """Completions whose log-probabilities are not those of the model would be trained."""

    class Fading(Taped):
        def record(self, step):
            replay, times = super().record(step), []

            def once_more():
                replay()
                times.append(1)
                if len(times) > 4:  # the check at the first record takes two
                    state[1].sub_(1)

            state = seen
            return once_more

    seen, true = [], decode_step.Graphs.record
    monkeypatch.setattr(
        decode_step.Graphs, "record", lambda self, step, state, *o: seen.extend(state) or true(self, step, state, *o)
    )
    monkeypatch.setitem(decode_step.RECORDERS, "cpu", Fading)
    _, policy = pair()
    act(policy)
    assert policy.graphs.recorded and not policy.shared_prefix
    assert "train.shared_prefix is false" in capsys.readouterr().err


class Counter:
    """A step that adds numbers to a tensor."""

    def __init__(self):
        self.tensor, self.host, self.records = torch.zeros(2), 0, decode_step.Graphs(CPU)

    def honest(self) -> None:
        self.tensor += 1

    def of_the_host(self) -> None:
        self.host += 1
        self.tensor += self.host

    def dies(self) -> None:
        self.tensor += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nmore")

    def leaks(self) -> None:
        if not hasattr(self, "kept"):
            self.kept = torch.ones(2)
        self.tensor += self.kept
        self.kept = self.kept * 1  # memory of the record, read by the step that follows


def test_a_recorded_step_leaves_the_state_and_replays_any_number_of_times():
    """The tokens of recording and checking would be written twice."""
    counter = Counter()
    replay = counter.records.record(counter.honest, [counter.tensor])
    assert counter.tensor.tolist() == [0, 0] and counter.records.recorded == 1
    for _ in range(3):
        replay()
    assert counter.tensor.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("step", "reason"),
    [("of_the_host", "did not write what the step itself"), ("leaks", "did not write"), ("dies", "Tried to allocate")],
)
def test_a_step_that_cannot_be_replayed_is_refused_and_undone(step, reason, capsys):
    """A number of the host, or memory of the record, would be used for every token that follows."""
    counter = Counter()
    assert counter.records.record(getattr(counter, step), [counter.tensor]) is None
    assert counter.tensor.tolist() == [0, 0]
    said = capsys.readouterr().err.strip()
    assert reason in said and len(said.splitlines()) == 1
    assert counter.records.record(counter.honest, [counter.tensor]) is None  # from here on
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.sum().item(), lambda x: bool((x > 0).any()), lambda x: x[x > 0], lambda x: x.nonzero(),
        lambda x: torch.isin(x, x), lambda x: x.index_put_((x > 0,), torch.tensor(1.0)),
    ],
)  # fmt: skip
def test_the_tests_recorder_refuses_what_waits_for_a_device(asks):
    """What passes here would fail on a GPU."""
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        Taped(CPU).record(lambda: asks(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_graphs_on_a_gpu_write_what_the_loop_writes():
    """CUDA's own recorder, which no CPU can stand for."""
    assert graphs_against_loop(torch.device("cuda"), tokens=60, stop=True) < 1e-4
