"""Surgery: which layers become extractors and erasers, that each computes what Eq. 3 says, and who owns what."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift import models
from fedshift.core import eraser, tree
from fedshift.core.eraser import Eraser, Rows, blocks, install, names
from fedshift.core.errors import ModelError
from fedshift.core.following import Pair, feed_forwards, pairs
from fedshift.core.net import BATCH_NORM, Net, without
from fedshift.experiment.config import ModelConfig
from fedshift.experiment.setup import set_up
from fedshift.methods.fdse import FDSE
from fedshift.testing import Case, difference, everything, last, tiny_data

NETS = {
    "alexnet-fdse": ((3, 63, 63), {"fc": 24}, 7),
    "alexnet-fedbn": ((3, 63, 63), {"fc": 24}, 7),  # the last norm belongs to the head
    "small-cnn": ((3, 8, 8), {"width": 5}, 3),
    "mlp": ((3, 4, 4), {"norm": True, "hidden": (9, 6)}, 2),
    "digits-cnn": ((1, 8, 8), {}, 5),
    "resnet18": ((3, 32, 32), {}, 20),
    "resnet50": ((3, 32, 32), {}, 53),
}


def built(name, **more):
    image, options, _ = NETS[name]
    torch.manual_seed(0)
    return models.build(name, image, 4, **options), torch.randn(6, *image)


# -- one block -------------------------------------------------------------------------------------------
def by_hand(layer, e, x, ratio, act):
    """Steps 1 to 5 of the block in training, channel by channel."""
    few = -(-len(layer.weight) // ratio)
    bias = None if layer.bias is None else layer.bias[:few]
    if isinstance(layer, nn.Conv2d):
        x = F.conv2d(x, layer.weight[:few], bias, layer.stride, layer.padding, layer.dilation)
    else:
        x = F.linear(x, layer.weight[:few], bias)[..., None, None]
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    z = (x - mean) / (var + 1e-5).sqrt() * e.norm.weight.view(-1, 1, 1) + e.norm.bias.view(-1, 1, 1)
    z = {"relu": F.relu, "leaky": F.leaky_relu, "none": lambda y: y}[act](z)
    maps = [z]
    for c in range(few):
        for kernel in e.erase.weight.view(few, ratio - 1, *(e.erase.weight.shape[2:] or (1, 1)))[c]:
            maps.append(F.conv2d(z[:, c : c + 1], kernel[None, None], padding=len(kernel) // 2))
    out = torch.cat(maps, 1)[:, : len(layer.weight)]
    return out if isinstance(layer, nn.Conv2d) else out[..., 0, 0]


LAYERS = [
    nn.Conv2d(3, 8, 3, padding=1),
    nn.Conv2d(3, 7, 5, stride=2, padding=2, bias=False),
    nn.Conv2d(4, 6, 3, padding=2, dilation=2, padding_mode="zeros"),
    nn.Conv2d(4, 1, 1),
    nn.Linear(12, 10),
    nn.Linear(12, 9, bias=False),
]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
@pytest.mark.parametrize(("ratio", "kernel", "act"), [(2, 3, "relu"), (2, 1, "none"), (3, 5, "leaky"), (4, 7, "relu")])
def test_a_block_computes_what_equation_3_says(layer, ratio, kernel, act):
    layer = layer.double()
    e = Eraser(layer, "norm", 0, ratio=ratio, kernel=kernel, act=act)
    nn.init.uniform_(e.norm.weight)
    nn.init.uniform_(e.norm.bias)
    wide = (12,) if isinstance(layer, nn.Linear) else (layer.in_channels, 9, 9)
    x = torch.randn(5, *wide, dtype=torch.float64)
    out = e(x)
    assert out.shape == layer(x).shape and out.shape[1] == len(layer.weight)
    assert torch.allclose(out, by_hand(layer, e, x, ratio, act), rtol=0, atol=1e-12)


def test_an_eraser_costs_next_to_nothing():
    """5x5, 64 channels in and out, ratio 2: half the kernels, and 288 numbers for the other half."""
    e = Eraser(nn.Conv2d(64, 64, 5, bias=False), "norm", 0)
    assert e.extract.weight.numel() == 51_200 and e.erase.weight.numel() == 288


def test_rows_are_tokens():
    layer = nn.Linear(6, 10)
    rows = Rows(Eraser(layer, "1", 0), nn.BatchNorm1d(10))
    x = torch.randn(3, 5, 6)
    out = rows(x)
    assert out.shape == (3, 5, 10)
    assert torch.equal(out, rows(x.flatten(0, 1)).view(3, 5, 10)) and torch.allclose(
        out.mean((0, 1)), torch.zeros(10), atol=1e-6
    )


# -- whole networks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [k for k in NETS if k != "resnet50"])
def test_networks_still_compute_and_learn(name):
    module, x = built(name)
    before = sum(p.numel() for p in module.parameters())
    shape, features = module(x).shape, module.features(x).shape
    module = install(module)
    own = names(module)
    assert len(own.norms) == NETS[name][2] == len(own.personal) / 3 == len(own.local) / 3
    assert module(x).shape == shape and module.features(x).shape == features
    assert sum(p.numel() for p in module.parameters()) < 0.7 * before
    module(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())
    assert bool(module.eval()(x[:1]).isfinite().all())


@pytest.mark.parametrize("name", NETS)
def test_every_tensor_has_one_owner(name):
    """Shared, personal and local names make up the state dict; the norms behind erasers are everybody's."""
    module = install(built(name)[0])
    own, state = names(module), set(module.state_dict())
    params = {k for k, _ in module.named_parameters()}
    shared = [k for block in blocks(module).values() for k in block]
    assert len(shared) == len(set(shared)) and set(shared) | own.personal == params and not set(shared) & own.personal
    assert own.local < state - params
    everyones = state - params - own.local
    assert everyones == {f"{n}.{b}" for n in own.norms for b in ("running_mean", "running_var", "num_batches_tracked")}
    erasers = [p for p, m in module.named_modules() if isinstance(m, Eraser)]
    assert own.local == {
        f"{p}.norm.{k}" for p in erasers for k in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert own.personal == {f"{p}.{k}" for p in erasers for k in ("norm.weight", "norm.bias", "erase.weight")}


@pytest.mark.parametrize("name", [k for k in NETS if k != "resnet50"])
def test_each_eraser_feeds_the_norm_it_names(name):
    module = install(built(name)[0])
    x, own, seen = built(name)[1], names(module), {}
    for m in module.modules():
        if isinstance(m, Eraser):
            m.register_forward_hook(lambda m, _, out: seen.setdefault(m.feeds, out))
    taps = Net(module)(Net(module).variables(), x, train=True, taps=own.norms).taps
    assert list(seen) == list(own.norms) == list(taps)  # in the order of the forward pass
    assert all(torch.equal(seen[k], taps[k]) for k in seen)


def test_the_papers_alexnet_weighs_what_table_4_says():
    """6.5 M parameters and 24.87 MiB where the plain network has 13.0 M and 49.52."""
    module = models.build("alexnet-fdse", (3, 256, 256), 10)
    plain = tree.nbytes(Net(module).variables())
    net = Net(install(module))
    assert round(plain / 2**20, 2) == 49.52
    assert abs(tree.nbytes(net.variables()) / 2**20 - 24.87) < 0.03
    assert sum(p.numel() for p in module.parameters()) == 6_504_810
    assert round(tree.nbytes(without(net.variables(), names(module).local)) / 2**20, 2) == 24.84


def test_extractors_start_as_the_networks_own_filters():
    plain, _ = built("small-cnn")
    module = install(built("small-cnn")[0])
    assert torch.equal(module.body[0][0].extract.weight, plain.body[0][0].weight[:3])
    assert torch.equal(module.classifier.weight, plain.classifier.weight)


def test_precision_is_kept():
    module = install(built("mlp")[0].double())
    assert all(t.dtype in (torch.float64, torch.int64) for t in module.state_dict().values())


def test_layers_are_blocks_of_parameters():
    found = blocks(install(built("alexnet-fedbn")[0]))
    assert found["body.8.extract"] == tuple(
        f"{k}.{p}" for k in ("body.8.extract", "classifier.0") for p in ("weight", "bias")
    )
    assert found["classifier.2"] == ("classifier.2.weight", "classifier.2.bias") and len(found) == 8


# -- what follows what -----------------------------------------------------------------------------------
def test_residual_networks():
    """All layers with a norm, shortcuts' projections among them; or the last of each branch, as in A8.1."""
    found = pairs(built("resnet18")[0])
    assert Pair("conv1", "bn1", False) == found[0]
    assert Pair("layer2.0.downsample.0", "layer2.0.downsample.1", False) in found
    ends = [p.layer for p in found if p.ends_branch]
    assert ends == [f"layer{i}.{j}.conv2" for i in range(1, 5) for j in range(2)]
    deep, x = built("resnet50")
    assert [p.layer for p in pairs(deep) if p.ends_branch] == [
        f"layer{i}.{j}.conv3" for i, n in zip(range(1, 5), (3, 4, 6, 3), strict=True) for j in range(n)
    ]
    deep = install(deep, "last")
    assert len(names(deep).norms) == 16 and deep(x).shape == (6, 4)
    plain = built("alexnet-fdse")[0]
    with pytest.raises(ModelError, match=r"'last': found 7 layers .*, none at the end of a branch .*blocks = 'all'\."):
        install(plain, "last")
    assert not any(isinstance(m, Eraser) for m in plain.modules())


class PreActivation(nn.Module):
    """Norm first, then the layer; what follows the last layer is a sum, and only after it the next norm."""

    def __init__(self):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1)
        self.pass_on, self.bn3, self.head = nn.Identity(), nn.BatchNorm2d(3), nn.Linear(3, 2)

    def forward(self, x):
        z = self.pass_on(self.conv1(self.bn1(x).relu()))
        z = self.conv2(self.bn2(z).relu()) + x
        return self.head(self.bn3(z).mean((2, 3)))


class ShortcutFirst(nn.Module):
    """x + branch(x), after a layer without a shortcut; then a projection beside a longer branch."""

    def __init__(self):
        super().__init__()
        self.stem, self.branch = (nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(2))
        self.side = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        self.main = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        self.shift = nn.Parameter(torch.zeros(3, 1, 1))

    def forward(self, x):
        x = self.stem(x) + self.shift + 1
        x = x + self.branch(x)
        return torch.add(self.side(x), self.main(x))


def test_the_longer_way_is_the_branch():
    ends = {p.layer: p.ends_branch for p in pairs(ShortcutFirst())}
    assert ends == {"stem.0": False, "branch.0": True, "side.0": False, "main.2": True}


def test_what_counts_is_the_flow_not_the_order_in_which_modules_are_kept():
    assert pairs(PreActivation()) == [Pair("conv1", "bn2", False)]
    module = install(PreActivation())
    assert names(module).norms == ("bn2",) and module(torch.randn(4, 3, 5, 5)).shape == (4, 2)


def test_grouped_convolutions_and_other_norms_stay():
    body = nn.Sequential(
        *(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)),
        *(nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6), nn.Conv2d(6, 2, 1), nn.ReLU(), nn.BatchNorm2d(2)),
    )
    assert [p.layer for p in pairs(body)] == ["2"]


# -- transformers ----------------------------------------------------------------------------------------
class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(torch.softmax(q @ k.transpose(1, 2), -1) @ v)


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class TinyViT(models.Network):
    """Two blocks of a vision transformer on 4x4 patches."""

    citation = "Dosovitskiy et al., ICLR 2021"

    def __init__(self, image, classes, dim=6):
        super().__init__(image, classes)
        self.patch = nn.Conv2d(image[0], dim, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(4))
        self.attention = nn.ModuleList(Attention(dim) for _ in range(2))
        self.mlp = nn.ModuleList(FeedForward(dim) for _ in range(2))
        self.fc, self.width = nn.Linear(dim, classes), dim

    def features(self, x):
        z = self.patch(x).flatten(2).transpose(1, 2)
        for i in range(2):
            z = z + self.attention[i](self.norms[2 * i](z))
            z = z + self.mlp[i](self.norms[2 * i + 1](z))
        return z.mean(1)

    def head(self, z):
        return self.fc(z)


def test_a_transformers_feed_forward_parts():
    module, x = TinyViT((3, 8, 8), 4), torch.randn(5, 3, 8, 8)
    assert feed_forwards(module) == ["mlp.0.fc2", "mlp.1.fc2"] and not pairs(module)
    module = install(module)
    own = names(module)
    assert own.norms == ("mlp.0.fc2.body.1", "mlp.1.fc2.body.1") and len(own.personal) == len(own.local) == 6
    assert isinstance(module.get_submodule(own.norms[0]), BATCH_NORM)
    out = Net(module)(Net(module).variables(), x, train=True, taps=own.norms)
    assert out.logits.shape == (5, 4) and out.taps[own.norms[0]].shape == (5 * 4, 6)  # batch and tokens
    assert "mlp.0.fc2.body.0.extract.weight" in blocks(module)["mlp.0.fc2.body.0.extract"]
    shared = {k for block in blocks(module).values() for k in block}
    assert shared | own.personal == {k for k, _ in module.named_parameters()}


def test_a_transformer_is_trained_the_same_in_every_engine(monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny-vit", TinyViT)
    experiment = replace(Case(FDSE(reg_start=1)).experiment(rounds=2), model=ModelConfig("tiny-vit", {}))
    ends = {e: last(set_up(replace(experiment, engine=e), tiny_data())) for e in ("sequential", "debug", "rehearsed")}
    assert difference(everything(ends["sequential"]), everything(ends["debug"])) == 0
    assert difference(everything(ends["sequential"]), everything(ends["rehearsed"])) < 1e-12


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "timm:resnet18", "torchvision:vit_b_16"])
def test_networks_of_other_packages(name):
    pytest.importorskip(name.split(":")[0])
    size = 224 if "16" in name else 32
    module = install(models.build(name, (3, size, size), 4))
    assert len(names(module).norms) == {"timm:resnet18": 20}.get(name, 12)
    assert module(torch.randn(2, 3, size, size)).shape == (2, 4)


def test_torchs_own_transformer_layer():
    module = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=False), nn.Linear(8, 3))
    assert feed_forwards(module) == ["0.linear2"]
    assert install(module)(torch.randn(5, 4, 8)).shape == (5, 4, 3)


# -- bad input -------------------------------------------------------------------------------------------
def test_networks_without_norms_are_refused_in_a_sentence():
    for name in ("hfedf-cnn", "feddca-cnn", "mlp"):
        with pytest.raises(
            ModelError, match=r"found no convolution or linear layer with a BatchNorm after it.* choose"
        ):
            install(models.build(name, (3, 32, 32), 4))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)) if x.sum() > 0 else self.conv(x)


def test_a_network_that_cannot_be_followed_is_refused_in_a_sentence():
    with pytest.raises(
        ModelError, match=r"^Branches: found a forward pass that cannot be followed \(.*\), expected one"
    ):
        install(Branches())


# -- mutants ---------------------------------------------------------------------------------------------
class KeepsAllChannels(Eraser):
    """Odd T: the maps that are too many stay."""

    def forward(self, x):
        z = self.act(self.norm(self.extract(x)))
        return torch.cat([z, self.erase(z)], 1)


class NoIdentity(Eraser):
    """As the first release's linear block: made maps alone."""

    def forward(self, x):
        z = self.act(self.norm(self.extract(x)))
        return self.erase(z).repeat_interleave(2, 1)[:, : self.channels]


class NormAfter(Eraser):
    """The activation before the norm."""

    def forward(self, x):
        z = self.norm(self.act(self.extract(x)))
        return torch.cat([z, self.erase(z)], 1)[:, : self.channels]


@pytest.mark.parametrize("mutant", [KeepsAllChannels, NoIdentity, NormAfter])
def test_the_block_by_hand_bites(mutant, monkeypatch):
    monkeypatch.setitem(globals(), "Eraser", mutant)
    with pytest.raises(AssertionError):
        test_a_block_computes_what_equation_3_says(LAYERS[1], 2, 3, "relu")


PLAIN = names


def every_norm_is_local(module):
    """As FedBN, the norms behind erasers among them."""
    return PLAIN(module)._replace(local=frozenset(k for k, _ in module.named_buffers()))


def kernels_are_shared(module):
    """The erasers' norms alone are personal."""
    own = PLAIN(module)
    return own._replace(personal=frozenset(k for k in own.personal if ".norm." in k))


def scales_are_local(module):
    """Parameters of the erasers' norms never leave."""
    own = PLAIN(module)
    return own._replace(local=own.local | {k for k in own.personal if ".norm." in k})


@pytest.mark.parametrize("mutant", [every_norm_is_local, kernels_are_shared, scales_are_local])
def test_owners_bite(mutant, monkeypatch):
    monkeypatch.setitem(globals(), "names", mutant)
    monkeypatch.setattr(eraser, "names", mutant)
    with pytest.raises(AssertionError):
        test_every_tensor_has_one_owner("small-cnn")
