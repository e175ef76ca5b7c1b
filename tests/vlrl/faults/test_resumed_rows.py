"""What a resumed run finds in its folder: rows that a power loss took, rows of somebody else, another configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.vlrl.faults.test_leases import SLOW, steps, underway
from tests.vlrl.processes import rows

TASK = {"name": "mine:Slow", "pool": 12, "held_out": 2}


@pytest.fixture(scope="module")
def stopped(command, tmp_path_factory):
    """`stopped()`: a copy of a run that was killed in its third step, with its rows of steps 0, 1 and 2."""
    from tests.vlrl.faults.conftest import workplace

    kept = workplace(tmp_path_factory.mktemp("stopped") / "work", SLOW, task=TASK)
    run = underway(command, kept, "config.yaml")
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    (kept / "go").touch()
    straight = shutil.copytree(kept, kept.parent / "straight")
    assert command(straight, "train", "--resume", "run").wait()[0] == 0

    def copy(folder: Path) -> tuple[Path, Path]:
        return shutil.copytree(kept, folder / "work"), straight

    return copy


def test_rows_that_a_power_loss_took_come_back(command, stopped, tmp_path):
    """A run went on with steps 0, 1, 2, 3, 9 and ended with exit code 0."""
    folder, straight = stopped(tmp_path)
    assert steps(folder) == [0, 1, 2]
    for name in ("metrics.jsonl", "timings.jsonl"):
        file = folder / "run" / name
        kept = file.read_bytes().splitlines(keepends=True)[: 2 if name == "metrics.jsonl" else 1]
        file.write_bytes(b"".join(kept) + b'{"step": 2, "rew')
    code, said = command(folder, "train", "--resume", "run").wait()
    assert code == 0 and "metrics.jsonl: 1 of 3 rows were missing and are restored" in said, said
    assert (folder / "run" / "metrics.jsonl").read_bytes() == (straight / "run" / "metrics.jsonl").read_bytes()
    timings = (folder / "run" / "timings.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in timings] == [1, 2, 3, 4]


def test_rows_of_something_else_are_refused_and_kept(command, stopped, tmp_path):
    """Two runs' rows would make one curve, or the only copy of a row be cut."""
    folder, _ = stopped(tmp_path)
    file = folder / "run" / "metrics.jsonl"
    changed = file.read_text().replace('"step": 1', '"step": 7')
    file.write_text(changed)
    code, said = command(folder, "train", "--resume", "run").wait()
    assert code == 2 and "metrics.jsonl is not what this run wrote in its first 3 rows" in said
    assert file.read_text() == changed
    file.unlink()  # as the message says
    code, said = command(folder, "train", "--resume", "run").wait()
    assert code == 0 and "the 2 rows before them are lost" in said
    assert steps(folder) == [2, 3, 4, 4]


def test_a_changed_configuration_stands_in_metrics_and_report(command, stopped, tmp_path):
    """Another learning rate from step 3 on would explain a curve, and nothing would say so."""
    folder, _ = stopped(tmp_path)
    code, said = command(folder, "train", "--resume", "run", "train.lr=0.0005").wait()
    assert code == 0, said
    found = [row for row in rows(folder) if "changes" in row]
    assert found == [{"step": 2, "changes": {"train.lr": [0.001, 0.0005]}}]
    assert "resumed at step 2 with train.lr 0.001 -> 0.0005" in said
    assert "From step 2 on, train.lr 0.001 -&gt; 0.0005." in (folder / "run" / "report.html").read_text()
    assert "lr: 0.0005" in (folder / "run" / "config.yaml").read_text()  # a further resume goes on with it
    assert [row["lr"] for row in rows(folder) if "lr" in row] == [0.001, 0.001, 0.0005, 0.0005]


def test_what_defines_the_run_is_refused(command, stopped, tmp_path):
    """Half of a run with one seed and group size, half with another, would count as one of them."""
    folder, _ = stopped(tmp_path)
    file = folder / "run" / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("group_size: 2", "group_size: 3"))
    code, said = command(folder, "train", "--resume", "run").wait()
    assert code == 2 and "train.group_size: the run began with 2, and is resumed with 3" in said
    assert len(said.strip().splitlines()) == 1 and steps(folder) == [0, 1, 2]
    code, said = command(folder, "train", "--resume", "run", "--allow-changes").wait()
    assert code == 0, said
    assert [row["changes"] for row in rows(folder) if "changes" in row] == [{"train.group_size": [2, 3]}]


def test_a_run_that_was_moved_goes_on_where_it_is(command, stopped, tmp_path):
    """It began anew under its old name, without a word."""
    folder, _ = stopped(tmp_path)
    (folder / "run").rename(folder / "moved")
    code, said = command(folder, "train", "--resume", "moved").wait()
    assert code == 0, said
    assert not (folder / "run").exists() and (folder / "moved" / "summary.json").exists()
