"""What `auto` means on this machine: engine, device and precision before they become part of a run, and workers."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch

from ..core.errors import ConfigError
from ..data import Dataset
from ..engines.captured import LANES
from ..engines.workers import THREADS
from ..experiment.config import Experiment
from ..experiment.processes import cores
from ..experiment.room import cpu_workers, in_flight
from ..experiment.runs import Folder
from ..methods import METHODS

Settings = Mapping[str, Any]
MODERN = (8, 0)  # the first GPUs that compute in bf16 and tf32


def resolved(settings: Settings, args: Namespace, *, alone: bool = True) -> dict[str, Any]:
    """The settings with engine, device and precision; what a file, a preset or --set names stays as it is.

    Runs that are compared, not `alone`, get one engine whatever their methods.
    """
    wanted = {"engine": "engine", "device": "device", "precision": "amp"}
    asked = {key: vars(args).get(option) for key, option in wanted.items()}
    found = {key: value for key, value in asked.items() if value not in (None, "auto")} | dict(settings)
    if "auto" not in asked.values():
        return found
    gpu = torch.cuda.is_available()
    found.setdefault("device", "cuda" if found.get("engine") == "captured" or (gpu and _for_gpu(found)) else "cpu")
    if "precision" not in found:
        found["precision"] = _precision(found)
    if "engine" not in found:
        found["engine"] = "sequential" if because(found, alone) else "captured" if found["device"] == "cuda" else "fast"
    return found


def because(settings: Settings, alone: bool = True) -> str:
    """Why the plain reference is chosen where there is a faster engine, or nothing."""
    method = settings.get("method", {})
    name = method.get("name", "") if isinstance(method, Mapping) else method
    if alone and settings["device"] == "cuda" and name in METHODS and name in METHODS[name].card.unrecorded:
        return f"the steps of {name} cannot be recorded"
    if settings["device"] == "cpu" and settings["precision"] == "float64":
        return "float64 asks for the order of sums too"
    return ""


def _for_gpu(settings: Settings) -> bool:
    return settings.get("engine") != "fast"


def _precision(settings: Settings) -> str:
    """The fastest that the GPU was made for; whoever names a reference engine compares numbers."""
    if settings["device"] == "cpu" or settings.get("engine", "captured") != "captured":
        return "float32"
    return "bf16" if torch.cuda.is_available() and torch.cuda.get_device_capability() >= MODERN else "float32"


def asked_workers(config: Experiment, asked: str | None) -> int:
    """As many as are asked for, 0 for `auto`; refused where the run's engine has none."""
    if asked in (None, "auto"):
        return 0
    if not asked.isdecimal() or not int(asked):
        raise ConfigError(f"--workers: found {asked!r}, expected a whole number from 1, or auto; write --workers 2.")
    if int(asked) > 1 and config.engine != "fast":
        raise ConfigError(
            f"--workers: found {asked} and engine {config.engine!r}, expected engine 'fast', the one that has "
            "workers; write --engine fast, or leave --workers out."
        )
    return int(asked)


def workers(config: Experiment, folder: Folder, data: Dataset, asked: str | None) -> int:
    """Clients side by side: as asked for, as the run began, or as many as pay."""
    began = folder.began()
    if count := asked_workers(config, asked):
        if count > 1 and (threads := began.get("threads", 1)) > 1:
            raise ConfigError(
                f"--workers: found {asked} for a run that began with {threads} threads in a step, expected 1, since "
                "workers have one each and the run would end in other bits; leave --workers out, or begin anew by "
                "--fresh."
            )
        return count
    if began:
        return int(began.get("workers", 1))
    return cpu_workers(config, data, min(cores(), THREADS.all)) if asked else 1


def flying(config: Experiment, data: Dataset) -> int:
    """Clients in flight on a GPU, where there are any and memory allows."""
    return min(LANES, in_flight(config, data)) if config.engine == "captured" else 0
