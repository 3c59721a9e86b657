"""The plain side of a configuration: read a TOML file, change it by `key=value`, write a dataclass back."""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a file that cannot be used is one sentence."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"the configuration file {path} does not exist; please check its path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; please give the path of a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); please check the file") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} is not UTF-8 text at line {line}; please save it as UTF-8") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; please correct it there") from error


def parse_set(text: str) -> tuple[tuple[str, ...], object]:
    """Split `optimizer.lr=0.1` into its keys and its value, a TOML value or else a bare string."""
    key, equals, value = text.partition("=")
    keys = _parse_key(key)
    if equals and keys:
        return keys, _parse_value(value)
    found = "does not begin with a dotted key" if equals else "has no '='"
    raise ConfigError(f"--set {text!r} {found}; please write key=value, for example optimizer.lr=0.1")


def _parse_key(text: str) -> tuple[str, ...]:
    try:
        node: object = tomllib.loads(f"{text} = 0")
    except ValueError:
        return ()
    keys: list[str] = []
    while isinstance(node, dict) and len(node) == 1:
        ((key, node),) = node.items()
        keys.append(key)
    return tuple(keys) if node == 0 else ()


def _parse_value(text: str) -> object:
    # Inside a one-item array neither a comment nor a second line can slip past as part of the value.
    try:
        parsed = tomllib.loads(f"value = [{text},]")
    except ValueError:
        return text.strip()
    return parsed["value"][0] if len(parsed) == len(parsed["value"]) == 1 else text.strip()


def merge(mapping: Mapping[str, object], sets: Iterable[str]) -> dict[str, Any]:
    """A copy of the mapping with every `key=value` put in; the later one wins."""
    merged: dict[str, Any] = deepcopy(dict(mapping))
    for keys, value in map(parse_set, sets):
        table, path = merged, ""
        for key in keys[:-1]:
            if isinstance(table.get(key), str):  # `method=fedprox method.mu=1`: the name alone stood for the section
                table[key] = {"name": table[key]}
            table, path = table.setdefault(key, {}), join(path, key)
            if not isinstance(table, dict):
                target = ".".join(map(toml_key, keys))
                raise ConfigError(
                    f"{target} cannot be set because {path} is {found(table)}; please write {path} as a table"
                )
        table[keys[-1]] = value
    return merged


def join(path: str, key: str) -> str:
    """The dotted path of a key, as it is written in TOML and after `--set`."""
    return f"{path}.{toml_key(key)}" if path else toml_key(key)


def found(value: object) -> str:
    """What a value is, in words, for the middle of a sentence."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, which is not finite"
    sort = {int: "number", float: "decimal number", str: "text"}.get(type(value), "value")
    return f"the {sort} {_short(repr(value) if isinstance(value, int | float | str) else str(value))}"


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def toml_key(key: str) -> str:
    """A key as TOML text, in quotes where it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: object) -> str:
    """A plain value as TOML text on one line; entries of a table which are None are left out."""
    if isinstance(value, str):
        # JSON escapes are TOML escapes, only that TOML wants DEL escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        items = [f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None]
        return f"{{{', '.join(items)}}}"
    return str(value).lower() if value is None or isinstance(value, bool) else repr(value)


def dump(config: object) -> dict[str, Any]:
    """The configuration as a plain nested dictionary, in the order of the fields."""
    tag = tag_of(type(config))
    named = {} if tag is None else {"name": tag}
    return named | {field.name: plain(getattr(config, field.name)) for field in schema_fields(type(config))}


def plain(value: object) -> object:
    """A value of a configuration in dictionaries and lists."""
    if is_dataclass(value):
        return dump(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def schema_fields(cls: type) -> list[Field[Any]]:
    """The fields of a dataclass which a configuration sets."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass, so it cannot describe a configuration")
    return [field for field in fields(cls) if field.init]


def tag_of(cls: type) -> str | None:
    """The class attribute `name` of a dataclass listed in a `Variant`; none where `name` is a field."""
    tag = getattr(cls, "name", None)
    return tag if isinstance(tag, str) and all(field.name != "name" for field in fields(cls)) else None


def to_toml(config: object) -> str:
    """A TOML text which reads back to an equal configuration."""
    _check_nones(config, "")
    return "\n".join(_toml_lines(dump(config), "")).lstrip("\n") + "\n"


def _check_nones(value: object, path: str) -> None:
    """TOML has no null, so a None can only be left out, and only where the default brings it back."""
    if value is None:
        raise ConfigError(f"{path} is none, which TOML cannot express; please give it a value")
    if is_dataclass(value):
        for field in schema_fields(type(value)):
            if (item := getattr(value, field.name)) is not None or field.default is not None:
                _check_nones(item, join(path, field.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_nones(item, join(path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_nones(item, f"{path}[{i}]")


def _toml_lines(table: Mapping[str, object], path: str) -> list[str]:
    plain = {key: value for key, value in table.items() if value is not None and not isinstance(value, dict)}
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{join(path, key)}]", *_toml_lines(value, join(path, key))]
    return lines
