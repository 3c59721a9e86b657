"""A data set at a glance: some pictures of every class in every domain, and how many there are."""

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .dataset import Dataset, Domain

GAP, MARGIN, TEXT = 2, 10, 14
NOTHING = "#eeeeee"  # where a domain has no picture of a class


def contact_sheet(dataset: Dataset, per_class: int = 4, seed: int = 0) -> Image.Image:
    """A row per class, a column of `per_class` pictures per domain; which ones, the seed decides."""
    font = ImageFont.load_default(TEXT)
    dice = torch.Generator().manual_seed(seed)
    side = max(dataset.image[1], TEXT + GAP)
    left = round(max(map(font.getlength, dataset.classes))) + 2 * MARGIN
    heads = [f"{d.name} ({len(d.labels):,})" for d in dataset.domains]
    wide = [max(per_class * (dataset.image[2] + GAP), round(font.getlength(head))) + MARGIN for head in heads]
    top, step = TEXT + 2 * MARGIN, side + GAP
    sheet = Image.new("RGB", (left + sum(wide), top + step * len(dataset.classes) + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(dataset.classes):
        draw.text((left - MARGIN, top + label * step + side // 2), name, fill="black", font=font, anchor="rm")
    for k, (domain, head) in enumerate(zip(dataset.domains, heads, strict=True)):
        at = left + sum(wide[:k])
        draw.text((at, MARGIN), head, fill="black", font=font)
        for label in range(len(dataset.classes)):
            _row(sheet, draw, (at, top + label * step), _chosen(domain, label, per_class, dice), dataset.image[1:])
    return sheet


def _chosen(domain: Domain, label: int, n: int, dice: torch.Generator) -> list[Tensor]:
    rows = (domain.labels == label).nonzero().flatten()
    return list(domain.images[rows[torch.randperm(len(rows), generator=dice)[:n]].sort().values])


def _row(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    at: tuple[int, int],
    pictures: Sequence[Tensor],
    shape: tuple[int, int],
) -> None:
    for k, picture in enumerate(pictures):
        pixels = picture.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
        sheet.paste(Image.fromarray(pixels), (at[0] + k * (shape[1] + GAP), at[1]))
    if not pictures:
        draw.rectangle((*at, at[0] + shape[1] - 1, at[1] + shape[0] - 1), fill=NOTHING)


def counts(dataset: Dataset) -> dict[str, list[int]]:
    """Pictures per class, by domain."""
    n = len(dataset.classes)
    return {d.name: torch.bincount(d.labels, minlength=n).tolist() for d in dataset.domains}
