"""Run folders written by hand."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

Record = dict[str, Any]

CONFIG: dict[str, Any] = {
    "seed": 0,
    "engine": "sequential",
    "device": "cpu",
    "precision": "float32",
    "checkpoint": 1,
    "method": {"name": "fedavg"},
    "data": {
        "name": "glyphs",
        "left_out": [],
        "clients_per_domain": 1,
        "limit": 0,
        "val": 0.1,
        "test": 0.2,
        "recipe": "none",
        "leak": "no",
    },
    "model": {"name": "small-cnn", "options": {}},
    "federation": {"rounds": 3, "participation": 1.0, "weights": "examples", "buffers": "mean"},
    "local": {"epochs": 1, "steps": 0, "batch": 32, "keep_optimizer": False},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "schedule": {"kind": "constant"},
    "eval": {"every": 1, "batch": 128, "unseen": "auto", "select": "last"},
}
VERSIONS = {"fedshift": "0.1.0", "torch": "2.13.0", "machine": "x86_64", "threads": 2, "gpu": None}


def toml(table: dict[str, Any], path: str = "") -> str:
    """Enough of TOML for a configuration."""
    flat = "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items() if not isinstance(v, dict))
    inner = "".join(f"[{path}{k}]\n{toml(v, f'{path}{k}.')}" for k, v in table.items() if isinstance(v, dict))
    return flat + inner


def score(accuracy: float, n: int = 100) -> dict[str, float]:
    return {"accuracy": accuracy, "loss": 1 - accuracy, "n": n}


def record(
    number: int,
    test: dict[str, float],
    unseen: dict[str, float],
    val: dict[str, float] | None = None,
    up: int = 0,
    down: int = 0,
    rule: str = "global",
) -> Record:
    """One evaluation."""
    sites = {site: {"val": score((val or test)[site]), "test": score(a)} for site, a in test.items()}
    away = {domain: {"test": score(a), "rule": rule} for domain, a in unseen.items()}
    numbers = {"round": number, "bytes_up": up, "bytes_down": down, "train": {"loss": 1.0}}
    return {**numbers, "sites": sites, "global": sites, "unseen": away}


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a run's folder."""

    def one(
        name: str,
        records: list[Record],
        *,
        changes: dict[str, Any] | None = None,
        finished: bool = True,
        seconds: float = 10.0,
    ) -> Path:
        config = deepcopy(CONFIG)
        for key, value in (changes or {}).items():
            *sections, last = key.split(".")
            table = config
            for section in sections:
                table = table[section]
            table[last] = value
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(toml(config))
        (folder / "versions.json").write_text(json.dumps(VERSIONS))
        (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        (folder / "timings.jsonl").write_text(
            "".join(json.dumps({"round": r["round"], "seconds": seconds}) + "\n" for r in records)
        )
        if finished:
            (folder / "done.json").write_text(json.dumps({"rounds": config["federation"]["rounds"]}))
        return folder

    return one
