"""States as named tensors: on disk, on the wire, and checked against what their types declare.

The annotations of a method's four states are the schema. `Variables` must hold exactly the network's tensors, `Part`
some of them, `PerParam` one per parameter; a bare `Tensor` or dict is checked by name alone, and every message after a
link's first must repeat its names, shapes and dtypes.
"""

import json
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from . import tree
from .algorithm import Algorithm
from .errors import CheckpointError, MessageError
from .net import Net, Part, Variables
from .task import PerParam
from .tree import Tensors

T = TypeVar("T")
Manifest = dict[str, tuple[tuple[int, ...], str]]


def schema(method: type[Algorithm[Any, Any, Any, Any]]) -> tuple[type, type, type, type]:
    """(Server, Client, Down, Up), as a method declares them."""
    return cast(tuple[type, type, type, type], _declared(method, ()))


def _declared(cls: type, given: tuple[Any, ...]) -> tuple[Any, ...]:
    if cls is Algorithm:
        return given
    names = dict(zip(getattr(cls, "__parameters__", ()), given, strict=False))
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, Algorithm):
            return _declared(origin, tuple(names.get(a, a) for a in get_args(base)))
    raise TypeError(f"{cls.__name__} is no Algorithm.")


def flatten(state: object) -> dict[str, Tensor]:
    """One tensor per path, as in `{"model/params/fc.weight": ...}`."""
    return dict(tree.leaves(state))


def parse(flat: Mapping[str, Tensor], kind: type[T]) -> T:
    """Rebuild a state from its declared type; a missing or unknown tensor is an error that names it."""
    state, used = _parse(flat, kind, "")
    if unknown := sorted(flat.keys() - used):
        raise MessageError(
            f"{unknown[0]}: found in a {kind.__name__} message, which declares no such tensor; "
            "both ends must run the same method and version."
        )
    return cast(T, state)


def _parse(flat: Mapping[str, Tensor], kind: Any, path: str) -> tuple[Any, set[str]]:
    if get_origin(kind) is typing.Annotated:
        return _parse(flat, get_args(kind)[0], path)
    if kind is Tensor:
        if path not in flat:
            raise MessageError(f"{path}: missing from the message, expected a tensor; send every declared field.")
        return flat[path], {path}
    prefix = f"{path}/" if path else ""
    if get_origin(kind) is dict:
        return _parse_dict(flat, get_args(kind)[1], prefix)
    parts = {k: _parse(flat, hint, prefix + k) for k, hint in _hints(kind).items()}
    used: set[str] = set().union(*(names for _, names in parts.values()))
    return kind(**{k: value for k, (value, _) in parts.items()}), used


def _parse_dict(flat: Mapping[str, Tensor], value: Any, prefix: str) -> tuple[Any, set[str]]:
    mine = [k for k in flat if k.startswith(prefix)]
    if value is Tensor:
        return {k.removeprefix(prefix): flat[k] for k in mine}, set(mine)
    keys = dict.fromkeys(k.removeprefix(prefix).split("/", 1)[0] for k in mine)
    return {k: _parse(flat, value, prefix + k)[0] for k in keys}, set(mine)


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def check(state: object, kind: Any, net: Net, who: str) -> None:
    """Refuse a state whose tensors do not fit the network, before anything is computed with it."""
    params: Tensors = dict(net.module.named_parameters())
    buffers: Tensors = dict(net.module.named_buffers())
    _check(state, kind, {"params": params, "buffers": buffers}, who)


def _check(state: Any, kind: Any, have: dict[str, dict[str, Tensor]], path: str) -> None:
    if kind in (Variables, Part):
        for field, expected in have.items():
            _compare(getattr(state, field), expected, f"{path}/{field}", whole=kind is Variables)
    elif kind == PerParam:
        _compare(state, have["params"], path, whole=True)
    elif hasattr(kind, "_fields"):
        for name, hint in _hints(kind).items():
            _check(getattr(state, name), hint, have, f"{path}/{name}")


def _compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: str, *, whole: bool) -> None:
    if unknown := sorted(found.keys() - expected.keys()):
        raise MessageError(
            f"{path}/{unknown[0]}: found, but the network has no such tensor; build both ends on the same model."
        )
    if whole and (missing := sorted(expected.keys() - found.keys())):
        raise MessageError(
            f"{path}/{missing[0]}: missing, expected all {len(expected)} tensors of the network; send it whole."
        )
    for name, tensor in found.items():
        _same(f"{path}/{name}", _sign(tensor), _sign(expected[name]))


def _sign(x: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(x.shape), str(x.dtype).removeprefix("torch.")


def _same(path: str, found: tuple[tuple[int, ...], str], expected: tuple[tuple[int, ...], str]) -> None:
    if found != expected:
        raise MessageError(
            f"{path}: found {found[1]} {found[0]}, expected {expected[1]} {expected[0]}; "
            "both ends must use the same model and precision."
        )


def manifest(state: object) -> Manifest:
    """Names, shapes and dtypes."""
    return {path: _sign(x) for path, x in tree.leaves(state)}


def check_manifest(state: object, expected: Manifest, who: str) -> None:
    """Refuse a message that is not like the first of its kind."""
    found = manifest(state)
    if odd := sorted(found.keys() ^ expected.keys()):
        what = "found, but not in" if odd[0] in found else "missing, though in"
        raise MessageError(f"{who}/{odd[0]}: {what} the first message of this kind; every client must send the same.")
    for path, sign in found.items():
        _same(f"{who}/{path}", sign, expected[path])


def in_order(names: Collection[str]) -> dict[str, str]:
    """The part of a header that lets `restored` put tensors in this order again: the format itself sorts them."""
    place = {name: i for i, name in enumerate(sorted(names))}
    return {"order": json.dumps([place[name] for name in names], separators=(",", ":"))}


def restored(tensors: dict[str, Tensor], header: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors in the order they had: sums over all of them are then taken as before."""
    names = sorted(tensors)
    order = json.loads(header["order"]) if "order" in header else list(range(len(names)))
    if sorted(order) != list(range(len(names))):
        raise ValueError(f"its order {header['order']} is none of {len(names)} tensors")
    return {names[i]: tensors[names[i]] for i in order}


def to_bytes(state: object) -> bytes:
    """A safetensors file in memory; tensors that share memory are written once each."""
    flat = {k: v.detach().cpu().contiguous() for k, v in flatten(state).items()}
    return save(flat, in_order(flat))


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file in memory."""
    try:
        tensors = {k: t.clone() for k, t in load(data).items()}  # aligned, as in `read`
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return restored(tensors, header.get("__metadata__", {}))
    except (SafetensorError, ValueError, TypeError) as error:
        raise MessageError(
            f"message: {len(data)} bytes that are no safetensors file ({error}); it was cut or damaged, send it again."
        ) from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            # Copied to where torch aligns memory: some products round otherwise on tensors that lie as in the file.
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
            header = dict(file.metadata() or {})
            return restored(tensors, header), header
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; start the run again, or give another one.") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); delete it and resume again.") from None
