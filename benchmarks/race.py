"""Who is how much faster than whom: contestants in processes of their own, who take turns at one round each.

A contestant is a command that calls `serve` with a function that does one round. `race` starts all of them, lets each
warm up, and then asks one after the other, so that a busy machine slows all alike; the ratio to the first contestant is
taken within each turn. Nothing but the standard library is needed here, so that a contestant may live in an environment
of its own.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Contestant(NamedTuple):
    """Its name, the command that serves rounds, and what is special about its environment."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = {}


class Lap(NamedTuple):
    """One round: seconds by the clock, seconds of processors, and the process's largest memory until then in MiB."""

    wall: float
    cpu: float
    peak: float


def serve(round_: Callable[[], object], **facts: Any) -> None:
    """Do a round for every line on stdin, and answer on what was stdout with a line of JSON; `facts` come first."""
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints, prints on stderr
    print(json.dumps({"ready_cpu": time.process_time(), **facts}), file=tell, flush=True)
    for _ in sys.stdin:
        began, spent = time.perf_counter(), _cpu()
        round_()
        lap = Lap(time.perf_counter() - began, _cpu() - spent, _peak())
        print(json.dumps(lap), file=tell, flush=True)


def _cpu() -> float:
    return sum(os.times()[:4])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Runner:
    """A contestant's process."""

    def __init__(self, who: Contestant) -> None:
        self.who, self.facts = who, dict[str, Any]()
        self.laps, self.warm = list[Lap](), list[Lap]()
        env = {**os.environ, **who.env}
        self._process = subprocess.Popen(
            who.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, stderr=sys.stderr
        )

    def ready(self) -> bool:
        """Wait until it can begin; false if it cannot."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        self.facts = json.loads(line) if line else {}
        return bool(line)

    def lap(self) -> Lap:
        """One round."""
        assert self._process.stdin and self._process.stdout
        print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.who.name}: ended in the middle of a round; its message is above.")
        return Lap(*json.loads(line))

    def close(self) -> None:
        """It ends when nobody asks any more."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class Raced(NamedTuple):
    """A contestant's laps, those of the warming up, and what it told of itself."""

    laps: list[Lap]
    warm: list[Lap]
    facts: dict[str, Any]


def race(contestants: Sequence[Contestant], laps: int, warm: int = 1) -> dict[str, Raced]:
    """The laps of each contestant that could begin, all in turn."""
    runners = []
    try:
        for who in contestants:  # one after another: loading is not a race
            runner = Runner(who)
            runners.append(runner)
            if not runner.ready():
                print(f"{who.name}: could not begin; its message is above.", file=sys.stderr)
        able = [r for r in runners if r.facts]
        for turn in range(warm + laps):
            for runner in able:
                (runner.laps if turn >= warm else runner.warm).append(runner.lap())
        return {r.who.name: Raced(r.laps, r.warm, r.facts) for r in able}
    finally:
        for runner in runners:
            runner.close()


class Ratio(NamedTuple):
    """The median over turns, and the middle half."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of two rows of numbers, turn by turn."""
    each = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    if len(each) < 2:
        return Ratio(each[0], each[0], each[0])
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
    return Ratio(middle, low, high)
