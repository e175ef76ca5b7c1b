"""`vlrl clone` from recorded data sets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.imitation.behaviour_cloning import CloneLearner
from vlrl.imitation.configs import CloneConfig
from vlrl.policies.loading import load
from vlrl.runner import Runner
from vlrl.types import Observation, UserError


@pytest.fixture(scope="module")
def room(tmp_path_factory, takes, write):
    """Data sets in which the action is half of the state; in `minus` it is the opposite; others are no use."""
    room = tmp_path_factory.mktemp("room")
    episode = takes(60, 1)
    write(room / "plus", [takes(60, seed) for seed in range(3)])
    write(room / "minus", [{**takes(60, seed), "action": -takes(60, seed)["action"]} for seed in range(3)])
    write(room / "fast", [episode], fps=20)
    write(room / "wide", [{**episode, "action": np.repeat(episode["action"], 2, 1)}])
    return room


@pytest.fixture
def config(room, tmp_path):
    """`config(names or {name: weight}, **changes)`"""

    def made(names, **changes) -> CloneConfig:
        weights = names if isinstance(names, dict) else dict.fromkeys(names, 1.0)
        sets = [{"path": str(room / name), "weight": weight} for name, weight in weights.items()]
        sizes = {"hidden": 32, "layers": 1, "bins": 21, "chunk": 1}
        plain = {"out": str(tmp_path / "out"), "steps": 250, "batch_size": 64, "lr": 1e-2, "policy": sizes}
        return CloneConfig.model_validate({**plain, "datasets": sets, **changes})

    return made


def clone(config: CloneConfig):
    """The policy, and the run's summary."""
    learner = CloneLearner(config)
    summary = Runner(config, learner).run()
    return learner.policy, summary


def slope(policy, takes) -> float:
    """How much of the state an action is, by least squares."""
    episode = takes(50, 99)
    shown = [Observation(("Go.",), state) for state in episode["observation.state"]]
    acted = np.stack([each.action[0] for each in policy.act([None] * 50, shown, greedy=True)])
    return float((acted * episode["observation.state"]).sum() / (episode["observation.state"] ** 2).sum())


def test_a_policy_does_what_the_data_set_shows(config, takes):
    """Demonstrations of a real robot, which has no script, could not be learned from."""
    policy, told = clone(config(["plus"]))
    assert (told["episodes"], told["decisions"]) == (3, 180)
    assert slope(policy, takes) == pytest.approx(0.5, abs=0.05)
    shape = policy.shape
    assert (shape.names, shape.controls, shape.hz, shape.chunk) == (("x", "y"), ("vx", "vy"), 10.0, 1)
    assert max(shape.high) <= 0.5 and min(shape.low) >= -0.5  # the range of what was done


def test_the_heavier_data_set_wins_where_two_disagree(config, takes):
    """A few corrections could not outweigh many old habits."""
    assert slope(clone(config({"plus": 9.0, "minus": 1.0}))[0], takes) > 0.4
    assert slope(clone(config({"plus": 1.0, "minus": 9.0}))[0], takes) < -0.4


def test_it_goes_on_from_a_policy_and_saves_one(config, takes, tmp_path, capsys):
    """What was learned before would be lost with every new data set."""
    file = tmp_path / "clone.yaml"
    file.write_text(json.dumps(config(["plus"], out=str(tmp_path / "first")).model_dump()))
    assert main(["clone", str(file)]) == 0
    assert "3 demonstrations, 180 decisions" in capsys.readouterr().out
    policy, _ = clone(config(["plus"], start=str(tmp_path / "first"), steps=1, lr=1e-9))
    assert slope(policy, takes) == pytest.approx(slope(load(PolicySection(model=str(tmp_path / "first"))), takes))


@pytest.mark.parametrize(
    ("names", "changes", "said"),
    [
        (["plus", "fast"], {}, "20 frames a second"),
        (["plus", "wide"], {}, "its action has 4 numbers; that of"),
        (["nowhere"], {}, "no LeRobotDataset"),
        (["plus"], {"start": "embedded_push"}, "its action is vx, vy; the policy gives x, y, z"),
        (["plus"], {"start": "embedded"}, "holds no small robot policy"),
        ([], {}, "task: is required"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(config, names, changes, said):
    """A traceback from the depths, or, worse, a policy of mixed-up numbers."""
    with pytest.raises(UserError) as error:
        clone(config(names, **changes))
    assert said in str(error.value) and "\n" not in str(error.value)
