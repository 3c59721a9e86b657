"""One self-contained HTML page: no script, nothing fetched, readable on a phone, light or dark."""

import os
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

from .chart import Line, Point, chart, swatch
from .comparison import Comparison
from .records import Record, Run, sites_mean, unseen_mean
from .style import STYLE
from .tables import Column, Table, notes, tables, where
from .words import headline, protocol_words, versions_words

Measure = Callable[[Record], float | None]


def page(c: Comparison, folder: Path) -> str:
    """The report; run folders are named as seen from `folder`."""
    title = f"fedshift: {headline(c)}"
    first, *others = map(_table, tables(c))
    body = [_head(c), first, _notes(c), _charts(c), *others, _protocol(c), _runs(c, folder)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(c: Comparison) -> str:
    config, labels = c.runs[0].config, list(c.methods)
    what = f"{len(labels)} methods" if len(labels) > 1 else labels[0]
    return (
        '<header>\n<p class="kicker">fedshift report</p>\n'
        f"<h1>{escape(what)} on {escape(config['data']['name'])}</h1>\n"
        f'<p class="lead">{escape(config["model"]["name"])}, {config["federation"]["rounds"]} rounds; '
        f"{_amount(c)}.</p>\n</header>"
    )


def _amount(c: Comparison) -> str:
    outs = [left for left in c.left_outs if left]
    parts = [f"{len(outs)} left-out domain{'s' if len(outs) > 1 else ''}"] if outs else []
    parts.append(f"{len(c.seeds)} seed{'s' if len(c.seeds) > 1 else ''}")
    return f"{', '.join(parts)}, {len(c.runs)} run{'s' if len(c.runs) > 1 else ''}"


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{_column(column)}</th>' for column in table.columns)
    rows = []
    for name, cells in table.rows:
        shown = "".join(f"<td{' class=best' * c.best}>{_number(c.text)}</td>" for c in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{shown}</tr>')
    return (
        f'<section>\n<h2>{escape(table.title)}</h2>\n<div class="scroll"><table>\n'
        f'<thead><tr><th scope="col">{escape(table.first)}</th>{heads}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table></div>\n"
        f'<p class="caption">{escape(table.caption)} Best of each column in bold.</p>\n</section>'
    )


def _column(column: Column) -> str:
    return f'{escape(column.head)} <span class="unit">{escape(column.unit)}</span>'


def _number(text: str) -> str:
    mean, plus_minus, spread = text.partition(" ± ")
    return f'{escape(mean)}<span class="spread"> ± {escape(spread)}</span>' if plus_minus else escape(text)


def _notes(c: Comparison) -> str:
    found = notes(c)
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in found)}</ul>' if found else ""


def _charts(c: Comparison) -> str:
    kinds = [
        ("Unseen domains", unseen_mean, False),
        ("Participating sites", sites_mean, False),
        ("Unseen domains against traffic", unseen_mean, True),
    ]
    figures = [_figure(c, title, measure, traffic) for title, measure, traffic in kinds]
    if not any(figures):
        return ""
    legend = "".join(f"<li>{swatch(i)}{escape(label)}</li>" for i, label in enumerate(c.methods))
    over = "" if c.spread == "none" else f" Bands: standard deviation over {c.spread}."
    return (
        f'<section>\n<h2>Over the rounds</h2>\n<ul class="legend">{legend}</ul>\n'
        f'<div class="charts">\n{chr(10).join(f for f in figures if f)}\n</div>\n'
        f'<p class="caption">Means over all runs of a method.{over}</p>\n</section>'
    )


def _figure(c: Comparison, title: str, measure: Measure, traffic: bool) -> str:
    lines = [Line(label, i, _points(c, label, measure, traffic)) for i, label in enumerate(c.methods)]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    x_label = "MB up + down, all sites together" if traffic else "round"
    picture = chart(title, lines, x_label, "accuracy %")
    return f"<figure>\n<figcaption>{escape(title)}</figcaption>\n{picture}\n</figure>"


def _points(c: Comparison, label: str, measure: Measure, traffic: bool) -> list[Point]:
    curve = c.curve(label, measure)
    sent = {number: value.mean for number, value in c.curve(label, _sent)}
    if traffic and not any(sent.values()):
        return []
    return [
        Point(sent[number] if traffic else number, 100 * value.mean, 0 if traffic else 100 * (value.spread or 0))
        for number, value in curve
    ]


def _sent(record: Record) -> float:
    return float(record["bytes_up"] + record["bytes_down"]) / 1e6


def _protocol(c: Comparison) -> str:
    rows = {**protocol_words(c), "Made with": _made_with(c)}
    return f"<section>\n<h2>Protocol</h2>\n{_pairs(rows)}\n</section>"


def _made_with(c: Comparison) -> str:
    return "; ".join(f"{key} {value}" for key, value in versions_words(c).items())


def _pairs(rows: Mapping[str, str]) -> str:
    inner = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>\n" for key, value in rows.items())
    return f"<dl>\n{inner}</dl>"


def _runs(c: Comparison, folder: Path) -> str:
    rows = [_run(label, run, folder) for label, runs in c.methods.items() for run in runs.values()]
    head = _plain_head(("method", "left out", "seed", "rounds", "folder"))
    return (
        f"<section>\n<details>\n<summary>Run folders ({len(rows)})</summary>\n"
        f'<div class="scroll"><table class="runs">\n{head}'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table></div>\n</details>\n</section>"
    )


def _plain_head(names: Iterable[str]) -> str:
    return f"<thead><tr>{''.join(f'<th scope=col>{name}</th>' for name in names)}</tr></thead>\n"


def _run(label: str, run: Run, folder: Path) -> str:
    rounds = str(run.rounds) if run.finished else f"{run.rounds} of {run.total}"
    path = Path(os.path.relpath(run.path, folder)).as_posix()
    cells = (label, "+".join(run.left_out) or "none", run.seed, rounds)
    shown = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f'<tr title="{escape(where(run))}">{shown}<td><code>{escape(path)}</code></td></tr>'
