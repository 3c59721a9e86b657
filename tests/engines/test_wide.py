"""Convolutions computed on more channels than a picture has: the same values, gradients and tensors."""

import torch
from torch import nn

from fedshift import models
from fedshift.engines.wide import widen


def test_zeros_add_nothing():
    gen = torch.Generator().manual_seed(0)
    image, found = torch.randn(4, 3, 16, 16, generator=gen, dtype=torch.float64), []
    for width in (0, 4, 8):
        torch.manual_seed(0)
        net = models.build("hfedf-cnn", (3, 16, 16), 5, dropout=0.0).double()
        widen(net, width)
        assert next(tuple(p.shape) for p in net.parameters()) == (32, 3, 3, 3)
        value = net.head(net.features(image)).square().sum()
        found.append([value, *torch.autograd.grad(value, list(net.parameters()))])
    for wide in found[1:]:
        for a, b in zip(found[0], wide, strict=True):
            assert float((a - b).detach().abs().max()) <= 1e-12 * float(a.detach().abs().max())


def test_only_convolutions_of_few_channels_are_changed():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(6, 6, 3, groups=2), nn.Linear(3, 3))
    net.append(nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"))
    widen(net, 8)
    assert [hasattr(m, "width") for m in net] == [True, False, False, False, False]
