"""Rewards for answers that are a number or a formula."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from rewards.parse import Parsed, total

# Rewards for answers that are one number, with its unit. Nothing is searched for: the whole answer is the number.
#
# Read exactly, as fractions. Ranges, lists, sums that are left to the grader, words and multipliers (`k`, `million`)
# are
# no numbers. None of these raises on any text; each pattern takes linear time.

MAX_NUMBER = 100  # characters
YEARS = (1500, 2100)  # whole numbers that are years where they are written with four digits and no unit
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})"
_POWER = r"(?:[eE][+-]?[0-9]{1,2}| ?(?:×|\\times|\\cdot|\*) ?10\^(?:[0-9]|\{[+-]?[0-9]{1,2}\}))?"
_DECIMAL = re.compile(rf"([+-]?)({_WHOLE}?\.[0-9]{{1,18}}|{_WHOLE}\.?)({_POWER})")
_RATIO = re.compile(r"([+-]?)(?:([0-9]{1,9}) )?([0-9]{1,9}) ?/ ?([0-9]{1,9})")
_FRAC = re.compile(r"([+-]?)([0-9]{0,9}) ?\\[dt]?frac ?\{ ?([0-9]{1,9}) ?\} ?\{ ?([0-9]{1,9}) ?\}")
_NUMBERS_UNIT = re.compile(r"[^0-9.,\s](?:\S| (?=\S)){0,24}")  # from here on a unit, if it is one
_CASED = re.compile(r"\\(?:text|mathrm|textrm) ?\{ ?([^{}]*?) ?\}")
_WRAPPED = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"))
_SIGNS = {"−": "-", "–": "-", "^{\\circ}": "°", "^\\circ": "°", "\\%": "%", "\\$": "$", "\\,": "", "\\!": "",
          "{,}": ",", "²": "^2", "³": "^3", "\u00a0": " "}  # fmt: skip
_NAMES = {
    "%": "percent per cent", "°": "degree degrees deg", "$": "dollar dollars usd", "€": "euro euros eur",
    "£": "pound pounds gbp", "¥": "yen jpy yuan cny", "": "unit units",
    "mm": "millimeter millimeters millimetre millimetres", "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches", "ft": "foot feet", "yd": "yard yards", "mi": "mile miles",
    "s": "sec secs second seconds", "min": "mins minute minutes", "h": "hr hrs hour hours", "d": "day days",
    "mg": "milligram milligrams", "g": "gram grams", "kg": "kilogram kilograms",
    "ml": "milliliter milliliters millilitre millilitres", "l": "liter liters litre litres",
    "km/h": "kph kmh", "m/s": "", "mph": "", "°c": "", "°f": "", "n": "newton newtons", "j": "joule joules",
}  # fmt: skip
_SHORT = {alias: unit for unit, names in _NAMES.items() for alias in (unit, *names.split())} | {"per cent": "%"}
_LENGTHS = ("mm", "cm", "m", "km", "in", "ft", "yd", "mi", "")


@dataclass(frozen=True)
class Number:
    """A number as it is written: 42 % is 42 with the unit %."""

    value: Fraction
    unit: str = ""  # a canonical short name, such as cm^2; '' without one

    @property
    def year(self) -> bool:
        return not self.unit and self.value.denominator == 1 and YEARS[0] <= self.value <= YEARS[1]


@total()
def equal_numbers(predicted: str, truth: str, absolute: float = 0.0, relative: float = 0.0) -> float:
    """0 or 1: the same number, off by `absolute` or by `relative` times the truth at most, ends included.

    A unit may be left out but not be another one, nor be added, but for a share as per cent: 42% is 0.42. A truth that
    is a year (four bare digits, YEARS) allows no `relative` error. A truth that is no number is worth 0 to all.
    """
    right, number = read_number(truth).value, read_number(predicted).value
    if right is None or number is None or not all(math.isfinite(t) and t >= 0 for t in (absolute, relative)):
        return 0.0
    value = _in_unit(number, right.unit)
    if value is None:
        return 0.0
    share = 0 if right.year and "," not in truth else Fraction(str(relative)) * abs(right.value)
    return float(abs(value - right.value) <= max(Fraction(str(absolute)), share))


def _in_unit(found: Number, unit: str) -> Fraction | None:
    """The value in the truth's unit; None where it is told in another."""
    if found.unit in (unit, ""):
        return found.value
    return found.value / 100 if (found.unit, unit) == ("%", "") else None


def read_number(text: str) -> Parsed:
    """The one number that the text is -> Number. Reasons: too_long, not_a_number.

    `1,234.5`, `.5`, `3/4`, `1 3/4`, `\\frac{3}{4}`, `1.2e3`, `1.2 × 10^3`; a currency before it or a known unit behind;
    in `$ $`, `\\( \\)` or `\\boxed{ }`; a final dot does not count.
    """
    if len(text) > MAX_NUMBER:
        return Parsed(reason="too_long")
    stripped = unwrapped(text)
    for sign, plain in _SIGNS.items():
        stripped = stripped.replace(sign, plain)
    stripped = " ".join(_CASED.sub(r" \1", stripped).removesuffix(".").split())
    sign, stripped = (
        (stripped[0], stripped[1:]) if stripped[:1] in ("-", "+") and stripped[1:2] in "$€£¥" else ("", stripped)
    )
    currency, stripped = (
        (stripped[0], stripped[1:].lstrip()) if stripped[:1] in ("$", "€", "£", "¥") else ("", stripped)
    )
    for pattern, value in ((_RATIO, _ratio), (_FRAC, _ratio), (_DECIMAL, _decimal)):
        match = pattern.match(stripped)
        unit = _unit(stripped[match.end() :].strip()) if match else None
        if match is None or unit is None or (currency and unit) or (sign and match[1]):
            continue
        if (number := value(match)) is not None:
            return Parsed(Number(-number if sign == "-" else number, currency or unit))
    return Parsed(reason="not_a_number")


def unwrapped(text: str) -> str:
    """A text without the marks of mathematics around it: `$\\boxed{3}$` says 3."""
    inner = text.strip()
    for start, end in (*_WRAPPED, *_WRAPPED):
        inside = inner[len(start) : len(inner) - len(end)]
        around = len(inner) > len(start) and inner.startswith(start) and inner.endswith(end)
        if around and start not in inside and _paired(inside):
            inner = inside.strip()
    return inner


def _paired(text: str) -> bool:
    """No brace closes that was not opened."""
    depth = 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if depth < 0:
            return False
    return depth == 0


def _unit(text: str) -> str | None:
    """The canonical name of a unit, '' for none; None where the text is none."""
    name = text.lower()
    if not name or name in _SHORT:
        return _SHORT[name] if name else ""
    if not _NUMBERS_UNIT.fullmatch(text):
        return None
    for words, power in (("square ", "^2"), ("sq ", "^2"), ("sq. ", "^2"), ("cubic ", "^3")):
        if name.startswith(words):
            return _power(name.removeprefix(words), power)
    for marks, power in ((("^2", "^{2}"), "^2"), (("^3", "^{3}"), "^3")):
        for mark in marks:
            if name.endswith(mark):
                return _power(name.removesuffix(mark).strip(), power)
    return None


def _power(name: str, power: str) -> str | None:
    base = _SHORT.get(name)
    return (base + power if base else "") if base in _LENGTHS else None


def _decimal(found: re.Match[str]) -> Fraction | None:
    mantissa = Fraction(found[1] + found[2].replace(",", "").removesuffix("."))
    digits = re.search(r"[+-]?[0-9]+\}?$", found[3])
    return mantissa * Fraction(10) ** int(digits[0].rstrip("}")) if digits else mantissa


def _ratio(found: re.Match[str]) -> Fraction | None:
    whole, above, below = int(found[2] or 0), int(found[3]), int(found[4])
    value = whole + Fraction(above, below) if below else None
    return -value if value is not None and found[1] == "-" else value


# Reward for answers that are a formula. What is written is bounded and checked here; equivalence is asked of `same`.
#
# An answer must be worked out: where the truth is a number, so must the answer be (`12*34` is none), and integrals,
# sums,
# limits, factorials and powers of powers are refused everywhere, which also keeps any algebra system from hanging.

MAX_FORMULA = 200  # characters
MAX_POWERS = 8
LENGTHS = 4, 20  # an answer may be so many times as long as the truth, and so many characters longer
_COMMANDS = {
    "frac",
    "dfrac",
    "tfrac",
    "sqrt",
    "pi",
    "cdot",
    "times",
    "div",
    "pm",
    "infty",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "arcsin",
    "arccos",
    "arctan",
    "log",
    "ln",
    "exp",
    "le",
    "leq",
    "ge",
    "geq",
    "neq",
    "ne",
    "cup",
    "cap",
    "in",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "theta",
    "lambda",
    "mu",
    "rho",
    "sigma",
    "phi",
    "varphi",
    "omega",
    "angle",
    "circ",
    "degree",
    "left",
    "right",
    "quad",
    "triangle",
    "emptyset",
    "mathbb",
    "overline",
}
_FUNCTIONS = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln"}  # words that are written without a backslash
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NAMED = re.compile(r"[A-Za-z] ?= ?(?=[^=]+$)")
_MATHEMATICS_UNIT = re.compile(r"(.*[^\s\\])\s*\\(?:text|mathrm|textrm) ?\{ ?([A-Za-z. ]{1,20}) ?\}(\^\{?[23]\}?)?")
_SPACES = re.compile(r"\\(?:left|right|quad)(?![A-Za-z])|\\[,;:! ]|\s")
_TOWER = re.compile(r"\^(?:\{[^{}]*\^|[^{}\s]\^)")
_LARGE = re.compile(r"\^\{?-?[0-9]{3}|[0-9]{19}")
_FAMILIES = (",", "=", "<", ">", "\\le", "\\ge", "\\ne", "\\pm", "\\cup", "\\cap", "\\in")
Same = Callable[[str, str], bool]


@total()
def equal_formulas(predicted: str, truth: str, same: Same | None = None) -> float:
    """0 or 1: the same number where the truth is one, else the same formula.

    `same(predicted, truth)` decides over two LaTeX formulas without `$`, both checked; without it only formulas that
    are written alike, but for spaces, are the same. A truth that cannot be read is worth 0 to all. Never raises of its
    own.
    """
    if read_number(truth).value is not None:
        return equal_numbers(_bare(predicted), truth)
    right, expression = formula(truth), formula(predicted)
    if right.reason or expression.reason or not _alike(expression.value, right.value):
        return 0.0
    if _parted(predicted)[1] not in ("", _parted(truth)[1]):
        return 0.0
    if _SPACES.sub("", expression.value) == _SPACES.sub("", right.value):
        return 1.0
    return float(same is not None and bool(same(expression.value, right.value)))


def formula(text: str) -> Parsed:
    """The one formula that a text is, as LaTeX without marks around. Reasons: too_long, not_a_formula.

    One expression, relation, set or point. `x = ` before it and a unit in \\text{ } behind it are left out, as far
    as they agree; words are none of it.
    """
    if len(text) > MAX_FORMULA:
        return Parsed(reason="too_long")
    source = _parted(text)[0]
    words = {word.lower() for word in _WORD.findall(source)}
    known = set(_COMMAND.findall(source)) <= _COMMANDS and words <= _FUNCTIONS
    plain = source.isprintable() and not set("$!#&~@?;:'\"`_") & set(source)
    bounded = source.count("^") <= MAX_POWERS and not _TOWER.search(source) and not _LARGE.search(source)
    good = source and known and plain and bounded and _closed(source)
    return Parsed(source) if good else Parsed(reason="not_a_formula")


def _parted(text: str) -> tuple[str, str]:
    """A formula and its unit, '' where it has none."""
    source = _bare(unwrapped(text).removesuffix("."))
    unit = _MATHEMATICS_UNIT.fullmatch(source)
    return (unit[1], unit[2].strip() + "".join(set("23") & set(unit[3] or ""))) if unit else (source, "")


def _bare(text: str) -> str:
    """Without a name before it: `x = 3` says 3."""
    source = unwrapped(text)
    named = _NAMED.match(source)
    return source[named.end() :].strip() if named else source


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
