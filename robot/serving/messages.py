"""The messages of the policy plane (docs/serve.md): typed, versioned msgpack. Decoding runs nothing and trusts nothing.

A message is a map whose `type` names it. Times are seconds; `t` is the client's monotonic clock, which the server only
sends back: clocks of two machines are never compared.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from robot.serving.arrays import Jpeg, Numbers
from robot.serving.spec import Spec, Wants

PROTOCOL = 1
GREETING = 2**16  # bytes of a Hello, at most
REASON = 300  # characters

Name = Annotated[str, Meta(max_length=128)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]  # so neither NaN nor infinite


class Refused(Exception):  # noqa: N818
    """What the other side did is not accepted.

    Args:
        code: one of docs/serve.md.
        retry: whether the same may be accepted later.
    """

    def __init__(self, code: str, reason: str, *, retry: bool = False, seq: int = -1):
        self.code, self.reason, self.retry, self.seq = code, reason[:REASON], retry, seq
        super().__init__(f"{code}: {self.reason}")


class _Message(Struct, tag_field="type", tag=str.lower, frozen=True, forbid_unknown_fields=True):
    pass


class Hello(_Message):
    """The client's first message."""

    protocol: int
    client: Name = ""
    wants: Wants | None = None  # None: the client looks at the policy's spec itself


class Welcome(_Message):
    """The server's first message."""

    protocol: int
    session: str  # to be sent with all that follows; drawn by chance for this connection
    model: str
    version: str  # of the weights
    spec: Spec
    largest: int  # bytes of a message


class Observe(_Message):
    """An observation to be answered by a chunk. One that waits when the next arrives is dropped."""

    session: Name
    seq: Number  # rises with each
    t: Seconds
    episode: Number
    task: Annotated[str, Meta(max_length=4096)]
    state: Numbers  # float32 [S]
    images: Annotated[dict[Name, Numbers | Jpeg], Meta(max_length=16)]  # uint8 [height, width, 3] or a file
    prefix: Numbers | None = None  # float32 [P, A]
    delay: Annotated[int, Meta(ge=0, le=2**16)] = 0


class Chunk(_Message):
    """The answer to an observation."""

    session: str
    seq: int
    t: float  # of the observation, as the client sent it
    episode: int
    actions: Numbers  # float32 [K, A]
    hz: float
    expires_s: float  # seconds after t from which nothing of it should be begun
    queue_s: float  # in the server: waited
    infer_s: float  # in the policy, pictures decoded
    total_s: float  # from arrival to here
    version: str


class Reset(_Message):
    """An episode begins; what waits is dropped."""

    session: Name
    episode: Number


class Ping(_Message):
    t: Seconds


class Pong(_Message):
    t: float


class Failure(_Message):
    """A message was refused, or an observation has no answer."""

    code: str
    reason: str
    retry: bool = False
    seq: int = -1  # of the observation; -1: of no certain one


class _Peek(Struct, tag_field="type", tag="hello"):
    protocol: int


_encoder = msgspec.msgpack.Encoder()
_from_client = msgspec.msgpack.Decoder(Observe | Reset | Ping)
_from_server = msgspec.msgpack.Decoder(Welcome | Chunk | Pong | Failure)
_hello = msgspec.msgpack.Decoder(Hello)
_peek = msgspec.msgpack.Decoder(_Peek)

encode = _encoder.encode


def from_client(data: bytes | str) -> Observe | Reset | Ping:
    """What a client sent after its Hello.

    Raises:
        Refused: no such message.
    """
    return _decoded(_from_client, data)


def from_server(data: bytes | str) -> Welcome | Chunk | Pong | Failure:
    """What a server sent.

    Raises:
        Refused: no such message.
    """
    return _decoded(_from_server, data)


def hello_of(data: bytes | str) -> Hello:
    """A client's first message.

    Raises:
        Refused: it is no Hello, or of another protocol, whatever else that one says.
    """
    if len(data) > GREETING:
        raise Refused("hello", f"the first message has {len(data)} bytes, a Hello has at most {GREETING}")
    protocol = _decoded(_peek, data, "hello").protocol
    if protocol != PROTOCOL:
        older = "older" if protocol < PROTOCOL else "newer"
        raise Refused("protocol", f"the client speaks protocol {protocol}, {older} than the server's {PROTOCOL}")
    return _decoded(_hello, data, "hello")


def _decoded(decoder: msgspec.msgpack.Decoder, data: bytes | str, code: str = "malformed"):
    if isinstance(data, str):
        raise Refused(code, "messages are binary, this is text")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise Refused(code, " ".join(str(error).split())) from None
