"""States as named tensors, and what a message must be before it is used."""

from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save
from torch import nn

from fedshift.core import state as states
from fedshift.core.errors import CheckpointError, MessageError
from fedshift.core.keeping import Shared
from fedshift.core.net import Net, Part, Variables
from fedshift.core.task import Empty, PerParam
from fedshift.methods import METHODS
from fedshift.methods.fedbn import FedBN
from fedshift.methods.scaffold import Client, Scaffold, Server, Up


class Small(NamedTuple):
    model: Variables
    c: PerParam


NET = Net(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def message() -> Small:
    return Small(NET.variables(), {k: torch.zeros_like(p) for k, p in NET.variables().params.items()})


def test_schema_follows_generics():
    assert states.schema(Scaffold) == (Server, Client, Server, Up)
    assert states.schema(METHODS["fedavg"])[1] is Empty
    assert states.schema(FedBN)[2:] == (Shared, Shared)

    class Child(Scaffold):
        pass

    assert states.schema(Child) == states.schema(Scaffold)


def test_bytes_and_back():
    flat = states.from_bytes(states.to_bytes(message()))
    back = states.parse(flat, Small)
    assert isinstance(back.model, Variables) and "c/0.weight" in flat
    states.check(back, Small, NET, "client a")
    assert states.manifest(back) == states.manifest(message())


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda m: m.model.params.pop("0.bias"),
            "client a/model/params/0.bias: missing, expected all 4 tensors",
        ),
        (
            lambda m: m.model.params.update(w=torch.zeros(1)),
            "client a/model/params/w: found, but the network has no",
        ),
        (
            lambda m: m.model.params.update({"0.bias": torch.zeros(3)}),
            r"client a/model/params/0.bias: found float32 \(3,\), expected float32 \(2,\)",
        ),
        (
            lambda m: m.model.buffers.update({"1.running_var": torch.zeros(2, dtype=torch.float64)}),
            "1.running_var: found float64",
        ),
        (lambda m: m.c.pop("1.weight"), "client a/c/1.weight: missing"),
    ],
)
def test_a_message_that_does_not_fit_is_refused(damage, sentence):
    bad = message()
    damage(bad)
    with pytest.raises(MessageError, match=sentence):
        states.check(bad, Small, NET, "client a")


def test_a_part_may_leave_tensors_out_but_not_bring_others():
    class Holder(NamedTuple):
        norm: Part

    states.check(Holder(Part({}, {})), Holder, NET, "x")
    with pytest.raises(MessageError, match="no such tensor"):
        states.check(Holder(Part({"y": torch.zeros(1)}, {})), Holder, NET, "x")


def test_parse_wants_every_field_and_no_more():
    flat = states.flatten(message())
    with pytest.raises(MessageError, match="extra: found in a Small message"):
        states.parse({**flat, "extra": torch.zeros(1)}, Small)

    class One(NamedTuple):
        x: torch.Tensor

    with pytest.raises(MessageError, match="x: missing from the message"):
        states.parse({}, One)


def test_later_messages_must_be_like_the_first():
    first = states.manifest(message())
    other = message()
    del other.c["0.bias"]
    with pytest.raises(MessageError, match=r"client b/c/0.bias: missing, though in the first"):
        states.check_manifest(other, first, "client b")


def test_tensors_keep_their_order(tmp_path):
    """Sums over all of them depend on it in their last digits; the format sorts names."""
    flat = states.flatten(message())
    assert list(flat) != sorted(flat)
    data = states.to_bytes(message())
    path = tmp_path / "message.safetensors"
    path.write_bytes(data)
    assert list(states.from_bytes(data)) == list(flat) == list(states.read(path)[0])


@pytest.mark.parametrize("order", ["[7]", "no", "5", "null", '["a", 1]'])
def test_a_damaged_order_is_refused(order, tmp_path):
    flat = states.flatten(message())
    path = tmp_path / "message.safetensors"
    path.write_bytes(save(flat, {"order": order}))
    with pytest.raises(MessageError, match="no safetensors file"):
        states.from_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        states.read(path)


def test_cut_bytes_are_refused(tmp_path):
    data = states.to_bytes(message())
    with pytest.raises(MessageError, match="no safetensors file"):
        states.from_bytes(data[: len(data) // 2])
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(data[:100])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        states.read(path)
    with pytest.raises(CheckpointError, match="no such file"):
        states.read(tmp_path / "nothing")
