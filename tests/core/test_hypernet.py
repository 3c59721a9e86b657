"""The hypernetwork against autograd: what it writes, what it learns, how it starts."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from fedshift import models
from fedshift.core.hypernet import Hypernet
from fedshift.core.net import Net
from fedshift.core.similarity import align, align_weights

SHAPES = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "fc.weight": (5, 8), "fc.bias": (5,)}
WRITTEN = 108 + 4 + 40 + 5
NETS = [Hypernet(SHAPES), Hypernet(SHAPES, "low_rank", rank=3), Hypernet(SHAPES, "chunked", chunk=20)]
each_net = pytest.mark.parametrize("net", NETS, ids=lambda n: n.heads)


def case(net, clients=3, embedding=2):
    gen = torch.Generator().manual_seed(1)
    like = torch.zeros((), dtype=torch.float64)
    theta = net.init(embedding, gen, like)
    nu = torch.randn(clients, embedding, generator=gen, dtype=torch.float64)
    delta = torch.randn(clients, WRITTEN, generator=gen, dtype=torch.float64)
    return theta, nu, delta


def phi(net, theta, nu):
    """By the definition, one parameter's head at a time."""

    def code(x):
        for k in range(4):
            x = theta[f"code.{k}.weight"] @ (F.leaky_relu(x, 0.01) if k else x) + theta[f"code.{k}.bias"]
        return x

    if net.heads == "chunked":
        places = theta["chunk.place"]
        said = torch.cat([theta["chunk.weight"] @ code(torch.cat([nu, place])) for place in places])[:WRITTEN]
    else:
        read = code(nu)
        read = theta["low.weight"] @ read if net.heads == "low_rank" else read
        said = theta["head.weight"] @ read
    return said + theta["head.bias"]


def own_gradients(net, theta, nu, delta):
    """Each client's gradient of <phi_i, delta_i>, all of (theta, nu) in one row."""
    rows = []
    for i in range(len(nu)):
        leaves = [t.clone().requires_grad_() for t in (*theta.values(), nu)]
        value = phi(net, dict(zip(theta, leaves, strict=False)), leaves[-1][i]) @ delta[i]
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, leaves)]))
    return torch.stack(rows)


@each_net
def test_writes_by_its_definition(net):
    theta, nu, _ = case(net)
    for row in nu:
        made = net.generate(theta, row)
        assert {k: tuple(t.shape) for k, t in made.items()} == SHAPES
        assert float((net.rows([made])[0] - phi(net, theta, row)).abs().max()) < 1e-14


@each_net
def test_pulls_back_as_autograd_does(net):
    theta, nu, delta = case(net)
    g_theta, g_nu = net.pull_back(theta, nu, delta)
    ours = torch.cat([t.flatten() for t in (*(g_theta[k] for k in theta), g_nu)])
    assert float((ours - own_gradients(net, theta, nu, delta).sum(0)).abs().max()) < 1e-12
    assert not ours.requires_grad


def products_gap(net):
    theta, nu, delta = case(net)
    rows = own_gradients(net, theta, nu, delta)
    return float((net.products(theta, nu, delta) - rows @ rows.T).abs().max() / (rows @ rows.T).abs().max())


@each_net
def test_inner_products_without_the_gradients(net):
    assert products_gap(net) < 1e-14
    theta, nu, delta = case(net)
    g = own_gradients(net, theta, nu, delta)
    assert torch.allclose(align(net.products(theta, nu, delta), 1, 0.3), align_weights([{"g": r} for r in g], 1, 0.3))
    without = g[:, : -nu.numel()]
    assert torch.allclose(net.products(theta, nu, delta, embeddings=False), without @ without.T)


@dataclass(frozen=True)
class ForgetsBias(Hypernet):
    """<delta, delta> <c, c> alone."""

    def products(self, theta, nu, delta, *, embeddings=True):
        return super().products(theta, nu, delta, embeddings=embeddings) - delta @ delta.T


@dataclass(frozen=True)
class ForgetsTheSmall(Hypernet):
    """The heads alone."""

    def _below(self, below, nu, up):
        small, own = super()._below(below, nu, up)
        return {k: 0 * t for k, t in small.items()}, 0 * own


@pytest.mark.parametrize("mutant", [ForgetsBias, ForgetsTheSmall])
@each_net
def test_the_products_bite(mutant, net):
    assert products_gap(mutant(net.shapes, net.heads, net.rank, net.chunk)) > 1e-6


def test_weights_are_shares_and_follow_the_clients():
    theta, nu, delta = case(NETS[0], clients=5)
    gamma = align(NETS[0].products(theta, nu, delta))
    order = torch.tensor([3, 1, 4, 0, 2])
    assert float((gamma.sum() - 1).abs()) < 1e-15
    assert torch.allclose(align(NETS[0].products(theta, nu[order], delta[order])), gamma[order], rtol=1e-13)


def test_a_low_rank_head_is_a_full_head_of_low_rank():
    low = NETS[1]
    theta, nu, _ = case(low)
    full = {k: t for k, t in theta.items() if k != "low.weight"}
    full["head.weight"] = theta["head.weight"] @ theta["low.weight"]
    for k, t in low.generate(theta, nu[0]).items():
        assert torch.allclose(t, NETS[0].generate(full, nu[0])[k], rtol=1e-13)


def test_sizes():
    """Table 8 for the paper's network, about 47 million; ResNet-18 through smaller heads."""
    cnn = Net(models.build("hfedf-cnn", (3, 32, 32), 7))
    shapes = {k: tuple(t.shape) for k, t in cnn.variables().params.items()}
    code = 2 * 50 + 3 * (50 * 50 + 50)
    assert Hypernet(shapes).written == 928_199 and Hypernet(shapes).count(1) == 928_199 * 51 + code
    wide = Net(models.build("resnet18", (3, 32, 32), 7))
    shapes = {k: tuple(t.shape) for k, t in wide.variables().params.items()}
    n = Hypernet(shapes).written
    assert Hypernet(shapes, "low_rank", rank=8).count(1) == n * 9 + 8 * 50 + code
    places = -(-n // 8192)
    assert Hypernet(shapes, "chunked").count(1) == n + 8192 * 50 + places * 8 + code + 8 * 50


def starts(net_of, init):
    net = Net(models.build("resnet18", (3, 32, 32), 7))
    shapes = {k: tuple(t.shape) for k, t in net.variables().params.items() if not k.startswith(("layer3", "layer4"))}
    for name in [n for n in dict(net.module.named_children()) if n in ("layer3", "layer4")]:
        delattr(net.module, name)
    writer = net_of(shapes)
    gen = torch.Generator().manual_seed(0)
    nu = torch.randn(3, 1, generator=gen)
    theta = writer.init(1, gen, nu)
    theta = writer.hyperfan(theta, nu, net) if init == "hyperfan" else theta
    return [writer.generate(theta, row) for row in nu], net


@pytest.mark.parametrize("heads", ["full", "low_rank", "chunked"])
def test_hyperfan_starts_as_a_network_should(heads):
    made, net = starts(lambda shapes: Hypernet(shapes, heads), "hyperfan")
    own = net.variables().params
    for name, t in own.items():
        if t.dim() > 1:
            fan = t[0].numel()
            square = torch.stack([m[name].square().mean() for m in made]).mean() * fan / 2
            assert 0.7 < float(square) < 1.4, name
        else:
            zero = name == "fc.bias"
            assert all(torch.equal(m[name], torch.zeros_like(t) if zero else t) for m in made), name


def test_the_default_start_has_one_spread_whatever_the_fan_in():
    made, net = starts(Hypernet, "default")
    spreads = [float(made[0][k].std()) for k, t in net.variables().params.items() if t.numel() > 1000]
    assert 0.07 < min(spreads) < max(spreads) < min(0.15, 1.1 * min(spreads))
