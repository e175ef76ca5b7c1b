"""The command of configs and recipes at their default sizes up to the second step; recipes under other optimizers.

All run in one process, which spares each the seconds of importing. Completions end at 32 tokens, and what waits for
simulators takes two prompts a step. What names a start that another command makes is refused in one line that says so,
and then tried from the embedded model. Commands over other tasks take two prompts a step.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import yaml

from vlrl.cli import main
from vlrl.config import Config, load

FOLDER = Path(__file__).parents[2] / "configs"
SHORT = ("train.steps=2", "eval.samples=4", "eval.batch=4", "log.trackers=[]", "log.rollouts=1")
SMALL = ("train.prompts=2", "train.minibatches=1", "train.epochs=1")
ENVIRONMENTS = ("manipulation", "gui_agent")  # seconds an episode; gui_agent's own file: tests/vlrl/test_offline.py
# what cannot run without files that nobody ships: command -> what its one line says
REFUSED = {
    "a_lol": "record episodes with `vlrl record`",
    "gui_pages": "check data.train and data.test",
    "resip": "there is no folder 'runs/push_residual'",
    "vlm_rm": "cannot load the model 'openai/clip-vit-base-patch32'",
}


def heads() -> dict[str, list[str]]:
    """Name -> arguments of `vlrl train`: each config that trains, and the commands over other tasks in heads."""
    found = {}
    for file in sorted((*FOLDER.glob("*.yaml"), *(FOLDER / "recipes").glob("*.yaml"))):
        text = file.read_text()
        in_recipes = file.parent.name == "recipes"
        if in_recipes or {"task", "train"} <= set(yaml.safe_load(text)):
            found[file.stem] = [str(file)]
        for task, rest in re.findall(r"vlrl train configs/(\w+)\.yaml configs/recipes/\w+\.yaml(.*)", text):
            if in_recipes and task in ("jigsaw", "counting", "mixture", "video_qa"):
                changes = re.findall(r"(\w[\w.]*=[^\s'\[{]+)(?:\s|$)", rest)
                found[f"{file.stem} over {task}"] = [str(FOLDER / f"{task}.yaml"), str(file), *changes]
    return {name: each for name, each in found.items() if not name.startswith(("gui_agent", "manipulation"))}


COMMANDS = heads()
OPTIMIZERS, LORA = ("adamw", "muon"), "policy.lora={rank: 4, alpha: 8, targets: '.*language_model.*_proj'}"
WORDS = [
    name
    for name in COMMANDS
    if " over " not in name and "base: ../gui_grounding" in Path(COMMANDS[name][0]).read_text()
]
PAIRS = [(name, kind, lora) for name in WORDS for kind in OPTIMIZERS for lora in (False, True)]
MATRIX = random.Random(0).sample([pair for pair in PAIRS if pair[0] not in (*REFUSED, "essa")], 16)


def cheap(name: str, config: Config) -> list[str]:
    """Default sizes, but where an episode takes seconds, and over other tasks."""
    tokens = [f"policy.max_tokens={min(32, config.policy.max_tokens)}"]
    if config.task.name not in ENVIRONMENTS and " over " not in name:
        return tokens
    recurring = ["sampler.limit=16"] if has_tracker(config) else []  # each gets first responses
    return [*tokens, *SMALL, *recurring, f"train.group_size={min(2, config.train.group_size)}"]


def has_tracker(config: Config) -> bool:
    """Whether prompts are answered before the first step."""
    return any(each.name in ("beta_tracker", "spo_tracker") for each in config.advantages)


def run(arguments: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command's exit code and its last line on stderr."""
    code = main(["train", *arguments, f"out={out}"])
    lines = capsys.readouterr().err.strip().splitlines()
    return code, lines[-1] if lines else ""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_head_command_reaches_its_second_step(name, tmp_path, monkeypatch, capsys):
    """The first thing that a user copies out of a config would end in a traceback, or never begin."""
    monkeypatch.chdir(tmp_path)  # `runs/...` of this checkout must not be found
    arguments, out = [*COMMANDS[name], *SHORT], tmp_path / "run"
    config = load(arguments[0], arguments[1:])
    missing = REFUSED.get(name.split(" over ")[0])
    if missing or config.policy.model.startswith("runs/"):
        code, said = run(arguments, out, capsys)
        assert code == 2 and (missing or f"policy.model: there is no folder {config.policy.model!r}") in said, said
        assert not out.exists()
    if not missing:
        start = ["policy.model=embedded"] if config.policy.model.startswith("runs/") else []
        code, said = run([*arguments, *start, *cheap(name, config)], out, capsys)
        assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "lora"), MATRIX)
def test_a_recipe_trains_with_another_optimizer(name, kind, lora, tmp_path, capsys):
    """LoRA with Muon ended in a traceback, whatever the recipe."""
    arguments = [*COMMANDS[name], *SHORT, *SMALL, "train.group_size=2", f"train.optimizer={kind}", *([LORA] * lora)]
    if load(COMMANDS[name][0]).train.group_size == 1:
        arguments.remove("train.group_size=2")
    code, said = run(arguments, tmp_path / "run", capsys)
    assert code == 0, said
