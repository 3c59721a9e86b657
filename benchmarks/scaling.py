"""How the time and memory of a round grow with clients, parameters, rounds and seeds; and what comes before the first.

    python -m benchmarks.scaling [--threads 1] [--out results.json] [--pictures docs/images/performance]

Every point is a process of its own that makes synthetic pictures of 8x8 and trains through the public API: a client has
32 of them, one epoch in batches of 8, and a perceptron. Memory is the largest of the process beyond what it held before
the run. `bytes` are those of one upload. The first round counts processor seconds after `import torch`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

Point = dict[str, Any]
ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "images" / "performance"
CLIENTS = (3, 10, 30, 100, 300, 1000)
HIDDEN = {1e3: (5,), 1e4: (51,), 1e5: (510,), 1e6: (1000, 800), 1e7: (3000, 3000), 2.5e7: (4800, 4900)}
ROUNDS = (10, 30, 100, 300)
SEEDS = (1, 3, 10)
BASE: Point = {"kind": "rounds", "clients": 4, "hidden": (16,), "rounds": 6, "method": "fedavg", "engine": "sequential"}
FIRST = {
    "from Python": ("python", "sequential"),
    "fedshift run, engine sequential": ("command", "sequential"),
    "fedshift run, engine auto": ("command", "auto"),
    "fedshift run, glyphs": ("glyphs", "sequential"),
}


def points() -> list[Point]:
    """All that is measured, by series."""
    three = (("fedavg", "sequential"), ("fedavg", "fast"), ("scaffold", "sequential"))
    made = [
        BASE | {"series": "clients", "x": n, "clients": n, "method": m, "engine": e} for n in CLIENTS for m, e in three
    ]
    made += [BASE | {"series": "parameters", "x": n, "hidden": h} for n, h in HIDDEN.items()]
    made += [BASE | {"series": "rounds", "x": n, "rounds": n} for n in ROUNDS]
    made += [BASE | {"series": "seeds", "x": n, "kind": "seeds", "rounds": 10} for n in SEEDS]
    return made


# -- in a process of its own ---------------------------------------------------------------------------
def settings(point: Point, seed: int = 0) -> Any:
    """The experiment of a point."""
    from fedshift.experiment.config import EvalConfig, Experiment, FederationConfig, LocalConfig, ModelConfig
    from fedshift.methods import METHODS

    rounds = point["rounds"]
    return Experiment(
        method=METHODS[point["method"]](),
        seed=seed,
        model=ModelConfig("mlp", {"hidden": tuple(point["hidden"])}),
        federation=FederationConfig(rounds=rounds),
        local=LocalConfig(batch=8),
        eval=EvalConfig(every=rounds),
        engine=point["engine"],
        checkpoint=rounds,
    )


def walk(point: Point) -> Point:
    """The rounds of one run: those between the first, in which much is made, and the last, which is evaluated."""
    from fedshift.experiment.runs import Folder, execute
    from fedshift.testing import tiny_data

    from . import processes

    data, me = tiny_data((46,) * point["clients"]), [os.getpid()]  # 32 train where the protocol takes seven tenths
    before, marks = processes.peak(me), [(time.perf_counter(), time.process_time())]
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place) / "run")
        for event in execute(settings(point), folder, data):
            marks.append((time.perf_counter(), time.process_time()))
            record = event.record
        size = folder.checkpoint.stat().st_size
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks[1:-1])]
    assert record is not None
    return {
        "ms": 1e3 * median(wall for wall, _ in spent),
        "cpu_ms": 1e3 * median(cpu for _, cpu in spent),
        "total_s": marks[-1][0] - marks[0][0],
        "mib": processes.peak(me) - before,
        "bytes": record["bytes_up"] / point["rounds"] / point["clients"],
        "checkpoint_bytes": size,
    }


def compare(point: Point) -> Point:
    """So many seeds by `fedshift compare`."""
    from fedshift.cli.main import main as fedshift

    from . import processes

    register(point)
    before, began, cpu = processes.peak([os.getpid()]), time.perf_counter(), time.process_time()
    seeds = ",".join(map(str, range(point["x"])))
    with tempfile.TemporaryDirectory() as place:
        words = ["compare", "--methods", point["method"], "--seeds", seeds, "--out", place, "--json", *chosen(point)]
        assert fedshift(words) == 0
    total = time.perf_counter() - began
    mib = processes.peak([os.getpid()]) - before
    return {"ms": 1e3 * total, "cpu_ms": 1e3 * (time.process_time() - cpu), "total_s": total, "mib": mib}


def register(point: Point) -> None:
    """Synthetic pictures as a data set that the command line knows."""
    from fedshift.data import DATASETS, Source
    from fedshift.testing import tiny_data

    data = tiny_data((46,) * point["clients"])
    names = tuple(domain.name for domain in data.domains)
    DATASETS["tiny"] = Source("tiny", "synthetic", "made up", "none", names, lambda: data)


def chosen(point: Point) -> list[str]:
    """The settings of a point, as words."""
    hidden = ",".join(map(str, point["hidden"]))
    return [
        *("--engine", point["engine"], "--set", "data.name=tiny", "model.name=mlp", f"model.options.hidden=[{hidden}]"),
        *(f"federation.rounds={point['rounds']}", "local.batch=8", f"eval.every={point['rounds']}"),
    ]


def first(point: Point) -> Point:
    """Processor seconds from `import torch` to the end of the first round."""
    from fedshift.core.memory import keep_memory

    keep_memory()
    import torch

    torch.set_num_threads(1)
    began = time.process_time()
    if point["what"] == "python":
        import fedshift.experiment.runs
        import fedshift.testing
    else:
        import fedshift.cli.main
        import fedshift.cli.run  # noqa: F401
    imported = time.process_time()
    if point["what"] == "python":
        walk_once(point)
    else:
        run_once(point)
    return {
        "imports_s": imported - began,
        "run_s": time.process_time() - imported,
        "cpu_s": time.process_time() - began,
    }


def walk_once(point: Point) -> None:
    """One round, saved and evaluated."""
    from fedshift.experiment.runs import Folder, execute
    from fedshift.testing import tiny_data

    with tempfile.TemporaryDirectory() as place:
        list(execute(settings(point), Folder(Path(place) / "run"), tiny_data((46,) * point["clients"])))


def run_once(point: Point) -> None:
    """The same by the command line."""
    from fedshift.cli.main import main as fedshift

    if point["what"] == "command":
        register(point)
        words = chosen(point)
    else:
        words = ["--engine", "sequential", "--set", "model.name=mlp", "local.steps=1"]
    with tempfile.TemporaryDirectory() as place:
        assert fedshift(["run", "--out", place, "--json", *words, "--set", "federation.rounds=1"]) == 0


KINDS = {"rounds": walk, "seeds": compare, "first": first}


def child(point: Point, threads: int) -> None:
    """Measure one point; the last line on stdout is the answer."""
    if point["kind"] == "first":
        print("\n" + json.dumps(first(point)))
        return
    from fedshift.core.memory import keep_memory

    keep_memory()
    import torch

    torch.set_num_threads(threads)
    print("\n" + json.dumps(KINDS[point["kind"]](point)))


# -- all points ----------------------------------------------------------------------------------------
def ask(point: Point, threads: int) -> Point:
    """A point, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--threads", str(threads), "--point", json.dumps(point)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env, check=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


def firsts(repeats: int) -> list[Point]:
    """What comes before the end of the first round, in turn, as medians."""
    taken: dict[str, list[Point]] = {name: [] for name in FIRST}
    for repeat in range(repeats + 1):
        for name, (what, engine) in FIRST.items():
            found = ask(BASE | {"kind": "first", "rounds": 1, "what": what, "engine": engine}, 1)
            if repeat:  # the first time, files are read from the disk
                taken[name].append(found)
    return [
        {"what": name, **{key: median(each[key] for each in found) for key in found[0]}}
        for name, found in taken.items()
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="of the first round")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="a folder for the charts")
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.point:
        child(args.point, args.threads)
        return
    from . import scaling_page
    from .machine import about

    rows = []
    for point in points():
        rows.append(point | ask(point, args.threads))
        print(scaling_page.line(rows[-1]), flush=True)
    found = {"name": "scaling", "threads": args.threads, "rows": rows, "first": firsts(args.repeats)}
    print(scaling_page.section(found))
    if args.out:
        args.out.write_text(json.dumps({"machine": about(), **found}, indent=1) + "\n", encoding="utf-8")
    scaling_page.draw(found, args.pictures)


if __name__ == "__main__":
    main()
