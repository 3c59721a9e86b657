"""What is wrong with a copy of a data set: pictures missing, unreadable, there more than once, or not what they seem.

Near duplicates are proposed by a 64-bit difference hash (which of two neighbours on a 9 x 8 grid is brighter) and
confirmed by the pixels, since pictures on a plain ground share most bits of it. Two hashes that differ in at most k
bits agree in one of k + 1 bands of bits, so that only pictures that share a band are compared.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_low

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ..core.errors import DataError
from .containers import open_container
from .dataset import Source
from .decode import Unreadable, facts
from .looking import hashes
from .manifest import Manifest, Row
from .store import Store, open_store
from .unpack import Progress

SIZE = 32  # pixels a side at which pictures are compared, the whole picture squashed into them
NEAR = 4  # bits of the difference hash in which near duplicates may differ
ALIKE = 0.25  # and by how much their pixels may (root mean square), in standard deviations of the picture
STEP = 2.0  # levels between neighbours that count as a difference, above the noise of JPEG
BATCH = 1024
CELLS = 1 << 21  # pairs that are compared at once: bounds the memory
HEADERS = 1000  # pictures whose sizes are looked up, spread over the set
SHOWN = 3  # examples of each kind


@dataclass(frozen=True)
class Copies:
    """Groups of pictures that are the same in one sense, and what their members disagree on."""

    kind: str
    groups: int
    pictures: int
    one_class: int  # groups whose members have one label
    conflicts: int  # groups with more than one label
    across_domains: int
    across_splits: int
    examples: tuple[tuple[str, ...], ...]  # paths; those with conflicts first


@dataclass(frozen=True)
class Look:
    """What the pictures of a domain are like."""

    pictures: int
    greyscale: int  # as they look, also if stored as colour
    flat: int  # of one colour
    sides: tuple[int, int, int] | None  # smallest, median and largest side among some of them


@dataclass(frozen=True)
class Report:
    """All that was found; `problems` contradict the publication or let test pictures into training."""

    name: str
    where: str
    classes: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]  # pictures per class, by domain
    published: Mapping[str, tuple[int, ...] | int]
    undecodable: tuple[tuple[str, str], ...]  # path and reason
    copies: tuple[Copies, ...]
    looks: Mapping[str, Look]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> str:
        """Everything, in one line."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def text(self) -> str:
        """For people."""
        n = sum(map(sum, self.counts.values()))
        parts = [
            f"{self.name}: {n:,} pictures of {len(self.classes)} classes in {len(self.counts)} domains\n{self.where}",
            _table(
                ("domain", "pictures", "published", "greyscale", "one colour", "sides"), map(self._row, self.counts)
            ),
            _table(
                ("copies", "groups", "pictures", "in one class", "label conflicts", "across domains", "across splits"),
                ([c.kind, *map(_number, list(asdict(c).values())[1:7])] for c in self.copies),
            ),
        ]
        for head, lines in (("problems", self.problems), ("remarks", self.remarks)):
            parts.append("\n".join([f"{head}:", *(f"  - {line}" for line in lines)]) if lines else f"{head}: none")
        return "\n\n".join(parts)

    def _row(self, domain: str) -> list[str]:
        look = self.looks.get(domain, Look(0, 0, 0, None))
        published = _number(total(self.published[domain])) if domain in self.published else ""
        grey = f"{100 * look.greyscale / look.pictures:.1f} %" if look.pictures else ""
        sides = "{} to {}, median {}".format(*(look.sides[k] for k in (0, 2, 1))) if look.sides else ""
        return [domain, _number(sum(self.counts[domain])), published, grey, _number(look.flat), sides]


def verify(
    manifest: Manifest, source: Source | None = None, progress: Progress | None = None, store: Store | None = None
) -> Report:
    """Compare a copy with what is published of it, and look for pictures that should not be there or not twice.

    All files are read again, to see that they are those that were imported. `store` holds their pictures; by default
    they are decoded at 32 pixels.
    """
    _unchanged(manifest, progress)
    store = store or open_store(manifest, SIZE, "squash", progress=progress)
    counted = counts(manifest)
    published = dict(source.counts) if source else {}
    copies = _copies(manifest, store)
    looks = {domain: _look(manifest, store, domain) for domain in counted}
    undecodable = tuple((row.path, reason) for row, reason in store.skipped)
    problems = [*_differences(manifest, source, counted), *_unusable(undecodable), *_leaks(copies)]
    return Report(
        manifest.name, str(manifest.root), manifest.classes, counted, published, undecodable, copies, looks,
        tuple(problems), tuple(_remarks(manifest, store, counted, copies, looks)),
    )  # fmt: skip


def _unchanged(manifest: Manifest, progress: Progress | None) -> None:
    changed = []
    with open_container(manifest.root) as container:
        for done, row in enumerate(manifest.rows, 1):
            try:
                if row.sha256 not in ("", *hashes(container, [row.path], None)):
                    changed.append(row.path)
            except (DataError, OSError):
                changed.append(row.path)
            if progress:
                progress(done, len(manifest.rows))
    if changed:
        raise DataError(
            f"{manifest.root}: {len(changed):,} of {len(manifest.rows):,} pictures are gone or not those that were "
            f"imported ({_some(changed)}); bring them back, or import the data set again."
        )


def counts(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Pictures per class, by domain."""
    found = Counter((row.domain, row.label) for row in manifest.rows)
    return {d: tuple(found[d, k] for k in range(len(manifest.classes))) for d in manifest.domains}


def total(count: tuple[int, ...] | int) -> int:
    """Of a domain's published numbers."""
    return count if isinstance(count, int) else sum(count)


# ------------------------------------------------------------------------------------------ what is said about it


def _differences(manifest: Manifest, source: Source | None, found: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    if source is None or not source.counts:
        return
    for domain in [*source.counts, *(d for d in found if d not in source.counts)]:
        here, there = found.get(domain, ()), source.counts.get(domain, 0)
        by_class = isinstance(there, tuple) and here and manifest.classes == source.classes
        differ = [
            f"{name} {a} for {b}" for name, a, b in zip(manifest.classes, here, there, strict=True) if a != b
        ] if by_class and isinstance(there, tuple) else []  # fmt: skip
        if differ or sum(here) != total(there):
            where = f" ({_some(differ)})" if differ else ""
            yield f"{domain}: {sum(here):,} pictures, published are {total(there):,}{where}"


def _unusable(undecodable: Sequence[tuple[str, str]]) -> Iterator[str]:
    if undecodable:
        yield f"cannot be decoded: {_some([f'{path} ({reason})' for path, reason in undecodable])}"


def _leaks(copies: Sequence[Copies]) -> Iterator[str]:
    for c in copies[:2]:  # what is only nearly the same is a remark
        if c.across_splits:
            yield f"{c.across_splits:,} groups of pictures with {c.kind} lie in more than one part of the split"


def _remarks(
    manifest: Manifest,
    store: Store,
    found: Mapping[str, tuple[int, ...]],
    copies: Sequence[Copies],
    looks: Mapping[str, Look],
) -> Iterator[str]:
    for k, c in enumerate(copies):
        if c.groups and replace(c, kind="") not in [replace(before, kind="") for before in copies[:k]]:
            what = f"{c.conflicts:,} with conflicting labels, {c.across_domains:,} across domains"
            what += f", {c.across_splits:,} across the parts of the split" if c.across_splits else ""
            yield f"{c.groups:,} groups of pictures with {c.kind}, {what}; such as {' = '.join(c.examples[0][:4])}"
    for domain, numbers in found.items():
        if empty := [name for name, n in zip(manifest.classes, numbers, strict=True) if not n]:
            yield f"{domain}: no picture of {_some(empty)}"
    for domain, look in looks.items():
        if look.flat:
            yield f"{domain}: {look.flat:,} pictures of one colour"
        if 0 < look.greyscale < look.pictures:
            yield f"{domain}: {look.greyscale:,} of {look.pictures:,} pictures are greyscale"
    yield from (f"{n:,} pictures: {note}" for note, n in sorted(store.notes.items()))
    if manifest.left_out:
        yield left_out(manifest)


def left_out(manifest: Manifest) -> str:
    """What lies beside the pictures and was not looked at."""
    return f"left out when imported: {_some([f'{path} ({reason})' for path, reason in manifest.left_out])}"


# ------------------------------------------------------------------------------------------ pictures more than once


def _copies(manifest: Manifest, store: Store) -> tuple[Copies, ...]:
    known = [row for row in manifest.rows if row.sha256]
    exact = _groups(known, [row.sha256 for row in known])
    content = store.content.tolist()
    same = _groups(store.rows, content)
    firsts = list(dict(zip(reversed(content), range(len(content) - 1, -1, -1), strict=True)).values())[::-1]
    joined = _joined(firsts, near_pairs(store.images, firsts))
    of = {content[i]: joined[i] for i in firsts}
    near = _groups(store.rows, [of[c] for c in content])
    varied = [group for group in near if len({content[i] for i in group}) > 1]
    return (
        _summary("identical bytes", known, exact),
        _summary("identical pixels", store.rows, same),
        _summary("nearly the same pixels", store.rows, varied),
    )


def _groups(rows: Sequence[Row], keys: Sequence[Hashable]) -> list[list[int]]:
    members = defaultdict[Hashable, list[int]](list)
    for i, key in zip(range(len(rows)), keys, strict=True):
        members[key].append(i)
    return [group for group in members.values() if len(group) > 1]


def _summary(kind: str, rows: Sequence[Row], groups: list[list[int]]) -> Copies:
    members = [[rows[i] for i in group] for group in groups]
    labels = [len({row.label for row in group}) for group in members]
    examples = [members[k] for k in sorted(range(len(members)), key=lambda k: -labels[k])[:SHOWN]]
    return Copies(
        kind,
        len(members),
        sum(map(len, members)),
        sum(n == 1 for n in labels),
        sum(n > 1 for n in labels),
        sum(len({row.domain for row in group}) > 1 for group in members),
        sum(len({row.split for row in group} - {""}) > 1 for group in members),
        tuple(tuple(row.path for row in group) for group in examples),
    )


def near_pairs(images: Tensor, which: Sequence[int], near: int = NEAR) -> list[tuple[int, int]]:
    """Pairs among these pictures whose hashes differ in at most `near` bits and whose pixels agree."""
    rows = np.asarray(which, np.int64)
    hashed = np.concatenate([_hash(images[part]) for part in np.array_split(rows, len(rows) // BATCH + 1)])
    bands = [np.bitwise_or.reduce(np.uint64(1) << b.astype(np.uint64)) for b in np.array_split(np.arange(64), near + 1)]
    pairs: list[tuple[int, int]] = []
    for k, band in enumerate(bands):
        keys = hashed & band
        order = np.argsort(keys, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for a, b in _close(hashed, run, near, bands[:k]) if len(run) > 1 else ():
                agree = _agree(images, rows[a], rows[b])
                pairs += zip(rows[a][agree].tolist(), rows[b][agree].tolist(), strict=True)
    return pairs


def _hash(images: Tensor) -> NDArray[np.uint64]:
    grid = adaptive_avg_pool2d(images.float().mean(1), (8, 9))
    bits = (grid[:, :, 1:] - grid[:, :, :-1] > STEP).flatten(1).numpy()
    return np.packbits(bits, axis=1).view(np.uint64)[:, 0]


def _close(
    hashed: NDArray[np.uint64], run: NDArray[np.int64], near: int, before: Sequence[np.uint64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs in a run within `near` bits, some at a time; those that share one of the bands before had their turn."""
    step = max(1, CELLS // len(run))
    for start in range(0, len(run), step):
        block = run[start : start + step]
        differ = hashed[block, None] ^ hashed[None, run[start:]]
        wanted = np.triu(np.bitwise_count(differ) <= near, 1)
        for band in before:
            wanted &= (differ & band) != 0
        a, b = np.nonzero(wanted)
        for part in range(0, len(a), BATCH):
            yield block[a[part : part + BATCH]], run[start + b[part : part + BATCH]]


def _agree(images: Tensor, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    first, second = images[a].float().flatten(1), images[b].float().flatten(1)
    found: NDArray[np.bool_] = ((first - second).square().mean(1).sqrt() <= ALIKE * first.std(1)).numpy()
    return found


def _joined(nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """One member of its group for each node, where pairs are in one group."""
    parent = {i: i for i in nodes}

    def top(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for a, b in pairs:
        parent[top(a)] = top(b)
    return {i: top(i) for i in nodes}


# --------------------------------------------------------------------------------------------- what they look like


def _look(manifest: Manifest, store: Store, domain: str) -> Look:
    rows = [i for i, row in enumerate(store.rows) if row.domain == domain]
    grey = flat = 0
    for part in torch.split(torch.tensor(rows, dtype=torch.int64), BATCH):
        images = store.images[part]
        plain = (images == images[:, :1]).flatten(1).all(1)
        grey += int(plain.sum())
        flat += int((images == images[:, :, :1, :1]).flatten(1).all(1).sum())
    return Look(len(rows), grey, flat, _sides(manifest, domain))


def _sides(manifest: Manifest, domain: str) -> tuple[int, int, int] | None:
    paths = [row.path for row in manifest.of(domain)]
    found: list[int] = []
    with open_container(manifest.root) as container:
        for path in paths[:: len(paths) // HEADERS + 1]:
            try:
                pixels = container.array(path) if manifest.kind == "npz" else None
                found += facts(container.read(path))[:2] if pixels is None else pixels.shape[:2]
            except Unreadable:
                continue
    return (min(found), median_low(found), max(found)) if found else None


# -------------------------------------------------------------------------------------------------------- in words


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _number(n: int) -> str:
    return f"{n:,}"


def _table(heads: Sequence[str], rows: "Iterator[list[str]] | map[list[str]]") -> str:
    lines = [list(heads), *rows]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(wide[0]), *(c.rjust(w) for c, w in zip(line[1:], wide[1:], strict=True))])
        for line in lines
    )
