"""Four workloads that everybody trains, on made-up pictures of the right shape, and the bare loop that all are held to.

`Bare` is what one would write by hand in plain PyTorch, and no more: the weights of all layers in one flat tensor that
is copied in and out, `torch.optim`, pictures that lie ready as floats. It draws the same batches from the same initial
weights as fedshift does, and its weights are those of `sequential` to the last bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import models
from fedshift.core import seeds
from fedshift.core.optim import SGD
from fedshift.data import Dataset, Domain
from fedshift.data.augment import Transform
from fedshift.data.batches import sizes
from fedshift.data.protocols import Protocol
from fedshift.data.recipes import RECIPES
from fedshift.experiment.config import DataConfig, EvalConfig, Experiment, FederationConfig, LocalConfig, ModelConfig

Image = tuple[int, int, int]
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """FedAvg by plain SGD, one epoch a round; the averaged model is then scored on every client's test pictures."""

    name: str
    summary: str
    model: str
    image: Image
    train: tuple[int, ...]  # pictures of each client
    test: tuple[int, ...]
    batch: int
    lr: float = 0.01
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Pictures that a round trains on."""
        return sum(self.train)


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1", "FedBN's network for digits, 5 clients, a tenth of its 743 pictures each",
            "digits-cnn", (3, 28, 28), (74,) * 5, (74,) * 5, 32,
        ),
        Workload(
            "W2", "hFedF's network, 3 clients, a tenth of PACS",
            "hfedf-cnn", (3, 32, 32), (208, 300, 244), (104, 150, 122), 64, options={"dropout": 0.0},
        ),
        Workload(
            "W3", "FDSE's plain AlexNet, 4 clients, a twentieth of Office-Caltech10",
            "alexnet-fdse", (3, 224, 224), (48, 56, 16, 16), (24, 28, 8, 8), 50,
        ),
        Workload(
            "W4", "2,410 parameters, 100 clients of 15 to 25 pictures",
            "mlp", (1, 8, 8), tuple(15 + k % 11 for k in range(100)), (0,) * 100, 10, 0.05, {"hidden": (32,)},
        ),
    )
}  # fmt: skip


class Client(NamedTuple):
    """Pictures (uint8, [n, channels, height, width]) and labels of one client; the first rows are for training."""

    images: Tensor
    labels: Tensor
    train: int


def clients(w: Workload) -> list[Client]:
    """Noise, brighter from class to class and from client to client."""
    gen, found = torch.Generator().manual_seed(0), []
    for k, (train, test) in enumerate(zip(w.train, w.test, strict=True)):
        labels = torch.randint(0, CLASSES, (train + test,), generator=gen)
        noise = torch.randint(0, 128, (train + test, *w.image), generator=gen, dtype=torch.uint8)
        shift = 9 * labels + 36 * k // len(w.train)
        found.append(Client(noise + shift.to(torch.uint8).view(-1, 1, 1, 1), labels, train))
    return found


def network(w: Workload, seed: int = 0) -> nn.Module:
    """With the initial weights of a run of this seed."""
    with seeds.scope(seeds.derive(seed, "init")):
        return models.build(w.model, w.image, CLASSES, **w.options)


def dataset(w: Workload) -> Dataset:
    """One domain for each client, with a list of what is for training and what for the test."""
    domains = []
    for k, client in enumerate(clients(w)):
        n = len(client.labels)
        lists = torch.where(torch.arange(n) < client.train, 0, 2)
        # Every picture counts as unlike the others, and they keep their order.
        content = torch.arange(n) + (k << 32)
        domains.append(Domain(f"site{k:03}", client.images, client.labels, content, content, lists))
    return Dataset(w.name, tuple(map(str, range(CLASSES))), tuple(domains))


def experiment(w: Workload, **changes: Any) -> Experiment:
    """The workload as a configuration; `set_up(experiment(w), dataset(w))` makes a run of it."""
    tests = {"test": 0.0} if not any(w.test) else {}
    settings = {
        "data": DataConfig(**{**vars(Protocol(split="official", val=0.0, **tests)), "name": "glyphs"}),
        "model": ModelConfig(w.model, w.options),
        "federation": FederationConfig(rounds=10_000),
        "local": LocalConfig(batch=w.batch),
        "optimizer": SGD(lr=w.lr),
        "eval": EvalConfig(),
    }
    return Experiment(**{**settings, **changes})


class Bare:
    """The hand-written loop; `round` trains all clients, averages, and returns the accuracy at each."""

    def __init__(self, w: Workload, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.w, self.seed, self.done = w, seed, 0
        see = Transform(RECIPES["none"], dtype).test
        self.data = [(see(c.images), c.labels, c.train) for c in clients(w)]
        self.net = network(w, seed).to(dtype)
        self.mine = flat(self.net)  # what the network computes with
        self.server, self.total = self.mine.clone(), torch.zeros_like(self.mine)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=w.lr)

    def round(self) -> list[float]:
        """One round, scored."""
        self.net.train()
        for k, (x, y, n) in enumerate(self.data):
            self.mine.copy_(self.server)
            for batch in self._batches(k, n):
                self.optimizer.zero_grad()
                F.cross_entropy(self.net(x[batch]), y[batch]).backward()
                self.optimizer.step()
            share = n / self.w.images
            torch.mul(self.mine, share, out=self.total) if k == 0 else self.total.add_(self.mine, alpha=share)
        self.server.copy_(self.total)
        self.done += 1
        return self._scores()

    def _batches(self, k: int, n: int) -> Iterator[Tensor]:
        seed = seeds.derive(self.seed, "round", "main", self.done, f"site{k:03}")
        order = torch.randperm(n, generator=seeds.generator(seed, "order"))
        return iter(torch.split(order, sizes(n, self.w.batch)))

    def _scores(self) -> list[float]:
        self.mine.copy_(self.server)
        self.net.eval()
        found = []
        with torch.no_grad():
            for x, y, n in self.data:
                if len(y) > n:
                    logits = torch.cat([self.net(part) for part in torch.split(x[n:], EvalConfig().batch)])
                    found.append(float((logits.argmax(1) == y[n:]).double().mean()))
        return found


def flat(net: nn.Module) -> Tensor:
    """One tensor that holds all floating parameters and buffers of a network, which become views of it."""
    owners = [(m, k, t) for m in net.modules() for part in (m._parameters, m._buffers) for k, t in part.items()]
    floats = [(m, k, t) for m, k, t in owners if t is not None and t.is_floating_point()]
    whole = torch.cat([t.detach().reshape(-1) for _, _, t in floats])
    ends = torch.tensor([0, *(t.numel() for _, _, t in floats)]).cumsum(0).tolist()
    for (module, name, t), (a, b) in zip(floats, pairwise(ends), strict=True):
        view = whole[a:b].view_as(t)
        if isinstance(t, nn.Parameter):
            t.data = view
        else:
            setattr(module, name, view)
    return whole
