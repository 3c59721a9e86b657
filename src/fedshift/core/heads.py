"""A network with two heads on one encoder, made from a network with one."""

from collections.abc import Iterable
from copy import copy
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from .errors import ModelError
from .evidence import combine, evidence
from .net import Net, Part, TwoParts, part

M = TypeVar("M", bound=nn.Module)
PRESENT = "local_head.present"


class Fused(nn.Module):
    """ln(e + 1) of the two heads' fused evidence e: as logits, the mean of its Dirichlet density."""

    def forward(self, pair: Tensor, present: Tensor) -> Tensor:
        """`pair` holds both heads' logits, global before local; a local head that is not present has no evidence."""
        ours, own = evidence(pair)
        return combine(ours, own * present).log1p()


class Summed(nn.Module):
    """The sum of the two heads' logits."""

    def forward(self, pair: Tensor, present: Tensor) -> Tensor:
        """A local head that is not present adds nothing."""
        return pair[0] + pair[1] * present


class Head(nn.Module):
    """Hidden layers, whose output is the head's own feature, and a classifier on it; a local one may be absent."""

    present: Tensor

    def __init__(self, hidden: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.hidden, self.classifier = hidden, classifier


class TwoHeads(nn.Module):
    """An encoder, a global and a local head, and how they answer together.

    The features are those of both heads side by side; a tap on `join` sees both heads' logits, [2, B, classes].
    """

    def __init__(self, encoder: nn.Module, head: Head, width: int, join: nn.Module) -> None:
        """The local head is like `head`, with values of its own; each has a feature of `width` numbers."""
        super().__init__()
        self.encoder, self.global_head, self.local_head, self.join = encoder, head, redrawn(head), join
        self.local_head.register_buffer("present", torch.ones(()))
        self.width = 2 * width

    def features(self, x: Tensor) -> Tensor:
        """F_G and F_L, [B, 2 d]."""
        z = self.encoder(x)
        return torch.cat([self.global_head.hidden(z), self.local_head.hidden(z)], 1)

    def head(self, z: Tensor) -> Tensor:
        """What both heads say together."""
        ours, own = z.chunk(2, 1)
        pair = torch.stack([self.global_head.classifier(ours), self.local_head.classifier(own)])
        joined: Tensor = self.join(pair, self.local_head.present)
        return joined

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of pictures."""
        return self.head(self.features(x))


class Features(nn.Module):
    """The features of a network, as a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """What goes into its head."""
        return cast(TwoParts, self.net).features(x)


def two_heads(module: nn.Module, join: nn.Module) -> TwoHeads:
    """The network with its fully connected layers twice; one whose head is a single layer gets a hidden one before it.

    In a network of `body` and `classifier`, a head begins behind the flattening that follows the convolutions.
    """
    encoder, hidden, classifier = _in_a_row(module) or _lifted(module)
    width = cast(TwoParts, module).width
    if not any(True for _ in hidden.parameters()):
        # No BatchNorm: behind a global average a small batch hardly varies, and dividing by that blows rounding up.
        hidden = nn.Sequential(*hidden.children(), nn.Linear(width, width), nn.ReLU())
    return TwoHeads(encoder, Head(hidden, classifier), width, join)


def _in_a_row(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module] | None:
    body, classifier = getattr(module, "body", None), getattr(module, "classifier", None)
    if not isinstance(body, nn.Sequential) or not isinstance(classifier, nn.Module):
        return None
    flat = [i + 1 for i, layer in enumerate(body) if isinstance(layer, nn.Flatten)]
    cut = flat[-1] if flat and any(True for _ in body[: flat[-1]].parameters()) else len(body)
    return body[:cut], body[cut:], classifier


def _lifted(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The last linear layer is the classifier, if the network's head is nothing else."""
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if linear:
        classifier = module.get_submodule(linear[-1])
        module.set_submodule(linear[-1], nn.Identity())
        net = cast(TwoParts, module)
        z = torch.ones(2, net.width)
        if torch.equal(net.head(z), z):
            return Features(module), nn.Sequential(), classifier
    raise ModelError(
        f"two heads: the head of {type(module).__name__} is not its last linear layer alone; choose a network whose "
        "head is, or one that consists of `body` and `classifier`."
    )


def redrawn(module: M) -> M:
    """A module of the same shape whose layers drew their values anew, from torch's global generator."""
    twin = copy(module)
    twin._parameters = {k: None if p is None else nn.Parameter(p.detach().clone()) for k, p in twin._parameters.items()}
    twin._buffers = {k: None if b is None else b.clone() for k, b in twin._buffers.items()}
    twin._modules = {k: None if m is None else redrawn(m) for k, m in twin._modules.items()}
    if callable(draw := getattr(twin, "reset_parameters", None)):
        draw()
    return twin


def within(net: Net, names: Iterable[str]) -> frozenset[str]:
    """Names of every tensor of these sub-modules."""
    parts = [(name, net.module.get_submodule(name)) for name in names]
    return frozenset(
        full for name, part in parts for kind in (part.named_parameters, part.named_buffers) for full, _ in kind(name)
    )


def absent(net: Net) -> Part:
    """A local head that has no say."""
    own = part(net.variables(), within(net, ["local_head"]))
    return own._replace(buffers=own.buffers | {PRESENT: torch.zeros_like(own.buffers[PRESENT])})
