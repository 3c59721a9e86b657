"""FDSE. Wang et al., CVPR 2025, https://arxiv.org/abs/2503.13063."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from ..core import eraser
from ..core.average import average
from ..core.bounds import Log
from ..core.card import Card
from ..core.erasing import Erasing, Server, Shared
from ..core.minnorm import consensus
from ..core.net import Part, overlay, without
from ..core.optim import Positive
from ..core.similarity import attend
from ..core.task import Cohort, Task
from ..core.tree import Tensors


@dataclass(frozen=True)
class FDSE(Erasing):
    """Extract what domains share, erase what they do not, layer by layer (Algorithm 1; 3 at a new site)."""

    name: ClassVar[str] = "fdse"
    card: ClassVar[Card] = Card(
        title="Domain shift eraser",
        citation="Wang et al., Federated Learning with Domain Shift Eraser, CVPR 2025",
        url="https://arxiv.org/abs/2503.13063",
        idea="Each layer with a norm becomes a shared extractor of half its channels and a personal, cheap eraser that "
        "makes the rest. Extractors take the step to which no client objects, erasers mix with those like them, and "
        "local training draws the statistics behind each layer towards everybody's.",
        sends_up="all parameters and all statistics (report_stats = false: but those inside the erasers); with the "
        "paper's AlexNet 24.85 MiB, where methods without erasers send 49.52",
        sends_down="all parameters, with this client's own erasers, and all statistics but those inside the erasers "
        "(24.84 MiB)",
        stays="each client's statistics inside its erasers; the server keeps every client's eraser parameters",
        unseen="the shared layers with the mean of the clients' erasers and statistics (report_stats = false: none). "
        "Without labels it adapts by Algorithm 3: the regulariser alone trains the erasers' parameters, and their "
        "statistics follow the new site's images. The last norms normalise as in evaluation, by statistics that stay",
        needs=("batchnorm",),
        deviations=(
            "Statistics, what a new site starts from, and modules that are switched off are averaged with the "
            "protocol's weights; the paper's means are uniform. The minimum-norm rule counts all clients alike.",
            "Eq. 6 is computed for each channel. The releases reduce a layer to one mean and one variance over its "
            "channels; the last one also keeps a single pair for all layers and takes mu^2 - m^2 for (mu - m)^2, so "
            "its lambdas say little here. reg = gauss_kl is what that would be, per channel.",
            "gamma weighs the old estimate, as Eq. 5 prints, so it is 1 - 0.1 where BatchNorm's own momentum is 0.1.",
            "The first estimate of a round is not printed. That of the first batch is the last release's; "
            "stat_init = global is the first one's, where the term starts at 0. Its gradient is 1 - gamma of the "
            "batch's from the first step on. As released, it begins in round 2 (reg_start), when there are means.",
            "ReLU follows the erasers' norm, as printed; the last release has none there (act = none). The releases' "
            "bias in front of the last norm, which the norm cancels, is left out, as is the printed padding of linear "
            "layers. Extractors start as the first filters of the network as built.",
            "Directions are those of single tensors, as released; group = layer takes a layer's together, as written. "
            "A client without a change has no direction; the releases give it one of zero, which freezes the tensor.",
            "Table 3 does not say what erasers do without B: erasers = mean averages them, own leaves them alone. "
            "A is consensus = mean, C is lam = 0.",
            "blocks = all treats shortcuts' projections too; last is the paper's choice for ResNet. A transformer's "
            "feed-forward parts get an eraser after their second layer, and the BatchNorm over tokens behind it.",
            "Where a newcomer starts, and the rate of Algorithm 3 (adapt_lr times the training rate), are ours.",
        ),
    )
    consensus: Annotated[
        Literal["min_norm", "mean"], "extractors: the step nobody objects to, or the mean (Table 3 without A)"
    ] = "min_norm"
    group: Annotated[Literal["tensor", "layer"], "min_norm: what has a direction of its own"] = "tensor"
    erasers: Annotated[
        Literal["attention", "mean", "own"], "erasers: mixed by likeness, the mean (Table 3 without B), or left alone"
    ] = "attention"
    tau: Annotated[float, Positive, Log(1e-3, 0.5), "attention's temperature; a smaller one is more personal"] = 0.5

    def aggregate(self, task: Task, server: Server, ups: Iterator[Shared], cohort: Cohort) -> Server:
        """Extractors by consensus, erasers by attention, statistics and what new sites start from by the mean."""
        got = [up.model for up in ups]
        agreed = self._agreed(task, server, got)
        mean = average(task, (without(model, agreed) for model in got), cohort)
        model = overlay(server.model, Part(mean.params | agreed, mean.buffers))
        return Server(model, self._mixed(server, got, mean, cohort))

    def _agreed(self, task: Task, server: Server, got: Sequence[Part]) -> Tensors:
        """Section 3.3.1: theta <- theta + mean length times the shortest mix of the clients' directions."""
        if self.consensus == "mean":
            return {}
        groups, old = eraser.blocks(task.net.module), server.model.params
        shared = [name for block in groups.values() for name in block]
        changes = [{k: model.params[k] - old[k] for k in shared} for model in got]
        step = consensus(changes, groups if self.group == "layer" else {k: (k,) for k in shared})
        return {k: old[k] + step[k] for k in shared}

    def _mixed(self, server: Server, got: Sequence[Part], mean: Part, cohort: Cohort) -> Tensors:
        """Section 3.3.2: each client's next erasers; those of absent clients wait, unless all are the mean."""
        if self.erasers == "mean":
            return {k: mean.params[k].expand_as(rows).clone() for k, rows in server.erasers.items()}
        own = [{k: model.params[k] for k in server.erasers} for model in got]
        new = attend(own, self.tau) if self.erasers == "attention" else own
        ids = torch.tensor(cohort.ids)
        stacked = {k: torch.stack([x[k] for x in new]) for k in server.erasers}
        return {k: rows.index_copy(0, ids.to(rows.device), stacked[k]) for k, rows in server.erasers.items()}
