"""Wire types of the policy server: messages, arrays, policy specifications, openpi's codec. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from vlrl.decoders import DTYPES
from vlrl.media import ImageLimits, MediaError, load_image

# Arrays and pictures on the wire: what they say of themselves is checked against their bytes before they are used.

Side = Annotated[int, Meta(ge=0, le=2**20)]


class Numbers(Struct, tag="array", tag_field="type", frozen=True, forbid_unknown_fields=True):
    """An array as it lies in memory: C order, little endian."""

    dtype: Literal["<f4", "|u1"]
    shape: Annotated[tuple[Side, ...], Meta(max_length=4)]
    data: memoryview


class Jpeg(Struct, tag="jpeg", tag_field="type", frozen=True, forbid_unknown_fields=True):
    """A picture as a baseline JPEG file."""

    data: memoryview


def arrays_pack(array: np.ndarray, dtype: Literal["<f4", "|u1"] = "<f4") -> Numbers:
    """An array for a message; copies only what does not lie in memory as it is sent."""
    whole = np.ascontiguousarray(array, dtype)
    return Numbers(dtype, whole.shape, memoryview(whole.reshape(-1)).cast("B") if whole.size else memoryview(b""))


def arrays_unpack(numbers: Numbers, dtype: Literal["<f4", "|u1"], dims: int) -> np.ndarray:
    """The array, read-only, in the message's own memory; float32 is finite.

    Raises:
        ValueError: another dtype, number of dimensions or length in bytes, or not finite.
    """
    if numbers.dtype != dtype or len(numbers.shape) != dims:
        raise ValueError(f"is {numbers.dtype} of {len(numbers.shape)} dimensions, wanted {dtype} of {dims}")
    size = math.prod(numbers.shape) * np.dtype(dtype).itemsize
    if size != numbers.data.nbytes:
        raise ValueError(f"has {numbers.data.nbytes} bytes, its shape {list(numbers.shape)} needs {size}")
    array = np.frombuffer(numbers.data, dtype).reshape(numbers.shape)
    if dtype == "<f4" and not np.isfinite(array).all():
        raise ValueError("is not finite")
    return array


def press(picture: np.ndarray, quality: int) -> Jpeg:
    """A picture uint8 [height, width, 3], RGB, as JPEG. Args: quality: 1 to 95."""
    from PIL import Image

    out = BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=quality)
    return Jpeg(memoryview(out.getvalue()))


def size_of(picture: Numbers | Jpeg) -> tuple[int, int]:
    """Height and width, read without decoding.

    Raises:
        ValueError: no picture of three colours of 8 bits.
    """
    if isinstance(picture, Jpeg):
        return _jpeg_size(picture.data)
    height, width, colours = arrays_unpack(picture, "|u1", 3).shape
    if colours != 3:
        raise ValueError(f"has {colours} colours, wanted 3")
    return height, width


def picture_of(picture: Numbers | Jpeg) -> np.ndarray:
    """uint8 [height, width, 3], RGB, of a picture whose `size_of` was found small enough.

    Raises:
        ValueError: the file is damaged.
    """
    if isinstance(picture, Numbers):
        return arrays_unpack(picture, "|u1", 3)
    size = _jpeg_size(picture.data)
    try:
        image = load_image(picture.data, ImageLimits(pixels=math.prod(size)), formats=("JPEG",), name="the JPEG")
    except MediaError as error:
        raise ValueError(f"cannot be decoded: {error}") from None
    if (image.height, image.width) != size or image.mode != "RGB":
        raise ValueError("cannot be decoded: its header is ambiguous")
    return np.asarray(image)


def _jpeg_size(data: Sequence[int]) -> tuple[int, int]:
    """Height and width from the frame header of a baseline JPEG (ITU-T T.81, B.2.2); other processes are refused.

    A progressive file costs the decoder a pass over the whole picture for each few bytes.
    """
    if bytes(data[:2]) != b"\xff\xd8":
        raise ValueError("is no JPEG")
    at = 2
    while at + 4 <= len(data):
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if data[at] != 0xFF or length < 2:
            break
        if marker in (0xC0, 0xC1):
            if at + 10 > len(data):
                break
            bits, height, width, colours = (
                data[at + 4],
                data[at + 5] << 8 | data[at + 6],
                data[at + 7] << 8,
                data[at + 9],
            )
            width |= data[at + 8]
            if bits != 8 or colours != 3 or not height or not width:
                raise ValueError(f"is a JPEG of {width}x{height}, {colours} colours of {bits} bits, wanted 3 of 8")
            return height, width
        if (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xDA:
            raise ValueError("is a JPEG that is not baseline")
        at += 2 + length
    raise ValueError("is a JPEG without a frame header")


# What a policy behind a server sees and gives. Loads no torch.


@dataclass(frozen=True)
class Feature:
    """One number of a state or an action. What a policy does not know of itself is '' and fits anything.

    low, high: what a policy gives; null where it declares no range.
    """

    name: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Picture:
    """A camera's picture. A size of 0 fits any."""

    name: str
    height: int = 0
    width: int = 0


@dataclass(frozen=True)
class PolicySpec:
    """Exchanged at connect. Orders matter; nothing is ever put in another order silently."""

    state: tuple[Feature, ...]  # [S]
    pictures: tuple[Picture, ...]
    action: tuple[Feature, ...]  # [A]
    hz: float  # actions a second; 0: the policy does not know, so the robot's own
    chunk: int  # actions of one answer, at most
    rtc: bool = False  # takes a prefix and a delay (real-time chunking, arXiv 2506.07339)


@dataclass(frozen=True)
class Wants:
    """What a client sends and which actions it takes, said at connect."""

    state: tuple[Feature, ...] = ()
    pictures: tuple[Picture, ...] = ()
    action: tuple[Feature, ...] = ()


@dataclass(frozen=True, eq=False)
class PolicyRequest:
    """One observation to be answered by a chunk."""

    session: str  # whose; '' with one client
    episode: int
    task: str  # the instruction
    state: np.ndarray  # float32 [S]
    # uint8 [height, width, 3], RGB; a policy gets them in its spec's order
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    prefix: np.ndarray | None = None  # float32 [P, A]: actions of the last chunk that are still to be executed
    delay: int = 0  # of them, those that will be executed before the answer arrives


class Servable(Protocol):
    """A policy as the server sees it. Called by one thread only."""

    name: str
    version: str  # of the weights: a hash
    spec: PolicySpec

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        """One chunk float32 [K, A] for each observation, in physical units. May raise UserError."""

    def forget(self, session: str) -> None:
        """A client's episode has ended, or the client is gone."""


def declared(spec: PolicySpec) -> np.ndarray:
    """The range of a policy's actions as it declares it, float32 [2, A]: low, high; NaN where it declares none."""
    ends = [[each.low for each in spec.action], [each.high for each in spec.action]]
    return np.array(ends, np.float32).reshape(2, -1)  # None becomes NaN


def difference(wants: Wants, spec: PolicySpec) -> str:
    """The first thing in which a client and a policy do not fit, in one line; '' where they fit."""
    for what, ours, theirs in (("state", wants.state, spec.state), ("action", wants.action, spec.action)):
        if len(ours) != len(theirs):
            return (
                f"{what}: the robot has {len(ours)} numbers{_listed(ours)}, the policy {len(theirs)}{_listed(theirs)}"
            )
        for place, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            for part, a, b in (("name", mine.name, its.name), ("unit", mine.unit, its.unit)):
                if a and b and a != b:
                    return f"{what}, number {place}: the {part} is {a!r} on the robot, {b!r} in the policy"
    return _pictures_differ(wants.pictures, spec.pictures)


def _pictures_differ(ours: Sequence[Picture], theirs: Sequence[Picture]) -> str:
    if len(ours) != len(theirs):
        return f"pictures: the robot sends {len(ours)}{_listed(ours)}, the policy sees {len(theirs)}{_listed(theirs)}"
    for place, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        if its.name and mine.name != its.name:
            return f"picture {place}: it is {mine.name!r} on the robot, {its.name!r} in the policy"
        if any(a and b and a != b for a, b in ((mine.height, its.height), (mine.width, its.width))):
            sizes = f"{mine.width}x{mine.height} on the robot, {its.width}x{its.height} in the policy"
            return f"picture {mine.name or place}: it is {sizes}"
    return ""


def _listed(parts: Sequence[Feature] | Sequence[Picture]) -> str:
    names = [part.name for part in parts if part.name]
    return f" ({', '.join(names)})" if names else ""


# The messages of the policy plane (docs/serve.md): typed, versioned msgpack. Decoding runs nothing and trusts nothing.
#
# A message is a map whose `type` names it. Times are seconds; `t` is the client's monotonic clock, which the server
# only
# sends back: clocks of two machines are never compared.

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
    spec: PolicySpec
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
    return _messages_decoded(_from_client, data)


def from_server(data: bytes | str) -> Welcome | Chunk | Pong | Failure:
    """What a server sent.

    Raises:
        Refused: no such message.
    """
    return _messages_decoded(_from_server, data)


def hello_of(data: bytes | str) -> Hello:
    """A client's first message.

    Raises:
        Refused: it is no Hello, or of another protocol, whatever else that one says.
    """
    if len(data) > GREETING:
        raise Refused("hello", f"the first message has {len(data)} bytes, a Hello has at most {GREETING}")
    protocol = _messages_decoded(_peek, data, "hello").protocol
    if protocol != PROTOCOL:
        older = "older" if protocol < PROTOCOL else "newer"
        raise Refused("protocol", f"the client speaks protocol {protocol}, {older} than the server's {PROTOCOL}")
    return _messages_decoded(_hello, data, "hello")


def _messages_decoded(decoder: msgspec.msgpack.Decoder, data: bytes | str, code: str = "malformed"):
    if isinstance(data, str):
        raise Refused(code, "messages are binary, this is text")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise Refused(code, " ".join(str(error).split())) from None


# openpi's messages as bytes: msgpack with NumPy arrays as maps of `__ndarray__`, `data`, `dtype`, `shape`.
#
# After its documented format (github.com/Physical-Intelligence/openpi, packages/openpi-client, msgpack_numpy.py).
# What is
# not asked for is not decoded, so a message costs no more memory than its own.

_parts = msgspec.msgpack.Decoder(Annotated[dict[str, Raw], Meta(max_length=64)])
_array = msgspec.msgpack.Decoder(Annotated[dict[bytes, Raw], Meta(max_length=4)])
_shape = msgspec.msgpack.Decoder(Annotated[tuple[Annotated[int, Meta(ge=0, le=2**20)], ...], Meta(max_length=4)])
_numbers = msgspec.msgpack.Decoder(Annotated[list[float], Meta(max_length=4096)])
_scalar = msgspec.msgpack.Decoder(float)
_text = msgspec.msgpack.Decoder(Annotated[str, Meta(max_length=4096)])
_bytes = msgspec.msgpack.Decoder(memoryview)


@dataclass(frozen=True)
class Keys:
    """What the parts of an observation are called. Several keys of a state are joined in their order."""

    state: tuple[str, ...] = ("observation/state",)
    task: str = "prompt"
    pictures: Mapping[str, str] = field(default_factory=dict)  # name -> key; default: observation/NAME

    def picture(self, name: str) -> str:
        return self.pictures.get(name, f"observation/{name}")


KEYS = Keys()


def openpi_codec_write(message: Mapping[str, Any]) -> bytes:
    """A map of texts, numbers, arrays and maps of them."""
    return msgspec.msgpack.encode({key: _to_wire(value) for key, value in message.items()})


def openpi_codec_read(data: bytes | str) -> dict[str, Raw]:
    """The parts of a message, for `array`, `numbers` and `text` to read.

    Raises:
        Refused: no map with texts for keys.
    """
    if isinstance(data, str):
        raise Refused("malformed", "messages are binary, this is text")
    return _openpi_codec_decoded(_parts, data, "the message")


def array(raw: Raw, name: str) -> np.ndarray:
    """An array, read-only, in the message's memory; also of a list of numbers or a number.

    Raises:
        Refused: neither, of a dtype that is none of DTYPES, or of another length than its shape says.
    """
    first = bytes(memoryview(raw)[:1])
    if first and (first[0] & 0xF0 == 0x90 or first in (b"\xdc", b"\xdd")):
        return np.array(_openpi_codec_decoded(_numbers, raw, name), np.float64)
    if not first or not (first[0] & 0xF0 == 0x80 or first in (b"\xde", b"\xdf")):
        return np.array([_openpi_codec_decoded(_scalar, raw, name)], np.float64)
    parts = _openpi_codec_decoded(_array, raw, name)
    try:
        dtype, data = _text.decode(parts[b"dtype"]), parts[b"data"]
        if dtype not in DTYPES:
            raise Refused("shape", f"{name} is of dtype {dtype[:16]!r}, must be one of {', '.join(DTYPES)}")
        if b"__npgeneric__" in parts:
            return np.array([_scalar.decode(data)], dtype)
        shape, held = _shape.decode(parts[b"shape"]), _bytes.decode(data)
    except (KeyError, msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise Refused("malformed", f"{name} is no array: {error}") from None
    if math.prod(shape) * np.dtype(dtype).itemsize != held.nbytes:
        raise Refused("shape", f"{name} has {held.nbytes} bytes, which is not what {dtype} {list(shape)} needs")
    return np.frombuffer(held, dtype).reshape(shape)


def openpi_codec_text(raw: Raw, name: str) -> str:
    """Raises Refused where it is none."""
    return _openpi_codec_decoded(_text, raw, name)


def seconds(raw: Raw | None, name: str) -> float:
    """A number of milliseconds within a map, in seconds; 0 where there is none."""
    try:
        return _scalar.decode(_parts.decode(raw)[name]) / 1000 if raw is not None else 0.0
    except (KeyError, msgspec.MsgspecError, RecursionError):
        return 0.0


def _openpi_codec_decoded(decoder: msgspec.msgpack.Decoder, data: Raw | bytes, name: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Refused("malformed", f"{name}: {' '.join(str(error).split())}") from None


def _to_wire(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_wire(each) for key, each in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.str not in DTYPES:
        raise ValueError(f"an array of {value.dtype}: must be one of {', '.join(DTYPES)}")
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
