"""The program `fedshift`: its commands and how it ends. A command's module is imported when it is called."""

import argparse
import errno
import gc
import io
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from .. import __version__
from ..core.errors import FedshiftError
from ..core.memory import keep_memory
from ..report.records import ReportError

LISTS = ("methods", "models", "datasets", "presets", "engines", "runs", "settings")
METHODS_HELP = "names apart by commas, with settings in brackets: fedavg,'fedprox(mu=0.1)'"
LEAVE_OUT_HELP = "domains, each left out in its own runs (a+b: both at once); each: every one in turn; none"


class Stopped(KeyboardInterrupt):
    """The user ended the program; the message says what is safe and how to go on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 done in part, 2 refused, 130 stopped."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Read when torch loads: threads that wait must sleep. Spinning, they slow small networks down thirty times as
    # soon as another program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Read when CUDA starts: queues for many streams, and matrix products that do not depend on who else computes.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    keep_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a dash must not end the program on an ASCII terminal
    try:
        with _terminable():
            return _finished(_command(words))
    except BrokenPipeError:
        return _abandon_stdout(141)  # as a shell reports SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("fedshift: the disk is full; free some space and repeat the command.", file=sys.stderr)
        return _abandon_stdout(2)


def _command(words: list[str]) -> int:
    try:
        args = parser().parse_args(words)
    except SystemExit as end:
        return int(end.code or 0)
    args.words = shlex.join(["fedshift", *words])
    try:
        command = _imported(args.module)
        return int(getattr(command, args.call)(args))
    except (FedshiftError, ReportError) as error:
        if args.traceback:
            raise
        return _tell(args, error, 2)
    except KeyboardInterrupt as error:
        return _tell(args, error if isinstance(error, Stopped) else Stopped("stopped"), 130)


def _imported(module: str) -> Any:
    """A command's module. What importing leaves behind is there to stay: it is not searched for garbage ever again."""
    gc.disable()
    try:
        return import_module(f".{module}", __package__)
    finally:
        gc.freeze()
        gc.enable()


def _tell(args: argparse.Namespace, error: BaseException, code: int) -> int:
    """One sentence for people on stderr, and one line for machines if they asked for it."""
    print(f"fedshift: {error}", file=sys.stderr)
    if getattr(args, "json", False):
        print(json.dumps({"event": "error", "kind": type(error).__name__, "message": str(error)}))
    return code


def _finished(code: int) -> int:
    sys.stdout.flush()  # here, where a closed pipe or a full disk can still be answered
    return code


def _abandon_stdout(code: int) -> int:
    """Let nothing more be written to a stdout that failed, not even when the interpreter ends."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the program the way Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser("fedshift", description="Federated learning when the sites' data look different.")
    top.add_argument("--version", action="version", version=f"fedshift {__version__}")
    top.set_defaults(module="main", call="show_help", traceback=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    _add_compare(commands)
    _add_profile(commands)
    _add_looks(commands)
    _add_report(commands)
    _add_predict(commands)
    _add_data(commands)
    return top


def show_help(args: argparse.Namespace) -> int:
    """No command was given."""
    parser().print_help()
    return 0


def _add(commands: Any, name: str, where: str, text: str, *, out: str | None = "runs") -> argparse.ArgumentParser:
    """A command `module:function` with the options that most share."""
    module, call = where.split(":")
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(module=module, call=call)
    if out:
        made.add_argument("--out", default=out, metavar="DIR", help="folder that holds the runs (default: %(default)s)")
    made.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return made


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", nargs="?", metavar="CONFIG.toml", help="settings; without it, the defaults")
    command.add_argument(
        "--preset", metavar="NAME[:DATA]", help="a paper's whole protocol, as `fedshift list presets` shows them"
    )
    command.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="change settings, such as federation.rounds=50; `fedshift list settings` shows all",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="one JSON object per line on stdout")


def _add_machine(command: argparse.ArgumentParser) -> None:
    """What a file or --set names wins over these."""
    for name, what in (("engine", "fast, sequential, captured; `fedshift list engines` shows all"),
                       ("device", "cpu or cuda"), ("amp", "precision: float32, float64, tf32 or bf16"),
                       ("workers", "clients that train side by side on a CPU, a thread each")):  # fmt: skip
        command.add_argument(f"--{name}", default="auto", metavar="X", help=f"{what} (default: what suits the machine)")


def _add_run(commands: Any) -> None:
    run = _add(commands, "run", "run:run", "Run one experiment, or go on with it where it stopped.")
    _add_settings(run)
    _add_machine(run)
    run.add_argument("--fresh", action="store_true", help="start over, also if the run is finished")
    resume = _add(commands, "resume", "run:resume", "Go on with a run that was interrupted.")
    resume.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its name under --out")
    resume.add_argument("--json", action="store_true", help="one JSON object per line on stdout")


def _add_compare(commands: Any) -> None:
    text = "Compare methods on one protocol, one run after another; ends in tables and a report."
    _add_grid(_add(commands, "compare", "sweep:compare", text))
    text = "Compare methods on one or several protocols, with as many runs at once as the machine allows."
    sweep = _add(commands, "sweep", "sweep:sweep", text)
    _add_grid(sweep)
    sweep.add_argument(
        "--grid", action="append", default=[], metavar="KEY=VALUES",
        help="values of a setting, each in runs of its own, such as optimizer.lr=0.1,0.01; may be repeated",
    )  # fmt: skip
    sweep.add_argument("--datasets", metavar="LIST", help="each in runs of its own (default: as configured)")
    sweep.add_argument("--jobs", default="auto", metavar="N", help="runs at once (default: %(default)s)")
    sweep.add_argument("--retry-failed", action="store_true", help="try those again that failed before")
    sweep.add_argument(
        "--cpu-if-lost", action="store_true", help="if the GPU is lost, make what is left anew on the CPU"
    )


def _add_grid(command: argparse.ArgumentParser) -> None:
    _add_settings(command)
    _add_machine(command)
    command.add_argument("--methods", required=True, metavar="LIST", help=METHODS_HELP)
    command.add_argument("--leave-out", metavar="LIST", help=f"{LEAVE_OUT_HELP} (default: as configured)")
    command.add_argument("--seeds", metavar="LIST", help="such as 0,1,2 (default: as configured)")
    command.add_argument("--report", metavar="FILE.html", help="where the report goes (default: a folder under --out)")


def _add_profile(commands: Any) -> None:
    text = "Measure where the time of a round goes; nothing is kept but a table and a picture."
    profile = _add(commands, "profile", "profile:profile", text, out=None)
    _add_settings(profile)
    _add_machine(profile)
    profile.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds to measure (default: %(default)s)")
    profile.add_argument(
        "--warm-up", type=int, metavar="N", help="rounds before them (default: 1, or 2 where steps are recorded)"
    )
    profile.add_argument(
        "--out", default="profile.svg", metavar="FILE.svg", help="(default: %(default)s; .json beside it)"
    )


def _add_looks(commands: Any) -> None:
    listing = _add(commands, "list", "listing:listing", "List what there is.")
    listing.add_argument("what", choices=LISTS, metavar="|".join(LISTS))
    show = _add(commands, "show", "show:show", "Show a method's, data set's or network's card.", out=None)
    show.add_argument("name", metavar="NAME")
    doctor = _add(commands, "doctor", "doctor:doctor", "Check this machine, with a short training of its own.")
    doctor.add_argument("--json", action="store_true", help="one JSON object per line on stdout")


def _add_report(commands: Any) -> None:
    report = _add(commands, "report", "reporting:report", "Make a report from runs of one protocol.", out=None)
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, names under --in, or a comparison's folder"
    )
    report.add_argument(
        "--in",
        dest="folder",
        default="runs",
        metavar="DIR",
        help="folder that holds the runs (default: %(default)s)",
    )
    report.add_argument(
        "--out",
        default="report.html",
        metavar="FILE.html",
        help="(default: %(default)s; .md and .json beside it)",
    )


def _add_predict(commands: Any) -> None:
    text = "Ask a run's model about pictures, and see which of them it is too unsure of."
    predict = _add(commands, "predict", "predict:predict", text, out=None)
    predict.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its name under --in")
    predict.add_argument(
        "images", nargs="+", metavar="IMAGES", help="folders, archives, tables with a column 'path', or single pictures"
    )
    whose = predict.add_mutually_exclusive_group()
    whose.add_argument("--site", metavar="NAME", help="by that site's own model")
    whose.add_argument("--new", action="store_true", help="by the model for a site that took no part (the default)")
    predict.add_argument(
        "--adapt", choices=("none", "auto", "method", "norm", "entropy"), default="none", metavar="RULE",
        help="adapt the model to these pictures first, without labels: auto, method, norm or entropy",
    )  # fmt: skip
    predict.add_argument(
        "--flag", type=float, default=0.05, metavar="SHARE",
        help="share of the sites' own held-out pictures that would be flagged (default: %(default)s)",
    )  # fmt: skip
    predict.add_argument(
        "--in", dest="folder", default="runs", metavar="DIR", help="folder that holds the runs (default: %(default)s)"
    )
    predict.add_argument("--out", default="predictions.csv", metavar="FILE.csv", help="(default: %(default)s)")
    predict.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_data(commands: Any) -> None:
    text = "Get, check and look at data sets."
    data = commands.add_parser("data", help=text, description=text).add_subparsers(metavar="COMMAND", required=True)
    _add(data, "list", "data:listing", "List the data sets, and what of them is here.", out=None)
    get = _add(data, "get", "data:get", "Download a data set and import it; goes on where it stopped.", out=None)
    get.add_argument("name", metavar="NAME")
    found = _add(data, "import", "data:import_", "Find a data set in files that you have; nothing is copied.", out=None)
    found.add_argument("name", metavar="NAME", help="as in `fedshift data list`, or a new name for data of your own")
    found.add_argument("path", metavar="PATH", help="a folder, zip, tar, .npz, .csv or .parquet")
    verify = _add(data, "verify", "data:verify", "Check a copy: missing, damaged and repeated pictures.", out=None)
    verify.add_argument("name", metavar="NAME")
    verify.add_argument("--json", action="store_true", help="one JSON object on stdout")
    show = _add(data, "show", "data:show", "Draw a contact sheet; tell how far the domains are apart.", out=None)
    show.add_argument("name", metavar="NAME")
    show.add_argument("--out", metavar="FILE.png", help="the contact sheet (default: NAME.png)")
    show.add_argument("--size", type=int, default=64, metavar="N", help="pixels a side (default: %(default)s)")
    cache = _add(data, "cache", "data:cache", "List the decoded pictures that are kept, or remove them.", out=None)
    cache.add_argument("--clear", nargs="?", const="", metavar="NAME", help="remove those of a data set, or all")
