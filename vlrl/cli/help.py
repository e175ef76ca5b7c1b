"""What commands share: arguments that several take, and what helps at the prompt, groups, examples and completion."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args, get_origin

from vlrl.config import Change
from vlrl.decoders import load_yaml
from vlrl.types import UserError, meant

if TYPE_CHECKING:
    from vlrl.runner import Learner

CHANGES = "key.path=value overrides and recipe files, applied in order"
Commands = argparse._SubParsersAction


def takes_changes(command: argparse.ArgumentParser, help: str = CHANGES) -> None:
    """`command CONFIG [CHANGE ...]`."""
    # with a default, or argparse calls them required
    command.add_argument("changes", nargs="*", default=[], metavar="CHANGE", help=help)


def takes_run(command: argparse.ArgumentParser, help: str) -> None:
    """`command CONFIG [CHANGE ...]` or `command --resume RUN [CHANGE ...]`."""
    command.add_argument("config", nargs="?", help=help)
    takes_changes(command)
    takes_resume(command)


def takes_resume(command: argparse.ArgumentParser) -> None:
    """`--resume RUN [--allow-changes]`."""
    command.add_argument("--resume", metavar="RUN", help="go on with a run folder from its newest checkpoint")
    command.add_argument("--allow-changes", action="store_true", help="with --resume: also of the seed, the task, the "
                         "data, the group size and the like, which make another run of it")  # fmt: skip


def find_first_change(options: argparse.Namespace) -> list[str]:
    """The key=value that stands in the configuration's place behind --resume, if any.

    Raises:
        UserError: a configuration is named.
    """
    if options.config and "=" not in options.config:
        raise UserError("--resume takes the run's own config: name no other")
    return [options.config] if options.config else []


def read_config[C](
    options: argparse.Namespace, load: Callable[[str | Path, Sequence[Change]], C], example: str
) -> C:  # fmt: skip
    """The configuration that the command line names, or that the run keeps which is resumed, with changes.

    Raises:
        UserError: it names none, or no run; as `load`.
    """
    if not options.resume:
        if options.allow_changes and options.command != "learn":  # which always goes on
            raise UserError("--allow-changes goes with --resume")
        if not options.config:
            raise UserError(f"name a config, for example: vlrl {options.command} {example}")
        return load(options.config, options.changes)
    path, first = Path(options.resume) / "config.yaml", find_first_change(options)
    if not path.is_file():
        raise UserError(f"{options.resume} is no run folder: it holds no config.yaml")
    return load(path, [{"out": options.resume}, *first, *options.changes])


def run_learner(options: argparse.Namespace, learner: Learner) -> dict[str, Any]:
    """Trains to the end, or resumes, as the command line says -> the run's summary."""
    from vlrl.runner import Runner

    return Runner(learner.config, learner, bool(options.resume), options.allow_changes).run()


# Colour, where a terminal reads along.


def print_styled(text: str, stream: TextIO, styles: Mapping[str, str]) -> None:
    """Prints; on a terminal with what the patterns match, line by line, in their styles (rich's names).

    Plain where `NO_COLOR` is set (no-color.org) or rich is not installed.
    """
    if stream.isatty() and not os.environ.get("NO_COLOR"):
        with contextlib.suppress(ModuleNotFoundError):
            from rich.console import Console
            from rich.text import Text

            styled = Text(text)
            for style, pattern in styles.items():
                styled.highlight_regex(re.compile(pattern, re.MULTILINE), style)
            return Console(file=stream).print(styled, soft_wrap=True, highlight=False)
    print(text, file=stream)


def print_error(message: str) -> None:
    """`vlrl: ...` on stderr: its code, and what to do, behind the last colon or semicolon, stand out."""
    styles = {"bold red": r"^vlrl:", "cyan": r"(?<=[:;] )[^:;]+?(?=(?: \[VL\d+\])?$)|`[^`]+`", "bold": r"\[VL\d+\]$"}
    print_styled(f"vlrl: {message}", sys.stderr, styles)


# What `vlrl --help` prints: the commands by what one wants to do, each with an example that its own help ends with.
# tests/vlrl/test_cli.py reads every example as the command would.

GROUPS = {
    "First": {
        "demo": "vlrl demo train.steps=20",
        "doctor": "vlrl doctor",
        "init": "vlrl init --data clicks.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct --gpu-memory 24",
        "import-config": "vlrl import-config trl.yaml --task visual_reasoning --out mine.yaml",
        "list": "vlrl list --search num_generations",
        "explain": "vlrl explain VL103",
        "show": "vlrl show configs/gui_grounding.yaml configs/recipes/mssr.yaml --explain",
    },
    "Train and evaluate": {
        "train": "vlrl train configs/gui_grounding.yaml configs/recipes/dapo.yaml train.steps=200 out=runs/dapo",
        "eval": "vlrl eval configs/gui_grounding.yaml --model runs/demo --report runs/demo/held_out.html",
        "view": "vlrl view runs/demo runs/dapo",
        "advise": "vlrl advise runs/demo",
        "plan": "vlrl plan configs/gui_grounding.yaml policy.model=Qwen/Qwen2.5-VL-3B-Instruct --gpu h100",
        "reproduce": "vlrl reproduce ui_r1 published/memory/24gb --dry-run",
        "accept": "vlrl accept Qwen/Qwen2.5-VL-3B-Instruct --data clicks.jsonl --test held_out.jsonl",
        "compare": "vlrl compare configs/compare/single_vs_group.yaml --plan",
        "stages": "vlrl stages configs/stages/lmm_r1.yaml --dry-run",
        "warmstart": "vlrl warmstart configs/models/embedded.yaml steps=200 out=runs/start",
    },
    "Data, tasks and rewards": {
        "check-task": "vlrl check-task gui_grounding --data clicks.jsonl",
        "score": "vlrl score gui_grounding rows.jsonl",
        "capture": "vlrl capture --out pages --train 200 --test 50",
        "select": "vlrl select configs/gui_grounding.yaml --out informative.jsonl --samples 200 --repeats 4",
        "best-of": "vlrl best-of configs/gui_grounding.yaml --out runs/right_answers --samples 100 --tries 4",
        "record": "vlrl record configs/gui_grounding.yaml --episodes 100 --by gold --out runs/recorded",
    },
    "Models for others": {
        "export": "vlrl export runs/demo --out models/demo",
        "average": "vlrl average runs/one runs/two --out models/mean",
        "card": "vlrl card runs/demo --license apache-2.0",
        "push": "vlrl push runs/demo --to OWNER/NAME --private",
        "serve-model": "vlrl serve-model runs/demo --port 8000",
        "serve-task": "vlrl serve-task configs/counting.yaml --port 8000",
    },
    "Robots in simulation": {
        "simulate": "vlrl simulate configs/manipulation.yaml --policy embedded_push --against expert random",
        "clone": "vlrl clone configs/models/embedded_push.yaml out=runs/clone",
        "demos": "vlrl demos configs/manipulation.yaml --episodes 20 --out data/push",
        "residual": "vlrl residual embedded_push --out runs/correction",
        "offpolicy": "vlrl offpolicy configs/offpolicy_push.yaml ticks=20000",
        "preferences": "vlrl preferences configs/preferences_push.yaml",
        "pretrain": "vlrl pretrain pretrain.yaml",
    },
    "Robots on a bench": {
        "emulate": "vlrl emulate so101 --camera top=64x64",
        "serve": "vlrl serve --policy embedded_push --port 8765",
        "deploy": "vlrl deploy configs/deploy/so101.yaml --dry-run",
        "replay": "vlrl replay data/push configs/deploy/so101_emulator.yaml --episode 0",
        "trial": "vlrl trial trial.yaml",
        "learn": "vlrl learn configs/learn_so101.yaml",
        "reward-model": "vlrl reward-model configs/reward_so101.yaml",
    },
}
COLUMN = 17  # where a command's help begins


def format_groups(commands: Commands) -> str:
    """All groups, in lines of the terminal's width.

    Raises:
        KeyError: a group names a command that there is not.
    """
    texts = _list_help(commands)
    width = min(shutil.get_terminal_size().columns, 100) - 2
    return "\n\n".join(
        "\n".join([title, *(_format_entry(name, texts[name], width) for name in names)])
        for title, names in GROUPS.items()
    )


def describe_commands(commands: Commands) -> None:
    """Each command's own help begins with what it does, and ends with an example."""
    examples = {name: example for names in GROUPS.values() for name, example in names.items()}
    for name, text in _list_help(commands).items():
        command = commands.choices[name]
        command.description = textwrap.fill(f"{text[:1].upper()}{text[1:]}.", 100)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = "\n\n".join(filter(None, (f"example: {examples[name]}", command.epilog)))


def _list_help(commands: Commands) -> dict[str, str]:
    """Every command and its help."""
    return {action.dest: action.help or "" for action in commands._choices_actions}


def _format_entry(name: str, text: str, width: int) -> str:
    """A command and its help. One whose name reaches into the column has its help below."""
    first = f"  {name}".ljust(COLUMN)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * COLUMN)


def find_unknown(word: str) -> str:
    """What is wrong with a command line that begins with `word`; "" where nothing is."""
    known = [name for names in GROUPS.values() for name in names]
    if word.startswith("-") or word in known:
        return ""
    return f"unknown command {word!r}{meant(word, known)} (`vlrl --help` lists them)"


# The codes of errors: what `vlrl explain` and the site's page of errors say of each.


@cache
def read_errors() -> dict[str, dict[str, Any]]:
    """Code -> `subject`, `means`, `remedy` (Markdown, links from docs/), and `from`: prefixes of module.function."""
    return load_yaml(Path(__file__).with_name("errors.yaml"))


def find_code(error: BaseException) -> str:
    """An error's code, by the function that raised it or the one that it only puts a place before."""
    while isinstance(error.__context__, UserError):
        error = error.__context__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return find_code_of(f"{frames[-1].f_globals['__name__']}.{frames[-1].f_code.co_qualname}")


def find_code_of(function: str) -> str:
    """The code of what a function raises, `module.function`; of one that is not ours the code of plug-ins."""
    codes = {prefix: code for code, entry in read_errors().items() for prefix in entry["from"]}
    prefixes = [prefix for prefix in codes if f"{function}.".startswith(f"{prefix}.")]
    return codes[max(prefixes, key=len, default="vlrl.plugins")]


def explain_code(code: str | None) -> str:
    """What a code means and what to do, as lines of text; without one, all codes and their subjects.

    Raises:
        UserError: there is no such code.
    """
    errors = read_errors()
    if code is None:
        return "\n".join(f"{name}  {entry['subject']}" for name, entry in errors.items())
    if (name := code.upper()) not in errors:
        raise UserError(f"explain: unknown code {code!r}{meant(name, list(errors))} (`vlrl explain` lists them)")
    entry = errors[name]
    parts = (f"{name}: {entry['subject']}", entry["means"], entry["remedy"])
    return "\n\n".join(textwrap.fill(re.sub(r"\[(.*?)\]\((.*?)\)", r"\1 (docs/\2)", part), 100) for part in parts)


# What a shell that runs `eval "$(register-python-argcomplete vlrl)"` offers behind Tab: commands and options by
# argparse, bundled configs, recipes, their keys and some values here. Loads no torch.

TRAINING = ("train", "demo", "eval", "show", "plan", "select", "record", "best-of", "doctor", "demos", "simulate")


def complete(top: argparse.ArgumentParser, commands: Commands) -> None:
    """Answers the shell that asks, by its variable _ARGCOMPLETE, and ends the process."""
    import argcomplete

    for name, command in commands.choices.items():
        for action in command._actions:
            if action.dest == "config":
                action.completer = lambda prefix, **_: [*_find_configs(prefix), *_find_files(prefix)]
            elif action.dest == "changes":
                keys = _complete_change if name in TRAINING else _find_recipes
                action.completer = keys
            elif action.dest == "kind" or (action.dest == "name" and name == "check-task"):
                action.completer = _find_kinds if action.dest == "kind" else _find_tasks
    argcomplete.autocomplete(top)


def _find_configs(prefix: str, folder: str = "") -> Iterator[str]:
    from vlrl.config import described

    return (name for name, _ in described() if name.startswith(prefix) and name.startswith(folder))


def _find_files(prefix: str) -> Iterator[str]:
    from argcomplete.completers import FilesCompleter

    return iter(FilesCompleter(("yaml", "yml", "jsonl", "json", "parquet"))(prefix))


def _find_recipes(prefix: str, **_: Any) -> list[str]:
    return [*_find_configs(prefix, "recipes/"), *_find_files(prefix)]


def _find_kinds(prefix: str, **_: Any) -> Iterable[str]:
    from vlrl.tools.option_help import KINDS

    return KINDS


def _find_tasks(prefix: str, **_: Any) -> Iterable[str]:
    from vlrl.registry import task_names

    return task_names()


def _complete_change(prefix: str, **_: Any) -> list[str]:
    """Recipes and keys; behind `key=` the values that there are."""
    from vlrl.config import Component, Config, find_section
    from vlrl.registry import HOMES, names, task_names
    from vlrl.tools.option_help import section_keys

    path = prefix.partition("=")[0]
    if "=" not in prefix:
        return [*(f"{key}=" for key, _ in section_keys(Config)), *_find_recipes(prefix)]
    annotation: Any = Config
    for key in path.split("."):
        section = find_section(annotation)
        if section is None or section is Component or key not in section.model_fields:
            return []
        annotation = section.model_fields[key].annotation
    values = task_names() if path == "task" else names(path) if path in HOMES else _find_values(annotation)
    return [f"{path}={value}" for value in values]


def _find_values(annotation: Any) -> Iterator[str]:
    """What a key of few values may be."""
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _find_values(inner)
