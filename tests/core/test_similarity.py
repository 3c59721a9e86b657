"""Attention between clients against plain loops in float64, and what it does at its limits."""

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import similarity
from fedshift.core.gram import gram
from fedshift.core.similarity import align, align_weights, attend, attention, mix


def clients(n=4, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shapes = {"kernel": (6, 1, 3, 3), "scale": (6,)}
    return [
        {k: torch.randn(s, generator=gen, dtype=torch.float64) + 1 for k, s in shapes.items()} for _ in range(n)
    ]  # fmt: skip


def reference(given, tau):
    """Section 3.3.2 by its words: a_k = softmax_j cos(v_k, v_j) / tau, and sum_j a_kj v_j of the raw vectors."""
    out = []
    for mine in given:
        new = {}
        for name in mine:
            cos = [F.cosine_similarity(mine[name].flatten(), o[name].flatten(), dim=0, eps=0.0) for o in given]
            a = torch.softmax(torch.stack(cos) / tau, 0)
            new[name] = sum(w * o[name] for w, o in zip(a, given, strict=True))
        out.append(new)
    return out


def gap(tau=0.1, given=None):
    given = given or clients()
    ours, plain = attend(given, tau), reference(given, tau)
    return max(float((a[k] - b[k]).abs().max()) for a, b in zip(ours, plain, strict=True) for k in b)


@pytest.mark.parametrize("tau", [0.001, 0.01, 0.1, 0.5, 10.0])
def test_equals_the_plain_loop(tau):
    assert gap(tau) < 1e-12


def by_columns(gram, tau, eps):
    """The softmax over the wrong clients."""
    return similarity.attention_(gram, tau, eps).transpose(-1, -2)


def of_products(gram, tau, eps):
    """Inner products in place of cosines."""
    return torch.softmax(gram / tau, -1)


def times_tau(gram, tau, eps):
    """The temperature upside down."""
    return similarity.attention_(gram, 1 / tau, eps)


@pytest.mark.parametrize("mutant", [by_columns, of_products, times_tau])
def test_the_reference_bites(mutant, monkeypatch):
    monkeypatch.setattr(similarity, "attention_", similarity._attention, raising=False)
    monkeypatch.setattr(similarity, "_attention", mutant)
    assert gap() > 1e-3


def test_tensors_attend_for_themselves():
    """One client's scales alike to another's says nothing about their kernels."""
    given = clients(3)
    given[1]["scale"] = given[0]["scale"].clone()
    given[2]["scale"] = -given[0]["scale"]
    near = attend(given, 0.01)[0]
    assert torch.allclose(near["scale"], given[0]["scale"], atol=1e-12)
    assert torch.allclose(near["kernel"], reference(given, 0.01)[0]["kernel"], atol=1e-12)


def test_rows_sum_to_one_and_the_limits_of_tau():
    vectors = [c["kernel"] for c in clients()]
    for tau in (1e-3, 0.5, 1e6):
        rows = attention(vectors, tau)
        assert rows.shape == (4, 4) and torch.allclose(rows.sum(1), torch.ones(4, dtype=torch.float64), atol=1e-14)
    assert torch.allclose(attention(vectors, 1e-3), torch.eye(4, dtype=torch.float64), atol=1e-12)  # everybody its own
    assert torch.allclose(attention(vectors, 1e9), torch.full((4, 4), 0.25, dtype=torch.float64), atol=1e-8)


def test_zero_vectors_and_one_client():
    """A tensor that is still zero, as BatchNorm's shift is at first: cosine 0 with all, itself included; no NaN."""
    zero, one = torch.zeros(5), torch.ones(5)
    rows = attention([zero, one, one], 1.0)
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    assert torch.allclose(rows[0], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert torch.allclose(rows[1], torch.stack([1 / (1 + 2 * e), e / (1 + 2 * e), e / (1 + 2 * e)]))
    alone = clients(1)
    assert all(torch.equal(attend(alone, 0.5)[0][k], t) for k, t in alone[0].items())


def test_what_is_mixed_is_raw_and_keeps_its_type():
    xs = [torch.full((2, 3), float(v)) for v in (1, 2, 4)]
    weights = torch.tensor([[1, 0, 0], [0.5, 0.25, 0.25], [0, 0, 1]], dtype=torch.float64)
    got = mix(weights, xs)
    assert [float(x[0, 0]) for x in got] == [1.0, 2.0, 4.0] and all(x.dtype == torch.float32 for x in got)
    assert all(x.shape == (2, 3) for x in got)


def test_alignment_with_the_mean():
    grads = [{"g": v["kernel"], "h": v["scale"]} for v in clients(3, seed=3)]
    flat = torch.stack([torch.cat([g["g"].flatten(), g["h"]]) for g in grads])
    cos = F.cosine_similarity(flat, flat.mean(0)[None])
    for sign, tau in ((1, 1.0), (-1, 0.1)):
        assert torch.allclose(align_weights(grads, sign, tau), torch.softmax(sign * cos / tau, 0), atol=1e-12)


def test_products_are_exact_whatever_the_networks_may_do(monkeypatch):
    """TF32 is off while the server multiplies, and afterwards what it was."""
    seen, mm = [], torch.mm

    def watched(*args, **kwargs):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return mm(*args, **kwargs)

    monkeypatch.setattr(torch, "mm", watched)
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, True
    try:
        attend(clients(), 0.5)
        assert len(seen) > 2 and not any(seen) and products.allow_tf32
    finally:
        products.allow_tf32 = before


def test_alignment_by_products_is_alignment_by_sums():
    grads = clients(5, seed=1)
    assert torch.allclose(align_weights(grads), align(gram(grads, {"": tuple(grads[0])})[0]), atol=1e-14)
