"""What `vlrl --help` prints: the commands by what one wants to do."""

from __future__ import annotations

import shutil
import textwrap

from vlrl.commands.base import Commands
from vlrl.spelling import meant

GROUPS = {
    "First": ("demo", "doctor", "list", "show"),
    "Train and evaluate": ("train", "eval", "view", "plan", "compare", "stages", "warmstart"),
    "Data, tasks and rewards": ("check-task", "score", "capture", "select", "best-of", "record"),
    "Models for others": ("export", "average", "card", "push", "serve-model"),
    "Robots in simulation": ("simulate", "clone", "demos", "residual", "offpolicy", "preferences", "pretrain"),
    "Robots on a bench": ("emulate", "serve", "deploy", "replay", "trial", "learn", "reward-model"),
}
COLUMN = 17  # where a command's help begins


def text(commands: Commands) -> str:
    """All groups, in lines of the terminal's width.

    Raises:
        KeyError: a group names a command that there is not.
    """
    said = _said(commands)
    width = min(shutil.get_terminal_size().columns, 100) - 2
    return "\n\n".join(
        "\n".join([title, *(_entry(name, said[name], width) for name in names)]) for title, names in GROUPS.items()
    )


def describe(commands: Commands) -> None:
    """Each command's own help begins with what it does."""
    for name, said in _said(commands).items():
        commands.choices[name].description = f"{said[:1].upper()}{said[1:]}."


def _said(commands: Commands) -> dict[str, str]:
    """Every command and its help."""
    return {action.dest: action.help or "" for action in commands._choices_actions}


def _entry(name: str, said: str, width: int) -> str:
    """A command and its help. One whose name reaches into the column has its help below."""
    first = f"  {name}".ljust(COLUMN)
    return textwrap.fill(said, width, initial_indent=first, subsequent_indent=" " * COLUMN)


def unknown(word: str) -> str:
    """What is wrong with a command line that begins with `word`; "" where nothing is."""
    known = [name for names in GROUPS.values() for name in names]
    if word.startswith("-") or word in known:
        return ""
    return f"unknown command {word!r}{meant(word, known)} (`vlrl --help` lists them)"
