"""What `peers` measured, in words and tables."""

from collections.abc import Callable, Mapping
from math import log2
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .page import IMAGES, NONE, cells, number, spread

Row = Mapping[str, Any]
PICTURE = "peers-rounds.svg"
HEADS = [
    "",
    "time / bare",
    "CPU / bare",
    "ms a round",
    "peak MiB",
    "first round, s",
    "of CPU",
    "MB a round",
    "weights",
]


def section(found: Mapping[str, Any]) -> str:
    """A summary, and a table for each workload."""
    works = {name: work for name, work in found.items() if isinstance(work, Mapping) and "rows" in work}
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    several = f"{found['threads']} threads" if found["threads"] > 1 else "one thread"
    text = f"""Every contestant is a process of its own, with {several}. It trains the same networks from the same
initial weights on the same batches, one epoch of plain SGD a round, averages parameters and BatchNorm statistics by
examples, and scores the average on every client's test pictures. The bare loop is what one would write by hand: weights
copied as one flat tensor, pictures that lie ready as floats. The naive idiom copies state dictionaries and has a
DataLoader for each client; PFLlib's shape, with a model for each client, is our own writing from its description. The
others run their own loops through the adapters in `benchmarks/contest`, Flower with one actor that has all threads.
*Memory kept* is what fedshift's command line asks of the C library: to hand freed memory out again at once.

Versions: {versions}. The adapters add what a framework leaves to its user: the given batches, and for pfl the average
of BatchNorm statistics. *Weights* is how far the averaged model is from the bare loop's after two rounds, relative to
its norm: in float32, sums in another order differ in the last digits, and training makes more of that; the next section
has the same in float64, which tells whether what is *not the same* here is other arithmetic. {_moved(works)} *First
round* runs from the start of the process, with all imports. *MB a round* stands where a framework counts what it sends;
the others hand tensors over.
"""
    tables = [
        f"\n![Time of a round, relative to the bare loop]({IMAGES}/{PICTURE})\n",
        _summary("Time of a round, relative to the bare loop", works, "wall_ratio"),
        _summary("Processor time of a round, relative to the bare loop", works, "cpu_ratio"),
        *map(_one, works, works.values()),
    ]
    return text + "".join(tables)


def _moved(works: Mapping[str, Row]) -> str:
    moved = ", ".join(f"{work['moved']:.0e} on {name}" for name, work in works.items())
    return f"For comparison, training itself moved the weights by {moved}."


def _summary(title: str, works: Mapping[str, Row], kind: str) -> str:
    names = list(dict.fromkeys(who for work in works.values() for who in work["rows"]))
    lines = [f"\n**{title}**\n", cells(["", *works]), cells(["---"] * (len(works) + 1))]
    for who in names:
        rows = [work["rows"].get(who, {}) for work in works.values()]
        lines.append(cells([who, *(f"{r[kind][0]:.2f}" if kind in r else NONE for r in rows)]))
    return "\n".join(lines) + "\n"


def _one(name: str, work: Row) -> str:
    lines = [f"\n**{name}**: {work['summary']}; {number(work['images'])} pictures a round.\n", cells(HEADS)]
    lines.append(cells(["---"] * len(HEADS)))
    for who, row in work["rows"].items():
        lines.append(cells([who, *_cells(row)]))
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    if "wall_ratio" not in row:
        return [f"did not run: {row.get('reason', 'no reason given')}".replace("|", "/"), *[NONE] * (len(HEADS) - 2)]
    return [
        spread(row["wall_ratio"]),
        spread(row["cpu_ratio"]),
        number(1000 * row["wall_s"]),
        number(round(row["peak_mib"])),
        f"{row['first_round_s']:.1f}",
        f"{row['first_round_cpu_s']:.1f}",
        NONE if row["sent"] is None else number(row["sent"] / 1e6),
        ("" if row["same"] else "**not the same:** ") + _gap(row["difference"]),
    ]


def _gap(value: float) -> str:
    return f"{value:.0e}" if value else "equal"


# -- the picture -------------------------------------------------------------------------------------------------------
LINE, LABEL, WIDE, PAD = 18, 220, 660, 12  # height of a row, where bars may begin, the whole width, the margin
OURS, THEIRS, INK = "#1b7f5c", "#8a93a3", "#1f2430"


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """The ratios to the bare loop as bars: to the left is faster."""
    works = {name: work for name, work in found.items() if isinstance(work, Mapping) and "rows" in work}
    ratios = [r["wall_ratio"][0] for work in works.values() for r in work["rows"].values() if "wall_ratio" in r]
    low, high = log2(min([0.5, *ratios])), log2(max([2.0, *ratios]))

    def at(ratio: float) -> float:
        return round(LABEL + PAD + (log2(ratio) - low) / (high - low) * (WIDE - LABEL - 5 * PAD), 1)

    body, y = list[str](), PAD
    for name, work in works.items():
        y += LINE
        body.append(_text(PAD, y, f"{name}: {work['summary']}", weight="bold"))
        top = y + 6
        for who, row in work["rows"].items():
            y += LINE
            body += [_text(LABEL, y, who, anchor="end"), *_bar(who, row, at, y)]
        body.append(f'<path d="M{at(1)} {top}V{y + 5}" stroke="{INK}" stroke-width="1"/>')
        y += PAD
    y += LINE
    body.append(
        _text(
            LABEL,
            y,
            "time of a round, relative to the bare loop, on a logarithmic scale: to the left is faster",
            size=11,
        )
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {y + PAD}" font-family="sans-serif">'
    back = f'<rect width="{WIDE}" height="{y + PAD}" fill="#ffffff"/>'
    (folder / PICTURE).write_text("\n".join([head, back, *body, "</svg>"]) + "\n", encoding="utf-8")


def _bar(who: str, row: Row, at: Callable[[float], float], y: int) -> list[str]:
    if "wall_ratio" not in row:
        return [_text(LABEL + PAD, y, "did not run", size=11)]
    ratio = row["wall_ratio"][0]
    left, right = sorted((at(1), at(ratio)))
    colour = OURS if "fedshift" in who or who.startswith("the same") else THEIRS
    return [
        f'<rect x="{left}" y="{y - 11}" width="{round(right - left, 1)}" height="13" fill="{colour}"/>',
        _text(round(max(at(1), right) + 5, 1), y, f"{ratio:.2f}", size=11),
    ]


def _text(x: float, y: int, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'
