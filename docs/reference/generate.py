"""The generated part of the site, added while MkDocs builds it: methods, tasks, keys, notebooks.

Methods' pages are made of docstrings, of the recipes that name them, and of what the tests check.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from robot.deploy.config import Deploy
from robot.trial.plan import Trial
from vlrl import methods as vlrl_methods
from vlrl import registry
from vlrl.cli.help import read_errors
from vlrl.config import EASYR1, TRL, VERL, Component, Config, find_section
from vlrl.contrib.preferences.labelling import PreferencesConfig
from vlrl.decoders import load_yaml
from vlrl.evaluation.compare import Comparison
from vlrl.imitation.configs import CloneConfig, LearnConfig, WarmstartConfig
from vlrl.imitation.reward_classifier import RewardConfig
from vlrl.offpolicy.config import OffPolicyConfig, PretrainConfig
from vlrl.tools.option_help import field_help, option_help
from vlrl.tools.stages import Stages
from vlrl.tools.start import PEERS, format_table

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "vlrl"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# worked examples of tests/golden/algorithms.json -> the methods that equal them
GOLDEN = {
    "grpo_advantage": ("grpo",), "drgrpo_advantage": ("grpo",), "liteppo_advantage": ("grpo",),
    "rloo_advantage": ("leave_one_out",), "ngrpo_advantage": ("ngrpo",), "a_grae_advantage": ("a_grae",),
    "observe_r1_advantage": ("shortest_bonus", "middling"), "trust_grpo_reward": ("trust",),
    "reinforcepp_baseline_advantage": ("grpo", "whiten"), "stable_reinforce": ("sigma_filter", "stable_clip"),
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
    "gigpo_advantage": ("gigpo",), "reg_grpo_loss": ("reg_grpo",), "sapo_loss": ("sapo",), "vespo_loss": ("vespo",),
    "luspo_loss": ("luspo",), "deepseek_v32_loss": ("opsm", "kl"), "top_entropy_mask": ("top_entropy",),
    "max_rl_advantage": ("max_rl",), "direct_advantage_loss": ("direct_advantage",), "rae_advantage": ("rae",),
    "long2short_dpo_loss": ("long2short_dpo",), "robust_reward": ("robust",), "auto_think_reward": ("auto_think",),
    "engine_weights": ("truncated_weights",), "hierarchical_advantage": ("hierarchical",),
    "webrl_advantage": ("webrl_advantage",), "step_apo_loss": ("step_apo",),
}  # fmt: skip
# runs that learned: plug-in -> page of docs/ that shows one
LEARNED = {
    "grpo": "results.md", "ppo_clip": "results.md", "reg_grpo": "judged.md", "beta_tracker": "manipulation.md",
    "batch_norm": "manipulation.md", "entropy_shaping": "manipulation.md", "digirl": "gui_agent.md",
    "replay": "gui_agent.md", "likelihood": "gui_agent.md", "relift": "judged.md", "sft": "judged.md",
    "sapo": "judged.md", "luspo": "judged.md", "max_rl": "judged.md", "top_entropy": "judged.md", "latr": "judged.md",
    "opsm": "papers.md", "distill": "papers.md", "generalized_jsd": "papers.md", "ssr": "results.md",
}  # fmt: skip
# kinds that tests/vlrl/test_laws.py runs through
LAWFUL = ("reward_shaping", "advantages", "losses", "loss_aggregation")


def checks(kind: str, name: str) -> list[str]:
    """What a method is held to."""
    found = []
    if numbers := [number for number, methods in GOLDEN.items() if name in methods]:
        found.append(f"golden ({', '.join(numbers)})")
    found += ["laws"] if kind in LAWFUL else []
    found += ["runs"] if recipes_with(kind, name) else []
    found += [f"learned ([{LEARNED[name].removesuffix('.md')}](../../{LEARNED[name]}))"] if name in LEARNED else []
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


KINDS = {
    "sampler": "Samplers: which prompts a step asks",
    "rollout_strategy": "Rollout strategies: where a step's episodes come from",
    "process_rewards": "Process rewards: what the steps of an episode earned",
    "reward_shaping": "Reward shaping: what a reward alone cannot see",
    "advantages": "Advantages: in the order of the list",
    "replay_mixing": "Replay and mixing: what a step learns from, once its advantages are known",
    "losses": "Losses: each times its coef, added",
    "loss_aggregation": "Loss aggregation: how much each token counts",
    "callbacks": "Callbacks: what happens between steps",
    "agent": "Agents: what learns off-policy",
    "source": "Sources: transitions that an off-policy run is given (a list under `offline`)",
    "judge": "Judges: in which of two moments a goal is nearer (`vlrl preferences`)",
}

CONFIGS: dict[str, type[BaseModel]] = {
    "vlrl train": Config,
    "vlrl offpolicy": OffPolicyConfig,
    "vlrl warmstart": WarmstartConfig,
    "vlrl clone": CloneConfig,
    "vlrl compare": Comparison,
    "vlrl stages": Stages,
    "vlrl deploy": Deploy,
    "vlrl trial": Trial,
    "vlrl learn": LearnConfig,
    "vlrl reward-model": RewardConfig,
    "vlrl preferences": PreferencesConfig,
    "vlrl pretrain": PretrainConfig,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs's hook: adds the pages of the reference to the files of the site."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """Every generated page: path below docs/ -> Markdown."""
    return {f"reference/methods/{kind}.md": _page(kind) for kind in KINDS} | {
        "reference/methods/task.md": _tasks(),
        "reference/keys.md": _keys(),
        "reference/peers.md": _peers(),
        "reference/errors.md": _errors(),
        **{f"notebooks/{file.stem}.md": _notebook(file) for file in NOTEBOOKS},
        **{f"notebooks/{file.name}": file.read_text(encoding="utf-8") for file in NOTEBOOKS},
    }


def _notebook(file: Path) -> str:
    """A notebook's cells, and where it can be had."""
    blocks = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        shell = text.startswith("!")
        code = f"```{'bash' if shell else 'python'}\n{text.removeprefix('!').replace(chr(10) + '!', chr(10))}\n```"
        blocks.append(text if cell["cell_type"] == "markdown" else code)
    return "\n\n".join([blocks[0], f"As a notebook: [{file.name}]({file.name}).", *blocks[1:]]) + "\n"


def _errors() -> str:
    """What each code of an error means."""
    head = "# Errors\n\nThe code stands in brackets behind an error's message; `vlrl explain CODE` prints its entry.\n"
    entries = (
        f"\n## {code}\n\n**{entry['subject'].capitalize()}.** {entry['means']}\n\n{entry['remedy']}\n"
        for code, entry in read_errors().items()
    )
    return head + re.sub(r"\]\((?!https?:)", "](../", "".join(entries))


def _tasks() -> str:
    lines = [
        "# Options of tasks",
        "",
        "`task` in a configuration. How tasks are written: [own task](../../guides/own_task.md).",
        "",
    ]
    for name, target in registry.names("task").items():
        about = (inspect.getdoc(inspect.getmodule(target)) or "").partition("\n")[0]
        lines += [f"## {name}", "", about, "", *_options("task", name, target), ""]
    return "\n".join(lines)


def _keys() -> str:
    """A table for each section of the configs of all commands."""
    lines = ["# Keys of all configs", "", "By command; a section that several commands share stands once.", ""]
    done: set[type[BaseModel]] = set()
    for command, section in CONFIGS.items():
        lines += [f"## {command}", ""]
        for each in [section, *_inner(section)]:
            if each not in done:
                lines += [f"### {each.__name__}", "", "| key | default | |", "| --- | --- | --- |", *_rows(each), ""]
            done.add(each)
    return "\n".join(lines)


def _peers() -> str:
    """The tables that `vlrl import-config` and the refusals of a configuration read."""
    head = (
        "# Keys of TRL, verl and EasyR1\n\nIn brackets: what differs. `vlrl import-config FILE` translates a file by "
        "these tables; a configuration here that uses their keys is refused with ours; `vlrl list --search KEY` finds "
        "them. How to move: [coming from](../coming_from.md).\n"
    )
    return head + "".join(f"\n## {peer}\n\n{format_table(peer)}\n" for peer in PEERS)


def _inner(section: Any) -> list[type[BaseModel]]:
    """Sections in the fields of a section, or in an annotation."""
    is_section = isinstance(section, type) and issubclass(section, BaseModel)
    parts = (
        [field.annotation for field in section.model_fields.values()]
        if is_section
        else getattr(section, "__args__", ())
    )
    found = [inner for part in parts for inner in ([part] if _is_section(part) else []) + _inner(part)]
    return list(dict.fromkeys(found))


def _is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel) and part is not Component


def _rows(section: type[BaseModel]) -> Iterator[str]:
    for name, text in field_help(section).items():
        default = section.model_fields[name].get_default(call_default_factory=True)
        plain = default.name if isinstance(default, Component) else default
        shown = "" if default is PydanticUndefined or _is_section(type(default)) else f"`{plain!r}`".replace("|", "/")
        names = ", ".join(_synonyms().get((section, name), ()))
        described = f"{text.rstrip('.')}; elsewhere {names}" if names else text
        yield f"| `{name}` | {shown} | {described.replace('|', '/')} |"


@cache
def _synonyms() -> dict[tuple[Any, str], list[str]]:
    """What TRL, verl and EasyR1 call what a field of a section says, which the site's search then finds."""
    found: dict[tuple[Any, str], list[str]] = {}
    for peer, table in (("TRL", TRL), ("verl", VERL), ("EasyR1", EASYR1)):
        for name, key in table.items():
            *sections, last = key.partition(" ")[0].split(".")
            section: Any = Config
            for part in sections:
                section = find_section(section.model_fields[part].annotation)
            found.setdefault((section, last), []).append(f"`{name}` ({peer})")
    return found


def _page(kind: str) -> str:
    lines = [
        f"# {KINDS[kind]}",
        "",
        f"`{kind}` in a configuration. What *needs* and *checked* mean: [methods](../../methods.md).",
        "",
    ]
    for name, target in registry.names(kind).items():
        lines += [f"## {name}", "", *_entry(kind, name, target), ""]
    return "\n".join(lines)


def _entry(kind: str, name: str, target: Any) -> Iterator[str]:
    about = registry.describe(target)
    yield f"{_body(target)}\n"
    yield from _options(kind, name, target)
    if about["needs"]:
        yield f"- needs: {about['needs']}"
    if lacks := vlrl_methods.of(target).lacks:
        yield f"- does not give: {', '.join(lacks)}"
    yield f"- source: {about['source']}"
    if used := recipes_with(kind, name):
        yield f"- recipes: {', '.join(used)}"
    if held := checks(kind, name):
        yield f"- checked: {'; '.join(held)}"
    for law, reason in exemptions().get(f"{kind}.{name}", {}).items():
        yield f"- exempt from the law {law}: {reason}"


def _body(target: Any) -> str:
    """A docstring without its sections of arguments, results and errors."""
    return re.split(r"^(?:Args|Returns|Raises):$|^-> ", inspect.getdoc(target) or "", flags=re.MULTILINE)[0].strip()


def _options(kind: str, name: str, target: Any) -> Iterator[str]:
    """A line for each option: name, default, what it means."""
    for option, text in option_help(kind, name, target).items():
        default = registry.options_of(target)[option][1]
        yield f"- `{option}`{'' if default is ... else f' = `{default!r}`'}: {text}"
