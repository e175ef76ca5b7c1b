"""Arrays and pictures on the wire: what they say of themselves is checked against their bytes before they are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from vlrl.media import ImageLimits, MediaError, load_image

Side = Annotated[int, Meta(ge=0, le=2**20)]


class Numbers(Struct, tag="array", tag_field="type", frozen=True, forbid_unknown_fields=True):
    """An array as it lies in memory: C order, little endian."""

    dtype: Literal["<f4", "|u1"]
    shape: Annotated[tuple[Side, ...], Meta(max_length=4)]
    data: memoryview


class Jpeg(Struct, tag="jpeg", tag_field="type", frozen=True, forbid_unknown_fields=True):
    """A picture as a baseline JPEG file."""

    data: memoryview


def pack(array: np.ndarray, dtype: Literal["<f4", "|u1"] = "<f4") -> Numbers:
    """An array for a message; copies only what does not lie in memory as it is sent."""
    whole = np.ascontiguousarray(array, dtype)
    return Numbers(dtype, whole.shape, memoryview(whole.reshape(-1)).cast("B") if whole.size else memoryview(b""))


def unpack(numbers: Numbers, dtype: Literal["<f4", "|u1"], dims: int) -> np.ndarray:
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
    height, width, colours = unpack(picture, "|u1", 3).shape
    if colours != 3:
        raise ValueError(f"has {colours} colours, wanted 3")
    return height, width


def picture_of(picture: Numbers | Jpeg) -> np.ndarray:
    """uint8 [height, width, 3], RGB, of a picture whose `size_of` was found small enough.

    Raises:
        ValueError: the file is damaged.
    """
    if isinstance(picture, Numbers):
        return unpack(picture, "|u1", 3)
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
