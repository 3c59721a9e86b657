"""Every moment belongs to one part, parts are where the work is, and being watched changes nothing."""

import threading
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fedshift.core.net import Net
from fedshift.core.optim import Optimizer
from fedshift.data.augment import Transform
from fedshift.data.batches import groups
from fedshift.data.pictures import Pictures
from fedshift.engines.fast import Fast
from fedshift.eval import evaluate
from fedshift.experiment import journal
from fedshift.experiment import profile as watching
from fedshift.experiment.profile import CLOSED, OPENED, PARTS, profile, watched
from fedshift.experiment.spans import Spans
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.testing import Case, difference, everything, last, quick, tiny_data


class Ticks:
    """A clock that goes on by `each` at every mark, and where a test says so."""

    def __init__(self, each=0):
        self.now, self.each = 0, each

    def mark(self):
        self.now += self.each
        return self.now

    def seconds(self, marks):
        return [b - a for a, b in pairwise(marks)]

    def costs(self, monkeypatch, place, name, seconds):
        """From now on that call takes so long."""
        call = getattr(place, name)

        def slow(*args, **kwargs):
            self.now += seconds
            return call(*args, **kwargs)

        monkeypatch.setattr(place, name, slow)


def experiment(method="fedavg", engine="sequential", **federation):
    return replace(Case(quick(METHODS[method]())).experiment(**federation), engine=engine)


def stages(method="fedavg", engine="sequential", clock=None, **rest):
    found = profile(experiment(method, engine), tiny_data(), clock=clock or Ticks(1), **rest)
    return found.stages


COSTS = {
    "data": (Pictures, "take", 10**2),
    "augmentation": (Transform, "test", 10**4),
    "forward": (Net, "__call__", 10**6),
    "backward": (torch.autograd, "grad", 10**8),
    "update": (Optimizer, "update_", 10**10),
    "server": (FedAvg, "aggregate", 10**12),
    "evaluation": (evaluate, "score", 10**14),
    "checkpoint": (journal, "save_checkpoint", 10**16),
}


@pytest.mark.parametrize("engine", ["sequential", "wire"])
def test_each_part_holds_what_its_calls_cost(engine, monkeypatch):
    clock = Ticks()
    for place, name, seconds in COSTS.values():
        clock.costs(monkeypatch, place, name, seconds)
    setup = Case(FedAvg()).setup()
    steps, held = sum(site.steps() for site in setup.sites), 3  # two sites' test images and the unseen ones
    (stage,) = stages(engine=engine, clock=clock)
    expected = {"server": 1, "checkpoint": 1} | dict.fromkeys(("forward", "backward", "update"), steps)
    prepared = sum(len(list(groups(site.visits(0).sizes, 10**6))) for site in setup.sites)
    expected |= dict.fromkeys(("data", "augmentation"), prepared)
    for part, times in expected.items():
        assert stage.parts[part] == times * COSTS[part][2], part
    inside = stage.parts["evaluation"]  # its own calls, and the pictures, transforms and passes of evaluation
    assert (
        inside // 10**14 >= held and inside % 10**14 // 10**6 % 100 == inside % 10**6 // 10**4 == inside % 10**4 // 100
    )
    assert stage.parts["clients"] == stage.parts["other"] == 0


@pytest.mark.parametrize("mutant", [{"CLOSED": frozenset()}, {"OPENED": frozenset()}])
def test_the_costs_bite(mutant, monkeypatch):
    """Evaluation's passes are no forward passes, and training is not the server's though it waits for it."""
    for name, value in mutant.items():
        monkeypatch.setattr(watching, name, value)
    clock = Ticks()
    clock.costs(monkeypatch, Net, "__call__", 1)
    (stage,) = stages(clock=clock)
    steps = sum(site.steps() for site in Case(FedAvg()).setup().sites)
    assert stage.parts["forward"] != steps


def test_a_server_that_trains_is_the_servers_time(monkeypatch):
    """hFedF descends on its hypernetwork: that update is not the clients'."""
    clock = Ticks()
    clock.costs(monkeypatch, Optimizer, "update_", 1)
    (stage,) = profile(experiment("hfedf"), tiny_data(), clock=clock).stages
    steps = sum(site.steps() for site in Case(METHODS["hfedf"]()).setup().sites)
    assert stage.parts["update"] == steps and stage.parts["server"] == 1


@pytest.mark.parametrize("method", METHODS)
def test_parts_add_up_for_every_method_and_stage(method):
    """With a clock that moves at marks alone, a round of so many marks is that long, to the last tick."""
    made = Case(quick(METHODS[method]()))
    found = stages(method, measured=2)
    assert [stage.name for stage in found] == [stage.name for stage in made.method.stages()]
    for stage in found:
        assert set(stage.parts) == set(PARTS)
        assert stage.seconds == stage.marks - 1


@pytest.mark.parametrize("method", METHODS)
def test_watching_changes_no_bit(method):
    case = Case(quick(METHODS[method]()))
    plain, spans = last(case.setup()), Spans(Ticks(), CLOSED, OPENED)
    spans.begin()
    seen = last(watched(case.setup(), spans, detail=True))
    assert difference(everything(plain), everything(seen)) == 0 and plain.metrics == seen.metrics


def test_recorded_steps_are_divided_as_plain_ones_are(monkeypatch):
    clock = Ticks()
    clock.costs(monkeypatch, torch.autograd, "grad", 3)
    clock.costs(monkeypatch, Optimizer, "update_", 1)
    found = profile(experiment(engine="rehearsed"), tiny_data(), clock=clock)
    (stage,) = found.stages
    steps = sum(site.steps() for site in Case(FedAvg()).setup().sites)
    assert stage.divided and stage.seconds == pytest.approx(4 * steps)  # as measured, not as divided
    assert stage.parts["backward"] == pytest.approx(3 * steps) and stage.parts["update"] == pytest.approx(steps)
    assert "sequential" in found.notes[-1]


@pytest.mark.parametrize(("model", "workers"), [("small-cnn", 2), ("mlp", 1)])
def test_clients_side_by_side_or_at_once_are_divided_as_one_by_one(model, workers, monkeypatch):
    clock, before = Ticks(), torch.get_num_threads()
    config = replace(Case(FedAvg(), model).experiment(), engine="fast", precision="float32")
    clock.costs(monkeypatch, Fast, "train", 8)
    clock.costs(monkeypatch, torch.autograd, "grad", 1)
    found = profile(config, tiny_data(), workers=workers, clock=clock)
    torch.set_num_threads(before)
    (stage,) = found.stages
    assert stage.divided and stage.parts["backward"] >= 8 and "fast trains one after another" in found.notes[-1]


def test_the_fast_engine_alone_is_watched_itself(monkeypatch):
    clock = Ticks()
    clock.costs(monkeypatch, torch.autograd, "grad", 1)
    (stage,) = profile(replace(experiment(engine="fast"), precision="float32"), tiny_data(), clock=clock).stages
    assert not stage.divided and stage.parts["backward"] == sum(s.steps() for s in Case(FedAvg()).setup().sites)


def test_what_is_rare_counts_by_its_share(monkeypatch):
    clock = Ticks()
    clock.costs(monkeypatch, evaluate, "score", 30)
    clock.costs(monkeypatch, journal, "save_checkpoint", 20)
    config = experiment()
    often = profile(config, tiny_data(), clock=clock).stages[0]
    rare = replace(config, eval=replace(config.eval, every=3), checkpoint=2)
    found = profile(rare, tiny_data(), clock=clock)
    assert found.stages[0].parts["evaluation"] == pytest.approx(often.parts["evaluation"] / 3)
    assert found.stages[0].parts["checkpoint"] == pytest.approx(often.parts["checkpoint"] / 2) == 10
    assert [note.split(":")[0] for note in found.notes] == ["One evaluation in 3 rounds", "One checkpoint in 2 rounds"]


def test_a_stage_with_few_rounds_is_measured_as_far_as_it_goes():
    found = profile(experiment(rounds=2), tiny_data(), clock=Ticks(1), measured=5, warm_up=4)
    assert found.stages[0].rounds == 1


def test_spans():
    clock = Ticks()
    spans = Spans(clock, frozenset({"shut"}), frozenset({"door"}))
    with spans("nobody looks"):
        clock.now += 7
    spans.begin()
    clock.now += 1
    with spans("a"):
        clock.now += 10
        with spans("b"):
            clock.now += 100
        with spans("shut"):
            clock.now += 1000
            with spans("b"):
                clock.now += 1000
            with spans("door"), spans("b"):
                clock.now += 10**5
        clock.now += 20
    assert spans.end() == ({"other": 1, "a": 30, "b": 100 + 10**5, "shut": 2000, "door": 0}, 14)


def test_spans_of_another_thread_and_an_error_inside():
    clock = Ticks()
    spans = Spans(clock, frozenset(), frozenset())
    spans.begin()

    def elsewhere():
        with spans("theirs"):
            clock.now += 5

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with pytest.raises(ValueError, match="in it"), spans("a"):
        clock.now += 3
        raise ValueError("in it")
    clock.now += 2
    assert spans.end()[0] == {"other": 7, "a": 3}


def test_each_charges_the_source_and_not_its_user():
    clock = Ticks()
    spans = Spans(clock, frozenset(), frozenset())

    def source():
        for i in range(2):
            clock.now += 10
            yield i
        clock.now += 1

    spans.begin()
    for _ in spans.each("source", source()):
        clock.now += 100
    assert spans.end()[0] == {"other": 200, "source": 21}
