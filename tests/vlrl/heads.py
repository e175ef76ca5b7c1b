"""The commands in the heads of configs and recipes, and how a test runs one to its second step.

Default sizes, where a step plays no more than 128 completions of at most 32 tokens and no simulator; two prompts a step
elsewhere. Completions end at 32 tokens. All run in the test's own process, which spares each the seconds of importing.
"""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

import pytest
import yaml

from vlrl.cli import main
from vlrl.config import Config
from vlrl.recipe_checks import load_config

FOLDER = Path(__file__).parents[2] / "configs"
SHORT = ("train.steps=2", "eval.num_samples=4", "eval.batch_size=4", "log.trackers=[]", "log.rollouts=1")
SMALL = ("train.prompts_per_step=2", "train.num_minibatches=1", "train.update_epochs=1")
# what cannot run without files or servers that nobody ships: command -> what its one line says
REFUSED = {
    "a_lol": "record episodes with `vlrl record`",
    "a_lol over jigsaw": "record episodes with `vlrl record`",
    "engine_server": "policy.engine: no server answers",
    "gui_pages": "check data.train",
    "resip": "there is no folder 'runs/push_residual'",
    "resip over manipulation": "there is no folder 'runs/push_residual'",
    "manipulation_smolvla": "there is no folder 'runs/smolvla'",
    "manipulation_three": "there is no folder 'runs/smolvla_three'",
    "verifiers": "Qwen/Qwen2.5-VL-3B-Instruct: HF_HUB_OFFLINE is set, and there is no copy",
    "vlm_rm": "openai/clip-vit-base-patch32: HF_HUB_OFFLINE is set, and there is no copy",
}


# stands in for a start that nobody has made, where it is no language model (policies/test_*flow.py train flows)
STARTS = {"manipulation_flow": "embedded_push"}


def trains(file: Path) -> bool:
    """Whether a config is one of `vlrl train`, by itself or by its base."""
    values = yaml.safe_load(file.read_text())
    bases = values.get("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    return {"task", "train"} <= set(values) or any(trains(file.parent / base) for base in bases)


def find_others(recipe: Path) -> dict[str, list[str]]:
    """`RECIPE over TASK` -> arguments, of the commands in its head; those over browsers are too slow for here."""
    head = " ".join(re.findall(r"^# *(.*)$", recipe.read_text(), re.MULTILINE))
    command = rf"vlrl train configs/([\w/]+)\.yaml configs/recipes/{recipe.stem}\.yaml"
    found = re.findall(command + r"((?: +(?:'[^']*'|\w[\w.]*=[^\s'\[{]+))*)", head)
    return {
        f"{recipe.stem} over {task}": [str(FOLDER / f"{task}.yaml"), str(recipe), *shlex.split(changes)]
        for task, changes in found
        if task not in ("X", "gui_agent")
    }


RECIPE_FILES = sorted((FOLDER / "recipes").glob("*.yaml"))
VARIANTS = (
    "gui_agent_150",
    "gui_agent_demos",
    "gui_history_agent",
)  # gui_agent with other pages or fewer of them: ten more seconds each
CONFIGS = {
    file.stem: [str(file)]
    for file in sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("models/*.yaml"), *FOLDER.glob("studies/*.yaml")])
    if trains(file) and file.stem not in VARIANTS
}
RECIPES = {file.stem: [str(file)] for file in RECIPE_FILES}
ALL_OTHERS = {name: each for file in RECIPE_FILES for name, each in find_others(file).items()}
PLAIN = [name for name, arguments in ALL_OTHERS.items() if len(arguments) == 2]
ALWAYS = {"mssr over jigsaw", "openvlthinker over counting"} | set(ALL_OTHERS) - set(PLAIN)
SAMPLED = ALWAYS | set(random.Random(0).sample(PLAIN, 8))
OTHERS = {name: each for name, each in ALL_OTHERS.items() if name in SAMPLED}


def choose_sizes(name: str, config: Config) -> list[str]:
    """Overrides that keep a command within seconds."""
    sizes, simulated = config.train, config.task.name in ("manipulation", "gui_agent", "gym")
    changes = [f"policy.max_tokens={min(32, config.policy.max_tokens)}"]
    long = sizes.prompts_per_step * sizes.group_size > 128 or config.policy.max_tokens > 32
    if not (long or simulated or " over " in name):
        return changes
    # a tracker answers each prompt once before the first step
    tracked = any(each.name in ("beta_tracker", "spo_tracker") for each in config.advantages)
    recurring = ["sampler.limit=16"] if tracked else []
    rounds = (config.rollout_strategy.model_extra or {}).get("rounds", 2)  # which divide a group
    return [*changes, *SMALL, *recurring, f"train.group_size={min(rounds, sizes.group_size)}"]


def train(arguments: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command's exit code and its last line on stderr."""
    code = main(["train", *arguments, f"out={out}"])
    lines = capsys.readouterr().err.strip().splitlines()
    return code, lines[-1] if lines else ""


def check_head(name: str, command: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in one line where it lacks what nobody ships, else it takes two steps, from the embedded model."""
    arguments = [*command, *SHORT]
    config = load_config(arguments[0], arguments[1:])
    sources = {"policy.model": config.policy.model, "policy.teacher": config.policy.teacher}
    folders = {key: value for key, value in sources.items() if value and value.startswith("runs/")}
    missing, starts = REFUSED.get(name), []
    if missing or folders:
        code, line = train(arguments, out, capsys)
        lacking = [missing] if missing else [f"{key}: there is no folder {value!r}" for key, value in folders.items()]
        assert code == 2 and any(each in line for each in lacking), line
        assert not out.exists()
        starts = [f"{key}={STARTS.get(name, 'embedded')}" for key in folders]
    if not missing:
        code, line = train([*arguments, *starts, *choose_sizes(name, config)], out, capsys)
        assert code == 0, line
