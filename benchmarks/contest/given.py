"""What every contestant is given, and the plain pieces of PyTorch that those without a framework share.

Only numpy, torch and fedshift's networks are imported here: what a framework costs to start is its own.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from fedshift import models

FOLDER = "FEDSHIFT_CONTEST"  # names the folder to processes that a framework starts


class Given:
    """A workload as files: numbers in `given.json`, initial weights, seeds of batches, and each client's pictures."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.about: dict[str, Any] = json.loads((self.folder / "given.json").read_text(encoding="utf-8"))
        self.train: list[int] = self.about["train"]
        self.batch, self.eval_batch = self.about["batch"], self.about["eval_batch"]
        self.lr, self.rounds, self.threads = self.about["lr"], self.about["rounds"], self.about["threads"]
        self.seeds = np.load(self.folder / "seeds.npy")
        self._data: dict[int, tuple[Tensor, Tensor]] = {}
        torch.set_num_threads(self.threads)

    @property
    def clients(self) -> range:
        """Their numbers."""
        return range(len(self.train))

    @property
    def scored(self) -> bool:
        """Whether clients have test pictures."""
        return any(self.about["test"])

    def network(self) -> nn.Module:
        """With the initial weights."""
        net = models.build(self.about["model"], tuple(self.about["image"]), self.about["classes"], **self.options)
        with np.load(self.folder / "initial.npz") as initial:
            net.load_state_dict({k: torch.from_numpy(initial[k]) for k in initial})
        return net.to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """What everybody computes in."""
        return torch.float64 if self.about["double"] else torch.float32

    @property
    def options(self) -> dict[str, Any]:
        """The network's; JSON has no tuples."""
        return {k: tuple(v) if isinstance(v, list) else v for k, v in self.about["options"].items()}

    def training(self, client: int) -> TensorDataset:
        """A client's training pictures and labels."""
        x, y = self._both(client)
        return TensorDataset(x[: self.train[client]], y[: self.train[client]])

    def test(self, client: int) -> TensorDataset:
        """A client's test pictures and labels."""
        x, y = self._both(client)
        return TensorDataset(x[self.train[client] :], y[self.train[client] :])

    def _both(self, client: int) -> tuple[Tensor, Tensor]:
        if client not in self._data:
            x, y = (np.load(self.folder / f"{name}{client}.npy") for name in "xy")
            self._data[client] = torch.from_numpy(x), torch.from_numpy(y)
        return self._data[client]

    def order(self, client: int, number: int) -> "Order":
        """The batches of a client from round `number` on."""
        return Order(self, client, number)

    def loader(self, client: int, number: int) -> DataLoader[tuple[Tensor, ...]]:
        """As everybody writes it: pictures one by one, put together to batches."""
        return DataLoader(self.training(client), batch_sampler=self.order(client, number))

    def test_loader(self, client: int) -> DataLoader[tuple[Tensor, ...]]:
        """A client's test pictures in batches."""
        return DataLoader(self.test(client), batch_size=self.eval_batch)


class Order(Sampler[list[int]]):
    """A client's batches, an epoch each time it is gone through; a last batch of one joins the one before."""

    def __init__(self, given: Given, client: int, number: int) -> None:
        self.given, self.client, self.number = given, client, number

    def __len__(self) -> int:
        whole, rest = divmod(self.given.train[self.client], self.given.batch)
        return whole + (rest > 1 or not whole)

    def __iter__(self) -> Iterator[list[int]]:
        gen = torch.Generator().manual_seed(int(self.given.seeds[self.number, self.client]))
        order = torch.randperm(self.given.train[self.client], generator=gen).tolist()
        self.number += 1
        ends = [*range(self.given.batch, self.given.batch * len(self), self.given.batch), len(order)]
        return iter([order[a:b] for a, b in zip([0, *ends], ends, strict=False)])


class Turns:
    """A contestant trains when it is told to, so that all can be measured in turn."""

    def __init__(self, line: TextIO) -> None:
        self.line, self.done, self.left, self.dump = line, 0, 0, ""

    def wait(self) -> None:
        """Until the parent wants more rounds: `N` or `N FILE`, where the weights are to be written after them."""
        text = sys.stdin.readline()
        if not text:
            raise SystemExit("the benchmark has gone")
        number, _, self.dump = text.strip().partition(" ")
        self.left = int(number)

    def finished(
        self, accuracy: float | None, weights: Callable[[], Mapping[str, Any]], sent: int | None = None
    ) -> None:
        """A round is over; `weights` are the server's tensors by name, `sent` the bytes that the framework counts."""
        self.done, self.left = self.done + 1, self.left - 1
        if self.left:
            return
        print(json.dumps({"rounds": self.done, "accuracy": accuracy, "sent": sent}), file=self.line, flush=True)
        if self.dump:
            np.savez(self.dump, allow_pickle=False, **{k: np.asarray(v) for k, v in weights().items()})
            print(json.dumps({"dumped": self.dump}), file=self.line, flush=True)
        self.wait()


def train(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], lr: float) -> None:
    """An epoch of plain SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def right(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> int:
    """How many answers are right."""
    net.eval()
    with torch.no_grad():
        return sum(int((net(x).argmax(1) == y).sum()) for x, y in loader)


def accuracy(net: nn.Module, given: Given) -> float | None:
    """One model over all clients' test pictures."""
    if not given.scored:
        return None
    return sum(right(net, given.test_loader(k)) for k in given.clients) / sum(given.about["test"])
