"""Code blocks of the documentation, and the checks of what stands in them. Loaded by path: `tests` is no package."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:    [^\n]*\n|\n(?=    ))+)")
LANGUAGES = {"bash", "json", "python", "text", "yaml"}
# Programs of others, whose arguments are theirs to check.
FOREIGN = {
    "cd",
    "eval",
    "export",
    "git",
    "inspect",
    "kubectl",
    "lerobot-teleoperate",
    "lerobot-train",
    "mkdocs",
    "ray",
    "rerun",
    "sbatch",
    "scripts/setup.sh",
    "source",
    "trackio",
    "uv",
    "vllm",
    "wandb",
}


@dataclass(frozen=True)
class Block:
    """A block of a page: its language (guessed where none is said) and the line that it begins at, from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that a first line such as `# my_methods.py` says the block is."""
        named = re.match(r"# ([\w/]+\.(?:py|yaml))\n", self.text)
        return named and named[1]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every fenced or indented block of a page, in order."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    found, rest = [], text
    for match in FENCE.finditer(text):
        inside = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Block(name, text[: match.start()].count("\n") + 1, match[2] or guess(inside), inside))
        rest = rest.replace(match[0], "\n" * match[0].count("\n"), 1)
    for match in INDENTED.finditer(rest):
        inside = re.sub(r"^    ", "", match[1], flags=re.MULTILINE).strip("\n") + "\n"
        found.append(Block(name, rest[: match.start()].count("\n") + 1, guess(inside), inside))
    return sorted(found, key=lambda block: block.line)


def guess(text: str) -> str:
    """The language of a block that says none."""
    first = text.split("\n", 1)[0]
    if re.match(r"(?:from|import) \w", first):
        return "python"
    if re.match(r"\w+: \S", first):
        return "yaml"
    programs = (
        r"(?:[A-Z_]+=\S+ )*(?:vlrl|python|pip|make|accelerate|torchrun|mkdocs|" + "|".join(FOREIGN) + r")(?:\s|$)"
    )
    return "bash" if re.match(programs, first) else "text"


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a shell block: comments, variables, `[--optional]` and `...` are taken off."""
    for line in re.sub(r"\\\n", " ", block.text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, "&&"]:
            if set(word) <= set(";&|"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_]+=", word):
                plain = word if "=" in word else word.strip("[]")
                words += [plain] if plain != "..." else []


def asked_of_vlrl(words: list[str]) -> list[str] | None:
    """The arguments of `vlrl` that a command gives it, also through a launcher; None: it is another program's."""
    if words[0] == "vlrl":
        return words[1:]
    return words[words.index("vlrl.cli") + 1 :] if "vlrl.cli" in words else None


def problem(words: list[str]) -> str:
    """What is wrong with a command of another program, '' if nothing is or it is not ours to say."""
    program, *rest = words
    if program == "python" and rest[0] == "-m":
        ours = rest[1].split(".")[0] in ("vlrl", "robot", "tasks", "rewards")
        return f"no module {rest[1]}" if ours and not find_spec(rest[1]) else ""
    if program == "python":
        return "" if (ROOT / rest[0]).is_file() else f"no file {rest[0]}"
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return "" if rest[0] in targets else f"no target {rest[0]} in the Makefile"
    if program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = [extra for word in rest for names in re.findall(r"\[(.*?)\]", word) for extra in names.split(",")]
        missing = [extra for extra in wanted if extra not in project["optional-dependencies"]]
        return f"no extra {missing[0]}" if missing else ""
    return "" if program in FOREIGN else f"unknown program {program}: add it to documents.FOREIGN, or mend the page"
