"""What the captured engine asks of a device: streams, marks, random numbers, and a recording of a step."""

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.errors import FedshiftError
from ..core.tree import send

Body = Callable[[], None]
T = TypeVar("T")
ASKS_THE_HOST = ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal")


class NotCapturable(FedshiftError):
    """A step that cannot be recorded, and why."""


class Mark(Protocol):
    """Some work of a queue."""

    def synchronize(self) -> None:
        """Wait until it is done."""
        ...


class Dice(Protocol):
    """Random numbers of one lane: they go on from torch's global generator, and it goes on from them."""

    def start(self) -> None:
        """Go on where the global generator is."""
        ...

    def stop(self) -> None:
        """Let the global generator go on here."""
        ...


class Machine(Protocol):
    """A device that can record a step and replay it, on several streams at once."""

    def stream(self) -> Any:
        """A new queue of work."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Inside, work goes to that queue."""
        ...

    def mark(self) -> "Mark":
        """What the present queue holds now."""
        ...

    def after(self, mark: Any) -> None:
        """The present queue goes on when that is done."""
        ...

    def dice(self) -> Dice:
        """Random numbers for one lane."""
        ...

    def record(self, body: Body, dice: Any) -> Body:
        """What replays `body`, drawing from `dice`; recording does not run it."""
        ...

    def apart(self, call: Callable[[], T]) -> T:
        """The call's result, made where everything is recorded, on the present queue."""
        ...

    def watched(self) -> AbstractContextManager[object]:
        """Inside, whatever would make the host wait for a value is refused."""
        ...

    def send(self, t: Tensor) -> Tensor:
        """A tensor of the host on the device; the host does not wait."""
        ...

    def room(self) -> int:
        """Bytes that could still be taken."""
        ...

    def taken(self) -> int:
        """Bytes that are taken."""
        ...


# Torch's watch on synchronisation holds for the whole process: whoever copies from a device beside it must wait.
WATCH = Lock()
RECORDER = ThreadPoolExecutor(1, "fedshift-record")


class Cuda:
    """CUDA graphs on CUDA streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index

    def stream(self) -> torch.cuda.Stream:
        """A stream of its own."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Make it the current stream."""
        return torch.cuda.stream(stream)

    def mark(self) -> torch.cuda.Event:
        """An event; a host thread that waits for it sleeps."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def after(self, mark: torch.cuda.Event) -> None:
        """The current stream waits for the event."""
        mark.wait()

    def dice(self) -> "CudaDice":
        """A generator whose state the recordings refer to."""
        return CudaDice(self._index)

    def record(self, body: Body, dice: "CudaDice") -> Body:
        """Capture on the current stream; other threads may go on using the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self.device).synchronize()
        with WATCH, dice:  # streams are few: a copy of a checkpoint could come to lie on the one that is captured
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                body()
            finally:
                graph.capture_end()

        def replay(_kept: Body = body) -> None:  # the recording reads tensors that its body alone holds
            graph.replay()

        return replay

    def apart(self, call: Callable[[], T]) -> T:
        """In one thread for all runs, since cuDNN's choices among its kernels are each thread's own."""
        stream = torch.cuda.current_stream(self.device)

        def there() -> T:
            with torch.cuda.stream(stream):
                return call()

        return RECORDER.submit(there).result()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """By torch's own watch on synchronisation."""
        with WATCH:
            before = torch.cuda.get_sync_debug_mode()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says each time that the watch is a prototype
                torch.cuda.set_sync_debug_mode("error")
            try:
                yield
            except RuntimeError as error:
                if "synchroniz" not in str(error):
                    raise
                raise NotCapturable("its step makes the host wait for the value of a tensor") from error
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def send(self, t: Tensor) -> Tensor:
        """By way of pinned memory."""
        return send(t, self.device)

    def room(self) -> int:
        """What the driver has left, and what torch holds without using it."""
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + held

    def taken(self) -> int:
        """What torch holds."""
        return torch.cuda.memory_reserved(self.device)


class CudaDice:
    """A generator that stands in for the global one while a graph is captured; replays then draw from it."""

    def __init__(self, index: int) -> None:
        self._global = torch.cuda.default_generators[index]
        self._own = torch.Generator(f"cuda:{index}")
        self._theirs: Any = None

    def start(self) -> None:
        """The global generator's seed and place."""
        self._own.manual_seed(self._global.initial_seed())
        self._own.set_offset(self._global.get_offset())

    def stop(self) -> None:
        """Its place in the same stream of numbers."""
        self._global.set_offset(self._own.get_offset())

    def __enter__(self) -> None:
        self._theirs = self._global.graphsafe_get_state()
        self._global.graphsafe_set_state(self._own.graphsafe_get_state())

    def __exit__(self, *error: object) -> None:
        self._global.graphsafe_set_state(self._theirs)


class Host:
    """No graphs and no streams: what was recorded is called again, on the tensors it was recorded with.

    Whatever a real recording would freeze is frozen here too, so the engine can be tested on any machine.
    """

    def stream(self) -> None:
        """There is one queue."""

    def on(self, stream: None) -> AbstractContextManager[object]:
        """There is one queue."""
        return nullcontext()

    def mark(self) -> "Done":
        """Nothing is ever left to do."""
        return Done()

    def after(self, mark: "Done") -> None:
        """Nothing is ever left to do."""

    def dice(self) -> "HostDice":
        """A saved state of the global generator."""
        return HostDice()

    def record(self, body: Body, dice: "HostDice") -> Body:
        """The body itself."""

        def replay() -> None:
            with dice:
                body()

        return replay

    def apart(self, call: Callable[[], T]) -> T:
        """There is one thread."""
        return call()

    def watched(self) -> AbstractContextManager[object]:
        """By the names of the operations that a graph could not answer."""
        return _Deaf()  # type: ignore[no-untyped-call]

    def send(self, t: Tensor) -> Tensor:
        """It is there."""
        return t

    def room(self) -> int:
        """As if there were plenty."""
        return 1 << 40

    def taken(self) -> int:
        """As if there were plenty."""
        return 0


class Done:
    """Work that is done when it is asked for."""

    def synchronize(self) -> None:
        """Nothing is ever left to do."""


class HostDice:
    """Random numbers of one lane on the CPU."""

    def __init__(self) -> None:
        self._own = self._theirs = torch.get_rng_state()

    def start(self) -> None:
        """The global generator's state."""
        self._own = torch.get_rng_state()

    def stop(self) -> None:
        """Back to the global generator."""
        torch.set_rng_state(self._own)

    def __enter__(self) -> None:
        self._theirs = torch.get_rng_state()
        torch.set_rng_state(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = torch.get_rng_state()
        torch.set_rng_state(self._theirs)


class _Deaf(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what would make the host wait for a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        if name in ASKS_THE_HOST:
            raise NotCapturable(f"its step makes the host wait for the value of a tensor ({name})")
        return func(*args, **(kwargs or {}))
