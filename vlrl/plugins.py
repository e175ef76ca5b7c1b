"""Imports what a user names as `module:name`, and checks that it has the shape which its kind is called with."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

from vlrl.types import UserError, first_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class PluginShape:
    """A class with these methods; without methods, a function that takes `arguments` positional arguments."""

    guide: str
    methods: tuple[str, ...] = ()
    base: str = ""  # `module:Class` that a class extends
    arguments: int | None = None  # None: any
    factory: bool = False  # a function that makes the object fits as well

    @property
    def need(self) -> str:
        """What to write, for a message."""
        if self.methods:
            return f"a class with the methods {', '.join(self.methods)} ({self.guide})"
        count = "" if self.arguments is None else f" of {self.arguments} arguments"
        return f"a Python function{count} ({self.guide})"


NEAR = 0.8  # from which likeness on a public name is taken for a misspelt hook

SHAPES = {
    "task": PluginShape("docs/guides/own_task.md", ("samples", "score"), "vlrl.types:BaseTask"),
    "reward": PluginShape("docs/guides/own_reward.md"),
    "bonus": PluginShape("docs/video.md", arguments=2),
    "detection reward": PluginShape("docs/detection.md", arguments=3),
    "TRL reward": PluginShape("docs/interop.md"),
    "reward model": PluginShape("docs/methods.md", ("compute_reward",), factory=True),
    "judges": PluginShape("docs/judges.md", ("ask",)),
    "encoder": PluginShape("docs/methods.md", ("encode",), "vlrl.contrib.encoders:Encoder"),
    "embedder": PluginShape("docs/open_answer.md", ("embed",)),
    "engine": PluginShape("docs/engines.md", ("generate", "publish", "close"), "vlrl.policies.engine:Engine"),
    "placement": PluginShape("docs/guides/cluster.md", ("start",), "vlrl.placement.workers:Placement"),
    "tool": PluginShape("docs/guides/own_task.md"),
    "robot": PluginShape(
        "docs/guides/own_robot.md", ("reset", "get_observation", "send_action", "status", "close"), "robot.types:Robot"
    ),
    "body": PluginShape(
        "docs/motion.md", ("connect", "begin", "sense", "send", "rest", "close"), "robot.types:RobotDriver"
    ),
}


def load_object(name: str, path: str) -> Any:
    """The object that `module:name` names.

    Raises:
        UserError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: `:thing`, `..module:thing`
        raise UserError(f"{path}: cannot find {name!r}: {error}") from None


def load_plugin(kind: str, name: str, path: str) -> Any:
    """The object that `module:name` names, of the shape of its kind in SHAPES.

    Raises:
        UserError: it cannot be imported; it has another shape; it does not extend the base of its kind, or misspells a
            hook of it.
    """
    target, shape = load_object(name, path), SHAPES[kind]
    check_shape(shape, target, name, path)
    if shape.base and (problem := base_problem(target, load_object(shape.base, path))):
        raise UserError(f"{path}: {name!r}: {problem} ({shape.guide})")
    return target


def check_shape(shape: PluginShape, target: Any, name: str, path: str) -> None:
    """UserError where `target` is of another shape, or comes from the standard library."""
    if is_foreign(target) or not _fits(shape, target):
        raise UserError(f"{path}: {describe_object(target, name)}: needs {shape.need}")


def base_problem(target: Any, base: type) -> str | None:
    """Why a class is no `base`, for a message: it does not extend it, or misspells a hook; None: it is one."""
    hooks = [name for name in dir(base) if not name.startswith("_")]
    own = {name for each in target.__mro__ if each not in base.__mro__ for name in vars(each) if name[0] != "_"}
    unused = [name for name in hooks if name not in own]
    slips = [f"{name!r} looks like {near[0]!r}" for name in sorted(own.difference(hooks))
             if (near := get_close_matches(name, unused, 1, NEAR))]  # fmt: skip
    missing = [name for name in hooks if inspect.isabstract(target) and name in target.__abstractmethods__]
    name = f"{base.__module__}.{base.__qualname__}"
    if not issubclass(target, base):
        return f"must extend {name}" + (f" ({slips[0]}, one of its hooks)" if slips else "")
    if slips:
        return f"{slips[0]}, a hook of {name}: rename it"
    return f"lacks {', '.join(missing)} of {name}" if missing else None


def refuse_instance(value: object, base: type, path: str, guide: str) -> NoReturn:
    """UserError: an object of a user's class is no `base`."""
    kind = type(value)
    raise UserError(f"{path}: {kind.__module__}.{kind.__qualname__}: {base_problem(kind, base)} ({guide})")


def check_module(kind: str, name: str, path: str) -> None:
    """UserError where `module:name` is of the standard library; imports nothing, so no simulator."""
    module, _, attribute = name.partition(":")
    if attribute.isidentifier() and _is_standard(module):
        raise UserError(f"{path}: {name!r} is of Python's standard library: needs {SHAPES[kind].need}")


def is_foreign(target: Any) -> bool:
    """Whether an object is one of the standard library's, or no function, class or callable object."""
    return not callable(target) or _is_standard(_module_of(target))


def describe_object(target: Any, name: str) -> str:
    """Name, type and module of an object, for a message."""
    return f"{name!r} is a {type(target).__name__} of the module {_module_of(target)}"


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _module_of(target: Any) -> str:
    owner = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    return owner.__module__ or "builtins"


def _fits(shape: PluginShape, target: Any) -> bool:
    if shape.methods and not (shape.factory and inspect.isroutine(target)):
        return inspect.isclass(target) and all(method in dir(target) for method in shape.methods)
    if inspect.isclass(target):
        return False
    try:
        signature = inspect.signature(target)
        if shape.arguments is not None:
            signature.bind(*[None] * shape.arguments)
    except (TypeError, ValueError):
        return False
    return True


# Packages of extras whose insides are used, so that another version of them fails somewhere in the middle.


def check_extra(place: str, extra: str, *modules: str) -> None:
    """Imports modules of an extra's packages.

    Args:
        place: what needs them, as an error names it.

    Raises:
        UserError: a package is missing, of another version than vlrl asks for, or without such a module.
    """
    problem, versions = "", ""
    for requirement in list_requirements(extra):
        try:
            versions = f"{requirement.name} {metadata.version(requirement.name)} is installed"
            fits = requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
        except metadata.PackageNotFoundError:
            versions, fits = f"{requirement.name} is not installed", False
        versions += f", {requirement.specifier} is needed"
        problem = problem or ("" if fits else versions)
    try:
        for module in () if problem else modules:
            importlib.import_module(module)
    except ImportError as error:
        problem = f"{versions}: {first_line(error)}"
    if problem:
        raise UserError(f"{place}: pip install 'vlrl[{extra}]' ({problem})")


def list_requirements(extra: str) -> list[Requirement]:
    """What an extra of vlrl's asks for; none where vlrl runs uninstalled."""
    from packaging.requirements import Requirement

    try:
        listed = map(Requirement, metadata.requires("vlrl") or ())
    except metadata.PackageNotFoundError:
        return []
    return [
        each for each in listed
        if each.marker and each.marker.evaluate({"extra": extra}) and not each.marker.evaluate({"extra": ""})
    ]  # fmt: skip


# Objects of verifiers' that its tasks and rewards are handed, whoever calls them.


@functools.cache
def make_verifiers_agent() -> Any:
    """What a trace says of who wrote it: the policy (`verifiers.v1.AgentInfo`)."""
    from verifiers import v1 as vf

    return vf.AgentInfo(config=vf.AgentConfig(model="policy", runtime=vf.SubprocessConfig()))


def make_verifiers_reply(message: Any) -> Any:
    """A message of the policy's as a server's response."""
    from verifiers import v1 as vf

    reason = "tool_calls" if message.tool_calls else "stop"
    return vf.Response(id="policy", created=0, model="policy", message=message, finish_reason=reason)
