"""Our tasks in TRL's GRPOTrainer: a data set of a task's samples, and the reward that scores what is answered.

TRL 1.16: a reward function is called with `prompts`, `completions`, `completion_ids`, every column of the data set and
`trainer_state`, `log_metric`, `log_extra`; it returns a number for each completion, None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.interop import asked
from vlrl.types import Observation, Split, UserError

if TYPE_CHECKING:
    from datasets import Dataset

Reward = Callable[..., list[float | None]]


def dataset(
    task: str, split: Split = "train", count: int | None = None, *,
    options: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, model: str | None = None,
) -> Dataset:  # fmt: skip
    """The first `count` samples of a task for `GRPOTrainer(train_dataset=...)`: `prompt`, `images`, `sample`.

    `sample` holds how a completion is scored, and is all that `reward` reads. Arguments as `vlrl.interop.asked.ask`.

    Raises:
        UserError: as `ask`; the `datasets` package is missing; there are no samples.
    """
    try:
        from datasets import Dataset, Image, List
    except ImportError:
        raise UserError("a data set for TRL needs the package datasets: pip install 'vlrl[hub]'") from None
    found = list(asked.ask(task, split, count, options=options, data=data, model=model))
    if not found:
        raise UserError(f"task: {task!r} has no samples to ask for in the split {split!r}")
    shown = [each.sample.prompt for each in found]
    columns: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": content(each)}] for each in shown],
        "sample": [each.key for each in found],
    }
    if not any(each.images for each in shown):
        return Dataset.from_dict(columns)
    rows = Dataset.from_dict(columns | {"images": [list(each.images) for each in shown]})
    return rows.cast_column("images", List(Image()))


def processor(model: str) -> Any:
    """The model's processor for `GRPOTrainer(processing_class=...)`, from a folder, the hub or a bundled name.

    It pads on the left, as TRL needs it: padded on the right, prompts of unequal length end in a shape mismatch in
    transformers' `get_rope_index`.
    """
    from transformers import AutoProcessor

    from vlrl.policies.load import bundled, newest_checkpoint

    return AutoProcessor.from_pretrained(newest_checkpoint(bundled(model)), padding_side="left")


def content(shown: Observation) -> str | list[dict[str, str]]:
    """The content of the user's message: a text, or blocks in reading order, whose images TRL puts in."""
    if not shown.images:
        return "".join(shown.content)
    texts = (part if isinstance(part, str) else None for part in shown.content)
    return [{"type": "image", "text": ""} if text is None else {"type": "text", "text": text} for text in texts]


def reward(task: str | None = None, *, part: str | None = None) -> Reward:
    """The reward of our tasks as a function for `GRPOTrainer(reward_funcs=...)`.

    Args:
        task: scores this task's rows alone; others get None, which TRL takes as not applicable. Default: all.
        part: one part of the reward, unweighted, or `correct`; default: the weighted sum. With a function for each
            part, TRL logs them apart and `reward_weights` weighs them.

    Raises:
        UserError: when called, for rows that `dataset` did not make, and for a part that the reward does not have.
    """

    def scores(completions: Sequence[Any], sample: Sequence[str], **columns: Any) -> list[float | None]:
        step = getattr(columns.get("trainer_state"), "global_step", 0)
        return [
            _value(key, text_of(completion), step, part) if task in (None, asked.of_task(key)) else None
            for key, completion in zip(sample, completions, strict=True)
        ]

    scores.__name__ = "_".join(filter(None, [task or "vlrl", part]))  # the name that TRL logs it under
    return scores


def _value(key: str, completion: str, step: int, part: str | None) -> float:
    total, score = asked.scored(key, completion, step)
    if part is None:
        return total
    parts = {"correct": score.correct, **score.parts}
    if part not in parts:
        raise UserError(f"reward: no part {part!r}; parts are {', '.join(parts)}")
    return parts[part]


def text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion: as it is, or of what the assistant says in a list of messages."""
    if isinstance(completion, str):
        return completion
    said = [message["content"] for message in completion if message["role"] == "assistant"]
    return "".join(map(_said, said))


def _said(held: str | Sequence[Mapping[str, Any]] | None) -> str:
    if held is None or isinstance(held, str):
        return held or ""
    return "".join(block.get("text") or "" for block in held)
