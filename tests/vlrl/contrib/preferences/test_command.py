"""`vlrl preferences` and what comes of it, as users run it: on a point that goes to its goal on a line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vlrl import registry
from vlrl.cli import main
from vlrl.config import Component
from vlrl.contrib.preferences.reward_model import model_load
from vlrl.types import Observation, UserError

LINE = Path(__file__).parents[2] / "offpolicy"
OWN = '''
"""A user's own module: the point on the line, seen in a picture, and a judge that says nothing."""
import numpy as np
from line_task import Line, LineTask
from PIL import Image
from vlrl.contrib.preferences.labelling import PreferenceJudge
from vlrl.methods import method
from vlrl.types import Observation

class SeenLine(Line):
    def reset(self):
        pixels = np.zeros((8, 30, 3), np.uint8)
        for number, place in enumerate((self.place, self.goal)):
            pixels[:, int(15 + 9 * place), number] = 255
        return Observation((Image.fromarray(pixels), *super().reset().content), super().reset().state)

class Seen(LineTask):
    def environment(self, sample):
        return SeenLine(sample.answer, self.ticks, self.chunk)

@method
class Silent(PreferenceJudge):
    def __init__(self, task, seed): pass
    def prefer(self, pairs, goal): return [None] * len(pairs)
'''
CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: made
goal: the point is at its goal
judge: {name: scripted, what: [place], where: [goal], noise: 0.1}
offline: [{name: demonstrations, episodes: 12, noise: 0.5}]
pairs: 300
model: {hidden: 32, steps: 150, batch: 32}
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a configuration, where the user's own task lies on the Python path."""
    monkeypatch.syspath_prepend(str(LINE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.yaml").write_text(CONFIG)
    (tmp_path / "own.py").write_text(OWN)
    yield tmp_path
    for name in ("line_task", "own"):
        sys.modules.pop(name, None)


def vlrl(*changes: str) -> int:
    return main(["preferences", "line.yaml", *changes])


def task():
    return registry.find("task", "line_task:LineTask")()


def test_it_learns_and_tells(place, capsys):
    """The reward must rank moments that nobody was asked about, and the report must say how well."""
    assert vlrl() == 0
    said, told = capsys.readouterr().out, json.loads((place / "made" / "report.json").read_text())
    k, n, low, high = told["truth"]["agreement"]
    assert k / n > 0.85 and 0 <= low < k / n < high <= 1 and told["truth"]["kendall"] > 0.7
    assert f"with the truth on {k}/{n}" in said and "answered by scripted" in said
    # one answer of ten is wrong, so that nobody agrees with more than nine of ten but by chance
    assert 0.6 < told["agreement"][0] / told["agreement"][1] < 0.98 and len(told["agreement_members"]) == 3
    assert told["pairs"] == 300 and told["answered"] > 250 and told["episodes"] <= 12
    model = model_load(place / "made")
    near, far = Observation((), np.float32([0.5, 0.55])), Observation((), np.float32([-0.4, 0.6]))
    assert np.subtract(*model.value([near, far])) > 0
    # saved scales and weights: compute_reward is the same model
    batch = {"observation.state": torch.tensor([[0.5, 0.55], [-0.4, 0.6]])}
    np.testing.assert_allclose(model.compute_reward(batch).numpy(), model.value([near, far]), rtol=1e-6)


@pytest.mark.slow
def test_the_same_command_asks_nothing_twice_and_makes_the_same(place):
    """Growing the pairs, or a run that was killed while learning, would pay for every answer again."""
    assert vlrl("pairs=200") == 0
    first = (place / "made" / "answers.jsonl").read_bytes()
    weights = (place / "made" / "model.safetensors").read_bytes()
    assert vlrl("pairs=200") == 0
    assert (place / "made" / "answers.jsonl").read_bytes() == first
    assert (place / "made" / "model.safetensors").read_bytes() == weights
    assert vlrl("out=whole", "pairs=300") == 0 and vlrl("pairs=300") == 0
    grown = (place / "made" / "answers.jsonl").read_bytes()
    assert grown.startswith(first) and len(grown.splitlines()) == len(set(grown.splitlines()))
    assert (place / "made" / "model.safetensors").read_bytes() == (place / "whole" / "model.safetensors").read_bytes()
    assert vlrl("out=other", "seed=1", "pairs=200") == 0
    assert (place / "other" / "model.safetensors").read_bytes() != weights


def test_pictures_reach_the_model_and_its_labels(place):
    """What an encoder makes of a state without its picture would be taken for what it makes of both."""
    assert vlrl("task.name=own:Seen", "model.encoder=classical", "model.state=[]", "model.steps=250", "pairs=400") == 0
    told = json.loads((place / "made" / "report.json").read_text())
    assert told["truth"]["agreement"][0] / told["truth"]["agreement"][1] > 0.7
    seen = registry.find("task", "own:Seen")()
    source = registry.make("source", Component(name="labelled", source=DEMONSTRATIONS, model="made"), "x")
    assert np.abs(source(seen, 0).reward).max() > 0.1
    with pytest.raises(UserError, match="other pictures"):
        source(task(), 0)  # the same, seen by nobody
    model, line = model_load(place / "made"), registry.find("task", "own:Seen")()
    shown = line.environment(line.samples("train")[0]).reset()
    pixels = torch.from_numpy(np.array(shown.images[0])).permute(2, 0, 1)[None]
    for picture in (pixels, pixels / 255):
        batch = {"observation.state": torch.from_numpy(shown.state)[None], "observation.images.front": picture}
        np.testing.assert_allclose(model.compute_reward(batch).numpy(), model.value([shown]), rtol=1e-5)


DEMONSTRATIONS = {"name": "demonstrations", "episodes": 6, "noise": 0.5}


def labelled(**options):
    component = Component(name="labelled", source=DEMONSTRATIONS, model="made", **options)
    return registry.make("source", component, "offline.0")(task(), 0)


def test_labels_by_hand(place):
    """Rewards one state off, or ends that are none any more, and offline learning learns another job."""
    assert vlrl() == 0
    plain = registry.make("source", Component(**DEMONSTRATIONS), "offline.0")(task(), 0)
    value = model_load(place / "made").value
    before, after = (
        value([Observation((), state) for state in states]).astype(float) for states in (plain.state, plain.next_state)
    )
    low, high = min(before.min(), after.min()), max(before.max(), after.max())
    before, after = (-2 + 5 * (each - low) / (high - low) for each in (before, after))
    made = labelled(low=-2.0, high=3.0, gamma=0.5)
    np.testing.assert_allclose(made.reward, 0.5 ** plain.ticks() * after - before, atol=1e-5)
    made = labelled(low=-2.0, high=3.0, form="reward")
    np.testing.assert_allclose(made.reward, plain.used * after, atol=1e-5)
    for name, column in plain.columns().items():
        assert name == "reward" or np.array_equal(made.columns()[name], column)
    assert labelled().reward.sum() > 0  # every demonstration gets nearer


def test_an_offline_run_learns_from_the_labels(place):
    """True rewards that came along would be learned from as well, and the run would show nothing of the judge."""
    assert vlrl() == 0
    source = "{name: labelled, model: made, source: {name: demonstrations, episodes: 6, noise: 0.5}}"
    run = (
        (place / "line.yaml").read_text().split("out:")[0]
        + f"""
out: run
agent: {{name: rlpd, hidden: 16, cta_ratio: 1}}
offline: [{source}]
ticks: 0
updates: 20
batch_size: 16
eval: {{num_samples: 2}}
"""
    )
    (place / "run.yaml").write_text(run)
    assert main(["offpolicy", "run.yaml"]) == 0
    with np.load(max((place / "run" / "checkpoints").glob("step_*")) / "offline.npz") as kept:
        assert np.array_equal(kept["reward"], labelled().reward)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("judge={name: script}", "did you mean 'scripted'"),
        ("judge.what=[]", r"judge\.what: List should have at least 1"),
        ("judge.noise=1.5", r"judge\.noise: should be less than or equal to 1"),
        ("offline=[]", "offline"),
        ("offline=[{name: demonstration}]", "did you mean 'demonstrations'"),
        ("model.state=[plaice]", "did you mean 'place'"),
        ("model.state=[]", "sees nothing"),
        ("judge={name: 'own:Silent'}", "answered 0 of 240 pairs"),
        ("judge={name: vlm, model: embedded}", "give the robot a camera"),
        ("model.encoder=clasical", "did you mean 'classical'"),
        ("offline=[{name: demonstrations, episodes: 1}]", "give more episodes"),
        ("task={name: jigsaw}", "has no robot"),
    ],
)
def test_mistakes_are_one_line(place, capsys, change, said):
    """A traceback would leave the user alone."""
    assert vlrl(change) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("vlrl: ") and re.search(said, error)


@pytest.mark.parametrize("damage", ["none", "family", "weights"])
def test_another_folder_is_no_model(place, damage):
    """A policy's folder, mistyped, would end in a traceback after the data was read."""
    if damage != "none":
        assert vlrl() == 0
    if damage == "family":
        (place / "made" / "config.json").write_text('{"model_type": "vlrl_actor"}')
    if damage == "weights":
        (place / "made" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="made: no preference model"):
        labelled()
