"""Plug-ins: found by name, typed, and made with their options."""

from __future__ import annotations

import pytest

from vlrl import methods, recipe_checks, registry
from vlrl.algorithms.multi_turn import DigiRL
from vlrl.algorithms.single_rollout import BetaTracker
from vlrl.config import Component, Config
from vlrl.methods import Estimator
from vlrl.policies.vlm import VLM
from vlrl.types import Policy, UserError

KINDS = ["task", *registry.HOMES]
OWN = """
from vlrl.methods import Sampler, method

@method
class Fancy(Sampler):
    positions = ()

    def __init__(self, n, seed, *, heat: float = 1.0):
        self.n, self.seed, self.heat = n, seed, heat

    def draw(self, n):
        return list(range(n))

@method(source="")
def doubled(rollouts, advantage, *, factor: float):
    return factor * advantage
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch) -> str:
    """A user's own module on the Python path."""
    (tmp_path / "my_plugins.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_plugins"


def config_of(**values) -> Config:
    return Config.model_validate({"task": "jigsaw", "out": "x"} | values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_plugin_is_found_and_described(kind):
    """`vlrl list` would name what a YAML cannot use, or leave the user without a source."""
    for name in registry.names(kind):
        target = registry.find(kind, name)
        assert registry.options_of(target) is not None
        about = registry.describe(target)
        assert about["summary"] and (about["source"] or kind == "task")


@pytest.mark.parametrize(
    ("kind", "name", "right"),
    [
        ("task", "jigsw", "jigsaw"),
        ("advantages", "grop", "grpo"),
        ("losses", "ppo", "ppo_clip"),
        ("loss_aggregation", "mean", "token_mean"),
    ],
)
def test_an_unknown_name_gets_the_nearest_right_one(kind, name, right):
    """The user would have to read the sources to find a name."""
    with pytest.raises(UserError, match=f"here: unknown .*{name}.*did you mean '{right}'"):
        registry.find(kind, name, "here")


def test_what_is_no_plugin_is_not_found():
    """A YAML could name any helper of a module, or a task's base class."""
    for kind, name in [("advantages", "group_means"), ("losses", "log_ratio"), ("task", "base"), ("task", "readers")]:
        with pytest.raises(UserError):
            registry.find(kind, name)


def test_functions_get_their_options_and_classes_are_made(own_module):
    """A user's own `module:thing` must work like ours."""
    made = registry.make("sampler", Component(name=f"{own_module}:Fancy", heat=2), "sampler", 10, 7)
    assert (made.n, made.seed, made.heat) == (10, 7, 2.0)
    doubled = registry.make("advantages", Component(name=f"{own_module}:doubled", factor=2), "advantages.0")
    assert isinstance(doubled, Estimator) and doubled.options == {"factor": 2} and doubled(None, 3) == 6
    with pytest.raises(UserError, match=r"advantages\.0\.factor: is required"):
        registry.make("advantages", Component(name=f"{own_module}:doubled"), "advantages.0")


def test_defaults_are_filled_in():
    """The trainer reads the clip range from the made loss."""
    loss = registry.make("losses", Component(name="ppo_clip", high=0.28), "losses.0")
    assert loss.options == {"low": 0.2, "high": 0.28, "dual": None, "coef": 1.0}


def test_data_is_a_section_and_no_option():
    """`task.data` would be a second place to name files."""
    assert "data" not in registry.options_of(registry.find("task", "gui_grounding"))


def test_a_task_is_made_from_the_config():
    """Options and data would not reach the task."""
    task = registry.make_task(config_of(task={"name": "jigsaw", "rows": 3, "columns": 1}))
    assert task.samples("test")[0].tags["size"] == "3x1"


@pytest.mark.parametrize(
    ("losses", "estimators", "needed"),
    [
        (["ppo_clip"], [], False),
        (["ppo_clip", "kl"], [], True),
        (["ppo_clip"], [BetaTracker(eta="paper")], True),
        (["ppo_clip"], [BetaTracker(eta="fixed")], False),
    ],
)
def test_a_reference_is_kept_only_where_it_is_read(losses, estimators, needed):
    """A second model would fill the memory for nothing, or be missing at the first step."""
    assert registry.needs_reference(config_of(losses=losses), estimators) is needed


def test_features_are_read_from_policies_that_give_them():
    """A run would stop at its first step, or forward every prompt once more for nothing."""
    critic, tracker = DigiRL(), BetaTracker(eta="fixed")
    assert registry.needs_features(VLM.__new__(VLM), [tracker, critic]) is True
    assert registry.needs_features(Policy(), [tracker]) is False
    with pytest.raises(UserError, match="DigiRL read features, which this policy does not give"):
        registry.needs_features(Policy(), [tracker, critic])
    assert not registry.needs_reference(config_of(losses=["likelihood"]), [critic])


def test_single_rollouts_are_for_methods_that_need_no_group():
    """MSSR could not run, or GRPO would train on advantages of 0."""
    recipe_checks.check(
        config_of(train={"group_size": 1}, advantages=["beta_tracker", "batch_norm", "entropy_shaping"]), "x"
    )
    with pytest.raises(UserError, match="beta_tracker"):
        recipe_checks.check(config_of(train={"group_size": 1}, advantages=["grpo"]), "x")


def test_rewards_are_the_public_functions_that_give_a_number():
    """Parsers or private helpers would be offered as rewards."""
    found = registry.rewards()
    assert {"boxes.in_box", "order.index_accuracy", "text.tagged"} <= set(found)
    assert not any(name.startswith("parse.") or "._" in name for name in found)


def test_declared_needs_have_an_alternative():
    """A refused recipe must say what to do instead."""
    for kind in ("advantages", "losses"):
        for target in registry.names(kind).values():
            assert set(methods.of(target).needs) <= {*methods.ALTERNATIVES, "reference", "features"}
