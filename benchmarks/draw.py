"""Line charts as SVG, both axes logarithmic: a straight line of slope one is a cost that grows with its cause."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 58, 44
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#2f9bd6", "#d19a00", "#444b54")
INK, SOFT, RULE = "#1b1f24", "#5b6470", "#e2e6ea"
Points = Sequence[tuple[float, float]]


def chart(title: str, lines: Mapping[str, Points], x_label: str, y_label: str) -> str:
    """A line with dots for each label; names and dashes stand above."""
    points = [point for line in lines.values() for point in line]
    xs, ys = _decades([x for x, _ in points]), _decades([y for _, y in points])
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, DejaVu Sans, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        text(18, 20, title, weight="bold", size=13),
        *_legend(list(lines)),
        *_grid(xs, ys),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle", SOFT),
        f'<g transform="translate(14,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">',
        text(0, 0, y_label, "middle", SOFT) + "</g>",
    ]
    for colour, (label, line) in zip(COLOURS, lines.items(), strict=False):
        places = [(_at(x, xs, LEFT, WIDTH - RIGHT), _at(y, ys, HEIGHT - BOTTOM, TOP)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (a, b) in zip(places, line, strict=True):
            tip = f"<title>{escape(label)}: {b:.3g} at {a:,g}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}" stroke="#ffffff">{tip}</circle>')
    return "\n".join([*parts, "</svg>\n"])


def text(
    x: float, y: float, said: str, anchor: str = "start", fill: str = INK, *, weight: str = "normal", size: int = 12
) -> str:
    """Words at a place."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="{fill}" font-weight="{weight}" font-size="{size}">{escape(said)}</text>'


def short(value: float) -> str:
    """A power of ten as people write it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around them."""
    low, high = floor(log10(min(values)) + 1e-9), ceil(log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _at(value: float, ends: tuple[int, int], start: float, end: float) -> float:
    return start + (log10(value) - ends[0]) / (ends[1] - ends[0]) * (end - start)


def _grid(xs: tuple[int, int], ys: tuple[int, int]) -> list[str]:
    parts = []
    for power in range(ys[0], ys[1] + 1):
        y = _at(10.0**power, ys, HEIGHT - BOTTOM, TOP)
        parts.append(f'<path d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}" stroke="{RULE}"/>')
        parts.append(text(LEFT - 7, y + 4, short(10.0**power), "end", SOFT))
    for power in range(xs[0], xs[1] + 1):
        x = _at(10.0**power, xs, LEFT, WIDTH - RIGHT)
        parts.append(f'<path d="M{x:.1f},{TOP} V{HEIGHT - BOTTOM}" stroke="{RULE}"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 17, short(10.0**power), "middle", SOFT))
    return parts


def _legend(labels: Sequence[str]) -> list[str]:
    parts, x = [], 18.0
    for colour, label in zip(COLOURS, labels, strict=False):
        parts.append(f'<path d="M{x:.1f},36 h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(text(x + 21, 40, label, fill=SOFT))
        x += 21 + 6.3 * len(label) + 14
    return parts
