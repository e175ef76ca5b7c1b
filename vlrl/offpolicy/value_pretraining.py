"""`vlrl pretrain`: values of states from transitions without actions or rewards, for agents' networks to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from vlrl import registry
from vlrl.io import hold_folder
from vlrl.metrics import provenance, write_text
from vlrl.offpolicy import networks
from vlrl.offpolicy.config import PretrainConfig, passive_read, sequences
from vlrl.offpolicy.learner import check_task, statistics
from vlrl.policies.robot_common import FAR
from vlrl.types import UserError

HELD_OUT = 0.1  # of the sequences
WAYS = 500  # of held-out moments to a later one, to measure by
MEASURED = 1  # what a random generator is for, beside the seed


def run(config: PretrainConfig) -> dict[str, Any]:
    """The whole command -> what was measured; trunk and report lie in `config.out`.

    Raises:
        UserError: the data is too little, or anything of the configuration is wrong.
    """
    torch.set_num_threads(config.threads)
    out = Path(config.out)
    with hold_folder(out):
        task = registry.make_task(config)
        check_task(task, config.task.name)
        given = passive_read(task, config.offline, config.seed)
        mean, spread = statistics(given)
        scaled = [((each - mean) / spread).clip(-FAR, FAR) for each in sequences(given)]
        learned, held = parted(scaled, config.seed)
        settings = networks.ValuePretrainingSettings(
            config.hidden, config.layers, config.gamma, config.expectile, config.tau, config.lr, config.batch_size
        )
        network, losses = networks.learn(learned, config.updates, config.seed, settings)
        report = {
            "sequences": len(scaled), "moments": sum(map(len, scaled)), "loss": float(np.mean(losses[-50:])),
            "kendall": order(network, held, config.seed),
        }  # fmt: skip
        shape = networks.TrunkShape(given.state.shape[1], tuple(task.pool.info.names), config.hidden, config.layers)
        networks.save(out, shape, network.phi, mean, spread)
        head, values = "\n".join(provenance(config.seed)), config.model_dump(mode="json")
        write_text(out / "config.yaml", f"{head}\n{yaml.safe_dump(values, sort_keys=False, width=120)}")
        write_text(out / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def main(config: PretrainConfig) -> int:
    told = run(config)
    print(
        f"{told['sequences']} sequences of {told['moments']} moments; held out, Kendall's tau of values and steps left "
        f"is {told['kendall']:.2f}; {config.out}"
    )
    return 0


def parted(found: list[np.ndarray], seed: int) -> tuple[networks.Moments, networks.Moments]:
    """Moments to learn from, and those of sequences held out. UserError of fewer than two."""
    if len(found) < 2:
        raise UserError("offline: gave one sequence of states: pre-training holds some out; give more episodes")
    places = np.random.default_rng(seed).permutation(len(found))
    count = max(1, round(HELD_OUT * len(found)))
    held, learned = ([found[place] for place in part] for part in (places[:count], places[count:]))
    return networks.Moments(learned), networks.Moments(held)


@torch.no_grad()
def order(network: networks.ICVF, held: networks.Moments, seed: int) -> float:
    """Kendall's tau of V(s, z, z) and minus the steps from s to z, a later moment of the same sequence."""
    from scipy.stats import kendalltau

    rng = np.random.default_rng([seed, MEASURED])
    now = held.draw(WAYS, rng).now
    later = rng.integers(now + 1, held.last[now] + 1)
    value = network(held.rows[now], held.rows[later], held.rows[later]).numpy()
    return float(kendalltau(value, now - later).statistic)
