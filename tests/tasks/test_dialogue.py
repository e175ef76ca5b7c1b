"""Dialogues: messages of a file or drawn, turn by turn, and an end that is checked."""

import json

import numpy as np
import pytest
from PIL import Image

from rewards.text import TextTruth
from tasks import check
from tasks.context import LastImages, SummaryContext
from tasks.dialogue import Dialogue
from vlrl.types import Data, Decision, Episode, ToolCall, Turn, UserError


def play(task, sample, replies=None):
    """A scored episode of these replies, or of gold ones."""
    environment, episode = task.environment(sample), Episode(sample, 0)
    shown = environment.reset()
    while not episode.turns or not episode.turns[-1].step.terminated:
        text = environment.gold(()) if replies is None else replies[len(episode.turns)]
        step = environment.step(text)
        episode.turns.append(Turn(shown, Decision(text, None, None, False), step))
        shown = step.observation
    environment.close()
    episode.score = task.score(episode)
    return episode


def test_the_second_turn_needs_the_first_one_s_image():
    """Of the second picture alone nobody can say what is gone."""
    task = Dialogue()
    for sample in task.samples("test")[:20]:
        episode = play(task, sample)
        assert [len(turn.observation.images) for turn in episode.turns] == [1, 1]
        before, after = (np.asarray(turn.observation.images[0], int) for turn in episode.turns)
        changed = np.abs(before - after).max(-1) > 0
        assert 0 < changed.mean() < 0.2
        colors = {tuple(color) for color in before[changed]}
        assert len(colors) == 1  # one thing, whole
        assert episode.score.correct == 1.0
        assert play(task, sample, ["I do.", "<answer>nothing</answer>"]).score.correct == 0.0
    samples = task.samples("test")[:40]
    assert len({sample.answer.text.answer for sample in samples}) > 10


@pytest.mark.parametrize(
    "options", [{"context": LastImages(images=1)}, {"context": SummaryContext(every=1)}, {"replies": "file"}]
)
def test_every_form_can_be_trained_on(options):
    """Whoever writes the replies, and whatever is shown of them."""
    assert [finding for finding in check.prove(Dialogue(**options), 4) if finding.problem] == []


def test_shapes_can_be_chosen():
    """A model that cannot tell shapes apart is to be asked for colors alone."""
    samples = Dialogue(shapes=["square"], objects=(3, 4)).samples("test")[:20]
    assert {sample.answer.text.answer.split()[1] for sample in samples} == {"square"}
    assert len({sample.answer.text.answer for sample in samples}) > 3
    with pytest.raises(UserError, match=r"objects.*6 at most"):
        Dialogue(shapes=["square"], objects=(2, 7))


def test_environments_are_single_use():
    """A reused one would mix two conversations."""
    task = Dialogue()
    environment = task.environment(task.samples("train")[0])
    with pytest.raises(RuntimeError):
        environment.step("x")
    environment.reset()
    environment.step("x")
    environment.step("x")
    for again in (environment.reset, lambda: environment.step("x")):
        with pytest.raises(RuntimeError):
            again()


@pytest.fixture
def pictures(tmp_path):
    for name, size in (("sea.png", (40, 30)), ("hill.png", (30, 40))):
        Image.effect_noise(size, 60).convert("RGB").save(tmp_path / name)
    return tmp_path


def read(pictures, *rows, **options):
    file = pictures / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Dialogue(data=Data(train=str(file)), **options)


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


TWO = {
    "messages": [
        {"role": "system", "content": "Be brief."}, user("<image>What is this?"), assistant("The sea."),
        user([{"type": "text", "text": "And this,"}, {"type": "image", "image": "hill.png"}]),
        assistant("<think>Green.</think><answer>a hill</answer>"),
    ],
    "images": ["sea.png"], "category": "places",
}  # fmt: skip
SHAREGPT = {
    "image": "sea.png", "answer": "2", "options": ["1", "2"],
    "conversations": [{"from": "human", "value": "<image>\nSee?"}, {"from": "gpt", "value": "Yes."},
                      {"from": "human", "value": "How many gulls?"}],
}  # fmt: skip
CALLING = {
    "images": ["sea.png", "hill.png"], "system": "Zoom.",
    "conversations": [{"from": "human", "value": "<image>How many gulls?"},
                      {"from": "function_call", "value": '{"name": "zoom", "arguments": {"box": [0, 0, 9, 9]}}'},
                      {"from": "observation", "value": "<image>"}, {"from": "gpt", "value": "2"}],
}  # fmt: skip
CALLED = {
    "messages": [
        user("What is 6 x 7?"),
        assistant("", tool_calls=[{"type": "function", "function": {"name": "mul", "arguments": '{"a": 6, "b": 7}'}}]),
        {"role": "tool", "content": "42"},
    ],
    "answer": 42,
}  # fmt: skip


def test_the_policy_answers_each_user_message(pictures):
    """Its own replies stand between them; the last one is checked."""
    task = read(pictures, TWO)
    sample = task.samples("train")[0]
    episode = play(task, sample)
    roles = [[message.role for message in turn.observation.messages] for turn in episode.turns]
    assert roles == [["system", "user"], ["user"]]
    assert [image.size for turn in episode.turns for image in turn.observation.images] == [(40, 30), (30, 40)]
    assert episode.turns[0].decision.action == "The sea."
    assert sample.answer.text == TextTruth("text", "a hill")
    assert (episode.score.correct, sample.tags) == (1.0, {"category": "places"})
    assert task.metrics([episode]) == {"turns": 2.0, "category/places": 1.0, "parse_fail": 0.0}


def test_the_file_may_write_the_replies(pictures):
    """Then the whole is one prompt, calls of tools among it."""
    sample = read(pictures, TWO, replies="file").samples("train")[0]
    assert [message.role for message in sample.prompt.messages] == ["system", "user", "assistant", "user"]
    called = read(pictures, CALLED, replies="file", system="Add.").samples("train")[0]
    assert [message.role for message in called.prompt.messages] == ["system", "user", "assistant", "tool"]
    assert called.prompt.messages[2].tool_calls == (ToolCall("mul", {"a": 6, "b": 7}),)


def test_sharegpt_files_are_read(pictures):
    """As LLaVA's training data are written; options are listed with their letters."""
    task = read(pictures, SHAREGPT)
    episode = play(task, task.samples("train")[0])
    assert [turn.observation.text for turn in episode.turns][1].startswith("How many gulls?\n(A) 1 (B) 2 ")
    assert episode.turns[1].decision.action == "<answer>B</answer>"
    assert episode.score.correct == 1.0


def test_sharegpt_files_with_tools_are_read(pictures):
    """As LLaMA-Factory writes recorded searches: calls, and images that tools returned."""
    sample = read(pictures, CALLING, replies="file").samples("train")[0]
    messages = sample.prompt.messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2].tool_calls == (ToolCall("zoom", {"box": [0, 0, 9, 9]}),)
    assert ([image.size for image in sample.prompt.images], sample.answer.text.answer) == ([(40, 30), (30, 40)], "2")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": [], "answer": "1"}, "messages: must be a list of messages"),
        ({"messages": [{"role": "robot", "content": "x"}], "answer": "1"}, "messages.0: the role 'robot': must be"),
        ({"messages": ["hello"], "answer": "1"}, "messages.0: the role 'hello'"),
        ({"messages": [user("x")]}, "answer: is missing"),
        ({"messages": [assistant("x")]}, "messages: the last one, before the answer"),
        ({"messages": [user("")], "answer": "1"}, "messages.0.content: is empty"),
        ({"messages": [user([{"type": "audio"}])], "answer": "1"}, "messages.0.content.0: must be"),
        ({"messages": [user("<image>x")], "answer": "1"}, "shows an image that `images` has not"),
        ({"messages": [user("x")], "images": ["sea.png"], "answer": "1"}, "images: more than the messages show"),
        ({"messages": [user("<image>x")], "images": ["lake.png"], "answer": "1"}, "lake.png"),
        ({"messages": [user("<image>x")], "images": ["../sea.png"], "answer": "1"}, "leads out"),
        ({"messages": [assistant("", tool_calls=[{"name": 1}]), user("x")], "answer": "1"}, "messages.0.tool_calls"),
        ({"messages": [assistant("", tool_calls=[{"name": "f", "arguments": "{"}]), user("x")], "answer": "1"},
         "arguments are not JSON"),
        ({"conversations": [{"from": "function_call", "value": "{"}], "answer": "1"}, "conversations.0: the call is"),
        ({"conversations": [{"from": "function_call"}], "answer": "1"}, "conversations.0: the call is not JSON"),
        ({"conversations": [{"from": "alien", "value": "x"}], "answer": "1"}, "messages.0: the role 'alien'"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(pictures, row, problem):
    """In one line, before the run."""
    with pytest.raises(UserError, match=problem) as caught:
        read(pictures, row)
    assert "row 1: " in str(caught.value) and "\n" not in str(caught.value)
