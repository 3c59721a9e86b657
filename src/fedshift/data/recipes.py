"""What training pictures go through: the settings of each paper, under its name."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ..core.bounds import Range
from ..core.errors import ConfigError

Normalise = Literal["half", "imagenet", "none"]
STATISTICS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class Recipe:
    """Settings of the pipeline; a training picture goes through them from top to bottom, any other one
    through the first and the last.
    """

    size: Annotated[int, Range(0), "side to which images are resized; 0: as they are stored"] = 0
    crop: Annotated[float, Range(0, 1, open_low=True), "a crop keeps at least this share of the area; 1: no crop"] = 1.0
    stretch: Annotated[float, Range(1), "a crop is at most so many times wider than high, or higher than wide"] = 4 / 3
    shift: Annotated[float, Range(0, 1), "farthest move, as a share of the side; edges are repeated"] = 0.0
    flip: Annotated[float, Range(0, 1), "chance that left and right are swapped"] = 0.0
    rotation: Annotated[float, Range(0, 180), "largest rotation either way, in degrees"] = 0.0
    rotate_by: Annotated[Literal["nearest", "bilinear"], "how a rotated picture is sampled"] = "nearest"
    fill: Annotated[float, Range(0, 255), "grey level of the corners that a rotation uncovers"] = 0.0
    brightness: Annotated[float, Range(0, 1), "factor of the brightness: up to this much above or below 1"] = 0.0
    contrast: Annotated[float, Range(0, 1), "factor of the contrast: up to this much above or below 1"] = 0.0
    saturation: Annotated[float, Range(0, 1), "factor of the saturation: up to this much above or below 1"] = 0.0
    hue: Annotated[float, Range(0, 0.5), "largest turn of the hue either way, in full turns"] = 0.0
    grey: Annotated[float, Range(0, 1), "chance that the colours are taken away"] = 0.0
    normalise: Annotated[Normalise, "channel means and spreads: all 0.5, ImageNet's, or none"] = "half"

    def __post_init__(self) -> None:
        """Refuse two ways to place the picture at once."""
        if self.shift and self.crop < 1:
            raise ConfigError(f"crop is {self.crop:g} and shift {self.shift:g}; please set crop to 1 or shift to 0")

    @property
    def moves(self) -> bool:
        """Whether anything changes where a pixel is."""
        return bool(self.crop < 1 or self.shift or self.flip or self.rotation)

    @property
    def jitters(self) -> bool:
        """Whether brightness, contrast, saturation or hue change."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue)


# Gulrajani and Lopez-Paz, In Search of Lost Domain Generalization, ICLR 2021: RandomResizedCrop(scale .7 to 1), flip,
# ColorJitter(.3, .3, .3, .3), RandomGrayscale(.1), ImageNet's statistics.
DOMAINBED = Recipe(
    crop=0.7, flip=0.5, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3, grey=0.1, normalise="imagenet"
)
# Li et al., FedBN, ICLR 2021, as released, on Office-Caltech10 and DomainNet: Resize(256), flip, RandomRotation(30),
# whose default is nearest neighbour on black, and no statistics.
FEDBN = Recipe(size=256, flip=0.5, rotation=30.0, normalise="none")
# The same on the digits: 28x28, statistics .5, nothing random.
FEDBN_DIGITS = Recipe(size=28)

RECIPES: dict[str, Recipe] = {
    "none": Recipe(),
    "shift": Recipe(shift=0.125),
    "domainbed": DOMAINBED,
    "fedbn": FEDBN,
    "fedbn-digits": FEDBN_DIGITS,
    # Wang et al., FDSE, CVPR 2025: the release resizes to 256 (the paper says 224) and scales to [0, 1], no more.
    "fdse": Recipe(size=256, normalise="none"),
    # Bartholet et al., hFedF, 2024: 32x32 by its Table 7; the rest is unstated, and DomainBed's recipe comes nearest to
    # the published accuracies.
    "hfedf": replace(DOMAINBED, size=32),
    # LSI's release: DomainBed's recipe after Resize(256); the paper is silent.
    "lsi": replace(DOMAINBED, size=256),
    # RFedDis follows FedBN's protocol.
    "rfeddis": FEDBN,
    "rfeddis-digits": FEDBN_DIGITS,
    # FedDCA's release: 32x32 (the text says 224), statistics .5, nothing random, DomainNet and digits alike.
    "feddca": Recipe(size=32),
}
