"""The loops: stages, phases, cohorts, messages, and errors that say where."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift.core import state as states
from fedshift.core import tree
from fedshift.core.algorithm import Algorithm
from fedshift.core.card import Card
from fedshift.core.errors import MessageError
from fedshift.core.local import descend
from fedshift.core.net import Variables
from fedshift.core.optim import SGD
from fedshift.core.task import Empty, Loss, Phase, Work
from fedshift.engines.base import divided
from fedshift.engines.debug import HookError
from fedshift.engines.wire import Wire
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.hfedf import HFedF
from fedshift.testing import Case, check_method, difference, everything, last, tiny_data, trajectory

CARD = Card("a test's method", "none", "", "", "", "", "", "")


# -- a method in three stages: clients report styles, the server fits to them alone, then training ---------------------
class Server(NamedTuple):
    model: Variables
    styles: Tensor  # one row per client
    centre: Tensor


class Seen(NamedTuple):
    total: Tensor


class Style(NamedTuple):
    style: Tensor


class Trained(NamedTuple):
    model: Variables


@dataclass(frozen=True)
class Gather(Algorithm[Server, Seen, Server, Style]):
    name: ClassVar[str] = "gather"
    card: ClassVar[Card] = CARD
    rounds: ClassVar[int | None] = 1

    def init_server(self, task):
        model = task.net.variables()
        zeros = next(iter(model.params.values())).new_zeros
        return Server(model, zeros(task.clients, 3), zeros(3))

    def send(self, task, server, client):
        return server

    def init_client(self, task, down, before=None):
        return Seen(torch.zeros_like(down.centre))

    def begin(self, task, down, client, round, site):
        return Work(down.model, down, client, round, aux=torch.zeros_like(down.centre))

    def phases(self, task, labelled=True):
        return (
            Phase(
                "look",
                step=lambda task, work, batch: (work._replace(aux=work.aux + batch.x.mean((0, 2, 3))), {}),
            ),
        )

    def finish(self, task, work):
        return Style(work.aux / work.round.steps), Seen(work.aux)

    def aggregate(self, task, server, ups, cohort):
        styles = server.styles.clone()
        for i, up in zip(cohort.ids, ups, strict=True):
            styles[i] = up.style
        return server._replace(styles=styles)

    def model_for(self, task, down, client):
        return down.model


@dataclass(frozen=True)
class Fit(Gather):
    """Server work alone: walk to the mean of the styles."""

    name: ClassVar[str] = "fit"
    rounds: ClassVar[int | None] = 3
    needs_clients: ClassVar[bool] = False

    def aggregate(self, task, server, ups, cohort):
        assert not list(ups)
        return server._replace(centre=server.centre + 0.5 * (server.styles.mean(0) - server.centre))


@dataclass(frozen=True)
class Styled(Algorithm[Server, Seen, Server, Trained]):
    name: ClassVar[str] = "styled"
    card: ClassVar[Card] = CARD

    def stages(self):
        return Gather(), Fit(), self

    def init_server(self, task):
        return Gather().init_server(task)

    def send(self, task, server, client):
        return server

    def init_client(self, task, down, before=None):
        return before or Seen(torch.zeros_like(down.centre))

    def loss(self, task, work, batch):
        out = task.net(work.model, batch.x - work.down.centre.view(1, 3, 1, 1), train=True)
        loss = F.cross_entropy(out.logits, batch.y)
        return Loss(loss, out.buffers, work.aux, {"norm": out.features.detach().norm()})

    def finish(self, task, work):
        return Trained(work.model), work.client

    def aggregate(self, task, server, ups, cohort):
        return server._replace(model=tree.mean((up.model for up in ups), cohort.weights))

    def model_for(self, task, down, client):
        return down.model


@dataclass(frozen=True)
class HeadThenBody(FedAvg):
    """Two phases over one budget, each with its own optimiser."""

    name: ClassVar[str] = "head-then-body"
    card: ClassVar[Card] = replace(CARD, neutral=None)

    def phases(self, task, labelled=True):
        if not labelled:
            return ()
        names = list(task.net.module.state_dict())
        head = frozenset(n for n in names if n.startswith(names[-1].rsplit(".", 1)[0]))
        params = frozenset(dict(task.net.module.named_parameters()))
        return Phase("head", 1.0, head & params), Phase("body", 3.0, params - head)


def test_methods_from_elsewhere_pass_the_contract():
    check_method(Styled())
    check_method(HeadThenBody(), ["small-cnn"])


def test_stages_run_in_order_on_one_server_state():
    setup = Case(Styled()).setup(rounds=2)
    states_ = list(trajectory(setup))
    assert [(s.stage, s.done) for s in states_] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    images = [torch.stack([b.x.mean((0, 2, 3)) for b in site.batches(0)]).mean(0) for site in setup.sites]
    got = states_[0].server.styles
    assert torch.allclose(got, torch.stack(images), atol=0.05)  # other batches of the same images
    target = got.mean(0)
    assert torch.allclose(states_[3].server.centre, target * (1 - 0.5**3))
    assert states_[0].before and not states_[3].before  # a stage without clients leaves no memory behind
    assert set(states_[5].metrics) == {"loss", "norm"}


def test_phases_train_their_own_parameters_only():
    setup = Case(HeadThenBody(), optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=0.1)).setup(rounds=1)
    head, body = (p.trains for p in setup.method.phases(setup.task))
    assert head and body and not head & body
    start, seen = setup.task.net.variables().params, {}

    def spy(task, work, batch, phase):
        after, metrics = descend(setup.method, task, work, batch, phase.trains)
        changed = {k for k in start if not torch.equal(after.model.params[k], before[k])}
        before.update({k: v.clone() for k, v in after.model.params.items()})
        seen.setdefault(phase.name, set()).update(changed)
        return after, metrics

    before = dict(start)
    plain = setup.method.phases

    @dataclass(frozen=True)
    class Spied(HeadThenBody):
        def phases(self, task, labelled=True):
            return [replace(p, step=lambda t, w, b, p=p: spy(t, w, b, p)) for p in plain(task)]

    before_first = {k: v.clone() for k, v in start.items()}
    before.update(before_first)
    last(replace(setup, method=Spied(), plan=replace(setup.plan, participation=0.5)))
    assert seen["head"] == head and seen["body"] == body


@pytest.mark.parametrize(("shares", "steps"), [((1, 1, 1), 10), ((4, 1), 7), ((1, 9), 1), ((0.5,), 3)])
def test_phases_share_the_budget_without_rest(shares, steps):
    parts = divided([Phase(str(i), s) for i, s in enumerate(shares)], steps)
    assert sum(n for _, n in parts) == steps
    for (_, n), share in zip(parts, shares, strict=True):
        assert abs(n - steps * share / sum(shares)) < 1


def test_cohorts_are_drawn_by_seed_and_the_same_for_every_method():
    plan = Case(FedAvg()).setup(participation=0.4).plan
    drawn = [plan.cohort("main", r, 10) for r in range(30)]
    assert drawn == [plan.cohort("main", r, 10) for r in range(30)]
    assert all(len(set(c)) == 4 and c == sorted(c) for c in drawn)
    assert {i for c in drawn for i in c} == set(range(10))
    assert plan.cohort("main", 0, 3) != list(range(3)) and len(plan.cohort("main", 0, 2)) == 1


@dataclass(frozen=True)
class Broken(FedAvg):
    name: ClassVar[str] = "broken"
    how: str = "shape"

    def correct(self, task, grads, work):
        if self.how == "shape":
            return tree.map(lambda g, w: g + torch.zeros(7, 7, 7), grads, work.model.params)
        return tree.map(lambda g: g * float("nan"), grads)


def test_debug_says_where():
    with pytest.raises(HookError) as caught:
        last(Case(Broken(how="shape")).setup("debug"))
    text = str(caught.value)
    for word in (
        "method broken",
        "stage broken",
        "round 0",
        "client domain1",
        "correct",
        "tensor body.0.0.weight",
    ):
        assert word in text, text
    with pytest.raises(HookError, match="correct: found NaN or infinity in body"):
        last(Case(Broken(how="nan")).setup("debug"))


def test_debug_covers_the_server():
    @dataclass(frozen=True)
    class NoMerge(FedAvg):
        def aggregate(self, task, server, ups, cohort):
            raise ZeroDivisionError("no clients")

    with pytest.raises(HookError, match=r"round 0, server, aggregate: ZeroDivisionError: no clients"):
        last(Case(NoMerge()).setup("debug"))


@pytest.mark.parametrize("engine", ["sequential", "wire"])
def test_a_site_that_returns_nan_stops_the_run_by_name(engine):
    with pytest.raises(MessageError, match="round 0, client domain1: its upload holds NaN or infinity in model/params"):
        last(Case(Broken(how="nan")).setup(engine))


def test_a_server_that_diverges_stops_the_run():
    """Every upload is finite; what the server makes of them is not."""
    diverging = HFedF(server_optimizer="sgd", server_lr=1e300, server_wd=0.0, ema_mode="off")
    with pytest.raises(MessageError, match=r"round 0: the server's new state holds .* in h/.* method\.server_lr\."):
        last(Case(diverging).setup(rounds=1))


def test_each_tensor_of_the_server_is_looked_at_once(monkeypatch):
    """One that a stage hands on, in the first round alone; one that it makes, in each."""
    looked, extremes = [], tree.extremes

    def noting(given):
        looked.extend([{path.partition("/")[0] for path in given}] if type(given) is dict else [])
        return extremes(given)

    monkeypatch.setattr(tree, "extremes", noting)
    last(Case(Styled()).setup(rounds=2))
    assert looked == [{"model", "styles", "centre"}, *[{"centre"}] * 3, *[{"model"}] * 2]


def test_a_server_that_begins_with_nan_is_noticed_though_no_round_changes_it():
    @dataclass(frozen=True)
    class Begins(Styled):
        def init_server(self, task):
            server = super().init_server(task)
            return server._replace(centre=server.centre / 0)

        def stages(self):
            return (self,)

        def loss(self, task, work, batch):
            return Algorithm.loss(self, task, work, batch)

    with pytest.raises(MessageError, match=r"round 0: the server's new state holds .* in centre, .* learning rate\."):
        last(Case(Begins()).setup())


def test_wire_counts_and_checks():
    setup = Case(FedAvg()).setup("wire")
    end = last(setup)
    assert isinstance(setup.engine, Wire)
    framing = len(states.to_bytes(end.server)) - tree.nbytes(end.server)
    messages = 4 * 2
    assert setup.engine.sent_up == end.bytes_up + messages * framing
    assert setup.engine.sent_down == end.bytes_down + messages * framing
    assert end.bytes_up == messages * tree.nbytes(end.server)


def test_wire_refuses_a_foreign_model():
    @dataclass(frozen=True)
    class Longer(FedAvg):
        def finish(self, task, work):
            up, client = super().finish(task, work)
            return up._replace(model=up.model._replace(params=up.model.params | {"spy": torch.zeros(1)})), client

    with pytest.raises(MessageError, match="client domain1, upload/model/params/spy: found, but the network has no"):
        last(Case(Longer()).setup("wire"))


def test_adding_a_client_shifts_no_stream_of_the_others():
    """Under local training a site's result cannot depend on who else is there."""
    from fedshift.methods.local import Local

    few = last(Case(Local(), left_out=("domain0",)).setup())
    many = last(Case(Local(), left_out=()).setup())
    one, two = everything(few), everything(many)
    a = {k.removeprefix("memory/0/"): v for k, v in one.items() if k.startswith("memory/0/")}
    b = {k.removeprefix("memory/1/"): v for k, v in two.items() if k.startswith("memory/1/")}
    assert a and difference(a, b) == 0


def test_dropout_is_seeded_by_round_and_client():
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3 * 64, 3)

        def features(self, x):
            return F.dropout(x.flatten(1), 0.5, self.training)

        def head(self, z):
            return self.fc(z)

    from fedshift.core.net import Net

    ends = []
    for engine in ("sequential", "debug", "sequential"):
        setup = Case(FedAvg()).setup(engine)
        torch.manual_seed(0)
        net = Net(Drop().double())
        task = setup.engine.task(net, setup.task.optimizer, sites=setup.task.sites, examples=setup.task.examples,
                                 classes=3)  # fmt: skip
        torch.manual_seed(len(ends))  # the global stream outside must not matter
        ends.append(last(replace(setup, task=task)))
    assert difference(everything(ends[0]), everything(ends[1])) == 0
    assert difference(everything(ends[0]), everything(ends[2])) == 0


def test_tiny_data_has_unlike_sites():
    sizes = [len(d.labels) for d in tiny_data().domains]
    assert len(set(sizes)) == 3 and isinstance(Empty(), tuple)
