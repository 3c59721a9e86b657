"""Seeded, stratified splits and partitions of one domain's images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Indices of the three parts; disjoint, and together everything."""

    train: Tensor
    val: Tensor
    test: Tensor


def stratified(labels: Tensor, val: float, test: float, seed: int) -> Split:
    """Hold out these shares of every class; a class keeps at least one training image."""
    parts: tuple[list[Tensor], ...] = ([], [], [])
    gen = torch.Generator().manual_seed(seed)
    for c in torch.unique(labels).tolist():
        mine = torch.nonzero(labels == c).flatten()
        mine = mine[torch.randperm(len(mine), generator=gen)]
        n_test = min(round(test * len(mine)), len(mine) - 1)
        n_val = min(round(val * len(mine)), len(mine) - 1 - n_test)
        sizes = [len(mine) - n_val - n_test, n_val, n_test]
        for into, piece in zip(parts, torch.split(mine, sizes), strict=True):
            into.append(piece)
    return Split(*(torch.cat(p).sort().values for p in parts))


def shares(indices: Tensor, labels: Tensor, pieces: int, seed: int) -> list[Tensor]:
    """Deal `indices` out to equal pieces, class by class, so that each piece has the mix of the whole."""
    gen = torch.Generator().manual_seed(seed)
    shuffled = indices[torch.randperm(len(indices), generator=gen)]
    dealt = shuffled[labels[shuffled].argsort(stable=True)]
    return [dealt[k::pieces].sort().values for k in range(pieces)]


def at_most(indices: Tensor, limit: int, seed: int) -> Tensor:
    """A random subset of that size, or everything where `limit` is 0 or larger."""
    if not limit or len(indices) <= limit:
        return indices
    gen = torch.Generator().manual_seed(seed)
    return indices[torch.randperm(len(indices), generator=gen)[:limit]].sort().values
