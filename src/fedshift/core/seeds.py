"""Every random number comes from a seed derived from names, so that a client or metric more shifts no other stream."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed from the run's seed and names, such as `derive(0, "batches", round, client)`."""
    text = "\x1f".join(f"{type(n).__name__}:{n}" for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *names))


class Scope:
    """Inside, torch's global generators (dropout, layer initialisation) follow a seed; after, they are put back.

    Entered again, it goes on where it was left: work that is done in two parts draws what it would have drawn in one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._mine: list[Tensor] = []
        self._theirs: list[Tensor] = []

    def __enter__(self) -> Self:
        """Seed, or go on."""
        self._theirs = _states()
        if self._mine:
            _restore(self._mine)
        else:
            _seed(self._seed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Put back what was there before."""
        self._mine = _states()
        _restore(self._theirs)


def scope(seed: int) -> Scope:
    """A part of the program with random numbers of its own."""
    return Scope(seed)


_THREAD = threading.local()


@contextmanager
def by(generator: torch.Generator) -> Iterator[None]:
    """Inside, in this thread alone, scopes seed this generator and leave torch's global ones alone."""
    _THREAD.own = generator
    try:
        yield
    finally:
        del _THREAD.own


def _own() -> torch.Generator | None:
    return getattr(_THREAD, "own", None)


def _seed(seed: int) -> None:
    """As `torch.manual_seed`, which without a GPU notes each time, at some cost, where it was called from."""
    (_own() or torch.default_generator).manual_seed(seed)
    if torch.cuda.is_available() and _own() is None:
        torch.cuda.manual_seed(seed)


def _states() -> list[Tensor]:
    if own := _own():
        return [own.get_state()]
    cpu = [torch.get_rng_state()]
    return [*cpu, torch.cuda.get_rng_state()] if torch.cuda.is_available() else cpu


def _restore(states: list[Tensor]) -> None:
    if own := _own():
        own.set_state(states[0])
        return
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
