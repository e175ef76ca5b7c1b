"""What a person's corrections teach a policy, beside as many plain demonstrations (docs/hil.md).

    python bench/learn.py hil [--seeds 3] [--rounds 4] [--episodes 10] [--out runs/hil_bench] [--json FILE]

A policy imitates a few demonstrations of pushing a cube onto a disc. Then, round by round, a scripted person watches it
play new scenes, takes over when it goes wrong or gets stuck, and gives back; `vlrl.imitation` goes on training it. The
other arm gets the person's demonstrations of the same scenes instead. Both take equal optimizer steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from robot.demos import SEEDS, unfinished
from robot.sim.tabletop import Tabletop
from robot.types import ActionSpec
from vlrl.imitation import behaviour_cloning
from vlrl.imitation.dagger import DaggerLearner, LearnConfig
from vlrl.imitation.datasets import PERSON, POLICY, draw_batches, imitate
from vlrl.policies.discrete import ControlPolicy
from vlrl.types import Episode, Observation, Sample, wilson

TICKS = 160
SIZES = {"hidden": 256, "layers": 3, "bins": 21, "chunk": 8}
SAMPLE = Sample("bench", Observation(("",)))


@dataclass
class Person:
    """Takes over when for half a second the policy does something else than the script, or hardly moves for two.

    Gives back after four seconds.
    """

    controls: ActionSpec
    gaps: list[float] = field(default_factory=list)
    teleop_device: list[np.ndarray] = field(default_factory=list)
    left: int = 0  # ticks for which it still drives

    SPAN, WRONG, WAITS, STILL, DRIVES = 10, 0.5, 40, 0.03, 80  # ticks, halves of the limits, ticks, metres, ticks

    def drives(self, state: np.ndarray, asked: np.ndarray, right: np.ndarray) -> bool:
        """Told of each tick: what is seen, what the policy asks for and what the person would do."""
        if self.left:
            self.left -= 1
            if not self.left:
                self.gaps, self.teleop_device = [], []
            return self.left > 0
        half = (self.controls.high - self.controls.low) / 2
        self.gaps = [*self.gaps, float(np.abs((asked - right) / half).mean())][-self.SPAN :]
        self.teleop_device = [*self.teleop_device, state[:3]][-self.WAITS :]
        wrong = len(self.gaps) == self.SPAN and np.mean(self.gaps) > self.WRONG
        stuck = len(self.teleop_device) == self.WAITS and np.ptp(self.teleop_device, 0).max() < self.STILL
        self.left = self.DRIVES if wrong or stuck else 0
        return self.left > 0


@dataclass(frozen=True, eq=False)
class Frame:
    shown: Observation
    action: np.ndarray
    driver: int
    success: bool


def play(robot: Tabletop, scene: int, policy: ControlPolicy | None, person: Person | None) -> list[Frame]:
    """One episode by the policy, by the person, or by both."""
    robot.reset(scene)
    frames: list[Frame] = []
    plan: list[np.ndarray] = []
    while len(frames) < TICKS and not (frames and frames[-1].success):
        shown, right = robot.get_observation(), robot.expert()
        if policy is not None and not plan:
            plan = list(policy.act([Episode(SAMPLE, 0)], [shown], greedy=True)[0].action)
        by_hand = policy is None or (person is not None and person.drives(shown.state, plan[0], right))
        action = right if by_hand else plan.pop(0)
        plan = [] if by_hand else plan
        sent = robot.send_action(action)
        frames.append(Frame(shown, sent, PERSON if by_hand else POLICY, robot.status().success))
    return frames


def save(out: Path, robot: Tabletop, played: Iterable[list[Frame]]) -> None:
    """The episodes as `vlrl deploy` records them: a LeRobotDataset v3 that appears when it is whole."""
    from datasets import disable_progress_bars
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    disable_progress_bars()
    columns = {
        "observation.state": {"dtype": "float32", "shape": (len(robot.names),), "names": list(robot.names)},
        "action": {"dtype": "float32", "shape": (len(robot.controls),), "names": list(robot.controls.names)},
        "intervention": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    with unfinished(out) as folder:
        made = LeRobotDataset.create(f"local/{out.name}", round(robot.hz), columns, root=folder, use_videos=False)
        for frames in played:
            for frame in frames:
                made.add_frame({
                    "observation.state": frame.shown.state, "action": frame.action,
                    "intervention": np.array([frame.driver == PERSON]), "next.success": np.array([frame.success]),
                    "task": frame.shown.text,
                })  # fmt: skip
            made.save_episode()
        made.finalize()


def success(robot: Tabletop, policy: ControlPolicy, scenes: int) -> int:
    """Held-out scenes that the policy solves alone."""
    return sum(play(robot, scene, policy, None)[-1].success for scene in SEEDS["test"][:scenes])


def cloned(paths: list[Path], start: ControlPolicy | None, steps: int, lr: float, seed: int) -> ControlPolicy:
    """A policy that imitates these data sets, new or gone on with."""
    sources = behaviour_cloning.cloning_read([str(path) for path in paths])
    torch.manual_seed(seed)
    policy = start or behaviour_cloning.fresh(
        behaviour_cloning.shape_of(sources, Tabletop().controls, **SIZES), sources, seed
    )
    examples, chance = behaviour_cloning.imitated(policy, sources, [1.0] * len(sources))
    batches = draw_batches(examples, chance, steps=steps, size=256, rng=np.random.default_rng(seed))
    imitate(policy, batches, steps=steps, lr=lr)
    return policy


def start_of(folder: Path, robot: Tabletop, demos: int, seed: int) -> None:
    """The first demonstrations and the policy that imitates them."""
    scenes = SEEDS["train"][seed * 1000 :][:demos]
    save(folder / "demos", robot, (play(robot, scene, None, None) for scene in scenes))
    cloned([folder / "demos"], None, 500, 2e-3, seed).save(folder / "start")


def run(folder: Path, arguments: argparse.Namespace, seed: int) -> list[dict]:
    """One seed -> rows: arm, round, solved (of `scenes`), episodes and ticks that the person drove."""
    robot = Tabletop(job="push")
    shutil.rmtree(folder, ignore_errors=True)
    start_of(folder, robot, arguments.demos, seed)
    config = LearnConfig(
        out=str(folder / "learner"), start=str(folder / "start"), episodes=[str(folder / "played")],
        demonstrations=[str(folder / "demos")], steps=arguments.steps, seed=seed,
    )  # fmt: skip
    learner, plain = DaggerLearner(config), behaviour_cloning.started(str(folder / "start"), seed)
    learner.setup()
    rows = [{"seed": seed, "arm": "start", "round": 0, "solved": success(robot, plain, arguments.scenes), "driven": 0}]
    driven = {"corrections": 0, "demonstrations": 0}
    for number in range(1, arguments.rounds + 1):
        scenes = SEEDS["train"][seed * 1000 + 500 + (number - 1) * arguments.episodes :][: arguments.episodes]
        played = [play(robot, scene, learner.policy, Person(robot.controls)) for scene in scenes]
        save(folder / "played" / f"round_{number}", robot, played)
        learner.gather()
        told = learner.step(number - 1).metrics
        shown = [play(robot, scene, None, None) for scene in scenes]
        save(folder / "more" / f"round_{number}", robot, shown)
        sets = [folder / "demos", *sorted((folder / "more").iterdir())]
        plain = cloned(sets, plain, arguments.steps, config.lr, seed + number)
        for arm, policy, episodes in (("corrections", learner.policy, played), ("demonstrations", plain, shown)):
            driven[arm] += sum(frame.driver == PERSON for frames in episodes for frame in frames)
            if number % arguments.measure:
                continue
            solved = success(robot, policy, arguments.scenes)
            rows.append({"seed": seed, "arm": arm, "round": number, "solved": solved, "driven": driven[arm]})
            extra = f" alone {told['alone']:.2f}, person {told['person']:.0%}" if arm == "corrections" else ""
            print(rows[-1], extra, flush=True)
    return rows


def table(rows: list[dict], scenes: int, rounds: int) -> str:
    lines = [
        "| arm | round | solved, each seed | all, 95 % | ticks a person drove |",
        "| --- | --- | --- | --- | --- |",
    ]
    arms = ("corrections", "demonstrations")
    for arm, number in [("start", 0), *((arm, number) for number in range(1, rounds + 1) for arm in arms)]:
        mine = [row for row in rows if (row["arm"], row["round"]) == (arm, number)]
        if not mine:
            continue
        solved, n = sum(row["solved"] for row in mine), scenes * len(mine)
        low, high = wilson(solved, n)
        ticks = sum(row["driven"] for row in mine) / len(mine)
        each = ", ".join(str(row["solved"]) for row in mine)
        lines.append(f"| {arm} | {number} | {each} | {solved}/{n} [{low:.2f}, {high:.2f}] | {ticks:.0f} |")
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--episodes", type=int, default=10, help="of a round")
    arguments.add_argument("--demos", type=int, default=150, help="that the start imitates")
    arguments.add_argument("--steps", type=int, default=300, help="of the optimizer, a round")
    arguments.add_argument("--measure", type=int, default=2, metavar="N", help="success after every N rounds")
    arguments.add_argument("--scenes", type=int, default=100, help="held out")
    arguments.add_argument("--out", default="runs/hil_bench")
    arguments.add_argument("--json", metavar="FILE")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    rows = [row for seed in range(arguments.seeds) for row in run(Path(arguments.out) / str(seed), arguments, seed)]
    print(table(rows, arguments.scenes, arguments.rounds))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
