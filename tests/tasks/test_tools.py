"""Tools: what models may call, how strictly calls are checked, and what stops a tool that misbehaves."""

import json
import time
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from rewards import parse
from tasks import tools
from tasks.context import ToolEnvironment, tool_metrics, write_call
from tasks.image_tools import TOOLS
from tasks.tools import Tool, Toolbox, ToolError, ToolFaultError, load_tools
from vlrl.types import Decision, Episode, Frame, Message, Observation, Sample, Turn, UserError

SHIPPED = ("zoom", "crop", "rotate", "measure", "wait")
PHOTO = Image.fromarray(np.arange(80 * 120 * 3, dtype=np.uint32).astype(np.uint8).reshape(80, 120, 3))
QUESTION = (Message("system", ("You look closely.",)), Message("user", (PHOTO, "What is there?")))


def frame(image, space="rel1000"):
    return Frame(space, image.size, image.size)


def run(name, space="original_px", **arguments):
    toolbox = load_tools([name])
    bound = toolbox.bind(parse.Parsed((name, arguments)), [PHOTO], [frame(PHOTO, space)])
    return bound.run()[0]


def refusal(name, **arguments):
    with pytest.raises(ToolError) as caught:
        run(name, **arguments)
    return str(caught.value)


def test_schemas_are_what_chat_templates_take():
    """Names, types and what is required are the function's own; an image is its number and may be left out."""
    schema = load_tools(["zoom"]).schemas[0]
    function = schema["function"]
    assert (schema["type"], function["name"], set(function)) == (
        "function", "zoom", {"name", "description", "parameters"}
    )  # fmt: skip
    box = function["parameters"]["properties"]["box"]
    assert (box["type"], box["prefixItems"]) == ("array", [{"type": "number"}] * 4)
    assert function["parameters"]["properties"]["image"]["type"] == "integer"
    assert function["parameters"]["required"] == ["box"]
    for tool in TOOLS.values():
        json.dumps(Tool(tool).schema)


def test_zoom_shows_the_part_in_the_size_of_the_whole():
    """Coordinates are the model's own of that image."""
    closer = run("zoom", box=[30, 20, 90, 60])
    assert closer.size == PHOTO.size
    expected = PHOTO.crop((30, 20, 90, 60)).resize(PHOTO.size, Image.Resampling.BICUBIC)
    assert np.array_equal(closer, expected)
    assert np.array_equal(run("zoom", "rel1000", box=[250, 250, 750, 750]), expected)
    between = run("zoom", "rel1000", box=[249, 249, 500, 500])  # corners between pixels: its shape stays
    assert between.size == PHOTO.size
    assert run("crop", box=[30, 20, 500, 60]).size == (90, 40)  # clipped to the image


def test_rotate_turns_clockwise():
    """The upper left corner comes to the upper right."""
    turned = run("rotate", degrees=90)
    assert turned.size == (80, 120)
    assert turned.getpixel((79, 0)) == PHOTO.getpixel((0, 0))


def test_measure_is_a_ruler():
    """Lengths in pixels of the image, whatever the model's coordinates."""
    assert json.loads(run("measure", start=[0, 40], end=[30, 0])) == {
        "length": 50.0, "width": 30.0, "height": 40.0, "angle": 53.1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("zoom", {}, "arguments.box: Field required"),
        ("zoom", {"box": [1, 2, 3]}, "arguments.box.3: Field required"),
        ("zoom", {"box": [1, 2, 3, "4"]}, "arguments.box.3: Input should be a valid number"),
        ("zoom", {"box": [1, 2, 3, 10**400]}, "arguments.box"),
        ("zoom", {"box": [5, 2, 3, 4]}, "arguments.box: must be"),
        ("zoom", {"box": [500, 2, 600, 4]}, "arguments.box: beside the image"),
        ("zoom", {"box": [1, 2, 1.5, 2.5]}, "arguments.box: the part is too small"),
        ("zoom", {"box": [1, 2, 30, 40], "label": "cat"}, "arguments.label: Extra inputs"),
        ("zoom", {"box": [1, 2, 30, 40], "image": 2}, "arguments.image: there is no image 2, but 1"),
        ("zoom", {"box": [1, 2, 30, 40], "image": True}, "arguments.image: Input should be a valid integer"),
        ("rotate", {"degrees": 45}, "arguments.degrees: Input should be 90, 180 or 270"),
        ("measure", {"start": [0, 0], "end": [200, 0]}, "arguments.end: beside the image"),
        ("wait", {"seconds": 1e9}, "arguments.seconds: Input should be less"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, message):
    """The model reads what was wrong with which argument."""
    assert refusal(name, **arguments).startswith(message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["box", "image", "degrees", "start", "end", "seconds"]) | st.text(), JSON)


@given(st.sampled_from((*SHIPPED, "read_text", "nothing")), ARGUMENTS, st.sampled_from(["rel1000", "rel1", "grid10"]))
def test_no_call_breaks_the_environment(name, arguments, space):
    """A call ends in a message, whatever it holds."""
    toolbox = Toolbox([Tool(TOOLS[each]) for each in (*SHIPPED, "read_text")])
    calls = parse.tool_calls(write_call(name, arguments))
    assert len(calls) == 1
    for call in calls:
        try:
            bound = toolbox.bind(call, [PHOTO], [frame(PHOTO, space)])
        except ToolError:
            continue
        for key in ("box", "start", "end"):
            numbers = bound.arguments.get(key) or ()
            assert all(0 <= value <= size for value, size in zip(numbers, PHOTO.size * 2, strict=False))


def hang() -> str:
    """Never returns."""
    while True:
        time.sleep(0.01)


def block() -> str:
    """Waits where nothing interrupts it."""
    time.sleep(3)
    return "late"


def fail() -> str:
    """Raises."""
    raise ZeroDivisionError("no such thing")


def leave() -> str:
    """Would end the program."""
    raise SystemExit(1)


def flood() -> str:
    """Returns 100 MB."""
    return "x" * 100_000_001


def huge() -> Image.Image:
    """Returns an image of 120 MB."""
    return Image.new("L", (8_000, 5_000))


def odd() -> object:
    """Returns what JSON cannot say."""
    return object()


def refuse(word: str) -> str:
    """Refuses.

    Args:
        word: any
    """
    raise ToolError(f"{word} is not allowed")


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (hang, "tool hang: took longer than 0.2 s"),
        (block, "tool block: took longer than 0.2 s"),
        (fail, "tool fail: ZeroDivisionError: no such thing"),
        (leave, "tool leave: SystemExit: 1"),
        (flood, "tool flood: returned more than 100 MB"),
        (huge, "tool huge: returned more than 100 MB"),
        (odd, "tool odd: returned what cannot be shown"),
    ],
)
def test_a_tool_that_misbehaves_voids_the_episode(function, fault, monkeypatch):
    """The policy is not to learn from what it did not do."""
    monkeypatch.setattr(tools, "GRACE", 0.2)
    seconds = 0.2 if "longer" in fault else 60.0  # a busy machine takes its time for 100 MB
    environment = ToolEnvironment(
        Observation.from_messages(QUESTION), Toolbox([Tool(function)]), turns=3, seconds=seconds
    )
    environment.reset()
    step = environment.step(write_call(function.__name__, {}), [frame(PHOTO)])
    assert step.fault.startswith(fault)
    assert "\n" not in step.fault
    with pytest.raises(RuntimeError):
        environment.step("x")


def test_a_refusal_is_a_message():
    """So the model can try something else; a word of 20,000 characters is not repeated to it in full."""
    environment = ToolEnvironment(Observation.from_messages(QUESTION), Toolbox([Tool(refuse)]), turns=3)
    environment.reset()
    step = environment.step(write_call("refuse", {"word": "x" * 9_000}), [frame(PHOTO)])
    assert (step.fault, step.terminated, step.truncated) == ("", False, False)
    assert step.observation.messages[0].content[0].startswith("Error: xxx")
    assert len(step.observation.text) < 400
    assert step.info == {"tool_calls": 1.0, "malformed_calls": 0.0}


def play(actions, names=SHIPPED, turns=6, space="rel1000"):
    """The turns of scripted replies; frames are those of all images so far, as a policy gives them."""
    toolbox = load_tools(names)
    environment = ToolEnvironment(Observation.from_messages(QUESTION, toolbox.schemas), toolbox, turns)
    shown, images, played = environment.reset(), [], []
    for action in actions:
        images += shown.images
        frames = tuple(frame(image, space) for image in images)
        step = environment.step(action, frames)
        played.append(Turn(shown, Decision(action, None, None, False, frames), step))
        shown = step.observation
        if step.terminated or step.truncated:
            break
    environment.close()
    return played


def test_a_conversation_looks_closer_and_answers():
    """Each call is answered by a message of its own, whose images can be named by their number."""
    whole, again = [250, 250, 750, 750], [0, 0, 500, 500]
    turns = play(
        [
            write_call("zoom", {"box": whole}) + write_call("measure", {"start": [0, 0], "end": [1000, 0]}),
            f"Closer.\n{write_call('crop', {'image': 2, 'box': again})}",
            "<answer>7</answer>",
            "never",
        ]
    )
    assert len(turns) == 3
    first = turns[0].observation
    assert [message.role for message in first.messages] == ["system", "user"]
    assert [tool["function"]["name"] for tool in first.tools] == list(SHIPPED)
    second, third = turns[1].observation, turns[2].observation
    assert [message.role for message in second.messages] == ["tool", "tool"]
    assert json.loads(second.text)["length"] == 120
    assert (second.tools, second.restart) == ((), False)
    assert np.array_equal(third.images[0], second.images[0].crop((0, 0, 60, 40)))
    assert turns[-1].step.terminated
    metrics = tool_metrics([Episode(Sample("a", first), 0, turns), Episode(Sample("b", first), 0, turns[-1:])])
    assert metrics == {
        "called_tools": 0.5, "tool_calls": 1.5, "malformed_calls": 0.0, "turns": 2.0, "truncated": 0.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("zoom", {"box": [0, 0, 500, 500]}, (120, 80)),
        ("crop", {"box": [0, 0, 500, 500]}, (60, 40)),
        ("rotate", {"degrees": 270}, (80, 120)),
        ("measure", {"start": [0, 0], "end": [500, 500]},
         '{"length": 72.1, "width": 60.0, "height": 40.0, "angle": 326.3}'),
        ("wait", {"seconds": 0.01}, "Waited 0.01 s."),
        pytest.param("read_text", {}, "[]", marks=pytest.mark.skipif(find_spec("rapidocr") is None, reason="rapidocr")),
    ],
)  # fmt: skip
def test_every_tool_answers_in_an_episode(name, arguments, shown):
    """The image or the text that it returns is the next message, and the episode goes on to its answer."""
    turns = play([write_call(name, arguments), "<answer>7</answer>"], names=[name])
    (message,) = turns[1].observation.messages
    (part,) = message.content
    assert (message.role, part if isinstance(part, str) else part.size) == ("tool", shown)
    assert (turns[0].step.info, turns[1].step.terminated) == ({"tool_calls": 1.0, "malformed_calls": 0.0}, True)


def test_a_malformed_call_is_answered_with_an_error():
    """A policy that is only cut off would never learn the form."""
    turns = play(["<tool_call>zoom please</tool_call>", "<tool_call>", write_call("zom", {}), "<answer>7</answer>"])
    told = [turn.step.observation.text for turn in turns[:3]]
    assert told[0] == "Error: the call is not valid JSON"
    assert told[1] == "Error: </tool_call> is missing"
    assert told[2].startswith("Error: there is no tool 'zom'; did you mean 'zoom'?")
    assert sum(turn.step.info["malformed_calls"] for turn in turns) == 3
    assert turns[-1].step.terminated


def test_an_episode_without_an_answer_is_truncated():
    """It has neither failed nor succeeded."""
    turns = play([write_call("zoom", {"box": [0, 0, 500, 500]})] * 9, turns=4)
    assert len(turns) == 4
    assert (turns[-1].step.terminated, turns[-1].step.truncated) == (False, True)


def test_environments_are_single_use():
    """A reused one would mix two conversations."""
    environment = ToolEnvironment(Observation.from_messages(QUESTION), load_tools(["zoom"]), turns=2)
    with pytest.raises(RuntimeError):
        environment.step("x")
    environment.reset()
    environment.step("<answer>7</answer>")
    for again in (environment.reset, lambda: environment.step("x")):
        with pytest.raises(RuntimeError):
            again()


def unhinted(x):
    """Has no hints.

    Args:
        x: any
    """


def undocumented(x: int) -> int:
    return x


def half_documented(x: int) -> int:
    """Says nothing of its argument."""
    return x


def foreign(x: ToolFaultError) -> int:
    """Takes what JSON has not.

    Args:
        x: an error
    """
    return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unhinted, "tool 'unhinted': its parameter x has no type hint"),
        (undocumented, "tool 'undocumented': has no docstring"),
        (half_documented, "tool 'half_documented': DocstringParsingException"),
        (foreign, "tool 'foreign': PydanticSchemaGenerationError"),
    ],
)
def test_what_is_no_tool_is_refused_in_one_line(function, message):
    """The author of a tool is told what to write, before a run."""
    with pytest.raises(UserError) as caught:
        _ = Tool(function).schema
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_tools_are_loaded_by_name():
    """A short name, or a function of the user's own; what is missing is named."""
    assert list(load_tools(["zoom", "tasks.image_tools:crop"]).tools) == ["zoom", "crop"]
    with pytest.raises(UserError, match=r"^task\.tools\.0: unknown tool 'zooom'; did you mean 'zoom'\?"):
        load_tools(["zooom"])
    with pytest.raises(UserError, match=r"task\.tools\.0: 'math:sqrt' is a builtin"):
        load_tools(["math:sqrt"])
    with pytest.raises(UserError, match="two tools have one name"):
        load_tools(["zoom", "zoom"])


@pytest.mark.skipif(find_spec("rapidocr") is not None, reason="rapidocr is installed")
def test_reading_text_needs_its_package():
    """An optional package that is missing is one line before the run, not a failure in the middle of it."""
    with pytest.raises(
        UserError, match=r"^rapidocr is not installed, which read_text needs: pip install 'vlrl\[ocr\]'$"
    ):
        load_tools(["read_text"])


@pytest.mark.skipif(find_spec("rapidocr") is None, reason="needs rapidocr")
def test_text_is_read():
    """What a scaled image shows no more, the tool reads from the original."""
    page = Image.new("RGB", (320, 120), "white")
    ImageDraw.Draw(page).text((10, 10), "Total 42.50", fill="black", font=ImageFont.load_default(28))
    bound = load_tools(["read_text"]).bind(parse.Parsed(("read_text", {})), [page], [frame(page)])
    assert json.loads(bound.run()[0]) == ["Total 42.50"]
