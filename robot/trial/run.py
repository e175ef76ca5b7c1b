"""The trial itself, episode after episode, blind, until the test or the plan says that it is over; and its page."""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import metadata
from itertools import combinations
from pathlib import Path
from string import Template
from typing import Any

import yaml

from robot.deploy import dashboard
from robot.trial.plan import (
    Desk,
    Journal,
    State,
    Trial,
    TrialArm,
    TrialPlan,
    TrialVerdict,
    courses,
    draw,
    load_trial,
    over,
    read,
    save,
    tries,
)
from robot.trial.stats import Course, fisher
from vlrl.decoders import load_json
from vlrl.io import hold_folder, write_atomic
from vlrl.system.children import end_with_owner
from vlrl.types import UserError, wilson

# How one episode of a trial is run: by `vlrl deploy` in a process of its own, or by the operator.

KEYS = "While it plays: SPACE emergency stop, s success, f failure; where nothing moves, Enter says that it may begin"
LOST = {4: "the robot or its bus was lost", 5: "the policy server was lost", 7: "the motion process died"}
STOPPED = {3: "the safety governor stopped the robot", 6: "emergency stop"}
LABELS = ("number", "seed")  # in a row of result.json: they measure nothing
REST_S = 60.0  # for a deployment whose owner was killed to make the robot safe
PAUSED = (130, 143, -2, -15)  # Ctrl-C or SIGTERM: the operator's, or the machine's


@dataclass(frozen=True)
class Outcome:
    """What came of an episode. `success` None: the operator is to say. `void`: the fault that made it say nothing."""

    success: bool | None
    void: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    message: str = ""  # for the operator; it must not tell which policy ran


Play = Callable[[TrialArm, str | int | None, int], Outcome]  # the policy, the start, the episode's number, from 1


def by_hand(arm: TrialArm, start: str | int | None, number: int) -> Outcome:
    """The operator runs the policy and says what came of it."""
    return Outcome(None)


def by_deploy(trial: Trial, folder: Path, deploy: Sequence[str] = (sys.executable, "-m", "vlrl.cli", "deploy")) -> Play:
    """`vlrl deploy` runs each episode; what it prints goes to a log, since it names the policy. The keys are its own
    while it plays.

    A lost robot or server makes an episode void. A stop by the governor or by hand does not, or unsafe policies would
    profit: the operator judges it.
    """

    def play(arm: TrialArm, start: str | int | None, number: int) -> Outcome:
        place = _fresh(folder, number)
        overrides = [*_overrides(trial, arm, start), f"out={place}"]
        return outcome(_run([*deploy, str(trial.deploy), *overrides], place / "log.txt"), place)

    return play


def check_play(trial: Trial) -> None:
    """Reads the deployment's YAML as it will be read for each policy and start: a mistake must not wait for its turn.

    Raises:
        UserError: a key is unknown or ill-typed, or two do not go together.
    """
    from robot.deploy.config import load

    for name, arm in trial.policies.items():
        try:
            load(str(trial.deploy), _overrides(trial, arm, None))
        except UserError as error:
            raise UserError(f"policies.{name}: {error}") from None


def _overrides(trial: Trial, arm: TrialArm, start: str | int | None) -> list[str]:
    seed = [f"seed={start}"] if isinstance(start, int) else []
    return ["view=none", *trial.changes, *arm.overrides, "episodes=1", *seed]


def outcome(code: int, place: Path) -> Outcome:
    """What an exit code of `vlrl deploy` and the `result.json` in its folder say.

    Raises:
        UserError: it could not begin. KeyboardInterrupt: it was interrupted.
    """
    if code in PAUSED:
        raise KeyboardInterrupt
    if code in LOST:
        return Outcome(None, void=LOST[code])
    if code in STOPPED:
        return Outcome(None, message=STOPPED[code])
    try:
        row = load_json(place / "result.json", finite=False)["episodes"][-1]
        if code == 0 and isinstance(row, Mapping):
            return _of(row)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        pass
    raise UserError(f"`vlrl deploy` ended with code {code} and no result: {place / 'log.txt'} says why (and names the "
                    "policy); the episode is void, go on with --resume")  # fmt: skip


def _run(command: Sequence[str], log: Path) -> int:
    """The exit code. Whatever ends the trial ends the deployment first, and waits until it has made the robot safe."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        end_with_owner(process.pid, notice=signal.SIGTERM, patience=REST_S)
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():  # a terminal sends Ctrl-C to both, and a second signal would hurry it
                process.terminate()
            process.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _of(row: Mapping[str, Any]) -> Outcome:
    numbers = {k: float(v) for k, v in row.items() if type(v) in (int, float) and k not in LABELS}
    success = row.get("success")
    return Outcome(success if isinstance(success, bool) else None, str(row.get("void") or ""), numbers)


def _fresh(folder: Path, number: int) -> Path:
    """A new folder for this try of the episode."""
    tries = len(list(folder.glob(f"episodes/{number:04d}_*"))) + 1
    place = folder / "episodes" / f"{number:04d}_{tries}"
    place.mkdir(parents=True)
    return place


def begin(trial: Trial, manual: bool) -> Path:
    """Freezes a new plan in `trial.out` and returns that folder.

    Raises:
        UserError: the folder holds something already.
    """
    folder = Path(trial.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = f"go on with --resume {folder}, or " if (folder / "plan.json").is_file() else ""
        raise UserError(f"out: {folder} holds something already: {hint}name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    save(draw(trial, manual), folder)
    return folder


def run(folder: Path, play: Play, desk: Desk) -> dict[str, Any] | None:
    """Goes on with the trial in a folder until it is over or paused (None), from where its files say that it stands.

    Returns:
        The result, which `report.write` has also written into the folder.

    Raises:
        UserError: the files are not as the trial left them, or another process is at work on it.
    """
    with hold_folder(folder):
        plan = read(folder)
        journal = Journal(folder, plan)
        desk.say(f"Plan {plan.checksum[:16]}, at most {len(plan.order)} episodes. Stay blind: do not open {folder}.")
        try:
            while not journal.state.ended:
                if not _step(plan, journal, play, desk):
                    return None
        except EOFError:
            return None
        return write_page(folder, plan, journal.state)


def _step(plan: TrialPlan, journal: Journal, play: Play, desk: Desk) -> bool:
    """One thing that the operator does; False: pause."""
    state = journal.state
    if state.is_running:  # and interrupted, or its verdict was taken back
        journal.verdict(desk.judge(state.next))
        return True
    why, undo = over(plan, state), bool(state.verdicts)
    reply = desk.over(undo) if why else desk.ready(_title(plan, state), undo)
    if reply == "undo":
        journal.undo()
    elif reply == "end":
        journal.end(why or "operator")
    elif reply == "begin":
        journal.begin()
        _play(plan, journal, play, desk)
    return reply != "pause"


def _play(plan: TrialPlan, journal: Journal, play: Play, desk: Desk) -> None:
    number = journal.state.next
    assigned = plan.order[number - 1]
    try:
        outcome = play(plan.trial.policies[assigned.policy], assigned.start, number)
    except UserError:  # nothing was played
        journal.verdict(TrialVerdict(number, "void", "robot", "the episode could not be run"))
        raise
    if outcome.message:
        desk.say(f"Episode {number}: {outcome.message}")
    if outcome.void:
        desk.say(f"Episode {number} is void and will be repeated: {outcome.void}")
        journal.verdict(TrialVerdict(number, "void", "robot", outcome.void, outcome.numbers))
    elif outcome.success is None:
        message = desk.judge(number)
        journal.verdict(TrialVerdict(number, message.verdict, message.by, message.note, outcome.numbers))
    else:
        verdict = "success" if outcome.success else "failure"
        desk.say(f"Episode {number}: {verdict}, says the robot")
        journal.verdict(TrialVerdict(number, verdict, "robot", "", outcome.numbers))


def _title(plan: TrialPlan, state: State) -> str:
    """What the operator may know of the next episode."""
    assigned = plan.order[state.next - 1]
    again = any(each.episode == assigned.episode for each in state.verdicts)
    slot = f", slot {plan.slot(assigned.policy)}" if plan.manual else ""
    start = f", start: {assigned.start}" if assigned.start is not None else ""
    return f"Episode {assigned.episode}{' again' if again else ''}{slot}{start}"


# `vlrl trial`: a fair comparison of policies on a robot, or its continuation.


def main(options: argparse.Namespace) -> int:
    """Begins or resumes; returns the exit code, 0 also for a trial that was paused.

    Args:
        options: config (str or None), changes (list of str), manual (bool), resume (a trial's folder or None).

    Raises:
        UserError: for what the user can mend; KeyboardInterrupt: the trial can be resumed.
    """
    if options.resume and (options.config or options.changes):
        raise UserError("--resume takes the trial's own plan: name no config and no changes")
    if not options.resume and not options.config:
        raise UserError("name a config, for example: vlrl trial trial.yaml")
    folder = Path(options.resume) if options.resume else _begin(options)
    plan = read(folder)
    play = by_hand if plan.manual else by_deploy(plan.trial, folder)
    if not plan.manual:
        _say(KEYS)
    result = run(folder, play, Desk(say=_say, ask=_ask))
    if result is None:
        _say(f"Paused. Go on with: vlrl trial --resume {folder}")
        return 0
    for line in (*result["sentences"], *result["warnings"], f"report: {folder / 'report.html'}"):
        _say(line)
    return 0


def _begin(options: argparse.Namespace) -> Path:
    trial = load_trial(options.config, options.changes, options.manual)
    if not options.manual:
        check_play(trial)
    return begin(trial, options.manual)


def _say(text: str) -> None:
    print(text, flush=True)


def _ask(question: str) -> str:
    print(question, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        print(flush=True)
        raise EOFError
    return line


# The page of a trial: one HTML file that needs no script, no network and no other file.
#
# The course of a trial as drawings: the e-value with its threshold, and the confidence sequence. Inline SVG.

WIDTH, HEIGHT = 760, 230
LEFT, RIGHT, TOP, BOTTOM = 72, 120, 14, 32  # pixels around the curves
LN10 = math.log(10)


@dataclass(frozen=True)
class PlotFrame:
    """Rounds 0 to n, left to right; values from low to high, upwards."""

    n: int
    low: float
    high: float

    def x(self, number: float) -> float:
        return LEFT + number / max(1, self.n) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def steps(self, values: Sequence[float]) -> str:
        """A stepped path that begins at round 0."""
        x0, y0 = self.x(0), self.y(values[0])
        moves = (f"H{self.x(i):.1f}V{self.y(value):.1f}" for i, value in enumerate(values[1:], 1))
        return f"M{x0:.1f} {y0:.1f}" + "".join(moves)


def e_value(pair: Mapping[str, Any]) -> str:
    """The e-value after each round on a logarithmic axis, with the threshold of the test."""
    logs = [0.0, *(value / LN10 for value in pair["course"]["log_e"])]
    bar = math.log10(pair["threshold"])
    frame = PlotFrame(len(logs) - 1, math.floor(min(-1.0, *logs)), math.ceil(max(bar + 0.3, *logs)))
    step = max(1, round((frame.high - frame.low) / 5))
    ticks = range(round(frame.low), round(frame.high) + 1, step)
    curve = f'<g class="series"><path class="line" d="{frame.steps(logs)}"/></g>'
    text = f"e-value {pair['e']:.3g} after {pair['rounds']} rounds, threshold {pair['threshold']:.3g}"
    return _svg(frame, text, ticks, lambda tick: f"{10.0**tick:g}", [(bar, f"decides: {pair['threshold']:.3g}")], curve)


def sequence(pair: Mapping[str, Any], delta: float) -> str:
    """The confidence sequence of the difference, and the band that would not matter."""
    low, high = [-1.0, *pair["course"]["low"]], [1.0, *pair["course"]["high"]]
    frame = PlotFrame(len(low) - 1, -1.0, 1.0)
    back = f"V{frame.y(low[-1]):.1f}"
    back += "".join(f"V{frame.y(low[i]):.1f}H{frame.x(i):.1f}" for i in range(len(low) - 2, -1, -1))
    edges = "".join(f'<path class="line" d="{frame.steps(edge)}"/>' for edge in (high, low))
    curve = f'<g class="series"><path class="band" d="{frame.steps(high)}{back}Z"/>{edges}</g>'
    text = f"difference between {pair['low']:+.2f} and {pair['high']:+.2f} after {pair['rounds']} rounds"
    bars = [(delta, f"delta {delta:g}"), (-delta, "")]
    return _svg(frame, text, (-1, -0.5, 0, 0.5, 1), lambda tick: f"{tick:+g}", bars, curve)


def _svg(frame: PlotFrame, said: str, ticks: Sequence[float], word: Callable[[float], str],
         bars: Sequence[tuple[float, str]], curve: str) -> str:  # fmt: skip
    end = WIDTH - RIGHT
    lines = [_line(frame.y(tick), end, word(tick)) for tick in ticks]
    lines += [_bar(frame.y(value), end, text) for value, text in bars]
    rounds = sorted({round(frame.n * part / 4) for part in range(5)})
    lines += [f'<text x="{frame.x(i):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i}</text>' for i in rounds]
    return (f'<svg class="course" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
            f'<g class="axes">{"".join(lines)}</g>{curve}</svg>')  # fmt: skip


def _line(y: float, end: float, word: str) -> str:
    return (f'<line x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(word)}</text>')  # fmt: skip


def _bar(y: float, end: float, text: str) -> str:
    return (f'<line class="bar" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{end + 6}" y="{y + 4:.1f}">{escape(text)}</text>')  # fmt: skip


# What `result.json` holds: everything that the page shows, unblinded.

WARN = 0.05  # p of Fisher's test on voids, times the number of pairs


def result_of(plan: TrialPlan, state: State) -> dict[str, Any]:
    """As JSON can hold it. Numbers of rounds and episodes begin at 1."""
    trial, by_policy = plan.trial, tries(plan, state)
    pairs = [_result_pair(*both, course) for both, course in courses(plan, state).items()]
    return {
        "plan": plan.checksum, "seed": plan.seed, "manual": plan.manual, "paired": plan.paired,
        "alpha": trial.alpha, "delta": trial.delta, "ended": state.ended, "undone": state.undone,
        "episodes": len(state.counted), "most": len(plan.order),
        "sentences": [sentence(pair, plan) for pair in pairs], "warnings": _warnings(by_policy),
        "policies": [_result_policy(plan, name, each) for name, each in by_policy.items()], "pairs": pairs,
        "rows": [_row(plan, each) for each in state.verdicts],
        "settings": plan.settings, "vlrl": metadata.version("vlrl"),
    }  # fmt: skip


def _result_policy(plan: TrialPlan, name: str, verdicts: Sequence[TrialVerdict]) -> dict[str, Any]:
    counted = [each for each in verdicts if each.verdict != "void"]
    won, n = sum(each.verdict == "success" for each in counted), len(counted)
    low, high = wilson(won, n)
    value = won / n if n else None
    return {
        "name": name, "slot": plan.slot(name), "n": n, "successes": won,
        "success": {"value": value, "low": low, "high": high, "n": n},
        "voids": len(verdicts) - n, "tries": len(verdicts),
        "by_robot": sum(each.by == "robot" for each in counted), "numbers": _means(counted),
    }  # fmt: skip


def _means(counted: Sequence[TrialVerdict]) -> dict[str, float]:
    """Of each number that all episodes have."""
    shared = set.intersection(*(set(each.numbers) for each in counted)) if counted else set()
    return {name: math.fsum(each.numbers[name] for each in counted) / len(counted) for name in sorted(shared)}


def _result_pair(a: str, b: str, course: Course) -> dict[str, Any]:
    n = course.rounds
    return {
        "a": a, "b": b, "decision": course.decision, "decided": course.decided, "rounds": n,
        "e": math.exp(min(course.log_e[-1], 700)) if n else 1.0, "threshold": math.exp(course.threshold),
        "low": float(course.low[-1]) if n else -1.0, "high": float(course.high[-1]) if n else 1.0,
        "course": {"log_e": course.log_e.tolist(), "low": course.low.tolist(), "high": course.high.tolist()},
    }  # fmt: skip


def _row(plan: TrialPlan, verdict: TrialVerdict) -> dict[str, Any]:
    assigned = plan.order[verdict.episode - 1]
    return {**vars(verdict), "policy": assigned.policy, "round": assigned.round + 1, "start": assigned.start}


def sentence(pair: Mapping[str, Any], plan: TrialPlan) -> str:
    """The decision on a pair, and what it does not say."""
    a, b = pair["a"], pair["b"]
    known = (f"the difference {a} - {b} lies between {pair['low']:+.2f} and {pair['high']:+.2f} (jointly "
             f"{1 - plan.trial.alpha:.0%} sure, whenever one looks; e-value {pair['e']:.3g}, threshold "
             f"{pair['threshold']:.3g}, after {pair['rounds']} rounds)")  # fmt: skip
    if pair["decision"] in ("a", "b"):
        better, worse = (a, b) if pair["decision"] == "a" else (b, a)
        return f"{better} succeeds more often than {worse}: {known}. This does not say by how much beyond that " \
               "interval, nor anything of other starts, scenes or robots."  # fmt: skip
    if pair["decision"] == "same":
        return f"{a} and {b} do not differ by more than {plan.trial.delta:g}: {known}. This does not say that they " \
               "are equal, nor anything of other starts, scenes or robots."  # fmt: skip
    return f"{a} or {b} is undecided: {known}. This does not say that they are alike."


def _warnings(by_policy: Mapping[str, Sequence[TrialVerdict]]) -> list[str]:
    """Where voids fell on one policy more than chance would have it."""
    both = list(combinations(by_policy, 2))
    lines = []
    for a, b in both:
        (void_a, n_a), (void_b, n_b) = (_voids(by_policy[name]) for name in (a, b))
        p = min(1.0, len(both) * fisher(void_a, n_a, void_b, n_b))
        if p < WARN:
            lines.append(f"voids fell on {a} in {void_a} of {n_a} tries and on {b} in {void_b} of {n_b} (Fisher's "
                         f"exact test, p = {p:.2g}): if a policy causes them, the comparison is not fair")  # fmt: skip
    return lines


def _voids(verdicts: Sequence[TrialVerdict]) -> tuple[int, int]:
    return sum(each.verdict == "void" for each in verdicts), len(verdicts)


# The frame of a trial's page and how it looks.

BODY = Template("""<body>
$bar
<main>
<section class="name">
<h1>$title_html</h1>
$sentences
$warnings
<dl class="facts">$facts</dl>
</section>
<section><h2>Policies</h2>$policies
<p class="muted">Intervals: Wilson, 95 %, for a number of episodes fixed beforehand. A trial that may stop early is
judged by the confidence sequences below.</p></section>
$pairs
<section><h2>Voids and notes</h2>$notes</section>
<section><details><summary>All verdicts</summary>$rows</details></section>
<section id="config"><details><summary>Settings</summary><pre tabindex="0">$settings</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
.says { margin: 8px 0 0; font-size: 16px; max-width: 72ch; overflow-wrap: anywhere; }
.warn { margin: 8px 0 0; color: var(--warn); max-width: 80ch; }
.course { display: block; width: 100%; max-width: 872px; height: auto; margin-bottom: 12px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
"""


def framed(title: str, **parts: str) -> str:
    """The page. title: as text; parts: HTML of the body's places, escaped."""
    return dashboard.page_head(title, "img-src data:", STYLE) + BODY.substitute(bar=dashboard.bar("trial"), **parts)


POLICIES = ("policy", "slot", "success", "95 %", "episodes", "judged by the robot", "voids", "tries")
ROWS = ("episode", "policy", "start", "verdict", "by", "note")


def write_page(folder: Path, plan: TrialPlan, state: State) -> dict[str, Any]:
    """`result.json` and `report.html`, from the journal alone; returns the result."""
    result = result_of(plan, state)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(folder / "report.html", page(result))
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
    value_text = "-" if share["value"] is None else f"{share['value']:.3f}"
    numbers = [f"{policy['numbers'][name]:.4g}" if name in policy["numbers"] else "-" for name in means]
    counts = [str(policy[key]) for key in ("n", "by_robot", "voids", "tries")]
    return [policy["name"], policy["slot"], value_text, f"[{share['low']:.3f}, {share['high']:.3f}]", *counts, *numbers]


def _pair(pair: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if not pair["rounds"]:
        return ""
    name = f"{escape(pair['a'])} - {escape(pair['b'])}"
    return (f"<section><h2>{name}</h2><p>Evidence against 'no difference' after each round (e-value)</p>"
            f"{e_value(pair)}<p>The difference of success: confidence sequence</p>"
            f"{sequence(pair, result['delta'])}</section>")  # fmt: skip


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    rows_with_notes = [row for row in rows if row["note"]]
    cells = [[str(row["episode"]), row["policy"], row["verdict"], row["note"]] for row in rows_with_notes]
    return _table(("episode", "policy", "verdict", "written blind"), cells) if rows_with_notes else "<p>None.</p>"


def _lines(kind: str, lines: Sequence[str]) -> str:
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    inside = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="table" tabindex="0"><table>{inside}</table></div>'
