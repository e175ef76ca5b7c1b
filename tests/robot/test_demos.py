"""Demonstrations: what is kept, that they can be repeated, that lerobot reads what was recorded."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_robots import Real, Slide

from robot import demos
from robot.demos import HOPELESS, LerobotWriter, checksum, demonstrate, features, frame, record
from robot.sim.tabletop import Tabletop
from vlrl.cli import main
from vlrl.types import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
needs_lerobot = pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="lerobot is not installed")


class Scripted(Slide):
    """Goes to the right; in every `lame`-th scene to the left, where it falls off."""

    def __init__(self, *, lame: int = 0, **options):
        super().__init__(**options)
        self.lame = lame

    def expert(self):
        goes_left = self.lame and self.seed % self.lame == self.lame - 1
        return np.array([-0.5 if goes_left else 0.5, -0.3 * self.state[1]], np.float32)


class Kept:
    """Keeps demonstrations in memory, and their scenes in a file; interrupted at the `stop`-th."""

    def __init__(self, stop=None):
        self.demos, self.stop = [], stop

    def __call__(self, folder, robot):
        self.folder = folder
        folder.mkdir()
        return self

    def add(self, demo):
        if len(self.demos) == self.stop:
            raise KeyboardInterrupt
        self.demos.append(demo)

    def close(self):
        (self.folder / "scenes").write_text(" ".join(str(demo.scene) for demo in self.demos))


def recorded(tmp_path, options=None, **changes):
    """A recording of the scripted slide in memory: what was kept, the tally, what was written beside."""
    kept, out = Kept(), tmp_path / "demos"
    tally = record(
        "test_demos:Scripted", options or {}, **{"ticks": 60, "episodes": 4, **changes}, out=out, writer=kept
    )
    return kept.demos, tally, json.loads((out / "meta" / "vlrl.json").read_text())


def bytes_of(demo):
    return [(m.observation.state.tobytes(), m.control.tobytes(), m.clean.tobytes(), m.reward) for m in demo.moments]


def test_keeps_successes_and_counts_the_rest(tmp_path):
    """A policy would imitate failures, or a reader would think that the script never fails."""
    kept, tally, about = recorded(tmp_path, {"lame": 2})
    assert [demo.scene for demo in kept] == about["scenes"] == [0, 2, 4, 6]
    assert {demo.outcome for demo in kept} == {"success"}
    assert tally.outcomes == Counter(success=4, failure=3) == about["outcomes"]
    assert tally.frames == sum(len(demo.moments) for demo in kept)
    assert str(tally).startswith("4 of 7 episodes kept")


def test_keeps_all_where_asked(tmp_path):
    """Offline methods need failures; every scene then counts, in order."""
    kept, _, about = recorded(tmp_path, {"lame": 2}, keep="all")
    assert [demo.outcome for demo in kept] == ["success", "failure"] * 2
    assert about["scenes"] == [0, 1, 2, 3]
    assert [[m.done for m in demo.moments].index(True) + 1 for demo in kept] == [len(demo.moments) for demo in kept]


def test_says_what_was_recorded(tmp_path):
    """Nobody could make the data again, or know whether two sets are of the same scenes."""
    _, _, about = recorded(tmp_path, {"lame": 3}, part="validation", noise=0.1, seed=5)
    assert {k: about[k] for k in ("robot", "options", "part", "ticks", "noise", "seed", "keep", "hz")} == {
        "robot": "test_demos:Scripted", "options": {"lame": 3}, "part": "validation", "ticks": 60, "noise": 0.1,
        "seed": 5, "keep": "success", "hz": 10.0,
    }  # fmt: skip
    assert min(about["scenes"]) == 10_000
    assert about["checksum"] == checksum(Scripted(), about["scenes"])
    assert about["controls"][1] == {"name": "vy", "unit": "m/s", "low": -0.5, "high": 0.5}


def test_noise_is_repeatable_and_the_episodes_own():
    """Two recordings could not be compared, and a scene would change with what was played before it."""
    robot, again, how = Scripted(), Scripted(), {"ticks": 60, "noise": 0.3}
    first = [bytes_of(demonstrate(robot, scene, seed=1, **how)) for scene in range(3)]
    assert first[2] == bytes_of(demonstrate(again, 2, seed=1, **how))
    assert first[2] != bytes_of(demonstrate(again, 2, seed=2, **how))


def test_the_clean_control_is_the_scripts_and_the_other_what_was_sent():
    """Policies would be trained on labels that nobody gave."""
    robot = Scripted()
    demo = demonstrate(robot, 3, ticks=60, noise=0.5, seed=0)
    sent = [m.control for m in demo.moments]
    assert all((a == b).all() for a, b in zip(robot.moved, sent, strict=True))
    assert all((abs(c) <= robot.controls.high).all() for c in sent)
    spread = np.std([(m.control - m.clean)[0] for m in demo.moments])
    assert 0.2 < spread < 0.8
    assert all(m.clean[0] == 0.5 and np.isclose(m.clean[1], -0.3 * m.observation.state[1]) for m in demo.moments)
    calm = demonstrate(robot, 3, ticks=60, noise=0.0, seed=0)
    assert all((m.control == m.clean).all() for m in calm.moments)


def test_moments_pair_what_was_shown_with_what_followed():
    """Shifted by a tick, every label is wrong, and nothing else shows it."""
    robot = Scripted()
    demo = demonstrate(robot, 0, ticks=60, noise=0.2, seed=0)
    for now, after in zip(demo.moments, demo.moments[1:], strict=False):
        assert np.allclose(now.observation.state + now.control / robot.hz, after.observation.state)
    assert [m.success for m in demo.moments] == [False] * (len(demo.moments) - 1) + [True]


def test_an_interrupted_recording_leaves_nothing(tmp_path):
    """Half a data set would be trained on as if it were whole."""
    with pytest.raises(KeyboardInterrupt):
        record("test_demos:Scripted", {}, ticks=60, episodes=4, out=tmp_path / "demos", writer=Kept(stop=2))
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_never_kept(tmp_path):
    """What a broken driver did is no demonstration; a robot that always breaks must not keep the machine for ever."""
    kept = Kept()
    with pytest.raises(UserError, match=f"the last {HOPELESS} episodes were left out .*error {HOPELESS}"):
        record(
            "test_demos:Scripted", {"fault": "raise"}, ticks=60, episodes=1, keep="all", out=tmp_path / "d", writer=kept
        )
    assert kept.demos == [] and list(tmp_path.iterdir()) == []


def test_the_parts_scenes_may_not_suffice(tmp_path, monkeypatch):
    """Scenes of another part would leak into training."""
    monkeypatch.setitem(demos.SEEDS, "train", range(3))
    with pytest.raises(UserError, match="the scenes of train are used up: 2 of 3"):
        record("test_demos:Scripted", {"lame": 2}, ticks=60, episodes=3, out=tmp_path / "demos", writer=Kept())
    with pytest.raises(UserError, match="scenes: 4 of train"):
        record("test_demos:Scripted", {}, ticks=60, episodes=4, out=tmp_path / "demos", writer=Kept())


def test_a_taken_folder_is_left_alone(tmp_path):
    """An hour's recording would be overwritten."""
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos" / "mine").write_text("kept")
    with pytest.raises(UserError, match="exists already"):
        recorded(tmp_path)
    assert (tmp_path / "demos" / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("robot", "options", "changes", "problem"),
    [
        ("small_robots:Real", {}, {}, "has no script"),
        ("small_robots:Nothing", {}, {}, "cannot find"),
        ("test_demos:Scripted", {"wings": 2}, {}, "task.options: .*wings"),
        ("test_demos:Scripted", {}, {"noise": float("nan")}, "--noise nan"),
        ("test_demos:Scripted", {}, {"noise": -1.0}, "--noise -1"),
        ("test_demos:Scripted", {"fault": "home"}, {}, "scene 0: joint 3 does not answer"),
    ],
)
def test_mistakes_are_one_line(robot, options, changes, problem, tmp_path):
    """A traceback tells nobody what to mend."""
    with pytest.raises(UserError, match=problem) as caught:
        record(robot, options, **{"ticks": 9, "episodes": 1, **changes}, out=tmp_path / "demos", writer=Kept())
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_without_lerobot_it_says_how_to_get_it(tmp_path, monkeypatch):
    """The extra is optional; a traceback of an import would not say so."""
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(UserError, match=r"pip install 'vlrl\[robot\]'"):
        record("test_demos:Scripted", {}, ticks=9, episodes=1, out=tmp_path / "demos")
    assert list(tmp_path.iterdir()) == []


def test_a_rate_must_be_whole(tmp_path):
    """The format's time stamps would drift from the robot's."""
    robot = Slide()
    robot.hz = 12.5
    with pytest.raises(UserError, match=r"12.5 ticks a second"):
        LerobotWriter(tmp_path / "demos", robot)


@pytest.mark.parametrize("camera", [False, True])
def test_frames_hold_what_the_features_promise(camera):
    """lerobot refuses a frame with another column, type or shape, after minutes of playing."""
    robot = Scripted(camera=camera)
    moment = demonstrate(robot, 0, ticks=60, noise=0.1, seed=0).moments[0]
    promised, given = features(robot, moment.observation), frame(moment, 0)
    assert set(given) == {*promised, "task"} and given["task"] == "Go to the right."
    kinds = {name: (str(given[name].dtype), given[name].shape) for name in promised}
    assert kinds == {n: (f["dtype"].replace("image", "uint8"), f["shape"]) for n, f in promised.items()}
    assert promised["action"]["names"] == ["vx", "vy"]
    assert (given["action"] == moment.clean).all() and (given["sent_action"] == moment.control).all()
    assert ("observation.images.camera1" in promised) == camera
    assert ("observation.environment_state" in promised) == (not camera)


def test_a_config_without_a_robot(tmp_path, capsys):
    """Most configs have none: the command must say so."""
    code = main(["demos", str(CONFIGS / "jigsaw.yaml"), "--episodes", "1", "--out", str(tmp_path / "demos")])
    assert code == 2 and "has no robot" in capsys.readouterr().err


def test_real_robots_have_no_script():
    """The check above stands on it."""
    assert not Real().has_script


@needs_lerobot
def test_lerobot_reads_what_was_recorded(tmp_path):
    """The point of the format: lerobot and its policies must get the same numbers and the same pictures."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    out, how, config = tmp_path / "demos", {"ticks": 160, "noise": 0.3, "seed": 3}, tmp_path / "push.yaml"
    config.write_text(
        "{out: x, task: {name: manipulation, robot: {name: tabletop, job: push, camera: [64, 48]}, horizon: 160}}"
    )
    words = ["demos", str(config), "--episodes", "2", "--out", str(out), "--noise", "0.3", "--seed", "3"]
    assert main(words) == 0
    data, robot = LeRobotDataset("local/demos", root=out), Tabletop(job="push", camera=(64, 48))
    scenes = json.loads((out / "meta" / "vlrl.json").read_text())["scenes"]
    assert (data.num_episodes, data.num_frames, data.fps) == (2, len(data), robot.hz)
    assert data.features["observation.state"]["names"] == list(robot.names)
    rows = iter(range(len(data)))
    for scene in scenes:
        for moment, row in zip(demonstrate(robot, scene, **how).moments, rows, strict=False):
            read = data[row]
            assert (read["action"].numpy() == moment.clean).all() and read["task"] == moment.observation.text
            assert (read["sent_action"].numpy() == moment.control).all()
            assert (read["observation.state"].numpy() == moment.observation.state).all()
            picture = (read["observation.images.camera1"].numpy() * 255).round().transpose(1, 2, 0)
            assert (picture == np.asarray(moment.observation.images[0])).all()
            assert bool(read["next.success"]) == bool(read["next.done"]) == moment.done and int(read["scene"]) == scene
    assert next(rows, None) is None
    robot.close()
