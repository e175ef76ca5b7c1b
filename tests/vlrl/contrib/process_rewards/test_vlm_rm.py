"""VLM-RM: the released formula by hand, and a tiny CLIP that is made here."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.cli import main
from vlrl.contrib.process_rewards.visual import VLMRM, projected
from vlrl.types import UserError

ROOT = Path(__file__).parents[4]


def test_the_formula_by_hand():
    """The reward would be another than the paper's.

    g = (1, 0), b = (0, 1): d = (1, -1), d d^T / |d|^2 = [[.5, -.5], [-.5, .5]]. x = (0.6, 0.8): x - g = (-0.4, 0.8).
    alpha 0:  1 - (0.16 + 0.64) / 2 = 0.6, the cosine
    alpha 1:  P (x - g) = (-0.6, 0.6): 1 - 0.72 / 2 = 0.64
    alpha .5: P = [[.75, -.25], [-.25, .75]]: P (x - g) = (-0.5, 0.7): 1 - 0.74 / 2 = 0.63
    """
    x, goal, baseline = torch.tensor([[0.6, 0.8]]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    for alpha, expected in ((0.0, 0.6), (1.0, 0.64), (0.5, 0.63)):
        assert projected(x, goal, baseline, alpha).item() == pytest.approx(expected, abs=1e-6)


def test_the_goal_itself_earns_1_and_what_lies_off_the_line_is_left_out():
    """Pictures of the goal with another background would be worth less than the baseline's."""
    goal, baseline = torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0])
    assert projected(goal[None], goal, baseline, 0.7).item() == pytest.approx(1)
    off = torch.tensor([[sqrt(0.5), 0, sqrt(0.5)], [sqrt(0.5), 0, -sqrt(0.5)]])
    one, other = projected(off, goal, baseline, 1.0).tolist()
    assert one == other and one > projected(off[:1], goal, baseline, 0.0).item()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_it_is_the_released_matrix(alpha):
    """The shorter way to compute it would differ from the released one, which multiplies by the matrix."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(5, 7, generator=generator, dtype=torch.float64), dim=1)
    goal, baseline = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    line = (goal - baseline)[None]
    matrix = alpha * line.T @ line / line.norm() ** 2 + (1 - alpha) * torch.eye(7, dtype=torch.float64)
    expected = 1 - ((x - goal) @ matrix).norm(dim=1) ** 2 / 2
    torch.testing.assert_close(projected(x, goal, baseline, alpha), expected, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    """A CLIP of random weights that reads letters and sees 16 x 16 pixels."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    last = len(words) - 1
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = size | {"vocab_size": last + 1, "max_position_embeddings": 32, "bos_token_id": last - 1}
    text |= {"eos_token_id": last, "pad_token_id": last}
    config = CLIPConfig(text_config=text, vision_config=size | {"image_size": 16, "patch_size": 8}, projection_dim=8)
    folder = tmp_path_factory.mktemp("clip")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    seeing = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    reading = CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    CLIPProcessor(image_processor=seeing, tokenizer=reading).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def episodes(played) -> list:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)) for _ in range(7)]
    return [played(None, True, images=pictures[:3]), played(None, False, images=pictures[3:])]


TOLD = {"goal": ["a cube on a disc", "cube at goal"], "baseline": ["a table"]}


def test_steps_earn_what_their_pictures_are_worth(clip, episodes):
    """A step would be paid for the picture before it; or the means would be taken otherwise than released."""
    from transformers import AutoModel, AutoProcessor

    made = VLMRM(None, None, 0, model=clip, **TOLD, coef=2.0, batch=2)(episodes, 0)
    model, processor = AutoModel.from_pretrained(clip).eval(), AutoProcessor.from_pretrained(clip)

    def unit(vectors):
        return vectors / vectors.norm(dim=1, keepdim=True)

    with torch.no_grad():  # one at a time: padding and batches must not matter
        goal, baseline = (
            torch.cat([unit(model.get_text_features(**processor(text=[t], return_tensors="pt")).pooler_output)
                       for t in TOLD[name]]).mean(0)
            for name in ("goal", "baseline")
        )  # fmt: skip
        shown = [turn.step.observation.images[0] for e in episodes for turn in e.turns]
        x = unit(model.get_image_features(**processor(images=shown, return_tensors="pt")).pooler_output)
    assert goal.norm() < 0.9999  # the mean of two is not brought back to length 1
    expected = 2 * projected(x, goal, baseline, 0.5)
    assert [turn.process_reward for e in made for turn in e.turns] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_potential_telescopes(clip, episodes):
    """A picture that is worth much would be worth it once more at every step that stays there."""
    how = {"model": clip, **TOLD}
    value = VLMRM(None, None, 0, **how)(episodes, 0)
    gain = VLMRM(None, None, 0, **how, form="potential")(episodes, 0)
    for plain, moved in zip(value, gain, strict=True):
        later = sum(turn.process_reward for turn in moved.turns[1:])
        assert later == pytest.approx(plain.turns[-1].process_reward - plain.turns[0].process_reward, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"goal": ["a cube"], "baseline": ["a cube"]}, "goal and baseline mean the same"),
     ({"model": str(ROOT / "vlrl/assets/tiny"), **TOLD}, "is no model of texts and pictures")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(clip, options, problem):
    """A traceback, or hours with a reward of no meaning."""
    with pytest.raises(UserError, match=problem):
        VLMRM(None, None, 0, **{"model": clip} | options)


def test_a_model_that_is_nowhere_is_refused_before_anything_is_loaded(tmp_path, capsys):
    """A user would wait for the policy, the simulators and most of a minute of retries to hear of a missing folder."""
    out, recipe = tmp_path / "run", ROOT / "configs" / "recipes" / "vlm_rm.yaml"
    own = "process_rewards=[{name: vlm_rm, model: nobody/nothing, goal: [done], baseline: [begun]}]"
    assert main(["train", str(recipe), own, f"out={out}"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("vlrl: nobody/nothing: ") and "no copy in the cache" in said[-1]
    assert not out.exists()


def test_a_robot_without_a_camera_is_told_so(clip, played):
    """A traceback at the first step."""
    with pytest.raises(UserError, match="give the robot a camera"):
        VLMRM(None, None, 0, model=clip, **TOLD)([played([[0], [1]], True)], 0)


def test_the_recipe_trains(clip, tmp_path):
    """A robot's camera, a language model that moves it and CLIP would not fit together."""
    own = f"process_rewards=[{{name: vlm_rm, model: {clip}, goal: [done], baseline: [begun], form: potential}}]"
    small = [
        "train.steps=2",
        "train.prompts_per_step=2",
        "train.group_size=2",
        "train.num_minibatches=1",
        "task.workers=2",
    ]
    less = ["task.scenes=2", "task.held_out=2", "eval.num_samples=2", "log.trackers=[]", "task.horizon=16"]
    recipe, out = str(ROOT / "configs" / "recipes" / "vlm_rm.yaml"), tmp_path / "run"
    assert main(["train", recipe, own, *small, *less, f"out={out}"]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if -1 < row.get("vlm_rm/reward", -9) <= 1]) == 2
