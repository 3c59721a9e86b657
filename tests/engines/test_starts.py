"""Where clients start from, and when their models are scored: each from its own weights, and before the average."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import embedding, seeds, tree
from fedshift.core import state as states
from fedshift.core.errors import ConfigError
from fedshift.core.optim import SGD
from fedshift.engines import base, loop
from fedshift.experiment.config import EvalConfig
from fedshift.experiment.runs import Folder, execute
from fedshift.experiment.setup import set_up
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.hfedf import HFedF
from fedshift.methods.local import Local
from fedshift.methods.scaffold import Scaffold
from fedshift.testing import Case, check_resume, difference, everything, last, tiny_data, trajectory

ENGINES = ("sequential", "wire", "debug", "rehearsed")


def case(method, **changes):
    return Case(method, optimizer=SGD(lr=0.05), **changes)


def own_setup(method, engine="sequential", rounds=2, **federation):
    return case(method).setup(engine, common_init=False, rounds=rounds, **federation)


def scored_setup(method, engine="sequential", rounds=2, **changes):
    """The same, scored right after local training."""
    c = case(method, **changes)
    experiment = replace(c.experiment(rounds=rounds), engine=engine, eval=EvalConfig(point="after_local"))
    return set_up(experiment, tiny_data())


def test_own_networks_are_built_while_nobody_trains():
    setup, order = own_setup(FedAvg()), []
    build, train = setup.plan.initial, setup.engine.train

    def built(site):
        order.append("built")
        return build(site)

    def trained(method, task, jobs, **rest):
        for job in jobs:
            order.append("trained")
            yield from train(method, task, [job], **rest)

    setup.engine.train = trained
    last(replace(setup, plan=replace(setup.plan, initial=built)))
    sites = len(setup.sites)
    assert order[: 2 * sites] == ["built"] * sites + ["trained"] * sites


def flat(model):
    return dict(tree.leaves(model))


def plain_training(setup, start, k, t):
    """Client k's model after round t, from `start`."""
    module, site = deepcopy(setup.task.net.module).train(), setup.sites[k]
    module.load_state_dict({**start.params, **start.buffers})
    opt = torch.optim.SGD(module.parameters(), lr=0.05)
    for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", t, site.name)):
        opt.zero_grad()
        F.cross_entropy(module(x), y).backward()
        opt.step()
    return module


def mean_of(setup, modules):
    """FedAvg's mean, whole numbers by the largest."""
    n = setup.task.examples
    dicts = [m.state_dict() for m in modules]
    return {
        k: sum(w / sum(n) * d[k] for w, d in zip(n, dicts, strict=True)) if v.is_floating_point()
        else torch.stack([d[k] for d in dicts]).amax(0) for k, v in dicts[0].items()
    }  # fmt: skip


def as_model(setup, values):
    model = setup.task.net.variables()
    return model._replace(params={k: values[k] for k in model.params}, buffers={k: values[k] for k in model.buffers})


# -- each from its own weights -------------------------------------------------------------------------------
def starts_gap(setup):
    """Two rounds against the plain loop: from each site's own network, then from the average."""
    expected, run = None, list(trajectory(setup))
    for t in range(len(run)):
        begin = [expected or as_model(setup, setup.plan.initial(s.name).state_dict()) for s in setup.sites]
        expected = as_model(setup, mean_of(setup, [plain_training(setup, b, k, t) for k, b in enumerate(begin)]))
    return difference(flat(expected), flat(run[-1].server.model))


def test_the_first_round_starts_from_each_sites_own_network():
    object.__setattr__(setup := own_setup(FedAvg()), "plan", replace(setup.plan, keep=False))
    assert starts_gap(setup) < 1e-12
    one, two = (setup.plan.initial(name) for name in setup.task.sites)
    a, b = one.state_dict(), two.state_dict()
    assert difference(a, b) > 0.01 and difference(a, flat(setup.task.net.module.state_dict())) > 0.01
    again = own_setup(FedAvg()).plan.initial(setup.task.sites[0]).state_dict()
    assert difference(a, again) == 0  # by the site's name and the run's seed alone
    assert difference(everything(last(setup)), everything(last(case(FedAvg()).setup(rounds=2)))) > 1e-3


@pytest.mark.parametrize("mutant", ["all alike", "in every round", "never"])
def test_the_plain_loop_notices(mutant, monkeypatch):
    setup = own_setup(FedAvg())
    setup = replace(setup, plan=replace(setup.plan, keep=False))
    true, first = setup.plan.initial, loop.first_contact
    if mutant == "all alike":
        monkeypatch.setattr(loop, "first_contact", lambda m, t, own, i: first(m, t, true(setup.task.sites[0]), i))
    elif mutant == "never":
        monkeypatch.setattr(loop, "first_contact", lambda m, t, own, i: first(m, t, setup.task.net.module, i))
    else:
        kept, real = replace(setup.plan), loop._round
        monkeypatch.setattr(
            loop, "_round", lambda h, t, e, s, p, old: replace(real(h, t, e, s, kept, replace(old, total=0)), total=9)
        )
    assert starts_gap(setup) > 1e-3


@pytest.mark.parametrize("method", [FedAvg(), FedBN(), Scaffold(), Local()], ids=lambda m: m.name)
def test_no_method_needs_to_know(method):
    """What a client gets and remembers in its first round is made of its own network, whatever the method sends."""
    setup = own_setup(method, rounds=1)
    for k, name in enumerate(setup.task.sites):
        own = setup.plan.initial(name)
        down, memory = loop.first_contact(setup.method, setup.task, own, k)
        model = base.site_model(setup.method, setup.task, down, memory)
        assert difference(dict(own.state_dict()), {**model.params, **model.buffers}) == 0
    assert last(setup).bytes_down == 0  # what each site builds itself does not travel


@pytest.mark.parametrize("method", [FedAvg(), FedBN(), Scaffold()], ids=lambda m: m.name)
def test_engines_agree_on_own_starts(method):
    ends = {name: last(own_setup(method, name)) for name in ENGINES}
    for name, end in ends.items():
        assert difference(everything(ends["sequential"]), everything(end)) <= (1e-9 if name == "rehearsed" else 0), name
        assert end.bytes_down == ends["sequential"].bytes_down


def test_own_starts_resume(monkeypatch):
    plain = Case.experiment
    monkeypatch.setattr(Case, "experiment", lambda self, **f: plain(self, **{"common_init": False, **f}))
    check_resume(case(Scaffold()))


def test_own_starts_are_refused_where_they_mean_nothing():
    with pytest.raises(ConfigError, match=r"common_init is false, and the sites of method 'hfedf' do not start from"):
        own_setup(HFedF())
    with pytest.raises(
        ConfigError, match=r"common_init is false and federation.participation 0.5, .* participation = 1"
    ):
        own_setup(FedAvg(), participation=0.5)


# -- scored before the average ---------------------------------------------------------------------------------
def scores(setup, models):
    """Accuracy and loss at home, by plain torch."""
    found = {}
    for module, held in zip(models, setup.evaluator.federation.test, strict=True):
        x = setup.evaluator.transform.test(held.pictures.take(torch.arange(len(held.labels))))
        with torch.no_grad():
            out = module.eval()(x)
        found[held.site] = (
            float((out.argmax(1) == held.labels).double().mean()),
            float(F.cross_entropy(out, held.labels)),
        )
    return found


def after_local_gap(setup):
    """Two rounds against the plain loop: what sites score before the average, and everybody after it."""
    model, worst = setup.start().server.model, 0.0
    for t, state in enumerate(trajectory(setup)):
        trained = [plain_training(setup, model, k, t) for k in range(len(setup.sites))]
        model = as_model(setup, mean_of(setup, trained))
        whole = deepcopy(trained[0])
        whole.load_state_dict({**model.params, **model.buffers})
        record = setup.evaluator(setup.method, setup.task, state)
        for part, modules in (("sites", trained), ("global", [whole] * len(trained))):
            for site, (accuracy, loss) in scores(setup, modules).items():
                s = record[part][site]["test"]
                worst = max(worst, abs(s["accuracy"] - accuracy), abs(s["loss"] - loss))
    return worst


def no_momentum(setup):
    return replace(setup, plan=replace(setup.plan, keep=False))


def test_sites_are_scored_as_they_are_before_the_average():
    assert after_local_gap(no_momentum(scored_setup(FedAvg()))) < 1e-12
    assert after_local_gap(no_momentum(case(FedAvg()).setup(rounds=2))) > 1e-3  # after_aggregation


@pytest.mark.parametrize("mutant", ["as received", "of another site", "of the first round"])
def test_the_scores_notice(mutant, monkeypatch):
    setup, closed, kept = no_momentum(scored_setup(FedAvg())), base.closed, {}

    def wrong(method, task, job, work, opts, metrics):
        result = closed(method, task, job, work, opts, metrics)
        kept.setdefault(job.client, result.trained)
        other = {"as received": job.down.model, "of another site": kept[0], "of the first round": kept[job.client]}
        return result._replace(trained=other[mutant])

    monkeypatch.setattr(base, "closed", wrong)
    assert after_local_gap(setup) > 1e-3


@pytest.mark.parametrize("method", [FedAvg(), FedBN(), HFedF()], ids=lambda m: m.name)
def test_engines_agree_on_trained_models(method):
    ends = {name: last(scored_setup(method, name)) for name in ENGINES}
    plain = states.flatten({"t": ends["sequential"].trained})
    assert plain and set(ends["sequential"].trained) == {0, 1}
    for name, end in ends.items():
        assert difference(plain, states.flatten({"t": end.trained})) <= (1e-9 if name == "rehearsed" else 0), name
    usual = last(case(method).setup(rounds=2))
    assert not usual.trained  # kept only when asked
    assert difference(everything(usual), everything(ends["sequential"])) == 0  # and training does not know


def test_where_nothing_is_averaged_both_points_are_one():
    one, two = scored_setup(Local()), case(Local()).setup(rounds=2)
    a, b = (s.evaluator(s.method, s.task, last(s)) for s in (one, two))
    assert a == b


def test_each_round_keeps_its_own_models_and_no_checkpoint_holds_them(tmp_path):
    setup = scored_setup(FedBN(), rounds=3)
    seen = [tree.clone(states.flatten({"t": s.trained})) for s in trajectory(setup)]
    assert all(difference(a, b) > 0 for a, b in pairwise(seen))
    files = {}
    for point in ("after_local", "after_aggregation"):
        experiment = replace(case(FedBN()).experiment(rounds=2), eval=EvalConfig(point=point))
        folder = Folder(tmp_path / point)
        list(execute(experiment, folder, tiny_data()))
        files[point] = states.read(folder.checkpoint)[0]
        records = [json.loads(line) for line in folder.records.read_text().splitlines()]
        assert [r["point"] for r in records] == [point] * 2
    assert difference(files["after_local"], files["after_aggregation"]) == 0


def test_earlier_stages_are_scored_as_ever(monkeypatch):
    """An autoencoder is no model of the task."""
    monkeypatch.setattr(embedding.Embed, "rounds", 1)
    setup = scored_setup(HFedF(embedding="autoencoder", dim=2), rounds=1)
    first, second = trajectory(setup)
    assert not first.trained and set(second.trained) == {0, 1}
    assert set(setup.evaluator(setup.method, setup.task, first)["sites"]) == {"domain1", "domain2"}
    assert setup.evaluator(setup.method, setup.task, second)["unseen"]["domain0"]["rule"] == "global"


def test_a_site_that_sits_out_has_no_model_of_the_round():
    with pytest.raises(ConfigError, match=r"eval.point is 'after_local' and federation.participation 0.5"):
        replace(case(FedAvg()).experiment(participation=0.5), eval=EvalConfig(point="after_local"))
