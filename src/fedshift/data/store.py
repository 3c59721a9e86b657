"""Every picture decoded once, by several processes, into a file that is mapped into memory.

A store is a folder of `cache_home()/store`, named by data set, size, fit and a hash of what it is made from:

| file | content |
|---|---|
| `pixels.npy` | uint8 [n, 3, size, size], in the manifest's order, without the pictures that were skipped |
| `content.npy` | int64 [n]: the number that each picture is known by (`_worker.digest`) |
| `index.json` | a checksum, then what was skipped and why, and what was noted |
| `checked.json` | when the pixels were last found to be those that `content.npy` says |

It is made in a folder `.part` beside it, which is renamed when all is there. `journal.jsonl` there has a line for each
piece of 64 pictures; a piece counts as done if its pixels have the hashes of its line, so that nothing half
written, by a kill or a power cut, is taken for whole, and nothing has to wait for the disk. The same hashes tell equal
pictures apart from others and find damage: one mechanism for three ends, at the speed at which memory is read twice.

A whole store is checked when it was changed since the last check, or that is more than a day ago. One process at a time
makes, checks or removes a store (`flock`); a mapped store is locked as long as the mapping lives, and not removed.
"""

import errno
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import PIL
import torch
from torch import Tensor

from ..core.errors import DataError
from ._worker import HEAD, Piece, Task, digest, work
from .containers import Container, open_container
from .decode import VERSION, Fit
from .manifest import Manifest, Row
from .places import cache_home, cache_limit
from .unpack import Progress, disk_error, room

FORMAT = 2
PIECE = 64  # pictures that are finished together
DAY = 86_400
AHEAD = 2  # tasks in a helper's hands, so that it never waits for the next
HELPER = """
import json, sys, types
path, here = json.loads(sys.argv[1])
sys.path[:0] = path
data = types.ModuleType("fedshift.data")
data.__path__ = [here]  # without the package's own __init__, which imports torch
sys.modules["fedshift.data"] = data
from fedshift.data._worker import main
main()
"""


@dataclass(frozen=True)
class Store:
    """The pictures of a manifest, ready to be read by index."""

    images: Tensor  # uint8 [n, 3, size, size], mapped
    rows: tuple[Row, ...]  # what they are
    skipped: tuple[tuple[Row, str], ...]  # pictures that could not be decoded, and why
    content: Tensor  # int64 [n]: equal pixels, equal number
    notes: Mapping[str, int]  # how many were greyscale, turned, transparent, ...
    path: Path


class Entry(NamedTuple):
    """A store on the disk."""

    name: str
    size: int
    bytes: int
    used: float  # when last, in seconds since 1970
    path: Path
    whole: bool  # or is being made, or was begun


def open_store(
    manifest: Manifest,
    size: int,
    fit: Fit = "crop",
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    limit: int | None = None,
) -> Store:
    """The store of these pictures; made, finished, waited for or mended if need be.

    This process and `workers` - 1 others decode (by default as many as there are processors). `progress` gets pictures
    done and in all, also while another process makes the store. All stores together keep to `limit` bytes, by
    default `cache_limit()`: those longest not used are removed, but none that is in use.
    """
    plan = _Plan(manifest, size, fit, (cache or cache_home()) / "store")
    tell = progress or (lambda done, total: None)
    try:
        plan.home.mkdir(parents=True, exist_ok=True)
        with _locked(plan.lock, lambda: tell(_begun(plan), len(manifest.rows))) as lock:
            index = _whole(plan, tell)
            if index is None:
                index = _make(plan, min(workers or _processors(), len(plan.starts)), tell, limit or cache_limit(), lock)
            return _mapped(plan, index)
    except OSError as error:
        raise disk_error(plan.home, error) from error


def cached(cache: Path | None = None) -> list[Entry]:
    """All stores, whole or begun, those longest not used first."""
    home = (cache or cache_home()) / "store"
    found = [_entry(path) for path in home.glob("*-*-*-*") if path.is_dir()]
    return sorted((e for e in found if e), key=lambda e: (e.used, e.path))


def clear(cache: Path | None = None, name: str | None = None, size: int | None = None) -> list[Entry]:
    """Remove the stores of that name and size, or of all; those in use stay. What was removed."""
    wanted = (e for e in cached(cache) if name in (None, e.name) and size in (None, e.size))
    return [entry for entry in wanted if _removed(entry)]


@dataclass(frozen=True)
class _Plan:
    """What a store is made from, and where its pieces lie."""

    manifest: Manifest
    size: int
    fit: Fit
    home: Path

    @cached_property
    def folder(self) -> Path:
        what = hashlib.sha256(f"{FORMAT} {VERSION} {self.size} {self.fit}".encode())
        for row in self.manifest.rows:
            what.update(f"\n{row.sha256 or row.path}".encode("utf-8", "surrogateescape"))
        name = re.sub(r"[^\w.]+", "_", self.manifest.name)
        return self.home / f"{name}-{self.size}-{self.fit}-{what.hexdigest()[:16]}"

    @property
    def part(self) -> Path:
        return self.folder.with_name(self.folder.name + ".part")

    @property
    def lock(self) -> Path:
        return self.folder.with_name(self.folder.name + ".lock")

    @property
    def row(self) -> int:
        """Bytes of a picture."""
        return 3 * self.size * self.size

    @property
    def starts(self) -> range:
        return range(0, len(self.manifest.rows), PIECE)

    @property
    def bytes(self) -> int:
        """What the store will take on the disk."""
        return HEAD + len(self.manifest.rows) * (self.row + 100)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --------------------------------------------------------------------------------------------------- a whole store


def _mapped(plan: _Plan, index: "_Index") -> Store:
    n = len(plan.manifest.rows) - len(index.skipped)
    os.utime(plan.folder / "index.json")  # used now
    with open(plan.folder / "pixels.npy", "rb") as file:
        _flock(file.fileno(), shared=True)  # the mapping keeps the open file, and the lock with it
        pixels = np.memmap(file, np.uint8, "c", HEAD, (n, 3, plan.size, plan.size))
    bad = dict(index.skipped)
    rows = plan.manifest.rows
    return Store(
        torch.from_numpy(pixels),
        tuple(row for i, row in enumerate(rows) if i not in bad) if bad else rows,
        tuple((rows[i], reason) for i, reason in index.skipped),
        torch.from_numpy(np.load(plan.folder / "content.npy")),
        index.notes,
        plan.folder,
    )


class _Index(NamedTuple):
    """What the index file says."""

    rows: int
    skipped: list[tuple[int, str]]
    notes: dict[str, int]
    pillow: str

    def write(self, path: Path) -> None:
        text = json.dumps(self)
        path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "_Index | None":
        """Nothing if it is not there or not as it was written."""
        try:
            checksum, text = path.read_text(encoding="utf-8").splitlines()
            if hashlib.sha256(text.encode()).hexdigest() != checksum:
                return None
            rows, skipped, notes, pillow = json.loads(text)
            return cls(rows, [(i, reason) for i, reason in skipped], notes, pillow)
        except (OSError, ValueError):
            return None


def _whole(plan: _Plan, tell: Progress) -> _Index | None:
    """The index of a store that is there and undamaged."""
    index = _Index.read(plan.folder / "index.json")
    try:
        if index is None or index.rows != len(plan.manifest.rows):
            return None
        content = np.load(plan.folder / "content.npy")
        with open(plan.folder / "pixels.npy", "rb") as file:
            n, length = index.rows - len(index.skipped), os.fstat(file.fileno()).st_size
            if content.shape != (n,) or length != HEAD + n * plan.row or file.read(HEAD) != _head(n, plan.size):
                return None
            return index if _checked(plan, file, content.tolist(), tell) else None
    except (OSError, ValueError):
        return None


def _checked(plan: _Plan, pixels: IO[bytes], content: list[int], tell: Progress) -> bool:
    """Compare all pixels with their hashes, unless that was done within a day and nothing was written since."""
    stamp = plan.folder / "checked.json"
    now = [os.stat(plan.folder / name).st_mtime_ns for name in ("pixels.npy", "content.npy")]
    with suppress(OSError, ValueError):
        if json.loads(stamp.read_text()) == now and 0 <= time.time() - stamp.stat().st_mtime < DAY:
            return True
    places = [(k, content[k : k + PIECE]) for k in range(0, len(content), PIECE)]
    if not all(_held(pixels.fileno(), plan, places, tell)):
        return False
    with suppress(OSError):  # somebody else's cache may be read-only
        os.fsync(pixels.fileno())  # what was compared may have been in memory only
        stamp.write_text(json.dumps(now))
    return True


def _held(file: int, plan: _Plan, places: Sequence[tuple[int, list[int]]], tell: Progress) -> list[bool]:
    """Whether the pixels from these places on have these hashes."""
    found, done = list[bool](), 0
    with ThreadPoolExecutor(_processors()) as pool:  # reading and hashing let other threads run
        for held, (_, content) in zip(pool.map(lambda p: _holds(file, plan, *p), places), places, strict=True):
            found.append(held)
            done += len(content) * held
            tell(done, len(plan.manifest.rows))
    return found


def _holds(file: int, plan: _Plan, place: int, content: Sequence[int]) -> bool:
    """One picture in memory at a time."""
    begins, plane = range(HEAD + place * plan.row, HEAD + (place + len(content)) * plan.row, plan.row), plan.row // 3
    for at, number in zip(begins, content, strict=True):
        picture = memoryview(os.pread(file, plan.row, at))
        if digest([picture[k : k + plane] for k in range(0, plan.row, plane)]) != number:
            return False
    return True


def _head(n: int, size: int) -> bytes:
    """Of a .npy file with `n` pictures; always as long."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": (n, 3, size, size)})
    return b"\x93NUMPY\1\0" + (HEAD - 10).to_bytes(2, "little") + text.encode().ljust(HEAD - 11) + b"\n"


# --------------------------------------------------------------------------------------------------- making a store


def _make(plan: _Plan, workers: int, tell: Progress, limit: int, lock: int) -> _Index:
    if plan.folder.exists():  # and is damaged
        shutil.rmtree(plan.folder)
    plan.part.mkdir(exist_ok=True)
    _make_room(plan, limit)
    with _opened(plan.part / "pixels.npy") as store:
        pieces = _resumed(plan, store, tell)
        _allocate(store, HEAD + len(plan.manifest.rows) * plan.row)
        todo = [start for start in plan.starts if start not in pieces]
        done = PIECE * len(pieces)
        with open(plan.part / "journal.jsonl", "a", encoding="utf-8") as journal:
            for piece in _decoded(plan, store, todo, workers, lock):
                _complain(plan, piece)
                print(json.dumps(piece), file=journal, flush=True)
                pieces[piece.start] = piece
                done += PIECE
                tell(min(done, len(plan.manifest.rows)), len(plan.manifest.rows))
        return _finish(plan, store, [pieces[start] for start in plan.starts])


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _allocate(file: int, size: int) -> None:
    """Have the disk's blocks now: it is faster, and a full disk is noticed before the work."""
    os.ftruncate(file, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # else this file system cannot do it
                raise


def _begun(plan: _Plan) -> int:
    """How many pictures the process that makes the store has decoded."""
    try:
        with open(plan.part / "journal.jsonl", "rb") as journal:
            return min(PIECE * sum(1 for _ in journal), len(plan.manifest.rows))
    except OSError:
        return len(plan.manifest.rows) if plan.folder.exists() else 0


def _resumed(plan: _Plan, file: int, tell: Progress) -> dict[int, Piece]:
    """The pieces that a former process finished; the journal then holds these alone."""
    journal = plan.part / "journal.jsonl"
    pieces = {piece.start: piece for piece in _read(journal)}
    held = _held(file, plan, [(start, piece.content) for start, piece in pieces.items()], tell)
    # Once all were decoded, some may have been moved; one that is decoded again may spoil moved ones behind it.
    sound, moved = dict[int, Piece](), len(pieces) == len(plan.starts)
    for here, place, (start, piece) in zip(held, _places(pieces.values()), pieces.items(), strict=True):
        if here or (moved and _holds(file, plan, place, piece.content)):
            sound[start] = piece
        else:
            moved = False
    aside = journal.with_suffix(".new")
    aside.write_text("".join(json.dumps(piece) + "\n" for piece in sound.values()), encoding="utf-8")
    aside.replace(journal)
    return sound


def _read(journal: Path) -> list[Piece]:
    """In order; a line cut short by a kill is none."""
    pieces = []
    with suppress(OSError):
        for line in journal.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                pieces.append(_piece(line))
    return sorted(pieces, key=lambda piece: piece.start)


def _piece(line: str) -> Piece:
    start, content, skipped, notes, lost = json.loads(line)
    return Piece(start, content, [(k, why) for k, why in skipped], notes, tuple(lost) if lost else None)


def _places(pieces: Iterable[Piece]) -> Iterator[int]:
    """Where pieces begin when there are no gaps between them."""
    at = 0
    for piece in pieces:
        yield at
        at += len(piece.content)


def _finish(plan: _Plan, store: int, pieces: list[Piece]) -> _Index:
    content = np.array([number for piece in pieces for number in piece.content], np.int64)
    skipped = [pair for piece in pieces for pair in piece.skipped]
    if not len(content):
        shutil.rmtree(plan.part)
        row, why = (plan.manifest.rows[skipped[0][0]].path, skipped[0][1]) if skipped else ("", "there is none")
        raise DataError(
            f"{plan.manifest.root}: found no picture that can be decoded ({row}: {why}), expected "
            f"{len(plan.manifest.rows)}; check the files and import the data set again."
        )
    notes = sum((Counter(piece.notes) for piece in pieces), Counter[str]())
    index = _Index(len(plan.manifest.rows), skipped, dict(sorted(notes.items())), PIL.__version__)
    _close_up(plan, store, pieces)
    os.ftruncate(store, HEAD + len(content) * plan.row)
    os.pwrite(store, _head(len(content), plan.size), 0)
    np.save(plan.part / "content.npy", content)
    index.write(plan.part / "index.json")
    (plan.part / "journal.jsonl").unlink()
    plan.part.rename(plan.folder)
    return index


def _close_up(plan: _Plan, file: int, pieces: list[Piece]) -> None:
    """Move pieces together where pictures were skipped.

    A piece's new place never reaches into the pieces after it, so that a kill in the middle spoils at most the piece
    that is being moved, and that one is decoded again.
    """
    for place, piece in zip(_places(pieces), pieces, strict=True):
        if place != piece.start and not _holds(file, plan, place, piece.content):
            pixels = os.pread(file, len(piece.content) * plan.row, HEAD + piece.start * plan.row)
            os.pwrite(file, pixels, HEAD + place * plan.row)


def _complain(plan: _Plan, piece: Piece) -> None:
    """Stop when a picture is not what was imported: skipping it would change the data in silence."""
    if piece.lost is None:
        return
    place, reason = piece.lost
    if place < 0:
        raise DataError(f"{plan.part}: {reason}; free some space, then go on where it stopped.")
    raise DataError(f"{plan.manifest.root}: {plan.manifest.rows[place].path} {reason}; import the data set again.")


# ------------------------------------------------------------------------------------------------ several processes


def _decoded(plan: _Plan, store: int, starts: list[int], workers: int, lock: int) -> Iterator[Piece]:
    """Each piece when it is done, by this process and helpers."""
    if not starts:
        return
    with ExitStack() as stack:
        container = stack.enter_context(open_container(plan.manifest.root, plan.home))
        tasks, done = _Tasks(plan, container, starts), queue.SimpleQueue[Piece | DataError]()
        for _ in range(min(workers, len(starts)) - 1):
            helper = stack.enter_context(_helper(plan, (lock, *container.inherit)))
            stack.enter_context(_driven(helper, tasks, done))
        for _ in starts:
            task = tasks.next()
            piece = work(store, plan.size, plan.fit, task) if task else done.get()
            if isinstance(piece, DataError):
                raise piece
            yield piece


class _Tasks:
    """What is left to do; for several threads, of which one at a time looks into the container."""

    def __init__(self, plan: _Plan, container: Container, starts: list[int]) -> None:
        self.plan, self.container, self.starts = plan, container, iter(starts)
        self.lock = threading.Lock()

    def next(self) -> Task | None:
        with self.lock:
            start = next(self.starts, None)
            if start is None:
                return None
            rows = self.plan.manifest.rows[start : start + PIECE]
            return Task(start, [(self.container.span(row.path), row.sha256) for row in rows])


@contextmanager
def _helper(plan: _Plan, inherit: tuple[int, ...]) -> Iterator[subprocess.Popen[str]]:
    """A process that decodes. It starts from nothing: a script without `if __name__ ...` is not run again by it.

    It holds the lock too, so that nobody else begins before it ends, however this process ends.
    """
    here = Path(__file__).resolve().parent
    argument = json.dumps([[str(here.parent.parent), *sys.path], str(here)])
    command = [sys.executable, "-I", "-S", "-c", HELPER, argument]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", pass_fds=inherit
    )
    try:
        assert process.stdin
        print(json.dumps([str(plan.part / "pixels.npy"), plan.size, plan.fit]), file=process.stdin, flush=True)
        yield process
    finally:
        process.kill()  # it has nothing left to do, or nobody wants it
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe and pipe.close()


@contextmanager
def _driven(
    helper: subprocess.Popen[str], tasks: _Tasks, done: "queue.SimpleQueue[Piece | DataError]"
) -> Iterator[None]:
    """Keep a helper supplied, from a thread that sleeps most of the time."""
    thread = threading.Thread(target=_drive, args=(helper, tasks, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        helper.kill()
        thread.join()


def _drive(helper: subprocess.Popen[str], tasks: _Tasks, done: "queue.SimpleQueue[Piece | DataError]") -> None:
    assert helper.stdin and helper.stdout
    waiting = 0
    try:
        while True:
            while waiting < AHEAD and (task := tasks.next()):
                print(json.dumps(task), file=helper.stdin, flush=True)
                waiting += 1
            if not waiting:
                return
            done.put(_piece(helper.stdout.readline()))
            waiting -= 1
    except DataError as error:
        done.put(error)
    except (OSError, ValueError):  # the pipe is closed, or half a line came through it
        code = helper.wait()
        done.put(
            DataError(f"a decoding process ended with code {code}; run the same again, it goes on where it stopped.")
        )


# ------------------------------------------------------------------------------------------------- locks and the disk


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Alone with a store; `waiting` is called ten times a second while another process is."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        while not _flock(file):
            waiting()
            time.sleep(0.1)
        if _is_same(file, path):
            break
        os.close(file)  # the one before removed it together with the store
    try:
        yield file
    finally:
        os.close(file)


def _is_same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def _flock(file: int, shared: bool = False) -> bool:
    """Take a lock, if nobody else has it; it ends with the last process that has the file open."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _entry(path: Path) -> Entry | None:
    """Nothing if it is being removed."""
    name, size, _, last = path.name.rsplit("-", 3)
    try:
        files = [file.stat() for file in path.iterdir()]
        used = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        return Entry(name, int(size), sum(f.st_blocks * 512 for f in files), used, path, not last.endswith(".part"))
    except (OSError, ValueError):
        return None


def _make_room(plan: _Plan, limit: int) -> None:
    """Remove other stores until this one keeps to the limit and fits on the disk."""
    if plan.bytes > limit:
        raise DataError(
            f"{plan.manifest.name} at {plan.size} pixels needs {plan.bytes / 1e6:,.0f} MB, expected at most the "
            f"{limit / 1e6:,.0f} MB that the cache may hold; raise $FEDSHIFT_CACHE_GB or choose a smaller size."
        )
    entries = cached(plan.home.parent)
    mine = sum(entry.bytes for entry in entries if entry.path == plan.part)
    others = [entry for entry in entries if entry.path != plan.part]
    total = sum(entry.bytes for entry in others)
    for entry in others:
        fits = shutil.disk_usage(plan.home).free + mine > plan.bytes + (1 << 28)
        if total + plan.bytes <= limit and fits:
            break
        total -= entry.bytes * _removed(entry)
    room(plan.home, plan.bytes - mine)


def _removed(entry: Entry) -> bool:
    """Remove a store, unless somebody makes or uses it."""
    lock = entry.path.with_name(entry.path.name.removesuffix(".part") + ".lock")
    with suppress(OSError), ExitStack() as stack:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        stack.callback(os.close, file)
        if not _flock(file) or not _is_same(file, lock):
            return False
        if entry.whole:
            pixels = stack.enter_context(open(entry.path / "pixels.npy", "rb"))
            if not _flock(pixels.fileno()):
                return False
        shutil.rmtree(entry.path)
        lock.unlink()
        return True
    return False
