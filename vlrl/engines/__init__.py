"""Engines: who writes completions. `policy.engine: {name: server, urls: [...]}`; see docs/engines.md.

An engine is a class made with `(policy, source)`, `source` the folder or hub name of the policy's model; its
keyword-only parameters are its options. `local`, the default, is the policy itself (`vlrl.engines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from vlrl import registry
from vlrl.config import check_options
from vlrl.policies.engine import Completion, Engine, GenerationRequest, Options
from vlrl.types import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.config import Component, PolicySection


KNOWN = {
    "local": "vlrl.engines:LocalEngine",
    "server": "vlrl.engines.client:Server",
    "vllm": "vlrl.engines.vllm:InProcess",
}
PATH = "policy.engine"


def check(policy: PolicySection, source: str) -> None:
    """A configuration's engine, before anything is loaded.

    Raises:
        UserError: there is no such engine, it has not these options, or top_p or top_k is set.
    """
    try:
        _target(policy.engine)
        if policy.engine.name != "local" and (policy.top_p < 1 or policy.top_k is not None):
            raise UserError(f"{PATH}: engines sample from all tokens: leave policy.top_p and policy.top_k out")
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def load_policy(
    section: PolicySection, *, shared_prefix: bool | Literal["auto"] = "auto", seed: int = 0,
    device: str | None = None, passes_of: Any = None,
) -> Policy:  # fmt: skip
    """The policy of a configuration, ready to act and to be trained, with the engine that writes for it.

    passes_of: as `vlrl.policies.loading.load` takes it.

    Raises:
        UserError: as `vlrl.policies.loading.load`, as `check`, or the engine's own.
    """
    from vlrl.policies.loading import bundled, load, newest_checkpoint
    from vlrl.policies.vlm import VLM

    policy = load(section, shared_prefix=shared_prefix, seed=seed, device=device, passes_of=passes_of)
    if isinstance(policy, VLM):
        policy.engine = make(section.engine, policy, newest_checkpoint(bundled(section.model)))
    return policy


def make(component: Component, policy: Any, source: str) -> Engine | None:
    """The engine of a policy; None for `local`: the policy writes by itself.

    Raises:
        UserError: as `check`; the engine's own.
    """
    kind, options = _target(component)
    return None if component.name == "local" else kind(policy, source, **options)


def target(component: Component) -> Any:
    """The engine's class. UserError: as `check`."""
    return _target(component)[0]


def _target(component: Component) -> tuple[Any, dict[str, Any]]:
    """The engine's class and its checked options."""
    choice = registry.chosen(component.model_dump(), PATH, "engine", KNOWN)
    target = registry.find("engine", choice.name, PATH)
    options = check_options(choice.options, registry.options_of(target), PATH)
    try:
        target.agree(options)
    except ValueError as error:
        raise UserError(f"{PATH}: {error}") from None
    return target, options


# The policy's own fast decoder as an engine: what `vlrl serve-model` writes with.


class LocalEngine(Engine):
    """Completions of a `vlrl.policies.vlm.VLM`, in this process and with its weights."""

    def __init__(self, policy: Any, source: str = ""):
        self.policy = policy

    def publish(self) -> None:
        """Nothing: its weights are the policy's."""

    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        import numpy as np
        import torch

        from vlrl.policies.processor import going_on

        sampling = self.policy.sampling(options.max_tokens, options.temperature, options.stop)
        uniform = torch.from_numpy(np.concatenate([each.drawn for each in asked])) if options.temperature else None
        prompts = [going_on(each.prompt, each.begun) for each in asked]
        completions = self.policy.write(prompts, [each.count for each in asked], sampling, uniform)
        rows = iter(zip(completions.tokens, completions.logprobs, completions.cut, strict=True))
        return [[_completion(*next(rows)) for _ in range(each.count)] for each in asked]


def _completion(tokens: Sequence[int], logprobs: Tensor, cut: bool) -> Completion:
    return Completion(tuple(tokens), tuple(logprobs.tolist()), cut)
