"""Latent inversion against a plain loop with torch.optim; what it must lower, and what it must leave alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift.core import inversion
from fedshift.core.inversion import Inversion, Statistics, begun, inversion_loss
from fedshift.core.latent import all_logits, head_logits
from fedshift.core.net import Net

P, C, B, N = 5, 3, 6, 4  # numbers of a latent, classes, batch, batches
S = Inversion(lambda_bn=0.3, lambda_norm=0.07, z_steps=40, z_lr=0.02)


class Body(nn.Module):
    """A head with BatchNorm in front, as LSI's."""

    width = P

    def __init__(self, seed=0):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.norm, self.out = nn.BatchNorm1d(P, affine=False), nn.Linear(P, C)
        self.norm.running_mean.copy_(torch.randn(P, generator=gen))
        self.norm.running_var.copy_(torch.rand(P, generator=gen) + 0.5)
        self.out.weight.data.copy_(torch.randn(C, P, generator=gen))
        self.out.bias.data.copy_(torch.randn(C, generator=gen))

    def features(self, x):
        return x.flatten(1)

    def head(self, z):
        return self.out(self.norm(z))


BODY = Body().double()
NET = Net(BODY)
V = NET.variables()
TARGET = Statistics(V.buffers["norm.running_mean"], V.buffers["norm.running_var"])
GEN = torch.Generator().manual_seed(1)
Z = torch.randn(N, B, P, generator=GEN, dtype=torch.float64)
Y = torch.randint(C, (N, B), generator=GEN)


def invert(s, head, z, y, target):
    return inversion.invert(s, head, z, y, target, begun(s, z), s.z_steps)[0]


def head(z):
    return head_logits(NET, V.params, V.buffers, z.flatten(0, 1)).view(N, B, C)


def plain(s):
    """Each batch by itself, as the paper prints it."""
    done = []
    for noise, y in zip(Z, Y, strict=True):
        z = noise.clone().requires_grad_()
        opt = torch.optim.Adam([z], lr=s.z_lr, betas=(0.5, 0.9))
        for _ in range(s.z_steps):
            opt.zero_grad()
            logits = F.linear((z - TARGET.mean) / (TARGET.var + 1e-5).sqrt(), BODY.out.weight, BODY.out.bias)
            mean = z.sum(0) / B
            var = ((z - mean) ** 2).sum(0) / B
            far = [((mean - TARGET.mean) ** 2).sum(), ((var - TARGET.var) ** 2).sum()]
            size = (z**2).sum(1)
            if s.norm_pow == 1:
                far, size = [f.sqrt() for f in far], size.sqrt()
            (F.cross_entropy(logits, y) + s.lambda_bn * sum(far) + s.lambda_norm * size.sum() / B).backward()
            opt.step()
        done.append(z.detach())
    return torch.stack(done)


def gap(s=S, like=None, logits=head):
    return float((invert(s, logits, Z, Y, TARGET) - plain(like or s)).abs().max())


@pytest.mark.parametrize("s", [S, replace(S, norm_pow=1), replace(S, lambda_bn=0.0), replace(S, lambda_norm=0.0)])
def test_equals_the_plain_loop(s):
    assert gap(s) < 1e-11


def in_training(z):
    """The release's fault: the head normalises by the batch of noise."""
    flat = z.flatten(0, 1)
    return F.linear(F.batch_norm(flat, None, None, training=True), BODY.out.weight, BODY.out.bias).view(N, B, C)


def test_the_oracle_bites(monkeypatch):
    assert gap(logits=in_training) > 1e-3
    for wrong in ({"lambda_bn": 0.0}, {"lambda_norm": 0.0}, {"norm_pow": 1}, {"lambda_ce": 0.5}, {"z_steps": 39}):
        assert gap(replace(S, **wrong), S) > 1e-4, wrong
    loss = inversion_loss

    def unbiased(s, logits, z, y, target):
        return loss(s, logits, z, y, target._replace(var=target.var * (B - 1) / B))

    monkeypatch.setattr(inversion, "inversion_loss", unbiased)
    assert gap() > 1e-3


def test_the_release_carries_adam_over_and_here_nothing_is():
    """Batches together and batches alone are the same, whatever their number and order."""
    whole = invert(S, head, Z, Y, TARGET)
    for order in (torch.tensor([2, 0, 3, 1]), torch.tensor([1])):

        def some(z):
            return head_logits(NET, V.params, V.buffers, z.flatten(0, 1)).view(*z.shape[:2], C)

        assert torch.allclose(invert(S, some, Z[order], Y[order], TARGET), whole[order], atol=1e-13)


def test_steps_can_be_divided():
    first, state = inversion.invert(S, head, Z, Y, TARGET, begun(S, Z), 13)
    then, _ = inversion.invert(S, head, first, Y, TARGET, state, 27)
    assert torch.equal(then, invert(S, head, Z, Y, TARGET)) and float(state["count"]["steps"]) == 13
    forgot, _ = inversion.invert(S, head, first, Y, TARGET, begun(S, Z), 27)
    assert float((forgot - then).abs().max()) > 1e-4


def test_the_loss_on_paper():
    """Two latents of one number, 1 and 3, statistics 0 and 2, two even logits: log 2 + a (4 + 1) + b (1 + 9) / 2."""
    s = Inversion(lambda_bn=0.1, lambda_norm=0.01)
    z, y = torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, 2, dtype=torch.int64)
    target = Statistics(torch.zeros(1), torch.full((1,), 2.0))
    value = inversion_loss(s, torch.zeros(1, 2, 2), z, y, target)
    assert float(value) == pytest.approx(0.693147 + 0.1 * 5 + 0.01 * 5, abs=1e-6)
    twice = inversion_loss(s, torch.zeros(2, 2, 2), z.expand(2, 2, 1), y.expand(2, 2), target)
    assert float(twice) == pytest.approx(2 * float(value), abs=1e-6)


def distances(z):
    ce = F.cross_entropy(head(z).flatten(0, 1), Y.flatten())
    bn = (z.mean(1) - TARGET.mean).square().sum(1) + (z.var(1, correction=0) - TARGET.var).square().sum(1)
    return float(ce), float(bn.mean())


def lowered(make_head):
    """Whether cross-entropy and distance fall, and the head's tensors keep their bits, in a net left in training."""
    torch.manual_seed(0)
    body = Body().double().train()
    net = Net(body)
    v = net.variables()
    before = {k: t.clone() for k, t in v.buffers.items()}
    found = invert(replace(S, z_steps=300), make_head(net, v), Z, Y, TARGET)
    (ce, bn), (new_ce, new_bn) = distances(Z), distances(found)
    kept = all(torch.equal(t, before[k]) for k, t in (*v.buffers.items(), *body.named_buffers()))
    return new_ce < 0.3 * ce and new_bn < 0.3 * bn and kept and not found.requires_grad


def test_it_lowers_both_and_keeps_the_statistics():
    def sound(net, v):
        return lambda z: head_logits(net, v.params, v.buffers, z.flatten(0, 1)).view(N, B, C)

    def overwriting(net, v):
        """The release's fault: the statistics become those of the noise."""

        def logits(z):
            flat, (mean, var) = z.flatten(0, 1), (v.buffers[f"norm.running_{k}"] for k in ("mean", "var"))
            return F.linear(F.batch_norm(flat, mean, var, training=True), *v.params.values()).view(N, B, C)

        return logits

    assert lowered(sound) and not lowered(overwriting)


def test_clients_at_once_are_clients_one_by_one():
    bodies = [Body(seed).double() for seed in (3, 4)]
    nets = [Net(b).variables() for b in bodies]
    stacked = [{k: torch.stack([v[i][k] for v in nets]) for k in nets[0][i]} for i in (0, 1)]
    z, y = Z.view(2, 2, B, P), Y.view(2, 2, B)
    target = Statistics(*(stacked[1][f"norm.running_{k}"][:, None] for k in ("mean", "var")))
    both = invert(S, lambda x: all_logits(NET, *stacked, x.flatten(1, 2)).view(2, 2, B, C), z, y, target)
    for i, v in enumerate(nets):
        own = Statistics(*(v.buffers[f"norm.running_{k}"] for k in ("mean", "var")))
        one = invert(
            S, lambda x, v=v: head_logits(NET, *v, x.flatten(0, 1)).view(2, B, C), z[i], y[i], own
        )  # fmt: skip
        assert torch.allclose(both[i], one, atol=1e-13)
