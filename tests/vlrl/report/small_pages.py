"""Every kind of page that vlrl writes, from a few numbers: name -> file."""

from __future__ import annotations

from itertools import chain, cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from robot.deploy.report import rendered
from robot.trial.plan import Desk, Trial, TrialArm
from robot.trial.run import begin, by_hand, run
from tasks.temporal_grounding import TemporalGrounding
from vlrl.config import Component, Config, PolicySection
from vlrl.evaluation import compare_report as compare
from vlrl.evaluation import simulate as simulation
from vlrl.report.evaluation import write_evaluation
from vlrl.runner import summarise
from vlrl.types import Annotation, Decision, Episode, Observation, Sample, Score, Step, Turn

HOSTILE = "<script>window.hacked = 1</script>"
VERSIONS = {"vlrl": "0.1.0", "commit": "0123456789ab"}


def about(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 100}


def compared() -> str:
    names = ("grpo", HOSTILE)
    counts = {key: about(1200.0) for key in ("tokens", "forwarded", "rollouts", "updates", "cpu_s", "whole_cpu_s")}
    arm = {"final": about(0.7), "before": about(0.3), "seeds": [{"seed": 0, **about(0.7)}], "area": about(0.5),
           "pass_at": {"1": about(0.6), "4": about(0.8)},
           "entropy": {"first": about(1.0), "last": about(0.2)}}  # fmt: skip
    x = {axis: [0.0, 50.0, 100.0] for axis in ("steps", "rollouts", "tokens", "cpu_s")}
    course = {"x": x, "accuracy": [about(v) for v in (0.3, 0.5, 0.7)], "entropy": [about(0.9), about(0.4)]}
    decision = {"a": names[0], "b": names[1], "verdict": "open", "difference": 0.01, "p": 0.4, "look": 1}
    return compare.page({
        "task": "pointing", "arms": [{"name": name, **arm, **counts} for name in names], "notes": ["one note"],
        "start": {"1": about(0.3), "4": about(0.5), "entropy": 1.1}, "courses": dict.fromkeys(names, course),
        "equal": [{"label": "rollouts", "verdict": "equal", "values": dict.fromkeys(names, 1200)}],
        "test": {"method": "AdaStop", "level": 0.05, "looks": 1, "most_looks": 2, "each": 5, "undecided": True,
                 "decisions": [decision]},
        "reach": [{"label": "0.500", "arms": {name: {key: about(40.0) for key in x} for name in names}}],
        "config": {"budget": {"rollouts": 1200, "rollouts_per_update": 64}, "pass_at": {"k": [1, 4]}},
        "cpu_s": 90.0, "versions": VERSIONS,
    })  # fmt: skip


def simulated() -> str:
    quartiles = {"median": 19.0, "low": 11.0, "high": 26.0}
    arm = {"source": "runs/push", "success": about(0.5), "outcomes": {"success": 1, "time_out": 1},
           "repeats": {"count": 0}, "ticks_to_success": quartiles, "seconds_to_success": quartiles, "action_rate": 0.1,
           "action_jerk": 0.1, "clipped": 0.0, "seconds_per_episode": 0.08, "ticks_per_s": 337.0}  # fmt: skip
    pair = {"a": "policy", "b": "start", "difference": 0.1, "low": 0.0, "high": 0.2, "p": 0.1, "both": 1, "only_a": 1,
            "only_b": 0, "neither": 0}  # fmt: skip
    names = ("policy", "start")
    return simulation.page({
        "task": f"touch {HOSTILE}", "part": "test", "n": 2, "seeds": [1, 2], "facts": {"scenes": "0a1b"}, "hz": 20.0,
        "arms": [{"name": name, **arm} for name in names], "pairs": [pair], "notes": ["one note"],
        "versions": VERSIONS, "config": {"task": "touch"},
        "episodes": [{"arm": name, "ticks": 9 + k, "success": k == 0} for name in names for k in range(2)],
    }, [])  # fmt: skip


def deployed() -> str:
    series = {name: np.linspace(1, 40, 90) for name in ("round_trip", "queue", "inference", "age", "jitter")}
    latency = {"n": 90, "p50": 1.4, "p95": 9.8, "p99": 18.9, "max": 37.1}
    reason = "the robot does not answer for 0.5 s: " + "shoulder_pan: no reading; " * 8 + HOSTILE
    episode = {"number": 1, "seed": 0, "outcome": "error", "seconds": 2.5, "ticks": 77, "reason": reason}
    return rendered({
        "facts": {"policy": "wave", "robot": "emulated arm", "mode": "async"}, "exit": {"code": 4, "cause": reason},
        "ticks": {"n": 90, "hz": 30.0, "not_fresh": 0.2, "policy": 70, "hold": 20}, "success": about(0.6),
        "episodes": [episode], "jitter_ms": latency,
        "latency_ms": dict.fromkeys(("round_trip", "queue", "inference", "age"), latency),
        "events": [{"stage": "bus", "reaction": "hold", "count": 29, "first_cause": reason}],
        "interventions": {"takeovers": 0}, "recoveries": 0, "reconnects": 0, "lost_records": 0, "config": {"hz": 30},
    }, series)  # fmt: skip


def tried(folder: Path) -> str:
    """A trial of two policies by hand."""
    arms = {name: TrialArm(url="ws://127.0.0.1:1") for name in (HOSTILE, "act-baseline")}
    begun = begin(Trial(policies=arms, seed=7, max_episodes=8, out=str(folder / "trial")), manual=True)
    lines = chain(islice(cycle(["", "s a note", "", "f"]), 32), cycle([""]))
    run(begun, by_hand, Desk(lambda said: None, lambda question: next(lines)))
    return (begun / "report.html").read_text()


def answered(sample: Sample, said: str, score: Score, reward: float) -> Episode:
    decision = Decision(said, logprobs=np.zeros(3), entropy=None, truncated=False)
    turn = Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))
    return Episode(sample, 0, [turn], score=score, reward=reward)


def evaluated(folder: Path, n: int = 12) -> Path:
    """Points, a hostile answer, and a video."""
    picture = Image.new("RGB", (48, 32), (200, 210, 220))
    marks = Annotation("truth", "box", (8, 8, 24, 24)), Annotation("prediction", "point", (16, 12))
    episodes: list[Any] = []
    for i in range(n):
        sample, wrong = Sample(f"point/{i}", Observation((picture, "Point at it."))), i % 3 == 0
        score = Score({"hit": 1.0 - wrong}, 1.0 - wrong, marks=marks, reason="no_answer" if i % 7 == 6 else None)
        episodes.append(answered(sample, f"{HOSTILE} {i}", score, 1.2 - wrong))
    film = TemporalGrounding()
    shown = film.samples("train")[0]
    episodes.append(answered(shown, film.gold(shown, ()), Score({"iou": 1.0}, 1.0), 1.0))
    episodes[-1].score = film.score(episodes[-1])
    result = summarise(episodes, {"best_constant": 0.2})
    config = Config(task=Component(name="pointing"), out="runs/demo", policy=PolicySection(model=f"runs/{HOSTILE}"))
    return write_evaluation(folder / "evaluation.html", result, SimpleNamespace(), config)


def all_pages(folder: Path) -> dict[str, Path]:
    """Without the training run's, and the live one."""
    texts = {"compare": compared(), "simulate": simulated(), "deploy": deployed(), "trial": tried(folder)}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {"eval": evaluated(folder), **{name: folder / f"{name}.html" for name in texts}}
