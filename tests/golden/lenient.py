"""Where ours pays more than released code on purpose: (source, function) -> which inputs, and why.

The same list: docs/evidence/published_rewards.md. A pair that ours pays more and is not covered here fails the runner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Inputs = Mapping[str, Any]
Leniency = tuple[Callable[[Inputs], bool], str]
_UNIT = re.compile(r"\d ?(?:s|sec|secs|second|seconds)\b", re.IGNORECASE)
_NUMBER = r"\+?\d+(?:\.\d+)?"
_SPAN = re.compile(
    rf"\[{_NUMBER}, {_NUMBER}\]|\({_NUMBER}, {_NUMBER}\)|{_NUMBER}\u2013{_NUMBER}|between {_NUMBER} and {_NUMBER}"
)


def _is_spaced(inputs: Inputs) -> bool:
    return inputs["completion"] != inputs["completion"].strip()


def _is_on_lines(inputs: Inputs) -> bool:
    return "\n" in inputs["completion"]


def _has_unit(inputs: Inputs) -> bool:
    return _UNIT.search(inputs["prediction"]) is not None


def _is_written_out(inputs: Inputs) -> bool:
    return _SPAN.fullmatch(inputs["prediction"].strip()) is not None


def _is_python(inputs: Inputs) -> bool:
    found = re.search(r"<answer>(.*?)</answer>", inputs["completion"], re.DOTALL)
    try:
        json.loads(found[1] if found else "")
    except ValueError:
        return True
    return False


SPACED = _is_spaced, "white space before or after the tags: a line break at the end of a turn is no other answer"
LINES = _is_on_lines, "an answer on a line of its own between the tags"
UNIT = _has_unit, "a unit at a number, `6s to 12s`: the extractor misses the number, the answer is plain"
SPAN = (
    _is_written_out,
    "spans as `[6, 12]`, `(6, 12)`, `6\u201312` or `between 6 and 12`, which the extractor does not know",
)
PYTHON = _is_python, "what Python reads and JSON does not, as `+6` or another white space around the object"
LENIENT: dict[tuple[str, str], tuple[Leniency, ...]] = {
    ("om-ai-lab/VLM-R1", "format_reward"): (SPACED,),
    ("om-ai-lab/VLM-R1", "InvernVLModule.format_reward_rec"): (SPACED,),
    ("minglllli/CLS-RL", "format_reward"): (SPACED,),
    ("tulerfeng/Video-R1", "format_reward"): (SPACED,),
    ("TencentARC/SEED-Bench-R1", "format_reward"): (SPACED,),
    ("appletea233/Temporal-R1", "tvg_format_reward"): (SPACED,),
    ("appletea233/Temporal-R1", "tvg_accuracy_reward"): (PYTHON,),
    ("appletea233/Temporal-R1", "tvg_compute_score"): (SPACED,),
    ("appletea233/Temporal-R1", "r1v_format_reward"): (SPACED,),
    ("appletea233/Temporal-R1", "r1v_accuracy_reward"): (LINES,),
    ("appletea233/Temporal-R1", "r1v_compute_score"): (SPACED, LINES),
    ("appletea233/Temporal-R1", "eval_tvg.iou_of_first_extracted_time"): (UNIT, SPAN),
    ("EvolvingLMMs-Lab/lmms-eval", "timelens.iou_of_first_extracted_time"): (UNIT,),
}


def is_lenient(key: tuple[str, str], inputs: Inputs) -> bool:
    """Whether a function may pay more than the released code for these inputs."""
    return any(applies(inputs) for applies, _ in LENIENT.get(key, ()))
