"""Every network: shapes, counts, names, the split into features and head, and blocks solved on paper."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedshift.core.errors import ModelError
from fedshift.models import MODELS, Network, build, options
from fedshift.models.hfedf_cnn import Inception
from fedshift.models.resnet import BasicBlock, Bottleneck

# name, options, image, width of the features
CASES: list[tuple[str, dict[str, Any], tuple[int, int, int], int]] = [
    ("mlp", {}, (3, 9, 7), 64),
    ("mlp", {"hidden": [30, 20], "norm": True}, (1, 8, 8), 20),
    ("mlp", {"hidden": []}, (2, 4, 4), 32),
    ("small-cnn", {}, (3, 32, 32), 64),
    ("small-cnn", {"width": 4, "norm": False}, (1, 8, 12), 16),
    ("hfedf-cnn", {}, (3, 32, 32), 256),
    ("hfedf-cnn", {"fc_act": "relu", "dropout": 0.0}, (1, 20, 28), 256),
    ("digits-cnn", {}, (3, 28, 28), 2048),
    ("digits-cnn", {}, (1, 32, 32), 2048),
    ("feddca-cnn", {}, (3, 32, 32), 128),
    ("feddca-cnn", {"pool": True}, (3, 32, 32), 128),
    ("alexnet-fedbn", {"fc": 32}, (3, 63, 63), 32),
    ("alexnet-fdse", {"fc": 32}, (1, 63, 80), 32),
    ("resnet18", {}, (3, 32, 32), 512),
    ("resnet18", {"small_input": True}, (1, 16, 16), 512),
    ("resnet18", {"small_input": True, "latent": 24}, (3, 16, 16), 24),
    ("resnet50", {}, (3, 33, 40), 2048),
    ("resnet50", {"small_input": True, "stride_on": "conv1"}, (3, 8, 8), 2048),
]
IDS = [f"{name}-{'x'.join(map(str, image))}" for name, _, image, _ in CASES]


def count(network: nn.Module) -> int:
    """Number of trained numbers."""
    return sum(p.numel() for p in network.parameters())


@cache
def built(index: int) -> tuple[Network, Tensor]:
    """Case `index`'s network for five classes, in evaluation, and a batch; drawn from seed 0, shared."""
    name, chosen, image, _ = CASES[index]
    torch.manual_seed(0)
    return build(name, image, 5, **chosen).eval(), torch.randn(4, *image)


each_network = pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)


def test_the_cases_name_every_network() -> None:
    assert {case[0] for case in CASES} == set(MODELS)


@each_network
def test_features_head_and_taps(index: int) -> None:
    (network, x), width = built(index), CASES[index][3]
    seen: dict[str, Tensor] = {}
    hooks = [
        network.get_submodule(tap).register_forward_hook(lambda m, i, o, tap=tap: seen.__setitem__(tap, o.min()))
        for tap in network.taps()
    ]
    z = network.features(x)
    assert tuple(seen) == network.taps() and (seen or CASES[index][1] == {"hidden": []})
    assert all(least == 0 for least in seen.values())  # Every stage ends in ReLU.
    for hook in hooks:
        hook.remove()
    assert network.width == width and z.shape == (4, width)
    logits = network(x)
    assert logits.shape == (4, 5) and torch.isfinite(logits).all()
    assert torch.equal(logits, network.head(z))
    assert len(network.citation) > 20 and network.loaded is None


@each_network
def test_the_seed_decides_the_weights(index: int) -> None:
    name, chosen, image, _ = CASES[index]
    first = built(index)[0].state_dict()
    torch.manual_seed(0)
    second = build(name, image, 5, **chosen).state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_another_seed_draws_other_weights() -> None:
    torch.manual_seed(0)
    first, second = (build("small-cnn", (3, 8, 8), 5).state_dict() for _ in range(2))
    assert all(not torch.equal(first[k], second[k]) for k in first if k.endswith("0.weight"))


@each_network
def test_gradients_reach_every_parameter(index: int) -> None:
    """In evaluation, where BatchNorm does not cancel the biases in front of it."""
    network, x = built(index)
    network.zero_grad()
    loss: Any = nn.functional.cross_entropy(network(x), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    for key, p in network.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any(), key


def test_a_copy_is_independent() -> None:
    network = build("small-cnn", (3, 8, 8), 5)
    twin, fresh = copy.deepcopy(network), copy.deepcopy(network)
    network(torch.randn(4, 3, 8, 8))
    assert all(torch.equal(b, fresh.get_buffer(k)) for k, b in twin.named_buffers())
    assert not torch.equal(network.get_buffer("body.0.1.running_mean"), twin.get_buffer("body.0.1.running_mean"))


# What the publications print, or what follows from their tables by hand.
COUNTS = [
    ("hfedf-cnn", (3, 32, 32), 7, 928_199),
    ("hfedf-cnn", (3, 32, 32), 65, 926_400 + 257 * 65),
    ("digits-cnn", (3, 28, 28), 10, 14_219_210),
    ("feddca-cnn", (3, 32, 32), 10, 8_409_418),
    ("alexnet-fedbn", (3, 256, 256), 10, 57_063_498),
    ("alexnet-fdse", (3, 256, 256), 10, 12_974_154),
    ("resnet18", (3, 224, 224), 1000, 11_689_512),
    ("resnet50", (3, 224, 224), 1000, 25_557_032),
    ("mlp", (1, 28, 28), 10, 784 * 64 + 64 + 64 * 10 + 10),
    ("small-cnn", (3, 32, 32), 10, 27 * 16 + 144 * 32 + 288 * 64 + 2 * 112 + 650),
]


@pytest.mark.parametrize(("name", "image", "classes", "expected"), COUNTS)
def test_parameter_counts(name: str, image: tuple[int, int, int], classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert count(build(name, image, classes)) == expected


def test_lsi_counts() -> None:
    """Table V: 24.6 million up, 33.3 thousand of them the head with 65 classes; so its BatchNorm has no scale."""
    with torch.device("meta"):
        network = build("resnet50", (3, 224, 224), 65, latent=512)
    assert count(network) == 23_508_032 + 2048 * 512 + 512 + 33_345
    assert sum(p.numel() for p in (*network.fc.norm.parameters(), *network.fc.out.parameters())) == 33_345
    assert network.width == 512 and set(dict(network.fc.norm.named_buffers())) >= {"running_mean", "running_var"}


def test_fdse_alexnet_weighs_what_its_table_says() -> None:
    with torch.device("meta"):
        state = build("alexnet-fdse", (3, 256, 256), 10).state_dict()
    assert round(sum(t.numel() for t in state.values()) * 4 / 2**20, 2) == 49.52


def test_hfedf_channels() -> None:
    network = build("hfedf-cnn", (3, 32, 32), 7)
    shapes: list[tuple[int, ...]] = []
    for i in range(6):
        network.get_submodule(f"body.{i}").register_forward_hook(lambda m, a, o: shapes.append(tuple(o.shape[1:])))
    network(torch.randn(2, 3, 32, 32))
    assert shapes == [(32, 16, 16), (64, 8, 8), (176, 8, 8), (288, 8, 8), (288, 3, 3), (2592,)]


def test_hfedf_activation_and_dropout() -> None:
    x = torch.randn(8, 3, 32, 32)
    assert build("hfedf-cnn", (3, 32, 32), 7).features(x).min() < 0
    assert build("hfedf-cnn", (3, 32, 32), 7, fc_act="relu").features(x).min() == 0
    dropping, fixed = build("hfedf-cnn", (3, 32, 32), 7), build("hfedf-cnn", (3, 32, 32), 7, dropout=0)
    assert not torch.equal(dropping(x), dropping(x)) and torch.equal(fixed(x), fixed(x))


def test_inception_branches_on_paper() -> None:
    """On a 3x3 picture of ones whose weights are all one, each convolution counts the cells it sees."""
    block = Inception(1)
    for p in block.parameters():
        nn.init.ones_(p) if p.ndim > 1 else nn.init.zeros_(p)
    y = block(torch.ones(1, 1, 3, 3))
    corner, centre = y[0, :, 0, 0], y[0, :, 1, 1]
    assert y.shape == (1, 113, 3, 3)
    assert torch.equal(corner, torch.tensor([1.0] * 32 + [4.0] * 64 + [9.0] * 16 + [1.0]))
    assert torch.equal(centre, torch.tensor([1.0] * 32 + [9.0] * 64 + [9.0] * 16 + [1.0]))
    for p in block.parameters():
        p.data.neg_()
    assert block(torch.ones(1, 1, 3, 3))[:, :112].abs().max() == 0


@pytest.mark.parametrize("block", [BasicBlock(8, 8, 1), Bottleneck(8, 8, 1, "conv2")], ids=["basic", "bottleneck"])
def test_a_silent_branch_leaves_the_shortcut(block: nn.Module) -> None:
    last = max(name for name, m in block.named_modules() if name.startswith("bn"))
    norm = block.get_submodule(last)
    assert isinstance(norm, nn.BatchNorm2d)
    x = torch.randn(3, 8, 5, 5)
    assert not torch.allclose(block(x), x.relu())
    nn.init.zeros_(norm.weight)
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize("first", [1, -1])
@pytest.mark.parametrize("second", [1, -1])
@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_blocks_of_signed_identities(kind: str, first: int, second: int) -> None:
    """Convolutions that are +-identity, and neutral BatchNorm, leave only the ReLUs and the sum."""
    block = (BasicBlock(4, 4, 1) if kind == "basic" else Bottleneck(4, 4, 1, "conv1")).eval()
    for name, module in block.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.dirac_(module.weight)
            module.weight.data *= {"conv1": first, "conv2": second}.get(name, 1)
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0
    x = torch.randn(2, 4, 6, 6)
    branch = second * (first * x).relu()
    if kind == "bottleneck":
        branch = branch.relu()
        branch[:, 1:] = 0  # The bottleneck is one channel wide.
    assert torch.allclose(block(x), (x + branch).relu())


def test_resnets_average_the_last_stage() -> None:
    network, x = built(IDS.index("resnet18-1x16x16"))
    maps: list[Tensor] = []
    hook = network.get_submodule("layer4").register_forward_hook(lambda m, i, o: maps.append(o))
    z = network.features(x)
    hook.remove()
    assert maps[0].shape == (4, 512, 2, 2)
    assert torch.allclose(z, maps[0].flatten(2).sum(2) / 4)


def test_only_the_chosen_convolution_strides() -> None:
    for chosen, other in (("conv1", "conv2"), ("conv2", "conv1")):
        network = build("resnet50", (3, 32, 32), 2, stride_on=chosen)
        strided = {n for n, m in network.named_modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)}
        firsts = [f"layer{i}.0" for i in (2, 3, 4)]
        assert strided == {
            "conv1",
            *(f"{f}.{chosen}" for f in firsts),
            *(f"{f}.downsample.0" for f in firsts),
        }
        assert not any(name.endswith(f".{other}") for name in strided)


def torchvision_names(blocks: tuple[int, ...], convs: int, projected: tuple[int, ...]) -> set[str]:
    """torchvision's state-dict keys, from its naming rule alone."""
    pairs = [("conv1", "bn1")]
    for stage, depth in enumerate(blocks, start=1):
        for i in range(depth):
            at = f"layer{stage}.{i}"
            pairs += [(f"{at}.conv{c}", f"{at}.bn{c}") for c in range(1, convs + 1)]
            pairs += [(f"{at}.downsample.0", f"{at}.downsample.1")] if i == 0 and stage in projected else []
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {
        "fc.weight",
        "fc.bias",
        *(f"{conv}.weight" for conv, _ in pairs),
        *(f"{bn}.{k}" for _, bn in pairs for k in norm),
    }


@pytest.mark.parametrize(
    ("name", "blocks", "convs", "projected", "entries"),
    [("resnet18", (2, 2, 2, 2), 2, (2, 3, 4), 122), ("resnet50", (3, 4, 6, 3), 3, (1, 2, 3, 4), 320)],
)
def test_resnets_have_torchvisions_names(
    name: str, blocks: tuple[int, ...], convs: int, projected: tuple[int, ...], entries: int
) -> None:
    for small in (False, True):
        with torch.device("meta"):
            state = build(name, (3, 64, 64), 7, small_input=small).state_dict()
        assert len(state) == entries and set(state) == torchvision_names(blocks, convs, projected)
        assert state["conv1.weight"].shape[-1] == (3 if small else 7)
    assert state["layer4.0.downsample.0.weight"].shape[:2] == ((512, 256) if name == "resnet18" else (2048, 1024))


def test_resnets_start_as_torchvision_does() -> None:
    torch.manual_seed(0)
    network = build("resnet18", (3, 64, 64), 7)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):  # kaiming, fan out: variance 2 / (k * k * outputs)
            fan = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.05)
            assert abs(module.weight.mean().item()) < 0.1 * (2 / fan) ** 0.5
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()


def test_small_input_keeps_the_resolution() -> None:
    maps: list[int] = []
    for small in (False, True):
        network = build("resnet18", (3, 32, 32), 3, small_input=small)
        network.get_submodule("layer1").register_forward_hook(lambda m, i, o: maps.append(o.shape[-1]))
        network(torch.randn(2, 3, 32, 32))
    assert maps == [8, 32]


def test_where_the_feature_is_taken() -> None:
    """FedBN's AlexNet gives it before BatchNorm and ReLU, FDSE's and the digits network's after them."""
    x = torch.randn(4, 3, 64, 64)
    for name, signed in (("alexnet-fedbn", True), ("alexnet-fdse", False), ("digits-cnn", False)):
        z = build(name, (3, 64, 64), 10, **({} if name == "digits-cnn" else {"fc": 64})).features(x)
        assert bool((z < 0).any()) is signed, name
    fedbn = build("alexnet-fedbn", (3, 64, 64), 10, fc=64)
    assert [type(m) for m in fedbn.get_submodule("classifier").children()] == [
        nn.BatchNorm1d,
        nn.ReLU,
        nn.Linear,
    ]


@pytest.mark.parametrize(
    ("name", "chosen", "image"),
    [
        ("mlp", {"norm": True}, (1, 8, 8)),
        ("small-cnn", {"width": 4}, (3, 8, 8)),
        ("hfedf-cnn", {"dropout": 0.0}, (3, 12, 12)),
    ],
)
def test_clients_can_be_batched(name: str, chosen: dict[str, Any], image: tuple[int, int, int]) -> None:
    """Gradients of two networks at once, under vmap, are those of each alone, and so are their statistics."""
    torch.manual_seed(0)
    networks = [build(name, image, 3, **chosen).double() for _ in range(2)]
    params, buffers = stack_module_state(networks)
    x, y = torch.randn(2, 4, *image, dtype=torch.double), torch.randint(3, (2, 4))

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(networks[0], (p, b), (x,)), y)

    grads = vmap(grad(loss))(params, buffers, x, y)
    for i, network in enumerate(networks):
        alone: Any = nn.functional.cross_entropy(network(x[i]), y[i])
        alone.backward()
        for key, p in network.named_parameters():
            assert p.grad is not None and torch.allclose(grads[key][i], p.grad, atol=1e-10), key
        for key, b in network.named_buffers():
            assert torch.allclose(buffers[key][i], b), key


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("resnet-18", (3, 64, 64), {}, "Unknown model 'resnet-18'.*did you mean 'resnet18'"),
    ("", (3, 64, 64), {}, "Unknown model ''.*torchvision:NAME.$"),
    ("tim:vit", (3, 64, 64), {}, "Unknown model 'tim:vit'"),
    ("timm:", (3, 64, 64), {}, "Unknown model 'timm:'"),
    ("small-cnn", (3, 64, 64), {"widht": 4}, "'small-cnn' has no option 'widht'.*did you mean 'width'"),
    ("digits-cnn", (3, 64, 64), {"fc": 4}, "no option 'fc', its options: none"),
    ("small-cnn", (3, 64, 64), {"width": 0}, "'width' of model 'small-cnn' is 0, expected int of at least 1"),
    ("small-cnn", (3, 64, 64), {"width": True}, "'width' of model 'small-cnn' is True"),
    ("small-cnn", (3, 64, 64), {"norm": 1}, "is 1, expected bool"),
    ("mlp", (3, 64, 64), {"hidden": [8, -1]}, r"is \[8, -1\], expected tuple\[int, ...\] of at least 1"),
    ("mlp", (3, 64, 64), {"hidden": 8}, r"is 8, expected tuple\[int, ...\]"),
    ("resnet50", (3, 64, 64), {"stride_on": "conv3"}, "is 'conv3', expected 'conv1' or 'conv2'"),
    ("hfedf-cnn", (3, 64, 64), {"dropout": 1}, "dropout=1, expected 0 <= dropout < 1"),
    ("hfedf-cnn", (3, 64, 64), {"dropout": "0.1"}, "is '0.1', expected float"),
    ("alexnet-fdse", (3, 62, 256), {}, "62x256, expected 63x63 at least"),
    ("alexnet-fedbn", (3, 256, 62), {}, "256x62, expected 63x63 at least"),
    ("resnet18", (3, 31, 31), {}, "31x31, expected 32x32 at least"),
    ("resnet50", (3, 7, 7), {"small_input": True}, "7x7, expected 8x8 at least"),
    ("mlp", (3, 64), {}, r"image=\(3, 64\), expected three positive integers"),
    ("mlp", (0, 8, 8), {}, r"image=\(0, 8, 8\), expected three positive integers"),
]


@pytest.mark.parametrize(("name", "image", "chosen", "sentence"), BAD)
def test_what_cannot_be_built_is_said_in_one_sentence(
    name: str, image: tuple[int, int, int], chosen: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        build(name, image, 5, **chosen)
    assert "\n" not in str(caught.value)


def test_no_classes() -> None:
    with pytest.raises(ModelError, match="classes=0"):
        build("mlp", (1, 8, 8), 0)


def test_options_are_those_of_the_class() -> None:
    assert options("small-cnn") == {"width": (int, 16), "norm": (bool, True)}
    assert options("digits-cnn") == {}
    assert set(options("resnet50")) == {"stride_on", "weights", "small_input", "latent"}
    external = {"weights": (str, ""), "norm": (bool, False)}
    assert options("timm:anything") == options("torchvision:anything") == external
