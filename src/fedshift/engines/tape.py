"""A client's step over tensors that stay where they are, recorded once for each size of batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import seeds, tree
from ..core.net import Variables
from ..core.task import Round, Step, Task, Work
from .feed import Feed, aligned, next_batch
from .fusing import refusal
from .machine import Body, Machine, NotCapturable


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
class Tape:
    """The step of one phase: static tensors, their recordings by batch size, and sums of the metrics."""

    machine: Machine
    dice: Any
    step: Step
    feed: Feed
    work: Work
    carried: dict[str, Tensor]  # by their paths: what a checkpoint gave back may name them in another order
    sums: dict[str, Tensor] = field(default_factory=dict)
    replays: dict[int, Body] = field(default_factory=dict)

    @classmethod
    def of(cls, machine: Machine, dice: Any, step: Step, feed: Feed, work: Work, *, channels_last: bool) -> "Tape":
        """Room for work like this."""
        kept = tree.map(lambda t: room_for(t, channels_last), Carried(*(getattr(work, k) for k in Carried._fields)))
        first = next(iter(work.model.params.values()))
        lr = torch.zeros((), dtype=first.dtype, device=first.device)
        static = Work(kept.model, kept.down, kept.client, StepRound(lr), kept.opt, kept.aux)  # type: ignore[arg-type]
        return cls(machine, dice, step, feed, static, dict(tree.leaves(kept)))

    def load(self, work: Work) -> None:
        """Put a client's work in."""
        new = dict(tree.leaves(Carried(*(getattr(work, part) for part in Carried._fields))))
        if odd := sorted(new.keys() ^ self.carried.keys()):
            raise NotCapturable(f"its work has other tensors than before: {', '.join(odd[:3])}")
        if new:
            torch._foreach_copy_(list(self.carried.values()), [new[path] for path in self.carried])
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
            why = refusal(lambda: self._tried(fused, places)) if fused else ""
            chosen = task if fused is None or why else fused
            self.replays[size] = self.machine.record(lambda: self._once(chosen, places), self.dice)
        self.feed.at.copy_(began)
        return why

    def _tried(self, task: Task, places: Tensor) -> None:
        self.feed.at.zero_()
        self._once(task, places)

    def _once(self, task: Task, places: Tensor) -> None:
        """One step from the static tensors to themselves."""
        work, metrics = self.step(task, self.work, task.fuse(next_batch)(self.feed, places))
        for part in Carried._fields:
            _write_back(getattr(self.work, part), getattr(work, part))
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
        task.fuse(_count)([self.sums[name] for name in metrics], list(metrics.values()), self.feed.at, len(places))


def _count(sums: list[Tensor], values: list[Tensor], at: Tensor, size: int) -> None:
    """Add up what a step says, and go on to the next batch."""
    for total, value in zip(sums, values, strict=True):
        total.add_(value.detach())
    at.add_(aligned(size))


@contextmanager
def _kernels_tried(many: bool) -> Iterator[None]:
    """Kernels are chosen by trying them where many steps gain from it: for whole batches."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = many
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def room_for(t: Tensor, channels_last: bool) -> Tensor:
    """Memory for a tensor like this, kernels and pictures with their channels last if asked."""
    if channels_last and t.dim() == 4:
        return torch.empty_like(t, memory_format=torch.channels_last)
    return torch.empty_like(t, memory_format=torch.contiguous_format)


def _write_back(old: Any, new: Any) -> None:
    kept, found = dict(tree.leaves(old)), dict(tree.leaves(new))
    if odd := sorted(kept.keys() ^ found.keys()):
        raise NotCapturable(f"its step gives back other tensors than it was given: {', '.join(odd[:3])}")
    moved = [(o, found[path]) for path, o in kept.items() if o.data_ptr() != found[path].data_ptr()]
    if moved:
        torch._foreach_copy_([o for o, _ in moved], [n.detach() for _, n in moved])
