"""How the detection, referring and classification functions of the reference repositories are called with ours.

Answers are held to the papers' notation: JSON in a ```json fence for VLM-R1's lists, whole numbers for referring and
in Vision-R1. A returned text says why a pair cannot be compared.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rewards import parse
from rewards.detection import (
    cls_rl_accuracy,
    cls_rl_exact,
    cls_rl_format,
    vision_r1_dual_format,
    vision_r1_precision,
    vision_r1_recall,
    vision_r1_stage,
    vlm_r1_cosine,
    vlm_r1_format,
    vlm_r1_iou,
    vlm_r1_od_ap,
    vlm_r1_od_ap50,
    vlm_r1_od_length,
    vlm_r1_one_box,
    vlm_r1_phrases,
    vlm_r1_repetition,
    vlm_r1_weighted_sum,
)
from rewards.parse import Object
from rewards.text import all_match, default, multiple_choice, numeric, tagged, yes_no

Inputs = Mapping[str, Any]
Objects = tuple[Object, ...]
VLM_R1, VISION_R1, CLS_RL = "om-ai-lab/VLM-R1", "jefferyZhan/Griffon", "minglllli/CLS-RL"
PATCH = 14  # pixels, of Qwen2.5-VL
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
NOT_JSON = parse.Parsed(reason="not_in_notation")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# VLM-R1: referring


def _scale(inputs: Inputs) -> tuple[float, float]:
    (width, height), (_, rows, columns) = inputs["image_size"], inputs["image_grid_thw"]
    return width / (columns * PATCH), height / (rows * PATCH)


def _referred(inputs: Inputs, scaled: bool = False) -> float:
    truth = parse.answer(inputs["solution"], False, vlm_r1_one_box).value or ()
    scale = _scale(inputs) if scaled else (1.0, 1.0)
    return vlm_r1_iou(inputs["completion"], truth, scale, notation="brackets", least=1.0)


# VLM-R1: detection


def _listed(text: str) -> parse.Parsed:
    """The word None, or a JSON list between ```json and ```."""
    written = text.strip()
    fenced = written.startswith("```json") and written.endswith("```") and _is_json(written[7:-3])
    return parse.objects(written) if fenced or written.lower() == "none" else NOT_JSON


def _detected(reward: Callable[[Objects, Objects], float], inputs: Inputs, anywhere: bool = False) -> float:
    """`anywhere`: the list needs no answer tags."""
    completion = inputs["completion"]
    tags = not anywhere or "<answer>" in completion
    predicted = parse.answer(completion, True, _listed) if tags else _listed(completion.rpartition("</think>")[2])
    truths = parse.answer(inputs["solution"], False, _listed)
    return 0.0 if predicted.reason or truths.reason else reward(predicted.value, truths.value)


def _weighted_sum(inputs: Inputs) -> float:
    """The paper takes the empty list for wrong where the truth is written None."""
    spelled = [inputs[name].lower().partition("<answer>")[2] for name in ("completion", "solution")]
    nothing = [text.removesuffix("</answer>").strip() == "none" for text in spelled]
    return _detected(vlm_r1_weighted_sum, inputs) if nothing[0] or not nothing[1] else 0.0


def _repetition(inputs: Inputs) -> float:
    content = inputs["content"]
    read = parse.literal(parse.answer_text(content, True).value or content, parse.MAX_LISTED_CHARS)
    items = [item for item in read.value if isinstance(item, dict)] if isinstance(read.value, list) else []
    objects = [Object(str(i["label"]), (str(i["bbox_2d"]),)) for i in items if {"label", "bbox_2d"} <= i.keys()]
    # its boxes are texts here, as the paper compares them, which the reward itself refuses
    return inspect.unwrap(vlm_r1_repetition)(objects) if objects else vlm_r1_phrases(content)


# short answers


def _inside(text: str) -> parse.Parsed:
    """The answer's text: inside the tags, thoughts before them or not; the whole where there are no tags."""
    return parse.answer_text(text, "<think>" in text) if any(tag in text for tag in TAGS) else parse.Parsed(text)


def _answered(reward: Callable[[str, str], float], inputs: Inputs) -> float:
    predicted, truth = _inside(inputs["content"]), _inside(inputs["sol"])
    return 0.0 if predicted.reason or truth.reason else reward(predicted.value, truth.value)


def _classified(inputs: Inputs) -> float:
    completion, truth = inputs["completion"], _inside(inputs["solution"]).value
    written = _inside(completion)
    if written.reason or "\n" in written.value:  # the paper reads one line
        return 0.0
    tags = completion if any(tag in completion for tag in TAGS) else f"<answer>{completion}</answer>"
    return cls_rl_accuracy(tags, truth, thinking="<think>" in completion)


def _named(inputs: Inputs, spaced: str = "") -> float:
    """`spaced` stands for a space, as in the names of breeds."""
    truth = _inside(inputs["solution"]).value
    both = (text.replace(spaced, " ") if spaced else text for text in (inputs["completion"], truth))
    return cls_rl_exact(*both)


# Vision-R1


def _objects(inputs: Inputs) -> parse.Parsed:
    """Whole pixels of the image as shown -> of the original."""
    completion = inputs["completion"].strip()
    inside = completion.removeprefix("```json").removesuffix("```")
    read = parse.objects(completion) if _is_json(inside) or completion.lower() == "none" else NOT_JSON
    if read.reason:
        return read
    scale = inputs["width"] / inputs["input_width"], inputs["height"] / inputs["input_height"]
    boxes = [tuple(int(side) * scale[i % 2] for i, side in enumerate(each.box)) for each in read.value]
    return parse.Parsed(tuple(Object(o.label, box) for o, box in zip(read.value, boxes, strict=True)))


def _localised(reward: Callable[..., float], inputs: Inputs) -> float | str:
    truths = [Object(label, tuple(box)) for label, box in inputs["solution"]]
    if len(truths) != inputs["num_instances"]:
        return "num_instances is not the number of boxes"
    predicted, bars = _objects(inputs), vision_r1_stage(inputs["step"])
    if predicted.reason:
        return 0.0
    if reward is vision_r1_recall:
        return reward(predicted.value, truths, bars.hit, bars.recall_band)
    return reward(predicted.value, truths, bars.precision_band)


def _dual_format(inputs: Inputs) -> float:
    """The paper takes any text that is no JSON for a right answer where nothing is to be found, and JSON for wrong."""
    completion = inputs["completion"].strip()
    is_json = _is_json(completion.removeprefix("```json\n").removesuffix("\n```"))
    count = inputs["num_instances"]
    return vision_r1_dual_format(completion, count) if is_json == (count > 0) else 0.0


ADAPTERS = {
    (VLM_R1, "Qwen2VLModule.iou_reward"): partial(_referred, scaled=True),
    (VLM_R1, "InvernVLModule.iou_reward"): _referred,
    (VLM_R1, "GLMVModule.iou_reward"): _referred,
    (VLM_R1, "Qwen2VLModule.format_reward_rec"): lambda i: vlm_r1_format(i["completion"], notation="braces"),
    (VLM_R1, "InvernVLModule.format_reward_rec"): lambda i: vlm_r1_format(i["completion"], notation="brackets"),
    (VLM_R1, "GLMVModule.format_reward_rec"): lambda i: vlm_r1_format(i["completion"]),
    (VLM_R1, "od_reward(od_ap)"): partial(_detected, vlm_r1_od_ap),
    (VLM_R1, "od_reward(od_ap50)"): partial(_detected, vlm_r1_od_ap50),
    (VLM_R1, "odLength_reward"): partial(_detected, vlm_r1_od_length),
    (VLM_R1, "map_reward"): partial(_detected, vlm_r1_od_ap, anywhere=True),
    (VLM_R1, "accuracy_reward(weighted_sum)"): _weighted_sum,
    (VLM_R1, "repetition_reward"): _repetition,
    (VLM_R1, "cosine_reward"): lambda i: vlm_r1_cosine(i["gen_len"], i["acc_reward"]),
    (VLM_R1, "format_reward"): lambda i: tagged(i["completion"], True),
    (VLM_R1, "all_match_reward"): partial(_answered, all_match),
    (VLM_R1, "mcq_reward"): partial(_answered, multiple_choice),
    (VLM_R1, "yes_no_reward"): partial(_answered, yes_no),
    (VLM_R1, "numeric_reward"): partial(_answered, numeric),
    (VLM_R1, "default_accuracy_reward"): partial(_answered, default),
    (VISION_R1, "dual_format_reward"): _dual_format,
    (VISION_R1, "recall_reward"): partial(_localised, vision_r1_recall),
    (VISION_R1, "precision_reward"): partial(_localised, vision_r1_precision),
    (CLS_RL, "accuracy_reward[CLS-RL]"): _classified,
    (CLS_RL, "accuracy_reward[SAT]"): _classified,
    (CLS_RL, "accuracy_reward[No-Thinking]"): _named,
    (CLS_RL, "accuracy_reward[No-Thinking-open-pets]"): partial(_named, spaced="_"),
    (CLS_RL, "format_reward"): lambda i: cls_rl_format(i["completion"]),
}
RANGES: dict[tuple[str, str], tuple[float, float]] = {}
UNMAPPED: dict[tuple[str, str], str] = {}
