"""Splits, sites, batches and what the network sees of an image."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core import seeds
from fedshift.core.errors import DataError
from fedshift.data.augment import Transform
from fedshift.data.batches import Budget, groups, sizes
from fedshift.data.federation import federate
from fedshift.data.pictures import Resident
from fedshift.data.protocols import Protocol
from fedshift.data.recipes import RECIPES
from fedshift.testing import tiny_data

PROTOCOL = Protocol()
BUDGET = Budget(batch=4, epochs=1, steps=0)
LOOK = Transform(RECIPES["none"], torch.float32)


@given(st.integers(1, 300), st.integers(1, 70))
def test_batches_visit_every_image_once_and_none_is_alone(n, batch):
    parts = sizes(n, batch)
    assert sum(parts) == n and max(parts) <= batch + 1
    if batch > 1 and n > 1:
        assert min(parts) > 1
    order = list(Budget(batch, 2, 0).order(n, torch.Generator().manual_seed(0)))
    assert len(order) == Budget(batch, 2, 0).count(n) == 2 * len(parts)
    assert sorted(torch.cat(order[: len(parts)]).tolist()) == list(range(n))


@given(st.integers(1, 200), st.integers(1, 40), st.floats(0.05, 1.0), st.booleans())
def test_a_sampled_round_uses_its_share_in_every_epoch(n, batch, sample, drop_last):
    budget = Budget(batch, 3, 0, sample, drop_last)
    order = list(budget.order(n, torch.Generator().manual_seed(0)))
    assert len(order) == budget.count(n)
    m = max(1, round(sample * n))
    parts = sizes(m, batch, drop_last)
    epochs = [torch.cat(order[i : i + len(parts)]).tolist() for i in range(0, len(order), len(parts))]
    used = set().union(*map(set, epochs))
    assert len(epochs) == 3 and len(used) <= m and all(len(set(e)) == len(e) == sum(parts) for e in epochs)
    if drop_last and m >= batch:
        assert set(parts) == {batch}
    else:
        assert sum(parts) == m


@given(st.integers(1, 100), st.integers(1, 30), st.integers(1, 40))
def test_a_budget_in_steps_is_kept_exactly_in_whole_batches(n, batch, steps):
    order = list(Budget(batch, 1, steps).order(n, torch.Generator().manual_seed(0)))
    assert len(order) == steps and {len(b) for b in order} == {min(n, batch)}
    for b in order:
        assert len(set(b.tolist())) == len(b)


def pixels(part):
    return part.pictures.take(torch.arange(len(part.labels)))


def test_one_client_per_domain_and_the_rest_unseen():
    data = tiny_data()
    f = federate(data, replace(PROTOCOL, left_out=("domain1",)), 0, BUDGET, LOOK)
    assert [s.name for s in f.train] == [h.site for h in f.test] == ["domain0", "domain2"]
    assert [len(h.labels) for h in f.unseen] == [20]
    for k, domain in ((0, data.domains[0]), (1, data.domains[2])):
        parts = [pixels(f.train[k]), pixels(f.val[k]), pixels(f.test[k])]
        rows = torch.cat(parts).flatten(1).tolist()
        assert sorted(rows) == sorted(domain.images.flatten(1).tolist())


def test_many_clients_per_domain_share_it():
    data = tiny_data()
    f = federate(data, replace(PROTOCOL, clients_per_domain=2), 0, BUDGET, LOOK)
    assert [s.name for s in f.train] == [f"domain{d}-{k}" for d in range(3) for k in range(2)]
    rows = torch.cat([pixels(p) for part in (f.train[:2], f.val[:2], f.test[:2]) for p in part]).flatten(1)
    assert sorted(rows.tolist()) == sorted(data.domains[0].images.flatten(1).tolist())


def test_leaving_a_domain_out_changes_no_other_split():
    data = tiny_data()
    all_, some = (federate(data, replace(PROTOCOL, left_out=g), 0, BUDGET, LOOK) for g in ((), ("domain0",)))
    assert torch.equal(pixels(all_.train[1]), pixels(some.train[0]))


def test_the_union_holds_every_training_image():
    f = federate(tiny_data(), PROTOCOL, 0, BUDGET, LOOK)
    (union,) = f.pooled()
    assert union.examples == sum(s.examples for s in f.train) and union.name == "domain0+domain1+domain2"
    assert torch.equal(pixels(union), torch.cat([pixels(s) for s in f.train]))
    some = torch.randperm(union.examples, generator=torch.Generator().manual_seed(0))[:9]
    assert torch.equal(union.pictures.take(some), pixels(union)[some])
    moved = Resident(union.pictures.arrays, torch.device("cpu")).moved(union.pictures)
    assert torch.equal(moved.take(some), pixels(union)[some])


def test_left_out_must_exist_and_leave_something():
    with pytest.raises(DataError, match="did you mean 'domain1'"):
        federate(tiny_data(), replace(PROTOCOL, left_out=("domain-1",)), 0, BUDGET, LOOK)
    with pytest.raises(DataError, match="found all 3 domains"):
        federate(tiny_data(), replace(PROTOCOL, left_out=("domain0", "domain1", "domain2")), 0, BUDGET, LOOK)


def test_batches_depend_on_the_seed_alone():
    site = federate(tiny_data(), PROTOCOL, 0, BUDGET, Transform(RECIPES["shift"], torch.float32)).train[0]
    one, two, three = (list(site.batches(s)) for s in (5, 5, 6))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(one, two, strict=True))
    assert not all(torch.equal(a.x, b.x) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize("batch", [3, 4, 8, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_round_is_augmented_as_batch_by_batch(batch, dtype):
    """One table for the round, and batches prepared at once, hold what `Transform.train` would draw one by one."""
    look = Transform(RECIPES["domainbed"], dtype)
    site = federate(tiny_data(), PROTOCOL, 0, replace(BUDGET, batch=batch, epochs=3), look).train[0]
    order, looks = seeds.generator(5, "order"), seeds.generator(5, "augment")
    for batch, index in zip(site.batches(5), site.budget.order(site.examples, order), strict=True):
        assert torch.equal(batch.x, look.train(site.pictures.take(index), looks))


def test_batches_prepared_at_once_are_few_and_start_at_a_jitters_first_order():
    assert list(groups([8, 8, 8, 8, 8, 3], 24)) == [[8, 8, 8], [8, 8, 3]]
    assert list(groups([6, 6, 4, 5, 4], 100)) == [[6], [6], [4, 5], [4]]
    assert list(groups([8, 8], 0)) == [[8], [8]] and not list(groups([], 8))


def test_corruptions_are_unseen_sites_of_their_own():
    f = federate(tiny_data(), replace(PROTOCOL, corruptions=("noise",), severities=(1, 5)), 0, BUDGET, LOOK)
    tested = sum(len(h.labels) for h in f.test)
    assert {h.site: len(h.labels) for h in f.unseen} == {"noise-1": tested, "noise-5": tested}
    clean = torch.cat([pixels(h) for h in f.test]).double()
    away = [float((pixels(h).double() - clean).square().mean()) for h in f.unseen]
    assert 0 < away[0] < away[1]


def test_a_client_may_hold_parts_of_several_domains():
    f = federate(tiny_data(), replace(PROTOCOL, domains_per_client=2, clients=3), 0, BUDGET, LOOK)
    assert len(f.train) == 3 and all(len(s.pictures.arrays) == 2 for s in f.train)
    for site in f.train:
        (batch, *_) = site.batches(0)
        assert len(batch.y) == 4
    everything = sum(s.examples for s in f.train) + sum(len(h.labels) for h in (*f.val, *f.test))
    assert everything == 64 and set(f.record["images"]["train"]) == {s.name for s in f.train}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("free", [2**40, 0])
def test_on_a_gpu_batches_are_the_same_whether_or_not_the_pictures_fit(free, monkeypatch):
    f = federate(tiny_data(), PROTOCOL, 0, BUDGET, LOOK)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    moved = f.to(torch.device("cuda", torch.cuda.current_device()))
    assert moved.train[0].pictures.arrays[0].is_cuda == bool(free)
    for a, b in zip(f.train[0].batches(3), moved.train[0].batches(3), strict=True):
        assert b.x.is_cuda and torch.equal(a.x, b.x.cpu()) and torch.equal(a.y, b.y.cpu())


def test_what_pictures_take():
    f = federate(tiny_data(), PROTOCOL, 0, BUDGET, LOOK)
    (union,) = f.pooled()
    assert union.pictures.nbytes == union.examples * 3 * 8 * 8
    assert torch.equal(union.pictures.take(torch.arange(3), torch.device("cpu")), pixels(union)[:3])
