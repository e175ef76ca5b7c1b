"""A comparison is fair by construction: what is equal is equal, what cannot be made equal is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vlrl.evaluation.compare import Budget, RecipeShape, derive, plan_plan
from vlrl.evaluation.compare_report import judge
from vlrl.types import UserError

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "configs" / "recipes"
MSSR, GRPO = ({"name": name, "files": [str(RECIPES / f"{name}.yaml")]} for name in ("mssr", "grpo"))
SMALL = {
    "task": str(ROOT / "configs" / "gui_grounding.yaml"),
    "out": "out",
    "recipes": [MSSR, GRPO],
    "budget": {"rollouts": 320, "rollouts_per_update": 16, "updates_per_step": 2, "passes": 8, "group_size": 4},
    "evaluations": 5,
}


def planned(tmp_path, **changes):
    file = tmp_path / "compare.yaml"
    file.write_text(yaml.safe_dump(SMALL | changes))
    return plan_plan(str(file))


def line(made, label):
    return next(each for each in made.lines if each["label"] == label)


def test_single_and_group_recipes_spend_the_same(tmp_path):
    """MSSR's published comparison had 8 times the updates and 8 times the passes of its baselines."""
    made = planned(tmp_path)
    mssr, grpo = (arm.config for arm in made.arms)
    assert (mssr.train.steps, mssr.train.group_size, mssr.train.prompts_per_step, mssr.train.num_minibatches) == (
        10,
        1,
        28,
        2,
    )
    assert (grpo.train.steps, grpo.train.group_size, grpo.train.prompts_per_step, grpo.train.num_minibatches) == (
        10,
        4,
        8,
        2,
    )
    for label in ("rollouts", "optimizer updates", "rollouts an update", "updates a step", "passes over the prompts",
                  "temperature", "longest completion", "gradient norm clipped at", "learning rate"):  # fmt: skip
        assert line(made, label)["verdict"] == "equal", label
    assert line(made, "different prompts")["values"] == {"mssr": 40, "grpo": 10}
    assert (made.arms[0].first, mssr.sampler.options["limit"]) == (40, 40)


@given(st.integers(1, 8), st.integers(0, 3), st.integers(1, 2), st.integers(1, 60), st.integers(1, 64),
       st.integers(1, 3), st.integers(1, 12))  # fmt: skip
def test_derived_sizes_spend_exactly_the_budget(group, start, epochs, steps, per_update, updates, passes):
    """A rounding that costs one recipe a step makes the comparison unfair in silence."""
    budget = Budget(rollouts=steps * per_update * updates, rollouts_per_update=per_update, updates_per_step=updates,
                    passes=passes)  # fmt: skip
    try:
        made = derive(RecipeShape(group, start, epochs), budget)
    except UserError:
        return
    assert start * made.pool + made.steps * made.prompts_per_step * group == budget.rollouts
    assert made.steps * made.num_minibatches * epochs == steps * updates
    assert made.steps * made.prompts_per_step + made.pool * (start > 0) == passes * made.pool
    assert made.prompts_per_step % made.num_minibatches == 0


def test_the_same_prompts_for_all_instead_of_the_same_passes(tmp_path):
    """With one data set it is the visits that differ, and the table must say so."""
    made = planned(tmp_path, budget=SMALL["budget"] | {"passes": None, "prompts": 40})
    assert line(made, "different prompts")["verdict"] == "equal"
    assert line(made, "passes over the prompts")["values"] == {"mssr": 8.0, "grpo": 2.0}
    assert line(made, "answers a prompt gets")["verdict"] == "equal"


def test_own_settings_of_a_recipe_give_way_unless_they_are_its_point(tmp_path):
    """A gradient norm of 0.5 against 1 would be compared instead of two estimators."""
    both = planned(tmp_path)
    assert [arm.config.train.max_grad_norm for arm in both.arms] == [1.0, 1.0]
    kept = planned(tmp_path, recipes=[MSSR | {"own": ["train.max_grad_norm"]}, GRPO])
    assert [arm.config.train.max_grad_norm for arm in kept.arms] == [0.5, 1.0]
    assert line(kept, "gradient norm clipped at")["verdict"] == "own"
    hot = planned(tmp_path, recipes=[MSSR | {"changes": ["policy.temperature=0.7", "train.lr=0.1"]}, GRPO])
    assert (hot.arms[0].config.policy.temperature, hot.arms[0].config.train.lr) == (1.0, 3e-4)


def test_a_recipe_as_released_keeps_its_sizes_and_the_table_says_what_differs(tmp_path):
    """16 updates a step are MSSR's release; hidden, they would pass for the method."""
    changes = ["train={prompts_per_step: 32, num_minibatches: 16}", "sampler={limit: 40}"]
    released = MSSR | {"name": "released", "changes": changes, "as_released": True}
    made = planned(tmp_path, recipes=[MSSR, GRPO, released])
    train = made.arms[2].config.train
    assert (train.steps, train.prompts_per_step, train.num_minibatches, train.max_grad_norm) == (
        8,
        32,
        16,
        0.5,
    )  # (320 - 40) // 32
    assert line(made, "optimizer updates") == {
        "label": "optimizer updates", "values": {"mssr": 20, "grpo": 20, "released": 128}, "verdict": "released",
    }  # fmt: skip
    assert "20 (mssr, grpo); 128 (released)" in made.text()


def test_what_is_left_out_counts_as_played(tmp_path):
    """A strategy that plays twice what it learns from would get twice the budget and win by it."""
    vade = {"name": "vade", "changes": ["sampler=vade"], "own": ["sampler"]}
    refill = {
        "name": "refill",
        "changes": ["rollout_strategy=filter_refill"],
        "own": ["rollout_strategy"],
        "plays": 2.0,
    }
    ssr = {"name": "ssr", "changes": ["replay_mixing=[ssr]"]}
    made = planned(tmp_path, recipes=[GRPO, vade, refill, ssr])
    assert [arm.config.train.steps for arm in made.arms] == [10, 10, 5, 10]
    assert set(line(made, "rollouts")["values"].values()) == {320}
    assert line(made, "optimizer updates")["verdict"] == line(made, "sampler")["verdict"] == "own"
    # who may choose chooses among the prompts that all have
    assert made.arms[1].config.sampler.options["limit"] == line(made, "different prompts")["values"]["grpo"]
    assert line(made, "replay mixing")["values"]["ssr"] == "ssr"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipes": [GRPO, GRPO]}, "stands twice"),
        ({"recipes": [MSSR, GRPO | {"own": ["train.max_gradnorm"]}]}, "did you mean 'train.max_grad_norm'"),
        ({"recipes": [MSSR, GRPO | {"files": ["none.yaml"]}]}, "no file none.yaml"),
        (
            {"recipes": [MSSR, {"name": "dapo", "files": [str(RECIPES / "dapo.yaml")]}]},
            r"rollout_strategy=plain.*as_released",
        ),
        (
            {"recipes": [MSSR, {"name": "spo", "files": [str(RECIPES / "spo.yaml")]}]},
            r"sampler uncertainty.*as_released",
        ),
        (
            {"budget": SMALL["budget"] | {"rollouts": 336, "rollouts_per_update": 8}, "evaluations": 7},
            r"grpo.*budget\.rollouts=352 would do",
        ),
        ({"budget": SMALL["budget"] | {"rollouts": 321}}, "not a whole number of steps"),
        ({"budget": SMALL["budget"] | {"prompts": 4}}, "either passes"),
        ({"budget": SMALL["budget"] | {"passes": 1}}, "first responses are a pass of their own"),
        ({"budget": SMALL["budget"] | {"passes": None, "prompts": 200_000}}, "200,000 prompts"),
        ({"evaluations": 3}, "10 steps do not make 3 equal stretches"),
        ({"pairs": [["mssr", "grop"]]}, "no recipe is called 'grop'"),
        ({"pairs": [["mssr", "grpo"], ["grpo", "mssr"]]}, "two different recipes"),
        ({"pass_at": {"samples": 4, "k": [8]}}, "pass_at.k"),
        ({"sedes": 3}, "did you mean 'seeds'"),
    ],
)
def test_what_cannot_be_fair_is_refused_in_one_line(tmp_path, changes, said):
    """Hours of training would end in a table that compares something else."""
    with pytest.raises(UserError, match=said) as caught:
        planned(tmp_path, **changes)
    assert "\n" not in str(caught.value)


STUDIES = sorted((ROOT / "configs" / "compare").glob("*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_comparisons_that_ship_are_fair(file):
    """The published results would rest on one that is not."""
    made = plan_plan(str(file))
    equal = [arm for arm in made.arms if not arm.recipe.as_released and arm.recipe.plays == 1]
    assert len(equal) >= 2 and made.comparison.seeds.each >= 5
    # with one completion a visit or several, either the prompts are the same or how often each is passed over
    prompts = "different prompts" if made.comparison.budget.prompts else "passes over the prompts"
    for label in ("rollouts", "optimizer updates", prompts, "gradient norm clipped at"):
        assert len({line(made, label)["values"][arm.name] for arm in equal}) == 1


def test_a_baseline_is_the_first_recipe(tmp_path):
    """Seventeen losses have 136 pairs, of which sixteen are asked about: the others would only cost power."""
    made = planned(tmp_path, recipes=[MSSR, GRPO, GRPO | {"name": "other"}], pairs="baseline")
    assert made.comparison.compared == [("grpo", "mssr"), ("other", "mssr")]


@pytest.mark.parametrize(
    ("effect", "decided", "verdict"),
    [
        ((0.01, 0.09), "larger", "helps"), ((-0.09, -0.01), "smaller", "harms"),
        ((-0.02, 0.02), "open", "no difference"), ((-0.02, 0.05), "open", "undecided"),
        ((0.01, 0.09), "open", "undecided"),
    ],
)  # fmt: skip
def test_only_a_narrow_interval_shows_that_there_is_no_difference(effect, decided, verdict):
    """What was not decided would be read as equal."""
    assert judge(effect, decided) == verdict
