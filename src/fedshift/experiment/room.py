"""How many runs fit side by side on one GPU."""

from math import ceil

import torch

from .. import models
from ..data import Dataset
from ..data.protocols import deal
from .config import Experiment

IN_FLIGHT = 36  # clients: more of them are no faster on an H200
COPIES = 10  # of its parameters, that a client in flight holds: weights, gradients, optimiser, messages
ACTIVATIONS = 150  # times the bytes of a batch, kept for the backward pass; a ResNet-50's


def gpu_room(config: Experiment, data: Dataset, free: int) -> int:
    """Runs like this one at once: enough for `IN_FLIGHT` clients, as far as `free` bytes of memory allow."""
    clients = in_flight(config, data)
    batch = 4 * config.local.batch * torch.Size(data.image).numel()
    each = COPIES * parameter_bytes(config, data) + ACTIVATIONS * batch
    return max(1, min(ceil(IN_FLIGHT / clients), free // (clients * each)))


def in_flight(config: Experiment, data: Dataset) -> int:
    """Clients that train in a round."""
    if config.method.pools:
        return 1
    clients = len(deal(data, config.data, config.seed).train)
    return max(1, ceil(config.federation.participation * clients - 1e-9))


def parameter_bytes(config: Experiment, data: Dataset) -> int:
    """Of the network."""
    module = models.build(config.model.name, data.image, len(data.classes), **config.model.options)
    return sum(4 * p.numel() for p in module.parameters())
