"""The server's side of openpi's protocol, so that clients made for openpi drive any policy here.

At connect the server sends what it is, then each observation is answered by its actions. There are no sequence numbers
and no episodes: a client that connects anew is a new episode. A failure is told as text and ends the connection.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from msgspec import Raw
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from robot.serving import openpi_codec as codec
from robot.serving.arrays import pack
from robot.serving.messages import Observe, Refused
from robot.serving.openpi_codec import Keys
from robot.serving.scheduler import Inferred
from robot.serving.service import Service, close_reason
from robot.serving.sessions import Session


async def converse(service: Service, connection: ServerConnection) -> None:
    """One client, until it goes or something is wrong."""
    spec = service.servable.spec
    names = tuple(picture.name or f"image{place or ''}" for place, picture in enumerate(spec.pictures))
    session = Session(spec, service.limits, names)
    try:
        await connection.send(codec.write(_metadata(service, names)))
        previous = 0.0
        async for data in connection:
            service.heard(connection)
            started = time.monotonic()
            answer = await _answered(service, session, _observation(session, codec.read(data), service.keys, names))
            timing = {"infer_ms": 1000 * answer.infer_s, "queue_ms": 1000 * answer.queue_s}
            if previous:
                timing["prev_total_ms"] = 1000 * previous
            await connection.send(codec.write({"actions": answer.actions, "server_timing": timing}))
            service.metrics.answers.inc()
            previous = time.monotonic() - started
    except Refused as refused:
        service.metrics.refused.labels(refused.code).inc()
        await connection.send(str(refused))
        await connection.close(1011, close_reason(str(refused)))
    except ConnectionClosed:
        pass
    finally:
        service.scheduler.drop(session.id)


def _metadata(service: Service, names: tuple[str, ...]) -> dict:
    policy, keys = service.servable, service.keys
    return {
        "model": policy.name, "version": policy.version, "hz": policy.spec.hz, "chunk": policy.spec.chunk,
        "state": [part.name for part in policy.spec.state], "action": [part.name for part in policy.spec.action],
        "keys": {"state": list(keys.state), "task": keys.task, "pictures": [keys.picture(name) for name in names]},
    }  # fmt: skip


async def _answered(service: Service, session: Session, observe: Observe) -> Inferred:
    request = session.request(observe)
    done: asyncio.Future[Inferred | Refused] = asyncio.get_running_loop().create_future()
    service.scheduler.offer(request, lambda answer: done.done() or done.set_result(answer))
    answer = await done
    if isinstance(answer, Refused):
        raise answer
    return answer


def _observation(session: Session, parts: dict[str, Raw], keys: Keys, names: tuple[str, ...]) -> Observe:
    missing = [key for key in (*keys.state, *map(keys.picture, names)) if key not in parts]
    if missing:
        raise Refused("shape", f"{missing[0]!r} is missing; there are {', '.join(sorted(parts)) or 'no keys'}")
    states = [np.atleast_1d(codec.array(parts[key], key)) for key in keys.state]
    images = {}
    for name in names:
        picture = codec.array(parts[keys.picture(name)], keys.picture(name))
        if picture.dtype != np.uint8:
            raise Refused("shape", f"{keys.picture(name)!r} is of {picture.dtype}, wanted uint8")
        images[name] = pack(picture, "|u1")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused
        state = pack(np.concatenate([each.ravel() for each in states]).astype(np.float32))
    task = codec.text(parts[keys.task], keys.task) if keys.task in parts else ""
    return Observe(session.id, session.seq + 1, 0.0, 0, task, state, images)
