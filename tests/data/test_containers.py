"""Folders and archives: the same names and bytes whatever holds them, and nothing that leads out."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import random
import stat
import tarfile
import threading
import time
import zipfile
import zlib

import numpy as np
import pytest

from fedshift.core.errors import DataError
from fedshift.data import containers
from fedshift.data._worker import fetch
from fedshift.data.containers import open_container

FILES = {
    "art/dog/1.jpg": b"one", "art/dog/10.jpg": b"", "art/dog/2.jpg": bytes(range(256)) * 9, "b.txt": b"x" * 512,
    "skizze/Hündin/ü-犬.png": b"names", "long/" + "n" * 90 + "/" + "m" * 90 + ".png": b"far",
}  # fmt: skip


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def packed(path, form, names=FILES):
    """An archive, its members in an order of their own."""
    names = sorted(names, key=lambda name: zlib.crc32(name.encode()))
    if form.startswith("zip"):
        with zipfile.ZipFile(
            path, "w", zipfile.ZIP_DEFLATED if form == "zip deflated" else zipfile.ZIP_STORED
        ) as archive:
            archive.mkdir("empty")
            for name in names:
                archive.writestr(name, FILES[name])
        return path
    raw = io.BytesIO()
    kind = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT}.get(form, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=raw, mode="w", format=kind) as archive:
        archive.addfile(member("./empty/", type=tarfile.DIRTYPE))
        for name in names:
            archive.addfile(member("./" + name, len(FILES[name])), io.BytesIO(FILES[name]))
    squeeze = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.get(form, bytes)
    path.write_bytes(squeeze(raw.getvalue()))
    return path


def member(name, size=0, **more):
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar(path, *members):
    with tarfile.open(path, "w") as archive:
        for info, data in members:
            info.size = len(data) if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["zip", "zip deflated", "ustar", "gnu", "pax", "gz", "bz2", "xz"])
def test_an_archive_is_its_folder_whatever_it_is_called(tree, tmp_path, form):
    path = packed(tmp_path / "archive.jpg", form)
    with open_container(path, tmp_path / "aside") as archive, open_container(tree) as folder:
        assert archive.kind == ("zip" if form.startswith("zip") else "tar") and folder.kind == "folder"
        assert archive.names() == folder.names() == sorted(FILES)
        for name, data in FILES.items():
            assert archive.read(name) == folder.read(name) == fetch(archive.span(name)) == data
            assert archive.array(name) is None
        assert archive.left_out == folder.left_out == []
    assert not any((tmp_path / "aside").glob("*"))


def test_folders_do_not_depend_on_the_file_system_s_order(tree, monkeypatch):
    real = os.scandir

    class Shuffled:
        def __init__(self, path):
            with real(path) as entries:
                self.entries = random.Random(3).sample(list(entries), len(os.listdir(path)))

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", Shuffled)
    for name in "cedgf":
        (tree / name).symlink_to("nowhere")
    with open_container(tree) as folder:
        assert folder.names() == sorted(FILES) and [name for name, _ in folder.left_out] == list("cdefg")


def test_the_last_member_of_a_name_wins(tmp_path):
    path = tar(tmp_path / "t", (member("a"), b"old"), (member("b"), b"-"), (member("./a"), b"new"))
    with open_container(path) as archive:
        assert archive.names() == ["a", "b"] and archive.read("a") == b"new"


def test_hard_links_of_a_tar_are_files_and_other_links_are_listed(tmp_path):
    path = tar(
        tmp_path / "t", (member("x/a"), b"data"), (member("x/b", type=tarfile.LNKTYPE, linkname="x/a"), b""),
        (member("x/c", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b""), (member("d", type=tarfile.CHRTYPE), b""),
        (member("e", type=tarfile.LNKTYPE, linkname="../a"), b""), (member("f", type=tarfile.FIFOTYPE), b""),
    )  # fmt: skip
    with open_container(path) as archive:
        assert archive.names() == ["x/a", "x/b"] and archive.read("x/b") == b"data"
        odd = "neither a file nor a folder"
        assert archive.left_out == [("x/c", "a link"), ("d", odd), ("e", "a link"), ("f", odd)]


@pytest.mark.parametrize("name", ["../out.jpg", "a/../../out.jpg", "/out.jpg"])
@pytest.mark.parametrize("form", ["tar", "zip", "zip of Windows"])
def test_names_that_lead_out_are_refused(tmp_path, name, form):
    path = tmp_path / "archive"
    if form == "tar":
        tar(path, (member("a.jpg"), b"1"), (member(name), b"2"))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name if form == "zip" else name.replace("/", "\\"), b"2")
    with open_container(path) as container, pytest.raises(DataError, match="which leads out of it; do not trust it"):
        container.names()


def test_a_manifest_cannot_lead_out_of_a_folder(tree):
    with open_container(tree) as folder, pytest.raises(DataError, match="leads out"):
        folder.read("../secret")


def test_links_in_folders_end(tree, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    for name, target in {
        "art/loop": tree, "art/self": tree / "art/self", "out": tmp_path / "secret", "up": tmp_path, "none": "nowhere",
        "same.txt": "b.txt",
    }.items():  # fmt: skip
        (tree / name).symlink_to(target)
    os.mkfifo(tree / "pipe")
    with open_container(tree) as folder:
        assert folder.names() == sorted([*FILES, "same.txt"]) and folder.read("same.txt") == FILES["b.txt"]
        nothing, out = "a link to nothing, or to itself", "a link that leads out of the folder"
        assert dict(folder.left_out) == {
            "art/loop": "a link to a folder, whose files are read where they lie", "art/self": nothing, "out": out,
            "up": out, "none": nothing, "pipe": "neither a file nor a folder",
        }  # fmt: skip


def test_unreadable_folders_are_named(tree, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).rstrip("/").endswith("dog"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with open_container(tree) as folder:
        assert folder.names() == sorted(name for name in FILES if "dog" not in name)
        assert folder.left_out == [("art/dog", "cannot be opened (Permission denied)")]


def test_what_is_there_is_not_a_container(tmp_path):
    (tmp_path / "page").write_bytes(b"<html>" * 200)
    (tmp_path / "gz").write_bytes(gzip.compress(b"no tar" * 200))
    (tmp_path / "zip").write_bytes(b"PK\3\4" + bytes(90))
    for name, words in {
        "none": "cannot be opened (No such file or directory)", "page": "neither a folder nor a zip, tar or npz",
        "gz": "found no tar in it", "zip": "a damaged archive",
    }.items():  # fmt: skip
        with pytest.raises(DataError) as error:
            open_container(tmp_path / name, tmp_path / "aside")
        assert words in str(error.value) and str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("form", ["pax", "gz", "xz", "zip deflated"])
def test_a_cut_archive_is_noticed_wherever_it_ends(tmp_path, form):
    whole = packed(tmp_path / "whole", form).read_bytes()
    real_end = len(whole) if form != "pax" else len(whole.rstrip(b"\0")) + 512
    for cut in range(5, real_end - 512 if form == "pax" else real_end - 8, 701 if form == "pax" else 61):
        path = tmp_path / "cut"
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError), open_container(path, tmp_path) as archive:
            archive.names()


def test_damage_in_a_header_or_a_member_is_noticed(tmp_path):
    raw = bytearray(packed(tmp_path / "t", "gnu").read_bytes())
    for at in range(512, 512 * 3, 37):
        with tarfile.open(tmp_path / "t") as archive:
            if not any(m.offset <= at < m.offset_data for m in archive):
                continue
        damaged = raw.copy()
        damaged[at] ^= 0x15
        (tmp_path / "damaged").write_bytes(damaged)
        with open_container(tmp_path / "damaged") as archive, pytest.raises(DataError, match="a damaged archive"):
            archive.names()
    for form in ("zip", "zip deflated"):
        path = packed(tmp_path / "z", form)
        data = bytearray(path.read_bytes())
        data[data.index(b"b.txt") + 8] ^= 0xFF
        path.write_bytes(data)
        with open_container(path) as archive, pytest.raises(DataError, match=r"'b\.txt': is damaged in its archive"):
            archive.read("b.txt")


def test_odd_members_of_a_zip_are_listed(tmp_path):
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("squeezed", b"x" * 99, zipfile.ZIP_BZIP2)
        archive.writestr("secret", b"x")
    data = (tmp_path / "z").read_bytes().replace(b"PK\1\2", b"PK\1\2")
    at = data.rindex(b"PK\1\2") + 8  # the flags of the last member in the directory
    (tmp_path / "z").write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with open_container(tmp_path / "z") as archive:
        assert archive.names() == []
        words = ["a link", "compressed by method 12, expected 0 or 8", "encrypted"]
        assert archive.left_out == list(zip(["link", "squeezed", "secret"], words, strict=True))


def test_decompression_bombs_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "FLOOR", 1000)
    zeros = tar(tmp_path / "zeros", (member("a"), bytes(3_000_000))).read_bytes()
    for squeeze in (gzip.compress, bz2.compress, lzma.compress):
        (tmp_path / "bomb").write_bytes(squeeze(zeros))
        with pytest.raises(DataError, match="as a decompression bomb does"):
            open_container(tmp_path / "bomb", tmp_path)
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((30, 300, 300), np.uint8))
    with (
        open_container(tmp_path / "bomb.npz", tmp_path) as archive,
        pytest.raises(DataError, match="decompression bomb"),
    ):
        archive.names()


def test_a_member_larger_than_any_picture_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fedshift.data._worker.LARGEST", 100)
    for form in ("pax", "zip", "zip deflated"):
        with open_container(packed(tmp_path / "a", form)) as archive:
            assert archive.read("art/dog/1.jpg") == b"one"
            with pytest.raises(DataError, match="bytes are more than any picture has"):
                archive.read("b.txt")


def test_sizes_beyond_octal_digits_and_lying_sizes(tmp_path):
    path = tar(tmp_path / "t", (member("a"), b"data"))
    raw = bytearray(path.read_bytes())
    for size, good in ((4, True), (50_000, False), (2**62, False)):
        raw[124:136] = b"\x80" + size.to_bytes(11, "big")
        raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + sum(raw[156:512]) + 256)
        path.write_bytes(raw)
        with open_container(path) as archive:
            if good:
                assert archive.read("a") == b"data"
            else:
                with pytest.raises(DataError, match="it ends within 'a'"):
                    archive.names()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_pictures_of_an_npz(tmp_path, save):
    draw = np.random.default_rng(0).integers
    shapes = {"mnist_x_train": (12, 5, 4), "colour": (3, 5, 4, 3), "first": (2, 3, 5, 4), "grey": (2, 5, 4, 1)}
    arrays = {key: draw(0, 256, shape, dtype=np.uint8) for key, shape in shapes.items()}
    others = {
        "labels": np.arange(12, dtype=np.uint8),
        "names": np.array(["ä"]),
        "wide": np.zeros((2, 3, 4), np.float32),
    }
    save(tmp_path / "a.zip", **arrays, **others)
    with open_container(tmp_path / "a.zip.npz", tmp_path) as archive:
        assert archive.kind == "npz"
        expected = [f"{key}/{i}" for key in sorted(shapes) for i in range(shapes[key][0])]
        assert archive.names() == expected and expected[-1] == "mnist_x_train/11"
        for name in expected:
            key, i = name.split("/")
            picture = arrays[key][int(i)]
            assert archive.read(name) == picture.tobytes()
            seen = picture.transpose(1, 2, 0) if key == "first" else picture[..., 0] if key == "grey" else picture
            assert np.array_equal(archive.array(name), seen)
        for name in ("labels/0", "colour/3", "colour/-1", "nothing/0", "colour"):
            with pytest.raises(DataError, match=f"found no '{name}' in it"):
                archive.read(name)


def test_arrays_that_cannot_be_read_are_named(tmp_path):
    np.savez(tmp_path / "f.npz", images=np.asfortranarray(np.zeros((2, 5, 4), np.uint8)))
    with open_container(tmp_path / "f.npz", tmp_path) as archive, pytest.raises(DataError, match="Fortran's order"):
        archive.names()
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\1\0" + bytes(9))
    with open_container(tmp_path / "g.npz", tmp_path) as archive, pytest.raises(DataError, match="a damaged archive"):
        archive.names()


def test_an_array_is_decompressed_once(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((50, 8, 8), np.uint8))
    opened, count = zipfile.ZipFile.open, itertools.count()
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *a, **k: (next(count) and None) or opened(*a, **k))
    with open_container(tmp_path / "a.npz", tmp_path) as archive:
        assert all(archive.read(name) == bytes(64) for name in archive.names())
    assert next(count) == 1


def test_two_threads_may_ask_for_an_array_that_is_still_being_unpacked(tmp_path, monkeypatch):
    """The second waits for the first; it must not be told that the picture is not there."""
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((3, 4, 4, 3), np.uint8))
    begun, find = threading.Event(), containers.Npz._find

    def slowly(self, key, stream):
        begun.set()
        time.sleep(0.2)
        find(self, key, stream)

    monkeypatch.setattr(containers.Npz, "_find", slowly)
    with open_container(tmp_path / "a.npz") as container:
        first = threading.Thread(target=container.span, args=("images/0",))
        first.start()
        begun.wait()
        assert container.span("images/2").shape == (4, 4, 3)
        first.join()
