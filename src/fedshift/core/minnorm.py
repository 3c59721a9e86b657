"""The point of smallest norm in a convex hull, and the agreement of clients that follows from it."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .gram import gram
from .pieces import sums
from .tree import Tensors

Array = NDArray[np.float64]


def minimum_norm(gram: Tensor) -> Tensor:
    """The u that minimises u^T G u over u >= 0, sum(u) = 1; float64, on the host.

    v = argmin v^T G v + (sum(v) - 1)^2 over v >= 0 is a multiple of u, and is found by Lawson and Hanson's active
    set. Optimal means: (G u)_j >= u^T G u for every j. Among several optima, one with few non-zero weights.
    """
    g: Array = gram.detach().double().cpu().numpy()
    scale = float(np.diag(g).max())
    v = _nonnegative(g / scale + 1) if scale > 0 else np.ones(len(g))
    return torch.from_numpy(v / v.sum())


def _nonnegative(a: Array, tol: float = 1e-13) -> Array:
    """The v >= 0 with A v >= 1, and equality where v > 0: the minimum of v^T A v / 2 - sum(v)."""
    solved, _, rank, _ = np.linalg.lstsq(a, np.ones(len(a)), rcond=1e-10)
    whole: Array = solved.astype(np.float64)
    if rank == len(a) and whole.min() > 0 and float(abs(1 - a @ whole).max()) <= tol * len(a):
        return whole  # nobody is left out, which is common: there is no need to admit one after another
    v, free, barred = np.zeros(len(a)), np.zeros(len(a), bool), np.zeros(len(a), bool)
    while True:
        slope = np.where(free | barred, -np.inf, 1 - a @ v)
        j = int(slope.argmax())
        if slope[j] <= tol * len(a):
            return v
        moved, still = _descend(a, v, free | (np.arange(len(a)) == j))
        if not still[j]:  # rounding alone made it look useful
            barred[j] = True
            continue
        v, free, barred = moved, still, np.zeros(len(a), bool)


def _descend(a: Array, v: Array, free: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
    """Towards the solution on the free coordinates, dropping each that would become negative on the way."""
    while True:
        z = np.zeros(len(a))
        z[free] = np.linalg.lstsq(a[np.ix_(free, free)], np.ones(int(free.sum())), rcond=None)[0]
        bad = free & (z <= 0)
        if not bad.any():
            return z, free
        shares = np.full(len(a), np.inf)
        shares[bad] = v[bad] / np.maximum(v[bad] - z[bad], 1e-300)
        v = np.where(free, v + shares.min() * (z - v), 0.0)
        free = free & (shares > shares.min())
        v[~free] = 0.0


def consensus(changes: Sequence[Tensors], groups: Mapping[str, tuple[str, ...]]) -> Tensors:
    """The step that no client objects to: per group, the mean length times the shortest mix of the directions.

    `changes` are the clients' Delta_k by name; `groups` says which names make one vector. A client whose change is
    shorter than 1e-12 has no direction, but counts in the mean length; without any direction the step is zero.
    """
    grams = gram(changes, groups).cpu()  # the only copy to the host
    weights = {q: _shares(g) for q, g in zip(groups, grams, strict=True)}
    shares = {name: weights[q] for q, names in groups.items() for name in names}
    return sums({name: [c[name] for c in changes] for name in shares}, shares)


def _shares(gram: Tensor) -> list[float]:
    """What to multiply each Delta_k by: mean(n) u_k / n_k."""
    n = gram.diagonal().sqrt()
    has = n >= 1e-12
    shares = torch.zeros_like(n)
    if bool(has.any()):
        unit = gram[has][:, has] / n[has].outer(n[has])
        shares[has] = n.mean() * minimum_norm(unit) / n[has]
    return [float(s) for s in shares]
