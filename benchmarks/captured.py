"""The captured engine on a GPU, through the public API on real pictures with augmentation and evaluation.

    python -m benchmarks.captured PACS.npz [--out results.json]

Prints images/s of training rounds for 3 and 12 clients in tf32 and bf16: alone, with a checkpoint every round, and with
an evaluation every five rounds as well; beside the plain loop (`sequential`) on the same GPU. And how far a captured
run in float32 is from that loop.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedshift.core import state as states
from fedshift.data import DATASETS, load, presets, save_manifest
from fedshift.data.find import find
from fedshift.engines.loop import run
from fedshift.experiment import strict
from fedshift.experiment.config import Experiment
from fedshift.experiment.runs import Folder, execute
from fedshift.experiment.setup import set_up

DEVICE = "cuda"


def experiment(*sets: str) -> Experiment:
    """The hFedF preset, changed."""
    return strict.build(Experiment, strict.merge(presets.preset("hfedf"), [f"device={DEVICE}", *sets]))


def rounds(config: Experiment, data: Any, count: int) -> Iterator[float]:
    """Seconds of each round, saved and recorded as always."""
    with tempfile.TemporaryDirectory() as folder:
        before = None
        for event in execute(config, Folder(Path(folder)), data):
            if before is not None:
                yield event.seconds - before
            before = event.seconds
            if event.round > count:
                return


def throughput(config: Experiment, data: Any, count: int = 16) -> dict[str, float]:
    """Images trained on per second, over rounds after the first two."""
    visits = sum(2 * site.examples for site in set_up(config, data).sites)
    start = time.perf_counter()
    seconds = list(rounds(config, data, count))
    total = time.perf_counter() - start
    kept = sorted(seconds[1:])
    return {
        "images_per_s": visits * len(kept) / sum(kept),
        "median": visits / median(kept),
        "first_rounds_s": total - sum(kept),
        "visits": visits,
    }


def gap(config_a: Experiment, config_b: Experiment, data: Any) -> float:
    """The largest relative difference of two engines' states after one round."""
    ends = []
    for config in (config_a, config_b):
        setup = set_up(config, data)
        state = next(run(setup.method, setup.task, setup.engine, setup.sites, setup.plan, setup.start()))
        ends.append(states.flatten(state.server) or states.flatten({"m": state.memory}))
    a, b = ends
    return max(
        float((a[k].double() - b[k].double()).norm() / b[k].double().norm().clamp(min=1e-12)) for k in a if a[k].numel()
    )


def cases() -> dict[str, list[str]]:
    """What is measured, by name: the settings of each."""
    plain, saved = ["eval.every=1000", "checkpoint=1000"], ["eval.every=1000", "checkpoint=1"]
    extras = {
        "training alone": plain,
        "saved every round": saved,
        "saved and evaluated": ["eval.every=5", "checkpoint=1"],
    }
    found = {"3 clients, one after another, float32": ["engine=sequential", "data.clients=3", *plain]}
    for precision in ("bf16", "tf32"):
        for clients in (3, 12):
            for extra, sets in extras.items():
                how = ["engine=captured", f"precision={precision}", f"data.clients={clients}"]
                found[f"{clients} clients, {precision}, {extra}"] = [*how, *sets]
    return found


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    save_manifest(find(DATASETS["pacs"], args.pictures))
    data = load("pacs", 32, "squash")
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    for method in ("fedavg", "fedprox", "scaffold", "local") if "equal" in args.only or not args.only else ():
        sets = [f"method={method}", "local.epochs=1", "local.steps=50", 'data.left_out=["photo"]']
        value = gap(experiment(*sets, "engine=captured"), experiment(*sets, "engine=sequential"), data)
        results[f"gap {method}"] = value
        print(f"{method}: captured against sequential, float32, 50 steps: {value:.2e} relative", flush=True)
    for name, sets in cases().items() if "speed" in args.only or not args.only else ():
        row = throughput(experiment('data.left_out=["photo"]', *sets), data, args.rounds)
        results[name] = row
        print(
            f"{name}: {row['images_per_s'] / 1e3:.1f} k images/s (median round {row['median'] / 1e3:.1f}), "
            f"{row['first_rounds_s']:.1f} s for the first two rounds",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
