"""The page of a trial: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from robot.trial.drawing import e_value, sequence
from robot.trial.files import write_whole
from robot.trial.journal import State
from robot.trial.plan import Plan
from robot.trial.result import result_of
from robot.trial.template import framed

POLICIES = ("policy", "slot", "success", "95 %", "episodes", "judged by the robot", "voids", "tries")
ROWS = ("episode", "policy", "start", "verdict", "by", "note")


def write(folder: Path, plan: Plan, state: State) -> dict[str, Any]:
    """`result.json` and `report.html`, from the journal alone; returns the result."""
    result = result_of(plan, state)
    write_whole(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(folder / "report.html", page(result))
    return result


def page(result: Mapping[str, Any]) -> str:
    """The whole page; all values escaped."""
    means = list(dict.fromkeys(name for each in result["policies"] for name in each["numbers"]))
    rows = [[str(row[key] if row[key] is not None else "") for key in ROWS] for row in result["rows"]]
    title = " or ".join(each["name"] for each in result["policies"])
    return framed(
        title,
        title_html=escape(title),
        sentences=_lines("says", result["sentences"]),
        warnings=_lines("warn", result["warnings"]),
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(result).items()),
        policies=_table((*POLICIES, *means), [_policy(each, means) for each in result["policies"]]),
        pairs="".join(_pair(pair, result) for pair in result["pairs"]),
        notes=_notes(result["rows"]),
        rows=_table(ROWS, rows),
        settings=escape(yaml.safe_dump(result["settings"], sort_keys=False, allow_unicode=True)),
    )


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    blind = "to the policies' names; slots were known" if result["manual"] else "to the policies and the order"
    return {
        "Episodes": f"{result['episodes']} of at most {result['most']}",
        "Ended": {"operator": "by the operator", "decided": "decided"}.get(result["ended"], "at the last episode"),
        "Operator was blind": blind,
        "Starts": "shared by each round (pairs)" if result["paired"] else "not controlled (two streams)",
        "Verdicts taken back": str(result["undone"]),
        "Checksum of the plan": result["plan"],
        "vlrl": result["vlrl"],
    }


def _policy(policy: Mapping[str, Any], means: Sequence[str]) -> list[str]:
    share = policy["success"]
    said = "-" if share["value"] is None else f"{share['value']:.3f}"
    numbers = [f"{policy['numbers'][name]:.4g}" if name in policy["numbers"] else "-" for name in means]
    counts = [str(policy[key]) for key in ("n", "by_robot", "voids", "tries")]
    return [policy["name"], policy["slot"], said, f"[{share['low']:.3f}, {share['high']:.3f}]", *counts, *numbers]


def _pair(pair: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if not pair["rounds"]:
        return ""
    name = f"{escape(pair['a'])} - {escape(pair['b'])}"
    return (f"<section><h2>{name}</h2><p>Evidence against 'no difference' after each round (e-value)</p>"
            f"{e_value(pair)}<p>The difference of success: confidence sequence</p>"
            f"{sequence(pair, result['delta'])}</section>")  # fmt: skip


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    said = [row for row in rows if row["note"]]
    cells = [[str(row["episode"]), row["policy"], row["verdict"], row["note"]] for row in said]
    return _table(("episode", "policy", "verdict", "written blind"), cells) if said else "<p>None.</p>"


def _lines(kind: str, lines: Sequence[str]) -> str:
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    inside = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="table" tabindex="0"><table>{inside}</table></div>'
