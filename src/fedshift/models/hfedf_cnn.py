"""The client network of hFedF: no BatchNorm anywhere, so that a hypernetwork can write all of it."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core.errors import ModelError
from .network import Chain, Image


class Inception(nn.Module):
    """The naive Inception block: 1x1, 3x3 and 5x5 convolutions and a max-pooling side by side, then ReLU."""

    def __init__(self, before: int) -> None:
        """From `before` channels to `before` + 112."""
        super().__init__()
        self.branches = nn.ModuleList(
            [
                nn.Conv2d(before, 32, 1),
                nn.Conv2d(before, 64, 3, padding=1),
                nn.Conv2d(before, 16, 5, padding=2),
                nn.MaxPool2d(3, stride=1, padding=1),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """The four branches, concatenated along the channels."""
        return torch.cat([branch(x) for branch in self.branches], dim=1).relu()


class HFedFCNN(Chain):
    """Two convolution stages and two inception blocks for 32x32 pictures, Table 7 of hFedF.

    Source: Bartholet et al., arXiv 2402.06974. The table prints no activation between the last two linear
    layers, `fc_act="relu"` puts one there; the inception block is not drawn, the channel counts fix it.
    """

    citation: ClassVar[str] = (
        "Bartholet et al., Non-linear Fusion in Federated Learning: A Hypernetwork Approach to Federated "
        "Domain Generalization, 2024, arXiv 2402.06974, Table 7; Inception after Szegedy et al., CVPR 2015"
    )
    width: int = 256

    def __init__(
        self, image: Image, classes: int, *, fc_act: Literal["none", "relu"] = "none", dropout: float = 0.2
    ) -> None:
        """`fc_act` follows the 256 features; `dropout` precedes them."""
        super().__init__(image, classes, least=12)  # Below 12 pixels the 3x3 pooling would repeat itself.
        if not 0 <= dropout < 1:
            raise ModelError(f"HFedFCNN got dropout={dropout!r}, expected 0 <= dropout < 1; choose one there.")
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(image[0], 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            nn.Sequential(nn.Conv2d(32, 32, 1), nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            Inception(64),
            Inception(176),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(288 * 9, self.width),
            nn.ReLU() if fc_act == "relu" else nn.Identity(),
        )
        self.classifier = nn.Linear(self.width, classes)

    def taps(self) -> tuple[str, ...]:
        """The two convolution stages and the two inception blocks."""
        return "body.0", "body.1", "body.2", "body.3"
