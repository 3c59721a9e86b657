"""The methods, one file each. To add one: write its file, and name it here."""

from typing import Any

from ..core.algorithm import Algorithm
from .central import Central
from .fedavg import FedAvg
from .fedbn import FedBN
from .fedprox import FedProx
from .hfedf import HFedF
from .local import Local
from .pfedhn import PFedHN
from .scaffold import Scaffold

METHODS: dict[str, type[Algorithm[Any, Any, Any, Any]]] = {
    cls.name: cls for cls in (Central, Local, FedAvg, FedProx, Scaffold, FedBN, PFedHN, HFedF)
}
