"""Our tasks in verl and EasyR1: rows for their parquet files, and the reward functions that score what is answered.

verl: `custom_reward_function.path=.../vlrl/interop/verl.py custom_reward_function.name=compute_score`, of the form
`compute_score(data_source, solution_str, ground_truth, extra_info)`. EasyR1: `worker.reward.reward_function=
.../vlrl/interop/verl.py:compute_scores` with `worker.reward.reward_type=batch`. Both load this file by its path, and
need vlrl installed beside them. `python -c "import vlrl.interop.verl as v; print(v.__file__)"` tells the path.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.interop import asked
from vlrl.types import Observation, Split, UserError

REWARD_NAME, REWARD_TYPE = "vlrl", "batch"  # later releases of EasyR1 read them here


def write(
    file: str | Path, task: str, split: Split = "train", count: int | None = None, *,
    options: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, model: str | None = None,
) -> int:  # fmt: skip
    """Writes the first `count` samples as a parquet file for `data.train_files`; returns their number.

    Columns are verl's (`data_source`, `prompt`, `images`, `ability`, `reward_model`, `extra_info`) and EasyR1's
    (`problem`, `answer`). Arguments as `vlrl.interop.asked.ask`.

    Raises:
        UserError: as `ask`; there are no samples.
    """
    import pyarrow
    from pyarrow import parquet

    found = asked.ask(task, split, count, options=options, data=data, model=model)
    rows = [_row(each, task, split, index) for index, each in enumerate(found)]
    if not rows:
        raise UserError(f"task: {task!r} has no samples to ask for in the split {split!r}")
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return len(rows)


def _row(each: asked.Asked, task: str, split: Split, index: int) -> dict[str, Any]:
    prompt = each.sample.prompt
    text = _text(prompt)
    return {
        "data_source": f"vlrl/{task}", "prompt": [{"role": "user", "content": text}], "problem": text,
        "images": [{"bytes": _png(image), "path": None} for image in prompt.images], "ability": task,
        "reward_model": {"style": "rule", "ground_truth": each.key}, "answer": each.key,
        "extra_info": {"split": split, "index": index, "id": each.sample.id},
    }  # fmt: skip


def _text(shown: Observation) -> str:
    """Texts in reading order, with `<image>` where an image is: what verl and EasyR1 replace."""
    return "".join(part if isinstance(part, str) else "<image>" for part in shown.content)


def _png(image: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **given: Any
) -> dict[str, float]:
    """verl's: `score` is what is learned from; `acc` and the reward's parts are logged beside it."""
    total, score = asked.scored(ground_truth, solution_str)
    return {"score": total, "acc": score.correct, **score.parts}


def compute_scores(reward_inputs: Sequence[Mapping[str, Any]], **given: Any) -> list[dict[str, float]]:
    """EasyR1's batched form: `overall` is what is learned from."""
    found = [asked.scored(each["ground_truth"], each["response"]) for each in reward_inputs]
    return [{"overall": total, "accuracy": score.correct, **score.parts} for total, score in found]
