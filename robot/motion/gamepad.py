"""A gamepad as an emergency stop and as a dead man. Needs pygame."""

from __future__ import annotations

import os
import warnings
from typing import Any

from vlrl.types import UserError


class Gamepad:
    """The first gamepad that is plugged in.

    Raises:
        UserError: pygame is not installed, or there is no gamepad.
    """

    def __init__(self) -> None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # it needs no screen
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pygame's own, of its build
                import pygame
        except ImportError:
            raise UserError("safety: a gamepad needs pygame: pip install pygame") from None
        self._pygame: Any = pygame
        pygame.display.init()
        pygame.joystick.init()
        if not pygame.joystick.get_count():
            self.close()
            raise UserError("safety: no gamepad is plugged in")
        self._pad = pygame.joystick.Joystick(0)
        self.pressed: set[int] = set()  # buttons, ever

    def look(self) -> bool:
        """Takes in what happened; False once the gamepad is gone."""
        for event in self._pygame.event.get((self._pygame.JOYBUTTONDOWN, self._pygame.JOYDEVICEREMOVED)):
            if event.type == self._pygame.JOYBUTTONDOWN:
                self.pressed.add(event.button)
        return self._pygame.joystick.get_count() > 0

    def down(self, button: int) -> bool:
        """Whether a button is held down now."""
        return self.look() and 0 <= button < self._pad.get_numbuttons() and bool(self._pad.get_button(button))

    def close(self) -> None:
        self._pygame.joystick.quit()
        self._pygame.display.quit()


class PadStop:
    """A button of the gamepad; a gamepad that is unplugged counts as pressed."""

    def __init__(self, pad: Gamepad, button: int):
        self._pad, self._button, self._cause = pad, button, ""

    def pressed(self) -> str:
        if not self._cause:
            gone = not self._pad.look()
            down = self._button in self._pad.pressed
            self._cause = "the gamepad is gone" if gone else f"button {self._button} of the gamepad" if down else ""
        return self._cause

    def close(self) -> None:
        self._pad.close()
