"""Engines: who writes completions. `policy.engine: {name: server, urls: [...]}`; see docs/engines.md.

An engine is a class made with `(policy, source)`, `source` the folder or hub name of the policy's model; its
keyword-only parameters are its options. `local`, the default, is the policy itself (`vlrl.engines.local`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlrl.engines.base import Asked, Completion, Engine, Options
from vlrl.types import UserError

if TYPE_CHECKING:
    from vlrl.config import PolicySection
    from vlrl.strict import Component

__all__ = ["Asked", "Completion", "Engine", "Options", "check", "make"]

KNOWN = {
    "local": "vlrl.engines.local:Local",
    "server": "vlrl.engines.server:Server",
    "vllm": "vlrl.engines.vllm:InProcess",
}
PATH = "policy.engine"


def check(policy: PolicySection, source: str) -> None:
    """A configuration's engine, before anything is loaded.

    Raises:
        UserError: there is no such engine, it has not these options, or not all of the law is to be sampled from.
    """
    try:
        _target(policy.engine)
        if policy.engine.name != "local" and (policy.top_p < 1 or policy.top_k is not None):
            raise UserError(f"{PATH}: engines sample from the whole law: leave policy.top_p and policy.top_k out")
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def make(component: Component, policy: Any, source: str) -> Engine | None:
    """The engine of a policy; None for `local`: the policy writes by itself.

    Raises:
        UserError: as `check`; the engine's own.
    """
    found, options = _target(component)
    return None if component.name == "local" else found(policy, source, **options)


def target(component: Component) -> Any:
    """The engine's class. UserError: as `check`."""
    return _target(component)[0]


def _target(component: Component) -> tuple[Any, dict[str, Any]]:
    """The engine's class and its checked options."""
    from vlrl import registry
    from vlrl.strict import check_options

    found = registry.chosen(component.model_dump(), PATH, "engine", KNOWN)
    target = registry.find("engine", found.name, PATH)
    options = check_options(found.options, registry.options_of(target), PATH)
    if hasattr(target, "agree"):
        try:
            target.agree(options)
        except ValueError as error:
            raise UserError(f"{PATH}: {error}") from None
    return target, options
