"""Which site holds which images: the protocol's part that concerns data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ..core import seeds
from ..core.errors import DataError
from .batches import Budget, ClientData
from .dataset import Dataset, Domain
from .pictures import Pictures
from .split import at_most, shares, stratified
from .transform import Transform


@dataclass(frozen=True)
class Held:
    """Held-out images of a site, or all images of an unseen one."""

    site: str
    domain: str
    pictures: Pictures
    labels: Tensor


Part = TypeVar("Part", ClientData, Held)


@dataclass(frozen=True)
class Federation:
    """Training data per site, held-out data per site, and the unseen sites; all in the same order of sites."""

    train: tuple[ClientData, ...]
    val: tuple[Held, ...]
    test: tuple[Held, ...]
    unseen: tuple[Held, ...]

    def to(self, device: torch.device) -> "Federation":
        """The same, with every image on `device`; on the CPU they stay where they are."""
        if device.type == "cpu":
            return self
        parts = (self.val, self.test, self.unseen)
        held = (tuple(_moved(h, device) for h in part) for part in parts)
        return Federation(tuple(_moved(site, device) for site in self.train), *held)

    def pooled(self) -> tuple[ClientData, ...]:
        """The union of all sites' training images, as one site."""
        first = self.train[0]
        pictures = Pictures.join([site.pictures for site in self.train])
        labels = torch.cat([site.labels for site in self.train])
        name = "+".join(site.name for site in self.train)
        return (ClientData(name, pictures, labels, first.budget, first.transform),)


def _moved(part: Part, device: torch.device) -> Part:
    return replace(part, pictures=part.pictures.gathered(device), labels=part.labels.to(device))


@dataclass(frozen=True)
class Protocol:
    """How a data set becomes a federation."""

    left_out: Sequence[str]
    clients_per_domain: int
    limit: int  # training images per client at most; 0: all
    val: float
    test: float
    seed: int


def federate(data: Dataset, protocol: Protocol, budget: Budget, transform: Transform) -> Federation:
    """One or more clients for each domain that is not left out; sites are sorted by name."""
    gone = [data.domain(name).name for name in protocol.left_out]
    stay = sorted((d for d in data.domains if d.name not in gone), key=lambda d: d.name)
    if not stay:
        raise DataError(
            f"data.left_out: found all {len(data.domains)} domains of {data.name}, expected at least one to stay "
            "for training; leave fewer out."
        )
    train, val, test = list[ClientData](), list[Held](), list[Held]()
    for domain in stay:
        split = stratified(
            domain.labels, protocol.val, protocol.test, seeds.derive(protocol.seed, "split", domain.name)
        )
        for site, (a, b, c) in _dealt(domain, split, protocol):
            a = at_most(a, protocol.limit, seeds.derive(protocol.seed, "limit", site))
            if not len(a):
                raise DataError(
                    f"site {site}: found no training image, expected at least one; lower data.clients_per_domain, "
                    f"data.val or data.test (domain {domain.name} has {len(domain.labels)} images)."
                )
            train.append(ClientData(site, Pictures.of(domain.images, a), domain.labels[a], budget, transform))
            val.append(Held(site, domain.name, Pictures.of(domain.images, b), domain.labels[b]))
            test.append(Held(site, domain.name, Pictures.of(domain.images, c), domain.labels[c]))
    unseen = tuple(Held(d.name, d.name, Pictures.of(d.images), d.labels) for d in map(data.domain, gone))
    return Federation(tuple(train), tuple(val), tuple(test), unseen)


def _dealt(domain: Domain, split: Sequence[Tensor], protocol: Protocol) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Each of the three parts dealt out to the domain's clients."""
    k = protocol.clients_per_domain
    names = [domain.name] if k == 1 else [f"{domain.name}-{i}" for i in range(k)]
    parts = [
        shares(part, domain.labels, k, seeds.derive(protocol.seed, "deal", domain.name, which))
        for which, part in zip(("train", "val", "test"), split, strict=True)
    ]
    return list(zip(names, zip(*parts, strict=True), strict=True))
