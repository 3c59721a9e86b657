"""Inner products between clients, group by group: all that rules about directions need to know of large vectors."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .tree import Tensors

CHUNK = {"cpu": 1 << 14, "cuda": 1 << 22}  # numbers of each client in one product


def gram(clients: Sequence[Tensors], groups: Mapping[str, Iterable[str]]) -> Tensor:
    """G[q, i, j] = <x_i, x_j> over the tensors of group q, in float64, where the tensors are."""
    sums = [sum(_products([c[name] for c in clients]) for name in names) for names in groups.values()]
    return torch.stack([torch.as_tensor(s) for s in sums])


def _products(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor's part: products of short pieces in the tensors' precision, summed in float64."""
    n, device = len(tensors), tensors[0].device
    total = torch.zeros(n, n, dtype=torch.float64, device=device)
    for row in zip(*(torch.split(x.reshape(-1), CHUNK[device.type]) for x in tensors), strict=True):
        x = torch.stack(row)
        total += (x @ x.T).double()
    return total
