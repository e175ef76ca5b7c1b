"""What episodes showed, as vectors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.checkpoint import flatten, unflatten
from vlrl.contrib import encoders
from vlrl.contrib.encoders import VJEPA2, spread
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError


def episode(states=None, images=None) -> Episode:
    """Of as many steps as it showed states or pictures, but one."""
    length = len(states if states is not None else images)
    shown = [
        Observation((images[i],) if images else (), None if states is None else np.float32(states[i]))
        for i in range(length)
    ]
    decision = Decision("", torch.zeros(1), torch.zeros(1), False)
    turns = [Turn(shown[i], decision, Step(shown[i + 1])) for i in range(length - 1)]
    return Episode(Sample("a", Observation(())), 0, turns)


def pictures(rng: np.random.Generator, count: int) -> list[Image.Image]:
    return [Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)) for _ in range(count)]


def test_a_state_is_standardised_by_hand():
    """Metres would count more than radians, or noise more than both.

    States (0, 5) and (2, 5), then (4, 5): of the first episode mean (1, 5) and deviation (1, 0), which counts as 0.001;
    divided by sqrt(2) for two numbers. The second episode keeps the first one's mean and deviation.
    """
    encoder = encoders.make("classical", "x")
    (first,) = encoder.encode([episode([[0, 5], [2, 5]])])
    assert first == pytest.approx(np.array([[-1, 0], [1, 0]]) / 2**0.5)
    (second,) = encoder.encode([episode([[4, 5], [1, 5.002]])])
    assert second == pytest.approx(np.array([[3, 0], [0, 2]]) / 2**0.5, abs=1e-3)
    assert first.dtype == np.float32


def test_a_whole_episode_is_points_on_its_way():
    """A long episode would be compared with the beginning of a short one. Distances are means along the way."""
    encoder = encoders.make({"name": "classical", "points": 3}, "x")
    short, long = episode([[0.0], [1], [2]]), episode([[x / 2] for x in range(5)])
    far = episode([[0.0], [1], [5]])
    vectors = encoder.embed_episodes([short, long, far])
    assert vectors.shape == (3, 3) and vectors[0] == pytest.approx(vectors[1])
    moments = encoder.encode([short, far])
    mean = np.mean([np.square(a - b).sum() for a, b in zip(*moments, strict=True)])
    assert np.square(vectors[0] - vectors[2]).sum() == pytest.approx(mean, rel=1e-5)


def test_pictures_tell_a_thing_that_moved():
    """A robot that has only a camera would look as if nothing ever happened."""

    def at(x: int) -> Image.Image:
        image = np.full((24, 32, 3), 90, np.uint8)
        image[8:16, x : x + 8] = (250, 30, 30)
        return Image.fromarray(image)

    moved = episode(images=[at(0), at(8), at(16), at(24)])
    stayed, gone = episode(images=[at(0)] * 4), episode(images=[at(0), at(8), at(16), at(22)])
    whole = encoders.make("classical", "x").embed_episodes([moved, stayed, gone])
    assert np.linalg.norm(whole[0] - whole[2]) < 0.5 * np.linalg.norm(whole[0] - whole[1])


def test_state_and_pictures_count_alike():
    """Thousands of pixels would drown six joints."""
    rng = np.random.default_rng(0)
    both = [episode(rng.normal(size=(5, 3)), pictures(rng, 5)) for _ in range(4)]
    rows = np.concatenate(encoders.make("classical", "x").encode(both)).astype(np.float64)
    assert rows.shape == (20, 3 + 192 + 324 + 256)
    parts = np.split(np.square(rows).mean(0), [3, 195, 519])
    assert [part.sum() for part in parts] == pytest.approx([1, 1, 1, 1], rel=1e-3)


@pytest.mark.parametrize("pictured", [True, False])
def test_a_killed_run_encodes_as_before(pictured):
    """Vectors that are remembered would be compared with vectors on another scale."""
    rng = np.random.default_rng(0)
    first, second = ([episode(rng.normal(size=(4, 3)), pictures(rng, 4) if pictured else None)] for _ in range(2))
    whole, part = encoders.make("classical", "x"), encoders.make("classical", "x")
    part.load_state_dict(whole.state_dict())  # nothing was fitted yet
    whole.encode(first)
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))
    part.load_state_dict(unflatten(plain, tensors))
    assert (part.embed_episodes(second) == whole.embed_episodes(second)).all()


def test_a_state_reaches_the_disk(tmp_path):
    """A run without states, whose block is empty, could not be saved."""
    from vlrl import checkpoint

    encoder = encoders.make("classical", "x")
    encoder.encode([episode(images=pictures(np.random.default_rng(0), 3))])
    checkpoint.save(tmp_path / "step_000001", {"process": encoder.state_dict()}, lambda folder: None)
    back = checkpoint.load_state(tmp_path / "step_000001")["process"]
    assert [len(each) for each in back["mean"]] == [0, 192, 324, 256]


@pytest.mark.parametrize(
    ("episodes", "problem"),
    [([episode([[0], [1]]), episode([[0, 0], [1, 1]])], "not all show the same"),
     ([episode([[], []])], "neither a state nor a picture")],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(episodes, problem):
    """A traceback from inside numpy."""
    with pytest.raises(UserError, match=problem):
        encoders.make("classical", "x").encode(episodes)


def test_another_robot_in_mid_run_is_refused():
    """Numbers would be taken for others."""
    encoder = encoders.make("classical", "x")
    encoder.encode([episode([[0], [1]])])
    with pytest.raises(UserError, match="another state"):
        encoder.encode([episode([[0, 1], [1, 2]])])


def test_frames_are_taken_as_released():
    """Rewards could not be compared with SRPO's: evenly, rounded down; shorter episodes again from the beginning."""
    assert spread(10, 4).tolist() == [0, 3, 6, 9] and spread(8, 5).tolist() == [0, 1, 3, 5, 7]
    assert spread(3, 8).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.fixture(scope="module")
def vjepa(tmp_path_factory) -> str:
    """A V-JEPA 2 of random weights that sees 32 x 32 pixels."""
    from transformers import VJEPA2Config, VJEPA2Model, VJEPA2VideoProcessor

    sizes = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "num_pooler_layers": 1}
    guess = {"pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
    folder = tmp_path_factory.mktemp("vjepa")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        VJEPA2Model(VJEPA2Config(crop_size=32, frames_per_clip=6, **sizes, **guess)).save_pretrained(folder)
    VJEPA2VideoProcessor(crop_size=32).save_pretrained(folder)
    return str(folder)


def test_vjepa2_is_the_mean_over_all_tokens(vjepa):
    """Another pooling than SRPO's would have other neighbours."""
    from transformers import AutoVideoProcessor, VJEPA2Model

    rng = np.random.default_rng(0)
    played = [episode(images=pictures(rng, n)) for n in (9, 4, 6)]
    encoder = encoders.make({"name": "vjepa2", "model": vjepa, "frames": 6, "batch": 2}, "x")
    whole = encoder.embed_episodes(played)
    assert whole.shape == (3, 24) and whole.dtype == np.float32
    model, processor = VJEPA2Model.from_pretrained(vjepa).eval(), AutoVideoProcessor.from_pretrained(vjepa)
    shown = [played[1].turns[i].observation.images[0] for i in range(3)]
    shown += [played[1].turns[-1].step.observation.images[0]]
    cyclic = np.stack([np.asarray(shown[i]) for i in (0, 1, 2, 3, 0, 1)])
    with torch.no_grad():
        given = processor([cyclic], return_tensors="pt", do_sample_frames=False)
        tokens = model(**given, skip_predictor=True).last_hidden_state
    assert tokens.shape == (1, 3 * 2 * 2, 24)  # 6 frames in steps of 2, 32 pixels in patches of 16
    assert whole[1] == pytest.approx(tokens.mean(1)[0].numpy(), abs=1e-5)


def test_vjepa2_of_single_pictures(vjepa):
    """Progress along an episode needs a vector for each thing shown, equal for equal ones."""
    image = pictures(np.random.default_rng(0), 2)
    encoder = VJEPA2(model=vjepa, frames=6, batch=1)
    one, other = encoder.encode([episode(images=[image[0], image[1], image[0]]), episode(images=image)])
    assert one.shape == (3, 24) and other.shape == (2, 24)
    assert one[0] == pytest.approx(one[2], abs=1e-6) and one[1] == pytest.approx(other[1], abs=1e-5)
    assert np.abs(one[0] - one[1]).max() > 1e-3


def test_vjepa2_needs_pictures_and_weights(vjepa, tmp_path):
    """A traceback; or, worse, random weights in place of those that a folder does not have."""
    with pytest.raises(UserError, match=r"no picture 0 \(its option `image`\)"):
        VJEPA2(model=vjepa).embed_episodes([episode([[0], [1]])])
    with pytest.raises(UserError, match=r"nobody/nothing: .*no copy in the cache"):
        VJEPA2(model="nobody/nothing")
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 24}
    ViTModel(ViTConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"encoder vjepa2: .*{tmp_path}"):
        VJEPA2(model=str(tmp_path))


def test_grey_pictures_are_seen(vjepa):
    """A depth camera's picture has one channel."""
    image = pictures(np.random.default_rng(0), 3)
    grey = [each.convert("L") for each in image]
    played = episode(images=grey)
    assert VJEPA2(model=vjepa, frames=2).embed_episodes([played]).shape == (1, 24)
    assert encoders.make("classical", "x").embed_episodes([replace(played)]).shape == (1, 8 * 772)
