"""The look that all pages of vlrl share, for pages of robots: colours, type, the top bar, tables and drawings."""

from __future__ import annotations

from html import escape
from pathlib import Path

from vlrl import types

LOOK = Path(types.__file__).parent / "report" / "look.css"  # a file that belongs to vlrl.types' package, no module


def head(title: str, policy: str, style: str = "") -> str:
    """A page up to its body.

    Args:
        policy: what the browser may load, after `default-src 'none'`.
        style: CSS beyond the shared look.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; {policy}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{LOOK.read_text(encoding="utf-8")}{style}</style>
</head>
"""


def bar(kind: str) -> str:
    """The top bar of a page that does not change."""
    return f'<header class="topbar"><strong class="brand">vlrl</strong> <span class="muted">{kind}</span></header>'
