"""Runs of the stages of a training plan."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

from vlrl import episode_store, metrics, registry
from vlrl.algorithms.samplers import MeasuredShares, Row, Shuffled, selection_line, selection_read
from vlrl.algorithms.samplers import summary as samplers_summary
from vlrl.config import Config, check_same, dump
from vlrl.decoders import load_json, parse_log_row
from vlrl.engines import load_policy
from vlrl.evaluation.compare_runs import Processes
from vlrl.io import hold_folder, make_folder
from vlrl.logging import Progress
from vlrl.metrics import commit, write_text
from vlrl.rollout import collect
from vlrl.tools.stages import LIST, MEASURED, STATE, Select, StagePlan, StageStep, command
from vlrl.types import Episode, UserError, __version__, suggest

# `vlrl best-of`: a model answers training samples several times; right answers become demonstrations.
#
# Sources: rejection sampling of the shortest right answer, Kimi k1.5, arXiv 2501.12599 (long to short); the rounds of
# SFT on own right answers of OpenVLThinker, arXiv 2503.17352.

Keep = Literal["shortest", "one", "all"]
TOLD, COURSE, SUMMARY = "settings.json", "course.jsonl", "best_of.json"


@dataclass(frozen=True)
class BestOfStats:
    """Of the samples so far: how many, how many answers were right, samples with a right one, rows and their tokens."""

    samples: int = 0
    answers: int = 0
    right: int = 0
    solved: int = 0
    rows: int = 0
    tokens: int = 0

    def __add__(self, other: BestOfStats) -> BestOfStats:
        return BestOfStats(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def __str__(self) -> str:
        share, long = self.right / max(1, self.answers), self.tokens / max(1, self.rows)
        return (
            f"{self.samples} samples: {share:.1%} of the answers right, {self.solved} samples with one; "
            f"kept {self.rows} of {long:.1f} tokens"
        )


def best_of(
    config: Config, *, out: str, samples: int | None = None, tries: int = 8, keep: Keep = "shortest"
) -> BestOfStats:
    """Answers samples of the training split `tries` times each and writes the right ones to the folder `out`.

    It holds episodes as `vlrl record` writes them, for `lessons: [{episodes: OUT}]` of a warm start. It appears when
    all are in it; the same call after an interruption goes on and ends with the same folder: each batch draws its own
    random numbers.

    Args:
        samples: so many, drawn at random without repetition; default: all.
        keep: of a sample's right answers the `shortest` in tokens (of equal ones the first), the first `one`, or
            `all` that differ.

    Raises:
        UserError: the folder is not free; the config's task or model is not as it should be; no answer was right.
    """
    with make_folder(Path(out), resumable=True) as part:
        total = _fill(config, part, samples, tries, keep)
        if not total.rows:
            shutil.rmtree(part)
            raise UserError(f"{total}: nothing to learn from: train first, or ask more often (--tries)")
        metrics.write_text(part / SUMMARY, json.dumps(asdict(total)) + "\n")
    return total


def _fill(config: Config, part: Path, samples: int | None, tries: int, keep: Keep) -> BestOfStats:
    """Answers the samples that an earlier call with the same settings has not."""
    task = registry.make_task(config)
    pool = task.samples("train")
    positions = Shuffled(len(pool), config.seed).draw(min(samples or len(pool), len(pool)))
    total = _resume_or_clear(
        part, {"config": config.model_dump(mode="json"), "tries": tries, "keep": keep, "samples": samples}
    )
    policy = load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    if not policy.writes_text:
        raise UserError("policy.model: `vlrl best-of` keeps what language models write; `vlrl demos` records robots")
    size = max(1, config.eval.batch_size // tries)
    with Progress(len(positions)) as progress:
        for start in range(total.samples, len(positions), size):
            policy.generator.manual_seed(config.seed + (start << 20))
            part_of_pool = [pool[i] for i in positions[start : start + size]]
            total += _best_of_kept(part, collect(policy, task, part_of_pool, tries), tries, keep)
            metrics.append_row(part / COURSE, asdict(total))
            progress.note(f"sample {total.samples}/{len(positions)}  {total}")
    return total


def _resume_or_clear(part: Path, settings: dict[str, Any]) -> BestOfStats:
    """What an interrupted call with the same settings had done by its last whole batch; else an empty folder."""
    text = json.dumps(settings)
    course = _rows(part / COURSE)
    if not course or not (part / TOLD).is_file() or (part / TOLD).read_text(encoding="utf-8") != text:
        shutil.rmtree(part, ignore_errors=True)
        (part / episode_store.IMAGES).mkdir(parents=True)
        metrics.write_text(part / TOLD, text)
        metrics.write_text(part / episode_store.FILE, "")
        return BestOfStats()
    total = BestOfStats(**course[-1])
    metrics.write_text(part / COURSE, "".join(json.dumps(row) + "\n" for row in course))
    rows = (part / episode_store.FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    metrics.write_text(part / episode_store.FILE, "".join(rows[: total.rows]))
    return total


def _rows(file: Path) -> list[dict[str, int]]:
    """A JSON object a line; one that was being written is left out."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [parse_log_row(line) for line in lines if line.endswith("\n")]


def _best_of_kept(part: Path, episodes: Sequence[Episode], tries: int, keep: Keep) -> BestOfStats:
    """Writes what is kept of a batch and counts it."""
    groups = [episodes[i : i + tries] for i in range(0, len(episodes), tries)]
    right = [[e for e in group if e.score.correct >= 1 - 1e-9] for group in groups]
    chosen = [episode for group in right for episode in pick(group, keep)]
    save = partial(_saved, part / episode_store.IMAGES)
    with (part / episode_store.FILE).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(episode_store.row_of(episode, save)) + "\n" for episode in chosen)
    return BestOfStats(
        len(groups), len(episodes), sum(map(len, right)), sum(map(bool, right)), len(chosen), sum(map(length, chosen))
    )


def pick(right: Sequence[Episode], keep: Keep) -> list[Episode]:
    """Of one sample's right episodes, those that are kept."""
    if keep == "shortest":
        return [min(right, key=length)] if right else []
    if keep == "one":
        return list(right[:1])
    return list({tuple(turn.decision.action for turn in episode.turns): episode for episode in right}.values())


def length(episode: Episode) -> int:
    """Tokens that the policy wrote in all turns."""
    return sum(len(turn.decision.logprobs) for turn in episode.turns)


def _saved(images: Path, image: Image.Image) -> str:
    name = episode_store.image_name(image)
    if not (images / name).exists():
        partial_name = images / f".{name}"
        image.save(partial_name, format="PNG")
        os.replace(partial_name, images / name)
    return name


# The held-out answers of every model that the stages made, asked for once.

ENDING = "held_out.json"


class Calls(Protocol):
    """Runs Python with arguments, what it says going behind a log; UserError where it fails."""

    def run(self, arguments: Sequence[str], log: Path) -> None: ...


def answered(plan: StagePlan, at_work: Calls) -> dict[str, dict[str, Any]]:
    """What each model that is there answers of the held-out samples: folder's name, or `start` -> its numbers."""
    models = {step.name: str(step.folder) for step in plan.steps if step.makes == "model" and step.finished}
    if plan.begin is not None:
        models = {"start": plan.begin} | models
    settings = plan.measured.model_dump(mode="json")
    files = {name: plan.out / f"{name}.{ENDING}" for name in models}
    left = [name for name, file in files.items() if held_out_read(file).get("settings") != settings]
    if left:
        write_text(plan.out / "held_out.yaml", dump(plan.measured))
        pairs = [part for name in left for part in (models[name], str(files[name]))]
        at_work.run(["-m", "vlrl.tools.stages", str(plan.out / "held_out.yaml"), *pairs], plan.out / "held_out.log")
    return {name: held_out_read(file) for name, file in files.items()}


def held_out_read(file: Path) -> dict[str, Any]:
    return load_json(file, finite=False) if file.is_file() else {}


# Hard samples: of those that `vlrl select` measured, the ones that are right as often as is wanted.
#
# Source: adaptive hard-sample mining, Fleming-R1, arXiv 2509.15279 (its rule is not given); thresholds are the user's.


def mined(rows: Sequence[Row], least: float, most: float) -> list[Row]:
    """The rows with `kept` set for those whose accuracy lies in least..most, both included."""
    return [row.model_copy(update={"kept": least <= row.accuracy <= most}) for row in rows]


def mine(measured: Path, out: Path, least: float, most: float) -> MeasuredShares:
    """Writes the list `out`, for `sampler: listed`. UserError where it keeps none."""
    rows = mined(selection_read(measured), least, most)
    total = samplers_summary(rows)
    if not total.kept:
        raise UserError(f"{measured}: {total}: none is right with a rate in [{least:g}, {most:g}]: widen pass_rate")
    metrics.write_text(out, "".join(map(selection_line, rows)))
    return total


# The table of a finished `vlrl stages`: what every stage did to one held-out accuracy.

HEAD = ("stage", "runs", "from", "its own task", "held out before", "after", "tokens", "CPU-s")


def write_report(
    plan: StagePlan, measured: Mapping[str, Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Writes summary.json and report.md and returns the summary.

    Args:
        measured: folder's name, or `start` -> numbers on the held-out samples.
        results: folder's name of finished stages -> what they say and spent.
    """
    summary = {
        "measured_on": plan.measured.task.name,
        "start": _numbers(measured.get("start")),
        "stages": [_row(plan, step, measured, results.get(step.name)) for step in plan.steps],
        "versions": {"vlrl": __version__, "commit": commit()}, "stages_file": plan.stages.model_dump(mode="json"),
    }  # fmt: skip
    write_text(plan.out / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_text(plan.out / "report.md", f"# {plan.out.name}\n\n{table(summary)}\n")
    return summary


def _row(
    plan: StagePlan, step: StageStep, measured: Mapping[str, Mapping[str, Any]], result: Mapping[str, Any] | None
) -> dict[str, Any]:
    values = dict((result or {}).get("said", {}))
    own = {when: values[when] for when in ("before", "after") if when in values}
    counts = {key: value for key, value in values.items() if step.stage.run in ("select", "best_of")}
    before = "" if step.start is None else _of_folder(plan, step.start)
    return {
        "name": step.name, "run": step.stage.run, "start": before or step.start, "task": step.task,
        "finished": result is not None, "own": own, "told": counts,
        "before": _numbers(measured.get(before)), "after": _numbers(measured.get(step.name)),
        "wall_s": result and result["wall_s"], "cpu_s": result and result["cpu_s"],
    }  # fmt: skip


def _of_folder(plan: StagePlan, model: str) -> str:
    """The name under which a model was measured; '' where it was not."""
    known = {str(step.folder): step.name for step in plan.steps} | ({plan.begin: "start"} if plan.begin else {})
    return known.get(model, "")


def _numbers(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: value for key, value in found.items() if key != "settings"} if found else None


def table(summary: Mapping[str, Any]) -> str:
    """Markdown. Accuracies with their 95 % intervals; of a stage that makes no model, what it kept."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_cells(row) for row in summary["stages"])]
    on = next((row["after"] or row["before"] for row in summary["stages"] if row["after"] or row["before"]), None)
    samples = f" on {on['n']} samples" if on else ""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([*lines, "", f"Held out: greedy accuracy{samples} of `{summary['measured_on']}`."])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    own, after = row["own"], row["after"]
    course = f": {own['before']['value']:.3f} to {own['after']['value']:.3f}" if len(own) == 2 else ""
    last = f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}]" if after else _report_kept(row)
    return (
        row["name"], row["run"], row["start"] or "new", row["task"] + course,
        f"{row['before']['value']:.3f}" if after and row["before"] else "", last,
        f"{after['length']:.1f}" if after else "", f"{row['cpu_s']:.0f}" if row["finished"] else "",
    )  # fmt: skip


def _report_kept(row: Mapping[str, Any]) -> str:
    counts = row["told"]
    if not row["finished"]:
        return "not finished"
    if row["run"] == "select":
        return f"kept {counts['kept']} of {counts['measured']}"
    if row["run"] == "best_of":
        return f"kept {counts['rows']}, {counts['right'] / max(1, counts['answers']):.1%} right"
    return ""


# Carries a plan out: each stage once, in its own process, resumed where it was stopped; then one table.

# what each kind writes last
LAST = {"train": "summary.json", "select": LIST, "best_of": "episodes.jsonl", "average": "config.json",
        "warmstart": "summary.json"}  # fmt: skip
RESUMABLE = ("train", "warmstart")


def run(plan: StagePlan, only: Sequence[str] = (), calls: Callable[[int], Calls] | None = None) -> dict[str, Any]:
    """Runs what has not finished, measures the models, and returns the summary; `out` holds it and report.md.

    Args:
        only: stages to run, by their names or those of their folders; none: all. The others are left as they are.
        calls: what runs the commands, given the lock's file descriptor; default: processes.

    Raises:
        UserError: a stage failed; earlier ones in `out` were made with other settings; one that is needed is not there.
    """
    steps = chosen(plan, only)
    with hold_folder(plan.out) as held, _stoppable():
        at_work = calls(held) if calls else Processes((held,))
        for step in plan.steps:
            _check(step)
        for step in steps:
            if not step.finished:
                _check_needs(plan, step)
                _run(step, at_work)
                print(f"{step.name}: done", file=sys.stderr, flush=True)
        held_out = answered(plan, at_work)
        return write_report(plan, held_out, {step.name: _result(step) for step in plan.steps if step.finished})


def chosen(plan: StagePlan, only: Sequence[str]) -> list[StageStep]:
    """The steps of these names. UserError for a name of none."""
    names = {name for step in plan.steps for name in (step.name, step.stage.name)}
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"stages: no stage is called {unknown[0]!r}{suggest(unknown[0], sorted(names))}")
    return [step for step in plan.steps if not only or {step.name, step.stage.name} & set(only)]


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: what runs beneath it is asked to save."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(step: StageStep) -> None:
    """UserError where the stage was begun with other settings."""
    if state := step.state:
        check_same(step.folder, state["settings"], step.settings())


def _check_needs(plan: StagePlan, step: StageStep) -> None:
    for other in plan.steps:
        if other.name in step.needs and not other.finished:
            raise UserError(f"stages: {step.name} needs {other.name}, which has not finished: run it as well")


def _run(step: StageStep, at_work: Calls) -> None:
    """One stage to its end, and a note of it."""
    step.folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(step.sibling_file(STATE), json.dumps({"settings": step.settings(), "finished": None}) + "\n")
    write_text(step.sibling_file("yaml"), step.text())
    wall, cpu = time.monotonic(), _cpu_s()
    _carry_out(step, at_work)
    spent = {"wall_s": time.monotonic() - wall, "cpu_s": _cpu_s() - cpu}
    if step.stage.run in RESUMABLE:  # of all its processes, if it was resumed
        spent = {key: held_out_read(step.folder / LAST[step.stage.run])[key] for key in spent}
    write_text(step.sibling_file(STATE), json.dumps({"settings": step.settings(), "finished": spent}) + "\n")


def _carry_out(step: StageStep, at_work: Calls) -> None:
    """Its command, unless an earlier call got as far; for hard samples also the choice."""
    call, rate = command(step), step.stage.pass_rate if isinstance(step.stage, Select) else None
    if step.stage.run in RESUMABLE and (step.folder / "config.yaml").is_file():
        call = [step.stage.run, "--resume", str(step.folder)]
    if step.stage.run == "select":
        step.folder.mkdir(exist_ok=True)
    last = MEASURED if rate else LAST[step.stage.run]
    try:
        if not (step.folder / last).is_file():
            at_work.run(["-m", "vlrl.cli", *call], step.sibling_file("log"))
    except UserError:  # a list that disagrees nowhere may still hold what is as hard as is wanted
        if not (rate and (step.folder / MEASURED).is_file()):
            raise
    if rate:
        mine(step.folder / MEASURED, step.folder / LIST, *rate)


def _result(step: StageStep) -> dict[str, Any]:
    """What a finished stage says of itself."""
    of = {"train": LAST["train"], "best_of": "best_of.json"}
    values = held_out_read(step.folder / of[step.stage.run]) if step.stage.run in of else {}
    if step.stage.run == "select":
        from vlrl.algorithms.samplers import selection_read, summary

        values = vars(summary(selection_read(step.folder / LIST)))
    return {"said": values, **step.state["finished"]}


def _cpu_s() -> float:
    """Processor seconds of processes that ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
