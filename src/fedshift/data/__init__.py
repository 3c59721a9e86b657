"""The data sets, one file each. To add one: write its file, and name its source here."""

from ..core.errors import DataError
from .dataset import Dataset, Domain, Source
from .federation import Federation, Protocol, federate
from .glyphs import SOURCE as GLYPHS

DATASETS: dict[str, Source] = {source.name: source for source in (GLYPHS,)}


def load(name: str) -> Dataset:
    """The data set of that name."""
    source = DATASETS[name]
    if source.load is None:
        raise DataError(f"data set {name!r} is not on this machine; get or import it with `fedshift data`.")
    return source.load()


__all__ = ["DATASETS", "Dataset", "Domain", "Federation", "Protocol", "Source", "federate", "load"]
