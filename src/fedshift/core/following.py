"""Which layers of a network are followed by a norm, and where its feed-forward parts end; read off its structure."""

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx, nn

from .errors import ModelError

Layer = nn.Conv2d | nn.Linear
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


class Pair(NamedTuple):
    """A layer and the BatchNorm that takes its output, by name."""

    layer: str
    norm: str
    ends_branch: bool  # the norm's output is added to a shortcut, itself or a projection


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, (nn.Conv2d, nn.Linear, *NORMS)) or super().is_leaf_module(m, name)


def pairs(module: nn.Module) -> list[Pair]:
    """Every ungrouped convolution or linear layer whose output goes into a BatchNorm, in the order of the forward pass.

    By the flow of data, since a norm may be kept far from its layer; an identity in between is looked through.
    """
    if not any(isinstance(m, NORMS) for m in module.modules()):
        return []
    nodes, known = _graph(module), dict(module.named_modules())
    branches = {_source(end, known) for end in _ends(nodes)}
    found: dict[str, Pair] = {}
    for node in nodes:
        source = _source(node.args[0], known) if node.op == "call_module" else None
        if source is not None and _fits(known[str(source.target)], known[str(node.target)]):
            found.setdefault(str(source.target), Pair(str(source.target), str(node.target), node in branches))
    return list(found.values())


def _ends(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Of each sum of two values the one that took more steps from the input: a branch is longer than its shortcut."""
    depth, ends = dict[fx.Node, int](), list[fx.Node]()
    for node in nodes:
        given = [n for n in node.all_input_nodes if n.op != "get_attr"]
        depth[node] = 1 + max((depth.get(n, 0) for n in given), default=0)
        if len(given) == 2 and node.op != "call_module" and node.target in SUMS:
            ends.append(max(given, key=lambda n: depth.get(n, 0)))
    return ends


def _fits(layer: nn.Module, norm: nn.Module) -> bool:
    if not isinstance(norm, NORMS):
        return False
    if isinstance(layer, nn.Conv2d):  # channels that are computed apart cannot be halved
        return layer.groups == 1 and layer.out_channels == norm.num_features
    return isinstance(layer, nn.Linear) and layer.out_features == norm.num_features


def _graph(module: nn.Module) -> Sequence[fx.Node]:
    try:
        return [n for n in _Tracer().trace(module).nodes if n.args]
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ModelError(
            f"{type(module).__name__}: found a forward pass that cannot be followed ({why}), expected one that does "
            "not branch on its data, so that the norm behind each layer is known; choose another network."
        ) from error


def _source(value: object, known: dict[str, nn.Module]) -> fx.Node | None:
    """The module call that made a value, if it is one."""
    while isinstance(value, fx.Node) and value.op == "call_module":
        if not isinstance(known[str(value.target)], nn.Identity):
            return value
        value = value.args[0]
    return None


def feed_forwards(module: nn.Module) -> list[str]:
    """The second linear layer of each feed-forward part of a transformer: two that widen and narrow again."""
    if not any(isinstance(m, nn.LayerNorm) for m in module.modules()):
        return []
    ends = []
    for prefix, part in module.named_modules():
        linear = [(name, m) for name, m in part.named_children() if isinstance(m, nn.Linear)]
        if len(linear) == 2:
            (_, one), (name, two) = linear
            if (one.in_features, one.out_features) == (two.out_features, two.in_features):
                ends.append(f"{prefix}.{name}" if prefix else name)
    return ends
