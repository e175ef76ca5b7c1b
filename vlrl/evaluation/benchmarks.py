"""Benchmarks by name: lmms-eval's task definitions on a policy, with intervals and our strict parsers beside them.

lmms-eval's prompts, answer processing and aggregation run as they are (`vlrl.evaluation.lmms`). Where a task of ours
reads the same answers, each is also scored by it: in its tags, alone, in the coordinates that the benchmark asks for.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl.config import Config, EvalSection, PolicySection, Section, is_training_config, load_as, make_as
from vlrl.decoders import parse_json
from vlrl.engines import load_policy
from vlrl.evaluation.score import make_scorer
from vlrl.evaluation.stats import bootstrap
from vlrl.system.hub import reach_hub, reach_model
from vlrl.types import Estimate, Policy, UserError, meant, wilson

ALIASES = {
    "charades": "temporal_grounding_charades", "charades_sta": "temporal_grounding_charades", "mmmu": "mmmu_val",
    "refcoco": "refcoco_bbox_rec_val", "refcoco+": "refcoco+_bbox_rec_val", "refcocog": "refcocog_bbox_rec_val",
    "screenspot": "screenspot_rec_test", "vsi_bench": "vsibench",
}  # fmt: skip
SPLITS = ("test_split", "validation_split", "fewshot_split", "training_split")  # keys of a definition
ENDINGS = (".parquet", ".jsonl", ".json", ".csv")
EVALUATING = ("auxsolidmath", "mathvision", "megabench")  # folders of tasks whose scorers run answers as Python
MAX_TOKENS = 1024  # of an answer, where a benchmark does not say: as lmms-eval asks servers
CLOSE = 1e-4  # within which a mean is the official score: some of those are rounded
Row = Mapping[str, Any]


class BenchmarkConfig(Section):
    """What `vlrl eval MODEL --benchmark NAME key=value ...` may set."""

    policy: PolicySection = PolicySection()
    eval: EvalSection = EvalSection(batch_size=8)


@dataclass(frozen=True)
class Match:
    """A task of ours that reads the answers of a benchmark."""

    task: str
    metric: str  # the benchmark's, which says the same of an answer
    columns: tuple[str, ...]
    truth: Callable[[Row], dict[str, Any]]  # columns -> fields of `vlrl.evaluation.score.TaskRow`
    scale: float = 1.0  # of the metric
    single: Callable[[Row], float] | None = None  # a document's record -> its score; None: the aggregation says it


@dataclass
class StrictScores:
    """Answers scored by our task, beside the benchmark."""

    match: Match
    correct: dict[int, float] = field(default_factory=dict)  # by the number of the document
    reasons: Counter = field(default_factory=Counter)  # why answers could not be read
    unscored: int = 0  # documents whose truth our task cannot express

    def __post_init__(self):
        self.scorer = make_scorer(self.match.task)

    def add(self, number: int, row: Row, completion: str) -> None:
        """Scores an answer; thoughts are allowed where it begins with them."""
        thinking = {"thinking": True} if completion.lstrip().startswith("<think>") else {}
        try:
            scored = self.scorer(number, {**self.match.truth(row), "completion": completion, "task": thinking})
        except (UserError, ValueError, TypeError, SyntaxError):
            self.unscored += 1
            return
        self.correct[number] = scored["correct"]
        if scored["reason"]:
            self.reasons[scored["reason"]] += 1


# The answers of which benchmarks our tasks read.


def box_truth(row: Row) -> dict[str, Any]:
    """A box in pixels of its image, in whose shares the benchmark asks for it.

    Files have [x1, y1, x2, y2] in shares or pixels, or [x, y, width, height] in pixels, told apart as lmms-eval does.
    """
    size = row["image"].size
    x, y, right, bottom = map(float, parse_json(row["bbox"]) if isinstance(row["bbox"], str) else row["bbox"])
    if max(x, y, right, bottom) <= 1:
        x, y, right, bottom = x * size[0], y * size[1], right * size[0], bottom * size[1]
    elif right <= x or bottom <= y:
        right, bottom = x + right, y + bottom
    return {"answer": [x, y, right, bottom], "image_size": list(size), "coordinates": "rel1"}


def span_truth(row: Row) -> dict[str, Any]:
    """A span of a video, in seconds."""
    stamp = row["timestamp"]
    return {"answer": [[float(each) for each in (parse_json(stamp) if isinstance(stamp, str) else stamp)]]}


def answer_truth(row: Row) -> dict[str, Any]:
    """The letter of an option, or a text; of several right texts any."""
    listed = ast.literal_eval(row["options"]) if isinstance(row.get("options"), str) else row.get("options") or ()
    answer = row["answer"].strip()
    if answer.startswith("[") and not listed:  # MMMU writes several right answers as a list
        first, *also = map(str, ast.literal_eval(answer))
        return {"answer": {"kind": "text", "answer": first, "also": also}}
    is_letter, is_number = len(answer) == 1 and answer.isalpha(), answer.replace(".", "", 1).removeprefix("-").isdigit()
    kind = "choice" if listed or is_letter else "number" if is_number else "text"
    return {"answer": {"kind": kind, "answer": answer, "options": [str(each) for each in listed]}}


def spatial_truth(row: Row) -> dict[str, Any]:
    """VSI-Bench's (2412.14171): the letter of an option, or a number whose relative error counts."""
    about = {"options": row["options"]} if row["options"] else {"kind": "relative accuracy"}
    return {"answer": {"answer": row["ground_truth"], **about}}


def spatial_score(record: Row) -> float:
    """VSI-Bench's score of one answer; its aggregation takes no fewer than all categories."""
    return float(next(record[name] for name in ("accuracy", "MRA:.5:.95:.05") if name in record))


PLACE = ("image", "bbox")
MATCHES = {  # what a benchmark's name begins with -> the task
    "screenspot_v2": Match("gui_grounding", "screenspot_v2_action_acc", (*PLACE, "instruction"), box_truth),
    "screenspot_pro": Match("gui_grounding", "screenspot_pro_action_acc", (*PLACE, "instruction"), box_truth),
    "screenspot_rec": Match("referring", "screenspot_ACC@0.5", (*PLACE, "instruction"), box_truth),
    "refcoco_bbox_rec": Match("referring", "refcoco_ACC@0.5", (*PLACE, "answer"), box_truth),
    "refcoco+_bbox_rec": Match("referring", "refcoco_ACC@0.5", (*PLACE, "answer"), box_truth),
    "refcocog_bbox_rec": Match("referring", "refcoco_ACC@0.5", (*PLACE, "answer"), box_truth),
    "temporal_grounding_charades": Match(
        "temporal_grounding", "charades_sta_IOU@5", ("video", "caption", "timestamp"), span_truth, scale=100.0
    ),
    "mmmu_val": Match("visual_reasoning", "mmmu_acc", ("id", "question", "options", "answer"), answer_truth),
    "mmstar": Match("visual_reasoning", "average", ("image", "question", "answer"), answer_truth),
    "vsibench": Match(
        "video_qa", "vsibench_overall", ("question", "options", "ground_truth"), spatial_truth, single=spatial_score
    ),
    "realworldqa": Match("visual_reasoning", "exact_match", ("image", "question", "answer"), answer_truth),
}


def find_match(name: str, definition: Mapping[str, Any]) -> Match | None:
    """The task of ours for a benchmark, or a variant of it that keeps its metric; None: there is none."""
    metrics = [each["metric"] for each in definition.get("metric_list") or ()]
    matches = (match for start, match in MATCHES.items() if name.startswith(start))
    return next((match for match in matches if match.metric in metrics), None)


# Names and data.


def find_benchmark(name: str) -> tuple[str, Path]:
    """A benchmark's name in lmms-eval, and its definition there. Loads nothing of lmms-eval.

    Raises:
        UserError: there is none of the name, with the nearest; it is a group, with its members; without lmms-eval,
            vlrl does not name it.
        ModuleNotFoundError: lmms-eval is not installed.
    """
    spec = importlib.util.find_spec("lmms_eval")
    if spec is None or spec.origin is None:
        if name not in ALIASES and not name.startswith(tuple(MATCHES)):
            near = meant(name, [*ALIASES, *MATCHES])
            more = "lmms-eval, which is not installed, has others: pip install 'vlrl[benchmarks]'"
            raise UserError(f"--benchmark {name}: not a name that vlrl knows{near} ({more})")
        raise ModuleNotFoundError("no lmms_eval", name="lmms_eval")
    name = ALIASES.get(name, name)
    tasks, groups = {}, {}
    for file in sorted((Path(spec.origin).parent / "tasks").rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        if task := re.search(r"""^task: *["']?([^\s"']+)["']?\s*$""", text, re.MULTILINE):
            tasks[task[1]] = file
        elif group := re.search(r"^group: *(\S+)", text, re.MULTILINE):
            groups[group[1]] = re.findall(r"^\s*- (?:task: *)?([\w+.-]+)\s*$", text, re.MULTILINE)
    if name in tasks and tasks[name].parent.name in EVALUATING:
        raise UserError(f"--benchmark {name}: lmms-eval's scorer runs parts of answers as Python: refused here")
    if name in tasks:
        return name, tasks[name]
    if name in groups:
        raise UserError(f"--benchmark {name}: a group: name one of {', '.join(groups[name])}")
    raise UserError(f"--benchmark {name}: lmms-eval has no such task{meant(name, [*tasks, *ALIASES])}")


def check_definition(name: str, definition: Mapping[str, Any]) -> None:
    """UserError where a task asks for something else than one answer a question."""
    kind = "a class of its own" if "class" in definition else definition.get("output_type", "generate_until")
    if kind != "generate_until":
        raise UserError(f"--benchmark {name}: it asks for {kind}, not for one answer a question: run lmms-eval itself")


def find_files(source: str, splits: Sequence[str], subset: str | None = None) -> dict[str, list[Path]]:
    """The files of each split: `test.parquet`, `test-00000-of-00002.parquet`, `data/test/0.jsonl`, or the one file.

    Args:
        source: a file, or a folder.
        splits: the first must be there.
        subset: of the data set; a folder of its name is looked in alone.

    Raises:
        UserError: there are none of the first split.
    """
    folder = Path(source)
    if folder.is_file() and folder.suffix in ENDINGS:
        return {splits[0]: [folder]}
    if not folder.is_dir():
        raise UserError(f"--data {source}: no folder, and no file ending in {', '.join(ENDINGS)}")
    folder = folder / subset if subset and (folder / subset).is_dir() else folder
    files = sorted(file for file in folder.rglob("*") if file.suffix in ENDINGS and file.is_file())
    listed = {
        split: [
            file for file in files if re.match(rf"{re.escape(split)}([-_.]|$)", file.stem) or file.parent.name == split
        ]
        for split in splits
    }
    if not listed[splits[0]]:
        hint = f"name a file {splits[0]}.parquet or {splits[0]}.jsonl"
        raise UserError(f"--data {source}: no rows of the split {splits[0]!r}: {hint}")
    endings = {split: each[0].suffix for split, each in listed.items() if each}
    return {split: [file for file in listed[split] if file.suffix == ending] for split, ending in endings.items()}


def read_settings(source: str, changes: Sequence[Any]) -> BenchmarkConfig:
    """A run, a model's folder or hub name, or a training YAML -> the policy, as the run trained it, with changes.

    Raises:
        UserError: as `vlrl.config.load_as`.
    """
    path, policy = Path(source), {}
    file = path / "config.yaml" if path.is_dir() else path
    if file.is_file() and is_training_config(file):
        policy = load_as(Config, file).policy.model_dump(mode="json")
        del policy["max_tokens"]  # the benchmark says how long answers are, or a change
    if not path.is_file():
        policy["model"] = source
    return make_as(BenchmarkConfig, {"policy": policy}, changes, source)


# Scores with their intervals.


def estimate(aggregate: Callable[[Sequence[Any]], Any], records: Sequence[Any], scale: float = 1.0) -> Estimate | None:
    """An official score of documents with its 95 % interval; None: it is no number.

    Wilson's where the score is the documents' mean, else that of a bootstrap over documents, of what the benchmark's
    own aggregation makes of them.

    Args:
        records: what the benchmark keeps of each document, [N].
        scale: of the score, 1 or 100; raised where the scores show it.
    """

    def measure(sample: Sequence[Any]) -> float:
        try:
            return float(aggregate(sample))
        except (ArithmeticError, LookupError, TypeError, ValueError):  # none, or too few for it
            return math.nan

    value, n = measure(records), len(records)
    if math.isnan(value):
        return None
    is_of_each = not math.isnan(measure(records[:1]))
    each = [measure([record]) for record in records] if is_of_each else [math.nan]
    top = 100.0 if max(value, *each) > 1 else scale
    if min(each) >= 0 and max(each) <= top and abs(sum(each) / n - value) <= CLOSE * top:
        low, high = wilson(sum(each) / top, n)
        return Estimate(value, low * top, high * top, n)
    return Estimate(value, *bootstrap(measure, records), n)


def summarise_strict(strict: StrictScores, official: Mapping[int, float]) -> dict[str, Any]:
    """Our accuracy, why answers could not be read, and how often both say the same.

    Args:
        official: number of a document -> the benchmark's score of it in [0, 1].
    """
    n = len(strict.correct)
    if not n:
        return {"task": strict.match.task, "n": 0, "unscored": strict.unscored}
    total = sum(strict.correct.values())
    same = sum((official.get(number, 0.0) > 0.5) == (correct > 0.5) for number, correct in strict.correct.items())
    return {
        "task": strict.match.task, "metric": "accuracy", **vars(Estimate(total / n, *wilson(total, n), n)),
        "agrees_with": strict.match.metric, "agreement": same / n, "unscored": strict.unscored,
        "parse_fail": {reason: count / n for reason, count in sorted(strict.reasons.items())},
    }  # fmt: skip


def summarise_benchmark(task: Any, samples: Sequence[Row], strict: StrictScores | None) -> dict[str, Any]:
    """Every metric, one of them as the result's own, and what our parser says."""
    scores, singles = {}, {}
    scale, own = (strict.match.scale, strict.match.metric) if strict else (1.0, next(iter(task.aggregations())))
    for metric, aggregate in task.aggregations().items():
        records = {sample["doc_id"]: sample[metric] for sample in samples if metric in sample}
        if not records or (score := estimate(aggregate, list(records.values()), scale)) is None:
            continue
        # of how many documents a 0 is, is not known of a metric that leaves some out: it has no interval
        scores[metric] = vars(score) if score.value or metric == own else {"value": 0.0, "n": score.n}
        if strict and metric == own:
            single = strict.match.single or (lambda record, whole=aggregate: float(whole([record])))
            singles = {number: single(record) / scale for number, record in records.items()}
    if own not in scores:
        raise UserError("its scores are no numbers: it writes answers for a server that scores them")
    result = {"metric": own, **scores[own], "metrics": scores}
    return result | ({"strict": summarise_strict(strict, singles)} if strict else {})


def evaluate_benchmark(
    name: str,
    source: str,
    config: BenchmarkConfig,
    read_video: Callable[[str], Any],
    *,
    data: str | None = None,
    strip_tags: bool = False,
) -> dict[str, Any]:
    """Runs a benchmark of lmms-eval on a policy -> what `vlrl eval --json` prints.

    Args:
        source: of the policy, for messages.
        data: a file or folder of rows with the benchmark's columns; None: it is fetched from the hub.
        strip_tags: the benchmark's scorer is shown what stands inside `<answer>` alone.

    Raises:
        UserError: one line of what the user can mend.
        ModuleNotFoundError: lmms-eval is not installed.
    """
    name, file = find_benchmark(name)
    if data is not None and not Path(data).exists():
        raise UserError(f"--data {data}: there is no such file or folder")
    from vlrl.evaluation import lmms

    with lmms.explain_errors(name):
        definition = lmms.read_definition(file)
    check_definition(name, definition)
    rows = None
    if data is None:
        reach_hub(definition["dataset_path"], "datasets")
    else:
        splits = [definition[key] for key in SPLITS if definition.get(key)]
        rows = lmms.read_rows(find_files(data, splits, definition.get("dataset_name")), data)
    policy, greedy = _load(config, definition.get("generation_kwargs") or {}, source)
    prompts = policy.model.config.model_type
    strict = StrictScores(match) if (match := find_match(name, definition)) else None
    folder = None if data is None else Path(data) if Path(data).is_dir() else Path(data).parent
    cache = (definition.get("dataset_kwargs") or {}).get("cache_dir")
    with lmms.media_folder(folder, cache), contextlib.redirect_stdout(sys.stderr):  # scorers print
        with lmms.explain_errors(name, list(next(iter(rows.values())).features) if rows else ()):
            task = lmms.load_task(file, rows, prompts)
            task.check(match.columns if match else ())
        settings = {"batch": config.eval.batch_size, "greedy": greedy, "strip_tags": strip_tags}
        model = lmms.PolicyModel(policy, read_video, strict.add if strict else lambda *answer: None, **settings)
        samples = lmms.run_task(task, model, config.eval.num_samples)["samples"][name]
    with contextlib.redirect_stdout(None):
        result = summarise_benchmark(task, samples, strict)
    return {"benchmark": name, "model": source, **result, "prompts": prompts, "lmms_eval": lmms.VERSION,
            "data": data or definition["dataset_path"]}  # fmt: skip


def _load(config: BenchmarkConfig, generation: Mapping[str, Any], source: str) -> tuple[Policy, bool]:
    """The policy with the benchmark's length of answers and temperature, and whether it is greedy."""
    temperature = float(generation.get("temperature") or 0)
    changes: dict[str, Any] = {"temperature": temperature} if temperature else {}
    if "max_tokens" not in config.policy.model_fields_set:
        changes["max_tokens"] = int(generation.get("max_new_tokens", MAX_TOKENS))
    reach_model(config.policy.model)
    policy = load_policy(config.policy.model_copy(update=changes))
    if not policy.writes_text:
        raise UserError(f"{source}: writes no text: --benchmark is for vision-language models")
    return policy, not temperature


def format_benchmark(result: Mapping[str, Any]) -> str:
    """The result in lines."""
    lines = [f"{result['benchmark']}: {_format(result, result['metric'])}"]
    lines += [f"  {_format(each, name)}" for name, each in result["metrics"].items() if name != result["metric"]]
    if (strict := result.get("strict")) and strict["n"]:
        lines.append(f"strict parser of {strict['task']}: {_format(strict, 'accuracy')}; agrees with "
                     f"{strict['agrees_with']} on {strict['agreement']:.3f}")  # fmt: skip
        lines += [f"  {reason}  {share:.3f}" for reason, share in strict["parse_fail"].items()]
    return "\n".join(lines)


def _format(score: Mapping[str, Any], name: str) -> str:
    interval = f" [{score['low']:.3f}, {score['high']:.3f}]" if "low" in score else ""
    return f"{name} {score['value']:.3f}{interval} on {score['n']} samples"
