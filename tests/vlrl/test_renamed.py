"""Keys of older versions, of TRL and of verl: refused with the right one; older runs go on."""

from __future__ import annotations

import functools
import json

import pytest
import yaml

from vlrl import config as configs
from vlrl import registry
from vlrl.config import EARLIER, RENAMED, Config, load_as, migrate
from vlrl.offpolicy.config import OffPolicyConfig
from vlrl.recipe_checks import load_config
from vlrl.types import SYNONYMS, UserError

PLAIN = {"task": {"name": "manipulation"}, "out": "x"}
OLD = """# vlrl 0.9
task: {name: manipulation, ticks: 50}
out: x
train: {prompts: 3, minibatches: 2, epochs: 4, lr: 0.1}
eval: {every: 7, samples: 9}
log: {keep: 5}
data: {on_bad: skip}
rollouts: {name: filter_refill}
advantages: [{name: group, std: none}]
shaping: [shortest_bonus]
weighing: sequence_mean
"""


def sections(path):
    """The fields of a section by its dotted path; () for what is no section."""
    model = Config
    for part in path:
        model = model.model_fields[part].annotation
    return model.model_fields


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_every_old_key_is_refused_with_the_new_one(tmp_path, old):
    """Who comes from an older version, TRL or verl writes these, and the nearest spelling is often another thing."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(PLAIN))
    load = functools.partial(load_as, OffPolicyConfig) if old in ("batch", "warmup") else load_config
    with pytest.raises(UserError) as refusal:
        load(tmp_path / "c.yaml", [{old: 1}])
    assert f"is called {RENAMED[old]}" in str(refusal.value) and old.partition(".")[0] in str(refusal.value)


@pytest.mark.parametrize("new", sorted({value.split()[0] for value in RENAMED.values()}))
def test_every_new_key_is_there(new):
    """A message must not lead to another refusal."""
    known = {*Config.model_fields, *OffPolicyConfig.model_fields, "warmup_steps"}
    section, _, key = new.partition(".")
    if section == "task":
        assert key == "weights" or key in registry.options_of(registry.find("task", "manipulation"))
    elif section == "policy" and key.startswith("lora."):
        assert key.removeprefix("lora.") in configs.Lora.model_fields
    else:
        assert section in known and (not key or key in sections([section]))


@pytest.mark.parametrize("section", ["trainer.learning_rate", "train.learning_rate", "actor_rollout_ref.rollout.n"])
def test_a_key_is_known_in_the_sections_of_others(tmp_path, section):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(PLAIN))
    with pytest.raises(UserError, match=r"is called train\.(lr|group_size)"):
        load_config(tmp_path / "c.yaml", [f"{section}=8"])


def test_a_method_is_suggested_by_its_meaning():
    """`group` was the name of what everybody calls GRPO; `tgrpo` is only spelled alike."""
    names = [name for kind in registry.HOMES for name in registry.names(kind)]
    assert set(SYNONYMS.values()) <= set(names)
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        registry.find("advantages", "group")
    with pytest.raises(UserError, match="did you mean 'leave_one_out'"):
        registry.find("advantages", "rloo")


def test_the_configuration_of_an_older_run_is_read(tmp_path):
    """Its run goes on by `--resume`, and `vlrl eval RUN/config.yaml` scores it."""
    (tmp_path / "config.yaml").write_text(OLD)
    with pytest.raises(UserError, match=r"train\.prompts: unknown key, is called train\.prompts_per_step"):
        load_config(tmp_path / "config.yaml")  # no run lies here: somebody's own file
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0}) + "\n")
    config = load_config(tmp_path / "config.yaml", ["train.prompts_per_step=4"])
    assert (config.train.prompts_per_step, config.train.num_minibatches, config.train.update_epochs) == (4, 2, 4)
    assert (config.eval.every_steps, config.log.keep_checkpoints, config.data.on_bad_row) == (7, 5, "skip")
    assert config.task.options == {"horizon": 50} and config.rollout_strategy.name == "filter_refill"
    assert config.advantages[0].name == "grpo" and config.loss_aggregation.name == "sequence_mean"


def test_new_configurations_stay_as_they_are():
    new = load_config("configs/recipes/grpo.yaml").model_dump(mode="json")
    assert migrate(new) == new


def test_an_older_checkpoint_names_no_changes():
    """Otherwise --resume would ask for --allow-changes, though nothing but names has changed."""
    config = load_config("configs/recipes/grpo.yaml")
    new, older = config.model_dump(mode="json"), {value: key for key, value in EARLIER.items() if "." not in key}
    before = {older.get(key, key): value for key, value in new.items()}
    before["train"] = {key.replace("prompts_per_step", "prompts"): value for key, value in new["train"].items()}
    assert before != new and configs.find_changes(before, config) == {}


def spell_old(values, section=""):
    """A configuration's values under the names of before."""
    older = {new: old for old, new in EARLIER.items()}
    if isinstance(values, list):
        return [spell_old(value, section) for value in values]
    if not isinstance(values, dict):
        return values
    names = {key: older.get(f"{section}.{key}" if section else key, key).rpartition(".")[2] for key in values}
    return {names[key]: spell_old(value, key) for key, value in values.items()}


@pytest.mark.slow
def test_an_older_run_folder_resumes(train, tmp_path):
    """Days of training in a folder of the last version would be lost to a new spelling."""
    small = ("train.prompts_per_step=2", "eval.num_samples=2", "eval.batch_size=2", "log.trackers=[]", "out=run")
    assert train(tmp_path, "gui_grounding", "train.steps=2", *small) == 0
    file = tmp_path / "run" / "config.yaml"
    older = spell_old(yaml.safe_load(file.read_text()))
    assert {"prompts", "minibatches", "epochs"} < older["train"].keys() and "weighing" in older
    file.write_text(yaml.safe_dump(older))
    assert train(tmp_path, "--resume", "run", "train.steps=3") == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "reward" in row] == [1, 2, 3]
    assert "prompts_per_step" in yaml.safe_load(file.read_text())["train"]
