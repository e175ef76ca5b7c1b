"""Names and edits of every file that is merged, or that refers to what is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field

from project import Part, Project
from scopes import BUILTINS, ImportItem, Ref, Scope
from tables import GENERIC


@dataclass(eq=False)
class Entity:
    """What a file binds by import."""

    key: tuple  # ('ext', M, N) ('sym', newmodule, final) ('ns', newmodule)
    scope: Scope | None  # None: the module
    preferred: list[str]
    uses: list[tuple[Part, Ref]] = field(default_factory=list)
    local: str = ""
    typing: bool = True  # only for type checkers
    comment: str = ""
    part: Part | None = None


class File:
    """One file to be written: a group of parts, or one user of moved parts."""

    def __init__(self, project: Project, target: str, parts: list[Part], group: bool, patched: set):
        self.p, self.target, self.parts, self.group, self.patched = project, target, parts, group, patched
        self.module = parts[0].new_module
        self.members = {part.module for part in parts} if group else set()
        self.edits: dict[Part, list[tuple[int, int, str]]] = defaultdict(list)
        self.entities: dict[tuple, Entity] = {}
        self.statements: dict[tuple[Part, ast.AST], list[Entity | ImportItem]] = defaultdict(list)
        self.touched = group
        self.managed: dict[Part, list[ImportItem]] = defaultdict(list)
        self.removed: set[tuple[Scope, str]] = set()
        self.ref_plan: list = []  # (part, ref, entity or None, how, text)
        self.starts = {part: self._offsets(part.text) for part in parts}
        self.local_of: dict[tuple[str, str], str] = {}  # (old module, imported name) -> local name now

    @staticmethod
    def _offsets(text: str) -> list[int]:
        found, at = [0], 0
        for line in text.splitlines(keepends=True):
            at += len(line)
            found.append(at)
        return found

    def at(self, part: Part, line: int, col: int) -> int:
        return self.starts[part][line - 1] + col

    # -- which import items change
    def changes(self, target) -> bool:
        kind = target[0]
        if kind == "mod":
            part = self.p.parts[target[1]]
            return part.moved and (
                part.new_module != part.module or any(self.p.final[part.module, n] != n for n in part.defs)
            )
        if kind in ("sym", "attr"):
            part = self.p.parts[target[1]]
            return part.moved
        return False

    def mod_changes_through(self, item: ImportItem, target) -> bool:
        """`from package import name` where the package re-exports a name that moved."""
        return item.module in self.p.parts and self.p.parts[item.module].moved

    def plan(self) -> None:
        for part in self.parts:
            refs = defaultdict(list)
            for ref in part.an.refs:
                if ref.home is not None:
                    refs[ref.home, ref.name].append(ref)
            for item in part.an.imports:
                target = self.p.target_of(item)
                if item.module == "__future__":
                    continue
                changed = self.changes(target) or (target[0] != "ext" and self.mod_changes_through(item, target))
                hoisted = self.group and item.hoist
                if not changed and not hoisted:
                    continue
                binds = item.scope.bound.get(item.local, [])
                others = [
                    i for i in part.an.imports if i.scope is item.scope and i.local == item.local and i is not item
                ]
                complex_ = set(binds) != {"import"} or (others and any(self.p.target_of(o) != target for o in others))
                if complex_ and changed:
                    self._in_place(part, item, target)
                    continue
                if complex_ and hoisted and not changed:
                    self.p.note("ERROR", part.path, item.stmt.lineno, "import bound twice at the top:", item.local)
                self.managed[part].append(item)
                self.removed.add((item.scope, item.local))
                self.touched = True
                self._plan_item(part, item, target, refs[item.scope, item.local])

    def _in_place(self, part, item, target):
        self.touched = True
        if target[0] == "sym":
            key = ("sym", self.p.parts[target[1]].new_module, self.p.final[target[1], target[2]])
        elif target[0] == "mod":
            key = ("ns", self.p.parts[target[1]].new_module)
        else:
            key = ("sym", self.p.parts[target[1]].new_module, target[2])
        entity = Entity(key, item.scope, [item.local], part=part)
        entity.local, entity.typing = item.local, item.typing
        self.managed[part].append(item)
        self.statements[part, item.stmt].append(entity)
        self.p.note("INPLACE", part.path, item.stmt.lineno, item.local)

    def _entity(self, part: Part, item: ImportItem, key: tuple, preferred: list[str]) -> Entity:
        scope = None if item.scope is part.an.top else item.scope
        scoped = (scope, key)
        if scoped not in self.entities:
            self.entities[scoped] = Entity(key, scope, preferred, part=part)
        entity = self.entities[scoped]
        entity.preferred += [x for x in preferred if x not in entity.preferred]
        if not item.typing:
            entity.typing = False
        if (self.group and item.hoist) is False and entity not in self.statements[part, item.stmt]:
            self.statements[part, item.stmt].append(entity)
        return entity

    def symbol(self, target) -> tuple[str, str, bool]:
        """New module, final name, whether in this very file."""
        module, name = target[1], target[2]
        final = self.p.final.get((module, name), name)
        if target[0] == "attr":
            final = self.p.attr_local.get((module, name), name)
        return self.p.parts[module].new_module, final, module in self.members

    def _plan_item(self, part: Part, item: ImportItem, target, refs: list[Ref]) -> None:
        kind = target[0]
        if kind == "ext":
            entity = self._entity(part, item, ("ext", item.module, item.name), [item.local])
            entity.uses += [(part, r) for r in refs]
            for r in refs:
                self.ref_plan.append((part, r, entity, "name", item.local))
            line = part.an.lines[item.stmt.end_lineno - 1]
            if "#" in line[part.an.col(item.stmt.end_lineno, item.stmt.end_col_offset) :]:
                entity.comment = line[line.index("#") :].strip()
            return
        if kind in ("sym", "attr"):
            module, final, inside = self.symbol(target)
            if inside:
                for r in refs:
                    self.ref_plan.append((part, r, None, "def", (target[1], target[2])))
                return
            alias = [item.local] if item.alias.asname and item.alias.asname not in GENERIC else []
            names = [*alias, final]
            if target[0] == "sym" and self.p.final[target[1], target[2]] == target[2] and item.local == target[2]:
                names = [item.local]
            entity = self._entity(part, item, ("sym", module, final), names)
            entity.uses += [(part, r) for r in refs]
            for r in refs:
                self.ref_plan.append((part, r, entity, "name", item.local))
            return
        self._plan_namespace(part, item, target[1], refs)

    def _plan_namespace(self, part: Part, item: ImportItem, module: str, refs: list[Ref]) -> None:
        home = self.p.parts[module]
        uses = []  # (ref, attr node or None, target, extra)
        force = False
        for r in refs:
            if not isinstance(r.node, ast.Name):
                continue
            parent = r.parent
            if isinstance(parent, ast.Attribute) and parent.value is r.node:
                target = self.p.chase(module, parent.attr)
                above = part.an.parents.get(parent)
                if (
                    target[0] == "mod" and isinstance(above, ast.Attribute) and above.value is parent
                ):  # package.module.name
                    parent, target = above, self.p.chase(target[1], above.attr)
                uses.append((r, parent, target, None))
                if not isinstance(parent.ctx, ast.Load):
                    force = True
                continue
            string = self._patched_name(parent, r)
            if string is not None:
                target = self.p.chase(module, string.value)
                if target[0] == "sym" and target[1] != module:  # patched where it is imported
                    importer = self.p.parts[module]
                    same = importer.new_module == self.p.parts[target[1]].new_module and importer.moved
                    if not same:
                        target = ("attr", module, string.value)
                uses.append((r, None, target, string))
                force = True
            else:
                uses.append((r, None, ("whole", module), None))
                force = True
                if home.moved and len(self.p.groups.get(home.target, [])) > 1:
                    self.p.note(
                        "BARE", f"{part.path}:{r.node.lineno}", item.local, "is used as an object; module", module
                    )
        by_new = defaultdict(list)
        for use in uses:
            target = use[2]
            new = home.new_module if target[0] == "whole" else self.p.parts[target[1]].new_module
            by_new[new].append(use)
        if not uses and not (self.group and module in self.members):
            by_new[home.new_module] = []
        for new, those in by_new.items():
            self._plan_one_namespace(part, item, module, new, those, force)

    def _patched_name(self, parent, ref) -> ast.Constant | None:
        if isinstance(parent, ast.Call) and parent.args and parent.args[0] is ref.node and len(parent.args) > 1:
            name = ast.unparse(parent.func)
            if (
                name.split(".")[-1] in ("setattr", "delattr", "getattr", "object")
                and isinstance(parent.args[1], ast.Constant)
                and isinstance(parent.args[1].value, str)
            ):
                return parent.args[1]
        return None

    def _plan_one_namespace(self, part, item, module, new, uses, force) -> None:
        inside = new == self.module and self.group
        stem = new.rpartition(".")[2]
        if inside:
            for r, attr, target, string in uses:
                if attr is not None and target[0] == "sym":
                    self.ref_plan.append((part, r, None, "attrdef", (attr, (target[1], target[2]))))
                else:
                    self.p.note(
                        "ERROR",
                        part.path,
                        r.node.lineno,
                        "module object used inside its own merge:",
                        item.local,
                        target,
                    )
            return
        names = {t[2]: self.symbol(t)[1] for _, _, t, _ in uses if t[0] in ("sym", "attr")}
        force = force or any(t[0] in ("mod", "attr") for _, _, t, _ in uses) or not uses
        force = force or any((new, f) in self.patched for f in names.values())
        distinct = (
            all((n != f) or "_" in f or len(f) > 6 for n, f in names.items()) and not set(names.values()) & GENERIC
        )
        own = item.local == stem or (not item.alias.asname and stem == module.rpartition(".")[2])
        if not force and not own:
            direct = {}
            for f in set(names.values()):
                those = [(part, r) for r, a, t, s in uses if self.symbol(t)[1] == f]
                ok = not self._conflict(f, part, item, [r for _, r in those])
                direct[f] = ok
            bad_namespace = self._conflict(stem, part, item, [u[0] for u in uses]) or any(
                stem in s.bound and (s, stem) not in self.removed for s in part.an.scopes.values()
            )
            if all(direct.values()) and (distinct or bad_namespace):
                for f in direct:
                    entity = self._entity(part, item, ("sym", new, f), [f])
                    for r, attr, t, _ in uses:
                        if self.symbol(t)[1] == f:
                            entity.uses.append((part, r))
                            self.ref_plan.append((part, r, entity, "attr", attr))
                return
        preferred = [item.local] if item.alias.asname and item.local not in (module.rpartition(".")[2],) else [stem]
        entity = self._entity(part, item, ("ns", new), preferred)
        for r, attr, target, string in uses:
            entity.uses.append((part, r))
            final = self.symbol(target)[1] if target[0] in ("sym", "attr") else ""
            if target[0] == "mod":
                self.p.note(
                    "ERROR",
                    part.path,
                    r.node.lineno,
                    "submodule through a package",
                    ast.unparse(attr) if attr else target,
                )
            self.ref_plan.append((part, r, entity, "ns", (attr, string, final)))

    # -- conflicts
    def _conflict(self, name: str, part: Part, item: ImportItem, refs: list[Ref]) -> bool:
        scope = item.scope
        top = part.an.top
        bound = set(scope.bound.get(name, []))
        if bound and (scope, name) not in self.removed:
            if not (bound == {"import"} and item.local == name):
                return True
        if scope is top:
            for other in self.parts:
                if other is not part and name in other.an.top.bound and self.group:
                    return True
            if self.group and name in self._finals():
                return True
        if any(r.name == name and r.home is None for r in part.an.refs):
            return True
        for r in refs:
            for s in r.scope.chain():
                if s is scope:
                    break
                if name in s.bound and (s, name) not in self.removed:
                    return True
        if scope is not top:
            for r in part.an.refs:
                if (
                    r.name == name
                    and r.home is not scope
                    and scope in r.scope.chain()
                    and (r.home is None or scope not in r.home.chain() or r.home is scope)
                ):
                    if r.home is None or r.home in scope.chain():
                        return True
        return False

    def _finals(self) -> set[str]:
        return {self.p.final[part.module, n] for part in self.parts for n in part.defs}

    # -- definitions: rename until nothing is hidden
    def settle_defs(self) -> bool:
        """Whether all references to definitions see them; renames one that is not."""
        for part, r, entity, how, what in self.ref_plan:
            if entity is not None:
                continue
            module, name = what if how == "def" else what[1]
            if not self._visible(self.p.final[module, name], part, r):
                self._rename_def(module, name, f"hidden by a local name in {part.path}:{r.node.lineno}")
                return False
        for part in self.parts:
            for r in part.an.refs:
                if r.home is part.an.top and r.name in part.defs:
                    final = self.p.final[part.module, r.name]
                    if final != r.name and not self._visible(final, part, r):
                        self._rename_def(part.module, r.name, f"hidden by a local name in {part.path}:{r.node.lineno}")
                        return False
        if not self.group:
            return True
        # imported names against definitions
        finals = defaultdict(list)
        for part in self.parts:
            for n in part.defs:
                finals[self.p.final[part.module, n]].append((part, n))
        for (scope, key), entity in self.entities.items():
            if scope is None and key[0] == "ext":
                for part, n in finals.get(entity.preferred[0], []):
                    if not self.p.pinned(part, n):
                        self._rename_def(part.module, n, f"import of {key}")
                        return False
                    entity.preferred = ["_" + entity.preferred[0]]
        return True

    def _rename_def(self, module, name, why) -> None:
        part = self.p.parts[module]
        if self.p.pinned(part, name):
            self.p.note("ERROR pinned", module, name, why)
            self.p.forced_local.add((module, name))
            raise SystemExit(f"pinned {module}.{name}: {why}")
        self.p.rename(part, name, why)

    def _visible(self, final: str, part: Part, r: Ref) -> bool:
        for s in r.scope.chain():
            if s is part.an.top:
                return True
            if final in s.bound and (s, final) not in self.removed:
                return False
        return True

    # -- local names of imports
    def settle_imports(self) -> None:
        taken: dict[tuple, str] = {}
        finals = self._finals() if self.group else set()
        order = sorted(
            self.entities.values(),
            key=lambda e: (e.scope is not None, e.key[0] != "ext", e.preferred[0] not in (e.key[-1],)),
        )
        for entity in order:
            stem = entity.key[1].rpartition(".")[2]
            last = entity.key[-1] if entity.key[0] != "ns" else stem
            parent = entity.key[1].split(".")[-2] if "." in entity.key[1] else ""
            tail = (
                [prefix(stem, last or ""), prefix(stem, last or "") + "_"]
                if entity.key[0] != "ns"
                else [f"{parent}_{stem}", f"{stem}_module"]
            )
            for name in [*entity.preferred, *tail]:
                if self._free(name, entity, taken, finals):
                    break
            else:
                self.p.note("ERROR no free name", self.target, entity.key, entity.preferred)
            entity.local = name
            taken[entity.scope, name] = entity.key
            if name != entity.preferred[0]:
                self.p.note("ALIAS", self.target, entity.key, "as", name)

    def _free(self, name, entity, taken, finals) -> bool:
        if (entity.scope, name) in taken:
            return False
        if entity.key[0] == "ns" and name != "np":  # a module's name means nothing else in the file
            for part in self.parts if entity.scope is None else [entity.part]:
                for scope in part.an.scopes.values():
                    if name in scope.bound and (scope, name) not in self.removed:
                        return False
        scopes = [
            s for part in (self.parts if entity.scope is None else [entity.part]) for s in part.an.scopes.values()
        ]
        if not any("import" in s.bound.get(name, []) for s in scopes) and any(name in s.bound for s in scopes):
            return False  # a name that is new to the file means nothing else in it
        if entity.scope is None:
            if name in finals:
                return False
            for part in self.parts:
                top = part.an.top
                if name in top.bound and (top, name) not in self.removed and (not self.group or name not in part.defs):
                    return False
                if any(r.name == name and r.home is None for r in part.an.refs) and name in BUILTINS:
                    # a builtin of this name is used
                    if entity.key[0] != "ext":
                        return False
            for part, r in entity.uses:
                if not self._visible(name, part, r):
                    return False
            return True
        scope, part = entity.scope, entity.part
        if name in scope.bound and (scope, name) not in self.removed:
            return False
        for r in part.an.refs:
            if (
                r.name == name
                and scope in r.scope.chain()
                and (r.home is None or (r.home is not scope and r.home in scope.chain()))
            ):
                if (r.home, name) not in self.removed:
                    return False
        for p2, r in entity.uses:
            for s in r.scope.chain():
                if s is scope:
                    break
                if name in s.bound and (s, name) not in self.removed:
                    return False
        return True

    # -- edits
    def make_edits(self) -> None:
        for part, r, entity, how, what in self.ref_plan:
            a, b = self.at(part, r.pos[0], r.pos[1]), self.at(part, r.pos[0], r.pos[2])
            if how == "def":
                new = self.p.final[what]
                if new != r.name:
                    self.edits[part].append((a, b, new))
            elif how == "attrdef":
                self.edits[part].append((a, self._end(part, what[0]), self.p.final[what[1]]))
            elif how == "name":
                if entity.local != r.name:
                    self.edits[part].append((a, b, entity.local))
            elif how == "attr":
                self.edits[part].append((a, self._end(part, what), entity.local))
            elif how == "ns":
                attr, string, final = what
                if attr is not None:
                    self.edits[part].append((a, self._end(part, attr), f"{entity.local}.{final or attr.attr}"))
                else:
                    if entity.local != r.name:
                        self.edits[part].append((a, b, entity.local))
                    if string is not None and final != string.value:
                        s = self.at(part, string.lineno, part.an.col(string.lineno, string.col_offset))
                        self.edits[part].append((s, self._end(part, string), f'"{final}"'))
        for part in self.parts:
            for r in part.an.refs:
                if r.home is part.an.top and r.name in part.defs and part.moved:
                    final = self.p.final[part.module, r.name]
                    if final != r.name:
                        self.edits[part].append(
                            (self.at(part, r.pos[0], r.pos[1]), self.at(part, r.pos[0], r.pos[2]), final)
                        )
            self._quoted(part)
            self._import_edits(part)

    def _quoted(self, part: Part) -> None:
        """Names in `cast("X", ...)` and in string annotations: warned of."""
        for node in ast.walk(part.an.tree):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).split(".")[-1] == "cast"
                and isinstance(node.args[0], ast.Constant)
            ):
                text = node.args[0].value
                new = re.sub(r"\b[A-Za-z_]\w*", lambda m: self._name_now(part, m[0]), text)
                if new != text:
                    s = self.at(part, node.args[0].lineno, part.an.col(node.args[0].lineno, node.args[0].col_offset))
                    self.edits[part].append((s, self._end(part, node.args[0]), f'"{new}"'))

    def _name_now(self, part: Part, name: str) -> str:
        if name in part.defs and part.moved:
            return self.p.final[part.module, name]
        if name in part.items:
            target = self.p.target_of(part.items[name])
            if target[0] == "sym" and self.p.parts[target[1]].moved:
                return self.p.final[target[1], target[2]]
        return name

    def _end(self, part, node) -> int:
        return self.at(part, node.end_lineno, part.an.col(node.end_lineno, node.end_col_offset))

    def _import_edits(self, part: Part) -> None:
        by_stmt = defaultdict(list)
        for item in self.managed[part]:
            by_stmt[item.stmt].append(item)
        for stmt, items in by_stmt.items():
            start = self.at(part, stmt.lineno, part.an.col(stmt.lineno, stmt.col_offset))
            end = self._end(part, stmt)
            hoisted = self.group and items[0].hoist
            aliases = [i.alias for i in items]
            left = [a for a in stmt.names if a not in aliases]
            line = part.an.lines[stmt.lineno - 1]
            indent = line[: len(line) - len(line.lstrip())]
            new = []
            if left:
                body = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in left)
                new.append(
                    f"from {'.' * stmt.level}{stmt.module or ''} import {body}"
                    if isinstance(stmt, ast.ImportFrom)
                    else f"import {body}"
                )
            new += joined(sorted({render(e) for e in self.statements[part, stmt]}))
            if hoisted or not new:
                # the whole line goes, with its comment
                tail = part.text[end:]
                cut = len(tail) - len(re.sub(r"^[ \t]*(#[^\n]*)?\n?", "", tail, count=1))
                if part.text[start - len(indent) : start].strip() == "" and line.strip():
                    begin = start - len(indent)
                else:
                    begin = start
                siblings = self._alone(part, stmt)
                if siblings and not hoisted:
                    self.edits[part].append((start, end, "pass"))
                    self.p.note("PASS", part.path, stmt.lineno)
                elif self._is_typing_block_only(part, stmt):
                    self.edits[part].append((begin, end + cut, ""))
                else:
                    self.edits[part].append((begin, end + cut, ""))
            else:
                noqa = re.match(r"[ \t]*(#[ ]?noqa[^\n]*)", part.text[end:])
                tail = f"  {noqa[1]}" if noqa else ""
                self.edits[part].append((start, end, (tail + "\n" + indent).join(new)))

    def _alone(self, part, stmt) -> bool:
        parent = part.an.parents[stmt]
        for name in ("body", "orelse", "finalbody"):
            body = getattr(parent, name, [])
            if stmt in body:
                gone = {i.stmt for i in self.managed[part] if not self.statements[part, i.stmt]}
                return all(s in gone for s in body)
        return False

    def _is_typing_block_only(self, part, stmt) -> bool:
        return False


def prefix(stem: str, name: str) -> str:
    core = name.lstrip("_")
    if core.isupper():
        return f"{stem.upper()}_{core}"
    if core[:1].isupper():
        return "".join(w.capitalize() for w in stem.split("_")) + core
    return f"{stem}_{core}"


def joined(lines: list[str]) -> list[str]:
    """One statement a module."""
    found: dict[str, list[str]] = {}
    for line in lines:
        head, _, names = line.partition(" import ")
        found.setdefault(head, []).append(names)
    return [f"{head} import {', '.join(names)}" if names != [""] else head for head, names in found.items()]


def render(entity: Entity) -> str:
    kind = entity.key[0]
    if kind == "ext":
        _, module, name = entity.key
        if name is None:
            top = module.split(".")[0]
            return f"import {module}" + (
                f" as {entity.local}"
                if entity.local not in (top, module) or (entity.local != top and "." not in module)
                else ""
            )
        return f"from {module} import {name}" + (f" as {entity.local}" if entity.local != name else "")
    if kind == "sym":
        _, module, name = entity.key
        return f"from {module} import {name}" + (f" as {entity.local}" if entity.local != name else "")
    module = entity.key[1]
    package, _, stem = module.rpartition(".")
    if not package:
        return f"import {module}" + (f" as {entity.local}" if entity.local != module else "")
    return f"from {package} import {stem}" + (f" as {entity.local}" if entity.local != stem else "")


def apply(text: str, edits: list[tuple[int, int, str]]) -> str:
    out, at = [], 0
    for a, b, new in sorted(set(edits)):
        if a < at:
            raise ValueError(f"overlapping edits near {text[a - 40 : b + 40]!r}")
        out += [text[at:a], new]
        at = b
    return "".join([*out, text[at:]])
