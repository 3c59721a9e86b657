"""The report's files."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedshift.report import Comparison, ReportError, load, write_report
from fedshift.report.chart import Line, Point, chart
from fedshift.report.write import reported_runs

from .conftest import Write, record

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Checker(HTMLParser):
    """Collects text; every tag must be closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def comparison(write: Write) -> Comparison:
    runs = []
    for name, level in (("fedavg", 0.8), ("<b>&", 0.6)):
        for left in ("x", "y"):
            rows = [
                record(r, {"a": level * r / 3}, {left: level * r / 6}, up=r * 10**6, down=r * 10**6) for r in (1, 2, 3)
            ]
            changes = {"method": {"name": name}, "data.left_out": [left]}
            runs.append(load(write(f"r{len(runs)}", rows, changes=changes)))
    return Comparison(tuple(runs))


def test_the_page_is_well_formed_alone_and_holds_the_numbers(comparison: Comparison, tmp_path: Path) -> None:
    files = write_report(comparison, tmp_path / "out" / "report.html")
    assert [file.name for file in files] == ["report.html", "report.md", "report.json"]
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["report.html", "report.json", "report.md"]
    page = files[0].read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == []
    assert "<script" not in page
    assert "url(" not in page
    for expected in ("80.0", "60.0", "40.0", "30.0", "<b>&", "../runs/r3", "torch 2.13.0", "batches of 32"):
        assert expected in checker.text


def test_every_picture_is_well_formed(comparison: Comparison, tmp_path: Path) -> None:
    page = write_report(comparison, tmp_path / "report")[0].read_text(encoding="utf-8")
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) == 3
    for figure in figures:
        assert len(ElementTree.fromstring(figure).findall(".//{*}polyline")) == 2


def test_the_numbers_for_machines_lead_back_to_the_runs(comparison: Comparison, tmp_path: Path) -> None:
    page, text, numbers = write_report(comparison, tmp_path / "out" / "report.html")
    found = json.loads(numbers.read_text())
    assert found["tables"][0]["rows"]["fedavg"]["sites"]["mean"] == pytest.approx(80)
    assert found["spread"] == "left-out domains"
    assert found["protocol"]["optimizer.lr"] == 0.05
    assert [run["sites"] for run in found["runs"]] == pytest.approx([0.8, 0.8, 0.6, 0.6])
    assert [path.resolve() for path in reported_runs(page.parent)] == [run.path for run in comparison.runs]
    assert "| fedavg | **80.0 ± 0.0** |" in text.read_text()


def test_the_same_runs_give_the_same_bytes(comparison: Comparison, tmp_path: Path) -> None:
    first = [file.read_bytes() for file in write_report(comparison, tmp_path / "report.html")]
    assert first == [file.read_bytes() for file in write_report(comparison, tmp_path / "report.html")]


def test_an_interrupted_run_before_its_first_evaluation_still_makes_a_page(write: Write, tmp_path: Path) -> None:
    run = load(write("r", [], finished=False))
    page = write_report(Comparison((run,)), tmp_path / "report.html")[0].read_text()
    assert "round 0 of 3" in page
    assert "<figure>" not in page


def test_a_folder_that_cannot_be_written_is_one_sentence(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"file/report.html: cannot be written"):
        write_report(comparison, tmp_path / "file" / "report.html")


def test_chart_places_points_by_its_axes() -> None:
    picture = ElementTree.fromstring(chart("t", [Line("a", 0, [Point(5, 50), Point(10, 100)])], "x", "y"))
    places = picture.findall(".//{*}polyline")[0].attrib["points"]
    assert places == "187.0,198.0 330.0,8.0"  # the middle of the lower edge, and the right upper corner


def test_a_flat_line_still_has_an_axis() -> None:
    ElementTree.fromstring(chart("t", [Line("a", 0, [Point(1, 100)]), Line("b", 1, [])], "x", "y"))


def test_reports_need_nothing_else_of_the_library() -> None:
    code = "import sys, fedshift.report; print([m for m in sys.modules if m in ('torch', 'numpy') or 'fedshift' in m])"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    package = {"fedshift", "fedshift.core", "fedshift.core.memory"}  # keep_memory, of the standard library alone
    assert set(re.findall(r"fedshift[\w.]*|torch|numpy", names)) == package | {"fedshift.report"} | {
        f"fedshift.report.{name}"
        for name in ("chart", "comparison", "page", "records", "style", "tables", "words", "write")
    }
