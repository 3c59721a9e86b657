"""LSI against a plain loop of modules, autograd and torch.optim; that loop against broken methods; and the release's
faults, each of which must be noticed."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift.core import seeds, translating, translator, tree
from fedshift.core.errors import ConfigError, MessageError
from fedshift.core.net import Net, Variables
from fedshift.core.optim import SGD
from fedshift.core.task import Cohort
from fedshift.core.translating import QUICK, TrainHeads, Up, domain_of
from fedshift.core.translator import Pool
from fedshift.data import Domain, presets
from fedshift.experiment.runs import Folder, execute
from fedshift.methods import lsi
from fedshift.methods.lsi import LSI
from fedshift.testing import CHECKS, Case, difference, last, tiny_data, trajectory

ROUNDS = 2
TESTED = LSI(**QUICK | {"local_rounds": 1}, lambda_di=0.7)


def setup_of(method=TESTED, engine="sequential", rounds=ROUNDS, data=None, left_out=("domain0",), **federation):
    case = Case(method, optimizer=SGD(lr=0.05), left_out=left_out)
    setup = case.setup(engine, data, rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


def after(setup, stage):
    """The state when the stages before this one are done."""
    return next(s for s in trajectory(setup) if s.stage == stage)


def site_batches(setup, i, stream, t):
    site = setup.sites[i]
    seed = seeds.derive(setup.plan.seed, "round", stream, t, site.name)
    return site, seeds.derive(seed, "train"), site.batches(seed)


def loaded(setup, v):
    module = deepcopy(setup.task.net.module).train()
    module.load_state_dict({**v.params, **v.buffers})
    return module


def values(module):
    return Variables(dict(module.named_parameters()), dict(module.named_buffers()))


# -- S1: local training ----------------------------------------------------------------------------------
def plain_heads(setup):
    """Everybody alone, from the network as built."""
    found = []
    for i in range(len(setup.sites)):
        module = loaded(setup, setup.task.net.variables())
        opt = torch.optim.SGD(module.parameters(), lr=0.05)
        for t in range(setup.method.local_rounds):
            for x, y in site_batches(setup, i, "heads", t)[2]:
                opt.zero_grad()
                F.cross_entropy(module(x), y).backward()
                opt.step()
        found.append(module.eval())
    return found


@pytest.mark.parametrize("rounds", [1, 2])
def test_heads_are_those_of_clients_that_train_alone(rounds):
    setup = setup_of(replace(TESTED, local_rounds=rounds))
    state, plain = after(setup, 1), plain_heads(setup)
    for i, module in enumerate(plain):
        z = torch.cat([module.features(x) for x, _ in setup.sites[i].look()])
        own = dict(module.named_parameters()) | {"mean": z.mean(0), "var": z.var(0, correction=0)}
        for name, rows in (state.server.heads.params | state.server.heads.facts).items():
            assert torch.allclose(rows[i], own[name], atol=1e-12), name
    numbers = sum(t[0].numel() for t in (state.server.heads.params | state.server.heads.facts).values())
    assert state.bytes_up == rounds * len(plain) * numbers * 8 and state.bytes_down == 0


def test_the_rounds_start_from_the_network_as_built_or_from_the_mean():
    setup = setup_of()
    built = setup.task.net.variables()
    state = after(setup, 3)
    assert difference(everything_of(state.server.model), everything_of(built)) == 0
    setup = setup_of(replace(TESTED, start="mean"))
    plain = plain_heads(setup)
    n = torch.tensor([s.examples for s in setup.sites], dtype=torch.float64)
    model = after(setup, 1).server.model
    for name, p in model.params.items():
        mean = sum(w * dict(m.named_parameters())[name] for w, m in zip(n / n.sum(), plain, strict=True))
        assert torch.allclose(p, mean, atol=1e-12)
    assert len(setup_of(replace(TESTED, start="mean", lambda_di=0.0)).method.stages()) == 2


def everything_of(v):
    return dict(tree.leaves(v))


# -- S2: inversion ---------------------------------------------------------------------------------------
class Normed(nn.Module):
    """A small network whose head is LSI's: BatchNorm without scale and shift, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.width = 5
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 5))
        self.norm, self.out = nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)

    def features(self, x):
        return self.body(x)

    def head(self, z):
        return self.out(self.norm(z))

    def forward(self, x):
        return self.head(self.features(x))


def with_normed_head(method=TESTED, **rest):
    setup = setup_of(method, **rest)
    torch.manual_seed(0)
    engine, task = setup.engine, setup.task
    parts = {k: getattr(task, k) for k in ("sites", "examples", "classes", "rules", "seed")}
    return replace(setup, task=engine.task(Net(Normed().double()), task.optimizer, **parts))


def plain_latents(setup, heads, s):
    """Each client's batches, one by one: its head in evaluation, fresh noise, a fresh Adam."""
    found = []
    for d, name in enumerate(sorted(setup.task.sites)):
        mean, var = (heads.buffers[f"norm.running_{k}"][d] for k in ("mean", "var"))
        for k in range(s.z_batches):
            gen = seeds.generator(0, "inversion", name, k)
            z = torch.randn(s.z_batch, 5, generator=gen).double().requires_grad_()
            y = torch.randint(3, (s.z_batch,), generator=gen)
            opt = torch.optim.Adam([z], lr=s.z_lr, betas=(0.5, 0.9))
            for _ in range(s.z_steps):
                opt.zero_grad()
                flat = (z - mean) / (var + 1e-5).sqrt()
                ce = F.cross_entropy(F.linear(flat, heads.params["out.weight"][d], heads.params["out.bias"][d]), y)
                far = (z.mean(0) - mean).square().sum() + (z.var(0, correction=0) - var).square().sum()
                (ce + s.lambda_bn * far + s.lambda_norm * z.square().sum(1).mean()).backward()
                opt.step()
            found.append(z.detach())
    return torch.stack(found)


SLOW = replace(TESTED, z_steps=30, z_lr=0.03, lambda_bn=0.1)


def inversion_gap():
    """From a network that was left in training mode; and whether the server's heads keep their bits."""
    setup = with_normed_head(SLOW)
    state = after(setup, 1)
    before = tree.clone(state.server.heads)
    setup.task.net.module.train()
    server = next(trajectory(setup, state)).server
    kept = difference(dict(tree.leaves(server.heads)), dict(tree.leaves(before))) == 0
    return float((server.latents["z"].flatten(0, 1) - plain_latents(setup, before, SLOW)).abs().max()), kept


def test_inversion_equals_the_plain_loop_and_leaves_the_heads_alone():
    far, kept = inversion_gap()
    assert far < 1e-11 and kept


def test_heads_in_training_mode_are_noticed(monkeypatch):
    """The release: BatchNorm normalises by the noise and overwrites its running statistics."""

    def in_training(net, params, buffers, z):
        flat = torch.stack([F.batch_norm(x, None, None, training=True) for x in z])
        for row, x in zip(buffers["norm.running_mean"], z.detach(), strict=True):
            row.lerp_(x.mean(0), 0.1)
        return flat @ params["out.weight"].transpose(1, 2) + params["out.bias"][:, None]

    monkeypatch.setattr(translating, "all_logits", in_training)
    assert inversion_gap()[0] > 1e-3


def test_statistics_of_another_client_are_noticed(monkeypatch):
    sound = translating.statistics
    swapped = lambda task, heads: type(sound(task, heads))(*(t.flip(0) for t in sound(task, heads)))  # noqa: E731
    monkeypatch.setattr(translating, "statistics", swapped)
    assert inversion_gap()[0] > 1e-3


def test_each_latent_batch_follows_from_the_seed_the_site_and_its_number(monkeypatch):
    """However the steps are divided over rounds and the batches over chunks, and whoever else takes part."""
    whole, parts = (
        after(setup_of(replace(TESTED, z_batches=5, z_steps=7, server_rounds=n)), 2).server.latents for n in (1, 3)
    )
    assert whole.keys() == parts.keys() == {"z", "y"} and all(torch.equal(whole[k], parts[k]) for k in whole)
    monkeypatch.setattr(translating, "CACHED", 1)
    single = after(setup_of(replace(TESTED, z_batches=5, z_steps=7)), 2).server.latents
    assert torch.equal(whole["y"], single["y"]) and torch.allclose(whole["z"], single["z"], atol=1e-12)
    three = after(setup_of(replace(TESTED, z_batches=5, z_steps=7), left_out=()), 2).server.latents
    assert torch.equal(three["y"][1:], whole["y"]) and torch.allclose(three["z"][1:], whole["z"], atol=1e-12)
    z = whole["z"].flatten(0, 1)
    assert all(not torch.equal(z[i], z[j]) for i in range(len(z)) for j in range(i))


def test_labels_are_uniform_and_counts_stay_unless_asked():
    uniform = after(setup_of(replace(TESTED, z_batches=40)), 2).server
    assert "counts" not in uniform.heads.facts
    shares = uniform.latents["y"].flatten().bincount() / uniform.latents["y"].numel()
    assert bool(((shares - 1 / 3).abs() < 0.06).all())
    told = after(setup_of(replace(TESTED, labels="prior")), 2).server
    assert told.heads.facts["counts"].tolist() == [s.labels.bincount(minlength=3).tolist() for s in setup_of().sites]


# -- S3: the translator ----------------------------------------------------------------------------------
def test_the_translators_training_can_be_divided_and_ends_alone():
    whole, parts = (after(setup_of(replace(TESTED, server_rounds=n, gan_iters=7)), 3).server for n in (1, 3))
    assert all(torch.allclose(whole.gan.g[k], parts.gan.g[k], atol=1e-10) for k in whole.gan.g)
    for server in (whole, parts):
        assert server.latents == {} and server.gan.d == {} and server.gan.opt == {} and server.heads.params == {}
    start = setup_of().start().server
    assert all(not torch.equal(start.gan.g[k], whole.gan.g[k]) for k in start.gan.g)


def pooling_gap():
    """The stage against training on rows that were gathered by hand, with every head's say on every translation."""
    method = replace(TESTED, class_term=0.5)
    setup = setup_of(method, left_out=())
    server = after(setup, 2).server
    rows = [(server.latents["z"][d, k, i], int(server.latents["y"][d, k, i]), d)
            for d in range(3) for k in range(3) for i in range(6)]  # fmt: skip
    z, (y, domain) = torch.stack([r[0] for r in rows]), torch.tensor([r[1:] for r in rows]).T
    groups = [[i for i, r in enumerate(rows) if r[1] == c] for c in range(3)]
    groups = [torch.tensor(g) for g in groups if len({rows[i][2] for i in g}) > 1]

    def preserved(fake, y):
        heads = zip(server.heads.params["classifier.weight"], server.heads.params["classifier.bias"], strict=True)
        return sum(F.cross_entropy(F.linear(fake, w, b), y) for w, b in heads)

    plain = translator.train(method, server.gan, Pool(z, y, domain, groups), range(6), 0, preserved).g
    done = after(setup, 3).server.gan.g
    return max(float((done[k] - plain[k]).abs().max()) for k in plain)


def test_the_stage_pools_everybodys_latents():
    assert pooling_gap() < 1e-11


def test_wrong_pools_are_noticed(monkeypatch):
    of = Pool.of.__func__
    monkeypatch.setattr(Pool, "of", classmethod(lambda cls, s, z, y, domain: of(cls, s, z, y, 2 - domain)))
    assert pooling_gap() > 1e-4
    monkeypatch.setattr(Pool, "of", classmethod(lambda cls, s, z, y, domain: of(cls, s, z, y.flip(0), domain)))
    assert pooling_gap() > 1e-4
    monkeypatch.undo()
    logits = translating.all_logits
    monkeypatch.setattr(translating, "all_logits", lambda *a: logits(*a)[:1] if a[-1].dim() == 2 else logits(*a))
    assert pooling_gap() > 1e-6  # the first head alone


# -- S4 and S5 -------------------------------------------------------------------------------------------
def divergence(m, g, z, own, known):
    """Eq. 15 with the domains drawn as the client draws them."""
    target = ((torch.rand(len(z), len(known)) + 1) * known).argmax(1)
    h = torch.cat([z, F.one_hot(torch.full((len(z),), own), len(known)), F.one_hot(target, len(known))], 1)
    for k in ("in", "mid"):
        h = F.leaky_relu(h @ g[f"{k}.weight"].T + g[f"{k}.bias"], 0.2)
        h = F.layer_norm(h, h.shape[1:], g[f"{k}.scale"], g[f"{k}.shift"])
    far = z - (h @ g["out.weight"].T + g["out.bias"])
    return (far**2).sum(1).mean() / (z.shape[1] if m.div == "mean" else 1)


def plain_client(setup, m, server, model, i, t):
    """A client's round: train against the translator, then Omega batch by batch in evaluation."""
    own, (site, seed, batches) = domain_of(setup.task)[setup.sites[i].name], site_batches(setup, i, "main", t)
    module = loaded(setup, model)
    opt = torch.optim.SGD(module.parameters(), lr=0.05)
    with seeds.scope(seed):
        for x, y in batches:
            opt.zero_grad()
            z = module.features(x)
            loss = F.cross_entropy(module.head(z), y)
            if m.lambda_di:
                loss = loss + m.lambda_di * divergence(m, server.gan.g, z, own, server.known)
            loss.backward()
            opt.step()
    omega = {k: torch.zeros_like(p) for k, p in module.named_parameters()}
    for rows in torch.randperm(site.examples, generator=seeds.generator(seed, "omega", "order")).split(4):
        value = (module.eval()(site.drawn(rows, None)) ** 2).sum()
        for k, grad in zip(omega, torch.autograd.grad(value, list(module.parameters())), strict=True):
            omega[k] += grad.abs() / site.examples
    return module.state_dict(), omega


def plain_rounds(setup, m, server):
    """Broadcast, train, average parameter by parameter, and buffers by images."""
    model, n = server.model, torch.tensor([s.examples for s in setup.sites], dtype=torch.float64)
    for t in range(ROUNDS):
        ups = [plain_client(setup, m, server, model, i, t) for i in range(len(n))]
        params, buffers = {}, {}
        for k in model.params:
            w = torch.stack([o[k] + 1e-12 if m.importance else 0 * o[k] + c for c, (_, o) in zip(n, ups, strict=True)])
            params[k] = (w / w.sum(0) * torch.stack([v[k] for v, _ in ups])).sum(0)
        for k, b in model.buffers.items():
            each = torch.stack([v[k] for v, _ in ups])
            buffers[k] = torch.tensordot(n / n.sum(), each, 1) if b.is_floating_point() else each.max()
        model = Variables(params, buffers)
    return model


def gap(method, like=None):
    """How far the model ends from the plain loop's, which follows the settings of `like`."""
    setup, plain_setup = setup_of(method), setup_of(like or method)
    begun = after(plain_setup, 3) if plain_setup.method.lambda_di else plain_setup.start()
    end = last(setup, replace(begun, stage=len(setup.method.stages()) - 1)).server.model
    plain = plain_rounds(plain_setup, plain_setup.method, begun.server)
    return difference(dict(tree.leaves(end)), tree.map(torch.detach, dict(tree.leaves(plain))))


@pytest.mark.parametrize(
    "method",
    [
        TESTED,
        replace(TESTED, div="sum", lambda_di=0.05),
        replace(TESTED, importance=False),
        replace(TESTED, lambda_di=0.0),
        replace(TESTED, lambda_di=0.0, importance=False),
    ],
    ids=["both", "sum", "translator", "importance", "neither"],
)
def test_equals_the_plain_loop(method):
    """Table IV's four corners, and the paper's divergence."""
    assert gap(method) < 1e-11


@dataclass(frozen=True)
class ByPosition(LSI):
    """The release: latents are numbered in one order, clients in another."""

    def send(self, task, server, client):
        down = super().send(task, server, client)
        return down._replace(domains=down.domains | {"own": len(task.sites) - 1 - down.domains["own"]})


@dataclass(frozen=True)
class NeverItself(LSI):
    """d' = d does not come."""

    def _divergence(self, down, z):
        others = down.domains["known"].clone()
        others[down.domains["own"]] = 1e-9
        return super()._divergence(down._replace(domains=down.domains | {"known": others}), z) / 1e-9


@dataclass(frozen=True)
class SignedOmega(LSI):
    """Some of Omega lies below zero, as Eq. 17's derivatives do."""

    def measure(self, task, model, site, seed):
        gen = torch.Generator().manual_seed(seed)
        omega = super().measure(task, model, site, seed)
        return {k: w * torch.randn(w.shape, generator=gen).sign() for k, w in omega.items()}


@dataclass(frozen=True)
class OmegaOfTheReceived(LSI):
    """Omega is measured before training."""

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return up._replace(omega=self.measure(task, work.down.model, work.site, work.round.seed)), client


@dataclass(frozen=True)
class BuffersEvenly(LSI):
    """Running statistics are averaged evenly."""

    def aggregate(self, task, server, ups, cohort):
        return super().aggregate(task, server, ups, cohort._replace(examples=(1,) * len(cohort.ids)))


@dataclass(frozen=True)
class ShrinksByClients(LSI):
    """Eq. 18's 1/m beside weights that sum to one."""

    def aggregate(self, task, server, ups, cohort):
        model = super().aggregate(task, server, ups, cohort).model
        return server._replace(
            model=Variables({k: p / len(cohort.ids) for k, p in model.params.items()}, model.buffers)
        )


MUTANTS = (ByPosition, NeverItself, SignedOmega, OmegaOfTheReceived, BuffersEvenly, ShrinksByClients)
SETTINGS = QUICK | {"local_rounds": 1, "lambda_di": 0.7}


@pytest.mark.parametrize(
    "mutant",
    [
        *(kind(**SETTINGS) for kind in MUTANTS),
        *(replace(TESTED, **wrong) for wrong in ({"div": "sum"}, {"detach_target": True}, {"importance": False})),
        *(replace(TESTED, **wrong) for wrong in ({"lambda_di": 0.0}, {"omega_temper": 0.0}, {"g_out": "tanh"})),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_oracle_bites(mutant):
    assert gap(mutant, TESTED) > 1e-6


def test_a_translator_left_in_training_is_noticed(monkeypatch):
    monkeypatch.setattr(lsi, "translate", partial(lsi.translate, train=True))
    assert gap(TESTED) > 1e-6


@dataclass(frozen=True)
class TrainsTheTranslator(LSI):
    """The translator learns on in S4."""

    def aggregate(self, task, server, ups, cohort):
        new = super().aggregate(task, server, ups, cohort)
        return new._replace(gan=new.gan._replace(g=tree.map(lambda t: t + 1e-9, new.gan.g)))


@pytest.mark.parametrize("method", [TESTED, TrainsTheTranslator(**SETTINGS)], ids=lambda m: type(m).__name__)
def test_the_translator_gets_no_update(method):
    setup = setup_of(method)
    states = [s for s in trajectory(setup) if s.stage == 3]
    assert len(states) == 1 + ROUNDS
    sent = [setup.method.send(setup.task, state.server, i).g for state in states for i in range(2)]
    assert all(len(g) == 10 for g in sent)
    assert (max(difference(sent[0], g) for g in sent) == 0) == (method is TESTED)
    assert not torch.equal(
        states[0].server.model.params["classifier.weight"], states[1].server.model.params["classifier.weight"]
    )


def test_one_numbering_of_domains_everywhere():
    """Clients listed in another order: each head lies where its client's `own` points, and the names lead back."""
    setup = setup_of(left_out=())
    turned = replace(setup.task, sites=setup.task.sites[::-1], examples=setup.task.examples[::-1])
    for listed in (setup, replace(setup, sites=setup.sites[::-1], task=turned)):
        number = domain_of(listed.task)
        assert [sorted(listed.task.sites)[number[name]] for name in listed.task.sites] == list(listed.task.sites)
        state = after(listed, 1)
        for i, module in enumerate(plain_heads(listed)):
            down = listed.method.send(listed.task, state.server, i)
            row = state.server.heads.params["classifier.weight"][down.domains["own"]]
            assert torch.allclose(row[0], module.classifier.weight, atol=1e-12)
            wrong = ByPosition(**SETTINGS).send(listed.task, state.server, i).domains["own"]
            assert torch.equal(wrong, down.domains["own"]) == (number[listed.task.sites[i]] == 1)


def test_identical_clients_are_a_fixed_point_of_the_average():
    setup = setup_of()
    v = setup.task.net.variables()
    ups = [Up(v, {k: torch.rand_like(p) for k, p in v.params.items()}) for _ in range(2)]
    cohort = Cohort((0, 1), (20, 14), (0.5, 0.5), 1.0, 0, 0.05)
    model = setup.method.aggregate(setup.task, setup.start().server, iter(ups), cohort).model
    assert all(torch.equal(model.params[k], p) for k, p in v.params.items())
    assert all(torch.allclose(model.buffers[k], b, atol=1e-14) for k, b in v.buffers.items() if b.is_floating_point())


def test_bytes_are_those_that_travel():
    """Omega is as much as the parameters once more; the translator goes down in each round."""
    sent = {}
    for method in (TESTED, replace(TESTED, importance=False), replace(TESTED, lambda_di=0.0)):
        setup = setup_of(method, rounds=1)
        *_, before, end = [setup.start(), *trajectory(setup)]
        sent[method] = end.bytes_up - before.bytes_up, end.bytes_down - before.bytes_down
    v, g = setup.task.net.variables(), after(setup_of(), 3).server.gan.g
    model, params, extra = tree.nbytes(v), tree.nbytes(v.params), tree.nbytes(g) + 8 + 2 * 8
    assert list(sent.values()) == [
        (2 * (model + params), 2 * (model + extra)), (2 * model, 2 * (model + extra)), (2 * (model + params), 2 * model)
    ]  # fmt: skip
    assert tree.nbytes(setup.method.send(setup.task, setup.start().server, None)) == model


# -- evaluation ------------------------------------------------------------------------------------------
def scored(method, monkeypatch):
    """Scores of a run, with every forward pass of an evaluation watched; and whether any was in training mode."""
    setup = setup_of(method, rounds=1)
    state = last(setup)
    before, modes = tree.clone(state.server.model), []
    for module in setup.task.net.module.modules():
        module.register_forward_pre_hook(lambda m, _: modes.append(m.training))
    setup.evaluator(setup.method, setup.task, state)
    assert difference(dict(tree.leaves(before)), dict(tree.leaves(state.server.model))) == 0 and modes
    return any(modes)


def test_evaluation_is_in_evaluation_mode_unless_the_diagnostic_is_asked_for(monkeypatch):
    assert not scored(TESTED, monkeypatch)
    assert scored(replace(TESTED, eval_bn="batch"), monkeypatch)  # and even this leaves the statistics alone


def test_answers_depend_on_neighbours_in_the_diagnostic_alone():
    for rule, alike in (("running", True), ("batch", False)):
        setup = setup_of(replace(TESTED, eval_bn=rule), rounds=1)
        model = last(setup).server.model
        x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        whole, part = (setup.method.predict(setup.task, model, some)[0].logits for some in (x, x[:3]))
        assert torch.allclose(whole[:3], part, atol=1e-12) == alike


# -- bad input -------------------------------------------------------------------------------------------
def test_one_client_is_refused_before_anything_begins(tmp_path):
    alone = {"left_out": ("domain0", "domain1")}
    with pytest.raises(ConfigError, match="lsi: found one client"):
        list(execute(Case(TESTED, **alone).experiment(), Folder(tmp_path / "run"), tiny_data()))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"lsi: found one client, expected two .* set method.lambda_di = 0"):
        setup_of(**alone).start()
    assert last(setup_of(replace(TESTED, lambda_di=0.0), **alone)).done == ROUNDS


def lacking(classes, site=1):
    data = tiny_data()
    domain = data.domains[site]
    keep = torch.isin(domain.labels, torch.tensor(classes))
    less = Domain(domain.name, domain.images[keep], domain.labels[keep])
    return replace(data, domains=tuple(less if k == site else d for k, d in enumerate(data.domains)))


def test_a_client_that_lacks_a_class():
    """Its latents are uniform all the same, unless it tells its classes; then that class has no translation."""
    for labels, expected in (("uniform", {0, 1, 2}), ("prior", {0, 1})):
        setup = setup_of(replace(TESTED, labels=labels, z_batches=6), data=lacking([0, 1]))
        state = after(setup, 2)
        assert set(state.server.latents["y"][0].unique().tolist()) == expected
        assert tree.first_bad(last(setup, state).server) is None


def test_clients_without_a_class_in_common_are_refused_in_a_sentence():
    data = lacking([0])
    data = replace(data, domains=(*data.domains[:2], lacking([1, 2], 2).domains[2]))
    with pytest.raises(MessageError, match=r"lsi, stage translator: found latents of 2 clients and no class that two"):
        last(setup_of(replace(TESTED, labels="prior"), data=data))
    assert last(setup_of(data=data)).done == ROUNDS  # uniform labels have classes in common


@pytest.mark.parametrize("times", [0, -1])
@pytest.mark.parametrize("start", ["initial", "mean"])
def test_class_counts_from_which_no_label_can_be_drawn_are_refused(monkeypatch, times, start):
    """Zeros or negative numbers; where labels are uniform, nobody tells counts."""
    finish = TrainHeads.finish

    def spoilt(self, task, work):
        up, client = finish(self, task, work)
        return tree.map(lambda t: t * times, up) if work.site.name == "domain1" else up, client

    monkeypatch.setattr(TrainHeads, "finish", spoilt)
    expected = r"lsi, stage heads, client domain1: its class counts are \[.*\], expected .* above 0; check .*'uniform'"
    with pytest.raises(MessageError, match=expected):
        next(trajectory(setup_of(replace(TESTED, labels="prior", start=start))))
    assert after(setup_of(replace(TESTED, start=start)), 2)


def test_latents_or_a_translator_that_diverge_are_refused():
    for wrong, what in (({"z_lr": 1e308}, "synthetic latents"), ({"gan_lr": 1e308}, "the translator")):
        with pytest.raises(MessageError, match=rf"found NaN or infinity in {what} .* lower method.{next(iter(wrong))}"):
            last(setup_of(replace(TESTED, **wrong)))


@dataclass(frozen=True)
class Spoilt(LSI):
    """Client 1 sends zeros, or NaN."""

    value: float = 0.0

    def finish(self, task, work):
        up, client = super().finish(task, work)
        spoilt = tree.map(lambda t: torch.full_like(t, self.value) if t.is_floating_point() else t, up)
        return spoilt if work.down.domains["own"] else up, client


def test_a_client_that_returns_zeros_or_nan():
    """Zero importance is no weight: what it sends does not count. NaN is refused, and the state before stays."""
    setup = setup_of(Spoilt(**SETTINGS), rounds=1)
    begun = after(setup, 3)
    end = last(setup, begun).server.model.params
    other = plain_client(setup, TESTED, begun.server, begun.server.model, 0, 0)
    for k, p in end.items():
        heard = other[1][k] > 1e-6
        assert torch.allclose(p[heard], other[0][k][heard], rtol=1e-5)
    setup = setup_of(Spoilt(**SETTINGS, value=float("nan")), rounds=1)
    with pytest.raises(MessageError, match=r"client domain2: its upload holds NaN"):
        last(setup)
    assert tree.first_bad(begun.server) is None


def test_a_client_that_missed_the_heads_stage_trains_without_divergence():
    setup = setup_of(left_out=(), participation=0.5)
    state = after(setup, 3)
    (missed,) = (state.server.known == 0).nonzero()[0].tolist()
    z = torch.randn(50, setup.task.net.module.width, dtype=torch.float64)
    far = {}
    for i in range(3):
        down = setup.method.send(setup.task, state.server, i)
        far[int(down.domains["own"])] = float(setup.method._divergence(down, z))
    assert far[missed] == 0 and all(v > 0 for d, v in far.items() if d != missed)
    known = down.domains["known"]
    target = ((torch.rand(500, 3) + 1) * known).argmax(1)
    assert missed not in target.tolist() and len(target.unique()) == 2
    assert last(setup, state).done == ROUNDS


# -- every option keeps the contract ---------------------------------------------------------------------
MANY = {"local_rounds": 1, "server_rounds": 2}


@pytest.mark.parametrize("check", ["structure", "engines", "recorded", "serialisation", "resume", "permutation"])
@pytest.mark.parametrize(
    "method",
    [
        LSI(**QUICK | MANY, labels="prior", start="mean", gan="log", div="sum", omega_target="norms", omega_temper=0.5),
        LSI(**QUICK | MANY, batches="mixed", class_term=0.1, g_out="tanh", detach_target=True, omega_abs="sample"),
        LSI(**QUICK | MANY, start="mean", lambda_di=0.0, omega_images=5),
    ],
    ids=("printed", "released", "mean"),
)
def test_contract(method, check):
    if check != "resume" or method.gan == "log":  # slow, and the same stages
        CHECKS[check](Case(method, "mlp"))


def test_a_head_with_batchnorm_goes_through_all_stages():
    """As ResNet-50's with `latent`: its statistics are the target, and nothing else is asked of the client."""
    setup = with_normed_head()
    state = after(setup, 1)
    assert state.server.heads.facts == {} and set(state.server.heads.buffers) == {
        f"norm.{k}" for k in ("running_mean", "running_var", "num_batches_tracked")
    }
    end = last(setup, state)
    assert tree.first_bad(end.server) is None and end.metrics["divergence"] > 0


def test_the_preset():
    preset = presets.preset("lsi", method="lsi")
    assert preset["model"] == {"name": "resnet50", "options": {"latent": 512}} and "method" not in preset
    assert presets.preset("lsi", "domainnet-10-fedbn", "lsi")["method"] == {"hidden": 2048}
    paper = LSI()
    assert (paper.lambda_di, paper.lambda_bn, paper.lambda_norm, paper.z_lr, paper.z_steps) == (
        1,
        1e-3,
        1e-4,
        1e-4,
        10_000,
    )
    assert (paper.z_batches, paper.z_batch, paper.hidden) == (200, 32, 1024)
    release = (paper.lambda_cls, paper.lambda_rec, paper.lambda_gp, paper.n_critic, paper.gan_lr, paper.gan_iters)
    assert release == (1, 10, 10, 5, 1e-4, 10_000)
