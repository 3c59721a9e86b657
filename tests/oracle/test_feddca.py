"""FedDCA against a plain loop and against cases on paper; and these against broken methods."""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import floor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core import drawing, seeds, tree
from fedshift.core.drawing import Client, Down
from fedshift.core.errors import ConfigError, DataError
from fedshift.core.net import Variables
from fedshift.core.optim import SGD
from fedshift.core.task import Cohort, Round, Work
from fedshift.data import Dataset, Domain
from fedshift.data.presets import PRESETS, preset
from fedshift.data.protocols import deal
from fedshift.experiment.config import Experiment
from fedshift.experiment.runs import Folder, execute
from fedshift.experiment.strict import build
from fedshift.methods import feddca
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.feddca import FedDCA, Scored
from fedshift.testing import CHECKS, Case, difference, everything, last, models_by_site, tiny_data, trajectory

ROUNDS = 3
TESTED = FedDCA(extra=0.9, beta=0.2)  # so much that every ratio moves whole images
RELEASE = FedDCA(size=False, validation="redrawn", first=0.01, absent="zero")
DATA = tiny_data((75, 60, 50))


def setup_of(method, rounds=ROUNDS, data=DATA, **federation):
    setup = Case(method, optimizer=SGD(lr=0.02), left_out=()).setup(data=data, rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


def rows_of(setup, m, k, t, r, q):
    """The draw of client k in round t: floor(floor(n r) q_c) of class c, from what is not held out."""
    site = setup.sites[k]
    want = torch.tensor([max(1, floor(floor(len(site.labels) * r + 1e-9) * x + 1e-9)) for x in q])
    round_seed = seeds.derive(seeds.derive(setup.plan.seed, "round", "main", t, site.name), "train")
    once = seeds.generator(setup.task.seed, "feddca", site.name) if m.validation == "fixed" else None
    return drawing.divide(site, want, 0, m.holdout, seeds.generator(round_seed, "feddca"), once)


def trained(setup, start, k, t, rows):
    module, site = deepcopy(setup.task.net.module).train(), setup.sites[k]
    module.load_state_dict({**start.params, **start.buffers})
    opt = torch.optim.SGD(module.parameters(), lr=setup.task.optimizer.lr)
    for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", t, site.name), rows):
        opt.zero_grad()
        F.cross_entropy(module(x), y).backward()
        opt.step()
    return module.eval()


def weighed(like, states, share):
    """The clients' mean; the largest count of steps."""
    mean = {
        key: sum(share[k] * s[key] for k, s in states.items()) if v.is_floating_point()
        else torch.stack([s[key] for s in states.values()]).amax(0)
        for key, v in (like.params | like.buffers).items()
    }  # fmt: skip
    return Variables({key: mean[key] for key in like.params}, {key: mean[key] for key in like.buffers})


def reference(setup, m, rounds=ROUNDS):
    """Section 2 in numbers of Python; every client is measured after it has trained."""
    task, n = setup.task, len(setup.sites)
    theta, a, q = task.net.variables(), {}, [[1 / task.classes] * task.classes] * n
    for t in range(rounds):
        ids, w = setup.plan.cohort("main", t, n), {k: 1 / max(x, 0.01) for k, x in a.items()}
        states = {}
        for k, site in ((k, setup.sites[k]) for k in ids):
            size = min(1, m.base + m.extra * (w[k] / sum(w.values()) if k in w else 0))
            train, val = rows_of(setup, m, k, t, size, q[k])
            module = trained(setup, theta, k, t, train)
            with torch.no_grad():
                ok = torch.cat([module(b.x).argmax(1) == b.y for b in site.look(val)])
            states[k], a[k] = module.state_dict(), float(ok.double().mean())
            by = [ok[site.labels[val] == c].double().mean() for c in range(task.classes)]
            inverse = [1 / max(float(x) if x == x else a[k], 0.01) for x in by]  # NaN: no image of this class
            q[k] = [m.beta / task.classes + (1 - m.beta) * x / sum(inverse) for x in inverse]
        total = sum(a[k] for k in ids)
        theta = weighed(theta, states, {k: a[k] / total if total else 1 / len(ids) for k in ids})
    return theta, [a.get(k, -1.0) for k in range(n)], q


def gap(method, like=None):
    """How far the method ends from the plain loop, which follows the settings of `like`."""
    setup = setup_of(method)
    return apart(last(setup), reference(setup, like or method))


def apart(state, truth):
    theta, a, q = truth
    ends = [difference(dict(tree.leaves(theta)), dict(tree.leaves(state.server.model)))]
    ends += [float((state.server.accuracy - torch.tensor(a, dtype=torch.float64)).abs().max())]
    ends += [
        float((memory.client.ratios - torch.tensor(q[k], dtype=torch.float64)).abs().max())
        for k, memory in state.memory.items()
    ]
    return max(ends)


@pytest.mark.parametrize("method", [TESTED, replace(TESTED, validation="redrawn", beta=0.7, base=0.5)])
def test_equals_the_plain_loop(method):
    assert gap(method) < 1e-12


@dataclass(frozen=True)
class AddsToTheOld(FedDCA):
    """Eq. 3 as printed: theta + sum_k a_k theta_k."""

    def aggregate(self, task, server, ups, cohort):
        ups = list(ups)
        done = super().aggregate(task, server, iter(ups), cohort)
        total = tree.mean([u.model.params for u in ups], [float(u.accuracy) for u in ups])
        return done._replace(model=done.model._replace(params=tree.axpy(1.0, total, server.model.params)))


@dataclass(frozen=True)
class WeighsTheBad(FedDCA):
    """Clients that do badly weigh more in the average."""

    def aggregate(self, task, server, ups, cohort):
        ups = list(ups)
        turned = super().aggregate(task, server, (u._replace(accuracy=1.01 - u.accuracy) for u in ups), cohort)
        return turned._replace(accuracy=super().aggregate(task, server, iter(ups), cohort).accuracy)


@dataclass(frozen=True)
class FeedsTheGood(FedDCA):
    """Clients that do well get more images."""

    def send(self, task, server, client):
        return super().send(task, server._replace(accuracy=1.01 - server.accuracy), client)


@dataclass(frozen=True)
class FeedsGoodClasses(FedDCA):
    """Classes that do well get more images."""

    def _ratios(self, right, seen):
        return super()._ratios(seen - right, seen)


@dataclass(frozen=True)
class MeasuresBefore(FedDCA):
    """The received model is measured, not the trained one."""

    def finish(self, task, work):
        measured, client = super().finish(task, work._replace(model=work.down.model))
        return measured._replace(model=work.model), client


@dataclass(frozen=True)
class MeasuresWhatTrained(FedDCA):
    """Training images are validation images."""

    def _drawn(self, task, work, site):
        return (super()._drawn(task, work, site)[0],) * 2


@dataclass(frozen=True)
class DrawsOnce(FedDCA):
    """The same images in every round."""

    def _drawn(self, task, work, site):
        return super()._drawn(task, work._replace(round=work.round._replace(seed=1)), site)


@dataclass(frozen=True)
class Cumulates(FedDCA):
    """Size ratios grow from the last ones, not from the base."""

    def send(self, task, server, client):
        down = super().send(task, server, client)
        return down._replace(size=(down.size + 0.1 * (server.accuracy >= 0).any()).clamp(max=1))


# -- some of the clients -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CountsUploads(FedDCA):
    """The n-th accuracy that comes is taken for client n's."""

    def aggregate(self, task, server, ups, cohort):
        return super().aggregate(task, server, ups, cohort._replace(ids=tuple(range(len(cohort.ids)))))


@pytest.mark.parametrize("method", [TESTED, CountsUploads(extra=0.9, beta=0.2)], ids=lambda m: type(m).__name__)
def test_a_cohort_equals_the_plain_loop(method):
    """Clients 0 and 2, then 1 and 2: of these one is known by now."""
    setup = setup_of(method, rounds=2, participation=0.6)
    plans = (replace(setup.plan, seed=s) for s in range(99))
    plan = next(p for p in plans if [p.cohort("main", t, 3) for t in range(2)] == [[0, 2], [1, 2]])
    setup = replace(setup, plan=plan)
    far = apart(last(setup), reference(setup, TESTED, 2))
    assert far < 1e-12 if method is TESTED else far > 1e-6


BROKEN = (
    *(AddsToTheOld, WeighsTheBad, FeedsTheGood, FeedsGoodClasses),
    *(MeasuresBefore, MeasuresWhatTrained, DrawsOnce, Cumulates),
)
OTHERWISE = (
    {"weights": "protocol"}, {"size": False}, {"classes": "balanced"}, {"classes": "off"}, {"beta": 0.25},
    {"extra": 0.6}, {"base": 0.3}, {"first": 0.2}, {"validation": "redrawn"}, {"holdout": 0.3}, {"server_lr": 0.9},
    {"mu": 0.1},
)  # fmt: skip


@pytest.fixture(scope="module")
def truth():
    return reference(setup_of(TESTED), TESTED)


@pytest.mark.parametrize(
    "mutant",
    [*(kind(extra=0.9, beta=0.2) for kind in BROKEN), *(replace(TESTED, **change) for change in OTHERWISE)],
    ids=[*(kind.__name__ for kind in BROKEN), *("-".join(map(str, *change.items())) for change in OTHERWISE)],
)
def test_the_oracle_bites(mutant, truth, monkeypatch):
    monkeypatch.setitem(globals(), "reference", lambda setup, m: truth)
    assert gap(mutant, TESTED) > 1e-6


# -- the average, on paper ---------------------------------------------------------------------------------
START = setup_of(FedDCA())


def server_of(*accuracy):
    return START.start().server._replace(accuracy=torch.tensor(accuracy, dtype=torch.float64))


def merged(method, models, accuracy):
    ids = tuple(range(len(models)))
    ups = (Scored(m, torch.tensor(a, dtype=torch.float64)) for m, a in zip(models, accuracy, strict=True))
    cohort = Cohort(ids, (1,) * len(ids), (1 / len(ids),) * len(ids), 1.0, 0, 0.1)
    return method.aggregate(START.task, START.start().server, ups, cohort)


def shifted(by):
    """The initial network with a constant added to every number."""
    return tree.map(lambda t: t + by if t.is_floating_point() else t, START.task.net.variables())


def rise(state):
    """By how much every parameter stands above the initial one; NaN where they differ."""
    start = START.task.net.variables().params
    up = torch.cat([(state.model.params[k] - p).flatten() for k, p in start.items()])
    return float(up.mean()) if float(up.max() - up.min()) < 1e-12 else float("nan")


def test_weights_are_accuracies_over_their_sum():
    models = [shifted(by) for by in (0.0, 1.0, 4.0)]
    assert rise(merged(FedDCA(), models, (0.6, 0.3, 0.1))) == pytest.approx(0.3 + 0.4)
    assert rise(merged(FedDCA(), models, (60, 30, 10))) == pytest.approx(0.7)  # per cent cancel
    assert rise(merged(FedDCA(server_lr=0.5), models, (0.6, 0.3, 0.1))) == pytest.approx(0.35)
    assert rise(merged(FedDCA(), models, (0.0, 0.0, 0.0))) == pytest.approx(5 / 3)  # all zero: alike
    assert rise(merged(FedDCA(), models, (0.0, 0.0, 0.2))) == pytest.approx(4)
    assert rise(merged(FedDCA(weights="protocol"), models, (0.6, 0.3, 0.1))) == pytest.approx(5 / 3)
    assert rise(merged(AddsToTheOld(), models, (0.6, 0.3, 0.1))) != pytest.approx(0.7)


def test_equal_models_stay_as_they_are():
    """To the bit, round after round: nothing is added to the old model."""
    model = shifted(0.25)
    end = merged(FedDCA(), [model] * 3, (0.7, 0.2, 0.4)).model
    assert difference(dict(tree.leaves(model)), dict(tree.leaves(end))) == 0
    grown = merged(AddsToTheOld(), [model] * 3, (0.7, 0.2, 0.4)).model
    assert difference(dict(tree.leaves(model)), dict(tree.leaves(grown))) > 1e-3


# -- ratios ------------------------------------------------------------------------------------------------
def sizes(method, *accuracy):
    return [float(method.send(START.task, server_of(*accuracy), k).size) for k in range(3)]


def test_size_ratios_on_paper():
    assert sizes(FedDCA(), 0.5, 0.25, 0.25) == pytest.approx([0.35 + 0.2 * w for w in (0.2, 0.4, 0.4)])
    assert sizes(FedDCA(), -1, -1, -1) == [0.35] * 3  # before anybody was measured
    assert sizes(FedDCA(), 0.5, -1, 0.5) == pytest.approx([0.45, 0.35, 0.45])  # who never took part has the base
    assert sizes(FedDCA(base=0.9), 0.5, 0.0, 0.5) == pytest.approx([0.9 + 0.2 / 52, 1, 0.9 + 0.2 / 52])
    assert sizes(FedDCA(size=False), 0.5, 0.0, 0.5) == [0.35] * 3
    assert float(FedDCA().send(START.task, server_of(0.5, 0.2, 0.3), None).size) == 0.35  # a new site


ACCURACY = st.floats(0, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACCURACY, min_size=3, max_size=3), st.floats(0.01, 1), st.floats(0, 1))
def test_size_ratios_lie_between_their_bounds_and_favour_low_accuracy(accuracy, base, extra):
    r = sizes(FedDCA(base=base, extra=extra), *accuracy)
    assert all(base - 1e-12 <= x <= min(1, base + extra) + 1e-12 for x in r)
    assert sum(r) <= 3 * base + extra + 1e-9
    assert all(r[i] >= r[j] - 1e-12 for i in range(3) for j in range(3) if accuracy[i] <= accuracy[j])


def ratios(method, right, seen):
    return method._ratios(torch.tensor(right, dtype=torch.float64), torch.tensor(seen, dtype=torch.float64)).tolist()


def test_class_ratios_on_paper():
    """a = (1, 1/2, nothing seen): the mean 3/4 stands in; as in the release it counts as 1 %."""
    assert ratios(FedDCA(), [2, 1, 0], [2, 2, 0]) == pytest.approx([0.1 + 0.7 * w / 13 for w in (3, 6, 4)])
    release = ratios(FedDCA(absent="zero"), [2, 1, 0], [2, 2, 0])
    assert release == pytest.approx([0.1 + 0.7 * w / 103 for w in (1, 2, 100)])
    assert ratios(FedDCA(beta=1), [2, 1, 0], [2, 2, 0]) == pytest.approx([1 / 3] * 3)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12), ACCURACY)
def test_class_ratios_sum_to_one_and_favour_low_accuracy(counts, beta):
    right, seen = [min(pair) for pair in counts], [max(pair) for pair in counts]
    for absent in ("mean", "zero"):
        q = ratios(FedDCA(beta=beta, absent=absent), right, seen)
        assert sum(q) == pytest.approx(1, abs=1e-12) and all(x >= beta / len(q) - 1e-12 for x in q)
        a = [r / s for r, s in zip(right, seen, strict=True) if s]
        mine = [x for x, s in zip(q, seen, strict=True) if s]
        assert all(x >= y - 1e-12 for x, b in zip(mine, a, strict=True) for y, c in zip(mine, a, strict=True) if b <= c)


def test_the_first_round():
    down = Down(shifted(0.0), torch.tensor(0.35, dtype=torch.float64))
    first = {
        m: m.init_client(START.task, down).ratios.tolist() for m in (FedDCA(), RELEASE, FedDCA(classes="balanced"))
    }
    assert first[FedDCA()] == first[FedDCA(classes="balanced")] == [1 / 3] * 3 and first[RELEASE] == [0.01] * 3


# -- draws -------------------------------------------------------------------------------------------------
def drawn(method, site, size=0.35, q=(1 / 3,) * 3, seed=0):
    """What a client trains on and what it measures, in a round of this seed."""
    down = Down(START.task.net.variables(), torch.tensor(size, dtype=torch.float64))
    client = Client(torch.tensor(q, dtype=torch.float64))
    work = method.begin(START.task, down, client, Round(0, ROUNDS, 0.02, 1, len(site.labels), seed), site)
    again, measured = method._drawn(START.task, work, site)
    assert torch.equal(work.rows, again)
    return work.rows, measured


@pytest.mark.parametrize(
    ("method", "size", "q", "number"),
    [
        (FedDCA(), 0.5, (0.5, 0.3, 0.2), [13, 7, 5]),
        (FedDCA(), 1.0, (0.5, 0.3, 0.2), [14, 14, 10]),  # of the first 26 are wanted
        (FedDCA(), 0.35, (0.01, 0.01, 0.98), [1, 1, 14]),  # one at least
    ],
)
def test_a_draw_on_paper(method, size, q, number):
    """52 images, of which 3, 4 and 3 of the classes are held out, so that there are 14 of each to draw from."""
    site = START.sites[0]
    assert torch.bincount(site.labels).tolist() == [17, 18, 17]
    rows, measured = drawn(method, site, size, q)
    assert torch.bincount(site.labels[rows], minlength=3).tolist() == number
    assert torch.bincount(site.labels[measured]).tolist() == [3, 4, 3]


def test_draws_of_other_kinds():
    site = START.sites[0]
    rows, _ = drawn(FedDCA(refill=True), site, 0.8, (0.2, 0.5, 0.3))  # 8, 20 and 12 wanted, 14 of the second there
    counts = torch.bincount(site.labels[rows], minlength=3).tolist()
    assert sum(counts) == 40 and counts[1] == 14 and counts[0] >= 8 and counts[2] >= 12
    assert len(drawn(FedDCA(classes="off"), site, 0.5)[0]) == 26
    assert len(drawn(RELEASE, site, 0.5, (0.01,) * 3)[0]) == 3  # of four one is measured


def test_training_validation_and_test_share_no_picture():
    """By row of the data set, over all rounds; only the release's redrawn validation is trained on at other times."""
    for method in (FedDCA(), RELEASE):
        experiment = Case(method, left_out=()).experiment()
        dealt = deal(DATA, experiment.data, experiment.seed)
        for site in START.sites:
            own = dealt.train[site.name][site.name]
            assert torch.equal(DATA.domain(site.name).labels[own], site.labels)
            apart, train, val = {*dealt.test[site.name][site.name].tolist()}, set(), set()
            for seed in range(6):
                mine, measured = drawn(method, site, 0.6, seed=seed)
                assert not set(mine.tolist()) & set(measured.tolist())
                train |= {*own[mine].tolist()}
                val |= {*own[measured].tolist()}
            assert not apart & (train | val) and train and val
            assert bool(train & val) == (method is RELEASE)


def test_draws_are_used_whole():
    """local.sample is for methods that choose nothing."""
    whole = setup_of(TESTED, rounds=1)
    half = replace(whole, sites=tuple(replace(s, budget=replace(s.budget, sample=0.5)) for s in whole.sites))
    assert difference(everything(last(whole)), everything(last(half))) == 0
    fedavg = setup_of(FedAvg(), rounds=1)
    fewer = replace(fedavg, sites=tuple(replace(s, budget=replace(s.budget, sample=0.5)) for s in fedavg.sites))
    assert difference(everything(last(fedavg)), everything(last(fewer))) > 0


def test_the_proximal_term():
    """One step of the corrected gradient is g + mu (theta - theta_global)."""
    down = Down(shifted(0.0), torch.tensor(0.35))
    work = Work(shifted(2.0), down, None, Round(0, 1, 0.1, 1, 1, 0))
    zero = tree.zeros(down.model.params)
    pulled = FedDCA(mu=0.5).correct(START.task, zero, work)
    assert all(torch.allclose(g, torch.ones_like(g)) for g in pulled.values())
    assert FedDCA().correct(START.task, zero, work) is zero


# -- bad luck and bad input ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class NeverRight(FedDCA):
    """Every client says that its accuracy is zero, overall and by class."""

    def _ratios(self, right, seen):
        return super()._ratios(torch.zeros_like(right), seen)

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return up._replace(accuracy=torch.zeros_like(up.accuracy)), client


def test_zero_accuracy_everywhere():
    """The plain mean, even ratios, and nothing that is not finite."""
    setup = setup_of(NeverRight())
    for state in trajectory(setup):
        assert tree.first_bad(everything(state)) is None
    assert sizes(NeverRight(), *state.server.accuracy.tolist()) == pytest.approx([0.35 + 0.2 / 3] * 3)
    assert all(m.client.ratios.tolist() == pytest.approx([1 / 3] * 3) for m in state.memory.values())


def test_no_floor_under_accuracies_is_noticed(monkeypatch):
    """One over zero is a share of nothing."""
    for module in (drawing, feddca):
        monkeypatch.setattr(module, "inverse_shares", partial(drawing.inverse_shares, floor=0.0))
    assert math.isnan(sizes(NeverRight(), 0.0, 0.0, 0.0)[0])
    with pytest.raises((AssertionError, ValueError)):
        test_zero_accuracy_everywhere()


def test_one_client_alone_is_its_own_average():
    setup = Case(FedDCA(), left_out=("domain0", "domain1")).setup(rounds=2)
    assert len(setup.sites) == 1
    for state in trajectory(setup):
        down = setup.method.send(setup.task, state.server, 0)
        assert float(down.size) == pytest.approx(0.55) and tree.first_bad(everything(state)) is None


def lacking():
    """The second domain has no image of class 2, the third one of a single class."""
    kinds = [torch.arange(40) % 3, torch.arange(30) % 2, torch.ones(24, dtype=torch.int64)]
    gen = torch.Generator().manual_seed(0)
    pictures = [torch.randint(0, 255, (len(k), 3, 8, 8), generator=gen).to(torch.uint8) for k in kinds]
    return Dataset(
        "gaps", ("0", "1", "2"), tuple(Domain(f"d{i}", *x) for i, x in enumerate(zip(pictures, kinds, strict=True)))
    )


@pytest.mark.parametrize("method", [FedDCA(), FedDCA(refill=True), RELEASE], ids=("default", "refill", "release"))
def test_a_client_that_lacks_classes(method):
    setup = setup_of(method, data=lacking())
    for state in trajectory(setup):
        assert tree.first_bad(everything(state)) is None
    q = state.memory[2].client.ratios
    assert float(q.sum()) == pytest.approx(1)
    if method.absent == "mean":  # a class that is not there is no worse than the others
        assert q.tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("sizes", [(60, 4, 50), (60, 50, 4)])
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_a_site_that_is_too_small_is_refused_before_anything_is_written(tmp_path, sizes, participation):
    """Though it may take part much later: what is held out follows from the run's seed, its name and its labels."""
    run = Case(FedDCA(), left_out=()).experiment(rounds=12, participation=participation)
    site = f"domain{sizes.index(4)}"
    with pytest.raises(DataError, match=rf"site {site}: found \d images, .* expected two and one at least"):
        list(execute(run, Folder(tmp_path / "run"), tiny_data(sizes, classes=4)))
    assert not (tmp_path / "run").exists()


def test_nothing_is_decided_by_what_is_not_measured():
    with pytest.raises(ConfigError, match="holdout is 0, and accuracies decide"):
        FedDCA(holdout=0.0)
    with pytest.raises(ConfigError, match=r"^method: holdout is 0"):
        build(Experiment, {"method": {"name": "feddca", "holdout": 0.0, "size": False}})
    assert FedDCA(**FedDCA.card.neutral).holdout == 0


# -- every option keeps the contract, and the ablation ------------------------------------------------------
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "method",
    [RELEASE, FedDCA(weights="protocol", classes="off", refill=True, mu=0.1, server_lr=0.7, first=0.2)],
    ids=("release", "blind"),
)
def test_contract(method, check):
    CHECKS[check](Case(method))


def test_the_eight_cells_of_the_ablation_differ():
    cells = [
        FedDCA(weights=w, size=s, classes=c, extra=0.9)
        for w in ("accuracy", "protocol")
        for s in (True, False)
        for c in ("adaptive", "balanced")
    ]
    ends = [models_by_site(setup, last(setup)) for setup in (setup_of(m, rounds=2) for m in cells)]
    assert all(difference(a, b) > 1e-9 for i, a in enumerate(ends) for b in ends[:i])


# -- presets -----------------------------------------------------------------------------------------------
def experiment(name, method, data="domainnet-10-feddca"):
    s = preset(name, data, method)
    return build(Experiment, {**s, "method": {"name": method, **s.get("method", {})}})


def test_the_sound_preset_gives_both_the_same_and_tests_on_other_pictures():
    one, two = experiment("feddca-sound", "feddca"), experiment("feddca-sound", "fedavg")
    assert one == replace(two, method=one.method) and one.method == FedDCA()
    assert two.local.sample == one.method.base == 0.35 and two.data.leak == "no" and two.data.test == 0.2
    assert two.federation.common_init and len(PRESETS["feddca-sound"].seeds) == 3


def test_the_report_preset_has_the_faults():
    one, two = experiment("feddca-report", "feddca"), experiment("feddca-report", "fedavg")
    assert one.method == RELEASE and one.data.leak == "test-on-training-images" and one.local.keep_optimizer
    assert one.optimizer.name == "adam" and two.optimizer == SGD(lr=1e-3)
    assert not one.federation.common_init and two.federation.common_init
    assert (one.federation.rounds, two.federation.rounds) == (20, 19)
    rounds = [experiment("feddca-report", m, "digits5").federation.rounds for m in ("feddca", "fedavg")]
    assert rounds == [5, 4]
