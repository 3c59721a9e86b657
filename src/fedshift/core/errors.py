"""Errors that speak to the user: one sentence each, saying what, found, expected and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedshiftError(Exception):
    """A problem the user can act on; shown without a traceback by the command line."""


class ConfigError(FedshiftError):
    """A configuration key, type or value that cannot be used."""


class DataError(FedshiftError):
    """Data that is missing, damaged or does not fit what was asked of it."""


class ModelError(FedshiftError):
    """A network that cannot be built, or weights that do not fit it."""


class MessageError(FedshiftError):
    """A state or message whose names, shapes, dtypes or values are not what its type declares."""


class CheckpointError(FedshiftError):
    """A checkpoint or run folder that cannot be used."""


class UnseenSite(FedshiftError):
    """The method has no model of its own for a site that took no part in training."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The nearest valid name as the tail of a sentence, or nothing when none is near."""
    close = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
