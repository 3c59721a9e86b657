"""How far a site's statistics behind each eraser are from everybody's: FDSE's regulariser, Eq. 4 to 7."""

from collections.abc import Sequence
from math import exp
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .tree import Tensors

Form = Literal["moments", "gauss_kl"]
Start = Literal["first_batch", "global"]


class Running(NamedTuple):
    """Estimates of each norm's input in this round, by the norm's name; the rest is there for recorded steps."""

    mean: Tensors
    var: Tensors
    fresh: Tensor  # whether the next batch is the first, and its own statistics are the estimates before it
    weight: Tensor  # lambda, or 0 in rounds without the regulariser


def begin(norms: Sequence[str], buffers: Tensors, start: Start, weight: float) -> Running:
    """The estimates before a round's first batch; `buffers` hold everybody's statistics as received."""
    mean, var = ({k: buffers[f"{k}.running_{what}"].clone() for k in norms} for what in ("mean", "var"))
    first = mean[norms[0]]
    fresh = torch.tensor(start == "first_batch", device=first.device)
    return Running(mean, var, fresh, first.new_full((), weight))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, over batch and space."""
    var, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
    return mean, var


def follow(old: Running, inputs: Tensors, gamma: float) -> Running:
    """Eq. 4 and 5: m <- gamma m + (1 - gamma) mu of the batch, v likewise; gradients go through the batch alone."""

    def moved(was: Tensor, new: Tensor) -> Tensor:
        return gamma * torch.where(old.fresh, new, was).detach() + (1 - gamma) * new

    now = {k: moments(inputs[k]) for k in old.mean}
    mean = {k: moved(old.mean[k], m) for k, (m, _) in now.items()}
    var = {k: moved(old.var[k], v) for k, (_, v) in now.items()}
    return Running(mean, var, torch.zeros_like(old.fresh), old.weight)


def penalty(now: Running, buffers: Tensors, form: Form, beta: float) -> Tensor:
    """Eq. 7: the layers' distances from everybody's statistics, weighted by softmax(beta l) over the layers l."""
    distance = {"moments": by_moments, "gauss_kl": gauss_kl}[form]
    far = [
        distance(now.mean[k], now.var[k], buffers[f"{k}.running_mean"], buffers[f"{k}.running_var"]) for k in now.mean
    ]
    return torch.stack([w * d for w, d in zip(layer_weights(len(far), beta), far, strict=True)]).sum()


def layer_weights(layers: int, beta: float) -> list[float]:
    """The softmax of beta l over l = 1, ..., L, with the largest exponent at zero."""
    raw = [exp(beta * (depth - layers)) for depth in range(1, layers + 1)]
    return [w / sum(raw) for w in raw]


def by_moments(m: Tensor, v: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """Eq. 6: mean over channels of (m - mu)^2, and the squared difference of the mean variances."""
    return (m - mu).square().mean() + (v.mean() - var.mean()).square()


def gauss_kl(m: Tensor, v: Tensor, mu: Tensor, var: Tensor, eps: float = 1e-8) -> Tensor:
    """The mean over channels of KL(N(mu, var) || N(m, v))."""
    v, var = v + eps, var + eps
    return ((v / var).log() + (var + (mu - m).square()) / v - 1).mean() / 2
