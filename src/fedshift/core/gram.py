"""Inner products between clients, group by group: all that rules about directions need to know of large vectors."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from .pieces import Spare, exact, sweep, vectors
from .tree import Tensors

STRIP = 2  # rows of a product at once: on the CPU what half a symmetric product saves is worth five short ones


def gram(clients: Sequence[Tensors], groups: Mapping[str, Iterable[str]]) -> Tensor:
    """G[q, i, j] = <x_i, x_j> over the tensors of group q, in float64, where the tensors are."""
    owner, rows = zip(
        *((q, vectors([c[k] for c in clients])[0]) for q, names in groups.items() for k in names), strict=True
    )
    parts: dict[str, list[Tensor]] = {q: [] for q in groups}
    with exact():
        for number, product in sweep(partial(_product, Spare()), rows):
            parts[owner[number]].append(product)
    upper = torch.stack([torch.stack(products).sum(0, dtype=torch.float64) for products in parts.values()]).triu()
    return upper + upper.triu(1).mT


def _product(spare: Spare, number: int, pieces: Sequence[Tensor]) -> tuple[int, Tensor]:
    """A short piece's part: in the tensors' precision, to be summed in float64. Below the diagonal it may be zero."""
    x = spare.stack(pieces)
    product, rows = x.new_zeros(len(x), len(x)), len(x) if x.is_cuda else STRIP
    for at in range(0, len(x), rows):
        torch.mm(x[at : at + rows], x[at:].T, out=product[at : at + rows, at:])
    return number, product
