"""Embeddings of clients from their images: each trains an autoencoder without labels and sends its mean latent.

The autoencoder is Table 9 of Bartholet et al., arXiv 2402.06974.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import seeds
from .algorithm import Algorithm
from .generating import Generating, Server
from .net import Variables
from .task import Batch, Cohort, Empty, Loss, Round, Site, Task, Work
from .tree import Tensors

SIDE, IMAGES, ROUNDS = 32, 100, 50  # the rounds are unstated
WIDE = 32 * (SIDE // 4) ** 2


def autoencoder(latent: int, gen: torch.Generator, like: Tensor) -> Tensors:
    """Each map as torch starts it."""
    sizes = {
        "conv1": (16, 3, 3, 3),
        "conv2": (32, 16, 3, 3),
        "encode": (latent, WIDE),
        "decode": (WIDE, latent),
        "up1": (32, 16, 2, 2),  # transposed convolutions: channels in, channels out
        "up2": (16, 3, 2, 2),
    }
    tensors = {}
    for name, size in sizes.items():
        bound = sqrt(1 / prod(size[1:]))
        bias = size[1] if name.startswith("up") else size[0]
        for part, shape in (("weight", size), ("bias", (bias,))):
            tensors[f"{name}.{part}"] = torch.rand(shape, generator=gen).mul_(2 * bound).sub_(bound).to(like)
    return tensors


def encode(ae: Tensors, x: Tensor) -> Tensor:
    """Pictures in [0, 1] of 32 pixels a side to latents."""
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(F.conv2d(x, ae[f"{name}.weight"], ae[f"{name}.bias"], padding=1).relu(), 2)
    return F.linear(x.flatten(1), ae["encode.weight"], ae["encode.bias"])


def decode(ae: Tensors, z: Tensor) -> Tensor:
    """And back."""
    x = F.linear(z, ae["decode.weight"], ae["decode.bias"]).view(-1, 32, SIDE // 4, SIDE // 4)
    x = F.conv_transpose2d(x, ae["up1.weight"], ae["up1.bias"], stride=2).relu()
    return F.conv_transpose2d(x, ae["up2.weight"], ae["up2.bias"], stride=2).sigmoid()


class Scale(NamedTuple):
    """The least value of each channel at a site, and how far the largest is above it."""

    least: Tensor
    span: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Pictures brought to [0, 1] and to 32 pixels; grey ones get three channels."""
        unit = ((x - self.least) / self.span).clamp(0, 1)
        return F.adaptive_avg_pool2d(unit.expand(-1, 3, -1, -1), SIDE)


class Coder(NamedTuple):
    """A client's autoencoder."""

    ae: Tensors


class Latent(NamedTuple):
    """The mean latent of a client's images: its embedding."""

    nu: Tensor


@dataclass(frozen=True)
class Embed(Algorithm[Server, Coder, Empty, Latent]):
    """A stage before `main`: the embeddings become the clients' mean latents."""

    main: Generating
    name: ClassVar[str] = "autoencoder"
    rounds: ClassVar[int | None] = ROUNDS

    def init_server(self, task: Task) -> Server:
        """The main method's."""
        return self.main.init_server(task)

    def send(self, task: Task, server: Server, client: int | None) -> Empty:
        """Nothing: a client's images are all it needs."""
        return Empty()

    def init_client(self, task: Task, down: Empty, before: Any = None) -> Coder:
        """All autoencoders start alike."""
        like = next(task.net.module.parameters())
        return Coder(autoencoder(self.main.dimension(task), seeds.generator(task.seed, self.name), like))

    def begin(self, task: Task, down: Empty, client: Coder | None, round: Round, site: Site) -> Work:
        """The same few images in every round, and the scale of their values."""
        assert client is not None  # a new site does not adapt here
        order = torch.randperm(len(site.labels), generator=seeds.generator(task.seed, self.name, site.name))
        rows = order[:IMAGES]
        x = torch.cat([batch.x for batch in site.look(rows)])
        least, most = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
        scale = Scale(least, (most - least).clamp(min=1e-6))
        return Work(Variables(client.ae, {}), down, client, round, aux=scale, rows=rows)

    def loss(self, task: Task, work: Work, batch: Batch) -> Loss:
        """The mean squared error of what comes back."""
        ae, x = work.model.params, work.aux(batch.x)
        return Loss(F.mse_loss(decode(ae, encode(ae, x)), x), work.model.buffers, work.aux)

    def finish(self, task: Task, work: Work) -> tuple[Latent, Coder]:
        """The mean latent goes up; the autoencoder stays."""
        assert work.site is not None
        with torch.no_grad():
            z = torch.cat([encode(work.model.params, work.aux(b.x)) for b in work.site.look(work.rows)])
        return Latent(z.mean(0)), Coder(work.model.params)

    def aggregate(self, task: Task, server: Server, ups: Iterator[Latent], cohort: Cohort) -> Server:
        """nu_i is what client i sent."""
        nu = server.h["nu"].clone()
        for client, up in zip(cohort.ids, ups, strict=True):
            nu[client] = up.nu
        shadow = server.shadow and server.shadow | {"nu": nu.clone()}
        return server._replace(h=server.h | {"nu": nu}, shadow=shadow)

    def model_for(self, task: Task, down: Empty, client: Coder | None) -> Variables:
        """The network as built: nothing is written yet."""
        return task.net.variables()
