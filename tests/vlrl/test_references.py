"""Hooks that change the reference: what it becomes, what stays, and that a resumed run has the same one."""

from __future__ import annotations

import pytest
import torch

from vlrl import api, registry
from vlrl.algorithms.schedules import ReferenceReset, SoftSync
from vlrl.checkpoint import flatten, unflatten
from vlrl.policies.loading import load
from vlrl.policies.weights import learned, put
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # peft asks for it
ADAPTER = ["policy.lora={rank: 2, alpha: 4, targets: '.*language_model.*_proj'}"]
SMALL = ["policy.max_tokens=6", "task.pool=8", "task.held_out=4"]


class Updater:
    """Of an updater, what these hooks read."""

    def __init__(self, policy):
        learns = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learns, lr=0.02)

    def step(self, policy, decisions) -> None:
        """Towards what the policy wrote."""
        self.optimizer.zero_grad()
        now = policy.evaluate(decisions)
        (-now.logprobs[now.mask].mean()).backward()
        self.optimizer.step()


def made(changes=()):
    """A policy with a reference, its updater, and decisions to ask both about."""
    torch.manual_seed(0)
    config = load_config("configs/gui_grounding.yaml", [*SMALL, *changes])
    policy, task = load(config.policy, seed=0), registry.make_task(config)
    policy.freeze_reference()
    decisions = [e.turns[0].decision for e in collect(policy, task, task.samples("train")[:2], 2)]
    return policy, Updater(policy), decisions


def own(policy, decisions) -> torch.Tensor:
    with torch.no_grad():
        return policy.evaluate(decisions).logprobs


def thawed(state: dict) -> dict:
    """A state as a checkpoint gives it back."""
    tensors: dict[str, torch.Tensor] = {}
    return unflatten(flatten(state, tensors), {name: value.clone() for name, value in tensors.items()})


@pytest.mark.parametrize("changes", [[], ADAPTER], ids=["whole", "adapter"])
def test_a_reset_makes_the_present_policy_the_reference(changes):
    """The KL would go on pulling to a start that the run has long left; under LoRA as well."""
    policy, updater, decisions = made(changes)
    start = own(policy, decisions)
    hook = ReferenceReset(policy, None, updater, 0, every=2, kl=None)
    updater.step(policy, decisions)
    hook.on_step_end(1, {})
    assert torch.equal(policy.reference(decisions), start) and not torch.equal(own(policy, decisions), start)
    updater.step(policy, decisions)
    hook.on_step_end(2, {})
    assert torch.equal(policy.reference(decisions), own(policy, decisions))
    then = policy.reference(decisions)
    updater.step(policy, decisions)
    assert torch.equal(policy.reference(decisions), then) and not torch.equal(own(policy, decisions), then)
    assert hook.metrics == {"reference/resets": 1.0}


def test_a_reset_by_the_kl_comes_with_a_new_optimizer():
    """Moments that were gathered against the old reference would pull the policy on, or a spike pass unseen."""
    policy, updater, decisions = made()
    hook = ReferenceReset(policy, None, updater, 0, every=None, kl=0.1)
    updater.step(policy, decisions)
    hook.on_step_end(1, {"kl": 0.1})
    assert len(updater.optimizer.state) and hook.resets == 0
    hook.on_step_end(2, {"kl": 0.11})
    assert not len(updater.optimizer.state) and hook.resets == 1
    kept = ReferenceReset(policy, None, updater, 0, every=1, kl=None, optimizer=False)
    updater.step(policy, decisions)
    kept.on_step_end(3, {})
    assert len(updater.optimizer.state)


@pytest.mark.parametrize("changes", [[], ADAPTER], ids=["whole", "adapter"])
def test_the_reference_comes_back_from_a_checkpoint(changes):
    """A resumed run would be pulled to its start again, and end elsewhere than a straight one."""
    policy, updater, decisions = made(changes)
    hook = ReferenceReset(policy, None, updater, 0, every=1, kl=None)
    updater.step(policy, decisions)
    hook.on_step_end(1, {})
    updater.step(policy, decisions)
    state, weights = thawed(hook.state_dict()), learned(policy.model)
    other, again, _ = made(changes)
    resumed = ReferenceReset(other, None, again, 0, every=1, kl=None)
    put(other.model, weights)
    resumed.load_state_dict(state)
    assert (resumed.resets, resumed.since) == (1, 0)
    assert torch.equal(other.reference(decisions), policy.reference(decisions))
    assert torch.equal(own(other, decisions), own(policy, decisions))
    fresh = thawed(ReferenceReset(policy, None, updater, 0).state_dict())
    assert fresh["weights"] is None  # a run without a reset keeps its start, and saves nothing


def test_soft_sync_mixes_weight_by_weight():
    """The reference would jump where it is to follow: ref <- 0.6 policy + 0.4 ref, twice, in float64."""
    policy, updater, decisions = made()
    hook = SoftSync(policy, None, updater, 0, mix=0.6, every=2)
    start = {name: value.double() for name, value in learned(policy.model).items()}
    seen = []
    for step in range(1, 5):
        updater.step(policy, decisions)
        hook.on_step_end(step, {})
        seen.append({name: value.double() for name, value in learned(policy.model).items()})
    for name, first in start.items():
        once = 0.6 * seen[1][name] + 0.4 * first  # after step 2
        twice = 0.6 * seen[3][name] + 0.4 * once  # after step 4
        torch.testing.assert_close(hook.reference.weights[name].double(), twice, rtol=0, atol=1e-6)
    assert hook.metrics == {"reference/syncs": 2.0}
    mixed = policy.reference(decisions)
    assert all(torch.equal(learned(policy.model)[name].double(), value) for name, value in seen[3].items())
    put(policy.model, hook.reference.weights)
    torch.testing.assert_close(own(policy, decisions), mixed, rtol=0, atol=1e-6)


def test_soft_sync_goes_on_from_its_checkpoint():
    """The next mixture would start from the wrong reference."""
    policy, updater, decisions = made()
    hook = SoftSync(policy, None, updater, 0, every=1)
    updater.step(policy, decisions)
    hook.on_step_end(1, {})
    state, weights = thawed(hook.state_dict()), learned(policy.model)
    other, again, _ = made()
    resumed = SoftSync(other, None, again, 0, every=1)
    put(other.model, weights)
    resumed.load_state_dict(state)
    for each in (hook, resumed):
        each.on_step_end(2, {})
    assert torch.equal(policy.reference(decisions), other.reference(decisions)) and resumed.syncs == 2


def test_adapters_are_not_mixed():
    """The mean of two adapters' factors does not do the mean of what they do."""
    policy, updater, _ = made(ADAPTER)
    with pytest.raises(UserError, match="reference_reset"):
        SoftSync(policy, None, updater, 0)
    with pytest.raises(UserError, match="set every or kl"):
        ReferenceReset(policy, None, updater, 0, every=None, kl=None)


CHANGES = [
    *SMALL, "train.prompts_per_step=2", "train.group_size=2", "train.lr=1e-3", "train.lr_end=null",
    "eval.num_samples=2",
    "eval.every_steps=null", "log.trackers=[]", "log.checkpoint_every=1", "advantages=[{name: grpo, std: none}]",
    "losses=[ppo_clip, {name: kl, coef: 0.1}]", "reward_shaping=[{name: overlong, longest: 6, cache: 5}]",
    "callbacks=[{name: reference_reset, every: 2, kl: null}]",
]  # fmt: skip


def trained(folder, steps: int, resume: bool = False) -> list[str]:
    config = load_config("configs/gui_grounding.yaml", [*CHANGES, f"train.steps={steps}", f"out={folder}"])
    api.train(config, resume=resume)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if '"loss"' in line]


def test_a_resumed_run_is_the_straight_one(tmp_path):
    """A killed run would be resumed with another reference: its KL, and all that follows, would differ."""
    straight = trained(tmp_path / "straight", 5)
    trained(tmp_path / "killed", 3)  # a reset lies behind, and one before it
    assert trained(tmp_path / "killed", 5, resume=True) == straight
