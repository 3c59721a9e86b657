"""Each method against a plain loop of torch.optim and state dicts; and each loop against a broken method.

`trained` is one client's local round as anybody would write it; a method's oracle combines such rounds by its paper.
"""

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import seeds, tree
from fedshift.core.keeping import Own
from fedshift.core.net import Part, Variables, part
from fedshift.core.optim import SGD
from fedshift.methods.central import Central
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.fedprox import FedProx
from fedshift.methods.local import Local
from fedshift.methods.scaffold import Scaffold, Server
from fedshift.testing import Case, last

MOMENTUM = SGD(lr=0.05, momentum=0.9, weight_decay=1e-3)
PLAIN = SGD(lr=0.05)


def setup_of(method, optimizer=MOMENTUM, rounds=2, **federation):
    setup = Case(method, optimizer=optimizer).setup(rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


def trained(setup, start, i, r, penalty=lambda module: 0.0, edit=lambda module: None):
    """Client i's state dict after round r, by torch.optim."""
    module, o, site = deepcopy(setup.task.net.module), setup.task.optimizer, setup.sites[i]
    module.load_state_dict(start)
    module.train()
    opt = torch.optim.SGD(module.parameters(), lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
    for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", r, site.name)):
        opt.zero_grad()
        (F.cross_entropy(module(x), y) + penalty(module)).backward()
        edit(module)
        opt.step()
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def initial(setup):
    return {k: v.clone() for k, v in setup.task.net.module.state_dict().items()}


def weighted(setup, states, uniform=False):
    n = torch.tensor([1.0 if uniform else s.examples for s in setup.sites], dtype=torch.float64)
    mixed = {k: sum(w * s[k] for w, s in zip(n / n.sum(), states, strict=True)) for k in states[0]}
    return {k: v if states[0][k].is_floating_point() else states[0][k] * 0 + v for k, v in mixed.items()}


def gap(setup, model: Variables | Part, reference):
    """Largest difference over all floating tensors of a model."""
    ours = {**model.params, **model.buffers}
    return max(float((ours[k] - reference[k]).abs().max()) for k in ours if ours[k].is_floating_point())


def fedavg_gap(method, **federation):
    setup = setup_of(method, **federation)
    state = initial(setup)
    for r in range(2):
        state = weighted(setup, [trained(setup, state, i, r) for i in range(2)], federation.get("weights") == "uniform")
    return gap(setup, last(setup).server.model, state)


def fedprox_gap(method):
    setup = setup_of(method)
    state = initial(setup)

    def penalty(module, w_t):
        return 0.35 / 2 * sum((w - w_t[k]).square().sum() for k, w in module.named_parameters())

    for r in range(2):
        done = [trained(setup, state, i, r, lambda m, w_t=state: penalty(m, w_t)) for i in range(2)]
        state = weighted(setup, done)
    return gap(setup, last(setup).server.model, state)


def scaffold_gap(method, weights="uniform"):
    """Algorithm 1 with option II, three rounds; c_i <- c_i - c + (x - y_i) / (K eta)."""
    setup = setup_of(method, PLAIN, rounds=3, weights=weights)
    x, names = initial(setup), list(dict(setup.task.net.module.named_parameters()))
    c = {k: torch.zeros_like(x[k]) for k in names}
    ci = [dict(c) for _ in setup.sites]

    def add(module, i):
        for k, p in module.named_parameters():
            p.grad += c[k] - ci[i][k]

    for r in range(3):
        done = [trained(setup, x, i, r, edit=lambda m, i=i: add(m, i)) for i in range(2)]
        k_eta = [s.steps() * 0.05 for s in setup.sites]
        ci = [{k: ci[i][k] - c[k] + (x[k] - done[i][k]) / k_eta[i] for k in names} for i in range(2)]
        x = weighted(setup, done, weights == "uniform")
        c = weighted(setup, ci, weights == "uniform")  # everybody took part: c stays the mean of the c_i
    server = last(setup).server
    return max(gap(setup, server.model, x), max(float((server.c[k] - c[k]).abs().max()) for k in names))


def fedbn_gap(method):
    setup = setup_of(method)
    norm = {
        f"{p}.{n}"
        for p, m in setup.task.net.module.named_modules()
        if isinstance(m, torch.nn.BatchNorm2d)
        for n in m.state_dict()
    }
    own = [initial(setup) for _ in setup.sites]
    for r in range(2):
        done = [trained(setup, own[i], i, r) for i in range(2)]
        shared = weighted(setup, done)
        own = [{k: done[i][k] if k in norm else shared[k] for k in shared} for i in range(2)]
    state = last(setup)
    models = [setup.method.model_for(setup.task, setup.method.send(setup.task, state.server, i),
                                     state.memory[i].client) for i in range(2)]  # fmt: skip
    return max(gap(setup, m, o) for m, o in zip(models, own, strict=True))


def local_gap(method):
    setup = setup_of(method)
    own = [initial(setup) for _ in setup.sites]
    for r in range(2):
        own = [trained(setup, own[i], i, r) for i in range(2)]
    memory = last(setup).memory
    return max(gap(setup, memory[i].client.model, own[i]) for i in range(2))


def central_gap(method):
    setup = setup_of(method)
    assert len(setup.sites) == 1 and setup.sites[0].examples == sum(Case(FedAvg()).setup().task.examples)
    state = initial(setup)
    for r in range(2):
        state = trained(setup, state, 0, r)
    return gap(setup, last(setup).server.model, state)


@pytest.mark.parametrize(
    ("oracle", "method"),
    [
        (fedavg_gap, FedAvg()),
        (fedprox_gap, FedProx(mu=0.35)),
        (scaffold_gap, Scaffold()),
        (fedbn_gap, FedBN()),
        (local_gap, Local()),
        (central_gap, Central()),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_equals_the_plain_loop(oracle, method):
    assert oracle(method) < 1e-12


def test_weights_of_the_protocol():
    assert fedavg_gap(FedAvg(), weights="uniform") < 1e-12
    assert scaffold_gap(Scaffold(), weights="examples") < 1e-12


@dataclass(frozen=True)
class EqualWeights(FedAvg):
    """Ignores the sizes of the sites."""

    def aggregate(self, task, server, ups, cohort):
        return tree.mean(ups, [1 / len(cohort.ids)] * len(cohort.ids))


@dataclass(frozen=True)
class StatisticsStay(FedAvg):
    """Averages parameters alone, as several libraries do."""

    def aggregate(self, task, server, ups, cohort):
        mean = super().aggregate(task, server, ups, cohort)
        return mean._replace(model=mean.model._replace(buffers=server.model.buffers))


@dataclass(frozen=True)
class TwiceMu(FedProx):
    """The gradient of mu ||w - w_t||^2."""

    def correct(self, task, grads, work):
        w_t = work.down.model.params
        return tree.map(lambda g, w, o: g + 2 * self.mu * (w - o), grads, work.model.params, w_t)


@dataclass(frozen=True)
class Unsquared(FedProx):
    """The gradient of mu/2 ||w - w_t||."""

    def correct(self, task, grads, work):
        move = tree.sub(work.model.params, work.down.model.params)
        return tree.axpy(self.mu / 2 / float(tree.sq_norm(move).sqrt() + 1e-12), move, grads)


@dataclass(frozen=True)
class FlippedVariate(Scaffold):
    """The correction with the wrong sign."""

    def correct(self, task, grads, work):
        return tree.map(lambda g, ci, c: g + ci - c, grads, work.client.c, work.down.c)


@dataclass(frozen=True)
class StartsFromWeights(Scaffold):
    """Control variates that begin as the model's weights, as one released baseline has it."""

    def init_client(self, task, down, before=None):
        return super().init_client(task, down)._replace(c=tree.clone(down.model.params))


@dataclass(frozen=True)
class ForgetsServerVariate(Scaffold):
    """c_i+ = c_i + (x - y_i) / (K eta)."""

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return up, client._replace(c=tree.axpy(1.0, work.down.c, client.c))


@dataclass(frozen=True)
class BySubstring(FedBN):
    """Keeps the tensors whose names contain 'bn'."""

    def finish(self, task, work):
        up, _ = super().finish(task, work)
        own = [k for k in (*work.model.params, *work.model.buffers) if "bn" in k]
        return up, Own(part(work.model, own))


@dataclass(frozen=True)
class StatisticsOnly(FedBN):
    """Keeps running statistics but not the affine part."""

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return up, Own(client.model._replace(params={}))


@dataclass(frozen=True)
class StartsAfresh(Local):
    """Forgets its model from round to round."""

    def begin(self, task, down, client, round, site):
        return super().begin(task, down, self.init_client(task, down), round, site)


@pytest.mark.parametrize(
    ("oracle", "mutant"),
    [
        (fedavg_gap, EqualWeights()),
        (fedavg_gap, StatisticsStay()),
        (fedprox_gap, TwiceMu(mu=0.35)),
        (fedprox_gap, Unsquared(mu=0.35)),
        (fedprox_gap, FedProx(mu=0.0)),
        (scaffold_gap, FlippedVariate()),
        (scaffold_gap, StartsFromWeights()),
        (scaffold_gap, ForgetsServerVariate()),
        (fedbn_gap, BySubstring()),
        (fedbn_gap, StatisticsOnly()),
        (local_gap, StartsAfresh()),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_oracle_bites(oracle, mutant):
    assert oracle(mutant) > 1e-6


def test_scaffold_after_one_step_knows_every_gradient():
    """K = 1: c_i = g_i(x) and c = mean of the g_i, exactly Eq. 4 with y_i = x - eta g_i."""
    setup = Case(Scaffold(), optimizer=PLAIN).setup(rounds=1, weights="uniform")
    sites = tuple(_whole_batch(s) for s in setup.sites)
    object.__setattr__(setup, "sites", sites)
    state = last(setup)
    x = setup.task.net.variables()
    grads = []
    for site in sites:
        (batch,) = site.batches(0)
        out = setup.task.net(Variables({k: p.requires_grad_() for k, p in x.params.items()}, tree.clone(x.buffers)),
                             batch.x, train=True)  # fmt: skip
        g = torch.autograd.grad(F.cross_entropy(out.logits, batch.y), list(x.params.values()))
        grads.append(dict(zip(x.params, g, strict=True)))
    for i, g in enumerate(grads):
        assert max(float((state.memory[i].client.c[k] - g[k]).abs().max()) for k in g) < 1e-12
    assert isinstance(state.server, Server)
    assert max(float((state.server.c[k] - (grads[0][k] + grads[1][k]) / 2).abs().max()) for k in grads[0]) < 1e-12


def _whole_batch(site):
    from dataclasses import replace

    return replace(site, budget=replace(site.budget, batch=site.examples, epochs=1))


def test_scaffold_partial_cohort_divides_by_all_clients():
    """Two of four equal clients: c moves by |S|/N = 1/2 of the mean change (line 17 of Algorithm 1)."""
    from fedshift.core.average import weigh
    from fedshift.core.task import Rules

    weights, share = weigh(Rules("uniform"), [1, 3], [10, 20, 30, 40])
    assert weights == (0.5, 0.5) and share == 0.5
    weights, share = weigh(Rules("examples"), [1, 3], [10, 20, 30, 40])
    assert weights == pytest.approx((1 / 3, 2 / 3)) and share == pytest.approx(0.6)


def test_fedbn_on_a_resnet_keeps_shortcut_norms_too():
    """20 BatchNorm layers of 5 tensors each; three of them are called downsample.1."""
    from fedshift import models
    from fedshift.core.net import BATCH_NORM, Net

    net = Net(models.build("resnet18", (3, 32, 32), 4))
    own = net.under(*BATCH_NORM)
    assert len(own) == 100
    assert {k for k in own if "downsample" in k} and all("downsample.1" in k for k in own if "downsample" in k)


def test_fedbn_sends_no_norm_down_and_none_up_when_told():
    setup = setup_of(FedBN(report_norm=False))
    state = last(setup)
    down = setup.method.send(setup.task, state.server, 0)
    norm = {k for k in setup.task.net.module.state_dict() if k.split(".")[-1].startswith(("running", "num"))}
    assert norm and not norm & set(down.model.buffers) and not down.model.buffers
    up_total, down_total = state.bytes_up, state.bytes_down
    assert up_total == down_total == 2 * 2 * tree.nbytes(down)
