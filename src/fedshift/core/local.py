"""A client's plain step, and two ways to take its gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from . import tree
from .algorithm import Algorithm
from .net import Variables
from .optim import State
from .task import Batch, Loss, Metrics, Task, Work
from .tree import Tensors

Method = Algorithm[Any, Any, Any, Any]
Objective = Callable[[Tensors], tuple[Tensor, Loss]]


def descend(
    alg: Method,
    task: Task,
    work: Work,
    batch: Batch,
    names: frozenset[str] | None = None,
) -> tuple[Work, Metrics]:
    """One step: the gradient of the loss, corrected, then the optimiser. `names` limits what is trained."""
    params = work.model.params
    free = params if names is None else {k: params[k] for k in params if k in names}
    grads, loss = task.gradient(partial(task.fuse(_objective), alg, task, work, batch), free)
    free, opt = task.fuse(_update)(alg, task, work, grads, free)
    model = Variables(free if names is None else params | free, loss.buffers)
    return work._replace(model=model, opt=opt, aux=loss.aux), {"loss": loss.value, **loss.metrics}


def _objective(alg: Method, task: Task, work: Work, batch: Batch, free: Tensors) -> tuple[Tensor, Loss]:
    model = Variables(work.model.params | free, work.model.buffers)
    loss = alg.loss(task, work._replace(model=model), batch)
    return loss.value, loss


def _update(alg: Method, task: Task, work: Work, grads: Tensors, free: Tensors) -> tuple[Tensors, State]:
    return task.update(alg.correct(task, grads, work), work.opt, free, work.round.lr)


def functional_gradient(objective: Objective, params: Tensors) -> tuple[Tensors, Loss]:
    """By `torch.func`: nothing that was given is touched."""
    grads, loss = grad(objective, has_aux=True)(params)
    return grads, detached(loss)


def autograd_gradient(objective: Objective, params: Tensors) -> tuple[Tensors, Loss]:
    """By `autograd.grad` on the tensors themselves, which the engine owns."""
    leaves = list(params.values())
    for p in leaves:
        p.requires_grad_(True)
    try:
        value, loss = objective(params)
        grads = torch.autograd.grad(value, leaves, materialize_grads=True)
    finally:
        for p in leaves:
            p.requires_grad_(False)
    return dict(zip(params, grads, strict=True)), detached(loss)


def detached(loss: Loss) -> Loss:
    """Without the graph behind it."""
    return Loss(
        loss.value.detach(),
        tree.map(Tensor.detach, loss.buffers),
        tree.map(Tensor.detach, loss.aux),
        {k: v.detach() for k, v in loss.metrics.items()},
    )
