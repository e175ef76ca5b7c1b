"""An advantage of one's own, and GRPO's beside it at equal rollouts.

python examples/own_method.py
"""

import vlrl
from vlrl.algorithms.advantages import group_means
from vlrl.methods import method

SMALL = {"train.steps": 12, "train.prompts_per_step": 8, "eval.every_steps": None, "eval.num_samples": 128}


@method
def hard_first(rollouts, advantage, *, hardness: float = 1.0):
    """The reward less its group's mean, counted the more the lower that mean is beside the step's best one. -> [B]"""
    means = group_means(rollouts.reward, rollouts.group)
    weight = 1 + hardness * (means.max() - means)
    return (weight * (rollouts.reward - means))[rollouts.episode]


def main() -> None:
    methods = {"grpo": {"name": "grpo", "std": "group"}, "own": {"name": "own_method:hard_first", "hardness": 2.0}}
    for name, advantage in methods.items():
        config = vlrl.load_config("gui_grounding", SMALL, {"advantages": [advantage], "out": f"runs/{name}"})
        run = vlrl.train(config)
        after, silent = run.summary["after"], run.curve("zero_advantage")[1][-1]
        print(f"{name}: held out {after['value']:.2f} [{after['low']:.2f}, {after['high']:.2f}], {silent:.0%} silent")


if __name__ == "__main__":
    main()
