"""How much each parameter matters to a model's answers, and a mean in which every single one has its own weight.

Palakkadavath et al., ICDM 2025, arXiv 2512.10224, Eq. 17 and 18; after Aljundi et al., ECCV 2018.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from . import seeds, tree
from .average import average
from .bounds import Range
from .latent import head_names
from .net import Output, Part, Variables
from .pieces import in_one_order, sweep, vectors
from .task import Cohort, Loss, Site, Task
from .tree import Tensors


class ImportanceMean:
    """sum_d W_d phi_d with W_d = (Omega_d^t + eps) / sum_e (Omega_e^t + eps), parameter by parameter.

    Uploads are added one by one and not kept. `temper` is t: zero gives the plain mean. `eps` makes the weights of a
    parameter that is important to nobody 1/m, and equal importance gives the plain mean.
    """

    def __init__(self, temper: float = 1.0, eps: float = 1e-12) -> None:
        self.temper, self.eps = temper, eps
        self._mean: Tensors = {}
        self._total: Tensors = {}

    def add(self, values: Tensors, importance: Tensors) -> None:
        """One client's phi_d and Omega_d >= 0; both are left as they are."""
        if not self._mean:
            self._mean = tree.clone(values)
            self._total = {k: self._weight(w) for k, w in importance.items()}
            return
        rows = [(self._mean[k], self._total[k], values[k], importance[k]) for k in self._mean]
        sweep(self._add, [vectors(row)[0] if in_one_order(row) else row for row in rows])

    def _add(self, _: int, pieces: Sequence[Tensor]) -> None:
        """A running mean: clients that agree are a fixed point to the bit, and nothing under- or overflows."""
        mean, total, value, importance = pieces
        weight = self._weight(importance)
        total.add_(weight)
        mean.lerp_(value, weight.div_(total))

    def _weight(self, importance: Tensor) -> Tensor:
        """Omega^t + eps; the power of one would be a copy."""
        return importance + self.eps if self.temper == 1 else importance.pow(self.temper).add_(self.eps)

    @property
    def value(self) -> Tensors:
        """The mean of what was added."""
        return self._mean


class Weighed(Protocol):
    """An upload: a model, and Omega of each parameter."""

    @property
    def model(self) -> Variables:
        """Phi_d."""
        ...

    @property
    def omega(self) -> Tensors:
        """Omega_d."""
        ...


def average_by_importance(task: Task, ups: Iterable[Weighed], cohort: Cohort, temper: float) -> Variables:
    """Parameters by importance; buffers, which have none, by numbers of images and the protocol's rule."""
    mean, buffers = ImportanceMean(temper), list[Part]()
    for up in ups:
        mean.add(up.model.params, up.omega)
        buffers.append(Part({}, up.model.buffers))
    by_images = cohort._replace(weights=tuple(n / sum(cohort.examples) for n in cohort.examples))
    return Variables(mean.value, average(task, buffers, by_images).buffers)


@dataclass(frozen=True)
class Importance:
    """How Omega is measured."""

    omega_abs: Annotated[
        Literal["batch", "sample"], "absolute value of the gradient of a batch, as released, or of each image"
    ] = "batch"
    omega_target: Annotated[
        Literal["logits", "norms"],
        "whose gradient: squared logits; norms as in Eq. 17: of z for the encoder, of logits for the head",
    ] = "logits"
    omega_images: Annotated[int, Range(0), "images of a client that Omega is measured on; 0: all"] = 0
    omega_temper: Annotated[float, Range(0), "t of Omega^t; 0: the plain mean"] = 1.0

    def measure(self, task: Task, model: Variables, site: Site, seed: int) -> Tensors:
        """Omega = 1/n sum over batches of |d/dphi sum over the batch of what is asked|, in evaluation.

        Signed sums, as Eq. 17 prints, may cancel and give weights below zero or without bound.
        """
        total, count = tree.zeros(model.params), 0
        for x in self._images(site, seed):
            for names, wanted in self._wanted(task, model):
                grads, _ = task.gradient(partial(_asked, task, model, x, wanted), {k: model.params[k] for k in names})
                torch._foreach_add_([total[k] for k in names], torch._foreach_abs([grads[k] for k in names]))
            count += len(x)
        return tree.map(lambda t: t / count, total)

    def _wanted(self, task: Task, model: Variables) -> list[tuple[list[str], str]]:
        """Which parameters answer for what."""
        if self.omega_target == "logits":
            return [(list(model.params), "squares")]
        head = head_names(task.net)
        parts = [([k for k in model.params if k not in head], "z"), ([k for k in model.params if k in head], "logits")]
        return [part for part in parts if part[0]]

    def _images(self, site: Site, seed: int) -> Iterator[Tensor]:
        """Each image once, shuffled and augmented as training does, by a seed of its own."""
        number = len(site.labels)
        visits = site.visits(seeds.derive(seed, "omega"))
        order = torch.randperm(number, generator=seeds.generator(seed, "omega", "order"))[: self.omega_images or number]
        size = 1 if self.omega_abs == "sample" else visits.sizes[0]
        for rows in torch.split(order, size):
            looks = visits.looks(len(rows))
            yield site.drawn(rows, None if looks is None else tree.send(looks, site.labels.device))


def _asked(task: Task, model: Variables, x: Tensor, wanted: str, free: Tensors) -> tuple[Tensor, Loss]:
    out = task.net(Variables(model.params | free, model.buffers), x, train=False)
    value = _value(out, wanted)
    return value, Loss(value, {})


def _value(out: Output, wanted: str) -> Tensor:
    if wanted == "squares":
        return out.logits.square().sum()
    norms: Tensor = torch.linalg.vector_norm(out.features if wanted == "z" else out.logits, dim=1)
    return norms.sum()
