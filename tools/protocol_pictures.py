"""Draw docs/images/protocols/*.svg: what `deal` gives on a small made-up data set, so that no picture can be wrong.

Run `python tools/protocol_pictures.py` after a change to the protocols.
"""

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedshift.data.corrupt import CORRUPTIONS, SEVERITIES, corrupt
from fedshift.data.dataset import Dataset, Domain
from fedshift.data.partition import Rows, count
from fedshift.data.protocols import Dealt, Facts, Protocol, deal

OUT = Path(__file__).parents[1] / "docs" / "images" / "protocols"
SIZES = {"art": 205, "cartoon": 234, "photo": 167, "sketch": 393}
COLOURS = {"art": "#0072b2", "cartoon": "#d55e00", "photo": "#009e73", "sketch": "#b8578f"}
SHADES = (1.0, 0.72, 0.48, 0.28)
INK, SOFT, RULE = "#1b1f24", "#5b6470", "#e2e6ea"
WIDTH, LEFT, BAR, GAP = 720, 124, 16, 6

# What is drawn: file -> (title of a panel, its protocol) for each panel.
HALF = Protocol(val=0.0, test=0.2)
SKEWED = replace(HALF, domains=("art", "photo"), clients_per_domain=3)
PICTURES: dict[str, list[tuple[str, Protocol]]] = {
    "one-client-per-domain": [("", Protocol())],
    "leave-one-out": [
        ("left_out = art", Protocol(left_out=("art",))),
        ("left_out = photo", Protocol(left_out=("photo",))),
    ],
    "clients-per-domain": [("", Protocol(clients_per_domain=3))],
    "allocation": [
        (
            f"domains_per_client = {d}",
            Protocol(left_out=("sketch",), domains_per_client=d, clients=3, val=0.0, test=0.1),
        )
        for d in (1, 2, 3)
    ],
    "mixing": [(f"mixing = {m:g}", replace(HALF, mixing=m)) for m in (0.0, 0.5, 1.0)],
    "skew": [
        ("label_skew = 0.3", replace(SKEWED, label_skew=0.3)),
        ("quantity_skew = power", replace(SKEWED, quantity_skew="power")),
        ("both", replace(SKEWED, label_skew=0.3, quantity_skew="power")),
        ("both, and mixing = 1", replace(SKEWED, label_skew=0.3, quantity_skew="power", mixing=1.0)),
    ],
    "truncated": [("", Protocol(val=0.0, test=0.2, truncate=0.5, truncate_val=0.4))],
    "shots": [("", Protocol(left_out=("sketch",), shots=20))],
    "newcomer": [("", Protocol(left_out=("sketch",), adapt=0.5))],
    "leak": [("", Protocol(val=0.0, test=0.0, leak="test-on-training-images"))],
}
BY_CLASS = {"skew"}


def data() -> tuple[Dataset, dict[str, Facts]]:
    """Four domains of four classes, without pictures."""
    facts, domains, start = {}, [], 0
    for name, n in SIZES.items():
        facts[name] = Facts(torch.arange(n) % 4, torch.arange(start, start + n))
        domains.append(Domain(name, torch.zeros(n, 3, 1, 1, dtype=torch.uint8), facts[name].labels))
        start += n
    return Dataset("made up", ("0", "1", "2", "3"), tuple(domains)), facts


def text(x: float, y: float, words: str, size: int = 12, colour: str = SOFT, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, w: float, fill: str, opacity: float = 1.0, stroke: str = "none", extra: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:g}" width="{max(w, 0.6):.1f}" height="{BAR}" fill="{fill}" '
        f'fill-opacity="{opacity:g}" stroke="{stroke}"{extra}/>'
    )


def patterns() -> str:
    """Hatching for what is held out and dots for what has no labels, in each domain's colour."""
    made = []
    for name, colour in {**COLOURS, "grey": SOFT}.items():
        stripe = f'<rect width="6" height="6" fill="#fff"/><rect width="2.2" height="6" fill="{colour}"/>'
        dot = f'<rect width="6" height="6" fill="#fff"/><circle cx="3" cy="3" r="1.5" fill="{colour}"/>'
        size = 'width="6" height="6" patternUnits="userSpaceOnUse"'
        made.append(f'<pattern id="hatch-{name}" {size} patternTransform="rotate(45)">{stripe}</pattern>')
        made.append(f'<pattern id="dots-{name}" {size}>{dot}</pattern>')
    return f"<defs>{''.join(made)}</defs>"


def bars(rows: Rows, kind: str, labels: dict[str, Tensor] | None) -> Iterator[tuple[int, str, float, str]]:
    """(pictures, fill, opacity, outline) of each piece of a bar; with labels, a shade for each class."""
    for name, mine in rows.items():
        colour = COLOURS[name]
        if kind == "train" and labels:
            for c, n in enumerate(torch.bincount(labels[name][mine], minlength=4).tolist()):
                yield n, colour, SHADES[c], "none"
        else:
            fill = {"test": f"url(#hatch-{name})", "adapt": f"url(#dots-{name})"}.get(kind, colour)
            yield len(mine), fill, 0.4 if kind == "val" else 1.0, colour if kind in ("test", "adapt") else "none"


def lines(dealt: Dealt) -> Iterator[tuple[str, list[tuple[str, Rows]]]]:
    """The sites that take part, then the unseen ones, each with the parts of its bar."""
    for site in dealt.train:
        held = [("val", dealt.val[site])] + ([] if dealt.leak else [("test", dealt.test[site])])
        yield site, [("train", dealt.train[site]), *held]
    for site, rows in dealt.unseen.items():
        yield f"{site} (unseen)", [("adapt", dealt.adapt.get(site, {})), ("test", rows)]


def panel(title: str, dealt: Dealt, y: float, scale: float, labels: dict[str, Tensor] | None) -> tuple[str, float]:
    """One federation as bars, and where the next may start."""
    drawn = [text(16, y + 12, title, 12, INK)] if title else []
    y += 22 if title else 0
    for site, parts in lines(dealt):
        drawn.append(text(LEFT - 8, y + 12.5, site, 12, SOFT, "end"))
        x = float(LEFT)
        for kind, rows in parts:
            for n, fill, opacity, stroke in bars(rows, kind, labels):
                drawn.append(box(x, y, n * scale, fill, opacity, stroke) if n else "")
                if dealt.leak:
                    drawn.append(box(x, y, n * scale, hatch(fill), 0.7))  # trained on and scored
                x += n * scale
        if not site.endswith("(unseen)"):
            drawn.append(left_over(site, dealt, x, y, scale))
        y += BAR + GAP
    return "".join(drawn), y + 10


def hatch(colour: str) -> str:
    """The hatching of a domain's colour."""
    return f"url(#hatch-{next(name for name, c in COLOURS.items() if c == colour)})"


def left_over(site: str, dealt: Dealt, x: float, y: float, scale: float) -> str:
    """What is set aside, where a site is a domain."""
    n = len(dealt.unused.get(site, ()))
    return box(x, y, n * scale, "none", 1, SOFT, ' stroke-dasharray="3 3"') if n else ""


def legend(y: float, kinds: list[str], names: list[str]) -> str:
    """Domains by colour, parts by filling."""
    x, drawn = 16.0, list[str]()
    for name in names:
        colour = COLOURS[name]
        drawn += [box(x, y, 18, colour), text(x + 24, y + 12.5, name)]
        x += 40 + 7 * len(name)
    fills = {
        "training": box(0, y, 18, SOFT),
        "a shade for each class": "".join(box(4.5 * c, y, 4.5, SOFT, shade) for c, shade in enumerate(SHADES)),
        "validation": box(0, y, 18, SOFT, 0.4),
        "scored": box(0, y, 18, "url(#hatch-grey)", 1, SOFT),
        "unlabelled": box(0, y, 18, "url(#dots-grey)", 1, SOFT),
        "set aside": box(0, y, 18, "none", 1, SOFT, ' stroke-dasharray="3 3"'),
    }
    x += 16
    for kind in kinds:
        drawn += [f'<g transform="translate({x:g} 0)">{fills[kind]}{text(24, y + 12.5, kind)}</g>']
        x += 42 + 6.4 * len(kind)
    return "".join(drawn)


def page(height: float, inside: str, name: str, width: int = WIDTH) -> str:
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1:g}" rx="6" fill="#fff" stroke="{RULE}"/>'
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
        f'viewBox="0 0 {width} {height:g}" font-family="{font}" role="img"><title>{name}</title>'
        f"{frame}{inside}</svg>\n"
    )


def picture(name: str) -> str:
    """One file of PICTURES."""
    made, facts = data()
    dealt = [(title, deal(made, protocol, 1, facts)) for title, protocol in PICTURES[name]]
    longest = max(_length(d, site) for _, d in dealt for site in [*d.train, *d.unseen])
    labels = {n: f.labels for n, f in facts.items()} if name in BY_CLASS else None
    kinds = ["training", *(["validation"] if any(count(r) for _, d in dealt for r in d.val.values()) else []), "scored"]
    kinds += ["unlabelled"] if any(d.adapt for _, d in dealt) else []
    kinds += ["set aside"] if any(d.unused for _, d in dealt) else []
    kinds += ["a shade for each class"] if labels else []
    names = [n for n in COLOURS if any(n in d.split or n in d.unseen for _, d in dealt)]
    drawn, y = [patterns(), legend(16, kinds, names)], 52.0
    for title, d in dealt:
        body, y = panel(title, d, y, (WIDTH - LEFT - 24) / longest, labels)
        drawn.append(body)
    return page(y, "".join(drawn), name.replace("-", " "))


def _length(dealt: Dealt, site: str) -> int:
    if site in dealt.unseen:
        return count(dealt.unseen[site]) + count(dealt.adapt.get(site, {}))
    parts = (dealt.train, dealt.val) if dealt.leak else (dealt.train, dealt.val, dealt.test)
    return sum(count(part[site]) for part in parts) + len(dealt.unused.get(site, ()))


def scene(side: int = 32) -> Tensor:
    """A made-up picture: sky, a sun, a hill and a house, [1, 3, side, side]."""
    y, x = torch.meshgrid(*[(torch.arange(side) + 0.5) / side] * 2, indexing="ij")
    sky = torch.stack([90 + 90 * y, 150 + 60 * y, 225 - 10 * y])
    parts = (
        ((x - 0.76) ** 2 + (y - 0.22) ** 2 < 0.014, (250, 214, 80)),
        (y > 0.72 - 0.18 * torch.sin(2.6 * x), (74, 128, 62)),
        ((x > 0.24) & (x < 0.54) & (y > 0.5) & (y < 0.8), (196, 168, 140)),
        ((y > 0.3) & (y < 0.52) & ((x - 0.39).abs() < (y - 0.28) * 0.8), (150, 52, 44)),
        ((x > 0.36) & (x < 0.44) & (y > 0.62) & (y < 0.8), (70, 52, 44)),
    )
    for mask, colour in parts:
        sky = torch.where(mask, torch.tensor(colour).view(3, 1, 1).float(), sky)
    return sky.round().clamp(0, 255).to(torch.uint8)[None]


def ladder(tile: int = 72) -> str:
    """Each corruption at each severity."""
    image, drawn = scene(), []
    for i, severity in enumerate((0, *SEVERITIES)):
        words = "the picture" if not severity else f"severity {severity}"
        drawn.append(text(LEFT + i * (tile + 6) + tile / 2, 24, words, 12, SOFT, "middle"))
    for k, kind in enumerate(CORRUPTIONS):
        y = 34 + k * (tile + 6)
        drawn.append(text(LEFT - 12, y + tile / 2 + 4, kind, 12, INK, "end"))
        strip = torch.cat([corrupt(image, kind, s)[0] for s in (0, *SEVERITIES)], 2).permute(1, 2, 0).contiguous()
        for i in range(6):
            file = io.BytesIO()
            Image.fromarray(strip[:, 32 * i : 32 * (i + 1)].contiguous().numpy()).save(file, "PNG", optimize=True)
            code = base64.b64encode(file.getvalue()).decode()
            place = f'x="{LEFT + i * (tile + 6)}" y="{y}" width="{tile}" height="{tile}"'
            drawn.append(f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{code}"/>')
    return page(34 + len(CORRUPTIONS) * (tile + 6) + 8, "".join(drawn), "corruptions", LEFT + 6 * (tile + 6) + 10)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        (OUT / f"{name}.svg").write_text(picture(name))
    (OUT / "corruptions.svg").write_text(ladder())


if __name__ == "__main__":
    main()
