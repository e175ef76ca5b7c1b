"""Cells of text as an HTML table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    """Every cell escaped."""

    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    return f"<table><thead>{line(head, 'th')}</thead><tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"
