"""Any data as a data set: folders domain/class/image, a table of pictures, or arrays in an .npz file."""

import csv
import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from .arrays import find_npz, in_order, ordered
from .containers import open_container
from .looking import PARTS, existing, hashes, is_picture, some, visible
from .manifest import Manifest, Row
from .unpack import Progress

TABLES = (".csv", ".tsv", ".parquet")
NEEDED = ("path", "label", "domain")


def find_own(name: str, path: Path, progress: Progress | None = None) -> Manifest:
    """Any data as a data set of that name, by what the path is: a table, an .npz file, or a folder or archive."""
    path = existing(path)
    if path.suffix.lower() in TABLES:
        return find_csv(name, path, progress)
    with open_container(path) as container:
        return (find_npz if container.kind == "npz" else find_folder)(name, path, progress)


def find_folder(name: str, path: Path, progress: Progress | None = None) -> Manifest:
    """Pictures as domain/class/image in a folder, zip or tar; folders train, val and test above a class divide it.

    Domains and classes are in alphabetical order, or by their value where they are numbers.
    """
    path = existing(path)
    with open_container(path) as container:
        pictures = [file for file in visible(container) if is_picture(file)]
        if not pictures:
            raise DataError(f"{path}: found no picture in it, expected some as domain/class/image; check the path.")
        places = [_place(path, file) for file in pictures]
        if len({above for above, *_ in places}) > 1:
            first, other = pictures[0], next(f for f, p in zip(pictures, places, strict=True) if p[0] != places[0][0])
            raise DataError(
                f"{path}: found {first!r} and {other!r}, expected all pictures as domain/class/image below one folder; "
                "move or remove those that are not."
            )
        classes = {label: k for k, label in enumerate(ordered({label for _, _, label, _ in places}))}
        parts = {part for *_, part in places}
        rows = [
            Row(file, domain, classes[label], part if len(parts) > 1 else "", digest)
            for file, (_, domain, label, part), digest in zip(
                pictures, places, hashes(container, pictures, progress), strict=True
            )
        ]
        return Manifest(name, path, container.kind, tuple(classes), _sorted(rows), tuple(container.left_out))


def _place(root: Path, file: str) -> tuple[str, str, str, str]:
    """What lies above the domain, the domain, the class, and the part."""
    *folders, label = file.split("/")[:-1] or [""]
    part = next((PARTS[folder.lower()] for folder in folders if folder.lower() in PARTS), "")
    folders = [folder for folder in folders if folder.lower() not in PARTS]
    if not folders:
        raise DataError(f"{root}: found {file!r}, expected all pictures as domain/class/image; move or remove it.")
    return "/".join(folders[:-1]), folders[-1], label, part


def find_csv(name: str, path: Path, progress: Progress | None = None) -> Manifest:
    """A table with the columns path, label, domain and perhaps split: CSV (comma, semicolon or tab) or Parquet.

    Paths are below the table's folder. Domains and classes are in alphabetical order, numbers by their value.
    """
    path = existing(path)
    table, files = listed(path)
    classes = {label: k for k, label in enumerate(ordered({row["label"] for row in table}))}
    with open_container(path.parent) as container:
        rows = [
            Row(file, row["domain"], classes[row["label"]], _part(path, row.get("split", "")), digest)
            for row, file, digest in zip(table, files, hashes(container, files, progress), strict=True)
        ]
        return Manifest(name, path.parent, container.kind, tuple(classes), _sorted(rows))


def listed(path: Path, needed: Sequence[str] = NEEDED) -> tuple[list[Mapping[str, str]], list[str]]:
    """The rows of a table of pictures, each with what is needed, and the files below the table's folder."""
    table = list((_parquet if path.suffix.lower() == ".parquet" else _csv)(path, needed))
    files = [_file(path, row["path"]) for row in table]
    _check(path, files)
    return table, files


def _sorted(rows: list[Row]) -> tuple[Row, ...]:
    return in_order(rows, ordered({row.domain for row in rows}))


def _csv(path: Path, needed: Sequence[str]) -> Iterable[Mapping[str, str]]:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: found text that is not UTF-8 ({error.reason}); save the table as UTF-8.") from error
    head, *lines = text.splitlines() or [""]
    comma = max(",;\t", key=head.count)
    columns = [column.strip().lower() for column in next(csv.reader([head], delimiter=comma), [])]
    _columns(path, columns, needed)
    for number, cells in enumerate(csv.reader(lines, delimiter=comma), 2):
        if len(cells) not in (0, len(columns)):
            raise DataError(f"{path}, row {number}: found {len(cells)} cells, expected {len(columns)}; mend the row.")
        if cells:
            yield {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}


def _parquet(path: Path, needed: Sequence[str]) -> Iterable[Mapping[str, str]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path}: Parquet needs pyarrow, which is not installed; install it, or save the table as CSV.")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table = parquet.read_table(path)
    columns = [column.strip().lower() for column in table.column_names]
    _columns(path, columns, needed)
    for row in table.to_pylist():
        yield {column: "" if cell is None else str(cell) for column, cell in zip(columns, row.values(), strict=True)}


def _columns(path: Path, columns: list[str], needed: Sequence[str]) -> None:
    if missing := [column for column in needed if column not in columns]:
        expected = ", ".join(needed) + " and perhaps split" * (len(needed) > 1)
        raise DataError(
            f"{path}: found the columns {some(columns) or 'none'}, expected {expected} in its first row; "
            f"add {' and '.join(missing)}."
        )


def _file(table: Path, text: str) -> str:
    """A cell as a path below the table's folder."""
    file = Path(text.replace("\\", "/"))
    if file.is_absolute() and file.is_relative_to(table.parent):
        file = file.relative_to(table.parent)
    if file.is_absolute() or ".." in file.parts or not file.parts:
        raise DataError(f"{table}: found the path {text!r}, expected one below the table's folder; move the table.")
    return file.as_posix()


def _check(table: Path, files: list[str]) -> None:
    if not files:
        raise DataError(f"{table}: found no rows, expected one for each picture; fill the table.")
    if missing := [file for file in files if not (table.parent / file).is_file()]:
        raise DataError(
            f"{table}: found no file at {len(missing)} of {len(files)} paths, the first {missing[0]!r} below "
            f"{table.parent}; correct the paths or move the table."
        )
    if len({*files}) < len(files):
        twice = next(file for k, file in enumerate(files) if file in files[:k])
        raise DataError(f"{table}: found {twice!r} twice, expected one row for each picture; remove one of them.")


def _part(table: Path, text: str) -> str:
    if text and text.lower() not in PARTS:
        raise DataError(f"{table}: found the split {text!r}, expected train, val, test or nothing; correct it.")
    return PARTS.get(text.lower(), "")
