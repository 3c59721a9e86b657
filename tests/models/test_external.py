"""The adapters of torchvision and timm, on small stand-ins for both libraries."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedshift.core.errors import ModelError
from fedshift.models import build

IMAGE = (3, 8, 8)


class Plain(nn.Module):
    """In torchvision's manner: an inner linear layer, dropout, and the last layer in a Sequential."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.gate = nn.Linear(6, 6)
        self.last = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, classes))

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.stem(x)).relu().mean(dim=(2, 3))
        logits: Tensor = self.last(z * self.gate(z).sigmoid())
        return logits

    def get_classifier(self) -> object:
        """The last linear layer, as timm's networks give it."""
        return self.last[1]


class Sized(Plain):
    """A classifier in a vision transformer's manner: made for one picture size."""

    def __init__(self, classes: int, channels: int, img_size: tuple[int, int]) -> None:
        super().__init__(classes, channels)
        self.size = img_size

    def forward(self, x: Tensor) -> Tensor:
        assert tuple(x.shape[2:]) == self.size, f"made for {self.size}"
        return super().forward(x)


class Scaled(Plain):
    """A classifier that goes on after its last linear layer, so that it cannot be split there."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) + 1


class Twin(Plain):
    """A classifier in the distilled transformers' manner: two classifiers."""

    def get_classifier(self) -> object:
        return self.last[1], self.gate


class Convolutional(nn.Module):
    """A classifier without any linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.conv(x).mean(dim=(2, 3))
        return logits


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for torchvision."""
    made: dict[str, Callable[..., nn.Module]] = {
        "plain": Plain,
        "scaled": Scaled,
        "convolutional": Convolutional,
        "googlenet": Plain,
    }
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")

    def get_model(name: str, *, weights: None, num_classes: int) -> nn.Module:
        return made[name](num_classes)

    vars(models).update(get_model=get_model, list_models=lambda module: list(made) if module is models else [])
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for timm."""
    made: dict[str, Callable[..., nn.Module]] = {"plain": Plain, "vit_8": Sized, "twin": Twin}
    package = ModuleType("timm")

    def create_model(
        name: str, *, pretrained: bool, num_classes: int, in_chans: int, **size: tuple[int, int]
    ) -> nn.Module:
        assert not pretrained
        return made[name.split(".")[0]](num_classes, in_chans, **size)

    vars(package).update(
        create_model=create_model,
        list_models=lambda: list(made),
        get_pretrained_cfg=lambda name: SimpleNamespace(fixed_input_size=True) if "vit" in name else None,
    )
    monkeypatch.setitem(sys.modules, "timm", package)


@pytest.fixture(params=["torchvision", "timm"])
def library(request: pytest.FixtureRequest) -> str:
    """Either library's name, with its stand-in in place."""
    request.getfixturevalue(request.param)
    name: str = request.param
    return name


def test_split(library: str) -> None:
    torch.manual_seed(0)
    whole = Plain(5)
    torch.manual_seed(0)
    split = build(f"{library}:plain", IMAGE, 5)
    assert all(m.training for m in split.modules()) and split.width == 6 and split.taps() == () and split.citation
    x = torch.randn(4, *IMAGE)
    assert torch.allclose(split.eval()(x), whole.eval()(x))
    assert split.features(x).shape == (4, 6) and torch.equal(split(x), split.head(split.features(x)))
    assert sum(p.numel() for p in split.parameters()) == sum(p.numel() for p in whole.parameters())
    split.train()(x).sum().backward()
    assert all(p.grad is not None for p in split.parameters())


def test_a_norm_before_the_last_layer(library: str) -> None:
    """The features stay as they are; the head normalises them, with nothing more to train."""
    torch.manual_seed(0)
    plain = build(f"{library}:plain", IMAGE, 5).eval()
    torch.manual_seed(0)
    normed = build(f"{library}:plain", IMAGE, 5, norm=True).eval()
    z = plain.features(torch.randn(4, *IMAGE))
    count = [sum(p.numel() for p in net.parameters()) for net in (plain, normed)]
    assert count[0] == count[1] and torch.allclose(normed.head(z), plain.head(z / (1 + 1e-5) ** 0.5))
    normed.train()
    assert torch.allclose(
        normed.head(z), plain.head((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()), atol=1e-5
    )


def test_building_leaves_statistics_and_random_numbers_alone(library: str) -> None:
    torch.manual_seed(0)
    split = build(f"{library}:plain", IMAGE, 5)
    after = torch.rand(1)
    assert all((b == (1 if key.endswith("var") else 0)).all() for key, b in split.named_buffers())
    torch.manual_seed(0)
    Plain(5)
    assert torch.equal(after, torch.rand(1))


def test_weights_have_the_librarys_names(library: str, tmp_path: Path) -> None:
    source = Plain(1000)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    split = build(f"{library}:plain", IMAGE, 5, weights=str(tmp_path / "w.safetensors"))
    assert split.loaded is not None and split.loaded.kept == ("last.1.weight", "last.1.bias")
    assert torch.equal(split.get_parameter("net.stem.weight"), source.stem.weight)
    whole = build(f"{library}:plain", IMAGE, 1000, weights=str(tmp_path / "w.safetensors"))
    x = torch.randn(4, *IMAGE)
    assert torch.allclose(whole.eval()(x), source.eval()(x))


@pytest.mark.parametrize(
    ("model", "image", "sentence"),
    [
        ("plane", IMAGE, "Unknown torchvision model 'plane'.*did you mean 'plain'"),
        ("googlenet", IMAGE, "Unknown torchvision model 'googlenet'"),
        (
            "scaled",
            IMAGE,
            r"'torchvision:scaled' cannot be used .* \(its last layer alone does not make the logits\)",
        ),
        ("convolutional", IMAGE, r"\(it has no linear layer\)"),
        ("plain", (1, 8, 8), r"'torchvision:plain' cannot be used on pictures of shape \(1, 8, 8\)"),
    ],
)
def test_what_torchvision_cannot_give(
    torchvision: None, model: str, image: tuple[int, int, int], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        build(f"torchvision:{model}", image, 5)
    assert "\n" not in str(caught.value)


def test_timm_takes_channels_sizes_and_tags(timm: None) -> None:
    assert build("timm:plain.some_recipe", (1, 8, 8), 5)(torch.randn(2, 1, 8, 8)).shape == (2, 5)
    assert build("timm:vit_8", (3, 12, 10), 5)(torch.randn(2, 3, 12, 10)).shape == (2, 5)
    with pytest.raises(ModelError, match=r"Unknown timm model 'vit_9', .*did you mean 'vit_8'"):
        build("timm:vit_9", IMAGE, 5)
    with pytest.raises(ModelError, match="it has not one classifier but several"):
        build("timm:twin", IMAGE, 5)


@pytest.mark.parametrize("name", ["torchvision", "timm"])
def test_an_absent_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match=rf'needs {name}, .*pip install "fedshift\[{name}\]"'):
        build(f"{name}:resnet34", IMAGE, 5)


def test_a_broken_library_says_so_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when torchvision was built for another torch."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModelError, match=r"cannot be imported \(operator torchvision::nms does not exist\)"):
        build("timm:resnet34", IMAGE, 5)
