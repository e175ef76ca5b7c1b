"""For the pages made of docstrings: what stands behind a field in its line is what the reference says of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import griffe


class Comments(griffe.Extension):
    """A comment at the end of an attribute's lines, or in the lines right above it, becomes its docstring."""

    def on_attribute_instance(self, *, node: ast.AST, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring or not isinstance(attr.filepath, Path) or attr.lineno is None:
            return
        lines = attr.lines_collection[attr.filepath]
        said = [_behind(line) for line in lines[attr.lineno - 1 : attr.endlineno]]
        text = " ".join(filter(None, said)) or _above(lines, attr.lineno - 2)
        if text and not text.startswith(("noqa", "fmt:", "type:")):
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)


def _behind(line: str) -> str:
    """The comment of a line of code; such lines hold no other `  # `."""
    return line.partition("  # ")[2].strip()


def _above(lines: list[str], at: int) -> str:
    found: list[str] = []
    while at >= 0 and lines[at].strip().startswith("# "):
        found.insert(0, lines[at].strip()[2:])
        at -= 1
    return " ".join(found)
