"""What can be named in a YAML or on the command line: counted, in groups of aligned lines, or found by words."""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from vlrl import registry
from vlrl.config import RENAMED, TRL, VERL, Config, described
from vlrl.policies import FAMILIES
from vlrl.tools.option_help import section_keys
from vlrl.types import SYNONYMS, UserError, meant

Row = tuple[str, ...]  # its group, "" for none, its name, and what is said of it
MORE = "`vlrl list KIND` or `vlrl list GROUP`: a line for each; `vlrl list --search WORD` finds TRL's and verl's words"


def listing(name: str | None = None, width: int = 100) -> str:
    """Each kind in one line; with a name, a line for each of that kind or group.

    Args:
        name: a kind (tasks, rewards, methods, ...), or a group of one (losses, recipes, boxes, ...).
        width: of the lines that name no kind, in characters.

    Raises:
        UserError: no such kind, with the nearest right one.
    """
    if name is None:
        return "\n".join([*(_summary(kind, list(rows()), width) for kind, rows in KINDS.items()), "", MORE])
    if name in KINDS:
        return _table(name, list(KINDS[name]()))
    groups = {row[0]: kind for kind, rows in KINDS.items() for row in rows()}
    if name not in groups or not name:
        raise UserError(f"list: unknown kind {name!r}{meant(name, [*KINDS, *groups])} (one of: {', '.join(KINDS)})")
    return _table(groups[name], [row for row in KINDS[groups[name]]() if row[0] == name])


def search(words: str) -> str:
    """Everything whose name, group or text has all the words, in any spelling of theirs; synonyms are followed.

    Raises:
        UserError: nothing has, with the nearest name.
    """
    terms = _plain(words).split()
    name = words.strip().lower().replace("-", "_").replace(" ", "_")
    meant_by = {SYNONYMS.get(name), RENAMED.get(name, "").partition(" ")[0]} - {None, ""}
    matches: dict[str, list[Row]] = {}
    for kind, rows in KINDS.items():
        for row in rows():
            if row[1] in meant_by or all(word in _plain(" ".join(row)) for word in terms):
                matches.setdefault(kind, []).append(row)
    if not matches or not terms:
        hint = meant(words, [row[1] for rows in KINDS.values() for row in rows()])
        raise UserError(f"list: nothing has {words!r} in its name or description{hint}")
    return "\n\n".join(_table(kind, rows) for kind, rows in matches.items())


def _plain(text: str) -> str:
    return text.lower().replace("_", " ").replace("-", " ")


def _summary(kind: str, rows: Sequence[Row], width: int) -> str:
    """`methods  152  advantages 28, losses 40, ...`; the names of a kind without groups."""
    groups = [(group, len(list(each))) for group, each in itertools.groupby(row[0] for row in rows)]
    parts = [f"{group or 'top'} {count}" for group, count in groups] if len(groups) > 1 else [row[1] for row in rows]
    first = f"{kind:10}{len(rows):4}  "
    return first + textwrap.shorten(", ".join(parts), width - len(first), placeholder=" ...")


def _table(kind: str, rows: Sequence[Row]) -> str:
    """A title, and below each group's name its rows as columns."""
    lines = [f"{kind.upper()} ({len(rows)})"]
    for group, each in itertools.groupby(rows, key=lambda row: row[0]):
        lines += [f" {group}"] if group else []
        lines += _aligned([row[1:] for row in each])
    return "\n".join(lines)


def _tasks() -> Iterator[Row]:
    for name in (*registry.task_names(), *registry.NEED_OPTIONS):
        target = registry.find("task", name)
        module = inspect.getmodule(target)
        yield "", name, _first_line(module)


def _rewards() -> Iterator[Row]:
    for name, function in sorted(registry.rewards().items()):
        parameters = ", ".join(inspect.signature(function).parameters)
        yield name.partition(".")[0], f"{name}({parameters})", _first_line(function)


def _methods() -> Iterator[Row]:
    for kind in registry.HOMES:
        for name, target in registry.names(kind).items():
            about = registry.describe(target)
            needs = f"needs {about['needs']}" if about["needs"] else ""
            yield kind, name, needs, about["summary"], f"[{_status(about['source'])}{about['source']}]"


def _status(source: str) -> str:
    """What stands before a method's source: whether it is as its paper has it, in part ours, or no paper's."""
    if not re.search(r"\d{4}\.\d{4,5}|github\.com|TRL|verl", source):
        return ""
    ours = re.search(r"reconstruct|\bours?\b|\bour own\b|not known|left out$", source)
    return "partly ours: " if ours else "published: "


def _policies() -> Iterator[Row]:
    yield from (("", name, text) for name, text in FAMILIES.items())


def _robots() -> Iterator[Row]:
    for name, entry in registry.robots().items():
        yield "", name, f"needs {entry.needs}", entry.summary


def _configs() -> Iterator[Row]:
    yield from sorted((name.rpartition("/")[0], name, text) for name, text in described())


def _keys() -> Iterator[Row]:
    peers = {"TRL": TRL, "verl": VERL}
    for path, text in sorted(section_keys(Config), key=lambda each: each[0].rpartition(".")[0]):
        old = {peer: [name for name, new in table.items() if new.split()[0] == path] for peer, table in peers.items()}
        names = "; ".join(f"{peer}: {', '.join(each)}" for peer, each in old.items() if each)
        yield path.rpartition(".")[0], path, text, f"[{names}]" if names else ""


KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "tasks": _tasks, "rewards": _rewards, "methods": _methods, "policies": _policies, "robots": _robots,
    "configs": _configs, "keys": _keys,
}  # fmt: skip


def _first_line(target: object) -> str:
    return (inspect.getdoc(target) or "").partition("\n")[0]


def _aligned(rows: Sequence[Row]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart; the last is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
