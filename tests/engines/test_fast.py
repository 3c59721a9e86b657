"""The CPU's engine: equal to the reference but for the order of sums, whatever trains side by side or all at once."""

import logging
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift.core import tree
from fedshift.core.apart import DrawsElsewhere, apart
from fedshift.core.net import Net
from fedshift.core.optim import SGD, Adam
from fedshift.core.seeds import scope
from fedshift.core.task import Phase
from fedshift.data.batches import ClientData
from fedshift.data.recipes import RECIPES
from fedshift.engines import fast, together
from fedshift.engines.fast import Fast
from fedshift.engines.workers import THREADS
from fedshift.experiment.checkpoint import load_checkpoint, save_checkpoint
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedprox import FedProx
from fedshift.methods.local import Local
from fedshift.methods.scaffold import Scaffold
from fedshift.testing import Case, difference, everything, last, tiny_data, trajectory

MANY = tiny_data(sizes=(11, 12, 13, 14, 17, 20, 21, 25, 9))  # batches of 4: last ones of 1 (joined), 2, 3 and 4


def ended(case, workers=1, most=0, data=None, **changes):
    """The last state by the engine `fast`, and the engine."""
    setup = replace(case.setup("fast", data=data), **changes)
    assert isinstance(setup.engine, Fast)
    setup.engine.most = most
    setup.engine.use(workers)
    return last(setup), setup.engine


# ------------------------------------------------------------------------------------------------------- channels last


def test_pictures_kernels_and_what_the_server_keeps_have_channels_last():
    setup = Case(FedAvg(), left_out=()).setup("fast", rounds=1)
    (batch, *_) = setup.sites[0].batches(0)
    assert batch.x.is_contiguous(memory_format=torch.channels_last) and not batch.x.is_contiguous()
    plain = Case(FedAvg(), left_out=()).setup()
    assert all(torch.equal(a.x, b.x) for a, b in zip(plain.sites[0].batches(0), setup.sites[0].batches(0), strict=True))
    model = last(setup).server.model.params
    kernels = [p for p in model.values() if p.dim() == 4]
    assert kernels and all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


def test_float32_stays_near_the_reference():
    case = Case(FedAvg(), optimizer=SGD(lr=0.05))
    ends = []
    for engine in ("sequential", "fast"):
        config = replace(case.experiment(rounds=2), engine=engine, precision="float32")
        ends.append(everything(last(fast_setup(config))))
    assert 0 < difference(*ends) < 1e-4


def fast_setup(config, workers=1):
    from fedshift.experiment.setup import set_up

    return set_up(config, tiny_data(), workers)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(("few", "workers"), [({"precision": "bf16"}, 1), ({}, 2)])
@pytest.mark.parametrize("engine", ["fast", "sequential"])
def test_a_run_on_one_thread_leaves_the_others_to_the_next(few, workers, engine, two_threads):
    config = replace(Case(FedAvg()).experiment(rounds=1), engine="fast", precision="float32")
    for _ in range(2):
        fast_setup(replace(config, **few), workers)
        assert torch.get_num_threads() == 1 and THREADS.all == 2
        fast_setup(replace(config, engine=engine))
        assert torch.get_num_threads() == 2
    torch.set_num_threads(1)  # by somebody else
    fast_setup(config)
    assert torch.get_num_threads() == THREADS.all == 1


def test_bf16_trains_on_one_thread(two_threads):
    config = replace(Case(FedAvg()).experiment(rounds=2), engine="fast", precision="bf16")
    end = last(fast_setup(config))
    assert torch.get_num_threads() == 1
    exact = last(fast_setup(replace(config, precision="float32")))
    assert difference(everything(end), everything(exact)) > 0
    assert end.metrics == pytest.approx(exact.metrics, rel=0.02)


def test_a_resumed_run_ends_in_the_same_bits(tmp_path):
    case = Case(Scaffold(), optimizer=SGD(lr=0.05))
    whole, path = last(case.setup("fast")), tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, next(s for s in trajectory(case.setup("fast")) if s.total == 2), {})
    state, _ = load_checkpoint(path, case.method, case.setup("fast").task.net)
    kernels = [t for _, t in tree.leaves(state.server) if t.dim() == 4 and t.shape[1] > 1]
    assert kernels and not any(t.is_contiguous() for t in kernels)
    assert difference(everything(whole), everything(last(case.setup("fast"), state))) == 0


# -------------------------------------------------------------------------------------------------------- side by side


class Drops(nn.Module):
    """Linear, with a way to drop features."""

    width = 12

    def __init__(self, drop):
        super().__init__()
        self.drop, self.inner, self.fc = drop, nn.Linear(192, 12), nn.Linear(12, 3)

    def features(self, x):
        return self.drop(self.inner(x.flatten(1)).relu(), self.training)

    def head(self, z):
        return self.fc(z)


def dropping(drop, engine, workers=1):
    setup = Case(FedAvg(), left_out=(), optimizer=SGD(lr=0.1)).setup(engine)
    with scope(0):
        net = Net(Drops(drop).double())
    task = setup.engine.task(net, setup.task.optimizer, sites=setup.task.sites, examples=setup.task.examples, classes=3)
    setup.engine.use(workers)
    if engine == "fast":
        setup.engine.most = 0
    return everything(last(replace(setup, task=task)))


ROUTED = {
    "dropout": lambda z, train: F.dropout(z, 0.5, train),
    "rand_like": lambda z, train: z * (torch.rand_like(z) < 0.5) if train else z,
    "normal_": lambda z, train: z + torch.zeros_like(z).normal_() if train else z,
    "randn": lambda z, train: z + torch.randn(z.shape, dtype=z.dtype) if train else z,
}


@pytest.mark.parametrize("name", ROUTED)
def test_draws_in_threads_are_those_of_one_after_another(name):
    assert difference(dropping(ROUTED[name], "sequential"), dropping(ROUTED[name], "fast", 3)) == 0


def test_what_draws_in_another_way_runs_one_after_another_and_says_so(caplog):
    def drop(z, train):
        return F.alpha_dropout(z, 0.5, train)

    with caplog.at_level(logging.WARNING, "fedshift"):
        found = dropping(drop, "fast", 2)
    assert difference(dropping(drop, "sequential"), found) == 0
    (record,) = caplog.records
    assert "its steps draw random numbers in a way that cannot be kept to one thread; one after" in record.message


def test_threads_without_random_numbers_of_their_own_would_be_noticed(monkeypatch):
    """The mutant: clients side by side on the process's generator."""
    from fedshift.engines import workers

    monkeypatch.setattr(workers, "apart", nullcontext)
    meeting = threading.Barrier(3, timeout=20)

    def together(z, train):
        with suppress(threading.BrokenBarrierError):  # as soon as the first client has no steps left
            if train:
                meeting.wait()
        return ROUTED["dropout"](z, train)

    assert difference(dropping(ROUTED["dropout"], "sequential"), dropping(together, "fast", 3)) > 0


def test_apart_leaves_the_global_generator_alone_or_refuses():
    before = torch.get_rng_state()
    with apart(), scope(7):
        drawn = torch.rand(3)
    with scope(7):
        assert torch.equal(drawn, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(DrawsElsewhere), scope(0), apart():
        torch.ops.aten.rand([2])


def test_an_error_in_a_thread_is_the_run_s():
    @dataclass(frozen=True)
    class Broken(FedAvg):
        def finish(self, task, work):
            raise ZeroDivisionError("nothing to share")

    with pytest.raises(ZeroDivisionError, match="nothing to share"):
        ended(Case(Broken(), left_out=()), workers=2)


# --------------------------------------------------------------------------------------------------------- all at once

CASES = {
    "fedavg": Case(FedAvg(), "mlp", SGD(lr=0.05)),
    "momentum that is kept": Case(FedAvg(), "mlp"),
    "clipped adam": Case(FedAvg(), "mlp", Adam(lr=0.01, clip=0.1)),
    "clipped sgd": Case(FedAvg(), "mlp", SGD(lr=0.05, clip=0.1)),
    "decay": Case(FedProx(mu=0.3), "mlp", SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "scaffold": Case(Scaffold(), "mlp", SGD(lr=0.05)),
    "local": Case(Local(), "mlp"),
}


@pytest.mark.parametrize("name", CASES)
def test_many_at_once_are_one_by_one(name, monkeypatch):
    case = replace(CASES[name], left_out=())
    one_by_one = last(case.setup(data=MANY))
    monkeypatch.setattr(fast, "client_round", None)  # nobody trains alone
    end, _ = ended(case, most=together.MOST, data=MANY)
    assert difference(everything(one_by_one), everything(end)) < 1e-10
    assert end.metrics == pytest.approx(one_by_one.metrics, rel=1e-12)


def test_last_batches_that_were_left_out_would_be_noticed(monkeypatch):
    """The mutant: only steps of all clients together are taken."""
    case = replace(CASES["fedavg"], left_out=())
    put = together.Stack.put
    monkeypatch.setattr(together.Stack, "put", lambda self, rows, new: put(self, rows, new) if rows is None else None)
    end, _ = ended(case, most=together.MOST, data=MANY)
    assert difference(everything(last(case.setup(data=MANY))), everything(end)) > 1e-4


@dataclass(frozen=True)
class Counting(FedAvg):
    """Reads what changes from round to round."""

    name: ClassVar[str] = "counting"

    def correct(self, task, grads, work):
        return tree.map(lambda g: g / (1 + work.round.number), grads)


@dataclass(frozen=True)
class InTwo(FedAvg):
    """Two phases, each on its own parameters."""

    name: ClassVar[str] = "in-two"

    def phases(self, task, labelled=True):
        params = frozenset(dict(task.net.module.named_parameters()))
        head = frozenset(k for k in params if k.startswith("classifier"))
        return Phase("head", 1.0, head), Phase("body", 2.0, params - head)


@dataclass(frozen=True)
class Drawing(FedAvg):
    """Its server draws between uploads."""

    name: ClassVar[str] = "drawing"

    def aggregate(self, task, server, ups, cohort):
        with scope(cohort.round):
            next(ups)
            noise = torch.rand(())
        return server._replace(model=tree.map(lambda t: t + noise, server.model))


def test_the_server_s_random_numbers_are_not_the_clients():
    case = Case(Drawing(), "mlp", left_out=())
    end, engine = ended(case, most=together.MOST, data=MANY)
    assert not engine._apart
    assert difference(everything(last(case.setup(data=MANY))), everything(end)) < 1e-10


@pytest.mark.parametrize("recipe", ["none", "shift"])
def test_pictures_are_prepared_a_few_at_a_time(recipe, monkeypatch):
    taken, drawn = [], ClientData.drawn

    def watched(self, images, looks):
        taken.append(len(images))
        return drawn(self, images, looks)

    monkeypatch.setattr(ClientData, "drawn", watched)
    case, ends = Case(FedAvg(), "mlp", SGD(lr=0.05), left_out=()), []
    for ahead in (256, 8):
        taken.clear()
        monkeypatch.setattr(together, "AHEAD", ahead)
        setup = case.setup("fast", data=MANY)
        sites = tuple(replace(s, transform=replace(s.transform, recipe=RECIPES[recipe])) for s in setup.sites)
        ends.append(everything(last(replace(setup, sites=sites))))
    assert difference(*ends) == 0 and max(taken) <= 8


def test_what_cannot_be_mapped_trains_one_by_one_and_says_so(caplog):
    case = Case(Counting(), "mlp", left_out=())
    with caplog.at_level(logging.INFO, "fedshift"):
        end, _ = ended(case, most=together.MOST, data=MANY)
    assert difference(everything(last(case.setup(data=MANY))), everything(end)) == 0
    (record,) = caplog.records
    assert "its step reads round.number" in record.message and "do not train at once" in record.message


def test_tiny_networks_begin_without_sympy():
    """Which torch imports to map a cross-entropy: it would double the time to the first round."""
    code = (
        "import sys; from fedshift.testing import Case, last; from fedshift.methods.fedavg import FedAvg\n"
        "setup = Case(FedAvg(), 'mlp', left_out=()).setup('fast'); last(setup)\n"
        "assert not setup.engine._apart and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_phases_at_once():
    case = Case(InTwo(), "mlp", left_out=())
    end, engine = ended(case, most=together.MOST, data=MANY)
    assert not engine._apart
    assert difference(everything(last(case.setup(data=MANY))), everything(end)) < 1e-10


def test_networks_with_convolutions_or_many_parameters_do_not_go_together():
    assert together.tiny(Case(FedAvg(), "mlp").setup().task, together.MOST)
    assert not together.tiny(Case(FedAvg(), "mlp").setup().task, 10)
    assert not together.tiny(Case(FedAvg(), "small-cnn").setup().task, together.MOST)
