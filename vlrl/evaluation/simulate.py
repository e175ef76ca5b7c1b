"""Simulation of robot policies: arms, films, tables of results."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import metadata
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from vlrl import registry
from vlrl.config import Config
from vlrl.engines import load_policy
from vlrl.evaluation.stats import count, mcnemar, needed, newcombe
from vlrl.io import hold_folder
from vlrl.logging import Progress, strip
from vlrl.media import open_video
from vlrl.metrics import commit, write_text
from vlrl.report.html import config_section, fact_list, frame, interval, note_lines
from vlrl.report.run_reader import table
from vlrl.rollout import PolicyWrapper, collect
from vlrl.types import Decision, Episode, Policy, RobotTask, Sample, UserError, Video, __version__, wilson

# Who plays: the policy, the robot's script, chance, the policy's frozen start, other policies.

SCRIPTS = ("expert", "random")  # of the task; all else is a policy


@dataclass(frozen=True)
class PolicyArm:
    """One of those who play the same scenes."""

    name: str  # in tables and files
    source: str  # the policy's folder or name; '' of a script
    script: str  # '' of a policy
    policy: Policy
    task: Any  # what `vlrl.rollout.collect` plays


def arms_of(config: Config, task: Any, policy: str | None, against: Sequence[str]) -> list[PolicyArm]:
    """The policy (default: the configuration's), then those it is compared with, all ready to act.

    Args:
        against: `expert`, `random`, `start` (the configuration's own policy), or a policy's folder or name.

    Raises:
        UserError: no such policy or script, one that cannot drive the robot, or one named twice.
    """
    arms: list[PolicyArm] = []
    for name in (policy or config.policy.model, *against):
        arm = _script(task, name) if arms and name in SCRIPTS else _policy(config, task, name, first=not arms)
        if any((arm.source, arm.script) == (other.source, other.script) for other in arms):
            raise UserError(f"--against {name}: it plays already, as {arm.source or arm.script!r}")
        if any(arm.name == other.name for other in arms):
            raise UserError(f"--against {name}: {arm.name!r} is the name of another arm: rename the folder")
        arms.append(arm)
    return arms


def _script(task: Any, name: str) -> PolicyArm:
    played = task.arm(name)
    return PolicyArm(name, "", name, played.policy, played)


def _policy(config: Config, task: Any, name: str, first: bool) -> PolicyArm:
    model = config.policy.model if name == "start" and not first else name
    section = config.policy.model_copy(update={"model": model})
    policy = load_policy(section, shared_prefix=config.train.shared_prefix, seed=config.seed)
    task.fits(policy)
    label = "policy" if first else "start" if name == "start" else re.sub(r"[^\w.-]", "_", Path(name).name)
    return PolicyArm(label, model, "", policy, task.arm())


# The share of scenes that each arm had solved by each tick, as a drawing: how fast, and how many at all.

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 72, 120, 16, 34  # pixels around the curves
COLORS = 8  # of look.css, --c0 to --c7


def solved(result: Mapping[str, Any]) -> str:
    """An SVG with a stepped curve for each arm."""
    rows, names = result["episodes"], [arm["name"] for arm in result["arms"]]
    last = max(1, *(row["ticks"] for row in rows))
    curves = {name: curve([row for row in rows if row["arm"] == name], last) for name in names}
    paths = "".join(_curve(i, name, points, last) for i, (name, points) in enumerate(curves.items()))
    ends = "; ".join(f"{name} {points[-1][1]:.0%}" for name, points in curves.items())
    return (
        f'<svg class="solved" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Solved in the end: {escape(ends)}">'
        f'<g class="axes">{_axes(last)}</g>{paths}</svg>'
    )


def curve(rows: Sequence[Mapping[str, Any]], last: int) -> list[tuple[float, float]]:
    """(tick, share solved by then), from 0 to the last tick."""
    won = sorted(row["ticks"] for row in rows if row["success"])
    return [(0, 0.0), *((tick, (i + 1) / len(rows)) for i, tick in enumerate(won)), (last, len(won) / len(rows))]


def _curve(index: int, name: str, points: Sequence[tuple[float, float]], last: int) -> str:
    (x, y), *others = [_chart_point(tick, share, last) for tick, share in points]
    path = f"M{x:.1f} {y:.1f}" + "".join(f"H{right:.1f}V{up:.1f}" for right, up in others)
    x, y = others[-1]
    return (
        f'<g class="series" style="--line: var(--c{index % COLORS})"><path class="line" d="{path}"/>'
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" style="fill: var(--line)">{escape(name)}</text></g>'
    )


def _axes(last: int) -> str:
    lines = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = _chart_point(0, share, last)
        end = WIDTH - RIGHT
        lines.append(f'<line x1="{x}" x2="{end}" y1="{y}" y2="{y}"/><text x="{x - 8}" y="{y + 4}" text-anchor="end">')
        lines.append(f"{share:.0%}</text>")
    for part in range(5):
        tick = round(last * part / 4)
        x, y = _chart_point(tick, 0, last)
        lines.append(f'<text x="{x:.1f}" y="{y + 22}" text-anchor="middle">{tick}</text>')
    return "".join(lines)


def _chart_point(tick: float, share: float, last: int) -> tuple[float, float]:
    return LEFT + tick / last * (WIDTH - LEFT - RIGHT), TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


# A result as text for a terminal.


def table_text(result: Mapping[str, Any]) -> str:
    """Arms, pairs and notes."""
    head, *body = arms(result["arms"])
    parts = [_aligned([head, *body])]
    if result["pairs"]:
        parts.append(_aligned([PAIRS, *(pair(each) for each in result["pairs"])]))
    return "\n\n".join([*parts, *(f"note: {note}" for note in result["notes"])])


PAIRS = ("A - B", "success", "95 %", "p", "both", "only A", "only B", "neither")


def arms(measured: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The head of the table, then a line for each arm; outcomes that no arm has are left out."""
    ends = dict.fromkeys(name for arm in measured for name in arm["outcomes"] if name != "success")
    head = ("arm", "success", "95 %", *(name.replace("_", " ") for name in ends), "repeats", "ticks to success",
            "quartiles", "seconds", "rate", "jerk", "clipped", "s/episode", "ticks/s")  # fmt: skip
    return [head, *(_arm(arm, list(ends)) for arm in measured)]


def _arm(arm: Mapping[str, Any], ends: Sequence[str]) -> tuple[str, ...]:
    success, ticks, seconds = arm["success"], arm["ticks_to_success"], arm["seconds_to_success"]
    return (
        arm["name"], f"{success['value']:.3f}", f"[{success['low']:.3f}, {success['high']:.3f}]",
        *(str(arm["outcomes"].get(name, 0)) for name in ends), str(arm["repeats"]["count"]),
        f"{ticks['median']:g}" if ticks else "-", f"[{ticks['low']:g}, {ticks['high']:g}]" if ticks else "-",
        f"{seconds['median']:.2f}" if seconds else "-",
        *("-" if arm[name] is None else f"{arm[name]:.3f}" for name in ("action_rate", "action_jerk", "clipped")),
        f"{arm['seconds_per_episode']:.3f}", f"{arm['ticks_per_s']:,.0f}",
    )  # fmt: skip


def pair(each: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(each[name]) for name in ("both", "only_a", "only_b", "neither"))
    interval = f"[{each['low']:+.3f}, {each['high']:+.3f}]"
    return (f"{each['a']} - {each['b']}", f"{each['difference']:+.3f}", interval, f"{each['p']:.2g}", *counts)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# One arm plays its scenes; what came of each is a row.

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """Scenes played by an arm, in their order."""

    arm: PolicyArm
    episodes: list[Episode]
    rows: list[Row]
    wall_s: float  # of all episodes; the start of workers and of renderers is not in it
    policy_s: float  # of it, in which the policy decided


class TimedPolicy(PolicyWrapper):
    """A policy whose time is taken, and that says which episode it is at."""

    def __init__(self, policy: Policy, say: Callable[[int], None]):
        super().__init__(policy)
        self._say, self.seconds = say, 0.0

    def act(self, episodes: Sequence[Episode], observations: Sequence[Any], **how: Any) -> list[Decision]:
        self._say(max(episode.group for episode in episodes) + 1)
        started = time.perf_counter()
        decisions = super().act(episodes, observations, **how)
        self.seconds += time.perf_counter() - started
        return decisions


def play(arm: PolicyArm, samples: Sequence[Sample], say: Callable[[int], None]) -> Played:
    """Greedy episodes, as training's evaluation plays them; workers should be warm. `say` gets the newest's number.

    Raises:
        UserError: what `collect` raises.
    """
    watched, started = TimedPolicy(arm.policy, say), time.perf_counter()
    episodes = collect(watched, arm.task, samples, group_size=1, greedy=True)
    seconds = time.perf_counter() - started
    return Played(arm, episodes, [play_row(arm.name, episode) for episode in episodes], seconds, watched.seconds)


def play_row(arm: str, episode: Episode) -> Row:
    """One episode as `result.json` has it; numbers of smoothness are None where there were too few ticks."""
    infos = [turn.step.info for turn in episode.turns]
    outcome, last = episode.score.answer["outcome"], infos[-1]
    named = (key.removeprefix(f"{outcome}: ") for key in last if key.startswith(f"{outcome}: "))
    return {
        "arm": arm, "seed": episode.sample.answer, "sample": episode.sample.id,
        "outcome": outcome, "reason": next(named, ""), "success": outcome == "success",
        "ticks": int(sum(info.get("ticks", 0) for info in infos)), "decisions": len(infos),
        "reward": episode.reward, "paid": sum(turn.step.reward for turn in episode.turns),
        "clipped": int(sum(info.get("clipped", 0) for info in infos)),
        "action_rate": last.get("action_rate"), "action_jerk": last.get("action_jerk"), "faults": list(episode.faults),
    }  # fmt: skip


# Videos of episodes. They are played once more to be filmed, so that a camera costs no result its time.

SIZE = (256, 256)  # pixels, of robots without a camera of their own
KINDS = (("success",), ("failure", "bad_action"), ("time_out",))  # of outcomes; a report shows one of each


@dataclass(frozen=True)
class Filmed:
    """An episode's video."""

    arm: str
    seed: int
    outcome: str
    ticks: int
    path: Path
    same: bool  # it went as when it counted


def chosen(rows: Sequence[Row]) -> list[int]:
    """Places of episodes worth seeing: the first of each kind of outcome."""
    firsts = ([i for i, each in enumerate(rows) if each["outcome"] in kind][:1] for kind in KINDS)
    return sorted(place for places in firsts for place in places)


def film(arm: PolicyArm, task: Any, samples: Sequence[Sample], rows: Sequence[Row], folder: Path) -> list[Filmed]:
    """Plays the samples again, whose rows are known, and writes `SEED_ARM_OUTCOME.mp4` of each.

    Args:
        folder: is there.

    Raises:
        UserError: the robot has no picture, or cannot render.
    """
    paths = {sample.id: (folder / f"{sample.answer:06d}_{arm.name}.mp4").resolve() for sample in samples}
    filmed = task.arm(arm.script, {name: {"path": str(path), "size": SIZE} for name, path in paths.items()})
    frames = []
    for episode, before in zip(collect(arm.policy, filmed, samples, group_size=1, greedy=True), rows, strict=True):
        now, path = play_row(arm.name, episode), paths[episode.sample.id]
        named = path.rename(path.with_name(f"{path.stem}_{now['outcome']}.mp4"))
        same = all(now[key] == before[key] for key in ("outcome", "ticks", "reward"))
        frames.append(Filmed(arm.name, now["seed"], now["outcome"], now["ticks"], named, same))
    return frames


def keep(films: Sequence[Filmed], folder: Path) -> list[Filmed]:
    """Copies into the user's folder, each whole or not at all."""
    kept = []
    for each in films:
        part = folder / f".{each.path.name}.part"
        shutil.copyfile(each.path, part)
        kept.append(
            Filmed(each.arm, each.seed, each.outcome, each.ticks, part.rename(folder / each.path.name), each.same)
        )
    return kept


def embedded(film: Filmed) -> tuple[str, str]:
    """Data URIs of the video and of a strip of its frames."""
    picture, _ = strip(films_read(film.path))
    out = BytesIO()
    picture.save(out, "WEBP", quality=80)
    return (
        f"data:video/mp4;base64,{base64.b64encode(film.path.read_bytes()).decode()}",
        f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}",
    )


def films_read(path: Path) -> Video:
    """All frames of a film."""
    with open_video(path) as file:
        rate = float(file.streams.video[0].average_rate or 25)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    return Video(frames, tuple(i / rate for i in range(len(frames))), rate, len(frames) / rate)


# What rows of episodes say of an arm, and of two arms beside each other.

POINTS = 0.1  # the difference of success that a comparison should be able to see


def measure(played: Played, hz: float) -> dict[str, Any]:
    """An arm in numbers (docs/simulate.md says what each is); None where no episode has one."""
    rows, n = played.rows, len(played.rows)
    won = [row["ticks"] for row in rows if row["success"]]
    low, high = wilson(len(won), n)
    ticks = sum(row["ticks"] for row in rows)
    faults = Counter(fault for row in rows for fault in row["faults"])
    return {
        "name": played.arm.name, "source": played.arm.source,
        "success": {"value": len(won) / n, "low": low, "high": high, "count": len(won), "n": n},
        "outcomes": dict(Counter(row["outcome"] for row in rows).most_common()),
        "reasons": dict(Counter(f"{row['outcome']}: {row['reason']}" for row in rows if row["reason"]).most_common()),
        "repeats": {"count": faults.total(), "reasons": dict(faults.most_common())},
        "ticks_to_success": quartiles(won), "seconds_to_success": quartiles([each / hz for each in won]),
        "action_rate": mean(rows, "action_rate"), "action_jerk": mean(rows, "action_jerk"),
        "clipped": sum(row["clipped"] for row in rows) / max(1, ticks), "ticks": ticks,
        "wall_s": played.wall_s, "policy_s": played.policy_s,
        "seconds_per_episode": played.wall_s / n, "ticks_per_s": ticks / played.wall_s,
    }  # fmt: skip


def compare(a: Sequence[Row], b: Sequence[Row]) -> dict[str, Any]:
    """Two arms on the same scenes: counts, difference of success A - B, its 95 % interval, exact p.

    Raises:
        ValueError: their scenes are not the same.
    """
    if [row["seed"] for row in a] != [row["seed"] for row in b]:
        raise ValueError("pairs are of the same scenes")
    pairs = count([row["success"] for row in a], [row["success"] for row in b])
    low, high = newcombe(pairs)
    return {
        "a": a[0]["arm"], "b": b[0]["arm"], "n": pairs.n, "both": pairs.both, "only_a": pairs.only_a,
        "only_b": pairs.only_b, "neither": pairs.neither, "difference": pairs.difference, "low": low, "high": high,
        "p": mcnemar(pairs), "needed": needed(pairs.discordant, POINTS),
    }  # fmt: skip


def notes(pairs: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader could take wrongly: no difference seen where none of POINTS could be."""
    return [
        f"{pair['n']} scenes are too few to see a difference of {100 * POINTS:.0f} points between {pair['a']} and "
        f"{pair['b']} with a power of 80 %: it takes about {pair['needed']}, if as many of them differ as here"
        for pair in pairs
        if pair["p"] >= 0.05 and pair["n"] < pair["needed"]
    ]


def quartiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median and quartiles, interpolated linearly; None of nothing."""
    if not values:
        return None
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return {"median": median, "low": low, "high": high}


def mean(rows: Sequence[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) / len(known) if known else None


# The page of a result: one HTML file that needs no script, no network and no other file.

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
        films=render_films(films),
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
        **{("Checksum of scenes" if name == "scenes" else name): str(value) for name, value in result["facts"].items()},
        **{f"Arm {arm['name']}": arm["source"] for arm in result["arms"] if arm["source"]},
        "vlrl": f"{versions['vlrl']} ({versions['commit']})",
    }


def render_films(films: Sequence[Filmed]) -> str:
    """A row of films for each scene, arms side by side; '' without any."""
    scenes = dict.fromkeys(film.seed for film in films)
    rows = "".join(_scene(seed, [film for film in films if film.seed == seed]) for seed in scenes)
    return f'<section id="films"><h2>The same scenes, arm by arm</h2>{rows}</section>' if rows else ""


def _scene(seed: int, films: Sequence[Filmed]) -> str:
    return f'<h3>Scene {seed}</h3><div class="films">{"".join(map(_figure, films))}</div>'


def _figure(film: Filmed) -> str:
    video, strip = embedded(film)
    caption = escape(f"{film.arm}: {film.outcome.replace('_', ' ')} after {film.ticks} ticks")
    return (
        f'<figure><figcaption>{caption}</figcaption><div class="pair">'
        f'<video src="{video}" controls muted loop playsinline></video>'
        f'<img src="{strip}" loading="lazy" alt="Eight moments of it: {caption}"></div></figure>'
    )


# What `result.json` holds of arms that have played.

PACKAGES = ("torch", "transformers", "numpy", "mujoco", "robosuite", "metaworld", "gymnasium", "lerobot")
OTHER_SCENES = "the arms did not meet the same scenes, so there are no pairs: does the robot hang on its seed alone?"


def result_of(config: Config, task: Any, played: Sequence[Played]) -> dict[str, Any]:
    """Everything but the videos, as JSON can hold it: the first arm is compared with each of the others."""
    first, *others = played
    facts = [dict(task.facts(each.episodes)) for each in played]
    same = all(each == facts[0] for each in facts)
    pairs = [compare(first.rows, other.rows) for other in others] if same else []
    hz = first.arm.task.hz
    return {
        "task": task.name, "part": config.task.options.get("part", "test"), "n": len(first.rows),
        "seeds": [row["seed"] for row in first.rows], "facts": facts[0], "hz": hz, "workers": task.max_parallel_envs,
        "arms": [measure(each, hz) | {"facts": fact} for each, fact in zip(played, facts, strict=True)],
        "pairs": pairs, "notes": [*([] if same else [OTHER_SCENES]), *notes(pairs)],
        "versions": versions(), "config": config.model_dump(mode="json"),
        "episodes": [row for each in played for row in each.rows],
    }  # fmt: skip


def versions() -> Mapping[str, str]:
    """Of vlrl, with its commit, and of what the result hangs on, as far as it is installed."""
    versions_of = {"vlrl": __version__, "commit": commit()}
    for name in PACKAGES:
        try:
            versions_of[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions_of


# `vlrl simulate`: arms play the same scenes, and what came of it is written and shown.

VIDEOS = 4


@dataclass(frozen=True)
class SimulationPlan:
    """What the user asked for.

    Args:
        out: folder for result.json and report.html; what lies there under these names is replaced.
        policy: a folder, a run folder or a bundled name; none: the configuration's.
        against: `expert`, `random`, `start`, folders or names.
        episodes: the first so many held-out scenes; none: all.
        video: a folder for videos of each arm's first `videos` episodes, by default VIDEOS or as many as there are.
    """

    out: Path
    policy: str | None = None
    against: Sequence[str] = ()
    episodes: int | None = None
    video: Path | None = None
    videos: int | None = None


@dataclass
class SimulationState:
    """What was played and filmed so far."""

    played: list[Played] = field(default_factory=list)
    report: list[Filmed] = field(default_factory=list)  # what the page shows
    kept: list[Filmed] = field(default_factory=list)  # what lies in the user's folder
    notes: list[str] = field(default_factory=list)


def simulate(config: Config, plan: SimulationPlan) -> dict[str, Any]:
    """Plays, writes `out/result.json` and `out/report.html`, and returns the result.

    Raises:
        UserError: what is asked for cannot be played.
    """
    task = registry.make_task(config)
    if not isinstance(task, RobotTask) or task.arm() is None:
        raise UserError(f"task.name: {config.task.name!r} has no robot: `vlrl simulate` plays the task `manipulation`")
    try:
        samples = _samples(task, plan)
        arms = arms_of(config, task, plan.policy, plan.against)
        for option, folder in (("--out", plan.out), ("--video", plan.video)):
            _make(option, folder)
        with hold_folder(plan.out), tempfile.TemporaryDirectory(prefix=".films-", dir=plan.out) as films:
            stage = _play(task, arms, samples, plan, Path(films))
            result = result_of(config, task, stage.played)
            result |= {"notes": [*result["notes"], *stage.notes], "videos": [str(each.path) for each in stage.kept]}
            write_text(plan.out / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
            write_text(plan.out / "report.html", page(result, stage.report))
        return result
    finally:
        task.close()


def _samples(task: Any, plan: SimulationPlan) -> list[Sample]:
    held_out = task.samples("test")
    most = len(held_out)
    n = most if plan.episodes is None else plan.episodes
    if not 0 < n <= most:
        raise UserError(f"--episodes {n}: 1 to {most}, the scenes that are held out, or set task.held_out")
    if plan.videos is not None and not (plan.video and 0 < plan.videos <= n):
        raise UserError(f"--videos {plan.videos}: 1 to {n}, the episodes, and --video says where to")
    return [held_out[i] for i in range(n)]


def _make(option: str, folder: Path | None) -> None:
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{option} {folder}: a file is in the way; name a folder") from None


def _play(
    task: Any, arms: Sequence[PolicyArm], samples: Sequence[Sample], plan: SimulationPlan, films: Path
) -> SimulationState:
    """All arms one after the other, each filmed in the scenes that are worth seeing of the first."""
    stage, n = SimulationState(), len(samples)
    kept = min(plan.videos or VIDEOS, n) if plan.video else 0
    with Progress(n) as progress:
        progress.note("starting the robots")
        for arm in arms:  # all of them first: what one of them lacks is said before another has played
            arm.task.warm(samples)
        for arm in arms:
            say = f"{arm.name}: episode {{}} of {n}".format
            stage.played.append(play(arm, samples, lambda number, say=say: progress.note(say(number))))
            worth = chosen(stage.played[0].rows)
            places = sorted({*worth, *range(kept)})
            progress.note(f"{arm.name}: filming {len(places)} episodes")
            taken = dict(zip(places, _film(task, stage, places, films, must=kept > 0), strict=False))
            stage.report += [taken[place] for place in worth if place in taken]
            if plan.video:
                stage.kept += keep([taken[place] for place in range(kept)], plan.video)
    return stage


def _film(task: Any, stage: SimulationState, places: Sequence[int], folder: Path, must: bool) -> list[Filmed]:
    """Films of the newest arm's episodes at these places. A report without pictures is still one: [] unless `must`."""
    newest = stage.played[-1]
    samples, rows = zip(*((newest.episodes[place].sample, newest.rows[place]) for place in places), strict=True)
    try:
        films = film(newest.arm, task, samples, rows, folder)
    except UserError as error:
        if must:
            raise
        stage.notes.append(f"no pictures of {newest.arm.name}: {error}")
        return []
    other = ", ".join(str(each.seed) for each in films if not each.same)
    if other:
        stage.notes.append(f"{newest.arm.name} went another way when it was filmed in scenes {other}: batches of other "
                           "sizes round differently")  # fmt: skip
    return films
