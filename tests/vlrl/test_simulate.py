"""`vlrl simulate`: a policy beside control arms on the same scenes."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import av
import pytest
import torch

import vlrl
from vlrl import cli, registry
from vlrl.config import Config
from vlrl.evaluation.simulate import compare, notes, quartiles
from vlrl.evaluation.stats import Pairs, mcnemar, newcombe
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.rollout import collect
from vlrl.types import wilson

# not imported here: that would settle how MuJoCo renders
pytestmark = pytest.mark.skipif(find_spec("mujoco") is None, reason="mujoco is not installed")
ROOT = Path(vlrl.__file__).parents[1]
PUSH = str(ROOT / "configs" / "manipulation.yaml")
ARMS = ("policy", "expert", "random")
N, SHORT = 6, "task.horizon=60"
CART = """
from pathlib import Path
import numpy as np
from robot.types import ActionSpec, Robot
from robot.types import RobotError, RobotStatus
from vlrl.types import Observation

class Cart(Robot):
    hz, controls = 10.0, ActionSpec(("speed",), ("m/s",), [-1], [1])

    def __init__(self, *, broken: str = ""):
        self.broken = Path(broken)

    def reset(self, seed):
        self.x, self.seed = 0.0, seed

    def get_observation(self):
        return Observation(("Go to the mark.",), np.array([self.x, self.seed], np.float32))

    def send_action(self, control):
        if self.seed == 20_001 and self.broken.is_file():
            self.broken.unlink()
            raise RobotError("the belt slipped")
        self.x += float(control[0]) / self.hz
        return control

    def status(self):
        return RobotStatus(self.x > 0.2, failure="off the rail" if self.x < -0.2 else None)

    def close(self):
        pass
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """`main` puts the current folder on the path; the tests after this one get theirs back."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def simulated(out, *arguments) -> dict:
    """The result file of a command that must go well."""
    assert cli.main(["simulate", *arguments, "--out", str(out)]) == 0
    return json.loads((out / "result.json").read_text())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A whole command: folder and result."""
    folder = tmp_path_factory.mktemp("simulate")
    arguments = ("--against", *ARMS[1:], "--episodes", str(N), "--video", str(folder / "films"), "--videos", "1")
    return folder, simulated(folder / "out", PUSH, SHORT, "--policy", "embedded_push", *arguments)


@pytest.fixture
def cart(tmp_path, monkeypatch):
    """A robot of the user's own, without a picture, a script or snapshots, and a policy that drives it to the right."""
    (tmp_path / "carts.py").write_text(CART)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cart.yaml").write_text(
        "task: {name: manipulation, robot: {name: 'carts:Cart'}, horizon: 9, chunk: 2, workers: 1}\n"
        f"out: unused\npolicy: {{model: {tmp_path / 'right'}}}\n"
    )
    torch.manual_seed(0)
    policy = ControlPolicy(Network(DiscreteShape(2, ("speed",), (-1.0,), (1.0,), chunk=2, bins=3, hidden=4, layers=1)))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
        list(policy.model.parameters())[-1].copy_(torch.tensor([0.0, 0.0, 9.0] * 2))
    policy.save(tmp_path / "right")
    return tmp_path


def test_every_arm_is_measured_on_the_same_scenes(first):
    """A comparison of other scenes compares the scenes."""
    _, result = first
    assert tuple(arm["name"] for arm in result["arms"]) == ARMS and result["n"] == N
    assert len({arm["facts"]["scenes"] for arm in result["arms"]}) == 1
    rows = {name: [row for row in result["episodes"] if row["arm"] == name] for name in ARMS}
    assert all([row["seed"] for row in rows[name]] == [*range(20_000, 20_000 + N)] for name in ARMS)
    for arm in result["arms"]:
        own, success = rows[arm["name"]], arm["success"]
        won = [row["ticks"] for row in own if row["outcome"] == "success"]
        assert (success["count"], success["n"], success["value"]) == (len(won), N, len(won) / N)
        assert (success["low"], success["high"]) == wilson(len(won), N)
        assert sum(arm["outcomes"].values()) == N and arm["repeats"] == {"count": 0, "reasons": {}}
        assert arm["ticks_to_success"] == quartiles(won) and arm["ticks"] == sum(row["ticks"] for row in own)
        assert arm["action_rate"] == pytest.approx(sum(row["action_rate"] for row in own) / N)
        assert 0 <= arm["policy_s"] < arm["wall_s"] and arm["ticks_per_s"] == pytest.approx(
            arm["ticks"] / arm["wall_s"]
        )


def test_the_controls_are_what_they_claim(first):
    """A weak expert, or a lucky random arm, would make any policy look strong."""
    _, result = first
    policy, expert, random = result["arms"]
    assert expert["success"]["value"] == 1.0 and random["success"]["value"] == 0.0
    assert random["outcomes"] == {"time_out": N} and random["ticks_to_success"] is None
    assert random["action_rate"] == pytest.approx(2 / 3, abs=0.05)  # of two even draws of width 2
    assert expert["action_rate"] < policy["action_rate"] < random["action_rate"] < 2


def test_pairs_are_of_the_policy_and_each_control(first):
    """The difference would be without its interval, or of the wrong arms."""
    _, result = first
    rows = {name: [row["success"] for row in result["episodes"] if row["arm"] == name] for name in ARMS}
    assert [(pair["a"], pair["b"]) for pair in result["pairs"]] == [("policy", "expert"), ("policy", "random")]
    for pair in result["pairs"]:
        seen = list(zip(rows[pair["a"]], rows[pair["b"]], strict=True))
        table = Pairs(*(seen.count(each) for each in ((1, 1), (1, 0), (0, 1), (0, 0))))
        assert [pair[name] for name in ("both", "only_a", "only_b", "neither")] == list(vars(table).values())
        assert (pair["low"], pair["high"], pair["p"]) == (*newcombe(table), mcnemar(table))


def test_videos_show_every_tick_and_are_named_by_outcome(first):
    """A failure could not be looked at, or would be looked for among the successes."""
    folder, result = first
    rows = {row["arm"]: row for row in result["episodes"] if row["seed"] == 20_000}
    names = {f"020000_{arm}_{row['outcome']}.mp4": row for arm, row in rows.items()}
    assert {path.name for path in (folder / "films").iterdir()} == names.keys()
    for name, row in names.items():
        with av.open(str(folder / "films" / name)) as file:
            assert sum(1 for _ in file.decode(video=0)) == row["ticks"] + 1
            assert float(file.streams.video[0].average_rate) == result["hz"] == 20


def test_the_page_needs_nothing_else_and_shows_all(first):
    """Sent to a colleague, it would be empty, or load from somewhere."""
    folder, result = first
    page = (folder / "out" / "report.html").read_text()
    kinds = {row["outcome"] for row in result["episodes"] if row["arm"] == "policy"}
    assert (
        page.count('<video src="data:video/mp4;base64,') == page.count('<img src="data:image/webp;') == 3 * len(kinds)
    )
    assert not re.search(r"https?://|<script|src=\"(?!data:)", page)
    assert all(f"<td>{name}</td>" in page for name in ARMS) and "policy - expert" in page
    assert result["facts"]["scenes"] in page and "Solved within so many ticks" in page
    assert [path.name for path in sorted((folder / "out").iterdir())] == ["report.html", "result.json"]


@pytest.mark.parametrize(("workers", "against"), [(2, ARMS[2:]), (1, ARMS[1:])])
def test_the_same_command_gives_the_same_episodes(first, workers, against, tmp_path, capsys):
    """A result that nobody can repeat, or that hangs on the machine's cores or on who else plays, is none."""
    _, before = first
    arguments = (PUSH, SHORT, f"task.workers={workers}", "--against", *against, "--episodes", str(N), "--json")
    result = simulated(tmp_path / "out", *arguments)
    assert result["episodes"] == [row for row in before["episodes"] if row["arm"] in ("policy", *against)]
    printed = json.loads(capsys.readouterr().out)
    assert "episodes" not in printed and printed["arms"] == result["arms"]


def test_a_fault_of_the_robot_is_repeated_and_counted(cart, capsys):
    """A broken simulator would be held against the policy, or go unseen."""
    (cart / "broken").touch()
    result = simulated(cart / "out", str(cart / "cart.yaml"), f"task.robot.broken={cart / 'broken'}", "--episodes", "3")
    (arm,) = result["arms"]
    assert arm["success"]["count"] == 3 and arm["repeats"] == {"count": 1, "reasons": {"the belt slipped": 1}}
    assert [row["faults"] for row in result["episodes"]] == [[], ["the belt slipped"], []]
    assert any("Cart shows no picture" in note for note in result["notes"])  # and yet there is a report
    assert "<video" not in (cart / "out" / "report.html").read_text() and "note: " in capsys.readouterr().out


def test_chance_is_a_control_that_fails_by_itself(cart):
    """Outcomes would be mixed up: off the rail is a failure with its reason, not a time-out."""
    result = simulated(
        cart / "out", str(cart / "cart.yaml"), "task.horizon=60", "--against", "random", "--episodes", "20"
    )
    random = result["arms"][1]
    assert random["outcomes"].keys() == {"success", "failure"}
    assert random["reasons"] == {"failure: off the rail": random["outcomes"]["failure"]}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--episodes", "101"], "--episodes 101"),
        (["--episodes", "0"], "--episodes 0"),
        (["--episodes", "3", "--video", "films", "--videos", "4"], "--videos 4"),
        (["--videos", "1"], "--videos 1"),
        (["--video", "cart.yaml"], "a file is in the way"),
        (["--policy", "./nothing"], "./nothing"),
        (["--against", "./nothing"], "./nothing"),
        (["--against", "expert"], "has no script"),
        (["--against", "start"], "plays already"),
        (["--against", "random", "random"], "plays already"),
        (["--against", "embedded_push"], "the robot takes speed"),
        (["--episodes", "1", "--video", "films"], "shows no picture"),
    ],
)
def test_mistakes_are_one_line(arguments, named, cart, monkeypatch, capsys):
    """A user reads a traceback instead of what to mend."""
    monkeypatch.chdir(cart)
    assert cli.main(["simulate", "cart.yaml", *arguments, "--out", "out"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("vlrl: ") and named in line
    assert not (cart / "out" / "result.json").exists()


def test_a_task_without_a_robot_is_refused(capsys):
    """It would end in a traceback."""
    assert cli.main(["simulate", str(ROOT / "configs" / "gui_grounding.yaml")]) == 2
    assert "has no robot" in capsys.readouterr().err


def test_controls_speak_where_the_task_is_played_in_words(tmp_path):
    """Beside a language model they would be refused, or play another game than it does."""
    options = {"name": "manipulation", "speech": {"words": "bins"}, "horizon": 60, "workers": 1}
    task = registry.make_task(Config.model_validate({"task": options, "out": "x"}))
    samples = [task.samples("test")[i] for i in range(2)]
    ends = {}
    for name in ARMS[1:]:
        arm = task.arm(name)
        ends[name] = [task.score(each).answer["outcome"] for each in collect(arm.policy, arm, samples, 1, greedy=True)]
    assert ends == {"expert": ["success"] * 2, "random": ["time_out"] * 2}
    film = {"path": str(tmp_path / "a.mp4"), "size": (64, 64)}
    played = task.arm("", {samples[0].id: film}).environment(samples[0])
    played.reset()
    assert "bad_action" in played.step("to the left, please").info  # and the worker, which was not asked, is left
    with av.open(film["path"]) as file:
        assert sum(1 for _ in file.decode(video=0)) == 1
    task.close()


def test_too_few_scenes_are_said_to_be():
    """No difference seen would be taken for no difference."""
    rows = [{"arm": "a", "seed": i, "success": i % 2 == 0} for i in range(20)]
    other = [{"arm": "b", "seed": i, "success": i % 4 < 2} for i in range(20)]
    pair = compare(rows, other)
    assert pair["p"] == 1.0 and pair["needed"] == 391  # half of the scenes differ
    (note,) = notes([pair])
    assert "20 scenes are too few" in note and "about 391" in note
    assert notes([pair | {"p": 0.01}]) == notes([pair | {"n": 391}]) == []
    with pytest.raises(ValueError, match="same scenes"):
        compare(rows, other[:-1])
