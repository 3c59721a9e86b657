"""Who holds which pictures: pure functions from labels, domains and seeds to row numbers.

Rows are given in the order in which they are to be dealt, and come back in it; domains and clients go by name. So
nothing here depends on the order of a mapping, and a domain's share of the work depends on its own name alone.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import seeds
from ..core.errors import DataError

Rows = dict[str, Tensor]  # domain -> row numbers
Deal = dict[str, Rows]  # client, or whoever holds them -> its rows
Plan = dict[str, dict[str, int]]  # client -> home -> which piece of that home it holds
PerDomain = Mapping[str, Tensor]  # one number for each picture of each domain: labels, or content
Law = Literal["even", "dirichlet", "power"]
Part = Literal["train", "val", "test"]
PARTS: tuple[Part, ...] = ("train", "val", "test")


class _Flat(NamedTuple):
    """The pictures of a holding in one line, domains by name."""

    names: list[str]
    domain: Tensor
    row: Tensor
    label: Tensor

    @property
    def stratum(self) -> Tensor:
        """One number for each pair of domain and class."""
        return self.domain * (int(self.label.max()) + 1 if len(self.label) else 1) + self.label

    def take(self, mask: Tensor) -> Rows:
        """The rows where `mask` holds; domains without any are left out."""
        parts = {name: self.row[mask & (self.domain == i)] for i, name in enumerate(self.names)}
        return {name: rows for name, rows in parts.items() if len(rows)}


def _flat(rows: Rows, values: PerDomain) -> _Flat:
    names = sorted(rows)
    domain = _cat(torch.full_like(rows[name], i) for i, name in enumerate(names))
    return _Flat(names, domain, _cat(rows[n] for n in names), _cat(values[n][rows[n]] for n in names))


def _cat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def union(holdings: Iterable[Rows]) -> Rows:
    """The rows of several holdings as one."""
    given = list(holdings)
    return {name: _cat(h[name] for h in given if name in h) for name in sorted({n for h in given for n in h})}


def count(rows: Rows) -> int:
    """How many pictures a holding has."""
    return sum(map(len, rows.values()))


def apportion(weights: Tensor, total: int) -> Tensor:
    """`total` pictures by weight, each share right to within one picture (largest remainders)."""
    exact = weights.double() / weights.double().sum() * total
    sizes = exact.floor().long()
    order = (exact - sizes).argsort(descending=True, stable=True)
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes


def spread(strata: Tensor, sizes: Tensor | Sequence[int], gen: torch.Generator) -> Tensor:
    """A piece for each picture: pieces of exactly these sizes, each with the whole's mix of strata.

    Pictures stand in line stratum by stratum, shuffled within; each piece takes its number of them at even distances.
    """
    sizes = torch.as_tensor(sizes)
    line = torch.randperm(len(strata), generator=gen)
    line = line[strata[line].argsort(stable=True)]
    places = torch.cat([(torch.arange(int(n)).double() + 0.5) / int(n) for n in sizes])
    piece = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[places.argsort(stable=True)]
    return torch.empty_like(piece).index_copy_(0, line, piece)


def split(pool: Rows, labels: PerDomain, content: PerDomain, val: float, test: float, seed: int) -> dict[Part, Rows]:
    """Hold out these shares of every domain, stratified by class; copies of a picture lie in one part.

    Of pictures with the same content the first (by domain, then in the order given) is dealt, and its copies follow
    it. Each domain's shares are exact to within one picture, and a class keeps a picture to train on.
    """
    flat, first = _flat(pool, labels), _first_of_each(_flat(pool, content).label)
    part = torch.zeros_like(flat.row)
    for i, name in enumerate(flat.names):
        mine = torch.nonzero((flat.domain == i) & (first == torch.arange(len(first)))).flatten()
        held = round(val * len(mine)), round(test * len(mine))
        part[mine] = _held_out(flat.label[mine], held, seeds.generator(seed, "split", name))
    return {name: flat.take(part[first] == i) for i, name in enumerate(PARTS)}


def _first_of_each(content: Tensor) -> Tensor:
    """For each picture the position of the first that has its content."""
    found, group = torch.unique(content, return_inverse=True)
    n = len(content)
    return torch.full((len(found),), n).scatter_reduce(0, group, torch.arange(n), "amin")[group]


def _held_out(labels: Tensor, held: tuple[int, int], gen: torch.Generator) -> Tensor:
    """0, 1 or 2 for train, val or test; a class that lost all its pictures gets one back."""
    test = min(held[1], len(labels))
    val = min(held[0], len(labels) - test)
    part = spread(labels, [len(labels) - val - test, val, test], gen)
    lost = torch.unique(labels[~torch.isin(labels, labels[part == 0])])
    for c in lost.tolist():
        part[torch.nonzero(labels == c)[0]] = 0
    return part


def official(pool: Rows, labels: PerDomain, lists: PerDomain, val: float, test: float, seed: int) -> dict[Part, Rows]:
    """The authors' lists (0 train, 1 val, 2 test, -1 unlisted, which is left aside).

    A part that a domain's lists lack is held out of its training list, stratified, as this share of all it lists.
    """
    parts: dict[Part, Rows] = {name: {} for name in PARTS}
    for domain in sorted(pool):
        rows, code = pool[domain], lists[domain][pool[domain]].long()
        shares = [0.0 if bool((code == i).any()) else share for i, share in ((1, val), (2, test))]
        held = round(shares[0] * int((code >= 0).sum())), round(shares[1] * int((code >= 0).sum()))
        train = torch.nonzero(code == 0).flatten()
        code[train] = _held_out(labels[domain][rows[train]], held, seeds.generator(seed, "split", domain))
        for i, name in enumerate(PARTS):
            parts[name] |= {domain: rows[code == i]} if bool((code == i).any()) else {}
    return parts


def settle(parts: Sequence[Rows], content: PerDomain) -> list[Rows]:
    """Take from each part what has a copy in a part named before it."""
    seen, kept = torch.empty(0, dtype=torch.int64), list[Rows]()
    for rows in parts:
        flat = _flat(rows, content)
        kept.append(flat.take(~torch.isin(flat.label, seen)))
        seen = torch.cat([seen, flat.label])
    return kept


def leave_one_out(domains: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Each domain in turn with those that stay."""
    names = sorted(domains)
    return {gone: tuple(n for n in names if n != gone) for gone in names}


def per_domain(domains: Iterable[str], clients: int = 1) -> Plan:
    """So many clients for each domain, which share it and hold nothing else."""
    return {name if clients == 1 else f"{name}-{i}": {name: i} for name in sorted(domains) for i in range(clients)}


def allocation(sizes: Mapping[str, int], clients: int, each: int, seed: int) -> Plan:
    """HFedF's Algorithm 5: every one of `clients` clients holds pieces of exactly `each` different domains.

    The N d pieces are shared out evenly, the largest domains get one more where that does not come out even; in `each`
    passes every client takes the next piece. The algorithm is deterministic while the paper's text says random, so the
    order of domains and of clients is drawn by the seed.
    """
    total = clients * each
    if not each <= len(sizes) <= total:
        raise DataError(
            f"data.domains_per_client: found {each} for {clients} clients and {len(sizes)} domains, expected at most "
            f"{len(sizes)}, and clients times domains_per_client at least {len(sizes)}, so that every domain has an "
            "owner; change data.clients or data.domains_per_client."
        )
    gen = seeds.generator(seed, "allocation")
    names = sorted(sizes)
    names = [names[i] for i in torch.randperm(len(names), generator=gen).tolist()]
    pieces = _numbers_of_pieces(names, sizes, total)
    queue = iter([(name, i) for name in names for i in range(pieces[name])])
    holds: list[dict[str, int]] = [{} for _ in range(clients)]
    for _ in range(each):
        for held in holds:
            name, i = next(queue)
            held[name] = i
    order = torch.randperm(clients, generator=gen).tolist()
    return {f"client-{i:0{len(str(clients - 1))}d}": holds[order[i]] for i in range(clients)}


def _numbers_of_pieces(names: Sequence[str], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    least, more = divmod(total, len(names))
    largest = sorted(names, key=lambda name: -sizes[name])[:more]
    return {name: least + (name in largest) for name in names}


@dataclass(frozen=True)
class Skew:
    """How unlike the pieces of one home are in labels and in size.

    `label` is the alpha of a Dirichlet over the pieces, drawn for each class; the smaller, the more skewed; 0 is off.
    `quantity` is the alpha of a Dirichlet over the pieces (`dirichlet`), or the exponent s of sizes that fall as
    1, 2^-s, 3^-s, ... in an order drawn by the seed (`power`).
    """

    label: float = 0.0
    law: Law = "even"
    quantity: float = 1.0

    def weights(self, classes: int, pieces: int, seed: int) -> Tensor:
        """Weights of the pieces: one line for all pictures, or with label skew one line for each class."""
        rng = np.random.default_rng(seeds.derive(seed, "skew"))
        size = torch.ones(pieces, dtype=torch.float64)
        if self.law == "dirichlet":
            size = torch.from_numpy(rng.dirichlet([self.quantity] * pieces))
        elif self.law == "power":
            size = torch.from_numpy(rng.permutation(np.arange(1.0, pieces + 1) ** -self.quantity))
        if not self.label:
            return size[None]
        lines = torch.from_numpy(rng.dirichlet([self.label] * pieces, size=classes)) * size
        # A Dirichlet with a tiny alpha may give all its weight to a piece of weight nearly 0.
        return torch.where(lines.sum(1, keepdim=True) > 0, lines, size)


def cut(rows: Rows, labels: PerDomain, weights: Tensor, least: int, seed: int) -> list[Rows]:
    """A holding in pieces by weight; domains and classes are spread evenly as far as the weights allow.

    A piece with fewer than `least` pictures is filled up, one at a time, from the commonest class of the largest piece.
    """
    flat = _flat(rows, labels)
    line = flat.label if len(weights) > 1 else torch.zeros_like(flat.label)
    lines = torch.split(line.argsort(stable=True), torch.bincount(line, minlength=len(weights)).tolist())
    sizes = torch.stack([apportion(w, len(here)) for w, here in zip(weights, lines, strict=True)])
    sizes = _filled_up(sizes, least)
    gen, stratum, piece = seeds.generator(seed, "cut"), flat.stratum, torch.empty_like(flat.row)
    for here, size in zip(lines, sizes, strict=True):
        piece[here] = spread(stratum[here], size, gen)
    return [flat.take(piece == i) for i in range(weights.shape[1])]


def _filled_up(sizes: Tensor, least: int) -> Tensor:
    """Sizes by line and piece, moved until each piece has `least`."""
    if int(sizes.sum()) < least * sizes.shape[1]:
        raise DataError(
            f"found {int(sizes.sum())} training images for {sizes.shape[1]} clients, expected at least {least} for "
            "each; lower data.clients_per_domain or data.clients, data.least, data.val or data.test."
        )
    while int(sizes.sum(0).min()) < least:
        poor, rich = int(sizes.sum(0).argmin()), int(sizes.sum(0).argmax())
        common = int(sizes[:, rich].argmax())
        sizes[common, rich] -= 1
        sizes[common, poor] += 1
    return sizes


def dealt(pool: Deal, labels: PerDomain, plan: Plan, skew: Skew, least: int, seed: int, part: Part = "train") -> Deal:
    """Every home's pictures to the clients that hold a piece of it; the skew is the same in every part."""
    classes = 1 + max(int(values.max()) for values in labels.values() if len(values))
    pieces: dict[str, list[Rows]] = {}
    for home in sorted(pool):
        number = sum(home in held for held in plan.values())
        weights = skew.weights(classes, number, seeds.derive(seed, "deal", home))
        try:
            pieces[home] = cut(pool[home], labels, weights, least, seeds.derive(seed, "deal", home, part))
        except DataError as error:
            raise DataError(f"domain {home}: {error}") from None
    return {
        client: union(pieces[home][i] for home, i in held.items() if home in pieces) for client, held in plan.items()
    }


def mixed(pool: Deal, labels: PerDomain, share: float, seed: int) -> Deal:
    """The heterogeneity dial: each holder gives this share of its pictures, and gets as many of all that was given.

    What is given, and what is got, is stratified by domain and class. So 0 changes nothing, sizes never change, and at
    1 every holder has the mix of domains and classes of the whole.
    """
    kept, given = Deal(), Deal()
    for home in sorted(pool):
        flat = _flat(pool[home], labels)
        gives = round(share * len(flat.row))
        goes = spread(flat.stratum, [len(flat.row) - gives, gives], seeds.generator(seed, "give", home))
        kept[home], given[home] = flat.take(goes == 0), flat.take(goes == 1)
    flat = _flat(union(given.values()), labels)
    gets = spread(flat.stratum, [count(rows) for rows in given.values()], seeds.generator(seed, "get"))
    return {home: union([kept[home], flat.take(gets == i)]) for i, home in enumerate(given)}


def thinned(rows: Rows, labels: PerDomain, share: float, seed: int) -> Rows:
    """This share of each domain, stratified by class."""
    return {name: _thinned(rows[name], labels[name], share, seeds.generator(seed, "thin", name)) for name in rows}


def _thinned(rows: Tensor, labels: Tensor, share: float, gen: torch.Generator) -> Tensor:
    keep = round(share * len(rows))
    return rows[spread(labels[rows], [keep, len(rows) - keep], gen) == 0]


def at_most(deal: Deal, limit: int, seed: int) -> Deal:
    """A random subset of each client's pictures, no larger than `limit`; 0: all."""
    if not limit:
        return deal
    return {client: _some(rows, limit, seeds.generator(seed, "limit", client)) for client, rows in deal.items()}


def truncated(train: Deal, content: PerDomain, share: float, val: float, seed: int) -> tuple[Deal, Deal]:
    """FedBN's protocol: every client has as few training pictures as the smallest one's share, so all have as many.

    With n the smallest client's number, floor(share n) pictures of each shuffled list train and floor(val n) others
    validate; the rest, and a copy of what validates anywhere, is left aside.
    """
    n = min(map(count, train.values()))
    first, last = (int(s * n + 1e-9) for s in (share, val))  # 0.29 * 100 is 28.999...
    tails = {c: _some(rows, last, seeds.generator(seed, "truncate val", c)) for c, rows in train.items()}
    held = union(tails.values())
    rest = {c: settle([held, rows], content)[1] for c, rows in train.items()}
    return {c: _some(rows, first, seeds.generator(seed, "truncate", c)) for c, rows in rest.items()}, tails


def _some(rows: Rows, number: int, gen: torch.Generator) -> Rows:
    """So many pictures at random, or all."""
    place, chosen, start = torch.randperm(count(rows), generator=gen), Rows(), 0
    for domain in sorted(rows):
        mine = place[start : start + len(rows[domain])] < number
        start += len(mine)
        chosen |= {domain: rows[domain][mine]} if bool(mine.any()) else {}
    return chosen


def shots(unseen: Rows, labels: PerDomain, clients: Iterable[str], each: int, seed: int) -> tuple[Deal, Rows]:
    """`each` labelled pictures of every unseen domain for each client, no picture twice, and what is left of it."""
    names = sorted(clients)
    held, left = list[Deal](), Rows()
    for domain in sorted(unseen):
        rows, rest = unseen[domain], len(unseen[domain]) - each * len(names)
        if rest < 1:
            raise DataError(
                f"data.shots: found {len(rows)} images in domain {domain}, expected more than {each} for each of "
                f"{len(names)} clients, since the rest is what is scored; lower data.shots."
            )
        piece = spread(labels[domain][rows], [each] * len(names) + [rest], seeds.generator(seed, "shots", domain))
        held.append({name: {domain: rows[piece == i]} for i, name in enumerate(names)})
        left[domain] = rows[piece == len(names)]
    return {name: union(part[name] for part in held) for name in names}, left


def newcomer(pool: Rows, labels: PerDomain, content: PerDomain, share: float, seed: int) -> tuple[Rows, Rows]:
    """An unseen site's pictures: those that it may use without their labels, and those that are scored."""
    parts = split(pool, labels, content, 0.0, 1 - share, seeds.derive(seed, "newcomer"))
    return (parts["train"], parts["test"]) if share else ({}, pool)


def content_of(images: Tensor) -> Tensor:
    """A 64-bit hash of each picture's pixels."""
    pixels = images.cpu().contiguous().numpy()
    digests = b"".join([hashlib.blake2b(image, digest_size=8).digest() for image in pixels])
    return torch.from_numpy(np.frombuffer(digests, ">i8").astype(np.int64))


def assert_disjoint(train: Deal, val: Deal, test: Deal, content: PerDomain) -> None:
    """Refuse a picture, known by its content, that lies in two parts; the first clash is named."""
    parts = dict(zip(PARTS, (train, val, test), strict=True))
    keys = {part: _flat(union(deal.values()), content).label for part, deal in parts.items()}
    for one, two in combinations(PARTS, 2):
        clash = keys[one][torch.isin(keys[one], keys[two])]
        if len(clash):
            pictures = (_found(parts[part], content, int(clash[0]), part) for part in (one, two))
            raise DataError(
                f"{' and '.join(pictures)}: found the same content, expected training, validation and test to share "
                "no picture; deal the pictures with fedshift.data.protocols.deal, which keeps copies on one side."
            )


def _found(deal: Deal, content: PerDomain, key: int, part: str) -> str:
    """Where the first picture of that content lies, in words."""
    places = ((site, name, r) for site, rows in deal.items() for name, r in rows.items())
    hits = ((site, name, r[content[name][r] == key]) for site, name, r in places)
    site, name, row = next(hit for hit in hits if len(hit[2]))
    return f"picture {int(row[0])} of domain {name} ({part}, site {site})"


def split_hash(deal: Deal) -> str:
    """Sixteen hexadecimal digits that name a deal, whatever the order of clients, domains and rows."""
    total = hashlib.sha256()
    for client in sorted(deal):
        for domain in sorted(deal[client]):
            total.update(f"{client}\x1f{domain}\x1f{len(deal[client][domain])}\x1e".encode())
            total.update(deal[client][domain].sort().values.numpy().astype("<i8").tobytes())
    return total.hexdigest()[:16]
