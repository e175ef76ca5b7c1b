"""`vlrl stages` from end to end: every kind of stage really run, killed, gone on with, and told in one table."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import time
from pathlib import Path

import pytest
import yaml

from vlrl.algorithms.samplers import selection_read
from vlrl.tools.stage_runs import run, table
from vlrl.tools.stages import StagePlan, plan_plan
from vlrl.types import UserError

HELPER = Path(__file__).with_name("run_python.py")
PATIENCE = 300  # seconds until a command counts as stuck
TASK = {"out": "x", "task": {"name": "gui_grounding", "objects": 3, "pool": 64, "held_out": 8},
        "policy": {"model": "embedded", "max_tokens": 12}, "eval": {"batch_size": 16}, "log": {"trackers": []},
        "train": {"steps": 3, "prompts_per_step": 2, "group_size": 2}}  # fmt: skip
WARM = {"out": "x", "start": "embedded", "steps": 1, "images": 2, "lr": 1e-5,
        "lessons": [{"task": {"name": "gui_grounding", "held_out": 2}}]}  # fmt: skip
STAGES = [
    {"run": "rounds", "times": 1, "stages": [
        {"name": "own", "run": "best_of", "config": "task.yaml", "samples": 8, "tries": 4},
        {"name": "sft", "run": "warmstart", "config": "warm.yaml", "demonstrations": ["own"]}]},
    {"name": "hard", "run": "select", "config": "task.yaml", "samples": 8, "repeats": 4, "pass_rate": [0.0, 0.9]},
    {"name": "rl", "run": "train", "config": "task.yaml", "only": "hard"},
    {"name": "mean", "run": "average", "models": ["sft", "rl"]},
]  # fmt: skip


class Forked:
    """Runs commands in forked processes, which spares each the seconds of importing; kills one where it is told to."""

    def __init__(self, kill_at: Path | None = None):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            ["vlrl.trainer", "vlrl.imitation.sft", "vlrl.evaluation.data_selection", "tasks.gui_grounding"]
        )
        self.kill_at, self.done = kill_at, []

    def run(self, arguments, log):
        given = {"REQUEST": (list(arguments), str(log))}
        process = self.context.Process(target=runpy.run_path, args=(str(HELPER), given, "__main__"))
        process.start()
        deadline = time.monotonic() + PATIENCE
        while process.is_alive():
            assert time.monotonic() < deadline
            if self.kill_at and self.kill_at.exists():
                process.kill()
                process.join()
                raise KeyboardInterrupt
            process.join(0.02)
        if process.exitcode:
            raise UserError(log.read_text())
        self.done.append(arguments[2] if arguments[1] == "vlrl.cli" else arguments[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("stages")
    (made / "task.yaml").write_text(yaml.safe_dump(TASK))
    (made / "warm.yaml").write_text(yaml.safe_dump(WARM))
    (made / "stages.yaml").write_text(yaml.safe_dump({"out": str(made / "out"), "stages": STAGES}))
    return made


def planned(folder: Path, *changes: str) -> StagePlan:
    return plan_plan(str(folder / "stages.yaml"), changes)


@pytest.fixture(scope="module")
def finished(folder):
    """All stages, the last of them killed once after its first step; and what the second call ran."""
    first, second = Forked(folder / "out" / "04_rl" / "metrics.jsonl"), Forked()
    with pytest.raises(KeyboardInterrupt):
        run(planned(folder), calls=lambda held: first)
    return first.done, second, run(planned(folder), calls=lambda held: second)


def test_a_killed_run_repeats_no_finished_stage_and_ends_the_last_one(folder, finished):
    """Hours of finished stages would be run again, or the one that was killed be lost."""
    before, second, summary = finished
    assert before == ["best-of", "warmstart", "select"]
    assert second.done == ["train", "average", "vlrl.tools.stages"]
    steps = [json.loads(line) for line in (folder / "out" / "04_rl" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if "reward" in row] == [1, 2, 3]
    assert all(row["finished"] for row in summary["stages"])
    third = Forked()
    assert run(planned(folder), calls=lambda held: third) == summary and third.done == []


def test_every_stage_did_what_it_was_told(folder, finished):
    """The list, the demonstrations or the models would be made and not used."""
    out = folder / "out"
    hard = {row.id for row in selection_read(out / "03_hard" / "list.jsonl") if row.kept}
    drawn = {json.loads(line)["sample_id"] for file in (out / "04_rl" / "rollouts").glob("step_*.jsonl")
             for line in file.read_text().splitlines() if json.loads(line)["split"] == "train"}  # fmt: skip
    assert drawn and drawn <= hard
    config = yaml.safe_load((out / "04_rl" / "config.yaml").read_text())
    assert config["policy"]["model"] == str(out / "02_sft_1")


def test_the_table_tells_each_stage(folder, finished):
    """Which stage was worth its time would be read out of logs."""
    _, _, summary = finished
    own, sft, hard, rl, mean = summary["stages"]
    assert (summary["measured_on"], summary["start"]["n"]) == ("gui_grounding", 8)
    assert sft["before"] == summary["start"] and rl["before"] == sft["after"] and own["after"] is None
    assert rl["own"]["after"]["value"] == rl["after"]["value"]  # the same task, measured by the trainer
    assert (mean["start"], mean["task"], mean["after"]["n"]) == ("02_sft_1", "mean of sft and rl", 8)
    assert (own["told"]["samples"], hard["told"]["measured"]) == (8, 8)
    text = table(summary)
    assert text in (folder / "out" / "report.md").read_text() and len(text.splitlines()) == 9
    assert "Held out: greedy accuracy on 8 samples of `gui_grounding`." in text


def test_stages_made_with_other_settings_are_not_taken_for_these(folder, finished):
    """A changed start would stand beside a model that was made from the old one."""
    with pytest.raises(UserError, match=r"02_sft_1 was made with other settings \(config.lr: 1e-05 there, 0.5 now\)"):
        run(planned(folder, "sft.lr=0.5"))


def test_what_a_stage_needs_must_be_there(folder, tmp_path):
    """It would fail in the middle, with a folder that does not exist."""
    with pytest.raises(UserError, match="04_rl needs 02_sft_1, which has not finished"):
        run(planned(folder, f"out={tmp_path / 'new'}"), ["rl"])


def test_a_stage_that_fails_names_itself(folder, tmp_path):
    """Among several logs nobody would know which to read."""
    with pytest.raises(UserError, match=r"01_own_1.*none.jsonl"):
        run(planned(folder, f"out={tmp_path / 'new'}", "own.data.train=none.jsonl"), ["own"])
