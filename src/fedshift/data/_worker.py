"""Decode some pictures into a store: what its helper processes run.

Nothing here may import torch or numpy, so that a helper starts in a few hundredths of a second.
"""

import errno
import hashlib
import json
import os
import signal
import sys
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ..core.memory import keep_memory
from .decode import Fit, Unreadable, planes

HEAD = 128  # bytes before the pixels in a store's .npy file
LARGEST = 1 << 29  # bytes; no picture that can be decoded in reasonable memory is a larger file
DEFLATED = 8
TOGETHER = 1 << 19  # bytes of pixels that are written by one call: half as dear as by ten, and still in the cache


class Span(NamedTuple):
    """Where a picture's bytes lie, for a process that has not looked through the archive."""

    file: str | int  # a path, or the descriptor of an open archive
    offset: int = 0
    size: int = -1  # of the bytes there; -1: the whole file
    shape: tuple[int, ...] = ()  # of plain pixels: (height, width), with channels last or first
    zipped: tuple[int, ...] = ()  # a member of a zip: method, size and CRC-32 when unpacked; the offset is its header's


class Task(NamedTuple):
    """Pictures for consecutive places in a store, each with its SHA-256 (or nothing)."""

    start: int
    pictures: Sequence[tuple[Span, str]]


class Piece(NamedTuple):
    """What became of a task; the pixels are in the store, one after the other from `start`, without gaps."""

    start: int
    content: list[int]  # the 64-bit hash of each decoded picture's pixels
    skipped: list[tuple[int, str]]  # place and reason of the others
    notes: dict[str, int]  # how many pictures were greyscale, turned, ...
    lost: tuple[int, str] | None = None  # the place of a picture that is not what was imported, -1 for the store itself


class Lost(Exception):
    """A picture that is not there as it was imported; in a few words."""


def digest(planes: Sequence[bytes | memoryview]) -> int:
    """64 bits that pictures are known by, as an int64: of the SHA-256 of the CRC-32 of each half of each plane.

    A CRC takes a quarter of the time of a SHA-256. Pictures that differ in two halves or more, as different ones do,
    are told apart by 64 bits; even one half would leave 32, and any three bits of it.
    """
    parts = (part for plane in planes for part in (plane[: len(plane) // 2], plane[len(plane) // 2 :]))
    sums = b"".join([zlib.crc32(part).to_bytes(4, "little") for part in parts])
    return int.from_bytes(hashlib.sha256(sums).digest()[:8], "little", signed=True)


def fetch(span: Span) -> bytes:
    """The bytes of one picture."""
    if isinstance(span.file, str):
        with open(span.file, "rb", buffering=0) as file:
            return _exactly(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    if span.zipped:
        return _unzipped(span.file, span)
    return _exactly(span.file, span.size, span.offset)


def _exactly(file: int, size: int, offset: int) -> bytes:
    data = os.pread(file, _allowed(size), offset)
    if len(data) < size:
        raise Lost("is cut short")
    return data


def _allowed(size: int) -> int:
    if size > LARGEST:
        raise Unreadable(f"{size:,} bytes are more than any picture has")
    return size


def _unzipped(file: int, span: Span) -> bytes:
    method, size, crc = span.zipped
    head = _exactly(file, 30, span.offset)
    begin = span.offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    data = _exactly(file, span.size, begin)
    try:
        data = zlib.decompressobj(-15).decompress(data, _allowed(size) + 1) if method == DEFLATED else data
    except zlib.error:
        raise Lost("is damaged in its archive") from None
    if len(data) != size or zlib.crc32(data) != crc:
        raise Lost("is damaged in its archive")
    return data


def sha256(span: Span, data: bytes) -> str:
    """As manifests hold it; pixels of another shape are another picture."""
    return hashlib.sha256(repr(span.shape).encode() + data if span.shape else data).hexdigest()


def work(store: int, size: int, fit: Fit, task: Task) -> Piece:
    """Decode the task's pictures, and write them a few at a time, while the processor's cache still has them."""
    piece, bands, at = Piece(task.start, [], [], {}), list[bytes](), HEAD + task.start * 3 * size * size
    for place, (span, expected) in enumerate(task.pictures, task.start):
        try:
            data = fetch(span)
            if expected and sha256(span, data) != expected:
                raise Lost("has changed since it was imported")
            picture = planes(data, size, fit, span.shape)
        except Unreadable as reason:
            piece.skipped.append((place, str(reason)))
        except Lost as reason:
            return piece._replace(lost=(place, str(reason)))
        except OSError as error:
            return piece._replace(lost=(place, f"cannot be read ({error.strerror or error})"))
        else:
            piece.content.append(digest(picture.bands))
            bands += picture.bands
            for note in picture.notes:
                piece.notes[note] = piece.notes.get(note, 0) + 1
        if len(bands) * size * size >= TOGETHER or place == task.start + len(task.pictures) - 1:
            try:
                at += _written(store, bands, at)
            except OSError as error:
                return piece._replace(lost=(-1, f"cannot be written ({error.strerror or error})"))
            bands.clear()
    return piece


def _written(store: int, bands: Sequence[bytes], at: int) -> int:
    """How many bytes that were: all."""
    length = sum(map(len, bands))
    if bands and os.pwritev(store, bands, at) < length:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return length


def main() -> None:
    """Tasks come in and pieces go out as lines of JSON, until there are no more or nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the process that asked who decides
    keep_memory()  # else each picture's goes back to the system and comes again as zeroed pages: a tenth of the time
    path, size, fit = json.loads(sys.stdin.readline())
    store = os.open(path, os.O_RDWR)
    for line in sys.stdin:
        start, pictures = json.loads(line)
        spans = [(Span(f, o, s, tuple(shape), tuple(zipped)), sha) for (f, o, s, shape, zipped), sha in pictures]
        try:
            print(json.dumps(work(store, size, fit, Task(start, spans))), flush=True)
        except BrokenPipeError:
            os._exit(1)
