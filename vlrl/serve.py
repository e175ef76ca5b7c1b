"""`vlrl serve`: a policy behind a port (docs/serve.md)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from robot.serving.doors import Door, new_token, token_in
from robot.serving.openpi_codec import Keys
from robot.serving.server import run
from robot.serving.sessions import Limits
from robot.serving.spec import Servable
from vlrl import config as configs
from vlrl.http_server import is_loopback
from vlrl.serving.load import servable
from vlrl.serving.watched import Watched
from vlrl.serving.weights import state_of
from vlrl.types import UserError


def main(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM, then ends in order: 0.

    Args:
        options: policy, config, hz, host, port, token_file, new_token, tls_cert, tls_key, watch, max_clients,
            max_batch, openpi_key; None where one is not given.

    Raises:
        UserError: an option cannot be used, or the policy cannot be served.
    """
    if options.new_token:
        new_token(Path(options.new_token))
        print(f"a new token is in {options.new_token}: give it as --token-file, here and to the robots")
        return 0
    if not options.policy:
        raise UserError("--policy: a folder, a run folder, a bundled name (embedded_push) or a name on the hub")
    door, keys = _door(options), keys_of(options.openpi_key or ())
    limits = Limits(clients=options.max_clients or Limits.clients, batch=options.max_batch or Limits.batch)
    logging.basicConfig(format="vlrl: %(message)s")
    config = configs.load(options.config) if options.config else None

    def load() -> Servable:
        return servable(options.policy, config, hz=options.hz or 0.0)

    if not options.watch:
        return asyncio.run(_serve(load(), door, limits, keys))
    with contextlib.closing(Watched(load, lambda: state_of(options.policy))) as watched:
        return asyncio.run(_serve(watched, door, limits, keys))


def _door(options: argparse.Namespace) -> Door:
    paths = (Path(file) if file else None for file in (options.tls_cert, options.tls_key))
    token = token_in(Path(options.token_file)) if options.token_file else None
    return Door(options.host, options.port, token, *paths)


def keys_of(given: Sequence[str]) -> Keys:
    """openpi's keys from PART=KEY; a part is `state` (several keys joined by +), `task` or a picture's name.

    Raises:
        UserError: one is not of this form.
    """
    parts = [text.partition("=") for text in given]
    wrong = [text for text, (part, _, key) in zip(given, parts, strict=True) if not part or not key]
    if wrong:
        raise UserError(f"--openpi-key {wrong[0]}: write PART=KEY, for example state=observation/joint_position")
    named = {part: key for part, _, key in parts}
    state, task = named.pop("state", None), named.pop("task", Keys.task)
    return Keys(tuple(state.split("+")) if state else Keys.state, task, named)


async def _serve(policy: Servable, door: Door, limits: Limits, keys: Keys) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        for each in signals:  # a second one ends at once
            loop.remove_signal_handler(each)
        stop.set()

    for each in signals:
        loop.add_signal_handler(each, end)

    def ready(url: str) -> None:
        spec, clear = policy.spec, not is_loopback(door.host) and door.cert is None
        takes = f"{len(spec.state)} numbers, {len(spec.pictures)} pictures"
        gives = f"{spec.chunk} x {len(spec.action)}" + (f" at {spec.hz:g} Hz" if spec.hz else "")
        print(
            f"serving {policy.name} {policy.version} ({takes} -> {gives}) at {url}" + ", not encrypted" * clear,
            flush=True,
        )

    await run(policy, door, limits, stop, ready, keys)
    return 0
