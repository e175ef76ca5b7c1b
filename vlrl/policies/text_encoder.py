"""Text to token ids: the one place where content is kept from becoming a chat template's own tokens.

Content (instructions, answers, tool results, earlier turns) may spell a special token, such as `<|im_start|>`. Before
the chat template is applied, the first character of each spelling is replaced by a private-use stand-in that the
content does not use; after tokenization the text between special tokens that holds a stand-in is encoded again as
plain text. Content that spells no special token gets exactly the ids of the tokenizer's own rendering.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import AddedToken

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # code points without a character; content that uses some gets others


class TextEncoder:
    """Plain text and rendered chats -> ids.

    Args:
        tokenizer: a fast tokenizer of transformers.
        reserved: ids that content must not become, besides the tokens that the tokenizer marks as special.
    """

    def __init__(self, tokenizer: Any, reserved: Iterable[int] = ()):
        self._tokenizer = tokenizer
        marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset({*marked, *tokenizer.all_special_ids, *reserved})
        self._spellings = sorted(tokenizer.convert_ids_to_tokens(sorted(self.special_ids)), key=len, reverse=True)
        self._pattern = _pattern_of(self._spellings)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, in which no special token occurs whatever it spells."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def protect(self, turns: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, str]]:
        """Turns for a chat template in which no text spells a special token, and what the stand-ins stand for."""
        texts = [text for turn in turns for text in _texts(turn)]
        if not any(map(self._pattern.search, texts)):
            return [dict(turn) for turn in turns], {}
        used = set().union(*texts)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        stand_ins = dict(zip(sorted({spelling[0] for spelling in self._spellings}), free, strict=False))

        def protected(text: str) -> str:
            return self._pattern.sub(lambda match: stand_ins[match[0]], text)

        changed = [{key: _mapped(value, protected) for key, value in turn.items()} for turn in turns]
        return changed, {ord(new): old for old, new in stand_ins.items()}

    def restore(self, ids: Sequence[int], stand_ins: Mapping[int, str]) -> list[int]:
        """The ids of a rendered chat: text that holds stand-ins is encoded again as the plain text it stands for."""
        if not stand_ins:
            return list(ids)
        restored: list[int] = []
        for special, run in groupby(ids, key=self.special_ids.__contains__):
            part = list(run)
            text = "" if special else self._tokenizer.decode(part, clean_up_tokenization_spaces=False)
            restored += self.encode(text.translate(stand_ins)) if set(map(ord, text)) & set(stand_ins) else part
        return restored

    def find_special(self, text: str) -> str | None:
        """A special token that a text spells; None: it spells none."""
        return next((spelling for spelling in self._spellings if spelling in text), None)

    @cached_property
    def _plain(self) -> Any:
        """A copy of the tokenizer's backend that matches no special token. The flag is state: a copy needs no lock."""
        backend = copy.deepcopy(self._tokenizer.backend_tokenizer)
        backend.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in self._spellings])
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        return backend


def _pattern_of(spellings: Sequence[str]) -> re.Pattern[str]:
    """The first character of each spelling, also of one that the next text might complete."""
    rests: dict[str, set[str]] = {}
    for spelling in spellings:
        complete, begun = spelling[1:], (rf"{re.escape(spelling[1:end])}\Z" for end in range(1, len(spelling)))
        rests.setdefault(spelling[0], set()).update((re.escape(complete), *begun))
    return re.compile("|".join(rf"{re.escape(first)}(?={'|'.join(sorted(rest))})" for first, rest in rests.items()))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list | tuple) else value
