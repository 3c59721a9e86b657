"""Models that have not changed are not asked again, and those that have are."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedshift.core.net import Variables
from fedshift.eval.known import Known
from fedshift.methods.local import Local
from fedshift.testing import Case, trajectory


def test_a_model_is_known_while_its_tensors_live_unchanged():
    known = Known[str]()
    model = Variables({"w": torch.ones(2)}, {})
    known.keep("site", (model,), "found")
    known.turn()
    assert known.find("site", (model,)) == "found" and known.find("other", (model,)) is None
    assert known.find("site", (Variables({"w": torch.ones(2)}, {}),)) is None
    model.params["w"].add_(1)
    assert known.find("site", (model,)) is None
    known.keep("site", (model,), "new")
    known.turn()
    known.turn()
    assert known.find("site", (model,)) is None  # nobody asked in between
    known.keep("gone", (Variables({"w": torch.ones(2)}, {}),), "ghost")
    assert known.find("gone", (Variables({"w": torch.ones(2)}, {}),)) is None


@dataclass(frozen=True)
class Asked(Local):
    name: ClassVar[str] = "asked"
    count: ClassVar[list[int]] = []

    def predict(self, task, model, x):
        self.count.append(len(x))
        return super().predict(task, model, x)


def test_absent_clients_are_not_scored_again_and_records_are_the_same():
    records = {}
    for forget in (False, True):
        setup = Case(Asked(), "mlp", left_out=()).setup(participation=0.34, rounds=3)
        Asked.count.clear()
        records[forget] = []
        for state in trajectory(setup):
            if forget:
                object.__setattr__(setup.evaluator, "known", Known())
            records[forget].append(setup.evaluator(setup.method, setup.task, state))
        calls = len(Asked.count)
        if not forget:
            few = calls
    assert records[False] == records[True] and few < calls
