"""`run`, `resume` and `compare`, from the words typed to the files left behind."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.cli.main import main
from fedshift.experiment import setup
from fedshift.experiment.files import owned

from .conftest import SMALL

PROGRAM = [sys.executable, str(Path(__file__).with_name("conftest.py"))]
LEFT = 'data.left_out=["scan"]'


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def only_run(out="runs"):
    (config,) = Path(out).glob("*/config.toml")
    return config.parent


def test_run_tells_what_it_does_and_what_came_of_it(capsys):
    assert main(["run", "--set", *SMALL, LEFT]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(
        "fedavg on toy without scan, seed 0\nsmall-cnn, sequential on 1 CPU thread, float32, in runs/"
    )
    assert re.search(r"^round 3/3 .* loss \d\.\d+  sites \d+\.\d %  unseen \d+\.\d %$", out, re.MULTILINE)
    for row in ("reported round 3", "sites, mean of 2", "worst site, ", "unseen, scan"):
        assert row in out
    assert not set(out) & {"\r", "\x1b"}
    assert out.endswith(f"{only_run()}\n")


def test_sites_without_test_images_are_not_spoken_of(capsys):
    assert main(["run", "--set", *SMALL, LEFT, "data.test=0"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^round 3/3 .* loss \d\.\d+  unseen \d+\.\d %$", out, re.MULTILINE)
    assert "unseen, scan" in out and "sites" not in out and "worst" not in out and "None" not in out


def test_a_finished_run_is_shown_again_and_not_repeated(capsys):
    main(["run", "--set", *SMALL])
    first = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in only_run().iterdir()}
    assert main(["run", "--set", *SMALL]) == 0
    assert {path: path.stat().st_mtime_ns for path in only_run().iterdir()} == before
    second = capsys.readouterr().out
    assert "This run is already finished" in second
    assert second.split("reported")[1] == first.split("reported")[1]


def test_fresh_starts_over_and_gives_the_same(capsys):
    main(["run", "--set", *SMALL])
    before = (only_run() / "records.jsonl").read_bytes()
    (only_run() / "records.jsonl").write_text("damaged")
    assert main(["run", "--fresh", "--set", *SMALL]) == 0
    assert (only_run() / "records.jsonl").read_bytes() == before
    assert "already finished" not in capsys.readouterr().out.split("reported")[1]


def test_a_file_and_the_command_line_name_the_same_settings(capsys):
    Path("one.toml").write_text('seed = 4\n[data]\nname = "toy"\n[local]\nbatch = 8\n[federation]\nrounds = 9\n')
    assert main(["run", "one.toml", "--set", "federation.rounds=1", "--set", "model.options.width=4", "--json"]) == 0
    start = lines(capsys)[0]
    assert (start["seed"], start["data"], start["rounds"]) == (4, "toy", 1)


def test_json_is_one_object_per_line(capsys):
    assert main(["run", "--json", "--set", *SMALL, LEFT]) == 0
    events = lines(capsys)
    assert [event["event"] for event in events] == ["start", "round", "round", "round", "result"]
    assert events[0]["state"] == "new"
    assert events[1]["metrics"]["loss"] > 0
    assert events[3]["record"]["round"] == 3
    assert set(events[4]["unseen"]) == {"scan"}
    assert events[4]["folder"] == str(only_run())


def test_a_killed_run_resumes_to_the_same_bits(capsys):
    settings = [*SMALL, "federation.rounds=12"]
    process = subprocess.Popen(
        [*PROGRAM, "run", "--json", "--out", "killed", "--set", *settings], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("round") == 2:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    interrupted = only_run("killed")
    assert not (interrupted / "done.json").exists()
    assert main(["resume", interrupted.name[:6], "--out", "killed", "--json"]) == 0
    events = lines(capsys)
    assert events[0]["state"] == "interrupted"
    assert events[1]["round"] == events[0]["done"] + 1
    main(["run", "--set", *settings])
    for name in ("records.jsonl", "config.toml"):
        assert (interrupted / name).read_bytes() == (only_run() / name).read_bytes()
    capsys.readouterr()
    assert main(["resume", str(interrupted)]) == 0
    assert "already finished" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on(number, capsys):
    with subprocess.Popen(
        [*PROGRAM, "run", "--json", "--set", *SMALL, "federation.rounds=5000", "checkpoint=1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline()).get("round") != 2:
            pass
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    said = re.fullmatch(
        r"fedshift: stopped; everything up to round (\d+) is safe in (\S+)\.\nTo go on: fedshift resume (\S+)\n", err
    )
    assert said is not None
    assert int(said[1]) >= 2  # saved when stopped, long before the next checkpoint was due
    assert json.loads(out.splitlines()[-1])["event"] == "error"
    assert main(["list", "runs"]) == 0
    assert f"round {said[1]} of 5000" in capsys.readouterr().out


def test_stopped_before_the_first_round(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "federate", interrupt)
    assert main(["run", "--set", *SMALL]) == 130
    assert capsys.readouterr().err == (
        "fedshift: stopped before the end of the first round; to go on, repeat the command.\n"
    )


def test_a_folder_in_use_is_refused(capsys):
    main(["run", "--set", *SMALL])
    records = (only_run() / "records.jsonl").read_bytes()
    with owned(only_run()):
        assert main(["run", "--fresh", "--set", *SMALL]) == 2
    assert "another process is running this experiment" in capsys.readouterr().err
    assert (only_run() / "records.jsonl").read_bytes() == records


COMPARE = ["compare", "--set", *SMALL, "--methods", "fedavg,fedprox(mu=0.5)", "--leave-out", "ink,scan"]


def test_compare_ends_in_tables_and_a_report(capsys):
    assert main([*COMPARE, "--seeds", "0,1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 runs on toy: 2 methods, 2 choices of left-out domains, 2 seeds\n")
    assert re.search(r"^8/8  sites .* unseen .*  fedprox\(mu=0.5\), left out scan, seed 1$", out, re.MULTILINE)
    assert re.search(r"^method +sites % +unseen % +worst site % +traffic MB +time s$", out, re.MULTILINE)
    assert re.search(r"^method +ink % +scan % +mean %$", out, re.MULTILINE)
    page = Path(re.findall(r"^Report: (.*)$", out, re.MULTILINE)[0])
    assert "2 methods on toy" in page.read_text()
    assert {path.name for path in page.parent.iterdir()} == {"report.html", "report.md", "report.json", "sweep.json"}
    assert len(list(Path("runs").glob("*/done.json"))) == 8


def test_compare_repeats_nothing_and_writes_the_same_report(capsys):
    assert main([*COMPARE, "--json"]) == 0
    first = lines(capsys)
    assert [event["event"] for event in first] == ["start", *["start", *["round"] * 3, "result"] * 4, "result"]
    assert first[-1]["tables"][0]["rows"]["fedavg"]["unseen"]["spread"] is not None
    assert main([*COMPARE, "--json"]) == 0
    second = lines(capsys)
    assert [event["event"] for event in second] == ["start", *["start", "result"] * 4, "result"]
    assert second[-1] == first[-1]


def test_compare_goes_on_when_a_run_fails(capsys):
    words = ["compare", "--set", *SMALL, "model.name=mlp", "model.options={hidden=[8]}"]
    assert main([*words, "--methods", "fedavg,fedbn", "--leave-out", "scan"]) == 1
    out, _ = capsys.readouterr()
    assert "2/2  fedbn, left out scan, seed 0 failed: method 'fedbn' works on BatchNorm layers" in out
    assert "1 of 2 runs failed:" in out
    assert re.search(r"^fedavg +\d", out, re.MULTILINE)


def test_a_stopped_compare_says_what_to_repeat(capsys, monkeypatch):
    calls = []
    before = setup.federate

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return before(*arguments)

    monkeypatch.setattr(setup, "federate", interrupt)
    assert main(COMPARE) == 130
    err = capsys.readouterr().err
    assert err.startswith("fedshift: stopped; 2 of 4 runs are finished, safe in runs.\n")
    assert err.endswith("To go on, repeat: fedshift compare --set " + " ".join(SMALL) + " --methods "
                        "'fedavg,fedprox(mu=0.5)' --leave-out ink,scan\n")  # fmt: skip
    assert main(COMPARE) == 0


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["--leave-out", "each"], {("ink",), ("photo",), ("scan",)}),
        (["--leave-out", "none"], {()}),
        (["--leave-out", "ink+scan,photo"], {("ink", "scan"), ("photo",)}),
        (["--set", LEFT], {("scan",)}),
        ([], {()}),
    ],
)
def test_choices_of_left_out_domains(capsys, words, choices):
    assert main(["compare", "--json", "--methods", "fedavg", "--set", *SMALL, "federation.rounds=1", *words]) == 0
    starts = [event for event in lines(capsys) if "left_out" in event and event["event"] == "start"]
    assert {tuple(event["left_out"]) for event in starts} == choices


def test_report_again_from_folders_or_from_a_comparison(capsys):
    main([*COMPARE, "--json"])
    first = lines(capsys)[-1]
    assert main(["report", str(Path(first["report"]).parent), "--out", "again/r.html"]) == 0
    out = capsys.readouterr().out
    assert "Report: again/r.html" in out
    assert json.loads(Path("again/r.json").read_text())["tables"][:2] == first["tables"]
    folders = [str(path.parent) for path in Path("runs").glob("*/config.toml")]
    assert main(["report", *folders, *folders[:1]]) == 0
    assert Path("report.md").exists()


def test_a_preset_is_a_protocol_that_file_and_settings_change(tmp_path):
    from fedshift.cli.driving import configuration
    from fedshift.experiment import strict
    from fedshift.experiment.config import Experiment

    file = tmp_path / "own.toml"
    file.write_text('[optimizer]\nname = "sgd"\nlr = 0.2\n[local]\nepochs = 3\n')
    settings = configuration(str(file), ["federation.rounds=7", 'data.left_out=["photo"]'], "hfedf:office-home")
    config = strict.build(Experiment, settings)
    assert (config.data.name, config.data.domains_per_client, config.local.batch) == ("office-home", 1, 64)
    assert (config.federation.rounds, config.local.epochs, config.eval.unseen) == (7, 3, "sites")
    assert config.optimizer.name == "sgd" and config.optimizer.lr == 0.2  # not Adam's settings under another name
    leaky = strict.build(Experiment, configuration(None, [], "feddca-report"))
    assert leaky.data.leak != "no" and leaky.optimizer.name == "adam"
    fair = strict.build(Experiment, configuration(None, ["method=fedavg"], "feddca-report"))
    assert fair.data.leak == "no" and fair.optimizer.name == "sgd"
