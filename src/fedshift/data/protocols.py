"""Protocols by name: which pictures train, select and test, at which site; and the papers' presets.

`deal` turns a data set and a `Protocol` into row numbers; its steps, in this order:

 1. domains in `left_out` become unseen sites; of the others `share` is used;
 2. every other domain is split into train, val and test, copies of a picture on one side;
 3. what has a copy in an unseen domain, or in a part that is held out, is set aside;
 4. each part is mixed between domains (`mixing`), then dealt to the clients, with skew;
 5. training lists are truncated or limited, and shots of the unseen domains are added.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import seeds
from ..core.bounds import Choice, Range
from ..core.errors import ConfigError, DataError
from . import partition
from .corrupt import CORRUPTIONS, SEVERITIES
from .dataset import Dataset, Domain
from .manifest import Row
from .partition import PARTS, Deal, Law, Part, Plan, Rows, Skew, count

Leak = Literal["no", "test-on-training-images"]


class Facts(NamedTuple):
    """What dealing needs to know of a domain's pictures, one number for each."""

    labels: Tensor
    content: Tensor  # a 64-bit hash; pictures of the same content are copies
    order: Tensor | None = None  # dealt in the order of these; else by content
    official: Tensor | None = None  # the authors' lists: 0 train, 1 val, 2 test, -1 unlisted

    def rows(self) -> Tensor:
        """All rows in an order that no file system decides."""
        rows = self.labels.argsort(stable=True)
        return rows[(self.content if self.order is None else self.order)[rows].argsort(stable=True)]


@dataclass(frozen=True)
class Protocol:
    """How a data set becomes a federation; every field at its default means one client for each domain."""

    domains: Annotated[tuple[str, ...], "domains that are used; none named: all"] = ()
    left_out: Annotated[tuple[str, ...], "domains that take no part in training"] = ()
    clients_per_domain: Annotated[int, Range(1), "clients among whom each domain's images are dealt out"] = 1
    domains_per_client: Annotated[int, Range(0), "each client holds parts of so many domains (hFedF); 0: of one"] = 0
    clients: Annotated[int, Range(0), "clients, with domains_per_client; 0: as many as domains"] = 0
    mixing: Annotated[float, Range(0, 1), "share of its images that each domain exchanges for a mix of all"] = 0.0
    label_skew: Annotated[
        float, Range(0), "alpha of a Dirichlet over a domain's clients for each class; smaller: more skewed; 0: off"
    ] = 0.0
    quantity_skew: Annotated[Law, "sizes of a domain's clients: even, drawn from a Dirichlet, or by a power law"] = (
        "even"
    )
    quantity: Annotated[
        float,
        Range(0, open_low=True),
        "alpha of the sizes' Dirichlet (smaller: more skewed), or the power law's exponent",
    ] = 1.0
    least: Annotated[int, Range(1), "training images that each client is left with by skew at least"] = 1
    split: Annotated[
        Literal["seeded", "official", "auto"],
        "drawn by the seed, by the authors' lists, or by these where there are any",
    ] = "seeded"
    split_seed: Annotated[int, Range(-1), "seed of split and deal; -1: the run's seed"] = -1
    val: Annotated[float, Range(0, 1, open_high=True), "share of a site's images held out for selection"] = 0.1
    test: Annotated[float, Range(0, 1, open_high=True), "share of a site's images held out for the result"] = 0.2
    share: Annotated[float, Range(0, 1, open_low=True), "share of each training domain that is used at all"] = 1.0
    limit: Annotated[int, Range(0), "training images per client at most; 0: all"] = 0
    truncate: Annotated[
        float, Range(0, 1), "training images of each client, as a share of the smallest client's (FedBN); 0: all"
    ] = 0.0
    truncate_val: Annotated[
        float, Range(0, 1), "validation images of each client, from the same lists, as a share of the same number"
    ] = 0.0
    shots: Annotated[int, Range(0), "labelled images of each left-out domain that each client trains on"] = 0
    adapt: Annotated[
        float, Range(0, 1, open_high=True), "share of a left-out domain's images that it may use without labels"
    ] = 0.0
    corruptions: Annotated[
        tuple[str, ...], Choice(lambda: CORRUPTIONS, "corruption"), "corruptions of the test images, as unseen sites"
    ] = ()
    severities: Annotated[tuple[int, ...], Range(1, 5), "of each corruption"] = SEVERITIES
    leak: Annotated[
        Leak, "with 'test-on-training-images' every site is scored on all its images, those it trains on included"
    ] = "no"

    def __post_init__(self) -> None:
        """Refuse what no field alone can show."""
        for wrong, sentence in self._faults():
            if wrong:
                raise ConfigError(sentence)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        for name in ("domains", "left_out", "corruptions", "severities"):
            values = getattr(self, name)
            yield len(set(values)) < len(values), f"{name} is {list(values)}; please name each once"
        yield (
            self.val + self.test >= 1,
            f"val + test is {self.val + self.test:g}; please leave something below 1 for training",
        )
        several = bool(self.domains_per_client)
        yield (
            several and self.clients_per_domain > 1,
            f"domains_per_client is {self.domains_per_client} and clients_per_domain {self.clients_per_domain}; "
            "please set clients instead of clients_per_domain",
        )
        yield (
            several and self.mixing > 0,
            f"domains_per_client is {self.domains_per_client} and mixing {self.mixing:g}, two dials for one thing; "
            "please set one of them to 0",
        )
        yield (
            bool(self.clients) and not several,
            f"clients is {self.clients} and domains_per_client 0; please set domains_per_client, or clients_per_domain "
            "instead of clients",
        )
        yield from self._faults_of_parts()

    def _faults_of_parts(self) -> Iterator[tuple[bool, str]]:
        alone = self.clients_per_domain == 1 and not self.domains_per_client
        yield (
            alone and (self.label_skew > 0 or self.quantity_skew != "even"),
            "label_skew or quantity_skew is set and each domain has one client; please raise clients_per_domain",
        )
        yield (
            self.truncate + self.truncate_val > 1 or (not self.truncate and self.truncate_val > 0),
            f"truncate is {self.truncate:g} and truncate_val {self.truncate_val:g}; please give truncate a share above "
            "0, and both together at most 1",
        )
        yield (
            self.truncate_val > 0 and self.val > 0,
            f"truncate_val is {self.truncate_val:g} and val {self.val:g}, two ways to hold out; please set one to 0",
        )
        yield (
            not self.left_out and (self.shots > 0 or self.adapt > 0),
            "shots or adapt is set and no domain is left out; please name one in left_out",
        )
        yield (
            self.leak != "no" and self.val + self.test > 0,
            f"leak is {self.leak!r} and val + test is {self.val + self.test:g}; please set both to 0, since nothing is "
            "held out",
        )


class Corrupted(NamedTuple):
    """An unseen site whose pictures are corrupted ones; `rows` are those of the originals."""

    kind: str
    severity: int
    rows: Rows


@dataclass(frozen=True)
class Dealt:
    """Row numbers, sorted: site -> domain -> rows."""

    train: Deal
    val: Deal
    test: Deal
    unseen: Deal  # of each left-out domain, what is scored
    adapt: Deal  # of each left-out domain, what its site may use without labels
    unused: Rows
    split: Mapping[str, str] = field(default_factory=dict)  # domain -> "seeded" or "official"
    corrupted: Mapping[str, Corrupted] = field(default_factory=dict)
    leak: bool = False

    def record(self) -> dict[str, Any]:
        """What belongs into a run's record."""
        deals = {"train": self.train, "val": self.val, "test": self.test, "unseen": self.unseen, "adapt": self.adapt}
        flat = {f"{part}/{site}": rows for part, deal in deals.items() for site, rows in deal.items()}
        return {
            "hash": partition.split_hash(flat),
            "images": {part: {site: count(rows) for site, rows in deal.items()} for part, deal in deals.items()},
            "unused": count(self.unused),
            "split": dict(self.split),
            "leak": self.leak,
        }


def known(data: Dataset) -> dict[str, Facts]:
    """The facts of a data set in memory."""

    def of(d: Domain) -> Facts:
        content = partition.content_of(d.images) if d.content is None else d.content
        return Facts(d.labels, content, d.order, d.official)

    return {d.name: of(d) for d in data.domains}


def facts_of(rows: Sequence[Row], content: Tensor) -> Facts:
    """The facts of one domain's pictures in a manifest; `content` is the hash of their decoded pixels.

    Pictures are dealt in the order of their files' SHA-256, so that a split is the same at every picture size.
    """
    keys = [int.from_bytes(bytes.fromhex(row.sha256)[:8], "big", signed=True) for row in rows]
    order = torch.tensor(keys, dtype=torch.int64) if all(row.sha256 for row in rows) else None
    lists = torch.tensor([PARTS.index(row.split) if row.split in PARTS else -1 for row in rows], dtype=torch.int64)
    return Facts(torch.tensor([row.label for row in rows], dtype=torch.int64), content, order, lists)


def leave_one_out(protocol: Protocol, domains: Mapping[str, object] | tuple[str, ...]) -> dict[str, Protocol]:
    """The protocol with each domain left out in turn."""
    return {gone: replace(protocol, left_out=(gone,)) for gone in partition.leave_one_out(domains)}


def deal(data: Dataset, protocol: Protocol, seed: int = 0, facts: Mapping[str, Facts] | None = None) -> Dealt:
    """The rows of every site; `facts` stand in for what `known` would find by hashing all pictures."""
    for name in (*protocol.domains, *protocol.left_out):
        data.domain(name)  # raises, with the nearest name, where there is no such domain
    return _Dealer(protocol, seed if protocol.split_seed < 0 else protocol.split_seed, facts or known(data)).run()


class _Dealer:
    """The steps of `deal`; what several of them need lies here."""

    def __init__(self, protocol: Protocol, seed: int, facts: Mapping[str, Facts]) -> None:
        self.p, self.seed, self.facts = protocol, seed, facts
        self.labels = {name: f.labels for name, f in facts.items()}
        self.content = {name: f.content for name, f in facts.items()}
        self.away = {name: facts[name].rows() for name in sorted(protocol.left_out)}
        self.pool = {name: facts[name].rows() for name in sorted(protocol.domains or facts) if name not in self.away}
        if not self.pool:
            raise DataError(
                f"data.left_out: found all {len(self.away)} domains, expected at least one to stay for training; "
                "leave fewer out."
            )
        self.plan, self.listed = self._plan(), self._listed()

    def run(self) -> Dealt:
        """All steps."""
        p, split = self.p, self._split()
        parts = {part: self._to_clients(split[part], part) for part in PARTS}
        train, val, test = (parts[part] for part in PARTS)
        if p.truncate:
            train, tails = partition.truncated(train, self.content, p.truncate, p.truncate_val, self.seed)
            val = tails if p.truncate_val else val
        train = partition.at_most(train, p.limit, self.seed)
        given, unseen, adapt = self._unseen()
        train = {site: partition.union([rows, given.get(site, {})]) for site, rows in train.items()}
        self._check(train, val, {} if self.leaks else test, unseen, adapt)
        return self._dealt(train, val, train if self.leaks else test, unseen, adapt)

    @property
    def leaks(self) -> bool:
        """Whether the protocol asks to be scored on training pictures."""
        return self.p.leak != "no"

    def _plan(self) -> Plan:
        p = self.p
        if p.domains_per_client:
            sizes = {name: len(rows) for name, rows in self.pool.items()}
            return partition.allocation(sizes, p.clients or len(sizes), p.domains_per_client, self.seed)
        return partition.per_domain(self.pool, p.clients_per_domain)

    def _listed(self) -> list[str]:
        """The domains that are split by the authors' lists."""
        lists = {name: f.official for name, f in self.facts.items()}
        found = [name for name in self.pool if (codes := lists[name]) is not None and bool((codes >= 0).any())]
        if self.p.split == "official" and len(found) < len(self.pool):
            lacking = sorted(set(self.pool) - set(found))
            raise DataError(
                f"data.split: found no official lists for {', '.join(lacking)}, expected them since split is "
                "'official'; import them with the data set, or set data.split to 'seeded' or 'auto'."
            )
        return found if self.p.split != "seeded" else []

    def _split(self) -> dict[Part, Rows]:
        """Three disjoint parts of all domains that stay, without what has a copy among unseen or held-out pictures."""
        p = self.p
        pool = self.pool if p.share == 1 else partition.thinned(self.pool, self.labels, p.share, self.seed)
        lists = {name: codes for name in self.listed if (codes := self.facts[name].official) is not None}
        by_list, by_seed = ({n: pool[n] for n in pool if (n in lists) is want} for want in (True, False))
        one = partition.official(by_list, self.labels, lists, p.val, p.test, self.seed)
        two = partition.split(by_seed, self.labels, self.content, p.val, p.test, self.seed)
        parts = [self.away] + [{**one[part], **two[part]} for part in reversed(PARTS)]
        _, test, val, train = partition.settle(parts, self.content)
        return {"train": train, "val": val, "test": test}

    def _to_clients(self, rows: Rows, part: Part) -> Deal:
        p, pool = self.p, {name: {name: rows[name]} if name in rows else {} for name in self.pool}
        if p.mixing:
            pool = partition.mixed(pool, self.labels, p.mixing, seeds.derive(self.seed, "mix", part))
        skew = Skew(p.label_skew, p.quantity_skew, p.quantity)
        return partition.dealt(pool, self.labels, self.plan, skew, p.least if part == "train" else 0, self.seed, part)

    def _unseen(self) -> tuple[Deal, Deal, Deal]:
        """Each client's shots, and what is left of the unseen domains to be scored and to adapt to."""
        p, given, left = self.p, Deal(), self.away
        if p.shots:
            given, left = partition.shots(left, self.labels, self.plan, p.shots, self.seed)
            left = partition.settle([partition.union(given.values()), left], self.content)[1]
        adapt, test = partition.newcomer(left, self.labels, self.content, p.adapt, self.seed)
        unseen = {name: {name: test[name]} if name in test else {} for name in self.away}
        return given, unseen, {name: {name: rows} for name, rows in adapt.items()}

    def _check(self, train: Deal, val: Deal, test: Deal, unseen: Deal, adapt: Deal) -> None:
        """The assertion of every run; it lets through the one leak that can be asked for, and nothing else."""
        poor = min(train, key=lambda site: count(train[site]))
        if not count(train[poor]):
            raise DataError(
                f"site {poor}: found no training image, expected at least one; lower data.val, data.test or the number "
                "of clients, or raise data.truncate."
            )
        away = {f"unseen {name}": rows for name, rows in unseen.items()}
        partition.assert_disjoint(train, val, {**test, **away}, self.content)
        partition.assert_disjoint(adapt, {}, away, self.content)

    def _dealt(self, train: Deal, val: Deal, test: Deal, unseen: Deal, adapt: Deal) -> Dealt:
        used = partition.union(rows for part in (train, val, test, unseen, adapt) for rows in part.values())
        everything = {name: torch.arange(len(self.labels[name])) for name in (*self.pool, *self.away)}
        unused = {n: rows[~torch.isin(rows, used.get(n, rows[:0]))] for n, rows in everything.items()}
        tested, steps = _tidy(partition.union(test.values())), self.p.severities
        return Dealt(
            _sorted(train),
            _sorted(val),
            _sorted(test),
            _sorted(unseen),
            _sorted(adapt),
            unused={name: rows for name, rows in unused.items() if len(rows)},
            split={name: "official" if name in self.listed else "seeded" for name in self.pool},
            corrupted={f"{kind}-{n}": Corrupted(kind, n, tested) for kind in self.p.corruptions for n in steps},
            leak=self.leaks,
        )


def _tidy(rows: Rows) -> Rows:
    return {name: rows[name].sort().values for name in sorted(rows)}


def _sorted(parts: Deal) -> Deal:
    return {site: _tidy(rows) for site, rows in parts.items()}
