"""Local training: every site alone, the lower reference for personalisation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.algorithm import Algorithm, Global
from ..core.card import Card
from ..core.errors import UnseenSite
from ..core.net import Variables
from ..core.task import Cohort, Empty, Task, Work


@dataclass(frozen=True)
class Local(Algorithm[Empty, Global, Empty, Empty]):
    """Each client trains its own model from the common start; nothing travels."""

    name: ClassVar[str] = "local"
    card: ClassVar[Card] = Card(
        title="Local training",
        citation="the usual reference; also called SingleSet or Standalone",
        url="",
        idea="What a site reaches without the others, at the same budget.",
        sends_up="nothing",
        sends_down="nothing",
        stays="each client's whole model",
        unseen="none: score the sites' own models there, by eval.unseen = 'sites' or 'ensemble'",
    )

    def init_server(self, task: Task) -> Empty:
        """The server has nothing to keep."""
        return Empty()

    def send(self, task: Task, server: Empty, client: int | None) -> Empty:
        """Nothing."""
        return Empty()

    def init_client(self, task: Task, down: Empty, before: Any = None) -> Global:
        """All sites build the same initial network from the run's seed."""
        return Global(task.net.variables())

    def finish(self, task: Task, work: Work) -> tuple[Empty, Global]:
        """Keep the model."""
        return Empty(), Global(work.model)

    def aggregate(self, task: Task, server: Empty, ups: Iterator[Empty], cohort: Cohort) -> Empty:
        """Nothing came."""
        return server

    def model_for(self, task: Task, down: Empty, client: Global | None) -> Variables:
        """The client's own."""
        if client is None:
            raise UnseenSite(
                "local: sites train alone, so a new site has no model; score the sites' own models there "
                "with eval.unseen = 'sites' or 'ensemble'."
            )
        return client.model
