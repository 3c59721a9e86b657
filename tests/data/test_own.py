"""Any data as a data set: folders, tables and arrays."""

import hashlib
import importlib.util
import os
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedshift.core.errors import DataError
from fedshift.data.find import find_csv, find_folder, find_npz, find_own
from fedshift.data.manifest import Manifest
from fedshift.data.verify import left_out

FILES = [f"{domain}/{label}/{n}.jpg" for domain in ("b", "a") for label in ("10", "9") for n in range(2)]


def folder(root: Path, files=FILES) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def table(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def told(manifest):
    return [(row.path, row.domain, manifest.classes[row.label], row.split) for row in manifest.rows]


ROWS = [(f"{d}/{c}/{n}.jpg", d, c, "") for d in ("a", "b") for c in ("9", "10") for n in range(2)]


def test_a_folder(tmp_path):
    manifest = find_folder("mine", folder(tmp_path))
    assert (manifest.name, manifest.kind, manifest.classes, manifest.domains) == (
        "mine",
        "folder",
        ("9", "10"),
        ("a", "b"),
    )
    assert told(manifest) == ROWS
    assert manifest.rows[0].sha256 == hashlib.sha256(b"a/9/0.jpg").hexdigest()


@pytest.mark.parametrize("prefix", ["", "data/", "train data/x/"])
def test_an_archive_with_folders_above(tmp_path, prefix):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in [*(prefix + file for file in FILES), "__MACOSX/a/9/._0.jpg", "readme.txt"]:
            archive.writestr(name, name)
    assert told(find_own("mine", tmp_path / "x.zip")) == [(prefix + path, *what) for path, *what in ROWS]


@pytest.mark.parametrize("pattern", ["{part}/{domain}/{label}/1.jpg", "{domain}/{part}/{label}/1.jpg"])
def test_a_folder_with_parts(tmp_path, pattern):
    files = [
        pattern.format(part=part, domain=domain, label=label)
        for part in ("Train", "validation", "test") for domain in "ab" for label in ("cat", "train")
    ]  # fmt: skip
    rows = told(find_folder("mine", folder(tmp_path, files)))
    assert {row[1:] for row in rows} == {
        (d, c, part) for d in "ab" for c in ("cat", "train") for part in ("train", "val", "test")
    }


def test_a_part_of_all_is_no_part(tmp_path):
    rows = told(find_folder("mine", folder(tmp_path, [f"train/{file}" for file in FILES])))
    assert {row[3] for row in rows} == {""}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["a/notes.txt"], "found no picture in it"),
        (["1.jpg"], "found '1.jpg', expected all pictures as domain/class/image"),
        ([*FILES, "a/1.jpg"], "found 'a/1.jpg', expected all pictures as domain/class/image"),
        ([*FILES, "more/a/9/1.jpg"], "found 'a/10/0.jpg' and 'more/a/9/1.jpg'"),
    ],
)
def test_a_folder_of_another_form(tmp_path, files, said):
    with pytest.raises(DataError) as error:
        find_folder("mine", folder(tmp_path, files))
    assert said in str(error.value)


LINES = "\n".join(
    f"{path},{label},{domain},{('train', 'test')[n % 2]}" for n, (path, domain, label, _) in enumerate(ROWS)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", "path,label,domain,split\n" + LINES),
        ("x.csv", "\ufeffPath, Label ,Domain,Split\r\n" + LINES.replace("\n", "\r\n") + "\r\n"),
        ("x.csv", "path;label;domain;split\n" + LINES.replace(",", ";")),
        ("x.tsv", "path\tlabel\tdomain\tsplit\n" + LINES.replace(",", "\t")),
        ("x.csv", "path,label,domain,split\n\n" + LINES.replace("/", "\\")),
        ("x.csv", "path,label,domain,split\n" + "\n".join(reversed(LINES.splitlines()))),
    ],
    ids=["commas", "as a spreadsheet writes it", "semicolons", "tabs", "backslashes", "in another order"],
)
def test_a_table(tmp_path, name, text):
    manifest = find_own("mine", table(folder(tmp_path) / name, text))
    assert (manifest.root, manifest.kind, manifest.classes) == (tmp_path, "folder", ("9", "10"))
    assert told(manifest) == [(*row[:3], ("train", "test")[n % 2]) for n, row in enumerate(ROWS)]
    assert manifest.rows[0].sha256 == hashlib.sha256(b"a/9/0.jpg").hexdigest()


def test_a_table_may_quote_and_name_pictures_in_full(tmp_path):
    folder(tmp_path, ["x/a, b.jpg", "x/2.jpg"])
    text = f'domain,path,label,note\nd,"x/a, b.jpg",cat,-\nd,{tmp_path / "x/2.jpg"},dog,"two\nlines"\n'
    assert told(find_csv("mine", table(tmp_path / "t.csv", text))) == [
        ("x/a, b.jpg", "d", "cat", ""), ("x/2.jpg", "d", "dog", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found the columns none, expected path, label, domain"),
        ("path,label\na/9/0.jpg,1", "add domain"),
        ("path,label,domain\n", "found no rows"),
        ("path,label,domain\na/9/0.jpg,1", "row 2: found 2 cells, expected 3"),
        ("path,label,domain\na/9/7.jpg,1,a\nb/8.jpg,1,a", "found no file at 2 of 2 paths, the first 'a/9/7.jpg'"),
        ("path,label,domain\na/9,1,a", "found no file at 1 of 1 paths"),
        ("path,label,domain\n../x.jpg,1,a", "found the path '../x.jpg', expected one below the table's folder"),
        ("path,label,domain\n/etc/hostname,1,a", "expected one below the table's folder"),
        ("path,label,domain\n,1,a", "expected one below the table's folder"),
        ("path,label,domain\na/9/0.jpg,1,a\na/9/0.jpg,2,a", "found 'a/9/0.jpg' twice"),
        ("path,label,domain,split\na/9/0.jpg,1,a,dev", "found the split 'dev', expected train, val, test or nothing"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, text, said):
    with pytest.raises(DataError) as error:
        find_csv("mine", table(folder(tmp_path) / "x.csv", text))
    assert said in str(error.value)


def test_a_table_in_another_encoding(tmp_path):
    (tmp_path / "x.csv").write_bytes("path,label,domain\nä".encode("latin-1"))
    with pytest.raises(DataError, match="save the table as UTF-8"):
        find_csv("mine", tmp_path / "x.csv")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="Parquet needs pyarrow, which is not installed"):
        find_own("mine", table(tmp_path / "x.parquet", "PAR1"))


def test_parquet_with_pyarrow(tmp_path, monkeypatch):
    """With a stand-in that has what is used of pyarrow: the names of the columns, and the rows."""
    rows = [{"path": path, "label": int(label), "domain": domain, "split": None} for path, domain, label, _ in ROWS]
    read = types.SimpleNamespace(column_names=[*rows[0]], to_pylist=lambda: rows)
    parquet = types.ModuleType("pyarrow.parquet")
    parquet.read_table = lambda path: read
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert told(find_own("mine", table(folder(tmp_path) / "x.parquet", "PAR1"))) == ROWS


def test_arrays(tmp_path):
    pictures = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    np.savez(tmp_path / "x.npz", images=pictures, labels=[1, 0, 1, 0], domain=np.array(["b", "a", "a", "b"]))
    manifest = find_own("mine", tmp_path / "x.npz")
    assert told(manifest) == [
        ("images/1", "a", "0", ""), ("images/2", "a", "1", ""), ("images/3", "b", "0", ""), ("images/0", "b", "1", ""),
    ]  # fmt: skip
    assert manifest.rows[0].sha256 == hashlib.sha256(b"(3, 3)" + pictures[1].tobytes()).hexdigest()


def test_arrays_with_names_of_their_own(tmp_path):
    pictures = np.zeros((2, 3, 3), np.uint8)
    arrays = {"day_x_train": pictures, "day_y_train": [1, 0], "night_x": pictures, "night_y": [0, 1]}
    np.savez(tmp_path / "x.npz", class_names=["zebra", "ant"], **arrays)
    manifest = find_npz("mine", tmp_path / "x.npz")
    assert manifest.classes == ("zebra", "ant")
    assert {row[1:] for row in told(manifest)} == {
        ("day", "zebra", "train"), ("day", "ant", "train"), ("night", "zebra", ""), ("night", "ant", ""),
    }  # fmt: skip


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="found nothing there"):
        find_own("mine", tmp_path / "none.csv")


def test_what_cannot_be_looked_at_is_remembered(tmp_path):
    root = folder(tmp_path / "p")
    os.mkfifo(root / "pipe")
    (root / "a/loop").symlink_to(root)
    found = find_folder("mine", root)
    assert [path for path, _ in found.left_out] == ["a/loop", "pipe"]
    assert Manifest.from_json(found.to_json(), "here") == found
    assert left_out(found).startswith("left out when imported: a/loop (")
