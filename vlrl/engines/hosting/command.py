"""`vlrl serve-model`: a vision-language model behind a port (docs/engines.md)."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import Any

from vlrl.config import PolicySection
from vlrl.engines.hosting.batching import Writer
from vlrl.engines.hosting.http import ModelServer, Service
from vlrl.http_server import is_loopback
from vlrl.policies.load import load
from vlrl.types import UserError

SLACK = 2**22  # bytes of a safetensors file beside its numbers


def main(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM: 0.

    Args:
        options: model, host, port, name, token_env, weights_folder, max_tokens, max_batch, max_pixels, min_pixels,
            dtype.

    Raises:
        UserError: an option cannot be used, or the model cannot be served.
    """
    token = _token(options)
    if options.weights_folder and not Path(options.weights_folder).is_dir():
        raise UserError(f"--weights-folder: there is no folder {options.weights_folder!r}")
    section = PolicySection(
        model=options.model, dtype=options.dtype, max_pixels=options.max_pixels, min_pixels=options.min_pixels
    )
    policy: Any = load(section)
    if not hasattr(policy, "codec"):
        raise UserError(f"serve-model: {options.model} is no vision-language model: serve it with vlrl serve")
    policy.model.eval()
    writer = Writer(policy, options.max_batch)
    size = sum(p.numel() for p in policy.model.parameters()) * 8 + SLACK  # float64 at most
    folder = Path(options.weights_folder) if options.weights_folder else None
    name = options.name or options.model
    service = Service(writer, policy.codec, name, options.max_tokens, folder, size, token)
    try:
        server = ModelServer(options.host, options.port, service)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"serve-model: cannot listen on {options.host}:{options.port}: {reason}") from None
    _until_told(server)
    writer.close()
    return 0


def _until_told(server: ModelServer) -> None:
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: stop.set())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    print(f"serving {server.service.name} at http://{host}:{port}", flush=True)
    stop.wait()
    server.shutdown()
    server.server_close()


def _token(options: argparse.Namespace) -> str | None:
    """What clients must show; it stands in an environment variable and is written nowhere."""
    if options.token_env:
        if not os.environ.get(options.token_env):
            raise UserError(f"--token-env: the environment variable {options.token_env} is not set")
        return os.environ[options.token_env]
    if not is_loopback(options.host):
        raise UserError(f"--host {options.host}: others could change the model: give --token-env, or stay on 127.0.0.1")
    return None
