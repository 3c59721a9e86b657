"""Marks on the type of a setting: what values it may take, and where a search would look."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Bounds of a number; inclusive unless said to be open."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        above = self.low is None or (value > self.low if self.open_low else value >= self.low)
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    def __str__(self) -> str:
        low = "" if self.low is None else f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = "" if self.high is None else f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return " and ".join(part for part in (low, high) if part)


@dataclass(frozen=True)
class Log:
    """A search space, even in the logarithm; not a bound on what is valid."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """A name from a table that is known at run time."""

    names: Callable[[], Iterable[str]]
    what: str


@dataclass(frozen=True)
class Variant:
    """A section whose `name` picks one of several dataclasses."""

    table: Callable[[], Mapping[str, type]]
