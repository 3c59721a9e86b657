"""A process of one thread that does one run after another: asked on stdin, answering on stdout, a JSON line each.

SIGTERM makes it save the run's state and end, as does an answer that nobody reads any more.
"""

import json
import os
import signal
import sys
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import TextIO

import torch

from ..core.memory import keep_memory
from ..data import Dataset, load
from ..data.decode import Fit
from . import strict
from .config import Experiment
from .crew import End, follow
from .runs import Event, Folder


def ask(config: Experiment, folder: Folder) -> str:
    """The line that asks for a run."""
    return json.dumps({"folder": str(folder.path.absolute()), "config": strict.dump(config)})


def answer(line: str) -> Event | End:
    """What a worker's line says."""
    kind, values = json.loads(line)
    return End(*values) if kind == "end" else Event(*values)


def main() -> int:
    """Work until nobody asks any more."""
    keep_memory()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _interrupt)
    with suppress(KeyboardInterrupt, BrokenPipeError):
        _serve(sys.stdin, _own_stdout())
    return 0


def _serve(asked: TextIO, tell: TextIO) -> None:
    while line := asked.readline():
        what = json.loads(line)
        config, folder = strict.build(Experiment, what["config"]), Folder(Path(what["folder"]))
        with closing(follow(config, folder, _data_of)) as run:
            for said in run:
                kind = "end" if isinstance(said, End) else "round"
                print(json.dumps([kind, said]), file=tell, flush=True)


def _data_of(config: Experiment) -> Dataset:
    return _loaded(config.data.name, config.data.size, config.data.fit)


@lru_cache(maxsize=2)
def _loaded(name: str, size: int, fit: Fit) -> Dataset:
    """Mapped from the store, so that all workers share its memory."""
    return load(name, size, fit)


def _own_stdout() -> TextIO:
    """For answers alone: whatever else prints, prints on stderr."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
