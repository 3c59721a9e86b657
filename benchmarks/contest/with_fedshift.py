"""fedshift itself: the round loop and the evaluation of a run, as the configuration sets them."""

from typing import Any

from fedshift.engines.loop import State, run
from fedshift.experiment import strict
from fedshift.experiment.config import Experiment
from fedshift.experiment.setup import set_up

from .. import workloads
from .given import Given, Turns


def take_part(given: Given, turns: Turns, *sets: str) -> None:
    """Settings as on the command line, such as `engine=fast`; or `workers`, one for each core."""
    w = workloads.WORKLOADS[given.about["name"]]
    settings = [text for text in sets if "=" in text]
    settings += ["precision=float64"] if given.about["double"] else []
    config = strict.build(Experiment, strict.merge(strict.dump(workloads.experiment(w)), settings))
    turns.wait()
    setup = set_up(config, workloads.dataset(w), given.threads if "workers" in sets else 1)
    state = setup.start()
    moved = 0
    rounds = run(setup.method, setup.task, setup.engine, setup.sites, setup.plan, state)
    for _, state in zip(range(given.rounds), rounds, strict=False):
        value = None
        if given.scored:
            sites = setup.evaluator(setup.method, setup.task, state)["sites"]
            value = _mean([s["test"] for s in sites.values()])
        sent = state.bytes_up + state.bytes_down
        turns.finished(value, _weights(state), sent - moved)
        moved = sent


def _mean(scores: list[Any]) -> float:
    return float(sum(s["accuracy"] * s["n"] for s in scores) / sum(s["n"] for s in scores))


def _weights(state: State) -> Any:
    def named() -> dict[str, Any]:
        model = state.server.model
        return {**model.params, **model.buffers}

    return named
