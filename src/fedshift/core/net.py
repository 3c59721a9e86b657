"""A network as a function of its tensors."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .tree import Tensors

BATCH_NORM: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._BatchNorm,)


class Variables(NamedTuple):
    """All that a network computes with: trained parameters, and buffers such as running statistics."""

    params: Tensors
    buffers: Tensors


class Part(NamedTuple):
    """Some of a network's tensors, under the network's own names."""

    params: Tensors
    buffers: Tensors


class Output(NamedTuple):
    """What a forward pass gives: `buffers` after it, and the inputs of the tapped sub-modules."""

    logits: Tensor
    features: Tensor
    buffers: Tensors
    taps: Tensors


class TwoParts(Protocol):
    """What a network must offer: `features(x)`, `head(z)`, and how many numbers a feature has."""

    width: int

    def features(self, x: Tensor) -> Tensor:
        """The representation of a batch."""
        ...

    def head(self, z: Tensor) -> Tensor:
        """The logits of a representation."""
        ...


class _Split(nn.Module):
    """Let `functional_call` reach features and logits in one pass."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        body = cast(TwoParts, self.body)
        z = body.features(x)
        return body.head(z), z


class Net:
    """A stateless view of `module`: its own tensors are only the values that training starts from.

    `in_place` is the engine's choice: buffers that a training pass updates are then written where they lie,
    which is only right when the engine gave the pass buffers of its own.
    `autocast` is a lower precision for what gains from it; outputs and taps are in the parameters' own again.
    One `Net` belongs to one thread, since train and eval mode are switched on the module.
    """

    def __init__(self, module: nn.Module, *, in_place: bool = False, autocast: torch.dtype | None = None) -> None:
        self.module = module
        self.in_place = in_place
        self.autocast = autocast
        self._split = _Split(module)

    def variables(self) -> Variables:
        """A copy of the initial values."""
        return Variables(
            {k: v.detach().clone() for k, v in self.module.named_parameters()},
            {k: v.detach().clone() for k, v in self.module.named_buffers()},
        )

    def __call__(self, v: Variables, x: Tensor, *, train: bool, taps: Sequence[str] = ()) -> Output:
        """One forward pass; `v` is left as it is, unless the engine asked for `in_place`."""
        if self.module.training is not train:
            self.module.train(train)
        clone = train and not self.in_place
        buffers = {k: b.clone() for k, b in v.buffers.items()} if clone else v.buffers
        seen: Tensors = {}
        hooks = [self._tap(name, seen) for name in taps]
        try:
            named = {f"body.{k}": t for part in (v.params, buffers) for k, t in part.items()}
            with torch.autocast(x.device.type, self.autocast, enabled=self.autocast is not None):
                logits, z = functional_call(self._split, named, (x,), tie_weights=False)
        finally:
            for hook in hooks:
                hook.remove()
        if self.autocast is not None:
            logits, z, seen = logits.to(x.dtype), z.to(x.dtype), {k: t.to(x.dtype) for k, t in seen.items()}
        return Output(logits, z, buffers, seen)

    def _tap(self, name: str, seen: Tensors) -> torch.utils.hooks.RemovableHandle:
        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[name] = args[0]

        return self.module.get_submodule(name).register_forward_pre_hook(keep)

    def under(self, *kinds: type[nn.Module]) -> frozenset[str]:
        """Names of every tensor held by a module of one of these kinds."""
        return frozenset(
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.module.named_modules()
            if isinstance(module, kinds)
            for named in (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
            for name, _ in named
        )


def part(v: Variables | Part, names: Collection[str]) -> Part:
    """Those tensors of `v` that are named."""
    return Part({k: t for k, t in v.params.items() if k in names}, {k: t for k, t in v.buffers.items() if k in names})


def without(v: Variables | Part, names: Collection[str]) -> Part:
    """Those tensors of `v` that are not named."""
    return Part(
        {k: t for k, t in v.params.items() if k not in names},
        {k: t for k, t in v.buffers.items() if k not in names},
    )


def overlay(v: Variables, own: Part) -> Variables:
    """`v` with the tensors of `own` in place of its own ones."""
    if not (own.params or own.buffers):
        return v
    return Variables(v.params | own.params, v.buffers | own.buffers)
