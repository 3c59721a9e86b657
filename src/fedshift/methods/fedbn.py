"""FedBN. Li et al., ICLR 2021, https://arxiv.org/abs/2102.07623."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from ..core.algorithm import Algorithm, Global
from ..core.average import average
from ..core.card import Card
from ..core.errors import UnseenSite
from ..core.net import BATCH_NORM, Part, Variables, overlay, part, without
from ..core.task import Cohort, Task, Work


class Client(NamedTuple):
    """This client's own BatchNorm layers: weights and statistics."""

    norm: Part


class Shared(NamedTuple):
    """The tensors that travel."""

    model: Part


@dataclass(frozen=True)
class FedBN(Algorithm[Global, Client, Shared, Shared]):
    """Keep every BatchNorm layer, weights and statistics, at its client; average the rest (Algorithm 1)."""

    name: ClassVar[str] = "fedbn"
    card: ClassVar[Card] = Card(
        title="Federated averaging with local BatchNorm",
        citation="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021",
        url="https://arxiv.org/abs/2102.07623",
        idea="BatchNorm layers absorb the look of a site's images, so each site keeps its own.",
        sends_up="the whole model (report_norm = false: all but the BatchNorm layers)",
        sends_down="all but the BatchNorm layers",
        stays="each client's BatchNorm layers",
        unseen="the averaged model with the average of the reported BatchNorm layers (report_norm = false: none)",
        needs=("batchnorm",),
        deviations=(
            "The paper averages uniformly; here federation.weights decides, for every method alike.",
            "The paper has no model for a new site; its authors suggest averaged BatchNorm layers, the default here.",
            "Layers are found by module type. Released versions search names for 'bn' and miss shortcut norms.",
        ),
    )
    report_norm: Annotated[bool, "upload BatchNorm layers too, for the model of a new site"] = True

    def init_server(self, task: Task) -> Global:
        """The network's initial values."""
        return Global(task.net.variables())

    def send(self, task: Task, server: Global, client: int | None) -> Shared:
        """All but the BatchNorm layers; a new site gets whatever there is."""
        own = frozenset[str]() if client is None and self.report_norm else task.net.under(*BATCH_NORM)
        return Shared(without(server.model, own))

    def init_client(self, task: Task, down: Shared, before: Any = None) -> Client:
        """Every client starts from the same layers, those of the initial network."""
        return Client(part(task.net.variables(), task.net.under(*BATCH_NORM)))

    def finish(self, task: Task, work: Work) -> tuple[Shared, Client]:
        """Keep the trained BatchNorm layers."""
        own = task.net.under(*BATCH_NORM)
        sent = without(work.model, () if self.report_norm else own)
        return Shared(sent), Client(part(work.model, own))

    def aggregate(self, task: Task, server: Global, ups: Iterator[Shared], cohort: Cohort) -> Global:
        """Average what was sent."""
        return Global(overlay(server.model, average(task, ups, cohort).model))

    def model_for(self, task: Task, down: Shared, client: Client | None) -> Variables:
        """The shared layers and the client's own."""
        if client is not None:
            return overlay(Variables(*down.model), client.norm)
        if not self.report_norm:
            raise UnseenSite(
                "fedbn with report_norm = false: no client reports BatchNorm layers, so a new site has none; "
                "set method.report_norm = true, or score the sites' own models with eval.unseen = 'sites'."
            )
        return Variables(*down.model)
