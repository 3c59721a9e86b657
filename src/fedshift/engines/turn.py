"""One thread at a time prepares work for a device; whoever waits for the device lets the others go on.

Several runs share a GPU as threads of one process. Their work overlaps on the device; on the host only one thread
runs at a time, since torch's global generators, the recording of graphs and a network's train mode belong to nobody.
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import Tensor


class Turn:
    """A lock that knows its holder, and is handed on while the holder waits. Where nobody takes it, it does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        """Take the turn; a thread that has it may not take it again."""
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Hand it on."""
        self._holder = None
        self._lock.release()

    def wait(self, ready: Callable[[], object]) -> None:
        """Call `ready`, which blocks until the device is done, and let others take their turn meanwhile."""
        if self._holder != threading.get_ident():
            ready()
            return
        self.__exit__(None, None, None)
        try:
            ready()
        finally:
            self.__enter__()


TURN = Turn()


def device_done(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """What waits until these tensors are there, without holding the interpreter; nothing to wait for on the host."""
    if not any(t.is_cuda for t in tensors):
        return lambda: None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize
