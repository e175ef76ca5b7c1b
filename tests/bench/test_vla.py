"""The comparison of robot methods: that ticks are counted alike, that runs are read at the budget, and its commands."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "learn"))  # scripts, not a package

import vla
import vla_figure
import vla_jobs
import vla_table

from vlrl.config import load_as
from vlrl.imitation.configs import CloneConfig
from vlrl.offpolicy.config import load as load_off_policy
from vlrl.recipe_checks import load_config

ON_POLICY = {
    "task": {"horizon": 160}, "train": {"prompts_per_step": 2, "group_size": 4}, "sampler": {"name": "shuffled",
    "limit": 16},
    "advantages": [{"name": "grpo"}],
}  # fmt: skip


def written(folder: Path, metrics: list[dict], timings: list[dict], config: dict) -> Path:
    """A run folder made by hand."""
    folder.mkdir(parents=True)
    for name, rows in (("metrics", metrics), ("timings", timings)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def on_policy(folder: Path, successes: list[float], **said: object) -> Path:
    """A run whose steps are 100 actions and 2 CPU seconds, evaluated before and after each; it cost 9 s in all."""
    metrics = [{"step": 0, "eval/accuracy": successes[0]}]
    for step, success in enumerate(successes[1:], 1):
        metrics += [{"step": step, "actions": 100.0, **said}, {"step": step, "eval/accuracy": success}]
    timings = [{"step": step, "cpu": 2.0} for step in range(1, len(successes))]
    written(folder, metrics, timings, ON_POLICY)
    (folder / "summary.json").write_text(json.dumps({"cpu_s": 9.0}))
    return folder


def test_ticks_are_what_the_robot_moved_whatever_an_action_is(tmp_path):
    """Methods compared at ticks of their own counting would be compared at unequal cost."""
    run = on_policy(tmp_path / "a", [0.2, 0.4, 0.6])
    course = vla_figure.read(run, 8)
    assert course.ticks.tolist() == [0, 800, 1600] and course.cpu.tolist() == [0, 2, 4]
    assert vla_figure.read(run, 4).ticks.tolist() == [0, 400, 800]
    rows = [{"step": 0, "eval/accuracy": 0.0}, {"step": 500, "ticks": 0}, {"step": 900, "ticks": 400},
            {"step": 900, "eval/accuracy": 0.5}]  # fmt: skip
    spent = [{"step": 500, "cpu": 3.0}, {"step": 900, "cpu": 1.0}]
    course = vla_figure.read(written(tmp_path / "b", rows, spent, {"task": {"horizon": 160}}), 8)
    assert course.ticks.tolist() == [0, 400] and course.cpu.tolist() == [0, 4]


def test_first_responses_count(tmp_path):
    """16 scenes were played once before the first of the steps of 8 episodes: two steps' worth of ticks, for nothing
    if they were forgotten."""
    config = ON_POLICY | {"advantages": [{"name": "beta_tracker", "start": 1}]}
    rows = [{"step": 0, "eval/accuracy": 0.0}, {"step": 1, "actions": 50.0}, {"step": 1, "eval/accuracy": 0.5},
            {"step": 2, "actions": 40.0}, {"step": 2, "eval/accuracy": 0.6}]  # fmt: skip
    spent = [{"step": 0, "cpu": 5.0}, {"step": 1, "cpu": 1.0}, {"step": 2, "cpu": 1.0}]
    course = vla_figure.read(written(tmp_path / "a", rows, spent, config), 8)
    assert course.ticks.tolist() == [0, 400 + 2 * 400, 1200 + 320] and course.cpu.tolist() == [0, 6, 7]


def test_groups_that_a_filter_left_out_count(tmp_path):
    """Dynamic sampling would look cheap by what it throws away.

    Kept: 8 episodes, half won in 80 of 160 ticks: reward/speed 0.25, 960 ticks, 120 actions of 8. Three times as many
    were played, a quarter of which were won: 24 x (160 - 0.25 x 80) = 3360.
    """
    row = {"step": 1, "actions": 120.0, "accuracy": 0.5, "reward/speed": 0.25, "filter/played": 3.0,
           "filter/first_accuracy": 0.25}  # fmt: skip
    rows = [{"step": 0, "eval/accuracy": 0.0}, row, {"step": 1, "eval/accuracy": 0.1}]
    course = vla_figure.read(written(tmp_path / "a", rows, [{"step": 1, "cpu": 1.0}], ON_POLICY), 8)
    assert course.ticks.tolist() == pytest.approx([0, 3360])


def test_a_run_is_read_while_it_writes(tmp_path):
    """The benchmark looks at runs each second to know when to stop them: half a line must not end a night's work."""
    run = on_policy(tmp_path / "a", [0.2, 0.4])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "act')
    job = vla_jobs.Job(run, (), 8, 800)
    assert vla.passed(job) and not vla.passed(vla_jobs.Job(run, (), 8, 801))
    assert not vla.passed(vla_jobs.Job(tmp_path / "none", (), 8, 800))


def test_the_table_reads_all_runs_at_the_budget(tmp_path):
    """At 1200 ticks, half way from the second to the third evaluation: 0.5 and 0.7, less GRPO's 0.3 and 0.5.

    Their variances are 0.02 each, so the standard error is sqrt(0.02) = 0.1414 with 2 degrees of freedom, whose 97.5 %
    point is 4.303: 20 points, more or less 61.
    """
    successes = {"grpo": ([0.2, 0.2, 0.4], [0.2, 0.4, 0.6]), "srpo": ([0.2, 0.4, 0.6], [0.2, 0.6, 0.8])}
    done = {
        method: [vla_jobs.Job(on_policy(tmp_path / f"{method}_{i}", each), (), 8) for i, each in enumerate(seeds)]
        for method, seeds in successes.items()
    }
    text, runs = vla_table.table("push", done | {"rlpd": []}, 1200)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert tuple(lines[0]) == vla_table.HEAD and len(lines) == 4
    assert lines[3][:3] == ["SRPO", "0.20", "0.50, 0.70"] and lines[3][5] == "+20 [-41, +81]"
    assert lines[3][4] == "[0.53, 0.67]"  # Wilson of 120 of 200
    assert lines[3][6:] == ["1,200", "3", "9", "100, cloned"] and lines[2][5] == ""
    vla_figure.draw(runs, 1200, "Pushing", tmp_path / "a.png")
    assert len(np.unique(np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("task", vla_jobs.TASKS)
def test_every_command_is_accepted(task, tmp_path, monkeypatch):
    """A recipe's key that is renamed would end a night's runs at their first second."""
    monkeypatch.chdir(vla_jobs.ROOT)
    loads = {"train": load_config, "offpolicy": load_off_policy, "clone": partial(load_as, CloneConfig)}
    for method in vla_jobs.METHODS:
        for job in (vla_jobs.made(task, method, tmp_path), vla_jobs.job(task, method, 1, 40_000, tmp_path)):
            if job and job.command[0] != "residual":
                config = loads[job.command[0]](job.command[1], list(job.command[2:]))
                assert Path(config.out) == job.folder
                assert job.chunk in (0, 4) or job.chunk == vla_jobs.TASKS[task].chunk
