"""FedDCA's two-convolution network."""

from typing import ClassVar

from torch import nn

from .network import Chain, Image


class FedDCACNN(Chain):
    """Two convolutions and two linear layers, without BatchNorm and, but on digits, without pooling.

    Source: Hameed, Rizwan and Akhtar, FedDCA, LUMS CS6304 report; made for 32x32.
    """

    citation: ClassVar[str] = "Hameed, Rizwan and Akhtar, FedDCA, LUMS CS6304 report"
    width: int = 128

    def __init__(self, image: Image, classes: int, *, pool: bool = False) -> None:
        """`pool` adds the max-pooling of the digits variant."""
        super().__init__(image, classes, least=2)
        channels, height, wide = image
        side = 2 if pool else 1
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(side)),
            nn.Flatten(),
            nn.Sequential(nn.Linear(64 * (height // side) * (wide // side), self.width), nn.ReLU()),
        )
        self.classifier = nn.Linear(self.width, classes)

    def taps(self) -> tuple[str, ...]:
        """The two convolutions."""
        return "body.0", "body.1"
