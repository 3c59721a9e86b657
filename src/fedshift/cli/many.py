"""How the runs of a sweep stand: the tally that its displays share, and the lines that a file or a pipe gets."""

from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Self

from .display import Info, clock, how, percent

EVERY = 10  # seconds between two lines on how far the sweep is


@dataclass
class Cell:
    """One run in the tally."""

    number: int
    method: str
    left_out: tuple[str, ...]
    seed: int
    protocol: str
    rounds: int
    state: str
    round: int = 0
    images: int = 0  # that a round trains on, once known
    accuracy: float | None = None  # at the left-out domains, or at the sites where none is left out

    @property
    def share(self) -> float:
        """Of its rounds."""
        return 1.0 if self.state == "done" else self.round / self.rounds

    @property
    def place(self) -> str:
        """What tells it from the others."""
        what = [self.method, f"left out {'+'.join(self.left_out) or 'none'}", f"seed {self.seed}", self.protocol]
        return ", ".join(filter(None, what))


class Tally:
    """Every run of a sweep, kept up to date by its events."""

    def __init__(self, event: Info) -> None:
        self.cells: dict[str, Cell] = {}
        for number, row in enumerate(event["plan"], 1):
            what = {key: value for key, value in row.items() if key != "run"}
            self.cells[row["run"]] = Cell(number, **{**what, "left_out": tuple(row["left_out"])})
        self.began = monotonic()
        self.trained = 0  # images, since then

    def __call__(self, event: Info) -> None:
        """Take note of what concerns one run."""
        if event["event"] == "moved":
            self.cells[event["run"]] = self.cells.pop(event["from"])
        cell = self.cells[event["run"]]
        if event["event"] == "start":
            cell.state, cell.round = "running", event["done"]
        elif event["event"] == "round":
            cell.round, cell.rounds, cell.images = event["round"], event["rounds"], event["images"]
            self.trained += event["images"]
        elif event["event"] == "result":
            unseen = event["unseen_mean"]
            cell.state, cell.accuracy = "done", event["sites"] if unseen is None else unseen
        else:
            cell.state = {"error": "failed", "retry": "retrying", "moved": "waiting"}.get(event["event"], cell.state)

    def count(self, *states: str) -> int:
        """Runs that stand so."""
        return sum(cell.state in states for cell in self.cells.values())

    def work(self) -> tuple[float, float]:
        """Images trained on and still to train on, as far as is known."""
        known = [cell.images for cell in self.cells.values() if cell.images]
        usual = sum(known) / len(known) if known else 1.0
        whole = [(cell.images or usual) * cell.rounds for cell in self.cells.values() if cell.state != "failed"]
        shares = [cell.share for cell in self.cells.values() if cell.state != "failed"]
        done = sum(w * s for w, s in zip(whole, shares, strict=True))
        return done, sum(whole) - done

    def seconds(self) -> float:
        """Since the sweep began."""
        return max(monotonic() - self.began, 1e-9)

    def pace(self) -> str:
        """Images in a second, and the time left; nothing before the first round."""
        if not self.trained:
            return "getting ready"
        rate = self.trained / self.seconds()
        return f"{rate:,.0f} images/s  {clock(self.work()[1] / rate)} left"

    def summary(self) -> str:
        """What was done, in how long."""
        done = self.count("done")
        words = f"{done} run{'' if done == 1 else 's'} finished"
        return f"{words} in {clock(self.seconds())}, {self.trained / self.seconds():,.0f} images/s"


class Lines:
    """A line for each run that ends, and now and then one for all."""

    def __init__(self) -> None:
        self.tally: Tally | None = None
        self._printed = 0.0
        self._ended = False

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to put back."""

    def say(self, line: str = "", style: str = "") -> None:
        """One line that stays."""
        print(line, flush=True)

    def __call__(self, event: Info) -> None:
        """Show one event."""
        if self.tally is None:
            self.tally, self._printed = Tally(event), monotonic()
            self.say(f"{event['runs']} runs on {event['data']}: {event['text']}", "bold")
            self.say(how(event), "dim")
        elif "report" in event:
            self._end(self.tally)
        else:
            self.tally(event)
            self.tell(event, self.tally.cells[event["run"]])

    def tell(self, event: Info, cell: Cell) -> None:
        """What is worth a line."""
        if event["event"] == "result":
            self.say(f"{self._count(cell)}  {short(event)}  {cell.place}")
        elif event["event"] == "round" and monotonic() - self._printed >= EVERY:
            self._printed = monotonic()
            self.say(self._state())
        else:
            self.trouble(event, cell)

    def trouble(self, event: Info, cell: Cell) -> None:
        """What went wrong."""
        if event["event"] == "error":
            self.say(f"{self._count(cell)}  {cell.place} failed: {event['message']}", "red")
        elif event["event"] == "retry":
            self.say(f"{self._count(cell)}  {cell.place} is put back: {event['message']}", "yellow")
        elif event["event"] == "notice":
            self.say(f"{event['message']}.", "yellow")

    def _count(self, cell: Cell) -> str:
        of = len(self.tally.cells) if self.tally else 0
        return f"{cell.number:>{len(str(of))}}/{of}"

    def _state(self) -> str:
        assert self.tally is not None
        done, running = self.tally.count("done"), self.tally.count("running")
        return f"{done} of {len(self.tally.cells)} runs done, {running} running  {self.tally.pace()}"

    def _end(self, tally: Tally) -> None:
        """Once, before the first report."""
        if not self._ended and tally.trained:
            self.say(tally.summary())
        self._ended = True


def short(event: Info) -> str:
    """A finished run on one line."""
    unseen = event["unseen_mean"]
    tail = "" if unseen is None else f"  unseen {percent(unseen):>7}"
    return f"sites {percent(event['sites']):>7}{tail}  {clock(event['seconds']):>5}"
