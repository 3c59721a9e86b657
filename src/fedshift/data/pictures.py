"""Some of a data set's pictures: they stay where they are, in memory or in a file, until a batch is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..core import tree


@dataclass(frozen=True)
class Pictures:
    """Rows of one or more arrays of pictures (uint8, [n, channels, height, width]), in an order of their own."""

    arrays: tuple[Tensor, ...]
    array: Tensor  # which array each picture lies in
    row: Tensor  # and where

    @classmethod
    def of(cls, images: Tensor, rows: Tensor | None = None) -> "Pictures":
        """Those rows of one array, or all."""
        rows = torch.arange(len(images)) if rows is None else rows
        return cls((images,), torch.zeros_like(rows), rows)

    @classmethod
    def join(cls, parts: "list[Pictures]") -> "Pictures":
        """One part after the other; an array that several parts share counts once."""
        arrays = {id(a): a for p in parts for a in p.arrays}
        number = {key: k for k, key in enumerate(arrays)}
        which = (torch.tensor([number[id(a)] for a in p.arrays]).to(p.array.device)[p.array] for p in parts)
        return cls(tuple(arrays.values()), torch.cat(list(which)), torch.cat([p.row for p in parts]))

    @property
    def side(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.arrays[0].shape[2:]
        return height, width

    def __len__(self) -> int:
        return len(self.row)

    @property
    def nbytes(self) -> int:
        """What they would take in one array."""
        return len(self) * self.arrays[0][:1].nbytes

    def take(self, index: Tensor, device: torch.device | None = None) -> Tensor:
        """A batch, on `device`; what lies elsewhere is copied there while the device goes on with the batch before."""
        batch = self._batch(tree.send(index, self.row.device))
        return batch if device is None else tree.send(batch, device)

    def _batch(self, index: Tensor) -> Tensor:
        rows = self.row[index]
        if len(self.arrays) == 1:
            return self.arrays[0].index_select(0, rows)  # whole pictures, where indexing copies byte by byte
        which = self.array[index]
        batch = self.arrays[0].new_empty((len(rows), *self.arrays[0].shape[1:]))
        for k in cast(list[int], torch.unique(which).tolist()):
            here = which == k
            batch[here] = self.arrays[k][rows[here]]
        return batch


class Resident:
    """Arrays of pictures laid one after the other on a device, for every site and every run that uses them."""

    def __init__(self, arrays: Sequence[Tensor], device: torch.device) -> None:
        self.arrays = tuple(arrays)  # kept, so that no other array can come to lie where one of these was
        self.everything = torch.cat([a.to(device) for a in arrays])
        starts = torch.tensor([0, *(len(a) for a in arrays[:-1])]).cumsum(0)
        self._starts = dict(zip(map(_place, arrays), starts.tolist(), strict=True))

    def moved(self, pictures: Pictures) -> Pictures:
        """Those pictures, taken from here."""
        starts = torch.tensor([self._starts[_place(a)] for a in pictures.arrays])
        rows = (starts[pictures.array] + pictures.row).to(self.everything.device)
        return Pictures((self.everything,), torch.zeros_like(rows), rows)


Place = tuple[int, int]
_RESIDENTS: dict[tuple[torch.device, tuple[Place, ...]], Resident] = {}
KEPT = 4  # sets of arrays that a device holds for runs to come


def resident(pictures: "Sequence[Pictures]", device: torch.device) -> Resident | None:
    """All arrays behind these pictures on the device, or None if they would fill more than half of what is free."""
    arrays = dict(sorted({_place(a): a for p in pictures for a in p.arrays}.items()))
    key = (device, tuple(arrays))
    if key not in _RESIDENTS:
        if device.type == "cuda" and sum(a.nbytes for a in arrays.values()) > torch.cuda.mem_get_info(device)[0] // 2:
            return None
        for old in list(_RESIDENTS)[: 1 - KEPT]:
            del _RESIDENTS[old]
        _RESIDENTS[key] = Resident(list(arrays.values()), device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # runs on other streams may ask for it next
    return _RESIDENTS[key]


def _place(array: Tensor) -> Place:
    return array.data_ptr(), len(array)
