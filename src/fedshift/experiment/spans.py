"""Where time goes: every moment of a round belongs to exactly one named part of it."""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")
OTHER = "other"  # what no part claims


class Clock(Protocol):
    """Marks moments, and tells later how far apart they are."""

    def mark(self) -> Any:
        """Now."""
        ...

    def seconds(self, marks: list[Any]) -> list[float]:
        """Between each mark and the next."""
        ...


class HostClock:
    """Of a machine that is done with an operation when its call returns."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, marks: list[float]) -> list[float]:
        """Between each mark and the next."""
        return [b - a for a, b in pairwise(marks)]


class DeviceClock:
    """Events in a GPU's queue: the host does not wait for them, so measuring leaves the overlap of the two as it is.

    A moment in which the device has nothing to do belongs to the part whose next operation it waits for.
    """

    def mark(self) -> torch.cuda.Event:
        """When the device comes here."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, marks: list[torch.cuda.Event]) -> list[float]:
        """Between each mark and the next, when the device has passed the last."""
        marks[-1].synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


class Spans:
    """Parts inside parts: time belongs to the innermost, so the parts add up to the whole.

    What is `closed` keeps its time whatever happens inside, but for a part that is `opened` there.
    Only the thread that made it is watched, between `begin` and `end`.
    """

    def __init__(self, clock: Clock, closed: frozenset[str], opened: frozenset[str]) -> None:
        self.clock, self._closed, self._opened = clock, closed, opened
        self._thread = threading.get_ident()
        self._stack: list[str] = []  # empty: nobody is watching
        self._marks: list[Any] = []
        self._owners: list[str] = []  # of the time before each mark but the first

    def begin(self) -> None:
        """From here on, time counts."""
        self._stack, self._marks, self._owners = [OTHER], [self.clock.mark()], []

    def end(self) -> tuple[dict[str, float], int]:
        """Seconds by part since `begin`, and how many marks it took."""
        self._mark()
        self._stack = []
        seconds: dict[str, float] = {}
        for owner, spent in zip(self._owners, self.clock.seconds(self._marks), strict=True):
            seconds[owner] = seconds.get(owner, 0.0) + spent
        return seconds, len(self._marks)

    def __call__(self, name: str) -> "Span":
        """Inside, time belongs to that part."""
        return Span(self, name)

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items; the time to get each belongs to that part, what is done with it does not."""
        source = iter(items)
        while True:
            with self(name):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item

    def push(self, name: str) -> bool:
        """Whether anybody is watching."""
        if not self._stack or threading.get_ident() != self._thread:
            return False
        self._mark()
        inside = self._stack[-1]
        self._stack.append(inside if inside in self._closed and name not in self._opened else name)
        return True

    def pop(self) -> None:
        """Back to the part around."""
        if self._stack:
            self._mark()
            self._stack.pop()

    def _mark(self) -> None:
        self._marks.append(self.clock.mark())
        self._owners.append(self._stack[-1])


class Span:
    """One part, once."""

    __slots__ = ("_name", "_spans", "_watched")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self._name, self._watched = spans, name, False

    def __enter__(self) -> None:
        self._watched = self._spans.push(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._watched:
            self._spans.pop()


def cost_of_a_mark(clock: Clock, times: int = 2000) -> float:
    """Seconds that a mark takes of the host, with everything around it."""
    spans = Spans(clock, frozenset(), frozenset())
    spans.begin()
    start = time.perf_counter()
    for _ in range(times):
        with spans("nothing"):
            pass
    return (time.perf_counter() - start) / (2 * times)
