"""Our tasks as an environment of verifiers: its loader finds them, its traces are paid as our trainer pays."""

from __future__ import annotations

import asyncio
import sys

import pytest

pytest.importorskip("verifiers", reason="the extra verifiers")

import verifiers.v1 as vf

from tasks.verifiers import Verifiers
from vlrl.types import UserError

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


def test_what_cannot_go_out_is_one_line():
    """Several turns would be asked once, and paid for what was never played."""
    with pytest.raises(UserError, match="takes several turns"):
        load(task_name="visual_search")
