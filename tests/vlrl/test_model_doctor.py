"""`vlrl doctor --model` and `--models`: what users run first with a new model."""

from __future__ import annotations

import json

import pytest
import torch

from tasks.gui_grounding import GuiGrounding
from vlrl.cli import main
from vlrl.policies import tiny
from vlrl.policies.processor import CONVENTIONS
from vlrl.tools.model_doctor import EXACT, format_trials, suggest_frame, try_type
from vlrl.types import Decision, Episode, Frame, Step, Turn

WRITTEN = 64  # answers


@pytest.fixture(scope="module")
def task() -> GuiGrounding:
    return GuiGrounding(pool=4, held_out=WRITTEN)


def answered(task: GuiGrounding, writes: str, read: str, wrong: int = 0) -> list[Episode]:
    """Gold answers in the coordinates that a model writes, to be read in others; some of them of other samples."""
    samples = task.samples("test")
    made = []
    for i, sample in enumerate(samples):
        image, source = sample.prompt.images[0], samples[(i + 1) % len(samples)] if i < wrong else sample
        shown = (image.width * 2, image.height * 2)
        text = task.gold(source, (Frame(writes, image.size, shown),))
        frames = (Frame(read, image.size, shown),)
        decision = Decision(text, torch.zeros(1), torch.zeros(1), False, frames)
        made.append(Episode(sample, i, [Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))]))
    return made


@pytest.mark.parametrize("writes", ["rel1000", "rel1000_yx", "rel1", "resized_px"])
@pytest.mark.parametrize("read", ["rel1000", "rel1", "original_px"])
def test_a_model_that_writes_in_another_frame_is_found_out(task, writes, read):
    """Every answer would count as a miss, and training would start from zero."""
    found = suggest_frame(task, answered(task, writes, read, wrong=24))
    assert found.space == (None if writes == read else writes)
    assert found.correct[writes] >= (WRITTEN - 24) / WRITTEN


def test_a_model_that_is_just_bad_is_left_its_frame(task):
    """Wrong answers say nothing of the frame."""
    assert suggest_frame(task, answered(task, "rel1000", "rel1000", wrong=WRITTEN)).space is None


def describe(capsys, *arguments: str) -> dict[str, dict]:
    assert main(["doctor", "--model", *arguments, "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_model_is_described(capsys):
    """Family, path, frame, template, limits, answers: what is asked in most threads about a new model."""
    found = describe(capsys, "embedded")
    assert found["family"]["value"].startswith("qwen3_vl") and found["path"]["value"].startswith("packed")
    assert "coordinate_space" in found["frame"]["value"] and found["frame check"]["status"] == "ok"
    assert "only appends" in found["conversations"]["value"] and "stay" in found["thoughts"]["value"]
    assert found["tools"]["status"] == "warn" and "31 tokens, 16 of them visual" in found["a prompt"]["value"]
    assert {"images", "answer"} <= set(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_template_is_described_by_what_the_policy_goes_by(tmp_path, capsys):
    """A table that guesses from the template's text would promise conversations that are trained turn by turn."""
    model, processor = tiny.build_family("llava")
    strips = "{% if p.type == 'text' %}{{ p.text.split('</think>')[-1] }}{% endif %}"
    processor.chat_template = processor.chat_template.replace("{{ p.text }}", strips).replace(
        "{% if tools %}", "{% if 0 %}"
    )
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    found = describe(capsys, str(tmp_path))
    assert found["conversations"]["status"] == "ok" and "dropped" in found["thoughts"]["value"]
    assert "shows none" in found["tools"]["value"] and found["path"]["value"].startswith("forked")
    assert "none of 64 answers" in found["frame check"]["value"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
def test_its_memory_is_what_a_plan_says(family, tmp_path, capsys):
    """Of the sizes that the user trains with: activations are most of it."""
    for part in tiny.build_family(family):
        part.save_pretrained(tmp_path)
    config = "configs/gui_grounding.yaml"
    value = describe(capsys, str(tmp_path), "--task", config)["memory"]["value"]
    assert main(["plan", config, f"policy.model={tmp_path}", "--gpu", "cpu", "--memory", "9", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert value.startswith(f"{sum(planned['memory'].values()) / 1e9:.3g} of ")
    assert planned["mode"] == ("kept" if family == "qwen3_vl" else "shared")


def test_a_frame_in_which_the_model_does_not_write_is_told(capsys):
    """The embedded model writes cells of a 10 x 10 grid: read as fractions, all its answers would be misses."""
    found = describe(capsys, "embedded", "policy.frame=rel1")
    assert "rel1 (policy.frame)" in found["frame"]["value"]
    assert found["frame check"]["status"] == "warn" and found["frame check"]["fix"] == "policy.frame=grid10"


def test_a_misspelt_frame_is_one_line(capsys):
    assert main(["doctor", "--model", "embedded", "policy.frame=percent"]) == 2
    assert "policy.frame" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(  # the last: inputs in lists, pixels in bfloat16
    ("family", "path"),
    [("llava", "forked"), ("qwen2_5_vl", "packed"), ("unlimited_ocr", "forked"), ("llama4", "forked")],
)
def test_a_type_that_works_is_a_row_that_says_so(family, path):
    """The table must come from what ran."""
    trial = try_type(family)
    assert trial.works and trial.path == path and max(trial.gap, trial.kept) <= EXACT
    assert f"| {family} | {path} | yes |" in format_trials([trial])


@pytest.mark.filterwarnings("ignore")
def test_a_type_that_cannot_be_trained_has_its_reason():
    assert "encoder-decoder" in try_type("t5gemma2").reason
    assert "no processor" in try_type("mistral4").reason
    assert "takes no chat template" in try_type("kosmos-2").reason


def test_conventions_are_of_types_that_exist():
    """A misspelt type would silently fall back to the default frame."""
    assert set(CONVENTIONS) <= set(tiny.types())
