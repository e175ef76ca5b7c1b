"""Episodes as TRL hands them to a reward function: prompts, completions, token ids and columns of the data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl.types import Episode, Observation, Turn, UserError, plain

RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
Messages = list[dict[str, Any]]


def prompt_of(shown: Observation) -> Messages:
    """What was asked, as one message of the user: a text, or with images blocks that hold them."""
    if not shown.images and not shown.videos:
        return [{"role": "user", "content": "".join(shown.content)}]
    return [{"role": "user", "content": [_block(part) for part in shown.content]}]


def _block(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = "video" if hasattr(part, "frames") else "image"
    return {"type": kind, kind: part}


def completion_of(turns: Sequence[Turn]) -> Messages:
    """What the policy wrote, and between its turns what it was shown."""
    messages: Messages = []
    for number, turn in enumerate(turns):
        messages += prompt_of(turn.observation) if number else []
        messages.append({"role": "assistant", "content": turn.decision.action})
    return messages


def columns_of(
    episodes: Sequence[Episode], gold: Callable[[Episode], str], names: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Columns of equal length: `id`, `answer` (the truth as plain data), `gold` (the best completion), `images`, tags.

    Args:
        names: of a reward function's columns -> ours; those that it lists are given under its names as well.

    Raises:
        UserError: `names` lists a column that there is not.
    """
    samples = [episode.sample for episode in episodes]
    tags = sorted({tag for sample in samples for tag in sample.tags})
    found = {tag: [sample.tags.get(tag) for sample in samples] for tag in tags} | {
        "id": [sample.id for sample in samples],
        "answer": [plain(sample.answer) for sample in samples],
        "gold": [gold(episode) for episode in episodes],
        "images": [list(sample.prompt.images) for sample in samples],
    }
    for theirs, ours in names.items():
        if ours not in found:
            raise UserError(f"process: trl: columns.{theirs}: no column {ours!r}; there are {', '.join(sorted(found))}")
    found |= {theirs: found[ours] for theirs, ours in names.items()}
    return {name: values for name, values in found.items() if name not in RESERVED}
