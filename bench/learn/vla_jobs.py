"""The tasks and methods of `bench/learn.py vla`, and the command line of each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlrl.recipe_checks import load_config

ROOT = Path(__file__).parents[2]
SCENES = 100  # held out, the same for all


@dataclass(frozen=True)
class Subject:
    """A task. ticks: the budget; an episode has `typical` at the start, never fewer than `least` on average."""

    title: str
    config: str
    clone: str  # config of the policy that is started from
    residual: str  # that policy's name
    chunk: int
    ticks: int
    typical: int
    least: int
    pool: int  # scenes of the single-rollout recipe, each answered once before the first step
    demonstrations: dict[str, str]
    prompts: int | None = None  # episodes a step; None: as the recipes say
    looks: int = 10  # evaluations up to the budget
    flow: tuple[str, ...] = ()  # changes to `clone` for a flow
    dsrl: tuple[str, ...] = ()
    corrected: tuple[str, ...] = ()  # config of the residual learned off-policy, and changes to it


TASKS = {
    "push": Subject(
        "Pushing a cube, from the state", "manipulation", "embedded_flow", "embedded_push", 8, 160_000, 140, 60, 256,
        {"": "100, cloned", "rlpd": "20, no clone", "dsrl": "50, cloned as a flow; 20 given",
         "residual": "100, cloned; 20 given"},
        dsrl=("configs/studies/offpolicy_push_dsrl.yaml",), corrected=("configs/studies/offpolicy_push_residual.yaml",),
    ),
    "lift": Subject(
        "robosuite Lift, from the state", "manipulation_lift", "embedded_lift", "embedded_lift", 5, 24_000, 41, 20, 128,
        {"": "15, cloned", "rlpd": "15, no clone", "dsrl": "15, cloned as a flow; the same given",
         "residual": "15, cloned; the same given"},
        prompts=32,
        looks=5,  # a hundred episodes of robosuite are a fifth of the budget
        flow=("policy.kind=flow", "policy.chunk=5", "steps=600"),
        dsrl=("configs/studies/offpolicy_lift.yaml", "agent={name: dsrl_na, noise_steps: 2, lr: 7.0e-4, tau: 0.01}",
              "warmup_steps=2000"),
        corrected=("configs/studies/offpolicy_lift.yaml", "start=embedded_lift", "warmup_steps=1000",
                   "agent={name: residual, scale: 0.8, hold: 5, ramp: 2500, lr: 7.0e-4, tau: 0.01, imitation: 0.3}"),
    ),
}  # fmt: skip
METHODS = {  # recipe -> title
    "grpo": "GRPO", "mssr": "MSSR", "ppo": "PPO", "vla_rl": "VLA-RL", "vla_rl_process": "VLA-RL, process reward",
    "srpo_released": "SRPO as released", "srpo": "SRPO", "resip": "ResiP", "residual": "Residual SAC", "dsrl": "DSRL",
    "rlpd": "RLPD", "simple_vla_rl": "SimpleVLA-RL", "ript_vla": "RIPT-VLA", "tgrpo": "TGRPO",
    "grpo_kl": "GRPO with KL",
}  # fmt: skip
OPTIONAL = ("simple_vla_rl", "ript_vla", "tgrpo", "grpo_kl")
OFF_POLICY = ("dsrl", "rlpd", "residual")
RESIP = (  # a processor's few episodes, as the recipe says: its gamma is of a decision
    "train.update_epochs=10", "train.target_kl=0.05", "train.lr=1.0e-3",
    "advantages=[{name: gae, gamma: 0.996, lam: 0.95, bootstrap: false, clip: null, hidden: 64, critic_epochs: 40, "
    "warmup: 2}, {name: batch_norm, ddof: 1}]",
)  # fmt: skip
HELD = {"push": 4, "lift": 5}  # ticks of ResiP's corrections: they divide the clone's chunk


@dataclass(frozen=True)
class Job:
    folder: Path
    command: tuple[str, ...]
    chunk: int  # ticks of an action
    stop: float | None = None  # ticks; None: ends by itself


def chunk_of(task: str, method: str) -> int:
    return HELD[task] if method == "resip" else TASKS[task].chunk


def made(task: str, method: str, out: Path) -> Job | None:
    """What must be there before the method's runs, and its command."""
    subject, folder = TASKS[task], out / f"{task}_{method}_start"
    if method == "resip":
        return Job(
            folder,
            ("residual", subject.residual, "--out", str(folder), "--scale", "0.4", "--ticks", str(HELD[task])),
            0,
        )
    if method == "dsrl":
        return Job(folder, ("clone", subject.clone, *subject.flow, f"out={folder}"), 0)
    return None


def job(task: str, method: str, seed: int, budget: int, out: Path) -> Job:
    """One run up to the budget."""
    folder, start = out / f"{task}_{budget}" / f"{method}_{seed}", made(task, method, out)
    ends = ["task.workers=1", f"eval.num_samples={SCENES}", f"out={folder}", f"seed={seed}"]
    if method in OFF_POLICY:
        configs = {"dsrl": TASKS[task].dsrl, "residual": TASKS[task].corrected}
        config = configs.get(method, (f"offpolicy_{task}",))
        sizes = [f"ticks={budget}", f"eval.every_steps={budget // TASKS[task].looks}",
                 
                 f"log.checkpoint_every={budget // 2}", f"log.rollouts_every={budget}"]  # fmt: skip
        changed = [*config, *sizes, *([f"start={start.folder}"] if start else [])]
        return Job(folder, ("offpolicy", *changed, *ends), chunk_of(task, method))
    changed = [f"configs/{TASKS[task].config}.yaml", *on_policy(task, method)]
    changed += [f"policy.model={start.folder}"] if start else []
    return Job(folder, ("train", *changed, *sizes_of(task, changed, budget), *ends), chunk_of(task, method), budget)


def on_policy(task: str, method: str) -> list[str]:
    """What turns the task's config into the method."""
    recipe = [] if method == "grpo" else [f"configs/recipes/{'grpo' if method == 'grpo_kl' else method}.yaml"]
    extra = {"mssr": (f"sampler.limit={TASKS[task].pool}",), "resip": RESIP}
    return [*recipe, *extra.get(method, ())]


def sizes_of(task: str, changed: Sequence[str], budget: int) -> list[str]:
    """Prompts a step, more steps than the budget has, and about as many evaluations as looks."""
    subject, config = TASKS[task], load_config(ROOT / changed[0], [_there(change) for change in changed[1:]])
    train = config.train
    prompts = subject.prompts // train.group_size if subject.prompts else train.prompts_per_step
    rollouts = prompts * train.group_size
    played = rollouts * (2 if config.rollout_strategy.name == "filter_refill" else 1)  # about as many are left out
    every = max(1, round(budget / subject.looks / (played * subject.typical)))
    steps = math.ceil(budget / (rollouts * subject.least)) + every
    return [
        f"train.prompts_per_step={prompts}",
        f"train.steps={steps}",
        f"eval.every_steps={every}",
        "log.checkpoint_every=10",
    ]


def _there(change: str) -> str:
    """Recipe files from anywhere."""
    return change if "=" in change else str(ROOT / change)
