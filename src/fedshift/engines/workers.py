"""Threads that work side by side, each on one core with a network and random numbers of its own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import replace
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import nn

from ..core.apart import apart
from ..core.net import Net
from ..core.task import Task

T = TypeVar("T")


class Threads:
    """How many threads an operation may use in this process; a run that takes fewer leaves them to the next one."""

    def __init__(self) -> None:
        self._all = self._taken = 0

    @property
    def all(self) -> int:
        """As somebody outside the runs has set them."""
        now = torch.get_num_threads()
        return self._all if now == self._taken else now

    def take(self, count: int = 0) -> None:
        """So many from here on; 0: all."""
        self._all = self.all
        self._taken = count or self._all
        torch.set_num_threads(self._taken)


THREADS = Threads()


class Workers:
    """So many threads, and as many copies of a task: a network is switched and filled by one thread at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "fedshift-worker", initializer=lambda: torch.set_num_threads(1))
        self._task: Task | None = None
        self._copies: SimpleQueue[Task] = SimpleQueue()

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]]) -> "Iterator[Future[T]]":
        """The calls' outcomes, in order; few more are begun than somebody has asked for."""
        if self._task is not task:
            self._task, self._copies = task, SimpleQueue()
            for _ in range(self.count):
                self._copies.put(copy_of(task))
        begun = deque[Future[T]]()
        try:
            for call in calls:
                begun.append(self._pool.submit(self._do, call))
                if len(begun) >= 2 * self.count:
                    yield begun.popleft()
            while begun:
                yield begun.popleft()
        finally:
            for future in begun:
                future.cancel()
            wait(begun)

    def _do(self, call: Callable[[Task], T]) -> T:
        task = self._copies.get()
        try:
            with apart():
                return call(task)
        finally:
            self._copies.put(task)


def copy_of(task: Task) -> Task:
    """The same task around another module, whose own tensors are the first one's."""
    module: nn.Module = task.net.module
    shared = {id(t): t for part in (module.parameters(), module.buffers()) for t in part}
    net = Net(deepcopy(module, dict(shared)), in_place=task.net.in_place, autocast=task.net.autocast)
    return replace(task, net=net)
