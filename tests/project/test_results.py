"""The results page is made from the records of runs, and from nothing else."""

import json
import tomllib

import pytest
from tools import results


def line(seed, left_out, unseen, **method):
    noisy = "a+b noise 5"
    return {
        "run": f"{seed}{left_out}",
        "method": method,
        "left_out": [left_out],
        "seed": seed,
        "per_site": {"a": 0.5, "b": 0.9},
        "sizes": {"a": 30, "b": 10},
        "unseen": {left_out: unseen, noisy: 0.0},
        "adapted": {},
        "ood_auroc": {left_out: None, noisy: 0.875},
        "settings": {"data": {"share": 1.0}},
    }


def test_the_page_is_what_the_records_say():
    assert results.PAGE.read_text(encoding="utf-8") == results.page()


@pytest.mark.parametrize("file", sorted(results.FOLDER.glob("*.toml")), ids=lambda f: f.stem)
def test_every_published_number_has_its_row(file):
    block = tomllib.loads(file.read_text(encoding="utf-8"))
    rows = {row["name"] for row in block["row"]}
    for measure in block["measure"]:
        assert measure.get("published", {}).keys() <= rows, f"{file.name}: {measure['title']}"
    results.grouped(block["row"], results._lines(file.with_suffix(".jsonl")))


def test_the_first_row_that_fits_takes_a_run():
    rows = [
        {"name": "small", "is": {"method": {"name": "x", "k": 1}}},
        {"name": "any", "is": {"method": {"name": "x"}}},
    ]
    lines = [line(0, "p", 0.1, name="x", k=1), line(0, "p", 0.1, name="x", k=2)]
    assert [len(group) for group in results.grouped(rows, lines).values()] == [1, 1]
    with pytest.raises(SystemExit, match="fits no row of its block"):
        results.grouped(rows, [line(0, "p", 0.1, name="y")])


def test_a_seed_counts_when_all_its_turns_are_there():
    lines = [line(0, "p", 0.2, name="x"), line(0, "q", 0.4, name="x"), line(1, "p", 0.9, name="x")]
    unseen = {"value": "unseen", "turns": ["p", "q"]}
    assert results.by_seed(lines, {**unseen, "at": "p"}) == []  # q has no such site
    for one in lines:
        del one["unseen"]["a+b noise 5"]
    assert results.by_seed(lines, unseen) == [pytest.approx(30)]
    assert results.by_seed(lines[:1], {"value": "sites"}) == [pytest.approx(70)]
    assert results.by_seed(lines[:1], {"value": "pooled"}) == [pytest.approx(60)]
    assert results.by_seed(lines[:1], {"value": "b"}) == [pytest.approx(90)]
    assert results.by_seed(lines[:1], {"value": "ood_auroc", "at": "5"}) == [0.875]


def test_a_difference_and_its_interval():
    """Three seeds, 10, 11 and 12: the half width is 4.303 * 1 / sqrt(3)."""
    assert results._difference([10.0, 11.0, 12.0], [10.5]) == "+0.5 | -2.0 to +3.0"
    assert results._difference([10.0], [10.5]) == "-0.5 | one seed"
    assert results._difference([10.0], None) == f"{results.NONE} | {results.NONE}"


def test_records_are_small():
    for file in results.FOLDER.glob("*.jsonl"):
        for text in file.read_text(encoding="utf-8").splitlines():
            assert len(text) < 8000 and json.loads(text)["run"]
