"""`fedshift data`, from importing a folder to clearing the cache."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshift.cli import data as command
from fedshift.cli import progress as telling
from fedshift.cli.main import main
from fedshift.data import DATASETS, Source, manifest_of
from fedshift.data.dataset import Mirror

HERE = Source(
    "here", "two domains", "made up", "free for all", ("ink", "photo"),
    url="https://example.org", classes=("cat", "dog"), counts={"ink": (2, 2), "photo": (2, 2)},
)  # fmt: skip


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(DATASETS, "here", HERE)


@pytest.fixture
def folder(tmp_path):
    for k, name in enumerate(f"{d}/{c}/{n}" for d in ("ink", "photo") for c in ("cat", "dog") for n in range(2)):
        path = tmp_path / "pictures" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(k).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return str(tmp_path / "pictures")


def said(capsys) -> str:
    return capsys.readouterr().out


def row(out: str, name: str) -> list[str]:
    return next(line for line in out.splitlines() if line.startswith(name)).split()


def test_list_tells_what_is_here(folder, capsys):
    main(["data", "list"])
    before = said(capsys)
    assert row(before, "here") == ["here", "2", "2", "8", "no", "free", "for", "all"]
    assert row(before, "pacs")[1:5] == ["4", "7", "9,991", "no"]
    assert "made here" in before
    for name in ("here", "my-own"):
        assert main(["data", "import", name, folder]) == 0
        assert main(["data", "verify", name]) == 0
    capsys.readouterr()
    main(["data", "list"])
    after = said(capsys)
    assert row(after, "here ")[4:7] == ["imported,", "in", "cache"]
    assert row(after, "my-own ") == ["my-own", "2", "2", "8", "imported,", "in", "cache", "your", "own"]


def test_import_prints_the_counts_and_remembers_the_place(folder, capsys):
    assert main(["data", "import", "here", folder]) == 0
    out = said(capsys)
    assert row(out, "ink") == ["ink", "4", "4"] and f"8 pictures of 2 classes; they stay in {folder}" in out
    assert len(manifest_of("here").rows) == 8
    assert main(["data", "import", "hree", folder]) == 0
    assert "did you mean 'here'?; imported as your own" in said(capsys)


def test_verify_ends_with_1_where_there_are_problems(folder, capsys):
    Path(folder, "ink/cat/0.png").unlink()
    main(["data", "import", "here", folder])
    capsys.readouterr()
    assert main(["data", "verify", "here"]) == 1
    assert "  - ink: 3 pictures, published are 4 (cat 1 for 2)" in said(capsys)
    assert main(["data", "verify", "here", "--json"]) == 1
    assert json.loads(said(capsys))["counts"]["ink"] == [1, 2]


def test_show(folder, capsys):
    main(["data", "import", "here", folder])
    capsys.readouterr()
    assert main(["data", "show", "here", "--out", "new/sheet.png", "--size", "24"]) == 0
    out = said(capsys)
    with Image.open("new/sheet.png") as sheet:
        assert sheet.format == "PNG"
    assert row(out, "cat") == ["cat", "2", "2"] and row(out, "all") == ["all", "4", "4"]
    for measure in ("Frechet", "proxy A", "labels"):
        assert row(out, measure)[-2:] == ["ink", "photo"]
    assert main(["data", "show", "toy"]) == 0  # made by a function, needs no manifest
    assert Path("toy.png").exists()


def test_cache_shows_and_clears(folder, capsys):
    main(["data", "cache"])
    assert said(capsys) == "No decoded pictures are kept.\n"
    for name in ("here", "my-own"):
        main(["data", "import", name, folder])
        main(["data", "verify", name])
    capsys.readouterr()
    main(["data", "cache"])
    out = said(capsys)
    assert row(out, "here")[1] == "32" and row(out, "my_own")[-1] == "whole"
    assert main(["data", "cache", "--clear", "my-own"]) == 0
    assert "removed 1 of 1" in said(capsys)
    main(["data", "cache"])
    assert "my_own" not in said(capsys)
    assert main(["data", "cache", "--clear"]) == 0
    main(["data", "cache"])
    assert said(capsys).endswith("No decoded pictures are kept.\n")


@pytest.fixture
def downloads(monkeypatch, folder):
    """A download that brings an archive of the folder."""
    import zipfile

    from fedshift.data.places import data_home

    def fetch(source, home=None, *, progress=None):
        archive = data_home() / "downloads" / source.name / "all.zip"
        archive.parent.mkdir(parents=True)
        with zipfile.ZipFile(archive, "w") as file:
            for path in Path(folder).rglob("*.png"):
                file.write(path, path.relative_to(folder))
        return [archive]

    monkeypatch.setattr(command, "fetch", fetch)
    monkeypatch.setitem(DATASETS, "here", replace(HERE, files={"all.zip": (Mirror("https://example.org"),)}))


def test_get_downloads_and_imports(downloads, capsys):
    assert main(["data", "get", "here"]) == 0
    out = said(capsys)
    assert "licence: free for all" in out and row(out, "photo") == ["photo", "4", "4"]
    assert manifest_of("here").kind == "zip"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["get", "pasc"], "did you mean 'pacs'"),
        (["get", "here"], "by hand"),
        (["import", "here", "nowhere"], "nowhere: found nothing there"),
        (["import", "../x", "."], "rename it"),
        (["verify", "here"], "fedshift data import here PATH"),
        (["verify", "glyphs"], "made on this machine"),
        (["show", "here"], "fedshift data get here"),
        (["show", "toy", "--size", "0"], "expected 1 to 1024 pixels"),
        (["show", "toy", "--out", "."], "give another file by --out"),
        (["cache", "--clear", "nothing"], "expected a data set"),
        ([], "required: COMMAND"),
    ],
)
def test_refusals_are_one_sentence(words, part, capsys):
    assert main(["data", *words]) == 2
    end = capsys.readouterr()
    assert part in end.err and not end.out
    assert not words or len(end.err.splitlines()) == 1


def test_progress_is_told_at_most_once_a_second(monkeypatch, capsys):
    now = iter([0.0, 0.5, 1.1, 1.5, 2.2, 2.3])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(now))
    with command.progress("decoding x") as tell:
        for done in range(1, 6):
            tell(done, 5)
    assert capsys.readouterr().err == "decoding x: 2 of 5 pictures\ndecoding x: 4 of 5 pictures\n"


def test_progress_on_a_terminal_is_a_bar_and_leaves_nothing(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    now = iter([0.0, 1.5, 1.7])
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(telling, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(now))}))
    monkeypatch.setenv("TERM", "xterm")
    with command.progress("getting x", "MB") as tell:
        tell(2_000_000, 0)
        tell(4_000_000, 8_000_000)
    drawn = screen.getvalue()
    assert "4.0 of 8.0 MB" in drawn and drawn.endswith("\x1b[2K")
