"""A client's step over tensors that stay where they are, recorded once for each size of batch."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import seeds, tree
from ..core.net import Variables
from ..core.task import Batch, Round, Site, Step, Task, Visits, Work
from .machine import Body, Machine, NotCapturable

ALIGN = 4  # augmentation treats every fourth image of a batch alike: batches begin at multiples of it
BYTES = 64 * 2**20  # of prepared images
DRAWERS = ThreadPoolExecutor(4, "fedshift-draw")  # threads begin with the first client that is recorded


class Carried(NamedTuple):
    """The tensors of a `Work`: all that a step reads and writes but its batch."""

    model: Variables
    down: Any
    client: Any
    opt: Any
    aux: Any


class StepRound:
    """What a recorded step may know of its round: the learning rate, as a tensor."""

    def __init__(self, lr: Tensor) -> None:
        self.lr = lr

    def __getattr__(self, name: str) -> Any:
        """Anything else would be frozen at its first value."""
        if name in Round._fields:
            raise NotCapturable(f"its step reads round.{name}, which `begin` should put into aux")
        raise AttributeError(name)


@dataclass
class Feed:
    """Prepared images and labels of some batches to come, and where the next batch begins."""

    x: Tensor  # [capacity, height, width, channels], or channels before height where sums must keep their order
    y: Tensor
    at: Tensor
    channels_last: bool

    @classmethod
    def of(cls, site: Site, largest: int, *, channels_last: bool) -> "Feed":
        """Room for a site's images, and for a batch of the largest size at least."""
        x, y = next(iter(site.look(torch.zeros(1, dtype=torch.int64))))
        shape = x.permute(0, 2, 3, 1).shape if channels_last else x.shape
        capacity = max(2 * aligned(largest), BYTES // x.nbytes)
        at = torch.zeros(1, dtype=torch.int64, device=x.device)
        return cls(x.new_zeros((capacity, *shape[1:])), y.new_zeros(capacity), at, channels_last)

    def fill(self, batches: Batch, start: int = 0) -> None:
        """Put images and labels in from `start` on, and begin at the first."""
        x, y = batches
        self.x[start : start + len(x)].copy_(x.permute(0, 2, 3, 1) if self.channels_last else x)
        self.y[start : start + len(y)].copy_(y)
        self.at.zero_()

    def batch(self, places: Tensor) -> Batch:
        """The batch that begins at `at`; its shape is static, its place is not."""
        here = self.at + places
        x = self.x.index_select(0, here)
        return Batch(x.permute(0, 3, 1, 2) if self.channels_last else x, self.y.index_select(0, here))


@dataclass
class Tape:
    """The step of one phase: static tensors, their recordings by batch size, and sums of the metrics."""

    machine: Machine
    dice: Any
    step: Step
    feed: Feed
    work: Work
    carried: list[Tensor]
    sums: dict[str, Tensor] = field(default_factory=dict)
    replays: dict[int, Body] = field(default_factory=dict)

    @classmethod
    def of(cls, machine: Machine, dice: Any, step: Step, feed: Feed, work: Work, *, channels_last: bool) -> "Tape":
        """Room for work like this."""
        kept = tree.map(lambda t: _room_for(t, channels_last), Carried(*(getattr(work, k) for k in Carried._fields)))
        first = next(iter(work.model.params.values()))
        lr = torch.zeros((), dtype=first.dtype, device=first.device)
        static = Work(kept.model, kept.down, kept.client, StepRound(lr), kept.opt, kept.aux)  # type: ignore[arg-type]
        return cls(machine, dice, step, feed, static, [t for _, t in tree.leaves(kept)])

    def load(self, work: Work) -> None:
        """Put a client's work in."""
        new = [t for part in Carried._fields for _, t in tree.leaves(getattr(work, part))]
        if len(new) != len(self.carried):
            raise NotCapturable(f"its work has {len(new)} tensors where it had {len(self.carried)} before")
        if new:
            torch._foreach_copy_(self.carried, new)
        self.work.round.lr.fill_(work.round.lr)  # type: ignore[union-attr]
        if self.sums:
            torch._foreach_zero_(list(self.sums.values()))

    def unload(self, work: Work, *, keep_optimizer: bool) -> Work:
        """The client's work as it is now, in tensors of its own."""
        opt = tree.clone(self.work.opt) if keep_optimizer else {}
        return work._replace(model=tree.clone(self.work.model), opt=opt, aux=tree.clone(self.work.aux))

    def record(self, size: int, task: Task, fused: Task | None) -> str:
        """Record the step on batches of this size; what the tape held is lost. Says why it could not be fused."""
        places, began = torch.arange(size, device=self.feed.at.device), self.feed.at.clone()
        with seeds.scope(0), _kernels_tried(fused is not None):
            self._tried(task, places)  # libraries choose their kernels, and metrics become known
            with self.machine.watched():
                self._tried(task, places)
            why = self._not_fused(fused, places) if fused else ""
            chosen = task if fused is None or why else fused
            self.replays[size] = self.machine.record(lambda: self._once(chosen, places), self.dice)
        self.feed.at.copy_(began)
        return why

    def _not_fused(self, fused: Task, places: Tensor) -> str:
        """What the compiler says of a step that it cannot do; it is compiled at the first call."""
        try:
            for _ in range(2):
                self._tried(fused, places)
        except Exception as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            return " ".join(str(error).split())[:150] or type(error).__name__
        return ""

    def _tried(self, task: Task, places: Tensor) -> None:
        self.feed.at.zero_()
        self._once(task, places)

    def _once(self, task: Task, places: Tensor) -> None:
        """One step from the static tensors to themselves."""
        work, metrics = self.step(task, self.work, self.feed.batch(places))
        for part in Carried._fields:
            _write_back(getattr(self.work, part), getattr(work, part))
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self.sums[name].add_(value.detach())
        self.feed.at.add_(aligned(len(places)))


@contextmanager
def _kernels_tried(many: bool) -> Iterator[None]:
    """Kernels are chosen by trying them, if the run may, where many steps gain from it: for whole batches."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and many
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _room_for(t: Tensor, channels_last: bool) -> Tensor:
    if channels_last and t.dim() == 4:
        return torch.empty_like(t, memory_format=torch.channels_last)
    return torch.empty_like(t, memory_format=torch.contiguous_format)


def _write_back(old: Any, new: Any) -> None:
    pairs = zip(tree.leaves(old), tree.leaves(new), strict=True)
    moved = [(o, n) for (_, o), (_, n) in pairs if o.data_ptr() != n.data_ptr()]
    if moved:
        torch._foreach_copy_([o for o, _ in moved], [n.detach() for _, n in moved])


def aligned(size: int) -> int:
    """A batch's length in a feed."""
    return -(-size // ALIGN) * ALIGN


class Feeder:
    """Keeps a feed ahead of a client's steps: little at first, so that they begin soon, then as much as it holds."""

    def __init__(self, machine: Machine, feed: Feed, site: Site, visits: Visits) -> None:
        self._machine, self._feed, self._site, self._images = machine, feed, site, visits.images
        self._ready: Iterator[int] = iter(())
        self._chunks = _drawn_ahead(list(chunks(visits.sizes, len(feed.y))), visits.looks)

    def next(self) -> int:
        """The size of the next batch, which is in the feed where it goes on."""
        size = next(self._ready, 0)
        if not size:
            self._fill(*next(self._chunks))
            size = next(self._ready)
        return size

    def _fill(self, sizes: list[int], looks: Tensor | None) -> None:
        images, self._images = torch.split(self._images, [sum(sizes), len(self._images) - sum(sizes)])
        if self._feed.channels_last:
            places = padded(sizes)
            self._feed.fill(self._drawn(images[places], None if looks is None else looks[places]))
        else:  # batch by batch, as without a feed: how a GPU sums up a picture depends on how many there are
            parts, start = zip(torch.split(images, sizes), _split(looks, sizes), strict=True), 0
            for index, look in parts:
                self._feed.fill(self._drawn(index, look), start)
                start += aligned(len(index))
        self._ready = iter(sizes)

    def _drawn(self, index: Tensor, looks: Tensor | None) -> Batch:
        table = None if looks is None else self._machine.send(looks)
        return Batch(self._site.drawn(index, table), self._site.labels[self._machine.send(index)])


def _split(looks: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if looks is None else torch.split(looks, sizes)


def _drawn_ahead(
    parts: Sequence[list[int]], looks: Callable[[int], Tensor | None]
) -> Iterator[tuple[list[int], Tensor | None]]:
    """Each chunk and how its images are augmented, which another thread draws while the chunk before is trained on."""
    ahead = DRAWERS.submit(looks, sum(parts[0]))
    for part, after in pairwise([*parts, []]):
        table = ahead.result()
        if after:
            ahead = DRAWERS.submit(looks, sum(after))
        yield part, table


def chunks(sizes: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """The batches that are prepared at once."""
    part, used, limit = list[int](), 0, capacity // 8
    for size in sizes:
        if part and used + aligned(size) > limit:
            yield part
            part, used, limit = [], 0, capacity
        part.append(size)
        used += aligned(size)
    if part:
        yield part


def padded(sizes: Sequence[int]) -> Tensor:
    """Rows of batches one after the other, filled up to multiples of `ALIGN` by rows that no step reads."""
    times = torch.ones(sum(sizes), dtype=torch.int64)
    lengths = torch.tensor(sizes)
    times[lengths.cumsum(0) - 1] += -lengths % ALIGN
    return torch.arange(len(times)).repeat_interleave(times)
