"""What a release says of itself: versions, licences, extras, the lock, configs that come along, and what is sent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import vlrl
from tasks.rendering.scenes import TEST_PHOTOS, TRAIN_PHOTOS
from vlrl.config import CONFIGS, LogSection, config_file
from vlrl.registry import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGES = ("vlrl", "tasks", "rewards", "robot")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_extra_that_is_named_is_there():
    """An error that says `pip install 'vlrl[x]'` must lead out of it."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.yaml")]
    files += [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    named = {extra.strip() for file in files for extras in re.findall(r"vlrl\[([\w, -]+)\]", file.read_text("utf-8"))
             for extra in extras.split(",")}  # fmt: skip
    assert (named | set(EXTRAS.values())) - set(PROJECT["optional-dependencies"]) == set()


def test_the_container_is_made_of_what_is_there():
    """A file that was moved, or an extra that is gone, would be found at the end of a long build."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert {line[0] for line in lines} <= {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "ENTRYPOINT", "CMD"}
    sources = [source for line in lines if line[0] == "COPY" for source in line[1:-1]]
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert all((ROOT / source).exists() and source not in ignored for source in sources)
    assert {*PACKAGES, "configs", "pyproject.toml", *PROJECT["license-files"]} <= set(sources)  # vlrl/configs is a link
    extras = {extra for found in re.findall(r"EXTRAS=([\w,]+)", text) for extra in found.split(",")}
    assert extras <= set(PROJECT["optional-dependencies"]) and "train" in extras
    assert len(re.findall(r"^(?:torch|torchvision)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)) == 2


def test_nothing_bundled_sends_unless_asked():
    """Metrics and prompts of a user would go to a service that nobody named."""
    assert LogSection().trackers == ["tensorboard"]  # files in the run's folder
    for file in CONFIGS.rglob("*.yaml"):
        log = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("log") or {}
        assert set(log.get("trackers", [])) <= {"tensorboard"}, file


def test_a_config_is_found_by_name_where_there_is_no_file(tmp_path, monkeypatch, capsys):
    """A pip user has no folder of configs; one's own file of the same name must win."""
    monkeypatch.chdir(tmp_path)
    mssr = CONFIGS / "recipes" / "mssr.yaml"
    assert {config_file(n) for n in ("configs/recipes/mssr.yaml", "recipes/mssr.yaml", "recipes/mssr")} == {mssr}
    assert config_file("embedded_push") == CONFIGS / "models" / "embedded_push.yaml"
    assert capsys.readouterr().err == ""
    assert config_file("configs/studies/turns.yaml") == CONFIGS / "compare" / "turns.yaml"
    assert capsys.readouterr().err == "configs/studies/turns.yaml has moved: configs/compare/turns.yaml\n"
    (tmp_path / "jigsaw").mkdir()  # of photographs
    assert config_file("jigsaw") == CONFIGS / "jigsaw.yaml"
    (tmp_path / "jigsaw.yaml").touch()
    assert config_file("jigsaw.yaml") == Path("jigsaw.yaml")
    for outside in ("nowhere.yaml", "../configs/jigsaw.yaml", str(tmp_path / "jigsaw_2x1.yaml")):
        assert config_file(outside) == Path(outside)


def test_what_ships_is_named_in_the_notice():
    """Whoever passes the package on must know what in it is whose, and what the models have seen."""
    notice = (ROOT / "NOTICE.md").read_text(encoding="utf-8")
    photos = {Path(file).name for _, file in (*TRAIN_PHOTOS, *TEST_PHOTOS)}
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file()]
    binary = [f for f in files if "__pycache__" not in f.parts and b"\0" in f.read_bytes()[:8192]]
    assert binary
    shipped = {file.parent.relative_to(ROOT).as_posix() for file in binary}
    assert {name for name in photos | shipped if f"`{name}`" not in notice} == set()


def test_one_version_everywhere():
    """A citation or a changelog of another version than the one that ran misleads."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited["version"] == newest[1] == vlrl.__version__
    assert cited["license"] == PROJECT["license"]


def test_the_lock_fits_what_is_asked_for():
    """`make setup` would install other versions than those that were tested."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "lock_fits.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_torch_for_a_cpu_is_not_replaced_by_cuda(tmp_path):
    """Whoever asked for no CUDA would wait for gigabytes of it where PyTorch's own index cannot be reached."""
    for name in ("scripts/setup.sh", "pyproject.toml", "requirements.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    uv = tmp_path / "bin" / "uv"  # as without a network
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    uv.chmod(0o755)
    environment = os.environ | {"TORCH": "cpu", "PATH": f"{uv.parent}:{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
    done = subprocess.run([tmp_path / "scripts" / "setup.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("without TORCH, torch comes with CUDA\n"), done.stderr
    assert "Obtaining" not in done.stdout and not (tmp_path / ".venv" / "setup.stamp").exists()
