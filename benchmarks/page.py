"""docs/performance.md, made from benchmarks/results/*.json: no number on it is typed.

A part that knows best how its numbers are read has, in PART_page.py or PART.py, `section(results)`, Markdown, and
perhaps `draw(results, folder)`, its SVGs. Any other part is shown as plain tables.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import machine

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
Results = Mapping[str, Any]
NONE = "\N{EN DASH}"
IMAGES = "images/performance"  # beside the page
PARTS = {
    "peers": "Other frameworks on the same mathematics",
    "same": "That all compute the same",
    "cpu": "The CPU, against a bare loop",
    "scaling": "How time and memory grow",
    "server": "The server's arithmetic",
    "feeding": "Feeding",
    "captured": "Recorded steps on a GPU",
    "block": "A whole block of a published table on one GPU",
}
INTRO = """# Performance

What `python -m benchmarks` measured. The page is made from `benchmarks/results/*.json`: no number on it is typed, and a
test makes it again. Ratios come from one run in which all take turns, so that a busy machine slows all alike: they are
medians over the turns, with the middle half in brackets. Absolute times belong to the machine that is named.
"""


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = loaded(results).items()
    return INTRO + "".join(f"\n## {PARTS[part]}\n\n{section(part, f)}\n{measured(f)}\n" for part, f in parts)


def draw(folder: Path, results: Path = RESULTS) -> None:
    """Its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, found in loaded(results).items():
        own(part, "draw", lambda *_: None)(found, folder)


def loaded(results: Path) -> dict[str, Results]:
    """What was measured, in the order of the page."""
    files = {part: results / f"{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text(encoding="utf-8")) for part, file in files.items() if file.exists()}


def section(part: str, found: Results) -> str:
    """A part's own words, or tables."""
    return str(own(part, "section", plain)(found)).strip() + "\n"


def own(part: str, name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A part's own function."""
    modules = [m for m in (f"{part}_page", part) if Path(__file__).with_name(f"{m}.py").exists()]
    found = otherwise
    if modules:
        found = getattr(importlib.import_module(f".{modules[0]}", __package__), name, otherwise)
    return found


def measured(found: Results) -> str:
    """Where, and how long it took."""
    return f"Measured on {machine.in_words(found['machine'])}" if "machine" in found else ""


def plain(found: Results) -> str:
    """Any results: a table for what has rows, a line for what has not."""
    text, lines = [], []
    for key, value in found.items():
        if key in ("machine", "seconds", "name"):
            continue
        rows = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
            named = isinstance(value, Mapping)
            text.append(f"\n**{key}**\n\n{table(rows, list(value) if named else None)}")
        elif isinstance(value, Mapping):
            lines.append(f"- {key}: {', '.join(f'{k} {number(v)}' for k, v in value.items())}")
        else:
            lines.append(f"- {key}: {number(value)}")
    return "\n".join([*lines, *text])


def table(rows: Sequence[Results], names: Sequence[str] | None = None) -> str:
    """A line for each row, a column for each thing that any row tells; names come first."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    body = [[number(row.get(head)) for head in heads] for row in rows]
    if names is not None:
        heads, body = ["", *heads], [[name, *line] for name, line in zip(names, body, strict=True)]
    return "\n".join([cells(heads), cells(["---"] * len(heads)), *map(cells, body)]) + "\n"


def cells(values: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(values)} |"


def number(value: Any) -> str:
    """To three digits, and thousands apart; three numbers are a median and its spread."""
    if value is None:
        return NONE
    if isinstance(value, list):
        return spread(value) if len(value) == 3 else ", ".join(map(number, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {number(v)}" for k, v in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(ratio: Sequence[float]) -> str:
    """A ratio, and the middle half of its turns."""
    return f"{ratio[0]:.2f} ({ratio[1]:.2f}{NONE}{ratio[2]:.2f})"


def write() -> None:
    """The page into docs."""
    draw(PAGE.parent / IMAGES)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written")
