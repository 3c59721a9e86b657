"""A network's head alone: its tensors, its logits from representations, and the statistics it normalises these by."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from . import seeds, tree
from .net import BATCH_NORM, Net, TwoParts, Variables
from .task import Answer, Task
from .tree import Tensors


class _Head(nn.Module):
    """Let `functional_call` and hooks reach the head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, z: Tensor) -> Tensor:
        return cast(TwoParts, self.body).head(z)


def width(net: Net) -> int:
    """p: numbers in a representation."""
    return cast(TwoParts, net.module).width


def head_names(net: Net) -> frozenset[str]:
    """Names of every tensor of the modules that the head calls."""
    return frozenset(
        f"{prefix}.{name}"
        for prefix, module, _ in _called(net)
        for named in (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, _ in named
    )


def head_norm(net: Net) -> str | None:
    """The BatchNorm layer through which the head takes representations in, if it has one."""
    return next((k for k, module, first in _called(net) if first and isinstance(module, BATCH_NORM)), None)


def head_logits(net: Net, params: Tensors, buffers: Tensors, z: Tensor) -> Tensor:
    """[B, p] -> [B, C] in evaluation, so that BatchNorm keeps to its statistics and leaves them as they are."""
    if net.module.training:
        net.module.train(False)
    named = {f"body.{k}": t for part in (params, buffers) for k, t in part.items()}
    return cast(Tensor, functional_call(_Head(net.module), named, (z,), tie_weights=False))


def all_logits(net: Net, params: Tensors, buffers: Tensors, z: Tensor) -> Tensor:
    """Of m heads at once, whose tensors are stacked: [m, B, p] -> [m, B, C]; [B, p] goes through each of them."""
    each = vmap(lambda p, b, x: head_logits(net, p, b, x), in_dims=(0, 0, 0 if z.dim() == 3 else None))
    return each(params, buffers, z)


def by_batch(task: Task, model: Variables, x: Tensor) -> tuple[Answer, Variables]:
    """An answer in training mode: images of a test batch normalise each other. The model stays as it is."""
    if len(x) < 2:  # nothing to normalise by
        return Answer(task.net(model, x, train=False).logits), model
    with seeds.scope(task.seed):  # for dropout
        return Answer(task.net(Variables(model.params, tree.clone(model.buffers)), x, train=True).logits), model


def _called(net: Net) -> Sequence[tuple[str, nn.Module, bool]]:
    """Sub-modules that compute the head, each with whether it is given the representation itself."""
    like = next(net.module.parameters())
    z, found, hooks = like.new_zeros((2, width(net))), list[tuple[str, nn.Module, bool]](), list[Any]()

    def note(name: str, module: nn.Module) -> Any:
        return lambda _, args: found.append((name, module, bool(args) and args[0] is z))

    net.module.train(False)
    try:
        for name, module in net.module.named_modules():
            if name:
                hooks.append(module.register_forward_pre_hook(note(name, module)))
        with torch.no_grad():
            cast(TwoParts, net.module).head(z)
    finally:
        for hook in hooks:
            hook.remove()
    return found
