"""Robots of robosuite 1.5: its tasks, arms and controllers as a `robot.robot.Simulator`. Needs `vlrl[sim]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from robot.robosuite_controls import units_of
from robot.robosuite_experts import adapted, expert
from robot.robosuite_make import INSTRUCTIONS, make
from robot.robosuite_memory import recall, remember
from robot.robosuite_pictures import Pictures
from robot.robosuite_world import settle, start, tick
from robot.robot import RobotError, Signals, Snapshot
from robot.simulation import put_state, state_of
from vlrl.types import Observation, UserError

VIEW = "agentview"  # a camera of all its scenes
PROPRIO = ("eef_pos", "eef_quat", "gripper_qpos")  # with the objects, what robomimic's policies see


class RobosuiteRobot:
    """One robosuite task with its arms (`robot.robot.Simulator`). docs/robosuite.md lists tasks, states and speeds.

    Controls are what the arm's controller is told, in physical units per tick (docs/robosuite.md); a gripper's is 1 to
    close, -1 to open, 0 to hold. The state is float32 [S], `names` says what each number is: by default the hand's
    position and quaternion (x, y, z, w), the fingers, and what the task says of its objects, in metres and radians.
    Unlike robosuite's own observations, which are a tick old, it is of the moment. Images come before the instruction;
    what is not looked at is not rendered. Every draw is made at home, so a snapshot holds no generator.

    Args:
        task: a name robosuite knows: Lift, Stack, PickPlaceCan, Door, NutAssemblySquare, TwoArmLift, ...
        robot: an arm (Panda, Sawyer, UR5e, IIWA, Kinova3, Jaco, ...), or one for each that the task needs.
        controller: OSC_POSE, OSC_POSITION, IK_POSE, JOINT_POSITION, JOINT_VELOCITY or JOINT_TORQUE; none: its own.
        cameras: names of the scene's cameras: agentview, frontview, robot0_eye_in_hand, ...
        size: width and height of the pictures in pixels.
        hz: ticks a second; a tick is a whole number of physics steps.
        timestep: seconds of one physics step. 0.005 is twice as fast as robosuite's 0.002, and another simulation.
        state: names of robosuite's observables that make up the state; none: as said above.
        shaped: reward as robosuite shapes it; else its sparse one, 1 for success where there is one thing to do.

    Raises:
        UserError: robosuite is missing, or does not know or cannot make what is asked for.
    """

    def __init__(
        self,
        *,
        task: str = "Lift",
        robot: str | Sequence[str] = "Panda",
        controller: str | None = None,
        cameras: Sequence[str] = (),
        size: Sequence[int] = (64, 64),
        hz: float = 20,
        timestep: float = 0.002,
        state: Sequence[str] | None = None,
        shaped: bool = False,
    ):
        self._substeps = round(1 / (hz * timestep)) if hz > 0 and timestep > 0 else 0
        if self._substeps < 1 or abs(self._substeps * hz * timestep - 1) > 1e-6:
            raise UserError(f"robot.hz: {hz}: a tick must be a whole number of physics steps of {timestep} s")
        robots = (robot,) if isinstance(robot, str) else tuple(robot)
        self.task, self.hz, self._timestep = task, float(hz), timestep
        self._env = make(task, robots, controller, hz, timestep, shaped)
        start(self._env, 0, timestep)  # before it, robosuite does not know which objects it shows
        self._units = units_of(self._env.robots)
        self.controls = self._units.controls
        self._chosen = _chosen(self._env, state)
        self.names = _names(self._env, self._chosen)
        self._pictures = Pictures(self._env.sim.model._model, tuple(cameras), tuple(size))
        self._views: dict[tuple[int, int], Pictures] = {}  # for videos, by size, made when first needed
        self._script: Callable[[np.ndarray], np.ndarray] | None = None  # made when first needed
        self._seed: int | None = None
        self._reward = 0.0

    def home(self, seed: int) -> None:
        start(self._env, seed, self._timestep)
        self._seed, self._reward = seed, 0.0

    def observe(self) -> Observation:
        sim = self._begun()
        images = self._pictures.take(sim.model._model, sim.data._data)
        return Observation((*images, INSTRUCTIONS[self.task]), self._state())

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The scene in `agentview`, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        sim = self._begun()
        if size not in self._views:
            self._views[size] = Pictures(sim.model._model, (VIEW,), size)
        return self._views[size].take(sim.model._model, sim.data._data)[0]

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [A], within the limits (`robot.robosuite_experts`).

        Raises:
            UserError: there is no script for the task, or the state does not show what it must see.
        """
        if self._script is None:
            self._script = expert(self.task, self.names)
        return adapted(self.controls, self._script(self._state()))

    def _state(self) -> np.ndarray:
        self._begun()
        seen = _seen(self._env)
        return np.concatenate([np.atleast_1d(seen[name]) for name in self._chosen]).astype(np.float32)

    def move(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._begun()
        self._reward = tick(self._env, self._units.normalised(control), self._substeps)
        return control

    def signals(self) -> Signals:
        self._begun()
        return Signals(bool(self._env._check_success()), self._reward)

    def snapshot(self) -> Snapshot:
        sim = self._begun()
        physics = state_of(sim.model._model, sim.data._data)
        return Snapshot(self._seed, {"physics": physics, "reward": np.array(self._reward), **remember(self._env)})

    def restore(self, snapshot: Snapshot) -> None:
        if self._seed != snapshot.seed:  # within a scene the model stays as it is
            self.home(snapshot.seed)
        sim = self._begun()
        put_state(sim.model._model, sim.data._data, snapshot.arrays["physics"])
        recall(self._env, snapshot.arrays)
        self._reward = float(snapshot.arrays["reward"])
        settle(self._env)

    def close(self) -> None:
        for pictures in (self._pictures, *self._views.values()):
            pictures.close()
        self._views.clear()

    def _begun(self):
        """The simulation."""
        if self._seed is None:
            raise RobotError("home first")
        return self._env.sim


def _seen(env) -> dict[str, np.ndarray]:
    """Every observable as it is now. They read each other's values from a cache, some before these are there."""
    env._update_observables(force=True)
    return env._get_observations(force_update=True)


def _chosen(env, state: Sequence[str] | None) -> tuple[str, ...]:
    known = [name for name, each in env._observables.items() if each.is_enabled() and each.is_active()]
    if state is None:
        objects = [name for name in known if env._observables[name].modality == "object"]
        return tuple([name for name in known if name.endswith(PROPRIO) and name not in objects] + objects)
    unknown = [name for name in state if name not in known]
    if unknown or not state:
        raise UserError(f"robot.state: {unknown or 'nothing'}: must be of {', '.join(known)}")
    return tuple(state)


def _names(env, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """A name for each number of the state: the observable's and its index."""
    seen = _seen(env)
    sizes = {name: np.atleast_1d(seen[name]).size for name in chosen}
    return tuple(f"{name}.{index}" if size > 1 else name for name, size in sizes.items() for index in range(size))
