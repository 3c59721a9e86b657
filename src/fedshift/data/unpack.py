"""Unpack an archive so that nothing leaves the folder, and so that the folder is there whole or not at all."""

import bz2
import errno
import fcntl
import glob
import gzip
import io
import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import unicodedata
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from ..core.errors import DataError

Progress = Callable[[int, int], None]  # done and total, 0 where the total is not known

CHUNK = 1 << 18
MARGIN = 100_000_000  # bytes that stay free on the disk
RATIO, FLOOR = 100, 100_000_000  # an archive may unpack to FLOOR + RATIO * its size; pictures hardly shrink
ENTRY = 1024  # what an empty file counts, so that millions of them count as a bomb too
HEADER = 1 << 24  # the longest header of a tar that is read into memory
UNREADABLE = {b"Rar!": "a RAR archive", b"7z\xbc\xaf": "a 7z archive"}
SQUEEZED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open
}  # fmt: skip
DAMAGE = (
    OSError, EOFError, ValueError, RecursionError, NotImplementedError,
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
)  # fmt: skip


class _Refused(Exception):
    """What was found in the archive and what to do, as the tail of a sentence."""


class _Member(NamedTuple):
    """A file, or a link to another member, or neither: a folder."""

    name: str
    stream: IO[bytes] | None = None
    link: str | None = None


def unpack(archive: Path, into: Path, *, limit: int | None = None, progress: Progress | None = None) -> list[Path]:
    """Unpack a zip or a tar (plain, gz, bz2, xz; told by content) into a new folder; the files, sorted.

    A link to a file of the archive becomes a copy of it; all other links, devices and names that lead out are refused.
    `limit` is how many bytes may come out, each entry counting some more; by default a multiple of the archive's size.
    `progress` is called with the archive's bytes read so far and in all.
    """
    if into.exists():
        raise DataError(f"{into}: found something there already, expected a new folder; remove it or give another.")
    aside = into.with_name(f".{into.name}.{uuid.uuid4().hex}")
    lock = -1
    try:
        size = archive.stat().st_size
        _sweep(into)
        aside.mkdir(parents=True)
        lock = os.open(aside, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        folds = aside.with_name(aside.name.swapcase()).exists()
        names = _Unpacking(aside, FLOOR + RATIO * size if limit is None else limit, folds).all(archive, progress)
        if hasattr(os, "sync"):
            os.sync()  # one flush for all files, before the name that says they are whole
        aside.rename(into)
    except _Refused as refusal:
        raise DataError(f"{archive}: {refusal}.") from None
    except DAMAGE as error:
        raise DataError(f"{archive}: {_reason(error, into)}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
    return [into / name for name in sorted(names)]


def _sweep(into: Path) -> None:
    """Remove what a killed process left of the same folder; one that is at work holds its own locked."""
    for left in into.parent.glob(f".{glob.escape(into.name)}.{'[0-9a-f]' * 32}"):
        held = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(held)


def _reason(error: BaseException, into: Path) -> str:
    if isinstance(error, OSError) and error.errno:  # from the system; archive readers set no number
        return f"cannot be unpacked into {into} ({error.strerror}); check both places and their permissions"
    return f"found a damaged archive ({error or 'it ends too early'}), expected a whole one; get it again"


@dataclass
class _Unpacking:
    """One archive on its way into a folder that nobody else knows."""

    folder: Path
    limit: int  # bytes that may come out
    folds: bool  # the disk cannot tell names apart that differ in case or in how accents are written
    spent: int = 0
    tick: Callable[[], None] = lambda: None
    names: dict[str, str] = field(default_factory=dict)  # of files and folders, by how the disk tells them apart
    files: set[str] = field(default_factory=set)  # which of them are files or links

    def all(self, archive: Path, progress: Progress | None) -> set[str]:
        """Place every member; the names of the files."""
        size, links = archive.stat().st_size, dict[str, str]()
        room(self.folder, size)
        with archive.open("rb") as raw:
            if progress:
                self.tick = lambda: progress(raw.tell(), size)
            for member in self._members(raw):
                name = self._claim(member)
                if member.link is not None:
                    links[name] = _inside(posixpath.normpath(member.link))
                elif member.stream is not None:
                    self._write(name, member.stream)
            self._copy(links)
        if not self.files:
            raise _Refused("found no file in it, expected an archive with the data; get it again")
        return self.files

    def _members(self, raw: IO[bytes]) -> Iterator[_Member]:
        head = raw.read(8)
        raw.seek(0)
        for magic, kind in UNREADABLE.items():
            if head.startswith(magic):
                raise _Refused(f"found {kind}, expected zip or tar; unpack it by hand and import the folder")
        if head.startswith((b"PK\3\4", b"PK\5\6")):
            yield from _zip(raw)
            return
        stream = next((opened(raw) for magic, opened in SQUEEZED.items() if head.startswith(magic)), raw)
        yield from _tar(stream)
        while chunk := stream.read(CHUNK):  # to the end, where its checksum is
            self._spend(len(chunk))

    def _claim(self, member: _Member) -> str:
        """Make the folders of a member; its name below the folder, which nothing else has."""
        name, is_folder = _inside(member.name), member.stream is None and member.link is None
        for part in (name, *map(str, PurePosixPath(name).parents)):
            key = unicodedata.normalize("NFC", part).casefold() if self.folds else part
            if (other := self.names.setdefault(key, part)) != part:
                raise _Refused(f"found {part!r} beside {other!r}, which this disk cannot tell apart; use another disk")
            if part in self.files:
                raise _Refused(f"found {name!r} after a file or link {part!r}, expected each name once; unpack by hand")
        self._spend(ENTRY)
        target = self.folder / name
        if is_folder:
            target.mkdir(parents=True, exist_ok=True)
            return name
        if target.exists():
            raise _Refused(f"found a file {name!r} and a folder of that name, expected one of them; unpack by hand")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.files.add(name)
        return name

    def _write(self, name: str, stream: IO[bytes]) -> None:
        """A plain file with the modes of a new one, whatever the archive says."""
        with open(self.folder / name, "xb", buffering=0) as file:
            while chunk := stream.read(CHUNK):
                self._spend(len(chunk))
                room(self.folder, len(chunk))
                written(file, chunk)
                self.tick()

    def _spend(self, size: int) -> None:
        """Count what came out of the archive; headers may lie."""
        self.spent += size
        if self.spent > self.limit:
            raise _Refused(
                f"unpacks to more than the {self.limit / 1e6:,.1f} MB allowed for it, as a decompression bomb does; "
                "if you trust it, unpack it by hand and import the folder"
            )

    def _copy(self, links: dict[str, str]) -> None:
        """Links to files of the archive become copies; links to links follow once these are there."""
        followers: dict[str, list[str]] = {}
        for name, target in links.items():
            followers.setdefault(target, []).append(name)
        there = list(self.files - links.keys())
        for target in there:
            for name in followers.pop(target, ()):
                with open(self.folder / target, "rb") as stream:
                    self._write(name, stream)
                there.append(name)
        for target, names in followers.items():
            raise _Refused(f"found a link {names[0]!r} to {target!r}, no file of the archive; unpack it by hand")


def _inside(name: str) -> str:
    """The name as a plain relative path; refused where it could lead out of the folder on any system."""
    path = PurePosixPath(_text(name))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:|.*[\\\0]", name, re.DOTALL):
        raise _Refused(f"found the name {name!r}, which leads out of the folder; do not trust this archive")
    return str(path)


def _text(name: str) -> str:
    """A name that is not UTF-8, byte by byte, so that it can be printed and stored."""
    raw = name.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _zip(raw: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                raise _Refused(
                    f"found {info.filename!r} encrypted; unpack it by hand with its password and import that"
                )
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                raise _odd(info.filename)
            if info.is_dir():
                yield _Member(info.filename)
                continue
            with archive.open(info) as stream:
                if kind == stat.S_IFLNK:
                    yield _Member(info.filename, link=_beside(info.filename, stream.read(4096).decode()))
                else:
                    yield _Member(info.filename, stream)


def _tar(stream: IO[bytes]) -> Iterator[_Member]:
    blocks = _Blocks(stream)
    try:
        archive = tarfile.TarFile(fileobj=blocks)  # type: ignore[arg-type]  # read, seek and tell is all it needs
    except tarfile.ReadError:
        raise _Refused("found neither a zip nor a tar archive; import the folder or file itself") from None
    with archive:
        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # else all headers stay in memory
            if info.isdir():
                yield _Member(info.name)
            elif info.isreg():
                yield _Member(info.name, archive.extractfile(info))
            elif info.issym():
                yield _Member(info.name, link=_beside(info.name, info.linkname))
            elif info.islnk():
                yield _Member(info.name, link=info.linkname)
            else:
                raise _odd(info.name)
    if blocks.last != bytes(512):  # tarfile takes an end between two members, or a bad header, for the end
        raise tarfile.ReadError("it has no end mark, so that members may be missing")


class _Blocks:
    """What tarfile reads from: no header takes much memory, and the last block read is known."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.seek, self.tell = stream.seek, stream.tell
        self.stream, self.last = stream, b""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= HEADER:
            raise _Refused(f"found a header of {size} bytes, expected at most {HEADER}; do not trust this archive")
        self.last = self.stream.read(size)
        return self.last


def _beside(name: str, target: str) -> str:
    """Where a symbolic link of that name points to, from the archive's root."""
    return posixpath.join(posixpath.dirname(name), target)


def _odd(name: str) -> _Refused:
    return _Refused(f"found {name!r}, which is neither a file, a folder nor a link; do not trust this archive")


def room(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if free < needed + MARGIN:
        raise DataError(
            f"{folder}: found {free / 1e6:,.0f} MB free on its disk, expected {(needed + MARGIN) / 1e6:,.0f} MB; "
            "free some space, or use a folder on another disk."
        )


def written(file: io.FileIO, data: bytes) -> None:
    """Write all of it, or say that the disk is full."""
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise disk_error(Path(str(file.name)), error) from error


def disk_error(path: Path, error: OSError) -> DataError:
    """What went wrong with a file or folder, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{path}: the disk is full; free some space and try again.")
    return DataError(f"{path}: cannot be written ({error.strerror or error}); check its permissions and try again.")
