"""The bare hand-written loop of `benchmarks.workloads`."""

from .. import workloads
from .given import Given, Turns


def take_part(given: Given, turns: Turns) -> None:
    """Rounds of `Bare`."""
    bare = workloads.Bare(workloads.WORKLOADS[given.about["name"]], dtype=given.dtype)
    test = [n for n in given.about["test"] if n]
    turns.wait()
    for _ in range(given.rounds):
        scores = bare.round()
        value = sum(s * n for s, n in zip(scores, test, strict=True)) / sum(test) if test else None
        turns.finished(value, bare.net.state_dict)  # which holds the server's weights after it was scored
