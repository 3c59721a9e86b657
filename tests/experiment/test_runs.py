"""Run folders: what they hold, how they resume, and that a kill at any instant loses nothing that was whole."""

import json
import os
import signal
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from fedshift.core import state as states
from fedshift.core import tree
from fedshift.core.errors import CheckpointError, ConfigError, DataError, MessageError, ModelError, UnseenSite
from fedshift.core.optim import SGD
from fedshift.engines.captured import POOL
from fedshift.experiment import files, runs, strict
from fedshift.experiment.checkpoint import load_checkpoint
from fedshift.experiment.config import (
    DataConfig,
    EvalConfig,
    Experiment,
    FederationConfig,
    LocalConfig,
    ModelConfig,
)
from fedshift.experiment.runs import Folder, execute, folder_of
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.methods.fdse import FDSE
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.hfedf import HFedF
from fedshift.methods.local import Local
from fedshift.methods.rfeddis import RFedDis
from fedshift.methods.scaffold import Scaffold
from fedshift.testing import difference, quick, tiny_data


def config(name="fedavg", **changes):
    plain = Experiment(
        method=quick(METHODS[name]()),
        data=DataConfig(left_out=("domain0",)),
        model=ModelConfig("small-cnn", {"width": 4}),
        federation=FederationConfig(rounds=3),
        local=LocalConfig(batch=8, keep_optimizer=True),
        optimizer=SGD(lr=0.05, momentum=0.9),
    )
    return replace(plain, **changes)


NET = set_up(config(), tiny_data()).task.net


def finish(experiment, path):
    folder = Folder(path)
    events = list(execute(experiment, folder, tiny_data()))
    return folder, events


def result(folder):
    tensors, header = states.read(folder.checkpoint)
    return tensors, json.loads(header["state"]), folder.records.read_text()


def same(one, two):
    (a, state_a, records_a), (b, state_b, records_b) = result(one), result(two)
    assert difference(a, b) == 0 and state_a == state_b and records_a == records_b


def in_child(action):
    """Run `action` in a forked process; its exit status."""
    pid = os.fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(monkeypatch, operation, experiment, path):
    """Kill the run with SIGKILL just before its n-th flush, rename or shortening of a file."""
    count = iter(range(1, operation + 1))

    def deadly(call):
        def act(*args, **kwargs):
            if next(count, None) == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return act

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "truncate"):
            patch.setattr(files.os, name, deadly(getattr(os, name)))
        return in_child(lambda: finish(experiment, path))


def test_a_resumed_run_takes_sums_over_tensors_in_the_same_order(tmp_path):
    """The norm that clipping looks at is one; the states' names keep the network's order too."""
    clipped = config("fedprox", optimizer=SGD(lr=0.05, momentum=0.9, clip=0.1))
    whole, _ = finish(clipped, tmp_path / "whole")
    events = execute(clipped, Folder(tmp_path / "halves"), tiny_data())
    next(events)
    events.close()
    setup = set_up(clipped, tiny_data())
    state, _ = load_checkpoint(Folder(tmp_path / "halves").checkpoint, clipped.method, setup.task.net)
    assert list(state.server.model.params) == [name for name, _ in setup.task.net.module.named_parameters()]
    same(whole, finish(clipped, tmp_path / "halves")[0])


def test_resumed_and_new_runs_share_recordings(tmp_path, monkeypatch):
    """Whatever the order in which a checkpoint names its tensors."""
    monkeypatch.setattr(states, "restored", lambda tensors, header: dict(sorted(tensors.items())))
    first, second = (config("fedbn", engine="rehearsed", seed=seed) for seed in (0, 1))
    ends = [finish(one, tmp_path / f"alone{one.seed}")[0] for one in (first, second)]
    POOL.clear()
    events = execute(first, Folder(tmp_path / "first"), tiny_data())
    next(events)
    events.close()
    same(ends[0], finish(first, tmp_path / "first")[0])
    same(ends[1], finish(second, tmp_path / "second")[0])


@pytest.mark.parametrize("method", METHODS)
def test_killed_in_any_round_and_resumed_is_the_same_run(method, tmp_path, monkeypatch):
    whole, _ = finish(config(method), tmp_path / "whole")
    for operation in (9, 16, 21):
        path = tmp_path / f"killed{operation}"
        assert killed_at(monkeypatch, operation, config(method), path) == -signal.SIGKILL
        assert not Folder(path).done.exists()
        same(whole, finish(config(method), path)[0])


def test_a_resumed_run_takes_the_threads_it_began_with(tmp_path):
    folder = Folder(tmp_path)
    torch.set_num_threads(2)
    try:
        with closing(execute(config(), folder, tiny_data())) as events:
            next(events)
        torch.set_num_threads(1)
        with closing(execute(config(), folder, tiny_data())) as events:
            next(events)
            assert torch.get_num_threads() == folder.began()["threads"] == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("setting", ["own starts", "after local"])
def test_killed_and_resumed_with_own_starts_or_scored_after_local_training(setting, tmp_path, monkeypatch):
    changes = {"federation": FederationConfig(rounds=3, common_init=False)}
    if setting == "after local":
        changes = {"eval": EvalConfig(point="after_local", every=2)}
    experiment = config("fedbn", **changes)
    whole, _ = finish(experiment, tmp_path / "whole")
    for operation in (9, 16, 19):
        path = tmp_path / f"killed{operation}"
        assert killed_at(monkeypatch, operation, experiment, path) == -signal.SIGKILL
        same(whole, finish(experiment, path)[0])
    assert whole.records.read_text() != finish(config("fedbn"), tmp_path / "usual")[0].records.read_text()


def test_killed_at_every_instant(tmp_path, monkeypatch):
    """Before each flush, rename and truncation that a run does; a half-written line or file is never read back."""
    experiment = config("scaffold", federation=FederationConfig(rounds=2))
    whole, _ = finish(experiment, tmp_path / "whole")
    for operation in range(1, 100):
        path = tmp_path / str(operation)
        if killed_at(monkeypatch, operation, experiment, path) == 0:
            break
        same(whole, finish(experiment, path)[0])
    assert 15 < operation < 40  # every one was tried, and the run did end


def test_a_cut_line_is_cut_off(tmp_path):
    whole, _ = finish(config(), tmp_path / "whole")
    folder = Folder(tmp_path / "cut")
    run = execute(config(), folder, tiny_data())
    next(run), next(run)
    run.close()
    with open(folder.records, "a") as file:
        file.write('{"round": 3, "sit')
    same(whole, finish(config(), folder.path)[0])


def test_an_interrupt_saves_the_last_whole_round(tmp_path):
    experiment = config(checkpoint=10)
    whole, _ = finish(experiment, tmp_path / "whole")
    folder = Folder(tmp_path / "stopped")
    run = execute(experiment, folder, tiny_data())
    next(run), next(run)
    with pytest.raises(KeyboardInterrupt):
        run.throw(KeyboardInterrupt)
    assert load_checkpoint(folder.checkpoint, experiment.method, NET)[0].total == 2
    same(whole, finish(experiment, folder.path)[0])


def test_an_interrupt_while_scoring_loses_no_record(tmp_path, monkeypatch):
    """The round is trained but not yet written down: it is done again after the resume."""
    whole, _ = finish(config(), tmp_path / "whole")
    folder, calls = Folder(tmp_path / "stopped"), iter(range(9))
    record = runs._record

    def interrupted(*given):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return record(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs, "_record", interrupted)
        list(execute(config(), folder, tiny_data()))
    same(whole, finish(config(), folder.path)[0])


def test_what_is_refused_leaves_no_folder(tmp_path):
    with pytest.raises(DataError):
        list(execute(config(data=DataConfig(left_out=("nowhere",))), Folder(tmp_path / "run"), tiny_data()))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "method",
    [
        RFedDis(report_norm=False),
        RFedDis(share_global_head=False),
        FDSE(report_stats=False),
        HFedF(newcomer="refuse"),
        HFedF(newcomer="refuse", embedding="autoencoder"),
        Local(),
    ],
    ids=lambda m: m.name,
)
def test_a_method_without_a_model_for_unseen_sites_is_refused_before_anything_is_written(method, tmp_path):
    unseen = EvalConfig(unseen="global", every=3)
    with pytest.raises(UnseenSite, match=r"a new site has no|so a new site has none"):
        list(execute(config(method=method, eval=unseen), Folder(tmp_path / "run"), tiny_data()))
    assert not (tmp_path / "run").exists()
    for other in ({"eval": EvalConfig()}, {"eval": unseen, "data": DataConfig()}):  # or there is no unseen site
        assert set_up(config(method=method, **other), tiny_data()).rounds
    assert set_up(config("lsi", eval=unseen), tiny_data()).rounds > 3


def test_what_a_folder_holds(tmp_path):
    folder, events = finish(config(eval=EvalConfig(every=2)), tmp_path / "run")
    assert folder.experiment() == config(eval=EvalConfig(every=2))
    records = [json.loads(line) for line in folder.records.read_text().splitlines()]
    assert [r["round"] for r in records] == [2, 3]  # every second, and always the last
    assert [e.round for e in events] == [1, 2, 3] and [bool(e.record) for e in events] == [False, True, True]
    assert records[-1] == events[-1].record
    assert len(folder.timings.read_text().splitlines()) == 3
    assert json.loads((folder.path / "versions.json").read_text())["torch"] == str(torch.__version__)
    split = json.loads((folder.path / "split.json").read_text())
    assert records[-1]["split"] == split["hash"] and not split["leak"] and "leak" not in records[-1]
    assert folder.done.exists() and list(execute(config(), folder, tiny_data())) == []
    assert not [p for p in folder.path.iterdir() if p.name.startswith(".")]  # nothing left aside


def test_a_leak_is_said_in_every_line(tmp_path):
    data = DataConfig(left_out=("domain0",), val=0.0, test=0.0, leak="test-on-training-images")
    folder, _ = finish(config(data=data), tmp_path / "run")
    assert all(json.loads(line)["leak"] is True for line in folder.records.read_text().splitlines())


def test_a_record_says_what_was_asked(tmp_path):
    folder, _ = finish(config("fedbn"), tmp_path / "run")
    record = json.loads(folder.records.read_text().splitlines()[-1])
    assert set(record["sites"]) == set(record["global"]) == {"domain1", "domain2"}
    assert set(record["unseen"]) == {"domain0"} and record["unseen"]["domain0"]["rule"] == "global"
    assert record["unseen"]["domain0"]["test"]["n"] == 30
    site = record["sites"]["domain1"]
    assert site["test"]["n"] == 4 and site["val"]["n"] == 2
    assert record["sites"] != record["global"]  # a site's own norms are not the averaged ones


def test_the_folder_is_the_hash_of_the_configuration(tmp_path):
    one, two = folder_of(config(), tmp_path), folder_of(config(), tmp_path)
    assert one == two and one.path.name == strict.digest(config())
    assert folder_of(config(seed=1), tmp_path) != one


def test_one_process_at_a_time(tmp_path):
    run = execute(config(), Folder(tmp_path), tiny_data())
    next(run)
    with pytest.raises(CheckpointError, match="another process is running this experiment"):
        next(execute(config(), Folder(tmp_path), tiny_data()))
    run.close()
    assert len(list(execute(config(), Folder(tmp_path), tiny_data()))) == 2


def test_a_damaged_or_foreign_checkpoint_is_refused_and_kept(tmp_path):
    folder, _ = finish(config(), tmp_path / "run")
    folder.done.unlink()
    good = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(good[: len(good) // 2])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        finish(config(), folder.path)
    folder.checkpoint.write_bytes(good.replace(b'"format":"1"', b'"format":"0"'))
    with pytest.raises(CheckpointError, match="found checkpoint format 0, expected 1"):
        finish(config(), folder.path)
    folder.checkpoint.write_bytes(good)
    with pytest.raises(CheckpointError, match="does not fit method scaffold"):
        load_checkpoint(folder.checkpoint, Scaffold(), NET)


def test_a_full_disk_is_said_and_nothing_whole_is_lost(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "run")
    run = execute(config(), folder, tiny_data())
    next(run)
    before = folder.checkpoint.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(CheckpointError, match="the disk is full; what was saved before is whole"):
            next(run)
    assert folder.checkpoint.read_bytes() == before
    whole, _ = finish(config(), tmp_path / "whole")
    same(whole, finish(config(), folder.path)[0])


def test_a_server_that_diverges_is_never_saved(tmp_path, monkeypatch):
    """The last good state is there, and the run goes on from it."""
    experiment, folder, aggregate = config(), Folder(tmp_path / "run"), FedAvg.aggregate

    def diverging(self, task, server, ups, cohort):
        new = aggregate(self, task, server, ups, cohort)
        return tree.map(lambda t: t / 0, new) if cohort.round == 2 else new

    with monkeypatch.context() as patch, pytest.raises(MessageError, match="round 2: the server's new state holds NaN"):
        patch.setattr(FedAvg, "aggregate", diverging)
        list(execute(experiment, folder, tiny_data()))
    state, _ = load_checkpoint(folder.checkpoint, experiment.method, NET)
    assert state.total == 2 and tree.first_bad(state.server) is None
    same(finish(experiment, tmp_path / "whole")[0], finish(experiment, folder.path)[0])


def test_no_run_here(tmp_path):
    with pytest.raises(CheckpointError, match="found no run here"):
        Folder(tmp_path).experiment()


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"data": DataConfig(left_out=("domain0", "domain1", "domain2"))}, DataError, "found all 3 domains"),
        ({"data": DataConfig(left_out=("domian0",))}, DataError, "did you mean 'domain0'"),
        ({"data": DataConfig(clients_per_domain=50)}, DataError, "found 21 training images for 50 clients"),
        ({"data": DataConfig(limit=1)}, DataError, "batches of one image"),
        ({"local": LocalConfig(batch=1)}, DataError, "raise local.batch"),
        ({"local": LocalConfig(sample=0.05)}, DataError, "site domain1: found batches of one image"),
        ({"local": LocalConfig(sample=0.05, steps=3, epochs=1)}, DataError, "raise local.batch or local.sample"),
        ({"method": FedBN(), "model": ModelConfig("mlp", {})}, ModelError, "'mlp' has none"),
        ({"model": ModelConfig("smal-cnn", {})}, ModelError, "did you mean 'small-cnn'"),
        ({"device": "cuda"}, ConfigError, "no GPU"),
    ],
)
def test_what_cannot_run_is_said_before_it_starts(changes, error, sentence, tmp_path):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(error, match=sentence):
        set_up(config(**changes), tiny_data())


def test_one_image_is_enough_without_batchnorm():
    sizes = (30, 3, 3)
    setup = set_up(
        config(model=ModelConfig("mlp", {}), data=DataConfig(left_out=("domain0",), limit=1)),
        tiny_data(sizes),
    )
    assert [site.examples for site in setup.sites] == [1, 1] and setup.rounds == 3


def test_a_method_that_chooses_its_images_does_not_look_at_local_sample():
    assert set_up(config("feddca", local=LocalConfig(sample=0.05)), tiny_data()).rounds == 3


def test_a_class_that_a_client_lacks_is_no_problem(tmp_path):
    data = tiny_data()
    first = data.domains[1]
    keep = first.labels != 0
    lacking = replace(first, images=first.images[keep], labels=first.labels[keep])
    data = replace(data, domains=(data.domains[0], lacking, data.domains[2]))
    events = list(execute(config(), Folder(tmp_path), data))
    assert events[-1].record and events[-1].record["sites"]["domain1"]["test"]["n"] > 0


def test_seeds_are_part_of_the_configuration():
    assert strict.digest(config(seed=3)) != strict.digest(config())
