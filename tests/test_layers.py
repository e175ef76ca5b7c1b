"""Which package may import which, read from the sources; what they must not call; what a light command loads."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vlrl", "tasks", "rewards", "robot")
# the packages and modules of ours that a layer may import; the first layer whose name fits a module counts
LAYERS = {
    "vlrl.types": (),
    "vlrl.system.hub": ("vlrl.types", "vlrl.decoders"),
    "vlrl.system": ("vlrl.system",),
    **dict.fromkeys(("vlrl.decoders", "vlrl.media"), ("vlrl.types", "vlrl.decoders")),
    # what starts processes for robots and tasks must not lead them to the trainer
    "vlrl.placement": ("vlrl.placement", "vlrl.types", "vlrl.decoders", "vlrl.plugins", "vlrl.system"),
    **dict.fromkeys(("vlrl.io", "vlrl.serving.protocol"), ("vlrl.types", "vlrl.decoders", "vlrl.media", "vlrl.system")),
    "vlrl": ("vlrl",),
    "rewards": ("rewards",),
    "robot": (
        "robot",
        "vlrl.decoders",
        "vlrl.io",
        "vlrl.media",
        "vlrl.placement",
        "vlrl.plugins",
        "vlrl.types",
        "vlrl.config",
        "vlrl.serving",
        "vlrl.system",
    ),
    "tasks": (
        "tasks",
        "rewards",
        "robot",
        "vlrl.types",
        "vlrl.decoders",
        "vlrl.media",
        "vlrl.placement",
        "vlrl.plugins",
        "vlrl.io",
        "vlrl.system",
    ),
}
FINDERS = ("vlrl.cli", "vlrl.registry")  # they look up tasks and robots by name while running
MAX_DEPTH = 5
MAX_FILE, MAX_FUNCTION = 800, 60  # lines
SMALL, MAX_SMALL = 60, 10  # files of at most so many lines, and how many of them there may be
MAX_FILES, MAX_FLAT = 262, 22  # of the product, without packages' short `__init__.py`; of those right in vlrl/
# words that name nothing: a function is a verb, a value a noun; the two counts may only fall
AVOID = (
    "told|said|asked|given|made|shown|seen|found|begun|earned|wanted|drawn|written|noted|heard|doubts|weighing|earlier|"
    "away|parts|apart|beside|whole|place|about|exhausted|hands|eyes|sight|doors|board|rig|spool"
)
VAGUE = re.compile(rf"^_?({AVOID})(_|$)|_(told|asked|given|shown|earned|wanted)$")
MAX_VAGUE, MAX_SHARED = 0, 0
PARTICIPLE = re.compile(  # of arguments, attributes and locals: what a value is, not what happened to it
    r"^_?(W)(_|$)|_(W)$".replace(
        "W", "told|said|asked|given|made|shown|seen|found|begun|earned|wanted|drawn|written|noted|heard"
    )
)
MAX_PARTICIPLES = 472  # may only fall
MAX_PROBES = 57  # calls of hasattr and getattr, of objects that are not ours; may only fall
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
MACHINE = re.compile(
    r"(?<![\w.~])/(?:work|farm|root|Users|home/\w+|tmp/w|opt/(?:wheels|pypi))/"  # a folder of somebody's machine
    r"|\bpypi\.org|\bpythonhosted\.org|download\.pytorch\.org"  # a package index, or an option that names one
    r"|(?:index[-_]url|find[-_]links)[= ]+\S*(?:https?|file):"
)


@dataclass(frozen=True)
class Import:
    """`target` is a module of ours; `early` means when the importing module is loaded."""

    source: str
    target: str
    line: int
    early: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


@functools.cache
def modules() -> dict[str, Path]:
    """Our modules: dotted name -> file."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def walk(node: ast.AST, early: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it runs while the module is loaded (not in a function, not for type checkers)."""
    for child in ast.iter_child_nodes(node):
        late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        late |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield child, early and not late
        yield from walk(child, early and not late)


def targets(name: str, node: ast.AST) -> list[str]:
    """The dotted names that an import statement of module `name` loads; [] for other statements."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = name.split(".") if modules()[name].name == "__init__.py" else name.split(".")[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
    return [whole if (whole := f"{base}.{alias.name}") in modules() else base for alias in node.names]


@functools.cache
def imports() -> tuple[Import, ...]:
    """Every import of ours by ours."""
    return tuple(
        Import(name, target, node.lineno, early)
        for name in modules()
        for node, early in walk(tree(name))
        for target in targets(name, node)
        if target.split(".")[0] in PACKAGES
    )


def allowed(found: Import) -> bool:
    layer = next(layer for layer in LAYERS if is_in(found.source, layer))
    return any(is_in(found.target, package) for package in LAYERS[layer])


def calls(name: str) -> Iterator[tuple[ast.Call, str]]:
    """Every call in a module, with the function as written."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def unsafe(name: str) -> Iterator[str]:
    """What runs code that came with data or with a downloaded model."""
    for node in ast.walk(tree(name)):
        for target in targets(name, node):
            if target.split(".")[0] in PICKLES:
                yield f"{name}:{node.lineno} imports {target}"
    for call, function in calls(name):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if function in ("eval", "exec"):
            yield f"{name}:{call.lineno} calls {function}"
        for option in ("trust_remote_code", "allow_pickle"):
            if given.get(option, "False") != "False":
                yield f"{name}:{call.lineno} sets {option}"
        if function == "torch.load" and given.get("weights_only") != "True":
            yield f"{name}:{call.lineno} calls torch.load without weights_only=True"


@functools.cache
def below(name: str) -> list[str]:
    """The modules that load when this one does, by its own statements."""
    return sorted({i.target for i in imports() if i.early and i.source == name and i.target in modules()})


def longest_chain(name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The longest chain of early imports from a module on."""
    chain = (*above, name)
    further = (longest_chain(target, chain) for target in below(name) if target not in chain)
    return max(further, key=len, default=chain)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports, wherever: in functions and for type checkers too."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for each in imports():
        target = each.target
        while target and target not in found:
            target = target.rpartition(".")[0]
        if target and target != each.source:
            found[each.source].add(target)
    return found


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The modules that import one another, around however many corners (Kosaraju)."""
    order: list[str] = []
    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            importers[target].add(name)
    seen: set[str] = set()

    def visit(name: str, edges: Mapping[str, set[str]], out: list[str]) -> None:
        seen.add(name)
        for target in edges[name] - seen:
            if target not in seen:
                visit(target, edges, out)
        out.append(name)

    for name in graph:
        if name not in seen:
            visit(name, graph, order)
    seen.clear()
    parts: list[list[str]] = []
    for name in reversed(order):
        if name not in seen:
            parts.append([])
            visit(name, importers, parts[-1])
    return [sorted(part) for part in parts if len(part) > 1]


def folder(name: str) -> str:
    """`vlrl.policies` of a module in that folder, `vlrl` of one right below the package."""
    return ".".join(modules()[name].relative_to(ROOT).parent.parts[:2])


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


DECODERS = re.compile(  # of images and videos, as calls are written
    r"(?:PIL\.)?Image\.open|(?:PIL\.)?ImageFile\.Parser|\w+ImageFile|\w*ImagePlugin\..*|cv2\.(?:imread|imdecode|VideoCapture)|"
    r"av\.open|imageio\..*|skimage\.io\..*|plt\.imread|decode_(?:image|jpeg|png)|read_(?:image|video)"
)


def decodes(name: str) -> Iterator[str]:
    """What a module decodes by itself; a container opened for writing is no decoder."""
    if not re.search(r"PIL|cv2|\bav\b|imageio|skimage|torchvision|pyplot", modules()[name].read_text(encoding="utf-8")):
        return
    for node in ast.walk(tree(name)):
        modules_of_pillow = isinstance(node, ast.ImportFrom) and node.module in ("PIL.Image", "PIL.ImageFile")
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom | ast.Import) else []
        if (modules_of_pillow and {"open", "Parser"} & set(names)) or any("ImagePlugin" in each for each in
            [*targets(name, node), *names]):  # fmt: skip
            yield f"{name}:{node.lineno} {ast.unparse(node)}"
    for call, function in calls(name):
        writes = len(call.args) > 1 and ast.unparse(call.args[1]) == "'w'"
        if DECODERS.fullmatch(function) and not writes:
            yield f"{name}:{call.lineno} {function}"


def test_one_module_decodes_images_and_videos() -> None:
    """Elsewhere a stranger's file could start Ghostscript, fill the memory or hang the run."""
    assert [place for name in modules() if name != "vlrl.media" for place in decodes(name)] == []
    assert len(list(decodes("vlrl.media"))) == 3  # Image.open, and av.open twice


def test_imports_go_one_way() -> None:
    """A reward that imports the trainer cannot be used, tested or read alone."""
    assert [str(found) for found in imports() if not allowed(found)] == []


def test_only_the_finders_load_tasks_by_name() -> None:
    """An import hidden in a string would go round the directions."""
    late = [
        f"{name}:{call.lineno} {ast.unparse(call)}"
        for name in modules()
        if is_in(name, "vlrl") and not any(is_in(name, finder) for finder in FINDERS)
        for call, function in calls(name)
        if function.split(".")[-1] in ("import_module", "__import__")
        if re.search(r"['\"](tasks|rewards|robot)\b", ast.unparse(call))
    ]
    assert late == []


def test_circles_are_found() -> None:
    """A search that finds nothing would let every circle in."""
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert sorted(circles(edges)) == [["b", "c"], ["e", "f"]]


def test_no_modules_import_one_another() -> None:
    """In a circle, whether an import works depends on which module came first, and nothing can be read alone."""
    assert circles(graph()) == []


def test_no_folders_import_one_another() -> None:
    """A folder that needs the one that needs it is a part of it."""
    pairs = {(folder(source), folder(target)) for source, targets in graph().items() for target in targets}
    apart = {(a, b) for a, b in pairs if a != b and not is_in(a, b) and not is_in(b, a)}
    assert sorted((a, b) for a, b in apart if a < b and (b, a) in apart) == []


def test_nothing_imports_what_was_contributed() -> None:
    """The core would break with a method that few use; the registry finds `vlrl.contrib` by name."""
    outside = [found for found in imports() if not is_in(found.source, "vlrl.contrib")]
    assert [str(found) for found in outside if is_in(found.target, "vlrl.contrib")] == []


def test_files_and_functions_have_a_readable_size() -> None:
    """Who follows a call through files of ten lines, or a function of two screens, loses the thread."""
    lines = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in modules().values()}
    assert [f"{name}: {count}" for name, count in lines.items() if count > MAX_FILE] == []
    small = [
        name for name, count in lines.items() if count <= SMALL and not (name.endswith("__init__.py") and count <= 8)
    ]
    assert len(small) <= MAX_SMALL, small
    empty = [name for name, count in lines.items() if name.endswith("__init__.py") and count <= 8]
    flat = [name for name in lines if name.startswith("vlrl/") and name.count("/") == 1]
    assert len(lines) - len(empty) <= MAX_FILES and len(flat) <= MAX_FLAT, (len(lines) - len(empty), flat)
    functions = (
        (name, node)
        for name in modules()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    long = [f"{name}:{node.lineno} {node.name}" for name, node in functions if length(node) > MAX_FUNCTION]
    assert long == []


def test_names_say_what_they_name() -> None:
    """Who greps for `told` or `Plan` and finds eight of them has found none."""
    nodes = [(name, node) for name in modules() for node in ast.walk(tree(name))]
    functions = [(n, f) for n, f in nodes if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    vague = [f"{name}:{node.lineno} {node.name}" for name, node in functions if VAGUE.search(node.name)]
    vague += [name for name, path in modules().items() if VAGUE.search(path.stem)]
    assert len(vague) <= MAX_VAGUE, vague
    classes = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    shared = {name: count for name, count in classes.items() if count > 1}
    assert len(shared) <= MAX_SHARED, shared


def bound(node: ast.AST) -> str:
    """The name that a node binds: a local, an argument, an attribute; "" for others."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ""


def test_values_are_nouns() -> None:
    """`found` is a list in one function and a number in the next; a noun says which."""
    names = [
        f"{name}:{node.lineno} {bound(node)}" for name in modules() for node in ast.walk(tree(name)) if bound(node)
    ]
    participles = [each for each in names if PARTICIPLE.search(each.split()[1])]
    assert len(participles) <= MAX_PARTICIPLES, participles


def test_hooks_are_methods_of_base_classes() -> None:
    """A hook that is looked up by its name is silently ignored where it is misspelt."""
    probes = [
        f"{name}:{call.lineno} {ast.unparse(call)}"
        for name in modules()
        for call, function in calls(name)
        if function in ("hasattr", "getattr")
    ]
    told = "add a hook that does nothing to the base class (vlrl.types, vlrl.methods, robot.types)"
    assert len(probes) <= MAX_PROBES, f"{told}, or type what is read: {probes}"


def test_the_command_is_shallow() -> None:
    """A reader who follows the imports from the command line should arrive after few files."""
    chain = longest_chain("vlrl.cli")
    assert len(chain) - 1 <= MAX_DEPTH, " -> ".join(chain)


@pytest.mark.parametrize("name", sorted(modules()))
def test_runs_no_code_from_data(name: str) -> None:
    """A downloaded model or data set could take over the user's machine."""
    assert list(unsafe(name)) == []


@pytest.mark.parametrize("package", ["vlrl.cli", "rewards", "tasks"])
def test_loads_without_torch(package: str) -> None:
    """`vlrl --help` and an error in a configuration would take seconds to appear."""
    names = [name for name in modules() if is_in(name, package)]
    if not names:
        pytest.skip(f"{package} does not exist yet")
    heavy = "[(n, h) for n in names for h in ('torch', 'transformers') if import_module(n) and h in sys.modules]"
    done = fresh(f"import sys; from importlib import import_module; names = {names}; print({heavy})")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that git tracks or would track; binary files are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    for name in filter(None, listed.stdout.split("\0")):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in data[:8192]:
            yield name, data.decode(errors="replace")


def test_names_no_machine_and_no_index() -> None:
    """A path or a package index that exists on one machine only breaks the set-up everywhere else."""
    lines = ((f"{name}:{number}", line) for name, text in texts() for number, line in enumerate(text.splitlines(), 1))
    assert [f"{place} {found[0]}" for place, line in lines if (found := MACHINE.search(line))] == []
