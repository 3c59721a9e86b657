"""`fedshift profile`: where the time of an experiment's rounds goes."""

import json
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..experiment import strict
from ..experiment.config import Experiment
from ..experiment.files import write_whole
from ..experiment.profile import PARTS, Profile
from ..experiment.profile import profile as measure
from ..experiment.runs import Folder
from ..experiment.setup import versions
from ..report.profile import picture, rows, unit
from .choosing import resolved, workers
from .console import columns, say
from .driving import configuration, method_label, pictures, shared, writable
from .progress import progress


def profile(args: Namespace) -> int:
    """Measure, print, and leave a picture and its numbers."""
    if args.rounds < 1 or (args.warm_up or 0) < 0:
        raise ConfigError("profile: expected --rounds 1 or more and --warm-up 0 or more; try --rounds 3.")
    if Path(args.out).suffix.lower() == ".json":
        raise ConfigError(
            f"profile --out: found {args.out!r}, expected a picture's name, beside which the numbers go as .json; "
            f"write --out {Path(args.out).with_suffix('.svg')}."
        )
    config = strict.build(Experiment, resolved(configuration(args.config, args.set, args.preset), args))
    file = writable(args.out)
    data = pictures(config)
    with tempfile.TemporaryDirectory() as nothing:
        many = workers(config, Folder(Path(nothing)), data, args.workers)
    with progress("measuring", "rounds") as tell:
        found = measure(config, data, workers=many, measured=args.rounds, warm_up=args.warm_up, tell=tell)
    told = described(config, found, many)
    title = f"Where a round of {told['method']} on {config.data.name} spends its time"
    write_whole(file, picture(title, _how(told), told["stages"], told["notes"]).encode())
    write_whole(file.with_suffix(".json"), json.dumps(told, indent=1).encode())
    if args.json:
        print(json.dumps(told | {"picture": str(file)}))
    else:
        _print(title, told, file)
    return 0


def described(config: Experiment, found: Profile, many: int) -> dict[str, Any]:
    """Everything that was found, as JSON has it; seconds of a round."""
    about = {k: v for k, v in shared(config, Path(), many).items() if k != "folder"}
    stages = [
        {"stage": s.name, "rounds": s.rounds, "seconds": s.seconds, "parts": s.parts, "divided": s.divided}
        for s in found.stages
    ]
    notes = [*found.notes, f"Measuring took {100 * found.cost:.2g} % of the time."]
    made = {"config": strict.dump(config), "versions": versions()}
    return {
        "event": "profile", "method": method_label(config.method), **about,
        "stages": stages, "cost": found.cost, "notes": notes, **made,
    }  # fmt: skip


def _how(told: dict[str, Any]) -> str:
    threads = f"{told['threads']} thread{'' if told['threads'] == 1 else 's'}"
    many = f"{told['workers']} workers of one thread" if told["workers"] > 1 else threads
    where = told["gpu"] if told["device"] == "cuda" else f"cpu, {many}"
    count = told["stages"][-1]["rounds"]
    mean = "one round" if count == 1 else f"mean of {count} rounds"
    return f"{told['model']}, engine {told['engine']} on {where}, {told['precision']}; {mean}"


def _print(title: str, told: dict[str, Any], file: Path) -> None:
    say(title, "bold")
    say(_how(told), "dim")
    for stage in told["stages"]:
        say(f"\nstage {stage['stage']}" if len(told["stages"]) > 1 else "")
        lines = [(name, f"{taken:>9}", f"{share:>6}", PARTS.get(name, "")) for name, taken, share in rows(stage)]
        columns(("part", f"{unit(stage['seconds'])[0]:>9}", f"{'%':>6}", "what it is"), lines)
    say()
    for note in told["notes"]:
        say(note)
    say(f"Picture: {file}, numbers: {file.with_suffix('.json')}", "bold")
