"""The results page: records of runs beside published numbers.

    python -m tools.results collect BLOCK RUNS...   # finished runs into results/BLOCK.jsonl, a line each
    python -m tools.results page                    # results/*.toml and *.jsonl into docs/results.md

A block is `results/BLOCK.toml` (what was run, and the published numbers beside it) and `results/BLOCK.jsonl`. Each
`[[row]]` takes the runs whose configuration has its settings (`is`), the first row that fits; each `[[measure]]` is a
table, with the published numbers by row. No number of ours is typed: the page is made from the lines, and a test makes
it again.
"""

import argparse
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedshift.report import load
from fedshift.report.records import accuracies, outcome, validation

ROOT = Path(__file__).parents[1]
FOLDER, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
Line = dict[str, Any]
NONE = "\N{EN DASH}"
FRACTIONS = ("ood_auroc",)  # measures that are no percentages
# Student's t at 97.5 % by degrees of freedom; beyond the table, the normal's.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


# -- collecting --------------------------------------------------------------------------------------------------------
def line_of(path: Path) -> Line:
    """What the page and its reader need of a run."""
    run = load(path)
    record, versions = run.chosen, run.versions
    assert record is not None
    sizes = {site: s["test"]["n"] for site, s in record["sites"].items() if "test" in s}
    keys = ("method", "left_out", "seed", "rounds", "reported_round", "per_site", "unseen", "unseen_rule")
    told = outcome(run)
    settings = {name: run.config[name] for name in ("data", "model", "federation", "local", "optimizer", "schedule")}
    adapted, ood = ({s: r[k] for s, r in record["unseen"].items() if k in r} for k in ("adapted", "ood_auroc"))
    curve = [
        [r["round"], _rounded(accuracies(r)), _rounded(accuracies(r, models="unseen"))] for r in _thinned(run.records)
    ]
    return {
        "run": path.name,
        **{key: told[key] for key in keys},
        "sizes": sizes,
        "validation": validation(record, run.config["eval"]),
        "adapted": adapted,
        "ood_auroc": ood,
        "megabytes_up": told["megabytes_up"],
        "megabytes_down": told["megabytes_down"],
        "settings": settings,
        "engine": [run.config[k] for k in ("device", "engine", "precision")],
        "versions": {k: versions.get(k) for k in ("fedshift", "torch", "gpu")},
        "split": record["split"],
        "curve": curve,
    }


def _rounded(values: Mapping[str, float]) -> float | None:
    return round(fmean(values.values()), 4) if values else None


def _thinned(records: tuple[Line, ...], most: int = 40) -> list[Line]:
    step = -(-len(records) // most)
    return [r for i, r in enumerate(records, 1) if i % step == 0 or i == len(records)]


def collect(block: str, paths: Iterable[Path]) -> None:
    """Add finished runs to a block; one that is there already is replaced."""
    file = FOLDER / f"{block}.jsonl"
    lines = {line["run"]: line for line in _lines(file)}
    lines |= {p.name: line_of(p) for p in paths if (p / "done.json").exists()}
    ordered = sorted(lines.values(), key=lambda r: (json.dumps(r["method"]), r["left_out"], r["seed"], r["run"]))
    file.write_text("".join(json.dumps(line) + "\n" for line in ordered), encoding="utf-8")
    print(f"{file.relative_to(ROOT)}: {len(lines)} runs")


def _lines(file: Path) -> list[Line]:
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


# -- the page ----------------------------------------------------------------------------------------------------------
def page() -> str:
    """The whole page."""
    blocks = sorted(FOLDER.glob("*.toml"))
    intro = (FOLDER / "intro.md").read_text(encoding="utf-8")
    return intro + "".join(
        _block(tomllib.loads(b.read_text(encoding="utf-8")), _lines(b.with_suffix(".jsonl"))) for b in blocks
    )


def _block(about: Line, lines: list[Line]) -> str:
    groups = grouped(about["row"], lines)
    text = [f"\n## {about['title']}\n\n{about['text'].strip()}\n"]
    if lines:
        text += [_table(measure, groups) for measure in about["measure"]]
    text.append(_made(lines))
    if "found" in about:
        text.append(f"\n{about['found'].strip()}\n")
    return "".join(text)


def grouped(rows: list[Line], lines: list[Line]) -> dict[str, list[Line]]:
    """The runs of each row; one that fits none is an error, for a number that nobody sees misleads."""
    groups: dict[str, list[Line]] = {row["name"]: [] for row in rows}
    for line in lines:
        config = {**line["settings"], "method": line["method"]}
        fits = [row["name"] for row in rows if _has(config, row["is"])]
        if not fits:
            raise SystemExit(f"run {line['run']}: its method {line['method']} fits no row of its block; add one.")
        groups[fits[0]].append(line)
    return groups


def _has(config: Any, wanted: Any) -> bool:
    """Whether a configuration has these settings; other settings may be anything."""
    if isinstance(wanted, dict):
        return isinstance(config, dict) and all(k in config and _has(config[k], v) for k, v in wanted.items())
    return bool(config == wanted)


def _table(measure: Line, groups: Mapping[str, list[Line]]) -> str:
    unit = "" if measure["value"] in FRACTIONS else " %"
    heads = ("method", "seeds", f"ours{unit}", f"published{unit}", "difference", "95 % interval")
    rows = [f"\n**{measure['title']}**\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n"]
    for name, lines in groups.items():
        ours, theirs = by_seed(lines, measure), measure.get("published", {}).get(name)
        if ours:
            rows.append(
                f"| {name} | {len(ours)} | {_spread(ours)} | {_theirs(theirs)} | {_difference(ours, theirs)} |\n"
            )
    return "".join(rows)


def by_seed(lines: list[Line], measure: Line) -> list[float]:
    """One number for each seed for which every left-out domain is there, in percent."""
    seeds: dict[int, dict[str, float]] = defaultdict(dict)
    for line in lines:
        value = _value(line, measure)
        if value is not None:
            scale = 1 if measure["value"] in FRACTIONS else 100
            seeds[line["seed"]]["+".join(line["left_out"])] = scale * value
    turns = set(measure.get("turns", [""]))
    return [fmean(parts.values()) for _, parts in sorted(seeds.items()) if turns <= parts.keys() or turns == {""}]


def _value(line: Line, measure: Line) -> float | None:
    """Mean over sites (`sites`), over their images (`pooled`), at left-out or corrupted sites (`unseen`, `adapted`,
    `ood_auroc`; `at` is what their names end in), or at the site of that name.
    """
    kind, scores = measure["value"], line["per_site"]
    if kind == "pooled":
        return sum(scores[s] * n for s, n in line["sizes"].items()) / sum(line["sizes"].values())
    if kind == "sites":
        return fmean(scores.values())
    if kind not in ("unseen", "adapted", "ood_auroc"):
        return scores.get(kind)
    found = [
        value["accuracy"] if kind == "adapted" else value
        for site, value in line[kind].items()
        if value is not None and site.endswith(measure.get("at", ""))
    ]
    return fmean(found) if found else None


def _spread(values: list[float]) -> str:
    digits = 1 if max(values) > 1 else 3
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def _theirs(number: list[float] | None) -> str:
    if number is None:
        return NONE
    return f"{number[0]:.1f} ± {number[1]:.1f}" if len(number) > 1 else f"{number[0]:.1f}"


def _difference(ours: list[float], theirs: list[float] | None) -> str:
    """Ours less theirs; the interval is that of our mean, since how theirs vary is seldom printed."""
    if theirs is None:
        return f"{NONE} | {NONE}"
    gap = fmean(ours) - theirs[0]
    if len(ours) < 2:
        return f"{gap:+.1f} | one seed"
    half = (T[len(ours) - 2] if len(ours) - 2 < len(T) else 1.96) * stdev(ours) / sqrt(len(ours))
    return f"{gap:+.1f} | {gap - half:+.1f} to {gap + half:+.1f}"


def _made(lines: list[Line]) -> str:
    if not lines:
        return "\nNot run yet.\n"
    engines = sorted({" ".join(line["engine"]) for line in lines})
    versions = sorted({f"torch {line['versions']['torch']} on {line['versions']['gpu'] or 'a CPU'}" for line in lines})
    return f"\n{len(lines)} runs; {', '.join(engines)}; {', '.join(versions)}.\n"


def main() -> None:
    """Collect, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collect", "page"])
    parser.add_argument("block", nargs="?")
    parser.add_argument("runs", nargs="*", type=Path)
    args = parser.parse_args()
    if args.what == "collect":
        collect(args.block, args.runs)
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
