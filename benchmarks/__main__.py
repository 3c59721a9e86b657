"""All measurements, and the page made from them.

    python -m benchmarks                      # everything that this machine can measure, then docs/performance.md
    python -m benchmarks --only peers,cpu     # these parts; the page takes the others from benchmarks/results
    python -m benchmarks --only same          # untimed: whether all peers compute the same; after changes of theirs
    python -m benchmarks --only ''            # the page alone

Each part is a program of its own that writes `benchmarks/results/PART.json`, with the machine and the date. A file made
on another machine may be put there: the page says of each part where it was measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from . import machine, page


def measure(part: str, arguments: list[str]) -> bool:
    """Run a part; what was there before stays if it fails."""
    new = page.RESULTS / f"{part}.new"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{part}", *arguments, "--out", new], cwd=page.ROOT, check=False
    )
    if done.returncode or not new.exists():
        new.unlink(missing_ok=True)
        return False
    found = json.loads(new.read_text(encoding="utf-8"))
    found = {"machine": machine.about(), **(found if isinstance(found, dict) else {"rows": found})}
    found["seconds"] = round(time.perf_counter() - began)
    (page.RESULTS / f"{part}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    new.unlink()
    return True


def wanting(part: str, args: argparse.Namespace) -> str:
    """What a part would need and is not here, or nothing."""
    if not (page.ROOT / "benchmarks" / f"{part}.py").exists():
        return "it is not written yet"
    if part == "feeding" and "FEDSHIFT_DATA" not in os.environ:
        return "FEDSHIFT_DATA does not name a folder with data"
    if part in ("captured", "block"):
        import torch

        if not torch.cuda.is_available():
            return "there is no GPU"
        if args.pacs is None:
            return "--pacs names no pictures"
    return ""


def main(argv: list[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    timed = ",".join(part for part in page.PARTS if part != "same")
    parser.add_argument("--only", default=timed, help="parts, by comma (default: %(default)s)")
    parser.add_argument("--pacs", type=Path, help="PACS, for `captured` and `block`")
    parser.add_argument("--peers-env", type=Path, help="the peers' environment, if not build/peers")
    args = parser.parse_args(argv)
    page.RESULTS.mkdir(exist_ok=True)
    env = ["--env", args.peers_env] if args.peers_env else []
    more = {"captured": [args.pacs], "block": [args.pacs], "peers": env, "same": env}
    for part in filter(None, args.only.split(",")):
        if part not in page.PARTS:
            sys.exit(f"{part!r} is no part of the benchmarks, expected {', '.join(page.PARTS)}")
        reason = wanting(part, args)
        if not reason and not measure(part, [str(a) for a in more.get(part, [])]):
            reason = "it failed; its message is above"
        print(f"{part}: {reason or 'measured'}{' - what was measured before stays' * bool(reason)}", flush=True)
    page.write()


if __name__ == "__main__":
    main()
