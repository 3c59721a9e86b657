"""Weights by importance: the mean against its formula, and Omega against plain gradients."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core import importance
from fedshift.core.importance import Importance, ImportanceMean, average_by_importance
from fedshift.core.latent import head_names
from fedshift.core.net import Variables
from fedshift.core.task import Cohort
from fedshift.core.translating import Up
from fedshift.experiment.setup import set_up
from fedshift.methods.fedavg import FedAvg
from fedshift.testing import Case, tiny_data


def drawn(seed, m=3, n=7):
    gen = torch.Generator().manual_seed(seed)
    values, omega = (torch.randn(m, n, generator=gen, dtype=torch.float64) for _ in range(2))
    return values, omega.abs() * torch.tensor([1e-9, 1.0, 1e9] + [1.0] * (n - 3), dtype=torch.float64)


def mean_of(values, omega, temper=1.0, kind=ImportanceMean):
    mean = kind(temper)
    for phi, w in zip(values, omega, strict=True):
        mean.add({"w": phi}, {"w": w})
    return mean.value["w"]


def formula(values, omega, temper=1.0):
    share = omega.pow(temper) + 1e-12
    return (share / share.sum(0) * values).sum(0)


@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_equals_the_formula_whoever_comes_first(seed, m, temper):
    values, omega = drawn(seed, m)
    expected, order = formula(values, omega, temper), torch.randperm(m)
    assert torch.allclose(mean_of(values, omega, temper), expected, atol=1e-12)
    assert torch.allclose(mean_of(values[order], omega[order], temper), expected, atol=1e-12)


@given(st.integers(0, 1000), st.integers(1, 6))
def test_weights_sum_to_one_for_every_parameter(seed, m):
    """A client that alone has ones gives its weights; parameter by parameter they sum to one."""
    _, omega = drawn(seed, m)
    shares = torch.stack(
        [mean_of(torch.eye(m, dtype=torch.float64)[d].view(m, 1).expand(m, 7), omega) for d in range(m)]
    )
    assert torch.allclose(shares.sum(0), torch.ones(7, dtype=torch.float64), atol=1e-12)
    assert bool((shares >= 0).all()) and torch.allclose(shares, (omega + 1e-12) / (omega + 1e-12).sum(0), atol=1e-12)


def test_equal_importance_none_at_all_and_temper_zero_give_the_plain_mean():
    values, omega = drawn(0)
    for w in (torch.full_like(omega, 3.7), torch.zeros_like(omega)):
        assert torch.allclose(mean_of(values, w), values.mean(0), atol=1e-14)
    assert torch.allclose(mean_of(values, omega, 0.0), values.mean(0), atol=1e-14)
    omega[:, 2] = 0  # weights that are dead everywhere, among others that are not
    assert torch.allclose(mean_of(values, omega)[2], values.mean(0)[2], atol=1e-14)


def test_clients_that_agree_are_a_fixed_point_to_the_bit():
    values, omega = drawn(1, 5)
    same = values[:1].expand(5, 7)
    assert torch.equal(mean_of(same, omega), same[0])


def test_what_was_added_stays_as_it_was():
    values, omega = drawn(2)
    copies = values.clone(), omega.clone()
    mean_of(values, omega)
    assert torch.equal(values, copies[0]) and torch.equal(omega, copies[1])


class ShrinksByClients(ImportanceMean):
    """Eq. 18's 1/m beside weights that sum to one."""

    @property
    def value(self):
        return {k: t / 3 for k, t in super().value.items()}


class OneWeightForAll(ImportanceMean):
    """Importance of a whole tensor."""

    def add(self, values, importance):
        super().add(values, {k: torch.full_like(w, float(w.mean())) for k, w in importance.items()})


class LastWins(ImportanceMean):
    """The running sum of weights is forgotten."""

    def add(self, values, importance):
        self._total = {k: torch.zeros_like(t) for k, t in self._total.items()}
        super().add(values, importance)


@pytest.mark.parametrize("kind", [ShrinksByClients, OneWeightForAll, LastWins])
def test_the_formula_bites(kind):
    values, omega = drawn(0)
    assert float((mean_of(values, omega, 1.0, kind) - formula(values, omega)).abs().max()) > 1e-3


def test_buffers_are_averaged_by_images():
    setup = Case(FedAvg(), "mlp").setup()
    cohort = Cohort((0, 1), (30, 10), (0.5, 0.5), 1.0, 0, 0.1)
    ups = [Up(Variables({"w": torch.ones(1) * i}, {"b": torch.ones(1) * i}), {"w": torch.ones(1)}) for i in (0.0, 4.0)]
    model = average_by_importance(setup.task, iter(ups), cohort, 1.0)
    assert float(model.params["w"]) == 2.0 and float(model.buffers["b"]) == 1.0


# -- Omega ---------------------------------------------------------------------------------------------
def trained(model="small-cnn"):
    """A site, and a model with statistics of its own."""
    setup = Case(FedAvg(), model).setup()
    task, site = setup.task, setup.sites[0]
    v = task.net.variables()
    gen = torch.Generator().manual_seed(0)
    params = {k: t + 0.3 * torch.randn(t.shape, generator=gen) for k, t in v.params.items()}
    buffers = {k: t + 0.2 if t.is_floating_point() else t for k, t in v.buffers.items()}
    return task, site, Variables(params, buffers)


def plain_omega(task, site, model, size, sign=torch.abs, norms=False, images=None):
    """Batch by batch with autograd on the module itself, in evaluation."""
    module = task.net.module
    module.load_state_dict({**model.params, **model.buffers})
    module.eval()
    order = torch.randperm(site.examples, generator=importance.seeds.generator(7, "omega", "order"))[:images]
    total = {k: torch.zeros_like(p) for k, p in module.named_parameters()}
    for rows in order.split(size):
        z = module.features(site.drawn(rows, None))
        logits = module.head(z)
        asked = (logits**2).sum()
        for k, p in module.named_parameters():
            if norms:
                asked = (logits if k in head_names(task.net) else z).norm(dim=1).sum()
            module.eval()
            (g,) = torch.autograd.grad(asked, p, retain_graph=True)
            total[k] += sign(g)
    return {k: t / len(order) for k, t in total.items()}


def omega_gap(mine, plain):
    return max(float((mine[k] - plain[k]).abs().max()) for k in plain)


@pytest.mark.parametrize("model", ["small-cnn", "mlp"])
@pytest.mark.parametrize(
    ("settings", "size", "rest"),
    [
        ({}, 4, {}),
        ({"omega_abs": "sample"}, 1, {}),
        ({"omega_target": "norms"}, 4, {"norms": True}),
        ({"omega_images": 7}, 4, {"images": 7}),
    ],
    ids=lambda v: str(v),
)
def test_equals_plain_gradients(model, settings, size, rest):
    task, site, v = trained(model)
    before = {k: t.clone() for k, t in v.buffers.items()}
    mine = Importance(**settings).measure(task, v, site, 7)
    assert omega_gap(mine, plain_omega(task, site, v, size, **rest)) < 1e-12
    assert all(torch.equal(t, before[k]) for k, t in v.buffers.items())
    assert not any(t.requires_grad for t in (*v.params.values(), *mine.values()))


def test_a_linear_model_on_paper():
    """d/dW of |Wx|^2 is 2 W x x'; each batch's sum, its absolute value, over the number of images."""
    task, site, v = trained("mlp")
    head = {k for k in v.params if k in head_names(task.net)}
    zero = Variables({k: t * (0 if k.endswith("classifier.bias") else 1) for k, t in v.params.items()}, v.buffers)
    mine = Importance(omega_images=4).measure(task, zero, site, 7)
    rows = torch.randperm(site.examples, generator=importance.seeds.generator(7, "omega", "order"))[:4]
    z = task.net(zero, site.drawn(rows, None), train=False).features
    w = zero.params["classifier.weight"]
    assert head == {"classifier.weight", "classifier.bias"}
    assert torch.allclose(mine["classifier.weight"], (2 * w @ z.T @ z).abs() / 4, atol=1e-12)


def test_the_gradients_oracle_bites(monkeypatch):
    task, site, v = trained()
    plain = plain_omega(task, site, v, 4)
    assert omega_gap(Importance().measure(task, v, site, 7), plain_omega(task, site, v, 4, sign=lambda g: g)) > 1e-3
    for wrong in ({"omega_abs": "sample"}, {"omega_target": "norms"}, {"omega_images": 7}):
        assert omega_gap(Importance(**wrong).measure(task, v, site, 7), plain) > 1e-4, wrong
    net = task.net

    class InTraining:
        """Omega by batch statistics, as if nobody had switched modes."""

        module = net.module

        def __call__(self, model, x, *, train):
            return net(Variables(model.params, {k: b.clone() for k, b in model.buffers.items()}), x, train=True)

    assert omega_gap(Importance().measure(replace(task, net=InTraining()), v, site, 7), plain) > 1e-3


def test_images_are_shuffled_and_augmented_by_a_seed_of_their_own():
    """The same round, the same Omega; another seed, another order of batches; another recipe, other images."""
    task, site, v = trained()
    one, two, other = (Importance().measure(task, v, site, seed) for seed in (7, 7, 8))
    assert all(torch.equal(one[k], two[k]) for k in one) and omega_gap(other, one) > 0
    experiment = Case(FedAvg()).experiment()
    data = replace(experiment.data, recipe="domainbed")
    augmenting = set_up(replace(experiment, data=data), tiny_data()).sites[0]
    assert omega_gap(Importance().measure(task, v, augmenting, 7), one) > 1e-3
