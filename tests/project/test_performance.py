"""The performance page is what its files of results say, and nothing else."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.core import seeds
from fedshift.data.batches import Budget

ROOT = Path(__file__).parents[2]
MACHINE = {
    "cores": 2, "flags": ["avx2"], "memory_gib": 8, "system": "Linux 6, x86_64", "gpu": None,
    "python": "3.11.7", "torch": "2.13.0", "fedshift": "0.1.0", "date": "2026-01-01",
}  # fmt: skip


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.page")


def row(**changes):
    quarter = {"wall_ratio": [1.5, 1.25, 1.75], "cpu_ratio": [2.0, 2.0, 2.0], "wall_s": 0.0125, "cpu_s": 0.01}
    rest = {"peak_mib": 300.4, "first_round_s": 3.21, "first_round_cpu_s": 2.0, "sent": 4_000_000}
    return {**quarter, **rest, "accuracy": None, "difference": 3e-8, "same": True, **changes}


def peers():
    rows = {"bare loop": row(), "Other": row(same=False, difference=0.2), "Gone": {"reason": "no module | named so"}}
    work = {"summary": "tiny", "images": 10, "clients": 2, "moved": 0.02, "rows": rows}
    return {"threads": 1, "turns": 3, "versions": {"flwr": "1.0"}, "machine": MACHINE, "W4": work}


def test_the_page_is_what_the_results_give(page, tmp_path):
    if not list(page.RESULTS.glob("*.json")):
        pytest.skip("nothing was measured yet: python -m benchmarks")
    assert page.PAGE.read_text(encoding="utf-8") == page.page()
    page.draw(tmp_path)
    kept = page.PAGE.parent / page.IMAGES
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: p.read_bytes() for p in kept.iterdir()}


def test_every_result_says_where_it_was_measured(page):
    for file in page.RESULTS.glob("*.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        assert set(MACHINE) <= set(found["machine"]), file.name
        assert file.stat().st_size < 100_000 and file.stem in page.PARTS


def test_a_peer_that_did_not_run_stands_in_the_table_with_its_reason(page):
    text = page.section("peers", peers())
    assert "| Gone | did not run: no module / named so |" in text
    assert "**not the same:** 2e-01" in text and "1.50 (1.25\N{EN DASH}1.75)" in text and "| 300 |" in text


def test_a_picture_has_a_bar_for_everybody(page, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "peers.json").write_text(json.dumps(peers()))
    page.draw(tmp_path / "images", results)
    text = (tmp_path / "images" / "peers-rounds.svg").read_text(encoding="utf-8")
    assert text.count(">1.50<") == 2 and ">did not run<" in text and text.startswith("<svg")


def test_equal_weights_and_reasons_are_told_apart(page):
    works = {"W1": {"bare loop": [0.0, 0.0], "A": [1e-16, 0.5], "B": "no module | named so"}, "W2": {"A": [0.0, 0.0]}}
    text = page.section("same", {"versions": {"a": "1"}, "workloads": works})
    assert "| bare loop | equal |  |" in text and "| A | 1e-16, 5e-01 | equal |" in text
    assert "| B | did not run: no module / named so |  |" in text


def test_feeding_and_the_gpu_have_tables(page):
    ratios = {"store / bare": {"wall": [1.2, 1.1, 1.3], "cpu": [1.0, 1.0, 1.0]}}
    rows = {"bare": {"seconds": 2.0, "cpu_s": 4.0, "images_per_s": 4995.5}}
    found = {"set": "a.tar", "size": 128, "repeats": 7, "pictures": 9991, "rows": rows, "ratios": ratios}
    text = page.section("feeding", found)
    assert "9,991 pictures" in text and "| bare | 2 | 4 | 4,996 |" in text and "1.20 (1.10" in text
    row = {"images_per_s": 240_500.0, "median": 250_000.0, "first_rounds_s": 12.0, "visits": 1}
    text = page.section("captured", {"gpu": "a GPU", "3 clients, bf16, evaluated": row, "gap fedavg": 2e-7})
    assert "| 3 clients, bf16, evaluated | 240 | 250 | 12 |" in text and "| fedavg | 2e-07 |" in text


def test_parts_without_a_section_become_tables(page):
    text = page.plain({"machine": MACHINE, "a": {"x": {"s": 1.5, "n": 2000}, "y": {"s": None}}, "b": 3, "c": [1, 2]})
    text += page.plain({"rows": [{"rule": "mean", "ratio": [1.0, 0.9, 1.1]}]})
    assert "| x | 1.5 | 2,000 |" in text and "| y | \N{EN DASH} | \N{EN DASH} |" in text and "- b: 3\n- c: 1, 2" in text
    assert "| rule | ratio |" in text and "| mean | 1.00 (0.90\N{EN DASH}1.10) |" in text
    assert "machine" not in text


def test_a_change_of_one_number_changes_the_page(page, tmp_path):
    found = peers()
    (tmp_path / "peers.json").write_text(json.dumps(found))
    before = page.page(tmp_path)
    found["W4"]["rows"]["bare loop"]["wall_s"] = 0.5
    (tmp_path / "peers.json").write_text(json.dumps(found))
    assert page.page(tmp_path) != before and "| 500 |" in page.page(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's own")
def test_a_family_is_counted_and_ended_with_its_grandchildren(page):
    processes = importlib.import_module("benchmarks.processes")
    inner = "import sys; data = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    root = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        root.stdout.readline()
        family = processes.family(root.pid)
        assert len(family) == 2 and processes.cpu(family) >= 0
        assert processes.peak(family) - processes.peak([root.pid]) > 64
    finally:
        processes.end(processes.family(root.pid))
    assert root.wait() < 0
    root.stdin.close(), root.stdout.close()


def test_the_contest_deals_the_same_batches_to_all(page, tmp_path):
    modules = ("peers", "contest.given", "workloads")
    peers_, given_, workloads = (importlib.import_module(f"benchmarks.{name}") for name in modules)
    w = workloads.WORKLOADS["W4"]
    peers_.give(w, tmp_path, rounds=2, threads=1)
    given, budget = given_.Given(tmp_path), Budget(w.batch, epochs=1, steps=0)
    for k in (0, 6, 10):  # 15, 21 and 25 pictures in batches of 10
        seed = seeds.derive(0, "round", "main", 1, f"site{k:03}")
        ours = budget.order(w.train[k], seeds.generator(seed, "order"))
        order = given.order(k, 1)
        assert list(order) == [batch.tolist() for batch in ours]
        assert len(order) == len(list(given.order(k, 0)))
