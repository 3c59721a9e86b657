"""Means, spreads and marks, solved on paper."""

from collections.abc import Sequence
from math import sqrt

import pytest

from fedshift.report.comparison import Comparison, Number, labels, protocols, summarise
from fedshift.report.records import ReportError, load
from fedshift.report.tables import Table, data, domain_table, main_table, markdown, notes, site_table, text

from .conftest import Write, record

X, Y = ("x",), ("y",)
PROX = {"name": "fedprox", "mu": 0.1}


def cells(table: Table | None, label: str) -> dict[str, str]:
    assert table is not None
    row = dict(table.rows)[label]
    return {column.head: cell.text + "*" * cell.best for column, cell in zip(table.columns, row, strict=True)}


def test_two_seeds_spread_over_seeds_of_the_mean_over_domains() -> None:
    # Seed 0: (0.2 + 0.4) / 2 = 0.3; seed 1: (0.4 + 0.6) / 2 = 0.5; mean 0.4, deviation 0.2 / sqrt(2).
    found = summarise({(X, 0): 0.2, (Y, 0): 0.4, (X, 1): 0.4, (Y, 1): 0.6})
    assert found == pytest.approx(Number(0.4, 0.2 / sqrt(2)))


def test_one_seed_spread_over_left_out_domains() -> None:
    assert summarise({(X, 0): 0.2, (Y, 0): 0.4, (("z",), 0): 0.6}) == pytest.approx(Number(0.4, 0.2))


def test_one_run_has_no_spread_and_nothing_no_number() -> None:
    assert summarise({(X, 0): 0.2}) == Number(0.2, None)
    assert summarise({}) is None


def test_labels_name_what_tells_methods_apart() -> None:
    methods = [{"name": "fedavg"}, {"name": "p", "mu": 0.1, "k": 1}, {"name": "p", "mu": 1.0, "k": 1}]
    assert labels(methods) == ["fedavg", "p(mu=0.1)", "p(mu=1)"]


def compared(write: Write, methods: Sequence[tuple[dict[str, object], float]], seeds: int = 1) -> Comparison:
    """Two left-out domains; each run's accuracies follow from its method's level."""
    paths = []
    for method, level in methods:
        for seed in range(seeds):
            for left, other, less in (("x", "y", 0.0), ("y", "x", 0.2)):
                test = {"a": level, other: level - 0.1}
                records = [record(r, test, {left: level - 0.2 - less}, up=r * 2, down=r * 2) for r in (1, 2, 3)]
                changes = {"method": method, "seed": seed, "data.left_out": [left]}
                paths.append(write(f"{len(paths)}", records, changes=changes, seconds=10 * level))
    return Comparison(tuple(map(load, paths)))


def test_main_table(write: Write) -> None:
    c = compared(write, [({"name": "fedavg"}, 0.8), (PROX, 0.9)])
    table = main_table(c)
    # Sites 0.8 and 0.7; unseen 0.6 without x and 0.4 without y: mean 0.5, deviation 0.2 / sqrt(2) = 14.1 %.
    assert cells(table, "fedavg") == {
        "sites": "75.0 ± 0.0",
        "unseen": "50.0 ± 14.1",
        "worst site": "70.0 ± 0.0",
        "traffic": "0.0000 ± 0.0000",
        "time": "8.0 ± 0.0*",
    }
    assert cells(table, "fedprox")["unseen"] == "60.0 ± 14.1*"
    assert cells(table, "fedprox")["time"] == "9.0 ± 0.0"
    assert "standard deviation over the 2 left-out domains (one seed)" in table.caption


def test_equal_numbers_are_not_marked(write: Write) -> None:
    table = main_table(compared(write, [({"name": "fedavg"}, 0.8), (PROX, 0.8)]))
    assert not any(cell.best for _, row in table.rows for cell in row)


def test_the_caption_says_when_the_spread_is_over_seeds(write: Write) -> None:
    table = main_table(compared(write, [({"name": "fedavg"}, 0.8)], seeds=3))
    assert "over the 3 seeds of the mean over left-out domains" in table.caption


def test_domain_table(write: Write) -> None:
    c = compared(write, [({"name": "fedavg"}, 0.8), (PROX, 0.9)])
    assert cells(domain_table(c), "fedavg") == {"x": "60.0", "y": "40.0", "mean": "50.0 ± 14.1"}
    assert cells(domain_table(c), "fedprox")["y"] == "50.0*"


def test_site_table_is_over_the_runs_in_which_a_site_took_part(write: Write) -> None:
    c = compared(write, [({"name": "fedavg"}, 0.8)])
    assert cells(site_table(c), "fedavg") == {"a": "80.0 ± 0.0", "x": "70.0", "y": "70.0"}


def test_without_left_out_domains_there_is_no_column_for_them(write: Write) -> None:
    c = Comparison((load(write("r", [record(3, {"a": 0.5}, {}, up=10, down=10)])),))
    assert [column.head for column in main_table(c).columns] == ["sites", "worst site", "traffic", "time"]
    assert domain_table(c) is None


def test_an_incomplete_method_is_noted_and_not_ranked(write: Write) -> None:
    c = compared(write, [({"name": "fedavg"}, 0.8), (PROX, 0.7), ({"name": "local"}, 0.9)])
    missing = Comparison(c.runs[:-1])
    assert notes(missing) == [
        "local: 1 of 2 runs; its numbers are over those.",
        "local: not ranked, since not all its runs are there and finished.",
    ]
    assert cells(main_table(missing), "local")["sites"] == "85.0"
    assert cells(main_table(missing), "fedavg")["sites"].endswith("*")


def test_an_interrupted_run_is_noted(write: Write) -> None:
    path = write("r", [record(1, {"a": 0.5}, {"z": 0.4})], finished=False, changes={"data.left_out": ["z"]})
    assert notes(Comparison((load(path),))) == ["fedavg, left out z, seed 0: not finished, round 1 of 3."]


def test_the_rule_for_unseen_sites_is_noted(write: Write) -> None:
    run = load(write("r", [record(3, {"a": 0.5}, {"z": 0.4}, rule="sites")], changes={"data.left_out": ["z"]}))
    assert notes(Comparison((run,))) == ["fedavg: unseen is the mean score of the sites' own models."]


def test_renderings(write: Write) -> None:
    table = domain_table(compared(write, [({"name": "fedavg"}, 0.8), (PROX, 0.9)]))
    assert table is not None
    assert text(table).splitlines() == [
        "method    x %    y %        mean %",
        "fedavg   60.0   40.0   50.0 ± 14.1",
        "fedprox  70.0*  50.0*  60.0 ± 14.1*",
    ]
    assert "| fedprox | **70.0** | **50.0** | **60.0 ± 14.1** |" in markdown(table)
    assert data(table)["rows"]["fedavg"]["y"] == {"mean": pytest.approx(40), "spread": None, "best": False}


def test_runs_of_two_protocols_are_refused(write: Write) -> None:
    rows = [record(3, {"a": 0.5}, {})]
    one, two = load(write("one", rows)), load(write("two", rows, changes={"optimizer.lr": 0.1, "seed": 1}))
    with pytest.raises(ReportError, match=r"two: optimizer.lr is 0.1, and 0.05 in .*one; runs are compared only if"):
        Comparison((one, two))


def test_one_experiment_twice_is_refused(write: Write) -> None:
    rows = [record(3, {"a": 0.5}, {})]
    with pytest.raises(ReportError, match="holds the same experiment as"):
        Comparison((load(write("one", rows)), load(write("two", rows))))
    with pytest.raises(ReportError, match="found no runs"):
        Comparison(())


def test_a_curve_is_over_the_rounds_that_all_runs_have(write: Write) -> None:
    c = compared(write, [({"name": "fedavg"}, 0.8)])
    shorter = Comparison((c.runs[0], load(write("s", list(c.runs[1].records[:2]), changes={"data.left_out": ["y"]}))))
    assert [number for number, _ in shorter.curve("fedavg", lambda r: 1.0)] == [1, 2]


def test_protocols_are_told_apart_by_as_few_settings_as_it_takes():
    def config(data, lr, epochs, seed=0, method="fedavg"):
        settings = {"data": {"name": data, "left_out": []}, "optimizer": {"lr": lr}, "local": {"epochs": epochs}}
        return {**settings, "seed": seed, "method": {"name": method}}

    assert protocols([config("a", 0.1, 1), config("a", 0.1, 1, 5, "local")]) == ["", ""]
    assert protocols([config("a", 0.1, 1), config("b", 0.2, 5)]) == ["a", "b"]  # one setting is enough
    four = [config(data, lr, 5 if data == "b" else 1) for data in "ab" for lr in (0.1, 0.01)]
    assert protocols(four) == [f"{data}, optimizer.lr={lr}" for data in "ab" for lr in (0.1, 0.01)]
    assert protocols([]) == []
