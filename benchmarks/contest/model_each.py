"""The shape of PFLlib, from its description: every client owns a model, and tensors are handed over one by one.

Written by ourselves; of its measurements only the accuracy of the averaged model is taken, as everybody takes it.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .given import Given, Turns, right, train


def take_part(given: Given, turns: Turns) -> None:
    """FedAvg over models that live as long as their clients."""
    server = given.network()
    clients = [copy.deepcopy(server) for _ in given.clients]
    turns.wait()
    for number in range(given.rounds):
        for client in clients:
            _receive(client, server)
        for k, client in enumerate(clients):
            train(client, given.loader(k, number), given.lr)
        server = copy.deepcopy(clients[0])
        for tensor in _tensors(server):
            tensor.zero_()
        for client, n in zip(clients, given.train, strict=True):
            for total, mine in zip(_tensors(server), _tensors(client), strict=True):
                total += mine.clone() * (n / sum(given.train))
        turns.finished(_accuracy(clients, server, given), server.state_dict)


def _receive(client: nn.Module, server: nn.Module) -> None:
    for mine, theirs in zip(_tensors(client), _tensors(server), strict=True):
        mine.copy_(theirs.clone())


def _tensors(net: nn.Module) -> Iterator[Tensor]:
    """Parameters, and the statistics of BatchNorm, since everybody averages them here."""
    yield from (p.data for p in net.parameters())
    yield from (b for b in net.buffers() if b.is_floating_point())


@torch.no_grad()
def _accuracy(clients: list[nn.Module], server: nn.Module, given: Given) -> float | None:
    """Each client scores the averaged model in its own."""
    if not given.scored:
        return None
    total = 0
    for k, client in enumerate(clients):
        _receive(client, server)
        total += right(client, given.test_loader(k))
    return total / sum(given.about["test"])
