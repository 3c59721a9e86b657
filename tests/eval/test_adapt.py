"""Adaptation to a new site: oracles, proof that no label is looked at, and that nothing is left behind."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift.core import tree
from fedshift.core.errors import ConfigError, DataError, ModelError, UnseenSite
from fedshift.core.net import BATCH_NORM, Net, Variables
from fedshift.core.task import Answer, Batch, Loss, Phase, Round, Work
from fedshift.data.batches import Budget
from fedshift.eval import adapt
from fedshift.eval.adapt import Adapter, Norm, choose, measured_layers, scales
from fedshift.eval.score import answers
from fedshift.eval.uncertainty import auroc, predicted
from fedshift.experiment.runs import Folder, execute
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.local import Local
from fedshift.testing import Case, check_adaptation, difference, everything, last, quick, tiny_data

RULES = ("method", "norm", "entropy")


@dataclass(frozen=True)
class Calm(FedAvg):
    """Label-free: smaller logits by the head alone. Where it can see labels, it uses them."""

    def phases(self, task, labelled=True):
        return (Phase(),) if labelled else (Phase("calm", trains=task.net.under(nn.Linear), step=self._step),)

    def _step(self, task, work, batch):
        params = work.model.params
        free = {k: v for k, v in params.items() if k in task.net.under(nn.Linear)}

        def objective(free):
            logits = task.net(Variables(params | free, work.model.buffers), batch.x, train=False).logits
            value = logits.square().mean() + 0.1 * batch.y.to(logits).mean()
            value = value + F.one_hot(batch.y.clamp(min=0), 3).to(logits).mul(logits).sum() * (batch.y >= 0).any()
            return value, Loss(value, {})

        grads, loss = task.gradient(objective, free)
        free, opt = task.update(grads, work.opt, free, work.round.lr)
        return work._replace(model=Variables(params | free, work.model.buffers), opt=opt), {"calm": loss.value}


def prepared(rule="norm", method=None, engine="sequential", **changes):
    method = method or (Calm() if rule == "method" else FedAvg())
    config = Case(method).experiment(rounds=2)
    config = replace(config, engine=engine, eval=replace(config.eval, adapt=rule, uncertainty=True, **changes))
    setup = set_up(config, tiny_data())
    return setup, last(setup)


def start_of(setup, state):
    rule = setup.evaluator.adapter.rule
    return setup.method.send(setup.task, state.server, None) if rule == "method" else state.server.model


def adapted(setup, state, held=None):
    held = held or setup.evaluator.federation.unseen[0]
    return setup.evaluator.adapter(setup.method, setup.task, start_of(setup, state), held)


# -- oracles -----------------------------------------------------------------------------------------------------------
def norm_by_torch(setup, model, images):
    """One batch: torch's own running statistics at momentum one."""
    module = setup.task.net.module
    for layer in module.modules():
        if isinstance(layer, BATCH_NORM):
            layer.momentum = 1.0
    out = Net(module)(model, images, train=True)
    return {k: v for k, v in out.buffers.items() if "running" in k}


def all_images(setup):
    held = setup.evaluator.federation.unseen[0]
    return setup.evaluator.transform.test(held.pictures.take(torch.arange(len(held.labels))))


def gap_of_norm():
    """Against torch with one batch, and against the first layer's input over all images with many."""
    setup, state = prepared()
    model, x = state.server.model, all_images(setup)
    adapter = setup.evaluator.adapter
    whole = replace(adapter, budget=Budget(len(x), 1, 0))
    held = setup.evaluator.federation.unseen[0]
    one, many = (a(setup.method, setup.task, model, held) for a in (whole, adapter))
    first = measured_layers(setup.task.net)[0]
    fed = setup.task.net(model, x, train=False, taps=(first,)).taps[first].transpose(0, 1).flatten(1)
    first_gap = max(
        float((many.buffers[f"{first}.running_mean"] - fed.mean(1)).abs().max()),
        float((many.buffers[f"{first}.running_var"] - fed.var(1)).abs().max()),
    )
    by_torch = norm_by_torch(setup, model, x)
    assert difference(one.params, model.params) == 0
    return max(first_gap, *(float((one.buffers[k] - v).abs().max()) for k, v in by_torch.items()))


def test_norm_measures_all_images():
    assert gap_of_norm() < 1e-12


def entropy_by_loop(setup, state):
    """TENT in a plain loop: SGD with momentum on scales and shifts, statistics measured before and after."""
    adapter, task = setup.evaluator.adapter, setup.task
    held = setup.evaluator.federation.unseen[0]
    once = replace(adapter, rule="norm")
    model = adapter._run("norm", Norm(), task, state.server.model, held, Budget(4, 1, 0))
    names, seen = sorted(scales(task.net)), []
    adapter._run("entropy", Recording(seen), task, model, held, adapter.budget)
    params = {k: v.clone() for k, v in model.params.items()}
    leaves = [params[k].requires_grad_(True) for k in names]
    optimizer = torch.optim.SGD(leaves, lr=0.05 * 0.1, momentum=0.9)
    for x in seen:
        p = task.net(Variables(params, model.buffers), x, train=False).logits.softmax(1)
        optimizer.zero_grad()
        (-(p * p.log()).sum(1).mean()).backward()
        optimizer.step()
    params = {k: v.detach() for k, v in params.items()}
    assert once.lr == 0.05 * 0.1
    return once._run("norm again", Norm(), task, Variables(params, model.buffers), held, Budget(4, 1, 0))


class Recording:
    """A rule that only remembers the pictures of its batches."""

    def __init__(self, seen):
        self.seen = seen

    def begin(self, task, down, client, round, site):
        return Work(down, down, None, round)

    def phases(self, task, labelled):
        return (Phase("entropy", trains=frozenset(), step=self._step),)

    def _step(self, task, work, batch):
        assert bool((batch.y == -1).all())
        self.seen.append(batch.x)
        return work, {}


def gap_of_entropy():
    setup, state = prepared("entropy", adapt_epochs=2)
    mine, reference = adapted(setup, state), entropy_by_loop(setup, state)
    assert difference(mine.params, state.server.model.params) > 1e-6
    return max(difference(a, b) for a, b in zip(mine, reference, strict=True))


def test_entropy_is_tent_on_measured_statistics():
    assert gap_of_entropy() < 1e-12


def test_entropy_falls_and_nothing_but_norms_moves():
    setup, state = prepared("entropy", adapt_epochs=5, adapt_rate=1.0)
    mine, model, x = adapted(setup, state), state.server.model, all_images(setup)
    moved = {k for k in model.params if not torch.equal(model.params[k], mine.params[k])}
    assert moved == scales(setup.task.net)
    measured = replace(setup.evaluator.adapter, rule="norm")(
        setup.method, setup.task, model, setup.evaluator.federation.unseen[0]
    )
    doubt = [predicted(Answer(setup.task.net(m, x, train=False).logits)).uncertainty.mean() for m in (measured, mine)]
    assert doubt[1] < doubt[0]


def forgetful(real):
    def measure(task, work, batch):
        return real(task, work._replace(aux=tree.zeros(work.aux)), batch)

    return measure


MUTANTS = {
    "norm remembers the last batch alone": ("_measure", forgetful(adapt._measure), gap_of_norm),
    "entropy of the logits": ("predicted", lambda a: predicted(Answer(a.logits * 2)), gap_of_entropy),
    "entropy trains everything": ("scales", lambda net: frozenset(net.variables().params), gap_of_entropy),
    "entropy before norm": ("measured_layers", lambda net: (), gap_of_entropy),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    attribute, fault, gap = MUTANTS[name]
    if attribute == "measured_layers":
        assert _without_norm() > 1e-6
        return
    monkeypatch.setattr(adapt, attribute, fault)
    assert gap() > 1e-6


def _without_norm():
    setup, state = prepared("entropy", adapt_epochs=2)
    reference = entropy_by_loop(setup, state)
    adapter, held = setup.evaluator.adapter, setup.evaluator.federation.unseen[0]
    bare = adapter._run("entropy", adapt.Entropy(setup.method), setup.task, state.server.model, held, adapter.budget)
    return difference(bare.params, reference.params)


class Dropping(nn.Module):
    """Dropout before a norm: measured with dropout on, the variance would be too large."""

    def __init__(self):
        super().__init__()
        self.width, self.drop, self.norm, self.out = 4, nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def features(self, x):
        return self.norm(self.drop(x))

    def head(self, z):
        return self.out(z)


def test_dropout_is_off_while_statistics_are_measured():
    setup, _ = prepared()
    net = Net(Dropping())
    task, model, x = replace(setup.task, net=net), net.variables(), torch.randn(50, 4)
    rule = Norm()
    work = rule.begin(task, model, None, Round(0, 1, 0.1, 1, 50, 0), None)
    (phase,) = rule.phases(task, False)
    after = phase.step(task, work, Batch(x, torch.full((50,), -1)))[0].model
    assert torch.allclose(after.buffers["norm.running_var"], x.var(0), atol=1e-6)
    assert not net.module.drop.training
    assert net(model, x, train=True).logits.isfinite().all() and net.module.drop.training


# -- nothing is looked at, nothing is left behind ----------------------------------------------------------------------
def gap_of_labels(rule):
    """How far apart the adapted models are when the unseen labels are other ones."""
    setup, state = prepared(rule)
    held = setup.evaluator.federation.unseen[0]
    other = replace(held, labels=held.labels.flip(0).roll(1))
    assert not torch.equal(other.labels, held.labels)
    models = [adapted(setup, state, h) for h in (held, other)]
    return max(difference(a, b) for a, b in zip(*models, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_unseen_labels_change_no_bit(rule):
    assert gap_of_labels(rule) == 0


def test_a_leak_of_labels_would_be_seen(monkeypatch):
    monkeypatch.setattr(adapt, "hidden", lambda labels: labels)
    assert gap_of_labels("method") > 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_each_site_starts_afresh(rule):
    setup, state = prepared(rule)
    federation = setup.evaluator.federation
    (held,) = federation.unseen
    twin = replace(federation.test[0], site="twin")
    before, dice = tree.clone(everything(state)), torch.get_rng_state()
    records = []
    for order in ((held, twin), (twin, held)):
        evaluator = replace(setup.evaluator, federation=replace(federation, unseen=order))
        records.append(evaluator(setup.method, setup.task, state))
    assert records[0] == records[1]
    assert difference(before, everything(state)) == 0
    assert torch.equal(dice, torch.get_rng_state())


@pytest.mark.parametrize("rule", RULES)
def test_engines_agree(rule):
    records = {}
    for engine in ("sequential", "wire", "debug", "rehearsed"):
        setup, state = prepared(rule, engine=engine)
        records[engine] = setup.evaluator(setup.method, setup.task, state)
    assert records["sequential"] == records["wire"] == records["debug"]
    plain, replayed = (records[e]["unseen"]["domain0"] for e in ("sequential", "rehearsed"))
    assert replayed["adapted"]["loss"] == pytest.approx(plain["adapted"]["loss"], abs=1e-9)


# -- what the record says ----------------------------------------------------------------------------------------------
def test_the_record_says_what_was_adapted_on():
    for share, on, images in ((0.0, "transductive", 30), (0.4, "held_out", 12)):
        config = Case(FedAvg()).experiment(rounds=1)
        config = replace(
            config, data=replace(config.data, adapt=share, corruptions=("noise",), severities=(3,)),
            eval=replace(config.eval, adapt="norm"),
        )  # fmt: skip
        setup = set_up(config, tiny_data())
        record = setup.evaluator(setup.method, setup.task, last(setup))["unseen"]
        found = record["domain0"]["adapted"]
        assert (found["on"], found["images"], found["n"]) == (on, images, 30 - 12 * bool(share))
        assert found["rule"] == "norm" and found["before"] == record["domain0"]["test"]["accuracy"]
        assert "trust" not in found and "ood_auroc" not in record["domain0"]
        assert record["noise-3"]["adapted"]["on"] == "transductive"


def test_the_adapted_score_is_that_of_the_adapted_model():
    setup, state = prepared("norm")
    held = setup.evaluator.federation.unseen[0]
    record = setup.evaluator(setup.method, setup.task, state)["unseen"]["domain0"]["adapted"]
    mine = answers(setup.method, setup.task, adapted(setup, state), held, setup.evaluator.transform, 128)
    assert record["accuracy"] == float((mine.logits.argmax(1) == held.labels).double().mean())
    assert record["trust"]["by"] == "entropy"


@pytest.mark.parametrize(("method", "unseen"), [(FedAvg(), "auto"), (FedBN(), "sites"), (FedBN(), "ensemble")])
def test_in_and_out_of_distribution_by_the_same_models(method, unseen):
    setup, state = prepared("norm", method, unseen=unseen)
    evaluator, task = setup.evaluator, setup.task
    record = evaluator(setup.method, task, state)["unseen"]["domain0"]

    def doubt(models, held):
        p = [answers(method, task, m, held, evaluator.transform, 128).logits.softmax(1) for m in models]
        p = torch.stack(p).mean(0)
        return -(p * p.log()).sum(1)

    (away,), home = evaluator.federation.unseen, evaluator.federation.test
    new = method.model_for(task, method.send(task, state.server, None), None)
    own = [method.model_for(task, method.send(task, state.server, i), state.memory[i].client) for i in range(2)]
    groups = {"auto": [([new], home)], "sites": [([m], [t]) for m, t in zip(own, home, strict=True)]}
    groups["ensemble"] = [(own, home)]
    areas = [auroc(doubt(m, away), torch.cat([doubt(m, t) for t in tests])) for m, tests in groups[unseen]]
    assert record["ood_auroc"] == pytest.approx(sum(areas) / len(areas), abs=1e-12)
    assert record["adapted"]["before"] == record["test"]["accuracy"]


def run_of(tmp_path, stop=None, **changes):
    config = Case(Calm()).experiment()
    config = replace(config, eval=replace(config.eval, **changes))
    folder = Folder(tmp_path / f"{stop}-{len(changes)}-{changes.get('select', 'last')}")
    for end in (stop, None):
        for event in execute(config, folder, tiny_data()):
            if event.round == end:
                break
        if end is None:
            break
    return [json.loads(line) for line in folder.records.read_text().splitlines()], folder.records.read_bytes()


@pytest.fixture
def named(monkeypatch):
    """Calm among the methods, so that its runs can be written and read."""
    from fedshift.methods import METHODS

    monkeypatch.setattr(Calm, "name", "calm")
    monkeypatch.setitem(METHODS, "calm", Calm)


def test_extras_where_a_round_may_be_reported_and_nothing_else_moves(tmp_path, named):
    plain, _ = run_of(tmp_path)
    more, _ = run_of(tmp_path, uncertainty=True, adapt="auto")
    every, _ = run_of(tmp_path, uncertainty=True, adapt="auto", select="val")
    assert ["adapted" in r["unseen"]["domain0"] for r in more] == [False, False, False, True]
    assert all("adapted" in r["unseen"]["domain0"] for r in every)
    assert more[-1]["unseen"]["domain0"]["adapted"]["rule"] == "method"
    assert plain[:-1] == more[:-1] and every[-1] == more[-1]
    for kind in ("sites", "unseen"):
        for site, row in plain[-1][kind].items():
            assert row["test"].items() <= more[-1][kind][site]["test"].items()
            assert "trust" in more[-1][kind][site]["test"]


def test_a_resumed_run_has_the_same_records(tmp_path, named):
    extras = {"uncertainty": True, "adapt": "method", "select": "val"}
    assert run_of(tmp_path, stop=2, **extras)[1] == run_of(tmp_path, **extras)[1]


# -- refusals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "method", "model", "error", "words"),
    [
        ("method", FedAvg(), "small-cnn", ConfigError, "'fedavg' has no way of its own"),
        ("norm", FedAvg(), "mlp", ModelError, "has no BatchNorm layer"),
        ("auto", FedAvg(), "mlp", ModelError, "has no BatchNorm layer"),
        ("entropy", FedAvg(), "mlp", ModelError, "has no normalisation layer"),
    ],
)
def test_what_cannot_adapt_is_refused_before_training(asked, method, model, error, words):
    config = Case(method, model).experiment()
    with pytest.raises(error, match=words):
        set_up(replace(config, eval=replace(config.eval, adapt=asked)), tiny_data())


def test_settings_that_cannot_work_are_refused():
    config = Case(FedAvg()).experiment()
    with pytest.raises(ConfigError, match="there is no unseen site"):
        replace(config, data=replace(config.data, left_out=()), eval=replace(config.eval, adapt="norm"))
    with pytest.raises(ConfigError, match="unseen is 'sites'"):
        replace(config, eval=replace(config.eval, adapt="method", unseen="sites"))


def test_a_methods_own_rule_starts_from_the_training_rate():
    rates = {rule: prepared(rule, adapt_rate=0.5)[0].evaluator.adapter.lr for rule in RULES}
    assert rates == {"method": 0.05, "norm": 0.025, "entropy": 0.025}


def test_auto_is_the_methods_own_or_norm():
    setup, _ = prepared()
    assert choose("auto", Calm(), setup.task) == "method"
    assert choose("auto", Calm(), setup.task, alone=True) == "norm"
    assert choose("auto", FedAvg(), setup.task) == "norm"
    assert choose("none", FedAvg(), setup.task) is None


def test_a_way_that_starts_elsewhere_is_not_said_to_be_missing():
    setup, _ = prepared()
    with pytest.raises(ConfigError, match=r"adapts what a new site downloads, .* please use 'norm', or the model"):
        choose("method", Calm(), setup.task, alone=True)
    with pytest.raises(ConfigError, match="'fedavg' has no way of its own"):
        choose("method", FedAvg(), setup.task, alone=True)


def test_one_image_is_too_few():
    setup, state = prepared()
    (held,) = setup.evaluator.federation.unseen
    with pytest.raises(DataError, match="site domain0: found 1 image"):
        adapted(setup, state, replace(held, labels=held.labels[:1]))
    config = Case(FedAvg()).experiment()
    config = replace(config, eval=replace(config.eval, adapt="norm"))
    with pytest.raises(DataError, match="site domain0: found 1 image"):  # and not after training
        set_up(config, tiny_data((1, 20, 14)))


def test_a_method_without_a_model_for_new_sites_says_so():
    @dataclass(frozen=True)
    class Lonely(Local):
        def phases(self, task, labelled=True):
            return (Phase(),)

    with pytest.raises(UnseenSite, match="a new site has no model"):  # and not after training
        prepared("method", Lonely())
    setup, _ = prepared("auto", Lonely())
    assert isinstance(setup.evaluator.adapter, Adapter) and setup.evaluator.adapter.rule == "norm"


def check_everywhere(method):
    """Trust and adaptation of a method as it comes; the adapted model is no other for other labels."""
    config = Case(method).experiment(rounds=1)
    config = replace(config, eval=replace(config.eval, adapt="auto", uncertainty=True))
    setup = set_up(config, tiny_data((12, 10, 8)))
    state = last(setup)
    row = setup.evaluator(setup.method, setup.task, state)["unseen"]["domain0"]
    stage = setup.method.stages()[-1]
    own = bool(stage.phases(setup.task, labelled=False))
    assert row["adapted"]["rule"] == ("method" if own else "norm")
    numbers = [row["test"]["trust"], row["adapted"]["trust"]]
    assert all(math.isfinite(t[key]) for t in numbers for key in ("nll", "brier", "ece", "uncertainty"))
    assert all(0 <= t["uncertainty"] <= 1 and 0 <= t["ece"] <= 1 and 0 <= t["brier"] <= 2 for t in numbers)
    assert 0 <= row["ood_auroc"] <= 1


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_asked_for_both(name):
    check_everywhere(quick(METHODS[name]()))


@dataclass(frozen=True)
class Careless(Calm):
    """Writes into what it was sent."""

    def begin(self, task, down, client, round, site):
        if client is None:
            next(iter(down.model.params.values())).add_(1)
        return super().begin(task, down, client, round, site)


@dataclass(frozen=True)
class Diverging(Calm):
    """Ends in infinity."""

    def _step(self, task, work, batch):
        work, metrics = super()._step(task, work, batch)
        return work._replace(model=tree.map(lambda t: t / 0 if t.is_floating_point() else t, work.model)), metrics


def test_the_contract_of_adaptation():
    check_adaptation(Case(Calm()))
    check_adaptation(Case(FedAvg()))
    with pytest.raises(AssertionError, match="changed its state"):
        check_adaptation(Case(Careless()))
    with pytest.raises(AssertionError, match="NaN or infinity"):
        check_adaptation(Case(Diverging()))
