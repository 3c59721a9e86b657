"""`predict`, from pictures in files to the table of answers."""

import csv
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedshift.cli.main import main
from fedshift.cli.predict import usable
from fedshift.core.task import Answer
from fedshift.data.given import given
from fedshift.experiment.config import Experiment
from fedshift.experiment.predict import Trained, quantile
from fedshift.experiment.runs import Folder
from fedshift.experiment.setup import set_up
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.testing import last

from .conftest import SMALL, load

LEFT = 'data.left_out=["scan"]'
HEAD = ["image", "class", "probability", "uncertainty", "flagged"]


def write_pictures(folder, n=7, name="scan"):
    folder.mkdir(parents=True)
    images = load().domain(name).images[:n]
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    return images


def trained(capsys, *settings):
    assert main(["run", "--set", *SMALL, LEFT, "seed=3", *settings]) == 0
    capsys.readouterr()
    return max(Path("runs").glob("*/config.toml"), key=lambda path: path.stat().st_mtime_ns).parent


def table(file="predictions.csv"):
    with open(file, newline="") as text:
        return list(csv.DictReader(text))


def told(capsys, *words):
    assert main(["predict", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def by_hand(folder, images, site=None):
    """The answers of a run's last state, made anew."""
    setup = set_up(folder.experiment(), load())
    state = last(setup)
    client = None if site is None else setup.task.sites.index(site)
    down = setup.method.send(setup.task, state.server, client)
    model = setup.method.model_for(setup.task, down, None if site is None else state.memory[client].client)
    x = setup.evaluator.transform.test(images)
    return setup, model, setup.task.net(model, x, train=False).logits.double().softmax(1)


@pytest.mark.parametrize("site", [None, "ink"])
def test_answers_are_those_of_the_runs_model(capsys, site):
    run = trained(capsys, "method=fedbn")
    images = write_pictures(Path("new"))
    assert main(["predict", run.name[:6], "new", *(["--site", site] if site else ["--new"])]) == 0
    out = capsys.readouterr().out
    assert f"the model {f'of site {site}' if site else 'for a new site'}" in out
    _, _, p = by_hand(Folder(run), images, site)
    rows = table()
    assert list(rows[0]) == HEAD
    assert [row["image"] for row in rows] == [f"new/{i}.png" for i in range(7)]
    assert [int(row["class"]) for row in rows] == p.argmax(1).tolist()
    assert [float(row["probability"]) for row in rows] == pytest.approx(p.amax(1).tolist(), abs=1e-5)
    entropy = -(p * p.log()).sum(1) / torch.tensor(3.0).log()
    assert [float(row["uncertainty"]) for row in rows] == pytest.approx(entropy.tolist(), abs=1e-5)


def test_the_threshold_is_the_sites_own(capsys):
    run = trained(capsys)
    write_pictures(Path("new"), 30)
    result = told(capsys, str(run), "new", "--flag", "0.2")
    setup, model, _ = by_hand(Folder(run), torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    doubt = []
    for held in setup.evaluator.federation.val:
        x = setup.evaluator.transform.test(held.pictures.take(torch.arange(len(held.labels))))
        p = setup.task.net(model, x, train=False).logits.double().softmax(1)
        doubt += (-(p * p.log()).sum(1) / torch.tensor(3.0).log()).tolist()
    assert result["threshold"]["part"] == "validation" and result["threshold"]["images"] == len(doubt)
    assert result["threshold"]["value"] == pytest.approx(sorted(doubt)[-(len(doubt) // 5) - 1], abs=1e-6)
    flags = [float(row["uncertainty"]) > result["threshold"]["value"] for row in table()]
    assert [row["flagged"] == "yes" for row in table()] == flags and result["flagged"] == sum(flags)
    assert sum(c["images"] for c in result["classes"].values()) == result["images"] == 30


def test_a_quantile_is_a_value_that_was_seen():
    values = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.5])
    for share, expected in ((0.2, 0.1), (0.21, 0.2), (0.8, 0.4), (0.95, 0.5), (1.0, 0.5)):
        assert quantile(values, share) == pytest.approx(expected)
        assert float((values <= quantile(values, share)).double().mean()) >= share - 1e-9


@dataclass(frozen=True)
class Weighing(FedAvg):
    """Evidence is the exponential of the logits."""

    def predict(self, task, model, x):
        answer, model = super().predict(task, model, x)
        return Answer(answer.logits, answer.logits.exp()), model


@pytest.fixture
def weighing(monkeypatch):
    monkeypatch.setattr(Weighing, "name", "weighing")
    monkeypatch.setitem(METHODS, "weighing", Weighing)


def test_belief_masses_where_there_are_any(capsys, weighing):
    run = trained(capsys, "method=weighing")
    write_pictures(Path("new"))
    assert told(capsys, str(run), "new")["uncertainty"] == "evidence"
    rows = table()
    assert list(rows[0]) == [*HEAD, "belief 0", "belief 1", "belief 2"]
    for row in rows:
        masses = [float(row[f"belief {k}"]) for k in range(3)]
        assert sum(masses) + float(row["uncertainty"]) == pytest.approx(1, abs=1e-5)
        assert masses[int(row["class"])] == max(masses)
    assert main(["predict", str(run), "new"]) == 0
    assert "u = K / S" in capsys.readouterr().out
    told(capsys, str(run), "new", "--adapt", "norm")
    for row in table():
        masses = [float(row[f"belief {k}"]) for k in range(3)]
        assert sum(masses) + float(row["adapted uncertainty"]) == pytest.approx(1, abs=1e-5)


def test_adapted_to_the_pictures_without_labels(capsys):
    run = trained(capsys)
    write_pictures(Path("new"), 20)
    plain = told(capsys, str(run), "new")
    before = table()
    adapted = told(capsys, str(run), "new", "--adapt", "auto")
    assert (plain["adapted"], adapted["adapted"]) == (None, "norm")
    assert (adapted["threshold"], adapted["flagged"]) == (plain["threshold"], plain["flagged"])
    assert [list(row) for row in (before[0], table()[0])] == [HEAD, [*HEAD, "adapted uncertainty"]]
    assert [row["probability"] for row in table()] != [row["probability"] for row in before]
    assert main(["predict", str(run), "new", "--adapt", "norm"]) == 0
    assert "Adapted to these very pictures, without labels, by measuring BatchNorm" in capsys.readouterr().out
    assert main(["predict", str(run), "new", "--adapt", "method"]) == 2
    assert "method 'fedavg' has no way of its own" in capsys.readouterr().err


def test_a_model_that_was_made_sure_of_the_pictures_still_flags_them(capsys):
    run = trained(capsys, "eval.adapt_epochs=20", "eval.adapt_rate=1")
    write_pictures(Path("new"), 40)
    plain, before = told(capsys, str(run), "new"), table()
    adapted, after = told(capsys, str(run), "new", "--adapt", "entropy"), table()
    limit = plain["threshold"]["value"]
    assert sum(float(row["adapted uncertainty"]) > limit for row in after) < 3 * 0.05 * 40 < plain["flagged"]
    assert adapted["flagged"] == plain["flagged"] and adapted["threshold"] == plain["threshold"]
    for key in ("uncertainty", "flagged"):
        assert [row[key] for row in after] == [row[key] for row in before]
    counts = [c for c in adapted["classes"].values() if c["images"]]
    mean = sum(c["images"] * c["uncertainty"] for c in counts) / 40
    assert mean == pytest.approx(sum(float(row["uncertainty"]) for row in after) / 40, abs=1e-5)
    assert main(["predict", str(run), "new", "--adapt", "entropy"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "So many do not look like" in out and "uncertainties and flags are those of the model before." in out


def test_without_a_model_for_a_new_site_the_sites_answer_together(capsys):
    run = trained(capsys, "method=local")
    write_pictures(Path("new"))
    assert told(capsys, str(run), "new")["model"] == "the mean probability of the 2 sites' models"
    assert told(capsys, str(run), "new", "--site", "photo")["model"] == "the model of site photo"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(("precision", "here"), [("tf32", "float32"), ("float64", "float64")])
def test_a_run_of_a_gpu_answers_on_a_cpu(precision, here):
    config = usable(Experiment(device="cuda", engine="captured", precision=precision))
    assert (config.device, config.engine, config.precision) == ("cpu", "sequential", here)


def test_a_run_that_was_stopped_answers_and_says_so(capsys):
    run = trained(capsys, "eval.every=2", "federation.rounds=4")
    write_pictures(Path("new"))
    assert told(capsys, str(run), "new")["reported_round"] == 4
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text(lines[0])  # as after round 3
    (run / "done.json").unlink()
    assert main(["predict", str(run), "new"]) == 0
    out = capsys.readouterr().out
    assert "which is not finished" in out and "reports round" not in out
    assert told(capsys, str(run), "new")["reported_round"] is None


def test_a_finished_run_says_that_another_round_is_reported(capsys):
    run = trained(capsys, "eval.select=val", "data.val=0.2")
    rows = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for k, row in enumerate(rows):
        for site in row["sites"].values():
            site["val"]["accuracy"] = 0.5 + 0.1 * (k == 1)
    (run / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_pictures(Path("new"))
    assert main(["predict", str(run), "new"]) == 0
    assert "The run reports round 2; its model was not kept" in capsys.readouterr().out


def test_pictures_by_folder_archive_table_and_name(tmp_path):
    import zipfile

    write_pictures(tmp_path / "a", 4)
    write_pictures(tmp_path / "b", 2, "ink")
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    (tmp_path / "a" / "torn.png").write_bytes(b"no")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(tmp_path / "b" / "0.png", "deep/x.png")
    (tmp_path / "a" / "list.csv").write_text("path\n2.png\n0.png\n")
    paths = [tmp_path / "a", tmp_path / "c.zip", tmp_path / "a" / "list.csv", tmp_path / "b" / "1.png"]
    with given(paths, 8, "crop") as found:
        named = [str(Path(name).relative_to(tmp_path)) for name in found.names]
        pixels = found.pictures.take(torch.arange(len(named)))
    expected = [*(f"a/{i}.png" for i in range(4)), "c.zip/deep/x.png", "a/2.png", "a/0.png", "b/1.png"]
    assert named == expected
    data = {name: load().domain(name).images for name in ("scan", "ink")}
    right = [*data["scan"][:4], data["ink"][0], data["scan"][2], data["scan"][0], data["ink"][1]]
    assert torch.equal(pixels, torch.stack(right))
    (bad,) = found.skipped
    assert bad[0].endswith("a/torn.png") and "not a picture" in bad[1]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["absent", "new"], ["run 'absent'", "no such folder"]),
        (["RUN", "nowhere"], ["nowhere: found nothing there"]),
        (["RUN", "empty"], ["empty: found nothing, expected pictures"]),
        (["RUN", "new", "--site", "scam"], ["--site: found 'scam'", "ink, photo"]),
        (["RUN", "new", "--site", "inc"], ["did you mean 'ink'"]),
        (["RUN", "new", "--flag", "2"], ["--flag: found 2", "between 0 and 1"]),
        (["RUN", "new", "--out", "empty/file.txt/x.csv"], ["cannot be written"]),
        (["RUN", "bad.csv"], ["found the columns file, expected path"]),
        (["RUN", "one", "--adapt", "norm"], ["found 1 image to adapt to"]),
    ],
)
def test_one_sentence(words, parts, capsys):
    run = trained(capsys)
    write_pictures(Path("new"))
    write_pictures(Path("one"), 1)
    Path("empty").mkdir()
    Path("bad.csv").write_text("file\nx.png\n")
    if "empty/file.txt/x.csv" in words:
        Path("empty/file.txt").write_text("in the way")
    assert main(["predict", *(str(run) if word == "RUN" else word for word in words)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedshift: ") and err.count("\n") == 1 and "Traceback" not in err
    for part in parts:
        assert part in err


def test_one_bar_at_a_time(capsys, monkeypatch):
    run, seen = trained(capsys), []
    write_pictures(Path("new"))

    @contextmanager
    def bar(what):
        seen.append(what)
        yield lambda done, total: seen.append((what, done))
        seen.append("end")

    monkeypatch.setattr("fedshift.cli.predict.progress", bar)
    assert main(["predict", str(run), "new"]) == 0
    words = [word for word in seen if isinstance(word, str)]
    assert words == ["decoding", "end", "predicting", "end"]
    assert ("decoding", 7) in seen and ("predicting", 7) in seen


def test_a_bad_place_for_the_table_is_refused_before_predicting(capsys, monkeypatch):
    run = trained(capsys)
    write_pictures(Path("new"))
    monkeypatch.setattr(Trained, "predict", None)
    for out in ("new", "new/0.png/x.csv"):
        assert main(["predict", str(run), "new", "--out", out]) == 2
        assert f"{out}: cannot be written" in capsys.readouterr().err


def test_a_run_without_a_saved_round_is_refused(capsys):
    run = trained(capsys)
    (run / "checkpoint.safetensors").unlink()
    write_pictures(Path("new"))
    assert main(["predict", str(run), "new"]) == 2
    assert "found no saved round" in capsys.readouterr().err
