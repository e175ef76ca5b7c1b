"""Charades-STA (1705.02101): text files of a line for each sentence (github.com/jiyanggao/TALL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.readers import clip
from tasks.readers import video_fields as timed
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place


def _line(values: Mapping[str, Any], place: Place) -> Clip:
    """`AO8RW 0.0 6.9##a person is putting a book on a shelf.`: video, start and end in seconds, sentence.

    Of the published rows 15 % end up to 1.5 s after the video; they are cut to it.
    """
    told, _, sentence = str(values["line"]).partition("##")
    parts = told.split()
    if len(parts) != 3 or not sentence.strip():
        raise BadRowError(f"{values['line']!r}: must be a line 'video start end##sentence'")
    row = clip.clip({"video": parts[0]}, "video", place, question=sentence.strip())
    return clip.spanned(row, parts[1:], "start, end", timed.OVERRUN)


SPANS = {"charades_sta": Form(frozenset({"line"}), _line)}
