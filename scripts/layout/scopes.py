"""Scopes of a Python file: which binding every name refers to, with text positions."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field

BUILTINS = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__package__", "__spec__", "__path__"}


@dataclass(eq=False)
class Scope:
    kind: str  # module function class comprehension
    parent: Scope | None
    node: ast.AST
    bound: dict[str, list[str]] = field(default_factory=dict)  # name -> kinds: import, def, class, assign, param
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    depth: int = 0

    def bind(self, name: str, kind: str) -> None:
        if name in self.globals and self.kind != "module":
            top = self
            while top.parent:
                top = top.parent
            top.bound.setdefault(name, []).append(kind)
            return
        if name in self.nonlocals:
            return
        self.bound.setdefault(name, []).append(kind)

    def lookup(self, name: str) -> Scope | None:
        """The scope that `name`, used here, is bound in; None for a builtin."""
        scope: Scope | None = self
        first = True
        while scope:
            if name in scope.globals:
                while scope.parent:
                    scope = scope.parent
                return scope if name in scope.bound else None
            if name in scope.bound and (first or scope.kind != "class") and name not in scope.nonlocals:
                return scope
            first = False
            scope = scope.parent
        return None

    def chain(self) -> list[Scope]:
        found, scope = [], self
        first = True
        while scope:
            if first or scope.kind != "class":
                found.append(scope)
            first = False
            scope = scope.parent
        return found


@dataclass(eq=False)
class Ref:
    name: str
    node: ast.AST  # Name, or a def/class/global/except statement whose name is text
    scope: Scope  # where it stands
    home: Scope | None  # where it is bound
    parent: ast.AST | None  # for `x.attr`
    late: bool  # in a function body
    typing: bool  # in an annotation or under TYPE_CHECKING
    pos: tuple[int, int, int] | None = None  # line, col, end col in characters of the name's own text


@dataclass(eq=False)
class ImportItem:
    stmt: ast.Import | ast.ImportFrom
    alias: ast.alias
    scope: Scope
    local: str
    module: str  # absolute
    name: str | None  # None: `import module`
    typing: bool
    hoist: bool  # at the top level of the module, or in `if TYPE_CHECKING`
    level: int = 0


class Analysis(ast.NodeVisitor):
    """Two passes: bindings, then references."""

    def __init__(self, text: str, module: str, is_package: bool):
        self.text, self.module, self.is_package = text, module, is_package
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.future = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in self.tree.body)
        self.scopes: dict[ast.AST, Scope] = {}
        self.top = Scope("module", None, self.tree)
        self.scopes[self.tree] = self.top
        self.refs: list[Ref] = []
        self.imports: list[ImportItem] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self._typing_blocks = [
            n for n in self.tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
        ]
        self._binds(self.tree, self.top)
        self._pending: list = []
        self._uses(self.tree, self.top, False, False)
        for ref in self.refs:
            ref.home = ref.scope.lookup(ref.name)

    # -- positions: ast gives utf-8 offsets
    def col(self, line: int, offset: int) -> int:
        raw = self.lines[line - 1]
        return offset if raw.isascii() else len(raw.encode()[:offset].decode())

    # -- bindings
    def _scope_of(self, node, kind, parent):
        scope = Scope(kind, parent, node, depth=parent.depth + 1)
        self.scopes[node] = scope
        return scope

    def _args(self, args: ast.arguments, scope: Scope) -> None:
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]:
            scope.bind(a.arg, "param")

    def _binds(self, node, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            self._bind(child, scope)

    def _bind(self, node, scope: Scope) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.bind(node.name, "def")
            for d in node.decorator_list:
                self._bind(d, scope)
            for d in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._bind(d, scope)
            outer = self._type_scope(node, scope)
            inner = self._scope_of(node, "function", outer)
            self._args(node.args, inner)
            self._globals(node, inner)
            for s in node.body:
                self._bind(s, inner)
        elif isinstance(node, ast.Lambda):
            for d in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._bind(d, scope)
            inner = self._scope_of(node, "function", scope)
            self._args(node.args, inner)
            self._bind(node.body, inner)
        elif isinstance(node, ast.ClassDef):
            scope.bind(node.name, "class")
            for d in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
                self._bind(d, scope)
            outer = self._type_scope(node, scope)
            inner = self._scope_of(node, "class", outer)
            self._globals(node, inner)
            for s in node.body:
                self._bind(s, inner)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            inner = self._scope_of(node, "comprehension", scope)
            first = True
            for g in node.generators:
                self._bind(g.iter, scope if first else inner)
                first = False
                self._target(g.target, inner)
                for i in g.ifs:
                    self._bind(i, inner)
            for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self._bind(part, inner)
        elif isinstance(node, ast.NamedExpr):
            home = scope
            while home.kind == "comprehension":
                home = home.parent
            self._target(node.target, home)
            self._bind(node.value, scope)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                scope.bind(node.id, "assign")
        elif isinstance(node, ast.TypeAlias):
            self._target(node.name, scope)
            outer = self._type_scope(node, scope)
            self._bind(node.value, outer)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.ExceptHandler):
            if node.name:
                scope.bind(node.name, "assign")
            self._binds(node, scope)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)):
            if node.name:
                scope.bind(node.name, "assign")
            self._binds(node, scope)
        elif isinstance(node, ast.MatchMapping):
            if node.rest:
                scope.bind(node.rest, "assign")
            self._binds(node, scope)
        else:
            self._binds(node, scope)

    def _type_scope(self, node, scope):
        params = getattr(node, "type_params", [])
        if not params:
            return scope
        inner = Scope("function", scope, node, depth=scope.depth + 1)
        self.scopes[(node, "types")] = inner
        for p in params:
            inner.bind(p.name, "param")
        return inner

    def _target(self, node, scope):
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                scope.bind(n.id, "assign")

    def _globals(self, node, scope: Scope) -> None:
        stack = list(node.body)
        while stack:
            n = stack.pop()
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                continue
            if isinstance(n, ast.Global):
                scope.globals |= set(n.names)
            elif isinstance(n, ast.Nonlocal):
                scope.nonlocals |= set(n.names)
            stack += ast.iter_child_nodes(n)

    def _import(self, node, scope: Scope) -> None:
        typing = any(block is p for p in self._ancestors(node) for block in self._typing_blocks)
        hoist = scope is self.top and (
            self.parents[node] is self.tree or any(self.parents[node] is b for b in self._typing_blocks)
        )
        for alias in node.names:
            if isinstance(node, ast.Import):
                local = alias.asname or alias.name.split(".")[0]
                self.imports.append(ImportItem(node, alias, scope, local, alias.name, None, typing, hoist))
            else:
                base = node.module or ""
                if node.level:
                    up = self.module.split(".") if self.is_package else self.module.split(".")[:-1]
                    up = up[: len(up) - node.level + 1]
                    base = ".".join([*up, *filter(None, [node.module])])
                local = alias.asname or alias.name
                if base == "__future__":
                    continue
                self.imports.append(ImportItem(node, alias, scope, local, base, alias.name, typing, hoist, node.level))
            scope.bind(local, "import")

    def _ancestors(self, node):
        while node in self.parents:
            node = self.parents[node]
            yield node

    # -- references
    def _ref(self, name, node, scope, late, typing, pos=None):
        self.refs.append(Ref(name, node, scope, None, self.parents.get(node), late, typing, pos))

    def _uses(self, node, scope, late, typing) -> None:
        for child in ast.iter_child_nodes(node):
            self._use(child, scope, late, typing)

    def _named(self, node, keyword: str) -> tuple[int, int, int]:
        """Where the name of a def or class statement stands."""
        import re

        for number in range(node.lineno, (node.body[0].lineno if node.body else node.lineno) + 1):
            found = re.match(r"\s*(?:async\s+)?(?:def|class)\s+", self.lines[number - 1])
            if found:
                return number, found.end(), found.end() + len(node.name)
        raise ValueError(f"{self.module}:{node.lineno}: no name")

    def _use(self, node, scope, late, typing) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._ref(node.name, node, scope, late, typing, self._named(node, "def"))
            for d in [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._use(d, scope, late, typing)
            outer = self.scopes.get((node, "types"), scope)
            for p in getattr(node, "type_params", []):
                self._uses(p, outer, late, typing)
            a = node.args
            for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
                if arg.annotation:
                    self._use(arg.annotation, outer, late, self.future or typing)
            if node.returns:
                self._use(node.returns, outer, late, self.future or typing)
            for s in node.body:
                self._use(s, self.scopes[node], True, typing)
        elif isinstance(node, ast.Lambda):
            for d in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._use(d, scope, late, typing)
            self._use(node.body, self.scopes[node], True, typing)
        elif isinstance(node, ast.ClassDef):
            self._ref(node.name, node, scope, late, typing, self._named(node, "class"))
            for d in [*node.decorator_list]:
                self._use(d, scope, late, typing)
            outer = self.scopes.get((node, "types"), scope)
            for d in [*node.bases, *[k.value for k in node.keywords], *getattr(node, "type_params", [])]:
                self._use(d, outer, late, typing)
            for s in node.body:
                self._use(s, self.scopes[node], late, typing)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            inner = self.scopes[node]
            first = True
            for g in node.generators:
                self._use(g.iter, scope if first else inner, late, typing)
                first = False
                self._use(g.target, inner, late, typing)
                for i in g.ifs:
                    self._use(i, inner, late, typing)
            for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self._use(part, inner, late, typing)
        elif isinstance(node, ast.NamedExpr):
            home = scope
            while home.kind == "comprehension":
                home = home.parent
            self._use(node.target, home, late, typing)
            self._use(node.value, scope, late, typing)
        elif isinstance(node, ast.Name):
            c0 = self.col(node.lineno, node.col_offset)
            self._ref(node.id, node, scope, late, typing, (node.lineno, c0, c0 + len(node.id)))
        elif isinstance(node, ast.AnnAssign):
            self._use(node.target, scope, late, typing)
            in_class_or_module = self.future
            self._use(node.annotation, scope, late, typing or in_class_or_module)
            if node.value:
                self._use(node.value, scope, late, typing)
        elif isinstance(node, ast.TypeAlias):
            self._use(node.name, scope, late, typing)
            self._use(node.value, self.scopes.get((node, "types"), scope), True, typing)
        elif isinstance(node, ast.Global):
            import re

            line = self.lines[node.lineno - 1]
            for name in node.names:
                found = re.search(rf"\b{name}\b", line[node.col_offset + 6 :])
                start = node.col_offset + 6 + found.start()
                self._ref(name, node, scope, late, typing, (node.lineno, start, start + len(name)))
        elif isinstance(node, ast.If) and any(node is b for b in self._typing_blocks):
            self._use(node.test, scope, late, typing)
            for s in node.body:
                self._use(s, scope, late, True)
            for s in node.orelse:
                self._use(s, scope, late, typing)
        else:
            self._uses(node, scope, late, typing)
