"""Pictures in an .npz file: which arrays hold them, and what they show."""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError
from .containers import Container, open_container
from .looking import PARTS, existing, hashes, some
from .manifest import Manifest, Row
from .unpack import Progress

DAMAGE = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError)


@dataclass(frozen=True)
class Block:
    """An array of pictures, and the domain, class and part of each."""

    key: str
    domains: Sequence[str]
    labels: Sequence[str]
    parts: Sequence[str]

    def __post_init__(self) -> None:
        if not len(self.domains) == len(self.labels) == len(self.parts):
            raise ValueError(f"{len(self.labels)} labels, {len(self.domains)} domains and {len(self.parts)} parts")

    def pictures(self) -> Iterator[tuple[str, str, str]]:
        """Domain, class and part of each."""
        return zip(self.domains, self.labels, self.parts, strict=True)


def blocks(path: Path, container: Container) -> tuple[list[Block], list[str]]:
    """The arrays of pictures, and the names of the classes if the file gives them.

    Either `images`, `labels` and `domain` (and `split`, `class_names`, `domain_names`, `split_names`), or `NAME_x` and
    `NAME_y` for each domain, with `_train`, `_val` or `_test` behind both where a domain is divided.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            classes = _names(file, "class_names")
            if {"images", "labels", "domain"} <= set(file.files):
                found = [_joint(file, classes)]
            else:
                keys = [key for key in sorted(file.files) if re.search(r"._x(_[a-z]+)?$", key)]
                found = [_apart(file, key, classes) for key in keys]
            seen = some(sorted(file.files))
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as plain arrays of pictures ({error}); save it again.") from error
    if not found:
        raise DataError(
            f"{path}: found the arrays {seen}, expected images, labels and domain, or NAME_x and NAME_y for each "
            "domain; save it again with these names."
        )
    sizes = Counter(name.rpartition("/")[0] for name in container.names())
    for block in found:
        if sizes[block.key] != len(block.labels):
            raise DataError(
                f"{path}: found {sizes[block.key]} pictures in {block.key!r} and {len(block.labels)} labels, expected "
                "as many, and pictures as uint8 [n, height, width] or [n, height, width, 3]; save it again."
            )
    return found, classes


def _names(file: Any, key: str) -> list[str]:
    return [str(name) for name in file[key]] if key in file.files else []


def _joint(file: Any, classes: list[str]) -> Block:
    labels = _named(file["labels"], classes)
    splits = _names(file, "split_names") or ["train", "val", "test"]
    parts = _named(file["split"], splits) if "split" in file.files else [""] * len(labels)
    parts = [PARTS.get(part, part) for part in parts]
    return Block("images", _named(file["domain"], _names(file, "domain_names")), labels, parts)


def _apart(file: Any, key: str, classes: list[str]) -> Block:
    domain, _, part = key.rpartition("_x")
    labels = _named(file[f"{domain}_y{part}"], classes)
    return Block(key, [domain] * len(labels), labels, [PARTS.get(part[1:], "")] * len(labels))


def _named(values: NDArray[Any], names: list[str]) -> list[str]:
    """Words as they are, numbers as positions among the names if there are any."""
    if values.dtype.kind in "US" or not names:
        return [str(value) for value in values.reshape(-1).tolist()]
    if values.size and not 0 <= values.min() <= values.max() < len(names):
        raise ValueError(f"numbers from {values.min()} to {values.max()} for {len(names)} names")
    return [names[int(value)] for value in values.reshape(-1)]


def find_npz(name: str, path: Path, progress: Progress | None = None) -> Manifest:
    """Any .npz file of pictures as a data set of that name; classes as they are named there, domains by name."""
    path = existing(path)
    with open_container(path) as container:
        found, named = blocks(path, container)
        classes = named or ordered({label for block in found for label in block.labels})
        index = {label: k for k, label in enumerate(classes)}
        pictures = [(f"{b.key}/{i}", *what) for b in found for i, what in enumerate(b.pictures())]
        digests = hashes(container, [path for path, *_ in pictures], progress)
        rows = [
            Row(path, domain, index[label], part, digest)
            for (path, domain, label, part), digest in zip(pictures, digests, strict=True)
        ]
    return Manifest(
        name,
        path,
        "npz",
        tuple(classes),
        in_order(rows, ordered({row.domain for row in rows})),
        tuple(container.left_out),
    )


def ordered(names: set[str]) -> list[str]:
    """Alphabetical, but numbers by their value."""
    return sorted(names, key=lambda name: (0, int(name), name) if re.fullmatch(r"\d{1,9}", name) else (1, 0, name))


def in_order(rows: Sequence[Row], domains: Sequence[str]) -> tuple[Row, ...]:
    """By domain, then label, then path."""
    rank: Mapping[str, int] = {domain: k for k, domain in enumerate(domains)}
    return tuple(sorted(rows, key=lambda row: (rank[row.domain], row.label, row.path)))
