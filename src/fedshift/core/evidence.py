"""Evidence for classes: opinions (belief masses and an uncertainty), their fusion, and losses on Dirichlet densities.

Evidence e_k >= 0 makes a Dirichlet density with alpha = e + 1. Classes are the last axis everywhere.
"""

from math import lgamma
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Opinion(NamedTuple):
    """Belief masses b = e / S and the uncertainty u = K / S, with S = sum(alpha); together they sum to one."""

    belief: Tensor  # [..., K]
    uncertainty: Tensor  # [...]


def evidence(logits: Tensor) -> Tensor:
    """softplus(o), in float32 at least."""
    return F.softplus(logits.to(torch.promote_types(logits.dtype, torch.float32)))


def opinion(e: Tensor) -> Opinion:
    """What this evidence says of each class, and how much it leaves open."""
    k = e.shape[-1]
    s = e.sum(-1) + k
    return Opinion(e / s.unsqueeze(-1), k / s)


def combine(a: Tensor, b: Tensor) -> Tensor:
    """The evidence of two opinions fused by the reduced Dempster rule.

    The rule is b_k = (b1_k b2_k + b1_k u2 + b2_k u1) / (1 - Q), u = u1 u2 / (1 - Q) with the conflict
    Q = sum_{i != j} b1_i b2_j, and e = K b / u. As b / u = e / K, the conflict cancels: 1 + e/K = (1 + e1/K)(1 + e2/K).
    """
    return a + b + a * b / a.shape[-1]


def expected_cross_entropy(alpha: Tensor, y: Tensor) -> Tensor:
    """E[-ln p_y] for p ~ Dirichlet(alpha): digamma(S) - digamma(alpha_y)."""
    true = alpha.gather(-1, _index(alpha, y)).squeeze(-1)
    return torch.digamma(alpha.sum(-1)) - torch.digamma(true)


def misleading(alpha: Tensor, y: Tensor) -> Tensor:
    """alpha~ = y + (1 - y) alpha: the evidence for the right class is taken out."""
    return alpha.scatter(-1, _index(alpha, y), 1.0)


def kl_to_uniform(alpha: Tensor) -> Tensor:
    """KL(Dirichlet(alpha) || Dirichlet(1, ..., 1))."""
    s = alpha.sum(-1, keepdim=True)
    slope = ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(s))).sum(-1)
    return torch.lgamma(s).squeeze(-1) - lgamma(alpha.shape[-1]) - torch.lgamma(alpha).sum(-1) + slope


def evidential_loss(e: Tensor, y: Tensor, kl_weight: Tensor) -> Tensor:
    """The expected cross-entropy, and what evidence for wrong classes costs; for each image, not averaged."""
    return expected_cross_entropy(e + 1, y) + kl_weight * kl_to_uniform(misleading(e + 1, y))


def combined_loss(pair: Tensor, y: Tensor, kl_weight: Tensor) -> Tensor:
    """The evidential losses of two opinions, [2, B, K] logits, and of their fusion, added; the mean over a batch."""
    e = evidence(pair)
    return evidential_loss(torch.cat([e, combine(*e).unsqueeze(0)]), y, kl_weight).mean(1).sum()


def belief_loss(logits: Tensor, y: Tensor) -> Tensor:
    """-ln b_y, the mean over a batch."""
    e = evidence(logits)
    true = e.gather(-1, _index(e, y)).squeeze(-1).clamp(min=torch.finfo(e.dtype).tiny)
    return ((e.sum(-1) + e.shape[-1]).log() - true.log()).mean()


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of two distributions, given as logarithms."""
    return (p.exp() * (p - q)).sum(-1)


def _index(alpha: Tensor, y: Tensor) -> Tensor:
    return y.expand(alpha.shape[:-1]).unsqueeze(-1)
