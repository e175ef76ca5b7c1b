"""The processes of `bench/speed.py vs_trl`: TRL's environment, what both arms are given, and the arms taken in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from step import PATCH, TEXT, model_of
from torch import randint
from torch.random import manual_seed
from transformers.utils.logging import disable_progress_bar

HERE = Path(__file__).parent
FAMILY = "qwen2_5_vl"
TRL = "1.16.0"


@dataclass(frozen=True)
class Row:
    """A workload: a model of `step.SIZES`, tokens of the image, completions of a prompt and their tokens, prompts."""

    model: str
    visual: int
    group: int
    tokens: int
    prompts: int

    @property
    def name(self) -> str:
        return f"{self.model}/{self.visual}/{self.group}/{self.tokens}/{self.prompts}"


def row_of(name: str) -> Row:
    """The row of that name: model/visual tokens/group/completion tokens/prompts."""
    model, *numbers = name.split("/")
    return Row(model, *map(int, numbers))


def trl_folder() -> Path:
    """Where TRL's own environment is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "vlrl" / "bench" / f"trl-{TRL}-{sys.version_info.major}.{sys.version_info.minor}"


def trl_python() -> Path:
    """The Python of TRL's own environment, which is made where there is none.

    It sees vlrl's installed packages behind its own, so that both arms run the same torch and transformers; only TRL
    and what it lacks beside them are installed.
    """
    folder = trl_folder()
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        print(f"installing TRL {TRL} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (own / "vlrl.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if not made.exists():
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"trl=={TRL}"], check=True, stdout=sys.stderr)
        made.touch()
    return python


def write_work(row: Row, steps: int, folder: Path) -> None:
    """Weights, processor and every step's images, for both arms. The images are stored uncompressed."""
    model, processor = model_of(FAMILY, row.model)
    disable_progress_bar()
    model.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    manual_seed(1)
    side = round(row.visual**0.5) * 2 * PATCH[FAMILY]
    names = [f"{i}.bmp" for i in range(steps * row.prompts)]
    for name in names:
        Image.fromarray(randint(0, 256, (side, side, 3)).byte().numpy()).save(folder / name)
    work = {**dataclasses.asdict(row), "steps": steps, "text": TEXT, "images": names}
    (folder / "work.json").write_text(json.dumps(work))


class Arm:
    """A worker that makes one step when it is its turn."""

    def __init__(self, python: Path | str, script: str, folder: Path):
        self.log = folder / f"{script}.log"
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), str(HERE / script), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, env=os.environ | quiet,
            )  # fmt: skip
        self.about = self._told()

    def turn(self, kind: str) -> dict:
        """What one step cost. kind: `step`, or `count` for one whose operations are counted."""
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.flush()
        return self._told()

    def _told(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise SystemExit(f"{self.process.args[1]} died:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process, which goes once there are no more turns."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def arms(folder: Path) -> Iterator[dict[str, Arm]]:
    """Both, just before their first step."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(contextlib.closing(Arm(python, script, folder)))
            for name, python, script in (
                ("trl", trl_python(), "vs_trl_theirs.py"), ("vlrl", sys.executable, "vs_trl_ours.py"),
            )
        }  # fmt: skip
