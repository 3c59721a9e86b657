"""torchvision's transforms, for benchmarks alone: `pip install --no-deps torchvision==0.28.0`."""

import re
import sys
from types import ModuleType

import torch
from torch import Tensor, library

from fedshift.data.recipes import STATISTICS

TRIES = 8  # operators that may be missing


def transforms() -> ModuleType | None:
    """`torchvision.transforms`, or None where torchvision is not installed.

    Beside a torch of another build its compiled operators (non-maximum suppression and such) do not load, and the
    import fails for want of their names. The transforms use none of them, so the names are declared, no more.
    """
    names = library.Library("torchvision", "FRAGMENT")
    for _ in range(TRIES):
        try:
            from torchvision import transforms as found
        except ModuleNotFoundError:
            return None
        except RuntimeError as error:
            missing = re.search(r"torchvision::(\w+) does not exist", str(error))
            if not missing:
                raise
            names.define(f"{missing[1]}(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
        else:
            _kept.append(names)
            return found  # type: ignore[no-any-return]
    return None


_kept: list[object] = []


def placed(t: ModuleType, size: int) -> object:
    """Shorter side to `size`, and the middle of it, as grey levels."""
    return t.Compose([t.Resize(size), t.CenterCrop(size), t.PILToTensor()])


def domainbed(t: ModuleType, size: int) -> object:
    """DomainBed's recipe as torchvision's users write it."""
    return t.Compose(
        [
            t.RandomResizedCrop(size, scale=(0.7, 1.0)),
            t.RandomHorizontalFlip(),
            t.ColorJitter(0.3, 0.3, 0.3, 0.3),
            t.RandomGrayscale(),
            t.ToTensor(),
            t.Normalize(*STATISTICS["imagenet"]),
        ]
    )


def one_by_one(chain: object, pictures: list[object]) -> Tensor:
    """A batch."""
    return torch.stack([chain(picture) for picture in pictures])  # type: ignore[operator]
