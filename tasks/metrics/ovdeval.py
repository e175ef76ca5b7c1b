"""OVDEval's NMS-AP (2308.13177; github.com/om-ai-lab/OVDEval, eval.py): AP after one prediction is left per truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rewards.matching import ious
from tasks.metrics.coco_metrics import Case, annotations, summarized

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
    overlaps = ious([found.box for found in case.predicted], [truth.box for truth in case.truths])
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
