"""From a configuration to everything that a run needs; all checks that can be made before training are made here."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..core import seeds, state
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DataError, ModelError
from ..core.net import BATCH_NORM, Net
from ..core.task import Round, Rules, Task
from ..data import Dataset, federate, load
from ..data.augment import Transform
from ..data.batches import Budget, ClientData
from ..data.federation import Federation
from ..data.recipes import RECIPES
from ..engines import ENGINES, Engine
from ..engines.base import Method, remember
from ..engines.loop import Plan, State, first_contact
from ..eval.adapt import Adapt, Adapter, choose, enough, has_start, images_for
from ..eval.evaluate import Evaluator
from .config import Experiment


@dataclass(frozen=True)
class Setup:
    """A run, ready to start."""

    method: Method
    task: Task
    engine: Engine
    sites: tuple[ClientData, ...]
    plan: Plan
    evaluator: Evaluator

    @property
    def rounds(self) -> int:
        """Rounds of all stages."""
        return sum(self.plan.rounds if s.rounds is None else s.rounds for s in self.method.stages())

    def start(self) -> State:
        """The state before the first round."""
        return State(self.method.init_server(self.task))


def set_up(config: Experiment, data: Dataset | None = None, workers: int = 1, threads: int = 0) -> Setup:
    """Build data, network, method and engine; `data` stands in for the named set, for data sets of one's own.

    With `workers`, an engine that can trains so many clients side by side, each on one thread; else a step takes
    `threads`, or all there are.
    """
    check_device(config)
    device, dtype = torch.device(config.device), torch.float64 if config.precision == "float64" else torch.float32
    exact = _set_precision(config)
    data = data or load(config.data.name, config.data.size, config.data.fit)
    federation = _federation(config, data, dtype, device)
    build = _networks(config, data, dtype, device)
    net = Net(build(), autocast=torch.bfloat16 if config.precision == "bf16" else None)
    _check_fit(config, net)
    sites = federation.pooled() if config.method.pools else federation.train
    engine = ENGINES[config.engine]()
    engine.use(workers, threads)
    task = engine.task(
        net,
        config.optimizer,
        sites=tuple(site.name for site in sites),
        examples=tuple(site.examples for site in sites),
        classes=len(data.classes),
        rules=Rules(config.federation.weights, config.federation.buffers),
        seed=config.seed,
        exact=exact,
    )
    _check_sites(config, task, sites)
    plan = _plan(config, task, build)
    evaluator = replace(_evaluator(config, task, federation, sites[0].transform), spread=engine.spread)
    return Setup(config.method, task, engine, sites, plan, evaluator)


def _evaluator(config: Experiment, task: Task, federation: Federation, transform: Transform) -> Evaluator:
    e = config.eval
    if federation.unseen and e.unseen == "global":
        has_start(config.method.stages()[-1], task, needed=True)
    adapter = adapter_for(config, task, transform, e.adapt, alone=e.unseen in ("sites", "ensemble"))
    for held in federation.unseen if adapter else ():
        enough(images_for(federation, held))
    return Evaluator(federation, transform, e.batch, e.unseen, e.uncertainty, adapter)


def adapter_for(
    config: Experiment, task: Task, transform: Transform, asked: Adapt, *, alone: bool = False
) -> Adapter | None:
    """How models adapt to a new site, as it is asked for; `alone`: they are models that the sites have trained."""
    rule, e = choose(asked, config.method.stages()[-1], task, alone=alone), config.eval
    if rule is None:
        return None
    budget = Budget(config.local.batch, e.adapt_epochs, e.adapt_steps)
    share = 1.0 if rule == "method" else e.adapt_rate  # a method's own rule knows its rate
    return Adapter(rule, budget, share * config.optimizer.lr, transform, config.seed)


def _set_precision(config: Experiment) -> bool:
    """Tell torch what a GPU may do; returns whether results are exact: the same bits whenever a run is repeated."""
    exact = config.precision in ("float32", "float64")
    if config.device == "cuda":
        # Read when CUDA starts: queues for many streams, and matrix products that do not depend on who else computes.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not exact
        # Kernels chosen by trying them are faster, and may be others the next time. Trying costs a second for each
        # shape and thread: what records steps does it for these alone.
        torch.backends.cudnn.benchmark = not exact and config.engine == "sequential"
        torch.backends.cudnn.deterministic = exact
    return exact


def check_device(config: Experiment) -> None:
    """Refuse a device that is not there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', and torch finds no GPU on this machine; please use 'cpu'")


def _federation(config: Experiment, data: Dataset, dtype: torch.dtype, device: torch.device) -> Federation:
    local = config.local
    budget = Budget(local.batch, local.epochs, local.steps, local.sample, local.drop_last)
    transform = Transform(RECIPES[config.data.recipe], dtype, ENGINES[config.engine].channels_last)
    return federate(data, config.data, config.seed, budget, transform).to(device)


def _networks(config: Experiment, data: Dataset, dtype: torch.dtype, device: torch.device) -> Callable[..., nn.Module]:
    """The network, with the run's initial weights or, for a site's name, with that site's own."""
    image, classes = data.image, len(data.classes)

    def build(*site: str) -> nn.Module:
        with seeds.scope(seeds.derive(config.seed, "init", *site)):
            module = models.build(config.model.name, image, classes, **config.model.options)
            made = config.method.surgery(module).to(device, dtype)
        made.built_as = f"{config.model}|{config.method}|{image}|{classes}"  # type: ignore[assignment]
        for p in made.parameters() if ENGINES[config.engine].channels_last else ():
            p.data = p.data.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p.data
        return made

    return build


def _plan(config: Experiment, task: Task, build: Callable[[str], nn.Module]) -> Plan:
    f, after_local = config.federation, config.eval.point == "after_local"
    initial = None if f.common_init else build
    if initial is not None:
        _check_initial(config.method, task, initial(task.sites[0]))
    keep = config.local.keep_optimizer
    return Plan(config.seed, f.rounds, f.participation, config.schedule, keep, initial, after_local)


def _check_initial(method: Method, task: Task, own: nn.Module) -> None:
    """Refuse initial weights of a site's own where a method would not look at them."""
    stage = method.stages()[0]
    down = stage.send(task, stage.init_server(task), 0)
    common = state.flatten({"down": down, "memory": remember(stage, task, down, None, None)})
    mine = state.flatten(dict(zip(("down", "memory"), first_contact(stage, task, own, 0), strict=True)))
    if all(torch.equal(t, mine[k]) for k, t in common.items()):
        raise ConfigError(
            f"federation.common_init is false, and the sites of method {method.name!r} do not start from the network's "
            "own initial weights; please set common_init = true"
        )


def _check_fit(config: Experiment, net: Net) -> None:
    """Refuse a network that a method cannot work on."""
    if "batchnorm" in config.method.card.needs and not net.under(*BATCH_NORM):
        raise ModelError(
            f"method {config.method.name!r} works on BatchNorm layers, and network {config.model.name!r} has none; "
            "choose a network that has them, such as 'small-cnn'."
        )


def _check_sites(config: Experiment, task: Task, sites: Sequence[ClientData]) -> None:
    """Refuse a site whose images are too few, whenever it would first take part."""
    chosen = _chosen_rows(config, task, sites)
    for site, rows in zip(sites, chosen, strict=True) if task.net.under(*BATCH_NORM) else ():
        drawn = site.budget.share(site.examples) if rows is None else len(rows)
        if min(drawn, config.local.batch) < 2:
            raise DataError(
                f"site {site.name}: found batches of one image, expected at least two, since network "
                f"{config.model.name!r} has BatchNorm layers; raise local.batch or local.sample, give the site more "
                "images, or choose a network without BatchNorm."
            )


def _chosen_rows(config: Experiment, task: Task, sites: Sequence[ClientData]) -> list[Tensor | None]:
    """Which of a site's images a method chooses for a first round: it refuses a site from which it cannot choose."""
    method = config.method
    if len(method.stages()) > 1 or type(method).begin is Algorithm.begin:
        return [None] * len(sites)
    server, rows = method.init_server(task), list[Tensor | None]()
    for i, site in enumerate(sites):
        down = method.send(task, server, i)
        info = Round(0, config.federation.rounds, task.optimizer.lr, site.steps(), site.examples, config.seed)
        with seeds.scope(info.seed):
            client = remember(method, task, down, None, None).client
            rows.append(method.begin(task, down, client, info, site).rows)
    return rows


def versions() -> dict[str, Any]:
    """What a record was made with."""
    import platform

    import numpy

    from .. import __version__

    return {
        "fedshift": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
