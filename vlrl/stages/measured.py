"""Held-out accuracy of several models on one task, in a process of its own.

python -m vlrl.stages.measured CONFIG (MODEL OUT)...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    from vlrl import config as configs
    from vlrl import log, registry
    from vlrl.commands.base import quiet

    quiet()
    from vlrl.evaluate import evaluate
    from vlrl.policies.load import load

    config_file, *pairs = arguments
    config = configs.load(config_file)
    task = registry.make_task(config)
    for model, out in zip(pairs[::2], pairs[1::2], strict=True):
        section = config.policy.model_copy(update={"model": model})
        policy = load(section, shared_prefix=config.train.shared_prefix, seed=config.seed)
        registry.check_fit(task, policy)
        result = evaluate(policy, task, samples=config.eval.samples, batch=config.eval.batch)
        row = {**vars(result.accuracy), "reward": result.reward, "length": result.length,
               "parse_fail": result.parse_fail, "settings": config.model_dump(mode="json")}  # fmt: skip
        log.write_text(Path(out), json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
