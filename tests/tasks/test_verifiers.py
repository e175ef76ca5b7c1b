"""Environments of verifiers as tasks, written in its own classes (toy_verifiers.py) and run by its own code."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="the extra verifiers")

from tasks.context import LastImages, write_call
from tasks.verifiers import Verifiers
from tests.tasks.episodes import play
from vlrl.rollout import scored
from vlrl.types import Episode, Turn, UserError


@pytest.fixture(autouse=True)
def _environments_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def make():
    """Makes a task, which is closed at the end."""
    tasks = []

    def create(id: str = "toy-verifiers", held_out: int = 3, **options) -> Verifiers:
        tasks.append(Verifiers(id=id, held_out=held_out, **options))
        return tasks[-1]

    yield create
    for task in tasks:
        task.close()


def score(task, answers, index=0):
    return task.score(play(task, answers, index))


def test_gold_earns_the_maximum_and_wrong_answers_less(make):
    """The environment's own rubric is the reward, with its own weights; thoughts are kept from it as by a server."""
    task = make(gold="{answer}", args={"system": "Be brief."})
    for index in range(4):
        sample = task.samples("train")[index]
        (system, user), gold = sample.prompt.messages, task.gold(sample, ())
        image, question = user.content
        assert (system.content, question, image.size) == (("Be brief.",), "Which color?", (32, 32))
        assert image.getpixel((0, 0)) != (0, 0, 0) and gold == sample.answer.fields["answer"]
        best = score(task, [gold], index)
        assert best.parts == {"reward": 1.0, "rubric_exact": 1.0, "rubric_mentions": 1.0, "metric_length": len(gold)}
        assert best.correct == task.reward(best) == 1.0
        near = score(task, [f"<think>Is it?</think>\nIt is {gold}."], index)
        assert (near.correct, task.reward(near), near.parts["metric_length"]) == (0.0, 0.25, len(gold) + 7)
        assert task.reward(score(task, ["no"], index)) == 0.0
    by_part = make(success="rubric_mentions")
    answer = by_part.samples("train")[0].answer.fields["answer"]
    assert score(by_part, [f"It is {answer}."]).correct == 1.0


def test_splits_are_apart_and_stay(make):
    """Held-out tasks that were trained on measure nothing; other ids on another machine would mix up baselines."""
    task, again = make(), make()
    ids = {split: [sample.id for sample in task.samples(split)] for split in ("train", "test")}
    assert len(ids["test"]) == 3 and len({*ids["train"], *ids["test"]}) == 12
    assert ids == {split: [sample.id for sample in again.samples(split)] for split in ids}
    assert ids["test"] != [sample.id for sample in make(seed=1).samples("test")]
    own = make(test_args={"split": "test", "count": 2})
    assert (len(own.samples("train")), len(own.samples("test"))) == (12, 2)
    assert len(make(pool=5).samples("train")) == 5


def test_an_environments_own_turns_and_judgement(make):
    """Its control flow answers the policy; what its `finalize` records counts as well."""
    task = make("toy_verifiers:guess", 2)
    secret = task.samples("train")[0].answer.fields["secret"]
    episode = play(task, ["0", "9", str(secret)])
    assert [turn.observation.text for turn in episode.turns] == ["Guess a number from 1 to 8.", "Higher.", "Lower."]
    assert not episode.turns[1].observation.restart and episode.turns[2].step.terminated
    found = task.score(episode)
    assert found.parts == {"reward": 1.5, "rubric_found": 1.0, "rubric_quick": 1.0, "metric_guesses": 3.0}
    episode.score = found
    assert task.metrics([episode]) == {"turns": 3.0, "truncated": 0.0}
    cut = play(make("toy_verifiers:guess", 2, turns=2), ["0", "9", str(secret)])
    assert len(cut.turns) == 2 and cut.turns[-1].step.truncated and task.score(cut).parts["reward"] == 0.5
    died = play(task, ["0", "crash"]).turns[-1].step
    assert died.truncated and died.fault == "toy_verifiers:guess: OSError: the game"


def test_a_control_flow_of_verifiers_around_an_environment(make):
    """What is to be repeated would be played once; its rewards are means of its conversations."""
    task = make(environment={"id": "best-of-n", "n": 2})
    answer = task.samples("train")[0].answer.fields["answer"]
    episode = play(task, [answer, "no"])
    assert [len(turn.observation.images) for turn in episode.turns] == [1, 1] and episode.turns[1].observation.restart
    assert task.score(episode).parts["rubric_exact"] == 0.5


def test_tools_are_called_with_the_episodes_state(make):
    """A state that leaks from one episode into the next, or a call that is not carried out, changes rewards."""
    task = make("toy_verifiers:Shop", 1)
    price = str(task.samples("train")[0].answer.fields["prices"]["tea"])
    assert {tool["function"]["name"] for tool in task.samples("train")[0].prompt.tools} == {"store_price", "draw"}
    tea, red = write_call("store_price", {"item": "tea"}), write_call("draw", {"color": "red"})
    for _ in range(2):
        episode = play(task, [f"<think>x</think>I look. {tea}", price])
        assert episode.turns[1].observation.messages[0].role == "tool"
        assert episode.turns[1].observation.text == f"{price} euros"
        assert task.score(episode).correct == 1.0
    assert score(task, [price]).correct == 0.0  # it never looked
    (image,) = play(task, [red, price]).turns[1].observation.images
    assert image.getpixel((0, 0)) == (255, 0, 0)
    wrong = write_call("store_price", {"item": 3}) + write_call("prices", {}) + "<tool_call>{"
    episode = play(task, [wrong, tea, price])
    assert [text.split(":")[0] for text in episode.turns[1].observation.content] == ["Error"] * 3
    episode.score = task.score(episode)
    assert episode.score.correct == 1.0
    counts = task.metrics([episode])
    assert (counts["turns"], counts["tool_calls"], counts["malformed_calls"]) == (3.0, 4.0, 0.25)
    shown = play(make("toy_verifiers:Shop", 1, context=LastImages(images=1)), [red, red, price]).turns[2].observation
    assert shown.restart and len(shown.images) == 1


@pytest.mark.parametrize(("fails", "reason"), [("raises", "reward_raised"), ("hangs", "reward_late")])
def test_a_rubric_that_fails_costs_its_own_episode_alone(fails, reason, make, capsys):
    """A grader that breaks at what a model writes would end the run, or count as a wrong answer."""
    task = make(args={"task": {"fails": fails}})
    task.reward_timeout_s = 0.5
    answer = task.samples("train")[0].answer.fields["answer"]
    episodes = [play(task, [text]) for text in (answer, fails.removesuffix("s"), "no")]
    scored(task, episodes)
    assert [episode.score.reason for episode in episodes] == [None, reason, None]
    assert [episode.reward for episode in episodes] == [1.0, 0.5, 0.0]
    assert ("the grader" if fails == "raises" else "0.5 s") in capsys.readouterr().err
    assert task.score(play(task, [answer])).correct == 1.0  # the loop that was interrupted goes on
    judged = make("toy_verifiers:guess", 2, args={"fails": "finalize"})
    with pytest.raises(Exception, match="ValueError: no judgement"):
        score(judged, [str(judged.samples("train")[0].answer.fields["secret"])])


def test_an_environment_that_hangs_makes_the_episode_void(make):
    """A run would stand still for ever."""
    step = play(make("toy_verifiers:Slow", 1, seconds=0.3), ["1"]).turns[-1].step
    assert step.fault == "toy_verifiers:Slow: took longer than task.seconds = 0.3 s"


def test_episodes_that_others_recorded_are_scored_alike(make):
    """`vlrl score`, gold answers and other trainers bring texts, not episodes that this process played."""
    for id, answers in (("toy_verifiers:guess", ["9", "2"]), ("toy_verifiers:Shop", ["no"]), ("toy-verifiers", ["x"])):
        task = make(id, 1)
        episode = play(task, answers)
        bare = [Turn(turn.observation, turn.decision, type(turn.step)(turn.observation)) for turn in episode.turns]
        assert task.score(Episode(episode.sample, 0, bare)).parts == task.score(episode).parts


def test_episodes_hang_on_their_sample_alone(make):
    """A group's episodes must begin alike, and a resumed run's as those of one that went through."""
    shown = []
    for state in (1, 2):
        random.seed(state)
        task = make("toy_verifiers:rolls", 3)
        episode = play(task, "abcd", index=2)
        assert random.random() == random.Random(state).random()
        shown.append([turn.observation.text for turn in episode.turns])
        assert [turn.observation.restart for turn in episode.turns] == [False, True, True, True]
        assert all(len(turn.observation.messages) == 1 for turn in episode.turns[:2])
        for turn, letter in zip(episode.turns[2:], "ab", strict=True):
            _, own, answer = turn.observation.messages
            assert (own.role, own.content, answer.content[0][0]) == ("assistant", (letter,), letter)
    assert shown[0] == shown[1]


def test_rewards_run_programs_only_where_that_was_allowed(make):
    """Code that a model wrote would run unprotected without anybody having said so."""
    with pytest.raises(UserError, match=r"task\.runtime: toy_verifiers:Programs: ran run programs: `subprocess`"):
        make("toy_verifiers:Programs", 1)
    allowed = make("toy_verifiers:Programs", 1, runtime="subprocess")
    assert [score(allowed, [answer]).correct for answer in ("2", "3")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"id": "toy-verifier"}, "task.id: toy-verifier: no such environment is installed"),
        ({"id": "texarena"}, "no such environment is installed; did you mean 'textarena'"),
        ({"args": {"cuont": 3}}, r"task\.args\.cuont: .*; did you mean 'count'"),
        ({"args": {"count": "many"}}, r"task\.args\.count: .*integer"),
        ({"args": {"split": "offline"}}, "cannot list its tasks: ConnectionError: cannot reach the hub"),
        ({"held_out": 12}, "held_out: 12: must be below the 12 tasks"),
        ({"environment": {"id": "user-sim"}}, "has the agents assistant, user"),
        ({"id": "toy_verifiers:guess", "args": {"fail": "x"}}, r"task\.args\.fail: .*; did you mean 'fails'"),
        ({"id": "toy_verifiers:Boxed"}, "needs a container"),
        ({"id": "toy_verifiers:COLORS"}, "must be a Taskset, or a function"),
        ({"id": "toy_verifiers:Nothing"}, "cannot find 'toy_verifiers:Nothing'"),
        ({"success": "rubric_exat", "held_out": 3}, "success.*one of reward, rubric_exact"),
        ({"gold": "{anwser}"}, r"task\.gold: no field 'anwser'; did you mean 'answer'"),
        ({"weights": {"exact": 1.0}}, "weights"),
        ({"id": "toy_verifiers:guess", "environment": {"n": 2}}, "environment"),
        ({"id": "toy_verifiers:BrokenShop"}, "task.id: toy_verifiers:BrokenShop: OSError: no"),
        ({"id": "toy_verifiers:RemoteShop"}, "task.id: Store is a tool server at http://127.0.0.1:9/mcp: only those"),
    ],
)
def test_mistakes_are_one_line(options, told, make):
    """A traceback of somebody else's code says nothing of the option that was misspelt."""

    def use() -> None:
        task = make(**options)
        score(task, ["x"])
        task.gold(task.samples("train")[0], ())

    with pytest.raises(UserError, match=told) as caught:
        use()
    assert "\n" not in str(caught.value)


def test_without_the_package_the_line_says_what_to_install(monkeypatch):
    """The first thing that a user of this task meets."""
    monkeypatch.setitem(sys.modules, "verifiers.v1.utils", None)
    with pytest.raises(UserError, match=r"pip install 'vlrl\[verifiers\]'"):
        Verifiers(id="toy-verifiers")
