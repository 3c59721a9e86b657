"""FedDCA. Hameed, Rizwan and Akhtar, LUMS CS6304 final report; not a reviewed paper."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.algorithm import Algorithm
from ..core.average import average, average_by
from ..core.bounds import Range
from ..core.card import Card
from ..core.drawing import Client, Down, Drawing, hits, inverse_shares
from ..core.errors import ConfigError
from ..core.net import Variables
from ..core.optim import Positive
from ..core.task import Cohort, Round, Site, Task, Work
from ..core.tree import Tensors


class Scored(NamedTuple):
    """A model and accuracies: at the server each client's last (below zero: none yet), on the way up one, a_k."""

    model: Variables
    accuracy: Tensor


@dataclass(frozen=True)
class FedDCA(Drawing, Algorithm[Scored, Client, Down, Scored]):
    """Weigh clients by accuracy; where it is low, draw more images of a client, and of a class (Section 3)."""

    name: ClassVar[str] = "feddca"
    card: ClassVar[Card] = Card(
        title="Dynamic client and class adaptation",
        citation="Hameed, Rizwan and Akhtar, FedDCA, LUMS CS6304 final report (not reviewed)",
        url="https://github.com/Fayzan-Ali-Akhtar/FedDCA",
        idea="Accurate clients count more in the average; clients and classes that do badly get more images a round.",
        sends_up="the whole model, and one number, its accuracy at the client",
        sends_down="the whole model, and one number, the share of its images that the client draws",
        stays="each client's class accuracies and class ratios",
        unseen="the averaged model",
        deviations=(
            "The printed update adds models, by weights that do not sum to one, to the old one, so it grows. As in "
            "the release, weights are normalised (all zero: equal), and with server_lr = 1 the mean is the new model.",
            "size = true is the text; the release prints size ratios and never uses them. They start from base each "
            "round, and all clients together draw extra of one's images more than fedavg at local.sample = base.",
            "An accuracy below 1 % counts as 1 %. The release's 1e-6 would give one such client all of extra.",
            "validation = fixed holds out a share of each class once, and all that is drawn from the rest trains. In "
            "the release a fifth of each draw validates and may train the next time (redrawn), which flatters.",
            "absent = zero and first = 0.01, a tenth of the draw, are the release's; the text has first = 0.1 or 0.3.",
            "A class that a client has gets one image at least, a draw four where there are so many. What a class "
            "lacks is not made up for, as in the release (refill = true: it is). local.sample has no say in a draw.",
            "Accuracies are the clients' word, on sets that differ. mu is Figure 8's proximal term (unstated; 0.01).",
        ),
        neutral=dict(weights="protocol", size=False, classes="off", base=1.0, holdout=0.0, server_lr=1.0, mu=0.0),
    )
    weights: Annotated[Literal["accuracy", "protocol"], "in the average: accuracies, or federation.weights"] = (
        "accuracy"
    )
    size: Annotated[bool, "draw more images where a client's accuracy is low"] = True
    base: Annotated[float, Range(0, 1, open_low=True), "share of its images that a client draws each round"] = 0.35
    extra: Annotated[float, Range(0), "what size adaptation adds to it, over all clients"] = 0.20
    server_lr: Annotated[float, Positive, "share of the way from the old model to the mean"] = 1.0
    mu: Annotated[float, Range(0), "strength of the proximal term"] = 0.0

    def __post_init__(self) -> None:
        """Refuse to adapt to what is not measured."""
        if not self.holdout and (self.weights == "accuracy" or self.size or self.classes == "adaptive"):
            raise ConfigError("holdout is 0, and accuracies decide weights, size or classes; please hold out a share")

    def init_server(self, task: Task) -> Scored:
        """Nobody's accuracy is known."""
        model = task.net.variables()
        like = next(iter(model.params.values()))
        return Scored(model, torch.full((task.clients,), -1.0, dtype=torch.float64, device=like.device))

    def send(self, task: Task, server: Scored, client: int | None) -> Down:
        """r_k = base + extra w_k, at most 1, where w_k = (1/a_k) / sum_j (1/a_j)."""
        share = inverse_shares(server.accuracy)[client or 0] * float(self.size and client is not None)
        return Down(server.model, (self.base + self.extra * share).clamp(max=1))

    def init_client(self, task: Task, down: Down, before: Any = None) -> Client:
        """All classes alike."""
        return Client(self._first_ratios(task, down.size))

    def begin(self, task: Task, down: Down, client: Client | None, round: Round, site: Site) -> Work:
        """Train on this round's draw."""
        work = super().begin(task, down, client, round, site)
        return work if client is None else work._replace(rows=self._drawn(task, work, site)[0])

    def correct(self, task: Task, grads: Tensors, work: Work) -> Tensors:
        """The gradient of mu/2 ||theta - theta_global||^2 comes on top."""
        return tree.axpy(self.mu, tree.sub(work.model.params, work.down.model.params), grads) if self.mu else grads

    def finish(self, task: Task, work: Work) -> tuple[Scored, Client]:
        """a_k goes up; a_kc make the next class ratios here."""
        assert work.site is not None
        validation = self._drawn(task, work, work.site)[1]
        right, seen = hits(task, work.model, work.site.look(validation) if self.holdout else ())
        ratios = self._ratios(right, seen) if self.classes == "adaptive" else work.client.ratios
        return Scored(work.model, right.sum() / seen.sum().clamp(min=1)), Client(ratios)

    def aggregate(self, task: Task, server: Scored, ups: Iterator[Scored], cohort: Cohort) -> Scored:
        """Theta <- theta + server_lr sum_k a'_k (theta_k - theta), where a'_k = a_k / sum_j a_j."""
        accuracy = server.accuracy.clone()

        def arriving() -> Iterator[Scored]:
            for k, up in zip(cohort.ids, ups, strict=True):
                accuracy[k] = up.accuracy
                yield up

        by_accuracy = self.weights == "accuracy"
        mean = average_by(task, arriving()) if by_accuracy else average(task, (u.model for u in arriving()), cohort)
        return Scored(Variables(tree.blend(self.server_lr, mean.params, server.model.params), mean.buffers), accuracy)

    def model_for(self, task: Task, down: Down, client: Client | None) -> Variables:
        """The same model everywhere."""
        return down.model
