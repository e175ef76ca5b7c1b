"""Rewards for answers in text: choices, short and open answers, lists, formats, graded by whole words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rapidfuzz.distance import LCSseq, Levenshtein

from rewards import math, parse
from rewards.math import equal_numbers, read_number
from rewards.parse import MAX_CHARS, MAX_LITERAL_CHARS, Parsed, total

DIRECTIONS = ("up", "down", "left", "right")
MAX_EDITED = 500  # characters; longer texts are no short answers


@total()
def token_f1(predicted: str, truth: str) -> float:
    """F1 of the words of two texts, in [0, 1]; neither case nor order counts; 0 when either has no word.

    The smaller of the F1 of the sets of words (GUI-R1, OS-Atlas) and of the words as often as they are written, so
    that repeating a word is not free. Never raises; linear in the texts.
    """
    words, right = Counter(predicted.lower().split()), Counter(truth.lower().split())
    if not words or not right:
        return 0.0
    as_sets = len(words.keys() & right.keys()) / (len(words) + len(right))
    overlap = (words & right).total() / (words.total() + right.total())
    return 2 * min(as_sets, overlap)


@total()
def direction(predicted: str, truth: str) -> float:
    """0 or 1: both are the same one of up, down, left, right; case does not count. Never raises."""
    return float(predicted.lower() == truth.lower() and truth.lower() in DIRECTIONS)


@total()
def similar(predicted: str, truth: str) -> float:
    """0 or 1: at least half of the longer text need not be edited (Levenshtein); case counts.

    An empty text is similar to the empty text only; texts over MAX_EDITED characters only to themselves. Never raises.
    Source: GUI-Odyssey, which also takes any text that contains the other, the empty one included.
    """
    longest = max(len(predicted), len(truth))
    if predicted == truth or longest > MAX_EDITED or not predicted or not truth:
        return float(predicted == truth)
    return float(1 - Levenshtein.distance(predicted, truth) / longest >= 0.5)


@total()
def verdict(reply: str) -> float:
    """0 or 1: a judge's reply ends in its only `Status:`, followed by the one word `success`. Never raises.

    Source: DigiRL's evaluator, which takes the first status and any word that contains `success`.
    """
    _, _, status = reply.partition("Status:")
    return float(status.strip().lower() == "success")


# Reward for writing the answer in the asked form.


@total()
def tagged(completion: str, thinking: bool, read: Callable[[str], parse.Parsed] = parse.Parsed) -> float:
    """0 or 1: the tags are right (`parse.answer_text`) and `read` accepts what is inside them. Never raises."""
    return float(parse.answer(completion, thinking, read).reason is None)


# Completions that observe before they think: `<observe>`, `<think>`, `<answer>`, as Observe-R1 asks for.

OPEN, CLOSE = "<observe>", "</observe>"


def answer_text(completion: str) -> Parsed:
    """The text inside the only `<answer>`, behind thoughts and one observation before them or at their beginning.

    Observation and thoughts hold no other tag. Reasons: those of `parse.answer_text`, no_observe, many_observes,
    observe_misplaced. Never raises. Source: Observe-R1 (2505.12432).
    """
    if len(completion) > MAX_CHARS:
        return Parsed(reason="too_long")
    if OPEN not in completion or CLOSE not in completion:
        return Parsed(reason="no_observe")
    if completion.count(OPEN) > 1 or completion.count(CLOSE) > 1:
        return Parsed(reason="many_observes")
    before, _, rest = completion.partition(OPEN)
    content, closed, after = rest.partition(CLOSE)
    placed = before.strip() in ("", "<think>") and closed and content.strip()
    if not placed or any(tag in content for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return Parsed(reason="observe_misplaced")
    return parse.answer_text(before + after, thinking=True)


@total()
def observe_format(completion: str) -> float:
    """0 or 1: the tags are right and the answer is not empty. Never raises."""
    read = answer_text(completion)
    return float(read.reason is None and bool(read.value.strip()))


# Porter's stemmer for English (Porter 1980, `An algorithm for suffix stripping`) with the changes that NLTK made.
#
# A word is consonants and vowels in turn, [C](VC)^m[V]; the rules look at m, the measure, of what is left of the
# suffix.

IRREGULAR = {
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "innings": "inning",
    "outings": "outing",
    "cannings": "canning",
}
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


# Rewards for short answers: the text inside the answer tags against the truth, both as they are written.
#
# Nothing is searched for inside other words, and contradictions are worth 0. An empty truth is worth 0 to all. None of
# these raises on any text; all take linear time but `default`, whose texts are bounded. Source: VLM-R1
# (github.com/om-ai-lab/VLM-R1, grpo_jsonl.py); differences in docs/rewards.md.

MAX_ANSWER = 2_000  # characters; longer ones are no short answers
# each takes linear time: a match starts at a fixed place and nothing can be split in two ways
_ANSWERS_LEAD = re.compile(r"(?:THE )?(?:CORRECT )?(?:ANSWER|OPTION|CHOICE)(?: IS)?:? ")
_CHOICE = re.compile(r"([A-Z])(?:[.,:;?!]|[.,:;?!] .*)?")
_LONE_LETTERS = re.compile(r"(?<![A-Z])[A-Z](?=[.,:;?!]|$)")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?\.?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3}){1,5}")


@total()
def all_match(predicted: str, truth: str) -> float:
    """0 or 1: the same text; neither case, line breaks, outer spaces nor final dots count."""
    return float(_plain(predicted) == _plain(truth) != "")


@total()
def multiple_choice(predicted: str, truth: str) -> float:
    """0 or 1: the same letter, alone or before the option's text: `B`, `b.`, `B. cat`, `The answer is B`."""
    return float(choice(truth) is not None and choice(predicted) == choice(truth))


@total()
def yes_no(predicted: str, truth: str) -> float:
    """0 or 1: both begin with the same one of the words yes and no, and do not hold the other."""
    return float(_verdict(truth) is not None and _verdict(predicted) == _verdict(truth))


@total()
def numeric(predicted: str, truth: str) -> float:
    """0 or 1: the same decimal number, and nothing but it (`3`, `3.0`, `1e3`)."""
    right = _number(truth)
    return float(right is not None and _number(predicted) == right)


@total()
def default(predicted: str, truth: str) -> float:
    """The same number or letter where the truth is one, else how similar the texts are, in [0, 1].

    Numbers may be fractions, have thousands marked by commas, or stand in $ $ or \\boxed{ }. Similar is twice the
    longest common subsequence over the sum of the lengths, without case; texts over MAX_EDITED characters are similar
    to themselves only.
    """
    right = _answers_value(truth)
    if right is not None:
        return float(_answers_value(predicted) == right)
    if choice(truth) is not None:
        return multiple_choice(predicted, truth)
    first, second = _plain(predicted), _plain(truth)
    if not first or not second or max(len(first), len(second)) > MAX_EDITED:
        return float(first == second != "")
    return 2 * LCSseq.similarity(first, second) / (len(first) + len(second))


def _plain(text: str) -> str:
    return " ".join(line.strip() for line in text[: MAX_ANSWER + 1].strip().split("\n")).rstrip(".").strip().lower()


def choice(text: str) -> str | None:
    """The letter that a text chooses, as a capital; None where it chooses none or names several."""
    upper = " ".join(text[:MAX_ANSWER].upper().split())
    lead = _ANSWERS_LEAD.match(upper)
    match = _CHOICE.fullmatch(upper, lead.end() if lead else 0)
    return match[1] if match and len(_LONE_LETTERS.findall(upper)) == 1 else None


def _verdict(text: str) -> str | None:
    upper = " ".join(text[:MAX_ANSWER].upper().split())
    lead = _ANSWERS_LEAD.match(upper)
    words = re.findall(r"\w+", upper[lead.end() if lead else 0 :])
    verdicts = {"YES", "NO"} & set(words)
    return words[0] if len(verdicts) == 1 and words[0] in verdicts else None


def _number(text: str) -> Fraction | None:
    stripped = text.strip()
    return Fraction(stripped.rstrip(".")) if _NUMBER.fullmatch(stripped) else None


def _answers_value(text: str) -> Fraction | None:
    stripped = text.strip()
    for start, end in (("$", "$"), ("\\boxed{", "}")):
        if len(stripped) > len(start) and stripped.startswith(start) and stripped.endswith(end):
            stripped = stripped[len(start) : -len(end)].strip()
    if _THOUSANDS.fullmatch(stripped):
        stripped = stripped.replace(",", "")
    above, _, below = stripped.partition("/")
    whole, share = _number(above), _number(below or "1")
    return whole / share if whole is not None and share else None


# Rewards for longer texts, word by word: word accuracy for text that is read, ROUGE for free answers.
#
# Both are bounded: a text of more than MAX_WORDS words is worth 0. None of these raises on any text.

MAX_WORDS = 300
MAX_WORD = 40  # characters of a word that is stemmed
_WORD = re.compile(r"[a-z0-9]+")


@total()
def word_accuracy_of_all(predicted: str, truth: str) -> float:
    """1 - word error rate (edits of words / words of the truth), in [0, 1]; case and punctuation count.

    An empty truth is worth 0.
    """
    first, second = predicted.split(), truth.split()
    if not second or max(len(first), len(second)) > MAX_WORDS:
        return 0.0
    return max(0.0, 1.0 - Levenshtein.distance(first, second) / len(second))


@total()
def rouge(predicted: str, truth: str) -> float:
    """Mean of the F1 of ROUGE-1, ROUGE-2 and ROUGE-L over Porter's stems, in [0, 1]; neither case nor punctuation.

    Letters and digits of ASCII only: other scripts are worth 0. Equal to the package rouge-score with stemming.
    Source: Lin 2004, `ROUGE: A Package for Automatic Evaluation of Summaries`.
    """
    first, second = _stems(predicted), _stems(truth)
    if not first or not second or max(len(first), len(second)) > MAX_WORDS:
        return 0.0
    longest = 2 * LCSseq.similarity(first, second) / (len(first) + len(second))
    return (_overlap(first, second, 1) + _overlap(first, second, 2) + longest) / 3


def _stems(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return [stem(word) if 3 < len(word) <= MAX_WORD else word for word in words[: MAX_WORDS + 1]]


def _overlap(first: Sequence[str], second: Sequence[str], size: int) -> float:
    """F1 of the runs of `size` words, as often as they are written."""
    a, b = (Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1)) for words in (first, second))
    return 2 * (a & b).total() / (a.total() + b.total()) if a and b else 0.0


# Rewards for open answers in words: the same text, words in common, errors of reading. See `rewards.text` for ROUGE.
#
# Case, outer punctuation and a leading article do not count; punctuation inside words does (12.50 is not 1250).
# Bounded:
# a text of more than MAX_WORDS words, or MAX_EDITED characters where characters are compared, is worth 0. An empty
# truth
# is worth 0. None of these raises on any text.

MAX_TEXT = 4_000  # characters
_OPENING, _CLOSING = "\"'([{“‘«`*", "\"')]}”’»`*.,;:!?…"
_ARTICLES = ("a", "an", "the")


@total()
def exact_match(predicted: str, truth: str) -> float:
    """0 or 1: the same words in the same order."""
    return float(_drop_article(predicted) == _drop_article(truth) != [])


@total()
def squad_f1(predicted: str, truth: str) -> float:
    """F1 of the words as often as they are written, in [0, 1]; their order does not count.

    Source: SQuAD (1606.05250), which also takes punctuation out of words.
    """
    tokens, right = _drop_article(predicted), _drop_article(truth)
    if not tokens or not right:
        return 0.0
    return 2 * (Counter(tokens) & Counter(right)).total() / (len(tokens) + len(right))


@total()
def rouge_l(predicted: str, truth: str) -> float:
    """F1 of the longest common subsequence of words, in [0, 1]; any script, no stems.

    Source: Lin 2004, `ROUGE: A Package for Automatic Evaluation of Summaries`.
    """
    tokens, right = _drop_article(predicted), _drop_article(truth)
    return 2 * LCSseq.similarity(tokens, right) / (len(tokens) + len(right)) if tokens and right else 0.0


@total()
def word_accuracy(predicted: str, truth: str) -> float:
    """1 - word error rate (edits of words / words of the truth), in [0, 1]."""
    tokens, right = _drop_article(predicted), _drop_article(truth)
    return max(0.0, 1.0 - Levenshtein.distance(tokens, right) / len(right)) if right else 0.0


@total()
def anls(predicted: str, truth: str) -> float:
    """1 - edits of characters / length of the longer text, in [0.5, 1], else 0.

    Source: the average normalised Levenshtein similarity of ST-VQA and DocVQA (1905.13648), threshold 0.5.
    """
    answer, right = " ".join(_drop_article(predicted)), " ".join(_drop_article(truth))
    longer, shorter = max(len(answer), len(right)), min(len(answer), len(right))
    if not right or longer > MAX_EDITED or 2 * shorter < longer:  # so many edits that it is below the threshold
        return float(answer == right != "")
    similar = 1.0 - Levenshtein.distance(answer, right) / longer
    return similar if similar >= 0.5 else 0.0


def normal(text: str) -> str:
    """A text in normal form and case, its words without punctuation around; '' for a too long one."""
    return " ".join(_words(text))


def _drop_article(text: str) -> list[str]:
    """The words without a leading article."""
    words = _words(text)
    return words[1:] if len(words) > 1 and words[0] in _ARTICLES else words


def _words(text: str) -> list[str]:
    if len(text) > MAX_TEXT:
        return []
    tokens = unicodedata.normalize("NFKC", text).casefold().split()
    words = [word.lstrip(_OPENING).rstrip(_CLOSING) for word in tokens]
    words = [word for word in words if word]
    return words if len(words) <= MAX_WORDS else []


# Reward for a choice: one option, by its letter, by its text or by both. Two options, or all, are no choice.

MAX_CHOICE = 500  # characters
# each takes linear time: it starts at a fixed place and nothing can be split in two ways
_CHOICES_LEAD = re.compile(
    r"(?:the )?(?:correct |final |best )?(?:answer|option|choice)(?: is)?:? ?(?=\S)", re.IGNORECASE
)
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_BOTH = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.:)]) ?(.+)")


@total()
def chosen(predicted: str, truth: str, options: Sequence[str] = ()) -> float:
    """0 or 1: both choose the same option. A truth that chooses none is worth 0 to all. Never raises."""
    right = find_option(truth, options)
    return float(right is not None and find_option(predicted, options) == right)


def find_option(text: str, options: Sequence[str] = ()) -> int | None:
    """The place of the option that a text chooses, from 0; None where it chooses none or several.

    `B`, `(b)`, `B.`, `The answer is B`; the option's whole text (`rewards.text.normal`); `B. cat` where both agree.
    A lone letter is an option's letter, whatever the options' texts are. Without `options` any letter is one and
    nothing may stand behind it.
    """
    if len(text) > MAX_CHOICE:
        return None
    collapsed = " ".join(text.split())
    lead = _CHOICES_LEAD.match(collapsed)
    for candidate in dict.fromkeys((collapsed, collapsed[lead.end() :] if lead else collapsed)):
        match = _match_option(candidate, options)
        if match is not None:
            return match
    return None


def _match_option(written: str, options: Sequence[str]) -> int | None:
    if lone := _LETTER.fullmatch(written):
        index = ord(lone[1].upper()) - ord("A")
        return index if index < (len(options) or 26) else _named(written, options)
    both = _BOTH.fullmatch(written)
    if both and options:
        index = ord(both[1] or both[2]) - ord("A")
        if index < len(options):
            return index if normal(options[index]) in (normal(both[3]), normal(written)) else None
    return _named(written, options)


def _named(written: str, options: Sequence[str]) -> int | None:
    """The only option whose text this is."""
    text = normal(written)
    same = [index for index, option in enumerate(options) if text and normal(option) == text]
    return same[0] if len(same) == 1 else None


# Reward for lists whose order does not count. What is named twice is surplus the second time.

MAX_ITEMS = 100
_BETWEEN = re.compile(r"[;\n]|,(?![0-9]{3}(?![0-9]))|\band\b")  # a comma before three digits marks thousands
Item = str | tuple[Fraction, str]


@total()
def set_f1(predicted: str, truth: str) -> float:
    """F1 of two lists of items, in [0, 1]: twice those in common over all that both name.

    A JSON list, or items between commas, semicolons, line breaks or `and`. Items are the same number (`3.0`, `3`) or
    the same text (`rewards.text.normal`). An empty truth is worth 0. Never raises; linear in the texts.
    """
    guesses, right = items(predicted), items(truth)
    if not guesses or not right:
        return 0.0
    return 2 * (Counter(guesses) & Counter(right)).total() / (len(guesses) + len(right))


def items(text: str) -> list[Item]:
    """The items that a text lists, repeats included; none where they are more than MAX_ITEMS or too long."""
    stripped = text.strip()
    if len(stripped) > MAX_LITERAL_CHARS:
        return []
    listed = parse.literal(stripped).value if stripped.startswith("[") else None
    plain = isinstance(listed, list) and all(isinstance(each, str | int | float) for each in listed)
    parts = [str(each)[:MAX_LITERAL_CHARS] for each in listed] if plain else _BETWEEN.split(_inside(stripped))
    pieces = [item for part in parts[: MAX_ITEMS + 1] if (item := _item(part)) != ""]
    return pieces if len(pieces) <= MAX_ITEMS else []


def _inside(written: str) -> str:
    return written[1:-1] if written[:1] + written[-1:] in ("{}", "[]", "()") else written


def _item(text: str) -> Item:
    number = read_number(text).value
    return (number.value, number.unit) if number else normal(text)


# Grades an answer by its kind: a choice, a number, a formula, a text, a list. The one place that knows them all.

TEXTS: Mapping[str, Callable[[str, str], float]] = {
    "exact": exact_match,
    "token_f1": squad_f1,
    "rouge_l": rouge_l,
    "word_accuracy": word_accuracy,
    "anls": anls,
}
KINDS = ("choice", "number", "math", "text", "list")


@dataclass(frozen=True)
class TextTruth:
    """What is right, and how it is judged."""

    kind: str  # of KINDS
    answer: str  # a letter or text of an option, a number, a formula, a text, a list
    options: tuple[str, ...] = ()  # of a choice
    also: tuple[str, ...] = ()  # other texts that are as right
    absolute: float = 0.0  # error of a number that is allowed
    relative: float = 0.0  # the same as a share of it


@dataclass(frozen=True)
class Grade:
    """`value` in [0, 1]; `correct` 0 or 1; `reason` why nothing could be read."""

    value: float
    correct: float
    reason: str | None = None


def grade(predicted: str, truth: TextTruth, measure: str = "exact", same: math.Same | None = None) -> Grade:
    """What an answer is worth. Never raises on any text, if `same` does not.

    Args:
        measure: of TEXTS, for texts and lists of right texts; correct is `exact` whatever it is.
        same: decides over formulas, see `math.equal_formulas`.

    Reasons: empty_answer, not_an_option, not_a_number, not_a_formula, not_a_list.
    """
    if not predicted.strip():
        return Grade(0.0, 0.0, "empty_answer")
    reason = _unreadable(predicted, truth)
    if reason:
        return Grade(0.0, 0.0, reason)
    if truth.kind == "text":
        rights = (truth.answer, *truth.also)
        best = max(TEXTS[measure](predicted, right) for right in rights)
        return Grade(best, max(exact_match(predicted, right) for right in rights))
    value = _grading_value(predicted, truth, same)
    return Grade(value, float(value >= 1.0))


def _unreadable(predicted: str, truth: TextTruth) -> str | None:
    if truth.kind == "choice" and find_option(predicted, truth.options) is None:
        return "not_an_option"
    if truth.kind == "number":
        return read_number(predicted).reason
    if truth.kind == "math" and read_number(predicted).reason:
        return math.formula(predicted).reason
    return "not_a_list" if truth.kind == "list" and not items(predicted) else None


def _grading_value(predicted: str, truth: TextTruth, same: math.Same | None) -> float:
    if truth.kind == "choice":
        return chosen(predicted, truth.answer, truth.options)
    if truth.kind == "number":
        return equal_numbers(predicted, truth.answer, truth.absolute, truth.relative)
    if truth.kind == "math":
        return math.equal_formulas(predicted, truth.answer, same)
    return set_f1(predicted, truth.answer) if truth.kind == "list" else 0.0
