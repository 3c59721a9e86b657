"""FedBN. Li et al., ICLR 2021, https://arxiv.org/abs/2102.07623."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..core.card import Card
from ..core.keeping import Keeping
from ..core.net import BATCH_NORM
from ..core.task import Task


@dataclass(frozen=True)
class FedBN(Keeping):
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

    def _kept(self, task: Task) -> frozenset[str]:
        return task.net.under(*BATCH_NORM)

    def _reported(self, task: Task) -> frozenset[str]:
        return self._kept(task) if self.report_norm else frozenset()
