"""Local optimisers as functions of explicit state, equal to `torch.optim` to the last digits.

One arithmetic serves two habits: `update_` writes in place with `torch._foreach_*` kernels, and `update` runs the same
lines on copies. The engine chooses; a method never sees the difference.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, pi
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from . import tree
from .bounds import Range
from .errors import ConfigError
from .tree import Tensors

Rate = float | Tensor  # a tensor without axes where a step is recorded once and replayed at other rates
State = dict[str, Tensors]  # slot -> name -> tensor, as in state["momentum"]["conv1.weight"]
Positive = Range(0, open_low=True)
Fraction = Range(0, 1, open_high=True)


@dataclass(frozen=True)
class Optimizer(ABC):
    """What the three optimisers share: clipping, and the choice between in place and on copies."""

    name: ClassVar[str]
    lr: Annotated[float, Positive, "learning rate of the first round"] = 0.05
    weight_decay: Annotated[float, Range(0), "L2 penalty (decoupled in adamw)"] = 0.0
    clip: Annotated[float, Range(0), "largest norm of the whole gradient; 0 leaves it as it is"] = 0.0

    @abstractmethod
    def init(self, params: Tensors) -> State:
        """State before the first step."""

    @abstractmethod
    def _step(self, grads: list[Tensor], slots: dict[str, list[Tensor]], params: list[Tensor], lr: Rate) -> None:
        """Write the new parameters and slots in place; `grads` belong to the caller and stay."""

    def update_(self, grads: Tensors, state: State, params: Tensors, lr: Rate) -> tuple[Tensors, State]:
        """One step at learning rate `lr`, written into `params` and `state`."""
        names = list(params)
        with torch.no_grad():
            g = self._clipped([grads[k] for k in names])
            slots = {slot: [values[k] for k in names] for slot, values in state.items() if slot != "count"}
            slots |= {"count": [state["count"]["steps"]]} if "count" in state else {}
            self._step(g, slots, [params[k] for k in names], lr)
        return params, state

    def update(self, grads: Tensors, state: State, params: Tensors, lr: Rate) -> tuple[Tensors, State]:
        """One step at learning rate `lr`; nothing given is changed."""
        return self.update_(grads, tree.clone(state), tree.clone(params), lr)

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        """Scaled as `torch.nn.utils.clip_grad_norm_` does, without a round trip to the host."""
        if not self.clip:
            return grads
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        scale = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        return list(torch._foreach_mul(grads, scale))

    def _decayed(self, grads: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        if not self.weight_decay:
            return grads
        return list(torch._foreach_add(grads, params, alpha=self.weight_decay))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Polyak's or Nesterov's)."""

    name: ClassVar[str] = "sgd"
    momentum: Annotated[float, Fraction, "share of the last step that is kept"] = 0.0
    nesterov: Annotated[bool, "look ahead along the momentum"] = False

    def __post_init__(self) -> None:
        """Refuse a look-ahead without anything to look along."""
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov is true and momentum is 0: give a momentum above 0, or leave nesterov off.")

    def init(self, params: Tensors) -> State:
        """A momentum buffer per parameter, if there is momentum."""
        return {"momentum": tree.zeros(params)} if self.momentum else {}

    def _step(self, grads: list[Tensor], slots: dict[str, list[Tensor]], params: list[Tensor], lr: Rate) -> None:
        d = self._decayed(grads, params)
        if self.momentum:
            m = slots["momentum"]
            torch._foreach_mul_(m, self.momentum)
            torch._foreach_add_(m, d)
            d = list(torch._foreach_add(d, m, alpha=self.momentum)) if self.nesterov else m
        if isinstance(lr, Tensor):
            torch._foreach_sub_(params, torch._foreach_mul(d, lr))
        else:
            torch._foreach_add_(params, d, alpha=-lr)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, with the L2 penalty inside the gradient."""

    name: ClassVar[str] = "adam"
    lr: Annotated[float, Positive, "learning rate of the first round"] = 0.001
    beta1: Annotated[float, Fraction, "memory of the mean gradient"] = 0.9
    beta2: Annotated[float, Fraction, "memory of the squared gradient"] = 0.999
    eps: Annotated[float, Positive, "added to the root"] = 1e-8

    def init(self, params: Tensors) -> State:
        """Two moments per parameter, and one count of steps."""
        first = next(iter(params.values()))
        steps = torch.zeros((), dtype=torch.float64, device=first.device)
        return {"mean": tree.zeros(params), "square": tree.zeros(params), "count": {"steps": steps}}

    def _step(self, grads: list[Tensor], slots: dict[str, list[Tensor]], params: list[Tensor], lr: Rate) -> None:
        g = self._penalised(grads, params, lr)
        mean, square, t = slots["mean"], slots["square"], slots["count"][0].add_(1)
        torch._foreach_lerp_(mean, g, 1 - self.beta1)
        torch._foreach_mul_(square, self.beta2)
        torch._foreach_addcmul_(square, g, g, 1 - self.beta2)
        # The corrections stay tensors, so that a captured step never asks the host.
        root = list(torch._foreach_sqrt(square))
        kind = root[0].dtype  # scalars of another one would leave the fast path
        torch._foreach_div_(root, (1 - self.beta2**t).sqrt().to(kind))
        torch._foreach_add_(root, self.eps)
        step = list(torch._foreach_div(mean, root))
        torch._foreach_mul_(step, (lr / (1 - self.beta1**t)).to(kind))
        torch._foreach_sub_(params, step)

    def _penalised(self, grads: list[Tensor], params: list[Tensor], lr: Rate) -> list[Tensor]:
        return self._decayed(grads, params)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay."""

    name: ClassVar[str] = "adamw"

    def _penalised(self, grads: list[Tensor], params: list[Tensor], lr: Rate) -> list[Tensor]:
        torch._foreach_mul_(params, 1 - lr * self.weight_decay)
        return grads


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each round, as a share of the first round's."""

    kind: Annotated[Literal["constant", "exponential", "step", "cosine"], "how the rate falls"] = "constant"
    gamma: Annotated[float, Range(0, 1, open_low=True), "factor (exponential: per round; step: per milestone)"] = 0.99
    milestones: Annotated[tuple[float, ...], "step: shares of the run at which gamma applies"] = (0.8,)
    last: Annotated[float, Range(0, 1), "cosine: share of the rate that is left at the end"] = 0.0
    warmup: Annotated[int, Range(0), "rounds over which the rate rises evenly from zero"] = 0

    def factor(self, index: int, total: int) -> float:
        """The share in round `index` (from 0) of `total`."""
        warm = min(1.0, (index + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "exponential":
            return warm * self.gamma**index
        if self.kind == "step":
            return warm * self.gamma ** sum(index >= share * total for share in self.milestones)
        if self.kind == "cosine":
            return warm * (self.last + (1 - self.last) * (1 + cos(pi * index / total)) / 2)
        return warm


OPTIMIZERS: dict[str, type[Any]] = {cls.name: cls for cls in (SGD, Adam, AdamW)}
