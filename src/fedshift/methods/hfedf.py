"""hFedF. Bartholet et al., 2024, https://arxiv.org/abs/2402.06974."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.algorithm import Algorithm
from ..core.bounds import Range
from ..core.card import Card
from ..core.embedding import Embed
from ..core.generating import Generating, Server, Up
from ..core.optim import Positive
from ..core.similarity import align
from ..core.task import Cohort, Task
from ..core.tree import Tensors


@dataclass(frozen=True)
class HFedF(Generating):
    """Fuse the clients' updates in a hypernetwork, weighted by how they agree (Algorithms 1 to 4)."""

    name: ClassVar[str] = "hfedf"
    card: ClassVar[Card] = Card(
        title="Non-linear fusion by a hypernetwork",
        citation="Bartholet et al., Non-linear Fusion in Federated Learning: A Hypernetwork Approach to Federated "
        "Domain Generalization, 2024",
        url="https://arxiv.org/abs/2402.06974",
        idea="A hypernetwork on the server writes each client's model. What clients learn comes back as gradients of "
        "the hypernetwork, weighted by how they agree with their mean (GradAlign), and steps are damped (EMA).",
        sends_up="the change of all parameters, and the buffers: as many bytes as the model (embedding = autoencoder: "
        "before that, in each of its 50 rounds, one mean latent of dim numbers)",
        sends_down="the parameters written for this client, and the buffers: the model",
        stays="nothing at a client (embedding = autoencoder: its autoencoder); the hypernetwork, 51 numbers for each "
        "parameter with full heads, and the embeddings never leave the server",
        unseen="what is written for the mean embedding (newcomer = mean_model: the mean of what the clients get; "
        "refuse: none). The paper has each client's model answer and averages the accuracies: eval.unseen = sites, "
        "as the preset has it",
        deviations=(
            "The paper's delta (trained less received) is subtracted, so its server climbs. Here delta is received "
            "less trained, as in pFedHN: for a linear hypernetwork the server then takes over what was trained.",
            "Eq. 9 gives weight to clients that disagree with the mean, Algorithm 3 and the text to those that agree, "
            "the default here; align_sign = -1 is Eq. 9. A zero gradient counts as cosine zero.",
            "EMA as printed writes its average back, so it is a server step damped by ema from round ema_warmup + 1 on "
            "and no average over the past: s + a u. ema_mode = shadow lets the average write the clients' models, "
            "while what learns goes on undamped; its gradient is taken where the models were written. The paper does "
            "not say after how many rounds EMA begins (10 here); Adam's moments are left alone.",
            "weights = uniform is Table 5 without GradAlign, ema_mode = off without EMA; weights = examples is Eq. 1's "
            "weighting. GradAlign and uniform do not look at federation.weights.",
            "head_init = default is torch's, as the paper says nothing: weights start with deviation near 0.1 in every "
            "layer, whatever its fan-in. hyperfan starts linear and convolution weights with variance 2 / fan-in, "
            "their biases at zero and all else, such as BatchNorm, as built. Neither diverged in a short pilot.",
            "embedding = redrawn is Table 6: random embeddings, new after every round, evaluated fresh. autoencoder is "
            "Figure 8: Table 9's, trained by the local optimiser for 50 rounds, scored with the network as built, on "
            "up to 100 training images a site at 32 pixels, scaled to [0, 1] by the site's own extremes, and without "
            "labels; the latent is the mean over these images (the paper: over validation images).",
            "The paper stops near a million parameters. low_rank heads hold rank + 1 numbers per parameter, chunked "
            "ones a bias per parameter and a shared matrix; ResNet-18 fits in either.",
            "The paper's network has no buffers. BatchNorm's are averaged by the protocol's rule, not written.",
            "An absent client's embedding still moves by weight decay and by Adam's memory of earlier rounds.",
        ),
    )
    weights: Annotated[
        Literal["align", "uniform", "examples"], "of the clients' gradients: GradAlign, equal, or by images"
    ] = "align"
    align_sign: Annotated[Literal[1, -1], "1: weight for agreement; -1: for disagreement, as Eq. 9 prints"] = 1
    align_temp: Annotated[float, Positive, "GradAlign's softmax temperature"] = 1.0
    ema_mode: Annotated[
        Literal["writeback", "shadow", "off"], "the average replaces what learns, writes in its place, or is not kept"
    ] = "writeback"
    ema: Annotated[float, Range(0, 1, open_low=True), "a, the share of the newest state"] = 0.95
    ema_warmup: Annotated[int, Range(0), "w, rounds before the average begins"] = 10
    embedding: Annotated[
        Literal["learned", "redrawn", "autoencoder"], "learned, random anew each round, or from the clients' images"
    ] = "learned"

    def stages(self) -> Sequence[Algorithm[Server, Any, Any, Any]]:
        """Autoencoders first, if embeddings come from them."""
        return (Embed(self), self) if self.embedding == "autoencoder" else (self,)

    def init_server(self, task: Task) -> Server:
        """The shadow starts where the hypernetwork does."""
        server = super().init_server(task)
        return server._replace(shadow=tree.clone(server.h) if self.ema_mode == "shadow" else {})

    def _learned(self, h: Tensors) -> Tensors:
        return {k: t for k, t in super()._learned(h).items() if k != "nu" or self.embedding == "learned"}

    def aggregate(self, task: Task, server: Server, ups: Iterator[Up], cohort: Cohort) -> Server:
        """Algorithm 1: g = sum_i gamma_i (d phi_i / d(theta, nu))^T delta_i, a step of Adam along it, then EMA."""
        delta, buffers = self._received(task, ups, cohort)
        gamma = self._gamma(task, server, delta, cohort)
        stepped, opt = self._descend(task, server, delta, gamma, cohort)
        h, shadow = self._averaged(server, stepped, cohort.round)
        if self.embedding == "redrawn":
            nu = self._embeddings(task, cohort.round + 1)
            h, shadow = h | {"nu": nu}, shadow and shadow | {"nu": nu.clone()}
        return Server(h, opt, shadow, buffers)

    def _gamma(self, task: Task, server: Server, delta: Tensor, cohort: Cohort) -> Tensor:
        """Algorithm 3, GradAlign: gamma_i = softmax_i of cos(g_i, mean g), from inner products alone."""
        if self.weights != "align":
            n = delta.new_tensor(cohort.examples) if self.weights == "examples" else torch.ones_like(delta[:, 0])
            return n / n.sum()
        h = server.shadow or server.h
        learned = self.embedding == "learned"
        net = self._writer(task.net.module)
        products = net.products(h, h["nu"][list(cohort.ids)], delta, embeddings=learned)
        return align(products, self.align_sign, self.align_temp)

    def _averaged(self, server: Server, stepped: Tensors, t: int) -> tuple[Tensors, Tensors]:
        """Algorithm 4: for t > w, shadow <- a state + (1 - a) shadow. Written back, the shadow is the state before."""
        if self.ema_mode == "shadow":
            follows = t > self.ema_warmup and self.ema < 1
            return stepped, tree.blend(self.ema, stepped, server.shadow) if follows else tree.clone(stepped)
        damped = self.ema_mode == "writeback" and t > self.ema_warmup
        return tree.blend(self.ema, stepped, server.h) if damped else stepped, {}
