"""RFedDis against a plain loop with the printed rule and torch.distributions; and that loop against broken methods."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Dirichlet, kl_divergence

from fedshift import models
from fedshift.core import evidence as ev
from fedshift.core import seeds, tree
from fedshift.core.errors import ConfigError, UnseenSite
from fedshift.core.keeping import Keeping
from fedshift.core.net import BATCH_NORM, Net, Part
from fedshift.core.optim import SGD
from fedshift.core.task import Round, Work
from fedshift.data import presets
from fedshift.eval.uncertainty import predicted
from fedshift.methods.fedbn import FedBN
from fedshift.methods.rfeddis import RFedDis
from fedshift.testing import CHECKS, Case, difference, last, models_by_site, tiny_data, trajectory

ROUNDS = 3
CHECKED = ("engines", "recorded", "serialisation", "unseen", "partial")


def setup_of(method, rounds=ROUNDS, **federation):
    setup = Case(method, optimizer=SGD(lr=0.05)).setup(rounds=rounds, **federation)
    object.__setattr__(setup.plan, "keep", False)
    return setup


# -- the plain loop ----------------------------------------------------------------------------------------
def opinion_loss(e, y, share):
    alpha, hot = e + 1, F.one_hot(y, e.shape[1])
    nll = alpha.sum(1).digamma() - (alpha * hot).sum(1).digamma()
    return (nll + share * kl_divergence(Dirichlet(hot + (1 - hot) * alpha), Dirichlet(torch.ones_like(e)))).mean()


def dempster(a, b):
    """The printed rule, with the conflict of all unlike classes; returns evidence K b / u."""
    k, s, t = a.shape[1], a.sum(1, keepdim=True) + a.shape[1], b.sum(1, keepdim=True) + b.shape[1]
    conflict = ((a / s)[:, :, None] * (b / t)[:, None] * (1 - torch.eye(k))).sum((1, 2))[:, None]
    belief = (a / s * b / t + a / s * k / t + b / t * k / s) / (1 - conflict)
    return k * belief / (k / s * k / t / (1 - conflict))


def objective(net, m, x, y, share):
    z = net.encoder(x)
    f_g, f_l = net.global_head.hidden(z), net.local_head.hidden(z)
    o_g, o_l = net.global_head.classifier(f_g), net.local_head.classifier(f_l)
    p_g, p_l = f_g.softmax(1), f_l.softmax(1)
    k = (p_l * (p_l / p_g).log()).sum(1) + (m.dis == "sym") * (p_g * (p_g / p_l).log()).sum(1)
    k = k / f_g.shape[1] if m.kl_reduction == "element" else k
    dis = {"inside": torch.exp(-k.mean()), "outside": torch.exp(-k).mean()}[m.dis_mean] * (m.dis != "off")
    if not m.evidential:
        return F.cross_entropy(o_g + o_l, y) + share * dis
    e_g, e_l = F.softplus(o_g), F.softplus(o_l)
    loss = sum(opinion_loss(e, y, share) for e in (e_g, e_l, dempster(e_g, e_l))) + share * dis
    if m.ce == "logits":
        return loss + F.cross_entropy(o_g, y) + F.cross_entropy(o_l, y)
    mass = [e.gather(1, y[:, None])[:, 0] / (e.sum(1) + e.shape[1]) for e in (e_g, e_l)]
    return loss - (sum(b.log().mean() for b in mass) if m.ce == "beliefs" else 0)


def stays(net, m):
    """Every BatchNorm layer and the local head, and the global one if it is not shared."""
    norms = [name for name, layer in net.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    heads = ["local_head"] if m.share_global_head else ["local_head", "global_head"]
    return {k for k in net.state_dict() if any(k.startswith(f"{name}.") for name in norms + heads)}


def reference(setup, m):
    """Each client's whole model after the last round, and the shared one."""
    n = torch.tensor([s.examples for s in setup.sites], dtype=torch.float64)
    shared, w = deepcopy(setup.task.net.module.state_dict()), n / n.sum()
    own = [{k: shared[k].clone() for k in stays(setup.task.net.module, m)} for _ in n]
    for t in range(ROUNDS):
        done = []
        for i, site in enumerate(setup.sites):
            net = deepcopy(setup.task.net.module).train()
            net.load_state_dict(shared | own[i])
            opt = torch.optim.SGD(net.parameters(), lr=setup.task.optimizer.lr)
            for x, y in site.batches(seeds.derive(setup.plan.seed, "round", "main", t, site.name)):
                opt.zero_grad()
                objective(net, m, x, y, min(1.0, t / ROUNDS)).backward()
                opt.step()
            done.append({k: v.clone() for k, v in net.state_dict().items()})
            own[i] = {k: done[i][k] for k in own[i]}
        shared = {k: sum(c * d[k] for c, d in zip(w, done, strict=True)).to(shared[k].dtype) for k in shared}
    return own, shared


@cache
def expected(m):
    """Of the settings as such; broken methods start from the same network."""
    return reference(setup_of(m), m)


def gap(method, like=None):
    """How far the clients' own and the shared tensors end from the plain loop's, which follows `like`."""
    setup = setup_of(method)
    end, (own, shared) = last(setup), expected(like or method)
    pairs = [(end.memory[i].client.model, own[i]) for i in range(len(own))]
    gaps = [abs(float((t - theirs[k]).abs().max())) for part, theirs in pairs for k, t in {**part[0], **part[1]}.items()
            if k in theirs and t.is_floating_point()]  # fmt: skip
    sent = {**end.server.model.params, **end.server.model.buffers}
    return max(gaps + [float((t - shared[k]).abs().max()) for k, t in sent.items() if t.is_floating_point()])


@pytest.mark.parametrize(
    "method",
    [
        RFedDis(),
        RFedDis(dis="paper", dis_mean="outside", ce="off"),
        RFedDis(ce="beliefs", dis="off"),
        RFedDis(evidential=False),
        RFedDis(share_global_head=False, kl_reduction="element", report_norm=False),
    ],
    ids=("default", "printed", "beliefs", "summed", "release"),
)
def test_equals_the_plain_loop(method):
    assert gap(method) < 1e-11


# -- broken methods ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RampOneRoundEarly(RFedDis):
    """lambda = (t + 1) / T."""

    def begin(self, task, down, client, round, site):
        return super().begin(task, down, client, round._replace(number=round.number + 1), site)


@dataclass(frozen=True)
class NoRamp(RFedDis):
    """Both terms in full from the first round on."""

    def begin(self, task, down, client, round, site):
        return super().begin(task, down, client, round._replace(number=round.total), site)


@dataclass(frozen=True)
class OneHeadFollows(RFedDis):
    """The global head's feature is a constant of L_Dis."""

    def _likeness(self, ours, own):
        return super()._likeness(ours.detach(), own)


@dataclass(frozen=True)
class OtherWayRound(RFedDis):
    """KL(global || local)."""

    def _likeness(self, ours, own):
        return super()._likeness(own, ours)


@dataclass(frozen=True)
class SoughtLikeness(RFedDis):
    """exp(K) is descended: heads are drawn together."""

    def _likeness(self, ours, own):
        return 1 / super()._likeness(ours, own)


@dataclass(frozen=True)
class NormTravels(RFedDis):
    """FedAvg's BatchNorm."""

    def _kept(self, task):
        return self._heads(task)


@dataclass(frozen=True)
class LocalHeadTravels(RFedDis):
    """Nothing but BatchNorm is local."""

    def _heads(self, task):
        return frozenset()


@dataclass(frozen=True)
class ReportedComesBack(RFedDis):
    """What is uploaded for new sites is sent to clients too."""

    def send(self, task, server, client):
        return server

    def model_for(self, task, down, client):
        model = super().model_for(task, down, client)
        return type(model)(model.params | down.model.params, model.buffers | down.model.buffers)


@pytest.mark.parametrize(
    ("mutant", "like"),
    [
        *((kind(), RFedDis()) for kind in (RampOneRoundEarly, NoRamp, OneHeadFollows, SoughtLikeness)),
        *((kind(), RFedDis()) for kind in (NormTravels, LocalHeadTravels, ReportedComesBack)),
        (OtherWayRound(dis="paper"), RFedDis(dis="paper")),
        (RFedDis(dis="paper"), RFedDis()),
        (RFedDis(dis="off"), RFedDis()),
        (RFedDis(dis_mean="outside"), RFedDis()),
        (RFedDis(kl_reduction="element"), RFedDis()),
        (RFedDis(ce="off"), RFedDis()),
        (RFedDis(ce="beliefs"), RFedDis()),
        (RFedDis(evidential=False), RFedDis()),
        (RFedDis(share_global_head=False), RFedDis()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_oracle_bites(mutant, like):
    assert gap(mutant, like) > 1e-6


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("combine", lambda a, b: a + b),
        ("misleading", lambda alpha, y: alpha),
        ("kl_to_uniform", lambda alpha: 0 * alpha.sum(-1)),
        (
            "expected_cross_entropy",
            lambda a, y: -(a / a.sum(-1, keepdim=True)).gather(-1, ev._index(a, y))[..., 0].log(),
        ),
        ("evidence", lambda logits: logits.relu()),
        ("combined_loss", lambda pair, y, w: ev.evidential_loss(ev.evidence(pair), y, w).mean(1).sum()),
    ],
    ids=("evidence added", "right class punished", "no KL", "loss of the mean", "relu", "fusion not trained"),
)
def test_the_oracle_bites_on_the_losses(name, broken, monkeypatch):
    monkeypatch.setattr(ev, name, broken)
    monkeypatch.setattr("fedshift.methods.rfeddis.combined_loss", ev.combined_loss)
    assert gap(RFedDis()) > 1e-6


# -- section 3: schedules and L_Dis ----------------------------------------------------------------------------
def test_the_schedule_begins_at_zero_and_ends_one_step_before_one():
    setup, seen = setup_of(RFedDis(), rounds=5), []
    for number in range(5):
        down = setup.method.send(setup.task, setup.start().server, 0)
        client = setup.method.init_client(setup.task, down)
        work = setup.method.begin(setup.task, down, client, Round(number, 5, 0.1, 1, 1, 0), setup.sites[0])
        seen.append(float(work.aux.weight))
    assert seen == [0, 0.2, 0.4, 0.6, 0.8]


def test_the_first_round_has_neither_term(monkeypatch):
    """With one round, what L_Dis and KL are does not matter; with two it does."""

    def shared(method, rounds):
        return dict(tree.leaves(last(setup_of(method, rounds=rounds)).server))

    one, two = shared(RFedDis(), 1), shared(RFedDis(), 2)
    assert difference(one, shared(RFedDis(dis="off"), 1)) == 0 < difference(two, shared(RFedDis(dis="off"), 2))
    monkeypatch.setattr(ev, "kl_to_uniform", lambda alpha: 7 * alpha.sum(-1))
    assert difference(one, shared(RFedDis(), 1)) == 0 < difference(two, shared(RFedDis(), 2))


@pytest.mark.parametrize("dis", ["sym", "paper"])
@pytest.mark.parametrize("mean", ["inside", "outside"])
@pytest.mark.parametrize("reduction", ["sample", "element"])
def test_likeness_is_a_share(dis, mean, reduction):
    """K >= 0, so exp(-K) lies in (0, 1]; it is 1 for equal features."""
    method = RFedDis(dis=dis, dis_mean=mean, kl_reduction=reduction)
    ours, own = 3 * torch.randn(2, 50, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = [float(method._likeness(a[None], b[None])) for a, b in zip(ours, own, strict=True)]
    assert all(0 < v < 1 for v in values) and float(method._likeness(ours, ours)) == 1


def test_the_element_mean_makes_the_loss_inert():
    """Its gradient is exp(K - K / d) / d times that of the true divergence: about 1 / d for features that are alike."""
    d = 4096
    ours, own = torch.randn(2, 3, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours.requires_grad_()
    for scale in (0.01, 1.0):
        grads, values = [], []
        for reduction in ("sample", "element"):
            value = RFedDis(kl_reduction=reduction)._likeness(ours, ours.detach() + scale * own)
            grads.append(torch.autograd.grad(value, ours)[0])
            values.append(float(value.detach()))
        k = -torch.tensor(values[0], dtype=torch.float64).log()
        assert torch.allclose(grads[1], grads[0] * torch.exp(k - k / d) / d, rtol=1e-9)
        assert values[1] == pytest.approx(float(torch.exp(-k / d)))
        if scale == 0.01:
            assert float(grads[1].norm() / grads[0].norm()) * d == pytest.approx(1, rel=1e-2)


# -- section 4: what travels ---------------------------------------------------------------------------------
def messages(method, model="small-cnn"):
    """The names in what goes down to a client, to a new site, and up; and those of BatchNorm layers."""
    case = replace(Case(method), model=model) if model == "small-cnn" else None
    task = case.setup().task if case else alexnet(method)
    server = method.init_server(task)
    down, new = (method.send(task, server, i) for i in (0, None))
    client = method.init_client(task, down)
    up, kept = method.finish(task, Work(method.model_for(task, down, client), down, client, None))
    names = [{k for part in m.model for k in part} for m in (down, new, up, kept)]
    return *names, task.net.under(*BATCH_NORM)


def alexnet(method):
    task = Case(RFedDis()).setup().task
    module = models.build("alexnet-fedbn", (3, 63, 63), 3, fc=8)
    return replace(task, net=Net(method.surgery(module)))


def of(names, part):
    return {k for k in names if k.split(".")[0] == part}


@pytest.mark.parametrize("model", ["small-cnn", "alexnet-fedbn"])
def test_what_travels(model):
    """BatchNorm layers never come down to a client; the local head goes nowhere; the global head is shared."""
    down, new, up, kept, norms = messages(RFedDis(), model)
    assert not down & norms and not of(down | new | up, "local_head")
    assert of(up, "global_head") - norms == of(down, "global_head") and "global_head.classifier" in str(up)
    assert up == new == down | (norms - of(norms, "local_head")) and kept == norms | of(kept, "local_head")
    assert len(down | kept) == len(down) + len(kept)
    down, new, up, kept, norms = messages(RFedDis(report_norm=False), model)
    assert down == new == up and not (down | up) & norms  # as in the paper: no BatchNorm layer leaves a client
    down, _, up, kept, norms = messages(RFedDis(share_global_head=False), model)
    assert of(down | up, "encoder") == down | up and of(kept, "global_head")


def test_alexnet_shares_the_convolutions_alone_as_in_the_release():
    down, _, up, _, norms = messages(RFedDis(share_global_head=False, report_norm=False), "alexnet-fedbn")
    assert down == up == {f"encoder.{i}.0.{p}" for i in range(5) for p in ("weight", "bias")}
    shared = messages(RFedDis(), "alexnet-fedbn")[2]
    heads = {f"global_head.{k}.{p}" for k in ("hidden.7.0", "hidden.8", "classifier.2") for p in ("weight", "bias")}
    assert of(shared, "global_head") - norms == heads


@dataclass(frozen=True)
class FedBNAgain(Keeping):
    """FedBN, said in other words."""

    name = "fedbn"
    card = FedBN.card

    def _kept(self, task):
        return task.net.under(*BATCH_NORM)

    def _reported(self, task):
        return self._kept(task)


def test_keeping_batchnorm_alone_is_fedbn():
    one, two = (setup_of(m) for m in (FedBN(), FedBNAgain()))
    a, b = last(one), last(two)
    assert difference(models_by_site(one, a), models_by_site(two, b)) == 0
    assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)


# -- prediction ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained():
    setup = setup_of(RFedDis(), rounds=6)
    return setup, last(setup)


def pictures():
    return torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def site_answer(setup, state, x):
    method, task = setup.method, setup.task
    model = method.model_for(task, method.send(task, state.server, 0), state.memory[0].client)
    return method.predict(task, model, x)[0], task.net(model, x, train=False, taps=("join",)).taps["join"]


def test_every_image_has_belief_masses_and_an_uncertainty(trained):
    setup, state = trained
    answer, pair = site_answer(setup, state, pictures())
    fused = dempster(*F.softplus(pair))
    assert float((answer.evidence - fused).abs().max()) < 1e-11
    said, opinion = predicted(answer), ev.opinion(answer.evidence)
    assert said.by == "evidence" and torch.allclose(said.uncertainty, opinion.uncertainty, rtol=1e-12)
    assert torch.allclose(said.beliefs, opinion.belief, rtol=1e-12)
    assert torch.allclose(said.beliefs.sum(1) + said.uncertainty, torch.ones(7).double(), rtol=1e-12)
    assert torch.equal(answer.logits.argmax(1), said.beliefs.argmax(1))
    assert torch.allclose(answer.logits.softmax(1), said.probabilities, rtol=1e-12)  # logits are ln(e + 1)
    alone = torch.cat([site_answer(setup, state, x[None])[0].evidence for x in pictures()])
    assert torch.allclose(alone, answer.evidence, rtol=1e-10)  # whatever else is in the batch


def test_the_surer_head_decides():
    """The paper's remark: an opinion that is all uncertainty leaves the decision to the other."""
    sure, unsure = torch.tensor([[9.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.01, 0.02]])
    fused = ev.opinion(ev.combine(sure, unsure))
    assert torch.allclose(fused.belief, ev.opinion(sure).belief, atol=0.01)
    assert int(fused.belief.argmax()) == 0 and float(fused.uncertainty) < float(ev.opinion(sure).uncertainty)


def test_summed_heads_give_no_evidence():
    setup = setup_of(RFedDis(evidential=False), rounds=1)
    answer, pair = site_answer(setup, last(setup), pictures())
    assert answer.evidence is None and torch.equal(answer.logits, pair.sum(0))


# -- a new site --------------------------------------------------------------------------------------------------
def test_the_global_head_answers_alone_at_a_new_site(trained):
    setup, state = trained
    method, task = setup.method, setup.task
    down = method.send(task, state.server, None)
    model = method.model_for(task, down, None)
    answer, _ = method.predict(task, model, pictures())
    o_g = task.net(model, pictures(), train=False, taps=("join",)).taps["join"][0]
    assert torch.allclose(answer.evidence, F.softplus(o_g), rtol=1e-12)
    others = {k: t + 1 if k.startswith("local_head") else t for k, t in model.params.items()}
    other, _ = method.predict(task, model._replace(params=others), pictures())
    assert torch.equal(answer.logits, other.logits)
    ups = [{**m.client.model.params, **m.client.model.buffers} for m in state.memory.values()]
    name, w = "encoder.0.1.running_mean", [n / sum(task.examples) for n in task.examples]
    assert torch.allclose(model.buffers[name], w[0] * ups[0][name] + w[1] * ups[1][name], rtol=1e-12)


@dataclass(frozen=True)
class BorrowsAnUntrainedHead(RFedDis):
    """A new site's local head is the initial one, and is listened to."""

    def _stand_in(self, task):
        own = super()._stand_in(task)
        return Part(own.params, tree.map(torch.ones_like, own.buffers))


def test_the_new_sites_rule_bites(trained):
    setup, state = trained
    found = []
    for method in (RFedDis(), BorrowsAnUntrainedHead()):
        model = method.model_for(setup.task, method.send(setup.task, state.server, None), None)
        found.append(method.predict(setup.task, model, pictures())[0].evidence)
    assert float((found[0] - found[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("method", [RFedDis(report_norm=False), RFedDis(share_global_head=False)])
def test_what_nobody_reports_is_refused_at_a_new_site(method):
    setup = setup_of(method, rounds=1)
    with pytest.raises(
        UnseenSite, match=r"rfeddis: clients keep encoder.*|global_head.* a new site has none; .* sites"
    ):
        method.model_for(setup.task, method.send(setup.task, last(setup).server, None), None)


# -- options, bad input, the preset --------------------------------------------------------------------------------
@pytest.mark.parametrize("check", CHECKED)
@pytest.mark.parametrize(
    "method",
    [
        RFedDis(evidential=False, dis="paper", dis_mean="outside", report_norm=False),
        RFedDis(ce="beliefs", kl_reduction="element", share_global_head=False),
    ],
    ids=("summed", "release"),
)
def test_contract(method, check):
    CHECKS[check](Case(method))


def test_losses_that_do_not_go_together_are_refused():
    for ce in ("off", "beliefs"):
        with pytest.raises(ConfigError, match=f"evidential is false and ce is '{ce}': .* set ce to 'logits'"):
            RFedDis(evidential=False, ce=ce)


def test_one_client_alone_and_a_client_that_lacks_a_class():
    CHECKS["finite"](replace(Case(RFedDis()), left_out=("domain0", "domain1")))
    data = tiny_data()
    first = data.domains[1]
    keep = first.labels != 2
    lacking = replace(first, images=first.images[keep], labels=first.labels[keep])
    setup = Case(RFedDis()).setup(data=replace(data, domains=(data.domains[0], lacking, data.domains[2])), rounds=2)
    for state in trajectory(setup):
        assert tree.first_bad(state.server) is None


def test_a_network_without_batchnorm_keeps_the_local_head_alone():
    case = Case(RFedDis())
    setup = replace(case, model="mlp").setup(rounds=2)
    assert not setup.task.net.under(*BATCH_NORM)
    end = last(setup)
    assert {k.split(".")[0] for k in end.memory[0].client.model.params} == {"local_head"}


def test_the_preset():
    for data in ("office-caltech10", "domainnet-10-fedbn", "digits5"):
        found = presets.preset("rfeddis", data, "rfeddis")
        assert found["federation"]["weights"] == "uniform" and found["optimizer"]["momentum"] == 0
        RFedDis(**found.get("method", {}))
