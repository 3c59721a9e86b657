"""Central training: the union of all sites' images, the reference that federation may not use."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.algorithm import Averaging, Global
from ..core.card import Card
from ..core.task import Empty, Task


@dataclass(frozen=True)
class Central(Averaging[Empty]):
    """One client that owns everything; its average is itself."""

    name: ClassVar[str] = "central"
    pools: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        title="Central training",
        citation="the usual reference; also called DeepAll or ERM on pooled data",
        url="",
        idea="What could be reached if the images might be pooled, at the same number of visits to each image.",
        sends_up="nothing: all images lie in one place",
        sends_down="nothing",
        stays="nothing",
        unseen="the one model",
        deviations=(
            "Rounds remain: the optimiser starts afresh each round unless local.keep_optimizer is true.",
            "BatchNorm sees batches of mixed domains, an advantage that no federation has.",
            "Images are drawn evenly over the union, so larger sites count more.",
        ),
    )

    def init_client(self, task: Task, down: Global, before: Any = None) -> Empty:
        """Nothing is remembered."""
        return Empty()
