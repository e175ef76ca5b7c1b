"""How many tokens a task's prompts take: counted from its first samples, or as told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.config import Config
from vlrl.plan.model import Model
from vlrl.types import Observation, UserError, Video

SAMPLES = 8  # that are looked at
LETTERS = 4  # of a token, where there is no tokenizer; English
AROUND = 25  # tokens of the chat template around a prompt, where there is none


@dataclass(frozen=True)
class Prompt:
    """visual and text: tokens; frames: images and pairs of video frames; source: where the numbers come from."""

    visual: float
    text: float
    frames: float
    source: str

    @property
    def tokens(self) -> float:
        return self.visual + self.text


def prompt_of(config: Config, model: Model, visual: int | None, text: int | None) -> Prompt:
    """The mean prompt of a task.

    Args:
        visual, text: tokens, where told; with both, the task is not made.

    Raises:
        UserError: the task cannot be made here, and they are not both told.
    """
    if visual is not None and text is not None:
        return Prompt(visual, text, 1 if visual else 0, "as told")
    counted = _counted(config, model)
    told = [name for name, value in (("--visual", visual), ("--text", text)) if value is not None]
    return Prompt(
        counted.visual if visual is None else visual, counted.text if text is None else text,
        counted.frames or (1 if visual else 0), ", ".join([counted.source, *(f"{name} as told" for name in told)]),
    )  # fmt: skip


def tokens_of(observation: Observation, model: Model, limits: tuple[int, int], count: Callable) -> Prompt:
    """One observation's size; count: of `(observation)`, its text's tokens, chat template included."""
    seen = [_visual(part, model, limits) for part in observation.content if not isinstance(part, str)]
    visual, frames = (sum(numbers) for numbers in zip(*seen, strict=True)) if seen else (0, 0)
    return Prompt(visual, count(observation), frames, "")


def text_counter(model: Model) -> tuple[Callable[[Observation], int], str]:
    """What counts an observation's text, and how it does."""
    if model.folder is None or not (model.folder / "tokenizer.json").is_file():
        return _guessed, f"text at {LETTERS} letters a token"
    from transformers import AutoTokenizer

    from vlrl.policies.text_encoder import TextEncoder

    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    encoder = TextEncoder(tokenizer)

    def counted(observation: Observation) -> int:
        parts = [
            {"type": "text", "text": part} if isinstance(part, str)
            else {"type": "video" if isinstance(part, Video) else "image"}
            for part in observation.content
        ]  # fmt: skip
        turns, stand_ins = encoder.protect([{"role": "user", "content": parts}])
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = encoder.restore(tokenizer.encode(rendered), stand_ins)
        media = sum(not isinstance(part, str) for part in observation.content)  # their placeholders count as visual
        stamps = sum(_stamps(part, tokenizer) for part in observation.content if isinstance(part, Video))
        return len(ids) - media + (stamps if model.geometry.family == "qwen3_vl" else 0)

    return counted, "its own tokenizer"


def _counted(config: Config, model: Model) -> Prompt:
    from vlrl import registry

    try:
        samples = registry.make_task(config).samples("train")
    except UserError as error:
        raise UserError(f"{error}; to plan without the task's samples, give --visual and --text") from None
    limits = (config.policy.min_pixels or model.pixels[0], config.policy.max_pixels or model.pixels[1])
    if limits[0] > limits[1]:
        raise UserError(f"policy.max_pixels: {limits[1]} is below the smallest image, {limits[0]}")
    count, how = text_counter(model)
    found = [tokens_of(samples[i].prompt, model, limits, count) for i in range(min(SAMPLES, len(samples)))]
    means = [sum(getattr(one, name) for one in found) / len(found) for name in ("visual", "text", "frames")]
    return Prompt(*means, f"mean of {len(found)} samples of {config.task.name}, {how}")


def _visual(part: Any, model: Model, limits: Sequence[int]) -> tuple[int, int]:
    """Tokens and frames of an image or a video, resized as the model will be shown it."""
    from qwen_vl_utils.vision_process import smart_resize

    tower = model.geometry.tower
    side = tower.patch * round(tower.merge**0.5)
    width, height = part.size
    try:
        high, wide = smart_resize(height, width, side, *limits)
    except ValueError:
        raise UserError(f"an image of {width}x{height} pixels is too thin for the model") from None
    frames = -(-len(part.frames) // 2) if isinstance(part, Video) else 1
    return frames * (high // side) * (wide // side), frames


def _stamps(video: Video, tokenizer) -> int:
    """Tokens that tell the seconds of each pair of frames, with the marks around it but for the template's own pair."""
    pairs = -(-len(video.frames) // 2)
    return pairs * (len(tokenizer.encode("<0.5 seconds>", add_special_tokens=False)) + 2) - 2


def _guessed(observation: Observation) -> int:
    letters = sum(len(part) for part in observation.content if isinstance(part, str))
    return AROUND + -(-letters // LETTERS) + 2 * sum(not isinstance(part, str) for part in observation.content)
