"""Memory for models, taken from earlier ones that nobody holds any more."""

from threading import Lock

import torch
from torch import Tensor, UntypedStorage

from .tree import SMALL

MOST = 16  # blocks of a size: many models that are kept anyway need none of these
_holders = getattr(torch._C, "_storage_Use_Count", None)  # torch's own count; without it memory is new


class Scratch:
    """Memory of models, used again: large blocks that are given back come again as zeroed pages, one by one.

    What lives on in an upload or a client's memory is left alone: only a block that no tensor refers to is taken.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[UntypedStorage]] = {}
        self._lock = Lock()

    def __call__(self, t: Tensor) -> Tensor:
        """Memory for a tensor like this, in the same format; whatever was there is there."""
        size = t.numel() * t.element_size()
        if size <= SMALL or _holders is None or not t.is_cpu or size != t.untyped_storage().nbytes():
            return torch.empty_like(t)
        with self._lock:
            blocks = self._blocks.setdefault(size, [])
            free = next((b for b in blocks if _holders(b._cdata) == 1), None)
            if free is None and len(blocks) == MOST:
                return torch.empty_like(t)
            if free is None:
                free = UntypedStorage(size)  # type: ignore[no-untyped-call]
                blocks.append(free)
            return torch.empty(0, dtype=t.dtype).set_(free, 0, t.size(), t.stride())
