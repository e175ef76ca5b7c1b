"""How one episode of a trial is run: by `vlrl deploy` in a process of its own, or by the operator."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot.trial.config import Arm, Trial
from vlrl.decoders import load_json
from vlrl.system.children import end_with_owner
from vlrl.types import UserError

KEYS = "While it plays: SPACE emergency stop, s success, f failure; where nothing moves, Enter says that it may begin"
LOST = {4: "the robot or its bus was lost", 5: "the policy server was lost", 7: "the motion process died"}
STOPPED = {3: "the safety governor stopped the robot", 6: "emergency stop"}
LABELS = ("number", "seed")  # in a row of result.json: they measure nothing
REST_S = 60.0  # for a deployment whose owner was killed to make the robot safe
PAUSED = (130, 143, -2, -15)  # Ctrl-C or SIGTERM: the operator's, or the machine's


@dataclass(frozen=True)
class Outcome:
    """What came of an episode. `success` None: the operator is to say. `void`: the fault that made it say nothing."""

    success: bool | None
    void: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    said: str = ""  # for the operator; it must not tell which policy ran


Play = Callable[[Arm, str | int | None, int], Outcome]  # the policy, the start, the episode's number, from 1


def by_hand(arm: Arm, start: str | int | None, number: int) -> Outcome:
    """The operator runs the policy and says what came of it."""
    return Outcome(None)


def by_deploy(trial: Trial, folder: Path, deploy: Sequence[str] = (sys.executable, "-m", "vlrl.cli", "deploy")) -> Play:
    """`vlrl deploy` runs each episode; what it prints goes to a log, since it names the policy. The keys are its own
    while it plays.

    A lost robot or server makes an episode void. A stop by the governor or by hand does not, or unsafe policies would
    profit: the operator judges it.
    """

    def play(arm: Arm, start: str | int | None, number: int) -> Outcome:
        place = _fresh(folder, number)
        given = [*_overrides(trial, arm, start), f"out={place}"]
        return outcome(_run([*deploy, str(trial.deploy), *given], place / "log.txt"), place)

    return play


def check(trial: Trial) -> None:
    """Reads the deployment's YAML as it will be read for each policy and start: a mistake must not wait for its turn.

    Raises:
        UserError: a key is unknown or ill-typed, or two do not go together.
    """
    from robot.deploy.config import load

    for name, arm in trial.policies.items():
        try:
            load(str(trial.deploy), _overrides(trial, arm, None))
        except UserError as error:
            raise UserError(f"policies.{name}: {error}") from None


def _overrides(trial: Trial, arm: Arm, start: str | int | None) -> list[str]:
    seed = [f"seed={start}"] if isinstance(start, int) else []
    return ["view=none", *trial.changes, *arm.overrides, "episodes=1", *seed]


def outcome(code: int, place: Path) -> Outcome:
    """What an exit code of `vlrl deploy` and the `result.json` in its folder say.

    Raises:
        UserError: it could not begin. KeyboardInterrupt: it was interrupted.
    """
    if code in PAUSED:
        raise KeyboardInterrupt
    if code in LOST:
        return Outcome(None, void=LOST[code])
    if code in STOPPED:
        return Outcome(None, said=STOPPED[code])
    try:
        row = load_json(place / "result.json", finite=False)["episodes"][-1]
        if code == 0 and isinstance(row, Mapping):
            return _of(row)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        pass
    raise UserError(f"`vlrl deploy` ended with code {code} and no result: {place / 'log.txt'} says why (and names the "
                    "policy); the episode is void, go on with --resume")  # fmt: skip


def _run(command: Sequence[str], log: Path) -> int:
    """The exit code. Whatever ends the trial ends the deployment first, and waits until it has made the robot safe."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        end_with_owner(process.pid, notice=signal.SIGTERM, patience=REST_S)
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():  # a terminal sends Ctrl-C to both, and a second signal would hurry it
                process.terminate()
            process.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _of(row: Mapping[str, Any]) -> Outcome:
    numbers = {k: float(v) for k, v in row.items() if type(v) in (int, float) and k not in LABELS}
    success = row.get("success")
    return Outcome(success if isinstance(success, bool) else None, str(row.get("void") or ""), numbers)


def _fresh(folder: Path, number: int) -> Path:
    """A new folder for this try of the episode."""
    tries = len(list(folder.glob(f"episodes/{number:04d}_*"))) + 1
    place = folder / "episodes" / f"{number:04d}_{tries}"
    place.mkdir(parents=True)
    return place
