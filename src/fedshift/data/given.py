"""Pictures that a user hands over to be answered: folders, archives, tables with a column `path`, or single files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..core.errors import DataError
from .containers import Container, open_container
from .decode import Fit
from .looking import existing, hashes, is_picture, some, visible
from .manifest import Manifest, Row
from .own import TABLES, listed
from .pictures import Pictures
from .store import open_store
from .unpack import Progress


class Given(NamedTuple):
    """Pictures with their names as a user knows them, and those that cannot be decoded with the reason."""

    names: tuple[str, ...]
    pictures: Pictures
    skipped: tuple[tuple[str, str], ...]


@contextmanager
def given(paths: Sequence[Path], size: int, fit: Fit, progress: Progress | None = None) -> Iterator[Given]:
    """The pictures, decoded as a data set's are, for as long as they are looked at; nothing of them is kept."""
    names, parts, skipped = list[str](), list[Pictures](), list[tuple[str, str]]()
    with TemporaryDirectory(prefix="fedshift-") as aside:
        for place, manifest in _manifests(paths, progress):
            store = open_store(manifest, size, fit, cache=Path(aside), progress=progress)
            names += [_named(place, row) for row in store.rows]
            parts.append(Pictures.of(store.images))
            skipped += [(_named(place, row), why) for row, why in store.skipped]
            skipped += [(str(place / name), why) for name, why in manifest.left_out]
        yield Given(tuple(names), Pictures.join(parts), tuple(skipped))


def _named(place: Path, row: Row) -> str:
    return str(place / row.path)


def _manifests(paths: Sequence[Path], progress: Progress | None) -> Iterator[tuple[Path, Manifest]]:
    """One for each folder, archive or table, and one for all single files of a folder; with its place as told."""
    single: dict[Path, list[str]] = {}
    for path in paths:
        existing(path)
        if path.is_file() and is_picture(path.name):
            single.setdefault(path.parent, []).append(path.name)
        elif path.suffix.lower() in TABLES:
            yield path.parent, _manifest(path.parent, listed(existing(path), ("path",))[1], progress)
        else:
            yield path, _manifest(path, None, progress)
    for folder, files in single.items():
        yield folder, _manifest(folder, list(dict.fromkeys(files)), progress)


def _manifest(root: Path, files: Sequence[str] | None, progress: Progress | None) -> Manifest:
    root = existing(root)
    with open_container(root) as container:
        chosen = _all(container) if files is None else files
        if not chosen:
            seen = some(container.names()) or "nothing"
            raise DataError(f"{root}: found {seen}, expected pictures such as .jpg or .png; check the path.")
        digests = hashes(container, chosen, progress)
        rows = tuple(Row(file, "", 0, "", digest) for file, digest in zip(chosen, digests, strict=True))
        return Manifest("given", root, container.kind, (), rows, () if files else tuple(container.left_out))


def _all(container: Container) -> list[str]:
    if container.kind == "npz":
        return container.names()
    return [name for name in visible(container) if is_picture(name)]
