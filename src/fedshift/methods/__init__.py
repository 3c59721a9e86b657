"""The methods, one file each. To add one: write its file, and name it here with its class.

A file is imported when its method is asked for: a run waits for no other's.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

from ..core.algorithm import Algorithm

Kind = type[Algorithm[Any, Any, Any, Any]]


class Methods(MutableMapping[str, Kind]):
    """Classes by the names of their methods, which are those of their files."""

    def __init__(self, **classes: str | Kind) -> None:
        self._classes = classes

    def __getitem__(self, name: str) -> Kind:
        found = self._classes[name]
        if isinstance(found, str):
            found = self._classes[name] = getattr(import_module(f".{name}", __package__), found)
        return found

    def __setitem__(self, name: str, kind: Kind) -> None:
        self._classes[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, name: object) -> bool:
        return name in self._classes


METHODS = Methods(
    central="Central",
    local="Local",
    fedavg="FedAvg",
    fedprox="FedProx",
    scaffold="Scaffold",
    fedbn="FedBN",
    pfedhn="PFedHN",
    hfedf="HFedF",
    feddca="FedDCA",
    fdse="FDSE",
    rfeddis="RFedDis",
    lsi="LSI",
)
