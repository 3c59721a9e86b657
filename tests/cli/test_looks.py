"""`list`, `show`, `doctor`, and what is shown on a terminal."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedshift.cli import console, display, doctor
from fedshift.cli.live import Live
from fedshift.cli.main import LISTS, main
from fedshift.data import DATASETS
from fedshift.engines import ENGINES
from fedshift.methods import METHODS
from fedshift.models import MODELS

from .conftest import SMALL


@pytest.mark.parametrize(
    ("what", "names"), [("methods", METHODS), ("models", MODELS), ("datasets", DATASETS), ("engines", ENGINES)]
)
def test_lists_name_everything(what, names, capsys):
    assert main(["list", what]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(first) >= set(names)


def test_settings_come_with_type_default_and_help(capsys):
    assert main(["list", "settings"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "rounds of the main stage" in rows["federation.rounds"]
    assert "20 " in rows["federation.rounds"]
    assert "a whole number, at least 1" in rows["federation.rounds"]
    assert "(sgd)" in rows["optimizer.momentum"]
    assert "data" not in rows


def test_list_runs(capsys):
    assert main(["list", "runs"]) == 0
    assert capsys.readouterr().out == "No runs in runs.\n"
    main(["run", "--set", *SMALL, 'data.left_out=["scan"]'])
    Path("runs/broken").mkdir()
    Path("runs/broken/config.toml").write_text("seed = 0")
    capsys.readouterr()
    assert main(["list", "runs"]) == 0
    out = capsys.readouterr().out
    assert "fedavg  toy" in " ".join(out.split()).replace(" toy", "  toy")
    assert "finished" in out
    assert "cannot be read" in out


@pytest.mark.parametrize("name", [*METHODS, *MODELS, "glyphs", "toy", "timm:resnet18"])
def test_every_card_can_be_shown(name, capsys):
    assert main(["show", name]) == 0
    assert name in capsys.readouterr().out


def test_a_method_card_says_what_a_user_must_know(capsys):
    main(["show", "fedprox"])
    out = capsys.readouterr().out
    card = METHODS["fedprox"].card
    for text in (
        "MLSys 2020",
        card.url,
        card.sends_up,
        card.stays,
        card.unseen,
        "method.mu",
        "at least 0",
        "deviations",
    ):
        assert text in out


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "self-test     trained two rounds twice, bit for bit the same" in out
    assert "problem" not in out


def test_doctor_for_machines_and_with_a_problem(capsys, monkeypatch):
    Path("file").write_text("")
    monkeypatch.setattr(doctor, "self_test", lambda: doctor.Finding("ok", "self-test", "skipped"))
    assert main(["doctor", "--json", "--out", "file/runs"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (problem,) = (row for row in rows if row["state"] == "problem")
    assert (problem["what"], problem["advice"]) == ("runs", "give another folder by --out")


def test_the_self_test_finds_engines_that_disagree(monkeypatch):
    import torch

    results = iter([{"w": torch.zeros(2)}, {"w": torch.zeros(2)}, {"w": torch.ones(2)}])
    monkeypatch.setattr(doctor, "_train", lambda engine: next(results))
    assert doctor.self_test().state == "problem"


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that remembers what was drawn."""
    made = Console(file=io.StringIO(), force_terminal=True, width=90, highlight=False)
    monkeypatch.setattr(console, "terminal", lambda: made)
    monkeypatch.setattr(display, "terminal", lambda: made)
    return made


def test_on_a_terminal_the_picture_moves_and_the_tables_stay(terminal, capsys):
    assert main(["compare", "--methods", "fedavg,local", "--set", *SMALL, "--leave-out", "scan"]) == 0
    drawn = terminal.file.getvalue()
    assert "2 of 2 runs" in drawn
    assert "Methods compared" in drawn
    assert "\x1b[" in drawn


def test_the_picture_says_how_far_the_run_is(terminal):
    live = Live(terminal)
    live.run = {"state": "new", "done": 0, "rounds": 20}
    record = {"sites": {"a": {"test": {"accuracy": 0.5}}}, "unseen": {"z": {"test": {"accuracy": 0.25}}}}
    live({"event": "round", "round": 5, "rounds": 20, "seconds": 2.0, "metrics": {"loss": 0.5}, "record": record})
    terminal.print(live._picture())
    drawn = terminal.file.getvalue()
    for part in ("5/20 rounds", "2.5/s", "0:06 left", "loss 0.500"):
        assert part in drawn
    assert "sites 50.0 %  unseen 25.0 %" in drawn


def test_without_rich_everything_is_plain(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert console.terminal() is None
    assert main(["list", "engines"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_plain_lines_are_at_most_one_a_second(monkeypatch, capsys):
    times = iter([0.0, *(100 + 0.25 * i for i in range(200))])
    monkeypatch.setattr(display, "monotonic", lambda: next(times))
    plain = display.Plain()
    for number in range(1, 21):
        plain({"event": "round", "round": number, "rounds": 20, "seconds": 1.0, "metrics": {}, "record": None})
    shown = [int(line.split("/")[0].split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert shown[0] in (1, 2)
    assert shown[-1] == 20
    assert len(shown) < 12


def test_no_command_is_help(capsys):
    assert main([]) == 0
    assert "compare" in capsys.readouterr().out
    assert set(LISTS) == {"methods", "models", "datasets", "presets", "engines", "runs", "settings"}
