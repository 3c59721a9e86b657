"""Averages of models by the protocol's rules, for every method that averages."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from . import tree
from .errors import MessageError
from .net import BATCH_NORM, Net, Part, Variables
from .task import Cohort, Rules, Task
from .tree import Tensors

T = TypeVar("T")


def weigh(rules: Rules, ids: Sequence[int], examples: Sequence[int]) -> tuple[tuple[float, ...], float]:
    """The weights of a cohort, summing to one, and the cohort's share of the weight of all clients."""
    everyone = [float(n) if rules.weights == "examples" else 1.0 for n in examples]
    mine = [everyone[i] for i in ids]
    return tuple(w / sum(mine) for w in mine), sum(mine) / sum(everyone)


def average(task: Task, trees: Iterable[T], cohort: Cohort) -> T:
    """The cohort's weighted mean; with the rule `pooled`, running variances are those of the pooled data."""
    if task.rules.buffers != "pooled":
        return tree.mean(trees, cohort.weights, task.room)
    pairs = variance_pairs(task.net)
    mean = tree.mean((_on_buffers(_second_moments, pairs, t) for t in trees), cohort.weights, task.room)
    return _on_buffers(_variances, pairs, mean)


def average_by(task: Task, weighed: Iterable[tuple[T, Tensor]]) -> T:
    """As `average`, by weights that come with the trees and need not sum to one; all zero, they count as equal.

    A running mean: trees that agree are a fixed point to the bit, and none is kept.
    """
    pooled, mean, total = task.rules.buffers == "pooled", cast(T, None), torch.zeros(())
    pairs = variance_pairs(task.net) if pooled else {}
    for number, (state, weight) in enumerate(weighed, 1):
        new = _on_buffers(_second_moments, pairs, state) if pooled else state
        total = total.to(weight) + weight
        share = torch.where(total > 0, weight / total.clamp(min=1e-300), 1 / number)
        mean = (
            tree.clone(new, task.room) if number == 1 else tree.map(lambda m, x, s=share: _towards(m, x, s), mean, new)
        )
    if mean is None:
        raise MessageError("average_by: found no trees, expected at least one; check who took part in the round.")
    return _on_buffers(_variances, pairs, mean) if pooled else mean


def _towards(mean: Tensor, new: Tensor, share: Tensor) -> Tensor:
    """In place: `mean` is nobody else's. Whole numbers take the larger value, as in `tree.mean`."""
    if mean.is_floating_point():
        return mean.lerp_(new, share.to(mean))
    return torch.maximum(mean, new, out=mean)


def _on_buffers(fn: Callable[[dict[str, str], Tensors], Tensors], pairs: dict[str, str], state: T) -> T:
    """Apply `fn` to the buffers of every model in a state."""
    if isinstance(state, (Variables, Part)):
        return cast(T, state._replace(buffers=fn(pairs, state.buffers)))
    if isinstance(state, tuple):
        return cast(T, type(state)(*(_on_buffers(fn, pairs, field) for field in state)))
    return state


def variance_pairs(net: Net) -> dict[str, str]:
    """For each running variance of a BatchNorm layer, the name of its running mean."""
    stats = sorted(net.under(*BATCH_NORM))
    return {k: k.removesuffix("running_var") + "running_mean" for k in stats if k.endswith("running_var")}


def _second_moments(pairs: dict[str, str], buffers: Tensors) -> Tensors:
    """E[x^2] in place of Var[x], in float64: the mean over clients is then that of the pooled data."""
    wide = {k: buffers[k].double() + buffers[m].double().square() for k, m in pairs.items() if k in buffers}
    return buffers | wide


def _variances(pairs: dict[str, str], buffers: Tensors) -> Tensors:
    narrow = {
        k: (buffers[k] - buffers[m].double().square()).clamp(min=0).to(buffers[m].dtype)
        for k, m in pairs.items()
        if k in buffers
    }
    return buffers | narrow


def local_statistics(net: Net) -> frozenset[str]:
    """What the rule `local` keeps at each site: the buffers of BatchNorm layers."""
    parameters = {name for name, _ in net.module.named_parameters()}
    return net.under(*BATCH_NORM) - parameters
