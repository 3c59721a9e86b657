"""Sequential, computed purely, with every failure traced to its method, stage, round, client, hook and tensor."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast

from ..core import tree
from ..core.algorithm import Algorithm
from ..core.errors import FedshiftError
from ..core.net import Net
from ..core.optim import Optimizer
from ..core.task import Task
from .base import Job, Method, Result, client_round, in_turn, make_task
from .workers import THREADS

T = TypeVar("T")
HOOKS = (
    *("surgery", "stages", "phases", "init_server", "send", "aggregate", "init_client"),
    *("begin", "loss", "correct", "finish", "model_for", "predict"),
)


class HookError(FedshiftError):
    """An exception inside a method's hook, with where it happened in front."""


class Traced:
    """A method whose hooks report where they failed, and whose results are checked to be finite."""

    def __init__(self, method: Method, where: str) -> None:
        self._method = method
        self._where = where

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._method, name)
        return self._guard(name, value) if name in HOOKS else value

    def _guard(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                raise HookError(f"{self._where}, {hook}{_tensor(error)}: {type(error).__name__}: {error}") from error
            if hook in ("correct", "finish") and (bad := tree.first_bad(_tensors(result))):
                raise HookError(
                    f"{self._where}, {hook}: found NaN or infinity in {bad}, expected finite numbers; "
                    "lower the learning rate, clip the gradient, or check the images of this client."
                )
            return result

        return guarded


def _tensors(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) and not hasattr(result, "_fields") else result


def _tensor(error: Exception) -> str:
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("at tensor ")]
    return f", {notes[0].removeprefix('at ')}" if notes else ""


class Debug:
    """Slower, never in place: what it says is where the fault is."""

    name: ClassVar[str] = "debug"
    channels_last: ClassVar[bool] = False

    def task(self, net: Net, optimizer: Optimizer, **rest: Any) -> Task:
        """Gradients by `torch.func`, updates on copies."""
        return make_task(net, optimizer, in_place=False, **rest)

    def guard(self, method: Method, where: str) -> Method:
        """`method`, reporting from `where`."""
        return cast(Algorithm[Any, Any, Any, Any], Traced(method, where))

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """Each client in turn, under guard."""
        for job in jobs:
            where = f"{label}, round {job.round.number}, client {task.sites[job.client]}"
            yield client_round(self.guard(method, where), task, job, keep=keep)

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
        """One after another."""
        return in_turn(task, calls, label)

    def use(self, workers: int, threads: int = 0) -> None:
        """There is one worker; its threads are set."""
        THREADS.take(threads)
