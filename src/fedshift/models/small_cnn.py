"""A small convolutional network for quick runs."""

from typing import ClassVar

from torch import nn

from .blocks import conv_block
from .network import Chain, Image


class SmallCNN(Chain):
    """Three 3x3 convolutions of 1, 2 and 4 times `width` channels and a global average: from 4x4 pixels up.

    Source: this library's own; BatchNorm after Ioffe and Szegedy, ICML 2015.
    """

    citation: ClassVar[str] = "fedshift's own network; BatchNorm after Ioffe and Szegedy, ICML 2015, arXiv 1502.03167"

    def __init__(self, image: Image, classes: int, *, width: int = 16, norm: bool = True) -> None:
        """`width` is the number of channels of the first convolution; `norm` puts BatchNorm after each."""
        super().__init__(image, classes, least=4)
        c1, c2, c3 = width, 2 * width, 4 * width
        # A bias in front of BatchNorm would do nothing.
        self.body = nn.Sequential(
            conv_block(image[0], c1, 3, norm=norm, bias=not norm, pool=nn.MaxPool2d(2)),
            conv_block(c1, c2, 3, norm=norm, bias=not norm, pool=nn.MaxPool2d(2)),
            conv_block(c2, c3, 3, norm=norm, bias=not norm),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.width = c3
        self.classifier = nn.Linear(c3, classes)

    def taps(self) -> tuple[str, ...]:
        """The three convolution blocks."""
        return "body.0", "body.1", "body.2"
