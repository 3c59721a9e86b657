"""Random numbers of a thread's own, so that clients may train side by side in one process.

Torch's global generator belongs to the whole process. In a thread that works apart, `seeds.scope` seeds a generator of
the thread's own instead, and torch's functions that draw are given it. What draws in another way still draws from the
global one; that is noticed, and the work is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import seeds
from .errors import FedshiftError

METHODS = ("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial")
TAKE_A_GENERATOR = frozenset(
    [getattr(torch, name) for name in ("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm")]
    + [getattr(Tensor, name) for name in (*METHODS, "normal_", "random_", "uniform_")]
)


class DrawsElsewhere(FedshiftError):
    """Work that draws from torch's global generator, which other threads use too."""


@contextmanager
def apart() -> Iterator[None]:
    """Inside, in this thread alone, every draw follows the thread's own scopes."""
    own, before = torch.Generator(), torch.default_generator.get_state()
    with seeds.by(own), _Routed(own):
        yield
    if not torch.equal(before, torch.default_generator.get_state()):
        raise DrawsElsewhere("its steps draw random numbers in a way that cannot be kept to one thread")


class _Routed(TorchFunctionMode):
    """Gives a generator to what would draw from the global one; the numbers are those that it would have drawn."""

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()
        self._own = own

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in TAKE_A_GENERATOR and kwargs.get("generator") is None:
            return func(*args, **{**kwargs, "generator": self._own})
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func in (torch.rand_like, torch.randn_like):
            filled = torch.empty_like(*args, **kwargs)
            return (
                filled.uniform_(generator=self._own) if func is torch.rand_like else filled.normal_(generator=self._own)
            )
        return func(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """As torch computes it."""
        if not training or p == 0:
            return input
        if p == 1:
            return input.mul_(0) if inplace else input * 0
        kept = torch.empty_like(input).bernoulli_(1 - p, generator=self._own).div_(1 - p)
        return input.mul_(kept) if inplace else input * kept
