"""A hypernetwork: from a client's embedding nu it writes all parameters phi of the client's network.

phi = W c(nu) + b, where the code c is a small network's and each parameter owns a row of W and an entry of b; the rows
of one tensor are its head. Heads lie in one matrix, so that writing is one product and so is its gradient:
for an upload delta, that of W is the outer product of delta and c, and that of b is delta itself.
Equations are those of Bartholet et al., arXiv 2402.06974; the code's network is their Table 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp

from . import tree
from .gram import gram
from .net import Net
from .pieces import exact
from .tree import Tensors

Heads = Literal["full", "low_rank", "chunked"]
HeadInit = Literal["default", "hyperfan"]
WIDTH, LAYERS = 50, 4  # Table 8: four linear maps, LeakyReLU between them
SLOPE = 0.01  # unstated
PLACE = 8  # numbers that tell one chunk from another


class Start(NamedTuple):
    """How written parameters should start: spread around zero, or at the network's own values."""

    spread: Tensor  # standard deviation; zero for all but the weights of linear and convolution layers
    own: Tensor  # zero for linear and convolution layers


@dataclass(frozen=True)
class Hypernet:
    """What is written, and through which heads; the tensors theta and the embeddings are the caller's.

    `full` heads read the code itself. `low_rank` heads read a projection of it to `rank` numbers: W = U V. `chunked`
    heads share one matrix between chunks of `chunk` parameters, and the code knows the chunk's place.
    """

    shapes: Mapping[str, tuple[int, ...]]
    heads: Heads = "full"
    rank: int = 8
    chunk: int = 8192

    @property
    def written(self) -> int:
        """How many parameters it writes."""
        return sum(prod(shape) for shape in self.shapes.values())

    def maps(self, embedding: int) -> dict[str, tuple[tuple[int, ...], int]]:
        """The shape of each of its own tensors, and how many numbers its map reads."""
        first = embedding + (PLACE if self.heads == "chunked" else 0)
        maps: dict[str, tuple[tuple[int, ...], int]] = {}
        for k in range(LAYERS):
            fan = WIDTH if k else first
            maps |= {f"code.{k}.weight": ((WIDTH, fan), fan), f"code.{k}.bias": ((WIDTH,), fan)}
        if self.heads == "chunked":
            places = -(-self.written // self.chunk)
            maps |= {"chunk.place": ((places, PLACE), PLACE), "chunk.weight": ((self.chunk, WIDTH), WIDTH)}
        elif self.heads == "low_rank":
            maps |= {"low.weight": ((self.rank, WIDTH), WIDTH), "head.weight": ((self.written, self.rank), self.rank)}
        else:
            maps |= {"head.weight": ((self.written, WIDTH), WIDTH)}
        return maps | {"head.bias": ((self.written,), WIDTH)}

    def count(self, embedding: int) -> int:
        """How many numbers it has of its own, without the embeddings."""
        return sum(prod(shape) for shape, _ in self.maps(embedding).values())

    def init(self, embedding: int, gen: torch.Generator, like: Tensor) -> Tensors:
        """Each map as torch starts a linear layer."""
        theta = {}
        for name, (shape, fan) in self.maps(embedding).items():
            bound = sqrt(3) if name == "chunk.place" else sqrt(1 / fan)
            theta[name] = torch.rand(shape, generator=gen).mul_(2 * bound).sub_(bound).to(like)
        return theta

    def hyperfan(self, theta: Tensors, nu: Tensor, net: Net) -> Tensors:
        """The same with heads scaled so that what is written for `nu` starts as a network should (`written_start`).

        Full and low-rank heads take the spread into W. Chunks share W, so there b takes it, and W starts at zero.
        """
        spread, own = written_start(net)
        if not self._outer:
            base = theta["head.bias"] * spread * sqrt(3 * WIDTH)
            return theta | {"chunk.weight": torch.zeros_like(theta["chunk.weight"]), "head.bias": base + own}
        code = self._body(theta, nu).square().sum(1).mean().sqrt()
        scale = spread * (sqrt(3 * theta["head.weight"].shape[1]) / code)
        return theta | {"head.weight": theta["head.weight"] * scale[:, None], "head.bias": own}

    # -- writing -----------------------------------------------------------------------------------
    def generate(self, theta: Tensors, nu: Tensor) -> Tensors:
        """Phi = h(theta, nu), by the network's names."""
        with torch.no_grad(), exact():
            flat = self._flat(theta, nu[None])[0]
            parts = torch.split(flat, [prod(shape) for shape in self.shapes.values()])
            return {k: p.view(s).clone() for (k, s), p in zip(self.shapes.items(), parts, strict=True)}

    def _flat(self, theta: Tensors, nu: Tensor) -> Tensor:
        """[N, e] -> [N, P]."""
        body = self._body(theta, nu)
        return F.linear(body, theta["head.weight"], theta["head.bias"]) if self._outer else body + theta["head.bias"]

    @property
    def _outer(self) -> bool:
        """Whether each parameter has its own row of W."""
        return self.heads != "chunked"

    def _body(self, theta: Tensors, nu: Tensor) -> Tensor:
        """All but the last map: what full and low-rank heads read, or what chunked heads say."""
        if self.heads != "chunked":
            code = _code(theta, nu)
            return F.linear(code, theta["low.weight"]) if self.heads == "low_rank" else code
        place = theta["chunk.place"]
        pairs = [nu[:, None].expand(-1, len(place), -1), place.expand(len(nu), -1, -1)]
        return F.linear(_code(theta, torch.cat(pairs, -1)), theta["chunk.weight"]).flatten(1)[:, : self.written]

    # -- learning ----------------------------------------------------------------------------------
    def rows(self, uploads: Sequence[Tensors]) -> Tensor:
        """[N, P]: each client's tensors in one row."""
        return torch.stack([torch.cat([u[k].reshape(-1) for k in self.shapes]) for u in uploads])

    def pull_back(self, theta: Tensors, nu: Tensor, delta: Tensor) -> tuple[Tensors, Tensor]:
        """sum_i (d phi_i / d theta)^T delta_i, and (d phi_i / d nu_i)^T delta_i; [N, e] and [N, P] give [N, e]."""
        with exact():
            g_theta, g_nu = vjp(self._flat, theta, nu)[1](delta)
        return tree.map(Tensor.detach, g_theta), g_nu.detach()

    @exact()
    def products(self, theta: Tensors, nu: Tensor, delta: Tensor, *, embeddings: bool = True) -> Tensor:
        """<g_i, g_j> of the clients' own gradients g_i, [N, N] in float64, without forming any g_i.

        <delta_i (x) c_i, delta_j (x) c_j> = <delta_i, delta_j> <c_i, c_j>; the rest of each g_i is small.
        """
        below = {k: t for k, t in theta.items() if not k.startswith("head.")}
        up = delta @ theta["head.weight"] if self._outer else delta
        small, own = zip(*(self._below(below, n, u) for n, u in zip(nu, up, strict=True)), strict=True)
        each = _gram([{"": row} for row in delta])
        if self._outer:
            codes = self._body(below, nu).detach().double()
            each = each * (codes @ codes.T + 1)
        mine = torch.stack(own).double().square().sum(1) * embeddings  # embeddings of two clients share nothing
        return each + _gram(small) + mine.diag()

    def _below(self, below: Tensors, nu: Tensor, up: Tensor) -> tuple[Tensors, Tensor]:
        """One client's gradient of everything under the heads."""
        g_theta, g_nu = vjp(self._body, below, nu[None])[1](up[None])
        return tree.map(Tensor.detach, g_theta), g_nu.detach()[0]


def written_start(net: Net) -> Start:
    """Variance 2 / fan-in for the weights of linear and convolution layers, zero for their biases; else as built."""
    mapped = net.under(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    spread, own = [], []
    for name, t in net.variables().params.items():
        weight = name in mapped and t.dim() > 1
        spread.append(torch.full_like(t, sqrt(2 / prod(t.shape[1:])) if weight else 0.0).reshape(-1))
        own.append((torch.zeros_like(t) if name in mapped else t).reshape(-1))
    return Start(torch.cat(spread), torch.cat(own))


def _code(theta: Tensors, x: Tensor) -> Tensor:
    for k in range(LAYERS):
        x = F.linear(F.leaky_relu(x, SLOPE) if k else x, theta[f"code.{k}.weight"], theta[f"code.{k}.bias"])
    return x


def _gram(clients: Sequence[Tensors]) -> Tensor:
    return gram(clients, {"": sorted(clients[0])})[0]  # sorted: a sum must not depend on how a file lists tensors
