"""Reading a run's folder: the reported round, the measures, and folders that are not whole."""

import json
from pathlib import Path

import pytest

from fedshift.report.records import (
    ReportError,
    accuracies,
    find,
    load,
    megabytes,
    outcome,
    saved_round,
    sites_mean,
    unseen_mean,
    worst_site,
)

from .conftest import Write, record

ROUNDS = [
    record(1, {"a": 0.5, "b": 0.7}, {"z": 0.4}, val={"a": 0.6, "b": 0.6}),
    record(2, {"a": 0.6, "b": 0.8}, {"z": 0.5}, val={"a": 0.9, "b": 0.7}),  # mean 0.8, the best, first here
    record(3, {"a": 0.9, "b": 0.7}, {"z": 0.3}, val={"a": 0.7, "b": 0.9}),  # mean 0.8 once more
]


def test_measures_of_a_record() -> None:
    two = record(1, {"a": 0.5, "b": 0.75}, {"y": 0.2, "z": 0.4})
    assert accuracies(two) == {"a": 0.5, "b": 0.75}
    assert sites_mean(two) == 0.625
    assert worst_site(two) == ("a", 0.5)
    assert unseen_mean(two) == pytest.approx(0.3)


def test_a_site_without_test_images_is_passed_over() -> None:
    one = record(1, {"a": 0.5, "b": 0.75}, {})
    del one["sites"]["a"]["test"]
    assert (sites_mean(one), worst_site(one), unseen_mean(one)) == (0.75, ("b", 0.75), None)


@pytest.mark.parametrize(("select", "round_"), [("last", 3), ("val", 2)])
def test_the_reported_round(write: Write, select: str, round_: int) -> None:
    run = load(write("r", ROUNDS, changes={"eval.select": select}))
    assert run.chosen is not None
    assert run.chosen["round"] == round_
    assert outcome(run)["reported_round"] == round_


def test_selection_by_validation_without_validation_images_is_the_last(write: Write) -> None:
    records = json.loads(json.dumps(ROUNDS))
    for row in records:
        for scores in row["sites"].values():
            del scores["val"]
    run = load(write("r", records, changes={"eval.select": "val"}))
    assert run.chosen is not None
    assert run.chosen["round"] == 3


def test_traffic_is_per_round_and_participating_client(write: Write) -> None:
    records = [record(3, {"a": 0.5, "b": 0.5, "c": 0.5}, {}, up=12_000_000, down=24_000_000)]
    # Half of three sites is two a round: 12 MB / 3 rounds / 2 clients.
    assert megabytes(load(write("half", records, changes={"federation.participation": 0.5}))) == (2.0, 4.0)
    assert megabytes(load(write("all", records))) == pytest.approx((4 / 3, 8 / 3))
    assert megabytes(load(write("none", [record(3, {"a": 0.5}, {})]))) is None


def test_outcome(write: Write) -> None:
    found = outcome(load(write("r", ROUNDS, seconds=7.5, changes={"data.left_out": ["z"], "seed": 4})))
    assert found["sites"] == pytest.approx(0.8)
    assert (found["worst"], found["worst_site"], found["unseen"]) == (0.7, "b", {"z": 0.3})
    assert (found["seed"], found["left_out"], found["seconds"], found["finished"]) == (4, ["z"], 7.5, True)


def test_an_interrupted_run_says_so(write: Write) -> None:
    path = write("r", ROUNDS[:2], finished=False)
    with open(path / "records.jsonl", "a") as file:
        file.write('{"round": 3, "by')  # killed while it wrote
    run = load(path)
    assert (run.finished, run.rounds, run.total, len(run.records)) == (False, 2, 3, 2)


def test_a_run_without_any_evaluation(write: Write) -> None:
    run = load(write("r", [], finished=False))
    assert (run.chosen, run.rounds, run.total) == (None, 0, 3)
    with pytest.raises(ReportError, match="found no evaluation yet"):
        outcome(run)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"found no run here \(no config.toml\)"):
        load(tmp_path)


def test_a_damaged_record_is_named(write: Write) -> None:
    path = write("r", ROUNDS)
    lines = (path / "records.jsonl").read_text().splitlines()
    (path / "records.jsonl").write_text("\n".join([lines[0], "?", lines[2]]))
    with pytest.raises(ReportError, match=r"records.jsonl, line 2: found no JSON record"):
        load(path)


def test_a_record_of_another_version_is_named(write: Write) -> None:
    row = {k: v for k, v in ROUNDS[0].items() if k != "unseen"}
    with pytest.raises(ReportError, match="record of round 1 has no 'unseen'"):
        load(write("r", [row]))


def test_a_damaged_configuration_is_named(write: Write) -> None:
    path = write("r", ROUNDS)
    (path / "config.toml").write_text("seed = 0\n")
    with pytest.raises(ReportError, match=r"config.toml: found no whole configuration"):
        load(path)


def test_a_run_is_found_by_the_beginning_of_its_name(write: Write) -> None:
    one, two = write("ab1", ROUNDS), write("ab2", ROUNDS)
    assert find("ab1", one.parent) == one
    assert find(str(two), Path("elsewhere")) == two
    with pytest.raises(ReportError, match=r"found 2 that begin so \(ab1, ab2\)"):
        find("ab", one.parent)
    with pytest.raises(ReportError, match="found no such folder"):
        find("c", one.parent)


def test_no_checkpoint_or_a_damaged_one_is_round_0(tmp_path: Path) -> None:
    assert saved_round(tmp_path) == 0
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\xff" * 20)
    assert saved_round(tmp_path) == 0
