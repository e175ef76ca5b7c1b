"""`train.micro_batch_size: auto`, `policy.gradient_checkpointing: auto`: what the memory that is free takes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from vlrl import registry
from vlrl.config import Config
from vlrl.distributed.world import get_world, in_parts, optimizer_in_parts, sequence_size
from vlrl.engines import load_policy
from vlrl.performance.memory import is_out_of_memory
from vlrl.performance.profiling import Device
from vlrl.tools.doctor import memory_size
from vlrl.tools.memory_planner import MemoryPlan, PlanOptions, plan_plan
from vlrl.types import UserError

SAMPLES = 16  # of which the probe takes the longest prompts


def find_candidates(config: Config) -> Iterator[Config]:
    """The configuration with numbers in place of `auto`: prompts in one forward are halved, layers are recomputed."""
    train, policy = config.train, config.policy
    share = -(-train.prompts_per_step // train.num_minibatches)
    sizes: list[Any] = [train.micro_batch_size]
    if train.micro_batch_size == "auto":
        sizes = [None, *(size for size in (share >> n for n in range(1, share.bit_length())) if size)]
    auto = policy.gradient_checkpointing == "auto"
    for recomputed in (False, True) if auto else (policy.gradient_checkpointing,):
        for size in sizes:
            changes = {
                "train": train.model_copy(update={"micro_batch_size": size}),
                "policy": policy.model_copy(update={"gradient_checkpointing": recomputed}),
            }
            yield config.model_copy(update=changes)


def resolve_auto(config: Config, free: float | None = None) -> Config:
    """The candidate of the fewest operations that fits by `vlrl plan` and whose update was tried, with `auto` replaced.

    Several processes, each with all weights, take what fits the one with the least memory.

    Args:
        free: bytes; default: those of the GPU, or of the machine's memory, that are free.

    Raises:
        UserError: weights, optimizer or sequences are in parts; none fits, or none gets through its update.
    """
    if in_parts() or optimizer_in_parts() or sequence_size() > 1:
        raise UserError("auto goes with whole weights and sequences in each process: say train.micro_batch_size and "
                        "policy.gradient_checkpointing, of which `vlrl plan --gpus` says what fits")  # fmt: skip
    world, on_gpu = get_world(), torch.cuda.is_available()
    world.join()
    free = min(world.gather(free if free is not None else _find_free(on_gpu, world.size)))
    device = Device("gpu" if on_gpu else "cpu", None, free / 1e9, None)
    pairs = [
        (candidate, plan_plan(of_one(candidate, world.size), PlanOptions(device)))
        for candidate in find_candidates(config)
    ]
    fitting = sorted((pair for pair in pairs if pair[1].fits), key=lambda pair: _count_flops(pair[1]))
    if not fitting:
        least = min((plan for _, plan in pairs), key=lambda plan: plan.gigabytes)
        raise UserError(
            f"auto: at least {least.gigabytes:.3g} GB are needed, {free / 1e9:.3g} GB are free: `vlrl plan` says what "
            "would help"
        )
    for candidate, plan in fitting:
        if not world.any(not try_update(plan.config)):
            if world.is_rank_zero:
                _say(plan, free)
            return candidate
    raise UserError("auto: out of memory in every update that `vlrl plan` says fits: set policy.lora or fewer prompts")


def of_one(config: Config, processes: int) -> Config:
    """One process's part of a run that several share out."""
    train = config.train.model_copy(update={"prompts_per_step": -(-config.train.prompts_per_step // processes)})
    evaluation = config.eval.model_copy(update={"batch_size": -(-config.eval.batch_size // processes)})
    return config.model_copy(update={"train": train, "eval": evaluation})


def _find_free(on_gpu: bool, processes: int) -> float:
    """Bytes for each process: of its GPU, or of the memory that processes of one machine share."""
    if on_gpu:
        return float(torch.cuda.mem_get_info()[0])
    return float(min(psutil.virtual_memory().available, memory_size())) / processes


def _count_flops(plan: MemoryPlan) -> float:
    return sum(plan.cost.flops.values())


def _say(plan: MemoryPlan, free: float) -> None:
    size, recomputed = plan.config.train.micro_batch_size, plan.config.policy.gradient_checkpointing
    whole = "null" if size is None else size
    print(
        f"vlrl: auto: train.micro_batch_size={whole} policy.gradient_checkpointing={str(recomputed).lower()}: "
        f"{plan.gigabytes:.3g} GB by plan of {free / 1e9:.3g} GB that are free; an update was tried",
        file=sys.stderr,
    )


def try_update(config: Config) -> bool:
    """Whether an update's forward and backward pass on the longest of the first prompts gets through."""
    train = config.train
    task = registry.make_task(config)
    policy: Any = load_policy(config.policy, shared_prefix=train.shared_prefix, seed=config.seed)
    samples = task.samples("train")
    try:
        prompts = [policy.prompt(samples[i].prompt) for i in range(min(SAMPLES, len(samples)))]
        longest = sorted(prompts, key=lambda prompt: -len(prompt.ids))
        count = train.micro_size or -(-train.prompts_per_step // train.num_minibatches)
        chosen = [longest[i % len(longest)] for i in range(count)]
        words = [policy.codec.pad_id] * config.policy.max_tokens
        decisions = [policy.decision(prompt, words) for prompt in chosen for _ in range(train.group_size)]
        now = policy.evaluate(decisions)
        now.logprobs[now.mask].nan_to_num(neginf=0.0).sum().backward()
        return True
    except Exception as error:  # torch's own, of many types
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        task.close()
        del policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
