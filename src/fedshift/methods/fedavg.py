"""FedAvg. McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.algorithm import Averaging, Global
from ..core.card import Card
from ..core.task import Empty, Task


@dataclass(frozen=True)
class FedAvg(Averaging[Empty]):
    """Average the clients' models after local training (Algorithm 1)."""

    name: ClassVar[str] = "fedavg"
    card: ClassVar[Card] = Card(
        title="Federated averaging",
        citation="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017",
        url="https://arxiv.org/abs/1602.05629",
        idea="Each client trains the received model on its own images; the server averages the results.",
        sends_up="the whole model",
        sends_down="the whole model",
        stays="nothing (with federation.buffers = local, the BatchNorm statistics)",
        unseen="the averaged model",
        neutral={},
    )

    def init_client(self, task: Task, down: Global, before: Any = None) -> Empty:
        """Nothing is remembered."""
        return Empty()
