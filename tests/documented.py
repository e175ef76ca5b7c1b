"""Checks command lines of `vlrl` and YAML of the documentation, as the commands do before they start any work."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from robot.deploy import config as deploys
from robot.trial import plan as trials
from vlrl import registry
from vlrl.cli import parsed
from vlrl.config import Config, load_as
from vlrl.contrib.preferences.labelling import PreferencesConfig
from vlrl.contrib.preferences.labelling import config_load as labelling_config_load
from vlrl.evaluation import score
from vlrl.evaluation.benchmarks import read_settings
from vlrl.evaluation.compare import Comparison
from vlrl.evaluation.compare import plan_plan as compared
from vlrl.imitation.configs import CloneConfig, LearnConfig, WarmstartConfig
from vlrl.imitation.reward_classifier import RewardConfig
from vlrl.offpolicy import config as offpolicy
from vlrl.offpolicy.config import PretrainConfig, pretrain_config_load
from vlrl.recipe_checks import load_config
from vlrl.tools import option_help, stages
from vlrl.tools.stages import plan_plan as staged
from vlrl.tools.start import is_data
from vlrl.types import UserError

Load = Callable[[str, Sequence[str]], Any]
BLANK = re.compile(r"[A-Z][A-Z_]+(\.jsonl)?|\w*MODEL\w*")  # CONFIG, DIR: what a reader puts in


def read_as(section: Any) -> Load:
    return lambda path, changes: load_as(section, path, changes)


# The kinds of YAML: the section that its keys belong to, who reads it, what lies beneath a part of one, its folder.
KINDS: list[tuple[Any, Load, str | None, str]] = [
    (Config, load_config, "configs/gui_grounding.yaml", "."),
    (deploys.Deploy, deploys.load, "configs/deploy/so101_emulator.yaml", "."),
    (trials.Trial, lambda path, changes: trials.load_trial(path, changes, manual=False), None, "."),
    (Comparison, compared, None, "configs/compare"),
    (stages.Stages, staged, None, "configs/stages"),
    (offpolicy.OffPolicyConfig, offpolicy.load, "configs/offpolicy_push.yaml", "."),
    (WarmstartConfig, read_as(WarmstartConfig), "configs/models/embedded.yaml", "."),
    (CloneConfig, read_as(CloneConfig), None, "."),
    (LearnConfig, read_as(LearnConfig), None, "."),
    (RewardConfig, read_as(RewardConfig), None, "."),
    (PreferencesConfig, labelling_config_load, "configs/preferences_push.yaml", "."),
    (PretrainConfig, pretrain_config_load, None, "."),
]
READERS: dict[str, Load] = {
    **dict.fromkeys(("train", "eval", "show", "select", "record", "best-of", "demos", "simulate", "plan"), load_config),
    "compare": compared, "stages": lambda path, changes: staged(path, [c for c in changes if c[:7] != "stages="]),
    "offpolicy": offpolicy.load, "preferences": labelling_config_load, "pretrain": pretrain_config_load,
    "warmstart": read_as(WarmstartConfig), "clone": read_as(CloneConfig), "learn": read_as(LearnConfig),
    "reward-model": read_as(RewardConfig), "deploy": deploys.load, "replay": deploys.load,
    "trial": lambda path, changes: trials.load_trial(path, changes, manual=False),
}  # fmt: skip


def check_command(arguments: list[str]) -> None:
    """Parses a command line of `vlrl` and reads what it names: configs with their changes, tasks, rewards.

    Raises:
        UserError: as the command would.
        SystemExit: no such command or option; argparse has said why on stderr.
    """
    options = parsed(arguments)
    config, changes = getattr(options, "config", None), list(getattr(options, "changes", []))
    changes += [f"policy.model={options.model}"] if options.command in ("eval", "best-of") and options.model else []
    if options.command == "train" and config and is_data(config):
        config = f"{Path(config).stem}.yaml"  # as the command writes it: tests/vlrl/test_start.py
        Path(config).write_text("base: configs/gui_grounding.yaml\n", encoding="utf-8")
    if options.command == "eval" and options.benchmark:
        read_settings(options.model or config, changes)
    elif options.command in READERS and config and not BLANK.fullmatch(config):
        kept = tuple(change for change in changes if not BLANK.fullmatch(change))
        (_read_bundled if config.startswith("configs/") else _read)(options.command, config, kept)
    _check_names(options)


def _read(command: str, config: str, changes: tuple[str, ...]) -> None:
    READERS[command](config, list(changes))


_read_bundled = functools.cache(_read)  # many pages show the same command


def _check_names(options: argparse.Namespace) -> None:
    if options.command == "demo":
        load_config("configs/gui_grounding.yaml", options.changes)
    if options.command == "check-task" and options.name and not BLANK.fullmatch(options.name):
        registry.find("task", options.name)
    if options.command == "score" and options.name.endswith(".yaml"):
        load_config(options.name, ())
    elif options.command == "score" and not BLANK.fullmatch(options.name):
        score.make_scorer(options.name)
    if options.command == "list":
        option_help.search(" ".join(options.search)) if options.search else option_help.listing(options.kind)


def check_yaml(text: str, keys: set[str], folder: Path) -> None:
    """Reads a config, or a part of one laid over a config of its kind, in a folder that has `configs`.

    Raises:
        UserError: no command reads keys like these, or the one that does refuses it.
    """
    for section, load, base, place in KINDS:
        if keys - {"base"} <= set(section.model_fields):
            path = folder / place / "block.yaml"
            beneath = f"base: {folder / base}\n" if base and "base" not in keys else ""
            path.write_text(beneath + text, encoding="utf-8")
            load(str(path), ())
            return
    raise UserError(f"no command reads a YAML with the keys {', '.join(sorted(keys))}")


def check_imports(nodes: Sequence[Any]) -> None:
    """Follows the import statements of a syntax tree.

    Raises:
        ImportError, AttributeError: what they name is not there.
    """
    for node in nodes:
        for name in node.names:
            module = importlib.import_module(getattr(node, "module", None) or name.name)
            if hasattr(node, "module") and not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
