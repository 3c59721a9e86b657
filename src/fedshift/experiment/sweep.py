"""Many runs: which come first, how many at once, and what becomes of those that fail. Nothing here knows a terminal.

A `Plan` holds the runs in the order in which they matter; a crew (`crew`, `processes`) does some of them side by side;
a `Sweep` keeps the crew supplied and tells what happens. A run that cannot go on by itself leaves `failed.json` in its
folder; whatever went wrong is also in the sweep's own log.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..core.errors import CheckpointError
from . import strict
from .config import Experiment
from .crew import Crew, End, Kind
from .files import write_whole
from .runs import Event, Folder, folder_of

State = Literal["waiting", "running", "retrying", "done", "failed"]
ATTEMPTS = 2  # a run whose process is killed or crashes is tried once more


@dataclass(eq=False)
class Entry:
    """A run of a plan, and how it stands."""

    config: Experiment
    folder: Folder
    state: State = "waiting"
    reason: str = ""
    attempts: int = 0  # that were lost by no fault of others
    last: Event | None = None

    @property
    def name(self) -> str:
        """Its folder's."""
        return self.folder.path.name


class Plan:
    """Runs, the most urgent first: a table of the first seed is whole before the second seed begins."""

    def __init__(self, configs: Iterable[Experiment], out: Path, *, retry: bool = False) -> None:
        """Equal configurations are one run; `retry` forgets that some have failed before."""
        self.out = out
        entries = {entry.name: entry for entry in (Entry(c, folder_of(c, out)) for c in configs)}
        self.entries = tuple(entries.values())
        for entry in self.entries:
            _recall(entry, retry)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def having(self, *states: State) -> list[Entry]:
        """The runs that stand so."""
        return [entry for entry in self.entries if entry.state in states]

    @property
    def unfinished(self) -> list[Entry]:
        """What there is to do."""
        return self.having("waiting", "running", "retrying")


def _recall(entry: Entry, retry: bool) -> None:
    if entry.folder.done.exists():
        entry.state = "done"
    elif entry.folder.failed.exists() and not retry:
        entry.state, entry.reason = "failed", "it failed before"
        with suppress(OSError, ValueError, KeyError, TypeError):
            entry.reason = str(json.loads(entry.folder.failed.read_text(encoding="utf-8"))["reason"])


class News(NamedTuple):
    """What happened to a run: `spare` is where it goes on under another name than that in `reason`.

    `fewer` and `lost` concern all runs.
    """

    kind: Literal["start", "round", "done", "retry", "failed", "fewer", "lost", "spare"]
    entry: Entry
    reason: str = ""


class Spare(NamedTuple):
    """What goes on where a device is lost: another crew, and what a run becomes there, in a folder of its own."""

    crew: Callable[[], Crew]
    change: Callable[[Experiment], Experiment]


@dataclass
class Sweep:
    """Does a plan with a crew; iterate to do it. Stopped anywhere, every run under way saves its state."""

    plan: Plan
    crew: Crew
    log: Path | None = None
    spare: Spare | None = None
    room: int = field(init=False)  # runs at once, now
    lost: str = field(init=False, default="")  # why nothing more is started
    incidents: list[dict[str, Any]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """As many as the crew can."""
        self.room = self.crew.room

    def __iter__(self) -> Generator[News, None, None]:
        """Everything that happens, until nothing is left to do."""
        try:
            for entry in self.plan.having("done", "failed"):
                yield News("done" if entry.state == "done" else "failed", entry, entry.reason)
            while True:
                yield from self._fill()
                if self.plan.having("running"):
                    yield from self._hear()
                elif not self.plan.unfinished or not (yield from self._go_elsewhere()):
                    break
        finally:
            try:
                self.crew.stop()
            finally:
                self._put_back()
                self._write()

    def _fill(self) -> Iterator[News]:
        """Start runs, the most urgent first, while there is room."""
        for entry in self.plan.having("waiting", "retrying"):
            if self.lost or len(self.plan.having("running")) >= self.room:
                return
            if entry.folder.done.exists():  # another process has done it meanwhile
                entry.state = "done"
                yield News("done", entry)
                continue
            entry.state = "running"
            self.crew.start(entry.config, entry.folder)
            yield News("start", entry)

    def _hear(self) -> Iterator[News]:
        told = self.crew.hear()
        entry = next(e for e in self.plan if e.name == told.name)
        if isinstance(told.what, Event):
            entry.last = told.what
            yield News("round", entry)
        else:
            yield from self._ended(entry, told.what)
            self._write()

    def _ended(self, entry: Entry, end: End) -> Iterator[News]:
        """What a run's end means for it and for the others."""
        others = len(self.plan.having("running")) - 1
        if end.kind == "done" or entry.folder.done.exists():  # what is finished stays so, whatever broke after it
            entry.state = "done"
            yield News("done", entry)
        elif end.kind == "memory" and others:
            self.room = min(self.room, others)
            yield from self._again(entry, end)
            words = f"{self.room} run{'s' * (self.room > 1)} at once from now on, since one found no memory"
            yield News("fewer", entry, words)
        elif end.kind == "lost" and self.lost:
            yield from self._again(entry, end)  # it fell with the first
        elif end.kind == "lost":
            self.lost = end.reason
            yield self._failed(entry, end)
            then = "what is left goes on elsewhere" if self.spare else "nothing more is started"
            yield News("lost", entry, f"the device was lost ({end.reason}); {then}, and what is finished is kept")
        else:
            entry.attempts += 1
            final = end.kind in ("refused", "busy") or entry.attempts >= ATTEMPTS
            yield from [self._failed(entry, end)] if final else self._again(entry, end)

    def _again(self, entry: Entry, end: End) -> Iterator[News]:
        self._note(entry, "retrying", end)
        yield News("retry", entry, end.reason)

    def _failed(self, entry: Entry, end: End) -> News:
        self._note(entry, "failed", end)
        if end.kind != "busy":  # that folder is another's
            leave(entry, end.kind)
        return News("failed", entry, end.reason)

    def _note(self, entry: Entry, state: State, end: End) -> None:
        entry.state, entry.reason = state, end.reason
        done = entry.last.round if entry.last else None
        self.incidents.append({"run": entry.name, "state": state, **end._asdict(), "round": done, "room": self.room})

    def _go_elsewhere(self) -> Generator[News, None, bool]:
        """Give what is left to the spare crew; false if there is none."""
        if self.spare is None or not self.lost:
            return False
        self.crew.stop()
        spare, self.spare, self.lost = self.spare, None, ""
        self.crew = spare.crew()
        self.room = self.crew.room
        for entry in [e for e in self.plan if e.state not in ("done", "failed") or self._fell(e)]:
            before, entry.config = entry.name, spare.change(entry.config)
            entry.folder, entry.state, entry.reason = folder_of(entry.config, self.plan.out), "waiting", ""
            entry.attempts, entry.last = 0, None
            yield News("spare", entry, before)
        return True

    def _fell(self, entry: Entry) -> bool:
        """Whether a run failed with the device, and may do well elsewhere."""
        return any(it["run"] == entry.name and it["kind"] == "lost" for it in self.incidents)

    def _put_back(self) -> None:
        for entry in self.plan.having("running", "retrying"):
            entry.state = "done" if entry.folder.done.exists() else "waiting"

    def _write(self) -> None:
        """The log, for whoever wants to know tomorrow; the sweep goes on without it on a full disk."""
        if self.log is None:
            return
        runs = {e.name: {"state": e.state} | ({"reason": e.reason} if e.reason else {}) for e in self.plan}
        told = {"runs": runs, "room": self.room, "lost": self.lost, "incidents": self.incidents}
        with suppress(OSError, CheckpointError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.log, (json.dumps(told, indent=1) + "\n").encode())


def leave(entry: Entry, kind: Kind) -> None:
    """Write into a run's folder that it failed and why, with its configuration so that it can be listed."""
    told = {"reason": entry.reason, "kind": kind, "attempts": entry.attempts}
    with suppress(OSError, CheckpointError):
        entry.folder.path.mkdir(parents=True, exist_ok=True)
        if not entry.folder.config.exists():
            write_whole(entry.folder.config, strict.to_toml(entry.config).encode())
        write_whole(entry.folder.failed, (json.dumps(told, indent=1) + "\n").encode())
