"""Find a data set of the table among the files a user has, by what is there and not by what it is called."""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..core.errors import DataError
from .arrays import blocks, find_npz
from .containers import Container, open_container
from .dataset import Source
from .looking import PARTS, existing, hashes, is_picture, some, visible
from .manifest import Manifest, Row
from .own import find_csv, find_folder, find_own
from .places import data_home
from .unpack import Progress, unpack

ARCHIVES = (".npz", ".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
WHOLE = "full"  # a folder that repeats the parts beside it

Key = tuple[int, int, str]  # domain, class and file name: what a list tells a picture by


def find(source: Source, path: Path, progress: Progress | None = None) -> Manifest:
    """The data set in a folder, zip, tar or .npz file, or in a folder that holds the authors' archives.

    Its pictures are those in a folder named like a class below one named like a domain, whatever lies above, between
    and below. Where a folder holds them in several archives, these are unpacked below `data_home()`. `progress` is
    called with the pictures hashed so far and in all.
    """
    if source.load is not None:
        raise DataError(f"data set {source.name!r} is made on the machine, not imported; just use it.")
    path, words, lists = existing(path), _Words(source), dict[Key, str]()
    try:
        return _look(words, path, lists, progress)
    except _Missing:
        inner = _inner(words, path) if path.is_dir() else None
        if inner is None:
            raise
    return _look(words, inner, lists, progress)


def _look(words: "_Words", path: Path, lists: dict[Key, str], progress: Progress | None) -> Manifest:
    """`lists` grows by what is found here: the archives' pictures may be divided by lists beside the archives."""
    with open_container(path) as container:
        if container.kind == "npz":
            places = _in_arrays(words, path, container)
        else:
            names = visible(container)
            lists.update(_lists(words, container, names))
            places = words.choose(path, names, container.left_out)
        divided = words.source.divided
        places = [p._replace(part=(p.part or lists.get(p.key, "")) if divided else "") for p in places]
        if words.source.listed:
            places = _listed(places)
        places.sort(key=lambda p: (p.domain, p.label, p.path))
        rows = tuple(
            Row(p.path, words.source.domains[p.domain], p.label, p.part, digest)
            for p, digest in zip(places, hashes(container, [p.path for p in places], progress), strict=True)
        )
        left_out = tuple(container.left_out)
        return Manifest(words.source.name, path, container.kind, words.source.classes, rows, left_out)


def _in_arrays(words: "_Words", path: Path, container: Container) -> "list[_Place]":
    found, named = blocks(path, container)
    numbered = () if named else words.source.classes
    places = [
        _Place(f"{block.key}/{i}", "", d, c, part)
        for block in found
        for i, (domain, label, part) in enumerate(block.pictures())
        if (d := _index(path, words.domains, domain, words.source.domains)) is not None
        if (c := _index(path, words.classes, label, numbered)) is not None
    ]
    if not places:
        raise _Missing(
            f"{path}: looked for {words.source.name}, with the domains {some(words.source.domains)}, and found the "
            f"domains {some(sorted({d for block in found for d in block.domains}))}; give the path of another file."
        )
    words.complete(path, "", places, "")
    return places


def _index(path: Path, words: Mapping[str, int], name: str, numbered: Sequence[str]) -> int | None:
    """A word's index, or None for another word; a number is an index itself, unless it is a word."""
    if (k := words.get(_plain(name))) is not None:
        return k
    if not numbered or not re.fullmatch(r"-?\d{1,9}", name):
        return None
    if not 0 <= int(name) < len(numbered):
        raise DataError(
            f"{path}: found the number {name}, expected 0 to {len(numbered) - 1} for {some(numbered)}; count from 0, "
            "or save their names as class_names and domain_names."
        )
    return int(name)


class _Missing(DataError):
    """The set is not there, or not all of it."""


class _Place(NamedTuple):
    """What the folders above a picture say of it."""

    path: str
    copy: str  # the folders above the domain, which tell two copies of a set apart
    domain: int
    label: int
    part: str

    @property
    def key(self) -> Key:
        """What a list tells it by."""
        return self.domain, self.label, self.path.rpartition("/")[2]


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """A name without what copies disagree on: case, separators, and a number as in 001.back_pack."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = re.sub(r"^\d+[\s._-]+(?=[^\d\s._-])", "", text)
    return re.sub(r"[\W_]+", "", text)


class _Words:
    """How a set's domains and classes may be written, and what paths say in these words."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.domains = self._words(source.domains)
        self.classes = self._words(source.classes)
        self.known = {*self.domains, *PARTS, WHOLE}
        self.folders: dict[str, _Place | None] = {}  # far fewer than pictures

    def _words(self, names: tuple[str, ...]) -> dict[str, int]:
        aliases = self.source.aliases
        return {_plain(word): k for k, name in enumerate(names) for word in (name, *aliases.get(name, ()))}

    def ignore(self, folder: str) -> None:
        """A folder that tells no copies apart."""
        self.known.add(_plain(folder))
        self.folders.clear()

    def place(self, path: str) -> _Place | None:
        """By the deepest folder named like a class and the deepest one above it named like a domain."""
        folder = path.rpartition("/")[0]
        if folder not in self.folders:
            self.folders[folder] = self._place(folder.split("/"))
        place = self.folders[folder]
        return place and _Place(path, *place[1:])

    def _place(self, folders: list[str]) -> _Place | None:
        plain = [_plain(folder) for folder in folders]
        for c in reversed(range(len(plain))):
            for d in reversed(range(c)) if plain[c] in self.classes else ():
                if plain[d] in self.domains:
                    above = "/".join(f for f, p in zip(folders[:d], plain, strict=False) if p not in self.known)
                    part = next((p for p in (*plain[d + 1 : c], *plain[:d][-1:]) if p in PARTS or p == WHOLE), "")
                    return _Place("", above, self.domains[plain[d]], self.classes[plain[c]], PARTS.get(part, part))
        return None

    def choose(self, root: Path, names: list[str], left_out: list[tuple[str, str]]) -> list[_Place]:
        """The pictures of the most complete copy; none of them may be out of reach."""
        lost = [entry for entry in left_out if is_picture(entry[0]) or "opened" in entry[1] or "leads out" in entry[1]]
        hint = f"; {lost[0][0]!r} was left out ({lost[0][1]})" if lost else ""
        for name, reason in lost:
            if self.place(name if is_picture(name) else f"{name}/."):
                raise DataError(f"{root}: {name!r}: {reason}; mend it, or remove it if it does not belong to the set.")
        copies = defaultdict[str, list[_Place]](list)
        for place in filter(None, map(self.place, filter(is_picture, names))):
            copies[place.copy].append(place)
        if not copies:
            raise _Missing(self._nothing(root, names) + hint + ".")
        ranks = {copy: (len({p.domain for p in ps}), len({p.label for p in ps})) for copy, ps in copies.items()}
        first, *more = sorted(copy for copy, rank in ranks.items() if rank == max(ranks.values()))
        self.complete(root, first, copies[first], hint)
        if more:
            raise DataError(
                f"{root}: found {self.source.name} more than once, {_where(first)} and {_where(more[0])}; "
                "give the path of one of them."
            )
        return _once(copies[first])

    def _nothing(self, root: Path, names: list[str]) -> str:
        pictures = [name for name in names if is_picture(name)]
        seen = f"{len(pictures)} pictures, such as {pictures[0]!r}" if pictures else f"{len(names)} files, no picture"
        archives = [*filter(_is_archive, names)]
        todo = f"unpack {archives[0]!r} and import the folder" if archives else "give the path of what holds them"
        return (
            f"{root}: looked for {self.source.name}, folders like its classes ({some(self.source.classes)}) "
            f"below folders like its domains ({some(self.source.domains)}), and found {seen}; {todo}"
        )

    def complete(self, root: Path, copy: str, places: list[_Place], hint: str) -> None:
        """Refuse a set without a domain, or without a class in any; fewer pictures than published are for `verify`."""
        domains, classes = {p.domain for p in places}, {p.label for p in places}
        no_domain = [name for k, name in enumerate(self.source.domains) if k not in domains]
        no_class = [name for k, name in enumerate(self.source.classes) if k not in classes]
        if no_domain or no_class:
            lacks = (("domains", no_domain), ("classes", no_class))
            missing = " and of ".join(f"the {what} {some(names)}" for what, names in lacks if names)
            there = some([self.source.domains[k] for k in sorted(domains)])
            raise _Missing(
                f"{root}: looked for {self.source.name}; the closest, {_where(copy)}, has {len(places)} pictures "
                f"of {there}, but none of {missing}; add what is missing, or give the path of a whole copy{hint}."
            )


def _where(copy: str) -> str:
    return f"in {copy!r}" if copy else "at its top"


def _once(places: list[_Place]) -> list[_Place]:
    """Without folders that repeat the parts beside them; a part that all pictures share says nothing."""
    divided = {p.domain for p in places if p.part not in ("", WHOLE)}
    places = [p for p in places if p.part != WHOLE or p.domain not in divided]
    same = len({p.part for p in places}) == 1
    return [p._replace(part="") if same or p.part == WHOLE else p for p in places]


def _listed(places: list[_Place]) -> list[_Place]:
    """Without what the official lists do not name, in domains that have both."""
    there = {(p.domain, p.part) for p in places}
    return [p for p in places if p.part or not {(p.domain, "train"), (p.domain, "test")} <= there]


def _lists(words: _Words, container: Container, names: list[str]) -> dict[Key, str]:
    """What the authors' lists say: a text file for each part, with a picture's path and label in each line.

    The labels are not used: PACS counts them from 1. A test list may be the whole domain, so train and val come first.
    """
    order = list(dict.fromkeys(PARTS.values()))
    lists = sorted((order.index(part), name) for name in names if (part := _part_of(name)))
    parts: dict[Key, str] = {}
    for k, name in lists if words.source.divided else ():
        for line in container.read(name).decode("utf-8", "replace").splitlines():
            if place := words.place(re.sub(r"\s+\d+\s*$", "", line.replace("\\", "/")).strip()):
                parts.setdefault(place.key, order[k])
    return parts


def _part_of(name: str) -> str:
    """Which part a list is of, by its name; lists for adaptation from a source to a target are not the authors'."""
    file = PurePosixPath(name)
    words = re.split(r"[^a-z]+", file.stem.lower()) if file.suffix.lower() == ".txt" else []
    return "" if {"source", "target"} & {*words} else next((PARTS[word] for word in words if word in PARTS), "")


def _inner(words: _Words, folder: Path) -> Path | None:
    """The one archive of a folder that has pictures of the set, or a folder with what all of them have."""
    useful, damaged = [], None
    with open_container(folder) as container:
        names = visible(container)
    for name in filter(_is_archive, names):
        try:
            if _holds(words, folder / name, _stem(name)):
                useful.append(name)
        except DataError as error:
            damaged = damaged or error
    if damaged and not useful:
        raise damaged
    if len(useful) > 1:
        return _unpacked(words, folder, useful)
    return folder / useful[0] if useful else None


def _holds(words: _Words, archive: Path, stem: str) -> bool:
    with open_container(archive) as container:
        return container.kind == "npz" or any(
            words.place(f"{stem}/{name}") for name in visible(container) if is_picture(name)
        )


def _unpacked(words: _Words, folder: Path, archives: list[str]) -> Path:
    """Each in a folder of its name, which may be that of a domain; made once for these very files."""
    facts = [(name, (folder / name).stat()) for name in archives]
    stamp = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts])
    home = data_home() / "unpacked" / words.source.name / hashlib.sha256(stamp.encode()).hexdigest()[:16]
    for name in archives:
        into = home / _stem(name)
        words.ignore(into.name)
        if not into.exists():
            unpack(folder / name, into)
    return home


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def _stem(archive: str) -> str:
    return re.sub(r"(\.tar)?\.\w+$", "", archive)


__all__ = ["find", "find_csv", "find_folder", "find_npz", "find_own"]
