"""The report of an evaluation: how good, how sure, what went wrong, and the answers that are worth reading."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from vlrl.config import Config, dump
from vlrl.distributed.world import get_world, to_show
from vlrl.metrics import save_rollouts
from vlrl.report.html import (
    CARDS,
    axis,
    config_section,
    fact_list,
    frame,
    frame_text,
    gallery,
    interval,
    number,
    write_page,
)
from vlrl.report.run_reader import MAX_ROLLOUTS, choose, read_lines, rollout_files, table
from vlrl.runner import Result
from vlrl.types import Episode, UserError

NAME = "evaluation.html"
SCRIPTS = ("dom.js", "keys.js", "scale.js", *CARDS, "gallery.js", "page.js")
MAIN = Template("""<section class="top" aria-label="Evaluation">
  <div class="name"><h1>$title</h1>$facts</div>
  <section class="gain named" aria-label="Accuracy"><h2>Held-out accuracy, 95 %</h2>$accuracy</section>
</section>
<section id="scores"><h2>Scores</h2><div class="charts">$scores</div></section>
$rollouts
$config""")


def target(where: str) -> Path:
    """The file that `--report` names; in a folder it is NAME.

    Raises:
        UserError: the file cannot be there.
    """
    path = Path(where) / NAME if Path(where).is_dir() else Path(where)
    if path.suffix not in (".html", ".htm") or not path.parent.is_dir():
        raise UserError(f"--report {where}: name an .html file in a folder that is there, or such a folder")
    return path


def write_evaluation(path: Path, result: Result, policy: Any, config: Config, bad_rows: int = 0) -> Path:
    """Writes the page and returns its path.

    Args:
        path: see `target`.
        policy: what answered; pictures of episodes in other processes come from there, so all processes call this.
        bad_rows: of the data, left out.
    """
    rows = [_row(episode) for episode in result.episodes]
    chosen = choose(rows, MAX_ROLLOUTS)
    episodes = to_show(policy, [result.episodes[place] for place in chosen])
    if not get_world().is_rank_zero:
        return path
    with tempfile.TemporaryDirectory(prefix="vlrl-evaluation-") as folder:
        save_rollouts(Path(folder), 0, episodes, None, split="test")
        saved = [row for file in rollout_files(Path(folder)) for row in read_lines(file)[0]]
        examples = [{**row, "why": why} for row, why in zip(saved, chosen.values(), strict=False)]
        cards = gallery(Path(folder).resolve(), examples)
    counts = {"rollouts": len(examples), "read": len(rows), "steps": 1, "of_steps": 0}
    return write_page(path, render(result, config, bad_rows, {**cards, "shown": counts}))


def render(result: Result, config: Config, bad_rows: int, data: Mapping[str, Any]) -> str:
    """The page as text; data: for the cards."""
    measured = vars(result.accuracy)
    facts = {"Model": config.policy.model, "Samples": f"{measured['n']:,}", "Bad rows": bad_rows, **result.facts}
    main = MAIN.substitute(
        title=escape(config.task.name),
        facts=fact_list({name: str(fact) for name, fact in facts.items()}),
        accuracy=interval("right", measured, *axis([measured])),
        scores="".join(_scores(result)),
        rollouts=frame_text("rollouts.html"),
        config=config_section(dump(config)),
    )
    links = {"scores": "Scores", "rollouts": "Rollouts", "config": "Config"}
    title = f"{config.task.name} · evaluation"
    return frame(title, "eval", main, links, style=frame_text("page.css"), scripts=SCRIPTS, data=data)


def _scores(result: Result) -> list[str]:
    """Tables of what the reward was made of, of what the task measures, and of why answers did not parse."""
    parts = {"reward": result.reward, **result.parts, "length": result.length}
    failed = {reason: f"{share:.1%}" for reason, share in sorted(result.parse_fail.items(), key=lambda item: -item[1])}
    tables = {
        ("reward and its parts", "mean"): {name: number(value) for name, value in parts.items()},
        ("measured by the task", "value"): {name: number(value) for name, value in result.metrics.items()},
        ("why answers did not parse", "share"): failed,
    }
    return [
        f'<div class="table figures" tabindex="0">{table(head, *rows.items())}</div>'
        for head, rows in tables.items() if rows
    ]  # fmt: skip


def _row(episode: Episode) -> dict[str, Any]:
    """What choosing needs of an episode, without its pictures and texts."""
    score = episode.score
    return {"sample_id": episode.sample.id, "reward": episode.reward, "correct": score.correct, "reason": score.reason}
