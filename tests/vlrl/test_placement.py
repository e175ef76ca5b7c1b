"""Workers of this machine: taken, lost, replaced; judges in workers; what `placement` may say."""

import os
import signal

import numpy as np
import pytest
from PIL import Image

from vlrl.contrib.judges.base import JudgeClient, JudgeQuestion, pack_question, unpack_question
from vlrl.decoders import wire_pack, wire_unpack
from vlrl.placement.workers import WorkerError, WorkerPool
from vlrl.recipe_checks import load_config
from vlrl.types import UserError, Video

TOY = """
import os
from vlrl.placement.workers import WorkerService
from vlrl.types import UserError


class Toy(WorkerService):
    def answers(self):
        return {"make": self.make, "add": self.add, "die": lambda fields, arrays: os._exit(7)}

    def make(self, fields, arrays):
        if fields["broken"]:
            raise UserError("no toy here")
        return {}, {}

    def add(self, fields, arrays):
        return {"sum": fields["a"] + fields["b"]}, {"twice": 2 * arrays["x"]}
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """`pool(size=1, broken=False)`, closed at the end."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    pools = []

    def make(size=1, broken=False):
        pools.append(WorkerPool("toy:Toy", {"broken": broken}, kind="reward", size=size, name="toys"))
        return pools[-1]

    yield make
    for each in pools:
        each.close()


def test_what_is_called_comes_back(pool):
    """Numbers and arrays, from another process."""
    answer, arrays = pool().call("add", {"a": 1, "b": 2}, {"x": np.arange(3.0)})
    assert answer == {"sum": 3} and arrays["twice"].tolist() == [0, 2, 4]


def test_a_pool_prefers_a_worker_that_keeps_what_is_needed(pool):
    """Loading a page costs more than playing it."""
    two = pool(2)
    first, second = two.take("a"), two.take("b")
    first.keeps, second.keeps = {"a"}, {"b", "c"}
    two.give(first), two.give(second)
    assert two.take("a") is first
    two.give(first)
    assert two.take("b") is second
    two.give(second)
    assert two.take("d") in (first, second) and two.counts["started"] == 2  # no room for another


def test_a_lost_worker_makes_room_for_another(pool):
    """Otherwise every dead worker would take a place for ever, until a run stands still."""
    one = pool()
    for request, why in (("die", "ended .exit status 7."), ("no_such", "KeyError")):
        with pytest.raises(WorkerError, match=why):
            one.call(request, {}, lost=1)
    assert one.call("add", {"a": 1, "b": 1}, {"x": np.zeros(1)})[0] == {"sum": 2}
    assert (one.counts["started"], one.counts["errors"], len(one.workers)) == (3, 2, 1)


def test_a_failing_start_frees_its_place(pool):
    """An error on starting must not turn into a run that waits for ever."""
    broken = pool(broken=True)
    for _ in range(2):
        with pytest.raises(UserError, match="no toy here"):
            broken.take()


PICTURE = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
FILM = Video(np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3), (0.0, 0.5), 2.0, 1.0)
QUESTIONS = [
    JudgeQuestion(("Look:", each, "What is it?"), (f"a blue square {i}", "a ring"), "truth", reference, vote=i)
    for i, (each, reference) in enumerate([(PICTURE, "a square"), (PICTURE.convert("L"), None), (FILM, "a film")] * 12)
]


def test_a_question_is_the_same_in_a_worker():
    """A judge's noise, cache and answer hang on the question's key."""
    for question in QUESTIONS[:3]:
        fields, arrays = wire_unpack(wire_pack(*pack_question(question, "0")))
        assert unpack_question(fields, arrays, "0").key == question.key


@pytest.mark.parametrize("workers", [1, 2])
def test_a_judge_in_workers_says_what_it_says_here(workers):
    """Rewards would depend on where the judge runs; and a killed one must not look like a bad answer."""
    chosen = {"name": "scripted", "words": ["square"], "noise": 0.2, "failing": 0.1}
    here = JudgeClient(chosen, 3, "judge")
    placed = JudgeClient(chosen | {"workers": workers}, 3, "judge")
    expected = here.ask(QUESTIONS)
    assert placed.ask(QUESTIONS) == expected
    os.kill(placed._judge.pool.workers[0].pid, signal.SIGKILL)
    for _ in range(100):  # on a busy machine the other worker may answer all before the dead one is asked
        assert placed.ask(QUESTIONS) == expected
        if placed._judge.pool.counts["errors"]:
            break
    assert placed._judge.pool.counts["errors"] == 1
    placed._judge.pool.close()


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("kubernetes", r"placement.name: unknown placement 'kubernetes'"),
        ("{name: ray, adress: auto}", r"placement.adress"),
        ("{name: ray, workers: {simulators: {cpus: 1}}}", r"placement.workers.simulators"),
        ("{name: ray, workers: {judge: {cpus: -1}}}", r"placement.workers.judge.cpus"),
        ("{name: local, workers: {}}", r"placement.workers"),
    ],
)
def test_a_wrong_placement_is_one_line(placement, message):
    """Before a cluster is looked for."""
    with pytest.raises(UserError, match=message) as told:
        load_config("gui_grounding", [f"placement={placement}"])
    assert "\n" not in str(told.value)


def test_a_wrong_number_of_judges_is_one_line():
    with pytest.raises(UserError, match=r"judge.workers: -1: must be a whole number from 0"):
        JudgeClient({"name": "scripted", "workers": -1}, 0, "judge")
