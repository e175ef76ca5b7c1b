"""pass@k: does a policy answer a held-out sample at least once in k tries? Sampled at temperature 1.

A process of its own: python -m vlrl.compare.sampled CONFIG MODEL SAMPLES SEED OUT
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def pass_at(correct: Sequence[int], n: int, k: int) -> float:
    """Mean over samples of `1 - C(n - c, k) / C(n, k)`: unbiased for the chance that one of k tries is right.

    Chen et al. 2021, arXiv 2107.03374, equation 1.

    Args:
        correct: how many of each sample's n answers were right, c.
        k: at most n.
    """
    return sum(1 - math.comb(n - c, k) / math.comb(n, k) for c in correct) / len(correct)


def main(arguments: Sequence[str]) -> int:
    config_file, model, samples, seed, out = arguments
    from vlrl import config as configs
    from vlrl import log, registry
    from vlrl.commands.base import quiet

    quiet()
    config = configs.load(config_file, [f"policy.model={model}", "policy.temperature=1.0", f"seed={seed}"])
    from vlrl.policies.load import load

    begun = time.process_time()
    task = registry.make_task(config)
    policy = load(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    answered = answers(policy, task, config.eval.samples, config.eval.batch, int(samples))
    log.write_text(Path(out), json.dumps(answered | {"cpu_s": time.process_time() - begun}) + "\n")
    return 0


def answers(policy, task, limit: int | None, batch: int, n: int) -> dict:
    """n answers to each held-out sample: {n, correct [samples], entropy, length}; right: wholly."""
    from vlrl.rollout import collect

    held_out = task.samples("test")
    count = min(limit or len(held_out), len(held_out))
    size = max(1, batch // n)
    correct, entropy, units, answered = [], 0.0, 0, 0
    for start in range(0, count, size):
        chosen = [held_out[i] for i in range(start, min(start + size, count))]
        episodes = collect(policy, task, chosen, group_size=n)
        hits = [episode.score.correct >= 1 - 1e-9 for episode in episodes]
        correct += [sum(hits[i * n : (i + 1) * n]) for i in range(len(chosen))]
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        entropy += sum(float(decision.entropy.sum()) for decision in decisions)
        units += sum(len(decision.logprobs) for decision in decisions)
        answered += len(episodes)
    return {"n": n, "correct": correct, "entropy": entropy / units, "length": units / answered}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
