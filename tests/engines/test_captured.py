"""The engine that records steps: what it refuses, how it retreats, and that replays are the plain steps on a GPU."""

import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from fedshift.core.optim import SGD, Adam
from fedshift.core.task import Loss
from fedshift.data import batches
from fedshift.data.batches import ClientData, Source, seen
from fedshift.engines import captured, fusing
from fedshift.engines.captured import POOL, Rehearsed
from fedshift.engines.machine import Host, HostDice
from fedshift.experiment import setup
from fedshift.experiment.config import DataConfig
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.testing import MODELS, Case, check_recorded, difference, everything, last, quick, tiny_data

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU, and torch finds none")


@pytest.fixture(autouse=True)
def own_pool():
    POOL.clear()
    POOL._bytes.clear()
    yield
    POOL.clear()


def rehearsed(case=None, **federation):
    setup = (case or Case(FedAvg())).setup("rehearsed", **federation)
    assert isinstance(setup.engine, Rehearsed)
    return setup


def gap(setup, plain):
    return difference(everything(last(setup)), everything(last(plain)))


@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9, nesterov=True, clip=1.0), Adam(lr=1e-3)])
@pytest.mark.parametrize("changes", [{}, {"participation": 0.5}, {"buffers": "local"}, {"buffers": "pooled"}])
def test_replays_are_the_plain_steps(optimizer, changes):
    case = Case(FedAvg(), optimizer=optimizer, left_out=())
    assert gap(rehearsed(case, **changes), case.setup(**changes)) < 1e-9


def test_fewer_lanes_than_clients_change_nothing():
    case = Case(FedAvg(), left_out=())
    setup = rehearsed(case)
    setup.engine.lanes = 2
    assert gap(setup, case.setup()) < 1e-9


@dataclass(frozen=True)
class Asking(FedAvg):
    """Asks the host for a value within its step."""

    name: ClassVar[str] = "asking"

    def loss(self, task, work, batch):
        out = task.net(work.model, batch.x, train=True)
        value = F.cross_entropy(out.logits, batch.y)
        return Loss(value * (2 if float(value.detach()) > 1 else 1), out.buffers, work.aux)


@dataclass(frozen=True)
class Counting(FedAvg):
    """Reads what a recording would freeze."""

    name: ClassVar[str] = "counting"

    def loss(self, task, work, batch):
        loss = super().loss(task, work, batch)
        return loss._replace(value=loss.value * (1 + work.round.number))


@pytest.mark.parametrize(("method", "why"), [(Asking(), "wait for the value"), (Counting(), "reads round.number")])
def test_what_cannot_be_recorded_runs_plainly_and_says_why(method, why, caplog):
    with caplog.at_level(logging.WARNING, "fedshift"):
        setup = rehearsed(Case(method))
        assert gap(setup, Case(method).setup()) < 1e-9  # the rate is a tensor there
    assert setup.engine.plain == {method.name}
    assert len(caplog.messages) == 1 and why in caplog.messages[0] and "one after another" in caplog.messages[0]


def test_a_card_that_hides_it_is_caught():
    with pytest.raises(AssertionError, match=r"cannot be recorded are \['asking'\]"):
        check_recorded(Case(Asking()))
    honest = replace(Asking.card, unrecorded={"asking": "its loss looks at a value"})

    class Honest(Asking):
        card = honest

    check_recorded(Case(Honest()))


class Scarce(Host):
    """Has memory for so many recordings."""

    def __init__(self, left):
        self.left = left

    def record(self, body, dice: HostDice):
        self.left -= 1
        if self.left < 0:
            self.left = 10**6  # what waits is given back
            raise torch.OutOfMemoryError("no memory")
        return super().record(body, dice)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_without_memory_fewer_clients_train_at_once(left, monkeypatch, caplog):
    machine = Scarce(left)
    monkeypatch.setattr(Rehearsed, "machine", lambda self, task: machine)
    case = Case(FedAvg(), left_out=())
    setup = rehearsed(case)
    with caplog.at_level(logging.WARNING, "fedshift"):
        assert gap(setup, case.setup()) < 1e-9
    assert "out of memory" in caplog.text and setup.engine.lanes < captured.LANES
    assert setup.engine.plain == set()  # it could be recorded


def test_runs_that_differ_in_seed_alone_share_recordings(monkeypatch):
    monkeypatch.setattr(ClientData, "source", one_source(tiny_data()))
    case, made = Case(FedAvg(), left_out=()), []

    class Watched(Host):
        def record(self, body, dice):
            made.append(1)
            return super().record(body, dice)

    machine = Watched()
    for seed in (0, 1):
        setup = rehearsed(case)
        setup = replace(setup, plan=replace(setup.plan, seed=seed))
        setup.engine.machine = lambda task: machine
        last(setup)
        made.append(0)
    first = made.index(0)
    assert first > 0 and made[first + 1 :] == [0]


def fusing_by(fuse):
    """Compiled by that function, whatever the precision."""
    return lambda task: None if task.exact else fuse


def test_runs_of_other_precisions_have_recordings_of_their_own():
    tiny = tiny_data((40, 30, 22))
    runs = [replace(Case(FedAvg(), left_out=()).experiment(rounds=2), precision=p) for p in ("float64", "float32")]
    plain = [everything(last(set_up(one, tiny))) for one in runs]
    for one, wanted in zip(runs, plain, strict=True):
        found = everything(last(set_up(replace(one, engine="rehearsed"), tiny)))
        assert found.keys() == wanted.keys() and all(t.dtype == wanted[k].dtype for k, t in found.items())
        assert difference(found, wanted) < 1e-5


@pytest.mark.parametrize("first", [0, 1, 2])
def test_lanes_serve_sites_with_and_without_augmentation_and_of_other_sizes(first):
    """In the order of their turns, each run's pictures are its own: a lane keeps what the run before has laid there."""
    ways = [("none", 16), ("shift", 16), ("none", 8)]
    for recipe, side in ways[first:] + ways[:first]:
        data = replace(Case(FedAvg(), left_out=()).experiment(), data=DataConfig(recipe=recipe), precision="float64")
        ends = [
            everything(last(set_up(replace(data, engine=engine), tiny_data((40, 30, 22), side=side))))
            for engine in ("rehearsed", "sequential")
        ]
        assert difference(*ends) < 1e-9


def one_source(data):
    """As on a GPU: the pictures of all sites lie in one array."""
    whole = torch.cat([domain.images for domain in data.domains])

    def source(self):
        here = (whole.flatten(1) == self.pictures.arrays[0].flatten(1)[0]).all(1).nonzero()[0, 0]
        return Source(whole, self.transform, self.pictures.row + here)

    return source


def drawn_sizes(engine, monkeypatch, **changes):
    sizes = []

    def watched(transform, pictures, looks):
        sizes.append(len(pictures))
        return seen(transform, pictures, looks)

    experiment = Case(FedAvg(), left_out=()).experiment(rounds=1)
    data = replace(experiment.data, recipe="shift")
    setup = set_up(replace(experiment, engine=engine, data=data, **changes), tiny_data((40, 30, 22), side=16))
    with monkeypatch.context() as patch:
        patch.setattr(batches, "seen", watched)
        patch.setattr(batches, "AHEAD", 0)  # as on a GPU
        last(setup)
    return sizes


def test_exact_feeds_prepare_batches_as_they_are_trained_on(monkeypatch):
    """How a GPU sums up a picture depends on how many there are: prepared together they would differ in last digits."""
    monkeypatch.setattr(captured, "fuser", fusing_by(lambda fn: fn))
    plain = drawn_sizes("sequential", monkeypatch)
    exact, loose = (drawn_sizes("rehearsed", monkeypatch, precision=p) for p in ("float64", "bf16"))
    assert set(exact) == set(plain) and min(loose) > max(plain)


class CompilerError(Exception):
    """As torch's own."""


CompilerError.__module__ = "torch._dynamo.exc"


@pytest.mark.parametrize("error", [CompilerError, ZeroDivisionError])
def test_what_the_compiler_cannot_do_is_recorded_as_it_is(error, monkeypatch, caplog):
    def broken(fn):
        def call(*args, **kwargs):
            raise error("tuple index out of range")

        return call

    def ended():
        setup = set_up(replace(Case(FedAvg(), left_out=()).experiment(rounds=2), **changes), tiny_data((40, 30, 22)))
        return everything(last(setup))

    changes = {"engine": "rehearsed", "precision": "bf16"}
    monkeypatch.setattr(captured, "UNFUSED", set())
    monkeypatch.setattr(captured, "fuser", fusing_by(lambda fn: fn))
    whole = ended()
    POOL.clear()
    monkeypatch.setattr(captured, "fuser", fusing_by(broken))
    with caplog.at_level(logging.WARNING, "fedshift"):
        if error is ZeroDivisionError:  # a fault of the method's
            with pytest.raises(error):
                ended()
            return
        assert difference(whole, ended()) == 0
    (record,) = caplog.records  # once, whatever the number of clients
    assert "recorded as it is, since it cannot be compiled: tuple index out of range" in record.message


# -- on a GPU ----------------------------------------------------------------------------------------------------------
def on_gpu(method, model, engine, precision, optimizer):
    experiment = Case(method, model, optimizer, left_out=()).experiment()
    data = DataConfig(recipe="domainbed" if model == "small-cnn" else "none")
    return replace(experiment, engine=engine, device="cuda", precision=precision, data=data)


@needs_gpu
@pytest.mark.parametrize("optimizer", [SGD(lr=0.02, momentum=0.9), Adam(lr=1e-3)], ids=["sgd", "adam"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_replays_on_a_gpu_are_the_plain_steps(method, model, optimizer):
    data = tiny_data((40, 30, 22), side=16)
    ends = [
        everything(last(set_up(on_gpu(quick(METHODS[method]()), model, engine, "float32", optimizer), data)))
        for engine in ("captured", "sequential")
    ]
    assert ends[0].keys() == ends[1].keys()
    for name, t in ends[0].items():
        other = ends[1][name].double()
        assert float((t.double() - other).norm()) <= 1e-6 * float(other.norm()) + 1e-9, name


@needs_gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_lower_precisions_stay_finite_and_near(method, precision):
    case = on_gpu(quick(METHODS[method]()), "small-cnn", "captured", precision, SGD(lr=0.02, momentum=0.9))
    end = everything(last(set_up(case, tiny_data((40, 30, 22), side=16))))
    assert all(bool(t.isfinite().all()) for t in end.values() if t.is_floating_point())


@needs_gpu
@pytest.mark.parametrize("fuse", [fusing.compiled, fusing.merged], ids=["compiled", "merged"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fdse", "rfeddis"])
def test_compiled_steps_are_the_plain_ones_in_another_order(method, fuse, monkeypatch):
    """In float32, so that a difference is a fault and not a rounding to few digits."""
    data, ends = tiny_data((40, 30, 22), side=16), []
    for engine in ("captured", "sequential"):
        case = on_gpu(quick(METHODS[method]()), "small-cnn", engine, "float32", SGD(lr=0.02, momentum=0.9))
        with monkeypatch.context() as patch:
            if engine == "captured":
                patch.setattr(captured, "fuser", fusing_by(fuse))
                patch.setattr(setup, "_set_precision", lambda config: False)
            ends.append(everything(last(set_up(case, data))))
    for name, t in ends[0].items():
        other = ends[1][name].double()
        assert float((t.double() - other).norm()) <= 0.01 * float(other.norm()) + 1e-6, name


@needs_gpu
def test_the_same_run_twice_gives_the_same_bits_on_a_gpu():
    case = on_gpu(FedAvg(), "small-cnn", "captured", "float32", SGD(lr=0.02, momentum=0.9))
    ends = [everything(last(set_up(case, tiny_data((40, 30, 22), side=16)))) for _ in range(2)]
    assert difference(*ends) == 0
