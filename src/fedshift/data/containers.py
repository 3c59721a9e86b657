"""Folders and archives of pictures behind one interface; nothing is unpacked, any picture can be read at once.

A container tells where each picture's bytes lie, so that other processes read them without looking through the archive.
Which kind it is, its content decides, not its name. Names that lead out of an archive make it refused; links are not
followed out of a folder nor round in a loop. What is neither file nor folder is listed with its reason in `left_out`.
"""

import bz2
import gzip
import lzma
import os
import posixpath
import stat
import tempfile
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError
from ._worker import DEFLATED, Lost, Span, fetch
from .decode import Unreadable
from .manifest import Kind
from .places import cache_home
from .unpack import FLOOR, HEADER, RATIO, disk_error, room

BLOCK = 512  # of a tar
FILES, EXTRA = (b"0", b"\0", b"7"), (b"L", b"K", b"x")  # kinds of members
ODD = {b"1": "a link", b"2": "a link", b"S": "a sparse file"}
COPY = 1 << 20
SQUEEZED: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
DAMAGE = (ValueError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


class Container(ABC):
    """Pictures by name: '/'-separated, and the same on every file system."""

    kind: Kind
    inherit: tuple[int, ...] = ()  # descriptors that another process needs to read the spans

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out: list[tuple[str, str]] = []
        self._spans: dict[str, Span] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Let go of open files."""

    def names(self) -> list[str]:
        """Every file (in an npz: every picture), sorted."""
        return sorted(self._index())

    def span(self, name: str) -> Span:
        """Where its bytes are."""
        try:
            return self._index()[name]
        except KeyError:
            raise DataError(
                f"{self.path}: found no {name!r} in it, expected what was there before; import the data set again."
            ) from None

    def read(self, name: str) -> bytes:
        """The bytes of a file, or of the pixels of a picture in an npz."""
        try:
            return fetch(self.span(name))
        except (Lost, Unreadable) as reason:
            raise DataError(f"{self.path}: {name!r}: {reason}; get it again, or remove it.") from None

    def array(self, name: str) -> NDArray[np.uint8] | None:
        """A picture of an npz as [height, width] or [height, width, 3]; None for a file."""
        return None

    def _index(self) -> dict[str, Span]:
        if self._spans is None:
            self._spans = dict(self._scan())
        return self._spans

    @abstractmethod
    def _scan(self) -> Iterator[tuple[str, Span]]:
        """Every file with its place, in any order."""


def open_container(path: Path, aside: Path | None = None) -> Container:
    """A folder, zip, tar (also gz, bz2 or xz) or npz; what must be decompressed goes to a nameless file in `aside`."""
    path = Path(path)
    try:
        if path.is_dir():
            return Folder(path)
        with open(path, "rb") as file:
            head = file.read(BLOCK)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}); check the path and its permissions.") from None
    aside = aside or cache_home()
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _zip_or_npz(path, aside)
    squeezed = next((opened for magic, opened in SQUEEZED.items() if head.startswith(magic)), None)
    if squeezed or _is_header(head):
        return Tar(path, squeezed, aside)
    raise DataError(f"{path}: found neither a folder nor a zip, tar or npz; unpack it by hand and give the folder.")


class Folder(Container):
    """Files below a folder."""

    kind: Kind = "folder"

    def span(self, name: str) -> Span:
        """Where its bytes are; nothing is listed for it."""
        return Span(os.path.join(self.path, _inside(name, self.path)))

    def _scan(self) -> Iterator[tuple[str, Span]]:
        self.left_out.clear()
        try:
            os.listdir(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be opened ({error.strerror}); check its permissions.") from None
        yield from self._below("", os.path.realpath(self.path))

    def _below(self, prefix: str, root: str) -> Iterator[tuple[str, Span]]:
        try:
            with os.scandir(os.path.join(self.path, prefix)) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.left_out.append((prefix.rstrip("/"), f"cannot be opened ({error.strerror})"))
            return
        for entry in found:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(name + "/", root)
            elif reason := _odd(entry, root):
                self.left_out.append((name, reason))
            else:
                yield name, Span(entry.path)


def _odd(entry: "os.DirEntry[str]", root: str) -> str:
    """Why something in a folder is not read, or nothing for a plain file."""
    if entry.is_symlink():
        real = os.path.realpath(entry.path)
        if os.path.commonpath([real, root]) != root:
            return "a link that leads out of the folder"
        if os.path.isdir(real):
            return "a link to a folder, whose files are read where they lie"
        if not os.path.exists(real):
            return "a link to nothing, or to itself"
    return "" if entry.is_file() else "neither a file nor a folder"


class _Archive(Container):
    """A file that stays open, and whatever had to be decompressed from it."""

    def __init__(self, path: Path, aside: Path) -> None:
        super().__init__(path)
        self.aside = aside
        self._file = open(path, "rb")  # noqa: SIM115  # until close()
        self._unpacked: IO[bytes] | None = None
        self.inherit = (self._file.fileno(),)

    def close(self) -> None:
        """Close the archive; what was decompressed has no name and is gone with this."""
        self._file.close()
        if self._unpacked:
            self._unpacked.close()

    def _temporary(self) -> IO[bytes]:
        self.aside.mkdir(parents=True, exist_ok=True)
        self._unpacked = tempfile.TemporaryFile(dir=self.aside)  # noqa: SIM115  # until close()
        self.inherit = (*self.inherit, self._unpacked.fileno())
        return self._unpacked

    def _copy(self, stream: IO[bytes], into: IO[bytes]) -> None:
        """Decompress to the disk; stop at a decompression bomb, and before the disk is full."""
        limit, done = FLOOR + RATIO * os.fstat(self._file.fileno()).st_size, 0
        while chunk := stream.read(COPY):
            done += len(chunk)
            if done > limit:
                raise DataError(
                    f"{self.path}: unpacks to more than {limit / 1e6:,.0f} MB, as a decompression bomb does; "
                    "if you trust it, unpack it by hand and give the folder."
                )
            if done % (64 * COPY) < COPY:
                room(self.aside, len(chunk))
            try:
                into.write(chunk)
                into.flush()
            except OSError as error:
                raise disk_error(self.aside, error) from error

    def _damaged(self, reason: object) -> DataError:
        return DataError(f"{self.path}: a damaged archive ({reason}); get it again.")


class Tar(_Archive):
    """A tar; its headers are read once, in a tenth of the time that `tarfile` takes."""

    kind: Kind = "tar"

    def __init__(self, path: Path, squeezed: Callable[[Any], Any] | None, aside: Path) -> None:
        super().__init__(path, aside)
        self._source = self._file.fileno()
        if squeezed:
            try:
                self._source = self._decompressed(squeezed)
            except BaseException:
                self.close()
                raise

    def _decompressed(self, squeezed: Callable[[Any], Any]) -> int:
        target = self._temporary()
        try:
            with squeezed(self._file) as stream:
                self._copy(stream, target)
        except DAMAGE as error:
            raise self._damaged(error) from None
        if not _is_header(os.pread(target.fileno(), BLOCK, 0)):
            raise DataError(f"{self.path}: found no tar in it; unpack it by hand and give the folder.")
        return target.fileno()

    def _scan(self) -> Iterator[tuple[str, Span]]:
        found: dict[str, Span] = {}  # the last of a name wins, as when it is unpacked
        self.left_out.clear()
        try:
            for member in self._members():
                self._place(member, found)
        except (ValueError, IndexError) as error:
            raise self._damaged(error) from None
        return iter(found.items())

    def _place(self, member: "_Member", found: dict[str, Span]) -> None:
        name = _inside(member.name, self.path)
        link = found.get(posixpath.normpath(member.link)) if member.kind == b"1" else None
        if member.kind in FILES or link:
            found[name] = link or Span(self._source, member.offset, member.size)
        elif member.kind != b"5":
            found.pop(name, None)
            self.left_out.append((name, ODD.get(member.kind, "neither a file nor a folder")))

    def _members(self) -> "Iterator[_Member]":
        """Headers one after the other; long names come in members of their own before what they belong to."""
        at, end, more = 0, os.fstat(self._source).st_size, dict[str, str]()
        while (head := os.pread(self._source, BLOCK, at)) != bytes(BLOCK):
            if not _is_header(head):
                raise ValueError(f"no header at byte {at:,}" if head else "it has no end mark: members may be missing")
            kind, size, start = head[156:157], int(more.get("size", _number(head[124:136]))), at + BLOCK
            at = start + -(-size // BLOCK) * BLOCK
            if not 0 <= size <= end - start:
                raise ValueError(f"it ends within {_text(head[:100])!r}")
            if kind in EXTRA:
                if size > HEADER:
                    raise ValueError(f"a header of {size:,} bytes")
                more |= _long(kind, os.pread(self._source, size, start))
            elif kind != b"g":
                name = more.get("path") or _name(head)
                kind = b"5" if name.endswith("/") and kind in FILES else b"S" if "GNU.sparse.major" in more else kind
                yield _Member(name, kind, start, size, more.get("linkpath") or _text(head[157:257]))
                more = {}


class _Member(NamedTuple):
    name: str
    kind: bytes  # tar's letter: 0 file, 1 hard link, 2 symbolic link, 5 folder, ...
    offset: int
    size: int
    link: str


def _is_header(head: bytes) -> bool:
    """By its checksum, which counts its own eight bytes as blanks; most bytes are zeros, which need no adding."""
    try:
        total = sum(head.translate(None, b"\0")) - sum(head[148:156]) + 8 * 32
        return len(head) == BLOCK and total == _number(head[148:156])
    except ValueError:
        return False


def _number(field: bytes) -> int:
    """Octal digits, or from 8 GiB on the bytes themselves."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


def _name(head: bytes) -> str:
    prefix = _text(head[345:500]) if head[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(head[:100])}" if prefix else _text(head[:100])


def _long(kind: bytes, data: bytes) -> dict[str, str]:
    """What GNU's (L, K) and POSIX's (x) extra members say of the next one."""
    if kind != b"x":
        return {"path" if kind == b"L" else "linkpath": _text(data)}
    said = {}
    while data:
        length = int(data.split(b" ", 1)[0])
        key, _, value = data[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        said[key.decode()] = os.fsdecode(value)
        data = data[max(length, 1) :]
    return said


def _inside(name: str, path: Path) -> str:
    """The name without './'; refused where it leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or (not parts and name.strip("./")):
        raise DataError(f"{path}: found the name {name!r}, which leads out of it; do not trust it.")
    return "/".join(parts)


def _zip_or_npz(path: Path, aside: Path) -> Container:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except DAMAGE as error:
        raise DataError(f"{path}: a damaged archive ({error}); get it again.") from None
    arrays = bool(members) and all(member.filename.endswith(".npy") for member in members)
    return Npz(path, aside, members) if arrays else Zip(path, aside, members)


class Zip(_Archive):
    """A zip whose members are stored or deflated, as nearly all are."""

    kind: Kind = "zip"

    def __init__(self, path: Path, aside: Path, members: list[zipfile.ZipInfo]) -> None:
        super().__init__(path, aside)
        self._infos = members

    def _scan(self) -> Iterator[tuple[str, Span]]:
        self.left_out.clear()
        for info in self._infos:
            name = _inside(info.filename.replace("\\", "/"), self.path)
            if info.is_dir():
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                self.left_out.append((name, "a link" if kind == stat.S_IFLNK else "neither a file nor a folder"))
            elif info.flag_bits & 1:
                self.left_out.append((name, "encrypted"))
            elif info.compress_type not in (zipfile.ZIP_STORED, DEFLATED):
                self.left_out.append((name, f"compressed by method {info.compress_type}, expected 0 or {DEFLATED}"))
            else:
                zipped = (info.compress_type, info.file_size, info.CRC)
                yield name, Span(self.inherit[0], info.header_offset, info.compress_size, (), zipped)


class Npz(_Archive):
    """Arrays of uint8 pictures: [n, height, width], with 1 or 3 channels last or first; picture 17 is `KEY/17`.

    An array that is compressed is decompressed once, to the disk, however many pictures and processes read from it.
    """

    kind: Kind = "npz"

    def __init__(self, path: Path, aside: Path, members: list[zipfile.ZipInfo]) -> None:
        super().__init__(path, aside)
        self._infos = {info.filename[: -len(".npy")]: info for info in members}
        self._arrays: dict[str, Span] = {}  # of pictures, by key: the whole array
        self._lengths: dict[str, int] = {}
        self._looking = threading.Lock()
        self._temporary()

    def names(self) -> list[str]:
        """Every picture, by key and then by number."""
        keys = filter(self._is_pictures, sorted(self._infos))
        return [f"{key}/{i}" for key in keys for i in range(self._lengths[key])]

    def span(self, name: str) -> Span:
        """Where a picture's pixels are."""
        key, _, number = name.rpartition("/")
        if key not in self._infos or not self._is_pictures(key) or not number.isdecimal():
            return super().span(name)
        whole, i = self._arrays[key], int(number)
        if i >= self._lengths[key]:
            return super().span(name)
        return whole._replace(offset=whole.offset + i * whole.size)

    def array(self, name: str) -> NDArray[np.uint8] | None:
        """The picture as [height, width] or [height, width, 3]."""
        shape = self.span(name).shape
        picture = np.frombuffer(self.read(name), np.uint8).reshape(shape)
        if len(shape) == 3 and shape[2] not in (1, 3):
            picture = picture.transpose(1, 2, 0)
        return picture[..., 0] if picture.shape[2:] == (1,) else picture

    def _scan(self) -> Iterator[tuple[str, Span]]:
        return iter(())

    def _is_pictures(self, key: str) -> bool:
        """Look at an array's header, once; an array of pictures is then ready to be read."""
        with self._looking:  # a second thread waits until the array is there
            if key not in self._lengths:
                self._lengths[key] = 0
                try:
                    with zipfile.ZipFile(self._file) as archive, archive.open(self._infos[key]) as stream:
                        self._find(key, stream)
                except DAMAGE as error:
                    raise self._damaged(f"{key}: {error}") from None
            return key in self._arrays

    def _find(self, key: str, stream: IO[bytes]) -> None:
        info, version = self._infos[key], np.lib.format.read_magic(stream)
        if version > (2, 0):  # only names of fields need more
            return
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        (*shape,), fortran, dtype = read(stream)
        if dtype != np.uint8 or not _pictures(shape):
            return
        if fortran:
            raise ValueError("its pixels lie in Fortran's order, expected C's")
        head, size = stream.tell(), int(np.prod(shape[1:]))
        if head + shape[0] * size != info.file_size:
            raise ValueError(f"{info.file_size:,} bytes are not {tuple(shape)}")
        if info.compress_type == zipfile.ZIP_STORED:
            local = os.pread(self.inherit[0], 30, info.header_offset)
            names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
            file, offset = self.inherit[0], info.header_offset + 30 + names + head
        else:
            assert self._unpacked
            file, offset = self.inherit[1], self._unpacked.seek(0, os.SEEK_END)
            self._copy(stream, self._unpacked)
        self._lengths[key] = shape[0]
        self._arrays[key] = Span(file, offset, size, tuple(shape[1:]))


def _pictures(shape: list[int]) -> bool:
    """[n, height, width], or four numbers of which the last or the second is 1 or 3."""
    return len(shape) == 3 or (len(shape) == 4 and (shape[3] in (1, 3) or shape[1] in (1, 3)))
