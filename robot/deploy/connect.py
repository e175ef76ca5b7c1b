"""Connections to servers that the config names: the policy's, the one that resets, the classifier's."""

from __future__ import annotations

from pathlib import Path

from robot.serving.client import Client
from robot.serving.spec import Wants
from vlrl.types import UserError


def connected(
    key: str, url: str, token_file: str | None, ca: str | None, wants: Wants | None = None, patience: float = 10.0
) -> Client:
    """A client of a server, which has answered.

    Args:
        key: the section of the config, for the errors.
        token_file: what `vlrl serve --new-token` wrote.
        ca: a certificate (PEM) that wss:// is checked against.
        patience: seconds until it is given up.

    Raises:
        UserError: it cannot be reached, or does not fit `wants`.
    """
    return Client(url, token=_token(key, token_file), ca=Path(ca) if ca else None, wants=wants, patience=patience)


def _token(key: str, file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{key}.token_file: {file}: {getattr(error, 'strerror', None) or error}") from None
