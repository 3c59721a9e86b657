"""Pictures prepared ahead of the steps that train on them, on the device.

Where a site's pictures lie on the device, gathering and augmenting so many of them (a *plate*) is recorded once and
replayed; which pictures, and how each is augmented, lies in static tensors. Elsewhere it is done as it comes.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ..core.task import Batch, Fuse, Site, Source, Visits
from .fusing import refusal
from .machine import Body, Machine
from .turn import TURN

ALIGN = 4  # augmentation treats every fourth image of a batch alike: batches begin at multiples of it
BYTES = 64 * 2**20  # of prepared images
PLATE = 1024  # images prepared by one replay, where batches need not be prepared one by one
DRAWERS = ThreadPoolExecutor(4, "fedshift-draw")  # threads begin with the first client that is recorded
SOURCES = 8  # that a feed keeps plates of; on a GPU a data set is one

log = logging.getLogger("fedshift")


@dataclass
class Feed:
    """Prepared images and labels of some batches to come, and where the next batch begins.

    Where sums may change their order, images are prepared many at once, by compiled functions, and lie with their
    channels last. Else they are prepared batch by batch: how a GPU sums up a picture depends on how many there are.
    """

    x: Tensor  # [capacity, channels, height, width], or channels last
    y: Tensor
    at: Tensor
    rows: Tensor  # [capacity]: where each of the images lies
    place: Tensor  # where the next plate begins
    fuse: Fuse | None
    looks: Tensor | None = None  # [capacity, numbers]: how each is augmented, if any ever was
    plates: dict[tuple[Hashable, int], Body] = field(default_factory=dict)  # by source and number of images
    taken: int = 0  # bytes that plates took

    @classmethod
    def of(cls, site: Site, largest: int, fuse: Fuse | None) -> "Feed":
        """Room for a site's images, and for a batch of the largest size at least."""
        x, y = next(iter(site.look(torch.zeros(1, dtype=torch.int64))))
        shape = x.permute(0, 2, 3, 1).shape if fuse else x.shape
        capacity = max(2 * aligned(largest), BYTES // x.nbytes)
        capacity = -(-capacity // min(PLATE, capacity)) * min(PLATE, capacity)
        start, rows = (torch.zeros(n, dtype=torch.int64, device=x.device) for n in (1, capacity))
        return cls(x.new_zeros((capacity, *shape[1:])), y.new_zeros(capacity), start, rows, start.clone(), fuse)

    @property
    def plate(self) -> int:
        """Images prepared at once, if not batch by batch; the capacity is a multiple."""
        return min(PLATE, len(self.y))

    def put(self, images: Tensor, start: int) -> None:
        """Prepared images from `start` on."""
        self.x[start : start + len(images)].copy_(self._formed(images))

    def lay(self, rows: Tensor, looks: Tensor | None, length: int) -> None:
        """Where images to prepare lie and how they are augmented, from the start; plates reach over so many."""
        self.rows[: len(rows)].copy_(rows)
        self.rows[len(rows) : length].zero_()  # those before may have been of a larger source
        if looks is not None:
            if self.looks is None:
                self.looks = looks.new_zeros((len(self.rows), looks.shape[1]))
            self.looks[: len(looks)].copy_(looks)

    def prepare(self, machine: Machine, dice: Any, source: Source, looked: bool, numbers: Sequence[int]) -> None:
        """Plates of so many images each, of those that are laid out; recorded at their first use."""
        bodies = [
            self.plates.get((source.key, n)) or machine.apart(partial(self._record, machine, dice, source, looked, n))
            for n in numbers
        ]
        self.place.zero_()
        for body in bodies:
            body()

    def _record(self, machine: Machine, dice: Any, source: Source, looked: bool, number: int) -> Body:
        self._forget(machine, source)
        places, looks = torch.arange(number, device=self.place.device), self.looks if looked else None
        body, before = partial(self._plate, source, None, looks, places), machine.taken()
        self._tried(body)
        if self.fuse is not None and looked and (source.key, number) not in REFUSED:
            fused = partial(self._plate, source, self.fuse, looks, places)
            if why := refusal(lambda: self._tried(fused)):
                log.warning("images are prepared by functions as they are, since they cannot be compiled: %s", why)
                REFUSED.add((source.key, number))
            body = body if why else fused
        self.plates[source.key, number] = machine.record(body, dice)
        self.taken += machine.taken() - before
        return self.plates[source.key, number]

    def _forget(self, machine: Machine, new: Source) -> None:
        """Plates hold the pictures that they were recorded with: those of older sources go, when they are done."""
        known = list(dict.fromkeys(key for key, _ in self.plates if key != new.key))
        if len(known) >= SOURCES:
            machine.mark().synchronize()
        for old in known[: max(0, len(known) - SOURCES + 1)]:
            self.plates = {which: body for which, body in self.plates.items() if which[0] != old}

    def _tried(self, body: Body) -> None:
        self.place.zero_()
        body()

    def _plate(self, source: Source, fuse: Fuse | None, looks: Tensor | None, places: Tensor) -> None:
        """Gather and augment the next ones."""
        here = self.place + places
        look = None if looks is None else looks.index_select(0, here)
        images = source.drawn(self.rows.index_select(0, here), look, fuse)
        self.x.index_copy_(0, here, self._formed(images))
        self.place.add_(aligned(len(places)))

    def _formed(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1) if self.fuse else images


REFUSED: set[tuple[Hashable, int]] = set()  # sources and numbers of images that the compiler cannot do


def next_batch(feed: Feed, places: Tensor) -> Batch:
    """The batch that begins at `at`; its shape is static, its place is not."""
    here = feed.at + places
    x = feed.x.index_select(0, here)
    return Batch(x.permute(0, 3, 1, 2) if feed.fuse else x, feed.y.index_select(0, here))


class Feeder:
    """Keeps a feed ahead of a client's steps: little at first, so that they begin soon, then as much as it holds."""

    def __init__(self, machine: Machine, dice: Any, feed: Feed, site: Site, visits: Visits) -> None:
        self._machine, self._dice, self._feed, self._site, self._images = machine, dice, feed, site, visits.images
        self._source = site.source()
        self._ready: Iterator[int] = iter(())
        self._chunks = _drawn_ahead(list(chunks(visits.sizes, feed.plate, len(feed.y))), visits.looks)

    def next(self) -> int:
        """The size of the next batch, which is in the feed where it goes on."""
        size = next(self._ready, 0)
        if not size:
            self._fill(*next(self._chunks))
            size = next(self._ready)
        return size

    def _fill(self, sizes: list[int], looks: Tensor | None) -> None:
        taken, self._images = torch.split(self._images, [sum(sizes), len(self._images) - sum(sizes)])
        places = padded(tuple(sizes))
        images, table = taken[places], None if looks is None else self._machine.send(looks[places])
        index = self._machine.send(images)
        self._feed.y[: len(index)].copy_(self._site.labels[index])
        if self._source is None:
            self._as_they_come(images, table, sizes)
        else:
            plates = [self._feed.plate] * -(-len(index) // self._feed.plate)
            self._feed.lay(self._source.row[index], table, sum(plates))
            numbers = plates if self._feed.fuse else sizes
            self._feed.prepare(self._machine, self._dice, self._source, table is not None, numbers)
        self._feed.at.zero_()
        self._ready = iter(sizes)

    def _as_they_come(self, images: Tensor, table: Tensor | None, sizes: list[int]) -> None:
        starts = accumulate((aligned(size) for size in sizes), initial=0)
        cuts = [(0, len(images))] if self._feed.fuse else list(zip(starts, sizes, strict=False))
        for start, size in cuts:
            part = slice(start, start + size)
            self._feed.put(self._site.drawn(images[part], None if table is None else table[part]), start)


def _drawn_ahead(
    parts: Sequence[list[int]], looks: Callable[[int], Tensor | None]
) -> Iterator[tuple[list[int], Tensor | None]]:
    """Each chunk and how its images are augmented, which another thread draws while the chunk before is trained on."""
    ahead = DRAWERS.submit(looks, sum(parts[0]))
    for part, after in pairwise([*parts, []]):
        TURN.wait(lambda: ahead.exception())  # noqa: B023 - it is called here and now
        table = ahead.result()
        if after:
            ahead = DRAWERS.submit(looks, sum(after))
        yield part, table


def chunks(sizes: Sequence[int], first: int, most: int) -> Iterator[list[int]]:
    """The batches that are prepared at once: up to so many images first, and then at most."""
    part, used, limit = list[int](), 0, first
    for size in sizes:
        if part and used + aligned(size) > limit:
            yield part
            part, used, limit = [], 0, most
        part.append(size)
        used += aligned(size)
    if part:
        yield part


def aligned(size: int) -> int:
    """A batch's length in a feed."""
    return -(-size // ALIGN) * ALIGN


@lru_cache(maxsize=256)
def padded(sizes: tuple[int, ...]) -> Tensor:
    """Rows of batches one after the other, filled up to multiples of `ALIGN` by rows that no step reads."""
    times = torch.ones(sum(sizes), dtype=torch.int64)
    lengths = torch.tensor(sizes)
    times[lengths.cumsum(0) - 1] += -lengths % ALIGN
    return torch.arange(len(times)).repeat_interleave(times)
