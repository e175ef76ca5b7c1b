"""Episodes by `vlrl deploy`: what is asked of it, and what its exit codes and results are taken for."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from small_trials import trial

from robot.trial.plan import TrialArm
from robot.trial.run import by_deploy, check_play
from vlrl.types import UserError

DEPLOY = """
import json, pathlib, sys
out = next(pathlib.Path(each.partition("=")[2]) for each in sys.argv if each.startswith("out="))
(out / "asked.json").write_text(json.dumps(sys.argv[1:]))
print("playing", *sys.argv)
result = RESULT
if result is not None:
    (out / "result.json").write_text(json.dumps(result))
sys.exit(CODE)
"""


def deployed(tmp_path, result, code, start=None):
    """An outcome of a program that stands for `vlrl deploy`, run as a real process."""
    program = tmp_path / "deploy.py"
    program.write_text(DEPLOY.replace("RESULT", repr(result)).replace("CODE", str(code)))
    run = by_deploy(trial("x", deploy="arm.yaml", changes=["seconds=5"]), tmp_path, (sys.executable, str(program)))
    return run(TrialArm(url="ws://secret:1", changes=["policy.mode=sync"]), start, 12)


def row(**known):
    return {"episodes": [known]}


def test_the_verdict_of_the_robot_is_taken(tmp_path, capfd):
    """Success and what was measured come from the deployment's own result, and nothing it prints unblinds."""
    outcome = deployed(
        tmp_path, row(number=0, seed=7, success=True, seconds=3.5, void="", outcome="success"), 0, start=7
    )
    assert outcome.success is True and outcome.numbers == {"seconds": 3.5} and not outcome.void
    assert capfd.readouterr() == ("", "")
    place = tmp_path / "episodes" / "0012_1"
    asked = json.loads((place / "asked.json").read_text())
    assert asked[:3] == ["arm.yaml", "view=none", "seconds=5"]
    assert {"policy.url=ws://secret:1", "policy.dir=null", "policy.mode=sync", "episodes=1", "seed=7"} < set(asked)
    assert "secret" in (place / "log.txt").read_text()


def test_each_try_has_its_own_folder(tmp_path):
    """The recording of a void episode must not be overwritten by its repetition."""
    for _ in range(2):
        deployed(tmp_path, row(success=False), 0)
    assert sorted(path.name for path in (tmp_path / "episodes").iterdir()) == ["0012_1", "0012_2"]


@pytest.mark.parametrize("code", [4, 5, 7])
def test_a_lost_robot_or_server_makes_the_episode_void(tmp_path, code):
    """It says nothing of the policy."""
    assert deployed(tmp_path, None, code).void


@pytest.mark.parametrize("code", [3, 6])
def test_a_stop_for_safety_is_judged_by_the_operator(tmp_path, code):
    """If it were void, a policy that must be stopped would look better than one that merely fails."""
    outcome = deployed(tmp_path, None, code)
    assert outcome.success is None and not outcome.void and "stop" in outcome.message


def test_without_a_verdict_the_operator_is_asked(tmp_path):
    """Most real scenes cannot say whether the task was done."""
    assert deployed(tmp_path, row(success=None, seconds=1), 0).success is None


def test_an_interrupted_episode_interrupts_the_trial(tmp_path):
    """Ctrl-C must not become a verdict."""
    with pytest.raises(KeyboardInterrupt):
        deployed(tmp_path, None, 130)


@pytest.mark.parametrize(("result", "code"), [(None, 0), (None, 2), ({"episodes": []}, 0), (row(success=True), 1)])
def test_a_deployment_that_did_not_run_is_said_without_a_name(tmp_path, result, code):
    """A mistake in the YAML must be told, and the log be named rather than shown."""
    with pytest.raises(UserError, match=r"log\.txt says why") as raised:
        deployed(tmp_path, result, code)
    assert "secret" not in str(raised.value)


PLAYS = """
import pathlib, signal, sys, time
out = next(pathlib.Path(each.partition("=")[2]) for each in sys.argv if each.startswith("out="))
def safe(*_):
    time.sleep(0.5)  # as long as an arm may take
    (out / "safe").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, safe)
(out / "plays").touch()
time.sleep(60)
"""
TRIAL = """
import sys
from small_trials import trial
from pathlib import Path
from robot.trial.plan import TrialArm
from robot.trial.run import by_deploy
play = by_deploy(trial("x", deploy="arm.yaml"), Path(sys.argv[1]), (sys.executable, sys.argv[2]))
try:
    play(TrialArm(url="ws://x"), None, 1)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_trial_that_is_stopped_waits_until_the_robot_is_safe(tmp_path, stop):
    """If the trial ended first, or killed the deployment, an arm could be left in the air."""
    (tmp_path / "deploy.py").write_text(PLAYS)
    given = [sys.executable, "-c", TRIAL, str(tmp_path), str(tmp_path / "deploy.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(given, env=environment, stdin=subprocess.DEVNULL) as process:
        while not (tmp_path / "episodes" / "0001_1" / "plays").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(stop)
        assert process.wait() == 130
    assert (tmp_path / "episodes" / "0001_1" / "safe").exists()


def test_the_deployment_is_read_before_the_first_episode(tmp_path):
    """A mistake in one policy's options would otherwise show when its turn comes, in the middle of a blind trial."""
    path = tmp_path / "arm.yaml"
    path.write_text("robot: {name: simulated, robot: so101}\npolicy: {dir: some/folder}\nscene: operator\n")
    good = trial("x", deploy=str(path))
    check_play(good)
    bad = {"act-baseline": TrialArm(url="ws://b:1", changes=["policy.mode=hurry"])}
    with pytest.raises(UserError, match=r"policies\.act-baseline: .*mode"):
        check_play(good.model_copy(update={"policies": {**good.policies, **bad}}))
