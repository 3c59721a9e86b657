"""Archives, honest and hostile; each is made here."""

import bz2
import errno
import fcntl
import gzip
import io
import lzma
import os
import random
import shutil
import stat
import tarfile
import uuid
import zipfile
from collections import namedtuple

import pytest

from fedshift.core.errors import DataError
from fedshift.data import unpack as module
from fedshift.data.unpack import unpack

FILES = {"a/1.txt": b"one", "a/b/2.txt": b"two" * 1000, "3.txt": b"", "ä/猫 \U0001f408.txt": b"cat"}
SQUEEZE = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


def zipped(path, files=FILES, **attributes):
    """A zip of name -> bytes, or of ZipInfo -> bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path, *members, squeeze=bytes, form=tarfile.PAX_FORMAT):
    """A tar of (name, bytes) and of ready TarInfos."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    path.write_bytes(squeeze(out.getvalue()))
    return path


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zip_link(name, target=None, kind=stat.S_IFLNK):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    return info


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(autouse=True)
def nothing_else_is_left(tmp_path, monkeypatch):
    """Whatever happens, beside the archive there is the whole folder or nothing, and nothing outside."""
    monkeypatch.setattr(os, "sync", lambda: None)  # slow on a busy machine
    outside = tmp_path.parent / "escaped"
    yield
    assert not outside.exists()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kind", ["zip", *SQUEEZE])
def test_every_kind_is_told_by_content(tmp_path, kind):
    path = tmp_path / "archive.dat"
    zipped(path) if kind == "zip" else tarred(path, *FILES.items(), squeeze=SQUEEZE[kind])
    calls = []
    found = unpack(path, tmp_path / "out", progress=lambda *c: calls.append(c))
    assert content(tmp_path / "out") == FILES
    assert found == sorted(tmp_path / "out" / name for name in FILES)
    assert calls and all(0 < done <= total == path.stat().st_size for done, total in calls)


def test_folders_and_dots(tmp_path):
    folders = [special(name, tarfile.DIRTYPE) for name in (".", "./empty", "a", "a")]
    unpack(tarred(tmp_path / "t", *folders, ("./a//1", b"x"), ("./b/./2", b"y")), tmp_path / "out")
    assert content(tmp_path / "out") == {"a/1": b"x", "b/2": b"y"} and (tmp_path / "out/empty").is_dir()
    unpack(zipped(tmp_path / "z", {"a/": b"", "a/1": b"x"}), tmp_path / "zip")
    assert content(tmp_path / "zip") == {"a/1": b"x"}


BAD_NAMES = ["../escaped", "a/../../escaped", "a/..", "/escaped", "//escaped", "C:escaped", "c:/escaped",
             "..\\escaped", "a\\b", "\\\\host\\share"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar", "folder", "link", "target"])
def test_no_name_leads_out(tmp_path, name, kind):
    path = tmp_path / "bad"
    if kind == "zip":
        zipped(path, {"ok": b"x", name: b"x"})
    else:
        what = {
            "tar": (name, b"x"),
            "folder": special(name, tarfile.DIRTYPE),
            "link": special(name, tarfile.SYMTYPE, "ok"),
            "target": special("link", tarfile.SYMTYPE, f"x/../{name}" if name == "a/.." else name),
        }[kind]
        tarred(path, ("ok", b"x"), what)
    with pytest.raises(DataError, match=r"leads out of the folder|no file of the archive"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "members",
    [
        [special("a", tarfile.SYMTYPE, "../.."), ("a/escaped", b"x")],
        [special("a", tarfile.SYMTYPE, "."), ("a/escaped", b"x")],  # even one that stays inside
        [special("a", tarfile.SYMTYPE, "."), special("b", tarfile.SYMTYPE, "a/.."), ("b/escaped", b"x")],
        [special("a", tarfile.SYMTYPE, "/tmp"), ("a/../a/escaped", b"x")],
        [("1", b"x"), special("a", tarfile.LNKTYPE, "../escaped")],
        [("1", b"x"), special("a", tarfile.LNKTYPE, "/etc/passwd")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "/etc/passwd")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "/etc/passwd"), special("b", tarfile.LNKTYPE, "a")],
        [("1", b"x"), special("a/b", tarfile.SYMTYPE, "../../escaped")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "a")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "b"), special("b", tarfile.SYMTYPE, "a")],
        [("d/1", b"x"), special("a", tarfile.SYMTYPE, "d")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "missing")],
        [("1", b"x"), special("a", tarfile.SYMTYPE, "")],
    ],
)
def test_no_link_leads_out(tmp_path, members):
    with pytest.raises(DataError, match=r"leads out|no file of the archive|expected each name once"):
        unpack(tarred(tmp_path / "t", *members), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_to_files_of_the_archive_become_copies(tmp_path):
    links = [
        special("a/first", tarfile.SYMTYPE, "second"),  # before its target, and to another link
        special("a/second", tarfile.SYMTYPE, "../d/1"),
        special("third", tarfile.LNKTYPE, "./d/1"),
    ]
    found = unpack(tarred(tmp_path / "t", *links, ("d/1", b"x")), tmp_path / "out")
    assert content(tmp_path / "out") == dict.fromkeys(("a/first", "a/second", "third", "d/1"), b"x")
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in found)


def test_links_in_a_zip(tmp_path):
    unpack(zipped(tmp_path / "z", {zip_link("a/l"): b"../1", "1": b"x"}), tmp_path / "out")
    assert content(tmp_path / "out") == {"a/l": b"x", "1": b"x"} and not (tmp_path / "out/a/l").is_symlink()
    for target, found in ((b"../escaped", "leads out"), (b"/etc/passwd", "leads out"), (b"missing", "no file of")):
        with pytest.raises(DataError, match=found):
            unpack(zipped(tmp_path / "z", {zip_link("l"): target, "1": b"x"}), tmp_path / "bad")
    with pytest.raises(DataError, match="expected each name once"):
        unpack(zipped(tmp_path / "z", {zip_link("l"): b".", "l/x": b"x"}), tmp_path / "bad")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_no_devices(tmp_path, kind):
    with pytest.raises(DataError, match="'dev', which is neither a file, a folder nor a link"):
        unpack(tarred(tmp_path / "t", ("1", b"x"), special("dev", kind)), tmp_path / "out")
    with pytest.raises(DataError, match="'dev', which is neither"):
        unpack(zipped(tmp_path / "z", {zip_link("dev", kind=stat.S_IFIFO): b""}), tmp_path / "out")


def test_modes_are_those_of_new_files(tmp_path):
    info = special("run", tarfile.REGTYPE)
    info.mode, info.uid = 0o6777, 12345
    folder = special("d", tarfile.DIRTYPE)
    folder.mode = 0
    unpack(tarred(tmp_path / "t", folder, ("d/1", b"x"), info), tmp_path / "out")
    unpack(zipped(tmp_path / "z", {zip_link("run", kind=stat.S_IFREG | 0o4000): b"x"}), tmp_path / "zip")
    (tmp_path / "new").write_text("")
    (tmp_path / "newfolder").mkdir()
    plain, folder = (tmp_path / "new").stat(), (tmp_path / "newfolder").stat()
    for name in ("out/run", "out/d/1", "zip/run"):
        made = (tmp_path / name).stat()
        assert (made.st_mode, made.st_uid) == (plain.st_mode, plain.st_uid)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "out/d").stat().st_mode == folder.st_mode


@pytest.mark.parametrize(("floor", "fits"), [(1_000_000, True), (100_000, False)])
@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_bomb_is_refused_by_what_comes_out(tmp_path, monkeypatch, kind, floor, fits):
    monkeypatch.setattr(module, "FLOOR", floor)
    monkeypatch.setattr(module, "RATIO", 10)
    path, data = tmp_path / "bomb", bytes(500_000)
    zipped(path, {"0": data}) if kind == "zip" else tarred(path, ("0", data), squeeze=SQUEEZE[kind])
    if fits:
        unpack(path, tmp_path / "out")
    else:
        with pytest.raises(DataError, match="as a decompression bomb does"):
            unpack(path, tmp_path / "out")


def test_the_limit_counts_all_files(tmp_path):
    path = zipped(tmp_path / "z", {str(k): bytes(10_000) for k in range(10)})
    with pytest.raises(DataError, match=r"more than the 0\.1 MB allowed"):
        unpack(path, tmp_path / "out", limit=99_999 + 10 * module.ENTRY)
    unpack(path, tmp_path / "out", limit=100_000 + 10 * module.ENTRY)


def test_headers_that_lie_do_not_help_a_bomb(tmp_path):
    """A zip that says its file has 10 bytes; a tar with a hole of 10 GB in a sparse file."""
    path = zipped(tmp_path / "z", {"0": bytes(1_000_000)})
    size = (1_000_000).to_bytes(4, "little")
    assert path.read_bytes().count(size) == 2
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"bomb|damaged"):
        unpack(path, tmp_path / "out", limit=100_000)
    sparse = special("hole", tarfile.REGTYPE)
    sparse.pax_headers = {
        "GNU.sparse.map": "0,0,10000000000,0", "GNU.sparse.size": "10000000000", "GNU.sparse.name": "hole"
    }  # fmt: skip
    with pytest.raises(DataError, match="bomb"):
        unpack(tarred(tmp_path / "t", sparse), tmp_path / "out", limit=1_000_000)


def test_links_and_empty_files_count(tmp_path):
    links = [special(str(k), tarfile.LNKTYPE, "big") for k in range(10)]
    path = tarred(tmp_path / "t", ("big", bytes(50_000)), *links)
    with pytest.raises(DataError, match="bomb"):
        unpack(path, tmp_path / "out", limit=500_000)
    path = tarred(tmp_path / "t", *((str(k), b"") for k in range(1000)), squeeze=lzma.compress)
    with pytest.raises(DataError, match="bomb"):
        unpack(path, tmp_path / "out", limit=500_000)


def test_what_follows_the_end_of_a_tar_counts(tmp_path):
    path = tarred(tmp_path / "t", ("1", b"x"), squeeze=lambda data: gzip.compress(data + bytes(1_000_000)))
    with pytest.raises(DataError, match="bomb"):
        unpack(path, tmp_path / "out", limit=500_000)


def test_a_header_does_not_fill_the_memory(tmp_path):
    info = special("1", tarfile.REGTYPE)
    info.pax_headers = {"comment": "x" * (module.HEADER + 1)}
    with pytest.raises(DataError, match="found a header of"):
        unpack(tarred(tmp_path / "t", info, squeeze=lzma.compress), tmp_path / "out")


def test_a_zip_in_a_zip_stays_one(tmp_path):
    inner = zipped(tmp_path / "inner").read_bytes()
    unpack(zipped(tmp_path / "z", {"inner.zip": inner}), tmp_path / "out")
    assert content(tmp_path / "out") == {"inner.zip": inner}
    unpack(tarred(tmp_path / "t", ("inner.zip", inner)), tmp_path / "tar")  # ends like a zip, but is a tar
    assert content(tmp_path / "tar") == {"inner.zip": inner}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_comes_once(tmp_path):
    for members in (
        [("a", b"1"), ("a", b"2")],
        [("a", b"1"), ("./a", b"2")],
        [("a", b"1"), ("a/b", b"2")],
        [("a/b", b"1"), ("a", b"2")],
        [("a", b"1"), special("a", tarfile.DIRTYPE)],
    ):
        with pytest.raises(DataError, match=r"expected each name once|expected one of them"):
            unpack(tarred(tmp_path / "t", *members), tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        archive.writestr("a", b"1")
        archive.writestr("a", b"2")
    with pytest.raises(DataError, match="expected each name once"):
        unpack(tmp_path / "z", tmp_path / "out")


ALIKE = ({"Dog/1": b"1", "dog/2": b"2"}, {"a.TXT": b"1", "a.txt": b"2"}, {"caf\u00e9": b"1", "cafe\u0301": b"2"})


@pytest.mark.parametrize("files", ALIKE)
def test_names_that_differ_only_by_case(tmp_path, files):
    unpack(zipped(tmp_path / "z", files), tmp_path / "out")
    assert content(tmp_path / "out") == files


@pytest.mark.parametrize("files", ALIKE)
def test_names_that_the_disk_cannot_tell_apart(tmp_path, monkeypatch, files):
    real = module.Path.exists
    monkeypatch.setattr(module.Path, "exists", lambda p: True if p.name.startswith(".OUT") else real(p))
    with pytest.raises(DataError, match="which this disk cannot tell apart"):
        unpack(zipped(tmp_path / "z", files), tmp_path / "out")
    unpack(zipped(tmp_path / "z", {"Dog/1": b"1", "Dog/2": b"2"}), tmp_path / "out")


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path):
    path = tarred(tmp_path / "t", ("caf\udce9.txt", b"x"), form=tarfile.GNU_FORMAT)
    (found,) = unpack(path, tmp_path / "out")
    assert found.name == "café.txt" and found.read_bytes() == b"x"


def test_an_encrypted_zip(tmp_path):
    path = zipped(tmp_path / "z", {"a": b"x"})
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flags of the member, in its own header and in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="found 'a' encrypted; unpack it by hand with its password"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "neither a zip nor a tar"),
        (b"hello " * 200, "neither a zip nor a tar"),
        (gzip.compress(b"hello " * 200, mtime=0), "neither a zip nor a tar"),
        (bytes(10_240), "found no file in it"),
        (b"Rar!\x1a\x07\0" + bytes(100), "found a RAR archive"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(100), "found a 7z archive"),
        (b"PK\3\4" + bytes(100), "found a damaged archive"),
        (b"\x1f\x8b\x08\0" + bytes(100), "found a damaged archive|neither"),
    ],
)
def test_what_is_no_archive(tmp_path, data, sentence):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match=sentence) as caught:
        unpack(tmp_path / "x", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_missing_archive(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        unpack(tmp_path / "x", tmp_path / "out")


@pytest.mark.parametrize("kind", ["zip", *SQUEEZE])
def test_every_cut_and_every_changed_byte_is_seen(tmp_path, kind):
    """Of a checked archive; a tar without compression has no checksum of its data, but a cut one is seen."""
    path, dice = tmp_path / "x", random.Random(0)
    files = {f"{k}/{k}": dice.randbytes(600) for k in range(4)}
    zipped(path, files) if kind == "zip" else tarred(path, *files.items(), squeeze=SQUEEZE[kind])
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) if kind == "tar" else len(whole)
    for trial in range(150):
        data, at = bytearray(whole), dice.randrange(end)
        if trial % 2:
            del data[at:]
        else:
            data[at] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        out = tmp_path / f"out{trial}"
        try:
            unpack(path, out)
        except DataError as error:
            assert "\n" not in str(error)
            assert not out.exists()
        else:
            assert not trial % 2, "a cut archive was taken for whole"
            assert kind in ("zip", "tar") or content(out) == files


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("size", "count", "squeeze", "free"),
    [(1000, 100, bytes, 150_000), (500_000, 1, gzip.compress, 100_000)],
    ids=["seen before", "seen while unpacking"],
)
def test_no_room(tmp_path, monkeypatch, size, count, squeeze, free):
    path = tarred(tmp_path / "t", *((str(k), bytes(size)) for k in range(count)), squeeze=squeeze)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, module.MARGIN + free))
    with pytest.raises(DataError, match="found 100 MB free on its disk"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_headers_do_not_pile_up(tmp_path, monkeypatch):
    held, close = [], tarfile.TarFile.close
    monkeypatch.setattr(tarfile.TarFile, "close", lambda self: (held.append(len(self.members)), close(self)))
    path = tarred(tmp_path / "t", *((str(k), b"") for k in range(100)))
    unpack(path, tmp_path / "out")
    assert held == [100, 0]  # when it was written, and when it was read


def test_a_full_disk(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "open", lambda path, mode, **_: Full(path, mode), raising=False)
    with pytest.raises(DataError, match="the disk is full; free some space"):
        unpack(zipped(tmp_path / "z"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(zipped(tmp_path / "z"), tmp_path / "out", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["z"]


def test_the_name_comes_last(tmp_path, monkeypatch):
    """Whoever sees the folder sees it whole and flushed."""
    seen = []
    monkeypatch.setattr(os, "sync", lambda: seen.append((tmp_path / "out").exists()))
    unpack(zipped(tmp_path / "z"), tmp_path / "out", progress=lambda *_: seen.append((tmp_path / "out").exists()))
    assert len(seen) > 1 and not any(seen)


def test_what_is_there_is_not_touched(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(DataError, match="found something there already"):
        unpack(zipped(tmp_path / "z"), tmp_path / "out")
    assert content(tmp_path / "out") == {"mine": b"mine"}


def test_what_a_killed_process_left_goes_with_the_next(tmp_path):
    """A folder that another process works on is locked, and stays."""
    dead, live, other = (tmp_path / f".{name}.{uuid.uuid4().hex}" for name in ("out", "out", "[out]"))
    for left in (dead, live, other):
        (left / "x").mkdir(parents=True)
    held = os.open(live, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    unpack(zipped(tmp_path / "z"), tmp_path / "out")
    assert not dead.exists() and live.exists() and other.exists()
    os.close(held)
    for left in (live, other):
        shutil.rmtree(left)
