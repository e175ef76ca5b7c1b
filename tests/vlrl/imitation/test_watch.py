"""Folders in which others record while a learner looks."""

from __future__ import annotations

import shutil

import pytest

from vlrl.imitation.dagger import DatasetWatcher, data_sets


@pytest.fixture(scope="module")
def two(tmp_path_factory, takes, write):
    """A data set of one episode, and the same after it grew to three."""
    room = tmp_path_factory.mktemp("grown")
    write(room / "small", [takes(4, 1)])
    shutil.copytree(room / "small", room / "grown")
    return room / "small", write(room / "grown", [takes(5, 2), takes(6, 3)])


def numbers(watched: DatasetWatcher) -> list[int]:
    return [episode.number for _, episode in watched.new()]


def test_each_episode_is_found_once_as_a_data_set_grows(tmp_path, two):
    """Episodes would be learned twice as often as others, or a day's recording not at all."""
    small, grown = two
    watched = DatasetWatcher([str(tmp_path / "set")])
    assert numbers(watched) == []  # not there yet
    shutil.copytree(small, tmp_path / "set")
    assert (numbers(watched), numbers(watched)) == ([0], [])
    shutil.rmtree(tmp_path / "set")
    assert numbers(watched) == []  # between two names
    shutil.copytree(grown, tmp_path / "set")
    assert (numbers(watched), numbers(watched)) == ([1, 2], [])
    assert watched.episode_numbers == {str(tmp_path / "set"): [0, 1, 2]}


def test_what_is_half_written_is_left_until_it_is_whole(tmp_path, two, capsys):
    """Half an episode would be learned, or the learner end in the middle of the night."""
    folder = shutil.copytree(two[1], tmp_path / "set")
    files = sorted((folder / "data").rglob("*.parquet"))
    whole = files[-1].read_bytes()
    watched = DatasetWatcher([str(tmp_path)])
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        files[-1].write_bytes(whole[:cut])
        assert numbers(watched) == []
    files[-1].write_bytes(whole)
    assert numbers(watched) == [0, 1, 2]
    assert "not read yet" in capsys.readouterr().err


def test_an_episode_that_lerobot_is_still_writing_is_not_found(tmp_path, takes, write):
    """lerobot writes the frames of an episode long before the file can be read."""
    watched = DatasetWatcher([str(tmp_path / "set")])
    write(tmp_path / "set", [takes(4, 1)], finish=False)
    assert numbers(watched) == []
    write.open.finalize()
    assert numbers(watched) == [0]


def test_hidden_folders_are_somebodys_unfinished_work(tmp_path, two):
    """`vlrl demos` and `vlrl deploy` write under a hidden name first."""
    for name in (".set.new", "a", "b"):
        shutil.copytree(two[0], tmp_path / name)
    assert [path.name for path in data_sets(tmp_path)] == ["a", "b"]
