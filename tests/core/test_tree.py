"""Arithmetic on states."""

from typing import NamedTuple

import pytest
import torch

from fedshift.core import seeds, tree
from fedshift.core.errors import MessageError


class Pair(NamedTuple):
    a: dict[str, torch.Tensor]
    n: torch.Tensor


def pair(x, n=0):
    return Pair({"w": torch.tensor([x, 2 * x])}, torch.tensor(n))


def test_leaves_have_paths():
    assert [path for path, _ in tree.leaves(pair(1.0))] == ["a/w", "n"]
    assert list(tree.leaves(())) == []


def test_mean_is_weighted_streams_and_takes_the_largest_count():
    mean = tree.mean((pair(x, n) for x, n in ((1.0, 3), (4.0, 7))), [0.25, 0.75])
    assert mean.a["w"].tolist() == [3.25, 6.5] and int(mean.n) == 7


def test_mean_leaves_its_inputs_alone_and_one_model_is_itself():
    first, second = pair(1.0, 1), pair(2.0, 2)
    tree.mean([first, second], [0.5, 0.5])
    assert first.a["w"].tolist() == [1.0, 2.0] and int(first.n) == 1
    assert torch.equal(tree.mean([first], [1.0]).a["w"], first.a["w"])
    assert tree.mean([first], [1.0]).n is not first.n


def test_mean_of_nothing_is_an_error():
    with pytest.raises(MessageError, match="at least one"):
        tree.mean([], [])


def test_arithmetic():
    assert tree.axpy(2.0, pair(1.0).a, pair(5.0).a)["w"].tolist() == [7.0, 14.0]
    assert tree.sub(pair(5.0), pair(1.0)).a["w"].tolist() == [4.0, 8.0]
    assert tree.blend(0.5, {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})["w"].tolist() == [2.0]
    assert float(tree.sq_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})) == 25.0
    assert tree.nbytes(pair(1.0)) == 2 * 4 + 8


def test_errors_name_the_tensor():
    with pytest.raises(RuntimeError) as caught:
        tree.sub({"m": {"w": torch.zeros(2)}}, {"m": {"w": torch.zeros(3)}})
    assert caught.value.__notes__ == ["at tensor m/w"]
    with pytest.raises(MessageError, match=r"m: two trees differ in v, w"):
        tree.sub({"m": {"w": torch.zeros(2)}}, {"m": {"v": torch.zeros(2)}})
    with pytest.raises(MessageError, match="found list, expected a tensor"):
        list(tree.leaves({"m": [1]}))


def test_first_bad_names_the_tensor():
    assert tree.first_bad(pair(1.0)) is None
    assert tree.first_bad(pair(float("nan"))) == "a/w"
    assert tree.first_bad(pair(float("inf"))) == "a/w"


def test_seeds_depend_on_every_name_and_nothing_else():
    assert seeds.derive(0, "a", 1) == seeds.derive(0, "a", 1)
    different = {
        seeds.derive(*names) for names in ((0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", "1"), (0, "a1"))
    }
    assert len(different) == 6
    assert seeds.derive(0, "batches", 3, "photo") == 8252800316130486769  # on every machine, in every version


def test_scope_puts_the_global_stream_back():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeds.scope(1):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeds.scope(1):
        assert torch.equal(torch.rand(3), inside)


def test_the_mean_takes_tensors_that_ask_for_gradients():
    """As a method may upload them."""
    one, other = ({"w": torch.full((3,), value, requires_grad=True)} for value in (1.0, 3.0))
    assert torch.equal(tree.mean([one, other], [0.5, 0.5])["w"].detach(), torch.full((3,), 2.0))
