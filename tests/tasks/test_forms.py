"""Drawn forms: a walk is a demonstration of its instruction; a policy trains on what it read at each turn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.agent_actions import DrawnForms, ScreenAction
from tasks.context import HIDDEN, LastImages
from tasks.gui_agent import BrowserEpisode, GuiAgent
from tasks.rendering.screens import ANY, BUTTON, FormOption, list_forms, make_form
from tests.tasks.episodes import play_gold
from vlrl.config import PolicySection
from vlrl.contrib.rollouts.hints import GuideTurns
from vlrl.engines import load_policy
from vlrl.rollout import collect
from vlrl.types import Message, Observation

PAGES, SEEDS = st.sampled_from(list_forms()), st.integers(0, 999).map(str)
WALKS = st.sampled_from([page for page in list_forms() if page.startswith("walk")])
SUBMIT = ScreenAction("click", ((BUTTON[0] + 5.0, BUTTON[1] + 5.0),))


@pytest.fixture(scope="module")
def make_task():
    tasks = []

    def make(**options):
        tasks.append(GuiAgent(**{"environment": "drawn", "browsers": 1, "turns": 4, "template": "short"} | options))
        return tasks[-1]

    yield make
    for task in tasks:
        task.close()


@pytest.fixture(scope="module")
def writer():
    return load_policy(PolicySection(model="embedded", max_pixels=5200, max_tokens=4))


def begun(page: str, seed: str) -> DrawnForms:
    screen = DrawnForms()
    screen.begin(page, seed, "train")
    return screen


@settings(max_examples=30, deadline=None)
@given(page=WALKS, seed=SEEDS)
def test_a_walk_is_a_demonstration_of_its_instruction(page, seed):
    """The generator of goals would ask for what its own walk does not do."""
    form, screen = make_form(page, seed, "train"), begun(page, seed)
    for click in form.walk:
        screen.act(ScreenAction("click", (click.center,)))
    screen.act(SUBMIT)
    assert form.walk and (screen.status().done, screen.status().reward) == (True, 1.0)
    touched = {click.row for click in form.walk}
    named = form.instruction.removeprefix("Choose ").removesuffix(".").split(", ")
    assert [name != ANY for name in named] == [row in touched for row in range(len(form.colors))]


@settings(max_examples=30, deadline=None)
@given(page=PAGES, seed=SEEDS, clicks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=5))
def test_the_button_pays_for_the_right_state_alone(page, seed, clicks):
    """Wrong options would be paid for, or the script not find back from them."""
    form, screen = make_form(page, seed, "train"), begun(page, seed)
    for row, column in clicks:
        screen.act(ScreenAction("click", (FormOption(row, column).center,)))
    last = {row: column for row, column in clicks if row < len(form.colors)}
    is_right = all(want is None or last.get(row) == want for row, want in enumerate(form.target))
    wrong = sum(want is not None and last.get(row) != want for row, want in enumerate(form.target))
    for _ in range(wrong):
        assert not screen.status().done
        screen.act(screen.gold())
    screen.act(screen.gold())
    assert (screen.status().done, screen.status().reward) == (True, 1.0)
    other = begun(page, seed)
    for row, column in clicks:
        other.act(ScreenAction("click", (FormOption(row, column).center,)))
    other.act(SUBMIT)
    assert other.status().reward == float(is_right)


def test_a_form_shows_what_is_chosen_and_is_the_same_everywhere():
    """The agent could not know what it has done; a group would not start from the same pixels."""
    one, other = begun("form-3", "7"), begun("form-3", "7")
    assert one.look().tobytes() == other.look().tobytes() and one.status() == other.status()
    one.act(one.gold())
    assert one.look().tobytes() != other.look().tobytes()
    assert make_form("form-3", "7", "train") != make_form("form-3", "7", "test")


def test_forms_are_pages_of_the_agent(make_task):
    """Gold answers would fail, or a sampler not know what a sample asks for before it is played."""
    task = make_task(pages=("form-3", "walk-2"))
    for sample in task.samples("test")[:4]:
        episode = play_gold(task, sample)
        assert episode.score.correct == 1.0 and sample.prompt.text in episode.turns[0].observation.text
        assert sample.tags == {"page": sample.answer.page}


@settings(max_examples=20, deadline=None)
@given(step=st.integers(0, 40), turns=st.integers(1, 6), until=st.integers(1, 30))
def test_the_start_moves_away_from_the_goal(step, turns, until):
    """The script would do as much at the end of training as at its beginning."""
    strategy = GuideTurns(None, None, 0, turns=turns, until=until)
    assert strategy.most(step) == max(0, math.ceil(turns * (until - step) / until - 1e-9))
    assert strategy.most(step + 1) <= strategy.most(step) and strategy.most(0) == turns and strategy.most(until) == 0


def test_episodes_begin_near_the_goal_and_later_at_their_start(make_task, writer):
    """What the script did would earn credit, or the policy never play a whole episode."""
    task = make_task(pages=("form-3",))
    strategy = GuideTurns(writer, task, 0, turns=3, share=1.0, until=4)
    samples = task.samples("train")[:2]
    forced = {}
    for step in (0, 3, 4):
        episodes = strategy(writer, task, samples, 2, step, keep=True)
        forced[step] = [sum(turn.decision.forced_mask is not None for turn in episode.turns) for episode in episodes]
    assert set(forced[0]) <= {1, 2, 3} and max(forced[0]) > 1 and set(forced[3]) == {1} and set(forced[4]) == {0}


def test_log_probabilities_are_those_of_the_context_as_it_was_compressed(make_task, writer, monkeypatch):
    """WebAgent-R1: older screens shrink to a line, actions stay; training would else read what was never shown."""
    task, step = make_task(pages=("form-3",), context=LastImages(images=1)), BrowserEpisode.step
    # Whatever the policy writes, the script's next click is carried out, so that each turn has a screen of its own.
    monkeypatch.setattr(BrowserEpisode, "step", lambda self, _, frames=(): step(self, self.gold(frames), frames))
    (episode,) = collect(writer, task, task.samples("train")[:1], 1)
    assert len(episode.turns) > 2
    full = [message for turn in episode.turns[:1] for message in turn.observation.messages]
    for number, turn in enumerate(episode.turns):
        if number:  # by hand: the conversation with a line in place of every older screen
            screens = [t.observation.images[-1] for t in episode.turns]
            first = Message("user", (HIDDEN.format(1), full[0].content[1]))
            shown = [first]
            for i, earlier in enumerate(episode.turns[:number], start=2):
                newest = screens[i - 1] if i == number + 1 else HIDDEN.format(i)
                shown += [Message("assistant", (str(earlier.decision.action),)), _reply(turn, newest, i == number + 1)]
            by_hand = Observation.from_messages(shown)
        else:
            by_hand = turn.observation
        decision = writer.decide(by_hand, turn.decision.action, ids=writer.ids(turn.decision))
        logprobs = writer.evaluate([decision]).logprobs[0, : len(turn.decision.logprobs)]
        torch.testing.assert_close(logprobs.detach(), turn.decision.logprobs, rtol=0, atol=1e-4)
        recorded = writer.evaluate([turn.decision]).logprobs[0, : len(turn.decision.logprobs)]
        torch.testing.assert_close(recorded.detach(), turn.decision.logprobs, rtol=0, atol=1e-4)


def _reply(turn, newest, is_newest: bool) -> Message:
    """What followed an action: an error stays as it is, a screen is shown or is a line."""
    return Message(turn.observation.messages[-1].role, (newest,))
