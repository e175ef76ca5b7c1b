"""Porter's stemmer for English (Porter 1980, `An algorithm for suffix stripping`) with the changes that NLTK made.

A word is consonants and vowels in turn, [C](VC)^m[V]; the rules look at m, the measure, of what is left of the suffix.
"""

from __future__ import annotations

from collections.abc import Sequence

IRREGULAR = {
    "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "innings": "inning", "outings": "outing",
    "cannings": "canning",
}  # fmt: skip
IRREGULAR |= {word: word for word in (*IRREGULAR.values(), "news", "howe", "proceed", "exceed", "succeed")}
SECOND = [
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate"),
    ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"),
    ("biliti", "ble"), ("fulli", "ful"),
]  # fmt: skip
THIRD = [
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
]  # fmt: skip
FOURTH = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a word in small letters. Takes time in proportion to the word's length."""
    if word in IRREGULAR or len(word) <= 2:
        return IRREGULAR.get(word, word)
    return _fifth(_fourth(_replaced(_second(_last_y(_past(_plural(word)))), THIRD)))


def _kinds(word: str) -> str:
    """`c` or `v` for each letter; y is a vowel after a consonant."""
    kinds = ""
    for char in word:
        vowel = char in "aeiou" or (char == "y" and kinds.endswith("c"))
        kinds += "v" if vowel else "c"
    return kinds


def _measure(word: str) -> int:
    return _kinds(word).count("vc")


def _is_short(word: str) -> bool:
    """Ends in consonant, vowel, consonant other than w, x and y; or is a vowel and a consonant."""
    kinds = _kinds(word)
    return (kinds.endswith("cvc") and word[-1] not in "wxy") or kinds == "vc"


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        left = word.removesuffix(suffix)
        if left != word and "v" in _kinds(left):
            return _mended(left)
    return word


def _mended(word: str) -> str:
    """What is left of a past or a participle, as the verb is written."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and _kinds(word).endswith("c"):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _last_y(word: str) -> str:
    left = word.removesuffix("y")
    return left + "i" if left != word and len(left) > 1 and _kinds(left).endswith("c") else word


def _second(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _second(word[:-2])
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, SECOND)


def _replaced(word: str, rules: Sequence[tuple[str, str]]) -> str:
    """The first suffix that the word has is replaced, if the measure of the rest is not 0."""
    for suffix, new in rules:
        if word.endswith(suffix):
            left = word[: -len(suffix)]
            return left + new if _measure(left) > 0 else word
    return word


def _fourth(word: str) -> str:
    for suffix in FOURTH:
        if word.endswith(suffix):
            left = word[: -len(suffix)]
            return left if _measure(left) > 1 and (suffix != "ion" or left[-1] in "st") else word
    return word


def _fifth(word: str) -> str:
    if word.endswith("e"):
        left = word[:-1]
        measure = _measure(left)
        word = left if measure > 1 or (measure == 1 and not _is_short(left)) else word
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
