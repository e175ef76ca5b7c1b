"""The page of a result: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import yaml

from vlrl import report
from vlrl.report.header import interval
from vlrl.report.table import table
from vlrl.simulation.films import Filmed, embedded
from vlrl.simulation.solved import COLORS, solved
from vlrl.simulation.table import PAIRS, arms, pair

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
$style
</style>
</head>
<body>
<header class="topbar"><strong class="brand">vlrl</strong><span class="muted">simulate</span></header>
<main>
<section class="top" aria-label="What was played">
  <div class="name"><h1>$title</h1><dl class="facts">$facts</dl>$notes</div>
  <section class="gain" aria-label="Success"><h2>Success, 95 % intervals</h2>$success</section>
</section>
<section><h2>Arms</h2><div class="table">$arms</div></section>
<section><h2>Solved within so many ticks</h2>$solved</section>
$pairs
$films
<section id="config"><details><summary>Configuration</summary><pre tabindex="0">$config</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
h2 { margin-bottom: 8px; }
.interval { grid-template-columns: 76px minmax(0, 1fr); }
@media (min-width: 561px) { .interval { grid-template-columns: 110px minmax(60px, 1fr) 210px; } }
.table { overflow-x: auto; }
table, .solved, .films figure { background: var(--card); border: 1px solid var(--rule); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--muted); font-size: 12px; font-weight: 600; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
.solved { width: 100%; max-width: 760px; height: auto; border-radius: 10px; }
.films { display: grid; gap: 12px; margin-bottom: 16px; }
.films { grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.films figure { border-radius: 10px; padding: 10px; }
.films .pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 2fr); gap: 8px; align-items: center; }
.films video, .films img { width: 100%; height: auto; border-radius: 6px; display: block; }
""" + "".join(f".gain .interval:nth-of-type({i + 1}) .track i {{ color: var(--c{i}); }}\n" for i in range(COLORS))


def page(result: Mapping[str, Any], films: Sequence[Filmed]) -> str:
    """The whole page; all values escaped."""
    pairs = table(PAIRS, *map(pair, result["pairs"])) if result["pairs"] else ""
    return PAGE.substitute(
        title=escape(result["task"]),
        style=(Path(report.__file__).parent / "page.css").read_text(encoding="utf-8") + STYLE,
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(str(v))}</dd></div>" for k, v in facts(result).items()),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in result["notes"]),
        success="".join(interval(escape(arm["name"]), arm["success"], 0.0, 1.0) for arm in result["arms"]),
        arms=table(*arms(result["arms"])),
        solved=solved(result),
        pairs=f'<section><h2>Pairs</h2><div class="table">{pairs}</div></section>' if pairs else "",
        films=shown(films),
        config=escape(yaml.safe_dump(result["config"], sort_keys=False)),
    )


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    """What was played, for the top of the page."""
    seeds, versions = result["seeds"], result["versions"]
    return {
        "Scenes": f"{result['n']} of {result['part']}, seeds {seeds[0]} to {seeds[-1]}",
        "Ticks a second": f"{result['hz']:g}",
        **{f"Checksum of {name}": value for name, value in result["facts"].items()},
        **{f"Arm {arm['name']}": arm["source"] for arm in result["arms"] if arm["source"]},
        "vlrl": f"{versions['vlrl']} ({versions['commit']})",
    }


def shown(films: Sequence[Filmed]) -> str:
    """A row of films for each scene, arms side by side; '' without any."""
    scenes = dict.fromkeys(film.seed for film in films)
    rows = "".join(_scene(seed, [film for film in films if film.seed == seed]) for seed in scenes)
    return f"<section><h2>The same scenes, arm by arm</h2>{rows}</section>" if rows else ""


def _scene(seed: int, films: Sequence[Filmed]) -> str:
    return f'<h3>Scene {seed}</h3><div class="films">{"".join(map(_figure, films))}</div>'


def _figure(film: Filmed) -> str:
    video, strip = embedded(film)
    said = escape(f"{film.arm}: {film.outcome.replace('_', ' ')} after {film.ticks} ticks")
    return (
        f'<figure><figcaption>{said}</figcaption><div class="pair">'
        f'<video src="{video}" controls muted loop playsinline></video>'
        f'<img src="{strip}" alt="Eight moments of it: {said}"></div></figure>'
    )
