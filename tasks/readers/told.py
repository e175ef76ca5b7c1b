"""What a user should know of a data file before the run."""

from __future__ import annotations

import os
import sys


def tell(text: str) -> None:
    """A line on stderr; of many processes, which read the same, one tells."""
    if os.environ.get("RANK", "0") == "0":
        print(f"vlrl: {text}", file=sys.stderr)
