"""The data sets, and the way from files to batches. To add a set: write its source, and name it in its table."""

from collections.abc import Callable
from pathlib import Path

from ..core.errors import DataError, nearest
from .dataset import Dataset, Domain, Source
from .decode import Fit
from .federation import Federation, federate, shared
from .glyphs import SOURCE as GLYPHS
from .manifest import Manifest
from .places import data_home
from .protocols import Protocol, facts_of
from .sources import SOURCES
from .store import Store, open_store

DATASETS: dict[str, Source] = {GLYPHS.name: GLYPHS, **SOURCES}

__all__ = [
    "DATASETS",
    "Dataset",
    "Domain",
    "Federation",
    "Protocol",
    "Source",
    "domains_of",
    "federate",
    "load",
    "manifest_of",
    "names",
    "of_store",
    "save_manifest",
    "shared",
]


def names() -> list[str]:
    """Every data set that has a source, and those imported under names of their own."""
    own = sorted(path.stem for path in data_home().glob("*.jsonl"))
    return list(dict.fromkeys([*DATASETS, *own]))


def domains_of(name: str) -> tuple[str, ...]:
    """The domains of a set, known or imported under a name of its own."""
    return DATASETS[name].domains if name in DATASETS else manifest_of(name).domains


def _manifest_file(name: str) -> Path:
    return data_home() / f"{name}.jsonl"


def save_manifest(manifest: Manifest) -> Path:
    """Remember where a data set lies; written aside and renamed."""
    path = _manifest_file(manifest.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_text(manifest.to_json(), encoding="utf-8")
    aside.replace(path)
    return path


def manifest_of(name: str) -> Manifest:
    """The pictures of a set that was imported."""
    path = _manifest_file(name)
    if not path.exists():
        if name not in names():
            raise DataError(f"data set: found {name!r}, expected one of {', '.join(names())}{nearest(name, names())}.")
        raise DataError(
            f"data set {name!r}: not on this machine yet; run `fedshift data get {name}` to download it, or "
            f"`fedshift data import {name} PATH` if you have it."
        )
    return Manifest.from_json(path.read_text(encoding="utf-8"), str(path))


def load(name: str, size: int = 32, fit: Fit = "crop", progress: Callable[[int, int], None] | None = None) -> Dataset:
    """The data set of that name; pictures of an imported set are decoded on first use and kept in the cache."""
    source = DATASETS.get(name)
    if source is not None and source.load is not None:
        return source.load()
    manifest = manifest_of(name)
    return of_store(manifest, open_store(manifest, size, fit, progress=progress))


def of_store(manifest: Manifest, store: Store) -> Dataset:
    """A data set whose images stay in the store."""
    domains = []
    for name in manifest.domains:
        rows = [i for i, row in enumerate(store.rows) if row.domain == name]
        if not rows:
            raise DataError(f"data set {manifest.name!r}: no picture of {name} could be decoded; verify the set.")
        first, end = rows[0], rows[-1] + 1  # a manifest lists one domain after the other
        facts = facts_of(store.rows[first:end], store.content[first:end])
        domains.append(Domain(name, store.images[first:end], *facts))
    if sum(len(d.labels) for d in domains) != len(store.rows):
        raise DataError(f"data set {manifest.name!r}: the manifest mixes its domains; import the set again.")
    skipped = tuple((row.path, why) for row, why in store.skipped)
    return Dataset(manifest.name, manifest.classes, tuple(domains), skipped)
