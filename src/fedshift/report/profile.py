"""Where a round's time goes, as rows of a table and as a picture: bars one after the other add up to the round."""

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any

WIDTH, LEFT, RIGHT = 760, 118, 560  # of the picture; the bars lie between
ROW, BAR, TOP = 25, 15, 76
SECONDS, SHARE = 650, 728  # where their columns end
LETTERS = 112  # of a note in one line
COLOURS = {
    "data": "#d19a00", "augmentation": "#e6bf52",
    "forward": "#2f9bd6", "backward": "#0072b2", "update": "#0b4f8a", "clients": "#93b7d3",
    "server": "#009e73", "evaluation": "#b8578f", "checkpoint": "#d55e00", "other": "#9aa4b0",
}  # fmt: skip

Stage = Mapping[str, Any]  # stage, rounds, seconds, parts, divided


def unit(seconds: float) -> tuple[str, float]:
    """In which a time is read best, and how many of it are a second."""
    return ("s", 1.0) if seconds >= 100 else ("ms", 1e3)


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def rows(stage: Stage) -> list[tuple[str, str, str]]:
    """Part, time and share of a round; the whole comes last."""
    whole = stage["seconds"]
    per = unit(whole)[1]
    parts = [(name, number(per * spent), f"{100 * spent / whole:.1f}") for name, spent in stage["parts"].items()]
    return [*parts, ("round", number(per * whole), "100.0")]


def picture(title: str, subtitle: str, stages: Sequence[Stage], notes: Sequence[str]) -> str:
    """An SVG: for each stage a row for each part, beginning where the part before it ended."""
    parts, y = list[str](), TOP
    for stage in stages:
        heading = len(stages) > 1
        parts += [_text(24, y + 4, f"stage {stage['stage']}", weight="bold")] if heading else []
        parts += _panel(stage, y + 14 * heading)
        y += ROW * (len(stage["parts"]) + 1) + 40 + 22 * heading
    lines = [line for note in notes for line in wrap(note, LETTERS)]
    parts += [_text(24, y + 17 * k, line, fill="#5b6470") for k, line in enumerate(lines)]
    height = y + 17 * len(lines) + 8
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
            f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, DejaVu Sans, sans-serif">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            _text(24, 28, title, size=16, weight="bold"),
            _text(24, 47, subtitle, fill="#5b6470"),
            *parts,
            "</svg>\n",
        ]
    )


def _panel(stage: Stage, top: float) -> list[str]:
    whole, lines = stage["seconds"], rows(stage)
    end = top + ROW * (len(lines) - 1)
    out, before = _axis(top, end), 0.0
    out += [_text(at, top - 5, said, anchor="end", fill="#5b6470", size=11) for at, said in _heads(whole)]
    for k, ((name, spent), (_, taken, share)) in enumerate(zip(stage["parts"].items(), lines, strict=False)):
        y, x = top + ROW * k, _at(before / whole)
        wide = max(_at((before + spent) / whole) - x, 0.8)
        seam = f"M{x + wide:.1f},{y + 20} V{y + ROW + 5}" if k + 2 < len(lines) else ""
        tip = f"<title>{escape(name)}: {taken} {unit(whole)[0]}, {share} %</title>"
        pale = ' opacity="0.6"' if _guessed(stage, name) else ""
        bar = f'<rect x="{x:.1f}" y="{y + 5}" width="{wide:.1f}" height="{BAR}" fill="{COLOURS[name]}"'
        out.append(f'<path d="{seam}" stroke="#c3cad2" fill="none"/>' if seam else "")
        out.append(f"{bar}{pale}>{tip}</rect>")
        out.append(_text(LEFT - 10, y + 17, name, anchor="end"))
        out += [_text(SECONDS, y + 17, taken, anchor="end"), _text(SHARE, y + 17, share, anchor="end")]
        before += spent
    name, taken, share = lines[-1]
    out.append(_text(LEFT - 10, end + 17, name, anchor="end", weight="bold"))
    out += [_text(x, end + 17, said, anchor="end", weight="bold") for x, said in ((SECONDS, taken), (SHARE, share))]
    return [line for line in out if line]


def _heads(whole: float) -> tuple[tuple[int, str], ...]:
    return (SECONDS, unit(whole)[0]), (SHARE, "%")


def _guessed(stage: Stage, name: str) -> bool:
    """Whether a bar's share was measured on another engine."""
    return bool(stage["divided"]) and name in list(COLOURS)[:6]


def _axis(top: float, end: float) -> list[str]:
    """Quarters of the round, from behind the first bar to below the last."""
    lines = []
    for quarter in range(5):
        x = _at(quarter / 4)
        lines.append(f'<path d="M{x:.1f},{top} V{end + 4}" stroke="#e2e6ea"/>')
        if quarter:
            lines.append(_text(x, end + 18, f"{25 * quarter} %", anchor="middle", fill="#5b6470", size=11))
    return lines


def _at(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _text(
    x: float, y: float, said: str, *, anchor: str = "start", fill: str = "#1b1f24", size: int = 12, weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{fill}"{bold}>{escape(said)}</text>'
