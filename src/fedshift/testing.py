"""What every method must keep to, as checks that methods written elsewhere can run too.

`check_method(MyMethod())` runs them all and raises `AssertionError` with a sentence at the first that fails.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .core import state as states
from .core import tree
from .core.algorithm import Algorithm
from .core.errors import UnseenSite
from .core.optim import SGD, Optimizer
from .data import Dataset, Domain
from .engines.base import Memory, remember, site_model
from .engines.captured import Rehearsed
from .engines.debug import HOOKS
from .engines.fast import Fast
from .engines.loop import State, run
from .engines.together import MOST
from .experiment.checkpoint import load_checkpoint, save_checkpoint
from .experiment.config import DataConfig, Experiment, FederationConfig, LocalConfig, ModelConfig
from .experiment.setup import Setup, adapter_for, set_up
from .methods.fedavg import FedAvg

Method = Algorithm[Any, Any, Any, Any]
MODELS: Mapping[str, Mapping[str, Any]] = {"small-cnn": {"width": 4}, "mlp": {"hidden": (8,)}}
ROUNDS = 4


def tiny_data(sizes: Sequence[int] = (30, 20, 14), side: int = 8, classes: int = 3) -> Dataset:
    """Random domains of unlike size and brightness: a data set that costs nothing."""
    gen = torch.Generator().manual_seed(0)
    domains = []
    for k, n in enumerate(sizes):
        labels = torch.arange(n) % classes
        noise = torch.randint(0, 120, (n, 3, side, side), generator=gen)
        images = (noise + 40 * k + 25 * labels.view(-1, 1, 1, 1)).clamp(max=255).to(torch.uint8)
        domains.append(Domain(f"domain{k}", images, labels))
    return Dataset("tiny", tuple(str(c) for c in range(classes)), tuple(domains))


def quick(method: Method) -> Method:
    """The method with the sizes that its card gives for tests."""
    return replace(method, **method.card.quick)


@dataclass(frozen=True)
class Case:
    """A method on a small network, in float64."""

    method: Method
    model: str = "small-cnn"
    optimizer: Optimizer = SGD(lr=0.05, momentum=0.9)
    left_out: tuple[str, ...] = ("domain0",)

    def experiment(self, **federation: Any) -> Experiment:
        """Four rounds of two epochs in ragged batches; the last batch of a client may have one image too many."""
        options = dict(MODELS[self.model])
        if self.model == "mlp" and "batchnorm" in self.method.card.needs:
            options["norm"] = True
        return Experiment(
            method=self.method,
            data=DataConfig(left_out=self.left_out),
            model=ModelConfig(self.model, options),
            federation=FederationConfig(**{"rounds": ROUNDS} | federation),
            local=LocalConfig(batch=4, epochs=2, keep_optimizer=True),
            optimizer=self.optimizer,
            precision="float64",
        )

    def setup(self, engine: str = "sequential", data: Dataset | None = None, **federation: Any) -> Setup:
        """Ready to run."""
        return set_up(replace(self.experiment(**federation), engine=engine), data or tiny_data())


def trajectory(setup: Setup, state: State | None = None) -> Iterator[State]:
    """The state after each round."""
    return run(setup.method, setup.task, setup.engine, setup.sites, setup.plan, state or setup.start())


def last(setup: Setup, state: State | None = None) -> State:
    """The state after the last round."""
    return list(trajectory(setup, state))[-1]


def everything(state: State) -> dict[str, Tensor]:
    """All tensors of a run's state by path."""
    return states.flatten({"server": state.server, "memory": state.memory, "before": state.before})


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of tensors; infinite if they are not alike."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape or a[k].dtype != b[k].dtype for k in a):
        return float("inf")
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.0)


def models_by_site(setup: Setup, state: State) -> dict[str, Tensor]:
    """Each site's model and, where there is one, the unseen site's; keyed by the site's name."""
    stage, task = setup.method.stages()[state.stage], setup.task
    found: dict[str, Any] = {}
    for i, name in enumerate(task.sites):
        down = stage.send(task, state.server, i)
        found[name] = site_model(stage, task, down, remember(stage, task, down, state.memory.get(i), None))
    with suppress(UnseenSite):
        found["unseen"] = stage.model_for(task, stage.send(task, state.server, None), None)
    return states.flatten(found)


def check_finite(case: Case) -> None:
    """Two rounds run and stay finite."""
    for state in trajectory(case.setup(rounds=2)):
        bad = tree.first_bad(everything(state))
        assert bad is None, f"{case.method.name}: NaN or infinity in {bad} after round {state.total}."


def check_structure(case: Case) -> None:
    """Names, shapes and dtypes of server and memories are the same after every round of a stage."""
    seen: dict[tuple[int, str], states.Manifest] = {}
    for state in trajectory(case.setup()):
        parts: dict[str, Any] = {
            "server": state.server,
            **{f"client {i}": m for i, m in state.memory.items()},
        }
        for name, part in parts.items():
            first = seen.setdefault((state.stage, name), states.manifest(part))
            assert states.manifest(part) == first, f"{case.method.name}: the state of {name} changed its structure."


def check_inputs_kept(case: Case) -> None:
    """A round leaves the states it was given as they were, to the bit, in every engine."""
    for engine in ("sequential", "debug"):
        setup = case.setup(engine)
        old = setup.start()
        for _ in range(2):
            before = tree.clone(everything(old))
            new = next(trajectory(setup, old))
            assert difference(before, everything(old)) == 0, (
                f"{case.method.name}: a round changed its input ({engine})."
            )
            old = new


def check_engines(case: Case) -> None:
    """Sequential, wire and debug give the same bits."""
    ends = {name: last(case.setup(name)) for name in ("sequential", "wire", "debug")}
    for name, end in ends.items():
        gap = difference(everything(ends["sequential"]), everything(end))
        assert gap == 0, f"{case.method.name}: engine {name} differs from sequential by {gap:g}."
        assert end.metrics == ends["sequential"].metrics, f"{case.method.name}: engine {name} reports other metrics."


def check_recorded(case: Case) -> None:
    """Steps recorded and replayed give what plain ones give, and the card names the stages that cannot be recorded."""
    setup = case.setup("rehearsed")
    plain, replayed = last(case.setup()), last(setup)
    gap = difference(everything(plain), everything(replayed))
    assert gap < 1e-9, f"{case.method.name}: replayed steps differ from plain ones by {gap:g}."
    assert isinstance(setup.engine, Rehearsed)
    said = set(case.method.card.unrecorded)
    assert setup.engine.plain == said, (
        f"{case.method.name}: the stages that cannot be recorded are {sorted(setup.engine.plain)}, and its card names "
        f"{sorted(said)}."
    )


def check_fast(case: Case) -> None:
    """The engine `fast` in all its ways: what `sequential` gives, but for the order of sums."""
    plain, ends = last(case.setup()), {}
    for way, workers, most in (("all at once", 1, MOST), ("channels last", 1, 0), ("side by side", 2, 0)):
        setup = case.setup("fast")
        assert isinstance(setup.engine, Fast)
        setup.engine.most = most
        setup.engine.use(workers)
        ends[way] = everything(last(setup))
        gap = difference(everything(plain), ends[way])
        assert gap < 1e-9, f"{case.method.name}: engine fast, {way}, differs from sequential by {gap:g}."
    gap = difference(ends["channels last"], ends["side by side"])
    assert gap == 0, f"{case.method.name}: clients that train side by side end {gap:g} away from one after another."


def check_serialisation(case: Case) -> None:
    """Server and client states survive a safetensors file and their declared types."""
    setup = case.setup()
    for state in trajectory(setup):
        stage = setup.method.stages()[state.stage]
        server, client, _, _ = states.schema(type(stage))
        pairs = [(state.server, server), *((m.client, client) for m in state.memory.values())]
        for value, kind in pairs:
            back: Any = states.parse(states.from_bytes(states.to_bytes(value)), kind)
            gap = difference(states.flatten(value), states.flatten(back))
            assert gap == 0 and type(back) is kind, f"{case.method.name}: a {kind.__name__} did not survive a file."


def check_resume(case: Case) -> None:
    """Stopped after each round, saved, loaded and gone on with, a run ends in the same bits."""
    whole = last(case.setup())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        rounds = case.setup().rounds
        for stop in range(1, rounds):
            first = next(s for s in trajectory(case.setup()) if s.total == stop)
            save_checkpoint(path, first, {})
            state, _ = load_checkpoint(path, case.method, case.setup().task.net)
            end = last(case.setup(), state)
            gap = difference(everything(whole), everything(end))
            assert gap == 0, f"{case.method.name}: resumed after round {stop}, the run ends {gap:g} away."
            assert replace(end, server=0, memory={}, before={}) == replace(whole, server=0, memory={}, before={})


def check_permutation(case: Case) -> None:
    """The order in which clients are listed changes nothing beyond rounding."""
    one, two = case.setup(), case.setup()
    two = replace(
        two,
        sites=two.sites[::-1],
        task=replace(two.task, sites=two.task.sites[::-1], examples=two.task.examples[::-1]),
    )
    gap = difference(models_by_site(one, last(one)), models_by_site(two, last(two)))
    assert gap < 1e-9, f"{case.method.name}: with the clients in reverse order the models differ by {gap:g}."


def check_seed(case: Case) -> None:
    """The same seed gives the same bits, another seed others."""
    ends = [last(case.setup()) for _ in range(2)]
    assert difference(*map(everything, ends)) == 0, f"{case.method.name}: two runs of one seed differ."
    setup = case.setup()
    other = last(replace(setup, plan=replace(setup.plan, seed=1)))
    a, b = models_by_site(setup, ends[0]), models_by_site(setup, other)
    assert difference(a, b) > 0, f"{case.method.name}: the seed changes nothing."


def check_neutral(case: Case) -> None:
    """At the settings its card calls neutral, the method is FedAvg to the bit."""
    if case.method.card.neutral is None:
        return
    setup = replace(case, method=replace(case.method, **case.method.card.neutral)).setup()
    plain = replace(case, method=FedAvg()).setup()
    gap = difference(models_by_site(setup, last(setup)), models_by_site(plain, last(plain)))
    assert gap < 1e-12, f"{case.method.name} at {dict(case.method.card.neutral)} differs from fedavg by {gap:g}."


def check_unseen(case: Case) -> None:
    """A site that took no part gets logits of the right shape, or is refused by name."""
    setup = case.setup()
    state, stage = last(setup), setup.method.stages()[-1]
    try:
        model = stage.model_for(setup.task, stage.send(setup.task, state.server, None), None)
    except UnseenSite as refusal:
        assert case.method.name in str(refusal), f"{case.method.name}: its refusal does not name it."
        return
    x = torch.zeros(5, 3, 8, 8, dtype=torch.float64)
    out, _ = stage.predict(setup.task, model, x)
    assert out.logits.shape == (5, 3) and bool(out.logits.isfinite().all()), (
        f"{case.method.name}: bad logits for an unseen site."
    )


def check_adaptation(case: Case) -> None:
    """A method's own label-free phases, if any: finite, the same bits in each engine, and no state is touched."""
    ends = {}
    for engine in ("sequential", "debug"):
        setup = case.setup(engine, rounds=2)
        task, stage, (held, *_) = setup.task, setup.method.stages()[-1], setup.evaluator.federation.unseen
        if not stage.phases(task, labelled=False):
            return
        state = last(setup)
        before = tree.clone(everything(state))
        adapter = adapter_for(case.experiment(), task, setup.evaluator.transform, "method")
        assert adapter is not None
        ends[engine] = states.flatten(adapter(stage, task, stage.send(task, state.server, None), held))
        assert difference(before, everything(state)) == 0, f"{case.method.name}: adapting changed its state ({engine})."
    bad = tree.first_bad(ends["sequential"])
    assert bad is None, f"{case.method.name}: NaN or infinity in {bad} after adaptation."
    gap = difference(*ends.values())
    assert gap == 0, f"{case.method.name}: adaptation differs by {gap:g} between sequential and debug."


def check_partial(case: Case) -> None:
    """Absent clients keep their memory; rounds with half of the clients run."""
    if case.method.pools:
        return
    setup = replace(case, left_out=()).setup(participation=0.5)
    old: dict[int, Memory] = {}
    for state in trajectory(setup):
        stage = state.stage
        present = set(setup.plan.cohort("main", state.done - 1, setup.task.clients))
        for i, memory in old.items() if state.done else ():  # 0: a stage begins, with memories of its own
            if i not in present and stage == len(setup.method.stages()) - 1:
                assert state.memory[i] is memory, f"{case.method.name}: an absent client's memory changed."
        old = dict(state.memory)


def check_shape(case: Case) -> None:
    """A frozen dataclass that overrides hooks alone, has a card, and whose four states have declared types."""
    cls, name = type(case.method), case.method.name
    public = {k for k, v in vars(cls).items() if callable(v) and not k.startswith("_")}
    assert public <= set(HOOKS), f"{name}: {sorted(public - set(HOOKS))} are no hooks; make them private."
    for field in fields(case.method):
        try:
            setattr(case.method, field.name, None)
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{name}: {field.name} can be changed; make the dataclass frozen.")
    assert len(states.schema(cls)) == 4, f"{name}: declare Server, Client, Down and Up in Algorithm[...]."
    assert case.method.card.citation, f"{name}: the card has no citation."


CHECKS: Mapping[str, Callable[[Case], None]] = {
    "shape": check_shape,
    "finite": check_finite,
    "structure": check_structure,
    "inputs kept": check_inputs_kept,
    "engines": check_engines,
    "recorded": check_recorded,
    "fast": check_fast,
    "serialisation": check_serialisation,
    "resume": check_resume,
    "permutation": check_permutation,
    "seed": check_seed,
    "neutral": check_neutral,
    "unseen": check_unseen,
    "adaptation": check_adaptation,
    "partial": check_partial,
}


def check_method(method: Method, models: Sequence[str] = tuple(MODELS)) -> None:
    """Run every check on every network."""
    for model in models:
        for check in CHECKS.values():
            check(Case(method, model))
