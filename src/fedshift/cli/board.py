"""The moving picture of a sweep on a terminal: a table that fills, with a place for each run."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .display import Info
from .many import Cell, Lines, Tally

WIDE = 5  # of a run's place, where all fit side by side
MARKS = {"waiting": ("·", "bright_black"), "retrying": ("↻", "yellow"), "failed": ("✕", "red")}
EIGHTHS = "▁▂▃▄▅▆▇█"


class Board(Lines):
    """Troubles stay as lines above, the table below; nothing of it is left when the sweep ends."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._screen = Screen(get_renderable=self._picture, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._screen.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wipe the picture."""
        self._ended = True
        self._screen.stop()

    def say(self, line: str = "", style: str = "") -> None:
        """One line above the picture."""
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def tell(self, event: Info, cell: Cell) -> None:
        """A run that does well is seen in its place."""
        self.trouble(event, cell)

    def _end(self, tally: Tally) -> None:
        """The tables that follow take the picture's place."""
        super()._end(tally)
        self._screen.refresh()

    def _picture(self) -> RenderableType:
        if self.tally is None or self._ended:
            return Text("")
        cells = list(self.tally.cells.values())
        protocols = {
            name: [c for c in cells if c.protocol == name] for name in dict.fromkeys(c.protocol for c in cells)
        }
        room = self._console.height - 6
        whole = sum(_height(group) for group in protocols.values()) <= room
        parts: list[RenderableType] = [Text("")]
        for name, group in protocols.items():
            if whole or (any(c.state == "running" for c in group) and _height(group) <= room):
                room -= _height(group) if not whole else 0
                parts += [Text(name, "bold"), self._grid(group)] if name else [self._grid(group)]
            elif room > 0:
                room -= 1
                parts.append(_line(name, group))
        return Group(*parts, Text(""), self._foot(self.tally))

    def _grid(self, cells: list[Cell]) -> RenderableType:
        columns = list(dict.fromkeys(c.left_out for c in cells))
        methods = list(dict.fromkeys(c.method for c in cells))
        seeds = list(dict.fromkeys(c.seed for c in cells))
        longest = max(map(len, methods))
        roomy = longest + len(columns) * (2 + len(seeds) * (WIDE + 1)) <= self._console.width
        grid = Table(box=None, header_style="dim", padding=(0, 3, 0, 0), pad_edge=False)
        grid.add_column("", no_wrap=True)
        for column in columns:
            grid.add_column("+".join(column) or "sites", no_wrap=True)
        places = {(c.method, c.left_out, c.seed): c for c in cells}
        for method in methods:
            rows = [[places[method, column, s] for s in seeds if (method, column, s) in places] for column in columns]
            grid.add_row(Text(method), *(_roomy(row) if roomy else _tight(row) for row in rows))
        return Padding(grid, (0, 0, 1, 0))

    def _foot(self, tally: Tally) -> RenderableType:
        done, left = tally.work()
        finished, failed, of = tally.count("done"), tally.count("failed"), len(tally.cells)
        grid = Table.grid(padding=(0, 2), expand=False)
        words = Text(f"{finished} of {of} runs")
        words.append(f", {failed} failed", "red") if failed else None
        running = f"{tally.count('running')} running"
        grid.add_row(ProgressBar(max(done + left, 1e-9), done, width=32), words, Text(running, "dim"), tally.pace())
        return grid


def _height(cells: list[Cell]) -> int:
    return len({c.method for c in cells}) + 3


def _line(name: str, cells: list[Cell]) -> Text:
    """A protocol for which there is no room, or nothing to see yet."""
    done = sum(c.state == "done" for c in cells)
    return Text.assemble((name, "bold"), (f"  {done} of {len(cells)} runs done", "dim"))


def _roomy(cells: list[Cell]) -> Text:
    """A number, a bar or a mark for each seed."""
    return Text(" ").join(_place(cell) for cell in cells)


def _place(cell: Cell) -> Text:
    if cell.state == "done" and cell.accuracy is not None:
        return Text(f"{100 * cell.accuracy:>{WIDE}.1f}")
    if cell.state == "running":
        full = round(cell.share * WIDE)
        return Text.assemble(("━" * full, "green"), ("━" * (WIDE - full), "bright_black"))
    mark, style = MARKS.get(cell.state, MARKS["waiting"])
    return Text(f"{mark:^{WIDE}}", style)


def _tight(cells: list[Cell]) -> Text:
    """The mean so far, and one letter for each seed."""
    done = [cell.accuracy for cell in cells if cell.accuracy is not None]
    parts = [Text(f"{100 * sum(done) / len(done):>{WIDE}.1f} " if done else " " * (WIDE + 1))]
    for cell in cells:
        mark, style = MARKS.get(cell.state, ("█", "green"))
        parts.append(Text(EIGHTHS[int(cell.share * 7.99)] if cell.state == "running" else mark, style))
    return Text("").join(parts)
