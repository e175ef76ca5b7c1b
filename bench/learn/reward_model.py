"""How well a reward model tells success from near misses (docs/hil.md).

    python bench/learn.py reward_model [--episodes 160] [--seeds 3] [--out runs/reward_bench]

The simulated SO-101 touches a disc in half of the episodes; in the others the same script goes to a place 3 to 8 cm
beside it, or above it, and stays there. The model sees 64 x 64 pictures from above and from the front.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch

from robot.demos import SEEDS, unfinished
from robot.sim.so101 import So101, expert
from vlrl.imitation.reward_classifier import RewardClassifierLearner, RewardConfig, reward_report_text
from vlrl.runner import Runner

TICKS = 60  # of a failure: 2 s


def beside(goal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A place that is not the disc, but near it."""
    way = rng.normal(size=3) * (1, 1, 0.5)
    way[2] = abs(way[2])
    return goal + way / np.linalg.norm(way) * rng.uniform(0.03, 0.08)


def play(robot: So101, scene: int, miss: bool):
    """(observation, control, success) of each tick."""
    rng = np.random.default_rng(scene)
    robot.reset(scene)
    goal = np.array(robot._scene.goal)  # the disc itself
    aim = beside(goal, rng) if miss else goal
    for _ in range(TICKS):
        robot._thought.qpos[:] = robot.data.qpos
        shown, control = robot.get_observation(), robot.controls.checked(expert(robot.model, robot._thought, aim))
        robot.send_action(control)
        done = robot.status().success
        yield shown, control, done
        if done:
            return


def record(out: Path, robot: So101, episodes: int) -> None:
    """Half successes, half near misses."""
    from datasets import disable_progress_bars
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    disable_progress_bars()
    numbers = {"dtype": "float32", "names": list(robot.names), "shape": (len(robot.names),)}
    controls = {"dtype": "float32", "names": list(robot.controls.names), "shape": (len(robot.controls),)}
    picture = {"dtype": "image", "shape": (64, 64, 3), "names": ["height", "width", "channels"]}
    columns = {"observation.state": numbers, "observation.images.top": picture, "observation.images.front": picture,
               "action": controls, "next.success": {"dtype": "bool", "shape": (1,), "names": None}}  # fmt: skip
    with unfinished(out) as folder:
        made = LeRobotDataset.create(f"local/{out.name}", round(robot.hz), columns, root=folder, use_videos=False)
        for number, scene in enumerate(SEEDS["train"][:episodes]):
            for shown, control, done in play(robot, scene, miss=bool(number % 2)):
                top, front = (np.asarray(image) for image in shown.images)
                made.add_frame({"observation.state": shown.state, "observation.images.top": top, "action": control,
                                "observation.images.front": front, "next.success": np.array([done]),
                                "task": shown.text})  # fmt: skip
            made.save_episode()
        made.finalize()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--episodes", type=int, default=160)
    arguments.add_argument("--seeds", type=int, default=3, help="of the split and the training")
    arguments.add_argument("--out", default="runs/reward_bench")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    folder = Path(arguments.out)
    if not (folder / "recorded").exists():
        shutil.rmtree(folder, ignore_errors=True)
        record(folder / "recorded", So101(camera=[64, 64], views=("top", "front")), arguments.episodes)
    for seed in range(arguments.seeds):
        config = RewardConfig(out=str(folder / str(seed)), datasets=[str(folder / "recorded")], seed=seed)
        learner = RewardClassifierLearner(config)
        Runner(config, learner).run()
        told = learner.reported
        print(
            f"seed {seed}: {told['episodes']} episodes, {told['failures']} failures; {reward_report_text(told)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
