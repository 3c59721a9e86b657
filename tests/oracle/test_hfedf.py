"""hFedF and pFedHN against a plain loop of autograd and torch.optim; and that loop against broken methods."""

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from fedshift.core import embedding, seeds, tree
from fedshift.core.errors import ModelError, UnseenSite
from fedshift.core.generating import Up
from fedshift.core.optim import SGD, Adam
from fedshift.core.similarity import align
from fedshift.core.task import Empty
from fedshift.data import presets
from fedshift.methods.hfedf import HFedF
from fedshift.methods.pfedhn import PFedHN
from fedshift.testing import CHECKS, Case, last, models_by_site, trajectory

ROUNDS = 4
TESTED = HFedF(ema=0.6, ema_warmup=1, server_wd=1e-3, server_lr=0.01, align_temp=0.1)


def setup_of(method, optimizer=SGD(lr=0.05), rounds=ROUNDS, **federation):
    setup = Case(method, optimizer=optimizer).setup(rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


def trained(setup, phi, i, t):
    """Client i's parameters after round t, from phi."""
    module, site = deepcopy(setup.task.net.module).train(), setup.sites[i]
    for name, p in module.named_parameters():
        p.data.copy_(phi[name])
    opt = torch.optim.SGD(module.parameters(), lr=setup.task.optimizer.lr)
    for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", t, site.name)):
        opt.zero_grad()
        F.cross_entropy(module(x), y).backward()
        opt.step()
    return {k: p.detach() for k, p in module.named_parameters()}


def written(setup, h, i):
    x = h["nu"][i]
    for k in range(4):
        x = h[f"code.{k}.weight"] @ (F.leaky_relu(x, 0.01) if k else x) + h[f"code.{k}.bias"]
    flat, phi, at = h["head.weight"] @ x + h["head.bias"], {}, 0
    for name, p in setup.task.net.module.named_parameters():
        phi[name], at = flat[at : at + p.numel()].view_as(p), at + p.numel()
    return phi


def reference(setup, m, rounds=ROUNDS):
    """Algorithms 1 to 4, with the mean and the cosines of whole gradients, and the EMA's shadow as printed."""
    h = {k: t.clone().requires_grad_() for k, t in setup.start().server.h.items()}
    opt, shadow = torch.optim.Adam(h.values(), lr=m.server_lr, weight_decay=m.server_wd), {}
    for t in range(rounds):
        grads, ids = [], setup.plan.cohort("main", t, len(setup.sites))
        n = torch.tensor([setup.sites[i].examples for i in ids], dtype=torch.float64)
        for i in ids:
            phi = written(setup, h, i)
            after = trained(setup, {k: p.detach() for k, p in phi.items()}, i, t)
            value = sum(((p.detach() - after[k]) * p).sum() for k, p in phi.items())
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, h.values())]))
        g = torch.stack(grads)
        gamma = torch.softmax(F.cosine_similarity(g.mean(0)[None], g) / m.align_temp, 0)
        gamma = {"align": gamma, "uniform": torch.full_like(gamma, 1 / len(n)), "examples": n / n.sum()}[m.weights]
        for p, part in zip(h.values(), (gamma @ g).split([p.numel() for p in h.values()]), strict=True):
            p.grad = part.view_as(p)
        opt.step()
        with torch.no_grad():
            if t > m.ema_warmup and m.ema_mode == "writeback":
                shadow = {k: m.ema * p + (1 - m.ema) * shadow[k] for k, p in h.items()}
                for k, p in h.items():
                    p.copy_(shadow[k])
            shadow = {k: p.clone() for k, p in h.items()} if t <= m.ema_warmup else shadow
    return tree.map(torch.detach, h)


def gap(method, like=None):
    """How far the method's hypernetwork ends from the plain loop's, which follows the settings of `like`."""
    setup = setup_of(method)
    return apart(last(setup).server.h, reference(setup, like or method))


def apart(end, plain):
    assert set(end) == set(plain)
    return max(float((end[k] - plain[k]).abs().max()) for k in end)


@pytest.mark.parametrize(
    "method",
    [
        TESTED,
        replace(TESTED, weights="uniform"),
        replace(TESTED, weights="examples", ema_mode="off"),
        replace(TESTED, dim=3, ema_warmup=0),
    ],
)
def test_equals_the_plain_loop(method):
    assert gap(method) < 1e-12


def test_pfedhn_equals_the_plain_loop():
    """Without alignment and average, weighted by the protocol."""
    assert gap(PFedHN(server_wd=1e-3), HFedF(server_wd=1e-3, weights="examples", ema_mode="off")) < 1e-12


@dataclass(frozen=True)
class Climbs(HFedF):
    """Delta as the paper prints it, trained less received, and subtracted."""

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return up._replace(delta=tree.map(torch.neg, up.delta)), client


@dataclass(frozen=True)
class WritesBackTwice(HFedF):
    """The damped state is damped again."""

    def _averaged(self, server, stepped, t):
        return super()._averaged(server, super()._averaged(server, stepped, t)[0], t)


@dataclass(frozen=True)
class NoWarmUp(HFedF):
    """The average begins in the first round."""

    def _averaged(self, server, stepped, t):
        return super()._averaged(server, stepped, t + 100)


@dataclass(frozen=True)
class OneRoundEarly(HFedF):
    """The average begins in the round that should only copy."""

    def _averaged(self, server, stepped, t):
        return super()._averaged(server, stepped, t + 1)


@dataclass(frozen=True)
class EmbeddingsStay(HFedF):
    """The embeddings' gradient is dropped."""

    def _descend(self, task, server, delta, gamma, cohort):
        h, opt = super()._descend(task, server, delta, gamma, cohort)
        return h | {"nu": server.h["nu"]}, opt


@dataclass(frozen=True)
class OthersEmbedding(HFedF):
    """Each client's change is pulled back through the next client's embedding."""

    def _descend(self, task, server, delta, gamma, cohort):
        return super()._descend(task, server, delta, gamma, cohort._replace(ids=cohort.ids[::-1]))


@dataclass(frozen=True)
class ForgetsMoments(HFedF):
    """Adam begins anew each round."""

    def aggregate(self, task, server, ups, cohort):
        return super().aggregate(task, server._replace(opt=tree.zeros(server.opt)), ups, cohort)


@dataclass(frozen=True)
class SumsGradients(HFedF):
    """gamma sums to the number of clients."""

    def _gamma(self, task, server, delta, cohort):
        return len(cohort.ids) * super()._gamma(task, server, delta, cohort)


SETTINGS = {"ema": 0.6, "ema_warmup": 1, "server_wd": 1e-3, "server_lr": 0.01, "align_temp": 0.1}


@pytest.mark.parametrize(
    "mutant",
    [
        *(kind(**SETTINGS) for kind in (Climbs, WritesBackTwice, NoWarmUp, OneRoundEarly, EmbeddingsStay)),
        *(kind(**SETTINGS) for kind in (OthersEmbedding, ForgetsMoments, SumsGradients)),
        replace(TESTED, align_sign=-1),
        replace(TESTED, weights="uniform"),
        replace(TESTED, ema_mode="off"),
        replace(TESTED, server_wd=0.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_oracle_bites(mutant):
    assert gap(mutant, TESTED) > 1e-6


# -- some of the clients -------------------------------------------------------------------------------
@dataclass(frozen=True)
class AlignsTheFirst(HFedF):
    """Agreement is that of the first clients' embeddings, not of those who took part."""

    def _gamma(self, task, server, delta, cohort):
        return super()._gamma(task, server, delta, cohort._replace(ids=tuple(range(len(cohort.ids)))))


@dataclass(frozen=True)
class TeachesTheFirst(HFedF):
    """Changes are pulled back through the first clients' embeddings."""

    def _descend(self, task, server, delta, gamma, cohort):
        return super()._descend(task, server, delta, gamma, cohort._replace(ids=tuple(range(len(cohort.ids)))))


@pytest.mark.parametrize(
    "method",
    [TESTED, replace(TESTED, weights="examples"), AlignsTheFirst(**SETTINGS), TeachesTheFirst(**SETTINGS)],
    ids=lambda m: type(m).__name__,
)
def test_a_cohort_equals_the_plain_loop(method):
    """Clients 0 and 2, then 1 and 2; an absent one's embedding moves by Adam's memory and the penalty."""
    setup = Case(method, optimizer=SGD(lr=0.05), left_out=()).setup(rounds=2, participation=0.6)
    plans = (replace(setup.plan, seed=s, keep=False) for s in range(99))
    plan = next(p for p in plans if [p.cohort("main", t, 3) for t in range(2)] == [[0, 2], [1, 2]])
    setup = replace(setup, plan=plan)
    far = apart(last(setup).server.h, reference(setup, replace(TESTED, weights=method.weights), 2))
    assert far < 1e-12 if type(method) is HFedF else far > 1e-6


# -- section 3.1: the sign ----------------------------------------------------------------------------
def identity(method, classes=HFedF):
    """One client; the hypernetwork writes b alone and passes on to b alone."""
    setup = replace(Case(method, optimizer=SGD(lr=0.05)), left_out=("domain0", "domain1")).setup(rounds=1)
    state = setup.start()
    h = {k: torch.zeros_like(t) if k.startswith(("code.3", "head.weight")) else t for k, t in state.server.h.items()}
    state.server = state.server._replace(h=h)
    return setup, state


def sign_gap(method):
    """With h = identity, SGD and alpha = 1 the server must hold what the one client trained."""
    setup, state = identity(method)
    before = setup.method.send(setup.task, state.server, 0).model.params
    after = trained(setup, before, 0, 0)
    end = last(setup, state)
    now = setup.method.send(setup.task, end.server, 0).model.params
    return max(float((now[k] - after[k]).abs().max()) for k in now)


PLAIN = {"server_optimizer": "sgd", "server_lr": 1.0, "server_wd": 0.0}


def test_a_linear_hypernetwork_takes_over_what_one_client_trained():
    assert sign_gap(HFedF(**PLAIN)) < 1e-14 and sign_gap(PFedHN(**PLAIN)) < 1e-14
    assert sign_gap(Climbs(**PLAIN)) > 1e-3


# -- section 3.3: the average --------------------------------------------------------------------------
def test_writing_back_is_a_damped_step():
    """s' = s + a u, round by round, where u is the undamped step from the same state; a = 1 is no average."""
    setup, undamped = setup_of(TESTED), setup_of(replace(TESTED, ema_mode="off"))
    state = setup.start()
    for t in range(ROUNDS):
        new, raw = next(trajectory(setup, state)), next(trajectory(undamped, state))
        a = TESTED.ema if t > TESTED.ema_warmup else 1.0
        expected = tree.map(lambda s, r, a=a: s + a * (r - s), state.server.h, raw.server.h)
        assert max(float(x.abs().max()) for _, x in tree.leaves(tree.sub(expected, new.server.h))) < 1e-14
        for (_, x), (_, y) in zip(tree.leaves(new.server.opt), tree.leaves(raw.server.opt), strict=True):
            assert torch.equal(x, y)  # the moments are left alone
        state = new


def test_a_shadow_writes_and_the_raw_state_learns():
    method = replace(TESTED, ema_mode="shadow")
    setup = setup_of(method)
    shadow = setup.start().server.shadow
    for t, state in enumerate(trajectory(setup)):
        a = method.ema if t > method.ema_warmup else 1.0
        shadow = {k: a * p + (1 - a) * shadow[k] for k, p in state.server.h.items()}
        assert max(float((shadow[k] - state.server.shadow[k]).abs().max()) for k in shadow) < 1e-14
        sent = setup.method.send(setup.task, state.server, 0).model.params
        plain = written(setup, shadow, 0)
        assert max(float((sent[k] - plain[k]).abs().max()) for k in sent) < 1e-13
    assert float((shadow["head.bias"] - state.server.h["head.bias"]).abs().max()) > 1e-4


# -- section 3.2: the weights, one client, zeros ---------------------------------------------------------
def test_one_client_alone_has_all_the_weight():
    assert float(align(torch.tensor([[4.0]], dtype=torch.float64))) == 1.0
    case = replace(Case(HFedF()), left_out=("domain0", "domain1"))
    CHECKS["finite"](case)
    assert len(case.setup().sites) == 1


@dataclass(frozen=True)
class ReturnsZeros(HFedF):
    """Its clients send no change."""

    def finish(self, task, work):
        up, client = super().finish(task, work)
        return Up(tree.zeros(up.delta), up.buffers), client


def test_clients_that_return_zeros():
    """All: nothing moves but by weight decay. One of two: its weight is that of cosine zero, and all stays finite."""
    setup = setup_of(ReturnsZeros(server_wd=0.0))
    start, end = setup.start().server.h, last(setup).server.h
    assert all(torch.equal(start[k], end[k]) for k in start)
    gamma = align(torch.tensor([[0.0, 0.0], [0.0, 9.0]], dtype=torch.float64))
    assert torch.allclose(gamma, torch.softmax(torch.tensor([0.0, 1.0], dtype=torch.float64), 0))


# -- embeddings ----------------------------------------------------------------------------------------
def test_redrawn_embeddings_are_fresh_and_the_ones_evaluated():
    setup = setup_of(HFedF(embedding="redrawn"))
    seen = [setup.start().server.h["nu"], *(s.server.h["nu"] for s in trajectory(setup))]
    assert all(not torch.equal(a, b) for k, a in enumerate(seen) for b in seen[:k])
    state = last(setup)
    sent, plain = setup.method.send(setup.task, state.server, 1).model.params, written(setup, state.server.h, 1)
    assert max(float((sent[k] - plain[k]).abs().max()) for k in sent) < 1e-13
    assert "nu" not in state.server.opt["mean"]


def test_embeddings_follow_the_sites_names():
    names = replace(Case(HFedF()), left_out=()).setup().start().server.h["nu"]
    two = Case(HFedF(), left_out=("domain0",)).setup().start().server.h["nu"]
    assert torch.equal(names[1:], two)


def test_dimension():
    task = Case(HFedF()).setup().task
    sizes = [HFedF().dimension(replace(task, sites=("x",) * n)) for n in (1, 3, 4, 7, 8, 12)]
    assert sizes == [1, 1, 2, 2, 3, 4] and HFedF(dim=5).dimension(task) == 5


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(embedding.Embed, "rounds", 3)


def test_autoencoders_give_embeddings_that_stay(short):
    setup = setup_of(HFedF(embedding="autoencoder", dim=2), rounds=2)
    states = list(trajectory(setup))
    memory = states[1].memory  # after the second of three rounds, the last with memories of its own
    assert set(memory[0].client.ae) == {f"{k}.{p}" for k in ("conv1", "conv2", "encode", "decode", "up1", "up2")
                                        for p in ("weight", "bias")}  # fmt: skip
    nu = [s.server.h["nu"] for s in states]
    assert not torch.equal(nu[0], nu[1]) and torch.equal(nu[2], nu[3]) and torch.equal(nu[3], nu[4])
    assert all(torch.equal(states[0].server.h[k], states[2].server.h[k]) for k in states[0].server.h if k != "nu")
    assert states[2].bytes_down == 0 and states[2].bytes_up == 3 * 2 * 2 * 8  # rounds, clients, numbers, float64
    assert isinstance(states[-1].memory[0].client, Empty)


def test_an_autoencoder_learns_to_give_back_its_pictures_and_looks_at_no_label(short, monkeypatch):
    monkeypatch.setattr(embedding.Embed, "rounds", 30)
    setup = setup_of(HFedF(embedding="autoencoder"), Adam(lr=0.01), rounds=1)
    losses = [s.metrics["loss"] for s in trajectory(setup)]
    assert losses[29] < 0.8 * losses[0]
    blind = replace(setup, sites=tuple(replace(s, labels=torch.zeros_like(s.labels)) for s in setup.sites))
    one, two = (list(trajectory(s))[28].server.h["nu"] for s in (setup, blind))
    assert torch.equal(one, two)


def test_table_9():
    """2048 numbers before the latent, 32 x 8 x 8 after it, pictures in [0, 1]."""
    ae = embedding.autoencoder(1, torch.Generator().manual_seed(0), torch.zeros(()))
    assert ae["encode.weight"].shape == (1, 2048) and ae["decode.weight"].shape == (2048, 1)
    x = torch.rand(5, 3, 32, 32)
    back = embedding.decode(ae, embedding.encode(ae, x))
    assert back.shape == x.shape and float(back.min()) >= 0 and float(back.max()) <= 1


def test_the_autoencoder_sees_pictures_whatever_the_normalisation():
    """Pictures that hold black and white come back as they were; grey ones get three channels."""
    pictures = torch.rand(4, 3, 32, 32).clamp(0.2, 0.8)
    pictures[0, :, 0, :2] = torch.tensor([0.0, 1.0])
    x = (pictures - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / 0.2
    least, most = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
    assert torch.allclose(embedding.Scale(least, most - least)(x), pictures, atol=1e-6)
    grey = embedding.Scale(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))(torch.rand(2, 1, 64, 64))
    assert grey.shape == (2, 3, 32, 32)


def test_pfedhn_moves_the_embedding_of_the_one_client_that_was_drawn():
    method = PFedHN(server_optimizer="sgd", server_lr=0.1, server_wd=0.0)
    setup = setup_of(method, participation=0.5)
    old = setup.start().server.h["nu"]
    for t, state in enumerate(trajectory(setup)):
        (drawn,) = setup.plan.cohort("main", t, 2)
        nu = state.server.h["nu"]
        assert not torch.equal(nu[drawn], old[drawn]) and torch.equal(nu[1 - drawn], old[1 - drawn])
        old = nu


# -- a new site ------------------------------------------------------------------------------------------
def test_newcomers():
    found = {}
    for rule in ("mean_embedding", "mean_model"):
        setup = setup_of(HFedF(newcomer=rule, server_lr=0.05))
        found[rule] = models_by_site(setup, last(setup))
    mean = found["mean_model"]
    for k in (k.removeprefix("unseen/") for k in mean if k.startswith("unseen/params")):
        both = (mean[f"domain1/{k}"] + mean[f"domain2/{k}"]) / 2
        assert float((mean[f"unseen/{k}"] - both).abs().max()) < 1e-15
    setup = setup_of(HFedF(newcomer="mean_embedding", server_lr=0.05))
    h = last(setup).server.h
    plain = written(setup, h | {"nu": h["nu"].mean(0, keepdim=True)}, 0)
    unseen = found["mean_embedding"]
    assert max(float((unseen[f"unseen/params/{k}"] - p).abs().max()) for k, p in plain.items()) < 1e-13
    refusing = setup_of(HFedF(newcomer="refuse"))
    with pytest.raises(UnseenSite, match=r"newcomer = 'refuse': a new site has no embedding"):
        refusing.method.send(refusing.task, refusing.start().server, None)


# -- every option keeps the contract ---------------------------------------------------------------------
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "method",
    [
        HFedF(heads="low_rank", rank=3, head_init="hyperfan", server_clip=0.01, ema_warmup=1),
        HFedF(heads="chunked", chunk=37, head_init="hyperfan", ema_mode="shadow", ema_warmup=1, newcomer="mean_model"),
        HFedF(embedding="redrawn", ema_mode="shadow", ema_warmup=0, weights="examples", dim=4),
        HFedF(embedding="autoencoder", dim=3, weights="uniform", newcomer="refuse", ema_warmup=0),
    ],
    ids=("low_rank", "chunked", "redrawn", "autoencoder"),
)
def test_contract(method, check, short):
    CHECKS[check](Case(method))


# -- bad input and presets ---------------------------------------------------------------------------------
def test_too_large_a_network_is_refused_in_a_sentence():
    with pytest.raises(ModelError, match=r"heads = 'full': to write 11,\d+,\d+ parameters .* 'low_rank' or 'chunked'"):
        Case(HFedF()).method.surgery(resnet())
    assert HFedF(heads="low_rank").surgery(resnet()) and HFedF(heads="chunked").surgery(resnet())
    assert HFedF(limit_gb=100.0).surgery(resnet())


def resnet():
    from fedshift import models

    return models.build("resnet18", (3, 32, 32), 7)


def test_the_preset_has_table_10():
    rows = {"pacs": (1e-3, 1e-5, 0.95), "office-home": (1e-3, 1e-5, 0.75), "vlcs": (1e-3, 1e-3, 0.75)}
    for data, row in rows.items():
        method = presets.preset("hfedf", data, "hfedf")["method"]
        assert (method["server_lr"], method["server_wd"], method["ema"]) == row
        assert "method" not in presets.preset("hfedf", data, "fedavg")
