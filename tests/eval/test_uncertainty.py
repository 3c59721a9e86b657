"""Measures of trust against sums on paper and plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core.task import Answer
from fedshift.eval import uncertainty
from fedshift.eval.score import Score, mean_score
from fedshift.eval.uncertainty import Prediction, Trust, auroc, calibration_error, mean_trust, predicted, trust


def test_entropy_where_there_is_no_evidence():
    p = predicted(Answer(torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, -torch.inf]])))
    assert p.by == "entropy" and p.beliefs is None and p.probabilities.dtype == torch.float64
    assert torch.allclose(p.probabilities, torch.tensor([[1 / 3] * 3, [2 / 3, 1 / 3, 0]]).double(), atol=1e-7)
    half = -(2 * math.log(2 / 3) + math.log(1 / 3)) / 3 / math.log(3)
    assert p.uncertainty.tolist() == pytest.approx([1, half], abs=1e-7)


def test_evidence_where_there_is_some():
    p = predicted(Answer(torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [5.0, 1.0, 0.0]])))
    assert p.by == "evidence"
    assert p.uncertainty.tolist() == pytest.approx([1, 3 / 9])
    assert p.probabilities[1].tolist() == pytest.approx([6 / 9, 2 / 9, 1 / 9])
    assert p.beliefs is not None and p.beliefs[1].tolist() == pytest.approx([5 / 9, 1 / 9, 0])
    assert torch.allclose(p.beliefs.sum(1) + p.uncertainty, torch.ones(2, dtype=torch.float64))


def test_area_on_paper():
    high, low = torch.tensor([0.9, 0.4, 0.4]), torch.tensor([0.4, 0.1])
    assert auroc(high, low) == (1 + 1 + 0.5 + 1 + 0.5 + 1) / 6  # pairs won, ties as half
    assert auroc(low, high) == pytest.approx(1 - 5 / 6)
    assert auroc(high, high) == 0.5
    assert auroc(high, low[:0]) is None and auroc(high, torch.tensor([math.nan])) is None


numbers = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@given(numbers, numbers)
def test_area_is_the_share_of_pairs(a, b):
    won = sum((x > y) + (x == y) / 2 for x in a for y in b)
    assert auroc(torch.tensor(a) / 7, torch.tensor(b) / 7) == pytest.approx(won / len(a) / len(b), abs=1e-15)


def test_an_area_of_many_ties_is_exact():
    high, low = torch.zeros(300_001), torch.cat([torch.zeros(99_999), torch.ones(1)])
    assert auroc(high, low) == 0.5 * 99_999 / 100_000


def test_calibration_on_paper():
    confidence = torch.tensor([0.95, 0.95, 0.55, 0.6, 1.0])
    right = torch.tensor([True, False, True, True, True])
    # of ten bins: (.5, .6] holds two, |1.15 - 2|; (.9, 1] three, |2.9 - 2|
    assert calibration_error(confidence, right, 10) == pytest.approx((0.85 + 0.9) / 5, abs=1e-7)
    assert calibration_error(torch.ones(4), torch.tensor([True] * 3 + [False])) == 0.25


@given(st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), min_size=1, max_size=40))
def test_calibration_against_a_loop(pairs):
    error = 0.0
    for k in range(15):
        inside = [(c, r) for c, r in pairs if k / 15 < c <= (k + 1) / 15]
        error += abs(sum(c for c, _ in inside) - sum(r for _, r in inside)) / len(pairs)
    _, r = (torch.tensor(x) for x in zip(*pairs, strict=True))
    assert calibration_error(torch.tensor([x for x, _ in pairs], dtype=torch.float64), r) == pytest.approx(error)


def on_paper():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    return Prediction(p, torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64), "entropy"), torch.tensor([0, 1, 1])


def check_paper():
    t = trust(*on_paper())
    assert t.nll == pytest.approx(-math.log(0.7 * 0.8 * 0.3) / 3)
    assert t.brier == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.04 + 0.01 + 0.09 + 0.49 + 0.16) / 3)
    assert t.ece == pytest.approx((0.3 + 0.2 + 0.4) / 3)  # three bins of one image each
    assert t.uncertainty == pytest.approx(1.6 / 3)
    assert t.error_auroc == 1.0 and t.by == "entropy"


def test_trust_on_paper():
    check_paper()
    all_right = trust(on_paper()[0], torch.tensor([0, 1, 2]))
    assert all_right.error_auroc is None


def test_a_class_ruled_out_costs_much_but_not_everything():
    p = predicted(Answer(torch.tensor([[0.0, 2000.0]])))
    assert math.isfinite(trust(p, torch.tensor([0])).nll)


MUTANTS = {
    "brier without wrong classes": (
        "trust",
        lambda p, y: real_trust(p, y)._replace(
            brier=float((1 - p.probabilities.gather(1, y[:, None])).square().mean())
        ),
    ),
    "area upside down": ("auroc", lambda high, low: real_auroc(low, high)),
    "calibration unweighted": ("calibration_error", lambda c, r: float((c - r.double()).abs().max())),
    "entropy in bits": ("entropy", lambda p: real_entropy(p) / math.log(2)),
}
real_trust, real_auroc, real_entropy = uncertainty.trust, uncertainty.auroc, uncertainty.entropy


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    attribute, fault = MUTANTS[name]
    monkeypatch.setattr(uncertainty, attribute, fault)
    if attribute == "trust":
        monkeypatch.setitem(globals(), "trust", fault)
    with pytest.raises(AssertionError):
        test_entropy_where_there_is_no_evidence() if attribute == "entropy" else check_paper()


def test_means_over_models_leave_out_what_is_not_there():
    a = Trust("evidence", 1.0, 0.2, 0.1, 0.5, None)
    b = Trust("evidence", 3.0, 0.4, 0.3, 0.7, 0.8)
    mean = mean_trust([a, b])
    assert mean is not None and mean == pytest.approx(Trust("evidence", 2.0, 0.3, 0.2, 0.6, 0.8))
    both = mean_score([Score(0.5, 1.0, 3, a), Score(1.0, 3.0, 3, b)])
    assert both.trust == mean and both.record()["trust"]["error_auroc"] == 0.8
    assert Score(0.5, 1.0, 3).record() == {"accuracy": 0.5, "loss": 1.0, "n": 3}
