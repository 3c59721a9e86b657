"""A whole block of a published table in one sweep on one GPU, through the command line: wall time and images/s.

    python -m benchmarks.block PACS.npz [--folder RUNS] [--out results.json]

hFedF's protocol on PACS with one domain a client: FedAvg, FedProx, SCAFFOLD, local and central training, four left-out
domains, three seeds, 200 rounds of two epochs, evaluated every five, about 160 million images. Interrupted, the same
command goes on: the time before counts too.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

METHODS = "fedavg,fedprox,scaffold,local,central"
WINDOW = 10.0  # seconds over which a rate is taken


def command(args: argparse.Namespace) -> list[str]:
    """The sweep, as anyone would ask for it."""
    device = ["device=cuda", "engine=captured", f"precision={args.precision}"]
    sets = [*device, "eval.batch=1024", f"federation.rounds={args.rounds}"]
    words = ["sweep", "--preset", "hfedf", "--leave-out", "each", "--seeds", args.seeds, "--methods", args.methods]
    return [sys.executable, "-m", "fedshift", *words, "--json", "--out", str(args.folder), "--set", *sets]


def events(args: argparse.Namespace) -> Iterator[tuple[float, dict[str, Any]]]:
    """What the sweep says, and when."""
    began = time.perf_counter()
    with subprocess.Popen(command(args), stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            yield time.perf_counter() - began, json.loads(line)
    if sweep.returncode:
        raise SystemExit(f"the sweep ended with {sweep.returncode}")


class Tally:
    """Images, seconds and runs so far."""

    def __init__(self, file: Path | None) -> None:
        known = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
        self._file = file
        self._before, self.images = known.get("seconds", 0.0), known.get("images", 0)
        self.rates: list[float] = known.get("rates", [])
        self.runs, self.failed, self._window, self._counted = set[str](), set[str](), 0.0, 0

    def add(self, at: float, event: dict[str, Any]) -> None:
        """One event of the sweep."""
        kind = event["event"]
        if kind == "round":
            self.images += event["images"]
            self._counted += event["images"]
        elif kind in ("result", "error") and "run" in event:
            (self.runs if kind == "result" else self.failed).add(event["run"])
        if at - self._window >= WINDOW:
            self.rates.append(self._counted / (at - self._window))
            self._window, self._counted = at, 0
            self.save(at)

    def found(self, at: float) -> dict[str, Any]:
        """What was measured."""
        seconds = self._before + at
        low, _, high = quantiles(self.rates, n=4) if len(self.rates) > 1 else [0.0, 0.0, 0.0]
        return {
            "seconds": seconds,
            "images": self.images,
            "images_per_s": self.images / seconds,
            "median": median(self.rates or [0.0]),
            "middle_half": [low, high],
            "runs": len(self.runs),
            "failed": len(self.failed),
            "rates": self.rates,
        }

    def save(self, at: float) -> None:
        """So far, for whoever interrupts."""
        if self._file:
            self._file.write_text(json.dumps(self.found(at), indent=1), encoding="utf-8")


def section(found: dict[str, Any]) -> str:
    """What it measured, in words."""
    low, high = (value / 1e3 for value in found["middle_half"])
    images, minutes, rate = found["images"] / 1e6, found["seconds"] / 60, found["images_per_s"] / 1e3
    return (
        f"{__doc__.split(chr(10) * 2)[2]}\n\n{found['runs']} runs trained on {images:.1f} million images in "
        f"{minutes:.1f} minutes, compiling and evaluating included: {rate:.0f} thousand images/s, and "
        f"{found['median'] / 1e3:.0f} ({low:.0f}-{high:.0f}) in windows of {WINDOW:.0f} seconds.\n"
    )


def main() -> None:
    """Run the block and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "block")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()
    subprocess.run([sys.executable, "-m", "fedshift", "data", "import", "pacs", args.pictures], check=True)
    tally, at = Tally(args.out), 0.0
    for at, event in events(args):
        tally.add(at, event)
    tally.save(at)
    found = tally.found(at)
    print(section(found).split("\n\n")[1], f"{found['failed']} runs failed.")


if __name__ == "__main__":
    main()
