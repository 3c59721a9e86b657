"""Which runs `compare` and `sweep` ask for: all combinations of methods, domains, seeds, data sets and settings."""

import re
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from typing import Any

from ..core.errors import ConfigError, nearest
from ..data import domains_of
from ..experiment import strict
from ..experiment.config import Experiment
from ..methods import METHODS
from .choosing import resolved
from .driving import configuration

Settings = dict[str, Any]
NEED_ONE = ("adapt", "shots")  # settings that are refused as long as no domain is left out


def planned(args: Namespace) -> list[Experiment]:
    """One configuration per run, all checked before the first begins, the most urgent first.

    Every method on every domain with the first seed, then with the second: the tables are early whole, and then grow
    more certain.
    """
    methods = [parse_method(text) for text in split_outside_brackets(args.methods)]
    if not methods:
        raise ConfigError("--methods: found no method, expected one or more; `fedshift list methods` shows them.")
    seeds = _seeds(args.seeds)
    blocks = [
        _block(args, dataset, point, methods)
        for dataset in _datasets(args.datasets)
        for point in product(*map(grid_values, args.grid))
    ]
    plan: dict[str, Experiment] = {}
    for turn in range(max(1, len(seeds))):
        for base in (base for block in blocks for base in block):
            seeded = {"seed": seeds[turn]} if seeds else {}
            config = strict.build(Experiment, {**base, **seeded})
            plan.setdefault(strict.digest(config), config)
    return list(plan.values())


def _block(args: Namespace, dataset: str, point: tuple[str, ...], methods: list[Settings]) -> list[Settings]:
    """One protocol: the settings of each left-out domain and method."""
    names = [method["name"] for method in methods]
    bases = [_base(args, dataset, [text for text in point if _concerns(text, m["name"], names)], m) for m in methods]
    data = {k: v for k, v in bases[0].get("data", {}).items() if k not in NEED_ONE or not args.leave_out}
    choices = left_out_choices(args.leave_out, strict.build(Experiment, {**bases[0], "data": data}))
    return [{**base, "data": {**base.get("data", {}), "left_out": choice}} for choice in choices for base in bases]


def _base(args: Namespace, dataset: str, point: list[str], method: Settings) -> Settings:
    """A method's settings; a preset may have its own for the method and for the data set."""
    preset, sets = args.preset, list(args.set)
    if dataset:
        preset = preset and f"{preset.partition(':')[0]}:{dataset}"
        sets.append(f'data.name="{dataset}"')
    return resolved(strict.merge(configuration(args.config, sets, preset, method), point), args, alone=False)


def _concerns(text: str, method: str, among: list[str]) -> bool:
    """Whether a point of the grid is for this method: `method.mu` is for those that have a `mu`."""
    keys, _ = strict.parse_set(text)
    if keys[0] != "method":
        return True
    owners = [name for name in among if name in METHODS and ".".join(keys) in _keys(METHODS[name])]
    return method in owners or not owners  # a key that none of them has is refused where it is used


def _keys(method: type) -> list[str]:
    return [field.name for field in strict.fields_of(method, "method")]


def grid_values(text: str) -> list[str]:
    """`optimizer.lr=0.1,0.01` as one `key=value` for each value."""
    key, equals, values = text.partition("=")
    found = split_outside_brackets(values)
    if not equals or not found:
        raise ConfigError(f"--grid: found {text!r}, expected KEY=VALUE,VALUE,...; write optimizer.lr=0.1,0.01.")
    points = [f"{key.strip()}={value}" for value in found]
    for point in points:
        strict.parse_set(point)
    return points


def parse_method(text: str) -> Settings:
    """`fedprox(mu=0.1)` as a section of a configuration."""
    match = re.fullmatch(r"([\w.-]+)\s*(?:\((.*)\))?", text.strip())
    if match is None:
        raise ConfigError(f"--methods: found {text!r}, expected NAME or NAME(key=value, ...); correct it there.")
    return strict.merge({"name": match[1]}, split_outside_brackets(match[2] or ""))


def split_outside_brackets(text: str) -> list[str]:
    """The parts between commas, where no bracket is open."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def left_out_choices(text: str | None, config: Experiment) -> list[list[str]]:
    """`photo,scan`, `photo+scan`, `each` or `none`, checked against the data set's domains."""
    domains = config.data.domains or domains_of(config.data.name)
    if text is None:
        return [list(config.data.left_out)]
    if text == "none":
        return [[]]
    choices = [[d] for d in domains] if text == "each" else [part.split("+") for part in split_outside_brackets(text)]
    for name in (name for choice in choices for name in choice if name not in domains):
        raise ConfigError(
            f"--leave-out: found {name!r}, expected a domain of {config.data.name} "
            f"({', '.join(domains)}), 'each' or 'none'{nearest(name, domains)}."
        )
    return choices


def _datasets(text: str | None) -> Iterator[str]:
    """Names; one that is empty where the configuration says it."""
    yield from split_outside_brackets(text or "") or [""]


def _seeds(text: str | None) -> list[int]:
    parts = split_outside_brackets(text or "")
    for part in parts:
        if not part.isdecimal():
            raise ConfigError(f"--seeds: found {part!r}, expected whole numbers apart by commas; write 0,1,2.")
    return [int(part) for part in parts]
