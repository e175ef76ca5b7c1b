"""A model card: what a model was made of, how well it does, how to load it. Written from files alone, offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vlrl.interop import provenance
from vlrl.interop.export import Source, read
from vlrl.interop.provenance import Origin

CURVES = "curves.png"
WHEN = {"before": "before training", "after": "after training", "best": "best checkpoint"}
LOADING = {
    "model": """\
```python
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}")
processor = AutoProcessor.from_pretrained("{name}")
```

or `vllm serve {name}`, or `vlrl eval CONFIG --model {name}`.""",
    "adapter": """\
```python
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}")  # the base, with the adapter on it
processor = AutoProcessor.from_pretrained("{name}")
```

`vlrl export {name} --merged --out DIR` makes one model of both.""",
    "robot": "A policy of vlrl's own: `vlrl simulate CONFIG --policy {name}`, `vlrl serve --policy {name}`.",
    "lerobot": "With lerobot: `--policy.path={name}`. With vlrl: `vlrl simulate CONFIG --policy {name}`.",
}


def write(source: Source, folder: Path, *, name: str = "", licence: str | None = None) -> Path:
    """Writes `README.md`, and `curves.png` where it can be drawn, into the model's folder; returns the card's path.

    Args:
        folder: what the card is of: the source's own folder, or an export of it.
        name: what to load it by; default: the folder's name.
        licence: of this model, as the hub spells licences; default: not stated.
    """
    from vlrl.interop.curves import draw

    drawn = source.run is not None and draw(source.run, folder / CURVES)
    card = folder / "README.md"
    card.write_text(text(source, folder, name=name or folder.name, licence=licence, curves=drawn), encoding="utf-8")
    return card


def text(source: Source, folder: Path, *, name: str, licence: str | None, curves: bool) -> str:
    config = provenance.config_of(source)
    summary = read(source.run / "summary.json") if source.run else {}
    base, data = provenance.base_of(source, config), provenance.data_of(config)
    task = _name(config.get("task")) or str(summary.get("task", ""))
    kind = _kind(folder)
    head = yaml.safe_dump(_head(base, data, task, kind, licence, summary), sort_keys=False, allow_unicode=True)
    about = f"Trained with vlrl by reinforcement learning on the task `{task}`."
    parts = [
        f"---\n{head}---\n\n# {name.rpartition('/')[2]}",
        about if task else "Made with vlrl.",
        _results(summary, source), f"![Curves of the training run]({CURVES})" if curves else "",
        "## How it was made", _made(base, data, config, summary, provenance.versions_of(source)),
        "## How to load it", LOADING[kind].format(name=name),
        "## Licences", _licences(base, data, licence),
        f"## Configuration\n\n```yaml\n{yaml.safe_dump(config, sort_keys=False, width=110)}```" if config else "",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _kind(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    if (folder / "processor_config.json").is_file():
        return "model"
    about = read(folder / "config.json")
    return "lerobot" if "type" in about and "model_type" not in about else "robot"


def _name(component: Any) -> str:
    return str(component.get("name", "")) if isinstance(component, Mapping) else str(component or "")


def _head(
    base: Origin, data: Origin, task: str, kind: str, licence: str | None, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """What the hub reads of a card."""
    library = {"model": "transformers", "adapter": "peft", "robot": "vlrl", "lerobot": "lerobot"}[kind]
    head: dict[str, Any] = {"library_name": library, "tags": ["vlrl", "reinforcement-learning"]}
    head |= {"license": licence} if licence else {}
    head |= {"base_model": base.hub} if base.hub else {}
    head |= {"base_model_relation": "adapter" if kind == "adapter" else "finetune"} if base.hub else {}
    head |= {"datasets": [data.hub]} if data.hub else {}
    head |= {"pipeline_tag": "robotics" if kind in ("robot", "lerobot") else "image-text-to-text"}
    after = summary.get("after")
    if isinstance(after, Mapping) and task:
        metric = {"type": "accuracy", "value": round(float(after["value"]), 4), "name": "held-out accuracy, greedy"}
        measured = {"task": {"type": head["pipeline_tag"]}, "dataset": {"type": f"vlrl/{task}", "name": task}}
        head["model-index"] = [{"name": task, "results": [measured | {"metrics": [metric]}]}]
    return head


def _results(summary: Mapping[str, Any], source: Source) -> str:
    rows = [(told, summary[when]) for when, told in WHEN.items() if isinstance(summary.get(when), Mapping)]
    if not rows:
        return "## Results\n\nNot measured."
    lines = [
        f"| {told}{f', step {m["step"]}' if 'step' in m else ''} | {m['value']:.3f} "
        f"| [{m['low']:.3f}, {m['high']:.3f}] | {m['n']} |"
        for told, m in rows
    ]
    head = "| | held-out accuracy, greedy | 95 % interval | samples |\n| --- | --- | --- | --- |\n"
    weights = f"These are the weights of `{source.folder.name}`."
    return f"## Results\n\n{head}" + "\n".join(lines) + f"\n\n{weights}"


def _made(base: Origin, data: Origin, config: Mapping[str, Any], summary: Mapping[str, Any], versions: str) -> str:
    told = {"base model": base.told, "training data": data.told}
    for kind in ("sampler", "rollouts", "process", "shaping", "advantages", "losses", "weighing"):
        if config.get(kind):
            told[kind] = ", ".join(map(_component, _list(config[kind])))
    keys = {
        "steps": "steps",
        "rollouts": "rollouts drawn",
        "updates": "updates",
        "cpu_s": "CPU seconds",
        "seed": "seed",
    }
    told |= {name: f"{summary[key]:,.0f}" for key, name in keys.items() if isinstance(summary.get(key), int | float)}
    told |= {"versions": versions} if versions else {}
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in told.items())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _component(value: Any) -> str:
    """`group (std: group)`"""
    options = {k: v for k, v in value.items() if k != "name"} if isinstance(value, Mapping) else {}
    told = ", ".join(f"{key}: {each}" for key, each in options.items())
    return f"`{_name(value)}`" + (f" ({told})" if told else "")


def _licences(base: Origin, data: Origin, licence: str | None) -> str:
    rows = {"these weights": licence or provenance.UNKNOWN, f"base: {base.told}": base.licence}
    rows |= {f"data: {data.told}": data.licence, "vlrl, which trained them": "Apache-2.0"}
    return "| | licence |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())
