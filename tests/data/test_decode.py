"""Decoding: Pillow's own pixels where it is right, and a decision where it would change a picture in silence."""

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import fedshift
from fedshift.data import decode as module
from fedshift.data.decode import Unreadable, decode, facts, planes
from fedshift.data.store import HELPER


def picture(width=40, height=30, mode="RGB", seed=0):
    """Smooth, so that JPEG keeps it, and different in every corner."""
    y, x = np.mgrid[:height, :width]
    bands = [(255 * (a * x / width + b * y / height) / (a + b)) for a, b in ((3, 1 + seed), (1, 2), (1, 5 + seed))]
    return Image.fromarray(np.stack(bands, -1).astype(np.uint8)).convert(mode)


def saved(image, form="PNG", **how):
    file = io.BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


def bare(data, size, fit="crop"):
    """Torchvision's Resize and CenterCrop, as Pillow calls."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    if fit == "squash":
        return np.asarray(image.resize((size, size), Image.BILINEAR)).transpose(2, 0, 1)
    w, h = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
    image = image.resize((w, h), Image.BILINEAR)
    left, top = round((w - size) / 2.0), round((h - size) / 2.0)
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


def notes(data, size=8):
    return set(planes(data, size, "crop").notes)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 50), st.sampled_from(["crop", "squash"]),
    st.sampled_from([("JPEG", {}), ("JPEG", {"progressive": True, "subsampling": 2}), ("PNG", {}), ("BMP", {})]),
)  # fmt: skip
def test_the_pixels_are_pillows(width, height, size, fit, how):
    data = saved(picture(width, height), how[0], **how[1])
    assert np.array_equal(decode(data, size, fit), bare(data, size, fit))


JPEGS = {
    "plain": {}, "progressive": {"progressive": True}, "full colour": {"subsampling": 0},
    "optimised": {"optimize": True}, "kept RGB": {"keep_rgb": True}, "profile": {"icc_profile": b"x" * 300},
    "comment": {"comment": b"\xff\xda\xff\xe1"},
    "restarts": {"restart_marker_rows": 1},
}  # fmt: skip


@pytest.mark.parametrize("how", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_every_kind_of_jpeg_is_decoded_as_pillow_does(mode, how):
    data = saved(picture(64, 64, mode), "JPEG", **how)
    assert np.array_equal(decode(data, 64), bare(data, 64))


def test_plain_jpegs_take_the_quick_way_and_no_others():
    assert module._quick(saved(picture(), "JPEG"))
    assert not module._quick(saved(picture(mode="L"), "JPEG"))
    assert not module._quick(saved(picture(), "JPEG", exif=oriented(6)))
    assert not module._quick(saved(picture(), "PNG"))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]), st.data())
def test_damaged_bytes_are_a_picture_or_a_reason(form, data):
    raw = bytearray(saved(picture(24, 24), form))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    raw = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    try:
        pixels = decode(raw, 8)
    except Unreadable as reason:
        assert str(reason) and "\n" not in str(reason) and "0x" not in str(reason)
    else:
        assert pixels.shape == (3, 8, 8) and pixels.dtype == np.uint8


@pytest.mark.parametrize("cut", [2, 40, 0.5])
def test_a_truncated_jpeg_is_refused(cut):
    data = saved(picture(200, 200), "JPEG")
    data = data[:-cut] if cut > 1 else data[: int(cut * len(data))]
    with pytest.raises(Unreadable, match=r"damaged: .*truncated"):
        decode(data, 16)


def test_what_is_no_picture():
    with pytest.raises(Unreadable, match="empty file"):
        decode(b"", 8)
    with pytest.raises(Unreadable, match=r"not a picture: it starts with b'<html>"):
        decode(b"<html><body>Not found</body></html>", 8)
    with pytest.raises(Unreadable, match="not a picture"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n", 8)


def bomb(width, height):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 9_000), (65_000, 65_000)])
def test_a_decompression_bomb_is_refused_by_its_header(size):
    for ask in (lambda data: decode(data, 8), facts):
        with pytest.raises(Unreadable, match="decompression bomb"):
            ask(bomb(*size))


def test_a_long_thin_picture_would_be_huge_when_resized():
    with pytest.raises(Unreadable, match="too long and thin"):
        decode(saved(Image.new("RGB", (60_000, 1)), "PNG"), 128)
    assert decode(saved(Image.new("RGB", (60_000, 1), "red"), "PNG"), 8, "squash")[0].min() == 255


def test_cmyk_of_adobe_is_not_inverted():
    data = saved(
        Image.new("CMYK", (32, 32), (255, 0, 0, 0)), "JPEG"
    )  # cyan; Pillow stores it inverted, with Adobe's mark
    assert b"Adobe" in data
    assert decode(data, 4)[:, 0, 0].tolist() == [0, 255, 255] and notes(data) == {"CMYK"}


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_and_not_clipped(form):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    data = saved(Image.fromarray(levels * 257), form)
    assert np.array_equal(decode(data, 16)[0], levels) and {"16-bit", "greyscale"} <= notes(data)


def test_sixteen_bit_colour_is_scaled_in_the_same_way():
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + struct.pack(">6H", *[0x12FF, 0x8000, 0xFFFF] * 2) for _ in range(2))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert decode(data, 2)[:, 1, 1].tolist() == [0x12, 0x80, 0xFF]


def test_values_without_an_agreed_white_are_refused():
    with pytest.raises(Unreadable, match="from 0 to 70000, expected 0 to 65535"):
        decode(saved(Image.fromarray(np.array([[0, 70000]], np.int32)), "TIFF"), 4)
    with pytest.raises(Unreadable, match="floating-point"):
        decode(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), 4)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_on_white(mode):
    image = picture(16, 16, mode)
    alpha = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    image.putalpha(Image.fromarray(alpha))
    colour, a = np.asarray(image.convert("RGB"), float), alpha[..., None] / 255
    pixels = decode(saved(image), 16).transpose(1, 2, 0)
    assert np.abs(pixels - (a * colour + (1 - a) * 255)).max() <= 1
    assert "transparent, put on white" in notes(saved(image))


def test_an_opaque_alpha_changes_nothing():
    image = picture(16, 16)
    assert np.array_equal(decode(saved(image.convert("RGBA")), 16), decode(saved(image), 16))
    assert notes(saved(image.convert("RGBA"))) == set()


def test_palettes_with_and_without_a_transparent_colour():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((0, 0), 0)
    assert decode(saved(image), 4)[:, 0, 0].tolist() == [10, 20, 30] and notes(saved(image)) == {"palette"}
    for form, clear in (("PNG", 0), ("GIF", 0), ("PNG", bytes([0, 255]))):
        data = saved(image, form, transparency=clear)
        assert decode(data, 4)[:, 0, 0].tolist() == [255] * 3 and decode(data, 4)[:, 1, 1].tolist() == [200, 100, 50]
        assert notes(data) == {"palette", "transparent, put on white"}


@pytest.mark.parametrize("image", [Image.new("L", (2, 2), 7), Image.new("RGB", (2, 2), (7, 8, 9))])
def test_a_transparent_colour_of_a_png(image):
    data = saved(image, transparency=image.getpixel((0, 0)))
    assert (decode(data, 2) == 255).all()


def oriented(how):
    exif = Image.Exif()
    exif[0x0112] = how
    return exif


@pytest.mark.parametrize("how", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_turns(form, how):
    data = saved(picture(24, 16), form, exif=oriented(how), **({"lossless": True} if form == "WEBP" else {}))
    upright = saved(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(decode(data, 16), bare(upright, 16))
    if form != "TIFF":  # Pillow turns these itself
        assert ("turned as its EXIF says" in notes(data)) == facts(data).turned == (how > 1)


def test_exif_behind_the_frame_turns_too():
    data = saved(picture(16, 16), "JPEG", exif=oriented(3))
    at = data.index(b"\xff\xe1")
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    scan = data.index(b"\xff\xda")
    moved = data[:at] + data[end:scan] + data[at:end] + data[scan:]
    assert np.array_equal(decode(moved, 16), decode(data, 16)) and notes(moved) == notes(data)


def test_damaged_exif_is_no_reason_to_refuse():
    data = (
        saved(picture(16, 16), "JPEG", exif=oriented(3))
        .replace(b"Exif\0\0II", b"Exif\0\0??")
        .replace(b"Exif\0\0MM", b"Exif\0\0??")
    )
    assert np.array_equal(decode(data, 16), decode(saved(picture(16, 16), "JPEG"), 16))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_several_frames_the_first_is_taken(form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    data = saved(
        frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
    )
    assert decode(data, 8)[:, 4, 4].tolist() == [255, 0, 0]
    assert "first of several frames" in notes(data) and facts(data).frames == 3


def test_one_pixel_and_greyscale_are_noted():
    assert notes(saved(Image.new("RGB", (1, 1), "red"))) == {"one pixel wide or high"}
    assert notes(saved(picture(mode="L"))) == notes(saved(picture(mode="1"))) == {"greyscale"}
    assert decode(saved(Image.new("RGB", (1, 1), "red")), 8)[0].min() == 255


def test_facts():
    assert facts(saved(picture(40, 30), "JPEG")) == (40, 30, "RGB", "JPEG", 1, False, False)
    assert facts(saved(picture(4, 3, "RGBA"), "PNG")) == (4, 3, "RGBA", "PNG", 1, False, True)
    with pytest.raises(Unreadable, match="not a picture"):
        facts(b"no")


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3), (3, 5, 4), (1, 5, 4)])
def test_plain_pixels_of_any_layout(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = pixels.transpose(1, 2, 0) if shape[0] in (1, 3) else pixels
    image = np.broadcast_to(image.reshape(5, 4, -1), (5, 4, 3))
    found = planes(pixels.tobytes(), 4, "squash", shape)
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((4, 4), Image.BILINEAR)).transpose(
        2, 0, 1
    )
    assert b"".join(found.bands) == expected.tobytes()
    assert found.notes == (() if 3 in shape else ("greyscale",))


def test_a_helper_imports_neither_torch_nor_numpy():
    here = Path(fedshift.__file__).parent / "data"
    check = HELPER.replace("main()", "").replace("import main", "import main, work") + (
        "print([name for name in ('torch', 'numpy', 'dataclasses', 'zipfile') if name in sys.modules])"
    )
    argument = json.dumps([[str(here.parent.parent), *sys.path], str(here)])
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", check, argument], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
