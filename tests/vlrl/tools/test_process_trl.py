"""Reward functions of TRL as process rewards: called as TRL calls them, on real completions of the embedded model."""

from __future__ import annotations

import json
import os
import sys
import types
from dataclasses import replace

import pytest

from vlrl import recipe_checks, registry
from vlrl.config import Component, Config, PolicySection
from vlrl.policies.loading import load
from vlrl.rollout import collect
from vlrl.tools.trl_verl import numbers
from vlrl.types import UserError

NAME = "rewards_of_mine"


@pytest.fixture(scope="module")
def policy():
    return load(PolicySection(model="embedded", max_tokens=12))


@pytest.fixture(scope="module")
def task():
    return registry.make_task(Config(task={"name": "gui_grounding"}, out="out"))


@pytest.fixture
def mine(monkeypatch):
    """A user's module of reward functions."""
    module = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


@pytest.fixture
def play(policy, task):
    """Two groups of three episodes, and the process reward made of options and called on them."""

    def played(**options):
        samples = task.samples("train")
        episodes = collect(policy, task, [samples[0], samples[1]], 3)
        process = registry.make(
            "process_rewards", Component(name="trl", **options), "process_rewards.0", policy, task, 0
        )
        return episodes, process(episodes, 7), process

    return played


def test_is_called_as_trl_calls(mine, play, policy):
    """A reward that reads prompts, token ids or the training step would fail, or read something else."""
    given = {}

    def length(prompts, completions, completion_ids, **columns):
        given.update(columns, prompts=prompts, ids=completion_ids, completions=completions)
        columns["log_metric"]("longest", max(map(len, completion_ids)))
        return [float(len(each[0]["content"])) for each in completions]

    mine.length = length
    episodes, after, process = play(rewards=[f"{NAME}:length"], columns={"solution": "answer"})
    assert [each.reward for each in after] == [len(each.completion) for each in episodes]
    assert given["completions"][4] == [{"role": "assistant", "content": episodes[4].completion}]
    kinds = [block["type"] for block in given["prompts"][0][0]["content"]]
    assert (given["prompts"][0][0]["role"], kinds) == ("user", ["image", "text"])
    assert given["ids"][0] == policy.ids(episodes[0].turns[0].decision)
    assert given["solution"] == given["answer"] == [list(each.sample.answer) for each in episodes]
    assert json.dumps(given["solution"])  # plain data, as of a data set
    assert given["trainer_state"].global_step == 7
    assert process.metrics["trl_longest"] == max(map(len, given["ids"]))
    assert after[0].score.parts["trl_length"] == after[0].reward
    assert episodes[0].score.parts.keys() < after[0].score.parts.keys()


def test_none_does_not_apply(mine, play):
    """A reward for another kind of sample would count as zero, and pull down what the others gave."""
    mine.first = lambda completions, **columns: [1.0, None, float("nan"), None, 2.0, None]

    async def second(completions, **columns):
        return [10.0, None, 10.0, None, 10.0, None]

    mine.second = second
    names = [f"{NAME}:first", f"{NAME}:second"]
    episodes, after, process = play(rewards=names, weights=[1.0, 0.5], keep=2.0)
    expected = [6.0, 0.0, 5.0, 0.0, 7.0, 0.0]
    assert [a.reward - 2 * e.reward for a, e in zip(after, episodes, strict=True)] == pytest.approx(expected)
    assert (process.metrics["trl_first"], process.metrics["trl_second"]) == (1.5, 10.0)
    assert "trl_first" not in after[1].score.parts


def test_a_gold_answer_earns_what_its_reward_says(mine, play, task):
    """The columns would belong to other samples than the completions."""
    mine.same = lambda completions, gold, **columns: [float(c == g) for c, g in zip(completions, gold, strict=True)]
    episodes, after, _ = play(rewards=[f"{NAME}:same"], conversational=False)
    wanted = [task.gold(each.sample, each.frames) == each.completion for each in episodes]
    assert [each.reward for each in after] == wanted


def test_functions_of_verl_and_easyr1(mine, play):
    """Called as their reward managers call them: by position, one at a time or at once, numbers or dicts."""
    calls = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        calls.append((data_source, solution_str, ground_truth, extra_info["id"]))
        return {"score": len(solution_str), "acc": 0}

    def batch(reward_inputs, format_weight=0.1):
        assert all(each["response_length"] > 0 and each["images"] for each in reward_inputs)
        return [{"overall": 2.0 * len(each["response"]), "format": 1.0} for each in reward_inputs]

    mine.compute_score, mine.batch = compute_score, batch
    mine.single = lambda reward_input: {"overall": float(reward_input["ground_truth"] == reward_input["gold"])}
    episodes, after, _ = play(rewards=[f"{NAME}:compute_score"], api="verl")
    assert [each.reward for each in after] == [len(each.completion) for each in episodes]
    expected = [("gui_grounding", e.completion, list(e.sample.answer), e.sample.id) for e in episodes]
    assert calls == expected
    _, after, _ = play(rewards=[f"{NAME}:batch"], api="easyr1")
    assert [each.reward for each in after] == [2 * len(each.completion) for each in after]
    _, after, _ = play(rewards=[f"{NAME}:single"], api="easyr1", columns={"ground_truth": "gold"})
    assert [each.reward for each in after] == [1.0] * len(after)
    mine.lost = lambda reward_input: {"format": 1.0}
    with pytest.raises(UserError, match=r"gave \['format'\] without 'overall'"):
        play(rewards=[f"{NAME}:lost"], api="easyr1")


def test_rubric_functions_of_verifiers(mine, play, task):
    """They read the task's fields and the trace by name, and most of them are asynchronous."""
    vf = pytest.importorskip("verifiers.v1", reason="the extra verifiers")
    calls = []

    @vf.reward(weight=2.0)
    async def exact(task, trace: vf.Trace) -> float:
        calls.append((task.prompt_text, task.answer, trace.num_turns, [each.role for each in trace.messages]))
        return float(trace.last_reply == task.gold)

    mine.exact, mine.length = exact, lambda trace: len(trace.assistant_messages[0].content)
    episodes, after, _ = play(rewards=[f"{NAME}:exact", f"{NAME}:length"], weights=[100.0, 1.0], api="verifiers")
    golds = [task.gold(each.sample, each.frames) for each in episodes]
    pairs = zip((each.completion for each in episodes), golds, strict=True)
    expected = [100.0 * (text == gold) + len(text) for text, gold in pairs]
    assert [each.reward for each in after] == expected
    texts = [(each.turns[0].observation.text, list(each.sample.answer), 1, ["user", "assistant"]) for each in episodes]
    assert calls == texts


def test_functions_of_trl_itself(mine, play):
    """What is published for TRL would not run here."""
    rewards = pytest.importorskip("trl.rewards")
    mine.overlong = rewards.get_soft_overlong_punishment(max_completion_len=12, soft_punish_cache=12)
    names = ["trl.rewards:think_format_reward", f"{NAME}:overlong"]
    episodes, after, _ = play(rewards=names)
    lengths = [len(each.turns[0].decision.inputs.tokens) for each in episodes]
    assert [each.reward for each in after] == pytest.approx([-n / 12 for n in lengths])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rewards": ["nowhere:reward"]}, "cannot find 'nowhere:reward'"),
        ({"rewards": ["reward"]}, "name a function as my_module:function"),
        ({"rewards": [f"{NAME}:bare"]}, r"takes no \*\*columns"),
        ({"rewards": [f"{NAME}:short"]}, "short gave 1 rewards for 6 completions"),
        ({"rewards": [f"{NAME}:words"]}, "words gave something that is no number"),
        ({"rewards": [f"{NAME}:short", f"{NAME}:short"]}, "each needs a name of its own"),
        ({"rewards": [f"{NAME}:short"], "weights": [1.0, 2.0]}, "2 weights for 1 rewards"),
        ({"rewards": [f"{NAME}:short"], "columns": {"solution": "truth"}}, "no column 'truth'; there are answer, gold"),
    ],
)
def test_mistakes_are_told_in_a_line(mine, play, options, told):
    """A run would end in a traceback of this project for a mistake in another's function."""
    mine.bare = lambda completions: [0.0] * len(completions)
    mine.short = lambda completions, **columns: [1.0]
    mine.words = lambda completions, **columns: ["good"] * len(completions)
    with pytest.raises(UserError, match=told) as error:
        play(**options)
    assert "\n" not in str(error.value)


def test_a_recipe_can_name_it():
    """The check of recipes would take it for a reward of steps, and refuse it for tasks of one turn."""
    process = [{"name": "trl", "rewards": [f"{NAME}:length"]}]
    recipe_checks.check(Config(task={"name": "gui_grounding"}, out="out", process_rewards=process), "c.yaml")


def test_infinity_is_refused():
    """One infinite reward makes every advantage of its group NaN."""
    with pytest.raises(UserError, match="infinite"):
        numbers("mine", [0.0, float("inf")], 2)


OWN = """
import os
import time


def pixels(prompts, completions, completion_ids, images, answer, trainer_state, log_metric, **columns):
    log_metric("longest", max(map(len, completion_ids)))
    shown = [block["image"] for prompt in prompts for block in prompt[0]["content"] if block["type"] == "image"]
    sums = [sum(image.resize((4, 4)).tobytes()) / 7 for image in shown]
    assert [image.tobytes() for image in shown] == [image.tobytes() for (image,) in images]
    return [a + len(c[0]["content"]) + sum(t) / 3 + trainer_state.global_step for a, c, t in
            zip(sums, completions, answer, strict=True)]


def some(completions, **columns):
    return [None, float("nan"), *[0.1] * (len(completions) - 2)]


def process(completions, **columns):
    return [float(os.getpid())] * len(completions)


def hang(completions, trainer_state, **columns):
    while trainer_state.global_step == 7:
        time.sleep(1)
    return [1.0] * len(completions)


def leave(completions, **columns):
    os._exit(3)


def fail(completions, **columns):
    raise ArithmeticError("no\\nreward")
"""


@pytest.fixture
def own(monkeypatch, tmp_path):
    """The same in a file, which another process can import -> its module's name."""
    (tmp_path / f"{(name := 'rewards_in_a_file')}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_process_of_their_own_changes_no_reward(own, play):
    """Isolation would change what is learned: pixels, token ids or numbers would arrive otherwise."""
    options = {"rewards": [f"{own}:pixels", f"{own}:some"], "weights": [0.3, 1.0]}
    episodes, here, local = play(**options)
    _, _, isolated = play(**options, seconds=60)
    there = isolated(episodes, 7)
    assert [each.reward for each in here] == [each.reward for each in there] and len({e.reward for e in here}) > 1
    assert [dict(each.score.parts) for each in here] == [dict(each.score.parts) for each in there]
    assert isolated.metrics == {**local.metrics, "trl_lost": 0.0} and isolated.metrics["trl_longest"] > 0
    _, after, _ = play(rewards=[f"{own}:process"], seconds=60)
    assert after[0].reward != os.getpid()


@pytest.mark.slow
def test_a_call_that_hangs_or_dies_is_lost_and_the_next_has_a_new_process(own, play):
    """One answer on which a reward hangs, or crashes its interpreter, would end hours of training."""
    names = [f"{own}:{each}" for each in ("process", "hang", "leave", "some")]
    episodes, after, process = play(rewards=names, weights=[0.0, 1.0, 1.0, 1.0], keep=1.0, seconds=10)
    assert process.metrics["trl_lost"] == 2.0 and process.metrics.keys() & {"trl_hang", "trl_leave"} == set()
    gains = [b.reward - a.reward for a, b in zip(episodes, after, strict=True)]
    assert gains == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.1, 0.1])
    first = process.metrics["trl_process"]
    again = process(episodes, 8)  # now `hang` answers
    assert process.metrics["trl_lost"] == 1.0 and process.metrics["trl_hang"] == 1.0
    assert process.metrics["trl_process"] != first
    assert [b.reward - a.reward for a, b in zip(episodes, again, strict=True)] == pytest.approx([1.0, 1.0, *[1.1] * 4])


def test_a_function_that_raises_in_its_process_is_told_in_a_line(own, play):
    """It is wrong for every answer: a run that went on would learn nothing."""
    told = r"process_rewards: trl: fail raised ArithmeticError: no.*rewards_in_a_file"
    with pytest.raises(UserError, match=told) as error:
        play(rewards=[f"{own}:fail"], seconds=60)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"cannot find 'rewards_in_a_file:lost'"):
        play(rewards=[f"{own}:lost"], seconds=60)


FORMULAS = r"""
from math_verify import parse, verify


def half(completions, **columns):
    return [float(verify(parse(r"$\frac{1}{2}$"), parse(each[0]["content"]))) for each in completions]


def unlimited(completions, **columns):
    read = [parse(each[0]["content"], parsing_timeout=None) for each in completions]
    return [float(verify(parse(r"$\frac{1}{2}$"), each, timeout_seconds=None)) for each in read]
"""
ANSWERS = ("$0.5$", r"It is $\frac{2}{4}$.", "$2$", "no formula", r"$\frac{1}{", "1/2")
GRADES = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def answer(episode, text):
    """The episode, in which the policy wrote the text."""
    turn = episode.turns[0]
    return replace(episode, turns=[replace(turn, decision=replace(turn.decision, action=text))])


@pytest.mark.slow
def test_math_verify_here_and_in_a_process_of_its_own(monkeypatch, tmp_path, play):
    """Its time limits are signals, and one tower of powers computes for ever where no signal interrupts it."""
    pytest.importorskip("math_verify", reason="the extra math")
    (tmp_path / f"{(name := 'formulas_in_a_file')}.py").write_text(FORMULAS)
    monkeypatch.syspath_prepend(tmp_path)
    episodes, _, here = play(rewards=[f"{name}:half"])
    answers = [answer(*pair) for pair in zip(episodes, ANSWERS, strict=True)]
    assert [each.reward for each in here(answers, 7)] == GRADES
    _, _, there = play(rewards=[f"{name}:half", f"{name}:unlimited"], weights=[1.0, 10.0], seconds=30)
    assert [each.reward for each in there(answers, 7)] == [11 * grade for grade in GRADES]
    endless = [answer(answers[0], "$9^{9^{9^{9}}}+1$"), *answers[1:]]
    graded = there(endless, 8)
    assert [each.reward for each in graded] == [0.0, *GRADES[1:]] and there.metrics["trl_lost"] == 1.0
    assert [each.reward for each in there(answers, 9)] == [11 * grade for grade in GRADES]
