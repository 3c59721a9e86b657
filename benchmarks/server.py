"""The server's arithmetic beside the speed of memory: ratios to plain loops over as many numbers, in the same run.

    python -m benchmarks.server [--clients 10] [--threads 2] [--repeats 9] [--out results.json]

Clients upload a ResNet-50. What a rule cannot do without is counted in passes over one model: `read` sums a vector,
`copy` writes it elsewhere, `axpy` adds it to another. Their times, taken before and after each rule, are its bound; a
ratio of 1 is a rule that costs nothing beyond moving the models once. Memory is that of a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedshift.core import tree
from fedshift.core.importance import ImportanceMean
from fedshift.core.memory import keep_memory
from fedshift.core.minnorm import consensus
from fedshift.core.similarity import align_weights, attend
from fedshift.models import build

from . import processes

Model = dict[str, Tensor]
STREAMED = {"mean": 100, "importance weights": 100, "check of an upload": 100}  # clients of the memory runs; else 10
WARM = 2


class Rule(NamedTuple):
    """What the server computes, and how many passes over one model it cannot do without."""

    job: Callable[[list[Model]], object]
    passes: Callable[[int], Mapping[str, int]]


def by_layer(models: list[Model]) -> dict[str, tuple[str, ...]]:
    """Every tensor a group of its own, as FDSE has it."""
    return {name: (name,) for name in models[0]}


def important(models: list[Model]) -> Model:
    """Each model weighed by the absolute values of the next: no upload is read twice."""
    mean = ImportanceMean()
    for model, other in zip(models, [*models[1:], models[0]], strict=True):
        mean.add(model, other)
    return mean.value


def checked(models: list[Model]) -> list[Tensor]:
    """What is looked for in every upload: NaN and infinity."""
    return [tree.extremes(model)[1] for model in models]


RULES = {
    "mean": Rule(lambda m: tree.mean(iter(m), [1 / len(m)] * len(m)), lambda k: {"copy": 1, "axpy": k - 1}),
    "check of an upload": Rule(checked, lambda k: {"read": k}),
    "importance weights": Rule(important, lambda k: {"copy": 2, "axpy": 2 * (k - 1)}),
    "GradAlign's weights": Rule(align_weights, lambda k: {"read": k}),
    "minimum norm": Rule(lambda m: consensus(m, by_layer(m)), lambda k: {"read": 2 * k - 1, "copy": 1}),
    "similarity attention": Rule(lambda m: attend(m, 0.5), lambda k: {"read": k, "copy": k}),
}


def shapes() -> dict[str, torch.Size]:
    """The parameters of a ResNet-50 for a thousand classes."""
    with torch.device("meta"):
        return {k: v.shape for k, v in build("resnet50", (3, 64, 64), 1000).named_parameters()}


def upload(seed: int, device: str) -> Model:
    """Some numbers, not negative."""
    gen = torch.Generator(device).manual_seed(seed)
    return {k: torch.rand(s, generator=gen, device=device) for k, s in shapes().items()}


def streams(numbers: int, device: str) -> dict[str, Callable[[], object]]:
    """One pass over a vector as long as a model."""
    a, b = torch.rand(numbers, device=device), torch.rand(numbers, device=device)
    return {"read": a.sum, "copy": partial(b.copy_, a), "axpy": partial(b.add_, a, alpha=1e-3)}


def seconds(job: Callable[[], object], device: str) -> float:
    """By the clock, until the device is done."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    job()
    wait()
    return time.perf_counter() - began


def bounds(plain: Mapping[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Seconds of each pass now."""
    return {name: min(seconds(job, device) for _ in range(2)) for name, job in plain.items()}


def race(clients: int, repeats: int, device: str) -> list[dict[str, Any]]:
    """All rules in turn, each between two looks at the speed of memory."""
    models = [upload(k, device) for k in range(clients)]
    plain = streams(sum(t.numel() for t in models[0].values()), device)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
    for repeat in range(WARM + repeats):
        before = bounds(plain, device)
        for name, rule in RULES.items():
            spent = seconds(partial(rule.job, models), device)
            after = bounds(plain, device)
            bound = sum(n * (before[p] + after[p]) / 2 for p, n in rule.passes(clients).items())
            before = after
            if repeat >= WARM:
                times[name].append((spent, bound))
    return [row(name, device, taken) for name, taken in times.items()]


def row(name: str, device: str, taken: list[tuple[float, float]]) -> dict[str, Any]:
    """The medians of a rule."""
    ratios = [spent / bound for spent, bound in taken]
    quarters = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "rule": name,
        "device": device,
        "ms": 1e3 * median(t for t, _ in taken),
        "bound_ms": 1e3 * median(b for _, b in taken),
        "ratio": [median(ratios), quarters[0], quarters[2]],
    }


def speed(device: str) -> dict[str, float]:
    """Gigabytes a second, as each loop reads and writes them."""
    numbers = 1 << 25
    arrays = {"read": 1, "copy": 2, "axpy": 3}
    found = bounds(streams(numbers, device), device)
    return {name: 4 * numbers * arrays[name] / spent / 1e9 for name, spent in found.items()}


# -- memory --------------------------------------------------------------------------------------------
def arriving(clients: int) -> Iterator[Model]:
    """Uploads that nobody keeps but the rule."""
    for k in range(clients):
        yield {name: torch.full(shape, 1.0 + k) for name, shape in shapes().items()}


def peak(name: str, clients: int) -> float:
    """The largest memory of this process while a rule works, in models."""
    size = sum(4 * s.numel() for s in shapes().values())
    before = processes.peak([os.getpid()])
    if name == "mean":
        tree.mean(arriving(clients), [1 / clients] * clients)
    elif name == "importance weights":
        mean = ImportanceMean()
        for model in arriving(clients):
            mean.add(model, model)
    elif name == "check of an upload":
        for model in arriving(clients):
            tree.extremes(model)
    else:
        RULES[name].job(list(arriving(clients)))
    return (processes.peak([os.getpid()]) - before) * 2**20 / size


def memory() -> dict[str, dict[str, float]]:
    """Of each rule, in a process of its own."""
    found = {}
    for name in RULES:
        clients = STREAMED.get(name, 10)
        command = [sys.executable, "-m", "benchmarks.server", "--peak", name, "--clients", str(clients)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        found[name] = {"clients": clients, "models": float(said.stdout)}
    return found


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", choices=RULES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    keep_memory()
    if args.peak:
        print(peak(args.peak, args.clients))
        return
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found = {
        "name": "server",
        "threads": args.threads,
        "clients": args.clients,
        "parameters": sum(s.numel() for s in shapes().values()),
        "speed": {device: speed(device) for device in devices},
        "rows": [line for device in devices for line in race(args.clients, args.repeats, device)],
        "memory": memory(),
    }
    show(found)
    if args.out:
        from .machine import about

        args.out.write_text(json.dumps({"machine": about(), **found}, indent=1) + "\n", encoding="utf-8")


def show(found: Mapping[str, Any]) -> None:
    """Everything, as lines."""
    print(f"{found['clients']} clients of {found['parameters']:,} parameters, {found['threads']} threads")
    for device, speeds in found["speed"].items():
        print(f"{device}: " + ", ".join(f"{name} {value:.1f} GB/s" for name, value in speeds.items()))
    print(f"{'':24}{'ms':>9}{'bound':>9}{'ratio':>8}{'middle half':>15}{'memory':>25}")
    for line in found["rows"]:
        middle, low, high = line["ratio"]
        used = found["memory"][line["rule"]]
        told = f"{used['models']:.1f} models of {used['clients']:.0f}" if line["device"] == "cpu" else line["device"]
        times = f"{line['ms']:9.1f}{line['bound_ms']:9.1f}{middle:8.2f}{low:9.2f}-{high:.2f}"
        print(f"{line['rule']:24}{times}{told:>25}")


if __name__ == "__main__":
    main()
