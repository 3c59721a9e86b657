"""What `server` measured, in words and tables."""

from collections.abc import Mapping
from typing import Any

from .page import NONE, cells, number, spread

Found = Mapping[str, Any]


def section(found: Found) -> str:
    """The rules beside their bounds."""
    several = f"{found['threads']} threads" if found["threads"] > 1 else "one thread"
    speeds = "; ".join(
        f"{device}: " + ", ".join(f"{name} {value:,.0f} GB/s" for name, value in each.items())
        for device, each in found["speed"].items()
    )
    text = f"""{found["clients"]} clients upload {found["parameters"]:,} parameters each; {several} on the CPU. The
bound of a rule is the time of the passes over memory that it cannot do without, as plain loops over one vector take
them in the same run: `read` (a sum), `copy`, `axpy` ({speeds}). *Memory* is what a process of its own takes beyond its
start, in models; rules that stream are given a hundred clients, one after another.

{cells(["", "", "ms", "bound, ms", "ratio", "memory, models", "of clients"])}
{cells(["---", "---", "---:", "---:", "---:", "---:", "---:"])}
"""
    for row in found["rows"]:
        used = found["memory"][row["rule"]] if row["device"] == "cpu" else {}
        times = [number(row["ms"]), number(row["bound_ms"]), spread(row["ratio"])]
        memory = [f"{used['models']:.1f}", number(used["clients"])] if used else [NONE, NONE]
        text += cells([row["rule"], row["device"], *times, *memory]) + "\n"
    return text
