"""The browser agent in a conversation: what it is shown of earlier screens, and its actions as calls of tools."""

import os
import signal
import time

import psutil
import pytest

from tasks.agent_actions import TOOLS
from tasks.check import prove
from tasks.context import HIDDEN, SUMMARISE, Full, LastImages, SummaryContext, write_call
from tasks.gui_agent import GuiAgent, OneScreen
from vlrl.rollout import collect
from vlrl.types import Decision, Episode, Frame, Message, Policy, Turn, UserError

pytestmark = pytest.mark.slow

HISTORY = ("recall-colors", "one-back")  # pages whose later turns need an earlier screen


@pytest.fixture(scope="module")
def make_task():
    made = []

    def make(**options):
        made.append(GuiAgent(**{"browsers": 1, "turns": 8, "pages": HISTORY} | options))
        return made[-1]

    yield make
    for task in made:
        task.close()


class Played:
    """An episode as a policy lives it: the messages shown and written, frames of their images, the turns."""

    def __init__(self, task, page=HISTORY[0]):
        sample = next(s for s in task.samples("test") if s.answer.page == page)
        self.task, self.episode, self.environment = task, Episode(sample, 0), task.environment(sample)
        self.messages: list[Message] = []
        self._show(self.environment.reset())

    def _show(self, observation):
        self.shown = observation
        if observation.restart or not observation.messages:
            self.messages = []
        self.messages += observation.messages or [Message("user", observation.content)]

    @property
    def images(self):
        return [part for message in self.messages for part in message.content if not isinstance(part, str)]

    @property
    def text(self):
        return "\n".join(part for message in self.messages for part in message.content if isinstance(part, str))

    @property
    def frames(self):
        return tuple(Frame("rel1000", image.size, image.size) for image in self.images)

    def act(self, text=None):
        frames = self.frames
        text = self.environment.gold(frames) if text is None else text
        step = self.environment.step(text, frames)
        self.episode.turns.append(Turn(self.shown, Decision(text, None, None, False, frames), step))
        self.messages.append(Message("assistant", (text,)))
        if not (step.terminated or step.truncated):
            self._show(step.observation)
        return step

    def end(self, text=None):
        """Plays on until the end, and closes; the score."""
        while not self.act(text).terminated and not self.episode.turns[-1].step.truncated:
            pass
        self.environment.close()
        return self.task.score(self.episode)


def test_a_conversation_shows_every_screen_once(make_task):
    """A screen that came twice would be paid for twice; one that is missing is what the later turns need."""
    played = Played(make_task(context=Full()))
    first = played.shown
    assert [message.role for message in first.messages] == ["user"]
    assert "Press Start" in first.text and '["click", x, y]' in first.text
    played.act()
    assert [message.content for message in played.shown.messages] == [played.shown.images]
    assert "Press Start" not in played.shown.text
    score = played.end()
    assert (score.correct, len(played.episode.turns), len(played.images)) == (1.0, 5, 5)
    assert [mark.image for mark in score.marks] == [0, 1, 2, 3, 4]


def test_the_last_images_stay_and_a_line_stands_for_the_others(make_task):
    """What began the conversation anew is the whole prompt again."""
    played = Played(make_task(context=LastImages(images=2)), "one-back")
    played.act()
    assert not played.shown.restart and len(played.images) == 2
    played.act()
    assert played.shown.restart and len(played.images) == 2
    assert HIDDEN.format(1) in played.text
    assert played.end().correct == 1.0  # coordinates are those of the newest screen, whatever is hidden


def test_a_summary_is_a_turn_of_its_own(make_task):
    """It is no action: it costs no turn of the page's, and no form."""
    played = Played(make_task(context=SummaryContext(every=2), turns=5))
    played.act()
    played.act()
    assert played.shown.messages[-1].content == (SUMMARISE,)
    assert played.act("Red is top left.").info == {"summary": 1.0}
    assert played.text.count("Red is top left.") == 1 and len(played.images) == 2
    score = played.end()
    assert score.parts == {"success": 1.0, "format": 1.0}
    assert len(score.answer) == 5


def test_one_screen_is_each_turn_a_prompt_of_its_own(make_task):
    """The form that results compare with: the screen, the instruction, the last actions as text."""
    played = Played(make_task(context=OneScreen(actions=2), template="short"))
    for _ in range(3):
        played.act()
    assert played.shown.messages == ()
    goal = "Press Start, then click red, green, blue, yellow. They are hidden then."
    assert played.shown.text.startswith(f'{goal} Done so far: ["click", ')
    assert played.shown.text.count("click") == 3  # the goal's own, and two actions
    assert played.end().correct == 1.0


def test_thoughts_are_stripped_from_earlier_turns(make_task):
    """As templates of thinking models do."""
    played = Played(make_task(context=Full(thoughts="strip"), thinking=True))
    assert played.episode.turns == []
    played.act()
    assert "<think>" in played.episode.turns[0].decision.action
    assert played.shown.restart
    assert all("<think>" not in str(part) for m in played.messages[1:] for part in m.content)
    assert played.end().parts == {"success": 1.0, "format": 1.0}


@pytest.mark.parametrize("context", [Full(), OneScreen()])
def test_actions_as_calls_of_tools(make_task, context):
    """The model is shown their schemas, and what it calls reaches the page."""
    played = Played(make_task(context=context, actions="tools", pages=("login-user",)), "login-user")
    names = [schema["function"]["name"] for schema in played.shown.tools]
    assert names == [tool.name for tool in TOOLS.values()]
    played.act()
    assert played.episode.turns[0].decision.action.startswith('<tool_call>{"name": "click", "arguments": {"point": [')
    score = played.end()
    assert (score.correct, score.answer) == (1.0, ["click", "type", "click", "type", "click"])
    if context == Full():
        assert [m.role for m in played.messages] == ["user", "assistant", *["tool", "assistant"] * 4]


MALFORMED = {
    "Clicking.": ("user", "one call of a tool is one turn, not 0"),
    write_call("wait", {}) * 2: ("tool", "one call of a tool is one turn, not 2"),
    "<tool_call>{}</tool_call>": ("tool", "a call is"),
    write_call("tap", {}): ("tool", "there is no tool 'tap'"),
    write_call("click", {"point": [1]}): ("tool", "arguments.point"),
    write_call("click", {"point": [1, 2], "button": "left"}): ("tool", "arguments.button"),
    write_call("click", {"point": [1000, 10]}): ("tool", "beside the screen"),
    write_call("click", {"point": [-5, 10]}): ("tool", "beside the image"),
    write_call("type_text", {"text": ""}): ("tool", "arguments.text"),
    write_call("press_key", {"key": "F5"}): ("tool", "arguments.key"),
    write_call("scroll", {"point": [1, 2], "direction": "in"}): ("tool", "arguments.direction"),
    f"<think>{write_call('wait', {})}": ("user", "not 0"),
}


def test_a_malformed_call_is_answered_with_an_error(make_task):
    """The model reads what was wrong and may go on; the page is as it was, and the turn is spent."""
    task = make_task(context=Full(), actions="tools", turns=len(MALFORMED) + 5)
    played = Played(task)
    for written, (role, error) in MALFORMED.items():
        played.act(written)
        assert [message.role for message in played.shown.messages] == [role], written
        assert played.shown.text.startswith("Error: ") and error in played.shown.text, (written, played.shown.text)
        assert played.shown.images == () and "\n" not in played.shown.text
    score = played.end()
    assert score.correct == 1.0
    assert score.parts["format"] == pytest.approx(5 / (len(MALFORMED) + 5))


def test_an_unreadable_action_is_answered_with_an_error(make_task):
    """In the text form as well."""
    played = Played(make_task(context=Full()))
    for written, error in (
        ("click", "Error: there is no <answer> </answer>"),
        ('<answer>["tap", 1, 2]</answer>', "Error: there is no such action"),
        ('<answer>["click", 3000, 1]</answer>', "Error: the point is beside the screen"),
    ):
        played.act(written)
        assert played.shown.messages == (Message("user", (error,)),)
    assert played.end().correct == 1.0


def test_the_task_holds_what_check_task_claims(make_task):
    """Gold scores the maximum in every coordinate space, junk does not; one browser is enough."""
    task = make_task(context=LastImages(images=2), actions="tools", turns=6)
    assert [finding for finding in prove(task) if finding.problem] == []


def test_equal_states_look_equal(make_task):
    """A blinking caret would make two equal runs differ, and keys of states that are the same."""
    played = Played(make_task(pages=("login-user",), context=Full()), "login-user")
    played.act()
    screen = played.environment._screen
    looks = {screen.look().tobytes() for _ in range(8) if not time.sleep(0.15)}
    played.environment.close()
    assert len(looks) == 1


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs([process], timeout=20)


def kill_browser(worker):
    """Kills the browser of a worker, whose driver and Python go on."""
    (driver,) = [each for each in psutil.Process(worker.pid).children() if each.name().startswith("chromedriver")]
    kill(driver.children()[0])


def dying_start(start):
    """A worker with a real browser, killed as soon as it stands."""
    worker = start()
    kill_browser(worker)
    return worker


class KillingPolicy(Policy):
    """Acts by gold; before the third turn of the first try its browser dies, and the two that replace it."""

    def __init__(self, task):
        self.browsers, self.environments, self.turns = task._browsers, [], 0
        make = task.environment
        task.environment = lambda sample: self.environments.append(make(sample)) or self.environments[-1]

    def act(self, episodes, observations):
        self.turns += 1
        environment, turns = self.environments[-1], episodes[0].turns
        frames = tuple(Frame("rel1000", (160, 210), (160, 210)) for _ in range(len(turns) + 1))
        text = environment.gold(frames)
        if self.turns == 3:
            start, dying = self.browsers._start, iter((dying_start, dying_start))
            self.browsers._start = lambda: next(dying, lambda start: start())(start)
            kill_browser(environment._screen.worker)
        return [Decision(text, None, None, False, frames)]


def test_an_episode_that_browsers_cannot_finish_is_void_and_played_anew(make_task):
    """A machine that kills browsers says nothing about the policy: the episode must count neither way."""
    task = make_task(context=Full(), browsers=1)
    policy = KillingPolicy(task)
    (episode,) = collect(policy, task, [task.samples("train")[0]], group_size=1)
    assert len(episode.faults) == 1 and "3 browsers died" in episode.faults[0]
    assert (len(episode.turns), policy.turns, episode.score.correct) == (5, 8, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": "calls"}, r"task\.actions: 'calls': must be one of text, tools"),
        ({"pages": ("recall-colours",)}, r"task\.pages"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    """Before a browser starts."""
    with pytest.raises(UserError, match=message):
        GuiAgent(**options)
