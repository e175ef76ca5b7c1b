"""Policies behind a server: each kind gives over the wire what it gives in training, and says what it is."""

import argparse
import importlib.util
import json
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from robot.serving.client import Client
from vlrl import config as configs
from vlrl import registry
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.policies.lerobot import LerobotPolicy
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.serving import policies
from vlrl.serving.policies import Lerobot, ReloadingPolicy, servable, state_of
from vlrl.serving.protocol import Feature, Picture, PolicyRequest
from vlrl.serving.server import running
from vlrl.types import Episode, Observation, Sample, UserError

TOLD = {"names": ("hand x", "hand y"), "units": ("m/s",), "hz": 20.0}


def saved(folder, seed=0, **told):
    """A small policy with weights by chance."""
    torch.manual_seed(seed)
    shape = DiscreteShape(2, ("x",), (-1.0,), (1.0,), chunk=3, hidden=8, layers=1, **told)
    network = Network(shape)
    torch.nn.init.normal_(network.head.weight)
    ControlPolicy(network).save(folder)
    return folder


def asked(state=(0.1, 0.2), images=None, task="go", **other):
    return PolicyRequest("", 0, task, np.asarray(state, np.float32), images or {}, **other)


def acted(policy, shown):
    """What the policy does greedily at an episode's start."""
    return policy.act([Episode(Sample("0", Observation(())), 0)], [shown], greedy=True)[0].action


def test_a_small_policy_says_what_it_is(tmp_path):
    """The robot compares names, units and the rate; what a clone learned of its robot must not be lost on the way."""
    policy = servable(str(saved(tmp_path / "push", **TOLD)))
    assert policy.name == "push" and len(policy.version) == 16
    assert policy.spec.state == (Feature("hand x"), Feature("hand y"))
    assert (policy.spec.action, policy.spec.hz, policy.spec.chunk) == ((Feature("x", "m/s", -1.0, 1.0),), 20.0, 3)


def test_a_folder_from_before_names_were_kept_is_served(tmp_path):
    """Policies that users have trained already."""
    folder = saved(tmp_path)
    about = json.loads((folder / "config.json").read_text())
    for name in ("names", "units", "pictures", "hz"):
        del about[name]
    (folder / "config.json").write_text(json.dumps(about))
    policy = servable(str(folder))
    assert policy.spec.state == (Feature(), Feature()) and policy.spec.hz == 0
    assert servable(str(folder), hz=12.0).spec.hz == 12


def test_names_that_are_not_as_many_are_one_line(tmp_path):
    """A config.json mended by hand."""
    folder = saved(tmp_path)
    about = json.loads((folder / "config.json").read_text()) | {"names": ["a"]}
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="describes no policy for robots"):
        servable(str(folder))


def test_what_it_gives_over_the_wire_is_what_it_gives(tmp_path):
    """Success in simulation would say nothing about the robot."""
    states = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    policy = load(configs.PolicySection(model=str(saved(tmp_path, **TOLD))))
    with running(servable(str(tmp_path))) as url, Client(url) as client:
        for state in states:
            client.ask(asked(state))
            (answer,) = client.answers(20)
            assert (answer.actions == acted(policy, Observation(("go",), state))).all()


def test_a_bundled_policy_learns_its_names_from_a_task(tmp_path):
    """`embedded_push` was made before they were kept."""
    config = load_config("configs/manipulation.yaml")
    policy = servable("embedded_push", config)
    assert policy.spec.hz == 20 and len(policy.spec.state) == 12
    first = policy.spec.action[0]
    assert (first.name, first.unit, policy.spec.state[0].name) == ("x", "m/s", "hand x")


def test_a_task_for_another_robot_is_refused(tmp_path):
    """Its units would be another's."""
    with pytest.raises(UserError, match=r"policy.model: it gives x; the robot takes x, y, z"):
        servable(str(saved(tmp_path)), load_config("configs/manipulation.yaml"))


def test_a_language_model_speaks_its_actions():
    """A VLA trained with words must drive by numbers."""
    config = load_config("configs/manipulation_vla.yaml")
    task = registry.make_task(config)
    scene = task.samples("test")[0]
    environment, bare = task.environment(scene), task.pool.environment(scene.answer, ticks=1)
    try:
        seen, instruction = environment.reset(), bare.reset().text
        *_, said = seen.content
        policy = servable("embedded_touch", config)
        words = acted(load(configs.PolicySection(model="embedded_touch", max_tokens=8)), seen)
        images = {"camera": np.array(seen.images[0])}
        (chunk,) = policy.infer([asked(seen.state, images, instruction)])
    finally:
        for each in (environment, bare, task):
            each.close()
    assert said.startswith(instruction) and said != instruction  # the state is told in words
    assert (chunk == task.understood(words)).all() and chunk.shape == (8, 3)
    assert policy.spec.pictures == (Picture("", 64, 64),) and policy.spec.hz == 20


def test_a_language_model_without_its_words_is_one_line():
    """It cannot know what its numbers mean."""
    with pytest.raises(UserError, match="needs a task that says the words of its actions: --config"):
        servable("embedded_touch")


def test_words_that_are_no_action_are_a_failure():
    """The robot must hold, not guess."""
    config = load_config("configs/manipulation_vla.yaml")
    policy = servable("embedded", config.model_copy(update={"policy": configs.PolicySection(max_tokens=4)}))
    with pytest.raises(UserError, match="said no action"):
        policy.infer([asked(np.zeros(len(policy.spec.state)), {"camera": np.zeros((64, 64, 3), np.uint8)})])


def test_newer_weights_take_over_between_two_inferences(tmp_path):
    """A learner's progress reaches the robot without a restart, and each chunk says whose it is."""
    run = tmp_path / "run"
    saved(run / "checkpoints" / "step_000001", 1, **TOLD)
    watched = ReloadingPolicy(lambda: servable(str(run)), lambda: state_of(str(run)), every=3600.0)
    with running(watched) as url, Client(url) as client:

        def answer():
            client.ask(asked())
            return client.answers(20)[0]

        first = answer()
        saved(run / "checkpoints" / "step_000002", 2, **TOLD)
        watched.look()
        second = answer()
        assert first.version != second.version == watched.version
        assert (second.actions == servable(str(run)).infer([asked()])[0]).all()
        saved(run / "checkpoints" / "step_000003", 3, **TOLD | {"hz": 10.0})
        watched.look()
        (run / "checkpoints" / "step_000004").mkdir()
        watched.look()
        assert answer().version == second.version  # another robot's, and half a checkpoint, are not taken
        saved(run / "checkpoints" / "step_000005", 5, **TOLD)
        watched.look()
        assert answer().version != second.version
    watched.close()


needs_lerobot = pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="needs lerobot")


@needs_lerobot
def test_a_policy_of_lerobot_is_served(tmp_path):
    """What `lerobot-train` makes; its cameras have names, its joints none."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    torch.manual_seed(0)
    config = make_policy_config(
        "act", device="cpu", push_to_hub=False, pretrained_backbone_weights=None, chunk_size=6, n_action_steps=4,
        dim_model=32, n_heads=2, dim_feedforward=32, n_encoder_layers=1, n_vae_encoder_layers=1,
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (4,)),
                        "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 64, 80))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))},
    )  # fmt: skip
    stats = {"observation.state": {"mean": torch.ones(4), "std": torch.ones(4)},
             "action": {"mean": torch.arange(3) + 1.0, "std": torch.full((3,), 2.0)},
             "observation.images.front": {"mean": torch.full((3, 1, 1), 0.4), "std": torch.full((3, 1, 1), 0.2)},
             }  # fmt: skip
    model = get_policy_class("act")(config)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for each in (model, before, after):
        each.save_pretrained(tmp_path)
    policy = servable(str(tmp_path), hz=30.0)
    assert policy.spec.pictures == (Picture("front", 64, 80),) and not policy.spec.rtc
    assert (len(policy.spec.state), len(policy.spec.action), policy.spec.chunk) == (4, 3, 4)
    picture = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    seen = [asked(np.full(4, k), {"front": picture}) for k in (0.0, 1.0)]
    alone = [policy.infer([each])[0] for each in seen]
    for one, other in zip(policy.infer(seen), alone, strict=True):
        assert one.shape == (4, 3) and np.allclose(one, other, atol=1e-5)
    shown = Observation((Image.fromarray(picture), "go"), np.ones(4, np.float32))
    offline = load(configs.PolicySection(model=str(tmp_path)))
    assert np.allclose(alone[1], acted(offline, shown), atol=1e-5)


class Flow(torch.nn.Module):
    """A flow policy as lerobot's SmolVLA is built, with lerobot's guidance: it carries noise towards 0.5."""

    def __init__(self):
        super().__init__()
        feature = SimpleNamespace(type=SimpleNamespace(name="STATE"), shape=(2,))
        self.config = SimpleNamespace(
            type="flow", n_obs_steps=1, n_action_steps=4, chunk_size=8, rtc_config=None,
            input_features={"observation.state": feature}, output_features={"action": feature},
        )  # fmt: skip
        self.weight, self.processor = torch.nn.Parameter(torch.ones(1)), None

    def supports_rtc(self):
        return True

    def init_rtc_processor(self):
        from lerobot.policies.rtc.modeling_rtc import RTCProcessor

        self.processor = RTCProcessor(self.config.rtc_config)

    def reset(self):
        pass

    def predict_action_chunk(self, batch, inference_delay=None, prev_chunk_left_over=None):
        at, steps = torch.randn(len(batch["observation.state"]), 8, 2), 20
        for step in range(steps):
            time_left = 1 - step / steps
            speed = self.processor.denoise_step(
                at, prev_chunk_left_over, inference_delay, time_left, lambda x: x - 0.5 * self.weight
            )
            at = at - speed / steps
        return at


@needs_lerobot
def test_real_time_chunking_keeps_to_what_is_being_carried_out():
    """Where two chunks meet the arm would jump: the prefix is in degrees, the network's numbers are not."""
    from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.processor import NormalizerProcessorStep

    torch.manual_seed(0)
    features = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    stats = {"action": {"mean": torch.tensor([10.0, -10.0]), "std": torch.tensor([4.0, 2.0])}}
    step = NormalizerProcessorStep(features, {FeatureType.ACTION: NormalizationMode.MEAN_STD}, stats=stats)

    class Before:
        steps = (step,)

        def __call__(self, batch):
            return batch

    def after(chunk):
        return chunk * stats["action"]["std"] + stats["action"]["mean"]

    policy = Lerobot("flow", "v", LerobotPolicy(Flow(), Before(), after), 30.0)
    assert policy.spec.rtc and policy.spec.chunk == 8
    (free,) = policy.infer([asked()])
    prefix = np.tile(np.float32([2.0, -14.0]), (6, 1))  # -2 as the network has it
    (joined,) = policy.infer([asked(prefix=prefix, delay=3)])
    away = np.abs(free - [2.0, -14.0])
    assert (np.abs(joined - [2.0, -14.0])[:3] < 0.2 * away[:3]).all()  # these will have been carried out by then
    assert (joined[6:] == free[6:]).all()  # and these are free
    both = policy.infer([asked(prefix=prefix, delay=3), asked(prefix=prefix + 4, delay=3)])
    assert np.abs(both[1][:3] - both[0][:3] - 4).max() < 2


def options(**given):
    names = ("policy", "config", "hz", "token_file", "new_token", "tls_cert", "tls_key", "max_clients", "max_batch")
    told = dict.fromkeys(names) | {"host": "127.0.0.1", "port": 0, "watch": False, "openpi_key": []}
    return argparse.Namespace(**(told | given))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "--policy: a folder"),
        ({"policy": "embedded_pull"}, "no embedded model 'embedded_pull'"),
        ({"policy": "embedded_push", "host": "0.0.0.0"}, "give --token-file"),
        ({"policy": "embedded_push", "openpi_key": ["state"]}, "--openpi-key state: write PART=KEY"),
        ({"policy": "embedded_push", "tls_cert": "x"}, "belong together"),
    ],
)
def test_mistakes_are_one_line(given, told):
    """Each before anything listens."""
    with pytest.raises(UserError, match=told):
        policies.main(options(**given))


def test_a_new_token_is_written_and_nothing_is_served(tmp_path, capsys):
    """It is made once and carried to the robots."""
    assert policies.main(options(new_token=str(tmp_path / "token"))) == 0
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600 and "a new token is in" in capsys.readouterr().out


def test_keys_of_openpi():
    """`--openpi-key state=joints+gripper --openpi-key front=cam`."""
    keys = policies.keys_of(["state=joints+gripper", "front=cam"])
    assert keys.state == ("joints", "gripper") and keys.picture("front") == "cam" and keys.task == "prompt"
    assert policies.keys_of([]).picture("front") == "observation/front"


def test_it_says_when_it_is_ready_and_ends_in_order(tmp_path, capsys):
    """A script that starts the robot waits for the line; a service manager stops it by SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = []

    def drive():
        try:
            with Client(f"ws://127.0.0.1:{port}", patience=30.0, silence=20.0) as client:
                client.ask(asked())
                told.extend(client.answers(20))
                os.kill(os.getpid(), signal.SIGTERM)
                while not client.lost:
                    time.sleep(0.01)
                told.append(client.lost)
        except UserError:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=drive)
    thread.start()
    assert policies.main(options(policy=str(saved(tmp_path, **TOLD)), port=port)) == 0
    thread.join()
    line = capsys.readouterr().out
    assert line.startswith(f"serving {tmp_path.name} ") and line.count("\n") == 1
    assert f"(2 numbers, 0 pictures -> 3 x 1 at 20 Hz) at ws://127.0.0.1:{port}" in line
    assert told[0].actions.shape == (3, 1) and told[1] == "closed by the server: the server stops"
