"""The round loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core import seeds, tree
from ..core.average import weigh
from ..core.errors import MessageError
from ..core.net import Net, Variables
from ..core.optim import Schedule
from ..core.task import Cohort, Round, Site, Task
from .base import Engine, Job, Memory, Method, Result, remember
from .turn import TURN, device_done


@dataclass(frozen=True)
class Plan:
    """What the protocol fixes about rounds; no method can change it."""

    seed: int
    rounds: int
    participation: float = 1.0
    schedule: Schedule = field(default_factory=Schedule)
    keep: bool = False
    initial: Callable[[str], nn.Module] | None = None  # a site's own initial network, where not all start alike
    after_local: bool = False  # keep each site's model as it is right after local training, to be scored

    def cohort(self, stage: str, number: int, clients: int) -> list[int]:
        """Who takes part in a round, drawn by the run's seed, the same for every method."""
        size = max(1, ceil(self.participation * clients - 1e-9))
        if size == clients:
            return list(range(clients))
        order = torch.randperm(clients, generator=seeds.generator(self.seed, "cohort", stage, number))
        return sorted(order[:size].tolist())


@dataclass
class State:
    """Everything that a run carries from round to round; a checkpoint holds this and nothing else, but `trained`."""

    server: Any
    stage: int = 0
    done: int = 0  # rounds of this stage
    total: int = 0  # rounds of all stages
    memory: dict[int, Memory] = field(default_factory=dict)
    before: dict[int, Memory] = field(default_factory=dict)  # as the stage before left it
    bytes_up: int = 0
    bytes_down: int = 0
    metrics: dict[str, float] = field(default_factory=dict)  # of the last round, mean over the cohort
    trained: dict[int, Variables] = field(default_factory=dict)  # in the last round, if the plan keeps it


def run(method: Method, task: Task, engine: Engine, sites: Sequence[Site], plan: Plan, state: State) -> Iterator[State]:
    """The only round loop: yields the state after each round, ready to be evaluated or saved.

    The next round begins when the caller asks for it; each round makes a new state and leaves the old one whole.
    """
    stages = method.stages()
    for index, stage in enumerate(stages):
        rounds = plan.rounds if stage.rounds is None else stage.rounds
        last = index + 1 == len(stages)
        label = f"method {method.name}, stage {stage.name}"
        here = Here(stage, "main" if last else stage.name, rounds, label, plan.after_local and last)
        while state.stage == index and state.done < rounds:
            state = _round(here, task, engine, sites, plan, state)
            if state.done == rounds and not last:
                state = _next_stage(state)
            yield state


class Here(NamedTuple):
    """Where the loop is; `stream` names the random streams, so that every method's main stage draws the same."""

    stage: Method
    stream: str
    rounds: int
    label: str
    scored: bool


def _next_stage(state: State) -> State:
    return replace(state, stage=state.stage + 1, done=0, memory={}, before=state.memory)


def _round(here: Here, task: Task, engine: Engine, sites: Sequence[Site], plan: Plan, old: State) -> State:
    """One round: send, train, aggregate."""
    stage, number = here.stage, old.done
    lr = task.optimizer.lr * plan.schedule.factor(number, here.rounds)
    new = replace(old, done=number + 1, total=old.total + 1, memory=dict(old.memory), metrics={}, trained={})
    server_side = engine.guard(stage, f"{here.label}, round {number}, server")
    ids = plan.cohort(here.stream, number, task.clients) if stage.needs_clients else []
    weights, share = weigh(task.rules, ids, task.examples) if ids else ((), 0.0)
    cohort = Cohort(tuple(ids), tuple(task.examples[i] for i in ids), weights, share, number, lr)

    def jobs() -> Iterator[Job]:
        for i in ids:
            site = sites[i]
            seed = seeds.derive(plan.seed, "round", here.stream, number, site.name)
            info = Round(number, here.rounds, lr, site.steps(), len(site.labels), seeds.derive(seed, "train"))
            before = old.before[i].client if i in old.before else None
            memory = old.memory.get(i)
            if plan.initial is not None and old.total == 0:
                down, memory = first_contact(server_side, task, plan.initial(site.name), i)
            else:
                down = server_side.send(task, old.server, i)
                new.bytes_down += 0 if stage.pools else tree.nbytes(down)
            yield Job(i, down, memory, before, info, site, seed, here.scored)

    arrived = Arrivals(task, cohort)
    # Sites' own networks are built while nobody trains: that seeds torch's global generator, and may trace modules.
    queue = jobs() if plan.initial is None or old.total else iter(list(jobs()))
    results = engine.train(stage, task, queue, keep=plan.keep, label=here.label)
    ups = _uploads(results, stage, new, arrived)
    try:
        new.server = server_side.aggregate(task, old.server, ups, cohort)
        for _ in ups:  # a method that ignores uploads still lets every client train
            pass
        arrived.end_with(new.server, old.server if old.total else None)
    finally:
        TURN.wait(device_done([*arrived.largest, arrived.server[1]]))
        arrived.refuse_bad(stage)  # also where a method stumbled over what is refused here
    new.metrics = arrived.metrics()
    return new


def first_contact(method: Method, task: Task, own: nn.Module, client: int) -> tuple[Any, Memory]:
    """A client that starts from a network of its own: what a server that had begun with it would send, and its memory.

    Nothing of this travels.
    """
    mine = replace(task, net=Net(own, in_place=task.net.in_place, autocast=task.net.autocast))
    down = method.send(mine, method.init_server(mine), client)
    return down, remember(method, mine, down, None, None)


@dataclass
class Arrivals:
    """What is looked at when the server is done: on a GPU the host then waits once, not once for each upload."""

    task: Task
    cohort: Cohort
    ids: list[int] = field(default_factory=list)
    paths: list[list[str]] = field(default_factory=list)
    largest: list[Tensor] = field(default_factory=list)
    logs: list[Mapping[str, Tensor]] = field(default_factory=list)
    server: tuple[list[str], Tensor] = field(default_factory=lambda: ([], torch.zeros(0)))

    def add(self, result: Result) -> None:
        """One client's."""
        paths, largest = tree.extremes(result.up)
        self.ids.append(result.client)
        self.paths.append(paths)
        self.largest.append(largest)
        self.logs.append(result.metrics)

    def end_with(self, server: Any, known: Any) -> None:
        """The server's next state; tensors that it has from a state that was looked at need no other look."""
        seen = set() if known is None else {id(t) for _, t in tree.leaves(known)}
        self.server = tree.extremes({path: t for path, t in tree.leaves(server) if id(t) not in seen})

    def refuse_bad(self, stage: Method) -> None:
        """An upload that holds NaN or infinity, or else a server's state."""
        for client, paths, largest in zip(self.ids, self.paths, self.largest, strict=True):
            if bad := tree.bad_among(paths, largest):
                raise MessageError(
                    f"round {self.cohort.round}, client {self.task.sites[client]}: its upload holds NaN or infinity in "
                    f"{bad}, expected finite numbers; lower the learning rate, clip the gradient, or check this site's "
                    "images."
                )
        if bad := tree.bad_among(*self.server):
            rate = "method.server_lr" if hasattr(stage, "server_lr") else "the learning rate"
            raise MessageError(
                f"round {self.cohort.round}: the server's new state holds NaN or infinity in {bad}, expected finite "
                f"numbers; lower {rate}."
            )

    def metrics(self) -> dict[str, float]:
        """Their mean by the cohort's weights."""
        weights = dict(zip(self.cohort.ids, self.cohort.weights, strict=True))
        total: dict[str, float] = {}
        for client, log in zip(self.ids, self.logs, strict=True):
            for name, value in log.items():
                total[name] = total.get(name, 0.0) + weights[client] * float(value)
        return total


def _uploads(results: Iterator[Result], stage: Method, new: State, arrived: Arrivals) -> Iterator[Any]:
    """Pass uploads on to the server as they come; keep what belongs to the clients and the record."""
    for result in results:
        arrived.add(result)
        new.memory[result.client] = result.memory
        if result.trained is not None:
            new.trained[result.client] = result.trained
        new.bytes_up += 0 if stage.pools else tree.nbytes(result.up)
        yield result.up
