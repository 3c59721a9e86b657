"""How many runs fit side by side on one GPU, and how many clients of a run on the cores of a CPU."""

from math import ceil, log2

import torch

from .. import models
from ..data import Dataset
from ..data.protocols import deal
from ..engines.together import MOST
from .config import Experiment

IN_FLIGHT = 18  # clients: 12 fill an H200, the others are there while some wait for their servers
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


GAIN = 1.75  # by how much a second thread speeds a step up, measured on networks that fill two cores


def cpu_workers(config: Experiment, data: Dataset, cores: int) -> int:
    """Clients side by side, one thread each, if that ends sooner than one after another with all threads."""
    if config.engine != "fast" or config.method.pools or cores < 2:
        return 1
    sizes = [sum(len(rows) for rows in site.values()) for site in deal(data, config.data, config.seed).train.values()]
    chosen = sizes[: max(1, ceil(config.federation.participation * len(sizes) - 1e-9))]
    busy = [0] * min(cores, len(chosen))
    for size in chosen:  # each to the first worker that is free
        busy[busy.index(min(busy))] += size
    pays = config.precision == "bf16" or sum(chosen) / max(busy) > GAIN ** log2(cores)  # bf16 has one thread anyway
    return len(busy) if pays and parameter_bytes(config, data) > 4 * MOST else 1
