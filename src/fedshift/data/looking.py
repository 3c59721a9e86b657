"""What all ways of finding pictures share."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.errors import DataError
from .containers import Container
from .unpack import Progress

PICTURES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {  # folders and lists that divide a set, in the order in which they count where they overlap
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "crossval": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
SHOWN = 5  # names in an error


def existing(path: Path) -> Path:
    """The path in full."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise DataError(f"{path}: found nothing there, expected a folder or an archive; check the path.")
    return path


def visible(container: Container) -> list[str]:
    """All files but those that systems leave behind: .DS_Store, __MACOSX, ._name."""
    return [n for n in container.names() if not any(p.startswith((".", "__MACOSX")) for p in n.split("/"))]


def is_picture(name: str) -> bool:
    """By its ending; whether it can be decoded is seen later."""
    return name.lower().endswith(PICTURES)


def hashes(container: Container, names: Sequence[str], progress: Progress | None) -> Iterator[str]:
    """The SHA-256 of each file; of a picture in an .npz file, of its shape and pixels."""
    for done, name in enumerate(names, 1):
        pixels = container.array(name)
        data = container.read(name) if pixels is None else repr(pixels.shape).encode() + pixels.tobytes()
        yield hashlib.sha256(data).hexdigest()
        if progress:
            progress(done, len(names))


def some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
