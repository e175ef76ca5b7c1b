"""From a configuration and its prompts' size to what the cost and memory models take."""

from __future__ import annotations

from typing import Literal

from vlrl import registry
from vlrl.config import Config
from vlrl.cost import Group, Update, factors
from vlrl.footprint import CHUNK
from vlrl.plan.activations import FULL, Run
from vlrl.plan.adapters import adapters
from vlrl.plan.geometry import Geometry, Parameters, parameters
from vlrl.plan.prompts import Prompt
from vlrl.types import UserError

HALF = 2  # bytes of bfloat16


def run_of(config: Config, geometry: Geometry, prompt: Prompt, *, tokens: float, gpus: int, on_gpu: bool) -> Run:
    """One GPU's part of a step.

    Args:
        tokens: of a completion.
        gpus: each takes its share of the prompts; the language model's weights, gradients and optimizer are in parts on
            them (FSDP2, `vlrl.parallel.sharded`), its weights whole in a rollout; the tower and a reference are whole.

    Raises:
        UserError: nothing would be trained.
    """
    train, policy, whole = config.train, config.policy, parameters(geometry)
    added = adapters(geometry, policy.lora.rank, policy.lora.targets) if policy.lora else None
    learning = {part: (added or vars(whole))[part] for part in vars(whole) if part not in policy.freeze}
    if not sum(learning.values()):
        raise UserError(f"policy.freeze: {', '.join(policy.freeze)} leaves nothing to train")
    prompts = -(-train.prompts // gpus)
    micro = min(train.microbatch or prompts, -(-prompts // train.minibatches))
    asks_reference = _asks_reference(config)
    update = Update(
        mode=_mode(config, gpus), passes=int(asks_reference), epochs=train.epochs, **factors(learning, bool(added)),
        checkpointed=policy.gradient_checkpointing,
        chunked=micro * train.group_size * tokens * geometry.language.vocabulary > CHUNK,
    )  # fmt: skip
    whole_trained = sum(learning.get(part, 0) for part in ("vision", "projector"))
    tower = whole.vision + whole.projector + (whole_trained if added else 0)
    mixed = policy.dtype == "bfloat16" or (policy.dtype == "auto" and on_gpu)
    return Run(
        geometry, Group(prompt.tokens, prompt.visual, tokens, train.group_size, max(prompt.frames, 1)), update,
        prompts=prompts, micro=micro, trained=sum(learning.values()), adapters=sum(learning.values()) if added else 0,
        width=HALF if mixed else FULL, states=_states(config, geometry, whole, learning),
        copied=asks_reference and not added, shards=gpus, whole=tower, whole_trained=whole_trained,
    )  # fmt: skip


def _mode(config: Config, gpus: int) -> Literal["naive", "shared", "kept"]:
    """As the trainer decides: a kept prefill serves one update of all of a step's prompts, by whole weights."""
    train = config.train
    whole = train.minibatches == train.epochs == 1 and not train.microbatch and gpus == 1
    return "naive" if not train.shared_prefix else "kept" if whole else "shared"


def _states(config: Config, geometry: Geometry, whole: Parameters, learning: dict[str, int]) -> float:
    """Numbers of 4 bytes that the optimizer keeps of a parameter: two, and less of what is no embedding."""
    less = {"adamw": 2.0, "muon": 1.0, "adamw_8bit": 0.512, "paged_adamw_8bit": 0.512}[config.train.optimizer]
    if config.policy.lora or "language" not in learning:
        return less
    embedded = geometry.language.vocabulary * geometry.language.hidden / sum(learning.values())
    return less + (2.0 - less) * embedded


def _asks_reference(config: Config) -> bool:
    made = [registry.make("advantages", c, f"advantages.{i}") for i, c in enumerate(config.advantages)]
    return registry.needs_reference(config, made)
