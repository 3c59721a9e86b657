"""Weights from how alike the clients' vectors are: attention between clients, and alignment with their mean."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from . import tree
from .gram import gram
from .pieces import Spare, exact, sweep, vectors
from .tree import Tensors


def attention(vectors: Sequence[Tensor], tau: float, eps: float = 1e-12) -> Tensor:
    """A[k, j] = softmax over j of cos(v_k, v_j) / tau; N x N in float64, on the vectors' device.

    `eps` is added to the norms: the cosine with a zero vector is zero.
    """
    return _attention(gram([{"": v} for v in vectors], {"": ("",)})[0], tau, eps)


def _attention(gram: Tensor, tau: float, eps: float) -> Tensor:
    """For one Gram matrix, or a batch of them."""
    n = gram.diagonal(dim1=-2, dim2=-1).sqrt() + eps
    return torch.softmax(gram / (n.unsqueeze(-1) * n.unsqueeze(-2)) / tau, -1)


def mix(weights: Tensor, clients: Sequence[Tensor]) -> list[Tensor]:
    """What each client gets: sum_j weights[k, j] x_j, in the clients' dtype."""
    return _mixed([weights], [clients])[0]


def _mixed(weights: Sequence[Tensor], rows: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """`mix` of each row by its own weights."""
    given = [vectors(row) for row in rows]
    ours = [w.to(row[0]) for w, (row, _) in zip(weights, given, strict=True)]
    out = [row[0].new_empty(len(w), len(row[0])) for w, (row, _) in zip(ours, given, strict=True)]
    spare = Spare()

    def write(number: int, pieces: Sequence[Tensor]) -> None:
        torch.mm(ours[number], spare.stack(pieces[1:]), out=pieces[0])

    with exact():
        sweep(write, [(mixed, *row) for mixed, (row, _) in zip(out, given, strict=True)])
    return [[back(x) for x in mixed] for mixed, (_, back) in zip(out, given, strict=True)]


def attend(clients: Sequence[Tensors], tau: float, eps: float = 1e-12) -> list[Tensors]:
    """Tensor by tensor, `attention` between the clients and what it gives to each of them."""
    weights = _attention(gram(clients, {name: (name,) for name in clients[0]}), tau, eps)
    mixed = _mixed(list(weights), [[c[name] for c in clients] for name in clients[0]])
    return [{name: xs[k] for name, xs in zip(clients[0], mixed, strict=True)} for k in range(len(clients))]


def align_weights(grads: Sequence[object], sign: int = 1, temperature: float = 1.0) -> Tensor:
    """softmax_i of sign cos(g_i, mean g) / temperature over whole trees; N weights in float64, on their device.

    The cosine of a zero gradient, and of every gradient with a zero mean, is zero.
    """
    named = [dict(tree.leaves(g)) for g in grads]
    parts = sweep(partial(_beside_sum, Spare()), [vectors([g[k] for g in named])[0] for k in named[0]])
    squares, with_sum = torch.stack(parts).sum(0, dtype=torch.float64)
    return _aligned(squares, with_sum / len(named), sign, temperature)


def _beside_sum(spare: Spare, _: int, pieces: Sequence[Tensor]) -> Tensor:
    """Each client's squared length and its product with the sum of all: a fifth of what all products cost."""
    x = spare.stack(pieces)
    return torch.stack([torch.linalg.vector_norm(x, dim=1).square(), torch.mv(x, x.sum(0))])


def align(gram: Tensor, sign: int = 1, temperature: float = 1.0) -> Tensor:
    """`align_weights` of gradients of which only the inner products are at hand."""
    return _aligned(gram.diagonal(), gram.mean(1), sign, temperature)


def _aligned(squares: Tensor, with_mean: Tensor, sign: int, temperature: float) -> Tensor:
    length = squares.sqrt() * with_mean.mean().clamp(min=0).sqrt()  # the products' mean is the mean's squared length
    cos = torch.where(length > 0, with_mean / length.clamp(min=1e-300), 0.0).clamp(-1, 1)
    return torch.softmax(sign * cos / temperature, 0)
