"""What a file of stages would run: names, starts, rounds, and mistakes said before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vlrl.tools.stage_runs import chosen
from vlrl.tools.stages import command, format_plan, loading_load, plan_plan
from vlrl.types import UserError

CONFIGS = Path(__file__).parents[3] / "configs"
TRAIN, WARM = str(CONFIGS / "visual_reasoning.yaml"), str(CONFIGS / "models" / "embedded_reasoning.yaml")
SFT = {"name": "sft", "run": "warmstart", "config": WARM}
RL = {"name": "rl", "run": "train", "config": TRAIN}
OWN = {"name": "own", "run": "best_of", "config": TRAIN, "samples": 8}
HARD = {"name": "hard", "run": "select", "config": TRAIN, "pass_rate": [0.1, 0.5]}


@pytest.fixture
def file(tmp_path):
    def write(*stages, **more) -> str:
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"out": "out", "stages": list(stages), **more}))
        return str(tmp_path / "s.yaml")

    return write


@pytest.mark.parametrize("path", sorted((CONFIGS / "stages").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_files_that_come_with_it_are_sound(path):
    """A recipe of several stages that is refused at its third, after hours, is no recipe."""
    planned = plan_plan(str(path))
    assert planned.stages.out == f"runs/stages_{path.stem}"
    assert planned.begin == (None if path.stem == "any_type" else "embedded")  # which begins with random weights
    assert len(format_plan(planned, planned.steps).splitlines()) == len(planned.steps) + 1


def test_each_stage_starts_from_the_latest_model_or_from_the_one_it_names(file):
    """A stage would be trained on the wrong model, and nothing would show it."""
    planned = plan_plan(
        file(SFT, HARD, RL, {**OWN, "start": "sft"}, {**RL, "name": "last", "start": "own"}, start="one")
    )
    starts = {step.name: step.start for step in planned.steps}
    assert starts == {"01_sft": "one", "02_hard": "out/01_sft", "03_rl": "out/01_sft", "04_own": "out/01_sft",
                      "05_last": "runs/embedded_reasoning"}  # fmt: skip
    assert [step.config.out for step in planned.steps] == [f"out/{name}" for name in starts]


def test_results_that_are_no_models_are_read_by_who_names_them(file):
    """The list, the demonstrations or the teacher of another stage would be used, or none."""
    later = {**SFT, "name": "again", "demonstrations": ["own"]}
    steps = plan_plan(file(SFT, HARD, OWN, later, {**RL, "only": "hard", "teacher": "sft"})).steps
    assert [(lesson.episodes, lesson.task) for lesson in steps[3].config.lessons] == [("out/03_own", None)]
    last = steps[4].config
    assert last.sampler.model_dump() == {"name": "listed", "file": "out/02_hard/list.jsonl"}
    assert (last.policy.teacher, last.policy.model) == ("out/01_sft", "out/04_again")
    assert set(steps[4].needs) == {"01_sft", "02_hard", "04_again"}


def test_a_mean_is_of_the_models_that_it_names(file):
    """Other models would be averaged, or trained on further."""
    mean = {"name": "mean", "run": "average", "models": ["sft", "rl"], "shares": [0.25, 0.75]}
    steps = plan_plan(file(SFT, RL, mean, {**RL, "name": "last"})).steps
    assert command(steps[2]) == [
        "average",
        "out/01_sft",
        "out/02_rl",
        "--out",
        "out/03_mean",
        "--shares",
        "0.25",
        "0.75",
    ]
    assert steps[3].start == "out/03_mean" and set(steps[2].needs) == {"01_sft", "02_rl"}
    with pytest.raises(UserError, match=r"stage mean: models: 'own' is not the name of a stage that makes a model"):
        plan_plan(file(SFT, OWN, {**mean, "models": ["sft", "own"]}))
    with pytest.raises(UserError, match=r"mean\.steps=3: an average runs no config"):
        plan_plan(file(SFT, RL, mean), ["mean.steps=3"])


def test_rounds_repeat_their_stages_with_other_seeds(file):
    """Every round would see the same prompts and answers as the first."""
    rounds = {"run": "rounds", "times": 2, "stages": [RL, OWN, {**SFT, "demonstrations": ["own"], "start": "rl"}]}
    steps = plan_plan(file(rounds, seed=5)).steps
    assert [s.name for s in steps] == ["01_rl_1", "02_own_1", "03_sft_1", "04_rl_2", "05_own_2", "06_sft_2"]
    assert [s.config.seed for s in steps] == [5, 5, 5, 6, 6, 6]
    assert steps[3].start == "out/03_sft_1" and steps[5].start == "out/04_rl_2"
    assert steps[5].config.lessons[0].episodes == "out/05_own_2"


def test_changes_reach_the_file_or_a_stage(file):
    """A shorter trial would need another file."""
    path = file(SFT, RL)
    planned = plan_plan(path, ["out=elsewhere", "rl.train.steps=3", "sft.steps=2"])
    assert planned.stages.out == "elsewhere" and planned.steps[1].config.train.steps == 3
    assert planned.steps[0].config.steps == 2
    assert [step.name for step in chosen(planned, ["rl", "01_sft"])] == ["01_sft", "02_rl"]
    assert [step.name for step in chosen(planned, ["rl"])] == ["02_rl"]


def test_the_commands_are_those_of_the_command_line(file):
    """A stage could not be run by hand as it was run here."""
    said = [
        " ".join(command(step)) for step in plan_plan(file(SFT, HARD, {**OWN, "tries": 3, "keep": "all"}, RL)).steps
    ]
    assert said == [
        "warmstart out/01_sft.yaml",
        "select out/02_hard.yaml --out out/02_hard/measured.jsonl --repeats 8 --keep 1.0",
        "best-of out/03_own.yaml --out out/03_own --tries 3 --keep all --samples 8",
        "train out/04_rl.yaml",
    ]


@pytest.mark.parametrize(
    ("stages", "more", "said"),
    [
        ([{**RL, "run": "trian"}], {}, "did you mean 'train'"),
        ([{**RL, "onyl": "hard"}], {}, "onyl: unknown key"),
        ([RL, RL], {}, "the name 'rl' stands twice"),
        ([{**RL, "only": "hard"}, HARD], {}, "stage rl: only: 'hard' is not the name of a select stage before it"),
        ([OWN, {**RL, "only": "own"}], {}, "only: 'own' is not the name of a select stage"),
        ([OWN, {**RL, "start": "own_"}], {}, "start: 'own_' is not the name of a stage that makes a model"),
        ([{**RL, "changes": ["train.setps=3"]}], {}, "stage rl: .*train.setps: unknown key"),
        ([{**RL, "config": "none.yaml"}], {}, "no file none.yaml"),
        ([SFT], {}, "measured_on: is required"),
        ([{"run": "rounds", "times": 0, "stages": [RL]}], {}, "greater than or equal to 1"),
        ([{**HARD, "pass_rate": [0.1, 2]}], {}, "less than or equal to 1"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_begins(stages, more, said, file):
    """After the hours of the stages before it."""
    with pytest.raises(UserError, match=said) as raised:
        plan_plan(file(*stages, **more))
    assert "\n" not in str(raised.value)


def test_a_change_of_no_stage_is_refused(file):
    """A mistyped name would leave the stage as it was."""
    with pytest.raises(UserError, match="no stage is called 'r1'"):
        loading_load(file(RL), ["r1.train.steps=3"])
    with pytest.raises(UserError, match="no stage is called 'r1'"):
        chosen(plan_plan(file(RL)), ["r1"])
