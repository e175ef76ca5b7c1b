"""Episodes of robots as rerun's recordings, read back by rerun's own reader; skipped where it is not installed."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robot.env import RobotEnv
from robot.sim.tabletop import Tabletop
from vlrl import cli
from vlrl.metrics import save_rollouts
from vlrl.system.clock import forbid_realtime
from vlrl.types import Decision, Episode, Sample, Score, Turn

pytestmark = pytest.mark.slow
rrd = pytest.importorskip("rerun.chunk")  # of the extra `traces`
CHUNK, SCENES = 8, (0, 1)
CONFIG = "{out: x, task: {name: manipulation, robot: {name: tabletop, job: push, camera: [32, 24]}, horizon: 160}}"


def play(robot: Tabletop, scene: int) -> Episode:
    """An episode of random chunks, cut within a chunk."""
    env, rng = RobotEnv(robot, scene, ticks=3 * CHUNK - 2), np.random.default_rng(scene)
    observation, over = env.reset(), False
    episode = Episode(Sample(f"push/{scene}", observation), scene, [])
    while not over:
        action = rng.uniform(robot.controls.low, robot.controls.high, (CHUNK, 3)).astype(np.float32)
        step = env.step(action)
        episode.turns.append(Turn(observation, Decision(action, logprobs=None, entropy=None, truncated=False), step))
        observation, over = step.observation, step.terminated or step.truncated
    episode.score, episode.reward = Score({"speed": 0.25}, 0.0), 0.5
    return episode


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    robot = Tabletop(job="push", camera=(32, 24))
    try:
        return [play(robot, scene) for scene in SCENES]
    finally:
        robot.close()


def export(source: Path) -> list[dict[str, dict]]:
    """Of each recording, an entity's rows by the name of their component, of `tick` and `frame_index` too."""
    out = source.with_name("out")
    assert cli.main(["export", str(source), "--traces", "rerun", "--out", str(out)]) == 0
    recordings = []
    for file in sorted(out.iterdir()):
        entities: dict[str, dict] = {}
        for chunk in rrd.RrdReader(file).stream():
            for name, column in chunk.to_record_batch().to_pydict().items():
                entities.setdefault(chunk.entity_path, {}).setdefault(name, []).extend(column)
        recordings.append(entities)
    return recordings


def pixels(picture: list[int] | bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(bytes(picture))).convert("RGB"))


def test_decisions_of_a_run_stand_on_a_time_line(episodes, tmp_path):
    """What a policy did could be seen nowhere but in rows of rounded numbers."""
    save_rollouts(tmp_path / "run", 5, episodes, [[0.1, 0.2, 0.3], [1.0, 1.0, 1.0]])
    for entities, episode in zip(export(tmp_path / "run"), episodes, strict=True):
        counts = [int(turn.step.info["ticks"]) for turn in episode.turns]
        assert counts == [CHUNK, CHUNK, CHUNK - 2]
        starts, total = [0, CHUNK, 2 * CHUNK], sum(counts)
        actions = np.concatenate([turn.decision.action for turn in episode.turns])[:total]
        state, action, camera = entities["/state"], entities["/action"], entities["/camera1"]
        assert state["tick"] == camera["tick"] == starts and action["tick"] == list(range(total))
        np.testing.assert_allclose(
            state["Scalars:scalars"], [turn.observation.state for turn in episode.turns], rtol=1e-5
        )
        np.testing.assert_allclose(action["Scalars:scalars"], actions, rtol=1e-5)
        assert entities["/reward"]["tick"] == [*starts[1:], total]
        assert entities["/reward"]["Scalars:scalars"] == [[turn.step.reward] for turn in episode.turns]
        for (blob,), turn in zip(camera["EncodedImage:blob"], episode.turns, strict=True):
            assert (pixels(blob) == np.asarray(turn.observation.images[0].convert("RGB"))).all()
        assert entities["/instruction"]["TextDocument:text"] == [[episode.sample.prompt.text]]
        facts = entities["/__properties/episode"]
        assert (facts["reward"], facts["speed"], facts["step"]) == ([[0.5]], [[0.25]], [[5]])


def test_demonstrations_keep_every_tick(tmp_path):
    """A recording that shows another picture, or numbers a tick late, would explain a failure wrongly."""
    (tmp_path / "push.yaml").write_text(CONFIG)
    data = tmp_path / "demos"
    assert cli.main(["demos", str(tmp_path / "push.yaml"), "--episodes", "2", "--out", str(data)]) == 0
    check(data, rewards=True)


def test_videos_of_a_data_set_come_along(tmp_path):
    """Recordings of deployed arms are videos, of several episodes in one file."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    numbers = {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}
    front = {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]}
    columns = {"observation.state": numbers, "action": numbers, "observation.images.front": front}
    data = LeRobotDataset.create("local/v", 20, columns, root=tmp_path / "films", use_videos=True)
    for episode in range(2):
        for t in range(9 + episode):
            state, action = np.array([[t, episode], [episode, t]], np.float32)
            picture = np.full((64, 96, 3), 40 * episode + 3 * t, np.uint8)
            data.add_frame({"observation.state": state, "action": action, "observation.images.front": picture,
                            "task": "Look."})  # fmt: skip
        with forbid_realtime():  # which the encoder asks for where it may
            data.save_episode(parallel_encoding=False)
    data.finalize()
    for number, entities in enumerate(check(tmp_path / "films", rewards=False)):
        assert entities["/observation.images.front"]["VideoStream:codec"]
        assert len(entities["/observation.images.front"]["VideoStream:sample"]) == 9 + number


def check(data: Path, rewards: bool) -> list[dict[str, dict]]:
    """The recordings of a data set, after they were compared with what it holds."""
    from vlrl.imitation.datasets import episodes, read_info

    info, recordings = read_info(data), export(data)
    for entities, episode in zip(recordings, episodes(info), strict=True):
        state, action = entities["/observation.state"], entities["/action"]
        assert (np.array(state["Scalars:scalars"], np.float32) == episode.state).all()
        assert (np.array(action["Scalars:scalars"], np.float32) == episode.action).all()
        assert tuple(state["SeriesLines:names"][0]) == info.state and state["frame_index"] == [*range(len(episode))]
        assert entities["/task"]["TextDocument:text"][0] == [episode.task]
        if rewards:
            assert [reward for (reward,) in entities["/next.reward"]["Scalars:scalars"]] == episode.reward.tolist()
        for (name, _, _), pictures in zip(info.cameras, episode.pictures, strict=True):
            if not info.videos:
                blobs = entities[f"/observation.images.{name}"]["EncodedImage:blob"]
                assert all((pixels(blob) == np.asarray(pictures[t])).all() for t, (blob,) in enumerate(blobs))
                assert len(blobs) == len(episode)
    return recordings


@pytest.mark.parametrize("info", ["{}", json.dumps({"codebase_version": "v3.0"})])
def test_a_damaged_data_set_is_one_line(info, tmp_path, capsys):
    """What rerun says of its own types tells nobody which folder to look at."""
    (tmp_path / "data" / "meta").mkdir(parents=True)
    (tmp_path / "data" / "meta" / "info.json").write_text(info)
    out = tmp_path / "out"
    assert cli.main(["export", str(tmp_path / "data"), "--traces", "rerun", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "rerun cannot read the data set" in error and error.count("\n") == 1 and not out.exists()
