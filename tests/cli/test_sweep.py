"""`sweep`, from the words typed to tables, lists and records."""

import json
import re
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from fedshift.cli import many
from fedshift.cli.board import Board
from fedshift.cli.main import main
from fedshift.cli.planning import planned
from fedshift.cli.sweep import _spare
from fedshift.core.errors import ConfigError
from fedshift.experiment.config import Experiment
from fedshift.experiment.runs import Folder

from .conftest import SMALL, load

SWEEP = ["sweep", "--jobs", "1", "--set", *SMALL]
TWO = ["--methods", "fedavg,fedprox(mu=0.5)", "--leave-out", "ink,scan"]


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def plan(**given):
    plain = {"config": None, "preset": None, "set": [], "methods": "fedavg", "leave_out": None, "seeds": None}
    return planned(Namespace(**{**plain, "grid": [], "datasets": None, **given}))


# --------------------------------------------------------------------------------------------------- what is planned


def test_the_first_seed_of_everything_comes_first():
    runs = plan(methods="fedavg,local", leave_out="ink,scan", seeds="5,3", set=["data.name=toy"])
    told = [(c.seed, c.data.left_out[0], c.method.name) for c in runs]
    assert told[:4] == [(5, "ink", "fedavg"), (5, "ink", "local"), (5, "scan", "fedavg"), (5, "scan", "local")]
    assert [seed for seed, *_ in told] == [5] * 4 + [3] * 4


def test_a_grid_crosses_settings_and_leaves_alone_whom_they_do_not_concern():
    runs = plan(methods="fedavg,fedprox", grid=["optimizer.lr=0.1,0.01", "method.mu=1,2"], set=["data.name=toy"])
    told = {(c.method.name, getattr(c.method, "mu", None), c.optimizer.lr) for c in runs}
    lrs = (0.1, 0.01)
    assert told == {("fedavg", None, lr) for lr in lrs} | {("fedprox", mu, lr) for mu in (1, 2) for lr in lrs}
    assert len(runs) == 6


def test_what_needs_a_left_out_domain_may_stand_beside_leave_out():
    runs = plan(leave_out="ink,scan", set=["data.name=toy", "data.adapt=0.5"])
    assert [(c.data.left_out, c.data.adapt) for c in runs] == [(("ink",), 0.5), (("scan",), 0.5)]
    with pytest.raises(ConfigError, match="no domain is left out"):
        plan(set=["data.name=toy", "data.adapt=0.5"])


def test_a_preset_has_settings_of_its_own_for_methods_and_data_sets():
    runs = plan(preset="feddca-report", methods="fedavg,local")
    by_name = {c.method.name: c for c in runs}
    assert (by_name["fedavg"].optimizer.name, by_name["local"].optimizer.name) == ("sgd", "adam")
    assert (by_name["fedavg"].data.leak, by_name["fedavg"].local.batch) == ("no", 32)
    runs = plan(preset="fdse", datasets="office-caltech10,pacs", leave_out="each", set=["federation.rounds=7"])
    by_data = {c.data.name: c for c in runs}
    assert (by_data["office-caltech10"].local.epochs, by_data["pacs"].local.epochs) == (1, 5)
    assert len(runs) == 8 and {c.federation.rounds for c in runs} == {7}


def test_sweep_compare_and_run_share_their_runs(capsys):
    assert main([*SWEEP, *TWO, "--json"]) == 0
    first = events(capsys)[-1]["tables"]
    before = {path: path.stat().st_mtime_ns for path in Path("runs").glob("*/*.jsonl")}
    assert main(["compare", "--set", *SMALL, *TWO, "--json"]) == 0
    assert events(capsys)[-1]["tables"] == first
    assert main(["run", "--set", *SMALL, 'data.left_out=["scan"]', "--json"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").glob("*/*.jsonl")} == before and len(before) == 8


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--jobs", "many"], ["--jobs: found 'many'", "write --jobs 2"]),
        (["--jobs", "0"], ["--jobs: found '0'"]),
        (["--grid", "optimizer.lr"], ["--grid: found 'optimizer.lr'", "optimizer.lr=0.1,0.01"]),
        (["--grid", "optimizer.lr="], ["--grid: found 'optimizer.lr='"]),
        (["--grid", "optimizer.rl=1,2"], ["optimizer.rl is not a known key", "'lr'"]),
        (["--grid", "method.mu=1,2"], ["method.mu is not a known key"]),
        (["--grid", "device=cpu,cuda"], ["found both cpu and cuda"]),
        (["--grid", "precision=float32,bf16", "--set", "device=cuda"], ["found bf16 and float32 in one sweep"]),
        (["--datasets", "toy,tyo"], ["'tyo'", "'toy'"]),
        *((["--jobs", jobs, "--workers", "two"], ["--workers: found 'two'"]) for jobs in ("1", "2")),
        (["--jobs", "2", "--workers", "0"], ["--workers: found '0'", "write --workers 2"]),
        (["--jobs", "2", "--workers", "2"], ["--workers: found 2 and engine 'sequential'"]),
        (["--jobs", "2", "--workers", "2", "--set", "engine=fast"], ["--workers: found 2 and 2 runs at once"]),
    ],
)
def test_one_sentence(words, parts, capsys):
    assert main(["sweep", "--set", *SMALL, "--methods", "fedavg,local", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedshift: ") and err.count("\n") == 1
    for part in parts:
        assert part in err
    assert not list(Path().glob("runs/*/config.toml"))


def test_workers_are_refused_on_a_gpu_too(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    assert main(["sweep", "--workers", "2", "--set", *SMALL[1:], "--methods", "fedavg"]) == 2
    assert "--workers: found 2 and engine 'captured', expected engine 'fast'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- what comes of it


def test_each_protocol_has_its_tables_and_its_report(capsys):
    words = ["--methods", "fedavg,local", "--leave-out", "scan", "--grid", "optimizer.lr=0.1,0.01"]
    assert main([*SWEEP, *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 runs on toy: 2 methods, 1 choice of left-out domains, 2 protocols, 1 seed\n")
    assert "4/4  sites" in out and "local, left out scan, seed 0, optimizer.lr=0.01" in out
    assert re.search(r"^4 runs finished in \d+:\d\d, [\d,]+ images/s$", out, re.MULTILINE)
    for rate in ("0.1", "0.01"):
        assert f"\noptimizer.lr={rate}: Methods compared\n" in out
    pages = [Path(page) for page in re.findall(r"^Report: (.*)$", out, re.MULTILINE)]
    assert [page.parent.name for page in pages] == ["optimizer.lr=0.1", "optimizer.lr=0.01"]
    assert all(page.exists() for page in pages)
    log = json.loads((pages[0].parent.parent / "sweep.json").read_text())
    assert {run["state"] for run in log["runs"].values()} == {"done"} and log["incidents"] == []


def test_a_failed_run_is_listed_with_its_reason_and_tried_again_on_request(capsys):
    words = ["sweep", "--jobs", "1", "--set", *SMALL, "model.name=mlp", "model.options={hidden=[8]}"]
    words += ["--methods", "fedavg,fedbn"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "1 of 2 runs failed:" in out and "--retry-failed" in out
    assert main(["list", "runs"]) == 0
    listed = capsys.readouterr().out
    assert "failed: method 'fedbn' works on BatchNorm layers" in listed and "finished" in listed
    assert main([*words, "--json"]) == 1
    told = events(capsys)
    assert [event["event"] for event in told] == ["start", "start", "result", "error", "result"]
    assert main([*words, "--json", "--retry-failed"]) == 1
    assert [event["event"] for event in events(capsys)] == ["start", "start", "result", "start", "error", "result"]


def test_a_sweep_whose_runs_all_failed_before_says_so_again(capsys):
    words = ["sweep", "--jobs", "1", "--set", *SMALL, "model.name=mlp", "model.options={}", "--methods", "fedbn"]
    for _ in range(2):
        assert main(words) == 1
        assert "1 of 1 runs failed:" in capsys.readouterr().out


@pytest.fixture
def everywhere(tmp_path, monkeypatch, capsys):
    """The toy data set, imported, so that other processes find it too."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    arrays = {}
    for domain in load().domains:
        arrays |= {f"{domain.name}_x": domain.images.permute(0, 2, 3, 1).numpy(), f"{domain.name}_y": domain.labels}
    np.savez("bits.npz", **arrays)
    assert main(["data", "import", "bits", "bits.npz"]) == 0
    capsys.readouterr()
    return ["--set", *SMALL[1:], "data.name=bits", "data.size=8"]


def computed(told):
    return {(event["workers"], event["threads"]) for event in told if event["event"] == "start"}


def test_each_run_says_by_how_many_workers_it_is_computed(capsys):
    words = ["compare", "--workers", "2", "--set", *SMALL[1:], *TWO, "--json"]
    for again in ([], ["--workers", "1"]):  # what is finished says how it was made
        assert main([*words, *again]) == 0
        told = events(capsys)
        assert computed(told[1:]) == {(2, 2)} and sum(event["event"] == "start" for event in told) == 5


def test_a_run_whose_workers_cannot_be_counted_fails_alone(capsys, monkeypatch):
    def workers(config, *rest):
        if config.seed == 0:
            raise ConfigError("no such network")
        return 1

    monkeypatch.setattr("fedshift.cli.sweep.workers", workers)
    assert main([*SWEEP, "--methods", "fedavg", "--seeds", "0,1", "--json"]) == 1
    told = [event for event in events(capsys) if event["event"] != "round"]
    assert [event["event"] for event in told] == ["start", "start", "error", "start", "result", "result"]
    assert told[2]["message"] == "no such network"


def test_several_processes_end_in_the_same_report_as_one(everywhere, capsys, monkeypatch):
    words = ["sweep", *everywhere, *TWO, "--json"]
    with monkeypatch.context() as here:
        here.setattr(torch, "get_num_threads", lambda: 2)
        assert main([*words, "--jobs", "2", "--out", "many"]) == 0
        told = events(capsys)
        assert told[0]["at_once"] == 2 and computed(told) == {(1, 1)}
        assert main([*words, "--jobs", "1", "--out", "many"]) == 0
        assert computed(events(capsys)[1:]) == {(1, 1)}
    assert [event["event"] for event in told].count("round") == 12
    assert {event["run"] for event in told if event["event"] == "round"} == {row["run"] for row in told[0]["plan"]}
    assert main([*words, "--jobs", "1", "--out", "one"]) == 0
    one = events(capsys)[-1]["tables"]
    timeless = [{k: v for k, v in row.items() if k != "time"} for row in one[0]["rows"].values()]
    again = [{k: v for k, v in row.items() if k != "time"} for row in told[-1]["tables"][0]["rows"].values()]
    assert timeless == again and one[1:] == told[-1]["tables"][1:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_every_run_and_says_how_to_go_on(number, everywhere, capsys):
    words = ["sweep", *everywhere, "federation.rounds=5000", "checkpoint=5000", "--jobs", "2", "--json"]
    words += ["--methods", "fedavg,local,scaffold"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedshift", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        heard = set()
        while len(heard) < 2:
            event = json.loads(process.stdout.readline())
            heard |= {event["run"]} if event["event"] == "round" else set()
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.startswith(
        "fedshift: stopped; 0 of 3 runs are finished, and the 2 under way up to their last rounds, safe in runs.\n"
        "To go on, repeat: fedshift sweep --set"
    )
    assert {path.parent.name for path in Path("runs").glob("*/checkpoint.safetensors")} == heard
    for run in heard:
        assert Folder(Path("runs") / run).experiment().data.name == "bits"
    (log,) = Path("runs").glob("sweep-*/sweep.json")
    assert {run["state"] for run in json.loads(log.read_text())["runs"].values()} == {"waiting"}


@pytest.mark.parametrize(
    ("engine", "precision", "there"),
    [
        ("captured", "bf16", ("fast", "float32")),
        ("captured", "tf32", ("fast", "float32")),
        ("captured", "float32", ("fast", "float32")),
        ("captured", "float64", ("sequential", "float64")),
        *((engine, "tf32", (engine, "float32")) for engine in ("sequential", "wire", "debug")),
        *((engine, "float64", (engine, "float64")) for engine in ("sequential", "wire", "debug")),
    ],
)
def test_what_a_lost_gpu_leaves_is_made_as_a_cpu_can(engine, precision, there):
    lost = Experiment(device="cuda", engine=engine, precision=precision)
    spare = _spare(Namespace(cpu_if_lost=True)).change(lost)
    assert (spare.device, spare.engine, spare.precision) == ("cpu", *there)
    assert replace(spare, device="cuda", engine=engine, precision=precision) == lost


# --------------------------------------------------------------------------------------------------- how it is shown


def planned_rows(methods=("fedavg", "local"), seeds=(0, 1), protocols=("",)):
    rows = [
        {"method": m, "left_out": [d], "seed": s, "protocol": p, "rounds": 10, "state": "waiting"}
        for s in seeds for p in protocols for d in ("ink", "scan") for m in methods
    ]  # fmt: skip
    return [{**row, "run": str(i)} for i, row in enumerate(rows)]


def start(rows):
    where = {"data": "toy", "model": "mlp", "engine": "sequential", "device": "cpu", "threads": 1, "folder": "runs"}
    return {"event": "start", "runs": len(rows), "text": "so many", "plan": rows, "at_once": 2, **where}


def drawn(rows, happened, width=80, height=30):
    console = Console(file=StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    board = Board(console)
    for event in [start(rows), *happened]:
        board(event)
    with console.capture() as text:
        console.print(board._picture())
    return text.get(), console.file.getvalue()


HAPPENED = [
    {"event": "start", "run": "0", "done": 0},
    {"event": "round", "run": "0", "round": 10, "rounds": 10, "images": 50},
    {"event": "result", "run": "0", "unseen_mean": 0.815, "sites": 0.9},
    {"event": "start", "run": "1", "done": 0},
    {"event": "round", "run": "1", "round": 4, "rounds": 10, "images": 50},
    {"event": "error", "run": "2", "message": "no luck"},
    {"event": "retry", "run": "3", "message": "was killed"},
]


def test_the_table_fills(monkeypatch):
    monkeypatch.setattr(many, "monotonic", iter([0.0, 0.0, *[50.0] * 9]).__next__)
    picture, above = drawn(planned_rows(), HAPPENED, width=110)
    lines = picture.splitlines()
    assert lines[1].split() == ["ink", "scan"]
    assert lines[2].split() == ["fedavg", "81.5", "·", "✕", "·"]
    assert lines[3].split() == ["local", "━━━━━", "·", "↻", "·"]
    assert "1 of 8 runs, 1 failed" in lines[-1] and "1 running" in lines[-1]
    assert "2 images/s  23:20 left" in lines[-1]  # 100 in 50 s; 7 runs of 500 each, 700 of which are done
    assert "3/8  fedavg, left out scan, seed 0 failed: no luck" in above
    assert "4/8  local, left out scan, seed 0 is put back: was killed" in above


def test_narrow_terminals_get_letters_and_low_ones_the_protocols_at_work():
    rows = planned_rows(methods=("fedavg",), seeds=range(9))
    moved = [{**event, "run": {"0": "0", "1": "2", "2": "1", "3": "3"}[event["run"]]} for event in HAPPENED]
    tight, _ = drawn(rows, moved, width=50)
    assert "81.5 ■▄·······" in tight
    letters, _ = drawn(rows, moved, width=30)
    assert "■▄·······" in letters and "81.5" not in letters
    low, _ = drawn(planned_rows(protocols=("lr=1", "lr=2", "lr=3")), HAPPENED, height=12)
    assert "lr=2  0 of 8 runs done" in low and low.splitlines()[1].strip() == "lr=1"


def test_a_run_that_moves_elsewhere_keeps_its_place():
    tally = many.Tally(start(planned_rows()))
    tally({"event": "moved", "run": "new", "from": "3"})
    assert tally.cells["new"].number == 4 and "3" not in tally.cells
