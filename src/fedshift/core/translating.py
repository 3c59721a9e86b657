"""What comes before the rounds of a method that translates representations: heads, latents, and the translator.

Palakkadavath et al., ICDM 2025, arXiv 2512.10224; S1 to S3 of its method, a stage each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from . import seeds, tree
from .algorithm import Algorithm
from .average import average
from .bounds import Range
from .errors import ConfigError, MessageError
from .importance import Importance
from .inversion import Inversion, Statistics, invert
from .latent import all_logits, head_names, head_norm, width
from .net import Part, Variables, overlay, part, without
from .task import Cohort, Empty, Round, Site, Task, Work
from .translator import Gan, Pool, Translation, networks, train
from .tree import Tensors

CACHED = 2**18  # numbers that are inverted at once on a CPU, so that they stay in its cache; a GPU takes all

# Settings for tests.
QUICK = {
    "local_rounds": 2,
    "server_rounds": 1,
    "z_steps": 3,
    "z_batch": 6,
    "z_batches": 3,
    "hidden": 8,
    "gan_iters": 6,
    "gan_batch": 6,
    "n_critic": 2,
}


class Heads(NamedTuple):
    """Everybody's head, domain by domain: tensors of the network's names and [m, ...]."""

    params: Tensors
    buffers: Tensors
    facts: Tensors  # "mean", "var" [m, p] where heads have no BatchNorm; "counts" [m, C] where the prior is told


class Server(NamedTuple):
    """The global model, and what the stages hand on; what a later stage does not need is dropped."""

    model: Variables
    known: Tensor  # [m], 1 for domains whose head came
    heads: Heads
    latents: Tensors  # "z" [m, batches, b, p] and "y" [m, batches, b]; Adam's state while they are made
    gan: Gan


class Down(NamedTuple):
    """The global model and, for clients, the translator, the client's domain, and which domains there are."""

    model: Variables
    g: Tensors
    domains: Tensors


class Alone(NamedTuple):
    """A client's model that no other has touched."""

    model: Variables


class Head(NamedTuple):
    """A client's head; with start = mean the rest of its model; what its type of head or labels = prior asks for."""

    head: Part
    rest: Part
    facts: Tensors


class Up(NamedTuple):
    """The trained model and, where weights are by importance, Omega: as many numbers as parameters once more."""

    model: Variables
    omega: Tensors


Client = TypeVar("Client")
Sent = TypeVar("Sent")


def domain_of(task: Task) -> dict[str, int]:
    """The one numbering of domains: by the sites' sorted names, in whatever order the clients are listed."""
    return {name: d for d, name in enumerate(sorted(task.sites))}


@dataclass(frozen=True)
class Translating(Importance, Translation, Inversion, Algorithm[Server, Empty, Down, Up]):
    """The settings of all stages, and the state they share."""

    local_rounds: Annotated[int, Range(1), "rounds of training alone before heads are sent (release: 30 epochs)"] = 3
    server_rounds: Annotated[
        int, Range(1), "rounds that inversion and translator are each divided into, for progress and checkpoints"
    ] = 4
    start: Annotated[
        Literal["initial", "mean"], "the rounds start from the network as built, or the mean of those trained alone"
    ] = "initial"
    lambda_di: Annotated[float, Range(0), "weight of the divergence from the translated; 0: no stage before"] = 1.0

    def stages(self) -> Sequence[Algorithm[Server, Any, Any, Any]]:
        """S1 to S3 before the rounds, so far as these need them."""
        if self.lambda_di:
            return (TrainHeads(self), Invert(self), Translate(self), self)
        return (TrainHeads(self), self) if self.start == "mean" else (self,)

    def init_server(self, task: Task) -> Server:
        """Room for what the stages bring."""
        model, m = task.net.variables(), task.clients
        known = next(iter(model.params.values())).new_zeros(m)
        if not self.lambda_di:
            return Server(model, known, Heads({}, {}, {}), {}, Gan({}, {}, {}))
        if m < 2:
            raise ConfigError(
                f"{self.name}: found one client, expected two at least, since its translator maps one client's latents "
                "to another's; give the federation more clients, or set method.lambda_di = 0."
            )
        p, size = width(task.net), (m, self.z_batches, self.z_batch)
        head = part(model, head_names(task.net))
        facts = {} if head_norm(task.net) else {"mean": known.new_zeros(p), "var": known.new_zeros(p)}
        facts |= {"counts": known.new_zeros(task.classes)} if self.labels == "prior" else {}
        heads = tree.map(lambda t: torch.zeros_like(t).expand(m, *t.shape).clone(), Heads(*head, facts))
        latents = {name: known.new_zeros((*size, p)) for name in ("z", "mean", "square")}
        latents["y"] = torch.zeros(size, dtype=torch.int64, device=known.device)
        latents["steps"] = torch.zeros((), dtype=torch.float64, device=known.device)
        return Server(model, known, heads, latents, networks(self, p, m, task.seed, known))


@dataclass(frozen=True)
class Before(Algorithm[Server, Client, Empty, Sent], Generic[Client, Sent]):
    """A stage before `main`: at every site the network answers as it was built, since the rounds begin there."""

    main: Translating

    def init_server(self, task: Task) -> Server:
        """The main method's."""
        return self.main.init_server(task)

    def send(self, task: Task, server: Server, client: int | None) -> Empty:
        """Nothing."""
        return Empty()

    def model_for(self, task: Task, down: Empty, client: Client | None) -> Variables:
        """As built."""
        return task.net.variables()


@dataclass(frozen=True)
class TrainHeads(Before[Alone, Head]):
    """S1: each client trains the network alone; its head goes up."""

    name: ClassVar[str] = "heads"

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """As many as the method says."""
        return self.main.local_rounds

    def init_client(self, task: Task, down: Empty, before: Any = None) -> Alone:
        """Everybody starts from the network as built."""
        return Alone(task.net.variables())

    def begin(self, task: Task, down: Empty, client: Alone | None, round: Round, site: Site) -> Work:
        """Where the client stopped."""
        assert client is not None  # a new site does not adapt here
        return Work(client.model, down, client, round)

    def finish(self, task: Task, work: Work) -> tuple[Head, Alone]:
        """The head with its running statistics goes up."""
        assert work.site is not None
        names, facts = head_names(task.net), dict[str, Tensor]()
        if self.main.lambda_di and head_norm(task.net) is None:
            with torch.no_grad():
                z = torch.cat([task.net(work.model, x, train=False).features for x, _ in work.site.look()])
            facts = {"mean": z.mean(0), "var": z.var(0, correction=0)}
        if self.main.lambda_di and self.main.labels == "prior":
            facts["counts"] = work.site.labels.bincount(minlength=task.classes).to(like(task))
        rest = without(work.model, names) if self.main.start == "mean" else Part({}, {})
        return Head(part(work.model, names), rest, facts), Alone(work.model)

    def aggregate(self, task: Task, server: Server, ups: Iterator[Head], cohort: Cohort) -> Server:
        """Each head to its domain's place."""
        heads, known, number = tree.clone(server.heads), server.known.clone(), domain_of(task)

        def placed() -> Iterator[Variables]:
            for client, up in zip(cohort.ids, ups, strict=True):
                if self.main.lambda_di:
                    d = number[task.sites[client]]
                    tree.map(lambda room, t, d=d: room[d].copy_(t), heads, Heads(*up.head, up.facts))
                    known[d] = 1
                yield overlay(Variables(*up.rest), up.head)

        arriving = placed()
        model = average(task, arriving, cohort) if self.main.start == "mean" else server.model
        for _ in arriving:
            pass
        if "counts" in heads.facts:
            self._check_counts(task, heads.facts["counts"].cpu(), cohort)
        return server._replace(model=model, heads=heads, known=known)

    def _check_counts(self, task: Task, counts: Tensor, cohort: Cohort) -> None:
        """Synthetic labels are drawn by them."""
        for name in (task.sites[client] for client in cohort.ids):
            mine = counts[domain_of(task)[name]]
            if float(mine.min()) < 0 or float(mine.sum()) <= 0:
                raise MessageError(
                    f"{self.main.name}, stage {self.name}, client {name}: its class counts are {mine.tolist()}, "
                    "expected none below 0 and a sum above 0; check this site's labels, or set method.labels = "
                    "'uniform'."
                )


@dataclass(frozen=True)
class OnServer(Before[Empty, Empty]):
    """A stage of server work alone, divided into rounds."""

    needs_clients: ClassVar[bool] = False

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """As many as the method says."""
        return self.main.server_rounds

    def init_client(self, task: Task, down: Empty, before: Any = None) -> Empty:
        """Nobody is asked."""
        return Empty()

    def finish(self, task: Task, work: Work) -> tuple[Empty, Empty]:
        """Nobody is asked."""
        return Empty(), Empty()

    def _share(self, whole: int, cohort: Cohort) -> range:
        """This round's part of the numbers below `whole`."""
        return range(whole * cohort.round // self.rounds, whole * (cohort.round + 1) // self.rounds)

    def _check(self, state: Any, what: str, rate: str) -> None:
        if bad := tree.first_bad(state):
            raise MessageError(
                f"{self.main.name}, stage {self.name}: found NaN or infinity in {what} ({bad}), expected finite "
                f"numbers; lower method.{rate}."
            )


@dataclass(frozen=True)
class Invert(OnServer):
    """S2: latents that each client's head takes for given classes, with the statistics of that client."""

    name: ClassVar[str] = "inversion"

    def aggregate(self, task: Task, server: Server, ups: Iterator[Empty], cohort: Cohort) -> Server:
        """A share of the steps, for all clients at once; each batch begins with noise of its own and a fresh Adam."""
        ids, steps = server.known.nonzero()[:, 0], self._share(self.main.z_steps, cohort)
        heads = tree.map(lambda t: t[ids], server.heads)
        latents = tree.clone(server.latents) if cohort.round else self._noise(task, server)
        each = len(ids) * self.main.z_batch * width(task.net)
        at_once = max(1, CACHED // each) if ids.device.type == "cpu" else self.main.z_batches
        for first in range(0, self.main.z_batches, at_once):
            here = ids, slice(first, first + at_once)
            z, mean, square, y = (latents[name][here] for name in ("z", "mean", "square", "y"))
            state = {"mean": {"z": mean}, "square": {"z": square}, "count": {"steps": latents["steps"]}}
            z, state = invert(self.main, self._logits(task, heads), z, y, statistics(task, heads), state, len(steps))
            for name, new in (("z", z), ("mean", state["mean"]["z"]), ("square", state["square"]["z"])):
                latents[name][here] = new
        latents["steps"] += len(steps)
        self._check(latents, "synthetic latents", "z_lr")
        last = cohort.round + 1 == self.rounds
        return server._replace(latents={k: latents[k] for k in ("z", "y")} if last else latents)

    def _logits(self, task: Task, heads: Heads) -> Callable[[Tensor], Tensor]:
        """[m, n, b, p] -> [m, n, b, C], each client's latents through its head."""

        def logits(z: Tensor) -> Tensor:
            return all_logits(task.net, heads.params, heads.buffers, z.flatten(1, 2)).view(*z.shape[:3], -1)

        return logits

    def _noise(self, task: Task, server: Server) -> Tensors:
        """What a batch begins with: normal numbers, and classes; by its number and its site's name."""
        latents = tree.clone(server.latents)
        for d, name in enumerate(sorted(task.sites)):
            for number in range(self.main.z_batches if server.known[d] else 0):
                gen = seeds.generator(task.seed, self.name, name, number)
                z = torch.randn(latents["z"].shape[2:], generator=gen)
                y = self._labels(task, server.heads.facts, d, gen)
                latents["z"][d, number], latents["y"][d, number] = z.to(latents["z"]), y.to(latents["y"])
        return latents

    def _labels(self, task: Task, facts: Tensors, d: int, gen: torch.Generator) -> Tensor:
        if self.main.labels == "prior":
            return torch.multinomial(facts["counts"][d].cpu(), self.main.z_batch, replacement=True, generator=gen)
        return torch.randint(task.classes, (self.main.z_batch,), generator=gen)


@dataclass(frozen=True)
class Translate(OnServer):
    """S3: the translator between the domains of these latents."""

    name: ClassVar[str] = "translator"

    def aggregate(self, task: Task, server: Server, ups: Iterator[Empty], cohort: Cohort) -> Server:
        """A share of the iterations; after the last, the translator alone is kept."""
        ids, heads = server.known.nonzero()[:, 0], server.heads
        z, y = (server.latents[name][ids].flatten(0, 2) for name in ("z", "y"))
        pool = Pool.of(self.main, z, y, ids.repeat_interleave(len(y) // len(ids)))
        if len(ids) < 2 or not pool.groups:
            raise MessageError(
                f"{self.main.name}, stage {self.name}: found latents of {len(ids)} clients and no class that two have, "
                "expected two clients with a class in common; let more take part in stage 'heads', or set "
                "method.labels = 'uniform'."
            )

        mine = tree.map(lambda t: t[ids], Heads(heads.params, heads.buffers, {}))

        def preserved(fake: Tensor, y: Tensor) -> Tensor:
            each = all_logits(task.net, mine.params, mine.buffers, fake)
            return F.cross_entropy(each.flatten(0, 1), y.repeat(len(each))) * len(each)

        gan = train(self.main, server.gan, pool, self._share(self.main.gan_iters, cohort), task.seed, preserved)
        self._check(gan.g, "the translator", "gan_lr")
        if cohort.round + 1 < self.rounds:
            return server._replace(gan=gan)
        return server._replace(heads=Heads({}, {}, {}), latents={}, gan=Gan(gan.g, {}, {}))


def statistics(task: Task, heads: Heads) -> Statistics:
    """What a client's latents look like: what its BatchNorm remembers, or what it measured; [m, 1, p]."""
    norm = head_norm(task.net)
    found = (heads.buffers[f"{norm}.running_{k}"] if norm else heads.facts[k] for k in ("mean", "var"))
    return Statistics(*(t[:, None] for t in found))


def like(task: Task) -> Tensor:
    """A tensor of the network's kind, on its device."""
    return next(task.net.module.parameters())
