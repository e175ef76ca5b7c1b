"""Configurations of TRL, verl and EasyR1 in our words."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from vlrl.cli import main
from vlrl.config import RENAMED, Config
from vlrl.recipe_checks import load_config
from vlrl.tools.start import CONVERTED, DEFAULTS, PEERS, format_table, translate

ROOT = Path(__file__).parents[2]
TRL_CONFIG = {
    "model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct", "output_dir": "runs/x", "num_generations": 8,
    "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "steps_per_generation": 8,
    "learning_rate": 1e-5, "max_steps": 500, "warmup_ratio": 0.1, "lr_scheduler_type": "linear", "beta": 0.04,
    "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "dr_grpo", "scale_rewards": False, "bf16": True,
    "lora_r": 16, "report_to": ["wandb", "swanlab"], "top_k": 0, "adam_beta2": 0.99, "optim": "paged_adamw_8bit",
    "dataset_name": "owner/rows", "log_completions": True,
}  # fmt: skip
VERL_CONFIG = {
    "data": {"train_files": ["a.parquet"], "val_files": "b.parquet", "train_batch_size": 512,
             "max_response_length": 1024},
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen2.5-VL-7B-Instruct"},
        "actor": {"optim": {"lr": 1e-6}, "ppo_mini_batch_size": 128, "ppo_micro_batch_size_per_gpu": 10,
                  "use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "mse", "entropy_coeff": 0.001,
                  "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "loss_agg_mode": "seq-mean-token-mean"},
        "rollout": {"n": 5, "name": "vllm", "gpu_memory_utilization": 0.6},
    },
    "algorithm": {"adv_estimator": "rloo", "use_kl_in_reward": True, "kl_coef": 0.002},
    "trainer": {"total_training_steps": 40, "save_freq": -1, "test_freq": 5, "logger": ["console", "wandb"]},
}  # fmt: skip
EASYR1_CONFIG = {
    "data": {"rollout_batch_size": 512, "max_response_length": 2048},
    "algorithm": {"adv_estimator": "grpo", "use_kl_loss": True, "kl_coef": 0.01},
    "worker": {"actor": {"global_batch_size": 128, "micro_batch_size_per_device_for_update": 5,
                         "model": {"model_path": "Qwen/Qwen2.5-VL-3B-Instruct"}, "optim": {"lr": 1e-6}},
               "rollout": {"n": 5}},
    "trainer": {"val_freq": 5, "save_limit": 3, "total_epochs": 15},
}  # fmt: skip


def imported(theirs: dict, folder: Path, *words: str):
    """Our configuration of theirs, and the head of its file."""
    (folder / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    assert main(["import-config", str(folder / "theirs.yaml"), "--out", str(folder / "ours.yaml"), *words]) == 0
    text = (folder / "ours.yaml").read_text()
    return load_config(folder / "ours.yaml"), [line for line in text.splitlines() if line.startswith("# ")]


def test_trl(tmp_path):
    """Batches of completions and of prompts, or losses by a flag, are silently another experiment."""
    config, head = imported(TRL_CONFIG, tmp_path, "--task", "gui_grounding")
    train, policy = config.train, config.policy
    assert (config.task.name, config.out, policy.model) == ("gui_grounding", "runs/x", "Qwen/Qwen2.5-VL-3B-Instruct")
    assert (train.group_size, train.prompts_per_step, train.num_minibatches, train.micro_batch_size) == (8, 16, 2, 2)
    assert (train.steps, train.warmup_steps, train.lr, train.lr_end) == (500, 50, 1e-5, 0.0)
    assert (train.optimizer, train.betas, policy.lora.rank, policy.top_k) == ("paged_adamw_8bit", [0.9, 0.99], 16, None)
    assert [each.model_dump() for each in config.losses] == [
        {"name": "ppo_clip", "low": 0.2, "high": 0.28},
        {"name": "kl", "kind": "k3", "coef": 0.04},
    ]
    assert config.advantages[0].options == {"std": "none"} and config.loss_aggregation.options == {"length": 512}
    assert (config.log.trackers, config.data.train, policy.max_tokens) == (["wandb"], "hf://owner/rows", 512)
    assert "# log_completions: True: no counterpart" in head


def test_verl(tmp_path):
    config, head = imported(VERL_CONFIG, tmp_path)
    train = config.train
    assert (train.prompts_per_step, train.group_size, train.num_minibatches, train.micro_batch_size) == (512, 5, 4, 2)
    assert (train.steps, train.lr, config.policy.max_tokens, config.eval.every_steps) == (40, 1e-6, 1024, 5)
    assert [each.model_dump() for each in config.losses] == [
        {"name": "ppo_clip", "low": 0.2, "high": 0.28, "dual": 3.0},
        {"name": "kl", "kind": "k2", "coef": 0.01},
        {"name": "entropy", "coef": 0.001},
    ]
    assert [each.name for each in (*config.advantages, *config.reward_shaping)] == ["leave_one_out", "kl_in_reward"]
    assert (config.loss_aggregation.name, config.data.train, config.data.test) == (
        "sequence_mean", "a.parquet", "b.parquet",
    )  # fmt: skip
    assert config.log.checkpoint_every == type(config.log)().checkpoint_every  # -1 is never
    assert "# actor_rollout_ref.rollout.name: vllm: no counterpart" in head


def test_easyr1(tmp_path):
    config, head = imported(EASYR1_CONFIG, tmp_path)
    assert config.policy.model == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert (config.train.prompts_per_step, config.train.num_minibatches, config.train.micro_batch_size) == (512, 4, 1)
    clip, kl = [each.options for each in config.losses]
    assert (clip, kl) == ({"low": 0.2, "high": 0.3, "dual": 3.0}, {"kind": "k1", "coef": 0.01})  # kl_penalty: kl
    assert config.loss_aggregation.name == "token_mean" and config.reward_shaping == []
    assert (config.eval.every_steps, config.log.keep_checkpoints) == (5, 3)
    assert any(line.startswith("# total_epochs: 15: see train.steps") for line in head)


def test_what_a_file_leaves_out_is_what_verl_takes():
    """Three lines would train with our batch, length and decay; a critic's rate and model would become the policy's."""
    actor = {"optim": {"lr": 3e-6}, "clip_ratio": 0.1, "use_kl_loss": True}
    others = {"critic": {"optim": {"lr": 1e-5}, "model": {"path": "critic"}}, "data": {"max_prompt_length": 700}}
    rollout = {"temperature": 0.9, "val_kwargs": {"temperature": 0.2}}
    made = translate({"actor_rollout_ref": {"model": {"path": "m", "lora_rank": 0}, "actor": actor, "rollout": rollout},
                      **others})  # fmt: skip
    assert made.values == {
        "policy.model": "m", "policy.max_tokens": 512, "policy.max_prompt_tokens": 700, "policy.temperature": 0.9,
        "train.prompts_per_step": 1024, "train.num_minibatches": 4, "train.group_size": 1, "train.lr": 3e-6,
        "train.weight_decay": 0.01, "loss_aggregation": {"name": "token_mean"}, "advantages": [{"name": "gae"}],
        "losses": [{"name": "ppo_clip", "low": 0.2, "high": 0.2, "dual": 3.0},
                   {"name": "kl", "kind": "k3", "coef": 0.001}],
    }  # fmt: skip
    assert {"critic.optim.lr: 1e-05: no counterpart", "critic.model.path: critic: no counterpart",
            "clip_ratio: 0.1: verl clips by clip_ratio_low and clip_ratio_high"} <= set(made.notes)  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "shaping", "kl"),
    [
        ({}, [{"name": "kl_in_reward", "kind": "k1", "coef": 0.001}], []),
        ({"kl_penalty": "low_var_kl", "kl_coef": 0.01}, [{"name": "kl_in_reward", "kind": "k3", "coef": 0.01}], []),
        ({"use_kl_loss": True, "kl_penalty": "mse"}, None, [{"name": "kl", "kind": "k2", "coef": 0.001}]),
        ({"disable_kl": True, "use_kl_loss": True}, None, []),
        ({"kl_penalty": "abs"}, [{"name": "kl_in_reward", "kind": "k1", "coef": 0.001}], []),
    ],
)
def test_easyr1_takes_its_kl_from_the_reward_unless_it_is_told(algorithm, shaping, kl):
    """A file that says nothing of the KL trains with one."""
    made = translate({"worker": {"actor": {"optim": {"lr": 1e-6}, "loss_avg_mode": "seq"}}, "algorithm": algorithm})
    assert made.values.get("reward_shaping") == shaping and made.values["losses"][1:] == kl
    assert made.values["loss_aggregation"] == {"name": "sequence_mean"}
    assert any(note.startswith("kl_penalty: abs: k1 is taken") for note in made.notes) == ("abs" in algorithm.values())


def test_what_a_file_leaves_out_is_what_trl_takes():
    """A file of three lines would train with our clip range, rate and group in place of theirs."""
    trl = pytest.importorskip("trl")
    theirs = {each.name: each.default for each in dataclasses.fields(trl.GRPOConfig)}
    assert {key: theirs[key] for key in DEFAULTS["TRL"]} == DEFAULTS["TRL"]


@pytest.mark.parametrize("peer", PEERS)
def test_every_key_is_in_the_table_that_refuses_it(peer):
    """The page, the import and the refusal would each tell another story."""
    assert PEERS[peer].items() <= RENAMED.items() and set(DEFAULTS[peer]) <= set(PEERS[peer])
    assert CONVERTED & set(PEERS[peer])
    rows = format_table(peer).splitlines()[2:]
    assert rows and all(row.count("|") == 3 for row in rows)


def test_json_is_read_too(tmp_path):
    (tmp_path / "args.json").write_text(json.dumps(TRL_CONFIG))
    assert main(["import-config", str(tmp_path / "args.json"), "--out", str(tmp_path / "ours.yaml")]) == 0
    assert main(["import-config", str(tmp_path / "args.json"), "--out", str(tmp_path / "ours.yaml")]) == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [("a: 1\nb: 2\n", "no key of TRL among a, b"), ("- 1\n", "no mapping"), ("max_steps: many\n", "should be a number"),
     ("max_steps: [\n", "theirs.yaml")],
)  # fmt: skip
def test_mistakes_are_one_line(text, named, tmp_path, capsys):
    (tmp_path / "theirs.yaml").write_text(text)
    assert main(["import-config", str(tmp_path / "theirs.yaml"), "--out", str(tmp_path / "ours.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and not (tmp_path / "ours.yaml").exists()


def test_a_switch_without_its_number_is_left_to_its_method():
    assert translate({"algorithm": {"use_kl_in_reward": True}}).values["reward_shaping"][0]["coef"] == 0.001


def has_key(kind: Any, key: str) -> bool:
    """Whether a class of settings has the key, also below what it may hold."""
    first, _, rest = key.partition(".")
    hint = get_type_hints(kind).get(first)
    return hint is not None and (not rest or any(has_key(each, rest) for each in get_args(hint) or (hint,)))


def test_keys_of_lerobot_in_the_table_are_there_and_here():
    """A reader would type a key that neither program has."""
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.policies.act.configuration_act import ACTConfig

    from vlrl.imitation.configs import CloneConfig

    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    rows = [re.split(r" \| ", row.strip("| ")) for row in page.rpartition("| --- |")[2].splitlines() if row[:1] == "|"]
    registered = {"policy.type", "policy.path", "env.type"}  # of draccus: how a class or a folder is chosen
    for theirs, clone, train in rows:
        for key in set(re.findall(r"`([\w.]+)`", theirs)) - registered:
            assert has_key(TrainPipelineConfig, key) or has_key(ACTConfig, key.removeprefix("policy.")), key
        for cell, kind in ((clone, CloneConfig), (train, Config)):
            if key := re.match(r"`([\w.]+)", cell):
                assert has_key(kind, key[1]), key[1]
    assert len(rows) > 12
