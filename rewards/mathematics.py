"""Reward for answers that are a formula. What is written is bounded and checked here; equivalence is asked of `same`.

An answer must be worked out: where the truth is a number, so must the answer be (`12*34` is none), and integrals, sums,
limits, factorials and powers of powers are refused everywhere, which also keeps any algebra system from hanging.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rewards import numbers
from rewards.parse import Parsed
from rewards.total import total

MAX_FORMULA = 200  # characters
MAX_POWERS = 8
LENGTHS = 4, 20  # an answer may be so many times as long as the truth, and so many characters longer
_COMMANDS = {
    "frac", "dfrac", "tfrac", "sqrt", "pi", "cdot", "times", "div", "pm", "infty", "sin", "cos", "tan", "cot", "sec",
    "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp", "le", "leq", "ge", "geq", "neq", "ne", "cup", "cap", "in",
    "alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "rho", "sigma", "phi", "varphi", "omega", "angle",
    "circ", "degree", "left", "right", "quad", "triangle", "emptyset", "mathbb", "overline",
}  # fmt: skip
_FUNCTIONS = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln"}  # words that are written without a backslash
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NAMED = re.compile(r"[A-Za-z] ?= ?(?=[^=]+$)")
_UNIT = re.compile(r"(.*[^\s\\])\s*\\(?:text|mathrm|textrm) ?\{ ?([A-Za-z. ]{1,20}) ?\}(\^\{?[23]\}?)?")
_SPACES = re.compile(r"\\(?:left|right|quad)(?![A-Za-z])|\\[,;:! ]|\s")
_TOWER = re.compile(r"\^(?:\{[^{}]*\^|[^{}\s]\^)")
_LARGE = re.compile(r"\^\{?-?[0-9]{3}|[0-9]{19}")
_FAMILIES = (",", "=", "<", ">", "\\le", "\\ge", "\\ne", "\\pm", "\\cup", "\\cap", "\\in")
Same = Callable[[str, str], bool]


@total()
def equal(predicted: str, truth: str, same: Same | None = None) -> float:
    """0 or 1: the same number where the truth is one, else the same formula.

    `same(predicted, truth)` decides over two LaTeX formulas without `$`, both checked; without it only formulas that
    are written alike, but for spaces, are the same. A truth that cannot be read is worth 0 to all. Never raises of its
    own.
    """
    if numbers.read(truth).value is not None:
        return numbers.equal(_bare(predicted), truth)
    right, found = formula(truth), formula(predicted)
    if right.reason or found.reason or not _alike(found.value, right.value):
        return 0.0
    if _parted(predicted)[1] not in ("", _parted(truth)[1]):
        return 0.0
    if _SPACES.sub("", found.value) == _SPACES.sub("", right.value):
        return 1.0
    return float(same is not None and bool(same(found.value, right.value)))


def formula(text: str) -> Parsed:
    """The one formula that a text is, as LaTeX without marks around. Reasons: too_long, not_a_formula.

    One expression, relation, set or point. `x = ` before it and a unit in \\text{ } behind it are left out, as far
    as they agree; words are none of it.
    """
    if len(text) > MAX_FORMULA:
        return Parsed(reason="too_long")
    written = _parted(text)[0]
    words = {word.lower() for word in _WORD.findall(written)}
    known = set(_COMMAND.findall(written)) <= _COMMANDS and words <= _FUNCTIONS
    plain = written.isprintable() and not set("$!#&~@?;:'\"`_") & set(written)
    bounded = written.count("^") <= MAX_POWERS and not _TOWER.search(written) and not _LARGE.search(written)
    good = written and known and plain and bounded and _closed(written)
    return Parsed(written) if good else Parsed(reason="not_a_formula")


def _parted(text: str) -> tuple[str, str]:
    """A formula and its unit, '' where it has none."""
    written = _bare(numbers.unwrapped(text).removesuffix("."))
    unit = _UNIT.fullmatch(written)
    return (unit[1], unit[2].strip() + "".join(set("23") & set(unit[3] or ""))) if unit else (written, "")


def _bare(text: str) -> str:
    """Without a name before it: `x = 3` says 3."""
    written = numbers.unwrapped(text)
    named = _NAMED.match(written)
    return written[named.end() :].strip() if named else written


def _alike(found: str, right: str) -> bool:
    """As many parts and relations, and not much longer: no list of guesses, nothing left to be worked out."""
    times, more = LENGTHS
    counts = all(found.count(mark) == right.count(mark) for mark in _FAMILIES)
    return counts and len(found) <= times * len(right) + more


def _closed(written: str) -> bool:
    """Braces fit each other; intervals may open with one bracket and close with another."""
    depth = 0
    for char in written:
        depth += (char in "{([") - (char in "})]")
        if depth < 0:
            return False
    return depth == 0
