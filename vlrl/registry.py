"""Finds plug-ins by name at run time, checks their options and makes them: the one place that knows where they are."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vlrl import methods, plugins
from vlrl.config import MIXTURE, Component, Config, DataSection, check_options
from vlrl.placement.workers import Placement, use_placement
from vlrl.types import BaseTask, Data, Policy, UserError, suggest

# kind -> modules whose public functions and classes may be named in a YAML; of a package, those of all its modules
HOMES = {
    "advantages": (
        "vlrl.algorithms.advantages",
        "vlrl.algorithms.single_rollout",
        "vlrl.algorithms.multi_turn",
        "vlrl.algorithms.gae",
    ),
    "losses": (
        "vlrl.algorithms.policy_losses",
        "vlrl.algorithms.auxiliary_losses",
    ),
    "loss_aggregation": ("vlrl.algorithms.policy_losses",),
    "sampler": (
        "vlrl.algorithms.samplers",
        "vlrl.algorithms.curriculum",
    ),
    "rollout_strategy": (
        "vlrl.rollout",
        "vlrl.algorithms.rollout_filtering",
        "vlrl.contrib.rollouts",
    ),
    "process_rewards": ("vlrl.contrib.process_rewards",),
    "reward_shaping": (
        "vlrl.algorithms.reward_shaping",
        "vlrl.algorithms.length_penalties",
    ),
    "replay_mixing": ("vlrl.contrib.replay_mixing",),
    "callbacks": ("vlrl.algorithms.schedules",),
    "agent": ("vlrl.offpolicy.agents",),
    "source": (
        "vlrl.offpolicy.datasets",
        "vlrl.contrib.preferences.source",
    ),
    "judge": ("vlrl.contrib.preferences.labelling",),
}

# options of plug-ins that name an object as `module:name` -> its kind
OPTION_KINDS = {
    "robot": "robot", "reward": "detection reward", "rewards": "TRL reward", "bonus": "bonus", "model": "reward model",
    "judge": "judges", "encoder": "encoder", "embedder": "embedder", "tools": "tool",
}  # fmt: skip

# tasks made of others
NEED_OPTIONS = {
    MIXTURE: "vlrl.algorithms.mixture:Mixture",
    "checked": "vlrl.algorithms.checked:Checked",
    "gym": "tasks.gym:Gym",
    "openenv": "tasks.openenv:OpenEnv",
    "verifiers": "tasks.verifiers:Verifiers",
}


@functools.cache  # a config names dozens of methods, and each would look at all of them
def names(kind: str) -> Mapping[str, Any]:
    """Every built-in plug-in of a kind: name -> function or class."""
    if kind == "task":
        return {name: find("task", name) for name in (*task_names(), *NEED_OPTIONS)}
    plugins_by_name = {}
    for home in HOMES[kind]:
        whole = importlib.import_module(home)
        package = whole.__spec__.submodule_search_locations if whole.__spec__ else None
        inner = [f"{home}.{part.name}" for part in pkgutil.iter_modules(package or ())]
        for module in (whole, *map(importlib.import_module, inner)):
            own = {n: v for n, v in vars(module).items() if methods.is_method(v) and n.islower()}
            plugins_by_name |= {n: v for n, v in own.items() if methods.contract_problem(kind, v) is None}
    return plugins_by_name


def task_names() -> list[str]:
    """Modules of `tasks/` that hold a class of their own name, but for NEED_OPTIONS."""
    listed = [
        module.name for module in pkgutil.iter_modules(importlib.import_module("tasks").__path__) if not module.ispkg
    ]
    listed = [name for name in listed if name not in NEED_OPTIONS]
    return [name for name in sorted(listed) if _camel(name) in dir(importlib.import_module(f"tasks.{name}"))]


def rewards() -> dict[str, Callable[..., float]]:
    """Every reward: `module.function` of `rewards/` -> public function that returns a number."""
    functions = {}
    for name in _modules("rewards"):
        module = importlib.import_module(f"rewards.{name}")
        for attribute, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__ and not attribute.startswith("_")
            if own and typing.get_type_hints(value).get("return") is float:
                functions[f"{name}.{attribute}"] = value
    return functions


def robots() -> Mapping[str, Any]:
    """Every robot with a short name -> its entry: target, needs, summary. Loads no simulator."""
    return importlib.import_module("robot.registry").robots()


def find(kind: str, name: str, path: str = "") -> Any:
    """A plug-in by its name, or `my_module:thing` from anywhere on the Python path.

    Raises:
        UserError: nothing of that name, with the nearest right one; an object of another shape than its kind's.
    """
    module_name, colon, attribute = (NEED_OPTIONS.get(name, name) if kind == "task" else name).partition(":")
    if kind == "task" and not colon:
        module_name, attribute = f"tasks.{name}", _camel(name)
        if name not in _modules("tasks"):
            hint = suggest(name, [*task_names(), *NEED_OPTIONS])
            raise UserError(f"{path or kind}: unknown task {name!r}{hint}; your own is named FILE:CLASS, without .py")
    elif not colon:
        known = names(kind)
        if name not in known:
            raise UserError(f"{path or kind}: unknown name {name!r}{suggest(name, list(known))}")
        return known[name]
    target_name = f"{module_name}:{attribute}"
    if kind not in HOMES:
        return plugins.load_plugin(kind, target_name, path or kind)
    target = plugins.load_object(target_name, path or kind)
    _check_method(kind, target, name, path or kind)
    return target


def _check_method(kind: str, target: Any, name: str, path: str) -> None:
    """UserError where `target` carries no `@method`, or is a method of another kind."""
    if plugins.is_foreign(target) or not methods.is_method(target):
        problem = plugins.describe_object(target, name)
        raise UserError(f"{path}: {problem}: decorate a method with @vlrl.methods.method (docs/guides/own_method.md)")
    problem = methods.contract_problem(kind, target)
    at_home = [k for k, homes in HOMES.items() if any(f"{target.__module__}.".startswith(f"{h}.") for h in homes)]
    others = [other for other in at_home if methods.contract_problem(other, target) is None]
    if others and (problem or kind not in others):
        raise UserError(f"{path}: {name!r} is a method of the kind {others[0]!r}, not {kind!r}: `vlrl list methods`")
    if problem:
        raise UserError(f"{path}: {name!r}: {problem} (docs/guides/own_method.md)")


def options_of(target: Any) -> dict[str, tuple[Any, Any]]:
    """Keyword-only parameters of a function or class: name -> (annotation, default or ... where required)."""
    callable_ = target.__init__ if inspect.isclass(target) else target
    hints = typing.get_type_hints(callable_, localns={"Tensor": Any, "Evaluation": Any}, include_extras=True)
    return {
        name: (hints.get(name, Any), ... if p.default is inspect.Parameter.empty else p.default)
        for name, p in inspect.signature(callable_).parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and hints.get(name) is not Data
    }


def make(kind: str, component: Component, path: str, *given: Any, **named: Any) -> Any:
    """The plug-in ready to call: a class instantiated with its options, a function bound to them (`methods.bind`)."""
    target = find(kind, component.name, f"{path}.name")
    options = check_options(component.options, options_of(target), path)
    return target(*given, **options, **named) if inspect.isclass(target) else methods.bind(kind, target, options)


def make_all(kind: str, config: Config, *given: Any) -> list[Any]:
    """The plug-ins of a kind that a configuration lists, in its order, each as `make` makes it."""
    return [make(kind, each, f"{kind}.{i}", *given) for i, each in enumerate(config.components(kind))]


def chosen(value: str | Mapping[str, Any], path: str, noun: str, known: Mapping[str, str]) -> Component:
    """What an option at `path` names inside a plug-in: a short name of `known` or `my_module:thing`, with its options.

    Raises:
        UserError: no name; none of that name, with the nearest right one.
    """
    options = {"name": value} if isinstance(value, str) else dict(value)
    name = options.get("name")
    if not isinstance(name, str):
        raise UserError(f"{path}.name: is required, one of: {', '.join(known)}")
    if ":" not in name and name not in known:
        raise UserError(f"{path}.name: unknown {noun} {name!r}{suggest(name, list(known))}")
    return Component(**{**options, "name": known.get(name, name)})


# Where workers run.

PLACEMENTS = {"local": "vlrl.placement.workers:LocalPlacement", "ray": "vlrl.placement.ray_actors:RayPlacement"}


def check_placement(component: Component) -> None:
    """UserError where `placement` names none, or has other options. Starts nothing."""
    target = chosen(component.model_dump(), "placement", "placement", PLACEMENTS)
    check_component("placement", target, "placement")


def choose_placement(component: Component) -> None:
    """Workers that start from now on run where the configuration's `placement` says."""
    use_placement(_make_placement(component.model_dump_json()))


@functools.lru_cache(maxsize=1)
def _make_placement(component: str) -> Placement:
    options = Component.model_validate_json(component).model_dump()
    return make("placement", chosen(options, "placement", "placement", PLACEMENTS), "placement")


class AsksTask(Protocol):
    """A configuration, or a part of one, that names a task and its data."""

    @property
    def task(self) -> Component: ...
    @property
    def data(self) -> DataSection: ...


def make_task(section: AsksTask, path: str = "task") -> BaseTask:
    """The section's task, given its data if it reads any.

    Raises:
        UserError: `data` names files, but the task makes its own samples.
    """
    if isinstance(section, Config):
        choose_placement(section.placement)
    task = _make_checked_task(section, path)
    task.reward_timeout_s = section.train.reward_timeout_s if isinstance(section, Config) else None
    return task


def _make_checked_task(section: AsksTask, path: str) -> BaseTask:
    component, data = section.task, section.data
    if "data" in inspect.signature(find("task", component.name, f"{path}.name")).parameters:
        return make("task", component, path, data=data.plain())
    if data.train or data.test:
        where = f"{path.removesuffix('task')}data"
        raise UserError(f"{where}: the task {component.name!r} reads no files: remove data.train and data.test")
    return make("task", component, path)


def check_component(kind: str, component: Component, path: str) -> Any:
    """The plug-in that a component names, with options that it takes; objects that those name in turn are checked.

    Raises:
        UserError: there is none, it has no such option, or an option names an object of another shape.
    """
    target = find(kind, component.name, f"{path}.name")
    check_options(component.options, options_of(target), path)
    if own := methods.of(target).check_options:
        own(component.options, f"{path} ({component.name})")
    for option, inner in OPTION_KINDS.items():
        value = component.options.get(option)
        for each in value if isinstance(value, list | tuple) else [value]:
            name = each.get("name") if isinstance(each, Mapping) else each
            if isinstance(name, str):
                plugins.check_module(inner, name, f"{path}.{option}")
    return target


def check_places(config: Config) -> None:
    """What methods load beside the policy is there; asked before a run loads anything.

    Raises:
        UserError: it is not.
    """
    for component in config.process_rewards:
        check = methods.of(find("process_rewards", component.name)).check
        if check is not None:
            check(component.options)


def check_policy(config: Config, about: Mapping[str, Any]) -> None:
    """The model gives what the methods read; `about` is its config.json, {} where it is not at hand.

    Raises:
        UserError: it has no log-probabilities, as lerobot's diffusion that sees a past.
    """
    past = about.get("n_obs_steps", 2) if about.get("type") == "diffusion" and "model_type" not in about else 1
    if past != 1:
        raise UserError(
            f"policy.model: lerobot's 'diffusion' with n_obs_steps {past} gives no log-probabilities, which every loss "
            "needs, for where a chunk ends one observation is seen: train it with n_obs_steps 1 (lerobot-train, "
            "docs/demos.md), or start from a policy that `vlrl clone` makes"
        )


def needs_reference(config: Config, estimators: Sequence[methods.Estimator]) -> bool:
    """Whether any loss term, shaping, estimator or teacher reads the reference's log-probabilities."""
    declared = [
        methods.of(find(kind, c.name)) for kind in ("losses", "reward_shaping") for c in config.components(kind)
    ]
    taught = needs_teacher(config) and config.policy.teacher == "reference"
    return taught or any("reference" in each.needs for each in [*declared, *estimators])


def needs_teacher(config: Config) -> bool:
    """Whether any loss term or estimator reads a teacher's log-probabilities."""
    components = [(kind, c) for kind in ("losses", "reward_shaping", "advantages") for c in config.components(kind)]
    return any("teacher" in methods.of(find(kind, c.name)).needs for kind, c in components)


def count_candidates(config: Config) -> int:
    """How many of the likeliest tokens of each place losses compare with the teacher's; 0: the written one alone."""
    losses = [(c, find("losses", c.name)) for c in config.components("losses")]
    counts = [
        c.options.get("top_k", options_of(target)["top_k"][1])
        for c, target in losses
        if "candidates" in methods.of(target).needs
    ]
    return max(counts, default=0)


def needs_features(policy: Policy, estimators: Sequence[methods.Estimator]) -> bool:
    """Whether any estimator reads what the policy makes of its prompts.

    Raises:
        UserError: but the policy has nothing of the kind.
    """
    readers = [type(e).__name__ for e in estimators if "features" in e.needs]
    if readers and not policy.has_features:
        raise UserError(f"advantages: the critics of {readers[0]} read features, which this policy does not give")
    return bool(readers)


def _modules(package: str) -> list[str]:
    return [m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__) if not m.ispkg]


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def describe(target: Any) -> Mapping[str, str]:
    """One line, needs and source of a plug-in, for listings."""
    about = methods.of(target)
    first = (inspect.getdoc(target) or "").strip().split("\n\n")[0].replace("\n", " ")
    return {"summary": first, "needs": ", ".join(about.needs), "source": about.source}


def check_packages() -> None:
    """The top-level packages that are looked up by name are vlrl's own. Imports none of them.

    Raises:
        UserError: another folder or distribution has one of the name, and comes first on the path.
    """
    home = Path(__file__).parents[1].resolve()
    for name in ("tasks", "rewards", "robot"):
        spec = importlib.util.find_spec(name)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        place = next(filter(None, places), None)
        if place is not None and not Path(place).resolve().is_relative_to(home / name):
            raise UserError(
                f"the package `{name}` is not vlrl's: {place} comes before it on the Python path: work in another "
                "folder, rename it, or uninstall what brings it (`vlrl doctor` names it)"
            )


# Which optional part of vlrl brings a module that is not installed.

EXTRAS = {
    "accelerate": "train", "cv2": "train", "peft": "train", "qwen_vl_utils": "train", "safetensors": "train",
    "tensorboard": "train", "tokenizers": "train", "torch": "train", "torchvision": "train", "transformers": "train",
    "msgspec": "serve", "prometheus_client": "serve", "websockets": "serve", "lerobot": "robot", "mujoco": "sim",
    "huggingface_hub": "train", "ray": "ray", "selenium": "gui", "wandb": "wandb", "trackio": "trackio",
    "inspect_ai": "traces", "rerun": "traces", "lmms_eval": "benchmarks",
}  # fmt: skip


def lacking(error: ModuleNotFoundError) -> str | None:
    """What to install where an optional part is not there, as one line; None where the module is none of them."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return f"{module} is not installed, which this command needs: pip install 'vlrl[{extra}]'" if extra else None
