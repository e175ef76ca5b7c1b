"""The nearest right spelling of a word."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def suggest(word: str, known: Sequence[str]) -> str:
    """'; did you mean X? (one of ...)' for an unknown word."""
    return meant(word, known) + (f" (one of: {', '.join(sorted(known))})" if known else "")


def meant(word: str, known: Sequence[str]) -> str:
    """'; did you mean X?' for an unknown word, '' where none is near."""
    begun = sorted(name for name in known if word and name.startswith(f"{word}_"))
    swapped = [name for name in known if sorted(name) == sorted(word)]
    close = begun or swapped or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
