"""What a run writes while it goes on: lines of its logs, and now and then its whole state."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ..engines.loop import State
from .checkpoint import save_checkpoint
from .files import append_line

SHARE = 0.02  # of the time that a writer beside the run may spend on checkpoints

Task = Callable[[], None]


class Journal:
    """Writes at once, in the order of the calls; a checkpoint says how long the logs are when it is made."""

    def __init__(self, checkpoint: Path, logs: dict[str, Path]) -> None:
        self._checkpoint, self._logs = checkpoint, logs
        self._unsaved: Task | None = None

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """However the run ends, but not when it failed, its last state is saved."""
        if kind is None or not issubclass(kind, Exception):
            self.flush()

    def line(self, log: str, text: str) -> None:
        """Add a line to a log."""
        append_line(self._logs[log], text)

    def state(self, state: State, seconds: float, *, save: bool) -> None:
        """A round is done; `save` it now, or only if the run ends here."""
        self._unsaved = lambda: self._write(state, seconds)
        if save:
            self.flush()

    def flush(self) -> None:
        """Save what is not saved yet."""
        if self._unsaved is not None:
            self._unsaved()
            self._unsaved = None

    def _write(self, state: State, seconds: float) -> None:
        sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in self._logs.items()}
        save_checkpoint(self._checkpoint, state, {**sizes, "seconds": seconds})


class BackgroundJournal(Journal):
    """The same from a thread of its own, so that neither disk nor copies from a GPU hold up the next round.

    Of several states that wait, the last alone is saved; and after a checkpoint that took a second, none is begun for
    fifty. A kill then loses these rounds, no more: what is on the disk is whole, and the logs are cut back to it.
    """

    def __init__(self, checkpoint: Path, logs: dict[str, Path]) -> None:
        super().__init__(checkpoint, logs)
        self._queue: list[tuple[bool, Task]] = []  # whether it is a checkpoint, and how it is written
        self._change = threading.Condition()
        self._busy = self._hurry = self._closed = False
        self._rested = 0.0  # when the next checkpoint may begin
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="fedshift-journal", daemon=True)
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """As without a thread; the thread ends."""
        try:
            super().__exit__(kind, error, at)
        finally:
            with self._change:
                self._closed = self._hurry = True
                self._change.notify_all()
            self._thread.join()
        if kind is None:
            self._raise()

    def line(self, log: str, text: str) -> None:
        """Queue a line."""
        self._put(False, lambda: append_line(self._logs[log], text))

    def state(self, state: State, seconds: float, *, save: bool) -> None:
        """Queue a state, whose tensors are complete when the device has done what it was told so far."""
        ready = _mark()

        def write() -> None:
            with ready():
                self._write(state, seconds)

        self._unsaved = write
        if save:
            self._put(True, write)
            self._unsaved = None

    def flush(self) -> None:
        """Write everything that waits."""
        if self._unsaved is not None:
            self._put(True, self._unsaved)
            self._unsaved = None
        with self._change:
            self._hurry = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._failure or not (self._queue or self._busy))
            self._hurry = False
        self._raise()

    def _put(self, checkpoint: bool, write: Task) -> None:
        self._raise()
        with self._change:
            if checkpoint:
                self._queue = [(is_one, task) for is_one, task in self._queue if not is_one]
            self._queue.append((checkpoint, write))
            self._change.notify_all()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                while not self._due():
                    if self._closed and not self._queue:
                        return
                    self._change.wait(max(0.0, self._rested - time.monotonic()) if self._queue else None)
                checkpoint, write = self._queue.pop(0)
                self._busy = True
            start = time.monotonic()
            try:
                write()
            except BaseException as error:  # told to the run at its next call
                with self._change:
                    self._failure, self._busy = error, False
                    self._change.notify_all()
                return
            if checkpoint:
                self._rested = time.monotonic() + (time.monotonic() - start) / SHARE

    def _due(self) -> bool:
        """Whether what comes first in the queue may be written."""
        return bool(self._queue) and (not self._queue[0][0] or self._hurry or time.monotonic() >= self._rested)


def _mark() -> Callable[[], AbstractContextManager[Any]]:
    """Waits until tensors hold what they hold now, and lets this thread read them beside what follows."""
    if not torch.cuda.is_available():
        return nullcontext
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()

    def ready() -> AbstractContextManager[Any]:
        event.synchronize()
        return torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]

    return ready
