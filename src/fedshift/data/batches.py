"""Which images a client sees in a round, and in which batches; drawn by its own seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import seeds
from ..core.task import Batch
from .pictures import Pictures
from .transform import Transform


@dataclass(frozen=True)
class Budget:
    """A client's work in one round: so many epochs, or so many steps."""

    batch: int
    epochs: int
    steps: int  # 0: by epochs

    def count(self, n: int) -> int:
        """Steps in a round for a client of `n` images."""
        return self.steps or self.epochs * len(sizes(n, self.batch))

    def order(self, n: int, gen: torch.Generator) -> Iterator[Tensor]:
        """The indices of each batch."""
        if not self.steps:
            for _ in range(self.epochs):
                yield from torch.split(torch.randperm(n, generator=gen), sizes(n, self.batch))
            return
        full = min(self.batch, n)
        done = 0
        while done < self.steps:  # whole batches alone, from one shuffle after another
            shuffled = torch.randperm(n, generator=gen)[: n - n % full]
            for batch in torch.split(shuffled, full)[: self.steps - done]:
                done += 1
                yield batch


def sizes(n: int, batch: int) -> list[int]:
    """Batch sizes of an epoch. A last batch of one image joins the one before: BatchNorm cannot train on one."""
    whole, rest = divmod(n, batch)
    if rest == 1 and whole:
        return [batch] * (whole - 1) + [batch + 1]
    return [batch] * whole + [rest] * bool(rest)


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

    def steps(self) -> int:
        """Steps in one round."""
        return self.budget.count(self.examples)

    def batches(self, seed: int) -> Iterator[Batch]:
        """The round's batches: shuffled by one stream, augmented by another."""
        order, looks = seeds.generator(seed, "order"), seeds.generator(seed, "augment")
        for index in self.budget.order(self.examples, order):
            index = index.to(self.labels.device)
            yield Batch(self.transform.train(self.pictures.take(index), looks), self.labels[index])
