"""What an answer says and how sure it is; and how far that can be trusted: calibration, and areas under ROC curves."""

from collections.abc import Sequence
from math import log
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.evidence import opinion
from ..core.task import Answer

BINS = 15  # of equal width, for the calibration error
By = Literal["evidence", "entropy"]


class Prediction(NamedTuple):
    """Probabilities [n, K] and an uncertainty [n] between 0 and 1, in float64; evidence where the method weighs it.

    With evidence e and alpha = e + 1, S = sum alpha: probabilities alpha / S, belief masses e / S, uncertainty K / S
    (subjective logic). Otherwise the uncertainty is the entropy of the probabilities as a share of log K.
    """

    probabilities: Tensor
    uncertainty: Tensor
    by: By
    evidence: Tensor | None = None

    @property
    def beliefs(self) -> Tensor | None:
        """The mass for each class; with the uncertainty they sum to one."""
        return None if self.evidence is None else opinion(self.evidence).belief


def predicted(answer: Answer) -> Prediction:
    """What a method's answer says."""
    if answer.evidence is None:
        p = torch.softmax(answer.logits.double(), 1)
        return Prediction(p, entropy(p) / log(max(p.shape[1], 2)), "entropy")
    e = answer.evidence.double()
    belief, uncertainty = opinion(e)
    return Prediction(belief + uncertainty[:, None] / e.shape[1], uncertainty, "evidence", e)


def entropy(p: Tensor) -> Tensor:
    """Of each row, in nats."""
    each: Tensor = torch.special.entr(p)
    return each.sum(1)


class Trust(NamedTuple):
    """How far answers can be trusted: calibration of the probabilities, and what the uncertainty is good for."""

    by: By
    nll: float  # mean negative logarithm of the right class's probability
    brier: float  # mean squared distance to the right answer, summed over classes: 0 to 2
    ece: float  # expected calibration error over BINS bins of confidence
    uncertainty: float  # mean
    error_auroc: float | None  # chance that a wrong answer is more uncertain than a right one; None without either


def trust(p: Prediction, labels: Tensor) -> Trust:
    """The measures of labelled images."""
    own = p.probabilities.gather(1, labels[:, None])[:, 0]
    right = p.probabilities.argmax(1) == labels
    target = torch.nn.functional.one_hot(labels, p.probabilities.shape[1])
    return Trust(
        p.by,
        float(-own.clamp_min(torch.finfo(own.dtype).tiny).log().mean()),
        float((p.probabilities - target).square().sum(1).mean()),
        calibration_error(p.probabilities.amax(1), right),
        float(p.uncertainty.mean()),
        auroc(p.uncertainty[~right], p.uncertainty[right]),
    )


def calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Mean over images of how far confidence and accuracy of their bin are apart; bin k holds (k, k + 1] / bins."""
    place = (confidence * bins).ceil().sub(1).clamp(0, bins - 1)
    inside = (place[:, None] == torch.arange(bins, device=place.device)).double()
    return float((inside.T @ (confidence.double() - right.double())).abs().sum() / len(confidence))


def auroc(high: Tensor, low: Tensor) -> float | None:
    """The chance that one of `high` lies above one of `low`, ties as half (Mann and Whitney): from ranks, exact.

    None if either is empty or holds NaN.
    """
    if not len(high) or not len(low) or bool(high.isnan().any() | low.isnan().any()):
        return None
    ordered = low.sort().values
    below, upto = (torch.searchsorted(ordered, high, right=right).sum() for right in (False, True))
    return float((below + upto).double() / (2 * len(high) * len(low)))


def mean_trust(found: Sequence[Trust | None]) -> Trust | None:
    """The plain mean over models; an area counts where there is one."""
    known = [t for t in found if t is not None]
    if not known:
        return None
    means: dict[str, Any] = {name: mean_known([getattr(t, name) for t in known]) for name in Trust._fields[1:]}
    return Trust(known[0].by, **means)


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are there."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
