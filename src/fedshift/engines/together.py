"""Many tiny networks trained at once: the clients' tensors stacked, and the method's own step mapped over the stack.

Clients of unlike sizes stay exact: at each step, those whose batches have the same size take it together.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ..core import seeds, tree
from ..core.task import Batch, Site, Task, Visits, Work
from . import mapped
from .base import Job, Method, Result, closed, divided, opened, optimizer_state, remember
from .feed import chunks
from .mapped import CHANGED, NotTogether
from .tape import Carried

MOST = 20_000  # parameters: above, a step's arithmetic outweighs what it costs to call it
AHEAD = 256  # pictures of each client


def tiny(task: Task, most: int) -> bool:
    """Whether the network is all matrix products, so few that calling them takes longer than computing them."""
    params = list(task.net.module.parameters())
    return sum(p.numel() for p in params) <= most and all(p.dim() <= 2 for p in params)


@dataclass
class Trainee:
    """A client, its random numbers, and what it carries."""

    job: Job
    scope: seeds.Scope
    work: Work
    opts: dict[str, Any]
    sizes: list[int]  # of the batches to come
    batches: Iterator[Batch]


@dataclass
class Sums:
    """Of a metric: for each client, the sum over its steps and their number."""

    total: Tensor
    steps: list[int]

    def add(self, who: Sequence[int], values: Tensor) -> None:
        """A step of some clients."""
        self.total.index_add_(0, torch.tensor(who), values.double())
        for i in who:
            self.steps[i] += 1


@dataclass
class Stack:
    """The works of some clients as one: each tensor with an axis of clients in front, or as all share it."""

    trees: Carried
    dims: Carried  # 0 or None for each tensor

    @classmethod
    def of(cls, works: Sequence[Work]) -> "Stack":
        """Copies of what differs; model and optimiser always."""
        parts = []
        for name in Carried._fields:
            parts.append(_stacked([getattr(work, name) for work in works], apart=name in CHANGED))
        return cls(Carried(*(values for values, _ in parts)), Carried(*(dims for _, dims in parts)))

    def take(self, rows: Tensor | None) -> Carried:
        """Those clients', as copies; None: all, as they are."""
        if rows is None:
            return self.trees
        return tree.map(lambda t, d: t if d is None else t.index_select(0, rows), self.trees, self.dims)

    def put(self, rows: Tensor | None, new: Sequence[Any]) -> None:
        """What a step has changed."""
        for name, after in zip(CHANGED, new, strict=True):
            old = getattr(self.trees, name)
            if rows is None:
                self.trees = self.trees._replace(**{name: after})
            else:
                tree.map(lambda t, n: t.index_copy_(0, rows, n), old, after)

    def apart(self, works: Sequence[Work]) -> Iterator[Work]:
        """Each client's own again."""
        split = {name: _apart(getattr(self.trees, name), len(works)) for name in CHANGED}
        for i, work in enumerate(works):
            yield work._replace(**{name: each[i] for name, each in split.items()})


def train_together(method: Method, task: Task, jobs: Sequence[Job], keep: bool) -> Iterator[Result]:
    """What each client does in a round; nothing is handed over before all are done."""
    pure = mapped.pure(task)
    crowd = [_trainee(method, task, job) for job in jobs]
    sums: dict[str, Sums] = {}
    counts = [divided(method.phases(task), who.work.round.steps) for who in crowd]
    for k, (phase, _) in enumerate(counts[0]):
        for who in crowd:
            who.work = who.work._replace(opt=optimizer_state(pure, who.work, phase, who.opts.get(phase.name)))
        _walk(mapped.step(method, pure, phase), crowd, [parts[k][1] for parts in counts], sums)
        for who in crowd:
            who.opts[phase.name] = who.work.opt
    means = _means(sums, len(crowd))
    for who, metrics in zip(crowd, means, strict=True):
        with who.scope:
            result = closed(method, task, who.job, who.work, who.opts if keep else {}, metrics)
        yield result  # out of the client's random numbers: the server works until it asks for the next


def _trainee(method: Method, task: Task, job: Job) -> Trainee:
    memory, scope = remember(method, task, job.down, job.memory, job.before), seeds.scope(job.round.seed)
    with scope:
        work = opened(method, task, job, memory, own=False)
    visits = job.site.visits(job.seed, work.rows)
    return Trainee(job, scope, work, dict(memory.opt), list(visits.sizes), _batches(job.site, visits))


def _batches(site: Site, visits: Visits) -> Iterator[Batch]:
    """The round's batches; where nothing is augmented, those of up to `AHEAD` pictures are taken at once."""
    images = visits.images
    for sizes in chunks(visits.sizes, AHEAD // 8, AHEAD):
        index, images = torch.split(images, [sum(sizes), len(images) - sum(sizes)])
        table, labels = visits.looks(len(index)), torch.split(site.labels[index], sizes)
        if table is None:
            yield from map(Batch, torch.split(site.drawn(index, None), sizes), labels)
        else:
            parts = zip(torch.split(index, sizes), torch.split(table, sizes), strict=True)
            yield from map(Batch, (site.drawn(some, look) for some, look in parts), labels)


def _walk(step: mapped.Step, crowd: list[Trainee], steps: list[int], sums: dict[str, Sums]) -> None:
    """All steps of a phase; each time, the clients whose next batches have one size go together."""
    stack = Stack.of([who.work for who in crowd])
    lr = crowd[0].work.round.lr
    for at in range(max(steps)):
        groups = defaultdict[int, list[int]](list)
        for i, who in enumerate(crowd):
            if at < steps[i]:
                groups[who.sizes.pop(0)].append(i)
        for group in groups.values():
            batches = [next(crowd[i].batches) for i in group]
            rows = None if len(group) == len(crowd) else torch.tensor(group)
            batch = Batch(*map(torch.stack, zip(*batches, strict=True)))
            new, metrics = step(stack.take(rows), stack.dims, lr, batch)
            stack.put(rows, new)
            for name, values in metrics.items():
                known = sums.setdefault(name, Sums(torch.zeros(len(crowd), dtype=torch.float64), [0] * len(crowd)))
                known.add(group, values)
    for who, work in zip(crowd, stack.apart([who.work for who in crowd]), strict=True):
        who.work = work


def _stacked(trees: Sequence[Any], *, apart: bool) -> tuple[Any, Any]:
    """One tree, and where each of its tensors has the axis of clients."""
    first, count = trees[0], len(trees)
    if all(each is first for each in trees):
        return (
            (tree.map(lambda t: torch.stack([t] * count), first), _dims(first, 0)) if apart else (first, _dims(first))
        )
    rows = [[t for _, t in tree.leaves(each)] for each in trees]
    if any(len(row) != len(rows[0]) for row in rows):
        raise NotTogether("its clients carry unlike states")
    columns = list(zip(*rows, strict=True))
    shared = [not apart and all(t is column[0] for t in column) for column in columns]
    values = [c[0] if s else torch.stack(c) for s, c in zip(shared, columns, strict=True)]
    return _rebuilt(first, values), _rebuilt(first, [None if s else 0 for s in shared])


def _dims(like: Any, dim: int | None = None) -> Any:
    return tree.map(lambda _: dim, like)  # type: ignore[arg-type, return-value]


def _apart(stacked: Any, count: int) -> list[Any]:
    columns = [t.unbind(0) for _, t in tree.leaves(stacked)]
    rows = zip(*columns, strict=True) if columns else repeat((), count)
    return [_rebuilt(stacked, row) for row in rows]


def _rebuilt(like: Any, leaves: Sequence[Any]) -> Any:
    values = iter(leaves)
    return tree.map(lambda _: next(values), like)


def _means(sums: dict[str, Sums], count: int) -> list[dict[str, Tensor]]:
    found: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, each in sums.items():
        means = each.total / torch.tensor(each.steps).clamp(min=1)
        for i, mean in enumerate(means.unbind(0)):
            if each.steps[i]:
                found[i][name] = mean
    return found
