"""`vlrl reproduce`: a paper's run (`configs/published`), and whether it reaches what was reported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl import api
from vlrl.config import CONFIGS, Config, PublishedSection, check_model, find_data, flat, nearest
from vlrl.io import write_atomic
from vlrl.performance.profiling import find_device
from vlrl.system.hub import reach_hub
from vlrl.tools.memory_planner import PlanOptions, plan_plan
from vlrl.types import UserError, first_line, wilson

if TYPE_CHECKING:
    from vlrl.config import Change

CARDS = {"24gb": ("24GB", 1), "80gb": ("h100", 1), "8x80gb": ("h100", 8)}  # memory layers: card, how many
NOT_SHARES = ("AP", "NMS_AP")  # metrics that are no mean over samples, so that they get no interval
PLACES = ("out", "policy.model", "data.train", "data.test", "data.images", "log", "published")  # of a machine


def find_names() -> list[str]:
    return sorted(file.stem for file in (CONFIGS / "published").glob("*.yaml"))


def load(name: str, changes: Sequence[Change] = ()) -> Config:
    """A published run by its name, or a user's own file with a section `published`.

    Raises:
        UserError: there is none of that name, or the file has no such section.
    """
    file = CONFIGS / "published" / f"{name}.yaml"
    if not file.is_file() and not Path(name).is_file():
        raise UserError(f"reproduce: no published run {name!r}{nearest(f'published/{name}')}")
    config = api.load_config(file if file.is_file() else name, *changes)
    if config.published is None:
        raise UserError(f"reproduce: {name} has no section `published`: use `vlrl train`")
    return config


def format_plan(names: Sequence[str]) -> Iterator[str]:
    """A table of `vlrl plan`'s memory of published runs under each memory layer, in Markdown."""
    yield f"| run | model | prompt, answer | prompts x group | {' | '.join(f'`{layer}`' for layer in CARDS)} |"
    yield "| --- " * (4 + len(CARDS)) + "|"
    for name in names:
        found = []
        for layer, (card, count) in CARDS.items():
            config = load(name, [f"published/memory/{layer}"])
            plan = plan_plan(config, PlanOptions(find_device(card, None, None), count))
            found.append(f"{plan.gigabytes:.1f} GB{'' if plan.fits else ', too much'}")
        train, facts = config.train, _facts_of(config)
        yield (
            f"| `{name}` | {config.policy.model.split('/')[-1]} | {facts.visual} + {facts.text}, "
            f"{config.policy.max_tokens} | {train.prompts_per_step} x {train.group_size} | {' | '.join(found)} |"
        )


def describe(config: Config) -> Iterator[str]:
    """What is downloaded and under which licence, what is to be reached, what is not certain."""
    facts = _facts_of(config)
    yield f"run       arXiv {facts.paper}; settings from {facts.code}"
    local = Path(config.policy.model).exists()
    size = "a local folder" if local else f"about {facts.model_gigabytes:g} GB, licence {facts.model_licence}"
    yield f"model     {config.policy.model}: {size}"
    for source in facts.sources:
        size = f", about {source.gigabytes:g} GB" if source.gigabytes else ", size not known"
        note = f"; {source.note}" if source.note else ""
        yield f"data      {source.repo or 'by hand'}{size}, licence: {source.licence}{note}"
    before = "" if facts.base is None else f"{facts.base:.3f} -> "
    yield f"target    {facts.metric} {before}{facts.target:.3f} ({facts.table})"
    yield from (f"uncertain {each}" for each in facts.unverified)


def use_folders(config: Config, name: str, model: str | None, data: str | None, out: str | None) -> Config:
    """The run with local folders in place of what it would download.

    Args:
        data: takes the place of `data/NAME`, with which the paths of its files begin.
    """
    changes: dict[str, Any] = {} if model is None else {"policy": config.policy.model_copy(update={"model": model})}
    if data is not None:
        paths = {key: value for key, value in config.data.model_dump().items() if isinstance(value, str)}
        begin = f"data/{Path(name).stem}"
        moved = {key: data + value[len(begin):] for key, value in paths.items()
                 if value == begin or value.startswith(f"{begin}/")}  # fmt: skip
        changes["data"] = config.data.model_copy(update=moved)
    return config.model_copy(update=changes | ({} if out is None else {"out": out}))


def download(config: Config) -> Config:
    """Fetches the model and the files that are not there, at the pinned revisions.

    Raises:
        UserError: the hub cannot be reached, or files are to be fetched by hand.
    """
    facts = _facts_of(config)
    if absent := _absent(config):
        for source in facts.sources:
            if source.repo and source.files:
                into = config.data.images or str(Path(absent[0]).parent)
                options = {"repo_type": "dataset", "allow_patterns": source.files, "local_dir": into}
                _fetch(source.repo, source.revision, **options)
    if absent := _absent(config):
        notes = "; ".join(source.note or str(source.repo) for source in facts.sources)
        raise UserError(f"reproduce: {absent[0]} is not there: {notes}; or name another folder with --data")
    if Path(config.policy.model).exists() or config.policy.model.startswith("embedded"):
        return config
    check_model(config.policy.model)
    folder = _fetch(config.policy.model, facts.model_revision)
    return config.model_copy(update={"policy": config.policy.model_copy(update={"model": folder})})


def _fetch(repo: str, revision: str | None, **options: Any) -> str:
    from huggingface_hub import snapshot_download

    reach_hub(repo, "datasets" if options.get("repo_type") == "dataset" else "models")
    try:
        return snapshot_download(repo, revision=revision, **options)
    except Exception as error:  # of huggingface_hub and of what it calls
        raise UserError(f"reproduce: cannot fetch {repo}: {first_line(error)}; name folders: --model, --data") from None


def _absent(config: Config) -> list[str]:
    return [path for _, path in find_data(config.model_dump()) if "://" not in path and not Path(path).exists()]


@dataclass(frozen=True)
class Reproduction:
    """What came of a run beside what was published. before, after: value, and its interval where it has one."""

    metric: str
    before: list[float]
    after: list[float]
    samples: int
    target: float
    verdict: str
    differences: list[str]  # settings that are not the published ones

    @property
    def text(self) -> str:
        before, after = _format(*self.before), _format(*self.after)
        other = f"; not as published: {', '.join(self.differences)}" if self.differences else ""
        return (
            f"{self.metric} {before} -> {after} on {self.samples} held-out samples; published {self.target:.3f}: "
            f"{self.verdict}{other}"
        )


def _format(value: float, *interval: float) -> str:
    return f"{value:.3f}" + (" [{:.3f}, {:.3f}]".format(*interval) if interval else "")


def judge(run: api.Run, published: Config) -> Reproduction:
    """Compares a run that has ended with what was published.

    Raises:
        UserError: its evaluations have no such metric.
    """
    facts, name = _facts_of(published), f"eval/{_facts_of(published).metric}"
    rows = [row for row in run.metrics if name in row]
    if not rows:
        raise UserError(f"{run.folder}: its evaluations have no {facts.metric}: see metrics.jsonl")
    before, after = (_measure(row, name) for row in (rows[0], rows[-1]))
    low, high = after[1:] or after * 2
    verdict = "not reached" if high < facts.target else "surpassed" if low > facts.target else "within the interval"
    own, theirs = (flat(config.model_dump(mode="json")) for config in (run.config, published))
    differences = sorted(
        key for key in own.keys() | theirs
        if own.get(key) != theirs.get(key) and not any(f"{key}.".startswith(f"{each}.") for each in PLACES)
    )  # fmt: skip
    return Reproduction(facts.metric, before, after, rows[-1]["eval/n"], facts.target, verdict, differences)


def _measure(row: Mapping[str, Any], name: str) -> list[float]:
    """Value and interval: Wilson's, which holds for the mean of any values in [0, 1]."""
    value, n = float(row[name]), row["eval/n"]
    return [value] if name.removeprefix("eval/") in NOT_SHARES else [value, *wilson(value * n, n)]


def reproduce(name: str, config: Config) -> Reproduction:
    """Evaluates, trains, evaluates and compares; goes on where an earlier call was stopped.

    Raises:
        UserError: as `vlrl.train`, `download` and `judge`.
    """
    run = api.Run(Path(config.out))
    if not run.summary:
        config = download(config)
        started = (run.folder / "config.yaml").is_file()
        run = api.train(config, resume=started)
    verdict = judge(run, load(name))
    write_atomic(run.folder / "reproduction.json", json.dumps(asdict(verdict), indent=2) + "\n")
    return verdict


def _facts_of(config: Config) -> PublishedSection:
    assert config.published is not None
    return config.published
