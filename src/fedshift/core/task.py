"""What a method is given: the task, the round, the cohort, the batch; and what a client carries while it trains."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from .net import Net, Variables
from .optim import Optimizer, Rate, State
from .tree import Room, Tensors

NO_STATE: State = {}
Fn = TypeVar("Fn", bound=Callable[..., Any])
PerParam = Annotated[Tensors, "one tensor per parameter of the network"]


class Batch(NamedTuple):
    """Images, ready for the network, and their labels."""

    x: Tensor
    y: Tensor


class Visits(NamedTuple):
    """A round of a client: how large its batches are, and which of its images each holds.

    `looks(n)` draws how the next `n` images are augmented, a row each; None where nothing is random.
    """

    sizes: list[int]
    images: Tensor
    looks: Callable[[int], Tensor | None]


class Source(Protocol):
    """Pictures that lie together on the training device, and how training sees them; sites may share both."""

    @property
    def key(self) -> Hashable:
        """The same where pictures and ways are."""
        ...

    @property
    def row(self) -> Tensor:
        """Where each of the site's images lies."""
        ...

    def drawn(self, rows: Tensor, looks: Tensor | None, fuse: "Fuse | None" = None) -> Tensor:
        """The images of those rows as training sees them, by a compiled function if asked."""
        ...


class Site(Protocol):
    """A client's own images. Batches come to a method's hooks by themselves; here is the rest, if one must look."""

    @property
    def name(self) -> str:
        """The site's name, from which its random streams follow."""
        ...

    @property
    def labels(self) -> Tensor:
        """The label of each image, in an order that stays; -1 at a site that has none."""
        ...

    def steps(self, rows: Tensor | None = None) -> int:
        """Batches in one round on those of its images, or on all."""
        ...

    def batches(self, seed: int, rows: Tensor | None = None) -> Iterable[Batch]:
        """A round's training batches, shuffled and augmented by `seed` alone."""
        ...

    def look(self, rows: Tensor | None = None) -> Iterable[Batch]:
        """Each image once, in order, as evaluation sees it."""
        ...

    def visits(self, seed: int, rows: Tensor | None = None) -> Visits:
        """What `batches` goes through, for an engine that prepares many batches at once."""
        ...

    def drawn(self, images: Tensor, looks: Tensor | None) -> Tensor:
        """Those of its images as training sees them; the looks are on the images' device."""
        ...

    def source(self) -> Source | None:
        """Where its images lie, if they lie together on the device that trains."""
        ...


class Answer(NamedTuple):
    """What a model says of a batch: logits, and the evidence for each class where the method weighs it."""

    logits: Tensor
    evidence: Tensor | None = None


class Empty(NamedTuple):
    """Nothing kept, or nothing sent."""


class Round(NamedTuple):
    """What a client is told about the round; `seed` is its own for this round, for any randomness a method needs."""

    number: int  # from 0
    total: int
    lr: Rate
    steps: int
    examples: int
    seed: int


class Cohort(NamedTuple):
    """Who answers this round, in the order in which `aggregate` receives the uploads."""

    ids: tuple[int, ...]
    examples: tuple[int, ...]
    weights: tuple[float, ...]  # by the protocol's rule; they sum to one
    share: float  # of the weight of all clients; one when everybody took part
    round: int
    lr: float


class Loss(NamedTuple):
    """The local objective, the buffers after the forward pass, and what else a method wants kept or reported."""

    value: Tensor
    buffers: Tensors
    aux: Any = ()
    metrics: Mapping[str, Tensor] = {}


class Work(NamedTuple):
    """What one client carries from batch to batch; `aux` is the method's own, a tree of tensors.

    A step may be recorded once and replayed in every round, so of `round` it reads `lr` alone; what else changes with
    the round goes into `aux` in `begin`. `rows` may be set there too: the images that this round trains on.
    """

    model: Variables
    down: Any
    client: Any
    round: Round
    opt: State = NO_STATE  # given by the client loop, phase by phase
    aux: Any = ()
    site: Site | None = None  # given by the client loop before `begin` returns to it, for `finish`
    rows: Tensor | None = None


Metrics = Mapping[str, Tensor]
Step = Callable[["Task", Work, Batch], tuple[Work, Metrics]]


@dataclass(frozen=True)
class Phase:
    """A part of the local budget: its share of the steps, what it trains, and its step if not plain descent."""

    name: str = "train"
    share: float = 1.0
    trains: frozenset[str] | None = None
    step: Step | None = None


@dataclass(frozen=True)
class Rules:
    """How models are averaged: a protocol's choice, the same for every method it compares."""

    weights: Literal["examples", "uniform"] = "examples"
    buffers: Literal["mean", "local", "pooled"] = "mean"


Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]  # a function of tensors, compiled
Gradient = Callable[[Callable[[Tensors], tuple[Tensor, Loss]], Tensors], tuple[Tensors, Loss]]
Update = Callable[[Tensors, State, Tensors, Rate], tuple[Tensors, State]]


def as_it_is(fn: Fn) -> Fn:
    """The engine's way to compute a function, where it has none."""
    return fn


@dataclass(frozen=True)
class Task:
    """What stays the same over a run. `gradient`, `update`, `fuse` and `room` are the engine's way to compute."""

    net: Net
    optimizer: Optimizer
    sites: Sequence[str]
    examples: Sequence[int]
    classes: int
    gradient: Gradient
    update: Update
    rules: Rules = field(default_factory=Rules)
    seed: int = 0  # the run's, for what a server draws; with a name and, for each client, its site's
    exact: bool = True  # False: sums may be taken in another order, and products in a lower precision
    fuse: Callable[[Any], Any] = as_it_is  # a function of tensors, perhaps compiled
    room: Room = torch.empty_like  # memory for a tensor like that one

    @property
    def clients(self) -> int:
        """How many sites there are in all."""
        return len(self.sites)
