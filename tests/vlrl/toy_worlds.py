"""Environments of Gymnasium and OpenEnv, each with a process of its own: text is echoed, its digits are paid."""

import os
import subprocess
from random import Random

from toy_points import die_once


def count_digits(text):
    return sum(map(str.isdigit, text)) / 10


try:
    import gymnasium
    from gymnasium.spaces import Text
except ImportError:
    pass
else:

    class Echo(gymnasium.Env):
        """Shows a number, then what another process echoes."""

        observation_space, action_space = Text(99), Text(999, charset=frozenset(map(chr, range(32, 1000))))

        def __init__(self):
            self.cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return str(self.np_random.integers(1000)), {}

        def step(self, action):
            die_once(self.cat.pid)
            self.cat.stdin.write(f"{action}\n".encode())
            if not (line := self.cat.stdout.readline()):
                raise ConnectionError("the simulator died")
            return line.decode().strip(), count_digits(action), False, False, {}

        def close(self):
            self.cat.stdin.close()
            self.cat.wait()
            self.cat.stdout.close()

    gymnasium.register("Echo-v0", Echo)

try:
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError:
    pass
else:

    class Say(Action):
        text: str

    class Heard(Observation):
        text: str

    class Room(Environment):
        """The same, served."""

        def reset(self, seed=None, episode_id=None, **options):
            return Heard(text=str(Random(seed).randint(0, 999)))

        def step(self, action, timeout_s=None, **options):
            die_once(os.getpid())
            return Heard(text=action.text, reward=count_digits(action.text))

        @property
        def state(self):
            return State()

    app = create_fastapi_app(Room, Say, Heard)
