"""Models of any type on the plain path: against one row at a time of the model's own forward pass."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import log_softmax

from vlrl.batch import name_candidates
from vlrl.config import Config, Lora, PolicySection
from vlrl.policies import generation, tiny
from vlrl.policies.loading import load
from vlrl.policies.plain import PlainVLM, missing
from vlrl.runner import Runner
from vlrl.trainer import RLTrainer
from vlrl.types import Episode, Message, Observation, Sample, Step, Turn, UserError, Video

# images that see both ways and sliding windows, states of linear attention, short convolutions, tiles; and, slow,
# experts, resamplers, three-dimensional positions, attention across, inputs that do not stack
QUICK = ("gemma3", "qwen3_5", "lfm2_vl", "llava_next")
SLOW = (
    "qwen3_vl_moe", "gemma4", "internvl", "glm4v", "glm46v", "idefics2", "mllama", "minicpmv4_6", "mistral3", "molmo2",
    "smolvlm",
)  # fmt: skip
TYPES = (*QUICK, *(pytest.param(family, marks=pytest.mark.slow) for family in SLOW))
KEEPS = ("gemma3n", "internvl", "smolvlm", "idefics3")  # among those whose turns go on behind a kept cache
EXACT = {"rtol": 0, "atol": 1e-5}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of GLM's image processor
]


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng([seed, width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def built(family: str, **settings) -> tuple[nn.Module, object]:
    model, processor = tiny.build_family(family, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model, processor


@pytest.fixture(scope="module", params=TYPES)
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    for part in built(request.param):
        part.save_pretrained(path)
    return path


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def shared(request) -> bool:
    return request.param


@pytest.fixture
def make(folder, shared) -> Callable[..., PlainVLM]:
    def policy(shared_prefix=shared, seed: int = 0, **options) -> PlainVLM:
        section = PolicySection(model=str(folder), **({"max_tokens": 5} | options))
        return load(section, shared_prefix=shared_prefix, seed=seed, device="cpu")

    return policy


QUESTIONS = (
    Observation((noise(48, 32), "Click the red square.")),
    Observation(("What is", noise(32, 64, 1), "at [1, 2]? Click the button.", noise(40, 32, 2))),
)


def episodes(counts=(2, 2), streams: bool = False) -> list[Episode]:
    samples = [Sample(f"q/{i}", question) for i, question in enumerate(QUESTIONS)]
    made = [Episode(s, g) for g, (s, n) in enumerate(zip(samples, counts, strict=True)) for _ in range(n)]
    for i, episode in enumerate(made):
        episode.stream = (7, i) if streams else None
    return made


def act(policy, which: list[Episode], **options):
    return policy.act(which, [e.sample.prompt for e in which], **options)


def by_hand(policy, decision) -> torch.Tensor:
    """A completion's log-probabilities from a row of its own, without padding, cache or any of our batching."""
    prompt, tokens = decision.inputs.prompt, torch.tensor(decision.inputs.tokens)
    ids = torch.cat([prompt.ids, tokens])[None]
    inputs = dict(prompt.inputs) | {"attention_mask": torch.ones_like(ids)}
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.zeros_like(tokens)[None]], 1)
    logits = policy.model(input_ids=ids, **inputs).logits[0, len(prompt.ids) - 1 : -1].float()
    logits[:, list(policy.codec.banned_ids)] = float("-inf")
    return log_softmax(logits / policy.temperature, -1).gather(-1, tokens[:, None])[:, 0]


@torch.no_grad()
def test_sampling_and_training_have_the_models_own_law(make, shared, capsys):
    """Otherwise every importance ratio is wrong, and the gradient with it."""
    policy = make(temperature=0.8)
    decisions = act(policy, episodes())
    now = policy.evaluate(decisions)
    for row, mask, decision in zip(now.logprobs, now.mask, decisions, strict=True):
        expected = by_hand(policy, decision)
        torch.testing.assert_close(decision.logprobs, expected, **EXACT)
        torch.testing.assert_close(row[mask], expected, **EXACT)
    assert not capsys.readouterr().err and policy.shared_prefix == shared


def test_gradients_are_those_of_rows_alone(make):
    """Padding or neighbours in a batch would teach what nobody wrote."""
    policy = make()
    decisions = act(policy, episodes())
    results = []
    for compute in (
        lambda: policy.evaluate(decisions).logprobs.sum(),
        lambda: sum(by_hand(policy, d).sum() for d in decisions),
    ):
        policy.model.zero_grad()
        compute().backward()
        results.append({n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None})
    assert results[0].keys() == results[1].keys()
    total = torch.stack([g.norm() for g in results[1].values()]).norm()
    for name, gradient in results[1].items():  # a bias of keys has none but for rounding
        assert (results[0][name] - gradient).norm() < 1e-5 * max(total, gradient.norm()), name


def test_an_episodes_tokens_do_not_depend_on_its_batch(make):
    """A run with other batch sizes, or resumed, would go another way."""
    policy, which = make(), episodes(streams=True)
    together = [d.inputs.tokens for d in act(policy, which)]
    alone = [act(policy, [episode])[0].inputs.tokens for episode in which]
    slots = [d.inputs.tokens for d in act(make(max_num_seqs=1), which)]
    assert together == alone == slots and len(set(together)) > 1


def test_a_completion_goes_on_from_given_tokens(make):
    """Hints, tools and corrections put tokens into the policy's mouth."""
    policy = make()
    begun = [policy.codec.text_encoder.encode("Click")] * 2
    decisions = act(policy, episodes((1, 1)), begun=begun)
    now = policy.evaluate(decisions)
    for decision, row in zip(decisions, now.logprobs, strict=True):
        free = ~decision.forced_mask
        assert list(decision.inputs.tokens[: len(begun[0])]) == begun[0]
        torch.testing.assert_close(decision.logprobs[free], row[: len(free)][free].detach(), rtol=0, atol=1e-4)


def test_text_that_spells_a_placeholder_stays_text(make):
    """Otherwise a question about `<image>` claims an image that is not there."""
    policy = make()
    spelled = policy.codec.tokenizer.convert_ids_to_tokens(sorted(policy.codec.placeholder_ids)[0])
    plain, quoted = (Observation((noise(48, 32), f"What is {word}?")) for word in ("it", spelled))
    images = [
        torch.isin(policy.prompt(o).ids, torch.tensor(sorted(policy.codec.placeholder_ids))).sum()
        for o in (plain, quoted)
    ]
    assert images[0] == images[1] > 0
    decision = policy.decide(quoted, "Click")
    assert torch.isfinite(policy.evaluate([decision]).logprobs).all()


def talk(policy, turns: int = 3) -> list:
    """Two conversations of one group, whose images come in the first turns; their decisions, turn by turn."""
    shown = [
        Observation.from_messages([Message("user", content)])
        for content in ((noise(48, 32), "Click it."), (noise(40, 32, 1), "And this?", noise(32, 32, 2)), ("Now?",))
    ]
    playing = [Episode(Sample("c", shown[0]), 0, stream=(3, i)) for i in range(2)]
    for observation in shown[:turns]:
        decisions = policy.act(playing, [observation] * 2)
        for episode, decision in zip(playing, decisions, strict=True):
            episode.turns.append(Turn(observation, decision, Step(observation)))
    return [turn.decision for episode in playing for turn in episode.turns]


@torch.no_grad()
def test_conversations_have_the_models_own_law(make, capsys):
    """Of images in several turns, whose inputs each family has in a form of its own, behind kept caches or not."""
    policy = make(temperature=0.8)
    decisions = talk(policy)
    now = policy.evaluate(decisions)
    for row, decision in enumerate(decisions):
        expected = by_hand(policy, decision)
        torch.testing.assert_close(now.logprobs[row][now.mask[row]], expected, **EXACT)
        torch.testing.assert_close(decision.logprobs, expected, **EXACT)
    told = capsys.readouterr().err
    assert (decisions[1].inputs.prompt.parent is None) == ("a training sequence of its own" in told)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llava", "lfm2_vl", *(pytest.param(f, marks=pytest.mark.slow) for f in KEEPS)])
def test_a_turn_forwards_what_it_adds(family):
    """An agent's history would be forwarded anew at each of its turns."""
    counts, logprobs = [], []
    for keeps in (True, False):
        policy = PlainVLM(*built(family), max_tokens=5)
        talk(policy, turns=2)  # how the model can be forwarded is looked at here
        assert policy.keeps_turns
        policy.keeps_turns = keeps
        policy.forget()
        policy.work.taken()
        logprobs.append(torch.cat([decision.logprobs for decision in talk(policy)]))
        counts.append(policy.work.taken())
    torch.testing.assert_close(*logprobs, **EXACT)
    assert counts[0]["cached_tokens"] > 0.5 * counts[0]["conversation_tokens"]
    assert counts[0]["tokens"] < 0.7 * counts[1]["tokens"]


@pytest.mark.parametrize("stop", [(), ("e",)], ids=["tokens", "strings"])
def test_a_look_at_what_has_ended_need_not_come_every_token(stop, monkeypatch):
    """On a GPU every look waits for it; what is written must not depend on how often that is."""
    model, processor = built("llava")
    written = []
    for every in (1, 4, 16):
        monkeypatch.setitem(generation.LOOK, "cpu", every)
        policy = PlainVLM(model, processor, max_tokens=13, stop=stop)
        policy.codec.stop_ids += tuple(range(300, 340))
        decisions = act(policy, episodes((4, 4), streams=True))
        written.append([(d.inputs.tokens, d.logprobs.tolist(), d.truncated) for d in decisions])
    assert written[0] == written[1] == written[2]
    assert len({len(tokens) for tokens, *_ in written[0]}) > 1


def test_critics_and_searches_have_what_they_read(make):
    """Critics read hidden states, tree searches the likeliest tokens."""
    policy = make()
    decisions = act(policy, episodes((2, 1)))
    features, states = policy.features(decisions), policy.token_states(decisions)
    assert len(features) == 3 and features.isfinite().all() and torch.equal(features[0], features[1])
    assert [len(s) for s in states] == [len(d.inputs.tokens) for d in decisions]
    for decision, (tokens, logprobs) in zip(decisions, policy.likeliest(decisions, 2), strict=True):
        assert tokens.shape == (len(decision.inputs.tokens), 2) and bool((logprobs[:, 0] >= logprobs[:, 1]).all())
    ids, likeliest = zip(*policy.likeliest(decisions, 3), strict=True)
    chosen = name_candidates(decisions, ids)
    torch.testing.assert_close(torch.cat(policy.candidates(chosen))[:, 1:], torch.cat(likeliest), rtol=0, atol=1e-4)
    now = policy.evaluate(chosen)
    torch.testing.assert_close(now.candidates[now.mask], torch.cat(likeliest), rtol=0, atol=1e-4)
    torch.testing.assert_close(now.logprobs, policy.evaluate(decisions).logprobs)


@pytest.mark.slow
def test_a_saved_adapter_is_the_policy_and_merges(make, folder, tmp_path):
    """The result of a run under LoRA must be what was trained, wherever it is loaded."""
    lora = Lora(rank=2, alpha=4, targets=r".*(q_proj|v_proj)")
    policy = make(lora=lora)
    decisions = act(policy, episodes((1, 1)))
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    now = policy.evaluate(decisions).logprobs.detach()
    assert not torch.allclose(now, policy.reference(decisions), atol=1e-3)
    policy.save(tmp_path)
    merged = load(PolicySection(model=str(tmp_path)), shared_prefix=False, device="cpu")
    resumed = make(lora=lora)
    resumed.load_weights(tmp_path)
    torch.testing.assert_close(merged.evaluate(decisions).logprobs.detach(), now, rtol=0, atol=1e-4)
    torch.testing.assert_close(resumed.evaluate(decisions).logprobs.detach(), now, rtol=0, atol=1e-6)


def test_checkpointed_layers_give_the_same_gradients(make):
    """Memory must not cost correctness, and dropout must not come with it."""
    policies = [make(gradient_checkpointing=on) for on in (False, True, "offload")]
    decisions = act(policies[0], episodes((1, 1)))
    norms = []
    for policy in policies:
        policy.evaluate(decisions).logprobs.sum().backward()
        norms.append(torch.stack([p.grad.norm() for p in policy.model.parameters() if p.grad is not None]))
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(norms[1], norms[2])


# -- what is refused, in one line ---------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [r".*no_such_layer", ["no_such_layer"], ["layernorm"]])
def test_adapters_of_layers_that_cannot_have_one_are_refused(targets, tmp_path):
    for part in built("gemma3"):
        part.save_pretrained(tmp_path)
    section = PolicySection(model=str(tmp_path), lora=Lora(rank=2, alpha=4, targets=targets))
    with pytest.raises(UserError, match=r"^policy\.lora\.targets: "):
        load(section, shared_prefix=False, device="cpu")


def test_what_a_model_lacks_is_named():
    """Otherwise it fails in the middle of a run, deep inside."""
    model, processor = built("llava")
    assert missing(model, processor) is None
    assert "no processor" in missing(model, processor.tokenizer)
    template, processor.chat_template = processor.chat_template, None
    assert "no chat template" in missing(model, processor)
    processor.chat_template = "{% for m in messages %}hello{% endfor %}"
    assert "shows no image" in missing(model, processor)
    processor.chat_template = template
    model.config.is_encoder_decoder = True
    assert "encoder-decoder" in missing(model, processor)


def test_a_forward_pass_that_sees_ahead_is_refused():
    """PaliGemma attends both ways over what has token type 0: what a completion's token is followed by changes it."""
    policy = PlainVLM(*built("paligemma"), max_tokens=4)
    with pytest.raises(UserError, match="see those behind them"):
        act(policy, episodes())


def test_a_cache_that_cannot_be_forked_is_told(capsys):
    """A model whose cache does other than its forward pass must not be trained by it."""
    model, processor = built("llava")
    forward = model.forward

    def wrong(*args, past_key_values=None, **options):
        made = forward(*args, past_key_values=past_key_values, **options)
        made.logits = made.logits * (1.1 if past_key_values is not None else 1.0)
        return made

    wrong.__signature__ = inspect.signature(forward)
    model.forward = wrong
    policy = PlainVLM(model, processor, max_tokens=4)
    decisions = act(policy, episodes())
    assert not policy.shared_prefix and "its cache changes log-probabilities" in capsys.readouterr().err
    with torch.no_grad():
        torch.testing.assert_close(
            policy.evaluate(decisions).logprobs[0][:1], by_hand(policy, decisions[0])[:1], **EXACT
        )


def test_a_prompt_is_forwarded_once_for_its_group(make, shared):
    """The towers and the prompt are most of the work."""
    policy, seen = make(), []
    act(policy, episodes())
    policy.model.get_input_embeddings().register_forward_hook(lambda module, given, out: seen.append(given[0].numel()))
    decisions = act(policy, episodes((4, 4)))
    prompts = [len(d.inputs.prompt.ids) for d in decisions]
    assert (sum(seen) < sum(prompts)) == shared


def test_videos_reach_models_that_take_them():
    video = Video(np.stack([np.asarray(noise(32, 32, i)) for i in range(4)]), (0.0, 0.5, 1.0, 1.5), 2.0, 2.0)
    asked = Observation((video, "What happens?"))
    policy = PlainVLM(*built("internvl"), max_tokens=4)
    decision = policy.act([Episode(Sample("v", asked), 0)], [asked])[0]
    with torch.no_grad():
        torch.testing.assert_close(decision.logprobs, by_hand(policy, decision), **EXACT)
    with pytest.raises(UserError, match="takes no videos"):
        PlainVLM(*built("llava"), max_tokens=4).prompt(asked)


# -- an architecture that nobody knows ----------------------------------------------------------------------------

CODE = '''
import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class BoatConfig(PreTrainedConfig):
    model_type = "boat"

    def __init__(self, vocab_size=512, hidden_size=32, image_token_id=0, **options):
        self.vocab_size, self.hidden_size, self.image_token_id = vocab_size, hidden_size, image_token_id
        super().__init__(**options)


class Boat(PreTrainedModel, GenerationMixin):
    """A recurrent network without a cache: an image is the mean of its pixels."""

    config_class = BoatConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.see = nn.Linear(3, config.hidden_size)
        self.gru = nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask=None, pixel_values=None, output_hidden_states=None, **options):
        hidden = self.embed(input_ids)
        if pixel_values is not None:
            where = input_ids == self.config.image_token_id  # equally many tokens for each image
            seen = self.see(pixel_values.mean((-2, -1))).repeat_interleave(int(where.sum()) // len(pixel_values), 0)
            hidden = hidden.masked_scatter(where[..., None], seen)
        hidden = self.gru(hidden)[0]
        states = (hidden,) if output_hidden_states else None
        return CausalLMOutputWithPast(logits=self.head(hidden), hidden_states=states)
'''


@pytest.fixture(scope="module")
def boat(tmp_path_factory) -> Path:
    """A local folder with a model of an architecture of its own, a processor of LLaVA's and the code."""
    path = tmp_path_factory.mktemp("boat")
    (path / "boat.py").write_text(CODE)
    space: dict = {"__name__": "boat"}
    exec(compile(CODE, "boat.py", "exec"), space)
    _, processor = tiny.build_family("llava")
    torch.manual_seed(0)
    config = space["BoatConfig"](image_token_id=processor.image_token_id, eos_token_id=processor.tokenizer.eos_token_id)
    space["Boat"](config).save_pretrained(path)
    processor.save_pretrained(path)
    about = json.loads((path / "config.json").read_text())
    about["auto_map"] = {"AutoConfig": "boat.BoatConfig", "AutoModelForImageTextToText": "boat.Boat"}
    (path / "config.json").write_text(json.dumps(about))
    return path


def test_an_unknown_architecture_trains_from_its_folder(boat, tmp_path, monkeypatch):
    """Users bring what no release of transformers knows yet."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(UserError, match=r"policy\.trust_remote_code=true"):
        load(PolicySection(model=str(boat)), device="cpu")
    settings = {
        "out": str(tmp_path / "run"), "task": {"name": "gui_grounding", "pool": 4, "held_out": 4},
        "policy": {"model": str(boat), "max_tokens": 5, "trust_remote_code": True},
        "train": {"steps": 2, "prompts_per_step": 2, "group_size": 3, "lr": 1e-2}, "log": {"trackers": []},
    }  # fmt: skip
    config = Config.model_validate(settings)
    trainer = RLTrainer(config)
    trainer.setup()
    before = {n: p.detach().clone() for n, p in trainer.policy.model.named_parameters()}
    decisions = act(trainer.policy, episodes((1, 1)))
    with torch.no_grad():
        torch.testing.assert_close(decisions[0].logprobs, by_hand(trainer.policy, decisions[0]), **EXACT)
    trainer.policy.evaluate(decisions).logprobs.sum().backward()
    assert all(p.grad is not None for p in trainer.policy.model.parameters())
    trainer.policy.model.zero_grad()
    Runner(config, trainer).run()
    assert before.keys() == dict(trainer.policy.model.named_parameters()).keys()
    assert sorted((tmp_path / "run" / "checkpoints").glob("step_*"))


REGISTERED = """
from transformers import AutoConfig, AutoModelForImageTextToText
from tasks.gui_grounding import GuiGrounding

AutoConfig.register("raft", RaftConfig)
AutoModelForImageTextToText.register(RaftConfig, Raft)


class Clicks(GuiGrounding):
    pass
"""


@pytest.mark.slow
def test_a_class_that_the_users_module_registers_trains(boat, tmp_path):
    """The module that holds the task may hold the model: no code is read from the model's folder."""
    code = CODE.replace("Boat", "Raft").replace("boat", "raft")
    (tmp_path / "own_raft.py").write_text(code + REGISTERED)
    folder = tmp_path / "model"
    shutil.copytree(boat, folder)
    (folder / "boat.py").unlink()
    about = json.loads((folder / "config.json").read_text()) | {"model_type": "raft", "architectures": ["Raft"]}
    about.pop("auto_map")
    (folder / "config.json").write_text(json.dumps(about))
    settings = {
        "out": str(tmp_path / "run"), "task": {"name": "own_raft:Clicks", "pool": 4, "held_out": 4},
        "policy": {"model": str(folder), "max_tokens": 5, "lora": {"rank": 2, "targets": ["head"]}},
        "train": {"steps": 2, "prompts_per_step": 2, "group_size": 3, "lr": 1e-2}, "log": {"trackers": []},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "vlrl.cli", "train", "config.yaml"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert (saved / "adapter_model.safetensors").is_file()


# -- learning -----------------------------------------------------------------------------------------------------

LETTERS = '''
from tasks.gui_grounding import GuiGrounding
from vlrl.types import Score


class Letters(GuiGrounding):
    """Pays for the share of small letters in what is written: dense, so that a model that knows nothing can learn."""

    def score(self, episode):
        text = episode.completion
        share = sum(c.islower() for c in text) / max(1, len(text))
        return Score({"hit": share, "format": 1.0}, share)
'''


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "qwen3_5", "lfm2_vl"])
def test_a_run_of_another_family_rises_and_resumes_exactly(family, tmp_path, monkeypatch):
    """Exact numbers are worth nothing if nothing is learned."""
    for part in tiny.build_family(family):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {
        "task": {"name": "letters:Letters", "pool": 8, "held_out": 8},
        "policy": {"model": str(tmp_path / "model"), "max_tokens": 5},
        "train": {"steps": 30, "prompts_per_step": 4, "group_size": 8, "lr": 1e-2},
        "log": {"trackers": [], "checkpoint_every": 8, "keep_checkpoints": 2},
    }  # fmt: skip
    rewards = []
    for name in ("one", "two"):
        config = Config.model_validate(settings | {"out": str(tmp_path / name)})
        Runner(config, RLTrainer(config)).run()
        rows = [json.loads(row) for row in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        rewards.append([row["reward"] for row in rows if "reward" in row])
    assert rewards[0] == rewards[1] and len(rewards[0]) == 30
    assert np.mean(rewards[0][-4:]) > np.mean(rewards[0][:4]) + 0.1
