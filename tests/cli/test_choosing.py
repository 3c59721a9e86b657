"""What `auto` becomes, and how a run says so."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedshift.cli.choosing import because, flying, resolved, workers
from fedshift.cli.display import how
from fedshift.cli.driving import opening
from fedshift.cli.main import main
from fedshift.core.errors import ConfigError
from fedshift.experiment import strict
from fedshift.experiment.config import Experiment
from fedshift.experiment.room import cpu_workers
from fedshift.experiment.runs import Folder, folder_of
from fedshift.testing import tiny_data

from .conftest import SMALL, load

AUTO = dict.fromkeys(("engine", "device", "amp", "workers"), "auto")
QUICK = [text for text in SMALL if not text.startswith("engine")]


def choice(settings=None, alone=True, **asked):
    found = resolved(settings or {}, Namespace(**{**AUTO, **asked}), alone=alone)
    return tuple(found.get(key) for key in ("engine", "device", "precision"))


@pytest.fixture
def gpu(monkeypatch):
    """An H200 to look at, not to compute with."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def test_on_a_cpu():
    assert choice() == ("fast", "cpu", "float32")
    assert choice(amp="bf16") == ("fast", "cpu", "bf16")
    assert choice(amp="float64") == ("sequential", "cpu", "float64")
    assert choice(engine="sequential") == ("sequential", "cpu", "float32")
    assert choice(engine="captured") == ("captured", "cuda", "float32")  # which is refused where it is run


def test_on_a_gpu(gpu):
    assert choice() == ("captured", "cuda", "bf16")
    assert choice(amp="tf32") == ("captured", "cuda", "tf32")
    assert choice(device="cpu") == ("fast", "cpu", "float32")
    assert choice(engine="fast") == ("fast", "cpu", "float32")
    assert choice(engine="sequential") == ("sequential", "cuda", "float32")


def test_an_older_gpu_computes_in_float32(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 0))
    assert choice() == ("captured", "cuda", "float32")


def test_a_method_that_cannot_be_recorded_runs_plainly_but_not_in_a_comparison(gpu, monkeypatch):
    from dataclasses import replace

    from fedshift.methods import METHODS

    monkeypatch.setattr(METHODS["fedprox"], "card", replace(METHODS["fedprox"].card, unrecorded=("fedprox",)))
    named = {"method": {"name": "fedprox"}}
    assert choice(named)[0] == "sequential"
    assert because(resolved(named, Namespace(**AUTO))) == "the steps of fedprox cannot be recorded"
    assert choice(named, alone=False)[0] == "captured"


def test_what_a_file_names_wins():
    assert choice({"engine": "wire"}, engine="fast")[0] == "wire"
    assert choice({"precision": "float64"}, amp="bf16")[2] == "float64"
    assert resolved({"seed": 3}, Namespace()) == {"seed": 3}  # a caller without these options changes nothing


def experiment(*sets):
    return strict.build(Experiment, strict.merge({"data": {"name": "toy"}, "device": "cpu"}, list(sets)))


def test_one_line_says_it(gpu, monkeypatch):
    fast = experiment("engine=fast")
    said = opening(fast, folder_of(fast, Path("runs")), workers=2)
    assert how(said).startswith("small-cnn, fast on 2 CPU threads, float32, 2 workers, in runs/")
    captured = experiment("engine=captured", "device=cuda", "precision=bf16")
    said = opening(captured, folder_of(captured, Path("runs"))) | {"in_flight": flying(captured, load())}
    assert how(said).startswith("small-cnn, captured on NVIDIA H200, bf16, 3 clients in flight, in runs/")
    plain = experiment("precision=float64")
    said = opening(plain, folder_of(plain, Path("runs"))) | {
        "because": because({"device": "cpu", **strict.dump(plain)})
    }
    assert "sequential on 1 CPU thread, float64, because float64 asks for the order of sums too" in how(said)


def test_the_program_writes_down_what_it_chose(capsys):
    assert main(["run", "--set", *QUICK]) == 0
    (config,) = Path("runs").glob("*/config.toml")
    assert 'engine = "fast"' in config.read_text() and 'device = "cpu"' in config.read_text()
    assert json.loads(config.with_name("versions.json").read_text())["workers"] == 1
    assert "small-cnn, fast on 1 CPU thread, float32, in runs/" in capsys.readouterr().out
    assert main(["run", "--engine", "sequential", "--out", "one", "--set", *QUICK]) == 0
    assert main(["run", "--out", "two", "--set", *SMALL]) == 0
    names = [path.parent.name for out in ("one", "two") for path in Path(out).glob("*/config.toml")]
    assert len(names) == 2 and len(set(names)) == 1


def test_workers_change_no_bit_and_are_kept_by_resume():
    for out, count in (("one", "1"), ("two", "2")):
        main(["run", "--workers", count, "--out", out, "--set", *QUICK])
    (one,), (two,) = Path("one").glob("*"), Path("two").glob("*")
    assert (one / "records.jsonl").read_bytes() == (two / "records.jsonl").read_bytes()
    assert one.name == two.name
    config = experiment("engine=fast")
    assert workers(config, folder_of(config, Path("none")), load(), "3") == 3
    from fedshift.experiment.runs import Folder

    assert workers(config, Folder(two), load(), "auto") == 2


def test_workers_that_would_change_an_interrupted_run_s_bits_are_refused(tmp_path):
    folder = Folder(tmp_path)
    folder.checkpoint.write_bytes(b"")
    folder.config.with_name("versions.json").write_text(json.dumps({"threads": 2, "workers": 1}))
    config = replace(experiment(), engine="fast")
    assert workers(config, folder, load(), "1") == workers(config, folder, load(), "auto") == 1
    with pytest.raises(ConfigError, match=r"began with 2 threads in a step, expected 1"):
        workers(config, folder, load(), "2")


@pytest.mark.parametrize("words", [["--workers", "two"], ["--workers", "2", "--engine", "sequential"]])
def test_bad_workers_are_refused(words, capsys):
    assert main(["run", *words, "--set", *QUICK]) == 2
    assert "--workers: found" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"expected engine .fast."):
        workers(experiment(), folder_of(experiment(), Path("x")), load(), "2")


def test_bad_workers_are_refused_where_nothing_is_left_to_do(capsys):
    assert main(["run", "--set", *SMALL]) == 0
    for count, found in (("two", "'two'"), ("0", "'0'"), ("2", "2 and engine 'sequential'")):
        for words in ([], ["--fresh"]):
            assert main(["run", "--workers", count, *words, "--set", *SMALL]) == 2
            assert f"--workers: found {found}" in capsys.readouterr().err
    assert len(list(Path("runs").glob("*/done.json"))) == 1


def test_workers_where_they_pay():
    big = {"model": {"name": "mlp", "options": {"hidden": (200,)}}, "engine": "fast"}
    even = strict.build(Experiment, big)
    assert cpu_workers(even, tiny_data(sizes=(30, 30, 30, 30)), 2) == 2
    assert cpu_workers(even, tiny_data(sizes=(30, 30, 30)), 2) == 1  # one core would wait for a third of the time
    assert cpu_workers(even, tiny_data(sizes=(30, 30, 30, 30)), 1) == 1
    bf16 = strict.build(Experiment, {**big, "precision": "bf16"})
    assert cpu_workers(bf16, tiny_data(sizes=(30, 30, 30)), 2) == 2
    tiny = strict.build(Experiment, {**big, "model": {"name": "mlp", "options": {"hidden": (8,)}}})
    assert cpu_workers(tiny, tiny_data(sizes=(30, 30, 30, 30)), 2) == 1
    plain = strict.build(Experiment, {**big, "engine": "sequential"})
    assert cpu_workers(plain, tiny_data(sizes=(30, 30, 30, 30)), 2) == 1
