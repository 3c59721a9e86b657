"""`fedshift compare`: several methods, left-out domains and seeds on one protocol."""

import hashlib
import re
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, FedshiftError, nearest
from ..data import domains_of
from ..experiment import strict
from ..experiment.config import Experiment
from ..experiment.runs import Folder, folder_of
from ..report import Comparison, Run, write_report
from ..report.records import saved_round
from ..report.tables import data, domain_table, main_table, notes
from .console import numbers, say
from .display import Display, display
from .driving import configuration, drive, pictures, shared
from .main import Stopped

Failures = list[tuple[Folder, FedshiftError]]


def compare(args: Namespace) -> int:
    """All combinations, one after another; finished runs are not repeated."""
    plan = _plan(args)
    folders = [folder_of(config, Path(args.out)) for config in plan]
    runs, failures = list[Run](), Failures()
    # The same for all runs: without them, none needs to be tried.
    data_set = None if all(folder.done.exists() for folder in folders) else pictures(plan[0])
    with display(args.json) as show:
        show({"event": "start", "runs": len(plan), "text": _counted(plan), **shared(plan[0], Path(args.out))})
        for number, (config, folder) in enumerate(zip(plan, folders, strict=True), 1):
            try:
                runs.append(drive(config, folder, show, (number, len(plan)), data_set))
            except FedshiftError as error:
                failures.append((folder, error))
                show(
                    {
                        "event": "error",
                        "run": folder.path.name,
                        "kind": type(error).__name__,
                        "message": str(error),
                    }
                )
            except KeyboardInterrupt:
                raise _stopped(number, len(plan), folder, args.words) from None
        if runs:
            _report(runs, _report_file(args, folders), show, args.json)
    if failures and not args.json:
        say(f"{len(failures)} of {len(plan)} runs failed:", "bold red")
        for folder, reason in failures:
            say(f"  {folder.path.name}: {reason}")
    return 1 if failures else 0


def _plan(args: Namespace) -> list[Experiment]:
    """One configuration per run, all checked before the first begins."""
    base = configuration(args.config, args.set, args.preset)
    methods = [parse_method(text) for text in split_outside_brackets(args.methods)]
    if not methods:
        raise ConfigError("--methods: found no method, expected one or more; `fedshift list methods` shows them.")
    first = strict.build(Experiment, {**base, "method": methods[0]})
    left_outs = left_out_choices(args.leave_out, first)
    seeds = _seeds(args.seeds) or [first.seed]
    plan: dict[str, Experiment] = {}
    for seed in seeds:
        for left_out in left_outs:
            for method in methods:
                changed = {
                    "method": method,
                    "seed": seed,
                    "data": {**base.get("data", {}), "left_out": left_out},
                }
                config = strict.build(Experiment, {**base, **changed})
                plan[strict.digest(config)] = config
    return list(plan.values())


def parse_method(text: str) -> dict[str, Any]:
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


def _seeds(text: str | None) -> list[int]:
    parts = split_outside_brackets(text or "")
    for part in parts:
        if not part.isdecimal():
            raise ConfigError(f"--seeds: found {part!r}, expected whole numbers apart by commas; write 0,1,2.")
    return [int(part) for part in parts]


def _counted(plan: list[Experiment]) -> str:
    def count(values: Iterable[object], noun: str) -> str:
        number = len(set(values))
        return f"{number} {noun}{'' if number == 1 else 's'}"

    parts = [
        count((c.method for c in plan), "method"),
        count((c.data.left_out for c in plan), "choice") + " of left-out domains",
    ]
    return ", ".join([*parts, count((c.seed for c in plan), "seed")])


def _report_file(args: Namespace, folders: list[Folder]) -> Path:
    """Named after the runs, so that the same comparison writes the same report."""
    names = "".join(sorted(folder.path.name for folder in folders))
    default = Path(args.out) / f"compare-{hashlib.sha256(names.encode()).hexdigest()[:12]}" / "report.html"
    return Path(args.report) if args.report else default


def _report(runs: list[Run], file: Path, show: Display, as_json: bool) -> None:
    comparison = Comparison(tuple(runs))
    tables = [table for table in (main_table(comparison), domain_table(comparison)) if table]
    page = write_report(comparison, file)[0]
    said = notes(comparison)
    show({"event": "result", "report": str(page), "tables": [data(table) for table in tables], "notes": said})
    if as_json:
        return
    say()
    for table in tables:
        numbers(table)
    for note in said:
        say(note)
    say(f"Report: {page}", "bold")


def _stopped(number: int, of: int, folder: Folder, words: str) -> Stopped:
    done = saved_round(folder.path)
    return Stopped(
        f"stopped in run {number} of {of}; the runs before it, and its rounds up to {done}, are safe in "
        f"{folder.path.parent}.\nTo go on, repeat: {words}"
    )
