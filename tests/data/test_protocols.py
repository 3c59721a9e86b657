"""Protocols: sites, held-out parts, copies, leaks, and the papers' presets."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.errors import ConfigError, DataError
from fedshift.data import corrupt, partition
from fedshift.data.dataset import Dataset, Domain
from fedshift.data.manifest import Row
from fedshift.data.partition import count
from fedshift.data.presets import PRESETS, preset
from fedshift.data.protocols import Facts, Protocol, deal, facts_of, known, leave_one_out
from fedshift.data.recipes import RECIPES
from fedshift.experiment.config import Experiment
from fedshift.experiment.strict import build, dump
from fedshift.models import options
from fedshift.testing import tiny_data

SIZES = {"sketch": 90, "art": 50, "photo": 40, "cartoon": 60}
PROTOCOLS = {
    "plain": Protocol(),
    "one out": Protocol(left_out=("photo",)),
    "many": Protocol(clients_per_domain=3),
    "hfedf": Protocol(left_out=("art",), domains_per_client=2, clients=4, val=0.0, test=0.1),
    "mixed": Protocol(mixing=0.6, clients_per_domain=2),
    "crossed": Protocol(clients_per_domain=3, label_skew=0.3, quantity_skew="power", mixing=0.5, least=2),
    "dirichlet": Protocol(clients_per_domain=2, quantity_skew="dirichlet", quantity=0.7),
    "truncated": Protocol(val=0.0, test=0.2, truncate=0.5, truncate_val=0.4),
    "shots": Protocol(left_out=("art", "photo"), shots=3),
    "newcomer": Protocol(left_out=("art",), adapt=0.5),
    "parts": Protocol(domains=("art", "photo"), share=0.7, limit=15),
    "corrupted": Protocol(corruptions=("noise", "blur"), severities=(1, 5)),
}


def facts(sizes=SIZES, copies=0, classes=3):
    """The first `copies` pictures of each domain are the same ones."""
    made, start = {}, 10_000
    for name, n in sizes.items():
        content = torch.arange(start, start + n)
        content[:copies] = torch.arange(copies)
        made[name] = Facts(torch.arange(n) % classes, content)
        start += n
    return made


def data_of(made):
    blank = {name: torch.zeros(len(f.labels), 3, 1, 1, dtype=torch.uint8) for name, f in made.items()}
    return Dataset("made", ("0", "1", "2"), tuple(Domain(n, blank[n], f.labels) for n, f in made.items()))


def dealt(protocol, made=None, seed=0):
    made = made or facts()
    return deal(data_of(made), protocol, seed, made)


def pairs(deal_, made, what=lambda f, rows: f.content[rows]):
    return {
        site: sorted(c for name, rows in held.items() for c in what(made[name], rows).tolist())
        for site, held in deal_.items()
    }


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), copies=st.sampled_from([0, 4]))
def test_every_picture_is_in_one_place_and_its_copies_on_one_side(name, seed, copies):
    protocol, made = PROTOCOLS[name], facts(copies=copies)
    d = dealt(protocol, made, seed)
    parts = [d.train, d.val, d.test, d.unseen, d.adapt, {"": d.unused}]
    rows = sorted((n, r) for part in parts for held in part.values() for n, rows in held.items() for r in rows.tolist())
    used = {n: f for n, f in made.items() if n in (protocol.domains or made)}
    assert rows == sorted((n, r) for n, f in used.items() for r in range(len(f.labels)))
    keys = [{c for held in pairs(part, made).values() for c in held} for part in (d.train, d.val, d.test)]
    away = {c for held in pairs(d.unseen, made).values() for c in held}
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert not away & (keys[0] | keys[1])
    assert list(d.train) == list(d.val) == list(d.test) and min(map(count, d.train.values())) >= protocol.least
    assert set(d.unseen) == set(protocol.left_out)


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99), shuffle=st.randoms(use_true_random=False))
def test_no_order_of_files_or_folders_matters(name, seed, shuffle):
    made = facts(copies=3)
    names, other = list(made), {}
    shuffle.shuffle(names)
    for n in names:
        order = list(range(len(made[n].labels)))
        shuffle.shuffle(order)
        other[n] = Facts(made[n].labels[order], made[n].content[order])
    one, two = dealt(PROTOCOLS[name], made, seed), dealt(PROTOCOLS[name], other, seed)
    for part in ("train", "val", "test", "unseen", "adapt"):
        assert pairs(getattr(one, part), made) == pairs(getattr(two, part), other)
        by_class = [pairs(getattr(d, part), m, lambda f, rows: f.labels[rows]) for d, m in ((one, made), (two, other))]
        assert by_class[0] == by_class[1]


def test_an_order_of_its_own_keeps_the_split_when_pixels_change():
    made = facts()
    resized = {n: Facts(f.labels, f.content.flip(0) * 7, order=f.content) for n, f in made.items()}
    assert dealt(Protocol(), made).record()["hash"] == dealt(Protocol(), resized).record()["hash"]


def test_the_seed_decides_and_a_fixed_one_stays():
    hashes = [dealt(Protocol(), seed=s).record()["hash"] for s in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len({dealt(Protocol(split_seed=5), seed=s).record()["hash"] for s in (0, 1)}) == 1
    assert dealt(Protocol(split_seed=5)).record()["hash"] == dealt(Protocol(), seed=5).record()["hash"]


def test_leaving_a_domain_out_changes_no_other_split():
    one, two = dealt(Protocol()), dealt(Protocol(left_out=("art",)))
    for name in ("cartoon", "photo", "sketch"):
        assert torch.equal(one.train[name][name], two.train[name][name])
    assert set(one.train) == set(SIZES) and two.unseen["art"]["art"].tolist() == list(range(50))


def test_each_domain_in_turn():
    cases = leave_one_out(Protocol(test=0.1), tuple(SIZES))
    assert [(gone, case.left_out, case.test) for gone, case in cases.items()] == [
        (name, (name,), 0.1) for name in sorted(SIZES)
    ]


def test_a_copy_of_an_unseen_picture_is_set_aside():
    made = facts(copies=4)
    d = dealt(Protocol(left_out=("art",)), made)
    assert {name: rows.tolist() for name, rows in d.unused.items()} == {
        name: [0, 1, 2, 3] for name in ("cartoon", "photo", "sketch")
    }
    assert count(d.unseen["art"]) == 50 and d.record()["unused"] == 12


def test_official_lists():
    made = {n: f._replace(official=torch.arange(len(f.labels)) % 4 // 2 * 2) for n, f in facts().items()}
    d = dealt(Protocol(split="official", val=0.1), made)
    assert d.split == dict.fromkeys(SIZES, "official")
    for name, rows in d.test.items():
        assert rows[name].tolist() == [r for r in range(SIZES[name]) if r % 4 > 1]
        assert count(d.val[name]) == round(0.1 * SIZES[name])
    half = made | {"art": facts()["art"]}
    assert dealt(Protocol(split="auto"), half).split == dict.fromkeys(SIZES, "official") | {"art": "seeded"}
    with pytest.raises(DataError, match="found no official lists for art, expected them"):
        dealt(Protocol(split="official"), half)


def test_official_lists_that_leak_lose_the_training_copy():
    made = facts({"art": 20})
    content, lists = torch.arange(20), torch.tensor([0] * 10 + [1] * 5 + [2] * 5)
    content[[0, 10, 15]] = 7  # one picture in training (twice, with row 7), in val and in test
    d = dealt(Protocol(split="official"), {"art": made["art"]._replace(content=content, official=lists)})
    assert d.test["art"]["art"].tolist() == [15, 16, 17, 18, 19] and d.val["art"]["art"].tolist() == [11, 12, 13, 14]
    assert d.unused["art"].tolist() == [0, 7, 10]


def test_truncated_sizes_and_rest():
    d = dealt(PROTOCOLS["truncated"])
    n = round(40 * 0.8)
    assert {count(rows) for rows in d.train.values()} == {n // 2}
    assert {count(rows) for rows in d.val.values()} == {int(0.4 * n)}
    assert {site: count(rows) for site, rows in d.test.items()} == {n: round(0.2 * s) for n, s in SIZES.items()}


def test_shots_come_from_the_unseen_domain_and_are_not_scored():
    d = dealt(PROTOCOLS["shots"], facts(copies=2))
    for held in d.train.values():
        assert len(held["art"]) == len(held["photo"]) == 3
    given = torch.cat([held["art"] for held in d.train.values()])
    assert len(set(given.tolist())) == 6 and not set(given.tolist()) & set(d.unseen["art"]["art"].tolist())


def test_corrupted_test_pictures_as_sites():
    d = dealt(PROTOCOLS["corrupted"])
    assert list(d.corrupted) == ["noise-1", "noise-5", "blur-1", "blur-5"]
    site = d.corrupted["blur-5"]
    assert (site.kind, site.severity) == ("blur", 5)
    assert {n: r.tolist() for n, r in site.rows.items()} == {n: d.test[n][n].tolist() for n in sorted(SIZES)}


def test_a_leak_must_be_asked_for_and_is_on_record():
    d = dealt(Protocol(val=0.0, test=0.0, leak="test-on-training-images"))
    assert d.record()["leak"] is True and d.leak
    assert all(torch.equal(d.train[s][s], d.test[s][s]) and count(d.train[s]) == SIZES[s] for s in SIZES)
    assert dealt(Protocol()).record()["leak"] is False
    with pytest.raises(ConfigError, match="please set both to 0"):
        Protocol(leak="test-on-training-images")
    with pytest.raises(ConfigError, match="leak"):
        build(Protocol, {"leak": True, "val": 0.0, "test": 0.0})


def test_a_deal_that_overlaps_is_refused(monkeypatch):
    monkeypatch.setattr(partition, "settle", lambda parts, content: list(parts))
    with pytest.raises(DataError, match=r"\(train, site cartoon\) and .*\(test, site unseen art\): found the same"):
        dealt(Protocol(left_out=("art",)), facts(copies=4))


def test_a_share_of_the_training_domains():
    d = dealt(Protocol(left_out=("art",), share=0.5, val=0.0))
    assert {n: count(d.train[n]) + count(d.test[n]) for n in d.train} == {"cartoon": 30, "photo": 20, "sketch": 45}
    assert count(d.unseen["art"]) == 50


def test_the_record():
    record = dealt(PROTOCOLS["hfedf"]).record()
    assert set(record) == {"hash", "images", "unused", "split", "leak"}
    assert sum(record["images"]["train"].values()) + sum(record["images"]["test"].values()) == 190
    assert record["images"]["unseen"] == {"art": 50} and record["images"]["val"] == dict.fromkeys(
        ["client-0", "client-1", "client-2", "client-3"], 0
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"left_out": ["a", "a"]}, "please name each once"),
        ({"val": 0.5, "test": 0.5}, "below 1 for training"),
        ({"domains_per_client": 2, "clients_per_domain": 2}, "set clients instead"),
        ({"domains_per_client": 2, "mixing": 0.5}, "two dials for one thing"),
        ({"clients": 4}, "please set domains_per_client"),
        ({"label_skew": 0.5}, "please raise clients_per_domain"),
        ({"quantity_skew": "power"}, "please raise clients_per_domain"),
        ({"truncate_val": 0.5, "val": 0.0}, "give truncate a share above 0"),
        ({"truncate": 0.5, "truncate_val": 0.4}, "two ways to hold out"),
        ({"shots": 3}, "name one in left_out"),
        ({"corruptions": ["noisy"]}, "did you mean 'noise'"),
        ({"severities": [0]}, "severities"),
        ({"mixing": 1.5}, "at least 0 and at most 1"),
    ],
)
def test_settings_that_cannot_be(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(Protocol, settings)


def test_domains_that_cannot_be():
    with pytest.raises(DataError, match="did you mean 'photo'"):
        dealt(Protocol(left_out=("photos",)))
    with pytest.raises(DataError, match="found all 4 domains"):
        dealt(Protocol(left_out=tuple(SIZES)))
    with pytest.raises(DataError, match="site art: found no training image"):
        dealt(Protocol(val=0.0, test=0.0, truncate=0.01))


def test_a_data_set_in_memory_is_hashed():
    data = tiny_data()
    twice = Domain("twin", data.domains[0].images[:5], data.domains[0].labels[:5])
    made = known(Dataset("t", data.classes, (*data.domains, twice)))
    assert torch.equal(made["twin"].content, made["domain0"].content[:5])
    assert deal(data, Protocol()).record() == deal(data, Protocol(), 0, known(data)).record()


def test_the_facts_of_a_manifest():
    rows = [
        Row("b", "art", 1, "test", "ff" * 32),
        Row("a", "art", 0, "", "01" * 32),
        Row("c", "art", 1, "val", "00" * 32),
    ]
    f = facts_of(rows, torch.tensor([5, 6, 7]))
    assert f.labels.tolist() == [1, 0, 1] and f.official is not None and f.official.tolist() == [2, -1, 1]
    assert f.rows().tolist() == [0, 2, 1]  # in the order of the hashes, as signed numbers
    assert facts_of([Row("b", "art", 1)], torch.tensor([5])).order is None


def test_a_protocol_goes_through_a_configuration():
    for protocol in PROTOCOLS.values():
        assert build(Protocol, dump(protocol)) == protocol


CASES = [(name, dataset) for name, it in PRESETS.items() for dataset in it.datasets]


@pytest.mark.parametrize(("name", "dataset"), CASES)
def test_presets_fit_the_schema(name, dataset):
    s = preset(name, dataset)
    assert set(s) == {"data", "model", "federation", "local", "optimizer", "schedule", "eval"}
    turns = {"left_out": ["x"]} if PRESETS[name].turns else {}
    build(Experiment, {**s, "data": {**s["data"], **turns}})
    assert s["data"]["name"] == dataset and s["data"]["recipe"] in RECIPES
    assert RECIPES[s["data"]["recipe"]].size in (0, s["data"]["size"])


def test_presets_say_what_the_papers_say():
    def found(name, dataset, *path):
        value = preset(name, dataset)
        for key in path:
            value = value[key]
        return value

    table = {
        ("hfedf", "pacs"): (200, 2, 64, "adam", 1e-3, "hfedf-cnn"),
        ("fdse", "office-caltech10"): (500, 1, 50, "sgd", 0.1, "alexnet-fdse"),
        ("fdse", "pacs"): (500, 5, 50, "sgd", 0.05, "alexnet-fdse"),
        ("lsi", "office-home"): (20, 10, 32, "sgd", 1e-3, "resnet50"),
        ("rfeddis", "office-caltech10"): (300, 1, 32, "sgd", 0.01, "alexnet-fedbn"),
        ("rfeddis", "digits5"): (100, 1, 32, "sgd", 0.01, "digits-cnn"),
        ("feddca-sound", "domainnet-10-feddca"): (20, 10, 128, "adam", 1e-3, "feddca-cnn"),
        ("feddca-report", "digits5"): (5, 10, 128, "adam", 1e-3, "feddca-cnn"),
    }
    paths = [("federation", "rounds"), ("local", "epochs"), ("local", "batch"), ("optimizer", "name")]
    paths += [("optimizer", "lr"), ("model", "name")]
    for case, row in table.items():
        assert tuple(found(*case, *path) for path in paths) == row
    assert found("fdse", "", "optimizer", "clip") == 10 and found("fdse", "", "schedule", "gamma") == 0.998
    assert found("lsi", "", "optimizer", "momentum") == 0.9 and found("lsi", "", "optimizer", "weight_decay") == 5e-4
    assert found("rfeddis", "digits5", "eval", "select") == "last"
    assert PRESETS["fdse"].seeds == (2, 4388, 15, 333, 967)


def test_only_the_report_leaks():
    leaking = {name for name, dataset in CASES if preset(name, dataset)["data"].get("leak", "no") != "no"}
    assert leaking == {"feddca-report"}
    fedavg = preset("feddca-report", method="fedavg")
    assert fedavg["data"]["leak"] == "no" and fedavg["data"]["share"] == 0.35 and fedavg["data"]["test"] == 0.2
    assert fedavg["optimizer"]["name"] == "sgd" and "beta1" not in fedavg["optimizer"]
    assert preset("feddca-report")["optimizer"]["name"] == "adam"  # asking changes nothing


def test_the_networks_of_the_presets_are_known():
    for case in CASES:
        model = preset(*case)["model"]
        assert set(model["options"]) <= set(options(model["name"]))


def test_presets_that_do_not_exist():
    with pytest.raises(ConfigError, match="did you mean 'hfedf'"):
        preset("hfed")
    with pytest.raises(ConfigError, match="found data set 'glyphs', expected one of pacs"):
        preset("hfedf", "glyphs")


def test_rfeddis_on_office_caltech_gives_the_published_sizes():
    made = facts({"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}, classes=10)
    lists = {n: torch.full((len(f.labels),), 2) for n, f in made.items()}
    for name, n in (("amazon", 766), ("caltech", 898), ("dslr", 125), ("webcam", 236)):
        lists[name][:n] = 0
    made = {n: f._replace(official=lists[n]) for n, f in made.items()}
    chosen = {f.name for f in fields(Protocol)}
    s = preset("rfeddis")["data"]
    d = dealt(Protocol(**{k: v for k, v in s.items() if k in chosen}), made)
    assert {count(rows) for rows in d.train.values()} == {62} and {count(rows) for rows in d.val.values()} == {50}
    assert {site: count(rows) for site, rows in d.test.items()} == {
        "amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59
    }  # fmt: skip


def test_replace_keeps_a_protocol_valid():
    with pytest.raises(ConfigError):
        replace(Protocol(), val=0.9)


PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"


def test_every_configuration_on_the_page_is_valid_and_every_picture_there():
    page = PAGE.read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 11
    for block in blocks:
        build(Protocol, tomllib.loads(block)["data"])
    pictures = re.findall(r"\((images/protocols/.*?)\)", page)
    assert sorted(pictures) == sorted(
        f"images/protocols/{p.name}" for p in (PAGE.parent / "images/protocols").iterdir()
    )


def test_the_tables_of_severities_are_those_of_the_code():
    for text in (PAGE.read_text(), corrupt.__doc__ or ""):
        for kind, (_, steps) in corrupt.CORRUPTIONS.items():
            row = next(line for line in text.splitlines() if line.replace("`", "").startswith(f"| {kind} |"))
            assert tuple(float(cell) for cell in row.split("|")[3:8]) == steps
