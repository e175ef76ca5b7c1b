"""Where ours pays more than released code on purpose: (source, function) -> which inputs, and why.

`docs/rewards.md` has the same list. A pair that ours pays more and that is not covered here fails the runner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Inputs = Mapping[str, Any]
_UNIT = re.compile(r"\d ?(?:s|sec|secs|second|seconds)\b", re.IGNORECASE)


def _is_spaced(inputs: Inputs) -> bool:
    return inputs["completion"] != inputs["completion"].strip()


def _has_unit(inputs: Inputs) -> bool:
    return _UNIT.search(inputs["prediction"]) is not None


SPACED = _is_spaced, "white space before or after the tags: a line break at the end of a turn is no other answer"
UNIT = _has_unit, "a unit at a number, `6s to 12s`: the extractor misses the number, the answer is plain"
LENIENT: dict[tuple[str, str], tuple[Callable[[Inputs], bool], str]] = {
    ("om-ai-lab/VLM-R1", "format_reward"): SPACED,
    ("tulerfeng/Video-R1", "format_reward"): SPACED,
    ("TencentARC/SEED-Bench-R1", "format_reward"): SPACED,
    ("appletea233/Temporal-R1", "eval_tvg.iou_of_first_extracted_time"): UNIT,
    ("EvolvingLMMs-Lab/lmms-eval", "timelens.iou_of_first_extracted_time"): UNIT,
}
