"""Which of its images a client uses in a round: so many of each class, more of those it names wrongly.

What measures the model is held out of what trains it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from . import seeds
from .bounds import Range
from .errors import DataError
from .net import Variables
from .task import Batch, Site, Task, Work

FLOOR = 0.01  # an accuracy below counts as this one, so that nobody takes all
LEAST = 4  # images that a round draws, where a site has them: some train, and one measures


class Client(NamedTuple):
    """The class ratios q_c of a client's next round."""

    ratios: Tensor


class Down(NamedTuple):
    """The model, and the client's size ratio r: the share of its images that it draws."""

    model: Variables
    size: Tensor


@dataclass(frozen=True)
class Drawing:
    """Settings of a method that draws by class: of n images floor(floor(n r) q_c) of class c, as far as there are."""

    name: ClassVar[str]
    classes: Annotated[
        Literal["adaptive", "balanced", "off"], "draw more of classes with low accuracy, alike of all, or blindly"
    ] = "adaptive"
    beta: Annotated[float, Range(0, 1), "share of the class ratios that is alike for all classes"] = 0.30
    first: Annotated[float, Range(0, 1), "ratio of every class in a client's first round; 0: 1/C"] = 0.0
    validation: Annotated[Literal["fixed", "redrawn"], "hold out once, or a part of each round's draw"] = "fixed"
    holdout: Annotated[float, Range(0, 1, open_high=True), "share that measures accuracy"] = 0.2
    absent: Annotated[
        Literal["mean", "zero"], "what a class without a validation image counts as: the client's mean, or wrong"
    ] = "mean"
    refill: Annotated[bool, "draw from other classes what a class lacks"] = False

    def _first_ratios(self, task: Task, like: Tensor) -> Tensor:
        ratio = self.first if self.first and self.classes == "adaptive" else 1 / task.classes
        return like.new_full((task.classes,), ratio)

    def _drawn(self, task: Task, work: Work, site: Site) -> tuple[Tensor, Tensor]:
        """The rows that train in a round and those that measure, the same whenever they are asked for."""
        number = int(len(site.labels) * float(work.down.size) + 1e-9)  # 0.29 * 100 is 28.999...
        want = (number * work.client.ratios.cpu() + 1e-9).long().clamp(min=1) * int(self.classes != "off")
        least = number if self.classes == "off" else int(want.sum()) * self.refill
        fixed = seeds.generator(task.seed, self.name, site.name) if self.validation == "fixed" else None
        return divide(site, want, least, self.holdout, seeds.generator(work.round.seed, self.name), fixed)

    def _ratios(self, right: Tensor, seen: Tensor) -> Tensor:
        """q_c = beta/C + (1 - beta) w_c, where w_c = (1/a_c) / sum_c' (1/a_c')."""
        each = right / seen.clamp(min=1)
        if self.absent == "mean":
            each = torch.where(seen > 0, each, right.sum() / seen.sum().clamp(min=1))
        return self.beta / len(seen) + (1 - self.beta) * inverse_shares(each)


def divide(
    site: Site, want: Tensor, least: int, share: float, gen: torch.Generator, once: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The rows of a round that train, and those that measure: held out `once`, or else a share of what is drawn."""
    labels = site.labels.cpu()
    held = hold_out(labels, share if once else 0.0, once or gen)
    pool = torch.arange(len(labels))
    rows = draw(labels, pool[~torch.isin(pool, held)], want, gen, max(least, LEAST))
    if share and once is None:
        cut = max(1, round(share * len(rows)))
        held, rows = rows[torch.randperm(len(rows), generator=gen)].tensor_split([cut])
    if len(rows) < 2 or (share and not len(held)):
        raise DataError(
            f"site {site.name}: found {len(labels)} images, of which {len(rows)} train and {len(held)} measure the "
            "model, expected two and one at least; give it more images of a class, or leave it out."
        )
    return rows.sort().values, held


def hold_out(labels: Tensor, share: float, gen: torch.Generator) -> Tensor:
    """The rows that are held out: of each class its share, at least one, but never its last."""
    held = [labels.new_empty(0)]
    for c in torch.unique(labels).tolist() if share else ():
        rows = torch.nonzero(labels == c).flatten()
        number = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(rows[torch.randperm(len(rows), generator=gen)[:number]])
    return torch.cat(held).sort().values


def draw(labels: Tensor, pool: Tensor, want: Tensor, gen: torch.Generator, least: int = 0) -> Tensor:
    """Of the rows in `pool` as many of each class as are wanted, or all there are, in random order.

    Where these are fewer than `least`, others follow, whatever their class.
    """
    order = pool[torch.randperm(len(pool), generator=gen)]
    mine = labels[order]
    by_class, counts = mine.argsort(stable=True), torch.bincount(mine, minlength=len(want))
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[by_class] = place < want[mine[by_class]]
    missing = max(0, least - int(chosen.sum()))
    return torch.cat([order[chosen], order[~chosen][:missing]])


def inverse_shares(accuracy: Tensor, floor: float = FLOOR) -> Tensor:
    """w_k = (1/a_k) / sum_j (1/a_j); a negative accuracy is one that nobody knows, and has no share."""
    inverse = torch.where(accuracy < 0, torch.zeros_like(accuracy), 1 / accuracy.clamp(min=floor))
    return inverse / inverse.sum().clamp(min=1)  # one inverse is at least 1


def hits(task: Task, model: Variables, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """How many images of each class the model names rightly, and how many there are."""
    first = next(iter(model.params.values()))
    right, seen = torch.zeros(2, task.classes, dtype=torch.float64, device=first.device)
    with torch.no_grad():
        for x, y in batches:
            correct = task.net(model, x, train=False).logits.argmax(1) == y
            right.index_add_(0, y, correct.double())
            seen.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))
    return right, seen
