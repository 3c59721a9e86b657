"""A run's folder, read back. Nothing here needs the code that made the run."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class ReportError(Exception):
    """A run folder or a report that cannot be read or written; one sentence for the user."""


@dataclass(frozen=True)
class Run:
    """What a run's folder says; `rounds` are done, of `total`."""

    path: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    records: tuple[Record, ...]
    seconds: float
    rounds: int
    total: int
    finished: bool
    failed: str = ""  # why, if it did

    @property
    def method(self) -> str:
        """The method's name, without its settings."""
        return str(self.config["method"]["name"])

    @property
    def left_out(self) -> tuple[str, ...]:
        """The domains that took no part in training."""
        return tuple(self.config["data"]["left_out"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @cached_property
    def chosen(self) -> Record | None:
        """The evaluation that is reported, by the run's own `eval.select`; none before the first."""
        rule = self.config["eval"]
        scored = {i: validation(r, rule) for i, r in enumerate(self.records)}
        best = max((v for v in scored.values() if v is not None), default=None)
        if rule["select"] == "val" and best is not None:
            return next(self.records[i] for i, v in scored.items() if v == best)
        return self.records[-1] if self.records else None


def load(path: Path) -> Run:
    """Read a run's folder, finished or not."""
    if not (path / "config.toml").exists():
        raise ReportError(f"{path}: found no run here (no config.toml); give the folder of a run, as it was printed.")
    config = _config(path / "config.toml")
    finished = (path / "done.json").exists()
    records = tuple(_checked(r, path) for r in _lines(path / "records.jsonl", finished))
    timings = _lines(path / "timings.jsonl", finished)
    rounds = max([r["round"] for r in (*records, *timings)], default=0)
    total = rounds if finished else max(rounds, config["federation"]["rounds"])
    versions = _json(path / "versions.json") if (path / "versions.json").exists() else {}
    seconds = float(timings[-1]["seconds"]) if timings else 0.0
    return Run(path, config, versions, records, seconds, rounds, total, finished, "" if finished else _failure(path))


def _failure(path: Path) -> str:
    file = path / "failed.json"
    return str(_json(file).get("reason", "for an unknown reason")) if file.exists() else ""


def find(name: str, folder: Path) -> Path:
    """A run's folder by its path, or by the beginning of its name in `folder`."""
    if (Path(name) / "config.toml").exists():
        return Path(name)
    names = sorted(path.parent.name for path in folder.glob("*/config.toml"))
    found = [run for run in names if name and run.startswith(name)]
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise ReportError(
            f"run {name!r}: found {len(found)} that begin so ({', '.join(found)}); give more of the name."
        )
    raise ReportError(
        f"run {name!r}: found no such folder, and none in {folder} whose name begins so; "
        f"`fedshift list runs --out {folder}` shows what is there."
    )


def saved_round(path: Path) -> int:
    """The round from which a run's folder can go on; 0 without a checkpoint that can be read."""
    try:
        with open(path / "checkpoint.safetensors", "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, 10**8)))
        return int(json.loads(header["__metadata__"]["state"])["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def accuracies(record: Record, part: str = "test", models: str = "sites") -> dict[str, float]:
    """Each site's accuracy, by its own model (`sites`) or the global one (`global`)."""
    scores = record[models] or {}
    return {site: s[part]["accuracy"] for site, s in scores.items() if part in s}


def validation(record: Record, rule: Mapping[str, Any]) -> float | None:
    """The accuracy that selects a round: of whose models, and how sites count, says `eval`."""
    scores = record["sites" if rule.get("select_model", "own") == "own" else "global"] or {}
    found = [s["val"] for s in scores.values() if "val" in s]
    sizes = [s["n"] if rule.get("select_weights") == "examples" else 1 for s in found]
    return sum(s["accuracy"] * n for s, n in zip(found, sizes, strict=True)) / sum(sizes) if found else None


def sites_mean(record: Record) -> float | None:
    """Mean over the participating sites of their own models' test accuracy."""
    return mean(accuracies(record))


def worst_site(record: Record) -> tuple[str, float] | None:
    """The participating site with the lowest test accuracy."""
    found = accuracies(record)
    return min(found.items(), key=lambda item: item[1]) if found else None


def away(record: Record, *, corrupted: bool = False) -> dict[str, Any]:
    """The scores at left-out domains, or on corrupted copies of the sites' test images."""
    return {site: s for site, s in record["unseen"].items() if s.get("corrupted", False) == corrupted}


def unseen_mean(record: Record) -> float | None:
    """Mean over the left-out domains of the test accuracy there."""
    return mean({site: s["test"]["accuracy"] for site, s in away(record).items()})


def trust(record: Record, key: str, models: str = "sites") -> float | None:
    """A measure of trust, mean over the sites (`sites`) or the left-out domains (`unseen`) that have it."""
    scores = away(record) if models == "unseen" else record[models]
    found = {site: s["test"].get("trust", {}).get(key) for site, s in scores.items() if "test" in s}
    return mean({site: value for site, value in found.items() if value is not None})


def ood(record: Record) -> float | None:
    """Mean over the left-out domains: how well uncertainty tells their images from the sites' own test images."""
    found = {site: s.get("ood_auroc") for site, s in away(record).items()}
    return mean({site: value for site, value in found.items() if value is not None})


def adapted(record: Record, key: str = "accuracy") -> dict[str, float]:
    """Accuracies after adaptation, or `before` it, if any: at left-out domains or, without one, on corrupted images."""
    scores = away(record) or record["unseen"]
    return {site: s["adapted"][key] for site, s in scores.items() if "adapted" in s}


def mean(values: Mapping[Any, float]) -> float | None:
    """The plain mean; none of nothing."""
    return sum(values.values()) / len(values) if values else None


def megabytes(run: Run) -> tuple[float, float] | None:
    """Sent up and down per round and participating client; none where nothing travels."""
    if not run.records:
        return None
    last, share = run.records[-1], run.config["federation"]["participation"]
    # The round loop's own rule for how many sites take part.
    clients = max(1, -int(-(share * len(last["sites"]) - 1e-9) // 1))
    up, down = (last[k] / last["round"] / clients / 1e6 for k in ("bytes_up", "bytes_down"))
    return (up, down) if up + down else None


def outcome(run: Run) -> dict[str, Any]:
    """The reported numbers of one run, for machines; accuracies are shares of one."""
    record = run.chosen
    if record is None:
        raise ReportError(f"{run.path}: found no evaluation yet, expected at least one; resume the run first.")
    worst, traffic = worst_site(record), megabytes(run)
    return {
        "method": run.config["method"],
        "left_out": list(run.left_out),
        "seed": run.seed,
        "finished": run.finished,
        "rounds": run.rounds,
        "reported_round": record["round"],
        "sites": sites_mean(record),
        "per_site": accuracies(record),
        "worst": worst and worst[1],
        "worst_site": worst and worst[0],
        "unseen": accuracies(record, models="unseen"),
        "unseen_mean": unseen_mean(record),
        "unseen_rule": {domain: s["rule"] for domain, s in record["unseen"].items()},
        "adapted": {domain: s["adapted"] for domain, s in record["unseen"].items() if "adapted" in s},
        "trust": {
            kind: _trusts(record, kind) for kind in ("sites", "unseen") if trust(record, "ece", kind) is not None
        },
        "ood_auroc": ood(record),
        "megabytes_up": traffic and traffic[0],
        "megabytes_down": traffic and traffic[1],
        "seconds": run.seconds,
    }


def _trusts(record: Record, kind: str) -> dict[str, float | None]:
    keys = ("nll", "brier", "ece", "uncertainty", "error_auroc")
    return {key: trust(record, key, kind) for key in keys}


def _config(path: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        _ = config["method"]["name"], config["data"]["left_out"], config["seed"], config["eval"]["select"]
        _ = config["federation"]["rounds"], config["federation"]["participation"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(
            f"{path}: found no whole configuration ({error!r}); it was changed or damaged: run it again."
        ) from error
    return config


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: found no JSON ({error}); it was changed or damaged, run it again.") from error
    return value if isinstance(value, dict) else {}


def _lines(path: Path, finished: bool) -> list[Any]:
    """JSON lines; the last one of a run that was killed may be torn."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); check the file, or run it again.") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
            _ = rows[-1]["round"]
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and not finished:
                break
            raise ReportError(
                f"{path}, line {number}: found no JSON record; it was damaged: run it again with --fresh."
            ) from None
    return rows


def _checked(record: Record, path: Path) -> Record:
    missing = sorted({"sites", "global", "unseen", "bytes_up", "bytes_down"} - record.keys())
    if missing:
        raise ReportError(
            f"{path}: the record of round {record['round']} has no {missing[0]!r}; it was written by another "
            "version or damaged: run it again with --fresh."
        )
    return record
