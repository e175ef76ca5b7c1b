"""A server of OpenEnv: a number to find, told by text, a picture and numbers; it can fail."""

from __future__ import annotations

import os
from random import Random

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Told(Observation):
    hint: str
    pixels: list[list[list[int]]]
    tries: int = 0
    found: bool = False


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, limit=9, **options):
        if limit < 1:
            raise ValueError("no such limit")
        self.number, self.tries = Random(seed).randint(0, limit), 0
        return self.tell("from 0 to 9")

    def step(self, action, timeout_s=None, **options):
        if action.number == 66:
            raise RuntimeError("the game is broken")
        if action.number == 77:
            os._exit(3)
        self.tries += 1
        if action.number == self.number:
            return self.tell("found", found=True, done=True, reward=1.0)
        return self.tell("more" if action.number < self.number else "less", reward=-0.1)

    def tell(self, hint, **more):
        return Told(hint=hint, pixels=[[[self.number, 0, 0]] * 8] * 8, tries=self.tries, **more)

    @property
    def state(self):
        return State(step_count=self.tries)


app = create_fastapi_app(Game, Guess, Told, max_concurrent_envs=4)
