"""A multi-layer perceptron on flattened pictures."""

from itertools import pairwise
from math import prod
from typing import ClassVar

from torch import nn

from .blocks import dense_block
from .network import Chain, Image


class MLP(Chain):
    """Linear layers with ReLU; `hidden=(200, 200)` on 28x28 pictures is FedAvg's "2NN", `()` a linear model.

    Source: McMahan et al., AISTATS 2017.
    """

    citation: ClassVar[str] = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
        "AISTATS 2017, arXiv 1602.05629"
    )

    def __init__(self, image: Image, classes: int, *, hidden: tuple[int, ...] = (64,), norm: bool = False) -> None:
        """One block for each width in `hidden`, with BatchNorm if `norm`."""
        super().__init__(image, classes)
        widths = (prod(image), *hidden)
        # A bias in front of BatchNorm would do nothing.
        blocks = [dense_block(a, b, norm=norm, bias=not norm) for a, b in pairwise(widths)]
        self.body = nn.Sequential(nn.Flatten(), *blocks)
        self.width = widths[-1]
        self.classifier = nn.Linear(self.width, classes)

    def taps(self) -> tuple[str, ...]:
        """The hidden layers, each with its ReLU."""
        return tuple(f"body.{i}" for i in range(1, len(self.body)))
