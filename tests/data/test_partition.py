"""Every partition is complete, disjoint, repeatable, and knows no order of domains."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.errors import DataError
from fedshift.data import partition as p

SEEDS = st.integers(0, 9)
FAST = settings(max_examples=25, deadline=None)


@st.composite
def label_sets(draw, least=8, most=50, domains=(1, 4)):
    """Labels by domain; names in an order that is not the alphabet's."""
    names = ["sketch", "art", "photo", "cartoon"][: draw(st.integers(*domains))]
    classes = draw(st.integers(1, 4))
    return {
        name: torch.tensor(draw(st.lists(st.integers(0, classes - 1), min_size=least, max_size=most))) for name in names
    }


def everything(labels):
    return {name: torch.arange(len(values)) for name, values in labels.items()}


def homes(labels):
    return {name: {name: rows} for name, rows in everything(labels).items()}


def turned(mapping):
    return dict(reversed(mapping.items()))


def plain(deal):
    return {who: {name: rows.tolist() for name, rows in held.items()} for who, held in deal.items()}


def assert_partition(holdings, labels):
    """Complete and disjoint: each row of each domain exactly once."""
    rows = p.union(holdings)
    assert {n: r.sort().values.tolist() for n, r in rows.items()} == {n: list(range(len(v))) for n, v in labels.items()}


def classes_of(rows, labels, classes=5):
    return torch.bincount(torch.cat([labels[n][r] for n, r in rows.items()]), minlength=classes)


def test_shares_by_largest_remainder():
    assert p.apportion(torch.tensor([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert p.apportion(torch.tensor([1.0, 0.0, 1.0]), 3).tolist() == [2, 0, 1]
    assert p.apportion(torch.ones(4), 0).tolist() == [0, 0, 0, 0]


@FAST
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(0, 500))
def test_shares_sum_up_and_are_right_to_within_one(weights, total):
    sizes = p.apportion(torch.tensor(weights), total)
    exact = torch.tensor(weights).double() / torch.tensor(weights).double().sum() * total
    assert int(sizes.sum()) == total and float((sizes - exact).abs().max()) < 1


@FAST
@given(st.lists(st.integers(0, 3), max_size=90), st.lists(st.integers(0, 40), min_size=1, max_size=5), SEEDS)
def test_spread_has_exact_sizes_and_every_stratum_in_proportion(strata, sizes, seed):
    sizes.append(max(0, len(strata) - sum(sizes)))
    strata = torch.tensor((strata + [0] * sum(sizes))[: sum(sizes)], dtype=torch.int64)
    piece = p.spread(strata, sizes, torch.Generator().manual_seed(seed))
    assert torch.bincount(piece, minlength=len(sizes)).tolist() == sizes
    for s, k in product(strata.unique().tolist(), range(len(sizes))):
        here = int((strata == s).sum())
        assert abs(int((piece[strata == s] == k).sum()) - here * sizes[k] / len(strata)) < 1 + len(sizes) / 2


@FAST
@given(label_sets(), st.integers(1, 6), SEEDS)
def test_clients_of_a_domain_share_it_class_by_class(labels, clients, seed):
    plan = p.per_domain(labels, clients)
    deal = p.dealt(homes(labels), labels, plan, p.Skew(), 1, seed)
    assert_partition(deal.values(), labels)
    assert plain(deal) == plain(p.dealt(turned(homes(labels)), turned(labels), plan, p.Skew(), 1, seed))
    for name in labels:
        mine = [deal[c] for c in plan if name in plan[c]]
        assert all(set(held) == {name} for held in mine)
        per_class = torch.stack([classes_of(held, labels) for held in mine])
        assert int((per_class.max(0).values - per_class.min(0).values).max()) <= 1
        sizes = per_class.sum(1)
        assert int(sizes.max() - sizes.min()) <= 1


def test_names_of_clients():
    assert p.per_domain(["b", "a"]) == {"a": {"a": 0}, "b": {"b": 0}}
    assert p.per_domain(["a"], 2) == {"a-0": {"a": 0}, "a-1": {"a": 1}}


def test_leave_one_out_lists_each_case():
    assert p.leave_one_out(["b", "a", "c"]) == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}


@pytest.mark.parametrize(("clients", "each"), [*product(range(2, 13), (1, 2, 3))])
@pytest.mark.parametrize("sizes", [{"p": 167, "a": 204, "c": 234}, {"a": 60, "b": 61, "c": 62, "d": 63, "e": 64}])
def test_hfedf_allocation(clients, each, sizes):
    labels = {name: torch.arange(n) % 3 for name, n in sizes.items()}
    if clients * each < len(sizes):
        with pytest.raises(DataError, match="every domain has an owner"):
            p.allocation(sizes, clients, each, 0)
        return
    for seed in range(3):
        plan = p.allocation(sizes, clients, each, seed)
        assert plan == p.allocation(turned(sizes), clients, each, seed)
        assert len(plan) == clients and all(len(held) == each for held in plan.values())
        deal = p.dealt(homes(labels), labels, plan, p.Skew(), 1, seed)
        assert_partition(deal.values(), labels)
        assert all(len(held) == each for held in deal.values())
        pieces = {name: sum(name in held for held in plan.values()) for name in sizes}
        least, more = divmod(clients * each, len(sizes))
        assert sorted(pieces.values()) == [least] * (len(sizes) - more) + [least + 1] * more
        large = sorted(sizes, key=sizes.get)[len(sizes) - more :]
        assert all(pieces[name] == least + 1 for name in large)


def test_hfedf_allocation_of_more_domains_than_there_are():
    with pytest.raises(DataError, match="found 4 for 5 clients and 3 domains, expected at most 3"):
        p.allocation({"a": 9, "b": 9, "c": 9}, 5, 4, 0)


def test_hfedf_allocation_differs_by_seed():
    plans = [p.allocation({"a": 9, "b": 9, "c": 9}, 3, 1, seed) for seed in range(60)]
    assert len({tuple(tuple(held) for held in plan.values()) for plan in plans}) == 6  # all orders of three


def test_which_domains_come_together_differs_by_seed():
    plans = [p.allocation(dict.fromkeys("abcd", 9), 4, 2, seed) for seed in range(60)]
    assert len({frozenset(tuple(sorted(held)) for held in plan.values()) for plan in plans}) == 3  # pairings of four


SKEWS = [
    p.Skew(0.1),
    p.Skew(100.0),
    p.Skew(0.0, "dirichlet", 0.5),
    p.Skew(0.0, "power", 1.5),
    p.Skew(0.3, "power", 1.0),
    p.Skew(1e-6, "dirichlet", 0.05),
]


@pytest.mark.parametrize("skew", SKEWS)
@FAST
@given(labels=label_sets(), clients=st.integers(1, 4), least=st.integers(1, 2), seed=SEEDS)
def test_skewed_clients_partition_their_domain_and_none_is_too_small(skew, labels, clients, least, seed):
    plan = p.per_domain(labels, clients)
    deal = p.dealt(homes(labels), labels, plan, skew, least, seed)
    assert_partition(deal.values(), labels)
    assert min(map(p.count, deal.values())) >= least
    assert plain(deal) == plain(p.dealt(turned(homes(labels)), turned(labels), plan, skew, least, seed))


@pytest.mark.parametrize("seed", range(3))
def test_small_alpha_skews_labels_and_a_large_one_does_not(seed):
    labels = {"a": torch.arange(1000) % 5}
    spreads = []
    for alpha in (0.05, 1.0, 1e4):
        deal = p.dealt(homes(labels), labels, p.per_domain(labels, 4), p.Skew(alpha), 1, seed)
        shares = torch.stack([classes_of(held, labels) for held in deal.values()]) / 200
        spreads.append(float(shares.std(0).mean()))
    assert spreads[0] > spreads[1] > spreads[2] and spreads[0] > 0.35 and spreads[2] < 0.01


def test_a_power_law_of_sizes_keeps_the_classes_even():
    labels = {"a": torch.arange(1100) % 5}
    deal = p.dealt(homes(labels), labels, p.per_domain(labels, 3), p.Skew(0, "power", 1.0), 1, 0)
    assert sorted(map(p.count, deal.values())) == [200, 300, 600]  # 1 : 1/2 : 1/3
    for held in deal.values():
        per_class = classes_of(held, labels)
        assert int(per_class.max() - per_class.min()) <= 2


def test_the_skew_of_labels_is_the_same_in_training_and_test():
    labels = {"a": torch.arange(2000) % 5}
    halves = {"a": {"a": torch.arange(1000)}}, {"a": {"a": torch.arange(1000, 2000)}}
    plan, skew = p.per_domain(labels, 3), p.Skew(0.2, "dirichlet", 1.0)
    train = p.dealt(halves[0], labels, plan, skew, 0, 4, "train")
    test = p.dealt(halves[1], labels, plan, skew, 0, 4, "test")
    for client in plan:
        assert int((classes_of(train[client], labels) - classes_of(test[client], labels)).abs().max()) <= 1


def test_filling_up_takes_from_the_commonest_class_of_the_largest():
    labels = {"a": torch.tensor([0] * 6 + [1] * 3)}
    one, two = p.cut(everything(labels), labels, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 2, 0)
    assert classes_of(one, labels, 2).tolist() == [4, 3] and classes_of(two, labels, 2).tolist() == [2, 0]


def test_too_few_pictures_for_the_clients():
    labels = {"a": torch.zeros(5, dtype=torch.int64)}
    with pytest.raises(DataError, match="domain a: found 5 training images for 3 clients, expected at least 2"):
        p.dealt(homes(labels), labels, p.per_domain(labels, 3), p.Skew(), 2, 0)


@FAST
@given(label_sets(domains=(2, 4)), st.floats(0, 1), SEEDS)
def test_mixing_is_a_partition_that_keeps_all_sizes(labels, share, seed):
    deal = p.mixed(homes(labels), labels, share, seed)
    assert_partition(deal.values(), labels)
    assert {home: p.count(rows) for home, rows in deal.items()} == {n: len(v) for n, v in labels.items()}
    assert plain(deal) == plain(p.mixed(turned(homes(labels)), turned(labels), share, seed))


def test_mixing_from_nothing_to_everything():
    labels = {"a": torch.arange(300) % 3, "b": torch.arange(300) % 3, "c": torch.arange(600) % 3}
    own = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        deal = p.mixed(homes(labels), labels, share, 0)
        own.append(len(deal["a"]["a"]))
        per_class = classes_of(deal["c"], labels, 3)
        assert int(per_class.max() - per_class.min()) <= 4  # what is given is as mixed as what is got
    assert own == pytest.approx(
        [300, 243.75, 187.5, 131.25, 75], abs=1
    )  # own kept, and a quarter of what was given comes back
    for rows in deal.values():  # at 1: the mix of the whole, in domains and in classes
        per_domain = torch.tensor([len(rows[n]) for n in "abc"]) / p.count(rows)
        assert torch.allclose(per_domain, torch.tensor([0.25, 0.25, 0.5]), atol=0.01)
        per_class = classes_of(rows, labels, 3) / p.count(rows)
        assert torch.allclose(per_class, torch.full((3,), 1 / 3), atol=0.01)


@FAST
@given(label_sets(), st.floats(0, 0.5), st.floats(0, 0.49), SEEDS)
def test_a_split_is_complete_stratified_and_exact(labels, val, test, seed):
    content = {n: torch.arange(len(v)) + 1000 * i for i, (n, v) in enumerate(labels.items())}
    parts = p.split(everything(labels), labels, content, val, test, seed)
    assert_partition(parts.values(), labels)
    again = p.split(everything(turned(labels)), turned(labels), turned(content), val, test, seed)
    assert plain(parts) == plain(again)
    for name, values in labels.items():
        per_class = {k: torch.bincount(values[parts[k].get(name, [])], minlength=4) for k in parts}
        whole = torch.bincount(values, minlength=4)
        assert bool((per_class["train"][whole > 0] > 0).all())
        for k, share in (("val", val), ("test", test)):
            assert abs(int(per_class[k].sum()) - share * len(values)) <= 0.5 + 4 * int(
                whole.min() < 4 or whole.max() < 8
            )
            assert float((per_class[k] - share * whole).abs().max()) < 3


def test_the_sizes_of_the_digits_protocol():
    labels = {"usps": torch.arange(9298) % 10, "mnist": torch.arange(70000) % 10}
    content = {"usps": torch.arange(9298), "mnist": torch.arange(70000) + 9298}
    parts = p.split(everything(labels), labels, content, 0.0, 0.2, 0)
    assert [len(parts["test"][n]) for n in ("usps", "mnist")] == [1860, 14000]
    train, val = p.truncated({n: {n: rows} for n, rows in parts["train"].items()}, content, 0.1, 0.0, 0)
    assert [p.count(rows) for rows in train.values()] == [743, 743] and not any(map(p.count, val.values()))
    assert all(int((classes_of(rows, labels, 10) > 40).sum()) == 10 for rows in train.values())  # shuffled first


@FAST
@given(label_sets(domains=(2, 3)), st.integers(0, 12), SEEDS)
def test_copies_lie_in_one_part(labels, kinds, seed):
    content = {n: torch.arange(len(v)) % (kinds + 5) for n, v in labels.items()}
    parts = p.split(everything(labels), labels, content, 0.2, 0.3, seed)
    assert_partition(parts.values(), labels)
    again = p.split(everything(turned(labels)), labels, content, 0.2, 0.3, seed)
    assert plain(parts) == plain(again)
    where = {k: {c for n, rows in part.items() for c in content[n][rows].tolist()} for k, part in parts.items()}
    assert not where["train"] & where["val"] and not where["train"] & where["test"] and not where["val"] & where["test"]


def test_official_lists_are_kept_and_what_they_lack_is_taken_from_training():
    labels = {"a": torch.arange(20) % 2}
    lists = {"a": torch.tensor([0] * 12 + [2] * 6 + [-1] * 2)}
    parts = p.official(everything(labels), labels, lists, 0.25, 0.5, 0)
    assert parts["test"]["a"].tolist() == list(range(12, 18))  # the list, whatever share was asked for
    assert [len(parts[k]["a"]) for k in ("train", "val")] == [8, 4]  # round(.25 * 18) = 4
    assert sorted(torch.cat([parts[k]["a"] for k in parts]).tolist()) == list(range(18))


def test_settling_takes_copies_out_of_the_later_part():
    content = {"a": torch.tensor([1, 2, 3]), "b": torch.tensor([3, 4, 1])}
    one, two = p.settle([{"b": torch.tensor([0, 1])}, {"a": torch.arange(3), "b": torch.tensor([2])}], content)
    assert plain({"": one, "-": two}) == {"": {"b": [0, 1]}, "-": {"a": [0, 1], "b": [2]}}


@FAST
@given(label_sets(domains=(2, 4)), st.floats(0.1, 0.6), st.floats(0, 0.4), SEEDS)
def test_truncated_clients_are_equal_and_hold_nothing_twice(labels, share, val, seed):
    content = {n: torch.arange(len(v)) + 1000 * i for i, (n, v) in enumerate(labels.items())}
    train, tail = p.truncated(homes(labels), content, share, val, seed)
    n = min(map(len, labels.values()))
    assert {p.count(rows) for rows in train.values()} == {int(share * n + 1e-9)}
    assert {p.count(rows) for rows in tail.values()} == {int(val * n + 1e-9)}
    for name in labels:
        rows = torch.cat([part[name].get(name, torch.empty(0)) for part in (train, tail)]).tolist()
        assert len(set(rows)) == len(rows)
    assert plain(train) == plain(p.truncated(turned(homes(labels)), content, share, val, seed)[0])


def test_a_copy_of_a_validation_picture_does_not_train():
    labels = {"a": torch.zeros(40, dtype=torch.int64), "b": torch.zeros(40, dtype=torch.int64)}
    content = {"a": torch.arange(40) // 2, "b": torch.arange(40) // 2}  # all twice in each domain
    train, tail = p.truncated(homes(labels), content, 0.2, 0.3, 0)
    held = {int(content[n][r]) for rows in tail.values() for n in rows for r in rows[n]}
    assert not held & {int(content[n][r]) for rows in train.values() for n in rows for r in rows[n]}
    assert {p.count(rows) for rows in train.values()} == {8} and {p.count(rows) for rows in tail.values()} == {12}


def test_shots_are_each_clients_own_and_leave_the_scored_part():
    labels = {"a": torch.arange(30) % 3, "b": torch.arange(20) % 2}
    held, left = p.shots(everything(labels), labels, ["x", "y"], 3, 0)
    assert_partition([*held.values(), left], labels)
    assert [{n: len(r) for n, r in rows.items()} for rows in held.values()] == [{"a": 3, "b": 3}] * 2
    assert plain(held) == plain(p.shots(turned(everything(labels)), labels, ["y", "x"], 3, 0)[0])
    with pytest.raises(DataError, match=r"found 20 images in domain b, expected more than 10 for each of 2 clients"):
        p.shots(everything(labels), labels, ["x", "y"], 10, 0)


def test_a_newcomer_adapts_to_other_pictures_than_it_is_scored_on():
    labels = {"a": torch.arange(40) % 4}
    content = {"a": torch.arange(40) // 2}  # every picture twice
    adapt, test = p.newcomer(everything(labels), labels, content, 0.75, 0)
    assert_partition([adapt, test], labels)
    assert len(adapt["a"]) == 30 and not set((adapt["a"] // 2).tolist()) & set((test["a"] // 2).tolist())
    assert p.newcomer(everything(labels), labels, content, 0.0, 0)[0] == {}


def test_thinning_and_limits():
    labels = {"a": torch.arange(100) % 4, "b": torch.arange(10) % 2}
    assert {n: len(r) for n, r in p.thinned(everything(labels), labels, 0.35, 0).items()} == {"a": 35, "b": 4}
    deal = p.at_most(homes(labels), 20, 0)
    assert {c: p.count(rows) for c, rows in deal.items()} == {"a": 20, "b": 10}
    assert p.at_most(homes(labels), 0, 0)["a"]["a"].tolist() == list(range(100))


def test_the_first_clash_is_named():
    content = {"a": torch.tensor([5, 6]), "b": torch.tensor([7, 6])}
    train, test = {"x": {"a": torch.arange(2)}}, {"y": {"b": torch.arange(2)}}
    message = (
        r"picture 1 of domain a \(train, site x\) and picture 1 of domain b \(test, site y\): found the same content"
    )
    with pytest.raises(DataError, match=message):
        p.assert_disjoint(train, {}, test, content)
    p.assert_disjoint(train, {}, {"y": {"b": torch.tensor([0])}}, content)
    p.assert_disjoint({"x": {"a": torch.tensor([1])}, "y": {"b": torch.tensor([1])}}, {}, {}, content)  # in one part


def test_a_deal_has_one_name_whatever_its_order():
    deal = {"x": {"a": torch.tensor([2, 1]), "b": torch.tensor([0])}, "y": {"a": torch.tensor([3])}}
    same = {"y": {"a": torch.tensor([3])}, "x": {"b": torch.tensor([0]), "a": torch.tensor([1, 2])}}
    other = {"x": {"a": torch.tensor([2, 1, 3]), "b": torch.tensor([0])}, "y": {}}
    assert p.split_hash(deal) == p.split_hash(same) != p.split_hash(other)
    assert len(p.split_hash(deal)) == 16


def test_content_is_that_of_the_pixels():
    images = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    content = p.content_of(torch.cat([images, images[1:2]]))
    assert content[1] == content[3] and len(set(content.tolist())) == 3
