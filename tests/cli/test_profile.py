"""`profile`: a table, a picture and numbers that agree, and nothing else is left behind."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fedshift.cli.main import main
from fedshift.experiment.profile import PARTS, STEPS
from fedshift.report.profile import COLOURS, LEFT, RIGHT, number, picture

from .conftest import SMALL

SVG = "{http://www.w3.org/2000/svg}"
SETTINGS = ["--engine", "sequential", "--set", *SMALL, 'data.left_out=["scan"]']


def bars(file):
    """x and width of each bar, in order."""
    found = [r for r in ET.parse(file).iter(f"{SVG}rect") if r.get("height") != "100%"]
    return [(float(r.get("x")), float(r.get("width"))) for r in found]


def test_a_table_a_picture_and_its_numbers(capsys):
    assert main(["profile", *SETTINGS]) == 0
    out, err = capsys.readouterr()
    assert "measuring" not in err and sorted(p.name for p in Path().iterdir()) == ["profile.json", "profile.svg"]
    assert out.startswith(
        "Where a round of fedavg on toy spends its time\nsmall-cnn, engine sequential on cpu, 1 thread"
    )
    table = re.findall(r"^(\w+) +([\d.]+) +([\d.]+)", out, re.MULTILINE)
    assert [name for name, _, _ in table] == [*PARTS, "round"]
    assert sum(float(share) for _, _, share in table[:-1]) == pytest.approx(100, abs=0.5)
    assert re.search(r"^Measuring took \S+ % of the time\.$", out, re.MULTILINE)
    told = json.loads(Path("profile.json").read_text())
    (stage,) = told["stages"]
    assert stage["rounds"] == 2 and stage["seconds"] == pytest.approx(sum(stage["parts"].values()))  # of three rounds
    assert all(seconds > 0 for seconds in stage["parts"].values())
    ends = [LEFT, *(x + wide for x, wide in bars("profile.svg"))]
    assert [x for x, _ in bars("profile.svg")] == pytest.approx(ends[:-1], abs=1)
    assert ends[-1] == pytest.approx(RIGHT, abs=1)


def test_json_and_a_place_for_the_picture(capsys):
    assert main(["profile", *SETTINGS, "--json", "--rounds", "1", "--warm-up", "0", "--out", "a.svg"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["event"] == "profile" and told["picture"] == "a.svg" and told["stages"][0]["rounds"] == 1
    assert told["config"]["data"]["name"] == "toy" and told["cost"] > 0
    assert Path("a.svg").exists() and Path("a.json").exists()


def test_a_folder_is_made_for_the_picture(capsys):
    assert main(["profile", *SETTINGS, "--rounds", "1", "--warm-up", "0", "--out", "a/b/c.svg"]) == 0
    assert Path("a/b/c.svg").exists() and Path("a/b/c.json").exists()


@pytest.mark.parametrize(
    ("out", "part"),
    [
        ("a.json", "--out: found 'a.json', expected a picture's name, beside which the numbers go"),
        ("in/the/way.svg", "in/the/way.svg: cannot be written (Not a directory); give another file by --out."),
        (".", "cannot be written (Is a directory)"),
    ],
)
def test_a_bad_place_for_the_picture_is_refused_before_measuring(out, part, capsys, monkeypatch):
    monkeypatch.setattr("fedshift.cli.profile.measure", None)
    Path("in").write_text("in the way")
    assert main(["profile", *SETTINGS, "--out", out]) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1


def test_recorded_steps_say_how_they_were_divided(capsys):
    assert main(["profile", *SETTINGS, "engine=rehearsed", "--rounds", "1"]) == 0
    assert "divided as it is where engine sequential trains one after another" in capsys.readouterr().out.replace(
        "\n", " "
    )
    assert Path("profile.svg").read_text().count('opacity="0.6"') == len(STEPS)


def test_a_round_or_more(capsys):
    assert main(["profile", *SETTINGS, "--rounds", "0"]) == 2
    assert capsys.readouterr().err.startswith("fedshift: profile: expected --rounds 1 or more")


def test_two_stages_are_two_panels_and_names_are_escaped(tmp_path):
    parts = dict.fromkeys(COLOURS, 0.01)
    stage = {"stage": "a<b", "rounds": 1, "seconds": 0.1, "parts": parts, "divided": False}
    (tmp_path / "p.svg").write_text(picture("x & y", "z", [stage, stage], ["word " * 40]))
    texts = [t.text for t in ET.parse(tmp_path / "p.svg").iter(f"{SVG}text")]
    assert texts.count("stage a<b") == 2 and texts.count("forward") == 2 and "x & y" in texts
    assert list(COLOURS) == list(PARTS) and len(bars(tmp_path / "p.svg")) == 2 * len(parts)


def test_numbers_have_three_digits_that_count():
    assert [number(v) for v in (0.0, 0.994, 9.994, 9.996, 99.94, 99.96, 1234.5)] == [
        *("0.00", "0.99", "9.99", "10.0", "99.9", "100", "1234")
    ]  # fmt: skip
