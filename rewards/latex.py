"""LaTeX as plain text: tokens, commands, what they stand for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# The commands that a cell of a table may hold, and what they show: the whole of the LaTeX that is known here.
#
# No definitions, no files, no loops, no colours, no hidden or moved text.

ESCAPED = {rf"\{char}": char for char in "%&_#${}"}
SPACES = {r"\ ", r"\,", r"\;", r"\:", r"\/", r"\quad", r"\qquad", r"\enspace", r"\thinspace", "\\\n", "\\\t"}
SWITCHES = {
    r"\bfseries", r"\itshape", r"\scshape", r"\ttfamily", r"\rmfamily", r"\sffamily", r"\bf", r"\it", r"\rm", r"\em",
    r"\centering", r"\raggedright", r"\raggedleft", r"\arraybackslash", r"\small", r"\footnotesize", r"\scriptsize",
    r"\normalsize", r"\large", r"\displaystyle", r"\textstyle", r"\left", r"\right", r"\relax", r"\strut",
}  # fmt: skip
TEXT_STYLES = {
    r"\textbf", r"\textit", r"\textrm", r"\texttt", r"\textsc", r"\textsf", r"\textsl", r"\emph", r"\underline",
    r"\text", r"\mbox", r"\textnormal", r"\textmd", r"\textup",
}  # fmt: skip
MATH_STYLES = {r"\mathrm", r"\mathbf", r"\mathit", r"\mathsf", r"\mathtt", r"\boldsymbol", r"\bm", r"\operatorname"}
LINES = {r"\makecell", r"\shortstack", r"\thead"}  # several lines in one cell
_ONE = ("sqrt", "bar", "hat", "tilde", "vec", "dot", "overline", "mathcal", "mathbb", "mathfrak")
MATH_ARGUMENTS = {rf"\{name}": 1 for name in _ONE} | {r"\frac": 2, r"\tfrac": 2, r"\dfrac": 2, r"\binom": 2}
TEXT_SYMBOLS = {
    r"\textbackslash": "\\", r"\textless": "<", r"\textgreater": ">", r"\textbar": "|", r"\textasciitilde": "~",
    r"\textasciicircum": "^", r"\ldots": "…", r"\dots": "…", r"\textdegree": "°", r"\textpm": "±", r"\S": "§",
    r"\P": "¶", r"\dag": "†", r"\ddag": "‡", r"\dagger": "†", r"\ddagger": "‡", r"\pounds": "£", r"\texteuro": "€",
    r"\ss": "ß", r"\ae": "æ", r"\AE": "Æ", r"\o": "ø", r"\O": "Ø", r"\aa": "å", r"\AA": "Å", r"\oe": "œ", r"\l": "ł",
    r"\L": "Ł", r"\i": "ı", r"\checkmark": "✓", r"\textendash": "–", r"\textemdash": "—", r"\copyright": "©",
}  # fmt: skip
_SMALL = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
)
_SMALL += "omega"
_CAPITAL = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"


def _greek(name: str) -> str:
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    return unicodedata.lookup(f"GREEK {size} LETTER {name.replace('ambda', 'amda')}")


MATH_SYMBOLS = {rf"\{name}": _greek(name) for name in f"{_SMALL} {_CAPITAL}".split()}
MATH_SYMBOLS |= {
    r"\pm": "±", r"\mp": "∓", r"\times": "×", r"\cdot": "·", r"\div": "÷", r"\leq": "≤", r"\le": "≤", r"\geq": "≥",
    r"\ge": "≥", r"\neq": "≠", r"\ne": "≠", r"\approx": "≈", r"\sim": "∼", r"\simeq": "≃", r"\equiv": "≡", r"\ll": "≪",
    r"\gg": "≫", r"\infty": "∞", r"\uparrow": "↑", r"\downarrow": "↓", r"\rightarrow": "→", r"\to": "→",
    r"\leftarrow": "←", r"\Rightarrow": "⇒", r"\leftrightarrow": "↔", r"\ast": "∗", r"\star": "⋆", r"\circ": "∘",
    r"\bullet": "∙", r"\degree": "°", r"\prime": "′", r"\varepsilon": "ε", r"\varphi": "φ", r"\vartheta": "ϑ",
    r"\ell": "ℓ", r"\in": "∈", r"\notin": "∉", r"\subset": "⊂", r"\subseteq": "⊆", r"\cup": "∪", r"\cap": "∩",
    r"\emptyset": "∅", r"\forall": "∀", r"\exists": "∃", r"\neg": "¬", r"\wedge": "∧", r"\vee": "∨", r"\sum": "∑",
    r"\prod": "∏", r"\int": "∫", r"\partial": "∂", r"\nabla": "∇", r"\propto": "∝", r"\perp": "⊥", r"\mid": "|",
    r"\cdots": "⋯", r"\langle": "⟨", r"\rangle": "⟩", r"\oplus": "⊕", r"\otimes": "⊗", r"\triangle": "△", 
    r"\log": "log", r"\ln": "ln", r"\exp": "exp", r"\sin": "sin", r"\cos": "cos", r"\tan": "tan", r"\max": "max",
    r"\min": "min", r"\lim": "lim", r"\dagger": "†", r"\ddagger": "‡", r"\checkmark": "✓", r"\ldots": "…",
    r"\dots": "…", r"\|": "‖", r"\!": "", r"\colon": ":",
}  # fmt: skip
COMBINING = {r"\'": "\u0301", r"\`": "\u0300", r"\^": "\u0302", r'\"': "\u0308", r"\~": "\u0303", r"\c": "\u0327",
              r"\v": "\u030c", r"\=": "\u0304", r"\.": "\u0307", r"\u": "\u0306", r"\H": "\u030b"}  # fmt: skip

TAKES = TEXT_STYLES | MATH_STYLES | LINES | MATH_ARGUMENTS.keys() | COMBINING.keys() | {"{"}


# The tokens of a piece of LaTeX: commands, characters, white space, and how groups of them are taken.

MAX_DEPTH = 8  # of braces
_TOKEN = re.compile(r"\\[A-Za-z]+\s*|\\.|%[^\n]*\n?[ \t]*|\s+|.", re.DOTALL)
_LETTERS = re.compile(r"\\[A-Za-z]+")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn"}  # control, invisible, half and unassigned characters


class UnreadableLatexError(Exception):
    """What is written is not taken; the message is the reason. Never leaves `rewards.tables.read_table`."""


def tokens(text: str) -> list[str]:
    """Commands, characters and ' ' for white space; comments are gone. UnreadableLatexError: hidden_text, not_latex."""
    if any(unicodedata.category(char) in _HIDDEN for char in set(text) - {"\n", "\t", "\r"}):
        raise UnreadableLatexError("hidden_text")
    pieces = []
    for match in _TOKEN.finditer(text):
        part = match[0]
        if part == "\\":
            raise UnreadableLatexError("not_latex")
        if not part.startswith("%"):
            pieces.append(" " if part.isspace() else part.rstrip() if len(part) > 2 else part)
    return pieces


def source(parts: Sequence[str]) -> str:
    """LaTeX of tokens; a space after each command that a letter could lengthen."""
    return "".join(f"{part} " if _LETTERS.fullmatch(part) else part for part in parts).strip()


def closing(parts: Sequence[str], at: int) -> int:
    """Where the brace that opens at `at` closes. UnreadableLatexError: unbalanced, too_deep."""
    depth = 0
    for place in range(at, len(parts)):
        depth += (parts[place] == "{") - (parts[place] == "}")
        if depth > MAX_DEPTH:
            raise UnreadableLatexError("too_deep")
        if depth == 0:
            return place
    raise UnreadableLatexError("unbalanced")


def argument(parts: Sequence[str], at: int) -> tuple[Sequence[str], int]:
    """What a command takes from `at` on, a group's inside or one token, and where the rest begins."""
    while at < len(parts) and parts[at] == " ":
        at += 1
    if at == len(parts) or parts[at] in ("}", "&", "\\\\", "$", "^", "_"):
        raise UnreadableLatexError("not_latex")
    if parts[at] != "{":
        return parts[at : at + 1], at + 1
    end = closing(parts, at)
    return parts[at + 1 : end], end + 1


def stripped(parts: Sequence[str]) -> list[str]:
    """Without white space around."""
    start, end = 0, len(parts)
    while start < end and parts[start] == " ":
        start += 1
    while end > start and parts[end - 1] == " ":
        end -= 1
    return list(parts[start:end])


def optional(parts: Sequence[str], at: int, opens: str = "[", closes: str = "]") -> tuple[str, int]:
    """An optional argument's text, '' where there is none, and where the rest begins."""
    start = at
    while start < len(parts) and parts[start] == " ":
        start += 1
    if start == len(parts) or parts[start] != opens:
        return "", at
    for end in range(start + 1, min(len(parts), start + 40)):
        if parts[end] == closes:
            return "".join(parts[start + 1 : end]).strip(), end + 1
    raise UnreadableLatexError("not_latex")


def plain(parts: Sequence[str], math: bool = False) -> str:
    """The text that tokens show, white space as single spaces, formulas without any.

    UnreadableLatexError: unknown_command, not_in_math, unbalanced, too_deep, misplaced, not_latex.
    """
    return " ".join(_render(parts, math, 0).split())


def _render(parts: Sequence[str], math: bool, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise UnreadableLatexError("too_deep")
    out, at, in_math = [], 0, math
    while at < len(parts):
        part = parts[at]
        if part == "$":
            if math:
                raise UnreadableLatexError("unbalanced")
            in_math, at = not in_math, at + 1
        elif part in TAKES:
            text, at = _taking(parts, at, in_math, depth)
            out.append(text)
        else:
            out.append(_one(part, in_math))
            at += 1
            if part in "^_" and "".join(parts[at : at + 2]).strip()[:1] in ("^", "_"):
                raise UnreadableLatexError("not_latex")  # ^^5c would be a backslash to TeX
    if in_math != math:
        raise UnreadableLatexError("unbalanced")
    return "".join(out)


def _taking(parts: Sequence[str], at: int, math: bool, depth: int) -> tuple[str, int]:
    """What a group, or a command with its arguments, shows, and where the rest begins."""
    part = parts[at]
    inside, end = argument(parts, at if part == "{" else at + 1)
    if part in TEXT_STYLES:
        return _render(inside, math and part == r"\underline", depth + 1), end
    if part in LINES:
        return _render([" " if each == "\\\\" else each for each in inside], math, depth + 1), end
    if part in COMBINING:
        letter = _render(inside, math, depth + 1)
        if len(letter) != 1 or not letter.isalpha():
            raise UnreadableLatexError("not_latex")
        return unicodedata.normalize("NFC", letter + COMBINING[part]), end
    if part == "{":
        text = _render(inside, math, depth + 1)
        return (f"{{{text}}}" if math and len(text) > 1 else text), end
    if not math:
        raise UnreadableLatexError("not_in_math")
    texts = [_render(inside, True, depth + 1)]
    for _ in range(1, MATH_ARGUMENTS.get(part, 1)):
        inside, end = argument(parts, end)
        texts.append(_render(inside, True, depth + 1))
    return (texts[0] if part in MATH_STYLES else part + "".join(f"{{{text}}}" for text in texts)), end


def _one(part: str, math: bool) -> str:
    """What a token without arguments shows."""
    if part == " " or part == "~" or part in SPACES:
        return "" if math else " "
    if part in SWITCHES:
        return ""
    if part in ESCAPED:
        return ESCAPED[part]
    if math and part in MATH_SYMBOLS:
        return MATH_SYMBOLS[part]
    if part in TEXT_SYMBOLS:
        return TEXT_SYMBOLS[part]
    if part in MATH_SYMBOLS or (part in ("^", "_") and not math):
        raise UnreadableLatexError("not_in_math")
    if part in ("}", "#") or part in ("&", "\\\\"):
        raise UnreadableLatexError(
            "unbalanced" if part == "}" else "misplaced" if part in ("&", "\\\\") else "not_latex"
        )
    if part.startswith("\\"):
        raise UnreadableLatexError("unknown_command")
    return part
