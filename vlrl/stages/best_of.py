"""`vlrl best-of`: a model answers training samples several times; right answers become demonstrations.

Sources: rejection sampling of the shortest right answer, Kimi k1.5, arXiv 2501.12599 (long to short); the rounds of
SFT on own right answers of OpenVLThinker, arXiv 2503.17352.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from vlrl import log, recorded, registry
from vlrl.config import Config
from vlrl.decoders import parse_log_row
from vlrl.locks import make_folder
from vlrl.policies.load import load
from vlrl.progress import Progress
from vlrl.rollout import collect
from vlrl.samplers.shuffled import Shuffled
from vlrl.types import Episode, UserError

Keep = Literal["shortest", "one", "all"]
TOLD, COURSE, SUMMARY = "settings.json", "course.jsonl", "best_of.json"


@dataclass(frozen=True)
class Tally:
    """Of the samples so far: how many, how many answers were right, samples with a right one, rows and their tokens."""

    samples: int = 0
    answers: int = 0
    right: int = 0
    solved: int = 0
    rows: int = 0
    tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def __str__(self) -> str:
        share, long = self.right / max(1, self.answers), self.tokens / max(1, self.rows)
        return (
            f"{self.samples} samples: {share:.1%} of the answers right, {self.solved} samples with one; "
            f"kept {self.rows} of {long:.1f} tokens"
        )


def best_of(config: Config, *, out: str, samples: int | None = None, tries: int = 8, keep: Keep = "shortest") -> Tally:
    """Answers samples of the training split `tries` times each and writes the right ones to the folder `out`.

    It holds episodes as `vlrl record` writes them, for `lessons: [{episodes: OUT}]` of a warm start. It appears when
    all are in it; the same call after an interruption goes on and ends with the same folder: each batch draws its own
    random numbers.

    Args:
        samples: so many, drawn at random without repetition; default: all.
        keep: of a sample's right answers the `shortest` in tokens (of equal ones the first), the first `one`, or
            `all` that differ.

    Raises:
        UserError: the folder is not free; the config's task or model is not as it should be; no answer was right.
    """
    with make_folder(Path(out), resumable=True) as part:
        total = _fill(config, part, samples, tries, keep)
        if not total.rows:
            shutil.rmtree(part)
            raise UserError(f"{total}: nothing to learn from: train first, or ask more often (--tries)")
        log.write_text(part / SUMMARY, json.dumps(asdict(total)) + "\n")
    return total


def _fill(config: Config, part: Path, samples: int | None, tries: int, keep: Keep) -> Tally:
    """Answers the samples that an earlier call with the same settings has not."""
    task = registry.make_task(config)
    pool = task.samples("train")
    positions = Shuffled(len(pool), config.seed).draw(min(samples or len(pool), len(pool)))
    total = _begun(part, {"config": config.model_dump(mode="json"), "tries": tries, "keep": keep, "samples": samples})
    policy = load(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    if not hasattr(policy, "codec"):
        raise UserError("policy.model: `vlrl best-of` keeps what language models write; `vlrl demos` records robots")
    size = max(1, config.eval.batch // tries)
    with Progress(len(positions)) as progress:
        for start in range(total.samples, len(positions), size):
            policy.generator.manual_seed(config.seed + (start << 20))
            asked = [pool[i] for i in positions[start : start + size]]
            total += _kept(part, collect(policy, task, asked, tries), tries, keep)
            log.append_row(part / COURSE, asdict(total))
            progress.note(f"sample {total.samples}/{len(positions)}  {total}")
    return total


def _begun(part: Path, told: dict[str, Any]) -> Tally:
    """What an interrupted call with the same settings had done by its last whole batch; else an empty folder."""
    text = json.dumps(told)
    course = _rows(part / COURSE)
    if not course or not (part / TOLD).is_file() or (part / TOLD).read_text(encoding="utf-8") != text:
        shutil.rmtree(part, ignore_errors=True)
        (part / recorded.IMAGES).mkdir(parents=True)
        log.write_text(part / TOLD, text)
        log.write_text(part / recorded.FILE, "")
        return Tally()
    total = Tally(**course[-1])
    log.write_text(part / COURSE, "".join(json.dumps(row) + "\n" for row in course))
    rows = (part / recorded.FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text(part / recorded.FILE, "".join(rows[: total.rows]))
    return total


def _rows(file: Path) -> list[dict[str, int]]:
    """A JSON object a line; one that was being written is left out."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [parse_log_row(line) for line in lines if line.endswith("\n")]


def _kept(part: Path, episodes: Sequence[Episode], tries: int, keep: Keep) -> Tally:
    """Writes what is kept of a batch and counts it."""
    groups = [episodes[i : i + tries] for i in range(0, len(episodes), tries)]
    right = [[e for e in group if e.score.correct >= 1 - 1e-9] for group in groups]
    chosen = [episode for group in right for episode in pick(group, keep)]
    save = partial(_saved, part / recorded.IMAGES)
    with (part / recorded.FILE).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(recorded.row_of(episode, save)) + "\n" for episode in chosen)
    return Tally(
        len(groups), len(episodes), sum(map(len, right)), sum(map(bool, right)), len(chosen), sum(map(length, chosen))
    )


def pick(right: Sequence[Episode], keep: Keep) -> list[Episode]:
    """Of one sample's right episodes, those that are kept."""
    if keep == "shortest":
        return [min(right, key=length)] if right else []
    if keep == "one":
        return list(right[:1])
    return list({tuple(turn.decision.action for turn in episode.turns): episode for episode in right}.values())


def length(episode: Episode) -> int:
    """Tokens that the policy wrote in all turns."""
    return sum(len(turn.decision.logprobs) for turn in episode.turns)


def _saved(images: Path, image: Image.Image) -> str:
    name = recorded.image_name(image)
    if not (images / name).exists():
        partial_name = images / f".{name}"
        image.save(partial_name, format="PNG")
        os.replace(partial_name, images / name)
    return name
