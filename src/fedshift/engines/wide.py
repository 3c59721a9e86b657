"""Convolutions of a picture's few channels, computed as of more: tensor cores take no fewer, and zeros add nothing."""

from types import MethodType

import torch.nn.functional as F
from torch import Tensor, nn


def widen(module: nn.Module, width: int) -> None:
    """Let convolutions of fewer channels than `width` compute on so many; their tensors stay as they are."""
    for conv in module.modules():
        if type(conv) is nn.Conv2d and conv.in_channels < width and conv.groups == 1 and conv.padding_mode == "zeros":
            conv.width = width  # type: ignore[assignment]
            conv._conv_forward = MethodType(_wide, conv)  # type: ignore[method-assign]


def _wide(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    more = (0, 0, 0, 0, 0, int(conv.width) - x.shape[1])  # type: ignore[arg-type]
    return F.conv2d(F.pad(x, more), F.pad(weight, more), bias, conv.stride, conv.padding, conv.dilation)
