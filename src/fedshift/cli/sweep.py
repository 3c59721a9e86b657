"""`fedshift sweep` and `fedshift compare`: many runs of one or several protocols, ending in tables and reports."""

import hashlib
import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from ..core.errors import ConfigError
from ..data import Dataset
from ..experiment import strict
from ..experiment.config import Experiment
from ..experiment.crew import Alone, Crew, Gpu, Threads
from ..experiment.processes import Processes, cores
from ..experiment.room import gpu_room
from ..experiment.runs import Folder
from ..experiment.setup import check_device
from ..experiment.sweep import Entry, News, Plan, Spare, Sweep
from ..report import Comparison, by_protocol, load, write_report
from ..report.comparison import protocols
from ..report.records import outcome
from ..report.tables import data, notes, summary
from .choosing import asked_workers, workers
from .console import numbers, say
from .display import Display, Info, sweep_display
from .driving import method_label, opening, pictures
from .driving import shared as common
from .main import Stopped
from .planning import planned

Share = Callable[[Entry], tuple[int, int]]  # a run's workers and threads


def compare(args: Namespace) -> int:
    """A sweep whose runs take turns, each with all threads, and which tries again what failed."""
    args.datasets, args.grid, args.jobs, args.retry_failed, args.cpu_if_lost = None, [], "1", True, False
    return sweep(args)


def sweep(args: Namespace) -> int:
    """All combinations, as many at once as the machine allows; finished runs are not repeated."""
    plan = Plan(planned(args), Path(args.out), retry=args.retry_failed)
    for entry in plan:
        asked_workers(entry.config, _asked(args))
    sets = Sets(plan)  # without them nothing needs to be tried
    todo = len(plan.unfinished)
    work = Sweep(plan, _crew(args, plan, sets), _folder(args, plan) / "sweep.json", _spare(args))
    with sweep_display(args.json) as show:
        share = partial(_share, args, sets, work)
        show(_start(plan, work, args, share))
        teller = Teller(plan, share)
        try:
            with closing(iter(work)) as news:
                for event in (event for it in news for event in teller(it)):
                    show(event)
        except KeyboardInterrupt:
            raise _stopped(plan, args) from None
        _report(args, plan, show)
    return _ending(args, plan, work, todo)


class Sets:
    """The data sets of a plan, each made or decoded once, before the first run."""

    def __init__(self, plan: Plan) -> None:
        self._here: dict[tuple[str, int, str], Dataset] = {}
        for entry in plan.unfinished:
            if _key(entry.config) not in self._here:
                self._here[_key(entry.config)] = pictures(entry.config)

    def here(self, config: Experiment) -> Dataset:
        """In this process's memory, or mapped into it."""
        return self._here[_key(config)]


def _key(config: Experiment) -> tuple[str, int, str]:
    return config.data.name, config.data.size, config.data.fit


def _crew(args: Namespace, plan: Plan, sets: Sets) -> Crew:
    """Threads on a GPU; on a CPU processes of one thread, or one run at a time with all threads."""
    jobs, todo = _jobs(args.jobs), plan.unfinished
    devices = {entry.config.device for entry in plan}
    if len(devices) > 1:
        raise ConfigError("device: found both cpu and cuda in one sweep, expected one; make a sweep for each.")
    precisions = sorted({entry.config.precision for entry in todo})
    if devices == {"cuda"} and len(precisions) > 1:  # torch has one switch for all threads of a process
        raise ConfigError(
            f"precision: found {' and '.join(precisions)} in one sweep on a GPU, expected one; make a sweep for each."
        )
    if devices == {"cuda"} and todo:
        check_device(todo[0].config)
        first = next((e.config for e in todo if not e.config.method.pools), todo[0].config)
        fitting = jobs or gpu_room(first, sets.here(first), torch.cuda.mem_get_info()[0])
        return Threads(min(fitting, len(todo)), sets.here, Gpu())
    fitting = min(jobs or cores(), len(todo))
    if fitting > 1 and asked_workers(todo[0].config, _asked(args)) > 1:
        raise ConfigError(
            f"--workers: found {args.workers} and {fitting} runs at once, each of one thread; set --jobs 1, or leave "
            "--workers out."
        )
    return Processes(fitting) if fitting > 1 else Alone(sets.here, partial(_workers, args, sets))


def _jobs(text: str) -> int:
    """How many at once; 0 for `auto`."""
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise ConfigError(f"--jobs: found {text!r}, expected a whole number from 1, or auto; write --jobs 2.")
    return 0 if text == "auto" else int(text)


def _asked(args: Namespace) -> str | None:
    return vars(args).get("workers")


def _workers(args: Namespace, sets: Sets, config: Experiment, folder: Folder) -> int:
    return workers(config, folder, sets.here(config), _asked(args))


def _share(args: Namespace, sets: Sets, work: Sweep, entry: Entry) -> tuple[int, int]:
    """Workers and threads of a run that is to be done; 0: all that torch has here."""
    if isinstance(work.crew, Alone) and entry.state not in ("done", "failed"):
        with suppress(Exception):  # what is wrong with it is told when it is tried
            return _workers(args, sets, entry.config, entry.folder), 0
    return 1, int(isinstance(work.crew, Processes))


def _spare(args: Namespace) -> Spare | None:
    if not args.cpu_if_lost:
        return None
    return Spare(lambda: Processes(cores()), _on_cpu)


def _on_cpu(config: Experiment) -> Experiment:
    """As the program would choose for a CPU; tf32 and bf16 are a GPU's, and an engine for reference is kept."""
    precision: Literal["float64", "float32"] = "float64" if config.precision == "float64" else "float32"
    fastest = "sequential" if precision == "float64" else "fast"
    engine = config.engine if config.engine in ("wire", "debug", "sequential") else fastest
    return replace(config, device="cpu", engine=engine, precision=precision)


def _start(plan: Plan, work: Sweep, args: Namespace, share: Share) -> Info:
    """What a display must know before the first run: everything that is planned, and by how many at once."""
    said = common(plan.entries[0].config, Path(args.out), *share((plan.unfinished or plan.entries)[0]))
    for key in ("data", "model", "engine"):
        said[key] = ", ".join(dict.fromkeys(str(common(e.config, Path(args.out))[key]) for e in plan))
    names = protocols([strict.dump(entry.config) for entry in plan])
    rows = [{**_words(e), "protocol": name, "state": e.state} for e, name in zip(plan, names, strict=True)]
    return {
        "event": "start", "runs": len(plan), "text": _counted(plan, len(set(names))), "at_once": work.room, **said,
        "plan": rows,
    }  # fmt: skip


def _words(entry: Entry) -> Info:
    config = entry.config
    what = {"method": method_label(config.method), "left_out": list(config.data.left_out), "seed": config.seed}
    return {"run": entry.name, **what, "rounds": config.federation.rounds}


def _counted(plan: Plan, kinds: int) -> str:
    def count(values: Iterable[object], noun: str) -> str:
        number = len(set(values))
        return f"{number} {noun}{'' if number == 1 else 's'}"

    configs = [entry.config for entry in plan]
    parts = [
        count((c.method for c in configs), "method"),
        count((c.data.left_out for c in configs), "choice") + " of left-out domains",
    ]
    parts += [f"{kinds} protocols"] if kinds > 1 else []
    return ", ".join([*parts, count((c.seed for c in configs), "seed")])


class Teller:
    """What happens to runs, as events for a display."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._plan, self._share = plan, share
        self._images: dict[str, int] = {}

    def __call__(self, news: News) -> Iterator[Info]:
        """The events of one piece of news."""
        entry, run = news.entry, {"run": news.entry.name}
        if news.kind == "start":
            yield self._began(entry)
        elif news.kind == "spare":
            yield {"event": "moved", **run, "from": news.reason}
        elif news.kind == "round" and entry.last:
            yield {"event": "round", **run, "images": self._visits(entry), **entry.last._asdict()}
        elif news.kind == "done":
            if entry.last is None:  # it was finished before
                yield self._began(entry)
            yield {"event": "result", **run, "folder": str(entry.folder.path), **outcome(load(entry.folder.path))}
        elif news.kind in ("failed", "retry"):
            event = "error" if news.kind == "failed" else "retry"
            yield {"event": event, **run, "message": news.reason, "attempts": entry.attempts}
        else:
            yield {"event": "notice", **run, "message": news.reason}

    def _began(self, entry: Entry) -> Info:
        place = {"number": self._plan.entries.index(entry) + 1, "of": len(self._plan)}
        return {"event": "start", **place, **opening(entry.config, entry.folder, *self._share(entry))}

    def _visits(self, entry: Entry) -> int:
        """Images that a round of this run trains on."""
        if entry.name not in self._images:
            split = json.loads((entry.folder.path / "split.json").read_text(encoding="utf-8"))
            local, sizes = entry.config.local, list(split["images"]["train"].values())
            each = [local.steps * local.batch if local.steps else local.epochs * local.sample * n for n in sizes]
            self._images[entry.name] = round(entry.config.federation.participation * sum(each))
        return self._images[entry.name]


def _folder(args: Namespace, plan: Plan) -> Path:
    """Named after the runs, so that the same sweep writes the same files."""
    names = "".join(sorted(entry.name for entry in plan))
    return Path(args.out) / f"{args.call}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _report(args: Namespace, plan: Plan, show: Display) -> None:
    """Tables and a report of each protocol, since only what differs in nothing else stands in one table."""
    runs = [load(entry.folder.path) for entry in plan.having("done")]
    file = Path(args.report) if args.report else _folder(args, plan) / "report.html"
    groups = by_protocol(runs)
    for name, comparison in groups.items():
        folder = file.parent / re.sub(r"[^\w.=+-]+", "_", name) if len(groups) > 1 else file.parent
        _report_one(comparison, name, folder / file.name, show, args.json)


def _report_one(comparison: Comparison, name: str, file: Path, show: Display, as_json: bool) -> None:
    tables = summary(comparison)
    page, said = write_report(comparison, file)[0], notes(comparison)
    told = {"report": str(page), "protocol": name, "tables": [data(table) for table in tables], "notes": said}
    show({"event": "result", **told})
    if as_json:
        return
    say()
    for table in tables:
        numbers(table._replace(title=f"{name}: {table.title}") if name else table)
    for note in said:
        say(note)
    say(f"Report: {page}", "bold")


def _ending(args: Namespace, plan: Plan, work: Sweep, todo: int) -> int:
    """What did not come to its end, and what to do about it."""
    failed, left = plan.having("failed"), plan.having("waiting")
    if args.json:
        return 1 if failed or left else 0
    if failed:
        say(f"{len(failed)} of {len(plan)} runs failed:", "bold red")
        for entry in failed:
            say(f"  {entry.name}: {entry.reason}")
        if args.call == "sweep":
            say("To try them again: --retry-failed.")
    if left:
        say(f"{len(left)} of {len(plan)} runs were not done: the device was lost ({work.lost}).", "bold red")
        say(f"What is finished is safe in {args.out}. To go on, repeat: {args.words}")
    return 1 if failed or left else 0


def _stopped(plan: Plan, args: Namespace) -> Stopped:
    done, begun = len(plan.having("done")), sum(entry.last is not None for entry in plan.having("waiting"))
    under_way = f", and the {begun} under way up to their last rounds" if begun else ""
    return Stopped(
        f"stopped; {done} of {len(plan)} runs are finished{under_way}, safe in {args.out}.\n"
        f"To go on, repeat: {args.words}"
    )
