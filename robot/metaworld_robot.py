"""Meta-World's fifty tasks as a `robot.robot.Simulator`, with the scripts that come with them. Needs `vlrl[sims]`.

Yu et al., Meta-World, arXiv:1910.10897; McLean et al., Meta-World+, arXiv:2505.11289; Farama-Foundation/Metaworld.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from PIL import Image

from robot.controls import Controls
from robot.metaworld_memory import recall, remember
from robot.metaworld_tasks import INSTRUCTIONS, make, start
from robot.robot import RobotError, Signals, Snapshot
from robot.simulation import Camera, check_stable, put_state, state_of
from vlrl.types import Observation, UserError

STEP = 0.01  # metres a tick
CAMERAS = ("topview", "corner", "corner2", "corner3", "behindGripper", "gripperPOV")
HANGING = ("corner", "corner2", "corner3")  # upside down
TOLD = ("near_object", "grasp_success", "grasp_reward", "in_place_reward", "obj_to_target", "unscaled_reward")
THING = ("x", "y", "z", "qx", "qy", "qz", "qw")
NOW = ("hand.x", "hand.y", "hand.z", "opening", *(f"thing{number}.{part}" for number in (1, 2) for part in THING))
NAMES = (*NOW, *(f"before.{name}" for name in NOW), "goal.x", "goal.y", "goal.z")


class MetaWorldRobot:
    """A Sawyer hand at one task of Meta-World (`robot.robot.Simulator`), at 80 Hz.

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
        self._env, self._script = make(task)
        self.task, self.names, self.hz = task, NAMES, float(round(1 / self._env.dt))
        limits = np.array([STEP, STEP, STEP, 1])
        self.controls = Controls(("x", "y", "z", "grip"), ("m", "m", "m", "1"), -limits, limits)
        self._cameras: tuple[Camera, ...] = ()  # made when first needed
        self._looks, self._size, self._shaped = tuple(cameras), (size[0], size[1]), shaped
        self._seed: int | None = None

    def home(self, seed: int) -> None:
        self._seen = start(self._env, seed)
        self._seed, self._told = seed, np.zeros(2 + len(TOLD))  # success, reward and what else is told

    def observe(self) -> Observation:
        self._begun()
        return Observation((*self._pictures(), INSTRUCTIONS[self.task]), self._seen.astype(np.float32))

    def expert(self) -> np.ndarray:
        """What Meta-World's script would do now, float32 [4], within the limits. It has no memory."""
        self._begun()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that its steps are longer than may be: they are cut here
            asked = np.asarray(self._script.get_action(self._seen.copy()), np.float64)  # some write into what they see
        return self.controls.checked((asked * (STEP, STEP, STEP, 1)).clip(self.controls.low, self.controls.high))

    def move(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._begun()
        self._seen, reward, _, _, info = self._env.step(control.astype(np.float64) / (STEP, STEP, STEP, 1))
        check_stable(self._env.data)
        self._told = np.array([info["success"], reward, *(info[name] for name in TOLD)], np.float64)
        return control

    def signals(self) -> Signals:
        self._begun()
        won, reward, *numbers = self._told.tolist()
        return Signals(bool(won), reward if self._shaped else won, numbers=dict(zip(TOLD, numbers, strict=True)))

    def snapshot(self) -> Snapshot:
        self._begun()
        physics = state_of(self._env.model, self._env.data)
        return Snapshot(self._seed, {"physics": physics, "seen": self._seen, "told": self._told, **remember(self._env)})

    def restore(self, snapshot: Snapshot) -> None:
        if self._seed != snapshot.seed:  # within a scene the model stays as it is
            self.home(snapshot.seed)
        put_state(self._env.model, self._env.data, snapshot.arrays["physics"])
        self._seen, self._told = snapshot.arrays["seen"].copy(), snapshot.arrays["told"].copy()
        recall(self._env, snapshot.arrays)

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = ()

    def _begun(self) -> None:
        if self._seed is None:
            raise RobotError("home first")

    def _pictures(self) -> tuple[Image.Image, ...]:
        if self._looks and not self._cameras:
            self._cameras = tuple(Camera(self._env.model, name, self._size) for name in self._looks)
        taken = zip(self._looks, (camera.take(self._env.data) for camera in self._cameras), strict=True)
        return tuple(each.transpose(Image.Transpose.ROTATE_180) if name in HANGING else each for name, each in taken)
