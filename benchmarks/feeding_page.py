"""What `feeding` measured, in words and tables."""

from collections.abc import Mapping
from typing import Any

from .page import number, table

NAMES = {"seconds": "seconds", "cpu_s": "processor seconds", "images_per_s": "pictures a second"}
KINDS = {"wall": "by the clock", "cpu": "in processor seconds"}


def section(found: Mapping[str, Any]) -> str:
    """Two tables."""
    rows = {name: {NAMES[k]: v for k, v in row.items()} for name, row in found["rows"].items()}
    ratios = {name: {KINDS[k]: v for k, v in row.items()} for name, row in found["ratios"].items()}
    what = f"{number(found['pictures'])} pictures of `{found['set']}` to {found['size']} pixels"
    return f"""{what}, {found["repeats"]} times. *Bare* is Pillow alone in two processes that are ready before the clock
starts, its pixels left in Pillow's hands or brought to arrays. *Store* is everything that opening an empty cache does,
with the start of the second process, hashes and the search for copies. *Augment* is DomainBed's recipe on one thread,
*its augment* torchvision's on the same pictures.

{table(list(rows.values()), list(rows))}
{table(list(ratios.values()), list(ratios))}"""
