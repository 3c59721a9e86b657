"""Stores: every picture decoded once and bit for bit, whoever is killed, waits or damages something meanwhile."""

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedshift.core.errors import ConfigError, DataError
from fedshift.data import _worker, store
from fedshift.data.containers import Folder, open_container
from fedshift.data.decode import decode
from fedshift.data.manifest import Manifest, Row
from fedshift.data.places import cache_limit
from fedshift.data.store import cached, clear, open_store

SIZE = 9
BAD = (0, 3, 4, 20, 41)  # which pictures cannot be decoded


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(store, "PIECE", 4)
    monkeypatch.setattr(_worker, "TOGETHER", 2 * 3 * SIZE**2)  # two pictures, so that a piece is written in parts


def pictures(root, n=42, bad=()):
    """A folder of noise, of which some files are no pictures."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(n).integers
    for i in range(n):
        path, form = root / f"ü{i:03}.jpg", ("PNG", "JPEG", "BMP")[i % 3]
        Image.fromarray(draw(0, 256, (10 + i % 4, 9 + i % 5, 3), dtype=np.uint8)).save(path, form)
        if i in bad:
            path.write_bytes(b"no picture" * i)
    return root


def manifest(root, name="noise"):
    with open_container(root) as container:
        rows = [
            Row(n, n.split("/")[0], 0, "", _worker.sha256(container.span(n), container.read(n)))
            for n in container.names()
        ]
        return Manifest(name, Path(root), container.kind, ("one",), tuple(rows))


def expected(found, bad=(), fit="crop"):
    with open_container(found.root) as container:
        data = [container.read(row.path) for i, row in enumerate(found.rows) if i not in bad]
    return torch.from_numpy(np.stack([decode(d, SIZE, fit) for d in data]))


def is_right(made, found, bad=(), fit="crop"):
    assert made.images.dtype == torch.uint8 and torch.equal(made.images, expected(found, bad, fit))
    assert made.rows == tuple(row for i, row in enumerate(found.rows) if i not in bad)
    assert [row for row, _ in made.skipped] == [found.rows[i] for i in bad]
    assert made.content.tolist() == [known_by(image) for image in made.images]
    assert sorted(p.name for p in made.path.iterdir() if p.name != "checked.json") == [
        "content.npy", "index.json", "pixels.npy",
    ]  # fmt: skip
    assert np.array_equal(np.load(made.path / "pixels.npy"), made.images)
    return True


def known_by(image):
    """As the digest's words have it, in numpy."""
    halves = [half for plane in image.numpy() for half in np.split(plane.ravel(), [plane.size // 2])]
    sums = np.array([zlib.crc32(half.tobytes()) for half in halves], "<u4")
    return int.from_bytes(hashlib.sha256(sums.tobytes()).digest()[:8], "little", signed=True)


def test_the_digest_tells_bits_halves_and_planes_apart():
    plain = [bytes(range(81)), bytes(range(81)), bytes(81)]
    changed = [plain[::-1], [plain[0], plain[2], plain[1]], [p[40:] + p[:40] for p in plain]]
    for plane in range(3):
        for bit in range(8 * 81):
            flipped = bytearray(plain[plane])
            flipped[bit // 8] ^= 1 << bit % 8
            changed.append([bytes(flipped) if k == plane else p for k, p in enumerate(plain)])
    assert len({_worker.digest(p) for p in (plain, *changed)}) == len(changed) + 1


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("bad", [(), BAD, tuple(range(8)), tuple(range(34, 42))])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_store_is_bare_decoding_picture_by_picture(tmp_path, bad, fit, workers):
    found = manifest(pictures(tmp_path / "p", bad=bad))
    made = open_store(found, SIZE, fit, cache=tmp_path, workers=workers)
    assert is_right(made, found, bad, fit)
    assert is_right(open_store(found, SIZE, fit, cache=tmp_path), found, bad, fit)
    for row, reason in made.skipped:
        assert "empty file" in reason if row.path == "ü000.jpg" else "not a picture" in reason


@pytest.mark.parametrize("form", ["zip", "tar", "gztar", "xztar", "npz", "compressed npz"])
def test_helpers_read_every_container(tmp_path, form):
    root = pictures(tmp_path / "p")
    if "npz" in form:
        arrays = {f"d{k}_x_train": np.random.default_rng(k).integers(0, 256, (21, 8, 7, 3), np.uint8) for k in range(2)}
        (np.savez if form == "npz" else np.savez_compressed)(tmp_path / "a.npz", **arrays)
        found = manifest(tmp_path / "a.npz")
        made = open_store(found, SIZE, "squash", cache=tmp_path, workers=3)
        want = [_worker.planes(image.tobytes(), SIZE, "squash", (8, 7, 3)) for a in arrays.values() for image in a]
        assert made.images.numpy().tobytes() == b"".join(b"".join(p.bands) for p in want)
    else:
        found = manifest(shutil.make_archive(str(tmp_path / "a"), form, root))
        assert is_right(open_store(found, SIZE, cache=tmp_path, workers=3), found)
        with open_container(found.root) as container:
            assert any(container.span(row.path).zipped for row in found.rows) == (form == "zip")


def test_an_array_is_loaded_once_whatever_the_number_of_pictures(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((40, 9, 9), np.uint8))
    found, real, opened = manifest(tmp_path / "a.npz"), zipfile.ZipFile.open, []
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    made = open_store(found, SIZE, cache=tmp_path, workers=1)
    assert len(opened) == 1 and made.notes == {"greyscale": 40} and len(set(made.content.tolist())) == 1


def test_the_name_depends_on_content_order_size_and_fit_alone(tmp_path):
    found = manifest(pictures(tmp_path / "p", 5))
    moved = Manifest("noise", shutil.copytree(tmp_path / "p", tmp_path / "q"), "folder", ("other",), found.rows)
    other = Manifest("noise", found.root, "folder", ("one",), found.rows[::-1])
    opened = [open_store(m, SIZE, cache=tmp_path) for m in (found, moved, other)]
    opened += [open_store(found, 8, cache=tmp_path), open_store(found, SIZE, "squash", cache=tmp_path)]
    assert opened[0].path == opened[1].path and len({s.path for s in opened}) == 4
    assert all(e.name == "noise" and e.whole and e.bytes > 0 for e in cached(tmp_path))


def test_a_whole_store_needs_neither_source_nor_work(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p"))
    want = expected(found)
    open_store(found, SIZE, cache=tmp_path)
    shutil.rmtree(found.root)
    monkeypatch.setattr(store, "work", None)
    assert torch.equal(open_store(found, SIZE, cache=tmp_path).images, want)


def test_progress_rises_to_the_end(tmp_path):
    found, seen = manifest(pictures(tmp_path / "p")), []
    open_store(found, SIZE, cache=tmp_path, workers=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (42, 42) and len(seen) == 11


# -------------------------------------------------------------------------------------------------- kills and damage


class Killed(BaseException):
    """Not to be caught by anything."""


STEPS = (
    (os, "ftruncate"), (os, "pwrite"), (os, "pwritev"), (os, "posix_fallocate"), (Path, "rename"), (Path, "replace"),
    (Path, "unlink"), (Path, "write_text"), (Path, "mkdir"), (np, "save"), (store, "print"),
)  # fmt: skip


def killed_at(monkeypatch, moment, act):
    """Run `act` and stop at that change of the disk, in its middle where it has one; whether it came so far."""
    count = iter(range(10**9))

    def interrupted(real, name):
        def step(*args, **kwargs):
            if next(count) != moment:
                return real(*args, **kwargs)
            if name == "pwrite":
                real(args[0], args[1][: len(args[1]) // 2], args[2])
            if name == "pwritev":
                real(args[0], args[1][:1], args[2])
            if name == "print":
                kwargs["file"].write(args[0][: len(args[0]) // 2])
                kwargs["file"].flush()
            if name == "write_text":
                args[0].write_bytes(args[1].encode()[:7])
            raise Killed

        return step

    with monkeypatch.context() as patch:
        for where, name in STEPS:
            patch.setattr(where, name, interrupted(getattr(where, name, print), name), raising=False)
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("bad", [(), (0, 5, 6)])
def test_a_kill_at_any_moment_leaves_nothing_that_is_taken_for_whole(tmp_path, monkeypatch, bad):
    found = manifest(pictures(tmp_path / "p", 18, bad))
    moment = 0
    while killed_at(monkeypatch, moment, lambda: open_store(found, SIZE, cache=tmp_path / "c", workers=1)):
        again = moment
        while killed_at(monkeypatch, again, lambda: open_store(found, SIZE, cache=tmp_path / "c", workers=1)):
            again += 7  # and again later, while it is being resumed
        assert is_right(open_store(found, SIZE, cache=tmp_path / "c", workers=1), found, bad)
        shutil.rmtree(tmp_path / "c")
        moment += 1
    assert moment > 25


def test_finished_pieces_are_kept_and_damaged_ones_decoded_again(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p", bad=BAD))
    assert killed_at(monkeypatch, 30, lambda: open_store(found, SIZE, cache=tmp_path, workers=1))
    [part] = [entry.path for entry in cached(tmp_path) if not entry.whole]
    lines = (part / "journal.jsonl").read_text().splitlines()
    done, real = [json.loads(line)[0] for line in lines], store.work
    assert len(done) > 2
    with open(part / "pixels.npy", "r+b") as file:
        file.seek(_worker.HEAD + done[1] * 3 * SIZE**2 + 5)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    worked = []
    monkeypatch.setattr(store, "work", lambda *a: worked.append(a[3].start) or real(*a))
    assert is_right(open_store(found, SIZE, cache=tmp_path, workers=1), found, BAD)
    assert sorted(worked) == sorted({*range(0, 42, 4)} - {*done} | {done[1]})


def test_moved_pieces_are_kept_and_none_spoils_another(tmp_path, monkeypatch):
    found, worked, real = manifest(pictures(tmp_path / "p", bad=BAD)), [], store.work

    def stop(*args):
        raise Killed

    for damaged in ((), (0,), (5,), (5, 10), (20,), (36,)):  # of the pictures in the closed-up file
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", stop)  # of the journal, when all pieces are in their places
            with pytest.raises(Killed):
                open_store(found, SIZE, cache=tmp_path, workers=1)
        [part] = [entry.path for entry in cached(tmp_path)]
        with open(part / "pixels.npy", "r+b") as file:
            for picture in damaged:
                file.seek(_worker.HEAD + picture * 3 * SIZE**2)
                file.write(b"damage")
        worked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(store, "work", lambda *a: worked.append(a[3].start) or real(*a))
            assert is_right(open_store(found, SIZE, cache=tmp_path, workers=1), found, BAD)
        assert bool(worked) == bool(damaged)
        clear(tmp_path)


@pytest.mark.parametrize("name", ["pixels.npy", "content.npy", "index.json"])
def test_one_damaged_bit_is_noticed_and_mended(tmp_path, name):
    found = manifest(pictures(tmp_path / "p", bad=BAD))
    for at in (0, 40, 200, -1):
        path = open_store(found, SIZE, cache=tmp_path).path
        open_store(found, SIZE, cache=tmp_path)  # checks it, and remembers that
        data = bytearray((path / name).read_bytes())
        data[at] ^= 1
        (path / name).write_bytes(data)
        assert is_right(open_store(found, SIZE, cache=tmp_path), found, BAD)


def test_another_index_is_not_taken_for_the_right_one(tmp_path):
    found = manifest(pictures(tmp_path / "p", bad=BAD))
    path = open_store(found, SIZE, cache=tmp_path).path / "index.json"
    text = path.read_text()
    path.write_text(text.replace('[[0, "', '[[1, "'))
    assert path.read_text() != text and is_right(open_store(found, SIZE, cache=tmp_path), found, BAD)


def test_silent_damage_is_noticed_the_next_day(tmp_path):
    found = manifest(pictures(tmp_path / "p"))
    path = open_store(found, SIZE, cache=tmp_path).path
    right = open_store(found, SIZE, cache=tmp_path).images.clone()
    times = os.stat(path / "pixels.npy")
    with open(path / "pixels.npy", "r+b") as file:
        file.seek(500)
        file.write(b"damage")
    os.utime(path / "pixels.npy", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not torch.equal(open_store(found, SIZE, cache=tmp_path).images, right)
    os.utime(path / "checked.json", (0, time.time() - store.DAY - 1))
    assert torch.equal(open_store(found, SIZE, cache=tmp_path).images, right)


@pytest.mark.parametrize("name", ["pixels.npy", "content.npy", "index.json"])
def test_a_missing_or_cut_file_is_made_again(tmp_path, name):
    found = manifest(pictures(tmp_path / "p"))
    path = open_store(found, SIZE, cache=tmp_path).path
    os.truncate(path / name, 60)
    assert is_right(open_store(found, SIZE, cache=tmp_path), found)
    (path / name).unlink()
    assert is_right(open_store(found, SIZE, cache=tmp_path), found)


# ------------------------------------------------------------------------------------------------- several processes


SCRIPT = """
import hashlib, os, signal, sys
from pathlib import Path
from fedshift.data import store
from fedshift.data.manifest import Manifest
store.PIECE = 4
kill = int(sys.argv[3])
def progress(done, total):
    if 0 < kill <= done:
        os.kill(os.getpid(), signal.SIGKILL)
found = Manifest.from_json(Path(sys.argv[1]).read_text(), "")
made = store.open_store(found, 9, cache=Path(sys.argv[2]), workers=2, progress=progress)
print(hashlib.sha256(made.images.numpy().tobytes()).hexdigest(), len(made.rows))
"""  # not guarded by __name__: helpers must not run it again


def test_kill_nine_then_two_processes_at_once(tmp_path):
    found = manifest(pictures(tmp_path / "p", 120, BAD))
    (tmp_path / "m.jsonl").write_text(found.to_json())
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(kill):
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "m.jsonl"), str(tmp_path), str(kill)]
        env = {**os.environ, "PYTHONPATH": str(Path(store.__file__).parents[2])}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    first = start(40)
    assert first.communicate() == ("", "") and first.returncode == -9
    [entry] = cached(tmp_path)
    assert not entry.whole and len((entry.path / "journal.jsonl").read_text().splitlines()) >= 10
    other = start(0)
    while other.poll() is None and not is_locked(entry.path):
        time.sleep(0.01)
    made = open_store(found, SIZE, cache=tmp_path, workers=2)
    assert is_right(made, found, BAD)
    answer = hashlib.sha256(made.images.numpy().tobytes()).hexdigest()
    assert other.communicate() == (f"{answer} {120 - len(BAD)}\n", "")


def is_locked(path):
    with open(path.with_suffix(".lock"), "rb") as lock:
        return not store._flock(lock.fileno())


def test_the_second_waits_tells_and_uses_the_first_s_result(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p"))
    go, seen, real = threading.Event(), [], store.work

    def slow(*args):
        if args[3].start == 20:
            go.wait(20)
        return real(*args)

    monkeypatch.setattr(store, "work", slow)
    first = threading.Thread(target=lambda: open_store(found, SIZE, cache=tmp_path, workers=1))
    first.start()
    while not list(tmp_path.glob("store/*.part/journal.jsonl")):
        time.sleep(0.01)

    def progress(done, total):
        seen.append((done, total))
        if done >= 20:
            go.set()

    made = open_store(found, SIZE, cache=tmp_path, workers=1, progress=progress)
    first.join()
    assert is_right(made, found) and seen[0][0] <= 20 and (20, 42) in seen and seen[-1] == (42, 42)


def test_one_thread_at_a_time_looks_into_a_container(tmp_path, monkeypatch):
    found, inside, real = manifest(pictures(tmp_path / "p")), threading.Lock(), Folder.span

    def span(*args):
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        inside.release()
        return real(*args)

    monkeypatch.setattr(Folder, "span", span)
    open_store(found, SIZE, cache=tmp_path, workers=4)


def test_a_helper_that_dies_is_an_error_and_its_work_is_kept(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p"))
    real, work = store._drive, store.work

    def drive(helper, tasks, done):
        helper.kill()
        real(helper, tasks, done)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_drive", drive)
        patch.setattr(store, "work", lambda *args: time.sleep(0.02) or work(*args))
        with pytest.raises(DataError, match="a decoding process ended with code -9"):
            open_store(found, SIZE, cache=tmp_path, workers=2)
    assert is_right(open_store(found, SIZE, cache=tmp_path, workers=2), found)


# ---------------------------------------------------------------------------------------- sources that are not right


def test_a_file_that_changed_or_went_since_its_import_is_an_error(tmp_path):
    for workers in (1, 2):
        found = manifest(pictures(tmp_path / "p"))
        Image.new("RGB", (9, 9)).save(tmp_path / "p/ü030.jpg", "PNG")
        with pytest.raises(DataError, match=r"ü030\.jpg has changed since it was imported; import the data set again"):
            open_store(found, SIZE, cache=tmp_path, workers=workers)
        (tmp_path / "p/ü030.jpg").unlink()
        with pytest.raises(DataError, match=r"ü030\.jpg cannot be read \(No such file or directory\)"):
            open_store(found, SIZE, cache=tmp_path, workers=workers)
        shutil.rmtree(found.root)
        with pytest.raises(DataError, match="cannot be opened"):
            open_store(found, SIZE, cache=tmp_path, workers=workers)
        assert is_right(open_store(manifest(pictures(tmp_path / "p")), SIZE, cache=tmp_path), found)
        clear(tmp_path)


def test_no_picture_at_all(tmp_path):
    found = manifest(pictures(tmp_path / "p", 3, (0, 1, 2)))
    with pytest.raises(DataError, match=r"no picture that can be decoded \(ü000\.jpg: an empty file\), expected 3"):
        open_store(found, SIZE, cache=tmp_path)
    assert cached(tmp_path) == []


def test_a_member_gone_from_an_archive(tmp_path):
    path = shutil.make_archive(str(tmp_path / "a"), "tar", pictures(tmp_path / "p"))
    found = manifest(path)
    shutil.make_archive(str(tmp_path / "a"), "tar", pictures(tmp_path / "q", 7))
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"found no '|has changed"):
            open_store(found, SIZE, cache=tmp_path, workers=workers)


# -------------------------------------------------------------------------------------------------------- disk space


def test_a_full_disk_is_said_before_the_work(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5_000))
    with pytest.raises(DataError, match="MB free on its disk"):
        open_store(found, SIZE, cache=tmp_path)


@pytest.mark.parametrize("where", ["work", "allocate"])
def test_a_disk_that_fills_up_meanwhile(tmp_path, monkeypatch, where):
    found = manifest(pictures(tmp_path / "p"))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev" if where == "work" else "posix_fallocate", full)
        with pytest.raises(DataError, match=r"No space left on device|the disk is full"):
            open_store(found, SIZE, cache=tmp_path, workers=1)
    assert is_right(open_store(found, SIZE, cache=tmp_path), found)


def test_the_cache_keeps_to_its_limit_and_to_what_is_in_use(tmp_path):
    made = [manifest(pictures(tmp_path / f"p{k}", 40 + k), f"set{k}") for k in range(4)]
    stores = [open_store(m, SIZE, cache=tmp_path) for m in made[:3]]
    for k, used in enumerate((300, 100, 200)):  # set1 was used longest ago, then set2, then set0
        for file in stores[k].path.iterdir():
            os.utime(file, (used, used))
    names = [entry.name for entry in cached(tmp_path)]
    assert names == ["set1", "set2", "set0"]
    total = sum(entry.bytes for entry in cached(tmp_path))
    held = stores[1].images  # the tensor alone keeps the store in use
    del stores
    open_store(made[3], SIZE, cache=tmp_path, limit=total)
    assert {entry.name for entry in cached(tmp_path)} == {"set0", "set1", "set3"}
    assert torch.equal(held, expected(made[1]))
    with pytest.raises(
        DataError, match=r"set0 at 50 pixels needs .* raise .FEDSHIFT_CACHE_GB or choose a smaller size"
    ):
        open_store(made[0], 50, cache=tmp_path, limit=100_000)
    assert [entry.name for entry in clear(tmp_path)] != [] and [e.name for e in cached(tmp_path)] == ["set1"]
    del held
    clear(tmp_path, "set2")
    assert len(cached(tmp_path)) == 1
    clear(tmp_path, "set1", SIZE)
    assert cached(tmp_path) == [] and not any((tmp_path / "store").iterdir())


def test_what_another_process_makes_is_not_removed(tmp_path, monkeypatch):
    found = manifest(pictures(tmp_path / "p"))
    assert killed_at(monkeypatch, 20, lambda: open_store(found, SIZE, cache=tmp_path, workers=1))
    [entry] = cached(tmp_path)
    with open(entry.path.with_suffix(".lock"), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clear(tmp_path) == []
    assert clear(tmp_path) == [entry]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        open_store(manifest(pictures(tmp_path / "p", 3)), SIZE, cache=tmp_path / "file")


# --------------------------------------------------------------------------------------------------------- real data


@pytest.mark.parametrize("name", ["pacs_128.tar", "office_caltech10.tar", "digits.npz"])
def test_real_pictures_are_pillows(tmp_path, monkeypatch, name):
    folder = os.environ.get("FEDSHIFT_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"FEDSHIFT_DATA names no folder with {name}")
    monkeypatch.setattr(store, "PIECE", 64)
    whole = manifest(Path(folder) / name)
    found = Manifest(whole.name, whole.root, whole.kind, whole.classes, whole.rows[::37])
    made = open_store(found, 32, cache=tmp_path, workers=2)
    assert made.skipped == () and len(made.rows) == len(found.rows)
    with open_container(found.root, tmp_path) as container:
        for row, image in list(zip(made.rows, made.images, strict=True))[::5]:
            array = container.array(row.path)
            file = io.BytesIO(container.read(row.path))
            picture = Image.open(file) if array is None else Image.fromarray(array)
            picture = picture.convert("RGB")
            w, h = (int(32 * side / min(picture.size)) for side in picture.size)
            picture = picture.resize((w, h), Image.BILINEAR)
            left, top = round((w - 32) / 2), round((h - 32) / 2)
            assert np.array_equal(np.asarray(picture.crop((left, top, left + 32, top + 32))).transpose(2, 0, 1), image)


@pytest.mark.parametrize("text", ["none", "-1", "0", "inf", "nan"])
def test_the_limit_is_a_number(text, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE_GB", "0.5")
    assert cache_limit() == 500_000_000
    monkeypatch.setenv("FEDSHIFT_CACHE_GB", text)
    with pytest.raises(ConfigError, match=f"FEDSHIFT_CACHE_GB: found '{text}', expected a number above 0"):
        cache_limit()
