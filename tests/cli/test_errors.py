"""Bad input is one sentence on stderr and exit code 2; nothing is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift
from fedshift.cli.main import main

from .conftest import SMALL

TOY = ["--set", "data.name=toy"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "--set", "method=fedavgg"], ["fedavgg", "'fedavg'"]),
        (["run", "--set", "data.name=glyph"], ["glyph", "'glyphs'"]),
        (["run", *TOY, "model.name=small-cn"], ["small-cn", "'small-cnn'"]),
        (["run", *TOY, "federation.round=3"], ["federation.round is not a known key", "'rounds'"]),
        (["run", *TOY, "federation.rounds=many"], ["federation.rounds", "'many'", "whole number"]),
        (["run", *TOY, "federation.participation=2"], ["federation.participation", "2", "at most 1"]),
        (["run", "--preset", "feddca-sound:digits5"], ["'digits5': not on this machine yet", "import digits5 PATH"]),
        (["run", *TOY, "method.name=hfedf", "federation.common_init=false"], ["method 'hfedf' do not start from"]),
        (["run", *TOY, "eval.point=after_local", "federation.participation=0.5"], ["train no model in a round"]),
        (["run", *TOY, 'data.left_out=["ink","photo","scan"]'], ["all 3 domains", "at least one"]),
        (["run", *TOY, 'data.left_out=["sca"]'], ["'sca'", "'scan'"]),
        (["run", *TOY, "rounds"], ["--set 'rounds' has no '='"]),
        (["run", "absent.toml"], ["absent.toml does not exist"]),
        (["resume", "absent"], ["run 'absent'", "no such folder"]),
        (["report", "absent"], ["run 'absent'", "no such folder"]),
        (["show", "fedavgg"], ["'fedavgg'", "'fedavg'"]),
        (["compare", *TOY, "--methods", "fedavg,fedpro"], ["fedpro", "'fedprox'"]),
        (["compare", *TOY, "--methods", "fedprox(mew=1)"], ["method.mew is not a known key", "mu"]),
        (["compare", *TOY, "--methods", "fedprox(mu=-1)"], ["method.mu", "at least 0"]),
        (["compare", *TOY, "--methods", "fedprox(mu=1"], ["--methods", "expected NAME or NAME(key=value, ...)"]),
        (["compare", *TOY, "--methods", ","], ["--methods: found no method"]),
        (["compare", *TOY, "--methods", "fedavg", "--leave-out", "sca"], ["--leave-out: found 'sca'", "'scan'"]),
        (["compare", *TOY, "--methods", "fedavg", "--seeds", "0,x"], ["--seeds: found 'x'", "0,1,2"]),
    ],
)
def test_one_sentence(words, parts, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedshift: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    assert "Traceback" not in err
    assert not list(Path().glob("runs/*/config.toml"))


def test_errors_for_machines(capsys):
    assert main(["run", "--json", "--set", "method=fedavgg"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "error"
    assert json.loads(line)["kind"] == "ConfigError"


def test_a_traceback_on_request():
    with pytest.raises(fedshift.core.errors.ConfigError):
        main(["run", "--traceback", "--set", "method=fedavgg"])


def test_a_report_on_an_unwritable_place(capsys):
    main(["run", "--set", *SMALL])
    (folder,) = (path.parent for path in Path("runs").glob("*/config.toml"))
    Path("file").write_text("")
    assert main(["report", str(folder), "--out", "file/report.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_unknown_words_are_refused_with_the_usage(capsys):
    assert main(["comapre"]) == 2
    assert "usage: fedshift" in capsys.readouterr().err
    assert main(["list", "method"]) == 2
    assert "methods" in capsys.readouterr().err


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)


def test_a_closed_pipe_is_no_error():
    found = run(f"set -o pipefail; {sys.executable} -m fedshift list settings | true")
    assert found.stderr == ""
    assert found.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence():
    found = run(f"{sys.executable} -m fedshift list runs > /dev/full")
    assert found.stderr == "fedshift: the disk is full; free some space and repeat the command.\n"
    assert found.returncode == 2


def test_help_and_reports_do_without_torch():
    code = "import sys; from fedshift.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for words in (["--version"], ["--help"], ["compare", "--help"], ["list", "runs"]):
        found = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert found.stderr == ""
        assert found.returncode == 0
        assert found.stdout


def test_a_data_set_that_is_not_here_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    words = ["compare", "--methods", "fedavg,local", "--leave-out", "each", "--set", "data.name=pacs"]
    assert main([*words, "--out", str(tmp_path / "runs")]) == 2
    out = capsys.readouterr()
    assert out.err.count("data set 'pacs': not on this machine yet; run `fedshift data get pacs`") == 1
    assert not out.out and not (tmp_path / "runs").exists()
