"""Which images a round draws, and shares by accuracy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.drawing import LEAST, divide, draw, hits, hold_out, inverse_shares
from fedshift.core.errors import DataError
from fedshift.methods.fedavg import FedAvg
from fedshift.testing import Case, trajectory

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)
SEED = st.integers(0, 99)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


class Place:
    """A site by its labels alone."""

    name = "a"

    def __init__(self, labels):
        self.labels = labels


@given(LABELS, st.floats(0, 0.99), SEED)
def test_held_out_of_every_class_and_never_its_last(labels, share, seed):
    held = hold_out(labels, share, gen(seed))
    assert len(set(held.tolist())) == len(held)
    for c in labels.unique().tolist():
        n, out = int((labels == c).sum()), int((labels[held] == c).sum())
        assert out == (min(max(1, round(share * n)), n - 1) if share else 0)


@given(LABELS, st.lists(st.integers(0, 20), min_size=5, max_size=5).map(torch.tensor), st.integers(0, 70), SEED)
def test_a_draw_keeps_to_what_is_wanted_and_to_what_there_is(labels, want, least, seed):
    pool = torch.arange(len(labels))[::2]
    rows = draw(labels, pool, want, gen(seed), least)
    assert len(set(rows.tolist())) == len(rows) and set(rows.tolist()) <= set(pool.tolist())
    there = torch.bincount(labels[pool], minlength=5)
    capped = torch.minimum(want, there)
    assert (torch.bincount(labels[rows], minlength=5) >= capped).all()
    assert len(rows) == max(int(capped.sum()), min(least, len(pool)))


def test_a_draw_is_even_within_a_class():
    """Two of four images of a class, and one of three of another: each is drawn equally often."""
    labels, times = torch.tensor([0, 1, 0, 1, 0, 1, 0]), torch.zeros(7)
    for seed in range(600):
        times[draw(labels, torch.arange(7), torch.tensor([2, 1]), gen(seed))] += 1
    assert (times[labels == 0] - 300).abs().max() < 60 and (times[labels == 1] - 200).abs().max() < 60


@given(LABELS, st.lists(st.integers(0, 20), min_size=5, max_size=5).map(torch.tensor), st.booleans(), SEED)
def test_what_trains_does_not_measure(labels, want, fixed, seed):
    once = gen(7) if fixed else None
    try:
        train, held = divide(Place(labels), want, 0, 0.2, gen(seed), once)
    except DataError:
        assert len(labels) < 3 or (fixed and len(labels) - len(labels.unique()) < 2)
        return
    assert len(train) >= 2 and len(held) >= 1 and not set(train.tolist()) & set(held.tolist())
    assert fixed or len(held) == max(1, round(0.2 * (len(train) + len(held))))
    assert len(train) + (0 if fixed else len(held)) >= min(LEAST, len(labels) - (len(held) if fixed else 0))


def test_what_is_held_out_once_stays_so_and_what_is_redrawn_does_not():
    site, want = Place(torch.arange(60) % 3), torch.tensor([6, 6, 6])
    fixed = [divide(site, want, 0, 0.2, gen(seed), gen(9)) for seed in range(5)]
    assert all(torch.equal(held, fixed[0][1]) for _, held in fixed)
    assert any(not torch.equal(train, fixed[0][0]) for train, _ in fixed)
    redrawn = [divide(site, want, 0, 0.2, gen(seed), None) for seed in range(5)]
    trained = {row for train, _ in redrawn for row in train.tolist()}
    assert trained & {row for _, held in redrawn for row in held.tolist()}  # the release's optimism


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(lambda a: torch.tensor(a, dtype=torch.float64)))
@settings(max_examples=50)
def test_lower_accuracy_never_gets_a_smaller_share(accuracy):
    shares = inverse_shares(accuracy)
    assert float(shares.sum()) == pytest.approx(1, abs=1e-12) and bool((shares >= 0).all())
    order = accuracy.argsort()
    assert bool((shares[order].diff() <= 1e-15).all())


def test_shares_on_paper():
    a = torch.tensor([0.5, 0.25, -1.0], dtype=torch.float64)
    assert torch.allclose(inverse_shares(a), torch.tensor([1 / 3, 2 / 3, 0.0], dtype=torch.float64))
    assert torch.equal(inverse_shares(torch.tensor([-1.0, -1.0])), torch.zeros(2))
    zero = inverse_shares(torch.tensor([0.0, 0.01, 1.0], dtype=torch.float64))  # zero counts as 1 %
    assert torch.allclose(zero, torch.tensor([100.0, 100.0, 1.0], dtype=torch.float64) / 201)


def test_hits_are_counted_by_class():
    setup = Case(FedAvg()).setup(rounds=1)
    model, site = next(trajectory(setup)).server.model, setup.sites[0]
    rows = torch.tensor([0, 3, 4, 9])
    right, seen = hits(setup.task, model, site.look(rows))
    answers = [int(setup.task.net(model, b.x, train=False).logits.argmax()) for r in rows for b in site.look(r[None])]
    for c in range(3):
        mine = [a for a, r in zip(answers, rows, strict=True) if int(site.labels[r]) == c]
        assert int(seen[c]) == len(mine) and int(right[c]) == mine.count(c)


def test_too_few_images_are_one_sentence():
    with pytest.raises(DataError, match=r"site a: found 2 images, of which 2 train and 0 measure .*, expected two and"):
        divide(Place(torch.tensor([0, 1])), torch.ones(2, dtype=torch.int64), 0, 0.2, gen(), gen())
