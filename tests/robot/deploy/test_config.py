"""The YAML of a deployment: every mistake is told in one line before anything moves."""

from pathlib import Path

import pytest

from robot.deploy.config import load
from vlrl.types import UserError

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs" / "deploy").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_load_and_say_what_to_change(path) -> None:
    """The first thing a user does is to copy one."""
    config = load(path)
    assert config.robot["name"] in ("lerobot", "simulated", "replay")
    assert "What to change:" in path.read_text()


def test_none_switches_off(tmp_path) -> None:
    """YAML's null is not what people write."""
    file = tmp_path / "a.yaml"
    file.write_text("robot: {name: simulated, robot: tabletop}\npolicy: {url: ws://a:1}\nview: none\nrecord: none\n")
    assert load(file).view is None and load(file, ["view.port=9000"]).view.port == 9000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("policy.mod=sync", r"policy\.mod: unknown key; did you mean 'mode'"),
        ("policy.mode=fast", "policy.mode: .*'rtc'"),
        ("policy.dir=runs/a", "either url"),
        ("policy.url=http://a", "must begin with ws://"),
        ("seconds=0", "seconds: .*greater than 0"),
        ("scene=oprator", "one of operator, body, emulator, served"),
        ("scene={name: emulator}", r"scene\.socket: is required"),
        ("scene={name: served, url: ws://a:1, threshold: 2}", r"scene\.threshold"),
        ("cameras={front: {width: 3}}", r"cameras\.front\.type: is required"),
        ("cameras_stop_s=0.1", "cameras_stop_s"),
        ("robot.name=null", r"robot\.name"),
        ("safety.stale.hold_s=-1", r"safety\.stale\.hold_s"),
        ("practice={reset: {url: ws://a:1, person: true}}", "only one of pose, url and person"),
    ],
)
def test_mistakes_are_named(tmp_path, change, said) -> None:
    """A key that is silently ignored may be a speed limit."""
    file = tmp_path / "a.yaml"
    file.write_text("robot: {name: simulated, robot: tabletop}\npolicy: {url: ws://a:1}\n")
    with pytest.raises(UserError, match=said) as raised:
        load(file, [change])
    assert "\n" not in str(raised.value)
