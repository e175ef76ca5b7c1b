"""`vlrl advise`: symptoms are named where rows show them and not where they do not, and no claim lacks its page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vlrl
from vlrl.cli import main
from vlrl.config import Component, Config
from vlrl.evaluation.advise import NONE, RULES, RunCurves, advise, format_advice
from vlrl.logging import STEPS
from vlrl.types import UserError

ROOT = Path(__file__).parents[3]
STEP = {
    "reward": 0.4, "reward/hit": 0.4, "accuracy": 0.4, "entropy": 0.2, "length": 9.0, "cut": 0.0, "zero_advantage": 0.3,
    "clip_fraction": 0.05, "logprob_gap": 1e-7, "kl": 0.01,
}  # fmt: skip
CONFIG = Config(task=Component(name="gui_grounding"), out="runs/x")
ROBOT = CONFIG.model_copy(update={"task": Component(name="manipulation")})
DECOUPLED = CONFIG.model_copy(update={"advantages": [Component(name="grpo"), Component(name="decoupled")]})
SINGLE = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"group_size": 1})})
RISE, FALL = {"reward": 0.9}, {"accuracy": 0.9}


def rows(first: dict[str, float], last: dict[str, float]) -> list[dict[str, Any]]:
    """2 x STEPS rows, whose first half and last half differ from STEP, and each from the one before."""
    halves = [STEP | first] * STEPS + [STEP | first | last] * STEPS
    return [row | {"step": i + 1, "reward/hit": 0.4 + 0.01 * (i % 3)} for i, row in enumerate(halves)]


def measured(*values: float, n: int = 512, **more: float) -> list[dict[str, Any]]:
    """Evaluations before the run, ... and after it, with intervals of plus or minus 0.04."""
    steps = [i * 2 * STEPS // max(1, len(values) - 1) for i in range(len(values))]
    return [
        {"step": step, "eval/accuracy": value, "eval/low": value - 0.04, "eval/high": value + 0.04, "eval/n": n, **more}
        for step, value in zip(steps, values, strict=True)
    ]


def curves(first=(), last=(), evals=None, config: Config = CONFIG) -> RunCurves:
    return RunCurves(config, rows(dict(first), dict(last)), measured(0.40, 0.60) if evals is None else evals)


def find_names(run: RunCurves) -> list[str]:
    return [rule.name for rule in RULES if rule.find(run)]


FLAT = measured(0.40, 0.42)
SYMPTOMS = {  # rule -> what shows it, what is near and does not
    "answers are not read": (
        curves(last={"parse_fail/a": 0.3, "parse_fail/b": 0.25}), curves(last={"parse_fail/a": 0.5}),
    ),
    "no group succeeds": (
        curves(last={"zero_advantage": 0.9, "accuracy": 0.05}), curves(last={"zero_advantage": 0.5, "accuracy": 0.05}),
    ),
    "every group succeeds": (
        curves(last={"zero_advantage": 0.9, "accuracy": 0.95}, evals=measured(0.4, 0.95)),
        curves(last={"zero_advantage": 0.5, "accuracy": 0.95}, evals=measured(0.4, 0.95)),
    ),
    "groups agree": (
        curves(last={"zero_advantage": 0.6}), curves(last={"zero_advantage": 0.6}, config=SINGLE),
    ),
    "entropy collapsed": (curves(last={"entropy": 0.019}), curves(last={"entropy": 0.03})),
    "entropy grows": (curves(last={"entropy": 0.5}, evals=FLAT), curves(last={"entropy": 0.5})),
    "completions are cut": (curves(last={"cut": 0.06}), curves(first={"cut": 0.3}, last={"cut": 0.04})),
    "answers grow": (curves(last={"length": 14.0}, evals=FLAT), curves(last={"length": 14.0})),
    "a reward part is constant": (curves({"reward/size": 0.0}), curves({"reward/size": 0.0}, {"reward/size": 0.1})),
    "the reward rises alone": (curves(last=RISE, evals=FLAT), curves(last=RISE)),
    "held-out answers are worse": (
        curves(last={"accuracy": 0.70}), curves(last={"accuracy": 0.70}, evals=measured(0.40, 0.68)),
    ),
    "no better than a constant answer": (
        curves(evals=measured(0.20, 0.50, **{"eval/best_constant": 0.47})),
        curves(evals=measured(0.20, 0.50, **{"eval/best_constant": 0.45})),
    ),
    "accuracy fell again": (curves(evals=measured(0.40, 0.70, 0.50)), curves(evals=measured(0.40, 0.70, 0.67))),
    "ratios are clipped": (curves(last={"clip_fraction": 0.4}), curves(last={"clip_fraction": 0.2})),
    "another policy samples than learns": (curves(last={"logprob_gap": 0.2}), curves(last={"logprob_gap": 0.01})),
    "the policy drifts": (curves(last={"kl": 0.05}, evals=FLAT), curves(last={"kl": 0.05})),
    "a decoupled objective without need": (
        curves({"staleness": 4.0}, config=DECOUPLED), curves({"staleness": 0.0}, config=DECOUPLED),
    ),
    "rollouts are old": (curves({"staleness": 8.0}), curves({"staleness": 4.0})),
    "a robot that learns on-policy": (curves(config=ROBOT), curves(config=ROBOT, evals=measured(0.5, 0.95))),
    "too few held-out samples to tell": (
        curves(evals=measured(0.40, 0.42, n=64)), curves(evals=measured(0.40, 0.60, n=64)),
    ),
}  # fmt: skip


def test_every_rule_is_tried():
    """A rule that nothing triggers would be believed to look."""
    assert list(SYMPTOMS) == [rule.name for rule in RULES]


@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_symptom_is_named_where_it_shows_and_not_near_it(name):
    """A healthy run would be sent to turn its knobs, or a sick one called healthy."""
    shows, near = SYMPTOMS[name]
    assert find_names(shows) == [name]
    assert name not in find_names(near)


def test_a_healthy_run_gets_no_advice():
    """Advice that everybody gets would be read by nobody."""
    assert find_names(curves()) == []


@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_run_of_a_few_steps_is_not_judged_by_them(name):
    """Noise of the first steps would be taken for a symptom."""
    run = SYMPTOMS[name][0]
    short = replace(run, steps=run.steps[-STEPS + 1 :], evals=[])
    assert find_names(short) == []


def test_a_run_that_was_evaluated_before_it_alone_is_not_behind_on_held_out_samples():
    """What was learned since would be called learned by heart."""
    assert find_names(curves(last={**RISE, **FALL}, evals=measured(0.40))) == []


def test_rows_that_lack_a_number_or_hold_none_are_passed_over():
    """One broken row would end the command in a traceback."""
    run = curves(last={"zero_advantage": 0.9})
    assert find_names(replace(run, steps=[*run.steps[:-1], {"reward": 0.4, "step": 20, "kl": float("nan")}])) == []


def find_section(page: str) -> str:
    """The text under the heading that a link of the documentation names."""
    name, _, anchor = page.partition("#")
    text = (ROOT / name).read_text(encoding="utf-8")
    if not anchor:
        return text
    for heading in re.finditer(r"^(#+) (.*)$", text, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            return re.split(rf"^#{{1,{len(heading[1])}}} ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    raise AssertionError(f"{page}: no such heading")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_evidence_is_what_the_page_says(rule):
    """A reader would be told of an effect that nobody measured."""
    section = find_section(rule.page)
    assert section.strip()
    if rule.evidence == NONE:
        return
    numbers = re.findall(r"\d+(?:[.,]\d+)*(?:e-\d+)?", rule.evidence)
    assert numbers
    assert not [number for number in numbers if number not in section]


def test_recipes_and_files_of_the_advice_are_there():
    """The advice would name a recipe that there is not."""
    text = " ".join(rule.advice for rule in RULES)
    for recipe in ("relift", "reinforce_pp", "mssr", "overlong", "dr_grpo"):
        assert recipe in text
        assert (ROOT / "configs" / "recipes" / f"{recipe}.yaml").is_file()
    for file in re.findall(r"configs/[\w/]+\.yaml", text):
        assert (ROOT / file).is_file()
    for key in re.findall(r"(?:train|policy|eval)\.\w+", text):
        section, _, name = key.partition(".")
        assert name in type(getattr(CONFIG, section)).model_fields


def test_a_folder_of_something_else_is_refused(tmp_path):
    """A run of another command would be judged by rules that are not of it."""
    (tmp_path / "config.yaml").write_text("out: runs/x\nlessons: []\n")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="is no run folder of `vlrl train`"):
            advise(folder)


@pytest.mark.slow
def test_a_real_run_is_read(tmp_path, capsys):
    """The rules would look for names that no run writes."""
    sizes = {"train.steps": 2 * STEPS, "train.prompts_per_step": 2, "train.group_size": 2, "eval.num_samples": 16}
    run = vlrl.train(vlrl.load_config("gui_grounding", {"out": str(tmp_path / "run"), **sizes, "policy.max_tokens": 4}))
    assert main(["advise", str(run.folder), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    found = {each["name"]: each for each in advice["findings"]}
    assert advice["steps"] == 2 * STEPS
    assert [each["n"] for each in advice["accuracy"]] == [16, 16]
    assert found["completions are cut"]["shows"] == "100% of them end at policy.max_tokens"
    assert found["answers are not read"]["shows"] == "100% of the answers are not read"
    assert found["no group succeeds"]["page"].startswith("docs/judged.md#")
    assert main(["advise", str(run.folder)]) == 0
    text = capsys.readouterr().out
    assert text == format_advice(advice) + "\n"
    assert "completions are cut: 100% of them end at policy.max_tokens\n  try       raise policy.max_tokens" in text
    healthy = {name for name in STEP if name != "kl"}  # which has no reference here
    assert all(healthy <= set(row) for row in run.metrics if "reward" in row)
