"""Off-policy learning from images: what is stored, how they are shifted, which loss trains the encoder, frozen ones."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image
from small_batches import about, batch
from torch.nn import functional

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import rlpd
from vlrl.offpolicy.base import AgentView, EncoderSettings, ReplayBuffer, Transitions, windows
from vlrl.offpolicy.config import load as load_config
from vlrl.offpolicy.learner import Acting, OffPolicyLearner, transitions_of
from vlrl.offpolicy.networks import shift_randomly
from vlrl.policies.encoded import EncodedPolicy, VisionModel
from vlrl.policies.loading import load
from vlrl.policies.robot_common import ActorPolicy, ActorShape, Eyes, image_bytes, pixels
from vlrl.rollout import collect
from vlrl.serving.policies import servable
from vlrl.types import Episode, Observation, Sample, UserError

CAMERAS = ((8, 6), (4, 4))
SIZE = image_bytes(CAMERAS)
CONFIG = """
task: {name: "image_line:ImageLine", scenes: 8}
out: run
agent: {name: rlpd, hidden: 8, layers: 1}
encoder: {features: 4, shift: 1}
offline: [{name: demonstrations, episodes: 2}]
ticks: 120
warmup_steps: 24
batch_size: 4
capacity: 50
eval: {num_samples: 2}
log: {rollouts_every: 1000, checkpoint_every: 60}
"""
EPISODE = Episode(Sample("", Observation(())), 0)


def seen(count: int, seed: int = 0, cameras=CAMERAS, state: int = 3) -> list[Observation]:
    """Random observations."""
    rng = np.random.default_rng(seed)
    return [
        Observation(
            (*(Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in cameras), "go"),
            rng.standard_normal(state).astype(np.float32),
        )
        for _ in range(count)
    ]


def imaged(count: int = 8, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed + 100)
    images = rng.integers(0, 256, (2, count, SIZE), np.uint8)
    return Transitions(**batch(count, seed).columns() | {"images": images[0], "next_images": images[1]})


def looking(**options):
    """An agent that learns to see."""
    return rlpd(about(encoder=EncoderSettings(CAMERAS, 4, 2)), 0, hidden=8, layers=1, **options)


def test_bytes_and_views_are_the_same_pixels():
    """With rows, colours or cameras mixed up, what is learned from would not be what is acted on."""
    shown = seen(3)
    views = Eyes(CAMERAS, 4).split(torch.from_numpy(pixels(shown, CAMERAS, "encoder")))
    assert [tuple(view.shape) for view in views] == [(3, 6, 8, 3), (3, 4, 4, 3)]
    for number, view in enumerate(views):
        expected = np.stack([np.asarray(each.images[number]) for each in shown])
        assert (view.numpy() == expected).all()
    with pytest.raises(UserError, match="encoder: made for images of 8x6, 4x4, but the robot shows 8x6"):
        pixels(seen(1, cameras=CAMERAS[:1]), CAMERAS, "encoder")


def test_a_shift_is_a_crop_of_the_image_with_its_edge_repeated():
    """DrQ pads by repetition and crops: against torch's own padding, for every image its own shift, all of them."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (200, 5, 7, 3), np.uint8))
    moved, found = shift_randomly(images, 2, torch.Generator().manual_seed(0)), set()
    padded = functional.pad(images.permute(0, 3, 1, 2).float(), (2, 2, 2, 2), mode="replicate")
    for image, pad in zip(moved.permute(0, 3, 1, 2).float(), padded, strict=True):
        places = [(y, x) for y in range(5) for x in range(5) if torch.equal(pad[:, y : y + 5, x : x + 7], image)]
        assert places
        found.add(places[0])
    assert len(found) == 25 and torch.equal(shift_randomly(images, 0, torch.Generator()), images)


def test_images_go_with_their_rows():
    """A chunk's images would be those of another moment, in windows, in the ring and in its file."""
    images = np.arange(6)[:, None].repeat(2, 1).astype(np.uint8)
    rows = windows(np.arange(6.0)[:, None], np.zeros((5, 1)), 2, won=True, ended=True, images=images)
    assert (rows.images[:, 0] == rows.state[:, 0]).all() and (rows.next_images[:, 0] == rows.next_state[:, 0]).all()
    kept = ReplayBuffer(3)
    kept.add(rows)
    drawn = kept.sample(50, np.random.default_rng(0))
    assert drawn.images.dtype == np.uint8 and (drawn.images[:, 0] == drawn.state[:, 0]).all()
    assert set(drawn.next_images[:, 1]) == {4, 5}


def test_a_replay_with_images_is_kept_whole(tmp_path):
    """A resumed run would learn from black images."""
    kept, again = ReplayBuffer(5), ReplayBuffer(5)
    kept.add(imaged(8))
    kept.save(tmp_path / "replay.npz")
    again.load(tmp_path / "replay.npz")
    for name, column in kept.all().columns().items():
        assert (again.all().columns()[name] == column).all()


def test_only_the_values_train_the_encoder():
    """The actor's loss spoils what critics see (SAC-AE, DrQ): a step of the actor moves the trunk, not the eyes."""
    agent = looking(cta_ratio=2)
    sac, model = agent._sac, agent._sac.policy.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    agent.update(imaged(), None)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("eyes."))
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("eyes."))
    found, taught = imaged(seed=1), [each.detach() for each in sac.features(imaged(seed=1).images)]
    eyes = [value.clone() for value in model.eyes.parameters()]
    sac._improve(found, [sac.scale.state(found.state), *taught], slice(8, None), torch.zeros(0, 4), torch.zeros(0))
    assert all(torch.equal(one, other) for one, other in zip(eyes, model.eyes.parameters(), strict=True))
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])


def test_targets_see_the_next_images():
    """Values would follow from the image before the action."""
    sac = looking()._sac
    one = imaged()
    other = Transitions(**one.columns() | {"next_images": 255 - one.next_images})
    same = Transitions(**one.columns() | {"images": 255 - one.images})
    state = sac.generator.get_state()
    values = []
    for rows in (one, other, same):
        sac.generator.set_state(state)
        values.append(sac.targets(rows))
    live = torch.from_numpy(~one.terminal)
    assert not torch.allclose(values[0][live], values[1][live]) and torch.equal(values[0], values[2])


def test_it_learns_what_only_the_image_shows():
    """A bandit whose right control is the image's brightness: without eyes the best is the middle."""
    rng = np.random.default_rng(0)
    settings = EncoderSettings(((8, 8),), 8, 1)
    agent = rlpd(about(encoder=settings, gamma=0.0), 0, hidden=32, lr=3e-3, cta_ratio=1, target_entropy=-3.0)
    bright = rng.integers(0, 2, 400)
    images = np.repeat((40 + 160 * bright)[:, None], 192, 1).astype(np.uint8)
    rows = batch(400).columns()
    rows |= {"state": np.zeros((400, 3)), "next_state": np.zeros((400, 3)), "terminal": np.ones(400, bool)}
    rows |= {
        "reward": -np.abs(rows["action"][:, 0, 0] / 0.4 - (2 * bright - 1)),
        "images": images,
        "next_images": images,
    }
    given = Transitions(**rows)
    for _ in range(150):
        agent.update(given.take(rng.integers(400, size=64)), None)
    dark, light = (
        agent.act(np.zeros((1, 3), np.float32), False, [Observation((Image.new("RGB", (8, 8), (value,) * 3),))])
        for value in (40, 200)
    )
    assert dark[0, 0, 0] < -0.2 and light[0, 0, 0] > 0.2


def test_the_saved_policy_sees_and_is_served(tmp_path):
    """Encoder and actor are one folder: the same chunks after loading, and a server that says which images it needs."""
    agent, shown = looking(), seen(3)
    agent.save(tmp_path / "policy")
    policy = load(PolicySection(model=str(tmp_path / "policy")))
    assert isinstance(policy, ActorPolicy) and policy.shape.cameras == CAMERAS
    states = np.stack([each.state for each in shown])
    made = [decision.action for decision in policy.act([EPISODE] * 3, shown, greedy=True)]
    np.testing.assert_array_equal(np.stack(made), agent.act(states, False, shown))
    assert [(each.width, each.height) for each in servable(str(tmp_path / "policy")).spec.pictures] == list(CAMERAS)
    with pytest.raises(UserError, match=r"policy.model: made for images of 8x6, 4x4, but the robot shows no camera"):
        policy.act([EPISODE], [Observation((), states[0])])


def vision(folder, size: int = 16) -> str:
    """A tiny DINOv2 with weights by chance."""
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": size, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    Dinov2Model(Dinov2Config(**sizes)).save_pretrained(folder)
    side = {"height": 28, "width": 28}
    BitImageProcessor(size={"shortest_edge": 28}, crop_size=side).save_pretrained(folder)
    return str(folder)


def test_a_frozen_model_stands_behind_the_state(tmp_path):
    """Its numbers are the same in batches and alone, and after saving; agents then need no eyes of their own."""
    encoder, shown = VisionModel(vision(tmp_path / "dino"), CAMERAS), seen(3)
    states, images = AgentView(encoder=encoder)(shown)
    assert states.shape == (3, 3 + 2 * 16) and images.shape == (3, 0) and encoder.size == 32
    np.testing.assert_allclose(np.concatenate([encoder([each]) for each in shown]), states[:, 3:], atol=1e-5)
    wide = about(state=35, mean=np.zeros(35, np.float32), spread=np.ones(35, np.float32))
    agent = rlpd(wide, 0, hidden=8)
    robot = ActorShape(3, wide.controls, tuple(wide.low.tolist()), tuple(wide.high.tolist()), chunk=2, cameras=CAMERAS)
    EncodedPolicy.save(tmp_path / "policy", encoder, agent.save, robot)
    policy = load(PolicySection(model=str(tmp_path / "policy")))
    assert policy.shape.state == 3 and policy.shape.cameras == CAMERAS
    made = np.stack([decision.action for decision in policy.act([EPISODE] * 3, shown, greedy=True)])
    np.testing.assert_allclose(made, agent.act(states, False), atol=1e-6)
    assert len(servable(str(tmp_path / "policy")).spec.state) == 3
    with pytest.raises(UserError, match=r"cannot be trained|no probabilities"):
        policy.check(Sample("", Observation(())))


def test_what_a_person_did_keeps_its_images(place):
    """HIL-SERL: an intervention is played and given, with what was seen."""
    learner = OffPolicyLearner(load_config(place / "line.yaml"))
    learner.setup()
    rows = Transitions(**imaged(4).columns() | {"person": np.array([True, False, False, True])})
    learner.remember(rows, np.zeros(4, bool))
    assert len(learner.online) == 4 and (learner.offline.all().images == rows.images[[0, 3]]).all()


def test_a_run_from_images_plays_saves_and_resumes_the_same(place, monkeypatch):
    """The whole command: the images of what is played and given, checkpoints, and the same end after a kill."""
    assert main(["offpolicy", "line.yaml"]) == 0
    steps = sorted((place / "run" / "checkpoints").glob("step_*"))
    with np.load(steps[-1] / "online.npz") as replay:
        assert replay["images"].shape[1] == 3 * 8 * 8 and replay["images"].any()
        same = (replay["images"][1:] == replay["next_images"][:-1]).all(1)
        assert same[~replay["terminal"][:-1]].mean() > 0.5
    with np.load(steps[-1] / "offline.npz") as replay:
        assert replay["images"].any() and (replay["images"].mean(1) > 0).all()
    monkeypatch.setenv("LINE_STOPS", "SIGTERM:10")
    assert main(["offpolicy", "line.yaml", "out=part"]) == 130
    monkeypatch.delenv("LINE_STOPS")
    assert main(["offpolicy", "--resume", "part"]) == 0
    last = sorted((place / "part" / "checkpoints").glob("step_*"))[-1]
    assert (last / "model.safetensors").read_bytes() == (steps[-1] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["agent={name: iql}"], r"agent \(iql\) learns none"),
        (["encoder.frozen=true"], "conv begins from nothing"),
        (["encoder.name=some/model"], "is not learned further: set frozen: true"),
        (["capacity=50000", "encoder.memory_gb=0.001"], "are 0.0 GB: set capacity to 2604, or allow it"),
        (["encoder={name: nowhere, frozen: true}"], "encoder.name: no vision model 'nowhere'"),
        (["task={name: 'line_task:LineTask'}"], "this robot shows no image"),
        (["agent.init=trunk"], "agent.init: a trunk of `vlrl pretrain` sees the state alone"),
    ],
)
def test_what_cannot_be_is_one_line(place, capsys, changes, problem):
    """Found after hours of play, or as a shape error in a network, it would cost a day."""
    assert main(["offpolicy", "line.yaml", *changes]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(problem, error), error


def test_what_was_seen_is_not_encoded_twice(place):
    """A frozen model's pass costs more than a step of the simulator."""
    from image_line import ImageLine

    calls = []

    class Counting:
        size = 1

        def __call__(self, observations):
            calls.append(len(observations))
            return np.ones((len(observations), 1), np.float32)

    view, task = AgentView(encoder=Counting()), ImageLine(ticks=6)
    policy = Acting(lambda state, explore: np.zeros((len(state), 3, 1), np.float32), view)
    episodes = collect(policy, task, [task.samples("train")[0]], 1)
    rows = transitions_of(episodes, view)
    assert rows.state.shape == (len(episodes[0].turns), 3) and sum(calls) == len(episodes[0].turns) + 1
