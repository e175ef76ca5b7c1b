"""Meta-World's fifty tasks: what a policy is told, and how an environment of one is made and started."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import numpy as np

from robot.simulation import load_mujoco
from vlrl.types import UserError

INSTRUCTIONS = {
    "assembly-v3": "Pick up the nut and put it onto the peg.",
    "basketball-v3": "Throw the ball into the basket.",
    "bin-picking-v3": "Take the cube from one bin and put it into the other.",
    "box-close-v3": "Put the lid onto the box.",
    "button-press-topdown-v3": "Press the button from above.",
    "button-press-topdown-wall-v3": "Reach over the wall and press the button from above.",
    "button-press-v3": "Press the button.",
    "button-press-wall-v3": "Reach over the wall and press the button.",
    "coffee-button-v3": "Press the button of the coffee machine.",
    "coffee-pull-v3": "Pull the mug away from the coffee machine.",
    "coffee-push-v3": "Push the mug under the coffee machine.",
    "dial-turn-v3": "Turn the dial by half a turn.",
    "disassemble-v3": "Pick the nut off the peg.",
    "door-close-v3": "Close the door.",
    "door-lock-v3": "Lock the door.",
    "door-open-v3": "Open the door.",
    "door-unlock-v3": "Unlock the door.",
    "hand-insert-v3": "Put the block into the hole.",
    "drawer-close-v3": "Close the drawer.",
    "drawer-open-v3": "Open the drawer.",
    "faucet-open-v3": "Turn the faucet on.",
    "faucet-close-v3": "Turn the faucet off.",
    "hammer-v3": "Hammer the nail into the wall.",
    "handle-press-side-v3": "Press the handle down from the side.",
    "handle-press-v3": "Press the handle down.",
    "handle-pull-side-v3": "Pull the handle up from the side.",
    "handle-pull-v3": "Pull the handle up.",
    "lever-pull-v3": "Pull the lever up.",
    "pick-place-wall-v3": "Pick up the puck and bring it over the wall to the goal.",
    "pick-out-of-hole-v3": "Pick the puck out of the hole and bring it to the goal.",
    "pick-place-v3": "Pick up the puck and bring it to the goal.",
    "plate-slide-v3": "Slide the plate into the cabinet.",
    "plate-slide-side-v3": "Slide the plate sideways into the cabinet.",
    "plate-slide-back-v3": "Slide the plate out of the cabinet.",
    "plate-slide-back-side-v3": "Slide the plate sideways out of the cabinet.",
    "peg-insert-side-v3": "Put the peg into the hole from the side.",
    "peg-unplug-side-v3": "Pull the peg out of the hole.",
    "soccer-v3": "Kick the ball into the goal.",
    "stick-push-v3": "Take the stick and push the thermos with it.",
    "stick-pull-v3": "Take the stick and pull the thermos with it.",
    "push-v3": "Push the puck to the goal.",
    "push-wall-v3": "Push the puck past the wall to the goal.",
    "push-back-v3": "Pull the block back to the goal.",
    "reach-v3": "Reach for the goal.",
    "reach-wall-v3": "Reach past the wall for the goal.",
    "shelf-place-v3": "Put the block onto the shelf.",
    "sweep-into-v3": "Sweep the block into the hole.",
    "sweep-v3": "Sweep the block off the table.",
    "window-open-v3": "Open the window.",
    "window-close-v3": "Close the window.",
}


def load_metaworld() -> ModuleType:
    """Raises UserError: it is not installed."""
    load_mujoco()  # first: it settles how MuJoCo renders
    try:
        import metaworld
    except ImportError as error:
        raise UserError(f"robot: needs Meta-World ({error}): pip install 'vlrl[sims]'") from error
    return metaworld


def make(task: str) -> tuple[Any, Any]:
    """An environment of a task that shows its goal and never ends by itself, and Meta-World's script for it.

    Raises:
        UserError: Meta-World is missing or does not know the task.
    """
    metaworld = load_metaworld()
    if task not in INSTRUCTIONS:
        near = get_close_matches(task, INSTRUCTIONS, 1, 0)
        raise UserError(f"robot.task: unknown task {task!r}: did you mean {near[0]!r}?")
    from metaworld.policies import ENV_POLICY_MAP

    env = metaworld.ALL_V3_ENVIRONMENTS[task]()
    # what `set_task` would set, less the pickled scene that it takes
    env._set_task_called, env._freeze_rand_vec, env.seeded_rand_vec = True, False, True
    env._partially_observable = False
    del env.sawyer_observation_space  # remembered from when the goal was hidden: it would hold the goal at zero
    env.max_path_length = sys.maxsize
    return env, ENV_POLICY_MAP[task]()


def start(env: Any, seed: int) -> np.ndarray:
    """Makes the scene of a seed; its observation, float64 [39]."""
    env.seed(seed)
    return env.reset()[0]
