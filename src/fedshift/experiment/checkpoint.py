"""A run's state as one safetensors file: tensors by path, the rest as JSON in its header."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..core import state as states
from ..core.errors import CheckpointError, MessageError
from ..core.net import Net, Part
from ..core.optim import State as OptState
from ..engines.base import Memory, Method
from ..engines.loop import State
from ..engines.machine import WATCH
from .files import write_whole

FORMAT = "1"
CHANNELS_LAST = torch.channels_last


def save_checkpoint(path: Path, state: State, extra: dict[str, Any]) -> None:
    """Write the state of a run; `extra` comes back with it."""
    trees: dict[str, Any] = {"server": state.server}
    for when, memories in (("memory", state.memory), ("before", state.before)):
        trees |= {f"{when}/{i}/{field}": value for i, m in memories.items() for field, value in m._asdict().items()}
    tensors = {f"{path}/{k}": v for path, tree in trees.items() for k, v in states.flatten(tree).items()}
    numbers = {k: getattr(state, k) for k in ("stage", "done", "total", "bytes_up", "bytes_down", "metrics")}
    numbers |= {"memory": sorted(state.memory), "before": sorted(state.before)}
    last = [
        name for name, t in tensors.items() if not t.is_contiguous() and t.is_contiguous(memory_format=CHANNELS_LAST)
    ]
    header = {"format": FORMAT, "state": json.dumps(numbers), "extra": json.dumps(extra), "last": json.dumps(last)}
    header |= states.in_order(tensors)
    write_whole(path, save(_separate(tensors), header))


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory, as the format demands."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        with WATCH:
            t = tensor.detach().cpu().contiguous()
        out[name] = t.clone() if t.data_ptr() in seen else t
        seen.add(t.data_ptr())
    return out


def load_checkpoint(path: Path, method: Method, net: Net) -> tuple[State, dict[str, Any]]:
    """The state and `extra`; a file of another version, or for another method, is an error and changes nothing."""
    tensors, header = states.read(path)
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: found checkpoint format {header.get('format', 'none')}, expected {FORMAT}; "
            "resume with the version that wrote it, or start the run again."
        )
    for name in json.loads(header.get("last", "[]")):  # as they lay: sums are then taken in the same order
        tensors[name] = tensors[name].contiguous(memory_format=CHANNELS_LAST)
    numbers = json.loads(header["state"])
    try:
        state = _restore(tensors, numbers, method)
        _check(state, method, net)
    except (MessageError, KeyError, IndexError) as error:
        raise CheckpointError(f"{path}: does not fit method {method.name} ({error}); start the run again.") from error
    return state, json.loads(header["extra"])


def _restore(tensors: dict[str, Tensor], numbers: dict[str, Any], method: Method) -> State:
    stages = method.stages()
    server, client, _, _ = states.schema(type(stages[numbers["stage"]]))
    earlier = states.schema(type(stages[numbers["stage"] - 1]))[1] if numbers["before"] else client
    memory = {i: _memory(tensors, f"memory/{i}", client) for i in numbers.pop("memory")}
    before = {i: _memory(tensors, f"before/{i}", earlier) for i in numbers.pop("before")}
    return State(server=_take(tensors, "server", server), memory=memory, before=before, **numbers)


def _check(state: State, method: Method, net: Net) -> None:
    """The network's tensors must be there, whole and in shape."""
    server, client, _, _ = states.schema(type(method.stages()[state.stage]))
    states.check(state.server, server, net, "server")
    for i, memory in state.memory.items():
        states.check(memory.client, client, net, f"client {i}")


def _memory(tensors: dict[str, Tensor], path: str, client: type) -> Memory:
    return Memory(
        _take(tensors, f"{path}/client", client),
        _take(tensors, f"{path}/opt", dict[str, OptState]),
        _take(tensors, f"{path}/statistics", Part),
    )


def _take(tensors: dict[str, Tensor], path: str, kind: Any) -> Any:
    prefix = f"{path}/"
    return states.parse({k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}, kind)
