"""A cluster on paper: the queue's laws, a case by hand, and that the seconds are those of `vlrl plan`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "scale"))  # scripts, not a package

import cluster_layout
import cluster_model
import cluster_queue
import simulate_cluster
from cluster_queue import Setup, simulate

from vlrl.performance.profiling import named
from vlrl.tools.memory_planner import cost_of, seconds

RATES = cluster_model.Rates()
RUNS = st.builds(
    lambda places, learn, episodes, seed: (
        Setup(places, learn, publish=0.5), np.random.default_rng(seed).lognormal(0, 1, (6, episodes)),
    ),
    st.integers(1, 9), st.floats(0.1, 9), st.integers(1, 12), st.integers(0, 999),
)  # fmt: skip


def test_a_case_by_hand():
    """Every number of docs/scale.md comes from this queue.

    Two places, batches of 3, 1, 2 and 1 seconds, an update of 4, weights half a second on their way. The first batch
    takes 0-3, 0-1, 1-3, 3-4; its update ends at 8. Weights are there at 8.5, so the second ends at 12.5 and 16.5. One
    step ahead, the second batch begins as soon as a place is free: at 3, not 4, and takes 3-6, 4-5, 5-7, 6-7; then the
    update that is under way until 8, then its own until 12.
    """
    batches = np.array([[3.0, 1.0, 2.0, 1.0]] * 2)
    sync = simulate(Setup(2, 4.0, publish=0.5), batches)
    assert sync.end[0].tolist() == [3, 1, 3, 4] and sync.learned.tolist() == [8, 16.5]
    ahead = simulate(Setup(2, 4.0, publish=0.5, staleness=1), batches)
    assert ahead.start[1].tolist() == [3, 4, 5, 6] and ahead.learned.tolist() == [8, 12]


def test_episodes_stand_still_while_weights_come():
    """Publication would cost nothing once episodes are played ahead.

    One place: batch 1 is played at 1-4 by weights 0, batch 2 at 4-7 by weights 1; at 4.5 come weights 2 and stop it
    for 0.25, so that it ends at 7.25.
    """
    setup = Setup(1, 0.25, staleness=1, publish=0.25, pause=0.25)
    trace = simulate(setup, np.array([[1.0], [3.0], [3.0]]))
    assert trace.end[:, 0].tolist() == [1, 4.25, 7.5]
    assert trace.learned.tolist() == [1.25, 4.5, 7.75]


def test_without_a_queue_the_rate_is_the_analytic_one():
    """The simulation would disagree with the arithmetic beside it."""
    even = np.full((10, 32), 2.0)
    assert simulate(Setup(8, 3.0, publish=1.0), even).step(2) == pytest.approx(32 / 8 * 2 + 3 + 1)
    assert simulate(Setup(8, 3.0, publish=1.0, staleness=4), even).step(6) == pytest.approx(8)  # writing is the longer
    assert simulate(Setup(8, 11.0, publish=1.0, staleness=4), even).step(6) == pytest.approx(11)  # learning is


@given(RUNS)
@settings(max_examples=60, deadline=None)
def test_neither_staleness_nor_places_cost_throughput(run):
    """Advice to play ahead or to add simulators would follow from an artefact of the queue."""
    setup, lengths = run
    ends = [simulate(replace(setup, staleness=s), lengths).learned[-1] for s in (0, 1, 2, 4)]
    assert ends == sorted(ends, reverse=True)
    more = simulate(replace(setup, places=setup.places + 1), lengths)
    assert more.learned[-1] <= ends[0]


@given(RUNS, st.sampled_from([0, 1, 4]), st.sampled_from([0.0, 0.05]))
@settings(max_examples=60, deadline=None)
def test_every_episode_is_played_once_in_a_place_of_its_own(run, staleness, failures):
    """Episodes that vanish, are doubled or share a place would make up throughput; also where nodes fail."""
    setup, lengths = run
    setup = replace(setup, staleness=staleness, nodes=2, failures=failures, repair=3.0)
    trace = simulate(setup, lengths, seed=3)
    assert trace.end - trace.start == pytest.approx(lengths)  # no pause, and what failed is not in it
    assert 0 < trace.busy().sum() <= 1 + 1e-9 and 0 <= trace.busy(1).sum() <= 1 + 1e-9
    assert (trace.broken > 0) <= (failures > 0)
    for place in range(setup.places):
        order = np.sort(np.stack([trace.start[trace.place == place], trace.end[trace.place == place]]), axis=1)
        assert (order[0, 1:] >= order[1, :-1] - 1e-9).all()
    used = np.maximum(np.arange(6) - staleness - 1, -1)
    ready = np.where(used < 0, 0.0, trace.learned[used] + setup.publish)
    assert (trace.start >= ready[:, None]).all() and (trace.end.max(1) <= trace.learned).all()


def test_failures_cost_what_they_undo():
    """A run would seem as fast on nodes that fail as on sound ones."""
    lengths = np.full((8, 64), 5.0)
    sound, broken = (simulate(Setup(16, 1.0, nodes=4, failures=f, repair=30.0), lengths) for f in (0.0, 0.01))
    assert broken.broken > 0 and broken.learned[-1] > sound.learned[-1]
    again = simulate(Setup(16, 1.0, nodes=4, failures=0.01, repair=30.0), lengths)
    assert (again.end == broken.end).all()  # drawn from the seed


@pytest.mark.parametrize("size", cluster_model.SIZES)
def test_work_is_that_of_vlrl_plan(size):
    """The page says that it computes with `vlrl plan`: the same FLOPs at the same share of the peak."""
    job = cluster_model.JOBS["reasoning"]
    run = cluster_model.run_of(size, job, lora=False)
    times = seconds(cost_of(run), named("NVIDIA H100"), RATES.mfu)
    planned = sum(part for name, part in times.items() if name != "decode")
    prefill, _, learned = cluster_model.flops(size, job, False)
    assert (prefill + learned) * job.members / cluster_model.speed(RATES) == pytest.approx(planned)


def test_layouts_use_what_is_there_and_simulators_bound_them():
    """A table would have more GPUs, cores or memory than the cluster."""
    job = cluster_model.JOBS["robot"]
    for size in cluster_model.SIZES:
        for gpus in (8, 64):
            what = cluster_layout.asked(size, job, gpus, RATES, "network")
            for layout in (cluster_layout.turns(what), cluster_layout.apart(what)):
                assert layout.together or layout.writing + layout.learning == gpus
                assert layout.places <= layout.writing / 8 * RATES.cores
                run = cluster_model.run_of(size, job, lora=what.lora, shards=layout.learning)
                assert cluster_model.fits(run)
    few, many = (
        cluster_layout.turns(cluster_layout.asked("3B", job, 8, replace(RATES, cores=n), "network")) for n in (16, 112)
    )
    assert many.guess < few.guess
    assert not cluster_model.fits(cluster_model.run_of("72B", job, lora=True))  # what is refused today


def test_a_row_says_what_costs_time_and_repeats(capsys, monkeypatch, tmp_path):
    """The command of docs/scale.md would give other numbers each time, or shares that are none."""
    file, out = tmp_path / "lengths.jsonl", tmp_path / "out.json"
    file.write_text('100\n300\n{"completion": "' + "word" * 900 + '"}\n')
    assert simulate_cluster.read(file).tolist() == [100, 300, 900]
    command = ["x", "--gpus", "8", "--jobs", "robot", "--steps", "10", "--lengths", str(file), "--json", str(out)]
    made = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command)
        simulate_cluster.main()
        made.append(out.read_text())
    assert made[0] == made[1] and capsys.readouterr().out.count("| 8 | 7B |") == 2
    for row in json.loads(made[0]):
        assert 0 < row["busy"] <= 1 and 0 < row["peak"] <= RATES.mfu + 1e-9
        steps = list(row["steps"].values())
        assert all(later <= 1.01 * sooner for sooner, later in pairwise(steps))
        assert all(-0.02 <= share < 1 for pair in row["lost"].values() for share in pair)


def test_no_lengths_are_told(tmp_path):
    """An empty file would end in a traceback."""
    (tmp_path / "none").write_text("\n")
    with pytest.raises(SystemExit, match="has no lengths"):
        simulate_cluster.read(tmp_path / "none")
    assert cluster_queue.simulate(Setup(1, 0.0), np.ones((1, 1))).step() == 1
