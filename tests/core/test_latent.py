"""A head alone: which tensors are its own, what it normalises by, and many heads at once."""

import pytest
import torch

from fedshift import models
from fedshift.core import tree
from fedshift.core.latent import all_logits, by_batch, head_logits, head_names, head_norm, width
from fedshift.core.net import Net, Variables

CASES = {
    "small-cnn": ({"width": 4}, {"classifier.weight", "classifier.bias"}, None),
    "mlp": ({"hidden": (6,), "norm": True}, {"classifier.weight", "classifier.bias"}, None),
    "alexnet-fedbn": (
        {"fc": 8},
        {f"classifier.0.{k}" for k in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
        | {"classifier.2.weight", "classifier.2.bias"},
        "classifier.0",
    ),
    "resnet18": (
        {"latent": 8, "small_input": True},
        {f"fc.norm.{k}" for k in ("running_mean", "running_var", "num_batches_tracked")}
        | {"fc.out.weight", "fc.out.bias"},
        "fc.norm",
    ),
}


def net_of(name):
    torch.manual_seed(0)
    return Net(models.build(name, (3, 63, 63) if name == "alexnet-fedbn" else (3, 8, 8), 3, **CASES[name][0]))


@pytest.mark.parametrize("name", CASES)
def test_names_and_norm(name):
    """By use: the head computes the same whatever the other tensors are, and each of its own changes it."""
    net = net_of(name)
    _, names, norm = CASES[name]
    assert head_names(net) == names and head_norm(net) == norm
    v, z = net.variables(), torch.randn(4, width(net))
    own = [{k: t for k, t in part.items() if k in names} for part in v]
    logits = head_logits(net, *own, z)
    with torch.no_grad():
        for k, p in net.module.named_parameters():
            if k not in names:
                p.fill_(7.0)
    assert torch.equal(head_logits(net, *own, z), logits)
    for i, part in enumerate(own):
        for k, t in part.items():
            if t.is_floating_point():
                other = [dict(p) for p in own]
                other[i][k] = t + 0.5
                assert not torch.equal(head_logits(net, *other, z), logits), k


@pytest.mark.parametrize("name", ["resnet18", "small-cnn"])
def test_the_head_is_that_of_the_whole_network_in_evaluation(name):
    net = net_of(name)
    v = net.variables()
    net.module.train()
    out = net(v, torch.randn(4, 3, 8, 8), train=False)
    own = [{k: t for k, t in part.items() if k in head_names(net)} for part in v]
    net.module.train()
    assert torch.equal(head_logits(net, *own, out.features), out.logits) and not net.module.training


def test_many_heads_at_once():
    net = net_of("resnet18")
    names, v = head_names(net), net.variables()
    heads = [
        [{k: t + 0.3 * i if t.is_floating_point() else t for k, t in part.items() if k in names} for part in v]
        for i in range(3)
    ]
    params, buffers = (tree.map(lambda *t: torch.stack(t), *(h[i] for h in heads)) for i in (0, 1))
    z = torch.randn(3, 4, 8)
    each = torch.stack([head_logits(net, *heads[i], z[i]) for i in range(3)])
    assert torch.allclose(all_logits(net, params, buffers, z), each, atol=1e-6)
    same = torch.stack([head_logits(net, *heads[i], z[0]) for i in range(3)])
    assert torch.allclose(all_logits(net, params, buffers, z[0]), same, atol=1e-6)


def test_by_batch_is_training_mode_and_leaves_the_model_alone():
    net = Net(models.build("small-cnn", (3, 8, 8), 3, width=4), in_place=True)
    v = net.variables()
    before, x = tree.clone(v), torch.randn(6, 3, 8, 8)
    task = type("T", (), {"net": net, "seed": 0})()
    answer, same = by_batch(task, v, x)
    assert same is v and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(tree.leaves(v), tree.leaves(before), strict=True)
    )
    plain = net(Variables(v.params, tree.clone(v.buffers)), x, train=True).logits
    assert torch.equal(answer.logits, plain)
    assert not torch.allclose(answer.logits[:3], by_batch(task, v, x[:3])[0].logits)  # neighbours count
    alone = by_batch(task, v, x[:1])[0].logits
    assert torch.equal(alone, net(v, x[:1], train=False).logits)
