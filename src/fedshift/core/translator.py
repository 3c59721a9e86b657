"""A translator of representations between domains, and the critic it learns from: StarGAN in latent space.

Palakkadavath et al., ICDM 2025, arXiv 2512.10224; S3 of its method, after StarGAN (Choi et al., CVPR 2018).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import seeds, tree
from .bounds import Range
from .local import autograd_gradient
from .optim import Adam, Positive, State
from .task import Loss
from .tree import Tensors
from .wgan import Form, critic_loss, generator_loss, gradient_penalty

SLOPE, DROP = 0.2, 0.5
Preserved = Callable[[Tensor, Tensor], Tensor]  # translated latents and their classes -> a loss


@dataclass(frozen=True)
class Translation:
    """The two networks, and how they are trained."""

    hidden: Annotated[int, Range(2), "w, width of the translator and its critic (DomainNet: 2048)"] = 1024
    g_out: Annotated[
        Literal["linear", "tanh"], "last layer of the translator; tanh, as released, stays within (-1, 1)"
    ] = "linear"
    g_dropout: Annotated[
        Literal["each", "first"], "after each hidden layer, as printed, or after the first, as released"
    ] = "each"
    gan: Annotated[Form, "WGAN with gradient penalty, as released, or Eq. 9's logarithms, without it"] = "wgan"
    gan_iters: Annotated[int, Range(1), "iterations: steps of the critic (release: 10,000 used of 100,000)"] = 10_000
    gan_decay: Annotated[int, Range(0), "last iterations, over which both rates fall to zero"] = 0
    gan_batch: Annotated[int, Range(2), "latents in a batch"] = 16
    gan_lr: Annotated[float, Positive, "Adam's rate for both networks"] = 1e-4
    n_critic: Annotated[int, Range(1), "steps of the critic for one of the translator"] = 5
    lambda_cls: Annotated[float, Range(0), "weight of telling the domain, in both networks"] = 1.0
    lambda_rec: Annotated[float, Range(0), "weight of coming back unchanged"] = 10.0
    lambda_gp: Annotated[float, Range(0), "weight of the gradient penalty (wgan)"] = 10.0
    batches: Annotated[
        Literal["class", "mixed"], "each of one class, which translation then keeps, or of all, as released"
    ] = "class"
    class_term: Annotated[float, Range(0), "weight of the heads' cross-entropy after translation (release: 0.1)"] = 0.0


class Gan(NamedTuple):
    """Translator, critic, and their optimisers' states under "g" and "d"."""

    g: Tensors
    d: Tensors
    opt: dict[str, State]


class Drawn(NamedTuple):
    """A batch: latents, classes, domains, domains to translate to, and where the penalty looks."""

    z: Tensor
    y: Tensor
    source: Tensor
    target: Tensor
    share: Tensor


def networks(s: Translation, p: int, m: int, seed: int, like: Tensor) -> Gan:
    """Both networks for latents of `p` numbers and `m` domains, as torch starts linear layers."""
    w, gen = s.hidden, seeds.generator(seed, "translator")
    g = _layers({"in": (p + 2 * m, w), "mid": (w, w), "out": (w, p)}, gen, like)
    d = _layers({"in": (p, w), "mid": (w, w // 2), "score": (w // 2, 1), "domain": (w // 2, m)}, gen, like)
    adam = _adam(s)
    return Gan(g, d, {"g": adam.init(g), "d": adam.init(d)})


def _adam(s: Translation) -> Adam:
    return Adam(lr=s.gan_lr, beta1=0.5, beta2=0.999)


def _layers(sizes: dict[str, tuple[int, int]], gen: torch.Generator, like: Tensor) -> Tensors:
    tensors: Tensors = {}
    for name, (before, after) in sizes.items():
        bound = 1 / sqrt(before)
        for part, shape in (("weight", (after, before)), ("bias", (after,))):
            tensors[f"{name}.{part}"] = torch.rand(shape, generator=gen).mul_(2 * bound).sub_(bound).to(like)
        if name in ("in", "mid"):
            tensors |= {f"{name}.scale": like.new_ones(after), f"{name}.shift": like.new_zeros(after)}
    return tensors


def _linear(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])


def _hidden(t: Tensors, name: str, x: Tensor, *, drop: bool) -> Tensor:
    x = F.leaky_relu(_linear(t, name, x), SLOPE)
    x = F.layer_norm(x, x.shape[-1:], t[f"{name}.scale"], t[f"{name}.shift"])
    return F.dropout(x, DROP) if drop else x


def translate(s: Translation, g: Tensors, z: Tensor, source: Tensor, target: Tensor, *, train: bool = False) -> Tensor:
    """G(z, d, d'): [B, p] with domains [B], or one for all, to [B, p]; dropout in training alone."""
    m = (g["in.weight"].shape[1] - z.shape[1]) // 2
    domains = torch.arange(m, device=z.device)
    chosen = [(d.view(-1, 1) == domains).to(z.dtype).expand(len(z), m) for d in (source, target)]
    x = _hidden(g, "in", torch.cat([z, *chosen], 1), drop=train)
    x = _linear(g, "out", _hidden(g, "mid", x, drop=train and s.g_dropout == "each"))
    return x.tanh() if s.g_out == "tanh" else x


def judge(d: Tensors, z: Tensor, *, train: bool = True) -> tuple[Tensor, Tensor]:
    """D(z), how real it looks, [B], and logits of the domain, [B, m]."""
    x = _hidden(d, "mid", _hidden(d, "in", z, drop=train), drop=False)
    return _linear(d, "score", x)[:, 0], _linear(d, "domain", x)


def d_loss(s: Translation, batch: Drawn, g: Tensors, d: Tensors) -> Tensor:
    """-E D(z) + E D(G(z, d, d')) + l_gp penalty + l_cls CE(Dcls(z), d)."""
    with torch.no_grad():
        fake = translate(s, g, batch.z, batch.source, batch.target, train=True)
    real, domain = judge(d, batch.z)
    value = critic_loss(s.gan, real, judge(d, fake)[0]) + s.lambda_cls * F.cross_entropy(domain, batch.source)
    if s.gan == "wgan" and s.lambda_gp:
        value = value + s.lambda_gp * gradient_penalty(lambda z: judge(d, z)[0], batch.z, fake, batch.share)
    return value


def g_loss(s: Translation, batch: Drawn, d: Tensors, g: Tensors, preserved: Preserved | None = None) -> Tensor:
    """-E D(G) + l_cls CE(Dcls(G), d') + l_rec mean |z - G(G(z, d, d'), d', d)| + class_term CE."""
    fake = translate(s, g, batch.z, batch.source, batch.target, train=True)
    back = translate(s, g, fake, batch.target, batch.source, train=True)
    real, domain = judge(d, fake)
    value = generator_loss(s.gan, real) + s.lambda_cls * F.cross_entropy(domain, batch.target)
    value = value + s.lambda_rec * (batch.z - back).abs().mean()
    return value + s.class_term * preserved(fake, batch.y) if preserved and s.class_term else value


class Pool(NamedTuple):
    """Latents [M, p] with classes and domains [M]; a batch comes from one of the groups of rows."""

    z: Tensor
    y: Tensor
    domain: Tensor
    groups: Sequence[Tensor]

    @classmethod
    def of(cls, s: Translation, z: Tensor, y: Tensor, domain: Tensor) -> "Pool":
        """A group for each class that two domains have at least, or one of all."""
        if s.batches == "mixed":
            return cls(z, y, domain, [torch.arange(len(y))])
        rows = [(y == label).nonzero()[:, 0] for label in range(int(y.max()) + 1)]
        return cls(z, y, domain, [r.cpu() for r in rows if int((domain[r].bincount() > 0).sum()) > 1])

    def draw(self, size: int) -> Drawn:
        """From torch's generator on the CPU: a group, some of its rows, and their domains shuffled as targets."""
        rows = self.groups[int(torch.randint(len(self.groups), ()))]
        chosen = rows[torch.randint(len(rows), (size,))].to(self.z.device)
        order, share = torch.randperm(size).to(self.z.device), torch.rand(size, 1, dtype=self.z.dtype)
        source = self.domain[chosen]
        return Drawn(self.z[chosen], self.y[chosen], source, source[order], share.to(self.z.device))


def train(
    s: Translation, gan: Gan, pool: Pool, numbers: Iterable[int], seed: int, preserved: Preserved | None = None
) -> Gan:
    """Iterations by their numbers, each with random numbers of its own, so that it does not matter where one stops."""
    gan, adam = tree.clone(gan), _adam(s)
    for i in numbers:
        rate = s.gan_lr * min(1.0, (s.gan_iters - i) / s.gan_decay) if s.gan_decay else s.gan_lr
        with seeds.scope(seeds.derive(seed, "translator", i)):
            batch = pool.draw(s.gan_batch)
            grads = _gradient(partial(d_loss, s, batch, gan.g), gan.d)
            adam.update_(grads, gan.opt["d"], gan.d, rate)
            if (i + 1) % s.n_critic == 0:
                grads = _gradient(partial(g_loss, s, batch, gan.d, preserved=preserved), gan.g)
                adam.update_(grads, gan.opt["g"], gan.g, rate)
    return gan


def _gradient(loss: Callable[[Tensors], Tensor], params: Tensors) -> Tensors:
    with torch.enable_grad():
        return autograd_gradient(lambda p: (value := loss(p), Loss(value, {})), params)[0]
