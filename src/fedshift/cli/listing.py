"""`fedshift list`: what there is to choose from, and the runs made so far."""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from ..report.records import ReportError, Run, load, sites_mean, unseen_mean
from .console import columns, say
from .display import percent

Rows = list[list[str]]


def listing(args: Namespace) -> int:
    """One of the lists."""
    lists: dict[str, tuple[tuple[str, ...], Callable[[], Rows]]] = {
        "methods": (("method", "what it is", "source"), methods),
        "models": (("model", "what it is"), models),
        "datasets": (("data set", "what it is", "domains"), datasets),
        "presets": (("preset", "protocol", "data sets", "from"), presets),
        "engines": (("engine", "what it does"), engines),
        "settings": (("setting", "default", "what it is", "values"), settings),
        "runs": (
            ("run", "method", "data", "left out", "seed", "state", "sites", "unseen"),
            lambda: runs(Path(args.out)),
        ),
    }
    heads, rows = lists[args.what]
    found = rows()
    if found:
        columns(heads, found)
    else:
        say(f"No {args.what} in {args.out}.")
    return 0


def methods() -> Rows:
    """Each method's title and citation."""
    from ..methods import METHODS

    return [[name, cls.card.title, cls.card.citation] for name, cls in METHODS.items()]


def models() -> Rows:
    """Each network in a sentence."""
    from ..models import MODELS
    from ..models.external import LIBRARIES

    rows = [[name, sentence(cls)] for name, cls in MODELS.items()]
    return rows + [[f"{name}:NAME", sentence(cls)] for name, cls in LIBRARIES.items()]


def datasets() -> Rows:
    """Each data set and its domains."""
    from ..data import DATASETS

    return [[name, source.summary, ", ".join(source.domains)] for name, source in DATASETS.items()]


def presets() -> Rows:
    """Each paper's protocol."""
    from ..data.presets import PRESETS

    return [[name, it.summary, ", ".join(it.datasets), it.source] for name, it in PRESETS.items()]


def engines() -> Rows:
    """Each engine in a sentence."""
    from ..engines import ENGINES

    return [[name, sentence(cls)] for name, cls in ENGINES.items()]


def settings() -> Rows:
    """Every key of a configuration; those of methods are on their cards."""
    from ..core.optim import OPTIMIZERS
    from ..experiment import strict
    from ..experiment.config import Experiment

    found = strict.fields_of(Experiment)
    keys = [f for f in found if not any(other.name.startswith(f"{f.name}.") for other in found)]
    rows = [[f.name, _default(f.default), f.help, f.type] for f in keys]
    owners: dict[strict.FieldInfo, list[str]] = {}
    for name, cls in OPTIMIZERS.items():
        for field in strict.fields_of(cls, "optimizer"):
            owners.setdefault(field, []).append(name)
    for f, names in owners.items():
        some = f" ({', '.join(names)})" if len(names) < len(OPTIMIZERS) else ""
        rows.append([f.name, f.default, f"{f.help}{some}", f.type])
    return rows


def _default(text: str) -> str:
    """A section's name, where the default is a section."""
    found = re.match(r'\{name = (".*?")', text)
    return found[1] if found else text


def runs(out: Path) -> Rows:
    """Every run in a folder, the latest first; one that cannot be read says why."""
    paths = sorted(out.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [_row(path.parent) for path in paths]


def _row(path: Path) -> list[str]:
    try:
        run = load(path)
    except ReportError as error:
        return [path.name, f"cannot be read: {error}", *[""] * 6]
    state = "finished" if run.finished else f"round {run.rounds} of {run.total}"
    state = f"failed: {run.failed}" if run.failed else state
    what = [run.method, run.config["data"]["name"], "+".join(run.left_out) or "none", str(run.seed)]
    return [path.name, *what, state, *_accuracies(run)]


def _accuracies(run: Run) -> list[str]:
    record = run.chosen
    return [percent(sites_mean(record)), percent(unseen_mean(record))] if record else ["", ""]


def sentence(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())
