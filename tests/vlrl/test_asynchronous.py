"""Steps that are played while earlier ones learn: by which weights, at the same time, and the same again."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml

from vlrl.config import Config
from vlrl.distributed.world import RemoteInputs, assign_policy
from vlrl.recipe_checks import load_config, problems
from vlrl.runner import Runner
from vlrl.trainer import RLTrainer
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError

MODULE = """
    import dataclasses, threading
    from tasks.base import SingleTurn
    from tasks.gui_grounding import GuiGrounding
    from vlrl.methods import Callback, method
    from vlrl.rollout import collect
    from vlrl.algorithms.samplers import Shuffled
    from vlrl.types import Step

    PATIENCE = 60
    order, weights, learned, began, over = [], {}, [], {}, {}
    kill = None


    def flags(table, step):
        return table.setdefault(step, threading.Event())


    def sum_of(policy):
        return float(sum(p.detach().double().sum() for p in policy.model.parameters()))


    @method
    def watching(policy, task, samples, group_size, step, **act):
        weights[step] = sum_of(policy)
        assert task.stage == step
        return collect(policy, task, samples, group_size, **act)


    @method
    def meeting(policy, task, samples, group_size, step, **act):
        flags(began, step).set()
        if step:
            assert flags(over, step - 1).wait(PATIENCE), "the step before does not end while this one is played"
        return collect(policy, task, samples, group_size, **act)


    class Stages(GuiGrounding):
        stage = -1

        def at_step(self, step):
            self.stage = step

        def score(self, episode):
            hit = (sum(map(ord, episode.completion)) + self.stage) % 5 / 4
            return dataclasses.replace(super().score(episode), parts={"hit": hit, "format": 0.0}, correct=hit)


    class Endless(GuiGrounding):
        at_once = 4

        def environment(self, sample):
            return Again(sample.prompt) if sample.id.split("/")[1] == "train" else super().environment(sample)


    class Again(SingleTurn):
        def step(self, action, frames=()):
            flags(began, "turn").set()
            over.setdefault("turns", []).append(1)
            return Step(self.prompt, terminated=len(over["turns"]) > 5000)


    class Noted(Shuffled):
        def draw(self, count):
            order.append("draw")
            return super().draw(count)

        def observe(self, episodes):
            order.append("observe")


    @method
    class Hook(Callback):
        def __init__(self, policy, task, updater, seed):
            self.policy = policy
            learned.append(sum_of(policy))

        def on_step_end(self, step, row):
            learned.append(sum_of(self.policy))
            if step == kill:
                raise RuntimeError("killed")


    class Meet(Hook):
        def on_step_begin(self, step):
            if step < 3:
                assert flags(began, step + 1).wait(PATIENCE), "nothing is played while this step learns"

        def on_step_end(self, step, row):
            flags(over, step - 1).set()
"""
CONFIG = {
    "task": {"name": "mine:Stages", "pool": 8, "held_out": 4},
    "policy": {"model": "embedded", "max_tokens": 8},
    "train": {"steps": 6, "prompts_per_step": 2, "group_size": 2, "lr": 1e-3, "max_staleness": 2},
    "eval": {"every_steps": 3},
    "log": {"checkpoint_every": 2, "trackers": [], "rollouts": 1},
    "advantages": [],  # so that every reward moves the weights
}


@pytest.fixture
def mine(tmp_path, monkeypatch) -> ModuleType:
    """The user's own module, with its notes empty."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mine", None)
    import mine

    yield mine
    sys.modules.pop("mine")


def runner(folder: Path, resume: bool = False, **changes) -> Runner:
    """Of CONFIG, as changed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"out": str(folder / "run")} | CONFIG | changes))
    config = load_config(folder / "config.yaml")
    return Runner(config, RLTrainer(config), resume)


def train(**changes) -> dict:
    return CONFIG["train"] | changes


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_a_step_is_played_by_the_weights_of_its_schedule(mine, tmp_path):
    """Older weights than promised would play, or others each time; a stricter reward would come too late."""
    runner(tmp_path / "a", rollout_strategy="mine:watching", callbacks=["mine:Hook"], sampler="mine:Noted").run()
    assert mine.weights == {step: mine.learned[max(0, step - 2)] for step in range(6)}
    assert len(set(mine.weights.values())) == 4  # the weights did change
    assert [row["staleness"] for row in metrics(tmp_path / "a") if "loss" in row] == [0, 1, 2, 2, 2, 2]
    # a sampler draws for step t once it has seen the outcomes of step t - 3
    assert mine.order == ["draw"] * 3 + ["observe", "draw"] * 3 + ["observe"] * 3


def test_a_step_learns_while_the_next_is_played(mine, tmp_path):
    """Nothing would be gained: each would wait for the other."""
    four = train(steps=4, max_staleness=1)
    runner(tmp_path / "a", rollout_strategy="mine:meeting", callbacks=["mine:Meet"], train=four).run()
    assert len(mine.over) == 4


def test_a_killed_run_goes_on_exactly(mine, tmp_path):
    """What was under way would be lost, or played by other weights, and a resumed run would be another one."""
    changes = {"callbacks": ["mine:Hook"], "sampler": "unsolved", "losses": ["ppo_clip", "kl"]}
    straight = runner(tmp_path / "a", **changes)
    straight.run()
    for mine.kill in (3, 5):  # beside an evaluation, and in the middle of an interval
        with pytest.raises(RuntimeError, match="killed"):
            runner(tmp_path / "b", resume=mine.kill > 3, **changes).run()
    mine.kill = None
    resumed = runner(tmp_path / "b", resume=True, **changes)
    resumed.run()
    assert metrics(tmp_path / "b") == metrics(tmp_path / "a")
    for one, other in zip(*(run.learner.policy.model.parameters() for run in (straight, resumed)), strict=True):
        assert one.equal(other)


def test_a_run_that_ends_does_not_wait_for_episodes(mine, tmp_path):
    """Ctrl-C, or any error, would hang for as long as a robot's episode lasts."""
    made = runner(tmp_path / "a", task={"name": "mine:Endless", "pool": 8, "held_out": 2}).learner
    made.setup()
    made.collector._begin(0, 0, keep=False)
    assert mine.flags(mine.began, "turn").wait(mine.PATIENCE)
    made.close()
    assert 0 < len(mine.over["turns"]) < 5000


def test_the_decoupled_objective_learns_from_older_weights(mine, tmp_path):
    """AReaL's recipe would train on ratios of the wrong laws."""
    both = ["grpo", {"name": "decoupled"}]
    runner(tmp_path / "a", advantages=both, train=train(max_staleness=3, num_minibatches=2)).run()
    rows = [row for row in metrics(tmp_path / "a") if "loss" in row]
    assert rows[0]["decoupled/kl"] == pytest.approx(0, abs=1e-6) and rows[0]["decoupled/weight"] == pytest.approx(1)
    assert any(row["decoupled/kl"] > 1e-6 for row in rows[1:])


WRONG = {
    "a strategy with a state": ({"rollout_strategy": "replay"}, "rollout_strategy: replay goes on"),
    "a sampler that matches": ({"sampler": "vade"}, "sampler: vade needs"),
    "recorded operations": ({"policy": {"cuda_graphs": True}}, "policy.cuda_graphs"),
    "an engine of one policy": ({"policy": {"engine": "vllm"}}, "policy.engine: vllm"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_played_ahead_is_refused_when_it_is_read(name):
    """A run of days would learn from other outcomes than its recipe says, or stop in the middle."""
    changes, named = WRONG[name]
    for staleness in (0, 1):
        values = {"task": "gui_grounding", "out": "x", "train": {"max_staleness": staleness}} | changes
        told = list(problems(Config.model_validate(values)))
        assert any(named in said for said in told) == bool(staleness)


def test_what_another_process_decided_is_made_anew_by_the_trainers_policy():
    """The trainer would ask a policy that plays the next step in its own thread, and is made for one."""
    nothing, shown = torch.zeros(1), Observation(("?",))
    said = Decision("a", nothing, nothing, False)
    player, trainers = (
        SimpleNamespace(decide=lambda *_, by=by, **options: replace(said, inputs=SimpleNamespace(prompt=by)))
        for by in "pt"
    )
    turn = Turn(shown, replace(said, inputs=RemoteInputs(player, shown, said, None, None)), Step(shown))
    assign_policy(trainers, [Episode(Sample("1", shown), 0, [turn])])
    assert turn.decision.inputs.prompt == "t"


def test_staleness_is_a_number_from_0():
    """A run would begin with a schedule that cannot be kept."""
    with pytest.raises(UserError, match=r"train\.max_staleness"):
        load_config(Path(__file__).parents[2] / "configs" / "gui_grounding.yaml", ["train.max_staleness=-1"])
