"""The numbers of a comparison as plain data, and as text, Markdown and JSON."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from .comparison import Comparison, Number
from .records import (
    Record,
    Run,
    accuracies,
    adapted,
    away,
    mean,
    megabytes,
    ood,
    sites_mean,
    trust,
    unseen_mean,
    worst_site,
)

Measure = Callable[[Run], float | None]
RUNGS = 8  # columns of corrupted images, before the severities of each corruption become one
SITES = "Accuracy at each participating site"
MISSING = "–"  # noqa: RUF001 (a dash, as tables print it)


class Cell(NamedTuple):
    """A number as it is shown, and as it is."""

    text: str
    number: Number | None = None
    best: bool = False


class Column(NamedTuple):
    """A head, its unit, and how its numbers are shown and ranked."""

    head: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    sign: int = 0  # which way is better: 1 up, -1 down, 0 neither


class Table(NamedTuple):
    """Rows of cells under a title; `caption` says how to read them."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    first: str = "method"


def main_table(c: Comparison) -> Table:
    """One row per method: accuracy at the sites, at unseen ones and at the worst, traffic, time."""
    small = 2 if max((_traffic(run) or 0 for run in c.runs), default=0) >= 0.1 else 4
    measures: list[tuple[Column, Measure]] = [
        (Column("sites", "%", 100, 1, 1), _reported(sites_mean)),
        (Column("unseen", "%", 100, 1, 1), _reported(unseen_mean)),
        (Column("worst site", "%", 100, 1, 1), _reported(_worst)),
        (Column("traffic", "MB", 1, small, -1), _traffic),
        (Column("time", "s", 1, 1, -1), lambda run: run.seconds),
    ]
    caption = (
        "Sites: mean test accuracy over the participating sites, each by its own model. "
        "Unseen: test accuracy at the left-out domain. Traffic: up + down, per round and client. " + _spread_text(c)
    )
    return _table("Methods compared", caption, c, measures)


def domain_table(c: Comparison) -> Table | None:
    """Accuracy at each left-out domain; none where nothing was left out."""
    places = dict.fromkeys((left, domain) for left in c.left_outs for domain in left)
    measures: list[tuple[Column, Measure]] = [
        (Column(_place(left, domain), "%", 100, 1, 1), _at(left, domain)) for left, domain in places
    ]
    if not measures:
        return None
    mean = Column("mean", "%", 100, 1, 1)
    measures += [(mean, _reported(unseen_mean))] if len(measures) > 1 else []
    return _table("Accuracy at each left-out domain", _seeds_text(c), c, measures)


def site_table(c: Comparison) -> Table | None:
    """Accuracy at each participating site, over the runs in which it took part."""
    sites = sorted({site for run in c.runs if run.chosen for site in accuracies(run.chosen)})
    measures = [(Column(site, "%", 100, 1, 1), _at_home(site)) for site in sites]
    caption = f"By each site's own model, over the runs in which it took part. {_spread_text(c)}"
    return _table(SITES, caption, c, measures) if measures else None


def adapted_table(c: Comparison) -> Table | None:
    """What adaptation to unlabelled images did at the unseen sites; none where nothing was adapted."""
    found = [(run, site) for run in c.runs if run.chosen is not None for site in adapted(run.chosen)]
    if not found:
        return None
    places = dict.fromkeys((run.left_out, site) for run, site in found if site in run.left_out)
    measures: list[tuple[Column, Measure]] = [
        (Column("before", "%", 100), _reported(lambda r: mean(adapted(r, "before")))),
        (Column("after", "%", 100, 1, 1), _reported(lambda r: mean(adapted(r)))),
        (Column("gain", "points", 100), _reported(_gain)),
    ]
    if len(places) > 1:
        measures += [(Column(_place(left, site), "%", 100, 1, 1), _at_adapted(left, site)) for left, site in places]
    caption = (
        "Mean accuracy at the unseen sites before and after the model adapted to images of theirs without labels; then "
        f"at each left-out domain after it. {_spread_text(c)}"
    )
    return _table("Adapted to unlabelled images of the unseen site", caption, c, measures)


def trust_table(c: Comparison) -> Table | None:
    """How far answers and their uncertainty can be trusted; none where it was not measured."""
    if not any(trust(run.chosen, "ece") is not None for run in c.runs if run.chosen):
        return None
    shown = [("NLL", "", "nll", 1.0, 2, -1), ("Brier", "", "brier", 1.0, 3, -1), ("ECE", "%", "ece", 100.0, 1, -1)]
    shown += [("errors", "AUROC", "error_auroc", 1.0, 3, 1)]
    measures: list[tuple[Column, Measure]] = [
        (Column(f"{kind}{name}", unit, scale, digits, sign), _reported(partial(trust, key=key, models=models)))
        for models, kind in (("sites", ""), ("unseen", "unseen "))
        for name, unit, key, scale, digits, sign in shown
        if models == "sites" or (any(c.left_outs) and name in ("ECE", "errors"))
    ]
    measures += [(Column("unseen against sites", "AUROC", 1, 3, 1), _reported(ood))] if any(c.left_outs) else []
    caption = (
        "On test images, mean over the sites. NLL, Brier, ECE (15 bins): how far probabilities are off. Errors: the "
        "chance that a wrong answer is more uncertain than a right one. Unseen against sites: the chance that an image "
        f"of an unseen site is more uncertain than one of the sites. An AUROC of 0.5 is guessing. {_spread_text(c)}"
    )
    return _table("Calibration and uncertainty", caption, c, measures)


def corrupted_tables(c: Comparison) -> list[Table]:
    """Accuracy and detection on corrupted test images; a column for each rung, or for each corruption if many."""
    rungs = list(dict.fromkeys(site for run in c.runs if run.chosen for site in away(run.chosen, corrupted=True)))
    if not rungs:
        return []
    names = rungs if len(rungs) <= RUNGS else list(dict.fromkeys(rung.rpartition("-")[0] for rung in rungs))
    whole = "" if names is rungs else " Means over the severities."
    accuracy = [(Column(name, "%", 100, 1, 1), _reported(partial(_corrupted, name, _accuracy))) for name in names]
    seen = [(Column(name, "AUROC", 1, 3, 1), _reported(partial(_corrupted, name, _detected))) for name in names]
    say = "Test accuracy on the sites' test images, corrupted, by the model for a new site."
    made = [_table("Corrupted images", f"{say}{whole} {_spread_text(c)}", c, accuracy)]
    if any(measure(run) is not None for _, measure in seen for run in c.runs):
        say = "The chance that a corrupted image is more uncertain than a clean one; 0.5 is guessing."
        made.append(_table("Corrupted images told by their uncertainty", f"{say}{whole} {_spread_text(c)}", c, seen))
    return made


def _corrupted(name: str, value: Callable[[Record], float | None], record: Record) -> float | None:
    """The mean over the rungs of a name, or of a corruption."""
    rungs = {site: s for site, s in away(record, corrupted=True).items() if name in (site, site.rpartition("-")[0])}
    found = {site: value(s) for site, s in rungs.items()}
    return mean({site: number for site, number in found.items() if number is not None})


def _accuracy(scores: Record) -> float | None:
    return float(scores["test"]["accuracy"])


def _detected(scores: Record) -> float | None:
    area = scores.get("ood_auroc")
    return None if area is None else float(area)


def tables(c: Comparison) -> list[Table]:
    """All that there is to show."""
    made = (main_table(c), domain_table(c), adapted_table(c), site_table(c), trust_table(c), *corrupted_tables(c))
    return [table for table in made if table]


def summary(c: Comparison) -> list[Table]:
    """What a terminal shows: all but the one with a column for each site."""
    return [table for table in tables(c) if table.title != SITES]


def notes(c: Comparison) -> list[str]:
    """What a reader must know before comparing the rows."""
    found = []
    for label, runs in c.methods.items():
        for run in runs.values():
            if not run.finished:
                found.append(f"{label}, {where(run)}: not finished, round {run.rounds} of {run.total}.")
        if len(runs) < len(c.keys):
            found.append(f"{label}: {len(runs)} of {len(c.keys)} runs; its numbers are over those.")
        if not c.complete(label) and len(c.methods) > 1:
            found.append(f"{label}: not ranked, since not all its runs are there and finished.")
        rules = {s["rule"] for run in runs.values() if run.chosen for s in run.chosen["unseen"].values()}
        said = {
            "sites": "the mean score of the sites' own models",
            "ensemble": "the sites' own models as an ensemble",
        }
        found += [f"{label}: unseen is {said[rule]}." for rule in sorted(rules) if rule in said]
        found += [f"{label}: {text}" for text in _adaptations(runs.values())]
    for key in ("fedshift", "torch", "machine", "gpu", "threads"):
        values = list(dict.fromkeys(str(run.versions.get(key)) for run in c.runs))
        if len(values) > 1:
            found.append(f"The runs were made with different {key}: {', '.join(values)}.")
    return found


def _adaptations(runs: Iterable[Run]) -> list[str]:
    """By which rule, and on which images, a method's models were adapted."""
    said = {
        "method": "the method's own rule",
        "norm": "BatchNorm statistics measured anew",
        "entropy": "less entropy, by the scales of normalisation layers",
    }
    on = {"transductive": "the test images themselves, without labels", "held_out": "other images of the site"}
    rows = [s["adapted"] for run in runs if run.chosen for s in run.chosen["unseen"].values() if "adapted" in s]
    pairs = sorted({(row["rule"], row["on"]) for row in rows})
    return [f"adapted by {said.get(rule, rule)}, on {on.get(kind, kind)}." for rule, kind in pairs]


def where(run: Run) -> str:
    """Left-out domains and seed of a run, in words."""
    return f"left out {'+'.join(run.left_out) or 'none'}, seed {run.seed}"


def text(table: Table) -> str:
    """Aligned columns; the best of each is marked by a star."""
    heads = [table.first, *(head(column) for column in table.columns)]
    rows = [[name, *(cell.text + ("*" if cell.best else " ") for cell in cells)] for name, cells in table.rows]
    return aligned([[heads[0], *(f"{head} " for head in heads[1:])], *rows])


def aligned(rows: Sequence[Sequence[str]], right: bool = True) -> str:
    """Columns two spaces apart: the first to the left, the others to the right if `right`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = [str.ljust, *([str.rjust if right else str.ljust] * (len(widths) - 1))]
    lines = ["  ".join(f(cell, w) for f, cell, w in zip(align, row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """A Markdown table under its title; the best of each column is bold."""
    heads = [table.first, *(head(column) for column in table.columns)]
    lines = [heads, ["---", *["---:"] * len(table.columns)]]
    lines += [[name, *(f"**{c.text}**" if c.best else c.text for c in cells)] for name, cells in table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## {table.title}\n\n{body}\n\n{table.caption}\n"


def data(table: Table) -> dict[str, Any]:
    """The table for machines, in the units of its heads."""
    rows = {
        name: {
            column.head: cell.number and {"mean": cell.number.mean, "spread": cell.number.spread, "best": cell.best}
            for column, cell in zip(table.columns, cells, strict=True)
        }
        for name, cells in table.rows
    }
    units = {column.head: column.unit for column in table.columns}
    return {"title": table.title, "caption": table.caption, "units": units, "rows": rows}


def _table(title: str, caption: str, c: Comparison, measures: Iterable[tuple[Column, Measure]]) -> Table:
    columns, cells = [], []
    for column, measure in measures:
        made = _column(c, column, measure)
        if any(cell.number for cell in made):
            columns.append(column)
            cells.append(made)
    rows = zip(*cells, strict=True) if cells else ([] for _ in c.methods)
    return Table(title, caption, tuple(columns), tuple(zip(c.methods, map(tuple, rows), strict=True)))


def _column(c: Comparison, column: Column, measure: Measure) -> list[Cell]:
    """A column's cells; the best as shown are marked, among methods that have all their runs."""
    made = {label: _cell(column, c.number(label, measure)) for label in c.methods}
    shown = {
        label: column.sign * round(cell.number.mean, column.digits)
        for label, cell in made.items()
        if cell.number and c.complete(label)
    }
    if column.sign and len(set(shown.values())) > 1:
        best = max(shown.values())
        made |= {label: made[label]._replace(best=True) for label, value in shown.items() if value == best}
    return list(made.values())


def _cell(column: Column, number: Number | None) -> Cell:
    if number is None:
        return Cell(MISSING)
    scaled = Number(number.mean * column.scale, None if number.spread is None else number.spread * column.scale)
    shown = f"{scaled.mean:.{column.digits}f}"
    return Cell(shown if scaled.spread is None else f"{shown} ± {scaled.spread:.{column.digits}f}", scaled)


def head(column: Column) -> str:
    """A column's head with its unit."""
    return f"{column.head} {column.unit}".strip()


def _reported(measure: Callable[[Record], float | None]) -> Measure:
    return lambda run: measure(run.chosen) if run.chosen else None


def _worst(record: Record) -> float | None:
    found = worst_site(record)
    return found[1] if found else None


def _traffic(run: Run) -> float | None:
    found = megabytes(run)
    return sum(found) if found else None


def _at(left_out: tuple[str, ...], domain: str) -> Measure:
    there = _reported(lambda record: accuracies(record, models="unseen").get(domain))
    return lambda run: there(run) if run.left_out == left_out else None


def _at_home(site: str) -> Measure:
    return _reported(lambda record: accuracies(record).get(site))


def _at_adapted(left_out: tuple[str, ...], site: str) -> Measure:
    there = _reported(lambda record: adapted(record).get(site))
    return lambda run: there(run) if run.left_out == left_out else None


def _gain(record: Record) -> float | None:
    before, after = mean(adapted(record, "before")), mean(adapted(record))
    return None if before is None or after is None else after - before


def _place(left_out: tuple[str, ...], domain: str) -> str:
    return domain if left_out == (domain,) else f"{domain} (of {'+'.join(left_out)})"


def _spread_text(c: Comparison) -> str:
    if c.spread == "none":
        return "One run per method: no spread."
    over = (
        f"the {len(c.seeds)} seeds of the mean over left-out domains"
        if c.spread == "seeds"
        else (f"the {len(c.left_outs)} left-out domains (one seed)")
    )
    return f"±: standard deviation over {over}."


def _seeds_text(c: Comparison) -> str:
    if len(c.seeds) > 1:
        return f"±: standard deviation over {len(c.seeds)} seeds."
    tail = "; ± of the mean: standard deviation over the left-out domains" if len(c.left_outs) > 1 else ""
    return f"One seed{tail}."
