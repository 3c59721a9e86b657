"""A mean in which every single parameter of every client has its own weight."""

import torch

from . import tree
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
        weight = {k: w.pow(self.temper) + self.eps for k, w in importance.items()}
        if not self._mean:
            self._mean, self._total = tree.clone(values), weight
            return
        self._total = tree.map(torch.add, self._total, weight)
        share = tree.map(torch.div, weight, self._total)
        # A running mean: clients that agree are a fixed point to the bit, and nothing under- or overflows.
        self._mean = tree.map(torch.lerp, self._mean, values, share)

    @property
    def value(self) -> Tensors:
        """The mean of what was added."""
        return self._mean
