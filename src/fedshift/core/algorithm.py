"""What a federated method is: thirteen hooks over four states, and FedAvg as the defaults of those that average."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from .average import average
from .card import Card
from .net import Variables
from .task import Answer, Batch, Cohort, Loss, Phase, Round, Site, Task, Work
from .tree import Tensors

Server = TypeVar("Server")  # kept by the server between rounds
Client = TypeVar("Client")  # kept by one client between rounds; never sent
Down = TypeVar("Down")  # server -> client
Up = TypeVar("Up")  # client -> server


@dataclass(frozen=True)
class Algorithm(ABC, Generic[Server, Client, Down, Up]):
    """A method: hyper-parameters in frozen fields, behaviour in pure hooks, no state, no loop, no device.

    The four type parameters are NamedTuples of tensors, and the schema of what is stored and sent.
    In a round the server calls `send` for each client; a client `init_client` on its first, `begin`, then per batch
    `loss` and `correct` (or a phase's own step), and `finish`; the server `aggregate`. `model_for` and `predict` say
    which model answers where, and how.
    """

    name: ClassVar[str]
    card: ClassVar[Card]
    rounds: ClassVar[int | None] = None  # None: as many as the run asks for
    needs_clients: ClassVar[bool] = True  # False: a stage of server work alone
    pools: ClassVar[bool] = False  # True: train on the union of all sites, as one client

    # -- structure ---------------------------------------------------------------------------------
    def surgery(self, module: nn.Module) -> nn.Module:
        """The network as this method needs it; once, before any state exists."""
        return module

    def stages(self) -> Sequence["Algorithm[Server, Any, Any, Any]"]:
        """Run one after another on one server state; the last is the main loop."""
        return (self,)

    def phases(self, task: Task, labelled: bool = True) -> Sequence[Phase]:
        """How a client's local steps are divided; without labels, how a new site adapts: not at all by default."""
        return (Phase(),) if labelled else ()

    # -- server ------------------------------------------------------------------------------------
    @abstractmethod
    def init_server(self, task: Task) -> Server:
        """The server's state before round 0."""

    @abstractmethod
    def send(self, task: Task, server: Server, client: int | None) -> Down:
        """What this client downloads; None is a site that took no part in training."""

    @abstractmethod
    def aggregate(self, task: Task, server: Server, ups: Iterator[Up], cohort: Cohort) -> Server:
        """The next state, from the uploads as they come, in the cohort's order."""

    # -- client ------------------------------------------------------------------------------------
    @abstractmethod
    def init_client(self, task: Task, down: Down, before: Any = None) -> Client:
        """A client's memory when it first takes part; `before` is its memory from the stage before."""

    def begin(self, task: Task, down: Down, client: Client | None, round: Round, site: Site) -> Work:
        """What local training starts from; without a client, what a new site adapts from."""
        return Work(self.model_for(task, down, client), down, client, round)

    def loss(self, task: Task, work: Work, batch: Batch) -> Loss:
        """The local objective at `work.model`."""
        out = task.net(work.model, batch.x, train=True)
        return Loss(F.cross_entropy(out.logits, batch.y), out.buffers, work.aux)

    def correct(self, task: Task, grads: Tensors, work: Work) -> Tensors:
        """The gradient that is descended, before clipping."""
        return grads

    @abstractmethod
    def finish(self, task: Task, work: Work) -> tuple[Up, Client]:
        """What is uploaded, and what the client keeps."""

    # -- inference ---------------------------------------------------------------------------------
    @abstractmethod
    def model_for(self, task: Task, down: Down, client: Client | None) -> Variables:
        """The model that answers at a site; `client` is None where nobody trained."""

    def predict(self, task: Task, model: Variables, x: Tensor) -> tuple[Answer, Variables]:
        """The answer, and the model for the stream's next batch: test-time adaptation changes it."""
        return Answer(task.net(model, x, train=False).logits), model


class Global(NamedTuple):
    """A whole model."""

    model: Variables


@dataclass(frozen=True)
class Averaging(Algorithm[Global, Client, Global, Global], Generic[Client]):
    """A method whose server keeps one model, sends it to all and averages the uploads: FedAvg, unless overridden."""

    def init_server(self, task: Task) -> Global:
        """The network's initial values."""
        return Global(task.net.variables())

    def send(self, task: Task, server: Global, client: int | None) -> Global:
        """The model, to everybody."""
        return server

    def aggregate(self, task: Task, server: Global, ups: Iterator[Global], cohort: Cohort) -> Global:
        """The mean by the protocol's weights and rule for buffers."""
        return average(task, ups, cohort)

    def finish(self, task: Task, work: Work) -> tuple[Global, Client]:
        """The trained model goes up; the memory stays as it was."""
        return Global(work.model), work.client

    def model_for(self, task: Task, down: Global, client: Client | None) -> Variables:
        """The same model everywhere."""
        return down.model
