"""The page of a result: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

import yaml

from vlrl.report.frame import config_section, fact_list, frame, note_lines
from vlrl.report.header import interval
from vlrl.report.table import table
from vlrl.simulation.films import Filmed, embedded
from vlrl.simulation.solved import COLORS, solved
from vlrl.simulation.table import PAIRS, arms, pair

MAIN = Template("""<section class="top" aria-label="What was played">
  <div class="name"><h1>$title</h1>$facts$notes</div>
  <section class="gain named" aria-label="Success"><h2>Success, 95 % intervals</h2>$success</section>
</section>
<section id="arms"><h2>Arms</h2><div class="table figures" tabindex="0">$arms</div></section>
<section id="solved"><h2>Solved within so many ticks</h2>$solved</section>
$pairs
$films
$config""")
LINKS = {"arms": "Arms", "solved": "Solved", "pairs": "Pairs", "films": "Films", "config": "Config"}
STYLE = """
.solved { display: block; width: 100%; max-width: 760px; height: auto; background: var(--card); }
.solved, .films figure { border: 1px solid var(--rule); border-radius: 10px; }
.films { display: grid; gap: 12px; margin-bottom: 16px; }
.films { grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.films figure { padding: 10px; background: var(--card); }
.films .pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 2fr); gap: 8px; align-items: center; }
.films video, .films img { width: 100%; height: auto; border-radius: 6px; display: block; }
""" + "".join(f".gain .interval:nth-of-type({i + 1}) .track i {{ color: var(--c{i}); }}\n" for i in range(COLORS))


def page(result: Mapping[str, Any], films: Sequence[Filmed]) -> str:
    """The whole page; all values escaped."""
    pairs = table(PAIRS, *map(pair, result["pairs"])) if result["pairs"] else ""
    main = MAIN.substitute(
        title=escape(result["task"]),
        facts=fact_list(facts(result)),
        notes=note_lines(result["notes"]),
        success="".join(interval(escape(arm["name"]), arm["success"], 0.0, 1.0) for arm in result["arms"]),
        arms=table(*arms(result["arms"])),
        solved=solved(result),
        pairs=f'<section id="pairs"><h2>Pairs</h2><div class="table figures" tabindex="0">{pairs}</div></section>'
        if pairs else "",
        films=shown(films),
        config=config_section(yaml.safe_dump(result["config"], sort_keys=False)),
    )  # fmt: skip
    links = {place: name for place, name in LINKS.items() if f'id="{place}"' in main}
    return frame(result["task"], "simulate", main, links, style=STYLE)


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    """What was played, for the top of the page."""
    seeds, versions = result["seeds"], result["versions"]
    return {
        "Scenes": f"{result['n']} of {result['part']}, seeds {seeds[0]} to {seeds[-1]}",
        "Ticks a second": f"{result['hz']:g}",
        **{f"Checksum of {name}": str(value) for name, value in result["facts"].items()},
        **{f"Arm {arm['name']}": arm["source"] for arm in result["arms"] if arm["source"]},
        "vlrl": f"{versions['vlrl']} ({versions['commit']})",
    }


def shown(films: Sequence[Filmed]) -> str:
    """A row of films for each scene, arms side by side; '' without any."""
    scenes = dict.fromkeys(film.seed for film in films)
    rows = "".join(_scene(seed, [film for film in films if film.seed == seed]) for seed in scenes)
    return f'<section id="films"><h2>The same scenes, arm by arm</h2>{rows}</section>' if rows else ""


def _scene(seed: int, films: Sequence[Filmed]) -> str:
    return f'<h3>Scene {seed}</h3><div class="films">{"".join(map(_figure, films))}</div>'


def _figure(film: Filmed) -> str:
    video, strip = embedded(film)
    said = escape(f"{film.arm}: {film.outcome.replace('_', ' ')} after {film.ticks} ticks")
    return (
        f'<figure><figcaption>{said}</figcaption><div class="pair">'
        f'<video src="{video}" controls muted loop playsinline></video>'
        f'<img src="{strip}" loading="lazy" alt="Eight moments of it: {said}"></div></figure>'
    )
