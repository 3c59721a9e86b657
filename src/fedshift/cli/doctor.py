"""`fedshift doctor`: can this machine do the work, and if not, what is to be done."""

import json
import os
import platform
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from .. import __version__
from ..core.errors import FedshiftError
from .console import say

if TYPE_CHECKING:
    from torch import Tensor

GIB = 2**30
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


class Finding(NamedTuple):
    """One line: how it stands, what was found, what to do."""

    state: Literal["ok", "warning", "problem"]
    what: str
    found: str
    advice: str = ""


def doctor(args: Namespace) -> int:
    """Print all findings; 1 if one is a problem."""
    worst = 0
    for finding in findings(Path(args.out)):
        worst = max(worst, int(finding.state == "problem"))
        advice = f"; {finding.advice}" if finding.advice else ""
        if args.json:
            print(json.dumps({"event": "check", **finding._asdict()}), flush=True)
        else:
            say(f"{finding.state:<8}  {finding.what:<12}  {finding.found}{advice}", STYLES[finding.state])
    return worst


def findings(out: Path) -> Iterator[Finding]:
    """All checks, cheap ones first."""
    cache = Path(os.environ.get("FEDSHIFT_CACHE") or Path.home() / ".cache" / "fedshift")
    yield Finding("ok", "fedshift", __version__)
    yield python()
    yield torch_version()
    yield cores()
    yield memory()
    yield gpu()
    yield display()
    yield from disk("runs", out, "problem", "give another folder by --out")
    yield from disk("cache", cache, "warning", "data sets are made anew each time; set FEDSHIFT_CACHE to a folder")
    yield self_test()


def python() -> Finding:
    """The interpreter."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    old = sys.version_info < (3, 11)
    return Finding("problem", "Python", found, "install 3.11 or later") if old else Finding("ok", "Python", found)


def torch_version() -> Finding:
    """PyTorch and NumPy."""
    import numpy
    import torch

    found = f"{torch.__version__}, numpy {numpy.__version__}"
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)
    return Finding("problem", "torch", found, "install 2.11 or later") if old else Finding("ok", "torch", found)


def cores() -> Finding:
    """Processor cores, and the threads that torch computes with."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    found = f"{usable} usable, torch computes with {threads} thread{'' if threads == 1 else 's'}"
    if threads > usable:
        return Finding("warning", "cores", found, f"set OMP_NUM_THREADS={usable}")
    return Finding("ok", "cores", found)


def memory() -> Finding:
    """Memory that is free for use, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        free, whole = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, ValueError, KeyError):
        return Finding("ok", "memory", "unknown on this system")
    found = f"{free / GIB:.1f} GiB free of {whole / GIB:.1f}"
    return Finding("warning", "memory", found, "close other programs") if free < GIB else Finding("ok", "memory", found)


def gpu() -> Finding:
    """A GPU that torch can use."""
    import torch

    if torch.cuda.is_available():
        return Finding("ok", "GPU", f"{torch.cuda.get_device_name()}; runs use it")
    return Finding("ok", "GPU", "none that torch can use; runs use the processor")


def display() -> Finding:
    """The library for the moving display."""
    if find_spec("rich"):
        return Finding("ok", "display", "rich is installed")
    return Finding("warning", "display", "rich is not installed, so progress is plain lines", "pip install rich")


def disk(what: str, folder: Path, bad: Literal["warning", "problem"], advice: str) -> Iterator[Finding]:
    """Whether a folder can be written, and how much fits."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"fedshift")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        yield Finding(bad, what, f"{folder} cannot be written ({error.strerror})", advice)
        return
    found = f"{folder} can be written, {free / GIB:.1f} GiB free"
    yield Finding("warning", what, found, "free some space") if free < GIB else Finding("ok", what, found)


def self_test() -> Finding:
    """Two rounds of FedAvg on random images, by two engines that must agree to the last bit."""
    import torch

    try:
        _train("sequential")  # what is loaded at first use is not what is measured
        begin = perf_counter()
        plain, wired = (_train(engine) for engine in ("sequential", "wire"))
    except (FedshiftError, RuntimeError) as error:
        return Finding("problem", "self-test", f"training failed: {error}", "reinstall torch and fedshift")
    if not all(torch.equal(plain[name], wired[name]) for name in plain):
        return Finding("problem", "self-test", "two engines gave different results", "reinstall torch and fedshift")
    spent = f"{perf_counter() - begin:.2f} s"
    return Finding("ok", "self-test", f"trained two rounds twice, bit for bit the same, in {spent}")


def _train(engine: str) -> "dict[str, Tensor]":
    from ..core import tree
    from ..experiment import strict
    from ..experiment.config import Experiment
    from ..experiment.setup import set_up
    from ..testing import tiny_data, trajectory

    wanted = {"engine": engine, "federation": {"rounds": 2}, "local": {"batch": 8}, "data": {"left_out": ["domain0"]}}
    *_, last = trajectory(set_up(strict.build(Experiment, wanted), tiny_data()))
    return dict(tree.leaves(last.server))
