"""One picture's bytes to three planes of uint8: Pillow's own decoding, exactly.

The pixels are, bit for bit, those of Pillow's full decoding, conversion to RGB and `resize` with BILINEAR, which
averages over the source when it shrinks; torchvision's `Resize` and `CenterCrop` do the same on a Pillow image.
`Image.draft` would halve the time of large JPEGs, but it changes the pixels, so it is not used.

What needs a decision is decided here, and noted: transparent pictures lie on white (not on whatever colour hides under
the transparency), 16 bits are scaled to 8 by their high byte, EXIF's orientation is applied, and of several frames the
first is taken.

Helper processes import this file: it needs neither torch nor numpy at once, so that they start quickly.
"""

import warnings
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Literal, NamedTuple

from PIL import Image, UnidentifiedImageError

from ..core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Fit = Literal["crop", "squash"]
VERSION = 1  # of what this file makes of a picture: a change of pixels is a new version, and stores are made anew
LIMIT = 89_478_485  # pixels; Pillow warns from here on
# No EPS: Pillow would start Ghostscript. No TGA: it has no mark of its own, so that anything may look like it.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "DIB")
TURNS = {  # EXIF's orientations, and what undoes them
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip


class Unreadable(DataError):
    """A picture that cannot be used; the message is the reason in a few words."""


class Facts(NamedTuple):
    """What a picture's header says."""

    width: int
    height: int
    mode: str  # Pillow's: "RGB", "L", "CMYK", "I;16", ...
    format: str  # by content: "JPEG", "PNG", ...
    frames: int
    turned: bool  # EXIF says that it must be turned or flipped
    transparent: bool  # it can be: an alpha channel or a transparent colour


class Planes(NamedTuple):
    """Red, green and blue, each size x size bytes, and what was done to the picture that its pixels do not show."""

    bands: tuple[bytes, ...]
    notes: tuple[str, ...]


def decode(data: bytes, size: int, fit: Fit = "crop") -> "NDArray[np.uint8]":
    """A file's bytes as [3, size, size]: the shorter side resized and the centre cut out, or squashed to a square."""
    import numpy as np

    return np.frombuffer(b"".join(planes(data, size, fit).bands), np.uint8).reshape(3, size, size)


def planes(data: bytes, size: int, fit: Fit, shape: tuple[int, ...] = ()) -> Planes:
    """The same as bytes; with a `shape` (height and width, channels last or first) `data` are pixels, not a file."""
    try:
        picture, notes = _plain(data, shape) if shape else _loaded(data)
        if min(picture.size) == 1:
            notes.append("one pixel wide or high")
        picture = _fitted(picture, size, fit)
        return Planes(tuple(picture.tobytes("raw", band) for band in "RGB"), tuple(notes))
    except Unreadable:
        raise
    except Exception as error:  # Pillow's parsers raise anything at all on damaged bytes
        raise Unreadable(f"damaged: {_said(error)}") from None


def facts(data: bytes) -> Facts:
    """Read the header alone."""
    try:
        with warnings.catch_warnings(), _opened(data) as picture:
            warnings.simplefilter("ignore")
            frames = int(getattr(picture, "n_frames", 1))
            turned = _orientation(picture) in TURNS
            return Facts(*picture.size, picture.mode, str(picture.format), frames, turned, _may_be_clear(picture))
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"damaged: {_said(error)}") from None


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:120]


def _plain(data: bytes, shape: tuple[int, ...]) -> tuple[Image.Image, list[str]]:
    if shape[2:] == (3,):
        return Image.frombytes("RGB", (shape[1], shape[0]), data), []
    height, width = shape[:2] if shape[2:] in ((), (1,)) else shape[1:]
    each = height * width
    bands = [Image.frombytes("L", (width, height), data[k : k + each]) for k in range(0, len(data), each)]
    return (Image.merge("RGB", bands), []) if len(bands) == 3 else (bands[0].convert("RGB"), ["greyscale"])


def _loaded(data: bytes) -> tuple[Image.Image, list[str]]:
    """The picture in RGB, upright and opaque, and what had to be done for that."""
    quick = _quick(data)
    if quick:
        return quick, []
    with warnings.catch_warnings(), _opened(data) as picture:
        warnings.simplefilter("ignore")  # what Pillow warns of is decided and noted here
        notes = ["first of several frames"] * bool(getattr(picture, "is_animated", False))
        picture.load()
        turn = TURNS.get(_orientation(picture))
        shown, more = _in_rgb(picture)
    if turn is not None:
        shown = shown.transpose(turn)
        notes.append("turned as its EXIF says")
    return shown, notes + more


def _opened(data: bytes) -> Image.Image:
    if not data:
        raise Unreadable("an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise Unreadable(f"not a picture: it starts with {data[:8]!r}") from None
    except Image.DecompressionBombError:
        raise Unreadable(f"a decompression bomb: more than {LIMIT:,} pixels") from None
    if picture.width * picture.height > LIMIT:
        raise Unreadable(f"a decompression bomb: {picture.width} x {picture.height} is more than {LIMIT:,} pixels")
    return picture


def _quick(data: bytes) -> Image.Image | None:
    """A plain colour JPEG in one call of the decoder, at two thirds of `Image.open`'s time for small pictures.

    Anything else, and anything odd, is None and goes the long way: EXIF and XMP (APP1), several frames (APP2), other
    than 8 bits and three channels, damage.
    """
    if data[:2] != b"\xff\xd8":
        return None
    at, shape = 2, b""
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xDA and shape:  # the pixels begin
            with suppress(ValueError, OSError):
                picture = Image.new("RGB", _sides(shape), None)  # not filled, all of it is decoded over
                picture.frombytes(data, "jpeg", "RGB", "")
                return picture
            return None
        if marker in (0xC0, 0xC1, 0xC2):  # the frame: precision, height, width, channels
            shape = data[at + 4 : at + 10]
            if shape[0] != 8 or shape[5] != 3 or not 0 < _sides(shape)[0] * _sides(shape)[1] <= LIMIT:
                return None
        elif marker in (0xE1, 0xE2) or not (marker == 0xC4 or 0xDB <= marker <= 0xFE):
            return None
        at += 2 + ((data[at + 2] << 8) | data[at + 3])
    return None


def _sides(frame: bytes) -> tuple[int, int]:
    return (frame[3] << 8) | frame[4], (frame[1] << 8) | frame[2]


def _orientation(picture: Image.Image) -> int:
    with suppress(Exception):  # damaged EXIF is common in photographs, and no viewer minds
        return int(picture.getexif().get(0x0112, 1))
    return 1


def _may_be_clear(picture: Image.Image) -> bool:
    return picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info


def _in_rgb(picture: Image.Image) -> tuple[Image.Image, list[str]]:
    """In RGB, transparency on white, and what was changed."""
    mode, notes = picture.mode, list[str]()
    if mode in ("1", "L", "LA", "La", "I") or mode.startswith("I;16"):
        notes.append("greyscale")
    if mode in ("P", "PA"):
        notes.append("palette")
    if mode == "CMYK":
        notes.append("CMYK")
    if mode == "F":
        raise Unreadable("its values are floating-point numbers, of which none is agreed to be white")
    if mode == "I" or mode.startswith("I;16"):
        return _high_bytes(picture).convert("RGB"), [*notes, "16-bit"]
    if _may_be_clear(picture):
        clear = picture.convert("RGBA")
        if clear.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", clear.size, "white")
            return Image.alpha_composite(white, clear).convert("RGB"), [*notes, "transparent, put on white"]
    return picture if mode == "RGB" else picture.convert("RGB"), notes


def _high_bytes(picture: Image.Image) -> Image.Image:
    """16 bits to 8 as Pillow itself does it for colour; its conversion of greyscale would clip at 255."""
    import numpy as np

    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable(f"its values go from {values.min()} to {values.max()}, expected 0 to 65535")
    if isinstance(clear := picture.info.get("transparency"), int):
        values = np.where(values == clear, 65535, values)
    return Image.fromarray((values >> 8).astype(np.uint8))


def _fitted(picture: Image.Image, size: int, fit: Fit) -> Image.Image:
    width, height = picture.size
    if fit == "squash" or width == height:
        return picture if picture.size == (size, size) else picture.resize((size, size), Image.Resampling.BILINEAR)
    short = min(width, height)
    across, down = int(size * width / short), int(size * height / short)  # truncated, as torchvision does
    if across * down > LIMIT:
        raise Unreadable(f"{width} x {height} is too long and thin to be resized and cropped")
    if short != size:
        picture = picture.resize((across, down), Image.Resampling.BILINEAR)
    left, top = round((across - size) / 2), round((down - size) / 2)
    return picture.crop((left, top, left + size, top + size))
