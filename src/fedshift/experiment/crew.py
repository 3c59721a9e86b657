"""Ways to do runs side by side, behind one interface: one after another in this thread, or as threads of one device.

`processes` has the third. A crew knows how to start a run, what it reports and how to stop; `sweep` knows the rest.
"""

import gc
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from queue import SimpleQueue
from threading import Thread
from typing import Literal, NamedTuple, Protocol

import torch

from ..core.errors import FedshiftError
from ..data import Dataset
from ..engines.turn import TURN
from .config import Experiment
from .files import FolderInUse
from .runs import Event, Folder, execute

Kind = Literal["done", "refused", "busy", "crashed", "memory", "lost"]
DataOf = Callable[[Experiment], Dataset | None]  # none: the run loads the set that its configuration names
WorkersOf = Callable[[Experiment, Folder], int]  # clients of a run that train side by side


class End(NamedTuple):
    """How a run ended, or why it stopped before its end."""

    kind: Kind
    reason: str = ""


class Told(NamedTuple):
    """What a run, known by its folder's name, has to say: a round that is done, or its end."""

    name: str
    what: Event | End


class Crew(Protocol):
    """Does up to `room` runs at once."""

    room: int

    def start(self, config: Experiment, folder: Folder) -> None:
        """Begin a run, or go on with it."""
        ...

    def hear(self) -> Told:
        """Wait until a run under way has something to say."""
        ...

    def stop(self) -> None:
        """Let every run under way save its state and end."""
        ...


def follow(
    config: Experiment, folder: Folder, data_of: DataOf, workers_of: WorkersOf = lambda config, folder: 1
) -> Generator[Event | End, None, None]:
    """A run's rounds and then its end; closed before, the run saves its state."""
    end = End("done")
    try:
        with closing(execute(config, folder, data_of(config), workers_of(config, folder))) as events:
            yield from events
    except Exception as error:
        end = end_of(error)
    yield end  # here, where the error holds no tensors any more


def end_of(error: Exception) -> End:
    """What an error means for the runs beside this one."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FedshiftError):
        return End("busy" if isinstance(error, FolderInUse) else "refused", text)
    name = f"{type(error).__name__}: {text}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _says(text, NO_MEMORY)):
        return End("memory", name)
    lost = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and _says(text, ("CUDA error",))
    )
    return End("lost" if lost else "crashed", name)


# As torch's allocators, the CUDA runtime and the libraries above it say it.
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "_ALLOC_FAILED")


def _says(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


class Alone:
    """One run at a time, in the caller's own thread and with all threads that torch may use."""

    room = 1

    def __init__(self, data_of: DataOf, workers_of: WorkersOf = lambda config, folder: 1) -> None:
        self._data_of, self._workers_of = data_of, workers_of
        self._name = ""
        self._run: Generator[Event | End, None, None] | None = None

    def start(self, config: Experiment, folder: Folder) -> None:
        """Nothing happens before somebody listens."""
        self._name, self._run = folder.path.name, follow(config, folder, self._data_of, self._workers_of)

    def hear(self) -> Told:
        """Do the next round."""
        assert self._run is not None
        return Told(self._name, next(self._run))

    def stop(self) -> None:
        """Save what was done since the last checkpoint."""
        if self._run is not None:
            self._run.close()


class Device(Protocol):
    """What threads need of the device that they share."""

    def stream(self) -> AbstractContextManager[object]:
        """A queue of work of its own for a run."""
        ...

    def alive(self) -> bool:
        """Whether it still computes."""
        ...

    def free(self) -> None:
        """Give back memory that no tensor holds."""
        ...


class Host:
    """The CPU, where threads take turns and nothing overlaps: for tests of what is scheduled on a GPU."""

    def stream(self) -> AbstractContextManager[object]:
        """Nothing to keep apart."""
        return nullcontext()

    def alive(self) -> bool:
        """Who asks, is."""
        return True

    def free(self) -> None:
        """Memory goes back by itself."""


class Gpu:
    """The current CUDA device. Streams are used again, since the memory that a stream has freed stays with it."""

    def __init__(self) -> None:
        self._spare: list[torch.cuda.Stream] = []

    @contextmanager
    def stream(self) -> Iterator[None]:
        """A stream that begins when what is on the default stream, such as the data set, is there."""
        # Before the clients' streams: a run's few small kernels do not queue behind everybody's training.
        mine = self._spare.pop() if self._spare else torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        mine.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(mine):
            yield
        self._spare.append(mine)

    def alive(self) -> bool:
        """Errors that a device does not survive come again with every call."""
        try:
            return bool(torch.ones(1, device="cuda").sum().item() == 1)
        except torch.OutOfMemoryError:
            return True
        except RuntimeError:
            return False

    def free(self) -> None:
        """Back to the device, for every stream."""
        gc.collect()
        torch.cuda.empty_cache()


class Threads:
    """Runs as threads of this process, each on a stream of its own; on the host they take turns."""

    def __init__(self, room: int, data_of: DataOf, device: Device) -> None:
        self.room = room
        self._data_of, self._device = data_of, device
        self._told: SimpleQueue[Told] = SimpleQueue()
        self._threads: list[Thread] = []
        self._stopping = False

    def start(self, config: Experiment, folder: Folder) -> None:
        """One thread, from the first round to the last."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=self._work, args=(config, folder), name=folder.path.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def hear(self) -> Told:
        """Whoever has something to say."""
        return self._told.get()

    def stop(self) -> None:
        """Each ends with the round it is in."""
        self._stopping = True
        for thread in self._threads:
            thread.join()

    def _work(self, config: Experiment, folder: Folder) -> None:
        """Whatever happens, its end is told: nobody must wait for a thread that is gone."""
        try:
            with TURN, self._device.stream():
                end = self._run(config, folder)
        except Exception as error:
            end = end_of(error)
        with TURN:
            end = self._checked(end)
        self._told.put(Told(folder.path.name, end))

    def _run(self, config: Experiment, folder: Folder) -> End:
        with closing(follow(config, folder, self._data_of)) as run:
            while not self._stopping:
                what = next(run)
                if isinstance(what, End):
                    return what
                self._told.put(Told(folder.path.name, what))
                TURN.wait(lambda: time.sleep(0))  # between two rounds nothing of the process's is in use
        return End("crashed", "it was stopped")

    def _checked(self, end: End) -> End:
        """An error of the device that the device survives is the run's own."""
        if end.kind == "memory":
            self._device.free()
        return End("crashed", end.reason) if end.kind == "lost" and self._device.alive() else end
