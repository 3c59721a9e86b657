"""ResNet-18 and ResNet-50 with torchvision's tensor names and initialisation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor, nn

from ..core.errors import ModelError
from .network import Image, Network
from .weights import load_weights, read_metadata


def _conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    """The identity where it fits, else a 1x1 projection with BatchNorm (option B of the paper)."""
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """From `before` to `after` channels; the first convolution strides."""
        super().__init__()
        self.conv1, self.bn1 = _conv(before, after, 3, stride), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = _conv(after, after, 3), nn.BatchNorm2d(after)
        self.downsample = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of branch plus shortcut."""
        z = self.bn1(self.conv1(x)).relu()
        out: Tensor = self.bn2(self.conv2(z)) + self.downsample(x)
        return out.relu()


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, stride_on: Literal["conv1", "conv2"]) -> None:
        """From `before` to `after` channels over `after` / 4; the convolution named `stride_on` strides."""
        super().__init__()
        inner = after // 4
        first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
        self.conv1, self.bn1 = _conv(before, inner, 1, first), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, 3, second), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, after, 1), nn.BatchNorm2d(after)
        self.downsample = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of branch plus shortcut."""
        z = self.bn1(self.conv1(x)).relu()
        z = self.bn2(self.conv2(z)).relu()
        out: Tensor = self.bn3(self.conv3(z)) + self.downsample(x)
        return out.relu()


Block = Callable[[int, int, int], nn.Module]  # channels before and after, stride


def _stage(block: Block, before: int, after: int, depth: int, stride: int) -> nn.Sequential:
    return nn.Sequential(block(before, after, stride), *(block(after, after, 1) for _ in range(depth - 1)))


class Narrow(nn.Module):
    """A linear layer to fewer features; for the classifier, BatchNorm without scale and shift and a linear layer."""

    def __init__(self, before: int, latent: int, classes: int) -> None:
        """From `before` features to `latent`, and on to the classes."""
        super().__init__()
        self.latent, self.norm = nn.Linear(before, latent), nn.BatchNorm1d(latent, affine=False)
        self.out = nn.Linear(latent, classes)


class _ResNet(Network):
    fc: nn.Linear | Narrow

    def __init__(
        self,
        image: Image,
        classes: int,
        block: Block,
        depths: Sequence[int],
        width: int,
        small_input: bool,
        latent: int,
    ) -> None:
        super().__init__(image, classes, least=8 if small_input else 32)
        self.conv1 = _conv(image[0], 64, 3) if small_input else _conv(image[0], 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small_input else nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(block, 64, width // 8, depths[0], 1)
        self.layer2 = _stage(block, width // 8, width // 4, depths[1], 2)
        self.layer3 = _stage(block, width // 4, width // 2, depths[2], 2)
        self.layer4 = _stage(block, width // 2, width, depths[3], 2)
        self.width = latent or width
        self.fc = Narrow(width, latent, classes) if latent else nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """The last stage, averaged over the picture; with `latent`, through the linear layer that follows."""
        z = self.maxpool(self.bn1(self.conv1(x)).relu())
        z = self.layer4(self.layer3(self.layer2(self.layer1(z))))
        pooled: Tensor = z.mean(dim=(2, 3))
        return self.fc.latent(pooled) if isinstance(self.fc, Narrow) else pooled

    def head(self, z: Tensor) -> Tensor:
        """The linear classifier; with `latent`, BatchNorm before it."""
        logits: Tensor = self.fc.out(self.fc.norm(z)) if isinstance(self.fc, Narrow) else self.fc(z)
        return logits

    def taps(self) -> tuple[str, ...]:
        """The four stages."""
        return "layer1", "layer2", "layer3", "layer4"

    def _load(self, weights: str) -> None:
        if weights:
            self.loaded = load_weights(self, weights, "fc", replaced=isinstance(self.fc, Narrow))


class ResNet18(_ResNet):
    """ResNet-18: two basic blocks in each of four stages.

    Source: He et al., CVPR 2016; weights drawn as in He et al., ICCV 2015 (normal, fan out).
    """

    citation: ClassVar[str] = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv 1512.03385"

    def __init__(
        self, image: Image, classes: int, *, weights: str = "", small_input: bool = False, latent: int = 0
    ) -> None:
        """`weights` is a safetensors file; `small_input` (32x32) gives a 3x3 stem without pooling.

        `latent` puts a linear layer of that width, and BatchNorm, before the classifier: the head that LSI inverts.
        """
        super().__init__(image, classes, BasicBlock, (2, 2, 2, 2), 512, small_input, latent)
        self._load(weights)


class ResNet50(_ResNet):
    """ResNet-50: 3, 4, 6 and 3 bottlenecks in the four stages.

    Sources: He et al., CVPR 2016, which strides on `conv1`; `stride_on="conv2"` is the later variant, v1.5
    (Goyal et al., arXiv 1706.02677). Both have the same tensors, so a file of one loads into
    the other, which then works badly.
    """

    citation: ClassVar[str] = (
        "He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv 1512.03385; "
        "stride on the 3x3 convolution after Goyal et al., 2017, arXiv 1706.02677"
    )

    def __init__(
        self,
        image: Image,
        classes: int,
        *,
        stride_on: Literal["conv1", "conv2"] = "conv2",
        weights: str = "",
        small_input: bool = False,
        latent: int = 0,
    ) -> None:
        """`weights` is a safetensors file; `small_input` (32x32) gives a 3x3 stem without pooling.

        `latent` puts a linear layer of that width, and BatchNorm, before the classifier: the head that LSI inverts.
        """
        block = partial(Bottleneck, stride_on=stride_on)
        super().__init__(image, classes, block, (3, 4, 6, 3), 2048, small_input, latent)
        if weights:
            _check_strides(weights, stride_on)
        self._load(weights)


def _check_strides(weights: str, stride_on: str) -> None:
    """Believe a file that says in its metadata (`stride_in`) where its network strides."""
    said = read_metadata(weights).get("stride_in", "").split(" ")[0]
    if said in ("conv1", "conv2") and said != stride_on:
        raise ModelError(
            f"Weights file {weights} says it strides on {said}, found stride_on={stride_on!r}, expected the "
            f"same; set stride_on = {said!r}."
        )
