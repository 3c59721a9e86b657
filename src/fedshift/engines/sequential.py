"""One client after another, in this process."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from ..core.net import Net
from ..core.optim import Optimizer
from ..core.task import Task
from .base import Job, Method, Result, client_round, in_turn, make_task, rate_as_tensor
from .workers import THREADS

T = TypeVar("T")


class Sequential:
    """The reference: tensors are handed over as they are, training writes in place on the client's own copy."""

    name: ClassVar[str] = "sequential"
    channels_last: ClassVar[bool] = False

    def task(self, net: Net, optimizer: Optimizer, **rest: Any) -> Task:
        """Gradients by autograd, updates in place."""
        task = make_task(net, optimizer, in_place=True, **rest)
        return rate_as_tensor(task) if next(net.module.parameters()).is_cuda else task

    def guard(self, method: Method, where: str) -> Method:
        """Errors pass as they are."""
        return method

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """Each client in turn, when its result is asked for."""
        for job in jobs:
            yield client_round(method, task, job, keep=keep)

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
        """One after another."""
        return in_turn(task, calls, label)

    def use(self, workers: int, threads: int = 0) -> None:
        """There is one worker; its threads are set."""
        THREADS.take(threads)
