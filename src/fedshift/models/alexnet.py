"""AlexNet with BatchNorm, as FedBN and as FDSE use it: the same layers, another width and another feature."""

from typing import ClassVar

from torch import nn

from .blocks import conv_block, dense_block
from .network import Chain, Image


def _convolutions(channels: int) -> list[nn.Module]:
    """Five convolution blocks and the pooling to 6x6: from 63x63 pixels on, [B, 9216]."""
    return [
        conv_block(channels, 64, 11, stride=4, padding=2, pool=nn.MaxPool2d(3, 2)),
        conv_block(64, 192, 5, pool=nn.MaxPool2d(3, 2)),
        conv_block(192, 384, 3),
        conv_block(384, 256, 3),
        conv_block(256, 256, 3, pool=nn.MaxPool2d(3, 2)),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
    ]


class _AlexNet(Chain):
    def taps(self) -> tuple[str, ...]:
        """The five convolution blocks."""
        return tuple(f"body.{i}" for i in range(5))


class AlexNetFedBN(_AlexNet):
    """FedBN's AlexNet for Office-Caltech and DomainNet, trained from scratch at 256x256.

    The feature is what the second linear layer gives, before its BatchNorm and ReLU: these belong to the
    head, as in RFedDis.
    Sources: Li et al., ICLR 2021 (FedBN); Krizhevsky et al., NeurIPS 2012.
    """

    citation: ClassVar[str] = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, "
        "ICLR 2021, arXiv 2102.07623; AlexNet after Krizhevsky et al., NeurIPS 2012"
    )

    def __init__(self, image: Image, classes: int, *, fc: int = 4096) -> None:
        """`fc` is the width of both hidden linear layers."""
        super().__init__(image, classes, least=63)
        linear, norm, relu = dense_block(fc, fc)
        self.body = nn.Sequential(*_convolutions(image[0]), dense_block(9216, fc), linear)
        self.width = fc
        self.classifier = nn.Sequential(norm, relu, nn.Linear(fc, classes))


class AlexNetFDSE(_AlexNet):
    """FDSE's plain AlexNet, which serves its baselines; the feature is the last hidden layer's, after ReLU.

    Source: Wang et al., CVPR 2025 (FDSE), Table A5.
    """

    citation: ClassVar[str] = (
        "Wang et al., Federated Learning with Domain Shift Eraser, CVPR 2025, arXiv 2503.13063, Table A5; "
        "AlexNet after Krizhevsky et al., NeurIPS 2012"
    )

    def __init__(self, image: Image, classes: int, *, fc: int = 1024) -> None:
        """`fc` is the width of both hidden linear layers."""
        super().__init__(image, classes, least=63)
        self.body = nn.Sequential(*_convolutions(image[0]), dense_block(9216, fc), dense_block(fc, fc))
        self.width = fc
        self.classifier = nn.Linear(fc, classes)
