"""Strict, typed YAML: a file, its `base:` chain and overrides -> a checked section.

An unknown or ill-typed key stops before any work, with its path and the nearest right spelling. Imports no torch:
a mistake is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from vlrl import credentials
from vlrl.bundled import config_file, nearest
from vlrl.decoders import DecodeError, load_yaml, parse_yaml
from vlrl.spelling import suggest
from vlrl.types import UserError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(BaseModel):
    """A plug-in by name with its options: `{name: group, std: true}`, or the bare name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Plugin = Annotated[Component, BeforeValidator(_named)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Change = str | Mapping[str, Any]  # `key.path=value`, a recipe's file or name; from Python also {key path: value}


def load_as[S: Section](model: type[S], path: str | Path, changes: Sequence[Change] = ()) -> S:
    """A YAML file and changes to it -> a checked section; components are left to whoever makes them.

    Args:
        path: the file, or a bundled config's name as `vlrl list configs` has it; its `base:` files lie beneath it.
        changes: in order, `key.path=value`, further YAML files (recipes) or mappings of key paths to values. A recipe
            laid over a config brings only what it says itself: its own `base:` is for running it alone.

    Raises:
        UserError: a file is missing or no YAML mapping, a key is unknown or ill-typed, a URL holds a password.
    """
    values = _read(Path(path))
    for change in changes:
        values = merge(values, _said(change))
    if problem := credentials.problem(values):
        raise UserError(f"{path}: {problem}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, model)}") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` on top of `below`: mappings merge key by key, a component of another name replaces the whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"name": old}  # a component given by its bare name
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        renamed = both and "name" in value and value["name"] != old.get("name")
        merged[key] = merge(old, value) if both and not renamed else value
    return merged


def _read(path: Path, seen: tuple[Path, ...] = (), with_base: bool = True) -> dict[str, Any]:
    path = config_file(path)
    try:
        values = load_yaml(path)
    except FileNotFoundError:
        raise UserError(f"there is no config {path}{nearest(path)}") from None
    except IsADirectoryError:
        hint = f", perhaps {path / 'config.yaml'}" if (path / "config.yaml").is_file() else ""
        raise UserError(f"cannot read the config {path}: it is a folder; name a YAML file{hint}") from None
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror or error}") from None
    except DecodeError as error:
        raise UserError(credentials.hidden(str(error))) from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of keys to values")
    bases = values.pop("base", [])
    if not with_base:
        return values
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: base: should be a file or a list of files (got {bases!r})")
    below: dict[str, Any] = {}
    for base in bases:
        file = (path.parent / base).resolve()
        if file in seen:
            raise UserError(f"{path}: base {base} leads back to itself")
        below = merge(below, _read(file, (*seen, path.resolve())))
    return merge(below, values)


def _said(change: Change) -> dict[str, Any]:
    """What a change says, as a config would."""
    if isinstance(change, Mapping):
        plain = ((key, str(value) if isinstance(value, Path) else value) for key, value in change.items())
        return reduce(merge, (_nested(key, value) for key, value in plain), {})
    recipe = "=" not in change and (change.endswith((".yaml", ".yml")) or config_file(change).is_file())
    return _read(Path(change), with_base=False) if recipe else _override(change)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", key):
        told = "it is no file; write key.path=value, for example train.steps=10, or a recipe's YAML"
        raise UserError(f"override {credentials.hidden(text)!r}: {told}{'' if equals else nearest(text)}")
    try:
        parsed = parse_yaml(value, "value")
    except DecodeError as error:
        problem = credentials.hidden(str(error).partition(": ")[2])
        raise UserError(f"override {credentials.hidden(text)!r}: the value is {problem}") from None
    return _nested(key, parsed)


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """A validation error as one line: each key's path, what is wrong with it, and the nearest right spelling."""
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"] if part != "function-before[_named(), Component]")
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            text = f"unknown key{suggest(str(problem['loc'][-1]), _fields(model, problem['loc'][:-1]))}"
        elif problem["type"] == "missing":
            text = "is required"
        else:
            text = f"{problem['msg'].removeprefix('Input ')} (got {problem['input']!r})"
        lines.append(f"{prefix}{path}: {text}")
    return "; ".join(lines)


def _fields(model: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """The keys that the section at a location allows."""
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:  # a key of a mapping whose values are sections
            continue
        inner = (field.annotation, *getattr(field.annotation, "__args__", ()))
        if plain := [a for a in inner if is_dataclass(a)]:
            return [each.name for each in fields(plain[0])]
        nested = [a for a in inner if isinstance(a, type) and issubclass(a, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def check_options(
    options: Mapping[str, Any], parameters: Mapping[str, tuple[Any, Any]], path: str, strict: bool = False
) -> dict[str, Any]:
    """Options against a signature's `{name: (annotation, default)}` -> typed values, defaults filled in.

    Args:
        strict: values come from rows of data: a text is no number and a bool no int. An int is a float, a list a tuple,
            a mapping a dataclass.

    Raises:
        UserError: with the option's path.
    """
    if problem := credentials.problem(options, path):
        raise UserError(problem)
    model = create_model("Options", __config__=ConfigDict(extra="forbid", strict=strict), **parameters)
    try:  # strict Python takes no list for a tuple, strict JSON does
        checked = model.model_validate_json(_encode(options, path)) if strict else model.model_validate(dict(options))
    except ValidationError as error:
        raise UserError(explain(error, model, prefix=f"{path}.")) from None
    return {name: getattr(checked, name) for name in parameters}


def _encode(options: Mapping[str, Any], path: str) -> bytes:
    try:
        return to_json(dict(options), inf_nan_mode="constants")
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
