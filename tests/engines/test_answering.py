"""Recorded passes of an evaluation: the network's own answers, for any model and any number of images."""

import logging

import pytest
import torch
from torch import nn

from fedshift import models
from fedshift.core import tree
from fedshift.core.net import Net
from fedshift.engines import answering
from fedshift.engines.answering import READERS, Answering
from fedshift.engines.machine import Cuda, Host
from fedshift.methods import METHODS
from fedshift.testing import Case, last, quick

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU, and torch finds none")


@pytest.fixture(autouse=True)
def no_readers():
    READERS.clear()
    yield
    READERS.clear()


def network(device="cpu"):
    torch.manual_seed(0)
    return Net(models.build("small-cnn", (3, 16, 16), 5, width=4).to(device, torch.float64))


def variables(net, seed):
    gen = torch.Generator().manual_seed(seed)

    def other(t):
        noise = torch.rand(t.shape, generator=gen, dtype=torch.float64).to(t.device)
        return t + noise if t.is_floating_point() else t

    return tree.map(other, net.variables())


def check(net, machine, exact, near):
    found = Answering(net, machine, exact=exact)
    for seed in (0, 1, 0):
        v = variables(net, seed)
        for n in (70, 3, 70):
            x = torch.randn(n, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).to(
                v.params["classifier.bias"].device
            )
            with torch.no_grad():
                one, other = (f(v, x, train=False, taps=("body.1",)) for f in (found, net))
            for a, b in ((one.logits, other.logits), (one.features, other.features)):
                assert a.shape == b.shape and float((a - b).abs().max()) <= near * float(b.abs().max())
            assert one.buffers is v.buffers and torch.allclose(one.taps["body.1"], other.taps["body.1"])


@pytest.mark.parametrize(("exact", "near", "recordings"), [(True, 0, 2), (False, 1e-12, 2)])
def test_answers_are_the_networks(exact, near, recordings):
    check(network(), Host(), exact, near)
    assert len(READERS) == recordings
    assert {len(reader.x) for reader in READERS.values()} == ({70, 3} if exact else {128, 64})


@needs_gpu
@pytest.mark.parametrize("exact", [True, False])
def test_answers_are_the_networks_on_a_gpu(exact):
    check(network("cuda"), Cuda(torch.device("cuda")), exact, 1e-12)


def test_training_and_gradients_go_through_the_network_itself():
    net = network()
    found, v, x = Answering(net, Host(), exact=True), variables(net, 0), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    v.params["classifier.weight"].requires_grad_()
    found(v, x, train=False).logits.sum().backward()
    with torch.no_grad():
        found(v, x, train=True)
    assert v.params["classifier.weight"].grad is not None and not READERS


def test_networks_that_normalise_by_the_batch_are_not_filled_up():
    net = Net(models.build("small-cnn", (3, 16, 16), 5, width=4).double())
    for module in net.module.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    found, v, x = Answering(net, Host(), exact=False), net.variables(), torch.randn(40, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        one, other = (f(v, x, train=False).logits for f in (found, net))
    assert float((one - other).abs().max()) < 1e-12


def test_few_recordings_are_kept(monkeypatch):
    monkeypatch.setattr(answering, "MOST", 2)
    net = network()
    found, v = Answering(net, Host(), exact=True), variables(net, 0)
    with torch.no_grad():
        for n in (3, 4, 3, 5):
            found(v, torch.randn(n, 3, 16, 16, dtype=torch.float64), train=False)
    assert [len(reader.x) for reader in READERS.values()] == [3, 5]


class Nosy(nn.Module):
    """Looks at a value on the way."""

    width = 192

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(192, 2)

    def features(self, x):
        return x.flatten(1) * (2 if float(x.sum()) > 0 else 1)

    def head(self, z):
        return self.fc(z)


def test_what_cannot_be_recorded_is_answered_as_it_is(caplog):
    net = Net(Nosy())
    found, v = Answering(net, Host(), exact=True), net.variables()
    with caplog.at_level(logging.WARNING, "fedshift"), torch.no_grad():
        for sign in (1, -1):
            x = sign * torch.ones(2, 3, 8, 8)
            assert torch.equal(found(v, x, train=False).logits, net(v, x, train=False).logits)
    assert len(caplog.messages) == 1 and "evaluation is not recorded: its step makes the host wait" in caplog.text


@pytest.mark.parametrize("method", METHODS)
def test_records_are_those_of_plain_evaluations(method, monkeypatch):
    case, records = Case(quick(METHODS[method]())), []
    for engine in ("sequential", "rehearsed"):
        setup = case.setup(engine)
        records.append(setup.evaluator(setup.method, setup.task, last(case.setup())))
    assert records[0] == records[1]
    assert READERS and all(READERS.values())


def test_a_model_that_was_not_loaded_would_be_noticed(monkeypatch):
    """The mutant: every model is taken for the last one."""
    monkeypatch.setattr(answering.Reader, "_load", lambda self, v, x: self.x[: len(x)].copy_(x))
    with pytest.raises(AssertionError):
        check(network(), Host(), True, 0)
