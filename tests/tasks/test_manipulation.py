"""Robots as a task: scenes, outcomes, words for actions, and what a fault does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot.demos import checksum
from robot.sim.tabletop import Tabletop
from robot.types import ActionSpec
from tasks.imitation import Imitation
from tasks.manipulation import Manipulation
from tasks.robot_helpers import Speech, format_state, read_speech, write_speech
from vlrl.batch import columns
from vlrl.config import PolicySection
from vlrl.policies.loading import load
from vlrl.rollout import PolicyWrapper, collect
from vlrl.types import LOST_MOST, TRIES, Decision, Policy, UserError

CONTROLS = ActionSpec(("x", "grip"), ("m/s", "m"), np.array([-0.4, 0.0]), np.array([0.4, 0.04]))
SPEECHES = [
    Speech(words=words, spelled=spelled, bins=bins, keep=8)
    for words in ("bins", "dct") for spelled in ("digits", "tokens") for bins in (9, 21, 256)
]  # fmt: skip


class Scripted(Policy):
    """A policy that gives a fixed chunk of controls or a text."""

    def __init__(self, action):
        self.action, self.acts = action, 0

    def act(self, episodes, observations, **options):
        self.acts += 1
        units = torch.zeros(1 if isinstance(self.action, str) else self.action.size)
        return [Decision(self.action, units, units, truncated=False) for _ in episodes]


@pytest.fixture
def made():
    """Makes tasks that are closed at the end."""
    tasks = []

    def make(**options):
        tasks.append(
            Manipulation(**{"robot": {"name": "tabletop", "job": "reach"}, "workers": 1, "horizon": 12} | options)
        )
        return tasks[-1]

    yield make
    for task in tasks:
        task.close()


def test_training_never_sees_held_out_scenes(made):
    """A success rate on scenes that were trained on says nothing of others."""
    task = made(scenes=10_000, held_out=10_000, part="validation")
    of = {split: {sample.answer for sample in task.samples(split)} for split in ("train", "test")}
    assert not of["train"] & of["test"]
    assert not {s.answer for s in made(held_out=10_000).samples("test")} & (of["train"] | of["test"])


def test_scenes_are_told_by_a_checksum(made):
    """Two results could be compared that were measured on different scenes."""
    task = made(held_out=3)
    episodes = collect(Scripted(np.zeros((12, 3), np.float32)), task, list(task.samples("test")), 1)
    assert task.facts(episodes) == {"scenes": checksum(Tabletop(job="reach"), (20_000, 20_001, 20_002))}
    assert task.facts(episodes[:2]) != task.facts(episodes)


@pytest.mark.parametrize(
    ("action", "outcome"),
    [(np.zeros((5, 3), np.float32), "time_out"), (np.full((5, 3), np.nan, np.float32), "bad_action"),
     (np.zeros((5, 7), np.float32), "bad_action"), ("forward!", "bad_action")],
)  # fmt: skip
def test_outcomes_are_told_apart(made, action, outcome):
    """A policy that stands still and one that says nonsense would look alike in the result."""
    task = made()
    (episode,) = collect(Scripted(action), task, [task.samples("test")[0]], 1)
    unread = "bad_action" if outcome == "bad_action" else None
    assert (episode.score.answer["outcome"], episode.score.correct, episode.reward) == (outcome, 0.0, 0.0)
    assert episode.score.reason == unread  # "not read" was said of each time-out
    assert episode.score.parts["format"] == (outcome != "bad_action")
    assert task.metrics([episode])[f"outcome/{outcome}"] == 1.0


def test_the_script_succeeds_and_faster_is_worth_more(made):
    """A reward for speed could pay for failing fast."""
    task = made(horizon=60, weights={"success": 1.0, "speed": 0.5})
    sample = task.samples("test")[0]
    environment = task.environment(sample)
    environment.reset()
    while not (step := environment.step(environment.gold(()))).terminated:
        pass
    environment.close()
    assert "success" in step.info
    idle = collect(Scripted(np.zeros((8, 3), np.float32)), task, [sample], 1)[0]
    assert idle.reward == 0.0 and idle.score.parts["speed"] == 0.0


def test_what_was_not_carried_out_earns_no_credit(made):
    """The ticks behind a success would be learned as if they had won it."""
    task = made(horizon=12)
    episodes = collect(Scripted(np.zeros((8, 3), np.float32)), task, [task.samples("test")[0]], 1)
    assert [turn.step.executed for turn in episodes[0].turns] == [1.0, 0.5]
    assert columns(episodes).mask.tolist() == [[True] * 24, [True] * 12 + [False] * 12]


class Murderer(Scripted):
    """A policy whose first act kills the simulator under it."""

    def __init__(self, action, task, times):
        super().__init__(action)
        self.task, self.times = task, times

    def act(self, episodes, observations, **options):
        if self.times:
            self.times -= 1
            os.kill(next(iter(self.task.pool._taken)).pid, signal.SIGKILL)
        return super().act(episodes, observations, **options)


def test_a_killed_simulator_costs_a_repeat(made):
    """The policy would be blamed for a fault that is not its own, and nobody would hear of it."""
    task = made()
    sample, still = task.samples("test")[0], np.zeros((6, 3), np.float32)
    (hit,) = collect(Murderer(still, task, 1), task, [sample], 1)
    (spared,) = collect(Scripted(still), task, [sample], 1)
    assert hit.faults == ["the worker died (signal 9)"] and spared.faults == []
    told = task.metrics([hit])
    assert told["repeated"] == told["fault/the worker died (signal 9)"] == 1.0 and task.pool.counts["errors"] == 1
    for one, other in zip(hit.turns, spared.turns, strict=True):
        assert (one.step.observation.state == other.step.observation.state).all()


class Killing(PolicyWrapper):
    """A policy that kills a simulator when it is asked for the n-th time, for each n that is named."""

    def __init__(self, policy, task, at):
        super().__init__(policy)
        self.task, self.at, self.asked = task, at, 0

    def act(self, episodes, observations, **options):
        self.asked += 1
        if self.asked in self.at:
            os.kill(next(iter(self.task.pool._taken)).pid, signal.SIGKILL)
        return super().act(episodes, observations, **options)


def test_an_episode_whose_simulator_died_draws_what_it_drew(made):
    """A run in which simulators die would be another run than the quiet one; one whose action kills would never end."""
    task = made(robot={"name": "tabletop", "job": "push"}, horizon=32)
    policy = load(PolicySection(model="embedded_push"), device="cpu")
    sample, played = task.samples("train")[0], {}
    for at in ((), (2,), (1, 2, 3)):
        policy.generator.manual_seed(0)
        (episode,) = collect(Killing(policy, task, at), task, [sample], 1)
        played[at] = [turn.decision.action.tolist() for turn in episode.turns]
        assert (len(episode.faults), episode.redraws) == (len(at), len(at) // TRIES)
    assert played[()] == played[2,] != played[1, 2, 3]


def test_a_simulator_that_always_fails_stops_the_run(made):
    """It would be tried for ever."""
    task = made()
    with pytest.raises(UserError, match=rf"test/020000: failed {LOST_MOST} times: the worker died"):
        collect(Murderer(np.zeros((6, 3), np.float32), task, LOST_MOST), task, [task.samples("test")[0]], 1)


def test_scenes_that_begin_alike_share_a_bucket(made):
    """A baseline for each of a thousand scenes would learn each from one episode."""
    task = made(scenes=40, buckets=4)
    samples = list(task.samples("train"))
    assert len({s.key for s in samples}) == 4 and len({s.id for s in samples}) == 40
    assert [s.key for s in samples] == [s.key for s in made(scenes=40, buckets=4).samples("train")]
    assert all(s.key == s.id for s in task.samples("test"))
    robot, of = Tabletop(job="reach"), {}
    for sample in samples:
        robot.reset(sample.answer)
        of.setdefault(sample.key, []).append(robot.get_observation().state[[0, 1, 2, 9, 10, 11]])
    within = np.mean([np.var(states, axis=0).sum() for states in map(np.array, of.values())])
    assert within < np.var(np.concatenate(list(of.values())), axis=0).sum()


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"robot": "tablet"}, "did you mean 'tabletop'"), ({"robot": {"name": "tabletop", "jbo": "push"}}, "robot.jbo"),
     ({"robot": {"name": "tabletop", "job": "fly"}}, "robot.job"), ({"horizon": 0}, "task.horizon"),
     ({"scenes": 20_000}, "task.scenes"), ({"buckets": 0}, "task.buckets"),
     ({"weights": {"fun": 1.0}}, "task.weights.fun"), ({"robot": "no_such_module:Robot"}, "no_such_module")],
)  # fmt: skip
def test_mistakes_are_one_line(made, options, problem):
    """A worker's traceback would not say which key to mend."""

    def begin():
        task = made(**options)
        task.environment(task.samples("test")[0]).reset()

    with pytest.raises(UserError, match=problem) as caught:
        begin()
    assert "\n" not in str(caught.value)


THREE = [{"name": "tabletop", "job": job} for job in ("reach", "touch", "push")]


def test_several_jobs_share_out_the_scenes(made):
    """A policy of several jobs would be judged on one of them, or on scenes that it was trained on."""
    task = made(robot=THREE, scenes=9, held_out=6, buckets=2)
    train, test = list(task.samples("train")), list(task.samples("test"))
    jobs = [f"tabletop/{each['job']}" for each in THREE]
    for samples in (train, test):
        assert [s.tags["job"] for s in samples] == [jobs[s.answer % 3] for s in samples]
        assert sorted(s.tags["job"] for s in samples) == sorted(jobs * (len(samples) // 3))
        assert all(s.tags["job"] in s.id and s.tags["job"] in s.prompt.text for s in samples)
    assert not {s.answer for s in train} & {s.answer for s in test}
    assert all(s.tags["job"] in s.key for s in train)
    alone = made(robot=THREE[1], held_out=6)
    assert [s.id for s in test if "touch" in s.id] == [s.id for s in alone.samples("test") if s.answer % 3 == 1]


def test_several_jobs_are_played_and_told_apart(made):
    """The mean would hide which job a policy cannot do; or a result could be compared with one of other scenes."""
    task = made(robot=THREE, held_out=6, horizon=160)
    arm = task.arm("expert")
    episodes = collect(arm.policy, arm, list(task.samples("test")), 1)
    told = task.metrics(episodes)
    by = {name: value for name, value in told.items() if name.startswith("by/")}
    assert set(by) == {"by/tabletop/reach", "by/tabletop/touch", "by/tabletop/push"}
    assert sum(by.values()) / 3 == pytest.approx(told["outcome/success"]) and told["outcome/success"] > 0.8
    asked = [episode.turns[0].observation.text for episode in episodes]
    wanted = {"reach": "Move the hand", "touch": "Touch the", "push": "Push the"}
    assert all(wanted[e.sample.id.split("/")[2]] in text for e, text in zip(episodes, asked, strict=True))
    one = made(robot=THREE[0], held_out=6)
    still = Scripted(np.zeros((12, 3), np.float32))
    mine, its = (collect(still, t, [t.samples("test")[i] for i in (1, 4)], 1) for t in (task, one))
    assert task.facts(mine) == one.facts(its) != task.facts(episodes)  # seeds 20,001 and 20,004 are of the first robot
    assert not any(name.startswith("by/") for name in one.metrics(its))


def test_scripts_of_several_jobs_teach_one_policy(made):
    """A start that was shown one job could never be paid for the others."""
    task = made(robot=THREE, horizon=24)
    shown = [pairs[0][0].text.split()[0] for pairs in task.demonstrations(6, 0.2, 0)]
    assert shown == ["Move", "Touch", "Push"] * 2


@pytest.mark.parametrize(
    ("robot", "problem"),
    [([], r"task\.robot: \[\]: must be a robot, or a list"), (["tabletop", "tablet"], "did you mean 'tabletop'"),
     ([THREE[0], {"name": "tabletop", "job": "pick"}], "its controls are"),
     ([THREE[0], {"name": "so101"}], r"task\.robot\.1: one policy drives all robots")],
)  # fmt: skip
def test_jobs_that_one_policy_cannot_do_are_refused(made, robot, problem):
    """Its controls would mean one thing on one robot and another on the next."""
    with pytest.raises(UserError, match=problem):
        made(robot=robot).controls  # noqa: B018 - asks a worker


class Shaped(Policy):
    def __init__(self, shape=None, writes_text=False):
        self.shape, self.writes_text = shape, writes_text


def test_a_policy_for_another_robot_is_refused_before_it_moves(made):
    """Every episode would end as a bad action, and a night of training with it."""
    from vlrl.policies.discrete import DiscreteShape

    right = DiscreteShape(12, ("x", "y", "z"), (-1,) * 3, (1,) * 3)
    made().fits(Shaped(right))
    with pytest.raises(UserError, match="it gives x, y, z, grip; the robot takes x, y, z"):
        made().fits(Shaped(DiscreteShape(12, ("x", "y", "z", "grip"), (-1,) * 4, (1,) * 4)))
    with pytest.raises(UserError, match=r"task\.speech: a language model needs words"):
        made().fits(Shaped(writes_text=True))
    with pytest.raises(UserError, match=r"task\.speech: this policy gives numbers"):
        made(speech=Speech()).fits(Shaped(right))


@pytest.mark.parametrize("speech", SPEECHES, ids=str)
@given(seed=st.integers(0, 2**32 - 1), ticks=st.integers(1, 8))
def test_what_is_said_is_what_was_meant(speech, seed, ticks):
    """A model that learned the words would move the robot elsewhere."""
    chunk = np.random.default_rng(seed).uniform(CONTROLS.low, CONTROLS.high, (ticks, 2)).astype(np.float32)
    text = write_speech(chunk, CONTROLS, speech)
    again = read_speech(text, ticks, CONTROLS, speech)
    half = (CONTROLS.high - CONTROLS.low) / 2
    # half a level for each number; over all frequencies the errors add up
    worst = (1 if speech.words == "bins" else ticks) / (speech.bins - 1)
    assert again.shape == (ticks, 2) and again.dtype == np.float32
    assert (np.abs(again - chunk) <= worst * half + 1e-6).all()
    assert (again >= CONTROLS.low - 1e-6).all() and (again <= CONTROLS.high + 1e-6).all()
    if speech.words == "bins":
        assert write_speech(again, CONTROLS, speech) == text


def test_low_frequencies_say_the_mean_speed():
    """A chunk in few words would not go where the whole chunk goes."""
    speech = Speech(words="dct", keep=2, bins=255)
    ramp = np.stack([np.linspace(-0.3, 0.3, 8), np.linspace(0.01, 0.03, 8)], 1).astype(np.float32)
    again = read_speech(write_speech(ramp, CONTROLS, speech), 8, CONTROLS, speech)
    assert np.allclose(again.mean(0), ramp.mean(0), atol=0.01) and np.corrcoef(again[:, 0], ramp[:, 0])[0, 1] > 0.98


@pytest.mark.parametrize("speech", SPEECHES[:4], ids=str)
@given(text=st.one_of(st.text(max_size=40), st.text(alphabet="0123456789 <a>", max_size=60)))
def test_no_text_breaks_the_reader(speech, text):
    """One odd completion would end a training run."""
    chunk = read_speech(text, 2, CONTROLS, speech)
    assert chunk is None or (np.isfinite(chunk).all() and chunk.shape == (2, 2))


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 3 4 5", "1,2,3,4", "1 2 3 21", "1 2 3 -4", "1 2 3 ４", "1 2 3 4 x"])
def test_almost_an_action_is_none(text):
    """A reader that mends what it is given pays for less than it asks."""
    assert read_speech(text, 2, CONTROLS, Speech()) is None
    assert read_speech("1 2 3 4", 2, CONTROLS, Speech()) is not None


def test_the_state_is_told_in_levels():
    """A model could not know where its hand is."""
    speech = Speech(bins=11, state={"x": (-1.0, 1.0), "z": (0.0, 2.0)})
    assert format_state(np.array([0.0, 5.0, 2.5], np.float32), ("x", "y", "z"), speech) == "5 10"
    with pytest.raises(UserError, match="'w': must be of x, y, z"):
        format_state(np.zeros(3, np.float32), ("x", "y", "z"), Speech(state={"w": (0, 1)}))


def test_words_move_the_robot_as_numbers_do(made):
    """What a language model says would be another robot's language."""
    speech = Speech(bins=21, state={"hand x": (-0.3, 0.3)})
    spoken, driven = made(speech=speech), made()
    chunk = np.tile(np.float32([0.4, 0.0, -0.4]), (8, 1))
    sample = spoken.samples("test")[0]
    first = spoken.environment(sample)
    assert first.reset().text.split()[-1].isdigit()
    said = first.step(write_speech(chunk, spoken.controls, speech))
    second = driven.environment(sample)
    second.reset()
    assert (second.step(chunk).observation.state == said.observation.state).all()
    nonsense = first.step("left, please")
    assert nonsense.terminated and "bad_action: no action in these words" in nonsense.info
    second.close()


def test_the_script_teaches_from_where_noise_leads():
    """Imitation of states that only the script reaches does not lead back to them."""
    task = Imitation(robot={"name": "tabletop", "job": "reach"}, horizon=40, episodes=3, held_out=1, noise=0.6)
    samples = list(task.samples("train"))
    starts = {s.prompt.text: s for s in samples}
    assert len(samples) > 3 and starts
    right = task.gold(samples[0], ())
    assert read_speech(right, 8, task._pool.info.controls, task.speech) is not None
    assert {s.id for s in samples}.isdisjoint(s.id for s in task.samples("test"))
    task.close()


def test_our_configs_drive_their_policies():
    """The commands at the head of the configs would stop with an error."""
    from vlrl import registry
    from vlrl.policies.loading import load
    from vlrl.recipe_checks import load_config

    folder = Path(__file__).parents[2] / "configs"
    for name in ("manipulation", "manipulation_vla"):
        loaded = load_config(folder / f"{name}.yaml", ["task.workers=1"])
        task = registry.make_task(loaded)
        task.fits(load(loaded.policy))
        task.close()
