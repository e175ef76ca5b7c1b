"""Metrics of an evaluation: COCO's, OVDEval's, actions, temporal grounding, breakdowns by group."""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rewards.boxes import Box, iou, ious, normal
from rewards.gui import PLACED, Action
from rewards.intervals import Interval, iop, tiou
from rewards.parse import Object
from tasks.gui_formats import GuiTruth, odyssey_step, os_atlas_place, os_atlas_step
from vlrl.types import Episode

# Accuracy by category, and the best that one constant click would do: what benchmarks report beside the headline.

Values = Iterable[tuple[str, float]]  # (category, value) of each sample
GRID = 20  # candidate points along each side
CANDIDATES = 1000  # boxes that are tried
CHUNK = 256  # candidates compared with all targets at once


def mean(values: Sequence[float]) -> float:
    """0 for no values."""
    return sum(values) / len(values) if values else 0.0


def by_category(values: Values) -> dict[str, float]:
    """Mean by category, sorted; one without a single hit stays, as 0. Samples without a category are left out."""
    sums: dict[str, list[float]] = defaultdict(list)
    for category, value in values:
        if category:
            sums[category].append(value)
    return {category: mean(listed) for category, listed in sorted(sums.items())}


def accuracy_by(episodes: Sequence[Episode], *keys: str) -> dict[str, float]:
    """Accuracy by what the tags say, as `mobile/text`; samples that lack one of the tags are left out."""
    return by_category(
        ("/".join(e.sample.tags[key] for key in keys), e.score.correct)
        for e in episodes
        if all(key in e.sample.tags for key in keys)
    )


def parse_failures(episodes: Sequence[Episode]) -> float:
    """The share of completions that could not be read."""
    return mean([float(e.score.reason is not None) for e in episodes])


def best_constant_click(
    boxes: Sequence[Sequence[float]], sizes: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """(accuracy, x, y): the one point, in shares of the image, that would hit the most targets without looking.

    Args:
        boxes: n targets, corners in pixels.
        sizes: width and height of each target's image.

    Candidates are the middles of a GRID x GRID raster and the targets' centres; borders count as hits.
    """
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    low, high = np.split(np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / scale, 2, axis=1)
    if not len(low):
        return 0.0, 0.5, 0.5
    raster = (np.arange(GRID) + 0.5) / GRID
    points = np.concatenate([np.stack(np.meshgrid(raster, raster), -1).reshape(-1, 2), (low + high) / 2])
    hits = np.concatenate([
        ((chunk[:, None] >= low) & (chunk[:, None] <= high)).all(-1).mean(1)
        for chunk in np.split(points, range(CHUNK, len(points), CHUNK))
    ])  # fmt: skip
    best = int(hits.argmax())
    return float(hits[best]), float(points[best, 0]), float(points[best, 1])


def best_constant_box(boxes: Sequence[Sequence[float]], sizes: Sequence[Sequence[float]], least: float) -> float:
    """The share of targets that the best single box, in shares of the image, overlaps with an IoU of at least `least`.

    Candidates are up to CANDIDATES of the targets, evenly spread. Arguments as for `best_constant_click`.
    """
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    shares = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / scale
    candidates = shares[:: max(1, -(-len(shares) // CANDIDATES))]
    return max((float((ious([box], shares) >= least).mean()) for box in candidates), default=0.0)


def best_constant_list(truths: Sequence[Sequence[Box]], sizes: Sequence[Sequence[float]], least: float) -> float:
    """The F1 over all images that the best single box, in shares of the image and the same for all, would have.

    Args:
        truths: the boxes of each image, corners in pixels.
        sizes: width and height of each image.
        least: the IoU from which on a box is found.
    """
    number = [i for i, boxes in enumerate(truths) for _ in boxes]
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    shares = np.asarray([box for boxes in truths for box in boxes], dtype=np.float64).reshape(-1, 4) / scale[number]
    best = 0
    for candidate in shares[:: max(1, -(-len(shares) // CANDIDATES))]:
        hit = ious([candidate], shares)[0] >= least
        best = max(best, len(set(np.asarray(number)[hit].tolist())))
    return 2 * best / (len(truths) + len(shares)) if len(shares) else 0.0


# COCO's average precision and recall, computed by pycocotools (github.com/cocodataset/cocoapi) on lists of objects.

STATS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@dataclass(frozen=True)
class Case:
    """One image: what was predicted, in the order of emission, and what is there.

    `scores` of the predictions, `crowd` and `areas` (square pixels, as annotated) of the truths; () is 1.0 for each,
    no crowd, and the boxes' areas. Labels are compared without case and outer spaces.
    """

    predicted: Sequence[Object]
    truths: Sequence[Object]
    scores: Sequence[float] = ()
    crowd: Sequence[bool] = ()
    areas: Sequence[float] = ()
    asked: Collection[str] | None = None  # labels judged on this image, None: all (LVIS judges a few of many)
    unsure: Collection[str] = ()  # labels of which not all objects are marked: others of them are no mistake (LVIS)


def summary(cases: Sequence[Case]) -> dict[str, float]:
    """pycocotools's twelve numbers, in [0, 1]; -1 where there is no truth to find (of that size).

    AP is the mean over labels that have truths and IoU 0.5 to 0.95, s, m, l by area (32 x 32, 96 x 96), AR1, 10, 100
    with so many boxes for each image and label. Predictions of a label that no image has are not counted, as in COCO.
    """
    return summarized(*annotations(cases), cases)


def by_label(cases: Sequence[Case]) -> dict[str, float]:
    """AP of each label that has a truth, sorted."""
    truth, predictions = annotations(cases)
    precision = _evaluated(truth, predictions, cases).eval["precision"][:, :, :, 0, -1]  # [IoU, recall, label]
    means = {category["name"]: precision[:, :, i] for i, category in enumerate(truth["categories"])}
    return {name: float(values[values > -1].mean()) for name, values in sorted(means.items()) if (values > -1).any()}


def annotations(cases: Sequence[Case], first: int = 1) -> tuple[dict, list[dict]]:
    """The cases as COCO's JSON: (truth, predictions). Truths are numbered from `first`.

    Numbers must start at 1 for pycocotools: it takes a match with number 0 for none.
    """
    names = sorted({normal(thing.label) for case in cases for thing in case.truths})
    ids = {name: i for i, name in enumerate(names, start=1)}
    marked = [each for image, case in enumerate(cases) for each in _truths(image, case, ids)]
    truth = {
        "images": [{"id": image} for image in range(len(cases))],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
        "annotations": [{**each, "id": number} for number, each in enumerate(marked, start=first)],
    }
    return truth, [each for image, case in enumerate(cases) for each in _predictions(image, case, ids)]


def _truths(image: int, case: Case, ids: dict[str, int]) -> Iterator[dict]:
    crowd = case.crowd or (False,) * len(case.truths)
    areas = case.areas or [_width(o) * _height(o) for o in case.truths]
    for thing, many, area in zip(case.truths, crowd, areas, strict=True):
        yield {**_box(image, thing, ids), "iscrowd": int(many), "area": area}


def _predictions(image: int, case: Case, ids: dict[str, int]) -> Iterator[dict]:
    labels = None if case.asked is None else {normal(label) for label in case.asked}
    for thing, score in zip(case.predicted, case.scores or (1.0,) * len(case.predicted), strict=True):
        if normal(thing.label) in ids and (labels is None or normal(thing.label) in labels):
            yield {**_box(image, thing, ids), "score": score}


def _box(image: int, found: Object, ids: dict[str, int]) -> dict:
    corner = [float(found.box[0]), float(found.box[1])]
    return {
        "image_id": image,
        "category_id": ids[normal(found.label)],
        "bbox": [*corner, _width(found), _height(found)],
    }


def _width(found: Object) -> float:
    return float(found.box[2] - found.box[0])


def _height(found: Object) -> float:
    return float(found.box[3] - found.box[1])


def summarized(truth: dict, predictions: list[dict], cases: Sequence[Case] = ()) -> dict[str, float]:
    """The twelve numbers of COCO's JSON."""
    evaluated = _evaluated(truth, predictions, cases)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluated.summarize()
    return dict(zip(STATS, map(float, evaluated.stats), strict=True))


def _evaluated(truth: dict, predictions: list[dict], cases: Sequence[Case]) -> COCOeval:
    """pycocotools's evaluation, silent and complete but for the summary."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        results = known.loadRes(predictions) if predictions else _nothing(truth)
        evaluated = COCOeval(known, results, "bbox")
        evaluated.evaluate()
        _forgive(evaluated, truth, cases)
        evaluated.accumulate()
    return evaluated


def _nothing(truth: dict) -> COCO:
    """No predictions, which pycocotools does not load."""
    empty = COCO()
    empty.dataset = {**truth, "annotations": []}
    empty.createIndex()
    return empty


def _forgive(evaluated: COCOeval, truth: dict, cases: Sequence[Case]) -> None:
    """Unmatched boxes of a label that an image is unsure of count neither way."""
    unsure = {image: {normal(label) for label in case.unsure} for image, case in enumerate(cases) if case.unsure}
    names = {category["id"]: category["name"] for category in truth["categories"]}
    for image in filter(None, evaluated.evalImgs if unsure else ()):
        if names[image["category_id"]] in unsure.get(image["image_id"], ()):
            image["dtIgnore"] = np.logical_or(image["dtIgnore"], image["dtMatches"] == 0)


# What the GUI action benchmarks report, over all samples that they ask about.
#
# The published evaluators differ; docs/gui_data.md has the list. GUI-R1's counts a category only from its first hit on,
# has no step success for actions without place or text, gives it to the right place of a wrong action, and measures
# to a
# box's corner. OS-Atlas compares the second word of a text only. GUI-Odyssey takes any text that contains the other.


@dataclass(frozen=True)
class ScoredStep:
    """One scored step: the right action, the model's (None: not readable), and the episode that it was taken in."""

    truth: GuiTruth
    action: Action | None
    episode: Episode

    @property
    def correct(self) -> float:
        return self.episode.score.correct

    @property
    def right_kind(self) -> float:
        return float(self.action is not None and self.action.kind == self.truth.kind)

    def by(self, rule: Callable[[Action, GuiTruth, tuple[int, int]], float]) -> float:
        """What a rule of tasks/gui_formats.py says; nothing is right that cannot be read."""
        return rule(self.action, self.truth, self.episode.frames[0].original) if self.action else 0.0

    def tag(self, name: str) -> str:
        return self.episode.sample.tags.get(name, "")


def metrics(steps: Sequence[ScoredStep]) -> dict[str, float]:
    """Shares in 0 to 1.

    `type`: the kind is right; `grounding`: so is the place, over samples that have one; `step`: kind and argument;
    `step_macro`: its mean over the true kinds; `step/KIND`, `group/GROUP`: by true kind and by the data set's group;
    `os_atlas/..`: grounding and step by 14 % of the screen; `gui_odyssey/..`: see `odyssey`; `parse_fail`: what cannot
    be read; `zero_hit`: the number of kinds without a single right step.
    """
    kinds = by_category((step.truth.kind, step.correct) for step in steps)
    groups = by_category((step.tag("group"), step.correct) for step in steps)
    placed = [step for step in steps if step.truth.kind in PLACED]
    return {
        "type": mean([step.right_kind for step in steps]),
        "grounding": mean([step.correct for step in placed]),
        "step": mean([step.correct for step in steps]),
        "step_macro": mean(list(kinds.values())),
        **{f"step/{kind}": value for kind, value in kinds.items()},
        **{f"group/{group}": value for group, value in groups.items()},
        "os_atlas/grounding": mean([step.right_kind * step.by(os_atlas_place) for step in placed]),
        "os_atlas/step": mean([step.by(os_atlas_step) for step in steps]),
        **odyssey([step for step in steps if step.tag("episode")]),
        "parse_fail": parse_failures([step.episode for step in steps]),
        "zero_hit": float(sum(value == 0 for value in kinds.values())),
    }


def odyssey(steps: Sequence[ScoredStep]) -> dict[str, float]:
    """GUI-Odyssey's numbers, where samples are steps of episodes; {} where they are not.

    `ams`: share of right steps; `episode`: share of episodes all of whose steps are right; each over all and as the
    mean over categories (`_macro`; the benchmark's own script calls that one micro). Episodes of which steps are
    missing are left out and counted as `incomplete`.
    """
    if not steps:
        return {}
    scored = [(step, step.by(odyssey_step)) for step in steps]
    ams = by_category((step.tag("category"), value) for step, value in scored)
    episodes: dict[str, list[tuple[ScoredStep, float]]] = {}
    for step, value in scored:
        episodes.setdefault(step.tag("episode"), []).append((step, value))
    whole = [taken for taken in episodes.values() if len(taken) == int(taken[0][0].tag("steps"))]
    done = [(taken[0][0].tag("category"), float(all(value for _, value in taken))) for taken in whole]
    return {
        "gui_odyssey/ams": mean([value for _, value in scored]),
        "gui_odyssey/ams_macro": mean(list(ams.values())),
        "gui_odyssey/episode": mean([value for _, value in done]),
        "gui_odyssey/episode_macro": mean(list(by_category(done).values())),
        "gui_odyssey/incomplete": float(len(episodes) - len(whole)),
    }


# What benchmarks of phrases, counts and classes report. An unreadable answer is None and counts against the model.

FOUND = 0.5  # IoU from which a phrase's box is found


def referring(predicted: Sequence[Box | None], truths: Sequence[Box]) -> dict[str, float]:
    """`acc50`: share of boxes with an IoU of at least 0.5; `miou`: mean IoU. In [0, 1], None has an IoU of 0.

    Sources: RefCOCO's Acc@0.5 as MDETR (2104.12763) counts it. VLM-R1's evaluation asks for more than 0.5.
    """
    overlaps = [iou(box, truth) if box else 0.0 for box, truth in zip(predicted, truths, strict=True)]
    return {"acc50": mean([float(overlap >= FOUND) for overlap in overlaps]), "miou": mean(overlaps)}


def counting(predicted: Sequence[float | None], truths: Sequence[int]) -> dict[str, float]:
    """`exact`: share of right counts; `mae`, `rmse`: mean absolute and root mean squared error, at least 0.

    None is never exact and else counts as the answer 0, so that saying nothing does not make the errors smaller.
    """
    errors = [(number or 0) - truth for number, truth in zip(predicted, truths, strict=True)]
    right = [float(number == truth) for number, truth in zip(predicted, truths, strict=True)]
    return {
        "exact": mean(right),
        "mae": mean([abs(error) for error in errors]),
        "rmse": math.sqrt(mean([error**2 for error in errors])),
    }


def classification(predicted: Sequence[str | None], truths: Sequence[str]) -> dict[str, float]:
    """Shares in [0, 1], names compared without case and outer spaces.

    `top1`: over samples; `class/NAME`: by true class, also where nothing is right; `macro`: their mean; `zero_hit`: the
    number of classes without a right answer.
    """
    right = [
        float(name is not None and normal(name) == normal(truth)) for name, truth in zip(predicted, truths, strict=True)
    ]
    classes = by_category(zip(truths, right, strict=True))
    return {
        "top1": mean(right),
        "macro": mean(list(classes.values())),
        **{f"class/{name}": value for name, value in classes.items()},
        "zero_hit": float(sum(value == 0 for value in classes.values())),
    }


def harmonic_mean(base: float, new: float) -> float:
    """CoOp's and CoCoOp's (2203.05557) number of base-to-new generalisation, from two accuracies; 0 if either is."""
    return 2 * base * new / (base + new) if base > 0 and new > 0 else 0.0


# OVDEval's NMS-AP (2308.13177; github.com/om-ai-lab/OVDEval, eval.py): AP after one prediction is left per truth.

THRESHOLD = 0.5  # of the IoU above which predictions are about the same truth


def nms_ap(cases: Sequence[Case], reference: bool = False) -> dict[str, float]:
    """The numbers of `coco_metrics.summary` after `kept`, so that several labels for one object are a mistake.

    `reference` reproduces the published numbers: there truths are numbered from 0, and pycocotools takes the match
    with number 0 for none, so that the first truth is never found and what is on it counts as wrong.
    """
    left = [_left(case) for case in cases]
    return summarized(*annotations(left, first=0 if reference else 1), left)


def kept(case: Case) -> list[int]:
    """The predictions that stay, in their order: those on no truth, and on each truth the one with the best score.

    Predictions of any label are on a truth when their IoU exceeds THRESHOLD. Of equal scores the last stays, as in the
    source. One that is dropped for a truth stays if it is the best of another.
    """
    scores = np.asarray(case.scores or (1.0,) * len(case.predicted), dtype=np.float64)
    overlaps = ious([thing.box for thing in case.predicted], [truth.box for truth in case.truths])
    best: set[int] = set()
    others: set[int] = set()
    for overlap in overlaps.T:
        on = np.flatnonzero(overlap > THRESHOLD)
        if len(on):
            order = on[np.argsort(scores[on], kind="stable")].tolist()
            best.add(order[-1])
            others.update(order[:-1])
    return [i for i in range(len(case.predicted)) if i in best or i not in others]


def _left(case: Case) -> Case:
    chosen = kept(case)
    scores = [case.scores[i] for i in chosen] if case.scores else ()
    return replace(case, predicted=[case.predicted[i] for i in chosen], scores=scores)


# What benchmarks of temporal grounding and grounded question answering report, and what answers without looking would.
#
# Spans are (start, end) in seconds. An unreadable or missing prediction is None and counts as wrong: no denominator
# shrinks. All numbers are shares in [0, 1].

RECALLS = (0.3, 0.5, 0.7)  # IoU from which on a span is found
GROUNDED = (0.3, 0.5)  # the same of NExT-GQA, for IoU and IoP


def grounding(predicted: Sequence[Interval | None], truths: Sequence[Interval]) -> dict[str, float]:
    """`miou`: mean temporal IoU; `r1@0.3`, `r1@0.5`, `r1@0.7`: share of spans with at least that IoU.

    Source: Charades-STA (1705.02101), which asks for more than the threshold in words and at least it in code.
    """
    overlaps = [tiou(span, truth) if span else 0.0 for span, truth in zip(predicted, truths, strict=True)]
    return {"miou": mean(overlaps)} | _share_above("r1", overlaps, RECALLS)


def grounded_qa(
    predicted: Sequence[Interval | None], truths: Sequence[Sequence[Interval]], right: Sequence[bool]
) -> dict[str, float]:
    """NExT-GQA's numbers (2309.01327): each prediction against the best of its question's true spans.

    Args:
        predicted: one span for each question.
        truths: the true spans of each question.
        right: whether the question was answered rightly.

    `miop`, `miou`, `iop@0.3`, `iou@0.3`, ... as above, IoP and IoU each with its own best span; `acc`: share of right
    answers; `acc@gqa`: right and an IoP of at least 0.5. A point has an IoP of 0 here and of 1 in the official code.
    """
    pairs = list(zip(predicted, truths, strict=True))
    within = [max((iop(span, each) for each in spans), default=0.0) if span else 0.0 for span, spans in pairs]
    overlaps = [max((tiou(span, each) for each in spans), default=0.0) if span else 0.0 for span, spans in pairs]
    both = [float(good and share >= 0.5) for good, share in zip(right, within, strict=True)]
    return {
        "miop": mean(within),
        **_share_above("iop", within, GROUNDED),
        "miou": mean(overlaps),
        **_share_above("iou", overlaps, GROUNDED),
        "acc": mean([float(each) for each in right]),
        "acc@gqa": mean(both),
    }


def _share_above(name: str, values: Sequence[float], bars: Sequence[float]) -> dict[str, float]:
    return {f"{name}@{bar}": mean([float(value >= bar) for value in values]) for bar in bars}


def score_full_video(truths: Sequence[Interval], durations: Sequence[float]) -> dict[str, float]:
    """`grounding` of the answer that every event takes the whole video; durations in seconds."""
    return grounding([(0.0, duration) for duration in durations], truths)


def best_constant_interval(truths: Sequence[Interval], durations: Sequence[float]) -> tuple[dict[str, float], Interval]:
    """`grounding` of the one span, in shares of the video and the same for all, with the best mean IoU; and that span.

    Args:
        truths: the true span of each video.
        durations: of each video, in seconds, above 0.
    """
    if not truths:
        return grounding([], []), (0.0, 1.0)
    scaled = np.asarray(truths, dtype=np.float64) / np.asarray(durations, dtype=np.float64)[:, None]
    marks = np.arange(GRID + 1) / GRID
    spans = [(start, end) for start in marks for end in marks if start < end]
    means = [float(_overlaps(scaled, start, end).mean()) for start, end in spans]
    start, end = map(float, spans[int(np.argmax(means))])
    return grounding([(start * duration, end * duration) for duration in durations], truths), (start, end)


def _overlaps(truths: np.ndarray, start: float, end: float) -> np.ndarray:
    """Temporal IoU of one span with (n, 2) true ones."""
    low, high = truths.T
    shared = np.clip(np.minimum(high, end) - np.maximum(low, start), 0.0, None)
    return np.where(high > low, shared / (np.maximum(high, end) - np.minimum(low, start)), 0.0)


def most_frequent_letter(truths: Sequence[str]) -> tuple[float, str]:
    """(accuracy, letter) of the one answer that is right most often; of equally frequent ones the first in order."""
    if not truths:
        return 0.0, ""
    letter, count = min(Counter(truths).items(), key=lambda each: (-each[1], each[0]))
    return count / len(truths), letter
