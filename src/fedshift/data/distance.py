"""How far the domains of a data set are apart, by numbers that need no trained network.

A picture is described by 15 statistics: mean and standard deviation of each colour, mean saturation and its spread,
a share of nearly white pixels, and the strength of edges across and down at three scales. They are standardised over
all domains together, so that a distance is in standard deviations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

from .dataset import Dataset, Domain
from .unpack import Progress

AT_MOST = 2000  # pictures of a domain, chosen by the seed
BATCH = 256
DECAY = 1e-3  # of the linear classifier, which would otherwise grow without end on domains that it tells apart


@dataclass(frozen=True)
class Distance:
    """A symmetric matrix over the domains, and what it means."""

    name: str
    definition: str
    matrix: tuple[tuple[float, ...], ...]


FRECHET = "The Wasserstein-2 distance of Gaussians fitted to colour and edge statistics; 0: the same fit."
PROXY = (
    "Proxy A-distance, 2 - 4 e, where e is the balanced error of a linear classifier of the two domains on pictures it "
    "was not trained on; 0: cannot be told apart, 2: always."
)
LABELS = "Total variation between the shares of the classes: the share of labels to change for equal shares; 0 to 1."


def distances(dataset: Dataset, seed: int = 0, progress: Progress | None = None) -> tuple[Distance, ...]:
    """All measures between all domains."""
    dice = torch.Generator().manual_seed(seed)
    parts = []
    for done, domain in enumerate(dataset.domains, 1):
        parts.append(statistics(_some(domain, dice)))
        if progress:
            progress(done, len(dataset.domains))
    everything = torch.cat(parts)
    mean, spread = everything.mean(0), everything.std(0, correction=0).clamp_min(1e-6)
    features = [(part - mean) / spread for part in parts]
    shares = [torch.bincount(d.labels, minlength=len(dataset.classes)) / max(len(d.labels), 1) for d in dataset.domains]
    pairs = list(combinations(range(len(features)), 2))
    return (
        _distance("Frechet", FRECHET, len(features), {(i, j): frechet(features[i], features[j]) for i, j in pairs}),
        _distance("proxy A", PROXY, len(features), {(i, j): proxy(features[i], features[j], seed) for i, j in pairs}),
        _distance("labels", LABELS, len(features), {(i, j): _variation(shares[i], shares[j]) for i, j in pairs}),
    )


def _some(domain: Domain, dice: torch.Generator) -> Tensor:
    return domain.images[torch.randperm(len(domain.images), generator=dice)[:AT_MOST]]


def _distance(name: str, definition: str, n: int, pairs: dict[tuple[int, int], float]) -> Distance:
    rows = [tuple(0.0 if i == j else pairs[min(i, j), max(i, j)] for j in range(n)) for i in range(n)]
    return Distance(name, definition, tuple(rows))


def statistics(images: Tensor) -> Tensor:
    """Pictures (uint8, [n, channels, height, width]) as their statistics (float64, [n, 15])."""
    return torch.cat([_described(part) for part in torch.split(images, BATCH)]).double()


def _described(images: Tensor) -> Tensor:
    pictures = images.float().expand(-1, 3, -1, -1) / 255
    colour = pictures.flatten(2)
    saturation = (pictures.amax(1) - pictures.amin(1)).flatten(1)
    white = (pictures.amin(1) > 0.95).float().flatten(1)
    grey, edges = pictures.mean(1, keepdim=True), []
    for _ in range(3):
        edges += [_edges(grey, 2), _edges(grey, 3)]
        grey = avg_pool2d(grey, 2) if min(grey.shape[2:]) > 3 else grey
    spread = saturation.std(1, correction=0)
    tail = torch.stack([saturation.mean(1), spread, white.mean(1), *edges], 1)
    return torch.cat([colour.mean(2), colour.std(2, correction=0), tail], 1)


def _edges(grey: Tensor, dim: int) -> Tensor:
    steps = grey.diff(dim=dim).abs().flatten(1)
    return steps.mean(1) if steps.shape[1] else steps.new_zeros(len(steps))


def frechet(a: Tensor, b: Tensor) -> float:
    """The Wasserstein-2 distance of two Gaussian fits: |m - n|^2 + tr(S + T - 2 (S^1/2 T S^1/2)^1/2), square root."""
    a, b = a.double(), b.double()
    s, t = a.T.cov(correction=0), b.T.cov(correction=0)
    root = _root(s)
    squared = (a.mean(0) - b.mean(0)).square().sum() + (s + t - 2 * _root(root @ t @ root)).trace()
    return float(squared.clamp_min(0).sqrt())


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return root


def _variation(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum()) / 2


def proxy(a: Tensor, b: Tensor, seed: int = 0) -> float:
    """Proxy A-distance: each half of the pictures is told apart by a classifier trained on the other half."""
    if min(len(a), len(b)) < 2:
        return float("nan")
    dice = torch.Generator().manual_seed(seed)
    halves = [x[torch.randperm(len(x), generator=dice)].double().tensor_split(2) for x in (a, b)]
    errors = [_error([h[k] for h in halves], [h[1 - k] for h in halves]) for k in (0, 1)]
    return max(0.0, 2 - 4 * sum(errors) / 2)


def _error(train: Sequence[Tensor], test: Sequence[Tensor]) -> float:
    """The balanced error of logistic regression in which both domains weigh the same."""
    x, sizes = torch.cat([*train]), torch.tensor([len(part) for part in train])
    y = torch.arange(2).repeat_interleave(sizes).double()
    weight = (0.5 / sizes).repeat_interleave(sizes)
    w = torch.zeros(x.shape[1] + 1, dtype=torch.double, requires_grad=True)
    descent = torch.optim.LBFGS([w], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        value = binary_cross_entropy_with_logits(x @ w[1:] + w[0], y, weight, reduction="sum")
        value = value + DECAY * w[1:].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    descent.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        says = [(part @ w[1:] + w[0]) > 0 for part in test]
    return float(says[0].double().mean() + (~says[1]).double().mean()) / 2
