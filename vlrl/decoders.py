"""JSON and YAML from outside: limits on size, depth and aliases, no key twice, every mistake in one line.

Whatever the product reads that somebody else may have written (data rows, requests, answers of servers, configurations,
run folders) is decoded here. `tests/vlrl/test_decoders.py` holds the sources to it. At the end: messages of processes.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import yaml

from vlrl.types import UserError, shallow

if TYPE_CHECKING:
    from torch import Tensor

MAX_DEPTH = 100  # of lists and mappings within each other
MAX_JSON = 2**31  # bytes
MAX_YAML = 2**18  # characters; pure Python reads about 100,000 a second
MAX_NODES = 100_000  # of a YAML with its aliases written out
BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
OTHERS = bytes(set(range(256)) - set(BRACKETS))
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
FLOAT = re.compile(
    r"^[-+]?(?:\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d+(?:[eE][-+]?\d+)?|\.(?:inf|nan))$"
)


class DecodeError(ValueError):
    """What is wrong with a text, in one line."""


def parse_json(text: str | bytes, *, finite: bool = True, valid_text: bool = True, max_size: int = MAX_JSON) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        finite: refuse NaN, Infinity and numbers too large for a float. False where what reads a number checks it,
            and for our own logs, which may hold them.
        valid_text: refuse halves of surrogate pairs. False for our own logs, which hold what models and judges wrote.
        max_size: bytes.

    Raises:
        DecodeError: it is no JSON, is too large or too deep, has a key twice, or text that is no valid Unicode.
    """
    try:
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        if len(data) > max_size:
            raise DecodeError(f"{len(data):,} bytes: at most {max_size:,}")
        decoded = text if isinstance(text, str) else data.decode("utf-8")
        _check_depth(data)
        constant, number = (_refuse_constant, _parse_finite) if finite else (None, None)
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=constant, parse_float=number)
        if valid_text and SURROGATE.search(decoded):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        problem = "half a surrogate pair" if isinstance(error, UnicodeEncodeError) else "not UTF-8"
        raise DecodeError(f"text that is no valid Unicode: {problem}") from None
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return value


def parse_log_row(line: str | bytes) -> Any:
    """A row of our own logs: numbers need not be finite, and texts are what models and judges wrote.

    Raises:
        DecodeError: as `parse_json`.
    """
    return parse_json(line, finite=False, valid_text=False)


def load_json(file: Path, *, finite: bool = True) -> Any:
    """What a JSON file holds, as `parse_json`.

    Raises:
        OSError: it cannot be read.
        DecodeError: as `parse_json`.
    """
    if (size := file.stat().st_size) > MAX_JSON:
        raise DecodeError(f"{size:,} bytes: at most {MAX_JSON:,}")
    return parse_json(file.read_bytes(), finite=finite)


def parse_yaml(text: str, source: str | Path) -> Any:
    """The value of a YAML text. Aliases count as what they stand for, and floats may be written as 1e-6.

    Args:
        source: what the text is called in an error, before the line's number.

    Raises:
        DecodeError: `source:line: ...`; it is no YAML, is too large or too deep, or has a key twice.
    """
    if len(text) > MAX_YAML:
        raise DecodeError(f"{source}:1: no valid YAML: {len(text):,} characters: at most {MAX_YAML:,}")
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, error.reason
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(filter(None, [error.context, error.problem]))
    raise DecodeError(f"{source}:{line}: no valid YAML: {' '.join(problem.split())}")


def load_yaml(file: Path) -> Any:
    """What a YAML file holds, as `parse_yaml`.

    Raises:
        OSError: it cannot be read.
        DecodeError: as `parse_yaml`; it is not UTF-8.
    """
    with file.open("rb") as opened:
        data = opened.read(4 * MAX_YAML + 1)  # a character is at most four bytes
    try:
        return parse_yaml(data.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        raise DecodeError(f"{file}: not UTF-8: {error.reason}") from None


def _check_depth(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    if max(accumulate(map(BRACKETS.__getitem__, outside.translate(None, OTHERS))), default=0) > MAX_DEPTH:
        raise DecodeError(f"more than {MAX_DEPTH} lists and objects within each other")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DecodeError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise DecodeError(f"{name} is no JSON number")


def _parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise DecodeError(f"{text[:20]} is too large for a number")
    return number


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-6 as text and lets the last of two equal keys win; people mean neither."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} lists and mappings within each other"
            raise yaml.composer.ComposerError(None, None, problem, self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _check_size(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:  # a date 2026-99-99, `!!int x`
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _check_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Nodes below a node, each alias counted as what it stands for; `sizes`: of nodes already counted, 0 while so."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise yaml.composer.ComposerError(None, None, "an alias within what it stands for", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)] = 0
    inner = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    size = 1 + sum(_check_size(each, sizes) for each in inner)
    if size > MAX_NODES:
        problem = f"more than {MAX_NODES:,} values, aliases counted as what they stand for"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
    sizes[id(node)] = size
    return size


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


# Messages between processes as bytes: JSON for what is small, then arrays as they lie in memory. Nothing is run.
#
# 4 bytes   length of the header, little endian
# header    JSON, UTF-8: {"fields": {...}, "arrays": [[name, dtype, shape], ...]}
# arrays    one after the other, C order, little endian

DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")


def wire_pack(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Raises ValueError for an array that is not of DTYPES."""
    listed, parts = [], []
    for name, array in (arrays or {}).items():
        kind = array.dtype.newbyteorder("<")
        if kind.str not in DTYPES:
            raise ValueError(f"array {name!r} of {array.dtype}: must be one of {', '.join(DTYPES)}")
        listed.append([name, kind.str, array.shape])
        parts.append(array.astype(kind, copy=False).tobytes())
    header = json.dumps({"fields": dict(fields), "arrays": listed}).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def wire_unpack(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fields, and the arrays as copies that can be written to.

    Raises:
        ValueError: not such a message, or one that was cut.
    """
    start = 4 + int.from_bytes(message[:4], "little")
    try:
        header = json.loads(message[4:start])
        fields, listed = dict(header["fields"]), [(str(n), str(d), tuple(map(int, s))) for n, d, s in header["arrays"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no message: {error}") from None
    arrays = {}
    for name, dtype, shape in listed:
        if dtype not in DTYPES or min(shape, default=0) < 0:
            raise ValueError(f"array {name!r}: {dtype} {shape} cannot be")
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        if end > len(message):
            raise ValueError(f"array {name!r}: the message is cut")
        arrays[name] = np.frombuffer(bytearray(message[start:end]), dtype).reshape(shape)
        start = end
    return fields, arrays


# Values as bytes between the processes of a run: JSON beside tensors. Nothing that is read can run code.
#
# Known are None, booleans, numbers, texts, lists, tuples, dicts, tensors, numpy arrays and dataclasses of modules that
# the reading process has loaded itself.

TREE = "tree"  # the JSON, among the tensors


def pack_value(value: Any) -> bytes:
    """UserError: the value holds something else than is known here."""
    import torch
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_plain(value, tensors)).encode()
    return save(tensors | {TREE: torch.frombuffer(bytearray(tree), dtype=torch.uint8)})


def unpack_value(data: bytes) -> Any:
    """What `pack_value` was given."""
    from safetensors.torch import load

    tensors = load(data)
    return _value(json.loads(tensors.pop(TREE).numpy().tobytes()), tensors)


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold; all but scalars and lists is a dict of one kind and what it holds."""
    from torch import Tensor

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(each, tensors) for each in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_plain(k, tensors), _plain(v, tensors)] for k, v in value.items()]}
    if isinstance(value, Tensor | np.ndarray):
        return _kept(value, tensors)
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        known, own = shallow(value), [f.name for f in fields(value) if f.init]
        kind = [type(value).__module__, type(value).__qualname__]
        return {"class": [kind, {name: _plain(known[name], tensors) for name in own}]}
    raise UserError(
        f"an episode holds a {type(value).__name__}, which cannot be told to the other processes: use a number, a "
        "text, a list, a dict, a tensor or a dataclass there, or run one process"
    )


def _kept(value: Tensor | np.ndarray, tensors: dict[str, Tensor]) -> Any:
    import torch

    array = isinstance(value, np.ndarray)
    name = str(len(tensors))
    try:
        tensors[name] = (torch.from_numpy(np.array(value)) if array else value.detach().cpu()).contiguous().clone()
    except TypeError:
        raise UserError(
            f"an episode holds an array of {value.dtype}, which no process can be told: convert it"
        ) from None
    return {"array" if array else "tensor": name}


def _value(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(plain, list):
        return [_value(each, tensors) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "tuple":
        return tuple(_value(each, tensors) for each in inner)
    if kind == "dict":
        return {_value(k, tensors): _value(v, tensors) for k, v in inner}
    if kind in ("tensor", "array"):
        return tensors[inner] if kind == "tensor" else tensors[inner].numpy()
    (module, name), value = inner
    return _class(module, name)(**{key: _value(each, tensors) for key, each in value.items()})


def _class(module: str, name: str) -> type:
    place: Any = sys.modules.get(module)
    for part in name.split("."):
        place = getattr(place, part, None)
    if not (isinstance(place, type) and is_dataclass(place)):
        raise UserError(f"another process sent a {module}.{name}, which this one does not know: define it in a module")
    return place
