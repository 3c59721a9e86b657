"""Strict configuration: a frozen dataclass is the schema, and every mistake is one sentence with its path."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..core.bounds import Choice, Range, Variant
from ..core.errors import ConfigError, nearest
from .overrides import (
    dump,
    found,
    join,
    merge,
    parse_set,
    plain,
    read_toml,
    schema_fields,
    tag_of,
    to_toml,
    toml_value,
)

__all__ = [
    "FieldInfo",
    "build",
    "canonical",
    "digest",
    "dump",
    "fields_of",
    "merge",
    "parse_set",
    "read_toml",
    "to_toml",
]

T = TypeVar("T")
Marks = tuple[object, ...]

_SORTS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}


@dataclass(frozen=True)
class FieldInfo:
    """One key of a configuration in words, for documentation and listings."""

    name: str
    type: str
    default: str
    help: str


def build(cls: type[T], mapping: Mapping[str, object], path: str = "") -> T:
    """An instance of the dataclass from a plain mapping; `path` is the dotted name of the section."""
    tag, hints = tag_of(cls), _hints(cls)
    given = {key: value for key, value in mapping.items() if tag is None or (key, value) != ("name", tag)}
    _check_keys(cls, given, path)
    _check_missing(cls, given, hints, path)
    given = {**given, **_on_defaults(cls, given)}
    values = {key: _convert(value, hints[key], join(path, key)) for key, value in given.items()}
    try:
        return cls(**values)
    except ConfigError as error:  # from the dataclass's own __post_init__, which does not know the path
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _on_defaults(cls: type, given: Mapping[str, object]) -> dict[str, object]:
    """Variant sections that do not give their name change the settings of the default: `optimizer.lr=0.1`."""
    changed: dict[str, object] = {}
    for field in schema_fields(cls):
        value, default = given.get(field.name), field.default
        if isinstance(value, Mapping) and "name" not in value and tag_of(type(default)) is not None:
            changed[field.name] = {**dump(default), **value}
    return changed


def canonical(config: object) -> str:
    """The one JSON text of all equal configurations."""
    # Building anew turns an int which Python code put into a float field into the float it stands for.
    same = build(type(config), dump(config))
    return json.dumps(dump(same), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(config: object) -> str:
    """Twelve hexadecimal digits which identify the configuration."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:12]


def fields_of(cls: type, path: str = "") -> list[FieldInfo]:
    """Every key of the dataclass in order, each section followed by its own keys under dotted names."""
    rows, hints = [], _hints(cls)
    for field in schema_fields(cls):
        name, (kind, marks) = join(path, field.name), _core(hints[field.name])
        text = " ".join(mark for mark in marks if isinstance(mark, str))
        rows.append(FieldInfo(name, _describe(kind, marks), _default_text(field), text))
        rows += fields_of(kind, name) if _is_section(kind) and not _variant(kind, marks) else []
    return rows


def _check_keys(cls: type, given: Mapping[str, object], path: str) -> None:
    names, tag = [field.name for field in schema_fields(cls)], tag_of(cls)
    for key in given:
        if key not in names:
            owner = f" of {tag!r}" if tag else ""
            raise ConfigError(f"{join(path, key)} is not a known key{owner}{_advice(cls, key, names, path)}")


def _advice(cls: type, key: str, names: list[str], path: str) -> str:
    """Where the key is known, the nearest one, or all there are."""
    deeper = [row.name for row in fields_of(cls, path) if row.name.endswith(f".{key}")]
    if deeper:
        return f"; did you mean {_names(deeper)}?"
    listed = f"; the keys here are {_listed(names, 'and')}" if names else ", which takes no keys"
    return nearest(key, names) or listed


def _check_missing(cls: type, given: Mapping[str, object], hints: Mapping[str, object], path: str) -> None:
    names = [field.name for field in schema_fields(cls) if _is_required(field) and field.name not in given]
    if names:
        lacking = _listed([f"{join(path, name)} ({_describe(hints[name])})" for name in names], "and")
        be, have, them = ("is", "has", "it") if len(names) == 1 else ("are", "have", "them")
        raise ConfigError(f"{lacking} {be} missing and {have} no default; please set {them}")


def _convert(value: object, hint: object, path: str, outer: Marks = ()) -> object:
    """The value as its type says; the marks of a tuple, dict or union hold for the values within."""
    if value is None and NoneType in get_args(_peel(hint)[0]):
        return None
    kind, marks = _core(hint, outer)
    origin = get_origin(kind)
    if _is_union(kind):
        return _convert_union(value, kind, path, marks)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(v, _item(kind), f"{path}[{i}]", marks) for i, v in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {key: _convert(v, _item(kind), join(path, key), marks) for key, v in value.items()}
    if variant := _variant(kind, marks):
        return _convert_variant(value, variant, path)
    if _is_section(kind) and isinstance(value, Mapping):
        return build(kind, value, path)
    return _convert_plain(value, kind, path, marks)


def _convert_union(value: object, kind: object, path: str, marks: Marks) -> object:
    for member in _members(kind):
        try:
            return _convert(value, member, path, marks)
        except ConfigError:
            continue
    raise _mismatch(value, kind, path, marks)


def _convert_variant(value: object, variant: Variant, path: str) -> object:
    table, key = variant.table(), "name"
    given, where = ({key: value}, path) if isinstance(value, str) else (value, join(path, key))
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path} is {found(value)}; please give {_names(table)}")
    if key not in given:
        raise ConfigError(f"{where} is missing; please give {_names(table)}")
    name = str(_convert_plain(given[key], str, where, (Choice(lambda: table, "name"),)))
    return build(table[name], {k: v for k, v in given.items() if k != key}, path)


def _convert_plain(value: object, kind: object, path: str, marks: Marks) -> object:
    ready = _as_float(value) if kind is float else value
    if not _fits(ready, kind, marks):
        raise _mismatch(value, kind, path, marks)
    for mark in marks:
        if isinstance(mark, Choice) and isinstance(value, str) and value not in (names := list(mark.names())):
            near = nearest(value, names) or f"; please give {_names(names)}"
            raise ConfigError(f"{path} is {found(value)}, which is not a known {mark.what}{near}")
    return ready


def _as_float(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return float(value) + 0.0  # turns -0.0 into 0.0, which equals it and must not have another digest
    except OverflowError:
        return value


def _fits(value: object, kind: object, marks: Marks) -> bool:
    if get_origin(kind) is Literal:
        return any(type(value) is type(name) and value == name for name in get_args(kind))
    if kind not in _SORTS or type(value) is not kind:
        return False
    if isinstance(value, int | float):
        return -math.inf < value < math.inf and all(m.holds(value) for m in marks if isinstance(m, Range))
    # Half a surrogate pair, as bad bytes on a command line become, could not be written as UTF-8.
    return value == str(value).encode(errors="ignore").decode()


def _mismatch(value: object, kind: object, path: str, marks: Marks) -> ConfigError:
    names = [name for name in get_args(kind) if isinstance(name, str)]
    near = nearest(value, names) if isinstance(value, str) else ""
    return ConfigError(f"{path} is {found(value)}; please give {_describe(kind, marks)}{near}")


def _describe(hint: object, outer: Marks = ()) -> str:
    """What a type expects, in words."""
    kind, marks = _peel(hint, outer)
    origin = get_origin(kind)
    if _is_union(kind):
        return _listed([_describe(member, marks) for member in _members(kind)], "or")
    if origin is Literal:
        return _names(get_args(kind))
    if origin in (tuple, dict):
        return f"a {'list' if origin is tuple else 'table'} of values, each {_describe(_item(kind), marks)}"
    if variant := _variant(kind, marks):
        return _names(variant.table())
    if _is_section(kind):
        return "a table"
    return _describe_plain(kind, marks)


def _describe_plain(kind: object, marks: Marks) -> str:
    choices = [mark for mark in marks if isinstance(mark, Choice)]
    if kind is str and choices:
        return _names(choices[0].names())
    if kind not in _SORTS:
        raise TypeError(f"a configuration field cannot have the type {kind}")
    ranges = [str(mark) for mark in marks if isinstance(mark, Range)]
    return ", ".join([_SORTS[kind], *ranges] if kind in (int, float) else [_SORTS[kind]])


def _listed(items: list[str], word: str) -> str:
    return f" {word} ".join([", ".join(items[:-1]), *items[-1:]] if len(items) > 1 else items)


def _names(names: Iterable[object]) -> str:
    return _listed([str(name).lower() if isinstance(name, bool) else repr(name) for name in names], "or")


def _peel(hint: object, outer: Marks = ()) -> tuple[Any, Marks]:
    """A type without its `Annotated`, and the marks which hold for it."""
    if get_origin(hint) is not Annotated:
        return hint, outer
    kind, *marks = get_args(hint)
    return kind, (*outer, *marks)


def _members(kind: object) -> list[object]:
    return [member for member in get_args(kind) if member is not NoneType]


def _core(hint: object, outer: Marks = ()) -> tuple[Any, Marks]:
    """A type without its `Annotated` and its `| None`, and the marks which hold for it."""
    kind, marks = _peel(hint, outer)
    members = _members(kind) if _is_union(kind) else []
    return _core(members[0], marks) if len(members) == 1 else (kind, marks)


def _is_union(kind: object) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _item(kind: object) -> object:
    """The type of the values of `tuple[X, ...]` or `dict[str, X]`."""
    match get_args(kind):
        case (item, end) if get_origin(kind) is tuple and end is Ellipsis:
            return item
        case (key, item) if get_origin(kind) is dict and key is str:
            return item
    raise TypeError(f"a configuration field cannot have the type {kind}")


def _variant(kind: object, marks: Marks) -> Variant | None:
    variants = [mark for mark in marks if isinstance(mark, Variant)]
    return variants[-1] if variants and get_origin(kind) not in (tuple, dict) else None


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default_text(field: Field[Any]) -> str:
    if _is_required(field):
        return "required"
    return toml_value(plain(field.default if field.default_factory is MISSING else field.default_factory()))


def _hints(cls: type) -> dict[str, object]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in schema_fields(cls)}
