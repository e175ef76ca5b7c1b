"""The network: what is fetched, and who is asked, is said first; without one a name fails once, within two seconds.

Libraries of the hub try five times for every file, for a minute in all, and say so on each try.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from functools import cache
from http.client import HTTPException
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from vlrl.decoders import parse_json
from vlrl.types import UserError

PATIENCE = 1.0  # seconds until a host that takes no connection counts as out of reach; a command starts in as many
ANSWER_S = 5.0  # until one that took it and does not answer does
LONGEST = 2**24  # bytes of what the hub says of a repository
ENDINGS = (".safetensors", ".json", ".jinja", ".model", ".txt")  # of files that are fetched of a model
Kind = Literal["models", "datasets"]


DATASET = re.compile(r"hf://(?:datasets/)?([\w-][\w.-]*/[\w.-]+)")


def reach_source(name: str) -> None:
    """As `reach_hub`, of `hf://OWNER/NAME...`; nothing of other files."""
    if found := DATASET.match(name):
        reach_hub(found[1], "datasets")


def reach_model(name: str) -> None:
    """As `reach_hub`, of what may also be a bundled model, a folder or a run."""
    if name.count("/") == 1 and not name.startswith((".", "/", "~", "runs/")) and not Path(name).parent.is_dir():
        reach_hub(name)


def announce_servers(settings: Any, path: str = "") -> None:
    """Says which servers a configuration has asked, as judges or engines: every value of it that is a URL, once."""
    if isinstance(settings, dict | list):
        pairs = settings.items() if isinstance(settings, dict) else enumerate(settings)
        for key, value in pairs:
            announce_servers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(settings, str) and settings.startswith(("http://", "https://")):
        _announce(settings, path)


@cache
def _announce(url: str, key: str) -> None:
    _tell(f"{key}: {url} is asked")


@cache
def reach_hub(name: str, kind: Kind = "models", file: str = "config.json") -> None:
    """Says what is about to be fetched, once; nothing of a local folder. A cached model is used where there is no hub.

    Args:
        file: that a cached copy must hold.

    Raises:
        UserError: the hub cannot be reached, and there is no copy.
    """
    if Path(name).exists():
        return
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    cached = _is_cached(name, kind, file)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    fault, size = ("HF_HUB_OFFLINE is set", 0) if offline else _ask(endpoint, f"api/{kind}/{name}?blobs=true")
    if fault:
        if not cached:
            copy = "rows are streamed" if kind == "datasets" else "there is no copy in the cache"
            raise UserError(f"{name}: {fault}, and {copy}: check the network, or name a local folder")
        if not offline:
            _tell(f"{name}: {fault}: the cached copy is used")
            _set_offline()
        return
    amount = f"{size / 1e9:.1f} GB " if size else ""
    what = f"{endpoint} is asked whether the cached copy is current" if cached else f"fetching {amount}from {endpoint}"
    _tell(f"{name}: {what}")


def _is_cached(name: str, kind: Kind, file: str) -> bool:
    home = os.environ.get("HF_HOME", Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", Path(home) / "hub"))
    snapshots = cache / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    return kind == "models" and snapshots.is_dir() and any((each / file).exists() for each in snapshots.iterdir())


def _ask(endpoint: str, page: str) -> tuple[str, int]:
    """Why the hub can give nothing, '' if it can, and the bytes of the files that are fetched, 0 if it does not say."""
    if not _run_within(PATIENCE, lambda: _is_reachable(endpoint), False):
        return f"{endpoint} cannot be reached", 0
    fault, size = _run_within(ANSWER_S, lambda: _find_size(f"{endpoint}/{page}"), ("does not answer", 0))
    return fault and f"{endpoint} {fault}", size


def _run_within[T](seconds: float, run: Callable[[], T], otherwise: T) -> T:
    """What a function that waits for the network returns: looking up a name has no time-out, and that of a socket
    begins anew at every byte."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(run()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise


def _is_reachable(endpoint: str) -> bool:
    """Whether the hub's host, or the proxy before it, takes a connection."""
    url = urlsplit(endpoint)
    bypassed = urllib.request.proxy_bypass(url.hostname or "")
    proxy = "" if bypassed else urllib.request.getproxies().get(url.scheme, "")
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else url
    try:
        port = via.port or (443 if via.scheme == "https" else 80)
        socket.create_connection((via.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def _find_size(url: str) -> tuple[str, int]:
    """What is wrong with the answer, and bytes. A name that needs a token is for the hub's libraries to refuse."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            files = parse_json(answer.read(LONGEST)).get("siblings", [])
    except HTTPError as error:
        return f"answers {error.code}" if error.code >= 500 else "", 0
    except URLError as error:  # the hub's libraries bring certificates of their own
        return "" if isinstance(error.reason, SSLCertVerificationError) else "does not answer", 0
    except (OSError, HTTPException):
        return "does not answer", 0
    except (ValueError, AttributeError):
        return "", 0
    return "", sum(file.get("size") or 0 for file in files if str(file.get("rfilename", "")).endswith(ENDINGS))


def _set_offline() -> None:
    """The hub's libraries read their caches and try no connection."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if constants := sys.modules.get("huggingface_hub.constants"):
        constants.__dict__["HF_HUB_OFFLINE"] = True


def _tell(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"vlrl: {text}", file=sys.stderr, flush=True)
