"""Which samples teach: what is measured, what is kept, and a measurement that is interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl import api, cli, registry, rollout
from vlrl.algorithms import samplers
from vlrl.algorithms.curriculum import alignment
from vlrl.algorithms.samplers import chosen, measured, selection_read, summary
from vlrl.checkpoint import latest, load_state
from vlrl.config import Component, Config
from vlrl.evaluation import data_selection
from vlrl.evaluation.data_selection import learned
from vlrl.evaluation.stats import histogram
from vlrl.recipe_checks import load_config
from vlrl.types import UserError

REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]), min_size=3, max_size=3)


def rows_of(rewards: list[list[float]]) -> list[samplers.Row]:
    return [measured(f"q/{i}", i, each, [float(r == 1) for r in each]) for i, each in enumerate(rewards)]


def test_a_sample_is_measured_as_worked_out_by_hand():
    """The choice would hang on other numbers than the file shows."""
    row = measured("q/7", 7, [2.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.5, 0.5])
    assert (row.id, row.position, row.repeats) == ("q/7", 7, 4)
    assert (row.mean, row.variance, row.accuracy) == (1.0, 0.5, 0.5)
    assert measured("q", 0, [0.1] * 3, [1.0] * 3).variance == 0.0  # three tenths do not add up to 0.3


@given(st.lists(REWARDS, min_size=1, max_size=12), st.floats(0.01, 1))
def test_the_samples_that_disagree_most_are_kept(rewards, keep):
    """Samples that teach nothing would be trained on in the place of those that do."""
    kept = chosen(rows_of(rewards), keep=keep)
    inside, outside = ([row.variance for row in kept if row.kept == value] for value in (True, False))
    assert all(inside) and len(inside) <= max(1, round(keep * len(rewards)))
    mixed = sum(len(set(each)) > 1 for each in rewards)
    assert len(inside) == min(mixed, max(1, round(keep * len(rewards))))
    assert not inside or min(inside) >= max(outside, default=0.0)


@given(st.lists(REWARDS, min_size=1, max_size=12), st.floats(0, 0.3))
def test_a_bar_keeps_all_that_reach_it(rewards, bar):
    """A threshold would be a share under another name."""
    for row in chosen(rows_of(rewards), least_variance=bar):
        assert row.kept == (row.variance >= bar and row.variance > 0)


def test_the_summary_counts_right_wrong_and_mixed():
    """A user could not tell a model that is too good from one that is too weak."""
    rows = chosen(rows_of([[1.0] * 3, [0.0] * 3, [1.0, 0.0, 0.0], [0.0, 0.1, 0.3]]), keep=0.25)
    assert str(summary(rows)) == "4 samples: 25.0% all right, 50.0% all wrong, 25.0% mixed; kept 1"


@given(st.lists(st.tuples(st.floats(0, 9), st.booleans()), min_size=1, max_size=30))
def test_a_picture_is_drawn_of_any_variances(cases):
    """A measurement of hours would end in an error, after its last sample."""
    values, kept = zip(*cases, strict=True)
    image = histogram(values, kept, "variance")
    assert image.size == (480, 300) and len(image.getcolors(2**16)) > 2


@pytest.fixture
def config(monkeypatch) -> Config:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    policy = {"model": "embedded", "max_tokens": 3, "temperature": 0.5}
    task = {"name": "video_task:Clips", "pool": 7, "graded": True}
    return Config.model_validate({"task": task, "out": "x", "policy": policy, "eval": {"batch_size": 8}})


def test_samples_are_measured_with_the_policys_own_answers(config, tmp_path, capsys):
    """What is kept would not be what this model disagrees on."""
    file = tmp_path / "list.jsonl"
    total = data_selection.select(config, out=str(file), repeats=4, keep=0.4)
    rows = selection_read(file)
    assert [(row.id, row.position) for row in rows] == [(f"clips/train/{i}", i) for i in range(7)]
    assert all(row.repeats == 4 and 1 <= row.mean <= 2 for row in rows)
    assert total == summary(rows) and total.kept == 3 == sum(row.kept for row in rows)
    assert min(r.variance for r in rows if r.kept) >= max(r.variance for r in rows if not r.kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.jsonl", "list.png"]
    with pytest.raises(UserError, match="exists already"):
        data_selection.select(config, out=str(file))


def test_some_samples_are_drawn_at_random(config, tmp_path):
    """The first samples of a file are often of one kind."""
    data_selection.select(config, out=str(tmp_path / "few.jsonl"), samples=3, repeats=2)
    positions = [row.position for row in selection_read(tmp_path / "few.jsonl")]
    assert len(positions) == 3 and positions == sorted(positions) != [0, 1, 2]


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_measurement_goes_on_to_the_same_file(after, config, tmp_path, monkeypatch, capsys):
    """Hours of a measurement would be lost, or the rest be measured otherwise."""
    whole, file = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    data_selection.select(config, out=str(whole), repeats=4)
    played, calls = rollout.collect, []

    def until(*given):
        calls.append(given)
        if len(calls) > after:
            raise KeyboardInterrupt
        return played(*given)

    with monkeypatch.context() as patch:
        patch.setattr(data_selection, "collect", until)
        with pytest.raises(KeyboardInterrupt):
            data_selection.select(config, out=str(file), repeats=4)
    part = tmp_path / ".broken.jsonl.measured"
    assert "the same command goes on" in capsys.readouterr().err and not file.exists()
    part.write_text(part.read_text()[:-20])  # a line that was being written
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(data_selection, "collect", lambda *given: calls.append(given) or played(*given))
        data_selection.select(config, out=str(file), repeats=4)
    assert file.read_bytes() == whole.read_bytes() and not part.exists()
    assert len(calls) == 4 - after + 1  # of four batches; the one whose line was cut is measured again


def test_other_settings_start_anew(config, tmp_path):
    """Rows of another model, or of another number of answers, would stand among the new ones."""
    part = tmp_path / ".list.jsonl.measured"
    part.write_text('{"repeats": 9}\n' + samplers.selection_line(measured("old", 0, [1.0], [1.0])))
    data_selection.select(config, out=str(tmp_path / "list.jsonl"), repeats=2, samples=2)
    assert "old" not in {row.id for row in selection_read(tmp_path / "list.jsonl")}


def test_a_model_that_never_disagrees_is_said(config, tmp_path):
    """A run would start on an empty list; and what was measured is worth reading."""
    with pytest.raises(UserError, match="no sample's rewards disagree enough"):
        data_selection.select(config, out=str(tmp_path / "list.jsonl"), repeats=2, samples=2, least_variance=99.0)
    assert len(selection_read(tmp_path / "list.jsonl")) == 2
    with pytest.raises(UserError, match="there is no folder"):
        data_selection.select(config, out=str(tmp_path / "nowhere" / "list.jsonl"))


@pytest.fixture(scope="module")
def noted(tmp_path_factory) -> Path:
    """A run of two epochs that noted how each sample was learned."""
    folder = tmp_path_factory.mktemp("noted")
    values = {
        "task": {"name": "gui_grounding", "pool": 40, "held_out": 2}, "out": str(folder / "run"),
        "policy": {"model": "embedded", "max_tokens": 8}, "train": {"steps": 4, "prompts_per_step": 4, "group_size": 2},
        "log": {"trackers": []}, "sampler": {"name": "limr", "limit": 8, "score": 0.3},
    }  # fmt: skip
    api.train(Config.model_validate(values))
    return folder / "run"


def test_a_run_lists_the_samples_that_were_learned_as_the_average(noted, tmp_path, capsys):
    """The second run would train on other samples than the first one found."""
    file = tmp_path / "limr.jsonl"
    assert cli.main(["select", str(noted), "--out", str(file), "--least-alignment", "-9"]) == 0
    rows = selection_read(file)
    assert [row.position for row in rows] == list(range(8)) and all(row.kept and row.repeats == 2 for row in rows)
    courses = load_state(latest(noted / "checkpoints"))["sampler"]["noted"]
    scores = alignment({position: course for position, course in sorted(courses)})
    assert {row.position: row.alignment for row in rows} == pytest.approx(scores)
    assert capsys.readouterr().out.startswith("8 samples: ") and file.with_suffix(".png").is_file()
    registry.make("sampler", Component(name="listed", file=str(file)), "sampler", 40, 0).check(
        registry.make_task(load_config(noted / "config.yaml")).samples("train")
    )
    total = learned(str(noted), out=str(tmp_path / "own.jsonl"), least=None)
    assert total.kept == sum(score >= 0.3 for score in scores.values())


def test_a_run_that_noted_nothing_is_refused(noted, tmp_path):
    """A list of nothing, or a traceback, would be the answer."""
    out = str(tmp_path / "x.jsonl")
    for arguments, told in (
        ([str(noted), "task.pool=3"], "is a run, of which only --out and --least-alignment say anything"),
        ([str(noted), "--samples", "3"], "is a run, of which only --out"),
        ([str(noted), "--least-alignment", "1"], "the largest alignment is"),
    ):
        with pytest.raises(UserError, match=told):
            _select([*arguments, "--out", str(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl")])
    other = tmp_path / "other"
    shutil.copytree(noted, other)
    shutil.rmtree(other / "checkpoints")
    with pytest.raises(UserError, match=r"there is no checkpoint: train on with vlrl train --resume"):
        learned(str(other), out=out)
    text = (other / "config.yaml").read_text().replace("name: limr", "name: shuffled").replace("  score: 0.3\n", "")
    (other / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="sampler: shuffled notes no courses of samples: train with sampler: limr"):
        learned(str(other), out=out)
    with pytest.raises(UserError, match="--least-alignment goes with the folder of a run"):
        _select([str(noted / "config.yaml"), "--least-alignment", "0.5", "--out", out])


def _select(arguments: list[str]) -> None:
    """The command, with its errors as they are raised."""
    options = cli.parser().parse_args(["select", *arguments])
    options.run(options)
