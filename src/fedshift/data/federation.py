"""Which site holds which pictures: a protocol's deal, as training data and held-out data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core import seeds
from .augment import Transform
from .batches import Budget, ClientData
from .corrupt import corrupt
from .dataset import Dataset
from .partition import Rows
from .pictures import Pictures, Resident, resident
from .protocols import Dealt, Protocol, deal


@dataclass(frozen=True)
class Held:
    """Held-out pictures of a site, or those of an unseen one."""

    site: str
    pictures: Pictures
    labels: Tensor
    corrupted: bool = False  # the sites' own, spoilt


Part = TypeVar("Part", ClientData, Held)


@dataclass(frozen=True)
class Federation:
    """Training and held-out pictures of each site, in the same order of sites, and the unseen sites.

    `adapt` holds what an unseen site may use without labels; `record` says how the pictures were split.
    """

    train: tuple[ClientData, ...]
    val: tuple[Held, ...]
    test: tuple[Held, ...]
    unseen: tuple[Held, ...]
    adapt: tuple[Held, ...]
    record: Mapping[str, Any]

    def to(self, device: torch.device) -> "Federation":
        """For a network on `device`: labels go there, and all pictures too if they fill no more than half of it."""
        if device.type == "cpu":
            return self
        held = (self.val, self.test, self.unseen, self.adapt)
        home = resident([site.pictures for part in (self.train, *held) for site in part], device)
        train = tuple(_moved(site, device, home) for site in self.train)
        val, test, unseen, adapt = (tuple(_moved(site, device, home) for site in part) for part in held)
        return Federation(train, val, test, unseen, adapt, self.record)

    def pooled(self) -> tuple[ClientData, ...]:
        """The union of all sites' training pictures, as one site."""
        first = self.train[0]
        pictures = Pictures.join([site.pictures for site in self.train])
        labels = torch.cat([site.labels for site in self.train])
        name = "+".join(site.name for site in self.train)
        return (ClientData(name, pictures, labels, first.budget, first.transform),)


def _moved(part: Part, device: torch.device, home: Resident | None) -> Part:
    pictures = part.pictures if home is None else home.moved(part.pictures)
    return replace(part, pictures=pictures, labels=part.labels.to(device))


def federate(data: Dataset, protocol: Protocol, seed: int, budget: Budget, transform: Transform) -> Federation:
    """Deal a data set to its sites by a protocol."""
    dealt = deal(data, protocol, seed)
    train = (ClientData(site, *_gather(data, rows), budget, transform) for site, rows in dealt.train.items())
    val, test, unseen, adapt = (
        tuple(Held(site, *_gather(data, rows)) for site, rows in part.items())
        for part in (dealt.val, dealt.test, dealt.unseen, dealt.adapt)
    )
    record = {**dealt.record(), "skipped": data.skipped}
    return Federation(tuple(train), val, test, (*unseen, *_corrupted(data, dealt, seed)), adapt, record)


def _gather(data: Dataset, rows: Rows) -> tuple[Pictures, Tensor]:
    """A site's pictures, which stay where they lie, and their labels."""
    parts = [(data.domain(name), index) for name, index in rows.items()]
    if not parts:
        first = data.domains[0]
        return Pictures.of(first.images, torch.arange(0)), first.labels[:0]
    pictures = Pictures.join([Pictures.of(domain.images, index) for domain, index in parts])
    return pictures, torch.cat([domain.labels[index] for domain, index in parts])


def _corrupted(data: Dataset, dealt: Dealt, seed: int) -> list[Held]:
    """The corruption ladders, each rung a site of its own."""
    held = []
    for name, rung in dealt.corrupted.items():
        pictures, labels = _gather(data, rung.rows)
        clean = pictures.take(torch.arange(len(labels))).cpu()
        spoilt = corrupt(clean, rung.kind, rung.severity, seeds.derive(seed, "corrupt", name))
        held.append(Held(name, Pictures.of(spoilt), labels, corrupted=True))
    return held
