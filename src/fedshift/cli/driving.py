"""One experiment in its folder, told to a display event by event."""

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConfigError
from ..data import Dataset, presets
from ..data import load as load_data
from ..engines.workers import THREADS
from ..experiment import strict
from ..experiment.config import Experiment
from ..experiment.files import owned
from ..experiment.runs import Folder, execute
from ..report.comparison import plain
from ..report.records import Run, load, outcome, saved_round
from .choosing import flying, workers
from .main import Stopped
from .progress import progress

Emit = Callable[[dict[str, Any]], None]


def configuration(
    file: str | None, sets: list[str], preset: str | None = None, method: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A preset's settings, changed by the file's, changed by those of the command line; `method` is in their place."""
    own = strict.read_toml(Path(file)) if file else {}
    chosen = method or strict.merge(own, sets).get("method", {})
    chosen = chosen if isinstance(chosen, Mapping) else {"name": chosen}
    name, _, dataset = (preset or "").partition(":")
    base = presets.preset(name, dataset, str(chosen.get("name", ""))) if preset else {}
    settings = strict.merge(_over(base, own), sets)
    return settings | ({"method": {**base.get("method", {}), **chosen}} if chosen else {})


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `changes` in place of its own; another network or optimiser replaces its section."""
    both = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name") in (None, old.get("name")):
            both[key] = {**old, **value}
        else:
            both[key] = value
    return both


def method_label(method: Any) -> str:
    """A method's name with the settings that are not its defaults."""
    defaults = strict.dump(type(method)())
    odd = [f"{k}={plain(v)}" for k, v in strict.dump(method).items() if v != defaults[k]]
    return f"{method.name}({', '.join(odd)})" if odd else str(method.name)


def drive(config: Experiment, folder: Folder, emit: Emit, asked: str = "1", reason: str = "") -> Run:
    """Run it, or what is left of it, with workers as asked; the events are `start`, `round` and `result`.

    `reason` is why its engine is the plain one.
    """
    data = None if folder.done.exists() else pictures(config)
    many = workers(config, folder, data, asked) if data else 1
    flies = flying(config, data) if data else 0
    emit({"event": "start", **opening(config, folder, many), "in_flight": flies, "because": reason})
    events = execute(config, folder, data, many)
    with closing(events):  # an interrupted run saves its state before this goes on
        for event in events:
            emit({"event": "round", "run": folder.path.name, **event._asdict()})
    run = load(folder.path)
    emit({"event": "result", "run": folder.path.name, "folder": str(folder.path), **outcome(run)})
    return run


def pictures(config: Experiment) -> Dataset:
    """The run's data set; decoding it for the first time tells how far it is."""
    with progress(f"decoding {config.data.name}") as tell:
        data = load_data(config.data.name, config.data.size, config.data.fit, tell)
    if data.skipped:
        path, why = data.skipped[0]
        left = f"{len(data.skipped)} picture{'s' * (len(data.skipped) > 1)}"
        print(f"{config.data.name}: left out {left} that cannot be decoded, such as {path}: {why}", file=sys.stderr)
    return data


def opening(config: Experiment, folder: Folder, workers: int = 1, threads: int = 0) -> dict[str, Any]:
    """What a display must know of a run at its start; of one that is finished, by what it was computed."""
    done = saved_round(folder.path)
    state = "finished" if folder.done.exists() else "interrupted" if done else "new"
    if state == "finished":
        made = load(folder.path).versions
        workers, threads = made.get("workers", workers), made.get("threads", threads)
    return {
        **shared(config, folder.path, workers, threads),
        "run": folder.path.name,
        "method": method_label(config.method),
        "left_out": list(config.data.left_out),
        "seed": config.seed,
        "state": state,
        "done": done,
        "rounds": config.federation.rounds,
    }


def shared(config: Experiment, folder: Path, workers: int = 1, threads: int = 0) -> dict[str, Any]:
    """What the runs of a comparison have in common; without workers, torch has `threads`, 0: as many as here."""
    lone = config.engine == "fast" and config.precision == "bf16"  # one thread for each worker
    return {
        "folder": str(folder),
        "data": config.data.name,
        "model": config.model.name,
        "engine": config.engine,
        "device": config.device,
        "gpu": torch.cuda.get_device_name() if config.device == "cuda" and torch.cuda.is_available() else None,
        "precision": config.precision,
        "threads": (threads or THREADS.all) if workers == 1 and not lone else workers,
        "workers": workers,
    }


def writable(out: str) -> Path:
    """The file that --out names; its folder is made now, so that no work is lost for want of it."""
    file = Path(out)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror}); give another file by --out.") from None
    return file


def stopped(folder: Folder) -> Stopped:
    """What to say when a single run is ended by the user."""
    done = saved_round(folder.path)
    if not done:
        return Stopped("stopped before the end of the first round; to go on, repeat the command.")
    command = f"fedshift resume {shlex.quote(str(folder.path))}"
    return Stopped(f"stopped; everything up to round {done} is safe in {folder.path}.\nTo go on: {command}")


def start_over(folder: Folder) -> None:
    """Forget what a run's folder holds; without checkpoint and end mark, the run begins anew."""
    if folder.path.exists():
        with owned(folder.path):
            for path in (folder.done, folder.checkpoint):
                path.unlink(missing_ok=True)
