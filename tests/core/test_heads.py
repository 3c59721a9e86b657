"""Networks with two heads: made from every network at hand, without changing what the first head computes."""

import pytest
import torch
from torch import nn

from fedshift import models
from fedshift.core.errors import ModelError
from fedshift.core.evidence import evidence
from fedshift.core.heads import Fused, Summed, absent, redrawn, two_heads, within
from fedshift.core.net import Net, overlay

# network, options, side of its pictures, numbers in a head's feature, whether heads get a layer that was not there
NETWORKS = {
    "digits-cnn": ({}, 28, 2048, False),
    "alexnet-fedbn": ({"fc": 12}, 64, 12, False),
    "alexnet-fdse": ({"fc": 12}, 64, 12, False),
    "hfedf-cnn": ({}, 32, 256, False),
    "feddca-cnn": ({}, 16, 128, False),
    "small-cnn": ({"width": 4}, 16, 16, True),
    "mlp": ({"hidden": (8, 6)}, 8, 6, True),
    "resnet18": ({"small_input": True}, 16, 512, True),
}


def built(name):
    options, side, *_ = NETWORKS[name]
    torch.manual_seed(0)
    return models.build(name, (3, side, side), 5, **options).eval(), torch.randn(3, 3, side, side)


def test_every_network_is_tried():
    assert set(NETWORKS) == set(models.MODELS) - {"resnet50"}  # made like resnet18


@pytest.mark.parametrize("name", NETWORKS)
def test_two_heads(name):
    module, x = built(name)
    plain, size = module(x), sum(p.numel() for p in module.parameters())
    with torch.no_grad():
        net = two_heads(module, Summed()).eval()
        z = net.encoder(x)
        f_g, f_l = net.global_head.hidden(z), net.local_head.hidden(z)
        _, _, width, extra = NETWORKS[name]
        assert f_g.shape == f_l.shape == (3, width) and net.width == 2 * width
        assert torch.equal(net.features(x), torch.cat([f_g, f_l], 1))
        o_g, o_l = net.global_head.classifier(f_g), net.local_head.classifier(f_l)
        assert torch.equal(net(x), o_g + o_l) and torch.equal(net(x), net.head(net.features(x)))
        assert not torch.allclose(f_g, f_l) and not torch.allclose(o_g, o_l)  # drawn apart
        if not extra:
            assert torch.equal(o_g, plain)  # the global head is the network's own
    one = sum(p.numel() for p in net.global_head.parameters())
    assert sum(p.numel() for p in net.local_head.parameters()) == one
    assert sum(p.numel() for p in net.encoder.parameters()) == size + (width * width + width) * extra - one > 0


def test_the_features_are_those_of_the_papers_networks():
    """Digits: behind the first linear layer's ReLU; AlexNet: before the second one's BatchNorm."""
    digits = two_heads(built("digits-cnn")[0], Fused()).global_head
    assert isinstance(digits.hidden[-1][-1], nn.ReLU) and digits.hidden[-1][0].out_features == 2048
    alexnet = two_heads(built("alexnet-fedbn")[0], Fused()).global_head
    assert isinstance(alexnet.hidden[-1], nn.Linear) and isinstance(alexnet.classifier[0], nn.BatchNorm1d)
    assert next(alexnet.hidden.parameters()).shape == (12, 9216)


class Scaled(nn.Module):
    """Its head is more than a layer."""

    width = 4

    def __init__(self, layer=nn.Linear):
        super().__init__()
        self.a, self.b = layer(4, 4), layer(4, 4)

    def features(self, x):
        return self.a(x)

    def head(self, z):
        return 2 * self.b(z)


def test_a_head_that_cannot_be_doubled_is_refused():
    with pytest.raises(ModelError, match=r"the head of Scaled is not its last linear layer alone; choose a network"):
        two_heads(Scaled(), Fused())
    with pytest.raises(ModelError, match="the head of Scaled"):
        two_heads(Scaled(nn.Identity), Fused())


def test_a_redrawn_module_shares_nothing_but_its_shape():
    first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2, bias=False)))
    before = {k: v.clone() for k, v in first.state_dict().items()}
    second = redrawn(first)
    assert all(not torch.equal(second.state_dict()[k], before[k]) for k in ("0.weight", "0.bias", "2.0.weight"))
    with torch.no_grad():
        for p in second.parameters():
            p.add_(1)
    second.train()(torch.randn(5, 3))
    assert all(torch.equal(v, before[k]) for k, v in first.state_dict().items()) and second[1] is not first[1]
    assert torch.equal(second[1].num_batches_tracked, torch.tensor(1)) and second[2][0].bias is None


@pytest.mark.parametrize("join", [Fused, Summed])
def test_an_absent_head_has_no_say(join):
    module, x = built("small-cnn")
    net = Net(two_heads(module, join()))
    model, none = net.variables(), absent(net)
    assert set(none.params) | set(none.buffers) == within(net, ["local_head"])
    out = net(overlay(model, none), x, train=False, taps=("join",))
    o_g = out.taps["join"][0]
    assert torch.equal(out.logits, o_g if join is Summed else evidence(o_g).log1p())
    assert not torch.allclose(out.logits, net(model, x, train=False).logits)


def test_evidence_is_fused_in_float32_at_least():
    pair = torch.randn(2, 3, 4).bfloat16()
    assert Fused()(pair, torch.ones(())).dtype == torch.float32
