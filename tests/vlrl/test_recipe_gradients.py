"""The gradient of every recipe against its paper's formula (tests/vlrl/paper_formulas.py) and against TRL's losses.

The recipe's side is the product's: shaping, estimators, terms, weighing and updater as the trainer builds them.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vlrl import registry
from vlrl.batch import estimate, shaped
from vlrl.recipe_checks import load_config
from vlrl.types import Evaluation, Policy, Rollouts
from vlrl.update import updater

_spec = importlib.util.spec_from_file_location("paper_formulas", Path(__file__).with_name("paper_formulas.py"))
paper = sys.modules["paper_formulas"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(paper)
clip, k2, k3, sums, weighed = paper.clip, paper.k2, paper.k3, paper.sums, paper.weighed
completions, groups, tokens = paper.completions, paper.groups, paper.tokens

FOLDER = Path(__file__).parents[2] / "configs" / "recipes"
LENGTH = 12
TOKENS, COMPLETIONS = "tokens", "completions"


@dataclass(frozen=True)
class Formula:
    """A method as its paper has it.

    objective: what is minimised. advantage: of columns and what came before; a string: the test that compares the
    recipe's own advantages with the paper's, which are then given. reward: shaped rewards, or such a string.
    """

    objective: Callable
    advantage: Callable | str
    reward: Callable[[Rollouts], list[float]] | str | None = None
    turns: int = 1
    size: int = 4  # of a group
    before: int = 0  # steps that stateful parts have had
    middle: float = 0.0  # taken from the rewards, where those are values of both signs


def clipped(low: float = 0.2, high: float = 0.2, *, over: str | int = TOKENS, kl: float = 0.0, kind: Any = k3, **more):
    """PPO's surrogate, with a KL to the reference in the loss."""
    terms = [tokens(clip(low, high, **more), over)] + ([tokens(weighed(kl, kind), over)] if kl else [])
    return sums(terms)


GRPO, NONE = paper.grpo(), paper.centred
PLAIN = Formula(clipped(), GRPO)  # GRPO under another sampler, rollout strategy or task; every token counts the same
OPEN_R1 = Formula(clipped(over=COMPLETIONS, kl=0.04), paper.grpo(1e-4))  # GRPO as in open-r1 and TRL
DAPO = Formula(clipped(0.2, 0.28), GRPO)
SHAPING, CREDIT, TURNS = "test_shaping_terms.py", "test_step_credit.py", "test_turn_credit.py"
LASER = clipped(0.2, 0.28, kl=0.001)
REG_GRPO = sums([groups(paper.reg_grpo), tokens(weighed(0.1, k3), COMPLETIONS)])
STABLE = clipped(over=COMPLETIONS, kl=0.001, least=1e-3, most=1e3)


def ppo(
    gamma: float, lam: float, ddof: int | None = None, objective: Callable | None = None, *, reward=None, **more
) -> Formula:  # fmt: skip
    """PPO with a critic of turns, whose values are given."""
    return Formula(objective or clipped(), paper.gae(gamma, lam, ddof, **more), reward, turns=2, size=1, before=6)


def single(objective: Callable, advantage: Callable | str, before: int = 2) -> Formula:
    return Formula(objective, advantage, size=1, before=before)


FORMULAS = {
    **dict.fromkeys(
        (
            "arena_rl",
            "asearcher",
            "dump",
            "grm",
            "igrpo",
            "limr",
            "medix_r1",
            "odf",
            "polar",
            "progressive",
            "rlgf",
            "rorecomp",
            "rule_reasoner",
            "sec",
            "seele",
            "navigate",
            "snapshot_rl",
            "sws",
            "vade",
            "sasr",
        ),
        PLAIN,
    ),
    **dict.fromkeys(
        ("cls_rl", "jigsaw_r1", "no_thinking_cls_rl", "t_grpo", "ui_r1", "video_r1", "vision_r1", "vlm_r1_rec"), OPEN_R1
    ),
    **dict.fromkeys(("simple_vla_rl", "srpo", "srpo_released"), DAPO),
    **dict.fromkeys(("deepvideo_r1", "reg_grpo"), Formula(REG_GRPO, GRPO)),
    **dict.fromkeys(("fgaif", "gui_r1"), Formula(clipped(kl=0.01), GRPO)),
    **dict.fromkeys(("grpo", "soft_sync"), Formula(clipped(over=COMPLETIONS, kl=0.04), GRPO)),
    **dict.fromkeys(
        ("lmm_r1", "reinforce_pp_baseline"),
        Formula(clipped(kl=0.001, kind=k2), lambda c, past: paper.whitened(c, paper.per_token(c, NONE(c, past)))),
    ),
    **dict.fromkeys(("r1_reward", "stable_reinforce"), single(STABLE, paper.stable)),
    **dict.fromkeys(("tgrpo", "vlm_rm"), Formula(clipped(), paper.tgrpo, turns=2)),
    **dict.fromkeys(("carl", "g_ra_steps", "spa", "vla_rl", "vla_rl_process"), ppo(0.99, 0.95)),
    "a_grae": Formula(clipped(over=COMPLETIONS), paper.a_grae),
    "a_lol": single(completions(paper.a_lol), "test_success.py, test_mssr.py"),
    "archer": single(clipped(over=COMPLETIONS), TURNS, before=11),
    **dict.fromkeys(("eva", "search_self_play"), Formula(clipped(), TURNS, turns=2)),
    **dict.fromkeys(
        ("gkd", "opsd", "sdft", "sdpo"),
        Formula(tokens(paper.jensen_shannon, COMPLETIONS), lambda c, past: [0.0] * len(c.reward)),
    ),
    "opd": Formula(tokens(paper.reverse_kl, COMPLETIONS), lambda c, past: [0.0] * len(c.reward)),
    "auto_think": Formula(clipped(), GRPO, "test_group_rewards.py"),
    "cory": Formula(sums([clipped(), tokens(weighed(0.01, k2), TOKENS)]), TURNS, turns=2),
    "direct_advantage": replace(ppo(1.0, 0.0, objective=completions(paper.direct_advantage)), turns=1),
    "echo": Formula(clipped(), GRPO, turns=2),  # beside what is predicted, which these columns have none of
    "long2short_dpo": Formula(groups(paper.long2short_dpo), lambda c, past: c.reward.tolist()),
    "marft": Formula(clipped(), TURNS, turns=2, size=1, before=6),
    "rlsp": ppo(
        1.0, 0.95, 1, reward=lambda c: [0.8 * float(r) + 0.2 * paper.length(c, i) / 32 for i, r in enumerate(c.reward)]
    ),
    "robust": Formula(clipped(), GRPO, "test_group_rewards.py"),
    "spiral": Formula(clipped(), TURNS, turns=2, size=1),
    "t1": Formula(
        sums([clipped(), tokens(weighed(1e-3, k2), TOKENS), tokens(weighed(1e-3, paper.bonus), TOKENS)]),
        paper.leave_one_out,
    ),
    "areal": Formula(clipped(), GRPO),  # nothing was played by older weights here: test_decoupled.py
    "cispo": Formula(tokens(paper.cispo(5.0), TOKENS), GRPO),
    "cpl": Formula(groups(paper.step_apo), lambda c, past: c.reward.tolist(), middle=0.5),
    "copg": Formula(groups(paper.copg), lambda c, past: c.reward.tolist()),
    "dapo": replace(DAPO, reward=paper.overlong(3)),
    "deepseek_v32": Formula(
        sums([completions(paper.opsm(0.1)), tokens(weighed(1e-3, paper.weighted_k3), COMPLETIONS)]), GRPO
    ),
    "dgpo": Formula(clipped(), "test_group_advantages.py"),
    "dhpo": Formula(completions(paper.dhpo), GRPO),
    "digirl": Formula(tokens(paper.imitation, TOKENS), "test_digirl.py", turns=2, size=1),
    "disco": Formula(sums([groups(paper.disco), paper.trust_region]), lambda c, past: c.reward.tolist()),
    "dr_grpo": Formula(clipped(over=12), NONE),
    "dr_mas": Formula(clipped(), TURNS, turns=2),
    "g_ra": Formula(sums([clipped(), tokens(weighed(0.01, paper.bonus), TOKENS)]), GRPO, SHAPING),
    "gepo": Formula(groups(paper.gepo), lambda c, past: c.reward.tolist()),
    "ghpo": Formula(clipped(), paper.grpo(1e-4)),
    "gigpo": Formula(clipped(kl=0.01), CREDIT, turns=2),
    "gspo": Formula(completions(paper.gspo(3e-4, 4e-4)), GRPO),
    "gspo_token": Formula(completions(paper.gspo_token), "test_mssr.py"),
    "gui_g1": Formula(
        clipped(1.0, 1.0, over=64), lambda c, past: [a * float(w) for a, w in zip(NONE(c, past), c.weight, strict=True)]
    ),
    "kdrl": Formula(sums([clipped(), tokens(weighed(0.002, paper.distillation), TOKENS)]), GRPO),
    "kimi_k15": Formula(completions(paper.mirror_descent), NONE, paper.kimi_length),
    "kl_cov": Formula(paper.kl_cov, GRPO),
    "kl_in_reward": Formula(clipped(), NONE, paper.kl_in_reward(0.001)),
    "laser": Formula(LASER, GRPO, paper.laser),
    "laser_d": Formula(LASER, GRPO, SHAPING),
    "laser_de": Formula(LASER, GRPO, SHAPING),
    "latr": Formula(clipped(0.2, 0.28, kl=0.01), GRPO),
    "lite_ppo": Formula(clipped(), paper.batch_scaled),
    "llama_rl": Formula(tokens(paper.cispo(4.0), TOKENS), NONE),
    "luspo": Formula(completions(paper.luspo), GRPO),
    "mars": Formula(clipped(), TURNS, turns=2),
    "max_rl": Formula(clipped(), paper.max_rl),
    "mssr": single(clipped(0.2, 0.3, dual=3.0, kl=0.01), paper.mssr),
    "mvsr": single(clipped(0.2, 0.3, dual=3.0, kl=0.01), paper.mvsr),
    "ngrpo": Formula(clipped(0.16, 0.24), paper.grpo(virtual=1.0)),
    "noise_backward": Formula(clipped(), NONE, SHAPING),
    "noise_forward": Formula(clipped(), lambda c, past: paper.each(c, lambda i: float(c.reward[i])), SHAPING),
    "noisy_verifier": Formula(clipped(), GRPO, SHAPING),
    "observe_r1": Formula(clipped(over=COMPLETIONS), "test_group_advantages.py", SHAPING),
    "openvlthinker": Formula(clipped(kl=0.01), GRPO, lambda c: c.correct.tolist()),
    "overlong": Formula(clipped(), GRPO, paper.overlong(8)),
    "ppo": ppo(1.0, 0.95, 1),
    "ppo_hl_gauss": ppo(1.0, 0.95, 1),
    "prorl": Formula(clipped(0.2, 0.4, kl=1e-4), GRPO),
    "prs": Formula(clipped(), GRPO, SHAPING),
    "reinforce_pp": single(clipped(), paper.kl_return),
    "relift": Formula(tokens(paper.plain, 12), NONE),  # beside demonstrations, which these columns have none of
    "resip": ppo(0.999, 0.95, 1, bootstrap=False),
    "ript_vla": Formula(clipped(), paper.leave_one_out),
    "rl_plus": Formula(sums([tokens(paper.plain, 12), tokens(weighed(0.001, paper.bonus), 12)]), NONE),
    "rloo": Formula(completions(paper.rloo), paper.leave_one_out, paper.kl_in_reward(0.03)),
    "rover": Formula(tokens(paper.rover, TOKENS), NONE),
    "salt": Formula(clipped(), CREDIT, turns=2),
    "sapo": Formula(tokens(paper.sapo, COMPLETIONS), GRPO),
    "scope": Formula(clipped(kl=0.001), GRPO, "test_scope.py"),
    "seed_bench_r1": Formula(clipped(over=COMPLETIONS, kl=0.1), paper.grpo(1e-4)),
    "sophia_vl": Formula(clipped(over=COMPLETIONS, kl=0.04), GRPO, SHAPING),
    "spo": single(clipped(0.2, 0.28, dual=10.0), paper.spo),
    "ssr": Formula(clipped(0.2, 0.35), NONE),
    "t_ppo": single(clipped(0.2, 0.28), "test_egae.py", before=6),
    "temporal_r1": Formula(sums([clipped(kl=0.01), tokens(weighed(0.001, paper.bonus), TOKENS)]), GRPO),
    "top_entropy": Formula(clipped(0.2, 0.28), paper.top_entropy(0.2)),
    "trust_grpo": Formula(clipped(over=COMPLETIONS, kl=0.04), GRPO, SHAPING),
    "ttrl": Formula(clipped(kl=0.001), GRPO, SHAPING),
    "turn_gae": ppo(0.99, 0.9, 1, completions(paper.gspo(0.2, 0.2))),
    "ui_r1_e": replace(OPEN_R1, reward=SHAPING),
    "vespo": Formula(paper.vespo, GRPO),
    "webrl": Formula(completions(paper.direct_advantage), "test_webrl.py", turns=2, size=1),
    "vl_rethinker": Formula(clipped(0.2, 0.35), NONE),
    "vlaa_thinker": Formula(clipped(over=COMPLETIONS, kl=0.01), GRPO),
    "vlm_r1_od": Formula(clipped(over=COMPLETIONS), paper.grpo(1e-4)),
    "vspo": Formula(clipped(kl=0.001), GRPO),
}
WITHOUT = {  # recipes whose gradient no formula gives
    "clip_cov": "leaves out tokens that it draws at random: test_group_losses.py",
    "essa": "has no gradient: an evolution strategy, test_evolution.py",
}


class Table(torch.nn.Module, Policy):
    """A policy whose log-probabilities and entropies are its parameters."""

    def __init__(self, now: Tensor, entropy: Tensor, mask: Tensor):
        super().__init__()
        self.logprobs, self.entropy = torch.nn.Parameter(now.clone()), torch.nn.Parameter(entropy)
        self.mask, self.model = mask, self

    def evaluate(self, decisions: list[int]) -> Evaluation:
        logprobs = self.logprobs[decisions]  # the written token is the one candidate, all others the tail
        return Evaluation(logprobs, self.entropy[decisions], self.mask[decisions], logprobs[..., None])

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value) if name == "model" else super().__setattr__(name, value)


def columns(seed: int, size: int, turns: int) -> tuple[Rollouts, Tensor]:
    """A step of 12 prompts or 4 groups with ragged masks, and what the present policy makes of it: out of any range."""
    generator = torch.Generator().manual_seed(seed)
    normal = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    uniform = functools.partial(torch.rand, generator=generator, dtype=torch.float64)
    n = 16 if size > 1 else 12
    rows = n * turns
    group = torch.arange(n) // size
    lengths = torch.stack([1 + torch.randperm(LENGTH, generator=generator)[:size] for _ in range(n // size)]).flatten()
    mask = torch.arange(LENGTH) < lengths.repeat_interleave(turns)[:, None]
    logprobs = -(0.2 + normal(rows, LENGTH).abs())
    correct = (uniform(n) > 0.5).double()
    form = (uniform(n) > 0.3).double()
    reference = logprobs + 0.2 * normal(rows, LENGTH)
    rollouts = Rollouts(
        tuple(f"sample/{int(g)}" for g in group), (0.6 * correct + 0.2 * form + 0.2 * uniform(n)), group,
        torch.arange(n).repeat_interleave(turns), mask, logprobs * mask, normal(rows, LENGTH).abs() * mask,
        reference * mask, weight=0.5 + uniform(n), features=normal(rows, 3).float(), correct=correct, step=150,
        parts={"hit": correct, "accuracy": correct, "format": form, "iou": uniform(n), "thinking": uniform(n),
               "judged": correct, "embedded": form},
        texts=tuple(f"text {i} " * 3 for i in range(n)), process_reward=uniform(rows) - 0.5, truncated=uniform(n) > 0.5,
        final=normal(n, 3).float(), states=(2 * uniform(rows, 2)).round().float(),
        observation_keys=tuple(f"page {i}" for i in (2 * uniform(rows)).round().tolist()),
        action_keys=tuple(f"click {i}" for i in (2 * uniform(rows)).round().tolist()),
        answers=tuple(str(int(i)) for i in (2 * uniform(n)).round()), roles=("solver", "checker")[:turns] * n,
        teacher=(logprobs + 0.3 * normal(rows, LENGTH)) * mask,
    )  # fmt: skip
    rollouts = replace(rollouts, teacher_candidates=rollouts.teacher[..., None])
    return rollouts, (logprobs + 0.4 * normal(rows, LENGTH)) * mask


def critic_of(estimators: list[Any], rollouts: Rollouts) -> tuple[list[float], list[float]] | None:
    """What a critic says of the decisions and of what was shown last, before it learns from the step."""
    made = [each for each in estimators if type(each).__name__ == "Gae" and each.critics]
    if not made:
        return None
    turns = len(rollouts.features) // len(rollouts.final)
    roles = rollouts.roles if made[0].by_role else ("",) * len(rollouts.features)
    of_decisions = zip(rollouts.features, roles, strict=True)
    of_ends = zip(rollouts.final, roles[turns - 1 :: turns], strict=True)
    each = [[float(made[0].critics[role].values(x[None])) for x, role in pairs] for pairs in (of_decisions, of_ends)]
    return each[0], each[1]


def gradient_of(recipe: str, seed: int) -> tuple[Rollouts, Table, list[Tensor], list[Rollouts], Any, Tensor, Tensor]:
    """A step by the trainer's own parts: columns, policy, gradients; what came before; shaped rewards, advantages."""
    formula = FORMULAS[recipe]
    config = load_config(
        FOLDER / f"{recipe}.yaml", ["train.num_minibatches=1", "train.update_epochs=1", "train.optimizer=adamw"]
    )
    shaping = [registry.make("reward_shaping", c, f"reward_shaping.{i}") for i, c in enumerate(config.reward_shaping)]
    estimators = [registry.make("advantages", c, f"advantages.{i}") for i, c in enumerate(config.advantages)]
    past = [columns(seed + 100 + i, formula.size, formula.turns)[0] for i in range(formula.before)]
    for earlier in past:
        estimate(shaped(earlier, shaping), estimators)
    rollouts, now = columns(seed, formula.size, formula.turns)
    rollouts = replace(rollouts, reward=rollouts.reward - formula.middle)
    known = critic_of(estimators, rollouts)
    paid = shaped(rollouts, shaping)
    advantage = estimate(paid, estimators)
    policy, found = Table(now, rollouts.entropy.clone(), rollouts.mask), []
    made = updater(config, policy)

    def capture() -> Tensor:
        found.extend(p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in policy.parameters())
        return torch.zeros(())

    made.clip = capture
    made.step(list(range(len(now))), rollouts, advantage, (0, 0))
    return rollouts, policy, found, known if known is not None else past, paid.reward, advantage, now


def wanted(recipe: str, rollouts: Rollouts, now: Tensor, past: Any, paid: Tensor, advantage: Tensor) -> list[Tensor]:
    """The same step by the paper's formula."""
    formula = FORMULAS[recipe]
    if callable(formula.reward):
        reward = torch.tensor(formula.reward(rollouts), dtype=torch.float64)
        torch.testing.assert_close(paid, reward, rtol=1e-9, atol=1e-9)
    rollouts = replace(rollouts, reward=paid)
    credit = advantage.tolist() if isinstance(formula.advantage, str) else formula.advantage(rollouts, past)
    rows = credit if isinstance(credit[0], list) else paper.per_token(rollouts, credit)
    leaves = [now.clone().requires_grad_(), rollouts.entropy.clone().requires_grad_()]
    formula.objective(rollouts, leaves[0], leaves[1], rows).backward()
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


def test_every_recipe_is_compared_or_says_why_not():
    """A new recipe would name a paper whose gradient nobody has looked at."""
    assert set(FORMULAS) | set(WITHOUT) == {file.stem for file in FOLDER.glob("*.yaml")}
    assert not set(FORMULAS) & set(WITHOUT)
    named = [each for f in FORMULAS.values() for each in (f.advantage, f.reward) if isinstance(each, str)]
    for name in {part for text in named for part in text.split(", ")}:
        assert Path(__file__).with_name(name).is_file(), name


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("recipe", FORMULAS)
def test_the_gradient_is_the_papers(recipe, seed):
    """A run would follow another objective than the one that its recipe names."""
    rollouts, _, found, past, paid, advantage, now = gradient_of(recipe, seed)
    expected = wanted(recipe, rollouts, now.double(), past, paid, advantage)
    assert expected[0].abs().max() > 1e-6
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


# -- TRL's own code ----------------------------------------------------------------------------------------------------


class Alone:
    """What TRL's losses ask of accelerate, with one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, values: Tensor) -> Tensor:
        return values

    def pad_across_processes(self, values: Tensor, dim: int, pad_index: float) -> Tensor:
        return values

    def reduce(self, values: Tensor, reduction: str) -> Tensor:
        return values


def trl_gradient(trainer: type, rollouts: Rollouts, now: Tensor, advantage: Tensor, **options: Any) -> Tensor:
    """The gradient of TRL's loss, called on a trainer that has no model but these log-probabilities."""
    leaf, rows, none = now.clone().requires_grad_(), len(now), torch.zeros(len(now), 0, dtype=torch.long)
    defaults = {
        "beta": 0.0, "importance_sampling_level": "token", "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2,
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False, "aux_loss_enabled": False,
        "max_completion_length": LENGTH, "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False,
        "vllm_importance_sampling_correction": False, "tools": None, "accelerator": Alone(),
        "_metrics": defaultdict(lambda: defaultdict(list)), "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(
            delta=None, use_bias_correction_kl=options.pop("use_bias_correction_kl", False), steps_per_generation=1,
            sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0,
            vespo_lambda_neg=2.0,
        ),
        "_get_per_token_logps_and_entropies": lambda *a, **k: (leaf, rollouts.entropy, None),
    }  # fmt: skip
    mask = rollouts.mask.long()
    inputs = {
        "prompt_ids": none, "prompt_mask": none, "completion_ids": torch.zeros(rows, LENGTH, dtype=torch.long),
        "completion_mask": mask, "advantages": advantage, "old_per_token_logps": rollouts.logprobs,
        "ref_per_token_logps": rollouts.reference, "old_logps": (rollouts.logprobs * mask).sum(1),
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    methods = ("get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask")
    own = {name: getattr(trainer, name) for name in methods if hasattr(trainer, name)}
    stand_in = SimpleNamespace(**defaults | own | options)
    if own:
        stand_in.get_high_entropy_mask = functools.partial(own["get_high_entropy_mask"], stand_in)
    trainer._compute_loss(stand_in, None, inputs).backward()
    return leaf.grad


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("grpo", {"beta": 0.04}),
        ("vlm_r1_rec", {"beta": 0.04}),
        ("dr_grpo", {"loss_type": "dr_grpo"}),
        ("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
        ("lite_ppo", {"loss_type": "dapo"}),
        ("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}),
        ("gspo", {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
        ("rloo", {}),
        ("sapo", {"loss_type": "sapo"}),
        ("vespo", {"loss_type": "vespo"}),
        (
            "luspo",
            {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        ),
        ("deepseek_v32", {"beta": 1e-3, "off_policy_mask_threshold": 0.1, "use_bias_correction_kl": True}),
        ("top_entropy", {"loss_type": "dapo", "epsilon_high": 0.28, "top_entropy_quantile": 0.2}),
        ("max_rl", {"loss_type": "dapo"}),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_is_trls(recipe, options, seed):
    """Who comes from TRL with its settings would train something else here under the same name."""
    from trl import GRPOTrainer, RLOOTrainer

    rollouts, _, found, _, _, advantage, now = gradient_of(recipe, seed)
    trainer = RLOOTrainer if recipe == "rloo" else GRPOTrainer
    credit = GRPO(rollouts, None) if recipe == "top_entropy" else advantage[:, 0]  # TRL takes the tokens out itself
    expected = trl_gradient(trainer, rollouts, now, torch.as_tensor(credit, dtype=now.dtype), **options)
    torch.testing.assert_close(found[0], expected * rollouts.mask, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_on_policy_distillation_is_trls(seed, monkeypatch):
    """Who comes from TRL's self-distillation by sampled tokens would learn something else here under the same name.

    TRL reads logits: two of them, of the written token and of all others, whose softmax is the probability itself.
    """
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.sdpo import loss_utils

    rollouts, _, found, _, _, _, now = gradient_of("opd", seed)
    mask, ids = rollouts.mask, torch.zeros_like(now, dtype=torch.long)
    able = mask & (now < -0.01) & (rollouts.teacher < -0.01)  # random columns hold some that are no probabilities
    leaf = now.where(able, -1.0).requires_grad_()
    rows = (leaf, rollouts.teacher.where(able, -1.0))
    student, teacher = (torch.stack([row, (1 - row.exp()).log()], dim=-1) for row in rows)
    loss = loss_utils.compute_sampled_token_self_distillation_loss(student, teacher, ids, distillation_alpha=1.0)
    loss = loss_utils.apply_importance_sampling_clipping(loss, leaf, rollouts.logprobs, clip_coeff=1e9)
    ((loss * mask).sum(1) / mask.sum(1)).mean().backward()
    assert able.sum() > 0.5 * mask.sum()
    torch.testing.assert_close(found[0] * able, leaf.grad * able, rtol=1e-6, atol=1e-9)
