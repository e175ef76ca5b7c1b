"""Any Gymnasium environment with actions of real numbers as a robot. Needs `gymnasium`: `pip install 'vlrl[sims]'`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from robot.gym_globals import Generators
from robot.gym_make import make, rate
from robot.gym_spaces import Numbers, chosen, controls_of, numbers_of, parts, picture
from robot.robot import RobotError, Signals
from vlrl.types import Observation, UserError

RENDER = "render"  # among `images`: what the environment itself draws


class GymRobot:
    """One environment that `gymnasium.make` makes (`robot.robot.Robot`); it has no snapshots.

    Controls are the environment's actions, float32 [A], within the limits of its space. The state is float32 [S],
    `names` says what each number is. Reward and the numbers of `info` are the environment's own. An episode that it
    terminates without success is a failure, one that it truncates is cut; its limit of steps is lifted, as episodes
    have their own. Scenes hang on the seed alone, also where it draws from the process' generators.

    Args:
        id: what `gymnasium.make` is given, such as `Pendulum-v1` or `my_module:MyEnv-v0`.
        options: named arguments for it.
        hz: ticks a second; none: the environment's `render_fps`.
        instruction: what a policy is told.
        state: parts of the observation that make up the state, such as `agent_pos`; none: all but the pictures.
        images: parts of the observation that are pictures, such as `pixels.top`, or `render` for `env.render()`, which
            draws when it is looked at and not at each tick.
        success: the number of `info` that says so, or the least reward of a tick; none: nothing counts as success.
        names: of the numbers of a control.
        units: of the same.

    Raises:
        UserError: gymnasium cannot make it, or it has no such parts, actions or numbers.
    """

    def __init__(
        self,
        *,
        id: str,
        options: Mapping[str, Any] | None = None,
        hz: float | None = None,
        instruction: str = "",
        state: Sequence[str] | None = None,
        images: Sequence[str] = (),
        success: str | float | None = "is_success",
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ):
        self.id, self._instruction, self._success = id, instruction, success
        drawn = {"render_mode": "rgb_array"} if RENDER in images else {}
        self._options = {"max_episode_steps": -1, **drawn, **(options or {})}
        self._generators, self._env = Generators(), None
        env = self._open()
        self.hz = rate(hz, env)
        self.controls = controls_of(env.action_space, id, names, units)
        known = list(parts(env.observation_space))
        self._drawn, taken = RENDER in images, [name for name in images if name != RENDER]
        self._images = chosen("images", taken, [each for each in known if each.is_image])
        self._numbers = Numbers(chosen("state", state, [each for each in known if not each.is_image]))
        self.names = self._numbers.names
        self._check_success()

    def home(self, seed: int) -> None:
        env = self._open()
        self._generators.seed(seed)
        with self._generators.lent():
            self._seen, _ = env.reset(seed=seed)
        self._signals = Signals()

    def observe(self) -> Observation:
        env, seen = self._begun(), self._seen
        return Observation((*self._pictures(env, seen), self._instruction), self._numbers.of(seen))

    def move(self, control: np.ndarray) -> np.ndarray:
        control, env = self.controls.checked(control), self._begun()
        control = self._within(env, control)
        with self._generators.lent():
            self._seen, reward, ended, cut, info = env.step(_action(env, control))
        self._signals = self._judge(float(reward), ended, cut, info)
        return control

    def signals(self) -> Signals:
        self._begun()
        return self._signals

    def close(self) -> None:
        """Closes the environment; `home` makes it anew."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _make(self) -> Any:
        """The environment; robots that need more than `gymnasium.make` add it here."""
        return make(self.id, self._options)

    def _within(self, env: Any, control: np.ndarray) -> np.ndarray:
        """What the body carries out of a control within the limits."""
        return control

    def _open(self) -> Any:
        if self._env is None:
            with self._generators.lent():
                self._env = self._make()
            self._seen: Any = None
            self._signals = Signals()
        return self._env

    def _begun(self) -> Any:
        if self._env is None or self._seen is None:
            raise RobotError("home first")
        return self._env

    def _pictures(self, env: Any, seen: Any) -> tuple[Image.Image, ...]:
        drawn = env.render() if self._drawn else ()
        drawn = drawn if isinstance(drawn, list | tuple) else (drawn,)
        return tuple(map(picture, (*(each.of(seen) for each in self._images), *drawn)))

    def _judge(self, reward: float, ended: bool, cut: bool, info: Mapping[str, Any]) -> Signals:
        named = isinstance(self._success, str)
        won = bool(info.get(self._success)) if named else self._success is not None and reward >= self._success
        lost = "the environment ended the episode" if ended and not won else None
        stopped = "the environment's own limit" if cut and not (won or lost) else None
        return Signals(won, reward, lost, stopped, numbers_of(info, self._success))

    def _check_success(self) -> None:
        """Tries one tick: a name that `info` never has would make every episode fail."""
        if not isinstance(self._success, str):
            return
        self.home(0)
        with self._generators.lent():
            info = self._open().step(_action(self._open(), (self.controls.low + self.controls.high) / 2))[4]
        self._seen = None
        if self._success not in info:
            known = ", ".join(map(str, info)) or "nothing"
            raise UserError(f"robot.success: {self.id} tells no {self._success!r}, but {known}; a least reward will do")


def _action(env: Any, control: np.ndarray) -> np.ndarray:
    return control.astype(env.action_space.dtype).reshape(env.action_space.shape)
