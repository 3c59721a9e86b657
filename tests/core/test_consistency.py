"""FDSE's regulariser against sums over single channels, batch by batch; and that against broken ones."""

from math import exp, log

import pytest
import torch

from fedshift.core import consistency
from fedshift.core.consistency import Running, begin, by_moments, follow, gauss_kl, layer_weights, moments

NORMS = ("body.0.1", "fc.norm")
SHAPES = ((3, 4, 5, 5), (3, 6))


def inputs(batches=3, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [
        {k: torch.randn(s, generator=gen, dtype=torch.float64) * 2 + t for k, s in zip(NORMS, SHAPES, strict=True)}
        for t in range(batches)
    ]


def everyones(seed=5):
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for k, s in zip(NORMS, SHAPES, strict=True):
        out[f"{k}.running_mean"] = torch.randn(s[1], generator=gen, dtype=torch.float64)
        out[f"{k}.running_var"] = torch.rand(s[1], generator=gen, dtype=torch.float64) + 0.5
    return out


def reference(batches, given, gamma, start, form, beta):
    """Eq. 4 to 7 in lists of numbers: the value after the last batch, and its gradient in that batch's first input."""
    m = {k: given[f"{k}.running_mean"].tolist() for k in NORMS} if start == "global" else None
    v = {k: given[f"{k}.running_var"].tolist() for k in NORMS} if start == "global" else None
    for batch in batches:
        channels = {k: x.transpose(0, 1).flatten(1).tolist() for k, x in batch.items()}
        mu = {k: [sum(c) / len(c) for c in cs] for k, cs in channels.items()}
        s = {k: [sum((y - a) ** 2 for y in c) / len(c) for c, a in zip(channels[k], mu[k], strict=True)] for k in mu}
        m, v = m or mu, v or s
        m = {k: [gamma * a + (1 - gamma) * b for a, b in zip(m[k], mu[k], strict=True)] for k in mu}
        v = {k: [gamma * a + (1 - gamma) * b for a, b in zip(v[k], s[k], strict=True)] for k in mu}
    far, slopes = [], None
    for k in NORMS:
        mg, vg, c = given[f"{k}.running_mean"].tolist(), given[f"{k}.running_var"].tolist(), len(m[k])
        if form == "moments":
            dv = sum(v[k]) / c - sum(vg) / c
            far.append(sum((a - b) ** 2 for a, b in zip(m[k], mg, strict=True)) / c + dv**2)
            slopes = slopes or [(2 * (a - b) / c, 2 * dv / c) for a, b in zip(m[k], mg, strict=True)]
        else:
            rows = list(zip(m[k], v[k], mg, vg, strict=True))
            far.append(sum(log(b / d) + (d + (e - a) ** 2) / b - 1 for a, b, e, d in rows) / c / 2)
            slopes = slopes or [((a - e) / b / c, (1 / b - (d + (e - a) ** 2) / b**2) / c / 2) for a, b, e, d in rows]
    w = [exp(beta * l) / sum(exp(beta * j) for j in range(1, 3)) for l in (1, 2)]  # noqa: E741
    x, first = batches[-1][NORMS[0]], channels[NORMS[0]]
    grad = [[w[0] * (1 - gamma) * (dm + dv * 2 * (y - a)) / len(c) for y in c]
            for c, a, (dm, dv) in zip(first, mu[NORMS[0]], slopes, strict=True)]  # fmt: skip
    grad = torch.tensor(grad, dtype=torch.float64).view(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
    return sum(a * b for a, b in zip(w, far, strict=True)), grad


def ours(batches, given, gamma, start, form, beta):
    running = begin(NORMS, given, start, 1.0)
    for batch in batches:
        batch = {k: x.clone().requires_grad_() for k, x in batch.items()}
        before, running = running, consistency.follow(running, batch, gamma)
        value = consistency.penalty(running, given, form, beta)
        last = torch.autograd.grad(value, batch[NORMS[0]])[0]
        running = Running(*({k: t.detach() for k, t in part.items()} for part in running[:2]), *running[2:])
        assert not before.fresh or start == "first_batch"
    return float(value.detach()), last


def gap(gamma=0.9, start="first_batch", form="moments", beta=0.5):
    """After one batch and after three."""
    far = []
    for n in (1, 3):
        (a, da), (b, db) = (f(inputs(n), everyones(), gamma, start, form, beta) for f in (reference, ours))
        far += [abs(a - b) / abs(a), float((da - db).abs().max() / da.abs().max())]
    return max(far)


@pytest.mark.parametrize("form", ["moments", "gauss_kl"])
@pytest.mark.parametrize("start", ["first_batch", "global"])
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_value_and_gradient_equal_sums_over_channels(gamma, start, form):
    if form == "gauss_kl":  # its eps alone stands between
        assert gap(gamma, start, form) < 1e-7
    else:
        assert gap(gamma, start, form) < 1e-12


def test_the_divergence_without_its_eps(monkeypatch):
    plain = gauss_kl
    monkeypatch.setattr(consistency, "gauss_kl", lambda m, v, mu, var: plain(m, v, mu, var, eps=0.0))
    assert max(gap(form="gauss_kl", start=start) for start in ("first_batch", "global")) < 1e-12


def unbiased(x):
    var, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1])
    return mean, var


def over_batch_alone(x):
    """The variance within places, without that between them."""
    var, mean = torch.var_mean(x, 0, correction=0)
    return mean.view(len(mean), -1).mean(1), var.view(len(var), -1).mean(1)


def always_the_first(old, given, gamma):
    """Each batch begins anew."""
    return follow(old, given, gamma)._replace(fresh=old.fresh)


def never_the_first(old, given, gamma):
    """Everybody's statistics are the first estimate."""
    return follow(old._replace(fresh=torch.zeros_like(old.fresh)), given, gamma)


def gradient_of_the_first_in_full(old, given, gamma):
    """The first batch is its own estimate, gradient and all."""
    return follow(old, given, 0.0 if old.fresh else gamma)


def upside_down(old, given, gamma):
    return follow(old, given, 1 - gamma)


def one_number_for_a_layer(m, v, mu, var):
    """As the releases: mean and variance of the channels' means."""
    return (m.mean() - mu).square().mean() + (m.var() - var).square().mean()


def unbounded(m, v, mu, var):
    """As the last release's mean term."""
    return ((mu.square() - m.square()) / (2 * v) + ((v / var).log() + var / v) / 2).mean()


def variances_apart(m, v, mu, var):
    return (m - mu).square().mean() + (v - var).square().mean()


def from_the_top(layers, beta):
    return layer_weights(layers, beta)[::-1]


@pytest.mark.parametrize(
    ("name", "mutant", "form"),
    [
        ("moments", unbiased, "moments"),
        ("moments", over_batch_alone, "moments"),
        ("follow", always_the_first, "moments"),
        ("follow", never_the_first, "moments"),
        ("follow", gradient_of_the_first_in_full, "moments"),
        ("follow", upside_down, "gauss_kl"),
        ("by_moments", one_number_for_a_layer, "moments"),
        ("by_moments", variances_apart, "moments"),
        ("gauss_kl", unbounded, "gauss_kl"),
        ("layer_weights", from_the_top, "moments"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_the_reference_bites(name, mutant, form, monkeypatch):
    monkeypatch.setattr(consistency, name, mutant)
    assert gap(form=form) > 1e-4


def test_nothing_is_far_when_a_batch_has_everybodys_statistics():
    (batch,) = inputs(1)
    given = {}
    for k, x in batch.items():
        given[f"{k}.running_mean"], given[f"{k}.running_var"] = moments(x)
    for form in ("moments", "gauss_kl"):
        for start in ("first_batch", "global"):
            value, grad = ours([batch] * 3, given, 0.9, start, form, 0.1)
            assert abs(value) < 1e-14 and float(grad.abs().max()) < 1e-14


def test_never_negative():
    gen = torch.Generator().manual_seed(0)
    for _ in range(200):
        m, mu = torch.randn(2, 7, generator=gen, dtype=torch.float64) * 3
        v, var = torch.rand(2, 7, generator=gen, dtype=torch.float64) ** 4 * 5
        assert float(gauss_kl(m, v, mu, var)) >= 0 and float(by_moments(m, v, mu, var)) >= 0


def test_layer_weights():
    assert layer_weights(7, 0.0) == pytest.approx([1 / 7] * 7)
    assert layer_weights(3, 0.5) == pytest.approx(torch.softmax(torch.tensor([0.5, 1.0, 1.5]).double(), 0).tolist())
    assert layer_weights(3, 1e6) == [0.0, 0.0, 1.0]
    shallow = [layer_weights(7, beta)[0] for beta in (0.001, 0.01, 0.1, 1.0)]
    assert shallow == sorted(shallow, reverse=True)  # a smaller beta asks more of the first layers


def test_a_round_begins_afresh():
    given = everyones()
    for start in ("first_batch", "global"):
        running = begin(NORMS, given, start, 0.25)
        assert bool(running.fresh) is (start == "first_batch") and float(running.weight) == 0.25
        assert all(running.mean[k].data_ptr() != given[f"{k}.running_mean"].data_ptr() for k in NORMS)
        assert not follow(running, inputs(1)[0], 0.9).fresh
