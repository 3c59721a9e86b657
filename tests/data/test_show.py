"""Contact sheets, and distances between domains that are known on paper."""

import math

import numpy as np
import pytest
import torch

from fedshift.data import Dataset, Domain
from fedshift.data.distance import distances, frechet, proxy, statistics
from fedshift.data.show import contact_sheet, counts


def gaussian(n: int, mean, sigma, seed: int) -> torch.Tensor:
    """Points whose mean and covariance are exactly those, up to rounding."""
    x = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x.T.cov(correction=0))
    return x @ (vectors * values.rsqrt()) @ vectors.T * torch.tensor(sigma) + torch.tensor(mean)


def test_frechet_of_gaussians():
    a = gaussian(500, (0.0, 0.0), (1.0, 1.0), 0)
    assert frechet(a, gaussian(400, (3.0, 4.0), (1.0, 1.0), 1)) == pytest.approx(5)
    assert frechet(a, gaussian(400, (0.0, 0.0), (4.0, 5.0), 1)) == pytest.approx(5)  # ((4 - 1)^2 + (5 - 1)^2)^1/2
    assert frechet(a, a) == pytest.approx(0, abs=1e-6)


def test_frechet_where_covariances_do_not_commute():
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.double) / math.sqrt(2)
    a = gaussian(500, (0.0, 0.0), (1.0, 3.0), 0)
    b = gaussian(400, (0.0, 0.0), (1.0, 3.0), 1) @ turn.T
    # tr(S T)^1/2 from the eigenvalues of S T, with S = diag(1, 9) and T = [[5, -4], [-4, 5]]
    roots = np.sqrt(np.linalg.eigvals(np.array([[5.0, -4.0], [-36.0, 45.0]]))).sum()
    assert frechet(a, b) == pytest.approx(math.sqrt(20 - 2 * roots))


def test_proxy_distance_of_the_same_the_overlapping_and_the_distant():
    def points(n, shift, seed):
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
        x[:, 0] += shift
        return x

    a = points(2000, 0, 0)
    assert proxy(a, points(2000, 0, 1)) < 0.12
    # Two Gaussians two deviations apart: the best linear rule errs with probability Phi(-1).
    assert proxy(a, points(2000, 2, 1)) == pytest.approx(2 - 4 * 0.5 * math.erfc(1 / math.sqrt(2)), abs=0.08)
    assert proxy(a, points(500, 2, 1)) == pytest.approx(2 - 4 * 0.5 * math.erfc(1 / math.sqrt(2)), abs=0.12)  # balanced
    assert proxy(a, points(2000, 20, 1)) == 2
    assert math.isnan(proxy(a, a[:1]))


def test_the_proxy_distance_is_not_fooled_by_learning_by_heart():
    dice = torch.Generator().manual_seed(0)
    found = [proxy(*torch.randn(2, 24, 20, generator=dice), seed=k) for k in range(10)]
    assert sum(found) / 10 < 0.6  # 2 on the pictures that it was trained on


def dataset() -> Dataset:
    dice = torch.Generator().manual_seed(0)

    def domain(name, low, high, labels):
        return Domain(
            name,
            torch.randint(low, high, (len(labels), 3, 8, 8), generator=dice, dtype=torch.uint8),
            torch.tensor(labels),
        )

    return Dataset(
        "toy",
        ("cat", "dog"),
        (
            domain("dim", 0, 60, [0] * 30 + [1] * 10),
            domain("dull", 0, 60, [0] * 40),
            domain("bright", 150, 255, [1] * 30),
        ),
    )


def test_distances_of_domains():
    seen = []
    found = {d.name: d for d in distances(dataset(), progress=lambda *now: seen.append(now))}
    assert list(found) == ["Frechet", "proxy A", "labels"] and seen[-1] == (3, 3)
    for measure in found.values():
        matrix = np.array(measure.matrix)
        assert (matrix == matrix.T).all() and (matrix.diagonal() == 0).all()
        assert measure.definition.endswith(".") and measure.matrix[0][1] < measure.matrix[0][2]
    assert found["labels"].matrix[0] == pytest.approx((0, 0.25, 0.75))
    assert found["proxy A"].matrix[0][2] == 2
    assert distances(dataset()) == distances(dataset())


def test_statistics_of_plain_pictures():
    red = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    red[:, 0] = 255
    told = statistics(red)[0].tolist()
    assert told[:8] == pytest.approx([1, 0, 0, 0, 0, 0, 1, 0]) and told[8:] == pytest.approx([0] * 7)
    stripes = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    stripes[..., ::2] = 255
    told = statistics(stripes)[0].tolist()
    assert told[:8] == pytest.approx([0.5] * 6 + [0, 0])
    assert told[8:] == pytest.approx([0.5, 0, 1, 0, 0, 0, 0])  # white, then down and across at three scales
    assert statistics(torch.zeros(2, 3, 1, 1, dtype=torch.uint8)).isfinite().all()


def test_a_contact_sheet_shows_what_the_seed_chose():
    toy = dataset()
    sheet = contact_sheet(toy, per_class=2, seed=1)
    assert sheet.tobytes() == contact_sheet(toy, per_class=2, seed=1).tobytes()
    assert sheet.tobytes() != contact_sheet(toy, per_class=2, seed=2).tobytes()
    colours = {colour for _, colour in sheet.getcolors(1 << 24)}
    assert (0xEE, 0xEE, 0xEE) in colours  # dull has no dog
    pixels = np.asarray(sheet)
    shown = [
        bool((np.lib.stride_tricks.sliding_window_view(pixels, (8, 8, 3))[:, :, 0] == i.permute(1, 2, 0).numpy())
             .all((2, 3, 4)).any())
        for i in toy.domain("bright").images
    ]  # fmt: skip
    assert sum(shown) == 2


def test_a_contact_sheet_of_grey_pictures_and_names_in_any_language():
    images = torch.full((2, 1, 28, 28), 9, dtype=torch.uint8)
    sheet = contact_sheet(Dataset("d", ("größe", "犬"), (Domain("é", images, torch.tensor([0, 1])),)))
    assert (9, 9, 9) in {colour for _, colour in sheet.getcolors(1 << 24)}


def test_counts():
    assert counts(dataset()) == {"dim": [30, 10], "dull": [40, 0], "bright": [0, 30]}
