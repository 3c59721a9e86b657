"""`fedshift data`: get, import, verify and look at data sets."""

import re
import time
from argparse import Namespace
from pathlib import Path

from ..core.errors import ConfigError, DataError, nearest
from ..data import DATASETS, Source, load, manifest_of, names, save_manifest
from ..data.distance import distances
from ..data.fetch import fetch
from ..data.find import find, find_own
from ..data.manifest import Manifest
from ..data.places import cache_limit, data_home
from ..data.show import contact_sheet
from ..data.show import counts as shown_counts
from ..data.store import cached, clear
from ..data.verify import counts, left_out, total
from ..data.verify import verify as verified
from .console import columns, say
from .progress import progress

LARGEST = 1024  # pixels a side on a contact sheet


def listing(args: Namespace) -> int:
    """Every data set, and what of it is on this machine."""
    stored = {entry.name for entry in cached() if entry.whole}
    rows = [_row(name, DATASETS.get(name), _stored(name) in stored) for name in names()]
    columns(("data set", "domains", "classes", "images", "here", "licence"), rows)
    return 0


def _row(name: str, source: Source | None, in_cache: bool) -> list[str]:
    imported = (data_home() / f"{name}.jsonl").exists()
    here = ["made here"] * bool(source and source.load) + ["imported"] * imported + ["in cache"] * in_cache
    if source is None:
        manifest = manifest_of(name)
        domains, classes, images = len(manifest.domains), len(manifest.classes), len(manifest.rows)
    else:
        domains, classes = len(source.domains), len(source.classes)
        images = sum(map(total, source.counts.values()))
    told = [f"{n:,}" if n else "" for n in (domains, classes, images)]
    return [name, *told, ", ".join(here) or "no", source.licence if source else "your own"]


def get(args: Namespace) -> int:
    """Download, then import."""
    source = _source(args.name)
    if source.files:
        say(f"{source.name}: {source.summary}; licence: {source.licence}")
    with progress(f"getting {source.name}", "MB") as tell:
        files = fetch(source, progress=tell)
    with progress(f"importing {source.name}") as tell:
        manifest = find(source, files[0].parent, tell)
    return _imported(manifest)


def import_(args: Namespace) -> int:
    """Find a data set, remember where it lies, and tell what was found."""
    name, path = args.name, Path(args.path)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"data import: found the name {name!r}, expected letters, digits, '-', '_' and '.'; rename it."
        )
    with progress(f"importing {name}") as tell:
        manifest = find(DATASETS[name], path, tell) if name in DATASETS else find_own(name, path, tell)
    if name not in DATASETS:
        say(f"{name} is not a published data set that fedshift knows{nearest(name, DATASETS)}; imported as your own.")
    return _imported(manifest)


def _imported(manifest: Manifest) -> int:
    save_manifest(manifest)
    published = DATASETS[manifest.name].counts if manifest.name in DATASETS else {}
    rows = [
        [domain, f"{sum(found):,}", f"{total(published[domain]):,}" if domain in published else ""]
        for domain, found in counts(manifest).items()
    ]
    columns(("domain", "pictures", "published"), rows)
    say(f"{len(manifest.rows):,} pictures of {len(manifest.classes)} classes; they stay in {manifest.root}")
    if manifest.left_out:
        say(left_out(manifest))
    return 0


def verify(args: Namespace) -> int:
    """The report; 1 if there are problems."""
    source = DATASETS.get(args.name)
    if source and source.load:
        raise DataError(f"data set {args.name!r} is made on this machine and checked whenever it is read; just use it.")
    manifest = manifest_of(args.name)
    with progress(f"checking {args.name}") as tell:
        report = verified(manifest, source, tell)
    print(report.to_json() if args.json else report.text())
    return int(bool(report.problems))


def show(args: Namespace) -> int:
    """A contact sheet, the counts, and the distances between the domains."""
    if not 1 <= args.size <= LARGEST:
        raise ConfigError(f"data show --size: found {args.size}, expected 1 to {LARGEST} pixels; give another size.")
    with progress(f"decoding {args.name}") as tell:
        dataset = load(args.name, args.size, "crop", tell)
    out = Path(args.out or f"{args.name}.png")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(dataset).save(out, "PNG")
    except OSError as error:
        raise ConfigError(
            f"{out}: cannot be written ({error.strerror or error}); give another file by --out."
        ) from None
    found = shown_counts(dataset)
    of_class = [[name, *(f"{n[k]:,}" for n in found.values())] for k, name in enumerate(dataset.classes)]
    columns(("class", *found), [*of_class, ["all", *(f"{sum(n):,}" for n in found.values())]])
    with progress(f"comparing the domains of {args.name}", "domains") as tell:
        measures = distances(dataset, progress=tell)
    for measure in measures:
        say()
        say(measure.definition)
        rows = [[d, *(f"{x:.2f}" for x in row)] for d, row in zip(found, measure.matrix, strict=True)]
        columns((measure.name, *found), rows)
    say()
    say(f"contact sheet: {out}")
    return 0


def cache(args: Namespace) -> int:
    """What is kept of decoded pictures, or their removal."""
    entries = cached()
    if args.clear is not None:
        wanted = [entry for entry in entries if args.clear in ("", entry.name) or entry.name == _stored(args.clear)]
        if args.clear and not wanted and args.clear not in names():
            raise ConfigError(
                f"data cache --clear: found {args.clear!r}, expected a data set{nearest(args.clear, names())}."
            )
        gone = clear(name=_stored(args.clear) if args.clear else None)
        say(f"removed {len(gone)} of {len(wanted)}, {sum(e.bytes for e in gone) / 1e6:,.1f} MB")
        if len(gone) < len(wanted):
            say("the others are in use; repeat this when nothing runs.")
    elif entries:
        used = [time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)) for e in entries]
        rows = [
            [e.name, f"{e.size}", f"{e.bytes / 1e6:,.1f}", when, "whole" if e.whole else "begun"]
            for e, when in zip(entries, used, strict=True)
        ]
        columns(("data set", "pixels", "MB", "last used", "state"), rows)
        of = f"of {cache_limit() / 1e9:,.1f} GB at most ($FEDSHIFT_CACHE_GB)"
        say(f"{sum(e.bytes for e in entries) / 1e6:,.1f} MB {of} in {entries[0].path.parent}")
    else:
        say("No decoded pictures are kept.")
    return 0


def _source(name: str) -> Source:
    if name not in DATASETS:
        hint = nearest(name, DATASETS) or f" ({', '.join(DATASETS)})"
        raise ConfigError(f"data get: found {name!r}, expected a data set that can be downloaded{hint}.")
    return DATASETS[name]


def _stored(name: str) -> str:
    """A data set's name as its stores have it."""
    return re.sub(r"[^\w.]+", "_", name)
