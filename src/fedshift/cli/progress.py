"""How far a long step is, told on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from ..data.unpack import Progress

PATIENCE = 1.0  # seconds until progress is told, and between two lines of it
FRAME = 0.1  # seconds between two pictures of a bar


@contextmanager
def progress(what: str, unit: str = "pictures") -> "Iterator[Progress]":
    """Tells on stderr how far a step is, if it takes longer than a second: a bar on a terminal, else plain lines."""
    begun = told = time.monotonic()
    bar: Bar | None = None
    draw: Callable[[int, int], None] | None = None

    def tell(done: int, total: int) -> None:
        nonlocal bar, draw, told
        now = time.monotonic()
        if now - begun < PATIENCE or now - told < (FRAME if bar else PATIENCE):
            return
        told = now
        if draw is None:
            bar, draw = _bar(what, unit)
        draw(done, total)

    try:
        yield tell
    finally:
        if bar:
            bar.stop()


def _bar(what: str, unit: str) -> "tuple[Bar | None, Callable[[int, int], None]]":
    """A bar if stderr is a terminal and rich is there, and what draws the state."""
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None, lambda done, total: print(f"{what}: {_state(done, total, unit)}", file=sys.stderr, flush=True)
    heads = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn()
    made = Progress(*heads, console=Console(stderr=True, highlight=False), transient=True)
    task = made.add_task(what, total=None, state="")
    made.start()
    return made, lambda done, total: made.update(
        task, completed=done, total=total or None, state=_state(done, total, unit)
    )


def _state(done: int, total: int, unit: str) -> str:
    of = f" of {_count(total, unit)}" if total else ""
    return f"{_count(done, unit)}{of} {unit}"


def _count(n: int, unit: str) -> str:
    return f"{n / 1e6:,.1f}" if unit == "MB" else f"{n:,}"
