"""Memory that is used again: never what somebody still holds."""

import pytest
import torch

from fedshift.core import scratch, tree
from fedshift.core.net import Variables
from fedshift.core.scratch import Scratch

BIG = tree.SMALL // 4  # numbers of 8 bytes


def tensor(seed=0):
    return torch.randn(BIG, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_copy_is_equal_and_its_own():
    kernels = torch.randn(64, 32, 5, 5, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    v = Variables({"w": kernels, "b": torch.ones(3), "part": tensor()[: BIG // 2]}, {"n": torch.tensor(3)})
    made = tree.clone(v, Scratch())
    for one, other in zip(v, made, strict=True):
        for name, t in one.items():
            assert torch.equal(t, other[name]) and t.data_ptr() != other[name].data_ptr()
    assert made.params["w"].stride() == kernels.stride()


def test_memory_is_used_again_as_soon_as_nobody_holds_it():
    room, t = Scratch(), tensor()
    place = room(t).data_ptr()
    assert room(t.float().repeat(2)).data_ptr() == place and room(t.view(2, -1)).shape == (2, BIG // 2)


@pytest.mark.parametrize("hold", [lambda t: t, lambda t: t[3:7], lambda t: t.view(2, -1), lambda t: t.numpy()])
def test_what_is_held_is_left_alone(hold):
    room = Scratch()
    held = hold(tree.clone({"t": tensor()}, room)["t"])
    before = torch.as_tensor(held).clone()
    for seed in (1, 2):
        tree.clone({"t": tensor(seed)}, room)
    assert torch.equal(torch.as_tensor(held), before)


def test_without_torchs_count_memory_is_new(monkeypatch):
    monkeypatch.setattr(scratch, "_holders", None)
    room = Scratch()
    kept = [room(tensor()) for _ in range(3)]
    assert len({k.data_ptr() for k in kept}) == 3 and not room._blocks


def test_taking_held_memory_would_be_noticed(monkeypatch):
    """The mutant: every block counts as free."""
    monkeypatch.setattr(scratch, "_holders", lambda place: 1)
    with pytest.raises(AssertionError):
        test_what_is_held_is_left_alone(lambda t: t)
