"""A first YAML with comments: from a data file, its task guessed, a part held out, or from TRL's, verl's, EasyR1's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from vlrl import registry
from vlrl.config import CONFIGS, EASYR1, TRL, VERL, Component, Config, find_section, flat, merge, nest
from vlrl.decoders import DecodeError, load_yaml
from vlrl.io import write_atomic
from vlrl.recipe_checks import load_config
from vlrl.tools.option_help import field_help, option_help
from vlrl.types import SYNONYMS, UserError, suggest

ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".txt")  # of files of rows
SMALL = 100_000_000  # bytes of weights; a model with fewer trains whole
TOKENS = {"table_to_latex": 1024, "detection": 512, "dialogue": 512}  # of an answer of a large model, others 128
OPTIONS = {"open_answer": {"weights": {"token_f1": 1.0, "malformed": -0.25}}}  # what a task needs to read files


@dataclass(frozen=True)
class StartOptions:
    """What a user said. out: the YAML; test: a held-out file, else a part of the data is held out."""

    data: str
    out: Path
    model: str = "embedded"
    task: str | None = None
    test: str | None = None
    gpu_memory: float | None = None


def is_data(name: str) -> bool:
    """Whether what stands in a config's place is data: a file of rows, a folder of images, a data set of the hub."""
    path = Path(name)
    return name.startswith("hf:") or path.suffix in ENDINGS or (path.is_dir() and not (path / "config.yaml").is_file())


def write_start(options: StartOptions, reader: ModuleType) -> list[str]:
    """Writes the YAML, and beside it the split -> what was guessed and written, in lines.

    Args:
        reader: `tasks.data.guess`, which vlrl's tools do not import.

    Raises:
        UserError: the YAML is there already; no task reads the file; it can only be split by hand; too little memory.
    """
    out, data = options.out, options.data
    if out.exists():
        raise UserError(f"{out} is there already: train with it (vlrl train {out}), or name another --out or remove it")
    if not data.startswith("hf:") and not Path(data).exists():
        raise UserError(f"{data}: cannot be read (no such file or folder)")
    guess = reader.guess_task(data, options.task)
    lines = [f"{data}: {', '.join(guess.facts)}: the task {guess.task}"]
    section: dict[str, Any] = {"train": data, "test": options.test, "format": guess.form, "on_bad_row": "skip"}
    if options.test is None and guess.task != "jigsaw":  # which holds out pictures by itself
        if guess.rows is None:
            raise UserError(f"{data}: rows of this kind are not split here: name a held-out file too, data.test=FILE")
        folder = out.with_name(f"{out.stem}_split")
        train, test, fact = reader.write_split(guess.rows, folder)
        images = Path(data) if Path(data).is_dir() else Path(data).parent
        lines.append(f"{fact}: {test}")
        form = "jsonl" if guess.form == "folder" else guess.form
        section |= {"train": str(train), "test": str(test), "format": form, "images": str(images)}
    values = _make_values(options, guess.task, section)
    write_atomic(out, format_commented(values, lines))
    if options.gpu_memory:
        lines.append(_fit_memory(out, values, options.gpu_memory, lines))
    return [*lines, f"{out}: the configuration, with a comment behind each key"]


def _make_values(options: StartOptions, task: str, data: dict[str, Any]) -> dict[str, Any]:
    """The keys that a first run needs, as a config has them."""
    small = is_small(options.model)
    known = registry.options_of(registry.find("task", task))
    extra: dict[str, Any] = dict(OPTIONS.get(task, {}))
    if not small and "template" in known and "guided" in get_args(known["template"][0]):
        extra["template"] = "guided"
    bundled = load_yaml(CONFIGS / f"{task}.yaml")
    tokens = bundled["policy"]["max_tokens"] if small else TOKENS.get(task, 128)
    policy: dict[str, Any] = {"model": options.model, "max_tokens": tokens}
    if not small:
        policy |= {"lora": {"rank": 16}, "gradient_checkpointing": True}
    return {
        "task": {"name": task, **extra},
        "out": f"runs/{options.out.stem}",
        "seed": 0,
        "data": {key: value for key, value in data.items() if value is not None},
        "policy": policy,
        "train": {"steps": 200, "prompts_per_step": 16, "group_size": 8, "lr": 3.0e-4 if small else 1.0e-5},
        "eval": {"every_steps": 50, "num_samples": 512},
        "advantages": [{"name": "grpo", "std": "group"}],
        "losses": [{"name": "ppo_clip", "low": 0.2, "high": 0.2}],
    }


def is_small(model: str) -> bool:
    """Whether all of a model is trained, on a CPU if need be."""
    files = list(Path(model).rglob("*.safetensors")) if Path(model).is_dir() else []
    return model.startswith("embedded") or (bool(files) and sum(file.stat().st_size for file in files) < SMALL)


def fit_memory(config: Config, gigabytes: float) -> tuple[Config, str]:
    """A configuration whose steps fit a GPU's memory by `vlrl plan`, and what was changed for it.

    Raises:
        UserError: none of the settings that save memory is enough; the model's sizes are not known.
    """
    from vlrl.performance.profiling import find_device
    from vlrl.tools.memory_planner import PlanOptions, plan_plan, together

    whole = plan_plan(config, PlanOptions(find_device(f"{gigabytes:g}GB")))
    if whole.fits:
        return config, f"fits {gigabytes:g} GB as it is: {whole.gigabytes:.1f} GB by `vlrl plan`"
    choice = together(whole)
    if choice is None or "--gpus" in choice.change:
        raise UserError(
            f"--gpu-memory {gigabytes:g}: a step takes {whole.gigabytes:.1f} GB, and no setting of one GPU is enough "
            "(`vlrl plan` shows what each saves): take a smaller model, or more GPUs"
        )
    return (
        choice.plan.config,
        f"{choice.change}: {whole.gigabytes:.1f} -> {choice.plan.gigabytes:.1f} GB by `vlrl plan`",
    )


def _fit_memory(out: Path, values: dict[str, Any], gigabytes: float, lines: list[str]) -> str:
    """Writes the YAML again with what fits a GPU's memory -> what was changed."""
    config = load_config(out)
    fitting, line = fit_memory(config, gigabytes)
    before = flat(config.model_dump(mode="json"))
    after = flat(fitting.model_dump(mode="json"))
    changed = {key: value for key, value in after.items() if before.get(key) != value and "." in key}
    write_atomic(out, format_commented(merge(values, nest(changed)), [*lines, line]))
    return line


def format_commented(values: Mapping[str, Any], head: list[str]) -> str:
    """A training configuration as YAML: `head` as comments, and what each key means behind it."""
    return "\n".join([*(f"# {line}" for line in head), *_format_section(values, Config, ""), ""])


def _format_section(values: Mapping[str, Any], section: type[BaseModel], indent: str) -> Iterator[str]:
    texts = field_help(section)
    for key, value in values.items():
        inner = find_section(section.model_fields[key].annotation)
        if key == "task":
            yield f"task:  # {texts[key]}"
            helps = option_help("task", value["name"], registry.find("task", value["name"]))
            for name, option in value.items():
                yield _format_line(name, option, helps.get(name, ""), "  ")
        elif isinstance(value, Mapping) and inner not in (None, Component):
            yield f"{indent}{key}:"
            yield from _format_section(value, inner, indent + "  ")
        else:
            yield _format_line(key, value, texts[key], indent)


def _format_line(key: str, value: Any, text: str, indent: str) -> str:
    line = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).removesuffix("\n...\n").strip()
    return f"{indent}{key}: {line}" + (f"  # {text}" if text else "")


# A configuration of TRL, verl or EasyR1 -> one of ours: what has a counterpart is translated, the rest is listed.
#
# What a program takes where its file says nothing, of what is translated. TRL's: tests compare with its own dataclass.
DEFAULTS: dict[str, dict[str, Any]] = {
    "TRL": {"num_generations": 8, "learning_rate": 1e-6, "lr_scheduler_type": "linear", "max_completion_length": 512,
            "epsilon": 0.2, "loss_type": "dapo", "scale_rewards": "group", "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1},
    # verl-project/verl 01d4d76, verl/trainer/config/_generated_ppo_trainer.yaml
    "verl": {"train_batch_size": 1024, "ppo_mini_batch_size": 256, "rollout.n": 1, "max_response_length": 512,
             "optim.lr": 1e-6, "weight_decay": 0.01, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0,
             "adv_estimator": "gae", "loss_agg_mode": "token-mean", "use_kl_loss": False, "kl_loss_coef": 0.001,
             "kl_loss_type": "low_var_kl", "use_kl_in_reward": False, "kl_coef": 0.001, "kl_penalty": "kl"},
    # hiyouga/EasyR1: verl/workers/actor/config.py at 27c93cf, verl/trainer/config.py, verl/workers/rollout/config.py
    "EasyR1": {"rollout_batch_size": 512, "global_batch_size": 256, "micro_batch_size_per_device_for_update": 4,
               "rollout.n": 1, "max_response_length": 512, "max_pixels": 4194304, "min_pixels": 262144,
               "optim.lr": 1e-6, "weight_decay": 0.01, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3,
               "clip_ratio_dual": 3.0, "adv_estimator": "grpo", "loss_avg_mode": "token", "disable_kl": False,
               "use_kl_loss": False, "kl_coef": 0.001, "kl_penalty": "kl"},
}  # fmt: skip
ALIKE = ("lora_alpha", "lr_scheduler_type", "max_grad_norm", "max_prompt_length", "max_steps", "temperature", "top_k",
         "top_p", "weight_decay")  # fmt: skip  # named and meant as TRL's
PEERS: dict[str, Mapping[str, str]] = {"TRL": TRL, "verl": VERL | {key: TRL[key] for key in ALIKE}}
PEERS["EasyR1"] = PEERS["verl"] | EASYR1
# of theirs whose keys are named as the policy's: another model's, or how it is evaluated
OTHER_SECTIONS = {"critic", "distillation", "ref", "reward", "reward_model", "val_kwargs", "val_override_config"}
AGGREGATIONS = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "constant",
                "token": "token_mean", "seq": "sequence_mean"}  # fmt: skip
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
        other = OTHER_SECTIONS & set(parts)
        short[path] = path if other else next((end for end in ends if end in table), path)
    return short


CONVERTED: set[str] = {  # by the functions below
    "adam_beta1", "adam_beta2", "adv_estimator", "beta", "bf16", "clip_ratio", "clip_ratio_c", "clip_ratio_dual",
    "clip_ratio_high", "clip_ratio_low", "dataset_name", "disable_kl", "entropy_coeff", "epsilon", "epsilon_high",
    "fp16", "generation_batch_size", "global_batch_size", "gradient_accumulation_steps", "kl_coef", "kl_loss_coef",
    "kl_loss_type", "kl_penalty", "logger", "loss_agg_mode", "loss_avg_mode", "loss_type", "lr_scheduler_type",
    "lr_warmup_ratio", "lr_warmup_steps_ratio", "micro_batch_size_per_device_for_update", "norm_adv_by_std_in_grpo",
    "optim", "per_device_train_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu",
    "ppo_mini_batch_size", "report_to", "scale_rewards", "steps_per_generation", "torch_dtype", "train_files",
    "use_kl_in_reward", "use_kl_loss", "val_files", "warmup_ratio",
}  # fmt: skip


def _translate_plain(made: Translation, table: Mapping[str, str]) -> None:
    """Keys whose values mean the same under another name; a hint for those that differ."""
    for key, value in made.found.items():
        ours, _, hint = table[key].partition(" ")
        if key in CONVERTED or value is None:
            continue
        if hint or ours == "policy.engine" or ("." not in ours and ours != "out"):
            made.note(key, f"see {table[key]}")
        elif value != -1 and not (ours in ("policy.top_k", "policy.lora.rank") and value == 0):  # "none" of theirs
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
    if share := made.number("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio"):
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
    low = made.number("epsilon", "clip_ratio_low") or 0.2
    high = made.number("epsilon_high", "clip_ratio_high") or low
    losses: list[dict[str, Any]] = [{"name": "ppo_clip", "low": low, "high": high}]
    if dual := made.number("clip_ratio_c", "clip_ratio_dual"):
        losses[0]["dual"] = dual
    if "clip_ratio" in made.found:
        made.note("clip_ratio", f"{made.peer} clips by clip_ratio_low and clip_ratio_high")
    _kl(made, losses)
    if entropy := made.number("entropy_coeff"):
        losses.append({"name": "entropy", "coef": entropy})
    made.values["losses"] = losses
    key = next((key for key in ("loss_avg_mode", "loss_type", "loss_agg_mode") if made.found.get(key)), "")
    mode = str(made.found.get(key, "")).replace("-", "_")
    aggregation = AGGREGATIONS.get(mode) or SYNONYMS.get(mode) or (mode if mode == "token_mean" else None)
    if aggregation == "constant":  # both divide by the longest completion
        made.values["loss_aggregation"] = {"name": "constant", "length": made.values.get("policy.max_tokens", 64)}
    elif aggregation:
        made.values["loss_aggregation"] = {"name": aggregation}
    elif mode:
        made.note(key, "see `vlrl list losses`, `vlrl list loss_aggregation`")


def _kl(result: Translation, losses: list[dict[str, Any]]) -> None:
    """The KL to the reference, as a loss term or in the reward: EasyR1's is in the reward unless the file says else."""
    easy = result.peer == "EasyR1"
    loss_key, in_loss = "kl_penalty" if easy else "kl_loss_type", result.found.get("use_kl_loss", result.peer == "TRL")
    coef = result.number("kl_coef") if easy else result.number("beta", "kl_loss_coef")
    if easy and result.found["disable_kl"]:
        return
    if in_loss and coef:
        losses.append({"name": "kl", "kind": _kind_of_kl(result, loss_key, "k3"), "coef": coef})
    if result.found.get("use_kl_in_reward") or (easy and not in_loss):
        shaping = {
            "name": "kl_in_reward",
            "kind": _kind_of_kl(result, "kl_penalty", "k1"),
            "coef": result.number("kl_coef"),
        }
        result.values["reward_shaping"] = [shaping] if shaping["coef"] else []


def _kind_of_kl(result: Translation, key: str, default: str) -> str:
    kind = KINDS_OF_KL.get(str(result.found.get(key, default)).removesuffix("+"))
    if kind is None:
        result.note(key, f"{default} is taken; k1, k2 and k3 are there")
    return kind or default


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
