"""What a shared prefix saves: CPU seconds and memory of one training step with and without it.

One step is a rollout (`policy.act`) and an update (`policy.evaluate`, backward, AdamW) of `--prompts` prompts with
`--group` completions of `--tokens` tokens each, on a randomly initialised tiny model. Both arms run the same code on
the same images; the naive one forwards a prompt once per completion. Neither may stop early, so both do equal work.
Images are new in every step and preprocessed once per prompt in both arms, which favours the naive one.

Times are medians of process CPU seconds on one thread, the arms alternating within one process. Memory is the peak
resident size above the size before the first step, each arm in a process of its own.

    python bench/speed.py step                  # a Markdown table
    python bench/speed.py step --json step.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from PIL import Image

from vlrl.policies import tiny
from vlrl.policies.vlm import VLM
from vlrl.types import Episode, Observation, Sample, Step, Turn
from vlrl.update import optimizers_build

PATCH = {"qwen2_5_vl": 14, "qwen3_vl": 16}  # pixels, as published; 2 x 2 patches make one token
ARMS = {"naive": False, "shared": True}
SIZES = {  # layers and widths of randomly initialised models of about 1.7, 6 and 20 million parameters
    "tiny": {"hidden": 160, "layers": 4, "vision_hidden": 96, "vision_layers": 3},
    "small": {"hidden": 256, "layers": 6, "vision_hidden": 160, "vision_layers": 5},
    "mid": {"hidden": 512, "layers": 6, "vision_hidden": 256, "vision_layers": 6},
}
TEXT = (  # as `gui_grounding` asks with `template: guided` and `thinking: true`
    "Click the red square. Give the point to click as <answer>[x, y]</answer>. "
    "First think inside <think> </think>, then answer inside <answer> </answer>."
)


def model_of(family: str, size: str = "tiny") -> tuple:
    """(model, processor) with random weights, always the same."""
    return tiny.build(tiny.tokenizer_from([TEXT]), family=family, patch=PATCH[family], **SIZES[size])


def policy_of(family: str, tokens: int, shared: bool, size: str = "tiny") -> VLM:
    """A policy that never stops early. Both arms get the same weights."""
    policy = VLM(*model_of(family, size), max_tokens=tokens, shared_prefix=shared)
    policy.codec.stop_ids = ()
    return policy


def episodes_of(visual: int, family: str, prompts: int, group: int, key: int) -> list[Episode]:
    """`group` episodes of each of `prompts` fresh noise images that take `visual` tokens."""
    side = round(visual**0.5) * 2 * PATCH[family]
    torch.manual_seed(key)
    episodes = []
    for p in range(prompts):
        pixels = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8).numpy()
        sample = Sample(f"{key}/{p}", Observation((Image.fromarray(pixels), TEXT)))
        episodes += [Episode(sample, p) for _ in range(group)]
    return episodes


def step(policy: VLM, optimizer: torch.optim.Optimizer, episodes: list[Episode]) -> dict[str, float]:
    """CPU seconds of one step's parts."""
    start = time.process_time()
    observations = [episode.sample.prompt for episode in episodes]
    decisions = policy.act(episodes, observations, keep=policy.shared_prefix)  # as the trainer does: on-policy
    for episode, observation, decision in zip(episodes, observations, decisions, strict=True):
        episode.turns.append(Turn(observation, decision, Step(observation, terminated=True)))
    rolled = time.process_time()
    now = policy.evaluate(decisions)
    advantage = torch.linspace(-1, 1, len(decisions))[:, None]
    loss = -(advantage * (now.logprobs - now.logprobs.detach()).exp())[now.mask].mean()
    evaluated = time.process_time()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    end = time.process_time()
    return {"rollout": rolled - start, "forward": evaluated - rolled, "backward": end - evaluated, "step": end - start}


def times(family: str, visual: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Arm -> median CPU seconds by part. The first step of each arm is not counted."""
    policies = {arm: policy_of(family, options.tokens, shared) for arm, shared in ARMS.items()}
    by_arm = {arm: optimizers_build(p.model, "adamw", lr=1e-6) for arm, p in policies.items()}
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for key in range(options.repeats + 1):
        for arm in sorted(ARMS, reverse=bool(key % 2)):
            made = episodes_of(visual, family, options.prompts, options.group, key)
            rows[arm].append(step(policies[arm], by_arm[arm], made))
    return {
        arm: {part: statistics.median(row[part] for row in counted[1:]) for part in counted[0]}
        for arm, counted in rows.items()
    }


def memory(family: str, visual: int, options: argparse.Namespace) -> dict[str, float]:
    """Arm -> MiB that two steps need beyond what the process held before them, each measured in a fresh process."""
    own = ["--family", family, "--group", options.group, "--tokens", options.tokens, "--prompts", options.prompts]
    measured = {}
    for arm in ARMS:
        command = [sys.executable, __file__, "--child", arm, "--visual", visual, *own]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
        measured[arm] = float(done.stdout)
    return measured


def peak_of(options: argparse.Namespace) -> float:
    """MiB of this process' peak above its size before the first step (Linux)."""
    (family,), (visual,) = options.family, options.visual
    policy = policy_of(family, options.tokens, ARMS[options.child])
    optimizer = optimizers_build(policy.model, "adamw", lr=1e-6)
    made = [episodes_of(visual, family, options.prompts, options.group, key) for key in range(2)]
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of importing
    before = resident("VmRSS")
    for episodes in made:
        step(policy, optimizer, episodes)
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def machine() -> dict[str, str | int]:
    """The kind of machine; nothing that names it."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count() or 0, "threads": 1,
        "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Rows of `measure` as Markdown. CPU seconds are `rollout + forward + backward`."""
    lines = [
        "| family | visual tokens | naive, CPU s | shared, CPU s | ratio | rollout | update | memory, MiB | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        naive, shared, used = row["naive"], row["shared"], row["memory_mib"]
        update = (naive["step"] - naive["rollout"]) / (shared["step"] - shared["rollout"])
        parts = (" + ".join(f"{arm[p]:.2f}" for p in ("rollout", "forward", "backward")) for arm in (naive, shared))
        first, second = (f"{arm['step']:.2f} ({text})" for arm, text in zip((naive, shared), parts, strict=True))
        lines.append(
            f"| {row['family']} | {row['visual']} | {first} | {second} | **{naive['step'] / shared['step']:.1f}x** "
            f"| {naive['rollout'] / shared['rollout']:.1f}x | {update:.1f}x "
            f"| {used['naive']:.0f} -> {used['shared']:.0f} | {used['shared'] / used['naive']:.2f} |"
        )
    return "\n".join(lines)


def measure(family: str, visual: int, options: argparse.Namespace) -> dict:
    return {
        "family": family, "visual": visual, **times(family, visual, options),
        "memory_mib": memory(family, visual, options),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="+", choices=list(PATCH), default=["qwen2_5_vl"])
    parser.add_argument("--visual", nargs="+", type=int, default=[64, 256, 1024], help="tokens of an image")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of a completion")
    parser.add_argument("--repeats", type=int, default=5, help="steps per arm that count")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", choices=list(ARMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        print(peak_of(options))
        return
    rows = [measure(family, visual, options) for family in options.family for visual in options.visual]
    about = machine() | {name: vars(options)[name] for name in ("prompts", "group", "tokens", "repeats")}
    print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
