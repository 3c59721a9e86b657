"""The latent StarGAN against torch's own layers and optimisers, with dropout switched off; and what it must not do."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift.core import seeds, translator
from fedshift.core.translator import Pool, Translation, d_loss, g_loss, judge, networks, train, translate
from fedshift.core.tree import leaves

P, M, W = 6, 3, 8
S = Translation(hidden=W, gan_iters=7, gan_batch=6, n_critic=3, gan_lr=0.01)
LIKE = torch.zeros((), dtype=torch.float64)


@pytest.fixture
def no_dropout(monkeypatch):
    monkeypatch.setattr(translator, "DROP", 0.0)


def pool(s=S, classes=4, seed=0):
    gen = torch.Generator().manual_seed(seed)
    y, domain = torch.arange(60) % classes, torch.randint(M, (60,), generator=gen)
    return Pool.of(s, torch.randn(60, P, generator=gen, dtype=torch.float64) + domain[:, None], y, domain)


def test_sizes_are_those_of_the_tables():
    """Tables V and VI: 2.11 and 1.06 million."""
    gan = networks(Translation(), 512, 3, 0, torch.zeros(()))
    count = [sum(t.numel() for t in net.values()) for net in (gan.g, gan.d)]
    assert count == [2_109_952, 1_055_236]


class Plain(nn.Module):
    """Both networks as torch's layers, with the values of `gan`."""

    def __init__(self, gan, tanh=False):
        super().__init__()
        sizes = {k: tuple(t.shape) for k, t in gan.g.items() if k.endswith("weight")}
        w, p = sizes["in.weight"][0], sizes["out.weight"][0]
        self.g = nn.ModuleDict({k: nn.Linear(*sizes[f"{k}.weight"][::-1]) for k in ("in", "mid", "out")})
        self.g_norm = nn.ModuleDict({k: nn.LayerNorm(w) for k in ("in", "mid")})
        outs = {"in": (p, w), "mid": (w, w // 2), "score": (w // 2, 1), "domain": (w // 2, M)}
        self.d = nn.ModuleDict({k: nn.Linear(*size) for k, size in outs.items()})
        self.d_norm = nn.ModuleDict({"in": nn.LayerNorm(w), "mid": nn.LayerNorm(w // 2)})
        self.tanh = tanh
        self.double()
        for side in ("g", "d"):
            for key, t in getattr(gan, side).items():
                name, part = key.split(".")
                norm = part in ("scale", "shift")
                layer = getattr(self, f"{side}_norm" if norm else side)[name]
                setattr(layer, "weight" if part in ("scale", "weight") else "bias", nn.Parameter(t.clone()))

    def translate(self, z, a, b):
        x = torch.cat([z, F.one_hot(a, M), F.one_hot(b, M)], 1)
        for k in ("in", "mid"):
            x = self.g_norm[k](F.leaky_relu(self.g[k](x), 0.2))
        x = self.g["out"](x)
        return x.tanh() if self.tanh else x

    def judge(self, x):
        for k in ("in", "mid"):
            x = self.d_norm[k](F.leaky_relu(self.d[k](x), 0.2))
        return self.d["score"](x)[:, 0], self.d["domain"](x)

    def sides(self):
        g = [*self.g.parameters(), *self.g_norm.parameters()]
        return g, [*self.d.parameters(), *self.d_norm.parameters()]


def plain_losses(net, s, b):
    """As section 3 of the method writes them: what the critic descends, and what the translator does."""
    fake = net.translate(b.z, b.source, b.target)
    (real, domain), (score, moved) = net.judge(b.z), net.judge(fake)
    mixed = (b.share * b.z + (1 - b.share) * fake).detach().requires_grad_()
    slope = torch.autograd.grad(net.judge(mixed)[0].sum(), mixed, create_graph=True)[0]
    back = net.translate(fake, b.target, b.source)
    d_side = s.lambda_cls * F.cross_entropy(domain, b.source)
    g_side = s.lambda_cls * F.cross_entropy(moved, b.target) + s.lambda_rec * (b.z - back).abs().mean()
    if s.gan == "log":
        held = net.judge(fake.detach())[0].sigmoid()
        return d_side - real.sigmoid().log().mean() - (1 - held).log().mean(), g_side + (
            1 - score.sigmoid()
        ).log().mean()
    penalty = s.lambda_gp * ((slope.norm(dim=1) - 1) ** 2).mean()
    return d_side - real.mean() + net.judge(fake.detach())[0].mean() + penalty, g_side - score.mean()


@pytest.mark.parametrize("s", [S, replace(S, g_out="tanh"), replace(S, gan="log"), replace(S, lambda_gp=0.0)])
def test_networks_and_losses(no_dropout, s):
    gan, b = networks(s, P, M, 0, LIKE), pool().draw(6)
    net = Plain(gan, s.g_out == "tanh")
    assert torch.allclose(translate(s, gan.g, b.z, b.source, b.target), net.translate(b.z, b.source, b.target))
    assert all(torch.allclose(x, y) for x, y in zip(judge(gan.d, b.z), net.judge(b.z), strict=True))
    d_side, g_side = plain_losses(net, s, b)
    assert abs(float((d_loss(s, b, gan.g, gan.d) - d_side).detach())) < 1e-12
    assert abs(float((g_loss(s, b, gan.d, gan.g) - g_side).detach())) < 1e-12


def plain_training(s, gan, data):
    """StarGAN's loop: the critic each time, the translator in every n-th."""
    net = Plain(gan)
    (g, d), same = net.sides(), {"lr": s.gan_lr, "betas": (0.5, 0.999)}
    g_opt, d_opt = torch.optim.Adam(g, **same), torch.optim.Adam(d, **same)
    for i in range(s.gan_iters):
        with seeds.scope(seeds.derive(5, "translator", i)):
            batch = data.draw(s.gan_batch)
        for opt in (g_opt, d_opt):
            opt.param_groups[0]["lr"] = s.gan_lr * min(1, (s.gan_iters - i) / s.gan_decay) if s.gan_decay else s.gan_lr
        d_opt.zero_grad()
        plain_losses(net, s, batch)[0].backward()
        d_opt.step()
        if i % s.n_critic == s.n_critic - 1:
            g_opt.zero_grad()
            plain_losses(net, s, batch)[1].backward()
            g_opt.step()
    return net


def gap(s=S, like=None, numbers=None):
    gan, like = networks(s, P, M, 0, LIKE), like or s
    end, net = train(s, gan, pool(s), numbers or range(s.gan_iters), 5), plain_training(like, gan, pool(like))
    b = pool().draw(6)
    moved = translate(s, end.g, b.z, b.source, b.target) - net.translate(b.z, b.source, b.target)
    return max(float(t.detach().abs().max()) for t in (moved, judge(end.d, b.z)[1] - net.judge(b.z)[1]))


@pytest.mark.parametrize("s", [S, replace(S, gan="log"), replace(S, gan_decay=4), replace(S, batches="mixed")])
def test_training_equals_the_plain_loop(no_dropout, s):
    assert gap(s) < 1e-11


@pytest.mark.parametrize(
    "wrong",
    [
        *({"n_critic": n} for n in (1, 2, 7)),
        *({name: 0.5} for name in ("lambda_cls", "lambda_rec", "lambda_gp")),
        *({"gan": "log"}, {"gan_decay": 6}, {"batches": "mixed"}, {"gan_lr": 0.02}),
    ],
    ids=str,
)
def test_the_oracle_bites(no_dropout, wrong):
    assert gap(replace(S, **wrong), S) > 1e-5


def test_the_critic_that_learns_from_translations_alone_is_noticed(no_dropout, monkeypatch):
    monkeypatch.setattr(translator, "critic_loss", lambda form, real, fake: fake.mean())
    assert gap() > 1e-4


def test_iterations_can_be_divided():
    s, gan = replace(S, g_dropout="first"), networks(S, P, M, 0, LIKE)
    whole = train(s, gan, pool(), range(7), 5)
    part = train(s, train(s, gan, pool(), range(4), 5), pool(), range(4, 7), 5)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(whole), leaves(part), strict=True))
    assert not any(t.requires_grad for _, t in leaves(whole))
    fresh = networks(S, P, M, 0, LIKE)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(gan), leaves(fresh), strict=True))


def test_dropout_is_for_training_alone():
    gan, b = networks(S, P, M, 0, LIKE), pool().draw(6)
    same = [translate(S, gan.g, b.z, b.source, b.target) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(translate(S, gan.g, b.z, b.source, b.target, train=True), same[0])
    torch.manual_seed(0)
    each = translate(S, gan.g, b.z, b.source, b.target, train=True)
    torch.manual_seed(0)
    first = translate(replace(S, g_dropout="first"), gan.g, b.z, b.source, b.target, train=True)
    assert not torch.equal(each, first)


def test_one_domain_for_all_and_one_for_each():
    gan, b = networks(S, P, M, 0, LIKE), pool().draw(6)
    one = translate(S, gan.g, b.z, torch.tensor([2]), b.target)
    assert torch.equal(one, translate(S, gan.g, b.z, torch.full((6,), 2), b.target))


def batches(s, data, n=200):
    torch.manual_seed(0)
    return [data.draw(s.gan_batch) for _ in range(n)]


def test_batches_hold_one_class_and_targets_are_its_domains_shuffled():
    drawn = batches(S, pool())
    assert all(len(b.y.unique()) == 1 for b in drawn)
    assert all(torch.equal(b.source.sort().values, b.target.sort().values) for b in drawn)
    assert {int(b.y[0]) for b in drawn} == {0, 1, 2, 3}
    assert any(len(b.y.unique()) > 1 for b in batches(S, pool(replace(S, batches="mixed"))))
    assert all(b.share.shape == (6, 1) for b in drawn)


def test_classes_of_one_domain_are_skipped():
    y, domain = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 2, 2, 0])
    made = Pool.of(S, torch.randn(5, P), y, domain)
    assert [g.tolist() for g in made.groups] == [[0, 1]]


def test_the_class_term_is_added():
    gan, b = networks(S, P, M, 0, LIKE), pool().draw(6)
    s = replace(S, class_term=0.1)
    torch.manual_seed(0)
    without = g_loss(S, b, gan.d, gan.g, lambda fake, y: fake.sum() + y.sum())
    torch.manual_seed(0)
    with_it = g_loss(s, b, gan.d, gan.g, lambda fake, y: 2 + 0 * fake.sum())
    assert abs(float(with_it - without) - 0.2) < 1e-12


def test_it_learns_to_shift():
    """Three domains that differ by a shift: most translations come to lie nearest to the domain that was asked for."""
    gen = torch.Generator().manual_seed(3)
    y, domain, way = torch.arange(300) % 2, torch.arange(300) % 3, torch.tensor([-2.0, 0.0, 2.0])
    shape = torch.tensor([1.0, -1.0] * 3)
    z = torch.randn(300, P, generator=gen) * 0.3 + way[domain][:, None] + y[:, None] * shape
    s = Translation(hidden=32, gan_iters=250, gan_lr=4e-3, gan_batch=32, g_dropout="first", n_critic=2)
    start, other = networks(s, P, 3, 0, torch.zeros(())), (domain + 1) % 3

    def right(g):
        moved = (translate(s, g, z, domain, other) - y[:, None] * shape).mean(1)
        return float(((moved[:, None] - way).abs().argmin(1) == other).double().mean())

    end = train(s, start, Pool.of(s, z, y, domain), range(250), 0)
    assert right(start.g) < 0.5 and right(end.g) > 0.8
