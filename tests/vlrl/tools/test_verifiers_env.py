"""Our tasks as an environment of verifiers: its loader finds them, its traces are paid as our trainer pays."""

from __future__ import annotations

import asyncio
import sys

import pytest

pytest.importorskip("verifiers", reason="the extra verifiers")

import verifiers.v1 as vf

from tasks.context import write_call
from tasks.verifiers import Verifiers
from tests.tasks.episodes import play
from vlrl.types import Decision, Episode, Frame, Turn, UserError

ID = "vlrl-tasks"
MODULE = """
from vlrl.tools.verifiers_env import VlrlTaskset

__all__ = ["VlrlTaskset"]
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    """The module by which a user names the environment there."""
    (tmp_path / "vlrl_tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("vlrl_tasks", None)


def load(**options):
    config = vf.resolve_env_config({"taskset": {"id": ID, **options}}).taskset
    return list(vf.load_taskset(config))


def reply(task, text: str):
    """A trace of verifiers' own in which a model wrote the text, scored by verifiers."""
    from verifiers.v1.graph import prepare_turn

    config = vf.AgentConfig(model="scripted", runtime=vf.SubprocessConfig())
    trace = vf.Trace(task=vf.TraceTask(type="Task", data=task.data), agent=vf.AgentInfo(config=config))
    message = vf.AssistantMessage(content=text)
    response = vf.Response(id="0", created=0, model="scripted", message=message, finish_reason="stop")
    prepare_turn(trace, task.data.prompt).commit(response)
    asyncio.run(task.score(trace))
    return trace


def test_verifiers_loads_and_pays_our_tasks():
    """A model that is evaluated there would be asked or paid something else than here."""
    from tasks.counting import Counting

    ours = Counting(size=(64, 64))
    rows = load(task_name="counting", split="test", count=3, options={"size": [64, 64]})
    assert len(rows) == 3
    for index, task in enumerate(rows):
        sample = ours.samples("test")[index]
        assert task.data.id == sample.id and task.data.prompt_text == sample.prompt.text
        gold = ours.gold(sample, ())
        best, wrong = reply(task, gold), reply(task, "<answer>99</answer>")
        assert best.metrics["correct"] == 1.0 and wrong.metrics["correct"] == 0.0
        assert best.reward > wrong.reward and best.reward == max(best.reward, *best.metrics.values())


def test_there_and_back_again():
    """What goes out as an environment and comes in as one must be the same task, with the same pictures."""
    from tasks.counting import Counting

    ours = Counting(size=(64, 64))
    back = Verifiers(id=ID, args={"task_name": "counting", "count": 5, "options": {"size": [64, 64]}}, held_out=1)
    try:
        for sample in back.samples("train"):
            index = int(sample.id.rpartition("/")[2])
            (image,) = sample.prompt.images
            (own,) = ours.samples("train")[index].prompt.images
            assert image.tobytes() == own.convert("RGB").tobytes()

        environment = back.environment(back.samples("train")[0])
        environment.reset()
        step = environment.step(ours.gold(ours.samples("train")[int(back.samples("train")[0].id[-6:])], ()))
        environment.close()
        assert step.info["metric_correct"] == 1.0
    finally:
        back.close()


@pytest.fixture
def _of_turns(_module, tmp_path):
    """The module of tasks of several turns."""
    with_env = MODULE.replace("import ", "import VlrlEnv, ").replace("[", '["VlrlEnv", ')
    (tmp_path / "vlrl_tasks.py").write_text(with_env)


def there_and_back(name: str, options: dict, held_out: int = 1) -> Verifiers:
    return Verifiers(id=ID, args={"task_name": name, "count": 3, "options": options}, held_out=held_out)


def replay(own, back, index: int, answers: list[str]):
    """The same answers to our task and to what came back of it -> both episodes, scored, with our reward."""
    sample = own.samples("train")[int(back.samples("train")[index].id[-6:])]
    environment, ours = own.environment(sample), Episode(sample, 0)
    shown, pixels = environment.reset(), []
    for text in answers:
        pixels += [Frame("original_px", image.size, image.size) for image in shown.images]
        step = environment.step(text, pixels)
        ours.turns.append(Turn(shown, Decision(text, None, None, False, tuple(pixels)), step))
        shown = step.observation
        if step.terminated or step.truncated:
            break
    environment.close()
    theirs, score = play(back, answers, index), own.score(ours)
    return ours, theirs, own.reward(score), score, back.score(theirs)


@pytest.mark.usefixtures("_of_turns")
def test_tools_go_out_as_a_tool_server():
    """A call that is read otherwise, or a picture that changes, makes another task of it."""
    from tasks.visual_search import VisualSearch

    options = {"size": [64, 64], "objects": [2, 2], "turns": 3}
    own, back = VisualSearch(size=(64, 64), objects=(2, 2)), there_and_back("visual_search", options)
    try:
        box, sample = [8, 8, 40, 40], own.samples("train")[int(back.samples("train")[0].id[-6:])]
        call = write_call("zoom", {"box": box})
        right = f"<answer>{sample.answer.text.answer}</answer>"
        ours, theirs, reward, score, found = replay(own, back, 0, [f"<think>Small.</think>I look. {call}", right])
        assert len(ours.turns) == len(theirs.turns) == 2 and score.correct == 1.0
        (first,), (opening,) = ours.turns[0].observation.images, theirs.turns[0].observation.images
        (seen,), (shown,) = ours.turns[1].observation.images, theirs.turns[1].observation.images
        assert opening.tobytes() == first.convert("RGB").tobytes() and shown.tobytes() == seen.convert("RGB").tobytes()
        assert theirs.turns[1].observation.messages[0].role == "tool"
        (tool,) = theirs.turns[0].observation.tools
        assert tool["function"]["name"] == "zoom" and "box" in tool["function"]["parameters"]["required"]
        assert found.parts["reward"] == pytest.approx(reward) and found.parts["metric_correct"] == 1.0
        assert {name: found.parts[f"metric_{name}"] for name in score.parts} == pytest.approx(dict(score.parts))
        *_, reward, score, found = replay(own, back, 0, [write_call("zoom", {"box": "here"}), "<answer>x</answer>"])
        assert (found.parts["reward"], found.parts["metric_correct"]) == (pytest.approx(reward), 0.0)
        *_, reward, score, found = replay(own, back, 0, [call, call, call])  # the limit of turns ends it
        assert found.parts["reward"] == pytest.approx(reward) and score.correct == 0.0
    finally:
        back.close()


@pytest.mark.usefixtures("_of_turns")
def test_an_environments_turns_go_out_as_messages_of_the_user():
    """Its observations would be lost, and its return with them."""
    pytest.importorskip("gymnasium")
    from tasks.gym import Gym

    options = {"id": "FrozenLake-v1", "options": {"is_slippery": False}, "success": 1.0, "turns": 10}
    own, back = Gym(**options), there_and_back("gym", options)
    try:
        for answers in (["<answer>down</answer>"], ["<answer>1</answer>"] * 10, ["<answer>2</answer>", "no"] * 5):
            ours, theirs, reward, score, found = replay(own, back, 0, answers)
            texts = [[turn.observation.text for turn in each.turns] for each in (ours, theirs)]
            assert texts[0] == texts[1]
            assert (found.parts["reward"], found.parts["metric_correct"]) == (pytest.approx(reward), score.correct)
        task = load(task_name="counting", split="test", count=1, options={"size": [64, 64]})[0]
        assert task.data.prompt and not task.config.takes_turns  # one turn stays one
    finally:
        own.close()
        back.close()


@pytest.mark.usefixtures("_of_turns")
def test_a_context_that_hides_screens_stays_here():
    """Verifiers' agents are shown the whole conversation: they would be measured on another task."""
    options = {"environment": "drawn", "turns": 2, "browsers": 1, "held_out": 1}
    for context, fault in (({"name": "one_screen"}, "set the task's option context"), ({"name": "full"}, "")):
        back = there_and_back("gui_agent", {**options, "context": context})
        try:
            step = play(back, ['<answer>["wait"]</answer>']).turns[0].step
            assert (fault in step.fault and len(step.fault.splitlines()) == 1) if fault else not step.fault
        finally:
            back.close()


def test_what_cannot_go_out_is_one_line():
    """Several turns would be asked once, and paid for what was never played."""
    with pytest.raises(UserError, match="takes several turns"):
        load(task_name="visual_search")
