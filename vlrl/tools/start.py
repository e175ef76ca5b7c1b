"""From a data file to a run: its task is guessed, a part of it held out, and a YAML with comments written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from vlrl import registry
from vlrl.config import CONFIGS, Component, Config, find_section, flat, merge, nest
from vlrl.decoders import load_yaml
from vlrl.io import write_atomic
from vlrl.recipe_checks import load_config
from vlrl.tools.option_help import field_help, option_help
from vlrl.types import UserError

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
    small = _is_small(options.model)
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


def _is_small(model: str) -> bool:
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
