"""openpi's messages as bytes: msgpack with NumPy arrays as maps of `__ndarray__`, `data`, `dtype`, `shape`.

After its documented format (github.com/Physical-Intelligence/openpi, packages/openpi-client, msgpack_numpy.py). What is
not asked for is not decoded, so a message costs no more memory than its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Raw

from robot.serving.messages import Refused

DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
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


def write(message: Mapping[str, Any]) -> bytes:
    """A map of texts, numbers, arrays and maps of them."""
    return msgspec.msgpack.encode({key: _written(value) for key, value in message.items()})


def read(data: bytes | str) -> dict[str, Raw]:
    """The parts of a message, for `array`, `numbers` and `text` to read.

    Raises:
        Refused: no map with texts for keys.
    """
    if isinstance(data, str):
        raise Refused("malformed", "messages are binary, this is text")
    return _decoded(_parts, data, "the message")


def array(raw: Raw, name: str) -> np.ndarray:
    """An array, read-only, in the message's memory; also of a list of numbers or a number.

    Raises:
        Refused: neither, of a dtype that is none of DTYPES, or of another length than its shape says.
    """
    first = bytes(memoryview(raw)[:1])
    if first and (first[0] & 0xF0 == 0x90 or first in (b"\xdc", b"\xdd")):
        return np.array(_decoded(_numbers, raw, name), np.float64)
    if not first or not (first[0] & 0xF0 == 0x80 or first in (b"\xde", b"\xdf")):
        return np.array([_decoded(_scalar, raw, name)], np.float64)
    parts = _decoded(_array, raw, name)
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


def text(raw: Raw, name: str) -> str:
    """Raises Refused where it is none."""
    return _decoded(_text, raw, name)


def seconds(raw: Raw | None, name: str) -> float:
    """A number of milliseconds within a map, in seconds; 0 where there is none."""
    try:
        return _scalar.decode(_parts.decode(raw)[name]) / 1000 if raw is not None else 0.0
    except (KeyError, msgspec.MsgspecError, RecursionError):
        return 0.0


def _decoded(decoder: msgspec.msgpack.Decoder, data: Raw | bytes, name: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Refused("malformed", f"{name}: {' '.join(str(error).split())}") from None


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _written(each) for key, each in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.str not in DTYPES:
        raise ValueError(f"an array of {value.dtype}: must be one of {', '.join(DTYPES)}")
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
