"""A small CLIP from rendered pictures: its loss by hand and by CLIP's own, and what it makes of a line that it sees."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vlrl import registry
from vlrl.cli import main
from vlrl.config import Component
from vlrl.contrib.preferences.labelling import pair_of
from vlrl.contrib.preferences.reward_model import build_contrast, contrastive_loss, label_distances
from vlrl.contrib.process_rewards.visual import VLMRM
from vlrl.offpolicy.config import ContrastSection
from vlrl.types import UserError

LINE = Path(__file__).parents[2] / "offpolicy"
OWN = '''
"""A user's own module: the point on the line and its goal, in a picture of 16 x 32 pixels."""
from dataclasses import replace

import numpy as np
from line_task import Line, LineTask
from PIL import Image
from vlrl.contrib.preferences.reward_model import model_load
from vlrl.contrib.process_rewards.visual import VLMRM
from vlrl.types import Step

GOAL, BASELINE = "the point is at its goal", "the point is far from its goal"

class SeenLine(Line):
    def __init__(self, seed, ticks, chunk):
        super().__init__(seed, ticks, chunk)
        self.place, self.goal = np.random.default_rng(seed).uniform(-0.9, 0.5), 0.6

    def reset(self):
        pixels = np.zeros((16, 32, 3), np.uint8)
        for number, place in enumerate((self.place, self.goal)):
            pixels[8 * number :, int(np.clip(16 + 11 * place, 0, 30)) :][:8, :2, number] = 255
        shown = super().reset()
        return replace(shown, content=(Image.fromarray(pixels), *shown.content))

class Seen(LineTask):
    line = SeenLine

class Staying(SeenLine):
    """No end but the time-out; success is to be within 0.15 m of the goal then, as the sentence says."""

    def __init__(self, seed, ticks, chunk, value, starts):
        super().__init__(seed, ticks, chunk)
        self.value, self.place = value, np.random.default_rng(seed).uniform(*starts)

    def step(self, action, frames=()):
        self.place = float(np.clip(self.place + 0.1 * np.clip(action[0, 0], -1, 1), -1.2, 1.2))
        self.left -= 1
        shown, near = self.reset(), abs(self.place - self.goal) <= 0.15
        info = {} if self.left else {"success" if near else "time_out": 1.0}
        return Step(shown, self.value(shown) if self.value else float(near), False, not self.left, info, 1.0)

class Paid(LineTask):
    """Each tick pays what a small CLIP, or a model of `vlrl preferences`, thinks of it; else 1 at the goal."""

    def __init__(self, *, clip: str | None = None, judged: str | None = None, ticks: int = 20, chunk: int = 1,
                 scenes: int = 100, starts: tuple[float, float] = (-0.9, 0.5)):
        super().__init__(ticks=ticks, chunk=chunk, scenes=scenes)
        self.starts = starts
        self.known, self.value = {}, self.look if clip else self.feel if judged else None
        if clip:
            self.values = VLMRM(None, None, 0, model=clip, goal=[GOAL], baseline=[BASELINE]).values
        if judged:
            self.model = model_load(judged)

    def line(self, seed, ticks, chunk):
        return Staying(seed, ticks, chunk, self.value, self.starts)

    def look(self, shown):
        key = shown.images[0].tobytes()  # 31 pictures: each is looked at once
        if key not in self.known:
            self.known[key] = float(self.values([shown])[0])
        return self.known[key]

    def feel(self, shown):
        return float(self.model.value([shown])[0])
'''
SENTENCES = [{"within": 0.15, "texts": ["the point is at its goal"]}, {"within": 9.0, "texts": ["the point is away"]}]
SMALL = {"what": ["place"], "where": ["goal"], "sentences": SENTENCES, "pixels": 32, "width": 32, "layers": 2}
CONFIG = """
task: {name: "own:Seen", scenes: 60, chunk: 1, ticks: 20}
out: made
offline: [{name: demonstrations, episodes: 60, noise: 0.8}]
updates: 200
batch_size: 32
lr: 2.0e-3
contrast:
  what: [place]
  where: [goal]
  pixels: 32
  width: 32
  layers: 2
  sentences:
    - {within: 0.15, texts: [the point is at its goal, it is there]}
    - {within: 0.4, texts: [the point is near its goal]}
    - {within: 9.0, texts: [the point is far from its goal]}
"""
BASELINE = "the point is far from its goal"
JUDGED = f"""
task: {{name: "own:Paid", scenes: 24, starts: [-0.9, 1.2]}}  # on both sides of the goal
out: judged
goal: the point is at its goal
judge: {{name: clip, model: made, baseline: [{BASELINE}]}}
offline: [{{name: demonstrations, episodes: 24, noise: 0.8}}]
pairs: 300
model: {{hidden: 32, steps: 600, batch: 32}}
"""
PAID = """
task: {name: "own:Paid"}
out: by_truth
agent: {name: rlpd, hidden: 64, lr: 1.0e-3, tau: 0.02}
ticks: 3000
warmup_steps: 400
utd: 0.5
batch_size: 64
gamma: 0.9
reward: {success: 0.0, shaped: 1.0}
eval: {num_samples: 100}
"""


def test_the_loss_by_hand():
    """A sentence that is right of two pictures would be a mistake for one of them, half of the time.

    Logits [[2, 0], [1, 3]], one label: rows: mean of (log(1 + e^-2) + 1, log(1 + e^-2) + 1) = 1.126928; columns
    (2, 1) and (0, 3): log(1 + e^-1) + 0.5 = 0.813262, log(1 + e^-3) + 1.5 = 1.548587; mean 1.180924.
    """
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    same = contrastive_loss(logits, torch.tensor([4, 4])).item()
    assert same == pytest.approx((1.126928 + 1.180924) / 2, abs=1e-6)


def test_it_is_clips_own_loss_where_no_sentence_comes_twice():
    """Another temperature or only one direction would be no CLIP."""
    model = build_contrast(ContrastSection(**SMALL), 0)
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(3)]
    texts = ["the cube", "a robot hand", "x"]
    inputs = model.processor(text=texts, images=pictures, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model.network(**inputs, return_loss=True).loss
        logits = model.compute_logits(model.embed_pictures(pictures), model.embed_texts(texts))
    torch.testing.assert_close(contrastive_loss(logits, torch.arange(3)), expected, rtol=0, atol=1e-5)


def test_limits_by_hand():
    """The last sentence is of all that lies beyond the others; a limit itself is still within."""
    assert label_distances(np.array([0.0, 0.1, 0.11, 0.5, 7.0]), [0.1, 0.5, 1.0]).tolist() == [0, 0, 1, 1, 2]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder in which the command has been run."""
    folder = tmp_path_factory.mktemp("contrast")
    (folder / "line.yaml").write_text(CONFIG)
    (folder / "own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(LINE))
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        assert main(["pretrain", "line.yaml"]) == 0
        yield folder
    for name in ("line_task", "own"):
        sys.modules.pop(name, None)


def test_it_tells_pictures_that_it_has_not_seen(made):
    """Held-out episodes: the right sentence, and a reward that rises on the way to the goal."""
    told = json.loads((made / "made" / "report.json").read_text())
    _, n, low, _ = told["accuracy"]
    assert low > told["chance"] and told["kendall"] > 0.6 and 20 < n < told["moments"]


def test_it_is_a_clip_of_transformers_and_a_reward(made):
    """A user's own CLIP takes the same way; a reward of other pictures than it was trained on would show here."""
    line = registry.find("task", "own:Seen")()
    reward = VLMRM(None, None, 0, model=str(made / "made"), goal=["the point is at its goal"], baseline=[BASELINE])
    shown = []
    for place in (-0.7, 0.0, 0.3, 0.55):
        played = line.environment(line.samples("train")[0])
        played.place, played.goal = place, 0.6
        shown.append(played.reset())
    far, middle, near, there = reward.values(shown)
    assert far < near < there and middle < there
    options = {"model": str(made / "made"), "baseline": [BASELINE]}
    judge = registry.make("judge", Component(name="clip", **options), "judge", line, 0)
    pairs = [pair_of(shown[0], shown[3]), pair_of(shown[3], shown[0]), pair_of(shown[0], shown[0])]
    assert judge.prefer(pairs, "the point is at its goal") == [1, 0, None]


@pytest.fixture(scope="module")
def judged(made) -> Path:
    """A reward that was learned from the small CLIP's preferences."""
    Path("judged.yaml").write_text(JUDGED)
    assert main(["preferences", "judged.yaml"]) == 0
    return made / "judged"


def test_preferences_of_a_judge_that_sees(judged):
    """RL-VLM-F with a judge of pictures: what is learned from its answers agrees with the truth that nobody told it."""
    told = json.loads((judged / "report.json").read_text())
    low = told["agreement"][2]
    assert told["answered"] > 250 and low > 0.6
    from vlrl.contrib.preferences.reward_model import model_load
    from vlrl.types import Observation

    places = np.random.default_rng(0).uniform(-0.9, 0.6, (200, 2)).astype(np.float32)
    places[:, 1] = 0.6
    value = model_load(str(judged)).value([Observation((), state) for state in places])
    nearness = -np.abs(places[:, 0] - places[:, 1])
    pairs = np.random.default_rng(1).integers(200, size=(500, 2))
    right = (value[pairs[:, 0]] - value[pairs[:, 1]]) * (nearness[pairs[:, 0]] - nearness[pairs[:, 1]]) > 0
    assert right.mean() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("change", ["task.clip=made", "task.judged=judged", "task.scenes=100"])
def test_a_policy_learns_the_goal_from_what_sees(judged, change):
    """A reward that ranks moments may be highest beside the goal, where a policy then stays. Last: by the truth."""
    Path("paid.yaml").write_text(PAID)
    assert main(["offpolicy", "paid.yaml", "out=paid", change]) == 0
    said = json.loads(Path("paid/summary.json").read_text())
    assert said["before"]["high"] < 0.5 < 0.8 < said["after"]["low"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [("contrast.what=[plaice]", "did you mean 'place'"),
     ("task={name: 'line_task:LineTask', scenes: 60}", "the data shows no picture 0: give the robot a camera"),
     ("contrast.sentences=[{within: 0.000001, texts: [a]}, {within: 1.0, texts: [b]}]", "no moment of"),
     ("contrast.sentences=[{within: 0.3, texts: [a]}, {within: 0.2, texts: [b]}]", "larger `within`"),
     ("contrast.pixels=33", "is no multiple of patch = 8")],
)  # fmt: skip
def test_mistakes_are_one_line(made, change, problem, capsys):
    """A traceback, or a model of nothing after all the rendering."""
    assert main(["pretrain", "line.yaml", "out=other", change]) == 2
    assert problem in capsys.readouterr().err.strip().splitlines()[-1]


def test_what_is_no_clip_is_refused(made):
    """Hours of preferences by a model of something else."""
    judge = registry.make("judge", Component(name="clip", model="nowhere", baseline=["b"]), "judge", None, 0)
    with pytest.raises(UserError, match="cannot load the model 'nowhere'"):
        judge.prefer([], "goal")
