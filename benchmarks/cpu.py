"""fedshift on the CPU against a bare hand-written loop, on W1 to W4 of `workloads`, all in turn.

    python -m benchmarks.cpu                       # everything: about five minutes on two quiet cores
    python -m benchmarks.cpu --only W1,W2 --turns 9
    python -m benchmarks.cpu --out results.json    # also as JSON, for docs/performance.md

Every contestant is a process of its own with as many threads as there are cores; each turn, all do one round (training,
averaging, scoring) one after another, and a ratio is that to the bare loop in the same turn: the median over the turns,
and the middle half in brackets. `kept` means that freed memory is kept (`fedshift.keep_memory`, as the command line
does). Rounds of the warming up do not count. Ratios by the clock suffer from a busy machine, those of processor time
less.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .race import Contestant, Raced, Ratio, race, ratio, serve

CORES = len(os.sched_getaffinity(0))
THREADS = {"OMP_NUM_THREADS": str(CORES), "OMP_WAIT_POLICY": "PASSIVE"}
AT_ONCE = {"W4": 5}  # rounds in a turn
TURNS = {"W1": 7, "W2": 7, "W3": 3, "W4": 9}


class Way(NamedTuple):
    """How a contestant trains; without an engine it is the bare loop."""

    engine: str = ""
    keep: bool = True
    precision: str = "float32"
    workers: int = 1
    together: bool = True  # tiny networks all at once


BIG: Mapping[str, Way] = {
    "bare": Way(keep=False),
    "bare, kept": Way(),
    "sequential": Way("sequential", keep=False),
    "sequential, kept": Way("sequential"),
    "fast": Way("fast", keep=False),
    "fast, kept": Way("fast"),
    "fast, kept, 2 workers": Way("fast", workers=2),
    "fast, kept, 2 workers, bf16": Way("fast", precision="bf16", workers=2),
}
TINY: Mapping[str, Way] = {
    "bare": Way(keep=False),
    "sequential, kept": Way("sequential"),
    "fast, kept, one by one": Way("fast", together=False),
    "fast, kept": Way("fast"),
}


class Target(NamedTuple):
    """What was promised: a ratio to the bare loop, or milliseconds for a client's round."""

    workload: str
    who: str
    most: float
    what: str = "wall"


TARGETS = (
    *(Target(w, "sequential", 1.02) for w in ("W1", "W2", "W3")),
    Target("W1", "sequential, kept", 0.85),
    Target("W2", "sequential, kept", 0.95),
    Target("W1", "fast, kept", 0.70),
    Target("W2", "fast, kept", 0.65),
    Target("W3", "fast, kept", 0.92),
    *(Target(w, "fast, kept, 2 workers", 0.55) for w in ("W1", "W2")),
    Target("W1", "fast, kept, 2 workers, bf16", 0.45),
    Target("W2", "fast, kept, 2 workers, bf16", 0.45),
    Target("W3", "fast, kept, 2 workers, bf16", 0.60),
    Target("W4", "sequential, kept", 0.6, "more_ms"),
    Target("W4", "fast, kept, one by one", 0.6, "more_ms"),
    Target("W4", "fast, kept", 0.15, "more_ms"),
    *(Target(w, "fast, kept", 1.25, "peak") for w in ("W1", "W2", "W3")),
    Target("W4", "fast, kept", 0.3, "start"),
)
WORDS = {
    "wall": "time of a round, relative to the bare loop",
    "peak": "largest memory, relative to the bare loop",
    "ms": "milliseconds for a client's round",
    "more_ms": "milliseconds more than the bare loop for a client's round",
    "start": "seconds of processor from `import torch` to the end of the first round",
}


def contestants(name: str, only: str) -> list[Contestant]:
    """Who takes part on a workload."""
    ways = TINY if name == "W4" else BIG
    chosen = [who for who in ways if who == "bare" or not only or any(part in who for part in only.split(","))]
    command = [sys.executable, "-m", "benchmarks.cpu", "--serve", name]
    return [Contestant(who, [*command, who], THREADS) for who in chosen]


def take_part(name: str, who: str) -> None:
    """A contestant's process."""
    way = (TINY if name == "W4" else BIG)[who]
    if way.keep:
        from fedshift import keep_memory

        keep_memory()
    import torch

    began = time.process_time()
    torch.set_num_threads(CORES)
    one = bare(name) if not way.engine else fedshift(name, way)
    serve(lambda: [one() for _ in range(AT_ONCE.get(name, 1))], import_cpu=began)


def bare(name: str) -> Callable[[], object]:
    """The hand-written loop."""
    from .workloads import WORKLOADS, Bare

    return Bare(WORKLOADS[name]).round


def fedshift(name: str, way: Way) -> Callable[[], object]:
    """A run as the library makes it."""
    from fedshift.engines import Fast
    from fedshift.engines.loop import run
    from fedshift.experiment.setup import set_up

    from .workloads import WORKLOADS, dataset, experiment

    w = WORKLOADS[name]
    setup = set_up(experiment(w, engine=way.engine, precision=way.precision), dataset(w), way.workers)
    if isinstance(setup.engine, Fast) and not way.together:
        setup.engine.most = 0
    rounds = run(setup.method, setup.task, setup.engine, setup.sites, setup.plan, setup.start())
    if not any(w.test):
        return lambda: next(rounds)
    return lambda: setup.evaluator(setup.method, setup.task, next(rounds))


def measured(name: str, turns: int, only: str) -> dict[str, Any]:
    """The numbers of a workload by contestant."""
    from .workloads import WORKLOADS

    raced, w = race(contestants(name, only), turns), WORKLOADS[name]
    base, visits = raced["bare"], AT_ONCE.get(name, 1) * len(w.train)
    rows = {who: row(result, base, visits) for who, result in raced.items()}
    return {"summary": w.summary, "turns": turns, "who": rows}


def row(mine: Raced, base: Raced, visits: int) -> dict[str, Any]:
    """One contestant's."""
    each = [1e3 * lap.wall / visits for lap in mine.laps]
    more = [1e3 * (a.wall - b.wall) / visits for a, b in zip(mine.laps, base.laps, strict=True)]
    return {
        "wall": ratio([lap.wall for lap in mine.laps], [lap.wall for lap in base.laps]),
        "cpu": ratio([lap.cpu for lap in mine.laps], [lap.cpu for lap in base.laps]),
        "peak": mine.laps[-1].peak / base.laps[-1].peak,
        "ms": statistics.median(each),
        "more_ms": statistics.median(more),
        "start": mine.facts["ready_cpu"] + mine.warm[0].cpu - mine.facts["import_cpu"],
    }


def verdicts(works: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each target beside what was measured."""
    found = []
    for t in TARGETS:
        value = works.get(t.workload, {}).get("who", {}).get(t.who, {}).get(t.what)
        if value is not None:
            value = value[0] if isinstance(value, list | tuple) else value
            found.append({**t._asdict(), "value": value, "met": value <= t.most})
    return found


def section(found: Mapping[str, Any]) -> str:
    """The part of docs/performance.md."""
    text = [
        "A round is training, averaging and scoring; the bare loop is in `benchmarks/workloads.py`. *Kept*: freed "
        "memory is kept, as the command line does. Where two workers train side by side, each has one thread.\n"
    ]
    for name, work in found["workloads"].items():
        text.append(f"\n**{name}**: {work['summary']} ({work['turns']} turns)\n")
        text.append("| | time | processor time | largest memory | ms for a client's round |")
        text.append("|---|---|---|---|---|")
        for who, r in work["who"].items():
            cells = (Ratio(*r["wall"]), Ratio(*r["cpu"]), f"{r['peak']:.2f}", f"{r['ms']:.2f}")
            text.append(f"| {who} | {' | '.join(str(cell).strip() for cell in cells)} |")
    text += ["\n| target | at most | measured | |", "|---|---|---|---|"]
    for v in found["targets"]:
        words = f"{v['workload']}, {v['who']}: {WORDS[v['what']]}"
        text.append(f"| {words} | {v['most']:g} | {v['value']:.2f} | {'met' if v['met'] else 'missed'} |")
    return "\n".join(text)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TURNS), metavar="LIST", help="workloads (default: %(default)s)")
    parser.add_argument("--who", default="", metavar="LIST", help="contestants whose names hold one of these words")
    parser.add_argument("--turns", type=int, metavar="N", help=f"turns that count (default: {TURNS})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")
    parser.add_argument("--serve", nargs=2, metavar=("WORKLOAD", "WHO"), help="take part; used by the benchmark itself")
    args = parser.parse_args(argv)
    if args.serve:
        take_part(*args.serve)
        return
    works: dict[str, Any] = {}
    for name in args.only.split(","):
        works[name] = measured(name, args.turns or TURNS[name], args.who)
        print(f"\n{name}: {works[name]['summary']}\n{'':30}{'time':>18}{'processor':>20}{'memory':>8}{'ms/client':>11}")
        for who, r in works[name]["who"].items():
            print(f"{who:30}{r['wall']!s:>18}{r['cpu']!s:>20}{r['peak']:8.2f}{r['ms']:11.2f}", flush=True)
    found = {"workloads": works, "targets": verdicts(works), "cores": CORES}
    print()
    for v in found["targets"]:
        mark = "met   " if v["met"] else "MISSED"
        print(f"{mark} {v['workload']} {v['who']}: {v['value']:.2f}, at most {v['most']:g} ({WORDS[v['what']]})")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
