"""Whether the contestants of `peers` compute the same: two rounds in float64, and how far each is from the bare loop.

    python -m benchmarks.same --env FOLDER [--out results.json]

Nothing is timed here, so it may be run on a busy machine, and needs to be run again only when an adapter or a peer's
version changes.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .page import cells


def compared(name: str, python: Path, threads: int) -> dict[str, Any]:
    """How far each one's weights are from the bare loop's after each round, relative to their norm, or why not."""
    from .peers import CHECKED, CONTESTANTS, Gone, Runner, difference, give
    from .workloads import WORKLOADS

    found: dict[str, Any] = {}
    bare: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as folder:
        give(WORKLOADS[name], Path(folder), CHECKED + 1, threads, double=True)
        for c in CONTESTANTS:
            runner = Runner(c, Path(folder), python if c.package else Path(sys.executable), threads)
            try:
                runner.first()
                bare = bare or runner.weights
                gaps = [difference(mine, theirs) for mine, theirs in zip(runner.weights, bare, strict=True)]
                found[c.name] = [float(f"{gap:.1e}") for gap in gaps]
            except Gone as gone:
                found[c.name] = str(gone)
            finally:
                runner.close()
    return found


def section(found: Mapping[str, Any]) -> str:
    """A table: contestants and workloads."""
    works: Mapping[str, Mapping[str, Any]] = found["workloads"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = f"""How far the averaged model is from the bare loop's after one round and after two, in float64, relative to
its norm. *Equal* is equal to the last bit; sums in another order leave about 1e-16. pfl takes differences of models in
float32, which a second round of training may make much more of. Versions: {versions}.

{cells(["", *works])}
{cells(["---"] * (len(works) + 1))}
"""
    for who in dict.fromkeys(who for work in works.values() for who in work):
        text += cells([who, *(_gap(work.get(who)) for work in works.values())]) + "\n"
    return text


def _gap(value: Sequence[float] | str | None) -> str:
    if isinstance(value, str):
        return f"did not run: {value}".replace("|", "/")
    gaps = ["equal" if not gap else f"{gap:.0e}" for gap in value or ()]
    return gaps[0] if len(set(gaps)) == 1 else ", ".join(gaps)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare, print, write."""
    from .peers import ENVIRONMENT, environment, installed

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ENVIRONMENT, help="the peers' environment; made if not there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="W1,W2,W3,W4", help="workloads")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    python = environment(args.env.absolute())
    works = {}
    for name in args.only.split(","):
        works[name] = compared(name, python, args.threads)
        print(name, *(f"{who}: {_gap(value)}" for who, value in works[name].items()), sep="\n  ", flush=True)
    if args.out:
        found = {"versions": installed(python), "workloads": works}
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
