"""Each client's ordinary step, recorded once and replayed; the clients of a cohort side by side on the device."""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core import seeds
from ..core.net import Net
from ..core.optim import Optimizer
from ..core.task import Fuse, Phase, Site, Task, Visits, Work
from .answering import READERS, Answering, built_as
from .base import (
    Job,
    Method,
    Result,
    closed,
    divided,
    in_turn,
    opened,
    optimizer_state,
    rate_as_tensor,
    remember,
    step_of,
)
from .feed import Feed, Feeder, aligned
from .fusing import fuser
from .machine import Cuda, Host, Machine, Mark, NotCapturable
from .sequential import Sequential
from .tape import Tape
from .turn import TURN
from .wide import widen

LANES = 36  # clients in flight, if memory allows: more do not make an H200 faster
STRIDE = 4  # steps that a lane queues before the next lane's turn

T = TypeVar("T")

log = logging.getLogger("fedshift")


class Captured(Sequential):
    """CUDA graphs, one per client in flight, phase and size of batch, on parallel streams.

    In exact precisions (float32) a replayed step computes what `sequential` computes on the same GPU. In tf32 and bf16
    whole batches are also compiled, and pictures and kernels keep their channels last.
    """

    name: ClassVar[str] = "captured"

    def __init__(self) -> None:
        self.lanes = LANES
        self.plain: set[str] = set()  # names of stages that cannot be recorded
        self._plain: set[str] = set()  # labels of stages whose clients run one after another, whatever the reason
        self._signs: dict[str, str] = {}

    def machine(self, task: Task) -> Machine:
        """The device that records."""
        return Cuda(next(task.net.module.parameters()).device)

    def task(self, net: Net, optimizer: Optimizer, **rest: Any) -> Task:
        """As sequential's, with the rate as a tensor everywhere: replayed and plain steps are one arithmetic."""
        task = rate_as_tensor(super().task(net, optimizer, **rest))
        if not task.exact:
            widen(task.net.module, 8 if net.autocast else 4)  # 16 bytes
        return task

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """As many clients at once as there is room for; the next ones start before the first ones are handed over."""
        machine, before, queue = self.machine(task), list[Trained](), iter(jobs)
        if label not in self._signs and (first := next(queue, None)) is not None:
            self._signs[label] = signature(method, task, first.site, keep)
            queue = chain([first], queue)
        sign = self._signs.get(label, "")
        while wave := list(islice(queue, 0 if label in self._plain else POOL.room(sign, machine, self.lanes))):
            trouble = None
            try:
                started = _start(method, task, wave, [POOL.take(sign, machine) for _ in wave], keep)
            except (NotCapturable, torch.OutOfMemoryError) as error:
                trouble = error.with_traceback(None)  # whose frames hold what is to be given back
            if trouble is not None:
                self._retreat(trouble, method, label)
                queue = iter([*wave, *queue])
                continue
            yield from _handed_over(before)
            before = started
        yield from _handed_over(before)
        yield from super().train(method, task, queue, keep=keep, label=label)

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
        """One after another, by recorded passes."""
        net = Answering(task.net, self.machine(task), exact=task.exact)
        return in_turn(replace(task, net=net), calls, label)

    def _retreat(self, why: Exception, method: Method, label: str) -> None:
        """To fewer clients at once, then to one after another."""
        POOL.clear()
        if isinstance(why, NotCapturable) or self.lanes == 1:
            self._plain.add(label)
            self.plain |= {method.name} if isinstance(why, NotCapturable) else set()
            log.warning("%s: %s; its clients run one after another.", label, why)
        else:
            self.lanes = max(1, self.lanes // 2)
            log.warning("%s: the device is out of memory; %d clients at once from here on.", label, self.lanes)


class Rehearsed(Captured):
    """The captured engine without a GPU: recordings are called again. Slower than sequential; for tests."""

    name: ClassVar[str] = "rehearsed"

    def machine(self, task: Task) -> Machine:
        """This one."""
        return Host()


class Lane:
    """A place where one client after another trains: a stream, random numbers, and tapes by phase."""

    def __init__(self, sign: str, machine: Machine) -> None:
        self.sign, self.machine = sign, machine
        self.stream, self.dice = machine.stream(), machine.dice()
        self.feed: Feed | None = None
        self.tapes: dict[str, Tape] = {}
        self.left: Mark | None = None  # the last client's tensors are read until here
        self.size = 0  # bytes of the device


class Pool:
    """Lanes that wait for a client; runs that differ in data and seed alone share them, and their recordings."""

    def __init__(self) -> None:
        self._free: dict[str, list[Lane]] = {}
        self._bytes: dict[str, int] = {}  # of one lane

    def take(self, sign: str, machine: Machine) -> Lane:
        """One that waits, or a new one."""
        free = self._free.get(sign)
        return free.pop() if free else Lane(sign, machine)

    def give(self, lane: Lane) -> None:
        """It waits for the next client."""
        self.measured(lane, 0)
        self._free.setdefault(lane.sign, []).append(lane)

    def measured(self, lane: Lane, size: int) -> None:
        """What a lane took for something new."""
        lane.size += size
        plates = 0 if lane.feed is None else lane.feed.taken
        self._bytes[lane.sign] = max(lane.size + plates, self._bytes.get(lane.sign, 0))

    def room(self, sign: str, machine: Machine, most: int) -> int:
        """How many clients may start: one where nothing is known yet, else as many as memory allows."""
        if sign not in self._bytes:
            return 1
        free = len(self._free.get(sign, ()))
        if free >= most:
            return most
        new = int(0.8 * machine.room()) // max(1, self._bytes[sign])  # which takes the driver a while to say
        return max(1, min(most, free + new))

    def clear(self) -> None:
        """Forget the lanes that wait, and the passes of evaluations; give their memory back."""
        self._free.clear()
        READERS.clear()
        gc.collect()  # recordings and what they were made of refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


POOL = Pool()


Sums = tuple[dict[str, Tensor], int]  # of a phase's metrics, over so many steps


class Trained(NamedTuple):
    """A client whose steps are queued."""

    lane: Lane
    ready: Mark
    finish: Callable[[], Result]


def signature(method: Method, task: Task, site: Site, keep: bool) -> str:
    """What a recording depends on; data, seeds and learning rates are not in it."""
    net, first = task.net, next(task.net.module.parameters())
    x, _ = next(iter(site.look(torch.zeros(1, dtype=torch.int64))))
    kinds = [first.device, net.autocast, task.exact, x.dtype, x.shape]
    parts = [type(method), method, built_as(net.module), replace(task.optimizer, lr=1.0), task.rules, *kinds]
    return "|".join(map(repr, [*parts, task.clients, task.classes, keep]))


def _start(method: Method, task: Task, wave: list[Job], lanes: list[Lane], keep: bool) -> list[Trained]:
    """Queue the steps of these clients, some of each in turn."""
    machine = lanes[0].machine
    programs = {
        i: _program(method, task, job, lane, keep) for i, (job, lane) in enumerate(zip(wave, lanes, strict=True))
    }
    for program in programs.values():
        next(program)  # the method's `begin`, on the run's own stream
    begun, done = machine.mark(), dict[int, Trained]()
    for lane in lanes:
        with machine.on(lane.stream):
            machine.after(begun)
            if lane.left is not None:
                machine.after(lane.left)
    while programs:
        for i in list(programs):
            with machine.on(lanes[i].stream):
                trained = next(programs[i])
            if trained is not None:
                done[i] = trained
                del programs[i]
    return [done[i] for i in range(len(wave))]


def _program(method: Method, task: Task, job: Job, lane: Lane, keep: bool) -> Iterator[Trained | None]:
    """What one client does in one round: the client loop, with replays for steps."""
    memory = remember(method, task, job.down, job.memory, job.before)
    scope = seeds.scope(job.round.seed)
    with scope:
        work = opened(method, task, job, memory, own=False)
        lane.dice.start()
    yield None
    visits = job.site.visits(job.seed, work.rows)
    feeder = _feeder(lane, job.site, visits, fuser(task))
    opts, held, sums = dict(memory.opt), [work], list[Sums]()
    tape, sizes = None, iter(visits.sizes)
    for phase, steps in divided(method.phases(task), work.round.steps):
        if tape is not None:
            work = tape.unload(work, keep_optimizer=False)
        work = work._replace(opt=optimizer_state(task, work, phase, opts.get(phase.name)))
        held.append(work)  # its tensors are read later than this function goes on
        tape = _tape(method, task, phase, lane, work, list(islice(sizes, steps)))
        tape.load(work)
        for step in range(steps):
            tape.replays[feeder.next()]()
            if step % STRIDE == 0:
                yield None
        if steps:
            sums.append(({name: value.clone() for name, value in tape.sums.items()}, steps))
        if keep:
            opts[phase.name] = tape.unload(work, keep_optimizer=True).opt
    ready = lane.machine.mark()

    def finish() -> Result:
        lane.machine.after(ready)
        trained = work if tape is None else tape.unload(work, keep_optimizer=False)
        with scope:
            lane.dice.stop()
            result = closed(method, task, job, trained, opts if keep else {}, _means(sums))
        lane.left = lane.machine.mark()
        held.clear()
        return result

    yield Trained(lane, ready, finish)


def _handed_over(trained: list[Trained]) -> Iterator[Result]:
    for client in trained:
        TURN.wait(client.ready.synchronize)
        result = client.finish()
        POOL.give(client.lane)
        yield result


def _feeder(lane: Lane, site: Site, visits: Visits, fuse: Fuse | None) -> Feeder:
    """The lane's feed, made on first use and made anew where batches are larger than it expected."""
    largest = max(visits.sizes)
    if lane.feed is None or len(lane.feed.y) < aligned(largest):
        lane.feed, lane.tapes, lane.size = None, {}, 0
        before = lane.machine.taken()
        lane.feed = Feed.of(site, largest, fuse)
        POOL.measured(lane, lane.machine.taken() - before)
    return Feeder(lane.machine, lane.dice, lane.feed, site, visits)


def _tape(method: Method, task: Task, phase: Phase, lane: Lane, work: Work, sizes: Sequence[int]) -> Tape:
    """The lane's tape for a phase, with a recording for each size of batch."""
    machine, last = lane.machine, not task.exact
    assert lane.feed is not None
    if phase.name not in lane.tapes:
        lane.tapes[phase.name] = Tape.of(
            machine, lane.dice, step_of(method, phase), lane.feed, work, channels_last=last
        )
    tape = lane.tapes[phase.name]
    step = f"{lane.sign}|{phase.name}"
    for size in sorted(set(sizes) - tape.replays.keys(), reverse=True):
        before = machine.taken()
        tape.load(work)
        # Other sizes are too rare to be worth the time to compile: the end of an epoch, which may be one image larger.
        fuse = fuser(task) if size == max(sizes, key=sizes.count) and step not in UNFUSED else None
        fused = None if fuse is None else replace(task, fuse=fuse)
        if why := machine.apart(partial(tape.record, size, task, fused)):
            UNFUSED.add(step)
            log.warning("method %s: its step is recorded as it is, since it cannot be compiled: %s", method.name, why)
        POOL.measured(lane, machine.taken() - before)
    return tape


UNFUSED: set[str] = set()  # steps on which torch's compiler fails, which some of its versions do


def _means(sums: list[Sums]) -> dict[str, Tensor]:
    """The mean of each metric over a client's steps."""
    totals: dict[str, tuple[Tensor, int]] = {}
    for phase, steps in sums:
        for name, value in phase.items():
            before, count = totals.get(name, (torch.zeros_like(value), 0))
            totals[name] = before + value, count + steps
    return {name: total / count for name, (total, count) in totals.items()}
