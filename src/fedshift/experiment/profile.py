"""Where a round's time goes, for any experiment: what an experiment is made of is wrapped when it is set up.

No method and no engine knows of it. `Task` carries the way to take a gradient and to update, so forward, backward and
update are told apart there; sites give data, `Transform` augments, an engine's `train` and `guard` divide clients from
server, and the evaluator and the journal are called by the run.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from ..core.net import Net, Output, Variables
from ..core.optim import Rate
from ..core.optim import State as OptState
from ..core.task import Loss, Task
from ..core.tree import Tensors
from ..data import Dataset
from ..engines.base import Engine, Job, Method, Result
from ..engines.captured import Captured
from ..engines.fast import Fast
from ..engines.loop import State
from ..engines.together import tiny
from .config import Experiment
from .journal import Journal
from .runs import Folder, journal_of, rounds
from .setup import Setup, set_up
from .spans import OTHER, Clock, DeviceClock, HostClock, Spans, cost_of_a_mark

PARTS = {
    "data": "choosing and gathering pictures",
    "augmentation": "augmenting and normalising them",
    "forward": "the networks and the loss",
    "backward": "the gradient",
    "update": "the method's correction and the optimiser",
    "clients": "the clients' other work: copies, messages, begin and finish",
    "server": "send and aggregate",
    "evaluation": "scoring the models",
    "checkpoint": "saving the state and the records",
    OTHER: "all else",
}
STEPS = ("data", "augmentation", "forward", "backward", "update", "clients")  # of a client
CLOSED = frozenset({"forward", "update", "server", "evaluation", "checkpoint"})
OPENED = frozenset({"clients"})  # they train while the server waits for their uploads

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Stage:
    """Mean seconds of a round of one stage by part; where steps cannot be watched, `divided` by another engine's."""

    name: str
    rounds: int
    parts: dict[str, float]
    marks: float
    divided: bool = False

    @property
    def seconds(self) -> float:
        """Of a round."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Profile:
    """All stages of an experiment, and what measuring them cost."""

    stages: tuple[Stage, ...]
    mark: float  # seconds
    notes: tuple[str, ...]

    @property
    def cost(self) -> float:
        """The share of the time that measuring took."""
        return self.mark * sum(s.marks for s in self.stages) / sum(s.seconds for s in self.stages)


def profile(
    config: Experiment,
    data: Dataset | None = None,
    *,
    workers: int = 1,
    measured: int = 3,
    warm_up: int | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda done, total: None,
) -> Profile:
    """Measure some rounds of each stage, after some that nobody measures; nothing is kept but the times."""
    clock = clock or (DeviceClock() if config.device == "cuda" else HostClock())
    run, notes = _Run(config, data, workers, clock, tell), _notes(config)
    whole, first = run.undivided, 2 if isinstance(run.setup.engine, Captured) else 1
    stages = run.stages(measured, first if warm_up is None else warm_up, detail=not whole)
    if whole:
        plain = _plain(config, data, clock, tell)
        apart = plain.stages(1, 1, detail=True)
        stages = [_divided(*pair) for pair in zip(stages, apart, strict=True)]
        notes.append(
            f"{whole}: the clients' time is divided as it is where engine {plain.config.engine} trains one after "
            "another, which was measured apart (pale in the picture)."
        )
    return Profile(tuple(stages), cost_of_a_mark(clock), tuple(notes))


def _plain(config: Experiment, data: Dataset | None, clock: Clock, tell: Tell) -> "_Run":
    """The same steps, one client after another and not recorded."""
    if config.engine != "fast":
        return _Run(replace(config, engine="sequential"), data, 1, clock, tell)
    run = _Run(config, data, 1, clock, tell)
    cast(Fast, run.setup.engine).most = 0
    return run


def _notes(config: Experiment) -> list[str]:
    """What is not done in every round."""
    every = {"evaluation": config.eval.every, "checkpoint": config.checkpoint}
    return [f"One {what} in {n} rounds: every round counts 1/{n} of it." for what, n in every.items() if n > 1]


def _divided(stage: Stage, plain: Stage) -> Stage:
    whole = sum(plain.parts.get(part, 0.0) for part in STEPS)
    spent = sum(stage.parts.get(part, 0.0) for part in STEPS)
    shares = {part: spent * plain.parts.get(part, 0.0) / whole for part in STEPS} if whole else {}
    return replace(stage, parts=stage.parts | shares, divided=bool(whole))


class _Run:
    """An experiment in a folder that is thrown away, watched."""

    def __init__(self, config: Experiment, data: Dataset | None, workers: int, clock: Clock, tell: Tell) -> None:
        self.config = replace(config, eval=replace(config.eval, every=1), checkpoint=1)
        self._every = {"evaluation": config.eval.every, "checkpoint": config.checkpoint}
        self.setup = set_up(self.config, data, workers)
        self._workers, self._spans, self._tell = workers, Spans(clock, CLOSED, OPENED), tell

    @property
    def undivided(self) -> str:
        """Why the steps of its clients cannot be watched, or nothing."""
        engine = self.setup.engine
        if isinstance(engine, Captured):
            return f"Engine {engine.name} replays recorded steps, which have no parts"
        if isinstance(engine, Fast) and tiny(self.setup.task, engine.most):
            return f"Engine {engine.name} takes the steps of such small networks for many clients at once"
        return f"{self._workers} clients train side by side" if self._workers > 1 else ""

    def stages(self, measured: int, warm_up: int, *, detail: bool) -> list[Stage]:
        """Each stage from the state that a few rounds of those before have left."""
        setup, done = watched(self.setup, self._spans, detail=detail), list[Stage]()
        state, plan = setup.start(), [self._lengths(stage, measured, warm_up) for stage in setup.method.stages()]
        with tempfile.TemporaryDirectory() as folder:
            for number, (stage, (warm, count)) in enumerate(zip(setup.method.stages(), plan, strict=True)):
                journal = WatchedJournal(journal_of(self.config, Folder(Path(folder))), self._spans)
                events = rounds(self.config, setup, cast(Journal, journal), state, 0.0)
                taken = list[tuple[dict[str, float], int]]()
                for index in range(warm + count):
                    self._tell(sum(map(sum, plan[:number])) + index, sum(map(sum, plan)))
                    self._spans.begin()
                    next(events)
                    taken.append(self._spans.end())
                events.close()
                done.append(self._stage(stage.name, taken[warm:]))
                state = journal.last
                if state.stage == number:
                    state = replace(state, stage=number + 1, done=0, memory={}, before=state.memory)
        return done

    def _lengths(self, stage: Method, measured: int, warm_up: int) -> tuple[int, int]:
        """Rounds to warm up and to measure, where a stage has so many."""
        most = self.setup.plan.rounds if stage.rounds is None else stage.rounds
        warm = min(warm_up, most - 1)
        return warm, min(measured, most - warm)

    def _stage(self, name: str, taken: list[tuple[dict[str, float], int]]) -> Stage:
        n = len(taken)
        means = {part: sum(seconds.get(part, 0.0) for seconds, _ in taken) / n for part in PARTS}
        parts = {part: seconds / self._every.get(part, 1) for part, seconds in means.items()}
        return Stage(name, n, parts, sum(marks for _, marks in taken) / n)


# -- what is wrapped -----------------------------------------------------------------------------------
def watched(setup: Setup, spans: Spans, *, detail: bool) -> Setup:
    """The same run, watched; without `detail` a client's work is one part."""
    setup = replace(
        setup,
        engine=cast(Engine, WatchedEngine(setup.engine, spans)),
        evaluator=cast(Any, Watched(setup.evaluator, spans, {"__call__": "evaluation"})),
    )
    if not detail:
        return setup
    sites = tuple(cast(Any, watched_site(site, spans)) for site in setup.sites)
    return replace(setup, task=watched_task(setup.task, spans), sites=sites)


class Watched:
    """Something whose calls named in `parts` belong to that part of the time."""

    def __init__(self, inner: Any, spans: Spans, parts: dict[str, str]) -> None:
        self._inner, self._spans, self._parts = inner, spans, parts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._timed(value, self._parts[name]) if name in self._parts else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """If it can be called itself."""
        return self._timed(self._inner, self._parts["__call__"])(*args, **kwargs)

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._spans(part):
                return call(*args, **kwargs)

        return timed


class WatchedEngine(Watched):
    """Clients train in `train`; what `guard` returns does the server's work."""

    def __init__(self, inner: Engine, spans: Spans) -> None:
        super().__init__(inner, spans, {})

    def guard(self, method: Method, where: str) -> Method:
        """The server's side of the method."""
        return cast(
            Method,
            Watched(self._inner.guard(method, where), self._spans, dict.fromkeys(("send", "aggregate"), "server")),
        )

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """One client's result after another."""
        return self._spans.each("clients", self._inner.train(method, task, jobs, keep=keep, label=label))


class WatchedSite(Watched):
    """Batches come one by one; between them the time is not the site's."""

    def batches(self, seed: int, rows: Tensor | None = None) -> Iterator[Any]:
        """As the site gives them."""
        return self._spans.each("data", self._inner.batches(seed, rows))

    def look(self, rows: Tensor | None = None) -> Iterator[Any]:
        """As the site gives them."""
        return self._spans.each("data", self._inner.look(rows))


def watched_site(site: Any, spans: Spans) -> WatchedSite:
    """Its transform is told apart."""
    augment = Watched(site.transform, spans, dict.fromkeys(("table", "apply", "test", "train", "draw"), "augmentation"))
    return WatchedSite(
        replace(site, transform=cast(Any, augment)), spans, dict.fromkeys(("drawn", "visits", "steps"), "data")
    )


class WatchedNet(Net):
    """A network whose passes outside a gradient are forward passes too."""

    spans: Spans

    def __call__(self, v: Variables, x: Tensor, **rest: Any) -> Output:
        """One forward pass."""
        with self.spans("forward"):
            return super().__call__(v, x, **rest)


def watched_task(task: Task, spans: Spans) -> Task:
    """What a gradient asks for is forward, the rest of it backward; what else an engine may fuse is the update."""

    def gradient(objective: Callable[[Tensors], tuple[Tensor, Loss]], params: Tensors) -> tuple[Tensors, Loss]:
        def forward(free: Tensors) -> tuple[Tensor, Loss]:
            with spans("forward"):
                return objective(free)

        with spans("backward"):
            return task.gradient(forward, params)

    def update(grads: Tensors, state: OptState, params: Tensors, lr: Rate) -> tuple[Tensors, OptState]:
        with spans("update"):
            return task.update(grads, state, params, lr)

    def fuse(fn: Any) -> Any:
        fused = task.fuse(fn)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with spans("update"):
                return fused(*args, **kwargs)

        return timed

    net = copy(task.net)
    net.__class__ = WatchedNet
    cast(WatchedNet, net).spans = spans
    return replace(task, net=net, gradient=gradient, update=update, fuse=fuse)


class WatchedJournal(Watched):
    """The last state is at hand; writing is checkpointing."""

    last: State

    def __init__(self, inner: Journal, spans: Spans) -> None:
        super().__init__(inner, spans, {"line": "checkpoint"})

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def state(self, state: State, seconds: float, *, save: bool) -> None:
        """A round is done."""
        self.last = state
        with self._spans("checkpoint"):
            self._inner.state(state, seconds, save=save)
