"""The embedded benchmark `glyphs`: the digits 0 to 9 in six visually very different domains, 32x32 RGB.

The images are made on the machine from the small resources in the package, bit for bit the same everywhere,
and kept in a cache. Each domain holds 1,500 images, 150 a class; no handwriting, typeface or photograph
serves two domains.
"""

import contextlib
import hashlib
import os
import uuid
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..core.errors import DataError
from ._looks import DIGITS, LOOKS, PER_CLASS
from ._strokes import Dice, clip
from .dataset import Dataset, Domain, Source
from .places import cache_home

Pair = tuple[NDArray[np.uint8], NDArray[np.int64]]

DOMAINS: tuple[str, ...] = tuple(LOOKS)
CLASSES: tuple[str, ...] = tuple("0123456789")
PARTS = ("images", "labels")
VERSION = 1
SHA256 = "5d8e7f0e5f4434765bcd435831c4d5f9a8680163ebc55e9059b8f6e356372f65"
CITATION = (
    "E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning "
    "Repository, https://doi.org/10.24432/C50P49, for the handwriting; NOTICE.md lists all sources."
)
LICENCE = "CC BY 4.0 (handwriting), CC BY 2.0 (photographs); see NOTICE.md beside the resources"


def _domain(name: str) -> Pair:
    dice = Dice(f"glyphs/{VERSION}/{name}")
    images = np.floor(clip(LOOKS[name](dice)) * 255.0 + 0.5).astype(np.uint8)
    order = dice.order(len(images))
    return np.ascontiguousarray(images[order]), DIGITS[order]


def make() -> dict[str, Pair]:
    """Make all domains: name -> (images uint8 [n, 3, 32, 32], labels int64 [n]), shuffled."""
    return {name: _domain(name) for name in DOMAINS}


def digest(domains: dict[str, Pair]) -> str:
    """SHA-256 of all domains in order, images then labels."""
    total = hashlib.sha256()
    for images, labels in domains.values():
        total.update(np.ascontiguousarray(images).tobytes())
        total.update(labels.astype("<i8").tobytes())
    return total.hexdigest()


def load(cache: Path | None = None) -> dict[str, Pair]:
    """The benchmark from the cache folder, or made anew and kept there if the folder can be written.

    `cache` defaults to $FEDSHIFT_CACHE, or else ~/.cache/fedshift.
    """
    folder = cache or cache_home()
    file = folder / f"glyphs-{SHA256[:12]}.npz"
    kept = _read(file)
    if kept is not None:
        return kept
    made = make()
    if (found := digest(made)) != SHA256:
        raise DataError(
            f"the benchmark glyphs made on this machine has SHA-256 {found}, expected {SHA256}; "
            "reinstall fedshift, and report your numpy version and processor if that does not help."
        )
    _write(file, made)
    return made


def _read(file: Path) -> dict[str, Pair] | None:
    """What the cache holds, or nothing when it is absent or not exactly the benchmark."""
    try:
        with file.open("rb") as stream, np.load(stream) as stored:
            kept = {name: (stored[f"{name}.images"], stored[f"{name}.labels"]) for name in DOMAINS}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None
    return kept if digest(kept) == SHA256 else None


def _write(file: Path, domains: dict[str, Pair]) -> None:
    """Write beside, then rename: no reader ever meets half a file; a folder that refuses is skipped."""
    arrays = {
        f"{name}.{part}": array for name, pair in domains.items() for part, array in zip(PARTS, pair, strict=True)
    }
    aside = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("xb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def contact_sheet(domains: dict[str, Pair], per_class: int = 4) -> Image.Image:
    """A picture of the first images of every class: a row per domain, a column per class."""
    from PIL import ImageDraw  # slow to import, and no run draws

    left, top, step = 72, 16, per_class * 33 + 6
    sheet = Image.new("RGB", (left + step * len(CLASSES), top + 36 * len(domains)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(CLASSES):
        draw.text((left + column * step + step // 2 - 6, 2), label, fill="black")
    for row, (name, (images, labels)) in enumerate(domains.items()):
        draw.text((4, top + row * 36 + 10), name, fill="black")
        for column in range(len(CLASSES)):
            for rank, image in enumerate(images[labels == column][:per_class]):
                place = (left + column * step + rank * 33, top + row * 36)
                sheet.paste(Image.fromarray(image.transpose(1, 2, 0)), place)
    return sheet


def dataset() -> Dataset:
    """The benchmark as the rest of fedshift reads it."""
    domains = [
        Domain(name, torch.from_numpy(images), torch.from_numpy(labels)) for name, (images, labels) in load().items()
    ]
    return Dataset("glyphs", CLASSES, tuple(domains))


SOURCE = Source(
    name="glyphs",
    summary="digits in six domains, made on the machine; needs no download",
    citation=CITATION,
    licence=LICENCE,
    domains=DOMAINS,
    load=dataset,
    classes=CLASSES,
    counts=dict.fromkeys(DOMAINS, (PER_CLASS,) * len(CLASSES)),
    sizes="32 x 32",
)
