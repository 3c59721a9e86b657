"""Rules taken piece by piece give what they give on whole tensors, however memory lies and however many threads."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedshift.core import pieces, tree
from fedshift.core.gram import gram
from fedshift.core.importance import ImportanceMean
from fedshift.core.minnorm import consensus
from fedshift.core.pieces import sums, sweep, vectors
from fedshift.core.similarity import attend, mix
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.scaffold import Scaffold
from fedshift.testing import Case, last, tiny_data

SHAPES = {"kernel": (6, 5, 3, 3), "long": (3, 1003), "scale": (6,), "one": ()}
LAYOUTS = ("plain", "last", "mixed")


@pytest.fixture(params=[(1, 1 << 18), (1, 64), (3, 64)], ids=["whole", "pieces", "threads"])
def cut(request, monkeypatch):
    """Whole tensors, small pieces, and small pieces on threads."""
    before = torch.get_num_threads()
    threads, size = request.param
    monkeypatch.setattr(pieces, "_pieces", pieces_of(size))
    monkeypatch.setattr(pieces, "ALONE", 1)
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


def pieces_of(size):
    return lambda row: list(zip(*(torch.split(t, size, -1) for t in row), strict=True))


def clients(n=5, layout="plain", dtype=torch.float64, seed=0):
    gen = torch.Generator().manual_seed(seed)
    made = [{k: torch.randn(s, generator=gen, dtype=dtype) for k, s in SHAPES.items()} for _ in range(n)]
    for i, client in enumerate(made):
        if layout == "last" or (layout == "mixed" and i % 2):
            client["kernel"] = client["kernel"].contiguous(memory_format=torch.channels_last)
    return made


def gap(a, b):
    return max(float((a[k] - b[k]).abs().max()) for k in b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_sums(cut, layout, dtype):
    """To the bit what the mean of whole tensors is."""
    given, weights = clients(layout=layout, dtype=dtype), [0.1, 0.25, 0.05, 0.4, 0.2]
    got = sums({k: [c[k] for c in given] for k in SHAPES}, dict.fromkeys(SHAPES, weights))
    expected = tree.mean(given, weights)
    assert all(torch.equal(got[k], expected[k]) and got[k].dtype == dtype for k in SHAPES)
    assert layout != "last" or got["kernel"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(cut, layout):
    given = clients(layout=layout)
    got = gram(given, {"all": tuple(SHAPES), "kernel": ("kernel",)})
    for found, names in zip(got, (tuple(SHAPES), ("kernel",)), strict=True):
        rows = torch.stack([torch.cat([c[k].flatten() for k in names]) for c in given])
        assert torch.allclose(found, rows @ rows.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mixtures(cut, layout):
    given, gen = clients(layout=layout), torch.Generator().manual_seed(1)
    weights = torch.rand(4, 5, generator=gen, dtype=torch.float64)
    for name in SHAPES:
        got = mix(weights, [c[name] for c in given])
        expected = torch.einsum("kj,j...->k...", weights, torch.stack([c[name] for c in given]))
        assert len(got) == 4 and all(g.shape == SHAPES[name] for g in got)
        assert max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True)) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("temper", [0.0, 0.7, 1.0])
def test_importance(cut, layout, temper):
    """To the bit the running mean by whole tensors."""
    given, weights = clients(layout=layout), [tree.map(torch.abs, c) for c in clients(layout="mixed", seed=9)]
    kept = [tree.clone(t) for t in (given, weights) for t in t]
    ours, mean, total = ImportanceMean(temper), None, None
    for client, importance in zip(given, weights, strict=True):
        ours.add(client, importance)
        w = {k: x.pow(temper) + 1e-12 for k, x in importance.items()}
        total = w if total is None else {k: total[k] + w[k] for k in w}
        mean = client if mean is None else {k: mean[k].lerp(client[k], w[k] / total[k]) for k in w}
    assert all(torch.equal(ours.value[k], mean[k]) for k in SHAPES)
    assert all(gap(a, b) == 0 for a, b in zip([*given, *weights], kept, strict=True))  # left as they were


def test_the_rules_do_not_depend_on_threads(monkeypatch):
    """In float32 too: pieces are the same, and their sums are taken in order."""
    monkeypatch.setattr(pieces, "ALONE", 1)
    monkeypatch.setattr(pieces, "_pieces", pieces_of(100))
    given, before, found = clients(dtype=torch.float32), torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append((consensus(given, {k: (k,) for k in SHAPES}), attend(given, 0.5)[0]))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(gap(a, b) == 0 for a, b in zip(found[0], other, strict=True))


def test_pieces_are_of_one_size_for_all_and_cover_everything():
    for length, vectors_ in ((0, 2), (1, 3), (100_000, 11), (1 << 20, 2)):
        cut_ = pieces._pieces([torch.arange(length)] * vectors_)
        assert torch.equal(torch.cat([piece[0] for piece in cut_]), torch.arange(length))
        longest = max(len(piece[0]) for piece in cut_)
        assert longest <= pieces.MOST["cpu"] and (length < 1 << 12 or longest * vectors_ <= pieces.CACHE)


def test_results_come_in_order_and_errors_get_out(cut):
    rows = [(torch.arange(300),), (torch.arange(1000, 1200),)]
    got = sweep(lambda number, piece: (number, int(piece[0][0])), rows)
    assert got == sorted(got) and {number for number, _ in got} == {0, 1}
    with pytest.raises(ZeroDivisionError):
        sweep(lambda number, piece: 1 // number, rows)


def test_threads_to_come_find_torch_as_it_was(monkeypatch):
    """A sweep's threads have one inside; torch would give as many to every thread that begins later."""
    monkeypatch.setattr(pieces, "ALONE", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        inside = sweep(lambda number, piece: torch.get_num_threads(), [(torch.arange(300),)])
        with ThreadPoolExecutor(1) as pool:
            assert inside == [1] and pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_vectors_share_memory_where_one_order_suits_all():
    plain, last_ = (clients(2, layout)[1]["kernel"] for layout in ("plain", "last"))
    for tensors, shared in (([plain, plain], True), ([last_, last_], True), ([plain, last_], False)):
        given, back = vectors(tensors)
        assert [v.data_ptr() == t.data_ptr() for v, t in zip(given, tensors, strict=True)] == [True, shared]
        assert all(torch.equal(back(v), t) for v, t in zip(given, tensors, strict=True))


# -- one model after another -----------------------------------------------------------------------------
class Watch:
    """Uploads that are counted as long as anybody holds their tensors."""

    def __init__(self):
        self.alive, self.most = 0, 0

    def __call__(self, n):
        for i in range(n):
            x = torch.full((10,), float(i))
            self.alive += 1
            self.most = max(self.most, self.alive)
            weakref.finalize(x, self._gone)
            up = {"w": x}
            del x
            yield up
            del up

    def _gone(self):
        self.alive -= 1


def importance(ups):
    mean = ImportanceMean()
    for up in ups:
        mean.add(up, up)
        del up


STREAMS = {"mean": lambda ups: tree.mean(ups, [0.01] * 100), "importance": importance}


@pytest.mark.parametrize("name", STREAMS)
def test_a_hundred_models_never_need_a_hundred(name):
    gc.disable()
    try:
        watch = Watch()
        STREAMS[name](watch(100))
    finally:
        gc.enable()
    assert watch.most <= 2


def test_a_rule_that_keeps_them_is_noticed():
    watch = Watch()
    tree.mean(list(watch(100)), [0.01] * 100)
    assert watch.most == 100


@pytest.mark.parametrize("method", [FedAvg(), Scaffold()])
def test_a_round_holds_few_models_however_many_clients(method, monkeypatch):
    """The largest layer of every model that a client trains: how many there are at once."""
    counts = []
    for clients_ in (3, 24):
        setup = Case(method, left_out=()).setup(data=tiny_data((30,) * clients_), rounds=1)
        name = max(setup.task.net.variables().params.items(), key=lambda item: item[1].numel())[0]
        watch, clone = Watch(), tree.clone

        def watched(t, room=None, watch=watch, clone=clone, name=name):
            made = clone(t, room)
            params = getattr(made, "params", {})
            if name in params:
                watch.alive += 1
                watch.most = max(watch.most, watch.alive)
                weakref.finalize(params[name], watch._gone)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(tree, "clone", watched)
            last(setup)
        counts.append(watch.most)
    assert counts[0] == counts[1] <= 3
