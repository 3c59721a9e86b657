"""Files that survive a kill: written aside, flushed, renamed; and a folder that one process owns at a time."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import CheckpointError


class FolderInUse(CheckpointError):
    """A run folder in which another process works."""


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that at any instant the old or the new content is there, whole."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise disk_error(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Add one line and flush it."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_error(path, error) from error


def cut(path: Path, size: int) -> None:
    """Shorten a file to what was in it when a checkpoint was made."""
    if not path.exists() and not size:
        return
    if not path.exists() or path.stat().st_size < size:
        raise CheckpointError(
            f"{path}: shorter than its checkpoint says ({size} bytes); it was changed since; start the run again."
        )
    os.truncate(path, size)


def disk_error(path: Path, error: OSError) -> CheckpointError:
    """What went wrong with a file, and what to do."""
    if error.errno == errno.ENOSPC:
        return CheckpointError(
            f"{path}: the disk is full; what was saved before is whole: free some space and resume the run."
        )
    return CheckpointError(f"{path}: cannot be written ({error.strerror}); check the folder's permissions.")


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system can open a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold a run's folder; a second process is told so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk_error(folder, error) from error
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)  # the lock goes with it, also when the process is killed


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise FolderInUse(
            f"{folder}: another process is running this experiment; wait for it, or give another --out folder."
        ) from None
