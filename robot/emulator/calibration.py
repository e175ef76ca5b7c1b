"""lerobot's calibration file of an emulated arm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.emulator.servo import Servo
from vlrl.types import UserError


def calibration(servos: Sequence[Servo]) -> dict[str, dict[str, int]]:
    """By joint what lerobot's `MotorCalibration` holds; positions in steps."""
    return {
        servo.name: {
            "id": number,
            "drive_mode": 0,
            "homing_offset": servo.encoder.mount,
            "range_min": servo.encoder.range[0],
            "range_max": servo.encoder.range[1],
        }
        for number, servo in enumerate(servos, 1)
    }


def write_calibration(folder: Path, name: str, calibration: Mapping[str, Any]) -> Path:
    """lerobot's calibration file of an arm by its id.

    Raises:
        UserError: it cannot be written.
    """
    file = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(calibration, indent=4), encoding="utf-8")
    except OSError as error:
        raise UserError(f"calibration: cannot write {file}: {error.strerror}") from None
    return file
