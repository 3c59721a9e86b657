"""How fast pictures come: decoded, from the cache, and augmented; beside bare Pillow on the same pictures.

    FEDSHIFT_DATA=folder python -m benchmarks.feeding [--set pacs_128.tar] [--size 128] [--repeats 7] [--part 1]

`bare` reads, decodes and resizes with nothing but Pillow, in two processes that are ready before the clock starts, and
leaves the pixels in Pillow's hands; `bare, to arrays` ends in numpy. `torchvision` is its Resize, CenterCrop and
PILToTensor in two such processes, and its DomainBed recipe in one (`pip install --no-deps torchvision==0.28.0` is
enough beside a CPU build of torch; without it these rows are left out). `store` is everything that `open_store` does
with an empty cache: a second process is started, the archive looked through, and pictures are compared with the hashes
of their import, decoded, hashed and written. All are done in turn, and a ratio is that of neighbours in time. A busy
machine lengthens both; the ratio of processor seconds suffers least.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from fedshift.data.augment import Transform
from fedshift.data.containers import open_container
from fedshift.data.manifest import Manifest, Row
from fedshift.data.recipes import RECIPES
from fedshift.data.store import Store, clear, open_store

from . import tv
from .race import ratio

BATCH, AUGMENTED = 64, 1024
BARE = """
import io, json, os, resource, sys, time
from PIL import Image, JpegImagePlugin, PngImagePlugin
path, size, spans, end = json.loads(sys.stdin.readline())
if end == "arrays":
    import numpy
elif end == "torchvision":
    import torch
    from benchmarks import tv
    torch.set_num_threads(1)
    place = tv.placed(tv.transforms(), size)
file = os.open(path, os.O_RDONLY)
print(flush=True)
sys.stdin.readline()
began, spent = time.perf_counter(), time.process_time()
for offset, length in spans:
    picture = Image.open(io.BytesIO(os.pread(file, length, offset))).convert("RGB")
    if end == "torchvision":
        place(picture)
        continue
    short = min(picture.size)
    wide, high = (int(size * side / short) for side in picture.size)
    picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    picture = picture.crop((left, top, left + size, top + size))
    if end == "arrays":
        numpy.asarray(picture)
print(json.dumps([time.perf_counter() - began, time.process_time() - spent]))
"""


class Cost(NamedTuple):
    """Seconds by the clock, and of processors."""

    wall: float
    cpu: float


def bare(root: Path, size: int, spans: list[tuple[int, int]], end: str = "") -> Cost:
    """Two processes, each with every other picture; `end` is what the pixels end in."""
    command = [sys.executable, "-c", BARE]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for k, process in enumerate(both):
        print(json.dumps([str(root), size, spans[k::2], end]), file=process.stdin, flush=True)
    for process in both:
        process.stdout and process.stdout.readline()
    for process in both:
        print(file=process.stdin, flush=True)
    costs = [Cost(*json.loads(process.communicate()[0])) for process in both]
    return Cost(max(cost.wall for cost in costs), sum(cost.cpu for cost in costs))


def timed(act: Callable[[], object]) -> Cost:
    """What it costs, with the processes it starts."""
    began, spent = time.perf_counter(), sum(os.times()[:4])
    act()
    return Cost(time.perf_counter() - began, sum(os.times()[:4]) - spent)


def listed(root: Path, every: int) -> tuple[Manifest, list[tuple[int, int]]]:
    """The pictures of a tar, and where each lies."""
    with open_container(root) as container:
        names = container.names()[::every]
        rows = tuple(Row(name, "", 0, "", hashlib.sha256(container.read(name)).hexdigest()) for name in names)
        spans = [container.span(name) for name in names]
        return Manifest(root.stem, root, container.kind, ("one",), rows), [(s.offset, s.size) for s in spans]


def augmented(images: torch.Tensor, order: torch.Tensor) -> None:
    """Batches with DomainBed's augmentation."""
    transform, gen = Transform(RECIPES["domainbed"], torch.float32), torch.Generator().manual_seed(0)
    for batch in torch.split(order[:AUGMENTED], BATCH):
        transform.train(images[batch], gen)


def measured(manifest: Manifest, spans: list[tuple[int, int]], size: int, cache: Path) -> Iterator[tuple[str, Cost]]:
    """Everything once, from an empty cache."""

    def opened() -> Store:
        return open_store(manifest, size, cache=cache, workers=2)

    clear(cache)
    yield "bare", bare(manifest.root, size, spans)
    for name in ("store", "check again", "open again"):
        yield name, timed(opened)
    yield "bare, to arrays", bare(manifest.root, size, spans, "arrays")
    library = tv.transforms()
    if library:
        yield "torchvision", bare(manifest.root, size, spans, "torchvision")
    images, order = opened().images, torch.randperm(len(manifest.rows))
    yield "read batches", timed(lambda: [images[batch] for batch in torch.split(order, BATCH)])
    yield "augment", timed(lambda: augmented(images, order))
    if library:
        chain = tv.domainbed(library, size)
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images[order[:AUGMENTED]]]
        yield "its augment", timed(lambda: [tv.one_by_one(chain, pictures[k : k + BATCH]) for k in _starts(pictures)])


def _starts(pictures: list[Image.Image]) -> range:
    return range(0, len(pictures), BATCH)


def main(argv: list[str] | None = None) -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="pacs_128.tar", help="a tar in $FEDSHIFT_DATA")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--part", type=int, default=1, help="take every so many pictures")
    parser.add_argument("--out", type=Path, help="the medians as JSON")
    args = parser.parse_args(argv)
    if "FEDSHIFT_DATA" not in os.environ:
        sys.exit("FEDSHIFT_DATA: not set, expected the folder with the data; set it and run again.")
    torch.set_num_threads(1)
    manifest, spans = listed(Path(os.environ["FEDSHIFT_DATA"]) / args.set, args.part)
    costs = defaultdict[str, list[Cost]](list)
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(args.repeats):
            for name, cost in measured(manifest, spans, args.size, Path(cache)):
                costs[name].append(cost)
    show(costs, len(spans))
    if args.out:
        found = {"set": args.set, "size": args.size, "repeats": args.repeats, **told(costs, len(spans))}
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def told(costs: dict[str, list[Cost]], n: int) -> dict[str, object]:
    """Medians, and ratios of neighbours in time with the middle half."""
    rows = {}
    for name, those in costs.items():
        wall, cpu = (statistics.median(cost[k] for cost in those) for k in (0, 1))
        rows[name] = {
            "seconds": wall,
            "cpu_s": cpu,
            "images_per_s": (min(n, AUGMENTED) if "augment" in name else n) / wall,
        }
    pairs = [("store", against) for against in ("bare", "bare, to arrays", "torchvision")] + [
        ("augment", "its augment")
    ]
    ratios = {
        f"{ours} / {theirs}": {
            kind: ratio([cost[k] for cost in costs[ours]], [cost[k] for cost in costs[theirs]])
            for k, kind in enumerate(("wall", "cpu"))
        }
        for ours, theirs in pairs
        if theirs in costs
    }
    return {"pictures": n, "rows": rows, "ratios": ratios}


def show(costs: dict[str, list[Cost]], n: int) -> None:
    """Medians, images per second, and ratios to bare Pillow next to it in time."""
    print(f"{'':16} {'seconds':>9} {'cpu s':>8} {'images/s':>10}")
    for name, those in costs.items():
        wall, cpu = (statistics.median(cost[k] for cost in those) for k in (0, 1))
        many = min(n, AUGMENTED) if "augment" in name else n
        print(f"{name:16} {wall:9.3f} {cpu:8.3f} {many / wall:10,.0f}")
    for against in [name for name in ("bare", "bare, to arrays", "torchvision") if name in costs]:
        pairs = list(zip(costs["store"], costs[against], strict=True))
        wall, cpu = (statistics.median(ours[k] / theirs[k] for ours, theirs in pairs) for k in (0, 1))
        print(f"store / {against}: {wall:.2f} by the clock, {cpu:.2f} in processor seconds (median of {len(pairs)})")
    if "its augment" in costs:
        pairs = list(zip(costs["augment"], costs["its augment"], strict=True))
        print(f"augment / torchvision's: {statistics.median(a.wall / b.wall for a, b in pairs):.3f} by the clock")


if __name__ == "__main__":
    main()
