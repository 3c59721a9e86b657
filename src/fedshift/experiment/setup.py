"""From a configuration to everything that a run needs; all checks that can be made before training are made here."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from .. import models
from ..core import seeds
from ..core.errors import ConfigError, DataError, ModelError
from ..core.net import BATCH_NORM, Net
from ..core.task import Rules, Task
from ..data import Dataset, federate, load
from ..data.augment import Transform
from ..data.batches import Budget, ClientData
from ..data.federation import Federation
from ..data.recipes import RECIPES
from ..engines import ENGINES, Engine
from ..engines.base import Method
from ..engines.loop import Plan, State
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


def set_up(config: Experiment, data: Dataset | None = None) -> Setup:
    """Build data, network, method and engine; `data` stands in for the named set, for data sets of one's own."""
    check_device(config)
    device, dtype = torch.device(config.device), torch.float64 if config.precision == "float64" else torch.float32
    exact = _set_precision(config)
    data = data or load(config.data.name, config.data.size, config.data.fit)
    federation = _federation(config, data, dtype, device)
    module = _network(config, data).to(device, dtype)
    net = Net(module, autocast=torch.bfloat16 if config.precision == "bf16" else None)
    _check_fit(config, net, federation)
    sites = federation.pooled() if config.method.pools else federation.train
    engine = ENGINES[config.engine]()
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
    f = config.federation
    plan = Plan(config.seed, f.rounds, f.participation, config.schedule, config.local.keep_optimizer)
    transform = sites[0].transform
    return Setup(
        config.method,
        task,
        engine,
        sites,
        plan,
        Evaluator(federation, transform, config.eval.batch, config.eval.unseen),
    )


def _set_precision(config: Experiment) -> bool:
    """Tell torch what a GPU may do; returns whether results are exact: the same bits whenever a run is repeated."""
    exact = config.precision in ("float32", "float64")
    if config.device == "cuda":
        # Read when CUDA starts: queues for many streams, and matrix products that do not depend on who else computes.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not exact
        # Kernels chosen by trying them are faster, and may be others the next time.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = not exact, exact
    return exact


def check_device(config: Experiment) -> None:
    """Refuse a device that is not there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', and torch finds no GPU on this machine; please use 'cpu'")


def _federation(config: Experiment, data: Dataset, dtype: torch.dtype, device: torch.device) -> Federation:
    local = config.local
    budget = Budget(local.batch, local.epochs, local.steps, local.sample, local.drop_last)
    transform = Transform(RECIPES[config.data.recipe], dtype)
    return federate(data, config.data, config.seed, budget, transform).to(device)


def _network(config: Experiment, data: Dataset) -> torch.nn.Module:
    with seeds.scope(seeds.derive(config.seed, "init")):
        module = models.build(config.model.name, data.image, len(data.classes), **config.model.options)
        return config.method.surgery(module)


def _check_fit(config: Experiment, net: Net, federation: Federation) -> None:
    """What would otherwise fail in the middle of a run, or silently mean something else."""
    if net.under(*BATCH_NORM):
        for site in federation.train:
            if min(site.examples, config.local.batch) < 2:
                raise DataError(
                    f"site {site.name}: found batches of one image, expected at least two, since network "
                    f"{config.model.name!r} has BatchNorm layers; raise local.batch, give the site more images, "
                    "or choose a network without BatchNorm."
                )
    elif "batchnorm" in config.method.card.needs:
        raise ModelError(
            f"method {config.method.name!r} works on BatchNorm layers, and network {config.model.name!r} has none; "
            "choose a network that has them, such as 'small-cnn'."
        )


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
