"""robosuite 1.4.0, which LIBERO takes, in an interpreter of its own: its environment, and Lift as `remote` makes it.

task.robot={name: remote, python: ..., make: "bench/bridge/robosuite14.py:make", images: [render]}. Imported by both
interpreters, so without any package at first.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON = "3.11"  # mujoco 2.3.7 has none newer
PACKAGES = ("robosuite==1.4.0", "mujoco==2.3.7", "numpy==1.26.4", "termcolor==3.2.0")  # it forgets to ask for the last
STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object-state")


def python() -> str:
    """Its interpreter, in the cache folder; made there by uv where there is none: 20 s with the packages at hand."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "vlrl" / "bench" / "robosuite-1.4.0"
    path, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            raise SystemExit("robosuite 1.4 needs uv: pip install uv")
        print(f"installing robosuite 1.4.0 into {folder}", file=sys.stderr)
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", PYTHON, folder], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", path, *PACKAGES], check=True)
        done.touch()
    return str(path)


class Lift:
    """A Panda under OSC_POSITION lifts a cube, at 20 Hz; steps of the hand are told as -1 to 1."""

    instruction = "Pick up the cube."
    action_names, action_units = ("x", "y", "z", "grip"), ("1",) * 4
    control_freq = 20

    def __init__(self, camera, size, shaped):
        import robosuite
        from robosuite.controllers import load_controller_config

        self.env = robosuite.make(
            "Lift", robots="Panda", controller_configs=load_controller_config(default_controller="OSC_POSITION"),
            has_renderer=False, has_offscreen_renderer=True, use_camera_obs=False, control_freq=self.control_freq,
            ignore_done=True, reward_shaping=shaped,
        )  # fmt: skip
        self.action_spec, self.camera, self.size = self.env.action_spec, camera, size

    def reset(self):
        """Draws the scene from numpy's generator, which the host seeds."""
        return self.env.reset()

    def step(self, action):
        observation, reward, done, info = self.env.step(action)
        return observation, reward, done, {**info, "is_success": self.env._check_success()}

    def render(self):
        """When it is looked at, and not at each tick."""
        width, height = self.size
        return self.env.sim.render(camera_name=self.camera, width=width, height=height)[::-1]

    def close(self):
        self.env.close()


def make(camera="agentview", size=(64, 64), shaped=False):
    return Lift(camera, size, shaped)
