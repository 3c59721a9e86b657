"""How each of the six domains of the `glyphs` benchmark looks: one function per domain."""

import importlib.resources
import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ._strokes import (
    SIDE,
    Dice,
    Floats,
    Ints,
    blur,
    clip,
    cloud,
    enlarge,
    grid,
    over,
    place,
    ramp,
    shifted,
)

PER_CLASS = 150
COUNT = 10 * PER_CLASS
RESOURCES = importlib.resources.files("fedshift.data") / "resources/glyphs"
DIGITS: Ints = np.arange(COUNT, dtype=np.int64) // PER_CLASS  # the class of each image, before shuffling

Look = Callable[[Dice], Floats]


def _arrays(file: str) -> dict[str, NDArray[np.uint8]]:
    with np.load(io.BytesIO((RESOURCES / file).read_bytes())) as stored:
        return {name: stored[name] for name in stored.files}


def _typed(domain: str, dice: Dice) -> Floats:
    """Masks [COUNT, 32, 32] in the domain's own typefaces, every face equally often."""
    faces = _arrays("typefaces.npz")[domain]
    return faces[dice.order(COUNT) % len(faces), DIGITS] / 15.0


def _written(first: bool) -> tuple[Floats, Ints]:
    """Handwriting: the first PER_CLASS samples of each class, or all the others, which other people wrote."""
    stored = _arrays("handwriting.npz")
    ranks = np.zeros(len(stored["labels"]), dtype=np.int64)
    for digit in range(10):
        of_class = stored["labels"] == digit
        ranks[of_class] = np.arange(np.count_nonzero(of_class))
    chosen = np.flatnonzero((ranks < PER_CLASS) == first)
    chosen = chosen[np.argsort(stored["labels"][chosen], kind="stable")]
    coarse = np.pad(stored["images"][chosen] / 16.0, ((0, 0), (1, 1), (1, 1)))
    # Less of the surrounding grey, so that strokes stay apart where 8x8 pixels had run together.
    sharp = blur(enlarge(coarse)) - 0.7 * enlarge(blur(coarse))
    return sharp, stored["labels"][chosen].astype(np.int64)


def handwritten(dice: Dice) -> Floats:
    """Pen or pencil on plain, ruled or squared paper."""
    strokes, _ = _written(first=True)
    strokes = place(strokes, dice, (0.85, 1.1), turn=0.05, slant=0.05)
    ink = ramp(strokes, dice.uniform(0.17, 0.23, COUNT, 1, 1), 5.0)[:, None]
    paper = dice.pick([(0.98, 0.98, 0.97), (0.96, 0.94, 0.87), (0.93, 0.95, 0.98), (0.97, 0.91, 0.8)], COUNT)
    paper = paper + 0.03 * cloud(dice, COUNT, 3)[:, None] + dice.uniform(-0.02, 0.02, COUNT, 1, SIDE, SIDE)
    x, y = grid()
    pitch = dice.uniform(9, 13, COUNT, 1, 1)
    rows = ((y + 16 + dice.uniform(0, 13, COUNT, 1, 1)) / pitch) % 1.0 * pitch < 1.0
    columns = ((x + 16 + dice.uniform(0, 13, COUNT, 1, 1)) / pitch) % 1.0 * pitch < 1.0
    ruled, squared = dice.often(0.5, COUNT, 1, 1), dice.often(0.5, COUNT, 1, 1)
    lines = ruled * np.maximum(rows, squared * columns)
    paper = over(
        paper,
        dice.pick([(0.5, 0.65, 0.85), (0.6, 0.6, 0.65), (0.8, 0.55, 0.6)], COUNT),
        0.45 * lines[:, None],
    )
    pens = [(0.1, 0.15, 0.5), (0.05, 0.05, 0.1), (0.05, 0.25, 0.65), (0.3, 0.3, 0.32), (0.65, 0.1, 0.15)]
    grain = 1.0 - dice.uniform(0.0, 0.4, COUNT, 1, 1, 1) * dice.uniform(0, 1, COUNT, 1, SIDE, SIDE)
    return over(paper, dice.pick(pens, COUNT), 0.95 * ink * grain)


def printed(dice: Dice) -> Floats:
    """Crisp dark type on light paper."""
    mask = place(_typed("printed", dice), dice, (0.72, 1.05))
    ink = ramp(mask, dice.uniform(0.38, 0.5, COUNT, 1, 1), 1.6)[:, None]
    papers = [(1, 1, 1), (1, 1, 1), (0.97, 0.96, 0.93), (0.93, 0.9, 0.82), (0.86, 0.9, 0.94)]
    inks = [(0, 0, 0), (0.05, 0.05, 0.05), (0.1, 0.1, 0.12), (0.15, 0.1, 0.05), (0.1, 0.1, 0.3)]
    paper = dice.pick(papers, COUNT) + dice.uniform(-0.015, 0.015, COUNT, 1, SIDE, SIDE)
    return over(paper, dice.pick(inks, COUNT), ink)


def _patches(dice: Dice) -> Floats:
    """Random SIDE x SIDE patches [COUNT, 3, SIDE, SIDE] of the two photographs, mirrored half of the time."""
    cut = np.empty((COUNT, 3, SIDE, SIDE))
    source = dice.below(2, COUNT)
    for index, file in enumerate(("china.png", "flower.png")):
        with Image.open(io.BytesIO((RESOURCES / file).read_bytes())) as opened:
            photo = np.asarray(opened.convert("RGB"), dtype=np.float64).transpose(2, 0, 1) / 255.0
        chosen = np.flatnonzero(source == index)
        top = dice.below(photo.shape[1] - SIDE + 1, len(chosen))[:, None, None] + np.arange(SIDE)[:, None]
        left = dice.below(photo.shape[2] - SIDE + 1, len(chosen))[:, None, None] + np.arange(SIDE)
        cut[chosen] = photo[:, top, left].transpose(1, 0, 2, 3)
    mirrored = dice.often(0.5, COUNT, 1, 1, 1) > 0
    return np.where(mirrored, cut[..., ::-1], cut)


def blended(dice: Dice) -> Floats:
    """Handwriting and hand lettering as the absolute difference to a photograph."""
    masks = _typed("blended", dice)
    strokes, labels = _written(first=False)
    for digit in range(10):
        own = ramp(strokes[labels == digit], 0.2, 5.0)
        masks[digit * PER_CLASS : digit * PER_CLASS + len(own)] = own
    mask = place(masks, dice, (0.98, 1.14), turn=0.05, slant=0.06, shift=1.0, wobble=0.9)
    ink = ramp(mask, 0.36, 2.0)[:, None] * dice.uniform(0.9, 1.0, COUNT, 3, 1, 1)
    patches = _patches(dice)
    # Light patches are kept light and dark ones dark: the difference to a middle grey would show nothing.
    brightness = np.floor(patches * 255.0 + 0.5).astype(np.int64).sum(axis=(1, 2, 3), keepdims=True)
    target = np.where(brightness > 3 * SIDE * SIDE * 127, 1.0, 0.0)
    photo = over(patches, target, dice.uniform(0.35, 0.55, COUNT, 1, 1, 1))
    return np.abs(photo - ink)


def scanned(dice: Dice) -> Floats:
    """Poor grey photocopies: blurred, speckled, creased, unevenly lit, now and then negative."""
    mask = place(_typed("scanned", dice), dice, (0.8, 1.05), turn=0.06, wobble=0.5)
    ink = over(ramp(mask, 0.4, 1.6), blur(ramp(mask, 0.36, 1.6), 2), dice.uniform(0, 1, COUNT, 1, 1))
    x, y = grid()
    sheet = dice.uniform(0.62, 0.88, COUNT, 1, 1) + 0.1 * cloud(dice, COUNT, 3) + 0.05 * cloud(dice, COUNT, 12)
    sheet = sheet + dice.uniform(-0.008, 0.008, COUNT, 1, 1) * x + dice.uniform(-0.008, 0.008, COUNT, 1, 1) * y
    page = sheet - dice.uniform(0.38, 0.62, COUNT, 1, 1) * ink * (1.0 + 0.3 * cloud(dice, COUNT, 8))
    page = page + dice.uniform(-0.06, 0.06, COUNT, SIDE, SIDE)
    fold = dice.uniform(-14, 14, COUNT, 1, 1) + dice.uniform(-0.5, 0.5, COUNT, 1, 1) * y - x
    page = page + dice.often(0.4, COUNT, 1, 1) * 0.22 * (clip(1.2 - np.abs(fold)) - clip(1.2 - np.abs(fold + 1.5)))
    copied = ramp(page, sheet - 0.17, 6.0) * 0.8 + 0.1
    page = np.where(dice.often(0.25, COUNT, 1, 1) > 0, copied, page)
    speck, rate = dice.uniform(0, 1, COUNT, SIDE, SIDE), dice.uniform(0.001, 0.015, COUNT, 1, 1)
    page = np.where(speck < rate, 0.15, np.where(speck > 1.0 - rate, 0.9, page))
    page = np.where(dice.often(0.3, COUNT, 1, 1) > 0, 1.0 - page, page)
    return page[:, None] * np.ones((1, 3, 1, 1))


def engraved(dice: Dice) -> Floats:
    """Digits cut into, or raised from, stone and metal: only light and shade on their edges show them."""
    mask = place(_typed("engraved", dice), dice, (0.85, 1.08))
    height = blur(ramp(mask, 0.4, 2.0))
    across = shifted(height, -1, 0) - shifted(height, 1, 0)
    down = shifted(height, 0, -1) - shifted(height, 0, 1)
    sideways = dice.uniform(0.3, 0.95, COUNT, 1, 1)
    light = sideways * across + np.sqrt(1.0 - sideways * sideways) * down
    sunken = np.where(dice.often(0.7, COUNT, 1, 1) > 0, 1.0, -1.0)
    shade = sunken * light * dice.uniform(0.5, 0.8, COUNT, 1, 1)
    floor = -dice.uniform(0.0, 0.08, COUNT, 1, 1) * sunken * height
    groove = -dice.often(0.3, COUNT, 1, 1) * 0.8 * height * (1.0 - height)
    stone = 0.07 * cloud(dice, COUNT, 5) + 0.06 * cloud(dice, COUNT, 16) + dice.uniform(-0.05, 0.05, COUNT, SIDE, SIDE)
    streaks = 0.06 * cloud(dice, COUNT, 2) + dice.uniform(-0.06, 0.06, COUNT, SIDE, 1)
    surface = np.where(dice.often(0.6, COUNT, 1, 1) > 0, stone, streaks)
    stones = [(0.62, 0.6, 0.57), (0.48, 0.48, 0.5), (0.7, 0.6, 0.48), (0.55, 0.42, 0.35), (0.4, 0.45, 0.46)]
    metals = [(0.72, 0.6, 0.32), (0.64, 0.66, 0.7), (0.65, 0.42, 0.3)]
    return dice.pick(stones + metals, COUNT) + (surface + shade + floor + groove)[:, None]


def _row_of_three(dice: Dice) -> Floats:
    """Masks [COUNT, 32, 80]: the digit in the middle, and mostly a neighbour on one side or both."""
    faces = _arrays("typefaces.npz")["street"]
    face = dice.order(COUNT) % len(faces)
    row = np.zeros((COUNT, SIDE, SIDE + 48))
    row[:, :, 24 : 24 + SIDE] = faces[face, DIGITS] / 15.0
    for start in (0, 48):
        beside = faces[face, dice.below(10, COUNT)] / 15.0 * dice.often(0.5, COUNT, 1, 1)
        row[:, :, start : start + SIDE] = np.maximum(row[:, :, start : start + SIDE], beside)
    return row


def _far_apart(dice: Dice) -> tuple[Floats, Floats]:
    """Two random muted colours [COUNT, 3, 1, 1], one dark and one light, in random order."""
    dark = dice.uniform(0.08, 0.3, COUNT, 1, 1, 1) + dice.uniform(-0.12, 0.18, COUNT, 3, 1, 1)
    light = dice.uniform(0.7, 0.95, COUNT, 1, 1, 1) + dice.uniform(-0.18, 0.1, COUNT, 3, 1, 1)
    turned = dice.often(0.8, COUNT, 1, 1, 1) > 0
    return np.where(turned, dark, light), np.where(turned, light, dark)


def street(dice: Dice) -> Floats:
    """House numbers: coloured digits on a wall or plate, with neighbours, shadows and a camera's blur."""
    mask = place(_row_of_three(dice), dice, (0.92, 1.1), turn=0.05, slant=0.12, shift=1.0, keystone=0.008)
    ink = ramp(mask, 0.42, 1.6)
    ground, paint = _far_apart(dice)
    x, y = grid()
    rough = 0.08 * cloud(dice, COUNT, 4) + dice.uniform(0, 0.12, COUNT, 1, 1) * cloud(dice, COUNT, 16)
    course = dice.uniform(5, 9, COUNT, 1, 1)
    joints = ((y + 16 + dice.uniform(0, 9, COUNT, 1, 1)) / course) % 1.0 * course < 1.0
    rough = rough + dice.often(0.25, COUNT, 1, 1) * 0.12 * joints
    scene = ground + rough[:, None]
    cast = np.where(dice.often(0.5, COUNT, 1, 1) > 0, shifted(ink, 1, 2), shifted(ink, -2, 1))
    scene = scene * (1.0 - dice.uniform(0, 0.6, COUNT, 1, 1, 1) * blur(cast)[:, None])
    scene = over(scene, paint + 0.06 * cloud(dice, COUNT, 3)[:, None], ink[:, None])
    slope = dice.uniform(-0.014, 0.014, COUNT, 1, 1) * x + dice.uniform(-0.014, 0.014, COUNT, 1, 1) * y
    edge = ramp(x + dice.uniform(-1, 1, COUNT, 1, 1) * y - dice.uniform(-12, 12, COUNT, 1, 1), 0.0, 0.4)
    lit = 1.0 + slope - dice.often(0.35, COUNT, 1, 1) * 0.35 * edge
    scene = scene * lit[:, None] * dice.uniform(0.88, 1.12, COUNT, 3, 1, 1)
    scene = over(scene, blur(scene, 2), dice.uniform(0, 0.8, COUNT, 1, 1, 1))
    return scene + dice.uniform(-0.03, 0.03, COUNT, 3, SIDE, SIDE)


LOOKS: dict[str, Look] = {look.__name__: look for look in (handwritten, printed, blended, scanned, engraved, street)}
