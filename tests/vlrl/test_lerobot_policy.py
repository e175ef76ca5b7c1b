"""lerobot's policies as ours: what is loaded and what refused, what they are shown, what they do."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.policies.lerobot import PROCESSORS, LeRobotInputs, LerobotPolicy, check_files, checkpoint, read_lerobot
from vlrl.types import Episode, Observation, Sample, Step, Turn, UserError

needs_lerobot = pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="lerobot is not installed")
needs_diffusers = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")
STEP = {"registry_name": "normalizer_processor", "config": {}}


def folder(path, config=None, steps=(STEP,)):
    """A checkpoint's files, without weights."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"type": "act", **(config or {})}))
    for name in PROCESSORS:
        (path / name).write_text(json.dumps({"name": "x", "steps": list(steps)}))
    return str(path)


def shown(state, images=()):
    return Observation((*images, "Push the cube."), np.asarray(state, np.float32))


def episode(*turns):
    """An episode with turns of (observation, decision)."""
    return Episode(Sample("0", Observation(())), 0, [Turn(seen, decision, Step(seen)) for seen, decision in turns])


class Counting(torch.nn.Module):
    """In lerobot's place: each action says which state was seen last and which tick of its plan it is."""

    def __init__(self, past, steps):
        super().__init__()
        feature = SimpleNamespace(type=SimpleNamespace(name="STATE"), shape=(2,))
        self.config = SimpleNamespace(
            type="counting", n_obs_steps=past, n_action_steps=steps, input_features={"observation.state": feature}
        )
        self.weight, self.asked = torch.nn.Parameter(torch.zeros(1)), []

    def reset(self):
        pass

    def predict_action_chunk(self, batch):
        state = batch["observation.state"]
        self.asked.append(state.clone())
        last = state[:, -1, :1] if self.config.n_obs_steps > 1 else state[:, :1]
        ticks = torch.arange(self.config.n_action_steps + 2)
        noise = torch.rand(len(state), len(ticks))
        return torch.stack([last.expand(-1, len(ticks)), ticks.expand(len(state), -1), noise], -1)


def counting(past, steps):
    model = Counting(past, steps)
    return LerobotPolicy(model, lambda batch: batch, lambda action: action), model


def test_one_decision_is_the_first_ticks_of_a_chunk():
    """The rest of a chunk is what the policy's authors throw away: it looks too far ahead."""
    policy, _ = counting(past=1, steps=3)
    first, second = policy.act([episode(), episode()], [shown([7, 0]), shown([8, 0])])
    assert first.action.dtype == np.float32 and first.action.shape == (3, 3)
    assert first.action[:, :2].tolist() == [[7, 0], [7, 1], [7, 2]] and second.action[0, 0] == 8
    assert torch.isnan(first.logprobs).all() and len(first.logprobs) == 3


def test_a_policy_with_a_past_is_asked_tick_by_tick_and_keeps_to_its_plan():
    """Its second observation would be a whole chunk old, which it was never trained on."""
    policy, model = counting(past=2, steps=3)
    played, states, actions = episode(), [1, 2, 3, 4], []
    for state in states:
        (decision,) = policy.act([played], [shown([state, 0])])
        actions.append(decision.action[:, :2].tolist())
        played.turns.append(Turn(shown([state, 0]), decision, Step(shown([0, 0]))))
    assert actions == [[[1, 0]], [[1, 1]], [[1, 2]], [[4, 0]]]
    assert [asked[0, :, 0].tolist() for asked in model.asked] == [[1, 1], [3, 4]]


def test_episodes_of_a_batch_have_nothing_to_do_with_each_other():
    """One that begins while others go on would inherit their plan."""
    policy, _ = counting(past=2, steps=3)
    (before,) = policy.act([episode()], [shown([1, 0])])
    old, new = policy.act([episode((shown([1, 0]), before)), episode()], [shown([2, 0]), shown([9, 0])])
    assert old.action[0, :2].tolist() == [1, 1] and new.action[0, :2].tolist() == [9, 0]


def test_greedy_is_repeatable_and_sampling_is_not():
    """Two evaluations of one policy would differ; a group of samples would be one sample."""
    policy, _ = counting(past=1, steps=3)
    ask = lambda **how: policy.act([episode()], [shown([1, 0])], **how)[0].action[:, 2].tolist()  # noqa: E731
    before = torch.random.get_rng_state()
    assert ask(greedy=True) == ask(greedy=True) and ask() != ask()
    assert (torch.random.get_rng_state() == before).all()


@pytest.mark.parametrize("past", [1, 2, 5])
def test_the_past_of_a_young_episode_is_its_first_observation(past):
    """So it is in lerobot's own queues; anything else was never trained on."""
    inputs = LeRobotInputs(past, {"observation.state": 2}, {})
    turns = [(shown([i, 0]), None) for i in range(3)]
    for taken in range(4):
        seen = [int(each.state[0]) for each in inputs.select_observations(episode(*turns[:taken]), shown([taken, 0]))]
        assert seen == [max(0, taken - past + 1 + i) for i in range(past)]


def test_pictures_go_to_the_cameras_in_order():
    """Swapped cameras are the error nobody sees."""
    inputs = LeRobotInputs(
        1, {"observation.state": 2}, {"observation.images.b": (4, 3), "observation.images.a": (4, 3)}
    )
    red, blue = Image.new("RGB", (4, 3), (255, 0, 0)), Image.new("RGB", (4, 3), (0, 0, 51))
    batch = inputs.batch([[shown([1, 2], (red, blue))]] * 2)
    assert batch["observation.images.b"].shape == (2, 3, 3, 4) and batch["observation.state"].shape == (2, 2)
    assert batch["observation.images.b"][0, :, 0, 0].tolist() == [1, 0, 0]
    assert batch["observation.images.a"][0, :, 0, 0].tolist() == pytest.approx([0, 0, 0.2])
    assert batch["task"] == ["Push the cube."] * 2


@pytest.mark.parametrize(
    ("state", "sizes", "told"),
    [
        ([1], [(4, 3)], "shows a state of 1 numbers and 1 pictures"),
        ([1, 2], [], "shows a state of 2 numbers and 0 pictures"),
        ([1, 2], [(3, 4)], r"1 pictures \(3x4\)"),
    ],
)
def test_another_robot_is_one_line(state, sizes, told):
    """A policy that is shown what it was not made for drives the arm anywhere, or dies in a matrix product."""
    inputs = LeRobotInputs(1, {"observation.state": 2}, {"observation.images.a": (4, 3)})
    with pytest.raises(UserError, match=r"made for a state of 2 numbers and 1 pictures \(4x3\), but .*" + told):
        inputs.batch([[shown(state, [Image.new("RGB", size) for size in sizes])]])


@pytest.mark.parametrize(
    ("config", "steps", "told"),
    [
        ({"type": "groot"}, (STEP,), "lerobot's 'groot'; supported are act"),
        ({"use_peft": True}, (STEP,), "is an adapter"),
        ({"temporal_ensemble_coeff": 0.01}, (STEP,), "temporal_ensemble_coeff to null"),
        ({}, ({"class": "subprocess.Popen", "config": {"args": ["true"]}},), "asks for the step 'subprocess.Popen'"),
        ({}, ({"registry_name": "action_tokenizer_processor"},), "asks for the step 'action_tokenizer_processor'"),
        ({}, ({"registry_name": ["x"]},), r"asks for the step \['x'\]"),
        ({}, ("subprocess.Popen",), "asks for the step 'subprocess.Popen'"),
    ],
)
def test_what_could_run_code_is_refused_before_lerobot_sees_it(config, steps, told, tmp_path):
    """lerobot 0.6.1 calls any class that a downloaded checkpoint names, with arguments of the checkpoint's choice."""
    with pytest.raises(UserError, match=told):
        read_lerobot(folder(tmp_path / "model", config, steps), "cpu")


def test_what_is_no_checkpoint_is_one_line(tmp_path):
    """The name of the file that is missing is what the user needs."""
    source = folder(tmp_path / "model")
    (tmp_path / "model" / PROCESSORS[1]).unlink()
    with pytest.raises(UserError, match="cannot read policy_postprocessor"):
        check_files(source)


def test_a_name_that_is_nowhere_is_one_line(monkeypatch):
    """A mistyped path is looked for on the hub, whose errors are a screen long."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, problem in (("nobody/has_this_policy", ": .*no copy in the cache"), ("no/such/folder", "")):
        with pytest.raises(UserError, match=name + problem) as caught:
            read_lerobot(name, "cpu")
        assert "\n" not in str(caught.value)


def test_a_run_folder_stands_for_its_last_checkpoint(tmp_path):
    """Users name the folder they trained into."""
    last = tmp_path / "checkpoints" / "last" / "pretrained_model"
    last.mkdir(parents=True)
    assert checkpoint(str(tmp_path)) == str(last) and checkpoint(str(last)) == str(last)


def test_without_lerobot_it_says_how_to_get_it(tmp_path, monkeypatch):
    """The extra is optional; a traceback of an import would not say so."""
    monkeypatch.setitem(sys.modules, "lerobot.configs.policies", None)
    with pytest.raises(UserError, match=r"pip install 'vlrl\[robot\]'"):
        read_lerobot(folder(tmp_path / "model"), "cpu")


def test_training_it_is_refused_before_anything_is_written():
    """There are no likelihoods to train by, and NaN would come out hours later."""
    policy, _ = counting(past=1, steps=3)
    calls = (
        lambda: policy.check(Sample("0", Observation(()))),
        lambda: policy.evaluate([]),
        lambda: policy.reference([]),
    )
    for call in calls:
        with pytest.raises(UserError, match="cannot be trained by likelihood"):
            call()


def saved(path, kind, **settings):
    """A tiny policy of lerobot with weights by chance, and statistics, saved as `lerobot-train` saves it."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    torch.manual_seed(0)
    state, picture = PolicyFeature(FeatureType.STATE, (4,)), PolicyFeature(FeatureType.VISUAL, (3, 64, 64))
    config = make_policy_config(
        kind, device="cpu", push_to_hub=False, pretrained_backbone_weights=None,
        input_features={"observation.state": state, "observation.images.camera1": picture},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))}, **settings,
    )  # fmt: skip
    numbers = lambda n: {"mean": torch.arange(n) + 1.0, "std": torch.full((n,), 2.0),  # noqa: E731
                         "min": -torch.arange(n) - 1.0, "max": torch.arange(n) + 5.0}  # fmt: skip
    pixels = {name: torch.full((3, 1, 1), value) for name, value in
              {"mean": 0.4, "std": 0.2, "min": 0.0, "max": 1.0}.items()}  # fmt: skip
    stats = {"observation.state": numbers(4), "action": numbers(3), "observation.images.camera1": pixels}
    model = get_policy_class(kind)(config)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for each in (model, before, after):
        each.save_pretrained(path)
    return model.eval(), before, after


def observations(count):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, 64, 64, 3), dtype=np.uint8)
    return [shown(rng.normal(size=4), (Image.fromarray(image),)) for image in images]


def asked_in_lerobot(model, before, after, seen):
    """What lerobot's own loop sends for one observation."""
    frame = {
        "observation.state": torch.from_numpy(seen.state),
        "observation.images.camera1": torch.from_numpy(np.array(seen.images[0])).permute(2, 0, 1) / 255,
        "task": seen.text,
    }
    return after(model.select_action(before(frame))).numpy()[0]


@needs_lerobot
def test_act_acts_as_in_lerobot(tmp_path):
    """Success rates measured here would say nothing about the policy that users deploy with lerobot."""
    sizes = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    theirs = saved(tmp_path, "act", chunk_size=6, n_action_steps=4, **sizes)
    policy, seen = LerobotPolicy(*read_lerobot(str(tmp_path), "cpu")), observations(3)
    decisions = policy.act([episode()] * 3, seen, greedy=True)
    for one, decision in zip(seen, decisions, strict=True):
        theirs[0].reset()
        wanted = np.stack([asked_in_lerobot(*theirs, one) for _ in range(4)])
        assert decision.action.shape == (4, 3) and np.allclose(decision.action, wanted, atol=1e-5)
    with pytest.raises(UserError, match="64x64"):
        policy.act([episode()], [shown(np.zeros(4), (Image.new("RGB", (32, 32)),))])


@needs_lerobot
@needs_diffusers
def test_diffusion_acts_as_in_lerobot(tmp_path):
    """It remembers: a wrong past, or a plan that is dropped, shows in no shape and in every result."""
    theirs = saved(
        tmp_path, "diffusion", n_obs_steps=2, horizon=8, n_action_steps=3, down_dims=(16, 32), num_train_timesteps=4,
        crop_ratio=1.0, spatial_softmax_num_keypoints=4, diffusion_step_embed_dim=16,
    )  # fmt: skip
    policy, played = LerobotPolicy(*read_lerobot(str(tmp_path), "cpu")), episode()
    for tick, seen in enumerate(observations(5)):
        (decision,) = policy.act([played], [seen], greedy=True)
        torch.manual_seed(tick)  # as the policy seeds its noise when it plans at this tick
        wanted = asked_in_lerobot(*theirs, seen)
        assert decision.action.shape == (1, 3) and np.allclose(decision.action[0], wanted, atol=1e-4)
        played.turns.append(Turn(seen, decision, Step(seen)))


@needs_lerobot
def test_damaged_weights_are_one_line(tmp_path):
    """A policy with half its weights by chance would be evaluated as if it were whole."""
    from safetensors.torch import load_file, save_file

    sizes = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "use_vae": False}
    saved(tmp_path, "act", chunk_size=6, n_action_steps=4, **sizes)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="lerobot cannot load"):
        read_lerobot(str(tmp_path), "cpu")
