"""What `scaling` measured, in words, tables and charts.

python -m benchmarks.scaling_page results.json FOLDER      # draws the charts anew
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import draw as charts
from .page import IMAGES, NONE, cells, number

Found = Mapping[str, Any]
SERIES = {
    "clients": "Clients in a round",
    "parameters": "Parameters of the network, four clients",
    "rounds": "Rounds of a run, four clients",
    "seeds": "Seeds of a comparison, ten rounds each",
}
HEADS = ["", "", "ms", "processor ms", "seconds in all", "MiB", "bytes of an upload", "checkpoint, bytes"]
COLUMNS = ("ms", "cpu_ms", "total_s", "mib", "bytes", "checkpoint_bytes")


def section(found: Found) -> str:
    """Tables with charts beside them."""
    several = f"{found['threads']} threads" if found["threads"] > 1 else "one thread"
    text = f"""Each point is a process of its own with {several}. A client has 32 synthetic pictures of 8x8, a round is
one epoch in batches of 8 with a perceptron, and times are those of a round without evaluation (for seeds: of the whole
comparison). Memory is the process's largest, beyond what it held before the run.

**Before the first round is done**: processor seconds after `import torch`.

{cells(["", "imports", "the run", "together"])}
{cells(["---", "---:", "---:", "---:"])}
"""
    for row in found["first"]:
        text += cells([row["what"], *(f"{row[k]:.2f}" for k in ("imports_s", "run_s", "cpu_s"))]) + "\n"
    for series, title in SERIES.items():
        rows = [row for row in found["rows"] if row["series"] == series]
        images = [f"![{name}]({IMAGES}/{file})" for file, name, *_ in _charts(series)]
        text += f"\n**{title}**\n\n{' '.join(images)}\n\n" + _table(rows)
    return text


def _table(rows: list[Found]) -> str:
    lines = [cells(HEADS), cells(["---", *["---:"] * (len(HEADS) - 1)])]
    for row in rows:
        lines.append(cells([label(row), number(row["x"]), *(number(row.get(k)) for k in COLUMNS)]))
    return "\n".join(lines) + "\n"


def label(row: Found) -> str:
    """A line's name."""
    return f"{row['method']}, {row['engine']}"


def line(row: Found) -> str:
    """A row as it comes."""
    told = ", ".join(f"{k} {number(row[k]) if k in row else NONE}" for k in COLUMNS)
    return f"{row['series']} {number(row['x'])}, {label(row)}: {told}"


def _charts(series: str) -> list[tuple[str, str, str, str]]:
    """File, title, column and axis."""
    what = "comparison" if series == "seeds" else "round"
    return [
        (f"{series}-time.svg", f"Time of a {what} by {series}", "cpu_ms", "processor ms"),
        (f"{series}-memory.svg", f"Memory by {series}", "mib", "MiB"),
    ]


def draw(found: Found, folder: Path) -> None:
    """All charts."""
    folder.mkdir(parents=True, exist_ok=True)
    for series in SERIES:
        for file, title, column, axis in _charts(series):
            lines: dict[str, list[tuple[float, float]]] = {}
            for row in found["rows"]:
                if row["series"] == series:
                    lines.setdefault(label(row), []).append((row["x"], max(row[column], 0.1)))
            (folder / file).write_text(charts.chart(title, lines, series, axis), encoding="utf-8")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
