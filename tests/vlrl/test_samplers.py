"""The samplers: epochs, resuming, a limited pool, a list of chosen samples."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl import recipe_checks, registry
from vlrl.algorithms import samplers
from vlrl.algorithms.samplers import Listed, Shuffled
from vlrl.config import Component, Config
from vlrl.types import Observation, Sample, UserError

SIZES = st.integers(1, 40)
DRAWS = st.lists(st.integers(1, 50), min_size=1, max_size=10)


@given(SIZES, DRAWS, st.integers(0, 9))
def test_every_sample_comes_once_per_epoch(n, draws, seed):
    """Some samples would be trained on twice as often as others."""
    sampler = Shuffled(n, seed)
    drawn = [i for count in draws for i in sampler.draw(count)]
    assert len(drawn) == sum(draws)
    for start in range(0, len(drawn), n):
        epoch = drawn[start : start + n]
        assert max(Counter(epoch).values()) == 1
        assert set(epoch) == set(range(n)) or len(epoch) < n


@given(SIZES, DRAWS, DRAWS, st.integers(0, 9))
def test_a_resumed_sampler_goes_on_exactly(n, before, after, seed):
    """A resumed run would train on other samples than an unbroken one."""
    whole = Shuffled(n, seed)
    for count in before:
        whole.draw(count)
    resumed = Shuffled(n, seed)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.draw(count) for count in after] == [resumed.draw(count) for count in after]


@given(SIZES, st.integers(1, 60))
def test_a_limit_keeps_to_the_first_samples(n, limit):
    """Methods with per-prompt state need a small pool that recurs."""
    sampler = Shuffled(n, 0, limit=limit)
    assert set(sampler.draw(3 * n)) == set(range(min(n, limit)))
    assert sampler.n == min(n, limit)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_seeds_and_epochs_differ(change):
    """Every epoch, or every run, would see the samples in one order."""
    sampler = Shuffled(100, change.get("seed", 0))
    if "epoch" in change:
        sampler.draw(100)
    assert sampler.draw(100) != Shuffled(100, 0).draw(100)


def listing(path: Path, kept: list[int], n: int = 20) -> str:
    """A file as `vlrl select` writes it."""
    same = {"repeats": 4, "mean": 0.5, "variance": 0.25, "accuracy": 0.5}
    rows = [samplers.Row(id=f"q/{i}", position=i, kept=i in kept, **same) for i in range(n)]
    path.write_text("".join(map(samplers.selection_line, rows)))
    return str(path)


def questions(n: int = 20, name: str = "q") -> list[Sample]:
    return [Sample(f"{name}/{i}", Observation(())) for i in range(n)]


def test_only_listed_samples_are_drawn_each_once_per_epoch(tmp_path):
    """The choice would not be what is trained on."""
    kept = [3, 4, 8, 15, 19]
    sampler = Listed(20, 0, file=listing(tmp_path / "list.jsonl", kept))
    drawn = sampler.draw(15)
    assert [sorted(drawn[i : i + 5]) for i in (0, 5, 10)] == [kept] * 3
    assert drawn[:5] != drawn[5:10]
    sampler.check(questions())


@given(DRAWS, DRAWS)
def test_a_resumed_list_goes_on_exactly(tmp_path_factory, before, after):
    """A resumed run would train on other samples than an unbroken one."""
    file = listing(tmp_path_factory.getbasetemp() / "resumed.jsonl", [1, 2, 5, 7, 11, 13])
    whole, resumed = Listed(20, 4, file=file), Listed(20, 4, file=file)
    for count in before:
        whole.draw(count)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.draw(count) for count in after] == [resumed.draw(count) for count in after]


def test_a_list_that_changed_is_refused_at_resume(tmp_path):
    """The run would go on with other samples at the same place, under the name of the first list."""
    state = Listed(20, 0, file=listing(tmp_path / "list.jsonl", [1, 2, 3])).state_dict()
    with pytest.raises(UserError, match="not the list that this run began with"):
        Listed(20, 0, file=listing(tmp_path / "list.jsonl", [1, 2, 4])).load_state_dict(state)


def test_a_list_of_other_data_is_refused(tmp_path):
    """Positions would point at samples that nobody chose."""
    file = listing(tmp_path / "list.jsonl", [3, 18])
    with pytest.raises(UserError, match="names sample 18, but the training split ends at 17"):
        Listed(18, 0, file=file)
    with pytest.raises(UserError, match=r"made for other data: sample 3 is 'q/3' there and 'other/3' here"):
        Listed(20, 0, file=file).check(questions(name="other"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot read .*vlrl select"),
        ("", "keeps no sample"),
        ("{", "row 1: not JSON"),
        ('{"id": "a", "position": 0}', "row 1: repeats: is required"),
    ],
)
def test_a_file_that_is_no_list_is_refused(text, named, tmp_path):
    """A traceback, or a run over the whole split, would be the answer."""
    file = tmp_path / "list.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=named):
        registry.make("sampler", Component(name="listed", file=str(file)), "sampler", 20, 0)


def test_a_list_needs_its_file():
    """The mistake would show after the model has been loaded."""
    values = {"task": "jigsaw", "out": "x", "sampler": "listed"}
    with pytest.raises(UserError, match=r"x\.yaml: sampler\.file: is required"):
        recipe_checks.check(Config.model_validate(values), "x.yaml")


@given(SIZES, DRAWS, st.integers(0, 9))
def test_a_look_ahead_draws_nothing(n, draws, seed):
    """What is prepared for the next step would change which samples it gets, or be for others."""
    sampler = Shuffled(n, seed)
    for count in draws:
        seen = sampler.peek(count)
        assert sampler.draw(count) == seen
