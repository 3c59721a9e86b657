"""Corruption ladders: what each does, that it grows, and that only picture and seed decide."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.errors import ConfigError, DataError
from fedshift.data.corrupt import CORRUPTIONS, SEVERITIES, corrupt


def pictures(n=4, side=32, seed=0):
    """Smooth colours with an edge, not random bytes: JPEG and blur behave on them as on pictures."""
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.randint(20, 236, (n, 3, 6, 6), generator=gen).float()
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bilinear")
    smooth[:, :, side // 3 : side // 2, side // 4 :] = 30
    return smooth.round().to(torch.uint8)


def distance(a, b):
    return float(((a.float() - b.float()) ** 2).mean())


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("side", [28, 32, 64])
def test_each_severity_is_farther_from_the_picture_than_the_one_before(kind, side):
    images = pictures(8, side)
    before = images.clone()
    far = [distance(corrupt(images, kind, s), images) for s in (0, *SEVERITIES)]
    assert far[0] == 0 and all(a < b for a, b in pairwise(far))
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 50), st.integers(1, 5), st.permutations(range(5)))
def test_neither_batch_nor_order_matters(kind, seed, severity, order):
    images = pictures(5, 16)
    whole = corrupt(images, kind, severity, seed)
    assert whole.dtype == torch.uint8 and whole.shape == images.shape
    assert torch.equal(whole[list(order)], corrupt(images[list(order)], kind, severity, seed))
    assert torch.equal(whole, torch.cat([corrupt(images[i : i + 1], kind, severity, seed) for i in range(5)]))


def test_noise_depends_on_the_seed_and_has_its_spread():
    grey = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    one, two = (corrupt(grey, "noise", 2, seed) for seed in (0, 1))
    assert not torch.equal(one, two)
    assert float(one.float().std()) == pytest.approx(0.08 * 255, rel=0.02)
    assert float(one.float().mean()) == pytest.approx(128, abs=0.5)


def flat(value, side=4):
    return torch.tensor(value, dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, side, side).contiguous()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_and_cast_by_hand(severity):
    more, c = 25.5 * severity, 0.12 * severity
    bright = corrupt(flat([0, 100, 250]), "brightness", severity)[0, :, 0, 0].tolist()
    assert bright == pytest.approx([more, min(255, 100 + more), 255], abs=0.5001)
    warm = corrupt(flat([100, 100, 100]), "cast", severity)[0, :, 0, 0].tolist()
    assert warm == pytest.approx([100 * (1 + c / 2), 100, 100 * (1 - c)], abs=0.5001)


def test_contrast_by_hand():
    image = torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 2, 2)
    assert corrupt(image, "contrast", 2)[0, 0, 0].tolist() == [40, 160]  # mean 100, distances times .6


def test_blur_keeps_flat_pictures_and_spreads_a_point_as_its_bell():
    assert torch.equal(corrupt(flat([3, 100, 255], 16), "blur", 5), flat([3, 100, 255], 16))
    point = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    point[:, :, 32, 32] = 255
    sigma = 0.026 * 64
    line = torch.exp(-(torch.arange(-5, 6) ** 2) / (2 * sigma**2))
    bell = torch.outer(line, line) / line.sum() ** 2 * 255
    assert float((corrupt(point, "blur", 3)[0, 0, 27:38, 27:38] - bell).abs().max()) <= 0.51


def test_what_cannot_be_corrupted():
    with pytest.raises(ConfigError, match="did you mean 'noise'"):
        corrupt(pictures(), "noisy", 1)
    with pytest.raises(ConfigError, match="severity of jpeg: found 6, expected 0 to 5"):
        corrupt(pictures(), "jpeg", 6)
    with pytest.raises(DataError, match=r"found float32 \[4, 3, 32, 32\], expected uint8"):
        corrupt(pictures().float(), "jpeg", 1)
