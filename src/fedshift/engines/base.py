"""What an engine is: it trains the clients of a cohort, each by the one client loop, and owns how that is computed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from ..core import seeds, tree
from ..core.algorithm import Algorithm
from ..core.average import local_statistics
from ..core.local import autograd_gradient, descend, functional_gradient
from ..core.net import Net, Part, Variables, overlay, part
from ..core.optim import Optimizer, Rate, State
from ..core.scratch import Scratch
from ..core.task import Metrics, Phase, Round, Site, Step, Task, Work
from ..core.tree import Tensors

Method = Algorithm[Any, Any, Any, Any]
T = TypeVar("T")


class Memory(NamedTuple):
    """What stays at a client between rounds: the method's part, and what the protocol keeps there."""

    client: Any
    opt: dict[str, State]  # by phase, if optimisers are kept across rounds
    statistics: Part  # running statistics, if the rule for buffers is `local`


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    client: int
    down: Any
    memory: Memory | None
    before: Any
    round: Round
    site: Site
    seed: int  # of its batches
    scored: bool = False  # whether the trained model itself is looked at, before anything is averaged


class Result(NamedTuple):
    """What comes of it: `up` for the server, `memory` for the client, means of the metrics for the record."""

    client: int
    up: Any
    memory: Memory
    metrics: Mapping[str, Tensor]
    trained: Variables | None = None  # where the job is `scored`


class Engine(Protocol):
    """Trains cohorts. Results come one by one, in the order of the jobs, and no sooner than they are asked for."""

    name: ClassVar[str]
    channels_last: ClassVar[bool]  # whether pictures are wanted so

    def task(self, net: Net, optimizer: Optimizer, **rest: Any) -> Task:
        """The task, with this engine's way to take gradients and to write results."""
        ...

    def guard(self, method: Method, where: str) -> Method:
        """The method, as this engine wants its errors reported."""
        ...

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """Run each job; `keep` carries optimiser states over; `label` names method and stage in errors."""
        ...

    def spread(self, task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
        """The results of calls that do not know of each other, in their order."""
        ...

    def use(self, workers: int, threads: int = 0) -> None:
        """So many clients side by side, where the engine can; so many threads for a step, 0 for all."""
        ...


def in_turn(task: Task, calls: Iterable[Callable[[Task], T]], label: str) -> Iterator[T]:
    """One call after another, when its result is asked for."""
    return (call(task) for call in calls)


def make_task(net: Net, optimizer: Optimizer, *, in_place: bool, **rest: Any) -> Task:
    """A task that computes in place on tensors the engine owns, or purely."""
    net = Net(net.module, in_place=in_place, autocast=net.autocast)
    if in_place:
        return Task(net, optimizer, gradient=autograd_gradient, update=optimizer.update_, room=Scratch(), **rest)
    return Task(net, optimizer, gradient=functional_gradient, update=optimizer.update, **rest)


def rate_as_tensor(task: Task) -> Task:
    """Updates take the rate as a tensor: on a GPU, plain steps and recorded ones are then the same arithmetic."""

    def update(grads: Tensors, state: State, params: Tensors, lr: Rate) -> tuple[Tensors, State]:
        if not isinstance(lr, Tensor):
            first = next(iter(params.values()))
            lr = torch.full((), lr, dtype=first.dtype, device=first.device)
        return task.optimizer.update_(grads, state, params, lr)

    return replace(task, update=update)


def remember(method: Method, task: Task, down: Any, memory: Memory | None, before: Any) -> Memory:
    """A client's memory, made on its first contact."""
    if memory is not None:
        return memory
    return Memory(method.init_client(task, down, before), {}, Part({}, {}))


def site_model(method: Method, task: Task, down: Any, memory: Memory) -> Variables:
    """The model that answers at a participating site: the method's, with the statistics the protocol keeps there."""
    return overlay(method.model_for(task, down, memory.client), memory.statistics)


def client_round(method: Method, task: Task, job: Job, *, keep: bool) -> Result:
    """What one client does in one round: the only client loop."""
    memory = remember(method, task, job.down, job.memory, job.before)
    with seeds.scope(job.round.seed):
        work = opened(method, task, job, memory, own=task.net.in_place)
        opts = dict(memory.opt)
        work, log = walk(method, task, work, method.phases(task), job.seed, opts)
        return closed(method, task, job, work, opts if keep else {}, means(log))


class Adapts(Protocol):
    """How a model is adapted to a new site's images without labels: a method, or a rule that needs none."""

    def begin(self, task: Task, down: Any, client: None, round: Round, site: Site) -> Work:
        """What adaptation starts from."""
        ...

    def phases(self, task: Task, labelled: bool) -> Sequence[Phase]:
        """Its steps; a rule's phases bring theirs, a method's may be plain descent."""
        ...


def adapted(rule: Adapts, task: Task, down: Any, round: Round, site: Site, seed: int) -> Variables:
    """The model after a rule's label-free phases at a new site, by the steps of a client; nothing given is changed."""
    with seeds.scope(round.seed):
        work = rule.begin(task, down, None, round, site)
        model = tree.clone(work.model, task.room) if task.net.in_place else work.model
        work = _sized(work._replace(model=model, site=site), site)
        return walk(cast(Method, rule), task, work, rule.phases(task, labelled=False), seed, {})[0].model


def walk(
    method: Method, task: Task, work: Work, phases: Sequence[Phase], seed: int, opts: dict[str, State]
) -> tuple[Work, list[Metrics]]:
    """All steps on a site's batches, phase by phase; the phases' optimisers are taken from `opts` and left there."""
    assert work.site is not None
    log = list[Metrics]()
    batches = iter(work.site.batches(seed, work.rows))
    for phase, steps in divided(phases, work.round.steps):
        work = work._replace(opt=optimizer_state(task, work, phase, opts.get(phase.name)))
        step = step_of(method, phase)
        for _ in range(steps):
            work, metrics = step(task, work, next(batches))
            log.append(metrics)
        opts[phase.name] = work.opt
    return work, log


def opened(method: Method, task: Task, job: Job, memory: Memory, *, own: bool) -> Work:
    """What a client's steps start from, with the statistics that the protocol keeps there and the round's true size.

    With `own` the model and the memory become this round's own copies, where training writes in place.
    """
    work = method.begin(task, job.down, memory.client, job.round, job.site)
    model = overlay(work.model, memory.statistics)
    return _sized(work._replace(model=tree.clone(model, task.room) if own else model, site=job.site), job.site)


def _sized(work: Work, site: Site) -> Work:
    """With the steps and images of the rows that the method chose, if it chose any."""
    if work.rows is None:
        return work
    return work._replace(round=work.round._replace(steps=site.steps(work.rows), examples=len(work.rows)))


def closed(
    method: Method, task: Task, job: Job, work: Work, opts: dict[str, State], metrics: Mapping[str, Tensor]
) -> Result:
    """What is left when a client's steps are done."""
    up, client = method.finish(task, work)
    memory = Memory(client, opts, _statistics(task, work.model))
    return Result(job.client, up, memory, metrics, work.model if job.scored else None)


def divided(phases: Iterable[Phase], steps: int) -> list[tuple[Phase, int]]:
    """The protocol's steps shared out over the phases; rounding never adds or loses one."""
    chosen = list(phases)
    whole = sum(p.share for p in chosen)
    ends, done = [0], 0.0
    for p in chosen:
        done += p.share
        ends.append(round(steps * done / whole))
    return [(p, b - a) for p, a, b in zip(chosen, ends, ends[1:], strict=False)]


def optimizer_state(task: Task, work: Work, phase: Phase, kept: State | None) -> State:
    """A phase's optimiser at its start: as it was kept, or new."""
    if kept is not None:
        return tree.clone(kept, task.room) if task.net.in_place else kept
    params = work.model.params
    free = params if phase.trains is None else {k: p for k, p in params.items() if k in phase.trains}
    return task.optimizer.init(free)


def step_of(method: Method, phase: Phase) -> Step:
    """The phase's own step, or plain descent."""
    return phase.step or (lambda task, work, batch: descend(method, task, work, batch, phase.trains))


def _statistics(task: Task, model: Variables) -> Part:
    if task.rules.buffers != "local":
        return Part({}, {})
    return part(model, local_statistics(task.net))


def means(log: list[Metrics]) -> dict[str, Tensor]:
    """The mean of each metric over a client's steps; on a GPU the host does not wait for it."""
    totals: dict[str, list[Tensor]] = {}
    for metrics in log:
        for name, value in metrics.items():
            totals.setdefault(name, []).append(value.double())
    return {name: torch.stack(values).sum() / len(values) for name, values in totals.items()}
