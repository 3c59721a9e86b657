"""Passes over the large tensors of many clients, piece by piece: each number comes from memory once.

What a rule does with ten models is little arithmetic on much memory. Whole tensors one after the other would go
through memory again in every operation; a piece of each stays in a core's cache until the rule is done with it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from .tree import Tensors

R = TypeVar("R")
Back = Callable[[Tensor], Tensor]

CACHE = 1 << 20  # numbers of a piece, all its vectors together: four megabytes of float32
LEAST = 1 << 12  # of one of its vectors: with fewer, calls cost more than arithmetic
MOST = {"cpu": 63 << 10, "cuda": 1 << 22}  # of one of its vectors
ALONE = 1 << 20  # numbers in all; with fewer, threads cost more than they save
TURNS = 4  # parts for each thread, so that none waits long for the others


def sweep(work: Callable[[int, Sequence[Tensor]], R], rows: Sequence[Sequence[Tensor]]) -> list[R]:
    """`work(row, pieces)` for one piece after another of each row's tensors, along their last axis, in order.

    On the CPU, pieces are shared out to torch's number of threads. Results do not depend on it.
    """
    pieces = [(number, piece) for number, row in enumerate(rows) for piece in _pieces(row)]
    threads = torch.get_num_threads()
    if threads == 1 or any(row[0].is_cuda for row in rows) or sum(len(r) * r[-1].numel() for r in rows) < ALONE:
        return [work(*piece) for piece in pieces]
    size = -(-len(pieces) // (TURNS * threads))
    parts = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    # Each has one thread inside torch too: MKL would start as many again, which wait for each other by spinning.
    try:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            return list(chain.from_iterable(pool.map(lambda part: [work(*piece) for piece in part], parts)))
    finally:
        torch.set_num_threads(threads)  # what torch was told last is also what threads to come begin with


class Spare(threading.local):
    """Memory of each thread's own: taken afresh for every piece, it would cost more than the arithmetic."""

    _kept: Tensor | None = None

    def stack(self, pieces: Sequence[Tensor]) -> Tensor:
        """The pieces as rows of one matrix, for matrix products; the next call overwrites it."""
        first, size = pieces[0], len(pieces) * len(pieces[0])
        if self._kept is None or len(self._kept) < size or self._kept.dtype != first.dtype:
            self._kept = first.new_empty(size)
        return torch.stack(list(pieces), out=self._kept[:size].view(len(pieces), len(first)))


@contextmanager
def exact() -> Iterator[None]:
    """Products of float32 in float32, whatever the run allows its networks: TF32 has ten bits."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _pieces(row: Sequence[Tensor]) -> Sequence[Sequence[Tensor]]:
    most = MOST[row[0].device.type]
    size = most if row[0].is_cuda else min(most, max(LEAST, CACHE // len(row) >> 10 << 10))
    if row[0].shape[-1] <= size:  # most tensors of a network are short
        return [row]
    return list(zip(*(torch.split(t, size, -1) for t in row), strict=True))


def in_one_order(tensors: Sequence[Tensor]) -> bool:
    """Whether their numbers lie in memory without gaps, and in the same order in all."""
    layouts = (torch.contiguous_format, torch.channels_last) if tensors[0].dim() == 4 else (torch.contiguous_format,)
    return any(all(t.is_contiguous(memory_format=layout) for t in tensors) for layout in layouts)


def vectors(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Back]:
    """Each tensor as a vector, and the way from a vector to such a tensor; copied only where their orders differ."""
    shape = tensors[0].shape
    if all(t.is_contiguous() for t in tensors) or not in_one_order(tensors):
        return [t.reshape(-1) for t in tensors], lambda v: v.view(shape)
    last = tensors[0].permute(0, 2, 3, 1).shape
    return [t.permute(0, 2, 3, 1).reshape(-1) for t in tensors], lambda v: v.view(last).permute(0, 3, 1, 2)


def sums(rows: Mapping[str, Sequence[Tensor]], shares: Mapping[str, Sequence[float]]) -> Tensors:
    """sum_k shares[name][k] rows[name][k], by name."""
    weights, given = [shares[name] for name in rows], [vectors(row) for row in rows.values()]
    totals = [torch.empty_like(row[0]) for row, _ in given]

    def add(number: int, pieces: Sequence[Tensor]) -> None:
        total, first, *others = pieces
        share, *rest = weights[number]
        torch.mul(first, share, out=total)
        for x, weight in zip(others, rest, strict=True):
            total.add_(x, alpha=weight)

    sweep(add, [(total, *row) for total, (row, _) in zip(totals, given, strict=True)])
    return {name: back(total) for name, total, (_, back) in zip(rows, totals, given, strict=True)}
