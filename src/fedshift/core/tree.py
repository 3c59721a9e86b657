"""Arithmetic on states: trees whose nodes are NamedTuples or dicts by name, and whose leaves are tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .errors import MessageError

T = TypeVar("T")
Tensors = dict[str, Tensor]
Room = Callable[[Tensor], Tensor]  # memory for a tensor like that one
SMALL = 2**17  # bytes: such blocks the C library hands out again by itself


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path, as in `model/params/conv1.weight`."""
    if isinstance(tree, Tensor):
        yield path, tree
        return
    for name, child in _children(tree, path):
        yield from leaves(child, f"{path}/{name}" if path else name)


def map(fn: Callable[..., Tensor], tree: T, *rest: object) -> T:
    """Apply `fn` tensor by tensor; the other trees must have the first one's names."""
    return cast(T, _map(fn, "", tree, rest))


def _map(fn: Callable[..., Tensor], path: str, tree: Any, rest: Sequence[Any]) -> Any:
    if isinstance(tree, Tensor):
        try:
            return fn(tree, *rest)
        except Exception as error:
            error.add_note(f"at tensor {path or '(root)'}")
            raise
    for other in rest:
        _same_names(path, tree, other)
    if isinstance(tree, dict):
        return {k: _map(fn, f"{path}/{k}" if path else k, v, [o[k] for o in rest]) for k, v in tree.items()}
    parts = zip(getattr(tree, "_fields", ()), tree, *rest, strict=True)
    done = [_map(fn, f"{path}/{k}" if path else k, v, others) for k, v, *others in parts]
    return type(tree)(*done)


def _children(tree: object, path: str) -> Iterable[tuple[str, object]]:
    if isinstance(tree, Mapping):
        return tree.items()
    if isinstance(tree, tuple) and (hasattr(tree, "_fields") or not tree):
        return zip(getattr(tree, "_fields", ()), tree, strict=True)
    raise MessageError(
        f"{path or 'state'}: found {type(tree).__name__}, expected a tensor, a NamedTuple or a dict of tensors; "
        "keep every part of a state in one of these."
    )


def _same_names(path: str, tree: object, other: object) -> None:
    a = {name for name, _ in _children(tree, path)}
    b = {name for name, _ in _children(other, path)}
    if a != b:
        odd = sorted(a ^ b)[:3]
        raise MessageError(f"{path or 'state'}: two trees differ in {', '.join(odd)}; give trees with the same names.")


def send(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on `device`; on its way from the host to a GPU it passes pinned memory, so that the host goes on."""
    if x.device == device or x.device.type != "cpu" or device.type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def zeros(tree: T) -> T:
    """A tree of zeros in the same shapes."""
    return map(torch.zeros_like, tree)


def clone(tree: T, room: Room | None = None) -> T:
    """A copy that shares no memory with `tree`, in `room` or in new memory; memory formats are kept."""
    return map(torch.clone if room is None else lambda t: room(t).copy_(t) if t.nbytes > SMALL else t.clone(), tree)


def sub(a: T, b: T) -> T:
    """`a - b`."""
    return map(torch.sub, a, b)


def axpy(alpha: float, x: T, y: T) -> T:
    """`y + alpha * x`."""
    return map(lambda u, v: v.add(u, alpha=alpha), x, y)


def blend(share: float, new: T, old: T) -> T:
    """`old + share * (new - old)`; a share of one is `new` to the bit."""
    return new if share == 1 else map(lambda n, o: o.lerp(n, share), new, old)


def sq_norm(tree: object) -> Tensor:
    """The squared Euclidean norm over all tensors."""
    return torch.stack([x.square().sum() for _, x in leaves(tree)]).sum()


def mean(trees: Iterable[T], weights: Sequence[float], room: Room = torch.empty_like) -> T:
    """The weighted mean, taken one tree at a time, so that a stream of models never piles up in memory.

    Tensors of whole numbers (step counters) take the largest value: a mean of counts has no meaning.
    """
    total: T | None = None
    for tree, weight in zip(trees, weights, strict=True):
        total = map(lambda x, w=weight: _scaled(x, w, room), tree) if total is None else _add(total, tree, weight)
    if total is None:
        raise MessageError("mean: found no trees, expected at least one; check who took part in the round.")
    return total


def _scaled(x: Tensor, weight: float, room: Room) -> Tensor:
    return torch.mul(x.detach(), weight, out=room(x)) if x.is_floating_point() else x.clone()


def _add(total: T, tree: T, weight: float) -> T:
    """Add in place, in few kernels: `total` was made by `mean` and is nobody else's."""
    sums, new = list[Tensor](), list[Tensor]()

    def pair(t: Tensor, x: Tensor) -> Tensor:
        if t.shape != x.shape:
            raise MessageError(f"mean: found a tensor {tuple(x.shape)}, expected {tuple(t.shape)} as in the first tree")
        if t.is_floating_point():
            sums.append(t)
            new.append(x)
            return t
        return torch.maximum(t, x, out=t)

    map(pair, total, tree)
    if sums:
        torch._foreach_add_(sums, new, alpha=weight)
    return total


def nbytes(tree: object) -> int:
    """Bytes of all tensors."""
    return sum(x.numel() * x.element_size() for _, x in leaves(tree))


def extremes(tree: object) -> tuple[list[str], Tensor]:
    """The largest absolute value of each floating tensor, in few kernels and without asking the host; and their paths.

    NaN where a tensor holds NaN.
    """
    floats = [(path, x) for path, x in leaves(tree) if x.is_floating_point() and x.numel()]
    if not floats:
        return [], torch.zeros(0)
    return [path for path, _ in floats], _largest([x.detach() for _, x in floats]).float()


def _largest(tensors: list[Tensor]) -> Tensor:
    """On the CPU torch's maximum norm takes ten times as long as memory does; its extreme values do not."""
    if tensors[0].is_cuda:
        return torch.stack([m.float() for m in torch._foreach_norm(tensors, float("inf"))])
    low, high = (torch.stack(ends) for ends in zip(*(x.aminmax() for x in tensors), strict=True))
    return torch.maximum(high, -low)


def first_bad(tree: object) -> str | None:
    """The path of the first tensor that holds NaN or infinity, or None."""
    return bad_among(*extremes(tree))


def bad_among(paths: Sequence[str], largest: Tensor) -> str | None:
    """The first of these tensors that holds NaN or infinity, or None; the host waits here."""
    fine = largest.isfinite().tolist()
    return None if all(fine) else paths[fine.index(False)]
