"""Keys of servers: read from the environment, and refused in URLs of a configuration, which is written down and shown.

A run's `config.yaml` is its configuration to the letter, so that a resumed run is the same one: what must not be
written must not be in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from vlrl.types import UserError

SECRET = re.compile(
    r"(?<=://)[^\s/?#@:]*(?::\S*)?(?=@)"  # user:password before the host; a password may hold / as it stands
    r"|(?<=[?&;#])(?P<name>[\w.-]*(?:key|token|secret|passw(?:or)?d|pwd|auth|sig|signature|credentials?))=[^\s&;#]+",
    re.IGNORECASE,
)
URLS = {"url", "urls"}  # keys whose values are URLs, also those that lack their `http://`
SCHEMES = ("Basic ", "Bearer ")


def problem(value: Any, path: str = "", above: tuple[int, ...] = ()) -> str | None:
    """What is wrong where a text of a configuration, or of a part of it at the key `path`, is a URL with a secret.

    Names where it stands and not what it is. None: nothing is wrong. `above` are what holds it, by `id`: YAML can
    say of a list that it holds itself.
    """
    if id(value) in above:
        return None
    is_url = not URLS.isdisjoint(path.split(".")[-2:])
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        if found := problem(each, f"{path}.{key}" if path else str(key), (*above, id(value))):
            return found
    if not isinstance(value, str) or not _holds_secret(value, is_url):
        return None
    return (
        f"{path}: a URL with a password or key in it, but configurations are written down: take it out; a server's "
        "key goes into an environment variable that `key` names beside the URL, a robot's into a `token_file`"
    )


def _holds_secret(text: str, is_url: bool) -> bool:
    if is_url and "@" in text:  # perhaps without its `http://`
        return True
    return (is_url or "://" in text) and SECRET.search(text) is not None


def hidden(text: str) -> str:
    """The text with *** for passwords and keys in its URLs."""
    return SECRET.sub(lambda found: f"{found['name']}=***" if found["name"] else "***", text)


def header(variable: str | None, path: str) -> dict[str, str]:
    """The header that shows a server its key; {} without one.

    Args:
        variable: the environment variable that holds a token, or all that is to be sent: `Basic ..` or `Bearer ..`.
        path: the configuration's key that names it.

    Raises:
        UserError: there is no such variable.
    """
    if variable is None:
        return {}
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{path}: the environment variable {variable} is not set")
    return {"Authorization": value if value.startswith(SCHEMES) else f"Bearer {value}"}
