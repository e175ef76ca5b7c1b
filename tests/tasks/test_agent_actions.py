"""The agent's actions: what is read, what is refused, and that coordinates survive every model's space."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import agent_actions
from tasks.agent_actions import (
    ACTION_FORMS,
    DIRECTIONS,
    KEYS,
    MAX_TYPED,
    TOOLS,
    ScreenAction,
    in_pixels,
    read_agent_action,
)
from tasks.context import MAX_ERROR, write_call
from vlrl.types import Frame

SPACES = ("original_px", "resized_px", "rel1000", "rel1", "grid10")


def frame(space):
    return Frame(space, (160, 210), (80, 96))


xs, ys = st.integers(0, 159), st.integers(0, 209)
points = st.tuples(xs, ys)
actions = st.one_of(
    st.builds(lambda p: ScreenAction("click", (p,)), points),
    st.builds(lambda p, w: ScreenAction("scroll", (p,), w), points, st.sampled_from(DIRECTIONS)),
    st.builds(lambda p, q: ScreenAction("drag", (p, q)), points, points),
    st.builds(lambda w: ScreenAction("type", (), w), st.text(min_size=1, max_size=MAX_TYPED)),
    st.builds(lambda w: ScreenAction("key", (), w), st.sampled_from(KEYS)),
    st.sampled_from([ScreenAction("wait"), ScreenAction("done")]),
)


@pytest.mark.parametrize("form", ACTION_FORMS)
@pytest.mark.parametrize("space", SPACES)
@given(action=actions, thinking=st.booleans())
def test_what_is_written_is_read_again(form, space, action, thinking):
    """A demonstration that comes back as another action would teach a mistake. A grid keeps the cell."""
    written = ACTION_FORMS[form].write(action, frame(space), thinking)
    again = ACTION_FORMS[form].read(written, thinking, frame(space)).action
    assert (again.kind, again.word, len(again.points)) == (action.kind, action.word, len(action.points))
    reach = {"grid10": (8, 10.5), "resized_px": (2, 2.2), "rel1000": (0.16, 0.21)}.get(space, (0.02, 0.03))
    for (x, y), (u, v) in zip(again.points, action.points, strict=True):
        assert abs(x - u) <= reach[0] + 1e-6
        assert abs(y - v) <= reach[1] + 1e-6


REFUSED = {
    "[1, 2]": "no_action",
    "click": "not_literal",
    '"click"': "no_action",
    "[]": "no_action",
    '["tap", 1, 2]': "unknown_action",
    '["Click", 1, 2]': "unknown_action",
    '["click"]': "wrong_arguments",
    '["click", 1]': "wrong_arguments",
    '["click", 1, 2, 3]': "wrong_arguments",
    '["click", [1, 2]]': "wrong_arguments",
    '["click", "1", "2"]': "wrong_arguments",
    '["click", true, 2]': "wrong_arguments",
    '["click", NaN, 2]': "not_finite",
    '["type"]': "wrong_arguments",
    '["type", ""]': "wrong_arguments",
    '["type", 5]': "wrong_arguments",
    f'["type", "{"x" * (MAX_TYPED + 1)}"]': "wrong_arguments",
    '["key", "F5"]': "wrong_arguments",
    '["key", ""]': "wrong_arguments",
    '["scroll", 1, 2]': "wrong_arguments",
    '["scroll", 1, 2, "d"]': "wrong_arguments",
    '["scroll", "down"]': "wrong_arguments",
    '["drag", 1, 2, 3]': "wrong_arguments",
    '["done", "yes"]': "wrong_arguments",
    '["wait", ""]': "wrong_arguments",
    '[["click", 1, 2]]': "no_action",
    '["click", 1, 2], ["done"]': "no_action",
}


@pytest.mark.parametrize("written", REFUSED)
def test_what_is_not_exactly_one_action_is_refused(written):
    """A guess at what was meant would pay for answers that nobody could carry out."""
    parsed = read_agent_action(written)
    assert (parsed.value, parsed.reason) == (None, REFUSED[written])


STRANGE = st.one_of(
    st.text(),
    st.text().map(lambda text: f"<answer>{text}</answer>"),
    st.text().map(lambda text: f"<tool_call>{text}</tool_call>"),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5).map(
        lambda value: write_call("click", {"point": value})
    ),
)


@pytest.mark.parametrize("form", ACTION_FORMS)
@given(STRANGE)
def test_no_text_breaks_a_reader(form, text):
    """A run must not end because a model wrote something strange: it is told what was wrong, in one line."""
    reading = ACTION_FORMS[form].read(text, False, frame("rel1000"))
    assert (reading.action is None) == (reading.reason is not None) == reading.error.startswith("Error: ")
    assert len(reading.error) <= MAX_ERROR


def test_a_point_beside_the_screen_is_no_action():
    """Clamped to the border it would click on something that the model never pointed at."""
    assert in_pixels(ScreenAction("click", ((1000, 0),)), frame("rel1000")) is None
    assert in_pixels(ScreenAction("click", ((-1, 5),)), frame("original_px")) is None
    assert in_pixels(ScreenAction("drag", ((5, 5), (5, 210))), frame("original_px")) is None


def test_the_prompt_names_every_kind():
    """A model can only use what it was told of."""
    assert all(f'["{kind}"' in agent_actions.TEXT_PROMPT for kind in agent_actions.FORMS)
    assert set(TOOLS) == set(agent_actions.FORMS)
    assert all(schema["function"]["description"] for schema in ACTION_FORMS["tools"].toolbox.schemas)
