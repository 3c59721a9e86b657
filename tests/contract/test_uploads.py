"""A client that sends zeros disturbs nobody; one that sends NaN is refused by name, and what was saved is whole."""

import json
from pathlib import Path

import pytest
import torch

from fedshift.core import tree
from fedshift.core.errors import MessageError
from fedshift.experiment.checkpoint import load_checkpoint
from fedshift.experiment.runs import Folder, execute
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.testing import Case, difference, everything, quick, tiny_data

OURS = ("fdse", "lsi", "feddca", "hfedf", "rfeddis")
BAD = 1  # the round in which it happens, of the main stage


def spoil(patch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """From that round on client domain1 sends this number in the place of each."""
    finish = METHODS[name].finish

    def spoilt(self, task, work):
        up, client = finish(self, task, work)
        if work.site.name != "domain1" or work.round.number < BAD:
            return up, client
        return tree.map(lambda t: torch.full_like(t, value) if t.is_floating_point() else t, up), client

    patch.setattr(METHODS[name], "finish", spoilt)


def state_of(folder: Folder, experiment):
    net = set_up(experiment, tiny_data()).task.net
    return load_checkpoint(folder.checkpoint, experiment.method, net)[0]


@pytest.mark.parametrize("name", OURS)
def test_nan_is_refused_and_the_last_good_state_is_saved(name: str, tmp_path: Path, monkeypatch) -> None:
    experiment, folder = Case(quick(METHODS[name]())).experiment(rounds=3), Folder(tmp_path / "run")
    refusal = rf"round {BAD}, client domain1: its upload holds NaN or infinity in "
    with monkeypatch.context() as patch, pytest.raises(MessageError, match=refusal):
        spoil(patch, name, float("nan"))
        list(execute(experiment, folder, tiny_data()))
    state, rounds = state_of(folder, experiment), set_up(experiment, tiny_data()).rounds
    assert (state.done, state.total) == (BAD, rounds - 3 + BAD) and tree.first_bad(everything(state)) is None
    assert len(folder.records.read_text().splitlines()) == state.total and not folder.done.exists()
    list(execute(experiment, folder, tiny_data()))
    whole = Folder(tmp_path / "whole")
    list(execute(experiment, whole, tiny_data()))
    assert difference(everything(state_of(folder, experiment)), everything(state_of(whole, experiment))) == 0


@pytest.mark.parametrize("name", OURS)
def test_zeros_leave_everything_finite(name: str, tmp_path: Path, monkeypatch) -> None:
    experiment, folder = Case(quick(METHODS[name]())).experiment(rounds=3), Folder(tmp_path / "run")
    spoil(monkeypatch, name, 0.0)
    list(execute(experiment, folder, tiny_data()))
    assert folder.done.exists() and tree.first_bad(everything(state_of(folder, experiment))) is None

    def refuse(word: str) -> None:
        raise AssertionError(f"{name}: a record holds {word}.")

    for line in folder.records.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
