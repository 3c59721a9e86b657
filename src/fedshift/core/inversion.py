"""Representations that a head takes for a class, found by descent on them: latent inversion.

Palakkadavath et al., ICDM 2025, arXiv 2512.10224; S2 of its method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import tree
from .bounds import Range
from .optim import Adam, Positive, State


class Statistics(NamedTuple):
    """Mean and variance of each number of a representation, as its client has them: [m, 1, p], or [p]."""

    mean: Tensor
    var: Tensor


@dataclass(frozen=True)
class Inversion:
    """How heads are inverted; the class by cross-entropy, the client by the statistics."""

    labels: Annotated[
        Literal["uniform", "prior"], "classes of synthetic latents: evenly, or as at the client, which then tells"
    ] = "uniform"
    lambda_ce: Annotated[float, Range(0), "weight of the cross-entropy in the inversion"] = 1.0
    lambda_bn: Annotated[float, Range(0), "weight of the distance to the client's statistics (release: 1e-2)"] = 1e-3
    lambda_norm: Annotated[float, Range(0), "weight of the latents' norm (release: 1e-3)"] = 1e-4
    norm_pow: Annotated[Literal[2, 1], "norms in the inversion are squared, as printed, or not, as released"] = 2
    z_lr: Annotated[float, Positive, "Adam's rate in the inversion"] = 1e-4
    z_steps: Annotated[int, Range(1), "steps of the inversion; most of the server's time"] = 10_000
    z_batch: Annotated[int, Range(2), "latents in a batch, whose mean and variance are matched"] = 32
    z_batches: Annotated[int, Range(1), "batches for each client (text: 200 latents in all)"] = 200


def inversion_loss(s: Inversion, logits: Tensor, z: Tensor, y: Tensor, target: Statistics) -> Tensor:
    """CE + l_bn (||mean - mu||^2 + ||var - s||^2) + l_norm mean ||z_i||^2 of each batch, summed over batches.

    z [..., b, p], logits [..., b, C], y [..., b]; the variance is the biased one.
    """
    ce = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="sum") / y.shape[-1]
    mean, var = z.mean(-2), z.var(-2, correction=0)
    far = _norm(s, mean - target.mean) + _norm(s, var - target.var)
    size = _norm(s, z).mean(-1)
    return s.lambda_ce * ce + s.lambda_bn * far.sum() + s.lambda_norm * size.sum()


def _norm(s: Inversion, x: Tensor) -> Tensor:
    return x.square().sum(-1) if s.norm_pow == 2 else torch.linalg.vector_norm(x, dim=-1)


def begun(s: Inversion, z: Tensor) -> State:
    """Adam's state before the first step from `z`."""
    return _adam(s).init({"z": z})


def _adam(s: Inversion) -> Adam:
    return Adam(lr=s.z_lr, beta1=0.5, beta2=0.9)


def invert(
    s: Inversion, head: Callable[[Tensor], Tensor], z: Tensor, y: Tensor, target: Statistics, opt: State, steps: int
) -> tuple[Tensor, State]:
    """Steps of Adam on the latents, from `z` on. Batches do not see each other: losses add up, Adam is elementwise."""
    found, opt, adam = {"z": z.clone()}, tree.clone(opt), _adam(s)
    for _ in range(steps):
        with torch.enable_grad():
            here = found["z"].requires_grad_(True)
            (grad,) = torch.autograd.grad(inversion_loss(s, head(here), here, y, target), here)
        found["z"].requires_grad_(False)
        adam.update_({"z": grad}, opt, found, s.z_lr)
    return found["z"], opt
