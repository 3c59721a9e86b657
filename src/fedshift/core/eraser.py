"""Domain shift erasers: a layer and its norm become a shared extractor and a personal eraser (FDSE, section 3)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .errors import ModelError
from .following import Layer, Pair, feed_forwards, pairs
from .net import BATCH_NORM

Activation = Literal["relu", "leaky", "none"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "none": nn.Identity}


class Eraser(nn.Module):
    """Eq. 3 without its last norm: a part of the channels is extracted, and these and a cheap map of each come out.

    `extract` is domain-agnostic, and shared; `norm` and `erase` are domain-specific, and personal. The last norm,
    which it `feeds`, is the network's own and stays where it was. `depth` counts erasers along the way, from 0.
    """

    def __init__(
        self, layer: Layer, feeds: str, depth: int, *, ratio: int = 2, kernel: int = 3, act: Activation = "relu"
    ) -> None:
        """From a layer of T channels; it keeps the first T / `ratio` of its own filters, rounded up."""
        super().__init__()
        conv = isinstance(layer, nn.Conv2d)
        self.feeds, self.depth, self.channels = feeds, depth, len(layer.weight)
        few = -(-self.channels // ratio)
        self.extract = _narrowed(layer, few)
        self.norm: nn.Module = nn.BatchNorm2d(few) if conv else nn.BatchNorm1d(few)
        self.act = ACTIVATIONS[act]()
        self.erase: nn.Module = (
            nn.Conv2d(few, few * (ratio - 1), kernel, 1, kernel // 2, groups=few, bias=False)
            if conv
            else Scales(few, ratio - 1)
        )
        self.to(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The extracted maps, then those made from them; as many channels as the layer had."""
        z = self.act(self.norm(self.extract(x)))
        return torch.cat([z, self.erase(z)], 1)[:, : self.channels]


class Scales(nn.Module):
    """A depthwise 1x1 convolution of vectors: `times` multiples of each number."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, times).uniform_(-1, 1))  # as torch starts such a convolution

    def forward(self, z: Tensor) -> Tensor:
        """[B, width] -> [B, width times]."""
        return (z.unsqueeze(-1) * self.weight).flatten(1)


class Rows(nn.Module):
    """What it holds, on every token: [B, tokens, S] -> [B, tokens, T]; statistics are over batch and tokens."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Flatten, compute, and put the tokens back."""
        z: Tensor = self.body(x.flatten(0, -2))
        return z.view(*x.shape[:-1], -1)


def _ends_of_branches(module: nn.Module, found: Sequence[Pair], ends: Sequence[str]) -> list[Pair]:
    chosen = [pair for pair in found if pair.ends_branch]
    if found and not chosen and not ends:
        raise ModelError(
            f"{type(module).__name__} with blocks = 'last': found {len(found)} layers before a BatchNorm, none at the "
            "end of a branch beside a shortcut, expected one at least; choose a network with shortcuts, such as "
            "'resnet18', or set method.blocks = 'all'."
        )
    return chosen


class Names(NamedTuple):
    """What belongs to whom in a network with erasers; all tensors not named here are everybody's."""

    norms: tuple[str, ...]  # the norm behind each eraser, by depth
    personal: frozenset[str]  # parameters of the erasers' norms, and kernels of their maps
    local: frozenset[str]  # running statistics of the erasers' norms


def install(
    module: nn.Module, where: Literal["all", "last"] = "all", ratio: int = 2, kernel: int = 3, act: Activation = "relu"
) -> nn.Module:
    """Put an eraser in the place of each layer before a BatchNorm, or at the end of each branch that a shortcut joins.

    A transformer's feed-forward parts, which no BatchNorm follows, get one after their second linear layer.
    """
    options: dict[str, Any] = {"ratio": ratio, "kernel": kernel, "act": act}
    found, ends = pairs(module), feed_forwards(module)
    if where == "last":
        found = _ends_of_branches(module, found, ends)
    if not found and not ends:
        raise ModelError(
            f"{type(module).__name__}: found no convolution or linear layer with a BatchNorm after it and no "
            "transformer's feed-forward part, expected one at least, for an eraser to take its place; choose a network "
            "that has them, such as 'small-cnn' or 'alexnet-fdse', or switch norms on (mlp: model.options.norm = true)."
        )
    for depth, pair in enumerate(found):
        module.set_submodule(pair.layer, Eraser(_layer(module, pair.layer), pair.norm, depth, **options))
    for depth, name in enumerate(ends, len(found)):
        layer = _layer(module, name)
        norm = nn.BatchNorm1d(len(layer.weight)).to(layer.weight)
        module.set_submodule(name, Rows(Eraser(layer, f"{name}.body.1", depth, **options), norm))
    return module


def names(module: nn.Module) -> Names:
    """By the type of its modules."""
    erasers = [(prefix, m) for prefix, m in module.named_modules() if isinstance(m, Eraser)]
    own = [(f"{prefix}.{k}", part) for prefix, m in erasers for k, part in (("norm", m.norm), ("erase", m.erase))]
    return Names(
        tuple(m.feeds for _, m in sorted(erasers, key=lambda pair: pair[1].depth)),
        frozenset(f"{prefix}.{k}" for prefix, part in own for k, _ in part.named_parameters()),
        frozenset(f"{prefix}.{k}" for prefix, part in own for k, _ in part.named_buffers()),
    )


@contextmanager
def others_still(module: nn.Module) -> Iterator[None]:
    """The norms inside erasers train; every other BatchNorm normalises by its running statistics and keeps them."""
    local = names(module).local
    module.train()  # as `Net` would, which then leaves the modes as they are
    for name, inner in module.named_modules():
        if isinstance(inner, BATCH_NORM) and f"{name}.running_mean" not in local:
            inner.eval()
    try:
        yield
    finally:
        module.train()


def blocks(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The shared parameters that make one layer of the paper: an extractor with its last norm, or one other module."""
    whose: dict[str, str] = {m.feeds: f"{prefix}.extract" for prefix, m in module.named_modules()
                             if isinstance(m, Eraser)}  # fmt: skip
    personal, groups = names(module).personal, dict[str, tuple[str, ...]]()
    for name, _ in module.named_parameters():
        if name not in personal:
            home = name.rpartition(".")[0]
            group = whose.get(home, home)
            groups[group] = (*groups.get(group, ()), name)
    return groups


def _layer(module: nn.Module, name: str) -> Layer:
    layer = module.get_submodule(name)
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    return layer


def _narrowed(layer: Layer, few: int) -> Layer:
    """The layer with the first of its filters alone, as they are."""
    bias = layer.bias is not None
    new: Layer
    if isinstance(layer, nn.Conv2d):
        shape: dict[str, Any] = {k: getattr(layer, k) for k in ("kernel_size", "stride", "padding", "dilation")}
        new = nn.Conv2d(layer.in_channels, few, **shape, bias=bias, padding_mode=layer.padding_mode)
    else:
        new = nn.Linear(layer.in_features, few, bias=bias)
    new.load_state_dict({k: t[:few] for k, t in layer.state_dict().items()})
    return new
