"""Runs of one protocol side by side: which belong together, and a number with its spread over them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from .records import Record, ReportError, Run

Key = tuple[tuple[str, ...], int]  # left-out domains, seed
Spread = Literal["seeds", "left-out domains", "none"]


class Number(NamedTuple):
    """A mean and its standard deviation, where there is one."""

    mean: float
    spread: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Runs that differ in method, left-out domains and seed, and in nothing else."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        """Refuse no runs, runs of two protocols, and one experiment given twice."""
        if not self.runs:
            raise ReportError("found no runs to report on; give the folders of one or more.")
        seen: dict[str, Run] = {}
        for run in self.runs:
            _check_same_protocol(self.runs[0], run)
            name = json.dumps(run.config, sort_keys=True)
            if name in seen:
                raise ReportError(f"{run.path}: holds the same experiment as {seen[name].path}; give one of them.")
            seen[name] = run

    @cached_property
    def methods(self) -> dict[str, dict[Key, Run]]:
        """Each method's runs, by a label that tells it from the others."""
        groups: dict[str, dict[Key, Run]] = {}
        for run in self.runs:
            groups.setdefault(json.dumps(run.config["method"]), {})[run.left_out, run.seed] = run
        names = labels([json.loads(group) for group in groups])
        return dict(zip(names, groups.values(), strict=True))

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Every pair of left-out domains and seed that any method was run on."""
        return tuple(dict.fromkeys((run.left_out, run.seed) for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for _, seed in self.keys})

    @property
    def left_outs(self) -> list[tuple[str, ...]]:
        """All choices of left-out domains, in the order given."""
        return list(dict.fromkeys(left for left, _ in self.keys))

    @property
    def spread(self) -> Spread:
        """Over what the spread in the tables is taken."""
        return "seeds" if len(self.seeds) > 1 else "left-out domains" if len(self.left_outs) > 1 else "none"

    def complete(self, label: str) -> bool:
        """Whether a method has every run that any other has, each of them finished."""
        runs = self.methods[label]
        return set(runs) == set(self.keys) and all(run.finished for run in runs.values())

    def number(self, label: str, measure: Callable[[Run], float | None]) -> Number | None:
        """A measure of a method's runs, summarised."""
        values = {key: measure(run) for key, run in self.methods[label].items()}
        return summarise({key: v for key, v in values.items() if v is not None})

    def curve(self, label: str, measure: Callable[[Record], float | None]) -> list[tuple[int, Number]]:
        """A measure against the round, at the rounds that all of a method's runs evaluated."""
        runs = self.methods[label]
        tables = {key: {r["round"]: r for r in run.records} for key, run in runs.items()}
        rounds = sorted(set.intersection(*(set(table) for table in tables.values())))
        points = []
        for number in rounds:
            values = {key: measure(table[number]) for key, table in tables.items()}
            found = summarise({key: v for key, v in values.items() if v is not None})
            points += [(number, found)] if found else []
        return points


def summarise(values: Mapping[Key, float]) -> Number | None:
    """The mean over seeds of the mean over left-out domains, and the standard deviation (n - 1) over seeds.

    With one seed, the deviation is over the left-out domains; with one value there is none.
    """
    if not values:
        return None
    by_seed: dict[int, list[float]] = {}
    for (_, seed), value in values.items():
        by_seed.setdefault(seed, []).append(value)
    means = [fmean(group) for group in by_seed.values()]
    parts = means if len(means) > 1 else list(values.values())
    return Number(fmean(means), stdev(parts) if len(parts) > 1 else None)


def labels(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """A method's name, with the settings that tell it from others of the same name."""

    def one(method: Mapping[str, Any]) -> str:
        same = [m for m in methods if m["name"] == method["name"]]
        odd = [k for k in method if any(m.get(k) != method[k] for m in same)]
        settings = ", ".join(f"{k}={plain(method[k])}" for k in odd)
        return f"{method['name']}({settings})" if settings else str(method["name"])

    return [one(method) for method in methods]


def plain(value: object) -> str:
    """A setting's value as a person writes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def flat(table: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and values of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def protocol(run: Run) -> dict[str, Any]:
    """What all runs of a comparison share, by dotted key."""
    return _shared(run.config)


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    free = ("method.", "seed", "data.left_out")
    return {key: value for key, value in flat(config) if not key.startswith(free)}


def protocols(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each configuration's protocol by the fewest settings that tell it from the others'; all are "" if it is one.

    Only runs whose protocols have the same name may stand in one table.
    """
    shared = [_shared(config) for config in configs]
    whole = len({json.dumps(s, sort_keys=True) for s in shared})
    names: list[tuple[str, ...]] = [()] * len(shared)
    for key in dict.fromkeys(["data.name", *(key for s in shared for key in s)]):
        if len(set(names)) == whole:
            break
        texts = [plain(s[key]) if key in s else "none" for s in shared]
        longer = [(*n, t if key == "data.name" else f"{key}={t}") for n, t in zip(names, texts, strict=True)]
        names = longer if len(set(longer)) > len(set(names)) else names
    return [", ".join(name) for name in names]


def by_protocol(runs: Sequence[Run]) -> dict[str, "Comparison"]:
    """Runs of several protocols as a comparison of each, in their order."""
    groups: dict[str, list[Run]] = {}
    for run, name in zip(runs, protocols([run.config for run in runs]), strict=True):
        groups.setdefault(name, []).append(run)
    return {name: Comparison(tuple(group)) for name, group in groups.items()}


def _check_same_protocol(first: Run, other: Run) -> None:
    a, b = protocol(first), protocol(other)
    for key in {**a, **b}:
        if a.get(key) != b.get(key):
            raise ReportError(
                f"{other.path}: {key} is {plain(b.get(key))}, and {plain(a.get(key))} in {first.path}; "
                "runs are compared only if they differ in nothing but method, left-out domains and seed."
            )
