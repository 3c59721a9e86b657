"""What every network offers: features, a head on them, and the names of its stages."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from ..core.errors import ModelError
from .weights import Loaded

Image = tuple[int, int, int]  # channels, height, width


class Network(nn.Module, ABC):
    """A backbone in two parts: features(x) -> [B, width], head(z) -> logits; forward = head(features(x)).

    A subclass is built as `Class(image, classes, *, option=default, ...)`: its keyword-only arguments are
    what a user's configuration may set. `loaded` tells what was read from a weights file, if one was.
    """

    citation: ClassVar[str]
    width: int
    loaded: Loaded | None = None

    def __init__(self, image: Image, classes: int, *, least: int = 1) -> None:
        """Refuse a picture below `least` pixels a side, and no classes at all."""
        super().__init__()
        kind = type(self).__name__
        if not _is_image(image):
            raise ModelError(
                f"{kind} got image={image!r}, expected three positive integers; give (channels, height, width)."
            )
        if min(image[1:]) < least:
            raise ModelError(
                f"{kind} got pictures of {image[1]}x{image[2]}, expected {least}x{least} at least; "
                "resize the pictures or choose a smaller network."
            )
        if classes < 1:
            raise ModelError(f"{kind} got classes={classes!r}, expected 1 at least; give the number of classes.")

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The representation of a batch of pictures, [B, width]."""

    @abstractmethod
    def head(self, z: Tensor) -> Tensor:
        """The logits of a batch of features, [B, classes]."""

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of pictures."""
        return self.head(self.features(x))

    def taps(self) -> tuple[str, ...]:
        """Names of the sub-modules that are the ordered stages, for methods which wrap or tap a stage."""
        return ()


class Chain(Network):
    """A network made of two modules in a row: `body` gives the features, `classifier` is the head."""

    body: nn.Sequential
    classifier: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """What the body makes of `x`."""
        z: Tensor = self.body(x)
        return z

    def head(self, z: Tensor) -> Tensor:
        """What the classifier makes of `z`."""
        logits: Tensor = self.classifier(z)
        return logits


def _is_image(image: Sequence[int]) -> bool:
    return len(image) == 3 and all(isinstance(n, int) and n > 0 for n in image)
