"""What critic and generator minimise: WGAN-GP (Gulrajani et al., NeurIPS 2017) and the logarithmic form."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Form = Literal["wgan", "log"]


def critic_loss(form: Form, real: Tensor, fake: Tensor) -> Tensor:
    """E D(fake) - E D(real), or -E log s(D(real)) - E log(1 - s(D(fake))) with the sigmoid s."""
    if form == "wgan":
        return fake.mean() - real.mean()
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(form: Form, fake: Tensor) -> Tensor:
    """-E D(fake), or E log(1 - s(D(fake)))."""
    return -fake.mean() if form == "wgan" else -F.softplus(fake).mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, share: Tensor) -> Tensor:
    """E (||grad D(x~)|| - 1)^2 at x~ = a x + (1 - a) G, each row with its own a: real, fake [B, p], share [B, 1].

    It keeps the graph of the gradient, so that the critic learns through it.
    """
    between = (share * real + (1 - share) * fake).detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    length: Tensor = torch.linalg.vector_norm(slope, dim=1)
    return (length - 1).square().mean()
