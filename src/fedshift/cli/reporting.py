"""`fedshift report`: the report again, from run folders."""

from argparse import Namespace
from pathlib import Path

from ..report import Comparison, ReportError, load, write_report
from ..report.records import find
from ..report.tables import notes, summary
from ..report.write import reported_runs
from .console import numbers, say


def report(args: Namespace) -> int:
    """Tables on stdout, and the three files."""
    paths: list[Path] = []
    for name in args.runs:
        folder = Path(name)
        paths += reported_runs(folder) if (folder / "report.json").exists() else [find(name, Path(args.folder))]
    unique = {path.resolve(): path for path in paths}
    comparison = Comparison(tuple(load(path) for path in unique.values()))
    if not any(run.records for run in comparison.runs):
        raise ReportError(f"{comparison.runs[0].path}: found no evaluation yet; resume the run, then report on it.")
    page = write_report(comparison, Path(args.out))[0]
    for table in summary(comparison):
        numbers(table)
    for note in notes(comparison):
        say(note)
    say(f"Report: {page}", "bold")
    return 0
