"""How a model adapts to the unlabelled images of a new site, where its method has no way of its own or has one.

- `method`: the method's own label-free phases, from what a new site downloads.
- `norm`: the statistics of BatchNorm layers are measured anew on the site's images (AdaBN, Li et al. 2016; FDSE's
  Algorithm 2 for FedBN), in one pass over shuffled batches. A layer's mean and variance are those of all images
  together (E[x^2] - E[x]^2), not a moving average; meanwhile each layer normalises by its batch.
- `entropy`: after that, the scales and shifts of normalisation layers descend the mean entropy of the method's own
  answers, as in TENT (Wang et al., ICLR 2021); then the statistics are measured once more. TENT normalises each batch
  by its own statistics, so that an answer depends on its neighbours; here it does not.

Steps are those of a client, by the run's own optimiser, on images as evaluation sees them. A label here is always -1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import seeds
from ..core.errors import ConfigError, DataError, ModelError, UnseenSite
from ..core.net import BATCH_NORM, Net, Variables
from ..core.task import Batch, Loss, Metrics, Phase, Round, Site, Task, Work
from ..core.tree import Tensors
from ..data.augment import Transform
from ..data.batches import Budget, ClientData
from ..data.federation import Federation, Held
from ..data.recipes import Recipe
from ..engines.base import Adapts, adapted
from .score import Method
from .uncertainty import entropy, predicted

Rule = Literal["method", "norm", "entropy"]
Adapt = Literal["none", "auto", "method", "norm", "entropy"]
NORMS: tuple[type[nn.Module], ...] = (
    *(*BATCH_NORM, nn.modules.instancenorm._InstanceNorm),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)


def choose(asked: Adapt, method: Method, task: Task, *, alone: bool = False) -> Rule | None:
    """The rule that is asked for, refused where method or network cannot; `auto` is the method's own, else `norm`.

    `alone`: models that the sites have trained answer at a new one, from which a method's own rule does not start.
    """
    own = bool(method.phases(task, labelled=False)) and not alone and has_start(method, task, needed=asked == "method")
    norms = bool(measured_layers(task.net))
    if asked == "none":
        return None
    if asked == "method" and alone and method.phases(task, labelled=False):
        raise ConfigError(
            f"adapt is 'method', and method {method.name!r} adapts what a new site downloads, and here a model that a "
            f"site has trained answers; please use {'norm' if norms else 'none'!r}, or the model for a new site"
        )
    if asked == "method" and not own:
        raise ConfigError(
            f"adapt is 'method', and method {method.name!r} has no way of its own to adapt to a new site; "
            f"please use {'norm' if norms else 'none'!r}"
        )
    if asked in ("norm", "auto") and not (norms or (own and asked == "auto")):
        raise ModelError(
            f"adapt is {asked!r}, and the network has no BatchNorm layer whose statistics could be measured anew; "
            "choose a network that has some, such as 'small-cnn', or set adapt = 'none'."
        )
    if asked == "entropy" and not scales(task.net):
        raise ModelError(
            "adapt is 'entropy', and the network has no normalisation layer whose scales could be trained; choose "
            "a network that has some, such as 'small-cnn', or set adapt = 'none'."
        )
    return asked if asked != "auto" else "method" if own else "norm"


def has_start(method: Method, task: Task, *, needed: bool) -> bool:
    """Whether the method has a model for a new site at all: better known, or if `needed` refused, now than later."""
    try:
        method.model_for(task, method.send(task, method.init_server(task), None), None)
    except UnseenSite:
        if needed:
            raise
        return False
    except Exception:
        if len(method.stages()) == 1:
            raise  # else its server may have nothing to send before the earlier stages
    return True


def images_for(federation: Federation, held: Held) -> Held:
    """What an unseen site adapts to: images set aside for it, or those that are scored themselves."""
    return next((a for a in federation.adapt if a.site == held.site and len(a.labels)), held)


def enough(held: Held) -> None:
    """Refuse a site whose images are too few to measure anything."""
    if len(held.labels) < 2:
        raise DataError(
            f"site {held.site}: found {len(held.labels)} image to adapt to, expected at least two; give more, or set "
            "adapt = 'none'."
        )


def measured_layers(net: Net) -> tuple[str, ...]:
    """The BatchNorm layers that keep running statistics."""
    kept = ((name, m) for name, m in net.module.named_modules() if isinstance(m, BATCH_NORM))
    return tuple(name for name, m in kept if getattr(m, "running_mean", None) is not None)


def scales(net: Net) -> frozenset[str]:
    """The parameters of normalisation layers."""
    return net.under(*NORMS) & {name for name, _ in net.module.named_parameters()}


def hidden(labels: Tensor) -> Tensor:
    """As many, none of them told."""
    return torch.full_like(labels, -1)


@dataclass(frozen=True)
class Adapter:
    """Adapts models to a site, each time from the same start; `lr` and `budget` are those of the training steps."""

    rule: Rule
    budget: Budget
    lr: float
    transform: Transform
    seed: int

    def __call__(self, method: Method, task: Task, start: Any, held: Held) -> Variables:
        """The adapted model; `start` is what a new site downloads for the rule `method`, else a model."""
        enough(held)
        once = Budget(self.budget.batch, epochs=1, steps=0)
        if self.rule == "method":
            return self._run("own", method, task, start, held, self.budget)
        measures = bool(measured_layers(task.net))
        model: Variables = self._run("norm", Norm(), task, start, held, once) if measures else start
        if self.rule == "entropy":
            model = self._run("entropy", Entropy(method), task, model, held, self.budget)
            model = self._run("norm again", Norm(), task, model, held, once) if measures else model
        return model

    def _run(self, name: str, rule: Adapts, task: Task, start: Any, held: Held, budget: Budget) -> Variables:
        recipe = self.transform.recipe
        still = replace(self.transform, recipe=Recipe(size=recipe.size, normalise=recipe.normalise))
        site = ClientData(held.site, held.pictures, hidden(held.labels), budget, still)
        seed = seeds.derive(self.seed, "adapt", name, held.site)
        round = Round(0, 1, self.lr, site.steps(), site.examples, seeds.derive(seed, "train"))
        return adapted(rule, task, start, round, site, seed)


class Norm:
    """Measure BatchNorm's statistics; each step leaves those of all images so far."""

    def begin(self, task: Task, down: Variables, client: None, round: Round, site: Site) -> Work:
        """Nothing is counted yet."""
        zero = next(iter(down.params.values())).new_zeros((), dtype=torch.float64)
        none = {name: zero for name in measured_layers(task.net)}
        return Work(down, down, None, round, aux={"count": dict(none), "sum": dict(none), "squares": dict(none)})

    def phases(self, task: Task, labelled: bool) -> Sequence[Phase]:
        """One pass."""
        return (Phase("norm", trains=frozenset(), step=_measure),)


def _measure(task: Task, work: Work, batch: Batch) -> tuple[Work, Metrics]:
    layers = measured_layers(task.net)
    with torch.no_grad(), _norms_alone_train(task.net.module):
        out = task.net(work.model, batch.x, train=True, taps=layers)
    sums: dict[str, Tensors] = {"count": {}, "sum": {}, "squares": {}}
    buffers = dict(out.buffers)
    for name in layers:
        x = out.taps[name].double().transpose(0, 1).flatten(1)
        for key, value in (("count", x.new_tensor(x.shape[1])), ("sum", x.sum(1)), ("squares", x.square().sum(1))):
            sums[key][name] = work.aux[key][name] + value
        n, mean = sums["count"][name], sums["sum"][name] / sums["count"][name]
        var = (sums["squares"][name] / n - mean.square()).clamp(min=0) * n / (n - 1).clamp(min=1)
        for key, value in (("running_mean", mean), ("running_var", var)):
            buffers[f"{name}.{key}"] = value.to(buffers[f"{name}.{key}"].dtype)
    return work._replace(model=Variables(work.model.params, buffers), aux=sums), {}


@contextmanager
def _norms_alone_train(module: nn.Module) -> Iterator[None]:
    """BatchNorm normalises by the batch; dropout and all else is as in evaluation."""
    module.eval()
    for inner in module.modules():
        inner.train() if isinstance(inner, BATCH_NORM) else None
    module.training = True  # so that `Net` leaves the modes as they are
    try:
        yield
    finally:
        module.eval()


@dataclass(frozen=True)
class Entropy:
    """Make the method's own answers surer by scales and shifts alone."""

    method: Method

    def begin(self, task: Task, down: Variables, client: None, round: Round, site: Site) -> Work:
        """The model as it is."""
        return Work(down, down, None, round)

    def phases(self, task: Task, labelled: bool) -> Sequence[Phase]:
        """The budget."""
        return (Phase("entropy", trains=scales(task.net), step=self._step),)

    def _step(self, task: Task, work: Work, batch: Batch) -> tuple[Work, Metrics]:
        params = work.model.params
        free = {name: params[name] for name in params if name in scales(task.net)}
        objective: Callable[[Tensors], tuple[Tensor, Loss]] = partial(self._objective, task, work, batch)
        grads, loss = task.gradient(objective, free)
        free, opt = task.update(grads, work.opt, free, work.round.lr)
        model = Variables(params | free, work.model.buffers)
        return work._replace(model=model, opt=opt), {"entropy": loss.value}

    def _objective(self, task: Task, work: Work, batch: Batch, free: Tensors) -> tuple[Tensor, Loss]:
        model = Variables(work.model.params | free, work.model.buffers)
        answer, _ = self.method.predict(task, model, batch.x)
        value = entropy(predicted(answer).probabilities).mean()
        return value, Loss(value, {})
