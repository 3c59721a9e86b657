"""Optimisers against torch.optim in float64, in place and on copies."""

import pytest
import torch

from fedshift.core import tree
from fedshift.core.errors import ConfigError
from fedshift.core.optim import SGD, Adam, AdamW, Schedule

T = torch.optim
PAIRS = [
    (SGD(lr=0.1), lambda p: T.SGD(p, 0.1)),
    (SGD(lr=0.1, momentum=0.9), lambda p: T.SGD(p, 0.1, 0.9)),
    (SGD(lr=0.1, momentum=0.9, weight_decay=0.01), lambda p: T.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    (SGD(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
     lambda p: T.SGD(p, 0.1, 0.8, weight_decay=0.01, nesterov=True)),
    (Adam(lr=0.02), lambda p: T.Adam(p, 0.02)),
    (Adam(lr=0.02, weight_decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6),
     lambda p: T.Adam(p, 0.02, (0.8, 0.95), 1e-6, weight_decay=0.1)),
    (AdamW(lr=0.02, weight_decay=0.1), lambda p: T.AdamW(p, 0.02, weight_decay=0.1)),
]  # fmt: skip


def start():
    gen = torch.Generator().manual_seed(0)
    return {k: torch.randn(shape, generator=gen, dtype=torch.float64) for k, shape in {"a": (3, 4), "b": (5,)}.items()}


def rate(t):
    return 0.1 / (1 + t)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.7])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda x: getattr(x, "name", ""))
def test_equals_torch(ours, theirs, clip, in_place):
    ours = type(ours)(**{**vars(ours), "clip": clip})
    reference = [p.clone().requires_grad_() for p in start().values()]
    opt = theirs(reference)
    params, state = start(), ours.init(start())
    step = ours.update_ if in_place else ours.update
    for t in range(12):
        opt.param_groups[0]["lr"] = rate(t)
        opt.zero_grad()
        sum(((p - 1) ** 2).sum() + p.sin().sum() for p in reference).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(reference, clip)
        opt.step()
        grads = {k: 2 * (p - 1) + p.cos() for k, p in params.items()}
        params, state = step(grads, state, params, rate(t))
    for mine, other in zip(params.values(), reference, strict=True):
        assert float((mine - other.detach()).abs().max()) < 1e-12


@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.1, momentum=0.9, clip=0.1), Adam(lr=0.1), AdamW(lr=0.1, weight_decay=0.1)]
)
def test_update_changes_nothing_it_was_given(optimizer):
    params, grads = start(), start()
    state = optimizer.init(params)
    kept = tree.clone((params, grads, state)[0]), tree.clone(grads), tree.clone(state)
    optimizer.update(grads, state, params, 0.1)
    for now, before in zip((params, grads, state), kept, strict=True):
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tree.leaves(now), tree.leaves(before), strict=True))


def test_adam_works_in_float32_and_keeps_its_count():
    params = {"a": torch.ones(3)}
    opt = Adam(lr=0.1)
    params, state = opt.update({"a": torch.ones(3)}, opt.init(params), params, 0.1)
    assert params["a"].dtype == torch.float32 and float(state["count"]["steps"]) == 1
    assert torch.allclose(params["a"], torch.full((3,), 0.9), atol=1e-6)  # a first step of Adam is lr * sign


def test_nesterov_needs_momentum():
    with pytest.raises(ConfigError, match="momentum above 0"):
        SGD(nesterov=True)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule("exponential", gamma=0.5), [1, 0.5, 0.25, 0.125]),
        (Schedule("step", gamma=0.1, milestones=(0.5, 0.75)), [1, 1, 0.1, 0.01]),
        (
            Schedule("cosine", last=0.2),
            [1, 0.2 + 0.8 * (1 + 2**-0.5) / 2, 0.6, 0.2 + 0.8 * (1 - 2**-0.5) / 2],
        ),
        (Schedule(warmup=2), [0.5, 1, 1, 1]),
    ],
)
def test_schedules(schedule, factors):
    assert [schedule.factor(r, 4) for r in range(4)] == pytest.approx(factors)
