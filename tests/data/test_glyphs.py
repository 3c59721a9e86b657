"""The embedded benchmark: the same bytes everywhere, balanced, no leaks, and a cache that survives damage."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshift.core.errors import DataError
from fedshift.data import _looks, glyphs
from fedshift.data._strokes import Dice, blur, enlarge, place, sample, shifted

Made = dict[str, glyphs.Pair]
DICE_A = [327, 497, 99, 245, 945]


@pytest.fixture(scope="session")
def made() -> Made:
    """The benchmark, made once."""
    return glyphs.make()


@pytest.fixture
def ready(made: Made, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """`make` gives the ready benchmark and notes each call."""
    calls: list[int] = []

    def make() -> Made:
        calls.append(1)
        return made

    monkeypatch.setattr(glyphs, "make", make)
    return calls


def cached(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_hash(made: Made) -> None:
    assert glyphs.digest(made) == glyphs.SHA256


def test_digest_sees_one_pixel_one_label_and_the_order(made: Made) -> None:
    images, labels = made["street"]
    pixel, label = images.copy(), labels.copy()
    pixel[7, 0, 3, 3] ^= 1
    label[7] = (label[7] + 1) % 10
    assert glyphs.digest(made | {"street": (pixel, labels)}) != glyphs.SHA256
    assert glyphs.digest(made | {"street": (images, label)}) != glyphs.SHA256
    assert glyphs.digest(dict(reversed(made.items()))) != glyphs.SHA256


@pytest.mark.parametrize("name", glyphs.DOMAINS)
def test_domain(made: Made, name: str) -> None:
    images, labels = made[name]
    assert images.shape == (1500, 3, 32, 32) and images.dtype == np.uint8 and images.flags.c_contiguous
    assert labels.shape == (1500,) and labels.dtype == np.int64 and labels.flags.c_contiguous
    assert np.bincount(labels).tolist() == [150] * len(glyphs.CLASSES)
    assert len(set(labels[:30].tolist())) > 5, "shuffled"
    spread = images.max(axis=(1, 2, 3)).astype(int) - images.min(axis=(1, 2, 3))
    assert spread.min() > 40, "no empty image"


def test_names(made: Made) -> None:
    assert tuple(made) == glyphs.DOMAINS == ("handwritten", "printed", "blended", "scanned", "engraved", "street")
    assert "".join(glyphs.CLASSES) == "0123456789"


def test_no_image_twice(made: Made) -> None:
    pictures = [image.tobytes() for images, _ in made.values() for image in images]
    assert len(set(pictures)) == len(pictures) == 9000


def test_no_source_serves_two_domains() -> None:
    first, _ = _looks._written(first=True)
    rest, _ = _looks._written(first=False)
    assert len(first) == 1500 and len(rest) == 297
    assert not {sample.tobytes() for sample in first} & {sample.tobytes() for sample in rest}
    faces = _looks._arrays("typefaces.npz")
    assert sorted(faces) == sorted(set(glyphs.DOMAINS) - {"handwritten"})
    every = [face.tobytes() for domain in faces.values() for face in domain]
    assert len(set(every)) == len(every)


def test_labels_follow_the_masks() -> None:
    """Without randomness in the look, each image must be nearest to a face of its own class."""
    masks = _looks._typed("printed", Dice("test"))
    faces = _looks._arrays("typefaces.npz")["printed"] / 15.0
    for index in range(0, 1500, 97):
        gaps = np.abs(faces - masks[index]).sum(axis=(2, 3))
        assert np.unravel_index(gaps.argmin(), gaps.shape)[1] == _looks.DIGITS[index] and gaps.min() == 0


def test_dice_never_change() -> None:
    """Raw bits of PCG64 are promised by numpy; a fixed sequence shows that nothing else was mixed in."""
    assert Dice("a").below(1000, 5).tolist() == Dice("a").below(1000, 5).tolist() == DICE_A
    assert Dice("b").below(1000, 5).tolist() != DICE_A
    assert sorted(Dice("a").order(50).tolist()) == list(range(50))


def test_strokes_on_paper() -> None:
    point = np.zeros((1, 32, 32))
    point[0, 10, 20] = 1.0
    assert shifted(point, 2, 1)[0, 11, 22] == 1.0
    assert blur(point)[0, 9:12, 19:22].tolist() == (np.outer([1, 2, 1], [1, 2, 1]) / 16).tolist()
    x, y = np.full((1, 1, 1), 19.75), np.full((1, 1, 1), 10.5)
    assert sample(point, x, y).item() == 0.75 * 0.5
    assert sample(point, x - 99, y).item() == 0.0
    assert enlarge(np.full((2, 5, 5), 0.25)).tolist() == np.full((2, 32, 32), 0.25).tolist()
    still = place(point, Dice("still"), (1.0, 1.0), turn=0.0, slant=0.0, shift=0.0)
    assert still[0, 10].max() > 0.5 and still[0, 13:].max() == 0.0


def test_cache_round_trip(made: Made, ready: list[int], tmp_path: Path) -> None:
    glyphs.load(tmp_path / "new")
    again = glyphs.load(tmp_path / "new")
    assert len(ready) == 1, "the second time from the cache"
    assert cached(tmp_path / "new").name == f"glyphs-{glyphs.SHA256[:12]}.npz", "nothing else is left behind"
    for name, (images, labels) in again.items():
        assert np.array_equal(images, made[name][0]) and np.array_equal(labels, made[name][1])
        assert images.dtype == np.uint8 and labels.dtype == np.int64


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_damaged_cache_is_made_again(ready: list[int], tmp_path: Path, damage: str) -> None:
    glyphs.load(tmp_path)
    file = cached(tmp_path)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    file.write_bytes({"flip": bytes(flipped), "cut": whole[:5000], "empty": b"", "text": b"not numpy"}[damage])
    glyphs.load(tmp_path)
    assert len(ready) == 2
    assert file.read_bytes() == whole, "repaired"


def test_cache_with_other_content_is_made_again(made: Made, ready: list[int], tmp_path: Path) -> None:
    images, labels = made["street"]
    glyphs._write(tmp_path / f"glyphs-{glyphs.SHA256[:12]}.npz", made | {"street": (images[::-1], labels)})
    assert np.array_equal(glyphs.load(tmp_path)["street"][0], images)
    assert len(ready) == 1


def test_cache_that_cannot_be_written(made: Made, ready: list[int], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert glyphs.load(blocked / "cache") is made
    assert glyphs.load(blocked) is made
    assert len(ready) == 2 and blocked.read_text() == "in the way"


def test_kill_while_writing_leaves_no_broken_file(
    ready: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            glyphs.load(tmp_path)
    assert not (tmp_path / f"glyphs-{glyphs.SHA256[:12]}.npz").exists()


def test_full_disk_leaves_nothing_behind(
    made: Made, ready: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert glyphs.load(tmp_path) is made
    assert not list(tmp_path.iterdir())


def test_default_cache(ready: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "named"))
    glyphs.load()
    assert cached(tmp_path / "named").suffix == ".npz"
    monkeypatch.delenv("FEDSHIFT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    glyphs.load()
    assert cached(tmp_path / ".cache" / "fedshift").suffix == ".npz"


def test_other_bytes_are_refused(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = made["street"]
    monkeypatch.setattr(glyphs, "make", lambda: made | {"street": (images ^ 1, labels)})
    with pytest.raises(DataError, match=f"expected {glyphs.SHA256}"):
        glyphs.load(tmp_path)
    assert not list(tmp_path.iterdir()), "nothing wrong is kept"


def test_source(made: Made, ready: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))
    assert glyphs.SOURCE.load is glyphs.dataset
    data = glyphs.dataset()
    assert data.image == (3, 32, 32) and data.classes == glyphs.CLASSES
    assert tuple(domain.name for domain in data.domains) == glyphs.SOURCE.domains == glyphs.DOMAINS
    assert torch.equal(data.domain("scanned").images, torch.from_numpy(made["scanned"][0]))
    assert data.domain("scanned").labels.dtype == torch.int64


def test_contact_sheet(made: Made) -> None:
    sheet = glyphs.contact_sheet(made, per_class=2)
    images, labels = made["printed"]
    first = images[np.flatnonzero(labels == 0)[0]].transpose(1, 2, 0)
    shown = np.asarray(sheet)[16 + 36 : 16 + 36 + 32, 72 : 72 + 32]
    assert np.array_equal(shown, first)
