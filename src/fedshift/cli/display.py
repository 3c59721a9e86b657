"""What a run looks like while it runs: lines, or JSON; `live` adds the picture for terminals."""

import json
from contextlib import AbstractContextManager
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

from ..report.records import sites_mean, unseen_mean
from .console import terminal

Info = dict[str, Any]


class Display(Protocol):
    """Is told what happens."""

    def __call__(self, event: Info) -> None:
        """Show one event."""
        ...


def display(as_json: bool) -> AbstractContextManager[Display]:
    """The display of one run that suits stdout."""
    if as_json:
        return Json()
    console = terminal()
    if console is None:
        return Plain()
    from .live import Live

    return Live(console)


def sweep_display(as_json: bool) -> AbstractContextManager[Display]:
    """The display of many runs that suits stdout."""
    if as_json:
        return Json()
    console = terminal()
    if console is None:
        from .many import Lines

        return Lines()
    from .board import Board

    return Board(console)


class Json:
    """One object per line."""

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put back."""

    def __call__(self, event: Info) -> None:
        """Print it at once, so that a reader can follow."""
        print(json.dumps(event), flush=True)


class Plain:
    """Lines without control characters, at most one a second."""

    def __init__(self) -> None:
        self.run: Info = {}  # the event that started the run
        self.record: Info | None = None  # its last evaluation
        self._printed = 0.0

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to put back."""

    def __call__(self, event: Info) -> None:
        """Show one event in the way of its kind."""
        getattr(self, event["event"])(event)

    def say(self, line: str = "", style: str = "") -> None:
        """One line that stays."""
        print(line, flush=True)

    def start(self, event: Info) -> None:
        """The run begins; its first round is shown at once."""
        self.run, self.record, self._printed = event, None, 0.0
        self.say(what(event), "bold")
        self.say(how(event), "dim")
        self.say(begin(event)) if event["state"] != "new" else None

    def round(self, event: Info) -> None:
        """A round is done."""
        self.record = event["record"] or self.record
        if event["round"] == event["rounds"] or monotonic() - self._printed >= 1:
            self._printed = monotonic()
            done = f"{event['round']:>{len(str(event['rounds']))}}/{event['rounds']}"
            self.say(f"round {done}  {pace(event)}  {now(event, self.record)}")

    def result(self, event: Info) -> None:
        """The run's numbers."""
        self.say()
        for topic, number in outcome_rows(event):
            self.say(f"{topic:<34}{number:>7}")
        self.say(f"\n{event['folder']}", "dim")


def what(event: Info) -> str:
    """Method, data and seed of a run."""
    without = f" without {', '.join(event['left_out'])}" if event["left_out"] else ""
    return f"{event['method']} on {event['data']}{without}, seed {event['seed']}"


def how(event: Info) -> str:
    """Where and with what a run is computed."""
    threads = f"{event['threads']} CPU thread{'' if event['threads'] == 1 else 's'}"
    parts = [f"{event['engine']} on {event.get('gpu') or threads}", event.get("precision", "")]
    for key, noun in (("workers", "workers"), ("at_once", "runs at once")):
        parts += [f"{event[key]} {noun}"] if event.get(key, 1) > 1 else []
    parts += [f"{event['in_flight']} clients in flight"] if event.get("in_flight") else []
    parts += [f"because {event['because']}"] if event.get("because") else []
    return ", ".join([event["model"], *filter(None, parts), f"in {event['folder']}"])


def begin(event: Info) -> str:
    """What becomes of a folder that already holds something."""
    if event["state"] == "finished":
        return "This run is already finished; --fresh runs it again. Its result:"
    return f"It was interrupted; going on after round {event['done']}."


def pace(event: Info) -> str:
    """Rounds per second, and the time left."""
    rate = event["round"] / max(event["seconds"], 1e-9)
    return f"{rate:.1f}/s  {clock((event['rounds'] - event['round']) / rate)} left"


def now(event: Info, record: Info | None) -> str:
    """The last loss, and the accuracies of the last evaluation."""
    parts = [f"{name} {value:.3f}" for name, value in event["metrics"].items()]
    if record is not None:
        parts += [f"sites {percent(sites)}"] if (sites := sites_mean(record)) is not None else []
        parts += [f"unseen {percent(unseen)}"] if (unseen := unseen_mean(record)) is not None else []
    return "  ".join(parts)


def outcome_rows(event: Info) -> list[tuple[str, str]]:
    """The reported accuracies of one run."""
    rows = [(f"reported round {event['reported_round']}", "test %")]
    if event["per_site"]:  # where all their images train, there is none
        rows.append((f"sites, mean of {len(event['per_site'])}", percent(event["sites"], "")))
        rows.append((f"worst site, {event['worst_site']}", percent(event["worst"], "")))
    for domain, value in event["unseen"].items():
        rows.append((f"unseen, {domain}", percent(value, "")))
        if domain in event["adapted"]:
            adapted = event["adapted"][domain]
            rows.append((f"  adapted by {adapted['rule']}", percent(adapted["accuracy"], "")))
    if "sites" in event["trust"]:
        rows.append(("calibration error, sites", percent(event["trust"]["sites"]["ece"], "")))
    if event["ood_auroc"] is not None:
        rows.append(("unseen against sites, AUROC", f"{event['ood_auroc']:.3f}"))
    return rows


def percent(share: float | None, unit: str = " %") -> str:
    """A share of one, as a person reads it."""
    return "–" if share is None else f"{100 * share:.1f}{unit}"  # noqa: RUF001


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
