"""Finding sets by content: small trees and archives made here, and the real data where there is some."""

import hashlib
import os
import random
import tarfile
import zipfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.errors import DataError
from fedshift.data.dataset import Dataset
from fedshift.data.find import find
from fedshift.data.glyphs import SOURCE as GLYPHS
from fedshift.data.manifest import Manifest
from fedshift.data.sources import SOURCES

PACS, HOME, VLCS, NET = (SOURCES[n] for n in ("pacs", "office-home", "vlcs", "domainnet-10-fedbn"))


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def names(source, pattern="{domain}/{label}/{n}.jpg", each=1):
    """The files of a small copy of a set."""
    return [
        pattern.format(domain=domain, label=label, n=n, k=k)
        for domain in source.domains
        for k, label in enumerate(source.classes)
        for n in range(each)
    ]


def content(name: str) -> bytes:
    return b"picture " + name.encode()


def folder(root: Path, files) -> Path:
    for name, data in files.items() if isinstance(files, dict) else ((n, content(n)) for n in files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def zipped(path: Path, files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, content(name))
    return path


def tarred(path: Path, files, mode="w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name in files:
            scrap = path.with_name("scrap")
            scrap.write_bytes(content(name))
            archive.add(scrap, name)
            scrap.unlink()
    return path


def told(manifest: Manifest):
    """What a manifest says of each picture."""
    return [(row.path, row.domain, manifest.classes[row.label], row.split) for row in manifest.rows]


def expected(source, pattern="{domain}/{label}/{n}.jpg"):
    return [
        (pattern.format(domain=d, label=c, n=0, k=k), d, c)
        for d in source.domains
        for k, c in enumerate(source.classes)
    ]


# ------------------------------------------------------------------------------------------------------- containers


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("folder", folder),
        ("zip", lambda path, files: zipped(path.with_suffix(".zip"), files)),
        ("tar", lambda path, files: tarred(path.with_suffix(".tar"), files)),
        ("tar", lambda path, files: tarred(path.with_suffix(".tar.gz"), files, "w:gz")),
        ("zip", lambda path, files: zipped(path.with_suffix(".dat"), files)),
    ],
    ids=["folder", "zip", "tar", "tar.gz", "zip under another name"],
)
def test_the_same_set_in_every_container(tmp_path, kind, make):
    root = make(tmp_path / "PACS", names(PACS))
    manifest = find(PACS, root)
    assert (manifest.name, manifest.root, manifest.kind, manifest.classes) == ("pacs", root, kind, PACS.classes)
    assert told(manifest) == [(*row, "") for row in expected(PACS)]
    assert [row.sha256 for row in manifest.rows] == [hashlib.sha256(content(n)).hexdigest() for n in names(PACS)]
    assert Manifest.from_json(manifest.to_json(), "here") == manifest


def test_progress_counts_pictures(tmp_path):
    calls = []
    find(PACS, folder(tmp_path, names(PACS)), lambda done, total: calls.append((done, total)))
    assert calls == [(k + 1, 28) for k in range(28)]


def test_a_relative_path_is_kept_in_full(tmp_path, monkeypatch):
    folder(tmp_path / "PACS", names(PACS))
    monkeypatch.chdir(tmp_path)
    assert find(PACS, Path("PACS")).root == tmp_path / "PACS"


# ------------------------------------------------------------------------------------------------- names in the wild


@pytest.mark.parametrize(
    ("source", "domain", "label", "of"),
    [
        (PACS, "Art Painting", "DOG", ("art_painting", "dog")),
        (PACS, "artpainting", "dog", ("art_painting", "dog")),
        (PACS, "art", "01_dog", ("art_painting", "dog")),
        (HOME, "Real_World", "Alarm Clock", ("Real World", "Alarm_Clock")),
        (HOME, "RealWorld", "alarm_clock", ("Real World", "Alarm_Clock")),
        (HOME, "real", "001.Alarm-Clock", ("Real World", "Alarm_Clock")),
        (HOME, "Rw", "tv", ("Real World", "TV")),
        (HOME, "ART", "toothbrush", ("Art", "ToothBrush")),
        (SOURCES["office-caltech10"], "Caltech", "009.back_pack", ("caltech", "backpack")),
        (SOURCES["office-caltech10"], "dslr", "laptop_computer", ("dslr", "laptop")),
        (SOURCES["office-31"], "DSLR", "laptop", ("dslr", "laptop_computer")),
        (VLCS, "PASCAL", "3", ("VOC2007", "dog")),
        (NET, "clipart", "wineglass", ("clipart", "wine_glass")),
        (SOURCES["domainnet-345"], "real", "T-Shirt", ("real", "t-shirt")),
        (SOURCES["domainnet-345"], "real", "train", ("real", "train")),
        (SOURCES["digits5"], "mnist_m", "0", ("mnistm", "0")),
        (SOURCES["digits5"], "syn", "seven", ("synthdigits", "7")),
    ],
)
def test_a_copy_may_write_names_its_own_way(tmp_path, source, domain, label, of):
    everything = ((d, c) for d in source.domains for c in source.classes)
    rest = [file for file, what in zip(names(source), everything, strict=True) if what != of]
    files = [*rest, f"{domain}/{label}/odd.jpg"]
    found = {(path, d, c) for path, d, c, _ in told(find(source, zipped(tmp_path / "set.zip", files)))}
    assert (f"{domain}/{label}/odd.jpg", *of) in found and len(found) == len(files)


@pytest.mark.parametrize(
    "pattern",
    [
        "kfold/{domain}/{label}/{n}.jpg",
        "a/b/c/{domain}/images/{label}/{n}.png",
        "{domain}/{label}/more/{n}.JPEG",
        "Fotos für später/{domain}/{label}/Bild ä {n}.jpg",
        "{domain}/{domain}/{label}/{n}.jpg",
        "sketch/{domain}/{label}/{n}.jpg",
        "test/{domain}/{label}/{n}.jpg",
        "{domain}/house/{label}/{n}.jpg",
    ],
)
def test_levels_above_between_and_below_do_not_matter(tmp_path, pattern):
    manifest = find(PACS, folder(tmp_path, names(PACS, pattern)))
    assert told(manifest) == [(*row, "") for row in expected(PACS, pattern)]


def test_rows_are_in_the_order_of_the_source(tmp_path):
    digits = SOURCES["digits5"]  # whose domains are not in alphabetical order
    rows = find(digits, folder(tmp_path, names(digits, each=11))).rows
    files = sorted(f"{n}.jpg" for n in range(11))
    assert [row.path for row in rows] == [f"{d}/{c}/{n}" for d in digits.domains for c in digits.classes for n in files]


def test_names_are_kept_as_they_are_written(tmp_path):
    """An accent of its own and a letter with it are two names to a file system."""
    odd = {"photo/dog/e\u0301.jpg", "photo/dog/\u00e9.jpg", "photo/dog/\u72ac.JPG", "photo/dog/a b  .jpg"}
    rows = find(PACS, zipped(tmp_path / "set.zip", [*names(PACS), *odd])).rows
    assert {row.path for row in rows} == {*names(PACS), *odd}


def test_what_systems_leave_behind_is_not_a_picture(tmp_path):
    junk = [
        "__MACOSX/photo/dog/._0.jpg", "photo/dog/._0.jpg", "photo/dog/.DS_Store", "photo/dog/Thumbs.db",
        "photo/.x/dog/0.jpg", "photo/dog/notes.txt", "photo/README.md", "photo/decaf6/dog.mat", "photo/zebra/0.jpg",
        "interest_points/photo/dog/0.SURF", "extra/cat/0.jpg",
    ]  # fmt: skip
    assert told(find(PACS, folder(tmp_path, [*names(PACS), *junk]))) == [(*row, "") for row in expected(PACS)]


# -------------------------------------------------------------------------------------------------- what is missing


def test_a_class_missing_in_one_domain_is_for_verify_to_say(tmp_path):
    files = [name for name in names(PACS) if not name.startswith("photo/dog")]
    (tmp_path / "photo/dog").mkdir(parents=True)  # an empty class
    manifest = find(PACS, folder(tmp_path, files))
    assert len(manifest.rows) == 27 and manifest.classes == PACS.classes


def test_a_class_of_one_domain_only_is_found(tmp_path):
    files = [name for name in names(PACS) if "/dog/" not in name or name.startswith("photo")]
    assert Counter(row.domain for row in find(PACS, folder(tmp_path, files)).rows if row.label == 0) == {"photo": 1}


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (
            lambda n: not n.startswith("photo"),
            "pictures of art_painting, cartoon, sketch, but none of the domains photo",
        ),
        (
            lambda n: "/dog/" not in n,
            "art_painting, cartoon, photo, sketch, but none of the classes dog;",
        ),
        (
            lambda n: n.startswith("photo/h"),
            "none of the domains art_painting, cartoon, sketch and of the classes dog,",
        ),
        (lambda n: False, "2 pictures, such as 'cats/1.jpg'; give the path of what holds them."),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(tmp_path, keep, said):
    files = [name for name in names(PACS) if keep(name)]
    with pytest.raises(DataError) as error:
        find(PACS, folder(tmp_path, [*files, "cats/1.jpg", "cats/2.jpg"]))
    assert said in str(error.value) and str(error.value).startswith(f"{tmp_path}: looked for pacs")
    assert str(error.value).count(". ") == 0 and str(error.value).endswith(".")


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="found nothing there, expected a folder or an archive"):
        find(PACS, tmp_path / "none")
    with pytest.raises(DataError, match="found 0 files, no picture"):
        find(PACS, folder(tmp_path / "empty", {"x/.keep": b""}))


def test_a_set_that_is_made_is_not_imported(tmp_path):
    assert GLYPHS.load is not None and callable(GLYPHS.load) and Dataset
    with pytest.raises(DataError, match="made on the machine"):
        find(GLYPHS, tmp_path)


def test_two_copies_are_not_mixed(tmp_path):
    folder(tmp_path / "new", names(PACS))
    folder(tmp_path / "old", names(PACS))
    with pytest.raises(DataError, match="more than once, in 'new' and in 'old'"):
        find(PACS, tmp_path)
    (tmp_path / "old/photo/dog/0.jpg").unlink()
    with pytest.raises(DataError, match="more than once"):  # a class less in one domain, but a copy still
        find(PACS, tmp_path)


def test_the_complete_copy_is_taken(tmp_path):
    folder(tmp_path / "a", [name for name in names(PACS) if "sketch" not in name])
    folder(tmp_path / "b", names(PACS))
    folder(tmp_path / "c", names(NET))  # DomainNet has domains and classes of PACS's names
    assert {row.path.split("/")[0] for row in find(PACS, tmp_path).rows} == {"b"}


# ------------------------------------------------------------------------------------------------ hostile file systems


def test_a_loop_of_links_is_not_followed(tmp_path):
    folder(tmp_path, names(PACS))
    (tmp_path / "photo/dog/loop").symlink_to(tmp_path / "photo")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert len(find(PACS, tmp_path).rows) == 28


def test_a_picture_that_lies_elsewhere_is_not_lost_in_silence(tmp_path):
    folder(tmp_path / "set", names(PACS))
    other = folder(tmp_path / "other", ["1.jpg"])
    (tmp_path / "set/photo/dog/1.jpg").symlink_to(other / "1.jpg")
    with pytest.raises(DataError, match=r"'photo/dog/1.jpg': a link that leads out of the folder; mend it"):
        find(PACS, tmp_path / "set")


@contextmanager
def scandir(change):
    """Another order of files, or a folder that cannot be read; tests may run as root, whom no permission stops."""
    real = os.scandir

    @contextmanager
    def entries(path):
        with real(path) as found:
            yield change(path, list(found))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", entries)
        yield


def refuse(tail):
    def change(path, found):
        if str(path).rstrip("/").endswith(tail):
            raise PermissionError(13, "Permission denied")
        return found

    return change


def test_a_folder_that_cannot_be_read(tmp_path):
    folder(tmp_path, names(PACS))
    with scandir(refuse("photo/dog")), pytest.raises(DataError, match=r"'photo/dog': cannot be opened \(Permission"):
        find(PACS, tmp_path)
    with (
        scandir(refuse("photo")),
        pytest.raises(DataError, match=r"domains photo.*'photo' was left out \(cannot be op"),
    ):
        find(PACS, tmp_path)
    folder(tmp_path, ["private/x.jpg"])
    with scandir(refuse("private")):
        assert len(find(PACS, tmp_path).rows) == 28


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_files_does_not_matter(tmp_path_factory, seed):
    root = tmp_path_factory.mktemp("order")
    dice = random.Random(seed)
    files = [*names(PACS), "train/photo/dog/9.jpg", "train/photo/dog/10.jpg"]
    mixed = dice.sample(files, len(files))
    plain = told(find(PACS, folder(root / "set", files)))
    with scandir(lambda path, found: dice.sample(found, len(found))):
        assert told(find(PACS, root / "set")) == plain
    assert told(find(PACS, zipped(root / "set.zip", mixed))) == plain
    assert told(find(PACS, tarred(root / "set.tar", mixed))) == plain


# ------------------------------------------------------------------------------------------------------------ splits


def pacs_lists(folder_of="PACS"):
    """As published: labels from 1, and a test list that is the whole domain."""
    lists = {}
    for domain in PACS.domains:
        lines = [f"{domain}/{label}/{n}.jpg {k + 1}" for k, label in enumerate(PACS.classes) for n in range(3)]
        lists[f"{folder_of}/{domain}_train_kfold.txt"] = "\n".join(lines[0::3] + lines[1::3]).encode()
        lists[f"{folder_of}/{domain}_crossval_kfold.txt"] = "\n".join(lines[2::3]).encode()
        lists[f"{folder_of}/{domain}_test_kfold.txt"] = "\n".join(lines).encode()
    return lists


def test_the_lists_of_pacs(tmp_path):
    folder(tmp_path, names(PACS, "kfold/{domain}/{label}/{n}.jpg", each=3))
    manifest = find(PACS, folder(tmp_path, pacs_lists("lists")))
    assert {(row.path[-5], row.split) for row in manifest.rows} == {("0", "train"), ("1", "train"), ("2", "val")}
    assert Counter(row.label for row in manifest.rows) == dict.fromkeys(range(7), 12)
    assert all(PACS.classes[row.label] == row.path.split("/")[2] for row in manifest.rows)


def test_somebody_elses_split_is_not_the_authors(tmp_path):
    files = [name.replace("/", f"/{part}/", 1) for part in ("train", "val") for name in names(HOME)]
    manifest = find(HOME, zipped(tmp_path / "home.zip", files))
    assert len(manifest.rows) == 2 * 4 * 65 and {row.split for row in manifest.rows} == {""}


def test_a_folder_that_repeats_the_parts_beside_it(tmp_path):
    files = [
        f"VLCS/{domain}/{part}/{k}/{part[0]}.jpg"
        for domain in ("CALTECH", "LABELME", "PASCAL", "SUN")
        for part in ("train", "crossval", "test", "full")
        for k in range(5)
    ]
    manifest = find(VLCS, zipped(tmp_path / "vlcs.zip", files))
    assert {(row.path[-5], row.split) for row in manifest.rows} == {("t", "train"), ("c", "val"), ("t", "test")}
    assert len(manifest.rows) == 4 * 5 * 3
    assert all(row.split == {"crossval": "val"}.get(part := row.path.split("/")[2], part) for row in manifest.rows)
    only = find(VLCS, zipped(tmp_path / "full.zip", [name for name in files if "/full/" in name]))
    assert len(only.rows) == 20 and {row.split for row in only.rows} == {""}


def test_a_folder_says_more_than_a_list(tmp_path):
    """Where each part numbers its pictures anew, a list's line is not of the picture of that name in another part."""
    files = [n.replace("/", f"/{part}/", 1) for part in ("train", "test") for n in names(VLCS)]
    folder(tmp_path, {"lists/SUN_train.txt": b"SUN09/train/dog/0.jpg 3"})
    rows = find(VLCS, folder(tmp_path, files)).rows
    assert all(row.split == row.path.split("/")[1] for row in rows) and len(rows) == 40


def test_only_domainnets_lists_say_what_belongs(tmp_path):
    files = [n.replace("/", f"/{part}/", 1) for part in ("train", "test") for n in names(VLCS)]
    rows = find(VLCS, folder(tmp_path, [*files, "SUN09/dog/more.jpg"])).rows
    assert [row.split for row in rows if row.path == "SUN09/dog/more.jpg"] == [""] and len(rows) == 41


def net_lists(domains=NET.domains):
    """Picture 0 to train, 1 to test; 2 is what the authors removed."""
    return {
        f"{domain}_{part}.txt": "\n".join(f"{domain}/{c}/{n}.jpg {k}" for k, c in enumerate(NET.classes)).encode()
        for domain in domains
        for n, part in enumerate(("train", "test"))
    }


def test_the_lists_of_domainnet_say_what_belongs(tmp_path):
    folder(tmp_path, names(NET, each=3))
    manifest = find(NET, folder(tmp_path, net_lists()))
    assert {(row.path[-5], row.split) for row in manifest.rows} == {("0", "train"), ("1", "test")}
    assert len(manifest.rows) == 6 * 10 * 2


def test_half_of_the_lists_takes_nothing_away(tmp_path):
    folder(tmp_path, names(NET, each=3))
    lists = net_lists(("real", "sketch"))
    del lists["sketch_test.txt"]
    manifest = find(NET, folder(tmp_path, lists))
    assert Counter(row.domain for row in manifest.rows) == {d: 20 if d == "real" else 30 for d in NET.domains}


def test_lists_for_adaptation_are_not_a_split(tmp_path):
    folder(tmp_path, names(PACS))
    lists = dict.fromkeys(("validation_target_images_photo_3.txt", "labeled_source_train.txt"), b"photo/dog/0.jpg 0")
    assert {row.split for row in find(PACS, folder(tmp_path, lists)).rows} == {""}


# --------------------------------------------------------------------------------------------- the authors' archives


def by_domain(source, each=1, pattern="{domain}/{label}/{n}.jpg"):
    return {d: [n for n in names(source, pattern, each) if d in n] for d in source.domains}


@pytest.mark.parametrize(
    ("archive", "pattern"),
    [
        ("{domain}.zip", "{domain}/{label}/{n}.jpg"),
        ("{domain}.zip", "{label}/{domain}{n}.jpg"),
        ("deep/{domain}-images.tar.gz", "{domain}/images/{label}/{n}.jpg"),
        ("{domain}.tar", "pictures/{domain}/{label}/{n}.jpg"),
    ],
)
def test_a_folder_with_an_archive_for_each_domain(tmp_path, archive, pattern):
    for domain, files in by_domain(PACS, pattern=pattern).items():
        path = tmp_path / "PACS" / archive.format(domain=domain)
        zipped(path, files) if path.suffix == ".zip" else tarred(path, files, "w:gz" if path.suffix == ".gz" else "w")
    manifest = find(PACS, tmp_path / "PACS")
    assert [(d, c) for _, d, c, _ in told(manifest)] == [(d, c) for _, d, c in expected(PACS)]
    assert manifest.root.is_relative_to(tmp_path / "home") and manifest.kind == "folder"
    assert all((manifest.root / row.path).is_file() for row in manifest.rows)
    again = find(PACS, tmp_path / "PACS")
    assert again == manifest


def test_archives_with_lists_beside_them(tmp_path):
    for domain, files in by_domain(NET, each=3).items():
        zipped(tmp_path / "net" / f"{domain}.zip", files)
    zipped(tmp_path / "net" / "holiday.zip", ["beach/1.jpg"])
    manifest = find(NET, folder(tmp_path / "net", net_lists()))
    assert len(manifest.rows) == 120 and {row.split for row in manifest.rows} == {"train", "test"}
    assert not list((tmp_path / "home").rglob("holiday*"))


def test_a_single_archive_is_read_where_it_lies(tmp_path):
    archive = zipped(tmp_path / "downloads" / "PACS.zip", names(PACS, "kfold/{domain}/{label}/{n}.jpg", each=3))
    folder(tmp_path / "downloads", pacs_lists())
    folder(tmp_path / "downloads", {"hashes.json": b"{}"})
    manifest = find(PACS, tmp_path / "downloads")
    assert (manifest.root, manifest.kind) == (archive, "zip") and not (tmp_path / "home").exists()
    assert Counter(row.split for row in manifest.rows) == {"train": 56, "val": 28}


def test_an_archive_that_changed_is_unpacked_again(tmp_path):
    for domain, files in by_domain(PACS).items():
        zipped(tmp_path / "PACS" / f"{domain}.zip", files)
    first = find(PACS, tmp_path / "PACS")
    zipped(tmp_path / "PACS" / "photo.zip", [*by_domain(PACS)["photo"], "photo/dog/new.jpg"])
    assert len(find(PACS, tmp_path / "PACS").rows) == len(first.rows) + 1


def test_archives_that_do_not_help(tmp_path):
    root = folder(tmp_path / "x", {"PACS.zip": b"<html>quota exceeded</html>"})
    with pytest.raises(DataError, match=r"PACS\.zip: found neither"):
        find(PACS, root)
    with pytest.raises(DataError, match="found 1 files, no picture"):
        find(PACS, folder(tmp_path / "y", {"a.txt": b""}))
    with pytest.raises(DataError, match=r"unpack 'data/PACS.zip' and import the folder"):
        find(PACS, zipped(tmp_path / "outer.zip", ["data/PACS.zip"]))


# -------------------------------------------------------------------------------------------------------- .npz files


def pacs_arrays(**change):
    labels = np.tile(np.arange(7), 4)
    arrays = {
        "images": np.arange(28 * 12, dtype=np.uint8).reshape(28, 2, 2, 3),
        "labels": labels,
        "domain": np.repeat(np.arange(4), 7),
        "split": np.arange(28) % 2,
        "class_names": np.array(PACS.classes),
        "domain_names": np.array(["art", "cartoon", "photo", "sketch"]),
        "split_names": np.array(["train", "crossval"]),
        **change,
    }
    return {key: array for key, array in arrays.items() if array is not None}


def saved(path, arrays, compressed=False):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_pictures_in_an_array(tmp_path, compressed):
    manifest = find(PACS, saved(tmp_path / "pacs.npz", pacs_arrays(), compressed))
    assert manifest.kind == "npz"
    assert [(r.path, r.domain, r.label) for r in manifest.rows] == [
        (f"images/{k}", PACS.domains[k // 7], k % 7) for k in range(28)
    ]
    assert [r.split for r in manifest.rows] == ["train", "val"] * 14
    first = pacs_arrays()["images"][0]
    assert manifest.rows[0].sha256 == hashlib.sha256(b"(2, 2, 3)" + first.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"class_names": None},  # numbers are the source's own
        {"domain_names": None},
        {"domain": np.repeat(np.array(PACS.domains), 7), "domain_names": None},
        {"labels": np.tile(np.array(PACS.classes), 4), "class_names": None},
        {"split_names": None, "split": np.arange(28) % 2},
    ],
)
def test_numbers_and_words_are_read(tmp_path, change):
    plain = find(PACS, saved(tmp_path / "plain.npz", pacs_arrays()))
    assert find(PACS, saved(tmp_path / "other.npz", pacs_arrays(**change))).rows == plain.rows


def test_names_in_another_order_do_not_move_labels(tmp_path):
    order = np.array([3, 1, 6, 0, 2, 5, 4])
    arrays = pacs_arrays(class_names=np.array(PACS.classes)[order], labels=np.tile(np.argsort(order), 4))
    assert [row.label for row in find(PACS, saved(tmp_path / "pacs.npz", arrays)).rows] == [*range(7)] * 4


def digits(names, labels, part="_train"):
    return {
        key: array
        for name in names
        for key, array in (
            (f"{name}_x{part}", np.zeros((len(labels), 4, 4), np.uint8)),
            (f"{name}_y{part}", np.array(labels)),
        )
    }


def test_an_array_for_each_domain_and_part(tmp_path):
    five = ("mnist", "svhn", "usps", "syn", "mnist_m")
    arrays = digits(five, [*range(1, 10), 10]) | digits(five, range(10), "_test")
    manifest = find(SOURCES["digits5"], saved(tmp_path / "digits.npz", arrays))
    assert Counter((r.domain, r.split) for r in manifest.rows) == {
        (d, part): 10 for d in SOURCES["digits5"].domains for part in ("train", "test")
    }
    tens = {r.path: r.label for r in manifest.rows if r.path.endswith("_train/9")}
    assert len(tens) == 5 and {*tens.values()} == {0}  # SVHN's class 10 is the digit 0


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"data": np.zeros(3)}, "found the arrays data, expected images, labels and domain"),
        (pacs_arrays(labels=np.arange(3)), "3 labels, 28 domains"),
        (pacs_arrays(labels=np.arange(3), domain=np.arange(3), split=None), "28 pictures in 'images' and 3 labels"),
        (pacs_arrays(images=np.zeros((28, 2, 2, 3))), "0 pictures in 'images' and 28 labels"),
        (pacs_arrays(labels=np.tile(np.arange(1, 8), 4)), "numbers from 1 to 7 for 7 names"),
        (pacs_arrays(labels=np.tile(np.arange(-1, 6), 4)), "numbers from -1 to 5 for 7 names"),
        (
            pacs_arrays(labels=np.arange(28) % 8, class_names=None),
            "found the number 7, expected 0 to 6 for dog, elephant",
        ),
        (
            pacs_arrays(domain=np.arange(28) % 5, domain_names=None),
            "found the number 4, expected 0 to 3 for art_painting",
        ),
        (pacs_arrays(labels=np.array([None] * 28)), "cannot be read as plain arrays"),
        (pacs_arrays(domain_names=np.array(["a", "b", "c", "d"])), "found the domains a, b, c, d"),
        (
            pacs_arrays(domain_names=np.array(["photo", "b", "c", "d"])),
            "none of the domains art_painting, cartoon, sketch",
        ),
        ({"mnist_x_train": np.zeros((2, 4, 4), np.uint8)}, "cannot be read as plain arrays"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, said):
    with pytest.raises(DataError) as error:
        find(PACS, saved(tmp_path / "pacs.npz", arrays))
    assert said in str(error.value) and str(error.value).startswith(str(tmp_path))


def test_a_folder_with_one_npz(tmp_path):
    path = saved(tmp_path / "pacs.npz", pacs_arrays())
    assert find(PACS, tmp_path).root == path


# --------------------------------------------------------------------------------------------------------- real data


REAL = [
    ("pacs", "pacs_32.npz", "npz"),
    ("pacs", "pacs_128.tar", "tar"),
    ("office-home", "officehome_32.npz", "npz"),
    ("office-caltech10", "office_caltech10.tar", "tar"),
    ("digits4", "digits.npz", "npz"),
]


@pytest.mark.parametrize(("name", "file", "kind"), REAL, ids=[file for _, file, _ in REAL])
def test_real_data_has_the_published_counts(name, file, kind):
    home = os.environ.get("FEDSHIFT_DATA")
    if not home or not (path := Path(home) / file).is_file():
        pytest.skip(f"FEDSHIFT_DATA names no folder with {file}")
    source, manifest = SOURCES[name], find(SOURCES[name], path)
    assert manifest.kind == kind and manifest.domains == source.domains
    for domain in source.domains:
        counts = Counter(row.label for row in manifest.of(domain))
        assert tuple(counts[k] for k in range(len(source.classes))) == source.counts[domain]
    splits = Counter((row.domain, row.split) for row in manifest.rows)
    if file == "pacs_32.npz":
        assert [splits[d, "train"] for d in source.domains] == [1840, 2107, 1499, 3531]
        assert [splits[d, "val"] for d in source.domains] == [208, 237, 171, 398]
    if file == "digits.npz":
        assert (splits["usps", "train"], splits["usps", "test"]) == (7291, 2007)
    if file == "officehome_32.npz":
        assert {part for _, part in splits} == {""}  # the file's own split is not the authors'
