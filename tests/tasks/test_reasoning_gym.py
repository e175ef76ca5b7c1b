"""reasoning_gym's generators as tasks: their gold earns the maximum, their graders run nothing that a model wrote."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import pytest

from tasks.reasoning_gym import ReasoningGym, does_evaluate, draw_text, make_dataset, read_plain
from vlrl.types import Decision, Episode, Step, Turn, UserError

pytest.importorskip("reasoning_gym", reason="the extra environments")
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

NO_GOLD = {"boxnet", "rush_hour"}  # of many answers they tell none
GENERATORS = sorted(set(DATASETS) - {"composite"})  # made of others, by objects
QUICK = {
    "boxnet",
    "chain_sum",
    "graph_color",
    "leg_counting",
    "list_functions",
    "maze",
    "n_queens",
    "simple_integration",
}


def score(task, sample, completion):
    decision = Decision(completion, None, None, False)
    turn = Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))
    return task.score(Episode(sample, 0, [turn]))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GENERATORS]
)
def test_gold_earns_the_maximum_and_splits_differ(name):
    """All of them by their own graders; a wrong answer earns less, and no answer is an error."""
    task = ReasoningGym(generators=[name], pool=4, held_out=2)
    (train, *_), (test, *_) = (task.samples(split)[:2] for split in ("train", "test"))
    assert (
        train.id != test.id
        and train.answer[1] != test.answer[1]
        and train.prompt.content == task.samples("train")[0].prompt.content
    )
    for sample in (train, test) if name not in NO_GOLD else ():
        found = score(task, sample, task.gold(sample, ()))
        assert found.correct == found.parts["correct"] == found.parts["score"] == 1.0 and task.reward(found) == 1.0, (
            sample.answer
        )
    for wrong in ("<answer>no such thing</answer>", "<answer>\x00[[</answer>", "<answer>1</answer>", "none"):
        assert 0.0 <= score(task, train, wrong).parts["score"] <= 1.0


def widen(text: str) -> str:
    """In full-width letters, which Python reads as the usual ones."""
    return "".join(chr(ord(each) + 0xFEE0) if each.isalpha() else each for each in text)


CALL = '__import__("os").system("touch {0}")'
HOSTILE = (
    CALL, f"'{CALL}'", f"['{CALL}']", "['__import__' '(\"os\")' '.system' '(\"touch {0}\")']",
    "'\\x5f\\x5fimport'", "open('{0}', 'w')", "[open('{0}', 'w')]", "(1).__class__", "exit()", "x(1)", "(exp)(1)",
    "'9**9**9**9'", "9**9**9**9", "9**(9**9)", "(((9**99)**99)**99)**99", "exp(exp(exp(99)))", "exp((99**99)**99)",
    "N(pi, 9999999)", "x.real", "1 .real", "lambda: 1", widen("exit()"), widen("eval(chr(49)+chr(48))"),
    "['[S for S in Naturals]']", "[\"f'{S:2999999999}'\"]", "[b'exit()']",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in GENERATORS if does_evaluate(make_dataset(name, {}, 0, 2))])
def test_a_grader_that_evaluates_gets_no_program(name, tmp_path):
    """Ten of reasoning_gym's graders call `eval` or sympy's `parse_expr` with whatever the model wrote."""
    task = ReasoningGym(generators=[name], pool=2, held_out=2)
    for text in HOSTILE:
        found = score(task, task.samples("test")[0], f"<answer>{text.replace('{0}', str(tmp_path / 'file'))}</answer>")
        assert found.reason == "not_plain" and found.parts["format"] == 0.0
    assert not (tmp_path / "file").exists()


PLAIN = (
    "x**2 - 3*x + C", "2*sin(x)**3/3", "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C", "[[1, 2], [3, 0]]",
    "_ Q _\nQ _ _", "ABBA", "(3 + 4)*-2", "['-3.0', '41', '']", "{'a': (1, 'b c')}",
)  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_answers_are_plain(text):
    """A guard that refuses right answers would pay nothing for them."""
    assert read_plain(text).value == text


def test_a_picture_of_the_text():
    """Every letter is on it: a line that is cut off cannot be solved."""
    task = ReasoningGym(generators=["leg_counting"], shows="image", width=224)
    sample = task.samples("test")[0]
    image, asked = sample.prompt.content
    assert image.width == 224 and "picture" in asked and "legs" not in asked
    rows = np.asarray(image.convert("L")).min(1)
    assert (rows < 128).any() and (np.asarray(image)[:, -3:] == 255).all() and rows[-4:].min() == 255
    assert draw_text("n " * 200, 224, 14).height > draw_text("n " * 20, 224, 14).height


def test_several_take_turns_with_their_options():
    """A mixture that is not even, or options that reach another generator, would be another data set."""
    task = ReasoningGym(generators=["leg_counting", "gcd"], options={"leg_counting": {"max_animals": 3}}, pool=6)
    samples = task.samples("train")[:6]
    assert [sample.answer[0] for sample in samples] == ["leg_counting", "gcd"] * 3
    assert all(len(sample.answer[1]["metadata"]["animals"]) <= 3 for sample in samples[::2])
    episodes = []
    for sample in samples:
        turn = Turn(sample.prompt, Decision(task.gold(sample, ()), None, None, False), Step(sample.prompt))
        episode = Episode(sample, 0, [turn])
        episode.score = task.score(episode)
        episodes.append(episode)
    assert task.metrics(episodes) == {"by/leg_counting": 1.0, "by/gcd": 1.0, "parse_fail": 0.0}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"generators": ["leg_countin"]}, "no generator 'leg_countin'; did you mean 'leg_counting'"),
        ({"generators": []}, "one or more names"),
        ({"options": {"gcd": {}}}, r"task\.options\.gcd"),
        ({"options": {"leg_counting": {"legs": 3}}}, r"task\.options\.leg_counting: .*legs.*it takes .*max_animals"),
        ({"options": {"leg_counting": {"min_animals": -3}}}, r"task\.options\.leg_counting: "),
        ({"width": 3}, "width, letter"),
        ({"seed": 2**30}, "seed"),
    ],
)
def test_what_does_not_exist_is_one_line(options, told):
    """Names and options are the package's own, and change with it."""
    with pytest.raises(UserError, match=told) as caught:
        ReasoningGym(**options)
    assert "\n" not in str(caught.value)


def test_an_evaluation_says_what_it_was_made_with():
    """Two results would be compared that other rules were graded by."""
    assert ReasoningGym().facts(()) == {"reasoning-gym": metadata.version("reasoning-gym")}


@dataclass
class ThirdsConfig:
    seed: int = 0
    size: int = 9


class Thirds(ProceduralDataset):
    """A user's own generator, which fails at its third puzzle."""

    def __init__(self, config):
        super().__init__(config, config.seed, config.size)

    def __getitem__(self, index):
        if index == 2:
            raise ZeroDivisionError("no number\nis left")
        return {"question": f"{index} + 1", "answer": str(index + 1), "metadata": {}}


@pytest.mark.parametrize(("split", "seed"), [("train", 42), ("test", 2**30 + 42)])
def test_a_question_that_cannot_be_generated_is_one_line(monkeypatch, split, seed):
    """Hours of training would end in somebody else's traceback, which names neither the generator nor the seed."""
    monkeypatch.setitem(DATASETS, "thirds", (Thirds, ThirdsConfig))
    samples = ReasoningGym(generators=["gcd", "thirds"], seed=40, pool=8, held_out=8).samples(split)
    assert samples[3].answer[1]["question"] == "1 + 1"
    told = rf"task\.generators: thirds: no question of seed {seed}: no number; choose another task\.seed"
    with pytest.raises(UserError, match=told) as caught:
        samples[5]
    assert "\n" not in str(caught.value) and samples[7].answer[1]["answer"] == "4"


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(UserError, match=r"task\.name: reasoning_gym: pip install 'vlrl\[environments\]'"):
        ReasoningGym()
