"""pFedHN. Shamsian et al., ICML 2021, https://arxiv.org/abs/2103.04628."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..core.card import Card
from ..core.generating import Generating, Server, Up
from ..core.task import Cohort, Task


@dataclass(frozen=True)
class PFedHN(Generating):
    """One hypernetwork writes every client's model; each delta is its gradient (Algorithm 1)."""

    name: ClassVar[str] = "pfedhn"
    card: ClassVar[Card] = Card(
        title="Personalised models from a hypernetwork",
        citation="Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021",
        url="https://arxiv.org/abs/2103.04628",
        idea="The server learns to write each client's network from a learned embedding of that client.",
        sends_up="the change of all parameters, and the buffers: as many bytes as the model",
        sends_down="the parameters written for this client, and the buffers: the model",
        stays="nothing at a client; the hypernetwork and the embeddings never leave the server",
        unseen="what is written for the mean embedding (newcomer = mean_model: the mean of what the clients get; "
        "refuse: none)",
        deviations=(
            "The paper draws one client per step: set federation.participation to 1 / clients. With more clients in a "
            "round their gradients are averaged by federation.weights into one step.",
            "The hypernetwork is that of hFedF's Table 8, with Adam on the server, so that the two differ by the "
            "aggregation alone; the release has SGD with momentum, and clips at 50 (server_clip = 50).",
            "The paper's networks have no buffers. BatchNorm's are averaged by the protocol's rule, not written.",
            "Networks beyond about a million parameters: heads = low_rank or chunked, which the paper has not.",
            "An absent client's embedding still moves by weight decay and by Adam's memory of earlier rounds.",
        ),
    )

    def aggregate(self, task: Task, server: Server, ups: Iterator[Up], cohort: Cohort) -> Server:
        """One step along the mean of the pulled-back deltas."""
        delta, buffers = self._received(task, ups, cohort)
        h, opt = self._descend(task, server, delta, delta.new_tensor(cohort.weights), cohort)
        return Server(h, opt, server.shadow, buffers)
