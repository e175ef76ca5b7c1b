"""A policy that learns while it is at work."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.imitation.behaviour_cloning import cloning_read, make_control, shape_of
from vlrl.imitation.configs import LearnConfig
from vlrl.imitation.dagger import DaggerLearner
from vlrl.policies.loading import load
from vlrl.runner import Runner
from vlrl.types import UserError

SIZES = {"hidden": 16, "layers": 1, "bins": 9, "chunk": 3}


@pytest.fixture(scope="module")
def room(tmp_path_factory, takes, write):
    """Demonstrations, played episodes, corrections, and a policy that has learned nothing."""
    room = tmp_path_factory.mktemp("room")
    write(room / "demos", [takes(20, seed) for seed in range(3)])
    write(room / "played", [takes(20, 10 + n, won=n > 0, person=slice(4, 9) if n == 1 else None) for n in range(4)])
    write(room / "driven", [takes(5, 20)])
    sources = cloning_read([str(room / "demos")])
    torch.manual_seed(0)
    states = torch.as_tensor(np.concatenate([each.state for source in sources for each in source.episodes]))
    make_control(shape_of(sources, None, **SIZES), states, 0).save(room / "start")
    return room


@pytest.fixture
def config(room, tmp_path):
    """`config(**changes)`"""

    def made(**changes) -> LearnConfig:
        plain = {
            "out": str(tmp_path / "out"), "start": str(room / "start"), "episodes": [str(room / "played")],
            "demonstrations": [str(room / "demos")], "every": 4, "steps": 4, "batch_size": 8, "poll_s": 0.01,
        }  # fmt: skip
        return LearnConfig(**{**plain, **changes})

    return made


def weights(folder) -> torch.Tensor:
    policy = load(PolicySection(model=str(folder)))
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def made(config: LearnConfig, *update) -> DaggerLearner:
    learner = DaggerLearner(config, *update)
    learner.setup()
    return learner


def test_a_round_leaves_a_checkpoint_where_a_server_finds_it(config, tmp_path, room):
    """The robot would go on with the policy of yesterday."""
    seen = []

    class Watching(DaggerLearner):
        def is_ready(self, stopping):
            seen.append(weights(tmp_path / "out"))  # what would be served now
            return super().is_ready(stopping)

    Runner(config(rounds=1), Watching(config(rounds=1)), resume=True).run()
    assert torch.equal(seen[0], weights(room / "start"))  # from the first second
    (row,) = rows(tmp_path / "out")
    assert (row["round"], row["episodes"], row["alone"], row["success"]) == (1, 4, 0.5, 0.75)
    assert row["person"] == pytest.approx(5 / 80)
    assert (row["demonstrations"], row["corrections"]) == (60, 5)
    assert row["successes"] == 2 * 20 + 20 - 9  # without the person's 5 and the 4 before (a second would be 10)
    assert not torch.equal(weights(tmp_path / "out"), weights(room / "start"))


def test_corrections_apart_are_not_counted_twice(config, room):
    """The same stretches lie within the episodes: their share would be drawn from half as many others."""
    learner = made(config(corrections=[str(room / "driven")]))
    learner.gather()
    assert len(learner.pools.groups["corrections"]) == 5
    assert {example.episode.number for example in learner.pools.groups["corrections"]} == {0}


def test_a_learner_that_was_killed_goes_on_as_if_it_had_not_been(config, room, tmp_path, takes, write):
    """A power cut would cost what was learned, or learn it twice."""

    def played(number: int) -> None:
        write(tmp_path / "played" / str(number), [takes(20, 10 * number + n) for n in range(2)])

    def learn(out: str, rounds: int) -> None:
        changes = config(out=str(tmp_path / out), episodes=[str(tmp_path / "played")], every=2, rounds=rounds)
        Runner(changes, DaggerLearner(changes), resume=True).run()

    class Person(DaggerLearner):
        """Plays the second round's episodes after the first round."""

        def step(self, i):
            done = super().step(i)
            if i == 0:
                played(2)
            return done

    played(1)
    learn("killed", 1)
    (tmp_path / "killed" / "checkpoints" / ".step_000002.part").mkdir()  # killed while it saved
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rou')  # and half a line written
    whole = config(out=str(tmp_path / "whole"), episodes=[str(tmp_path / "played")], every=2, rounds=2)
    Runner(whole, Person(whole), resume=True).run()
    learn("killed", 2)
    assert torch.equal(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
    assert [row for row in rows(tmp_path / "killed") if "round" in row] == rows(tmp_path / "whole")


def test_it_waits_for_enough_and_ends_when_asked(config, tmp_path, room, takes, write):
    """It would train on every single episode, or for ever."""
    folder, asked = tmp_path / "growing", []
    learner = made(config(episodes=[str(folder)], every=2))

    def stopped() -> bool:
        asked.append(len(learner.waiting))
        if len(asked) < 3:  # one more episode at these looks
            write(folder, [takes(6, len(asked))])
        return len(asked) > 4

    assert learner.is_ready(stopped) and asked == [0, 1]
    learner.step(0)
    assert not learner.is_ready(stopped) and len(asked) == 5


def test_another_update_can_take_the_place_of_imitation(config):
    """Off-policy RL needs what came of the actions: rewards and what was shown after."""
    seen = []

    def update(policy, batches, *, steps, lr):
        for batch in batches:
            seen.extend((example.episode.reward[example.t], example.episode.state.shape) for example in batch.examples)
        return {"critic": 1.0}

    learner = made(config(), update)
    learner.gather()
    row = learner.step(0).metrics
    assert row["critic"] == 1.0 and len(seen) == 4 * 8


@pytest.mark.parametrize(
    ("change", "said"),
    [({"demonstrations": ["nowhere"]}, "no data set in nowhere"), ({"start": "embedded_lift"}, "the policy gives")],
)
def test_what_does_not_fit_is_said_in_one_line(config, change, said):
    """A typo in a folder would train without demonstrations, and nobody would know."""
    with pytest.raises(UserError, match=said):
        made(config(**change))


def test_the_command_learns_and_goes_on(config, tmp_path, capsys):
    """What a user types, twice: the second time it goes on."""
    file = tmp_path / "learn.yaml"
    file.write_text(json.dumps(config(rounds=1).model_dump()))
    assert main(["learn", str(file)]) == 0
    assert "starts from" in capsys.readouterr().out
    assert main(["learn", str(file)]) == 0
    assert "goes on after round 1" in capsys.readouterr().out
