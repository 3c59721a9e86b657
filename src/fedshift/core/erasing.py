"""What a client does in a method with domain shift erasers: train, keep, and adapt at a new site (FDSE, section 3)."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from . import consistency, eraser
from .algorithm import Algorithm
from .bounds import Log, Range
from .errors import UnseenSite
from .net import Part, Variables, overlay, part, without
from .optim import Positive
from .task import Batch, Loss, Phase, Round, Site, Task, Work
from .tree import Tensors


class Server(NamedTuple):
    """Everybody's model, with the mean of the erasers in it; and each client's eraser parameters, a row each."""

    model: Variables
    erasers: Tensors


class Client(NamedTuple):
    """The running statistics inside this client's erasers."""

    stats: Part


class Shared(NamedTuple):
    """The tensors that travel."""

    model: Part


@dataclass(frozen=True)
class Erasing(Algorithm[Server, Client, Shared, Shared]):
    """Everything but the card and the server's `aggregate`."""

    blocks: Annotated[Literal["all", "last"], "layers that change: all with a norm, or the last of each branch"] = "all"
    ratio: Annotated[int, Range(2), "G: one in so many channels is extracted, the others are made from these"] = 2
    kernel: Annotated[Literal[1, 3, 5, 7], "width of the erasers' depthwise kernels"] = 3
    act: Annotated[Literal["relu", "leaky", "none"], "what follows the erasers' norm"] = "relu"
    lam: Annotated[float, Range(0), Log(1e-2, 1), "lambda, weight of the regulariser; 0 is Table 3 without C"] = 0.1
    beta: Annotated[float, Range(0), "how much deeper layers outweigh: w_l = softmax(beta l)"] = 0.001
    gamma: Annotated[float, Range(0, 1, open_high=True), "share of the old estimate of a site's statistics"] = 0.9
    reg: Annotated[
        Literal["moments", "gauss_kl"], "distance of statistics: Eq. 6, or the divergence of normal distributions"
    ] = "moments"
    stat_init: Annotated[
        Literal["first_batch", "global"], "a round's first estimate: its first batch's statistics, or everybody's"
    ] = "first_batch"
    reg_start: Annotated[int, Range(1), "first round with the regulariser, counted from 1"] = 2
    adapt_lr: Annotated[float, Positive, "rate of label-free adaptation, as a share of the training rate"] = 0.1
    report_stats: Annotated[bool, "upload the erasers' statistics too, for the model of a new site"] = True

    def surgery(self, module: nn.Module) -> nn.Module:
        """Section 3.1: erasers in their layers' places."""
        return eraser.install(module, self.blocks, self.ratio, self.kernel, self.act)

    def phases(self, task: Task, labelled: bool = True) -> Sequence[Phase]:
        """Algorithm 3 trains the erasers alone."""
        return (Phase(),) if labelled else (Phase("adapt", trains=eraser.names(task.net.module).personal),)

    def init_server(self, task: Task) -> Server:
        """Every client's erasers start as the network's."""
        model, own = task.net.variables(), eraser.names(task.net.module).personal
        return Server(model, {k: torch.stack([p] * task.clients) for k, p in model.params.items() if k in own})

    def send(self, task: Task, server: Server, client: int | None) -> Shared:
        """Everybody's layers and this client's erasers; a new site gets whatever there is."""
        kept = frozenset[str]() if client is None and self.report_stats else eraser.names(task.net.module).local
        model, rows = without(server.model, kept), {} if client is None else server.erasers
        return Shared(Part(model.params | {k: t[client] for k, t in rows.items()}, model.buffers))

    def init_client(self, task: Task, down: Shared, before: Any = None) -> Client:
        """Statistics start as the network's."""
        return Client(part(task.net.variables(), eraser.names(task.net.module).local))

    def begin(self, task: Task, down: Shared, client: Client | None, round: Round, site: Site) -> Work:
        """The regulariser's estimates; without a client a new site adapts, at a rate of its own."""
        work, weight = super().begin(task, down, client, round, site), 1.0
        if client is None:
            work = work._replace(round=round._replace(lr=round.lr * self.adapt_lr))
        elif self.lam:
            weight = self.lam if round.number + 1 >= self.reg_start else 0.0
        else:
            return work
        norms = eraser.names(task.net.module).norms
        return work._replace(aux=consistency.begin(norms, down.model.buffers, self.stat_init, weight))

    def loss(self, task: Task, work: Work, batch: Batch) -> Loss:
        """Cross-entropy and lambda times Eq. 7; to adapt, Eq. 7 alone, where the last norms are as in evaluation."""
        names, everyones = eraser.names(task.net.module), work.down.model.buffers
        if not self.lam and work.client is not None:
            return super().loss(task, work, batch)
        with eraser.others_still(task.net.module) if work.client is None else nullcontext():
            out = task.net(work.model, batch.x, train=True, taps=names.norms)
        now = consistency.follow(work.aux, out.taps, self.gamma)
        far = consistency.penalty(now, everyones, self.reg, self.beta)
        if work.client is None:
            return Loss(far, out.buffers, now, {"consistency": far})
        return Loss(F.cross_entropy(out.logits, batch.y) + now.weight * far, out.buffers, now, {"consistency": far})

    def finish(self, task: Task, work: Work) -> tuple[Shared, Client]:
        """Keep the statistics inside the erasers."""
        local = eraser.names(task.net.module).local
        return Shared(without(work.model, () if self.report_stats else local)), Client(part(work.model, local))

    def model_for(self, task: Task, down: Shared, client: Client | None) -> Variables:
        """The layers received, and the client's own statistics."""
        if client is not None:
            return overlay(Variables(*down.model), client.stats)
        if not self.report_stats:
            raise UnseenSite(
                f"{self.name} with report_stats = false: no client reports the statistics of its erasers, so a new "
                "site has none; set method.report_stats = true, or score the sites' models with eval.unseen = 'sites'."
            )
        return Variables(*down.model)
