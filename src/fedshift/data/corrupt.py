"""Corruption ladders: the same pictures five times worse in steps, as extra unseen sites.

| corruption | what is done, on the scale 0 to 1 | severity 1 | 2 | 3 | 4 | 5 |
|---|---|---|---|---|---|---|
| noise | Gaussian noise of this standard deviation | 0.04 | 0.08 | 0.12 | 0.18 | 0.26 |
| static | the same, until little is left to see | 0.15 | 0.3 | 0.45 | 0.6 | 0.75 |
| blur | Gaussian blur of this share of the shorter side as standard deviation | 0.015 | 0.02 | 0.026 | 0.033 | 0.042 |
| contrast | distances to the channel's mean, times | 0.75 | 0.6 | 0.45 | 0.3 | 0.15 |
| jpeg | JPEG of this quality, halved colour resolution | 50 | 30 | 20 | 12 | 6 |
| brightness | added to every channel | 0.1 | 0.2 | 0.3 | 0.4 | 0.5 |
| cast | warm light: red times 1 + c/2, green as it is, blue times 1 - c | 0.12 | 0.24 | 0.36 | 0.48 | 0.6 |

Results are rounded and cut off at 0 and 255. Severity 0 is the picture itself. The noise of a picture depends on the
seed and on the picture alone, and its severities are multiples of one another; so neither the size of a batch nor its
order changes anything.
"""

import io
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ..core import seeds
from ..core.errors import ConfigError, DataError, nearest
from .partition import content_of

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """Pictures (uint8, [n, 3, height, width]) at a severity from 0, which changes nothing, to 5."""
    if kind not in CORRUPTIONS:
        raise ConfigError(
            f"corruption: found {kind!r}, expected one of {', '.join(CORRUPTIONS)}{nearest(kind, CORRUPTIONS)}; "
            "choose one of these."
        )
    if severity not in (0, *SEVERITIES):
        raise ConfigError(f"severity of {kind}: found {severity}, expected 0 to 5; choose one of these.")
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise DataError(
            f"pictures to corrupt: found {str(images.dtype).removeprefix('torch.')} {list(images.shape)}, expected "
            "uint8 [n, 3, height, width]; corrupt pictures before they are normalised."
        )
    if not severity or not len(images):
        return images
    change, steps = CORRUPTIONS[kind]
    return change(images, steps[severity - 1], seed)


def _bytes(x: Tensor) -> Tensor:
    """From the scale 0 to 1 back to bytes."""
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def _noise(images: Tensor, spread: float, seed: int) -> Tensor:
    streams = [seeds.generator(seed, "noise", key) for key in content_of(images).tolist()]
    noise = torch.stack([torch.randn(images.shape[1:], generator=gen) for gen in streams])
    return _bytes(images / 255 + spread * noise.to(images.device))


def _blur(images: Tensor, share: float, seed: int) -> Tensor:
    sigma = share * min(images.shape[2:])
    reach = min(max(1, round(3 * sigma)), min(images.shape[2:]) - 1)
    bell = torch.exp(-(torch.arange(-reach, reach + 1, device=images.device) ** 2) / (2 * sigma**2))
    kernel = (bell / bell.sum()).expand(3, 1, 1, -1)
    x = conv2d(pad(images / 255, (reach, reach, reach, reach), mode="reflect"), kernel, groups=3)
    return _bytes(conv2d(x, kernel.transpose(2, 3), groups=3))


def _contrast(images: Tensor, factor: float, seed: int) -> Tensor:
    x = images / 255
    mean = x.mean(dim=(2, 3), keepdim=True)
    return _bytes(mean + factor * (x - mean))


def _jpeg(images: Tensor, quality: float, seed: int) -> Tensor:
    coded = [_through_jpeg(image, int(quality)) for image in images.permute(0, 2, 3, 1).contiguous().cpu().numpy()]
    return torch.from_numpy(np.stack(coded)).permute(0, 3, 1, 2).contiguous().to(images.device)


def _through_jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Image.open(file))


def _brightness(images: Tensor, more: float, seed: int) -> Tensor:
    return _bytes(images / 255 + more)


def _cast(images: Tensor, strength: float, seed: int) -> Tensor:
    gain = torch.tensor([1 + strength / 2, 1.0, 1 - strength], device=images.device)
    return _bytes(images / 255 * gain.view(3, 1, 1))


Change = Callable[[Tensor, float, int], Tensor]
CORRUPTIONS: dict[str, tuple[Change, tuple[float, ...]]] = {
    "noise": (_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    # The last is N(0, 1.5^2) after normalisation by a half, as in RFedDis's Figure 3, but cut off.
    "static": (_noise, (0.15, 0.3, 0.45, 0.6, 0.75)),
    "blur": (_blur, (0.015, 0.02, 0.026, 0.033, 0.042)),
    "contrast": (_contrast, (0.75, 0.6, 0.45, 0.3, 0.15)),
    "jpeg": (_jpeg, (50, 30, 20, 12, 6)),
    "brightness": (_brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "cast": (_cast, (0.12, 0.24, 0.36, 0.48, 0.6)),
}
