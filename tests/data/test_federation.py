"""Splits, sites, batches and what the network sees of an image."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core import seeds
from fedshift.core.errors import DataError
from fedshift.data.batches import Budget, sizes
from fedshift.data.federation import Protocol, federate
from fedshift.data.split import at_most, shares, stratified
from fedshift.data.transform import Transform, shifted
from fedshift.testing import tiny_data

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(torch.tensor)
PROTOCOL = Protocol(left_out=(), clients_per_domain=1, limit=0, val=0.1, test=0.2, seed=0)
BUDGET = Budget(batch=4, epochs=1, steps=0)
LOOK = Transform("half", "none", torch.float32)


@given(LABELS, st.floats(0, 0.5), st.floats(0, 0.49), st.integers(0, 9))
def test_a_split_is_complete_disjoint_stratified_and_repeatable(labels, val, test, seed):
    split = stratified(labels, val, test, seed)
    assert torch.cat(split).sort().values.tolist() == list(range(len(labels)))
    for a, b in zip(split, stratified(labels, val, test, seed), strict=True):
        assert torch.equal(a, b)
    for c in labels.unique():
        n = int((labels == c).sum())
        assert abs(int((labels[split.test] == c).sum()) - test * n) <= 1
        assert int((labels[split.train] == c).sum()) >= 1


@given(LABELS, st.integers(1, 7), st.integers(0, 9))
def test_shares_are_complete_disjoint_and_even(labels, pieces, seed):
    dealt = shares(torch.arange(len(labels)), labels, pieces, seed)
    assert torch.cat(dealt).sort().values.tolist() == list(range(len(labels)))
    counts = [len(d) for d in dealt]
    assert max(counts) - min(counts) <= 1
    for c in labels.unique():
        per = [int((labels[d] == c).sum()) for d in dealt]
        assert max(per) - min(per) <= 1


@given(st.integers(1, 300), st.integers(1, 70))
def test_batches_visit_every_image_once_and_none_is_alone(n, batch):
    parts = sizes(n, batch)
    assert sum(parts) == n and max(parts) <= batch + 1
    if batch > 1 and n > 1:
        assert min(parts) > 1
    order = list(Budget(batch, 2, 0).order(n, torch.Generator().manual_seed(0)))
    assert len(order) == Budget(batch, 2, 0).count(n) == 2 * len(parts)
    assert sorted(torch.cat(order[: len(parts)]).tolist()) == list(range(n))


@given(st.integers(1, 100), st.integers(1, 30), st.integers(1, 40))
def test_a_budget_in_steps_is_kept_exactly_in_whole_batches(n, batch, steps):
    order = list(Budget(batch, 1, steps).order(n, torch.Generator().manual_seed(0)))
    assert len(order) == steps and {len(b) for b in order} == {min(n, batch)}
    for b in order:
        assert len(set(b.tolist())) == len(b)


def test_at_most():
    index = torch.arange(10)
    assert torch.equal(at_most(index, 0, 1), index) and torch.equal(at_most(index, 20, 1), index)
    some = at_most(index, 4, 1)
    assert len(set(some.tolist())) == 4 and torch.equal(some, at_most(index, 4, 1))


def pixels(part):
    return part.pictures.take(torch.arange(len(part.labels)))


def test_one_client_per_domain_and_the_rest_unseen():
    data = tiny_data()
    f = federate(data, replace(PROTOCOL, left_out=("domain1",)), BUDGET, LOOK)
    assert [s.name for s in f.train] == [h.site for h in f.test] == ["domain0", "domain2"]
    assert [len(h.labels) for h in f.unseen] == [20]
    for k, domain in ((0, data.domains[0]), (1, data.domains[2])):
        parts = [pixels(f.train[k]), pixels(f.val[k]), pixels(f.test[k])]
        rows = torch.cat(parts).flatten(1).tolist()
        assert sorted(rows) == sorted(domain.images.flatten(1).tolist())


def test_many_clients_per_domain_share_it():
    data = tiny_data()
    f = federate(data, replace(PROTOCOL, clients_per_domain=2), BUDGET, LOOK)
    assert [s.name for s in f.train] == [f"domain{d}-{k}" for d in range(3) for k in range(2)]
    rows = torch.cat([pixels(p) for part in (f.train[:2], f.val[:2], f.test[:2]) for p in part]).flatten(1)
    assert sorted(rows.tolist()) == sorted(data.domains[0].images.flatten(1).tolist())


def test_leaving_a_domain_out_changes_no_other_split():
    data = tiny_data()
    all_, some = (federate(data, replace(PROTOCOL, left_out=g), BUDGET, LOOK) for g in ((), ("domain0",)))
    assert torch.equal(pixels(all_.train[1]), pixels(some.train[0]))


def test_the_union_holds_every_training_image():
    f = federate(tiny_data(), PROTOCOL, BUDGET, LOOK)
    (union,) = f.pooled()
    assert union.examples == sum(s.examples for s in f.train) and union.name == "domain0+domain1+domain2"
    assert torch.equal(pixels(union), torch.cat([pixels(s) for s in f.train]))
    some = torch.randperm(union.examples, generator=torch.Generator().manual_seed(0))[:9]
    assert torch.equal(union.pictures.take(some), pixels(union)[some])
    assert torch.equal(union.pictures.gathered(torch.device("cpu")).take(some), pixels(union)[some])


def test_left_out_must_exist_and_leave_something():
    with pytest.raises(DataError, match="did you mean 'domain1'"):
        federate(tiny_data(), replace(PROTOCOL, left_out=("domain-1",)), BUDGET, LOOK)
    with pytest.raises(DataError, match="found all 3 domains"):
        federate(tiny_data(), replace(PROTOCOL, left_out=("domain0", "domain1", "domain2")), BUDGET, LOOK)


def test_batches_depend_on_the_seed_alone():
    site = federate(tiny_data(), PROTOCOL, BUDGET, Transform("half", "shift", torch.float32)).train[0]
    one, two, three = (list(site.batches(s)) for s in (5, 5, 6))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(one, two, strict=True))
    assert not all(torch.equal(a.x, b.x) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize(
    ("how", "black", "white"),
    [("half", -1.0, 1.0), ("none", 0.0, 1.0), ("imagenet", -0.485 / 0.229, (1 - 0.485) / 0.229)],
)
def test_normalisation(how, black, white):
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    x = Transform(how, "none", torch.float64).test(images)
    assert float(x[0, 0, 0, 0]) == pytest.approx(black) and float(x[1, 0, 0, 0]) == pytest.approx(white)
    assert images[1, 0, 0, 0] == 255  # the stored image stays


def test_shift_moves_whole_images_and_repeats_edges():
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(40, 3, 8, 8)
    moved = shifted(image, seeds.generator(0, "x"))
    seen = set()
    for m in moved[:, 0]:
        found = [
            (dy, dx)
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if torch.equal(m, image[0, 0][(torch.arange(8) + dy).clamp(0, 7)][:, (torch.arange(8) + dx).clamp(0, 7)])
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) == 9 and moved.shape == image.shape
