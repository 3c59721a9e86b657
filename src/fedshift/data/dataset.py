"""What a data set is: domains of images with the same classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..core.errors import DataError, nearest


@dataclass(frozen=True)
class Domain:
    """Images (uint8, [n, channels, height, width]) of one look, and their labels (int64, [n]).

    What else is known of each image may be given: a 64-bit hash of its `content`, by which copies are found; an `order`
    that no file system decides; and the authors' `official` part (0 train, 1 val, 2 test, -1 unlisted).
    """

    name: str
    images: Tensor
    labels: Tensor
    content: Tensor | None = None
    order: Tensor | None = None
    official: Tensor | None = None


@dataclass(frozen=True)
class Dataset:
    """Domains that share classes and image size."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    skipped: tuple[tuple[str, str], ...] = ()  # pictures that could not be decoded, and why

    @property
    def image(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.domains[0].images.shape[1:]
        return channels, height, width

    def domain(self, name: str) -> Domain:
        """The domain of that name."""
        names = [d.name for d in self.domains]
        if name not in names:
            raise DataError(
                f"data.left_out: found {name!r}, expected a domain of {self.name} "
                f"({', '.join(names)}){nearest(name, names)}."
            )
        return self.domains[names.index(name)]


@dataclass(frozen=True)
class Mirror:
    """One place to download a file from; without a known hash, the first download's is recorded and kept to."""

    url: str
    sha256: str = ""


@dataclass(frozen=True)
class Source:
    """A data set in words and numbers, as its authors publish it.

    `load` makes a set that needs no download; for all others it is None, and the pictures come from a manifest.
    `counts` holds, for each domain, the published number of pictures per class, or one number where only that is known.
    """

    name: str
    summary: str
    citation: str
    licence: str
    domains: tuple[str, ...]
    load: Callable[[], Dataset] | None = None
    url: str = ""
    classes: tuple[str, ...] = ()
    counts: Mapping[str, tuple[int, ...] | int] = field(default_factory=dict)
    sizes: str = ""  # of the pictures, in words
    traps: tuple[str, ...] = ()
    divided: bool = False  # by the authors: what a copy says of train and test is kept; elsewhere it is somebody's own
    listed: bool = False  # their lists also say which pictures belong, where a domain has both lists
    files: Mapping[str, tuple[Mirror, ...]] = field(default_factory=dict)  # what to download: name -> mirrors
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # other names of domains and classes
