"""What the commands share."""

from __future__ import annotations

import argparse
import os

CHANGES = "key.path=value overrides and recipe files, applied in order"
Commands = argparse._SubParsersAction


def takes_changes(command: argparse.ArgumentParser, help: str = CHANGES) -> None:
    """`command CONFIG [CHANGE ...]`."""
    # with a default, or argparse calls them required
    command.add_argument("changes", nargs="*", default=[], metavar="CHANGE", help=help)


def quiet() -> None:
    """Libraries' progress bars and notes would bury our own line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
