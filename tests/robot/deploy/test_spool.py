"""Recordings: whatever happens, what was written can be read, and becomes a data set that lerobot loads."""

import contextlib
import json
import os
import resource
import shutil
import threading

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot.deploy.config import RecordSection
from robot.deploy.main import load_recorded
from robot.deploy.recorder import (
    TAKEN,
    TakeWriter,
    _sibling_folders,
    features,
    finish,
    finished,
    fits,
    grid,
    hold_data,
    load_frames,
    picture,
    read_take,
    restore,
    spools_of,
)
from robot.deploy.session import Ender
from robot.types import RobotState, RobotStatus, SafetyEvent, TickRecord
from vlrl.types import UserError

HEADER = {
    "hz": 50.0, "fps": 25, "names": ["a", "b"], "channels": ["a.pos", "b.pos"], "units": ["deg", "deg"],
    "kinds": ["position", "position"], "pictures": {"front": [24, 32]}, "policy": "p", "robot": "r",
    "seed": 5, "task": "push", "episode": 1,
}  # fmt: skip


def drawn(number):
    return np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)


def ticked(number, source="policy"):
    sensed = RobotState(number / 50, np.full(2, number, np.float32), np.zeros(2, np.float32),
                    signals=RobotStatus(reward=0.5))  # fmt: skip
    events = (SafetyEvent("speed", "clip", "too fast"),) if number % 2 else ()
    sent = np.full(2, number + 0.5, np.float32)
    return TickRecord(number, sensed, None if number < 2 else sent + 1, sent, source, 0.1, 3, events)


def record(folder, name, ticks=40, driven=range(0), success=True, **header):
    folder.mkdir(parents=True, exist_ok=True)
    take_writer = TakeWriter(folder / f"{name}.spool", HEADER | {"id": name} | header)
    for number in range(ticks):
        pictures = {"front": drawn(number)} if number % 3 == 1 else {}
        take_writer.tick(ticked(number, "person" if number in driven else "policy"), pictures)
    take_writer.close(success=success)
    assert take_writer.lost == 0 and take_writer.problem == ""
    return take_writer.path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return record(tmp_path_factory.mktemp("whole"), "x", ticks=12).read_bytes()


def test_all_that_was_said_is_there(tmp_path) -> None:
    """A recording is the only witness of what the robot did."""
    take = load_frames(record(tmp_path, "x"))
    assert len(take.ticks) == 40 and take.end["success"] is True and take.header["task"] == "push"
    fields, arrays = take.ticks[7]
    assert fields["events"] == [["speed", "clip", "too fast"]] and fields["seq"] == 3
    assert arrays["asked"].tolist() == [8.5, 8.5] and arrays["sent"].tolist() == [7.5, 7.5]
    assert np.array_equal(picture(arrays["picture:front"]), drawn(7))  # small pictures are exact


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cut_or_damaged_anywhere_it_is_read_up_to_there(whole, tmp_path_factory, data) -> None:
    """A power cut leaves half a record; a bad sector flips bits. Neither may cost what stands before."""
    place = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    hurt = whole[:place] if cut else whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
    file = tmp_path_factory.mktemp("cut") / "x.spool"
    file.write_bytes(hurt)
    found = [fields["kind"] for fields, _ in read_take(file)]
    file.write_bytes(whole)
    all_of_it = [fields["kind"] for fields, _ in read_take(file)]
    assert found == all_of_it[: len(found)] and len(found) < len(all_of_it)


def test_disk_full_keeps_what_was_there_and_counts_the_rest(tmp_path) -> None:
    """The recording stops, control goes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    take_writer = TakeWriter(tmp_path / "x.spool", HEADER | {"id": "x"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        for number in range(200):
            take_writer.tick(ticked(number), {})
        take_writer.close(success=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    take = load_frames(take_writer.path)
    assert "File too large" in take_writer.problem
    assert 10 < len(take.ticks) < 150 and len(take.ticks) + take_writer.lost == 200


def test_a_slow_disk_delays_nobody(tmp_path) -> None:
    """Control must not wait for the recording: what does not fit is counted, and marked in the file."""
    take_writer = TakeWriter(tmp_path / "x.spool", HEADER | {"id": "x"}, room=4)
    for number in range(400):
        take_writer.tick(ticked(number), {"front": drawn(number)})
    take_writer.close(success=True)
    take = load_frames(take_writer.path)
    assert take_writer.lost > 0 and take.lost == take_writer.lost and len(take.ticks) + take_writer.lost == 400


def test_frames_are_at_the_data_sets_rate(tmp_path) -> None:
    """A policy learns from evenly spaced frames: 50 ticks a second become 25 frames, with all rewards and events."""
    made = grid(load_frames(record(tmp_path, "x", ticks=41)))
    assert len(made) == 20  # from the first picture on, at tick 1
    first, last = made.frame(0, last=False), made.frame(len(made) - 1, last=True)
    assert first["observation.state"].tolist() == [1, 1] and first["action"].tolist() == [1.5, 1.5]
    assert first["next.reward"] == 1.0 and first["events"].tolist() == [0, 1, 0, 0]
    assert np.array_equal(made.frame(3, last=False)["observation.images.front"], drawn(7))
    assert last["next.success"] and last["next.done"] and not first["next.done"]


def test_the_data_set_loads_in_lerobot_and_grows(tmp_path) -> None:
    """What is recorded today is trained on with what was recorded before."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    out = tmp_path / "data"
    record(spools_of(out), "one")
    record(spools_of(out), "two", driven=range(10, 20))
    assert finish(out) == {"episodes": 2, "frames": 40, "lost": 0, "corrections": 1}
    assert list(spools_of(out).iterdir()) == []
    record(spools_of(out), "three", success=False)
    assert finish(out)["episodes"] == 1
    data = LeRobotDataset("local/data", root=out)
    assert (data.num_episodes, len(data), data.fps) == (3, 60, 25)
    row = data[19]
    assert row["next.done"] and row["next.success"] and row["task"] == "push"
    assert np.array_equal((data[3]["observation.images.front"].numpy() * 255).round(), drawn(7).transpose(2, 0, 1))
    assert int(sum(data[i]["intervention"] for i in range(20, 40))) == 6
    driven = LeRobotDataset("local/data-corrections", root=tmp_path / "data-corrections")
    assert len(driven) == 6 and driven[5]["next.done"]
    again = load_recorded(out, 1)  # as `vlrl replay` reads it
    assert again.hz == 25 and np.array_equal(again.actions[3], data[23]["action"].numpy())
    assert json.loads((out / "meta" / "vlrl.json").read_text())["controls"][0] == {"name": "a.pos", "unit": "deg"}


def test_videos_are_made_without_realtime_threads(tmp_path) -> None:
    """SVT-AV1, lerobot's encoder, would take the processors from a motion loop: as root it runs at SCHED_FIFO 99."""
    record(spools_of(tmp_path / "data"), "one")
    policies, processes, done = set(), set(), threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError):  # it has just ended
                    threads = os.listdir(f"/proc/{child.pid}/task")
                    policies.update(os.sched_getscheduler(int(thread)) for thread in threads)
                    processes.add(child.pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with hold_data(tmp_path / "data") as lease:
            counts = finished(
                RecordSection(out=str(tmp_path / "data"), pictures="video", corrections=False), lease, Ender()
            )
    finally:
        done.set()
        watcher.join()
    assert counts["episodes"] == 1 and list((tmp_path / "data").rglob("*.mp4"))
    assert processes and policies == {os.SCHED_OTHER}


def test_killed_while_the_data_set_is_made(tmp_path) -> None:
    """Between any two steps of putting the new data set in place, no episode is lost or there twice."""
    out = tmp_path / "data"
    record(spools_of(out), "one")
    finish(out)
    path = record(spools_of(out), "two")
    kept = path.read_bytes()
    finish(out)
    path.write_bytes(kept)  # killed after the swap, before the spool was removed
    assert finish(out)["episodes"] == 0
    held = json.loads((out / TAKEN).read_text())
    assert held == ["one", "two"]
    old, new = _sibling_folders(out)
    out.rename(old)  # killed between the two names
    shutil.copytree(old, new)
    restore(out)
    assert out.is_dir() and not old.exists() and not new.exists()
    assert json.loads((out / "meta" / "info.json").read_text())["total_episodes"] == 2


def test_another_robot_is_not_mixed_in(tmp_path) -> None:
    """Rows of two robots under the same columns would spoil both."""
    out = tmp_path / "data"
    (out / "meta").mkdir(parents=True)
    columns = features(HEADER, video=False)
    info = {"fps": 25, "features": {name: {**each, "shape": list(each["shape"])} for name, each in columns.items()}}
    (out / "meta" / "info.json").write_text(json.dumps(info))
    assert fits(out, columns, 25) == ""
    assert "frames a second" in fits(out, columns, 30)
    assert "another action" in fits(out, features(HEADER | {"channels": ["a.pos", "c.pos"]}, False), 25)
    record(spools_of(out), "one", channels=["a.pos", "c.pos"])
    with pytest.raises(UserError, match=r"record\.out: .* another action"):
        finish(out)
    assert os.listdir(spools_of(out)) == ["one.spool"]
