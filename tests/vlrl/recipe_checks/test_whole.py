"""Parts that are right one by one and wrong together: refused when the config is read, or as harmless as documented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vlrl import methods, recipe_checks, registry
from vlrl.algorithms.advantages import batch_norm, entropy_shaping, grpo
from vlrl.algorithms.policy_losses import constant, sequence_mean, token_mean
from vlrl.algorithms.reward_shaping import noise_backward, noise_forward
from vlrl.algorithms.rollout_filtering import FilterRefill
from vlrl.algorithms.single_rollout import BetaTracker
from vlrl.batch import estimate
from vlrl.config import Config
from vlrl.policies import discrete
from vlrl.recipe_checks import load_config
from vlrl.types import (
    Decision,
    Episode,
    Evaluation,
    Observation,
    Policy,
    Rollouts,
    Sample,
    Score,
    Step,
    Turn,
    UserError,
)
from vlrl.update import Updater

ROOT = Path(__file__).parents[3]
SHAPED = ["beta_tracker", "batch_norm", "entropy_shaping"]
REWARDS = st.lists(st.sampled_from([0.0, 1.0]), min_size=12, max_size=12)


def config_of(**values) -> Config:
    return Config.model_validate({"task": "jigsaw", "out": "x"} | values)


def refused(**values) -> str:
    """What the user is told, one line."""
    with pytest.raises(UserError) as caught:
        recipe_checks.check(config_of(**values), "my.yaml")
    text = str(caught.value)
    assert text.startswith("my.yaml: ") and "\n" not in text
    return text


def fits(**values) -> None:
    recipe_checks.check(config_of(**values), "my.yaml")


def step(rewards: list[float], size: int = 4) -> Rollouts:
    """One token per completion."""
    n = len(rewards)
    column, reward = torch.full((n, 1), -0.7, dtype=torch.float64), torch.tensor(rewards, dtype=torch.float64)
    mask, rows = torch.ones(n, 1, dtype=torch.bool), torch.arange(n)
    return Rollouts(tuple(f"{i // size}" for i in range(n)), reward, rows // size, rows, mask, column, column.abs())


# -- estimators in a row ---------------------------------------------------------------------------------------------


@given(REWARDS)
def test_batch_norm_after_group_only_rescales(rewards):
    """It is allowed, as it does no harm: by how many groups are silent, all advantages grow alike."""
    fits(advantages=["grpo", "batch_norm"])
    rollouts = step(rewards)
    once = estimate(rollouts, [grpo]).flatten()
    twice = estimate(rollouts, [grpo, batch_norm]).flatten()
    if (once == 0).all():
        assert (twice == 0).all()
    else:
        factor = (once**2).mean().clamp(min=1e-6).rsqrt()
        torch.testing.assert_close(twice, factor * once)
        assert torch.equal(twice.abs() < 1e-9, once == 0)


@pytest.mark.parametrize("later", ["batch_norm", "sigma_filter", "whiten", "grpo"])
def test_nothing_normalises_after_shaping(later):
    """The mean of the shaping would be taken out of it, and its bound by the advantage be lost."""
    told = refused(advantages=["beta_tracker", "entropy_shaping", later])
    assert f"advantages.2 ({later}) must come before entropy_shaping" in told
    fits(advantages=SHAPED)
    fits(advantages=["grpo", "kl_return", "whiten", "entropy_shaping"])


def test_shaping_leaves_silent_groups_silent():
    """What all completions solve would be trained on for being uncertain."""
    fits(advantages=["grpo", "entropy_shaping"])
    assert (estimate(step([1.0] * 4 + [0.0] * 8), [grpo, entropy_shaping]) == 0).all()


# -- rewards ---------------------------------------------------------------------------------------------------------


def episode(correct: float, reward: float) -> Episode:
    seen = Observation(())
    nothing = torch.zeros(1)
    decision = Decision("", nothing, nothing, False)
    return Episode(
        Sample("a", seen),
        0,
        [Turn(seen, decision, Step(seen, terminated=True))],
        Score({"all": reward}, correct),
        reward,
    )


def test_the_filter_sees_accuracy_or_the_reward_before_shaping():
    """Groups would be kept for what a length term makes of them: which metric it is changes what is trained."""
    uneven_form = [episode(1.0, 1.0), episode(1.0, 1.5)]
    kept = {}
    for metric in ("accuracy", "reward"):
        strategy = registry.make(
            "rollout_strategy",
            config_of(rollout_strategy={"name": "filter_refill", "metric": metric}).rollout_strategy,
            "rollout_strategy",
            None,
            None,
            0,
        )
        assert isinstance(strategy, FilterRefill)
        kept[metric] = strategy._teaches(uneven_form)
    assert kept == {"accuracy": False, "reward": True}


BACKWARD = {"name": "noise_backward", "false_positive": 0.1, "false_negative": 0.2}
FORWARD = {"name": "noise_forward", "false_negative": 0.2}


@pytest.mark.parametrize(
    ("advantages", "by"),
    [
        (["grpo"], "grpo"), ([{"name": "grpo", "std": "batch"}], "grpo"),
        ([{"name": "grpo", "std": "none"}, "batch_norm"], "batch_norm"), (["whiten"], "whiten"),
    ],
)  # fmt: skip
def test_a_backward_correction_is_not_standardised_away(advantages, by):
    """The run would do exactly what it does without the correction."""
    told = refused(reward_shaping=[BACKWARD], advantages=advantages)
    assert f"reward_shaping.0 (noise_backward) has no effect, {by} takes it out again" in told and "std: none" in told
    rollouts = step([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    corrected = replace(rollouts, reward=noise_backward(rollouts, false_positive=0.1, false_negative=0.2))
    estimators = [registry.make("advantages", c, "x") for c in config_of(advantages=advantages).advantages]
    torch.testing.assert_close(estimate(corrected, estimators), estimate(rollouts, estimators), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "advantages", [[{"name": "grpo", "std": "none"}], ["leave_one_out"], ["beta_tracker", "batch_norm"]]
)
def test_a_backward_correction_acts_where_it_is_not_divided_out(advantages):
    """The remedy that the message names must be accepted, and do something."""
    fits(reward_shaping=[BACKWARD], advantages=advantages)


def test_a_forward_correction_needs_no_baseline():
    """Any baseline takes its shift out again."""
    for estimator in ("leave_one_out", "beta_tracker", {"name": "grpo", "std": "none"}):
        assert "set advantages: []" in refused(reward_shaping=[FORWARD], advantages=[estimator])
    fits(reward_shaping=[FORWARD], advantages=[])
    rollouts = step([1.0, 0.0, 0.0, 0.0])
    shifted = replace(rollouts, reward=noise_forward(rollouts, false_negative=0.2))
    assert estimate(shifted, []).flatten().tolist() == pytest.approx([0.2, -0.8, -0.8, -0.8])


@pytest.mark.parametrize(
    ("shaping", "least"),
    [
        ({"name": "overlong", "longest": 100, "cache": 20}, 80), ({"name": "laser", "target": 64}, 64),
        ("laser_d", 1024), ({"name": "laser_de", "ladder": [70, 64]}, 64), ("shortest_bonus", 100),
    ],
)  # fmt: skip
def test_a_length_that_nobody_reaches_is_refused(shaping, least):
    """The term would pay all alike: a run would look as if length had been rewarded."""
    told = refused(reward_shaping=[shaping], policy={"max_tokens": 64})
    assert f"begins at {least} tokens, but completions end at policy.max_tokens = 64" in told
    fits(reward_shaping=[shaping], policy={"max_tokens": 2000})
    recipe_checks.check(
        config_of(task="gui_agent", reward_shaping=[shaping], policy={"max_tokens": 64}), "x"
    )  # turns add up


def test_weighings_count_long_completions_differently():
    """Coefficients of a length term tuned under one weighing mean something else under another: 4 times here."""
    mask = torch.tensor([[True] * 4, [True] + [False] * 3])
    shares = [weigh(mask).sum(1) for weigh in (token_mean, sequence_mean, lambda m: constant(m, length=4))]
    assert [round(float(long / short), 6) for long, short in shares] == [4.0, 1.0, 4.0]


# -- what the run must give ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reward_shaping", "advantages", "losses"])
def test_methods_of_groups_refuse_single_rollouts(kind):
    """One completion has nothing to be compared with: the run would train on zeros."""
    options = {"trust": {"thinking": "format"}}
    for name, target in registry.names(kind).items():
        if "group" not in methods.of(target).needs:
            continue
        values = {"advantages": ["batch_norm"], kind: [{"name": name, **options.get(name, {})}]}
        told = refused(train={"group_size": 1}, loss_aggregation="sequence_mean", policy={"max_tokens": 2000}, **values)
        assert f"{kind}.0 ({name}) needs several completions per prompt" in told and "beta_tracker" in told


def test_replayed_episodes_are_no_groups_and_have_no_ratios():
    """Each replayed episode would be compared with itself, or weighed by a ratio that is 1 by construction."""
    told = refused(rollout_strategy="replay", losses=["likelihood"])
    assert (
        "advantages.0 (grpo) needs groups, but rollout_strategy: replay" in told and "rollout_strategy: plain" in told
    )
    offline = {"name": "offline_first", "episodes": "x", "steps": 1}
    for rollouts in ("replay", offline):
        told = refused(rollout_strategy=rollouts, advantages=["beta_tracker"])
        assert "losses.0 (ppo_clip) needs log-probabilities of the behaviour policy" in told and "likelihood" in told
        fits(rollout_strategy=rollouts, advantages=["beta_tracker"], losses=["likelihood", "kl", "entropy"])
    fits(rollout_strategy=offline, losses=["likelihood"])


def test_losses_of_whole_completions_refuse_tasks_of_several_turns():
    """The first step would stop the run, after minutes in a browser."""
    values = {"losses": ["reg_grpo"], "loss_aggregation": "sequence_mean"}
    assert "losses.0 (reg_grpo) compares whole completions" in refused(task="gui_agent", **values)
    fits(task={"name": "gui_agent", "turns": 1}, **values)
    fits(**values)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov", "trust_region", "dhpo_entropy"])
def test_losses_of_the_whole_step_refuse_micro_batches(loss):
    """What is trained would hang on the memory of the machine."""
    train = {"prompts_per_step": 8, "num_minibatches": 2, "micro_batch_size": 2}
    assert "leave train.micro_batch_size out" in refused(losses=[loss], train=train)
    fits(losses=[loss], train=train | {"micro_batch_size": 4})  # a minibatch at once


class Table(nn.Module, Policy):
    """A policy of one number per prompt, that remembers what it was asked at once."""

    def __init__(self):
        super().__init__()
        self.logits, self.asked = nn.Parameter(torch.zeros(3)), []

    def evaluate(self, decisions) -> Evaluation:
        prompts = torch.tensor([d.inputs for d in decisions])
        self.asked.append(prompts.tolist())
        logprobs = self.logits.log_softmax(0)[prompts][:, None]
        return Evaluation(logprobs, -logprobs.detach(), torch.ones_like(logprobs, dtype=torch.bool))


@pytest.mark.parametrize("loss", ["reg_grpo", "disco", "gepo"])
@pytest.mark.parametrize("parts", [1, 3])
def test_micro_batches_never_split_what_a_loss_compares(loss, parts):
    """Half a group has another mean: no setting of train.micro_batch_size may lead there."""
    fits(losses=[{"name": loss}], loss_aggregation="sequence_mean", advantages=[], train={"micro_batch_size": 1})
    policy, rollouts = Table(), step([1.0, 0.0, 0.0, 1.0] * 3)
    decisions = [Decision("", torch.zeros(1), torch.zeros(1), False, inputs=i // 4) for i in range(12)]
    rollouts = replace(rollouts, reference=rollouts.logprobs)
    updater = Updater(
        policy, torch.optim.SGD(policy.parameters(), lr=0.1),
        [registry.make("losses", config_of(losses=[loss]).losses[0], "x")], sequence_mean,
        backward=lambda objective: objective.backward(), clip=lambda: torch.zeros(()), parts=parts, epochs=1, micro=1,
        clip_range=(0.2, 0.2),
    )  # fmt: skip
    updater.step(decisions, rollouts, estimate(rollouts, []), (0, 0))
    assert sorted(policy.asked) == [[0] * 4, [1] * 4, [2] * 4]


def test_one_completion_a_step_is_no_batch():
    """Its advantage is its distance from itself, 0 forever."""
    alone = {"prompts_per_step": 1, "group_size": 1}
    for name in ("batch_norm", "sigma_filter", "whiten"):
        told = refused(train=alone, advantages=["beta_tracker", name])
        assert f"advantages.1 ({name}) compares a step's completions: set train.prompts_per_step" in told
    fits(train=alone, advantages=["beta_tracker"])


def test_uncertainty_is_a_trackers():
    """The sampler would have nothing to go by."""
    assert "add spo_tracker or beta_tracker" in refused(sampler="uncertainty")
    for tracker in ("spo_tracker", "beta_tracker"):
        fits(sampler="uncertainty", advantages=[tracker])


# -- credit for single steps -----------------------------------------------------------------------------------------

ROBOT = {"task": "manipulation"}
CARL = {"name": "carl", "progress": "distance", "span": -0.2}


def test_what_steps_earn_is_read():
    """The run would pay for process rewards and train as if there were none."""
    told = refused(**ROBOT, process_rewards=[CARL], advantages=["grpo"])
    assert "process_rewards.0 (carl) pays steps, which none of advantages reads: add one of gae, gigpo, tgrpo" in told
    for estimator in ("gae", "tgrpo", {"name": "gigpo", "by": "state"}):
        fits(**ROBOT, process_rewards=[CARL], advantages=[estimator])
    assert "pays steps" in refused(**ROBOT, process_rewards=[{"name": "srpo", "form": "potential"}])
    fits(**ROBOT, process_rewards=["srpo"])  # it changes the outcome


def test_methods_of_steps_refuse_tasks_of_one_turn():
    """Each step would stand alone, or be paid as the episode is: a run under a wrong name."""
    for estimator in ("gigpo", "tgrpo"):
        assert f"advantages.0 ({estimator}) compares steps, but this task has one turn" in refused(
            advantages=[estimator]
        )
    assert "advantages.1 (salt) compares steps" in refused(advantages=["grpo", "salt"])
    assert "process_rewards.0 (spa) pays steps, but this task has one turn" in refused(
        process_rewards=["spa"], advantages=["gae"]
    )
    fits(task="gui_agent", advantages=["gigpo"])


def test_a_spread_outcome_is_not_read_alone():
    """A baseline of what SPA left over would push episodes apart that were worth the same."""
    told = refused(**ROBOT, process_rewards=["spa"], advantages=["grpo", "gae"])
    assert "advantages.0 (grpo) reads an outcome that spa has spread over the steps" in told
    gated = ["spa", {"name": "g_ra_steps", "threshold": 1.0}]
    assert "process_rewards.0 (spa) spreads the outcome: what changes it must come before" in refused(
        **ROBOT, process_rewards=gated, advantages=["gae"]
    )
    fits(**ROBOT, process_rewards=[CARL, "spa"], advantages=["gae", "batch_norm"])


def test_a_gate_has_something_to_gate():
    """The recipe would look gated, and be the plain one."""
    gate = {"name": "g_ra_steps", "threshold": 1.0}
    assert "process_rewards.0 (g_ra_steps) gates what earlier parts" in refused(
        **ROBOT, process_rewards=[gate], advantages=["gae"]
    )
    fits(**ROBOT, process_rewards=[CARL, gate], advantages=["gae"])


def test_a_simulators_rewards_are_paid_once():
    """The shaping would weigh twice what it says."""
    robot = {"task": {"name": "manipulation", "weights": {"success": 1.0, "shaped": 0.1}}}
    assert "pays what task.weights.shaped pays already" in refused(
        **robot, process_rewards=["simulator"], advantages=["gae"]
    )
    fits(**ROBOT, process_rewards=["simulator"], advantages=["gae"])


def test_shared_steps_average_advantages_and_not_rewards():
    """With rewards of 0 and 1 no step would ever be discouraged."""
    assert "advantages.0 (salt) averages what an earlier one gave" in refused(**ROBOT, advantages=["salt"])
    for earlier in ("grpo", "leave_one_out", "tgrpo"):
        fits(**ROBOT, advantages=[earlier, "salt"])


def test_nothing_is_estimated_to_be_thrown_away():
    """Credit for steps would be computed, logged, and replaced by the episode's."""
    assert "(grpo) begins with the rewards, so that tgrpo has no effect" in refused(
        **ROBOT, advantages=["tgrpo", "grpo"]
    )
    assert "(tgrpo) begins with the rewards, so that grpo has no effect" in refused(
        **ROBOT, advantages=["grpo", "tgrpo"]
    )
    fits(**ROBOT, advantages=["tgrpo", "batch_norm"])


def test_time_outs_are_bootstrapped_with_a_discount():
    """Where all failures are time-outs the critic would learn that everything succeeds, and nothing be an advantage."""
    told = refused(**ROBOT, advantages=[{"name": "gae", "bootstrap": True}])
    assert "bootstrap needs gamma below 1" in told
    fits(**ROBOT, advantages=[{"name": "gae", "bootstrap": True, "gamma": 0.99}])
    fits(**ROBOT, advantages=["gae"])


def test_potentials_are_discounted_as_they_are_summed():
    """What should leave the best policy as it is would make it hurry, or dawdle."""
    potential = {"name": "srpo", "form": "potential"}
    told = refused(**ROBOT, process_rewards=[potential], advantages=[{"name": "gae", "gamma": 0.99}])
    assert "process_rewards.0 (srpo): gamma = 1, but gae sums with 0.99: set it so" in told
    fits(**ROBOT, process_rewards=[potential | {"gamma": 0.99}], advantages=[{"name": "gae", "gamma": 0.99}])
    fits(**ROBOT, process_rewards=[potential], advantages=["tgrpo"])


# -- policies --------------------------------------------------------------------------------------------------------


def test_a_policy_without_log_probabilities_is_not_trained(tmp_path):
    """Weights of gigabytes would be loaded before the user learns that no loss can use them."""
    (tmp_path / "config.json").write_text(json.dumps({"type": "diffusion", "n_obs_steps": 2}))
    (tmp_path / "model.safetensors").write_text("never read")
    config = config_of(policy={"model": str(tmp_path)})
    with pytest.raises(UserError, match=r"'diffusion' with n_obs_steps 2 gives no log-probabilities.*lerobot-train"):
        registry.check_policy(config, json.loads((tmp_path / "config.json").read_text()))
    from vlrl.trainer import RLTrainer

    with pytest.raises(UserError, match="'diffusion' with n_obs_steps 2 gives no log-probabilities"):
        RLTrainer(replace_out(config, tmp_path)).setup()
    assert not (tmp_path / "run").exists()


def replace_out(config: Config, folder) -> Config:
    return config.model_copy(update={"out": str(folder / "run")})


@pytest.mark.parametrize("estimator", ["digirl", "gae"])
def test_critics_need_features(estimator):
    """Of a user's own policy without any the first step would stop the run; a robot's small network has them."""
    config = config_of(advantages=[estimator])
    made = [registry.make("advantages", config.advantages[0], "advantages.0")]
    for family in ("qwen2_5_vl", discrete.FAMILY):
        registry.check_policy(config, {"model_type": family})
    assert registry.needs_features(discrete.ControlPolicy, made)
    with pytest.raises(UserError, match="read features, which this policy does not give"):
        registry.needs_features(Table(), made)


# -- trackers --------------------------------------------------------------------------------------------------------


def test_duplicates_of_a_prompt_update_in_their_order():
    """Ranks that gather in different orders would drift apart; the order of the batch is the order."""
    rollouts = step([1.0, 0.0], size=2)
    values = []
    for reward in ([1.0, 0.0], [0.0, 1.0]):
        tracker = BetaTracker(eta="fixed", start_weight=8.0)
        tracker(replace(rollouts, reward=torch.tensor(reward).double()), rollouts.reward)
        values.append(tracker.counts["0"])
    eta = 0.9175
    assert values[0] == pytest.approx((eta * (eta * 4 + 1), eta * eta * 4 + 1))
    assert values[1] == pytest.approx((eta * eta * 4 + 1, eta * (eta * 4 + 1)))


def test_a_reset_reference_makes_the_published_rate_forget_fastest():
    """At a KL of 0 the paper's rule gives its lowest rate, its prose the highest: `monotone` is the way out."""
    rollouts = step([1.0, 0.0, 1.0, 0.0])
    at_reset = replace(rollouts, reference=rollouts.logprobs)
    rates = {}
    for eta in ("paper", "monotone", "fixed"):
        tracker = BetaTracker(eta=eta, kl_window=1)
        tracker(replace(rollouts, reference=rollouts.logprobs + 0.1), rollouts.reward)
        tracker(at_reset, rollouts.reward)
        rates[eta] = tracker.rate()
    assert rates == pytest.approx({"paper": 0.875, "monotone": 0.96, "fixed": 0.9175})


def test_recipes_over_tasks_that_do_not_fit_are_refused_as_they_are_read():
    """`vlrl train configs/X.yaml configs/recipes/Y.yaml` is how recipes are used."""
    with pytest.raises(UserError, match="several turns"):
        load_config(ROOT / "configs" / "gui_agent.yaml", [str(ROOT / "configs" / "recipes" / "reg_grpo.yaml")])
