"""Plain formulas of released rewards, for fresh pairs: what a repository pays, from the description of its code.

Each takes the inputs that the adapter of the same key takes. They read leniently where their source does; only tests
use them.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Inputs = Mapping[str, Any]
FORM = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
VLM_R1, VIDEO_R1, SEED = "om-ai-lab/VLM-R1", "tulerfeng/Video-R1", "TencentARC/SEED-Bench-R1"
TIME_R1, VIDEOCHAT_R1 = "xiaomi-research/time-r1", "OpenGVLab/VideoChat-R1"
TEMPORAL_R1, LMMS_EVAL = "appletea233/Temporal-R1", "EvolvingLMMs-Lab/lmms-eval"
ODYSSEY, OS_ATLAS = "OpenGVLab/GUI-Odyssey", "OS-Copilot/OS-Atlas"
UI_R1, CLS_RL = "lll6gg/UI-R1", "minglllli/CLS-RL"
BOX = r"\[\d+,\s*\d+,\s*\d+,\s*\d+\]"
BOXED = re.compile(rf"<think>.*?</think>\s*<answer>.*?{BOX}.*?</answer>", re.DOTALL)
BRACED = re.compile(rf"<think>.*?</think>\s*<answer>.*?\{{.*{BOX}.*\}}.*?</answer>", re.DOTALL)
SECONDS = r"\(\d+(?:\.\d+)?,\s*\d+(?:\.\d+)?\)"
GLUED = re.compile(
    rf"<think>.*?</think>\s*<answer>.*?</answer>\s*<glue>(\[{SECONDS}(?:,\s*{SECONDS})*\])</glue>", re.DOTALL
)


def _pixels(first: Sequence[float], second: Sequence[float]) -> float:
    """IoU of boxes in whole pixels: a seam of one pixel or less is no overlap."""
    sides = [min(first[i + 2], second[i + 2]) - max(first[i], second[i]) for i in (0, 1)]
    shared = sides[0] * sides[1] if min(sides) > 1 else 0.0
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)) - shared
    return shared / union if union else 0.0


def _referred(inputs: Inputs) -> float:
    """VLM-R1 for InternVL: the first four whole numbers in brackets inside the first answer tags."""
    boxes = []
    for text, number in ((inputs["completion"], r"(\d+)"), (inputs["solution"], r"(-?[\d.]+)")):
        inside = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        found = inside and re.search(rf"\[{number},\s*{number},\s*{number},\s*{number}\]", inside[1])
        if not found:
            return 0.0
        boxes.append([float(side) for side in found.groups()])
    return _pixels(*boxes)


def _whole(inputs: Inputs) -> float:
    return float(FORM.fullmatch(inputs["completion"]) is not None)


def _first(inputs: Inputs) -> float:
    return float(FORM.match(inputs["completion"]) is not None)


def _stripped(inputs: Inputs) -> float:
    return float(FORM.fullmatch(inputs["completion"].strip()) is not None)


def _bare(inputs: Inputs) -> float:
    return float(re.fullmatch(r"<answer>.*?</answer>", inputs["completion"], re.DOTALL) is not None)


def _braced(inputs: Inputs) -> float:
    return float(BRACED.search(inputs["completion"]) is not None)


def _boxed(inputs: Inputs) -> float:
    return float(BOXED.fullmatch(inputs["completion"]) is not None)


def _glued(inputs: Inputs) -> float:
    """VideoChat-R1: spans of plain numbers, none of which ends before it starts."""
    found = GLUED.fullmatch(inputs["completion"].strip())
    times = [float(side) for side in re.findall(r"\d+(?:\.\d+)?", found[1])] if found else []
    return float(bool(times) and all(start <= end for start, end in zip(times[::2], times[1::2], strict=True)))


def _action(inputs: Inputs) -> float:
    """UI-R1: the first word behind `'action':`, in quotes or not."""
    words = []
    for name in ("completion", "solution"):
        inside = re.search(r"<answer>(.*?)</answer>", inputs[name], re.DOTALL)
        words.append(inside and re.search(r"'action':\s*'?(\w+)'?", inside[1]))
    return float(all(words) and words[0][1] == words[1][1])


def _class(inputs: Inputs) -> float:
    """CLS-RL without thoughts: the whole completion is the name, but for case and outer spaces."""
    truth = re.sub("</?answer>", "", inputs["solution"])
    return float(inputs["completion"].strip().lower() == truth.strip().lower())


def _overlap(span: Sequence[float], truth: Sequence[float]) -> float:
    shared = max(0.0, min(span[1], truth[1]) - max(span[0], truth[0]))
    union = max(span[1], truth[1]) - min(span[0], truth[0])
    return shared / union if union > 0 else 0.0


def _spoken(inputs: Inputs) -> float:
    """VideoChat-R1, Time-R1: the last `a to b` or `a and b` inside the last answer tags."""
    inside = re.findall(r"<answer>(.*?)</answer>", inputs["completion"], re.DOTALL)
    pairs = re.findall(r"(\d+\.?\d*) (?:to|and) (\d+\.?\d*)", inside[-1], re.IGNORECASE) if inside else []
    return _overlap([float(side) for side in pairs[-1]], inputs["solution"]) if pairs else 0.0


def _discounted(inputs: Inputs) -> float:
    """Time-R1: the IoU, times how near start and end are in shares of the video."""
    inside = re.findall(r"<answer>(.*?)</answer>", inputs["completion"], re.DOTALL)
    pairs = re.findall(r"(\d+\.?\d*) (?:to|and) (\d+\.?\d*)", inside[-1], re.IGNORECASE) if inside else []
    gaps = zip(map(float, pairs[-1]), inputs["solution"], strict=True) if pairs else ()
    return _spoken(inputs) * math.prod(1 - abs(said - truth) / inputs["duration"] for said, truth in gaps)


def _object(inputs: Inputs) -> float:
    """Temporal-R1: JSON with both times in the first answer tags; the truth is in shares of the video."""
    inside = re.search(r"<answer>(.*?)</answer>", inputs["completion"], re.DOTALL)
    try:
        said = json.loads(inside[1]) if inside else {}
        span = [float(said[name]) for name in ("start_time", "end_time")]
    except (ValueError, KeyError, TypeError):
        return 0.0
    return _overlap(span, [side * inputs["video_length"] for side in inputs["ground_truth"]])


def _track(text: str) -> list[list[Any]] | None:
    """Eight lists of four, as Python writes them; line breaks are removed first."""
    try:
        boxes = ast.literal_eval(text.replace("\n", ""))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    fits = isinstance(boxes, list) and len(boxes) == 8
    return boxes if fits and all(isinstance(box, list) and len(box) == 4 for box in boxes) else None


def _area(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _tracked(inputs: Inputs) -> float:
    inside = re.search(r"<answer>(.*?)</answer>", inputs["completion"].replace("\n", ""), re.DOTALL)
    boxes, truths = _track(inside[1]) if inside else None, inputs["solution"]["answer"]
    if boxes is None or len(boxes) != len(truths) or any(isinstance(side, str) for box in boxes for side in box):
        return 0.0
    values = []
    for box, truth in zip(boxes, truths, strict=True):
        sides = [max(0, min(box[i + 2], truth[i + 2]) - max(box[i], truth[i])) for i in (0, 1)]
        shared = sides[0] * sides[1]
        union = _area(box) + _area(truth) - shared
        values.append(shared / union if union else 0.0)
    return sum(values) / len(values)


def _track_form(inputs: Inputs) -> float:
    inside = re.search(r"<answer>(.*?)</answer>", inputs["completion"], re.DOTALL)
    return float(bool(_stripped(inputs) and inside and _track(inside[1]) is not None))


def _first_time(text: str, truth: Sequence[float]) -> float:
    """The first two numbers around a hyphen, or `to`; else the first number of each sentence that starts or ends."""
    lowered = text.lower().replace("to", "-")
    found = re.findall(r"(\d+\.*\d*)\s*-\s*(\d+\.*\d*)", lowered)
    if found:
        span = [float(side) if side.count(".") < 2 else math.nan for side in found[0]]
    else:
        sentences = [each for each in re.split(r"[!?\n]", lowered) if re.search("start|end|happen", each)]
        times = [re.findall(r"\b\d+\.\d+\b|\b\d+\b", each) for each in sentences]
        span = [float(each[0]) for each in times if each][:2]
    return _overlap(sorted(span), truth) if len(span) == 2 else 0.0


def _extracted(inputs: Inputs) -> float:
    return _first_time(inputs["prediction"], inputs["ground_truth"])


_CLOCK = re.compile(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?")


def _seconds(clock: re.Match[str]) -> str:
    first, second, third = clock.groups()
    return str(int(first) * 60 + int(second) if third is None else (int(first) * 60 + int(second)) * 60 + int(third))


def _extracted_anywhere(inputs: Inputs) -> float:
    """TimeLens: where no sentence starts or ends, the first two numbers of the text."""
    text, truth = _CLOCK.sub(_seconds, inputs["prediction"]), inputs["ground_truth"]
    numbers = [float(number) for number in re.findall(r"\b\d+\.\d+\b|\b\d+\b", text)][:2]
    if len(numbers) < 2 or re.search("start|end|happen|-|to", text.lower()):
        return _first_time(text, truth)
    return _overlap(sorted(numbers), truth)


def _clicked(inputs: Inputs) -> float:
    """GUI-Odyssey: in the target's box, or at most 14 % of the screen away; a text is worked out first."""
    points = []
    for name in ("pred", "gt"):
        value = inputs[name]
        try:
            points.append(ast.literal_eval(value) if isinstance(value, str) else value)
        except (ValueError, SyntaxError):
            return 0.0
    (x, y), box = points[0], inputs["sam2_bbox"]
    if box and box[0] <= x <= box[2] and box[1] <= y <= box[3]:
        return 1.0
    return float(math.dist([side / 1000 for side in points[0]], [side / 1000 for side in points[1]]) <= 0.14)


def _words(inputs: Inputs) -> float:
    """OS-Atlas: F1 of the sets of words."""
    predicted, truth = (set(inputs[name].lower().split()) for name in ("predicted", "ground_truth"))
    shared = len(predicted & truth)
    return 2 * shared / (len(predicted) + len(truth)) if shared else 0.0


REFERENCES: dict[tuple[str, str], Callable[[Inputs], float]] = {
    (VLM_R1, "InvernVLModule.iou_reward"): _referred,
    (VLM_R1, "format_reward"): _whole,
    (VIDEO_R1, "format_reward"): _whole,
    (SEED, "format_reward"): _first,
    (TIME_R1, "main.format_reward"): _stripped,
    (VIDEOCHAT_R1, "grpo_tg.format_reward"): _stripped,
    (VIDEOCHAT_R1, "grpo_tg.iou_timestamp_reward"): _spoken,
    (TIME_R1, "main.iou_timestamp_reward"): _spoken,
    (VIDEOCHAT_R1, "grpo_tasks.tracking_iou_reward"): _tracked,
    (VIDEOCHAT_R1, "grpo_tasks.tracking_format_reward"): _track_form,
    (TEMPORAL_R1, "eval_tvg.iou_of_first_extracted_time"): _extracted,
    (LMMS_EVAL, "timelens.iou_of_first_extracted_time"): _extracted_anywhere,
    (ODYSSEY, "click_matching"): _clicked,
    (OS_ATLAS, "calculate_f1_score"): _words,
    (VLM_R1, "Qwen2VLModule.format_reward_rec"): _braced,
    (VLM_R1, "InvernVLModule.format_reward_rec"): _boxed,
    (UI_R1, "accuracy_reward_action[v1]"): _action,
    (UI_R1, "format_reward[v1]"): _whole,
    (UI_R1, "format_reward[nothink]"): _bare,
    (CLS_RL, "format_reward"): _whole,
    (CLS_RL, "accuracy_reward[No-Thinking]"): _class,
    (TEMPORAL_R1, "tvg_accuracy_reward"): _object,
    (TEMPORAL_R1, "r1v_format_reward"): _whole,
    (TIME_R1, "main.iou_timestamp_reward_v2"): _discounted,
    (VIDEOCHAT_R1, "grpo_gqa.format_reward"): _glued,
}
