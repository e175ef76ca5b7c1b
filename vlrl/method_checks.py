"""What the tests and recipes of the repository hold each method to."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from vlrl.decoders import load_yaml

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "vlrl"
# worked examples of tests/golden/algorithms.json -> the methods that equal them
GOLDEN = {
    "grpo_advantage": ("group",), "drgrpo_advantage": ("group",), "liteppo_advantage": ("group",),
    "rloo_advantage": ("leave_one_out",), "ngrpo_advantage": ("ngrpo",), "a_grae_advantage": ("a_grae",),
    "observe_r1_advantage": ("shortest_bonus", "middling"), "trust_grpo_reward": ("trust",),
    "reinforcepp_baseline_advantage": ("group", "whiten"), "stable_reinforce": ("sigma_filter", "stable_clip"),
    "spo_tracker_sampler": ("spo_tracker", "uncertainty"), "tppo_egae": ("gae", "egae"),
    "mssr_forgetting_rate": ("beta_tracker",), "mssr_value_tracker": ("beta_tracker",),
    "mssr_advantage_shaping": ("batch_norm", "entropy_shaping"), "mssr_full_step": ("ppo_clip", "kl", "beta_tracker"),
    "ppo_clip_seqmean": ("ppo_clip", "sequence_mean"), "dapo_clip_higher_tokenmean": ("ppo_clip", "token_mean"),
    "easyr1_mssr_policy_loss": ("ppo_clip", "token_mean"), "token_mean_scope": ("token_mean",),
    "drgrpo_loss_const": ("constant",), "kl_estimators": ("kl", "kl_in_reward"), "gspo_loss": ("gspo", "gspo_token"),
    "dhpo_loss_reconstruction": ("dhpo",), "cov_entropy_control": ("clip_cov", "kl_cov"), "disco_loss": ("disco",),
    "dapo_overlong": ("overlong",), "noisy_verifier_correction": ("noise_backward", "noise_forward"),
    "laser_reward": ("laser", "laser_d", "laser_de"), "vade_counts": ("vade",), "curriculum_shares": ("curriculum",),
    "ssr_draw": ("ssr",), "latr_tree": ("latr",), "essa_singular_values": ("essa",), "essa_generation": ("essa",),
    "gigpo_advantage": ("gigpo",), "reg_grpo_loss": ("reg_grpo",),
}  # fmt: skip
# runs that learned: plug-in -> page of docs/ that shows one
LEARNED = {
    "group": "results.md", "ppo_clip": "results.md", "reg_grpo": "results.md", "beta_tracker": "manipulation.md",
    "batch_norm": "manipulation.md", "entropy_shaping": "manipulation.md", "digirl": "gui_agent.md",
    "replay": "gui_agent.md", "likelihood": "gui_agent.md", "relift": "results.md", "sft": "results.md",
    "ssr": "results.md", "latr": "results.md", "vade": "results.md", "filter_refill": "results.md",
}  # fmt: skip
LAWFUL = ("shaping", "advantages", "losses", "weighing")  # kinds that tests/vlrl/test_laws.py runs through


def checks(kind: str, name: str) -> list[str]:
    """What a method is held to."""
    found = []
    if numbers := [number for number, methods in GOLDEN.items() if name in methods]:
        found.append(f"golden ({', '.join(numbers)})")
    found += ["laws"] if kind in LAWFUL else []
    found += ["runs"] if recipes_with(kind, name) else []
    found += [f"learned ([docs/{LEARNED[name]}]({LEARNED[name]}))"] if name in LEARNED else []
    return found


@cache
def exemptions() -> dict[str, dict[str, str]]:
    """`EXEMPT` of tests/vlrl/test_laws.py: kind.name -> law -> reason."""
    tree = ast.parse((TESTS / "test_laws.py").read_text(encoding="utf-8"))
    tables = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "EXEMPT"]
    return ast.literal_eval(tables[0])


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    """What each recipe says itself, without its base."""
    files = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
    return {file.stem: load_yaml(file) for file in files}


def recipes_with(kind: str, name: str) -> list[str]:
    """Recipes that name a method themselves."""
    return [stem for stem, recipe in _recipes().items() if name in _named(recipe.get(kind))]


def _named(section: Any) -> list[str]:
    """The plug-ins that a section names: bare, with options, or a list of either."""
    entries = section if isinstance(section, list) else [section]
    return [entry["name"] if isinstance(entry, dict) else entry for entry in entries if entry]
