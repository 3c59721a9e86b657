"""From stored bytes to what the network sees; a whole batch at a time, on the batch's device."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normalise = Literal["half", "imagenet", "none"]
Augment = Literal["none", "shift"]
STATISTICS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class Transform:
    """Scale to [0, 1], augment if training, normalise by channel."""

    normalise: Normalise
    augment: Augment
    dtype: torch.dtype

    def train(self, images: Tensor, gen: torch.Generator) -> Tensor:
        """What training sees; `gen` draws the augmentation."""
        return self.test(shifted(images, gen) if self.augment == "shift" else images)

    def test(self, images: Tensor) -> Tensor:
        """What evaluation sees."""
        mean, std = (torch.tensor(v[: images.shape[1]], dtype=self.dtype) for v in STATISTICS[self.normalise])
        scale, offset = (1 / (255 * std), mean / std)
        shape = (1, -1, 1, 1)
        x = images.to(self.dtype)
        return x.mul_(scale.view(shape).to(x.device)).sub_(offset.view(shape).to(x.device))


def shifted(images: Tensor, gen: torch.Generator) -> Tensor:
    """Each image moved by up to an eighth of its side, edges repeated."""
    n, _, height, width = images.shape
    reach = max(1, height // 8), max(1, width // 8)
    dy, dx = (torch.randint(-r, r + 1, (n, 1), generator=gen).to(images.device) for r in reach)
    rows = (torch.arange(height, device=images.device) + dy).clamp(0, height - 1)
    cols = (torch.arange(width, device=images.device) + dx).clamp(0, width - 1)
    each = torch.arange(n, device=images.device)
    return images.permute(0, 2, 3, 1)[each[:, None, None], rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)
