"""FedBN's network for the five digits domains."""

from typing import ClassVar

from torch import nn

from .blocks import conv_block, dense_block
from .network import Chain, Image


class DigitsCNN(Chain):
    """Three convolutions and three linear layers; the feature is the first linear layer's, after ReLU.

    Source: Li et al., ICLR 2021 (FedBN), made for 28x28, works from 4x4 up; the feature is RFedDis's choice.
    """

    citation: ClassVar[str] = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, "
        "ICLR 2021, arXiv 2102.07623"
    )
    width: int = 2048

    def __init__(self, image: Image, classes: int) -> None:
        """No options: this is the published network."""
        super().__init__(image, classes, least=4)
        channels, height, wide = image
        self.body = nn.Sequential(
            conv_block(channels, 64, 5, pool=nn.MaxPool2d(2)),
            conv_block(64, 64, 5, pool=nn.MaxPool2d(2)),
            conv_block(64, 128, 5),
            nn.Flatten(),
            dense_block(128 * (height // 4) * (wide // 4), self.width),
        )
        self.classifier = nn.Sequential(*dense_block(self.width, 512), nn.Linear(512, classes))

    def taps(self) -> tuple[str, ...]:
        """The three convolution blocks."""
        return "body.0", "body.1", "body.2"
