"""vlrl: reinforcement learning with rule-based rewards for vision-language models and robot policies.

What scripts and notebooks use stands here (`vlrl.api`) and loads when it is first asked for: `import vlrl` is light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlrl.types import __version__ as __version__

if TYPE_CHECKING:
    from vlrl.api import Run, evaluate_policy, load_config, load_policy, load_task, resume, score_rows, simulate, train
    from vlrl.types import UserError

__all__ = [
    "Run",
    "UserError",
    "evaluate_policy",
    "load_config",
    "load_policy",
    "load_task",
    "resume",
    "score_rows",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vlrl' has no attribute {name!r}")
    from vlrl import api, registry, types

    if name != "UserError":
        registry.check_packages()
    return getattr(types if name == "UserError" else api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
