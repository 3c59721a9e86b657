"""What `verify` finds in small folders made here, and in the real sets where there are some."""

import json
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedshift.core.errors import DataError
from fedshift.data.dataset import Source
from fedshift.data.find import find, find_folder
from fedshift.data.sources import SOURCES
from fedshift.data.store import open_store
from fedshift.data.verify import ALIKE, NEAR, _joined, near_pairs, verify

DATA = os.environ.get("FEDSHIFT_DATA")
SOURCE = Source(
    "toy", "two things, inked and photographed", "made up", "none", ("ink", "photo"),
    classes=("cat", "dog"), counts={"ink": (3, 3), "photo": (3, 3)},
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def picture(seed: int, side: int = 40) -> Image.Image:
    """Smooth noise in colour: a large picture of few bright and dark places."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)


def save(image: Image.Image, root: Path, name: str, **options) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


@pytest.fixture
def root(tmp_path):
    """A whole copy in which no two pictures are alike."""
    files = [f"{d}/{c}/{n}.png" for d in ("ink", "photo") for c in ("cat", "dog") for n in range(3)]
    for seed, name in enumerate(files):
        save(picture(seed), tmp_path / "toy", name)
    return tmp_path / "toy"


def report(root: Path, source: Source | None = SOURCE):
    return verify(find_folder("toy", root), source)


def numbers(copies):
    return (copies.groups, copies.pictures, copies.one_class, copies.conflicts, copies.across_domains)


def test_a_whole_copy(root):
    found = report(root)
    assert found.counts == {"ink": (3, 3), "photo": (3, 3)}
    assert found.problems == found.remarks == ()
    assert [numbers(c) for c in found.copies] == [(0, 0, 0, 0, 0)] * 3
    assert found.looks["ink"].sides == (40, 40, 40)
    assert "problems: none" in found.text()


def test_missing_additional_and_other_pictures(root):
    (root / "ink/dog/0.png").rename(root / "ink/cat/9.png")
    (root / "photo/cat/0.png").unlink()
    save(picture(50), root, "third/cat/0.png")
    assert report(root).problems == (
        "ink: 6 pictures, published are 6 (cat 4 for 3, dog 2 for 3)",
        "photo: 5 pictures, published are 6 (cat 2 for 3)",
        "third: 1 pictures, published are 0",
    )
    assert report(root, None).problems == ()
    only = Source("toy", "", "", "", ("ink",), classes=("cat", "dog"), counts={"ink": 7, "photo": 5})
    assert report(root, only).problems[0] == "ink: 6 pictures, published are 7"


def test_what_cannot_be_decoded(root):
    (root / "ink/cat/0.png").write_bytes((root / "ink/cat/0.png").read_bytes()[:60])
    (root / "ink/cat/1.png").write_bytes(b"")
    found = report(root)
    assert [path for path, _ in found.undecodable] == ["ink/cat/0.png", "ink/cat/1.png"]
    (problem,) = found.problems
    assert "ink/cat/1.png (an empty file)" in problem
    assert found.looks["ink"].pictures == 4


def test_identical_files_in_a_class_across_classes_and_across_domains(root):
    for old, new in (("ink/cat/0", "ink/cat/7"), ("ink/cat/1", "ink/dog/7"), ("ink/cat/2", "photo/cat/7")):
        (root / f"{new}.png").write_bytes((root / f"{old}.png").read_bytes())
    (root / "photo/dog/7.png").write_bytes((root / "ink/cat/1.png").read_bytes())
    exact, same, near = report(root).copies
    assert numbers(exact) == numbers(same) == (3, 7, 2, 1, 2)
    assert numbers(near) == (0, 0, 0, 0, 0)  # only what is not the same in full
    assert exact.examples[0] == ("ink/cat/1.png", "ink/dog/7.png", "photo/dog/7.png")
    (remark,) = report(root).remarks
    assert "3 groups of pictures with identical bytes, 1 with conflicting labels, 2 across domains" in remark


def test_other_bytes_of_the_same_pixels_and_nearly_the_same_pixels(root):
    save(picture(0), root, "ink/dog/7.png", compress_level=0)  # 0 and 1 are cats
    save(picture(1), root, "ink/dog/8.jpg", quality=90, subsampling=0)
    save(picture(1), root, "photo/dog/8.jpg", quality=80, subsampling=0)
    exact, same, near = report(root).copies
    assert numbers(exact) == (0, 0, 0, 0, 0)
    assert numbers(same) == (1, 2, 0, 1, 0)
    assert numbers(near) == (1, 3, 0, 1, 1)


def test_copies_in_two_parts_of_a_split_are_a_problem(tmp_path):
    for seed, name in enumerate(("a/train/x/0.png", "a/train/x/1.png", "a/test/x/2.png")):
        save(picture(seed), tmp_path / "own", name)
    save(picture(0), tmp_path / "own", "a/test/x/3.png")
    save(picture(1), tmp_path / "own", "a/test/x/4.jpg", quality=90, subsampling=0)
    found = report(tmp_path / "own", None)
    assert [c.across_splits for c in found.copies] == [1, 1, 1]
    assert (
        "nearly the same pixels, 0 with conflicting labels, 0 across domains, 1 across the parts" in found.remarks[-1]
    )
    assert found.problems == (
        "1 groups of pictures with identical bytes lie in more than one part of the split",
        "1 groups of pictures with identical pixels lie in more than one part of the split",
    )


def test_files_that_changed_since_the_import(root):
    manifest = find_folder("toy", root)
    verify(manifest, SOURCE)  # the pictures are in the cache from now on
    save(picture(60), root, "ink/cat/0.png")
    (root / "photo/dog/2.png").unlink()
    with pytest.raises(DataError, match=r"2 of 12 pictures are gone or .* \(ink/cat/0.png, photo/dog/2.png\)"):
        verify(manifest, SOURCE)


def test_looks(root):
    save(picture(0).convert("L"), root, "ink/cat/0.png")
    save(picture(1).convert("L").convert("RGB"), root, "ink/cat/1.png")  # grey, stored as colour
    save(Image.new("RGB", (80, 20), "red"), root, "ink/cat/2.png")
    save(Image.new("RGB", (1, 1), "blue"), root, "photo/cat/0.png")
    found = report(root)
    assert (found.looks["ink"].greyscale, found.looks["ink"].flat, found.looks["ink"].sides) == (2, 1, (20, 40, 80))
    assert (found.looks["photo"].greyscale, found.looks["photo"].flat) == (0, 1)
    assert "1 pictures: one pixel wide or high" in found.remarks
    assert "ink: 2 of 6 pictures are greyscale" in found.remarks


def test_json_holds_everything(root):
    (root / "ink/cat/0.png").unlink()
    told = json.loads(report(root).to_json())
    assert told["counts"] == {"ink": [2, 3], "photo": [3, 3]}
    assert told["problems"] == ["ink: 5 pictures, published are 6 (cat 2 for 3)"]
    assert [c["kind"] for c in told["copies"]] == ["identical bytes", "identical pixels", "nearly the same pixels"]


def test_classes_that_a_domain_lacks(root):
    for n in range(3):
        (root / f"ink/dog/{n}.png").unlink()
    assert "ink: no picture of dog" in report(root, None).remarks


def reference(images: torch.Tensor) -> set[tuple[int, int]]:
    """All pairs, each looked at by itself."""
    grids = [np.asarray(i.float().mean(0)).reshape(8, 4, 9, 4).mean((1, 3)) for i in images]
    bits = [grid[:, 1:] - grid[:, :-1] > 2 for grid in grids]
    pixels = [np.asarray(i, np.float64).ravel() for i in images]
    return {
        (a, b)
        for a, b in combinations(range(len(images)), 2)
        if (bits[a] != bits[b]).sum() <= NEAR
        and np.sqrt(((pixels[a] - pixels[b]) ** 2).mean()) <= ALIKE * pixels[a].std(ddof=1)
    }


def test_near_pairs_are_those_of_a_look_at_every_pair():
    dice = np.random.default_rng(0)
    base = np.stack([np.asarray(picture(k).resize((36, 32))) for k in range(12)]).astype(np.float64)
    noisy = [base + dice.normal(0, sigma, base.shape) for sigma in (0, 6, 12, 25)]
    images = torch.from_numpy(np.concatenate(noisy).clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()
    expected = reference(images)
    assert len(expected) > 10
    pairs = near_pairs(images, range(len(images)))
    assert {(min(p), max(p)) for p in pairs} == expected
    assert len(pairs) == len(expected)  # each once, whatever bands it shares


def test_pairs_that_share_a_picture_make_one_group():
    joined = _joined(range(7), [(0, 1), (0, 2), (4, 3), (5, 3), (5, 2)])
    assert len({joined[i] for i in range(6)}) == 1 and joined[6] == 6


needs_data = pytest.mark.skipif(not DATA, reason="FEDSHIFT_DATA names no folder with the real data sets")
REAL = [
    ("pacs", "pacs_128.tar", [2048, 2344, 1670, 3929], 0, 0),
    ("office-home", "officehome_32.npz", [2427, 4365, 4439, 4357], 403, 87),
    ("office-caltech10", "office_caltech10.tar", [958, 1123, 157, 295], 18, 0),
]


@needs_data
@pytest.mark.parametrize(("name", "file", "published", "groups", "conflicts"), REAL)
def test_the_real_sets(name, file, published, groups, conflicts):
    assert DATA
    manifest = find(SOURCES[name], Path(DATA) / file)
    found = verify(manifest, SOURCES[name], store=open_store(manifest, 32, "squash", workers=1))
    assert [sum(n) for n in found.counts.values()] == published
    assert found.problems == found.undecodable == ()
    assert (found.copies[1].groups, found.copies[1].conflicts) == (groups, conflicts)


@needs_data
def test_the_identical_originals_of_office_home_are_found():
    assert DATA
    path = Path(DATA) / "officehome_32.npz"
    manifest = find(SOURCES["office-home"], path)
    with np.load(path) as file:
        original = file["dup_of_md5"]
    sha256 = {row.path: row.sha256 for row in manifest.rows}
    of = {}
    for i, md5 in enumerate(original):
        of.setdefault(md5, set()).add(sha256[f"images/{i}"])
    assert len(original) - len(of) == 412
    assert all(len(pixels) == 1 for pixels in of.values())
