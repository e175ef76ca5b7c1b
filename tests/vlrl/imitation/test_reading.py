"""LeRobotDatasets as they lie on the disk."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from vlrl.imitation.datasets import PERSON, POLICY, UnreadableError, episodes, kept, read_info


@pytest.fixture(scope="module")
def plain(tmp_path_factory, takes, write):
    return write(tmp_path_factory.mktemp("plain") / "set", [takes(7, 1, person=slice(2, 4)), takes(5, 2, won=False)])


def pictured(takes, length: int, seed: int) -> dict:
    """Frame t of the episode is grey, 20 * t + seed."""
    grey = (20 * np.arange(length) + seed).astype(np.uint8)
    pictures = np.broadcast_to(grey[:, None, None, None], (length, 64, 96, 3)).copy()
    return {**takes(length, seed), "observation.images.front": pictures}


def test_what_lerobot_wrote_is_read_as_lerobot_reads_it(plain):
    """A policy would imitate other actions than those that were recorded."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = read_info(plain)
    assert (data.fps, data.state, data.action, data.cameras) == (10.0, ("x", "y"), ("vx", "vy"), ())
    read = list(episodes(data))
    assert [(episode.number, len(episode), episode.won, episode.task) for episode in read] == [
        (0, 7, True, "Halve it."), (1, 5, False, "Halve it."),
    ]  # fmt: skip
    assert read[0].driver.tolist() == [POLICY, POLICY, PERSON, PERSON, POLICY, POLICY, POLICY]
    theirs = LeRobotDataset("local/set", root=plain)
    for place, frame in enumerate((episode, t) for episode in read for t in range(len(episode))):
        episode, t = frame
        assert np.array_equal(episode.state[t], theirs[place]["observation.state"].numpy())
        assert np.array_equal(episode.action[t], theirs[place]["action"].numpy())
        assert episode.success[t] == theirs[place]["next.success"].item()


@pytest.mark.parametrize("video", [False, True])
def test_pictures_are_those_of_their_frames(tmp_path, takes, write, video):
    """One frame off, and every picture is paired with the action of another moment."""
    folder = write(tmp_path / "set", [pictured(takes, 6, 0), pictured(takes, 9, 7)], video=video)
    data = read_info(folder)
    assert data.cameras == (("front", 96, 64),)
    for episode, offset in zip(episodes(data), (0, 7), strict=True):
        shown = [np.asarray(episode.observation_at(t).images[0]) for t in range(len(episode))]
        assert all(picture.shape == (64, 96, 3) for picture in shown)
        wanted = 20 * np.arange(len(episode)) + offset
        assert np.abs([picture.mean() for picture in shown] - wanted).max() <= (6 if video else 0)


def test_only_the_wanted_episodes_are_read(plain):
    """A learner would read a day's recording again for every new episode."""
    assert [episode.number for episode in episodes(read_info(plain), but={0})] == [1]


@pytest.mark.parametrize("broken", ["data", "meta/episodes", "meta/info.json", "meta/tasks.parquet"])
def test_half_a_file_is_said_in_one_line(tmp_path, plain, broken):
    """Reading while somebody writes would end a learner with a traceback, or teach it half an episode."""
    folder = shutil.copytree(plain, tmp_path / "set")
    file = next(path for path in [*sorted((folder / broken).rglob("*")), folder / broken] if path.is_file())
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UnreadableError) as error:
        list(episodes(read_info(folder)))
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_an_episode_with_frames_missing_is_not_whole(tmp_path, plain):
    """Its last frames, the success among them, would be missing from what is learned."""
    import pyarrow.parquet as pq

    folder = shutil.copytree(plain, tmp_path / "set")
    file = next((folder / "data").rglob("*.parquet"))
    pq.write_table(pq.read_table(file).slice(0, 9), file)
    with pytest.raises(UnreadableError, match="episode 1 has 2 of 5 frames"):
        list(episodes(read_info(folder)))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"codebase_version": "v2.1"}, "v3 is read"), ({"features": {}}, "observation.state")],
)
def test_other_data_sets_are_refused(tmp_path, plain, change, said):
    """An old version has other files; without states there is nothing to learn from."""
    folder = shutil.copytree(plain, tmp_path / "set")
    info = json.loads((folder / "meta" / "info.json").read_text())
    (folder / "meta" / "info.json").write_text(json.dumps(info | change))
    with pytest.raises(UnreadableError, match=said):
        read_info(folder)


def test_a_picture_outside_the_data_set_is_not_opened(tmp_path):
    """A data set from elsewhere could have any file of this machine read."""
    (tmp_path / "set").mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    cell = pa.chunked_array([pa.array([{"bytes": None, "path": "../secret.png"}])])
    with pytest.raises(ValueError, match="outside"):
        kept(cell, tmp_path / "set")
