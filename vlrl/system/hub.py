"""The Hugging Face hub: what is fetched is said first, and without a network a name fails once, within two seconds.

Libraries of the hub try five times for every file, for a minute in all, and say so on each try.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import urllib.request
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from vlrl.decoders import parse_json
from vlrl.types import UserError

PATIENCE = 1.8  # seconds until a host that takes no connection counts as out of reach
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


@cache
def reach_hub(name: str, kind: Kind = "models", file: str = "config.json") -> None:
    """Says what is about to be fetched, once; nothing of a local folder. A cached model is used where there is no hub.

    Args:
        file: that a cached copy must hold

    Raises:
        UserError: the hub cannot be reached, and there is no copy.
    """
    if Path(name).exists():
        return
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    cached = _is_cached(name, kind, file)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    if offline or not _is_reachable(endpoint):
        why = "HF_HUB_OFFLINE is set" if offline else f"{endpoint} cannot be reached"
        if not cached:
            copy = "rows are streamed" if kind == "datasets" else "there is no copy in the cache"
            raise UserError(f"{name}: {why}, and {copy}: check the network, or name a local folder")
        if not offline:
            _tell(f"{name}: {why}: the cached copy is used")
            _set_offline()
        return
    size = _find_size(f"{endpoint}/api/{kind}/{name}?blobs=true")
    amount = f"{size / 1e9:.1f} GB " if size else ""
    what = f"{endpoint} is asked whether the cached copy is current" if cached else f"fetching {amount}from {endpoint}"
    _tell(f"{name}: {what}")


def _is_cached(name: str, kind: Kind, file: str) -> bool:
    home = os.environ.get("HF_HOME", Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", Path(home) / "hub"))
    snapshots = cache / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    return kind == "models" and snapshots.is_dir() and any((each / file).exists() for each in snapshots.iterdir())


def _is_reachable(endpoint: str) -> bool:
    """Whether the hub's host, or the proxy before it, takes a connection. Names can take long to be looked up."""
    url = urlsplit(endpoint)
    bypassed = urllib.request.proxy_bypass(url.hostname or "")
    proxy = "" if bypassed else urllib.request.getproxies().get(url.scheme, "")
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else url
    connected = []

    def connect() -> None:
        try:
            port = via.port or (443 if via.scheme == "https" else 80)
            socket.create_connection((via.hostname or "", port), timeout=PATIENCE).close()
            connected.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(connected)


def _find_size(url: str) -> int | None:
    """Bytes of the files that are fetched; None where the hub does not say."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            files = parse_json(answer.read(LONGEST)).get("siblings", [])
    except (OSError, ValueError, AttributeError, HTTPException):
        return None
    return sum(file.get("size") or 0 for file in files if str(file.get("rfilename", "")).endswith(ENDINGS))


def _set_offline() -> None:
    """The hub's libraries read their caches and try no connection."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if constants := sys.modules.get("huggingface_hub.constants"):
        constants.__dict__["HF_HUB_OFFLINE"] = True


def _tell(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"vlrl: {text}", file=sys.stderr, flush=True)
