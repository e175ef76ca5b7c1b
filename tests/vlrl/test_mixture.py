"""A mixture of tasks in one run: whose sample is whose, one policy, and the curves of each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tasks.gui_grounding import GuiGrounding
from vlrl import api, recipe_checks, registry
from vlrl.algorithms.mixture import Mixed
from vlrl.algorithms.samplers import Sec
from vlrl.config import Config
from vlrl.recipe_checks import load_config, takes_turns
from vlrl.runner import Runner
from vlrl.types import Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

PARTS = {
    "clicks": {"task": {"name": "gui_grounding", "pool": 8, "held_out": 4}, "share": 2},
    "digits": {"task": "classification"},
    "counts": {"task": {"name": "counting", "pool": 3, "held_out": 2, "weights": {"exact": 2.0}}},
}
FRAME = (Frame("original_px", (64, 64), (64, 64)),)


def mixture(parts: dict = PARTS):
    return registry.make_task(Config.model_validate({"task": {"name": "mixture", "parts": parts}, "out": "x"}))


def played(task, sample: Sample, text: str) -> Episode:
    decision = Decision(text, logprobs=None, entropy=None, truncated=False, frames=FRAME)
    episode = Episode(sample, 0, [Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))])
    episode.score = task.score(episode)
    episode.reward = task.reward(episode.score)
    return episode


def test_a_part_of_share_0_is_tested_and_never_trained_on():
    """A transfer to what was never shown would be measured on what was."""
    whole, task = mixture(), mixture(PARTS | {"counts": PARTS["counts"] | {"share": 0}})
    assert {sample.tags["task"] for sample in task.samples("train")} == {"clicks", "digits"}
    assert [sample.id for sample in task.samples("test")] == [sample.id for sample in whole.samples("test")]
    with pytest.raises(UserError, match=r"task\.parts: every share is 0"):
        mixture({"counts": PARTS["counts"] | {"share": 0}})


def test_each_sample_is_scored_and_paid_by_its_own_task():
    """A click would be read as a digit, or paid with another task's weights."""
    task = mixture()
    seen = {}
    for sample in task.samples("train")[:8]:
        name = sample.tags["task"]
        right = played(task, sample, task.gold(sample, FRAME))
        wrong = played(task, sample, "?")
        assert right.score.correct == 1.0 and wrong.score.correct == 0.0
        assert all(part.startswith(f"{name}/") for part in right.score.parts)
        seen[name] = (right.reward, wrong.reward)
    assert seen == {"clicks": (1.0, -0.25), "digits": (1.0, -0.25), "counts": (2.0, 0.0)}
    own = GuiGrounding(pool=8, held_out=4)
    theirs, mine = own.samples("train")[0], task.samples("train")[0]
    assert mine.id == f"clicks/{theirs.id}" and (mine.answer, mine.prompt.text) == (theirs.answer, theirs.prompt.text)
    assert mine.tags == {**theirs.tags, "task": "clicks"}


SIZES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), min_size=1, max_size=4)


@given(SIZES)
def test_training_samples_take_turns_by_share_and_held_out_ones_come_once(sizes):
    """A small task would be drowned by a large one, or a held-out sample counted twice in an interval."""
    found = {f"t{i}": [Sample(f"{k}", Observation(())) for k in range(n)] for i, (n, _) in enumerate(sizes)}
    shares = {f"t{i}": share for i, (_, share) in enumerate(sizes)}
    train, test = Mixed(found, shares, again=True), Mixed(found, dict.fromkeys(shares, 1), again=False)
    block = sum(shares.values())
    assert len(train) % block == 0 and len(test) == sum(n for n, _ in sizes)
    for start in range(0, len(train), block):
        tags = [train[i].tags["task"] for i in range(start, start + block)]
        assert tags == [name for name, share in shares.items() for _ in range(share)]
    for name, own in found.items():
        ids = Counter(sample.id for sample in train if sample.tags["task"] == name)
        assert len(ids) == len(own) and max(ids.values()) - min(ids.values()) <= 1  # all of them, evenly
    assert max(Counter(sample.id for sample in test).values()) == 1
    assert [test[i].tags["task"] for i in range(len(sizes))] == list(found)
    assert all(train.tag_of(i, "task") == train[i].tags["task"] for i in range(len(train)))
    assert train.tag_of(0, "kind") is None and train[-1].id == train[len(train) - 1].id


def test_samplers_divide_a_mixture_without_making_its_samples():
    """A curriculum over tasks would draw 100,000 screens before its first step."""
    task = mixture({"clicks": {"task": "gui_grounding"}, "counts": {"task": "counting", "share": 3}})
    samples = task.samples("train")
    sampler = Sec(len(samples), 0)
    sampler.follow(samples, [])
    made = Counter()
    for name, inner in samples._found.items():
        inner._make = lambda index, name=name: made.update([name])  # what is made from now on
    drawn = sampler.draw(400)
    assert not made and len(samples) == 400_000  # 100,000 clicks, and three counts to each
    tags = Counter(samples.tag_of(i, "task") for i in drawn)
    assert tags["clicks"] / 400 == pytest.approx(0.5, abs=0.1)


def test_a_measurement_tells_of_each_task_with_its_interval():
    """One good task would hide another that learned nothing."""
    task = mixture()
    held = task.samples("test")[:6]
    episodes = [played(task, s, task.gold(s, FRAME) if s.tags["task"] == "clicks" else "?") for s in held]
    told = task.metrics(episodes)
    assert (told["task/clicks/accuracy"], told["task/clicks/n"], told["task/clicks/reward"]) == (1.0, 2, 1.0)
    # Wilson by hand, 2 of 2, z^2 = 3.841: low = (1 + 1.921/2 - 1.96 sqrt(3.841/16)) / (1 + 1.921) = 0.3424
    assert told["task/clicks/low"] == pytest.approx(0.3424, abs=1e-4) and told["task/clicks/high"] == 1.0
    assert told["task/digits/accuracy"] == 0.0 and told["task/digits/parse_fail"] == 1.0
    assert told["task/counts/exact"] == 0.0  # reads its parts by its own names


MISTAKES = {
    "no parts": ({}, r"task\.parts: "),
    "unknown task": ({"a": {"task": "countng"}}, r"task\.parts\.a\.task\.name: unknown task 'countng'; did you mean"),
    "unknown option": ({"a": {"task": {"name": "counting", "pol": 3}}}, r"task\.parts\.a\.task\.pol: unknown key; did"),
    "unknown key": ({"a": {"task": "counting", "shar": 3}}, r"task\.parts\.a\.shar: unknown key"),
    "no share": ({"a": {"task": "counting", "share": -1}}, r"task\.parts\.a\.share: .*greater than or equal to 0"),
    "no share at all": ({"a": {"task": "counting", "share": 0}}, r"task\.parts: every share is 0"),
    "a name": ({"a/b": {"task": "counting"}}, r"task\.parts\.a/b"),
    "out of range": ({"a": {"task": {"name": "counting", "pool": 0}}}, r"task\.parts\.a: task\.pool: 0: must be"),
    "data": ({"a": {"task": "temporal_grounding", "data": {"train": "no"}}}, r"task\.parts\.a: .*no"),
    "no reader": ({"a": {"task": "manipulation", "data": {"train": "f"}}}, r"task\.parts\.a\.data: the task 'manipul"),
}


@pytest.mark.parametrize(("parts", "told"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_name_the_part(parts, told):
    """Of five tasks nobody would know which is wrong."""
    config = Config.model_validate({"task": {"name": "mixture", "parts": parts}, "out": "x"})

    def run() -> None:
        recipe_checks.check(config, "x.yaml")
        registry.make_task(config)

    with pytest.raises(UserError, match=told):
        run()


def test_turns_are_those_of_the_parts():
    """Losses of whole completions would be refused because the tasks are several."""

    def turns(**parts: str) -> bool:
        listed = {name: {"task": task} for name, task in parts.items()}
        config = Config.model_validate({"task": {"name": "mixture", "parts": listed}, "out": "x"})
        return takes_turns(config, registry.find)

    assert not turns(a="counting", b="gui_grounding") and turns(a="counting", b="manipulation")


SMALL = {
    "out": "run",
    "task": {"name": "mixture", "parts": {
        "clicks": {"task": {"name": "gui_grounding", "pool": 9, "held_out": 5}, "share": 2},
        "puzzles": {"task": {"name": "jigsaw", "rows": 3, "columns": 1, "pool": 4, "held_out": 3}},
        "digits": {"task": "classification"},
    }},
    "policy": {"model": "embedded", "max_tokens": 10},
    "train": {"steps": 4, "prompts_per_step": 4, "group_size": 2, "lr": 1e-3},
    "eval": {"every_steps": 2, "batch_size": 8, "num_samples": 8},
    "log": {"checkpoint_every": 1, "rollouts_every": 2, "rollouts": 2, "trackers": []},
    "sampler": {"name": "dump"},
}  # fmt: skip


class KilledError(Exception):
    """Stands for what ends a process between two steps."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a whole run by a file as users write it."""
    folder = tmp_path_factory.mktemp("mixture")
    (folder / "c.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    api.train(load_config(folder / "c.yaml", [f"out={folder / 'run'}"]))
    return folder / "run"


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_has_curves_of_each_task(run):
    """What a mixture does to each of its tasks could not be seen."""
    train, evaluated = ([row for row in rows(run) if key in row] for key in ("loss", "eval/accuracy"))
    assert len(train) == 4 and [row["step"] for row in evaluated] == [0, 2, 4]
    for row in train:
        tasks = {key.split("/")[1] for key in row if key.startswith("task/")}
        assert tasks <= {"clicks", "puzzles", "digits"} and tasks
        assert sum(row[f"task/{name}/share"] for name in tasks) == pytest.approx(1.0)
        mean = sum(row[f"task/{name}/share"] * row[f"task/{name}/accuracy"] for name in tasks)
        assert row["accuracy"] == pytest.approx(mean)
        assert {f"dump/{name}" for name in ("clicks", "puzzles", "digits")} <= row.keys()
    last = evaluated[-1]
    counts = {name: last[f"eval/task/{name}/n"] for name in ("clicks", "puzzles", "digits")}
    assert counts == {"clicks": 3, "puzzles": 3, "digits": 2}
    assert all(last[f"eval/task/{name}/low"] <= last[f"eval/task/{name}/accuracy"] for name in counts)
    hit = last["eval/reward/clicks/hit"]
    assert hit == last["eval/task/clicks/accuracy"] and "eval/reward/digits/format" in last


def test_the_report_shows_each_task(run):
    """The page would bury the tasks' curves among the others, or not draw them."""
    text = (run / "report.html").read_text()
    data = json.loads(text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    charts = {chart["title"]: chart for section in data["sections"] for chart in section["charts"]}
    names = ["clicks", "digits", "puzzles"]
    held = charts["Held-out accuracy by task"]["series"]
    assert [series["name"] for series in held] == names
    assert all(len(series["band"]) == 3 and not series["smooth"] for series in held)
    for title in ("Training accuracy by task", "Reward by task", "Share of the step by task"):
        assert [series["name"] for series in charts[title]["series"]] == names
    assert [series["name"] for series in charts["Reward parts: clicks"]["series"]] == ["format", "hit"]
    assert not [title for title in charts if title.startswith(("task/", "eval/task/clicks/low", "reward/"))]
    last = rows(run)[-1]
    assert f"n = {last['eval/task/clicks/n']}</small>" in text and "task/clicks/low" not in text


@pytest.mark.parametrize("step", [1, 3])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(run, step, tmp_path, monkeypatch):
    """A resumed mixture would draw other tasks than a straight run."""
    ended = Runner.save

    def save(runner):
        ended(runner)
        if runner.step == step:
            raise KilledError

    config = load_config(run / "config.yaml", [f"out={tmp_path / 'run'}"])
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "save", save)
        with pytest.raises(KilledError):
            api.train(config)
    api.train(config, resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_evaluating_prints_each_task(run, capsys):
    """The command would tell one number of all tasks."""
    options = ["eval", str(run / "config.yaml"), f"policy.model={run}", "eval.num_samples=6", "--json"]
    from vlrl.cli import main

    assert main(options) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["n"] == 6 and {f"task/{n}/accuracy" for n in ("clicks", "puzzles", "digits")} <= told["metrics"].keys()
