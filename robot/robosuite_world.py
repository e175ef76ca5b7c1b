"""robosuite's environments: starting them from a seed, and one tick of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from robot.robosuite_globals import drawing
from robot.simulation import check_stable


def start(env: Any, seed: int, timestep: float) -> None:
    """Builds the scene of a seed anew, whatever came before."""
    with drawing(seed, timestep):
        for generator in _generators(env):  # written, not replaced: samplers share it
            generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        env.sim = None  # else robosuite collects garbage, which takes longer than all the rest
        env.reset()
    settle(env)


def tick(env: Any, action: np.ndarray, substeps: int) -> float:
    """One control of `env.step`, less its observations, which nobody may ask for. The reward.

    Raises:
        RobotError: positions, speeds or forces that are not finite or have grown huge.
    """
    env.timestep += 1
    for substep in range(substeps):
        env.sim.step1()
        env._pre_action(action, policy_step=substep == 0)
        env.sim.step2()
    env.cur_time += env.control_timestep
    settle(env)
    check_stable(env.sim.data._data)
    return float(env._post_action(action)[0])


def settle(env: Any) -> None:
    """Brings what MuJoCo derives up to the state, which it leaves as it is, the solver's warm start included."""
    data = env.sim.data._data
    warm = data.qacc_warmstart.copy()
    env.sim.forward()
    data.qacc_warmstart[:] = warm


def _generators(env: Any) -> Iterator[np.random.Generator]:
    sampler = getattr(env, "placement_initializer", None)
    for each in (env, sampler, *getattr(sampler, "samplers", {}).values()):
        if isinstance(rng := getattr(each, "rng", None), np.random.Generator):
            yield rng
