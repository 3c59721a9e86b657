"""The CPU's engine: channels last, clients side by side on several cores, tiny networks trained all at once."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

from ..core.apart import DrawsElsewhere
from ..core.net import Net
from ..core.optim import Optimizer
from ..core.task import Task
from .base import Job, Method, Result, client_round
from .mapped import NotTogether
from .sequential import Sequential
from .together import MOST, tiny, train_together
from .workers import THREADS, Workers

T = TypeVar("T")
TOGETHER = 128  # tiny clients that train at once

log = logging.getLogger("fedshift")


class Fast(Sequential):
    """Sequential with sums in another order: pictures and kernels keep their channels last.

    Results repeat to the last bit on one machine. They follow from the number of threads that a step uses, and not from
    the number of workers, which have one thread each.
    """

    name: ClassVar[str] = "fast"
    channels_last: ClassVar[bool] = True

    def __init__(self) -> None:
        self.most = MOST  # parameters of a network whose clients train all at once
        self._workers: Workers | None = None
        self._alone: set[str] = set()  # labels of stages whose clients run one after another
        self._apart: set[str] = set()  # labels of stages whose clients do not train at once

    def use(self, workers: int, threads: int = 0) -> None:
        """Clients side by side from here on, each on one thread, as is everything else then."""
        super().use(workers, 1 if workers > 1 else threads)
        self._workers = Workers(workers) if workers > 1 else None

    def task(self, net: Net, optimizer: Optimizer, **rest: Any) -> Task:
        """In place; the network comes with its channels last."""
        if net.autocast is not None:
            THREADS.take(1)  # threads of bf16 kernels spin while they wait: on a busy machine, for minutes
        return super().task(net, optimizer, **{**rest, "exact": False})

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """All at once if they are tiny, which changes last digits; else side by side or one by one, which does not."""
        queue = iter(jobs)
        all_at_once = tiny(task, self.most)
        while all_at_once and label not in self._apart and (wave := list(islice(queue, TOGETHER))):
            try:
                yield from train_together(method, task, wave, keep)
            except NotTogether as why:
                self._apart.add(label)
                queue = iter([*wave, *queue])
                log.info("%s: %s; its clients do not train at once.", label, why)
        yield from self.spread(task, (partial(_round, method, job, keep) for job in queue), label)

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
        """The calls' results in order: side by side if there are workers, and if nothing draws for all of them."""
        rest, begun = iter(calls), deque[Callable[[Task], T]]()

        def begin() -> Iterator[Callable[[Task], T]]:
            for call in rest:
                begun.append(call)
                yield call

        if self._workers is not None and label not in self._alone:
            try:
                for future in self._workers.spread(task, begin()):
                    result = future.result()
                    begun.popleft()
                    yield result
            except DrawsElsewhere as why:
                self._alone.add(label)
                log.warning("%s: %s; one after another from here on.", label, why)
        for call in chain(begun, rest):
            yield call(task)


def _round(method: Method, job: Job, keep: bool, task: Task) -> Result:
    return client_round(method, task, job, keep=keep)
