"""What methods share whose server writes each client's parameters with a hypernetwork, and learns from their change."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from . import seeds, tree
from .algorithm import Algorithm, Global
from .average import average
from .bounds import Range
from .errors import ModelError, UnseenSite
from .hypernet import HeadInit, Heads, Hypernet
from .net import Part, Variables
from .optim import SGD, Adam, Optimizer, Positive, State
from .task import Cohort, Empty, PerParam, Task, Work
from .tree import Tensors

COPIES = 10  # of the hypernetwork in a step: it, two moments, what follows these three, the gradient, Adam's work


class Server(NamedTuple):
    """The hypernetwork and what its optimiser keeps; the network's buffers are averaged, not written."""

    h: Tensors  # theta, and the clients' embeddings as the rows of "nu"
    opt: State
    shadow: Tensors  # h as it writes, where that is another one than learns; else empty
    buffers: Tensors


class Up(NamedTuple):
    """delta = phi_i - phi~_i, as received less as trained, and the buffers after training."""

    delta: PerParam
    buffers: Tensors


@dataclass(frozen=True)
class Generating(Algorithm[Server, Empty, Global, Up]):
    """phi_i = h(theta, nu_i) goes down, delta_i comes up; how the deltas become one step is the method's to say."""

    heads: Annotated[Heads, "one row per parameter, rows of low rank, or one matrix for all chunks"] = "full"
    rank: Annotated[int, Range(1), "numbers that a low_rank head reads"] = 8
    chunk: Annotated[int, Range(1), "parameters that a chunked head writes at once"] = 8192
    head_init: Annotated[HeadInit, "torch's own, or written weights of variance 2 / fan-in"] = "default"
    dim: Annotated[int, Range(0), "numbers in an embedding; 0: 1 + clients // 4"] = 0
    newcomer: Annotated[
        Literal["mean_embedding", "mean_model", "refuse"],
        "a site without embedding: written for the clients' mean one, the mean of what they get, or none",
    ] = "mean_embedding"
    server_optimizer: Annotated[Literal["adam", "sgd"], "how the server descends"] = "adam"
    server_lr: Annotated[float, Positive, "alpha, the server's learning rate"] = 1e-3
    server_wd: Annotated[float, Range(0), "the server's L2 penalty"] = 1e-5
    server_clip: Annotated[float, Range(0), "largest norm of the server's gradient; 0 leaves it as it is"] = 0.0
    limit_gb: Annotated[float, Positive, "memory that the server's step may take; what needs more is refused"] = 8.0

    # -- structure ---------------------------------------------------------------------------------
    def surgery(self, module: nn.Module) -> nn.Module:
        """The network as it is, if its hypernetwork fits."""
        net, each = self._writer(module), next(module.parameters()).element_size()
        own = net.count(self.dim or 1)
        if (need := COPIES * own * each / 1e9) > self.limit_gb:
            raise ModelError(
                f"{self.name} with heads = {self.heads!r}: to write {net.written:,} parameters its hypernetwork needs "
                f"{own:,} of its own ({own * each / 1e9:.2f} GB) and a step about {need:.1f} GB, over limit_gb = "
                f"{self.limit_gb:g}; set method.heads = 'low_rank' or 'chunked' with a small rank or chunk, or raise "
                "method.limit_gb."
            )
        return module

    def _writer(self, module: nn.Module) -> Hypernet:
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        return Hypernet(shapes, self.heads, self.rank, self.chunk)

    # -- server ------------------------------------------------------------------------------------
    def init_server(self, task: Task) -> Server:
        """A random hypernetwork; the network gives its buffers."""
        net, start = self._writer(task.net.module), task.net.variables()
        nu = self._embeddings(task, 0)
        theta = net.init(nu.shape[1], seeds.generator(task.seed, "hypernetwork"), nu)
        h = (net.hyperfan(theta, nu, task.net) if self.head_init == "hyperfan" else theta) | {"nu": nu}
        return Server(h, self._optimizer().init(self._learned(h)), {}, start.buffers)

    def _embeddings(self, task: Task, number: int) -> Tensor:
        """Normal numbers by the sites' names: another client, or another order, changes nobody's."""
        dim, like = self.dimension(task), next(task.net.module.parameters())
        gens = [seeds.generator(task.seed, "embedding", site, number) for site in task.sites]
        return torch.stack([torch.randn(dim, generator=gen) for gen in gens]).to(like)

    def dimension(self, task: Task) -> int:
        """Of an embedding: floor(1 + N / 4), or as it was set."""
        return self.dim or 1 + task.clients // 4

    def send(self, task: Task, server: Server, client: int | None) -> Global:
        """phi_i = h(theta, nu_i)."""
        net, h = self._writer(task.net.module), server.shadow or server.h
        params = self._newcomer(net, h) if client is None else net.generate(h, h["nu"][client])
        return Global(Variables(params, server.buffers))

    def _newcomer(self, net: Hypernet, h: Tensors) -> Tensors:
        """What is written for a site that no embedding stands for."""
        if self.newcomer == "refuse":
            raise UnseenSite(
                f"{self.name} with newcomer = 'refuse': a new site has no embedding; set method.newcomer = "
                "'mean_embedding', or score the sites' own models with eval.unseen = 'sites'."
            )
        if self.newcomer == "mean_embedding":
            return net.generate(h, h["nu"].mean(0))
        return tree.mean((net.generate(h, nu) for nu in h["nu"]), [1 / len(h["nu"])] * len(h["nu"]))

    # -- what an aggregation is made of --------------------------------------------------------------
    def _received(self, task: Task, ups: Iterator[Up], cohort: Cohort) -> tuple[Tensor, Tensors]:
        """Each client's delta in a row, and the buffers by the protocol's rule."""
        everyone = list(ups)
        buffers = average(task, (Part({}, up.buffers) for up in everyone), cohort).buffers
        return self._writer(task.net.module).rows([up.delta for up in everyone]), buffers

    def _descend(
        self, task: Task, server: Server, delta: Tensor, gamma: Tensor, cohort: Cohort
    ) -> tuple[Tensors, State]:
        """(theta, nu) less a step along sum_i gamma_i (d phi_i / d(theta, nu))^T delta_i, taken where phi was written.

        delta points from the trained to the sent parameters, as a gradient does, so the server descends.
        """
        h, ids = server.shadow or server.h, list(cohort.ids)
        g, g_nu = self._writer(task.net.module).pull_back(h, h["nu"][ids], gamma[:, None].to(delta) * delta)
        g["nu"] = torch.zeros_like(h["nu"])
        g["nu"][ids] = g_nu
        new, opt = self._optimizer().update(g, server.opt, self._learned(server.h), self.server_lr)
        return server.h | new, opt

    def _optimizer(self) -> Optimizer:
        kind = Adam if self.server_optimizer == "adam" else SGD
        return kind(lr=self.server_lr, weight_decay=self.server_wd, clip=self.server_clip)

    def _learned(self, h: Tensors) -> Tensors:
        """What the server's optimiser moves; sorted, as a norm must not depend on how a file lists tensors."""
        return dict(sorted(h.items()))

    # -- client ------------------------------------------------------------------------------------
    def init_client(self, task: Task, down: Global, before: Any = None) -> Empty:
        """Nothing is remembered: what a client is lies in its embedding, on the server."""
        return Empty()

    def finish(self, task: Task, work: Work) -> tuple[Up, Empty]:
        """delta_i = phi_i - phi~_i."""
        return Up(tree.sub(work.down.model.params, work.model.params), work.model.buffers), Empty()

    def model_for(self, task: Task, down: Global, client: Empty | None) -> Variables:
        """What was written for this site."""
        return down.model
