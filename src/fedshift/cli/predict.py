"""`fedshift predict`: what a run's model says of pictures, and of which it is too unsure."""

import csv
import io
import json
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConfigError
from ..data.given import Given, given
from ..experiment.config import Experiment
from ..experiment.files import write_whole
from ..experiment.predict import Predictions, Trained
from ..experiment.runs import Folder
from ..report.records import find, load, saved_round
from .console import columns, say
from .display import percent
from .driving import method_label, pictures, writable
from .progress import progress

SIGNS = {
    "evidence": "u = K / S, what the evidence leaves open",
    "entropy": "the entropy of the probabilities, as a share of the largest",
}
ADAPTED = {
    "method": "the method's own rule",
    "norm": "measuring BatchNorm statistics anew",
    "entropy": "lowering the entropy of its answers",
}


def predict(args: Namespace) -> int:
    """A table of answers in a file, and their summary."""
    if not 0 < args.flag < 1:
        raise ConfigError(f"predict --flag: found {args.flag:g}, expected a share between 0 and 1, such as 0.05.")
    folder = Folder(find(args.run, Path(args.folder)))
    config = usable(folder.experiment())
    data = pictures(config)
    trained = Trained.of(folder, data, config)
    if data.image[0] != 3:
        raise ConfigError(f"predict: the run's pictures have {data.image[0]} channels, expected 3; choose another run.")
    out = writable(args.out)
    with ExitStack() as stack:
        with progress("decoding") as tell:  # at an end before the next: a terminal shows one bar at a time
            images = [Path(path) for path in args.images]
            g = stack.enter_context(given(images, data.image[1], config.data.fit, tell))
        with progress("predicting") as tell:
            found = trained.predict(g.pictures, args.site, args.adapt, args.flag, tell)
    save(out, g.names, found, trained.classes)
    told = outcome(folder, config, found, g, trained.classes)
    if args.json:
        print(json.dumps({"event": "result", **told, "file": str(out)}))
    else:
        show(told, found, trained.classes, args.flag, out)
    return 0


def usable(config: Experiment) -> Experiment:
    """The run's configuration without what matters in training alone, on a device that is here."""
    there = config.device == "cpu" or torch.cuda.is_available()
    plain = replace(config, eval=replace(config.eval, adapt="none"), engine="sequential")
    if there:
        return plain
    return replace(plain, device="cpu", precision="float64" if config.precision == "float64" else "float32")


def save(out: Path, names: tuple[str, ...], found: Predictions, classes: tuple[str, ...]) -> None:
    """One row for each picture; further columns where the model adapted, and for belief masses where there are any.

    `uncertainty` is what the flag goes by; belief masses and the adapted model's own add up to one.
    """
    p, text = found.prediction, io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    more = {"adapted uncertainty": p.uncertainty} if found.rule else {}
    if p.beliefs is not None:
        more |= {f"belief {name}": mass for name, mass in zip(classes, p.beliefs.T, strict=True)}
    table.writerow(["image", "class", "probability", "uncertainty", "flagged", *more])
    best = p.probabilities.max(1)
    values = [column.tolist() for column in (best.indices, found.flagged, best.values, found.doubt, *more.values())]
    for name, label, flag, *numbers in zip(names, *values, strict=True):
        probability, doubt, *rest = (f"{number:.6f}" for number in numbers)
        table.writerow([name, classes[label], probability, doubt, "yes" if flag else "no", *rest])
    write_whole(out, text.getvalue().encode())


def outcome(
    folder: Folder, config: Experiment, found: Predictions, given: Given, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The summary for machines."""
    t, run = found.threshold, load(folder.path)
    chosen = run.chosen if run.finished else None  # before its end a run reports nothing
    return {
        "run": folder.path.name,
        "method": method_label(config.method),
        "data": config.data.name,
        "round": saved_round(folder.path),
        "finished": run.finished,
        "reported_round": chosen and chosen["round"],
        "model": found.whose,
        "adapted": found.rule,
        "uncertainty": found.prediction.by,
        "threshold": {"value": t.value, "images": t.images, "part": t.part},
        "images": len(given.names),
        "flagged": int(found.flagged.sum()),
        "skipped": [list(pair) for pair in given.skipped],
        "classes": {name: counts for name, counts in zip(classes, _counts(found, len(classes)), strict=True)},
    }


def _counts(found: Predictions, classes: int) -> list[dict[str, Any]]:
    probabilities, flagged = found.prediction.probabilities, found.flagged
    label, best = probabilities.argmax(1), probabilities.amax(1)
    rows = []
    for k in range(classes):
        mine = label == k
        n = int(mine.sum())
        means = [float(values[mine].mean()) if n else None for values in (best, found.doubt)]
        rows.append(
            {"images": n, "probability": means[0], "uncertainty": means[1], "flagged": int(flagged[mine].sum())}
        )
    return rows


def show(told: dict[str, Any], found: Predictions, classes: tuple[str, ...], share: float, out: Path) -> None:
    """The summary for people."""
    state = "" if told["finished"] else ", which is not finished"
    say(f"{told['method']} on {told['data']}, round {told['round']} of run {told['run']}{state}: {found.whose}", "bold")
    if told["reported_round"] not in (None, told["round"]):
        say(f"The run reports round {told['reported_round']}; its model was not kept, and the last one answers.")
    if found.rule:
        say(f"Adapted to these very pictures, without labels, by {ADAPTED[found.rule]}.")
        say("Classes and probabilities are the adapted model's; uncertainties and flags are those of the model before.")
    if skipped := told["skipped"]:
        left = f"{len(skipped)} picture{'s' * (len(skipped) > 1)}"
        say(f"Left out {left} that cannot be decoded, such as {skipped[0][0]}: {skipped[0][1]}.")
    say()
    rows = [
        [name, f"{c['images']:,}", _two(c["probability"]), _two(c["uncertainty"]), f"{c['flagged']:,}"]
        for name, c in told["classes"].items()
        if c["images"]
    ]
    means = float(found.prediction.probabilities.amax(1).mean()), float(found.doubt.mean())
    rows.append(["all", f"{told['images']:,}", *map(_two, means), f"{told['flagged']:,}"])
    columns(("class", "pictures", "probability", "uncertainty", "flagged"), rows)
    t, part = found.threshold, told["flagged"] / told["images"]
    say()
    say(f"Uncertainty: {SIGNS[found.prediction.by]}.")
    say(
        f"Flagged: uncertainty above {t.value:.3f}, as for {percent(share)} of the sites' own {t.images:,} {t.part} "
        f"pictures, and for {percent(part)} of these."
    )
    if part > 3 * share:
        say("So many do not look like the pictures that the sites trained on: check some before you trust the answers.")
    say(f"Predictions: {out}", "bold")


def _two(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"
