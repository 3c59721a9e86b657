"""Augmentation of whole batches, on the device they are on.

Everything random is drawn first, on the CPU, into one table with a row per picture (`Transform.draw`); applying it
(`Transform.apply`) has static shapes and never asks the device for a value, so that it can be captured. A row takes the
same 32 numbers from the generator whatever the recipe: an operation more or less changes no other one, and two batches
drawn at once get what they would have got one after the other.

The maths is torchvision's on Pillow pictures, without the rounding to whole grey levels between its steps:
- crop, flip and rotation are one sampling of the picture; a picture that is both cropped and rotated is therefore
  interpolated once, not twice;
- colours lie in 0..255 and are clipped after every step; grey is ITU-R 601-2 luma;
- the order of the jitter's four steps is every picture's own: three are put in order by its row, and where the hue
  comes among them follows from its place in the batch, which a shuffle decides.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import DataError
from .recipes import STATISTICS, Normalise, Recipe

# Torch's compiler writes in one pass what is spelt out for it, and does not take `out` with gaps nor complex numbers.
compiling = torch.compiler.is_compiling
Numbers = NDArray[np.float64]  # on small arrays numpy takes a third of torch's time

TRIES = 10  # at a crop that fits, as in torchvision
DICE = (2 * TRIES, 2, 1, 1, 4, 3, 1)  # numbers for box, its place, flip, angle, jitter, its order, greyscale
WARP, SLOTS = 12, 4  # columns of `warp_table`; three steps of jitter and the greyscale
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Transform:
    """Scale to [0, 1], augment if training, normalise by channel."""

    recipe: Recipe
    dtype: torch.dtype
    channels_last: bool = False  # of what comes out

    def train(self, images: Tensor, gen: torch.Generator) -> Tensor:
        """What training sees of a batch [n, channels, height, width] of grey levels; `gen` draws the augmentation."""
        table = self.table(gen, len(images), (images.shape[2], images.shape[3]))
        return self.test(images) if table is None else self.apply(images, table.to(images.device, non_blocking=True))

    def table(self, gen: torch.Generator, n: int, stored: tuple[int, int]) -> Tensor | None:
        """How `n` pictures stored at this height and width are augmented, a row each; None where nothing is random."""
        if not (self.recipe.moves or self.recipe.jitters or self.recipe.grey):
            return None
        side = self.recipe.size
        return self.draw(gen, n, *((side, side) if side else stored))

    def test(self, images: Tensor) -> Tensor:
        """What evaluation sees."""
        x = self._resized(images)
        return normalise(x, self.recipe.normalise, self._room(x))

    def draw(self, gen: torch.Generator, n: int, height: int, width: int) -> Tensor:
        """The table [n, 25] by which `apply` augments `n` pictures of this size (after resizing)."""
        r = self.recipe
        dice = torch.rand(n, sum(DICE), generator=gen, dtype=torch.float64).numpy()
        box, place, flip, angle, jitter, order, grey = np.split(dice, np.cumsum(DICE[:-1]), 1)
        boxes = shift_boxes(place, height, width, r.shift)
        if r.crop < 1:
            boxes = crop_boxes(box, place, height, width, r.crop, r.stretch)
        turn = np.array([r.brightness, r.contrast, r.saturation, r.hue]) * (2 * jitter - 1)
        table = np.empty((n, WARP + 3 * SLOTS + 1))
        table[:, :WARP] = warp_table(boxes, flip[:, 0] < r.flip, r.rotation * (2 * angle[:, 0] - 1), height, width)
        table[:, WARP:-4] = blend_table(1 + turn[:, :3], order)
        table[:, -4:-1] = grey_table(grey[:, 0] < r.grey)
        table[:, -1] = turn[:, 3]
        return torch.from_numpy(table).to(self._work)

    def apply(self, images: Tensor, table: Tensor) -> Tensor:
        """The batch augmented by its table, which must be on the same device."""
        r, three = self.recipe, images.shape[1] == 3
        if (r.jitters or r.grey) and images.shape[1] not in (1, 3):
            raise DataError(
                f"images have {images.shape[1]} channels, and colour jitter or greyscale needs 1 or 3; "
                "please choose a recipe without them, such as 'none' or 'shift'"
            )
        warps, blends, turn = torch.split(table, [WARP, 3 * SLOTS, 1], 1)
        x = self._resized(images)
        x = x.to(self._work, copy=x is images)
        if r.moves:
            smooth = r.crop < 1 or (r.rotation > 0 and r.rotate_by == "bilinear")
            x = warp(x, warps, smooth, r.fill if r.rotation else None)
        for slot in range(SLOTS if r.jitters else 0):
            if r.hue and three:
                turn_hue_(x[slot::SLOTS], turn[slot::SLOTS])
            if slot < SLOTS - 1:
                blend_(x, blends[:, 3 * slot :][:, :3])
        if r.grey:
            blend_(x, blends[:, -3:])
        own = x.dtype == self.dtype and not self.channels_last
        return normalise(x, r.normalise, x if own else self._room(x))

    def _room(self, images: Tensor) -> Tensor:
        form = torch.channels_last if self.channels_last else torch.preserve_format
        return torch.empty_like(images, dtype=self.dtype, memory_format=form)

    @property
    def _work(self) -> torch.dtype:
        """Half precision would lose grey levels on the way, and places in the picture."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def _resized(self, images: Tensor) -> Tensor:
        side = self.recipe.size
        if not side or images.shape[2:] == (side, side):
            return images
        return resize(images.to(self._work), side, side)


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """A float batch at another size: bilinear, antialiased when smaller, as Pillow's."""
    return F.interpolate(images, (height, width), mode="bilinear", antialias=True, align_corners=False)


def normalise(images: Tensor, statistics: Normalise, out: Tensor) -> Tensor:
    """From grey levels to (level / 255 - mean) / std, into `out`, which may be the images."""
    exact = torch.float64 if out.dtype == torch.float64 else torch.float32
    levels = images.to(exact) if images.is_floating_point() else images
    for mean, std, level, made in zip(*STATISTICS[statistics], levels.unbind(1), out.unbind(1), strict=False):
        offset = torch.full((), -mean / std, dtype=exact, device=images.device)
        if compiling():
            made.copy_(torch.add(offset, level, alpha=1 / (255 * std)))
        else:
            torch.add(offset, level, alpha=1 / (255 * std), out=made)
    return out


def crop_boxes(u: Numbers, place: Numbers, height: int, width: int, least: float, stretch: float) -> Numbers:
    """Boxes [n, 4] (top, left, height, width) of random resized crops, from uniform numbers [n, 20] and [n, 2].

    The first of ten tries at an area and an aspect ratio that fits; if none does, the largest part of an allowed ratio,
    which is all of a square picture. Another picture's part is placed at random here and not in the middle.
    """
    area = height * width * (least + (1 - least) * u[:, :TRIES])
    stretched = np.exp(math.log(stretch) * (u[:, TRIES:] - 0.5))  # the root of the ratio of width to height
    side = np.sqrt(area)
    size = np.empty((len(u), TRIES + 1, 2))
    size[:, :TRIES, 0], size[:, :TRIES, 1] = np.rint(side / stretched), np.rint(side * stretched)
    size[:, TRIES] = min(height, round(width * stretch)), min(width, round(height * stretch))
    fits = ((size >= 1) & (size <= (height, width))).all(2)
    chosen = size[np.arange(len(u)), fits.argmax(1)]
    return np.concatenate([np.floor(place * ((height, width) - chosen + 1)), chosen], 1)


def shift_boxes(place: Numbers, height: int, width: int, share: float) -> Numbers:
    """Boxes [n, 4] of the picture's own size, off by up to `share` of its side and at least a pixel if not 0."""
    reach = np.array([max(int(share > 0), int(share * side)) for side in (height, width)])
    move = np.floor(place * (2 * reach + 1)) - reach
    return np.concatenate([move, np.broadcast_to((height, width), move.shape)], 1)


def warp_table(boxes: Numbers, flip: NDArray[np.bool_], degrees: Numbers, height: int, width: int) -> Numbers:
    """Rows for `warp`: cut out the box [n, 4], flip it [n], and rotate it [n], counter-clockwise.

    In grid_sample's units, where the picture reaches from -1 to 1: x and y as linear functions of the distance from the
    middle in pixels (6 columns), limits of x and of y (4), half the box's width and height (2).
    """
    side = np.array([width, height])
    start, size = boxes[:, 1::-1], boxes[:, :1:-1]  # x before y
    half = size / side
    middle = 2 * start / side + half - 1
    sx, sy = (2 * half / side).T
    sx = np.where(flip, -sx, sx)
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    table = np.empty((len(boxes), WARP))
    table[:, 0], table[:, 1], table[:, 2] = sx * cos, -sx * sin, middle[:, 0]
    table[:, 3], table[:, 4], table[:, 5] = sy * sin, sy * cos, middle[:, 1]
    table[:, 6:10:2] = (2 * np.maximum(start, 0) + 1) / side - 1  # centres of the outermost pixels
    table[:, 7:10:2] = (2 * np.minimum(start + size, side) - 1) / side - 1
    table[:, 10:] = half
    return table


def blend_table(factors: Numbers, order: Numbers) -> Numbers:
    """Rows [n, 9] for three `blend_`: brightness, contrast, saturation by their factors [n, 3], sorted by `order`."""
    table = np.zeros((*factors.shape, 3))
    table[:, :, 0] = factors
    table[:, 1, 2] = 1 - factors[:, 1]  # contrast: towards the mean luma
    table[:, 2, 1] = 1 - factors[:, 2]  # saturation: towards each pixel's luma
    return table[np.arange(len(factors))[:, None], order.argsort(1)].reshape(-1, 9)


def grey_table(grey: NDArray[np.bool_]) -> Numbers:
    """Rows [n, 3] for `blend_`: luma alone where `grey` [n], the picture as it is elsewhere."""
    table = np.zeros((len(grey), 3))
    table[:, 0], table[:, 1] = ~grey, grey
    return table


def warp(images: Tensor, table: Tensor, smooth: bool, fill: float | None) -> Tensor:
    """Sample each picture by its row of `warp_table`; without `fill` nothing may rotate, which is cheaper."""
    height, width = images.shape[2:]
    x = torch.arange((1 - width) / 2, width / 2, device=images.device, dtype=table.dtype)
    y = torch.arange((1 - height) / 2, height / 2, device=images.device, dtype=table.dtype)[:, None]
    xx, xy, x0, yx, yy, y0, left, right, top, bottom, wide, high = table[:, :, None, None].unbind(1)
    across, down = xx * x + x0, yy * y + y0
    if fill is not None:
        across, down = across + xy * y, down + yx * x
    grid = pairs(across.clamp(left, right), down.clamp(top, bottom))
    # Every place lies between centres of pixels, and padding with zeros is the fastest that grid_sample offers.
    out = F.grid_sample(images, grid, "bilinear" if smooth else "nearest", "zeros", align_corners=False)
    if fill is None:
        return out
    inside = ((across - x0).abs() <= wide) & ((down - y0).abs() <= high)
    return out.sub_(fill).mul_(inside[:, None].to(out.dtype)).add_(fill)


def pairs(one: Tensor, other: Tensor) -> Tensor:
    """[..., 2], in one pass."""
    if compiling():
        return torch.stack(torch.broadcast_tensors(one, other), -1)  # type: ignore[no-untyped-call]
    return torch.view_as_real(torch.complex(one, other))


def blend_(images: Tensor, table: Tensor) -> Tensor:
    """In place: a picture's pixels, their luma and its mean luma, summed with the three factors of its row, clipped."""
    own, luma, mean = table[:, :, None, None, None].unbind(1)
    grey = luma_of(images)
    # Not by addcmul: on the CPU torch has no vector code for two factors that are the same for a whole picture.
    added = (grey * luma).add_(mean * grey.mean((2, 3), keepdim=True))
    return add_product_(images, added, images, own).clamp_(0, 255)


def luma_of(images: Tensor) -> Tensor:
    """ITU-R 601-2 luma [n, 1, height, width]; a picture of one channel is its own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = torch.split(images, 1, 1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def turn_hue_(images: Tensor, turn: Tensor) -> Tensor:
    """In place: the hue of each picture [n, 3, height, width] moved on by `turn` [n, 1] of the colour circle."""
    red, green, blue = torch.split(images, 1, 1)
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    chroma = high.sub_(low)
    # How far from red, in sixths of a turn, is 1 + g + b - r for channels stretched to 0..1; green's side is positive.
    away = (green + blue).sub_(red).sub_(low).div_(chroma.clamp_min(1e-6)).add_(1).copysign_(green - blue)
    moved = 6 * turn - 2 * torch.arange(3, device=images.device, dtype=images.dtype)
    angles = away + moved.sub_((moved / 6).round_(), alpha=6)[:, :, None, None]
    # From the channel's own hue, and at most a whole turn: how far it is from the opposite hue needs no remainder.
    # A channel is at its lowest within a sixth of a turn of that hue, at its highest from two sixths on.
    rise = angles.abs_().sub_(3).abs_().clamp_(1, 2)
    return add_product_(images, low.sub_(chroma), rise, chroma)


def add_product_(out: Tensor, base: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`base + one * other`, written into `out`."""
    if compiling():
        return out.copy_(torch.addcmul(base, one, other))
    return torch.addcmul(base, one, other, out=out)
