"""A configuration of TRL, verl or EasyR1 -> one of ours: what has a counterpart is translated, the rest is listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl.config import EASYR1, TRL, VERL, flat, nest
from vlrl.decoders import DecodeError, load_yaml
from vlrl.io import write_atomic
from vlrl.recipe_checks import load_config
from vlrl.tools.start import format_commented
from vlrl.types import SYNONYMS, UserError, suggest

# What a program takes where its file says nothing, of what is translated. TRL's: tests compare with its own dataclass.
DEFAULTS: dict[str, dict[str, Any]] = {
    "TRL": {"num_generations": 8, "learning_rate": 1e-6, "lr_scheduler_type": "linear", "max_completion_length": 512,
            "epsilon": 0.2, "loss_type": "dapo", "scale_rewards": "group", "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1},
    "verl": {"clip_ratio": 0.2, "adv_estimator": "gae", "loss_agg_mode": "token-mean"},
    "EasyR1": {"adv_estimator": "grpo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.3},
}  # fmt: skip
PEERS: dict[str, Mapping[str, str]] = {"TRL": TRL, "verl": VERL, "EasyR1": VERL | EASYR1}
AGGREGATIONS = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "constant"}
OPTIMIZERS = {"adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit"}
KINDS_OF_KL = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "k1": "k1", "k2": "k2", "k3": "k3"}
TRACKERS = ("tensorboard", "wandb", "trackio")


@dataclass
class Translation:
    """values: of ours, by dotted key; notes: lines on what could not be translated as it stands."""

    peer: str
    found: dict[str, Any]  # the file's, by the table's keys, with the peer's defaults beneath
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, key: str, text: str) -> None:
        self.notes.append(f"{key}: {self.found[key]}: {text}")

    def number(self, *keys: str) -> float:
        """The first of the keys that is set; 0 where none is."""
        key = next((key for key in keys if self.found.get(key) not in (None, False, -1)), None)
        if key is None:
            return 0
        if not isinstance(self.found[key], int | float):
            raise UserError(f"{key}: {self.found[key]!r}: should be a number")
        return self.found[key]


def import_config(file: Path, out: Path, task: str) -> list[str]:
    """Writes our YAML -> what was read, and every key without a counterpart, in lines.

    Raises:
        UserError: the file cannot be read, is no configuration of theirs, or `out` is there already.
    """
    if out.exists():
        raise UserError(f"{out} is there already: name another --out")
    try:
        theirs = load_yaml(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    except DecodeError as error:
        raise UserError(str(error)) from None
    if not isinstance(theirs, dict):
        raise UserError(f"{file} holds no mapping of keys to values")
    made = translate(theirs)
    values = nest({"task": {"name": task}, "out": f"runs/{out.stem}", "seed": 0} | made.values)
    head = [
        f"From {file.name}, a configuration of {made.peer}. Rewards are the task's (vlrl list tasks): choose yours.",
        *made.notes,
    ]
    write_atomic(out, format_commented(values, head))
    try:
        load_config(out)
    except UserError:
        out.unlink()
        raise
    return [
        f"{made.peer}: {len(made.values)} keys of ours; {len(made.notes)} notes on what differs, at the head of {out}",
        f"task: {task}: choose the one whose rewards you want (task.name in {out})",
    ]


def translate(theirs: Mapping[str, Any]) -> Translation:
    """A configuration as its program reads it -> ours.

    Raises:
        UserError: no key of it is known.
    """
    peer = find_peer(theirs)
    found, notes, table, values = dict(DEFAULTS[peer]), [], PEERS[peer], flat(theirs)
    short = _short_keys(values, table)
    if not any(key in table for key in short.values()):
        raise UserError(
            f"no key of {peer} among {', '.join(sorted(map(str, theirs)))[:80]}: is it a run's configuration?"
        )
    for path, key in short.items():
        value = values[path]
        if key in table:
            found[key] = value
        elif value is not None:
            notes.append(f"{path}: {value}: no counterpart")
    made = Translation(peer, found, notes=notes)
    _translate_plain(made, table)
    for convert in (_batches, _rates, _losses, _advantages, _others):
        convert(made)
    return made


def find_peer(theirs: Mapping[str, Any]) -> str:
    """The program that reads such a file, by its sections: TRL's has none."""
    if "worker" in theirs:
        return "EasyR1"
    return "verl" if {"actor_rollout_ref", "algorithm", "trainer", "data"} & set(theirs) else "TRL"


def _short_keys(paths: Iterable[str], table: Mapping[str, str]) -> dict[str, str]:
    """Each key's path -> the longest end of it that the table has, else the path."""
    short = {}
    for path in paths:
        parts = path.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        short[path] = next((end for end in ends if end in table), path)
    return short


CONVERTED: set[str] = {  # by the functions below
    "adam_beta1", "adam_beta2", "adv_estimator", "beta", "clip_ratio", "clip_ratio_high", "clip_ratio_low",
    "entropy_coeff", "epsilon", "epsilon_high", "generation_batch_size", "global_batch_size",
    "gradient_accumulation_steps", "kl_coef", "kl_loss_coef", "logger", "loss_agg_mode", "loss_type",
    "lr_scheduler_type", "lr_warmup_steps_ratio", "micro_batch_size_per_device_for_update",
    "norm_adv_by_std_in_grpo", "optim", "per_device_train_batch_size", "ppo_micro_batch_size",
    "ppo_micro_batch_size_per_gpu", "ppo_mini_batch_size",
    "report_to", "scale_rewards", "steps_per_generation", "train_files", "use_kl_in_reward", "use_kl_loss", "val_files",
    "warmup_ratio", "dataset_name", "bf16", "fp16", "torch_dtype",
}  # fmt: skip


def _translate_plain(made: Translation, table: Mapping[str, str]) -> None:
    """Keys whose values mean the same under another name; a hint for those that differ."""
    for key, value in made.found.items():
        ours, _, hint = table[key].partition(" ")
        if key in CONVERTED or value is None:
            continue
        if hint or ours == "policy.engine" or ("." not in ours and ours != "out"):
            made.note(key, f"see {table[key]}")
        elif value != -1 and not (key == "top_k" and value == 0):  # "none" of both programs
            made.values[ours] = value


def _batches(made: Translation) -> None:
    """Completions of a step -> prompts; sizes of minibatches and forwards -> ours, of prompts."""
    group = int(made.number("num_generations", "rollout.n")) or 1
    made.values["train.group_size"] = group
    forward = int(made.number("per_device_train_batch_size", "ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size",
                              "micro_batch_size_per_device_for_update"))  # fmt: skip
    if made.peer == "TRL":
        accumulated = int(made.number("gradient_accumulation_steps")) or 1
        forwards = int(made.number("steps_per_generation")) or accumulated
        completions = int(made.number("generation_batch_size")) or forward * forwards
        made.values["train.prompts_per_step"] = max(1, completions // group)
        made.values["train.num_minibatches"] = max(1, completions // (forward * accumulated))
        made.notes.append(f"prompts_per_step: {completions} completions a step on one GPU; times your number of GPUs")
    elif mini := int(made.number("ppo_mini_batch_size", "global_batch_size")):
        prompts = int(made.number("train_batch_size", "rollout_batch_size")) or mini
        made.values["train.num_minibatches"] = max(1, prompts // mini)
    if forward:
        made.values["train.micro_batch_size"] = max(1, forward // group)


def _rates(made: Translation) -> None:
    """The learning rate's course, and the optimizer."""
    found, steps = made.found, int(made.number("max_steps", "total_training_steps"))
    if share := made.number("warmup_ratio", "lr_warmup_steps_ratio"):
        if steps:
            made.values["train.warmup_steps"] = round(share * steps)
        else:
            made.notes.append(f"warm-up over {share:g} of the steps: set train.warmup_steps once train.steps is known")
    if (course := found.get("lr_scheduler_type")) == "linear":
        made.values["train.lr_end"] = 0.0
    elif course not in (None, "constant", "constant_with_warmup"):
        made.note("lr_scheduler_type", "rates are constant or linear here (train.lr_end)")
    if {"adam_beta1", "adam_beta2"} & found.keys():
        made.values["train.betas"] = [found.get("adam_beta1", 0.9), found.get("adam_beta2", 0.999)]
    if optimizer := found.get("optim"):
        made.values["train.optimizer"] = OPTIMIZERS.get(optimizer, "adamw")
        if "adamw" not in str(optimizer):
            made.note("optim", "adamw is taken (train.optimizer)")


def _losses(made: Translation) -> None:
    """Clipping, KL and entropy as loss terms, and how tokens are averaged."""
    low = made.number("epsilon", "clip_ratio_low", "clip_ratio") or 0.2
    high = made.number("epsilon_high", "clip_ratio_high", "clip_ratio") or low
    losses: list[dict[str, Any]] = [{"name": "ppo_clip", "low": low, "high": high}]
    wants_kl = made.found.get("use_kl_loss", made.peer == "TRL")
    if wants_kl and (
        kl := made.number("beta", "kl_loss_coef") or (made.number("kl_coef") if made.peer == "EasyR1" else 0)
    ):
        kind = KINDS_OF_KL.get(str(made.found.get("kl_loss_type", "k3")), "k3")
        losses.append({"name": "kl", "kind": kind, "coef": kl})
    if entropy := made.number("entropy_coeff"):
        losses.append({"name": "entropy", "coef": entropy})
    made.values["losses"] = losses
    if made.found.get("use_kl_in_reward"):
        made.values["reward_shaping"] = [{"name": "kl_in_reward", "coef": made.number("kl_coef") or 0.001}]
    mode = str(made.found.get("loss_type") or made.found.get("loss_agg_mode") or "").replace("-", "_")
    aggregation = AGGREGATIONS.get(mode) or SYNONYMS.get(mode) or (mode if mode == "token_mean" else None)
    if aggregation == "constant":  # both divide by the longest completion
        made.values["loss_aggregation"] = {"name": "constant", "length": made.values.get("policy.max_tokens", 64)}
    elif aggregation:
        made.values["loss_aggregation"] = {"name": aggregation}
    elif mode:
        made.note("loss_type" if "loss_type" in made.found else "loss_agg_mode", "see `vlrl list losses`, `vlrl list "
                  "loss_aggregation`")  # fmt: skip


def _advantages(made: Translation) -> None:
    """The estimator, and what a group's rewards are divided by."""
    scaled = str(made.found.get("scale_rewards", "group")).lower()
    std = {"true": "group", "group": "group", "batch": "batch", "false": "none", "none": "none"}.get(scaled, "group")
    if made.found.get("norm_adv_by_std_in_grpo") is False:
        std = "none"
    estimator = str(made.found.get("adv_estimator", "grpo"))
    known: dict[str, dict[str, Any]] = {
        "grpo": {"name": "grpo", "std": std}, "rloo": {"name": "leave_one_out"}, "gae": {"name": "gae"},
        "reinforce_plus_plus": {"name": "batch_norm"},
    }  # fmt: skip
    if estimator not in known:
        made.note("adv_estimator", "grpo is taken; see `vlrl list advantages`")
    elif estimator == "gae":
        made.notes.append(
            "adv_estimator: gae: its critic is set by configs/recipes/ppo.yaml, to be laid over this file"
        )
    made.values["advantages"] = [known.get(estimator, known["grpo"])]


def _others(made: Translation) -> None:
    """Data, trackers and number types."""
    for key, ours in (("dataset_name", "data.train"), ("train_files", "data.train"), ("val_files", "data.test")):
        value = made.found.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str):
            made.values[ours] = f"hf://{value}" if key == "dataset_name" and value.count("/") == 1 else value
            made.note(key, "its columns must be those of a task: docs/guides/own_data.md, `vlrl init --data FILE`")
    logged = made.found.get("report_to") or made.found.get("logger")
    if logged is not None:
        named = [logged] if isinstance(logged, str) else list(logged)
        made.values["log.trackers"] = [name for name in named if name in TRACKERS]
    if made.found.get("bf16") or made.found.get("torch_dtype") == "bfloat16":
        made.values["policy.dtype"] = "bfloat16"
    if made.found.get("fp16"):
        made.note("fp16", "bfloat16 is used on GPUs")


def format_table(peer: str) -> str:
    """A peer's keys and ours as a table in Markdown: what `translate` and the refusals of the configuration read."""
    if peer not in PEERS:
        raise UserError(f"unknown program {peer!r}{suggest(peer, list(PEERS))}")
    table = EASYR1 if peer == "EasyR1" else PEERS[peer]
    rows = (f"| `{key}` | `{ours.partition(' ')[0]}` {ours.partition(' ')[2]} |" for key, ours in table.items())
    return "\n".join([f"| {peer} | here |", "| --- | --- |", *rows])
