"""Whose model answers where, and what a score is."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from fedshift.core.errors import UnseenSite
from fedshift.core.task import Answer
from fedshift.eval.evaluate import Evaluator
from fedshift.eval.score import Score, answers, ensemble, mean_score, score
from fedshift.experiment.setup import set_up
from fedshift.methods.central import Central
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.local import Local
from fedshift.testing import Case, last, tiny_data


def test_score_on_paper():
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    result = score(Answer(logits), torch.tensor([0, 0, 1]))
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.loss == pytest.approx((right + wrong + math.log(2)) / 3)
    assert mean_score([Score(0.5, 1.0, 3), Score(1.0, 3.0, 3)]) == Score(0.75, 2.0, 3)


def test_ensemble_averages_probabilities():
    p, q = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.3, 0.7]]).log()
    both = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    assert torch.allclose(ensemble([Answer(p), Answer(q)]).logits.exp(), both)
    weighed = Answer(p, torch.tensor([[5.0, 3.0]]))  # alpha = 6, 4, whatever the logits are
    assert torch.allclose(ensemble([weighed, Answer(both.log())]).logits.exp(), both)


def evaluated(method, unseen="auto", left_out=("domain0",)):
    setup = Case(method, left_out=left_out).setup(rounds=2)
    evaluator = replace(setup.evaluator, unseen=unseen)
    return setup, last(setup), evaluator


@pytest.mark.parametrize(
    ("method", "rule"),
    [(FedAvg(), "global"), (FedBN(), "global"), (Local(), "sites"), (Central(), "global")],
    ids=lambda x: getattr(x, "name", x),
)
def test_auto_says_which_rule_it_used(method, rule):
    setup, state, evaluator = evaluated(method)
    record = evaluator(setup.method, setup.task, state)
    assert record["unseen"]["domain0"]["rule"] == rule
    assert set(record["sites"]) == {"domain1", "domain2"}
    assert (record["global"] is None) == (method.name == "local")


def test_corrupted_images_are_marked_and_left_out_domains_are_not():
    config = Case(FedAvg(), left_out=("domain0",)).experiment(rounds=1)
    setup = set_up(replace(config, data=replace(config.data, corruptions=("noise",), severities=(1, 5))), tiny_data())
    found = setup.evaluator(setup.method, setup.task, last(setup))["unseen"]
    assert {site: row.get("corrupted", False) for site, row in found.items()} == {
        "domain0": False,
        "noise-1": True,
        "noise-5": True,
    }


def test_global_is_refused_where_there_is_none():
    setup, state, evaluator = evaluated(Local(), "global")
    with pytest.raises(UnseenSite, match="a new site has no model"):
        evaluator(setup.method, setup.task, state)


@pytest.mark.parametrize("method", [FedBN(), Local()])
def test_sites_and_ensemble_are_what_they_say(method):
    setup, state, evaluator = evaluated(method, "sites")
    (away,) = evaluator.federation.unseen
    models = [
        setup.method.model_for(setup.task, setup.method.send(setup.task, state.server, i), state.memory[i].client)
        for i in range(2)
    ]
    x = evaluator.transform.test(away.pictures.take(torch.arange(30)))
    logits = [setup.task.net(m, x, train=False).logits for m in models]
    right = [float((a.argmax(1) == away.labels).double().mean()) for a in logits]
    record = evaluator(setup.method, setup.task, state)
    assert record["unseen"]["domain0"]["test"]["accuracy"] == pytest.approx(sum(right) / 2)
    record = replace(evaluator, unseen="ensemble")(setup.method, setup.task, state)
    both = sum(a.softmax(1) for a in logits).argmax(1)
    assert record["unseen"]["domain0"]["test"]["accuracy"] == pytest.approx(
        float((both == away.labels).double().mean())
    )


def test_the_batch_size_changes_nothing():
    setup, state, evaluator = evaluated(FedBN())
    a, b = (replace(evaluator, batch=n)(setup.method, setup.task, state) for n in (3, 100))
    for part in ("sites", "global"):
        for site in a[part]:
            assert a[part][site]["test"]["accuracy"] == b[part][site]["test"]["accuracy"]
            assert a[part][site]["test"]["loss"] == pytest.approx(b[part][site]["test"]["loss"], abs=1e-12)


def test_evaluation_changes_no_tensor():
    from fedshift.core import tree
    from fedshift.testing import difference, everything

    setup, state, evaluator = evaluated(FedBN())
    before = tree.clone(everything(state))
    evaluator(setup.method, setup.task, state)
    assert difference(before, everything(state)) == 0


def test_one_model_everywhere_is_asked_once_per_site():
    count = []

    @dataclass(frozen=True)
    class Counting(FedAvg):
        def predict(self, task, model, x):
            count.append(len(x))
            return super().predict(task, model, x)

    setup, state, evaluator = evaluated(FedAvg())
    evaluator(Counting(), setup.task, state)
    images = [
        h for part in (evaluator.federation.val, evaluator.federation.test, evaluator.federation.unseen) for h in part
    ]
    assert sum(count) == sum(len(h.labels) for h in images)


def test_adaptation_starts_afresh_at_each_site():
    """A method that doubles its logits with every batch it has seen: the second site must see the first's factor."""

    @dataclass(frozen=True)
    class Growing(FedAvg):
        def predict(self, task, model, x):
            out = task.net(model, x, train=False).logits * model.buffers.get("seen", torch.tensor(1.0))
            seen = model.buffers.get("seen", torch.tensor(1.0)) * 2
            return Answer(out), model._replace(buffers=model.buffers | {"seen": seen})

    setup, state, evaluator = evaluated(FedAvg())
    home = evaluator.federation.test[0]
    model = state.server.model

    class Net:
        def __call__(self, v, x, train):
            return setup.task.net(
                v._replace(buffers={k: b for k, b in v.buffers.items() if k != "seen"}), x, train=train
            )

    task = replace(setup.task, net=Net())
    first, again = (answers(Growing(), task, model, home, evaluator.transform, 2).logits for _ in range(2))
    plain = answers(FedAvg(), setup.task, model, home, evaluator.transform, 2).logits
    assert torch.equal(first, again)
    assert torch.allclose(first[2:], plain[2:] * 2) and torch.allclose(first[:2], plain[:2])
    assert isinstance(evaluator, Evaluator)
