"""The moving picture of a run on a terminal: a bar, the rate, the time left, the accuracies so far."""

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .display import Info, Plain, clock, now


class Live(Plain):
    """Lines that stay above, the current run below; nothing of it is left when it ends."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._screen = Screen(get_renderable=self._picture, console=console, transient=True, refresh_per_second=8)
        self._last: Info | None = None
        self._heard = 0.0

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._screen.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wipe the picture."""
        self.run = {}
        self._screen.stop()

    def say(self, line: str = "", style: str = "") -> None:
        """One line above the picture."""
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def start(self, event: Info) -> None:
        """A new picture."""
        super().start(event)
        self._last = None

    def round(self, event: Info) -> None:
        """Take note; the screen draws itself."""
        self.record = event["record"] or self.record
        self._last, self._heard = event, monotonic()

    def result(self, event: Info) -> None:
        """The run's table stays."""
        self.run = {}
        self._screen.refresh()
        super().result(event)

    def _picture(self) -> RenderableType:
        if not self.run or self.run["state"] == "finished":
            return Text("")
        event = self._last
        done, total = (event["round"], event["rounds"]) if event else (self.run["done"], self.run["rounds"])
        grid = Table.grid(padding=(0, 2), expand=False)
        grid.add_row(ProgressBar(total, done, width=32), f"{done}/{total} rounds", self._pace())
        parts: list[RenderableType] = [grid]
        if event:
            parts.append(Text(now(event, self.record), "dim"))
        return Group(Text(""), *parts)

    def _pace(self) -> str:
        event = self._last
        if event is None:
            return "getting ready"
        rate = event["round"] / max(event["seconds"], 1e-9)
        left = max(0.0, (event["rounds"] - event["round"]) / rate - (monotonic() - self._heard))
        return f"{rate:.1f}/s  {clock(left)} left"
