"""What `pip install vlrl` brings: the wheel of an sdist in a clean environment, without torch and with it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import vlrl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SMALL = ["train.steps=1", "train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=4"]
# who opens a connection is written down and refused; a socket of the machine's own is no connection
WATCH = """
import os, sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple) \\
            or event in ("socket.getaddrinfo", "socket.gethostbyname"):
        with open(os.environ["CONNECTIONS"], "a") as file:
            file.write(f"{event} {arguments[-1] if event == 'socket.connect' else arguments}\\n")
        raise ConnectionRefusedError(event)
sys.addaudithook(watch)
"""


def _wheel_module():
    spec = importlib.util.spec_from_file_location("wheel_of_vlrl", Path(__file__).with_name("wheel.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


making = _wheel_module()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return making.built(tmp_path_factory.mktemp("built"))


class User:
    """Someone who installed the wheel with some extras, at work in a folder outside the checkout."""

    def __init__(self, folder: Path, wheel: Path, extras: frozenset[str]):
        self.folder, self._connections = folder / "work", folder / "connections"
        self.folder.mkdir()
        self._bin = making.environment(folder / "environment", wheel, WATCH).parent
        making.bring(self._bin / "python", extras)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._told = kept | {"CONNECTIONS": str(self._connections), "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(folder)}

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment, which may connect to nowhere."""
        whole = [self._bin / command[0], *command[1:]]
        done = subprocess.run(whole, cwd=self.folder, env=self._told, capture_output=True, text=True)
        assert not self._connections.exists(), self._connections.read_text()
        return done


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> User:
    return User(tmp_path_factory.mktemp("clean"), wheel, frozenset())


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    """A model, a script of the report or a config that is left behind fails at the user's alone."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {file.relative_to(ROOT).as_posix() for name in making.PACKAGES for file in (ROOT / name).rglob("*")
             if file.is_file() and "__pycache__" not in file.parts}  # fmt: skip
    configs = {f"vlrl/configs/{f.relative_to(ROOT / 'configs').as_posix()}" for f in (ROOT / "configs").rglob("*.yaml")}
    assert held == {file for file in files if not file.startswith("vlrl/configs/")} | configs
    assert {f"{name}/py.typed" for name in making.PACKAGES} <= held


def test_the_wheel_says_what_it_is(wheel):
    """pip and the index show this; an extra that the README names and the wheel lacks installs nothing."""
    with zipfile.ZipFile(wheel) as file:
        (place,) = [name for name in file.namelist() if name.endswith("/METADATA")]
        about = Parser().parsestr(file.read(place).decode())
        assert {f"{place.removesuffix('METADATA')}licenses/{name}" for name in ("LICENSE", "NOTICE.md")} <= set(
            file.namelist()
        )
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("vlrl", vlrl.__version__, "Apache-2.0")
    assert {"train", "robot", "sim", "gui", "docs"} <= set(about.get_all("Provides-Extra"))
    assert not any(line.startswith("torch") and "extra" not in line for line in about.get_all("Requires-Dist"))


def test_without_torch_one_lists_proves_and_scores(clean):
    """Who only wants the rewards should not have to download gigabytes; nor should anything be sent from here."""
    assert "No module named 'torch'" in clean("python", "-c", "import torch").stderr
    listed = clean("vlrl", "list", "recipes")
    assert (listed.returncode, listed.stderr) == (0, "") and "recipes/mssr" in listed.stdout
    proved = clean("vlrl", "check-task", "gui_grounding")
    assert proved.returncode == 0 and proved.stdout.count("ok ") >= 4, proved.stderr
    row = {"completion": "<answer>[12, 15]</answer>", "answer": [10, 10, 20, 20], "image_size": [64, 48]}
    (clean.folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    scored = clean("vlrl", "score", "gui_grounding", "rows.jsonl")
    assert scored.returncode == 0 and "parts" in json.loads(scored.stdout), scored.stderr


def test_training_without_the_extra_says_what_to_install(clean):
    """A traceback that ends in `No module named 'torch'` leaves a newcomer to guess."""
    done = clean("vlrl", "train", "gui_grounding", *SMALL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "vlrl: torch is not installed, which this command needs: pip install 'vlrl[train]' [VL105]\n"


def test_with_the_extra_the_demo_trains_and_sends_nothing(wheel, tmp_path):
    """The first command of a user with a wheel: no checkout, no folder of configs, no connection to anywhere."""
    user = User(tmp_path, wheel, frozenset({"train"}))
    done = user("vlrl", "demo", *SMALL)
    assert done.returncode == 0, done.stderr
    run = user.folder / "runs" / "demo"
    assert json.loads((run / "summary.json").read_text())["updates"] == 1
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")


def test_the_watch_sees_a_connection(clean):
    """Otherwise the tests above would hold nothing."""
    seen = clean.folder / "seen"
    code = f"import os, urllib.request as u; os.environ['CONNECTIONS'] = {str(seen)!r}; u.urlopen('http://192.0.2.1')"
    assert "refused" in clean("python", "-c", code).stderr.lower() or seen.exists()
    assert "192.0.2.1" in seen.read_text()
