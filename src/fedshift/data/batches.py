"""Which images a client sees in a round, and in which batches; drawn by its own seed alone."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import torch
from torch import Tensor

from ..core import seeds, tree
from ..core.task import Batch, Fuse, Visits
from .augment import SLOTS, Transform
from .pictures import Pictures

AHEAD = 2**20  # numbers in the pictures prepared at once: they share a call's cost, and fit the processor's cache


@dataclass(frozen=True)
class Budget:
    """A client's work in one round: so many epochs, or so many steps, on all its images or a fresh share of them."""

    batch: int
    epochs: int
    steps: int  # 0: by epochs
    sample: float = 1.0
    drop_last: bool = False

    def share(self, n: int) -> int:
        """How many of a client's `n` images a round uses."""
        return max(1, round(self.sample * n))

    def count(self, n: int) -> int:
        """Steps in a round for a client of `n` images."""
        return self.steps or self.epochs * len(sizes(self.share(n), self.batch, self.drop_last))

    def order(self, n: int, gen: torch.Generator) -> Iterator[Tensor]:
        """The indices of each batch."""
        m = self.share(n)
        chosen = torch.randperm(n, generator=gen)[:m] if m < n else torch.arange(n)
        if self.steps:
            yield from self._by_steps(chosen, gen)
            return
        parts = sizes(m, self.batch, self.drop_last)
        for _ in range(self.epochs):
            yield from torch.split(chosen[torch.randperm(m, generator=gen)[: sum(parts)]], parts)

    def _by_steps(self, chosen: Tensor, gen: torch.Generator) -> Iterator[Tensor]:
        """Whole batches alone, from one shuffle after another."""
        m, done = len(chosen), 0
        full = min(self.batch, m)
        while done < self.steps:
            shuffled = chosen[torch.randperm(m, generator=gen)[: m - m % full]]
            for batch in torch.split(shuffled, full)[: self.steps - done]:
                done += 1
                yield batch


def sizes(n: int, batch: int, drop_last: bool = False) -> list[int]:
    """Batch sizes of an epoch. A last batch of one image joins the one before: BatchNorm cannot train on one."""
    whole, rest = divmod(n, batch)
    if whole and drop_last:
        return [batch] * whole
    if rest == 1 and whole:
        return [batch] * (whole - 1) + [batch + 1]
    return [batch] * whole + [rest] * bool(rest)


def groups(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Batches of up to `most` pictures in all, each at a place that leaves its jitter's orders what they were alone."""
    group = list[int]()
    for size in sizes:
        if group and (sum(group) + size > most or group[-1] % SLOTS):
            yield group
            group = []
        group.append(size)
    if group:
        yield group


@dataclass(frozen=True)
class Source:
    """One array of pictures, and how training sees them: what sites and runs may share; `row` is a site's own."""

    array: Tensor
    transform: Transform
    row: Tensor

    @property
    def key(self) -> Hashable:
        """The array's place and the way."""
        return self.array.data_ptr(), len(self.array), self.transform

    def drawn(self, rows: Tensor, looks: Tensor | None, fuse: Fuse | None = None) -> Tensor:
        """The pictures of those rows as training sees them, by a compiled function if asked."""
        way = seen if fuse is None else fuse(seen)
        return way(self.transform, self.array.index_select(0, rows), looks)


def seen(transform: Transform, pictures: Tensor, looks: Tensor | None) -> Tensor:
    """Pictures as training sees them."""
    return transform.test(pictures) if looks is None else transform.apply(pictures, looks)


@dataclass(frozen=True)
class ClientData:
    """A client's training images; its site's name seeds nothing here, the round does."""

    name: str
    pictures: Pictures
    labels: Tensor
    budget: Budget
    transform: Transform

    @property
    def examples(self) -> int:
        """How many images it trains on."""
        return len(self.labels)

    def steps(self, rows: Tensor | None = None) -> int:
        """Steps in one round on those of its images, or on all."""
        return self._budget(rows).count(self.examples if rows is None else len(rows))

    def _budget(self, rows: Tensor | None) -> Budget:
        """Rows that a method chose are used whole: they are what the round draws."""
        return self.budget if rows is None else replace(self.budget, sample=1.0)

    def visits(self, seed: int, rows: Tensor | None = None) -> Visits:
        """The whole round: shuffled by one stream, augmented by another."""
        number = self.examples if rows is None else len(rows)
        parts = list(self._budget(rows).order(number, seeds.generator(seed, "order")))
        index, gen = torch.cat(parts), seeds.generator(seed, "augment")
        return Visits(
            [len(part) for part in parts],
            index if rows is None else rows.cpu()[index],
            lambda n: self.transform.table(gen, n, self.pictures.side),
        )

    def drawn(self, images: Tensor, looks: Tensor | None) -> Tensor:
        """Those pictures as training sees them."""
        return seen(self.transform, self.pictures.take(images, self.labels.device), looks)

    def source(self) -> Source | None:
        """The array that its pictures lie in, if there is one and the device has it."""
        arrays = self.pictures.arrays
        if len(arrays) > 1 or arrays[0].device != self.labels.device:
            return None
        return Source(arrays[0], self.transform, self.pictures.row)

    def batches(self, seed: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """The round's batches, one by one; small ones are prepared several at once."""
        device = self.labels.device
        sizes, images, looks = self.visits(seed, rows)
        channels, height, width = self.pictures.arrays[0].shape[1:]
        # How a GPU sums up a picture depends on how many there are; on the CPU nothing does.
        most = 0 if device.type == "cuda" else AHEAD // (channels * max(height * width, self.transform.recipe.size**2))
        parts = list(groups(sizes, most))
        totals = [sum(part) for part in parts]
        table = looks(len(images))  # one for the whole round costs a fraction of one for each batch
        drawn = repeat(None) if table is None else torch.split(tree.send(table, device), totals)
        for part, index, looked in zip(parts, torch.split(images, totals), drawn, strict=False):
            x, y = self.drawn(index, looked), self.labels[tree.send(index, device)]
            yield from map(Batch, torch.split(x, part), torch.split(y, part))

    def look(self, rows: Tensor | None = None) -> Iterator[Batch]:
        """Each image once, in order, as evaluation sees it."""
        device = self.labels.device
        for index in torch.split(torch.arange(self.examples) if rows is None else rows.cpu(), self.budget.batch):
            yield Batch(self.transform.test(self.pictures.take(index, device)), self.labels[tree.send(index, device)])
