"""The moving picture of a sweep on a terminal: a table that fills, with a place for each run."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
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
        """The picture is drawn once more as it ended; then the tables that follow take its place."""
        self._screen.refresh()
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
                parts += [Text(name, "bold")] * bool(name) + [self._grid(group), Text("")]
            elif room > 0:
                room -= 1
                parts.append(_line(name, group))
        parts += [] if whole else [Text("")]
        return Group(*parts, self._foot(self.tally))

    def _grid(self, cells: list[Cell]) -> RenderableType:
        columns = list(dict.fromkeys(c.left_out for c in cells))
        methods = list(dict.fromkeys(c.method for c in cells))
        seeds = list(dict.fromkeys(c.seed for c in cells))
        heads = ["+".join(column) or "sites" for column in columns]
        view, gap, wide = _fitting(self._console.width - max(map(len, methods)), heads, len(seeds))
        grid = Table(box=None, header_style="dim", padding=(0, gap, 0, 0), pad_edge=False)
        grid.add_column("", no_wrap=True)
        for head in heads:
            grid.add_column(head, no_wrap=True, max_width=wide)
        places = {(c.method, c.left_out, c.seed): c for c in cells}
        for method in methods:
            rows = [[places[method, column, s] for s in seeds if (method, column, s) in places] for column in columns]
            grid.add_row(Text(method), *map(view, rows))
        return grid

    def _foot(self, tally: Tally) -> RenderableType:
        done, left = tally.work()
        finished, failed, of = tally.count("done"), tally.count("failed"), len(tally.cells)
        wide = self._console.width >= 100
        bar = ProgressBar(max(done + left, 1e-9), done, width=32 if wide else 12, complete_style="green")
        words = Text(f"{finished} of {of} runs", no_wrap=True)
        words.append(f", {failed} failed", "red") if failed else None
        running = Text(f"{tally.count('running')} running" if wide else "", "dim")
        grid = Table.grid(padding=(0, 2), expand=False)
        grid.add_row(bar, words, running, Text(tally.pace(), no_wrap=True))
        return grid


def _fitting(space: int, heads: list[str], seeds: int) -> tuple[Callable[[list[Cell]], Text], int, int]:
    """The fullest view of the cells for which there is space, the gap between columns, and their greatest width."""
    longest = max(map(len, heads))
    views = [(_roomy, 3, seeds * (WIDE + 1) - 1), (_tight, 3, WIDE + 1 + seeds), (_letters, 2, max(5, seeds))]
    for view, gap, cell in views:
        for wide in (max(longest, cell), max(8, cell)):
            if len(heads) * (wide + gap) <= space:
                return view, gap, wide
    return _letters, 1, max(5, seeds)


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
    mean = f"{100 * sum(done) / len(done):>{WIDE}.1f} " if done else " " * (WIDE + 1)
    return Text.assemble(mean, _letters(cells))


def _letters(cells: list[Cell]) -> Text:
    """One letter for each seed: it grows while the run does."""
    return Text("").join(_letter(cell) for cell in cells)


def _letter(cell: Cell) -> Text:
    if cell.state == "running":
        return Text(EIGHTHS[int(cell.share * 7.99)], "bright_black")
    return Text(*MARKS.get(cell.state, ("■", "green")))
