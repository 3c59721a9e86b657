"""The gradient penalty through double backward, on paper and by differences; and the two forms of the game."""

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import wgan
from fedshift.core.wgan import critic_loss, generator_loss, gradient_penalty


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


REAL, FAKE, SHARE = drawn(5, 3), drawn(5, 3, seed=1), torch.linspace(0.1, 0.9, 5, dtype=torch.float64)[:, None]


def test_a_linear_critic_on_paper():
    """The slope is w everywhere: (|w| - 1)^2, whose derivative is 2 (|w| - 1) w / |w|."""
    w = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64, requires_grad=True)
    value = gradient_penalty(lambda x: x @ w, REAL, FAKE, SHARE)
    (grad,) = torch.autograd.grad(value, w)
    assert float(value.detach()) == pytest.approx(16.0, abs=1e-12)
    assert torch.allclose(grad, 2 * 4 * torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64) / 5, atol=1e-12)


def critic(w, v, x):
    return (F.layer_norm(F.leaky_relu(x @ w, 0.2), (4,)).tanh() @ v).sum(1)


def penalty_gap(penalty):
    """How far the gradient that a critic learns by is from a difference of the penalty's plain value."""
    w, v = drawn(3, 4, seed=2).requires_grad_(), drawn(4, 1, seed=3).requires_grad_()
    value = penalty(lambda x: critic(w, v, x), REAL, FAKE, SHARE)
    grads = torch.autograd.grad(value, (w, v), allow_unused=True)
    way = (drawn(3, 4, seed=4), drawn(4, 1, seed=5))

    def plain(step):
        a, b = (t.detach() + step * u for t, u in zip((w, v), way, strict=True))
        total = 0.0
        for r, f, s in zip(REAL, FAKE, SHARE, strict=True):
            x = (s * r + (1 - s) * f).requires_grad_()
            (slope,) = torch.autograd.grad(critic(a, b, x[None]).sum(), x)
            total += float((slope.square().sum().sqrt() - 1) ** 2)
        return total / len(REAL)

    difference = (plain(1e-5) - plain(-1e-5)) / 2e-5
    along = sum(0.0 if g is None else float((g * u).sum()) for g, u in zip(grads, way, strict=True))
    return max(abs(along - difference), abs(float(value.detach()) - plain(0.0)))


def test_the_critic_learns_through_its_own_gradient():
    assert penalty_gap(gradient_penalty) < 1e-7


def no_double_backward(net, real, fake, share):
    """The slope is taken for a constant."""
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(net(between).sum(), between)
    return (slope.norm(dim=1) - 1).square().mean() + 0 * net(real).sum()


def one_sided(net, real, fake, share):
    return gradient_penalty(net, real, real, share)


def of_the_mean(net, real, fake, share):
    """The critic's mean in place of its sum: every slope is a fifth of what it is."""
    return gradient_penalty(lambda x: net(x) / len(x), real, fake, share)


def all_pairs(net, real, fake, share):
    """The release's shape of an image: every row is mixed with every share."""
    between = share[:, :, None, None] * real + (1 - share[:, :, None, None]) * fake
    return gradient_penalty(net, between.flatten(0, 2), between.flatten(0, 2), torch.ones_like(share[:1]))


@pytest.mark.parametrize("mutant", [no_double_backward, one_sided, of_the_mean, all_pairs])
def test_the_penalty_oracle_bites(mutant):
    assert penalty_gap(mutant) > 1e-4


def test_the_penalty_looks_at_one_place_between_each_pair():
    seen = []

    def net(x):
        seen.append(x.detach())
        return x.square().sum(1)

    gradient_penalty(net, REAL, FAKE, SHARE)
    (x,) = seen
    assert x.shape == REAL.shape  # [B, p], not B x B mixtures
    share = (x - FAKE) / (REAL - FAKE)
    assert torch.allclose(share, SHARE.expand_as(share), atol=1e-12)


def test_the_game_on_paper():
    real, fake = torch.tensor([2.0, 4.0]), torch.tensor([1.0, -1.0])
    assert float(critic_loss("wgan", real, fake)) == -3.0 and float(generator_loss("wgan", fake)) == 0.0
    bce = F.binary_cross_entropy_with_logits
    expected = bce(real, torch.ones(2)) + bce(fake, torch.zeros(2))
    assert torch.allclose(critic_loss("log", real, fake), expected)
    assert torch.allclose(generator_loss("log", fake), (1 - fake.sigmoid()).log().mean())


@pytest.mark.parametrize("form", ["wgan", "log"])
def test_the_two_pull_the_score_in_opposite_ways(form):
    fake = torch.zeros(3, requires_grad=True)
    (one,) = torch.autograd.grad(wgan.critic_loss(form, torch.zeros(3), fake), fake)
    (two,) = torch.autograd.grad(wgan.generator_loss(form, fake), fake)
    assert torch.allclose(one, -two) and bool((one > 0).all())
