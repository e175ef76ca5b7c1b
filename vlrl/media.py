"""Images and videos that others made: the only module that decodes them. Untrusted bytes give pixels or one line."""

from __future__ import annotations

import base64
import binascii
import math
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from PIL import Image, UnidentifiedImageError

from vlrl.types import MAX_PIXELS, PILLOW_PIXELS, UserError

if TYPE_CHECKING:
    from av.container import InputContainer

Source = Path | str | bytes | memoryview  # a path, or the content of a file

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # of the others, EPS starts another program
VIDEO_FORMATS = "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,gif,h264"  # no playlist, which names other files
MAX_BYTES = 1 << 29  # of an image file: 50 megapixels of RGBA, 16 bits, uncompressed, are 0.4 GB
MAX_SCANS = 100  # of a progressive JPEG, usually 10: each takes a pass over all pixels, and some 60 bytes
MAX_FRAMES = 2_000_000  # of a video: 18 hours, 30 frames a second

# Pillow warns where its own limit is passed, or a tag is odd. The limits here are checked on every image.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class MediaError(UserError, ValueError):
    """An image or video that cannot be used: one line for the user, or a bad value of a row, episode or message."""


@dataclass(frozen=True)
class ImageLimits:
    """What an image may measure.

    pixels: width times height. bytes: of the file. hint: what a user does about an image with more pixels.
    """

    pixels: int = MAX_PIXELS
    bytes: int = MAX_BYTES
    hint: str = "scale it down"


LIMITS = ImageLimits()


class ImageHeader(NamedTuple):
    size: tuple[int, int]  # width and height
    format: str  # as Pillow calls it


def load_image(
    source: Source, limits: ImageLimits = LIMITS, formats: tuple[str, ...] = IMAGE_FORMATS, name: str = ""
) -> Image.Image:
    """The image, decoded to the last byte, in its own mode; of several frames the first. EXIF turns a TIFF alone.

    Args:
        formats: as Pillow calls them; no other is tried.
        name: of the image in messages; default: its path.

    Raises:
        MediaError: no regular file, of no such format, too large (its header says so before anything is decoded), or
            damaged.
    """
    with _open_image(source, limits, formats, name) as image:
        image.load()
        return image.copy()  # without the file, and what a plugin keeps of it


def load_rgb(source: Source, limits: ImageLimits = LIMITS, name: str = "") -> Image.Image:
    """As `load_image`, in mode RGB: 16 bits are scaled to 8, transparency is left out."""
    return convert_rgb(load_image(source, limits, name=name))


def read_image_header(source: Source, limits: ImageLimits = LIMITS, name: str = "") -> ImageHeader:
    """Size and format; nothing is decoded. MediaError as `load_image`."""
    with _open_image(source, limits, IMAGE_FORMATS, name) as image:
        return ImageHeader(image.size, image.format or "")


def convert_rgb(image: Image.Image) -> Image.Image:
    """A copy in mode RGB."""
    if image.mode.startswith("I;16"):  # Pillow would clip: all above 255 white
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB Pillow warns, with the same colours
    return image.convert("RGB")


def open_regular_file(path: Path | str, name: str = "") -> BinaryIO:
    """A file for reading: never a FIFO, which would wait for a writer, a device, a socket or a folder.

    Raises:
        MediaError: there is no such file, or no regular one.
    """
    name = name or f"file {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise MediaError(f"no such {name}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise MediaError(f"{name} cannot be opened ({_reason(error)})") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MediaError(f"{name} is no regular file, but a folder, FIFO, socket or device")
    return os.fdopen(descriptor, "rb")


def open_video(path: Path | str) -> InputContainer:
    """A video file in PyAV, of VIDEO_FORMATS; none that names further files or addresses.

    Raises:
        MediaError: there is no such file, or no regular one; its frames have more than MAX_PIXELS.
        OSError, av.FFmpegError: it is damaged, or of another format.
    """
    import av

    open_regular_file(path, f"video {path}").close()
    options = {"format_whitelist": VIDEO_FORMATS, "protocol_whitelist": "file"}
    file = str(Path(path).absolute())  # a relative name such as concat:a|b is a protocol to FFmpeg
    try:
        container = av.open(file, options=options)
    except UnicodeDecodeError:  # titles are often no UTF-8; PyAV 15 is strict by default, 19 knows no such option
        container = av.open(file, options=options, metadata_errors="surrogateescape")
    for codec in (stream.codec_context for stream in container.streams.video if stream.codec_context):
        if codec.width * codec.height > MAX_PIXELS:
            container.close()
            raise MediaError(_too_large(f"video {path}", (codec.width, codec.height), MAX_PIXELS, "scale it down"))
        codec.options = {"max_pixels": str(MAX_PIXELS)}  # later frames may be larger than the header says
    return container


def read_data_url(url: str) -> bytes:
    """What an image's data URL holds; nothing is fetched.

    Raises:
        MediaError: another URL, or damaged.
    """
    if not url.startswith("data:image/"):
        raise MediaError("data URLs only (data:image/png;base64,...)")
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except binascii.Error as error:
        raise MediaError(str(error)) from None


@contextmanager
def _open_image(source: Source, limits: ImageLimits, formats: tuple[str, ...], name: str) -> Iterator[Image.Image]:
    """The image with its header read and checked; whatever goes wrong meanwhile is the file's fault."""
    in_memory = isinstance(source, bytes | memoryview)
    name = name or ("image its bytes" if in_memory else f"image {source}")
    with BytesIO(source) if in_memory else open_regular_file(source, name) as file:
        if (size := file.seek(0, os.SEEK_END)) > limits.bytes:
            raise MediaError(f"{name} has {size:,} bytes; at most {limits.bytes:,} are read")
        file.seek(0)
        try:
            with Image.open(file, formats=formats) as image:
                _check_size(image, limits, name)
                _check_scans(image, file, name)
                yield image
        except MediaError:
            raise
        except Image.DecompressionBombError:
            most = f"at most {_mega(limits.pixels)} are decoded"
            raise MediaError(f"{name} has more than {_mega(PILLOW_PIXELS)}; {most}: {limits.hint}") from None
        except UnidentifiedImageError:
            raise MediaError(f"{name} is broken or cut short, or not one of {', '.join(formats)}") from None
        except Exception as error:  # what Pillow raises on damage: OSError, SyntaxError, struct.error, KeyError, ...
            raise MediaError(f"{name} is broken or cut short ({_reason(error)})") from None


def _check_size(image: Image.Image, limits: ImageLimits, name: str) -> None:
    if math.prod(image.size) > limits.pixels:
        raise MediaError(_too_large(name, image.size, limits.pixels, limits.hint))


def _check_scans(image: Image.Image, file: BinaryIO, name: str) -> None:
    """Few bytes of a progressive JPEG can ask for thousands of passes over all its pixels."""
    if not image.info.get("progressive"):
        return
    place = file.tell()
    file.seek(0)
    scans = file.read().count(b"\xff\xda")  # the marker of a scan; in the pixels' data 0xff is followed by 0
    file.seek(place)
    if scans > MAX_SCANS:
        raise MediaError(f"{name} has {scans} scans; at most {MAX_SCANS} are decoded: save it anew")


def _too_large(name: str, size: tuple[int, int], most: int, hint: str) -> str:
    width, height = size
    return f"{name} has {width} x {height} pixels, {_mega(width * height)}; at most {_mega(most)} are decoded: {hint}"


def _mega(pixels: int) -> str:
    return f"{pixels / 1e6:.1f} megapixels"


def _reason(error: Exception) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return " ".join(text.split())[:200]


@dataclass(frozen=True)
class ImageNumber:
    """In place of an image that is sent once for many copies (`vlrl.tools.trl_verl`)."""

    number: int
