"""Inner products between clients, group by group: all that rules about directions need to know of large vectors."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .pieces import sweep, vectors
from .tree import Tensors


def gram(clients: Sequence[Tensors], groups: Mapping[str, Iterable[str]]) -> Tensor:
    """G[q, i, j] = <x_i, x_j> over the tensors of group q, in float64, where the tensors are."""
    owner, rows = zip(
        *((q, vectors([c[k] for c in clients])[0]) for q, names in groups.items() for k in names), strict=True
    )
    parts: dict[str, list[Tensor]] = {q: [] for q in groups}
    for number, product in sweep(_product, rows):
        parts[owner[number]].append(product)
    return torch.stack([torch.stack(products).sum(0) for products in parts.values()])


def _product(number: int, pieces: Sequence[Tensor]) -> tuple[int, Tensor]:
    """A short piece's part: in the tensors' precision, to be summed in float64."""
    x = torch.stack(list(pieces))
    return number, (x @ x.T).double()
