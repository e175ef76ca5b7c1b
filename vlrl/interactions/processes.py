"""Recipes that one process can train and several cannot: one function each, as in `vlrl.interactions`.

What is asked of models, or of pictures, outside of rollouts and updates is asked in one place alone. Imports no torch.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from vlrl import methods
from vlrl.config import Config
from vlrl.interactions import Find, takes_turns
from vlrl.parallel import here
from vlrl.parallel.start import asked, in_parts

ALIKE = ("simulator", "g_ra_steps", "carl")  # process rewards of what steps told: each process finds the same
WRITERS = ("latr", "window")  # ask the policy by themselves, not for episodes
WHOLE = ("reference_reset", "soft_sync")  # hooks that read and write all weights
PARTED = "use FSDP2, configs/accelerate/fsdp_8.yaml (docs/scale_out.md), policy.lora or train.optimizer: adamw_8bit"
DEEPSPEED = ("CONFIG_FILE", "ZERO_STAGE", "OFFLOAD_PARAM_DEVICE", "OFFLOAD_OPTIMIZER_DEVICE")  # what is read of it
AGAIN = ("replay", "offline_first")  # strategies that show earlier pictures
ONE = "run it in one process"

Rule = Callable[[Config, Find], str | None]


def lone_launch(config: Config, find: Find) -> str | None:
    """`accelerate launch --cpu` starts one process, however many were asked for, unless an MPI is there."""
    launched = "MASTER_PORT" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    if here().size > 1 or not launched or "LOCAL_RANK" in os.environ:
        return None
    return (
        "accelerate launch --cpu starts one process on CPUs: use --config_file configs/accelerate/cpu_2.yaml, or "
        "torchrun --nproc-per-node N -m vlrl.cli train CONFIG"
    )


def partitioned(config: Config, find: Find) -> str | None:
    """Engines that this trainer does not drive."""
    if asked("MEGATRON_LM"):
        return f"accelerate launch: MEGATRON_LM is not there: {PARTED}"
    if asked("FSDP") and os.environ.get("FSDP_VERSION") != "2":
        return f"accelerate launch: FSDP is there in its version 2 alone: set fsdp_version: 2, or {PARTED}"
    return None


def staged(config: Config, find: Find) -> str | None:
    """DeepSpeed has the optimizer in parts, and on hosts if asked: with more in parts, processes wait for others."""
    if not asked("DEEPSPEED"):
        return None
    told = {name: os.environ.get(f"ACCELERATE_DEEPSPEED_{name}", "none") for name in DEEPSPEED}
    if told["CONFIG_FILE"] != "none":
        return "accelerate launch: a deepspeed_config_file has no effect: set zero_stage: 1 in deepspeed_config instead"
    if told["ZERO_STAGE"] != "1" or told["OFFLOAD_PARAM_DEVICE"] != "none":
        return (
            "accelerate launch: DeepSpeed is there in its stage 1, and without offload_param_device: set zero_stage: 1 "
            "(configs/accelerate/deepspeed_8.yaml); for gradients and weights in parts use FSDP2 (fsdp_8.yaml)"
        )
    if told["OFFLOAD_OPTIMIZER_DEVICE"] not in ("none", "cpu"):
        return "accelerate launch: offload_optimizer_device is cpu or none here"
    if here().size == 1:
        return "accelerate launch: DeepSpeed has nothing to part in one process: use train.optimizer: paged_adamw_8bit"
    if config.train.optimizer != "adamw":
        return f"train.optimizer: DeepSpeed parts adamw alone, {config.train.optimizer} is asked for: use adamw"
    for i, component in enumerate(config.hooks):
        if component.name == "reference_reset":
            return f"hooks.{i} ({component.name}) makes the optimizer anew, DeepSpeed has it in parts: leave it out"
    if importlib.util.find_spec("deepspeed") is None:
        return "accelerate launch: DeepSpeed is asked for and not installed: pip install 'vlrl[deepspeed]'"
    return None


def parted(config: Config, find: Find) -> str | None:
    """What reads or changes all weights by itself, while a process has a part of them (FSDP2)."""
    train, policy = config.train, config.policy
    if policy.engine.name not in ("local", "server"):
        return f"policy.engine: {policy.engine.name} was not tried with weights in parts (FSDP): use local or server"
    if train.optimizer != "adamw":
        return f"train.optimizer: {train.optimizer} changes whole matrices, FSDP has parts of them: use adamw"
    if "language" in policy.freeze:
        return "policy.freeze: FSDP parts the language model, which is frozen: use --multi_gpu"
    if policy.cuda_graphs:
        return "policy.cuda_graphs: FSDP puts weights in another place at every step: leave it out"
    if train.staleness:
        return "train.staleness: copies whole weights, FSDP has them in parts: set it to 0"
    for i, component in enumerate(config.hooks):
        if component.name in WHOLE:
            return f"hooks.{i} ({component.name}) changes whole weights, FSDP has them in parts: leave it out"
    return None


def idle(config: Config, find: Find) -> str | None:
    """A group is played and learned from in one process."""
    size, train = here().size, config.train
    if train.prompts >= size:
        return None
    return f"train.prompts: {train.prompts} groups a step for {size} processes leave some without: raise it to {size}"


def compared(config: Config, find: Find) -> str | None:
    """A loss over all tokens of an optimizer step needs them in one place."""
    for i, component in enumerate(config.losses):
        if "one_forward" in methods.of(find("losses", component.name)).needs:
            return f"losses.{i} ({component.name}) compares all tokens of an optimizer step: {ONE}, or use ppo_clip"
    return None


def scattered(config: Config, find: Find) -> str | None:
    """Models that judge episodes, and what is learned beside the policy, are asked in one place."""
    for i, component in enumerate(config.process):
        if component.name not in ALIKE and ":" not in component.name:
            return f"process.{i} ({component.name}) looks at all episodes in one place: {ONE}"
    return None


def elsewhere(config: Config, find: Find) -> str | None:
    """Parts that ask the policy of what other processes played."""
    turns, name = takes_turns(config, find), config.rollouts.name
    if name in WRITERS or (turns and name in AGAIN):
        return f"rollouts: {name} asks the policy about all episodes in one place: {ONE}, or use plain"
    for i, component in enumerate(config.advantages):
        if component.name in ("egae", "decoupled") or (turns and component.name == "spo_tracker"):
            return f"advantages.{i} ({component.name}) asks the policy about all episodes in one place: {ONE}"
    for i, component in enumerate(config.replay):
        if component.name == "sasr" or (turns and ":" not in component.name):
            return f"replay.{i} ({component.name}) shows again what other processes played: {ONE}"
    return None


LAUNCHED: tuple[Rule, ...] = (lone_launch, partitioned, staged)
SEVERAL: tuple[Rule, ...] = (idle, compared, scattered, elsewhere)


def crowded(config: Config, find: Find) -> str | None:
    """The first of all that is wrong with how, and as how many processes, a recipe was launched."""
    rules = LAUNCHED + (SEVERAL if here().size > 1 else ()) + ((parted,) if in_parts() else ())
    return next((told for rule in rules if (told := rule(config, find))), None)


RULES = (crowded,)
