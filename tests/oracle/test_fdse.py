"""FDSE against a plain loop of torch.optim, hooks and state dicts; and that loop against broken methods."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import consistency, eraser, seeds, tree
from fedshift.core.algorithm import Algorithm
from fedshift.core.erasing import Client, Shared
from fedshift.core.errors import MessageError, ModelError, UnseenSite
from fedshift.core.local import descend
from fedshift.core.minnorm import consensus
from fedshift.core.net import Part, overlay, part
from fedshift.core.optim import SGD
from fedshift.core.task import Cohort, Loss, Phase, Round
from fedshift.data import presets
from fedshift.engines.base import adapted
from fedshift.experiment.config import ModelConfig
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.methods.fdse import FDSE
from fedshift.testing import CHECKS, Case, difference, last, models_by_site, tiny_data, trajectory

ROUNDS = 3
TESTED = FDSE(lam=0.5, beta=0.3, tau=0.05, gamma=0.8)
OPTIMIZER = SGD(lr=0.05, weight_decay=1e-3, clip=10.0)


def setup_of(method, model="small-cnn", left_out=(), rounds=ROUNDS, **federation):
    case = Case(method, model, optimizer=OPTIMIZER, left_out=left_out)
    setup = case.setup(rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


# -- the paper, by torch.optim and state dicts -----------------------------------------------------------
def owners(module):
    """Names by the place of their module in the eraser: shared, personal, local; and the norms behind, in order."""
    own = [(k, m) for k, m in module.named_modules() if type(m).__name__ == "Eraser"]
    personal = [f"{k}.{p}" for k, _ in own for p in ("norm.weight", "norm.bias", "erase.weight")]
    local = [f"{k}.norm.{p}" for k, _ in own for p in ("running_mean", "running_var", "num_batches_tracked")]
    shared = [k for k in module.state_dict() if k not in personal and k not in local]
    return shared, personal, local, [m.feeds for _, m in own]


def distance(m, mean, var, mu, s):
    """Eq. 6, or the divergence between normal distributions."""
    if m.reg == "moments":
        return ((mean - mu) ** 2).mean() + (var.mean() - s.mean()) ** 2
    p, q = (torch.distributions.Normal(a, (b + 1e-8).sqrt()) for a, b in ((mu, s), (mean, var)))
    return torch.distributions.kl_divergence(p, q).mean()


class Watcher:
    """Eq. 4 to 7 by hooks on a module: `penalty()` after each forward pass."""

    def __init__(self, m, module, given):
        self.m, self.given, self.norms, self.seen, self.old = m, given, owners(module)[3], {}, {}
        for name in self.norms:
            module.get_submodule(name).register_forward_pre_hook(
                lambda _, args, name=name: self.seen.__setitem__(name, args[0])
            )

    def penalty(self):
        far = []
        for name in self.norms:
            x = self.seen[name].transpose(0, 1).flatten(1)
            mu, s = self.given[f"{name}.running_mean"], self.given[f"{name}.running_var"]
            new = x.mean(1), x.var(1, correction=0)
            was = self.old.get(name) or (new if self.m.stat_init == "first_batch" else (mu, s))
            now = [self.m.gamma * a.detach() + (1 - self.m.gamma) * b for a, b in zip(was, new, strict=True)]
            self.old[name] = [a.detach() for a in now]
            far.append(distance(self.m, *now, mu, s))
        return torch.softmax(self.m.beta * torch.arange(1.0, len(far) + 1).double(), 0) @ torch.stack(far)


def trained(setup, m, start, given, i, t):
    """Client i's state dict after round t, from its own."""
    module, o = deepcopy(setup.task.net.module).train(), setup.task.optimizer
    module.load_state_dict(start)
    watcher, opt = Watcher(m, module, given), torch.optim.SGD(module.parameters(), o.lr, weight_decay=o.weight_decay)
    site = setup.sites[i]
    for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", t, site.name)):
        opt.zero_grad()
        loss = F.cross_entropy(module(x), y)
        (loss + m.lam * watcher.penalty() if t + 1 >= m.reg_start else loss).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), o.clip)
        opt.step()
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def shortest(d):
    """The shortest vector in the convex hull of the rows: the best of those in the planes of its subsets."""
    best = min(d, key=lambda r: float(r.norm()))
    for free in (list(c) for size in range(2, len(d) + 1) for c in combinations(range(len(d)), size)):
        base, edges = d[free[0]], (d[free[1:]] - d[free[0]]).T
        u = torch.linalg.lstsq(edges, -base[:, None], driver="gelsd").solution[:, 0]
        point = base + edges @ u
        if bool((u >= 0).all()) and float(u.sum()) <= 1 and float(point.norm()) < float(best.norm()):
            best = point
    return best


def agreed(m, old, done, names):
    """Section 3.3.1 for tensors that make one direction."""
    change = torch.stack([torch.cat([(s[k] - old[k]).flatten() for k in names]) for s in done])
    n = change.norm(dim=1)
    step = n.mean() * shortest(change[n > 1e-12] / n[n > 1e-12, None]) if bool((n > 1e-12).any()) else 0 * change[0]
    parts = step.split([old[k].numel() for k in names])
    return {k: old[k] + x.view_as(old[k]) for k, x in zip(names, parts, strict=True)}


def weighted(setup, done, names):
    n = torch.tensor([s.examples for s in setup.sites], dtype=torch.float64)
    return {k: sum(w * s[k] for w, s in zip(n / n.sum(), done, strict=True)) for k in names}


def attended(m, done, k):
    """Section 3.3.2 for one tensor."""
    v = torch.stack([s[k].flatten() for s in done])
    cos = F.cosine_similarity(v[:, None], v[None], dim=2)
    return (torch.softmax(cos / m.tau, 1) @ v).view(-1, *done[0][k].shape)


@cache
def reference(m, model, left_out, rounds):
    """Algorithm 1: what each client holds at the end, and what the server has for a new site."""
    setup = setup_of(m, model, left_out, rounds)
    module = setup.task.net.module
    shared, personal, _, _ = owners(module)
    params = {k for k, _ in module.named_parameters()}
    layers = [[k] for k in shared if k in params] if m.group == "tensor" else eraser.blocks(module).values()
    everyones = {k: v.clone() for k, v in module.state_dict().items()}
    own = [dict(everyones) for _ in setup.sites]
    for t in range(rounds):
        done = [trained(setup, m, start, everyones, i, t) for i, start in enumerate(own)]
        mean = weighted(setup, done, everyones)
        new = {k: x for names in layers for k, x in agreed(m, everyones, done, list(names)).items()}
        everyones = mean if m.consensus == "mean" else mean | new
        mixed = {k: attended(m, done, k) for k in personal}
        for i, s in enumerate(done):
            mine = {"attention": {k: mixed[k][i] for k in personal}, "mean": {k: mean[k] for k in personal}, "own": {}}
            own[i] = s | {k: everyones[k] for k in shared} | mine[m.erasers]
    return own, everyones


def gap(method, like=None, model="small-cnn", left_out=(), rounds=ROUNDS):
    """How far the sites' models and the new site's are from the plain loop's, which follows the settings of `like`."""
    setup = setup_of(method, model, left_out, rounds)
    state, (own, newcomer) = last(setup), reference(like or method, model, left_out, rounds)
    worst = 0.0
    for i, plain in enumerate([*own, newcomer]):
        site = i if i < len(own) else None
        client = None if site is None else state.memory[i].client
        found = setup.method.model_for(setup.task, setup.method.send(setup.task, state.server, site), client)
        ours = found.params | found.buffers
        assert set(ours) == set(plain)
        worst = max(worst, *(float((x - plain[k]).abs().max()) for k, x in ours.items() if x.is_floating_point()))
    return worst


@pytest.mark.parametrize(
    "method",
    [
        TESTED,
        replace(TESTED, reg="gauss_kl", stat_init="global", reg_start=1),
        replace(TESTED, group="layer", act="none", ratio=3, kernel=1),
        replace(TESTED, consensus="mean", erasers="own", lam=2.0),
        replace(TESTED, erasers="mean", act="leaky", reg_start=3),
        replace(TESTED, consensus="mean", erasers="mean", lam=0.0),
    ],
    ids=("default", "gauss_kl", "layer", "A off", "B off", "ABC off"),
)
def test_equals_the_plain_loop(method):
    assert gap(method) < 1e-10


def test_equals_the_plain_loop_on_linear_layers():
    assert gap(TESTED, model="mlp", left_out=("domain1",)) < 1e-10


# -- mutants ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FromTheFirstRound(FDSE):
    """The regulariser compares with the statistics of an untrained network."""

    def begin(self, task, down, client, round, site):
        work = super().begin(task, down, client, round, site)
        return work._replace(aux=work.aux._replace(weight=torch.full_like(work.aux.weight, self.lam)))


@dataclass(frozen=True)
class AgainstItsOwnStatistics(FDSE):
    """Everybody's statistics are read where the forward pass has just written."""

    def loss(self, task, work, batch):
        return super().loss(task, work._replace(down=Shared(Part(*work.model))), batch)


@dataclass(frozen=True)
class ForgetsItsEstimates(FDSE):
    """Each batch's statistics alone."""

    def loss(self, task, work, batch):
        loss = super().loss(task, work, batch)
        return loss._replace(aux=work.aux)


@dataclass(frozen=True)
class AveragesStatisticsInside(FDSE):
    """The statistics inside the erasers are everybody's, as in FedAvg."""

    def model_for(self, task, down, client):
        return overlay(task.net.variables(), down.model)

    def send(self, task, server, client):
        sent, local = super().send(task, server, client), eraser.names(task.net.module).local
        return Shared(overlay(sent.model, part(server.model, local)))


@dataclass(frozen=True)
class KeepsStatisticsBehind(FDSE):
    """The statistics of the norms behind the erasers are the site's own, as in FedBN."""

    def finish(self, task, work):
        up, _ = super().finish(task, work)
        return up, Client(Part({}, work.model.buffers))


@dataclass(frozen=True)
class ErasersAgreeToo(FDSE):
    """The text's misprint: minimum norm on the erasers."""

    def _mixed(self, server, got, mean, cohort):
        old = {k: rows[0] for k, rows in server.erasers.items()}
        step = consensus([{k: m.params[k] - old[k] for k in old} for m in got], {k: (k,) for k in old})
        return {k: (old[k] + step[k]).expand_as(rows).clone() for k, rows in server.erasers.items()}


@dataclass(frozen=True)
class MeanAfterTheWeights(FDSE):
    """Clients' lengths are not shared: each direction is one long."""

    def _agreed(self, task, server, got):
        old = server.model.params
        names = [k for block in eraser.blocks(task.net.module).values() for k in block]
        unit = [{k: (m.params[k] - old[k]) / (m.params[k] - old[k]).norm() for k in names} for m in got]
        step = consensus(unit, {k: (k,) for k in names})
        return {k: old[k] + step[k] for k in names}


@dataclass(frozen=True)
class MixesUnitVectors(FDSE):
    """What attention mixes are the normalised erasers."""

    def _mixed(self, server, got, mean, cohort):
        unit = [m._replace(params={k: t / (t.norm() + 1e-12) for k, t in m.params.items()}) for m in got]
        return super()._mixed(server, unit, mean, cohort)


@dataclass(frozen=True)
class OthersErasers(FDSE):
    """Rows in the wrong order."""

    def send(self, task, server, client):
        return super().send(task, server, None if client is None else (client + 1) % task.clients)


SETTINGS = {"lam": 0.5, "beta": 0.3, "tau": 0.05, "gamma": 0.8}
AT_CLIENTS = (FromTheFirstRound, AgainstItsOwnStatistics, ForgetsItsEstimates)
AT_THE_SERVER = (ErasersAgreeToo, MeanAfterTheWeights, MixesUnitVectors, OthersErasers)
OTHER_OWNERS = (AveragesStatisticsInside, KeepsStatisticsBehind)


@pytest.mark.parametrize(
    "mutant",
    [
        *(kind(**SETTINGS) for kind in (*AT_CLIENTS, *AT_THE_SERVER, *OTHER_OWNERS)),
        *(replace(TESTED, **{k: v}) for k, v in {"consensus": "mean", "erasers": "own", "lam": 0.0}.items()),
        *(replace(TESTED, **{k: v}) for k, v in {"group": "layer", "reg": "gauss_kl", "stat_init": "global"}.items()),
        *(replace(TESTED, **{k: v}) for k, v in {"beta": 0.001, "gamma": 0.2, "erasers": "mean", "tau": 0.5}.items()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_oracle_bites(mutant):
    assert gap(mutant, TESTED, rounds=2) > 1e-6


# -- one round at a time ---------------------------------------------------------------------------------
def stepped(method, changes, names=None):
    """The server's next state when clients send the received model plus these multiples of a fixed direction."""
    setup = setup_of(method)
    setup = replace(setup, sites=setup.sites[: len(changes)], task=replace(
        setup.task, sites=setup.task.sites[: len(changes)], examples=setup.task.examples[: len(changes)]))  # fmt: skip
    state = setup.start()
    gen = torch.Generator().manual_seed(0)
    full = Part(*state.server.model)
    d = {k: torch.randn(p.shape, generator=gen, dtype=p.dtype) for k, p in full.params.items()}
    ups = [Shared(full._replace(params={k: p + c * d[k] for k, p in full.params.items()})) for c in changes]
    cohort = cohort_of(setup)
    return setup, state.server, setup.method.aggregate(setup.task, state.server, iter(ups), cohort), d


def cohort_of(setup):
    n = len(setup.task.sites)
    return Cohort(tuple(range(n)), setup.task.examples, (1 / n,) * n, 1.0, 0, 0.05)


@pytest.mark.parametrize(
    ("changes", "moved"), [((2.0,), 2.0), ((0.5,) * 3, 0.5), ((1.0, -1.0), 0.0), ((1.0, 3.0), 2.0)]
)
@pytest.mark.parametrize("group", ["tensor", "layer"])
def test_one_client_agreement_and_conflict(changes, moved, group):
    """Alone or agreeing, the step is Delta; with the mean length where lengths differ; at odds nobody moves."""
    setup, old, new, d = stepped(FDSE(group=group), changes)
    own = eraser.names(setup.task.net.module).personal
    for k in d.keys() - own:
        assert float((new.model.params[k] - old.model.params[k] - moved * d[k]).abs().max()) < 1e-12


def test_a_client_that_sends_zeros_does_not_freeze_the_others():
    """No change: the other's direction, with the mean length. Weights of zero: all stays finite."""
    _, old, new, d = stepped(FDSE(), (0.0, 2.0))
    k = "classifier.weight"
    assert float((new.model.params[k] - old.model.params[k] - d[k]).abs().max()) < 1e-12
    _, old, new, _ = stepped(FDSE(), (0.0, 0.0))
    assert all(torch.equal(old.model.params[k], t) for k, t in new.model.params.items() if k not in new.erasers)

    @dataclass(frozen=True)
    class SendsZeros(FDSE):
        def finish(self, task, work):
            up, client = super().finish(task, work)
            return tree.zeros(up) if work.round.examples == 20 else up, client

    CHECKS["finite"](Case(SendsZeros(), left_out=()))


def test_limits_of_tau():
    """A small one keeps each client's own erasers, a large one gives everybody the uniform mean."""
    _, old, new, d = stepped(FDSE(tau=1e-7), (0.3, -0.2, 1.0))
    for k, rows in new.erasers.items():
        for row, c in zip(rows, (0.3, -0.2, 1.0), strict=True):
            if k.endswith("norm.bias"):  # they start at 0, so these are multiples of one vector
                continue
            assert float((row - old.model.params[k] - c * d[k]).abs().max()) < 1e-12
    _, old, new, d = stepped(FDSE(tau=1e9), (0.3, -0.2, 1.0))
    for k, rows in new.erasers.items():
        assert float((rows - old.model.params[k] - 1.1 / 3 * d[k]).abs().max()) < 1e-7


def test_absent_clients_keep_their_erasers():
    setup = setup_of(TESTED, participation=0.4)
    old = setup.start()
    for t, state in enumerate(trajectory(setup)):
        present = set(setup.plan.cohort("main", t, 3))
        assert len(present) == 2
        for k, rows in state.server.erasers.items():
            assert {i for i in range(3) if not torch.equal(rows[i], old.server.erasers[k][i])} == present
        old = state


def test_one_client_is_local_training():
    """Alone, it goes on from what it trained."""
    setup = setup_of(TESTED, left_out=("domain0", "domain1"))
    assert len(setup.sites) == 1 and gap(TESTED, left_out=("domain0", "domain1")) < 1e-10
    own = initial = {k: v.clone() for k, v in setup.task.net.module.state_dict().items()}
    for t in range(ROUNDS):
        own = trained(setup, TESTED, own, initial if t == 0 else own, 0, t)
    end = last(setup)
    model = setup.method.model_for(setup.task, setup.method.send(setup.task, end.server, 0), end.memory[0].client)
    assert max(float((model.params[k] - own[k]).abs().max()) for k in model.params) < 1e-12


def test_no_penalty_where_a_site_looks_like_everybody():
    """The penalty is zero in value and gradient when a batch has the statistics that were received."""
    setup = setup_of(TESTED)
    state, task = setup.start(), setup.task
    down = setup.method.send(task, state.server, 0)
    client = setup.method.init_client(task, down)
    batch = next(iter(setup.sites[0].batches(0)))
    norms = eraser.names(task.net.module).norms
    taps = task.net(setup.method.model_for(task, down, client), batch.x, train=True, taps=norms).taps
    for k in norms:
        down.model.buffers[f"{k}.running_mean"], down.model.buffers[f"{k}.running_var"] = consistency.moments(taps[k])
    info = Round(5, 9, 0.05, 3, 30, 0)
    work = setup.method.begin(task, down, client, info, setup.sites[0])
    ours, plain = (
        loss(task, work._replace(model=tree.clone(work.model)), batch)
        for loss in (setup.method.loss, lambda *given: Algorithm.loss(setup.method, *given))
    )
    assert float(ours.metrics["consistency"]) < 1e-28 and abs(float(ours.value - plain.value)) < 1e-14


# -- Algorithm 3: a new site -----------------------------------------------------------------------------
def newcomer(method, model="small-cnn", engine="sequential", **federation):
    """Setup, what the new site downloads after training, and its images with hidden labels."""
    case = Case(method, model, optimizer=OPTIMIZER)
    setup = case.setup(engine, **{"rounds": 1} | federation)
    server = last(case.setup(**{"rounds": 1} | federation)).server
    site = Case(method, model, left_out=()).setup().sites[0]
    site = replace(site, labels=torch.full_like(site.labels, -1))
    return setup, setup.method.send(setup.task, server, None), site


def info_of(site, epochs=1):
    return Round(0, 1, 0.05, site.steps(), site.examples, 3)


def adapted_by_hand(setup, m, down, site):
    """Descend Eq. 7 by the erasers' parameters; the norms behind them are in evaluation mode."""
    module, o = deepcopy(setup.task.net.module).train(), setup.task.optimizer
    module.load_state_dict({**down.model.params, **down.model.buffers})
    _, personal, _, norms = owners(module)
    for name in norms:
        module.get_submodule(name).eval()
    watcher, params = Watcher(m, module, down.model.buffers), dict(module.named_parameters())
    opt = torch.optim.SGD([params[k] for k in personal], o.lr * m.adapt_lr, weight_decay=o.weight_decay)
    for x, _ in site.batches(11):
        opt.zero_grad()
        module(x)
        watcher.penalty().backward()
        torch.nn.utils.clip_grad_norm_([params[k] for k in personal], o.clip)
        opt.step()
    return {k: v.detach() for k, v in module.state_dict().items()}


def adaptation_gap(method, like=None, model="small-cnn"):
    setup, down, site = newcomer(method, model)
    ours = adapted(setup.method, setup.task, down, info_of(site), site, 11)
    plain = adapted_by_hand(setup, like or method, down, site)
    ours = ours.params | ours.buffers
    return max(float((ours[k] - v).abs().max()) for k, v in plain.items() if v.is_floating_point())


ADAPTS = replace(TESTED, adapt_lr=3.0)


def test_adaptation_equals_the_plain_loop():
    assert adaptation_gap(ADAPTS) < 1e-10
    assert adaptation_gap(replace(ADAPTS, reg="gauss_kl", stat_init="global", lam=0.0), model="mlp") < 1e-10


@dataclass(frozen=True)
class TrainsAll(FDSE):
    """Extractors adapt too."""

    def phases(self, task, labelled=True):
        return (Phase(),)


@dataclass(frozen=True)
class StatisticsFollow(FDSE):
    """The norms behind the erasers take the new site's statistics, as BatchNorm does by itself."""

    def loss(self, task, work, batch):
        if work.client is not None:
            return super().loss(task, work, batch)
        out = task.net(work.model, batch.x, train=True)
        return super().loss(task, work, batch)._replace(buffers=out.buffers)


@dataclass(frozen=True)
class NormaliseByTheNewcomer(FDSE):
    """The norms behind the erasers normalise by the newcomer's batch, and only their statistics are put back."""

    def loss(self, task, work, batch):
        if work.client is not None:
            return super().loss(task, work, batch)
        names, everyones = eraser.names(task.net.module), work.down.model.buffers
        out = task.net(work.model, batch.x, train=True, taps=names.norms)
        now = consistency.follow(work.aux, out.taps, self.gamma)
        far = consistency.penalty(now, everyones, self.reg, self.beta)
        return Loss(far, {k: t if k in names.local else everyones[k].clone() for k, t in out.buffers.items()}, now)


@dataclass(frozen=True)
class StatisticsInsideStay(FDSE):
    """The erasers' statistics stay those of the clients."""

    def loss(self, task, work, batch):
        loss = super().loss(task, work, batch)
        return loss if work.client is not None else loss._replace(buffers=tree.clone(work.down.model.buffers))


@dataclass(frozen=True)
class AtTheTrainingRate(FDSE):
    """adapt_lr is forgotten."""

    def begin(self, task, down, client, round, site):
        return super().begin(task, down, client, round, site)._replace(round=round)


@dataclass(frozen=True)
class TimesLambda(FDSE):
    """The objective carries lambda."""

    def loss(self, task, work, batch):
        loss = super().loss(task, work, batch)
        return loss if work.client is not None else loss._replace(value=self.lam * loss.value)


@pytest.mark.parametrize("kind", [TrainsAll, StatisticsFollow, NormaliseByTheNewcomer, StatisticsInsideStay,
                                  AtTheTrainingRate, TimesLambda])  # fmt: skip
def test_the_oracle_of_adaptation_bites(kind):
    assert adaptation_gap(kind(**SETTINGS, adapt_lr=3.0), ADAPTS) > 1e-6


def test_adaptation_moves_the_erasers_alone_and_brings_the_statistics_nearer():
    setup, down, site = newcomer(ADAPTS)
    method, task, before = setup.method, setup.task, tree.clone(down)
    names = eraser.names(task.net.module)
    model = adapted(method, task, down, info_of(site), site, 11)
    assert difference(dict(tree.leaves(before)), dict(tree.leaves(down))) == 0  # nothing given is changed
    moved = {k for k, t in (model.params | model.buffers).items()
             if not torch.equal(t, (down.model.params | down.model.buffers)[k])}  # fmt: skip
    assert moved == names.personal | names.local

    assert far_in_evaluation(setup, down, site, model) < far_in_evaluation(setup, down, site, down.model)


def far_in_evaluation(setup, down, site, model):
    """Eq. 7 of all images at once, each layer as the model answers."""
    m, x = setup.method, torch.cat([b.x for b in site.look()])
    norms = eraser.names(setup.task.net.module).norms
    out = setup.task.net(tree.clone(model), x, train=False, taps=norms)
    start = consistency.begin(norms, down.model.buffers, "first_batch", 1.0)
    return float(consistency.penalty(consistency.follow(start, out.taps, m.gamma), down.model.buffers, m.reg, m.beta))


def test_the_gradient_brings_nearer_what_is_evaluated():
    """Beyond what the statistics inside the erasers do by following; less where the last norms take the batch's."""
    far = {}
    for kind, rate in ((FDSE, 30.0), (FDSE, 1e-12), (NormaliseByTheNewcomer, 30.0)):
        setup, down, site = newcomer(kind(**SETTINGS, adapt_lr=rate), rounds=ROUNDS)
        model = adapted(setup.method, setup.task, down, info_of(site), site, 11)
        far[kind, rate] = far_in_evaluation(setup, down, site, model)
    assert far[FDSE, 30.0] < 0.99 * far[FDSE, 1e-12] < 0.9 * far[NormaliseByTheNewcomer, 30.0]


def test_norms_without_an_eraser_stay_as_they_are_too():
    """Where erasers end the branches alone; and the network is left in training mode, as a pass of training does."""
    case = Case(FDSE(blocks="last"), left_out=())
    setup = set_up(replace(case.experiment(), model=ModelConfig("resnet18", {"small_input": True})), tiny_data())
    task, site = setup.task, setup.sites[2]
    down = setup.method.send(task, setup.start().server, None)
    model, names = adapted(setup.method, task, down, info_of(site), site, 11), eraser.names(task.net.module)
    moved = {k for k, t in model.buffers.items() if not torch.equal(t, down.model.buffers[k])}
    assert moved == names.local and all(m.training for m in task.net.module.modules())


def test_adaptation_is_the_same_in_every_engine_and_sees_no_label():
    ends = []
    for engine, labels in (("sequential", -1), ("debug", -1), ("sequential", 2)):
        setup, down, site = newcomer(ADAPTS, engine=engine)
        site = replace(site, labels=torch.full_like(site.labels, labels))
        ends.append(dict(tree.leaves(adapted(setup.method, setup.task, down, info_of(site), site, 11))))
    assert difference(ends[0], ends[1]) == 0 and difference(ends[0], ends[2]) == 0


def test_without_labels_a_site_adapts_even_where_training_had_no_regulariser():
    setup, down, site = newcomer(FDSE(lam=0.0))
    (phase,) = setup.method.phases(setup.task, labelled=False)
    work = setup.method.begin(setup.task, down, None, info_of(site), site)
    work = work._replace(model=tree.clone(work.model), opt=setup.task.optimizer.init({}))
    work, metrics = descend(setup.method, setup.task, work, next(iter(site.batches(0))), phase.trains)
    assert float(metrics["loss"]) == float(metrics["consistency"]) > 0
    assert setup.method.phases(setup.task) == (Phase(),)


# -- what travels ----------------------------------------------------------------------------------------
def test_bytes_and_a_new_site():
    """Up: everything, or all but the erasers' statistics; down: never these."""
    for report in (True, False):
        setup = setup_of(replace(TESTED, report_stats=report), rounds=1)
        state, net = last(setup), setup.task.net
        whole, inside = tree.nbytes(net.variables()), tree.nbytes(part(net.variables(), eraser.names(net.module).local))
        assert inside > 0
        assert state.bytes_up == 3 * (whole - (0 if report else inside)) and state.bytes_down == 3 * (whole - inside)
        assert set(models_by_site(setup, state)) >= {"domain0/params/classifier.weight"}
        down = setup.method.send(setup.task, state.server, None)
        if report:
            assert tree.nbytes(setup.method.model_for(setup.task, down, None)) == whole
            continue
        with pytest.raises(UnseenSite, match=r"fdse with report_stats = false: .*set method\.report_stats = true"):
            setup.method.model_for(setup.task, down, None)


def test_a_new_site_starts_from_the_mean_of_what_was_sent():
    setup = setup_of(TESTED, rounds=1)
    sent = [trained(setup, TESTED, setup.task.net.module.state_dict(), {}, i, 0) for i in range(3)]
    names = eraser.names(setup.task.net.module)
    model = setup.method.model_for(setup.task, setup.method.send(setup.task, last(setup).server, None), None)
    mean = weighted(setup, sent, names.personal | {k for k in names.local if "num" not in k})
    assert max(float(((model.params | model.buffers)[k] - v).abs().max()) for k, v in mean.items()) < 1e-12


def test_statistics_follow_the_protocol():
    """buffers = local: a site's norms keep their own statistics; the regulariser still compares with everybody's."""
    setup = setup_of(TESTED, buffers="local")
    state = last(setup)
    assert set(state.memory[0].statistics.buffers) == set(setup.task.net.variables().buffers)
    pooled = last(setup_of(TESTED, buffers="pooled")).server.model.buffers
    mean = last(setup_of(TESTED)).server.model.buffers
    k = eraser.names(setup.task.net.module).norms[0]
    assert float((pooled[f"{k}.running_var"] - mean[f"{k}.running_var"]).abs().max()) > 1e-6


# -- every option keeps the contract ---------------------------------------------------------------------
@pytest.mark.parametrize("check", ["structure", "engines", "recorded", "serialisation", "permutation", "unseen"])
@pytest.mark.parametrize(
    "method",
    [
        FDSE(reg="gauss_kl", stat_init="global", reg_start=1, group="layer", erasers="own", act="none"),
        FDSE(lam=0.0, consensus="mean", erasers="mean", report_stats=False, ratio=3, kernel=5),
    ],
    ids=("gauss_kl", "off"),
)
def test_contract(method, check):
    CHECKS[check](Case(method, "mlp"))


# -- bad input and the preset ----------------------------------------------------------------------------
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_site_that_sends_nan_is_named(value):
    @dataclass(frozen=True)
    class Breaks(FDSE):
        def finish(self, task, work):
            up, client = super().finish(task, work)
            return tree.map(lambda t: torch.full_like(t, value) if t.is_floating_point() else t, up), client

    with pytest.raises(MessageError, match=r"client domain1: its upload holds NaN or infinity in model/params/"):
        last(setup_of(Breaks(), "mlp", left_out=("domain0",)))


def test_a_network_without_norms_is_refused_before_anything_is_trained():
    experiment = Case(FDSE()).experiment()
    for name in ("feddca-cnn", "mlp"):
        with pytest.raises(
            ModelError, match=r"found no convolution or linear layer with a BatchNorm after it.* choose"
        ):
            set_up(replace(experiment, model=ModelConfig(name, {})), tiny_data())


def test_the_preset_has_what_the_paper_fixes_and_the_release_chose():
    for data, lam in (("office-caltech10", 0.05), ("pacs", 0.5), ("domainnet-10-fedbn", 0.1)):
        method = presets.preset("fdse", data, "fdse")["method"]
        assert FDSE(**method) == FDSE(lam=lam, tau=0.5, beta=0.001)
        assert "method" not in presets.preset("fdse", data, "fedavg")


def test_every_module_of_table_3_can_be_switched_off():
    assert METHODS["fdse"] is FDSE and issubclass(FDSE, Algorithm)
    for a in ("min_norm", "mean"):
        for b in ("attention", "mean", "own"):
            for lam in (0.1, 0.0):
                setup = setup_of(FDSE(consensus=a, erasers=b, lam=lam), "mlp", rounds=2)
                assert tree.first_bad(last(setup).server) is None
