"""Which package may import which, read from the sources; what they must not call; what a light command loads."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vlrl", "tasks", "rewards", "robot")
# the packages and modules of ours that a layer may import; the first layer whose name fits a module counts
LAYERS = {
    **dict.fromkeys(("vlrl.types", "vlrl.spelling", "vlrl.decoders"), ()),
    **{name: (name,) for name in ("vlrl.system", "vlrl.http_server")},
    **dict.fromkeys(("vlrl.credentials", "vlrl.media", "vlrl.plugins"), ("vlrl.types",)),
    "vlrl.leases": ("vlrl.decoders", "vlrl.types"),
    "vlrl.locks": ("vlrl.decoders", "vlrl.leases", "vlrl.types"),
    "vlrl.bundled": ("vlrl.spelling",),
    "vlrl.strict": ("vlrl.decoders", "vlrl.bundled", "vlrl.credentials", "vlrl.types", "vlrl.spelling"),
    **dict.fromkeys(("vlrl.serve", "vlrl.serving", "vlrl.reward_model"), ("vlrl", "robot.serving")),  # policies, served
    "vlrl": ("vlrl",),
    "rewards": ("rewards",),
    "robot": (
        "robot",
        "vlrl.decoders",
        "vlrl.http_server",
        "vlrl.leases",
        "vlrl.locks",
        "vlrl.media",
        "vlrl.plugins",
        "vlrl.types",
        "vlrl.strict",
        "vlrl.system",
    ),
    "tasks": (
        "tasks",
        "rewards",
        "robot",
        "vlrl.decoders",
        "vlrl.locks",
        "vlrl.media",
        "vlrl.plugins",
        "vlrl.types",
        "vlrl.system",
    ),
}
FINDERS = ("vlrl.commands", "vlrl.registry")  # they look up tasks and robots by name while running
MAX_DEPTH = 5
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
    if any(is_in(found.source, finder) for finder in FINDERS) and found.target in PACKAGES and not found.early:
        return True  # the package as such, to list what is in it
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


def cycle(name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A chain of early imports that leads back to where it began, or ()."""
    if name in above:
        return (*above[above.index(name) :], name)
    return next(filter(None, (cycle(target, (*above, name)) for target in below(name))), ())


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


def test_no_import_cycles() -> None:
    """In a cycle, whether an import works hangs on which module came first."""
    assert {cycle(name) for name in modules()} == {()}


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
