"""Motions of our own: home, resets, out of a jam, and recorded episodes once more. All through the governor."""

import json
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from small_deploy import options, written

from robot.control.process import Motion
from robot.deploy.config import PolicySource, Stuck
from robot.deploy.episode import StuckDetector, pose_of, ramp
from robot.deploy.main import main, replay_main
from robot.deploy.recorder import features, grid, load_frames, spools_of
from robot.deploy.session import Chunks
from robot.safety.limits import Safety
from robot.sim.so101 import NAMES, STATE
from robot.types import Channel, RobotState, TickRecord
from vlrl.serving.protocol import Feature, PolicySpec
from vlrl.serving.server import running
from vlrl.types import UserError

ARM = (Channel("a.pos", "deg"), Channel("b.pos", "deg"), Channel("wheel.vel", "deg/s", "speed"))
BODY = {"name": "simulated", "robot": "so101", "drive": "position"}


class Nodding:
    """Moves the shoulder to and fro, from the state."""

    name, version = "nodding", "1"

    def __init__(self):
        units = ["deg"] * 5 + ["%"]
        action = tuple(Feature(name, unit) for name, unit in zip(NAMES, units, strict=True))
        self.spec = PolicySpec(tuple(Feature(name) for name in STATE), (), action, 30.0, 10)

    def infer(self, asked):
        chunks = [np.repeat(each.state[None, :6], 10, 0) for each in asked]
        for chunk in chunks:
            chunk[:, 0] += 10 if chunk[0, 0] < 0 else -10
        return chunks

    def forget(self, session):
        pass


@pytest.fixture(scope="module")
def nodding():
    with running(Nodding()) as url:
        yield url


def test_a_ramp_arrives_and_keeps_the_limits() -> None:
    """Homing must never be the most dangerous part of a run."""
    motion = Motion(BODY, Safety.model_validate({"default": {"speed": 30.0}}))
    session = SimpleNamespace(motion=motion, ender=SimpleNamespace(code=0), orders=lambda: [], show=lambda ticked: None,
                          chunks=Chunks(PolicySource(), Nodding().spec, motion.info.hz))  # fmt: skip
    try:
        first = motion.begin(0)
        goal = pose_of({"shoulder_pan.pos": first.sensed.measured[0] + 20}, motion.info.channels, "home.pose")
        assert ramp(session, goal, 1.0)
        ticks = [ticked for ticked in motion.ticks() if ticked.sent is not None]
        assert ticks[-1].sent[0] == pytest.approx(goal[0]) and ticks[-1].sent[1:] == pytest.approx(ticks[0].sent[1:])
        pace = np.abs(np.diff([ticked.sent[0] for ticked in ticks])) * motion.info.hz
        assert pace.max() < 30.1 and (pace > 19).sum() > 20
    finally:
        motion.close()


def test_a_pose_of_what_is_no_position() -> None:
    """A wheel has no place to go to."""
    with pytest.raises(UserError, match=r"home\.pose\.wheel\.vel: must be .* a\.pos, b\.pos"):
        pose_of({"wheel.vel": 1.0}, ARM, "home.pose")
    assert np.isnan(pose_of({"b.pos": 3}, ARM, "home.pose")).tolist() == [True, False, True]


def jam_at(targets, places, source="policy"):
    jam = StuckDetector(Stuck(seconds=1.0, back_s=0.5), ARM, 10.0)
    for number, (target, place) in enumerate(zip(targets, places, strict=True)):
        asked, here = np.array([target, 0, 50], np.float32), np.array([place, 0, np.nan], np.float32)
        if jam.see(TickRecord(number, RobotState(0.0, here, here), asked, asked, source, 0.1, 1)):
            return number, jam.free()
    return None, None


def test_stuck_is_sent_but_does_not_come() -> None:
    """A robot that pushes against a table burns its motors, and one that is called stuck for nothing never learns."""
    free = [float(i) for i in range(10)]
    number, back = jam_at([*(i + 5.0 for i in free), *[40.0] * 20], [*free, *[9.0] * 20])
    assert 15 <= number <= 20 and back[0] < 9.0
    assert jam_at([i + 5.0 for i in range(40)], [float(i) for i in range(40)])[0] is None  # follows behind
    assert jam_at([1.0] * 40, [0.0] * 40)[0] is None  # hangs a little
    assert jam_at([40.0] * 40, [9.0] * 40, "person")[0] is None
    assert jam_at([9.0 + i % 8 for i in range(40)], [9.0] * 40)[0] is not None  # each chunk begins where it is
    assert jam_at([9.0 + 8 * (i % 3 - 1) for i in range(39)], [9.0] * 39)[0] is None  # trembles


def kept(folder):
    """The numbers of the first recording as a data set's files have them, without lerobot."""
    made = grid(load_frames(next(spools_of(folder).glob("*.spool"))))
    rows = [made.frame(index, last=False) for index in range(len(made))]
    columns = features(made.take.header, video=False)
    wanted = ("observation.state", "action", "scene")
    table = {name: [row[name].tolist() for row in rows] for name in wanted[:2]}
    table |= {"scene": [int(row["scene"][0]) for row in rows], "episode_index": [0] * len(rows),
              "frame_index": list(range(len(rows)))}  # fmt: skip
    for part in ("meta", "data/chunk-000"):
        (folder / part).mkdir(parents=True)
    info = {"fps": made.take.header["fps"], "total_episodes": 1, "features": {name: columns[name] for name in wanted}}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    parquet.write_table(pyarrow.table(table), folder / "data" / "chunk-000" / "file-000.parquet")
    return len(rows)


def test_a_recorded_episode_once_more(nodding, tmp_path, capsys) -> None:
    """Whether a robot still does what it did when it was recorded."""
    data = tmp_path / "data"
    file = written(tmp_path, nodding, robot=BODY, policy__mode="async", policy__execute=None, seconds=2, safety={},
                   record={"out": str(data), "finish": False})  # fmt: skip
    assert main(options(file)) == 0
    assert kept(data) > 50
    capsys.readouterr()
    chosen = Namespace(dataset=str(data), config=str(file), changes=[], episode=0, json=True)
    assert replay_main(chosen) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["frames"] > 0.9 * told["of"] and told["deviation"]["shoulder_pan.pos"]["mean"] < 1.0
    assert told["deviation"]["shoulder_pan.pos"]["unit"] == "deg"
    with pytest.raises(UserError, match="--episode 7"):
        replay_main(Namespace(**{**vars(chosen), "episode": 7}))
