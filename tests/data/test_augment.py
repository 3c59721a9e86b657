"""Every operation against Pillow or colorsys on one picture at a time, and the whole against a plain loop."""

import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.overrides import TorchFunctionMode

from fedshift.core.errors import ConfigError, DataError
from fedshift.data.augment import (
    Transform,
    blend_,
    blend_table,
    crop_boxes,
    grey_table,
    luma_of,
    normalise,
    resize,
    shift_boxes,
    turn_hue_,
    warp,
    warp_table,
)
from fedshift.data.recipes import RECIPES, STATISTICS, Recipe

NOISE = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
DOMAINBED = Transform(RECIPES["domainbed"], torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def dice(n, columns, seed=0):
    return np.random.default_rng(seed).random((n, columns))


def picture(image):
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def levels(made):
    return torch.from_numpy(np.array(made)).permute(2, 0, 1).double()


def moved(images, boxes=None, flip=None, degrees=0.0, smooth=True, fill=None):
    """The batch through `warp`, each picture by the same box, flip and angle unless they are given one by one."""
    n, _, height, width = images.shape
    boxes = np.broadcast_to((0, 0, height, width) if boxes is None else boxes, (n, 4)).astype(float)
    flip = np.broadcast_to(False if flip is None else flip, n)
    table = warp_table(boxes, flip, np.broadcast_to(float(degrees), n), height, width)
    return warp(images.double(), torch.from_numpy(table), smooth, fill)


def blended(images, factors=(1, 1, 1), order=(0, 1, 2)):
    """The batch through brightness, contrast and saturation, in the order given."""
    place = np.argsort(order)
    table = blend_table(np.tile(np.array(factors, float), (len(images), 1)), np.tile(place, (len(images), 1)))
    x = images.double()
    for slot in range(3):
        blend_(x, torch.from_numpy(table[:, 3 * slot : 3 * slot + 3]))
    return x


# Geometry


@pytest.mark.parametrize("box", [(0, 0, 16, 16), (2, 5, 11, 9), (3, 0, 13, 16), (7, 7, 1, 2)])
def test_crops_are_those_of_pillow(box):
    top, left, high, wide = box
    for image, out in zip(NOISE, moved(NOISE, box), strict=True):
        cut = picture(image).crop((left, top, left + wide, top + high))
        assert (levels(cut.resize((16, 16), Image.Resampling.BILINEAR)) - out).abs().max() <= 1.001


def test_the_full_box_is_the_picture_and_flipping_twice_too():
    assert torch.allclose(moved(NOISE), NOISE.double(), atol=1e-9)
    assert torch.equal(moved(NOISE, smooth=False), NOISE.double())
    once = moved(NOISE, flip=True, smooth=False)
    assert torch.equal(once, NOISE.flip(3).double())
    assert torch.equal(moved(once, flip=True, smooth=False), NOISE.double())
    assert torch.allclose(moved(NOISE, (2, 1, 9, 12), flip=True), moved(NOISE, (2, 1, 9, 12)).flip(3))


@pytest.mark.parametrize("angle", [-30, -7.3, 0, 12.1, 29.9, 88, 141])
@pytest.mark.parametrize("shape", [(16, 16), (16, 11)])
def test_rotations_are_those_of_pillow(angle, shape):
    images = NOISE[:4, :, : shape[0], : shape[1]]
    for mode, smooth, near in ((Image.Resampling.NEAREST, False, 0), (Image.Resampling.BILINEAR, True, 1.001)):
        for image, out in zip(images, moved(images, degrees=angle, smooth=smooth, fill=7.0), strict=True):
            turned = levels(picture(image).rotate(angle, mode, fillcolor=(7, 7, 7)))
            assert (turned - out).abs().max() <= near


def test_a_flip_comes_before_a_rotation_and_a_crop_before_both():
    boxed = moved(NOISE, (4, 2, 8, 8), smooth=False)
    apart = moved(moved(boxed, flip=True, smooth=False), degrees=25, smooth=False, fill=0.0)
    assert torch.equal(moved(NOISE, (4, 2, 8, 8), True, 25, smooth=False, fill=0.0), apart)


def test_a_rotated_crop_is_filled_outside_its_box():
    out = moved(torch.full_like(NOISE, 200), (5, 5, 6, 6), degrees=45, fill=9.0)
    assert (out[..., 0, 0] == 9).all() and (out[..., 8, 8] == 200).all()


def test_shifts_repeat_the_edges():
    boxes = shift_boxes(dice(len(NOISE), 2), 16, 16, 0.125)
    for image, (dy, dx, _, _), out in zip(NOISE, boxes.astype(int), moved(NOISE, boxes, smooth=False), strict=True):
        rows, columns = (np.clip(np.arange(16) + d, 0, 15) for d in (dy, dx))
        assert torch.equal(image[:, rows][:, :, columns].double(), out)


def test_shifts_reach_an_eighth_evenly():
    moves = shift_boxes(dice(10_000, 2), 32, 16, 0.125)[:, :2]
    for moved_by, reach in zip(moves.T, (4, 2), strict=True):
        found, counts = np.unique(moved_by, return_counts=True)
        assert found.tolist() == list(range(-reach, reach + 1))
        assert np.abs(counts / 10_000 - 1 / len(found)).max() < 0.015
    assert shift_boxes(dice(100, 2), 4, 4, 0.1)[:, 0].min() == -1  # a pixel at least
    assert not shift_boxes(dice(9, 2), 8, 8, 0.0)[:, :2].any()


def plain_crop(u, place, height, width, least, stretch):
    """torchvision's rule, a try at a time."""
    for area, log_ratio in zip(u[:10], u[10:], strict=True):
        target = height * width * (least + (1 - least) * area)
        ratio = math.exp(-math.log(stretch) + 2 * math.log(stretch) * log_ratio)
        wide, high = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide, high = width, height
        if width / height > stretch:
            wide = round(height * stretch)
        if width / height < 1 / stretch:
            high = round(width * stretch)
    return [int(place[0] * (height - high + 1)), int(place[1] * (width - wide + 1)), high, wide]


@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 20), (64, 9), (9, 64), (1, 1)])
@pytest.mark.parametrize("least", [0.08, 0.7, 0.99])
def test_boxes_follow_torchvisions_rule(height, width, least):
    u, place = dice(300, 20), dice(300, 2, 1)
    boxes = crop_boxes(u, place, height, width, least, 4 / 3)
    assert boxes.tolist() == [plain_crop(a, b, height, width, least, 4 / 3) for a, b in zip(u, place, strict=True)]
    assert (boxes[:, 0] + boxes[:, 2]).max() <= height and (boxes[:, 1] + boxes[:, 3]).max() <= width
    assert boxes[:, :2].min() >= 0 and boxes[:, 2:].min() >= 1


def test_boxes_lie_evenly():
    top, left, high, wide = crop_boxes(dice(20_000, 20), dice(20_000, 2, 1), 256, 256, 0.7, 4 / 3).T
    area = high * wide / 256**2
    assert area.min() >= 0.695 and area.max() <= 1
    assert abs(np.median(np.log(wide / high))) < 0.01 and (np.abs(np.log(wide / high)) <= math.log(4 / 3) + 0.01).all()
    for start, size in ((top, high), (left, wide)):
        share = (start[size < 240] + 0.5) / (257 - size[size < 240])
        assert np.abs(np.quantile(share, (0.1, 0.25, 0.5, 0.75, 0.9)) - (0.1, 0.25, 0.5, 0.75, 0.9)).max() < 0.02


@pytest.mark.parametrize("size", [(7, 7), (8, 5), (16, 16), (23, 40)])
def test_resizing_is_pillows(size):
    for image, out in zip(NOISE, resize(NOISE.double(), *size), strict=True):
        assert (levels(picture(image).resize(size[::-1], Image.Resampling.BILINEAR)) - out).abs().max() <= 1.001


# Colours


@pytest.mark.parametrize("factor", [0.7, 0.93, 1.3, 0.0, 2.0])
def test_brightness_contrast_and_saturation_are_pillows(factor):
    for place, enhance in enumerate((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)):
        factors = [1.0, 1.0, 1.0]
        factors[place] = factor
        for image, out in zip(NOISE, blended(NOISE, factors), strict=True):
            assert (levels(enhance(picture(image)).enhance(factor)) - out).abs().max() <= 1.5


def test_steps_come_in_the_order_asked():
    factors, steps = (1.5, 0.6, 1.7), (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    seen = []
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        seen.append(blended(NOISE[:2], factors, order))
        for image, out in zip(NOISE[:2], seen[-1], strict=True):
            made = picture(image)
            for step in order:
                made = steps[step](made).enhance(factors[step])
            assert (levels(made) - out).abs().max() <= 5
    assert all((a - b).abs().max() > 10 for i, a in enumerate(seen) for b in seen[:i])


def test_factors_of_one_change_nothing():
    assert torch.allclose(blended(NOISE), NOISE.double(), atol=1e-9)


def turned(pixel, turn):
    hue, saturation, value = colorsys.rgb_to_hsv(*(v / 255 for v in pixel))
    return [255 * v for v in colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)]


@pytest.mark.parametrize("turn", [-0.5, -0.31, -1 / 6, 0.0, 0.05, 0.3, 0.5])
def test_hue_is_that_of_colorsys(turn):
    corners = torch.tensor([[r, g, b] for r in (0, 90, 255) for g in (0, 90, 255) for b in (0, 90, 255)])
    images = torch.cat([corners.T.reshape(1, 3, 3, 9).expand(2, 3, 3, 9), NOISE[:2, :, :3, :9]]).double()
    out = turn_hue_(images.clone(), torch.full((4, 1), turn, dtype=torch.float64))
    expected = [turned(pixel, turn) for pixel in images.permute(0, 2, 3, 1).reshape(-1, 3).tolist()]
    made = out.permute(0, 2, 3, 1).reshape(-1, 3)
    assert torch.allclose(made, torch.tensor(expected, dtype=torch.float64), atol=1e-9)


def test_hue_closes_its_circle():
    def by(turn):
        return turn_hue_(NOISE.double(), torch.full((12, 1), turn, dtype=torch.float64))

    assert torch.allclose(by(0.0), NOISE.double()) and torch.allclose(by(0.5), by(-0.5))
    thrice = NOISE.double()
    for _ in range(3):
        thrice = turn_hue_(thrice, torch.full((12, 1), 1 / 3, dtype=torch.float64))
    assert torch.allclose(thrice, NOISE.double()) and not torch.allclose(by(0.2), NOISE.double(), atol=20)


def test_grey_is_pillows_luma_where_it_is_asked():
    grey = np.arange(12) % 3 == 0
    x = blend_(NOISE.double(), torch.from_numpy(grey_table(grey)))
    for image, out, asked in zip(NOISE, x, grey, strict=True):
        expected = levels(picture(image).convert("L").convert("RGB")) if asked else image
        assert (expected - out).abs().max() <= (0.51 if asked else 0)
        assert not asked or torch.equal(out[0], out[2])
    assert torch.equal(luma_of(x[:, :1]), x[:, :1])


# Normalisation


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_normalise(statistics, dtype, near):
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in STATISTICS[statistics])
    for images in (NOISE, NOISE.float(), NOISE[:, :1]):
        out = normalise(images, statistics, torch.empty_like(images, dtype=dtype))
        channels = images.shape[1]
        expected = (images.double() / 255 - mean[:channels]) / std[:channels]
        assert out.dtype == dtype and torch.allclose(out.double(), expected, atol=near, rtol=near)


# The whole


def plain(image, u, place_in_batch):
    """DomainBed's recipe on one picture by its 32 numbers, with Pillow and colorsys."""
    top, left, high, wide = plain_crop(u[:20], u[20:22], 16, 16, 0.7, 4 / 3)
    x = image.permute(1, 2, 0).float().numpy()
    planes = [Image.fromarray(x[top : top + high, left : left + wide, c]) for c in range(3)]
    x = np.stack([np.array(p.resize((16, 16), Image.Resampling.BILINEAR), dtype=np.float64) for p in planes], 2)
    if u[22] < 0.5:
        x = x[:, ::-1]
    b, c, s, h = 0.6 * (u[24:28] - 0.5)
    steps = [int(i) for i in np.argsort(u[28:31])]
    steps.insert(place_in_batch % 4, 3)
    for step in steps:
        luma = x @ (0.299, 0.587, 0.114)
        if step == 0:
            x = np.clip((1 + b) * x, 0, 255)
        elif step == 1:
            x = np.clip((1 + c) * x - c * luma.mean(), 0, 255)
        elif step == 2:
            x = np.clip((1 + s) * x - s * luma[..., None], 0, 255)
        else:
            x = np.array([[turned(pixel, h) for pixel in row] for row in x.tolist()])
    if u[31] < 0.1:
        x = np.repeat((x @ (0.299, 0.587, 0.114))[..., None], 3, 2)
    return torch.from_numpy((x / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).permute(2, 0, 1)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_domainbeds_recipe_is_that_of_a_plain_loop(dtype, near):
    images = torch.cat([NOISE, NOISE.flip(1)])
    u = torch.rand(24, 32, generator=seeded(5), dtype=torch.float64).numpy()
    assert {True, False} == set(u[:, 31] < 0.1) == set(u[:, 22] < 0.5)
    out = Transform(RECIPES["domainbed"], dtype).train(images, seeded(5))
    expected = torch.stack([plain(image, row, i) for i, (image, row) in enumerate(zip(images, u, strict=True))])
    assert out.dtype == dtype and (out.double() - expected).abs().max() < near


def test_fedbns_recipe_is_that_of_pillow():
    transform = Transform(Recipe(size=24, flip=0.5, rotation=30, normalise="none"), torch.float32)
    u = torch.rand(12, 32, generator=seeded(), dtype=torch.float64).numpy()
    for image, row, out in zip(NOISE, u, transform.train(NOISE, seeded()), strict=True):
        made = picture(image).resize((24, 24), Image.Resampling.BILINEAR)
        made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if row[22] < 0.5 else made
        off = (levels(made.rotate(60 * (row[23] - 0.5))) - 255 * out).abs() > 1.001
        assert off.double().mean() < 0.005 and out.max() <= 1  # Pillow's fixed point decides ties elsewhere


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name):
    transform = Transform(RECIPES[name], torch.float32)
    side = RECIPES[name].size or 16
    out = transform.train(NOISE[:5], seeded(1))
    assert out.shape == (5, 3, side, side) and out.dtype == torch.float32 and out.isfinite().all()
    assert torch.equal(out, transform.train(NOISE[:5], seeded(1)))
    random = name not in ("none", "fdse", "feddca", "fedbn-digits", "rfeddis-digits")
    assert torch.equal(out, transform.train(NOISE[:5], seeded(2))) != random
    assert torch.equal(out, transform.test(NOISE[:5])) != random
    assert transform.test(NOISE[:5]).shape == out.shape
    assert transform.test(NOISE[:0]).shape == transform.train(NOISE[:0], seeded()).shape == (0, 3, side, side)


def test_evaluation_resizes_and_normalises():
    out = Transform(RECIPES["fedbn-digits"], torch.float64).test(NOISE)
    assert torch.allclose(out, resize(NOISE.double(), 28, 28) / 127.5 - 1)
    assert torch.allclose(Transform(RECIPES["shift"], torch.float64).test(NOISE), NOISE.double() / 127.5 - 1)


def test_the_shift_recipe_moves_whole_pixels():
    out = Transform(RECIPES["shift"], torch.float32).train(NOISE, seeded()) * 127.5 + 127.5
    place = torch.rand(12, 32, generator=seeded(), dtype=torch.float64).numpy()[:, 20:22]
    for image, x, (dy, dx) in zip(NOISE, out, np.floor(place * 5).astype(int) - 2, strict=True):
        rows, columns = (np.clip(np.arange(16) + d, 0, 15) for d in (dy, dx))
        assert torch.allclose(image[:, rows][:, :, columns].float(), x, atol=1e-3)


# What is drawn


def test_draws_lie_evenly_in_their_ranges():
    table = DOMAINBED.draw(seeded(), 20_000, 32, 32).numpy()
    blends = table[:, 12:21].reshape(-1, 3, 3)
    rest = 1 - blends[..., 0]
    kind = np.where(blends[..., 2] != 0, 1, np.where(blends[..., 1] != 0, 2, 0))
    assert (np.sort(kind, 1) == (0, 1, 2)).all() and np.abs(rest).max() <= 0.3
    for values in (*(rest[kind == k] for k in range(3)), table[:, -1]):
        found = np.quantile(values, (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0))
        assert np.abs(found - (-0.3, -0.24, -0.15, 0, 0.15, 0.24, 0.3)).max() < 0.01
    orders = np.unique(kind, axis=0, return_counts=True)[1] / 20_000
    assert len(orders) == 6 and np.abs(orders - 1 / 6).max() < 0.01
    assert abs((table[:, 0] < 0).mean() - 0.5) < 0.015 and abs(table[:, -3].mean() - 0.1) < 0.01
    columns = np.stack([table[:, 0] < 0, table[:, -3], table[:, -1], *(rest[kind == k] for k in range(3))])
    assert np.abs(np.corrcoef(columns) - np.eye(6)).max() < 0.03


def test_rotations_lie_evenly():
    table = Transform(RECIPES["fedbn"], torch.float64).draw(seeded(), 20_000, 256, 256)
    degrees = torch.atan2(table[:, 3], table[:, 4]).rad2deg().numpy()
    assert np.abs(np.quantile(degrees, (0, 0.25, 0.5, 0.75, 1)) - (-30, -15, 0, 15, 30)).max() < 0.6


def test_two_batches_at_once_draw_what_they_would_one_by_one():
    gen, together = seeded(), DOMAINBED.draw(seeded(), 8, 16, 16)
    assert torch.equal(torch.cat([DOMAINBED.draw(gen, n, 16, 16) for n in (3, 0, 1, 4)]), together)


def test_an_operation_changes_no_other_ones_numbers():
    bare = Transform(Recipe(crop=0.7, flip=0.5, hue=0.3), torch.float64).draw(seeded(), 9, 16, 16)
    full = DOMAINBED.draw(seeded(), 9, 16, 16)
    assert torch.equal(bare[:, :12], full[:, :12]) and torch.equal(bare[:, -1], full[:, -1])
    assert not torch.equal(bare, full)


def test_float32_and_float64_see_the_same():
    single = Transform(RECIPES["domainbed"], torch.float32).train(NOISE, seeded())
    assert torch.allclose(single.double(), DOMAINBED.train(NOISE, seeded()), atol=1e-3)


# Batches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_picture_does_not_depend_on_those_after_it(dtype):
    for name in ("domainbed", "shift"):
        transform = Transform(RECIPES[name], dtype)
        whole = transform.train(NOISE, seeded())
        for n in (0, 1, 2, 5):
            assert torch.equal(transform.train(NOISE[:n], seeded()), whole[:n])
        others = torch.cat([NOISE[:5], NOISE[5:].flip(0)])
        assert torch.equal(transform.train(others, seeded())[:5], whole[:5])


@pytest.mark.parametrize("recipe", [*RECIPES.values(), Recipe(grey=0.5), Recipe(hue=0.2), Recipe(shift=0.1, size=16)])
def test_the_batch_given_is_left_alone(recipe):
    transform = Transform(recipe, torch.float32)
    for images in (NOISE.clone(), NOISE.float(), NOISE.float().contiguous(memory_format=torch.channels_last)):
        before = images.clone()
        out = transform.train(images, seeded())
        assert torch.equal(images, before) and torch.allclose(out, transform.train(NOISE, seeded()), atol=1e-4)
        assert torch.equal(transform.test(images), transform.test(NOISE)) and torch.equal(images, before)


def test_one_channel():
    grey = NOISE[:, :1]
    thrice = DOMAINBED.train(grey.expand(-1, 3, -1, -1), seeded())[:, :1]
    assert torch.allclose(DOMAINBED.train(grey, seeded()), thrice, atol=1e-4)


def test_odd_channels_are_refused_where_colours_matter():
    with pytest.raises(DataError, match="have 4 channels"):
        DOMAINBED.train(torch.cat([NOISE, NOISE[:, :1]], 1), seeded())


def test_pictures_need_not_be_square():
    for name in ("domainbed", "shift"):
        assert Transform(RECIPES[name], torch.float32).train(NOISE[..., :9], seeded()).shape == (12, 3, 16, 9)


class Calls(TorchFunctionMode):
    """Notes the name of every function called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["domainbed", "fedbn", "shift", "none"])
def test_applying_asks_the_device_for_no_value(name):
    transform = Transform(RECIPES[name], torch.float32)
    table = transform.draw(seeded(), 12, 16, 16)
    with Calls() as calls:
        transform.apply(NOISE, table)
        transform.test(NOISE)
    waits = {"item", "tolist", "numpy", "cpu", "nonzero", "masked_select", "equal", "tensor"}
    waits |= {"__bool__", "__int__", "__float__", "__index__", "__array__"}
    assert "add" in calls.names and not calls.names & waits


# Recipes


def test_recipes_are_those_of_the_papers():
    jitter = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.3}
    domainbed = {"crop": 0.7, "stretch": 4 / 3, "flip": 0.5, **jitter, "grey": 0.1, "normalise": "imagenet"}
    office = {"size": 256, "flip": 0.5, "rotation": 30, "rotate_by": "nearest", "fill": 0, "normalise": "none"}
    expected = {
        "none": {},
        "shift": {"shift": 1 / 8},
        "domainbed": domainbed,
        "fedbn": office,
        "fedbn-digits": {"size": 28, "normalise": "half"},
        "fdse": {"size": 256, "normalise": "none"},
        "hfedf": {"size": 32, **domainbed},
        "lsi": {"size": 256, **domainbed},
        "rfeddis": office,
        "rfeddis-digits": {"size": 28, "normalise": "half"},
        "feddca": {"size": 32, "normalise": "half"},
    }
    assert {name: Recipe(**settings) for name, settings in expected.items()} == RECIPES


def test_crop_and_shift_exclude_each_other():
    with pytest.raises(ConfigError, match=r"crop is 0\.5 and shift 0\.1"):
        Recipe(crop=0.5, shift=0.1)


@pytest.mark.parametrize("name", ["domainbed", "fedbn", "shift"])
def test_a_compiler_takes_it_whole(name):
    """Where it writes another line than the eager one, the values are the same."""
    transform = Transform(RECIPES[name], torch.float64)
    table = transform.table(seeded(), len(NOISE), (16, 16))
    whole = torch.compile(transform.apply, fullgraph=True, backend="aot_eager")(NOISE, table)
    assert float((whole - transform.apply(NOISE, table)).abs().max()) < 1e-12
