"""What a policy is shown of a long conversation, and that coordinates still mean the image that they speak of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks.context import (
    FULL,
    HIDDEN,
    SUMMARISE,
    ContextStrategy,
    Full,
    LastImages,
    SummaryContext,
    ToolEnvironment,
    with_context,
    write_call,
)
from tasks.tools import load_tools
from vlrl.config import check_options
from vlrl.types import Frame, Message, Observation, UserError

PHOTO = Image.fromarray(np.arange(40 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 60, 3))
TOOLS = load_tools(["crop"])
PROMPT = Observation.from_messages(
    (Message("system", ("Look.",)), Message("user", (PHOTO, "What is there?"))), TOOLS.schemas
)


def crop(box, image=1):
    return write_call("crop", {"image": image, "box": box})


class Conversation:
    """What a policy sees and knows: the messages shown, its own among them, and the frames of their images."""

    def __init__(self, context, turns=20, prompt=PROMPT):
        self.environment = with_context(ToolEnvironment(prompt, TOOLS, turns), context)
        self.messages: list[Message] = []
        self.restarts = 0
        self.show(self.environment.reset())

    def show(self, observation):
        self.shown = observation
        if observation.restart:
            self.messages, self.restarts = [], self.restarts + 1
        self.messages += observation.messages

    @property
    def images(self):
        return [part for message in self.messages for part in message.content if not isinstance(part, str)]

    @property
    def text(self):
        return "\n".join(part for message in self.messages for part in message.content if isinstance(part, str))

    def say(self, text):
        step = self.environment.step(text, [Frame("rel1000", image.size, image.size) for image in self.images])
        self.messages.append(Message("assistant", (text,)))
        if not (step.terminated or step.truncated):
            self.show(step.observation)
        return step


def test_full_shows_everything():
    """The environment as it is: nothing is wrapped, nothing begins anew."""
    inner = ToolEnvironment(PROMPT, TOOLS, 3)
    assert with_context(inner, FULL) is inner
    played = Conversation(Full(thoughts="strip"))
    for _ in range(3):
        played.say(crop([0, 0, 500, 500]))
    assert (played.restarts, len(played.images)) == (0, 4)


def test_only_the_last_images_stay():
    """A line stands for each older image; while there are few, messages are appended."""
    played = Conversation(LastImages(images=2))
    played.say(crop([0, 0, 500, 500]))
    assert (played.restarts, len(played.images)) == (0, 2)
    played.say(f"Again. {crop([0, 0, 900, 900])}")
    assert (played.restarts, len(played.images)) == (1, 2)
    assert played.messages[1].content == (HIDDEN.format(1), "What is there?")
    assert [message.role for message in played.messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert played.messages[4].content == (f"Again. {crop([0, 0, 900, 900])}",)  # as the policy wrote it
    assert played.shown.tools == PROMPT.tools
    played.say(crop([0, 0, 900, 900]))
    assert (played.restarts, len(played.images)) == (2, 2)
    assert played.text.count("no longer shown") == 2


def test_hidden_images_can_still_be_named():
    """Numbers stay those of the episode, and coordinates those of the image named, though the prompt's differ."""
    played = Conversation(LastImages(images=1))
    played.say(crop([0, 0, 500, 500]))
    assert played.images[0].size == (30, 20)
    step = played.say(crop([500, 500, 1000, 1000], image=1))
    assert np.array_equal(step.observation.images[-1], PHOTO.crop((30, 20, 60, 40)))
    step = played.say(crop([500, 500, 1000, 1000], image=2))
    assert np.array_equal(step.observation.images[-1], PHOTO.crop((15, 10, 30, 20)))


def test_all_images_of_one_turn_stay():
    """A tool's answer that is hidden before it was seen would be of no use."""
    played = Conversation(LastImages(images=1))
    played.say(crop([0, 0, 500, 500]) * 3)
    assert [image.size for image in played.images] == [(30, 20)] * 3


def test_thoughts_are_kept_or_stripped():
    """Models are trained either way; what changes begins a conversation anew."""
    said = f"<think>Hm.</think>\n{crop([0, 0, 500, 500])}"
    kept, stripped = Conversation(LastImages(images=9)), Conversation(LastImages(images=9, thoughts="strip"))
    for played in (kept, stripped):
        played.say(said)
    assert (kept.restarts, kept.messages[2].content) == (0, (said,))
    assert (stripped.restarts, stripped.messages[2].content) == (1, (crop([0, 0, 500, 500]),))
    stripped.say(crop([0, 0, 500, 500]))
    assert stripped.restarts == 1  # without thoughts nothing changes


def test_the_policy_writes_the_summary_itself():
    """In a turn of its own; after it only the beginning, the summary and the latest messages are shown."""
    played = Conversation(SummaryContext(every=2), turns=5)
    first = played.say(crop([0, 0, 500, 500]))
    second = played.say(crop([0, 0, 250, 250]))
    assert not first.observation.restart and not second.observation.restart
    assert second.observation.messages[-1] == Message("user", (SUMMARISE,))
    assert len(played.images) == 3
    written = played.say("I saw two corners.")
    assert written.info == {"summary": 1.0}
    assert (played.restarts, len(played.images)) == (1, 2)
    assert [message.role for message in played.messages] == ["system", "user", "assistant", "tool"]
    assert played.messages[2].content == ("I saw two corners.",)
    assert played.messages[3].content[0] == "[image 3]"
    step = played.say(crop([0, 0, 1000, 1000], image=3))
    assert np.array_equal(step.observation.images[0], PHOTO.crop((0, 0, 15, 10)))
    played.say(crop([0, 0, 1000, 1000], image=2))
    assert played.messages[-1].content == (SUMMARISE,)
    played.say("More.")
    assert (played.restarts, [m.content for m in played.messages][2]) == (2, ("More.",))
    end = played.say(crop([0, 0, 1000, 1000]))
    assert (end.truncated, end.terminated) == (True, False)  # summaries are none of the environment's turns


def test_gold_answers_go_through_every_strategy():
    """Demonstrations and check-task follow them; a summary has a gold text too."""
    script = [lambda frames, n=n: f"{crop([0, 0, 500, 500])}{n}" for n in range(4)]
    for context in (LastImages(images=1), SummaryContext(every=2), Full(thoughts="strip")):
        environment = with_context(ToolEnvironment(PROMPT, TOOLS, 9, script=script), context)
        environment.reset()
        written = [environment.gold([]) for _ in range(5) for _ in [environment.step(environment.gold([]) or "x", [])]]
        expected = [f"{crop([0, 0, 500, 500])}{n}" for n in (1, 2, 3)]
        assert [text for text in written if text and "tool_call" in text][-2:] == expected[-2:]


REPLIES = st.sampled_from([*(crop([0, 0, 900, 900], number) for number in (1, 2, 3, 9)), "<tool_call>"])
STRATEGIES = (
    LastImages(images=2),
    LastImages(images=1, thoughts="strip"),
    SummaryContext(every=1),
    SummaryContext(every=3),
)


@given(st.lists(REPLIES, max_size=9), st.sampled_from(STRATEGIES))
def test_what_is_shown_always_fits_what_was_said(replies, context):
    """Whatever is called, the policy's prompt is whole: the beginning, and every image or its line in order."""
    played, plain = Conversation(context), Conversation(FULL)
    for reply in replies:
        plain.say(reply)
        played.say(reply)
        while played.shown.messages[-1].content == (SUMMARISE,):
            played.say("So far nothing.")
        assert played.messages[0] == PROMPT.messages[0]
        if isinstance(context, LastImages):
            assert np.array_equal(played.images[-1], plain.images[-1])
            assert len(played.images) <= context.images
            assert len(played.images) + played.text.count("no longer shown") == len(plain.images)
        else:
            assert played.images[0] is PHOTO


@pytest.mark.parametrize(
    ("given_", "made"),
    [
        ({"name": "full"}, FULL),
        ({"name": "last_images", "images": 2}, LastImages(images=2)),
        ({"name": "summary", "every": 3, "thoughts": "strip"}, SummaryContext(every=3, thoughts="strip")),
    ],
)
def test_a_context_is_an_option_of_a_task(given_, made):
    """Typed and strict as all of a configuration."""
    assert check_options({"context": given_}, {"context": (ContextStrategy, FULL)}, "task") == {"context": made}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"name": "lastimages"}, r"task\.context"),
        ({"images": 2}, r"task\.context"),
        ({"name": "full", "images": 2}, r"task\.context.*images"),
        ({"name": "last_images", "images": 0}, r"context\.images: 0: must be at least 1"),
        ({"name": "summary", "every": "often"}, r"task\.context.*every"),
    ],
)
def test_a_wrong_context_is_refused(given_, message):
    """In one line that names the option."""
    with pytest.raises(UserError, match=message) as caught:
        check_options({"context": given_}, {"context": (ContextStrategy, FULL)}, "task")
    assert "\n" not in str(caught.value)
