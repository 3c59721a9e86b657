"""Other frameworks on the same mathematics: W1 to W4 of `workloads`, each contestant in a process of its own.

    python -m benchmarks.peers --env FOLDER                 # makes the peers' environment there, and measures
    python -m benchmarks.peers --out results.json --only W1,W4 --turns 5

All train the same network from the same weights on the same batches with plain SGD, and score the averaged model on
the same test pictures. Two rounds come first, and the weights after them are compared with those of the bare loop (by
`same` in float64): that all compute the same is not taken on trust. Then all take turns; a ratio is that to the bare
loop in the same turn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any, NamedTuple

import numpy as np
import torch

from fedshift.core import seeds
from fedshift.data.augment import Transform
from fedshift.data.recipes import RECIPES
from fedshift.experiment.config import EvalConfig

from . import machine, processes
from .race import ratio
from .workloads import CLASSES, WORKLOADS, Workload, clients, network

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "peers"
REQUIREMENTS = Path(__file__).with_name("requirements-peers.txt")
TORCH = "torch==2.13.0"
CHECKED = 2  # rounds before the weights are compared
LIMIT = 600  # seconds until a contestant is given up
SAME = 0.01  # of what training changed: more than float32 sums in another order come to, less than other batches
AT_ONCE = {"W4": 4}  # rounds in one turn, where one is too short to be measured
MOST = {"W3": 3}  # turns, where one round is long


class Contestant(NamedTuple):
    """Its name in tables, its module, what it is told, and what it needs."""

    name: str
    module: str
    settings: tuple[str, ...] = ()
    package: str = ""  # of the peers' environment
    env: tuple[tuple[str, str], ...] = ()
    restless: bool = False


CONTESTANTS = (
    Contestant("bare loop", "bare"),
    Contestant("naive idiom", "naive"),
    Contestant("PFLlib's shape", "model_each"),
    Contestant("pfl-research", "with_pfl", package="pfl"),
    Contestant("FLGo", "with_flgo", package="flgo"),
    Contestant("Flower simulation", "with_flower", package="flwr", restless=True),
    Contestant("fedshift strict", "with_fedshift"),
    Contestant("fedshift fast, memory kept", "with_fedshift", ("keep", "engine=fast")),
    Contestant("the same, a worker for each core", "with_fedshift", ("keep", "engine=fast", "workers")),
)


class Gone(Exception):
    """A contestant ended, or did not answer in time."""


# -- the peers' environment --------------------------------------------------------------------------------------------
def environment(folder: Path) -> Path:
    """Its Python; made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TORCH]
        subprocess.run(pip, check=False)  # what is missing is each peer's reason in the table
        if subprocess.run([*pip, "-r", REQUIREMENTS], check=False).returncode:
            for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
                if line and not line.startswith("#"):  # one that cannot be had does not keep the others out
                    subprocess.run([*pip, line], check=False)
    return python


def installed(python: Path) -> dict[str, str]:
    """Versions of what matters there."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=False)
    found = {p["name"].lower(): p["version"] for p in json.loads(listed.stdout or "[]")}
    return {name: found[name] for name in ("flwr", "ray", "flgo", "pfl", "torch", "numpy") if name in found}


# -- what everybody is given -------------------------------------------------------------------------------------------
def give(w: Workload, folder: Path, rounds: int, threads: int, *, double: bool = False) -> None:
    """A workload as files; see `contest/given.py`."""
    see = Transform(RECIPES["none"], torch.float64 if double else torch.float32).test
    for k, client in enumerate(clients(w)):
        np.save(folder / f"x{k}.npy", see(client.images).numpy())
        np.save(folder / f"y{k}.npy", client.labels.numpy())
    np.savez(folder / "initial.npz", **{k: v.numpy() for k, v in network(w).state_dict().items()})
    np.save(folder / "seeds.npy", np.array([[_seed(n, k) for k in range(len(w.train))] for n in range(rounds)]))
    about = {k: getattr(w, k) for k in ("name", "model", "image", "train", "test", "batch", "lr", "options")}
    more = {
        "classes": CLASSES,
        "eval_batch": EvalConfig().batch,
        "rounds": rounds,
        "threads": threads,
        "double": double,
    }
    (folder / "given.json").write_text(json.dumps({**about, **more}), encoding="utf-8")


def _seed(number: int, client: int) -> int:
    """Of a client's order in a round, as fedshift draws it."""
    return seeds.derive(seeds.derive(0, "round", "main", number, f"site{client:03}"), "order")


# -- one contestant ----------------------------------------------------------------------------------------------------
@dataclass
class Lap:
    """Rounds done at once: seconds by the clock, seconds of processors."""

    wall: float
    cpu: float


@dataclass
class Runner:
    """A contestant's process, and what was measured."""

    who: Contestant
    given: Path
    python: Path
    threads: int
    laps: list[Lap] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    weights: list[dict[str, Any]] = field(default_factory=list)  # after each round that is checked

    def __post_init__(self) -> None:
        """Start the process; the clock to its first round runs from here."""
        threads = {"OMP_NUM_THREADS": str(self.threads)}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": str(self.given / "flwr")}
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.file = self.given / "".join(filter(str.isalnum, self.who.name))
        self.began, self.errors = time.perf_counter(), self.file.with_suffix(".txt")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [self.python, "-m", "benchmarks.contest", self.who.module, self.given, *self.who.settings],
                cwd=ROOT, env={**os.environ, **threads, **quiet, **path, **dict(self.who.env)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.family = [self.process.pid]

    def first(self) -> None:
        """From the start of the process to the end of the first round, and on to the last that is checked."""
        for number in range(CHECKED):
            file = self.file.with_suffix(f".{number}.npz")
            told = self._ask(f"1 {file}")
            if not number:
                self.facts["first_round_s"] = time.perf_counter() - self.began
                self.family = processes.family(self.process.pid)
                self.facts["first_round_cpu_s"] = processes.cpu(self.family)
            self._answer()
            with np.load(file) as saved:
                self.weights.append({k.removeprefix("model."): saved[k] for k in saved})
            file.unlink()
        self.facts |= {"accuracy": told["accuracy"], "sent": told["sent"]}

    def lap(self, rounds: int) -> None:
        """So many rounds, measured."""
        began, spent = time.perf_counter(), processes.cpu(self.family)
        self._ask(str(rounds))
        wall = time.perf_counter() - began
        self.family = processes.family(self.process.pid)
        self.laps.append(Lap(wall / rounds, (processes.cpu(self.family) - spent) / rounds))

    def _ask(self, text: str) -> dict[str, Any]:
        assert self.process.stdin
        try:
            print(text, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Gone(self.reason()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        patience = Timer(LIMIT, lambda: processes.end(processes.family(self.process.pid)))
        patience.start()
        line = self.process.stdout.readline()
        if not patience.is_alive():
            raise Gone(f"no answer in {LIMIT} s")
        patience.cancel()
        if not line:
            raise Gone(self.reason())
        told: dict[str, Any] = json.loads(line)
        return told

    def reason(self) -> str:
        """The last line it has left, without this machine's paths."""
        lines = [line.strip() for line in self.errors.read_text(errors="replace").splitlines() if line.strip()]
        return (lines[-1] if lines else "ended without a word").replace(str(ROOT), ".")[:200]

    def close(self) -> None:
        """The end, for it and for all that it has started."""
        self.facts["peak_mib"] = processes.peak(self.family)
        self.family = sorted({*self.family, *processes.family(self.process.pid)})
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        processes.end(self.family)
        self.process.wait()


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Of two models: the norm of what is between them, relative to the second's."""
    names = [k for k, v in b.items() if v.dtype.kind == "f"]
    gap = sum(float(np.square(a[k].astype(np.float64) - b[k]).sum()) for k in names)
    return float((gap / sum(float(np.square(b[k].astype(np.float64)).sum()) for k in names)) ** 0.5)


# -- a workload --------------------------------------------------------------------------------------------------------
def contest(w: Workload, who: Sequence[Contestant], python: Path, turns: int, threads: int) -> dict[str, Any]:
    """Everybody in turn; a row for each, with the reason where there are no numbers.

    Those whose processes compute even while they wait come last, each alone with the bare loop.
    """
    bare, *rest = who
    groups = [[c for c in rest if not c.restless], *([c] for c in rest if c.restless)]
    at_once = AT_ONCE.get(w.name, 1)
    with tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as folder:
        give(w, Path(folder), CHECKED + len(groups) * at_once * turns + 1, threads)  # one more: nobody ends by himself
        first = Runner(bare, Path(folder), Path(sys.executable), threads)
        try:
            first.first()
            found = [_group(first, group, python, turns, at_once) for group in groups]
        finally:
            first.close()
    rows = {bare.name: _row(first, first.laps[:turns]), **{k: v for rows in found for k, v in rows.items()}}
    moved = difference({k: v.numpy() for k, v in network(w).state_dict().items()}, first.weights[-1])
    for row in rows.values():
        if "weights" in row:
            gap = difference(row.pop("weights"), first.weights[-1])
            row |= {"difference": float(f"{gap:.1e}"), "same": gap <= SAME * moved}
    return {
        "summary": w.summary, "images": w.images, "clients": len(w.train),
        "moved": float(f"{moved:.1e}"),
        "rows": {c.name: rows[c.name] for c in who},
    }  # fmt: skip


def _group(
    bare: Runner, who: Sequence[Contestant], python: Path, turns: int, at_once: int
) -> dict[str, dict[str, Any]]:
    """Some contestants and the bare loop."""
    reasons: dict[str, str] = {}
    runners: list[Runner] = []
    before = len(bare.laps)

    def attempt(runner: Runner, act: Callable[[], None]) -> None:
        try:
            act()
        except Gone as gone:
            reasons[runner.who.name] = str(gone)

    try:
        for c in who:
            runner = Runner(c, bare.given, python if c.package else bare.python, bare.threads)
            runners.append(runner)
            attempt(runner, runner.first)
        for _ in range(turns):
            bare.lap(at_once)
            for runner in runners:
                if runner.who.name not in reasons:
                    attempt(runner, partial(runner.lap, at_once))
    finally:
        for runner in runners:
            runner.close()
    theirs = bare.laps[before:]
    return {r.who.name: {"reason": reasons[r.who.name]} if r.who.name in reasons else _row(r, theirs) for r in runners}


def _row(runner: Runner, bare: Sequence[Lap]) -> dict[str, Any]:
    row: dict[str, Any] = {k: _short(v) for k, v in runner.facts.items()}
    for kind in ("wall", "cpu"):
        mine, theirs = ([getattr(lap, kind) for lap in laps[: len(bare)]] for laps in (runner.laps, bare))
        row[f"{kind}_s"] = _short(median(mine))
        row[f"{kind}_ratio"] = [_short(v) for v in ratio(mine, theirs)]
    return {**row, "weights": runner.weights[-1]}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def told(name: str, found: dict[str, Any]) -> str:
    """A workload's rows as text."""
    lines = [f"{name}: {found['summary']}"]
    for who, row in found["rows"].items():
        if "wall_ratio" not in row:
            lines.append(f"  {who:20} did not run: {row.get('reason', 'no reason given')}")
            continue
        wall, cpu = (row[f"{kind}_ratio"] for kind in ("wall", "cpu"))
        lines.append(
            f"  {who:30} {wall[0]:6.2f} ({wall[1]:.2f}-{wall[2]:.2f}) of bare, cpu {cpu[0]:.2f}, {row['peak_mib']:.0f} "
            f"MiB, first round {row['first_round_cpu_s']:.1f} s of cpu, weights {row['difference']:.0e} away"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ENVIRONMENT, help="the peers' environment; made if not there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads")
    parser.add_argument("--who", default="", help="contestants beside the bare loop, by module; all if not given")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    who = [c for c in CONTESTANTS if not args.who or c.module in ("bare", *args.who.split(","))]
    python = environment(args.env.absolute())
    results: dict[str, Any] = {
        "threads": args.threads, "turns": args.turns, "versions": installed(python), "machine": machine.about(),
    }  # fmt: skip
    for name in args.only.split(","):
        turns = min(args.turns, MOST.get(name, args.turns))
        results[name] = contest(WORKLOADS[name], who, python, turns, args.threads)
        print(told(name, results[name]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
