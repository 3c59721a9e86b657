"""Text on stdout: with colour and fitted columns on a terminal if rich is there, plain otherwise."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report.tables import Table, aligned, head, text

if TYPE_CHECKING:
    from rich.console import Console


def terminal() -> "Console | None":
    """The terminal, if stdout is one that can do more than lines, and rich can be imported."""
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def say(line: str = "", style: str = "") -> None:
    """One line."""
    console = terminal() if style else None
    if console:
        console.print(line, style=style, markup=False, soft_wrap=True)
    else:
        print(line)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Text in columns, wrapped inside them where the terminal is too narrow."""
    console = terminal()
    if console is None:
        print(aligned([list(heads), *map(list, rows)], right=False))
        return
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate(heads):
        grid.add_column(name, style="bold" if number == 0 else "", no_wrap=number == 0, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


def numbers(table: Table) -> None:
    """A table of a report."""
    console = terminal()
    if console is None:
        print(f"{table.title}\n{text(table)}\n{table.caption}  *: best.\n")
        return
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, title=table.title, title_style="bold", title_justify="left", pad_edge=False)
    grid.caption, grid.caption_justify, grid.caption_style = f"{table.caption} Bold: best.", "left", "dim"
    grid.add_column(table.first)
    for column in table.columns:
        grid.add_column(head(column), justify="right")
    for name, cells in table.rows:
        grid.add_row(Text(name), *(Text(c.text, "bold green" if c.best else "") for c in cells))
    console.print(grid, "")
