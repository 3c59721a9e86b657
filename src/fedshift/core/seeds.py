"""Every random number comes from a seed derived from names, so that a client or metric more shifts no other stream."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed from the run's seed and names, such as `derive(0, "batches", round, client)`."""
    text = "\x1f".join(f"{type(n).__name__}:{n}" for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *names))


@contextmanager
def scope(seed: int) -> Iterator[None]:
    """Seed torch's global generator (dropout, layer initialisation) inside; put it back after."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
