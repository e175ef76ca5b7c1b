"""A benchmark program of several subcommands: `python bench/speed.py vs_trl --help`. Each is a script of its folder."""

import ast
import os
import runpy
import sys
from pathlib import Path


def run(program: str, commands: tuple[str, ...]) -> None:
    """Runs the script that the first argument names, with the others; without one, lists them.

    Args:
        program: `__file__` of the program; its scripts lie in the folder of its name.
        commands: their names.
    """
    folder = Path(program).with_suffix("")
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in commands:
        sys.argv[:2] = [f"{program} {name}"]
        sys.path[0] = str(folder)  # scripts import their neighbours
        runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
        return
    lines = [f"usage: python bench/{folder.name}.py SUBCOMMAND [--help]", ""]
    for command in commands:
        text = ast.get_docstring(ast.parse((folder / f"{command}.py").read_text())) or ""
        lines.append(f"  {command:<18} {text.splitlines()[0]}")
    if name not in ("-h", "--help"):
        lines[:0] = [f"bench/{folder.name}.py: no subcommand {name!r}", ""]
    print(*lines, sep=os.linesep, file=sys.stdout if name in ("-h", "--help") else sys.stderr)
    sys.exit(0 if name in ("-h", "--help") else 2)
