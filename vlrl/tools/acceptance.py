"""`vlrl accept`: what a real checkpoint does on this machine, in one page: parity, frame, memory and time, 20 steps."""

from __future__ import annotations

import gc
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from vlrl import api, registry
from vlrl.config import CONFIGS, Config, check_paths
from vlrl.engines import load_policy
from vlrl.io import write_atomic
from vlrl.performance.profiling import Device, named
from vlrl.policies.generation import law
from vlrl.policies.loading import bundled, newest_checkpoint
from vlrl.policies.plain import stack_rows
from vlrl.policies.processor import Prompt
from vlrl.policies.vlm import VLM, compute_tolerance
from vlrl.report.run_reader import read_lines
from vlrl.tools.doctor import Finding, memory_size, report, table
from vlrl.tools.memory_planner import PlanOptions, plan_plan
from vlrl.tools.model_doctor import examine
from vlrl.types import Episode, UserError

PROMPTS, TOKENS = 4, 16  # that parity is measured on
STEPS = 20
DEFAULTS = {
    "train.steps": STEPS, "train.prompts_per_step": 8, "train.group_size": 8, "train.micro_batch_size": 1,
    "train.optimizer": "adamw", "train.lr": 1e-5, "train.lr_end": None, "train.warmup_steps": 0,
    "policy.lora": {"rank": 16}, "policy.gradient_checkpointing": True, "policy.max_num_seqs": 64,
    "eval.num_samples": 64, "eval.batch_size": 16, "eval.every_steps": None, "data.on_bad_row": "skip",
    "log.trackers": [],
}  # fmt: skip
PAGE = "accept.md"


def configure(model: str, task: str, data: str, test: str | None, out: str, changes: Sequence[str]) -> Config:
    """The run of `STEPS` steps with adapters, on the user's rows.

    Args:
        task: a name with a bundled config, or a configuration's file.
        test: held-out rows; default: those of `data`.

    Raises:
        UserError: no such config, or an unknown change.
    """
    config = CONFIGS / f"{task}.yaml" if (CONFIGS / f"{task}.yaml").is_file() else task
    own = DEFAULTS | {"policy.model": model, "data.train": data, "data.test": test or data, "out": out}
    name = api.load_config(config).task.name
    if "template" in registry.options_of(registry.find("task", name)) and not model.startswith("embedded"):
        own["task.template"] = "guided"
    return api.load_config(config, own, *changes)


def measure_parity(config: Config) -> Finding:
    """Log-probabilities of sampled answers, by the policy and by transformers' own forward pass of a fresh model."""
    section = config.policy.model_copy(update={"max_tokens": TOKENS, "lora": None, "freeze": []})
    task = registry.make_task(config)
    policy: Any = load_policy(section, shared_prefix=config.train.shared_prefix, seed=config.seed)
    if not isinstance(policy, VLM):
        raise UserError(f"accept: {section.model} moves a robot: see `vlrl simulate`")
    samples = task.samples("test")
    episodes = [Episode(samples[i], i) for i in range(min(PROMPTS, len(samples))) for _ in range(2)]
    with torch.no_grad():
        decisions = policy.act(episodes, [episode.sample.prompt for episode in episodes])
        rows = policy.evaluate(decisions).logprobs.float().cpu()
    task.close()
    codec, device, precision = policy.codec, policy.device, policy.precision
    kind = policy.autocast or torch.float32
    replies = [decision.inputs for decision in decisions]
    del policy, decisions
    gc.collect()
    plain = _load_plain(section.model).to(device)
    banned = torch.tensor(codec.banned_ids, dtype=torch.int64, device=device)
    gaps = []
    for row, reply in zip(rows, replies, strict=True):
        tokens = torch.tensor(reply.tokens, device=device)
        with torch.no_grad(), precision():
            logits = plain(**_inputs(reply.prompt, reply.tokens, codec.pad_id, device)).logits[0, -len(tokens) - 1 : -1]
        own = law(logits, section.temperature, banned).gather(-1, tokens[:, None])[:, 0].cpu()
        gaps.append((row[: len(tokens)] - own).abs())
    worst, mean = float(torch.cat(gaps).max()), float(torch.cat(gaps).mean())
    status = "ok" if worst <= compute_tolerance(kind) else "error"
    value = f"largest gap {worst:.2g}, mean {mean:.2g} nats of {sum(map(len, gaps))} tokens, {str(kind)[6:]}"
    return Finding("parity", status, value, "" if status == "ok" else "do not train: send this page")


def _load_plain(model: str) -> torch.nn.Module:
    from transformers import AutoModelForImageTextToText

    source = newest_checkpoint(bundled(model))
    return AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float32, use_safetensors=True).eval()


def _inputs(prompt: Prompt, tokens: Sequence[int], pad_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """What the model's own forward takes of a prompt and its completion."""
    if prompt.inputs:
        return stack_rows([(prompt, tuple(tokens))], pad_id, device).inputs
    whole = {
        "input_ids": torch.cat([prompt.ids, torch.tensor(tokens)])[None], "pixel_values": prompt.pixels,
        "image_grid_thw": prompt.grid, "mm_token_type_ids": pad(prompt.types, (0, len(tokens)))[None],
    }  # fmt: skip
    if prompt.ticks and any(len(set(each)) > 1 for each in prompt.ticks):  # a video, which is written as images here
        behind = prompt.positions.max() + 1 + torch.arange(len(tokens))
        whole["position_ids"] = torch.cat([prompt.positions, behind.expand(3, -1)], 1)[:, None]
    return {name: value.to(device) for name, value in whole.items() if value is not None}


def measure_run(config: Config) -> Iterator[Finding]:
    """Trains, and compares memory and seconds with `vlrl plan`."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        device = named(torch.cuda.get_device_name()) or Device("gpu", None, torch.cuda.mem_get_info()[1] / 1e9, None)
    else:
        device = Device("cpu", None, memory_size() / 1e9, None)
    plan = plan_plan(config, PlanOptions(device))
    before = _peak(on_gpu)
    run = api.train(config)
    used = (_peak(on_gpu) - (0 if on_gpu else before)) / 1e9
    what = "most that torch held" if on_gpu else "rise of the process's largest size, with what loading took"
    yield Finding("memory", "ok", f"{used:.3g} GB ({what}); plan says {plan.gigabytes:.3g} GB")
    times = read_lines(run.folder / "timings.jsonl")[0]
    seconds = statistics.median(row["seconds"] for row in times[1:] or times)
    estimate = "" if plan.step is None else f"; plan says {plan.step:.3g} s at an MFU of 0.4"
    yield Finding("time", "ok", f"{seconds:.3g} s a step (median of {len(times[1:]) or 1}){estimate}")
    summary = run.summary
    start, end = ("{value:.3f} [{low:.3f}, {high:.3f}]".format(**summary[when]) for when in ("before", "after"))
    yield Finding("accuracy", "ok", f"{start} -> {end} on {summary['after']['n']} samples")
    steps, rewards = run.curve("reward")
    third = max(1, len(rewards) // 3)
    rise = statistics.mean(rewards[-third:]) - statistics.mean(rewards[:third])
    curve = ", ".join(f"{step}: {value:.3f}" for step, value in zip(steps, rewards, strict=True))
    flat = len(set(rewards)) == 1
    fix = "every reward is alike: nothing was learned; see the page's frame check and answers" if flat else ""
    yield Finding("reward by step", "warn" if flat else "ok", f"{curve}; last third - first third: {rise:+.3f}", fix)


def _peak(on_gpu: bool) -> float:
    if on_gpu:
        return float(torch.cuda.max_memory_allocated())
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(size if sys.platform == "darwin" else size * 1024)


def accept(model: str, task: str, data: str, test: str | None, out: str, changes: Sequence[str]) -> int:
    """Writes the page after every part, so that a run that ends early leaves what was found; 1: something is wrong.

    Raises:
        UserError: as `vlrl doctor --model` and `vlrl train`.
    """
    folder = Path(out)
    config = configure(model, task, data, test, str(folder / "run"), changes)
    check_paths(config)
    folder.mkdir(parents=True, exist_ok=True)
    held_out = "held-out rows" if test else "the rows that are trained on: no measure of generalisation"
    findings: dict[str, list[Finding]] = {"Machine": report(), "Model": [], "Parity with transformers": [], "Run": []}
    parts = {
        "Model": lambda: examine(model, config.task.name, [f"data.test={test or data}", *_of_task(config)]),
        "Parity with transformers": lambda: iter([measure_parity(config)]),
        "Run": lambda: measure_run(config),
    }
    for title, part in parts.items():
        for finding in part():
            findings[title].append(finding)
            print(table([finding]), flush=True)
        write_atomic(folder / PAGE, _page(config, held_out, findings))
    print(folder / PAGE)
    return int(any(each.status == "error" for title in parts for each in findings[title]))


def _of_task(config: Config) -> list[str]:
    """The task's options and the data's format, as changes to another configuration."""
    options = [f"task.{key}={value!r}" for key, value in config.task.options.items() if isinstance(value, str | int)]
    images = [f"data.images={config.data.images}"] if config.data.images else []
    return [*options, *images, f"data.format={config.data.format}", f"data.on_bad_row={config.data.on_bad_row}"]


def _page(config: Config, held_out: str, found: dict[str, list[Finding]]) -> str:
    lines = [
        f"# vlrl accept: {config.policy.model}",
        "",
        f"{config.task.name}, {config.data.train}; tested on {held_out}.",
    ]
    for title, findings in found.items():
        lines += ["", f"## {title}", "", "| | | |", "| --- | --- | --- |"]
        texts = ([f.status, f.name, f"{f.value}{f'; {f.fix}' if f.fix else ''}"] for f in findings)
        lines += [f"| {' | '.join(text.replace('|', '/').replace(chr(10), ' ') for text in row)} |" for row in texts]
    return "\n".join(lines) + "\n"
