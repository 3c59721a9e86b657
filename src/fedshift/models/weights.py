"""Reading trained weights from a local safetensors file into a network."""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.net import BATCH_NORM

Tensors = dict[str, Tensor]


class Loaded(NamedTuple):
    """Names of the tensors read from the file, and of those left as they were initialised."""

    loaded: tuple[str, ...]
    kept: tuple[str, ...]


def load_weights(module: nn.Module, path: str | Path, classifier: str, *, replaced: bool = False) -> Loaded:
    """Copy a file's tensors into `module`, cast to its dtypes; all or nothing.

    Every tensor of the module must be there with its shape, finite, and no other; only the sub-module named
    `classifier` may be absent or made for another number of classes: it, or what depends on that number, is then left
    as it is. `replaced` says that the module's is made otherwise than the file's, which is then passed over, unless its
    tensors have the same names.
    """
    own, found = module.state_dict(), _read(path)
    if replaced:
        found = {name: t for name, t in found.items() if name in own or not name.startswith(f"{classifier}.")}
    head = {name for name in own if name.startswith(f"{classifier}.")}
    if not head:
        raise ModelError(
            f"{type(module).__name__} has no tensors under {classifier!r}, expected its classifier there; name it."
        )
    kept, names = _kept(own, found, head), sorted(own.keys() | found.keys())
    problems = [p for name in names if (p := _problem(name, own, found, kept))] or _bad_values(module, found, kept)
    if problems:
        raise ModelError(_sentence(path, problems, classifier))
    with torch.no_grad():
        for name in own.keys() - kept:
            own[name].copy_(found[name])
    return Loaded(tuple(n for n in own if n not in kept), tuple(n for n in own if n in kept))


def read_metadata(path: str | Path) -> dict[str, str]:
    """The notes that the file's maker wrote into its header."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _read(path: str | Path) -> Tensors:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: Exception) -> ModelError:
    return ModelError(
        f"Weights file {path} cannot be read ({error}), expected a safetensors file; "
        "correct the path or convert the file."
    )


def _kept(own: Tensors, found: Tensors, head: set[str]) -> set[str]:
    """The classifier's tensors, if absent; or those that differ in the first axis, which counts the classes."""
    there = head & found.keys()
    differ = {name for name in there if found[name].shape[:1] != own[name].shape[:1]}
    return differ | (head - there) if differ or not there else set()


def _problem(name: str, own: Tensors, found: Tensors, kept: set[str]) -> str:
    """Why this tensor cannot be loaded, or nothing."""
    if name not in own:
        return f"{name!r} is not in the network"
    if name not in found:
        return "" if name in kept else f"{name!r} is missing"
    want, got = own[name], found[name]
    axes = 1 if name in kept else 0
    if got.shape[axes:] != want.shape[axes:]:
        return f"{name!r} has shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if got.is_floating_point() != want.is_floating_point():
        return f"{name!r} is {got.dtype} instead of {want.dtype}"
    return ""


def _bad_values(module: nn.Module, found: Tensors, kept: set[str]) -> list[str]:
    """Which tensors of a file that fits otherwise nobody can compute with, once they have the network's dtypes."""
    norms = ((name, m) for name, m in module.named_modules() if isinstance(m, BATCH_NORM))
    variances = {f"{name}.running_var" if name else "running_var" for name, _ in norms}
    problems = []
    for name, want in module.state_dict().items():
        if name in kept or not want.is_floating_point():
            continue
        if not bool((t := found[name].to(want.dtype)).isfinite().all()):
            problems.append(f"{name!r} holds NaN or infinity as {want.dtype}")
        elif name in variances and bool((t < 0).any()):
            problems.append(f"{name!r} holds variances below 0")
    return problems


def _sentence(path: str | Path, problems: list[str], classifier: str) -> str:
    first = ", ".join(problems[:3]) + (f" and {len(problems) - 3} more" if len(problems) > 3 else "")
    return (
        f"Weights file {path} does not fit the network: {first}; expected its very tensors, "
        f"all finite, of which {classifier!r} alone may differ; choose a file made for this network, or leave "
        "`weights` empty."
    )
