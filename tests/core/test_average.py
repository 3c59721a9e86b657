"""Weights, and what happens to BatchNorm's statistics."""

import pytest
import torch

from fedshift.core import tree
from fedshift.core.average import average, average_by, local_statistics, weigh
from fedshift.core.errors import MessageError
from fedshift.core.task import Cohort, Rules
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.testing import Case, difference, last, models_by_site, trajectory


def test_weights_sum_to_one_over_the_cohort():
    assert weigh(Rules("examples"), [0, 2], [10, 50, 30]) == ((0.25, 0.75), 40 / 90)
    assert weigh(Rules("uniform"), [0, 2], [10, 50, 30]) == ((0.5, 0.5), 2 / 3)


def statistics(model):
    return model.buffers["body.0.1.running_mean"], model.buffers["body.0.1.running_var"]


def test_pooled_variance_is_that_of_the_union():
    """Two halves of one sample, weighed equally: E[Var] + Var[E] is the variance of the whole."""
    setup = Case(FedAvg()).setup(weights="uniform", buffers="pooled", rounds=1)
    gen = torch.Generator().manual_seed(0)
    halves = torch.randn(2, 500, 4, generator=gen, dtype=torch.float64) + torch.tensor([[[0.0]], [[3.0]]])
    start = setup.task.net.variables()
    name = next(k for k in start.buffers if k.endswith("running_mean")).removesuffix("running_mean")
    ups = [
        setup.start().server._replace(
            model=start._replace(
                buffers=start.buffers
                | {f"{name}running_mean": h.mean(0), f"{name}running_var": h.var(0, unbiased=False)}
            )
        )
        for h in halves
    ]
    cohort = Cohort((0, 1), (1, 1), (0.5, 0.5), 1.0, 0, 0.1)
    pooled = setup.method.aggregate(setup.task, setup.start().server, iter(ups), cohort).model.buffers
    whole = halves.flatten(0, 1)
    assert torch.allclose(pooled[f"{name}running_mean"], whole.mean(0), atol=1e-12)
    assert torch.allclose(pooled[f"{name}running_var"], whole.var(0, unbiased=False), atol=1e-12)
    assert pooled[f"{name}running_var"].dtype == torch.float64


def test_local_rule_keeps_statistics_at_the_site_and_averages_them_for_others():
    setup = Case(FedAvg()).setup(buffers="local", rounds=2)
    end = last(setup)
    own = local_statistics(setup.task.net)
    for memory in end.memory.values():
        assert set(memory.statistics.buffers) == own and not memory.statistics.params
    models = models_by_site(setup, end)
    name = next(k for k in sorted(own) if k.endswith("running_mean"))
    a, b = (memory.statistics.buffers[name] for memory in end.memory.values())
    w = setup.task.examples
    mixed = (w[0] * a + w[1] * b) / sum(w)
    assert torch.equal(models[f"{setup.task.sites[0]}/buffers/{name}"], a)
    assert torch.equal(models[f"{setup.task.sites[1]}/buffers/{name}"], b)
    assert torch.allclose(models[f"unseen/buffers/{name}"], mixed, atol=1e-12) and not torch.equal(a, b)


def test_rules_change_statistics_alone_in_the_first_round():
    """Training runs on batch statistics, so after one round the parameters agree under every rule."""
    ends = [last(Case(FedAvg()).setup(buffers=rule, rounds=1)) for rule in ("mean", "local", "pooled")]
    for end in ends[1:]:
        assert difference(ends[0].server.model.params, end.server.model.params) == 0
    assert difference(ends[0].server.model.buffers, ends[2].server.model.buffers) > 0


def test_fedbn_is_the_same_under_mean_and_local():
    """FedBN keeps the statistics itself, so the protocol's rule has nothing left to decide at its sites."""
    states = [next(iter(trajectory(Case(FedBN()).setup(buffers=rule)))) for rule in ("mean", "local")]
    clients = [tree.clone(s.memory[0].client) for s in states]
    assert difference(*(dict(tree.leaves(c)) for c in clients)) == 0


def some_models(setup, number=3):
    """Models that differ in all but the count of batches, which differs too."""
    gen = torch.Generator().manual_seed(1)
    start = setup.task.net.variables()
    return [
        tree.map(lambda t, k=k: t + k if t.dtype == torch.int64 else t + torch.rand(t.shape, generator=gen), start)
        for k in range(number)
    ]


@pytest.mark.parametrize("buffers", ["mean", "pooled"])
def test_average_by_is_the_average_by_these_weights(buffers):
    setup = Case(FedAvg()).setup(buffers=buffers)
    models, weights = some_models(setup), (0.2, 0.5, 0.3)
    before = tree.clone(models[0])
    plain = average(setup.task, models, Cohort((0, 1, 2), (1, 1, 1), weights, 1.0, 0, 0.1))
    by = average_by(setup.task, ((m, torch.tensor(7 * w)) for m, w in zip(models, weights, strict=True)))
    assert difference(dict(tree.leaves(plain)), dict(tree.leaves(by))) < 1e-6  # the weights are float32
    assert difference(dict(tree.leaves(before)), dict(tree.leaves(models[0]))) == 0


def test_average_by_of_equal_models_is_the_model_and_zero_weights_count_alike():
    setup = Case(FedAvg()).setup()
    a, b, c = some_models(setup)
    weigh = torch.tensor([0.1, 0.7, 0.0], dtype=torch.float64)
    same = average_by(setup.task, ((a, w) for w in weigh))
    assert difference(dict(tree.leaves(a)), dict(tree.leaves(same))) == 0
    zero = torch.zeros((), dtype=torch.float64)
    even = average_by(setup.task, ((m, zero) for m in (a, b, c)))
    assert difference(dict(tree.leaves(tree.mean((a, b, c), (1 / 3,) * 3))), dict(tree.leaves(even))) < 1e-15
    late = average_by(setup.task, zip((a, b, c), (zero, zero, weigh[0]), strict=True))
    assert all(torch.equal(late.params[k], c.params[k]) for k in c.params)  # who has all the weight is the mean
    with pytest.raises(MessageError, match="found no trees"):
        average_by(setup.task, ())
