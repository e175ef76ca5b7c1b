"""Prompts made easier or harder: which ones, by how much, and exactly again after a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl import registry
from vlrl.algorithms import rollout_common
from vlrl.algorithms.rollout_common import beginning
from vlrl.checkpoint import flatten, unflatten
from vlrl.config import Component, Config, PolicySection
from vlrl.contrib.rollouts.hints import Augment
from vlrl.policies.loading import load
from vlrl.rollout import plain
from vlrl.types import Environment, Observation, Step, UserError


@pytest.fixture(scope="module")
def policy():
    return load(PolicySection(max_tokens=6))


@pytest.fixture
def task(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return made_task({"name": "video_task:Clips", "still": True})


def made_task(section):
    return registry.make_task(Config.model_validate({"task": section, "out": "x"}))


def stepped(strategy, policy, task, step: int = 0, count: int = 2):
    """One step on the first samples, from the same random numbers each time."""
    policy.generator.manual_seed(5)
    return strategy(policy, task, task.samples("train")[:count], 3, step, keep=True)


def prompts(episodes) -> list[tuple]:
    return [episode.turns[0].observation.content for episode in episodes]


def test_the_first_step_is_plain(policy, task):
    """There is nothing yet to compare with: every group would count as hard, or as easy."""
    strategy = Augment(policy, task, 0)
    episodes = stepped(strategy, policy, task)
    policy.generator.manual_seed(5)
    assert [e.completion for e in episodes] == [
        e.completion for e in plain(policy, task, task.samples("train")[:2], 3, 0)
    ]
    assert strategy.metrics["augment/hinted"] == strategy.metrics["augment/noisy"] == 0
    rewards = [sum(e.reward for e in episodes[i : i + 3]) / 3 for i in (0, 3)]
    assert strategy.recent == rewards and strategy.metrics["augment/first_reward"] == sum(rewards) / 2


def test_hard_groups_are_played_again_with_a_hint(policy, task):
    """Questions that are never answered would stay without a signal."""
    strategy = Augment(policy, task, 0, hint=0.2)
    strategy.recent = [4.0] * 100  # both groups fall short of it by 2 to 3
    episodes = stepped(strategy, policy, task)
    assert strategy.metrics["augment/hinted"] == 1.0 and strategy.metrics["augment/noisy"] == 0
    assert [(e.sample.id, e.group) for e in episodes] == [(f"clips/train/{i}", i) for i in (0, 1) for _ in range(3)]
    for episode in episodes:
        *before, hint = episode.turns[0].observation.content
        assert tuple(before) == task.samples("train")[episode.group].prompt.content
        assert hint.startswith("\nA right answer begins with: ") and episode.sample.prompt.content[-1] == hint
    assert len(strategy.recent) == 100 and strategy.recent[-1] < 4  # what the hint made of it does not count


@pytest.mark.parametrize("right", [True, False])
def test_a_hint_is_of_the_policys_own_answer_where_that_is_right(right, policy, task):
    """Another one's words would be learned, or a wrong answer be recommended."""
    told: dict[str, str] = {}

    class Judged(type(task)):
        """What is answered with the gold answer in sight is right, or never."""

        def score(self, episode):
            score = super().score(episode)
            if "A right answer is: " not in episode.turns[0].observation.text:
                return score
            told[episode.sample.id] = episode.completion
            return replace(score, correct=float(right))

    strategy = Augment(policy, Judged(), 0, hint=1.0, most=0.5)
    strategy.recent = [4.0]
    for episode in stepped(strategy, policy, Judged()):
        hint = episode.turns[0].observation.content[-1].removeprefix("\nA right answer begins with: ")
        assert hint == (beginning(told[episode.sample.id], 0.5) if right else "<think>I see what moves in")


def test_easy_groups_are_played_again_with_noise(policy, task):
    """Questions that are always answered would stay without a signal."""
    strategy = Augment(policy, task, 0, noise=0.1)
    strategy.recent = [-1.0]
    episodes = stepped(strategy, policy, task, step=7)
    assert strategy.metrics["augment/noisy"] == 1.0 and strategy.metrics["augment/hinted"] == 0
    for episode, gap in zip(episodes, np.repeat([r + 1.0 for r in strategy.recent[1:]], 3), strict=True):
        shown, before = episode.turns[0].observation, task.samples("train")[episode.group].prompt
        assert shown.text == before.text
        pixels = [np.asarray(getattr(part, "frames", part), float) for part in (shown.content[0], before.content[0])]
        middle = (pixels[1] > 80) & (pixels[1] < 175)  # far from where brightness ends
        assert np.std((pixels[0] - pixels[1])[middle]) == pytest.approx(25.5 * gap, rel=0.15)
    again = Augment(policy, task, 0, noise=0.1)
    again.recent = [-1.0]
    assert prompts(stepped(again, policy, task, step=7)) == prompts(episodes)
    again.recent = [-1.0]
    assert prompts(stepped(again, policy, task, step=8)) != prompts(episodes)


def test_strength_grows_with_the_difference(policy, task):
    """A group just below the mean would be treated as one that fails altogether."""
    lengths = []
    for reference in (2.5, 3.0, 4.0):
        strategy = Augment(policy, task, 0, hint=0.1, most=1.0)
        strategy.recent = [reference]
        lengths.append(len(prompts(stepped(strategy, policy, task))[0][-1]))
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


@given(st.text(max_size=40), st.floats(0, 1))
def test_a_beginning_is_no_longer_than_its_share(answer, share):
    """A hint would give away more of the answer than the option says."""
    begun = beginning(answer, share)
    assert answer.startswith(begun) and len(begun) <= share * len(answer)
    assert beginning(answer, 1.0) == answer and beginning(answer, 0.0) == ""


def test_words_are_not_cut():
    """A hint would end in a syllable that means something else."""
    assert beginning("the red circle", 0.75) == "the red"
    assert beginning("<answer>[3,4]</answer>", 0.5) == "<answer>[3,"


def test_a_resumed_run_goes_on_exactly(policy, task):
    """The reference would start from nothing, and other prompts be changed than in an unbroken run."""
    strategy = Augment(policy, task, 0, window=3)
    for step in range(2):
        stepped(strategy, policy, task, step)
    tensors: dict = {}
    plain_state = json.loads(json.dumps(flatten(strategy.state_dict(), tensors)))
    resumed = Augment(policy, task, 0, window=3)
    resumed.load_state_dict(unflatten(plain_state, tensors))
    assert len(resumed.recent) == 3
    one, other = (stepped(each, policy, task, 2, count=4) for each in (strategy, resumed))
    assert [e.completion for e in one] == [e.completion for e in other] and prompts(one) == prompts(other)
    assert strategy.recent == resumed.recent and strategy.metrics == resumed.metrics


def test_a_hint_that_no_longer_fits_is_left_out(policy, task, monkeypatch):
    """A run would stop at the first hard question of full length."""
    monkeypatch.setattr(policy.codec, "max_prompt", len(policy.prompt(task.samples("train")[0].prompt).ids))
    policy._prompts.forget()
    strategy = Augment(policy, task, 0)
    strategy.recent = [9.0]
    episodes = stepped(strategy, policy, task, count=1)
    assert strategy.metrics["augment/hinted"] == 0 and prompts(episodes)[0] == task.samples("train")[0].prompt.content


def test_nothing_is_played_again_for_a_difference_that_does_not_show(policy, task):
    """Half of a run's time would go into groups that are asked the same again."""
    for shift in (-0.004, 0.004):
        strategy = Augment(policy, task, 0)
        mean = stepped(strategy, policy, task, count=1) and strategy.recent[-1]
        strategy.recent = [mean + shift]
        state = policy.generator.get_state()
        stepped(strategy, policy, task, count=1)
        assert strategy.metrics["augment/hinted"] == strategy.metrics["augment/noisy"] == 0
        assert torch.equal(policy.generator.get_state(), state)  # nothing more was sampled


def test_a_task_that_shows_something_else_is_refused(policy, task, monkeypatch):
    """The changed prompts would arrive nowhere, and the method do nothing in silence."""

    class Elsewhere(Environment):
        def reset(self):
            return Observation((Image.new("RGB", (32, 32)), "Click"))

        def step(self, action, frames=()):
            return Step(self.reset(), terminated=True)

        def close(self):
            pass

    monkeypatch.setattr(type(task), "environment", lambda task, sample: Elsewhere(), raising=False)
    with pytest.raises(UserError, match=r"augment changes prompts, but the environment of clips/train/0"):
        stepped(Augment(policy, task, 0), policy, task)


def test_options_are_checked(policy, task):
    """A share of more than the whole answer would give it away."""
    for option in ({"most": 1.5}, {"noise": -1}, {"window": 0}):
        with pytest.raises(UserError, match=rf"rollout_strategy\.{next(iter(option))}"):
            registry.make("rollout_strategy", Component(name="augment", **option), "rollout_strategy", policy, task, 0)


def test_images_of_any_mode_take_noise():
    """A palette image would get noise on its colour numbers."""
    rng = np.random.default_rng(0)
    image = Image.new("P", (8, 8))
    (shown,) = rollout_common.noisy(Observation((image,)), 0.1, rng).images
    assert (shown.mode, shown.size) == ("RGB", (8, 8))
