"""A report on disk: a page for people, Markdown for papers, JSON for machines."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .comparison import Comparison, protocol
from .page import page
from .records import ReportError, outcome
from .tables import data, markdown, notes, tables
from .words import headline, protocol_words, versions_words


def write_report(c: Comparison, page_file: Path) -> list[Path]:
    """Write `page_file` and, beside it, the same name with .md and .json; returns the three."""
    if page_file.suffix != ".html":
        page_file = page_file.with_name(f"{page_file.name}.html")
    folder = page_file.parent
    texts = {
        page_file: page(c, folder),
        page_file.with_suffix(".md"): as_markdown(c),
        page_file.with_suffix(".json"): json.dumps(as_data(c, folder), indent=1) + "\n",
    }
    for path, text in texts.items():
        _write(path, text)
    return list(texts)


def as_markdown(c: Comparison) -> str:
    """The report as Markdown."""
    parts = [f"# {headline(c)}\n", *map(markdown, tables(c))]
    parts += ["\n".join(f"- {note}" for note in notes(c)) + "\n"] if notes(c) else []
    words = {**protocol_words(c), **{f"version of {k}": v for k, v in versions_words(c).items()}}
    parts.append("## Protocol\n\n" + "\n".join(f"- {key}: {value}" for key, value in words.items()) + "\n")
    return "\n".join(parts)


def as_data(c: Comparison, folder: Path) -> dict[str, Any]:
    """The report for machines; run folders are named as seen from `folder`."""
    runs = [run for run in c.runs if run.chosen is not None]
    return {
        "protocol": protocol(c.runs[0]),
        "versions": versions_words(c),
        "spread": c.spread,
        "tables": [data(table) for table in tables(c)],
        "notes": notes(c),
        "runs": [{"folder": Path(os.path.relpath(run.path, folder)).as_posix(), **outcome(run)} for run in runs],
    }


def reported_runs(folder: Path) -> Sequence[Path]:
    """The run folders that the report in a folder was made from."""
    path = folder / "report.json"
    try:
        return [folder / run["folder"] for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path}: found no report ({error}); give the folders of the runs instead.") from error


def _write(path: Path, text: str) -> None:
    """Written aside, flushed and renamed, so that no half report is ever there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise ReportError(
            f"{path}: cannot be written ({error.strerror}); free some space or give another --out."
        ) from error
