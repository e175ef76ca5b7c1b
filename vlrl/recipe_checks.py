"""Checks of a recipe: which methods and options go together."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from vlrl import engines, methods, registry
from vlrl.config import Change, Component, Config, load_as, tasks_of
from vlrl.distributed.world import SEQUENCE, get_world, in_parts, is_engine_requested, sequence_size
from vlrl.methods import Recipe, RecipePart
from vlrl.types import UserError, suggest

# Recipes whose parts are all right and that are wrong as a whole. A rule takes a recipe and returns what is wrong and
# what to do, or None. No rule names a method: it goes by what methods declare with `@method` (vlrl/methods.py), and
# what concerns one method alone is that method's `check_recipe`. Imports no torch.

Rule = Callable[[Recipe], str | None]
Find = Callable[[str, str], Any]
LISTS = ("process_rewards", "reward_shaping", "advantages", "replay_mixing", "losses", "callbacks")


def takes_turns(config: Config, find: Find) -> bool:
    """Whether the task's episodes may have several turns: it makes environments of its own, and not for one turn."""
    return any(
        find("task", task.name).takes_turns() and task.options.get("turns") != 1 for _, task in tasks_of(config.task)
    )


def make_recipe(config: Config, find: Find) -> Recipe:
    """A configuration whose components are each in order, with the plug-ins that it names."""

    def part(kind: str, component: Component, path: str) -> RecipePart:
        return RecipePart(kind, component, find(kind, component.name), path)

    single = ("task", "sampler", "rollout_strategy", "loss_aggregation")
    parts = [part(kind, each, kind) for kind in single for each in config.components(kind)]
    parts += [part(kind, c, f"{kind}.{i}") for kind in LISTS for i, c in enumerate(config.components(kind))]
    return Recipe(config, tuple(parts), takes_turns(config, find))


# Groups, and what the policy that sampled knew.


def lost_groups(recipe: Recipe) -> str | None:
    """Replayed episodes are groups of their own."""
    strategy = recipe.one("rollout_strategy")
    if "group" not in strategy.method.lacks:
        return None
    for part in recipe.of("reward_shaping", "advantages", "losses"):
        if "group" in part.method.needs:
            return (
                f"{part.label} needs groups, but rollout_strategy: {strategy.name} makes each earlier episode one of "
                "its own: use rollout_strategy: plain, or beta_tracker"
            )
    return None


def split_groups(recipe: Recipe) -> str | None:
    """Losses that compare the members of a group would compare what is left of it."""
    splits = next((part.name for part in recipe.of("replay_mixing") if "group" in part.method.lacks), None)
    for part in recipe.of("losses"):
        if splits and "group" in part.method.needs:
            return f"{part.label} compares whole groups, but replay_mixing: {splits} takes them apart"
    return None


def lost_ratios(recipe: Recipe) -> str | None:
    """Of replayed episodes nobody knows the probabilities under the behaviour policy: every ratio would be 1."""
    if "sampled" not in recipe.one("rollout_strategy").method.lacks:
        return None
    for part in recipe.of("losses"):
        if "old_logprobs" in part.reads:
            return f"{part.label} {methods.ALTERNATIVES['sampled']}"
    return None


# Estimators, one after the other.


def order(recipe: Recipe) -> str | None:
    """What works on whole decisions cannot follow what works on tokens: it would take the shaping's mean with it."""
    parts = recipe.of("advantages")
    for i, part in enumerate(parts):
        earlier = [p.name for p in parts[:i] if p.method.level == "token"]
        if part.method.level == "sequence" and earlier:
            return f"{part.label} must come before {earlier[0]}"
    return None


def normalised_after_shaping(recipe: Recipe) -> str | None:
    """Shaping is bounded by each advantage; what standardises it afterwards takes its mean out and moves the bound."""
    parts = recipe.of("advantages")
    for i, part in enumerate(parts):
        earlier = [p.name for p in parts[:i] if "token_shaping" in p.gives]
        if "whole_step" in part.reads and earlier:
            return f"{part.label} must come before {earlier[0]}"
    return None


def one_decision(recipe: Recipe) -> str | None:
    """The only completion of a step is its own mean."""
    train = recipe.config.train
    if train.prompts_per_step * train.group_size > 1 or recipe.takes_turns:
        return None
    for part in recipe.of("advantages"):
        if "whole_step" in part.reads:
            return f"{part.label} compares a step's completions: set train.prompts_per_step to 2 or more"
    return None


def overwritten(recipe: Recipe) -> str | None:
    """What begins with the rewards takes nothing over from what stands before it."""
    parts = recipe.of("advantages")
    for i, part in enumerate(parts):
        lost = [p.name for p in parts[:i] if {"step_rewards", "steps"} & p.reads or "steps" in part.reads]
        if "reward" in part.reads and lost:
            return f"{part.label} begins with the rewards, so that {lost[0]} has no effect: remove one"
    return None


def weighed_twice(recipe: Recipe) -> str | None:
    """Each multiplies by the weight between what sampled and what trains."""
    names = [part.name for part in recipe.of("advantages") if "sampling_weights" in part.gives]
    return f"advantages: {' and '.join(names)} weigh the same twice: leave one out" if len(names) > 1 else None


# Credit for single steps.


def steps_of_one_turn(recipe: Recipe) -> str | None:
    """An episode of one step has nothing to tell apart."""
    if recipe.takes_turns:
        return None
    for part in recipe.of("advantages"):
        if "steps" in part.reads:
            return f"{part.label} compares steps, but this task has one turn: use group"
    for part in recipe.of("process_rewards"):
        if "step_rewards" in part.gives:
            return f"{part.label} pays steps, but this task has one turn: use reward_shaping"
    return None


def unread_steps(recipe: Recipe) -> str | None:
    """What steps earn is no part of the outcome: an estimator has to read it."""
    paid = [part for part in recipe.of("process_rewards") if "step_rewards" in part.gives]
    if not paid or any("step_rewards" in part.reads or part.undeclared for part in recipe.of("advantages")):
        return None
    return f"{paid[0].label} pays steps, which none of advantages reads: add one of gae, gigpo, tgrpo, mars, archer"


def other_discount(recipe: Recipe) -> str | None:
    """A potential cancels out of a sum that is discounted as it is; of another it pays for slowness, or haste."""
    for part in recipe.of("process_rewards"):
        if "potential" not in part.gives:
            continue
        own = part.options["gamma"]
        for reader in recipe.of("advantages"):
            summed = reader.options.get("gamma", 1.0) if "returns" in reader.reads else own
            if summed != own:
                return f"{part.path} ({part.name}): gamma = {own:g}, but {reader.name} sums with {summed:g}: set it so"
    return None


# Replay, demonstrations and unlabelled rewards.


def mixed_up(recipe: Recipe) -> str | None:
    """What is shown has no credit, which is what selection goes by; what is remembered is no group that could fail."""
    parts = recipe.of("replay_mixing")
    shows = next((part for part in parts if "demonstrations" in part.gives), None)
    other = next((part.name for part in parts if part is not shows), None)
    if shows and other:
        return f"replay_mixing: {shows.name} and {other} do not go together: choose one"
    return None


def forgotten_reward(recipe: Recipe) -> str | None:
    """A reward that is replaced takes nothing over."""
    for i, part in enumerate(recipe.of("reward_shaping")):
        if "reward" in part.gives and i:
            return f"{part.label} replaces the reward: put it first, so that others add to it"
    return None


def known_answers(recipe: Recipe) -> str | None:
    """Learning without true answers would use them all the same."""
    without = next((part.label for part in recipe.of("reward_shaping") if "reward" in part.gives), None)
    strategy = recipe.one("rollout_strategy")
    if without and "truth" in strategy.reads:
        return f"{without} does without true answers, but rollout_strategy: {strategy.name} looks at them: use plain"
    return None


def unread_reference(recipe: Recipe) -> str | None:
    """A reference that nothing is compared with may move as it likes."""
    moving = next((part.name for part in recipe.of("callbacks") if "reference" in part.gives), None)
    readers = recipe.of("losses", "reward_shaping", "advantages")
    read = any("reference" in part.method.needs or "reference" in part.reads or part.undeclared for part in readers)
    if moving is None or read or recipe.config.policy.teacher == "reference":
        return None
    return (
        f"callbacks: {moving} moves a reference that nothing reads: add a loss {{name: kl}}, or leave the callback out"
    )


def one_mover(recipe: Recipe) -> str | None:
    """Each would put its own reference in the other's place."""
    if len([part for part in recipe.of("callbacks") if "reference" in part.gives]) > 1:
        return "callbacks: one of reference_reset and soft_sync, once: each would undo what the other did"
    return None


def of_methods(recipe: Recipe) -> str | None:
    """What the methods themselves find wrong with the rest."""
    checks = ((part.method.check_recipe, part) for part in recipe.parts)
    return next((problem for check, part in checks if check and (problem := check(recipe, part))), None)


# What one process can train and several cannot. What is asked of models, or of pictures, outside of rollouts and
# updates is asked in one place alone.

ONE = "run it in one process"
SCATTERED = {  # kind -> what its methods do that read all episodes
    "process_rewards": f"looks at all episodes in one place: {ONE}",
    "rollout_strategy": f"asks the policy about all episodes in one place: {ONE}, or use plain",
    "advantages": f"asks the policy about all episodes in one place: {ONE}",
    "replay_mixing": f"shows again what other processes played: {ONE}",
}


def idle(recipe: Recipe) -> str | None:
    """A group is played and learned from in one process."""
    size, train = get_world().size, recipe.config.train
    if train.prompts_per_step >= size:
        return None
    return (
        f"train.prompts_per_step: {train.prompts_per_step} groups a step for {size} processes leave some without: "
        f"raise it to {size}"
    )


def compared(recipe: Recipe) -> str | None:
    """A loss over all tokens of an optimizer step needs them in one place."""
    for part in recipe.of("losses"):
        if "one_forward" in part.method.needs:
            return f"{part.label} compares all tokens of an optimizer step: {ONE}, or use ppo_clip"
    return None


def scattered(recipe: Recipe) -> str | None:
    """Models that judge episodes, and what asks the policy of what other processes played, are asked in one place."""
    needs = {"all_episodes", "all_turns"} if recipe.takes_turns else {"all_episodes"}
    for part in recipe.of(*SCATTERED):
        if needs & part.reads:
            label = part.label if part.kind in LISTS else f"{part.path}: {part.name}"
            return f"{label} {SCATTERED[part.kind]}"
    return None


def crowded(recipe: Recipe) -> str | None:
    """The first of all that is wrong with how, and as how many processes, a recipe was launched."""
    rules: tuple[Rule, ...] = (lone_launch, partitioned, sliced, staged)
    rules += (idle, compared, scattered) if get_world().size > 1 else ()
    rules += (parted,) if in_parts() else ()
    return next((problem for rule in rules if (problem := rule(recipe))), None)


# What cannot be played ahead (`train.max_staleness`).

ZERO = "set train.max_staleness to 0"


def remembering(recipe: Recipe) -> str | None:
    """A strategy with a state goes on from what it played last."""
    strategy = recipe.one("rollout_strategy")
    if isinstance(strategy.target, type) and strategy.target.is_stateful():
        return (
            f"rollout_strategy: {strategy.name} goes on from its last step, which train.max_staleness does not wait "
            "for: use plain"
        )
    return None


def matched(recipe: Recipe) -> str | None:
    """What these draw next would be taken for what was played."""
    sampler = recipe.one("sampler")
    if "latest_draw" in sampler.reads:
        return (
            f"sampler: {sampler.name} needs a draw's outcomes before the next draw: {ZERO}, or use unsolved or shuffled"
        )
    return None


def recorded(recipe: Recipe) -> str | None:
    """Operations are recorded of all that a GPU does meanwhile."""
    return f"policy.cuda_graphs: no other thread may use the GPU: {ZERO}" if recipe.config.policy.cuda_graphs else None


def one_writer(recipe: Recipe) -> str | None:
    """An engine has to be told whose weights it writes by, and to write while the trainer works."""
    engine = recipe.config.policy.engine
    if engine.name != "local" and not engines.target(engine).can_follow():
        return f"policy.engine: {engine.name} writes by the present weights alone: use local or server, or {ZERO}"
    return None


def ahead(recipe: Recipe) -> str | None:
    """The first of all that is wrong where steps are played ahead."""
    rules = (remembering, matched, recorded, one_writer) if recipe.config.train.max_staleness else ()
    return next((problem for rule in rules if (problem := rule(recipe))), None)


RULES: tuple[Rule, ...] = (
    lost_groups, lost_ratios, order, normalised_after_shaping, one_decision, steps_of_one_turn, unread_steps,
    overwritten, other_discount, split_groups, mixed_up, forgotten_reward, known_answers, of_methods, unread_reference,
    one_mover, crowded, ahead, weighed_twice,
)  # fmt: skip


def problems(config: Config, find: Find = registry.find) -> Iterator[str]:
    """What is wrong with a configuration whose components are each in order; `find(kind, name)` gives a plug-in."""
    recipe = make_recipe(config, find)
    return (problem for rule in RULES if (problem := rule(recipe)))


def load_config(path: str | Path, changes: Sequence[Change] = ()) -> Config:
    """A YAML file and changes to it -> the checked configuration.

    Raises:
        UserError: as `vlrl.config.load_as`; also for components and options that no plug-in has, and for a recipe
            whose parts do not go together.
    """
    config = load_as(Config, path, changes)
    check(config, str(path))
    engines.check(config.policy, str(path))
    return config


def check(config: Config, source: str) -> None:
    """Every component exists, its options are typed, and the run gives what it needs.

    Raises:
        UserError: the key's path and the alternative.
    """
    try:
        registry.check_component("task", config.task, "task")
        for path, task in tasks_of(config.task):
            registry.check_component("task", task, path)
        _check_needs(config, "sampler", config.sampler, "sampler")
        _check_needs(config, "rollout_strategy", config.rollout_strategy, "rollout_strategy")
        registry.check_component("loss_aggregation", config.loss_aggregation, "loss_aggregation")
        registry.check_placement(config.placement)
        for kind in LISTS:
            for i, component in enumerate(config.components(kind)):
                _check_needs(config, kind, component, f"{kind}.{i}")
        for problem in problems(config):
            raise UserError(problem)
        if config.train.num_minibatches > config.train.prompts_per_step:
            raise UserError(
                f"train.num_minibatches: at most train.prompts_per_step = {config.train.prompts_per_step}, the groups "
                f"of a step"
            )
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    if not config.losses:
        raise UserError(f"{source}: losses: at least one term is needed")


def _check_needs(config: Config, kind: str, component: Component, path: str) -> None:
    target = registry.check_component(kind, component, path)
    train, turns = config.train, takes_turns(config, registry.find)
    facts = {
        "group": train.group_size > 1,
        "sequence_mean": config.loss_aggregation.name == "sequence_mean",
        "one_forward": train.micro_size is None or train.micro_size * train.num_minibatches >= train.prompts_per_step,
        "one_turn": not turns,
        "one_answer": not turns,
        "teacher": config.policy.teacher is not None,
        "candidates": config.policy.teacher is not None,
    }
    for need in methods.of(target).needs:
        if need not in get_args(methods.Need):
            raise UserError(
                f"{path} ({component.name}): @method: unknown need {need!r}{suggest(need, get_args(methods.Need))}"
            )
        if not facts.get(need, True):
            raise UserError(f"{path} ({component.name}) {methods.ALTERNATIVES[need]}")


# How a run was launched.

PARTED = "use FSDP2, configs/accelerate/fsdp_8.yaml (docs/scale_out.md), policy.lora or train.optimizer: adamw_8bit"
DEEPSPEED = ("CONFIG_FILE", "ZERO_STAGE", "OFFLOAD_PARAM_DEVICE", "OFFLOAD_OPTIMIZER_DEVICE")  # what is read of it


def lone_launch(recipe: Recipe) -> str | None:
    """`accelerate launch --cpu` starts one process, however many were asked for, unless an MPI is there."""
    launched = "MASTER_PORT" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    if get_world().size > 1 or not launched or "LOCAL_RANK" in os.environ:
        return None
    return (
        "accelerate launch --cpu starts one process on CPUs: use --config_file configs/accelerate/cpu_2.yaml, or "
        "torchrun --nproc-per-node N -m vlrl.cli train CONFIG"
    )


def partitioned(recipe: Recipe) -> str | None:
    """Engines that this trainer does not drive."""
    if is_engine_requested("MEGATRON_LM"):
        return f"accelerate launch: MEGATRON_LM is not there: {PARTED}"
    if is_engine_requested("FSDP") and os.environ.get("FSDP_VERSION") != "2":
        return f"accelerate launch: FSDP is there in its version 2 alone: set fsdp_version: 2, or {PARTED}"
    return None


def sliced(recipe: Recipe) -> str | None:
    """Sequences are shared by equally many processes each, in passes that all of them make."""
    size, world = sequence_size(), get_world().size
    for name in ("TP", "CP"):
        if os.environ.get(f"PARALLELISM_CONFIG_{name}_SIZE", "1") != "1":
            return (
                f"accelerate launch: parallelism_config_{name.lower()}_size is not there: FSDP2 shares weights out, "
                "parallelism_config_sp_size shares long sequences"
            )
    if world % size:
        return f"{SEQUENCE}={size}: {world} processes do not share sequences evenly: use a divisor"
    if size > 1 and not recipe.config.train.shared_prefix:
        return f"train.shared_prefix: false has no passes that processes share ({SEQUENCE}={size}): set it to true"
    return None


def staged(recipe: Recipe) -> str | None:
    """DeepSpeed has the optimizer in parts, and on hosts if asked: with more in parts, processes wait for others."""
    if not is_engine_requested("DEEPSPEED"):
        return None
    options = {name: os.environ.get(f"ACCELERATE_DEEPSPEED_{name}", "none") for name in DEEPSPEED}
    if options["CONFIG_FILE"] != "none":
        return "accelerate launch: a deepspeed_config_file has no effect: set zero_stage: 1 in deepspeed_config instead"
    if options["ZERO_STAGE"] != "1" or options["OFFLOAD_PARAM_DEVICE"] != "none":
        return (
            "accelerate launch: DeepSpeed is there in its stage 1, and without offload_param_device: set zero_stage: 1 "
            "(configs/accelerate/deepspeed_8.yaml); for gradients and weights in parts use FSDP2 (fsdp_8.yaml)"
        )
    if options["OFFLOAD_OPTIMIZER_DEVICE"] not in ("none", "cpu"):
        return "accelerate launch: offload_optimizer_device is cpu or none here"
    if get_world().size == 1:
        return "accelerate launch: DeepSpeed has nothing to part in one process: use train.optimizer: paged_adamw_8bit"
    if (optimizer := recipe.config.train.optimizer) != "adamw":
        return f"train.optimizer: DeepSpeed parts adamw alone, {optimizer} is asked for: use adamw"
    for part in recipe.of("callbacks"):
        if "optimizer" in part.gives:
            return f"{part.label} makes the optimizer anew, DeepSpeed has it in parts: leave it out"
    if importlib.util.find_spec("deepspeed") is None:
        return "accelerate launch: DeepSpeed is asked for and not installed: pip install 'vlrl[deepspeed]'"
    return None


def parted(recipe: Recipe) -> str | None:
    """What reads or changes all weights by itself, while a process has a part of them (FSDP2)."""
    train, policy = recipe.config.train, recipe.config.policy
    if policy.engine.name not in ("local", "server"):
        return f"policy.engine: {policy.engine.name} was not tried with weights in parts (FSDP): use local or server"
    if train.optimizer != "adamw":
        return f"train.optimizer: {train.optimizer} changes whole matrices, FSDP has parts of them: use adamw"
    if "language" in policy.freeze:
        return "policy.freeze: FSDP parts the language model, which is frozen: use --multi_gpu"
    if policy.cuda_graphs:
        return "policy.cuda_graphs: FSDP puts weights in another place at every step: leave it out"
    if train.max_staleness:
        return "train.max_staleness: copies whole weights, FSDP has them in parts: set it to 0"
    for part in recipe.of("callbacks"):
        if "all_weights" in part.reads:
            return f"{part.label} changes whole weights, FSDP has them in parts: leave it out"
    return None
