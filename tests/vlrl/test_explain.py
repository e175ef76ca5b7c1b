"""`vlrl show --explain` and the reference: every key has a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from robot.deploy.config import Deploy, Served
from robot.trial.plan import Trial
from vlrl import cli, registry
from vlrl.config import Component, Config, MixturePart
from vlrl.contrib.preferences.labelling import PreferencesConfig
from vlrl.evaluation.compare import Comparison
from vlrl.imitation.configs import CloneConfig, LearnConfig, WarmstartConfig
from vlrl.imitation.reward_classifier import RewardConfig
from vlrl.offpolicy.config import OffPolicyConfig, PretrainConfig
from vlrl.recipe_checks import load_config
from vlrl.tools.option_help import FIELDS, OPTIONS, explain, field_help, option_help
from vlrl.tools.stages import Stages

ROOT = Path(__file__).parents[2]
TOP = (Config, MixturePart, Deploy, Served, Trial, Comparison, Stages, OffPolicyConfig, WarmstartConfig, CloneConfig,
       LearnConfig, RewardConfig, PreferencesConfig, PretrainConfig)  # fmt: skip
PLUGINS = [(kind, name) for kind in (*registry.HOMES, "task") for name in registry.names(kind)]


def sections_of(annotation: object) -> list[type[BaseModel]]:
    """Sections in an annotation, and those in their fields."""
    inner = [found for part in getattr(annotation, "__args__", ()) for found in sections_of(part)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not Component:
        inner += [annotation]
        for field in annotation.model_fields.values():
            inner += sections_of(field.annotation)
    return inner


SECTIONS = list(dict.fromkeys(found for top in TOP for found in sections_of(top)))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: f"{section.__module__}.{section.__name__}")
def test_every_field_has_a_sentence(section):
    """A user would read a key and have to read the code to learn what it does."""
    assert [name for name, text in field_help(section).items() if not text.strip()] == []


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_every_option_has_a_sentence(kind, name):
    """The same for options of tasks and methods."""
    texts = option_help(kind, name, registry.names(kind)[name])
    assert [option for option, text in texts.items() if not text.strip()] == []


def test_no_sentence_is_left_of_what_is_gone():
    """A renamed option would keep its old sentence in the table and have none itself."""
    plugins = {f"{kind}.{name}": registry.options_of(registry.names(kind)[name]) for kind, name in PLUGINS}
    assert [key for key in OPTIONS if key != "*" and key not in plugins] == []
    assert [(key, o) for key, texts in OPTIONS.items() if key != "*" for o in texts if o not in plugins[key]] == []
    fields = {f"{s.__module__.rpartition('.')[2]}.{s.__name__}": set(s.model_fields) for s in SECTIONS}
    fields |= {name: set() for name in {s.__name__ for s in SECTIONS}}
    for section in SECTIONS:
        fields[section.__name__] |= set(section.model_fields)
    assert [(key, f) for key, texts in FIELDS.items() if key != "*" for f in texts if f not in fields[key]] == []


def test_the_explained_config_is_the_config(tmp_path):
    """What is shown would differ from what runs."""
    config = load_config(ROOT / "configs" / "gui_grounding.yaml", ["losses=[ppo_clip, {name: kl, coef: 0.02}]"])
    file = tmp_path / "explained.yaml"
    file.write_text(explain(config))
    again = load_config(file)
    assert [part.name for part in again.losses] == ["ppo_clip", "kl"] and again.losses[1].options["coef"] == 0.02
    assert (again.train, again.policy, again.eval) == (config.train, config.policy, config.eval)
    assert set(yaml.safe_load(file.read_text())) == set(Config.model_fields)


def test_the_command_explains(capsys):
    """The option would be missing from the command."""
    assert cli.main(["show", str(ROOT / "configs" / "gui_grounding.yaml"), "--explain"]) == 0
    out = capsys.readouterr().out
    assert "# Learning rate." in out and "# Coefficient of the loss term." in out
