"""Opinions, their fusion and the Dirichlet terms: against the printed rule, integrals, samples and solved cases."""

from math import lgamma, log

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet, kl_divergence

from fedshift.core import evidence as ev

UNHURRIED = settings(deadline=None)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@st.composite
def evidences(draw, many):
    """`many` rows of evidence for the same classes."""
    classes = draw(st.integers(2, 12))
    numbers = st.floats(0, 1e4, allow_subnormal=False)
    rows = [draw(st.lists(numbers, min_size=classes, max_size=classes)) for _ in range(many)]
    return torch.tensor(rows, dtype=torch.float64)


def dempster(a, b):
    """The reduced rule as printed: belief masses, uncertainties, and the conflict as a double sum."""
    k = len(a)
    s, t = a.sum() + k, b.sum() + k
    b1, u1, b2, u2 = a / s, k / s, b / t, k / t
    conflict = sum(b1[i] * b2[j] for i in range(k) for j in range(k) if i != j)
    belief, u = (b1 * b2 + b1 * u2 + b2 * u1) / (1 - conflict), u1 * u2 / (1 - conflict)
    return belief, u


def rule_gap(combine, rows):
    belief, u = dempster(*rows)
    ours = ev.opinion(combine(*rows))
    return max(float((ours.belief - belief).abs().max()), float((ours.uncertainty - u).abs()))


# -- opinions and their fusion ---------------------------------------------------------------------------
@UNHURRIED
@given(evidences(1))
def test_masses_sum_to_one(rows):
    found = ev.opinion(rows[0])
    assert float(found.belief.sum() + found.uncertainty) == pytest.approx(1, abs=1e-12)
    assert float(found.belief.min()) >= 0 and 0 < float(found.uncertainty) <= 1


@UNHURRIED
@given(evidences(2))
def test_fusion_is_the_reduced_dempster_rule(rows):
    found = ev.opinion(ev.combine(*rows))
    assert float(found.belief.sum() + found.uncertainty) == pytest.approx(1, abs=1e-12)
    # The printed rule subtracts the conflict from one, which costs digits where the opinions contradict each other.
    (_, u1), (_, u2) = (ev.opinion(r) for r in rows)
    assert rule_gap(ev.combine, rows) < 1e-12 / float(u1 * u2)


@UNHURRIED
@given(evidences(3))
def test_fusion_has_no_order_and_never_adds_doubt(rows):
    a, b, c = rows
    assert torch.equal(ev.combine(a, b), ev.combine(b, a))
    assert torch.allclose(ev.combine(ev.combine(a, b), c), ev.combine(a, ev.combine(b, c)), rtol=1e-12)
    fused = ev.opinion(ev.combine(a, b)).uncertainty
    assert float(fused) <= min(float(ev.opinion(r).uncertainty) for r in (a, b)) * (1 + 1e-12)


@UNHURRIED
@given(evidences(1))
def test_an_opinion_without_evidence_is_neutral(rows):
    nothing = torch.zeros_like(rows[0])
    assert torch.equal(ev.combine(rows[0], nothing), rows[0]) and torch.equal(ev.combine(nothing, rows[0]), rows[0])


def test_two_opinions_that_contradict_each_other():
    """b = (1/3, 0), u = 2/3 and b = (0, 1/3), u = 2/3: Q = 1/9, so b = (1/4, 1/4), u = 1/2, e = (1, 1)."""
    a, b = torch.eye(2, dtype=torch.float64)
    assert torch.equal(ev.combine(a, b), torch.ones(2, dtype=torch.float64))
    belief, u = dempster(a, b)
    assert belief.tolist() == pytest.approx([0.25, 0.25]) and float(u) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "broken",
    [
        lambda a, b: a + b,
        lambda a, b: a + b + a * b,
        lambda a, b: a * b / len(a),
        lambda a, b: (a + b) / 2,
        lambda a, b: torch.maximum(a, b),
    ],
    ids=("evidence added", "product not shared out", "agreement alone", "mean", "surer head alone"),
)
def test_the_rule_bites(broken):
    rows = torch.tensor([[2.0, 0.5, 0.0], [0.3, 1.0, 0.2]], dtype=torch.float64)
    assert rule_gap(ev.combine, rows) < 1e-15 and rule_gap(broken, rows) > 1e-2


# -- the Dirichlet terms -----------------------------------------------------------------------------------
ALPHAS = torch.tensor([[1.0, 1.0, 1.0], [3.0, 1.5, 1.0], [1.2, 8.0, 2.5], [40.0, 1.0, 6.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def samples():
    """E[-ln p] of each case and class from samples, and the standard errors."""
    torch.manual_seed(1)
    values = -Dirichlet(ALPHAS).sample((50_000,)).log()
    return values.mean(0), values.std(0) / len(values) ** 0.5


def integrated(a, b, fn):
    """The integral of fn over a Beta(a, b) density, by the midpoint rule."""
    n = 400_000
    p = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    density = (lgamma(a + b) - lgamma(a) - lgamma(b) + (a - 1) * p.log() + (b - 1) * (1 - p).log()).exp()
    return float((density * fn(p, density)).mean())


def test_the_expected_cross_entropy_is_that_of_samples(samples):
    mean, error = samples

    def gap(fn):
        """In standard errors."""
        ours = torch.stack([fn(ALPHAS, torch.full((4,), y)) for y in range(3)], 1)
        return float(((ours - mean) / error).abs().max())

    assert gap(ev.expected_cross_entropy) < 4
    broken = {
        "of the mean": lambda alpha, y: F.nll_loss((alpha / alpha.sum(1, keepdim=True)).log(), y, reduction="none"),
        "of evidence": lambda alpha, y: ev.expected_cross_entropy(alpha + 1, y),
        "another class": lambda alpha, y: ev.expected_cross_entropy(alpha, (y + 1) % 3),
        "other way round": lambda alpha, y: -ev.expected_cross_entropy(alpha, y),
    }
    assert all(gap(fn) > 20 for fn in broken.values())


def test_the_expected_cross_entropy_of_solved_cases():
    """digamma(a + 1) - digamma(a) = 1 / a; and an integral."""
    for a in (1.0, 2.0, 7.5):
        alpha = torch.tensor([[a, 1.0]], dtype=torch.float64)
        assert float(ev.expected_cross_entropy(alpha, torch.tensor([0]))) == pytest.approx(1 / a, abs=1e-13)
    value = float(ev.expected_cross_entropy(torch.tensor([[3.5, 2.25]], dtype=torch.float64), torch.tensor([1])))
    assert value == pytest.approx(integrated(3.5, 2.25, lambda p, _: -(1 - p).log()), abs=1e-8)


def kl_gap(fn):
    return max(abs(float(fn(a) - kl_divergence(Dirichlet(a), Dirichlet(torch.ones_like(a))))) for a in ALPHAS)


def test_kl_to_the_uniform_density():
    """torch's own, an integral, a solved case (density 2 p: ln 2 - 1/2), and zero at alpha = 1."""
    assert kl_gap(ev.kl_to_uniform) < 1e-12
    assert float(ev.kl_to_uniform(torch.tensor([2.0, 1.0], dtype=torch.float64))) == pytest.approx(log(2) - 0.5)
    value = float(ev.kl_to_uniform(torch.tensor([3.5, 2.25], dtype=torch.float64)))
    assert value == pytest.approx(integrated(3.5, 2.25, lambda _, density: density.log()), abs=1e-8)
    assert all(abs(float(ev.kl_to_uniform(torch.ones(k)))) < 1e-6 for k in (2, 10, 100))

    def backwards(a):
        return kl_divergence(Dirichlet(torch.ones_like(a)), Dirichlet(a))

    def no_constant(a):
        return ev.kl_to_uniform(a) + lgamma(len(a))

    def index_of_the_other_sum(a):  # the inner sum's index, as Eq. 11 prints it
        slope = (a - 1) * (a.digamma() - a.digamma().sum())
        return a.sum().lgamma() - lgamma(len(a)) - a.lgamma().sum() + slope.sum()

    assert all(kl_gap(fn) > 1e-2 for fn in (backwards, no_constant, index_of_the_other_sum))


def test_evidence_for_the_right_class_is_not_punished():
    alpha = ALPHAS.clone().requires_grad_()
    y = torch.tensor([0, 1, 2, 0])
    out = ev.misleading(alpha, y)
    expected = ALPHAS.clone()
    expected[torch.arange(4), y] = 1.0
    assert torch.equal(out, expected)
    ev.kl_to_uniform(out).sum().backward()
    assert bool((alpha.grad[torch.arange(4), y] == 0).all())
    right_alone = torch.tensor([[1.0, 99.0, 1.0]], dtype=torch.float64)
    assert float(ev.kl_to_uniform(ev.misleading(right_alone, torch.tensor([1])))) == pytest.approx(0, abs=1e-12)


def test_the_combined_loss_is_that_of_three_opinions():
    logits, y, weight = normal(2, 5, 4), torch.tensor([0, 3, 1, 1, 2]), torch.tensor(0.3)
    e = F.softplus(logits)
    parts = []
    for row in (e[0], e[1], torch.stack([torch.stack([*dempster_evidence(a, b)]) for a, b in zip(*e, strict=True)])):
        alpha, hot = row + 1, F.one_hot(y, 4)
        nll = alpha.sum(1).digamma() - (alpha * hot).sum(1).digamma()
        parts.append(
            (nll + weight * kl_divergence(Dirichlet(hot + (1 - hot) * alpha), Dirichlet(torch.ones(4).double()))).mean()
        )
    assert float(ev.combined_loss(logits, y, weight)) == pytest.approx(float(sum(parts)), abs=1e-12)


def dempster_evidence(a, b):
    belief, u = dempster(a, b)
    return len(a) * belief / u


def test_belief_loss():
    logits, y = normal(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    belief = ev.opinion(F.softplus(logits)).belief
    assert float(ev.belief_loss(logits, y)) == pytest.approx(float(-belief[torch.arange(6), y].log().mean()))
    assert bool(ev.belief_loss(torch.full((1, 3), -500.0), torch.tensor([0])).isfinite())


def test_divergence():
    p, q = normal(2, 7, 9).log_softmax(-1)
    assert torch.allclose(ev.divergence(p, q), F.kl_div(q, p, log_target=True, reduction="none").sum(1))
    assert float(ev.divergence(p, p).abs().max()) == 0 and float(ev.divergence(p, q).min()) > 0


def test_low_precision_and_far_logits_stay_finite():
    """Evidence is float32 at least; gradients are finite where softplus is flat and where it is steep."""
    assert ev.evidence(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert ev.evidence(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
    pair = torch.tensor([[[-200.0, 200.0, 0.0]], [[300.0, -300.0, 1.0]]], requires_grad=True)
    for y in range(3):
        value = ev.combined_loss(pair, torch.tensor([y]), torch.tensor(1.0))
        (grad,) = torch.autograd.grad(value, pair)
        assert bool(value.isfinite()) and bool(grad.isfinite().all())
