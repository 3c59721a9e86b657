"""Networks of torchvision and timm by name, imported only when asked for and split into features and head."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ModelError, nearest
from .network import Image, Network
from .weights import load_weights


class External(Network):
    """Another package's image classifier: `net` is all of it but its last layer, `classifier` that layer.

    `model` is the network's name in its package. The parts are checked to give what the whole gave.
    """

    package: ClassVar[str]
    module: ClassVar[str]
    classifier: nn.Module

    def __init__(self, image: Image, classes: int, model: str, *, weights: str = "", norm: bool = False) -> None:
        """`weights` is a safetensors file with the package's own tensor names.

        `norm` puts BatchNorm without scale and shift before the last layer: the head that LSI inverts.
        """
        super().__init__(image, classes)
        label = f"{self.package}:{model}"
        package = self._import(label)
        self._require(package, model)
        with _explained(label, image):
            net = self._create(package, model, image, classes)
            name = self._classifier(net)
            self.loaded = load_weights(net, weights, name) if weights else None
            self._split(net, name, image)
        if norm:
            self.classifier = nn.Sequential(nn.BatchNorm1d(self.width, affine=False), self.classifier)

    @abstractmethod
    def _names(self, package: ModuleType) -> list[str]:
        """The names that can be asked for."""

    @abstractmethod
    def _create(self, package: ModuleType, model: str, image: Image, classes: int) -> nn.Module:
        """The whole network, untrained."""

    @abstractmethod
    def _classifier(self, net: nn.Module) -> str:
        """The name of the sub-module that turns features into logits."""

    def _import(self, label: str) -> ModuleType:
        try:
            return import_module(self.module)
        except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch.
            raise ModelError(
                f"Model {label!r} needs {self.package}, which cannot be imported ({_line(error)}); "
                f'install it with: pip install "fedshift[{self.package}]".'
            ) from error

    def _require(self, package: ModuleType, model: str) -> None:
        names = self._names(package)
        if model.split(".")[0] not in names:  # timm writes the training recipe behind a dot.
            raise ModelError(
                f"Unknown {self.package} model {model!r}, expected one of the {len(names)} which it lists"
                f"{nearest(model, names) or '.'}"
            )

    def _split(self, net: nn.Module, name: str, image: Image) -> None:
        """Put an identity in the classifier's place, and see that the two parts still make the whole."""
        whole = _probe(net, image)
        self.classifier = net.get_submodule(name)
        net.set_submodule(name, nn.Identity())
        self.net = net
        features = _probe(net, image)
        with torch.no_grad():
            if features.ndim != 2 or not torch.allclose(self.head(features), whole, rtol=1e-4, atol=1e-5):
                raise ValueError("its last layer alone does not make the logits")
        self.width = features.shape[1]

    def features(self, x: Tensor) -> Tensor:
        """What goes into the package's classifier."""
        z: Tensor = self.net(x)
        return z

    def head(self, z: Tensor) -> Tensor:
        """The package's classifier."""
        logits: Tensor = self.classifier(z)
        return logits


class Torchvision(External):
    """A torchvision classifier whose last linear layer makes the logits, without auxiliary outputs."""

    citation: ClassVar[str] = "TorchVision maintainers and contributors, 2016, https://github.com/pytorch/vision"
    package: ClassVar[str] = "torchvision"
    module: ClassVar[str] = "torchvision.models"

    def _names(self, package: ModuleType) -> list[str]:
        auxiliary = ("googlenet", "inception_v3")  # In training they return several logits.
        return [name for name in package.list_models(module=package) if name not in auxiliary]

    def _create(self, package: ModuleType, model: str, image: Image, classes: int) -> nn.Module:
        net: nn.Module = package.get_model(model, weights=None, num_classes=classes)
        return net

    def _classifier(self, net: nn.Module) -> str:
        linear: list[str] = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError("it has no linear layer")
        return linear[-1]


class Timm(External):
    """A timm classifier; a transformer made for one picture size is built for the size at hand."""

    citation: ClassVar[str] = (
        "Wightman, PyTorch Image Models, 2019, https://github.com/huggingface/pytorch-image-models"
    )
    package: ClassVar[str] = "timm"
    module: ClassVar[str] = "timm"

    def _names(self, package: ModuleType) -> list[str]:
        names: list[str] = package.list_models()
        return names

    def _create(self, package: ModuleType, model: str, image: Image, classes: int) -> nn.Module:
        fixed = getattr(package.get_pretrained_cfg(model), "fixed_input_size", False)
        size = {"img_size": image[1:]} if fixed else {}
        net: nn.Module = package.create_model(model, pretrained=False, num_classes=classes, in_chans=image[0], **size)
        return net

    def _classifier(self, net: nn.Module) -> str:
        whole: Any = net
        last = whole.get_classifier()
        found: list[str] = [name for name, module in net.named_modules() if module is last]
        if not found:
            raise ValueError("it has not one classifier but several")
        return found[0]


LIBRARIES: dict[str, type[External]] = {cls.package: cls for cls in (Torchvision, Timm)}


def _probe(net: nn.Module, image: Image) -> Tensor:
    """The output for two fixed pictures; neither the network nor the global random numbers are touched."""
    x = torch.rand(2, *image, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out: Tensor = net.eval()(x)
    net.train()
    return out


@contextmanager
def _explained(label: str, image: Image) -> Iterator[None]:
    """Turn whatever the package raises into one sentence."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"Model {label!r} cannot be used on pictures of shape {tuple(image)} ({_line(error)}), "
            "expected a classifier that takes them; choose another picture size or another model."
        ) from error


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
