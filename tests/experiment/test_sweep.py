"""Sweeps: the order of runs, the same bits as alone, and that bad luck costs nothing that was finished."""

import json
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedshift.core.errors import DataError
from fedshift.core.optim import SGD
from fedshift.data import save_manifest
from fedshift.data.arrays import find_npz
from fedshift.data.pictures import Pictures, resident
from fedshift.engines import ENGINES, Sequential
from fedshift.engines.turn import TURN
from fedshift.experiment import strict
from fedshift.experiment.config import DataConfig, Experiment, FederationConfig, LocalConfig, ModelConfig
from fedshift.experiment.crew import Alone, End, Gpu, Host, Threads, Told, end_of
from fedshift.experiment.files import owned
from fedshift.experiment.processes import Processes
from fedshift.experiment.room import gpu_room
from fedshift.experiment.runs import Event, execute, folder_of
from fedshift.experiment.sweep import Plan, Spare, Sweep
from fedshift.methods import METHODS
from fedshift.testing import tiny_data


def config(name="fedavg", left_out="domain0", seed=0, **changes):
    plain = Experiment(
        method=METHODS[name](),
        seed=seed,
        data=DataConfig(left_out=(left_out,)),
        model=ModelConfig("small-cnn", {"width": 4}),
        federation=FederationConfig(rounds=3),
        local=LocalConfig(batch=8, keep_optimizer=True),
        optimizer=SGD(lr=0.05, momentum=0.9),
    )
    return replace(plain, **changes)


SIX = [config(name, seed=seed) for seed in (0, 1, 2) for name in ("fedavg", "scaffold")]
PRESENT = tiny_data()


def tiny(_):
    return PRESENT


def alone(configs, out, data_of=tiny):
    """Each run by itself: what a sweep must give."""
    for one in configs:
        for _ in execute(one, folder_of(one, out), data_of(one)):
            pass
    return out


def same(configs, one, two):
    """The same records and the same tensors."""
    for it in configs:
        a, b = folder_of(it, one), folder_of(it, two)
        assert a.records.read_bytes() == b.records.read_bytes()
        first, second = (f.checkpoint.read_bytes() for f in (a, b))
        size = 8 + int.from_bytes(first[:8], "little")
        assert first[size:] == second[8 + int.from_bytes(second[:8], "little") :]  # the header has the seconds


def kinds(news):
    return [it.kind for it in news]


class Script:
    """A crew that says what it is told to: an end for each run that is started, the oldest first."""

    def __init__(self, room, *ends):
        self.room, self.ends = room, list(ends)
        self.under_way, self.started, self.most = [], [], 0

    def start(self, config, folder):
        self.under_way.append(folder.path.name)
        self.started.append(folder.path.name)
        self.most = max(self.most, len(self.under_way))

    def hear(self):
        end = self.ends.pop(0) if self.ends else End("done")
        return Told(self.under_way.pop(0), end)

    def stop(self):
        self.under_way = []


def test_runs_begin_in_the_order_of_the_plan_and_no_more_than_fit(tmp_path):
    plan, crew = Plan(SIX, tmp_path), Script(2)
    assert kinds(Sweep(plan, crew))[:2] == ["start", "start"]
    assert crew.started == [entry.name for entry in plan] == [strict.digest(c) for c in SIX]
    assert crew.most == 2 and len(plan.having("done")) == 6


def test_equal_configurations_are_one_run(tmp_path):
    assert len(Plan([*SIX, *SIX[:2]], tmp_path)) == 6


def test_a_run_that_is_put_back_keeps_its_place(tmp_path):
    plan, crew = Plan(SIX, tmp_path), Script(1, End("done"), End("crashed", "why"))
    assert kinds(Sweep(plan, crew))[3:6] == ["retry", "start", "done"]
    names = [entry.name for entry in plan]
    assert crew.started == [*names[:2], *names[1:]]


def test_no_memory_means_fewer_at_once_and_costs_no_attempt(tmp_path):
    crew = Script(4, *[End("memory", "OutOfMemoryError: full")] * 3)
    sweep = Sweep(Plan(SIX, tmp_path), crew, tmp_path / "sweep.json")
    news = list(sweep)
    assert kinds(news).count("fewer") == 3 and kinds(news).count("done") == 6 and sweep.room == 1
    assert next(it.reason for it in news if it.kind == "fewer").startswith("3 runs at once from now on")
    log = json.loads((tmp_path / "sweep.json").read_text())
    assert [it["kind"] for it in log["incidents"]] == ["memory"] * 3 and log["room"] == 1


def test_a_run_that_has_no_memory_even_alone_fails(tmp_path):
    plan = Plan(SIX[:2], tmp_path)
    assert kinds(Sweep(plan, Script(1, *[End("memory", "full")] * 2))) == [
        *("start", "retry", "start", "failed", "start", "done")
    ]
    assert plan.entries[0].reason == "full"


def test_one_run_at_a_time_gives_what_each_gives_alone(tmp_path):
    list(Sweep(Plan(SIX, tmp_path / "sweep"), Alone(tiny)))
    same(SIX, tmp_path / "sweep", alone(SIX, tmp_path / "alone"))


class Waiting(Sequential):
    """Waits for its device after every client, as an engine on a GPU does."""

    name = "waiting"

    def train(self, *args, **kwargs):
        for result in super().train(*args, **kwargs):
            TURN.wait(meet)
            yield result


BARRIER = threading.Barrier(2)
MET: list[str] = []


def meet():
    MET.append(threading.current_thread().name)
    BARRIER.wait(60)


def test_threads_that_interleave_give_what_each_gives_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "waiting", Waiting)
    MET.clear()
    network = ModelConfig("hfedf-cnn", {"dropout": 0.2})  # draws from the process's own generator
    pair = [config(name, model=network, engine="waiting") for name in ("fedavg", "scaffold")]
    plan = Plan(pair, tmp_path / "sweep")
    list(Sweep(plan, Threads(2, lambda _: tiny_data(side=32), Host())))
    assert len(plan.having("done")) == 2
    assert all(set(MET[i : i + 2]) == {entry.name for entry in plan} for i in range(0, len(MET), 2))
    plain = [replace(it, engine="sequential") for it in pair]
    alone(plain, tmp_path / "alone", lambda _: tiny_data(side=32))
    for one, two in zip(pair, plain, strict=True):
        a, b = folder_of(one, tmp_path / "sweep"), folder_of(two, tmp_path / "alone")
        assert a.records.read_bytes() == b.records.read_bytes()


def failing_at(call, error):
    """The pictures, but for one asking for them, who gets an error; and how often they were asked for."""
    calls = []

    def data_of(config):
        calls.append(config)
        if len(calls) == call:
            raise error
        return PRESENT

    return data_of


class Dead(Host):
    def alive(self):
        return False


def test_no_memory_in_the_third_run(tmp_path):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    sweep = Sweep(Plan(SIX, tmp_path / "sweep"), Threads(3, failing_at(3, error), Host()))
    assert kinds(sweep).count("fewer") == 1 and sweep.room == 2
    same(SIX, tmp_path / "sweep", alone(SIX, tmp_path / "alone"))


def test_a_lost_device_keeps_what_is_finished_and_starts_nothing(tmp_path):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    plan = Plan(SIX, tmp_path / "sweep")
    news = list(Sweep(plan, Threads(1, failing_at(3, error), Dead()), tmp_path / "sweep.json"))
    assert kinds(news)[-2:] == ["failed", "lost"] and "the device was lost" in news[-1].reason
    assert [len(plan.having(state)) for state in ("done", "failed", "waiting")] == [2, 1, 3]
    assert "illegal memory access" in json.loads(plan.entries[2].folder.failed.read_text())["reason"]
    assert "illegal memory access" in json.loads((tmp_path / "sweep.json").read_text())["lost"]
    same(SIX[:2], tmp_path / "sweep", alone(SIX[:2], tmp_path / "alone"))


def test_what_a_lost_device_left_goes_on_elsewhere_if_that_is_allowed(tmp_path):
    error = RuntimeError("CUDA error: unspecified launch failure")
    plan = Plan(SIX, tmp_path)
    spare = Spare(lambda: Alone(tiny), lambda config: replace(config, engine="wire"))
    news = list(Sweep(plan, Threads(1, failing_at(3, error), Dead()), spare=spare))
    assert kinds(news).count("spare") == 4 and len(plan.having("done")) == 6
    assert [entry.config.engine for entry in plan] == ["sequential"] * 2 + ["wire"] * 4
    assert all(entry.folder == folder_of(entry.config, tmp_path) and entry.folder.done.exists() for entry in plan)


def test_a_device_that_survives_an_error_goes_on(tmp_path):
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    plan = Plan(SIX, tmp_path)
    assert kinds(Sweep(plan, Threads(2, failing_at(2, error), Host()))).count("retry") == 1
    assert len(plan.having("done")) == 6


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("nothing there"), "refused"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("CUDA error: device-side assert triggered"), "lost"),
        (torch.AcceleratorError("the driver is gone"), "lost"),
        (RuntimeError("sizes differ"), "crashed"),
        (ValueError("out of memory, says a value"), "crashed"),
    ],
)
def test_what_an_error_means(error, kind):
    assert end_of(error).kind == kind
    assert str(error)[:5] in end_of(error).reason


def test_what_is_refused_is_listed_at_once_and_tried_again_on_request(tmp_path):
    impossible = config("fedbn", model=ModelConfig("mlp", {"hidden": (8,)}))
    list(Sweep(Plan([impossible, SIX[0]], tmp_path), Alone(tiny)))
    again = Plan([impossible, SIX[0]], tmp_path)
    assert [entry.state for entry in again] == ["failed", "done"]
    assert "works on BatchNorm layers" in again.entries[0].reason
    crew = Script(1)
    assert kinds(Sweep(again, crew)) == ["failed", "done"] and not crew.started
    assert folder_of(impossible, tmp_path).experiment() == impossible
    assert [entry.state for entry in Plan([impossible], tmp_path, retry=True)] == ["waiting"]


def test_a_failure_is_forgotten_when_the_run_succeeds(tmp_path):
    sweep = Sweep(Plan(SIX[:1], tmp_path), Alone(failing_at(1, DataError("for a moment"))))
    assert kinds(sweep) == ["start", "failed"]
    assert sweep.plan.entries[0].folder.failed.exists()
    list(Sweep(Plan(SIX[:1], tmp_path, retry=True), Alone(tiny)))
    assert [path.name for path in folder_of(SIX[0], tmp_path).path.glob("*.json")].count("failed.json") == 0


def test_a_folder_in_use_is_left_alone(tmp_path):
    folder = folder_of(SIX[0], tmp_path)
    with owned(folder.path):
        plan = Plan(SIX[:2], tmp_path)
        list(Sweep(plan, Alone(tiny)))
    assert [entry.state for entry in plan] == ["failed", "done"] and not folder.failed.exists()
    assert "another process" in plan.entries[0].reason


@pytest.mark.parametrize("crew", [lambda: Alone(tiny), lambda: Threads(2, tiny, Host())], ids=["alone", "threads"])
def test_a_stopped_sweep_goes_on_and_repeats_nothing(tmp_path, crew):
    sparse = [replace(one, checkpoint=100, federation=FederationConfig(rounds=5)) for one in SIX[:4]]
    plan = Plan(sparse, tmp_path / "sweep")
    seen = {entry.name: 0 for entry in plan}
    first = iter(Sweep(plan, crew()))
    for news in first:
        seen[news.entry.name] = max(seen[news.entry.name], news.entry.last.round if news.entry.last else 0)
        if news.kind == "round" and news.entry is plan.entries[1] and news.entry.last.round == 2:
            break
    first.close()
    assert plan.entries[1].state == "waiting" and plan.entries[1].folder.checkpoint.exists()
    again = Plan(sparse, tmp_path / "sweep")
    rounds = [(news.entry.name, news.entry.last.round) for news in Sweep(again, crew()) if news.kind == "round"]
    for name, done in seen.items():
        mine = [number for run, number in rounds if run == name]
        assert not mine or (mine[0] > done and mine == list(range(mine[0], 6)))
    assert len(again.having("done")) == 4
    assert kinds(Sweep(Plan(sparse, tmp_path / "sweep"), Script(1))) == ["done"] * 4
    same(sparse, tmp_path / "sweep", alone(sparse, tmp_path / "alone"))


# ------------------------------------------------------------------------------------------------------- processes

# A worker which kills itself after a round if a file in the run's folder says how often, and how.
DEADLY = """
import os, signal, sys
from fedshift.experiment import crew, worker
whole = crew.execute
def deadly(config, folder, data, workers):
    for event in whole(config, folder, data, workers):
        yield event
        mark = folder.path.parent / ("kill-" + folder.path.name)
        if mark.exists() and (left := int(mark.read_text())):
            mark.write_text(str(left - 1))
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3) if config.seed else os.kill(os.getpid(), signal.SIGKILL)
crew.execute = deadly
sys.exit(worker.main())
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A set that any process can load by its name: decoded once, then mapped."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    arrays = {}
    for domain in tiny_data().domains:
        arrays[f"{domain.name}_x"] = domain.images.permute(0, 2, 3, 1).numpy()
        arrays[f"{domain.name}_y"] = domain.labels.numpy()
    np.savez(tmp_path / "bits.npz", **arrays)
    save_manifest(find_npz("bits", tmp_path / "bits.npz"))
    return DataConfig(name="bits", size=8, left_out=("domain0",))


def test_processes_give_what_each_run_gives_alone(tmp_path, imported):
    runs = [replace(one, data=imported) for one in SIX[:4]]
    plan = Plan(runs, tmp_path / "sweep")
    news = list(Sweep(plan, Processes(2)))
    assert kinds(news).count("round") == 12 and len(plan.having("done")) == 4
    assert isinstance(plan.entries[0].last, Event) and plan.entries[0].last.record["round"] == 3
    same(runs, tmp_path / "sweep", alone(runs, tmp_path / "alone", lambda _: None))
    versions = json.loads((plan.entries[0].folder.path / "versions.json").read_text())
    assert versions["threads"] == 1 and versions["gpu"] is None


def test_a_killed_worker_costs_a_round_and_twice_killed_the_run(tmp_path, imported):
    runs = [replace(one, data=imported) for one in SIX[:4]]
    plan = Plan(runs, tmp_path / "sweep")
    (tmp_path / "sweep").mkdir()
    for entry, times in ((plan.entries[0], 1), (plan.entries[3], 9)):
        (tmp_path / "sweep" / f"kill-{entry.name}").write_text(str(times))
    crew = Processes(2, (sys.executable, "-P", "-c", DEADLY))
    news = list(Sweep(plan, crew, tmp_path / "sweep.json"))
    assert [len(plan.having(state)) for state in ("done", "failed")] == [3, 1]
    first = [it.entry.name for it in news if it.kind == "round"].count(plan.entries[0].name)
    assert first == 3  # it went on where its checkpoint stood
    retried = {it.entry.name: it.reason for it in news if it.kind == "retry"}
    assert "was killed (SIGKILL)" in retried[plan.entries[0].name]
    reason = json.loads(plan.entries[3].folder.failed.read_text())["reason"]
    assert reason == "its process was ended with code 3: the last words"
    log = json.loads((tmp_path / "sweep.json").read_text())
    assert [it["state"] for it in log["incidents"] if it["run"] == plan.entries[3].name] == ["retrying", "failed"]
    same(runs[:3], tmp_path / "sweep", alone(runs[:3], tmp_path / "alone", lambda _: None))
    again = Plan(runs, tmp_path / "sweep", retry=True)
    (tmp_path / "sweep" / f"kill-{plan.entries[3].name}").unlink()
    list(Sweep(again, Processes(1)))
    same(runs, tmp_path / "sweep", alone(runs, tmp_path / "alone", lambda _: None))


def test_stopped_workers_save_what_they_are_at(tmp_path, imported):
    long = FederationConfig(rounds=5000)
    runs = [replace(one, data=imported, federation=long, checkpoint=5000) for one in SIX[:2]]
    plan, crew = Plan(runs, tmp_path), Processes(2)
    news, heard = iter(Sweep(plan, crew)), set()
    while len(heard) < 2:
        it = next(news)
        heard |= {it.entry.name} if it.kind == "round" else set()
    workers = [worker.process for worker in crew._workers]
    news.close()
    assert all(process.returncode == 0 for process in workers)
    assert [entry.state for entry in plan] == ["waiting"] * 2
    assert all(entry.folder.checkpoint.exists() for entry in plan)


def test_a_worker_that_cannot_begin_says_why(tmp_path):
    plan = Plan(SIX[:1], tmp_path)
    broken = Processes(1, (sys.executable, "-c", "raise SystemExit('no library here')"))
    assert kinds(Sweep(plan, broken))[-1] == "failed"
    assert plan.entries[0].reason == "its process was ended with code 1: no library here"


# ---------------------------------------------------------------------------------------------- sharing one device


def test_runs_share_one_array_of_pictures():
    parts = [Pictures.of(d.images) for d in PRESENT.domains]
    one = resident(parts, torch.device("cpu"))
    assert one is resident(parts[::-1], torch.device("cpu"))  # whatever the order in which a run names its sites
    whole = one.moved(Pictures.join(parts))
    assert torch.equal(whole.take(torch.arange(len(whole))), torch.cat([d.images for d in PRESENT.domains]))
    part = one.moved(Pictures.of(PRESENT.domains[1].images, torch.tensor([3, 1])))
    assert part.arrays[0] is whole.arrays[0]
    assert torch.equal(part.take(torch.tensor([0, 1])), PRESENT.domains[1].images[[3, 1]])


def test_as_many_runs_as_keep_a_gpu_busy_and_fit_its_memory():
    plenty = 10**12
    assert gpu_room(config(), PRESENT, plenty) == 9  # two clients each
    assert gpu_room(config("central"), PRESENT, plenty) == 18
    assert gpu_room(config(), PRESENT, 3 * 10**6) in range(1, 9)
    assert gpu_room(config(), PRESENT, 1) == 1


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU, and torch finds none")


@needs_gpu
def test_threads_on_a_gpu_give_what_each_gives_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    runs = [replace(one, device="cuda") for one in SIX]
    plan = Plan(runs, tmp_path / "sweep")
    list(Sweep(plan, Threads(4, lambda _: PRESENT, Gpu())))
    assert len(plan.having("done")) == 6
    same(runs, tmp_path / "sweep", alone(runs, tmp_path / "alone"))


@needs_gpu
def test_a_gpu_without_memory_for_one_run_goes_on_with_fewer(tmp_path):
    calls = []

    def data_of(config):
        calls.append(config)
        return torch.empty(1 << 50, device="cuda") if len(calls) == 3 else PRESENT

    sweep = Sweep(Plan([replace(one, device="cuda") for one in SIX], tmp_path), Threads(3, data_of, Gpu()))
    assert kinds(sweep).count("done") == 6 and sweep.room == 2
