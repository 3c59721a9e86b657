"""Forward passes of an evaluation, recorded once for each size of batch and replayed with any model."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core import tree
from ..core.net import BATCH_NORM, Net, Output, Variables
from .machine import Body, Machine, Mark, NotCapturable
from .tape import room_for

LEAST = 64  # images of the smallest recording, where a batch may be filled up
MOST = 32  # recordings that are kept: each holds a model and a batch

log = logging.getLogger("fedshift")


class Answering(Net):
    """A network whose passes without gradients are replayed, batch by batch; others go through it as it is."""

    def __init__(self, net: Net, machine: Machine, *, exact: bool) -> None:
        super().__init__(net.module, in_place=net.in_place, autocast=net.autocast)
        self._machine, self._exact = machine, exact
        self._sign = f"{built_as(net.module)}|{net.autocast}|{exact}"
        self._apart = not exact and not any(_by_batch(m) for m in net.module.modules())

    def __call__(self, v: Variables, x: Tensor, *, train: bool, taps: Sequence[str] = ()) -> Output:
        """As the network's, to the bit where results are exact."""
        if train or torch.is_grad_enabled():
            return super().__call__(v, x, train=train, taps=taps)
        # Filled up where no answer depends on the others of its batch; but some kernels' last digits do.
        size = max(LEAST, 1 << (len(x) - 1).bit_length()) if self._apart else len(x)
        key = f"{self._sign}|{size}|{tuple(x.shape[1:])}|{x.dtype}|{x.device}|{','.join(taps)}"
        if key in READERS:
            reader = READERS.pop(key)
        else:
            _forget()
            reader = self._reader(v, x, size, taps)
        READERS[key] = reader  # the last used comes last
        if reader is None:
            return super().__call__(v, x, train=False, taps=taps)
        return reader.answer(v, x)

    def _reader(self, v: Variables, x: Tensor, size: int, taps: Sequence[str]) -> "Reader | None":
        """A recording, or none where there can be none."""
        like = x.new_zeros((size, *x.shape[1:]))
        static = tree.map(lambda t: room_for(t, not self._exact).copy_(t), v)
        reader = Reader(self._machine, static, room_for(like, not self._exact).zero_())

        def body() -> None:
            with torch.no_grad():
                reader.out = super(Answering, self).__call__(static, reader.x, train=False, taps=taps)

        try:
            reader.record(body)
        except (NotCapturable, torch.OutOfMemoryError) as why:
            log.warning("evaluation is not recorded: %s", why)
            return None
        return reader


@dataclass
class Reader:
    """Static variables and images, and the recording that turns them into an output."""

    machine: Machine
    v: Variables
    x: Tensor
    out: Output | None = None
    replay: Body = field(init=False)
    stream: Any = field(init=False)
    left: Mark | None = None  # the last output is read until here
    last: Variables | None = None  # whose values are loaded; models of an evaluation do not change

    def record(self, body: Body) -> None:
        """Once as it is, so that libraries choose their kernels; then for good."""
        begun, self.stream = self.machine.mark(), self.machine.stream()
        with self.machine.on(self.stream):
            self.machine.after(begun)
            self.machine.apart(body)
            with self.machine.watched():
                self.machine.apart(body)
            self.replay = self.machine.apart(lambda: self.machine.record(body, self.machine.dice()))

    def answer(self, v: Variables, x: Tensor) -> Output:
        """The output for these variables and images; it is the caller's own."""
        machine, begun = self.machine, self.machine.mark()
        with machine.on(self.stream):
            machine.after(begun)
            if self.left is not None:
                machine.after(self.left)
            self._load(v, x)
            self.replay()
            done = machine.mark()
        machine.after(done)
        assert self.out is not None
        logits, features, _, taps = self.out
        n = len(x)
        out = Output(logits[:n].clone(), features[:n].clone(), v.buffers, {k: t[:n].clone() for k, t in taps.items()})
        self.left = machine.mark()
        return out

    def _load(self, v: Variables, x: Tensor) -> None:
        self.x[: len(x)].copy_(x)
        if self.last is not v:
            new, self.last = dict(tree.leaves(v)), v
            kept = dict(tree.leaves(self.v))
            torch._foreach_copy_(list(kept.values()), [new[path] for path in kept])


READERS: dict[str, Reader | None] = {}  # for all runs: each waits for the one before


def _forget() -> None:
    """The one that was not used for longest, if there are many."""
    if len(READERS) >= MOST:
        reader = READERS.pop(next(iter(READERS)))
        if reader is not None and reader.left is not None:
            reader.left.synchronize()


def built_as(module: nn.Module) -> str:
    """What tells a network from others: how it was built, or else the network itself."""
    return str(getattr(module, "built_as", f"{module!r} at {id(module)}"))


def _by_batch(module: nn.Module) -> bool:
    """Whether it normalises by the batch even in an evaluation."""
    return isinstance(module, BATCH_NORM) and getattr(module, "running_mean", None) is None
