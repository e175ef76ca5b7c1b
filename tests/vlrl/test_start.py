"""From a data file to a run: `vlrl train my.jsonl`, `vlrl init`, `--gpu-memory`."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageDraw

from vlrl.cli import main
from vlrl.recipe_checks import load_config

ROOT = Path(__file__).parents[2]
SMALL = ("train.steps=1", "train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=4", "log.trackers=[]")


@pytest.fixture
def screens(tmp_path, monkeypatch) -> Path:
    """Ten screens of a user's, with keys and boxes of their own."""
    rows = []
    for i in range(10):
        image = Image.new("RGB", (64, 64), "white")
        ImageDraw.Draw(image).rectangle([4 + 4 * i, 30, 18 + 4 * i, 44], fill="red")
        image.save(tmp_path / f"{i}.png")
        rows += [{"img": f"{i}.png", "prompt": text, "bbox": [4 + 4 * i, 30, 14, 14]} for text in ("red", "the square")]
    (tmp_path / "clicks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_init_writes_a_config_that_says_what_each_key_means(screens, capsys):
    """A first config would be copied from somewhere, and its keys guessed."""
    assert main(["init", "--data", "clicks.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "the task gui_grounding" in said and "[x, y, width, height] in pixels" in said and "4 of 20 rows" in said
    assert said.endswith("next: vlrl train clicks.yaml\n")
    lines = Path("clicks.yaml").read_text().splitlines()
    keys = [line for line in lines if re.match(r" *\w+: \S", line) and "name: gui" not in line]
    assert len(keys) > 12 and all("  # " in line for line in keys)
    config = load_config("clicks.yaml")
    assert config.task.name == "gui_grounding" and config.out == "runs/clicks"
    trained, tested = ([json.loads(line) for line in Path(file).read_text().splitlines()]
                       for file in (config.data.train, config.data.test))  # fmt: skip
    assert len(trained) == 16 and {row["image"] for row in trained}.isdisjoint(row["image"] for row in tested)
    assert main(["init", "--data", "clicks.jsonl"]) == 2  # a config that was edited is not written over
    assert "clicks.yaml is there already: train with it" in capsys.readouterr().err


def test_init_asks_at_a_terminal(screens):
    """Who does not know the options is asked; a script is not."""
    command = [sys.executable, "-m", "vlrl.cli", "init"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "vlrl: name your data: vlrl init --data FILE [VL101]\n"
    ours, theirs = pty.openpty()
    os.write(ours, b"clicks.jsonl\nembedded\n\n")
    done = subprocess.run(command, env=environment, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "data (a file of rows" in done.stdout and load_config("clicks.yaml").policy.model == "embedded"
    ours, theirs = pty.openpty()
    os.write(ours, b"clicks.jsonl\nembedded\n24 GB\n")
    done = subprocess.run(command, env=environment, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert done.stderr == "vlrl: GPU memory '24 GB': should be a number of GB, for example 24 [VL101]\n"


def test_memory_settings_are_those_of_the_plan(screens, capsys):
    """The first run on a card of 16 GB would end in a lack of memory after the model was fetched."""
    model = "Qwen/Qwen2.5-VL-3B-Instruct"
    for name, gigabytes in (("large", "80"), ("small", "9")):
        words = ["init", "--data", "clicks.jsonl", "--model", model, "--gpu-memory", gigabytes, "--out", f"{name}.yaml"]
        assert main(words) == 0
    said = capsys.readouterr().out
    assert "fits 80 GB as it is" in said and re.search(r"[\w.]+=\S+.*: [\d.]+ -> [\d.]+ GB by `vlrl plan`", said)
    large, small = load_config("large.yaml"), load_config("small.yaml")
    assert large != small and large.policy.lora and large.task.options == {"template": "guided"}
    assert main(["plan", "small.yaml", "--gpu", "9GB"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    words = ["init", "--data", "clicks.jsonl", "--model", model, "--gpu-memory", "1", "--out", "none.yaml"]
    assert main(words) == 2 and "no setting of one GPU is enough" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "nothing.jsonl"], "nothing.jsonl: cannot be read (no such file or folder)"),
        (["train", "0.png"], "0.png"),
        (["init", "--data", "clicks.jsonl", "--task", "detection"], "fit no task called detection"),
        (["train", "rows.parquet"], "name a held-out file too, data.test=FILE"),
    ],
)
def test_mistakes_are_one_line(words, named, screens, capsys):
    import pyarrow
    import pyarrow.parquet

    picture = (screens / "0.png").read_bytes()
    table = pyarrow.table({"image": [{"bytes": picture}], "question": ["How many?"], "answer": ["1"]})
    pyarrow.parquet.write_table(table, screens / "rows.parquet")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vlrl: ") and named in line


@pytest.mark.slow
def test_a_data_file_trains_in_a_configs_place(train, screens):
    """The shortest way from own data to a run; its advice on an unread start is a command that runs."""
    assert train(screens, "clicks.jsonl", *SMALL, "policy.max_tokens=1") == 0, (screens / "err").read_text()
    said = (screens / "err").read_text()
    assert "the task gui_grounding" in said and "4 of 20 rows are held out" in said
    summary = json.loads((screens / "runs/clicks/summary.json").read_text())
    assert (
        summary["before"]["n"] == 4 and yaml.safe_load((screens / "clicks.yaml").read_text())["train"]["steps"] == 200
    )
    command = re.search(r"imitate right answers first: vlrl train (\S+) --imitate 200 (out=\S+)", said)
    assert command and command[1] == "runs/clicks/config.yaml"
    assert train(screens, command[1], "--imitate", "2", command[2], "policy.max_tokens=12") == 0, (
        screens / "err"
    ).read_text()
    config = load_config("runs/clicks_2/config.yaml")
    assert config.policy.model == "runs/clicks_2_start" and (screens / "runs/clicks_2_start/summary.json").exists()


def draw_controls(folder: Path, count: int) -> None:
    """Screens of a user's, 240 x 160: a red, a blue and a wide green control below each other, not always in line."""
    rows, rng = [], random.Random(0)
    controls = (("Stop", "red", 48, 20), ("Save", "blue", 48, 150), ("Search", "green", 120, 60))
    for i in range(count):
        image = Image.new("RGB", (240, 160), "white")
        for row, (name, color, width, left) in enumerate(controls):
            x, y = left + rng.randrange(-16, 16), 8 + 50 * row
            box = [x, y, x + width, y + 36]
            ImageDraw.Draw(image).rectangle(box, fill=color)
            rows.append({"image": f"{i}.png", "instruction": f'Click the button "{name}".', "box": box})
        image.save(folder / f"{i}.png")
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_own_screens_are_learned_from(train, screens):
    """Own data that ends where it began has taught its owner nothing."""
    draw_controls(screens, 50)
    changes = ("train.steps=2", "train.prompts_per_step=4", "train.group_size=4", "log.trackers=[]")
    assert train(screens, "mine.jsonl", "--imitate", "40", *changes) == 0, (screens / "err").read_text()
    said = (screens / "out").read_text()
    before, after = map(float, re.search(r"imitation: (\d\.\d+) \[.*\] -> (\d\.\d+) \[", said).groups())
    assert after >= before + 0.2, said
    start = json.loads((screens / "runs/mine_start/config.json").read_text())
    assert start["coordinate_space"] == "grid100" and start["vision_config"]["patch_size"] == 28


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--imitate", "0"], "--imitate: at least 1 step"),
        (
            ["--imitate", "5", "policy.model=Qwen/Qwen2.5-VL-3B-Instruct"],
            "--imitate: of a tiny model, in one",
        ),
    ],
)
def test_imitation_is_refused_in_one_line(words, named, screens, capsys):
    assert main(["train", "gui_grounding", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
