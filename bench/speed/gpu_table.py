"""The table and the figure of `bench/speed.py gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COLORS = {
    "media": "#8a8f98", "prefill": "#1f6fb4", "decode": "#5aa9e6", "forward": "#3a9b6b", "backward": "#c8452d",
    "optimizer": "#e0a030", "other": "#d5d8dd",
}  # fmt: skip
HEAD = (
    "training", "arm", "visual", "prompt", "G", "C", "prompts", "s a step", "ratio", *COLORS, "decoded tokens/s", "MFU",
    "MFU beside decoding", "peak, GB",
)  # fmt: skip


def table(rows: Mapping[str, dict]) -> str:
    """Measured rows as Markdown; below it why the others were not."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += [_line(name, row, rows) for name, row in rows.items() if "skipped" not in row]
    left = [f"- {name}: {row['skipped']}" for name, row in rows.items() if "skipped" in row]
    return "\n".join(lines + (["", "Not measured:", "", *left] if left else []))


def _line(name: str, row: dict, rows: Mapping[str, dict]) -> str:
    kind, arm, visual, _, group, tokens, prompts = name.split("/")
    own = rows.get(name.replace(f"/{arm}/", "/shared/", 1), {})
    ratio = f"**{row['step'] / own['step']:.1f}x**" if arm != "shared" and "step" in own else ""
    parts = [f"{row['parts'][part]:.2f}" if "parts" in row else "" for part in COLORS if part != "other"]
    cells = (
        kind, arm, visual, row.get("prompt", ""), group, tokens, prompts, f"{row['step']:.2f}", ratio, *parts,
        f"{other(row):.2f}" if "parts" in row else "", f"{row['rate']:.0f}" if "rate" in row else "",
        share(row.get("mfu")), share(row.get("mfu_rest")), f"{row['peak_gb']:.1f}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def other(row: dict) -> float:
    """Seconds of a step that belong to no part."""
    return max(0.0, row["step"] - sum(row["parts"].values()))


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def draw(rows: Mapping[str, dict], title: str, file: Path) -> None:
    """Seconds of a step by part, a bar for each row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {name: row for name, row in rows.items() if "step" in row}
    figure, axis = pyplot.subplots(figsize=(8, 1.2 + 0.34 * len(shown)), layout="constrained")
    left = dict.fromkeys(shown, 0.0)
    for part, color in COLORS.items():
        seconds = [_seconds(row, part) for row in shown.values()]
        axis.barh(list(shown), seconds, left=list(left.values()), color=color, label=part)
        left = {name: start + more for (name, start), more in zip(left.items(), seconds, strict=True)}
    for name, end in left.items():
        about = f" {end:.2f} s  {share(shown[name].get('mfu'))}"
        axis.text(end, name, about, va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("seconds a step; behind it the MFU on non-redundant FLOPs")
    figure.suptitle(title, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.15)
    axis.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=len(COLORS), frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _seconds(row: dict, part: str) -> float:
    if "parts" not in row:  # a trainer that does not tell its parts
        return row["step"] if part == "other" else 0.0
    return other(row) if part == "other" else row["parts"][part]
