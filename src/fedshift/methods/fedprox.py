"""FedProx. Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ..core import tree
from ..core.algorithm import Averaging, Global
from ..core.bounds import Log, Range
from ..core.card import Card
from ..core.task import Empty, Task, Work
from ..core.tree import Tensors


@dataclass(frozen=True)
class FedProx(Averaging[Empty]):
    """Pull each local model towards the received one: local loss + mu/2 ||w - w_t||^2 (Eq. 2)."""

    name: ClassVar[str] = "fedprox"
    card: ClassVar[Card] = Card(
        title="Federated averaging with a proximal term",
        citation="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
        url="https://arxiv.org/abs/1812.06127",
        idea="A quadratic term keeps local models near the received one, so that unlike sites drift apart less.",
        sends_up="the whole model",
        sends_down="the whole model",
        stays="nothing",
        unseen="the averaged model",
        neutral={"mu": 0.0},
        deviations=(
            "The term enters as its exact gradient mu (w - w_t), before clipping; the reported loss leaves it out.",
            "The paper lets each client solve its problem inexactly; here every client runs the protocol's budget.",
            "Some released code penalises the norm without the square; that is another method and is not offered.",
        ),
    )
    mu: Annotated[float, Range(0), Log(1e-4, 1), "strength of the pull"] = 0.01

    def init_client(self, task: Task, down: Global, before: Any = None) -> Empty:
        """Nothing is remembered."""
        return Empty()

    def correct(self, task: Task, grads: Tensors, work: Work) -> Tensors:
        """Add the gradient of the proximal term."""
        received = work.down.model.params
        return tree.map(lambda g, w, w_t: g.add(w - w_t, alpha=self.mu), grads, work.model.params, received)
