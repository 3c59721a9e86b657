"""`fedshift show NAME`: a method's, data set's or network's card."""

from argparse import Namespace
from collections.abc import Mapping
from inspect import formatannotation, getdoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from .. import models
from ..core.errors import ConfigError, nearest
from ..data import DATASETS, Source
from ..experiment import strict
from ..methods import METHODS
from ..models import MODELS
from ..models.external import LIBRARIES
from .console import columns, say

WIDE = 16  # of the names before the texts


def show(args: Namespace) -> int:
    """The card of whatever has that name."""
    name = args.name
    if name in METHODS:
        _method(name)
    elif name in DATASETS:
        _dataset(DATASETS[name])
    elif name in MODELS or name.partition(":")[0] in LIBRARIES:
        _model(name)
    else:
        known = [*METHODS, *DATASETS, *MODELS]
        hint = nearest(name, known) or f" ({', '.join(known)})"
        raise ConfigError(f"show: found {name!r}, expected the name of a method, data set or network{hint}.")
    return 0


def _method(name: str) -> None:
    cls = METHODS[name]
    card = cls.card
    say(f"{name}: {card.title}", "bold")
    _texts({
        "idea": card.idea,
        "citation": card.citation,
        "link": card.url,
        "travels up": card.sends_up,
        "travels down": card.sends_down,
        "stays": card.stays,
        "unseen site": card.unseen,
        "needs": ", ".join({"batchnorm": "a network with BatchNorm layers"}[need] for need in card.needs),
        "on a GPU": "; ".join(f"stage {s} runs client by client: {why}" for s, why in card.unrecorded.items()),
    })  # fmt: skip
    if card.deviations:
        say("\ndeviations and choices", "bold")
        for text in card.deviations:
            say(_filled(text, "  - ", "    "))
    rows = [[f"method.{f.name}", f.default, f.help, f.type] for f in strict.fields_of(cls)]
    _settings(rows, "This method has no settings of its own.")


def _dataset(source: Source) -> None:
    say(f"{source.name}: {source.summary}", "bold")
    _texts({
        "domains": ", ".join(source.domains),
        "citation": source.citation,
        "licence": source.licence,
        "use it": f"--set data.name={source.name}",
    })  # fmt: skip


def _model(name: str) -> None:
    cls = MODELS.get(name) or LIBRARIES[name.partition(":")[0]]
    options = models.options(name)
    say(name, "bold")
    _texts({"what": getdoc(cls) or "", "citation": cls.citation, "use it": f"--set model.name={name}"})
    rows = [
        [f"model.options.{key}", _default(o.default), "", formatannotation(o.annotation)] for key, o in options.items()
    ]
    _settings(rows, "This network has no options.")


def _texts(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if text:
            say(_filled(text, f"{name:<{WIDE}}", " " * WIDE))


def _settings(rows: list[list[str]], none: str) -> None:
    say()
    if rows:
        columns(("setting", "default", "what it is", "values"), rows)
    else:
        say(none)


def _filled(text: str, first: str, rest: str) -> str:
    width = min(get_terminal_size().columns, 100)
    return fill(
        " ".join(text.split()),
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )


def _default(value: Any) -> str:
    return "" if value is None else repr(value)
