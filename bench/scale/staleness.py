"""What playing ahead gains and costs: tokens and episodes a second, and accuracy after equal updates, by staleness.

Every arm is a run on clicks with the embedded model, one thread an operation. `learns`: all that a step takes is
computed, here in two threads. `server`: a `vlrl serve-model` of its own writes. `waits`: each answer goes to an
environment that takes SLOW seconds to reply, as browsers and robots do. A step has 8 of them; steps that are played at
the same time have 8 each. `--vllm` has the vLLM of `make engine` write instead, on clicks and on waiting environments.

Rates are over wall seconds, of the steps in which as many are under way as may be: without the first 5 and the last 4.
A busy machine changes them, so each arm that does not learn is run twice, and the better one counts; say what else the
machine did. Learning arms have equal seeds, updates and episodes; accuracy is on held-out samples, with its 95 %
interval.

    python bench/scale.py staleness --json staleness.json --figure docs/staleness.png
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks.base import SingleTurn
from tasks.gui_grounding import GuiGrounding

ROOT = Path(__file__).resolve().parents[2]
SLOW = 0.25
STALENESS = (0, 1, 2, 4)
FULL = slice(max(STALENESS) + 1, -max(STALENESS))
SIZE = ("train.prompts_per_step=8", "train.group_size=8", "log.trackers=[]", "log.rollouts=1")
DECOUPLED = "advantages=[{name: grpo, std: group}, {name: decoupled}]"
ENGINE = ("publish_seconds", "logprob_gap_max")  # their means a step
HEAD = (
    "| arm | staleness | s a step | tokens a s | episodes a s | CPU s a step | waited, s a step | publication, s "
    "| largest gap, nats | accuracy |\n|" + "---|" * 10
)


class Waiting(GuiGrounding):
    """Clicks whose screen takes a while to answer."""

    at_once = 8

    def environment(self, sample):
        return Slow(sample.prompt)


class Slow(SingleTurn):
    def step(self, action, frames=()):
        time.sleep(SLOW)
        return super().step(action, frames)


def run(arm: str, staleness: int, changes: list[str], out: Path) -> dict[str, Any]:
    """One arm's rates, its processor seconds and its accuracy."""
    from vlrl.recipe_checks import load_config

    given = [*SIZE, f"train.max_staleness={staleness}", f"out={out}", *changes]
    from vlrl import api

    summary = api.train(load_config(ROOT / "configs" / "gui_grounding.yaml", given)).summary
    rows = [row for row in lines(out / "metrics.jsonl") if "loss" in row]
    timings = [row for row in lines(out / "timings.jsonl") if "seconds" in row][FULL]
    seconds, played = sum(row["seconds"] for row in timings), sum(row["played"] for row in rows[FULL])
    return {
        "arm": arm, "staleness": staleness, "steps": len(rows), "episodes": played / seconds,
        "tokens": sum(row["length"] * row["played"] for row in rows[FULL]) / seconds,
        "cpu": fmean(row["cpu"] for row in timings), "waited": fmean(row["rollout"] for row in timings),
        "seconds": seconds / len(timings),
        **{name: fmean(row.get(f"engine/{name}", 0.0) for row in rows) for name in ENGINE},
        "accuracy": summary["after"], "oldest": max(row.get("staleness", 0) for row in rows),
    }  # fmt: skip


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def vllm_arms(few: int, folder: str) -> Iterator[tuple[str, int, list[str]]]:
    """As `arms`, up to staleness 2."""
    variables = (
        "VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_TARGET_DEVICE=cpu VLLM_CPU_OMP_THREADS_BIND=nobind"
    )
    command = (
        f"env {variables} OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 {ROOT}/.venv-engine/bin/python "
        "-m vllm.entrypoints.openai.api_server --model {model} --host {host} --port {port} --dtype float32 "
        "--enforce-eager --max-model-len 512 --skip-mm-profiling --logprobs-mode processed_logprobs"
    )
    engine = f'policy.engine={{name: server, api: vllm, workers: 1, folder: "{folder}", command: "{command}"}}'
    short = [f"train.steps={few}", "eval.num_samples=16", engine]
    yield from (("vllm", staleness, short) for staleness in (0, 1, 2))
    yield from (("vllm, waits", staleness, [*short, "task.name=staleness:Waiting"]) for staleness in (0, 1, 2))


def arms(steps: int, few: int) -> Iterator[tuple[str, int, list[str]]]:
    """Name, staleness and changes of every run."""
    short = [f"train.steps={few}", "eval.num_samples=16"]
    long = [f"train.steps={steps}", "eval.num_samples=256"]
    kinds = {
        "waits": [*short, "task.name=staleness:Waiting"],
        "learns": long,
        "server": [*short, "policy.engine={name: server, workers: 1}"],
        "learns, decoupled": [*long, DECOUPLED],
    }
    for arm, changes in kinds.items():
        yield from ((arm, staleness, changes) for staleness in STALENESS if staleness or arm != "learns, decoupled")


def told(row: dict[str, Any]) -> str:
    """An arm as a row of the table."""
    accuracy = "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["accuracy"])
    return (
        f"| {row['arm']} | {row['staleness']} | {row['seconds']:.2f} | {row['tokens']:.0f} | {row['episodes']:.1f} "
        f"| {row['cpu']:.2f} | {row['waited']:.2f} | {row['publish_seconds']:.2f} | {row['logprob_gap_max']:.1e} "
        f"| {accuracy} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="of the arms that learn")
    parser.add_argument("--few", type=int, default=16, help="steps of the others")
    parser.add_argument("--vllm", action="store_true", help="the arms with vLLM, alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        weights = f"{folder}/weights"
        plan = vllm_arms(options.few, weights) if options.vllm else arms(options.steps, options.few)
        for number, (arm, staleness, changes) in enumerate(plan):
            tries = 1 if arm.startswith(("learns", "vllm")) else 2
            made = [run(arm, staleness, changes, Path(folder) / f"{number}.{i}") for i in range(tries)]
            found.append(max(made, key=lambda row: row["episodes"]))
    print("\n".join([HEAD, *map(told, found)]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.figure:
        from staleness_figure import draw

        draw(found, options.figure)


if __name__ == "__main__":
    main()
