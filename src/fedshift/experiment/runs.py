"""One run in its folder: configuration, versions, one line per evaluation, a checkpoint, and a way to go on."""

import json
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..core import tree
from ..core.errors import CheckpointError
from ..data import Dataset
from ..engines.loop import State, run
from . import strict
from .checkpoint import load_checkpoint
from .config import Experiment
from .files import cut, owned, write_whole
from .journal import BackgroundJournal, Journal
from .setup import Setup, set_up, versions


class Event(NamedTuple):
    """A round that is done and safe; `record` if it was evaluated."""

    round: int
    rounds: int
    seconds: float
    metrics: dict[str, float]
    record: dict[str, Any] | None


@dataclass(frozen=True)
class Folder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration, as TOML for people; its canonical text is hashed into the folder's name."""
        return self.path / "config.toml"

    @property
    def records(self) -> Path:
        """One JSON line per evaluation; the same bits whenever the run is repeated."""
        return self.path / "records.jsonl"

    @property
    def timings(self) -> Path:
        """One JSON line per round: what may differ from machine to machine."""
        return self.path / "timings.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The last state that was saved."""
        return self.path / "checkpoint.safetensors"

    @property
    def done(self) -> Path:
        """There when the run is complete."""
        return self.path / "done.json"

    @property
    def failed(self) -> Path:
        """There while the run counts as failed in a sweep, with the reason."""
        return self.path / "failed.json"

    def began(self) -> dict[str, Any]:
        """Versions, threads and workers that an interrupted run began with; nothing for a new one."""
        file = self.path / "versions.json"
        if not self.checkpoint.exists() or not file.exists():
            return {}
        return dict(json.loads(file.read_text(encoding="utf-8")))

    def experiment(self) -> Experiment:
        """The configuration that this run was made with."""
        if not self.config.exists():
            raise CheckpointError(
                f"{self.path}: found no run here (no config.toml); give a run's folder, as `fedshift run` prints it."
            )
        return strict.build(Experiment, strict.read_toml(self.config))


def folder_of(config: Experiment, out: Path) -> Folder:
    """Where a run of this configuration lies."""
    return Folder(out / strict.digest(config))


def execute(
    config: Experiment, folder: Folder, data: Dataset | None = None, workers: int = 1
) -> Generator[Event, None, None]:
    """Start the run, or go on where its last checkpoint stands; yields after each round.

    Whatever stops the consumer (Ctrl-C, an error, a kill) leaves the last checkpoint whole. What cannot run is refused
    before anything is written.
    """
    if folder.done.exists():
        return
    setup = set_up(config, data, workers, folder.began().get("threads", 0))  # bits follow from the threads of a step
    new = None if folder.checkpoint.exists() else setup.start()
    with owned(folder.path):
        folder.failed.unlink(missing_ok=True)
        state, seconds = _begin(config, folder, setup, new, workers)
        yield from rounds(config, setup, journal_of(config, folder), state, seconds)
        write_whole(folder.done, json.dumps({"rounds": setup.rounds}).encode())


def _begin(config: Experiment, folder: Folder, setup: Setup, new: State | None, workers: int) -> tuple[State, float]:
    """A `new` run's first files, or the state of an interrupted one, with its records cut back to it."""
    if not folder.checkpoint.exists():
        write_whole(folder.config, strict.to_toml(config).encode())
        write_whole(folder.path / "versions.json", json.dumps({**versions(), "workers": workers}, indent=1).encode())
        write_whole(folder.path / "split.json", json.dumps(setup.evaluator.federation.record, indent=1).encode())
        for path in (folder.records, folder.timings):
            cut(path, 0)
        return new or setup.start(), 0.0
    state, extra = load_checkpoint(folder.checkpoint, config.method, setup.task.net)
    cut(folder.records, extra["records"])
    cut(folder.timings, extra["timings"])
    device = next(iter(setup.task.net.module.parameters())).device
    moved = [tree.map(lambda t: t.to(device), part) for part in (state.server, state.memory, state.before)]
    return replace(state, server=moved[0], memory=moved[1], before=moved[2]), extra["seconds"]


def rounds(
    config: Experiment, setup: Setup, journal: Journal, begun: State, seconds: float
) -> Generator[Event, None, None]:
    """What a run does after a state that is saved: rounds, each evaluated and written down; yields after each."""
    start = time.perf_counter() - seconds
    with journal:
        for state in run(setup.method, setup.task, setup.engine, setup.sites, setup.plan, begun):
            end = state.total == setup.rounds
            reported = end or config.eval.select == "val"
            record = _record(setup, state, reported) if end or state.total % config.eval.every == 0 else None
            seconds = time.perf_counter() - start
            if record is not None:
                journal.line("records", json.dumps(record))
            line = {"round": state.total, "rounds": setup.rounds, "seconds": round(seconds, 4)}
            journal.line("timings", json.dumps(line))
            journal.state(state, seconds, save=end or state.total % config.checkpoint == 0)
            yield Event(state.total, setup.rounds, seconds, state.metrics, record)


def journal_of(config: Experiment, folder: Folder) -> Journal:
    """Beside the run where rounds are too short to wait for a disk."""
    kind = BackgroundJournal if config.engine in ("captured", "rehearsed") else Journal
    return kind(folder.checkpoint, {"records": folder.records, "timings": folder.timings})


def _record(setup: Setup, state: State, reported: bool) -> dict[str, Any]:
    numbers = {"bytes_up": state.bytes_up, "bytes_down": state.bytes_down, "train": state.metrics}
    split = setup.evaluator.federation.record
    leak = {"leak": True} if split["leak"] else {}  # said in every line, so that no number travels without it
    scores = setup.evaluator(setup.method, setup.task, state, reported=reported)
    point = {"point": "after_local" if state.trained else "after_aggregation"}
    return {"round": state.total, "split": split["hash"], **leak, **numbers, **point, **scores}
