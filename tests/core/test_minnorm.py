"""The point of smallest norm against all subsets tried in turn, and the consensus of clients by its properties."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core import minnorm
from fedshift.core.gram import gram
from fedshift.core.minnorm import consensus, minimum_norm
from fedshift.core.pieces import MOST

KINDS = ("random", "few numbers", "twins", "opposites", "nearly twins", "a zero", "all lengths", "one line", "float32")


def vectors(kind, n, dim, seed):
    """N vectors, many of them in special places."""
    gen = torch.Generator().manual_seed(seed)
    d = torch.randn(n, dim, generator=gen, dtype=torch.float64)
    if kind == "few numbers":
        d = d.sign() * (d.abs() > 0.5)
    if kind == "twins":
        d = d[torch.arange(n) // 2]
    if kind == "opposites":
        d = torch.cat([d[: n - n // 2], -d[: n // 2]])
    if kind == "nearly twins":
        d = d[:1] + 1e-7 * d
    if kind == "a zero":
        d[n // 2] = 0
    if kind == "all lengths":
        d = d * 10.0 ** torch.linspace(-6, 3, n, dtype=torch.float64)[:, None]
    if kind == "one line":
        d = d[:, :1] * torch.ones(dim, dtype=torch.float64)
    return d.float().double() if kind == "float32" else d


def tried(g):
    """The smallest u^T G u over the simplex: on every set of free coordinates the stationary point, if it is inside."""
    best, n = float(g.diagonal().min()), len(g)
    for size in range(2, n + 1):
        for free in map(list, combinations(range(n), size)):
            ones = torch.ones(size, 1, dtype=torch.float64)
            kkt = torch.cat([torch.cat([2 * g[free][:, free], ones], 1), torch.cat([ones.T, ones[:1] * 0], 1)])
            right = torch.zeros(size + 1, 1, dtype=torch.float64).index_fill(0, torch.tensor(size), 1.0)
            u = torch.linalg.lstsq(kkt, right, driver="gelsd").solution[:size, 0]
            if bool((u >= -1e-12).all()) and abs(float(u.sum()) - 1) < 1e-9:
                best = min(best, float(u @ g[free][:, free] @ u))
    return best


def unit(d):
    return d / d.norm(dim=1, keepdim=True).clamp(min=1e-300)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6), st.booleans())
def test_no_subset_of_the_clients_does_better(kind, n, dim, seed, units):
    d = vectors(kind, n, dim, seed)
    d = unit(d) if units else d
    g = d @ d.T
    u = minimum_norm(g)
    assert abs(float(u @ g @ u) - tried(g)) < 1e-10 * max(1e-300, float(g.diagonal().max()))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(1, 60), st.integers(0, 10**6), st.booleans())
def test_optimal_by_karush_kuhn_and_tucker(kind, n, dim, seed, units):
    """u >= 0, sum(u) = 1, and (G u)_j >= u^T G u for every j: with equality where u_j > 0."""
    d = vectors(kind, n, dim, seed)
    d = unit(d) if units else d
    g = d @ d.T
    u, scale = minimum_norm(g), max(1e-300, float(g.diagonal().max()))
    assert bool((u >= 0).all()) and abs(float(u.sum()) - 1) < 1e-12
    slack = (g @ u - u @ g @ u) / scale
    assert float(slack.min()) > -1e-10 and float((slack * u).abs().max()) < 1e-10


def test_hand_solved():
    """Two vectors at a right angle with lengths 1 and 2: the foot of the height, u = (4/5, 1/5)."""
    g = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    assert torch.allclose(minimum_norm(g), torch.tensor([0.8, 0.2], dtype=torch.float64), atol=1e-14)
    assert minimum_norm(torch.zeros(3, 3)).tolist() == pytest.approx([1 / 3] * 3)  # nobody moved
    assert minimum_norm(torch.ones(3, 3)).tolist() == [1.0, 0.0, 0.0]  # all alike: one is enough


# -- the step ------------------------------------------------------------------------------------------
def changes(*rows):
    return [
        {"a": torch.tensor(r[:2], dtype=torch.float64), "b": torch.tensor(r[2:], dtype=torch.float64)} for r in rows
    ]


EACH = {"a": ("a",), "b": ("b",)}
BOTH = {"a and b": ("a", "b")}


def same(step, a, b):
    return torch.allclose(step["a"], torch.tensor(a, dtype=torch.float64), atol=1e-12) and torch.allclose(
        step["b"], torch.tensor(b, dtype=torch.float64), atol=1e-12
    )


def test_one_client_and_clients_that_agree():
    one = changes([3.0, 4.0, 0.5, -1.0])
    for groups in (EACH, BOTH):
        for n in (1, 3):
            assert same(consensus(one * n, groups), [3.0, 4.0], [0.5, -1.0])


def test_clients_at_odds_do_not_move():
    assert same(consensus(changes([3.0, 4.0, 1.0, 0.0], [-3.0, -4.0, -1.0, 0.0]), EACH), [0.0, 0.0], [0.0, 0.0])


def test_each_group_for_itself():
    """In `a` they stand at a right angle, lengths 1 and 3: mean 2 times (1/2, 1/2). In `b` they agree: mean 2."""
    two = changes([1.0, 0.0, 1.0, 0.0], [0.0, 3.0, 3.0, 0.0])
    assert same(consensus(two, EACH), [1.0, 1.0], [2.0, 0.0])
    whole = consensus(two, BOTH)
    d = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 3.0, 3.0, 0.0]], dtype=torch.float64)
    n = d.norm(dim=1)
    mid = n.mean() * (d / n[:, None]).mean(0)  # of two unit vectors the middle is the shortest
    assert same(whole, mid[:2].tolist(), mid[2:].tolist())


def test_a_client_without_a_change_has_no_say_but_counts_in_the_mean_length():
    for tiny in (0.0, 1e-13):
        step = consensus(changes([3.0, 4.0, 1.0, 0.0], [tiny, 0.0, 0.0, tiny]), EACH)
        assert torch.allclose(step["a"], torch.tensor([1.5, 2.0], dtype=torch.float64), atol=1e-12)
    assert same(consensus(changes([0.0] * 4, [0.0] * 4), EACH), [0.0, 0.0], [0.0, 0.0])


def zero_wins(gram, tol=1e-8):
    """As released: every client has a direction, n + 1e-8 long."""
    n = gram.diagonal().sqrt()
    u = minimum_norm(gram / (n + tol).outer(n + tol))
    return (n.mean() * u / (n + tol)).tolist()


def test_the_released_rule_would_freeze_the_tensor(monkeypatch):
    monkeypatch.setattr(minnorm, "_shares", zero_wins)
    assert same(consensus(changes([3.0, 4.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]), EACH), [0.0, 0.0], [1.0, 0.0])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 30), st.integers(0, 10**6))
def test_nobody_objects(kind, n, dim, seed):
    """<step, Delta_j> >= 0 for every client. Their order changes no more than inner products can tell."""
    d = vectors(kind, n, dim, seed)
    step = consensus([{"": x} for x in d], {"": ("",)})[""]
    scale = d.norm(dim=1).clamp(min=1e-300)
    assert float((d @ step / scale / scale.mean()).min()) > -1e-9
    back = consensus([{"": x} for x in d.flip(0)], {"": ("",)})[""]
    assert float((step - back).norm()) < 1e-6 * float(scale.mean())


def test_float32_changes_keep_their_type():
    d = vectors("random", 4, 50, 0)
    step = consensus([{"": x.float()} for x in d], {"": ("",)})[""]
    exact = consensus([{"": x} for x in d], {"": ("",)})[""]
    assert step.dtype == torch.float32 and float((step - exact).abs().max()) < 1e-5


def test_gram_over_pieces_of_long_tensors():
    gen = torch.Generator().manual_seed(0)
    size = 2 * MOST["cpu"] + 17
    clients = [{"w": torch.randn(size, generator=gen, dtype=torch.float64), "b": torch.randn(3, 5, generator=gen,
                dtype=torch.float64)} for _ in range(3)]  # fmt: skip
    whole = torch.stack([torch.cat([c["w"], c["b"].flatten()]) for c in clients])
    got = gram(clients, {"w": ("w",), "both": ("w", "b")})
    assert got.dtype == torch.float64 and got.shape == (2, 3, 3)
    assert torch.allclose(got[0], whole[:, :size] @ whole[:, :size].T, rtol=1e-12)
    assert torch.allclose(got[1], whole @ whole.T, rtol=1e-12)
