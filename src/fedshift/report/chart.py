"""Line charts as inline SVG; colours come from the page's style, so that they follow its colour scheme."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 340, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 8, 42
COLOURS = 7  # after these, lines are dashed


class Point(NamedTuple):
    """A place on a line, and half the height of the band around it."""

    x: float
    y: float
    spread: float = 0.0


class Line(NamedTuple):
    """One method's line; `style` picks its colour and dash."""

    label: str
    style: int
    points: Sequence[Point]


class Axis(NamedTuple):
    """From data to picture, with the marks along it."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def chart(title: str, lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """An SVG with a line and a band per method."""
    points = [p for line in lines for p in line.points]
    last = max(p.x for p in points)
    x = _axis(0, last, LEFT, WIDTH - RIGHT)
    # The first steep fifth may begin below the picture, so that the rest can be told apart.
    low = min(p.y - p.spread for p in points if p.x >= last / 5)
    high = min(100, max(p.y + p.spread for p in points))
    y = _axis(max(0, min(low, high - 5)), high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        *_frame(x, y, x_label, y_label),
        f'<svg width="{WIDTH}" height="{HEIGHT - BOTTOM + 4}">',  # cuts off what lies below the axis
        *(_band(line, x, y) for line in lines),
        *(_line(line, x, y) for line in lines),
        "</svg>\n</svg>",
    ]
    return "\n".join(parts)


def swatch(style: int) -> str:
    """A short piece of a method's line, for the legend."""
    return (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true" xmlns="http://www.w3.org/2000/svg">'
        f'<path class="line {_style(style)}" d="M1,5 H27"/></svg>'
    )


def _style(style: int) -> str:
    return f"c{style % COLOURS} d{style // COLOURS % 3}"


def _axis(low: float, high: float, start: float, end: float) -> Axis:
    """Round ends and about five ticks between them."""
    step = _nice((high - low) / 5 or 1.0)
    first, last = floor(low / step + 1e-9), max(ceil(high / step - 1e-9), floor(low / step + 1e-9) + 1)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below `step`."""
    power = 10.0 ** floor(log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> list[str]:
    """Grid, numbers and names of the axes."""
    parts = []
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<path class="grid" d="M{LEFT},{at:.1f} H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{at + 4.5:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x.ticks:
        parts.append(f'<text x="{x.at(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT},{HEIGHT - BOTTOM} H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 7}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text class="name" transform="translate(12,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return parts


def _band(line: Line, x: Axis, y: Axis) -> str:
    if not any(p.spread for p in line.points):
        return ""
    edge = [(p.x, min(100, p.y + p.spread)) for p in line.points]
    edge += [(p.x, p.y - p.spread) for p in reversed(line.points)]
    return f'<polygon class="band {_style(line.style)}" points="{_places(edge, x, y)}"/>'


def _line(line: Line, x: Axis, y: Axis) -> str:
    if not line.points:
        return ""
    places = _places([(p.x, p.y) for p in line.points], x, y)
    last = line.points[-1]
    return (
        f"<g><title>{escape(line.label)}: {last.y:.1f} % at the end</title>"
        f'<polyline class="line {_style(line.style)}" points="{places}"/>'
        f'<circle class="dot {_style(line.style)}" cx="{x.at(last.x):.1f}" cy="{y.at(last.y):.1f}" r="3.5"/>'
        "</g>"
    )


def _places(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)
