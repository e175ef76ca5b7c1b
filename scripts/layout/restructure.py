#!/usr/bin/env python3
"""Replays the layout step on a checkout: restructure.py ROOT --only rewards [--only tasks ...] [--commit]."""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import fixups
from engine import File, apply, render
from project import OWN, PACKAGES, Part, Project, module_of
from scopes import Analysis
from tables import DOCS, FOLDERS, INITS, MOVE_DATA

TEXT = (
    ".md",
    ".yaml",
    ".yml",
    ".toml",
    ".json",
    ".jsonl",
    ".html",
    ".css",
    ".js",
    ".jinja",
    ".sh",
    ".cff",
    ".in",
    ".ipynb",
    ".txt",
)


def sh(root: Path, *command: str, check: bool = True) -> str:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def patched_names(project: Project) -> set[tuple[str, str]]:
    """(module, name) of what tests replace while running: callers must look it up in its module."""
    found = set()
    for part in project.users:
        for node in ast.walk(part.an.tree):
            if not (
                isinstance(node, ast.Call)
                and node.args
                and ast.unparse(node.func).split(".")[-1] in ("setattr", "delattr", "object")
            ):
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                module, _, name = first.value.rpartition(".")
                if module in project.parts:
                    found.add(project.chase(module, name))
            elif isinstance(first, ast.Name) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                for item in part.an.imports:
                    if item.local == first.id:
                        target = project.target_of(item)
                        if target[0] == "mod":
                            found.add(project.chase(target[1], node.args[1].value))
    return found


def order(project: Project, parts: list[Part]) -> list[Part]:
    """Dependencies before what uses them while loading, then as the imports point."""
    inside = {p.module: p for p in parts}
    eager, soft = defaultdict(set), defaultdict(set)
    for part in parts:
        for item in part.an.imports:
            target = project.target_of(item)
            if target[0] in ("mod", "sym") and target[1] in inside and target[1] != part.module:
                (eager if item.hoist and not item.typing else soft)[part.module].add(target[1])
    out: list[Part] = []
    done: set[str] = set()

    def visit(module: str, above: tuple) -> None:
        if module in done:
            return
        if module in above:
            project.note("ERROR import cycle in a merge", above, module)
            return
        for below in sorted(eager[module]):
            visit(below, (*above, module))
        done.add(module)
        out.append(inside[module])

    stem = module_of(parts[0].target).rpartition(".")[2]
    for part in sorted(parts, key=lambda p: (not p.is_package, len(eager[p.module]) > 0, p.stem != stem, p.path)):
        visit(part.module, ())
    return out


def docstring(text: str, tree: ast.Module) -> str:
    return ast.get_docstring(tree, clean=True) or ""


def assemble(project: Project, file: File) -> str:
    parts = order(project, file.parts)
    stem = module_of(file.target).rpartition(".")[2]
    principal = next((p for p in parts if p.stem == stem), None)
    doc = DOCS.get(file.target)
    if doc is None:
        if principal is None:
            project.note("NODOC", file.target, [p.path for p in parts])
        doc = (
            docstring(principal.text, principal.an.tree)
            if principal
            else ". ".join(docstring(p.text, p.an.tree).split("\n")[0].rstrip(".") for p in parts[:1]) + "."
        )
    run_time = sorted(
        {
            render(e) + (f"  {e.comment}" if e.comment else "")
            for e in file.entities.values()
            if e.scope is None and not e.typing
        }
    )
    typing = sorted({render(e) for e in file.entities.values() if e.scope is None and e.typing} - set(run_time))
    if typing and "from typing import TYPE_CHECKING" not in run_time:
        run_time.append("from typing import TYPE_CHECKING")
    bodies, mains = [], []
    visited: set[str] = set()
    for part in parts:
        edits = file.edits[part]
        text = part.text
        body = part.an.tree.body
        for node in body:
            head = isinstance(node, ast.Expr) and node is body[0] and isinstance(node.value, ast.Constant)
            future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            exports = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            names = [t.id for t in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(t, ast.Name)]
            again = len(names) == 1 and project.final.get((part.module, names[0])) in visited and names[0] in part.defs
            if head or future or exports or again:
                a = file.at(part, node.lineno, 0)
                b = file._end(part, node)
                cut = text.find("\n", b)
                edits = [e for e in edits if not (a <= e[0] < cut)]
                edits.append((a, cut + 1, ""))
        names_here = set()
        for name in part.defs:
            names_here.add(project.final[part.module, name])
        visited |= names_here
        for block in part.an._typing_blocks:
            if all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in block.body):
                a, b = file.at(part, block.lineno, 0), file._end(part, block)
                edits = [e for e in edits if not (a <= e[0] <= b)]
                edits.append((a, b, ""))
        main = [n for n in body if isinstance(n, ast.If) and "__name__" in ast.unparse(n.test)]
        new = apply(text, edits)
        if main:
            at = new.rindex("\nif __name__")
            mains.append(new[at:].strip("\n"))
            new = new[:at]
        new = new.strip("\n")
        if not new.strip():
            continue
        own_doc = docstring(part.text, part.an.tree)
        if part is not principal and own_doc:
            lines = own_doc.split("\n")
            note = "\n".join(f"# {line}".rstrip() for line in lines)
            new = f"{note}\n\n\n{new}" if new.startswith(("def ", "class ", "@", "async ")) else f"{note}\n\n{new}"
        bodies.append(new)
    if len(mains) > 1:
        project.note("ERROR two mains", file.target)
    head = [
        f'"""{doc}\n"""' if "\n" in doc else f'"""{doc}"""',
        "",
        "from __future__ import annotations",
        "",
        *run_time,
    ]
    if typing:
        head += ["", "if TYPE_CHECKING:", *[f"    {line}" for line in typing]]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join([*bodies, *mains]) + "\n"


def early_graph(parts: dict[str, Analysis], above: bool = True) -> dict[str, set[str]]:
    graph = {}
    for module, an in parts.items():
        found = set()
        for item in an.imports:
            node = item.stmt
            late = item.typing
            while node in an.parents:
                node = an.parents[node]
                late |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if late:
                continue
            dotted = f"{item.module}.{item.name}" if item.name else item.module
            names = [dotted if dotted in parts else item.module]
            for name in names:
                while name and name not in parts and name.split(".")[0] in PACKAGES:
                    name = name.rpartition(".")[0]
                found.add(name if name in parts else name.split(".")[0])
                up = name
                while above and "." in up:  # the packages above load too
                    up = up.rpartition(".")[0]
                    if up in parts:
                        found.add(up)
        graph[module] = found - {module}
    return graph


def reach(graph, goals) -> set[str]:
    back = defaultdict(set)
    for a, those in graph.items():
        for b in those:
            back[b].add(a)
    found, todo = set(), list(goals)
    while todo:
        for a in back[todo.pop()]:
            if a not in found:
                found.add(a)
                todo.append(a)
    return found


def cycles(graph) -> list[list[str]]:
    index, low, on, stack, out = {}, {}, set(), [], []
    sys.setrecursionlimit(10000)

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v), on.add(v)
        for w in graph.get(v, ()):
            if w not in graph:
                continue
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            found = []
            while True:
                w = stack.pop()
                on.discard(w)
                found.append(w)
                if w == v:
                    break
            if len(found) > 1:
                out.append(sorted(found))

    for v in graph:
        if v not in index:
            visit(v)
    return out


class Rewriter:
    """Dotted names and paths of moved modules in any text, in one pass."""

    def __init__(self, project: Project, files: dict):
        self.p = project
        self.dotted, self.paths = {}, {}
        for part in project.parts.values():
            if part.moved:
                if part.new_module != part.module:
                    self.dotted[part.module] = part.new_module
                    self.paths[part.path] = part.target
                elif any(project.final[part.module, n] != n for n in part.defs):
                    self.dotted[part.module] = part.new_module
        for old, new in FOLDERS.items():
            if not (project.root / old).is_dir():
                self.paths[old + "/"] = new + "/"
                self.dotted.setdefault(old.replace("/", "."), new.replace("/", "."))
        self.paths |= MOVE_DATA_DONE
        names = sorted(self.dotted, key=len, reverse=True)
        paths = sorted(self.paths, key=len, reverse=True)
        options = (
            [
                rf"(?<![\w./-])(?P<dotted>{'|'.join(map(re.escape, names))})(?P<sep>[.:])?(?P<attr>(?<=[.:])[A-Za-z_]\w*)?(?![\w/])"
            ]
            if names
            else []
        )
        options += [rf"(?<![\w-])(?P<path>{'|'.join(map(re.escape, paths))})"] if paths else []
        self.pattern = re.compile("|".join(options)) if options else None
        inner = [n for n in names if "." in n]  # as a regular expression names them
        self.escaped = (
            re.compile(
                rf"(?<![\w-])({'|'.join(re.escape(n).replace(chr(92) + '.', r'\\{1,2}\.') for n in inner)})(?!\w)"
            )
            if inner
            else None
        )

    def _one(self, m: re.Match) -> str:
        if m["path"] if "path" in m.groupdict() else None:
            return self.paths[m["path"]]
        module, sep, attr = m["dotted"], m["sep"] or "", m["attr"] or ""
        if sep and attr:
            if (module, attr) in self.p.final and self.p.parts[module].moved:
                return f"{self.dotted[module]}{sep}{self.p.final[module, attr]}"
            if module in self.p.parts:
                target = self.p.chase(module, attr)
                if target[0] == "sym":
                    local = self.p.attr_local.get((module, attr), self.p.final[target[1], target[2]])
                    if self.p.parts[module].moved:
                        return f"{self.dotted[module]}{sep}{local}"
            return f"{self.dotted[module]}{sep}{attr}"
        return f"{self.dotted[module]}{sep}"

    def text(self, text: str) -> str:
        if self.escaped:
            text = self.escaped.sub(self._regular, text)
        return self.pattern.sub(self._one, text) if self.pattern else text

    def _regular(self, m: re.Match) -> str:
        """`robot\\.tabletop` of a test's `match=`."""
        dot = re.search(r"\\+\.", m[0])[0]
        return self.dotted[m[0].replace(dot, ".")].replace(".", dot)

    def python(self, text: str) -> str:
        if not self.pattern or not (self.pattern.search(text) or self.escaped and self.escaped.search(text)):
            return text
        starts = File._offsets(text)
        edits = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT, tokenize.FSTRING_MIDDLE):
                new = self.text(token.string)
                if new != token.string:
                    a = starts[token.start[0] - 1] + token.start[1]
                    b = starts[token.end[0] - 1] + token.end[1]
                    raw = text[a:b]
                    edits.append((a, b, self.text(raw)))
        return apply(text, edits)


MOVE_DATA_DONE: dict[str, str] = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--only", action="append", required=True)
    parser.add_argument("--commit", action="store_true")
    parser.add_argument("--report", type=Path, default=None)
    options = parser.parse_args()
    root = options.root.resolve()
    fixups.before(root, options.only)
    p = Project(root, options.only)
    p.attr_local = {}
    p.forced_local = set()
    p.plan_names()
    patched_old = patched_names(p)

    def patched() -> set:
        return {
            (p.parts[t[1]].new_module, p.final.get((t[1], t[2]), t[2]))
            for t in patched_old
            if t[0] in ("sym", "attr") and t[1] in p.parts
        }

    groups = {t: ps for t, ps in p.groups.items()}
    files: dict[str, File] = {}

    def planned(target, parts) -> File:
        for _ in range(400):
            kept = list(p.report)
            file = File(p, target, parts, len(parts) > 1, patched())
            file.plan()
            if file.settle_defs():
                return file
            p.report[:] = [*kept, *[n for n in p.report[len(kept) :] if n.startswith("RENAME")]]
        raise SystemExit(f"no end: {target}")

    quiet = list(p.report)
    for target, parts in groups.items():
        planned(target, parts)
    renames = [n for n in p.report if n.startswith("RENAME")]
    for again in range(2):  # twice: names that other merges import are settled by the first
        p.report[:] = [*quiet, *[n for n in renames if n not in quiet]]
        for target, parts in groups.items():
            file = files[target] = planned(target, parts)
            file.settle_imports()
            for part in parts:
                for item in part.an.imports:
                    if item.scope is part.an.top:
                        t = p.target_of(item)
                        key = None
                        if t[0] == "ext":
                            key = ("ext", item.module, item.name)
                        elif t[0] == "mod":
                            key = ("ns", p.parts[t[1]].new_module)
                        else:
                            m, f, inside = file.symbol(t)
                            if inside:
                                p.attr_local[part.module, item.local] = f
                                continue
                            key = ("sym", m, f)
                        entity = file.entities.get((None, key))
                        if entity is not None:
                            p.attr_local[part.module, item.local] = entity.local
    others = [part for part in p.parts.values() if not part.moved] + p.users
    for part in others:
        file = File(p, part.target, [part], False, patched())
        file.plan()
        if file.touched:
            file.settle_imports()
            files[part.path] = file
    # -- texts
    before = {m: part.an for m, part in p.parts.items()}
    outputs: dict[str, str] = {}
    for key, file in files.items():
        file.make_edits()
        if file.group:
            outputs[file.target] = assemble(p, file)
        else:
            part = file.parts[0]
            if file.edits[part] or part.moved:
                outputs[file.target] = apply(part.text, file.edits[part])
    # -- moves
    gone = [part.path for part in p.parts.values() if part.moved and part.path not in outputs]
    for part in p.parts.values():  # the docstring of a package whose code went elsewhere
        if part.moved and part.is_package and part.path in gone:
            init_doc = docstring(part.text, part.an.tree)
            p.note("INIT code moved", part.path)
            INITS.setdefault(part.path, init_doc)
    largest = {}
    for target, parts in groups.items():
        if not any(part.path == target for part in parts):
            best = max(parts, key=lambda q: q.text.count("\n"))
            largest[best.path] = target
    occupied = {t for t in largest.values() if (root / t).exists()}
    for n, (old, new) in enumerate(largest.items()):
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        if new in occupied:
            p.note("OCCUPIED", new)
            continue
        if (root / new).with_suffix("").is_dir():
            pass
        sh(root, "git", "mv", old, new)
    for old, new in MOVE_DATA.items():
        if (root / old).exists() and any(new.startswith(o) for o in options.only):
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            sh(root, "git", "mv", old, new)
            MOVE_DATA_DONE[old] = new
    if options.commit and sh(root, "git", "diff", "--cached", "--name-only").strip():
        sh(
            root,
            "git",
            "-c",
            "core.hooksPath=/dev/null",
            "commit",
            "-qm",
            f"Move files of {', '.join(options.only)} to their new places (contents follow)",
        )
    for path in gone:
        if (root / path).exists() and path not in outputs:
            (root / path).unlink()
    for path, text in outputs.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    # -- package folders
    for folder in sorted(
        {
            str(d.relative_to(root))
            for top in PACKAGES
            for d in [root / top, *(root / top).rglob("*")]
            if d.is_dir() and not d.is_symlink() and "__pycache__" not in d.parts
        },
        reverse=True,
    ):
        d = root / folder
        if folder.startswith("vlrl/configs"):
            continue
        init = d / "__init__.py"
        inside = [x for x in d.iterdir() if x.name not in ("__pycache__", "__init__.py")]
        has_python = any(x.suffix == ".py" for x in inside) or any(
            (x / "__init__.py").exists() for x in inside if x.is_dir()
        )
        if has_python and not init.exists():
            doc = INITS.get(f"{folder}/__init__.py")
            if doc is None:
                p.note("NOINIT", folder)
                doc = f"{folder.rpartition('/')[2].replace('_', ' ').capitalize()}."
            init.write_text(f'"""{doc}\n"""\n' if "\n" in doc else f'"""{doc}"""\n')
        elif (
            not has_python and init.exists() and any(part.path == f"{folder}/__init__.py" for part in p.parts.values())
        ):
            init.unlink()
            if inside:
                p.note("DATA LEFT", folder, [x.name for x in inside])
        for cache in d.glob("__pycache__"):
            subprocess.run(["rm", "-rf", str(cache)])
        if not list(d.iterdir()):
            d.rmdir()
    # -- other texts
    rewriter = Rewriter(p, files)
    for name in sh(root, "git", "ls-files", "--cached", "--others", "--exclude-standard").split("\n"):
        path = root / name
        if not name or not path.is_file() or path.is_symlink() or name.startswith(("CHANGELOG", OWN)):
            continue
        if path.suffix == ".py":
            old = path.read_text()
            new = rewriter.python(old)
        elif path.suffix in TEXT or path.name == "Makefile":
            old = path.read_text()
            new = rewriter.text(old)
        else:
            continue
        if options.only and p.chosen and any(c.startswith("rewards/") for c in p.chosen):
            new = reward_names(p, new, path)
        if new != old:
            path.write_text(new)
    for note in fixups.run(root, options.only, p):
        p.note(note)
    dedupe_lists(root / "pyproject.toml")
    # -- tidy
    ruff = str(root / ".venv/bin/ruff")
    sh(root, "git", "add", "-A")
    changed = [
        f for f in sh(root, "git", "diff", "HEAD", "--name-only", "--diff-filter=d").split() if f.endswith(".py")
    ]
    if changed:
        sh(root, ruff, "check", "-q", "--fix-only", "--fixable", "I,F401,F811,RUF100", *changed, check=False)
        sh(root, ruff, "format", "-q", *changed)
        unskip(
            root, sh(root, ruff, "check", "-q", "--select", "E501", "--output-format", "concise", *changed, check=False)
        )
        for name in changed:
            old = (root / name).read_text()
            new = wrap_long(old)
            if new != old:
                (root / name).write_text(new)
        sh(root, ruff, "format", "-q", *changed)
        p.note("RUFF\n" + sh(root, ruff, "check", "-q", "--output-format", "concise", *changed, check=False))
    fixups.after(root, options.only, p)
    # -- what loads what
    after = {}
    for name in sh(root, "git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES).split("\n"):
        if name.endswith(".py") and (root / name).is_file():
            after[module_of(name)] = Analysis((root / name).read_text(), module_of(name), name.endswith("__init__.py"))
    old, new = early_graph(before), early_graph(after)
    for heavy in ("torch", "transformers", "mujoco", "lerobot", "av", "skimage"):
        a, b = reach(old, [heavy]), reach(new, [heavy])
        for part in p.parts.values():
            if part.module not in a and part.new_module in b and part.new_module in after and not part.only_docstring:
                p.note("HEAVY", heavy, part.module, "->", part.new_module)
    known = [set(c) for c in cycles(early_graph(before, False))]
    for found in cycles(early_graph(after, False)):
        if set(found) not in known:
            p.note("CYCLE", found)
    for name, an in after.items():
        n = an.text.count("\n")
        if n > 800:
            p.note("LONG", name, n)
    sh(root, "git", "add", "-A")
    if options.commit:
        sh(
            root,
            "git",
            "-c",
            "core.hooksPath=/dev/null",
            "commit",
            "-qm",
            f"Layout of {', '.join(options.only)}: modules merged as the plan of the layout says",
        )
    out = "\n".join([*(f"UNMAPPED {u}" for u in p.unmapped), *p.report])
    if options.report:
        options.report.write_text(out + "\n")
    print(*[line for line in out.split("\n") if not line.startswith("RENAME")], sep="\n")
    print(len(p.groups), "files;", sum(line.startswith("RENAME") for line in p.report), "renames")


def reward_names(p: Project, text: str, path: Path) -> str:
    """`module.function`, as rewards are named in lists, pages and tests."""
    names = {}
    for part in p.parts.values():
        if part.moved and part.module.startswith("rewards."):
            for name in part.defs:
                old, new = f"{part.stem}.{name}", f"{part.new_module.rpartition('.')[2]}.{p.final[part.module, name]}"
                if old != new and not name.startswith("_"):
                    names[old] = new

    def row(m: re.Match) -> str:
        """`a.b`, `.c`, `.d` in a table."""
        stem = m[1]
        more = re.sub(r"`\.(\w+)`", lambda k: f"`{stem}.{k[1]}`" if f"{stem}.{k[1]}" in names else k[0], m[3])
        return f"`{stem}.{m[2]}`{more}"

    if path.suffix == ".md":
        text = re.sub(r"`(\w+)\.(\w+)`((?:(?:,| and| or) `\.\w+`)+)", row, text)
    for quote in ("`", '"'):
        text = re.sub(rf"{quote}(\w+\.\w+){quote}", lambda m: f"{quote}{names.get(m[1], m[1])}{quote}", text)
    return text


def unskip(root: Path, found: str) -> None:
    """A statement kept from the formatter that has grown over the line's length is given to it."""
    by_file = defaultdict(set)
    for name, line in re.findall(r"^(\S+?):(\d+):", found, re.M):
        by_file[name].add(int(line))
    for name, numbers in by_file.items():
        lines = (root / name).read_text().split("\n")
        for n in numbers:
            for at in range(n - 1, min(n + 12, len(lines))):
                if lines[at].endswith("# fmt: skip"):
                    lines[at] = re.sub(r"\s*# fmt: skip$", "", lines[at])
                    break
        (root / name).write_text("\n".join(lines))


def wrap_long(text: str) -> str:
    """Comment lines and lines of docstrings that grew over 120 characters."""
    out = []
    lines = text.split("\n")
    strings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings |= set(range(node.lineno, node.end_lineno + 1))
    for number, line in enumerate(lines, 1):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        comment = bare.startswith("# ")
        if len(line) > 120 and (comment or number in strings):
            at = line.rindex(" ", 0, 118)
            out.append(line[:at])
            out.append(indent + ("# " if comment else "") + line[at + 1 :])
        else:
            out.append(line)
    return "\n".join(out)


def dedupe_lists(path: Path) -> None:
    """Each entry of the lint lists once."""
    text = path.read_text()

    def once(m: re.Match) -> str:
        items = list(dict.fromkeys(re.findall(r'"([^"]+)"', m[2])))
        lines, line = [], "   "
        for item in items:
            piece = f' "{item}",'
            if len(line) + len(piece) > 116:
                lines.append(line)
                line = "   "
            line += piece
        return m[1] + "\n" + "\n".join([*lines, line]) + "\n]"

    new = re.sub(r"(\[\[tool\.ty\.overrides\]\][^\n]*\ninclude = \[)(.*?)\n\]", once, text, flags=re.S)
    if new != text:
        path.write_text(new)


if __name__ == "__main__":
    main()
