"""A method in words: what its users must know before they trust a number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Card:
    """Shown by `fedshift show NAME`, and the source of the methods' documentation."""

    title: str
    citation: str
    url: str
    idea: str
    sends_up: str
    sends_down: str
    stays: str
    unseen: str
    needs: tuple[Literal["batchnorm"], ...] = ()
    deviations: tuple[str, ...] = ()
    unrecorded: Mapping[str, str] = field(default_factory=dict)  # stage -> why its steps cannot be recorded on a GPU
    neutral: Mapping[str, Any] | None = None  # settings at which the method is FedAvg
    quick: Mapping[str, Any] = field(default_factory=dict)  # sizes for tests, where the server's own work takes long
