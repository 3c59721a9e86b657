"""Image operations of the `glyphs` benchmark, with the same result to the last bit on every machine.

Only elementwise float64 +, -, *, /, sqrt, comparisons and indexing are used: IEEE 754 fixes their results,
while sums, matrix products and functions such as sin may differ from one processor or library to the next.
Randomness is taken from the raw bits of PCG64, the part of numpy.random that is promised never to change.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SIDE = 32


class Dice:
    """Random numbers from a name: the same name gives the same numbers, everywhere and always."""

    def __init__(self, name: str) -> None:
        """Seed from the SHA-256 of `name`."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        self._bits = np.random.PCG64(seed)

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Numbers in [low, high) with 53 random bits each."""
        raw: Floats = (self._bits.random_raw(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * raw

    def below(self, bound: int, *shape: int) -> Ints:
        """Integers from 0 up to, but without, `bound`."""
        return np.floor(self.uniform(0, bound, *shape)).astype(np.int64)

    def often(self, share: float, *shape: int) -> Floats:
        """One with probability `share`, otherwise zero."""
        return (self.uniform(0, 1, *shape) < share).astype(np.float64)

    def pick(self, rows: Sequence[Sequence[float]], n: int) -> Floats:
        """For each of n images one of the colours `rows`, shaped [n, 3, 1, 1]."""
        chosen: Floats = np.array(rows, dtype=np.float64)[self.below(len(rows), n)]
        return chosen[:, :, None, None]

    def order(self, n: int) -> Ints:
        """A random permutation of 0 to n - 1."""
        return np.argsort(self.uniform(0, 1, n), kind="stable")


def grid() -> tuple[Floats, Floats]:
    """Pixel coordinates (x, y), each [1, SIDE, SIDE], zero at the centre of the image."""
    axis = np.arange(SIDE, dtype=np.float64) - (SIDE - 1) / 2
    x, y = np.broadcast_to(axis, (SIDE, SIDE)), np.broadcast_to(axis[:, None], (SIDE, SIDE))
    return x[None], y[None]


def over(base: Floats, paint: Floats | float, alpha: Floats | float) -> Floats:
    """Lay `paint` over `base` with opacity `alpha`."""
    return base + alpha * (paint - base)


def clip(image: Floats) -> Floats:
    """Limit to [0, 1]."""
    return np.minimum(np.maximum(image, 0.0), 1.0)


def ramp(image: Floats, level: Floats | float, gain: float) -> Floats:
    """A soft threshold: 0 well below `level`, 1 well above, a straight slope of `gain` between."""
    return clip((image - level) * gain + 0.5)


def shifted(image: Floats, dx: int, dy: int) -> Floats:
    """The image moved by whole pixels (at most 4), its border repeated."""
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(4, 4), (4, 4)], mode="edge")
    height, width = image.shape[-2:]
    return padded[..., 4 - dy : 4 - dy + height, 4 - dx : 4 - dx + width]


def blur(image: Floats, times: int = 1) -> Floats:
    """Apply the kernel (1, 2, 1) / 4 along both axes, `times` over."""
    for _ in range(times):
        image = (shifted(image, -1, 0) + 2.0 * image + shifted(image, 1, 0)) / 4.0
        image = (shifted(image, 0, -1) + 2.0 * image + shifted(image, 0, 1)) / 4.0
    return image


def enlarge(image: Floats) -> Floats:
    """Stretch [..., h, w] to [..., SIDE, SIDE] with straight interpolation."""
    for axis in (-2, -1):
        size = image.shape[axis]
        at = np.clip((np.arange(SIDE) + 0.5) * size / SIDE - 0.5, 0, size - 1)
        low = np.minimum(np.floor(at).astype(np.int64), size - 2)
        part = at - low
        part = part[:, None] if axis == -2 else part
        image = over(np.take(image, low, axis), np.take(image, low + 1, axis), part)
    return image


def cloud(dice: Dice, n: int, cells: int) -> Floats:
    """Smooth random texture [n, SIDE, SIDE] within [-1, 1]; more `cells`, finer texture."""
    return enlarge(dice.uniform(-1, 1, n, cells, cells))


def sample(image: Floats, x: Floats, y: Floats) -> Floats:
    """Values of each [h, w] image at its own real coordinates, straight interpolation, zero outside."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    height, width = image.shape[1:]
    x, y = np.clip(x + 1.0, 0, width), np.clip(y + 1.0, 0, height)
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    which = np.arange(len(image))[:, None, None]
    above = over(padded[which, top, left], padded[which, top, left + 1], x - left)
    below = over(padded[which, top + 1, left], padded[which, top + 1, left + 1], x - left)
    return over(above, below, y - top)


def place(
    masks: Floats,
    dice: Dice,
    scale: tuple[float, float],
    turn: float = 0.06,
    slant: float = 0.08,
    shift: float = 1.5,
    wobble: float = 0.0,
    keystone: float = 0.0,
) -> Floats:
    """Set masks [n, h, w] into SIDE x SIDE images with random size, turn, slant, place and unsteady hand."""
    n = len(masks)
    x, y = grid()
    x, y = x - dice.uniform(-shift, shift, n, 1, 1), y - dice.uniform(-shift, shift, n, 1, 1)
    if wobble:
        x, y = x + wobble * cloud(dice, n, 4), y + wobble * cloud(dice, n, 4)
    sine = dice.uniform(-turn, turn, n, 1, 1)
    cosine = np.sqrt(1.0 - sine * sine)
    size = dice.uniform(*scale, n, 1, 1)
    x, y = (cosine * x + sine * y) / (size * dice.uniform(0.9, 1.1, n, 1, 1)), (cosine * y - sine * x) / size
    x = x + dice.uniform(-slant, slant, n, 1, 1) * y
    y = y * (1.0 + dice.uniform(-keystone, keystone, n, 1, 1) * x)
    return sample(masks, x + (masks.shape[2] - 1) / 2, y + (masks.shape[1] - 1) / 2)
