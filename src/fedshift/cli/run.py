"""`fedshift run` and `fedshift resume`."""

from argparse import Namespace
from pathlib import Path

from ..experiment import strict
from ..experiment.config import Experiment
from ..experiment.runs import Folder, folder_of
from ..report.records import find
from .choosing import asked_workers, because, resolved
from .display import display
from .driving import configuration, drive, start_over, stopped


def run(args: Namespace) -> int:
    """One experiment, from its configuration."""
    named = configuration(args.config, args.set, args.preset)
    settings = resolved(named, args)
    config = strict.build(Experiment, settings)
    folder = folder_of(config, Path(args.out))
    asked_workers(config, args.workers)  # before anything is forgotten
    if args.fresh:
        start_over(folder)
    chosen = "engine" not in named and args.engine == "auto"
    return _one(config, folder, args, because(settings) if chosen else "")


def resume(args: Namespace) -> int:
    """One experiment, from its folder."""
    folder = Folder(find(args.run, Path(args.out)))
    return _one(folder.experiment(), folder, args)


def _one(config: Experiment, folder: Folder, args: Namespace, reason: str = "") -> int:
    try:
        with display(args.json) as show:
            drive(config, folder, show, vars(args).get("workers", "auto"), reason)
    except KeyboardInterrupt:
        raise stopped(folder) from None
    return 0
