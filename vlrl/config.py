"""One run as typed, strict data (`vlrl.config`): YAML file, `base:` chain and command-line overrides -> `Config`.

Components (`{name: ..., options}`) are checked against the signature of what they name.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from vlrl.decoders import DecodeError, load_yaml, parse_yaml
from vlrl.types import MAX_PIXELS, PILLOW_PIXELS, Data, UserError, find_readers, meant, suggest

# Keys of servers: read from the environment, and refused in URLs of a configuration, which is written down and shown.
#
# A run's `config.yaml` is its configuration to the letter, so that a resumed run is the same one: what must not be
# written must not be in it.

SECRET = re.compile(
    r"(?<=://)[^\s/?#@:]*(?::\S*)?(?=@)"  # user:password before the host; a password may hold / as it stands
    r"|(?<=[?&;#])(?P<name>[\w.-]*(?:key|token|secret|passw(?:or)?d|pwd|auth|sig|signature|credentials?))=[^\s&;#]+",
    re.IGNORECASE,
)
URLS = {"url", "urls"}  # keys whose values are URLs, also those that lack their `http://`
SCHEMES = ("Basic ", "Bearer ")


def credentials_problem(value: Any, path: str = "", above: tuple[int, ...] = ()) -> str | None:
    """What is wrong where a text of a configuration, or of a part of it at the key `path`, is a URL with a secret.

    Names where it stands and not what it is. None: nothing is wrong. `above` are what holds it, by `id`: YAML can
    say of a list that it holds itself.
    """
    if id(value) in above:
        return None
    is_url = not URLS.isdisjoint(path.split(".")[-2:])
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        if problem := credentials_problem(each, f"{path}.{key}" if path else str(key), (*above, id(value))):
            return problem
    if not isinstance(value, str) or not _holds_secret(value, is_url):
        return None
    return (
        f"{path}: a URL with a password or key in it, but configurations are written down: take it out; a server's "
        "key goes into an environment variable that `key` names beside the URL, a robot's into a `token_file`"
    )


def _holds_secret(text: str, is_url: bool) -> bool:
    if is_url and "@" in text:  # perhaps without its `http://`
        return True
    return (is_url or "://" in text) and SECRET.search(text) is not None


def hidden(text: str) -> str:
    """The text with *** for passwords and keys in its URLs."""
    return SECRET.sub(lambda found: f"{found['name']}=***" if found["name"] else "***", text)


def header(variable: str | None, path: str) -> dict[str, str]:
    """The header that shows a server its key; {} without one.

    Args:
        variable: the environment variable that holds a token, or all that is to be sent: `Basic ..` or `Bearer ..`.
        path: the configuration's key that names it.

    Raises:
        UserError: there is no such variable.
    """
    if variable is None:
        return {}
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{path}: the environment variable {variable} is not set")
    return {"Authorization": value if value.startswith(SCHEMES) else f"Bearer {value}"}


# Whether what lies in a folder was made with the settings of now.


def check_same(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any], but: Sequence[str] = ()) -> None:
    """UserError where the settings `there` are not those wanted, with the first key that differs; `but` may."""
    old, new = flat(there), flat(wanted)
    other = [k for k in sorted(old | new) if k not in but and old.get(k) != new.get(k)]
    if other:
        key = other[0]
        raise UserError(
            f"{folder} was made with other settings ({key}: {old.get(key)} there, {new.get(key)} now): "
            "name another `out`, or move it away"
        )


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; lists stay whole."""
    if not isinstance(values, Mapping):
        return {path: values}
    parts = [flat(value, f"{path}.{key}" if path else str(key)) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}


# what makes another run of it
DEFINING = ("seed", "task", "data.train", "data.test", "data.format", "data.test_format", "data.images", "sampler",
            "rollout_strategy", "advantages", "policy.model", "train.prompts_per_step", "train.group_size",
            "agent.name", "start", "offline")  # fmt: skip


def find_changes(before: Mapping[str, Any], config: BaseModel) -> dict[str, list[Any]]:
    """Key -> its old and its new value, of a run's configuration as saved and as it is resumed with; not of `out`."""
    with contextlib.suppress(ValidationError):
        before = (
            type(config).model_validate(migrate(before)).model_dump(mode="json")
        )  # keys that are new have their defaults
    old, new = flat(before), flat(config.model_dump(mode="json"))
    return {key: [old.get(key), new.get(key)] for key in sorted(old | new)
            if key != "out" and old.get(key) != new.get(key)}  # fmt: skip


def check_changes(changes: Mapping[str, Sequence[Any]], allowed: bool) -> None:
    """UserError for the first change that makes another run of it, unless all are allowed."""
    for key, (old, new) in changes.items():
        if not allowed and any(f"{key}.".startswith(f"{each}.") for each in DEFINING):
            raise UserError(
                f"{key}: the run began with {old}, and is resumed with {new}, which makes another run of it: put it "
                "back, or resume with --allow-changes, which notes it in the metrics"
            )


# Keys of older versions -> the key of the same value. The `config.yaml` of an older run is read by it.
EARLIER = {
    "weighing": "loss_aggregation", "process": "process_rewards", "shaping": "reward_shaping",
    "rollouts": "rollout_strategy", "replay": "replay_mixing", "hooks": "callbacks",
    "train.prompts": "train.prompts_per_step", "train.minibatches": "train.num_minibatches",
    "train.microbatch": "train.micro_batch_size", "train.epochs": "train.update_epochs",
    "train.staleness": "train.max_staleness", "train.warmup": "train.warmup_steps",
    "train.skip_zero": "train.skip_zero_advantage", "train.reward_s": "train.reward_timeout_s",
    "train.max_bad_updates": "train.max_nonfinite_updates", "policy.slots": "policy.max_num_seqs",
    "policy.level": "policy.logprob_level", "policy.max_prompt": "policy.max_prompt_tokens",
    "eval.every": "eval.every_steps", "eval.batch": "eval.batch_size", "eval.samples": "eval.num_samples",
    "log.keep": "log.keep_checkpoints", "data.on_bad": "data.on_bad_row", "task.ticks": "task.horizon",
    "batch": "batch_size", "warmup": "warmup_steps",  # of offpolicy, pretrain, clone, learn, warmstart, ...
}  # fmt: skip

# The usual options of TRL's GRPOConfig, with transformers' TrainingArguments, and of verl -> the key here (in brackets:
# what differs). `vlrl import-config` and docs/coming_from.md read these tables too.
TRL = {
    "model_name_or_path": "policy.model", "output_dir": "out", "dataset_name": "data.train", "max_steps": "train.steps",
    "num_train_epochs": "train.steps (steps, not passes over the data)", "learning_rate": "train.lr",
    "lr_scheduler_type": "train.lr_end (linear from train.lr to it)", "warmup_steps": "train.warmup_steps",
    "warmup_ratio": "train.warmup_steps (steps, not a share)", "optim": "train.optimizer", "adam_beta1": "train.betas",
    "adam_beta2": "train.betas", "weight_decay": "train.weight_decay", "max_grad_norm": "train.max_grad_norm",
    "num_generations": "train.group_size", "generation_batch_size": "train.prompts_per_step (prompts, not completions)",
    "steps_per_generation": "train.num_minibatches", "num_iterations": "train.update_epochs",
    "per_device_train_batch_size": "train.micro_batch_size (prompts in one forward, not completions)",
    "gradient_accumulation_steps": "train.micro_batch_size (gradients are summed over a minibatch's forwards)",
    "max_completion_length": "policy.max_tokens", "max_prompt_length": "policy.max_prompt_tokens",
    "temperature": "policy.temperature", "top_p": "policy.top_p", "top_k": "policy.top_k",
    "epsilon": "losses ({name: ppo_clip, low: 0.2, high: 0.2})",
    "epsilon_high": "losses ({name: ppo_clip, high: 0.28})", "beta": "losses ({name: kl, coef: 0.04})",
    "loss_type": "losses and loss_aggregation",
    "scale_rewards": "advantages ({name: grpo, std: group}, std: batch or none)", "reward_weights": "task.weights",
    "use_vllm": "policy.engine", "vllm_mode": "policy.engine", "bf16": "policy.dtype", "fp16": "policy.dtype",
    "torch_dtype": "policy.dtype", "gradient_checkpointing": "policy.gradient_checkpointing",
    "lora_r": "policy.lora.rank", "lora_alpha": "policy.lora.alpha", "lora_target_modules": "policy.lora.targets",
    "sync_ref_model": "callbacks ({name: soft_sync})", "eval_steps": "eval.every_steps",
    "per_device_eval_batch_size": "eval.batch_size (over all processes)", "save_steps": "log.checkpoint_every",
    "save_total_limit": "log.keep_checkpoints", "report_to": "log.trackers",
    "logging_steps": "log (metrics.jsonl has every step)",
}  # fmt: skip
VERL = {
    "model.path": "policy.model", "default_local_dir": "out", "train_files": "data.train", "val_files": "data.test",
    "total_epochs": "train.steps (steps, not passes over the data)", "total_training_steps": "train.steps",
    "optim.lr": "train.lr", "betas": "train.betas", "lr_warmup_steps": "train.warmup_steps",
    "lr_warmup_steps_ratio": "train.warmup_steps (steps, not a share)", "grad_clip": "train.max_grad_norm",
    "rollout.n": "train.group_size", "train_batch_size": "train.prompts_per_step",
    "ppo_mini_batch_size": "train.num_minibatches (how many, not how large)", "ppo_epochs": "train.update_epochs",
    "ppo_micro_batch_size": "train.micro_batch_size (of each process)", "lora_rank": "policy.lora.rank",
    "ppo_micro_batch_size_per_gpu": "train.micro_batch_size", "max_response_length": "policy.max_tokens",
    "clip_ratio": "losses ({name: ppo_clip, low: 0.2, high: 0.2})", "use_kl_loss": "losses ({name: kl})",
    "clip_ratio_low": "losses ({name: ppo_clip, low: 0.2})", "clip_ratio_high": "losses ({name: ppo_clip, high: 0.28})",
    "clip_ratio_c": "losses ({name: ppo_clip, dual: 3.0})", "entropy_coeff": "losses ({name: entropy, coef: 0.001})",
    "kl_loss_coef": "losses ({name: kl, coef: 0.001})", "use_kl_in_reward": "reward_shaping ({name: kl_in_reward})",
    "kl_loss_type": "losses ({name: kl, kind: k3})", "kl_coef": "reward_shaping ({name: kl_in_reward, coef: 0.001})",
    "kl_penalty": "reward_shaping ({name: kl_in_reward, kind: k1})", "loss_agg_mode": "loss_aggregation",
    "adv_estimator": "advantages", "norm_adv_by_std_in_grpo": "advantages ({name: grpo, std: none} leaves it out)",
    "max_num_seqs": "policy.max_num_seqs", "gpu_memory_utilization": "policy.engine", "logger": "log.trackers",
    "test_freq": "eval.every_steps", "save_freq": "log.checkpoint_every", "val_batch_size": "eval.batch_size",
}  # fmt: skip
EASYR1 = {  # beside verl's, whose fork it is
    "model_path": "policy.model", "rollout_batch_size": "train.prompts_per_step",
    "global_batch_size": "train.num_minibatches (how many, not how large)", "val_freq": "eval.every_steps",
    "micro_batch_size_per_device_for_update": "train.micro_batch_size (prompts, not completions)",
    "save_limit": "log.keep_checkpoints", "save_checkpoint_path": "out", "max_pixels": "policy.max_pixels",
    "min_pixels": "policy.min_pixels", "clip_ratio_dual": "losses ({name: ppo_clip, dual: 3.0})",
    "loss_avg_mode": "loss_aggregation", "lr_warmup_ratio": "train.warmup_steps (steps, not a share)",
    "disable_kl": "losses ({name: kl})", "lora.rank": "policy.lora.rank", "lora.alpha": "policy.lora.alpha",
}  # fmt: skip
RENAMED = EARLIER | TRL | VERL | EASYR1  # keys that are refused with the right one


def renamed(path: str, value: Any = None) -> str | None:
    """What a key, or one inside its value, is called here; None where it is no key of older versions, TRL or verl."""
    for key in (*flat(value, path), path):
        names = key.split(".")
        for begin in range(len(names)):
            if (known := ".".join(names[begin:])) in RENAMED and (begin == 0 or known not in EARLIER or "." in known):
                return RENAMED[known]
    return None


def migrate(values: Any, section: str = "") -> Any:
    """The configuration of an older run under the names of now."""
    if isinstance(values, list):
        return [migrate("grpo" if section == "advantages" and v == "group" else v, section) for v in values]
    if not isinstance(values, Mapping):
        return values
    known = {key: EARLIER.get(f"{section}.{key}" if section else key, key).rpartition(".")[2] for key in values}
    moved = {known[key]: migrate(value, key) for key, value in values.items()}
    return moved | {"name": "grpo"} if section == "advantages" and moved.get("name") == "group" else moved


# The configs that come with vlrl. A checkout has them as `configs/`; who installed a wheel has them here alone.

CONFIGS = Path(__file__).parent / "configs"
FOLDERS = ("models", "studies", "compare")  # whose files are also found by their bare names
if not CONFIGS.is_dir():  # a checkout on a file system without links has a file there
    CONFIGS = Path(__file__).parents[1] / "configs"


def config_file(name: str | Path) -> Path:
    """A file's path as given if it is there, else that of the bundled config which it names, else as given.

    `configs/recipes/mssr.yaml`, `recipes/mssr.yaml` and `recipes/mssr` name the same bundled config.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or (path.exists() and not path.is_dir()):
        return path
    inner = CONFIGS.joinpath(*_path_parts(path))
    found = [file for file in (inner, inner.with_name(f"{inner.name}.yaml")) if file.is_file()]
    return found[0] if found else _moved(path) or path


def find_beside(folder: Path, name: str) -> Path | None:
    """A file from a folder, or from where the command runs, or a bundled config by its name; None: there is none."""
    return next((path for path in (folder / name, config_file(name)) if path.is_file()), None)


def _moved(path: Path) -> Path | None:
    """The bundled config of this name in one of FOLDERS; who gives its former path is told the new one."""
    if len(_path_parts(path)) > 1 and path.parts[-2] not in FOLDERS:
        return None
    files = [CONFIGS / folder / f"{path.name.removesuffix('.yaml')}.yaml" for folder in FOLDERS]
    target = next((file for file in files if file.is_file()), None)
    if target and len(path.parts) > 1:
        print(f"{path} has moved: configs/{target.relative_to(CONFIGS).as_posix()}", file=sys.stderr)
    return target


def nearest(name: str | Path) -> str:
    """'; did you mean X? (...)' for a config that is neither a file nor one of the bundled ones."""
    target = "/".join(_path_parts(Path(name).with_suffix("")))
    return f"{meant(target, [known for known, _ in described()])} (`vlrl list configs` names those that come with vlrl)"


def _path_parts(path: Path) -> tuple[str, ...]:
    """Of a path in `configs/`, which may lead it."""
    return path.parts[path.parts[:1] == ("configs",) :]


def maker(folder: str) -> str:
    """'; `vlrl warmstart ...` makes it' for a model folder that a bundled supervised start writes; else ''."""
    for name, _ in described():
        text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
        if "\nlessons:" in text and f"\nout: {folder.rstrip('/')}\n" in text:
            return f"; `vlrl warmstart configs/{name}.yaml` makes it"
    return ""


def described() -> Iterator[tuple[str, str]]:
    """Each bundled config as one names it, and the first comment in it."""
    for file in sorted(set(CONFIGS.rglob("*.yaml")) - {*CONFIGS.glob("accelerate/*"), *CONFIGS.glob("cluster/*")}):
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        yield file.relative_to(CONFIGS).with_suffix("").as_posix(), first.removeprefix("#").strip()


# Strict, typed YAML: a file, its `base:` chain and overrides -> a checked section.
#
# An unknown or ill-typed key stops before any work, with its path and the nearest right spelling. Imports no torch:
# a mistake is answered at once.


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(BaseModel):
    """A plug-in by name with its options: `{name: grpo, std: true}`, or the bare name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Plugin = Annotated[Component, BeforeValidator(_named)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Change = str | Mapping[str, Any]  # `key.path=value`, a recipe's file or name; from Python also {key path: value}


def load_as[S: Section](model: type[S], path: str | Path, changes: Sequence[Change] = ()) -> S:
    """A YAML file and changes to it -> a checked section; components are left to whoever makes them.

    Args:
        path: the file, or a bundled config's name as `vlrl list configs` has it; its `base:` files lie beneath it.
        changes: in order, `key.path=value`, further YAML files (recipes) or mappings of key paths to values. A recipe
            laid over a config brings only what it says itself: its own `base:` is for running it alone.

    Raises:
        UserError: a file is missing or no YAML mapping, a key is unknown or ill-typed, a URL holds a password.
    """
    return make_as(model, _read(Path(path)), changes, str(path))


def make_as[S: Section](model: type[S], values: dict[str, Any], changes: Sequence[Change], source: str) -> S:
    """Values and changes to them, as `load_as`. source: where the values are from, as an error names it."""
    readers = find_readers(values, model.model_fields)
    for change in changes:
        values = merge(values, _read_change(change))
    if problem := credentials_problem(values):
        raise UserError(f"{source}: {problem}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        if readers:
            names = " or ".join(f"`{command} {source}`" for command in readers)
            raise UserError(f"{source}: another command reads this file: {names}") from None
        raise UserError(f"{source}: {explain(error, model)}") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` on top of `below`: mappings merge key by key, a component of another name replaces the whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"name": old}  # a component given by its bare name
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        renamed = both and "name" in value and value["name"] != old.get("name")
        merged[key] = merge(old, value) if both and not renamed else value
    return merged


def _read(path: Path, seen: tuple[Path, ...] = (), with_base: bool = True) -> dict[str, Any]:
    path = config_file(path)
    try:
        values = load_yaml(path)
    except FileNotFoundError:
        raise UserError(f"there is no config {path}{nearest(path)}") from None
    except IsADirectoryError:
        hint = f", perhaps {path / 'config.yaml'}" if (path / "config.yaml").is_file() else ""
        raise UserError(f"cannot read the config {path}: it is a folder; name a YAML file{hint}") from None
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror or error}") from None
    except DecodeError as error:
        raise UserError(hidden(str(error))) from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of keys to values")
    if path.name == "config.yaml" and (path.parent / "metrics.jsonl").is_file():  # a run's, perhaps an older one's
        values = migrate(values)
    bases = values.pop("base", [])
    if not with_base:
        return values
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: base: should be a file or a list of files (got {bases!r})")
    below: dict[str, Any] = {}
    for base in bases:
        file = (find_beside(path.parent, base) or path.parent / base).resolve()
        if file in seen:
            raise UserError(f"{path}: base {base} leads back to itself")
        below = merge(below, _read(file, (*seen, path.resolve())))
    return merge(below, values)


def _read_change(change: Change) -> dict[str, Any]:
    """What a change says, as a config would."""
    if isinstance(change, Mapping):
        plain = ((key, str(value) if isinstance(value, Path) else value) for key, value in change.items())
        return nest(dict(plain))
    recipe = "=" not in change and (change.endswith((".yaml", ".yml")) or config_file(change).is_file())
    return _read(Path(change), with_base=False) if recipe else _override(change)


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}, as `flat` backwards."""
    return reduce(merge, (_nested(key, value) for key, value in values.items()), {})


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", key):
        hint = "it is no file; write key.path=value, for example train.steps=10, or a recipe's YAML"
        raise UserError(f"override {hidden(text)!r}: {hint}{'' if equals else nearest(text)}")
    try:
        parsed = parse_yaml(value, "value")
    except DecodeError as error:
        problem = hidden(str(error).partition(": ")[2])
        raise UserError(f"override {hidden(text)!r}: the value is {problem}") from None
    return _nested(key, parsed)


# how pydantic calls an alternative of a key's type
UNION_TAG = re.compile(r"(constrained-|literal\[|function-|(list|dict|tuple|nullable)\[).*|int|float|str|bool|none")


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """A validation error as one line: each key's path, what is wrong with it, and the nearest right spelling."""
    texts: dict[str, list[str]] = {}  # path -> what is wrong with it, by each alternative of its type
    for problem in error.errors():
        path = prefix + ".".join(str(part) for part in problem["loc"] if not UNION_TAG.fullmatch(str(part)))
        known = texts.setdefault(path and f"{path}: ", [])
        unknown = problem["type"] in ("extra_forbidden", "unexpected_keyword_argument")
        if unknown and (name := renamed(path, problem["input"])):
            known.append(f"unknown key, is called {name}")
        elif unknown:
            known.append(f"unknown key{suggest(str(problem['loc'][-1]), _fields(model, problem['loc'][:-1]))}")
        elif problem["type"] == "missing":
            known.append("is required")
        else:
            text, whole = problem["msg"].removeprefix("Input "), isinstance(problem["input"], Mapping)
            whole = whole and problem["type"] == "value_error"  # of a section by its own check, which names the key
            text, got = text.removeprefix("Value error, "), "" if whole else f" (got {problem['input']!r})"
            known[:] = [*(each.removesuffix(got) for each in known), f"{text}{got}"]
    return "; ".join(f"{path}{' or '.join(each).replace(' or should be ', ' or ')}" for path, each in texts.items())


def _fields(model: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """The keys that the section at a location allows."""
    section: Any = model
    for part in location:
        known = _annotations(section)
        if str(part) not in known:  # a place in a list, a key of a mapping
            continue
        section = find_section(known[str(part)])
        if section is None:
            return []
    return list(_annotations(section))


def _annotations(section: Any) -> dict[str, Any]:
    if is_dataclass(section):
        hints = get_type_hints(section)
        return {each.name: hints[each.name] for each in fields(section)}
    return {name: field.annotation for name, field in section.model_fields.items()}


def find_section(annotation: Any) -> Any:
    """The first dataclass or section in an annotation, also within lists, mappings and unions; None: there is none."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return annotation
    return next(filter(None, map(find_section, get_args(annotation))), None)


def check_options(
    options: Mapping[str, Any], parameters: Mapping[str, tuple[Any, Any]], path: str, strict: bool = False
) -> dict[str, Any]:
    """Options against a signature's `{name: (annotation, default)}` -> typed values, defaults filled in.

    Args:
        strict: values come from rows of data: a text is no number and a bool no int. An int is a float, a list a tuple,
            a mapping a dataclass.

    Raises:
        UserError: with the option's path.
    """
    if problem := credentials_problem(options, path):
        raise UserError(problem)
    declared: dict[str, Any] = dict(parameters)
    model = create_model("Options", __config__=ConfigDict(extra="forbid", strict=strict), **declared)
    try:  # strict Python takes no list for a tuple, strict JSON does
        checked = model.model_validate_json(_encode(options, path)) if strict else model.model_validate(dict(options))
    except ValidationError as error:
        raise UserError(explain(error, model, prefix=f"{path}.")) from None
    return dict(checked)


def _encode(options: Mapping[str, Any], path: str) -> bytes:
    try:
        return to_json(dict(options), inf_nan_mode="constants")
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None


class Lora(Section):
    rank: Count = 16
    alpha: Count = 32
    targets: str | list[str] = "all-linear"


class Denoising(Section):
    """How a robot's flow policy is sampled for training: with noise in each denoising step (vlrl/policies/flow.py)."""

    noise: Literal["sde", "learned"] = "sde"  # the flow's own stochastic form; of a head that learns how much
    scale: Rate = 0.3  # of the noise; a control's limits are -1 and 1


OWN_TEACHERS = ("policy", "reference")  # no model of their own


class PolicySection(Section):
    """The model and how it samples."""

    model: str = "embedded"  # embedded, embedded_push, embedded_lift, a folder, or a name on the hub
    max_tokens: Count = 64  # of a completion
    max_prompt_tokens: Count | None = None  # default: what the model takes
    temperature: Rate = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # of what is sampled; log-probabilities stay those of all tokens
    top_k: Count | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = []  # texts that end a completion and belong to it
    max_num_seqs: Count | None = None  # completions written at once; default: all of a step
    cuda_graphs: bool = False  # a token's operations recorded and replayed; not yet exercised on a GPU
    min_pixels: Count | None = None  # of an image as shown; default: the processor's
    max_pixels: Count | None = None
    # in which the model writes coordinates: original_px, resized_px, rel1, rel1000, gridN; `_yx` behind: y first
    # (docs/models.md)
    frame: Annotated[str, Field(pattern=r"^(original_px|resized_px|rel[1-9]\d*|grid[1-9]\d*)(_yx)?$")] | None = None
    trust_remote_code: bool = False  # of a local folder whose config.json names Python files in it
    attn_implementation: str | None = None  # of transformers: sdpa, eager, flash_attention_2, ...; default: its choice
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 compute on a GPU, float32 on a CPU
    weights_dtype: Literal["float32", "bfloat16"] = "float32"  # of weights that train; others are held as computed
    load_in_4bit: bool = False  # base weights under policy.lora as NF4 of bitsandbytes; a GPU's
    liger_kernel: bool = False  # Triton kernels of liger-kernel in families outside the packed path; a GPU's
    lora: Lora | None = None
    freeze: list[Literal["vision", "projector", "language"]] = []
    gradient_checkpointing: bool | Literal["auto", "offload"] = False  # auto: where needed; offload: to the host
    logprob_level: Literal["token", "action", "chunk"] = "token"  # of a robot policy's log-probabilities
    denoising: Denoising = Denoising()  # of a flow policy's chunks
    teacher: str | None = None  # read by distillation: a model of the same tokens, `policy` or its frozen `reference`
    teacher_hint: Literal["gold", "success", "feedback"] | None = None  # what it reads behind the prompt
    engine: Plugin = Component(name="local")  # who writes completions: local, server or vllm (docs/engines.md)

    @property
    def recomputes_layers(self) -> bool:
        """`gradient_checkpointing` where it is not left to the memory."""
        return self.gradient_checkpointing in (True, "offload")


class TrainSection(Section):
    """Sizes and optimisation of one run."""

    steps: Count = 100
    prompts_per_step: Count = 16  # a step
    group_size: Count = 8  # completions of a prompt
    num_minibatches: Count = 1  # optimizer steps a step
    update_epochs: Count = 1  # passes over a step's rollouts
    target_kl: Rate | None = None  # after a pass whose mean KL from the behaviour policy is above, no further one
    # prompts in one forward; default: the whole minibatch; auto: as many as the memory that is free takes
    micro_batch_size: Count | Literal["auto"] | None = None
    # a prompt is forwarded once per group; auto and true: where the model's cache lets it (docs/models.md)
    shared_prefix: bool | Literal["auto"] = "auto"
    skip_zero_advantage: bool = True  # groups without advantages are left out of updates that they would not change
    # muon: for models trained whole; 8 bit: states of a quarter of the size (vlrl/update.py)
    optimizer: Literal["adamw", "muon", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    master_weights: bool = False  # of bfloat16 weights float32 copies; false: updates are rounded at random
    lr: Rate = 1e-6
    lr_end: Annotated[float, Field(ge=0)] | None = None  # linear from lr to here; default: constant
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # steps of linear rise
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    max_grad_norm: Rate = 1.0
    max_nonfinite_updates: Count = 5  # non-finite updates in a row before the run stops
    reward_timeout_s: Rate | None = None  # seconds for one episode's reward, else it gives no credit; default: no limit
    # steps that the weights which play may be older than those that learn; above 0 both go on at the same time
    # (docs/asynchronous.md). 0: each step is played by the weights that it trains
    max_staleness: Annotated[int, Field(ge=0)] = 0

    @property
    def micro_size(self) -> int | None:
        """`micro_batch_size` where it is a number."""
        return None if self.micro_batch_size == "auto" else self.micro_batch_size


Tracker = Literal["tensorboard", "wandb", "trackio"]


class MeasureSection(Section):
    every_steps: Count | None = None  # steps; default: before and after only


class EvalSection(MeasureSection):
    num_samples: Count | None = None  # default: the whole test split
    batch_size: Count = 128


class RunLogSection(Section):
    rollouts: Count = 16  # kept each time
    checkpoint_every: Count = 50  # steps
    keep_checkpoints: Count = 2  # newest checkpoints, beside the best
    trackers: list[Tracker] = ["tensorboard"]  # where metrics are sent beside metrics.jsonl


class LogSection(RunLogSection):
    rollouts_every: Count = 25  # steps


class FitLogSection(RunLogSection):
    rows_every: Count = 25  # steps that a row of metrics tells of
    checkpoint_every: Count = 250
    trackers: list[Tracker] = []


class FitConfig(Section):
    """What every supervised run has (`vlrl.runner.SupervisedLearner`): one that fits a model to examples."""

    out: str
    seed: int = 0
    threads: Count = 1  # of one process: tiny matrices gain nothing from more, and the sums stay the same everywhere
    eval: MeasureSection = MeasureSection()
    log: FitLogSection = FitLogSection()


class DataSection(Section):
    train: str | None = None
    test: str | None = None
    format: str = "auto"
    test_format: str | None = None  # of the test file, where it is another; default: `format`
    images: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    max_pixels: Annotated[int, Field(ge=1, le=PILLOW_PIXELS)] = MAX_PIXELS

    def plain(self) -> Data:
        return Data(**self.model_dump())


class DataSource(Section):
    """Files of a published run: a data set of the hub, or what a person fetches."""

    repo: str | None = None  # of the hub, owner/name; default: none, see `note`
    revision: str | None = None  # of the repository, a commit; default: none is known
    files: list[str] = ["*"]  # patterns of those that are fetched
    gigabytes: Rate | None = None  # to download, about; default: not known
    licence: str  # as the source states it
    note: str = ""  # where the files are, and what is to be done with them


class PublishedSection(Section):
    """A published run: where its settings are from and what it reported (`vlrl reproduce`)."""

    paper: str  # arXiv number
    code: str  # repository, file and commit that settings were read from
    model_revision: str | None = None  # of policy.model on the hub, a commit
    model_licence: str = "apache-2.0"  # of policy.model
    model_gigabytes: Rate  # to download, about
    sources: list[DataSource]  # of data.train and data.test
    visual: Count  # visual tokens of a typical prompt, which `vlrl plan` takes while the data are not there
    text: Count  # text tokens, likewise
    metric: str = "accuracy"  # of the evaluation, that the target is of
    target: Annotated[float, Field(ge=0, le=1)]  # what was published of the trained model, a share
    base: Annotated[float, Field(ge=0, le=1)] | None = None  # what was published of the model before
    table: str  # where both stand
    unverified: list[str] = []  # settings that no source states, or only another's memory


class Config(Section):
    task: Plugin
    out: str
    seed: int = 0
    data: DataSection = DataSection()
    policy: PolicySection = PolicySection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    log: LogSection = LogSection()
    sampler: Plugin = Component(name="shuffled")
    rollout_strategy: Plugin = Component(name="plain")
    process_rewards: list[Plugin] = []  # rewards of steps, beside the outcome
    reward_shaping: list[Plugin] = []  # of rewards, before `advantages`
    advantages: list[Plugin] = [Component(name="grpo")]
    replay_mixing: list[Plugin] = []  # what a step learns from, beside or instead of what was played
    losses: list[Plugin] = [Component(name="ppo_clip")]
    loss_aggregation: Plugin = Component(name="token_mean")
    callbacks: list[Plugin] = []  # what happens between steps: schedules, references reset, supervised steps
    placement: Plugin = Component(name="local")  # where simulators, browsers, judges and rewards run
    published: PublishedSection | None = None  # the published run that this one is after

    def components(self, kind: str) -> Sequence[Component]:
        """What is named under the key of a kind of methods, or `task`, in its order."""
        return {
            "task": [self.task], "sampler": [self.sampler], "rollout_strategy": [self.rollout_strategy],
            "process_rewards": self.process_rewards, "reward_shaping": self.reward_shaping,
            "advantages": self.advantages, "replay_mixing": self.replay_mixing, "losses": self.losses,
            "loss_aggregation": [self.loss_aggregation], "callbacks": self.callbacks,
        }[kind]  # fmt: skip


def is_training_config(file: Path) -> bool:
    """Whether a run's config.yaml is one of `vlrl train`, and no other command's."""
    try:
        values = load_yaml(file)
    except (OSError, DecodeError):
        return False
    return isinstance(values, dict) and "train" in values


def dump(config: Section) -> str:
    """The resolved configuration as YAML that `recipe_checks.load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120)


# The parts of a mixture of tasks, as a configuration names them.

MIXTURE = "mixture"  # the task's name
TAG = "task"  # of each sample: the name of its part


class MixturePart(Section):
    """One task of a mixture."""

    task: Plugin
    share: Annotated[int, Field(ge=0)] = 1  # training samples, beside the other parts'; 0: it is tested alone
    data: DataSection = DataSection()


Parts = Annotated[dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], MixturePart], Field(min_length=1)]


def tasks_of(task: Component, path: str = "task") -> Iterator[tuple[str, Component]]:
    """The tasks that a configuration plays, with the path of each: itself, or the parts of a mixture.

    A mixture's `parts` must be well formed (`vlrl.recipe_checks.check` sees to it first).
    """
    if task.name != MIXTURE:
        yield path, task
        return
    for name, part in task.options["parts"].items():
        yield from tasks_of(MixturePart.model_validate(part).task, f"{path}.parts.{name}.task")


def named(name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Values of a part under its name: `name/key`."""
    return {f"{name}/{key}": value for key, value in values.items()}


# The files and folders that a configuration names, looked for before anything heavy is loaded. Imports no torch.


def check_paths(config: Config) -> None:
    """UserError naming the first data file or model folder that is not there. What lies elsewhere is not looked for."""
    for key, path in find_data(config.model_dump()):
        if "://" not in path and not Path(path).exists():
            raise UserError(f"{path}: cannot be read (no such file or folder); check {key}")
    for key, source in (("policy.model", config.policy.model), ("policy.teacher", config.policy.teacher)):
        if source in OWN_TEACHERS:
            continue
        if source and not (source == "embedded" or source.startswith("embedded_")):
            check_model(source, key)


def check_model(source: str, key: str = "policy.model") -> None:
    """UserError for what is neither a local folder nor can be a name on the hub."""
    folder = Path(source)
    if folder.exists():
        return
    # `runs/nope`, or `models/nope` beside a folder `models`, is a mistyped folder, not a name on the hub
    if source.startswith((".", "/", "~", "runs/")) or source.count("/") != 1 or folder.parent.is_dir():
        raise UserError(f"{key}: there is no folder {source!r}, and it is no hub name (owner/name){maker(source)}")


def find_data(settings: Any, path: str = "") -> list[tuple[str, str]]:
    """Key and value of every `data.train` and `data.test` of a configuration, those of a mixture's parts too."""
    if not isinstance(settings, dict):
        return []
    own = settings.get("data")
    own = own if isinstance(own, dict) else {}
    named = [(f"{path}data.{split}", own[split]) for split in ("train", "test") if isinstance(own.get(split), str)]
    return named + [
        pair for key, value in settings.items() if key != "data" for pair in find_data(value, f"{path}{key}.")
    ]
