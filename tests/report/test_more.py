"""Adaptation, calibration and uncertainty in reports; and records made before there was any."""

import pytest

from fedshift.report import Comparison, load, write_report
from fedshift.report.records import adapted, ood, outcome, trust
from fedshift.report.tables import adapted_table, corrupted_tables, notes, summary, text, trust_table
from fedshift.report.words import protocol_words

from .conftest import record, score

TRUST = {"by": "entropy", "nll": 0.5, "brier": 0.3, "ece": 0.04, "uncertainty": 0.2, "error_auroc": 0.8}


def more(after, *, before=0.5, ece=0.04, errors=0.8, area=0.7, rule="norm", on="transductive"):
    """A record with everything that can be asked for."""
    made = record(3, {"a": 0.8, "b": 0.6}, {"c": before})
    for site, value in (("a", ece), ("b", 3 * ece)):
        made["sites"][site] = {k: {**s, "trust": TRUST | {"ece": value}} for k, s in made["sites"][site].items()}
    away = made["unseen"]["c"]
    away["test"] |= {"trust": TRUST | {"error_auroc": errors}}
    away["ood_auroc"] = area
    away["adapted"] = {"accuracy": after, "before": before, "n": 100, "rule": rule, "on": on, "images": 100}
    return made


def compared(write, *rows, **changes):
    left = {"data.left_out": ["c"], **changes}
    runs = [write(f"{name}{i}", [row], changes={**left, "method.name": name}) for i, (name, row) in enumerate(rows)]
    return Comparison(tuple(load(run) for run in runs))


def cells(table, head):
    k = [column.head for column in table.columns].index(head)
    return {name: row[k] for name, row in table.rows}


def test_measures_of_a_record():
    made = more(0.7)
    assert trust(made, "ece") == 0.08 and trust(made, "ece", "unseen") == 0.04
    assert ood(made) == 0.7 and adapted(made) == {"c": 0.7} and adapted(made, "before") == {"c": 0.5}
    made["sites"]["a"]["test"]["trust"]["error_auroc"] = None  # no errors there
    assert trust(made, "error_auroc") == 0.8


def test_adaptation_before_after_and_gain(write):
    c = compared(write, ("fedavg", more(0.7)), ("fedbn", more(0.65, rule="method", on="held_out")))
    table = adapted_table(c)
    assert table is not None
    assert [cell.text for cell in cells(table, "before").values()] == ["50.0", "50.0"]
    assert [cell.text for cell in cells(table, "after").values()] == ["70.0", "65.0"]
    assert [cell.text for cell in cells(table, "gain").values()] == ["20.0", "15.0"]
    assert [cell.best for cell in cells(table, "after").values()] == [True, False]
    said = notes(c)
    assert (
        "fedavg: adapted by BatchNorm statistics measured anew, on the test images themselves, without labels." in said
    )
    assert "fedbn: adapted by the method's own rule, on other images of the site." in said


def test_calibration_and_uncertainty(write):
    c = compared(write, ("fedavg", more(0.7)), ("fedbn", more(0.7, ece=0.01, area=None, errors=None)))
    table = trust_table(c)
    assert table is not None
    assert [cell.text for cell in cells(table, "ECE").values()] == ["8.0", "2.0"]
    assert [cell.best for cell in cells(table, "ECE").values()] == [False, True]
    assert [cell.text for cell in cells(table, "unseen against sites").values()] == ["0.700", "–"]  # noqa: RUF001
    assert "0.5 is guessing" in table.caption and "0.040" not in text(table)


def test_old_records_have_neither(write, tmp_path):
    c = compared(write, ("fedavg", record(3, {"a": 0.8}, {"c": 0.5})))
    assert adapted_table(c) is None and trust_table(c) is None
    assert [table.title for table in summary(c)] == ["Methods compared", "Accuracy at each left-out domain"]
    told = outcome(c.runs[0])
    assert (told["adapted"], told["trust"], told["ood_auroc"]) == ({}, {}, None)
    page = write_report(c, tmp_path / "r.html")[0].read_text()
    assert "Adapted" not in page and "Calibration" not in page


def test_page_and_markdown_show_them(write, tmp_path):
    budget = {"adapt": "entropy", "adapt_epochs": 2, "adapt_steps": 0, "adapt_rate": 0.1}
    c = compared(write, ("fedavg", more(0.7)), **{f"eval.{k}": v for k, v in budget.items()})
    files = write_report(c, tmp_path / "r.html")
    for file in files[:2]:
        shown = file.read_text()
        for part in ("Adapted to unlabelled images", "Calibration and uncertainty", "2 epochs at 0.1 of the learning"):
            assert part in shown, (file, part)
    told = outcome(c.runs[0])
    assert told["adapted"]["c"]["accuracy"] == 0.7 and told["trust"]["sites"]["ece"] == 0.08


def rung(accuracy, area=None):
    return {"test": score(accuracy), "rule": "global", "corrupted": True, "ood_auroc": area}


def test_corrupted_images_have_tables_of_their_own(write):
    row = more(0.7)
    row["unseen"] |= {"noise-1": rung(0.45, 0.6), "noise-3": rung(0.3, 0.9)}
    c = compared(write, ("fedavg", row))
    assert outcome(c.runs[0])["unseen_mean"] == 0.5
    assert ood(row) == 0.7 and trust(row, "ece", "unseen") == 0.04
    accuracy, detected = corrupted_tables(c)
    assert [column.head for column in accuracy.columns] == ["noise-1", "noise-3"]
    assert [cell.text for _, r in (*accuracy.rows, *detected.rows) for cell in r] == ["45.0", "30.0", "0.600", "0.900"]
    row["unseen"] |= {f"cast-{n}": rung(n / 10) for n in range(8)}
    accuracy, _ = corrupted_tables(compared(write, ("fedprox", row)))
    assert [(column.head, cell.text) for column, cell in zip(accuracy.columns, accuracy.rows[0][1], strict=True)] == [
        ("noise", "37.5"),
        ("cast", "35.0"),
    ]
    assert "Means over the severities" in accuracy.caption


def test_without_a_left_out_domain_there_are_no_columns_for_it(write):
    row = more(0.7)
    row["unseen"] = {"noise-1": rung(0.45, 0.6)}
    table = trust_table(compared(write, ("fedavg", row), **{"data.left_out": []}))
    assert table is not None and [c.head for c in table.columns] == ["NLL", "Brier", "ECE", "errors"]
    assert outcome(compared(write, ("fedprox", row)).runs[0])["unseen_mean"] is None


@pytest.mark.parametrize(
    ("asked", "became", "words"),
    [
        ("auto", ["norm"], "auto: norm, one pass"),
        ("auto", ["method"], "auto: method, 3 epochs"),
        ("auto", ["norm", "method"], "auto: method, 3 epochs; norm, one pass"),
        ("auto", [], "auto"),
        ("norm", ["norm"], "norm, one pass"),
        ("method", ["method"], "method, 3 epochs"),
        ("entropy", ["entropy"], "entropy, 3 epochs at 0.1 of the learning rate"),
    ],
)
def test_the_budget_of_adaptation_is_that_of_the_rule_which_was_used(write, asked, became, words):
    budget = {"adapt": asked, "adapt_epochs": 3, "adapt_steps": 0, "adapt_rate": 0.1}
    rows = [(f"m{rule}", more(0.7, rule=rule)) for rule in became] or [("m", record(3, {"a": 0.8}, {"c": 0.5}))]
    c = compared(write, *rows, **{f"eval.{k}": v for k, v in budget.items()})
    assert protocol_words(c)["Adaptation"] == words


def test_a_column_for_each_domain_and_none_for_corruptions(write):
    row = more(0.7)
    row["unseen"] |= {"noise-3": rung(0.3, 0.9)}
    row["unseen"]["noise-3"]["adapted"] = row["unseen"]["c"]["adapted"] | {"accuracy": 0.3}
    assert adapted(row) == {"c": 0.7}
    table = adapted_table(compared(write, ("fedavg", row)))
    assert table is not None
    assert [column.head for column in table.columns] == ["before", "after", "gain"]
    both = more(0.7)
    both["unseen"]["d"] = both["unseen"]["c"]
    runs = compared(write, ("fedprox", both), **{"data.left_out": ["c", "d"]})
    table = adapted_table(runs)
    assert table is not None
    assert [column.head for column in table.columns][3:] == ["c (of c+d)", "d (of c+d)"]
