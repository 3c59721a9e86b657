"""The strict configuration loader: its sentences, its strictness, and its round trips."""

import hashlib
import json
import tomllib
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedshift.core.bounds import Choice, Log, Range, Variant
from fedshift.core.errors import ConfigError
from fedshift.experiment.overrides import join, toml_value
from fedshift.experiment.strict import (
    FieldInfo,
    build,
    canonical,
    digest,
    dump,
    fields_of,
    merge,
    parse_set,
    read_toml,
    to_toml,
)


@dataclass(frozen=True)
class Base:
    """What the dataclasses of a table may share."""

    name: ClassVar[str]


@dataclass(frozen=True)
class FedAvg(Base):
    name: ClassVar[str] = "fedavg"


@dataclass(frozen=True)
class FedProx(Base):
    name: ClassVar[str] = "fedprox"
    mu: Annotated[float, Range(0, 1, open_low=True), Log(1e-4, 1)]
    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps > 99 and self.mu == 1:
            raise ConfigError("steps above 99 need mu below 1")


METHODS = {"fedavg": FedAvg, "fedprox": FedProx}
OPTIMIZERS = {"sgd": object(), "adam": object()}


@dataclass(frozen=True)
class Optimizer:
    lr: Annotated[float, Range(0, open_low=True), "step size"] = 0.1
    kind: Annotated[str, Choice(OPTIMIZERS.keys, "optimizer")] = "sgd"
    decay: float | None = None


@dataclass(frozen=True)
class Run:
    rounds: Annotated[int, Range(1), "how many rounds", "of training"]
    seed: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    method: Annotated[object, Variant(table=lambda: METHODS)] = FedAvg()
    split: Literal["train", "test", 5] = "train"
    clip: Annotated[float, Range(0, 1, open_high=True), "norm bound"] | None = None
    shares: tuple[Annotated[float, Range(0, 1)], ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    device: int | str = "cpu"
    verbose: bool = False
    label: str = ""
    warmup: Optimizer | None = None
    stages: tuple[Optimizer, ...] = ()
    groups: dict[str, Optimizer] = field(default_factory=dict)


NEEDED: dict[str, object] = {"rounds": 3, "seed": 7}


def built(**values: object) -> Run:
    return build(Run, NEEDED | values)


def sentence(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        built(**values)
    return str(caught.value)


SENTENCES = [
    ({"ronds": 3}, "ronds is not a known key; did you mean 'rounds'?"),
    (
        {"xyz": 3},
        "xyz is not a known key; the keys here are rounds, seed, optimizer, method, split, clip, shares, "
        "weights, device, verbose, label, warmup, stages and groups",
    ),
    ({"lr": 1}, "lr is not a known key; did you mean 'optimizer.lr' or 'warmup.lr'?"),
    ({"optimizer": {"rl": 1}}, "optimizer.rl is not a known key; did you mean 'lr'?"),
    ({"optimizer": {"zzz": 1}}, "optimizer.zzz is not a known key; the keys here are lr, kind and decay"),
    ({"optimizer": {"l r": 1}}, "optimizer.\"l r\" is not a known key; did you mean 'lr'?"),
    (
        {"method": {"name": "fedavg", "mu": 1}},
        "method.mu is not a known key of 'fedavg', which takes no keys",
    ),
    (
        {"method": {"name": "fedprox", "mu": 1, "step": 1}},
        "method.step is not a known key of 'fedprox'; did you mean 'steps'?",
    ),
    ({"rounds": 3.0}, "rounds is the decimal number 3.0; please give a whole number, at least 1"),
    ({"rounds": True}, "rounds is true; please give a whole number, at least 1"),
    ({"rounds": "3"}, "rounds is the text '3'; please give a whole number, at least 1"),
    ({"rounds": 0}, "rounds is the number 0; please give a whole number, at least 1"),
    ({"seed": None}, "seed is none; please give a whole number"),
    ({"seed": {}}, "seed is a table; please give a whole number"),
    ({"seed": [1]}, "seed is a list; please give a whole number"),
    ({"optimizer": {"lr": 0}}, "optimizer.lr is the number 0; please give a number, above 0"),
    ({"optimizer": {"lr": "fast"}}, "optimizer.lr is the text 'fast'; please give a number, above 0"),
    (
        {"optimizer": {"lr": float("nan")}},
        "optimizer.lr is nan, which is not finite; please give a number, above 0",
    ),
    (
        {"optimizer": {"lr": float("inf")}},
        "optimizer.lr is inf, which is not finite; please give a number, above 0",
    ),
    (
        {"optimizer": {"kind": "adm"}},
        "optimizer.kind is the text 'adm', which is not a known optimizer; did you mean 'adam'?",
    ),
    (
        {"optimizer": {"kind": "zzz"}},
        "optimizer.kind is the text 'zzz', which is not a known optimizer; please give 'sgd' or 'adam'",
    ),
    ({"optimizer": {"kind": 1}}, "optimizer.kind is the number 1; please give 'sgd' or 'adam'"),
    ({"optimizer": 0.1}, "optimizer is the decimal number 0.1; please give a table"),
    ({"warmup": {"lrr": 1}}, "warmup.lrr is not a known key; did you mean 'lr'?"),
    ({"stages": [{}, {"lr": -1}]}, "stages[1].lr is the number -1; please give a number, above 0"),
    ({"split": "tran"}, "split is the text 'tran'; please give 'train', 'test' or 5; did you mean 'train'?"),
    ({"split": 5.0}, "split is the decimal number 5.0; please give 'train', 'test' or 5"),
    ({"clip": 1}, "clip is the number 1; please give a number, at least 0 and below 1"),
    (
        {"shares": 0.5},
        "shares is the decimal number 0.5; please give a list of values, each a number, at least 0 and at most 1",
    ),
    ({"shares": [0, 2]}, "shares[1] is the number 2; please give a number, at least 0 and at most 1"),
    ({"weights": {"site a": "x"}}, "weights.\"site a\" is the text 'x'; please give a number"),
    ({"weights": 1}, "weights is the number 1; please give a table of values, each a number"),
    ({"device": 1.5}, "device is the decimal number 1.5; please give a whole number or text in quotes"),
    ({"verbose": 1}, "verbose is the number 1; please give true or false"),
    ({"label": 3}, "label is the number 3; please give text in quotes"),
    ({"method": "fedprx"}, "method is the text 'fedprx', which is not a known name; did you mean 'fedprox'?"),
    (
        {"method": {"name": "zzz"}},
        "method.name is the text 'zzz', which is not a known name; please give 'fedavg' or 'fedprox'",
    ),
    ({"method": {"mu": 1}}, "method.mu is not a known key of 'fedavg', which takes no keys"),
    ({"method": {"name": ["fedavg"]}}, "method.name is a list; please give 'fedavg' or 'fedprox'"),
    ({"method": 3}, "method is the number 3; please give 'fedavg' or 'fedprox'"),
    (
        {"method": "fedprox"},
        "method.mu (a number, above 0 and at most 1) is missing and has no default; please set it",
    ),
    ({"method": {"name": "fedprox", "mu": 1, "steps": 100}}, "method: steps above 99 need mu below 1"),
]


@pytest.mark.parametrize(("values", "expected"), SENTENCES, ids=lambda value: str(value)[:40])
def test_each_mistake_has_its_sentence(values: dict[str, Any], expected: str) -> None:
    assert sentence(**values) == expected


def test_missing_keys_are_listed_together() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Run, {})
    assert str(caught.value) == (
        "rounds (a whole number, at least 1) and seed (a whole number) are missing and have no default; please set them"
    )


def test_a_sentence_stays_short_when_the_value_is_long() -> None:
    assert sentence(seed="x" * 500) == f"seed is the text '{'x' * 56}...; please give a whole number"


def test_top_level_sentence_of_post_init_is_unchanged() -> None:
    with pytest.raises(ConfigError, match=r"^steps above 99 need mu below 1$"):
        build(FedProx, {"mu": 1, "steps": 100})


def test_a_given_path_stands_in_front() -> None:
    with pytest.raises(ConfigError, match=r"^train\.optimizer\.lr is the number 0;"):
        build(Run, NEEDED | {"optimizer": {"lr": 0}}, "train")


@pytest.mark.parametrize("text", ["\ud800", "bad\udcff"])
def test_text_which_is_not_unicode_is_refused(text: str) -> None:
    assert sentence(label=text).endswith("; please give text in quotes")


def test_a_number_too_large_for_a_float_is_refused() -> None:
    assert sentence(optimizer={"lr": 10**400}).endswith("...; please give a number, above 0")
    assert built(seed=10**400).seed == 10**400


def test_values_arrive_as_their_declared_types() -> None:
    run = built(optimizer={"lr": 1}, shares=[0, 1], weights={"a": 2}, device=0, warmup={}, stages=[{"lr": 2}])
    assert run == Run(
        3,
        7,
        Optimizer(1.0),
        shares=(0.0, 1.0),
        weights={"a": 2.0},
        device=0,
        warmup=Optimizer(),
        stages=(Optimizer(2.0),),
    )
    assert [type(value) for value in (run.optimizer.lr, *run.shares, run.weights["a"])] == [float] * 4
    assert type(run.device) is int


def test_none_is_accepted_only_where_declared() -> None:
    assert built(clip=None, warmup=None) == Run(3, 7)
    assert sentence(label=None) == "label is none; please give text in quotes"


@dataclass(frozen=True)
class Bounded:
    value: Annotated[float, Range(0, 1)] | Annotated[str, Choice(lambda: ["auto"], "value")] = 0.5


RANGES = [
    (Range(0, 1), ", at least 0 and at most 1", [0, 0.5, 1], [-0.1, 1.1]),
    (Range(0, 1, open_low=True), ", above 0 and at most 1", [0.1, 1], [0, 1.1]),
    (Range(0, 1, open_high=True), ", at least 0 and below 1", [0, 0.9], [-0.1, 1]),
    (Range(0, 1, open_low=True, open_high=True), ", above 0 and below 1", [0.1, 0.9], [0, 1]),
    (Range(low=2), ", at least 2", [2, 1e300], [1.9]),
    (Range(high=2, open_high=True), ", below 2", [-1e300, 1.9], [2]),
]


@pytest.mark.parametrize(("bounds", "text", "inside", "outside"), RANGES, ids=lambda value: str(value))
def test_ranges_open_and_closed(bounds: Range, text: str, inside: list[float], outside: list[float]) -> None:
    bounded: type = make_dataclass("Bounded", [("x", Annotated[float, bounds])], frozen=True)
    for value in inside:
        assert build(bounded, {"x": value}).x == value
    for value in outside:
        with pytest.raises(ConfigError, match=f"; please give a number{text}$"):
            build(bounded, {"x": value})


def test_marks_hold_for_the_members_of_a_union() -> None:
    assert build(Bounded, {"value": "auto"}).value == "auto"
    for wrong in (2, "manual"):
        with pytest.raises(ConfigError, match=r"; please give a number, at least 0 and at most 1 or 'auto'$"):
            build(Bounded, {"value": wrong})


@dataclass(frozen=True)
class Outside:
    shares: Annotated[tuple[Annotated[float, Log(0.1, 1)], ...], Range(0, 1)] = ()
    methods: Annotated[tuple[Base, ...], Variant(lambda: METHODS)] = ()
    spare: Annotated[Base, Variant(lambda: METHODS | {"prox": FedProx})] | None = None


def test_marks_of_a_list_hold_for_its_values() -> None:
    with pytest.raises(
        ConfigError, match=r"^shares\[0\] is the number 2; please give a number, at least 0 and at most 1$"
    ):
        build(Outside, {"shares": [2]})


def test_one_name_is_no_list_of_variants() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outside, {"methods": "fedavg"})
    assert str(caught.value) == (
        "methods is the text 'fedavg'; please give a list of values, each 'fedavg' or 'fedprox'"
    )


def test_a_search_space_is_no_bound() -> None:
    assert built(method={"name": "fedprox", "mu": 1e-9}).method == FedProx(1e-9)


def test_variant_by_table_by_bare_name_and_in_lists() -> None:
    assert built(method="fedavg") == built(method={"name": "fedavg"}) == built()
    assert built(method={"mu": 0.5, "name": "fedprox"}).method == FedProx(0.5)
    config = Outside(methods=(FedAvg(), FedProx(0.5)), spare=FedProx(1.0, 2))
    assert dump(config) == {
        "shares": [],
        "methods": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.5, "steps": 1}],
        "spare": {"name": "fedprox", "mu": 1.0, "steps": 2},
    }
    assert build(Outside, dump(config)) == config == build(Outside, tomllib.loads(to_toml(config)))


def test_a_second_name_in_the_table_is_written_back_as_the_first() -> None:
    config = build(Outside, {"spare": {"name": "prox", "mu": 0.5}})
    assert config == Outside(spare=FedProx(0.5))
    assert digest(config) == digest(Outside(spare=FedProx(0.5)))


def test_a_variant_alone_round_trips_with_its_name() -> None:
    assert dump(FedProx(0.5)) == {"name": "fedprox", "mu": 0.5, "steps": 1}
    assert build(FedProx, dump(FedProx(0.5))) == FedProx(0.5)
    with pytest.raises(ConfigError, match=r"^name is not a known key of 'fedprox'; the keys here are mu and steps$"):
        build(FedProx, {"name": "fedavg", "mu": 0.5})


@dataclass(frozen=True)
class Named:
    name: str = "x"


def test_a_field_called_name_is_an_ordinary_field() -> None:
    assert dump(Named("y")) == {"name": "y"}
    assert build(Named, {"name": "x"}) == Named("x")
    with pytest.raises(ConfigError, match=r"^nam is not a known key; did you mean 'name'\?$"):
        build(Named, {"nam": "x"})


@pytest.mark.parametrize("kind", [list[int], tuple[int, str], dict[int, str], set[int], object, Any])
def test_types_without_a_rule_are_errors_of_the_schema(kind: object) -> None:
    broken: type = make_dataclass("Broken", [("x", kind)], frozen=True)
    with pytest.raises(TypeError, match="configuration field"):
        build(broken, {"x": [1] if kind != dict[int, str] else {1: "a"}})


def test_canonical_text_and_digest_are_as_documented() -> None:
    text = '{"decay":null,"kind":"sgd","lr":1.0}'
    assert canonical(Optimizer(1)) == canonical(Optimizer(1.0)) == text
    assert digest(Optimizer(1)) == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert canonical(Named("ü")) == '{"name":"\\u00fc"}'


def test_equal_zeros_have_one_digest() -> None:
    assert digest(built(weights={"a": -0.0})) == digest(built(weights={"a": 0.0}))
    assert digest(Run(3, 7, shares=(-0.0,))) == digest(Run(3, 7, shares=(0,)))


def test_fields_of_lists_every_key_in_words() -> None:
    rows = {row.name: row for row in fields_of(Run)}
    assert list(rows)[:6] == [
        "rounds",
        "seed",
        "optimizer",
        "optimizer.lr",
        "optimizer.kind",
        "optimizer.decay",
    ]
    assert list(rows)[-4:] == ["warmup.kind", "warmup.decay", "stages", "groups"]
    assert rows["rounds"] == FieldInfo(
        "rounds", "a whole number, at least 1", "required", "how many rounds of training"
    )
    assert rows["optimizer.lr"] == FieldInfo("optimizer.lr", "a number, above 0", "0.1", "step size")
    assert rows["method"] == FieldInfo("method", "'fedavg' or 'fedprox'", '{name = "fedavg"}', "")
    assert rows["clip"] == FieldInfo("clip", "a number, at least 0 and below 1", "none", "norm bound")
    assert rows["stages"] == FieldInfo("stages", "a list of values, each a table", "[]", "")
    assert rows["verbose"].default == "false"
    assert fields_of(Outside)[1].type == "a list of values, each 'fedavg' or 'fedprox'"


def test_fields_of_leaves_the_keys_of_a_variant_to_its_classes() -> None:
    @dataclass(frozen=True)
    class Tuned:
        method: Annotated[FedProx, Variant(lambda: METHODS)] = FedProx(0.5)

    assert [row.name for row in fields_of(Tuned)] == ["method"]
    assert [row.name for row in fields_of(FedProx, "method")] == ["method.mu", "method.steps"]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_read_toml(tmp_path: Path) -> None:
    assert read_toml(written(tmp_path / "a.toml", 'a = 1\n[b]\nc = "ü"\n'.encode())) == {
        "a": 1,
        "b": {"c": "ü"},
    }


def test_files_which_cannot_be_used(tmp_path: Path) -> None:
    file, gone = tmp_path / "a.toml", tmp_path / "gone.toml"
    cases = [
        (gone, f"the configuration file {gone} does not exist; please check its path"),
        (tmp_path, f"{tmp_path} is a folder; please give the path of a TOML file"),
        (
            written(file, b"a = 1\nb = = 2\n"),
            f"{file} is not valid TOML: Invalid value (at line 2, column 5); please correct it there",
        ),
        (
            written(tmp_path / "b.toml", b"a = 1\n# \xff\n"),
            f"{tmp_path / 'b.toml'} is not UTF-8 text at line 2; please save it as UTF-8",
        ),
        (file / "c.toml", f"{file / 'c.toml'} cannot be read (Not a directory); please check the file"),
    ]
    for path, expected in cases:
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("optimizer.lr=0.1", ("optimizer", "lr"), 0.1),
        ("optimizer.lr = 1", ("optimizer", "lr"), 1),
        ("method=fedavg", ("method",), "fedavg"),
        ('method={name="fedprox", mu=0.1}', ("method",), {"name": "fedprox", "mu": 0.1}),
        ("shares=[0.5, 1]", ("shares",), [0.5, 1]),
        ("verbose=true", ("verbose",), True),
        ('label="3"', ("label",), "3"),
        ("label=", ("label",), ""),
        ("label = two words ", ("label",), "two words"),
        ("label=1,", ("label",), "1,"),
        ("label=a=b", ("label",), "a=b"),
        ("label=1, 2", ("label",), "1, 2"),
        ("label=1 # no comment", ("label",), "1 # no comment"),
        ("label=1]\nseed = [2", ("label",), "1]\nseed = [2"),
        ('weights."site a.b"=1', ("weights", "site a.b"), 1),
    ],
)
def test_parse_set(text: str, keys: tuple[str, ...], value: object) -> None:
    assert parse_set(text) == (keys, value)
    assert type(parse_set(text)[1]) is type(value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("optimizer.lr", "has no '='"),
        ("", "has no '='"),
        ("=1", "does not begin with a dotted key"),
        ("a..b=1", "does not begin with a dotted key"),
        ("a b=1", "does not begin with a dotted key"),
        ("[a.b]\n[a]\nc=1", "does not begin with a dotted key"),
        ("# a=1", "does not begin with a dotted key"),
    ],
)
def test_sets_which_cannot_be_read(text: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_set(text)
    assert str(caught.value) == f"--set {text!r} {found}; please write key=value, for example optimizer.lr=0.1"


def test_merge_lets_the_later_win_and_leaves_the_mapping_alone() -> None:
    before: dict[str, object] = {"rounds": 3, "optimizer": {"lr": 1.0, "kind": "sgd"}}
    merged = merge(before, ["optimizer.lr=2", "optimizer.lr=3", "weights.a=1", "rounds=4"])
    assert merged == {"rounds": 4, "optimizer": {"lr": 3, "kind": "sgd"}, "weights": {"a": 1}}
    assert before == {"rounds": 3, "optimizer": {"lr": 1.0, "kind": "sgd"}}


def test_merge_does_not_set_through_a_plain_value() -> None:
    with pytest.raises(ConfigError) as caught:
        merge({"a": {"method": 3}}, ["a.method.mu=1"])
    assert str(caught.value) == (
        "a.method.mu cannot be set because a.method is the number 3; please write a.method as a table"
    )


@dataclass(frozen=True)
class Awkward:
    limit: int | None = 5
    pairs: tuple[int | None, ...] = ()
    table: dict[str, int | None] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (Awkward(limit=None), "limit"),
        (Awkward(pairs=(1, None)), "pairs[1]"),
        (Awkward(table={"a b": None}), 'table."a b"'),
    ],
)
def test_a_none_which_toml_would_lose_is_refused(config: Awkward, path: str) -> None:
    assert build(Awkward, json.loads(canonical(config))) == config
    with pytest.raises(ConfigError) as caught:
        to_toml(config)
    assert str(caught.value) == f"{path} is none, which TOML cannot express; please give it a value"


# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SHARE = st.floats(0, 1)
STEP = st.floats(0, exclude_min=True, allow_infinity=False)
NASTY = st.text() | st.sampled_from(['"', "'", "\\", '"""', "\r\n", "\x00", "\x7f", "\u2028", "😀", "#", "[a]", "="])
OPTIMIZER = st.builds(Optimizer, lr=STEP, kind=st.sampled_from(list(OPTIMIZERS)), decay=st.none() | FINITE)
METHOD = st.builds(FedAvg) | st.builds(FedProx, mu=st.floats(1e-9, 0.99), steps=st.integers(0))
RUNS = st.builds(
    Run,
    rounds=st.integers(1),
    seed=st.integers(),
    optimizer=OPTIMIZER,
    method=METHOD,
    split=st.sampled_from(["train", "test", 5]),
    clip=st.none() | st.floats(0, 1, exclude_max=True),
    shares=st.lists(SHARE).map(tuple),
    weights=st.dictionaries(NASTY, FINITE, max_size=4),
    device=st.integers() | NASTY,
    verbose=st.booleans(),
    label=NASTY,
    warmup=st.none() | OPTIMIZER,
    stages=st.lists(OPTIMIZER, max_size=2).map(tuple),
    groups=st.dictionaries(NASTY, OPTIMIZER, max_size=2),
)


@UNHURRIED
@given(RUNS)
def test_dump_and_json_round_trip(run: Run) -> None:
    assert build(Run, dump(run)) == run
    assert build(Run, json.loads(canonical(run))) == run


@UNHURRIED
@given(RUNS)
def test_toml_round_trip(run: Run) -> None:
    assert build(Run, tomllib.loads(to_toml(run))) == run


def reordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: reordered(item) for key, item in reversed(value.items())}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@UNHURRIED
@given(RUNS, RUNS)
def test_digest_depends_on_the_content_alone(run: Run, other: Run) -> None:
    assert digest(build(Run, reordered(dump(run)))) == digest(run)  # type: ignore[arg-type]
    assert (digest(run) == digest(other)) == (run == other)


def sets_of(value: object, path: str = "") -> list[str]:
    """The `--set` arguments which write a plain dictionary key by key."""
    if isinstance(value, dict) and (value or not path):
        return [text for key, item in value.items() if item is not None for text in sets_of(item, join(path, key))]
    return [f"{path}={toml_value(value)}"]


@UNHURRIED
@given(RUNS.filter(lambda run: not any("=" in key for key in (*run.weights, *run.groups))))
def test_sets_equal_editing_the_file(run: Run) -> None:
    merged = merge({}, sets_of(dump(run)))
    assert merged == tomllib.loads(to_toml(run))
    assert build(Run, merged) == run


@UNHURRIED
@given(NASTY)
def test_a_set_never_changes_another_key(text: str) -> None:
    merged = merge({"seed": 1}, [f"label={text}"])
    assert merged.keys() == {"seed", "label"}
    assert merged["seed"] == 1


@UNHURRIED
@given(st.booleans() | st.integers() | FINITE | st.text() | st.none() | st.lists(st.integers()))
def test_a_value_is_taken_exactly_by_the_types_it_has(value: object) -> None:
    @dataclass(frozen=True)
    class Any4:
        flag: bool = False
        count: int = 0
        rate: float = 0.0
        text: str = ""

    def taken(key: str) -> bool:
        try:
            build(Any4, {key: value})
        except ConfigError:
            return False
        return True

    small = type(value) is not int or abs(value) < 2**1000
    assert taken("flag") == (type(value) is bool)
    assert taken("count") == (type(value) is int)
    assert taken("rate") == (type(value) in (int, float) and small)
    assert taken("text") == (type(value) is str)


def test_a_section_without_its_name_changes_the_default() -> None:
    from fedshift.core.optim import SGD
    from fedshift.experiment.config import Experiment

    config = build(Experiment, merge({}, ["optimizer.momentum=0.9"]))
    assert config.optimizer == SGD(momentum=0.9)
    with pytest.raises(ConfigError, match=r"optimizer\.beta1 is not a known key of 'sgd'"):
        build(Experiment, {"optimizer": {"beta1": 0.5}})


def test_a_name_set_alone_becomes_its_section() -> None:
    assert merge({}, ["method=fedprox", "method.mu=1"]) == {"method": {"name": "fedprox", "mu": 1}}
