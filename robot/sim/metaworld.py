"""Meta-World's 50 tasks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from robot.sim.tabletop import Camera, check_stable, load_mujoco, put_state, state_of
from robot.types import ActionSpec, Robot, RobotError, RobotStatus, Snapshot
from vlrl.types import Observation, UserError

# What a Meta-World environment remembers beside MuJoCo's state: marks of its reward, the last observation.


def remember(env: Any) -> dict[str, np.ndarray]:
    """Everything that `recall` needs."""
    return {f"env.{name}": np.array(value) for name, value in vars(env).items() if _kept(value) and value is not None}


def recall(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts back what `remember` gave, for an environment of the same task and scene."""
    for name, value in list(vars(env).items()):
        if _kept(value):
            then = arrays.get(f"env.{name}")
            setattr(env, name, None if then is None else then.copy() if then.ndim else then.item())


def _kept(value: Any) -> bool:
    """Not arrays that show a part of others: these are MuJoCo's own, or stay as they are within a scene."""
    plain = value is None or isinstance(value, bool | int | float | np.bool_ | np.number)
    return plain or (isinstance(value, np.ndarray) and value.base is None)


# Meta-World's fifty tasks: what a policy is told, and how an environment of one is made and started.

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


def make_metaworld_env(task: str) -> tuple[Any, Any]:
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


# Meta-World's fifty tasks as a `robot.types.Robot`, with the scripts that come with them. Needs `vlrl[sims]`.
#
# Yu et al., Meta-World, arXiv:1910.10897; McLean et al., Meta-World+, arXiv:2505.11289; Farama-Foundation/Metaworld.

STEP = 0.01  # metres a tick
CAMERAS = ("topview", "corner", "corner2", "corner3", "behindGripper", "gripperPOV")
HANGING = ("corner", "corner2", "corner3")  # upside down
TOLD = ("near_object", "grasp_success", "grasp_reward", "in_place_reward", "obj_to_target", "unscaled_reward")
THING = ("x", "y", "z", "qx", "qy", "qz", "qw")
NOW = ("hand.x", "hand.y", "hand.z", "opening", *(f"thing{number}.{part}" for number in (1, 2) for part in THING))
NAMES = (*NOW, *(f"before.{name}" for name in NOW), "goal.x", "goal.y", "goal.z")


class MetaWorldRobot(Robot):
    """A Sawyer hand at one task of Meta-World (`robot.types.Robot`), at 80 Hz.

    A control is a step of the hand, x, y, z in metres, and the force of the fingers: above 0 they close, below they
    open. The state is float32 [39], `names` says what each number is: hand, opening (0 to 1), two things' positions and
    quaternions (0 where there is one thing), the same a tick earlier, and the goal, which is shown. Pictures come
    before the instruction, are drawn when looked at and upright, also from the three cameras that hang upside down. A
    scene is where the things and the goal are. Success is Meta-World's own.

    Args:
        task: one of the fifty, such as `reach-v3`, `pick-place-v3`, `door-open-v3`.
        cameras: of topview, corner, corner2, corner3, behindGripper, gripperPOV.
        size: width and height of the pictures in pixels.
        shaped: reward as Meta-World shapes it, 0 to 10 a tick; else 1 for success.

    Raises:
        UserError: Meta-World is missing, or does not know what is asked for.
    """

    def __init__(
        self,
        *,
        task: str = "reach-v3",
        cameras: Sequence[str] = (),
        size: Sequence[int] = (64, 64),
        shaped: bool = False,
    ):
        unknown = [name for name in cameras if name not in CAMERAS]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(CAMERAS)}")
        if not (len(size) == 2 and all(8 <= side <= 1024 for side in size)):
            raise UserError(f"robot.size: {size!r}: must be a width and a height of 8 to 1024 pixels")
        self._env, self._script = make_metaworld_env(task)
        self.task, self.names, self.hz = task, NAMES, float(round(1 / self._env.dt))
        limits = np.array([STEP, STEP, STEP, 1])
        self.controls = ActionSpec(("x", "y", "z", "grip"), ("m", "m", "m", "1"), -limits, limits)
        self._cameras: tuple[Camera, ...] = ()  # made when first needed
        self._looks, self._size, self._shaped = tuple(cameras), (size[0], size[1]), shaped
        self._seed: int | None = None

    def reset(self, seed: int) -> None:
        self._observation = start(self._env, seed)
        self._seed, self._outcome = seed, np.zeros(2 + len(TOLD))  # success, reward and what else is told

    def get_observation(self) -> Observation:
        self._require_reset()
        return Observation((*self._pictures(), INSTRUCTIONS[self.task]), self._observation.astype(np.float32))

    def expert(self) -> np.ndarray:
        """What Meta-World's script would do now, float32 [4], within the limits. It has no memory."""
        self._require_reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that its steps are longer than may be: they are cut here
            control = np.asarray(
                self._script.get_action(self._observation.copy()), np.float64
            )  # some write into what they see
        return self.controls.checked((control * (STEP, STEP, STEP, 1)).clip(self.controls.low, self.controls.high))

    def send_action(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._require_reset()
        self._observation, reward, _, _, info = self._env.step(control.astype(np.float64) / (STEP, STEP, STEP, 1))
        check_stable(self._env.data)
        self._outcome = np.array([info["success"], reward, *(info[name] for name in TOLD)], np.float64)
        return control

    def status(self) -> RobotStatus:
        self._require_reset()
        won, reward, *numbers = self._outcome.tolist()
        return RobotStatus(bool(won), reward if self._shaped else won, numbers=dict(zip(TOLD, numbers, strict=True)))

    def snapshot(self) -> Snapshot:
        self._require_reset()
        physics = state_of(self._env.model, self._env.data)
        return Snapshot(
            self._seed, {"physics": physics, "seen": self._observation, "told": self._outcome, **remember(self._env)}
        )

    def restore(self, snapshot: Snapshot) -> None:
        if self._seed != snapshot.seed:  # within a scene the model stays as it is
            self.reset(snapshot.seed)
        put_state(self._env.model, self._env.data, snapshot.arrays["physics"])
        self._observation, self._outcome = snapshot.arrays["seen"].copy(), snapshot.arrays["told"].copy()
        recall(self._env, snapshot.arrays)

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = ()

    def _require_reset(self) -> None:
        if self._seed is None:
            raise RobotError("home first")

    def _pictures(self) -> tuple[Image.Image, ...]:
        if self._looks and not self._cameras:
            self._cameras = tuple(Camera(self._env.model, name, self._size) for name in self._looks)
        taken = zip(self._looks, (camera.take(self._env.data) for camera in self._cameras), strict=True)
        return tuple(each.transpose(Image.Transpose.ROTATE_180) if name in HANGING else each for name, each in taken)
