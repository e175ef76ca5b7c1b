"""Export to the Hub: model card, provenance, averaged weights, push."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from vlrl import io, registry
from vlrl.config import Component, DataSection, hidden, migrate
from vlrl.decoders import DecodeError, load_json, load_yaml, parse_json, parse_log_row, parse_yaml
from vlrl.evaluation.score import of_text
from vlrl.io import holds_final_model, make_folder, read_folder
from vlrl.types import Frame, Observation, Sample, Score, Split, UserError

if TYPE_CHECKING:
    from torch import Tensor


# A task's samples as other trainers carry them: a prompt, and a text that says how its completions are scored.

# what chat templates and other trainers' processors take for their own, or what a part of a prompt may begin of it
CONTROL = re.compile(r"<(?=\||(?:image|video)>|\Z)")
WORD_JOINER = "\u2060"  # shows nothing, and no special token holds it
KEPT = 512  # samples, whose pictures are costly to draw or open anew for each completion
Reader = Callable[[Observation], tuple[Frame, ...]]  # how a model writes coordinates on what it is shown


@dataclass(frozen=True)
class Key:
    """One sample by name: all that scoring a completion of it takes."""

    task: str
    split: Split
    index: int
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # as a configuration's section
    frames: tuple[Mapping[str, Any], ...] = ()  # `vlrl.types.Frame` as plain data

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class KeyedSample:
    """A sample and the text of its key."""

    sample: Sample
    key: str


def ask(
    task: str, split: Split, count: int | None = None, *,
    options: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, model: str | None = None,
    turns: bool = False,
) -> Iterator[KeyedSample]:  # fmt: skip
    """The first `count` samples of a split, all by default.

    Args:
        task: a name of `vlrl list tasks`, or my_module:MyTask.
        options, data: as in a configuration.
        model: the folder or hub name of the model that will be asked, for the coordinates that it writes; default:
            pixels of the task's image.
        turns: whether who asks can play several.

    Raises:
        UserError: no such task, options it does not have, a task of several turns, videos.
    """
    options, data = dict(options or {}), dict(data or {})
    task_object = find_task(task, options, data)
    if takes_turns(task_object, options) and not turns:
        raise UserError(f"task: {task!r} takes several turns: other trainers' rewards see one completion")
    read = reader(model)
    for index, sample in enumerate(islice(task_object.samples(split), count)):
        if sample.prompt.videos:
            raise UserError(f"task: {task!r} shows videos, which other trainers cut into frames in their own ways")
        frames = tuple(asdict(frame) for frame in read(sample.prompt))
        sample_text = replace(sample, prompt=_as_plain_text(sample.prompt))
        yield KeyedSample(sample_text, Key(task, split, index, options, data, frames).text())


def _as_plain_text(shown: Observation) -> Observation:
    """The prompt with its special tokens' spellings broken: other trainers read text, and take them for the tokens."""
    texts = (CONTROL.sub(f"<{WORD_JOINER}", part) if isinstance(part, str) else part for part in shown.content)
    return replace(shown, content=tuple(texts))


def scored(key: str, completion: str, step: int = 0) -> tuple[float, Score]:
    """The reward and the score of a completion; `step` counts training steps from 0, for rewards that grow stricter.

    Raises:
        UserError: the key was not made by `ask`.
    """
    task, sample, frames = find_sample(key)
    task.at_step(step)
    score = of_text(task, sample, completion, frames)
    return task.reward(score), score


def of_task(key: str) -> str:
    """The name of the task that a key is of."""
    return _read(key)["task"]


def find_task(name: str, options: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    """The task, one object for whoever asks with the same options and data."""
    return load_task(name, json.dumps(options, sort_keys=True), json.dumps(data, sort_keys=True))


@lru_cache(maxsize=64)
def load_task(name: str, options: str, data: str) -> Any:
    """The task; options and data as JSON."""
    fields = parse_json(options)
    section = argparse.Namespace(task=Component(**{**fields, "name": name}), data=DataSection(**parse_json(data)))
    return registry.make_task(section)


def close_task(name: str, options: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Ends the processes of a task that was asked for; who asks again has a new one."""
    find_task(name, options, data).close()
    load_task.cache_clear()
    find_sample.cache_clear()


def takes_turns(task: Any, options: Mapping[str, Any]) -> bool:
    return task.takes_turns() and options.get("turns") != 1


@lru_cache(maxsize=KEPT)
def find_sample(key: str) -> tuple[Any, Sample, tuple[Frame, ...]]:
    """The task, the sample and the frames of its prompt. UserError: the key was not made by `ask`."""
    about = _read(key)
    task = find_task(about["task"], about["options"], about["data"])
    frames = tuple(Frame(each["space"], tuple(each["original"]), tuple(each["shown"])) for each in about["frames"])
    return task, task.samples(about["split"])[about["index"]], frames


def _read(key: str) -> dict[str, Any]:
    try:
        about = parse_json(key)
        Key(**about)
    except (ValueError, TypeError):
        raise UserError(f"sample: {str(key)[:60]!r}: no key of vlrl's; make the rows with vlrl.tools") from None
    return about


def reader(model: str | None) -> Reader:
    """How a model writes coordinates, from its configuration and processor; no model: in pixels of the task's image."""
    if model is None:
        return lambda shown: tuple(Frame("original_px", image.size, image.size) for image in shown.images)
    from transformers import AutoConfig, AutoProcessor

    from vlrl.policies.loading import bundled, check_architecture, newest_checkpoint
    from vlrl.policies.processor import CODECS, frame_of, own_space, resized

    folder = newest_checkpoint(bundled(model))
    check_architecture(folder)
    config, processor = AutoConfig.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    space, resizes = (
        own_space(config) or frame_of(config.model_type),
        config.model_type in CODECS,
    )

    def read(shown: Observation) -> tuple[Frame, ...]:
        sizes = [(i.size, resized(i, processor).size if resizes else i.size) for i in shown.images]
        return tuple(Frame(space, *each) for each in sizes)

    return read


# The picture of a model card: held-out accuracy with its interval, and the training reward, by step.


def draw(run: Path, out: Path) -> bool:
    """Writes a picture of the run's metrics, if there are any and matplotlib is installed; returns whether it did."""
    rows = _rows(run / "metrics.jsonl")
    held_out = [row for row in rows if "eval/accuracy" in row]
    trained = [row for row in rows if "reward" in row]
    if not held_out and not trained:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 3), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in held_out]
    left.plot(steps, [row["eval/accuracy"] for row in held_out], marker="o", markersize=3)
    bounds = ([row.get(f"eval/{end}", row["eval/accuracy"]) for row in held_out] for end in ("low", "high"))
    left.fill_between(steps, *bounds, alpha=0.2, linewidth=0)
    left.set(title="held-out accuracy, 95 % interval", xlabel="step", ylim=(0, 1))
    right.plot([row["step"] for row in trained], [row["reward"] for row in trained], linewidth=1)
    right.set(title="mean reward in training", xlabel="step")
    figure.savefig(out)
    return True


def _rows(file: Path) -> list[Mapping[str, Any]]:
    """The rows that are whole."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = parse_log_row(line)
        except ValueError:
            continue
        rows += [row] if isinstance(row, dict) and isinstance(row.get("step"), int) else []
    return rows


# A trained model as a folder that other programs load: weights, processor and a card; the trainer's state stays here.
#
# What serves or continues a model (transformers, vLLM, SGLang, TRL) reads `config.json`, `generation_config.json`, the
# tokenizer's files, `chat_template.jinja`, the processor's and the weights as safetensors.

OWN = ("trainer.json", "trainer.safetensors", io.LIST)  # to go on with a run, and no model's
KINDS = (".json", ".jinja", ".model", ".safetensors", ".txt")  # what a model is made of; nothing else goes along
ADAPTER = "adapter_config.json"
Width = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ExportSource:
    """A model's folder, and the run that made it (None: not known)."""

    folder: Path
    run: Path | None

    @property
    def adapter(self) -> bool:
        return (self.folder / ADAPTER).is_file()

    @property
    def family(self) -> str:
        """`model_type` of ours and of transformers, `type` of lerobot's; '' of an adapter."""
        about = export_read(self.folder / "config.json")
        return str(about.get("model_type") or about.get("type") or "")


@contextmanager
def open_source(source: str | Path) -> Iterator[ExportSource]:
    """A model to read. A run folder, which stands for its newest checkpoint, is held: no run may prune that meanwhile.

    Raises:
        HeldError: the run is still being trained.
        UserError: neither a run nor a model's folder.
    """
    located(source)
    with read_folder(Path(source)) if is_run(source) else nullcontext():
        yield located(source)


def is_run(source: str | Path) -> bool:
    return any((Path(source) / "checkpoints").glob("step_*"))


def located(source: str | Path) -> ExportSource:
    """A run folder stands for its newest checkpoint; a checkpoint belongs to the run that it lies in.

    Raises:
        UserError: neither a run nor a model's folder.
    """
    folder = Path(source).resolve()
    if holds_final_model(folder):
        return ExportSource(folder, folder)
    saved = sorted((folder / "checkpoints").glob("step_*"))
    if saved:
        return ExportSource(saved[-1], folder)
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER)) or (folder / "config.yaml").is_file():
        raise UserError(f"{source}: neither a run with a checkpoint nor a model's folder (config.json)")
    run = folder.parent.parent
    return ExportSource(folder, run if (run / "config.yaml").is_file() else None)


def export(source: ExportSource, out: Path, *, merged: bool = False, dtype: Width | None = None) -> None:
    """Writes the model into a new folder; transformers 4.57 and 5 load it, and what is built on them.

    Args:
        merged: an adapter becomes part of its base's weights.
        dtype: of the weights; default: as saved.

    Raises:
        UserError: the folder is there already; `merged` without an adapter; `dtype` of an adapter alone.
    """
    if merged and not source.adapter:
        raise UserError(f"{source.folder}: holds no adapter, so there is nothing to merge: leave --merged out")
    if dtype and source.adapter and not merged:
        raise UserError("--dtype goes with --merged: an adapter is small, and is trained in float32")
    with make_folder(out) as folder:
        if merged or dtype:
            _loaded(source, folder, dtype)
        else:
            for file in list_model_files(source.folder):
                shutil.copyfile(file, folder / file.name)
        older_readers(folder)


def list_model_files(folder: Path) -> list[Path]:
    """The files of a model's folder that are the model."""
    return [
        file for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix in KINDS and file.name not in OWN and not file.name.startswith(".")
    ]  # fmt: skip


def _loaded(source: ExportSource, out: Path, dtype: Width | None) -> None:
    import torch

    from vlrl.config import PolicySection
    from vlrl.policies.loading import load

    policy = load(PolicySection(model=str(source.folder)), device="cpu")
    if not policy.writes_text:
        raise UserError("--dtype is for vision-language models; a robot's policy is small")
    if dtype:
        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
        policy.model.to(kind)
        for part in (policy.model.config.text_config, policy.model.config.vision_config):
            part.dtype = kind
    policy.save(out)


def older_readers(folder: Path) -> None:
    """Says again, under the names that transformers 4.57 reads, what 5 writes under others; 5 takes both.

    The rotary embedding (`rope_parameters`), the processors (one file for all), the list of special tokens.
    """
    if not (folder / "processor_config.json").is_file():
        return
    about = export_read(folder / "config.json")
    for part in (about, *(each for each in about.values() if isinstance(each, dict))):
        rope = part.get("rope_parameters")
        if isinstance(rope, dict) and "rope_theta" in rope:
            part["rope_theta"] = rope["rope_theta"]
            part["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if about:
        _write(folder / "config.json", about)
    processor = export_read(folder / "processor_config.json")
    for name in ("image_processor", "video_processor"):
        if isinstance(processor.get(name), dict):
            file = "preprocessor_config.json" if name == "image_processor" else "video_preprocessor_config.json"
            _write(folder / file, processor[name] | {"processor_class": processor.get("processor_class")})
    tokens = export_read(folder / "tokenizer_config.json")
    if isinstance(tokens.get("extra_special_tokens"), list):
        tokens["additional_special_tokens"] = tokens.pop("extra_special_tokens")
        _write(folder / "tokenizer_config.json", tokens)


def export_read(file: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none to read."""
    try:
        about = load_json(file, finite=False)
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _write(file: Path, about: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# The mean of several models' weights, as one model's folder.
#
# Sources: model soups, arXiv 2203.05482; a long-thinking and a short model, Kimi k1.5, arXiv 2501.12599 (long to
# short).

WEIGHTS = ".safetensors"
SHAPE = ("model_type", "architectures", "text_config", "vision_config")  # of config.json: what weights fit into
APART = ("dtype", "torch_dtype", "rope_theta", "rope_scaling")  # may differ: the last two an export says twice


def average(models: Sequence[ExportSource], out: Path, shares: Sequence[float] | None = None) -> None:
    """Writes the mean into a new folder; all but the weights is the first model's.

    Products and sums in float32, a tensor at a time; weights are kept in the first one's type.

    Args:
        models: two or more of one architecture, with whole weights.
        shares: of each; they sum to 1. Default: equal ones.

    Raises:
        UserError: `out` is there; shares that do not fit; an adapter; models of different make.
    """
    shares = list(shares) if shares is not None else [1 / len(models)] * len(models)
    _check(models, shares)
    from safetensors.torch import save_file

    with make_folder(out) as folder, ExitStack() as opened:
        held = [_opened(model.folder, opened) for model in models]
        for model, tensors in zip(models[1:], held[1:], strict=True):
            _same_tensors(models[0], held[0], model, tensors)
        for file in list_model_files(models[0].folder):
            if file.suffix == WEIGHTS:
                names = [name for name, (there, _) in held[0].items() if there == file.name]
                save_file({name: _mean(held, name, shares) for name in names}, folder / file.name, {"format": "pt"})
            else:
                shutil.copyfile(file, folder / file.name)


def _check(models: Sequence[ExportSource], shares: Sequence[float]) -> None:
    if len(models) < 2:
        raise UserError("average: name two models or more")
    if len(shares) != len(models) or abs(sum(shares) - 1) > 1e-6 or min(shares) <= 0:
        raise UserError(f"shares: {len(models)} numbers above 0 that sum to 1, not {', '.join(map(str, shares))}")
    for model in models:
        if model.adapter:
            raise UserError(f"{model.folder}: an adapter has no weights of its own: `vlrl export --merged` makes some")
        if _make(model) != _make(models[0]):
            raise UserError(f"{model.folder}: another architecture than {models[0].folder}: their mean means nothing")


def _make(model: ExportSource) -> dict[str, Any]:
    """What its config.json says of its weights."""
    about = export_read(model.folder / "config.json")
    return {key: _plain(about.get(key)) for key in SHAPE}


def _plain(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in APART} if isinstance(value, dict) else value


def _opened(folder: Path, opened: ExitStack) -> dict[str, tuple[str, Any]]:
    """A tensor's name -> its file's name, and the open file."""
    from safetensors import safe_open

    files = {}
    for file in list_model_files(folder):
        if file.suffix == WEIGHTS:
            there = opened.enter_context(safe_open(file, framework="pt"))
            files |= {name: (file.name, there) for name in sorted(there.keys())}
    return files


def _same_tensors(first: ExportSource, own: Mapping[str, Any], other: ExportSource, theirs: Mapping[str, Any]) -> None:
    odd = sorted(own.keys() ^ theirs.keys()) or [
        name for name in own if _shape(own[name], name) != _shape(theirs[name], name)
    ]
    if odd or not own:
        raise UserError(f"{other.folder}: other weights than {first.folder}: {odd[0] if odd else 'none at all'}")


def _shape(held: tuple[str, Any], name: str) -> list[int]:
    return held[1].get_slice(name).get_shape()


def _mean(held: Sequence[Mapping[str, tuple[str, Any]]], name: str, shares: Sequence[float]) -> Tensor:
    parts = [tensors[name][1].get_tensor(name) for tensors in held]
    return sum(share * part.float() for share, part in zip(shares, parts, strict=True)).to(parts[0].dtype)


# Where a model comes from, as far as its run's folder and the files at hand tell; no network is asked.

UNKNOWN = "not stated"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Origin:
    """A base model or a data set: how it is told, its name on the hub where it has one, its licence."""

    label: str
    hub: str | None = None
    licence: str = UNKNOWN


def config_of(source: ExportSource) -> dict[str, Any]:
    """The run's resolved configuration without paths of the machine; {} where there is no run."""
    if source.run is None:
        return {}
    try:
        loaded = load_yaml(source.run / "config.yaml")
    except (OSError, DecodeError):
        return {}
    return redact(migrate(loaded)) if isinstance(loaded, dict) else {}


def versions_of(source: ExportSource) -> str:
    """The line of versions and commit that a run's configuration begins with."""
    if source.run is None:
        return ""
    first = (source.run / "config.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# vlrl") else ""


def redact(value: Any) -> Any:
    """A setting as strangers may see it: of a path its last part, of an address no password."""
    if isinstance(value, Mapping):
        return {key: redact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [redact(each) for each in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "~", "hf:///", "hf://~")):
        return Path(value).name
    return hidden(value)


def base_of(source: ExportSource, config: Mapping[str, Any]) -> Origin:
    """What the model was trained from."""
    named = (config.get("policy") or {}).get("model") or ""
    if source.adapter and not str(named).startswith("embedded"):
        named = export_read(source.folder / ADAPTER).get("base_model_name_or_path") or named
    named = str(named)
    if not named:
        return Origin(UNKNOWN)
    if named.startswith("embedded"):
        return Origin(f"vlrl's {named.replace('_', ' ')} model", licence="Apache-2.0")
    if HUB_NAME.fullmatch(named) and not Path(named).exists():
        return Origin(named, named, _licence(_cached(named, "model")))
    return Origin(f"a model of its maker's ({Path(named).name})", licence=_licence(Path(named) / "README.md"))


def data_of(config: Mapping[str, Any]) -> Origin:
    """What the model was trained on."""
    named = (config.get("data") or {}).get("train")
    if not named:
        return Origin("what the task renders or bundles", licence="as NOTICE.md of vlrl says")
    match = re.match(rf"hf://(?:datasets/)?({HUB_NAME.pattern})", named)
    if not match:
        return Origin(f"`{Path(named).name}`")
    return Origin(f"`{named}`", match[1], _licence(_cached(match[1], "dataset")))


def _cached(name: str, kind: str) -> Path | None:
    """The README of a repository of the hub, where it was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "README.md", repo_type=kind)
    return Path(file) if isinstance(file, str) else None


def _licence(readme: Path | None) -> str:
    """What a README's first block says of the licence."""
    try:
        _, block, _ = readme.read_text(encoding="utf-8").split("---", 2)
        about = parse_yaml(block, readme)
        return str(about.get("license_name") or about.get("license") or UNKNOWN)
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


# A model card: what a model was made of, how well it does, how to load it. Written from files alone, offline.

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


def card_write(source: ExportSource, folder: Path, *, name: str = "", licence: str | None = None) -> Path:
    """Writes `README.md`, and `curves.png` where it can be drawn, into the model's folder; returns the card's path.

    Args:
        folder: what the card is of: the source's own folder, or an export of it.
        name: what to load it by; default: the folder's name.
        licence: of this model, as the hub spells licences; default: not stated.
    """

    has_curves = source.run is not None and draw(source.run, folder / CURVES)
    card = folder / "README.md"
    card.write_text(
        card_text(source, folder, name=name or folder.name, licence=licence, curves=has_curves), encoding="utf-8"
    )
    return card


def card_text(source: ExportSource, folder: Path, *, name: str, licence: str | None, curves: bool) -> str:
    config = config_of(source)
    summary = export_read(source.run / "summary.json") if source.run else {}
    base, data = base_of(source, config), data_of(config)
    task = _name(config.get("task")) or str(summary.get("task", ""))
    kind = _kind(folder)
    head = yaml.safe_dump(_head(base, data, task, kind, licence, summary), sort_keys=False, allow_unicode=True)
    about = f"Trained with vlrl by reinforcement learning on the task `{task}`."
    parts = [
        f"---\n{head}---\n\n# {name.rpartition('/')[2]}",
        about if task else "Made with vlrl.",
        _results(summary, source), f"![Curves of the training run]({CURVES})" if curves else "",
        "## How it was made", _format_origins(base, data, config, summary, versions_of(source)),
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
    about = export_read(folder / "config.json")
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


def _results(summary: Mapping[str, Any], source: ExportSource) -> str:
    rows = [(label, summary[when]) for when, label in WHEN.items() if isinstance(summary.get(when), Mapping)]
    if not rows:
        return "## Results\n\nNot measured."
    lines = [
        f"| {label}{f', step {m["step"]}' if 'step' in m else ''} | {m['value']:.3f} "
        f"| [{m['low']:.3f}, {m['high']:.3f}] | {m['n']} |"
        for label, m in rows
    ]
    head = "| | held-out accuracy, greedy | 95 % interval | samples |\n| --- | --- | --- | --- |\n"
    weights = f"These are the weights of `{source.folder.name}`."
    return f"## Results\n\n{head}" + "\n".join(lines) + f"\n\n{weights}"


def _format_origins(
    base: Origin, data: Origin, config: Mapping[str, Any], summary: Mapping[str, Any], versions: str
) -> str:
    rows = {"base model": base.label, "training data": data.label}
    for kind in (
        "sampler",
        "rollout_strategy",
        "process_rewards",
        "reward_shaping",
        "advantages",
        "losses",
        "loss_aggregation",
    ):
        if config.get(kind):
            rows[kind] = ", ".join(map(_component, _list(config[kind])))
    keys = {
        "steps": "steps",
        "rollouts": "rollouts drawn",
        "updates": "updates",
        "cpu_s": "CPU seconds",
        "seed": "seed",
    }
    rows |= {name: f"{summary[key]:,.0f}" for key, name in keys.items() if isinstance(summary.get(key), int | float)}
    rows |= {"versions": versions} if versions else {}
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _component(value: Any) -> str:
    """`group (std: group)`"""
    options = {k: v for k, v in value.items() if k != "name"} if isinstance(value, Mapping) else {}
    options_text = ", ".join(f"{key}: {each}" for key, each in options.items())
    return f"`{_name(value)}`" + (f" ({options_text})" if options_text else "")


def _licences(base: Origin, data: Origin, licence: str | None) -> str:
    rows = {"these weights": licence or UNKNOWN, f"base: {base.label}": base.licence}
    rows |= {f"data: {data.label}": data.licence, "vlrl, which trained them": "Apache-2.0"}
    return "| | licence |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())


# Upload of a model to the Hugging Face hub. Nothing is sent unless `push` is called, and only what `export` writes.


def push(
    source: ExportSource, to: str, *,
    private: bool = False, merged: bool = False, dtype: Width | None = None, licence: str | None = None,
) -> str:  # fmt: skip
    """Uploads the model with its card; returns its address.

    The token is what `hf auth login` keeps, or HF_TOKEN. It is passed to `huggingface_hub` alone and never printed.

    Raises:
        UserError: `to` is no name of the hub; no token; an adapter whose base nobody else has; `private`, but the
            repository is public; the hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token

    if not HUB_NAME.fullmatch(to):
        raise UserError(f"--to {to!r}: must be owner/name")
    base = str(export_read(source.folder / "adapter_config.json").get("base_model_name_or_path") or "")
    if source.adapter and not merged and (Path(base).exists() or not HUB_NAME.fullmatch(base)):
        raise UserError(f"{source.folder}: an adapter of {Path(base).name!r}, which nobody else has: use --merged")
    token = get_token()
    if not token:
        raise UserError("no token of the hub, so nothing was sent: run `hf auth login`, or set HF_TOKEN")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        export(source, folder, merged=merged, dtype=dtype)
        card_write(source, folder, name=to, licence=licence)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        api = HfApi(token=token)
        print(f"vlrl: sending {size / 1e9:.3g} GB to {api.endpoint}/{to}", file=sys.stderr)
        return _send(api, folder, to, private)


def _send(api, folder: Path, to: str, private: bool) -> str:
    try:
        api.create_repo(to, private=private, exist_ok=True)
        if private and not api.model_info(to).private:  # one that was there before stays as it is
            raise UserError(
                f"--private: {to} is there and is public; nothing was sent: make it private, or name another"
            )
        api.upload_folder(repo_id=to, folder_path=folder, commit_message="Model and card, by vlrl push")
    except UserError:
        raise
    except Exception as error:  # of huggingface_hub and of what it calls; their texts hold no token
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{to}: the hub did not take it ({reason}); see `hf auth whoami` and whether you may write "
                        "there") from None  # fmt: skip
    return f"{api.endpoint}/{to}"
