"""The checkout as data: parts (files of today), where they go, what their names resolve to."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from scopes import BUILTINS, Analysis, ImportItem
from tables import EXTRA, GENERIC, INITS, NAMES, PINNED, PREFIXED

PACKAGES = ("vlrl", "tasks", "rewards", "robot")
USERS = ("tests", "bench", "examples", "docs", "scripts", "configs")
HERE = Path(__file__).parent
OWN = "scripts/layout/"  # this program is not rewritten


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(eq=False)
class Part:
    path: str
    module: str
    text: str
    an: Analysis
    target: str  # new path
    new_module: str
    moved: bool  # in this selection
    defs: dict[str, list[str]] = field(default_factory=dict)
    items: dict[str, ImportItem] = field(default_factory=dict)  # module-level import bindings

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def stem(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def only_docstring(self) -> bool:
        body = [n for n in self.an.tree.body if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
        return not body or (len(body) == 1 and isinstance(body[0], ast.Expr))

    @property
    def ours(self) -> bool:
        return self.path.split("/")[0] in PACKAGES


class Project:
    def __init__(self, root: Path, only: list[str]):
        self.root = root
        files = subprocess.check_output(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"], cwd=root, text=True
        ).split()
        files = [f for f in files if (root / f).is_file() and not (root / f).is_symlink() and not f.startswith(OWN)]
        mapping = json.loads((HERE / "old_to_new.json").read_text()) | EXTRA
        product = [f for f in files if f.split("/")[0] in PACKAGES]
        new_paths = set(mapping.values())
        self.unmapped = [f for f in product if f not in mapping and f not in new_paths and f not in INITS]
        # files already at their new place map to themselves
        self.mapping = {f: mapping.get(f, f) for f in product}
        chosen = {
            t for t in set(self.mapping.values()) if any(t == o or t.startswith(o.rstrip("/") + "/") for o in only)
        }
        while True:  # a target that exists as a file which itself goes elsewhere: take that along
            more = {self.mapping[t] for t in chosen if t in self.mapping and self.mapping[t] not in chosen}
            if not more:
                break
            chosen |= more
        self.chosen = chosen
        self.parts: dict[str, Part] = {}  # by module name
        self.users: list[Part] = []
        for f in files:
            text = (root / f).read_text()
            module = module_of(f)
            an = Analysis(text, module, f.endswith("__init__.py"))
            target = self.mapping.get(f, f)
            moved = f in self.mapping and target in chosen
            if not moved:
                target = f
            part = Part(f, module, text, an, target, module_of(target), moved)
            for name, kinds in an.top.bound.items():
                if set(kinds) - {"import"}:
                    part.defs[name] = kinds
            for item in an.imports:
                if item.scope is an.top and item.local not in part.defs:
                    part.items[item.local] = item
            if f in self.mapping:
                self.parts[module] = part
            else:
                self.users.append(part)
        self.groups: dict[str, list[Part]] = defaultdict(list)
        for part in self.parts.values():
            if part.moved and not (part.is_package and part.only_docstring and not part.target.endswith("__init__.py")):
                self.groups[part.target].append(part)
        for part in self.parts.values():  # docstring-only inits are dropped or kept by the writer
            if part.moved and part.is_package and part.only_docstring and not part.target.endswith("__init__.py"):
                part.moved, part.target, part.new_module = False, part.path, part.module
        self.final: dict[tuple[str, str], str] = {}
        self.report: list[str] = []

    def note(self, *words) -> None:
        self.report.append(" ".join(map(str, words)))

    # -- resolution
    def target_of(self, item: ImportItem):
        """('mod', M) | ('sym', M, N) | ('ext', M, N) for what an import item binds."""
        if item.name is None:
            return ("ext", item.module, None)
        dotted = f"{item.module}.{item.name}"
        if dotted in self.parts:
            part = self.parts.get(item.module)
            if part is None or item.name not in part.defs:
                return ("mod", dotted)
        if item.module in self.parts:
            return self.chase(item.module, item.name)
        return ("ext", item.module, item.name)

    def chase(self, module: str, name: str, depth: int = 0):
        part = self.parts[module]
        if name in part.defs or module == "vlrl":
            return ("sym", module, name)
        if name in part.items and depth < 9:
            item = part.items[name]
            found = self.target_of(item)
            return found if found[0] != "ext" else ("attr", module, name)
        if f"{module}.{name}" in self.parts:
            return ("mod", f"{module}.{name}")
        return ("attr", module, name)

    # -- names of definitions
    def plan_names(self) -> None:
        for part in self.parts.values():
            for name in part.defs:
                self.final[part.module, name] = name
        for target, parts in self.groups.items():
            self._plan_group(target, parts)

    def pinned(self, part: Part, name: str) -> bool:
        if (part.module, name) in PINNED or f"{part.module}.{name}" in PINNED:
            return True
        for node in part.an.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return any("method" in ast.unparse(d).split("(")[0].split(".") for d in node.decorator_list)
        return False

    def prefixed(self, part: Part, name: str) -> str:
        stem = part.stem
        under = "_" if name.startswith("_") else ""
        core = name.lstrip("_")
        if core.isupper():
            return f"{under}{stem.upper()}_{core}"
        if core[:1].isupper():
            return under + "".join(w.capitalize() for w in stem.split("_")) + core
        return f"{under}{stem}_{core}"

    def _plan_group(self, target: str, parts: list[Part]) -> None:
        stem = module_of(target).rpartition(".")[2]
        owners: dict[str, list[Part]] = defaultdict(list)
        for part in parts:
            for name in part.defs:
                named = NAMES.get(f"{part.module}.{name}")
                if (
                    named is None
                    and part.module in PREFIXED
                    and len(parts) > 1
                    and part.defs[name] == ["def"]
                    and not name.startswith("_")
                ):
                    named = self.prefixed(part, name)
                if named:
                    self.final[part.module, name] = named
                    owners[named].append(part)
                else:
                    owners[name].append(part)
        if len(parts) == 1:
            return
        for name, those in owners.items():
            if name in ("__all__", "__version__", "__getattr__", "__dir__"):
                continue
            those = [p for p in those if name in p.defs and self.final[p.module, name] == name]
            everyone = owners[name]
            keeper = None
            if len(everyone) > 1:
                pinned = [p for p in those if self.pinned(p, name)]
                principal = [p for p in those if p.stem == stem]
                keeper = (pinned or principal or [None])[0]
                if self._same(name, those) and len(those) == len(everyone):
                    continue
                if len(pinned) > 1:
                    self.note("ERROR two pinned", name, [p.path for p in pinned])
            elif name not in BUILTINS and (name not in GENERIC or those and those[0].stem == stem):
                continue
            elif those and self.pinned(those[0], name):
                continue
            for part in those:
                if part is not keeper:
                    self.rename(part, name, "collision" if len(everyone) > 1 else "generic")

    def _same(self, name: str, parts: list[Part]) -> bool:
        """The same simple assignment in each: one of them is enough."""
        dumps = set()
        for part in parts:
            found = [
                n
                for n in part.an.tree.body
                if isinstance(n, (ast.Assign, ast.AnnAssign)) and name in ast.unparse(n).split("=")[0]
            ]
            if len(found) != 1 or part.defs[name] != ["assign"]:
                return False
            value = found[0].value
            names = {x.id for x in ast.walk(value) if isinstance(x, ast.Name)} if value else set()
            if any(n not in part.items and n not in BUILTINS for n in names):
                return False
            dumps.add(
                ast.dump(found[0])
                + repr([(n, self.target_of(part.items[n])) for n in sorted(names) if n in part.items])
            )
        return len(dumps) == 1

    def rename(self, part: Part, name: str, why: str) -> None:
        old = self.final[part.module, name]
        new = self.prefixed(part, name) if old == name else old + "_"
        self.final[part.module, name] = new
        self.note("RENAME", f"{part.module}.{name}", "->", new, why)
