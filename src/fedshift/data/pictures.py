"""Some of a data set's pictures: they stay where they are, in memory or in a file, until a batch is asked for."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor


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
        """One part after the other."""
        arrays = tuple(a for p in parts for a in p.arrays)
        shifts = torch.tensor([0, *(len(p.arrays) for p in parts[:-1])]).cumsum(0)
        array = torch.cat([p.array + s for p, s in zip(parts, shifts, strict=True)])
        return cls(arrays, array, torch.cat([p.row for p in parts]))

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
        batch = self._batch(index.to(self.row.device))
        if device is None or batch.device == device:
            return batch
        return batch.pin_memory().to(device, non_blocking=True)

    def _batch(self, index: Tensor) -> Tensor:
        rows = self.row[index]
        if len(self.arrays) == 1:
            return self.arrays[0][rows]
        which = self.array[index]
        batch = self.arrays[0].new_empty((len(rows), *self.arrays[0].shape[1:]))
        for k in cast(list[int], torch.unique(which).tolist()):
            here = which == k
            batch[here] = self.arrays[k][rows[here]]
        return batch

    def gathered(self, device: torch.device) -> "Pictures":
        """The same in one array on `device`: what a GPU wants, if it fits; parts of one array there are left in it."""
        whole = self.arrays[0]._base
        if whole is not None and whole.device.type == device.type and all(a._base is whole for a in self.arrays):
            starts = torch.tensor([a.storage_offset() // whole.stride(0) for a in self.arrays])
            rows = (self.row + starts[self.array]).to(device)
            return Pictures((whole,), torch.zeros_like(rows), rows)
        everything = self.take(torch.arange(len(self))).to(device)
        rows = torch.arange(len(self), device=device)
        return Pictures((everything,), torch.zeros_like(rows), rows)
