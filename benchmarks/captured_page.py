"""What `captured` measured, in words and tables."""

from collections.abc import Mapping
from typing import Any

from .page import table


def section(found: Mapping[str, Any]) -> str:
    """Throughput, and how far recorded steps are from plain ones."""
    speeds = {name: row for name, row in found.items() if isinstance(row, Mapping) and "images_per_s" in row}
    gaps = {name.removeprefix("gap "): value for name, value in found.items() if name.startswith("gap ")}
    rows = [
        {
            "thousand images/s": row["images_per_s"] / 1000,
            "in the median round": row["median"] / 1000,
            "first two rounds, s": row["first_rounds_s"],
        }
        for row in speeds.values()
    ]
    text = """Training hFedF's network on PACS at 32 pixels with real augmentation, every client's steps recorded once
and replayed on streams side by side; *saved* has a checkpoint every round in the time, *evaluated* an evaluation every
five rounds.

"""
    text += table(rows, list(speeds))
    if gaps:
        text += "\nIn float32, recorded steps against plain ones on the same GPU after 50 steps, relative:\n\n"
        text += table([{"difference": value} for value in gaps.values()], list(gaps))
    return text
