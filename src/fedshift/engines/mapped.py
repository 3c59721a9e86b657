"""One step of many clients at once: the method's own functions, mapped over an axis of clients."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from ..core.algorithm import Algorithm
from ..core.errors import FedshiftError
from ..core.local import detached, functional_gradient
from ..core.net import Net, Variables
from ..core.optim import SGD, Optimizer, Rate, State
from ..core.task import Batch, Loss, Phase, Task, Work
from ..core.tree import Tensors
from .base import Method
from .tape import Carried, StepRound

CHANGED = ("model", "opt", "aux")  # what a step may change
Step = Callable[[Carried, Carried, Rate, Batch], tuple[Sequence[Any], dict[str, Tensor]]]


class NotTogether(FedshiftError):
    """Clients that cannot be trained at once, and why."""


def pure(task: Task) -> Task:
    """The task, computing in ways that can be mapped."""
    net = Net(task.net.module, autocast=task.net.autocast)
    return replace(task, net=net, gradient=functional_gradient, update=partial(_update, task.optimizer))


def step(method: Method, task: Task, phase: Phase) -> Step:
    """From what the clients carry, and which of its tensors have their axis, to what has changed, and the metrics."""
    if phase.step is not None:
        return _told(partial(_own, task, phase))
    return _told(partial(_descend, method, task, phase.trains))


def _told(act: Step) -> Step:
    """Whatever fails, fails for one reason: it cannot be mapped. One by one, a true error comes again."""

    def guarded(carried: Carried, dims: Carried, lr: Rate, batch: Batch) -> tuple[Sequence[Any], dict[str, Tensor]]:
        try:
            with warnings.catch_warnings(action="error"):  # what can only be mapped by a loop is not worth it
                return act(carried, dims, lr, batch)
        except Exception as error:
            text = " ".join(str(error).split())
            draws = "random operation" in text
            raise NotTogether(
                "its step draws random numbers" if draws else f"its step cannot be mapped ({text[:150]})"
            ) from error

    return guarded


def _work(carried: Carried, lr: Rate) -> Work:
    round_: Any = StepRound(lr)  # type: ignore[arg-type]
    return Work(carried.model, carried.down, carried.client, round_, carried.opt, carried.aux)


def _own(task: Task, phase: Phase, carried: Carried, dims: Carried, lr: Rate, batch: Batch) -> Any:
    """A phase's own step, whole."""

    def one(carried: Carried, batch: Batch) -> tuple[Any, Any]:
        assert phase.step is not None
        work = _work(carried, lr)
        after, metrics = phase.step(task, work, batch)
        if after.down is not work.down or after.client is not work.client:
            raise NotTogether("it changes more than the model, the optimiser and aux")
        return tuple(getattr(after, name) for name in CHANGED), dict(metrics)

    return vmap(one, (dims, 0))(carried, batch)


def _descend(
    method: Method,
    task: Task,
    names: frozenset[str] | None,
    carried: Carried,
    dims: Carried,
    lr: Rate,
    batch: Batch,
) -> Any:
    """`core.local.descend` in three parts: clients share no weight, so one gradient of the sum is each one's own."""
    params = carried.model.params
    free = params if names is None else {k: p for k, p in params.items() if k in names}
    leaves = {k: p.detach().requires_grad_() for k, p in free.items()}

    def objective(free: Tensors, carried: Carried, batch: Batch) -> tuple[Tensor, Loss]:
        work = _work(carried, lr)
        model = Variables(work.model.params | free, work.model.buffers)
        loss = method.loss(task, work._replace(model=model), batch)
        return loss.value, loss._replace(metrics=dict(loss.metrics))

    with torch.enable_grad(), _Picked():
        values, loss = vmap(objective, (0, dims, 0))(leaves, carried, batch)
        grads = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True)
    found, loss = dict(zip(leaves, grads, strict=True)), detached(loss)
    if type(method).correct is not Algorithm.correct:
        found = vmap(lambda g, c: method.correct(task, g, _work(c, lr)), (0, dims))(found, carried)
    free, opt = _updated(task, found, carried.opt, free, lr)
    model = Variables(free if names is None else params | free, loss.buffers)
    return (model, opt, loss.aux), {"loss": loss.value, **loss.metrics}


def _updated(task: Task, grads: Tensors, opt: State, free: Tensors, lr: Rate) -> tuple[Tensors, State]:
    """Number by number, the axis does not matter."""
    if isinstance(task.optimizer, SGD) and not task.optimizer.clip:
        return task.optimizer.update_(grads, opt, free, lr)
    return vmap(lambda g, o, p: task.update(g, o, p, lr))(grads, opt, free)


def _update(optimizer: Optimizer, grads: Tensors, state: State, params: Tensors, lr: Rate) -> tuple[Tensors, State]:
    with _OneByOne():
        return optimizer.update_(grads, state, params, lr)


PLAIN = {  # a call of `F.cross_entropy` with logits and labels alone
    "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean",
    "label_smoothing": 0.0,
}  # fmt: skip


class _Picked(TorchFunctionMode):
    """Plain cross-entropies by picking from the logarithms; torch maps its own by way of sympy, slow to import."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        plain = func is F.cross_entropy and kwargs == PLAIN
        if not plain or args[0].dim() != 2 or args[1].dim() != 1:
            return func(*args, **(kwargs or {}))
        logits, y = args
        return -logits.log_softmax(1).gather(1, y[:, None]).mean()


IN_PARTS: dict[str, Callable[..., Tensor]] = {  # what torch cannot map, by what it can
    "lerp_": lambda start, end, weight: start.add_(end - start, alpha=weight),
    "addcmul_": lambda t, a, b, value=1: t.add_(a * b, alpha=value),
}


class _OneByOne(TorchFunctionMode):
    """Kernels over lists of tensors, which cannot be mapped, as what they compute: the same tensor by tensor."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, lists = getattr(func, "__name__", ""), [a for a in args if isinstance(a, list)]
        if not name.startswith("_foreach_") or not lists:
            return func(*args, **(kwargs or {}))
        name = name.removeprefix("_foreach_")
        one = IN_PARTS.get(name) or getattr(Tensor, name)
        rows = ([a[i] if isinstance(a, list) else a for a in args] for i in range(len(lists[0])))
        return [one(*row, **(kwargs or {})) for row in rows]
