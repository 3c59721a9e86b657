"""Functions compiled where torch's compiler can, and what it says where it cannot."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..core.task import Fuse, Task


def fuser(task: Task) -> Fuse | None:
    """How a task's functions are compiled, if its sums may be taken in another order.

    In bf16 small kernels that do not wait for each other are merged, as the casts of all weights are; in tf32 that was
    slower where many clients train at once.
    """
    return None if task.exact else merged if task.net.autocast else compiled


@cache
def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, compiled for each shape it meets."""
    return _compile(fn, {})


@cache
def merged(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with small kernels merged."""
    return _compile(fn, {"combo_kernels": True})


def _compile(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    import torch._dynamo.config as limits

    limits.recompile_limit = limits.accumulated_recompile_limit = 1024  # each method, network and shape is one
    return torch.compile(fn, dynamic=False, options=options)


def refusal(call: Callable[[], object]) -> str:
    """What the compiler says of a call that it cannot do, or nothing. It is compiled the first time of two."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells what it might have done better, which no user can change
            for _ in range(2):
                call()
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        return " ".join(str(error).split())[:150] or type(error).__name__
    return ""
